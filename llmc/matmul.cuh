/* matmul.cuh - matrix products through cuBLASLt: shapes, plans, operands, the three passes of a linear layer
 *
 * One GEMM:  D (m,n) [+]= A (m,k) . B (n,k)^T [+ bias (n)], row-major, both contracted along their contiguous axis. In the column-major terms of
 *            cuBLASLt that is D^T = op(B) op(A): its A is our B. An operand stored with the contraction as its first axis sets a_t or b_t instead.
 * Operand:   a tensor as a GEMM reads it: k contiguous along the last axis, t along the first, each with its descales (fp8_layout.h). For f32 and bf16 t is
 *            absent and the GEMM gets a transpose flag; for FP8 both exist, because 8.9, 9.0 and 12.x multiply FP8 in one layout only; 10.x takes any, so t is
 *            absent there while both orders have the same scale.
 * GELU:      fused into the product that makes its input, on request and for f32 and bf16 only: forward D = gelu(Z) and the second result h = Z, where
 *            Z = A . B^T + bias; backward D = gelu'(h) A . B^T, h read. The GELU of forward sees Z before it is rounded to h, gelu.cuh's after: the two
 *            paths differ by about that rounding. In FP8 the separate kernel stays, since it takes the amax of the operand that it makes.
 * Passes:    fprop Y (N,OC) = x.k W.k + b; dgrad dX (N,C) = dY.k W.t; wgrad dW (OC,C) += dY.t x.t (beta = 1: accumulates over micro-steps).
 * Plans:     keyed by GemmShape, made once, reused. gemm_plan makes one without running it: the program plans all its shapes before training, and a
 *            refused one ends the program with its sizes and the nearest setting that is accepted. Nothing falls back in silence.
 * Errors:    require / fail with the values. Memory: plans belong to the Device.
 * Tests:     dev/test/test_kernels_matmul.cu
 */
#ifndef LLMC_MATMUL_CUH
#define LLMC_MATMUL_CUH

#include "llmc/fp8_layout.h"
#include "llmc/fp8_recipe.cuh"
#include "llmc/gpu.cuh"

// ----------------------------------------------------------------------------
// element types

typedef enum { DTYPE_F32, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2 } DType;
static const char* const dtype_names[] = {"f32", "bf16", "e4m3", "e5m2"};
static inline cudaDataType_t dtype_cuda(DType d) {
    return d == DTYPE_F32 ? CUDA_R_32F : d == DTYPE_BF16 ? CUDA_R_16BF : d == DTYPE_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}
static inline size_t dtype_bytes(DType d) { return d == DTYPE_F32 ? 4 : d == DTYPE_BF16 ? 2 : 1; }
static inline bool dtype_is_fp8(DType d) { return d == DTYPE_E4M3 || d == DTYPE_E5M2; }
template <class T> static inline DType dtype_of();
template <> inline DType dtype_of<float>() { return DTYPE_F32; }
template <> inline DType dtype_of<bf16>() { return DTYPE_BF16; }
static inline DType dtype_of_fp8(Fp8Format format) { return format == FP8_E4M3 ? DTYPE_E4M3 : DTYPE_E5M2; }

// ----------------------------------------------------------------------------
// shapes and plans

typedef enum { GEMM_GELU_NONE, GEMM_GELU_FORWARD, GEMM_GELU_BACKWARD } GemmGelu;

// The key of a plan: compared as bytes, so always start from gemm_shape(), which zeroes it.
typedef struct GemmShape {
    int m, n, k;
    int a, b, d;                          // DType
    int a_t, b_t;                         // 1: stored (k,m) / (k,n) row-major
    int lda, ldb, ldd;                    // elements from row to row as stored
    int bias;                             // 1: + bias (n), of D's type
    int gelu, ld_h;                       // GemmGelu; h (m,n) has D's type: elements from row to row, 0 without
    int accumulate;                       // 1: D +=
    int fast_accum;                       // FP8: no promotion of partial sums to f32
    int batch;                            // 1 or more products, at these distances in elements:
    int align;                            // bytes every pointer is aligned to
    int scale_a, scale_b;                 // FP8: Fp8Granularity of their descales
    long long stride_a, stride_b, stride_d;
} GemmShape;
static_assert(sizeof(GemmShape) == 20 * sizeof(int) + 3 * sizeof(long long), "no padding: it would count in the comparison");

typedef struct GemmPlan {
    GemmShape shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;       // in cuBLASLt's sense: a is our B
    cublasLtMatmulHeuristicResult_t heuristic;
    cublasStatus_t status;                // SUCCESS, or why it was refused
    char name[64];                        // what it was first planned for ("fc gemm dgrad")
    struct { const char* name; uint64_t calls; } uses[4];  // for dev/bench.cu: as which profile classes it ran, and how often; layers may share a shape
} GemmPlan;

static inline GemmShape gemm_shape(int m, int n, int k, DType a, DType b, DType d) {
    GemmShape s;
    memset(&s, 0, sizeof(s));
    s.m = m; s.n = n; s.k = k; s.a = a; s.b = b; s.d = d;
    s.lda = k; s.ldb = k; s.ldd = n; s.batch = 1; s.align = 256;
    return s;
}

// "m 1024 n 768 k 768, e4m3 x e4m3 -> bf16, bias, fast accumulation, batch 12"
static inline const char* gemm_describe(const GemmShape* s, char buffer[256]) {
    char scales[40] = "";
    if (s->scale_a || s->scale_b) { snprintf(scales, sizeof(scales), ", scales %s x %s", fp8_granularity_names[s->scale_a], fp8_granularity_names[s->scale_b]); }
    snprintf(buffer, 256, "m %d, n %d, k %d (A %s ld %d%s, B %s ld %d%s, D %s ld %d)%s%s%s%s%s, batch %d, alignment %d", s->m, s->n, s->k, dtype_names[s->a], s->lda,
             s->a_t ? " transposed" : "", dtype_names[s->b], s->ldb, s->b_t ? " transposed" : "", dtype_names[s->d], s->ldd,
             s->bias ? ", bias" : "", s->gelu == GEMM_GELU_FORWARD ? ", GELU" : s->gelu == GEMM_GELU_BACKWARD ? ", GELU backward" : "",
             s->accumulate ? ", accumulate" : "", s->fast_accum ? ", fast accumulation" : "", scales, s->batch, s->align);
    return buffer;
}

static inline void cublas_check(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS) { fail_at(1, file, line, "", "set CUBLASLT_LOG_LEVEL=5 for the library's own reason", "cuBLASLt status %d from %s", (int)status, call); }
}
#define cublasCheck(call) cublas_check((call), #call, __FILE__, __LINE__)

static inline cublasLtMatrixLayout_t gemm_layout(DType type, int rows, int cols, int ld, int batch, long long stride) {
    cublasLtMatrixLayout_t layout;
    cublasCheck(cublasLtMatrixLayoutCreate(&layout, dtype_cuda(type), rows, cols, ld));
    if (batch > 1) {
        int32_t count = batch;
        int64_t offset = stride;
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof(offset)));
    }
    return layout;
}

#if CUBLAS_VERSION >= 120900
// cuBLASLt's name for a kind of scales.
static inline int32_t gemm_scale_mode(int by) {
    static const int32_t modes[NUM_FP8_GRANULARITIES] = {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                                         CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0};
    return modes[by];
}
#endif

static inline cublasLtEpilogue_t gemm_epilogue(const GemmShape* s) {
    if (s->gelu == GEMM_GELU_BACKWARD) { return CUBLASLT_EPILOGUE_DGELU; }  // has no bias
    if (s->gelu == GEMM_GELU_FORWARD) { return s->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX; }
    return s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// The descriptor and the layouts of a shape; needs no device. workspace: stands for pointers that are set at each call; the heuristic looks
// whether they are there, and at their alignment.
static inline void gemm_describe_plan(GemmPlan* p, const GemmShape* s, bool tf32, const void* workspace) {
    p->shape = *s;
    cublasComputeType_t compute = s->a == DTYPE_F32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasCheck(cublasLtMatmulDescCreate(&p->desc, compute, CUDA_R_32F));
    cublasOperation_t op_a = s->b_t ? CUBLAS_OP_N : CUBLAS_OP_T, op_b = s->a_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a)));
    cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b)));
    cublasLtEpilogue_t epilogue = gemm_epilogue(s);
    cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (s->bias) {
        cudaDataType_t bias_type = dtype_cuda((DType)s->d);
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type)));
    }
    if (s->gelu) {
        int64_t ld = s->ld_h;
        const char* some = (const char*)workspace + (s->align < 256 ? s->align : 0);  // the heuristic takes h's alignment from the pointer's
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof(ld)));
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &some, sizeof(some)));
    }
    if (dtype_is_fp8((DType)s->a)) {
        int8_t fast = (int8_t)s->fast_accum;
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
        // the heuristic must know that there are scales; the pointers are set at each call
        const void* some = workspace;
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &some, sizeof(some)));
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &some, sizeof(some)));
        if (s->scale_a || s->scale_b) {
#if CUBLAS_VERSION >= 120900
            const int32_t mode_a = gemm_scale_mode(s->scale_b), mode_b = gemm_scale_mode(s->scale_a);
            cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode_a, sizeof(mode_a)));
            cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode_b, sizeof(mode_b)));
#else
            fail("build with CUDA 12.9 or newer, or choose --fp8-recipe current", "this program was built with cuBLAS %d, which has one scale a tensor only", CUBLAS_VERSION);
#endif
        }
    }
    p->a = s->b_t ? gemm_layout((DType)s->b, s->n, s->k, s->ldb, s->batch, s->stride_b) : gemm_layout((DType)s->b, s->k, s->n, s->ldb, s->batch, s->stride_b);
    p->b = s->a_t ? gemm_layout((DType)s->a, s->m, s->k, s->lda, s->batch, s->stride_a) : gemm_layout((DType)s->a, s->k, s->m, s->lda, s->batch, s->stride_a);
    p->d = gemm_layout((DType)s->d, s->n, s->m, s->ldd, s->batch, s->stride_d);
}

static inline GemmPlan* gemm_plan_create(Device* dev, const GemmShape* s) {
    GemmPlan* p = new GemmPlan();
    gemm_describe_plan(p, s, dev->tf32, dev->workspace);
    cublasLtMatmulPreference_t preference;
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &dev->workspace_bytes, sizeof(dev->workspace_bytes)));
    uint32_t align = s->align;
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof(align)));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof(align)));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof(align)));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof(align)));
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // partial sums of a split K meet in f32, never in the output's type
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)));
    int returned = 0;
    p->status = cublasLtMatmulAlgoGetHeuristic(dev->lt, p->desc, p->a, p->b, p->d, p->d, preference, 1, &p->heuristic, &returned);
    if (p->status == CUBLAS_STATUS_SUCCESS && returned == 0) { p->status = CUBLAS_STATUS_NOT_SUPPORTED; }
    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
    return p;
}

static inline void gemm_plan_free(GemmPlan* p) {
    cublasCheck(cublasLtMatmulDescDestroy(p->desc));
    cublasCheck(cublasLtMatrixLayoutDestroy(p->a));
    cublasCheck(cublasLtMatrixLayoutDestroy(p->b));
    cublasCheck(cublasLtMatrixLayoutDestroy(p->d));
    delete p;
}

// Frees what device_init and the plans hold.
static inline void device_free(Device* dev) {
    for (GemmPlan* p : dev->plans) { gemm_plan_free(p); }
    dev->plans.clear();
    cublasCheck(cublasLtDestroy(dev->lt));
    cudaCheck(cudaFree(dev->workspace));
    cudaCheck(cudaStreamDestroy(dev->stream));
}

// The plan of a shape, made if it is new. Its status says whether the library accepts it.
static inline GemmPlan* gemm_plan(Device* dev, const GemmShape* s) {
    for (GemmPlan* p : dev->plans) { if (memcmp(&p->shape, s, sizeof(*s)) == 0) { return p; } }
    GemmPlan* p = gemm_plan_create(dev, s);
    dev->plans.push_back(p);
    return p;
}

// The nearest variation of a refused shape that the library accepts, as words, or "none of the variations tried".
static inline const char* gemm_find_accepted(Device* dev, const GemmShape* s, char buffer[256]) {
    for (int v = 0; v < 7; v++) {
        GemmShape c = *s;
        const char* what = "";
        if (v == 0) { if (!c.gelu) { continue; } c.gelu = c.ld_h = 0; what = "without GELU fusion (-ge 0)"; }
        if (v == 1) { if (!dtype_is_fp8((DType)c.a) || c.scale_a == FP8_BY_VEC128) { continue; } c.fast_accum = !c.fast_accum; what = c.fast_accum ? "with fast accumulation" : "without it"; }
        if (v == 2) { if (!c.bias || c.gelu) { continue; } c.bias = 0; what = "without the bias epilogue"; }
        if (v == 3) { c.d = DTYPE_F32; what = "with f32 output"; }
        if (v == 4 || v == 5) {
            int to = v == 4 ? 16 : 128;
            c.m = ROUND_UP(c.m, to); c.n = ROUND_UP(c.n, to); c.k = ROUND_UP(c.k, to);
            c.lda = ROUND_UP(c.lda, to); c.ldb = ROUND_UP(c.ldb, to); c.ldd = ROUND_UP(c.ldd, to); c.ld_h = ROUND_UP(c.ld_h, to);
            what = v == 4 ? "with sizes rounded up to multiples of 16" : "with sizes rounded up to multiples of 128";
        }
        if (v == 6) { if (!dtype_is_fp8((DType)c.a)) { continue; } c.a = c.b = c.d = DTYPE_BF16; c.fast_accum = c.scale_a = c.scale_b = 0; what = "with --dtype bfloat16"; }
        if (memcmp(&c, s, sizeof(c)) == 0) { continue; }
        GemmPlan* p = gemm_plan_create(dev, &c);
        bool accepted = p->status == CUBLAS_STATUS_SUCCESS;
        gemm_plan_free(p);
        if (accepted) {
            char text[200];
            snprintf(buffer, 256, "accepted is %s: %.190s", what, gemm_describe(&c, text));
            return buffer;
        }
    }
    snprintf(buffer, 256, "none of the variations tried is accepted; try --dtype bfloat16 or float32");
    return buffer;
}

// Why the library refused last, as far as it says: the CPU device names its rule, cuBLASLt only logs.
static inline const char* gemm_refusal_reason(void) {
#ifdef GPT_CPU_DEVICE
    return cpu_cublaslt_last_reason();
#else
    return "CUBLASLT_LOG_LEVEL=5 shows the library's own reason";
#endif
}

// Ends the program unless the library accepts the shape. name: what the product is for ("fc dgrad").
static inline GemmPlan* gemm_plan_or_fail(Device* dev, const GemmShape* s, const char* name) {
    GemmPlan* p = gemm_plan(dev, s);
    if (p->status != CUBLAS_STATUS_SUCCESS) {
        char what[256], hint[256];
        std::string reason = gemm_refusal_reason();
        fail(gemm_find_accepted(dev, s, hint), "cuBLASLt %zu refuses the product '%s' on %s (status %d): %s\n       %s", cublasLtGetVersion(), name, dev->props.name,
             (int)p->status, gemm_describe(s, what), reason.c_str());
    }
    if (!p->name[0]) { snprintf(p->name, sizeof(p->name), "%.63s", name); }
    return p;
}

// D = A . B^T (see the top). a_descale, b_descale: on the device, as the shape's scale_a and scale_b say, for FP8 operands; else NULL. bias: n elements of D's type if the shape has one.
// h: with a fused GELU its input (m,n), written forward and read backward; it may not overlap D. Enqueues only.
static inline void gemm(Device* dev, const char* name, const GemmShape* s, void* D, const void* A, const void* B, const void* a_descale, const void* b_descale, const void* bias,
                        void* h = NULL) {
    GemmPlan* p = gemm_plan_or_fail(dev, s, name);
    for (auto& use : p->uses) {
        if (!use.name) { use.name = name; }
        if (use.name == name) { use.calls++; break; }
    }
    require((((uintptr_t)D | (uintptr_t)A | (uintptr_t)B | (uintptr_t)h) & (uintptr_t)(s->align - 1)) == 0, "", "product '%s': pointers %p %p %p %p are not aligned to %d bytes", name, D,
            A, B, h, s->align);
    if (dtype_is_fp8((DType)s->a)) {
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b_descale, sizeof(b_descale)));
        cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a_descale, sizeof(a_descale)));
    }
    if (s->bias) { cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias))); }
    if (s->gelu) { cublasCheck(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &h, sizeof(h))); }
    const float alpha = 1.0f, beta = s->accumulate ? 1.0f : 0.0f;
    ProfileScope scope(name, 1, dev->stream);
    cublasStatus_t status = cublasLtMatmul(dev->lt, p->desc, &alpha, B, p->a, A, p->b, &beta, D, p->d, D, p->d, &p->heuristic.algo, dev->workspace, dev->workspace_bytes, dev->stream);
    if (status != CUBLAS_STATUS_SUCCESS) {
        char what[256];
        fail(gemm_refusal_reason(), "cublasLtMatmul failed with status %d for '%s': %s", (int)status, name, gemm_describe(s, what));
    }
}

// ----------------------------------------------------------------------------
// operands and linear layers

typedef struct {
    void* k;               // (rows, cols), contiguous along cols
    void* t;               // (cols, rows), contiguous along rows; NULL: read k with a transpose flag
    const void *k_scale, *t_scale;  // their descales on the device; NULL for f32 and bf16
    Fp8Granularity by;     // what a descale is for
    DType dtype;
    int rows, cols;
} Operand;

template <class T> static inline Operand operand_plain(const T* x, int rows, int cols) {
    Operand o = {(void*)x, NULL, NULL, NULL, FP8_BY_TENSOR, dtype_of<T>(), rows, cols};
    return o;
}

// The largest power of two up to 256 that divides a distance in bytes: what pointers at multiples of it are aligned to.
static inline int gemm_alignment(size_t bytes) {
    int align = 256;
    while (bytes % align) { align /= 2; }
    return align;
}

typedef enum { PASS_FPROP, PASS_DGRAD, PASS_WGRAD, NUM_PASSES } Pass;
static const char* const pass_names[NUM_PASSES] = {"gemm fprop", "gemm dgrad", "gemm wgrad"};

// The shape of one pass of a linear layer x (N,C) -> y (N,OC): the one place that both planning and running use.
// x, w, dy: operand types; out: type of the result; t: the operands have a transposed copy; by: what their descales are for.
typedef struct { Fp8Granularity x, w, dy; } LinearScales;
static inline GemmShape linear_shape(Pass pass, int N, int C, int OC, DType x, DType w, DType dy, DType out, bool t, bool fast_accum,
                                     LinearScales by = {FP8_BY_TENSOR, FP8_BY_TENSOR, FP8_BY_TENSOR}) {
    GemmShape s;
    if (pass == PASS_FPROP) {
        s = gemm_shape(N, OC, C, x, w, out);
        s.bias = 1;
    } else if (pass == PASS_DGRAD) {
        s = gemm_shape(N, C, OC, dy, w, out);                 // dY (N,OC) . (W^T) (C,OC)^T
        if (!t) { s.b_t = 1; s.ldb = C; }
    } else {
        s = gemm_shape(OC, C, N, dy, x, out);                 // dY^T (OC,N) . (x^T) (C,N)^T
        if (!t) { s.a_t = 1; s.lda = OC; s.b_t = 1; s.ldb = C; }
        s.accumulate = 1;
    }
    s.fast_accum = fast_accum && dtype_is_fp8((DType)s.a);
    s.scale_a = pass == PASS_FPROP ? by.x : by.dy;
    s.scale_b = pass == PASS_WGRAD ? by.x : by.w;
    s.align = gemm_alignment((size_t)N * C * dtype_bytes((DType)s.a));  // activations of one layer follow those of another without a gap
    return s;
}

// The shape of a linear layer's product with GELU fused, operands and results of type x (f32 or bf16). PASS_FPROP: of x (N,C) -> h (N,OC), gelu(h).
// PASS_DGRAD: of the layer after the GELU, (N,C) -> (N,OC): dh (N,C) from dY (N,OC). OC (fprop) or C (dgrad) must be a multiple of 8.
static inline GemmShape linear_gelu_shape(Pass pass, int N, int C, int OC, DType x) {
    GemmShape s = linear_shape(pass, N, C, OC, x, x, x, x, false, false);
    s.gelu = pass == PASS_FPROP ? GEMM_GELU_FORWARD : GEMM_GELU_BACKWARD;
    s.ld_h = s.ldd;
    return s;
}

// y (N,OC) = x W^T + bias
static inline void linear_forward(Device* dev, void* y, DType y_type, Operand x, Operand w, const void* bias, bool fast_accum) {
    GemmShape s = linear_shape(PASS_FPROP, x.rows, x.cols, w.rows, x.dtype, w.dtype, x.dtype, y_type, x.t != NULL, fast_accum, {x.by, w.by, x.by});
    gemm(dev, pass_names[PASS_FPROP], &s, y, x.k, w.k, x.k_scale, w.k_scale, bias);
}
// dx (N,C) = dY W
static inline void linear_dgrad(Device* dev, void* dx, DType dx_type, Operand dy, Operand w, bool fast_accum) {
    GemmShape s = linear_shape(PASS_DGRAD, dy.rows, w.cols, w.rows, dy.dtype, w.dtype, dy.dtype, dx_type, w.t != NULL, fast_accum, {dy.by, w.by, dy.by});
    gemm(dev, pass_names[PASS_DGRAD], &s, dx, dy.k, w.t ? w.t : w.k, dy.k_scale, w.t ? w.t_scale : w.k_scale, NULL);
}
// h (N,OC) = x W^T + bias, gelu (N,OC) = gelu(h), both of x's type (f32 or bf16): two results of one product
static inline void linear_forward_gelu(Device* dev, void* gelu, void* h, Operand x, Operand w, const void* bias) {
    GemmShape s = linear_gelu_shape(PASS_FPROP, x.rows, x.cols, w.rows, x.dtype);
    gemm(dev, pass_names[PASS_FPROP], &s, gelu, x.k, w.k, NULL, NULL, bias, h);
}
// dh (N,C) = gelu'(h) dY W, where W (OC,C) belongs to the layer that reads gelu(h). dh and h may not overlap.
static inline void linear_dgrad_gelu(Device* dev, void* dh, const void* h, Operand dy, Operand w) {
    GemmShape s = linear_gelu_shape(PASS_DGRAD, dy.rows, w.cols, w.rows, dy.dtype);
    gemm(dev, pass_names[PASS_DGRAD], &s, dh, dy.k, w.k, NULL, NULL, NULL, (void*)h);
}
// dw (OC,C) += dY^T x
static inline void linear_wgrad(Device* dev, void* dw, DType dw_type, Operand dy, Operand x, bool fast_accum) {
    bool t = dy.t != NULL;
    GemmShape s = linear_shape(PASS_WGRAD, dy.rows, x.cols, dy.cols, x.dtype, x.dtype, dy.dtype, dw_type, t, fast_accum, {x.by, x.by, dy.by});
    gemm(dev, pass_names[PASS_WGRAD], &s, dw, t ? dy.t : dy.k, t ? x.t : x.k, t ? dy.t_scale : dy.k_scale, t ? x.t_scale : x.k_scale, NULL);
}

#endif
