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

#include "dev/bench_json.h"

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

static void bench_parse(BenchOptions* o, int count, char** arguments) {
    *o = {0, "", "", "", "", "", -1, -1, -1, -1, -1, -1.0};
    std::vector<std::string> words;  // --name=value counts as two
    for (int i = 0; i < count; i++) {
        std::string word = arguments[i];
        size_t equals = word.compare(0, 2, "--") == 0 ? word.find('=') : std::string::npos;
        words.push_back(word.substr(0, equals));
        if (equals != std::string::npos) { words.push_back(word.substr(equals + 1)); }
    }
    const int argc = (int)words.size();
    std::vector<const char*> argv;
    for (const std::string& word : words) { argv.push_back(word.c_str()); }
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

// Device bytes that the trainer will book for this model.
template <class floatX>
static size_t bench_model_bytes(const Device* dev, const ModelHeader* config, bool is_fp8, const Fp8Recipe* recipe, int batch, int seq_len, int recompute) {
    size_t bytes[NUM_MEM_CLASSES], total = 0;
    Comm alone;
    comm_init(&alone, (Device*)dev, 0, 1, NULL, false);
    const Fp8Settings settings = is_fp8 ? fp8_settings(recipe) : Fp8Settings();
    gpt_count_memory<floatX>(bytes, dev, &alone, config, is_fp8, &settings, false, 0, MOMENT_F32, false, false, false, batch, seq_len, recompute);
    for (size_t each : bytes) { total += each; }
    return total;
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
    if (gpt_flash(g)) {
        b["flash_forward"] = L * (4 * NC * e + 4 * rows);
        b["flash_backward"] = L * (11 * NC * e + 16 * rows);
    } else {
        b["attention_softmax"] = L * rows * (T / 2 * 4 + pitch * e + 4);
        b["attention_softmax_backward"] = L * rows * (T / 2 * 8 + 2 * pitch * e + 8);
    }
    b["attention_delta"] = L * (2 * NC * e + 4 * rows);
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
        b["fp8_count_nonfinite"] = 4.0 * fp8_training_slots(&g->scaling);
    } else {
        b["bias_partial"] = L * 9 * (NC * e + partial);
    }
    return b;
}

// ---------------------------------------------------------------------------- products
#include "dev/bench_gemm.h"

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
            size_t bytes = d == BENCH_FLOAT32 ? bench_model_bytes<float>(dev, config, false, NULL, B, c->seq_len, c->recompute)
                                              : bench_model_bytes<bf16>(dev, config, d == BENCH_FLOAT8, &fp8_recipes[0], B, c->seq_len, c->recompute);
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
    gpt_micro_step(g, inputs.data(), targets.data(), g->B, g->T, 0, 1, (uint64_t)g->B * g->T);
    gpt_loss_and_norm(g, g->B * g->T, (uint64_t)g->B * g->T, loss, norm);
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
    Options o;
    options_init(&o);
    o.learning_rate = 1e-4f;
    const size_t predicted = bench_model_bytes<floatX>(dev, &config, fp8, &fp8_recipes[o.fp8_recipe], B, T, c->recompute);
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
    gpt_quantize_weights(g);
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
    // flash has no products of the library to time: seven causal ones at the peak
    const double flash_ms = !gpt_flash(g) ? 0.0 : !dev->peak ? NAN : 7.0 * N * T * config.channels * config.num_layers / (dev->peak->bf16 * 1e9);
    gpt_free(g);
    delete g;

    if (c->sections & SECTION_GEMM) {
        GemmBench t;
        gemm_bench_init(&t, dev);
        double products_ms = 0.0, attention_ms = flash_ms;
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
// ---------------------------------------------------------------------------- probe
#include "dev/bench_probe.h"

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
