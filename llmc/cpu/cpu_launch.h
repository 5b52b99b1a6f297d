/* cpu_launch.h - runs a grid: blocks over the OpenMP pool, the threads of a block as fibers of one OS thread
 *
 * How:       A block's threads are started one after the other on the worker's own stack. A thread that ends leaves the stack to the next one, so a
 *            kernel without barriers is a plain loop around the inlined kernel. A thread that must wait (barrier, shuffle, reduction) keeps its stack;
 *            another stack then continues the loop, or a thread that may go on is resumed. The last one to arrive computes the collective's
 *            result for all of them: one switch a thread and collective, however many steps it takes on a GPU.
 * Checks:    always on, since they cost a comparison: every barrier and collective knows its call site and mask. A violation prints
 *            "[cpu device: NAME]" with block, threads and places, and ends the program with exit code 1. The names are in llmc/cpu/README.md.
 * Order:     threads run in ascending order, or reversed, or at random (GPT_CPU_ORDER), from one point of synchronisation to the next. Nothing else
 *            is promised: code that relies on lanes moving in step fails here.
 * Reductions add in the order of the CUDA build's butterfly (llmc/device.cuh), bit for bit.
 * State:     one CpuWorker an OS thread (cpu_worker), freed with the thread; cpu_ids, the indices of the running CUDA thread.
 * Tests:     dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_LAUNCH_H
#define LLMC_CPU_LAUNCH_H

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <tuple>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu_modes.h"
#include "cpu_types.h"
#include "fiber.h"

#define CPU_MAX_THREADS 1024
#define CPU_WARP 32
#define CPU_MAX_WARPS (CPU_MAX_THREADS / CPU_WARP)
#define CPU_SHARED_SITES 4096
#define CPU_SHARED_GAP 64           // poisoned bytes behind a shared array in check mode
#define CPU_STATIC_SHARED_BYTES (48 * 1024)
#define CPU_NONE 0xffffffffu

// A call site: equal pointers mean the same place in the source. The counter tells two calls on one line apart.
#define CPU_STRING2(x) #x
#define CPU_STRING(x) CPU_STRING2(x)
#define CPU_SITE (__FILE__ ":" CPU_STRING(__LINE__) " (site " CPU_STRING(__COUNTER__) ")")

struct CpuWorker;

typedef struct {
    const char* kernel;         // as the compiler spells it
    dim3 grid, block;
    size_t blocks, smem;
    unsigned threads, warps;
    void (*run)(struct CpuWorker*, const void* args);                       // a block whose threads do not wait, or until one does
    void (*run_tracked)(struct CpuWorker*, const void* args, bool ended);   // any block, on any stack
    const void* args;
} CpuLaunch;

typedef struct { int id; const char* name; const char* site; } CpuSharedSite;   // id 0: not used yet
typedef struct { unsigned char* address; unsigned long launch; size_t bytes; const char* name; } CpuSharedSlot;

typedef struct CpuWorker {
    const CpuLaunch* launch;
    unsigned long launch_number;
    bool in_kernel;
    // threads of the block
    bool tracking;              // false: nobody has waited yet, threads up to the running one have ended, the others not started; masks mean nothing
    bool check;                 // modes of this launch
    bool ordered;               // not the forward order: pick at random, or from the end
    long long order;
    unsigned next;              // forward order: the next thread to start
    unsigned start;             // the thread that a fresh stack starts with
    unsigned exited, first_exit;
    unsigned ready_warps;       // warps with a thread that may go on (ordered: or start)
    unsigned exists[CPU_MAX_WARPS], done[CPU_MAX_WARPS], ready[CPU_MAX_WARPS], unstarted[CPU_MAX_WARPS];
    uint64_t random;
    // the block's barrier
    unsigned arrived, first_arrival, votes, votes_result;
    const char* barrier_site;
    // warp collectives: lanes that wait, for whom, where
    unsigned waiting[CPU_MAX_WARPS];
    unsigned mask[CPU_MAX_THREADS];
    unsigned char source[CPU_MAX_THREADS];
    const char* site[CPU_MAX_THREADS];                      // where each thread waits (barrier or collective), NULL: it does not
    uint64_t slot[CPU_MAX_THREADS], result[CPU_MAX_THREADS];
    alignas(64) unsigned char reduce_slot[CPU_MAX_THREADS * 8];   // 256 bytes a warp
    alignas(64) unsigned char reduce_result[CPU_MAX_WARPS * 8];
    alignas(64) unsigned char block_slot[CPU_MAX_THREADS * 8];
    unsigned char block_result[8];
    // stacks
    CpuFiber main;              // the OS thread's own stack
    CpuFiber* fiber;            // the running one
    CpuFiber* parked;
    CpuFiber* of_thread[CPU_MAX_THREADS];
    int fibers;
    void* signal_stack;
    // shared memory
    unsigned char *dynamic, *dynamic_alloc;
    size_t dynamic_bytes;
    unsigned char* arena;
    size_t arena_used, arena_end;   // static shared memory of this launch: bytes asked for, bytes taken
    int active[CPU_SHARED_SITES], active_count;
    CpuSharedSlot shared[CPU_SHARED_SITES];
} CpuWorker;

typedef struct { uint3 thread_idx; unsigned thread; uint3 block_idx, block_dim, grid_dim; } CpuIds;
inline __thread CpuIds cpu_ids;
inline __thread CpuWorker* cpu_worker;
inline __thread int cpu_last_error;      // of this host thread, a cudaError_t

#define threadIdx ((const uint3&)cpu_ids.thread_idx)
#define blockIdx ((const uint3&)cpu_ids.block_idx)
#define blockDim ((const uint3&)cpu_ids.block_dim)
#define gridDim ((const uint3&)cpu_ids.grid_dim)
static const int warpSize = 32;

// ----------------------------------------------------------------------------
// reports

// The kernel's name out of "... [with auto kernel = NAME; ...]".
static inline void cpu_kernel_name(char* out, size_t size, const char* pretty) {
    const char* begin = pretty ? strstr(pretty, "kernel = ") : NULL;
    begin = begin ? begin + 9 : pretty ? pretty : "?";
    size_t n = strcspn(begin, ";]");
    snprintf(out, size, "%.*s", (int)n, begin);
}

static inline uint3 cpu_thread_position(const CpuLaunch* launch, unsigned thread) {
    unsigned x = launch->block.x, y = launch->block.y;
    return make_uint3(thread % x, thread / x % y, thread / (x * y));
}

// Where every thread is, threads of one place together. At most 16 lines.
static inline void cpu_report_threads(const CpuWorker* w) {
    const CpuLaunch* launch = w->launch;
    unsigned lines = 0;
    for (unsigned begin = 0; begin < launch->threads;) {
        unsigned end = begin;
        bool done = w->done[begin / CPU_WARP] >> begin % CPU_WARP & 1;
        while (end < launch->threads && w->site[end] == w->site[begin] && (bool)(w->done[end / CPU_WARP] >> end % CPU_WARP & 1) == done
               && (w->mask[end] == w->mask[begin] || !w->site[end])) { end++; }
        if (lines++ < 16) {
            fprintf(stderr, "  threads %4u to %4u: ", begin, end - 1);
            bool collective = w->waiting[begin / CPU_WARP] >> begin % CPU_WARP & 1;
            if (done) { fprintf(stderr, "ended\n"); }
            else if (!w->site[begin]) { fprintf(stderr, "%s\n", begin == cpu_ids.thread ? "running" : "not started, or about to go on"); }
            else if (collective) { fprintf(stderr, "wait for lanes %08x at %s\n", w->mask[begin], w->site[begin]); }
            else { fprintf(stderr, "wait for the block at %s\n", w->site[begin]); }
        }
        begin = end;
    }
    if (lines > 16) { fprintf(stderr, "  ... and %u more groups\n", lines - 16); }
}

// Two OS threads may find something at once: the second one waits for the end of the program.
inline int* cpu_shared_last_id(void) {
    static int last = 0;
    return &last;
}
inline bool cpu_first_to_fail(void) {
    static int failed = 0;
    return __atomic_exchange_n(&failed, 1, __ATOMIC_SEQ_CST) == 0;
}

// Ends the program. name: of the check. Says block, thread, kernel; table: where every thread is.
__attribute__((noreturn, noinline, cold, format(printf, 4, 5)))
static void cpu_fail(const char* name, bool table, const char* hint, const char* fmt, ...) {
    if (!cpu_first_to_fail()) { for (;;) { pause(); } }
    const CpuWorker* w = cpu_worker;
    char message[1024], kernel[256], where[512] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    if (w && w->in_kernel) {
        cpu_kernel_name(kernel, sizeof(kernel), w->launch->kernel);
        uint3 b = cpu_ids.block_idx, t = cpu_ids.thread_idx;
        snprintf(where, sizeof(where), "\n       kernel %s, block (%u,%u,%u), thread (%u,%u,%u) = warp %u lane %u",
                 kernel, b.x, b.y, b.z, t.x, t.y, t.z, cpu_ids.thread / CPU_WARP, cpu_ids.thread % CPU_WARP);
        if (table && w->tracking) { cpu_report_threads(w); }
    }
    fail_at(1, __FILE__, __LINE__, "", hint, "[cpu device: %s] %s%s", name, message, where);
}

static __forceinline__ CpuWorker* cpu_kernel_worker(const char* site) {
    CpuWorker* w = cpu_worker;
    if (__builtin_expect(!w || !w->in_kernel, 0)) { cpu_fail("not-in-kernel", false, "call it from a kernel", "a barrier or warp collective outside a kernel, at %s", site); }
    return w;
}

// ----------------------------------------------------------------------------
// who runs next

static inline unsigned cpu_random(CpuWorker* w, unsigned n) {
    uint64_t z = (w->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (unsigned)((z ^ (z >> 31)) % n);
}

// The n-th set bit, n < popcount(mask).
static inline unsigned cpu_nth_bit(unsigned mask, unsigned n) {
    while (n--) { mask &= mask - 1; }
    return (unsigned)__builtin_ctz(mask);
}
static inline unsigned cpu_choose_bit(CpuWorker* w, unsigned mask) {
    return w->order == CPU_ORDER_REVERSE ? 31u - (unsigned)__builtin_clz(mask) : cpu_nth_bit(mask, cpu_random(w, (unsigned)__builtin_popcount(mask)));
}

// Takes a thread that may run; *fresh: it has never started. CPU_NONE: there is none.
static inline unsigned cpu_pick(CpuWorker* w, bool* fresh) {
    *fresh = false;
    if (__builtin_expect(w->ready_warps != 0, 1)) {
        unsigned warp, lane;
        if (__builtin_expect(!w->ordered, 1)) {
            warp = (unsigned)__builtin_ctz(w->ready_warps);
            lane = (unsigned)__builtin_ctz(w->ready[warp]);
        } else {
            warp = cpu_choose_bit(w, w->ready_warps);
            lane = cpu_choose_bit(w, w->ready[warp] | w->unstarted[warp]);
            *fresh = w->unstarted[warp] >> lane & 1;
            w->unstarted[warp] &= ~(1u << lane);
        }
        w->ready[warp] &= ~(1u << lane);
        if (!(w->ready[warp] | w->unstarted[warp])) { w->ready_warps &= ~(1u << warp); }
        return warp * CPU_WARP + lane;
    }
    if (w->next < w->launch->threads) { *fresh = true; return w->next++; }
    return CPU_NONE;
}

static inline void cpu_make_ready(CpuWorker* w, unsigned warp, unsigned lanes) {
    w->ready[warp] |= lanes;
    if (lanes) { w->ready_warps |= 1u << warp; }
}

// From here on the masks count. Called before the block's first wait: threads below ended_threads have ended, in forward order one runs.
__attribute__((noinline))
static void cpu_begin_tracking(CpuWorker* w, unsigned ended_threads) {
    w->tracking = true;
    w->next = ended_threads + 1;
    w->exited = ended_threads;
    w->first_exit = 0;
    w->arrived = 0;
    w->ready_warps = 0;
    for (unsigned warp = 0; warp < w->launch->warps; warp++) {
        unsigned first = warp * CPU_WARP, count = w->launch->threads - first, ended = ended_threads <= first ? 0 : ended_threads - first;
        w->exists[warp] = count >= CPU_WARP ? 0xffffffffu : (1u << count) - 1u;
        w->done[warp] = ended >= CPU_WARP ? 0xffffffffu : (1u << ended) - 1u;
        w->ready[warp] = w->waiting[warp] = w->unstarted[warp] = 0;
    }
    memset(w->site, 0, w->launch->threads * sizeof(w->site[0]));
}

static void cpu_fiber_main(void);

// The stack to continue for this thread.
static inline CpuFiber* cpu_stack_for(CpuWorker* w, unsigned thread, bool fresh) {
    if (__builtin_expect(!fresh, 1)) { return w->of_thread[thread]; }
    w->start = thread;
    CpuFiber* fiber = w->parked;
    if (fiber) { w->parked = fiber->next; }
    else { fiber = cpu_fiber_create(w->fibers++); }
    if (fiber->launch != w->launch_number) { cpu_fiber_prime(fiber, cpu_fiber_main); fiber->launch = w->launch_number; }
    return w->fiber = fiber;
}

__attribute__((noreturn, noinline, cold))
static void cpu_fail_deadlock(CpuWorker* w) {
    (void)w;
    cpu_fail("deadlock", true, "every thread of the block must reach the same barriers, every lane of a mask the same collectives", "no thread of the block can go on");
}

// The stack to continue instead of the running thread's, which has to wait.
__attribute__((noinline))
static CpuFiber* cpu_next_stack(CpuWorker* w) {
    bool fresh;
    unsigned thread = cpu_pick(w, &fresh);
    if (__builtin_expect(thread == CPU_NONE, 0)) { cpu_fail_deadlock(w); }
    return cpu_stack_for(w, thread, fresh);
}

// The running thread gives its OS thread away until it has been made ready again. Inlined into kernels, as is the common case of cpu_pick.
static __forceinline__ void cpu_suspend(CpuWorker* w) {
    const unsigned me = cpu_ids.thread;
    const uint3 index = cpu_ids.thread_idx;
    CpuFiber *self = w->fiber, *to;
    w->of_thread[me] = self;
    unsigned warps = w->ready_warps;
    if (__builtin_expect(warps != 0 && !w->ordered, 1)) {
        unsigned warp = (unsigned)__builtin_ctz(warps), ready = w->ready[warp], rest = ready & (ready - 1);
        to = w->of_thread[warp * CPU_WARP + (unsigned)__builtin_ctz(ready)];
        w->ready[warp] = rest;
        if (!rest) { w->ready_warps = warps & (warps - 1); }
    } else {
        to = cpu_next_stack(w);
    }
    cpu_fiber_switch(self, to);
    w->fiber = self;
    w->site[me] = NULL;
    cpu_ids.thread = me;
    cpu_ids.thread_idx = index;
}

// The running thread has ended: the thread to start on this stack, or CPU_NONE and in *to the stack to continue (w->main when all have ended).
__attribute__((noinline))
static unsigned cpu_exit_tracked(CpuWorker* w, CpuFiber** to) {
    unsigned me = cpu_ids.thread, warp = me / CPU_WARP, bit = 1u << me % CPU_WARP;
    if (w->arrived) {
        w->done[warp] |= bit;
        cpu_fail("early-exit", true, "no thread may return before a barrier: pad with a condition around the work",
                 "thread %u ended while %u of %u threads wait at the barrier %s", me, w->arrived, w->launch->threads, w->barrier_site);
    }
    for (unsigned lanes = w->waiting[warp]; lanes; lanes &= lanes - 1) {
        unsigned lane = (unsigned)__builtin_ctz(lanes), other = warp * CPU_WARP + lane;
        if (w->mask[other] & bit) {
            w->done[warp] |= bit;
            cpu_fail("early-exit", true, "all lanes of the mask must reach the collective", "lane %u of warp %u ended while lane %u waits for it (mask %08x) at %s",
                     me % CPU_WARP, warp, lane, w->mask[other], w->site[other]);
        }
    }
    if (!w->exited++) { w->first_exit = me; }
    w->done[warp] |= bit;
    bool fresh;
    unsigned thread = cpu_pick(w, &fresh);
    if (thread != CPU_NONE && fresh) { return thread; }
    if (thread == CPU_NONE && w->exited < w->launch->threads) { cpu_fail_deadlock(w); }
    *to = thread == CPU_NONE ? &w->main : w->of_thread[thread];
    return CPU_NONE;
}

static __forceinline__ void cpu_become(CpuWorker* w, unsigned thread, bool flat) {
    cpu_ids.thread = thread;
    cpu_ids.thread_idx = flat ? make_uint3(thread, 0, 0) : cpu_thread_position(w->launch, thread);
}

// Starts threads on this stack, one after the other. When none is left to start, the worker's own stack returns once all threads have ended, and any
// other stack parks until a fresh thread takes it. ended: a thread has just ended here, and its successor is to be found.
// The kernel is called, not inlined: that happens in cpu_run_threads, and once is enough.
template <auto kernel, class... P>
static void cpu_run_threads_tracked(CpuWorker* w, const void* args, bool ended) {
    const std::tuple<P...>& tuple = *(const std::tuple<P...>*)args;
    const bool flat = w->launch->block.y * w->launch->block.z == 1;
    void (*function)(P...) = kernel;
    __asm__("" : "+r"(function));
    for (unsigned thread = w->start;;) {
        if (!ended) {
            cpu_become(w, thread, flat);
            std::apply([function](const P&... p) __attribute__((always_inline)) { function(p...); }, tuple);
        }
        ended = false;
        CpuFiber *self = w->fiber, *to;
        thread = cpu_exit_tracked(w, &to);
        if (thread != CPU_NONE) { continue; }
        if (to == self) { return; }
        if (self != &w->main) {
            self->next = w->parked;
            w->parked = self;
        }
        cpu_fiber_switch(self, to);
        if (self == &w->main) { return; }  // nothing but the end of the last thread continues it
        thread = w->start;
    }
}

// The plain loop, forward order, on the worker's own stack, until a thread turns out to have waited.
template <auto kernel, class... P>
static void cpu_run_threads(CpuWorker* w, const void* args) {
    const std::tuple<P...>& tuple = *(const std::tuple<P...>*)args;
    const bool flat = w->launch->block.y * w->launch->block.z == 1;
    const unsigned threads = w->launch->threads;
    for (unsigned thread = 0; thread < threads; thread++) {
        cpu_become(w, thread, flat);
        std::apply([](const P&... p) __attribute__((always_inline)) { kernel(p...); }, tuple);
        if (__builtin_expect(w->tracking, 0)) { cpu_run_threads_tracked<kernel, P...>(w, args, true); return; }
    }
}

static void cpu_fiber_main(void) {
    cpu_fiber_started();
    CpuWorker* w = cpu_worker;
    w->launch->run_tracked(w, w->launch->args, false);  // never returns on this stack
    __builtin_trap();
}

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
        cpu_fail("divergent-barrier", true, "all threads of a block must meet at the same barrier", "thread %u is at the barrier %s while thread %u waits at %s",
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
static inline void cpu_syncthreads(const char* site) {
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
    if (!(mask >> lane & 1)) { cpu_fail("mask-without-caller", true, "name only lanes that execute the collective", "lane %u is not in its own mask %08x at %s", lane, mask, site); }
    if (mask & ~w->exists[warp]) {
        cpu_fail("partial-warp", true, "use a block size that is a multiple of 32, or a mask of the lanes that exist", "mask %08x names lanes that this warp does not have (%08x exist) at %s",
                 mask, w->exists[warp], site);
    }
    if (mask & w->done[warp]) {
        cpu_fail("early-exit", true, "all lanes of the mask must reach the collective", "lanes %08x of mask %08x have ended before the collective at %s", mask & w->done[warp], mask, site);
    }
    // lanes that name each other must be at the same collective; one whose mask does not name this lane may still come here afterwards
    for (unsigned lanes = others; lanes; lanes &= lanes - 1) {
        unsigned lane2 = (unsigned)__builtin_ctz(lanes), other = warp * CPU_WARP + lane2;
        if (!(w->mask[other] >> lane & 1) || (w->mask[other] == mask && w->site[other] == site)) { continue; }
        cpu_fail(w->mask[other] == mask ? "divergent-collective" : "wrong-mask", true, "all lanes of a mask must execute the same collective with the same mask",
                 "lane %u has mask %08x at %s while lane %u waits with mask %08x at %s", lane, mask, site, lane2, w->mask[other], w->site[other]);
    }
}

// Do all lanes of the mask but this one wait here, with this mask?
static __forceinline__ bool cpu_all_wait_here(const CpuWorker* w, unsigned warp, unsigned others, unsigned mask, const char* site) {
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
        cpu_fail("shuffle-source", true, "name the source lane in the mask", "lane %u reads lane %u, which is not in the mask %08x, at %s", me % CPU_WARP, source, mask, site);
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
    if (__builtin_expect(width < 1 || width > 32 || (width & (width - 1)), 0)) { cpu_fail("shuffle-width", false, "use a power of two up to 32", "width %d at %s", width, site); }
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
        total = first ? x : op == CPU_REDUCE_ADD ? (T)((unsigned)total + (unsigned)x) : op == CPU_REDUCE_MIN ? (x < total ? x : total) : op == CPU_REDUCE_MAX ? (x > total ? x : total)
              : op == CPU_REDUCE_AND ? (T)(total & x) : op == CPU_REDUCE_OR ? (T)(total | x) : (T)(total ^ x);
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
template <class Op, class T> static __forceinline__ T cpu_butterfly(const T* v) {
    T a[16];
    for (int i = 0; i < 16; i++) { a[i] = Op::apply(v[i], v[i + 16]); }
    for (int i = 0; i < 8; i++) { a[i] = Op::apply(a[i], a[i + 8]); }
    for (int i = 0; i < 4; i++) { a[i] = Op::apply(a[i], a[i + 4]); }
    for (int i = 0; i < 2; i++) { a[i] = Op::apply(a[i], a[i + 2]); }
    return Op::apply(a[0], a[1]);
}

template <class Op, class T> static inline T cpu_warp_reduce(T value, const char* site) {
    static_assert(sizeof(T) <= 8 && std::is_arithmetic<T>::value, "float, double, int, unsigned, unsigned long long");
    CpuWorker* w = cpu_kernel_worker(site);
    const unsigned me = cpu_ids.thread, warp = me / CPU_WARP;
    T* slots = (T*)(w->reduce_slot + warp * CPU_WARP * 8);
    T* result = (T*)(w->reduce_result + warp * 8);
    slots[me % CPU_WARP] = value;
    if (cpu_warp_arrive(w, 0xffffffffu, site)) { *result = cpu_butterfly<Op>(slots); } else { cpu_suspend(w); }
    return *result;  // the next reduction of this warp needs this lane, so the result still stands
}

template <class Op, class T> static inline T cpu_block_reduce(T value, const char* site) {
    static_assert(sizeof(T) <= 8 && std::is_arithmetic<T>::value, "float, double, int, unsigned, unsigned long long");
    CpuWorker* w = cpu_kernel_worker(site);
    T* slots = (T*)w->block_slot;
    T* result = (T*)w->block_result;
    if (__builtin_expect(w->launch->threads % CPU_WARP, 0)) {
        cpu_fail("partial-warp", false, "use a block size that is a multiple of 32", "a block reduction in a block of %u threads at %s", w->launch->threads, site);
    }
    slots[cpu_ids.thread] = value;
    if (cpu_block_arrive(w, site)) {
        T partial[CPU_WARP];
        for (unsigned warp = 0; warp < CPU_WARP; warp++) { partial[warp] = warp < w->launch->warps ? cpu_butterfly<Op>(slots + warp * CPU_WARP) : Op::template identity<T>(); }
        *result = cpu_butterfly<Op>(partial);
    } else {
        cpu_suspend(w);
    }
    return *result;
}

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
            cpu_fail("shared-overrun", false, "check the index against the array's size", "a thread of the block wrote byte %d behind the shared array %s of %zu bytes", i, name, bytes);
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
    type(&name)[n] = *reinterpret_cast<type(*)[n]>(cpu_shared(&cpu_shared_site_##name, sizeof(type[n]), alignof(type)))
#define CPU_SHARED_DYN(type, name) type* name = reinterpret_cast<type*>(cpu_kernel_worker(CPU_SITE)->dynamic)

// ----------------------------------------------------------------------------
// grids

#if !CPU_ASAN
// A kernel that uses up its stack hits the page below it: say so. Anything else keeps its usual end.
static inline void cpu_on_segv(int number, siginfo_t* info, void* context) {
    (void)context;
    CpuWorker* w = cpu_worker;
    if (w && w->in_kernel && w->fiber && w->fiber->base) {
        const char *at = (const char*)info->si_addr, *base = w->fiber->base;
        if (at >= base && at < (const char*)w->fiber->stack_bottom) {
            cpu_fail("stack-overflow", false, "keep large arrays in shared or device memory", "a thread has used all %d KiB of its stack", CPU_STACK_BYTES / 1024);
        }
    }
    signal(number, SIG_DFL);  // and the instruction that faulted faults again
}
#endif

// Runs when an OS thread that launched kernels ends.
static inline void cpu_worker_free(void* worker) {
    CpuWorker* w = (CpuWorker*)worker;
    while (CpuFiber* fiber = w->parked) { w->parked = fiber->next; cpu_fiber_free(fiber); }
    for (int i = 0; CPU_ASAN && i < CPU_SHARED_SITES; i++) { free(w->shared[i].address); }
    if (w->signal_stack) {
        stack_t none = {NULL, SS_DISABLE, 0};
        sigaltstack(&none, NULL);
        free(w->signal_stack);
    }
    free(w->dynamic_alloc);
    free(w->arena);
    free(w);
    cpu_worker = NULL;
}
inline void cpu_worker_free_at_exit(CpuWorker* w) {
    static pthread_key_t key;
    static bool made = pthread_key_create(&key, cpu_worker_free) == 0;
    if (made) { pthread_setspecific(key, w); }
}

static inline CpuWorker* cpu_worker_get(void) {
    if (cpu_worker) { return cpu_worker; }
    CpuWorker* w = NULL;
    require(posix_memalign((void**)&w, 64, sizeof(CpuWorker)) == 0, "close other programs", "out of host memory for a worker");
    memset((void*)w, 0, sizeof(CpuWorker));
    pthread_attr_t attr;
    void* bottom = NULL;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &bottom, &w->main.stack_size);
        pthread_attr_destroy(&attr);
    }
    w->main.stack_bottom = bottom;
#if !CPU_ASAN
    struct sigaction old;
    stack_t alternative = {malloc(65536), 0, 65536};
    w->signal_stack = alternative.ss_sp;
    if (w->signal_stack && sigaltstack(&alternative, NULL) == 0 && sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
        struct sigaction action;
        memset(&action, 0, sizeof(action));
        action.sa_sigaction = cpu_on_segv;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, NULL);
    }
#endif
    cpu_worker_free_at_exit(w);
    return cpu_worker = w;
}

static inline void cpu_worker_begin(CpuWorker* w, const CpuLaunch* launch) {
    w->launch = launch;
    w->launch_number++;
    w->in_kernel = true;
    w->check = cpu_modes()->check;
    w->order = cpu_modes()->order;
    w->ordered = w->order != CPU_ORDER_FORWARD;
    w->arena_used = w->arena_end = 0;
    w->active_count = 0;
    if (launch->smem != w->dynamic_bytes) {
        free(w->dynamic_alloc);
        // under ASan exactly as many bytes as were asked for, so that it sees the end; else room for the gap and 16 bytes to misalign by
        w->dynamic_alloc = launch->smem ? cpu_shared_alloc(launch->smem + (CPU_ASAN ? 0 : CPU_SHARED_GAP + 16)) : NULL;
        w->dynamic_bytes = launch->smem;
    }
    w->dynamic = w->dynamic_alloc && !CPU_ASAN && cpu_modes()->check ? w->dynamic_alloc + 16 : w->dynamic_alloc;  // SHARED_DYN promises 16
    cpu_ids.block_dim = launch->block;
    cpu_ids.grid_dim = launch->grid;
}

// The i-th block to run.
static inline size_t cpu_block_in_order(const CpuWorker* w, size_t i) {
    const size_t blocks = w->launch->blocks;
    if (w->order == CPU_ORDER_FORWARD) { return i; }
    if (w->order == CPU_ORDER_REVERSE) { return blocks - 1 - i; }
    // i * odd + shift permutes 0 .. 2^k - 1; numbers beyond the grid are walked through until one is inside (fewer than two steps on average)
    size_t size = 1;
    while (size < blocks) { size *= 2; }
    do { i = (i * (4 * (size_t)w->order + 1) + (size_t)w->order * 7919) & (size - 1); } while (i >= blocks);
    return i;
}

static inline void cpu_run_block(CpuWorker* w, size_t number) {
    const CpuLaunch* launch = w->launch;
    if (launch->grid.y * (size_t)launch->grid.z == 1) { cpu_ids.block_idx = make_uint3((unsigned)number, 0, 0); }
    else {
        size_t x = launch->grid.x, y = launch->grid.y;
        cpu_ids.block_idx = make_uint3((unsigned)(number % x), (unsigned)(number / x % y), (unsigned)(number / (x * y)));
    }
    w->tracking = false;
    w->fiber = &w->main;
    if (w->check) {
        for (int i = 0; i < w->active_count; i++) { cpu_shared_poison(w->shared[w->active[i]].address, w->shared[w->active[i]].bytes); }
        if (w->dynamic) { cpu_shared_poison(w->dynamic, w->dynamic_bytes); }
    }
    if (w->ordered) {
        cpu_begin_tracking(w, 0);
        w->random = (uint64_t)w->order * 0x9e3779b97f4a7c15ull ^ number;
        w->next = launch->threads;
        for (unsigned warp = 0; warp < launch->warps; warp++) { w->unstarted[warp] = w->exists[warp]; w->ready_warps |= 1u << warp; }
        bool fresh;
        w->start = cpu_pick(w, &fresh);
        launch->run_tracked(w, launch->args, false);
    } else {
        launch->run(w, launch->args);
    }
    if (w->check) {
        for (int i = 0; i < w->active_count; i++) { CpuSharedSlot* slot = &w->shared[w->active[i]]; cpu_shared_check_gap(slot->address, slot->bytes, slot->name); }
        if (w->dynamic) { cpu_shared_check_gap(w->dynamic, w->dynamic_bytes, "(dynamic)"); }
    }
}

// Set in a child process whose parent had an OpenMP pool: the pool's threads do not exist there, and the first parallel region would wait for them.
inline bool* cpu_pool_lost(void) {
    static bool lost = false;
    return &lost;
}
inline void cpu_pool_used(void) {
    static bool used = (pthread_atfork(NULL, NULL, [] { *cpu_pool_lost() = true; }), true);
    (void)used;
}

static inline uint64_t cpu_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

// Waking the pool costs about this; grids that look shorter stay on the calling thread.
#define CPU_WAKE_NS 20000

// ns_per_block: what this kernel's blocks took last time, 0 at first.
static inline void cpu_run_grid(const CpuLaunch* launch, float* ns_per_block) {
    CpuWorker* w = cpu_worker_get();
    if (w->in_kernel) { cpu_fail("nested-launch", false, "launch from the host", "a kernel launches another one"); }
    cpu_worker_begin(w, launch);
    int workers = 1;
#ifdef _OPENMP
    workers = omp_in_parallel() || *cpu_pool_lost() ? 1 : omp_get_max_threads();
#endif
    size_t done = 0;
    float guess = *ns_per_block;
    if (workers == 1 || launch->blocks == 1) {
        for (; done < launch->blocks; done++) { cpu_run_block(w, cpu_block_in_order(w, done)); }
    } else if (guess * (float)launch->blocks < CPU_WAKE_NS) {
        uint64_t begin = cpu_nanoseconds();
        while (done < launch->blocks) {
            cpu_run_block(w, cpu_block_in_order(w, done));
            done++;
            if (done & (done - 1)) { continue; }  // look at the clock after 1, 2, 4, 8 ... blocks
            float ns = (float)(cpu_nanoseconds() - begin);
            guess = ns / (float)done;
            if (ns > 0.1f * CPU_WAKE_NS && guess * (float)(launch->blocks - done) > CPU_WAKE_NS) { break; }
        }
        *ns_per_block = guess;
    }
#ifdef _OPENMP
    if (done < launch->blocks) {
        cpu_pool_used();
        size_t left = launch->blocks - done, next = done, chunk = left / ((size_t)workers * 8) + 1;
        uint64_t begin = cpu_nanoseconds();
        #pragma omp parallel num_threads(workers)
        {
            CpuWorker* mine = cpu_worker_get();
            if (mine != w) { cpu_worker_begin(mine, launch); }
            for (;;) {
                size_t first = __atomic_fetch_add(&next, chunk, __ATOMIC_RELAXED);
                if (first >= launch->blocks) { break; }
                size_t end = first + chunk < launch->blocks ? first + chunk : launch->blocks;
                for (size_t i = first; i < end; i++) { cpu_run_block(mine, cpu_block_in_order(mine, i)); }
            }
            mine->in_kernel = false;
        }
        float ns = (float)(cpu_nanoseconds() - begin) - 0.5f * CPU_WAKE_NS;
        *ns_per_block = ns > 0.0f ? ns * (float)workers / (float)left : 0.0f;
    }
#endif
    w->in_kernel = false;
}

#endif
