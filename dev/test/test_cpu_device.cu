/* test_cpu_device.cu - the CPU device does what CUDA promises, and refuses what CUDA does not
 *
 * Correct kernels give equal bits in every order of blocks and threads; collectives add in the documented order; limits, errors and modes are CUDA's;
 * every mistake in bad_kernels.cu is caught by the check of that name. CPU device only: under nvcc there is nothing to test here.
 */
#include "llmc/device.cuh"
#include "dev/test/test.h"

#ifdef GPT_CPU_DEVICE

#include "dev/test/bad_kernels.cu"

template <class T> static T* device_array(const std::vector<T>& host) {
    T* p;
    cudaCheck(cudaMalloc(&p, host.size() * sizeof(T)));
    cudaCheck(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> static std::vector<T> host_array(const T* device, size_t n) {
    std::vector<T> host(n);
    cudaCheck(cudaMemcpy(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}
static std::vector<float> random_floats(size_t n) {
    TestRng rng = {test_seed()};
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) { x[i] = (float)(test_rng_normal(&rng) * exp2(floor(test_rng_uniform(&rng) * 20.0))); }
    return x;
}
static unsigned bits_of(float x) { return __float_as_uint(x); }

// ----------------------------------------------------------------------------
// reductions: the order of additions

// device.cuh's CUDA version, word for word, on raw shuffles
template <class Op, class T> static __device__ T shuffle_warp_reduce(T value) {
    for (int offset = 16; offset > 0; offset >>= 1) { value = Op::apply(value, __shfl_xor_sync(FULL_MASK, value, offset)); }
    return value;
}
template <class Op, class T> static __device__ T shuffle_block_reduce(T value) {
    SHARED(T, partial, WARP_SIZE);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int lane = thread % WARP_SIZE, warp = thread / WARP_SIZE, num_warps = blockDim.x * blockDim.y * blockDim.z / WARP_SIZE;
    value = shuffle_warp_reduce<Op>(value);
    if (lane == 0) { partial[warp] = value; }
    __syncthreads();
    value = shuffle_warp_reduce<Op>(lane < num_warps ? partial[lane] : Op::template identity<T>());
    __syncthreads();
    return value;
}
template <class T> struct Reduced { T warp_sum, warp_max, block_sum, block_max; };
template <class T> static __global__ void reduce_kernel1(Reduced<T>* fast, Reduced<T>* raw, const T* in) {
    int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    T x = in[i];
    fast[i].warp_sum = warp_sum(x);
    fast[i].block_sum = block_sum(x);
    fast[i].warp_max = warp_max(x);
    fast[i].block_max = block_max(x);
    raw[i].warp_sum = shuffle_warp_reduce<CpuSum>(x);
    raw[i].block_sum = shuffle_block_reduce<CpuSum>(x);
    raw[i].warp_max = shuffle_warp_reduce<CpuMax>(x);
    raw[i].block_max = shuffle_block_reduce<CpuMax>(x);
}
// A plain loop that adds as documented: lane i and lane i ^ offset, offsets 16, 8, 4, 2, 1
template <class T> static T loop_butterfly(const T* v, T (*op)(T, T)) {
    T a[32], b[32];
    memcpy(a, v, sizeof(a));
    for (int offset = 16; offset > 0; offset /= 2) {
        for (int i = 0; i < 32; i++) { b[i] = op(a[i], a[i ^ offset]); }
        memcpy(a, b, sizeof(a));
    }
    return a[0];
}
template <class T> static T op_add(T a, T b) { return a + b; }
template <class T> static void check_reductions(const std::vector<T>& in, dim3 block) {
    int n = (int)in.size();
    Reduced<T>*fast, *raw;
    T* x = device_array(in);
    cudaCheck(cudaMalloc(&fast, n * sizeof(Reduced<T>)));
    cudaCheck(cudaMalloc(&raw, n * sizeof(Reduced<T>)));
    launch<reduce_kernel1<T>>(1, block, 0, 0, fast, raw, x);
    auto a = host_array(fast, n), b = host_array(raw, n);
    CHECK(!memcmp(a.data(), b.data(), n * sizeof(Reduced<T>)), "the collective and the shuffles differ in a block of %d", n);
    T partial[32] = {};
    for (int w = 0; w < n / 32; w++) {
        partial[w] = loop_butterfly(&in[w * 32], op_add<T>);
        for (int i = 0; i < 32; i++) { CHECK(!memcmp(&a[w * 32 + i].warp_sum, &partial[w], sizeof(T)), "warp_sum of warp %d, lane %d", w, i); }
    }
    T total = loop_butterfly(partial, op_add<T>), highest = in[0];
    for (int i = 0; i < n; i++) { highest = in[i] > highest ? in[i] : highest; }
    for (int i = 0; i < n; i++) {
        CHECK(!memcmp(&a[i].block_sum, &total, sizeof(T)), "block_sum, thread %d of %d", i, n);
        CHECK(!memcmp(&a[i].block_max, &highest, sizeof(T)), "block_max, thread %d of %d", i, n);
    }
    cudaCheck(cudaFree(x));
    cudaCheck(cudaFree(fast));
    cudaCheck(cudaFree(raw));
}
template <class T> static std::vector<T> converted(const std::vector<float>& x, double scale) {
    std::vector<T> out(x.size());
    for (size_t i = 0; i < x.size(); i++) { out[i] = (T)(std::is_unsigned<T>::value ? fabs((double)x[i] * scale) : (double)x[i] * scale); }
    return out;
}
static void test_cpu_reductions_add_in_butterfly_order(void) {
    for (int threads : {32, 64, 96, 256, 1024}) {
        std::vector<float> x = random_floats(threads);
        check_reductions(x, dim3(threads));
        check_reductions(converted<double>(x, 1.0), dim3(threads));
        check_reductions(converted<int>(x, 7.0), dim3(threads));
        check_reductions(converted<unsigned>(x, 7.0), dim3(threads));
        check_reductions(converted<unsigned long long>(x, 1e9), dim3(threads));
    }
    check_reductions(random_floats(8 * 4 * 3), dim3(8, 4, 3));
    std::vector<float> same(64, 0.1f);  // order shows: 32 times 0.1 by halves is not 32 additions
    check_reductions(same, dim3(64));
}
static __global__ void max_nan_kernel1(float* out, const float* in) { out[threadIdx.x] = warp_max(in[threadIdx.x]); }
static void test_cpu_max_loses_nan_like_fmaxf(void) {
    std::vector<float> in(32, -3.0f);
    in[5] = NAN;
    in[20] = -1.0f;
    float *x = device_array(in), *y = device_array(in);
    launch<max_nan_kernel1>(1, 32, 0, 0, y, x);
    for (float v : host_array(y, 32)) { CHECK(v == -1.0f, "%g", v); }
    in.assign(32, NAN);
    cudaCheck(cudaMemcpy(x, in.data(), 128, cudaMemcpyHostToDevice));
    launch<max_nan_kernel1>(1, 32, 0, 0, y, x);
    for (float v : host_array(y, 32)) { CHECK(v != v, "%g", v); }
    in.assign(32, -INFINITY);
    cudaCheck(cudaMemcpy(x, in.data(), 128, cudaMemcpyHostToDevice));
    launch<max_nan_kernel1>(1, 32, 0, 0, y, x);
    for (float v : host_array(y, 32)) { CHECK(v == -INFINITY, "%g", v); }
}

// ----------------------------------------------------------------------------
// shuffles and votes against a plain description

struct Shuffles { int idx, up, down, x, idx8, up8, down8, x8, x_far; unsigned ballot, add, most, least; int any, all; double wide; };
static __global__ void shuffle_kernel1(Shuffles* out, const int* in, unsigned mask) {
    unsigned lane = threadIdx.x % 32;
    if (!(mask >> lane & 1)) { return; }
    int v = in[threadIdx.x];
    Shuffles s;
    memset(&s, 0, sizeof(s));
    s.ballot = __ballot_sync(mask, v & 1);
    s.any = __any_sync(mask, v == 5);
    s.all = __all_sync(mask, v >= 0);
    s.add = __reduce_add_sync(mask, (unsigned)v);
    s.most = __reduce_max_sync(mask, (unsigned)v);
    s.least = __reduce_min_sync(mask, (unsigned)v);
    if (mask == FULL_MASK) {
        s.idx = __shfl_sync(mask, v, 37);
        s.up = __shfl_up_sync(mask, v, 3);
        s.down = __shfl_down_sync(mask, v, 3);
        s.x = __shfl_xor_sync(mask, v, 5);
        s.idx8 = __shfl_sync(mask, v, 11, 8);
        s.up8 = __shfl_up_sync(mask, v, 3, 8);
        s.down8 = __shfl_down_sync(mask, v, 3, 8);
        s.x8 = __shfl_xor_sync(mask, v, 5, 8);
        s.x_far = __shfl_xor_sync(mask, v, 13, 8);
        s.wide = __shfl_down_sync(mask, (double)v / 3.0, 1);
    } else {
        int first = __ffs((int)mask) - 1;
        s.idx = __shfl_sync(mask, v, first);
    }
    __syncwarp(mask);
    out[threadIdx.x] = s;
}
static void check_shuffles(int threads, unsigned mask) {
    std::vector<int> in(threads);
    TestRng rng = {test_seed() + mask};
    for (int& v : in) { v = (int)(test_rng_u64(&rng) % 1000); }
    std::vector<Shuffles> zero(threads);
    memset((void*)zero.data(), 0, threads * sizeof(Shuffles));
    Shuffles* out = device_array(zero);
    int* x = device_array(in);
    launch<shuffle_kernel1>(1, threads, 0, 0, out, x, mask);
    auto got = host_array(out, threads);
    for (int t = 0; t < threads; t++) {
        int base = t / 32 * 32, lane = t % 32, seg = lane & ~7;
        if (!(mask >> lane & 1)) { continue; }
        unsigned ballot = 0, add = 0, most = 0, least = UINT_MAX;
        bool any = false, all = true;
        for (int l = 0; l < 32; l++) {
            if (!(mask >> l & 1)) { continue; }
            int v = in[base + l];
            ballot |= (unsigned)(v & 1) << l;
            add += (unsigned)v;
            most = max(most, (unsigned)v);
            least = min(least, (unsigned)v);
            any |= v == 5;
            all &= v >= 0;
        }
        const Shuffles& s = got[t];
        CHECK(s.ballot == ballot && s.any == any && s.all == all && s.add == add && s.most == most && s.least == least, "votes of lane %d, mask %08x", lane, mask);
        if (mask != FULL_MASK) { CHECK(s.idx == in[base + __builtin_ctz(mask)], "lane %d, mask %08x", lane, mask); continue; }
        CHECK(s.idx == in[base + 37 % 32], "shfl, lane %d", lane);
        CHECK(s.up == in[base + (lane < 3 ? lane : lane - 3)], "shfl_up, lane %d", lane);
        CHECK(s.down == in[base + (lane + 3 > 31 ? lane : lane + 3)], "shfl_down, lane %d", lane);
        CHECK(s.x == in[base + (lane ^ 5)], "shfl_xor, lane %d", lane);
        CHECK(s.idx8 == in[base + seg + 3], "shfl of 8, lane %d", lane);
        CHECK(s.up8 == in[base + (lane - seg < 3 ? lane : lane - 3)], "shfl_up of 8, lane %d", lane);
        CHECK(s.down8 == in[base + (lane - seg + 3 > 7 ? lane : lane + 3)], "shfl_down of 8, lane %d", lane);
        CHECK(s.x8 == in[base + (lane ^ 5)], "shfl_xor of 8, lane %d", lane);
        // PTX shfl.bfly with segments: a source in a later segment leaves the lane its own value, an earlier one is read
        CHECK(s.x_far == in[base + ((lane ^ 13) >= seg + 8 ? lane : lane ^ 13)], "shfl_xor beyond 8, lane %d", lane);
        CHECK(s.wide == in[base + (lane == 31 ? lane : lane + 1)] / 3.0, "shfl_down of double, lane %d", lane);
    }
    cudaCheck(cudaFree(out));
    cudaCheck(cudaFree(x));
}
static void test_cpu_shuffles_and_votes(void) {
    check_shuffles(32, FULL_MASK);
    check_shuffles(256, FULL_MASK);
    for (unsigned mask : {0x1u, 0x80000000u, 0x0000ffffu, 0xffff0000u, 0x12345678u, 0x7fffffffu}) { check_shuffles(96, mask); }
    check_shuffles(40, 0x000000ffu);  // the second warp has only these lanes
}
// Two groups of a warp shuffle independently, one more often than the other.
static __global__ void groups_kernel1(int* out) {
    int lane = threadIdx.x, v = lane;
    if (lane < 16) { for (int i = 0; i < 9; i++) { v = __shfl_xor_sync(0x0000ffffu, v, 1 << i % 4) + 1; } }
    else { for (int i = 0; i < 2; i++) { v = __shfl_xor_sync(0xffff0000u, v, 1) + 100; } }
    __syncwarp();
    out[lane] = __shfl_sync(FULL_MASK, v, 31 - lane);
}
static void test_cpu_groups_of_a_warp_are_independent(void) {
    int* out = device_array(std::vector<int>(32));
    for (long long order : {0ll, -1ll, 1ll, 2ll, 3ll}) {
        cpu_modes()->order = order;
        launch<groups_kernel1>(1, 32, 0, 0, out);
        auto got = host_array(out, 32);
        for (int lane = 0; lane < 32; lane++) {
            int source = 31 - lane, v = source;
            if (source < 16) { for (int i = 0; i < 9; i++) { v ^= 1 << i % 4; } v = source; for (int i = 8; i >= 0; i--) { v ^= 1 << i % 4; } v += 9; }
            else { v = source + 200; }
            CHECK(got[lane] == v, "order %lld lane %d: %d, expected %d", order, lane, got[lane], v);
        }
    }
}

// ----------------------------------------------------------------------------
// barriers, shapes, shared memory

static __global__ void count_kernel1(int* out) {
    int t = threadIdx.x, n = blockDim.x;
    int odd = __syncthreads_count(t % 2), any = __syncthreads_or(t == n - 1), none = __syncthreads_or(0), all = __syncthreads_and(t >= 0), most = __syncthreads_and(t > 0);
    out[t] = odd == n / 2 && any && !none && all && !most;
}
static void test_cpu_barriers_count(void) {
    for (int n : {1, 2, 31, 33, 64, 1000, 1024}) {
        int* out = device_array(std::vector<int>(n));
        launch<count_kernel1>(1, n, 0, 0, out);
        for (int v : host_array(out, n)) { CHECK(v == 1, "block of %d", n); }
        cudaCheck(cudaFree(out));
    }
}

struct Place { unsigned bx, by, bz, tx, ty, tz; };
static __global__ void place_kernel1(Place* out, unsigned* visits) {
    size_t block = blockIdx.x + (size_t)gridDim.x * (blockIdx.y + (size_t)gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    size_t i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[i] = Place{blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z};
    atomicAdd(&visits[i], 1u);
}
static void check_places(dim3 grid, dim3 block) {
    size_t threads = (size_t)block.x * block.y * block.z, n = grid.x * (size_t)grid.y * grid.z * threads;
    Place* out = device_array(std::vector<Place>(n));
    unsigned* visits = device_array(std::vector<unsigned>(n, 0));
    launch<place_kernel1>(grid, block, 0, 0, out, visits);
    auto places = host_array(out, n);
    auto counts = host_array(visits, n);
    for (size_t i = 0; i < n; i++) {
        size_t b = i / threads, t = i % threads;
        Place p = places[i];
        CHECK(counts[i] == 1, "thread %zu of block %zu ran %u times", t, b, counts[i]);
        CHECK(p.bx == b % grid.x && p.by == b / grid.x % grid.y && p.bz == b / grid.x / grid.y, "block %zu believes to be (%u,%u,%u)", b, p.bx, p.by, p.bz);
        CHECK(p.tx == t % block.x && p.ty == t / block.x % block.y && p.tz == t / block.x / block.y, "thread %zu believes to be (%u,%u,%u)", t, p.tx, p.ty, p.tz);
    }
    cudaCheck(cudaFree(out));
    cudaCheck(cudaFree(visits));
}
static void test_cpu_every_thread_runs_once(void) {
    for (long long order : {0ll, -1ll, 1ll, 2ll, 12345678901ll}) {
        cpu_modes()->order = order;
        check_places(1, 1);
        check_places(5000, 3);
        check_places(dim3(7, 5, 3), dim3(4, 3, 5));
        check_places(33, 1024);
        check_places(dim3(1, 1, 9), dim3(1, 1, 64));
    }
}

// A tile transposed through shared memory, in 2-D blocks, with a reduction in between: what a correct kernel looks like.
#define TRANSPOSE 16
static __global__ void transpose_kernel1(float* out, float* sums, const float* in, int rows, int cols) {
    SHARED(float, tile, TRANSPOSE][TRANSPOSE + 1);
    SHARED_DYN(float, scratch);
    int x = blockIdx.x * TRANSPOSE + threadIdx.x, y = blockIdx.y * TRANSPOSE + threadIdx.y, thread = threadIdx.y * TRANSPOSE + threadIdx.x;
    float v = x < cols && y < rows ? in[y * cols + x] : 0.0f;
    tile[threadIdx.y][threadIdx.x] = v;
    scratch[thread] = v * v;
    __syncthreads();
    float total = block_sum(scratch[TRANSPOSE * TRANSPOSE - 1 - thread]);
    int tx = blockIdx.y * TRANSPOSE + threadIdx.x, ty = blockIdx.x * TRANSPOSE + threadIdx.y;
    if (tx < rows && ty < cols) { out[ty * rows + tx] = tile[threadIdx.x][threadIdx.y]; }
    if (thread == 0) { sums[blockIdx.y * gridDim.x + blockIdx.x] = total; }
}
static __global__ void scale_kernel1(float* x, const float* sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { x[i] = x[i] * 0.5f + sums[0]; }
}
#define CORRECT_ROWS 37
#define CORRECT_COLS 83
static float correct_result[CORRECT_ROWS * CORRECT_COLS];
static void correct_run(void*) {
    std::vector<float> in = random_floats(CORRECT_ROWS * CORRECT_COLS);
    dim3 grid(CEIL_DIV(CORRECT_COLS, TRANSPOSE), CEIL_DIV(CORRECT_ROWS, TRANSPOSE)), block(TRANSPOSE, TRANSPOSE);
    float *x = device_array(in), *out, *sums;
    cudaCheck(cudaMalloc(&out, in.size() * sizeof(float)));
    cudaCheck(cudaMalloc(&sums, grid.x * grid.y * sizeof(float)));
    launch<transpose_kernel1>(grid, block, TRANSPOSE * TRANSPOSE * sizeof(float), 0, out, sums, x, CORRECT_ROWS, CORRECT_COLS);
    launch<scale_kernel1>(CEIL_DIV(CORRECT_ROWS * CORRECT_COLS, 100), 100, 0, 0, out, sums, CORRECT_ROWS * CORRECT_COLS);
    cudaCheck(cudaMemcpy(correct_result, out, sizeof(correct_result), cudaMemcpyDeviceToHost));
    float total;
    cudaCheck(cudaMemcpy(&total, sums, sizeof(float), cudaMemcpyDeviceToHost));
    for (int y = 0; y < CORRECT_ROWS; y++) {
        for (int c = 0; c < CORRECT_COLS; c++) {
            float expected = in[y * CORRECT_COLS + c] * 0.5f + total, got = correct_result[c * CORRECT_ROWS + y];
            CHECK(bits_of(expected) == bits_of(got), "row %d column %d: %g, expected %g", y, c, got, expected);
        }
    }
    cudaCheck(cudaFree(x));
    cudaCheck(cudaFree(out));
    cudaCheck(cudaFree(sums));
}
static void test_cpu_correct_kernels_pass_in_every_order(void) {
    size_t before = cpu_device_bytes();
    cpu_check_orders("transpose", correct_run, NULL, correct_result, sizeof(correct_result), 12);
    CHECK(cpu_device_bytes() == before, "%zu bytes leaked", cpu_device_bytes() - before);
}

// Shared arrays belong to their place in the source: two of one name in two functions, one in a function used by two kernels, two instantiations.
template <int N> static __device__ float shared_helper(float v) {
    SHARED(float, array, N);
    if (threadIdx.x < N) { array[threadIdx.x] = v; }
    __syncthreads();
    float x = array[(threadIdx.x + 1) % N];
    __syncthreads();
    return x;
}
static __global__ void shared_kernel1(float* out) {
    SHARED(float, array, 64);
    array[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    float a = shared_helper<64>(1000.0f + (float)threadIdx.x), b = shared_helper<32>(2000.0f + (float)threadIdx.x);
    out[threadIdx.x] = array[63 - threadIdx.x] + a + b;
}
static __global__ void shared_kernel2(float* out) { out[threadIdx.x] = shared_helper<64>((float)threadIdx.x); }
static void test_cpu_shared_arrays_belong_to_their_place(void) {
    float* out = device_array(std::vector<float>(64));
    for (long long check : {0ll, 1ll}) {
        cpu_modes()->check = check;
        launch<shared_kernel1>(3, 64, 0, 0, out);
        auto got = host_array(out, 64);
        for (int t = 0; t < 64; t++) {
            float expected = (float)(63 - t) + 1000.0f + (float)((t + 1) % 64) + 2000.0f + (float)((t + 1) % 32);
            CHECK(got[t] == expected, "thread %d: %g, expected %g", t, got[t], expected);
        }
        launch<shared_kernel2>(1, 64, 0, 0, out);
        got = host_array(out, 64);
        for (int t = 0; t < 64; t++) { CHECK(got[t] == (float)((t + 1) % 64), "thread %d: %g", t, got[t]); }
    }
}
static __global__ void poison_kernel1(unsigned* out, int words) {
    SHARED(unsigned, fixed, 5);
    SHARED_DYN(unsigned, dynamic);
    for (int i = threadIdx.x; i < words; i += blockDim.x) { out[i] = dynamic[i]; }
    if (threadIdx.x < 5) { out[words + threadIdx.x] = fixed[threadIdx.x]; }
    __syncthreads();
    for (int i = threadIdx.x; i < words; i += blockDim.x) { dynamic[i] = 1; }  // the next block must not see this
    if (threadIdx.x < 5) { fixed[threadIdx.x] = 2; }
}
static void test_cpu_check_mode_poisons(void) {
    cpu_modes()->check = 1;
    const int words = 100;
    unsigned* out;
    cudaCheck(cudaMalloc(&out, (words + 5) * sizeof(unsigned)));
    for (unsigned v : host_array(out, words + 5)) { CHECK(v == 0xffffffffu, "fresh device memory holds %08x", v); }
    launch<poison_kernel1>(20, 32, words * sizeof(unsigned), 0, out, words);
    for (unsigned v : host_array(out, words + 5)) { CHECK(v == 0xffffffffu, "fresh shared memory holds %08x", v); }
    float nan;
    bf16 nan16;
    memset(&nan, 0xff, 4);
    memset((void*)&nan16, 0xff, 2);
    CHECK(nan != nan && __bfloat162float(nan16) != __bfloat162float(nan16) && cpu_fp8_to_float(0xff, __NV_E4M3) != cpu_fp8_to_float(0xff, __NV_E4M3)
              && cpu_fp8_to_float(0xff, __NV_E5M2) != cpu_fp8_to_float(0xff, __NV_E5M2), "the poison must be NaN in every format");
}
static __global__ void big_shared_kernel1(float* out, int n) {
    SHARED_DYN(float, x);
    x[n - 1 - threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) { *out = x[n - 1] + x[n - (int)blockDim.x]; }
}
static void test_cpu_dynamic_shared_memory_by_attribute(void) {
    float* out = device_array(std::vector<float>(1));
    int bytes = 227 * 1024;
    cpu_launch<big_shared_kernel1>(1, 256, bytes, 0, out, bytes / 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "more than 48 KiB without the attribute");
    cudaCheck(cudaFuncSetAttribute(big_shared_kernel1, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    launch<big_shared_kernel1>(1, 256, bytes, 0, out, bytes / 4);
    CHECK(host_array(out, 1)[0] == 255.0f, "%g", host_array(out, 1)[0]);
    cpu_launch<bad_nothing_kernel1>(1, 1, bytes, 0, out);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "the attribute belongs to one kernel");
    cpu_launch<big_shared_kernel1>(1, 256, bytes + 4, 0, out, bytes / 4);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue, "more than the attribute allows");
    cudaFuncAttributes attributes;
    cudaCheck(cudaFuncGetAttributes(&attributes, big_shared_kernel1));
    CHECK(attributes.maxDynamicSharedSizeBytes == bytes && attributes.maxThreadsPerBlock == 1024, "%d", attributes.maxDynamicSharedSizeBytes);
}

// ----------------------------------------------------------------------------
// atomics

static __global__ void atomics_kernel1(int* i, unsigned* u, unsigned long long* l, float* f) {
    int n = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&i[0], n);
    atomicMax(&i[1], n - 500);
    atomicMin(&i[2], 500 - n);
    atomicSub(&i[3], 2);
    atomicAdd(&u[0], (unsigned)n);
    atomicMax(&u[1], (unsigned)n);
    atomicMin(&u[2], (unsigned)n);
    atomicOr(&u[3], 1u << n % 32);
    atomicXor(&u[4], 1u << n % 31);
    if (atomicExch(&u[5], 1u) == 0u) { atomicAdd(&u[6], 1u); }
    unsigned old = u[7], seen;
    while ((seen = atomicCAS(&u[7], old, old + 3u)) != old) { old = seen; }
    atomicAdd(&l[0], (unsigned long long)n << 32);
    atomicAdd(&f[0], 0.25f);
}
static void test_cpu_atomics(void) {
    const int blocks = 200, threads = 64, n = blocks * threads;
    int* i = device_array(std::vector<int>{0, -9999, 9999, 0});
    unsigned* u = device_array(std::vector<unsigned>{0, 0, 999999, 0, 0, 0, 0, 0});
    unsigned long long* l = device_array(std::vector<unsigned long long>{0});
    float* f = device_array(std::vector<float>{0});
    launch<atomics_kernel1>(blocks, threads, 0, 0, i, u, l, f);
    auto hi = host_array(i, 4);
    auto hu = host_array(u, 8);
    unsigned x = 0;
    for (int k = 0; k < n; k++) { x ^= 1u << k % 31; }
    CHECK(hi[0] == n / 2 * (n - 1) && hi[1] == n - 501 && hi[2] == 501 - n && hi[3] == -2 * n, "int: %d %d %d %d", hi[0], hi[1], hi[2], hi[3]);
    CHECK(hu[0] == (unsigned)(n / 2 * (n - 1)) && hu[1] == (unsigned)n - 1 && hu[2] == 0 && hu[3] == 0xffffffffu && hu[4] == x && hu[6] == 1 && hu[7] == 3u * n, "unsigned");
    CHECK(host_array(l, 1)[0] == (unsigned long long)(n / 2) * (n - 1) << 32, "unsigned long long");
    CHECK(host_array(f, 1)[0] == 0.25f * n, "float: %g", host_array(f, 1)[0]);
}

// ----------------------------------------------------------------------------
// the runtime API

static void test_cpu_launch_limits_give_cuda_errors(void) {
    float* out = device_array(std::vector<float>(1024));
    struct { dim3 grid, block; size_t smem; cudaError_t error; } cases[] = {
        {dim3(1), dim3(1024), 48 * 1024, cudaSuccess},
        {dim3(1), dim3(1025), 0, cudaErrorInvalidConfiguration},
        {dim3(1), dim3(32, 33), 0, cudaErrorInvalidConfiguration},
        {dim3(1), dim3(1, 1, 65), 0, cudaErrorInvalidConfiguration},
        {dim3(1), dim3(0), 0, cudaErrorInvalidConfiguration},
        {dim3(0), dim3(1), 0, cudaErrorInvalidConfiguration},
        {dim3(1, 65536), dim3(1), 0, cudaErrorInvalidConfiguration},
        {dim3(1, 1, 65536), dim3(1), 0, cudaErrorInvalidConfiguration},
        {dim3(2147483648u), dim3(1), 0, cudaErrorInvalidConfiguration},
        {dim3(1), dim3(1), 48 * 1024 + 1, cudaErrorInvalidValue},
    };
    for (auto& c : cases) {
        cpu_launch<bad_nothing_kernel1>(c.grid, c.block, c.smem, 0, out);
        CHECK(cudaPeekAtLastError() == c.error, "grid (%u,%u,%u) block (%u,%u,%u) smem %zu: %s", c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.smem,
              cudaGetErrorName(cudaPeekAtLastError()));
        CHECK(cudaGetLastError() == c.error && cudaGetLastError() == cudaSuccess, "reading an error clears it");
    }
}
static void test_cpu_memory_accounting(void) {
    setenv("GPT_CPU_MEMORY", "64M", 1);
    size_t free_bytes, total;
    cudaCheck(cudaMemGetInfo(&free_bytes, &total));
    CHECK(total == 64 << 20 && free_bytes == total, "%zu of %zu", free_bytes, total);
    char *a, *b = (char*)1;
    cudaCheck(cudaMalloc(&a, (40 << 20) + 1));
    CHECK((uintptr_t)a % 256 == 0, "alignment");
    CHECK(cpu_device_bytes() == (40 << 20) + 1 && cpu_device_allocations() == 1, "%zu bytes", cpu_device_bytes());
    CHECK(cudaMalloc(&b, 24 << 20) == cudaErrorMemoryAllocation && !b, "40 + 24 MiB + 1 do not fit");
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation, "remembered");
    CHECK(cudaMalloc(&b, (size_t)-1) == cudaErrorMemoryAllocation, "no wrap around");
    cudaCheck((cudaGetLastError(), cudaSuccess));
    cudaCheck(cudaMalloc(&b, (24 << 20) - 1));
    cudaCheck(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == 0, "%zu", free_bytes);
    cudaCheck(cudaFree(a));
    cudaCheck(cudaFree(b));
    cudaCheck(cudaFree(NULL));
    CHECK(cudaFree(b) == cudaErrorInvalidValue && cudaFree((char*)&total) == cudaErrorInvalidValue, "double and foreign frees");
    cudaGetLastError();
    CHECK(cpu_device_bytes() == 0 && cpu_device_bytes_peak() == 64 << 20, "%zu left", cpu_device_bytes());
    cudaCheck(cudaMalloc(&a, 0));
    CHECK(!a, "nothing is NULL");
    char* pinned;
    cudaCheck(cudaMallocHost(&pinned, 100));
    cudaCheck(cudaMalloc(&a, 100));
    memset(pinned, 7, 100);
    cudaCheck(cudaMemcpyAsync(a + 1, pinned, 99, cudaMemcpyHostToDevice, 0));
    cudaCheck(cudaMemset(a, 3, 2));
    cudaCheck(cudaMemcpy(pinned, a, 100, cudaMemcpyDefault));
    CHECK(pinned[0] == 3 && pinned[1] == 3 && pinned[2] == 7 && pinned[99] == 7, "copies");
    CHECK(cudaMemcpy(pinned, a, 1, (cudaMemcpyKind)9) == cudaErrorInvalidMemcpyDirection && cudaGetLastError() != cudaSuccess, "kind 9");
    cudaCheck(cudaFreeHost(pinned));
    cudaCheck(cudaFree(a));
}
static void test_cpu_streams_and_events(void) {
    cudaStream_t stream;
    cudaEvent_t begin, end, untimed;
    float ms = -1.0f;
    unsigned flags;
    cudaCheck(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaCheck(cudaStreamGetFlags(stream, &flags));
    CHECK(flags == cudaStreamNonBlocking, "%u", flags);
    cudaCheck(cudaEventCreate(&begin));
    cudaCheck(cudaEventCreate(&end));
    cudaCheck(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaErrorInvalidResourceHandle && cudaGetLastError() != cudaSuccess, "not recorded");
    cudaCheck(cudaEventRecord(begin, stream));
    usleep(20000);
    cudaCheck(cudaEventRecord(end, stream));
    cudaCheck(cudaEventRecord(untimed, 0));
    cudaCheck(cudaStreamWaitEvent(stream, untimed, 0));
    cudaCheck(cudaEventSynchronize(end));
    cudaCheck(cudaEventQuery(end));
    cudaCheck(cudaStreamSynchronize(stream));
    cudaCheck(cudaDeviceSynchronize());
    cudaCheck(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms >= 20.0f && ms < 20000.0f, "slept 20 ms, measured %g", ms);
    CHECK(cudaEventElapsedTime(&ms, begin, untimed) == cudaErrorInvalidResourceHandle && cudaGetLastError() != cudaSuccess, "an event without timing");
    cudaCheck(cudaEventDestroy(begin));
    cudaCheck(cudaEventDestroy(end));
    cudaCheck(cudaEventDestroy(untimed));
    cudaCheck(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(0) == cudaErrorInvalidResourceHandle && cudaEventDestroy(NULL) == cudaErrorInvalidResourceHandle && cudaGetLastError() != cudaSuccess, "null handles");
}
static void test_cpu_device_plays_what_it_is_told(void) {
    cudaDeviceProp p;
    cudaCheck(cudaGetDeviceProperties(&p, 0));
    CHECK(strstr(p.name, "CPU device") && p.major == 0 && p.warpSize == 32, "%s", p.name);
    const struct { int arch, optin_kb, threads; } table[] = {{80, 163, 2048}, {89, 99, 1536}, {90, 227, 2048}, {100, 227, 2048}, {120, 99, 1536}};
    for (auto& row : table) {
        cpu_modes()->arch = row.arch;
        cpu_modes()->sms = 7;
        cudaCheck(cudaGetDeviceProperties(&p, 0));
        int major, minor, optin, sms;
        cudaCheck(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
        cudaCheck(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
        cudaCheck(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
        cudaCheck(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
        CHECK(p.major * 10 + p.minor == row.arch && major * 10 + minor == row.arch, "%d.%d", p.major, p.minor);
        CHECK(optin == row.optin_kb * 1024 && p.maxThreadsPerMultiProcessor == row.threads && sms == 7 && strstr(p.name, "CPU device"), "%s: %d", p.name, optin);
        CHECK(cudaFuncSetAttribute(big_shared_kernel1, cudaFuncAttributeMaxDynamicSharedMemorySize, optin) == cudaSuccess
                  && cudaFuncSetAttribute(big_shared_kernel1, cudaFuncAttributeMaxDynamicSharedMemorySize, optin + 1) == cudaErrorInvalidValue, "limit of %d", row.arch);
        int blocks;
        cudaCheck(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, big_shared_kernel1, 256, 0));
        CHECK(blocks == row.threads / 256, "%d blocks", blocks);
        cudaGetLastError();
    }
    CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice && cudaGetDeviceProperties(&p, 1) == cudaErrorInvalidDevice && cudaGetLastError() != cudaSuccess, "there is one device");
}
static void set_and_use(void* pair) {
    const char** p = (const char**)pair;
    setenv(p[0], p[1], 1);
    printf("arch %lld memory %lld order %lld\n", cpu_modes()->arch, cpu_modes()->memory, cpu_modes()->order);
}
static void test_cpu_modes_refuse_bad_values(void) {
    const char* good[][3] = {{"GPT_CPU_MODE", "check", "arch 0"}, {"GPT_CPU_ARCH", "90", "arch 90 "}, {"GPT_CPU_MEMORY", "3G", "memory 3221225472 "}, {"GPT_CPU_ORDER", "reverse", "order -1"},
                             {"GPT_CPU_ORDER", "99", "order 99"}, {"GPT_CPU_MEMORY", "", "memory 0 "}};
    const char* bad[][3] = {{"GPT_CPU_MODE", "slow", "fast or check"}, {"GPT_CPU_ARCH", "70", "80, 89"}, {"GPT_CPU_MEMORY", "3X", "512M"}, {"GPT_CPU_MEMORY", "-1", "512M"},
                            {"GPT_CPU_MEMORY", "99999999999G", "512M"}, {"GPT_CPU_ORDER", "0", "seed"}, {"GPT_CPU_POISON", "256", "0 to 255"}, {"GPT_CPU_SMS", "x", "number"},
                            {"GPT_CPU_HOPPER_ACCUMULATOR", "yes", "0 or 1"}, {"GPT_CPU_MODES", "check", "GPT_CPU_MODE GPT_CPU"}};
    std::string out;
    for (auto& c : good) { CHECK(test_child(set_and_use, c, &out) == 0 && out.find(c[2]) != std::string::npos, "%s=%s: %s", c[0], c[1], out.c_str()); }
    for (auto& c : bad) {
        int code = test_child(set_and_use, c, &out);
        CHECK(code == 1 && out.find("HINT") != std::string::npos && out.find(c[2]) != std::string::npos && out.find(c[0]) != std::string::npos, "%s=%s: exit %d, %s", c[0], c[1], code, out.c_str());
    }
}

// ----------------------------------------------------------------------------
// intrinsics and mathematics

static void test_cpu_intrinsics(void) {
    CHECK(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0 && __popc(0xf0f0u) == 8 && __ffs(0) == 0 && __ffs(8) == 4, "bits");
    CHECK(__umulhi(0xffffffffu, 0xffffffffu) == 0xfffffffeu && __mulhi(-1, 1) == -1 && __umul64hi(~0ull, ~0ull) == ~0ull - 1, "high products");
    CHECK(__brev(1u) == 0x80000000u && __brev(0x12345678u) == 0x1e6a2c48u, "reversed: %08x", __brev(0x12345678u));
    CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7531u) == 0x77553311u && __byte_perm(0x80u, 0u, 0x8888u) == 0xffffffffu && __byte_perm(0x80u, 0u, 0x1119u) == 0u, "byte_perm");
    CHECK(__funnelshift_l(0x80000000u, 1u, 1u) == 3u && __funnelshift_r(0u, 1u, 1u) == 0x80000000u, "funnel shifts");
    CHECK(min(-1, 2) == -1 && max(1u, 2u) == 2u && max(1.0f, NAN) == 1.0f && min(NAN, 1.0f) == 1.0f && max(NAN, NAN) != max(NAN, NAN), "min and max");
    CHECK(__float_as_uint(1.0f) == 0x3f800000u && __uint_as_float(0x40000000u) == 2.0f && __fmaf_rn(3.0f, 4.0f, 5.0f) == 17.0f && __fdiv_rn(1.0f, 3.0f) == 1.0f / 3.0f, "floats");
    CHECK(rsqrtf(4.0f) == 0.5f && __float2int_rn(2.5f) == 2 && __float2int_rn(3.5f) == 4 && __float2int_rz(-2.7f) == -2 && __saturatef(NAN) == 0.0f, "conversions");
}

// Distance in units of the last place of the exact value (at least the smallest denormal).
static double ulps(float got, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}
typedef struct { const char* name; float (*fn)(float); double (*exact)(double); float (*naive)(float); float from, to; } MathCase;
// what a textbook would write in single precision: sets the tolerance
static float naive_exp(float x) {
    float k = rintf(x / 0.693147181f), r = x - k * 0.693145752f - k * 1.42860677e-6f, sum = 1.0f, term = 1.0f;
    for (int i = 1; i < 12; i++) { term = term * r / (float)i; sum = sum + term; }
    return ldexpf(sum, (int)k);
}
static float naive_tanh(float x) {
    if (fabsf(x) < 0.25f) {  // Taylor
        float t = x * x;
        return x * (1.0f + t * (-1.0f / 3.0f + t * (2.0f / 15.0f + t * (-17.0f / 315.0f + t * (62.0f / 2835.0f + t * (-1382.0f / 155925.0f))))));
    }
    float e = naive_exp(-2.0f * fabsf(x));
    return copysignf((1.0f - e) / (1.0f + e), x);
}
static float naive_log(float x) {
    int e;
    float m = frexpf(x, &e);
    if (m < 0.707106781f) { m = m * 2.0f; e--; }
    float s = (m - 1.0f) / (m + 1.0f), t = s * s, sum = 0.0f;
    for (int i = 15; i >= 1; i -= 2) { sum = sum * t + 2.0f / (float)i; }
    return (float)e * 0.693147181f + sum * s;
}
static float call_exp(float x) { return cpu_expf(x); }
static float call_tanh(float x) { return cpu_tanhf(x); }
static float call_log(float x) { return cpu_logf(x); }
static void test_cpu_math_is_as_accurate_as_single_precision_allows(void) {
    const MathCase cases[] = {{"expf", call_exp, exp, naive_exp, -103.0f, 88.7f}, {"tanhf", call_tanh, tanh, naive_tanh, -12.0f, 12.0f}, {"logf", call_log, log, naive_log, 1e-44f, 3.4e38f}};
    for (const MathCase& c : cases) {
        double worst = 0.0, worst_naive = 0.0;
        float worst_x = 0.0f;
        for (unsigned i = 0; i < 0xff000000u; i += 1013u) {  // a prime stride through all floats
            float x = __uint_as_float(i);
            if (!(x >= c.from && x <= c.to)) { continue; }
            double exact = c.exact((double)x), e = ulps(c.fn(x), exact);
            if (e > worst) { worst = e; worst_x = x; }
            worst_naive = fmax(worst_naive, ulps(c.naive(x), exact));
        }
        printf("    %s: at most %.2f ulp (at %g); naive %.2f\n", c.name, worst, worst_x, worst_naive);
        CHECK(worst <= 2.0 * worst_naive, "%s: %.2f ulp at %g, naive %.2f", c.name, worst, worst_x, worst_naive);
    }
}
static void test_cpu_math_special_values(void) {
    CHECK(cpu_expf(0.0f) == 1.0f && cpu_expf(-0.0f) == 1.0f && cpu_expf(INFINITY) == INFINITY && cpu_expf(-INFINITY) == 0.0f && cpu_expf(89.0f) == INFINITY, "exp");
    CHECK(cpu_expf(88.72283f) < INFINITY && cpu_expf(88.72284f) == INFINITY && cpu_expf(-200.0f) == 0.0f && cpu_expf(-103.0f) > 0.0f, "exp near its ends: %g", cpu_expf(88.72283f));
    CHECK(cpu_expf(NAN) != cpu_expf(NAN) && cpu_tanhf(NAN) != cpu_tanhf(NAN) && cpu_logf(NAN) != cpu_logf(NAN) && cpu_expf(-NAN) != cpu_expf(-NAN), "NaN");
    CHECK(cpu_tanhf(INFINITY) == 1.0f && cpu_tanhf(-INFINITY) == -1.0f && cpu_tanhf(20.0f) == 1.0f && bits_of(cpu_tanhf(-0.0f)) == 0x80000000u && cpu_tanhf(1e-30f) == 1e-30f, "tanh");
    CHECK(cpu_logf(0.0f) == -INFINITY && cpu_logf(-0.0f) == -INFINITY && cpu_logf(INFINITY) == INFINITY && cpu_logf(1.0f) == 0.0f, "log");
    CHECK(cpu_logf(-1.0f) != cpu_logf(-1.0f) && cpu_logf(-INFINITY) != cpu_logf(-INFINITY) && cpu_logf(-1e-42f) != cpu_logf(-1e-42f), "log of negative numbers");
    for (unsigned i = 0x41000000u; i < 0x41200000u; i++) {  // 8 to 10
        float x = __uint_as_float(i), y = cpu_tanhf(x);
        CHECK(y <= 1.0f && (x < 9.02f || y == 1.0f) && cpu_tanhf(-x) == -y, "tanh %g = %.9g", x, y);
    }
}
// The vectors that g++ makes of these functions give the same bits as one at a time.
static void test_cpu_math_vectors_equal_scalars(void) {
    float x[16], e[16], t[16], l[16];
    float (*volatile scalar_exp)(float) = call_exp, (*volatile scalar_tanh)(float) = call_tanh, (*volatile scalar_log)(float) = call_log;
    for (unsigned i = 0; i < 0xfff00000u; i += 16 * 65521u) {
        for (unsigned k = 0; k < 16; k++) { x[k] = __uint_as_float(i + k * 65521u); }
        for (int k = 0; k < 16; k++) { e[k] = cpu_expf(x[k]); t[k] = cpu_tanhf(x[k]); l[k] = cpu_logf(x[k]); }
        for (int k = 0; k < 16; k++) {
            CHECK(bits_of(e[k]) == bits_of(scalar_exp(x[k])) && bits_of(t[k]) == bits_of(scalar_tanh(x[k])) && bits_of(l[k]) == bits_of(scalar_log(x[k])), "x = %g", x[k]);
        }
    }
}

// ----------------------------------------------------------------------------
// more than one host thread, children

static __global__ void sum_blocks_kernel1(float* out, const float* in) { out[blockIdx.x * blockDim.x + threadIdx.x] = block_sum(in[threadIdx.x]) + (float)blockIdx.x; }
static void launch_many(void) {
    std::vector<float> in(128, 0.5f);
    float *x = device_array(in), *y = device_array(std::vector<float>(128 * 500));
    for (int round = 0; round < 20; round++) {
        launch<sum_blocks_kernel1>(500, 128, 0, 0, y, x);
        auto got = host_array(y, 128 * 500);
        for (int i = 0; i < 128 * 500; i++) { CHECK(got[i] == 64.0f + (float)(i / 128), "element %d: %g", i, got[i]); }
    }
    cudaCheck(cudaFree(x));
    cudaCheck(cudaFree(y));
}
static void* launch_many_thread(void*) { launch_many(); return NULL; }
static void launch_many_child(void*) { launch_many(); }
static void test_cpu_host_threads_and_children_launch(void) {
    launch_many();  // the pool exists from here on
    std::string out;
    int code = test_child(launch_many_child, NULL, &out);
    CHECK(code == 0, "a child of a process with a pool: exit %d, %s", code, out.c_str());
    pthread_t threads[3];
    for (pthread_t& t : threads) { CHECK(pthread_create(&t, NULL, launch_many_thread, NULL) == 0, "pthread_create"); }
    for (pthread_t& t : threads) { pthread_join(t, NULL); }
    launch_many();
}

// ----------------------------------------------------------------------------
// known-bad kernels

static void run_bad(void* bad) { ((const BadKernel*)bad)->run(); }
static void test_cpu_bad_kernels_are_caught(void) {
    for (const BadKernel& bad : bad_kernels) {
        if (bad.sanitizer) { continue; }
        std::string out;
        int code = test_child(run_bad, (void*)&bad, &out);
        CHECK(code != 0 && code != TEST_SKIPPED, "%s was not caught: %s", bad.name, out.c_str());
        CHECK(out.find(bad.check) != std::string::npos, "%s: exit %d without '%s' in: %s", bad.name, code, bad.check, out.c_str());
    }
}
static void test_cpu_bad_kernels_name_block_threads_and_places(void) {
    for (const BadKernel& bad : bad_kernels) {
        if (strcmp(bad.name, "divergent_barrier") != 0) { continue; }
        std::string out;
        test_child(run_bad, (void*)&bad, &out);
        for (const char* part : {"bad_divergent_barrier_kernel1", "block (0,0,0)", "thread (32,0,0) = warp 1 lane 0", "bad_kernels.cu", "threads    0 to   31: wait for the block at", "HINT"}) {
            CHECK(out.find(part) != std::string::npos, "'%s' missing in: %s", part, out.c_str());
        }
        return;
    }
    CHECK(false, "no such kernel");
}
static void test_cpu_bad_kernels_are_caught_by_sanitizers(void) {
    const char* cxx = getenv("CXX") ? getenv("CXX") : "g++";
    int code;
    test_shell(std::string("command -v ") + cxx, &code);
    if (code) { SKIP("no C++ compiler (%s) to build with sanitizers", cxx); }
    std::string source = __FILE__, root = ".", program;
    size_t slash = source.rfind("dev/test/");
    if (slash != std::string::npos && slash > 0) { root = source.substr(0, slash); }
    char folder[] = "/tmp/test_cpu_device_XXXXXX";
    CHECK(mkdtemp(folder), "mkdtemp failed");
    program = std::string(folder) + "/bad_kernels";
    std::string out = test_shell("cd " + root + " && " + cxx + " -x c++ -std=c++17 -g -O1 -ffp-contract=off -fno-strict-aliasing -fsanitize=address,undefined -fno-sanitize-recover=undefined"
                            " -Illmc/cpu -I. -DBAD_KERNELS_MAIN dev/test/bad_kernels.cu -o " + program, &code);
    if (code && out.find("asan") != std::string::npos) { SKIP("the sanitizers' libraries are not installed"); }
    CHECK(code == 0, "%s", out.c_str());
    for (const BadKernel& bad : bad_kernels) {
        if (!bad.sanitizer) { continue; }
        out = test_shell(program + " " + bad.name, &code);
        CHECK(code != 0 && out.find(bad.check) != std::string::npos, "%s: exit %d without '%s' in: %s", bad.name, code, bad.check, out.c_str());
    }
    unlink(program.c_str());
    rmdir(folder);
}

// llmc/cpu/README.md names every environment variable and every check.
static void test_cpu_readme_is_complete(void) {
    std::string source = __FILE__, root = "", text, needed;
    size_t slash = source.rfind("dev/test/");
    if (slash != std::string::npos) { root = source.substr(0, slash); }
    FILE* f = fopenCheck((root + "llmc/cpu/README.md").c_str(), "r");
    for (int ch; (ch = fgetc(f)) != EOF;) { text += (char)ch; }
    fclose(f);
#define README_VARIABLE(field, variable, kind, value, meaning) CHECK(text.find("| " variable " |") != std::string::npos, "%s is missing", variable);
    CPU_MODE_TABLE(README_VARIABLE)
#undef README_VARIABLE
    for (const BadKernel& bad : bad_kernels) {
        const char* name = strstr(bad.check, "[cpu device: ");
        if (!name) { continue; }
        needed = std::string(name + 13, strcspn(name + 13, "]"));
        CHECK(text.find(needed) != std::string::npos, "the check %s is missing", needed.c_str());
    }
}

// What no program may use does not compile.
static void test_cpu_forbidden_names_do_not_compile(void) {
    const char* cxx = getenv("CXX") ? getenv("CXX") : "g++";
    int code;
    test_shell(std::string("command -v ") + cxx, &code);
    if (code) { SKIP("no C++ compiler (%s)", cxx); }
    std::string source = __FILE__, root = ".";
    size_t slash = source.rfind("dev/test/");
    if (slash != std::string::npos && slash > 0) { root = source.substr(0, slash); }
    const char* cases[][2] = {{"int f() { return (int)threadIdx.x; }", NULL},
                              {"unsigned f() { return __activemask(); }", "deleted"},
                              {"__constant__ float table[4];", "__constant__"},
                              {"__global__ void f() { __shared__ float x[4]; x[0] = 1; }", "__shared__"},
                              {"__global__ void f() { threadIdx.x = 1; }", "read-only"},
                              {"__global__ void f(float* p) { *p = 1; } void g(int* p) { launch<f>(1, 1, 0, 0, p); }", "convert"},
                              {"__global__ void f(float* p, int n) { *p = (float)n; } void g(float* p) { launch<f>(1, 1, 0, 0, p); }", "arguments"}};
    for (auto& c : cases) {
        std::string out = test_shell("cd " + root + " && printf '%s\\n' '#include \"llmc/device.cuh\"' '" + c[0] + "' | " + cxx + " -x c++ -std=c++17 -fsyntax-only -Illmc/cpu -I. -", &code);
        CHECK(c[1] ? code != 0 && out.find(c[1]) != std::string::npos : code == 0, "'%s': exit %d, %s", c[0], code, out.substr(0, 2000).c_str());
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"cpu_reductions_add_in_butterfly_order", test_cpu_reductions_add_in_butterfly_order, QUICK},
        {"cpu_max_loses_nan_like_fmaxf", test_cpu_max_loses_nan_like_fmaxf, QUICK},
        {"cpu_shuffles_and_votes", test_cpu_shuffles_and_votes, QUICK},
        {"cpu_groups_of_a_warp_are_independent", test_cpu_groups_of_a_warp_are_independent, QUICK},
        {"cpu_barriers_count", test_cpu_barriers_count, QUICK},
        {"cpu_every_thread_runs_once", test_cpu_every_thread_runs_once, QUICK},
        {"cpu_correct_kernels_pass_in_every_order", test_cpu_correct_kernels_pass_in_every_order, QUICK},
        {"cpu_shared_arrays_belong_to_their_place", test_cpu_shared_arrays_belong_to_their_place, QUICK},
        {"cpu_check_mode_poisons", test_cpu_check_mode_poisons, QUICK},
        {"cpu_dynamic_shared_memory_by_attribute", test_cpu_dynamic_shared_memory_by_attribute, QUICK},
        {"cpu_atomics", test_cpu_atomics, QUICK},
        {"cpu_launch_limits_give_cuda_errors", test_cpu_launch_limits_give_cuda_errors, QUICK},
        {"cpu_memory_accounting", test_cpu_memory_accounting, QUICK},
        {"cpu_streams_and_events", test_cpu_streams_and_events, QUICK},
        {"cpu_device_plays_what_it_is_told", test_cpu_device_plays_what_it_is_told, QUICK},
        {"cpu_modes_refuse_bad_values", test_cpu_modes_refuse_bad_values, QUICK},
        {"cpu_intrinsics", test_cpu_intrinsics, QUICK},
        {"cpu_math_is_as_accurate_as_single_precision_allows", test_cpu_math_is_as_accurate_as_single_precision_allows, QUICK},
        {"cpu_math_special_values", test_cpu_math_special_values, QUICK},
        {"cpu_math_vectors_equal_scalars", test_cpu_math_vectors_equal_scalars, QUICK},
        {"cpu_host_threads_and_children_launch", test_cpu_host_threads_and_children_launch, QUICK},
        {"cpu_bad_kernels_are_caught", test_cpu_bad_kernels_are_caught, QUICK},
        {"cpu_bad_kernels_name_block_threads_and_places", test_cpu_bad_kernels_name_block_threads_and_places, QUICK},
        {"cpu_readme_is_complete", test_cpu_readme_is_complete, QUICK},
        {"cpu_forbidden_names_do_not_compile", test_cpu_forbidden_names_do_not_compile, SLOW},
        {"cpu_bad_kernels_are_caught_by_sanitizers", test_cpu_bad_kernels_are_caught_by_sanitizers, SLOW},
    };
    return TEST_MAIN(tests);
}

#else

static void test_cpu_device_nothing_to_do(void) { SKIP("this build has a GPU's CUDA, not the CPU device"); }
int main(int argc, char** argv) {
    static const Test tests[] = {{"cpu_device_nothing_to_do", test_cpu_device_nothing_to_do, QUICK}};
    return TEST_MAIN(tests);
}

#endif
