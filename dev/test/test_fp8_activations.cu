/* test_fp8_activations.cu - activations kept in one byte an element: codes, exponents and what comes back bit for bit; what attention's backward makes of them
 *
 * The reference states the rule in double, value by value. The gradients of attention are compared with those in double of the tensors that were not packed:
 * that is the measurement behind making probabilities and y again from what came back (train_gpt_fp8.cu, gpt_backward).
 * Covers: llmc/fp8_activations.cuh
 */
#include "dev/test/fp8_lab.h"
#include "llmc/attention.cuh"
#include "llmc/fp8_activations.cuh"

// The smallest e >= 0 with 448 * 2^(e - 127) >= amax; inf 254, NaN 255.
static int ref_exponent(float amax) {
    if (isnan(amax)) { return 255; }
    if (isinf(amax)) { return 254; }
    int e = 0;
    while (ldexp(448.0, e - 127) < (double)amax) { e++; }
    return e;
}
static float ref_back(int code, int e) { return e == 255 ? NAN : ref_round_bf16(ref_decode(FP8_E4M3, code) * ldexp(1.0, e - 127)); }
static bool same(float a, float b) { return (isnan(a) && isnan(b)) || bits_of(a) == bits_of(b); }

// Packs x (rows,cols), compares everything with the rule, and what comes back with x.
static void check_pack(Lab* lab, const Floats& x, int rows, int cols, const char* what) {
    const size_t n = x.size(), blocks = (cols + 127) / 128;
    bf16 *d_x = lab_put<bf16>(lab, x), *d_y = lab_alloc<bf16>(lab, n);
    uint8_t *d_codes = lab_alloc<uint8_t>(lab, n), *d_exponents = lab_alloc<uint8_t>(lab, rows * blocks);
    CHECK(fp8_pack_exponents(rows, cols) == rows * blocks, "%zu exponents, should be %zu", fp8_pack_exponents(rows, cols), rows * blocks);
    fp8_pack(d_codes, d_exponents, d_x, rows, cols, lab->dev.stream);
    fp8_unpack(d_y, d_codes, d_exponents, rows, cols, lab->dev.stream);
    const std::vector<uint8_t> codes = lab_download(lab, d_codes, n), exponents = lab_download(lab, d_exponents, rows * blocks);
    const Floats y = lab_get(lab, d_y, n);
    const RefTable* table = ref_table(FP8_E4M3);
    for (int r = 0; r < rows; r++) {
        for (size_t b = 0; b < blocks; b++) {
            const int c0 = (int)b * 128, c1 = c0 + 128 < cols ? c0 + 128 : cols;
            uint32_t most = 0;
            for (int c = c0; c < c1; c++) { const uint32_t a = bits_of(x[(size_t)r * cols + c]) & 0x7fffffffu; most = a > most ? a : most; }
            const int e = ref_exponent(float_of(most));
            CHECK(exponents[r * blocks + b] == e, "%s %d x %d: exponent of row %d, group %zu, amax %g, is %d, should be %d", what, rows, cols, r, b, float_of(most), exponents[r * blocks + b], e);
            for (int c = c0; c < c1; c++) {
                const size_t i = (size_t)r * cols + c;
                bool over;
                const int code = ref_encode(table, (float)((double)x[i] * ldexp(1.0, 127 - e)), &over);
                CHECK(codes[i] == code || (isnan(x[i]) && (codes[i] & 0x7f) == 0x7f), "%s %d x %d: code (%d,%d) of %g is %02x, should be %02x", what, rows, cols, r, c, x[i], codes[i], code);
                CHECK(same(y[i], ref_back(codes[i], e)), "%s %d x %d: (%d,%d) comes back as %.9g, should be %.9g", what, rows, cols, r, c, y[i], ref_back(codes[i], e));
                if (e > 9 && e < 254 && fabsf(x[i]) < 0x1.fp127f) {  // half a step: of the value where E4M3 is normal, of its smallest step below
                    const double bound = fmax(fabs((double)x[i]) / 16, ldexp(1.0, e - 127 - 10));
                    CHECK(fabs((double)y[i] - x[i]) <= bound, "%s: %g comes back as %g", what, x[i], y[i]);
                }
            }
        }
    }
    // once more: nothing moves, but for BF16 denormals, and inf that 448 * 2^120 stood for
    fp8_pack(d_codes, d_exponents, d_y, rows, cols, lab->dev.stream);
    fp8_unpack(d_x, d_codes, d_exponents, rows, cols, lab->dev.stream);
    const Floats again = lab_get(lab, d_x, n);
    for (size_t i = 0; i < n; i++) {
        const int e = exponents[i / cols * blocks + i % cols / 128];
        CHECK(same(again[i], y[i]) || e <= 9 || e >= 247, "%s %d x %d: element %zu is %.9g after packing once, %.9g after twice", what, rows, cols, i, y[i], again[i]);
    }
    lab_reset(lab);
}
static void test_pack_equals_its_rule(void) {
    Lab lab;
    for (auto& shape : {std::pair<int, int>(1, 16), {3, 48}, {16, 128}, {17, 144}, {48, 272}, {5, 1600}, {7, 4800}, {16, 6400}}) {
        const int rows = shape.first, cols = shape.second;
        const size_t n = (size_t)rows * cols;
        check_pack(&lab, make_input<bf16>(INPUT_ARANGE, n, n), rows, cols, "arange");
        check_pack(&lab, make_input<bf16>(INPUT_RANDOM, n, n), rows, cols, "random");
        check_pack(&lab, make_input<bf16>(INPUT_EXTREME, n, n), rows, cols, "extreme");
        check_pack(&lab, Floats(n, 0.0f), rows, cols, "zeros");
        if (rows % 16 == 0) { check_pack(&lab, edge_input(rows, cols, n), rows, cols, "edges"); }
    }
    for (unsigned factor : {40503u, 1u}) {  // all values, mixed, and in order
        Floats x(65536);
        for (uint32_t i = 0; i < 65536; i++) { x[i] = float_of(((i * factor) & 0xffffu) << 16); }
        check_pack(&lab, x, 64, 1024, factor == 1 ? "in order" : "mixed");
    }
}
// Every code with every exponent.
static void test_unpack_every_code(void) {
    Lab lab;
    std::vector<uint8_t> codes(256 * 256), exponents(2 * 256);
    for (int e = 0; e < 256; e++) {
        exponents[2 * e] = exponents[2 * e + 1] = (uint8_t)e;
        for (int c = 0; c < 256; c++) { codes[256 * e + c] = (uint8_t)c; }
    }
    bf16* d_x = lab_alloc<bf16>(&lab, codes.size());
    fp8_unpack(d_x, lab_upload(&lab, codes), lab_upload(&lab, exponents), 256, 256, lab.dev.stream);
    const Floats x = lab_get(&lab, d_x, codes.size());
    for (size_t i = 0; i < x.size(); i++) {
        const float due = ref_back((int)(i % 256), (int)(i / 256));
        CHECK(same(x[i], due), "code %02zx, exponent %zu: %.9g, should be %.9g", i % 256, i / 256, x[i], due);
    }
}

// ---------------------------------------------------------------------------- attention

// y and the gradient of qkv (T,3C) in double, of one sequence.
static void ref_attention(Doubles* y, Doubles* dqkv, const Doubles& qkv, const Doubles& dy, int T, int C, int NH) {
    const int hs = C / NH;
    y->assign((size_t)T * C, 0.0);
    dqkv->assign((size_t)T * 3 * C, 0.0);
    for (int h = 0; h < NH; h++) {
        auto at = [&](int t, int part, int i) { return (size_t)t * 3 * C + part * C + h * hs + i; };
        for (int t = 0; t < T; t++) {
            Doubles p(t + 1), dp(t + 1, 0.0);
            double top = -INFINITY, sum = 0.0, delta = 0.0;
            for (int u = 0; u <= t; u++) {
                for (int i = 0; i < hs; i++) { p[u] += qkv[at(t, 0, i)] * qkv[at(u, 1, i)] / sqrt((double)hs); dp[u] += dy[(size_t)t * C + h * hs + i] * qkv[at(u, 2, i)]; }
                top = fmax(top, p[u]);
            }
            for (double& v : p) { v = exp(v - top); sum += v; }
            for (int u = 0; u <= t; u++) { p[u] /= sum; delta += p[u] * dp[u]; }
            for (int u = 0; u <= t; u++) {
                const double ds = p[u] * (dp[u] - delta) / sqrt((double)hs);
                for (int i = 0; i < hs; i++) {
                    (*y)[(size_t)t * C + h * hs + i] += p[u] * qkv[at(u, 2, i)];
                    (*dqkv)[at(u, 2, i)] += p[u] * dy[(size_t)t * C + h * hs + i];
                    (*dqkv)[at(t, 0, i)] += ds * qkv[at(u, 1, i)];
                    (*dqkv)[at(u, 1, i)] += ds * qkv[at(t, 0, i)];
                }
            }
        }
    }
}
// Of the parts q, k and v of two gradients, the worst cosine.
static double worst_cosine(const Doubles& a, const Floats& b, int T, int C) {
    double worst = 1.0;
    for (int part = 0; part < 3; part++) {
        double ab = 0, aa = 0, bb = 0;
        for (int t = 0; t < T; t++) {
            for (int c = part * C; c < (part + 1) * C; c++) {
                const size_t i = (size_t)t * 3 * C + c;
                ab += a[i] * b[i]; aa += a[i] * a[i]; bb += (double)b[i] * b[i];
            }
        }
        worst = fmin(worst, ab / sqrt(aa * bb));
    }
    return worst;
}
// Backward of attention from tensors that were packed: probabilities exp(s - lse) with forward's lse do not sum to one, since s belongs to other q and k, and
// dY . y does not belong to them either. Making both again costs a forward pass of attention and keeps the gradient near the exact one for sharp attention too.
static void test_attention_of_packed_tensors(void) {
    const int T = 128, C = 128, NH = 2, hs = C / NH;
    Lab lab;
    cudaStream_t stream = lab.dev.stream;
    for (double sharpness : {0.3, 1.0, 3.0, 8.0}) {  // standard deviation of the scores
        for (double mean : {0.0, 3.0}) {             // of v, in its standard deviations: what all values of a head have in common
            TestRng r = {test_seed() + 5};
            Floats qkv((size_t)T * 3 * C), dy((size_t)T * C), common(C);
            for (float& v : common) { v = (float)(mean * test_rng_normal(&r)); }
            for (size_t i = 0; i < qkv.size(); i++) {
                const int c = (int)(i % (3 * C));
                qkv[i] = ref_round_bf16(test_rng_normal(&r) * (c < 2 * C ? sqrt(sharpness) : 1.0) + (c < 2 * C ? 0.0f : common[c - 2 * C]));
            }
            for (float& v : dy) { v = ref_round_bf16(test_rng_normal(&r)); }
            Doubles y, exact;
            ref_attention(&y, &exact, widen(qkv), widen(dy), T, C, NH);
            bf16 *d_qkv = lab_put<bf16>(&lab, qkv), *d_dy = lab_put<bf16>(&lab, dy), *d_y = lab_alloc<bf16>(&lab, dy.size()), *d_dqkv = lab_alloc<bf16>(&lab, qkv.size());
            float* lse = lab_alloc<float>(&lab, (size_t)T * NH);
            char* scratch = lab_alloc<char>(&lab, attention_scratch_bytes(false, 1, T, NH));
            uint8_t *codes = lab_alloc<uint8_t>(&lab, qkv.size()), *exponents = lab_alloc<uint8_t>(&lab, fp8_pack_exponents(T, 3 * C));
            double cosine[3];
            auto backward = [&](int which) {
                attention_backward(&lab.dev, d_dqkv, d_dy, d_qkv, d_y, lse, scratch, 1, T, C, NH, attention_scale(C / NH));
                cosine[which] = worst_cosine(exact, lab_get(&lab, d_dqkv, qkv.size()), T, C);
            };
            attention_forward(&lab.dev, d_y, lse, d_qkv, scratch, 1, T, C, NH, attention_scale(C / NH));
            backward(0);  // nothing packed
            fp8_pack(codes, exponents, d_qkv, T, 3 * C, stream);
            fp8_unpack(d_qkv, codes, exponents, T, 3 * C, stream);
            fp8_pack(codes, exponents, d_y, T, C, stream);
            fp8_unpack(d_y, codes, exponents, T, C, stream);
            backward(1);  // with forward's lse
            attention_forward(&lab.dev, d_y, lse, d_qkv, scratch, 1, T, C, NH, attention_scale(C / NH));
            backward(2);
            printf("    scores %.1f, v %.0f (hs %d): worst cosine of dq, dk, dv %.4f; packed, with forward's lse and y %.4f, made again %.4f\n", sharpness, mean, hs, cosine[0], cosine[1], cosine[2]);
            CHECK(cosine[0] >= 0.999, "scores %g: attention in BF16 itself has cosine %g", sharpness, cosine[0]);
            CHECK(cosine[2] >= 0.95, "scores %g, v %g: cosine %g", sharpness, mean, cosine[2]);
            CHECK(1 - cosine[2] <= (sharpness < 2 ? 1.0 : 0.7) * (1 - cosine[1]), "scores %g, v %g: made again %g, with forward's lse %g", sharpness, mean, cosine[2], cosine[1]);
            lab_reset(&lab);
        }
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_pack_equals_its_rule_bit_for_bit", test_pack_equals_its_rule, QUICK},
        {"fp8_unpack_every_code_and_exponent", test_unpack_every_code, QUICK},
        {"attention_backward_of_packed_tensors", test_attention_of_packed_tensors, QUICK},
    };
    return TEST_MAIN(tests);
}
