/* cuda_bf16.h - __nv_bfloat16 on the CPU device, by CUDA's names
 *
 * Numerics: float -> bf16 rounds to nearest, ties to even; every NaN becomes 0x7fff, as CUDA's; bf16 -> float is exact. Arithmetic on two bf16 rounds
 *           once, from float: exact products and sums of two bf16 are what the hardware rounds, too.
 * Speed:    branch-free integer code, so that a loop of 8 or 16 becomes vector instructions (not vcvtneps2bf16, which flushes denormals).
 * Tests:    dev/test/test_fp8_convert.cu
 */
#ifndef LLMC_CPU_CUDA_BF16_H
#define LLMC_CPU_CUDA_BF16_H

#include <cuda_runtime.h>

static __forceinline__ unsigned short cpu_bf16_from_float(float f) {
    unsigned u = __builtin_bit_cast(unsigned, f), nan = (unsigned)((int)(0x7f800000u - (u & 0x7fffffffu)) >> 31);
    unsigned rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (unsigned short)(((rounded & ~nan) | (nan & 0x7fff0000u)) >> 16);
}
static __forceinline__ float cpu_bf16_to_float(unsigned short x) { return __builtin_bit_cast(float, (unsigned)x << 16); }

typedef struct { unsigned short x; } __nv_bfloat16_raw;
typedef struct alignas(4) { unsigned short x, y; } __nv_bfloat162_raw;

struct __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __forceinline__ __nv_bfloat16(float f) : __x(cpu_bf16_from_float(f)) {}
    __forceinline__ __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
    __forceinline__ operator float() const { return cpu_bf16_to_float(__x); }
    __forceinline__ operator __nv_bfloat16_raw() const { return __nv_bfloat16_raw{__x}; }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __forceinline__ __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static __forceinline__ __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
static __forceinline__ unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.__x; }
static __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static __forceinline__ __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static __forceinline__ float __bfloat162float(__nv_bfloat16 h) { return cpu_bf16_to_float(h.__x); }
static __forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b)); }
static __forceinline__ __nv_bfloat162 __float22bfloat162_rn(float2 f) { return __floats2bfloat162_rn(f.x, f.y); }
static __forceinline__ float2 __bfloat1622float2(__nv_bfloat162 h) { return make_float2(__bfloat162float(h.x), __bfloat162float(h.y)); }
static __forceinline__ float __low2float(__nv_bfloat162 h) { return __bfloat162float(h.x); }
static __forceinline__ float __high2float(__nv_bfloat162 h) { return __bfloat162float(h.y); }
static __forceinline__ __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
static __forceinline__ __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }

static __forceinline__ __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(__bfloat162float(a) + __bfloat162float(b)); }
static __forceinline__ __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(__bfloat162float(a) - __bfloat162float(b)); }
static __forceinline__ __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(__bfloat162float(a) * __bfloat162float(b)); }

#endif
