/* test_fp8_producers.cu - kernels that write FP8 operands themselves, against the kernels they replace: every code, scale, amax, sum and weight bit for bit
 *
 * Covers: llmc/fp8_producers.cuh. Every recipe that writes in one pass, on whole and partial blocks, on slabs; the counted bytes. */
#include "dev/test/test.h"

#include "dev/test/fp8_lab.h"
#include "llmc/fp8_producers.cuh"

static const int shapes[][2] = {{16, 16}, {48, 160}, {144, 400}, {256, 128}};

// Recipes whose operands are written in one pass once there is a history.
struct OnePass { const char* recipe; bool powers_of_two; };
static const OnePass one_pass[] = {{"delayed", false}, {"block", false}, {"block", true}, {"mx", false}};
static Fp8Settings settings_of(const OnePass& c) {
    Fp8Settings s = settings_of(c.recipe);
    s.powers_of_two = c.powers_of_two;
    return s;
}

// A slot of each of two equal states, with a history of one step if the recipe has one, and the operand that goes with it.
struct Side {
    ScalingLab* lab;
    int slot, rows, cols;
    Fp8Operand q;
    std::vector<uint8_t> bytes(const void* device, size_t n) { return lab_download(&lab->lab, (const uint8_t*)device, n); }
};
static Side side(const OnePass& c, Fp8Role role, int rows, int cols, bool k, bool t) {
    Side s;
    s.lab = scaling_lab(2, settings_of(c));
    Fp8Scaling* f = &s.lab->s;
    Lab* lab = &s.lab->lab;
    s.slot = fp8_slot(f, role, 1, LINEAR_FC);
    s.rows = rows;
    s.cols = cols;
    const Fp8Granularity by = fp8_slot_granularity(f, s.slot);
    const size_t n = (size_t)rows * cols;
    s.q = fp8_operand(f, s.slot, k ? lab_zeros<uint8_t>(lab, n) : NULL, t ? lab_zeros<uint8_t>(lab, n) : NULL, lab_zeros<uint8_t>(lab, fp8_scale_bytes(by, rows, cols) + 16),
                      lab_zeros<uint8_t>(lab, fp8_scale_bytes(by, cols, rows) + 16));
    if (f->settings.history) {  // R5: the first step has the scale of its own amax, the next one that of the history
        lab_write(lab, f->amax_step + s.slot, std::vector<unsigned>(1, bits_of(3.0f)));
        f->used[s.slot] = 1;
        fp8_scaling_end_step(f, lab->dev.stream);
        lab_write(lab, f->amax_step + s.slot, std::vector<unsigned>(1, 0));
    }
    CHECK(fp8_fuses(f, s.slot, false), "%s does not write in one pass", c.recipe);
    return s;
}
static void check_same(Side* a, Side* b, const char* what) {
    cudaCheck(cudaStreamSynchronize(a->lab->lab.dev.stream));
    cudaCheck(cudaStreamSynchronize(b->lab->lab.dev.stream));
    const Fp8Granularity by = fp8_slot_granularity(&a->lab->s, a->slot);
    const size_t n = (size_t)a->rows * a->cols;
    const char* name = a->lab->s.recipe->name;
    if (a->q.k) { CHECK(a->bytes(a->q.k, n) == b->bytes(b->q.k, n), "%s %s %d x %d: codes of k differ", name, what, a->rows, a->cols); }
    if (a->q.t) { CHECK(a->bytes(a->q.t, n) == b->bytes(b->q.t, n), "%s %s %d x %d: codes of t differ", name, what, a->rows, a->cols); }
    if (by != FP8_BY_TENSOR) {
        const size_t k_bytes = fp8_scale_bytes(by, a->rows, a->cols), t_bytes = fp8_scale_bytes(by, a->cols, a->rows);
        CHECK(a->bytes(a->q.k_scale, k_bytes) == b->bytes(b->q.k_scale, k_bytes), "%s %s %d x %d: scales of k differ", name, what, a->rows, a->cols);
        CHECK(a->bytes(a->q.t_scale, t_bytes) == b->bytes(b->q.t_scale, t_bytes), "%s %s %d x %d: scales of t differ", name, what, a->rows, a->cols);
    }
    const uint32_t amax = at(a->lab, a->lab->s.amax_step, a->slot);
    CHECK(amax == at(b->lab, b->lab->s.amax_step, b->slot) && amax == at(a->lab, a->lab->s.amax, a->slot) && amax == at(b->lab, b->lab->s.amax, b->slot), "%s %s: amaxes differ", name, what);
    CHECK(amax != 0, "%s %s: no amax was recorded", name, what);
    CHECK(at(a->lab, a->lab->s.scale, a->slot) == at(b->lab, b->lab->s.scale, b->slot), "%s %s: scales differ", name, what);
}
static void free_sides(Side* a, Side* b) {
    scaling_lab_free(a->lab);
    scaling_lab_free(b->lab);
}
static void check_traffic(Side* fused, Side* apart, int orders, size_t n) {
    CHECK(fused->lab->s.traffic == orders * n, "fused: %llu bytes counted, not %zu", fused->lab->s.traffic, orders * n);
    CHECK(apart->lab->s.traffic == (orders + 2) * n, "two kernels: %llu bytes counted, not %zu", apart->lab->s.traffic, (orders + 2) * n);
}

static void layernorm_case(const OnePass& c, int rows, int cols, int real, bool with_branch) {
    Side f = side(c, FP8_ROLE_X, rows, cols, true, true), u = side(c, FP8_ROLE_X, rows, cols, true, true);
    const size_t n = (size_t)rows * cols;
    const int width = with_branch ? cols : cols - 3;
    const Floats inp = make_input<bf16>(INPUT_RANDOM, n, 1), branch = make_input<bf16>(INPUT_RANDOM, n, 2);
    const Floats w = make_input<bf16>(INPUT_RANDOM, cols, 3), b = make_input<bf16>(INPUT_RANDOM, cols, 4);
    Floats residual[2], mean[2], rstd[2];
    for (Side* s : {&f, &u}) {
        Lab* lab = &s->lab->lab;
        bf16 *d_inp = lab_put<bf16>(lab, inp), *d_branch = with_branch ? lab_put<bf16>(lab, branch) : NULL, *d_res = with_branch ? lab_zeros<bf16>(lab, n) : NULL;
        bf16 *d_w = lab_put<bf16>(lab, w), *d_b = lab_put<bf16>(lab, b), *out = lab_zeros<bf16>(lab, n);
        float *d_mean = lab_zeros<float>(lab, rows), *d_rstd = lab_zeros<float>(lab, rows);
        if (s == &f) { fp8_layernorm_forward(&s->lab->s, s->slot, s->q, d_mean, d_rstd, d_res, d_inp, d_branch, d_w, d_b, real, rows, cols, width, lab->dev.stream); }
        else {
            layernorm_forward(out, d_mean, d_rstd, d_res, d_inp, d_branch, d_w, d_b, real, cols, width, (unsigned*)NULL, lab->dev.stream);
            fp8_quantize(&s->lab->s, s->slot, s->q, out, rows, cols, NULL, NULL, false, lab->dev.stream);
        }
        residual[s == &u] = with_branch ? lab_get(lab, d_res, n) : Floats();
        mean[s == &u] = lab_get(lab, d_mean, rows);
        rstd[s == &u] = lab_get(lab, d_rstd, rows);
        if (s == &f && real == rows) {  // again, into t alone, from what is there now
            Side r = side(c, FP8_ROLE_X, rows, cols, false, true);
            const Fp8Operand t = fp8_operand(&s->lab->s, s->slot, NULL, r.q.t, NULL, r.q.t_scale);
            fp8_layernorm_again(&s->lab->s, s->slot, t, d_mean, d_rstd, with_branch ? d_res : d_inp, d_w, d_b, real, cols, lab->dev.stream);
            CHECK(r.bytes(r.q.t, n) == s->bytes(s->q.t, n), "%s: recomputed codes differ", c.recipe);
            s->lab->s.traffic -= n;
            scaling_lab_free(r.lab);
        }
    }
    check_same(&f, &u, "layernorm");
    CHECK(same_bits(residual[0], residual[1]) && same_bits(mean[0], mean[1]) && same_bits(rstd[0], rstd[1]), "%s: residual or statistics differ", c.recipe);
    check_traffic(&f, &u, 2, n);
    free_sides(&f, &u);
}
static void test_layernorm_forward(void) {
    for (const OnePass& c : one_pass) {
        for (auto& s : shapes) { for (int branch = 0; branch < 2; branch++) { layernorm_case(c, s[0], s[1], s[0], branch); } }
    }
    layernorm_case(one_pass[0], 16, 64, 1, true);  // a sampled token: the other rows are 0
}
static void layernorm_backward_case(const OnePass& c, int N, int C, bool accumulate) {
    const size_t n = (size_t)N * C;
    const int width = accumulate ? C - 3 : C;
    Side f = side(c, FP8_ROLE_DY, N, C, true, true), u = side(c, FP8_ROLE_DY, N, C, true, true);
    Floats results[2][4];
    for (Side* s : {&f, &u}) {
        Lab* lab = &s->lab->lab;
        bf16 *dres = lab_put<bf16>(lab, make_input<bf16>(INPUT_RANDOM, n, 1)), *dout = lab_put<bf16>(lab, make_input<bf16>(INPUT_RANDOM, n, 2));
        bf16 *x = lab_put<bf16>(lab, make_input<bf16>(INPUT_RANDOM, n, 3)), *w = lab_put<bf16>(lab, make_input<bf16>(INPUT_RANDOM, C, 4));
        float *dw = lab_put<float>(lab, make_input<float>(INPUT_RANDOM, C, 5)), *db = lab_put<float>(lab, make_input<float>(INPUT_RANDOM, C, 6));
        float *dbias = lab_put<float>(lab, make_input<float>(INPUT_RANDOM, C, 7)), *partial = lab_alloc<float>(lab, 2 * column_sum_partials(N, C));
        float *mean = lab_put<float>(lab, make_input<float>(INPUT_RANDOM, N, 8)), *rstd = lab_put<float>(lab, make_input<float>(INPUT_RANDOM, N, 9));
        if (s == &f) {
            fp8_layernorm_backward(&s->lab->s, s->slot, s->q, dbias, dres, dw, db, partial, lab_alloc<float2>(lab, N), dout, x, w, mean, rstd, N, C, width, accumulate, lab->dev.stream);
        } else {
            layernorm_backward(dres, dw, db, partial, dout, x, w, mean, rstd, N, C, width, accumulate, (unsigned*)NULL, lab->dev.stream);
            fp8_quantize(&s->lab->s, s->slot, s->q, dres, N, C, dbias, partial, false, lab->dev.stream);
        }
        Floats* r = results[s == &u];
        r[0] = lab_get(lab, dres, n);
        r[1] = lab_get(lab, dw, C);
        r[2] = lab_get(lab, db, C);
        r[3] = lab_get(lab, dbias, C);
    }
    check_same(&f, &u, "layernorm backward");
    for (int i = 0; i < 4; i++) { CHECK(same_bits(results[0][i], results[1][i]), "%s %d x %d: result %d of dresidual, dw, db, dbias differs", c.recipe, N, C, i); }
    check_traffic(&f, &u, 2, n);
    free_sides(&f, &u);
}
static void test_layernorm_backward(void) {
    for (const OnePass& c : one_pass) {
        for (auto& s : shapes) { for (int accumulate = 0; accumulate < 2; accumulate++) { layernorm_backward_case(c, s[0], s[1], accumulate); } }
    }
}
// More rows than a slab holds: the pieces meet without a seam.
static void test_layernorm_slabs(void) {
    const int cols = 8192, rows = 2 * fp8_slab_rows(3 * cols * 2) + 144;
    CHECK(rows < 1200 && rows > 2 * fp8_slab_rows(4 * cols * 2), "this test is meant to be small, of three slabs: %d rows", rows);
    layernorm_case(one_pass[2], rows, cols, rows, true);
    layernorm_backward_case(one_pass[2], rows, cols, true);
}

static void test_gelu(void) {
    for (const OnePass& c : one_pass) {
        for (auto& shape : shapes) {
            const int rows = shape[0], cols = shape[1];
            const size_t n = (size_t)rows * cols;
            const Floats h = make_input<bf16>(INPUT_RANDOM, n, 1, 3.0f), g = make_input<bf16>(INPUT_RANDOM, n, 2);
            Side f = side(c, FP8_ROLE_X, rows, cols, true, false), u = side(c, FP8_ROLE_X, rows, cols, true, false);
            Side fd = side(c, FP8_ROLE_DY, rows, cols, true, true), ud = side(c, FP8_ROLE_DY, rows, cols, true, true);
            Lab *lf = &f.lab->lab, *lu = &u.lab->lab, *lfd = &fd.lab->lab, *lud = &ud.lab->lab;
            fp8_gelu_forward(&f.lab->s, f.slot, f.q, lab_put<bf16>(lf, h), rows, cols, false, lf->dev.stream);
            bf16* out = lab_alloc<bf16>(lu, n);
            gelu_forward(out, lab_put<bf16>(lu, h), n, (unsigned*)NULL, lu->dev.stream);
            fp8_quantize(&u.lab->s, u.slot, u.q, out, rows, cols, NULL, NULL, false, lu->dev.stream);
            check_same(&f, &u, "gelu");
            check_traffic(&f, &u, 1, n);
            float *dbias = lab_zeros<float>(lfd, cols), *dbias_u = lab_zeros<float>(lud, cols);
            fp8_gelu_backward(&fd.lab->s, fd.slot, fd.q, dbias, lab_alloc<float>(lfd, column_sum_partials(rows, cols)), lab_put<bf16>(lfd, h), lab_put<bf16>(lfd, g), rows, cols, lfd->dev.stream);
            bf16* dout = lab_put<bf16>(lud, g);
            gelu_backward(dout, lab_put<bf16>(lud, h), dout, n, (unsigned*)NULL, lud->dev.stream);
            fp8_quantize(&ud.lab->s, ud.slot, ud.q, dout, rows, cols, dbias_u, lab_alloc<float>(lud, column_sum_partials(rows, cols)), false, lud->dev.stream);
            check_same(&fd, &ud, "gelu backward");
            CHECK(same_bits(lab_get(lfd, dbias, cols), lab_get(lud, dbias_u, cols)), "%s: bias gradients differ", c.recipe);
            check_traffic(&fd, &ud, 2, n);
            free_sides(&f, &u);
            free_sides(&fd, &ud);
        }
    }
}

static void test_adamw(void) {
    AdamWParams a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f - powf(0.9f, 3.0f), 1.0f - powf(0.95f, 3.0f), 0.7f, 123u, 456u, 789u};
    for (const OnePass& c : one_pass) {
        for (auto& shape : shapes) {
            for (int way = 0; way < 4; way++) {
                const int rows = shape[0], cols = shape[1];
                const size_t n = (size_t)rows * cols;
                const MomentType type = way % 2 ? MOMENT_BF16 : MOMENT_F32;
                Side f = side(c, FP8_ROLE_W, rows, cols, true, true), u = side(c, FP8_ROLE_W, rows, cols, true, true);
                CHECK(fp8_adamw_fuses(&f.lab->s, f.slot, type) && !fp8_adamw_fuses(&f.lab->s, f.slot, MOMENT_F8), "%s: fusing", c.recipe);
                std::vector<uint8_t> results[2][4];
                for (Side* s : {&f, &u}) {
                    Lab* lab = &s->lab->lab;
                    bf16 *param = lab_put<bf16>(lab, make_input<bf16>(INPUT_RANDOM, 2 * n, 1)), *grad = lab_put<bf16>(lab, make_input<bf16>(INPUT_RANDOM, 2 * n, 2));
                    float* master = way / 2 ? lab_put<float>(lab, make_input<float>(INPUT_RANDOM, 2 * n, 3)) : NULL;
                    Floats v = make_input<float>(INPUT_RANDOM, 2 * n, 4), m = make_input<float>(INPUT_RANDOM, 2 * n, 5);
                    for (float& each : v) { each *= each; }
                    auto put = [&](const Floats& x) { return type == MOMENT_F32 ? (void*)lab_put<float>(lab, x) : lab_put<bf16>(lab, x); };
                    Moments moments = {put(m), put(v), NULL, NULL, n};
                    if (s == &f) { fp8_adamw_update(&s->lab->s, s->slot, s->q, param + n, master ? master + n : NULL, type, moments, grad + n, 1, rows, cols, a, lab->dev.stream); }
                    else {
                        AdamWLayout layout = {n, n, 0, n, n, 1, 1};
                        adamw_update_moments(param, master, type, moments, grad, layout, (unsigned*)NULL, a, lab->dev.stream);
                        fp8_quantize(&s->lab->s, s->slot, s->q, param + n, rows, cols, NULL, NULL, false, lab->dev.stream);
                    }
                    const size_t moment = type == MOMENT_F32 ? 4 : 2;
                    std::vector<uint8_t>* r = results[s == &u];
                    r[0] = s->bytes(param, 4 * n);
                    r[1] = s->bytes(moments.m, 2 * n * moment);
                    r[2] = s->bytes(moments.v, 2 * n * moment);
                    if (master) { r[3] = s->bytes(master, 8 * n); }
                }
                check_same(&f, &u, "adamw");
                for (int i = 0; i < 4; i++) { CHECK(results[0][i] == results[1][i], "%s %d x %d way %d: result %d of weights, m, v, masters differs", c.recipe, rows, cols, way, i); }
                CHECK(f.lab->s.traffic == 0 && u.lab->s.traffic == 0, "weights are no traffic of tokens");
                free_sides(&f, &u);
            }
        }
    }
}

// Who may not fuse: two passes, a history that is empty, formats without kernels, steps that count or measure; recomputing may, whatever it counts.
static void test_fuses(void) {
    for (const Fp8Recipe& r : fp8_recipes) {
        ScalingLab* l = scaling_lab(1, fp8_settings(&r));
        const int x = fp8_slot(&l->s, FP8_ROLE_X, 0, LINEAR_QKV), dy = fp8_slot(&l->s, FP8_ROLE_DY, 0, LINEAR_QKV);
        const bool blocks = r.by_x == FP8_BY_VEC128 || r.by_x == FP8_BY_VEC32;
        CHECK(fp8_fuses(&l->s, x, false) == blocks && fp8_fuses(&l->s, dy, false) == blocks, "%s: at the first step", r.name);
        CHECK(fp8_fuses(&l->s, x, true) == (r.by_x != FP8_BY_ROW), "%s: recomputing", r.name);
        l->s.count_on = true;
        CHECK(!fp8_fuses(&l->s, x, false) && fp8_fuses(&l->s, x, true) == (r.by_x != FP8_BY_ROW), "%s: while counting", r.name);
        l->s.count_on = false;
        l->s.noise_on = true;
        CHECK(!fp8_fuses(&l->s, x, false), "%s: while measuring", r.name);
        l->s.noise_on = false;
        l->s.format[x] = FP8_E5M2;
        CHECK(!fp8_fuses(&l->s, x, false), "%s: inputs in E5M2", r.name);
        scaling_lab_free(l);
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_layernorm_forward_fused", test_layernorm_forward, QUICK},
        {"fp8_layernorm_slabs", test_layernorm_slabs, SLOW},
        {"fp8_layernorm_backward_fused", test_layernorm_backward, QUICK},
        {"fp8_gelu_fused", test_gelu, QUICK},
        {"fp8_adamw_fused", test_adamw, QUICK},
        {"fp8_fuses", test_fuses, QUICK},
    };
    return TEST_MAIN(tests);
}
