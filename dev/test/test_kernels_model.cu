/* test_kernels_model.cu - encoder, layernorm, GELU, classifier and column sums against double oracles
 *
 * NAME_cpu is the oracle (double, from the values that the kernel reads), NAME_lowp the naive version of the kernel's precision that earns its tolerance
 * (oracle.h). The oracles' gradients are checked by finite differences of their forward passes.
 * Covers: llmc/encoder.cuh, layernorm.cuh, gelu.cuh, fused_classifier.cuh, column_sum.cuh
 */
#include "dev/test/oracle.h"
#include "llmc/column_sum.cuh"
#include "llmc/encoder.cuh"
#include "llmc/fused_classifier.cuh"
#include "llmc/gelu.cuh"
#include "llmc/layernorm.cuh"

// ---------------------------------------------------------------------------- encoder

static std::vector<int> random_tokens(size_t n, int vocab_size, uint64_t seed) {
    TestRng r = {seed};
    std::vector<int> tokens(n);
    for (int& t : tokens) { t = (int)(test_rng_u64(&r) % vocab_size); }
    return tokens;
}

struct EncoderCase { int B, T, C, V; };
static const EncoderCase encoder_cases[] = {{1, 1, 8, 1}, {1, 7, 16, 3}, {3, 16, 48, 256}, {2, 33, 768, 300}, {4, 64, 128, 50257}, {1, 64, 1600, 5}};

template <class T>
static void test_encoder_forward(void) {
    Lab lab;
    for (const EncoderCase& c : encoder_cases) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            const int N = c.B * c.T;
            std::vector<int> tokens = random_tokens(N, c.V, 7);
            tokens[N - 1] = c.V - 1;
            Floats wte = make_input<T>((Input)input, (size_t)c.V * c.C, 1), wpe = make_input<T>((Input)input, (size_t)c.T * c.C, 2), want((size_t)N * c.C);
            T *out = lab_alloc<T>(&lab, want.size()), *d_wte = lab_put<T>(&lab, wte), *d_wpe = lab_put<T>(&lab, wpe), *last = lab_alloc<T>(&lab, c.C);
            int* inp = lab_upload(&lab, tokens);
            encoder_forward(out, inp, d_wte, d_wpe, c.B, c.T, c.C, lab.dev.stream);
            encoder_forward(last, inp + N - 1, d_wte, d_wpe + (size_t)(c.T - 1) * c.C, 1, 1, c.C, lab.dev.stream);  // the newest token alone
            for (int i = 0; i < N; i++) {
                for (int k = 0; k < c.C; k++) { want[(size_t)i * c.C + k] = ref_round<T>(wte[(size_t)tokens[i] * c.C + k] + wpe[(size_t)(i % c.T) * c.C + k]); }
            }
            CHECK_SAME(lab_get(&lab, out, want.size()), want, "encoder B %d T %d C %d %s", c.B, c.T, c.C, input_names[input]);
            CHECK_SAME(lab_get(&lab, last, c.C), Floats(want.end() - c.C, want.end()), "encoder, last token of T %d C %d %s", c.T, c.C, input_names[input]);
            lab_reset(&lab);
        }
    }
}

static void test_encoder_groups(void) {
    for (const EncoderCase& c : encoder_cases) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            const int N = c.B * c.T;
            std::vector<int> inp = random_tokens(N, c.V, seed), order(N, -1), start(N + 1, -1), token(N, -1), count(c.V + 1, -1), seen(N, 0);
            int groups = encoder_group_tokens(order.data(), start.data(), token.data(), count.data(), inp.data(), N, c.V);
            CHECK(groups >= 1 && groups <= N && start[0] == 0 && start[groups] == N, "groups %d, start %d .. %d, N %d", groups, start[0], start[groups], N);
            for (int g = 0; g < groups; g++) {
                CHECK(start[g] < start[g + 1], "group %d is empty", g);
                CHECK(g == 0 || token[g - 1] < token[g], "tokens of groups %d and %d: %d, %d", g - 1, g, token[g - 1], token[g]);
                for (int j = start[g]; j < start[g + 1]; j++) {
                    CHECK(order[j] >= 0 && order[j] < N && inp[order[j]] == token[g], "group %d (token %d) holds position %d", g, token[g], order[j]);
                    CHECK(j == start[g] || order[j - 1] < order[j], "positions %d, %d of group %d do not ascend", order[j - 1], order[j], g);
                    seen[order[j]]++;
                }
            }
            for (int i = 0; i < N; i++) { CHECK(seen[i] == 1, "position %d occurs %d times", i, seen[i]); }
        }
    }
}

struct EncoderGroups { int *order, *start, *token, groups; };
static EncoderGroups upload_groups(Lab* lab, const std::vector<int>& inp, int V) {
    int N = (int)inp.size();
    std::vector<int> order(N), start(N + 1), token(N), count(V + 1);
    EncoderGroups g;
    g.groups = encoder_group_tokens(order.data(), start.data(), token.data(), count.data(), inp.data(), N, V);
    g.order = lab_upload(lab, order);
    g.start = lab_upload(lab, start);
    g.token = lab_upload(lab, token);
    return g;
}

// += into gradients that are not zero, twice, for each token's row in the order of positions
template <class T>
static void test_encoder_backward(void) {
    Lab lab;
    for (const EncoderCase& c : encoder_cases) {
        const int N = c.B * c.T;
        const size_t rows = c.V > 1000 ? 1000 : c.V;  // of dwte: a large vocabulary's test uses the first tokens only
        std::vector<int> inp = random_tokens(N, (int)rows, 11);
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned wte_error = earned<float>(), wpe_error = earned<float>();
            for (int repeat = 0; repeat < repeats_for((size_t)N * c.C); repeat++) {
                EncoderGroups g = upload_groups(&lab, inp, c.V);
                Floats dout = make_input<T>((Input)input, (size_t)N * c.C, 3 + repeat), dwte = make_input<float>((Input)input, rows * c.C, 40 + repeat);
                Floats dwpe = make_input<float>((Input)input, (size_t)c.T * c.C, 50 + repeat);
                Doubles dwte_cpu = widen(dwte), dwpe_cpu = widen(dwpe);
                Floats dwte_lowp = dwte, dwpe_lowp = dwpe;
                float *d_dwte = lab_put<float>(&lab, dwte), *d_dwpe = lab_put<float>(&lab, dwpe);
                T* d_dout = lab_put<T>(&lab, dout);
                for (int pass = 0; pass < 2; pass++) {
                    encoder_backward(d_dwte, d_dwpe, d_dout, g.order, g.start, g.token, g.groups, c.B, c.T, c.C, lab.dev.stream);
                    for (int i = 0; i < N; i++) {
                        for (int k = 0; k < c.C; k++) {
                            size_t e = (size_t)inp[i] * c.C + k, p = (size_t)(i % c.T) * c.C + k;
                            float x = dout[(size_t)i * c.C + k];
                            dwte_cpu[e] += x; dwte_lowp[e] += x;
                            dwpe_cpu[p] += x; dwpe_lowp[p] += x;
                        }
                    }
                }
                Floats got_wte = lab_get(&lab, d_dwte, dwte.size()), got_wpe = lab_get(&lab, d_dwpe, dwpe.size());
                if (input == INPUT_INTEGER) {  // sums of small integers: exact in any order
                    CHECK_SAME(got_wte, dwte_lowp, "dwte of integers");
                    CHECK_SAME(got_wpe, dwpe_lowp, "dwpe of integers");
                }
                std::vector<bool> used(rows, false);
                for (int t : inp) { used[t] = true; }
                for (size_t r = 0; r < rows; r++) {
                    for (int k = 0; k < c.C && !used[r]; k++) {
                        CHECK(bits_of(got_wte[r * c.C + k]) == bits_of(dwte[r * c.C + k]), "row %zu of an absent token changed", r);
                    }
                }
                earned_add(&wte_error, dwte_cpu, got_wte, dwte_lowp, rows, c.C);
                earned_add(&wpe_error, dwpe_cpu, got_wpe, dwpe_lowp, c.T, c.C);
                lab_reset(&lab);
            }
            earned_check(&wte_error, "encoder dwte %s N %d C %d %s", type_name<T>(), N, c.C, input_names[input]);
            earned_check(&wpe_error, "encoder dwpe %s N %d C %d %s", type_name<T>(), N, c.C, input_names[input]);
        }
    }
}

static void test_encoder_repeats(void) {
    Lab lab;
    const int B = 3, T = 33, C = 48, V = 20;
    std::vector<int> inp = random_tokens(B * T, V, 5);
    Floats dout = make_input<bf16>(INPUT_RANDOM, (size_t)B * T * C, 1);
    check_repeats("encoder_backward", [&] {
        EncoderGroups g = upload_groups(&lab, inp, V);
        float *dwte = lab_zeros<float>(&lab, V * C + T * C), *dwpe = dwte + V * C;
        encoder_backward(dwte, dwpe, lab_put<bf16>(&lab, dout), g.order, g.start, g.token, g.groups, B, T, C, lab.dev.stream);
        return lab_download(&lab, dwte, V * C + T * C);
    });
}

// ---------------------------------------------------------------------------- column sums

struct MatrixCase { int rows, cols; };
static const MatrixCase sum_cases[] = {{1, 8}, {15, 16}, {16, 48}, {17, 8}, {33, 768}, {64, 1600}, {257, 48}, {1000, 24}};

template <class T>
static void test_bias_backward(void) {
    Lab lab;
    for (const MatrixCase& c : sum_cases) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned error = earned<float>();
            for (int repeat = 0; repeat < repeats_for(4 * (size_t)c.cols); repeat++) {
                Floats dout = make_input<T>((Input)input, (size_t)c.rows * c.cols, repeat + 1),
                    dbias = make_input<float>((Input)input, c.cols, repeat + 100), lowp = dbias;
                Doubles cpu = widen(dbias);
                float *d_dbias = lab_put<float>(&lab, dbias), *partial = lab_alloc<float>(&lab, column_sum_partials(c.rows, c.cols));
                T* d_dout = lab_put<T>(&lab, dout);
                for (int pass = 0; pass < 2; pass++) {
                    bias_backward(d_dbias, partial, d_dout, c.rows, c.cols, lab.dev.stream);
                    for (int k = 0; k < c.cols; k++) {
                        float sum = 0.0f;
                        for (int r = 0; r < c.rows; r++) { sum += dout[(size_t)r * c.cols + k]; cpu[k] += dout[(size_t)r * c.cols + k]; }
                        lowp[k] += sum;
                    }
                }
                Floats got = lab_get(&lab, d_dbias, c.cols);
                if (input == INPUT_INTEGER) { CHECK_SAME(got, lowp, "dbias of integers, %d x %d", c.rows, c.cols); }
                earned_add(&error, cpu, got, lowp, 1, c.cols);
                lab_reset(&lab);
            }
            earned_check(&error, "bias_backward %s %d x %d %s", type_name<T>(), c.rows, c.cols, input_names[input]);
        }
    }
    // a NaN or an infinity of one column stays in its column
    Floats dout = make_input<T>(INPUT_RANDOM, 40 * 16, 1);
    dout[17 * 16 + 3] = NAN;
    dout[39 * 16 + 5] = -INFINITY;
    float *dbias = lab_zeros<float>(&lab, 16), *partial = lab_alloc<float>(&lab, column_sum_partials(40, 16));
    bias_backward(dbias, partial, lab_put<T>(&lab, dout), 40, 16, lab.dev.stream);
    Floats got = lab_get(&lab, dbias, 16);
    for (int k = 0; k < 16; k++) { CHECK(k == 3 ? isnan(got[k]) : k == 5 ? got[k] == -INFINITY : isfinite(got[k]), "dbias[%d] is %g", k, got[k]); }
}

static void test_column_sum_repeats(void) {
    Lab lab;
    Floats dout = make_input<bf16>(INPUT_RANDOM, (size_t)333 * 776, 1);
    check_repeats("bias_backward", [&] {
        float *dbias = lab_zeros<float>(&lab, 776), *partial = lab_alloc<float>(&lab, column_sum_partials(333, 776));
        bias_backward(dbias, partial, lab_put<bf16>(&lab, dout), 333, 776, lab.dev.stream);
        return lab_download(&lab, dbias, 776);
    });
}

// ---------------------------------------------------------------------------- layernorm

static const float EPS = 1e-5f;

static void layernorm_forward_cpu(Doubles* out, Doubles* mean, Doubles* rstd, const Doubles& x, const Doubles& w, const Doubles& b, int N, int C) {
    out->resize((size_t)N * C); mean->resize(N); rstd->resize(N);
    for (int r = 0; r < N; r++) {
        double m = 0, v = 0;
        for (int c = 0; c < C; c++) { m += x[(size_t)r * C + c]; }
        m /= C;
        for (int c = 0; c < C; c++) { double d = x[(size_t)r * C + c] - m; v += d * d; }
        double s = 1.0 / sqrt(v / C + (double)EPS);
        for (int c = 0; c < C; c++) { (*out)[(size_t)r * C + c] = (x[(size_t)r * C + c] - m) * s * w[c] + b[c]; }
        (*mean)[r] = m;
        (*rstd)[r] = s;
    }
}
template <class T>
static void layernorm_forward_lowp(Floats* out, Floats* mean, Floats* rstd, const Floats& x, const Floats& w, const Floats& b, int N, int C) {
    out->resize((size_t)N * C); mean->resize(N); rstd->resize(N);
    for (int r = 0; r < N; r++) {
        float m = 0, v = 0;
        for (int c = 0; c < C; c++) { m += x[(size_t)r * C + c]; }
        m /= C;
        for (int c = 0; c < C; c++) { float d = x[(size_t)r * C + c] - m; v += d * d; }
        float s = 1.0f / sqrtf(v / C + EPS);
        for (int c = 0; c < C; c++) { (*out)[(size_t)r * C + c] = ref_round<T>((x[(size_t)r * C + c] - m) * s * w[c] + b[c]); }
        (*mean)[r] = m;
        (*rstd)[r] = s;
    }
}
// dx of the row's own contribution; dw and db += . mean and rstd are exact.
static void layernorm_backward_cpu(Doubles* dx, Doubles* dw, Doubles* db, const Doubles& dout, const Doubles& x, const Doubles& w, int N, int C) {
    Doubles out, mean, rstd;
    layernorm_forward_cpu(&out, &mean, &rstd, x, w, w, N, C);
    dx->resize((size_t)N * C); dw->resize(C); db->resize(C);
    for (int r = 0; r < N; r++) {
        double sum_d = 0, sum_dn = 0;
        for (int c = 0; c < C; c++) {
            double norm = (x[(size_t)r * C + c] - mean[r]) * rstd[r], g = dout[(size_t)r * C + c];
            sum_d += g * w[c];
            sum_dn += g * w[c] * norm;
            (*dw)[c] += g * norm;
            (*db)[c] += g;
        }
        for (int c = 0; c < C; c++) {
            double norm = (x[(size_t)r * C + c] - mean[r]) * rstd[r];
            (*dx)[(size_t)r * C + c] = rstd[r] * (dout[(size_t)r * C + c] * w[c] - sum_d / C - norm * sum_dn / C);
        }
    }
}
// dx is added to `old` and rounded once; mean and rstd are those of the naive forward pass.
template <class T>
static void layernorm_backward_lowp(Floats* dx, Floats* dw, Floats* db, const Floats& old, const Floats& dout, const Floats& x, const Floats& w,
    const Floats& mean,
                                    const Floats& rstd, int N, int C) {
    dx->resize((size_t)N * C); dw->resize(C); db->resize(C);
    Floats dw_sum(C, 0.0f), db_sum(C, 0.0f);
    for (int r = 0; r < N; r++) {
        float sum_d = 0, sum_dn = 0;
        for (int c = 0; c < C; c++) {
            float norm = (x[(size_t)r * C + c] - mean[r]) * rstd[r], g = dout[(size_t)r * C + c];
            sum_d += g * w[c];
            sum_dn += g * w[c] * norm;
            dw_sum[c] += g * norm;
            db_sum[c] += g;
        }
        for (int c = 0; c < C; c++) {
            float norm = (x[(size_t)r * C + c] - mean[r]) * rstd[r];
            float d = rstd[r] * (dout[(size_t)r * C + c] * w[c] - sum_d / C - norm * (sum_dn / C));
            (*dx)[(size_t)r * C + c] = ref_round<T>(old[(size_t)r * C + c] + d);
        }
    }
    for (int c = 0; c < C; c++) { (*dw)[c] += dw_sum[c]; (*db)[c] += db_sum[c]; }
}

static const MatrixCase norm_cases[] = {{1, 8}, {1, 16}, {3, 16}, {7, 48}, {5, 264}, {33, 128}, {6, 768}, {4, 1600}, {70, 768}};

template <class T>
static void test_layernorm_forward(void) {
    Lab lab;
    for (const MatrixCase& c : norm_cases) {
        const int N = c.rows, C = c.cols;
        const size_t n = (size_t)N * C;
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned out_error = earned<T>(), mean_error = earned<float>(), rstd_error = earned<float>();
            for (int repeat = 0; repeat < repeats_for(n); repeat++) {
                Floats inp = make_input<T>((Input)input, n, 4 * repeat + 1), branch = make_input<T>((Input)input, n, 4 * repeat + 2);
                Floats w = make_input<T>(INPUT_RANDOM, C, 4 * repeat + 3), b = make_input<T>(INPUT_RANDOM, C, 4 * repeat + 4);
                T *d_inp = lab_put<T>(&lab, inp), *d_branch = lab_put<T>(&lab, branch), *d_w = lab_put<T>(&lab, w), *d_b = lab_put<T>(&lab, b);
                for (int with_branch = 0; with_branch < 2; with_branch++) {
                    T *out = lab_alloc<T>(&lab, n), *residual = lab_alloc<T>(&lab, n);
                    float *mean = lab_alloc<float>(&lab, N), *rstd = lab_alloc<float>(&lab, N);
                    unsigned* amax = lab_zeros<unsigned>(&lab, 1);
                    layernorm_forward(out, mean, rstd, with_branch ? residual : (T*)NULL, d_inp, with_branch ? d_branch : (T*)NULL, d_w, d_b, N, C, C,
                        amax, lab.dev.stream);
                    Floats x = inp;
                    if (with_branch) {
                        for (size_t i = 0; i < n; i++) { x[i] = ref_round<T>(inp[i] + branch[i]); }
                        CHECK_SAME(lab_get(&lab, residual, n), x, "residual %s %d x %d", type_name<T>(), N, C);
                    }
                    CHECK_SAME(lab_get(&lab, d_inp, n), inp, "the input of layernorm changed");
                    Doubles out_cpu, mean_cpu, rstd_cpu;
                    Floats out_lowp, mean_lowp, rstd_lowp, got = lab_get(&lab, out, n);
                    layernorm_forward_cpu(&out_cpu, &mean_cpu, &rstd_cpu, widen(x), widen(w), widen(b), N, C);
                    layernorm_forward_lowp<T>(&out_lowp, &mean_lowp, &rstd_lowp, x, w, b, N, C);
                    earned_add(&out_error, out_cpu, got, out_lowp, N, C);
                    earned_add(&mean_error, mean_cpu, lab_get(&lab, mean, N), mean_lowp, 1, N, float_of(max_bits(x)));  // a mean may cancel to nothing
                    earned_add(&rstd_error, rstd_cpu, lab_get(&lab, rstd, N), rstd_lowp, 1, N);
                    uint32_t amax_bits = lab_download(&lab, amax, 1)[0];
                    CHECK(amax_bits == max_bits(got), "amax %08x, largest magnitude of the output %08x", amax_bits, max_bits(got));
                    // without an amax, and with residual in the place of the branch: the same bits
                    T* again = lab_alloc<T>(&lab, n);
                    layernorm_forward(again, mean, rstd, with_branch ? d_branch : (T*)NULL, d_inp, with_branch ? d_branch : (T*)NULL, d_w, d_b, N, C, C,
                        (unsigned*)NULL, lab.dev.stream);
                    CHECK(same_bits(lab_get(&lab, again, n), got), "amax NULL, residual = branch: other bits");
                }
                lab_reset(&lab);
            }
            earned_check(&out_error, "layernorm out %s %d x %d %s", type_name<T>(), N, C, input_names[input]);
            earned_check(&mean_error, "layernorm mean %s %d x %d %s", type_name<T>(), N, C, input_names[input]);
            earned_check(&rstd_error, "layernorm rstd %s %d x %d %s", type_name<T>(), N, C, input_names[input]);
        }
    }
}

template <class T>
static void test_layernorm_backward(void) {
    Lab lab;
    for (const MatrixCase& c : norm_cases) {
        const int N = c.rows, C = c.cols;
        const size_t n = (size_t)N * C;
        for (int input = 0; input < NUM_INPUTS; input++) {
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                Earned dx_error = earned<T>(), dw_error = earned<float>(), db_error = earned<float>();
                for (int repeat = 0; repeat < repeats_for(n); repeat++) {
                    // the statistics come from an x of ordinary size; what is extreme is the gradient
                    Floats x = make_input<T>(input == INPUT_EXTREME ? INPUT_RANDOM : (Input)input, n, 5 * repeat + 1),
                        w = make_input<T>(INPUT_RANDOM, C, 5 * repeat + 2);
                    Floats dout = make_input<T>((Input)input, n, 5 * repeat + 3), old = make_input<T>(INPUT_RANDOM, n, 5 * repeat + 4);
                    Floats dw = make_input<float>(INPUT_RANDOM, C, 5 * repeat + 5), db = make_input<float>(INPUT_RANDOM, C, 5 * repeat + 6);
                    if (!accumulate) { old = Floats(n, 0.0f); }
                    Doubles unused, mean_cpu, rstd_cpu, dx_cpu, dw_cpu = widen(dw), db_cpu = widen(db);
                    Floats unused_f, mean, rstd, dx_lowp, dw_lowp = dw, db_lowp = db;
                    layernorm_forward_lowp<float>(&unused_f, &mean, &rstd, x, w, w, N, C);
                    T *d_x = lab_put<T>(&lab, x), *d_w = lab_put<T>(&lab, w), *d_dout = lab_put<T>(&lab, dout),
                        *d_dx = accumulate ? lab_put<T>(&lab, old) : lab_alloc<T>(&lab, n);
                    float *d_dw = lab_put<float>(&lab, dw), *d_db = lab_put<float>(&lab, db), *d_mean = lab_put<float>(&lab, mean),
                        *d_rstd = lab_put<float>(&lab, rstd);
                    float* partial = lab_alloc<float>(&lab, 2 * column_sum_partials(N, C));
                    unsigned* amax = lab_zeros<unsigned>(&lab, 2);
                    Floats got;
                    for (int pass = 0; pass < 2; pass++) {  // twice: dw and db grow, and dx where it accumulates
                        layernorm_backward(d_dx, d_dw, d_db, partial, d_dout, d_x, d_w, d_mean, d_rstd, N, C, C, accumulate, amax + pass, lab.dev.stream);
                        layernorm_backward_cpu(&dx_cpu, &dw_cpu, &db_cpu, widen(dout), widen(x), widen(w), N, C);
                        layernorm_backward_lowp<T>(&dx_lowp, &dw_lowp, &db_lowp, old, dout, x, w, mean, rstd, N, C);
                        for (size_t i = 0; i < n; i++) { dx_cpu[i] += old[i]; }
                        got = lab_get(&lab, d_dx, n);
                        earned_add(&dx_error, dx_cpu, got, dx_lowp, N, C);
                        uint32_t amax_bits = lab_download(&lab, amax + pass, 1)[0];
                        CHECK(amax_bits == max_bits(got), "amax %08x, largest magnitude of dx %08x", amax_bits, max_bits(got));
                        if (accumulate) { old = got; }
                    }
                    earned_add(&dw_error, dw_cpu, lab_get(&lab, d_dw, C), dw_lowp, 1, C);
                    earned_add(&db_error, db_cpu, lab_get(&lab, d_db, C), db_lowp, 1, C);
                    lab_reset(&lab);
                }
                earned_check(&dx_error, "layernorm dx%s %s %d x %d %s", accumulate ? " +=" : "", type_name<T>(), N, C, input_names[input]);
                earned_check(&dw_error, "layernorm dw %s %d x %d %s", type_name<T>(), N, C, input_names[input]);
                earned_check(&db_error, "layernorm db %s %d x %d %s", type_name<T>(), N, C, input_names[input]);
            }
        }
    }
}

static void test_layernorm_gradient(void) {
    const int N = 3, C = 8;
    Doubles x = widen(make_input<float>(INPUT_RANDOM, N * C, 1)), w = widen(make_input<float>(INPUT_RANDOM, C, 2)),
        b = widen(make_input<float>(INPUT_RANDOM, C, 3));
    Doubles g = widen(make_input<float>(INPUT_RANDOM, N * C, 4)), dx, dw(C, 0.0), db(C, 0.0), mean, rstd;
    layernorm_backward_cpu(&dx, &dw, &db, g, x, w, N, C);
    auto loss = [&](const Doubles& x_, const Doubles& w_, const Doubles& b_) {
        Doubles out;
        layernorm_forward_cpu(&out, &mean, &rstd, x_, w_, b_, N, C);
        return dot(out, g);
    };
    check_gradient("layernorm dx", [&](const Doubles& v) { return loss(v, w, b); }, x, dx);
    check_gradient("layernorm dw", [&](const Doubles& v) { return loss(x, v, b); }, w, dw);
    check_gradient("layernorm db", [&](const Doubles& v) { return loss(x, w, v); }, b, db);
}

// A row with a NaN gives a NaN amax (rule R2) and leaves other rows alone; a constant row gives its bias.
template <class T>
static void test_layernorm_special(void) {
    Lab lab;
    const int N = 6, C = 80;
    Floats x = make_input<T>(INPUT_RANDOM, N * C, 1), w = make_input<T>(INPUT_RANDOM, C, 2), b = make_input<T>(INPUT_RANDOM, C, 3);
    for (int c = 0; c < C; c++) { x[4 * C + c] = 2.5f; }
    T *out = lab_alloc<T>(&lab, N * C), *d_w = lab_put<T>(&lab, w), *d_b = lab_put<T>(&lab, b);
    float *mean = lab_alloc<float>(&lab, N), *rstd = lab_alloc<float>(&lab, N);
    for (int special = 0; special < 3; special++) {
        if (special) { x[2 * C + 77] = special == 1 ? NAN : INFINITY; }
        unsigned* amax = lab_zeros<unsigned>(&lab, 1);
        layernorm_forward(out, mean, rstd, (T*)NULL, lab_put<T>(&lab, x), (T*)NULL, d_w, d_b, N, C, C, amax, lab.dev.stream);
        Floats got = lab_get(&lab, out, N * C);
        for (int c = 0; c < C; c++) { CHECK(got[4 * C + c] == b[c], "constant row: %g at %d, bias %g", got[4 * C + c], c, b[c]); }
        for (int i = 0; i < N * C; i++) {
            CHECK(special && i / C == 2 ? isnan(got[i]) || special == 2 : isfinite(got[i]), "special %d: element %d is %g", special, i, got[i]);
        }
        uint32_t bits = lab_download(&lab, amax, 1)[0];
        CHECK(special ? bits > 0x7f800000u : bits < 0x7f800000u, "special %d: amax %08x", special, bits);
    }
    // backward: a NaN in one row of dout
    Floats dout = make_input<T>(INPUT_RANDOM, N * C, 5);
    dout[3 * C + 1] = NAN;
    T* dx = lab_alloc<T>(&lab, N * C);
    float *dw = lab_zeros<float>(&lab, C), *db = lab_zeros<float>(&lab, C), *partial = lab_alloc<float>(&lab, 2 * column_sum_partials(N, C));
    unsigned* amax = lab_zeros<unsigned>(&lab, 1);
    layernorm_backward(dx, dw, db, partial, lab_put<T>(&lab, dout), lab_put<T>(&lab, make_input<T>(INPUT_RANDOM, N * C, 1)), d_w,
        lab_put<float>(&lab, Floats(N, 0.0f)),
                       lab_put<float>(&lab, Floats(N, 1.0f)), N, C, C, false, amax, lab.dev.stream);
    Floats got = lab_get(&lab, dx, N * C);
    for (int i = 0; i < N * C; i++) { CHECK(i / C == 3 ? isnan(got[i]) : isfinite(got[i]), "dx[%d] is %g", i, got[i]); }
    CHECK(lab_download(&lab, amax, 1)[0] > 0x7f800000u, "the amax of a gradient with a NaN is no NaN");
}

// Rows that end before C: as rows of that width, and zeros beyond.
template <class T>
static void test_layernorm_width(void) {
    Lab lab;
    for (const MatrixCase& c : {MatrixCase{24, 32}, MatrixCase{264, 512}, MatrixCase{20, 32}, MatrixCase{100, 128}, MatrixCase{297, 304}}) {
        const int width = c.rows, C = c.cols, N = 16;
        Earned out_error = earned<T>(), dx_error = earned<T>(), dw_error = earned<float>();
        auto apart = [&](const Floats& x) {
            Floats out(x.size() / width * C, 0.0f);
            for (size_t i = 0; i < x.size(); i++) { out[i / width * C + i % width] = x[i]; }
            return lab_put<T>(&lab, out);
        };
        auto together = [&](const Floats& x) {
            Floats out;
            for (size_t i = 0; i < x.size(); i++) {
                if (i % C < (size_t)width) { out.push_back(x[i]); } else { CHECK(x[i] == 0, "width %d of %d: element %zu is %g", width, C, i, x[i]); }
            }
            return out;
        };
        for (int repeat = 0; repeat < 4; repeat++) {
            Floats x = make_input<T>(INPUT_RANDOM, N * width, 5 * repeat + 1), branch = make_input<T>(INPUT_RANDOM, N * width, 5 * repeat + 2), w = make_input<T>(INPUT_RANDOM, width, 5 * repeat + 3);
            Floats b = make_input<T>(INPUT_RANDOM, width, 5 * repeat + 4), dout = make_input<T>(INPUT_RANDOM, N * width, 5 * repeat + 5), sum = x;
            for (int i = 0; i < N * width; i++) { sum[i] = ref_round<T>(x[i] + branch[i]); }
            T *out = lab_alloc<T>(&lab, N * C), *residual = lab_alloc<T>(&lab, N * C), *dx = lab_alloc<T>(&lab, N * C), *d_w = apart(w);
            float *mean = lab_alloc<float>(&lab, N), *rstd = lab_alloc<float>(&lab, N), *dw = lab_zeros<float>(&lab, C), *db = lab_zeros<float>(&lab, C),
                *partial = lab_alloc<float>(&lab, 2 * column_sum_partials(N, C));
            layernorm_forward(out, mean, rstd, residual, apart(x), apart(branch), d_w, apart(b), N, C, width, (unsigned*)NULL, lab.dev.stream);
            layernorm_backward(dx, dw, db, partial, apart(dout), residual, d_w, mean, rstd, N, C, width, false, (unsigned*)NULL, lab.dev.stream);
            Doubles out_cpu, mean_cpu, rstd_cpu, dx_cpu, dw_cpu(width, 0.0), db_cpu(width, 0.0);
            Floats out_lowp, mean_lowp, rstd_lowp, dx_lowp, dw_lowp(width, 0.0f), db_lowp(width, 0.0f);
            layernorm_forward_cpu(&out_cpu, &mean_cpu, &rstd_cpu, widen(sum), widen(w), widen(b), N, width);
            layernorm_forward_lowp<T>(&out_lowp, &mean_lowp, &rstd_lowp, sum, w, b, N, width);
            layernorm_backward_cpu(&dx_cpu, &dw_cpu, &db_cpu, widen(dout), widen(sum), widen(w), N, width);
            layernorm_backward_lowp<T>(&dx_lowp, &dw_lowp, &db_lowp, Floats(N * width, 0.0f), dout, sum, w, mean_lowp, rstd_lowp, N, width);
            CHECK_SAME(together(lab_get(&lab, residual, N * C)), sum, "residual, width %d of %d", width, C);
            earned_add(&out_error, out_cpu, together(lab_get(&lab, out, N * C)), out_lowp, N, width);
            earned_add(&dx_error, dx_cpu, together(lab_get(&lab, dx, N * C)), dx_lowp, N, width);
            earned_add(&dw_error, dw_cpu, together(lab_get(&lab, dw, C)), dw_lowp, 1, width);
            earned_add(&dw_error, db_cpu, together(lab_get(&lab, db, C)), db_lowp, 1, width);
            lab_reset(&lab);
        }
        earned_check(&out_error, "layernorm out %s, width %d of %d", type_name<T>(), width, C);
        earned_check(&dx_error, "layernorm dx %s, width %d of %d", type_name<T>(), width, C);
        earned_check(&dw_error, "layernorm dw, db %s, width %d of %d", type_name<T>(), width, C);
    }
}

static void test_layernorm_repeats(void) {
    Lab lab;
    const int N = 37, C = 264;
    Floats x = make_input<bf16>(INPUT_RANDOM, N * C, 1), w = make_input<bf16>(INPUT_RANDOM, C, 2), g = make_input<bf16>(INPUT_RANDOM, N * C, 3);
    check_repeats("layernorm", [&] {
        bf16 *out = lab_alloc<bf16>(&lab, 3 * N * C), *residual = out + N * C, *dx = residual + N * C, *d_x = lab_put<bf16>(&lab, x),
            *d_w = lab_put<bf16>(&lab, w);
        float *mean = lab_alloc<float>(&lab, N), *rstd = lab_alloc<float>(&lab, N), *dw = lab_zeros<float>(&lab, 2 * C),
            *partial = lab_alloc<float>(&lab, 2 * column_sum_partials(N, C));
        unsigned* amax = lab_zeros<unsigned>(&lab, 2);
        layernorm_forward(out, mean, rstd, residual, d_x, d_x, d_w, d_w, N, C, C, amax, lab.dev.stream);
        layernorm_backward(dx, dw, dw + C, partial, lab_put<bf16>(&lab, g), residual, d_w, mean, rstd, N, C, C, false, amax + 1, lab.dev.stream);
        Floats all = lab_get(&lab, out, 3 * N * C), sums = lab_get(&lab, dw, 2 * C), m = lab_get(&lab, mean, N), s = lab_get(&lab, rstd, N);
        all.insert(all.end(), sums.begin(), sums.end());
        all.insert(all.end(), m.begin(), m.end());
        all.insert(all.end(), s.begin(), s.end());
        for (unsigned bits : lab_download(&lab, amax, 2)) { all.push_back(float_of(bits)); }
        return all;
    });
}

// ---------------------------------------------------------------------------- GELU

static double gelu_cpu(double x) { return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
static double gelu_tail_cpu(double x) {  // the same without cancellation: (1 + tanh u) / 2 = 1 / (1 + exp(-2u))
    return x / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_derivative_cpu(double x) {
    double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), s = 1.0 / (1.0 + exp(-2.0 * u)), q = 1.0 / (1.0 + exp(2.0 * u));
    return s + 2.0 * x * s * q * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}
static float gelu_lowp(float x) {
    float u = 0.79788456f * (x + 0.044715f * x * x * x);
    return x / (1.0f + naive_expf(-2.0f * u));
}
static float gelu_derivative_lowp(float x) {
    float u = 0.79788456f * (x + 0.044715f * x * x * x), s = 1.0f / (1.0f + naive_expf(-2.0f * u));
    return s + 2.0f * x * s * (1.0f - s) * 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
}

// the inputs of one test: a ramp through the curved part, and the other inputs
template <class T>
static Floats gelu_input(int input, size_t n, int seed) {
    if (input != INPUT_ARANGE) { return make_input<T>((Input)input, n, seed, 3.0f); }
    Floats v(n);
    for (size_t i = 0; i < n; i++) { v[i] = ref_round<T>(-12.0f + 24.0f * (float)i / (float)n); }
    return v;
}

template <class T>
static void test_gelu(void) {
    Lab lab;
    for (int i = 0; i <= 1000; i++) {  // the oracle's two forms agree where neither cancels
        double x = -2.0 + i * 0.01;
        CHECK(fabs(gelu_cpu(x) - gelu_tail_cpu(x)) <= 8 * DBL_EPSILON * (1 + fabs(x)), "oracle at %g: %.17g, %.17g", x, gelu_cpu(x), gelu_tail_cpu(x));
    }
    const size_t sizes[] = {8, 24, 2040, 2048, 2056, 10000};
    for (size_t n : sizes) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned out_error = earned<T>(), dinp_error = earned<T>(), tail_error = earned<T>();
            for (int repeat = 0; repeat < repeats_for(n); repeat++) {
                Floats x = gelu_input<T>(input, n, 2 * repeat + 1),
                    g = make_input<T>(input == INPUT_ARANGE ? INPUT_ARANGE : INPUT_RANDOM, n, 2 * repeat + 2), out_lowp(n), dinp_lowp(n);
                Doubles out_cpu(n), dinp_cpu(n);
                for (size_t i = 0; i < n; i++) {
                    out_cpu[i] = gelu_tail_cpu(x[i]);
                    dinp_cpu[i] = g[i] * gelu_derivative_cpu(x[i]);
                    out_lowp[i] = ref_round<T>(gelu_lowp(x[i]));
                    dinp_lowp[i] = ref_round<T>(g[i] * gelu_derivative_lowp(x[i]));
                }
                T *d_x = lab_put<T>(&lab, x), *d_g = lab_put<T>(&lab, g), *out = lab_alloc<T>(&lab, n), *dinp = lab_alloc<T>(&lab, n);
                unsigned* amax = lab_zeros<unsigned>(&lab, 2);
                gelu_forward(out, d_x, n, amax, lab.dev.stream);
                gelu_backward(dinp, d_x, d_g, n, amax + 1, lab.dev.stream);
                Floats got_out = lab_get(&lab, out, n), got_dinp = lab_get(&lab, dinp, n);
                earned_add(&out_error, out_cpu, got_out, out_lowp, n / 8, 8);
                earned_add(&dinp_error, dinp_cpu, got_dinp, dinp_lowp, n / 8, 8);
                // each part of the ramp for itself: small results are as precise as large ones
                for (size_t i = 0; i < n && n > 2000 && input == INPUT_ARANGE; i += 8) {
                    earned_add(&tail_error, Doubles(&out_cpu[i], &out_cpu[i] + 8), Floats(&got_out[i], &got_out[i] + 8),
                        Floats(&out_lowp[i], &out_lowp[i] + 8), 1, 8);
                }
                std::vector<unsigned> bits = lab_download(&lab, amax, 2);
                CHECK(bits[0] == max_bits(got_out) && bits[1] == max_bits(got_dinp), "amaxes %08x %08x, should be %08x %08x", bits[0], bits[1],
                    max_bits(got_out), max_bits(got_dinp));
                // without amaxes, and backward in place
                gelu_forward(out, d_x, n, (unsigned*)NULL, lab.dev.stream);
                gelu_backward(d_g, d_x, d_g, n, (unsigned*)NULL, lab.dev.stream);
                CHECK(same_bits(lab_get(&lab, out, n), got_out) && same_bits(lab_get(&lab, d_g, n), got_dinp), "amax NULL, in place: other bits");
                lab_reset(&lab);
            }
            earned_check(&out_error, "gelu out %s n %zu %s", type_name<T>(), n, input_names[input]);
            earned_check(&dinp_error, "gelu dinp %s n %zu %s", type_name<T>(), n, input_names[input]);
            if (input == INPUT_ARANGE && n > 2000) { earned_check(&tail_error, "gelu out by parts %s n %zu", type_name<T>(), n); }
        }
    }
}

static void test_gelu_gradient(void) {
    for (int i = 0; i < 200; i++) {
        Doubles x(1, -6.0 + 0.06 * i), g(1, gelu_derivative_cpu(x[0]));
        check_gradient("gelu", [](const Doubles& v) { return gelu_tail_cpu(v[0]); }, x, g);
    }
}

// Far out GELU is 0 or x, its derivative 0 or 1, also where x^2 overflows; NaN survives in value and amax.
template <class T>
static void test_gelu_special(void) {
    Lab lab;
    const float values[8] = {-1e30f, -1e4f, -100.0f, 0.0f, -0.0f, 100.0f, 1e4f, 1e30f};
    Floats x(16), ones(16, 1.0f);
    for (int i = 0; i < 16; i++) { x[i] = ref_round<T>(values[i % 8]); }
    for (int special = 0; special < 2; special++) {
        if (special) { x[13] = NAN; }
        T *d_x = lab_put<T>(&lab, x), *out = lab_alloc<T>(&lab, 16), *dinp = lab_alloc<T>(&lab, 16);
        unsigned* amax = lab_zeros<unsigned>(&lab, 2);
        gelu_forward(out, d_x, 16, amax, lab.dev.stream);
        gelu_backward(dinp, d_x, lab_put<T>(&lab, ones), 16, amax + 1, lab.dev.stream);
        Floats y = lab_get(&lab, out, 16), d = lab_get(&lab, dinp, 16);
        for (int i = 0; i < 16; i++) {
            if (special && i == 13) { CHECK(isnan(y[i]) && isnan(d[i]), "gelu(NaN) = %g, derivative %g", y[i], d[i]); continue; }
            CHECK(y[i] == (x[i] > 0 ? x[i] : 0.0f), "gelu(%g) = %g", x[i], y[i]);
            CHECK(d[i] == (x[i] == 0 ? 0.5f : x[i] > 0 ? 1.0f : 0.0f), "gelu'(%g) = %g", x[i], d[i]);
        }
        for (unsigned bits : lab_download(&lab, amax, 2)) { CHECK(special ? bits > 0x7f800000u : bits < 0x7f800000u, "special %d: amax %08x", special, bits); }
    }
}

static void test_gelu_repeats(void) {
    Lab lab;
    const size_t n = 50008;
    Floats x = make_input<bf16>(INPUT_RANDOM, n, 1), g = make_input<bf16>(INPUT_RANDOM, n, 2);
    check_repeats("gelu", [&] {
        bf16 *d_x = lab_put<bf16>(&lab, x), *d_g = lab_put<bf16>(&lab, g), *out = lab_alloc<bf16>(&lab, n);
        unsigned* amax = lab_zeros<unsigned>(&lab, 2);
        gelu_forward(out, d_x, n, amax, lab.dev.stream);
        gelu_backward(d_g, d_x, d_g, n, amax + 1, lab.dev.stream);
        Floats all = lab_get(&lab, out, n), d = lab_get(&lab, d_g, n);
        all.insert(all.end(), d.begin(), d.end());
        for (unsigned bits : lab_download(&lab, amax, 2)) { all.push_back(float_of(bits)); }
        return all;
    });
}

// ---------------------------------------------------------------------------- classifier

static void classifier_cpu(Doubles* loss, Doubles* dlogits, const Doubles& z, const std::vector<int>& target, double dloss, int rows, int V, int Vp) {
    dlogits->assign((size_t)rows * Vp, 0.0);
    for (int r = 0; r < rows; r++) {
        const double* row = z.data() + (size_t)r * Vp;
        double top = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) { top = fmax(top, row[v]); }
        for (int v = 0; v < V; v++) { sum += exp(row[v] - top); }
        (*loss)[r] += log(sum) + top - row[target[r]];
        for (int v = 0; v < V; v++) { (*dlogits)[(size_t)r * Vp + v] = (exp(row[v] - top) / sum - (v == target[r])) * dloss; }
    }
}
template <class T>
static void classifier_lowp(Floats* loss, Floats* dlogits, const Floats& z, const std::vector<int>& target, float dloss, int rows, int V, int Vp) {
    dlogits->assign((size_t)rows * Vp, 0.0f);
    for (int r = 0; r < rows; r++) {
        const float* row = z.data() + (size_t)r * Vp;
        float top = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) { top = fmaxf(top, row[v]); }
        for (int v = 0; v < V; v++) { sum += naive_expf(row[v] - top); }
        (*loss)[r] += logf(sum) + top - row[target[r]];
        for (int v = 0; v < V; v++) {
            (*dlogits)[(size_t)r * Vp + v] = ref_round<T>(naive_expf(row[v] - top) * (dloss / sum) - (v == target[r] ? dloss : 0.0f));
        }
    }
}

struct ClassifierCase { int rows, V, Vp; };
static const ClassifierCase classifier_cases[] = {{1, 1, 8}, {1, 2, 8}, {3, 5, 16}, {33, 256, 256}, {7, 300, 384}, {2, 1000, 1024}, {2, 50257, 50304}};

template <class T>
static void test_classifier(void) {
    Lab lab;
    for (const ClassifierCase& c : classifier_cases) {
        const size_t n = (size_t)c.rows * c.Vp;
        for (int input = 0; input < NUM_INPUTS; input++) {
            Earned loss_error = earned<float>(), grad_error = earned<T>();
            for (int repeat = 0; repeat < repeats_for(n); repeat++) {
                Floats z = make_input<T>((Input)input, n, 3 * repeat + 1, 2.0f), losses = make_input<float>(INPUT_ARANGE, c.rows, repeat);
                std::vector<int> target = random_tokens(c.rows, c.V, 3 * repeat + 2);
                target[c.rows - 1] = c.V - 1;
                for (float& l : losses) { l = fabsf(l); }
                for (size_t i = 0; i < n; i++) { if ((int)(i % c.Vp) >= c.V) { z[i] = NAN; } }  // the padding must not matter
                const float dloss = 1.0f / (float)(repeat + 3);
                Doubles loss_cpu = widen(losses), grad_cpu;
                Floats loss_lowp = losses, grad_lowp;
                T* logits = lab_put<T>(&lab, z);
                float* d_losses = lab_put<float>(&lab, losses);
                int* d_target = lab_upload(&lab, target);
                for (int pass = 0; pass < 2; pass++) {  // without gradients the logits stay; the losses add up over both
                    fused_classifier(logits, d_losses, d_target, dloss, c.rows, c.V, c.Vp, pass == 1, lab.dev.stream);
                    if (pass == 0) { CHECK_SAME(lab_get(&lab, logits, n), z, "logits after write_dlogits false"); }
                    classifier_cpu(&loss_cpu, &grad_cpu, widen(z), target, dloss, c.rows, c.V, c.Vp);
                    classifier_lowp<T>(&loss_lowp, &grad_lowp, z, target, dloss, c.rows, c.V, c.Vp);
                }
                Floats got = lab_get(&lab, logits, n);
                for (size_t i = 0; i < n; i++) { CHECK((int)(i % c.Vp) < c.V || bits_of(got[i]) == 0, "padding: gradient %zu is %g", i, got[i]); }
                earned_add(&loss_error, loss_cpu, lab_get(&lab, d_losses, c.rows), loss_lowp, 1, c.rows);
                // where the target's probability is nearly 1 its gradient p - 1 cancels: errors then count against dloss
                const bool cancels = input == INPUT_EXTREME || c.V <= 5;
                earned_add(&grad_error, grad_cpu, got, grad_lowp, c.rows, c.Vp, cancels ? dloss : 0.0);
                lab_reset(&lab);
            }
            earned_check(&loss_error, "classifier loss %s %d x %d %s", type_name<T>(), c.rows, c.V, input_names[input]);
            earned_check(&grad_error, "classifier dlogits %s %d x %d %s", type_name<T>(), c.rows, c.V, input_names[input]);
        }
    }
}

static void test_classifier_gradient(void) {
    const int rows = 2, V = 7, Vp = 8;
    std::vector<int> target = {0, 6};
    Doubles z = widen(make_input<float>(INPUT_RANDOM, rows * Vp, 1)), loss(rows, 0.0), grad, unused;
    classifier_cpu(&loss, &grad, z, target, 0.25, rows, V, Vp);
    auto mean_loss = [&](const Doubles& v) {
        Doubles l(rows, 0.0);
        classifier_cpu(&l, &unused, v, target, 0.25, rows, V, Vp);
        return 0.25 * (l[0] + l[1]);
    };
    check_gradient("classifier", mean_loss, z, grad);
}

// A logit of -inf is an impossible token; equal logits give log V exactly as often as asked; a NaN logit makes the loss NaN.
template <class T>
static void test_classifier_special(void) {
    Lab lab;
    const int rows = 6, V = 300, Vp = 384;
    Floats z = make_input<T>(INPUT_RANDOM, rows * Vp, 1);
    for (int v = 0; v < V; v++) { z[Vp + v] = ref_round<T>(-7.25f); }
    for (int v = 0; v < V; v += 2) { z[2 * Vp + v] = -INFINITY; }
    z[3 * Vp + 299] = NAN;
    std::vector<int> target = {5, 299, 1, 0, NO_TARGET, NO_TARGET};
    float* losses = lab_upload(&lab, std::vector<float>{0, 0, 0, 0, 2.5f, 0});
    T* logits = lab_put<T>(&lab, z);
    fused_classifier(logits, losses, lab_upload(&lab, target), 1.0f, rows, V, Vp, true, lab.dev.stream);
    Floats loss = lab_get(&lab, losses, rows), grad = lab_get(&lab, logits, rows * Vp);
    CHECK(isfinite(loss[0]) && isfinite(loss[2]) && isnan(loss[3]), "losses %g %g %g %g", loss[0], loss[1], loss[2], loss[3]);
    CHECK(fabs(loss[1] - log(300.0)) <= 2 * FLT_EPSILON * (log(300.0) + 7.25), "equal logits: loss %.9g, log V = %.9g", loss[1], log(300.0));
    for (int v = 0; v < V; v += 2) { CHECK(grad[2 * Vp + v] == 0, "gradient of a logit of -inf: %g", grad[2 * Vp + v]); }
    CHECK(loss[4] == 2.5f && loss[5] == 0, "rows without a target: losses %g %g", loss[4], loss[5]);
    for (int v = 0; v < 2 * Vp; v++) { CHECK(grad[4 * Vp + v] == 0, "a row without a target has gradient %g", grad[4 * Vp + v]); }
    double sum = 0;
    for (int v = 0; v < V; v++) { sum += grad[v]; }
    CHECK(fabs(sum) <= V * (sizeof(T) == 2 ? 0x1p-9 : 0x1p-24), "gradients of a row add up to %g", sum);  // each of at most 1 is rounded once
}

static void test_classifier_repeats(void) {
    Lab lab;
    const int rows = 20, V = 5003, Vp = 5056;
    Floats z = make_input<bf16>(INPUT_RANDOM, (size_t)rows * Vp, 1);
    std::vector<int> target = random_tokens(rows, V, 2);
    check_repeats("fused_classifier", [&] {
        bf16* logits = lab_put<bf16>(&lab, z);
        float* losses = lab_zeros<float>(&lab, rows);
        fused_classifier(logits, losses, lab_upload(&lab, target), 0.1f, rows, V, Vp, true, lab.dev.stream);
        Floats all = lab_get(&lab, logits, (size_t)rows * Vp), l = lab_get(&lab, losses, rows);
        all.insert(all.end(), l.begin(), l.end());
        return all;
    });
}

// ---------------------------------------------------------------------------- the tolerance itself

// A test that cannot fail is a defect: errors planted in a good result must break the earned tolerance.
template <class T>
static void test_oracle_finds_planted_errors(void) {
    const int N = 64, C = 128;
    Floats x = make_input<T>(INPUT_RANDOM, N * C, 1), w(C, 1.0f), b(C, 0.0f), good, mean, rstd;
    for (int c = 0; c < C; c++) { x[5 * C + c] *= 0x1p-12f; }  // a row so small that epsilon counts: its output is small as well
    Doubles cpu, mean_cpu, rstd_cpu;
    layernorm_forward_cpu(&cpu, &mean_cpu, &rstd_cpu, widen(x), widen(w), widen(b), N, C);
    layernorm_forward_lowp<T>(&good, &mean, &rstd, x, w, b, N, C);
    auto holds = [&](const Floats& result) { Earned e = earned<T>(); earned_add(&e, cpu, result, good, N, C); return earned_holds(&e); };
    CHECK(holds(good), "the naive version does not pass its own tolerance");
    Floats bad = good;
    bad[17 * C + 3] = NAN;
    CHECK(!holds(bad), "a NaN passes");
    bad = good;
    bad[17 * C + 3] += sizeof(T) == 2 ? 0.03f : 1e-5f;
    CHECK(!holds(bad), "one wrong element passes");
    bad = good;
    for (int c = 0; c < C; c++) { bad[5 * C + c] *= sizeof(T) == 2 ? 1.02f : 1.00001f; }
    CHECK(!holds(bad), "a small row that is off by a factor passes");
    bad = good;
    for (int c = 0; c < C; c++) { std::swap(bad[8 * C + c], bad[9 * C + c]); }
    CHECK(!holds(bad), "two rows that changed places pass");
    for (int i = 0; i < 1000; i++) {  // the reference rounding agrees with the neighbours' distances
        float v = make_input<float>(INPUT_EXTREME, 1, i)[0], r = ref_round_bf16(v);
        float up = float_of((bits_of(r) & 0xffff0000u) + 0x10000u), down = (bits_of(r) & 0x7fffffffu) ? float_of(bits_of(r) - 0x10000u) : r;
        CHECK((bits_of(r) & 0xffffu) == 0, "%g rounds to %g, which is no bf16", v, r);
        CHECK(fabs((double)v - r) <= fabs((double)v - up) && fabs((double)v - r) <= fabs((double)v - down), "%.9g rounds to %.9g", v, r);
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"oracle_finds_planted_errors_f32", test_oracle_finds_planted_errors<float>, QUICK},
        {"oracle_finds_planted_errors_bf16", test_oracle_finds_planted_errors<bf16>, QUICK},
        {"encoder_forward_exact_f32", test_encoder_forward<float>, QUICK},
        {"encoder_forward_exact_bf16", test_encoder_forward<bf16>, QUICK},
        {"encoder_groups_every_position_once", test_encoder_groups, QUICK},
        {"encoder_backward_accumulates_f32", test_encoder_backward<float>, SLOW},
        {"encoder_backward_accumulates_bf16", test_encoder_backward<bf16>, SLOW},
        {"encoder_repeats", test_encoder_repeats, QUICK},
        {"bias_backward_matches_oracle_f32", test_bias_backward<float>, QUICK},
        {"bias_backward_matches_oracle_bf16", test_bias_backward<bf16>, QUICK},
        {"column_sum_repeats", test_column_sum_repeats, QUICK},
        {"layernorm_forward_matches_oracle_f32", test_layernorm_forward<float>, SLOW},
        {"layernorm_forward_matches_oracle_bf16", test_layernorm_forward<bf16>, SLOW},
        {"layernorm_backward_matches_oracle_f32", test_layernorm_backward<float>, SLOW},
        {"layernorm_backward_matches_oracle_bf16", test_layernorm_backward<bf16>, SLOW},
        {"layernorm_oracle_finite_differences", test_layernorm_gradient, QUICK},
        {"layernorm_special_values_f32", test_layernorm_special<float>, QUICK},
        {"layernorm_special_values_bf16", test_layernorm_special<bf16>, QUICK},
        {"layernorm_width_f32", test_layernorm_width<float>, QUICK},
        {"layernorm_width_bf16", test_layernorm_width<bf16>, QUICK},
        {"layernorm_repeats", test_layernorm_repeats, QUICK},
        {"gelu_matches_oracle_f32", test_gelu<float>, QUICK},
        {"gelu_matches_oracle_bf16", test_gelu<bf16>, QUICK},
        {"gelu_oracle_finite_differences", test_gelu_gradient, QUICK},
        {"gelu_special_values_f32", test_gelu_special<float>, QUICK},
        {"gelu_special_values_bf16", test_gelu_special<bf16>, QUICK},
        {"gelu_repeats", test_gelu_repeats, QUICK},
        {"classifier_matches_oracle_f32", test_classifier<float>, SLOW},
        {"classifier_matches_oracle_bf16", test_classifier<bf16>, SLOW},
        {"classifier_oracle_finite_differences", test_classifier_gradient, QUICK},
        {"classifier_special_values_f32", test_classifier_special<float>, QUICK},
        {"classifier_special_values_bf16", test_classifier_special<bf16>, QUICK},
        {"classifier_repeats", test_classifier_repeats, QUICK},
    };
    return TEST_MAIN(tests);
}
