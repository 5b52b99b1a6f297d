/* test_rand.cu - random numbers, schedules, sampler and outlier detector against golden values and oracles (host code only)
 *
 * Golden values: llm.c's (made by running it; LLMC_COMPAT 3.1, 3.4, 3.7, 3.11) and PyTorch's well-known torch.manual_seed(0 / 42); torch.randn(5).
 * Floats are printed there with 9 digits, which is exact: they are compared with ==.
 */
#include "llmc/outlier_detector.h"
#include "llmc/rand.h"
#include "llmc/sampler.h"
#include "llmc/schedulers.h"
#include "dev/test/test.h"
#include <algorithm>
#include <vector>

// ----------------------------------------------------------------------------
// rand.h

static void test_rand_mt19937_golden(void) {
    static const uint32_t seed42[] = {1608637542u, 3421126067u, 4083286876u}, seed137[] = {4053805790u, 2173880614u, 380293709u, 1237255315u, 2986595568u};
    Mt19937 mt;
    mt19937_init(&mt, 42);
    for (uint32_t golden : seed42) { uint32_t x = mt19937_u32(&mt); CHECK(x == golden, "%u instead of %u", x, golden); }
    mt19937_init(&mt, 137);
    for (uint32_t golden : seed137) { uint32_t x = mt19937_u32(&mt); CHECK(x == golden, "%u instead of %u", x, golden); }
    // the 10,000th number of seed 5489, which the C++ standard fixes for std::mt19937 [rand.predef]
    mt19937_init(&mt, 5489);
    for (int i = 0; i < 9999; i++) { mt19937_u32(&mt); }
    uint32_t x = mt19937_u32(&mt);
    CHECK(x == 4123659995u, "%u", x);
}

static void test_rand_uniform_fill_equals_single_draws(void) {
    static const size_t sizes[] = {1, 2, 15, 623, 624, 625, 1248, 5000, 3, 0, 700};
    Mt19937 a, b;
    mt19937_init(&a, 7);
    mt19937_init(&b, 7);
    std::vector<float> out(5000);
    for (size_t n : sizes) {
        uniform_fill(out.data(), n, &a);
        for (size_t i = 0; i < n; i++) {
            float x = mt19937_f32(&b);
            CHECK(out[i] == x && x >= 0.0f && x < 1.0f, "fill of %zu, element %zu: %.9g, single draw %.9g", n, i, (double)out[i], (double)x);
        }
    }
}

static void test_rand_normal_fill_few_as_torch(void) {
    // torch prints four decimals
    static const double seed42[] = {0.3367, 0.1288, 0.2345, 0.2303, -1.1229}, seed0[] = {1.5410, -0.2934, -2.1788, 0.5684, -1.0845};
    for (int which = 0; which < 2; which++) {
        Mt19937 mt;
        float x[5], y[5];
        mt19937_init(&mt, which ? 0 : 42);
        normal_fill(x, 5, 0.0f, 1.0f, &mt);
        for (int i = 0; i < 5; i++) {
            double golden = (which ? seed0 : seed42)[i];
            CHECK(fabs((double)x[i] - golden) <= 0.5001e-4, "seed %d, value %d: %.6f instead of %.4f", which ? 0 : 42, i, (double)x[i], golden);
        }
        mt19937_init(&mt, which ? 0 : 42);  // the second value of a pair is kept for the next call
        normal_fill(y, 1, 0.0f, 1.0f, &mt);
        normal_fill(y + 1, 2, 0.0f, 1.0f, &mt);
        normal_fill(y + 3, 2, 0.0f, 1.0f, &mt);
        CHECK(!memcmp(x, y, sizeof(x)), "in pieces");
    }
}

// llm.c's order of draws: wte (V rows), wpe, then layer by layer the four matrices; std 0.02, the two projections 0.02 / sqrt(2 L).
typedef struct {
    const char* name;
    size_t V, maxT, C;
    int L;
    float wte_last, wpe[4], wpe_last, matrices[2][4][2];  // of layers 0 and 1: qkvw, attprojw, fcw, fcprojw; NAN: no golden value
} GoldenInit;

static void check_golden_init(const GoldenInit* g) {
    static const float wte[4] = {0.0385382995f, 0.0297456831f, 0.0180143435f, -0.0421104282f};
    Mt19937 mt;
    mt19937_init(&mt, 42);
    std::vector<float> x(g->V * g->C);
    normal_fill(x.data(), x.size(), 0.0f, 0.02f, &mt);
    for (int i = 0; i < 4; i++) { CHECK(x[i] == wte[i], "%s wte[%d] = %.9g instead of %.9g", g->name, i, (double)x[i], (double)wte[i]); }
    CHECK(x.back() == g->wte_last, "%s wte last = %.9g instead of %.9g", g->name, (double)x.back(), (double)g->wte_last);
    x.resize(g->maxT * g->C);
    normal_fill(x.data(), x.size(), 0.0f, 0.02f, &mt);
    for (int i = 0; i < 4; i++) { CHECK(x[i] == g->wpe[i], "%s wpe[%d] = %.9g instead of %.9g", g->name, i, (double)x[i], (double)g->wpe[i]); }
    CHECK(x.back() == g->wpe_last, "%s wpe last = %.9g instead of %.9g", g->name, (double)x.back(), (double)g->wpe_last);
    const float residual_std = 0.02f * (1.0f / sqrtf(2.0f * (float)g->L));
    static const size_t sizes[4] = {3, 1, 4, 4};
    static const char* const names[4] = {"qkvw", "attprojw", "fcw", "fcprojw"};
    for (int l = 0; l < 2; l++) {
        for (int m = 0; m < 4; m++) {
            x.resize(sizes[m] * g->C * g->C);
            normal_fill(x.data(), x.size(), 0.0f, m % 2 ? residual_std : 0.02f, &mt);
            for (int i = 0; i < 2; i++) {
                float golden = g->matrices[l][m][i];
                CHECK(isnan(golden) || x[i] == golden, "%s layer %d %s[%d] = %.9g instead of %.9g", g->name, l, names[m], i, (double)x[i], (double)golden);
            }
        }
    }
}

static void test_rand_init_golden_small(void) {
    static const GoldenInit d6 = {"d6", 50257, 1024, 384, 6, -0.0191783588f, {-0.00599673158f, 0.0455095582f, 0.0517182872f, 0.000672199763f}, 0.00320826401f,
        {{{-0.0236073807f, 0.00809073728f}, {0.00692613423f, -0.00470263464f}, {0.0580950715f, 0.00124859484f}, {0.00849304441f, 0.00852636155f}},
         {{0.0167667922f, -0.00392153114f}, {NAN, NAN}, {NAN, NAN}, {-0.00433099968f, -0.000184589575f}}}};
    static const GoldenInit c384 = {"gpt3:c384", 50257, 2048, 384, 6, -0.0191783588f, {-0.00599673158f, 0.0455095582f, 0.0517182872f, 0.000672199763f},
        0.00721375458f,
        {{{0.00131325715f, -0.0537142754f}, {0.000702708843f, -0.000969831017f}, {0.00200404599f, 0.000449489191f}, {-0.00215305621f, 0.00178472558f}},
         {{0.0280552898f, 0.00829848181f}, {NAN, NAN}, {NAN, NAN}, {0.00238829758f, -0.00301819667f}}}};
    check_golden_init(&d6);
    check_golden_init(&c384);
}

static void test_rand_init_golden_d12(void) {
    static const GoldenInit d12 = {"d12", 50257, 1024, 768, 12, 0.00170378527f, {-0.00916235521f, -0.018614769f, -0.0294702277f, -0.00321658584f}, 0.016040463f,
        {{{-0.0045566773f, 0.00723999506f}, {0.00113274355f, 0.00542639615f}, {-0.0111787794f, 0.0200366024f}, {0.00437752157f, -0.00717385672f}},
         {{0.0248654913f, 0.0272317044f}, {NAN, NAN}, {NAN, NAN}, {-0.00515647139f, 0.0015953246f}}}};
    check_golden_init(&d12);
}

static void test_rand_normal_fill_tail_and_moments(void) {
    // n = 16 k + r: the last 16 values come from 16 more uniforms
    Mt19937 a, b;
    mt19937_init(&a, 3);
    mt19937_init(&b, 3);
    float x[16 * 5 + 7], y[16 * 5 + 7];
    const int n = 16 * 5 + 7;
    normal_fill(x, n, 1.0f, 2.0f, &a);
    for (int i = 0; i < n; i++) { y[i] = mt19937_f32(&b); }
    for (int i = 0; i < 5; i++) { normal_from_uniform16(y + 16 * i, 1.0f, 2.0f); }
    for (int i = 0; i < 16; i++) { y[n - 16 + i] = mt19937_f32(&b); }
    normal_from_uniform16(y + n - 16, 1.0f, 2.0f);
    CHECK(!memcmp(x, y, sizeof(x)), "the tail");
    CHECK(mt19937_u32(&a) == mt19937_u32(&b), "draws");

    // the largest and the smallest radius: uniforms 1 - 2^-24 and 0. Without the 1e-12 the first would be 8 float steps larger.
    float ends[16] = {1.0f - 1.0f / 16777216.0f};
    normal_from_uniform16(ends, 0.0f, 1.0f);
    double largest = sqrt(-2.0 * log(1.0 / 16777216.0 + 1e-12));
    CHECK(fabs((double)ends[0] - largest) <= 2 * 4.8e-7 && ends[1] == 0.0f && ends[8] == 0.0f, "%.9g, exactly %.9g; %g",
          (double)ends[0], largest, (double)ends[1]);

    const size_t many = 1 << 20;
    std::vector<float> z(many);
    normal_fill(z.data(), many, 0.0f, 1.0f, &a);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    for (float v : z) { double d = (double)v; m1 += d; m2 += d * d; m3 += d * d * d; m4 += d * d * d * d; }
    // five standard errors: those of the first four moments of N(0,1) are sqrt(1, 2, 15, 96) / sqrt(n)
    double s = 5 / sqrt((double)many);
    CHECK(fabs(m1 / many) < s && fabs(m2 / many - 1) < s * sqrt(2) && fabs(m3 / many) < s * sqrt(15) && fabs(m4 / many - 3) < s * sqrt(96), "%g %g %g %g",
          m1 / many, m2 / many, m3 / many, m4 / many);
}

static void test_rand_xorshift_golden(void) {
    static const uint32_t golden[] = {740755583u, 337499614u, 90980514u, 844950619u};
    static const float coins[] = {0.23031723f, 0.19051826f, 0.31086516f, 0.90265948f};
    uint64_t state = 13371337;
    for (uint32_t g : golden) { uint32_t x = random_u32(&state); CHECK(x == g, "%u instead of %u", x, g); }
    CHECK(state == 6779678296248701156ull, "state %llu", (unsigned long long)state);
    state = 1337;
    for (float g : coins) { float x = random_f32(&state); CHECK(fabsf(x - g) < 0.6e-8f, "coin %.9g instead of %.8f", (double)x, (double)g); }
}

// ----------------------------------------------------------------------------
// schedulers.h

static void test_schedulers_golden(void) {
    static const struct { int step; float cosine, linear, wsd; } rows[] = {
        {0, 6.00000021e-05f, 6.00000021e-05f, 6.00000021e-05f}, {4, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f},
        {9, 6.00000028e-04f, 6.00000028e-04f, 6.00000028e-04f}, {10, 6.00000028e-04f, 6.00000028e-04f, 6.00000028e-04f},
        {11, 5.99835534e-04f, 5.94000041e-04f, 6.00000028e-04f}, {55, 3.29999981e-04f, 3.30000010e-04f, 6.00000028e-04f},
        {80, 1.23168007e-04f, 1.80000003e-04f, 6.00000028e-04f}, {81, 1.17237098e-04f, 1.74000015e-04f, 4.79252340e-04f},
        {90, 7.62829950e-05f, 1.19999982e-04f, 2.18162357e-04f}, {99, 6.01644751e-05f, 6.59999787e-05f, 7.36731236e-05f},
        {100, 6.00000021e-05f, 5.99999912e-05f, 6.00000021e-05f},
    };
    LearningRate s = {SCHEDULE_COSINE, 6e-4f, 10, 100, 0.1f};
    for (auto& row : rows) {
        const float golden[] = {row.cosine, row.linear, row.step < 10 ? row.cosine : 6e-4f, row.wsd};  // constant: the same warmup, then the peak
        for (s.schedule = 0; s.schedule < SCHEDULE_COUNT; s.schedule++) {
            float x = learning_rate_get(&s, row.step);
            CHECK(x == golden[s.schedule], "schedule %d, step %d: %.9g instead of %.9g", s.schedule, row.step, (double)x, (double)golden[s.schedule]);
        }
    }
}

static void test_schedulers_edges_are_finite(void) {
    for (int schedule = 0; schedule < SCHEDULE_COUNT; schedule++) {
        for (int warmup : {0, 1, 5, 10, 20}) {
            for (int num_steps : {1, 2, 5, 10}) {
                LearningRate s = {schedule, 1e-3f, warmup, num_steps, 0.25f};
                for (int step = 0; step < 30; step++) {
                    float x = learning_rate_get(&s, step);
                    CHECK(x > 0.0f && x <= 1.0001e-3f, "schedule %d, warmup %d, steps %d, step %d: %g", schedule, warmup, num_steps, step, (double)x);
                    if (step >= num_steps && step >= warmup && schedule != SCHEDULE_CONSTANT) {
                        CHECK(fabsf(x - 0.25e-3f) < 1e-9f, "past the end: schedule %d, warmup %d, steps %d, step %d: %g",
                              schedule, warmup, num_steps, step, (double)x);
                    }
                }
            }
        }
    }
}

// ----------------------------------------------------------------------------
// sampler.h

// llm.c's rule, without the maximum
static int sample_softmax_plain(const float* logits, int n, float coin) {
    double norm = 0.0;
    for (int i = 0; i < n; i++) { norm += (double)expf(logits[i]); }
    float threshold = (float)((double)coin * norm), cdf = 0.0f;
    for (int i = 0; i < n; i++) {
        cdf += expf(logits[i]);
        if (threshold < cdf) { return i; }
    }
    return n - 1;
}

static void test_sampler_choices_are_llmcs(void) {
    // Both rules round: a coin within the rounding error of a boundary may fall to the neighbour. That error is that of a float sum of n terms,
    // n * 2^-24 at most, and a choice meets a boundary with that probability: 256 * 6e-8 * 20000 draws = 0.3 expected differences at most.
    TestRng rng = {test_seed()};
    int different = 0;
    for (int trial = 0; trial < 20000; trial++) {
        float logits[256];
        for (float& x : logits) { x = (float)(3.0 * test_rng_normal(&rng)); }
        float coin = (float)(test_rng_u64(&rng) >> 40) / 16777216.0f;
        int a = sample_softmax(logits, 256, coin, 1.0f, 0), b = sample_softmax_plain(logits, 256, coin);
        CHECK(abs(a - b) <= 1, "trial %d: %d, llm.c's rule %d", trial, a, b);
        different += a != b;
    }
    CHECK(different <= 3, "%d of 20000 choices differ", different);
}

static void test_sampler_frequencies(void) {
    static const float logits[5] = {0.0f, 1.0f, -2.0f, 2.0f, -INFINITY};
    for (float temperature : {0.5f, 1.0f, 2.0f}) {
        double p[5], norm = 0;
        int count[5] = {0};
        for (int i = 0; i < 5; i++) { norm += p[i] = exp((double)logits[i] / (double)temperature); }
        uint64_t state = 1337 + test_seed();
        const int n = 200000;
        for (int i = 0; i < n; i++) { count[sample_softmax(logits, 5, random_f32(&state), temperature, 0)]++; }
        for (int i = 0; i < 5; i++) {
            double expected = n * p[i] / norm, deviation = sqrt(expected * (1 - p[i] / norm));
            CHECK(fabs(count[i] - expected) <= 5 * deviation, "temperature %g, token %d: %d draws, %g expected", (double)temperature, i, count[i], expected);
        }
    }
}

static void test_sampler_edges(void) {
    const float big[4] = {100.0f, 1.0f, 1.0f, 1.0f}, small[4] = {-120.0f, -200.0f, -200.0f, -200.0f}, tie[4] = {1.0f, 5.0f, 5.0f, 0.0f};
    const float nan[3] = {1.0f, NAN, 2.0f}, inf[3] = {1.0f, INFINITY, 2.0f}, none[2] = {-INFINITY, -INFINITY}, masked[3] = {0.0f, 1.0f, -INFINITY};
    CHECK(sample_softmax(big, 4, 0.5f, 1.0f, 0) == 0 && sample_softmax(small, 4, 0.5f, 1.0f, 0) == 0, "over- and underflow");
    CHECK(sample_softmax(tie, 4, 0.99f, 0.0f, 0) == 1, "temperature 0: the first of the largest");
    CHECK(sample_softmax(nan, 3, 0.5f, 1.0f, 0) == -1 && sample_softmax(inf, 3, 0.5f, 1.0f, 0) == -1 && sample_softmax(none, 2, 0.5f, 1.0f, 0) == -1, "no distribution");
    CHECK(sample_softmax(tie, 0, 0.5f, 1.0f, 0) == -1, "no tokens");
    CHECK(sample_softmax(masked, 3, 0.99999994f, 1.0f, 0) == 1, "a token of probability 0 is never drawn");
    CHECK(sample_softmax(tie, 4, 0.0f, 1.0f, 0) == 0 && sample_softmax(tie, 4, 0.5f, 1e-30f, 0) == 2, "coin 0; a tiny temperature");
}

// Against a sorted list: k tokens at most, the largest, of equals the first; and all choices of every k are those of the row with the rest at -inf.
static void test_sampler_top_k(void) {
    TestRng rng = {test_seed()};
    for (int trial = 0; trial < 300; trial++) {
        const int n = trial % 3 == 0 ? 1 + trial / 3 : 97;
        std::vector<float> logits(n);
        for (float& x : logits) {
            double z = test_rng_normal(&rng);  // few values: ties everywhere; both zeros, negative, tiny and large ones
            x = trial % 2 ? (float)(3 * z) : z > 1 ? 2.0f : z > 0.5 ? -0.0f : z > 0 ? 0.0f : z > -0.5 ? -1.5f : z > -1 ? 1e-40f : z > -1.5 ? -1e-40f : -INFINITY;
        }
        logits[n / 2] = 1.0f;
        std::vector<int> order(n);
        for (int i = 0; i < n; i++) { order[i] = i; }
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
        for (int k : {1, 2, 3, 7, n / 2, n - 1, n, n + 1, 1 << 30}) {
            if (k < 1) { continue; }
            std::vector<float> cut(n, -INFINITY);
            for (int i = 0; i < k && i < n; i++) { cut[order[i]] = logits[order[i]]; }
            for (int draw = 0; draw < 20; draw++) {
                float coin = draw == 0 ? 0.0f : draw == 1 ? 0.99999994f : (float)(test_rng_u64(&rng) >> 40) / 16777216.0f, temperature = draw % 2 ? 1.0f : 5.0f;
                int got = sample_softmax(logits.data(), n, coin, temperature, k), want = sample_softmax(cut.data(), n, coin, temperature, 0);
                CHECK(got == want && cut[got] > -INFINITY, "trial %d, n %d, k %d, coin %.9g: %d, should be %d", trial, n, k, coin, got, want);
                CHECK(k > 1 || got == order[0], "k 1 drew %d, the first of the largest is %d", got, order[0]);
            }
            CHECK(sample_softmax(logits.data(), n, 0.9f, 0.0f, k) == order[0], "temperature 0, k %d", k);
        }
    }
    const float ties[5] = {1.0f, 1.0f, 1.0f, 1.0f, 0.0f};
    bool seen[5] = {false};
    for (int i = 0; i < 100; i++) { seen[sample_softmax(ties, 5, (float)i / 100, 1.0f, 3)] = true; }
    CHECK(seen[0] && seen[1] && seen[2] && !seen[3] && !seen[4], "three of four equal logits: %d %d %d %d %d", seen[0], seen[1], seen[2], seen[3], seen[4]);
    const float nan[3] = {1.0f, NAN, 2.0f};
    CHECK(sample_softmax(nan, 3, 0.5f, 1.0f, 1) == -1, "no distribution with top-k");
}

// ----------------------------------------------------------------------------
// outlier_detector.h

static void test_outlier_detector_scores(void) {
    OutlierDetector d;
    outlier_detector_init(&d);
    TestRng rng = {test_seed()};
    std::vector<double> all;
    for (int i = 0; i < 1000; i++) {
        double x = 100.0 + test_rng_uniform(&rng);
        all.push_back(x);
        double z = outlier_detector_update(&d, x);
        if (i < 128) { CHECK(isnan(z), "value %d has z %g", i, z); continue; }
        long double mean = 0, var = 0;
        for (int k = i - 127; k <= i; k++) { mean += (long double)all[k] / 128; }
        for (int k = i - 127; k <= i; k++) { var += ((long double)all[k] - mean) * ((long double)all[k] - mean) / 128; }
        double oracle = (double)(((long double)x - mean) / sqrtl(var));
        CHECK(fabs(z - oracle) < 1e-10, "value %d: z %.17g, oracle %.17g", i, z, oracle);  // 100 * 2^-52 / 0.29 = 8e-14 an operation
        CHECK(fabs(z) < 3.0, "uniform noise has z %g", z);  // its ends lie 1.73 deviations off
    }
    CHECK(outlier_detector_update(&d, 110.0) > 5.0, "an outlier");
}

static void test_outlier_detector_extremes(void) {
    OutlierDetector d;
    outlier_detector_init(&d);
    for (int i = 0; i < 300; i++) {
        double z = outlier_detector_update(&d, 0.1);
        CHECK(i < 128 ? isnan(z) : z == 0.0, "constant values, number %d: z %g", i, z);
    }
    double z = outlier_detector_update(&d, 1e6);
    CHECK(fabs(z - sqrt(127.0)) < 1e-6, "the largest z is %.9g", z);
    CHECK(!outlier_detector_skips(z, 0.0) && outlier_detector_skips(z, 11.0) && !outlier_detector_skips(z, 11.3) && !outlier_detector_skips(NAN, 1.0), "skips");
}

static void test_outlier_detector_survives_nan(void) {
    OutlierDetector a, b;
    outlier_detector_init(&a);
    outlier_detector_init(&b);
    TestRng rng = {test_seed()};
    for (int i = 0; i < 400; i++) {
        double x = test_rng_normal(&rng);
        if (i % 7 == 0) {
            CHECK(isnan(outlier_detector_update(&b, i % 14 ? NAN : INFINITY)), "a NaN has no z");
            CHECK(isnan(outlier_detector_update(&b, -INFINITY)), "an inf has no z");
        }
        double za = outlier_detector_update(&a, x), zb = outlier_detector_update(&b, x);
        CHECK(za == zb || (isnan(za) && isnan(zb)), "value %d: z %g without NaNs between, %g with", i, za, zb);
        CHECK(i < 128 || isfinite(zb), "value %d", i);
        if (i == 200) {  // saved and loaded as bytes
            OutlierDetector copy;
            memcpy(&copy, &b, sizeof(b));
            memset(&b, 0xff, sizeof(b));
            memcpy(&b, &copy, sizeof(b));
        }
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"rand_mt19937_golden", test_rand_mt19937_golden, QUICK},
        {"rand_uniform_fill_equals_single_draws", test_rand_uniform_fill_equals_single_draws, QUICK},
        {"rand_normal_fill_few_as_torch", test_rand_normal_fill_few_as_torch, QUICK},
        {"rand_normal_fill_tail_and_moments", test_rand_normal_fill_tail_and_moments, QUICK},
        {"rand_init_golden_small", test_rand_init_golden_small, QUICK},
        {"rand_init_golden_d12", test_rand_init_golden_d12, QUICK},
        {"rand_xorshift_golden", test_rand_xorshift_golden, QUICK},
        {"schedulers_golden", test_schedulers_golden, QUICK},
        {"schedulers_edges_are_finite", test_schedulers_edges_are_finite, QUICK},
        {"sampler_choices_are_llmcs", test_sampler_choices_are_llmcs, QUICK},
        {"sampler_frequencies", test_sampler_frequencies, QUICK},
        {"sampler_edges", test_sampler_edges, QUICK},
        {"sampler_top_k", test_sampler_top_k, QUICK},
        {"outlier_detector_scores", test_outlier_detector_scores, QUICK},
        {"outlier_detector_extremes", test_outlier_detector_extremes, QUICK},
        {"outlier_detector_survives_nan", test_outlier_detector_survives_nan, QUICK},
    };
    return TEST_MAIN(tests);
}
