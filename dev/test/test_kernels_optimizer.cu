/* test_kernels_optimizer.cu - noise, stochastic rounding, AdamW, fast initial values, sums of squares
 *
 * Covers: llmc/noise.cuh, adamw.cuh, global_norm.cuh
 */
#include "dev/test/oracle.h"
#include "llmc/adamw.cuh"
#include "llmc/global_norm.cuh"

// ---------------------------------------------------------------------------- noise

static void test_noise_golden(void) {
    // two-dimensional positions (x, y), folded as x + 198491317 y: the published function's values
    struct { uint32_t x, y, seed, value; } golden[] = {{0, 0, 0, 377036288u}, {1, 2, 3, 218638119u}, {511, 3587, 12345, 384584876u}};
    for (auto& g : golden) {
        uint32_t hash = noise_hash(g.x + 198491317u * g.y, g.seed), at = noise_at((uint64_t)g.y << 32 | g.x, g.seed);
        CHECK(hash == g.value && at == g.value, "noise(%u, %u; seed %u) = %u, %u, should be %u", g.x, g.y, g.seed, hash, at, g.value);
    }
}

// Every part of the key counts, and the keys of a run do not repeat.
static void test_noise_key(void) {
    const uint32_t base = noise_key(1, 2, 3, NOISE_PARAMETERS, 4);
    CHECK(base == noise_key(1, 2, 3, NOISE_PARAMETERS, 4), "the key is no function of its parts");
    const uint32_t other[] = {noise_key(0, 2, 3, NOISE_PARAMETERS, 4), noise_key(1, 3, 3, NOISE_PARAMETERS, 4), noise_key(1, 2, 4, NOISE_PARAMETERS, 4),
                              noise_key(1, 2, 3, NOISE_INIT, 4), noise_key(1, 2, 3, NOISE_PARAMETERS, 5), noise_key(2, 1, 3, NOISE_PARAMETERS, 4),
                              noise_key(1ull << 40 | 1, 2, 3, NOISE_PARAMETERS, 4), noise_key(1, 1ull << 40 | 2, 3, NOISE_PARAMETERS, 4)};
    for (uint32_t key : other) { CHECK(key != base, "another place has the same key %08x", key); }
    std::vector<uint32_t> keys;
    for (int step = 0; step < 200; step++) {
        for (int tensor = 0; tensor < 16; tensor++) { keys.push_back(noise_key(1337, step, 0, NOISE_PARAMETERS, tensor)); }
    }
    std::sort(keys.begin(), keys.end());
    for (size_t i = 1; i < keys.size(); i++) { CHECK(keys[i] != keys[i - 1], "two of %zu keys are %08x", keys.size(), keys[i]); }
}

// Each of the 16 bits that rounding uses is set about half of the time, and two neighbours, or two keys, agree as often as chance lets them: within
// five standard deviations of a binomial count.
static void test_noise_uniform(void) {
    const int n = 1 << 16;
    const double five_sigma = 5 * sqrt(n * 0.25);
    for (uint32_t key : {1u, 2u, 0xdeadbeefu}) {
        for (int bit = 0; bit < 16; bit++) {
            int set = 0, like_next = 0, like_key = 0;
            for (int i = 0; i < n; i++) {
                uint32_t here = noise_at(i, key) >> bit & 1;
                set += here;
                like_next += here == (noise_at(i + 1, key) >> bit & 1);
                like_key += here == (noise_at(i, key + 1) >> bit & 1);
            }
            CHECK(fabs(set - n / 2) < five_sigma && fabs(like_next - n / 2) < five_sigma && fabs(like_key - n / 2) < five_sigma,
                  "key %u bit %d: %d set, %d like the next element, %d like the next key, of %d", key, bit, set, like_next, like_key, n);
        }
    }
}

// ---------------------------------------------------------------------------- stochastic rounding

// Over all 65,536 values of the noise, exactly (low 16 bits of x) go up: the mean is x. Only the two neighbours occur.
static void test_round_mean(void) {
    TestRng r = {test_seed()};
    for (int i = 0; i < 300; i++) {
        uint32_t bits = (uint32_t)test_rng_u64(&r);
        if (i < 8) { bits = (bits & 0x80ffffffu) % 0x00800000u; }                                            // denormals
        if ((bits & 0x7f800000u) == 0x7f800000u || (bits & 0x7fff0000u) == 0x7f7f0000u) { bits &= ~0x40000000u; }  // finite, and so is the neighbour
        const float x = float_of(bits), down = float_of(bits & 0xffff0000u), up = float_of((bits & 0xffff0000u) + 0x10000u);
        unsigned ups = 0;
        for (uint32_t noise = 0; noise < 65536; noise++) {
            float y = round_stochastic_bf16(x, noise | (noise * 0x9e370000u));  // the upper bits do not matter
            CHECK(bits_of(y) == bits_of(down) || bits_of(y) == bits_of(up), "%08x rounds to %08x, not to a neighbour", bits, bits_of(y));
            ups += bits_of(y) == bits_of(up);
        }
        CHECK(ups == (bits & 0xffffu), "%08x goes up %u times of 65536", bits, ups);
    }
}

static void test_round_exact_values(void) {
    for (uint32_t code = 0; code < 65536; code++) {
        const uint32_t bits = code << 16;
        for (uint32_t noise : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
            uint32_t y = bits_of(round_stochastic_bf16(float_of(bits), noise));
            bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
            CHECK(nan ? (y & 0x7fffffffu) > 0x7f800000u && (y & 0xffffu) == 0 && y >> 31 == bits >> 31 : y == bits, "%08x becomes %08x", bits, y);
        }
    }
    // a NaN whose payload is only in the bits that are cut stays a NaN; the largest floats may reach infinity, never a NaN
    for (uint32_t bits : {0x7f800001u, 0xff80ffffu, 0x7fffffffu}) {
        for (uint32_t noise : {0u, 0xffffu}) {
            float y = round_stochastic_bf16(float_of(bits), noise);
            CHECK(isnan(y) && (bits_of(y) & 0xffffu) == 0, "NaN %08x becomes %08x", bits, bits_of(y));
        }
    }
    CHECK(round_stochastic_bf16(FLT_MAX, 0) == float_of(0x7f7f0000u) && round_stochastic_bf16(-FLT_MAX, 0xffffu) == -INFINITY,
        "the neighbours of the largest floats");
}

// ---------------------------------------------------------------------------- AdamW

typedef struct { Doubles p, m, v; } AdamCpu;
// Loshchilov & Hutter 2019, algorithm 2, with decoupled decay of the parameter before the step. Constants are the kernel's own floats.
static void adamw_cpu(AdamCpu* s, const Floats& grad, const AdamWParams& a) {
    for (size_t i = 0; i < grad.size(); i++) {
        double g = (double)a.grad_scale * grad[i], b1 = a.beta1, b2 = a.beta2;
        s->m[i] = b1 * s->m[i] + (1 - b1) * g;
        s->v[i] = b2 * s->v[i] + (1 - b2) * g * g;
        double step = s->m[i] / a.beta1_correction / (sqrt(s->v[i] / a.beta2_correction) + a.eps);
        s->p[i] -= (double)a.learning_rate * (step + (double)a.weight_decay * s->p[i]);
    }
}
static void adamw_lowp(Floats* p, Floats* m, Floats* v, const Floats& grad, const AdamWParams& a) {
    for (size_t i = 0; i < grad.size(); i++) {
        float g = a.grad_scale * grad[i];
        (*m)[i] = a.beta1 * (*m)[i] + (1.0f - a.beta1) * g;
        (*v)[i] = a.beta2 * (*v)[i] + (1.0f - a.beta2) * g * g;
        float step = (*m)[i] / a.beta1_correction / (sqrtf((*v)[i] / a.beta2_correction) + a.eps);
        (*p)[i] -= a.learning_rate * (step + a.weight_decay * (*p)[i]);
    }
}
static AdamWParams adam_params(int step, float weight_decay) {
    AdamWParams a = {1e-2f, 0.9f, 0.95f, 1e-8f, weight_decay, 0, 0, 0.37f, noise_key(42, step, 0, NOISE_PARAMETERS, 3), noise_key(42, step, 0, NOISE_M, 3), noise_key(42, step, 0, NOISE_V, 3)};
    a.beta1_correction = 1.0f - powf(a.beta1, (float)step);
    a.beta2_correction = 1.0f - powf(a.beta2, (float)step);
    return a;
}

struct AdamCase { size_t n; int layers; };
static const AdamCase adam_cases[] = {{8, 1}, {24, 3}, {2048, 1}, {2056, 2}, {16, 40}, {10000, 3}};

// Three steps. With float masters (T = float: the parameter itself): parameters and moments against double. BF16 parameters: stochastically rounded from the
// master by the noise of (key, element of the whole tensor), amax a layer exact.
template <class T, class G>
static void test_adamw(void) {
    Lab lab;
    for (const AdamCase& c : adam_cases) {
        const size_t n = c.n * c.layers;
        for (int input = 0; input < NUM_INPUTS; input++) {
            for (float weight_decay : {0.0f, 0.1f}) {
                Earned p_error = earned<float>(), m_error = earned<float>(), v_error = earned<float>();
                for (int repeat = 0; repeat < repeats_for(n); repeat++) {
                    Floats param = make_input<T>(INPUT_RANDOM, n, 9 * repeat + 1), m(n, 0.0f), v(n, 0.0f);
                    Floats master_lowp = param, m_lowp = m, v_lowp = v;
                    AdamCpu cpu = {widen(param), widen(m), widen(v)};
                    T* d_param = lab_put<T>(&lab, param);
                    float *d_master = sizeof(T) == 4 ? (float*)NULL : lab_put<float>(&lab, param), *d_m = lab_put<float>(&lab, m),
                        *d_v = lab_put<float>(&lab, v);
                    unsigned* amax = lab_zeros<unsigned>(&lab, 3 * c.layers);
                    for (int step = 1; step <= 3; step++) {
                        Floats grad = make_input<G>((Input)input, n, 9 * repeat + 1 + step);
                        AdamWParams a = adam_params(step, weight_decay);
                        unsigned* step_amax = amax + (step - 1) * c.layers;
                        adamw_update(d_param, d_master, d_m, d_v, lab_put<G>(&lab, grad), c.n, c.layers, sizeof(T) == 4 ? (unsigned*)NULL : step_amax,
                            a, lab.dev.stream);
                        adamw_cpu(&cpu, grad, a);
                        adamw_lowp(&master_lowp, &m_lowp, &v_lowp, grad, a);
                        Floats p = lab_get(&lab, d_param, n);
                        if (sizeof(T) == 2) {
                            Floats master = lab_get(&lab, d_master, n), want(n);
                            for (size_t i = 0; i < n; i++) { want[i] = round_stochastic_bf16(master[i], noise_at(i, a.noise_key)); }
                            CHECK(same_bits(p, want), "step %d: BF16 parameters are not the masters, rounded by the noise of their element", step);
                            std::vector<unsigned> bits = lab_download(&lab, step_amax, c.layers);
                            for (int l = 0; l < c.layers; l++) {
                                uint32_t most = max_bits(Floats(p.begin() + l * c.n, p.begin() + (l + 1) * c.n));
                                CHECK(bits[l] == most, "layer %d: amax %08x, should be %08x", l, bits[l], most);
                            }
                            p = master;
                        }
                        earned_add(&p_error, cpu.p, p, master_lowp, 1, n);
                        earned_add(&m_error, cpu.m, lab_get(&lab, d_m, n), m_lowp, 1, n);
                        earned_add(&v_error, cpu.v, lab_get(&lab, d_v, n), v_lowp, 1, n);
                    }
                    lab_reset(&lab);
                }
                earned_check(&p_error, "adamw param %s/%s n %zu %s", type_name<T>(), type_name<G>(), n, input_names[input]);
                earned_check(&m_error, "adamw m %s/%s n %zu %s", type_name<T>(), type_name<G>(), n, input_names[input]);
                earned_check(&v_error, "adamw v %s/%s n %zu %s", type_name<T>(), type_name<G>(), n, input_names[input]);
            }
        }
    }
}

// BF16 parameters that are their own masters: the same step as from an equal float master, and so one of the two BF16 neighbours of double's result, up
// to the float result's own distance from it (the naive float version's largest error, twice).
template <class G>
static void test_adamw_no_master(void) {
    Lab lab;
    for (const AdamCase& c : adam_cases) {
        const size_t n = c.n * c.layers;
        Floats param = make_input<bf16>(INPUT_RANDOM, n, 1), m = make_input<float>(INPUT_RANDOM, n, 2, 0.1f), v = make_input<float>(INPUT_RANDOM, n, 3, 0.1f);
        for (float& x : v) { x *= x; }
        bf16 *d_param = lab_put<bf16>(&lab, param), *d_other = lab_put<bf16>(&lab, param);
        float *d_m = lab_put<float>(&lab, m), *d_v = lab_put<float>(&lab, v), *d_m2 = lab_put<float>(&lab, m), *d_v2 = lab_put<float>(&lab, v);
        bool moved_up = false, moved_down = false;
        for (int step = 1; step <= 3; step++) {
            Floats before = lab_get(&lab, d_param, n), master_lowp = before, m_lowp = lab_get(&lab, d_m, n), v_lowp = lab_get(&lab, d_v, n);
            AdamCpu cpu = {widen(before), widen(m_lowp), widen(v_lowp)};
            Floats grad = make_input<G>(INPUT_RANDOM, n, 10 + step);
            AdamWParams a = adam_params(step, 0.1f);
            a.learning_rate = 1e-4f;  // steps below half a BF16 unit: rounding to nearest would never move
            G* d_grad = lab_put<G>(&lab, grad);
            unsigned *amax = lab_zeros<unsigned>(&lab, c.layers), *amax2 = lab_zeros<unsigned>(&lab, c.layers);
            float* master = lab_put<float>(&lab, before);
            adamw_update(d_param, (float*)NULL, d_m, d_v, d_grad, c.n, c.layers, amax, a, lab.dev.stream);
            adamw_update(d_other, master, d_m2, d_v2, d_grad, c.n, c.layers, amax2, a, lab.dev.stream);
            adamw_cpu(&cpu, grad, a);
            adamw_lowp(&master_lowp, &m_lowp, &v_lowp, grad, a);
            Floats p = lab_get(&lab, d_param, n);
            CHECK(same_bits(p, lab_get(&lab, d_other, n)) && same_bits(lab_get(&lab, d_m, n), lab_get(&lab, d_m2, n)) &&
                same_bits(lab_get(&lab, d_v, n), lab_get(&lab, d_v2, n)),
                  "step %d: without masters another result than from equal masters", step);
            CHECK(lab_download(&lab, amax, c.layers) == lab_download(&lab, amax2, c.layers), "step %d: amaxes differ", step);
            double slack = 0;
            for (size_t i = 0; i < n; i++) { slack = fmax(slack, 2 * fabs(master_lowp[i] - cpu.p[i])); }
            for (size_t i = 0; i < n; i++) {
                double size = fabs((double)p[i]), unit = ldexp(1.0, (int)floor(log2(fmax(size, 0x1p-126))) - 7);  // distance of neighbours at p
                CHECK(fabs(p[i] - cpu.p[i]) < unit + slack, "step %d, element %zu: %.9g is no neighbour of %.12g", step, i, p[i], cpu.p[i]);
                moved_up |= p[i] > before[i];
                moved_down |= p[i] < before[i];
            }
        }
        CHECK(n < 2048 || (moved_up && moved_down), "small steps never moved a parameter");
        lab_reset(&lab);
    }
}

// Shards of ranks, each with its own state and gaps between the parts, together give the bits of the whole update: rounding noise goes by the element of
// the whole tensor (R6). Nothing outside of a shard is touched.
static void test_adamw_shards_equal_the_whole(void) {
    Lab lab;
    const size_t part = 1000, layers = 3, n = part * layers;
    Floats param = make_input<bf16>(INPUT_RANDOM, n, 1), grad = make_input<bf16>(INPUT_RANDOM, n, 2);
    Floats m = make_input<float>(INPUT_RANDOM, n, 3, 0.1f), v = make_input<float>(INPUT_RANDOM, n, 4, 0.1f);
    for (float& x : v) { x *= x; }
    for (bool masters : {false, true}) {
        bf16* d_param = lab_put<bf16>(&lab, param);
        float *d_m = lab_put<float>(&lab, m), *d_v = lab_put<float>(&lab, v), *d_master = masters ? lab_put<float>(&lab, param) : NULL;
        unsigned* amax = lab_zeros<unsigned>(&lab, layers);
        adamw_update(d_param, d_master, d_m, d_v, lab_put<bf16>(&lab, grad), part, (int)layers, amax, adam_params(3, 0.1f), lab.dev.stream);
        Floats whole = lab_get(&lab, d_param, n);
        std::vector<unsigned> whole_amax = lab_download(&lab, amax, layers);
        for (size_t ranks : {2u, 3u, 5u}) {
            const size_t shard = ROUND_UP(CEIL_DIV(part, ranks), (size_t)8), stride = shard * ranks;
            Floats wide(stride * layers, 77.0f), wide_grad(stride * layers, 0.0f);
            for (size_t l = 0; l < layers; l++) {
                std::copy(&param[l * part], &param[l * part] + part, &wide[l * stride]);
                std::copy(&grad[l * part], &grad[l * part] + part, &wide_grad[l * stride]);
            }
            bf16 *d_wide = lab_put<bf16>(&lab, wide), *d_wide_grad = lab_put<bf16>(&lab, wide_grad);
            unsigned* shard_amax = lab_zeros<unsigned>(&lab, layers);
            for (size_t r = 0; r < ranks; r++) {
                const size_t first = r * shard < part ? r * shard : part, held = part - first < shard ? part - first : shard;
                Floats sm(shard * layers, 0.0f), sv(shard * layers, 0.0f), sp(shard * layers, 0.0f);
                for (size_t l = 0; l < layers; l++) {
                    for (size_t i = 0; i < held; i++) {
                        const size_t whole_at = l * part + first + i;
                        sm[l * shard + i] = m[whole_at];
                        sv[l * shard + i] = v[whole_at];
                        sp[l * shard + i] = param[whole_at];
                    }
                }
                float *d_sm = lab_put<float>(&lab, sm), *d_sv = lab_put<float>(&lab, sv), *d_sp = masters ? lab_put<float>(&lab, sp) : NULL;
                adamw_update_shard(d_wide, d_sp, d_sm, d_sv, d_wide_grad, AdamWLayout{part, stride, first, held, shard, (int)layers}, shard_amax, adam_params(3, 0.1f), lab.dev.stream);
                Floats got_m = lab_get(&lab, d_sm, shard * layers), want_m = lab_get(&lab, d_m, n);
                for (size_t l = 0; l < layers; l++) {
                    for (size_t i = 0; i < held; i++) {
                        CHECK(bits_of(got_m[l * shard + i]) == bits_of(want_m[l * part + first + i]), "%zu ranks, rank %zu, layer %zu, element %zu: m", ranks, r, l, i);
                    }
                }
            }
            Floats got = lab_get(&lab, d_wide, stride * layers);
            for (size_t l = 0; l < layers; l++) {
                for (size_t i = 0; i < stride; i++) {
                    const float due = i < part ? whole[l * part + i] : 77.0f;
                    CHECK(bits_of(got[l * stride + i]) == bits_of(due), "%zu ranks, layer %zu, element %zu of %zu: %.9g, not %.9g", ranks, l, i, part, got[l * stride + i], due);
                }
            }
            CHECK(lab_download(&lab, shard_amax, layers) == whole_amax, "%zu ranks: amaxes differ", ranks);
        }
        lab_reset(&lab);
    }
}

// The mean over many elements of one value converges: the rounding of small updates loses nothing on average (five standard deviations).
static void test_adamw_unbiased(void) {
    Lab lab;
    const size_t n = 1 << 18;
    Floats param(n, 1.0f), zeros(n, 0.0f), grad(n, 1.0f);
    bf16* d_param = lab_put<bf16>(&lab, param);
    AdamWParams a = adam_params(1, 0.0f);
    a.learning_rate = 3e-4f;
    a.grad_scale = 1.0f;
    adamw_update(d_param, (float*)NULL, lab_put<float>(&lab, zeros), lab_put<float>(&lab, zeros), lab_put<float>(&lab, grad), n, 1, (unsigned*)NULL,
        a, lab.dev.stream);
    double mean = 0, unit = 0x1p-8, chance = 3e-4 / unit;  // below 1 neighbours are 2^-8 apart: that share of the elements moves
    for (float x : lab_get(&lab, d_param, n)) {
        CHECK(x == 1.0f || x == 1.0f - 0x1p-8f, "1 - 3e-4 became %.9g", x);
        mean += x / n;
    }
    double sigma = unit * sqrt(chance * (1 - chance) / n);
    CHECK(fabs(mean - (1 - 3e-4)) < 5 * sigma, "mean %.9g, should be %.9g +- %.2g", mean, 1 - 3e-4, sigma);
}

// Rule R6: the result does not depend on how a tensor is cut into layers; and NaN gradients reach the parameter and its layer's amax.
static void test_adamw_geometry(void) {
    Lab lab;
    const size_t n = 4 * 2056;
    Floats param = make_input<bf16>(INPUT_RANDOM, n, 1), grad = make_input<bf16>(INPUT_RANDOM, n, 2), zeros(n, 0.0f);
    grad[2 * 2056 + 5] = NAN;
    bf16* d_grad = lab_put<bf16>(&lab, grad);
    std::vector<Floats> results;
    for (int layers : {1, 2, 4}) {
        bf16* d_param = lab_put<bf16>(&lab, param);
        unsigned* amax = lab_zeros<unsigned>(&lab, layers);
        adamw_update(d_param, (float*)NULL, lab_put<float>(&lab, zeros), lab_put<float>(&lab, zeros), d_grad, n / layers, layers, amax,
            adam_params(1, 0.1f), lab.dev.stream);
        results.push_back(lab_get(&lab, d_param, n));
        std::vector<unsigned> bits = lab_download(&lab, amax, layers);
        for (int l = 0; l < layers; l++) {
            bool has = l == layers / 2;
            CHECK(has == (bits[l] > 0x7f800000u), "layer %d of %d: amax %08x", l, layers, bits[l]);
        }
        for (size_t i = 0; i < n; i++) { CHECK(isnan(results.back()[i]) == (i == 2 * 2056 + 5), "element %zu is %g", i, results.back()[i]); }
    }
    CHECK(first_difference(results[0], results[1]) < 0 && first_difference(results[0], results[2]) < 0, "1, 2 and 4 layers give different parameters");
}

static void test_adamw_repeats(void) {
    Lab lab;
    const size_t n = 30008;
    Floats param = make_input<bf16>(INPUT_RANDOM, n, 1), grad = make_input<bf16>(INPUT_RANDOM, n, 2), zeros(n, 0.0f);
    check_repeats("adamw_update", [&] {
        bf16* d_param = lab_put<bf16>(&lab, param);
        unsigned* amax = lab_zeros<unsigned>(&lab, 1);
        adamw_update(d_param, (float*)NULL, lab_put<float>(&lab, zeros), lab_put<float>(&lab, zeros), lab_put<bf16>(&lab, grad), n, 1, amax,
            adam_params(1, 0.1f), lab.dev.stream);
        Floats p = lab_get(&lab, d_param, n);
        p.push_back(float_of(lab_download(&lab, amax, 1)[0]));
        return p;
    });
}

// ---------------------------------------------------------------------------- fast initial values

template <class T>
static void test_init_fast(void) {
    Lab lab;
    const size_t n = 1 << 18, used = n - 4321;
    T *param = lab_alloc<T>(&lab, n), *other = lab_alloc<T>(&lab, n);
    init_fast(param, 0.5f, 0.02f, n, used, 7, lab.dev.stream);
    init_fast(other, 0.5f, 0.02f, n, used, 8, lab.dev.stream);
    Floats x = lab_get(&lab, param, n), y = lab_get(&lab, other, n);
    double mean = 0, square = 0, together = 0, furthest = 0;
    for (size_t i = 0; i < n; i++) {
        if (i >= used) { CHECK(bits_of(x[i]) == 0, "padding element %zu is %g", i, x[i]); continue; }
        double d = (x[i] - 0.5) / 0.02;
        mean += d / used;
        square += d * d / used;
        together += d * (y[i] - 0.5) / 0.02 / used;
        furthest = fmax(furthest, fabs(d));
    }
    // five standard deviations of a mean of used values; a sum of four uniforms has kurtosis 2.7, so its square has variance 1.7
    double sigma = 1 / sqrt((double)used), rounding = sizeof(T) == 2 ? 0x1p-9 / 0.02 : 0;  // of one value near 0.5, in standard deviations
    CHECK(fabs(mean) < 5 * sigma + 0.1 * rounding && fabs(square - 1) < 5 * sqrt(1.7) * sigma + rounding * rounding, "mean %g, variance %g", mean, square);
    CHECK(fabs(together) < 5 * sigma, "two keys correlate: %g", together);
    // 4 half-ranges of 1/sqrt(12) each over sqrt(4/12)
    CHECK(furthest > 3 && furthest < 2 * sqrt(3.0) + rounding, "furthest value: %g standard deviations", furthest);
    init_fast(param, 0.25f, 0.0f, 8, 8, 7, lab.dev.stream);
    for (float v : lab_get(&lab, param, 8)) { CHECK(v == 0.25f, "std 0 gives %g", v); }
    check_repeats("init_fast", [&] {
        T* p = lab_alloc<T>(&lab, 5000);
        init_fast(p, 0.0f, 0.02f, 5000, 4999, 3, lab.dev.stream);
        return lab_get(&lab, p, 5000);
    });
}

// ---------------------------------------------------------------------------- sums

template <class T>
static void test_global_norm(void) {
    Lab lab;
    const size_t sizes[] = {8, 24, 2048, SUM_CHUNK - 8, SUM_CHUNK, SUM_CHUNK + 8, 3 * SUM_CHUNK + 40};
    for (size_t n : sizes) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned error = earned<float>();
            for (int repeat = 0; repeat < repeats_for(n); repeat++) {
                Floats x = make_input<T>((Input)input, n, repeat + 1);
                const int blocks = sum_squares_blocks(n);
                CHECK(blocks == (int)((n + SUM_CHUNK - 1) / SUM_CHUNK), "%d blocks for %zu elements", blocks, n);
                float *partial = lab_alloc<float>(&lab, blocks), *out = lab_alloc<float>(&lab, 1);
                sum_squares(partial, lab_put<T>(&lab, x), n, lab.dev.stream);
                sum_all(out, partial, blocks, lab.dev.stream);
                double cpu = 0;
                float lowp = 0;
                for (float v : x) { cpu += (double)v * v; lowp += v * v; }
                Floats got = lab_get(&lab, out, 1);
                // integers up to 4: their sum is below 2^24 and exact
                if (input == INPUT_INTEGER) { CHECK(got[0] == cpu, "sum of squares of integers: %.9g, should be %.9g", got[0], cpu); }
                earned_add(&error, Doubles(1, cpu), got, Floats(1, lowp), 1, 1);
                lab_reset(&lab);
            }
            earned_check(&error, "sum of squares %s n %zu %s", type_name<T>(), n, input_names[input]);
        }
    }
}

// The partial sum of a chunk does not depend on what follows it: the geometry is a function of positions alone (rule R3).
static void test_global_norm_geometry(void) {
    Lab lab;
    const size_t n = 2 * SUM_CHUNK + 1000;
    Floats x = make_input<float>(INPUT_RANDOM, n, 1);
    float *d_x = lab_put<float>(&lab, x), *whole = lab_alloc<float>(&lab, 3), *part = lab_alloc<float>(&lab, 1);
    sum_squares(whole, d_x, n, lab.dev.stream);
    Floats sums = lab_get(&lab, whole, 3);
    for (int i = 0; i < 3; i++) {
        sum_squares(part, d_x + (size_t)i * SUM_CHUNK, i < 2 ? SUM_CHUNK : 1000, lab.dev.stream);
        CHECK(bits_of(lab_get(&lab, part, 1)[0]) == bits_of(sums[i]), "chunk %d alone: %.9g, in the whole: %.9g", i, lab_get(&lab, part, 1)[0], sums[i]);
    }
    check_repeats("sum_squares", [&] {
        float* p = lab_alloc<float>(&lab, 4);
        sum_squares(p, d_x, n, lab.dev.stream);
        sum_all(p + 3, p, 3, lab.dev.stream);
        return lab_get(&lab, p, 4);
    });
    // what is not finite is not lost, wherever it is
    for (size_t at : {(size_t)0, n - 1, (size_t)SUM_CHUNK + 77}) {
        for (float bad : {NAN, INFINITY, -INFINITY, 2e19f}) {  // (2e19)^2 overflows
            Floats y = x;
            y[at] = bad;
            sum_squares(whole, lab_put<float>(&lab, y), n, lab.dev.stream);
            sum_all(part, whole, 3, lab.dev.stream);
            float sum = lab_get(&lab, part, 1)[0];
            CHECK(isnan(bad) ? isnan(sum) : sum == INFINITY, "%g at %zu: sum of squares %g", bad, at, sum);
        }
    }
}

static void test_sum_all(void) {
    Lab lab;
    for (int n : {1, 2, 255, 256, 257, 1000, 20000}) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned error = earned<float>();
            for (int repeat = 0; repeat < 8; repeat++) {
                Floats x = make_input<float>((Input)input, n, repeat + 1);
                float* out = lab_alloc<float>(&lab, 1);
                sum_all(out, lab_put<float>(&lab, x), n, lab.dev.stream);
                double cpu = 0, size = 0;
                float lowp = 0;
                for (float v : x) { cpu += v; lowp += v; size += fabs(v); }
                Floats got = lab_get(&lab, out, 1);
                if (input == INPUT_INTEGER) { CHECK(got[0] == cpu, "sum of %d integers: %.9g, should be %.9g", n, got[0], cpu); }
                earned_add(&error, Doubles(1, cpu), got, Floats(1, lowp), 1, 1, size);  // the sum itself may cancel
            }
            lab_reset(&lab);
            earned_check(&error, "sum_all n %d %s", n, input_names[input]);
        }
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"adamw_shards_equal_the_whole", test_adamw_shards_equal_the_whole, QUICK},
        {"noise_golden_values", test_noise_golden, QUICK},
        {"noise_key_every_part_counts", test_noise_key, QUICK},
        {"noise_bits_uniform", test_noise_uniform, QUICK},
        {"round_stochastic_mean_exact", test_round_mean, QUICK},
        {"round_stochastic_exact_values_stay", test_round_exact_values, QUICK},
        {"adamw_matches_double_f32_f32", test_adamw<float, float>, QUICK},
        {"adamw_matches_double_bf16_bf16", test_adamw<bf16, bf16>, QUICK},
        {"adamw_matches_double_bf16_f32", test_adamw<bf16, float>, QUICK},
        {"adamw_without_masters_bf16", test_adamw_no_master<bf16>, QUICK},
        {"adamw_without_masters_f32", test_adamw_no_master<float>, QUICK},
        {"adamw_rounding_unbiased", test_adamw_unbiased, QUICK},
        {"adamw_independent_of_geometry", test_adamw_geometry, QUICK},
        {"adamw_repeats", test_adamw_repeats, QUICK},
        {"init_fast_moments_f32", test_init_fast<float>, QUICK},
        {"init_fast_moments_bf16", test_init_fast<bf16>, QUICK},
        {"global_norm_matches_double_f32", test_global_norm<float>, QUICK},
        {"global_norm_matches_double_bf16", test_global_norm<bf16>, QUICK},
        {"global_norm_geometry", test_global_norm_geometry, QUICK},
        {"sum_all_matches_double", test_sum_all, QUICK},
    };
    return TEST_MAIN(tests);
}
