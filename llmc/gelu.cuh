/* gelu.cuh - GELU, tanh approximation, forward and backward
 *
 * What:      gelu(x) = x s(x), s = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)      [Hendrycks & Gimpel 2016, section 2]
 *            gelu'(x) = s + 2 x s (1 - s) du/dx
 * Shapes:    inp, out, dout, dinp (n) T, n % 8 == 0, 16-byte aligned. Backward may run in place.
 * Numerics:  f32 inside, one rounding. The logistic form needs one exponential and one division, and loses nothing where tanh saturates.
 * Fused:     matmul.cuh can have cuBLASLt do both inside the product before (--dtype bfloat16 and float32); fp8_producers.cuh writes FP8 codes instead of T.
 * Amax:      of what is written (bits; NULL: not taken).
 * Tests:     dev/test/test_kernels_model.cu
 */
#ifndef LLMC_GELU_CUH
#define LLMC_GELU_CUH

#include "llmc/amax.cuh"

#define GELU_K 0.7978845608028654f  // sqrt(2/pi)
#define GELU_CUBIC 0.044715f
#define GELU_BLOCK 256

static __device__ __forceinline__ float gelu_gate(float x) {
    float u = GELU_K * x * (1.0f + GELU_CUBIC * x * x);
    return 1.0f / (1.0f + dev_expf(-2.0f * u));
}

template <class T> static __device__ __forceinline__ float gelu_value(float x) { return to_float(from_float<T>(x * gelu_gate(x))); }
template <class T> static __device__ __forceinline__ float gelu_gradient(float x, float dout) {
    float s = gelu_gate(x);
    float du = GELU_K * (1.0f + 3.0f * GELU_CUBIC * x * x);
    float bend = s * (1.0f - s);  // 0 where the gate is shut or open; du may be inf there
    return to_float(from_float<T>(dout * (s + (bend > 0.0f ? 2.0f * x * bend * du : 0.0f))));
}

template <class T>
static __global__ void gelu_forward_kernel1(T* out, const T* inp, size_t n, unsigned* amax) {
    size_t i = ((size_t)blockIdx.x * GELU_BLOCK + threadIdx.x) * 8;
    unsigned local = 0;
    if (i < n) {
        float x[8];
        load8(x, inp + i);
        for (int e = 0; e < 8; e++) { x[e] = gelu_value<T>(x[e]); }
        store8(out + i, x);
        for (int e = 0; e < 8; e++) { local = max(local, abs_bits(x[e])); }
    }
    amax_record(amax, local);
}

template <class T>
static __global__ void gelu_backward_kernel1(T* dinp, const T* inp, const T* dout, size_t n, unsigned* amax) {
    size_t i = ((size_t)blockIdx.x * GELU_BLOCK + threadIdx.x) * 8;
    unsigned local = 0;
    if (i < n) {
        float x[8], g[8];
        load8(x, inp + i);
        load8(g, dout + i);
        for (int e = 0; e < 8; e++) { g[e] = gelu_gradient<T>(x[e], g[e]); }
        store8(dinp + i, g);
        for (int e = 0; e < 8; e++) { local = max(local, abs_bits(g[e])); }
    }
    amax_record(amax, local);
}

template <class T>
static inline void gelu_forward(T* out, const T* inp, size_t n, unsigned* amax, cudaStream_t stream) {
    launch<gelu_forward_kernel1<T>>(dim3(CEIL_DIV(n, (size_t)GELU_BLOCK * 8)), dim3(GELU_BLOCK), 0, stream, out, inp, n, amax);
}

// dinp = dout * gelu'(inp); dinp == dout is allowed.
template <class T>
static inline void gelu_backward(T* dinp, const T* inp, const T* dout, size_t n, unsigned* amax, cudaStream_t stream) {
    launch<gelu_backward_kernel1<T>>(dim3(CEIL_DIV(n, (size_t)GELU_BLOCK * 8)), dim3(GELU_BLOCK), 0, stream, dinp, inp, dout, n, amax);
}

#endif
