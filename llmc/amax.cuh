/* amax.cuh - the largest magnitude of a tensor, kept as the uint32 bits of |x| (rule R2)
 *
 * For non-negative floats the order of the bits is the order of the values; infinity is above every finite value and NaN above infinity, so an integer
 * maximum is free of order and a NaN survives to the step report. Producers take amaxes on the way with amax_record; amax_reduce is for tensors that
 * a library wrote.
 * Tests: dev/test/test_kernels_fp8.cu
 */
#ifndef LLMC_AMAX_CUH
#define LLMC_AMAX_CUH

#include "llmc/device.cuh"

static __device__ __forceinline__ unsigned abs_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// *amax = max(*amax, local). Every lane of a full warp must call it together (on the GPU one lane speaks for its warp; on the CPU device a plain
// look at the value is cheaper than a collective). amax NULL: nothing to record (the same for all lanes).
static __device__ __forceinline__ void amax_record(unsigned* amax, unsigned local) {
    if (!amax) { return; }
#ifdef GPT_CPU_DEVICE
    if (local > *amax) { atomicMax(amax, local); }
#else
    local = warp_max(local);
    if (threadIdx.x % WARP_SIZE == 0 && local > *(volatile unsigned*)amax) { atomicMax(amax, local); }
#endif
}

// block 256: each thread 4 x 8 elements
template <class T>
static __global__ void amax_reduce_kernel1(unsigned* amax, const T* x, size_t n) {
    size_t base = (size_t)blockIdx.x * (256 * 32) + threadIdx.x * 8;
    unsigned local = 0;
    for (int j = 0; j < 4; j++) {
        size_t i = base + (size_t)j * (256 * 8);
        if (i < n) {
            float v[8];
            load8(v, x + i);
            for (int e = 0; e < 8; e++) { local = max(local, abs_bits(v[e])); }
        }
    }
    amax_record(amax, local);
}

// *amax (bits) = max(*amax, max|x|), x (n), n % 8 == 0, 16-byte aligned. Reads n elements. Enqueues only.
template <class T>
static inline void amax_reduce(unsigned* amax, const T* x, size_t n, cudaStream_t stream) {
    launch<amax_reduce_kernel1<T>>(dim3(CEIL_DIV(n, (size_t)(256 * 32))), dim3(256), 0, stream, amax, x, n);
}

#endif
