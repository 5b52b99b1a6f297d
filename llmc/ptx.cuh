/* ptx.cuh - the instructions that C++ has no words for, one function each, with a body for the CPU device; the only file with PTX
 *
 * What:      ptx_mma16 (two mma.sync.m16n8k16, bf16 -> f32), ptx_ldmatrix4 and its transposing form, ptx_copy16 (cp.async), ptx_exp2.
 * Fragments: lane l of a warp, g = l / 4, t = l % 4. A register holds two bf16, the lower column (row) in the low half.
 *            a[4], 16 x 16, rows x k: (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), and the column after each
 *            b[4], 16 x 16, k x columns: (2t, g) (2t + 8, g) (2t, g + 8) (2t + 8, g + 8), and the row after each
 *            d[2][4], 16 x 16 f32, two tiles of 8 columns: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)       [PTX ISA, "Matrix fragments for mma.m16n8k16"]
 * Warps:     mma and ldmatrix are for full warps, all lanes together; on the CPU device they are checked collectives.
 * Needs:     compute capability 8.0.
 * Tests:     dev/test/test_ptx.cu
 */
#ifndef LLMC_PTX_CUH
#define LLMC_PTX_CUH

#include "llmc/device.cuh"

#ifdef GPT_CPU_DEVICE

#include "cpu_ptx.h"

#define ptx_mma16(d, a, b) cpu_mma16(CPU_SITE, d, a, b)
#define ptx_ldmatrix4(r, address) cpu_ldmatrix4<false>(CPU_SITE, r, address)
#define ptx_ldmatrix4_trans(r, address) cpu_ldmatrix4<true>(CPU_SITE, r, address)
static __forceinline__ void ptx_copy16(void* shared, const void* global, bool valid) { cpu_copy16(shared, global, valid); }
static __forceinline__ void ptx_copy_commit(void) { cpu_copy_commit(); }
template <int N> static __forceinline__ void ptx_copy_wait(void) { cpu_copy_wait(N); }
static __forceinline__ float ptx_exp2(float x) { return cpu_expf(x * 0.693147180559945f); }

#else

// d += a b
static __device__ __forceinline__ void ptx_mma16(float (&d)[2][4], const unsigned (&a)[4], const unsigned (&b)[4]) {
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * j]), "r"(b[2 * j + 1]));
    }
}
// Four matrices of 8 x 8 bf16. Lane l gives the shared address of row l % 8 of matrix l / 8 (16 bytes, aligned) and gets of matrix j, in r[j], elements
// (g, 2t) and (g, 2t + 1); transposed: (2t, g) and (2t + 1, g).
static __device__ __forceinline__ void ptx_ldmatrix4(unsigned (&r)[4], const void* address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(address)) : "memory");
}
static __device__ __forceinline__ void ptx_ldmatrix4_trans(unsigned (&r)[4], const void* address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(address)) : "memory");
}
// 16 bytes from global to shared memory, on their way until waited for; not valid: zeros, and global is not read (but must be an address).
static __device__ __forceinline__ void ptx_copy16(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0) : "memory");
}
// What this thread copied since the last commit is a group. Wait: until at most the newest N groups are on their way; for other threads' copies a barrier too.
static __device__ __forceinline__ void ptx_copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void ptx_copy_wait(void) { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
// 2^x; results below 2^-126 are 0.
static __device__ __forceinline__ float ptx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

#endif
