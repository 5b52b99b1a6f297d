/* cpu_collectives.h - barriers, shuffles, votes and the house's reductions
 *
 * How:       the last thread to arrive computes the result for all of them; the others are then ready to go on. However many steps a collective takes
 *            on a GPU, here it costs every thread one switch of stacks.
 * Checks:    always on, since they cost a comparison: every barrier and collective knows its call site and mask. The names are in README.md.
 * Reductions add in the order of the CUDA build's butterfly (llmc/device.cuh), bit for bit.
 * Tests:     dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_COLLECTIVES_H
#define LLMC_CPU_COLLECTIVES_H

#include <type_traits>

#include "cpu_worker.h"

// ----------------------------------------------------------------------------
// barriers

// One more thread is at the block's barrier. True: it is the last one; the others are ready to go on.
static __forceinline__ bool cpu_block_arrive(CpuWorker* w, const char* site) {
    const unsigned me = cpu_ids.thread;
    if (__builtin_expect(!w->tracking, 0)) { cpu_begin_tracking(w, me); }
    w->site[me] = site;
    if (__builtin_expect(w->exited != 0, 0)) {
        cpu_fail("early-exit", true, "no thread may return before a barrier: pad with a condition around the work",
                 "%u of %u threads (thread %u first) have ended before the barrier %s", w->exited, w->launch->threads, w->first_exit, site);
    }
    if (w->arrived == 0) { w->barrier_site = site; w->first_arrival = me; }
    if (__builtin_expect(w->barrier_site != site, 0)) {
        cpu_fail("divergent-barrier", true, "all threads of a block must meet at the same barrier",
                 "thread %u is at the barrier %s while thread %u waits at %s",
                 me, site, w->first_arrival, w->barrier_site);
    }
    if (++w->arrived < w->launch->threads) { return false; }
    w->arrived = 0;
    w->site[me] = NULL;
    for (unsigned warp = 0; warp < w->launch->warps; warp++) { w->ready[warp] = w->exists[warp]; }
    w->ready_warps = w->launch->warps == 32 ? 0xffffffffu : (1u << w->launch->warps) - 1u;
    unsigned mine = me / CPU_WARP;
    w->ready[mine] &= ~(1u << me % CPU_WARP);
    if (!w->ready[mine]) { w->ready_warps &= ~(1u << mine); }
    return true;
}

// The number of threads whose predicate holds.
static inline int cpu_barrier(bool predicate, const char* site) {
    CpuWorker* w = cpu_kernel_worker(site);
    if (w->arrived == 0) { w->votes = 0; }
    w->votes += predicate;
    if (cpu_block_arrive(w, site)) { w->votes_result = w->votes; } else { cpu_suspend(w); }
    return (int)w->votes_result;  // the next barrier needs this thread, so the result still stands
}
static __forceinline__ void cpu_syncthreads(const char* site) {
    CpuWorker* w = cpu_kernel_worker(site);
    if (!cpu_block_arrive(w, site)) { cpu_suspend(w); }
}
static inline int cpu_syncthreads_count(int predicate, const char* site) { return cpu_barrier(predicate != 0, site); }
static inline int cpu_syncthreads_or(int predicate, const char* site) { return cpu_barrier(predicate != 0, site) > 0; }
static inline int cpu_syncthreads_and(int predicate, const char* site) { return cpu_barrier(predicate != 0, site) == (int)cpu_worker->launch->threads; }

#define __syncthreads() cpu_syncthreads(CPU_SITE)
#define __syncthreads_count(predicate) cpu_syncthreads_count(predicate, CPU_SITE)
#define __syncthreads_or(predicate) cpu_syncthreads_or(predicate, CPU_SITE)
#define __syncthreads_and(predicate) cpu_syncthreads_and(predicate, CPU_SITE)

// ----------------------------------------------------------------------------
// warp collectives

// Called when a mask looks wrong: returns if it is right after all.
__attribute__((noinline, cold))
static void cpu_check_mask(CpuWorker* w, unsigned mask, const char* site) {
    unsigned me = cpu_ids.thread, warp = me / CPU_WARP, lane = me % CPU_WARP, others = w->waiting[warp] & mask;
    if (!(mask >> lane & 1)) {
        cpu_fail("mask-without-caller", true, "name only lanes that execute the collective",
                 "lane %u is not in its own mask %08x at %s", lane, mask, site);
    }
    if (mask & ~w->exists[warp]) {
        cpu_fail("partial-warp", true, "use a block size that is a multiple of 32, or a mask of the lanes that exist",
                 "mask %08x names lanes that this warp does not have (%08x exist) at %s",
                 mask, w->exists[warp], site);
    }
    if (mask & w->done[warp]) {
        cpu_fail("early-exit", true, "all lanes of the mask must reach the collective",
                 "lanes %08x of mask %08x have ended before the collective at %s", mask & w->done[warp], mask, site);
    }
    // lanes that name each other must be at the same collective; one whose mask does not name this lane may still come here afterwards
    for (unsigned lanes = others; lanes; lanes &= lanes - 1) {
        unsigned lane2 = (unsigned)__builtin_ctz(lanes), other = warp * CPU_WARP + lane2;
        if (!(w->mask[other] >> lane & 1) || (w->mask[other] == mask && w->site[other] == site)) { continue; }
        cpu_fail(w->mask[other] == mask ? "divergent-collective" : "wrong-mask", true,
                 "all lanes of a mask must execute the same collective with the same mask",
                 "lane %u has mask %08x at %s while lane %u waits with mask %08x at %s", lane, mask, site, lane2, w->mask[other], w->site[other]);
    }
}

// Do all lanes of the mask but this one wait here, with this mask?
__attribute__((noinline))
static bool cpu_all_wait_here(const CpuWorker* w, unsigned warp, unsigned others, unsigned mask, const char* site) {
    const unsigned* masks = w->mask + warp * CPU_WARP;
    const char* const* sites = w->site + warp * CPU_WARP;
    unsigned elsewhere = 0;
    for (unsigned i = 0; i < CPU_WARP; i++) { elsewhere |= (unsigned)((masks[i] != mask) | (sites[i] != site)) << i; }
    return !(elsewhere & others);
}

// One more lane is at a collective of the lanes in mask. True: it is the last one; the others are ready to go on.
static __forceinline__ bool cpu_warp_arrive(CpuWorker* w, unsigned mask, const char* site) {
    const unsigned me = cpu_ids.thread, warp = me / CPU_WARP, bit = 1u << me % CPU_WARP;
    if (__builtin_expect(!w->tracking, 0)) { cpu_begin_tracking(w, me); }
    const unsigned others = w->waiting[warp] & mask;
    bool doubtful = !(mask & bit) || (mask & ~(w->exists[warp] & ~w->done[warp]));
    if (others) {
        unsigned other = warp * CPU_WARP + (unsigned)__builtin_ctz(others);
        doubtful = doubtful || w->mask[other] != mask || w->site[other] != site;
    }
    bool last = (others | bit) == mask;
    if (last && !cpu_all_wait_here(w, warp, others, mask, site)) { doubtful = true; last = false; }
    w->site[me] = site;
    w->mask[me] = mask;
    if (__builtin_expect(doubtful, 0)) { cpu_check_mask(w, mask, site); }
    if (last) {
        w->site[me] = NULL;
        w->waiting[warp] &= ~mask;
        cpu_make_ready(w, warp, mask & ~bit);
        return true;
    }
    w->waiting[warp] |= bit;
    return false;
}

template <class T> static __forceinline__ uint64_t cpu_to_slot(T value) {
    static_assert(sizeof(T) <= 8, "shuffles carry 8 bytes at most");
    uint64_t slot = 0;
    memcpy(&slot, &value, sizeof(T));
    return slot;
}
template <class T> static __forceinline__ T cpu_from_slot(uint64_t slot) {
    T value;
    memcpy(&value, &slot, sizeof(T));
    return value;
}

static inline void cpu_syncwarp(const char* site, unsigned mask) {
    CpuWorker* w = cpu_kernel_worker(site);
    // the whole warp, as __syncwarp() means, is what there is of a partial one
    if (mask == 0xffffffffu && cpu_ids.thread / CPU_WARP == w->launch->threads / CPU_WARP) { mask = (1u << w->launch->threads % CPU_WARP) - 1u; }
    if (!cpu_warp_arrive(w, mask, site)) { cpu_suspend(w); }
}

struct CpuSyncwarp { const char* site; void operator()(unsigned mask = 0xffffffffu) const { cpu_syncwarp(site, mask); } };

// What the lane `source` of the mask holds.
static inline uint64_t cpu_shuffle(uint64_t value, unsigned source, unsigned mask, const char* site) {
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread, base = me / CPU_WARP * CPU_WARP;
    w->slot[me] = value;
    w->source[me] = (unsigned char)source;
    if (__builtin_expect(!(mask >> source & 1), 0)) {
        w->site[me] = site;
        cpu_fail("shuffle-source", true, "name the source lane in the mask",
                 "lane %u reads lane %u, which is not in the mask %08x, at %s", me % CPU_WARP, source, mask, site);
    }
    if (!cpu_warp_arrive(w, mask, site)) { cpu_suspend(w); return w->result[me]; }
    for (unsigned lanes = mask; lanes; lanes &= lanes - 1) {
        unsigned lane = (unsigned)__builtin_ctz(lanes);
        w->result[base + lane] = w->slot[base + w->source[base + lane]];
    }
    return w->result[me];
}

// The lane that CUDA's shuffles read; width: a power of two, the warp is cut into segments of that many lanes.
static inline void cpu_check_width(int width, const char* site) {
    if (__builtin_expect(width < 1 || width > 32 || (width & (width - 1)), 0)) {
        cpu_fail("shuffle-width", false, "use a power of two up to 32",
                 "width %d at %s", width, site);
    }
}
template <class T> static inline T cpu_shfl(const char* site, unsigned mask, T value, int source, int width = 32) {
    cpu_check_width(width, site);
    unsigned lane = cpu_ids.thread % CPU_WARP, segment = lane & ~(unsigned)(width - 1);
    return cpu_from_slot<T>(cpu_shuffle(cpu_to_slot(value), segment | ((unsigned)source & (unsigned)(width - 1)), mask, site));
}
template <class T> static inline T cpu_shfl_up(const char* site, unsigned mask, T value, unsigned delta, int width = 32) {
    cpu_check_width(width, site);
    unsigned lane = cpu_ids.thread % CPU_WARP, segment = lane & ~(unsigned)(width - 1);
    return cpu_from_slot<T>(cpu_shuffle(cpu_to_slot(value), lane - segment < delta ? lane : lane - delta, mask, site));
}
template <class T> static inline T cpu_shfl_down(const char* site, unsigned mask, T value, unsigned delta, int width = 32) {
    cpu_check_width(width, site);
    unsigned lane = cpu_ids.thread % CPU_WARP, segment = lane & ~(unsigned)(width - 1);
    return cpu_from_slot<T>(cpu_shuffle(cpu_to_slot(value), (uint64_t)lane - segment + delta >= (unsigned)width ? lane : lane + delta, mask, site));
}
template <class T> static inline T cpu_shfl_xor(const char* site, unsigned mask, T value, int lane_mask, int width = 32) {
    cpu_check_width(width, site);
    unsigned lane = cpu_ids.thread % CPU_WARP, segment = lane & ~(unsigned)(width - 1), source = lane ^ (unsigned)lane_mask;
    // a source in a later segment is the lane itself; one in an earlier segment is read (PTX shfl.bfly)
    return cpu_from_slot<T>(cpu_shuffle(cpu_to_slot(value), source >= segment + (unsigned)width ? lane : source, mask, site));
}

// The lanes of mask whose predicate holds.
static inline unsigned cpu_ballot(const char* site, unsigned mask, int predicate) {
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread, base = me / CPU_WARP * CPU_WARP;
    w->slot[me] = predicate != 0;
    if (!cpu_warp_arrive(w, mask, site)) { cpu_suspend(w); return (unsigned)w->result[me]; }
    unsigned votes = 0;
    for (unsigned lanes = mask; lanes; lanes &= lanes - 1) { votes |= (unsigned)w->slot[base + (unsigned)__builtin_ctz(lanes)] << __builtin_ctz(lanes); }
    for (unsigned lanes = mask; lanes; lanes &= lanes - 1) { w->result[base + (unsigned)__builtin_ctz(lanes)] = votes; }
    return votes;
}
static inline int cpu_any(const char* site, unsigned mask, int predicate) { return cpu_ballot(site, mask, predicate) != 0; }
static inline int cpu_all(const char* site, unsigned mask, int predicate) { return cpu_ballot(site, mask, predicate) == mask; }

enum { CPU_REDUCE_ADD, CPU_REDUCE_MIN, CPU_REDUCE_MAX, CPU_REDUCE_AND, CPU_REDUCE_OR, CPU_REDUCE_XOR };
template <int op, class T> static inline T cpu_reduce_lanes(const char* site, unsigned mask, T value) {
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread, base = me / CPU_WARP * CPU_WARP;
    w->slot[me] = cpu_to_slot(value);
    if (!cpu_warp_arrive(w, mask, site)) { cpu_suspend(w); return cpu_from_slot<T>(w->result[me]); }
    T total = value;
    bool first = true;
    for (unsigned lanes = mask; lanes; lanes &= lanes - 1, first = false) {
        T x = cpu_from_slot<T>(w->slot[base + (unsigned)__builtin_ctz(lanes)]);
        if (first) { total = x; }
        else if (op == CPU_REDUCE_ADD) { total = (T)((unsigned)total + (unsigned)x); }
        else if (op == CPU_REDUCE_MIN) { total = x < total ? x : total; }
        else if (op == CPU_REDUCE_MAX) { total = x > total ? x : total; }
        else { total = (T)(op == CPU_REDUCE_AND ? total & x : op == CPU_REDUCE_OR ? total | x : total ^ x); }
    }
    for (unsigned lanes = mask; lanes; lanes &= lanes - 1) { w->result[base + (unsigned)__builtin_ctz(lanes)] = cpu_to_slot(total); }
    return total;
}

#define __syncwarp(...) CpuSyncwarp{CPU_SITE}(__VA_ARGS__)
#define __shfl_sync(...) cpu_shfl(CPU_SITE, __VA_ARGS__)
#define __shfl_up_sync(...) cpu_shfl_up(CPU_SITE, __VA_ARGS__)
#define __shfl_down_sync(...) cpu_shfl_down(CPU_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) cpu_shfl_xor(CPU_SITE, __VA_ARGS__)
#define __ballot_sync(mask, predicate) cpu_ballot(CPU_SITE, mask, predicate)
#define __any_sync(mask, predicate) cpu_any(CPU_SITE, mask, predicate)
#define __all_sync(mask, predicate) cpu_all(CPU_SITE, mask, predicate)
#define __reduce_add_sync(mask, value) cpu_reduce_lanes<CPU_REDUCE_ADD>(CPU_SITE, mask, value)
#define __reduce_min_sync(mask, value) cpu_reduce_lanes<CPU_REDUCE_MIN>(CPU_SITE, mask, value)
#define __reduce_max_sync(mask, value) cpu_reduce_lanes<CPU_REDUCE_MAX>(CPU_SITE, mask, value)
#define __reduce_and_sync(mask, value) cpu_reduce_lanes<CPU_REDUCE_AND>(CPU_SITE, mask, value)
#define __reduce_or_sync(mask, value) cpu_reduce_lanes<CPU_REDUCE_OR>(CPU_SITE, mask, value)
#define __reduce_xor_sync(mask, value) cpu_reduce_lanes<CPU_REDUCE_XOR>(CPU_SITE, mask, value)
// Any subset of the lanes is a legal answer, so no program may depend on it.
unsigned __activemask() = delete;

// ----------------------------------------------------------------------------
// the house's reductions

struct CpuSum {
    template <class T> static __forceinline__ T apply(T a, T b) { return a + b; }
    template <class T> static __forceinline__ T identity() { return T(0); }
};
struct CpuMax {
    // floating point: fmaxf, so a NaN loses against a number
    static __forceinline__ float apply(float a, float b) { return a > b || b != b ? a : b; }
    static __forceinline__ double apply(double a, double b) { return a > b || b != b ? a : b; }
    template <class T> static __forceinline__ T apply(T a, T b) { return a > b ? a : b; }
    template <class T> static __forceinline__ T identity() {
        return std::is_floating_point<T>::value ? T(-INFINITY) : std::is_same<T, int>::value ? T(INT_MIN) : T(0);
    }
};

// v[0..31] combined in the butterfly's order: halves first. a op b == b op a, so that every lane's result is lane 0's.
template <class Op, class T> __attribute__((noinline)) static T cpu_butterfly(const T* v) {
    T a[16];
    for (int i = 0; i < 16; i++) { a[i] = Op::apply(v[i], v[i + 16]); }
    for (int i = 0; i < 8; i++) { a[i] = Op::apply(a[i], a[i + 8]); }
    for (int i = 0; i < 4; i++) { a[i] = Op::apply(a[i], a[i + 4]); }
    for (int i = 0; i < 2; i++) { a[i] = Op::apply(a[i], a[i + 2]); }
    return Op::apply(a[0], a[1]);
}

template <class Op, class T> __attribute__((noinline)) static T cpu_block_butterfly(const T* slots, unsigned warps) {
    T partial[CPU_WARP];
    for (unsigned warp = 0; warp < CPU_WARP; warp++) { partial[warp] = warp < warps ? cpu_butterfly<Op>(slots + warp * CPU_WARP) : Op::template identity<T>(); }
    return cpu_butterfly<Op>(partial);
}

template <class Op, class T> static __forceinline__ T cpu_warp_reduce(T value, const char* site) {
    static_assert(sizeof(T) <= 8 && std::is_arithmetic<T>::value, "float, double, int, unsigned, unsigned long long");
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread, warp = me / CPU_WARP;
    T* slots = (T*)(w->reduce_slot + warp * CPU_WARP * 8);
    T* result = (T*)(w->reduce_result + warp * 8);
    slots[me % CPU_WARP] = value;
    if (cpu_warp_arrive(w, 0xffffffffu, site)) { *result = cpu_butterfly<Op>(slots); } else { cpu_suspend(w); }
    return *result;  // the next reduction of this warp needs this lane, so the result still stands
}

template <class Op, class T> static __forceinline__ T cpu_block_reduce(T value, const char* site) {
    static_assert(sizeof(T) <= 8 && std::is_arithmetic<T>::value, "float, double, int, unsigned, unsigned long long");
    CpuWorker* w = cpu_kernel_worker(site);
    T* slots = (T*)w->block_slot;
    T* result = (T*)w->block_result;
    if (__builtin_expect(w->launch->threads % CPU_WARP, 0)) {
        cpu_fail("partial-warp", false, "use a block size that is a multiple of 32",
                 "a block reduction in a block of %u threads at %s", w->launch->threads, site);
    }
    slots[cpu_ids.thread] = value;
    if (cpu_block_arrive(w, site)) {
        *result = cpu_block_butterfly<Op>(slots, w->launch->warps);
    } else {
        cpu_suspend(w);
    }
    return *result;
}

#endif
