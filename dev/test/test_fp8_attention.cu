/* test_fp8_attention.cu - flash attention that writes FP8 operands itself, against flash attention and fp8_quantize: every code, scale, amax and value bit for bit
 *
 * Covers: llmc/fp8_attention.cuh. Every recipe that writes in one pass; partial patches of tokens and of channels; heads of 64 and 128; when it does not apply.
 */
#include "dev/test/fp8_lab.h"
#include "llmc/fp8_attention.cuh"

typedef struct { const char* recipe; bool powers_of_two; } OnePass;
static const OnePass one_pass[] = {{"delayed", false}, {"block", false}, {"block", true}, {"mx", false}};
typedef struct { int B, T, NH, hs; } Shape;

// A state whose slots have a history, where the recipe has one: the scale is known before the tensor is.
static ScalingLab* ready_lab(const OnePass& c, Fp8Role role, Linear linear, int* slot) {
    Fp8Settings settings = settings_of(c.recipe);
    settings.powers_of_two = c.powers_of_two;
    ScalingLab* l = scaling_lab(2, settings);
    *slot = fp8_slot(&l->s, role, 1, linear);
    l->lab.dev.attention = ATTENTION_FLASH;
    if (settings.history) {
        lab_write(&l->lab, l->s.amax_step + *slot, std::vector<unsigned>(1, bits_of(3.0f)));
        l->s.used[*slot] = 1;
        fp8_scaling_end_step(&l->s, l->lab.dev.stream);
        lab_write(&l->lab, l->s.amax_step + *slot, std::vector<unsigned>(1, 0));
    }
    return l;
}

// Everything an operand (rows,cols) of a slot consists of, as bytes; what nobody writes keeps the poison.
typedef std::vector<uint8_t> Bytes;
struct Parts {
    size_t bytes[4];
    uint8_t* at[4];
    Fp8Operand q;
};
static Parts parts_alloc(ScalingLab* l, int slot, int rows, int cols, bool k, bool t) {
    const Fp8Granularity by = fp8_slot_granularity(&l->s, slot);
    const size_t n = (size_t)rows * cols;
    Parts p = {{k ? n : 0, t ? n : 0, k ? fp8_scale_bytes(by, rows, cols) : 0, t ? fp8_scale_bytes(by, cols, rows) : 0}, {}, {}};
    for (int i = 0; i < 4; i++) { p.at[i] = p.bytes[i] ? lab_alloc<uint8_t>(&l->lab, p.bytes[i]) : NULL; }
    p.q = fp8_operand(&l->s, slot, p.at[0], p.at[1], p.at[2], p.at[3]);
    return p;
}
static std::vector<Bytes> parts_get(ScalingLab* l, const Parts& p, int slot) {
    std::vector<Bytes> out;
    for (int i = 0; i < 4; i++) { out.push_back(p.bytes[i] ? lab_download(&l->lab, p.at[i], p.bytes[i]) : Bytes()); }
    const unsigned numbers[4] = {at(l, l->s.amax, slot), at(l, l->s.amax_step, slot), bits_of(at(l, l->s.scale, slot)), bits_of(at(l, l->s.descale, slot))};
    out.push_back(Bytes((const uint8_t*)numbers, (const uint8_t*)(numbers + 4)));
    return out;
}
static void check_same_parts(const std::vector<Bytes>& fused, const std::vector<Bytes>& apart, const char* recipe, const Shape& c) {
    static const char* const names[] = {"codes of k", "codes of t", "scales of k", "scales of t", "amax, scale"};
    for (int i = 0; i < 5; i++) {
        size_t first = 0;
        while (first < apart[i].size() && fused[i][first] == apart[i][first]) { first++; }
        CHECK(first == apart[i].size(), "%s, B %d T %d NH %d hs %d: %s: byte %zu of %zu is %d, %d apart", recipe, c.B, c.T, c.NH, c.hs, names[i], first, apart[i].size(),
              fused[i][first], apart[i][first]);
    }
}

static void forward_case(const OnePass& recipe, const Shape& c, bool k, bool t) {
    const int C = c.NH * c.hs, N = c.B * c.T;
    const Floats qkv = make_input<bf16>(INPUT_RANDOM, (size_t)N * 3 * C, 1, 2.0f);
    Floats y[2], lse[2];
    std::vector<Bytes> parts[2];
    for (int fused = 0; fused < 2; fused++) {
        int slot;
        ScalingLab* l = ready_lab(recipe, FP8_ROLE_X, LINEAR_ATTPROJ, &slot);
        Lab* lab = &l->lab;
        Parts p = parts_alloc(l, slot, N, C, k, t);
        bf16 *d_qkv = lab_put<bf16>(lab, qkv), *d_y = lab_alloc<bf16>(lab, (size_t)N * C);
        float* d_lse = lab_alloc<float>(lab, (size_t)N * c.NH);
        CHECK(fp8_attention_fuses(&lab->dev, &l->s, slot, c.B, c.T, C, c.NH), "%s: does not fuse B %d T %d hs %d", recipe.recipe, c.B, c.T, c.hs);
        if (fused) { fp8_attention_forward(&lab->dev, &l->s, slot, p.q, d_y, d_lse, d_qkv, c.B, c.T, C, c.NH, attention_scale(C / c.NH)); }
        else {
            attention_forward(&lab->dev, d_y, d_lse, d_qkv, NULL, c.B, c.T, C, c.NH, attention_scale(C / c.NH));
            fp8_quantize(&l->s, slot, p.q, d_y, N, C, NULL, NULL, false, lab->dev.stream);
        }
        y[fused] = lab_get(lab, d_y, (size_t)N * C);
        lse[fused] = lab_get(lab, d_lse, (size_t)N * c.NH);
        parts[fused] = parts_get(l, p, slot);
        CHECK(at(l, l->s.amax_step, slot) == max_bits(y[fused]), "%s: amax %08x is not that of y, %08x", recipe.recipe, at(l, l->s.amax_step, slot), max_bits(y[fused]));
        scaling_lab_free(l);
    }
    CHECK(same_bits(y[0], y[1]) && same_bits(lse[0], lse[1]), "%s: y or lse differ, B %d T %d NH %d hs %d", recipe.recipe, c.B, c.T, c.NH, c.hs);
    check_same_parts(parts[1], parts[0], recipe.recipe, c);
}
static void test_fp8_attention_forward(void) {
    for (const OnePass& recipe : one_pass) {
        for (const Shape& c : {Shape{1, 16, 1, 64}, Shape{1, 144, 3, 64}, Shape{2, 128, 2, 64}, Shape{1, 160, 1, 128}}) { forward_case(recipe, c, true, true); }
        forward_case(recipe, {1, 32, 2, 64}, true, false);  // evaluation
        forward_case(recipe, {1, 32, 2, 64}, false, true);
    }
}

static void backward_case(const OnePass& recipe, const Shape& c, bool k, bool t) {
    const int C = c.NH * c.hs, N = c.B * c.T;
    const size_t NC = (size_t)N * C;
    const Floats qkv = make_input<bf16>(INPUT_RANDOM, 3 * NC, 1, 1.5f), dy = make_input<bf16>(INPUT_RANDOM, NC, 2), old = make_input<float>(INPUT_RANDOM, 3 * C, 3);
    Floats dbias[2];
    std::vector<Bytes> parts[2];
    for (int fused = 0; fused < 2; fused++) {
        int slot;
        ScalingLab* l = ready_lab(recipe, FP8_ROLE_DY, LINEAR_QKV, &slot);
        Lab* lab = &l->lab;
        Parts p = parts_alloc(l, slot, N, 3 * C, k, t);
        bf16 *d_qkv = lab_put<bf16>(lab, qkv), *d_dy = lab_put<bf16>(lab, dy), *y = lab_alloc<bf16>(lab, NC), *dqkv = lab_alloc<bf16>(lab, 3 * NC);
        float *lse = lab_alloc<float>(lab, (size_t)N * c.NH), *d_dbias = lab_put<float>(lab, old), *partial = lab_alloc<float>(lab, column_sum_partials(N, 3 * C));
        unsigned char* scratch = lab_alloc<unsigned char>(lab, attention_scratch_bytes(true, c.B, c.T, c.NH));
        CHECK(fp8_attention_fuses(&lab->dev, &l->s, slot, c.B, c.T, C, c.NH), "%s: does not fuse B %d T %d hs %d backward", recipe.recipe, c.B, c.T, c.hs);
        attention_forward(&lab->dev, y, lse, d_qkv, NULL, c.B, c.T, C, c.NH, attention_scale(C / c.NH));
        if (fused) { fp8_attention_backward(&lab->dev, &l->s, slot, p.q, d_dbias, partial, d_dy, d_qkv, y, lse, scratch, c.B, c.T, C, c.NH, attention_scale(C / c.NH)); }
        else {
            attention_backward(&lab->dev, dqkv, d_dy, d_qkv, y, lse, scratch, c.B, c.T, C, c.NH, attention_scale(C / c.NH));
            fp8_quantize(&l->s, slot, p.q, dqkv, N, 3 * C, d_dbias, partial, false, lab->dev.stream);
        }
        dbias[fused] = lab_get(lab, d_dbias, 3 * C);
        parts[fused] = parts_get(l, p, slot);
        CHECK(at(l, l->s.amax_step, slot) != 0, "%s: no amax", recipe.recipe);
        scaling_lab_free(l);
    }
    CHECK(same_bits(dbias[0], dbias[1]), "%s: bias gradients differ, B %d T %d NH %d hs %d", recipe.recipe, c.B, c.T, c.NH, c.hs);
    check_same_parts(parts[1], parts[0], recipe.recipe, c);
}
static void test_fp8_attention_backward(void) {
    for (const OnePass& recipe : one_pass) {
        for (const Shape& c : {Shape{1, 16, 2, 64}, Shape{1, 208, 4, 64}, Shape{2, 128, 2, 64}, Shape{1, 144, 1, 128}}) { backward_case(recipe, c, true, true); }
        backward_case(recipe, {1, 32, 2, 64}, true, false);  // gradients of weights from BF16
    }
}

// Where it does not apply the caller takes the separate kernels.
static void test_fp8_attention_fuses_where_it_can(void) {
    int slot;
    ScalingLab* l = ready_lab(one_pass[1], FP8_ROLE_X, LINEAR_ATTPROJ, &slot);
    Device* dev = &l->lab.dev;
    Fp8Scaling* s = &l->s;
    CHECK(fp8_attention_fuses(dev, s, slot, 2, 256, 192, 3), "B 2, T 256");
    CHECK(!fp8_attention_fuses(dev, s, slot, 2, 144, 192, 3), "a patch crosses sequences");
    CHECK(!fp8_attention_fuses(dev, s, slot, 2, 256, 240, 3), "heads of 80");
    const int dy = fp8_slot(s, FP8_ROLE_DY, 1, LINEAR_QKV);
    CHECK(fp8_attention_fuses(dev, s, dy, 2, 256, 256, 4) && !fp8_attention_fuses(dev, s, dy, 2, 256, 192, 3), "backward, C 192: a patch would hold dq and dk");
    dev->attention = ATTENTION_GEMM;
    CHECK(!fp8_attention_fuses(dev, s, slot, 2, 256, 192, 3), "no flash");
    dev->attention = ATTENTION_FLASH;
    s->count_on = true;
    CHECK(!fp8_attention_fuses(dev, s, slot, 2, 256, 192, 3), "counting");
    s->count_on = false;
    dev->props.sharedMemPerBlockOptin = 99 << 10;  // sm_89, sm_120
    CHECK(fp8_attention_fuses(dev, s, slot, 2, 256, 192, 3) && fp8_attention_fuses(dev, s, slot, 2, 256, 384, 3), "99 KB hold both heads forward");
    CHECK(fp8_attention_fuses(dev, s, dy, 2, 256, 256, 4) && !fp8_attention_fuses(dev, s, dy, 2, 256, 256, 2), "99 KB hold heads of 64 backward, not of 128");
    scaling_lab_free(l);
    for (const char* name : {"current", "row"}) {
        l = scaling_lab(2, settings_of(name));
        l->lab.dev.attention = ATTENTION_FLASH;
        CHECK(!fp8_attention_fuses(&l->lab.dev, &l->s, fp8_slot(&l->s, FP8_ROLE_X, 1, LINEAR_ATTPROJ), 2, 256, 192, 3), "%s takes two passes", name);
        scaling_lab_free(l);
    }
}

static void test_fp8_attention_repeats(void) {
    const Shape c = {1, 144, 2, 64};
    const int C = c.NH * c.hs;
    const Floats qkv = make_input<bf16>(INPUT_RANDOM, (size_t)c.T * 3 * C, 1);
    for (const OnePass& recipe : one_pass) {
        check_repeats("fp8_attention_forward", [&] {
            int slot;
            ScalingLab* l = ready_lab(recipe, FP8_ROLE_X, LINEAR_ATTPROJ, &slot);
            Parts p = parts_alloc(l, slot, c.T, C, true, true);
            fp8_attention_forward(&l->lab.dev, &l->s, slot, p.q, lab_alloc<bf16>(&l->lab, (size_t)c.T * C), lab_alloc<float>(&l->lab, c.T * c.NH),
                                  lab_put<bf16>(&l->lab, qkv), 1, c.T, C, c.NH, attention_scale(C / c.NH));
            Bytes all;
            for (const Bytes& part : parts_get(l, p, slot)) { all.insert(all.end(), part.begin(), part.end()); }
            scaling_lab_free(l);
            return all;
        });
        check_repeats("fp8_attention_backward", [&] {
            int slot;
            ScalingLab* l = ready_lab(recipe, FP8_ROLE_DY, LINEAR_QKV, &slot);
            Lab* lab = &l->lab;
            Parts p = parts_alloc(l, slot, c.T, 3 * C, true, true);
            bf16 *d_qkv = lab_put<bf16>(lab, qkv), *y = lab_alloc<bf16>(lab, (size_t)c.T * C);
            float *lse = lab_alloc<float>(lab, c.T * c.NH), *dbias = lab_zeros<float>(lab, 3 * C);
            attention_forward(&lab->dev, y, lse, d_qkv, NULL, 1, c.T, C, c.NH, attention_scale(C / c.NH));
            fp8_attention_backward(&lab->dev, &l->s, slot, p.q, dbias, lab_alloc<float>(lab, column_sum_partials(c.T, 3 * C)), y, d_qkv, y, lse,
                                   lab_alloc<unsigned char>(lab, attention_scratch_bytes(true, 1, c.T, c.NH)), 1, c.T, C, c.NH, attention_scale(C / c.NH));
            Bytes all = lab_download(lab, (const uint8_t*)dbias, 3 * C * sizeof(float));
            for (const Bytes& part : parts_get(l, p, slot)) { all.insert(all.end(), part.begin(), part.end()); }
            scaling_lab_free(l);
            return all;
        });
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_attention_forward", test_fp8_attention_forward, QUICK},
        {"fp8_attention_backward", test_fp8_attention_backward, QUICK},
        {"fp8_attention_fuses_where_it_can", test_fp8_attention_fuses_where_it_can, QUICK},
        {"fp8_attention_repeats", test_fp8_attention_repeats, QUICK},
    };
    return TEST_MAIN(tests);
}
