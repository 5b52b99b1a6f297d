/* fp8_producers.cuh - kernels that write FP8 operands themselves: layernorm, GELU, their backward, AdamW
 *
 * What:      what would be written in BF16 and read again by fp8_quantize goes through the recipe's Sink at once, in both orders: 2 bytes an element of extra
 *            traffic instead of 6. Bit for bit the same codes, scales, amaxes and sums, since values are rounded to BF16 first (R1) by the same expressions.
 * When:      fp8_fuses: the scale is known before the tensor is (a history), or 128 x 128 elements hold whole blocks. Otherwise, and in the steps that count or
 *            measure noise, the BF16 tensor is written and quantized: the caller chooses.
 * Layernorm: its statistics come first, by a kernel that reads whole rows; the Sink works on patches of 128 x 128. Rows therefore go by in slabs that stay in
 *            the L2 cache between the two.
 * Shapes:    N rows, C columns, both multiples of 16; pointers 16-byte aligned. width: as in layernorm.cuh. Errors, memory: none.
 * Tests:     dev/test/test_fp8_producers.cu (each against the two separate kernels)
 */
#ifndef LLMC_FP8_PRODUCERS_CUH
#define LLMC_FP8_PRODUCERS_CUH

#include "llmc/adamw.cuh"
#include "llmc/fp8_quantize.cuh"
#include "llmc/gelu.cuh"
#include "llmc/layernorm.cuh"

#define FP8_SLAB_BYTES (16u << 20)  // of what a slab reads and writes: within the L2 cache of every GPU that has FP8

// Is this slot written in one pass, and in the format that the kernels here are compiled for? again: its scale was made in this step already (a recompute level).
static inline bool fp8_fuses(const Fp8Scaling* s, int slot, bool again) {
    const Fp8Granularity by = fp8_slot_granularity(s, slot);
    const bool e5m2 = by == FP8_BY_TENSOR && fp8_slot_role(s, slot) == FP8_ROLE_DY;
    if (by == FP8_BY_ROW || fp8_slot_format(s, slot) != (e5m2 ? FP8_E5M2 : FP8_E4M3)) { return false; }
    return again || (!fp8_needs_amax(s, slot) && !s->count_on && !s->noise_on);
}

// Rows first_row .. first_row + num_rows of a tensor, from a source, into the operand of p; first_row is a multiple of 128. F: the format of one scale a tensor.
template <Fp8Format F, class Source>
static inline void fp8_produce(const Fp8Scaling* s, int slot, const Fp8SinkParams& p, Source source, int first_row, int num_rows, float* bias_partial, cudaStream_t stream) {
    const dim3 grid = fp8_quantize_grid(num_rows, p.cols), block(FP8_SINK_THREADS);
    const int first = first_row / FP8_PATCH;
    switch (fp8_slot_granularity(s, slot)) {
    case FP8_BY_TENSOR: launch<fp8_quantize_kernel3<FP8_BY_TENSOR, F, false, Source>>(grid, block, 0, stream, source, bias_partial, p, first); break;
    case FP8_BY_VEC128: launch<fp8_quantize_kernel3<FP8_BY_VEC128, FP8_E4M3, false, Source>>(grid, block, 0, stream, source, bias_partial, p, first); break;
    default: launch<fp8_quantize_kernel3<FP8_BY_VEC32, FP8_E4M3, false, Source>>(grid, block, 0, stream, source, bias_partial, p, first);
    }
}
static inline int fp8_slab_rows(int row_bytes) { return max(FP8_PATCH, (int)(FP8_SLAB_BYTES / row_bytes) / FP8_PATCH * FP8_PATCH); }

// ----------------------------------------------------------------------------
// layernorm

struct Fp8LayernormSource {
    const bf16 *x, *weight, *bias;
    const float *mean, *rstd;
    int N, C;
    __device__ __forceinline__ void row(float v[FP8_TILE], int r, int c) const {
        if (r >= N) {  // rows that only fill up a product
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { v[i] = 0.0f; }
            return;
        }
        float w[FP8_TILE], b[FP8_TILE];
        const float m = mean[r], s = rstd[r];
        fp8_load_row(v, x + (size_t)r * C + c);
        fp8_load_row(w, weight + c);
        fp8_load_row(b, bias + c);
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { v[i] = layernorm_value<bf16>(v[i], m, s, w[i], b[i]); }
    }
};

// layernorm_forward, whose out (rows,C) becomes the operand of a slot; its rows from N on are 0. Enqueues only.
static inline void fp8_layernorm_forward(Fp8Scaling* s, int slot, Fp8Operand out, float* mean, float* rstd, bf16* residual, const bf16* inp, const bf16* branch, const bf16* weight,
                                         const bf16* bias, int N, int rows, int C, int width, cudaStream_t stream) {
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, rows, C, false);
    const int slab = fp8_slab_rows(3 * C * (int)sizeof(bf16));
    for (int first = 0; first < rows; first += slab) {
        const int n = min(slab, rows - first), real = min(n, N - first);
        const size_t at = (size_t)first * C;
        if (real > 0) {
            layernorm_forward((bf16*)NULL, mean + first, rstd + first, branch ? residual + at : residual, inp + at, branch ? branch + at : branch, weight, bias, real, C, width,
                              (unsigned*)NULL, stream);
        }
        fp8_produce<FP8_E4M3>(s, slot, p, Fp8LayernormSource{branch ? residual : inp, weight, bias, mean, rstd, N, C}, first, n, NULL, stream);
    }
}
// The same operand again, in the orders that out wants: x (N,C) is what was normalized, with the statistics of then. Enqueues only.
static inline void fp8_layernorm_again(Fp8Scaling* s, int slot, Fp8Operand out, const float* mean, const float* rstd, const bf16* x, const bf16* weight, const bf16* bias, int N, int C,
                                       cudaStream_t stream) {
    fp8_produce<FP8_E4M3>(s, slot, fp8_sink_params(s, slot, out, N, C, true), Fp8LayernormSource{x, weight, bias, mean, rstd, N, C}, 0, N, NULL, stream);
}

struct Fp8LayernormGradientSource {
    bf16* dresidual;
    const bf16 *dout, *x, *weight;
    const float *mean, *rstd;
    const float2* means;
    int C, width;
    bool accumulate;
    __device__ __forceinline__ void row(float v[FP8_TILE], int r, int c) const {
        float g[FP8_TILE], xx[FP8_TILE], w[FP8_TILE];
        const size_t at = (size_t)r * C + c;
        const float m = mean[r], s = rstd[r];
        const float2 both = means[r];
        fp8_load_row(g, dout + at);
        fp8_load_row(xx, x + at);
        fp8_load_row(w, weight + c);
        if (accumulate) { fp8_load_row(v, dresidual + at); }
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { v[i] = layernorm_gradient<bf16>(c + i < width, accumulate ? v[i] : 0.0f, g[i], xx[i], w[i], m, s, both.x, both.y); }
        store8(dresidual + at, v);
        store8(dresidual + at + 8, v + 8);
    }
};

// layernorm_backward, whose dresidual (N,C) also becomes the operand of a slot, an output gradient, with dbias (C) f32 += its column sums.
// partial: scratch of 2 * column_sum_partials(N, C) f32; means: scratch (N) float2. Enqueues only.
static inline void fp8_layernorm_backward(Fp8Scaling* s, int slot, Fp8Operand out, float* dbias, bf16* dresidual, float* dw, float* db, float* partial, float2* means, const bf16* dout,
                                          const bf16* x, const bf16* weight, const float* mean, const float* rstd, int N, int C, int width, bool accumulate,
                                          cudaStream_t stream) {
    layernorm_backward_params(dw, db, partial, dout, x, mean, rstd, N, C, stream);
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, N, C, false);
    const int slab = fp8_slab_rows(4 * C * (int)sizeof(bf16));
    for (int first = 0; first < N; first += slab) {
        const int n = min(slab, N - first);
        const size_t at = (size_t)first * C;
        layernorm_backward_sums(means + first, dout + at, x + at, weight, mean + first, rstd + first, n, C, width, stream);
        fp8_produce<FP8_E5M2>(s, slot, p, Fp8LayernormGradientSource{dresidual, dout, x, weight, mean, rstd, means, C, width, accumulate}, first, n, partial, stream);
    }
    column_sum(dbias, partial, N / FP8_TILE, C, stream);
}

// ----------------------------------------------------------------------------
// GELU

struct Fp8GeluSource {
    const bf16* h;
    int cols;
    __device__ __forceinline__ void row(float v[FP8_TILE], int r, int c) const {
        fp8_load_row(v, h + (size_t)r * cols + c);
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { v[i] = gelu_value<bf16>(v[i]); }
    }
};
struct Fp8GeluGradientSource {
    const bf16 *h, *dout;
    int cols;
    __device__ __forceinline__ void row(float v[FP8_TILE], int r, int c) const {
        float x[FP8_TILE];
        fp8_load_row(x, h + (size_t)r * cols + c);
        fp8_load_row(v, dout + (size_t)r * cols + c);
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { v[i] = gelu_gradient<bf16>(x[i], v[i]); }
    }
};

// gelu(h), h (rows,cols), as the operand of a slot. Enqueues only.
static inline void fp8_gelu_forward(Fp8Scaling* s, int slot, Fp8Operand out, const bf16* h, int rows, int cols, bool again, cudaStream_t stream) {
    fp8_produce<FP8_E4M3>(s, slot, fp8_sink_params(s, slot, out, rows, cols, again), Fp8GeluSource{h, cols}, 0, rows, NULL, stream);
}
// dout gelu'(h), all (rows,cols), as the operand of a slot, an output gradient; dbias (cols) f32 += its column sums.
// partial: scratch of column_sum_partials(rows, cols) f32. Enqueues only.
static inline void fp8_gelu_backward(Fp8Scaling* s, int slot, Fp8Operand out, float* dbias, float* partial, const bf16* h, const bf16* dout, int rows, int cols, cudaStream_t stream) {
    fp8_produce<FP8_E5M2>(s, slot, fp8_sink_params(s, slot, out, rows, cols, false), Fp8GeluGradientSource{h, dout, cols}, 0, rows, partial, stream);
    column_sum(dbias, partial, rows / FP8_TILE, cols, stream);
}

// ----------------------------------------------------------------------------
// AdamW

// One layer's part of a weight: moments, master and gradient as in adamw_kernel1.
template <MomentType M>
struct Fp8AdamWSource {
    bf16* param;
    float* master;
    const bf16* grad;
    Moments moments;
    size_t layer;
    uint64_t element;  // of the part's first in the whole tensor
    AdamWParams a;
    int cols;
    __device__ __forceinline__ void row(float v[FP8_TILE], int r, int c) const {
        #pragma unroll
        for (int half = 0; half < FP8_TILE; half += 8) {
            const size_t i = (size_t)r * cols + c + half;
            float *p = v + half, g[8], m[8], vv[8];
            if (master) { load8(p, master + i); } else { load8(p, param + i); }
            load8(g, grad + i);
            moments_load8<M>(m, vv, moments, layer, i);
            adamw_step8(p, m, vv, g, a);
            if (master) { store8(master + i, p); }
            #pragma unroll
            for (int e = 0; e < 8; e++) { p[e] = round_stochastic_bf16(p[e], noise_at(element + i + e, a.noise_key)); }
            store8(param + i, p);
            moments_store8<M>(moments, layer, i, true, m, vv, element + i, a.m_key, a.v_key);
        }
    }
};
// Eight-bit moments share an exponent among 128 elements in a row, which lie in several patches: they are updated first, and quantized then.
static inline bool fp8_adamw_fuses(const Fp8Scaling* s, int slot, MomentType type) { return type != MOMENT_F8 && fp8_fuses(s, slot, false); }

template <MomentType M>
static inline void fp8_adamw_launch(const Fp8Scaling* s, int slot, const Fp8SinkParams& p, const Fp8AdamWSource<M>& source, cudaStream_t stream) {
    const dim3 grid = fp8_quantize_grid(p.rows, p.cols), block(FP8_SINK_THREADS);
    switch (fp8_slot_granularity(s, slot)) {
    case FP8_BY_TENSOR: launch<fp8_quantize_kernel3<FP8_BY_TENSOR, FP8_E4M3, false, Fp8AdamWSource<M>>>(grid, block, 0, stream, source, (float*)NULL, p, 0); break;
    case FP8_BY_BLK128: launch<fp8_quantize_kernel3<FP8_BY_BLK128, FP8_E4M3, false, Fp8AdamWSource<M>>>(grid, block, 0, stream, source, (float*)NULL, p, 0); break;
    default: launch<fp8_quantize_kernel3<FP8_BY_VEC32, FP8_E4M3, false, Fp8AdamWSource<M>>>(grid, block, 0, stream, source, (float*)NULL, p, 0);
    }
}
// adamw_update_moments of one layer of a weight (rows,cols) that no other rank shares, and its FP8 operand, if fp8_adamw_fuses. param, grad, master (NULL: param is
// the master) begin at that layer; moments are of the whole tensor. Enqueues only.
static inline void fp8_adamw_update(Fp8Scaling* s, int slot, Fp8Operand out, bf16* param, float* master, MomentType type, Moments moments, const bf16* grad, int layer, int rows, int cols,
                                    AdamWParams a, cudaStream_t stream) {
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, rows, cols, false);
    const uint64_t element = (uint64_t)layer * rows * cols;
    if (type == MOMENT_F32) { fp8_adamw_launch(s, slot, p, Fp8AdamWSource<MOMENT_F32>{param, master, grad, moments, (size_t)layer, element, a, cols}, stream); }
    else { fp8_adamw_launch(s, slot, p, Fp8AdamWSource<MOMENT_BF16>{param, master, grad, moments, (size_t)layer, element, a, cols}, stream); }
}

#endif
