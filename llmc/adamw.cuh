/* adamw.cuh - AdamW with BF16 masters (stochastic rounding) or FP32 masters
 *
 * What:      m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd p)   [Loshchilov & Hutter 2019, algorithm 2]
 *            g = grad_scale * grad (clipping). lerp(a,b,w) = fma(w, b, fma(-w, a, a)), as llm.c.
 * Shapes:    one tensor of `layers` equal parts of n elements, n % 8 == 0, 16-byte aligned; grid.y = part. A rank that updates a shard of each part says
 *            where it lies (AdamWLayout).
 * Numerics:  f32 inside. Without FP32 masters the parameter itself is the master and is rounded stochastically: an update smaller than half a BF16
 *            step would otherwise never move it. With FP32 masters the same rounding makes the BF16 copy. For T = float there is nothing to round.
 * Amax:      of the new BF16 values of each part, for FP8 weights (amax + part; NULL: not taken).
 * Noise:     function of (key, element of the whole tensor): R6.
 * Fused:     fp8_producers.cuh updates a weight and writes its FP8 codes in the same pass, by the same adamw_step8.
 * Moments:   f32, BF16 or 8 bits, as moments.cuh keeps them; the arithmetic is f32.
 * Tests:     dev/test/test_kernels_optimizer.cu
 */
#ifndef LLMC_ADAMW_CUH
#define LLMC_ADAMW_CUH

#include "llmc/amax.cuh"
#include "llmc/moments.cuh"

typedef struct {
    float learning_rate, beta1, beta2, eps, weight_decay;
    float beta1_correction, beta2_correction;  // 1 - beta^t
    float grad_scale;                          // clip factor
    uint32_t noise_key, m_key, v_key;          // of the parameters' rounding, and of the moments' (moments.cuh; unused for f32)
} AdamWParams;

#define ADAMW_BLOCK 256

// The elements [first, first + held) of each of `layers` parts of `part` elements, from part first_layer on. param and grad lie `stride` elements from part to part, and are given
// from the part's first element; master and moments hold the shard alone, `state_stride` from part to part. first, held and the strides are multiples of 8.
struct AdamWLayout { size_t part, stride, first, held, state_stride; int layers, first_layer = 0; };

// Eight elements: p from g and the moments, which it updates. p is the master, in f32.
static __device__ __forceinline__ void adamw_step8(float p[8], float m[8], float v[8], const float g[8], const AdamWParams& a) {
    #pragma unroll
    for (int e = 0; e < 8; e++) {
        float x = g[e] * a.grad_scale;
        m[e] = fmaf(a.beta1, m[e], fmaf(-a.beta1, x, x));
        v[e] = fmaf(a.beta2, v[e], fmaf(-a.beta2, x * x, x * x));
        float update = (m[e] / a.beta1_correction) / (sqrtf(v[e] / a.beta2_correction) + a.eps);
        p[e] -= a.learning_rate * (update + a.weight_decay * p[e]);
    }
}

// All lanes go through: those beyond the shard take part in their group's maximum.
template <class T, class G, MomentType M>
static __global__ void adamw_kernel1(T* param, float* master, Moments moments, const G* grad, AdamWLayout s, unsigned* amax, AdamWParams a) {
    const size_t i = ((size_t)blockIdx.x * ADAMW_BLOCK + threadIdx.x) * 8, l = s.first_layer + blockIdx.y;
    const bool inside = i < s.held;
    const size_t at = l * s.state_stride + i, at_param = l * s.stride + s.first + i;
    const uint64_t element = l * s.part + s.first + i;
    unsigned local = 0;
    float mm[8] = {0.0f}, vv[8] = {0.0f};
    if (inside) {
        float p[8], g[8];
        if (master) { load8(p, master + at); } else { load8(p, param + at_param); }
        load8(g, grad + at_param);
        moments_load8<M>(mm, vv, moments, l, i);
        adamw_step8(p, mm, vv, g, a);
        if (master) { store8(master + at, p); }
        if (sizeof(T) == 2) {
            for (int e = 0; e < 8; e++) {
                p[e] = round_stochastic_bf16(p[e], noise_at(element + e, a.noise_key));
                local = max(local, abs_bits(p[e]));
            }
        }
        store8(param + at_param, p);
    }
    moments_store8<M>(moments, l, i, inside, mm, vv, element, a.m_key, a.v_key);
    amax_record(amax ? amax + l : amax, local);
}

// Updates a shard (see AdamWLayout) of param T and master f32 (NULL: param is the master) and its moments from grad G. Enqueues only.
template <class T, class G>
static inline void adamw_update_moments(T* param, float* master, MomentType type, Moments moments, const G* grad, AdamWLayout s, unsigned* amax, AdamWParams a, cudaStream_t stream) {
    if (s.held == 0) { return; }
    const dim3 grid(CEIL_DIV(s.held, (size_t)ADAMW_BLOCK * 8), s.layers), block(ADAMW_BLOCK);
    if (type == MOMENT_F32) { launch<adamw_kernel1<T, G, MOMENT_F32>>(grid, block, 0, stream, param, master, moments, grad, s, amax, a); }
    else if (type == MOMENT_BF16) { launch<adamw_kernel1<T, G, MOMENT_BF16>>(grid, block, 0, stream, param, master, moments, grad, s, amax, a); }
    else { launch<adamw_kernel1<T, G, MOMENT_F8>>(grid, block, 0, stream, param, master, moments, grad, s, amax, a); }
}
// The same with moments in f32.
template <class T, class G>
static inline void adamw_update_shard(T* param, float* master, float* m, float* v, const G* grad, AdamWLayout s, unsigned* amax, AdamWParams a, cudaStream_t stream) {
    adamw_update_moments(param, master, MOMENT_F32, Moments{m, v, NULL, NULL, s.state_stride}, grad, s, amax, a, stream);
}
// The same for whole parts of n elements without gaps.
template <class T, class G>
static inline void adamw_update(T* param, float* master, float* m, float* v, const G* grad, size_t n, int layers, unsigned* amax, AdamWParams a, cudaStream_t stream) {
    adamw_update_shard(param, master, m, v, grad, AdamWLayout{n, n, 0, n, n, layers}, amax, a, stream);
}

// one thread: 8 elements, two Box-Muller pairs of hashed uniforms are not worth their logarithms here: a sum of four uniforms has the right mean,
// variance and nearly the right shape
template <class T>
static __global__ void init_fast_kernel1(T* param, float value, float std, size_t n, size_t n_used, uint32_t key) {
    size_t i = ((size_t)blockIdx.x * ADAMW_BLOCK + threadIdx.x) * 8;
    if (i >= n) { return; }
    float p[8];
    for (int e = 0; e < 8; e++) {
        uint32_t h = noise_at(i + e, key), h2 = noise_hash(h, key + 1);
        float u = (float)(h & 0xffffu) + (float)(h >> 16) + (float)(h2 & 0xffffu) + (float)(h2 >> 16);   // mean 131070, variance 4 * 65536^2 / 12
        p[e] = i + e < n_used ? fmaf((u - 131070.0f) * (1.0f / 37837.25f), std, value) : 0.0f;
    }
    store8(param + i, p);
}

// param (n) T = value + std * (about normal noise), 0 from element n_used on (padding). For benchmarks: d48 is filled in milliseconds.
template <class T>
static inline void init_fast(T* param, float value, float std, size_t n, size_t n_used, uint32_t key, cudaStream_t stream) {
    launch<init_fast_kernel1<T>>(dim3(CEIL_DIV(n, (size_t)ADAMW_BLOCK * 8)), dim3(ADAMW_BLOCK), 0, stream, param, value, std, n, n_used, key);
}

#endif
