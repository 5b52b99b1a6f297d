/* test_kernels_attention.cu - causal attention, forward, backward and by one row, against a double oracle; groups of heads; causality
 *
 * Groups are made small (ATTENTION_GROUP_ELEMENTS), so that one head, several heads, all heads and a last incomplete group occur at small sizes; so are
 * the tiles of a decoded row's context (ATTENTION_DECODE_TILE). Both implementations go through the same tests; KIND is which.
 * Covers: llmc/attention.cuh, llmc/flash_attention.cuh
 */
#define ATTENTION_GROUP_ELEMENTS 2048
#define ATTENTION_DECODE_TILE 64
#include "dev/test/oracle.h"
#include "llmc/attention.cuh"

typedef struct { int B, T, NH, hs; } Case;
// all heads at once; 3 of 4; one by one; more than 256 columns, which a warp takes in two steps
static const std::vector<Case> cases = {{1, 1, 1, 8}, {2, 1, 3, 16}, {2, 7, 4, 8}, {1, 16, 3, 16}, {3, 24, 4, 16}, {2, 33, 4, 32}, {1, 33, 5, 64},
    {1, 64, 3, 64}, {1, 300, 2, 16}};
// every template of a head, full and padded; tiles full, partial, one row beyond; several of each kernel's; heads and sequences side by side
static const std::vector<Case> flash_cases = {{1, 1, 1, 8}, {2, 1, 3, 64}, {1, 16, 2, 80}, {2, 31, 2, 40}, {1, 65, 2, 128}, {2, 100, 2, 64}, {1, 128, 1, 96}, {1, 129, 1, 104},
    {3, 33, 1, 72}, {2, 192, 1, 64}, {1, 257, 2, 64}, {1, 257, 1, 128}};

// ---------------------------------------------------------------------------- oracle and naive version

// One (batch, head): q, k, v of token t at qkv[t * 3C], + C, + 2C; y[t * C]; lse[t].
static void forward_cpu(double* y, double* lse, const double* qkv, int T, int C, int hs) {
    for (int t = 0; t < T; t++) {
        Doubles p(t + 1);
        double top = -INFINITY, sum = 0;
        for (int u = 0; u <= t; u++) {
            double s = 0;
            for (int i = 0; i < hs; i++) { s += qkv[(size_t)t * 3 * C + i] * qkv[(size_t)u * 3 * C + C + i]; }
            p[u] = s / sqrt((double)hs);
            top = fmax(top, p[u]);
        }
        for (double& x : p) { x = exp(x - top); sum += x; }
        lse[t] = top + log(sum);
        for (int i = 0; i < hs; i++) {
            double out = 0;
            for (int u = 0; u <= t; u++) { out += p[u] / sum * qkv[(size_t)u * 3 * C + 2 * C + i]; }
            y[(size_t)t * C + i] = out;
        }
    }
}
static void backward_cpu(double* dqkv, const double* dy, const double* qkv, int T, int C, int hs) {
    const double scale = 1 / sqrt((double)hs);
    for (int t = 0; t < T; t++) { for (int part = 0; part < 3; part++) { for (int i = 0; i < hs; i++) { dqkv[(size_t)t * 3 * C + part * C + i] = 0; } } }
    for (int t = 0; t < T; t++) {
        const double *q = qkv + (size_t)t * 3 * C, *g = dy + (size_t)t * C;
        Doubles p(t + 1), dp(t + 1);
        double top = -INFINITY, sum = 0, delta = 0;
        for (int u = 0; u <= t; u++) {
            const double *k = qkv + (size_t)u * 3 * C + C, *v = k + C;
            for (int i = 0; i < hs; i++) { p[u] += q[i] * k[i] * scale; dp[u] += g[i] * v[i]; }
            top = fmax(top, p[u]);
        }
        for (double& x : p) { x = exp(x - top); sum += x; }
        for (int u = 0; u <= t; u++) { p[u] /= sum; delta += p[u] * dp[u]; }
        for (int u = 0; u <= t; u++) {
            const double* k = qkv + (size_t)u * 3 * C + C;
            double ds = p[u] * (dp[u] - delta) * scale;
            for (int i = 0; i < hs; i++) {
                dqkv[(size_t)t * 3 * C + i] += ds * k[i];
                dqkv[(size_t)u * 3 * C + C + i] += ds * q[i];
                dqkv[(size_t)u * 3 * C + 2 * C + i] += p[u] * g[i];
            }
        }
    }
}
// Scores in float, probabilities rounded to T for the second product.
template <class T>
static void forward_lowp(float* y, float* lse, const float* qkv, int seq_len, int C, int hs, int bits) {
    const float scale = 1.0f / sqrtf((float)hs);
    Floats p(seq_len);
    for (int t = 0; t < seq_len; t++) {
        float top = -INFINITY, sum = 0;
        for (int u = 0; u <= t; u++) {
            p[u] = naive_dot(0, qkv + (size_t)t * 3 * C, 1, qkv + (size_t)u * 3 * C + C, 1, hs, bits, 16) * scale;
            top = fmaxf(top, p[u]);
        }
        for (int u = 0; u <= t; u++) { p[u] = naive_expf(p[u] - top); sum += p[u]; }
        for (int u = 0; u <= t; u++) { p[u] = ref_round<T>(p[u] / sum); }
        lse[t] = top + logf(sum);
        for (int i = 0; i < hs; i++) { y[(size_t)t * C + i] = ref_round<T>(naive_dot(0, p.data(), 1, qkv + 2 * C + i, 3 * C, t + 1, bits, 16)); }
    }
}
// From the naive y and lse; probabilities and dS rounded to T for their products. The scores are made in another way than in the forward pass (q scaled
// first), and delta is summed downwards: a library's sums do not agree with each other by design either, and for T = 1 all errors would cancel.
template <class T>
static void backward_lowp(float* dqkv, const float* dy, const float* qkv, const float* y, const float* lse, int seq_len, int C, int hs, int bits) {
    const float scale = 1.0f / sqrtf((float)hs);
    const size_t n = seq_len;
    Floats p(n * n, 0.0f), ds(n * n, 0.0f);
    for (int t = 0; t < seq_len; t++) {
        const float *q = qkv + (size_t)t * 3 * C, *g = dy + (size_t)t * C;
        float delta = 0;
        Floats scaled(q, q + hs);
        for (float& x : scaled) { x *= scale; }
        for (int i = hs - 1; i >= 0; i--) { delta += g[i] * y[(size_t)t * C + i]; }
        for (int u = 0; u <= t; u++) {
            const float* k = qkv + (size_t)u * 3 * C + C;
            float x = naive_expf(naive_dot(0, scaled.data(), 1, k, 1, hs, bits, 16) - lse[t]);
            ds[t * n + u] = ref_round<T>(x * (naive_dot(0, g, 1, k + C, 1, hs, bits, 16) - delta) * scale);
            p[t * n + u] = ref_round<T>(x);
        }
    }
    for (int t = 0; t < seq_len; t++) {
        for (int i = 0; i < hs; i++) {
            float* out = dqkv + (size_t)t * 3 * C + i;
            out[0] = ref_round<T>(naive_dot(0, &ds[t * n], 1, qkv + C + i, 3 * C, seq_len, bits, 16));
            out[C] = ref_round<T>(naive_dot(0, &ds[t], n, qkv + i, 3 * C, seq_len, bits, 16));
            out[2 * C] = ref_round<T>(naive_dot(0, &p[t], n, dy + i, C, seq_len, bits, 16));
        }
    }
}

// ---------------------------------------------------------------------------- the kernels

typedef struct { Floats y, lse, dqkv; } Result;
template <class T, AttentionKind KIND>
static Result run_attention(Lab* lab, const Floats& qkv, const Floats& dy, const Case& c) {
    const int C = c.NH * c.hs;
    lab->dev.attention = KIND;
    const size_t scratch_bytes = attention_scratch_bytes(attention_is_flash(&lab->dev, dtype_of<T>(), c.hs), c.B, c.T, c.NH);
    const size_t N = (size_t)c.B * c.T;
    T *d_qkv = lab_put<T>(lab, qkv), *y = lab_alloc<T>(lab, N * C), *dqkv = lab_alloc<T>(lab, N * 3 * C);
    float* lse = lab_alloc<float>(lab, N * c.NH);
    unsigned char *scratch = lab_alloc<unsigned char>(lab, scratch_bytes), *scratch2 = lab_alloc<unsigned char>(lab, scratch_bytes);
    unsigned* amax = lab_zeros<unsigned>(lab, 2);
    attention_forward(&lab->dev, y, lse, d_qkv, scratch, c.B, c.T, C, c.NH, attention_scale(c.hs), amax);
    attention_backward(&lab->dev, dqkv, lab_put<T>(lab, dy), d_qkv, y, lse, scratch2, c.B, c.T, C, c.NH, attention_scale(c.hs), amax + 1);
    CHECK_SAME(lab_get(lab, d_qkv, qkv.size()), qkv, "attention changed its input");
    Result r = {lab_get(lab, y, N * C), lab_get(lab, lse, N * c.NH), lab_get(lab, dqkv, N * 3 * C)};
    const std::vector<unsigned> taken = lab_download(lab, amax, 2);
    CHECK(taken[0] == max_bits(r.y) && taken[1] == max_bits(r.dqkv), "amaxes %08x, %08x of y and dqkv, not %08x, %08x", taken[0], taken[1], max_bits(r.y), max_bits(r.dqkv));
    return r;
}

// Errors are pooled over all shapes of one kind of input: in a single shape they hang on the roundings of its few largest scores.
// Flash: also against the other implementation; both may be off by twice the naive version's error, so by twice that from each other.
template <class T, AttentionKind KIND>
static void test_attention(void) {
    Lab lab;
    const bool flash = KIND == ATTENTION_FLASH;
    const char* const names[] = {"arange", "random", "large", "integer", "huge"};
    const float sizes[] = {1.0f, 1.0f, 4.0f, 1.0f, 64.0f};
    for (int input = 0; input < 5; input++) {
        Earned y_error = earned<T>(), lse_error = earned<float>(), dqkv_error = earned<T>(), y_distance = earned<T>(), dqkv_distance = earned<T>();
        for (const Case& c : flash ? flash_cases : cases) {
            const int C = c.NH * c.hs;
            const size_t N = (size_t)c.B * c.T;
            for (int repeat = 0; repeat < repeats_for((flash ? 4 : 1) * N * C); repeat++) {
                // large: scores in the tens, probabilities close to 0 and 1; huge: in the ten thousands
                Floats qkv = make_input<T>(input == 2 || input == 4 ? INPUT_RANDOM : (Input)input, N * 3 * C, 2 * repeat + 1, sizes[input]),
                    dy = make_input<T>(INPUT_RANDOM, N * C, 2 * repeat + 2);
                Result got = run_attention<T, KIND>(&lab, qkv, dy, c);
                Doubles y(N * C), lse(N * c.NH), dqkv(N * 3 * C), wide = widen(qkv), wide_dy = widen(dy);
                Floats y_lowp(N * C), lse_lowp(N * c.NH), dqkv_lowp(N * 3 * C);
                const int bits = naive_sum_bits(&lab.dev, sizeof(T) == 4, false, false);
                for (int b = 0; b < c.B; b++) {
                    for (int h = 0; h < c.NH; h++) {
                        const size_t in = (size_t)b * c.T * 3 * C + h * c.hs, out = (size_t)b * c.T * C + h * c.hs, line = ((size_t)b * c.NH + h) * c.T;
                        forward_cpu(&y[out], &lse[line], &wide[in], c.T, C, c.hs);
                        backward_cpu(&dqkv[in], &wide_dy[out], &wide[in], c.T, C, c.hs);
                        forward_lowp<T>(&y_lowp[out], &lse_lowp[line], &qkv[in], c.T, C, c.hs, bits);
                        backward_lowp<T>(&dqkv_lowp[in], &dy[out], &qkv[in], &y_lowp[out], &lse_lowp[line], c.T, C, c.hs, bits);
                    }
                }
                earned_add(&y_error, y, got.y, y_lowp, N * c.NH, c.hs);
                earned_add(&lse_error, lse, got.lse, lse_lowp, 1, N * c.NH);
                earned_add(&dqkv_error, dqkv, got.dqkv, dqkv_lowp, N * 3 * c.NH, c.hs);  // jointly: dq and dk of one token alone are 0
                if (flash) {
                    Result other = run_attention<T, ATTENTION_GEMM>(&lab, qkv, dy, c);
                    earned_add(&y_distance, widen(other.y), got.y, y_lowp, N * c.NH, c.hs);
                    earned_add(&dqkv_distance, widen(other.dqkv), got.dqkv, dqkv_lowp, N * 3 * c.NH, c.hs);
                }
                lab_reset(&lab);
            }
        }
        earned_check(&y_error, "attention y %s %s", type_name<T>(), names[input]);
        earned_check(&lse_error, "attention lse %s %s", type_name<T>(), names[input]);
        earned_check(&dqkv_error, "attention dqkv %s %s", type_name<T>(), names[input]);
        if (!flash) { continue; }
        y_distance.max_naive = 2 * fmax(y_error.max_naive, y_error.floor);
        y_distance.row_naive = 2 * fmax(y_error.row_naive, y_error.floor);
        dqkv_distance.max_naive = 2 * fmax(dqkv_error.max_naive, dqkv_error.floor);
        dqkv_distance.row_naive = 2 * fmax(dqkv_error.row_naive, dqkv_error.floor);
        earned_check(&y_distance, "attention y, flash to gemm %s", names[input]);
        earned_check(&dqkv_distance, "attention dqkv, flash to gemm %s", names[input]);
    }
}

static void test_attention_gradient(void) {
    const int T = 5, NH = 2, hs = 4, C = NH * hs;
    Doubles qkv = widen(make_input<float>(INPUT_RANDOM, T * 3 * C, 1)), g = widen(make_input<float>(INPUT_RANDOM, T * C, 2)), dqkv(qkv.size());
    for (int h = 0; h < NH; h++) { backward_cpu(&dqkv[h * hs], &g[h * hs], &qkv[h * hs], T, C, hs); }
    check_gradient("attention", [&](const Doubles& x) {
        Doubles y(T * C), lse(T);
        for (int h = 0; h < NH; h++) { forward_cpu(&y[h * hs], lse.data(), &x[h * hs], T, C, hs); }
        return dot(y, g);
    }, qkv, dqkv);
}

// A token changes nothing before it, and gets no gradient from before it: exactly.
template <class T, AttentionKind KIND>
static void test_attention_causal(void) {
    Lab lab;
    for (const Case& c : {Case{2, 33, 4, 16}, Case{1, 300, 2, 8}}) {
        const int C = c.NH * c.hs;
        const size_t N = (size_t)c.B * c.T;
        Floats qkv = make_input<T>(INPUT_RANDOM, N * 3 * C, 1), dy = make_input<T>(INPUT_RANDOM, N * C, 2);
        for (int cut : {1, c.T / 2, c.T - 1}) {  // tokens from cut on are changed
            Floats other = qkv, dy_before = dy;
            for (size_t n = 0; n < N; n++) {
                if ((int)(n % c.T) < cut) { continue; }
                for (int i = 0; i < 3 * C; i++) { other[n * 3 * C + i] = ref_round<T>(7.0f - qkv[n * 3 * C + i]); }
                for (int i = 0; i < C; i++) { dy_before[n * C + i] = 0.0f; }
            }
            Result a = run_attention<T, KIND>(&lab, qkv, dy_before, c), b = run_attention<T, KIND>(&lab, other, dy_before, c);
            for (size_t n = 0; n < N; n++) {
                const bool before = (int)(n % c.T) < cut;
                for (int i = 0; i < C; i++) {
                    CHECK(!before || bits_of(a.y[n * C + i]) == bits_of(b.y[n * C + i]), "token %zu sees the future beyond %d", n % c.T, cut);
                }
                for (int i = 0; i < 3 * C; i++) {
                    float x = a.dqkv[n * 3 * C + i], y = b.dqkv[n * 3 * C + i];
                    CHECK(before ? bits_of(x) == bits_of(y) : x == 0 && y == 0, "token %zu, gradient %d: %g and %g, cut %d", n % c.T, i, x, y, cut);
                }
            }
            lab_reset(&lab);
        }
    }
}

// Sums of probabilities are 1: with v = 1 everywhere y is 1 up to the rounding of the probabilities; lse is that of equal scores.
template <class T, AttentionKind KIND>
static void test_attention_uniform(void) {
    Lab lab;
    const Case c = {1, 64, 2, 8};
    const int C = 16;
    Floats qkv((size_t)c.T * 3 * C, 0.0f), dy((size_t)c.T * C, 0.0f);
    for (int t = 0; t < c.T; t++) { for (int i = 0; i < C; i++) { qkv[(size_t)t * 3 * C + 2 * C + i] = 1.0f; } }
    Result r = run_attention<T, KIND>(&lab, qkv, dy, c);
    const double unit = sizeof(T) == 4 ? 0x1p-24 : 0x1p-9;
    for (int t = 0; t < c.T; t++) {
        // t + 1 equal probabilities, each off by at most a rounding (and the quotient's), their sum rounded at most t + 1 times
        for (int i = 0; i < C; i++) { CHECK(fabs(r.y[t * C + i] - 1) <= 2 * unit + (t + 2) * 0x1p-24, "y[%d][%d] is %.9g", t, i, r.y[t * C + i]); }
        for (int h = 0; h < c.NH; h++) {
            CHECK(fabs(r.lse[h * c.T + t] - log(t + 1.0)) <= (t + 4) * 0x1p-24 * (1 + log(t + 1.0)), "lse[%d][%d] is %.9g", h, t, r.lse[h * c.T + t]);
        }
    }
    for (float x : r.dqkv) { CHECK(x == 0, "dy is 0, a gradient is %g", x); }
}

// Rule R7: a group's scores stay below the limit unless one head alone exceeds it; every head is in a group.
static void test_attention_groups(void) {
    for (int NH : {1, 3, 4, 12, 25}) {
        for (int T = 1; T <= 80; T++) {
            long long pitch = attention_pitch(T), group = attention_group(NH, T);
            CHECK(pitch % 8 == 0 && pitch >= T && pitch < T + 8, "pitch %lld of %d columns", pitch, T);
            CHECK(group >= 1 && group <= NH && (group == 1 || group * T * pitch <= ATTENTION_GROUP_ELEMENTS), "%lld of %d heads at T %d", group, NH, T);
            CHECK(group == NH || (group + 1) * T * pitch > ATTENTION_GROUP_ELEMENTS, "%lld of %d heads at T %d: another one would fit", group, NH, T);
            CHECK(attention_scratch_bytes(false, 2, T, NH) >= (size_t)(group * T * pitch * 16 + 2ll * NH * T * 4), "%zu bytes of scratch",
                attention_scratch_bytes(false, 2, T, NH));
            CHECK(attention_scratch_bytes(true, 2, T, NH) == ROUND_UP(2 * (size_t)NH * T * 4, (size_t)256), "flash: %zu bytes of scratch", attention_scratch_bytes(true, 2, T, NH));
        }
    }
    // what the cases above rely on
    CHECK(attention_group(4, 7) == 4 && attention_group(4, 24) == 3 && attention_group(4, 33) == 1 && attention_group(2, 300) == 1,
        "groups %d %d %d %d", attention_group(4, 7),
          attention_group(4, 24), attention_group(4, 33), attention_group(2, 300));
}

// auto is flash on a GPU, where a head and its type allow it; on the CPU device matrix products.
static void test_attention_choice(void) {
    Device dev = Device();
    for (int kind = 0; kind < 3; kind++) {
        for (int cpu = 0; cpu < 2; cpu++) {
            dev.attention = (AttentionKind)kind;
            dev.is_cpu = cpu;
            const bool wanted = kind == ATTENTION_FLASH || (kind == ATTENTION_AUTO && !cpu);
            for (int hs : {8, 64, 128}) { CHECK(attention_is_flash(&dev, DTYPE_BF16, hs) == wanted, "kind %d, cpu %d, hs %d", kind, cpu, hs); }
            CHECK(!attention_is_flash(&dev, DTYPE_F32, 64) && !attention_is_flash(&dev, DTYPE_BF16, 136) && !attention_is_flash(&dev, DTYPE_BF16, 12), "kind %d, cpu %d", kind, cpu);
        }
    }
}

// A NaN or an infinity in one head's query, key or value reaches no other head, and no token before it that is more than a tile away.
static void test_attention_flash_nonfinite(void) {
    Lab lab;
    const Case c = {2, 200, 2, 64};
    const int C = c.NH * c.hs, at = 150;
    const size_t N = (size_t)c.B * c.T;
    Floats qkv = make_input<bf16>(INPUT_RANDOM, N * 3 * C, 1), dy = make_input<bf16>(INPUT_RANDOM, N * C, 2);
    Result clean = run_attention<bf16, ATTENTION_FLASH>(&lab, qkv, dy, c);
    for (float bad : {NAN, INFINITY}) {
        for (int part = 0; part < 3; part++) {
            Floats hurt = qkv;
            hurt[(size_t)at * 3 * C + part * C + 5] = bad;  // head 0 of sequence 0
            Result got = run_attention<bf16, ATTENTION_FLASH>(&lab, hurt, dy, c);
            bool shows = false;
            for (size_t n = 0; n < N; n++) {
                for (int i = 0; i < C; i++) {
                    const bool same = bits_of(got.y[n * C + i]) == bits_of(clean.y[n * C + i]);
                    CHECK(same || ((int)n < c.T && i < c.hs && (int)n >= 128), "%g in part %d: y[%zu][%d] is %g, %g without", bad, part, n, i, got.y[n * C + i], clean.y[n * C + i]);
                    shows = shows || !isfinite(got.y[n * C + i]);
                    for (int k = 0; k < 3; k++) {
                        const size_t j = n * 3 * C + k * C + i;
                        CHECK(bits_of(got.dqkv[j]) == bits_of(clean.dqkv[j]) || ((int)n < c.T && i < c.hs), "%g in part %d: dqkv[%zu][%d][%d] is %g", bad, part, n, k, i, got.dqkv[j]);
                    }
                }
            }
            CHECK(shows, "%g in part %d does not reach y", bad, part);
            lab_reset(&lab);
        }
    }
}

template <class T, AttentionKind KIND>
static void test_attention_repeats(void) {
    Lab lab;
    const Case c = KIND == ATTENTION_FLASH ? Case{2, 150, 2, 32} : Case{2, 24, 4, 16};
    const size_t NC = (size_t)c.B * c.T * c.NH * c.hs;
    Floats qkv = make_input<T>(INPUT_RANDOM, 3 * NC, 1), dy = make_input<T>(INPUT_RANDOM, NC, 2);
    check_repeats("attention", [&] {
        Result r = run_attention<T, KIND>(&lab, qkv, dy, c);
        r.y.insert(r.y.end(), r.lse.begin(), r.lse.end());
        r.y.insert(r.y.end(), r.dqkv.begin(), r.dqkv.end());
        return r.y;
    });
}

// ---------------------------------------------------------------------------- one row

// one key and one warp; more rows than lanes; one tile to its last key and the next; several tiles; a head that two blocks share; groups of threads that
// do not fill a warp (hs 24, 40, 80)
typedef struct { int T, NH, hs; } DecodeCase;
static const DecodeCase decode_cases[] = {{1, 3, 8}, {2, 1, 16}, {31, 4, 24}, {33, 2, 40}, {64, 3, 64}, {65, 2, 80}, {130, 5, 64}, {257, 2, 16}, {300, 1, 264}, {600, 1, 8}};

// The cache holds the rows up to the position and not one more: the address sanitizer sees a read beyond.
template <class T>
static Floats run_decode(Lab* lab, const Floats& qkv, int position, int NH, int hs) {
    const int C = NH * hs;
    T *out = lab_alloc<T>(lab, C), *cache = lab_put<T>(lab, qkv);
    attention_decode(out, cache, position, C, NH, attention_scale(hs), lab->dev.stream);
    CHECK_SAME(lab_get(lab, cache, qkv.size()), qkv, "attention_decode changed its cache");
    return lab_get(lab, out, C);
}

// Against the oracle, and against attention_forward's last row: both may be off by twice the naive version's error, so by twice that from each other.
template <class T>
static void test_attention_decode(void) {
    Lab lab;
    const char* const names[] = {"arange", "random", "large", "integer"};
    for (int input = 0; input < 4; input++) {
        Earned error = earned<T>(), distance = earned<T>();
        for (const DecodeCase& c : decode_cases) {
            for (int position : {0, c.T / 2, c.T - 1}) {
                const int C = c.NH * c.hs, n = position + 1;
                for (int repeat = 0; repeat < repeats_for((size_t)n * n * C); repeat++) {
                    Floats qkv = make_input<T>(input == 2 ? INPUT_RANDOM : (Input)input, (size_t)n * 3 * C, repeat + 1, input == 2 ? 4.0f : 1.0f);
                    Doubles y((size_t)n * C), lse(n), wide = widen(qkv);
                    Floats y_lowp((size_t)n * C), lse_lowp(n);
                    for (int h = 0; h < c.NH; h++) {
                        forward_cpu(&y[h * c.hs], lse.data(), &wide[h * c.hs], n, C, c.hs);
                        forward_lowp<T>(&y_lowp[h * c.hs], lse_lowp.data(), &qkv[h * c.hs], n, C, c.hs, naive_sum_bits(&lab.dev, sizeof(T) == 4, false, false));
                    }
                    Floats got = run_decode<T>(&lab, qkv, position, c.NH, c.hs), naive(y_lowp.end() - C, y_lowp.end());
                    T* whole = lab_alloc<T>(&lab, (size_t)n * C);
                    attention_forward(&lab.dev, whole, lab_alloc<float>(&lab, c.NH * n), lab_put<T>(&lab, qkv),
                                      lab_alloc<unsigned char>(&lab, attention_scratch_bytes(false, 1, n, c.NH)), 1, n, C, c.NH, attention_scale(c.hs));
                    Floats last = lab_get(&lab, whole + (size_t)position * C, C);
                    earned_add(&error, Doubles(y.end() - C, y.end()), got, naive, c.NH, c.hs);
                    earned_add(&distance, widen(last), got, naive, c.NH, c.hs);
                    lab_reset(&lab);
                }
            }
        }
        earned_check(&error, "attention_decode %s %s", type_name<T>(), names[input]);
        distance.max_naive = 2 * fmax(error.max_naive, error.floor);
        distance.row_naive = 2 * fmax(error.row_naive, error.floor);
        earned_check(&distance, "attention_decode to attention_forward %s %s", type_name<T>(), names[input]);
    }
}

// One token sees itself alone: exactly its value. Infinite and NaN keys reach the output of their head only.
template <class T>
static void test_attention_decode_exact(void) {
    Lab lab;
    const int NH = 3, hs = 16, C = NH * hs;
    Floats qkv = make_input<T>(INPUT_RANDOM, 100 * 3 * C, 1), one(qkv.begin(), qkv.begin() + 3 * C);
    CHECK_SAME(run_decode<T>(&lab, one, 0, NH, hs), Floats(one.begin() + 2 * C, one.end()), "one token");
    Floats clean = run_decode<T>(&lab, qkv, 99, NH, hs);
    for (float bad : {NAN, INFINITY}) {
        Floats hurt = qkv;
        hurt[70 * 3 * C + C + hs] = bad;  // a key of head 1, in the second tile
        hurt[99 * 3 * C + hs] = 1.0f;     // its query, so that the score is +inf
        Floats got = run_decode<T>(&lab, hurt, 99, NH, hs);
        for (int i = 0; i < C; i++) {
            CHECK(i / hs == 1 ? isnan(got[i]) : bits_of(got[i]) == bits_of(clean[i]), "key %g: column %d is %g, %g without", bad, i, got[i], clean[i]);
        }
    }
}

template <class T>
static void test_attention_decode_repeats(void) {
    Lab lab;
    Floats qkv = make_input<T>(INPUT_RANDOM, 300 * 3 * 160, 1);
    check_repeats("attention_decode", [&] {
        Floats all;
        for (int position : {0, 40, 299}) {
            Floats rows(qkv.begin(), qkv.begin() + (position + 1) * 3 * 160), out = run_decode<T>(&lab, rows, position, 2, 80);
            all.insert(all.end(), out.begin(), out.end());
        }
        return all;
    });
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"attention_matches_double_f32", test_attention<float, ATTENTION_GEMM>, SLOW},
        {"attention_matches_double_bf16", test_attention<bf16, ATTENTION_GEMM>, SLOW},
        {"attention_matches_double_flash", test_attention<bf16, ATTENTION_FLASH>, SLOW},
        {"attention_oracle_finite_differences", test_attention_gradient, QUICK},
        {"attention_causal_f32", test_attention_causal<float, ATTENTION_GEMM>, QUICK},
        {"attention_causal_bf16", test_attention_causal<bf16, ATTENTION_GEMM>, QUICK},
        {"attention_causal_flash", test_attention_causal<bf16, ATTENTION_FLASH>, QUICK},
        {"attention_uniform_f32", test_attention_uniform<float, ATTENTION_GEMM>, QUICK},
        {"attention_uniform_bf16", test_attention_uniform<bf16, ATTENTION_GEMM>, QUICK},
        {"attention_uniform_flash", test_attention_uniform<bf16, ATTENTION_FLASH>, QUICK},
        {"attention_flash_nonfinite", test_attention_flash_nonfinite, QUICK},
        {"attention_groups", test_attention_groups, QUICK},
        {"attention_choice", test_attention_choice, QUICK},
        {"attention_repeats_f32", test_attention_repeats<float, ATTENTION_GEMM>, QUICK},
        {"attention_repeats_bf16", test_attention_repeats<bf16, ATTENTION_GEMM>, QUICK},
        {"attention_repeats_flash", test_attention_repeats<bf16, ATTENTION_FLASH>, QUICK},
        {"attention_decode_matches_double_f32", test_attention_decode<float>, SLOW},
        {"attention_decode_matches_double_bf16", test_attention_decode<bf16>, SLOW},
        {"attention_decode_exact_f32", test_attention_decode_exact<float>, QUICK},
        {"attention_decode_exact_bf16", test_attention_decode_exact<bf16>, QUICK},
        {"attention_decode_repeats_f32", test_attention_decode_repeats<float>, QUICK},
        {"attention_decode_repeats_bf16", test_attention_decode_repeats<bf16>, QUICK},
    };
    return TEST_MAIN(tests);
}
