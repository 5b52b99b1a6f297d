/* device.cuh - the one place where the GPU and the CPU device differ for a kernel's author
 *
 * Built by nvcc this is CUDA; built by g++ with llmc/cpu first on the include path the same names are the CPU device (see llmc/cpu/README.md).
 *
 *   launch<kernel>(grid, block, smem, stream, args...)   starts a kernel; checks the launch; feeds the trace ring and the profiler
 *   SHARED(type, name, n) / SHARED_DYN(type, name)       static / dynamic shared memory
 *   warp_sum, warp_max, block_sum, block_max             the house's only reductions: same order of additions on both devices
 *   load8 / store8                                       eight elements at once (16 or 32 bytes, aligned to 16)
 *   dev_expf, dev_logf                                   the transcendental functions of kernels (CPU: inline polynomials)
 *
 * Rule R3: nothing here depends on the number of multiprocessors. No float atomics.
 */
#ifndef LLMC_DEVICE_CUH
#define LLMC_DEVICE_CUH

#include <cuda_runtime.h>  // CUDA's, or llmc/cpu's (which defines GPT_CPU_DEVICE)
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "llmc/common.h"
#include "llmc/profile.cuh"

typedef __nv_bfloat16 bf16;

#define WARP_SIZE 32
#define FULL_MASK 0xffffffffu

// ----------------------------------------------------------------------------
// errors of the CUDA runtime

static inline void cuda_check(cudaError_t error, const char* call, const char* file, int line) {
    if (error != cudaSuccess) {
        const char* hint = error == cudaErrorMemoryAllocation ? "choose a smaller --batch-size, a smaller model or a GPU with more memory" : "run with GPT_TRACE=launch to see the last kernels";
        fail_at(1, file, line, "", hint, "CUDA error %d (%s) from %s: %s", (int)error, cudaGetErrorName(error), call, cudaGetErrorString(error));
    }
}
#define cudaCheck(call) cuda_check((call), #call, __FILE__, __LINE__)

// ----------------------------------------------------------------------------
// launch and shared memory

// The name of a kernel given as a template constant, as the compiler spells it: "... kernel = layernorm_forward_kernel1<float>; ...".
template <auto kernel>
static inline const char* launch_name() { return __PRETTY_FUNCTION__; }

#ifdef GPT_CPU_DEVICE

template <auto kernel, class... Args>
inline void launch(dim3 grid, dim3 block, size_t smem, cudaStream_t stream, Args... args) {
    ProfileScope scope(launch_name<kernel>(), grid.x * (size_t)grid.y * grid.z, stream);
    cpu_launch<kernel>(grid, block, smem, stream, args...);
    cudaCheck(cudaGetLastError());
}
#define SHARED(type, name, n) CPU_SHARED(type, name, n)
#define SHARED_DYN(type, name) CPU_SHARED_DYN(type, name)

#else

template <auto kernel, class... Args>
inline void launch(dim3 grid, dim3 block, size_t smem, cudaStream_t stream, Args... args) {
    ProfileScope scope(launch_name<kernel>(), grid.x * (size_t)grid.y * grid.z, stream);
    kernel<<<grid, block, smem, stream>>>(args...);
    cudaCheck(cudaGetLastError());
}
#define SHARED(type, name, n) __shared__ __align__(16) type name[n]
// one untyped symbol for all kernels, since an extern shared array has one type a name
#define SHARED_DYN(type, name) extern __shared__ __align__(16) unsigned char shared_dyn_bytes[]; type* name = reinterpret_cast<type*>(shared_dyn_bytes)

#endif

// ----------------------------------------------------------------------------
// reductions. Every lane of a full warp (block) must arrive; every lane gets the same bits: a butterfly adds pairs, and a + b == b + a.

#ifdef GPT_CPU_DEVICE

#define warp_sum(value) cpu_warp_reduce<CpuSum>(value, CPU_SITE)
#define warp_max(value) cpu_warp_reduce<CpuMax>(value, CPU_SITE)
#define block_sum(value) cpu_block_reduce<CpuSum>(value, CPU_SITE)
#define block_max(value) cpu_block_reduce<CpuMax>(value, CPU_SITE)

#else

struct OpSum { template <class T> static __device__ T apply(T a, T b) { return a + b; }  template <class T> static __device__ T identity() { return T(0); } };
// float: fmaxf, so a NaN is lost: amaxes therefore travel as the uint32 bits of |x| (rule R2)
struct OpMax {
    static __device__ float apply(float a, float b) { return fmaxf(a, b); }
    static __device__ unsigned apply(unsigned a, unsigned b) { return a > b ? a : b; }
    static __device__ int apply(int a, int b) { return a > b ? a : b; }
    template <class T> static __device__ T identity() { return std::is_same<T, float>::value ? T(-INFINITY) : std::is_same<T, int>::value ? T(INT_MIN) : T(0); }
};
template <class Op, class T> static __device__ __forceinline__ T warp_reduce(T value) {
    #pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) { value = Op::apply(value, __shfl_xor_sync(FULL_MASK, value, offset)); }
    return value;
}
// Two barriers: one before the partial results are read, one before the next call may overwrite them. blockDim must be a multiple of 32.
template <class Op, class T> static __device__ __forceinline__ T block_reduce(T value) {
    __shared__ T partial[WARP_SIZE];
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int lane = thread % WARP_SIZE, warp = thread / WARP_SIZE;
    int num_warps = blockDim.x * blockDim.y * blockDim.z / WARP_SIZE;
    value = warp_reduce<Op>(value);
    if (lane == 0) { partial[warp] = value; }
    __syncthreads();
    value = warp_reduce<Op>(lane < num_warps ? partial[lane] : Op::template identity<T>());
    __syncthreads();
    return value;
}
#define warp_sum(value) warp_reduce<OpSum>(value)
#define warp_max(value) warp_reduce<OpMax>(value)
#define block_sum(value) block_reduce<OpSum>(value)
#define block_max(value) block_reduce<OpMax>(value)

#endif

// ----------------------------------------------------------------------------
// elements

static __device__ __host__ __forceinline__ float to_float(float x) { return x; }
static __device__ __host__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <class T> static __device__ __host__ __forceinline__ T from_float(float x);
template <> __device__ __host__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __host__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }  // nearest, ties to even

// Eight consecutive elements, widened to float. address: aligned to 16 bytes.
static __device__ __forceinline__ void load8(float out[8], const float* address) {
    float4 a = reinterpret_cast<const float4*>(address)[0], b = reinterpret_cast<const float4*>(address)[1];
    out[0] = a.x; out[1] = a.y; out[2] = a.z; out[3] = a.w; out[4] = b.x; out[5] = b.y; out[6] = b.z; out[7] = b.w;
}
static __device__ __forceinline__ void store8(float* address, const float in[8]) {
    reinterpret_cast<float4*>(address)[0] = make_float4(in[0], in[1], in[2], in[3]);
    reinterpret_cast<float4*>(address)[1] = make_float4(in[4], in[5], in[6], in[7]);
}
struct alignas(16) Pack8 { bf16 v[8]; };
static __device__ __forceinline__ void load8(float out[8], const bf16* address) {
    Pack8 pack = *reinterpret_cast<const Pack8*>(address);
    #pragma unroll
    for (int i = 0; i < 8; i++) { out[i] = __bfloat162float(pack.v[i]); }
}
static __device__ __forceinline__ void store8(bf16* address, const float in[8]) {
    Pack8 pack;
    #pragma unroll
    for (int i = 0; i < 8; i++) { pack.v[i] = __float2bfloat16_rn(in[i]); }
    *reinterpret_cast<Pack8*>(address) = pack;
}

// ----------------------------------------------------------------------------
// transcendental functions of kernels

#ifdef GPT_CPU_DEVICE
#define dev_expf cpu_expf
#define dev_logf cpu_logf
#else
static __device__ __forceinline__ float dev_expf(float x) { return __expf(x); }
static __device__ __forceinline__ float dev_logf(float x) { return logf(x); }
#endif

#endif
