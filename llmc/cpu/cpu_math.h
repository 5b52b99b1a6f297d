/* cpu_math.h - device intrinsics and the transcendental functions of kernels
 *
 * Intrinsics by CUDA's names and semantics. cpu_expf, cpu_tanhf, cpu_logf: see there for accuracy and special values.
 * Tests: dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_MATH_H
#define LLMC_CPU_MATH_H

#include <math.h>
#include <stdint.h>

#include "cpu_worker.h"

// ----------------------------------------------------------------------------
// bits and arithmetic

static __forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static __forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
static __forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static __forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
static __forceinline__ long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
static __forceinline__ double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
static __forceinline__ float __fadd_rn(float a, float b) { return a + b; }
static __forceinline__ float __fsub_rn(float a, float b) { return a - b; }
static __forceinline__ float __fmul_rn(float a, float b) { return a * b; }
static __forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
static __forceinline__ float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static __forceinline__ float __frcp_rn(float a) { return 1.0f / a; }
static __forceinline__ float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static __forceinline__ float __fdividef(float a, float b) { return a / b; }
static __forceinline__ float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
static __forceinline__ float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
static __forceinline__ int __float2int_rn(float a) { return (int)__builtin_rintf(a); }
static __forceinline__ int __float2int_rz(float a) { return (int)a; }
static __forceinline__ float __int2float_rn(int a) { return (float)a; }
static __forceinline__ float __uint2float_rn(unsigned a) { return (float)a; }
static __forceinline__ int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static __forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
static __forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
static __forceinline__ unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static __forceinline__ int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static __forceinline__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
static __forceinline__ unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
// Each nibble of the selector picks one of the eight bytes of (b, a); its top bit asks for the byte's sign instead.
static __forceinline__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> 4 * i & 0xfu, byte = (unsigned)(bytes >> 8 * (pick & 7u)) & 0xffu;
        out |= (pick & 8u ? (byte & 0x80u ? 0xffu : 0u) : byte) << 8 * i;
    }
    return out;
}
static __forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) { return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31u) >> 32); }
static __forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) { return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31u)); }

static __forceinline__ int min(int a, int b) { return a < b ? a : b; }
static __forceinline__ int max(int a, int b) { return a > b ? a : b; }
static __forceinline__ unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static __forceinline__ unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static __forceinline__ long min(long a, long b) { return a < b ? a : b; }
static __forceinline__ long max(long a, long b) { return a > b ? a : b; }
static __forceinline__ unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
static __forceinline__ unsigned long max(unsigned long a, unsigned long b) { return a > b ? a : b; }
static __forceinline__ long long min(long long a, long long b) { return a < b ? a : b; }
static __forceinline__ long long max(long long a, long long b) { return a > b ? a : b; }
static __forceinline__ unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
static __forceinline__ unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
// floating point: a NaN loses against a number, as CUDA's fminf and fmaxf
static __forceinline__ float min(float a, float b) { return a < b || b != b ? a : b; }
static __forceinline__ float max(float a, float b) { return a > b || b != b ? a : b; }
static __forceinline__ double min(double a, double b) { return a < b || b != b ? a : b; }
static __forceinline__ double max(double a, double b) { return a > b || b != b ? a : b; }

// ----------------------------------------------------------------------------
// memory

template <class T> static __forceinline__ T __ldg(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldcs(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldcg(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldca(const T* p) { return *p; }
template <class T> static __forceinline__ T __ldcv(const T* p) { return *(const volatile T*)p; }
template <class T> static __forceinline__ void __stcs(T* p, T value) { *p = value; }
template <class T> static __forceinline__ void __stcg(T* p, T value) { *p = value; }
template <class T> static __forceinline__ void __stwb(T* p, T value) { *p = value; }
template <class T> static __forceinline__ void __stwt(T* p, T value) { *p = value; }
static __forceinline__ void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static __forceinline__ void __threadfence_block(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static __forceinline__ void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Relaxed, as CUDA's.
#define CPU_ATOMIC_INTEGER(T) \
    static __forceinline__ T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); } \
    static __forceinline__ T atomicAnd(T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); } \
    static __forceinline__ T atomicOr(T* p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); } \
    static __forceinline__ T atomicXor(T* p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); } \
    static __forceinline__ T atomicExch(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); } \
    static __forceinline__ T atomicCAS(T* p, T old, T v) { __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return old; } \
    static inline T atomicMax(T* p, T v) { \
        T old = __atomic_load_n(p, __ATOMIC_RELAXED); \
        while (old < v && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { } \
        return old; \
    } \
    static inline T atomicMin(T* p, T v) { \
        T old = __atomic_load_n(p, __ATOMIC_RELAXED); \
        while (old > v && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { } \
        return old; \
    }
CPU_ATOMIC_INTEGER(int)
CPU_ATOMIC_INTEGER(unsigned)
CPU_ATOMIC_INTEGER(unsigned long long)
static __forceinline__ int atomicSub(int* p, int v) { return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); }
static __forceinline__ unsigned atomicSub(unsigned* p, unsigned v) { return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); }
static inline float atomicAdd(float* p, float v) {
    unsigned old = __atomic_load_n((unsigned*)p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n((unsigned*)p, &old, __float_as_uint(__uint_as_float(old) + v), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { }
    return __uint_as_float(old);
}
static __forceinline__ float atomicExch(float* p, float v) { return __uint_as_float(__atomic_exchange_n((unsigned*)p, __float_as_uint(v), __ATOMIC_RELAXED)); }

#define __trap() cpu_fail("trap", false, "", "the kernel stopped itself at %s", CPU_SITE)

// ----------------------------------------------------------------------------
// transcendental functions
//
// One polynomial each, without branches or tables: inlined into a loop over 8 or 16 elements they become vector instructions, and the result does not
// depend on the C library's version. Coefficients: minimax fits of our own (Remez exchange; the errors given are the fits', before rounding).
// Largest errors over all floats, measured against double by dev/test/test_cpu_device.cu.

// With contraction off only these multiply-adds are fused, and only where the instruction exists: elsewhere fmaf is a slow library call.
static __forceinline__ float cpu_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// Selections are masks, not ?: on related conditions: g++ threads those into jumps and then cannot vectorize the loop around.
static __forceinline__ unsigned cpu_mask_less(unsigned a, unsigned b) { return (unsigned)((int)(a - b) >> 31); }  // all ones if a < b; both below 2^31
static __forceinline__ unsigned cpu_select(unsigned mask, unsigned a, unsigned b) { return (a & mask) | (b & ~mask); }

// e^x. Denormal results are gradual, overflow (x > 88.7228) is infinity, e^-inf = 0, NaN stays NaN.
static __forceinline__ float cpu_expf(float x) {
    const unsigned u = __builtin_bit_cast(unsigned, x), magnitude = u & 0x7fffffffu, nan = cpu_mask_less(0x7f800000u, magnitude);
    const unsigned clamped = magnitude < 0x42d00000u ? magnitude : 0x42d00000u;            // at 104: e^-104 rounds to 0, e^104 is infinite
    x = __builtin_bit_cast(float, clamped | (u & 0x80000000u));
    // x = k ln 2 + r: adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits. ln 2 in two parts, the first short enough that k times it is exact
    float shifted = cpu_fma(x, 1.44269504f, 12582912.0f), k = shifted - 12582912.0f;
    float r = cpu_fma(k, -1.42860677e-6f, cpu_fma(k, -0.693145752f, x));
    float p = 1.381446696e-03f;                             // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, relative error of e^r 2^-28.3
    p = cpu_fma(p, r, 8.368780409e-03f);
    p = cpu_fma(p, r, 4.166839421e-02f);
    p = cpu_fma(p, r, 1.666652011e-01f);
    p = cpu_fma(p, r, 4.999999341e-01f);
    p = cpu_fma(p * r, r, r) + 1.0f;
    // 2^k in two factors, since k goes from -150 to 150
    int n = (int)(__builtin_bit_cast(unsigned, shifted) - 0x4b400000u), half = n >> 1;
    float a = __builtin_bit_cast(float, (unsigned)(half + 127) << 23), b = __builtin_bit_cast(float, (unsigned)(n - half + 127) << 23);
    return __builtin_bit_cast(float, cpu_select(nan, u, __builtin_bit_cast(unsigned, p * a * b)));
}

// tanh |x| = |x| P(x^2) / Q(x^2) up to 9.02, from where on it rounds to 1. NaN stays NaN.
static __forceinline__ float cpu_tanhf(float x) {
    const unsigned u = __builtin_bit_cast(unsigned, x), magnitude = u & 0x7fffffffu, nan = cpu_mask_less(0x7f800000u, magnitude);
    const float a = __builtin_bit_cast(float, magnitude < 0x411051ecu ? magnitude : 0x411051ecu), t = a * a;
    float p = -1.220341175e-11f;                            // relative error of the fit 2^-29.5
    p = cpu_fma(p, t, 3.058494491e-08f);
    p = cpu_fma(p, t, 2.800742509e-05f);
    p = cpu_fma(p, t, 3.868326021e-03f);
    p = cpu_fma(p, t, 1.367991368e-01f);
    p = cpu_fma(p, t, 9.999999987e-01f);
    float q = 1.287364289e-06f;
    q = cpu_fma(q, t, 3.938628111e-04f);
    q = cpu_fma(q, t, 2.724583245e-02f);
    q = cpu_fma(q, t, 4.701324574e-01f);
    q = cpu_fma(q, t, 1.0f);
    unsigned y = __builtin_bit_cast(unsigned, a * p / q);
    y = cpu_select(cpu_mask_less(magnitude, 0x41102d0eu), y < 0x3f800000u ? y : 0x3f800000u, 0x3f800000u);  // exactly 1 from 9.011 on
    return __builtin_bit_cast(float, cpu_select(nan, u, y | (u & 0x80000000u)));
}

// Natural logarithm. log 0 = -inf, log of a negative number or NaN is NaN, log inf = inf; denormals are inputs like others.
static __forceinline__ float cpu_logf(float x) {
    const unsigned bits = __builtin_bit_cast(unsigned, x);
    const unsigned tiny = cpu_mask_less(bits & 0x7fffffffu, 0x00800000u);
    unsigned u = __builtin_bit_cast(unsigned, x * __builtin_bit_cast(float, 0x3f800000u + (tiny & 23u << 23))) - 0x3f3504f3u;  // 0x3f3504f3 is sqrt(1/2)
    float e = (float)(((int)u >> 23) - (int)(tiny & 23u));
    float f = __builtin_bit_cast(float, (u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;               // x = 2^e (1 + f), 1 + f from sqrt(1/2) to sqrt 2
    float p = -7.634566865e-02f;                            // (log(1 + f) - f + f^2/2) / f^3, relative error of the logarithm 2^-27.3
    p = cpu_fma(p, f, 1.276160709e-01f);
    p = cpu_fma(p, f, -1.316016826e-01f);
    p = cpu_fma(p, f, 1.420175350e-01f);
    p = cpu_fma(p, f, -1.662335871e-01f);
    p = cpu_fma(p, f, 2.000122706e-01f);
    p = cpu_fma(p, f, -2.500082098e-01f);
    p = cpu_fma(p, f, 3.333333171e-01f);
    float s = f * f, y = cpu_fma(f * p, s, -0.5f * s);
    y = cpu_fma(e, 0.693145752f, f + cpu_fma(e, 1.42860677e-6f, y));
    const unsigned ordinary = ~((unsigned)((int)bits >> 31) | cpu_mask_less(0x7f7fffffu, bits & 0x7fffffffu) | cpu_mask_less(bits & 0x7fffffffu, 1u));
    const unsigned zero = cpu_mask_less(bits & 0x7fffffffu, 1u), infinite = ~(unsigned)((int)bits >> 31) & cpu_mask_less(bits & 0x7fffffffu, 0x7f800001u);
    const unsigned special = cpu_select(zero, 0xff800000u, cpu_select(infinite, 0x7f800000u, 0x7fc00000u));
    return __builtin_bit_cast(float, cpu_select(ordinary, __builtin_bit_cast(unsigned, y), special));
}

// the C library has functions of these names
#define __expf cpu_expf
#define __logf cpu_logf

#endif
