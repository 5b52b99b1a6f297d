/* bench_probe.h - what cuBLASLt accepts: each layout, type, epilogue, scale mode and size, asked of the heuristic, nothing executed
 *
 * A part of bench.cu: the monolith is included before it. Answers are compared with those of the CPU device that plays the same architecture (gpu_check.sh).
 */
#ifndef DEV_BENCH_PROBE_H
#define DEV_BENCH_PROBE_H

#include "dev/bench_json.h"

// Scale modes of A and B. Those that the toolkit's header lacks are reported as such.
typedef enum { SCALE_NONE, SCALE_SCALAR, SCALE_OUTER, SCALE_VEC128, SCALE_BLK128, SCALE_MX32 } ProbeScale;
static const char* const probe_scale_names[] = {"none", "scalar", "outer_vec", "vec128", "blk128x128", "vec32_ue8m0"};
static const struct { const char* name; cublasLtEpilogue_t value; bool bias, aux, gradient; } probe_epilogues[] = {
    {"default", CUBLASLT_EPILOGUE_DEFAULT, 0, 0, 0},              {"bias", CUBLASLT_EPILOGUE_BIAS, 1, 0, 0},
    {"relu", CUBLASLT_EPILOGUE_RELU, 0, 0, 0},                    {"gelu", CUBLASLT_EPILOGUE_GELU, 0, 0, 0},
    {"gelu_bias", CUBLASLT_EPILOGUE_GELU_BIAS, 1, 0, 0},          {"gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX, 0, 1, 0},
    {"gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 1, 1, 0},  {"dgelu", CUBLASLT_EPILOGUE_DGELU, 0, 1, 1},
    {"dgelu_bgrad", CUBLASLT_EPILOGUE_DGELU_BGRAD, 1, 1, 1},      {"bgrada", CUBLASLT_EPILOGUE_BGRADA, 1, 0, 1},
    {"bgradb", CUBLASLT_EPILOGUE_BGRADB, 1, 0, 1},
};
enum { NUM_PROBE_EPILOGUES = sizeof(probe_epilogues) / sizeof(probe_epilogues[0]) };

// A question in cuBLASLt's own, column-major terms: D (m,n) = op(A) (m,k) op(B) (k,n), leading dimensions as short as they can be.
typedef struct {
    const char* group;
    int trans_a, trans_b, a, b, c, d;  // DType
    int epilogue, scale_a, scale_b;
    int m, n, k, fast, batch, align;
    bool amax_d, scale_d;
} Probe;

static Probe probe_new(const char* group, int a, int b, int d) {
    bool fp8 = dtype_is_fp8((DType)a);
    int scale = fp8 ? SCALE_SCALAR : SCALE_NONE;
    return {group, 1, 0, a, b, dtype_is_fp8((DType)d) ? DTYPE_BF16 : d, d, 0, scale, scale, 1024, 2048, 512, 0, 1, 256, false, fp8 && dtype_is_fp8((DType)d)};
}

static std::vector<Probe> probe_list(void) {
    std::vector<Probe> list;
    const int pairs[][2] = {{DTYPE_E4M3, DTYPE_E4M3}, {DTYPE_E4M3, DTYPE_E5M2}, {DTYPE_E5M2, DTYPE_E4M3}, {DTYPE_E5M2, DTYPE_E5M2},
                            {DTYPE_BF16, DTYPE_BF16}, {DTYPE_F32, DTYPE_F32}};
    const int outputs[] = {DTYPE_BF16, DTYPE_F32, DTYPE_E4M3, DTYPE_E5M2};
    for (int layout = 0; layout < 4; layout++) {  // TN, NN, NT, TT
        for (auto& pair : pairs) {
            for (int d : outputs) {
                if (!dtype_is_fp8((DType)pair[0]) && dtype_is_fp8((DType)d)) { continue; }
                Probe p = probe_new("layout", pair[0], pair[1], d);
                p.trans_a = layout == 0 || layout == 3;
                p.trans_b = layout >= 2;
                list.push_back(p);
            }
        }
    }
    for (int e = 0; e < NUM_PROBE_EPILOGUES; e++) {
        for (int i = 0; i < 6; i++) {
            const int types[][3] = {{DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}, {DTYPE_F32, DTYPE_F32, DTYPE_F32}, {DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16},
                                    {DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16}, {DTYPE_E4M3, DTYPE_E4M3, DTYPE_F32}, {DTYPE_E4M3, DTYPE_E4M3, DTYPE_E4M3}};
            for (int fast = 0; fast < (i < 2 ? 1 : 2); fast++) {
                Probe p = probe_new("epilogue", types[i][0], types[i][1], types[i][2]);
                p.epilogue = e;
                p.fast = fast;
                list.push_back(p);
            }
        }
    }
    const int scales[][2] = {{SCALE_NONE, SCALE_NONE}, {SCALE_OUTER, SCALE_OUTER}, {SCALE_VEC128, SCALE_VEC128}, {SCALE_BLK128, SCALE_VEC128}, {SCALE_VEC128, SCALE_BLK128},
                             {SCALE_BLK128, SCALE_BLK128}, {SCALE_OUTER, SCALE_SCALAR}, {SCALE_MX32, SCALE_MX32}};
    for (auto& scale : scales) {
        for (int i = 0; i < 8; i++) {
            Probe p = probe_new("scale", DTYPE_E4M3, i == 1 ? DTYPE_E5M2 : DTYPE_E4M3, i == 2 ? DTYPE_F32 : i == 3 ? DTYPE_E4M3 : DTYPE_BF16);
            p.scale_a = scale[0];
            p.scale_b = scale[1];
            if (i == 4) { p.k = 1600; }                     // 12.5 blocks of 128: d48's C
            if (i == 5) { p.m = 1600; p.n = 1616; }
            if (i == 6) { p.epilogue = 1; }                 // bias
            if (i == 7) { p.fast = 1; }
            list.push_back(p);
        }
        Probe nn = probe_new("scale", DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16);
        nn.scale_a = scale[0];
        nn.scale_b = scale[1];
        nn.trans_a = 0;
        list.push_back(nn);
    }
    const int sizes[][3] = {{1024, 2048, 1600}, {1024, 2048, 1608}, {1024, 2048, 1616}, {1024, 2048, 16}, {1024, 2048, 24}, {1600, 2048, 512}, {1608, 2048, 512}, {1604, 2048, 512},
                            {50257, 2048, 512}, {50304, 2048, 512}, {1024, 1608, 512}, {1024, 1604, 512}, {1024, 63, 512}, {1024, 1, 512}, {1024, 8, 512},
                            {1024, 16, 512}, {16, 16, 16}};
    for (auto& size : sizes) {
        for (int i = 0; i < 2; i++) {
            Probe p = i ? probe_new("size", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16) : probe_new("size", DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16);
            p.m = size[0]; p.n = size[1]; p.k = size[2];
            list.push_back(p);
        }
    }
    for (int i = 0; i < 13; i++) {
        Probe p = probe_new("other", DTYPE_E4M3, DTYPE_E4M3, i == 2 || i == 3 || i == 4 ? DTYPE_E4M3 : DTYPE_BF16);
        if (i == 0) { p.amax_d = true; }                                    // AMAX_D where D is BF16
        if (i == 1) { p.scale_d = true; }                                   // D_SCALE where D is BF16
        if (i == 2) { p.amax_d = true; }                                    // and where D is FP8
        if (i == 3) { p.c = DTYPE_E4M3; }                                   // accumulating into FP8: C has D's type
        if (i == 4) { p.epilogue = 6; p.amax_d = true; }
        if (i == 5) { p.batch = 4; }
        if (i == 6) { p.batch = 4; p.epilogue = 1; }
        if (i == 7) { p.align = 16; }
        if (i == 8) { p.align = 8; }
        if (i == 9) { p.c = DTYPE_F32; }
        if (i == 10) { p.a = p.b = DTYPE_BF16; p.c = p.d = DTYPE_F32; p.scale_a = p.scale_b = SCALE_NONE; p.trans_a = 0; p.trans_b = 1; }   // dwte of the head
        if (i == 11) { p.a = p.b = DTYPE_BF16; p.scale_a = p.scale_b = SCALE_NONE; p.batch = 12; p.align = 16; p.k = 64; p.d = p.c = DTYPE_F32; }  // attention scores
        if (i == 12) { p.a = p.b = DTYPE_BF16; p.scale_a = p.scale_b = SCALE_NONE; p.align = 2; p.k = 1601; p.m = 1023; }
        list.push_back(p);
    }
    return list;
}

static std::string probe_text(const Probe* p) {
    char text[256];
    snprintf(text, sizeof(text), "%-8s %c%c %-4s x %-4s, C %-4s -> %-4s  %-13s %11s x %-11s  m %5d, n %4d, k %4d%s", p->group, p->trans_a ? 'T' : 'N',
             p->trans_b ? 'T' : 'N', dtype_names[p->a], dtype_names[p->b], dtype_names[p->c], dtype_names[p->d], probe_epilogues[p->epilogue].name,
             probe_scale_names[p->scale_a], probe_scale_names[p->scale_b], p->m, p->n, p->k, p->fast ? ", fast" : "");
    std::string s = text;
    if (p->batch > 1) { s += ", batch " + std::to_string(p->batch); }
    if (p->align != 256) { s += ", aligned to " + std::to_string(p->align); }
    if (p->amax_d) { s += ", amax D"; }
    if (p->scale_d && !dtype_is_fp8((DType)p->d)) { s += ", scale D"; }
    return s;
}

// The header's value of a scale mode; -1: this toolkit has none.
static int probe_scale_value(int scale) {
    switch (scale) {
#if CUBLAS_VERSION >= 120800
        case SCALE_MX32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
#endif
#if CUBLAS_VERSION >= 120900
        case SCALE_OUTER: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        case SCALE_VEC128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        case SCALE_BLK128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
#endif
        case SCALE_NONE: case SCALE_SCALAR: return 0;
    }
    return -1;
}

typedef enum { PROBE_ACCEPTED, PROBE_REFUSED, PROBE_NOT_HERE } ProbeAnswer;  // not here: toolkit or CPU device lack it, which says nothing about a GPU
static const char* const probe_answer_names[] = {"accepted", "refused", "not here"};

// Asks the heuristic; nothing runs. *why: of a refusal, in words.
static ProbeAnswer probe_ask(Device* dev, const Probe* p, std::string* why) {
    cublasLtMatmulDesc_t op;
    const auto* e = &probe_epilogues[p->epilogue];
    const void* some = dev->workspace;  // any device address: scales, bias and auxiliary matrix must look present
    *why = "";
    if (probe_scale_value(p->scale_a) < 0 || probe_scale_value(p->scale_b) < 0) { *why = "this toolkit has no such scale mode"; return PROBE_NOT_HERE; }
    cublasCheck(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
        cublasStatus_t each = cublasLtMatmulDescSetAttribute(op, attribute, value, bytes);
        if (each != CUBLAS_STATUS_SUCCESS && status == CUBLAS_STATUS_SUCCESS) { status = each; *why = "attribute " + std::to_string((int)attribute) + " cannot be set"; }
    };
    cublasOperation_t op_a = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int8_t fast = (int8_t)p->fast;
    set(CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a));
    set(CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, &e->value, sizeof(e->value));
    if (fast) { set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)); }
    if (p->scale_a != SCALE_NONE) { set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &some, sizeof(some)); }
    if (p->scale_b != SCALE_NONE) { set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &some, sizeof(some)); }
    if (p->scale_d) { set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &some, sizeof(some)); }
    if (p->amax_d) { set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, &some, sizeof(some)); }
#if CUBLAS_VERSION >= 120800
    int32_t mode_a = probe_scale_value(p->scale_a), mode_b = probe_scale_value(p->scale_b);
    if (mode_a) { set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode_a, sizeof(mode_a)); }
    if (mode_b) { set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode_b, sizeof(mode_b)); }
#endif
    if (e->bias) {
        cudaDataType_t type = p->d == DTYPE_F32 && p->a == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &some, sizeof(some));
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
    }
    if (e->aux) {
        cudaDataType_t type = p->a == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
        int64_t ld = p->m;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &some, sizeof(some));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof(ld));
        if (dtype_is_fp8((DType)p->a)) { set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof(type)); }
    }
    const long long m = p->m, n = p->n, k = p->k;
    cublasLtMatrixLayout_t a = gemm_layout((DType)p->a, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, p->trans_a ? p->k : p->m, p->batch, m * k);
    cublasLtMatrixLayout_t b = gemm_layout((DType)p->b, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, p->trans_b ? p->n : p->k, p->batch, n * k);
    cublasLtMatrixLayout_t c = gemm_layout((DType)p->c, p->m, p->n, p->m, p->batch, m * n), d = gemm_layout((DType)p->d, p->m, p->n, p->m, p->batch, m * n);
    cublasLtMatmulPreference_t preference;
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &dev->workspace_bytes, sizeof(dev->workspace_bytes)));
    uint32_t align = p->align;
    for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, which, &align, sizeof(align)));
    }
    ProbeAnswer answer = PROBE_REFUSED;
    if (status == CUBLAS_STATUS_SUCCESS) {
        cublasLtMatmulHeuristicResult_t result;
        int returned = 0;
        status = cublasLtMatmulAlgoGetHeuristic(dev->lt, op, a, b, c, d, preference, 1, &result, &returned);
        if (status == CUBLAS_STATUS_SUCCESS && returned > 0) { answer = PROBE_ACCEPTED; }
        else { *why = "status " + std::to_string((int)status); }
#ifdef GPT_CPU_DEVICE
        if (answer == PROBE_REFUSED) {
            *why += std::string(", ") + cpu_cublaslt_last_reason();
            if (why->find(": the CPU device") != std::string::npos) { answer = PROBE_NOT_HERE; }
        }
#endif
    }
    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
    for (cublasLtMatrixLayout_t layout : {a, b, c, d}) { cublasCheck(cublasLtMatrixLayoutDestroy(layout)); }
    cublasCheck(cublasLtMatmulDescDestroy(op));
    return answer;
}

static void bench_probe(Device* dev, Json* j) {
    int counts[3] = {0, 0, 0};
    printf("probe: what cuBLASLt %zu accepts on %s, in its column-major terms (TN: A transposed). beta is no part of the question: C and its type are.\n",
           cublasLtGetVersion(), dev->props.name);
    json_open(j, "probe", '[');
    for (const Probe& p : probe_list()) {
        std::string why;
        ProbeAnswer answer = probe_ask(dev, &p, &why);
        counts[answer]++;
        printf("  %-8s  %s%s%s\n", probe_answer_names[answer], probe_text(&p).c_str(), why.empty() ? "" : "   # ", why.c_str());
        json_open(j, NULL, '{');
        json_string(j, "answer", probe_answer_names[answer]);
        json_string(j, "group", p.group);
        json_string(j, "layout", std::string(p.trans_a ? "T" : "N") + (p.trans_b ? "T" : "N"));
        json_string(j, "a", dtype_names[p.a]); json_string(j, "b", dtype_names[p.b]); json_string(j, "c", dtype_names[p.c]); json_string(j, "d", dtype_names[p.d]);
        json_string(j, "epilogue", probe_epilogues[p.epilogue].name);
        json_string(j, "scale_a", probe_scale_names[p.scale_a]); json_string(j, "scale_b", probe_scale_names[p.scale_b]);
        json_number(j, "m", p.m); json_number(j, "n", p.n); json_number(j, "k", p.k);
        json_bool(j, "fast_accumulation", p.fast); json_number(j, "batch", p.batch); json_number(j, "alignment", p.align);
        json_bool(j, "amax_d", p.amax_d); json_bool(j, "scale_d", p.scale_d);
        json_string(j, "why", why);
        json_close(j, '}');
    }
    json_close(j, ']');
    printf("  %d accepted, %d refused, %d not here\n\n", counts[PROBE_ACCEPTED], counts[PROBE_REFUSED], counts[PROBE_NOT_HERE]);
}

#endif
