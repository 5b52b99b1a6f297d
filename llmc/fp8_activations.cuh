/* fp8_activations.cuh - activations kept for backward in one byte an element: E4M3 in groups of 128 along a row, each with a power of two as its scale
 *
 * What:      exponent e = the smallest byte with 448 * 2^(e - 127) >= the group's largest magnitude, code = E4M3 of x * 2^(127 - e); back: code * 2^(e - 127).
 *            The rule of UE8M0 scales in fp8_recipe.cuh: inf comes back as inf, as do finite values from 1.9375 * 2^127 on; a NaN makes its group NaNs.
 * Shapes:    x (rows,cols) bf16, codes (rows,cols), exponents (rows, ceil(cols/128)) bytes; cols % 16 == 0, the last group of a row may be partial; x and codes
 *            16-byte aligned. 1 + 1/128 bytes an element.
 * Numerics:  a power of two costs nothing over an f32 scale: E4M3 has the same three bits of mantissa wherever in its range, and the range, 2^17.8, is ample
 *            for 128 neighbours. In return what comes back is a BF16 number exactly (but for BF16's own denormals), and packing it again changes nothing.
 * Design:    16 elements a thread and group, so that codes are 16-byte stores; two groups a thread, so that the one barrier is shared by 32 elements.
 * Memory:    allocates nothing. Traffic: 2 bytes an element read and 1 written, or the reverse.
 * Tests:     dev/test/test_fp8_activations.cu
 */
#ifndef LLMC_FP8_ACTIVATIONS_CUH
#define LLMC_FP8_ACTIVATIONS_CUH

#include "llmc/fp8_recipe.cuh"

#define FP8_PACK_THREADS 128
#define FP8_PACK_GROUPS 2                               // a thread
#define FP8_PACK_LANES (FP8_BLOCK / FP8_TILE)           // threads of a group
#define FP8_PACK_PASS (FP8_PACK_THREADS / FP8_PACK_LANES)  // groups of a thread block at once

static inline size_t fp8_pack_exponents(size_t rows, int cols) { return rows * fp8_blocks(cols); }

static __global__ void __launch_bounds__(FP8_PACK_THREADS) fp8_pack_kernel1(uint8_t* codes, uint8_t* exponents, const bf16* x, size_t groups, int cols) {
    SHARED(unsigned, amax, FP8_PACK_GROUPS * FP8_PACK_THREADS);
    const int blocks = (int)fp8_blocks(cols), lane = threadIdx.x % FP8_PACK_LANES;
    float v[FP8_PACK_GROUPS][FP8_TILE];
    size_t at[FP8_PACK_GROUPS], group[FP8_PACK_GROUPS];
    bool inside[FP8_PACK_GROUPS];
    #pragma unroll
    for (int n = 0; n < FP8_PACK_GROUPS; n++) {
        group[n] = ((size_t)blockIdx.x * FP8_PACK_GROUPS + n) * FP8_PACK_PASS + threadIdx.x / FP8_PACK_LANES;
        const int column = (int)(group[n] % blocks) * FP8_BLOCK + lane * FP8_TILE;
        inside[n] = group[n] < groups && column < cols;
        at[n] = group[n] / blocks * cols + column;
        unsigned most = 0;
        if (inside[n]) {
            load8(v[n], x + at[n]);
            load8(v[n] + 8, x + at[n] + 8);
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { most = max(most, abs_bits(v[n][i])); }
        }
        amax[n * FP8_PACK_THREADS + threadIdx.x] = most;
    }
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < FP8_PACK_GROUPS; n++) {
        if (!inside[n]) { continue; }
        const unsigned* of_group = amax + n * FP8_PACK_THREADS + threadIdx.x - lane;
        unsigned most = 0;
        #pragma unroll
        for (int i = 0; i < FP8_PACK_LANES; i++) { most = max(most, of_group[i]); }
        const unsigned e = fp8_mx_exponent(most, FP8_E4M3);
        const float scale = fp8_mx_scale(e);
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { v[n][i] *= scale; }
        *reinterpret_cast<uint4*>(codes + at[n]) = fp8_convert16<FP8_E4M3>(v[n]);
        if (lane == 0) { exponents[group[n]] = (uint8_t)e; }
    }
}

// One thread 16 elements.
static __global__ void __launch_bounds__(FP8_PACK_THREADS) fp8_unpack_kernel1(bf16* x, const uint8_t* codes, const uint8_t* exponents, size_t n, int cols) {
    const size_t i = ((size_t)blockIdx.x * FP8_PACK_THREADS + threadIdx.x) * FP8_TILE;
    if (i >= n) { return; }
    const float descale = fp8_mx_descale(exponents[i / cols * fp8_blocks(cols) + i % cols / FP8_BLOCK]);
    const uint4 q = *reinterpret_cast<const uint4*>(codes + i);
    const unsigned w[4] = {q.x, q.y, q.z, q.w};
    float v[FP8_TILE];
    #pragma unroll
    for (int e = 0; e < FP8_TILE; e++) { v[e] = fp8_decode<FP8_E4M3>((w[e / 4] >> (8 * (e % 4))) & 0xffu) * descale; }
    store8(x + i, v);
    store8(x + i + 8, v + 8);
}

// codes, exponents = x. Enqueues only.
static inline void fp8_pack(uint8_t* codes, uint8_t* exponents, const bf16* x, size_t rows, int cols, cudaStream_t stream) {
    const size_t groups = rows * fp8_blocks(cols);
    launch<fp8_pack_kernel1>(dim3(CEIL_DIV(groups, (size_t)FP8_PACK_GROUPS * FP8_PACK_PASS)), dim3(FP8_PACK_THREADS), 0, stream, codes, exponents, x, groups, cols);
}
// x = what codes and exponents stand for. Enqueues only.
static inline void fp8_unpack(bf16* x, const uint8_t* codes, const uint8_t* exponents, size_t rows, int cols, cudaStream_t stream) {
    const size_t n = rows * cols;
    launch<fp8_unpack_kernel1>(dim3(CEIL_DIV(n, (size_t)FP8_PACK_THREADS * FP8_TILE)), dim3(FP8_PACK_THREADS), 0, stream, x, codes, exponents, n, cols);
}

#endif
