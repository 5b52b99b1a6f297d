/* cublasLt.h - matrix products by cuBLASLt's names on the CPU device
 *
 * What:      handles, descriptors, layouts, preferences, heuristics and cublasLtMatmul with CUDA 13's enum values. What the real library refuses for the
 *            compute capability that the device plays (GPT_CPU_ARCH) is refused here with the same status; cpu_cublaslt_last_reason() says why.
 *            The rules are one table in cublas_rules.h.
 * Numerics:  D = scaleD * (alpha * scaleA * scaleB * op(A) op(B) + beta * scaleC * C + bias). Products exact, sums in FP32, one rounding to D's type.
 *            SCALAR_32F: alpha * scaleA * scaleB is one float, made in double. OUTER_VEC_32F: the sum times (scaleA[i] * scaleB[j]), one float, then alpha: the
 *            same bits for equal scales and alpha 1. VEC128_32F, BLK128x128_32F: each 128 of K in FP32, times (scaleA * scaleB), added in the order of K.
 *            VEC32_UE8M0: each product times 2^(eA + eB - 254), summed in FP32. Layouts of scales: cpu_lt_scales. AMAX_D is taken before scaleD.
 *            Same bits for any number of threads (gemm.h).
 *            GELU_AUX_BIAS: with Z for the whole right side above, aux = Z rounded, D = gelu(Z), tanh form, of Z not rounded. DGELU: D = gelu'(aux) * Z.
 *            With GPT_CPU_HOPPER_ACCUMULATOR=1 FP8 products with FAST_ACCUM use the truncated accumulator of gemm_hopper.h, and so does each 128 of K with
 *            block scales, where promotion is part of the arithmetic. VEC32_UE8M0 never does: no Hopper has it.
 * Runs:      BF16 x BF16 -> BF16 or FP32, FP32 x FP32 -> FP32, E4M3 x E4M3, E4M3 x E5M2 and E5M2 x E4M3 -> BF16, FP32 or FP8, all scale modes of FP8, DEFAULT
 *            and BIAS epilogues, without FP8 also GELU_AUX_BIAS and DGELU, strided batches, row and column order. What the real library would run and this one
 *            does not (FP16, other epilogues, vectors and blocks of scales in batches) answers NOT_SUPPORTED with a reason that begins "the CPU device".
 * Memory:    descriptors belong to the caller (Create/Destroy); cublasLtMatmul executes before it returns and uses no workspace, but demands it.
 * Tests:     dev/test/test_cublaslt_rules.cu, dev/test/test_cpu_gemm.cu; enumerators and attributes against the real library: dev/check_cublaslt.py */
#ifndef LLMC_CPU_CUBLASLT_H
#define LLMC_CPU_CUBLASLT_H

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <library_types.h>

#include "gemm.h"

#define CUBLAS_VER_MAJOR 13
#define CUBLAS_VER_MINOR 0
#define CUBLAS_VER_PATCH 0
#define CUBLAS_VER_BUILD 0
#define CUBLAS_VERSION (CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH)

// ----------------------------------------------------------------------------
// enums, with the values of CUDA 13's headers

#define CPU_CUBLAS_STATUS_TABLE(X) \
    X(CUBLAS_STATUS_SUCCESS, 0, "the operation completed successfully") \
    X(CUBLAS_STATUS_NOT_INITIALIZED, 1, "the library was not initialized") \
    X(CUBLAS_STATUS_ALLOC_FAILED, 3, "the resource allocation failed") \
    X(CUBLAS_STATUS_INVALID_VALUE, 7, "an unsupported value or parameter was passed to the function") \
    X(CUBLAS_STATUS_ARCH_MISMATCH, 8, "the function requires an architectural feature absent from the architecture") \
    X(CUBLAS_STATUS_MAPPING_ERROR, 11, "an access to GPU memory space failed") \
    X(CUBLAS_STATUS_EXECUTION_FAILED, 13, "the function failed to launch on the GPU") \
    X(CUBLAS_STATUS_INTERNAL_ERROR, 14, "an internal operation failed") \
    X(CUBLAS_STATUS_NOT_SUPPORTED, 15, "the functionality requested is not supported") \
    X(CUBLAS_STATUS_LICENSE_ERROR, 16, "the functionality requested requires some license")

typedef enum {
#define CPU_CUBLAS_STATUS_ENUM(name, value, text) name = value,
    CPU_CUBLAS_STATUS_TABLE(CPU_CUBLAS_STATUS_ENUM)
#undef CPU_CUBLAS_STATUS_ENUM
} cublasStatus_t;

typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 } cublasFillMode_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2, CUBLAS_OP_HERMITAN = 2, CUBLAS_OP_CONJG = 3 } cublasOperation_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum {
    CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_16F_PEDANTIC = 65, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75, CUBLAS_COMPUTE_32F_FAST_TF32 = 77, CUBLAS_COMPUTE_32F_EMULATED_16BFX9 = 78, CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_64F_PEDANTIC = 71, CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT = 79, CUBLAS_COMPUTE_32I = 72, CUBLAS_COMPUTE_32I_PEDANTIC = 73
} cublasComputeType_t;

typedef enum {
    CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F = 0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 = 1, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 = 2,
    CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F = 5,
    CUBLASLT_MATMUL_MATRIX_SCALE_END
} cublasLtMatmulMatrixScale_t;
typedef enum {
    CUBLASLT_POINTER_MODE_HOST = 0, CUBLASLT_POINTER_MODE_DEVICE = 1, CUBLASLT_POINTER_MODE_DEVICE_VECTOR = 2,
    CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO = 3, CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST = 4
} cublasLtPointerMode_t;
typedef enum {
    CUBLASLT_ORDER_COL = 0, CUBLASLT_ORDER_ROW = 1, CUBLASLT_ORDER_COL32 = 2, CUBLASLT_ORDER_COL4_4R2_8C = 3, CUBLASLT_ORDER_COL32_2R_4R4 = 4
} cublasLtOrder_t;
typedef enum { CUBLASLT_BATCH_MODE_STRIDED = 0, CUBLASLT_BATCH_MODE_POINTER_ARRAY = 1 } cublasLtBatchMode_t;
typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0, CUBLASLT_REDUCTION_SCHEME_INPLACE = 1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4, CUBLASLT_REDUCTION_SCHEME_MASK = 7
} cublasLtReductionScheme_t;
typedef enum { CUBLASLT_SEARCH_BEST_FIT = 0, CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID = 1 } cublasLtMatmulSearch_t;
typedef enum {
    CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_RELU_AUX = 2 | 128, CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_RELU_BIAS = 2 | 4,
    CUBLASLT_EPILOGUE_RELU_AUX_BIAS = 2 | 4 | 128, CUBLASLT_EPILOGUE_DRELU = 8 | 128, CUBLASLT_EPILOGUE_DRELU_BGRAD = 8 | 16 | 128, CUBLASLT_EPILOGUE_GELU = 32,
    CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128, CUBLASLT_EPILOGUE_GELU_BIAS = 32 | 4, CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 4 | 128, CUBLASLT_EPILOGUE_DGELU = 64 | 128,
    CUBLASLT_EPILOGUE_DGELU_BGRAD = 64 | 16 | 128, CUBLASLT_EPILOGUE_BGRADA = 256, CUBLASLT_EPILOGUE_BGRADB = 512
} cublasLtEpilogue_t;

// ----------------------------------------------------------------------------
// descriptors: one table each. A row is attribute, value of the enum, field, type, default.

#define CPU_LT_MATMUL_DESC_TABLE(X) \
    X(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 0, compute_type, int32_t, CUBLAS_COMPUTE_32F) \
    X(CUBLASLT_MATMUL_DESC_SCALE_TYPE, 1, scale_type, int32_t, CUDA_R_32F) \
    X(CUBLASLT_MATMUL_DESC_POINTER_MODE, 2, pointer_mode, int32_t, CUBLASLT_POINTER_MODE_HOST) \
    X(CUBLASLT_MATMUL_DESC_TRANSA, 3, trans_a, int32_t, CUBLAS_OP_N) \
    X(CUBLASLT_MATMUL_DESC_TRANSB, 4, trans_b, int32_t, CUBLAS_OP_N) \
    X(CUBLASLT_MATMUL_DESC_TRANSC, 5, trans_c, int32_t, CUBLAS_OP_N) \
    X(CUBLASLT_MATMUL_DESC_FILL_MODE, 6, fill_mode, int32_t, CUBLAS_FILL_MODE_FULL) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE, 7, epilogue, uint32_t, CUBLASLT_EPILOGUE_DEFAULT) \
    X(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8, bias, const void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 10, bias_batch_stride, int64_t, 0) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11, aux, void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12, aux_ld, int64_t, 0) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 13, aux_batch_stride, int64_t, 0) \
    X(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, 14, alpha_batch_stride, int64_t, 0) \
    X(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 15, sm_count_target, int32_t, 0) \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17, a_scale, const void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18, b_scale, const void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, 19, c_scale, const void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, 20, d_scale, const void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, 21, amax_d, void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 22, aux_type, int32_t, -1) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, 23, aux_scale, const void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, 24, aux_amax, void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 25, fast_accum, int8_t, 0) \
    X(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26, bias_type, int32_t, -1) \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31, a_scale_mode, int32_t, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32, b_scale_mode, int32_t, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) \
    X(CUBLASLT_MATMUL_DESC_C_SCALE_MODE, 33, c_scale_mode, int32_t, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) \
    X(CUBLASLT_MATMUL_DESC_D_SCALE_MODE, 34, d_scale_mode, int32_t, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, 35, aux_scale_mode, int32_t, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) \
    X(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, 36, d_out_scale, void*, NULL) \
    X(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, 37, d_out_scale_mode, int32_t, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)

#define CPU_LT_LAYOUT_TABLE(X) \
    X(CUBLASLT_MATRIX_LAYOUT_TYPE, 0, type, uint32_t, CUDA_R_32F) \
    X(CUBLASLT_MATRIX_LAYOUT_ORDER, 1, order, int32_t, CUBLASLT_ORDER_COL) \
    X(CUBLASLT_MATRIX_LAYOUT_ROWS, 2, rows, uint64_t, 0) \
    X(CUBLASLT_MATRIX_LAYOUT_COLS, 3, cols, uint64_t, 0) \
    X(CUBLASLT_MATRIX_LAYOUT_LD, 4, ld, int64_t, 0) \
    X(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5, batch_count, int32_t, 1) \
    X(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6, batch_offset, int64_t, 0) \
    X(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, 7, plane_offset, int64_t, 0) \
    X(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, 8, batch_mode, uint32_t, CUBLASLT_BATCH_MODE_STRIDED)

#define CPU_LT_PREFERENCE_TABLE(X) \
    X(CUBLASLT_MATMUL_PREF_SEARCH_MODE, 0, search_mode, uint32_t, CUBLASLT_SEARCH_BEST_FIT) \
    X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1, max_workspace, uint64_t, 0) \
    X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3, reduction_mask, uint32_t, CUBLASLT_REDUCTION_SCHEME_MASK) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5, align_a, uint32_t, 256) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6, align_b, uint32_t, 256) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7, align_c, uint32_t, 256) \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8, align_d, uint32_t, 256) \
    X(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 9, max_waves, float, 0.0f) \
    X(CUBLASLT_MATMUL_PREF_IMPL_MASK, 12, impl_mask, uint64_t, ~(uint64_t)0)

#define CPU_LT_ENUM(name, value, field, type, init) name = value,
#define CPU_LT_FIELD(name, value, field, type, init) type field;
typedef enum { CPU_LT_MATMUL_DESC_TABLE(CPU_LT_ENUM) } cublasLtMatmulDescAttributes_t;
typedef enum { CPU_LT_LAYOUT_TABLE(CPU_LT_ENUM) } cublasLtMatrixLayoutAttribute_t;
typedef enum { CPU_LT_PREFERENCE_TABLE(CPU_LT_ENUM) } cublasLtMatmulPreferenceAttributes_t;
typedef struct { CPU_LT_MATMUL_DESC_TABLE(CPU_LT_FIELD) } cublasLtMatmulDescOpaque_t;
typedef struct { CPU_LT_LAYOUT_TABLE(CPU_LT_FIELD) } cublasLtMatrixLayoutOpaque_t;
typedef struct { CPU_LT_PREFERENCE_TABLE(CPU_LT_FIELD) } cublasLtMatmulPreferenceOpaque_t;
#undef CPU_LT_ENUM
#undef CPU_LT_FIELD
typedef cublasLtMatmulDescOpaque_t* cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque_t* cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t* cublasLtMatmulPreference_t;

#define CPU_LT_HANDLE_MAGIC 0x746c6263u
#define CPU_LT_ALGO_MAGIC 0x6f676c6163707531ull
typedef struct CpuLtContext { uint32_t magic; } *cublasLtHandle_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulAlgo_t;  // here: magic, workspace bytes, alignment of the matrices and of aux
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#include "cublas_rules.h"

// ----------------------------------------------------------------------------
// status, handle, version

static inline const char* cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
#define CPU_CUBLAS_STATUS_NAME(name, value, text) case name: return #name;
        CPU_CUBLAS_STATUS_TABLE(CPU_CUBLAS_STATUS_NAME)
#undef CPU_CUBLAS_STATUS_NAME
    }
    return "unknown cuBLAS status";
}
static inline const char* cublasGetStatusString(cublasStatus_t status) {
    switch (status) {
#define CPU_CUBLAS_STATUS_TEXT(name, value, text) case name: return text;
        CPU_CUBLAS_STATUS_TABLE(CPU_CUBLAS_STATUS_TEXT)
#undef CPU_CUBLAS_STATUS_TEXT
    }
    return "unknown cuBLAS status";
}
static inline const char* cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
static inline const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusString(status); }
static inline size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
static inline size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    if (!handle) { return CUBLAS_STATUS_INVALID_VALUE; }
    *handle = (cublasLtHandle_t)calloc(1, sizeof(**handle));
    if (!*handle) { return CUBLAS_STATUS_ALLOC_FAILED; }
    (*handle)->magic = CPU_LT_HANDLE_MAGIC;
    return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (!handle || handle->magic != CPU_LT_HANDLE_MAGIC) { return CUBLAS_STATUS_NOT_INITIALIZED; }
    handle->magic = 0;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------
// attributes. Set: the size must be the field's. Get: size 0 asks for the size.

static inline cublasStatus_t cpu_lt_set(void* field, size_t size, const void* buf, size_t bytes) {
    if (!buf || bytes != size) { return CUBLAS_STATUS_INVALID_VALUE; }
    memcpy(field, buf, size);
    return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cpu_lt_get(const void* field, size_t size, void* buf, size_t bytes, size_t* written) {
    if (bytes == 0 && !written) { return CUBLAS_STATUS_INVALID_VALUE; }
    if (bytes != 0 && (!buf || bytes != size)) { return CUBLAS_STATUS_INVALID_VALUE; }
    if (bytes != 0) { memcpy(buf, field, size); }
    if (written) { *written = size; }
    return CUBLAS_STATUS_SUCCESS;
}
#define CPU_LT_SET(name, value, field, type, init) case name: return cpu_lt_set(&p->field, sizeof(p->field), buf, bytes);
#define CPU_LT_GET(name, value, field, type, init) case name: return cpu_lt_get(&p->field, sizeof(p->field), buf, bytes, written);
#define CPU_LT_INIT(name, value, field, type, init) p->field = init;

static inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t p, cublasComputeType_t compute_type, cudaDataType_t scale_type) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    memset(p, 0, sizeof(*p));
    CPU_LT_MATMUL_DESC_TABLE(CPU_LT_INIT)
    p->compute_type = compute_type;
    p->scale_type = scale_type;
    return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute_type, cudaDataType_t scale_type) {
    if (!desc) { return CUBLAS_STATUS_INVALID_VALUE; }
    *desc = (cublasLtMatmulDesc_t)malloc(sizeof(**desc));
    return *desc ? cublasLtMatmulDescInit(*desc, compute_type, scale_type) : CUBLAS_STATUS_ALLOC_FAILED;
}
static inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { free(desc); return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t attribute, const void* buf, size_t bytes) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    switch (attribute) { CPU_LT_MATMUL_DESC_TABLE(CPU_LT_SET) }
    return CUBLAS_STATUS_INVALID_VALUE;
}
static inline cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t attribute, void* buf, size_t bytes, size_t* written) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    switch (attribute) { CPU_LT_MATMUL_DESC_TABLE(CPU_LT_GET) }
    return CUBLAS_STATUS_INVALID_VALUE;
}

static inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t p, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    memset(p, 0, sizeof(*p));
    CPU_LT_LAYOUT_TABLE(CPU_LT_INIT)
    p->type = type;
    p->rows = rows;
    p->cols = cols;
    p->ld = ld;
    return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (!layout) { return CUBLAS_STATUS_INVALID_VALUE; }
    *layout = (cublasLtMatrixLayout_t)malloc(sizeof(**layout));
    return *layout ? cublasLtMatrixLayoutInit(*layout, type, rows, cols, ld) : CUBLAS_STATUS_ALLOC_FAILED;
}
static inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { free(layout); return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t p, cublasLtMatrixLayoutAttribute_t attribute, const void* buf, size_t bytes) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    switch (attribute) { CPU_LT_LAYOUT_TABLE(CPU_LT_SET) }
    return CUBLAS_STATUS_INVALID_VALUE;
}
static inline cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t p, cublasLtMatrixLayoutAttribute_t attribute, void* buf, size_t bytes,
                                                              size_t* written) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    switch (attribute) { CPU_LT_LAYOUT_TABLE(CPU_LT_GET) }
    return CUBLAS_STATUS_INVALID_VALUE;
}

static inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    memset(p, 0, sizeof(*p));
    CPU_LT_PREFERENCE_TABLE(CPU_LT_INIT)
    return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    if (!preference) { return CUBLAS_STATUS_INVALID_VALUE; }
    *preference = (cublasLtMatmulPreference_t)malloc(sizeof(**preference));
    return *preference ? cublasLtMatmulPreferenceInit(*preference) : CUBLAS_STATUS_ALLOC_FAILED;
}
static inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { free(preference); return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute, const void* buf,
                                                                  size_t bytes) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    switch (attribute) { CPU_LT_PREFERENCE_TABLE(CPU_LT_SET) }
    return CUBLAS_STATUS_INVALID_VALUE;
}
static inline cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attribute, void* buf, size_t bytes,
                                                                  size_t* written) {
    if (!p) { return CUBLAS_STATUS_INVALID_VALUE; }
    switch (attribute) { CPU_LT_PREFERENCE_TABLE(CPU_LT_GET) }
    return CUBLAS_STATUS_INVALID_VALUE;
}
#undef CPU_LT_SET
#undef CPU_LT_GET
#undef CPU_LT_INIT

// ----------------------------------------------------------------------------
// heuristics: one algorithm, if the rules allow the product and the preference allows its workspace

static inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int requested,
                                                            cublasLtMatmulHeuristicResult_t results[], int* returned) {
    if (!handle || handle->magic != CPU_LT_HANDLE_MAGIC) { return cpu_lt_refuse(CUBLAS_STATUS_NOT_INITIALIZED, "handle", "the handle is not from cublasLtCreate"); }
    if (!op || !a || !b || !c || !d || !preference || !results || !returned || requested <= 0) {
        return cpu_lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "arguments", "a NULL argument, or no algorithm requested");
    }
    *returned = 0;
    CpuLtQuery q = cpu_lt_query(op, a, b, c, d);
    q.preference = preference;
    cublasStatus_t status = cpu_lt_check(&q);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    memset(results, 0, sizeof(results[0]));
    results[0].algo.data[0] = CPU_LT_ALGO_MAGIC;
    results[0].algo.data[1] = cpu_lt_workspace_needed(&q);
    results[0].algo.data[2] = cpu_lt_alignment_needed(&q);
    results[0].algo.data[3] = cpu_lt_aux_alignment(&q);
    results[0].workspaceSize = cpu_lt_workspace_needed(&q);
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1.0f;
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------
// execution

static inline CpuGemmType cpu_lt_gemm_type(uint32_t type) {
    return type == CUDA_R_32F ? CPU_GEMM_F32 : type == CUDA_R_16BF ? CPU_GEMM_BF16 : type == CUDA_R_8F_E4M3 ? CPU_GEMM_E4M3 : CPU_GEMM_E5M2;
}
static inline CpuGemmMatrix cpu_lt_matrix(const void* data, const cublasLtMatrixLayoutOpaque_t* layout, int32_t trans) {
    const bool across = (layout->order == CUBLASLT_ORDER_ROW) != (trans != CUBLAS_OP_N);  // rows are contiguous
    return {data, cpu_lt_gemm_type(layout->type), across ? layout->ld : 1, across ? 1 : layout->ld, layout->batch_offset};
}
// The scales of A (outer: rows of op(A)) or B (columns of op(B)) as gemm.h reads them, s[block of K * outer + r]. As they lie in device memory:
//   OUTER_VEC_32F       float [outer]
//   VEC128_32F          float [ceil(k / 128)][outer]
//   BLK128x128_32F      float [ceil(outer / 128)][ceil(k / 128), rounded up to a multiple of 4]
//   VEC32_UE8M0         bytes, below
static inline const float* cpu_lt_scales(int32_t mode, const void* at, int64_t outer, int64_t k, int slot) {
    const float* s = (const float*)at;
    if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) { return s; }
    const int64_t blocks = (k + 127) / 128, stride = (blocks + 3) / 4 * 4;
    float* out = (float*)cpu_gemm_scratch(slot, (size_t)(blocks * outer) * sizeof(float));
    for (int64_t b = 0; b < blocks; b++) { for (int64_t r = 0; r < outer; r++) { out[b * outer + r] = s[r / 128 * stride + b]; } }
    return out;
}
// VEC32_UE8M0: tiles of 128 outer x 4 blocks of 32, 512 bytes each, those along K next to each other; in a tile, 32 groups of 16 bytes, group r % 32,
// in it 4 bytes for each of r, r + 32, r + 64, r + 96. What pads the last tiles is not read.
static inline const uint8_t* cpu_lt_exponents(const void* at, int64_t outer, int64_t k, int slot) {
    const int64_t blocks = (k + 31) / 32, across = (blocks + 3) / 4;
    uint8_t* out = (uint8_t*)cpu_gemm_scratch(slot, (size_t)(blocks * outer));
    for (int64_t r = 0; r < outer; r++) {
        const uint8_t* row = (const uint8_t*)at + r / 128 * across * 512 + r % 32 * 16 + r % 128 / 32 * 4;
        for (int64_t b = 0; b < blocks; b++) { out[b * outer + r] = row[b / 4 * 512 + b % 4]; }
    }
    return out;
}
static inline float cpu_lt_scalar(const void* pointer) { return pointer ? *(const float*)pointer : 1.0f; }

// FP8 D: through floats, since amax comes before the scale and the scale before the conversion. Small in training (D is BF16 there), so plain.
static inline void cpu_lt_store_fp8(const CpuLtQuery* q, const float* sums, void* out) {
    const float scale = cpu_lt_scalar(q->op->d_scale);
    const __nv_fp8_interpretation_t format = q->d->type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    const CpuGemmMatrix d = cpu_lt_matrix(out, q->d, CUBLAS_OP_N);
    uint32_t amax = 0;  // bits of |x| order as integers, and a NaN wins
    for (int64_t batch = 0; batch < q->d->batch_count; batch++) {
        for (int64_t i = 0; i < q->m; i++) {
            for (int64_t j = 0; j < q->n; j++) {
                const float x = sums[(batch * q->n + j) * q->m + i];
                const uint32_t bits = cpu_gemm_float_bits(x) & 0x7fffffffu;
                amax = bits > amax ? bits : amax;
                ((uint8_t*)out)[batch * d.batch_stride + i * d.row_stride + j * d.col_stride] = __nv_cvt_float_to_fp8(x * scale, __NV_SATFINITE, format);
            }
        }
    }
    if (q->op->amax_d) { *(float*)q->op->amax_d = cpu_gemm_bits_float(amax); }
}

// gelu(x) = x s(x), s = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), computed as 1 / (1 + e^-2u); and its derivative.
static __forceinline__ float cpu_lt_gelu(float x) { return x / (1.0f + cpu_expf(-1.5957691216057308f * x * (1.0f + 0.044715f * x * x))); }
static __forceinline__ float cpu_lt_dgelu(float x) {
    const float s = 1.0f / (1.0f + cpu_expf(-1.5957691216057308f * x * (1.0f + 0.044715f * x * x))), bend = s * (1.0f - s);
    return bend > 0.0f ? s + x * bend * 1.5957691216057308f * (1.0f + 0.134145f * x * x) : s;  // bend 0: the gate is shut or open, and x^2 may be infinite
}
// All columns of D from Z (m,n) f32, packed; aux is written forward and read backward.
template <class T> static inline void cpu_lt_store_gelu(const CpuLtQuery* q, const float* sums, void* out) {
    const bool forward = q->op->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const int64_t m = q->m, columns = q->n * q->d->batch_count;
    const int threads = cpu_gemm_threads(40.0 * m * columns);
    (void)threads;
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t column = 0; column < columns; column++) {
        const int64_t batch = column / q->n, j = column % q->n;
        const float* __restrict__ z = sums + column * m;
        T* __restrict__ d = (T*)out + batch * q->d->batch_offset + j * q->d->ld;
        T* __restrict__ aux = (T*)q->op->aux + batch * q->op->aux_batch_stride + j * q->op->aux_ld;
        if (forward) { for (int64_t i = 0; i < m; i++) { aux[i] = (T)z[i]; d[i] = (T)cpu_lt_gelu(z[i]); } }
        else { for (int64_t i = 0; i < m; i++) { d[i] = (T)(z[i] * cpu_lt_dgelu((float)aux[i])); } }
    }
}

static inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha, const void* A, cublasLtMatrixLayout_t a, const void* B,
                                            cublasLtMatrixLayout_t b, const void* beta, const void* C, cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                                            const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    if (!handle || handle->magic != CPU_LT_HANDLE_MAGIC) { return cpu_lt_refuse(CUBLAS_STATUS_NOT_INITIALIZED, "handle", "the handle is not from cublasLtCreate"); }
    if (!op || !a || !b || !c || !d || !alpha || !beta) { return cpu_lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "arguments", "a NULL descriptor, layout, alpha or beta"); }
    if (!cpu_stream_valid(stream)) { return cpu_lt_refuse(CUBLAS_STATUS_INVALID_VALUE, "stream", "not a stream"); }
    CpuLtQuery q = cpu_lt_query(op, a, b, c, d);
    q.run = true;
    q.A = A;
    q.B = B;
    q.C = C;
    q.D = D;
    q.alpha_at = alpha;
    q.beta_at = beta;
    q.alpha = *(const float*)alpha;  // device memory is readable here
    q.beta = *(const float*)beta;
    q.algo = algo;
    q.workspace = workspace;
    q.workspace_bytes = workspace_bytes;
    cublasStatus_t status = cpu_lt_check(&q);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    const bool check = cpu_modes()->check != 0, d8 = cpu_lt_is_fp8(d->type), gelu = cpu_lt_gelu_aux(&q);
    if (check && workspace) { memset(workspace, (int)cpu_modes()->poison, cpu_lt_workspace_needed(&q)); }  // the real one writes there
    cpu_gemm_settings()->poison = check ? (int)cpu_modes()->poison : -1;

    CpuGemm g = {};
    g.m = q.m;
    g.n = q.n;
    g.k = q.k;
    g.batch = d->batch_count;
    g.a = cpu_lt_matrix(A, a, op->trans_a);
    g.b = cpu_lt_matrix(B, b, op->trans_b);
    g.c = cpu_lt_matrix(C, c, CUBLAS_OP_N);
    g.d = cpu_lt_matrix(D, d, CUBLAS_OP_N);
    if (cpu_lt_mx_mode(&q)) {
        g.scale_k = 32;
        g.a_exponents = cpu_lt_exponents(op->a_scale, q.m, q.k, CPU_GEMM_SCRATCH_SCALES_A);
        g.b_exponents = cpu_lt_exponents(op->b_scale, q.n, q.k, CPU_GEMM_SCRATCH_SCALES_B);
    } else if (!cpu_lt_scalar_modes(&q)) {
        g.scale_k = cpu_lt_block_modes(&q) ? 128 : q.k;
        g.a_scales = cpu_lt_scales(op->a_scale_mode, op->a_scale, q.m, q.k, CPU_GEMM_SCRATCH_SCALES_A);
        g.b_scales = cpu_lt_scales(op->b_scale_mode, op->b_scale, q.n, q.k, CPU_GEMM_SCRATCH_SCALES_B);
    }
    g.alpha = cpu_lt_scalar_modes(&q) ? (float)((double)q.alpha * cpu_lt_scalar(op->a_scale) * cpu_lt_scalar(op->b_scale)) : q.alpha;
    g.beta = q.beta * cpu_lt_scalar(op->c_scale);
    if (cpu_lt_uses_bias(&q)) {
        g.bias = op->bias;
        g.bias_type = cpu_lt_gemm_type(q.bias_type);
        g.bias_batch_stride = op->bias_batch_stride;
    }
    g.hopper_accumulator = q.fp8 && (op->fast_accum || cpu_lt_block_modes(&q)) && cpu_modes()->hopper_acc;  // exponents: cpu_gemm ignores it
    float* sums = NULL;
    if (d8 || gelu) {
        sums = (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_OTHER, (size_t)g.m * g.n * g.batch * sizeof(float));
        g.d = {sums, CPU_GEMM_F32, 1, g.m, g.m * g.n};
    }
    cpu_gemm(&g);
    if (d8) { cpu_lt_store_fp8(&q, sums, D); }
    if (gelu && d->type == CUDA_R_32F) { cpu_lt_store_gelu<float>(&q, sums, D); }
    if (gelu && d->type == CUDA_R_16BF) { cpu_lt_store_gelu<__nv_bfloat16>(&q, sums, D); }
    return CUBLAS_STATUS_SUCCESS;
}

#endif
