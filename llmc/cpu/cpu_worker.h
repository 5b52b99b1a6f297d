/* cpu_worker.h - the threads of a block as fibers of one OS thread: their state, who runs next, and what is said when something is wrong
 *
 * How:       A block's threads are started one after the other on the worker's own stack. A thread that ends leaves the stack to the next one, so a
 *            kernel without barriers is a plain loop around the inlined kernel. A thread that must wait (barrier, shuffle, reduction) keeps its stack;
 *            another stack then continues the loop, or a thread that may go on is resumed: one switch a thread and collective (cpu_collectives.h).
 * Order:     threads run in ascending order, or reversed, or at random (GPT_CPU_ORDER), from one point of synchronisation to the next. Nothing else
 *            is promised: code that relies on lanes moving in step fails here.
 * Errors:    cpu_fail prints "[cpu device: NAME]" with kernel, block, threads and places, and ends the program with exit code 1.
 * State:     one CpuWorker an OS thread (cpu_worker), freed with the thread; cpu_ids, the indices of the running CUDA thread.
 * Tests:     dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_WORKER_H
#define LLMC_CPU_WORKER_H

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <time.h>
#include <tuple>

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

static inline uint64_t cpu_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
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
    if (__builtin_expect(!w || !w->in_kernel, 0)) {
        cpu_fail("not-in-kernel", false, "call it from a kernel",
                 "a barrier or warp collective outside a kernel, at %s", site);
    }
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
    cpu_fail("deadlock", true, "every thread of the block must reach the same barriers, every lane of a mask the same collectives",
             "no thread of the block can go on");
}

// The stack to continue instead of the running thread's, which has to wait.
__attribute__((noinline))
static CpuFiber* cpu_next_stack(CpuWorker* w) {
    bool fresh;
    unsigned thread = cpu_pick(w, &fresh);
    if (__builtin_expect(thread == CPU_NONE, 0)) { cpu_fail_deadlock(w); }
    return cpu_stack_for(w, thread, fresh);
}

// The running thread gives its OS thread away until it has been made ready again. Inlined into kernels all the way: a return after the switch would
// go where another thread's call came from as far as the processor can guess, and cost 10 ns.
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
            cpu_fail("early-exit", true, "all lanes of the mask must reach the collective",
                     "lane %u of warp %u ended while lane %u waits for it (mask %08x) at %s",
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

#endif
