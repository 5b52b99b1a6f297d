/* column_sum.cuh - sums over rows, in two fixed stages: bias gradients, layernorm parameter gradients
 *
 * Stage 1 (here for biases; in layernorm.cuh and fp8_quantize.cuh fused with other work): a thread adds 16 rows of its columns into
 * partial (ceil(rows/16), cols) f32. Stage 2, column_sum: out[c] += sum of the partials of column c.
 * Deterministic: the geometry is a function of (rows, cols) alone (R3); no atomics.
 * Tests: dev/test/test_kernels_model.cu
 */
#ifndef LLMC_COLUMN_SUM_CUH
#define LLMC_COLUMN_SUM_CUH

#include "llmc/device.cuh"

#define COLUMN_SUM_ROWS 16  // rows a thread adds in stage 1: the height of the register tile of fp8_quantize

static inline size_t column_sum_partials(int rows, int cols) { return (size_t)CEIL_DIV(rows, COLUMN_SUM_ROWS) * cols; }

// block (32, 8): x = column, y = slice of the partial rows; 8 slices added in order at the end
static __global__ void column_sum_kernel1(float* out, const float* partial, int num_partials, int cols) {
    SHARED(float, slice, 8 * WARP_SIZE);
    int c = blockIdx.x * WARP_SIZE + threadIdx.x;
    float sum = 0.0f;
    if (c < cols) {
        for (int r = threadIdx.y; r < num_partials; r += 8) { sum += partial[(size_t)r * cols + c]; }
    }
    slice[threadIdx.y * WARP_SIZE + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
        float total = 0.0f;
        for (int y = 0; y < 8; y++) { total += slice[y * WARP_SIZE + threadIdx.x]; }
        out[c] += total;
    }
}

// out (cols) f32 += column sums of partial (num_partials, cols) f32. Enqueues only.
static inline void column_sum(float* out, const float* partial, int num_partials, int cols, cudaStream_t stream) {
    launch<column_sum_kernel1>(dim3(CEIL_DIV(cols, WARP_SIZE)), dim3(WARP_SIZE, 8), 0, stream, out, partial, num_partials, cols);
}

// one thread: 16 rows x 8 columns. Rows lie along grid.x: the other grid dimensions end at 65,535
template <class T>
static __global__ void bias_partial_kernel1(float* partial, const T* dout, int rows, int cols) {
    int c = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (c >= cols) { return; }
    int row0 = blockIdx.x * COLUMN_SUM_ROWS;
    int row1 = min(row0 + COLUMN_SUM_ROWS, rows);
    float sum[8] = {0.0f};
    for (int r = row0; r < row1; r++) {
        float x[8];
        load8(x, dout + (size_t)r * cols + c);
        for (int i = 0; i < 8; i++) { sum[i] += x[i]; }
    }
    store8(partial + (size_t)blockIdx.x * cols + c, sum);
}

// dbias (cols) f32 += column sums of dout (rows, cols). partial: scratch of column_sum_partials(rows, cols) f32. cols % 8 == 0, pointers 16-byte aligned.
template <class T>
static inline void bias_backward(float* dbias, float* partial, const T* dout, int rows, int cols, cudaStream_t stream) {
    int num_partials = CEIL_DIV(rows, COLUMN_SUM_ROWS);
    launch<bias_partial_kernel1<T>>(dim3(num_partials, CEIL_DIV(cols / 8, 32)), dim3(32), 0, stream, partial, dout, rows, cols);
    column_sum(dbias, partial, num_partials, cols, stream);
}

#endif
