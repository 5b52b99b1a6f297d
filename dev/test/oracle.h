/* oracle.h - what the kernel tests share: a device with its buffers, inputs, tolerances that are earned, finite differences, repetition
 *
 * Earned tolerance: a kernel is compared with a double oracle, and so is NAME_lowp, a naive version of the same precision (plain loops in float, results
 * rounded to T). Over all inputs of a test, the kernel's largest error and its worst row may be at most twice the naive version's. Never is less asked
 * of the kernel than of a single rounding to T: that is the floor, since a naive version can be exact by luck.
 * TEST_VERBOSE=1 prints the measured errors and ratios.
 * Only CUDA's API and the kernels' launchers touch device memory here, so that the same tests run on a GPU.
 */
#ifndef DEV_TEST_ORACLE_H
#define DEV_TEST_ORACLE_H

#include <float.h>
#include <limits.h>
#include <vector>

#include "dev/test/test.h"
#include "llmc/matmul.cuh"

typedef std::vector<float> Floats;
typedef std::vector<double> Doubles;

// ----------------------------------------------------------------------------
// the device and its buffers

// A started device and the buffers of a test; both end with it. A test that runs test_child must do so before: neither CUDA nor an OpenMP pool survives
// a fork.
struct Lab {
    Device dev;
    std::vector<void*> owned;
    Lab() : dev() { device_init(&dev, 0); }
    ~Lab();
    Lab(const Lab&) = delete;
    Lab& operator=(const Lab&) = delete;
};
// n elements of device memory, exactly (ASan sees the end), filled with poison, by default NaN in every float type: what a kernel forgets to write shows.
template <class T> static inline T* lab_alloc(Lab* lab, size_t n) {
    T* p = (T*)device_alloc(&lab->dev, MEM_SCRATCH, "a test", n * sizeof(T));
#ifdef GPT_CPU_DEVICE
    const int poison = (int)cpu_modes()->poison;
#else
    const int poison = 0xff;
#endif
    if (p) { cudaCheck(cudaMemsetAsync(p, poison, n * sizeof(T), lab->dev.stream)); }
    lab->owned.push_back(p);
    return p;
}
template <class T> static inline T* lab_zeros(Lab* lab, size_t n) {
    T* p = lab_alloc<T>(lab, n);
    cudaCheck(cudaMemsetAsync(p, 0, n * sizeof(T), lab->dev.stream));
    return p;
}
template <class T> static inline void lab_write(Lab* lab, T* device, const std::vector<T>& host) {
    if (host.empty()) { return; }
    cudaCheck(cudaMemcpyAsync(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, lab->dev.stream));
    cudaCheck(cudaStreamSynchronize(lab->dev.stream));
}
template <class T> static inline T* lab_upload(Lab* lab, const std::vector<T>& host) {
    T* p = lab_alloc<T>(lab, host.size());
    lab_write(lab, p, host);
    return p;
}
template <class T> static inline std::vector<T> lab_download(Lab* lab, const T* device, size_t n) {
    std::vector<T> host(n);
    if (n) { cudaCheck(cudaMemcpyAsync(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost, lab->dev.stream)); }
    cudaCheck(cudaStreamSynchronize(lab->dev.stream));
    return host;
}
// Values as T on the device, and back as float. Values must be such that T holds them (round_values).
template <class T> static inline T* lab_put(Lab* lab, const Floats& values) {
    std::vector<T> host(values.size());
    for (size_t i = 0; i < values.size(); i++) { host[i] = from_float<T>(values[i]); }
    return lab_upload(lab, host);
}
template <class T> static inline Floats lab_get(Lab* lab, const T* device, size_t n) {
    std::vector<T> host = lab_download(lab, device, n);
    Floats values(n);
    for (size_t i = 0; i < n; i++) { values[i] = to_float(host[i]); }
    return values;
}
// Frees all buffers of the lab (not the device): at the end of each shape.
static inline void lab_reset(Lab* lab) {
    cudaCheck(cudaStreamSynchronize(lab->dev.stream));
    for (void* p : lab->owned) { cudaCheck(cudaFree(p)); }
    lab->owned.clear();
    lab->dev.allocated[MEM_SCRATCH] = 0;
}
inline Lab::~Lab() {
    lab_reset(this);
    device_free(&dev);
}

// ----------------------------------------------------------------------------
// numbers

template <class T> static inline const char* type_name(void) { return sizeof(T) == 4 ? "f32" : "bf16"; }
static inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

// x rounded to BF16 (8 significant bits, exponents from -126), to nearest, ties to even; independent of the device headers' bit tricks.
static inline float ref_round_bf16(double x) {
    if (x == 0 || !(fabs(x) < INFINITY)) { return (float)x; }
    int e;
    frexp(x, &e);  // x = f * 2^e, 1/2 <= |f| < 1
    int place = (e - 1 < -126 ? -126 : e - 1) - 7;
    double y = ldexp(rint(ldexp(x, -place)), place);
    return fabs(y) >= 0x1p128 ? (float)copysign(INFINITY, y) : (float)y;
}
template <class T> static inline float ref_round(float x) { return sizeof(T) == 4 ? x : ref_round_bf16(x); }
template <class T> static inline Floats round_values(Floats v) {
    for (float& x : v) { x = ref_round<T>(x); }
    return v;
}
static inline Doubles widen(const Floats& v) { return Doubles(v.begin(), v.end()); }
// The exponential of the naive versions, of the precision that kernels have (dev_expf): on a GPU __expf(x) = 2^(x log2 e) with the product rounded.
static inline float naive_expf(float x) {
#ifdef GPT_CPU_DEVICE
    return expf(x);
#else
    return exp2f(x * 1.44269504f);
#endif
}
static inline uint32_t max_bits(const Floats& v) {
    uint32_t most = 0;
    for (float x : v) { uint32_t b = bits_of(x) & 0x7fffffffu; most = b > most ? b : most; }
    return most;
}
template <class T> static inline bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
// The first index where two vectors differ in value (NaN equals NaN, -0 equals 0), or -1.
static inline long first_difference(const Floats& a, const Floats& b) {
    if (a.size() != b.size()) { return 0; }
    for (size_t i = 0; i < a.size(); i++) { if (!(a[i] == b[i] || (a[i] != a[i] && b[i] != b[i]))) { return (long)i; } }
    return -1;
}
#define CHECK_SAME(got, want, ...) \
    do { \
        const Floats& got_ = (got); const Floats& want_ = (want); \
        long at_ = first_difference(got_, want_); \
        char what_[320]; \
        snprintf(what_, sizeof(what_), __VA_ARGS__); \
        CHECK(at_ < 0, "%s: element %ld of %zu is %.9g, should be %.9g", what_, at_, want_.size(), at_ < (long)got_.size() ? got_[at_] : NAN, want_[at_]); \
    } while (0)

// ----------------------------------------------------------------------------
// FP8, one value at a time

// The value of a code, from the definition of the formats: S.EEEE.MMM with bias 7, S.EEEEE.MM with bias 15.
static inline double ref_decode(Fp8Format f, int code) {
    const int mantissa_bits = f == FP8_E4M3 ? 3 : 2, bias = f == FP8_E4M3 ? 7 : 15, top = f == FP8_E4M3 ? 15 : 31;
    int e = (code & 0x7f) >> mantissa_bits, m = code & ((1 << mantissa_bits) - 1);
    double x = e == 0 ? ldexp(m, 1 - bias - mantissa_bits) : ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
    if (f == FP8_E4M3 && (code & 0x7f) == 0x7f) { x = NAN; }
    if (f == FP8_E5M2 && e == top) { x = m ? NAN : INFINITY; }
    return code & 0x80 ? -x : x;
}

// The non-negative values of a format in order, and one more step: what does not fit goes there.
typedef struct { double value[130]; int largest; } RefTable;
static inline RefTable ref_table_make(Fp8Format f) {
    RefTable t;
    t.largest = f == FP8_E4M3 ? 0x7e : 0x7b;
    for (int i = 0; i <= t.largest; i++) { t.value[i] = ref_decode(f, i); }
    t.value[t.largest + 1] = 2 * t.value[t.largest] - t.value[t.largest - 1];
    return t;
}
static inline const RefTable* ref_table(Fp8Format f) {
    static const RefTable tables[2] = {ref_table_make(FP8_E4M3), ref_table_make(FP8_E5M2)};
    return &tables[f];
}
// The code nearest to y, ties to the even code; what rounds beyond the largest value becomes it, and is said to be saturated. NaN: 0x7f.
static inline int ref_encode(const RefTable* t, float y, bool* saturated) {
    *saturated = false;
    if (isnan(y)) { return 0x7f; }
    double a = fabs((double)y);
    int lo = 0, hi = t->largest + 1;
    while (hi - lo > 1) { int mid = (lo + hi) / 2; if (t->value[mid] <= a) { lo = mid; } else { hi = mid; } }
    double below = a - t->value[lo], above = t->value[hi] - a;
    int code = a >= t->value[hi] ? hi : below < above || (below == above && lo % 2 == 0) ? lo : hi;
    *saturated = code > t->largest;
    return (*saturated ? t->largest : code) | (signbit(y) ? 0x80 : 0);
}

// ----------------------------------------------------------------------------
// inputs

typedef enum { INPUT_ARANGE, INPUT_RANDOM, INPUT_EXTREME, INPUT_INTEGER, NUM_INPUTS } Input;
static const char* const input_names[NUM_INPUTS] = {"arange", "random", "extreme", "integer"};

// n values that T holds. arange: a ramp from -2 to 2 with a period of 251 (prime: no row looks like the one before). extreme: magnitudes from denormals
// to 1e4, both zeros. integer: -4 .. 4.
template <class T> static inline Floats make_input(Input input, size_t n, uint64_t seed, float scale = 1.0f) {
    TestRng r = {test_seed() * 1000003u + seed};
    Floats v(n);
    for (size_t i = 0; i < n; i++) {
        double x = 0;
        switch (input) {
        case INPUT_ARANGE: x = scale * ((double)((i + seed) % 251) - 125.0) / 64.0; break;
        case INPUT_RANDOM: x = scale * test_rng_normal(&r); break;
        case INPUT_INTEGER: x = (double)(test_rng_u64(&r) % 9) - 4.0; break;
        default: {
            int kind = (int)(test_rng_u64(&r) % 16);
            double z = scale * test_rng_normal(&r);
            int exponent = (int)(test_rng_u64(&r) % 40) - 30;
            x = kind == 0 ? 0.0 : kind == 1 ? -0.0 : kind == 2 ? z * 1e-40 : kind == 3 ? z * 1e4 : kind < 8 ? ldexp(z, exponent) : z;
        }
        }
        v[i] = ref_round<T>((float)x);
    }
    return v;
}
// How often to repeat a shape of n elements with new seeds, so that the errors of tiny shapes are not those of a few lucky elements.
static inline int repeats_for(size_t n) { size_t repeats = 8192 / (n + 1) + 1; return repeats < 64 ? (int)repeats : 64; }

// ----------------------------------------------------------------------------
// earned tolerances

typedef struct { double max_kernel, max_naive, row_kernel, row_naive, floor; long elements; } Earned;

// T: the type of the results, whose single rounding is the floor: at most 2^-24 (f32), 2^-9 (bf16) of the largest magnitude.
template <class T> static inline Earned earned(void) {
    Earned e = {0, 0, 0, 0, sizeof(T) == 4 ? 0x1p-24 : 0x1p-9, 0};
    return e;
}
// The error of one element: infinite if one is a number and the other is not.
static inline double earned_error(double oracle, double x) {
    if (!isfinite(oracle) || !isfinite(x)) { return (isnan(oracle) && isnan(x)) || oracle == x ? 0.0 : INFINITY; }
    return fabs(x - oracle);
}
// Adds one tensor (rows,cols). Errors count in units of `scale`; 0: the largest magnitude of the oracle. A row's error is its Euclidean length, over that
// of the longest row of the oracle; where T is coarse over its own row's, so that a wrong small row shows, unless that is a hundred times shorter: then it
// shows in the largest error, and may be what is left of a cancellation.
static inline void earned_add(Earned* e, const Doubles& oracle, const Floats& kernel, const Floats& naive, size_t rows, size_t cols, double scale = 0.0) {
    CHECK(oracle.size() == rows * cols && kernel.size() == rows * cols && naive.size() == rows * cols, "sizes %zu %zu %zu, not %zu x %zu",
        oracle.size(), kernel.size(), naive.size(), rows, cols);
    const bool own = scale == 0.0 && e->floor > 0x1p-16;
    double most = scale, longest = scale * sqrt((double)cols);
    Doubles length(rows);
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t c = 0; c < cols; c++) {
            double x = oracle[r * cols + c];
            if (!isfinite(x)) { continue; }
            sum += x * x;
            if (scale == 0.0 && fabs(x) > most) { most = fabs(x); }
        }
        length[r] = sqrt(sum);
        if (scale == 0.0 && length[r] > longest) { longest = length[r]; }
    }
    for (size_t r = 0; r < rows; r++) {
        double kernel_sum = 0, naive_sum = 0;
        for (size_t c = 0; c < cols; c++) {
            size_t i = r * cols + c;
            double k = earned_error(oracle[i], kernel[i]), n = earned_error(oracle[i], naive[i]);
            kernel_sum += k * k;
            naive_sum += n * n;
            k = k == 0 ? 0 : k / most;  // a tensor of zeros must be met exactly
            n = n == 0 ? 0 : n / most;
            if (k > e->max_kernel) { e->max_kernel = k; }
            if (n > e->max_naive) { e->max_naive = n; }
        }
        if (longest == 0 || (own && length[r] < 1e-2 * longest)) { continue; }
        kernel_sum = sqrt(kernel_sum) / (own ? length[r] : longest);
        naive_sum = sqrt(naive_sum) / (own ? length[r] : longest);
        if (kernel_sum > e->row_kernel) { e->row_kernel = kernel_sum; }
        if (naive_sum > e->row_naive) { e->row_naive = naive_sum; }
    }
    e->elements += (long)(rows * cols);
}
static inline bool earned_holds(const Earned* e) {
    return e->max_kernel <= 2 * fmax(e->max_naive, e->floor) && e->row_kernel <= 2 * fmax(e->row_naive, e->floor) && isfinite(e->max_naive) && e->elements > 0;
}
__attribute__((format(printf, 2, 3))) static inline void earned_check(const Earned* e, const char* fmt, ...) {
    char what[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (getenv("TEST_VERBOSE")) {
        printf("    earned %-44s max %.2e / naive %.2e = %.2f   worst row %.2e / %.2e = %.2f   (%ld elements)\n", what, e->max_kernel, e->max_naive,
               e->max_kernel / fmax(e->max_naive, e->floor), e->row_kernel, e->row_naive, e->row_kernel / fmax(e->row_naive, e->floor), e->elements);
    }
    CHECK(earned_holds(e), "%s: largest error %.3g (naive %.3g), worst row %.3g (naive %.3g), floor %.3g, %ld elements: above twice the naive version's", what,
          e->max_kernel, e->max_naive, e->row_kernel, e->row_naive, e->floor, e->elements);
}

// ----------------------------------------------------------------------------
// a naive dot product of the precision of what multiplies matrices

// How many fraction bits sums keep: 0 for plain float. Tensor cores add a group of products to the sum after cutting all of them, toward zero, to a
// multiple of 2^-bits of the largest exponent: 13 bits where FP8 is multiplied, 23 for BF16 (more on newer chips).
static inline int naive_sum_bits(const Device* dev, bool f32, bool fp8, bool fast_accum) {
    if (f32) { return 0; }
#ifdef GPT_CPU_DEVICE
    (void)dev;
    return fp8 && fast_accum && cpu_modes()->hopper_acc ? 13 : 0;
#else
    (void)dev; (void)fast_accum;
    return fp8 ? 13 : 23;
#endif
}
// a . b over n elements at distances sa, sb, from the start value sum. step: products of a group.
static inline float naive_dot(float sum, const float* a, size_t sa, const float* b, size_t sb, int n, int bits, int step) {
    if (bits == 0) {
        for (int i = 0; i < n; i++) { sum += a[i * sa] * b[i * sb]; }
        return sum;
    }
    for (int i0 = 0; i0 < n; i0 += step) {
        int i1 = i0 + step < n ? i0 + step : n, top = sum == 0 ? INT_MIN : ilogb(sum);
        for (int i = i0; i < i1; i++) {
            double p = (double)a[i * sa] * b[i * sb];
            if (p != 0) { int e = ilogb(a[i * sa]) + ilogb(b[i * sb]); top = e > top ? e : top; }
        }
        if (top == INT_MIN) { continue; }
        double unit = ldexp(1.0, top - bits), total = trunc(sum / unit);
        for (int i = i0; i < i1; i++) { total += trunc((double)a[i * sa] * b[i * sb] / unit); }
        total *= unit;
        if (total != 0) { unit = ldexp(1.0, ilogb(total) - bits); total = trunc(total / unit) * unit; }
        sum = (float)total;
    }
    return sum;
}

// ----------------------------------------------------------------------------
// finite differences of an oracle: gradient[i] against (f(x + h) - f(x - h)) / 2h at h and h/2, and Richardson's extrapolation of the two, whose error is
// of order h^4. Bound: the distance of the two estimates (3/4 of the h^2 term), and rounding, with at most 64 rounding errors of f for each input.
template <class F> static inline void check_gradient(const char* name, F f, Doubles x, const Doubles& gradient) {
    const double h = 0x1p-8;
    for (size_t i = 0; i < x.size(); i++) {
        double d[2], size = 0, x0 = x[i];
        for (int j = 0; j < 2; j++) {
            double step = j ? h / 2 : h;
            x[i] = x0 + step;
            double up = f(x);
            x[i] = x0 - step;
            double down = f(x);
            d[j] = (up - down) / (2 * step);
            size = fmax(size, fmax(fabs(up), fabs(down)));
        }
        x[i] = x0;
        double estimate = (4 * d[1] - d[0]) / 3, bound = fabs(d[1] - d[0]) + 64 * (double)x.size() * DBL_EPSILON * (size + 1) / h;
        CHECK(fabs(gradient[i] - estimate) <= bound, "%s: gradient %zu is %.12g, finite differences give %.12g +- %.2g", name, i, gradient[i], estimate, bound);
    }
}
static inline double dot(const Doubles& a, const Doubles& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) { sum += a[i] * b[i]; }
    return sum;
}

// ----------------------------------------------------------------------------
// repetition: run() launches kernels on fresh buffers and returns a vector. Every run gives the same bits; on the CPU device also under every order of
// blocks and threads, for other numbers of multiprocessors, and whatever fresh memory holds.
template <class F> static inline void check_repeats(const char* name, F run) {
    auto first = run();
    CHECK(!first.empty(), "%s: nothing to compare", name);
    CHECK(same_bits(first, run()), "%s: two runs differ", name);
#ifdef GPT_CPU_DEVICE
    const CpuModes saved = *cpu_modes();
    const long long orders[] = {CPU_ORDER_REVERSE, 3, 77}, sms[] = {1, 7, 132}, poisons[] = {0xff, 0xff, 0x3c};
    for (int i = 0; i < 3; i++) {
        cpu_modes()->order = orders[i];
        cpu_modes()->sms = sms[i];
        cpu_modes()->poison = poisons[i];
        cpu_modes()->check = 1;
        CHECK(same_bits(first, run()), "%s: GPT_CPU_ORDER=%lld, GPT_CPU_POISON=%lld: other bits", name, orders[i], poisons[i]);
        *cpu_modes() = saved;
    }
#endif
}

#endif
