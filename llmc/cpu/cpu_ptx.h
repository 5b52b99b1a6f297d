/* cpu_ptx.h - bodies of the instructions in llmc/ptx.cuh: tensor core products, ldmatrix, asynchronous copies
 *
 * How:       ldmatrix and mma are collectives of a full warp: the last lane to arrive reads and writes the registers of all lanes, which lie on the stacks
 *            of those that wait, in the layout that PTX documents.
 * Numerics:  products of two bf16 are exact in f32; a sum adds them to d one by one, k ascending. (A tensor core adds in another order, and cuts.)
 * Copies:    at once; in check mode as late as allowed: the target is poisoned, and filled when its thread waits for the group.
 * Errors:    "ldmatrix-address": a row that is not 16-byte aligned. "copy-address": the same for either end of a copy.
 * Tests:     dev/test/test_ptx.cu
 */
#ifndef LLMC_CPU_PTX_H
#define LLMC_CPU_PTX_H

#include <cuda_bf16.h>
#include <vector>

// ----------------------------------------------------------------------------
// tensor cores

struct CpuLaneMma { float (*d)[4]; const unsigned *a, *b; };

static __forceinline__ float cpu_half_of(unsigned pair, int i) { return cpu_bf16_to_float((unsigned short)(i ? pair >> 16 : pair)); }

__attribute__((noinline)) static void cpu_mma16_warp(const uint64_t* slots) {
    float a[16][16], b[16][16], d[16][16];
    for (int lane = 0; lane < CPU_WARP; lane++) {
        const CpuLaneMma* m = (const CpuLaneMma*)(uintptr_t)slots[lane];
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 2; i++) {
                a[g + r % 2 * 8][2 * t + r / 2 * 8 + i] = cpu_half_of(m->a[r], i);
                b[2 * t + r % 2 * 8 + i][g + r / 2 * 8] = cpu_half_of(m->b[r], i);
                d[g + r / 2 * 8][i * 8 + 2 * t + r % 2] = m->d[i][r];
            }
        }
    }
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 16; k++) { for (int c = 0; c < 16; c++) { d[row][c] += a[row][k] * b[k][c]; } }
    }
    for (int lane = 0; lane < CPU_WARP; lane++) {
        const CpuLaneMma* m = (const CpuLaneMma*)(uintptr_t)slots[lane];
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++) { for (int i = 0; i < 2; i++) { m->d[i][r] = d[g + r / 2 * 8][i * 8 + 2 * t + r % 2]; } }
    }
}
static inline void cpu_mma16(const char* site, float (&d)[2][4], const unsigned (&a)[4], const unsigned (&b)[4]) {
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread;
    const CpuLaneMma mine = {d, a, b};
    w->slot[me] = (uint64_t)(uintptr_t)&mine;
    if (cpu_warp_arrive(w, 0xffffffffu, site)) { cpu_mma16_warp(w->slot + me / CPU_WARP * CPU_WARP); } else { cpu_suspend(w); }
}

struct CpuLaneMatrix { unsigned* r; const unsigned short* row; };

template <bool TRANS>
static inline void cpu_ldmatrix4(const char* site, unsigned (&r)[4], const void* address) {
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread, base = me / CPU_WARP * CPU_WARP;
    if (__builtin_expect((uintptr_t)address % 16 != 0, 0)) {
        cpu_fail("ldmatrix-address", false, "rows start at multiples of 16 bytes", "the address of lane %u ends in %x, at %s", me % CPU_WARP, (unsigned)((uintptr_t)address % 16), site);
    }
    const CpuLaneMatrix mine = {r, (const unsigned short*)address};
    w->slot[me] = (uint64_t)(uintptr_t)&mine;
    if (!cpu_warp_arrive(w, 0xffffffffu, site)) { cpu_suspend(w); return; }
    for (int lane = 0; lane < CPU_WARP; lane++) {
        unsigned* out = ((const CpuLaneMatrix*)(uintptr_t)w->slot[base + lane])->r;
        const int g = lane / 4, t = lane % 4;
        for (int j = 0; j < 4; j++) {
            auto element = [&](int row, int column) { return (unsigned)((const CpuLaneMatrix*)(uintptr_t)w->slot[base + 8 * j + row])->row[column]; };
            out[j] = TRANS ? element(2 * t, g) | element(2 * t + 1, g) << 16 : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
        }
    }
}

// ----------------------------------------------------------------------------
// asynchronous copies

// Check mode: what a thread has copied but not waited for. Groups are numbered; those of an earlier block are forgotten.
struct CpuCopy { unsigned group; void* shared; const void* global; };  // global NULL: zeros
struct CpuCopies { unsigned long launch; uint3 block; unsigned group; std::vector<CpuCopy> pending; };

static inline CpuCopies* cpu_copies(const CpuWorker* w) {
    static thread_local std::vector<CpuCopies> of_thread(CPU_MAX_THREADS);
    CpuCopies* c = &of_thread[cpu_ids.thread];
    if (c->launch != w->launch_number || memcmp(&c->block, &cpu_ids.block_idx, sizeof(uint3)) != 0) {
        c->launch = w->launch_number;
        c->block = cpu_ids.block_idx;
        c->group = 0;
        c->pending.clear();
    }
    return c;
}
static inline void cpu_copy16(void* shared, const void* global, bool valid) {
    const CpuWorker* w = cpu_kernel_worker("ptx_copy16");
    if (__builtin_expect(((uintptr_t)shared | (uintptr_t)global) % 16 != 0, 0)) {
        cpu_fail("copy-address", false, "both addresses are multiples of 16 bytes", "a copy of 16 bytes to an address that ends in %x from one that ends in %x",
                 (unsigned)((uintptr_t)shared % 16), (unsigned)((uintptr_t)global % 16));
    }
    if (w->check) {
        CpuCopies* c = cpu_copies(w);
        c->pending.push_back({c->group, shared, valid ? global : NULL});
        memset(shared, (int)cpu_modes()->poison, 16);
    } else if (valid) { memcpy(shared, global, 16); } else { memset(shared, 0, 16); }
}
static inline void cpu_copy_commit(void) {
    const CpuWorker* w = cpu_kernel_worker("ptx_copy_commit");
    if (w->check) { cpu_copies(w)->group++; }
}
// Until at most the newest n groups are on their way.
static inline void cpu_copy_wait(unsigned n) {
    const CpuWorker* w = cpu_kernel_worker("ptx_copy_wait");
    if (!w->check) { return; }
    CpuCopies* c = cpu_copies(w);
    size_t kept = 0;
    for (const CpuCopy& copy : c->pending) {
        if (copy.group + n >= c->group) { c->pending[kept++] = copy; continue; }  // not committed, or among the newest n
        if (copy.global) { memcpy(copy.shared, copy.global, 16); } else { memset(copy.shared, 0, 16); }
    }
    c->pending.resize(kept);
}

#endif
