/* bad_kernels.cu - kernels and calls with one mistake each, and the name of the check that must catch it
 *
 * Included by test_cpu_device.cu, which runs each in a child process and looks for the name in what it prints; and, with BAD_KERNELS_MAIN, a program
 * of its own, which the test builds with sanitizers for the mistakes that only they see:  ./bad_kernels NAME
 */
#ifndef DEV_BAD_KERNELS_CU
#define DEV_BAD_KERNELS_CU

#include "llmc/ptx.cuh"
#include "llmc/cpu/cpu_check.h"

#define BAD_THREADS 64

// ----------------------------------------------------------------------------
// barriers

static __global__ void bad_missing_barrier_kernel1(float* out, const float* in) {
    SHARED(float, tile, BAD_THREADS);
    tile[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = tile[BAD_THREADS - 1 - threadIdx.x];  // written by another thread
}
static __global__ void bad_missing_second_barrier_kernel1(float* out, const float* in) {
    SHARED(float, tile, BAD_THREADS);
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        tile[threadIdx.x] = in[threadIdx.x] + (float)i;
        __syncthreads();
        sum += tile[BAD_THREADS - 1 - threadIdx.x];  // the next round overwrites it
    }
    out[threadIdx.x] = sum;
}
static __global__ void bad_divergent_barrier_kernel1(float* out) {
    if (threadIdx.x < 32) { __syncthreads(); } else { __syncthreads(); }
    out[threadIdx.x] = 1.0f;
}
static __global__ void bad_divergent_reduction_kernel1(float* out) {
    float x = threadIdx.x < 32 ? block_sum(1.0f) : block_sum(2.0f);
    out[threadIdx.x] = x;
}
static __global__ void bad_early_exit_kernel1(float* out, unsigned n) {
    if (threadIdx.x >= n) { return; }
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}
static __global__ void bad_early_exit_first_kernel1(float* out, unsigned n) {
    if (threadIdx.x < n) { return; }
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}
static __global__ void bad_early_exit_reduction_kernel1(float* out, unsigned n) {
    if (threadIdx.x % 32 >= n) { return; }
    out[threadIdx.x] = warp_sum(1.0f);
}
static __global__ void bad_deadlock_kernel1(float* out) {
    if (threadIdx.x == 3) { __syncthreads(); }
    out[threadIdx.x] = warp_sum(1.0f);  // 31 lanes here, one at the barrier: nobody can go on
}

// ----------------------------------------------------------------------------
// warps

static __global__ void bad_wrong_mask_kernel1(float* out) {
    unsigned mask = threadIdx.x == 7 ? 0x7fffffffu : FULL_MASK;
    out[threadIdx.x] = __shfl_xor_sync(mask, (float)threadIdx.x, 2);
}
static __global__ void bad_mask_of_others_kernel1(float* out) {
    unsigned mask = threadIdx.x % 2 ? FULL_MASK : 0x55555555u;  // the even lanes never come to the odd lanes' shuffle
    out[threadIdx.x] = __shfl_xor_sync(mask, (float)threadIdx.x, 2);
}
static __global__ void bad_mask_without_caller_kernel1(float* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, (float)threadIdx.x, 0); }
static __global__ void bad_shuffle_source_kernel1(float* out) {
    if (threadIdx.x % 32 < 16) { out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, (float)threadIdx.x, 16); }
}
static __global__ void bad_shuffle_site_kernel1(float* out) {
    float x = (float)threadIdx.x;
    if (threadIdx.x % 2) { x = __shfl_xor_sync(FULL_MASK, x, 1); } else { x = __shfl_xor_sync(FULL_MASK, x, 1); }
    out[threadIdx.x] = x;
}
static __global__ void bad_partial_warp_kernel1(float* out) { out[threadIdx.x] = warp_sum(1.0f); }
static __global__ void bad_partial_block_kernel1(float* out) { out[threadIdx.x] = block_sum(1.0f); }
static __global__ void bad_shuffle_width_kernel1(float* out) { out[threadIdx.x] = __shfl_xor_sync(FULL_MASK, 1.0f, 1, 12); }

// ----------------------------------------------------------------------------
// memory

static __global__ void bad_write_kernel1(float* out, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i <= n) { out[i] = 1.0f; }
}
static __global__ void bad_static_shared_kernel1(float* out) {
    SHARED(float, array, BAD_THREADS);
    float* tile = array;  // so that the index is not checked by the compiler's own array bounds
    tile[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
static __global__ void bad_dynamic_shared_kernel1(float* out) {
    SHARED_DYN(float, tile);
    tile[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
static __global__ void bad_uninitialised_shared_kernel1(float* out) {
    SHARED(float, tile, BAD_THREADS);
    if (threadIdx.x != 17) { tile[threadIdx.x] = 1.0f; }
    __syncthreads();
    out[threadIdx.x] = tile[BAD_THREADS - 1 - threadIdx.x];
}
static __global__ void bad_sum_kernel1(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x] + 1.0f; }
static __global__ void bad_misaligned_kernel1(float* out, const float* in) {
    float x[8];
    load8(x, in + 1);
    out[threadIdx.x] = x[threadIdx.x % 8];
}
static __global__ void bad_float_atomics_kernel1(float* out, const float* in) { atomicAdd(out, in[threadIdx.x]); }
static __global__ void bad_big_static_kernel1(float* out) {
    SHARED(float, first, 8192);
    SHARED(float, second, 8192);
    first[threadIdx.x] = 1.0f;
    second[threadIdx.x] = 2.0f;
    out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}
static __global__ void bad_dynamic_size_kernel1(float* out) {
    SHARED_DYN(float, tile);
    tile[threadIdx.x] = 1.0f;
    out[threadIdx.x] = tile[threadIdx.x];
}
static __attribute__((noinline)) float bad_recursion(volatile float* x, int depth) {
    volatile float frame[64];
    frame[depth % 64] = *x;
    return depth ? bad_recursion(x, depth - 1) + frame[(depth + 1) % 64] : frame[0];
}
static __global__ void bad_stack_kernel1(float* out) {
    __syncthreads();
    // all but the last thread to arrive wait on stacks of their own
    if (threadIdx.x == 5) { *out = bad_recursion(out, 100000); }
}
static __global__ void bad_trap_kernel1(float* out) { if (threadIdx.x == 7) { __trap(); } out[threadIdx.x] = 1.0f; }
static __global__ void bad_nothing_kernel1(float* out) { out[threadIdx.x] = 1.0f; }
static __global__ void bad_nested_kernel1(float* out) { launch<bad_nothing_kernel1>(1, 1, 0, 0, out); }

// ----------------------------------------------------------------------------
// how each is run

static float* bad_buffer(void) {
    float* p;
    cudaCheck(cudaMalloc(&p, BAD_THREADS * sizeof(float)));
    cudaCheck(cudaMemset(p, 0, BAD_THREADS * sizeof(float)));
    return p;
}
template <auto kernel> static void bad_run(void) {
    float* out = bad_buffer();
    launch<kernel>(1, BAD_THREADS, 0, 0, out);
    cudaCheck(cudaFree(out));
}
template <auto kernel, unsigned n> static void bad_run_n(void) {
    float* out = bad_buffer();
    launch<kernel>(1, BAD_THREADS, 0, 0, out, n);
    cudaCheck(cudaFree(out));
}
template <auto kernel, int threads> static void bad_run_threads(void) {
    float* out = bad_buffer();
    launch<kernel>(1, threads, 0, 0, out);
    cudaCheck(cudaFree(out));
}
template <auto kernel> static void bad_run_check_mode(void) { cpu_modes()->check = 1; bad_run<kernel>(); }

static float bad_result[BAD_THREADS];
template <auto kernel> static void bad_once(void*) {
    float host[BAD_THREADS], *in = bad_buffer(), *out = bad_buffer();
    for (int i = 0; i < BAD_THREADS; i++) { host[i] = 1.0f / (float)(i + 3); }
    cudaCheck(cudaMemcpy(in, host, sizeof(host), cudaMemcpyHostToDevice));
    launch<kernel>(1, BAD_THREADS, 0, 0, out, in);
    cudaCheck(cudaMemcpy(bad_result, out, sizeof(host), cudaMemcpyDeviceToHost));
    cudaCheck(cudaFree(in));
    cudaCheck(cudaFree(out));
}
template <auto kernel> static void bad_orders(void) { cpu_check_orders("bad", bad_once<kernel>, NULL, bad_result, sizeof(bad_result), 3); }

static void bad_uninitialised_shared_once(void*) {
    float* out = bad_buffer();
    launch<bad_uninitialised_shared_kernel1>(1, BAD_THREADS, 0, 0, out);
    cudaCheck(cudaMemcpy(bad_result, out, sizeof(bad_result), cudaMemcpyDeviceToHost));
    cudaCheck(cudaFree(out));
}
static void bad_uninitialised_shared(void) { cpu_check_orders("bad", bad_uninitialised_shared_once, NULL, bad_result, sizeof(bad_result), 3); }
static void bad_uninitialised_global_once(void*) {
    float *in, *out = bad_buffer();
    cudaCheck(cudaMalloc(&in, sizeof(bad_result)));
    cudaCheck(cudaMemset(in, 0, sizeof(bad_result) - sizeof(float)));  // all but the last
    launch<bad_sum_kernel1>(1, BAD_THREADS, 0, 0, out, in);
    cudaCheck(cudaMemcpy(bad_result, out, sizeof(bad_result), cudaMemcpyDeviceToHost));
    cudaCheck(cudaFree(in));
    cudaCheck(cudaFree(out));
}
static void bad_uninitialised_global(void) { cpu_check_orders("bad", bad_uninitialised_global_once, NULL, bad_result, sizeof(bad_result), 3); }
static void bad_out_of_bounds(void) {
    float* out = bad_buffer();
    launch<bad_write_kernel1>(1, 2 * BAD_THREADS, 0, 0, out, (size_t)BAD_THREADS);
}
static void bad_dynamic_shared(void) {
    float* out = bad_buffer();
    launch<bad_dynamic_shared_kernel1>(1, BAD_THREADS, BAD_THREADS * sizeof(float), 0, out);
}
static void bad_dynamic_shared_check_mode(void) { cpu_modes()->check = 1; bad_dynamic_shared(); }
static void bad_misaligned(void) {
    float *in, *out = bad_buffer();
    cudaCheck(cudaMalloc(&in, 64 * sizeof(float)));
    cudaCheck(cudaMemset(in, 0, 64 * sizeof(float)));
    launch<bad_misaligned_kernel1>(1, BAD_THREADS, 0, 0, out, in);
}
static void bad_memcpy_overrun(void) {
    float host[BAD_THREADS + 1] = {0}, *out = bad_buffer();
    cudaCheck(cudaMemcpy(out, host, sizeof(host), cudaMemcpyHostToDevice));
}
static void bad_memset_overrun(void) { cudaCheck(cudaMemset(bad_buffer() + 1, 0, BAD_THREADS * sizeof(float))); }
static void bad_memcpy_direction(void) {
    float host[BAD_THREADS] = {0}, *out = bad_buffer();
    cudaCheck(cudaMemcpy(out, host, sizeof(host), cudaMemcpyDeviceToHost));
}
static void bad_use_after_free(void) {
    float host[BAD_THREADS] = {0}, *out = bad_buffer();
    cudaCheck(cudaFree(out));
    cudaCheck(cudaMemcpy(out, host, sizeof(host), cudaMemcpyHostToDevice));
}
static void bad_double_free(void) {
    float* out = bad_buffer();
    cudaCheck(cudaFree(out));
    cudaCheck(cudaFree(out));
}
static void bad_dynamic_size(void) { launch<bad_dynamic_size_kernel1>(1, BAD_THREADS, 48 * 1024 + 4, 0, bad_buffer()); }
static void bad_dynamic_limit(void) { cudaCheck(cudaFuncSetAttribute(bad_dynamic_size_kernel1, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024)); }
static void bad_grid(void) { launch<bad_nothing_kernel1>(dim3(1, 65536), 1, 0, 0, bad_buffer()); }
static void bad_empty_grid(void) { launch<bad_nothing_kernel1>(0, 32, 0, 0, bad_buffer()); }
static void bad_barrier_on_host(void) { __syncthreads(); }


static __global__ void bad_copy_wait_kernel1(float* out, const float* in) {
    SHARED(float, tile, BAD_THREADS);
    if (threadIdx.x < BAD_THREADS / 4) { ptx_copy16(tile + threadIdx.x * 4, in + threadIdx.x * 4, true); }
    ptx_copy_commit();
    ptx_copy_wait<1>();  // the newest group is the only one
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
static __global__ void bad_copy_address_kernel1(float* out) {
    SHARED(float, tile, 2 * BAD_THREADS);
    ptx_copy16(tile + threadIdx.x, out, true);
}
static __global__ void bad_ldmatrix_address_kernel1(float* out) {
    SHARED(bf16, tile, 4 * BAD_THREADS);
    unsigned r[4];
    ptx_ldmatrix4(r, tile + threadIdx.x);
    out[threadIdx.x] = (float)r[0];
}
static __global__ void bad_divergent_mma_kernel1(float* out) {
    unsigned a[4] = {0}, b[4] = {0};
    float d[2][4] = {{0.0f}};
    if (threadIdx.x % 2) { ptx_mma16(d, a, b); } else { ptx_mma16(d, b, a); }
    out[threadIdx.x] = d[0][0];
}

typedef struct { const char* name; void (*run)(void); const char* check; bool sanitizer; } BadKernel;  // sanitizer: only a build with them sees it
static const BadKernel bad_kernels[] = {
    {"missing_barrier", bad_orders<bad_missing_barrier_kernel1>, "[cpu device: order-dependence]", false},
    {"missing_second_barrier", bad_orders<bad_missing_second_barrier_kernel1>, "[cpu device: order-dependence]", false},
    {"float_atomics", bad_orders<bad_float_atomics_kernel1>, "[cpu device: order-dependence]", false},
    {"divergent_barrier", bad_run<bad_divergent_barrier_kernel1>, "[cpu device: divergent-barrier]", false},
    {"divergent_reduction", bad_run<bad_divergent_reduction_kernel1>, "[cpu device: divergent-barrier]", false},
    {"early_exit_before_barrier", bad_run_n<bad_early_exit_kernel1, 50>, "[cpu device: early-exit]", false},
    {"early_exit_before_barrier_first", bad_run_n<bad_early_exit_first_kernel1, 50>, "[cpu device: early-exit]", false},
    {"early_exit_before_reduction", bad_run_n<bad_early_exit_reduction_kernel1, 20>, "[cpu device: early-exit]", false},
    {"deadlock", bad_run_threads<bad_deadlock_kernel1, 32>, "[cpu device: deadlock]", false},
    {"wrong_mask", bad_run<bad_wrong_mask_kernel1>, "[cpu device: wrong-mask]", false},
    {"mask_of_others", bad_run<bad_mask_of_others_kernel1>, "[cpu device: early-exit]", false},
    {"mask_without_caller", bad_run<bad_mask_without_caller_kernel1>, "[cpu device: mask-without-caller]", false},
    {"shuffle_source", bad_run<bad_shuffle_source_kernel1>, "[cpu device: shuffle-source]", false},
    {"shuffle_site", bad_run<bad_shuffle_site_kernel1>, "[cpu device: divergent-collective]", false},
    {"shuffle_width", bad_run<bad_shuffle_width_kernel1>, "[cpu device: shuffle-width]", false},
    {"partial_warp", bad_run_threads<bad_partial_warp_kernel1, 40>, "[cpu device: partial-warp]", false},
    {"partial_block", bad_run_threads<bad_partial_block_kernel1, 40>, "[cpu device: partial-warp]", false},
    {"uninitialised_shared", bad_uninitialised_shared, "[cpu device: uninitialised]", false},
    {"uninitialised_global", bad_uninitialised_global, "[cpu device: uninitialised]", false},
    {"static_shared_overrun", bad_run_check_mode<bad_static_shared_kernel1>, CPU_ASAN ? "heap-buffer-overflow" : "[cpu device: shared-overrun]", false},
    {"dynamic_shared_overrun", bad_dynamic_shared_check_mode, CPU_ASAN ? "heap-buffer-overflow" : "[cpu device: shared-overrun]", false},
    {"memcpy_overrun", bad_memcpy_overrun, "[cpu device: memcpy-overrun]", false},
    {"memset_overrun", bad_memset_overrun, "[cpu device: memcpy-overrun]", false},
    {"memcpy_direction", bad_memcpy_direction, "[cpu device: memcpy-kind]", false},
    {"use_after_free", bad_use_after_free, "[cpu device: memcpy-kind]", false},
    {"double_free", bad_double_free, "cudaErrorInvalidValue", false},
    {"big_static_shared", bad_run<bad_big_static_kernel1>, "[cpu device: shared-memory]", false},
    {"dynamic_shared_size", bad_dynamic_size, "[cpu device: launch-limits]", false},
    {"dynamic_shared_limit", bad_dynamic_limit, "cudaErrorInvalidValue", false},
    {"too_many_threads", bad_run_threads<bad_nothing_kernel1, 1056>, "[cpu device: launch-limits]", false},
    {"grid_too_large", bad_grid, "[cpu device: launch-limits]", false},
    {"empty_grid", bad_empty_grid, "[cpu device: launch-limits]", false},
    {"copy_without_wait", bad_orders<bad_copy_wait_kernel1>, "[cpu device: uninitialised]", false},
    {"copy_address", bad_run<bad_copy_address_kernel1>, "[cpu device: copy-address]", false},
    {"ldmatrix_address", bad_run<bad_ldmatrix_address_kernel1>, "[cpu device: ldmatrix-address]", false},
    {"divergent_mma", bad_run<bad_divergent_mma_kernel1>, "[cpu device: divergent-collective]", false},
    {"nested_launch", bad_run<bad_nested_kernel1>, "[cpu device: nested-launch]", false},
    {"barrier_on_host", bad_barrier_on_host, "[cpu device: not-in-kernel]", false},
    {"trap", bad_run<bad_trap_kernel1>, "[cpu device: trap]", false},
    {"stack_overflow", bad_run<bad_stack_kernel1>, CPU_ASAN ? "stack-overflow" : "[cpu device: stack-overflow]", false},
    {"out_of_bounds", bad_out_of_bounds, "heap-buffer-overflow", true},
    {"static_shared_out_of_bounds", bad_run<bad_static_shared_kernel1>, "heap-buffer-overflow", true},
    {"dynamic_shared_out_of_bounds", bad_dynamic_shared, "heap-buffer-overflow", true},
    {"misaligned_16_bytes", bad_misaligned, "misaligned address", true},
};
#define NUM_BAD_KERNELS ((int)(sizeof(bad_kernels) / sizeof(bad_kernels[0])))

#ifdef BAD_KERNELS_MAIN
int main(int argc, char** argv) {
    for (int i = 0; argc == 2 && i < NUM_BAD_KERNELS; i++) {
        if (!strcmp(argv[1], bad_kernels[i].name)) {
            bad_kernels[i].run();
            printf("%s was not caught\n", argv[1]);
            return 0;
        }
    }
    fprintf(stderr, "usage: bad_kernels NAME\n");
    return 2;
}
#endif
#endif
