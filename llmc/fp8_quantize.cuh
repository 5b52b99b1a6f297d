/* fp8_quantize.cuh - BF16 tensor -> FP8 operand in both orders, with the bias gradient on the way; quantization noise
 *
 * What:      reads x (rows,cols) bf16; writes k (rows,cols) and t (cols,rows) codes and their scales through the recipe's Sink, the slot's amax, and (for
 *            output gradients) the 16-row partial sums of column_sum.cuh. Bytes an element: 2 read, 1 + 1 written. One scale a row: x is read a second
 *            time, before, for the amaxes.
 * Shapes:    rows % 16 == 0, cols % 16 == 0, all pointers 16-byte aligned. Blocks of 128 and of 32 may be partial.
 * Design:    a block of 64 threads has 128 x 128 elements, a thread 16 x 16 of them in registers (fp8_recipe.cuh).
 * Noise:     fp8_measure_noise reads x and the codes again and adds x^2 and (x - dequantized)^2 in double: for the steps of a report only.
 *            Deterministic: sums of a thread, of a block, then of the blocks, all in an order that follows from the shape.
 * Memory:    allocates nothing.
 * Tests:     dev/test/test_kernels_fp8.cu, test_fp8_recipes.cu (codes, scales and both orders bit for bit)
 */
#ifndef LLMC_FP8_QUANTIZE_CUH
#define LLMC_FP8_QUANTIZE_CUH

#include "llmc/amax.cuh"
#include "llmc/column_sum.cuh"
#include "llmc/fp8_scaling.h"

static_assert(FP8_TILE == COLUMN_SUM_ROWS, "a register tile gives one partial row of the bias gradient");

static inline dim3 fp8_quantize_grid(int rows, int cols) { return dim3(CEIL_DIV(rows, FP8_PATCH), CEIL_DIV(cols, FP8_PATCH)); }
static inline size_t fp8_quantize_blocks(int rows, int cols) { return (size_t)CEIL_DIV(rows, FP8_PATCH) * CEIL_DIV(cols, FP8_PATCH); }

static __device__ __forceinline__ void fp8_load_row(float x[FP8_TILE], const bf16* row) {
    load8(x, row);
    load8(x + 8, row + 8);
}

// A source is what a tensor's values are made from: row(v, r, c) gives columns c .. c + 15 of row r, values that BF16 holds, once for each r and c. This one
// reads them; those of fp8_producers.cuh compute them.
struct Fp8TensorSource {
    const bf16* x;
    int cols;
    __device__ __forceinline__ void row(float v[FP8_TILE], int r, int c) const { fp8_load_row(v, x + (size_t)r * cols + c); }
};

// Patches of 128 rows from first_block on.
template <Fp8Granularity BY, Fp8Format F, bool COUNT, class Source>
static __global__ void __launch_bounds__(FP8_SINK_THREADS) fp8_quantize_kernel3(Source source, float* bias_partial, Fp8SinkParams p, int first_block) {
    Sink<BY, F, COUNT> sink;
    sink.begin(p, first_block + blockIdx.x, blockIdx.y);
    if (sink.inside) {
        float sum[FP8_TILE];
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { sum[i] = 0.0f; }
        #pragma unroll fp8_sink_unroll<BY>
        for (int r = 0; r < FP8_TILE; r++) {
            float v[FP8_TILE];
            source.row(v, sink.row0 + r, sink.col0);
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { sum[i] += v[i]; }
            sink.put_row(r, v);
        }
        if (bias_partial) {
            float* partial = bias_partial + (size_t)(sink.row0 / FP8_TILE) * p.cols + sink.col0;
            store8(partial, sum);
            store8(partial + 8, sum + 8);
        }
    }
    sink.finish();
}

// ----------------------------------------------------------------------------
// one scale an outer row: amaxes before, descales after

// row_amax (rows), column_amax (cols) = max with those of x; either may be NULL.
static __global__ void __launch_bounds__(FP8_SINK_THREADS) fp8_outer_amax_kernel1(unsigned* row_amax, unsigned* column_amax, const bf16* x, int rows, int cols) {
    SHARED(unsigned, edges, FP8_EDGES);
    const int row0 = blockIdx.x * FP8_PATCH + threadIdx.x % 8 * FP8_TILE, col0 = blockIdx.y * FP8_PATCH + threadIdx.x / 8 * FP8_TILE;
    const bool inside = row0 < rows && col0 < cols;
    unsigned most[FP8_TILE];
    #pragma unroll
    for (int i = 0; i < FP8_TILE; i++) { most[i] = 0; }
    #pragma unroll
    for (int r = 0; r < FP8_TILE; r++) {
        float v[FP8_TILE];
        unsigned m = 0;
        if (inside) {
            fp8_load_row(v, x + (size_t)(row0 + r) * cols + col0);
            m = fp8_row_amax(v);
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { most[i] = max(most[i], abs_bits(v[i])); }
        }
        edges[threadIdx.x * FP8_EDGE + r] = m;
    }
    #pragma unroll
    for (int i = 0; i < FP8_TILE; i++) { edges[(FP8_SINK_THREADS + threadIdx.x) * FP8_EDGE + i] = most[i]; }
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < 4; n++) {
        unsigned* out = n < 2 ? row_amax : column_amax;
        const int at = (n < 2 ? blockIdx.x : blockIdx.y) * FP8_PATCH + n % 2 * FP8_SINK_THREADS + threadIdx.x;
        if (!out || at >= (n < 2 ? rows : cols)) { continue; }
        unsigned amax[8];
        fp8_edge_amaxes(amax, edges, n * FP8_SINK_THREADS + threadIdx.x);
        #pragma unroll
        for (int j = 1; j < 8; j++) { amax[0] = max(amax[0], amax[j]); }
        if (amax[0]) { atomicMax(out + at, amax[0]); }
    }
}
// amax bits -> descales, in place; rows or cols 0: not wanted. block 128
static __global__ void fp8_outer_descale_kernel1(unsigned* row, int rows, unsigned* column, int cols, float most) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    unsigned* at = i < rows ? row + i : column + (i - rows);
    if (i < rows + cols) { *at = __float_as_uint(1.0f / fp8_scale_from_amax(*at, most)); }
}

// ----------------------------------------------------------------------------
// quantization noise

template <Fp8Format F>
static __device__ __forceinline__ void fp8_add_noise(double* signal, double* noise, const float x[FP8_TILE], uint4 codes, const float descale[FP8_TILE]) {
    const unsigned w[4] = {codes.x, codes.y, codes.z, codes.w};
    #pragma unroll
    for (int i = 0; i < FP8_TILE; i++) {
        const double exact = x[i], error = exact - (double)fp8_decode<F>((w[i / 4] >> (8 * (i % 4))) & 0xffu) * (double)descale[i];
        *signal = fma(exact, exact, *signal);
        *noise = fma(error, error, *noise);
    }
}
static __device__ __forceinline__ float fp8_load_descale(Fp8Granularity by, const void* scales, int outer, int inner, int o, int i) {
    const size_t at = fp8_scale_index(by, outer, inner, o, i);
    return by == FP8_BY_VEC32 ? fp8_mx_descale(((const uint8_t*)scales)[at]) : ((const float*)scales)[at];
}
// partial[2 * block], [2 * block + 1] = sums of x^2 and of (x - dequantized)^2 over a block's 128 x 128 elements, of order k, then of t; either may be NULL.
template <Fp8Format F>
static __global__ void __launch_bounds__(FP8_SINK_THREADS) fp8_noise_kernel1(double* partial, const bf16* x, Fp8Operand q, Fp8Granularity by, int rows, int cols) {
    const int row0 = blockIdx.x * FP8_PATCH + threadIdx.x % 8 * FP8_TILE, col0 = blockIdx.y * FP8_PATCH + threadIdx.x / 8 * FP8_TILE;
    double signal = 0.0, noise = 0.0;
    if (row0 < rows && col0 < cols && q.k) {
        for (int r = 0; r < FP8_TILE; r++) {
            float v[FP8_TILE], descale[FP8_TILE];
            fp8_load_row(v, x + (size_t)(row0 + r) * cols + col0);
            descale[0] = fp8_load_descale(by, q.k_scale, rows, cols, row0 + r, col0);
            #pragma unroll
            for (int i = 1; i < FP8_TILE; i++) { descale[i] = descale[0]; }
            fp8_add_noise<F>(&signal, &noise, v, *reinterpret_cast<const uint4*>(q.k + (size_t)(row0 + r) * cols + col0), descale);
        }
    }
    if (row0 < rows && col0 < cols && q.t) {
        float descale[FP8_TILE];
        uint4 codes[FP8_TILE];
        #pragma unroll
        for (int c = 0; c < FP8_TILE; c++) {
            descale[c] = fp8_load_descale(by, q.t_scale, cols, rows, col0 + c, row0);
            codes[c] = *reinterpret_cast<const uint4*>(q.t + (size_t)(col0 + c) * rows + row0);
        }
        fp8_transpose_tile(codes);
        #pragma unroll
        for (int r = 0; r < FP8_TILE; r++) {
            float v[FP8_TILE];
            fp8_load_row(v, x + (size_t)(row0 + r) * cols + col0);
            fp8_add_noise<F>(&signal, &noise, v, codes[r], descale);
        }
    }
    signal = block_sum(signal);
    noise = block_sum(noise);
    if (threadIdx.x == 0) {
        const size_t block = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
        partial[2 * block] = signal;
        partial[2 * block + 1] = noise;
    }
}
// sums[0], sums[1] += those of the blocks. One block of 256.
static __global__ void fp8_noise_sum_kernel1(double* sums, const double* partial, size_t blocks) {
    double signal = 0.0, noise = 0.0;
    for (size_t i = threadIdx.x; i < blocks; i += 256) {
        signal += partial[2 * i];
        noise += partial[2 * i + 1];
    }
    signal = block_sum(signal);
    noise = block_sum(noise);
    if (threadIdx.x == 0) {
        sums[0] += signal;
        sums[1] += noise;
    }
}
// Adds to the slot's sums what quantizing x (rows,cols) into q cost. fp8_scaling_alloc_noise must have been called. Enqueues only.
static inline void fp8_measure_noise(Fp8Scaling* s, int slot, Fp8Operand q, const bf16* x, int rows, int cols, cudaStream_t stream) {
    const Fp8Granularity by = fp8_slot_granularity(s, slot);
    const size_t blocks = fp8_quantize_blocks(rows, cols);
    assert(s->noise && blocks <= s->noise_blocks);
    if (by == FP8_BY_TENSOR) { q = fp8_operand(s, slot, q.k, q.t, NULL, NULL); }
    if ((by == FP8_BY_TENSOR || by == FP8_BY_BLK128) && q.k) { q.t = NULL; }  // the same codes and scales
    if (fp8_slot_format(s, slot) == FP8_E4M3) {
        launch<fp8_noise_kernel1<FP8_E4M3>>(fp8_quantize_grid(rows, cols), dim3(FP8_SINK_THREADS), 0, stream, s->noise_partial, x, q, by, rows, cols);
    } else {
        launch<fp8_noise_kernel1<FP8_E5M2>>(fp8_quantize_grid(rows, cols), dim3(FP8_SINK_THREADS), 0, stream, s->noise_partial, x, q, by, rows, cols);
    }
    launch<fp8_noise_sum_kernel1>(dim3(1), dim3(256), 0, stream, s->noise + 2 * slot, (const double*)s->noise_partial, blocks);
}

// ----------------------------------------------------------------------------
// the launchers

// Few kernels, since each takes a second of nvcc for each architecture: counting is left out at compile time only where that frees registers.
template <Fp8Granularity BY, Fp8Format F>
static inline void fp8_quantize_launch(const bf16* x, float* bias_partial, const Fp8SinkParams& p, cudaStream_t stream) {
    const dim3 grid = fp8_quantize_grid(p.rows, p.cols), block(FP8_SINK_THREADS);
    if constexpr (BY == FP8_BY_TENSOR) {
        if (!p.counts) { launch<fp8_quantize_kernel3<BY, F, false, Fp8TensorSource>>(grid, block, 0, stream, Fp8TensorSource{x, p.cols}, bias_partial, p, 0); return; }
    }
    launch<fp8_quantize_kernel3<BY, F, true, Fp8TensorSource>>(grid, block, 0, stream, Fp8TensorSource{x, p.cols}, bias_partial, p, 0);
}
template <Fp8Granularity BY>
static inline void fp8_quantize_launch(Fp8Format format, const bf16* x, float* bias_partial, const Fp8SinkParams& p, cudaStream_t stream) {
    if (format == FP8_E4M3) { fp8_quantize_launch<BY, FP8_E4M3>(x, bias_partial, p, stream); } else { fp8_quantize_launch<BY, FP8_E5M2>(x, bias_partial, p, stream); }
}

// Quantizes x (rows,cols) bf16 into out, by the recipe of the state; k, t or both. If fp8_needs_amax(s, slot), the slot's amax must have been recorded; else it
// is recorded here. dbias (cols) f32 += column sums of x, with bias_partial as scratch (column_sum_partials(rows, cols) f32); both NULL: no bias gradient.
// again: as in fp8_sink_params. Enqueues only.
static inline void fp8_quantize(Fp8Scaling* s, int slot, Fp8Operand out, const bf16* x, int rows, int cols, float* dbias, float* bias_partial, bool again, cudaStream_t stream) {
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, rows, cols, again);
    const Fp8Format format = fp8_slot_format(s, slot);
    fp8_count_traffic(s, slot, (size_t)rows * cols, fp8_slot_granularity(s, slot) == FP8_BY_ROW ? 2 : 1);
    float* partial = dbias ? bias_partial : NULL;
    switch (fp8_slot_granularity(s, slot)) {
    case FP8_BY_TENSOR: fp8_quantize_launch<FP8_BY_TENSOR>(format, x, partial, p, stream); break;
    case FP8_BY_VEC128: fp8_quantize_launch<FP8_BY_VEC128>(format, x, partial, p, stream); break;
    case FP8_BY_BLK128: fp8_quantize_launch<FP8_BY_BLK128, FP8_E4M3>(x, partial, p, stream); break;  // weights
    case FP8_BY_VEC32: fp8_quantize_launch<FP8_BY_VEC32>(format, x, partial, p, stream); break;
    default: {
        unsigned *row = out.k ? (unsigned*)out.k_scale : NULL, *column = out.t ? (unsigned*)out.t_scale : NULL;
        const int row_scales = row ? rows : 0, column_scales = column ? cols : 0;
        if (row) { cudaCheck(cudaMemsetAsync(row, 0, rows * sizeof(unsigned), stream)); }
        if (column) { cudaCheck(cudaMemsetAsync(column, 0, cols * sizeof(unsigned), stream)); }
        launch<fp8_outer_amax_kernel1>(fp8_quantize_grid(rows, cols), dim3(FP8_SINK_THREADS), 0, stream, row, column, x, rows, cols);
        fp8_quantize_launch<FP8_BY_ROW>(format, x, partial, p, stream);
        launch<fp8_outer_descale_kernel1>(dim3(CEIL_DIV(row_scales + column_scales, 128)), dim3(128), 0, stream, row, row_scales, column, column_scales, FP8_MAX(format));
    }
    }
    if (s->noise_on && !again) { fp8_measure_noise(s, slot, out, x, rows, cols, stream); }
    if (dbias) { column_sum(dbias, partial, rows / FP8_TILE, cols, stream); }
}
// k (rows,cols) codes -> t (cols,rows), for codes that came from other ranks. One thread a 16 x 16 tile, as above.
static __global__ void fp8_transpose_kernel1(uint8_t* t, const uint8_t* k, int rows, int cols) {
    int row0 = (blockIdx.x * 8 + threadIdx.x % 8) * FP8_TILE, col0 = (blockIdx.y * 8 + threadIdx.x / 8) * FP8_TILE;
    if (row0 >= rows || col0 >= cols) { return; }
    uint4 q[FP8_TILE];
    #pragma unroll
    for (int r = 0; r < FP8_TILE; r++) { q[r] = *reinterpret_cast<const uint4*>(k + (size_t)(row0 + r) * cols + col0); }
    fp8_transpose_tile(q);
    #pragma unroll
    for (int c = 0; c < FP8_TILE; c++) { *reinterpret_cast<uint4*>(t + (size_t)(col0 + c) * rows + row0) = q[c]; }
}
// rows, cols % 16 == 0, pointers 16-byte aligned. Enqueues only.
static inline void fp8_transpose(uint8_t* t, const uint8_t* k, int rows, int cols, cudaStream_t stream) {
    launch<fp8_transpose_kernel1>(fp8_quantize_grid(rows, cols), dim3(FP8_SINK_THREADS), 0, stream, t, k, rows, cols);
}

#endif
