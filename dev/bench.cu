/* bench.cu - how fast a training step is and what bounds it: tokens/s, time by kernel class, rate of every product, the floor, and the probe table
 *
 *   make bench                             on this machine: GPU if there is one, else the CPU device; dev/gpu_check.sh runs it with everything else
 *   build/bench --help                     sections, options, models
 *
 * train  random tokens, weights from a hash: median, min and max of the timed steps, each timed from the host as the trainer times its own. One more
 *        step with events around every launch gives the time by kernel class; beside it the bytes that a class must move, or its operations.
 * gemm   every product that a step ran, alone: random operands, CUDA events, median of 5 groups of calls, caches warm; FP8 with fast accumulation on and off.
 *        floor of a step = sum of calls * measured time + bytes of all other kernels (each reads its inputs and writes its outputs once) / copy bandwidth.
 * probe  what cublasLtMatmulAlgoGetHeuristic answers: layouts, types, epilogues, scale modes, sizes. Nothing of it is executed.
 *
 * Every case runs in a child process: what one refuses or breaks does not stop the others, and device memory starts empty. Exit code 1 if any failed.
 * Memory: B is halved until the model fits the free memory by the activation table, which is compared with the ledger afterwards.
 * Tests:  dev/test/test_bench.cu
 */
#define TESTING
// the trainer as a library: what only its main calls is unused here
#if defined(__NVCC__)
#pragma nv_diag_suppress 177
#endif
#pragma GCC diagnostic ignored "-Wunused-function"
#include "train_gpt_fp8.cu"

#include <sys/wait.h>
#include <unistd.h>

// ---------------------------------------------------------------------------- results as JSON

// Appends to a text; fields of the innermost object or list. A number that is not finite becomes null.
typedef struct { std::string text; } Json;
static void json_comma(Json* j, const char* key) {
    char last = j->text.empty() ? '{' : j->text.back();
    if (last != '{' && last != '[') { j->text += ","; }
    if (key) { j->text += std::string("\"") + key + "\":"; }
}
static void json_open(Json* j, const char* key, char bracket) { json_comma(j, key); j->text += bracket; }
static void json_close(Json* j, char bracket) { j->text += bracket; }
static void json_number(Json* j, const char* key, double x) {
    char number[32];
    snprintf(number, sizeof(number), "%.10g", x);
    json_comma(j, key);
    j->text += isfinite(x) ? number : "null";
}
static void json_bool(Json* j, const char* key, bool x) { json_comma(j, key); j->text += x ? "true" : "false"; }
static void json_string(Json* j, const char* key, const std::string& s) {
    json_comma(j, key);
    j->text += '"';
    for (unsigned char c : s) {
        char escape[8];
        if (c == '"' || c == '\\') { j->text += '\\'; j->text += (char)c; }
        else if (c < 0x20 || c >= 0x7f) { snprintf(escape, sizeof(escape), "\\u%04x", c); j->text += escape; }
        else { j->text += (char)c; }
    }
    j->text += '"';
}

// ---------------------------------------------------------------------------- options and models

enum { SECTION_TRAIN = 1, SECTION_GEMM = 2, SECTION_PROBE = 4 };
typedef struct {
    int sections;              // 0: all on a GPU, train on the CPU device
    std::string models, dtypes, json, note, make_data;   // empty: the defaults
    int steps, warmup, batch, seq_len, recompute;         // -1: the model's own
    double budget_seconds;     // -1: 280 on a GPU, none on the CPU device; 0: none
} BenchOptions;

typedef struct {
    const char* name;
    int L, C, NH, V;
    int cpu_batch, cpu_seq_len, cpu_warmup, cpu_steps;
    bool cpu_all_dtypes;
} BenchModel;
// Not among the trainer's descriptors: tiny, for tests, and a byte-level model. The rest: d12 and so on.
static const BenchModel bench_models[] = {
    {"tiny", 2, 64, 4, 100, 2, 32, 1, 3, true},
    {"byte", 4, 256, 4, BYTE_VOCAB, 8, 128, 3, 10, true},
};
static const char* const bench_dtypes[] = {"float8", "bfloat16", "float32"};
enum { BENCH_FLOAT8, BENCH_BFLOAT16, BENCH_FLOAT32, NUM_BENCH_DTYPES };
#define GPU_SEQ_LEN 1024

static std::vector<std::string> split_list(const std::string& list) {
    std::vector<std::string> items;
    for (size_t at = 0; at <= list.size();) {
        size_t end = list.find(',', at);
        if (end == std::string::npos) { end = list.size(); }
        if (end > at) { items.push_back(list.substr(at, end - at)); }
        at = end + 1;
    }
    return items;
}

static BenchModel bench_find_model(const std::string& name) {
    for (const BenchModel& m : bench_models) { if (name == m.name) { return m; } }
    const Descriptor* d = descriptor_find(name.c_str());
    if (!d) { fail_usage("tiny, byte, d6, d12, d24, d36, d48, d60, d72, d84, gpt3:c768 and the trainer's other descriptors", "unknown model '%s'", name.c_str()); }
    return {d->name, d->L, d->C, d->NH, GPT2_VOCAB, 4, 256, 1, 3, false};
}

static void bench_print_help(void) {
    printf("usage: bench [train] [gemm] [probe] [--option value ...]\n\n"
           "  train                 tokens/s, memory and time by kernel class of a training step\n"
           "  gemm                  the rate of every matrix product of a step, and the floor of the step\n"
           "  probe                 which layouts, types, epilogues, scale modes and sizes cuBLASLt accepts\n"
           "                        (none named: all three on a GPU, train on the CPU device)\n\n"
           "  --models LIST         tiny, byte (4 layers of 256 channels) or the trainer's descriptors (default d12,d24,d36,d48; CPU device: byte,d12)\n"
           "  --dtypes LIST         float8, bfloat16, float32 (default float8,bfloat16; CPU device: d12 float8 only, byte all three)\n"
           "  --steps N             timed steps (default 10; CPU device: d12 3)          --warmup N     steps before them (default 3; CPU device: d12 1)\n"
           "  --batch-size N        sequences (default: by model, halved until it fits)  --seq-len N    tokens a sequence (default 1024; CPU device: byte 128, d12 256)\n"
           "  --recompute N         as the trainer's option (default 1)\n"
           "  --budget-seconds N    leave out what is left after so many seconds, and say so (default 280; CPU device: 0, no limit)\n"
           "  --json FILE           write every number to FILE as well                   --note TEXT    kept in that file\n"
           "  --make-data FOLDER    only write FOLDER/train.bin and FOLDER/val.bin, small shards of synthetic bytes for a trial run\n");
}

static double bench_option_number(const char* name, const char* text, double min, double max) {
    char* end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || *end || errno || !(x >= min && x <= max)) { fail_usage("", "%s takes a number from %g to %g, not '%s'", name, min, max, text); }
    return x;
}

static void bench_parse(BenchOptions* o, int argc, char** argv) {
    *o = {0, "", "", "", "", "", -1, -1, -1, -1, -1, -1.0};
    for (int i = 1; i < argc; i++) {
        const char* a = argv[i];
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) { bench_print_help(); exit(0); }
        if (!strcmp(a, "train")) { o->sections |= SECTION_TRAIN; continue; }
        if (!strcmp(a, "gemm")) { o->sections |= SECTION_GEMM; continue; }
        if (!strcmp(a, "probe")) { o->sections |= SECTION_PROBE; continue; }
        struct { const char* name; std::string* text; int* number; double min, max; } known[] = {
            {"--models", &o->models, NULL, 0, 0}, {"--dtypes", &o->dtypes, NULL, 0, 0}, {"--json", &o->json, NULL, 0, 0}, {"--note", &o->note, NULL, 0, 0},
            {"--make-data", &o->make_data, NULL, 0, 0}, {"--steps", NULL, &o->steps, 1, 1000}, {"--warmup", NULL, &o->warmup, 0, 1000},
            {"--batch-size", NULL, &o->batch, 1, 65536}, {"--seq-len", NULL, &o->seq_len, 1, 65536}, {"--recompute", NULL, &o->recompute, 0, 2}};
        bool found = false, budget = !strcmp(a, "--budget-seconds");
        for (auto& k : known) {
            if (strcmp(a, k.name) != 0) { continue; }
            found = true;
            if (i + 1 >= argc) { fail_usage("bench --help lists the options", "%s needs a value", a); }
            if (k.text) { *k.text = argv[++i]; } else { *k.number = (int)bench_option_number(a, argv[i + 1], k.min, k.max); i++; }
        }
        if (budget) {
            if (i + 1 >= argc) { fail_usage("bench --help lists the options", "%s needs a value", a); }
            o->budget_seconds = bench_option_number(a, argv[++i], 0, 86400);
        }
        if (!found && !budget) { fail_usage("bench --help lists sections and options", "unknown argument '%s'", a); }
    }
    for (const std::string& name : split_list(o->models)) { bench_find_model(name); }
    for (const std::string& name : split_list(o->dtypes)) {
        bool known = false;
        for (const char* d : bench_dtypes) { known = known || name == d; }
        if (!known) { fail_usage("choose from float8, bfloat16, float32", "unknown dtype '%s'", name.c_str()); }
    }
}

// ---------------------------------------------------------------------------- what a step must move

static ModelHeader bench_config(const BenchModel* m, int T) {
    ModelHeader c;
    memset(&c, 0, sizeof(c));
    c.num_layers = m->L;
    c.channels = m->C;
    c.num_heads = m->NH;
    c.vocab_size = m->V;
    c.padded_vocab_size = ROUND_UP(m->V, VOCAB_PADDING);
    c.max_seq_len = T > 1024 ? T : m->V == GPT2_VOCAB ? 1024 : T;
    return c;
}

// Device bytes that the trainer will book for this model: the tables of sections [B], summed without allocating.
template <class floatX>
static size_t bench_model_bytes(const Device* dev, const ModelHeader* config, bool is_fp8, int batch, int seq_len, int recompute) {
    ParamSpec spec[NUM_PARAMS];
    const bool keep_t = !device_fp8_any_layout(dev);
    size_t bytes = dev->workspace_bytes, norm_blocks = 0;
    gpt_param_specs(spec, config);
    for (int p = 0; p < NUM_PARAMS; p++) {
        bool linear = spec[p].linear >= 0;
        bytes += spec[p].size * (sizeof(floatX) + (linear ? sizeof(floatX) : sizeof(float)) + 2 * sizeof(float));  // parameter, gradient, m, v
        if (is_fp8 && linear) { bytes += spec[p].size * (keep_t ? 2 : 1); }
        norm_blocks += sum_squares_blocks(spec[p].size);
    }
    const size_t B = batch, T = seq_len, N = B * T, L = config->num_layers, C = config->channels, NH = config->num_heads, Vp = config->padded_vocab_size;
    const size_t fit = LOGITS_BYTES / (Vp * sizeof(floatX));
    const size_t head_rows = fit >= N ? N : fit < 128 ? (N < 128 ? N : 128) : fit / 128 * 128;
    const int r = recompute;
    const bool both = true, fp8 = is_fp8, plain = !is_fp8;
#define BENCH_ACT_BYTES(name, type, elements, when, cls) if (when) { bytes += (elements) * sizeof(type); }
    ACT_TABLE(BENCH_ACT_BYTES)
#undef BENCH_ACT_BYTES
    return bytes;
}

typedef std::map<std::string, double> ClassNumbers;  // by kernel class

// Bytes a step moves by kernel class: each launch reads its inputs and writes its outputs once; what is read twice within a kernel counts once. Products
// are not in it. "memset" is the clearing of the gradients. Causal halves count as halves where the kernel skips the other half.
template <class floatX>
static ClassNumbers bench_step_bytes(GPT<floatX>* g) {
    const ModelHeader* c = &g->config;
    const double N = (double)g->B * g->T, T = g->T, L = c->num_layers, C = c->channels, NH = c->num_heads, V = c->vocab_size, Vp = c->padded_vocab_size;
    const double e = sizeof(floatX), NC = N * C, partial = CEIL_DIV(N, COLUMN_SUM_ROWS) * C * 4, pitch = attention_pitch(g->T), rows = N * NH, P = (double)g->num_parameters;
    const double blocks = 12 * C * C * L;  // elements of the linear layers' weights
    const double codes = g->fp8_keep_t ? 2 : 1;
    double grads = 0;
    for (int p = 0; p < NUM_PARAMS; p++) { grads += (double)gpt_grad_bytes(g, p); }
    ClassNumbers b;
    b["encoder_forward"] = 2 * NC * e + T * C * e + 4 * N;
    b["layernorm_forward"] = (2 * L + 1) * (4 * NC * e + 8 * N) - 2 * NC * e + (g->recompute >= 2 ? 2 * L * (2 * NC * e + 8 * N) : 0);
    b["attention_softmax"] = L * rows * (T / 2 * 4 + pitch * e + 4);
    b["attention_delta"] = L * (2 * NC * e + 4 * rows);
    b["attention_softmax_backward"] = L * rows * (T / 2 * 8 + 2 * pitch * e + 8);
    b["gelu_forward"] = L * 8 * NC * e * (g->recompute >= 1 ? 2 : 1);
    b["gelu_backward"] = L * 12 * NC * e;
    b["fused_classifier"] = N * 2 * Vp * e + 8 * N;
    b["layernorm_backward"] = 2 * L * (4 * NC * e + 8 * N) + 3 * NC * e + 8 * N;
    b["layernorm_partial"] = (2 * L + 1) * (2 * NC * e + 8 * N + 2 * partial);
    b["column_sum"] = (2 * L + 1) * 2 * partial + L * 9 * partial;
    b["encoder_backward_wte"] = NC * e + 8 * C * fmin(N, V);
    b["encoder_backward_wpe"] = NC * e + 8 * T * C;
    b["sum_squares"] = grads;
    b["sum_all"] = 4 * N;
    b["adamw"] = P * (2 * e + 16) + grads + (g->has_master ? 8 * P : 0);
    b["memset"] = grads;
    if (g->fp8) {
        b["fp8_quantize"] = L * 7 * NC * (e + codes) + L * 9 * (NC * (e + codes) + partial) + blocks * (e + codes)
                          + (g->recompute >= 1 ? L * 4 * NC * (e + 1) : 0) + (g->recompute >= 2 ? L * 2 * NC * (e + 1) : 0);
        b["amax_reduce"] = L * 4 * NC * e;
    } else {
        b["bias_partial"] = L * 9 * (NC * e + partial);
    }
    return b;
}

// ---------------------------------------------------------------------------- products

// One product of a step: what it is, how often a step runs it, and its measured time.
typedef struct {
    GemmShape shape;
    std::string name, used_as;
    double calls;      // a step; 0: a variant, measured for comparison
    double ms;         // of one call; NAN: not measured, or refused
    bool refused;
} GemmRow;

static double gemm_flops(const GemmShape* s) { return 2.0 * s->m * s->n * s->k * s->batch; }
static size_t dtype_size(int d) { return d == DTYPE_F32 ? 4 : d == DTYPE_BF16 ? 2 : 1; }
// Bytes from an operand's first to its last element.
static size_t gemm_span(int rows, int cols, int transposed, int ld, int batch, long long stride, int dtype) {
    size_t outer = transposed ? cols : rows, inner = transposed ? rows : cols;
    return ((batch - 1) * (size_t)stride + (outer - 1) * ld + inner) * dtype_size(dtype);
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
    const size_t n = b->bytes / dtype_size(dtype);  // random data, not zeros: a chip is faster on zeros, which switch no transistors
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
    void* b = bench_operand(dev, &t->b, gemm_span(s->n, s->k, s->b_t, s->ldb, s->batch, s->stride_b, s->b) + (s->bias ? s->n * dtype_size(s->d) : 0), s->b, 2);
    size_t d_bytes = gemm_span(s->m, s->n, 0, s->ldd, s->batch, s->stride_d, s->d);
    char* d = (char*)bench_buffer(dev, &t->d, ROUND_UP(d_bytes, (size_t)256) + s->n * dtype_size(s->d));
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

// ---------------------------------------------------------------------------- one case: a model in one precision

typedef struct {
    BenchModel model;
    int dtype, batch, seq_len, recompute, warmup, steps;  // batch: 0 = choose one that fits every precision in fit_dtypes
    int fit_dtypes;          // bit mask
    int sections;
    double bandwidth;        // bytes/s
    double deadline;         // of clock_ms; 0: none
} BenchCase;

// What the summary needs of a case.
typedef struct {
    int failures, batch, seq_len, steps;
    double tokens_per_second, ms, mfu, sol, loss, floor_ms, booked;  // NAN: not known
} BenchResult;

static bool past(double deadline) { return deadline > 0.0 && clock_ms() > deadline; }

static int bench_choose_batch(const Device* dev, const BenchCase* c, const ModelHeader* config) {
    if (c->batch > 0) { return c->batch; }
    if (dev->is_cpu) { return c->model.cpu_batch; }
    size_t free_bytes = 0, total = 0;
    cudaCheck(cudaMemGetInfo(&free_bytes, &total));
    for (int B = config->channels <= 768 ? 64 : config->channels <= 1280 ? 32 : 16;; B /= 2) {
        size_t need = 0;
        for (int d = 0; d < NUM_BENCH_DTYPES; d++) {
            if (!(c->fit_dtypes >> d & 1)) { continue; }
            size_t bytes = d == BENCH_FLOAT32 ? bench_model_bytes<float>(dev, config, false, B, c->seq_len, c->recompute)
                                              : bench_model_bytes<bf16>(dev, config, d == BENCH_FLOAT8, B, c->seq_len, c->recompute);
            if (bytes > need) { need = bytes; }
        }
        if (need < free_bytes / 100 * 92) { return B; }  // the rest is for the library's own buffers
        require(B > 1, "choose smaller --models or --seq-len", "%s does not fit even with one sequence: it needs %.0f MiB, %.0f are free", c->model.name,
                need / 1048576.0, free_bytes / 1048576.0);
    }
}

static void bench_tokens(std::vector<int>* tokens, int V, uint32_t key) {
    for (size_t i = 0; i < tokens->size(); i++) { (*tokens)[i] = (int)(((uint64_t)noise_hash((uint32_t)i, key) * V) >> 32); }
}

// One optimizer step of one micro-step, as the trainer runs it. Milliseconds of the whole and of the update.
template <class floatX>
static void bench_step(GPT<floatX>* g, const Options* o, int step, float* loss, float* norm, double* ms, double* update_ms) {
    std::vector<int> inputs((size_t)g->B * g->T), targets(inputs.size());
    bench_tokens(&inputs, g->config.vocab_size, 2 * step);
    bench_tokens(&targets, g->config.vocab_size, 2 * step + 1);
    double begin = clock_ms();
    gpt_micro_step(g, inputs.data(), targets.data(), g->B, g->T, 0, 1);
    gpt_loss_and_norm(g, g->B * g->T, 1, loss, norm);
    double middle = clock_ms();
    if (isfinite(*loss) && isfinite(*norm)) { gpt_update(g, o, o->learning_rate, *norm, step); }
    cudaCheck(cudaStreamSynchronize(g->dev->stream));
    *ms = clock_ms() - begin;
    *update_ms = *ms - (middle - begin);
}

static void bench_print_classes(const ClassNumbers& ms, const ClassNumbers& bytes, const ClassNumbers& flops, double step_ms, Json* j) {
    double total = 0.0;
    std::vector<std::pair<double, std::string>> order;
    for (auto& row : ms) { order.push_back({row.second, row.first}); total += row.second; }
    std::sort(order.rbegin(), order.rend());
    printf("  one step by kernel class              ms   share        GB     GB/s    TFLOP/s\n");
    json_open(j, "classes", '[');
    for (auto& row : order) {
        auto b = bytes.find(row.second);
        auto f = flops.find(row.second);
        printf("  %-28s %11.3f  %5.1f %%", row.second.c_str(), row.first, 100 * row.first / total);
        if (b != bytes.end()) { printf("  %8.3f  %7.1f", b->second * 1e-9, b->second / row.first * 1e-6); }
        else if (f != flops.end()) { printf("%*s%7.*f", 22, "", f->second / row.first * 1e-9 < 10 ? 3 : 1, f->second / row.first * 1e-9); }
        else { printf("  (what it moves is not in bench_step_bytes)"); }
        printf("\n");
        json_open(j, NULL, '{');
        json_string(j, "class", row.second);
        json_number(j, "ms", row.first);
        json_number(j, "bytes", b != bytes.end() ? b->second : NAN);
        json_number(j, "flops", f != flops.end() ? f->second : NAN);
        json_close(j, '}');
    }
    json_close(j, ']');
    printf("  %-28s %11.3f  of %.3f ms from the host's side\n", "all of them", total, step_ms);
}

// The products that the last step ran: the plans' counters.
static std::vector<GemmRow> bench_collect_products(Device* dev) {
    std::vector<GemmRow> rows;
    for (GemmPlan* p : dev->plans) {
        for (auto& use : p->uses) {
            if (!use.calls) { continue; }
            std::string name = strstr(p->name, use.name) ? p->name : use.name;  // a shape shared by two products was planned under one name
            name.erase(name.find("gemm "), 5);
            rows.push_back({p->shape, name, use.name, (double)use.calls, NAN, false});
        }
    }
    return rows;
}

template <class floatX>
static void bench_run_case(Device* dev, const BenchCase* c, BenchResult* result, Json* j) {
    const bool fp8 = c->dtype == BENCH_FLOAT8;
    ModelHeader config = bench_config(&c->model, c->seq_len);
    const int B = bench_choose_batch(dev, c, &config), T = c->seq_len, N = B * T;
    gpt_check_config(&config, B, T, fp8);
    const size_t predicted = bench_model_bytes<floatX>(dev, &config, fp8, B, T, c->recompute);
    Options o;
    options_init(&o);
    o.learning_rate = 1e-4f;
    GPT<floatX>* g = new GPT<floatX>();
    gpt_init(g, dev, &config, fp8, &fp8_recipes[o.fp8_recipe], false);
    gpt_alloc_training(g);
    gpt_alloc_activations(g, B, T, c->recompute);
    size_t booked = 0, free_bytes = 0, total_bytes = 0;
    for (size_t each : dev->allocated) { booked += each; }
    printf("%s %s, B %d, T %d (L %d, C %d, NH %d, V %d; %.1f million parameters)\n", c->model.name, bench_dtypes[c->dtype], B, T, config.num_layers, config.channels,
           config.num_heads, config.vocab_size, g->num_parameters * 1e-6);
    if (booked != predicted) { printf("  PROBLEM: the trainer booked %zu bytes, bench expected %zu: bench_model_bytes is out of date\n", booked, predicted); result->failures++; }
    gpt_plan(g);
    gpt_init_fast(g, o.seed);
    gpt_quantize_weights(g, true);
    cudaCheck(cudaStreamSynchronize(dev->stream));

    // timed steps
    std::vector<double> ms, update_ms;
    float loss = NAN, norm = NAN;
    double one, update;
    int step = 0;
    for (int i = 0; i < c->warmup; i++) { bench_step(g, &o, step++, &loss, &norm, &one, &update); }
    const int steps = c->sections & SECTION_TRAIN ? c->steps : 0;
    const clock_t cpu_begin = clock();
    const double wall_begin = clock_ms();
    for (int i = 0; i < steps && !(i >= 3 && past(c->deadline)); i++) {
        bench_step(g, &o, step++, &loss, &norm, &one, &update);
        ms.push_back(one);
        update_ms.push_back(update);
    }
    const double cores = (double)(clock() - cpu_begin) / CLOCKS_PER_SEC / ((clock_ms() - wall_begin) * 1e-3);  // that this process got, on average
    cudaCheck(cudaMemGetInfo(&free_bytes, &total_bytes));

    // one more with events around each launch
    for (GemmPlan* p : dev->plans) { memset(p->uses, 0, sizeof(p->uses)); }
    profile_begin();
    bench_step(g, &o, step++, &loss, &norm, &one, &update);
    ClassNumbers classes = profile_end(), bytes = bench_step_bytes(g), flops;
    std::vector<GemmRow> rows = bench_collect_products(dev);
    for (const GemmRow& r : rows) { flops[r.used_as] += gemm_flops(&r.shape) * r.calls; }
    double other_bytes = bytes["memset"];
    for (auto& each : classes) { if (bytes.count(each.first)) { other_bytes += bytes[each.first]; } }

    const double median = median_of(ms), uniform = log((double)config.vocab_size), parameters = (double)g->num_parameters;
    result->batch = B;
    result->seq_len = T;
    result->steps = (int)ms.size();
    result->ms = median;
    result->tokens_per_second = N / median * 1e3;
    result->loss = loss;
    result->booked = (double)booked;
    if (dev->peak) {
        result->mfu = mfu_share(dev->peak, parameters, config.num_layers, config.channels, T, result->tokens_per_second);
        double light = mfu_speed_of_light(dev->peak, mfu_flops(config.num_layers, config.channels, T, config.vocab_size), fp8);
        if (light > 0.0) { result->sol = result->tokens_per_second / light; }
    }
    json_number(j, "batch_size", B);
    json_number(j, "seq_len", T);
    json_number(j, "parameters", parameters);
    json_number(j, "recompute", c->recompute);
    json_number(j, "loss", loss);
    json_number(j, "uniform_loss", uniform);
    json_number(j, "gradient_norm", norm);
    json_number(j, "booked_bytes", (double)booked);
    json_number(j, "device_used_bytes", (double)(total_bytes - free_bytes));
    json_number(j, "device_total_bytes", (double)total_bytes);
    if (steps) {
        const double low = *std::min_element(ms.begin(), ms.end()), high = *std::max_element(ms.begin(), ms.end());
        printf("  %.0f tokens/s, %.2f ms a step (median of %zu; %.2f to %.2f), of which the update %.2f ms\n", result->tokens_per_second, median, ms.size(), low, high,
               median_of(update_ms));
        if (dev->is_cpu) {
            bool slowed = cores < 0.8 * dev->props.multiProcessorCount;
            printf("  cores used: %.2f of %d%s\n", cores, dev->props.multiProcessorCount, slowed ? "; a quiet machine is faster (other programs ran, or threads waited)" : "");
        }
        if (dev->peak) { printf("  MFU %.1f %% of the BF16 peak, %.1f %% of the speed of light\n", 100 * result->mfu, 100 * result->sol); }
        else { printf("  MFU n/a, speed of light n/a: %s\n", dev->is_cpu ? "CPU device" : "this device is not in the table of peaks (llmc/mfu.h)"); }
        printf("  memory: %.1f MiB booked, %.1f MiB of %.1f MiB in use on the device\n", booked / 1048576.0, (total_bytes - free_bytes) / 1048576.0, total_bytes / 1048576.0);
        json_number(j, "tokens_per_second", result->tokens_per_second);
        json_number(j, "step_ms_median", median);
        json_number(j, "step_ms_min", low);
        json_number(j, "step_ms_max", high);
        json_number(j, "update_ms_median", median_of(update_ms));
        if (dev->is_cpu) { json_number(j, "cores_used", cores); }
        json_open(j, "step_ms", '[');
        for (double each : ms) { json_number(j, NULL, each); }
        json_close(j, ']');
        json_number(j, "mfu", result->mfu);
        json_number(j, "speed_of_light", result->sol);
    }
    // uniform tokens cannot be learned: the loss starts a little above log V and stays there
    bool plausible = isfinite(loss) && isfinite(norm) && fabs(loss - uniform) < 1.0;
    printf("  loss %.4f (random tokens: about log V = %.4f), gradient norm %.4f%s\n", loss, uniform, norm, plausible ? "" : "   PROBLEM: not plausible");
    if (!plausible) { result->failures++; }
    bench_print_classes(classes, bytes, flops, one, j);
    gpt_free(g);
    delete g;

    if (c->sections & SECTION_GEMM) {
        GemmBench t;
        gemm_bench_init(&t, dev);
        double products_ms = 0.0, attention_ms = 0.0;
        for (size_t i = 0; i < rows.size(); i++) {
            if (past(c->deadline)) { rows[i].ms = NAN; } else { bench_gemm_row(&t, &rows[i]); }
            (rows[i].used_as == "gemm attention" ? attention_ms : products_ms) += rows[i].calls * rows[i].ms;
            if (dtype_is_fp8((DType)rows[i].shape.a) && rows[i].calls) {
                GemmRow other = rows[i];
                other.shape.fast_accum = !other.shape.fast_accum;
                other.calls = 0;
                rows.insert(rows.begin() + i + 1, other);
                i++;
                if (past(c->deadline)) { rows[i].ms = NAN; } else { bench_gemm_row(&t, &rows[i]); }
            }
        }
        gemm_bench_free(&t);
        const double other_ms = other_bytes / c->bandwidth * 1e3;
        result->floor_ms = products_ms + attention_ms + other_ms;
        gemm_rows_print(dev, rows);
        if (isnan(result->floor_ms)) { printf("  floor: n/a, since a product was not measured\n"); }
        else {
            printf("  floor %.3f ms: products %.3f + those of attention %.3f + %.3f GB of all other kernels at %.1f GB/s %.3f", result->floor_ms, products_ms, attention_ms,
                   other_bytes * 1e-9, c->bandwidth * 1e-9, other_ms);
            if (steps) { printf("; a step takes %.2f x its floor", median / result->floor_ms); }
            printf("\n");
        }
        gemm_rows_json(j, rows);
        json_number(j, "floor_ms", result->floor_ms);
        json_number(j, "floor_products_ms", products_ms);
        json_number(j, "floor_attention_products_ms", attention_ms);
        json_number(j, "floor_other_bytes", other_bytes);
        json_number(j, "floor_other_ms", other_ms);
        json_number(j, "step_over_floor", median / result->floor_ms);
    }
    printf("\n");
}
// ---------------------------------------------------------------------------- probe: what the library accepts

// Scale modes of A and B. Those that the toolkit's header lacks are reported as such.
typedef enum { SCALE_NONE, SCALE_SCALAR, SCALE_OUTER, SCALE_VEC128, SCALE_BLK128, SCALE_MX32 } ProbeScale;
static const char* const probe_scale_names[] = {"none", "scalar", "outer_vec", "vec128", "blk128x128", "vec32_ue8m0"};
static const struct { const char* name; cublasLtEpilogue_t value; bool bias, aux, gradient; } probe_epilogues[] = {
    {"default", CUBLASLT_EPILOGUE_DEFAULT, 0, 0, 0},              {"bias", CUBLASLT_EPILOGUE_BIAS, 1, 0, 0},
    {"relu", CUBLASLT_EPILOGUE_RELU, 0, 0, 0},                    {"gelu", CUBLASLT_EPILOGUE_GELU, 0, 0, 0},
    {"gelu_bias", CUBLASLT_EPILOGUE_GELU_BIAS, 1, 0, 0},          {"gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX, 0, 1, 0},
    {"gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 1, 1, 0},  {"dgelu", CUBLASLT_EPILOGUE_DGELU, 0, 1, 1},
    {"dgelu_bgrad", CUBLASLT_EPILOGUE_DGELU_BGRAD, 1, 1, 1},      {"bgrada", CUBLASLT_EPILOGUE_BGRADA, 1, 0, 1},
    {"bgradb", CUBLASLT_EPILOGUE_BGRADB, 1, 0, 1},
};
enum { NUM_PROBE_EPILOGUES = sizeof(probe_epilogues) / sizeof(probe_epilogues[0]) };

// A question in cuBLASLt's own, column-major terms: D (m,n) = op(A) (m,k) op(B) (k,n), leading dimensions as short as they can be.
typedef struct {
    const char* group;
    int trans_a, trans_b, a, b, c, d;  // DType
    int epilogue, scale_a, scale_b;
    int m, n, k, fast, batch, align;
    bool amax_d, scale_d;
} Probe;

static Probe probe_new(const char* group, int a, int b, int d) {
    bool fp8 = dtype_is_fp8((DType)a);
    int scale = fp8 ? SCALE_SCALAR : SCALE_NONE;
    return {group, 1, 0, a, b, dtype_is_fp8((DType)d) ? DTYPE_BF16 : d, d, 0, scale, scale, 1024, 2048, 512, 0, 1, 256, false, fp8 && dtype_is_fp8((DType)d)};
}

static std::vector<Probe> probe_list(void) {
    std::vector<Probe> list;
    const int pairs[][2] = {{DTYPE_E4M3, DTYPE_E4M3}, {DTYPE_E4M3, DTYPE_E5M2}, {DTYPE_E5M2, DTYPE_E4M3}, {DTYPE_E5M2, DTYPE_E5M2},
                            {DTYPE_BF16, DTYPE_BF16}, {DTYPE_F32, DTYPE_F32}};
    const int outputs[] = {DTYPE_BF16, DTYPE_F32, DTYPE_E4M3, DTYPE_E5M2};
    for (int layout = 0; layout < 4; layout++) {  // TN, NN, NT, TT
        for (auto& pair : pairs) {
            for (int d : outputs) {
                if (!dtype_is_fp8((DType)pair[0]) && dtype_is_fp8((DType)d)) { continue; }
                Probe p = probe_new("layout", pair[0], pair[1], d);
                p.trans_a = layout == 0 || layout == 3;
                p.trans_b = layout >= 2;
                list.push_back(p);
            }
        }
    }
    for (int e = 0; e < NUM_PROBE_EPILOGUES; e++) {
        for (int i = 0; i < 6; i++) {
            const int types[][3] = {{DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}, {DTYPE_F32, DTYPE_F32, DTYPE_F32}, {DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16},
                                    {DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16}, {DTYPE_E4M3, DTYPE_E4M3, DTYPE_F32}, {DTYPE_E4M3, DTYPE_E4M3, DTYPE_E4M3}};
            for (int fast = 0; fast < (i < 2 ? 1 : 2); fast++) {
                Probe p = probe_new("epilogue", types[i][0], types[i][1], types[i][2]);
                p.epilogue = e;
                p.fast = fast;
                list.push_back(p);
            }
        }
    }
    const int scales[][2] = {{SCALE_NONE, SCALE_NONE}, {SCALE_OUTER, SCALE_OUTER}, {SCALE_VEC128, SCALE_VEC128}, {SCALE_BLK128, SCALE_VEC128}, {SCALE_VEC128, SCALE_BLK128},
                             {SCALE_BLK128, SCALE_BLK128}, {SCALE_OUTER, SCALE_SCALAR}, {SCALE_MX32, SCALE_MX32}};
    for (auto& scale : scales) {
        for (int i = 0; i < 8; i++) {
            Probe p = probe_new("scale", DTYPE_E4M3, i == 1 ? DTYPE_E5M2 : DTYPE_E4M3, i == 2 ? DTYPE_F32 : i == 3 ? DTYPE_E4M3 : DTYPE_BF16);
            p.scale_a = scale[0];
            p.scale_b = scale[1];
            if (i == 4) { p.k = 1600; }                     // 12.5 blocks of 128: d48's C
            if (i == 5) { p.m = 1600; p.n = 1616; }
            if (i == 6) { p.epilogue = 1; }                 // bias
            if (i == 7) { p.fast = 1; }
            list.push_back(p);
        }
        Probe nn = probe_new("scale", DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16);
        nn.scale_a = scale[0];
        nn.scale_b = scale[1];
        nn.trans_a = 0;
        list.push_back(nn);
    }
    const int sizes[][3] = {{1024, 2048, 1600}, {1024, 2048, 1608}, {1024, 2048, 1616}, {1024, 2048, 16}, {1024, 2048, 24}, {1600, 2048, 512}, {1608, 2048, 512}, {1604, 2048, 512},
                            {50257, 2048, 512}, {50304, 2048, 512}, {1024, 1608, 512}, {1024, 1604, 512}, {1024, 63, 512}, {1024, 1, 512}, {1024, 8, 512},
                            {1024, 16, 512}, {16, 16, 16}};
    for (auto& size : sizes) {
        for (int i = 0; i < 2; i++) {
            Probe p = i ? probe_new("size", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16) : probe_new("size", DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16);
            p.m = size[0]; p.n = size[1]; p.k = size[2];
            list.push_back(p);
        }
    }
    for (int i = 0; i < 13; i++) {
        Probe p = probe_new("other", DTYPE_E4M3, DTYPE_E4M3, i == 2 || i == 3 || i == 4 ? DTYPE_E4M3 : DTYPE_BF16);
        if (i == 0) { p.amax_d = true; }                                    // AMAX_D where D is BF16
        if (i == 1) { p.scale_d = true; }                                   // D_SCALE where D is BF16
        if (i == 2) { p.amax_d = true; }                                    // and where D is FP8
        if (i == 3) { p.c = DTYPE_E4M3; }                                   // accumulating into FP8: C has D's type
        if (i == 4) { p.epilogue = 6; p.amax_d = true; }
        if (i == 5) { p.batch = 4; }
        if (i == 6) { p.batch = 4; p.epilogue = 1; }
        if (i == 7) { p.align = 16; }
        if (i == 8) { p.align = 8; }
        if (i == 9) { p.c = DTYPE_F32; }
        if (i == 10) { p.a = p.b = DTYPE_BF16; p.c = p.d = DTYPE_F32; p.scale_a = p.scale_b = SCALE_NONE; p.trans_a = 0; p.trans_b = 1; }   // dwte of the head
        if (i == 11) { p.a = p.b = DTYPE_BF16; p.scale_a = p.scale_b = SCALE_NONE; p.batch = 12; p.align = 16; p.k = 64; p.d = p.c = DTYPE_F32; }  // attention scores
        if (i == 12) { p.a = p.b = DTYPE_BF16; p.scale_a = p.scale_b = SCALE_NONE; p.align = 2; p.k = 1601; p.m = 1023; }
        list.push_back(p);
    }
    return list;
}

static std::string probe_text(const Probe* p) {
    char text[256];
    snprintf(text, sizeof(text), "%-8s %c%c %-4s x %-4s, C %-4s -> %-4s  %-13s %11s x %-11s  m %5d, n %4d, k %4d%s", p->group, p->trans_a ? 'T' : 'N',
             p->trans_b ? 'T' : 'N', dtype_names[p->a], dtype_names[p->b], dtype_names[p->c], dtype_names[p->d], probe_epilogues[p->epilogue].name,
             probe_scale_names[p->scale_a], probe_scale_names[p->scale_b], p->m, p->n, p->k, p->fast ? ", fast" : "");
    std::string s = text;
    if (p->batch > 1) { s += ", batch " + std::to_string(p->batch); }
    if (p->align != 256) { s += ", aligned to " + std::to_string(p->align); }
    if (p->amax_d) { s += ", amax D"; }
    if (p->scale_d && !dtype_is_fp8((DType)p->d)) { s += ", scale D"; }
    return s;
}

// The header's value of a scale mode; -1: this toolkit has none.
static int probe_scale_value(int scale) {
    switch (scale) {
#if CUBLAS_VERSION >= 120800
        case SCALE_MX32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
#endif
#if CUBLAS_VERSION >= 120900
        case SCALE_OUTER: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        case SCALE_VEC128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        case SCALE_BLK128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
#endif
        case SCALE_NONE: case SCALE_SCALAR: return 0;
    }
    return -1;
}

typedef enum { PROBE_ACCEPTED, PROBE_REFUSED, PROBE_NOT_HERE } ProbeAnswer;  // not here: toolkit or CPU device lack it, which says nothing about a GPU
static const char* const probe_answer_names[] = {"accepted", "refused", "not here"};

// Asks the heuristic; nothing runs. *why: of a refusal, in words.
static ProbeAnswer probe_ask(Device* dev, const Probe* p, std::string* why) {
    cublasLtMatmulDesc_t op;
    const auto* e = &probe_epilogues[p->epilogue];
    const void* some = dev->workspace;  // any device address: scales, bias and auxiliary matrix must look present
    *why = "";
    if (probe_scale_value(p->scale_a) < 0 || probe_scale_value(p->scale_b) < 0) { *why = "this toolkit has no such scale mode"; return PROBE_NOT_HERE; }
    cublasCheck(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
        cublasStatus_t each = cublasLtMatmulDescSetAttribute(op, attribute, value, bytes);
        if (each != CUBLAS_STATUS_SUCCESS && status == CUBLAS_STATUS_SUCCESS) { status = each; *why = "attribute " + std::to_string((int)attribute) + " cannot be set"; }
    };
    cublasOperation_t op_a = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int8_t fast = (int8_t)p->fast;
    set(CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a));
    set(CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, &e->value, sizeof(e->value));
    if (fast) { set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)); }
    if (p->scale_a != SCALE_NONE) { set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &some, sizeof(some)); }
    if (p->scale_b != SCALE_NONE) { set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &some, sizeof(some)); }
    if (p->scale_d) { set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &some, sizeof(some)); }
    if (p->amax_d) { set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, &some, sizeof(some)); }
#if CUBLAS_VERSION >= 120800
    int32_t mode_a = probe_scale_value(p->scale_a), mode_b = probe_scale_value(p->scale_b);
    if (mode_a) { set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode_a, sizeof(mode_a)); }
    if (mode_b) { set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode_b, sizeof(mode_b)); }
#endif
    if (e->bias) {
        cudaDataType_t type = p->d == DTYPE_F32 && p->a == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &some, sizeof(some));
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
    }
    if (e->aux) {
        cudaDataType_t type = p->a == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
        int64_t ld = p->m;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &some, sizeof(some));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof(ld));
        if (dtype_is_fp8((DType)p->a)) { set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof(type)); }
    }
    const long long m = p->m, n = p->n, k = p->k;
    cublasLtMatrixLayout_t a = gemm_layout((DType)p->a, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, p->trans_a ? p->k : p->m, p->batch, m * k);
    cublasLtMatrixLayout_t b = gemm_layout((DType)p->b, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, p->trans_b ? p->n : p->k, p->batch, n * k);
    cublasLtMatrixLayout_t c = gemm_layout((DType)p->c, p->m, p->n, p->m, p->batch, m * n), d = gemm_layout((DType)p->d, p->m, p->n, p->m, p->batch, m * n);
    cublasLtMatmulPreference_t preference;
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &dev->workspace_bytes, sizeof(dev->workspace_bytes)));
    uint32_t align = p->align;
    for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, which, &align, sizeof(align)));
    }
    ProbeAnswer answer = PROBE_REFUSED;
    if (status == CUBLAS_STATUS_SUCCESS) {
        cublasLtMatmulHeuristicResult_t result;
        int returned = 0;
        status = cublasLtMatmulAlgoGetHeuristic(dev->lt, op, a, b, c, d, preference, 1, &result, &returned);
        if (status == CUBLAS_STATUS_SUCCESS && returned > 0) { answer = PROBE_ACCEPTED; }
        else { *why = "status " + std::to_string((int)status); }
#ifdef GPT_CPU_DEVICE
        if (answer == PROBE_REFUSED) {
            *why += std::string(", ") + cpu_cublaslt_last_reason();
            if (why->find(": the CPU device") != std::string::npos) { answer = PROBE_NOT_HERE; }
        }
#endif
    }
    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
    for (cublasLtMatrixLayout_t layout : {a, b, c, d}) { cublasCheck(cublasLtMatrixLayoutDestroy(layout)); }
    cublasCheck(cublasLtMatmulDescDestroy(op));
    return answer;
}

static void bench_probe(Device* dev, Json* j) {
    int counts[3] = {0, 0, 0};
    printf("probe: what cuBLASLt %zu accepts on %s, in its column-major terms (TN: A transposed). beta is no part of the question: C and its type are.\n",
           cublasLtGetVersion(), dev->props.name);
    json_open(j, "probe", '[');
    for (const Probe& p : probe_list()) {
        std::string why;
        ProbeAnswer answer = probe_ask(dev, &p, &why);
        counts[answer]++;
        printf("  %-8s  %s%s%s\n", probe_answer_names[answer], probe_text(&p).c_str(), why.empty() ? "" : "   # ", why.c_str());
        json_open(j, NULL, '{');
        json_string(j, "answer", probe_answer_names[answer]);
        json_string(j, "group", p.group);
        json_string(j, "layout", std::string(p.trans_a ? "T" : "N") + (p.trans_b ? "T" : "N"));
        json_string(j, "a", dtype_names[p.a]); json_string(j, "b", dtype_names[p.b]); json_string(j, "c", dtype_names[p.c]); json_string(j, "d", dtype_names[p.d]);
        json_string(j, "epilogue", probe_epilogues[p.epilogue].name);
        json_string(j, "scale_a", probe_scale_names[p.scale_a]); json_string(j, "scale_b", probe_scale_names[p.scale_b]);
        json_number(j, "m", p.m); json_number(j, "n", p.n); json_number(j, "k", p.k);
        json_bool(j, "fast_accumulation", p.fast); json_number(j, "batch", p.batch); json_number(j, "alignment", p.align);
        json_bool(j, "amax_d", p.amax_d); json_bool(j, "scale_d", p.scale_d);
        json_string(j, "why", why);
        json_close(j, '}');
    }
    json_close(j, ']');
    printf("  %d accepted, %d refused, %d not here\n\n", counts[PROBE_ACCEPTED], counts[PROBE_REFUSED], counts[PROBE_NOT_HERE]);
}

// ---------------------------------------------------------------------------- synthetic shards

// Bytes that a model learns within a few steps: one of a hundred sentences of 20 bytes after another, each from 16 letters.
static void bench_make_data(const char* folder) {
    FileError error;
    fileCheck(file_make_folder(folder, &error), &error);
    for (int part = 0; part < 2; part++) {
        const int n = part ? 20000 : 200000;
        std::string path = std::string(folder) + (part ? "/val.bin" : "/train.bin");
        FILE* f = fopenCheck(path.c_str(), "wb");
        int32_t header[256] = {SHARD_MAGIC, 1, n};
        std::vector<uint16_t> tokens(n);
        for (int i = 0; i < n; i++) {
            uint32_t sentence = noise_hash(i / 20, 77 + part) % 100;
            tokens[i] = (uint16_t)(i % 20 == 19 ? '\n' : 'a' + noise_hash(sentence * 20 + i % 20, 5) % 16);
        }
        bool ok = fwrite(header, sizeof(header), 1, f) == 1 && fwrite(tokens.data(), 2, n, f) == (size_t)n;
        ok = fclose(f) == 0 && ok;
        require(ok, "free disk space", "writing '%s' failed", path.c_str());
    }
    printf("wrote %s/train.bin and %s/val.bin: synthetic bytes, vocabulary 256\n", folder, folder);
}

// ---------------------------------------------------------------------------- children and main

// What the parent, which never touches the device, knows of it.
typedef struct {
    bool is_cpu, has_fp8;
    double bandwidth;
    char name[256];
} DeviceInfo;

// Runs fn(Device*, out, json) in a child process; true if it ended well, with *out and *json as it left them.
template <class Out, class F>
static bool bench_child(Out* out, Json* j, F fn) {
    int fds[2];
    fflush(stdout);
    require(pipe(fds) == 0, "", "pipe: %s", strerror(errno));
    pid_t pid = fork();
    require(pid >= 0, "", "fork: %s", strerror(errno));
    if (pid == 0) {
        close(fds[0]);
        Device* dev = new Device();
        device_init(dev, 0);
        dev->tf32 = !dev->is_cpu;
        fn(dev, out, j);
        fflush(stdout);
        std::string message((const char*)out, sizeof(*out));
        message += j->text;
        for (size_t at = 0; at < message.size();) {
            ssize_t n = write(fds[1], message.data() + at, message.size() - at);
            if (n <= 0) { _exit(1); }
            at += n;
        }
        _exit(0);
    }
    close(fds[1]);
    std::string message;
    char buffer[65536];
    for (ssize_t n; (n = read(fds[0], buffer, sizeof(buffer))) != 0;) {
        if (n > 0) { message.append(buffer, n); } else if (errno != EINTR) { break; }
    }
    close(fds[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || message.size() < sizeof(*out)) {
        printf("  PROBLEM: the case ended with %s %d\n\n", WIFSIGNALED(status) ? "signal" : "exit code", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        return false;
    }
    memcpy((void*)out, message.data(), sizeof(*out));
    j->text = message.substr(sizeof(*out));
    return true;
}

// "570.86.15" of the kernel's driver, "" if there is none.
static std::string bench_driver(void) {
    char line[512] = "";
    FILE* f = fopen("/proc/driver/nvidia/version", "r");
    if (!f) { return ""; }
    if (!fgets(line, sizeof(line), f)) { line[0] = 0; }
    fclose(f);
    for (const char* p = line; *p; p++) {  // the first word that is a number with two dots or one
        size_t n = strspn(p, "0123456789.");
        if (n > 4 && p > line && p[-1] == ' ' && memchr(p, '.', n)) { return std::string(p, n); }
        p += n ? n - 1 : 0;
    }
    return "";
}

static void bench_info(Device* dev, DeviceInfo* info, Json* j) {
    int driver = 0, runtime = 0;
    cudaCheck(cudaDriverGetVersion(&driver));
    cudaCheck(cudaRuntimeGetVersion(&runtime));
    info->is_cpu = dev->is_cpu;
    info->has_fp8 = device_has_fp8(dev);
    snprintf(info->name, sizeof(info->name), "%s", dev->props.name);
    size_t free_bytes = 0, total = 0;
    cudaCheck(cudaMemGetInfo(&free_bytes, &total));
    info->bandwidth = bench_copy_bandwidth(dev);
    const std::string kernel_driver = bench_driver();
    printf("%s, compute capability %d.%d, %d multiprocessors, %.0f MiB (%.0f free)\n", dev->props.name, dev->props.major, dev->props.minor,
           dev->props.multiProcessorCount, total / 1048576.0, free_bytes / 1048576.0);
    printf("driver %s for CUDA %d.%d, runtime %d.%d, cuBLASLt %zu\n", kernel_driver.empty() ? "-" : kernel_driver.c_str(), driver / 1000, driver % 1000 / 10,
           runtime / 1000, runtime % 1000 / 10, cublasLtGetVersion());
    if (dev->peak) { printf("data sheet: BF16 %.1f TFLOP/s, FP8 %.1f TFLOP/s, memory %.2f TB/s; ", dev->peak->bf16, dev->peak->fp8, dev->peak->bandwidth); }
    printf("measured copy bandwidth %.1f GB/s, read and write\n\n", info->bandwidth * 1e-9);
    json_open(j, "device", '{');
    json_string(j, "name", dev->props.name);
    json_bool(j, "cpu_device", dev->is_cpu);
    json_number(j, "compute_capability", dev->capability / 10.0);
    json_number(j, "multiprocessors", dev->props.multiProcessorCount);
    json_number(j, "memory_bytes", (double)total);
    json_number(j, "memory_free_bytes", (double)free_bytes);
    json_string(j, "driver", kernel_driver);
    json_number(j, "cuda_driver", driver);
    json_number(j, "cuda_runtime", runtime);
    json_number(j, "cuda_build", CUDART_VERSION);
    json_number(j, "cublaslt", (double)cublasLtGetVersion());
    json_number(j, "cublaslt_build", CUBLAS_VERSION);
    json_number(j, "peak_bf16_tflops", dev->peak ? dev->peak->bf16 : NAN);
    json_number(j, "peak_fp8_tflops", dev->peak ? dev->peak->fp8 : NAN);
    json_number(j, "peak_bandwidth", dev->peak ? dev->peak->bandwidth * 1e12 : NAN);
    json_number(j, "copy_bandwidth", info->bandwidth);
    json_close(j, '}');
}

// The cases: for every model its precisions, one after the other, so that a spent budget leaves whole models.
static std::vector<BenchCase> bench_cases(const BenchOptions* o, const DeviceInfo* info) {
    std::vector<BenchCase> cases;
    for (const std::string& name : split_list(!o->models.empty() ? o->models : info->is_cpu ? "byte,d12" : "d12,d24,d36,d48")) {
        BenchModel m = bench_find_model(name);
        int wanted = 0;
        for (int d = 0; d < NUM_BENCH_DTYPES; d++) {
            bool listed = false;
            for (const std::string& each : split_list(o->dtypes)) { listed = listed || each == bench_dtypes[d]; }
            bool standard = d == BENCH_FLOAT8 || (info->is_cpu ? m.cpu_all_dtypes : d == BENCH_BFLOAT16);
            if (o->dtypes.empty() && !info->has_fp8) { standard = d == BENCH_BFLOAT16; }
            if (o->dtypes.empty() ? standard : listed) { wanted |= 1 << d; }
        }
        for (int d = 0; d < NUM_BENCH_DTYPES; d++) {
            if (!(wanted >> d & 1)) { continue; }
            BenchCase c;
            memset((void*)&c, 0, sizeof(c));
            c.model = m;
            c.dtype = d;
            c.fit_dtypes = wanted;
            c.batch = o->batch > 0 ? o->batch : 0;
            c.seq_len = o->seq_len > 0 ? o->seq_len : info->is_cpu || m.V != GPT2_VOCAB ? m.cpu_seq_len : GPU_SEQ_LEN;
            c.recompute = o->recompute >= 0 ? o->recompute : 1;
            c.warmup = o->warmup >= 0 ? o->warmup : info->is_cpu ? m.cpu_warmup : 3;
            c.steps = o->steps > 0 ? o->steps : info->is_cpu ? m.cpu_steps : 10;
            c.bandwidth = info->bandwidth;
            cases.push_back(c);
        }
    }
    return cases;
}

static void bench_print_summary(const DeviceInfo* info, const std::vector<BenchCase>& cases, const std::vector<BenchResult>& results, Json* j) {
    printf("summary, %s\n  model      dtype       B     T   tokens/s    ms/step     MFU     SOL  x floor       MiB    loss  float8/bfloat16\n", info->name);
    json_open(j, "ratios", '[');
    for (size_t i = 0; i < results.size(); i++) {
        const BenchResult* r = &results[i];
        if (r->batch == 0) { continue; }
        auto percent = [](double x, char* text) { if (isnan(x)) { snprintf(text, 16, "n/a"); } else { snprintf(text, 16, "%.1f%%", 100 * x); } return text; };
        char mfu[16], sol[16], floor_text[16] = "n/a", ratio_text[16] = "";
        if (!isnan(r->floor_ms) && !isnan(r->ms)) { snprintf(floor_text, sizeof(floor_text), "%.2f", r->ms / r->floor_ms); }
        if (cases[i].dtype == BENCH_FLOAT8) {
            for (size_t k = 0; k < results.size(); k++) {
                if (cases[k].dtype != BENCH_BFLOAT16 || strcmp(cases[k].model.name, cases[i].model.name) != 0) { continue; }
                if (results[k].batch != r->batch || isnan(r->ms / results[k].ms)) { continue; }
                snprintf(ratio_text, sizeof(ratio_text), "%.3f", results[k].ms / r->ms);
                json_open(j, NULL, '{');
                json_string(j, "model", cases[i].model.name);
                json_number(j, "float8_over_bfloat16", results[k].ms / r->ms);
                json_number(j, "loss_difference", r->loss - results[k].loss);
                json_close(j, '}');
            }
        }
        printf("  %-10s %-8s %4d %5d %10.0f %10.2f %7s %7s %8s %9.1f %7.4f  %s\n", cases[i].model.name, bench_dtypes[cases[i].dtype], r->batch, r->seq_len,
               r->tokens_per_second, r->ms, percent(r->mfu, mfu), percent(r->sol, sol), floor_text, r->booked / 1048576.0, r->loss, ratio_text);
    }
    json_close(j, ']');
}

#ifndef TESTING_BENCH
int main(int argc, char** argv) {
    BenchOptions o;
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_parse(&o, argc, argv);
    if (!o.make_data.empty()) { bench_make_data(o.make_data.c_str()); return 0; }
    const double begin = clock_ms();
    int failures = 0;
    Json all;
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    json_open(&all, NULL, '{');
    json_number(&all, "version", 1);
    json_string(&all, "date", date);
    json_string(&all, "note", o.note);

    DeviceInfo info;
    memset(&info, 0, sizeof(info));
    Json part;
    if (!bench_child(&info, &part, bench_info)) { return 1; }
    json_comma(&all, NULL);
    all.text += part.text;
    if (o.sections == 0) { o.sections = info.is_cpu ? SECTION_TRAIN : SECTION_TRAIN | SECTION_GEMM | SECTION_PROBE; }
    const double budget = o.budget_seconds >= 0 ? o.budget_seconds : info.is_cpu ? 0 : 280, deadline = budget > 0 ? begin + budget * 1e3 : 0;

    if (o.sections & SECTION_PROBE) {  // a second or two, so it comes first
        int nothing = 0;
        Json answers;
        if (bench_child(&nothing, &answers, [](Device* dev, int*, Json* j) { bench_probe(dev, j); })) { json_comma(&all, NULL); all.text += answers.text; }
        else { failures++; }
    }

    std::vector<BenchCase> cases = o.sections & (SECTION_TRAIN | SECTION_GEMM) ? bench_cases(&o, &info) : std::vector<BenchCase>();
    std::vector<BenchResult> results;
    std::string left_out;
    json_open(&all, "cases", '[');
    for (BenchCase& c : cases) {
        BenchResult result = {0, 0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
        c.sections = o.sections;
        c.deadline = deadline;
        for (size_t i = 0; i < results.size(); i++) {  // the batch size that an earlier precision of this model got
            if (!strcmp(cases[i].model.name, c.model.name) && results[i].batch && c.batch == 0) { c.batch = results[i].batch; }
        }
        Json fields;
        auto run = [&](Device* dev, BenchResult* r, Json* j) {
            if (c.dtype == BENCH_FLOAT32) { bench_run_case<float>(dev, &c, r, j); } else { bench_run_case<bf16>(dev, &c, r, j); }
        };
        json_open(&all, NULL, '{');
        json_string(&all, "model", c.model.name);
        json_string(&all, "dtype", bench_dtypes[c.dtype]);
        if (past(deadline)) {
            left_out += std::string(" ") + c.model.name + " " + bench_dtypes[c.dtype];
            json_bool(&all, "left_out", true);
        } else if (bench_child(&result, &fields, run)) {
            failures += result.failures;
            json_bool(&all, "ok", result.failures == 0);
            json_comma(&all, NULL);
            all.text += fields.text;
        } else {
            failures++;
            json_bool(&all, "ok", false);
        }
        json_close(&all, '}');
        results.push_back(result);
    }
    json_close(&all, ']');
    if (!results.empty()) { bench_print_summary(&info, cases, results, &all); }
    if (!left_out.empty()) { printf("left out, since the budget of %.0f s is used up:%s\n", budget, left_out.c_str()); }
    json_string(&all, "left_out", left_out);
    json_number(&all, "failures", failures);
    json_number(&all, "seconds", (clock_ms() - begin) * 1e-3);
    json_close(&all, '}');
    if (!o.json.empty()) {
        FILE* f = fopenCheck(o.json.c_str(), "w");
        bool ok = fprintf(f, "%s\n", all.text.c_str()) > 0;
        ok = fclose(f) == 0 && ok;
        require(ok, "free disk space", "writing '%s' failed", o.json.c_str());
        printf("every number is in %s\n", o.json.c_str());
    }
    printf("bench: %d problems, %.0f s\n", failures, (clock_ms() - begin) * 1e-3);
    return failures ? 1 : 0;
}
#endif
