/* test_cublaslt_rules.cu - what llmc/cpu/cublasLt.h refuses, why and with which status; and what it computes
 *
 * Every row of the rule table has at least one case here (checked), each starts from a product that is accepted and breaks one thing. Then: what is
 * accepted on which architecture, attributes, the meaning of scales, alpha, beta, bias, orders and batches (values of enumerators and defaults of attributes
 * against the real library: dev/check_cublaslt.py). Vectors and blocks of scales: the three passes of a linear layer in every mode, on every architecture, against double
 * with layouts written out here. CPU device only. */
#include <cublasLt.h>
#include <vector>

#include "dev/test/test.h"

// ----------------------------------------------------------------------------
// one product with everything that it needs

#define OK(call) do { cublasStatus_t s_ = (call); CHECK(s_ == CUBLAS_STATUS_SUCCESS, "%s: %s (%s)", #call, cublasGetStatusName(s_), cpu_cublaslt_last_reason()); } while (0)

struct Product {
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, c, d;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t heuristic;
    bool use_algo;
    char *A, *B, *C, *D, *workspace;
    float* scales;  // 64 floats, device: a, b, c, d, amax, ...
    char* bias;
    size_t workspace_bytes;
    float alpha, beta;
    const void *alpha_at, *beta_at;
    float on_host[64];
    Product(cudaDataType_t ta, cudaDataType_t tb, cudaDataType_t tc, cudaDataType_t td, int m, int n, int k, int batch = 1) {
        memset((void*)this, 0, sizeof(*this));
        OK(cublasLtCreate(&handle));
        OK(cublasLtMatmulDescInit(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        op.trans_a = CUBLAS_OP_T;
        OK(cublasLtMatrixLayoutInit(&a, ta, k, m, k));
        OK(cublasLtMatrixLayoutInit(&b, tb, k, n, k));
        OK(cublasLtMatrixLayoutInit(&c, tc, m, n, m));
        OK(cublasLtMatrixLayoutInit(&d, td, m, n, m));
        a.batch_count = b.batch_count = c.batch_count = d.batch_count = batch;
        a.batch_offset = (int64_t)k * m;
        b.batch_offset = (int64_t)k * n;
        c.batch_offset = d.batch_offset = (int64_t)m * n;
        OK(cublasLtMatmulPreferenceInit(&preference));
        preference.max_workspace = workspace_bytes = 4 << 20;
        cudaMalloc(&A, (size_t)m * k * batch * cpu_lt_size(ta) + 256);
        cudaMalloc(&B, (size_t)n * k * batch * cpu_lt_size(tb) + 256);
        cudaMalloc(&C, (size_t)m * n * batch * cpu_lt_size(tc) + 256);
        cudaMalloc(&D, (size_t)m * n * batch * cpu_lt_size(td) + 256);
        cudaMemset(A, 0, (size_t)m * k * batch * cpu_lt_size(ta) + 256);
        cudaMemset(B, 0, (size_t)n * k * batch * cpu_lt_size(tb) + 256);
        cudaMemset(C, 0, (size_t)m * n * batch * cpu_lt_size(tc) + 256);
        cudaMalloc(&workspace, workspace_bytes + 256);
        cudaMalloc(&scales, 64 * sizeof(float));
        cudaMalloc(&bias, (size_t)m * 4 * batch);
        for (int i = 0; i < 64; i++) { scales[i] = 1.0f; }
        memset(bias, 0, (size_t)m * 4 * batch);
        use_algo = true;
        alpha = 1.0f;
        alpha_at = &alpha;
        beta_at = &beta;
    }
    ~Product() {
        cudaFree(A);
        cudaFree(B);
        cudaFree(C);
        cudaFree(D);
        cudaFree(workspace);
        cudaFree(scales);
        cudaFree(bias);
        cublasLtDestroy(handle);
    }
    Product(const Product&) = delete;
    cublasStatus_t plan(void) {
        int returned = -1;
        cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &op, &a, &b, &c, &d, &preference, 1, &heuristic, &returned);
        CHECK(returned == (status == CUBLAS_STATUS_SUCCESS ? 1 : 0), "status %d returned %d algorithms", status, returned);
        return status;
    }
    cublasStatus_t run(void) {
        return cublasLtMatmul(handle, &op, alpha_at, A, &a, B, &b, beta_at, C, &c, D, &d, use_algo ? &heuristic.algo : NULL, workspace, workspace_bytes, NULL);
    }
};

// ----------------------------------------------------------------------------
// refusals: rule, architecture, status, what breaks it. The base is E4M3 x E4M3 -> BF16, TN, m 32 n 48 k 64.

typedef struct { const char* rule; int arch; cublasStatus_t status; void (*mutate)(Product*); } Case;
static const cublasStatus_t NS = CUBLAS_STATUS_NOT_SUPPORTED, IV = CUBLAS_STATUS_INVALID_VALUE;

static void types(Product* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) { p->a.type = a; p->b.type = b; p->c.type = c; p->d.type = d; }
static void bf16(Product* p) { types(p, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF); p->a.ld = p->b.ld = 32; p->a.rows = p->b.rows = 32; }  // fits A and B
// GELU with its input as auxiliary matrix (in C, which lies idle while beta is 0), BF16, m 32, n 48.
static void gelu(Product* p, uint32_t epilogue) {
    bf16(p);
    p->op.epilogue = epilogue;
    p->op.aux = p->C;
    p->op.aux_ld = 32;
    p->op.bias = p->bias;
}
static void gelu_forward(Product* p) { gelu(p, CUBLASLT_EPILOGUE_GELU_AUX_BIAS); }
static void gelu_backward(Product* p) { gelu(p, CUBLASLT_EPILOGUE_DGELU); }
static void modes(Product* p, int a, int b) { p->op.a_scale_mode = a; p->op.b_scale_mode = b; p->op.a_scale = p->scales; p->op.b_scale = p->scales + 16; }
static void batch2(Product* p) {
    p->a.batch_count = p->b.batch_count = p->c.batch_count = p->d.batch_count = 2;
    p->a.batch_offset = p->b.batch_offset = p->c.batch_offset = p->d.batch_offset = 0;
}
static void a_not_transposed(Product* p) { p->op.trans_a = CUBLAS_OP_N; p->a.rows = 32; p->a.cols = 64; p->a.ld = 32; }
static void b_transposed(Product* p) { p->op.trans_b = CUBLAS_OP_T; p->b.rows = 48; p->b.cols = 64; p->b.ld = 48; }
enum { SCALAR = 0, VEC16 = 1, VEC32 = 2, OUTER = 3, VEC128 = 4, BLK = 5 };

static const Case plan_cases[] = {
    {"layout_order", 0, NS, [](Product* p) { p->a.order = CUBLASLT_ORDER_COL32; }},
    {"layout_dims", 0, IV, [](Product* p) { p->d.cols = p->c.cols = p->b.cols = 0; }},
    {"layout_ld", 0, IV, [](Product* p) { p->a.ld = 48; }},
    {"layout_ld", 0, IV, [](Product* p) { p->d.order = p->c.order = CUBLASLT_ORDER_ROW; p->d.ld = p->c.ld = 32; }},
    {"layout_batch", 0, IV, [](Product* p) { p->b.batch_count = 2; }},
    {"layout_batch", 0, IV, [](Product* p) { p->a.batch_count = p->b.batch_count = p->c.batch_count = p->d.batch_count = 0; }},
    {"layout_batch_mode", 0, NS, [](Product* p) { p->c.batch_mode = CUBLASLT_BATCH_MODE_POINTER_ARRAY; }},
    {"layout_planes", 0, NS, [](Product* p) { p->a.plane_offset = 64; }},
    {"op_trans", 0, IV, [](Product* p) { p->op.trans_b = 7; }},
    {"op_trans_c", 0, NS, [](Product* p) { p->op.trans_c = CUBLAS_OP_T; }},
    {"op_fill_mode", 0, NS, [](Product* p) { p->op.fill_mode = CUBLAS_FILL_MODE_LOWER; }},
    {"op_epilogue", 0, IV, [](Product* p) { p->op.epilogue = 3; }},
    {"op_pointer_mode", 0, IV, [](Product* p) { p->op.pointer_mode = 5; }},
    {"op_scale_mode", 0, IV, [](Product* p) { p->op.a_scale_mode = 6; }},
    {"shape_inner", 0, IV, [](Product* p) { p->b.rows = 48; }},
    {"shape_outer", 0, IV, [](Product* p) { p->a.cols = 16; }},
    {"shape_outer", 0, IV, [](Product* p) { p->b.cols = 16; }},
    {"shape_c", 0, IV, [](Product* p) { p->c.cols = 16; }},
    {"fp8_arch", 80, NS, [](Product*) {}},
    {"fp8_e5m2_pair", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16BF); }},
    {"fp8_e5m2_pair", 89, NS, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_32F, CUDA_R_32F); }},
    {"fp8_e5m2_pair", 90, NS, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16BF); }},
    {"fp8_e5m2_pair", 100, NS, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16BF); }},
    {"fp8_e5m2_pair", 120, NS, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16BF); }},
    {"fp8_compute", 0, NS, [](Product* p) { p->op.compute_type = CUBLAS_COMPUTE_16F; }},
    {"fp8_compute", 0, NS, [](Product* p) { p->op.compute_type = CUBLAS_COMPUTE_32F_PEDANTIC; }},
    {"compute_type", 0, NS, [](Product* p) { bf16(p); p->op.compute_type = CUBLAS_COMPUTE_32F_FAST_TF32; }},
    {"compute_type", 0, NS, [](Product* p) { bf16(p); p->op.compute_type = CUBLAS_COMPUTE_64F; }},
    {"scale_type", 0, NS, [](Product* p) { p->op.scale_type = CUDA_R_16BF; }},
    {"types", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_32F); }},
    {"types", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_16BF); }},
    {"types", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E5M2); }},
    {"types", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3); }},
    {"types", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF); }},
    {"types", 0, NS, [](Product* p) { bf16(p); types(p, CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F); }},
    {"types", 0, NS, [](Product* p) { bf16(p); types(p, CUDA_R_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF); }},
    {"types_run", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16F, CUDA_R_16F); }},
    {"bias_type", 0, NS, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; p->op.bias_type = CUDA_R_32F; }},
    {"bias_type", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F); p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; p->op.bias_type = CUDA_R_32F; }},
    {"fp8_order", 0, NS, [](Product* p) { p->d.order = p->c.order = CUBLASLT_ORDER_ROW; p->d.ld = p->c.ld = 48; }},
    {"fp8_tn", 0, NS, a_not_transposed},
    {"fp8_tn", 89, NS, b_transposed},
    {"fp8_tn", 90, NS, [](Product* p) { a_not_transposed(p); b_transposed(p); }},
    {"fp8_tn", 120, NS, a_not_transposed},
    {"fp8_k", 0, NS, [](Product* p) { p->a.rows = p->b.rows = 56; }},
    {"fp8_k", 100, NS, [](Product* p) { p->a.rows = p->b.rows = 56; }},
    {"fp8_m", 0, NS, [](Product* p) { p->a.cols = p->c.rows = p->d.rows = 24; }},
    {"fp8_n", 0, NS, [](Product* p) { p->b.cols = p->c.cols = p->d.cols = 44; }},
    {"fp8_n", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F); p->b.cols = p->c.cols = p->d.cols = 46; }},
    {"fp8_n", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3); p->b.cols = p->c.cols = p->d.cols = 40; }},
    {"fp8_ld", 0, NS, [](Product* p) { p->a.ld = 72; }},
    {"fp8_ld", 90, NS, [](Product* p) { p->b.ld = 65; }},
    {"fp8_ld", 0, NS, [](Product* p) { p->d.ld = 36; }},
    {"fp8_ld", 0, NS, [](Product* p) { p->c.ld = 34; }},
    {"fp8_batch_stride", 0, NS, [](Product* p) { batch2(p); p->a.batch_offset = 8; }},
    {"fp8_batch_stride", 0, NS, [](Product* p) { batch2(p); p->d.batch_offset = 4; }},
    {"scale_ab", 0, IV, [](Product* p) { bf16(p); p->op.a_scale = p->scales; }},
    {"scale_ab", 0, IV, [](Product* p) { bf16(p); p->op.b_scale = p->scales; }},
    {"scale_c", 0, IV, [](Product* p) { bf16(p); p->op.c_scale = p->scales; }},
    {"scale_d", 0, IV, [](Product* p) { p->op.d_scale = p->scales; }},
    {"scale_d", 90, IV, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F); p->op.d_scale = p->scales; }},
    {"amax_d", 0, IV, [](Product* p) { p->op.amax_d = p->scales; }},
    {"amax_d", 90, IV, [](Product* p) { p->op.amax_d = p->scales; }},
    {"scale_aux", 0, IV, [](Product* p) { p->op.aux_scale = p->scales; }},
    {"scale_aux", 0, IV, [](Product* p) { gelu_forward(p); p->op.aux_amax = p->scales; }},
    {"mode_fp8", 0, NS, [](Product* p) { bf16(p); p->op.a_scale_mode = p->op.b_scale_mode = OUTER; }},
    {"mode_vec16", 0, NS, [](Product* p) { modes(p, VEC16, VEC16); }},
    {"mode_vec16", 100, NS, [](Product* p) { modes(p, VEC16, VEC16); }},
    {"mode_outer_arch", 89, NS, [](Product* p) { modes(p, OUTER, OUTER); }},
    {"mode_outer_arch", 100, NS, [](Product* p) { modes(p, OUTER, OUTER); }},
    {"mode_outer_arch", 120, NS, [](Product* p) { modes(p, OUTER, OUTER); }},
    {"mode_block_arch", 89, NS, [](Product* p) { modes(p, VEC128, BLK); }},
    {"mode_block_arch", 100, NS, [](Product* p) { modes(p, BLK, VEC128); }},
    {"mode_block_arch", 120, NS, [](Product* p) { modes(p, VEC128, VEC128); }},
    {"mode_mx_arch", 89, NS, [](Product* p) { modes(p, VEC32, VEC32); }},
    {"mode_mx_arch", 90, NS, [](Product* p) { modes(p, VEC32, VEC32); }},
    {"mode_blk_blk", 0, NS, [](Product* p) { modes(p, BLK, BLK); }},
    {"mode_blk_blk", 90, NS, [](Product* p) { modes(p, BLK, BLK); }},
    {"mode_pair", 0, NS, [](Product* p) { modes(p, OUTER, SCALAR); }},
    {"mode_pair", 90, NS, [](Product* p) { modes(p, OUTER, VEC128); }},
    {"mode_pair", 0, NS, [](Product* p) { modes(p, VEC32, VEC128); }},
    {"mode_c_d", 0, NS, [](Product* p) { p->op.d_scale_mode = OUTER; }},
    {"mode_d_fp8", 90, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3); modes(p, OUTER, OUTER); }},
    {"mode_d_fp8", 90, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3); modes(p, BLK, VEC128); }},
    {"mode_pointer", 90, IV, [](Product* p) { modes(p, OUTER, OUTER); p->op.b_scale = NULL; }},
    {"mode_pointer", 100, IV, [](Product* p) { modes(p, VEC32, VEC32); p->op.a_scale = NULL; }},
    {"mode_pointer", 0, IV, [](Product* p) { p->op.a_scale_mode = BLK; p->op.b_scale_mode = VEC128; }},
    {"mode_pair", 90, NS, [](Product* p) { modes(p, SCALAR, BLK); }},
    {"mode_pair", 100, NS, [](Product* p) { modes(p, VEC32, SCALAR); }},
    {"mode_block_fast", 90, NS, [](Product* p) { modes(p, BLK, VEC128); p->op.fast_accum = 1; }},
    {"mode_block_fast", 0, NS, [](Product* p) { modes(p, VEC128, VEC128); p->op.fast_accum = 1; }},
    {"mode_mx_d", 100, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3); modes(p, VEC32, VEC32); }},
    {"mode_batch", 90, NS, [](Product* p) { batch2(p); modes(p, OUTER, OUTER); }},
    {"mode_batch", 120, NS, [](Product* p) { batch2(p); modes(p, VEC32, VEC32); }},
    {"mode_d_out", 0, NS, [](Product* p) { p->op.d_out_scale = p->scales; }},
    {"fast_accum", 0, NS, [](Product* p) { bf16(p); p->op.fast_accum = 1; }},
    {"epilogue_fp8", 0, NS, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BGRADA; }},
    {"epilogue_fp8", 0, NS, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BGRADB; }},
    {"epilogue_block", 90, NS, [](Product* p) { modes(p, BLK, VEC128); p->op.epilogue = CUBLASLT_EPILOGUE_GELU_BIAS; }},
    {"epilogue_batch", 0, NS, [](Product* p) { batch2(p); p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; }},
    {"bias_type", 0, NS, [](Product* p) { gelu_forward(p); p->op.bias_type = CUDA_R_32F; }},
    {"aux_type", 0, IV, [](Product* p) { gelu_forward(p); p->op.aux_type = CUDA_R_32F; }},
    {"aux_type", 90, IV, [](Product* p) { gelu_backward(p); p->op.aux_type = CUDA_R_16BF; }},
    {"aux_ld", 0, IV, [](Product* p) { gelu_forward(p); p->op.aux_ld = 0; }},
    {"aux_ld", 0, IV, [](Product* p) { gelu_backward(p); p->op.aux_ld = 24; }},
    {"aux_ld", 90, IV, [](Product* p) { gelu_backward(p); p->op.aux_ld = 36; }},
    {"aux_batch_stride", 0, IV, [](Product* p) { gelu_forward(p); batch2(p); p->op.aux_batch_stride = 4; }},
    {"aux_batch_stride", 0, IV, [](Product* p) { gelu_forward(p); batch2(p); p->op.aux_batch_stride = -8; }},
    {"aux_order", 0, NS, [](Product* p) { gelu_forward(p); p->d.order = p->c.order = CUBLASLT_ORDER_ROW; p->d.ld = p->c.ld = 48; }},
    {"epilogue_run", 0, NS, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_GELU_BIAS; }},
    {"epilogue_run", 0, NS, [](Product* p) { gelu_forward(p); types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF); }},
    {"epilogue_run", 0, NS, [](Product* p) { gelu(p, CUBLASLT_EPILOGUE_GELU_AUX); }},
    {"epilogue_run", 0, NS, [](Product* p) { gelu(p, CUBLASLT_EPILOGUE_DGELU_BGRAD); }},
    {"epilogue_run", 0, NS, [](Product* p) { bf16(p); p->op.epilogue = CUBLASLT_EPILOGUE_BGRADB; }},
    {"pointer_mode_run", 0, NS, [](Product* p) { p->op.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE_VECTOR; }},
    {"pref_search", 0, NS, [](Product* p) { p->preference.search_mode = CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID; }},
    {"pref_alignment", 0, NS, [](Product* p) { p->preference.align_b = 8; }},
    {"pref_workspace", 0, NS, [](Product* p) { p->preference.max_workspace = 0; }},
    {"pref_workspace", 90, NS, [](Product* p) { p->preference.max_workspace = (1 << 20) - 1; }},
};

static const Case run_cases[] = {
    {"run_null", 0, IV, [](Product* p) { p->A = NULL; }},
    {"run_null", 0, IV, [](Product* p) { p->C = NULL; p->beta = 1.0f; }},
    {"run_host", 0, IV, [](Product* p) { static char host[1 << 16] __attribute__((aligned(256))); p->B = host; }},
    {"run_beyond", 0, IV, [](Product* p) { p->A += 272; }},
    {"run_beyond", 0, IV, [](Product* p) { p->D += 272; }},
    {"run_alpha_beta", 0, IV, [](Product* p) { p->alpha_at = p->scales; }},
    {"run_alpha_beta", 0, IV, [](Product* p) { p->op.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE; p->alpha_at = p->scales; }},
    {"run_fp8_align", 0, IV, [](Product* p) { p->A += 8; }},
    {"run_fp8_align", 90, IV, [](Product* p) { p->D += 8; }},
    {"run_fp8_align", 0, IV, [](Product* p) { p->C += 4; }},
    {"run_algo", 0, IV, [](Product* p) { p->heuristic.algo.data[0] = 0; }},
    {"run_algo_align", 0, IV, [](Product* p) { bf16(p); p->B += 2; }},
    {"run_beta_fp8_d", 0, NS, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3); p->beta = 1.0f; }},
    {"run_in_place", 0, IV, [](Product* p) { bf16(p); p->beta = 1.0f; p->C = p->D; p->c.ld = 33; p->c.cols = p->d.cols = p->b.cols = 16; }},
    {"run_scale_host", 0, IV, [](Product* p) { p->op.a_scale = p->on_host; }},
    {"run_scale_host", 90, IV, [](Product* p) { p->op.b_scale = p->on_host; }},
    {"run_scale_host", 100, IV, [](Product* p) { modes(p, VEC32, VEC32); p->op.a_scale = p->on_host; }},
    {"run_scale_beyond", 90, IV, [](Product* p) { modes(p, OUTER, OUTER); p->op.b_scale = p->scales + 20; }},          // 48 of 64 floats
    {"run_scale_beyond", 90, IV, [](Product* p) { modes(p, BLK, VEC128); p->op.a_scale = p->scales + 61; }},           // 4 floats
    {"run_scale_beyond", 90, IV, [](Product* p) { modes(p, VEC128, VEC128); p->op.a_scale = p->scales + 36; }},
    {"run_scale_beyond", 100, IV, [](Product* p) { modes(p, VEC32, VEC32); }},                                          // 512 bytes each
    {"run_scale_align", 90, IV, [](Product* p) { modes(p, BLK, VEC128); p->op.b_scale = p->scales + 1; }},
    {"run_scale_align", 90, IV, [](Product* p) { modes(p, OUTER, OUTER); p->op.a_scale = p->scales + 2; }},
    {"run_amax_host", 0, IV, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E4M3); p->op.amax_d = p->on_host; }},
    {"run_bias_null", 0, IV, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; }},
    {"run_bias_host", 0, IV, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; p->op.bias = p->on_host; }},
    {"run_bias_host", 0, IV, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; p->op.bias = p->bias + 128 - 62; }},
    {"run_bias_null", 0, IV, [](Product* p) { gelu_forward(p); p->op.bias = NULL; }},
    {"run_aux_null", 0, IV, [](Product* p) { gelu_backward(p); p->op.aux = NULL; }},
    {"run_aux_host", 0, IV, [](Product* p) { static char host[1 << 16] __attribute__((aligned(256))); gelu_forward(p); p->op.aux = host; }},
    {"run_aux_host", 90, IV, [](Product* p) { gelu_forward(p); p->op.aux = p->C + 272; }},
    {"run_aux_host", 0, IV, [](Product* p) { gelu_backward(p); p->op.aux_ld = 40; }},
    {"run_aux_overlap", 0, IV, [](Product* p) { gelu_backward(p); p->op.aux = p->D; }},
    {"run_aux_overlap", 0, IV, [](Product* p) { gelu_forward(p); p->op.aux = p->D + 240; p->D += 16; p->b.cols = p->c.cols = p->d.cols = 16; }},
    {"run_workspace_small", 0, IV, [](Product* p) { p->workspace_bytes = 1 << 19; }},
    {"run_workspace_small", 0, IV, [](Product* p) { p->use_algo = false; p->workspace_bytes = 0; p->workspace = NULL; }},
    {"run_workspace_host", 0, IV, [](Product* p) { p->workspace = NULL; }},
    {"run_workspace_host", 0, IV, [](Product* p) { p->workspace_bytes += 512; }},
    {"run_workspace_align", 0, IV, [](Product* p) { p->workspace += 128; }},
};

// What breaks these happens between plan and run.
static const Case late_cases[] = {
    {"run_aux_align", 0, IV, [](Product* p) { p->op.aux = p->C + 8; }},
    {"run_aux_align", 90, IV, [](Product* p) { p->op.aux = p->C + 2; }},
};

static void check_refused(const Case* t, cublasStatus_t got, const char* when) {
    const size_t length = strlen(t->rule);
    const char* reason = cpu_cublaslt_last_reason();
    CHECK(got == t->status, "rule %s, arch %d: %s answers %s, not %s (%s)", t->rule, t->arch, when, cublasGetStatusName(got), cublasGetStatusName(t->status), reason);
    CHECK(!strncmp(reason, t->rule, length) && reason[length] == ':', "rule %s, arch %d: %s gives the reason \"%s\"", t->rule, t->arch, when, reason);
    CHECK(strlen(reason) > length + 20 && strchr(reason, '('), "rule %s: no words or no sizes in \"%s\"", t->rule, reason);
}

static void test_cublaslt_refuses_at_plan(void) {
    for (const Case& t : plan_cases) {
        Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, 32, 48, 64);
        OK(p.plan());
        cpu_modes()->arch = t.arch;
        t.mutate(&p);
        check_refused(&t, p.plan(), "the heuristic");
        // and cublasLtMatmul itself does not trust the caller, except for what only a preference says
        if (strncmp(t.rule, "pref_", 5) != 0) { check_refused(&t, p.run(), "cublasLtMatmul"); }
        cpu_modes()->arch = 0;
    }
}

static void test_cublaslt_refuses_at_run(void) {
    for (const Case& t : run_cases) {
        Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, 32, 48, 64);
        cpu_modes()->arch = t.arch;
        OK(p.plan());
        char *keep[5] = {p.A, p.B, p.C, p.D, p.workspace};
        t.mutate(&p);
        if (strcmp(t.rule, "run_algo") != 0) { OK(p.plan()); }  // the plan alone shows nothing
        check_refused(&t, p.run(), "cublasLtMatmul");
        p.A = keep[0]; p.B = keep[1]; p.C = keep[2]; p.D = keep[3]; p.workspace = keep[4];
        cpu_modes()->arch = 0;
    }
}

// An algorithm relies on the alignment of the auxiliary pointer that the heuristic saw: one planned for less takes more, not the other way.
static void test_cublaslt_refuses_after_plan(void) {
    for (const Case& t : late_cases) {
        Product p(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, 32, 48, 64);
        cpu_modes()->arch = t.arch;
        gelu_forward(&p);
        OK(p.plan());
        t.mutate(&p);
        check_refused(&t, p.run(), "cublasLtMatmul");
        OK(p.plan());
        OK(p.run());
        p.op.aux = p.C;
        OK(p.run());
        cpu_modes()->arch = 0;
    }
}

static void test_cublaslt_every_rule_has_a_case(void) {
    static const char* const names[] = {
#define RULE_NAME(name, who, when, status, condition, reason) #name,
        CPU_LT_RULE_TABLE(RULE_NAME)
#undef RULE_NAME
    };
    for (const char* name : names) {
        bool found = false;
        for (const Case& t : plan_cases) { found = found || !strcmp(t.rule, name); }
        for (const Case& t : run_cases) { found = found || !strcmp(t.rule, name); }
        for (const Case& t : late_cases) { found = found || !strcmp(t.rule, name); }
        CHECK(found, "rule %s has no case", name);
    }
}

// ----------------------------------------------------------------------------
// acceptance by architecture

static void test_cublaslt_accepts_by_arch(void) {
    // columns: 0 (none in particular), 80, 89, 90, 100, 120
    static const int archs[] = {0, 80, 89, 90, 100, 120};
    static const struct { const char* what; int accepted[6]; void (*mutate)(Product*); } table[] = {
        {"BF16 NN", {1, 1, 1, 1, 1, 1}, [](Product* p) { bf16(p); p->op.trans_a = CUBLAS_OP_N; p->a.cols = 32; }},
        {"FP32 with TF32", {1, 1, 1, 1, 1, 1}, [](Product* p) { bf16(p); types(p, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F); p->op.compute_type = CUBLAS_COMPUTE_32F_FAST_TF32; }},
        {"BF16 with bias, GELU and its input", {1, 1, 1, 1, 1, 1}, gelu_forward},
        {"FP32 with TF32, GELU backward", {1, 1, 1, 1, 1, 1}, [](Product* p) {
            gelu_backward(p); types(p, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F); p->op.compute_type = CUBLAS_COMPUTE_32F_FAST_TF32; }},
        {"E4M3 x E4M3 TN", {1, 0, 1, 1, 1, 1}, [](Product*) {}},
        {"E4M3 x E5M2 TN to FP32", {1, 0, 1, 1, 1, 1}, [](Product* p) { types(p, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_32F, CUDA_R_32F); }},
        {"E5M2 x E4M3 TN to E5M2", {1, 0, 1, 1, 1, 1}, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E5M2); }},
        {"FP8 NN", {0, 0, 0, 0, 1, 0}, a_not_transposed},
        {"FP8 TT", {0, 0, 0, 0, 1, 0}, b_transposed},
        {"fast accumulation", {1, 0, 1, 1, 1, 1}, [](Product* p) { p->op.fast_accum = 1; }},
        {"FP8 with bias", {1, 0, 1, 1, 1, 1}, [](Product* p) { p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; p->op.bias_type = CUDA_R_16BF; }},
        {"outer vectors", {1, 0, 0, 1, 0, 0}, [](Product* p) { modes(p, OUTER, OUTER); }},
        {"VEC128 x VEC128", {1, 0, 0, 1, 0, 0}, [](Product* p) { modes(p, VEC128, VEC128); }},
        {"VEC128 x BLK128", {1, 0, 0, 1, 0, 0}, [](Product* p) { modes(p, VEC128, BLK); }},
        {"BLK128 x VEC128 with bias", {1, 0, 0, 1, 0, 0}, [](Product* p) { modes(p, BLK, VEC128); p->op.epilogue = CUBLASLT_EPILOGUE_BIAS; }},
        {"BLK128 x BLK128", {0, 0, 0, 0, 0, 0}, [](Product* p) { modes(p, BLK, BLK); }},
        {"VEC32 (mx)", {1, 0, 0, 0, 1, 1}, [](Product* p) { modes(p, VEC32, VEC32); }},
        {"E5M2 x E5M2", {0, 0, 0, 0, 0, 0}, [](Product* p) { types(p, CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_16BF); }},
    };
    for (auto& row : table) {
        for (int i = 0; i < 6; i++) {
            Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, 32, 48, 64);
            cpu_modes()->arch = archs[i];
            row.mutate(&p);
            const cublasStatus_t status = p.plan();
            cpu_modes()->arch = 0;
            CHECK((status == CUBLAS_STATUS_SUCCESS) == (row.accepted[i] != 0), "%s on %d: %s (%s)", row.what, archs[i], cublasGetStatusName(status), cpu_cublaslt_last_reason());
        }
    }
}

// Shapes of GPT-2 that must pass: every linear layer of d12 to d48 and the byte model, N = B*T a multiple of 8.
static void test_cublaslt_accepts_model_shapes(void) {
    for (int C : {128, 256, 384, 768, 1024, 1280, 1600}) {
        for (int tokens : {8, 64, 1000, 4096}) {
            const int shapes[][3] = {{3 * C, tokens, C}, {C, tokens, C}, {4 * C, tokens, C}, {C, tokens, 4 * C}};
            for (auto& s : shapes) {
                cublasLtMatmulDescOpaque_t op;
                cublasLtMatrixLayoutOpaque_t a, b, d;
                cublasLtMatmulDescInit(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
                op.trans_a = CUBLAS_OP_T;
                cublasLtMatrixLayoutInit(&a, CUDA_R_8F_E4M3, s[2], s[0], s[2]);
                cublasLtMatrixLayoutInit(&b, CUDA_R_8F_E4M3, s[2], s[1], s[2]);
                cublasLtMatrixLayoutInit(&d, CUDA_R_16BF, s[0], s[1], s[0]);
                CpuLtQuery q = cpu_lt_query(&op, &a, &b, &d, &d);
                CHECK(cpu_lt_check(&q) == CUBLAS_STATUS_SUCCESS, "m %d n %d k %d: %s", s[0], s[1], s[2], cpu_cublaslt_last_reason());
            }
        }
    }
}

// ----------------------------------------------------------------------------
// the interface

static void test_cublaslt_attributes(void) {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t preference;
    OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 7, 5, 9));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    const int32_t trans = CUBLAS_OP_T;
    const int8_t fast = 1;
    const int64_t wide = 1;
    OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof(trans)));
    OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    CHECK(op->trans_a == CUBLAS_OP_T && op->fast_accum == 1, "not set");
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof(wide)) == IV, "eight bytes for a four-byte attribute");
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &trans, sizeof(trans)) == IV, "FAST_ACCUM has one byte");
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 4) == IV, "no value");
    CHECK(cublasLtMatmulDescSetAttribute(op, (cublasLtMatmulDescAttributes_t)9, &trans, sizeof(trans)) == IV, "no such attribute");
    int32_t got = -1;
    size_t written = 0;
    OK(cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &got, sizeof(got), &written));
    CHECK(got == CUBLAS_OP_T && written == 4, "got %d, %zu bytes", got, written);
    OK(cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, NULL, 0, &written));
    CHECK(written == sizeof(void*), "a pointer has %zu bytes", written);
    CHECK(cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, NULL, 0, NULL) == IV, "asks for nothing");
    OK(cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &got, sizeof(got), NULL));
    CHECK(got == -1, "BIAS_DATA_TYPE is %d by default", got);
    uint64_t rows = 0;
    OK(cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof(rows), NULL));
    CHECK(rows == 7, "rows %llu", (unsigned long long)rows);
    const int32_t batch = 3;
    OK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch)));
    CHECK(layout->batch_count == 3, "batch count %d", layout->batch_count);
    uint64_t bytes = 1;
    OK(cublasLtMatmulPreferenceGetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes), NULL));
    CHECK(bytes == 0, "the default workspace is %llu", (unsigned long long)bytes);
    OK(cublasLtMatmulDescDestroy(op));
    OK(cublasLtMatrixLayoutDestroy(layout));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    CHECK(cublasLtGetVersion() == CUBLAS_VERSION && CUBLAS_VERSION >= 130000, "version %zu", cublasLtGetVersion());
    CHECK(!strcmp(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") && strlen(cublasGetStatusString(IV)) > 5, "no names");
}

static void test_cublaslt_handles(void) {
    Product p(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, 8, 8, 8);
    OK(p.plan());
    cublasLtHandle_t handle = p.handle;
    cublasLtHandle_t bad;
    OK(cublasLtCreate(&bad));
    bad->magic++;
    p.handle = NULL;
    CHECK(p.run() == CUBLAS_STATUS_NOT_INITIALIZED, "NULL handle");
    p.handle = bad;
    CHECK(p.run() == CUBLAS_STATUS_NOT_INITIALIZED && cublasLtDestroy(bad) == CUBLAS_STATUS_NOT_INITIALIZED, "a handle that is none");
    bad->magic--;
    OK(cublasLtDestroy(bad));
    p.handle = handle;
    int returned;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, &p.op, &p.a, &p.b, &p.c, &p.d, &p.preference, 0, &p.heuristic, &returned) == IV, "no algorithms requested");
    p.use_algo = false;
    OK(p.run());
}

// ----------------------------------------------------------------------------
// meaning

static void fill_fp8(char* at, int count, uint32_t type, uint64_t seed) {
    TestRng rng = {seed};
    for (int i = 0; i < count; i++) { ((uint8_t*)at)[i] = __nv_cvt_float_to_fp8((float)(int)(test_rng_u64(&rng) % 9) - 4.0f, __NV_SATFINITE, type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2); }
}
static double dot(const Product& p, int i, int j) {  // TN, no batch
    double sum = 0.0;
    for (int k = 0; k < (int)p.a.rows; k++) { sum += (double)cpu_gemm_load(p.A, i * p.a.ld + k, cpu_lt_gemm_type(p.a.type)) * cpu_gemm_load(p.B, j * p.b.ld + k, cpu_lt_gemm_type(p.b.type)); }
    return sum;
}

// D = alpha * scaleA * scaleB * A B + beta * scaleC * C + bias, for every FP8 pair, FP32 and BF16 results, C apart and in place.
static void test_cublaslt_fp8_formula(void) {
    static const uint32_t pairs[][2] = {{CUDA_R_8F_E4M3, CUDA_R_8F_E4M3}, {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}, {CUDA_R_8F_E5M2, CUDA_R_8F_E4M3}};
    for (auto& pair : pairs) {
        for (cudaDataType_t td : {CUDA_R_32F, CUDA_R_16BF}) {
            for (int in_place = 0; in_place < 2; in_place++) {
                const int m = 32, n = 24, k = 48;
                Product p((cudaDataType_t)pair[0], (cudaDataType_t)pair[1], td, td, m, n, k);
                const CpuGemmType type = cpu_lt_gemm_type(td);
                fill_fp8(p.A, m * k, pair[0], 1);
                fill_fp8(p.B, n * k, pair[1], 2);
                std::vector<float> c(m * n);
                for (int i = 0; i < m * n; i++) {
                    c[i] = (float)(i % 17) - 8.0f;
                    if (type == CPU_GEMM_F32) { ((float*)p.C)[i] = c[i]; } else { ((uint16_t*)p.C)[i] = cpu_gemm_float_to_bf16(c[i]); }
                }
                for (int i = 0; i < m; i++) { ((uint16_t*)p.bias)[i] = cpu_gemm_float_to_bf16((float)i); }
                p.scales[0] = 0.5f;
                p.scales[1] = 0.25f;
                p.scales[2] = 4.0f;
                p.op.a_scale = &p.scales[0];
                p.op.b_scale = &p.scales[1];
                p.op.c_scale = &p.scales[2];
                p.op.epilogue = CUBLASLT_EPILOGUE_BIAS;
                p.op.bias = p.bias;
                p.alpha = 2.0f;
                p.beta = 0.5f;
                char* d = p.D;
                if (in_place) { p.D = p.C; }
                OK(p.plan());
                OK(p.run());
                for (int i = 0; i < m; i++) {
                    for (int j = 0; j < n; j++) {
                        const float want = (float)(0.25 * dot(p, i, j) + 2.0 * c[j * m + i] + i);
                        const float rounded = type == CPU_GEMM_F32 ? want : cpu_gemm_bits_float((uint32_t)cpu_gemm_float_to_bf16(want) << 16), got = cpu_gemm_load(p.D, j * m + i, type);
                        CHECK(got == rounded, "(%d, %d) is %g, not %g, in place %d", i, j, got, rounded, in_place);
                    }
                }
                p.D = d;
            }
        }
    }
}

// GELU_AUX_BIAS: aux = z = alpha A B + beta C + bias, D = gelu(z); DGELU: D = gelu'(aux) (alpha A B + beta C). Integers, so z is exact; how good the
// function itself is, is test_kernels_matmul.cu's matter. Batches, leading dimensions longer than needed, what lies between stays.
template <class T> static void check_gelu(cudaDataType_t type, bool forward, bool bf16_operands) {
    const int m = 24, n = 20, k = 16, batch = 2, ld = m + 8, gap = m * 2 + 8;
    const cudaDataType_t in = bf16_operands ? CUDA_R_16BF : type;
    Product p(in, in, type, type, m, n, k, batch);
    T* aux;
    const int aux_size = (n - 1) * ld + m + (n * ld + gap);
    cudaMalloc(&aux, aux_size * sizeof(T));
    auto put = [&](char* at, cudaDataType_t t, int i, float x) { if (t == CUDA_R_32F) { ((float*)at)[i] = x; } else { ((uint16_t*)at)[i] = cpu_gemm_float_to_bf16(x); } };
    for (int i = 0; i < m * k * batch; i++) { put(p.A, in, i, (float)(i % 5) - 2.0f); }
    for (int i = 0; i < n * k * batch; i++) { put(p.B, in, i, (float)(i % 3) - 1.0f); }
    for (int i = 0; i < m * n * batch; i++) { put(p.C, type, i, (float)(i % 7) - 3.0f); }
    for (int i = 0; i < m * batch; i++) { put(p.bias, type, i, (float)(i % 4)); }
    for (int i = 0; i < aux_size; i++) { aux[i] = (T)(0.25f * (float)(i % 33 - 16)); }
    std::vector<T> before(aux, aux + aux_size);
    p.op.epilogue = forward ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_DGELU;
    p.op.aux = aux;
    p.op.aux_ld = ld;
    p.op.aux_batch_stride = n * ld + gap;
    p.op.bias = p.bias;
    p.op.bias_batch_stride = m;
    p.alpha = 0.5f;
    p.beta = 2.0f;
    OK(p.plan());
    OK(p.run());
    const CpuGemmType ti = cpu_lt_gemm_type(in), to = cpu_lt_gemm_type(type);
    for (int b = 0; b < batch; b++) {
        for (int j = 0; j < n; j++) {
            for (int i = 0; i < ld && b * (n * ld + gap) + j * ld + i < aux_size; i++) {
                const int at = b * (n * ld + gap) + j * ld + i, c = (b * n + j) * m + i;
                if (i >= m) { CHECK((float)aux[at] == (float)before[at], "aux beyond row %d was written", i); continue; }
                float z = 0.0f;
                for (int x = 0; x < k; x++) { z += cpu_gemm_load(p.A, (b * m + i) * k + x, ti) * cpu_gemm_load(p.B, (b * n + j) * k + x, ti); }
                z = 0.5f * z + 2.0f * cpu_gemm_load(p.C, c, to) + (forward ? cpu_gemm_load(p.bias, b * m + i, to) : 0.0f);
                const float want = (float)(T)(forward ? cpu_lt_gelu(z) : z * cpu_lt_dgelu((float)before[at])), got = cpu_gemm_load(p.D, c, to);
                CHECK(got == want, "D (%d, %d, %d) is %g, not %g", b, i, j, got, want);
                CHECK((float)aux[at] == (forward ? z : (float)before[at]), "aux (%d, %d, %d) is %g", b, i, j, (float)aux[at]);
            }
        }
    }
    cudaFree(aux);
}
static void test_cublaslt_gelu(void) {
    for (int forward = 0; forward < 2; forward++) {
        check_gelu<float>(CUDA_R_32F, forward, false);
        check_gelu<float>(CUDA_R_32F, forward, true);
        check_gelu<__nv_bfloat16>(CUDA_R_16BF, forward, true);
    }
}

// The scales of one side. They are written to device memory in the order in which they lie there, as a manual would draw them, while `at` keeps them by
// outer index and block of K. What pads a layout is poison.
struct Scales {
    int mode, outer, k, block, blocks;
    std::vector<float> at;
    char* device;
    Scales(int mode_, int outer_, int k_, bool powers, TestRng* rng) : mode(mode_), outer(outer_), k(k_) {
        block = mode == VEC128 || mode == BLK ? 128 : mode == VEC32 ? 32 : k;
        blocks = (k + block - 1) / block;
        at.resize(outer * blocks);
        for (int r = 0; r < outer; r++) {
            for (int b = 0; b < blocks; b++) {
                const float power = ldexpf(1.0f, (int)(test_rng_u64(rng) % 5) - 2), any = 0.01f + (float)test_rng_uniform(rng);
                at[r * blocks + b] = powers || mode == VEC32 ? power : any;
                if (mode == SCALAR) { at[r * blocks + b] = at[0]; }
                if (mode == BLK) { at[r * blocks + b] = at[r / 128 * 128 * blocks + b]; }
            }
        }
        std::vector<float> f;
        std::vector<uint8_t> bytes;
        if (mode == SCALAR) { f.push_back(at[0]); }
        if (mode == OUTER) { f = at; }
        if (mode == VEC128) { for (int b = 0; b < blocks; b++) { for (int r = 0; r < outer; r++) { f.push_back(at[r * blocks + b]); } } }
        if (mode == BLK) {
            for (int r = 0; r < outer; r += 128) {
                for (int b = 0; b < blocks; b++) { f.push_back(at[r * blocks + b]); }
                while (f.size() % 4) { f.push_back(NAN); }
            }
        }
        if (mode == VEC32) {
            for (int tile_r = 0; tile_r < outer; tile_r += 128) {
                for (int tile_b = 0; tile_b < blocks; tile_b += 4) {
                    for (int line = 0; line < 32; line++) {
                        for (int quarter = 0; quarter < 4; quarter++) {
                            for (int b = tile_b; b < tile_b + 4; b++) {
                                const int r = tile_r + quarter * 32 + line;
                                bytes.push_back(r < outer && b < blocks ? (uint8_t)(127 + ilogbf(at[r * blocks + b])) : 0xff);
                            }
                        }
                    }
                }
            }
        }
        if (mode != VEC32) { bytes.resize(f.size() * 4); memcpy(bytes.data(), f.data(), bytes.size()); }
        cudaMalloc(&device, bytes.size());
        memcpy(device, bytes.data(), bytes.size());
    }
    ~Scales() { cudaFree(device); }
    Scales(const Scales&) = delete;
    float operator()(int r, int at_k) const { return at[r * blocks + at_k / block]; }
};

// One pass of a linear layer x (N,C) -> (N,OC) in cuBLASLt's terms, where A is our gemm()'s B: fprop W x, dgrad W^T dY, wgrad x^T dY^T.
enum { FPROP, DGRAD, WGRAD };
typedef struct { const char* name; uint32_t x, w, dy; int mode_a[3], mode_b[3]; int archs[4]; } Recipe;
static const uint32_t E4 = CUDA_R_8F_E4M3, E5 = CUDA_R_8F_E5M2;
static const Recipe recipes[] = {
    {"current", E4, E4, E5, {SCALAR, SCALAR, SCALAR}, {SCALAR, SCALAR, SCALAR}, {89, 90, 100, 120}},
    {"row", E4, E4, E4, {OUTER, OUTER, OUTER}, {OUTER, OUTER, OUTER}, {90, 90, 90, 90}},
    {"block", E4, E4, E4, {BLK, BLK, VEC128}, {VEC128, VEC128, VEC128}, {90, 90, 90, 90}},
    {"mx", E4, E4, E4, {VEC32, VEC32, VEC32}, {VEC32, VEC32, VEC32}, {100, 120, 100, 120}},
    {"row, E5M2 gradients", E4, E4, E5, {OUTER, OUTER, OUTER}, {OUTER, OUTER, OUTER}, {90, 90, 90, 90}},
    {"mx, E5M2 gradients", E4, E4, E5, {VEC32, VEC32, VEC32}, {VEC32, VEC32, VEC32}, {100, 120, 100, 120}},
};
struct Pass {
    int m, n, k;
    uint32_t ta, tb;
    Pass(const Recipe& r, int pass, int N, int C, int OC) {
        m = pass == FPROP ? OC : C;
        n = pass == WGRAD ? OC : N;
        k = pass == FPROP ? C : pass == DGRAD ? OC : N;
        ta = pass == WGRAD ? r.x : r.w;
        tb = pass == FPROP ? r.x : r.dy;
    }
};

// Codes are small integers, scales powers of two: D is exact but for its own rounding.
static void check_scaled(const Recipe& r, int pass, int N, int C, int OC, int variant) {
    const Pass s(r, pass, N, C, OC);
    const cudaDataType_t td = variant & 1 ? CUDA_R_32F : CUDA_R_16BF;
    const bool beta = variant & 2, bias = variant & 4;
    const CpuGemmType type = cpu_lt_gemm_type(td);
    Product p((cudaDataType_t)s.ta, (cudaDataType_t)s.tb, td, td, s.m, s.n, s.k);
    TestRng rng = {(uint64_t)(variant + pass * 8 + N) + test_seed()};
    Scales sa(r.mode_a[pass], s.m, s.k, true, &rng), sb(r.mode_b[pass], s.n, s.k, true, &rng);
    fill_fp8(p.A, s.m * s.k, s.ta, variant + 1);
    fill_fp8(p.B, s.n * s.k, s.tb, variant + 2);
    p.op.a_scale_mode = r.mode_a[pass];
    p.op.b_scale_mode = r.mode_b[pass];
    p.op.a_scale = sa.device;
    p.op.b_scale = sb.device;
    p.beta = beta ? 1.0f : 0.0f;
    if (bias) {
        p.op.epilogue = CUBLASLT_EPILOGUE_BIAS;
        p.op.bias_type = CUDA_R_16BF;
        p.op.bias = p.bias;
        for (int i = 0; i < s.m; i++) { ((uint16_t*)p.bias)[i] = cpu_gemm_float_to_bf16((float)(i % 9) - 4.0f); }
    }
    std::vector<float> a(s.m * s.k), b(s.n * s.k), want(s.m * s.n);  // scaled; both exact
    for (int i = 0; i < s.m; i++) { for (int k = 0; k < s.k; k++) { a[i * s.k + k] = cpu_gemm_load(p.A, i * s.k + k, cpu_lt_gemm_type(s.ta)) * sa(i, k); } }
    for (int j = 0; j < s.n; j++) { for (int k = 0; k < s.k; k++) { b[j * s.k + k] = cpu_gemm_load(p.B, j * s.k + k, cpu_lt_gemm_type(s.tb)) * sb(j, k); } }
    auto c = [](int at) { return (float)(at % 17) - 8.0f; };
    for (int j = 0; j < s.n; j++) {
        for (int i = 0; i < s.m; i++) {
            double sum = 0.0;
            for (int k = 0; k < s.k; k++) { sum += (double)a[i * s.k + k] * b[j * s.k + k]; }
            sum += (beta ? c(j * s.m + i) : 0.0) + (bias ? (i % 9) - 4.0 : 0.0);
            want[j * s.m + i] = type == CPU_GEMM_F32 ? (float)sum : cpu_gemm_bits_float((uint32_t)cpu_gemm_float_to_bf16((float)sum) << 16);
        }
    }
    for (int arch : {0, 80, 89, 90, 100, 120}) {
        cpu_modes()->arch = arch;
        cpu_modes()->check = variant & 1;  // poisoned scratch
        const bool runs = arch == 0 || arch == r.archs[0] || arch == r.archs[1] || arch == r.archs[2] || arch == r.archs[3];
        for (int at = 0; at < s.m * s.n; at++) { if (type == CPU_GEMM_F32) { ((float*)p.D)[at] = c(at); } else { ((uint16_t*)p.D)[at] = cpu_gemm_float_to_bf16(c(at)); } }
        char* other = p.C;
        p.C = p.D;  // in place, as gemm() does
        if (!runs) { CHECK(p.plan() == NS && p.run() == NS, "%s runs on %d", r.name, arch); }
        else {
            OK(p.plan());
            OK(p.run());
            for (int at = 0; at < s.m * s.n; at++) {
                const float got = cpu_gemm_load(p.D, at, type);
                CHECK(got == want[at], "%s, pass %d, m %d n %d k %d, variant %d, arch %d: (%d, %d) is %g, not %g", r.name, pass, s.m, s.n, s.k, variant, arch, at % s.m, at / s.m, got, want[at]);
            }
        }
        p.C = other;
    }
    cpu_modes()->arch = cpu_modes()->check = 0;
}

static void test_cublaslt_scale_modes_every_pass(void) {
    static const int sizes[][3] = {{32, 48, 64}, {144, 208, 80}, {272, 144, 400}, {48, 1600, 32}};  // N, C, OC: multiples of 16, not of 32 and 128
    int variant = 0;
    for (const Recipe& r : recipes) {
        for (int pass = FPROP; pass <= WGRAD; pass++) {
            for (auto& size : sizes) {
                check_scaled(r, pass, size[0], size[1], size[2], variant % 8);
                variant += 3;
            }
        }
    }
    for (int v = 0; v < 8; v++) { for (const Recipe& r : recipes) { check_scaled(r, v % 3, 16, 144, 32, v); } }
}

// Any scales, any codes: the error against double is at most twice that of the definition evaluated in FP32.
static void test_cublaslt_scale_modes_within_bound(void) {
    for (const Recipe& r : recipes) {
        for (int pass = FPROP; pass <= WGRAD; pass++) {
            const Pass s(r, pass, 400, 720, 48);
            Product p((cudaDataType_t)s.ta, (cudaDataType_t)s.tb, CUDA_R_32F, CUDA_R_32F, s.m, s.n, s.k);
            TestRng rng = {test_seed() + pass};
            Scales sa(r.mode_a[pass], s.m, s.k, false, &rng), sb(r.mode_b[pass], s.n, s.k, false, &rng);
            auto random_codes = [&](char* at, int count, uint32_t type) {
                for (int i = 0; i < count; i++) { at[i] = (char)__nv_cvt_float_to_fp8((float)(40.0 * test_rng_normal(&rng)), __NV_SATFINITE, type == E4 ? __NV_E4M3 : __NV_E5M2); }
            };
            random_codes(p.A, s.m * s.k, s.ta);
            random_codes(p.B, s.n * s.k, s.tb);
            p.op.a_scale_mode = r.mode_a[pass];
            p.op.b_scale_mode = r.mode_b[pass];
            p.op.a_scale = sa.device;
            p.op.b_scale = sb.device;
            OK(p.plan());
            OK(p.run());
            double ours = 0.0, naive = 0.0;
            for (int j = 0; j < s.n; j += 7) {
                for (int i = 0; i < s.m; i += 3) {
                    double exact = 0.0;
                    float sum = 0.0f;
                    for (int k0 = 0; k0 < s.k; k0 += sa.block) {
                        float part = 0.0f;
                        for (int k = k0; k < s.k && k < k0 + sa.block; k++) {
                            const float product = cpu_gemm_load(p.A, i * s.k + k, cpu_lt_gemm_type(s.ta)) * cpu_gemm_load(p.B, j * s.k + k, cpu_lt_gemm_type(s.tb));
                            exact += (double)product * sa(i, k) * sb(j, k);
                            part += product;
                        }
                        sum += part * (sa(i, k0) * sb(j, k0));
                    }
                    naive = fmax(naive, fabs(sum - exact));
                    ours = fmax(ours, fabs(((float*)p.D)[j * s.m + i] - exact));
                }
            }
            CHECK(ours <= 2.0 * naive && naive > 0.0, "%s, pass %d: error %g, the definition in FP32 has %g", r.name, pass, ours, naive);
        }
    }
}

// 10.x multiplies any layout: with exponents along K, however the matrix is stored, the result is that of TN.
static void test_cublaslt_mx_any_layout(void) {
    const int m = 48, n = 80, k = 144;
    TestRng rng = {test_seed()};
    Scales sa(VEC32, m, k, true, &rng), sb(VEC32, n, k, true, &rng);
    std::vector<char> want;
    cpu_modes()->arch = 100;
    for (int layout = 0; layout < 4; layout++) {
        Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, m, n, k);
        std::vector<char> a(m * k), b(n * k);
        fill_fp8(a.data(), m * k, E4, 1);
        fill_fp8(b.data(), n * k, E4, 2);
        const bool a_n = layout & 1, b_t = layout & 2;
        for (int i = 0; i < m * k; i++) { p.A[a_n ? i % k * m + i / k : i] = a[i]; }
        for (int i = 0; i < n * k; i++) { p.B[b_t ? i % k * n + i / k : i] = b[i]; }
        if (a_n) { p.op.trans_a = CUBLAS_OP_N; p.a.rows = p.a.ld = m; p.a.cols = k; }
        if (b_t) { p.op.trans_b = CUBLAS_OP_T; p.b.rows = p.b.ld = n; p.b.cols = k; }
        p.op.a_scale_mode = p.op.b_scale_mode = VEC32;
        p.op.a_scale = sa.device;
        p.op.b_scale = sb.device;
        OK(p.plan());
        OK(p.run());
        if (want.empty()) { want.assign(p.D, p.D + m * n * 2); }
        CHECK(!memcmp(want.data(), p.D, want.size()), "layout %d gives other bits than TN", layout);
    }
    cpu_modes()->arch = 0;
}

// An FP8 D: amax before the scale, conversion saturates.
static void test_cublaslt_fp8_d(void) {
    const int m = 16, n = 32, k = 32;
    Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_8F_E4M3, m, n, k);
    fill_fp8(p.A, m * k, CUDA_R_8F_E4M3, 3);
    fill_fp8(p.B, n * k, CUDA_R_8F_E5M2, 4);
    p.scales[3] = 8.0f;
    p.scales[4] = -1.0f;
    p.op.d_scale = &p.scales[3];
    p.op.amax_d = &p.scales[4];
    OK(p.plan());
    OK(p.run());
    double amax = 0.0;
    int saturated = 0;
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            const float x = (float)dot(p, i, j);
            amax = fmax(amax, fabs(x));
            saturated += fabsf(8.0f * x) > 448.0f;
            const uint8_t want = __nv_cvt_float_to_fp8(8.0f * x, __NV_SATFINITE, __NV_E4M3), got = ((uint8_t*)p.D)[j * m + i];
            CHECK(got == want, "(%d, %d) is %02x, not %02x (%g)", i, j, got, want, x);
        }
    }
    CHECK(p.scales[4] == (float)amax, "amax %g, not %g", p.scales[4], amax);
    CHECK(saturated > 0, "nothing saturated: the test shows less than it says");
}

// Every combination of transposes and orders of BF16, leading dimensions longer than needed, alpha and beta in device memory.
static void test_cublaslt_bf16_layouts(void) {
    const int m = 10, n = 14, k = 12;
    for (int layout = 0; layout < 64; layout++) {
        Product p(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, 16, 16, 16);
        const int trans[2] = {layout & 1, layout >> 1 & 1}, order[3] = {layout >> 2 & 1, layout >> 3 & 1, layout >> 4 & 1};
        auto init = [&](cublasLtMatrixLayout_t l, cudaDataType_t type, int rows, int cols, int row_order) { cublasLtMatrixLayoutInit(l, type, rows, cols, 16); l->order = row_order; };
        init(&p.a, CUDA_R_16BF, trans[0] ? k : m, trans[0] ? m : k, order[0]);
        init(&p.b, CUDA_R_16BF, trans[1] ? n : k, trans[1] ? k : n, order[1]);
        init(&p.d, CUDA_R_32F, m, n, order[2]);
        p.c = p.d;
        p.op.trans_a = trans[0] ? CUBLAS_OP_T : CUBLAS_OP_N;
        p.op.trans_b = trans[1] ? CUBLAS_OP_T : CUBLAS_OP_N;
        if (layout >= 32) {
            p.op.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE;
            p.scales[0] = 2.0f;
            p.scales[1] = 0.0f;
            p.alpha_at = &p.scales[0];
            p.beta_at = &p.scales[1];
        }
        auto a_at = [&](int i, int x) { const int r = trans[0] ? x : i, c = trans[0] ? i : x; return order[0] ? r * 16 + c : c * 16 + r; };
        auto b_at = [&](int x, int j) { const int r = trans[1] ? j : x, c = trans[1] ? x : j; return order[1] ? r * 16 + c : c * 16 + r; };
        for (int i = 0; i < m; i++) { for (int x = 0; x < k; x++) { ((uint16_t*)p.A)[a_at(i, x)] = cpu_gemm_float_to_bf16((float)((i * 5 + x * 3) % 11) - 5.0f); } }
        for (int j = 0; j < n; j++) { for (int x = 0; x < k; x++) { ((uint16_t*)p.B)[b_at(x, j)] = cpu_gemm_float_to_bf16((float)((j * 7 + x) % 9) - 4.0f); } }
        OK(p.plan());
        OK(p.run());
        for (int i = 0; i < m; i++) {
            for (int j = 0; j < n; j++) {
                float want = 0.0f;
                for (int x = 0; x < k; x++) { want += ((float)((i * 5 + x * 3) % 11) - 5.0f) * ((float)((j * 7 + x) % 9) - 4.0f); }
                want *= layout >= 32 ? 2.0f : 1.0f;
                const float got = ((float*)p.D)[order[2] ? i * 16 + j : j * 16 + i];
                CHECK(got == want, "layout %d (%d, %d) is %g, not %g", layout, i, j, got, want);
            }
        }
    }
}

static void test_cublaslt_batches(void) {
    const int m = 16, n = 24, k = 32, batch = 3;
    for (cudaDataType_t type : {CUDA_R_8F_E4M3, CUDA_R_16BF}) {
        Product p(type, type, CUDA_R_16BF, CUDA_R_16BF, m, n, k, batch);
        for (int i = 0; i < m * k * batch; i++) {
            const float x = (float)(i % 7) - 3.0f;
            if (type == CUDA_R_16BF) { ((uint16_t*)p.A)[i] = cpu_gemm_float_to_bf16(x); } else { ((uint8_t*)p.A)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
        }
        for (int i = 0; i < n * k * batch; i++) {
            const float x = (float)(i % 5) - 2.0f;
            if (type == CUDA_R_16BF) { ((uint16_t*)p.B)[i] = cpu_gemm_float_to_bf16(x); } else { ((uint8_t*)p.B)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
        }
        OK(p.plan());
        OK(p.run());
        for (int b = 0; b < batch; b++) {
            for (int i = 0; i < m; i++) {
                for (int j = 0; j < n; j++) {
                    float want = 0.0f;
                    for (int x = 0; x < k; x++) { want += ((float)((b * m * k + i * k + x) % 7) - 3.0f) * ((float)((b * n * k + j * k + x) % 5) - 2.0f); }
                    CHECK(((uint16_t*)p.D)[b * m * n + j * m + i] == cpu_gemm_float_to_bf16(want), "batch %d (%d, %d)", b, i, j);
                }
            }
        }
    }
}

// The switch of the truncated accumulator counts only with FAST_ACCUM.
static void test_cublaslt_hopper_accumulator(void) {
    const int m = 16, n = 16, k = 1024;
    std::vector<float> results[4];
    for (int way = 0; way < 4; way++) {
        Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F, m, n, k);
        TestRng rng = {7};
        for (int i = 0; i < m * k; i++) { ((uint8_t*)p.A)[i] = (uint8_t)(0x30 + test_rng_u64(&rng) % 32); }
        for (int i = 0; i < n * k; i++) { ((uint8_t*)p.B)[i] = (uint8_t)(0x30 + test_rng_u64(&rng) % 32); }
        cpu_modes()->hopper_acc = way & 1;
        p.op.fast_accum = (int8_t)(way >> 1);
        OK(p.plan());
        OK(p.run());
        results[way].assign((float*)p.D, (float*)p.D + m * n);
        cpu_modes()->hopper_acc = 0;
    }
    CHECK(results[1] == results[0] && results[2] == results[0], "one of switch and FAST_ACCUM alone changes the result");
    CHECK(results[3] != results[0], "both together change nothing");
    for (int i = 0; i < m * n; i++) {
        const float x = results[3][i], y = results[0][i];
        CHECK(x < y && x > 0.98f * y, "%d: %g against %g: truncation of positive sums only loses", i, x, y);
    }
}

// With blocks of scales the switch counts without FAST_ACCUM, within each 128 of K only; with exponents never.
static void test_cublaslt_hopper_accumulator_modes(void) {
    const int m = 16, n = 16, k = 1024;
    TestRng rng = {7};
    std::vector<char> codes(m * k);
    for (char& x : codes) { x = (char)(0x30 + test_rng_u64(&rng) % 32); }
    double lost[6] = {0.0};
    for (int mode : {OUTER, VEC128, VEC32}) {
        std::vector<float> results[2];
        for (int on = 0; on < 2; on++) {
            Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F, m, n, k);
            Scales sa(mode, m, k, true, &rng), sb(mode, n, k, true, &rng);
            if (mode == VEC32) { memset(sa.device, 127, 4096); memset(sb.device, 127, 4096); }
            else { for (size_t i = 0; i < sa.at.size(); i++) { ((float*)sa.device)[i] = ((float*)sb.device)[i] = 1.0f; } }
            memcpy(p.A, codes.data(), codes.size());
            memcpy(p.B, codes.data(), codes.size());
            p.op.a_scale_mode = p.op.b_scale_mode = mode;
            p.op.a_scale = sa.device;
            p.op.b_scale = sb.device;
            p.op.fast_accum = mode != VEC128;
            cpu_modes()->hopper_acc = on;
            OK(p.plan());
            OK(p.run());
            cpu_modes()->hopper_acc = 0;
            results[on].assign((float*)p.D, (float*)p.D + m * n);
        }
        for (int i = 0; i < m * n; i++) { lost[mode] += 1.0 - results[1][i] / results[0][i]; }
    }
    CHECK(lost[VEC32] == 0.0, "exponents: the switch costs %g", lost[VEC32]);
    CHECK(lost[VEC128] > 0.0 && lost[VEC128] < 0.5 * lost[OUTER], "the truncated accumulator loses %g promoted every 128, %g over all of K", lost[VEC128], lost[OUTER]);
}

// Poisoned memory: nothing depends on the workspace, scratch or unread C; what lies beyond D stays.
static void test_cublaslt_check_mode(void) {
    cpu_modes()->check = 1;
    const int m = 32, n = 24, k = 64;
    Product p(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, m, n, k);
    fill_fp8(p.A, m * k, CUDA_R_8F_E4M3, 1);
    fill_fp8(p.B, n * k, CUDA_R_8F_E4M3, 2);
    memset(p.C, 0xff, m * n * 2);
    memset(p.workspace, 0, p.workspace_bytes);
    OK(p.plan());
    OK(p.run());
    for (int i = 0; i < m; i++) { for (int j = 0; j < n; j++) { CHECK(((uint16_t*)p.D)[j * m + i] == cpu_gemm_float_to_bf16((float)dot(p, i, j)), "(%d, %d)", i, j); } }
    for (int i = 0; i < 256; i++) { CHECK((uint8_t)p.D[m * n * 2 + i] == 0xff, "byte %d after D was written", i); }
    CHECK((uint8_t)p.workspace[0] == 0xff, "the workspace is left alone in check mode");
    cpu_modes()->check = 0;
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"cublaslt_refuses_at_plan", test_cublaslt_refuses_at_plan, QUICK},
        {"cublaslt_refuses_at_run", test_cublaslt_refuses_at_run, QUICK},
        {"cublaslt_refuses_after_plan", test_cublaslt_refuses_after_plan, QUICK},
        {"cublaslt_every_rule_has_a_case", test_cublaslt_every_rule_has_a_case, QUICK},
        {"cublaslt_accepts_by_arch", test_cublaslt_accepts_by_arch, QUICK},
        {"cublaslt_accepts_model_shapes", test_cublaslt_accepts_model_shapes, QUICK},
        {"cublaslt_attributes", test_cublaslt_attributes, QUICK},
        {"cublaslt_handles", test_cublaslt_handles, QUICK},
        {"cublaslt_fp8_formula", test_cublaslt_fp8_formula, QUICK},
        {"cublaslt_scale_modes_every_pass", test_cublaslt_scale_modes_every_pass, QUICK},
        {"cublaslt_scale_modes_within_bound", test_cublaslt_scale_modes_within_bound, QUICK},
        {"cublaslt_mx_any_layout", test_cublaslt_mx_any_layout, QUICK},
        {"cublaslt_gelu", test_cublaslt_gelu, QUICK},
        {"cublaslt_fp8_d", test_cublaslt_fp8_d, QUICK},
        {"cublaslt_bf16_layouts", test_cublaslt_bf16_layouts, QUICK},
        {"cublaslt_batches", test_cublaslt_batches, QUICK},
        {"cublaslt_hopper_accumulator", test_cublaslt_hopper_accumulator, QUICK},
        {"cublaslt_hopper_accumulator_modes", test_cublaslt_hopper_accumulator_modes, QUICK},
        {"cublaslt_check_mode", test_cublaslt_check_mode, QUICK},
    };
    return TEST_MAIN(tests);
}
