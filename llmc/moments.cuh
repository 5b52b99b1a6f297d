/* moments.cuh - how AdamW's moments are kept: f32, BF16, or 8 + 16 bits with one exponent a group
 *
 * Formats:   float32:  m, v f32.   bfloat16: m, v BF16, rounded stochastically.
 *            float8:   m E4M3, v as the half-precision value of sqrt(v), each group of 128 elements of a layer's part scaled by a power of two, whose exponent
 *                      is a byte: 3 + 2/128 bytes a parameter. The square root halves v's range, so that what FP16 flushes to 0 is 2^-38 of the group's
 *                      largest: there m, with 2^-17, is 0 as well, and no m is divided by a v that was lost.
 * Rounding:  stochastic: with beta2 = 0.999 an update of v moves it by less than half a step of any of these formats, and nearest would stand still. The noise
 *            is a function of the element (R6). The exponent is the smallest that holds the group's largest value, so what was stored and read is stored
 *            again as it is: a checkpoint holds f32, whatever the format, and a resume goes on bit for bit, in any number of ranks.
 * Shapes:    of a tensor: `layers` shards of up to stride elements, group g of layer l at exponent l * ceil(stride / 128) + g; n % 8 == 0, 16-byte aligned.
 * Errors:    none; values must be finite (steps that are not are skipped). Memory: the caller's.
 * Tests:     dev/test/test_moments.cu */
#ifndef LLMC_MOMENTS_CUH
#define LLMC_MOMENTS_CUH

#include "llmc/noise.cuh"

#define MOMENT_GROUP 128
typedef enum { MOMENT_F32, MOMENT_BF16, MOMENT_F8 } MomentType;

typedef struct {
    void *m, *v;
    uint8_t *m_exponent, *v_exponent;  // MOMENT_F8 only
    size_t stride;                     // elements from layer to layer
} Moments;

static inline size_t moment_m_bytes(MomentType t) { return t == MOMENT_F32 ? 4 : t == MOMENT_BF16 ? 2 : 1; }
static inline size_t moment_v_bytes(MomentType t) { return t == MOMENT_F32 ? 4 : 2; }
static __device__ __host__ __forceinline__ size_t moment_groups(size_t stride) { return (stride + MOMENT_GROUP - 1) / MOMENT_GROUP; }

// ----------------------------------------------------------------------------
// one value

static __device__ __host__ __forceinline__ unsigned moment_bits(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static __device__ __host__ __forceinline__ float moment_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static __device__ __host__ __forceinline__ float moment_pow2(unsigned exponent) { return moment_float(exponent << 23); }  // 2^(exponent - 127), 0 < exponent < 255

// |x| * scale <= 448 as E4M3, up with probability (how far it is above the code below) / (a step).
static __device__ __host__ __forceinline__ unsigned moment_to_e4m3(float x, float scale, unsigned noise) {
    const unsigned bits = moment_bits(x * scale), a = bits & 0x7fffffffu;
    const unsigned normal = ((a + (noise & 0xfffffu)) >> 20) - (120u << 3);
    const unsigned denormal = (unsigned)(moment_float(a) * 512.0f + (float)(noise & 0xffffu) * 0x1p-16f);  // steps of 2^-9 below 2^-6
    return (a >= 0x3c800000u ? normal : denormal) | (bits >> 24 & 0x80u);
}
static __device__ __host__ __forceinline__ float moment_from_e4m3(unsigned code, float descale) {
    const unsigned a = code & 0x7fu;
    const float x = a >= 8 ? moment_float((a << 20) + (120u << 23)) : (float)a * 0x1p-9f;
    return (code & 0x80u ? -x : x) * descale;
}
// 0 <= x * scale < 65504 as half precision, the same way
static __device__ __host__ __forceinline__ unsigned moment_to_half(float x, float scale, unsigned noise) {
    const float y = x * scale;
    const unsigned a = moment_bits(y), normal = ((a + (noise & 0x1fffu)) >> 13) - (112u << 10);
    const unsigned denormal = (unsigned)(y * 0x1p24f + (float)(noise & 0xffffu) * 0x1p-16f);
    return a >= 0x38800000u ? normal : denormal;
}
static __device__ __host__ __forceinline__ float moment_from_half(unsigned code, float descale) {
    return (code >= 0x400u ? moment_float((code << 13) + (112u << 23)) : (float)code * 0x1p-24f) * descale;
}
// The exponent of a group's descale, from the bits of its largest magnitude: m then reaches at most 448 = 1.75 * 2^8, sqrt(v) less than 2^15.
static __device__ __forceinline__ unsigned moment_m_exponent(unsigned largest) {
    const int e = (int)(largest >> 23) - 8 + ((largest & 0x7fffffu) > 0x600000u);
    return e < 1 ? 1 : e;
}
static __device__ __forceinline__ unsigned moment_v_exponent(unsigned largest) {
    const int e = (int)(largest >> 23) - 14;
    return e < 77 ? 77 : e;  // the squares of all its steps are f32 still, so that a root that was read is stored again as it is
}

// ----------------------------------------------------------------------------
// eight values of a shard: element i of layer l. Stores are called by all lanes of a warp, inside or not: 16 lanes are a group.

template <MomentType M>
static __device__ __forceinline__ void moments_load8(float m[8], float v[8], const Moments& s, size_t l, size_t i) {
    const size_t at = l * s.stride + i, group = l * moment_groups(s.stride) + i / MOMENT_GROUP;
    if (M == MOMENT_F32) {
        load8(m, (const float*)s.m + at);
        load8(v, (const float*)s.v + at);
    } else if (M == MOMENT_BF16) {
        load8(m, (const bf16*)s.m + at);
        load8(v, (const bf16*)s.v + at);
    } else {
        const uint2 mc = *reinterpret_cast<const uint2*>((const uint8_t*)s.m + at);
        const uint4 vc = *reinterpret_cast<const uint4*>((const uint16_t*)s.v + at);
        const float m_descale = moment_pow2(s.m_exponent[group]), v_descale = moment_pow2(s.v_exponent[group]);
        const unsigned mw[2] = {mc.x, mc.y}, vw[4] = {vc.x, vc.y, vc.z, vc.w};
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            m[e] = moment_from_e4m3(mw[e / 4] >> (8 * (e % 4)) & 0xffu, m_descale);
            const float root = moment_from_half(vw[e / 2] >> (16 * (e % 2)) & 0xffffu, v_descale);
            v[e] = root * root;
        }
    }
}

// element: of the first of the eight in the whole tensor; keys: of the noise of m and of v.
template <MomentType M>
static __device__ __forceinline__ void moments_store8(const Moments& s, size_t l, size_t i, bool inside, const float m[8], const float v[8], uint64_t element, uint32_t m_key, uint32_t v_key) {
    const size_t at = l * s.stride + i;
    if (M == MOMENT_F32) {
        if (inside) {
            store8((float*)s.m + at, m);
            store8((float*)s.v + at, v);
        }
    } else if (M == MOMENT_BF16) {
        float mr[8], vr[8];
        for (int e = 0; e < 8; e++) {
            mr[e] = round_stochastic_bf16(m[e], noise_at(element + e, m_key));
            vr[e] = round_stochastic_bf16(v[e], noise_at(element + e, v_key));
        }
        if (inside) {
            store8((bf16*)s.m + at, mr);
            store8((bf16*)s.v + at, vr);
        }
    } else {
        float root[8];
        unsigned m_most = 0, v_most = 0;
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            root[e] = inside ? sqrtf(v[e]) : 0.0f;
            m_most = max(m_most, inside ? moment_bits(m[e]) & 0x7fffffffu : 0u);
            v_most = max(v_most, moment_bits(root[e]));
        }
        #pragma unroll
        for (int lanes = 1; lanes < MOMENT_GROUP / 8; lanes *= 2) {
            m_most = max(m_most, __shfl_xor_sync(FULL_MASK, m_most, lanes));
            v_most = max(v_most, __shfl_xor_sync(FULL_MASK, v_most, lanes));
        }
        if (!inside) { return; }
        const unsigned m_exponent = moment_m_exponent(m_most), v_exponent = moment_v_exponent(v_most);
        const float m_scale = moment_pow2(254 - m_exponent), v_scale = moment_pow2(254 - v_exponent);
        unsigned mw[2] = {0, 0}, vw[4] = {0, 0, 0, 0};
        #pragma unroll
        for (int e = 0; e < 8; e++) {
            mw[e / 4] |= moment_to_e4m3(m[e], m_scale, noise_at(element + e, m_key)) << (8 * (e % 4));
            vw[e / 2] |= moment_to_half(root[e], v_scale, noise_at(element + e, v_key)) << (16 * (e % 2));
        }
        *reinterpret_cast<uint2*>((uint8_t*)s.m + at) = make_uint2(mw[0], mw[1]);
        *reinterpret_cast<uint4*>((uint16_t*)s.v + at) = make_uint4(vw[0], vw[1], vw[2], vw[3]);
        if (i % MOMENT_GROUP == 0) {
            const size_t group = l * moment_groups(s.stride) + i / MOMENT_GROUP;
            s.m_exponent[group] = (uint8_t)m_exponent;
            s.v_exponent[group] = (uint8_t)v_exponent;
        }
    }
}

// ----------------------------------------------------------------------------
// to f32 and back, for checkpoints: n elements from element i on of layer l, i % 128 == 0. What load gave is stored without rounding.

template <MomentType M>
static __global__ void moments_unpack_kernel1(float* m, float* v, Moments s, size_t l, size_t i, size_t n) {
    size_t j = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (j >= n) { return; }
    float mm[8], vv[8];
    moments_load8<M>(mm, vv, s, l, i + j);
    if (m) { store8(m + j, mm); }
    if (v) { store8(v + j, vv); }
}
template <MomentType M>
static __global__ void moments_pack_kernel1(Moments s, const float* m, const float* v, size_t l, size_t i, size_t n) {
    size_t j = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    const bool inside = j < n;
    float mm[8] = {0.0f}, vv[8] = {0.0f};
    if (inside) {
        moments_load8<M>(mm, vv, s, l, i + j);
        if (m) { load8(mm, m + j); }
        if (v) { load8(vv, v + j); }
    }
    moments_store8<M>(s, l, i + j, inside, mm, vv, 0, 0, 0);
}
#define MOMENTS_DISPATCH(type, kernel, ...) \
    do { \
        if ((type) == MOMENT_F32) { launch<kernel<MOMENT_F32>>(__VA_ARGS__); } \
        else if ((type) == MOMENT_BF16) { launch<kernel<MOMENT_BF16>>(__VA_ARGS__); } \
        else { launch<kernel<MOMENT_F8>>(__VA_ARGS__); } \
    } while (0)

// m, v (n) f32 on the device, either may be NULL. Enqueues only.
static inline void moments_unpack(MomentType type, float* m, float* v, const Moments* s, size_t l, size_t i, size_t n, cudaStream_t stream) {
    MOMENTS_DISPATCH(type, moments_unpack_kernel1, dim3(CEIL_DIV(n, (size_t)2048)), dim3(256), 0, stream, m, v, *s, l, i, n);
}
// A NULL one stays as it is. n % 128 == 0 unless the shard ends there. Enqueues only.
static inline void moments_pack(MomentType type, Moments* s, const float* m, const float* v, size_t l, size_t i, size_t n, cudaStream_t stream) {
    MOMENTS_DISPATCH(type, moments_pack_kernel1, dim3(CEIL_DIV(n, (size_t)2048)), dim3(256), 0, stream, *s, m, v, l, i, n);
}

#endif
