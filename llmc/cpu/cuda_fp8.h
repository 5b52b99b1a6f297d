/* cuda_fp8.h - the 8-bit floating point formats on the CPU device, by CUDA's names, bit for bit CUDA's results
 *
 * What:      E4M3 (S.EEEE.MMM, bias 7, max 448, no infinity, NaN 0x7f/0xff) and E5M2 (S.EEEEE.MM, bias 15, max 57344, IEEE-like).  [OCP FP8 v1.0]
 * Numerics:  to nearest, ties to even. SATFINITE: everything beyond the largest value, infinities included, becomes the largest value.
 *            NOSAT: E4M3 NaN, E5M2 infinity. NaN becomes 0x7f in both formats and loses its sign, as CUDA's float conversion does.
 * How:       Normal results: add half a unit of the last place kept (and the tie bit) to the float's bits, cut, rebias. Results that are denormal:
 *            adding a power of two whose last place is the smallest denormal makes the float adder round. No branches, 32-bit lanes only: a loop
 *            of 16 becomes one pass of vector instructions. This is the hottest code of the CPU device.
 * Tests:     dev/test/test_fp8_convert.cu, against dev/test/fp8_oracle.cpp (CUDA's own header)
 */
#ifndef LLMC_CPU_CUDA_FP8_H
#define LLMC_CPU_CUDA_FP8_H

#include <cuda_runtime.h>
#include <cuda_bf16.h>

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef enum { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

// ----------------------------------------------------------------------------
// float -> FP8

// One formula for one value (U unsigned, I int, F float) and for 16 (vectors of them). The code is made in the top byte of a 32-bit lane and shifted
// down last: otherwise g++ narrows half of the work to bytes, which is slower. Selections are masks: g++ would thread ?: into jumps.
template <class U, class I, class F>
static __forceinline__ U cpu_fp8_encode(U u, __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
    const bool e4m3 = format == __NV_E4M3;
    const int cut = e4m3 ? 20 : 21;                                  // mantissa bits that go: 23 - 3, 23 - 2
    const unsigned rebias = e4m3 ? (127u - 7u) << 3 : (127u - 15u) << 2;
    const unsigned min_normal = e4m3 ? 0x3c800000u : 0x38800000u;    // 2^-6, 2^-14
    const float adder = e4m3 ? 0x1p14f : 0x1p7f;                     // their last place is 2^-9, 2^-16, the smallest denormals
    const unsigned largest = e4m3 ? 0x7eu : 0x7bu;
    const unsigned last = ((largest + rebias) << cut) + ((1u << cut) - 1u);
    const U a = u & 0x7fffffffu, limit = a - a + last;
    const U nan = (U)((I)(0x7f800000u - a) >> 31), small = (U)((I)(a - min_normal) >> 31);
    const U rounded = a + ((1u << (cut - 1)) - 1u) + ((a >> cut) & 1u);             // a carry into the exponent is right
    U normal = ((rounded < limit ? rounded : limit) << (24 - cut)) - (rebias << 24);
    if (saturate != __NV_SATFINITE) {
        const U beyond = (U)((I)(last - (rounded & 0x7fffffffu)) >> 31) | (U)((I)rounded >> 31);
        normal = (normal & ~beyond) | (beyond & (e4m3 ? 0x7f000000u : 0x7c000000u));
    }
    const U denormal = __builtin_bit_cast(U, __builtin_bit_cast(F, a) + adder) << 24;
    const U code = (denormal & small) | (normal & ~small) | (u & 0x80000000u);
    return ((code & ~nan) | (nan & 0x7f000000u)) >> 24;
}
static __forceinline__ unsigned cpu_fp8_from_float(float f, __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
    return cpu_fp8_encode<unsigned, int, float>(__builtin_bit_cast(unsigned, f), saturate, format);
}

// Sixteen at once, same results. Explicit vectors where the machine has them, whatever the optimizer makes of the code around; elsewhere loops of
// eight, which g++ vectorizes well (a loop of sixteen it cuts into four).
#ifdef __AVX512F__
typedef unsigned CpuUnsigned16 __attribute__((vector_size(64)));
typedef int CpuInt16 __attribute__((vector_size(64)));
typedef float CpuFloat16 __attribute__((vector_size(64)));
typedef unsigned char CpuByte16 __attribute__((vector_size(16)));
#endif
static __forceinline__ void cpu_fp8_from_float16(unsigned char out[16], const float in[16], __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
#ifdef __AVX512F__
    CpuUnsigned16 u;
    memcpy(&u, in, 64);
    CpuByte16 codes = __builtin_convertvector((cpu_fp8_encode<CpuUnsigned16, CpuInt16, CpuFloat16>(u, saturate, format)), CpuByte16);
    memcpy(out, &codes, 16);
#else
    for (int i = 0; i < 8; i++) { out[i] = (unsigned char)cpu_fp8_from_float(in[i], saturate, format); }
    for (int i = 8; i < 16; i++) { out[i] = (unsigned char)cpu_fp8_from_float(in[i], saturate, format); }
#endif
}

static __forceinline__ __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
    return (__nv_fp8_storage_t)cpu_fp8_from_float(x, saturate, format);
}
static __forceinline__ __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
    return (__nv_fp8x2_storage_t)(cpu_fp8_from_float(x.x, saturate, format) | cpu_fp8_from_float(x.y, saturate, format) << 8);
}
static __forceinline__ __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
    return (__nv_fp8_storage_t)cpu_fp8_from_float(cpu_bf16_to_float(x.x), saturate, format);
}
static __forceinline__ __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw x, __nv_saturation_t saturate, __nv_fp8_interpretation_t format) {
    return __nv_cvt_float2_to_fp8x2(make_float2(cpu_bf16_to_float(x.x), cpu_bf16_to_float(x.y)), saturate, format);
}

// ----------------------------------------------------------------------------
// FP8 -> float, exact. NaN: 0x7fffffff, as CUDA's way through half precision gives.

template <class U, class I, class F>
static __forceinline__ U cpu_fp8_decode(U code, __nv_fp8_interpretation_t format) {
    const bool e4m3 = format == __NV_E4M3;
    const U top = code << 24, a = top & 0x7f000000u;                 // in the top byte, as above
    const U normal = e4m3 ? (a >> 4) + ((127u - 7u) << 23) : (a >> 3) + ((127u - 15u) << 23);
    const U small = (U)((I)(a - (e4m3 ? 0x08000000u : 0x04000000u)) >> 31), nan = (U)((I)((e4m3 ? 0x7effffffu : 0x7cffffffu) - a) >> 31);
    // a denormal is its mantissa times 2^-9 (2^-16): read with the exponent of the smallest normal number it is that number too large
    const U denormal = normal + (small & 0x00800000u), excess = small & (e4m3 ? 0x3c800000u : 0x38800000u);
    U bits = __builtin_bit_cast(U, __builtin_bit_cast(F, denormal) - __builtin_bit_cast(F, excess));
    if (!e4m3) { bits |= (U)((I)(0x7bffffffu - a) >> 31) & 0x7f800000u; }           // exponent 31: infinity (or NaN)
    return ((bits | (top & 0x80000000u)) & ~nan) | (nan & 0x7fffffffu);
}
static __forceinline__ float cpu_fp8_to_float(unsigned code, __nv_fp8_interpretation_t format) {
    return __builtin_bit_cast(float, cpu_fp8_decode<unsigned, int, float>(code, format));
}
static __forceinline__ void cpu_fp8_to_float16(float out[16], const unsigned char in[16], __nv_fp8_interpretation_t format) {
#ifdef __AVX512F__
    unsigned codes[16];
    for (int i = 0; i < 16; i++) { codes[i] = in[i]; }  // not __builtin_convertvector, which g++ 12 does byte by byte in this direction
    CpuUnsigned16 u;
    memcpy(&u, codes, 64);
    u = cpu_fp8_decode<CpuUnsigned16, CpuInt16, CpuFloat16>(u, format);
    memcpy(out, &u, 64);
#else
    for (int i = 0; i < 8; i++) { out[i] = cpu_fp8_to_float(in[i], format); }
    for (int i = 8; i < 16; i++) { out[i] = cpu_fp8_to_float(in[i], format); }
#endif
}

// FP8 -> half precision, exact.
typedef struct { unsigned short x; } __half_raw;
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t code, __nv_fp8_interpretation_t format) {
    __half_raw half;
    unsigned a = code & 0x7fu, sign = (code & 0x80u) << 8;
    if (format == __NV_E5M2) { half.x = (unsigned short)(a > 0x7cu ? 0x7fffu : sign | a << 8); return half; }  // the upper half of it
    float f = cpu_fp8_to_float(a, format);
    unsigned bits = __builtin_bit_cast(unsigned, f);
    half.x = (unsigned short)(a == 0x7fu ? 0x7fffu : a == 0 ? sign : sign | (bits - ((127u - 15u) << 23)) >> 13);  // all normal numbers there
    return half;
}

struct __nv_fp8_e4m3 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e4m3() = default;
    explicit __forceinline__ __nv_fp8_e4m3(float f) : __x(__nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E4M3)) {}
    explicit __forceinline__ __nv_fp8_e4m3(__nv_bfloat16 f) : __nv_fp8_e4m3(__bfloat162float(f)) {}
    explicit __forceinline__ operator float() const { return cpu_fp8_to_float(__x, __NV_E4M3); }
};
struct __nv_fp8_e5m2 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e5m2() = default;
    explicit __forceinline__ __nv_fp8_e5m2(float f) : __x(__nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E5M2)) {}
    explicit __forceinline__ __nv_fp8_e5m2(__nv_bfloat16 f) : __nv_fp8_e5m2(__bfloat162float(f)) {}
    explicit __forceinline__ operator float() const { return cpu_fp8_to_float(__x, __NV_E5M2); }
};

#endif
