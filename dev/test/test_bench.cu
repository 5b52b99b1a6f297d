/* test_bench.cu - dev/bench.cu: its memory model, byte counts, products and probe table are about the program as it is; its JSON and options
 *
 * CPU device only: architectures and memory sizes are played. What bench prints as speed is not tested, only what it is computed from.
 */
#define TESTING_BENCH
#include "dev/bench.cu"

#include "dev/test/test.h"

// A device that lives until the test's process ends; the vector keeps it in sight of the leak checker.
static Device* device_playing(int arch) {
    static std::vector<Device*>* devices = new std::vector<Device*>();
    cpu_modes()->arch = arch;
    devices->push_back(new Device());
    device_init(devices->back(), 0);
    return devices->back();
}

static void test_bench_json_escapes(void) {
    Json j;
    json_open(&j, NULL, '{');
    json_string(&j, "a", "x\"\\\n\xc3\xa9");
    json_number(&j, "b", 0.1);
    json_number(&j, "c", NAN);
    json_open(&j, "d", '[');
    json_number(&j, NULL, 1);
    json_number(&j, NULL, -2e30);
    json_open(&j, NULL, '{');
    json_close(&j, '}');
    json_close(&j, ']');
    json_bool(&j, "e", true);
    json_close(&j, '}');
    CHECK(j.text == "{\"a\":\"x\\\"\\\\\\u000a\\u00c3\\u00a9\",\"b\":0.1,\"c\":null,\"d\":[1,-2e+30,{}],\"e\":true}", "got %s", j.text.c_str());
}

static void test_bench_median_even_and_odd(void) {
    CHECK(median_of({3, 1, 2}) == 2 && median_of({4, 1, 3, 2}) == 2.5 && isnan(median_of({})), "medians %g %g", median_of({3, 1, 2}), median_of({4, 1, 3, 2}));
}

template <class floatX>
static void check_memory(int arch, bool fp8, int batch, int recompute) {
    Device* dev = device_playing(arch);
    BenchModel m = bench_find_model("tiny");
    ModelHeader config = bench_config(&m, 48);
    size_t predicted = bench_model_bytes<floatX>(dev, &config, fp8, &fp8_recipes[0], batch, 48, recompute), booked = 0;
    GPT<floatX>* g = new GPT<floatX>();
    gpt_init(g, dev, &config, fp8, &fp8_recipes[0], false);
    gpt_alloc_training(g);
    gpt_alloc_activations(g, batch, 48, recompute);
    for (size_t each : dev->allocated) { booked += each; }
    CHECK(booked == predicted, "arch %d, fp8 %d, B %d, recompute %d: booked %zu, predicted %zu", arch, fp8, batch, recompute, booked, predicted);
    gpt_free(g);
    delete g;
}
static void test_bench_memory_equals_ledger(void) {
    for (int arch : {90, 100}) {
        for (int recompute = 0; recompute <= 3; recompute++) {
            check_memory<bf16>(arch, true, 2, recompute);
            check_memory<bf16>(arch, false, 3, recompute);
            check_memory<float>(arch, false, 1, recompute);
        }
    }
}

// B is the largest of 64, 32, ... that fits in 92 % of the free memory.
static void test_bench_batch_fits_memory(void) {
    cpu_modes()->memory = (long long)6 << 30;
    Device* dev = device_playing(90);
    dev->is_cpu = false;  // the search is for GPUs; the CPU device has fixed sizes
    BenchCase c;
    memset((void*)&c, 0, sizeof(c));
    c.model = bench_find_model("d12");
    c.seq_len = 1024;
    c.recompute = 1;
    c.fit_dtypes = 1 << BENCH_FLOAT8 | 1 << BENCH_BFLOAT16;
    ModelHeader config = bench_config(&c.model, c.seq_len);
    size_t free_bytes = 0, total = 0;
    cudaCheck(cudaMemGetInfo(&free_bytes, &total));
    int B = bench_choose_batch(dev, &c, &config);
    size_t fp8 = bench_model_bytes<bf16>(dev, &config, true, &fp8_recipes[0], B, 1024, 1), plain = bench_model_bytes<bf16>(dev, &config, false, NULL, B, 1024, 1);
    CHECK(B >= 1 && B < 64 && fp8 < free_bytes * 0.92 && plain < free_bytes * 0.92, "B %d needs %zu and %zu of %zu bytes", B, fp8, plain, free_bytes);
    fp8 = bench_model_bytes<bf16>(dev, &config, true, &fp8_recipes[0], 2 * B, 1024, 1);
    plain = bench_model_bytes<bf16>(dev, &config, false, NULL, 2 * B, 1024, 1);
    CHECK(fp8 >= free_bytes * 0.92 || plain >= free_bytes * 0.92, "B %d would have fitted: %zu and %zu of %zu bytes", 2 * B, fp8, plain, free_bytes);
}

// Every class of a step has its bytes or operations, and the products of a step are those of the formulas.
template <class floatX>
static void check_step(bool fp8, int recompute, AttentionKind attention) {
    Device* dev = device_playing(0);
    dev->attention = attention;
    BenchModel m = bench_find_model("tiny");
    const int B = m.cpu_batch, T = m.cpu_seq_len;
    ModelHeader config = bench_config(&m, T);
    GPT<floatX>* g = new GPT<floatX>();
    Options o;
    options_init(&o);
    gpt_init(g, dev, &config, fp8, &fp8_recipes[0], false);
    gpt_alloc_training(g);
    gpt_alloc_activations(g, B, T, recompute);
    gpt_plan(g);
    gpt_init_fast(g, 1);
    gpt_quantize_weights(g);
    float loss, norm;
    double ms, update_ms;
    profile_begin();
    bench_step(g, &o, 0, &loss, &norm, &ms, &update_ms);
    ClassNumbers classes = profile_end(), bytes = bench_step_bytes(g), flops;
    double sum = 0.0;
    for (const GemmRow& r : bench_collect_products(dev)) {
        flops[r.used_as] += gemm_flops(&r.shape) * r.calls;
        sum += gemm_flops(&r.shape) * r.calls;
    }
    for (auto& each : classes) {
        CHECK((bytes.count(each.first) > 0) != (flops.count(each.first) > 0), "class '%s' has neither bytes nor operations, or both", each.first.c_str());
    }
    for (auto& each : bytes) { CHECK(each.first == "memset" || classes.count(each.first), "no kernel of class '%s' ran", each.first.c_str()); }
    for (auto& each : bytes) { CHECK(each.second > 0 && isfinite(each.second), "class '%s': %g bytes", each.first.c_str(), each.second); }
    const double N = B * T, C = m.C, L = m.L, Vp = config.padded_vocab_size;
    const double expected = 3 * 2 * N * 12 * C * C * L + 3 * 2 * N * C * Vp + (gpt_flash(g) ? 0 : 7 * 2 * N * T * C * L);  // attention: two products forward, five backward
    CHECK(sum == expected, "products of %g operations, %g expected", sum, expected);
    CHECK(update_ms > 0 && update_ms < ms && isfinite(loss), "step %g ms, update %g ms, loss %g", ms, update_ms, loss);
    gpt_free(g);
    delete g;
}
static void test_bench_step_is_accounted_for(void) {
    check_step<bf16>(true, 1, ATTENTION_GEMM);
    check_step<bf16>(true, 2, ATTENTION_GEMM);
    check_step<bf16>(false, 0, ATTENTION_FLASH);
    check_step<float>(false, 1, ATTENTION_AUTO);
}

// A product is timed, a refused one is not run, and the fill makes no NaN.
static void test_bench_products_are_timed(void) {
    for (int arch : {80, 90}) {
        Device* dev = device_playing(arch);
        GemmBench t;
        gemm_bench_init(&t, dev);
        const bool fp8 = arch == 90;
        GemmRow rows[] = {
            {linear_shape(PASS_FPROP, 32, 64, 96, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, true, true), "fprop", "gemm fprop", 1, NAN, false},
            {linear_shape(PASS_WGRAD, 32, 64, 96, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, true, false), "wgrad", "gemm wgrad", 1, NAN, false},
            {linear_shape(PASS_DGRAD, 32, 64, 96, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, false), "dgrad", "gemm dgrad", 1, NAN, false},
            {attention_apply_shape(DTYPE_F32, 3, 24, 16, true, 64, 64), "attention", "gemm attention", 1, NAN, false}};
        for (int i = 0; i < 4; i++) {
            bench_gemm_row(&t, &rows[i]);
            bool runs = fp8 || i >= 2;
            CHECK(rows[i].refused == !runs, "arch %d, %s: refused %d", arch, rows[i].name.c_str(), rows[i].refused);
            CHECK(runs ? rows[i].ms > 0 && rows[i].ms < 1e4 : isnan(rows[i].ms), "arch %d, %s: %g ms", arch, rows[i].name.c_str(), rows[i].ms);
        }
        for (int e5m2 = 0; e5m2 < 2; e5m2++) {
            bench_operand(dev, &t.a, 4096, e5m2 ? DTYPE_E5M2 : DTYPE_E4M3, 7);
            int wrong = 0, distinct[256] = {0}, kinds = 0;
            for (size_t i = 0; i < t.a.bytes; i++) {
                uint8_t code = ((uint8_t*)t.a.data)[i];
                wrong += (code & 0x7f) >= (e5m2 ? 0x7c : 0x7f);  // inf, NaN
                kinds += distinct[code]++ == 0;
            }
            CHECK(wrong == 0 && kinds > 50, "%d codes are not finite, %d kinds of codes", wrong, kinds);
        }
        gemm_bench_free(&t);
    }
}

// The tokens are those of a uniform distribution over V, and other ones at every step.
static void test_bench_tokens_in_range(void) {
    std::vector<int> a(10000), b(10000);
    bench_tokens(&a, 100, 1);
    bench_tokens(&b, 100, 2);
    double mean = 0.0;
    for (int x : a) {
        CHECK(x >= 0 && x < 100, "token %d", x);
        mean += x / 10000.0;
    }
    CHECK(a != b && fabs(mean - 49.5) < 5 * 28.9 / 100, "mean %g", mean);  // 5 deviations of the mean
}

// One question of the table: bench probe's answer on the architecture that the device plays.
static const char* ask(int arch, void (*change)(Probe*)) {
    Probe p = probe_new("test", DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16);
    change(&p);
    std::string why;
    return probe_answer_names[probe_ask(device_playing(arch), &p, &why)];
}
static void test_bench_probe_follows_architecture(void) {
    const struct { const char* what; void (*change)(Probe*); const char* answers; } questions[] = {  // on 8.0, 8.9, 9.0, 10.0, 12.0: a accepted, r refused
        {"TN scalar", [](Probe*) {}, "raaaa"},
        {"NN", [](Probe* p) { p->trans_a = 0; }, "rrrar"},
        {"NT", [](Probe* p) { p->trans_a = 0; p->trans_b = 1; }, "rrrar"},
        {"TT", [](Probe* p) { p->trans_b = 1; }, "rrrar"},
        {"E5M2 x E5M2", [](Probe* p) { p->a = p->b = DTYPE_E5M2; }, "rrrrr"},
        {"E5M2 x E4M3", [](Probe* p) { p->a = DTYPE_E5M2; }, "raaaa"},
        {"bfloat16", [](Probe* p) { p->a = p->b = DTYPE_BF16; p->scale_a = p->scale_b = SCALE_NONE; p->trans_a = 0; }, "aaaaa"},
        {"outer vectors", [](Probe* p) { p->scale_a = p->scale_b = SCALE_OUTER; }, "rrarr"},
        {"1x128 and 128x128", [](Probe* p) { p->scale_a = SCALE_BLK128; p->scale_b = SCALE_VEC128; p->k = 1600; }, "rrarr"},
        {"128x128 twice", [](Probe* p) { p->scale_a = p->scale_b = SCALE_BLK128; }, "rrrrr"},
        {"MX", [](Probe* p) { p->scale_a = p->scale_b = SCALE_MX32; }, "rrraa"},
        {"K 1600", [](Probe* p) { p->k = 1600; }, "raaaa"},
        {"K 1608", [](Probe* p) { p->k = 1608; }, "rrrrr"},
        {"bias", [](Probe* p) { p->epilogue = 1; }, "raaaa"},
    };
    const int archs[] = {80, 89, 90, 100, 120};
    for (auto& q : questions) {
        for (int i = 0; i < 5; i++) {
            const char* answer = ask(archs[i], q.change);
            CHECK(answer[0] == q.answers[i], "%s on %d: %s", q.what, archs[i], answer);
        }
    }
}
static void test_bench_probe_questions_differ(void) {
    std::map<std::string, int> seen;
    for (const Probe& p : probe_list()) { CHECK(seen[probe_text(&p)]++ == 0, "asked twice: %s", probe_text(&p).c_str()); }
    CHECK(seen.size() > 200, "only %zu questions", seen.size());
}

static void parse_child(void* argument) {
    BenchOptions o;
    char* argv[] = {(char*)"bench", (char*)argument, (char*)"zzz"};
    bench_parse(&o, 3, argv);
}
static void test_bench_refuses_bad_options(void) {
    for (const char* option : {"--models", "--dtypes", "--steps", "--recompute", "--bogus", "trian", "--json"}) {
        std::string output;
        int code = test_child(parse_child, (void*)option, &output);
        if (!strcmp(option, "--json")) { CHECK(code == 0, "%s zzz: exit code %d, %s", option, code, output.c_str()); }
        else { CHECK(code == 2 && output.find("HINT") + output.find("ERROR") != 2 * std::string::npos, "%s zzz: exit code %d, %s", option, code, output.c_str()); }
    }
}

static void test_bench_data_is_read_by_the_loader(void) {
    char folder[] = "/tmp/test_bench_XXXXXX";
    CHECK(mkdtemp(folder), "mkdtemp failed");
    bench_make_data(folder);
    DataLoader* loader = new DataLoader();
    dataloader_init(loader, (std::string(folder) + "/train.bin").c_str(), 64, 256, true, 1);
    CHECK(loader->num_tokens == 200000, "%lld tokens", (long long)loader->num_tokens);
    dataloader_free(loader);
    delete loader;
    for (const char* name : {"/train.bin", "/val.bin"}) { unlink((std::string(folder) + name).c_str()); }
    rmdir(folder);
}

// A child's failure is the parent's to report: a case that exits, crashes or is killed does not take the others along.
static void test_bench_child_may_fail(void) {
    int out = 0;
    Json j;
    CHECK(bench_child(&out, &j, [](Device*, int* o, Json* text) { *o = 7; json_number(text, "x", 1); }) && out == 7 && j.text == "\"x\":1", "out %d, json %s", out, j.text.c_str());
    CHECK(!bench_child(&out, &j, [](Device*, int*, Json*) { fail("", "on purpose"); }), "a failed case counted as good");
    CHECK(!bench_child(&out, &j, [](Device*, int*, Json*) { raise(SIGKILL); }), "a killed case counted as good");
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"test_bench_json_escapes", test_bench_json_escapes, QUICK},
        {"test_bench_median_even_and_odd", test_bench_median_even_and_odd, QUICK},
        {"test_bench_memory_equals_ledger", test_bench_memory_equals_ledger, QUICK},
        {"test_bench_batch_fits_memory", test_bench_batch_fits_memory, QUICK},
        {"test_bench_step_is_accounted_for", test_bench_step_is_accounted_for, SLOW},
        {"test_bench_products_are_timed", test_bench_products_are_timed, QUICK},
        {"test_bench_tokens_in_range", test_bench_tokens_in_range, QUICK},
        {"test_bench_probe_follows_architecture", test_bench_probe_follows_architecture, QUICK},
        {"test_bench_probe_questions_differ", test_bench_probe_questions_differ, QUICK},
        {"test_bench_refuses_bad_options", test_bench_refuses_bad_options, QUICK},
        {"test_bench_data_is_read_by_the_loader", test_bench_data_is_read_by_the_loader, QUICK},
        {"test_bench_child_may_fail", test_bench_child_may_fail, QUICK},
    };
    return TEST_MAIN(tests);
}
