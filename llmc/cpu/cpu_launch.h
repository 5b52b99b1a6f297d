/* cpu_launch.h - launches: CUDA's limits, a worker for every OS thread, the blocks of a grid over the OpenMP pool
 *
 * Pool:      the one that oneDNN uses, too. What a kernel's blocks took last time decides whether waking it pays; a short grid stays on the calling
 *            thread. A block never moves between OS threads.
 * Inlining:  the kernel is a template constant, so that the loop over a block's threads inlines it.
 * Errors:    a launch that CUDA would refuse is refused with CUDA's code (cudaGetLastError) and a line that says which limit.
 * Tests:     dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_LAUNCH_H
#define LLMC_CPU_LAUNCH_H

#include <signal.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu_pool.h"
#include "cpu_collectives.h"
#include "cpu_runtime.h"

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
            cpu_fail("stack-overflow", false, "keep large arrays in shared or device memory",
                     "a thread has used all %d KiB of its stack", CPU_STACK_BYTES / 1024);
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

// ----------------------------------------------------------------------------
// functions and launches

typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 } cudaFuncAttribute;
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout;
};

struct CpuFunctions { std::mutex lock; std::map<const void*, int> dynamic_bytes; };  // bytes allowed by cudaFuncSetAttribute
inline CpuFunctions* cpu_functions(void) {
    static CpuFunctions* f = new CpuFunctions();
    return f;
}
static inline size_t cpu_function_dynamic_limit(const void* function) {
    std::lock_guard<std::mutex> guard(cpu_functions()->lock);
    auto it = cpu_functions()->dynamic_bytes.find(function);
    return it == cpu_functions()->dynamic_bytes.end() ? CPU_STATIC_SHARED_BYTES : (size_t)it->second;
}
template <class F> static inline cudaError_t cudaFuncSetAttribute(F* function, cudaFuncAttribute attribute, int value) {
    if (!function) { return cpu_error(cudaErrorInvalidDeviceFunction); }
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) { return cpu_error(value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue); }
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > cpu_shared_limit()) { return cpu_error(cudaErrorInvalidValue); }
    std::lock_guard<std::mutex> guard(cpu_functions()->lock);
    cpu_functions()->dynamic_bytes[(const void*)function] = value;
    return cudaSuccess;
}
template <class F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, F* function) {
    if (!a || !function) { return cpu_error(cudaErrorInvalidValue); }
    memset(a, 0, sizeof(*a));
    a->maxThreadsPerBlock = CPU_MAX_THREADS;
    a->ptxVersion = a->binaryVersion = (int)cpu_modes()->arch;
    a->maxDynamicSharedSizeBytes = (int)cpu_function_dynamic_limit((const void*)function);
    return cudaSuccess;
}
template <class F> static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F* function, int block_size, size_t smem) {
    if (!blocks || !function || block_size < 1) { return cpu_error(cudaErrorInvalidValue); }
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    int by_threads = block_size > CPU_MAX_THREADS ? 0 : p.maxThreadsPerMultiProcessor / ROUND_UP(block_size, CPU_WARP);
    int by_memory = smem > cpu_function_dynamic_limit((const void*)function) ? 0 : (int)(p.sharedMemPerMultiprocessor / (smem + p.reservedSharedMemPerBlock));
    *blocks = by_threads < by_memory ? by_threads : by_memory;
    if (*blocks > p.maxBlocksPerMultiProcessor) { *blocks = p.maxBlocksPerMultiProcessor; }
    return cudaSuccess;
}

static inline cudaError_t cpu_launch_refuse(const char* pretty, cudaError_t error, const char* why, size_t value, size_t limit) {
    char kernel[256];
    cpu_kernel_name(kernel, sizeof(kernel), pretty);
    fprintf(stderr, "[cpu device: launch-limits] %s: %s %zu, allowed %zu (%s)\n", kernel, why, value, limit, cudaGetErrorName(error));
    return cpu_error(error);
}

// CUDA's limits and error codes.
static inline cudaError_t cpu_launch_check(const char* pretty, const void* function, dim3 grid, dim3 block, size_t smem) {
    const unsigned sizes[6] = {grid.x, grid.y, grid.z, block.x, block.y, block.z}, limits[6] = {INT_MAX, 65535, 65535, 1024, 1024, 64};
    static const char* const names[6] = {"gridDim.x", "gridDim.y", "gridDim.z", "blockDim.x", "blockDim.y", "blockDim.z"};
    for (int i = 0; i < 6; i++) {
        if (sizes[i] < 1 || sizes[i] > limits[i]) { return cpu_launch_refuse(pretty, cudaErrorInvalidConfiguration, names[i], sizes[i], limits[i]); }
    }
    size_t threads = (size_t)block.x * block.y * block.z;
    if (threads > CPU_MAX_THREADS) { return cpu_launch_refuse(pretty, cudaErrorInvalidConfiguration, "threads a block", threads, CPU_MAX_THREADS); }
    if (smem > CPU_STATIC_SHARED_BYTES) {
        size_t allowed = cpu_function_dynamic_limit(function);
        if (smem > allowed) {
            return cpu_launch_refuse(pretty, cudaErrorInvalidValue,
                                     "bytes of dynamic shared memory (cudaFuncSetAttribute raises the limit)", smem, allowed);
        }
    }
    return cudaSuccess;
}

template <auto kernel> static inline const char* cpu_kernel_pretty(void) { return __PRETTY_FUNCTION__; }

template <auto kernel, class... P, class... Args>
static inline void cpu_launch_as(void (*function)(P...), dim3 grid, dim3 block, size_t smem, Args&... args) {
    static_assert(sizeof...(P) == sizeof...(Args), "a launch must give the kernel all its arguments");
    static float ns_per_block = 0.0f;  // what it cost last time: decides whether to wake the pool
    const std::tuple<P...> tuple(args...);
    if (cpu_launch_check(cpu_kernel_pretty<kernel>(), (const void*)function, grid, block, smem) != cudaSuccess) { return; }
    CpuLaunch launch;
    launch.kernel = cpu_kernel_pretty<kernel>();
    launch.grid = grid;
    launch.block = block;
    launch.blocks = (size_t)grid.x * grid.y * grid.z;
    launch.smem = smem;
    launch.threads = block.x * block.y * block.z;
    launch.warps = CEIL_DIV(launch.threads, CPU_WARP);
    launch.run = cpu_run_threads<kernel, P...>;
    launch.run_tracked = cpu_run_threads_tracked<kernel, P...>;
    launch.args = &tuple;
    cpu_run_grid(&launch, &ns_per_block);
}

// Runs the kernel now. A refused launch is reported by cudaGetLastError.
template <auto kernel, class... Args>
static inline void cpu_launch(dim3 grid, dim3 block, size_t smem, cudaStream_t stream, Args... args) {
    if (!cpu_stream_valid(stream)) { cpu_error(cudaErrorInvalidResourceHandle); return; }
    cpu_launch_as<kernel>(kernel, grid, block, smem, args...);
}

#endif
