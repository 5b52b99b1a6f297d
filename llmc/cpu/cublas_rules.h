/* cublas_rules.h - what cublasLt.h refuses, why, and with which status: one table
 *
 * A row of CPU_LT_RULE_TABLE is: name, who refuses (LIBRARY: cuBLASLt itself; DEVICE: only this CPU device, the real library would run it), when
 * (PLAN: the heuristic and cublasLtMatmul; RUN: cublasLtMatmul alone, it needs pointers), status, the condition under which it is refused, the reason.
 * The first row whose condition holds wins; its name, reason and the product's sizes and types are what cpu_cublaslt_last_reason() returns.
 * Architectures: GPT_CPU_ARCH = 80, 89, 90, 100, 120; 0 plays none in particular: every scale mode of any of them, and the TN rule.
 * Sources: cuBLAS's documentation and header; where neither speaks, the stricter reading, so that what runs here does not fail on a GPU: N's divisor, FP8
 * batches with BIAS, FAST_ACCUM without FP8 or with scales of blocks of 128, the alignment of vectors of scales, AMAX_D without FP8 D, AUX_DATA_TYPE set though
 * it is D's. Included by cublasLt.h.
 * Tests: dev/test/test_cublaslt_rules.cu has a case for every row. */
#ifndef LLMC_CPU_CUBLAS_RULES_H
#define LLMC_CPU_CUBLAS_RULES_H

#ifndef LLMC_CPU_CUBLASLT_H
#error "include cublasLt.h, of which this is a part"
#endif

#define CPU_LT_WORKSPACE_BYTES ((size_t)1 << 20)  // what the one algorithm pretends to need; the real ones ask for 0 to 32 MiB

typedef struct { uint32_t a, b, c, d; int32_t bias; bool device_runs; } CpuLtTypes;
typedef struct {
    const cublasLtMatmulDescOpaque_t* op;
    const cublasLtMatrixLayoutOpaque_t *a, *b, *c, *d;
    const cublasLtMatmulPreferenceOpaque_t* preference;  // NULL in cublasLtMatmul
    int arch;
    bool fp8;                   // A or B is an 8-bit float
    int64_t m, n, k;            // of op(A) (m,k) and D (m,n)
    const CpuLtTypes* types;    // NULL: no such combination
    int32_t bias_type;          // as set, or the combination's
    // cublasLtMatmul only
    bool run;
    const void *A, *B, *C, *D;
    const void *alpha_at, *beta_at;
    float alpha, beta;
    const cublasLtMatmulAlgo_t* algo;
    const void* workspace;
    size_t workspace_bytes;
} CpuLtQuery;

// A, B, C, D, default bias (the only one that is taken), does the CPU device run it
static const CpuLtTypes cpu_lt_types[] = {
    {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, true},
    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, true},
    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, true},
    {CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, false},
    {CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, false},
#define CPU_LT_FP8_ROWS(A, B) \
    {A, B, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF, true}, {A, B, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_16BF, true}, {A, B, CUDA_R_32F, CUDA_R_32F, CUDA_R_16BF, true}, \
    {A, B, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, false}, {A, B, CUDA_R_16F, CUDA_R_8F_E4M3, CUDA_R_16F, false}
    CPU_LT_FP8_ROWS(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3),
    CPU_LT_FP8_ROWS(CUDA_R_8F_E4M3, CUDA_R_8F_E5M2),
    CPU_LT_FP8_ROWS(CUDA_R_8F_E5M2, CUDA_R_8F_E4M3),
#undef CPU_LT_FP8_ROWS
    {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF, CUDA_R_8F_E5M2, CUDA_R_16BF, true},
    {CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_8F_E5M2, CUDA_R_16BF, true},
    {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16F, CUDA_R_8F_E5M2, CUDA_R_16F, false},
    {CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16F, CUDA_R_8F_E5M2, CUDA_R_16F, false},
};

// ----------------------------------------------------------------------------
// the words of the table

static inline bool cpu_lt_is_fp8(uint32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
static inline int64_t cpu_lt_size(uint32_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F || type == CUDA_R_32I ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}
static inline bool cpu_lt_dims_ok(const cublasLtMatrixLayoutOpaque_t* l) { return l->rows >= 1 && l->cols >= 1 && l->rows <= INT32_MAX && l->cols <= INT32_MAX; }
static inline bool cpu_lt_ld_ok(const cublasLtMatrixLayoutOpaque_t* l) { return l->ld >= (int64_t)(l->order == CUBLASLT_ORDER_ROW ? l->cols : l->rows); }
static inline bool cpu_lt_ld_16(const cublasLtMatrixLayoutOpaque_t* l) { return l->ld * cpu_lt_size(l->type) % 16 == 0; }
static inline bool cpu_lt_batch_16(const cublasLtMatrixLayoutOpaque_t* l) { return l->batch_count == 1 || l->batch_offset * cpu_lt_size(l->type) % 16 == 0; }
static inline bool cpu_lt_op_ok(int32_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C; }
static inline bool cpu_lt_epilogue_ok(uint32_t e) {
    switch (e) {
        case CUBLASLT_EPILOGUE_DEFAULT: case CUBLASLT_EPILOGUE_RELU: case CUBLASLT_EPILOGUE_RELU_AUX: case CUBLASLT_EPILOGUE_BIAS: case CUBLASLT_EPILOGUE_RELU_BIAS:
        case CUBLASLT_EPILOGUE_RELU_AUX_BIAS: case CUBLASLT_EPILOGUE_DRELU: case CUBLASLT_EPILOGUE_DRELU_BGRAD: case CUBLASLT_EPILOGUE_GELU:
        case CUBLASLT_EPILOGUE_GELU_AUX: case CUBLASLT_EPILOGUE_GELU_BIAS: case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: case CUBLASLT_EPILOGUE_DGELU:
        case CUBLASLT_EPILOGUE_DGELU_BGRAD: case CUBLASLT_EPILOGUE_BGRADA: case CUBLASLT_EPILOGUE_BGRADB: return true;
    }
    return false;
}
static inline bool cpu_lt_mode(const CpuLtQuery* q, int32_t mode) { return q->op->a_scale_mode == mode || q->op->b_scale_mode == mode; }
static inline bool cpu_lt_scalar_modes(const CpuLtQuery* q) { return q->op->a_scale_mode == 0 && q->op->b_scale_mode == 0; }
static inline bool cpu_lt_block_modes(const CpuLtQuery* q) {
    return cpu_lt_mode(q, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) || cpu_lt_mode(q, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
}
static inline bool cpu_lt_mode_pair_ok(const CpuLtQuery* q) {
    const int32_t a = q->op->a_scale_mode, b = q->op->b_scale_mode;
    return a == b || (a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F && b == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) ||
           (a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && b == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
}
static inline bool cpu_lt_mx_mode(const CpuLtQuery* q) { return cpu_lt_mode(q, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0); }
static inline bool cpu_lt_scale_mode_ok(int32_t mode) { return mode >= 0 && mode < CUBLASLT_MATMUL_MATRIX_SCALE_END; }
static inline uint32_t cpu_lt_min_alignment(const CpuLtQuery* q) {
    const cublasLtMatmulPreferenceOpaque_t* p = q->preference;
    uint32_t x = p->align_a < p->align_b ? p->align_a : p->align_b, y = p->align_c < p->align_d ? p->align_c : p->align_d;
    return x < y ? x : y;
}
static inline size_t cpu_lt_workspace_needed(const CpuLtQuery* q) { (void)q; return CPU_LT_WORKSPACE_BYTES; }
// The alignment of matrix pointers that the offered algorithm relies on.
static inline uint64_t cpu_lt_alignment_needed(const CpuLtQuery* q) { return cpu_lt_min_alignment(q) < 16 ? cpu_lt_min_alignment(q) : 16; }

static inline bool cpu_lt_aligned(const void* p, uint64_t bytes) { return bytes <= 1 || (uintptr_t)p % bytes == 0; }
// All of `bytes` from p lie in one device allocation.
static inline bool cpu_lt_on_device(const void* p, int64_t bytes) {
    uintptr_t base;
    size_t size;
    return cpu_device_range(p, &base, &size) && (uintptr_t)p + (uint64_t)bytes <= base + size;
}
static inline bool cpu_lt_device_or_null(const void* p, int64_t bytes) { return !p || cpu_lt_on_device(p, bytes); }
// Where a scale begins; run_scale_beyond looks at its end.
static inline bool cpu_lt_scales_on_device(const cublasLtMatmulDescOpaque_t* op) {
    return cpu_lt_device_or_null(op->a_scale, 4) && cpu_lt_device_or_null(op->b_scale, 4) && cpu_lt_device_or_null(op->c_scale, 4) &&
           cpu_lt_device_or_null(op->d_scale, 4);
}
// How long the scales of a matrix with this outer size and contraction k are; the layouts are cpu_lt_scales' (cublasLt.h).
static inline int64_t cpu_lt_scale_bytes(int32_t mode, int64_t outer, int64_t k) {
    switch (mode) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return outer * 4;
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return (k + 127) / 128 * outer * 4;
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return (outer + 127) / 128 * ((k + 511) / 512 * 4) * 4;
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: return (outer + 127) / 128 * ((k + 127) / 128) * 512;
    }
    return 4;
}
static inline int64_t cpu_lt_bytes(const cublasLtMatrixLayoutOpaque_t* l) {
    const int64_t inner = (int64_t)(l->order == CUBLASLT_ORDER_ROW ? l->cols : l->rows), outer = (int64_t)(l->order == CUBLASLT_ORDER_ROW ? l->rows : l->cols);
    return ((outer - 1) * l->ld + inner + (l->batch_count - 1) * l->batch_offset) * cpu_lt_size(l->type);
}
static inline bool cpu_lt_matrix_on_device(const void* p, const cublasLtMatrixLayoutOpaque_t* l) { return cpu_lt_on_device(p, cpu_lt_bytes(l)); }
static inline bool cpu_lt_uses_bias(const CpuLtQuery* q) { return (q->op->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
static inline int64_t cpu_lt_bias_bytes(const CpuLtQuery* q) { return (q->m + (q->d->batch_count - 1) * q->op->bias_batch_stride) * cpu_lt_size(q->bias_type); }
// The auxiliary matrix of GELU: its input z, (m,n) in column order. The AUX_ epilogues write it, DGELU reads it.
static inline bool cpu_lt_has_aux(const CpuLtQuery* q) { return (q->op->epilogue & 128) != 0; }
static inline bool cpu_lt_gelu_aux(const CpuLtQuery* q) { return cpu_lt_has_aux(q) && (q->op->epilogue & (32 | 64)) != 0; }
static inline uint32_t cpu_lt_aux_type(const CpuLtQuery* q) { return q->op->aux_type == -1 ? q->d->type : (uint32_t)q->op->aux_type; }
static inline int64_t cpu_lt_aux_bytes(const CpuLtQuery* q) {
    return ((q->n - 1) * q->op->aux_ld + q->m + (q->d->batch_count - 1) * q->op->aux_batch_stride) * cpu_lt_size(cpu_lt_aux_type(q));
}
// The alignment of AUX_POINTER that an algorithm planned now will rely on.
static inline uint64_t cpu_lt_aux_alignment(const CpuLtQuery* q) {
    uint64_t bytes = cpu_lt_gelu_aux(q) ? 16 : 1;
    while (!cpu_lt_aligned(q->op->aux, bytes)) { bytes /= 2; }
    return bytes;
}
static inline bool cpu_lt_overlap(const void* x, int64_t x_bytes, const void* y, int64_t y_bytes) { return (const char*)x < (const char*)y + y_bytes && (const char*)y < (const char*)x + x_bytes; }
static inline bool cpu_lt_epilogue_runs(const CpuLtQuery* q) {
    const uint32_t e = q->op->epilogue;
    return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS || (!q->fp8 && (e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_DGELU));
}
static inline bool cpu_lt_same_layout(const cublasLtMatrixLayoutOpaque_t* x, const cublasLtMatrixLayoutOpaque_t* y) {
    return x->type == y->type && x->ld == y->ld && (x->batch_count == 1 || x->batch_offset == y->batch_offset);
}

// ----------------------------------------------------------------------------
// the table

#define CPU_LT_RULE_TABLE(X) \
    /* descriptors that contradict themselves or each other */ \
    X(layout_order, DEVICE, PLAN, NOT_SUPPORTED, q->a->order < 0 || q->a->order > 1 || q->b->order < 0 || q->b->order > 1 || q->d->order < 0 || q->d->order > 1, \
      "the CPU device runs column and row order only") \
    X(layout_dims, LIBRARY, PLAN, INVALID_VALUE, !cpu_lt_dims_ok(q->a) || !cpu_lt_dims_ok(q->b) || !cpu_lt_dims_ok(q->c) || !cpu_lt_dims_ok(q->d), \
      "a matrix without rows or columns") \
    X(layout_ld, LIBRARY, PLAN, INVALID_VALUE, !cpu_lt_ld_ok(q->a) || !cpu_lt_ld_ok(q->b) || !cpu_lt_ld_ok(q->c) || !cpu_lt_ld_ok(q->d), \
      "a leading dimension is shorter than the column (row order: row) that it has to hold") \
    X(layout_batch, LIBRARY, PLAN, INVALID_VALUE, q->d->batch_count < 1 || q->a->batch_count != q->d->batch_count || q->b->batch_count != q->d->batch_count || \
      q->c->batch_count != q->d->batch_count, "the batch counts of A, B, C and D differ or are not positive") \
    X(layout_batch_mode, DEVICE, PLAN, NOT_SUPPORTED, q->a->batch_mode || q->b->batch_mode || q->c->batch_mode || q->d->batch_mode, \
      "the CPU device runs strided batches only, not pointer arrays") \
    X(layout_planes, DEVICE, PLAN, NOT_SUPPORTED, q->a->plane_offset || q->b->plane_offset || q->c->plane_offset || q->d->plane_offset, \
      "the CPU device has no complex numbers in planes") \
    X(op_trans, LIBRARY, PLAN, INVALID_VALUE, !cpu_lt_op_ok(q->op->trans_a) || !cpu_lt_op_ok(q->op->trans_b), "TRANSA or TRANSB is not an operation") \
    X(op_trans_c, LIBRARY, PLAN, NOT_SUPPORTED, q->op->trans_c != CUBLAS_OP_N, "C cannot be transposed") \
    X(op_fill_mode, LIBRARY, PLAN, NOT_SUPPORTED, q->op->fill_mode != CUBLAS_FILL_MODE_FULL, "only full matrices, no triangles") \
    X(op_epilogue, LIBRARY, PLAN, INVALID_VALUE, !cpu_lt_epilogue_ok(q->op->epilogue), "EPILOGUE is not a value of cublasLtEpilogue_t") \
    X(op_pointer_mode, LIBRARY, PLAN, INVALID_VALUE, q->op->pointer_mode < 0 || q->op->pointer_mode > 4, "POINTER_MODE is not a value of cublasLtPointerMode_t") \
    X(op_scale_mode, LIBRARY, PLAN, INVALID_VALUE, !cpu_lt_scale_mode_ok(q->op->a_scale_mode) || !cpu_lt_scale_mode_ok(q->op->b_scale_mode) || \
      !cpu_lt_scale_mode_ok(q->op->c_scale_mode) || !cpu_lt_scale_mode_ok(q->op->d_scale_mode), "a scale mode is not a value of cublasLtMatmulMatrixScale_t") \
    X(shape_inner, LIBRARY, PLAN, INVALID_VALUE, q->k != (int64_t)(q->op->trans_b == CUBLAS_OP_N ? q->b->rows : q->b->cols), \
      "op(A) has not as many columns as op(B) has rows") \
    X(shape_outer, LIBRARY, PLAN, INVALID_VALUE, q->m != (int64_t)q->d->rows || q->n != (int64_t)(q->op->trans_b == CUBLAS_OP_N ? q->b->cols : q->b->rows), \
      "D is not rows of op(A) by columns of op(B)") \
    X(shape_c, LIBRARY, PLAN, INVALID_VALUE, q->c->rows != q->d->rows || q->c->cols != q->d->cols || q->c->order != q->d->order, "C has not the shape and order of D") \
    /* types */ \
    X(fp8_arch, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->arch && q->arch < 89, "FP8 matrices need compute capability 8.9 or newer") \
    X(fp8_e5m2_pair, LIBRARY, PLAN, NOT_SUPPORTED, q->a->type == CUDA_R_8F_E5M2 && q->b->type == CUDA_R_8F_E5M2, "E5M2 x E5M2 does not exist: one of A and B must be E4M3") \
    X(fp8_compute, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->op->compute_type != CUBLAS_COMPUTE_32F, "FP8 needs compute type CUBLAS_COMPUTE_32F") \
    X(compute_type, LIBRARY, PLAN, NOT_SUPPORTED, q->op->compute_type != CUBLAS_COMPUTE_32F && q->op->compute_type != CUBLAS_COMPUTE_32F_PEDANTIC && \
      !(q->a->type == CUDA_R_32F && (q->op->compute_type == CUBLAS_COMPUTE_32F_FAST_TF32 || q->op->compute_type == CUBLAS_COMPUTE_32F_FAST_16BF)), \
      "the compute type must be CUBLAS_COMPUTE_32F (or pedantic; fast TF32 and fast BF16 for FP32 matrices)") \
    X(scale_type, LIBRARY, PLAN, NOT_SUPPORTED, q->op->scale_type != CUDA_R_32F, "the scale type must be CUDA_R_32F") \
    X(types, LIBRARY, PLAN, NOT_SUPPORTED, !q->types, "no such combination of types of A, B, C and D") \
    X(types_run, DEVICE, PLAN, NOT_SUPPORTED, !q->types->device_runs, "the CPU device does not run FP16") \
    X(bias_type, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_uses_bias(q) && q->bias_type != q->types->bias, \
      "the bias must have D's type, or BF16 where A and B are FP8 and D is FP32, BF16 or FP8 over a BF16 C") \
    /* FP8: layout, sizes, strides */ \
    X(fp8_order, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && (q->a->order || q->b->order || q->d->order), "FP8 needs column order") \
    X(fp8_tn, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->arch != 100 && (q->op->trans_a == CUBLAS_OP_N || q->op->trans_b != CUBLAS_OP_N), \
      "FP8 needs A transposed and B not (TN) on every architecture but 10.x") \
    X(fp8_k, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->k % 16 != 0, "FP8 needs K to be a multiple of 16") \
    X(fp8_m, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->m % 16 != 0, "FP8 needs M to be a multiple of 16") \
    X(fp8_n, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->n * cpu_lt_size(q->d->type) % 16 != 0, "FP8 needs N to be a multiple of 16 bytes of D (8 for BF16, 4 for FP32, 16 for FP8)") \
    X(fp8_ld, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && (!cpu_lt_ld_16(q->a) || !cpu_lt_ld_16(q->b) || !cpu_lt_ld_16(q->c) || !cpu_lt_ld_16(q->d)), \
      "FP8 needs every leading dimension to be a multiple of 16 bytes") \
    X(fp8_batch_stride, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && (!cpu_lt_batch_16(q->a) || !cpu_lt_batch_16(q->b) || !cpu_lt_batch_16(q->c) || !cpu_lt_batch_16(q->d)), \
      "FP8 needs every batch offset to be a multiple of 16 bytes") \
    /* scales. VEC128_32F and BLK128x128_32F also need M and N to be multiples of 4: fp8_m and fp8_n have seen to that */ \
    X(scale_ab, LIBRARY, PLAN, INVALID_VALUE, (q->op->a_scale && !cpu_lt_is_fp8(q->a->type)) || (q->op->b_scale && !cpu_lt_is_fp8(q->b->type)), \
      "A_SCALE_POINTER and B_SCALE_POINTER are for FP8 matrices") \
    X(scale_c, LIBRARY, PLAN, INVALID_VALUE, q->op->c_scale && !q->fp8, "C_SCALE_POINTER is for products of FP8 matrices") \
    X(scale_d, LIBRARY, PLAN, INVALID_VALUE, q->op->d_scale && !cpu_lt_is_fp8(q->d->type), "D_SCALE_POINTER needs an FP8 D") \
    X(amax_d, LIBRARY, PLAN, INVALID_VALUE, q->op->amax_d && !cpu_lt_is_fp8(q->d->type), "AMAX_D_POINTER needs an FP8 D") \
    X(scale_aux, LIBRARY, PLAN, INVALID_VALUE, (q->op->aux_scale || q->op->aux_amax) && !(cpu_lt_has_aux(q) && cpu_lt_is_fp8(cpu_lt_aux_type(q))), \
      "EPILOGUE_AUX_SCALE_POINTER and EPILOGUE_AUX_AMAX_POINTER need an epilogue with an auxiliary matrix of an FP8 type") \
    X(mode_fp8, LIBRARY, PLAN, NOT_SUPPORTED, !cpu_lt_scalar_modes(q) && !(cpu_lt_is_fp8(q->a->type) && cpu_lt_is_fp8(q->b->type)), \
      "vector and block scale modes need FP8 (or FP4) matrices") \
    X(mode_vec16, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_mode(q, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3), "VEC16_UE4M3 scales are for FP4 matrices, not FP8") \
    X(mode_outer_arch, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_mode(q, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) && q->arch && q->arch != 90, \
      "OUTER_VEC_32F scales exist on compute capability 9.0 only") \
    X(mode_block_arch, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_block_modes(q) && q->arch && q->arch != 90, "VEC128_32F and BLK128x128_32F scales exist on compute capability 9.0 only") \
    X(mode_mx_arch, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_mx_mode(q) && q->arch && q->arch < 100, \
      "VEC32_UE8M0 scales need compute capability 10.0 or newer") \
    X(mode_blk_blk, LIBRARY, PLAN, NOT_SUPPORTED, q->op->a_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && \
      q->op->b_scale_mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, "BLK128x128_32F x BLK128x128_32F does not exist: one side must be VEC128_32F") \
    X(mode_pair, LIBRARY, PLAN, NOT_SUPPORTED, !cpu_lt_mode_pair_ok(q), "the scale modes of A and B do not go together") \
    X(mode_c_d, LIBRARY, PLAN, NOT_SUPPORTED, q->op->c_scale_mode || q->op->d_scale_mode, "C and D are scaled by scalars only") \
    X(mode_d_fp8, LIBRARY, PLAN, NOT_SUPPORTED, (cpu_lt_block_modes(q) || cpu_lt_mode(q, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)) && cpu_lt_is_fp8(q->d->type), \
      "an FP8 D cannot be made with OUTER_VEC_32F, VEC128_32F or BLK128x128_32F scales") \
    X(mode_pointer, LIBRARY, PLAN, INVALID_VALUE, !cpu_lt_scalar_modes(q) && (!q->op->a_scale || !q->op->b_scale), "vector and block scale modes need A_SCALE_POINTER and B_SCALE_POINTER") \
    X(mode_block_fast, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_block_modes(q) && q->op->fast_accum, "VEC128_32F and BLK128x128_32F scales promote every 128 of K: there is no FAST_ACCUM") \
    X(mode_mx_d, DEVICE, PLAN, NOT_SUPPORTED, cpu_lt_mx_mode(q) && cpu_lt_is_fp8(q->d->type), "the CPU device makes no FP8 D with VEC32_UE8M0 scales") \
    X(mode_batch, DEVICE, PLAN, NOT_SUPPORTED, !cpu_lt_scalar_modes(q) && q->d->batch_count > 1, "the CPU device runs no batches with vector and block scales") \
    X(mode_d_out, DEVICE, PLAN, NOT_SUPPORTED, q->op->d_out_scale || q->op->d_out_scale_mode, "the CPU device does not make scales of D (D_OUT_SCALE)") \
    X(fast_accum, LIBRARY, PLAN, NOT_SUPPORTED, q->op->fast_accum && !q->fp8, "FAST_ACCUM is for FP8 matrices") \
    /* epilogues */ \
    X(epilogue_fp8, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && (q->op->epilogue & (CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)), "BGRADA and BGRADB do not work on FP8 matrices") \
    X(epilogue_block, LIBRARY, PLAN, NOT_SUPPORTED, cpu_lt_block_modes(q) && q->op->epilogue != CUBLASLT_EPILOGUE_DEFAULT && q->op->epilogue != CUBLASLT_EPILOGUE_BIAS && \
      q->op->epilogue != CUBLASLT_EPILOGUE_DGELU, "block scales go with the epilogues DEFAULT, BIAS and DGELU only") \
    X(epilogue_batch, LIBRARY, PLAN, NOT_SUPPORTED, q->fp8 && q->d->batch_count > 1 && q->op->epilogue != CUBLASLT_EPILOGUE_DEFAULT, "batches of FP8 products have no epilogue") \
    X(aux_type, LIBRARY, PLAN, INVALID_VALUE, cpu_lt_gelu_aux(q) && q->op->aux_type != -1 && q->d->type != CUDA_R_8F_E4M3, \
      "EPILOGUE_AUX_DATA_TYPE must be left unset (-1: D's type) unless D is E4M3") \
    X(aux_ld, LIBRARY, PLAN, INVALID_VALUE, cpu_lt_gelu_aux(q) && (q->op->aux_ld < q->m || q->op->aux_ld % 8 != 0), \
      "EPILOGUE_AUX_LD of a GELU input must be set, at least the rows of D, and a multiple of 8") \
    X(aux_batch_stride, LIBRARY, PLAN, INVALID_VALUE, cpu_lt_gelu_aux(q) && q->d->batch_count > 1 && (q->op->aux_batch_stride % 8 != 0 || q->op->aux_batch_stride < 0), \
      "EPILOGUE_AUX_BATCH_STRIDE of a GELU input must be a multiple of 8") \
    X(epilogue_run, DEVICE, PLAN, NOT_SUPPORTED, !cpu_lt_epilogue_runs(q), \
      "the CPU device runs the epilogues DEFAULT and BIAS, and GELU_AUX_BIAS and DGELU for FP32 and BF16 matrices") \
    X(aux_order, DEVICE, PLAN, NOT_SUPPORTED, cpu_lt_has_aux(q) && q->d->order != CUBLASLT_ORDER_COL, "the CPU device runs GELU_AUX_BIAS and DGELU in column order only") \
    X(pointer_mode_run, DEVICE, PLAN, NOT_SUPPORTED, q->op->pointer_mode > CUBLASLT_POINTER_MODE_DEVICE, "the CPU device takes alpha and beta as single values only") \
    /* the preference */ \
    X(pref_search, DEVICE, PLAN, NOT_SUPPORTED, q->preference && q->preference->search_mode != CUBLASLT_SEARCH_BEST_FIT, "the CPU device has the search mode BEST_FIT only") \
    X(pref_alignment, LIBRARY, PLAN, NOT_SUPPORTED, q->preference && q->fp8 && cpu_lt_min_alignment(q) < 16, "FP8 needs pointers aligned to 16 bytes: the preference's MIN_ALIGNMENT is less") \
    X(pref_workspace, LIBRARY, PLAN, NOT_SUPPORTED, q->preference && q->preference->max_workspace < cpu_lt_workspace_needed(q), \
      "no algorithm works within PREF_MAX_WORKSPACE_BYTES (default 0): allow at least 1 MiB, 32 MiB on a Hopper GPU") \
    /* cublasLtMatmul: pointers */ \
    X(run_null, LIBRARY, RUN, INVALID_VALUE, !q->A || !q->B || !q->D || (!q->C && q->beta != 0.0f), "a matrix pointer is NULL") \
    X(run_host, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_on_device(q->A, 1) || !cpu_lt_on_device(q->B, 1) || !cpu_lt_on_device(q->D, 1) || (q->beta != 0.0f && !cpu_lt_on_device(q->C, 1)), \
      "a matrix is not in device memory, or has been freed") \
    X(run_beyond, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_matrix_on_device(q->A, q->a) || !cpu_lt_matrix_on_device(q->B, q->b) || !cpu_lt_matrix_on_device(q->D, q->d) || \
      (q->beta != 0.0f && !cpu_lt_matrix_on_device(q->C, q->c)), "a matrix reaches beyond its device allocation") \
    X(run_alpha_beta, LIBRARY, RUN, INVALID_VALUE, cpu_lt_on_device(q->alpha_at, 4) != (q->op->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) || \
      cpu_lt_on_device(q->beta_at, 4) != (q->op->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE), "alpha and beta do not lie where POINTER_MODE says (host or device memory)") \
    X(run_fp8_align, LIBRARY, RUN, INVALID_VALUE, q->fp8 && (!cpu_lt_aligned(q->A, 16) || !cpu_lt_aligned(q->B, 16) || !cpu_lt_aligned(q->C, 16) || !cpu_lt_aligned(q->D, 16)), \
      "FP8 needs every matrix pointer aligned to 16 bytes") \
    X(run_algo, LIBRARY, RUN, INVALID_VALUE, q->algo && q->algo->data[0] != CPU_LT_ALGO_MAGIC, "the algorithm is not from cublasLtMatmulAlgoGetHeuristic") \
    X(run_algo_align, LIBRARY, RUN, INVALID_VALUE, q->algo && (!cpu_lt_aligned(q->A, q->algo->data[2]) || !cpu_lt_aligned(q->B, q->algo->data[2]) || \
      !cpu_lt_aligned(q->D, q->algo->data[2]) || (q->beta != 0.0f && !cpu_lt_aligned(q->C, q->algo->data[2]))), \
      "a matrix pointer is less aligned than the algorithm relies on: set PREF_MIN_ALIGNMENT_x_BYTES from the real pointers") \
    X(run_beta_fp8_d, LIBRARY, RUN, NOT_SUPPORTED, q->beta != 0.0f && cpu_lt_is_fp8(q->d->type), "beta must be 0 where D is FP8") \
    X(run_in_place, LIBRARY, RUN, INVALID_VALUE, q->beta != 0.0f && q->C == q->D && !cpu_lt_same_layout(q->c, q->d), "C is D in place, but their layouts or types differ") \
    X(run_scale_host, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_scales_on_device(q->op), "a scale pointer is not device memory") \
    X(run_scale_beyond, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_device_or_null(q->op->a_scale, cpu_lt_scale_bytes(q->op->a_scale_mode, q->m, q->k)) || \
      !cpu_lt_device_or_null(q->op->b_scale, cpu_lt_scale_bytes(q->op->b_scale_mode, q->n, q->k)), "the scales of A or B reach beyond their device allocation: their mode and the sizes need more") \
    X(run_scale_align, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_scalar_modes(q) && (!cpu_lt_aligned(q->op->a_scale, 16) || !cpu_lt_aligned(q->op->b_scale, 16)), \
      "vectors and blocks of scales must be aligned to 16 bytes") \
    X(run_amax_host, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_device_or_null(q->op->amax_d, 4), "AMAX_D_POINTER is not device memory") \
    X(run_bias_null, LIBRARY, RUN, INVALID_VALUE, cpu_lt_uses_bias(q) && !q->op->bias, "the epilogue BIAS needs BIAS_POINTER") \
    X(run_bias_host, LIBRARY, RUN, INVALID_VALUE, cpu_lt_uses_bias(q) && !cpu_lt_on_device(q->op->bias, cpu_lt_bias_bytes(q)), "the bias is not in device memory, or shorter than M") \
    X(run_aux_null, LIBRARY, RUN, INVALID_VALUE, cpu_lt_has_aux(q) && !q->op->aux, "the epilogue needs EPILOGUE_AUX_POINTER") \
    X(run_aux_host, LIBRARY, RUN, INVALID_VALUE, cpu_lt_has_aux(q) && !cpu_lt_on_device(q->op->aux, cpu_lt_aux_bytes(q)), \
      "the auxiliary matrix is not in device memory, or reaches beyond its allocation") \
    X(run_aux_align, LIBRARY, RUN, INVALID_VALUE, cpu_lt_has_aux(q) && q->algo && !cpu_lt_aligned(q->op->aux, q->algo->data[3]), \
      "EPILOGUE_AUX_POINTER is less aligned than the one that the heuristic saw, on which the algorithm relies") \
    X(run_aux_overlap, DEVICE, RUN, INVALID_VALUE, cpu_lt_has_aux(q) && cpu_lt_overlap(q->op->aux, cpu_lt_aux_bytes(q), q->D, cpu_lt_bytes(q->d)), \
      "the auxiliary matrix overlaps D: a GPU would give an undefined result") \
    X(run_workspace_small, LIBRARY, RUN, INVALID_VALUE, q->workspace_bytes < (q->algo ? q->algo->data[1] : cpu_lt_workspace_needed(q)), "the workspace is smaller than the algorithm needs") \
    X(run_workspace_host, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_on_device(q->workspace, (int64_t)q->workspace_bytes), "the workspace is not in device memory, or is not that long") \
    X(run_workspace_align, LIBRARY, RUN, INVALID_VALUE, !cpu_lt_aligned(q->workspace, 256), "the workspace must be aligned to 256 bytes")

enum {
#define CPU_LT_RULE_ENUM(name, who, when, status, condition, reason) CPU_LT_RULE_##name,
    CPU_LT_RULE_TABLE(CPU_LT_RULE_ENUM)
#undef CPU_LT_RULE_ENUM
    CPU_LT_RULE_COUNT
};

// ----------------------------------------------------------------------------
// reasons

inline char* cpu_lt_reason(void) {
    static thread_local char reason[1024] = "";
    return reason;
}
// Why the last call of this thread that was refused was refused: "rule: reason (the product)". "" before the first refusal.
static inline const char* cpu_cublaslt_last_reason(void) { return cpu_lt_reason(); }

static inline cublasStatus_t cpu_lt_refuse(cublasStatus_t status, const char* rule, const char* why) {
    snprintf(cpu_lt_reason(), 1024, "%s: %s", rule, why);
    return status;
}
static inline const char* cpu_lt_type_name(uint32_t type) {
    switch (type) {
        case CUDA_R_32F: return "FP32";
        case CUDA_R_16BF: return "BF16";
        case CUDA_R_16F: return "FP16";
        case CUDA_R_8F_E4M3: return "E4M3";
        case CUDA_R_8F_E5M2: return "E5M2";
    }
    return "another type";
}
static inline cublasStatus_t cpu_lt_refuse_query(const CpuLtQuery* q, cublasStatus_t status, const char* rule, const char* why) {
    char arch[64] = "no GPU in particular";
    if (q->arch) { snprintf(arch, sizeof(arch), "compute capability %d.%d", q->arch / 10, q->arch % 10); }
    const int used = snprintf(cpu_lt_reason(), 1024, "%s: %s (m %lld n %lld k %lld batch %d; ", rule, why, (long long)q->m, (long long)q->n, (long long)q->k, q->d->batch_count);
    snprintf(cpu_lt_reason() + used, 1024 - used, "A %s %c ld %lld, B %s %c ld %lld, C %s ld %lld, D %s ld %lld; epilogue %u; %s)",
             cpu_lt_type_name(q->a->type), q->op->trans_a == CUBLAS_OP_N ? 'N' : 'T', (long long)q->a->ld,
             cpu_lt_type_name(q->b->type), q->op->trans_b == CUBLAS_OP_N ? 'N' : 'T', (long long)q->b->ld,
             cpu_lt_type_name(q->c->type), (long long)q->c->ld, cpu_lt_type_name(q->d->type), (long long)q->d->ld, q->op->epilogue, arch);
    return status;
}

static inline CpuLtQuery cpu_lt_query(const cublasLtMatmulDescOpaque_t* op, const cublasLtMatrixLayoutOpaque_t* a, const cublasLtMatrixLayoutOpaque_t* b,
                                      const cublasLtMatrixLayoutOpaque_t* c, const cublasLtMatrixLayoutOpaque_t* d) {
    CpuLtQuery q = {};
    q.op = op;
    q.a = a;
    q.b = b;
    q.c = c;
    q.d = d;
    q.arch = (int)cpu_modes()->arch;
    q.fp8 = cpu_lt_is_fp8(a->type) || cpu_lt_is_fp8(b->type);
    q.m = (int64_t)(op->trans_a == CUBLAS_OP_N ? a->rows : a->cols);
    q.k = (int64_t)(op->trans_a == CUBLAS_OP_N ? a->cols : a->rows);
    q.n = (int64_t)d->cols;
    for (size_t i = 0; i < sizeof(cpu_lt_types) / sizeof(cpu_lt_types[0]); i++) {
        const CpuLtTypes* t = &cpu_lt_types[i];
        if (t->a == a->type && t->b == b->type && t->c == c->type && t->d == d->type) { q.types = t; }
    }
    q.bias_type = op->bias_type != -1 ? op->bias_type : q.types ? q.types->bias : -1;
    return q;
}

// The first rule that the product breaks, as a status; SUCCESS if none.
static inline cublasStatus_t cpu_lt_check(const CpuLtQuery* q) {
    enum { PLAN = 0, RUN = 1 };
#define CPU_LT_RULE_CHECK(name, who, when, status, condition, reason) \
    if ((when == PLAN || q->run) && (condition)) { return cpu_lt_refuse_query(q, CUBLAS_STATUS_##status, #name, reason); }
    CPU_LT_RULE_TABLE(CPU_LT_RULE_CHECK)
#undef CPU_LT_RULE_CHECK
    return CUBLAS_STATUS_SUCCESS;
}

#endif
