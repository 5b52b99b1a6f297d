/* global_norm.cuh - sums of squares and plain sums over long vectors, in a fixed order
 *
 * A block adds the squares of SUM_CHUNK elements; its number is a function of the length alone (R3). A second kernel of one block adds the blocks' sums.
 * Numerics: f32; every partial sum is of non-negative terms, so the relative error stays near 2^-24 times the depth of the tree (about 40).
 * Tests: dev/test/test_kernels_optimizer.cu
 */
#ifndef LLMC_GLOBAL_NORM_CUH
#define LLMC_GLOBAL_NORM_CUH

#include "llmc/device.cuh"

#define SUM_BLOCK 256
#define SUM_CHUNK 32768  // elements a block: 128 a thread

static inline int sum_squares_blocks(size_t n) { return (int)CEIL_DIV(n, (size_t)SUM_CHUNK); }

template <class T>
static __global__ void sum_squares_kernel1(float* partial, const T* x, size_t n) {
    size_t base = (size_t)blockIdx.x * SUM_CHUNK;
    float sum[8] = {0.0f};
    for (int j = 0; j < SUM_CHUNK / (SUM_BLOCK * 8); j++) {
        size_t i = base + ((size_t)j * SUM_BLOCK + threadIdx.x) * 8;
        if (i < n) {
            float v[8];
            load8(v, x + i);
            for (int e = 0; e < 8; e++) { sum[e] = fmaf(v[e], v[e], sum[e]); }
        }
    }
    float total = block_sum(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
    if (threadIdx.x == 0) { partial[blockIdx.x] = total; }
}

// partial (sum_squares_blocks(n)) f32 = sums of squares of the chunks of x (n), n % 8 == 0, 16-byte aligned. Enqueues only.
template <class T>
static inline void sum_squares(float* partial, const T* x, size_t n, cudaStream_t stream) {
    launch<sum_squares_kernel1<T>>(dim3(sum_squares_blocks(n)), dim3(SUM_BLOCK), 0, stream, partial, x, n);
}

static __global__ void sum_all_kernel1(float* out, const float* x, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) { sum += x[i]; }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { *out = sum; }
}

// *out f32 = sum of x (n) f32, by one block. Enqueues only.
static inline void sum_all(float* out, const float* x, int n, cudaStream_t stream) {
    launch<sum_all_kernel1>(dim3(1), dim3(256), 0, stream, out, x, n);
}

#endif
