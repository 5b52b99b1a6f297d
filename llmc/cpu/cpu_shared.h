/* cpu_shared.h - shared memory: an array for every place in the source that declares one, and the dynamic array
 *
 * Static arrays live in an arena of the worker and keep their place for a launch; under ASan each is an allocation of its own, exactly as large as it
 * was declared. In check mode every block finds them poisoned, a gap behind each must stay poisoned, and none is aligned better than its type asks.
 * Limits are CUDA's: 48 KiB static, and with the dynamic array what the architecture has.
 * Tests: dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_SHARED_H
#define LLMC_CPU_SHARED_H

#include "cpu_worker.h"

// ----------------------------------------------------------------------------
// shared memory

static inline size_t cpu_shared_limit(void) {  // bytes a block can have, with cudaFuncSetAttribute
    long long arch = cpu_modes()->arch;
    return (arch == 80 ? 163 : arch == 89 || arch == 120 ? 99 : 227) * 1024;
}

static inline unsigned char* cpu_shared_alloc(size_t bytes) {
    void* p = NULL;
    require(posix_memalign(&p, 128, bytes) == 0, "close other programs", "out of host memory for %zu bytes of shared memory", bytes);
    return (unsigned char*)p;
}

// Check mode: fresh contents, and the gap behind them (ASan has its own).
static inline void cpu_shared_poison(unsigned char* address, size_t bytes) { memset(address, (int)cpu_modes()->poison, bytes + (CPU_ASAN ? 0 : CPU_SHARED_GAP)); }
static inline void cpu_shared_check_gap(const unsigned char* address, size_t bytes, const char* name) {
    for (int i = 0; i < (CPU_ASAN ? 0 : CPU_SHARED_GAP); i++) {
        if (address[bytes + i] != (unsigned char)cpu_modes()->poison) {
            cpu_fail("shared-overrun", false, "check the index against the array's size",
                     "a thread of the block wrote byte %d behind the shared array %s of %zu bytes", i, name, bytes);
        }
    }
}

// First use of a static shared array in a launch on this worker.
__attribute__((noinline))
static void* cpu_shared_open(CpuWorker* w, CpuSharedSite* site, size_t bytes, size_t align) {
    int id = __atomic_load_n(&site->id, __ATOMIC_ACQUIRE);
    if (!id) {
        int fresh = __atomic_add_fetch(cpu_shared_last_id(), 1, __ATOMIC_RELAXED), none = 0;
        require(fresh < CPU_SHARED_SITES, "raise CPU_SHARED_SITES", "more than %d shared arrays in one program", CPU_SHARED_SITES - 1);
        id = __atomic_compare_exchange_n(&site->id, &none, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ? fresh : none;
    }
    CpuSharedSlot* slot = &w->shared[id];
    w->arena_used += bytes;
    if (w->arena_used > CPU_STATIC_SHARED_BYTES || w->arena_used + w->launch->smem > cpu_shared_limit()) {
        cpu_fail("shared-memory", false, "use less static shared memory, or dynamic shared memory",
                 "%s (%zu bytes, at %s) makes %zu bytes of static and %zu of dynamic shared memory; the limits are %d static and %zu together",
                 site->name, bytes, site->site, w->arena_used, w->launch->smem, CPU_STATIC_SHARED_BYTES, cpu_shared_limit());
    }
#if CPU_ASAN
    (void)align;
    if (slot->bytes != bytes) { free(slot->address); slot->address = cpu_shared_alloc(bytes); }  // its own allocation, with ASan's red zones
#else
    if (!w->arena) { w->arena = cpu_shared_alloc(CPU_STATIC_SHARED_BYTES + CPU_SHARED_SITES * 256); }
    slot->address = w->arena + w->arena_end + (cpu_modes()->check && align < 16 ? align : 0);
    w->arena_end += ROUND_UP(bytes + CPU_SHARED_GAP + 16, 128);
#endif
    slot->bytes = bytes;
    slot->name = site->name;
    slot->launch = w->launch_number;
    w->active[w->active_count++] = id;
    if (cpu_modes()->check) { cpu_shared_poison(slot->address, bytes); }
    return slot->address;
}

static __forceinline__ void* cpu_shared(CpuSharedSite* site, size_t bytes, size_t align) {
    CpuWorker* w = cpu_kernel_worker(site->site);
    CpuSharedSlot* slot = &w->shared[__atomic_load_n(&site->id, __ATOMIC_RELAXED)];
    return __builtin_expect(slot->launch == w->launch_number, 1) ? slot->address : cpu_shared_open(w, site, bytes, align);
}

#define CPU_SHARED(type, name, n) \
    static CpuSharedSite cpu_shared_site_##name = {0, #name, CPU_SITE}; \
    type(&name)[n] = *reinterpret_cast<type(*)[n]>(cpu_shared(&cpu_shared_site_##name, sizeof(type[n]), alignof(type) < 16 ? 16 : alignof(type)))
#define CPU_SHARED_DYN(type, name) type* name = reinterpret_cast<type*>(cpu_kernel_worker(CPU_SITE)->dynamic)

#endif
