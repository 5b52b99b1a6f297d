/* cpu_types.h - CUDA's qualifiers and vector types, for g++
 *
 * Alignments are CUDA's: a misaligned 16-byte access is undefined here too, and reported by UBSan. Sources are built with -fno-strict-aliasing,
 * since kernels read arrays of one type through vectors of another.
 */
#ifndef LLMC_CPU_TYPES_H
#define LLMC_CPU_TYPES_H

#include <stdint.h>

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 11
#error "the CPU device needs g++ 11 or newer (Debian 12, Ubuntu 22.04): make CXX=g++-12"
#endif

#define GPT_CPU_DEVICE 1

#define __host__
#define __device__
#define __global__ inline
#define __constant__ static_assert(false, "the CPU device has no __constant__ memory: pass a kernel argument");
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

#define CPU_VECTOR1(name, T) struct name { T x; }; static inline name make_##name(T x) { name v = {x}; return v; }
#define CPU_VECTOR2(name, T) struct alignas(2 * sizeof(T)) name { T x, y; }; static inline name make_##name(T x, T y) { name v = {x, y}; return v; }
#define CPU_VECTOR3(name, T) struct name { T x, y, z; }; static inline name make_##name(T x, T y, T z) { name v = {x, y, z}; return v; }
#define CPU_VECTOR4(name, T, A) struct alignas(A) name { T x, y, z, w; }; static inline name make_##name(T x, T y, T z, T w) { name v = {x, y, z, w}; return v; }

CPU_VECTOR1(int1, int) CPU_VECTOR1(uint1, unsigned) CPU_VECTOR1(float1, float)
CPU_VECTOR2(char2, signed char) CPU_VECTOR2(uchar2, unsigned char) CPU_VECTOR2(short2, short) CPU_VECTOR2(ushort2, unsigned short)
CPU_VECTOR2(int2, int) CPU_VECTOR2(uint2, unsigned) CPU_VECTOR2(float2, float) CPU_VECTOR2(longlong2, long long)
CPU_VECTOR2(ulonglong2, unsigned long long) CPU_VECTOR2(double2, double)
CPU_VECTOR3(int3, int) CPU_VECTOR3(uint3, unsigned) CPU_VECTOR3(float3, float)
CPU_VECTOR4(char4, signed char, 4) CPU_VECTOR4(uchar4, unsigned char, 4) CPU_VECTOR4(short4, short, 8) CPU_VECTOR4(ushort4, unsigned short, 8)
CPU_VECTOR4(int4, int, 16) CPU_VECTOR4(uint4, unsigned, 16) CPU_VECTOR4(float4, float, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

#endif
