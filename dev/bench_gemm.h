/* bench_gemm.h - the measured rate of every matrix product of a step, and of a plain copy
 *
 * A part of bench.cu: uses the plans and types of the monolith, which is included before it. Times are medians of several runs by events.
 */
#ifndef DEV_BENCH_GEMM_H
#define DEV_BENCH_GEMM_H

#include "dev/bench_json.h"

// One product of a step: what it is, how often a step runs it, and its measured time.
typedef struct {
    GemmShape shape;
    std::string name, used_as;
    double calls;      // a step; 0: a variant, measured for comparison
    double ms;         // of one call; NAN: not measured, or refused
    bool refused;
} GemmRow;

static double gemm_flops(const GemmShape* s) { return 2.0 * s->m * s->n * s->k * s->batch; }
// Bytes from an operand's first to its last element.
static size_t gemm_span(int rows, int cols, int transposed, int ld, int batch, long long stride, int dtype) {
    size_t outer = transposed ? cols : rows, inner = transposed ? rows : cols;
    return ((batch - 1) * (size_t)stride + (outer - 1) * ld + inner) * dtype_bytes((DType)dtype);
}

// out (n) codes of about normal values, scaled as a quantized tensor is: 4.5 deviations are the format's maximum. One thread 8 codes; n % 8 == 0.
static __global__ void bench_fill_fp8_kernel1(uint8_t* out, size_t n, uint32_t key, int e5m2) {
    size_t i = ((size_t)blockIdx.x * 256 + threadIdx.x) * 8;
    if (i >= n) { return; }
    const float std = (e5m2 ? FP8_MAX(FP8_E5M2) : FP8_MAX(FP8_E4M3)) / 4.5f;
    for (int k = 0; k < 8; k++) {
        uint32_t h = noise_at(i + k, key), h2 = noise_hash(h, key + 1);
        float u = (float)(h & 0xffffu) + (float)(h >> 16) + (float)(h2 & 0xffffu) + (float)(h2 >> 16);
        out[i + k] = __nv_cvt_float_to_fp8((u - 131070.0f) * (1.0f / 37837.25f) * std, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
    }
}

// One thread 4 x 16 bytes, n pieces of 16 bytes.
static __global__ void bench_copy_kernel1(uint4* out, const uint4* in, size_t n) {
    size_t i = (size_t)blockIdx.x * 1024 + threadIdx.x;
    for (int k = 0; k < 4; k++, i += 256) { if (i < n) { out[i] = in[i]; } }
}

// A device buffer that grows.
typedef struct { void* data; size_t bytes; } BenchBuffer;
static void* bench_buffer(Device* dev, BenchBuffer* b, size_t bytes) {
    bytes = ROUND_UP(bytes, (size_t)256);
    if (bytes > b->bytes) {
        cudaCheck(cudaFree(b->data));
        b->data = device_alloc(dev, MEM_SCRATCH, "benchmark operand", bytes);
        b->bytes = bytes;
    }
    return b->data;
}
static void* bench_operand(Device* dev, BenchBuffer* b, size_t bytes, int dtype, uint32_t key) {
    void* p = bench_buffer(dev, b, bytes);
    const size_t n = b->bytes / dtype_bytes((DType)dtype);  // random data, not zeros: a chip is faster on zeros, which switch no transistors
    if (dtype == DTYPE_F32) { init_fast((float*)p, 0.0f, 1.0f, n, n, key, dev->stream); }
    else if (dtype == DTYPE_BF16) { init_fast((bf16*)p, 0.0f, 1.0f, n, n, key, dev->stream); }
    else { launch<bench_fill_fp8_kernel1>(dim3(CEIL_DIV(n, (size_t)2048)), dim3(256), 0, dev->stream, (uint8_t*)p, n, key, dtype == DTYPE_E5M2); }
    return p;
}

typedef struct { Device* dev; BenchBuffer a, b, d, descale; cudaEvent_t begin, end; } GemmBench;
static void gemm_bench_init(GemmBench* t, Device* dev) {
    memset(t, 0, sizeof(*t));
    t->dev = dev;
    const float descale = 0.01f;
    cudaCheck(cudaMemcpy(bench_buffer(dev, &t->descale, 4), &descale, 4, cudaMemcpyHostToDevice));
    cudaCheck(cudaEventCreate(&t->begin));
    cudaCheck(cudaEventCreate(&t->end));
}
static void gemm_bench_free(GemmBench* t) {
    for (BenchBuffer* b : {&t->a, &t->b, &t->d, &t->descale}) { cudaCheck(cudaFree(b->data)); }
    cudaCheck(cudaEventDestroy(t->begin));
    cudaCheck(cudaEventDestroy(t->end));
}

static double median_of(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x.empty() ? NAN : x.size() % 2 ? x[x.size() / 2] : 0.5 * (x[x.size() / 2 - 1] + x[x.size() / 2]);
}

// Milliseconds of n calls of fn on the stream, by events.
template <class F>
static double bench_time(GemmBench* t, int n, F fn) {
    float ms = 0.0f;
    cudaCheck(cudaEventRecord(t->begin, t->dev->stream));
    for (int i = 0; i < n; i++) { fn(); }
    cudaCheck(cudaEventRecord(t->end, t->dev->stream));
    cudaCheck(cudaEventSynchronize(t->end));
    cudaCheck(cudaEventElapsedTime(&ms, t->begin, t->end));
    return ms;
}

// Milliseconds of one call: median of 5 groups (CPU device: 3), each of about 4 ms (20 ms), after a warm-up that also decides the group's size.
template <class F>
static double bench_median(GemmBench* t, F fn) {
    const bool cpu = t->dev->is_cpu;
    double first = bench_time(t, 1, fn), one = cpu ? first : bench_time(t, 3, fn) / 3;
    int n = (int)fmin(fmax((cpu ? 20.0 : 4.0) / fmax(one, 1e-4), 1.0), 200.0);
    std::vector<double> groups;
    for (int i = 0; i < (cpu ? 3 : 5); i++) { groups.push_back(bench_time(t, n, fn) / n); }
    return median_of(groups);
}

static void bench_gemm_row(GemmBench* t, GemmRow* row) {
    Device* dev = t->dev;
    const GemmShape* s = &row->shape;
    row->ms = NAN;
    row->refused = gemm_plan(dev, s)->status != CUBLAS_STATUS_SUCCESS;
    if (row->refused) { return; }
    void* a = bench_operand(dev, &t->a, gemm_span(s->m, s->k, s->a_t, s->lda, s->batch, s->stride_a, s->a), s->a, 1);
    void* b = bench_operand(dev, &t->b, gemm_span(s->n, s->k, s->b_t, s->ldb, s->batch, s->stride_b, s->b) + (s->bias ? s->n * dtype_bytes((DType)s->d) : 0), s->b, 2);
    size_t d_bytes = gemm_span(s->m, s->n, 0, s->ldd, s->batch, s->stride_d, s->d);
    char* d = (char*)bench_buffer(dev, &t->d, ROUND_UP(d_bytes, (size_t)256) + s->n * dtype_bytes((DType)s->d));
    cudaCheck(cudaMemsetAsync(d, 0, t->d.bytes, dev->stream));
    const float* descale = dtype_is_fp8((DType)s->a) ? (const float*)t->descale.data : NULL;
    const char* bias = s->bias ? d + ROUND_UP(d_bytes, (size_t)256) : NULL;
    row->ms = bench_median(t, [&] { gemm(dev, row->used_as.c_str(), s, d, a, b, descale, descale, bias); });
}

static std::string gemm_flags(const GemmShape* s) {
    return std::string(s->a_t ? " A^T" : "") + (s->b_t ? " B^T" : "") + (s->bias ? " bias" : "") + (s->accumulate ? " +=" : "") + (s->fast_accum ? " fast" : "");
}
// TFLOP/s of the data sheet; NAN if it is not known.
static double gemm_peak(const Device* dev, const GemmShape* s) {
    return !dev->peak ? NAN : dtype_is_fp8((DType)s->a) ? dev->peak->fp8 : s->a == DTYPE_BF16 ? dev->peak->bf16 : NAN;
}

static void gemm_rows_print(const Device* dev, const std::vector<GemmRow>& rows) {
    printf("  products                  m       n       k  types                  batch  calls      us  TFLOP/s  of peak\n");
    for (const GemmRow& r : rows) {
        const GemmShape* s = &r.shape;
        printf("  %-20s %6d  %6d  %6d  %-4s x %-4s -> %-4s  %6d  %5.0f", r.name.c_str(), s->m, s->n, s->k, dtype_names[s->a], dtype_names[s->b], dtype_names[s->d],
               s->batch, r.calls);
        if (r.refused) { printf("  refused"); }
        else if (isnan(r.ms)) { printf("  not measured: the time budget is used up"); }
        else {
            double rate = gemm_flops(s) / r.ms * 1e-9, peak = gemm_peak(dev, s);
            printf(" %7.1f  %7.*f", r.ms * 1e3, rate < 10 ? 3 : 1, rate);
            if (!isnan(peak)) { printf("   %5.1f %%", 100 * rate / peak); } else { printf("      n/a"); }
        }
        printf(" %s\n", gemm_flags(s).c_str());
    }
}

static void gemm_rows_json(Json* j, const std::vector<GemmRow>& rows) {
    json_open(j, "products", '[');
    for (const GemmRow& r : rows) {
        const GemmShape* s = &r.shape;
        json_open(j, NULL, '{');
        json_string(j, "name", r.name);
        json_number(j, "m", s->m); json_number(j, "n", s->n); json_number(j, "k", s->k); json_number(j, "batch", s->batch);
        json_string(j, "a", dtype_names[s->a]); json_string(j, "b", dtype_names[s->b]); json_string(j, "d", dtype_names[s->d]);
        json_bool(j, "a_transposed", s->a_t); json_bool(j, "b_transposed", s->b_t); json_bool(j, "bias", s->bias); json_bool(j, "accumulate", s->accumulate);
        json_bool(j, "fast_accumulation", s->fast_accum);
        json_number(j, "calls_per_step", r.calls);
        json_bool(j, "refused", r.refused);
        json_number(j, "us", r.ms * 1e3);
        json_number(j, "tflops", gemm_flops(s) / r.ms * 1e-9);
        json_close(j, '}');
    }
    json_close(j, ']');
}

// Bytes a second, read and written, of the faster of a copy kernel and cudaMemcpyAsync within the device.
static double bench_copy_bandwidth(Device* dev) {
    GemmBench t;
    gemm_bench_init(&t, dev);
    const size_t bytes = dev->is_cpu ? (size_t)128 << 20 : (size_t)1 << 30;  // many times the last cache
    void *in = bench_buffer(dev, &t.a, bytes), *out = bench_buffer(dev, &t.b, bytes);
    cudaCheck(cudaMemsetAsync(in, 1, bytes, dev->stream));
    const size_t n = bytes / 16;
    double kernel = bench_median(&t, [&] { launch<bench_copy_kernel1>(dim3(CEIL_DIV(n, (size_t)1024)), dim3(256), 0, dev->stream, (uint4*)out, (const uint4*)in, n); });
    double copy = bench_median(&t, [&] { cudaCheck(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, dev->stream)); });
    gemm_bench_free(&t);
    return 2.0 * bytes / (fmin(kernel, copy) * 1e-3);
}

#endif
