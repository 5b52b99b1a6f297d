/* test_gpt_fp8.cu - the whole model and the whole program under test: parity with PyTorch, gradients, precisions, repetition, resume, refusals
 *
 * Includes the monolith. Parity (dev/test/parity.h): the numbers of an independent reference. The oracle here is a forward pass in double, written naively
 * and independently of the kernels; gradients are checked against its central differences. What must be equal bit for bit (repetition, resume, recompute
 * levels) is compared as bytes.
 *     ./test_gpt_fp8_cpu            all        ./test_gpt_fp8_cpu -q      only the quick ones (also the sanitizers' set)
 *     ./test_gpt_fp8_cpu --model M.bin --debug-state M_debug_state.bin    only the comparison with what llm.c's train_gpt2.py wrote; without the options its
 *                                                                         gpt2_124M*.bin and gpt2_124M_debug_state.bin are looked for in the working directory
 */
#define TESTING
#include "train_gpt_fp8.cu"
#include "dev/test/test.h"
#include "dev/test/parity.h"
#include "dev/test/parity_recipes.h"

// ---------------------------------------------------------------------------- a model without files

static const ModelHeader tiny = {32, 61, 128, 2, 2, 32};      // maxT, V, Vp, L, NH, C: V odd, hs 16
static const ModelHeader small = {64, 96, 128, 2, 4, 64};
static const ModelHeader padded[] = {{16, 61, 128, 2, 4, 20}, {16, 61, 128, 2, 4, 100}, {16, 61, 128, 2, 1, 24}, {16, 61, 128, 2, 3, 33}};  // hs 5, 25, 24, 11: here 8, 32, 32, 16

template <class floatX>
struct Model {
    Device dev;
    GPT<floatX> gpt;
    Options opt;
    std::vector<int> inputs, targets;
    int accum;
};

static void options_default(Options* o) {
    const char* argv[] = {"test"};
    options_parse(o, 1, (char**)argv);
}

// Tokens of a random process that a small model learns in a few hundred steps: three in four follow from the one before, the rest are small numbers
// more often than large ones. A function of the seed.
static void make_tokens(std::vector<int>* tokens, int count, int V, uint64_t seed) {
    TestRng rng = {seed * 7919 + 17};
    tokens->resize(count);
    int last = 1;
    for (int i = 0; i < count; i++) {
        double u = test_rng_uniform(&rng), r = test_rng_uniform(&rng);
        last = u < 0.75 ? (last * 5 + 1) % V : (int)(r * r * V);
        (*tokens)[i] = last;
    }
}

template <class floatX>
static void model_init(Model<floatX>* t, const ModelHeader* c, int B, int T, bool fp8, int recompute, uint64_t seed, const Fp8Recipe* recipe = &fp8_recipes[0], bool packed = false) {
    options_default(&t->opt);
    t->opt.seed = seed;
    device_init(&t->dev, 0);
    t->dev.tf32 = false;
    gpt_check_config(c, B, T, fp8);
    gpt_init(&t->gpt, &t->dev, c, fp8, recipe, false);
    t->gpt.fp8_activations = packed;
    t->gpt.samples = true;
    gpt_alloc_training(&t->gpt);
    gpt_alloc_activations(&t->gpt, B, T, recompute);
    gpt_plan(&t->gpt);
    gpt_init_llmc(&t->gpt, (uint32_t)seed);
    gpt_quantize_weights(&t->gpt);
    std::vector<int> tokens;
    make_tokens(&tokens, B * T + 1, c->vocab_size, seed);
    t->inputs.assign(tokens.begin(), tokens.end() - 1);
    t->targets.assign(tokens.begin() + 1, tokens.end());
}
template <class floatX>
static void model_free(Model<floatX>* t) {
    gpt_free(&t->gpt);
    device_free(&t->dev);
    delete t;
}
template <class floatX>
static float model_gradients(Model<floatX>* t) {
    GPT<floatX>* g = &t->gpt;
    gpt_micro_step(g, t->inputs.data(), t->targets.data(), g->B, g->T, 0, 1, (uint64_t)g->B * g->T);
    float loss, norm;
    gpt_loss_and_norm(g, g->B * g->T, (uint64_t)g->B * g->T, &loss, &norm);
    return loss;
}
// All elements of a tensor as doubles.
template <class floatX> static std::vector<double> fetch_param(GPT<floatX>* g, int p) {
    Values v = fetch_parameter(g, p);
    return std::vector<double>(v.begin(), v.end());
}
template <class floatX> static std::vector<double> fetch_grad(GPT<floatX>* g, int p) {
    Values v = fetch_gradient(g, p);
    return std::vector<double>(v.begin(), v.end());
}
static double cosine(const std::vector<double>& a, const std::vector<double>& b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); i++) { ab += a[i] * b[i]; aa += a[i] * a[i]; bb += b[i] * b[i]; }
    return aa == 0 && bb == 0 ? 1.0 : ab / sqrt(aa * bb);
}

// ---------------------------------------------------------------------------- the oracle: GPT-2's forward in double

typedef std::vector<std::vector<double>> OracleParams;  // [ParamId]

static void oracle_layernorm(std::vector<double>* out, const std::vector<double>& x, const double* w, const double* b, int N, int C) {
    out->resize((size_t)N * C);
    for (int n = 0; n < N; n++) {
        double mean = 0, var = 0;
        for (int c = 0; c < C; c++) { mean += x[n * C + c] / C; }
        for (int c = 0; c < C; c++) { var += (x[n * C + c] - mean) * (x[n * C + c] - mean) / C; }
        for (int c = 0; c < C; c++) { (*out)[n * C + c] = (x[n * C + c] - mean) / sqrt(var + 1e-5) * w[c] + b[c]; }
    }
}
static void oracle_linear(std::vector<double>* y, const std::vector<double>& x, const double* w, const double* b, int N, int C, int OC) {
    y->assign((size_t)N * OC, 0.0);
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            double sum = b ? b[o] : 0.0;
            for (int c = 0; c < C; c++) { sum += x[n * C + c] * w[o * C + c]; }
            (*y)[n * OC + o] = sum;
        }
    }
}
static double oracle_loss(const OracleParams& p, const ModelHeader* m, const std::vector<int>& inputs, const std::vector<int>& targets, int B, int T) {
    const int N = B * T, C = m->channels, NH = m->num_heads, hs = C / NH, V = m->vocab_size;
    std::vector<double> x((size_t)N * C), ln, qkv, y, branch, h;
    for (int n = 0; n < N; n++) { for (int c = 0; c < C; c++) { x[n * C + c] = p[P_wte][inputs[n] * C + c] + p[P_wpe][n % T * C + c]; } }
    for (int l = 0; l < m->num_layers; l++) {
        oracle_layernorm(&ln, x, &p[P_ln1w][l * C], &p[P_ln1b][l * C], N, C);
        oracle_linear(&qkv, ln, &p[P_qkvw][(size_t)l * 3 * C * C], &p[P_qkvb][l * 3 * C], N, C, 3 * C);
        y.assign((size_t)N * C, 0.0);
        for (int n = 0; n < N; n++) {
            for (int head = 0; head < NH; head++) {
                std::vector<double> a(n % T + 1);
                double top = -1e300, sum = 0;
                for (int u = 0; u <= n % T; u++) {
                    double s = 0;
                    for (int i = 0; i < hs; i++) { s += qkv[n * 3 * C + head * hs + i] * qkv[(n - n % T + u) * 3 * C + C + head * hs + i]; }
                    a[u] = s / sqrt((double)hs);
                    top = fmax(top, a[u]);
                }
                for (double& v : a) { v = exp(v - top); sum += v; }
                for (int u = 0; u <= n % T; u++) {
                    for (int i = 0; i < hs; i++) { y[n * C + head * hs + i] += a[u] / sum * qkv[(n - n % T + u) * 3 * C + 2 * C + head * hs + i]; }
                }
            }
        }
        oracle_linear(&branch, y, &p[P_attprojw][(size_t)l * C * C], &p[P_attprojb][l * C], N, C, C);
        for (size_t i = 0; i < x.size(); i++) { x[i] += branch[i]; }
        oracle_layernorm(&ln, x, &p[P_ln2w][l * C], &p[P_ln2b][l * C], N, C);
        oracle_linear(&h, ln, &p[P_fcw][(size_t)l * 4 * C * C], &p[P_fcb][l * 4 * C], N, C, 4 * C);
        for (double& v : h) { v = 0.5 * v * (1.0 + tanh(sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v))); }
        oracle_linear(&branch, h, &p[P_fcprojw][(size_t)l * 4 * C * C], &p[P_fcprojb][l * C], N, 4 * C, C);
        for (size_t i = 0; i < x.size(); i++) { x[i] += branch[i]; }
    }
    oracle_layernorm(&ln, x, p[P_lnfw].data(), p[P_lnfb].data(), N, C);
    double loss = 0;
    for (int n = 0; n < N; n++) {
        std::vector<double> z(V);
        double sum = 0;
        for (int v = 0; v < V; v++) {
            for (int c = 0; c < C; c++) { z[v] += ln[n * C + c] * p[P_wte][v * C + c]; }
            sum += exp(z[v]);
        }
        loss += (log(sum) - z[targets[n]]) / N;
    }
    return loss;
}
template <class floatX> static OracleParams oracle_params(GPT<floatX>* g) {
    OracleParams p(NUM_PARAMS);
    for (int i = 0; i < NUM_PARAMS; i++) { p[i] = fetch_param(g, i); }
    return p;
}

// Moves all biases and layernorm parameters off their special values, so that no gradient is trivially right.
template <class floatX> static void scramble(GPT<floatX>* g, uint64_t seed) {
    TestRng rng = {seed};
    for (int p = 0; p < NUM_PARAMS; p++) {
        if (g->spec[p].init > 0) { continue; }
        Values v(real_size(&g->spec[p]));
        for (float& x : v) { x = (float)(-g->spec[p].init - 1.0) + 0.1f * (float)test_rng_normal(&rng); }
        put_parameter(g, p, v);
    }
}

// Noise is measured on the program itself, so a defect could raise its own tolerance. It must not: sums of float32 in another order differ by few units
// in the last place of the largest term. 64 of them is ten times the worst measured here (5.9; 2026-11-30).
static void check_noise(const char* what, double noise, double largest) {
    if (getenv("TEST_VERBOSE")) { printf("    noise of %s: %.1f units of 2^-24 of the largest\n", what, noise / (5.96e-8 * largest)); }
    CHECK(noise <= 64.0 * 5.96e-8 * largest, "%s: order of the batch changes it by %g, which is more than rounding (largest value %g)", what, noise, largest);
}

// ---------------------------------------------------------------------------- gradients

// float32: loss near rounding; every tensor's gradient against central differences of the oracle. The bound is the program's own reduction noise,
// measured by giving it the sequences of the batch in another order (the same mathematics, other sums), times 8, plus the differences' own error,
// measured by two step sizes.
static void check_finite_differences(const ModelHeader* c, int B, int T) {
    Model<float> *t = new Model<float>(), *u = new Model<float>();
    model_init(t, c, B, T, false, 1, 3);
    scramble(&t->gpt, 5);
    OracleParams p = oracle_params(&t->gpt);
    double oracle = oracle_loss(p, c, t->inputs, t->targets, B, T);
    float loss = model_gradients(t);
    model_init(u, c, B, T, false, 1, 3);
    scramble(&u->gpt, 5);
    for (int b = 0; b < B; b++) {
        for (int i = 0; i < T; i++) { u->inputs[b * T + i] = t->inputs[(B - 1 - b) * T + i]; u->targets[b * T + i] = t->targets[(B - 1 - b) * T + i]; }
    }
    float permuted = model_gradients(u);
    check_noise("loss", fabs(permuted - loss), oracle);
    double loss_bound = 8.0 * fmax(fabs(permuted - loss), 1.2e-7 * oracle);
    CHECK(fabs(loss - oracle) <= loss_bound, "loss %.9g, oracle %.9g, bound %g", loss, oracle, loss_bound);
    TestRng rng = {11};
    for (int q = 0; q < NUM_PARAMS; q++) {
        std::vector<double> g = fetch_grad(&t->gpt, q), g2 = fetch_grad(&u->gpt, q);
        double noise = 0, largest = 0, worst = 0, worst_bound = 0;
        for (size_t i = 0; i < g.size(); i++) { noise = fmax(noise, fabs(g[i] - g2[i])); largest = fmax(largest, fabs(g[i])); }
        CHECK(largest > 0, "%s: all gradients are 0", t->gpt.spec[q].name);
        check_noise(t->gpt.spec[q].name, noise, largest);
        for (int k = 0; k < 12; k++) {
            size_t i = (size_t)(test_rng_uniform(&rng) * g.size());
            double old = p[q][i], d[2];
            for (int s = 0; s < 2; s++) {
                double h = s ? 2e-4 : 1e-4;
                p[q][i] = old + h;
                double up = oracle_loss(p, c, t->inputs, t->targets, B, T);
                p[q][i] = old - h;
                d[s] = (up - oracle_loss(p, c, t->inputs, t->targets, B, T)) / (2 * h);
            }
            p[q][i] = old;
            double bound = 8.0 * fmax(noise, 1.2e-7 * largest) + 2.0 * fabs(d[0] - d[1]) + 1e-10;
            worst = fmax(worst, fabs(g[i] - d[0]));
            worst_bound = fmax(worst_bound, bound);
            CHECK(fabs(g[i] - d[0]) <= bound, "%s[%zu]: gradient %.9g, finite difference %.9g, bound %g", t->gpt.spec[q].name, i, g[i], d[0], bound);
        }
        printf("    %-9s max|g| %.3e  worst error %.2e  bound %.2e\n", t->gpt.spec[q].name, largest, worst, worst_bound);
    }
    std::vector<double> dwte = fetch_grad(&t->gpt, P_wte);
    for (size_t i = (size_t)c->vocab_size * c->channels; i < dwte.size(); i++) { CHECK(dwte[i] == 0, "padded row %zu of wte has a gradient", i / c->channels); }
    model_free(t);
    model_free(u);
}
static void test_gpt_float32_gradients_match_finite_differences(void) { check_finite_differences(&tiny, 4, 11); }  // T odd: pitch of the score matrix, rows that are no multiple of 16
static void test_gpt_padded_gradients_match_finite_differences(void) {
    for (const ModelHeader& c : padded) {
        printf("    C %d, NH %d\n", c.channels, c.num_heads);
        check_finite_differences(&c, 2, 5);
    }
}

// The recipes that this device runs; none without FP8.
static std::vector<const Fp8Recipe*> runnable_recipes(void) {
    std::vector<const Fp8Recipe*> found;
    Device dev;
    device_init(&dev, 0);
    for (const Fp8Recipe& r : fp8_recipes) { if (fp8_recipe_runs(&r, dev.capability / 10, dev.capability % 10)) { found.push_back(&r); } }
    device_free(&dev);
    return found;
}

// bfloat16 and float8 against float32 from the same weights: cosine of every tensor's gradient. 0.95 is the gate that LLMQ uses for its FP8 recipe.
template <class floatX>
static void check_cosines(bool fp8, double gate, const Fp8Recipe* recipe = &fp8_recipes[0], const ModelHeader* c = &small, int T = 32) {
    const int B = 4;
    Model<bf16>* low = new Model<bf16>();
    Model<float>* full = new Model<float>();
    model_init(low, c, B, T, fp8, 1, 7, recipe);
    model_init(full, c, B, T, false, 1, 7);
    for (int p = 0; p < NUM_PARAMS; p++) {  // the same weights: those that bf16 holds
        put_parameter(&full->gpt, p, fetch_parameter(&low->gpt, p));
    }
    float a = model_gradients(low), b = model_gradients(full);
    printf("    loss %g, float32 %g\n", a, b);
    for (int p = 0; p < NUM_PARAMS; p++) {
        double c = cosine(fetch_grad(&low->gpt, p), fetch_grad(&full->gpt, p));
        printf("    %-9s cosine %.5f\n", low->gpt.spec[p].name, c);
        CHECK(c >= gate, "%s: cosine %g with float32 is below %g", low->gpt.spec[p].name, c, gate);
    }
    model_free(low);
    model_free(full);
}
static void test_gpt_bfloat16_gradients_point_as_float32(void) {
    check_cosines<bf16>(false, 0.999);
    for (const ModelHeader& c : padded) { check_cosines<bf16>(false, 0.999, &fp8_recipes[0], &c, 16); }
}
static void test_gpt_float8_gradients_point_as_float32(void) {
    NEEDS_FP8();
    for (const Fp8Recipe* r : runnable_recipes()) { printf("    %s\n", r->name); check_cosines<bf16>(true, 0.95, r); }
    for (const Fp8Recipe* r : runnable_recipes()) { check_cosines<bf16>(true, 0.95, r, &padded[1], 16); }
}

// ---------------------------------------------------------------------------- padding

// The values of llm.c's generator, in the order of a model without padding, in their places. --init fast has as many, of the right size.
static void test_gpt_padded_initial_values_are_those_of_the_model(void) {
    for (const ModelHeader& c : padded) {
        Model<float>* t = new Model<float>();
        model_init(t, &c, 1, 16, false, 1, 42);
        GPT<float>* g = &t->gpt;
        const size_t C = c.channels, weights[] = {3 * C * C, C * C, 4 * C * C, 4 * C * C};
        Mt19937 mt;
        mt19937_init(&mt, 42);
        std::vector<Values> due(NUM_PARAMS);
        auto draw = [&](int p, size_t n, float std) {
            const size_t at = due[p].size();
            due[p].resize(at + n);
            normal_fill(&due[p][at], n, 0.0f, std, &mt);
        };
        draw(P_wte, c.vocab_size * C, 0.02f);
        due[P_wte].resize(c.padded_vocab_size * C);
        draw(P_wpe, c.max_seq_len * C, 0.02f);
        for (int l = 0; l < c.num_layers; l++) { for (int i = 0; i < NUM_LINEARS; i++) { draw(linear_weight[i], weights[i], i % 2 ? 0.02f * (1.0f / sqrtf(4.0f)) : 0.02f); } }
        due[P_ln1w].assign(c.num_layers * C, 1.0f);
        due[P_ln2w] = due[P_ln1w];
        due[P_lnfw].assign(C, 1.0f);
        for (int p = 0; p < NUM_PARAMS; p++) {
            const Values v = fetch_parameter(g, p);
            if (due[p].empty()) { due[p].assign(v.size(), 0.0f); }
            CHECK(v == due[p], "C %d: %s has other values", c.channels, g->spec[p].name);
        }
        const uint64_t llmc = (c.padded_vocab_size + c.max_seq_len + 2) * C + c.num_layers * (12 * C * C + 13 * C);
        CHECK(g->num_parameters == llmc && gpt_count_parameters(&c) == llmc, "%llu parameters, llm.c has %llu", (unsigned long long)g->num_parameters, (unsigned long long)llmc);
        gpt_init_fast(g, 3);
        cudaCheck(cudaStreamSynchronize(t->dev.stream));
        for (int p = 0; p < NUM_PARAMS; p++) {
            const Values v = fetch_parameter(g, p);
            const double n = p == P_wte ? c.vocab_size * C : v.size(), init = g->spec[p].init, std = init < 0 ? -init - 1.0 : g->spec[p].residual ? 0.5 * init : init;
            double square = 0;
            for (float x : v) { square += (double)x * x / n; }
            CHECK(fabs(sqrt(square) - std) <= 0.15 * std, "C %d: --init fast gives %s a size of %g, not %g", c.channels, g->spec[p].name, sqrt(square), std);
        }
        model_free(t);
    }
}

// The padding of parameters, gradients, moments, masters and activations is exactly 0 after ten steps, with stochastic rounding and weight decay.
template <class floatX>
static void check_padding_stays_zero(const ModelHeader* c, bool fp8, const Fp8Recipe* recipe, MomentType moments, bool masters) {
    const int B = 2, T = 16;
    const size_t N = B * T, L = c->num_layers;
    Model<floatX>* t = new Model<floatX>();
    GPT<floatX>* g = &t->gpt;
    options_default(&t->opt);
    t->opt.weight_decay = 0.1f;
    device_init(&t->dev, 0);
    gpt_init(g, &t->dev, c, fp8, recipe, masters);
    g->moment_type = moments;
    gpt_alloc_training(g);
    gpt_alloc_activations(g, B, T, 0);
    gpt_init_llmc(g, 7);
    gpt_masters_from_params(g);
    gpt_quantize_weights(g);
    std::vector<int> tokens;
    make_tokens(&tokens, B * T + 1, c->vocab_size, 3);
    float loss = 0, norm, first = 0;
    for (int step = 0; step < 10; step++) {
        gpt_micro_step(g, tokens.data(), tokens.data() + 1, B, T, 0, 1, N);
        gpt_loss_and_norm(g, B * T, N, &loss, &norm);
        first = step ? first : loss;
        gpt_update(g, &t->opt, 3e-3f, norm, step);
    }
    cudaCheck(cudaStreamSynchronize(t->dev.stream));
    CHECK(loss < first && isfinite(norm), "C %d: loss %g, after ten steps %g", c->channels, first, loss);
    for (int p = 0; p < NUM_PARAMS; p++) {
        const ParamSpec* s = &g->spec[p];
        fetch_parameter(g, p);
        fetch_gradient(g, p);
        if (g->has_master) { without_padding("masters", s->shape, s->layers, fetch_values(g->master[p], s->size)); }
        float* m = (float*)device_alloc(&t->dev, MEM_SCRATCH, "moments", 2 * s->part * sizeof(float));
        for (int l = 0; l < s->layers; l++) {
            moments_unpack(moments, m, m + s->part, &g->moments[p], l, 0, s->part, t->dev.stream);
            cudaCheck(cudaStreamSynchronize(t->dev.stream));
            const Values mean = without_padding("m", s->shape, 1, fetch_values(m, s->part)), v = without_padding("v", s->shape, 1, fetch_values(m + s->part, s->part));
            CHECK(*std::max_element(v.begin(), v.end()) > 0 && *std::min_element(mean.begin(), mean.end()) < 0, "%s was not trained", s->name);
        }
        cudaCheck(cudaFree(m));
    }
    auto check = [&](const char* name, const floatX* x, size_t rows, PaddedAxis cols) {
        const Values v = without_padding(name, {{1, (int)rows, (int)rows}, cols}, 1, fetch_values(x, rows * padded_axis_length(cols)));
        CHECK(std::count(v.begin(), v.end(), 0.0f) < (int)v.size(), "%s is all 0", name);
    };
    const PaddedAxis channels = g->spec[P_qkvw].shape.cols, heads = g->spec[P_attprojw].shape.cols, hidden = g->spec[P_fcw].shape.rows, qkv = g->spec[P_qkvw].shape.rows;
    Activations<floatX>* a = &g->acts;
    check("residual", a->residual, (2 * L + 1) * N, channels);
    check("y", a->y, L * N, heads);
    check("h", a->h, L * N, hidden);
    check("dx", a->dx, N, channels);
    check("lnf", a->lnf, N, channels);
    check("dresidual", a->dresidual, N, channels);
    for (size_t l = 0; l < L; l++) { check("qkv", gpt_layer(g, (int)l, N).qkv, N, qkv); }
    model_free(t);
}
static void test_gpt_padding_stays_zero(void) {
    for (const ModelHeader& c : padded) {
        check_padding_stays_zero<float>(&c, false, NULL, MOMENT_F32, false);
        check_padding_stays_zero<bf16>(&c, false, NULL, MOMENT_F8, false);
        check_padding_stays_zero<bf16>(&c, false, NULL, MOMENT_BF16, true);
        for (const Fp8Recipe* r : runnable_recipes()) { if (c.channels < 100 || r == fp8_recipes) { check_padding_stays_zero<bf16>(&c, true, r, MOMENT_F32, false); } }  // 100: slow
    }
}

// ---------------------------------------------------------------------------- initial values

// llm.c's values for d6, to the last bit: generator, order of the tensors, scaling of the residual projections, padding.
static void test_gpt_initial_values_are_those_of_llmc(void) {
    const ModelHeader d6 = {1024, 50257, 50304, 6, 6, 384};
    Device dev;
    GPT<float> g;
    device_init(&dev, 0);
    gpt_init(&g, &dev, &d6, false, NULL, false);
    gpt_init_llmc(&g, 42);
    const size_t last = (size_t)50257 * 384 - 1;
    const struct { ParamId p; int layer; size_t at; float value; } golden[] = {
        {P_wte, 0, 0, 0.0385382995f}, {P_wte, 0, 1, 0.0297456831f}, {P_wte, 0, 2, 0.0180143435f}, {P_wte, 0, 3, -0.0421104282f}, {P_wte, 0, last, -0.0191783588f}, {P_wte, 0, last + 1, 0.0f},
        {P_wpe, 0, 0, -0.00599673158f}, {P_wpe, 0, 1024 * 384 - 1, 0.00320826401f}, {P_qkvw, 0, 0, -0.0236073807f}, {P_qkvw, 0, 1, 0.00809073728f}, {P_attprojw, 0, 0, 0.00692613423f},
        {P_attprojw, 0, 1, -0.00470263464f}, {P_fcw, 0, 0, 0.0580950715f}, {P_fcprojw, 0, 0, 0.00849304441f}, {P_fcprojw, 0, 1, 0.00852636155f}, {P_qkvw, 1, 0, 0.0167667922f},
        {P_qkvw, 1, 1, -0.00392153114f}, {P_fcprojw, 1, 0, -0.00433099968f}, {P_ln1w, 5, 7, 1.0f}, {P_lnfw, 0, 383, 1.0f}, {P_qkvb, 3, 11, 0.0f}, {P_lnfb, 0, 1, 0.0f}};
    for (auto& x : golden) {
        float value;
        cudaCheck(cudaMemcpy(&value, gpt_param(&g, x.p, x.layer) + x.at, sizeof(float), cudaMemcpyDeviceToHost));
        CHECK(value == x.value, "%s, layer %d, element %zu: %.9g instead of %.9g", g.spec[x.p].name, x.layer, x.at, value, x.value);
    }
    gpt_free(&g);
    device_free(&dev);
}

// ---------------------------------------------------------------------------- equalities

// The weights of one model in another, as the first holds them.
template <class A, class B> static void copy_weights(GPT<B>* to, GPT<A>* from) {
    for (int p = 0; p < NUM_PARAMS; p++) { put_parameter(to, p, fetch_parameter(from, p)); }
    gpt_quantize_weights(to);
}

template <class floatX> static uint64_t gradient_digest(GPT<floatX>* g) {
    Xxh64 h;
    xxh64_init(&h, 0);
    for (int p = 0; p < NUM_PARAMS; p++) {
        std::vector<char> bytes(gpt_grad_bytes(g, p));
        cudaCheck(cudaMemcpy(bytes.data(), g->grad[p], bytes.size(), cudaMemcpyDeviceToHost));
        xxh64_update(&h, bytes.data(), bytes.size());
    }
    return xxh64_digest(&h);
}
#define PARAM_NAME(name, ...) #name,
static const char* const param_names[NUM_PARAMS] = {PARAM_TABLE(PARAM_NAME)};
#undef PARAM_NAME

// What training's FP8 state is, without counts; 0 without FP8.
template <class floatX> static uint64_t scaling_digest(GPT<floatX>* g) {
    if (!g->fp8) { return 0; }
    const Fp8Scaling* s = &g->scaling;
    const size_t n = fp8_training_slots(s);
    Fp8ScalingHost h;
    Xxh64 x;
    fp8_scaling_copy(s, &h);
    xxh64_init(&x, 0);
    for (const void* array : {(const void*)h.amax, (const void*)h.amax_step, (const void*)h.scale, (const void*)h.descale}) { xxh64_update(&x, array, n * 4); }
    if (h.history) { xxh64_update(&x, h.history, n * s->settings.history * sizeof(unsigned)); }
    fp8_scaling_host_free(&h);
    return xxh64_digest(&x);
}
template <class floatX>
static void check_recompute(bool fp8, const Fp8Recipe* recipe = &fp8_recipes[0], int fusion = 0, bool packed = false) {
    uint64_t digest[4], state[4];
    const int first = packed ? 1 : fusion ? 1 : 0, last = packed ? 2 : 3;  // GELU of what came back, or of its own kernel, differs from forward's: level 0 has that
    for (int r = first; r <= last; r++) {
        Model<floatX>* t = new Model<floatX>();
        model_init(t, &small, 2, 32, fp8, r, 7, recipe, packed);
        t->gpt.gelu_fusion = fusion;
        t->gpt.fp8_fusion = r % 2;  // which changes no bit either
        for (int step = 0; step < 2; step++) {  // the second with a history, where there is one
            const float loss = model_gradients(t);
            gpt_update(&t->gpt, &t->opt, 1e-3f, loss, step);
        }
        model_gradients(t);
        digest[r] = gradient_digest(&t->gpt);
        state[r] = scaling_digest(&t->gpt);
        model_free(t);
    }
    for (int r = first + 1; r <= last; r++) {
        CHECK(digest[r] == digest[first], "gradients differ between recompute levels %d and %d: %016llx %016llx", first, r, (unsigned long long)digest[first], (unsigned long long)digest[r]);
        CHECK(state[r] == state[first], "recompute level %d leaves another FP8 state than level %d", r, first);
    }
}
static void test_gpt_recompute_levels_give_equal_bits(void) {
    check_recompute<float>(false);
    check_recompute<bf16>(false);
    check_recompute<float>(false, &fp8_recipes[0], 2);
    check_recompute<bf16>(false, &fp8_recipes[0], 1);
    for (const Fp8Recipe* r : runnable_recipes()) {
        check_recompute<bf16>(true, r);
        check_recompute<bf16>(true, r, 0, true);
    }
}

// Activations kept in FP8 change backward only: the loss and what forward quantizes are the same bits, and the next step with them; gradients point as those of
// float32 do, by the gate of every recipe. They repeat bit for bit, and nothing that came back is taken for what forward measured.
static void check_packed(const Fp8Recipe* recipe, bool wgrad_bf16) {
    uint64_t digest[2];
    float loss[3];
    std::vector<double> exact[NUM_PARAMS], got[NUM_PARAMS];
    Fp8ScalingHost h[2];
    for (int run = 0; run < 4; run++) {  // float32, kept in BF16, kept in FP8 twice
        const int which = run == 0 ? 2 : run == 1 ? 0 : 1;
        auto measure = [&](auto* t) {
            GPT<typename std::remove_reference<decltype(*t->gpt.param[0])>::type>* g = &t->gpt;
            loss[which] = model_gradients(t);
            if (run >= 2) { digest[run - 2] = gradient_digest(g); }
            for (int p = 0; p < NUM_PARAMS; p++) { (run ? got : exact)[p] = fetch_grad(g, p); }
            if (run == 1 || run == 2) { fp8_scaling_copy(&g->scaling, &h[run - 1]); }
        };
        if (run == 0) {
            Model<float>* t = new Model<float>();
            Model<bf16>* weights = new Model<bf16>();
            model_init(t, &small, 4, 32, false, 1, 7);
            model_init(weights, &small, 4, 32, false, 1, 7);
            copy_weights(&t->gpt, &weights->gpt);
            measure(t);
            model_free(t);
            model_free(weights);
        } else {
            Model<bf16>* t = new Model<bf16>();
            model_init(t, &small, 4, 32, true, 1, 7, recipe, run >= 2);
            t->gpt.fp8_wgrad_bf16 = wgrad_bf16;
            t->gpt.fp8_fusion = run == 3;
            measure(t);
            if (run == 2) {
                const int slots = fp8_slot(&t->gpt.scaling, FP8_ROLE_DY, 0, 0);
                CHECK(loss[0] == loss[1], "%s: the loss is %.9g with activations in FP8, %.9g without", recipe->name, loss[1], loss[0]);
                CHECK(!memcmp(h[0].amax_step, h[1].amax_step, slots * 4) && !memcmp(h[0].amax, h[1].amax, slots * 4) && !memcmp(h[0].scale, h[1].scale, slots * 4),
                      "%s: backward changed the FP8 state of what forward measured", recipe->name);
            }
            if (run == 3) { CHECK(digest[0] == digest[1], "%s: activations in FP8 do not repeat", recipe->name); }
            model_free(t);
            for (int p = 0; p < NUM_PARAMS; p++) {
                const double c = cosine(got[p], exact[p]);
                if (run < 3) { printf("    %-8s kept in %s: %-9s cosine %.5f\n", recipe->name, run == 1 ? "BF16" : "FP8 ", param_names[p], c); }
                CHECK(c >= 0.95, "%s, kept in %s, gradient %d: cosine %g with float32 is below 0.95", recipe->name, run == 1 ? "BF16" : "FP8", p, c);
            }
        }
    }
    for (Fp8ScalingHost& each : h) { fp8_scaling_host_free(&each); }
}
static void test_gpt_activations_in_float8_point_as_float32(void) {
    NEEDS_FP8();
    for (const Fp8Recipe* r : runnable_recipes()) { check_packed(r, false); }
    check_packed(&fp8_recipes[0], true);
}
// Kernels that write FP8 codes themselves, against separate ones: gradients after two updates, so that weights and histories were written both ways; bytes of
// quantizing and transposing a token and layer, in C, of the last step, with attention's output and gradient written by a library: 8C more than if they were fused.
static void test_gpt_fused_producers_give_equal_bits(void) {
    for (const Fp8Recipe* r : runnable_recipes()) {
        for (int recompute = 0; recompute < 3; recompute++) {
            uint64_t digest[2];
            double traffic[2];
            bool keep_t = false;
            for (int fusion = 0; fusion < 2; fusion++) {
                Model<bf16>* t = new Model<bf16>();
                model_init(t, &small, 2, 32, true, recompute, 7, r);
                t->gpt.fp8_fusion = fusion;
                for (int step = 0; step < 3; step++) {
                    t->gpt.scaling.traffic = 0;
                    const float loss = model_gradients(t);
                    if (step < 2) { gpt_update(&t->gpt, &t->opt, 1e-3f, loss, step); }
                }
                digest[fusion] = gradient_digest(&t->gpt);
                traffic[fusion] = (double)t->gpt.scaling.traffic / (2 * 32 * small.num_layers * small.channels);
                keep_t = t->gpt.fp8_keep_t;
                model_free(t);
            }
            CHECK(digest[0] == digest[1], "recipe %s, recompute %d: gradients differ", r->name, recompute);
            // 16C elements: x of qkv, attproj, fc, fcproj 7C, dY 9C; each written once an order; BF16 read by every pass
            const double orders = keep_t ? 2.0 : 1.0, again = (recompute > 0 ? 4 : 0) + (recompute > 1 ? 2 : 0);  // recomputed x: read again, and without t its code made again
            const bool fuses = r->passes == 1, fuses_again = r->by_x != FP8_BY_ROW;
            const double codes = 16 * orders + (keep_t ? 0.0 : again), passes = r->by_x == FP8_BY_ROW ? 2.0 : 1.0, library = r->passes == 2 && r->by_x == FP8_BY_TENSOR ? 8.0 : 0.0;
            const double apart = codes + 2 * passes * (16 + again) + library;
            const double read = fuses ? 8.0 : 2 * passes * 16 + library;
            const double fused = codes + read + (fuses_again ? 0.0 : 2 * passes * again);
            CHECK(fabs(traffic[0] - apart) < 1e-9, "recipe %s, recompute %d: separate kernels move %.3f C, not %.3f C", r->name, recompute, traffic[0], apart);
            CHECK(fabs(traffic[1] - fused) < 1e-9, "recipe %s, recompute %d: fused kernels move %.3f C, not %.3f C", r->name, recompute, traffic[1], fused);
        }
    }
}

// A global batch in 1, 2 or 4 micro-steps, or in such that do not divide it: in some, rows or positions only fill up and have no target. float32 losses over 8
// steps differ by reduction noise only. The noise is measured: the same batch with its sequences in reverse order.
static void test_gpt_micro_steps_split_changes_only_noise(void) {
    const int S = 8, T = 16, steps = 8;
    const struct { int B, Tp; bool reversed; } variants[] = {{S, T, true}, {S, T, false}, {4, T, false}, {2, T, false}, {3, T, false}, {16, T, false}, {S, T + 5, false}};
    const ModelHeader longer = [] { ModelHeader c = small; c.max_seq_len = max(c.max_seq_len, 32); return c; }();
    std::vector<int> tokens;
    make_tokens(&tokens, steps * S * (T + 1), small.vocab_size, 5);
    std::vector<std::vector<float>> losses;
    for (auto& v : variants) {
        const int B = v.B, Tp = v.Tp, accum = CEIL_DIV(S, B);
        Model<float>* t = new Model<float>();
        model_init(t, &longer, B, Tp, false, 1, 9);
        std::vector<float> curve;
        for (int step = 0; step < steps; step++) {
            for (int micro = 0; micro < accum; micro++) {
                for (int b = 0; b < B; b++) {
                    int sequence = v.reversed ? S - 1 - (micro * B + b) : micro * B + b;
                    const bool fills = sequence >= S;
                    const int* from = &tokens[(step * S + (fills ? 0 : sequence)) * (T + 1)];
                    for (int i = 0; i < Tp; i++) {
                        t->inputs[b * Tp + i] = from[i < T ? i : T];
                        t->targets[b * Tp + i] = i < T && !fills ? from[i + 1] : NO_TARGET;
                    }
                }
                gpt_micro_step(&t->gpt, t->inputs.data(), t->targets.data(), B, Tp, micro, accum, (uint64_t)S * T);
            }
            float loss, norm;
            gpt_loss_and_norm(&t->gpt, B * Tp, (uint64_t)S * T, &loss, &norm);
            gpt_update(&t->gpt, &t->opt, 1e-3f, norm, step);
            curve.push_back(loss);
        }
        losses.push_back(curve);
        model_free(t);
    }
    double noise = 0;
    for (int s = 0; s < steps; s++) { noise = fmax(noise, fabs(losses[1][s] - losses[0][s])); }
    check_noise("losses", noise, losses[0][0]);
    noise = fmax(noise, 2.4e-7 * losses[0][0]);  // one unit in the last place of a loss
    for (size_t v = 2; v < losses.size(); v++) {
        for (int s = 0; s < steps; s++) {
            CHECK(fabs(losses[v][s] - losses[1][s]) <= 4 * noise, "step %d, B %d, T %d: loss %.9g, all at once %.9g, noise %g", s, variants[v].B, variants[v].Tp, losses[v][s], losses[1][s], noise);
        }
    }
    printf("    reduction noise %.2e over %d steps\n", noise, steps);
}

// Training state after a few float8 steps satisfies the invariants; evaluation leaves every training slot as it was (I7).
static void check_scaling_state(const Fp8Recipe* recipe) {
    Model<bf16>* t = new Model<bf16>();
    model_init(t, &small, 2, 32, true, 1, 7, recipe);
    t->gpt.scaling.count_on = true;
    Fp8Scaling* s = &t->gpt.scaling;
    Fp8ScalingHost before, after;
    char message[256];
    for (int step = 0; step < 3; step++) {
        for (int micro = 0; micro < 2; micro++) { gpt_micro_step(&t->gpt, t->inputs.data(), t->targets.data(), 2, 32, micro, 2, 128); }
        float loss, norm;
        gpt_loss_and_norm(&t->gpt, 64, 128, &loss, &norm);
        gpt_update(&t->gpt, &t->opt, 1e-3f, norm, step);
        fp8_scaling_copy(s, &before);
        const char* broken = fp8_scaling_check(s, &before, 0, s->count, 64ull * 256 * 2 * 4 * 8, message);
        CHECK(!broken, "%s", broken);
        for (int i = 0; i < fp8_slot(s, FP8_ROLE_EVAL_X, 0, 0); i++) { CHECK(before.amax[i] != 0, "slot %d was not used in training", i); }
        if (step < 2) { fp8_scaling_host_free(&before); }
    }
    cudaCheck(cudaMemcpy(t->gpt.acts.inputs, t->inputs.data(), 64 * sizeof(int), cudaMemcpyHostToDevice));
    cudaCheck(cudaDeviceSynchronize());
    gpt_forward_trunk(&t->gpt, 2, 32, 0, FP8_ROLE_EVAL_X);
    fp8_scaling_copy(s, &after);
    int training = fp8_slot(s, FP8_ROLE_EVAL_X, 0, 0);
    CHECK(!memcmp(before.amax, after.amax, training * 4) && !memcmp(before.scale, after.scale, training * 4) && !memcmp(before.amax_step, after.amax_step, training * 4) &&
          !memcmp(before.counts, after.counts, training * 16), "evaluation changed the scaling state of training (I7)");
    fp8_scaling_host_free(&before);
    CHECK(!fp8_scaling_check(s, &after, 0, s->count, 0, message), "%s", message);
    fp8_scaling_host_free(&after);
    model_free(t);
}
static void test_gpt_float8_scaling_invariants_hold(void) {
    NEEDS_FP8();
    for (const Fp8Recipe* r : runnable_recipes()) { check_scaling_state(r); }
}

// One batch again and again: the loss falls towards 0 in every precision.
template <class floatX> static float overfit(bool fp8, int steps) {
    Model<floatX>* t = new Model<floatX>();
    model_init(t, &small, 2, 32, fp8, 1, 7);
    float loss = 0, norm;
    for (int step = 0; step < steps; step++) {
        gpt_micro_step(&t->gpt, t->inputs.data(), t->targets.data(), 2, 32, 0, 1, 64);
        gpt_loss_and_norm(&t->gpt, 64, 64, &loss, &norm);
        gpt_update(&t->gpt, &t->opt, 3e-3f, norm, step);
    }
    model_free(t);
    return loss;
}
static void test_gpt_overfits_one_batch_in_every_precision(void) {
    float f32 = overfit<float>(false, 100), b16 = overfit<bf16>(false, 100), f8 = device_lacks_fp8() ? b16 : overfit<bf16>(true, 100);
    printf("    loss after 100 steps: float32 %g, bfloat16 %g, float8 %g\n", f32, b16, f8);
    CHECK(f32 < 0.2f && b16 < 0.2f && f8 < 0.2f, "a batch of 64 tokens was not learnt: float32 %g, bfloat16 %g, float8 %g", f32, b16, f8);
}

// A product that applies GELU gives the gradients of the separate kernels: in float32 up to rounding; in bfloat16 within twice the error that the
// separate kernels have against float32.
template <class floatX> static std::vector<std::vector<double>> fused_gradients(int fusion, int recompute) {
    Model<floatX>* t = new Model<floatX>();
    model_init(t, &small, 2, 32, false, recompute, 7);
    Model<bf16>* weights = new Model<bf16>();
    model_init(weights, &small, 2, 32, false, 1, 7);
    scramble(&weights->gpt, 5);
    copy_weights(&t->gpt, &weights->gpt);
    t->gpt.gelu_fusion = fusion;
    model_gradients(t);
    std::vector<std::vector<double>> g(NUM_PARAMS);
    for (int p = 0; p < NUM_PARAMS; p++) { g[p] = fetch_grad(&t->gpt, p); }
    model_free(t);
    model_free(weights);
    return g;
}
static void test_gpt_gelu_fusion_gives_the_same_gradients(void) {
    auto largest_difference = [](const std::vector<double>& a, const std::vector<double>& b) {
        double worst = 0;
        for (size_t i = 0; i < a.size(); i++) { worst = fmax(worst, fabs(a[i] - b[i])); }
        return worst;
    };
    for (int recompute = 0; recompute < 2; recompute++) {
        auto exact = fused_gradients<float>(0, recompute), plain = fused_gradients<bf16>(0, recompute);
        for (int fusion = 1; fusion <= 2; fusion++) {
            auto fused = fused_gradients<float>(fusion, recompute), low = fused_gradients<bf16>(fusion, recompute);
            for (int p = 0; p < NUM_PARAMS; p++) {
                const std::vector<double> zero(exact[p].size(), 0.0);
                char name[64];
                snprintf(name, sizeof(name), "gradient %d with fusion %d", p, fusion);
                check_noise(name, largest_difference(fused[p], exact[p]), largest_difference(exact[p], zero));
                double error = largest_difference(low[p], exact[p]), allowed = 2.0 * largest_difference(plain[p], exact[p]);
                CHECK(error <= allowed, "bfloat16, recompute %d, fusion %d, gradient %d: error %g, twice that of the separate kernels is %g", recompute, fusion, p, error, allowed);
            }
        }
    }
}

// A token through the key-value cache gives the logits of the whole context at once: in float32 up to rounding, else within twice the error that the
// whole pass has against float32.
template <class floatX>
static void check_cache(bool fp8, int recompute = 1, bool packed = false, const ModelHeader* c = &small) {
    const int T = c->max_seq_len;
    Model<floatX>* t = new Model<floatX>();
    Model<float>* exact = new Model<float>();
    model_init(t, c, packed ? 2 : 1, T, fp8, recompute, 7, &fp8_recipes[0], packed);
    model_init(exact, c, 1, T, false, 1, 7);
    scramble(&t->gpt, 5);
    gpt_quantize_weights(&t->gpt);
    copy_weights(&exact->gpt, &t->gpt);
    std::vector<int> tokens;
    make_tokens(&tokens, T, c->vocab_size, 3);
    std::vector<std::vector<float>> one(T + 1), whole(T + 1), truth(T + 1);
    int cached = 0, none = 0;
    const int first = 5;
    for (int n = first; n <= T; n++) { gpt_next_logits(&t->gpt, tokens.data(), n, &cached, &one[n]); CHECK(cached == n, "%d tokens are cached, not %d", cached, n); }
    double error_one = 0, error_whole = 0, difference = 0, largest = 0;
    for (int n = first; n <= T; n++) {
        none = 0;
        gpt_next_logits(&t->gpt, tokens.data(), n, &none, &whole[n]);
        none = 0;
        gpt_next_logits(&exact->gpt, tokens.data(), n, &none, &truth[n]);
        for (int v = 0; v < c->vocab_size; v++) {
            error_one = fmax(error_one, fabs(one[n][v] - truth[n][v]));
            error_whole = fmax(error_whole, fabs(whole[n][v] - truth[n][v]));
            difference = fmax(difference, fabs(one[n][v] - whole[n][v]));
            largest = fmax(largest, fabs(truth[n][v]));
        }
    }
    printf("    error through the cache %g, at once %g, of %g\n", error_one, error_whole, largest);
    if (sizeof(floatX) == 4) { check_noise("logits through the cache", difference, largest); }
    else { CHECK(error_one <= 2.0 * error_whole, "error through the cache %g, twice that of the whole pass is %g", error_one, 2.0 * error_whole); }
    model_free(t);
    model_free(exact);
}
// Sampling runs no product that was not planned before, whatever the prompt: shorter and longer than the context, sliding, odd.
template <class floatX> static void check_sampling_plans(bool fp8) {
    const int T = fp8 ? 48 : 45;
    for (size_t start : {1, 16, 17, 44, 45, 60, 100}) {
        Model<floatX>* t = new Model<floatX>();
        model_init(t, &small, 1, T, fp8, 1, 7);
        std::vector<int> tokens;
        make_tokens(&tokens, start + 70, small.vocab_size, 3);
        gpt_plan_sampling(&t->gpt, t->gpt.T, start, start + 70);
        const size_t planned = t->dev.plans.size();
        std::vector<float> logits, whole;
        int cached = 0;
        for (size_t n = start; n < start + 70; n++) {
            const int context = sample_context(n, T);
            if (context <= cached) { cached = 0; }
            gpt_next_logits(&t->gpt, tokens.data() + n - context, context, &cached, &logits);
        }
        CHECK(t->dev.plans.size() == planned, "sampling after %zu tokens ran %zu products that were not planned", start, t->dev.plans.size() - planned);
        if (sizeof(floatX) == 4) {  // and after all that sliding the cache still holds what a whole pass gives
            int none = 0;
            const int context = sample_context(start + 69, T);
            gpt_next_logits(&t->gpt, tokens.data() + start + 69 - context, context, &none, &whole);
            double difference = 0, largest = 0;
            for (size_t v = 0; v < whole.size(); v++) { difference = fmax(difference, fabs(whole[v] - logits[v])); largest = fmax(largest, fabs(whole[v])); }
            check_noise("logits after sliding", difference, largest);
        }
        model_free(t);
    }
}
static void test_gpt_sampling_is_planned(void) {
    check_sampling_plans<float>(false);
    check_sampling_plans<bf16>(false);
    if (!device_lacks_fp8()) { check_sampling_plans<bf16>(true); }
}

static void test_gpt_cache_equals_the_whole_pass(void) {
    check_cache<float>(false);
    check_cache<bf16>(false);
    check_cache<bf16>(false, 3);
    if (!device_lacks_fp8()) {
        check_cache<bf16>(true);
        check_cache<bf16>(true, 3);
        check_cache<bf16>(true, 1, true);
    }
    for (const ModelHeader& c : padded) {
        check_cache<float>(false, 1, false, &c);
        check_cache<bf16>(false, 1, false, &c);
        if (!device_lacks_fp8()) { check_cache<bf16>(true, 1, true, &c); }
    }
}

// ---------------------------------------------------------------------------- the program

typedef struct { std::vector<std::string> args; } Command;
static void run_command(void* arg) {
    Command* c = (Command*)arg;
    std::vector<char*> argv;
    for (auto& a : c->args) { argv.push_back((char*)a.c_str()); }
    argv.push_back(NULL);
    exit(trainer_main((int)c->args.size(), argv.data()));
}
// The command line that a line is, split at blanks.
static std::vector<std::string> command_args(const std::string& line) {
    std::vector<std::string> args(1, "train_gpt_fp8");
    size_t at = 0;
    while (at < line.size()) {
        size_t end = line.find(' ', at);
        if (end == std::string::npos) { end = line.size(); }
        if (end > at) { args.push_back(line.substr(at, end - at)); }
        at = end + 1;
    }
    return args;
}
// Returns the exit code, all output in *out.
static int trainer(const std::string& line, std::string* out) {
    Command c = {command_args(line)};
    return test_child(run_command, &c, out);
}

// A folder with byte data and a tokenizer; its name ends up in *dir.
static void make_data(std::string* dir) {
    char name[] = "/tmp/gpt_fp8_test_XXXXXX";
    if (!mkdtemp(name)) { perror("mkdtemp"); exit(1); }
    *dir = name;
    for (int set = 0; set < 2; set++) {
        std::vector<int> tokens;
        make_tokens(&tokens, set ? 1500 : 30000, 96, 21 + set);
        FILE* f = fopenCheck((*dir + (set ? "/val.bin" : "/train.bin")).c_str(), "wb");
        int32_t header[256] = {20240520, 1, (int32_t)tokens.size()};
        fwrite(header, 4, 256, f);
        for (int t : tokens) { uint16_t u = (uint16_t)(32 + t % 96); fwrite(&u, 2, 1, f); }
        fclose(f);
    }
    FILE* f = fopenCheck((*dir + "/tokenizer.bin").c_str(), "wb");
    uint32_t header[256] = {20240328, 2, 256, 0};
    fwrite(header, 4, 256, f);
    for (int i = 0; i < 256; i++) { unsigned char entry[2] = {1, (unsigned char)i}; fwrite(entry, 1, 2, f); }
    fclose(f);
}
static void remove_folder(const std::string& dir) { if (system(("rm -rf " + dir).c_str()) != 0) { exit(1); } }
static std::string base(const std::string& dir, int channels = 64) {
    return "-i " + dir + "/train.bin -j " + dir + "/val.bin --layers 2 --channels " + std::to_string(channels) + " --heads 4 -b 2 -t 32 -d 128 -l 3e-3 -u 2 -v 4 -m 2 -s 0 ";
}
// The lines that hold numbers of training, without times.
static std::string numbers_of(const std::string& out) {
    std::string kept;
    size_t at = 0;
    while (at < out.size()) {
        size_t end = out.find('\n', at);
        if (end == std::string::npos) { end = out.size(); }
        std::string line = out.substr(at, end - at);
        if (line.compare(0, 5, "step ") == 0) { kept += line.substr(0, line.find("| lr")) + "\n"; }
        if (line.compare(0, 8, "val loss") == 0) { kept += line + "\n"; }
        at = end + 1;
    }
    return kept;
}

// What stands between the two lines of --- of the last sample.
static std::string sample_of(const std::string& out) {
    size_t end = out.rfind("\n---\n"), begin = end == std::string::npos ? end : out.rfind("---\n", end - 1);
    CHECK(begin != std::string::npos, "no sample in\n%s", out.c_str());
    return out.substr(begin + 4, end - begin - 4);
}
static void check_resume(const char* dtype, const char* more, int channels = 64) {
    std::string dir, whole, first, second;
    make_data(&dir);
    std::string args = base(dir, channels) + "--dtype " + dtype + " " + more + " -x 8 -n 4 ";
    CHECK(trainer(args + "-o " + dir + "/a", &whole) == 0, "%s", whole.c_str());
    // the same in two parts: the second process resumes at step 4 of a run that was stopped there
    CHECK(trainer(args + "-o " + dir + "/b", &first) == 0, "%s", first.c_str());
    for (const char* f : {"DONE_00000008", "model_00000008.bin", "state_00000008_00000.bin"}) { unlink((dir + "/b/" + f).c_str()); }
    CHECK(trainer(args + "-y 1 -o " + dir + "/b", &second) == 0, "%s", second.c_str());
    CHECK(second.find("resuming from step 4") != std::string::npos, "%s", second.c_str());
    CHECK(test_read_file(dir + "/a/model_00000008.bin") == test_read_file(dir + "/b/model_00000008.bin"), "%s: the model differs after a resume\n%s\n%s", dtype, whole.c_str(), second.c_str());
    // the state's text records the command line, which differs by folder: compare section payloads
    StateReader ra, rb;
    FileError error;
    fileCheck(state_read_open(&ra, (dir + "/a/state_00000008_00000.bin").c_str(), &error), &error);
    fileCheck(state_read_open(&rb, (dir + "/b/state_00000008_00000.bin").c_str(), &error), &error);
    CHECK(ra.header.num_sections == rb.header.num_sections && ra.header.num_sections >= 4, "%u and %u sections", ra.header.num_sections, rb.header.num_sections);
    for (uint32_t i = 0; i < ra.header.num_sections; i++) {
        CHECK(ra.sections[i].xxh64 == rb.sections[i].xxh64, "%s: section %s differs after a resume", dtype, ra.sections[i].name);
    }
    state_read_close(&ra);
    state_read_close(&rb);
    std::string tail = numbers_of(second), all = numbers_of(whole);
    CHECK(all.size() > tail.size() && all.compare(all.size() - tail.size(), tail.size(), tail) == 0, "losses differ:\n%s\n--\n%s", all.c_str(), tail.c_str());
    remove_folder(dir);
}
static void test_trainer_resume_equals_uninterrupted_float8(void) { NEEDS_FP8(); check_resume("float8", ""); }
static void test_trainer_resume_equals_uninterrupted_bfloat16(void) { check_resume("bfloat16", ""); }
static void test_trainer_resume_equals_uninterrupted_float32(void) { check_resume("float32", ""); }
static void test_trainer_resume_equals_uninterrupted_packed(void) { NEEDS_FP8(); check_resume("float8", "--fp8-activations --moment-dtype float8 --fp8-recipe delayed -s 3"); }
static void test_trainer_resume_equals_uninterrupted_whole(void) { NEEDS_FP8(); check_resume("float8", "-r 3 -s 3"); }
static void test_trainer_resume_equals_uninterrupted_masters(void) { NEEDS_FP8(); check_resume("float8", "-w 1 -r 2 -sl 5 -sg 5"); }

// A checkpoint of every recipe goes on with every other one: scales that lie with the codes do not inherit those of tensors, and the state's invariants hold.
static void test_trainer_resume_with_another_recipe(void) {
    NEEDS_FP8();
    std::string dir, out;
    make_data(&dir);
    for (const Fp8Recipe* from : runnable_recipes()) {
        const std::string folder = dir + "/" + from->name;
        CHECK(trainer(base(dir) + "--dtype float8 -x 3 -n 3 --fp8-recipe " + from->name + " -o " + folder, &out) == 0, "%s", out.c_str());
        for (const Fp8Recipe* to : runnable_recipes()) {
            CHECK(trainer(base(dir) + "--dtype float8 -y 1 -x 5 --fp8-stats-every 1 --fp8-recipe " + to->name + " -o " + folder, &out) == 0 &&
                  out.find("step    5/5") != std::string::npos, "%s to %s: %s", from->name, to->name, out.c_str());
        }
    }
    remove_folder(dir);
}

// A model with padding, saved and resumed to the bit; its file has the size of llm.c's format, and the text it makes is that of the run that wrote it.
static void test_trainer_padded_checkpoints(void) {
    std::string dir, out, again;
    make_data(&dir);
    for (const char* dtype : {"float32", "bfloat16", "float8"}) {
        if (!strcmp(dtype, "float8") && device_lacks_fp8()) { continue; }
        const std::string w = !strcmp(dtype, "bfloat16") ? " -w 1 --moment-dtype float8" : !strcmp(dtype, "float32") ? " --background-save=0" : "";
        check_resume(dtype, w.c_str(), 100);
        const std::string folder = dir + "/" + dtype, file = folder + "/model_00000003.bin";
        CHECK(trainer(base(dir, 20) + "--tokenizer " + dir + "/tokenizer.bin -x 3 -n 3 -s 3 -g 40 --dtype " + dtype + w + " -o " + folder, &out) == 0, "%s", out.c_str());
        const uint64_t C = 20, T = 32, parameters = (256 + T + 2) * C + 2 * (12 * C * C + 13 * C), bytes = 1024 + parameters * (!strcmp(dtype, "float32") ? 4 : 2);
        CHECK(test_read_file(file).size() == bytes, "%s: the model has %zu bytes, llm.c's format %llu", dtype, test_read_file(file).size(), (unsigned long long)bytes);
        CHECK(trainer("--sample-only -t 32 -g 40 --tokenizer " + dir + "/tokenizer.bin --dtype " + dtype + " -e " + file, &again) == 0, "%s", again.c_str());
        CHECK(sample_of(again) == sample_of(out), "%s: the file's model says '%s', not '%s'", dtype, sample_of(again).c_str(), sample_of(out).c_str());
        CHECK(out.find("filled up with zeros to 32 with heads of 8") != std::string::npos && out.find("num_parameters: " + std::to_string(parameters)) != std::string::npos, "%s", out.c_str());
    }
    CHECK(trainer(base(dir, 20) + "--plan --dtype bfloat16", &out) == 0 && out.find("filled up with zeros to 32") != std::string::npos && out.find("C 20, B 2") != std::string::npos,
          "%s", out.c_str());
    remove_folder(dir);
}

static void test_trainer_repeats_bit_for_bit(void) {
    std::string dir, a, b;
    make_data(&dir);
    CHECK(trainer(base(dir) + "-x 5 -n 5 -s 5 -g 40 -o " + dir + "/a", &a) == 0, "%s", a.c_str());
    CHECK(trainer(base(dir) + "-x 5 -n 5 -s 5 -g 40 -o " + dir + "/b", &b) == 0, "%s", b.c_str());
    CHECK(numbers_of(a) == numbers_of(b) && !numbers_of(a).empty(), "%s\n--\n%s", a.c_str(), b.c_str());
    CHECK(a.substr(a.find("generating:"), 60) == b.substr(b.find("generating:"), 60), "samples differ");
    CHECK(test_read_file(dir + "/a/model_00000005.bin") == test_read_file(dir + "/b/model_00000005.bin"), "models differ");
    CHECK(test_read_file(dir + "/a/main.log") == test_read_file(dir + "/b/main.log"), "logs differ");
    remove_folder(dir);
}

// The same through the program and its data order: one global batch of 8 sequences as 1, 2 or 4 micro-steps.
static void test_trainer_micro_steps_see_the_same_tokens(void) {
    std::string dir, out;
    make_data(&dir);
    std::vector<float> losses[3];
    for (int v = 0; v < 3; v++) {
        CHECK(trainer("-i " + dir + "/train.bin -j " + dir + "/val.bin --layers 2 --channels 64 --heads 4 -t 32 -d 256 -l 1e-3 -v 0 -m 0 -s 0 "
                      "-x 6 --dtype float32 -f 0 -b " + std::to_string(8 >> v), &out) == 0, "%s", out.c_str());
        for (size_t at = 0; (at = out.find("| loss ", at)) != std::string::npos; at++) { losses[v].push_back(strtof(out.c_str() + at + 7, NULL)); }
        CHECK(losses[v].size() == 6, "%s", out.c_str());
    }
    for (int v = 1; v < 3; v++) {  // 6 decimals are printed; other tokens would change the second one
        for (int i = 0; i < 6; i++) { CHECK(fabs(losses[v][i] - losses[0][i]) < 1e-5, "step %d: %g in %d micro-steps, %g in one", i, losses[v][i], 1 << v, losses[0][i]); }
    }
    remove_folder(dir);
}

// ---------------------------------------------------------------------------- memory

typedef struct { bool fp8; const char* recipe; bool packed, masters; MomentType moments; int recompute; bool samples; } MemoryCase;

// What --plan counts for d48 with B 16, T 1024, one process.
static void count_d48(size_t bytes[NUM_MEM_CLASSES], MemoryCase k) {
    static const ModelHeader d48 = {1024, 50257, 50304, 48, 25, 1600};
    Device* dev = new Device();
    Comm comm;
    device_init(dev, 0);
    comm_init(&comm, dev, 0, 1, NULL, false);
    Fp8Settings settings = Fp8Settings();
    for (const Fp8Recipe& r : fp8_recipes) { if (k.fp8 && !strcmp(r.name, k.recipe)) { settings = fp8_settings(&r); } }
    gpt_count_memory<bf16>(bytes, dev, &comm, &d48, k.fp8, &settings, k.masters, 0, k.moments, false, k.packed, k.samples, 16, 1024, k.recompute);
    device_free(dev);
    delete dev;
}
static double sum_of(const size_t bytes[NUM_MEM_CLASSES]) {
    double sum = 0;
    for (int i = 0; i < NUM_MEM_CLASSES; i++) { sum += bytes[i]; }
    return sum;
}
// Bytes of d48 by formula, class by class, and the two figures that are promised: activations at least 41 % below BF16 at equal recomputation, the whole memory at
// least 35 % below llm.c's configuration: BF16, FP32 masters (its -w 1, the default) and moments, GELU recomputed.
static void test_gpt_memory_of_d48(void) {
    NEEDS_FP8();
    const size_t L = 48, C = 1600, NH = 25, N = 16384, T = 1024, KB = 128, MiB = 1 << 20;
    const size_t once = N * (4 + 4 + 4), stats = 8 * N, groups = 50 + 38 + 13;  // inputs, targets, losses; mean and rstd of a layernorm; groups of 128 in 4C, 3C, C
    struct { MemoryCase k; size_t activations; } cases[] = {
        {{false, "", false, true, MOMENT_F32, 1, true}, N * (L * (24 * C + 4 * NH) + 2 * C) + (2 * L + 1) * stats + once},
        {{false, "", false, false, MOMENT_F32, 0, true}, N * (L * (32 * C + 4 * NH) + 2 * C) + (2 * L + 1) * stats + once},
        {{false, "", false, false, MOMENT_F32, 2, true}, N * (L * (20 * C + 4 * NH) + 2 * C) + (2 * L + 1) * stats + once},
        {{false, "", false, false, MOMENT_F32, 3, false}, N * (L + 2) * 2 * C + 3 * stats + once},
        {{true, "current", false, false, MOMENT_F8, 1, true}, N * (L * (23 * C + 4 * NH) + 2 * C) + (2 * L + 1) * stats + once},
        {{true, "current", true, false, MOMENT_F8, 0, true}, N * (L * (18 * C + groups) + 2 * C) + (2 * L + 1) * stats + once},
        {{true, "current", true, false, MOMENT_F8, 1, true}, N * (L * (14 * C + groups) + 2 * C) + (2 * L + 1) * stats + once},
        {{true, "current", true, false, MOMENT_F8, 2, true}, N * (L * (12 * C + groups) + 2 * C) + (2 * L + 1) * stats + once},
        {{true, "block", true, false, MOMENT_F8, 1, true}, N * (L * (14 * C + groups) + 2 * C) + 2 * L * 4 * C * (N / KB) + (2 * L + 1) * stats + once},
        {{true, "current", false, false, MOMENT_F8, 3, true}, N * (L + 2) * 2 * C + L * T * 6 * C + 3 * stats + once},
    };
    double whole[10], saved[10];
    const size_t matrices = L * 12 * C * C, embeddings = (50304 + 1024) * C, vectors = L * 13 * C + 2 * C, parameters = matrices + embeddings + vectors;
    for (size_t i = 0; i < 10; i++) {
        const MemoryCase k = cases[i].k;
        size_t bytes[NUM_MEM_CLASSES];
        count_d48(bytes, k);
        whole[i] = sum_of(bytes) / MiB;
        saved[i] = (double)bytes[MEM_ACTIVATIONS] / N / L / C;
        printf("    %-8s recompute %d%s%s: activations %.2f C, scratch %.0f MiB, whole %.0f MiB\n", k.fp8 ? k.recipe : k.masters ? "bf16 -w1" : "bf16", k.recompute,
               k.packed ? ", FP8 activations" : "", k.moments == MOMENT_F8 ? ", FP8 moments" : "", saved[i], (double)bytes[MEM_SCRATCH] / MiB, whole[i]);
        CHECK(bytes[MEM_ACTIVATIONS] == cases[i].activations, "case %zu: %zu bytes of activations, should be %zu", i, bytes[MEM_ACTIVATIONS], cases[i].activations);
        CHECK(bytes[MEM_PARAMETERS] == 2 * parameters && bytes[MEM_GRADIENTS] == 2 * matrices + 4 * (embeddings + vectors), "case %zu: parameters %zu, gradients %zu", i, bytes[MEM_PARAMETERS],
              bytes[MEM_GRADIENTS]);
        const size_t state = k.moments == MOMENT_F8 ? 3 * parameters : (k.masters ? 12 : 8) * parameters;
        CHECK(bytes[MEM_OPTIMIZER] >= state && bytes[MEM_OPTIMIZER] <= state + parameters / 60, "case %zu: optimizer %zu, should be %zu", i, bytes[MEM_OPTIMIZER], state);  // exponents
        const size_t codes = k.fp8 ? 2 * matrices : 0;
        CHECK(bytes[MEM_FP8_WEIGHTS] >= codes && bytes[MEM_FP8_WEIGHTS] <= codes + codes / 2000, "case %zu: FP8 weights %zu, should be %zu", i, bytes[MEM_FP8_WEIGHTS], codes);  // scales
        CHECK(bytes[MEM_SCRATCH] <= (k.recompute == 3 ? 1500 : k.packed ? 1200 : k.fp8 ? 950 : 650) * MiB, "case %zu: scratch of %.0f MiB", i, (double)bytes[MEM_SCRATCH] / MiB);
    }
    for (int i : {6, 8}) {
        printf("    %s: activations %.1f %% below BF16, whole memory %.1f %% below llm.c's configuration\n", cases[i].k.recipe, 100 * (1 - saved[i] / saved[0]), 100 * (1 - whole[i] / whole[0]));
        CHECK(saved[i] <= 0.59 * saved[0], "%s: activations %.3f C, BF16 %.3f C", cases[i].k.recipe, saved[i], saved[0]);
        CHECK(whole[i] <= 0.65 * whole[0], "%s: whole memory %.0f MiB, llm.c's configuration %.0f MiB", cases[i].k.recipe, whole[i], whole[0]);
    }
}

#ifdef GPT_CPU_DEVICE
static void run_command_and_peak(void* arg) {
    Command* c = (Command*)arg;
    std::vector<char*> argv;
    for (auto& a : c->args) { argv.push_back((char*)a.c_str()); }
    argv.push_back(NULL);
    const int code = trainer_main((int)c->args.size(), argv.data());
    printf("peak %.6f\n", cpu_device_bytes_peak() / 1048576.0);
    fflush(stdout);
    exit(code);
}
#endif
// The most device memory that a run has at once, whoever allocates it, is what --plan says: within 2 % without the workspace of the matrix products.
static void test_trainer_peak_memory_is_the_plan(void) {
#ifdef GPT_CPU_DEVICE
    std::string dir, out;
    make_data(&dir);
    const double workspace = 32.0;
    for (const char* options : {"--dtype bfloat16 -w 1", "--dtype float32 -r 0", "--dtype bfloat16 -r 3", "--dtype float8 -r 2",
                                "--dtype float8 --fp8-activations --moment-dtype float8 --fp8-recipe block",
                                "--dtype float8 -r 3 --fp8-recipe delayed --fp8-guard-every 1", "--dtype float8 --fp8-activations --fp8-wgrad bfloat16"}) {
        if (strstr(options, "float8") && device_lacks_fp8()) { continue; }
        const std::string args = "-i " + dir + "/train.bin -j " + dir + "/val.bin --layers 3 --channels 144 --heads 3 -b 2 -t 64 -d 256 -x 1 -m 1 -v 1 -s 1 -g 8 " + options;
        CHECK(trainer(args + " --plan", &out) == 0 && out.find("\n  total ") != std::string::npos, "%s", out.c_str());
        const double plan = atof(out.c_str() + out.find("\n  total ") + 9) - workspace;
        Command c;
        c.args = command_args(args);
        CHECK(test_child(run_command_and_peak, &c, &out) == 0 && out.find("\npeak ") != std::string::npos, "%s", out.c_str());
        const double peak = atof(out.c_str() + out.find("\npeak ") + 6) - workspace;
        printf("    %s: plan %.1f MiB, peak %.2f MiB\n", options, plan, peak);
        CHECK(plan > 4 && fabs(peak - plan) <= 0.02 * plan, "%s: the plan says %.1f MiB, the run took %.2f", options, plan, peak);
    }
    remove_folder(dir);
#else
    SKIP("the CPU device's ledger of allocations is needed");
#endif
}

// ---------------------------------------------------------------------------- sizes

// Odd sizes that satisfy the stated constraints run: slices of layers are then not aligned to 256 bytes.
static void test_trainer_runs_with_odd_sizes(void) {
    std::string dir, out;
    make_data(&dir);
    for (const char* sizes : {"--layers 2 --channels 48 --heads 6 -b 1 -t 20 --dtype bfloat16", "--layers 3 --channels 48 --heads 6 -b 3 -t 11 --dtype float32",
                              "--layers 2 --channels 80 --heads 5 -b 1 -t 1 --dtype bfloat16 -r 2", "--layers 2 --channels 16 --heads 1 -b 3 -t 16 --dtype auto -r 0",
                              "--layers 1 --channels 7 --heads 7 -b 1 -t 5 --dtype auto -r 2", "--layers 2 --channels 1 --heads 1 -b 2 -t 3 --dtype bfloat16 -ge 2",
                              "--layers 1 --channels 72 --heads 9 -b 1 -t 16",
                              "--layers 3 --channels 48 --heads 6 -b 3 -t 11 --dtype float32 -r 3", "--layers 1 --channels 80 --heads 5 -b 1 -t 1 --dtype bfloat16 -r 3",
                              "--layers 3 --channels 144 --heads 6 -b 1 -t 20 --dtype auto -r 3", "--layers 3 --channels 144 --heads 6 -b 1 -t 20 --dtype auto --fp8-activations -r 0"}) {
        CHECK(trainer("-i " + dir + "/train.bin -j " + dir + "/val.bin -v 0 -m 1 -s 2 -g 50 -x 3 " + sizes, &out) == 0 && out.find("step    3/3") != std::string::npos, "%s:\n%s", sizes, out.c_str());
    }
    remove_folder(dir);
}

// A folder that holds a run is not mixed with a new one; a resume that has nothing to do says so; another precision on resume is named.
static void test_trainer_guards_the_output_folder(void) {
    std::string dir, out;
    make_data(&dir);
    CHECK(trainer(base(dir) + "-x 4 -n 4 --dtype float32 -o " + dir + "/a", &out) == 0, "%s", out.c_str());
    std::string log = test_read_file(dir + "/a/main.log");
    CHECK(trainer(base(dir) + "-x 2 -o " + dir + "/c", &out) == 0 && trainer(base(dir) + "-x 1 -o " + dir + "/c", &out) == 0 && out.find("main.log.old") != std::string::npos, "%s", out.c_str());
    CHECK(test_read_file(dir + "/c/main.log.old").find("s:1 trl") != std::string::npos, "the log of the first run is lost");
    CHECK(trainer(base(dir) + "-x 4 -n 4 --seed 7 -o " + dir + "/a", &out) == 1 && out.find("--resume") != std::string::npos, "%s", out.c_str());
    CHECK(test_read_file(dir + "/a/main.log") == log, "the log of the first run was touched");
    CHECK(trainer(base(dir) + "-x 4 -n 4 --dtype float32 -y 1 -o " + dir + "/a", &out) == 0 && out.find("nothing to train") != std::string::npos, "%s", out.c_str());
    CHECK(system(("cp -r " + dir + "/a " + dir + "/broken && truncate -s -4 " + dir + "/broken/model_00000004.bin").c_str()) == 0, "cp");
    CHECK(trainer(base(dir) + "-x 6 -n 2 -y 1 -o " + dir + "/broken", &out) == 1 && out.find("none that is whole") != std::string::npos, "%s", out.c_str());
    CHECK(test_read_file(dir + "/broken/state_00000004_00000.bin") == test_read_file(dir + "/a/state_00000004_00000.bin"), "a damaged checkpoint was touched");
    int fd = -1;
    FileError error;
    fileCheck(file_lock_folder((dir + "/a").c_str(), &fd, &error), &error);
    CHECK(trainer(base(dir) + "-x 6 -n 2 -y 1 -o " + dir + "/a", &out) == 1 && out.find("another process") != std::string::npos, "%s", out.c_str());
    close(fd);
    CHECK(trainer(base(dir) + "-x 6 -n 2 --dtype bfloat16 -y 1 -o " + dir + "/a", &out) == 0 && out.find("--dtype was float32, is bfloat16") != std::string::npos, "%s", out.c_str());
    remove_folder(dir);
}

static void test_trainer_samples_from_a_prompt(void) {
    std::string dir, out, again, more;
    make_data(&dir);
    std::string sample = " --prompt=AB\\nC!\\\\D -g 50 --tokenizer " + dir + "/tokenizer.bin ";
    CHECK(trainer(base(dir) + "-x 6 -s 6 -o " + dir + "/run -n 6" + sample, &out) == 0, "%s", out.c_str());
    std::string trained = sample_of(out);
    CHECK(trained.compare(0, 7, "AB\nC!\\D") == 0 && out.find("sampled 50 tokens after 7") != std::string::npos, "the sample continues the prompt:\n%s", out.c_str());
    std::string only = "--sample-only -t 32 -e " + dir + "/run/model_00000006.bin" + sample;
    CHECK(trainer(only, &out) == 0 && sample_of(out) == trained, "the same weights, another text: '%s', '%s'", sample_of(out).c_str(), trained.c_str());
    CHECK(trainer("--sample-only -t 32 --resume -o " + dir + "/run" + sample, &again) == 0 && sample_of(again) == trained, "from the folder:\n%s", again.c_str());
    CHECK(trainer(only + "--sample-seed 5", &again) == 0 && sample_of(again) != trained, "another seed, the same text");
    CHECK(trainer(only + "--top-k 1", &again) == 0 && trainer(only + "--temperature 0", &more) == 0, "%s%s", again.c_str(), more.c_str());
    CHECK(sample_of(again) == sample_of(more), "the likeliest token: '%s', '%s'", sample_of(again).c_str(), sample_of(more).c_str());
    const std::string untrained = "--sample-only -t 32 --layers 2 --channels 64 --heads 4 ";
    CHECK(trainer(untrained + "-g 100 --tokenizer " + dir + "/tokenizer.bin", &out) == 0 && out.find("sampled 99 tokens after 1") != std::string::npos, "a context that slides:\n%s", out.c_str());
    CHECK(trainer(untrained + "-g 3 -i " + dir + "/none/x.bin --prompt=x", &out) == 1 && out.find("--prompt needs a tokenizer") != std::string::npos, "no tokenizer:\n%s", out.c_str());
    CHECK(trainer("--sample-only --resume -o " + dir + "/empty" + sample, &out) == 1 && out.find("no checkpoint") != std::string::npos, "no checkpoint:\n%s", out.c_str());
    remove_folder(dir);
}

// FP32 masters start from the unrounded values of a float32 model file, and a float32 run takes the masters of a checkpoint.
static void test_trainer_masters_are_not_rounded(void) {
    std::string dir, out;
    make_data(&dir);
    CHECK(trainer(base(dir) + "-x 2 -n 2 --dtype float32 -o " + dir + "/a", &out) == 0, "%s", out.c_str());
    std::string sizes = "-i " + dir + "/train.bin -j " + dir + "/val.bin -b 2 -t 32 -v 0 -m 0 -s 0 -l 0 ";
    CHECK(trainer(sizes + "-x 1 -n 1 --dtype bfloat16 -w 1 -e " + dir + "/a/model_00000002.bin -o " + dir + "/b", &out) == 0, "%s", out.c_str());
    CHECK(trainer(sizes + "-x 2 -n 1 --dtype float32 -y 1 -o " + dir + "/b", &out) == 0, "%s", out.c_str());
    CHECK(test_read_file(dir + "/a/model_00000002.bin") == test_read_file(dir + "/b/model_00000002.bin"), "float32 -> masters of bfloat16 -> float32 changed the weights");
    remove_folder(dir);
}

// Each wrong command ends with exit code 1 or 2, one ERROR that holds the given words, and a HINT.
static void test_trainer_refuses_bad_input_with_a_message(void) {
    std::string dir, out;
    make_data(&dir);
    const struct { std::string args; const char* words; } cases[] = {
        {base(dir) + "-e d13 -x 1", "d13"},
        {base(dir) + "-t 24 -x 1 -d 50", "not a multiple of --seq-len 24"},
        {base(dir) + "-d 1099511627776 -x 1", "micro-steps"},
        {base(dir) + "-e d12 -x 1", "--model d12"},
        {base(dir) + "-i " + dir + "/none.bin", "none.bin"},
        {base(dir) + "-i " + dir + "/tokenizer.bin", "tokenizer.bin"},
        {base(dir) + "--vocab-size 50", "vocab"},
        {base(dir) + "-e " + dir + "/train.bin", "train.bin"},
        {base(dir) + "--batch-sise 4", "batch-size"},
        {base(dir) + "-o /proc/nowhere -n 1", "/proc/nowhere"},
        {"-i " + dir + "/train.bin -j " + dir + "/val.bin -e d12 -t 2048 -b 1", "maxT"},
        {base(dir) + "--dtype bfloat16 --fp8-activations -x 1", "--dtype is bfloat16"},
        {base(dir) + "--recompute 4 -x 1", "--recompute"},
    };
    for (auto& c : cases) {
        int code = trainer(c.args, &out);
        CHECK(code == 1 || code == 2, "'%s' ended with %d:\n%s", c.args.c_str(), code, out.c_str());
        CHECK(out.find("ERROR") != std::string::npos && out.find("HINT") != std::string::npos && out.find(c.words) != std::string::npos,
              "'%s' does not say '%s':\n%s", c.args.c_str(), c.words, out.c_str());
    }
    CHECK(trainer(base(dir) + "--recompute 3 --fp8-activations --plan", &out) == 0 && out.find("note: --fp8-activations does nothing with --recompute 3") != std::string::npos, "%s", out.c_str());
    remove_folder(dir);
}

#ifdef GPT_CPU_DEVICE
// The device refuses what the GPU it plays would refuse, and the program says what to do.
static void test_trainer_refuses_what_the_device_lacks(void) {
    std::string dir, out;
    make_data(&dir);
    setenv("GPT_CPU_ARCH", "80", 1);
    int code = trainer(base(dir) + "--dtype float8 -x 1", &out);
    CHECK(code == 1 && out.find("--dtype bfloat16") != std::string::npos, "float8 on 8.0: %d\n%s", code, out.c_str());
    CHECK(trainer(base(dir) + "-x 1", &out) == 0 && out.find("bfloat16") != std::string::npos, "auto on 8.0:\n%s", out.c_str());
    for (const char* arch : {"89", "90", "100", "120"}) {
        setenv("GPT_CPU_ARCH", arch, 1);
        CHECK(trainer(base(dir) + "--dtype float8 -x 2", &out) == 0, "float8 on %s:\n%s", arch, out.c_str());
    }
    unsetenv("GPT_CPU_ARCH");
    setenv("GPT_CPU_MEMORY", "40M", 1);
    code = trainer("-i " + dir + "/train.bin -j " + dir + "/val.bin -e d6 -b 1 -t 64 -x 1 --init fast", &out);
    CHECK(code == 1 && out.find("out of device memory") != std::string::npos && out.find("HINT") != std::string::npos, "out of memory: %d\n%s", code, out.c_str());
    remove_folder(dir);
}
#endif

// 300 steps in bfloat16 and float8 with the same seeds: float8 ends no further from bfloat16 than seeds are from each other.
static float final_loss(const std::string& dir, const char* dtype, int seed) {
    std::string out;
    CHECK(trainer(base(dir) + "-v 0 -m 10 -x 300 --dtype " + dtype + " --seed " + std::to_string(seed), &out) == 0, "%s", out.c_str());
    size_t at = out.rfind("val loss ");
    CHECK(at != std::string::npos, "%s", out.c_str());
    return strtof(out.c_str() + at + 9, NULL);
}
static void test_trainer_float8_stays_within_the_spread_of_seeds(void) {
    NEEDS_FP8();
    const int seeds = 5;
    std::string dir;
    make_data(&dir);
    double b[seeds], f[seeds], mean_b = 0, mean_f = 0, spread = 0;
    for (int s = 0; s < seeds; s++) {
        b[s] = final_loss(dir, "bfloat16", 100 + s);
        f[s] = final_loss(dir, "float8", 100 + s);
        mean_b += b[s] / seeds;
        mean_f += f[s] / seeds;
        printf("    seed %d: bfloat16 %.4f, float8 %.4f, difference %+.4f\n", 100 + s, b[s], f[s], f[s] - b[s]);
    }
    for (int s = 0; s < seeds; s++) { for (int r = 0; r < s; r++) { spread = fmax(spread, fabs(b[s] - b[r])); } }
    printf("    spread of bfloat16 over seeds %.4f, mean difference %+.4f\n", spread, mean_f - mean_b);
    for (int s = 0; s < seeds; s++) { CHECK(fabs(f[s] - b[s]) <= spread, "seed %d: float8 is %.4f away from bfloat16, seeds spread %.4f", 100 + s, f[s] - b[s], spread); }
    remove_folder(dir);
}

#include "dev/test/fp8_head.h"

int main(int argc, char** argv) {
    static const Test llmc_tests[] = {PARITY_LLMC_TESTS};
    if (llmc_files_parse(&argc, argv)) { return TEST_MAIN(llmc_tests); }
    static const Test tests[] = {
        PARITY_TESTS PARITY_RECIPE_TESTS HEAD_TESTS PARITY_LLMC_TESTS
        {"gpt_float32_gradients_match_finite_differences", test_gpt_float32_gradients_match_finite_differences, QUICK},
        {"gpt_padded_gradients_match_finite_differences", test_gpt_padded_gradients_match_finite_differences, QUICK},
        {"gpt_bfloat16_gradients_point_as_float32", test_gpt_bfloat16_gradients_point_as_float32, QUICK},
        {"gpt_float8_gradients_point_as_float32", test_gpt_float8_gradients_point_as_float32, QUICK},
        {"gpt_padded_initial_values_are_those_of_the_model", test_gpt_padded_initial_values_are_those_of_the_model, QUICK},
        {"gpt_padding_stays_zero", test_gpt_padding_stays_zero, QUICK},
        {"gpt_initial_values_are_those_of_llmc", test_gpt_initial_values_are_those_of_llmc, SLOW},
        {"gpt_fused_producers_give_equal_bits", test_gpt_fused_producers_give_equal_bits, SLOW},
        {"gpt_activations_in_float8_point_as_float32", test_gpt_activations_in_float8_point_as_float32, QUICK},
        {"gpt_recompute_levels_give_equal_bits", test_gpt_recompute_levels_give_equal_bits, QUICK},
        {"gpt_micro_steps_split_changes_only_noise", test_gpt_micro_steps_split_changes_only_noise, QUICK},
        {"gpt_float8_scaling_invariants_hold", test_gpt_float8_scaling_invariants_hold, QUICK},
        {"gpt_overfits_one_batch_in_every_precision", test_gpt_overfits_one_batch_in_every_precision, SLOW},
        {"gpt_gelu_fusion_gives_the_same_gradients", test_gpt_gelu_fusion_gives_the_same_gradients, QUICK},
        {"gpt_cache_equals_the_whole_pass", test_gpt_cache_equals_the_whole_pass, QUICK},
        {"gpt_sampling_is_planned", test_gpt_sampling_is_planned, QUICK},
        {"trainer_samples_from_a_prompt", test_trainer_samples_from_a_prompt, QUICK},
        {"trainer_repeats_bit_for_bit", test_trainer_repeats_bit_for_bit, QUICK},
        {"trainer_resume_equals_uninterrupted_float8", test_trainer_resume_equals_uninterrupted_float8, QUICK},
        {"trainer_resume_equals_uninterrupted_bfloat16", test_trainer_resume_equals_uninterrupted_bfloat16, SLOW},
        {"trainer_resume_equals_uninterrupted_float32", test_trainer_resume_equals_uninterrupted_float32, SLOW},
        {"trainer_resume_equals_uninterrupted_packed", test_trainer_resume_equals_uninterrupted_packed, QUICK},
        {"trainer_resume_equals_uninterrupted_whole", test_trainer_resume_equals_uninterrupted_whole, SLOW},
        {"trainer_resume_equals_uninterrupted_masters", test_trainer_resume_equals_uninterrupted_masters, SLOW},
        {"trainer_resume_with_another_recipe", test_trainer_resume_with_another_recipe, SLOW},
        {"trainer_padded_checkpoints", test_trainer_padded_checkpoints, SLOW},
        {"trainer_micro_steps_see_the_same_tokens", test_trainer_micro_steps_see_the_same_tokens, QUICK},
        {"gpt_memory_of_d48", test_gpt_memory_of_d48, QUICK},
        {"trainer_peak_memory_is_the_plan", test_trainer_peak_memory_is_the_plan, QUICK},
        {"trainer_runs_with_odd_sizes", test_trainer_runs_with_odd_sizes, QUICK},
        {"trainer_guards_the_output_folder", test_trainer_guards_the_output_folder, QUICK},
        {"trainer_masters_are_not_rounded", test_trainer_masters_are_not_rounded, QUICK},
        {"trainer_refuses_bad_input_with_a_message", test_trainer_refuses_bad_input_with_a_message, QUICK},
#ifdef GPT_CPU_DEVICE
        {"trainer_refuses_what_the_device_lacks", test_trainer_refuses_what_the_device_lacks, SLOW},
#endif
        {"trainer_float8_stays_within_the_spread_of_seeds", test_trainer_float8_stays_within_the_spread_of_seeds, SLOW},
    };
    return TEST_MAIN(tests);
}
