/* fp8_quantize.cuh - BF16 tensor -> FP8 operand in both orders, with the bias gradient on the way
 *
 * What:      reads x (rows,cols) bf16 once; writes k (rows,cols) and t (cols,rows) codes through the recipe's Sink, scale and descale of the slot, and
 *            (for output gradients) the 16-row partial sums of column_sum.cuh. Bytes an element: 2 read, 1 + 1 written.
 * Shapes:    rows % 16 == 0, cols % 16 == 0, all pointers 16-byte aligned.
 * Design:    one thread a 16 x 16 tile in registers. In a warp 8 tiles lie along the rows and 4 along the columns: loads and k-stores are 128-byte
 *            pieces of 16 rows, t-stores 128-byte pieces of 16 columns.
 * Memory:    allocates nothing.
 * Tests:     dev/test/test_kernels_fp8.cu (codes and both orders bit for bit)
 */
#ifndef LLMC_FP8_QUANTIZE_CUH
#define LLMC_FP8_QUANTIZE_CUH

#include "llmc/amax.cuh"
#include "llmc/column_sum.cuh"
#include "llmc/fp8_scaling.h"

static_assert(FP8_TILE == COLUMN_SUM_ROWS, "a register tile gives one partial row of the bias gradient");
#define QUANTIZE_BLOCK 128            // 4 warps along the columns: a block covers 128 rows x 256 columns
#define QUANTIZE_ROWS (8 * FP8_TILE)
#define QUANTIZE_COLS (16 * FP8_TILE)

typedef struct {
    const bf16* x;
    uint8_t *k, *t;
    int rows, cols;
    const unsigned* amax;
    unsigned* amax_step;
    float *scale, *descale;
    unsigned long long* counts;  // NULL: not counted
    float* partial;              // bias partial sums or NULL
} QuantizeParams;

template <Fp8Format F, bool COUNT>
static __global__ void __launch_bounds__(QUANTIZE_BLOCK) fp8_quantize_kernel1(QuantizeParams p) {
    const float scale = fp8_scale_from_amax(*p.amax, FP8_MAX(F));
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        *p.scale = scale;
        *p.descale = 1.0f / scale;
        if (*p.amax > *p.amax_step) { *p.amax_step = *p.amax; }
    }
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    int row0 = blockIdx.x * QUANTIZE_ROWS + (lane % 8) * FP8_TILE;
    int col0 = blockIdx.y * QUANTIZE_COLS + (warp * 4 + lane / 8) * FP8_TILE;
    unsigned saturated = 0, flushed = 0;
    if (row0 < p.rows && col0 < p.cols) {
        SinkTensor<F, COUNT> sink;
        sink.k = p.k; sink.t = p.t; sink.rows = p.rows; sink.cols = p.cols; sink.scale = scale; sink.saturated = 0; sink.flushed = 0;
        float sum[FP8_TILE];
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { sum[i] = 0.0f; }
        #pragma unroll
        for (int r = 0; r < FP8_TILE; r++) {
            float x[FP8_TILE];
            const bf16* row = p.x + (size_t)(row0 + r) * p.cols + col0;
            load8(x, row);
            load8(x + 8, row + 8);
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { sum[i] += x[i]; }
            sink.put_row(r, x);
        }
        if (p.partial) {
            float* partial = p.partial + (size_t)(row0 / FP8_TILE) * p.cols + col0;
            store8(partial, sum);
            store8(partial + 8, sum + 8);
        }
        sink.store_tile(row0, col0);
        saturated = sink.saturated;
        flushed = sink.flushed;
    }
    if (COUNT) {
        saturated = warp_sum(saturated);
        flushed = warp_sum(flushed);
        if (lane == 0 && saturated) { atomicAdd(p.counts, (unsigned long long)saturated); }
        if (lane == 0 && flushed) { atomicAdd(p.counts + 1, (unsigned long long)flushed); }
    }
}

// Quantizes x (rows,cols) bf16 into k and t (either may be NULL). The slot's amax must have been recorded. dbias (cols) f32 += column sums of x, with
// partial as scratch (column_sum_partials(rows, cols) f32); both NULL: no bias gradient. Enqueues only.
static inline void fp8_quantize(Fp8Scaling* s, Fp8Role role, int layer, int linear, uint8_t* k, uint8_t* t, const bf16* x, int rows, int cols,
                                float* dbias, float* partial, cudaStream_t stream) {
    int slot = fp8_slot(s, role, layer, linear);
    require(rows % FP8_TILE == 0 && cols % FP8_TILE == 0, "sizes of FP8 tensors must be multiples of 16", "cannot quantize a %d x %d tensor to FP8", rows, cols);
    QuantizeParams p = {x, k, t, rows, cols, s->amax + slot, s->amax_step + slot, s->scale + slot, s->descale + slot,
                        s->count_on ? s->counts + 2 * slot : NULL, dbias ? partial : NULL};
    dim3 grid(CEIL_DIV(rows, QUANTIZE_ROWS), CEIL_DIV(cols, QUANTIZE_COLS)), block(QUANTIZE_BLOCK);
    if (fp8_role_format(s->recipe, role) == FP8_E4M3) {
        if (p.counts) { launch<fp8_quantize_kernel1<FP8_E4M3, true>>(grid, block, 0, stream, p); }
        else { launch<fp8_quantize_kernel1<FP8_E4M3, false>>(grid, block, 0, stream, p); }
    } else {
        if (p.counts) { launch<fp8_quantize_kernel1<FP8_E5M2, true>>(grid, block, 0, stream, p); }
        else { launch<fp8_quantize_kernel1<FP8_E5M2, false>>(grid, block, 0, stream, p); }
    }
    if (dbias) { column_sum(dbias, partial, rows / FP8_TILE, cols, stream); }
}

// k (rows,cols) codes -> t (cols,rows), for codes that came from other ranks. One thread a 16 x 16 tile, as above.
static __global__ void fp8_transpose_kernel1(uint8_t* t, const uint8_t* k, int rows, int cols) {
    int row0 = (blockIdx.x * 8 + threadIdx.x % 8) * FP8_TILE, col0 = (blockIdx.y * (QUANTIZE_BLOCK / 8) + threadIdx.x / 8) * FP8_TILE;
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
    launch<fp8_transpose_kernel1>(dim3(CEIL_DIV(rows, QUANTIZE_ROWS), CEIL_DIV(cols, QUANTIZE_COLS)), dim3(QUANTIZE_BLOCK), 0, stream, t, k, rows, cols);
}

#endif
