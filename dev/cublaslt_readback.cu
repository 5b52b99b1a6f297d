/* cublaslt_readback.cu - what our plans tell cuBLASLt, read back from the library itself; needs no GPU
 *
 * What:      for every recipe, pass and architecture (and for BF16, FP32, TF32 and fused GELU) the descriptors and layouts are made by llmc/matmul.cuh, as for
 *            training, and every attribute that the library knows is read back with cublasLt...GetAttribute and compared with the table below, which is
 *            written in the library's own terms (its A is our B). What the table does not name must have the default of a fresh descriptor.
 * Builds:    by nvcc with the real cuBLASLt, where descriptors can be made without a GPU and without a handle; by g++ with the CPU device, which is then also
 *            asked, playing each architecture, whether it accepts the plan. dev/check_cublaslt.py builds and runs both, and compares --attributes.
 *
 *   cublaslt_readback                 the comparison; last line "N passed, N failed, N skipped", a check is a plan; exit code 1 if one failed
 *   cublaslt_readback --attributes    "desc 3 4 00000000": kind, number, bytes and default (hex, as stored) of every attribute the library knows
 */
#include "llmc/matmul.cuh"

// ----------------------------------------------------------------------------
// expectations. A is the operand that is W in fprop and dgrad, x in wgrad; B is x in fprop, dY in dgrad and wgrad.

//    recipe   pass   A     B     A_SCALE_MODE     B_SCALE_MODE   FAST_ACCUM
#define READBACK_TABLE(X) \
    X(current, FPROP, E4M3, E4M3, SCALAR_32F,      SCALAR_32F,    1) \
    X(current, DGRAD, E4M3, E5M2, SCALAR_32F,      SCALAR_32F,    0) \
    X(current, WGRAD, E4M3, E5M2, SCALAR_32F,      SCALAR_32F,    0) \
    X(delayed, FPROP, E4M3, E4M3, SCALAR_32F,      SCALAR_32F,    1) \
    X(delayed, DGRAD, E4M3, E5M2, SCALAR_32F,      SCALAR_32F,    0) \
    X(delayed, WGRAD, E4M3, E5M2, SCALAR_32F,      SCALAR_32F,    0) \
    X(row,     FPROP, E4M3, E4M3, OUTER_VEC_32F,   OUTER_VEC_32F, 1) \
    X(row,     DGRAD, E4M3, E4M3, OUTER_VEC_32F,   OUTER_VEC_32F, 0) \
    X(row,     WGRAD, E4M3, E4M3, OUTER_VEC_32F,   OUTER_VEC_32F, 0) \
    X(block,   FPROP, E4M3, E4M3, BLK128x128_32F,  VEC128_32F,    0) \
    X(block,   DGRAD, E4M3, E4M3, BLK128x128_32F,  VEC128_32F,    0) \
    X(block,   WGRAD, E4M3, E4M3, VEC128_32F,      VEC128_32F,    0) \
    X(mx,      FPROP, E4M3, E4M3, VEC32_UE8M0,     VEC32_UE8M0,   0) \
    X(mx,      DGRAD, E4M3, E4M3, VEC32_UE8M0,     VEC32_UE8M0,   0) \
    X(mx,      WGRAD, E4M3, E4M3, VEC32_UE8M0,     VEC32_UE8M0,   0)

typedef struct { const char* recipe; Pass pass; cudaDataType_t a, b; int32_t mode_a, mode_b; int8_t fast; } ReadbackRow;
static const ReadbackRow readback_rows[] = {
#define READBACK_ROW(recipe, pass, a, b, mode_a, mode_b, fast) \
    {#recipe, PASS_##pass, CUDA_R_8F_##a, CUDA_R_8F_##b, CUBLASLT_MATMUL_MATRIX_SCALE_##mode_a, CUBLASLT_MATMUL_MATRIX_SCALE_##mode_b, fast},
    READBACK_TABLE(READBACK_ROW)
#undef READBACK_ROW
};

// In column-major terms: D (m,n) = op(A) (m,k) op(B) (k,n).
typedef struct {
    int64_t m, n, k;
    cudaDataType_t a, b, d;
    bool a_transposed, b_transposed;   // TN: true, false
    cublasComputeType_t compute;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias;               // of epilogues with a bias
    int64_t aux_ld;                    // of epilogues with GELU's input
    bool scaled;
    int32_t mode_a, mode_b;
    int8_t fast;
} Expected;

static Expected expected(Pass pass, int N, int C, int OC, bool tn) {
    Expected e = {};
    e.m = pass == PASS_FPROP ? OC : C;
    e.n = pass == PASS_WGRAD ? OC : N;
    e.k = pass == PASS_FPROP ? C : pass == PASS_DGRAD ? OC : N;
    e.a_transposed = tn || pass == PASS_FPROP;   // else the one copy of the operand is read with a transpose flag
    e.b_transposed = !tn && pass == PASS_WGRAD;
    e.compute = CUBLAS_COMPUTE_32F;
    e.epilogue = pass == PASS_FPROP ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return e;
}

// ----------------------------------------------------------------------------
// reading back

static const void* const readback_pointer = (const void*)0x7f0000000000;  // stands for device memory: descriptors keep pointers, they do not look behind them
static int readback_passed, readback_failed;

typedef struct { int attribute; uint64_t value; } Want;

// Every attribute from 0 to 63 that the library knows: as wanted, or as a fresh object has it. get(fresh, attribute, buffer, bytes, written).
template <class Get> static bool readback_compare(const char* what, const char* of, Get get, const Want* wants, int count) {
    bool ok = true;
    for (int i = 0; i < count; i++) {
        size_t bytes = 0;
        if (get(false, wants[i].attribute, NULL, 0, &bytes) != CUBLAS_STATUS_SUCCESS) {
            printf("FAIL %s: %s has no attribute %d\n", what, of, wants[i].attribute);
            ok = false;
        }
    }
    for (int attribute = 0; attribute < 64; attribute++) {
        size_t bytes = 0;
        uint64_t have = 0, want = 0;
        if (get(false, attribute, NULL, 0, &bytes) != CUBLAS_STATUS_SUCCESS) { continue; }
        bool readable = bytes <= 8 && get(false, attribute, &have, bytes, &bytes) == CUBLAS_STATUS_SUCCESS && get(true, attribute, &want, bytes, &bytes) == CUBLAS_STATUS_SUCCESS;
        for (int i = 0; i < count; i++) { if (wants[i].attribute == attribute) { want = wants[i].value; } }
        if (bytes < 8) { want &= ((uint64_t)1 << 8 * bytes) - 1; }
        if (!readable || have != want) {
            printf("FAIL %s: attribute %d of %s (%zu bytes) is %llx, not %llx\n", what, attribute, of, bytes, (unsigned long long)have, (unsigned long long)want);
            ok = false;
        }
    }
    return ok;
}

static bool readback_layout(const char* what, const char* of, cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows, int64_t cols) {
    const Want wants[] = {{CUBLASLT_MATRIX_LAYOUT_TYPE, (uint64_t)type}, {CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_COL}, {CUBLASLT_MATRIX_LAYOUT_ROWS, (uint64_t)rows},
                          {CUBLASLT_MATRIX_LAYOUT_COLS, (uint64_t)cols}, {CUBLASLT_MATRIX_LAYOUT_LD, (uint64_t)rows}, {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1},
                          {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0}};
    cublasLtMatrixLayout_t fresh;
    cublasCheck(cublasLtMatrixLayoutCreate(&fresh, CUDA_R_32F, 1, 1, 1));
    bool ok = readback_compare(what, of, [&](bool of_fresh, int attribute, void* buffer, size_t bytes, size_t* written) {
        return cublasLtMatrixLayoutGetAttribute(of_fresh ? fresh : layout, (cublasLtMatrixLayoutAttribute_t)attribute, buffer, bytes, written);
    }, wants, sizeof(wants) / sizeof(wants[0]));
    cublasCheck(cublasLtMatrixLayoutDestroy(fresh));
    return ok;
}

static bool readback_desc(const char* what, cublasLtMatmulDesc_t desc, const Expected* e, const void* aux) {
    const bool has_bias = (e->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0, has_aux = (e->epilogue & 128) != 0;
    Want wants[32];
    int count = 0;
    auto want = [&](int attribute, uint64_t value) { wants[count].attribute = attribute; wants[count].value = value; count++; };
    want(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, e->compute);
    want(CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUDA_R_32F);
    want(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_HOST);
    want(CUBLASLT_MATMUL_DESC_TRANSA, e->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    want(CUBLASLT_MATMUL_DESC_TRANSB, e->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    want(CUBLASLT_MATMUL_DESC_EPILOGUE, e->epilogue);
    want(CUBLASLT_MATMUL_DESC_FAST_ACCUM, (uint64_t)e->fast);
    want(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, (uint64_t)e->mode_a);
    want(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, (uint64_t)e->mode_b);
    if (has_bias) { want(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, e->bias); }
    if (has_aux) {
        want(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (uint64_t)e->aux_ld);
        want(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (uint64_t)(uintptr_t)aux);
    }
    if (e->scaled) {
        want(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (uint64_t)(uintptr_t)readback_pointer);
        want(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (uint64_t)(uintptr_t)readback_pointer);
    }
    cublasLtMatmulDesc_t fresh;
    cublasCheck(cublasLtMatmulDescCreate(&fresh, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    bool ok = readback_compare(what, "the product", [&](bool of_fresh, int attribute, void* buffer, size_t bytes, size_t* written) {
        return cublasLtMatmulDescGetAttribute(of_fresh ? fresh : desc, (cublasLtMatmulDescAttributes_t)attribute, buffer, bytes, written);
    }, wants, count);
    cublasCheck(cublasLtMatmulDescDestroy(fresh));
    return ok;
}

// The CPU device, playing the architecture, must accept the plan too.
static bool readback_accepted(const char* what, const GemmPlan* p, int arch) {
#ifdef GPT_CPU_DEVICE
    cublasLtHandle_t lt;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    uint64_t workspace = 32 << 20;
    int returned = 0;
    cublasCheck(cublasLtCreate(&lt));
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    cpu_modes()->arch = arch;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt, p->desc, p->a, p->b, p->d, p->d, preference, 1, &result, &returned);
    cpu_modes()->arch = 0;
    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
    cublasCheck(cublasLtDestroy(lt));
    if (status != CUBLAS_STATUS_SUCCESS) { printf("FAIL %s: refused: %s\n", what, cpu_cublaslt_last_reason()); }
    return status == CUBLAS_STATUS_SUCCESS;
#else
    (void)what; (void)p; (void)arch;
    return true;
#endif
}

static void readback_plan(const char* what, const GemmShape* s, const Expected* e, bool tf32, int arch) {
    GemmPlan* p = new GemmPlan();
    gemm_describe_plan(p, s, tf32, readback_pointer);
    const void* aux = (const char*)readback_pointer + (s->align < 256 ? s->align : 0);  // as aligned as the real one will be, no more
    bool ok = readback_desc(what, p->desc, e, aux);
    ok = readback_layout(what, "A", p->a, e->a, e->a_transposed ? e->k : e->m, e->a_transposed ? e->m : e->k) && ok;
    ok = readback_layout(what, "B", p->b, e->b, e->b_transposed ? e->n : e->k, e->b_transposed ? e->k : e->n) && ok;
    ok = readback_layout(what, "D", p->d, e->d, e->m, e->n) && ok;
    ok = readback_accepted(what, p, arch) && ok;
    if (ok) { readback_passed++; } else { readback_failed++; }
    gemm_plan_free(p);
}

// ----------------------------------------------------------------------------
// the plans

static const int readback_sizes[][3] = {{1024, 768, 3072}, {48, 1600, 4800}, {400, 1600, 6400}, {64, 256, 256}};  // N, C, OC; 1600 and 400 leave blocks of 128 partial
static const char* const readback_passes[NUM_PASSES] = {"fprop", "dgrad", "wgrad"};

static void readback_recipes(int arch) {
    for (const ReadbackRow& row : readback_rows) {
        for (const Fp8Recipe& recipe : fp8_recipes) {
            if (strcmp(row.recipe, recipe.name) != 0 || !fp8_recipe_runs(&recipe, arch / 10, arch % 10)) { continue; }
            for (auto& size : readback_sizes) {
                for (DType out : {DTYPE_BF16, DTYPE_F32}) {
                    const bool by_tensor = row.mode_a == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, tn = arch != 100 || !by_tensor;  // the one case that needs no second copy
                    char what[160];
                    Expected e = expected(row.pass, size[0], size[1], size[2], tn);
                    e.a = row.a;
                    e.b = row.b;
                    e.d = dtype_cuda(out);
                    e.bias = CUDA_R_16BF;   // FP8 products to FP32 take a BF16 bias too
                    e.scaled = true;
                    e.mode_a = row.mode_a;
                    e.mode_b = row.mode_b;
                    e.fast = row.fast;
                    if (out == DTYPE_F32 && row.pass != PASS_WGRAD) { continue; }  // only gradients of parameters are accumulated in FP32
                    snprintf(what, sizeof(what), "%s, %s, compute capability %d.%d, N %d, C %d, OC %d, to %s", row.recipe, readback_passes[row.pass], arch / 10, arch % 10, size[0],
                             size[1], size[2], dtype_names[out]);
                    const bool fast = row.pass == PASS_FPROP ? recipe.fast_fprop : row.pass == PASS_DGRAD ? recipe.fast_dgrad : recipe.fast_wgrad;
                    GemmShape s = linear_shape(row.pass, size[0], size[1], size[2], dtype_of_fp8(recipe.x), dtype_of_fp8(recipe.w), dtype_of_fp8(recipe.dy), out, tn, fast,
                                               {recipe.by_x, recipe.by_w, recipe.by_dy});
                    readback_plan(what, &s, &e, false, arch);
                }
            }
        }
    }
}

static void readback_plain(int arch) {
    for (auto& size : readback_sizes) {
        for (int pass = 0; pass < NUM_PASSES; pass++) {
            for (int kind = 0; kind < 6; kind++) {  // BF16, FP32, TF32, each without and with GELU
                const DType type = kind / 2 == 0 ? DTYPE_BF16 : DTYPE_F32;
                const bool tf32 = kind / 2 == 2, gelu = kind % 2 != 0;
                if (gelu && pass == PASS_WGRAD) { continue; }
                char what[160];
                Expected e = expected((Pass)pass, size[0], size[1], size[2], false);
                e.a = e.b = e.d = e.bias = dtype_cuda(type);
                e.compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
                if (gelu) {
                    e.epilogue = pass == PASS_FPROP ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_DGELU;
                    e.aux_ld = e.m;
                }
                snprintf(what, sizeof(what), "%s%s, %s%s, N %d, C %d, OC %d", tf32 ? "TF32 of " : "", dtype_names[type], readback_passes[pass], gelu ? " with GELU" : "", size[0], size[1], size[2]);
                GemmShape s = gelu ? linear_gelu_shape((Pass)pass, size[0], size[1], size[2], type)
                                   : linear_shape((Pass)pass, size[0], size[1], size[2], type, type, type, type, false, false);
                readback_plan(what, &s, &e, tf32, arch);
            }
        }
    }
}

// ----------------------------------------------------------------------------
// --attributes

template <class Get> static void readback_list(const char* kind, Get get) {
    for (int attribute = 0; attribute < 64; attribute++) {
        size_t bytes = 0;
        unsigned char value[64] = {0};
        if (get(attribute, NULL, 0, &bytes) != CUBLAS_STATUS_SUCCESS || bytes > sizeof(value) || get(attribute, value, bytes, &bytes) != CUBLAS_STATUS_SUCCESS) { continue; }
        printf("%s %d %zu ", kind, attribute, bytes);
        for (size_t i = 0; i < bytes; i++) { printf("%02x", value[i]); }
        printf("\n");
    }
}
static void readback_attributes(void) {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    cublasCheck(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasCheck(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 48, 32, 64));
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    readback_list("desc", [&](int a, void* buffer, size_t bytes, size_t* written) { return cublasLtMatmulDescGetAttribute(desc, (cublasLtMatmulDescAttributes_t)a, buffer, bytes, written); });
    readback_list("layout", [&](int a, void* buffer, size_t bytes, size_t* written) { return cublasLtMatrixLayoutGetAttribute(layout, (cublasLtMatrixLayoutAttribute_t)a, buffer, bytes, written); });
    readback_list("preference", [&](int a, void* buffer, size_t bytes, size_t* written) {
        return cublasLtMatmulPreferenceGetAttribute(preference, (cublasLtMatmulPreferenceAttributes_t)a, buffer, bytes, written);
    });
    cublasCheck(cublasLtMatmulDescDestroy(desc));
    cublasCheck(cublasLtMatrixLayoutDestroy(layout));
    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
}

int main(int argc, char** argv) {
    if (argc == 2 && !strcmp(argv[1], "--attributes")) { readback_attributes(); return 0; }
    require(argc == 1, "cublaslt_readback [--attributes]", "unknown argument '%s'", argv[1]);
    for (int arch : {89, 90, 100, 120}) { readback_recipes(arch); }
    for (int arch : {80, 90}) { readback_plain(arch); }
    printf("%d passed, %d failed, 0 skipped\n", readback_passed, readback_failed);
    return readback_failed ? 1 : 0;
}
