/* test_fp8_calibrate.cu - what a calibration measures against a double oracle and against training's own telemetry, what it advises, its file
 *
 * Covers: llmc/fp8_calibrate.h, llmc/fp8_calibrate.cuh, formats of single tensors in fp8_scaling.h
 */
#include "dev/test/fp8_lab.h"
#include "llmc/fp8_calibrate.cuh"

#define ROWS 144
#define COLS 272

static std::vector<bf16> tensor(uint32_t seed, float spread) {
    std::vector<bf16> x((size_t)ROWS * COLS);
    uint64_t state = seed;
    auto next = [&] {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (double)(state >> 40) / (1 << 24);
    };
    for (size_t i = 0; i < x.size(); i++) { x[i] = __float2bfloat16((float)((next() - 0.5) * exp2(-spread * next()) * (next() < 0.05 ? 0.0 : 1.0))); }
    return x;
}
static void init(Fp8Calibrator* c, int layers) {
    fp8_calibrator_init(c, layers, (size_t)ROWS * COLS, fp8_quantize_blocks(ROWS, COLS), fp8_calibrator_scale_bytes(ROWS, COLS));
}

// Histogram, zeros, range: counted again on the host; inf, NaN and denormals have bins.
static void test_range_counts_everything(void) {
    Lab lab;
    Fp8Calibrator c;
    init(&c, 2);
    std::vector<bf16> x = tensor(1, 30);
    const float special[] = {INFINITY, -NAN, 1e-40f, -3e38f};
    for (int i = 0; i < 4; i++) { x[1000 * i] = __float2bfloat16(special[i]); }
    std::vector<double> due(FP8_EXPONENTS);
    double zeros = 0, most = 0, least = 0;
    for (bf16 v : x) {
        const float f = __bfloat162float(v);
        unsigned bits;
        memcpy(&bits, &f, 4);
        bits &= 0x7fffffffu;
        if (!bits) { zeros++; continue; }
        due[bits >> 23]++;
        most = fmax(most, bits);
        least = least == 0 ? bits : fmin(least, bits);
    }
    bf16* device = lab_upload(&lab, x);
    for (int twice = 0; twice < 2; twice++) { fp8_calibrator_measure(&c, FP8_ROLE_DY, 1, LINEAR_FC, device, ROWS, COLS, lab.dev.stream); }
    const std::vector<Fp8Measured> all = fp8_calibrator_read(&c);
    const int slot = fp8_slot(&c.scaling[0][0], FP8_ROLE_DY, 1, LINEAR_FC);
    const Fp8Measured* m = &all[slot];
    CHECK(m->zeros == 2 * zeros && m->amax_bits == most && m->smallest_bits == least, "zeros %g of %g, largest %g of %g, smallest %g of %g", m->zeros, 2 * zeros, m->amax_bits, most,
          m->smallest_bits, least);
    for (int e = 0; e < FP8_EXPONENTS; e++) { CHECK(m->histogram[e] == 2 * due[e], "exponent %d: %g, due %g", e, m->histogram[e], 2 * due[e]); }
    for (size_t i = 0; i < all.size(); i++) { if ((int)i != slot) { CHECK(all[i].zeros == 0 && all[i].amax_bits == 0 && all[i].quality[0][0].elements == 0, "slot %zu was touched", i); } }
    std::string why;
    CHECK(fp8_choose(m, FP8_ROLE_DY, 0, &why) == FP8_CHOOSE_BF16 && why == "holds inf or NaN", "%s", why.c_str());
    fp8_calibrator_free(&c);
}

// Noise, counts and elements of every recipe and format are those that a training state of that recipe takes of the same tensors: of each role, over steps whose
// size changes (a history saturates then). And with one scale a tensor they are what doubles say.
static void test_quality_is_that_of_training(void) {
    Lab lab;
    Fp8Calibrator c;
    init(&c, 1);
    const Fp8Role roles[3] = {FP8_ROLE_X, FP8_ROLE_W, FP8_ROLE_DY};
    std::vector<bf16*> device;
    std::vector<std::vector<bf16>> host;
    for (int step = 0; step < 3; step++) {
        host.push_back(tensor(7 + step, 24));
        for (bf16& v : host.back()) { v = __float2bfloat16(__bfloat162float(v) * (float)(1 << step)); }
        device.push_back(lab_upload(&lab, host.back()));
        fp8_calibrator_begin_batch(&c, lab.dev.stream);
        for (Fp8Role role : roles) { fp8_calibrator_measure(&c, role, 0, LINEAR_QKV, device[step], ROWS, COLS, lab.dev.stream); }
        fp8_calibrator_end_batch(&c, lab.dev.stream, [](unsigned*, int) {});
    }
    const std::vector<Fp8Measured> all = fp8_calibrator_read(&c);
    bool saturates = false;
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        for (int f = 0; f < FP8_FORMATS; f++) {
            Fp8Settings settings = fp8_settings(&fp8_recipes[r]);
            settings.x = settings.dy = (Fp8Format)f;
            ScalingLab* l = scaling_lab(1, settings);
            fp8_scaling_alloc_noise(&l->s, fp8_quantize_blocks(ROWS, COLS));
            l->s.count_on = l->s.noise_on = true;
            uint8_t *k = lab_alloc<uint8_t>(&l->lab, ROWS * COLS), *t = lab_alloc<uint8_t>(&l->lab, ROWS * COLS);
            void *ks = lab_alloc<uint8_t>(&l->lab, fp8_calibrator_scale_bytes(ROWS, COLS)), *ts = lab_alloc<uint8_t>(&l->lab, fp8_calibrator_scale_bytes(ROWS, COLS));
            for (int step = 0; step < 3; step++) {
                fp8_scaling_begin_step(&l->s, l->lab.dev.stream);
                for (Fp8Role role : roles) {
                    const int slot = fp8_slot(&l->s, role, 0, LINEAR_QKV);
                    fp8_scaling_begin(&l->s, role, l->lab.dev.stream);
                    if (fp8_needs_amax(&l->s, slot)) { amax_reduce(l->s.amax + slot, device[step], (size_t)ROWS * COLS, l->lab.dev.stream); }
                    fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, k, t, ks, ts), device[step], ROWS, COLS, NULL, NULL, false, l->lab.dev.stream);
                }
                fp8_scaling_end_step(&l->s, l->lab.dev.stream);
            }
            Fp8ScalingHost h;
            fp8_scaling_copy(&l->s, &h);
            for (Fp8Role role : roles) {
                const int slot = fp8_slot(&l->s, role, 0, LINEAR_QKV);
                const Fp8Quality* q = &all[slot].quality[r][f];
                if (!fp8_format_possible(role, (Fp8Format)f)) { CHECK(q->elements == 0, "E5M2 weights were measured"); continue; }
                CHECK(q->signal == h.noise[2 * slot] && q->noise == h.noise[2 * slot + 1] && q->saturated == h.counts[2 * slot] && q->flushed == h.counts[2 * slot + 1] &&
                      q->elements == l->s.elements[slot] && q->signal > 0, "%s, format %d, role %d: %g %g %g %g %g, training has %g %g %llu %llu %llu", fp8_recipes[r].name, f, role, q->signal,
                      q->noise, q->saturated, q->flushed, q->elements, h.noise[2 * slot], h.noise[2 * slot + 1], h.counts[2 * slot], h.counts[2 * slot + 1], l->s.elements[slot]);
                saturates = saturates || q->saturated > 0;
            }
            fp8_scaling_host_free(&h);
            scaling_lab_free(l);
        }
    }
    CHECK(saturates, "no recipe saturates, although the tensors grow");
    double signal = 0, noise = 0, flushed = 0;  // current, E4M3, on the host
    for (const auto& x : host) {
        float amax = 0;
        for (bf16 v : x) { amax = fmaxf(amax, fabsf(__bfloat162float(v))); }
        const float scale = 448.0f / amax;
        for (bf16 v : x) {
            const float value = __bfloat162float(v);
            const double back = (double)(float)__nv_fp8_e4m3(value * scale) * (double)(1.0f / scale), error = value - back;
            signal += (double)value * value;
            noise += error * error;
            flushed += back == 0 && value != 0;
        }
    }
    const Fp8Quality* q = &all[fp8_slot(&c.scaling[0][0], FP8_ROLE_X, 0, LINEAR_QKV)].quality[0][FP8_E4M3];
    CHECK(fabs(q->signal / signal - 1) < 1e-12 && fabs(q->noise / noise - 1) < 1e-9 && q->flushed == flushed && flushed > 0, "signal %.15g, %.15g; noise %.15g, %.15g; flushed %g, %g", q->signal,
          signal, q->noise, noise, q->flushed, flushed);
    fp8_calibrator_free(&c);
}

// One tensor with the given dB and shares in every recipe and format.
static Fp8Measured made(double e4m3, double flushed_e4m3, double e5m2, double flushed_e5m2, double saturated) {
    Fp8Measured m;
    memset((void*)&m, 0, sizeof(m));
    m.amax_bits = 0x3f800000u;
    m.smallest_bits = 0x30000000u;
    m.histogram[127] = 10;
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        m.quality[r][FP8_E4M3] = {1.0, pow(10, -e4m3 / 10), saturated * 1000, flushed_e4m3 * 1000, 1000};
        m.quality[r][FP8_E5M2] = {1.0, pow(10, -e5m2 / 10), 0, flushed_e5m2 * 1000, 1000};
    }
    return m;
}
static void test_choices_and_reasons(void) {
    const struct { Fp8Measured m; Fp8Role role; int choice; const char* says; } cases[] = {
        {made(31.5, 0, 25.5, 0, 0), FP8_ROLE_X, FP8_CHOOSE_E4M3, "e4m3 keeps 31.5 dB of 26.5"},
        {made(26, 0, 25.5, 0, 0), FP8_ROLE_X, FP8_CHOOSE_BF16, "e4m3 has 26.0 dB, needs 26.5; e5m2 has 25.5"},
        {made(31.5, 0.06, 28, 0, 0), FP8_ROLE_X, FP8_CHOOSE_E5M2, "e5m2 keeps"},
        {made(31.5, 0.06, 28, 0.07, 0), FP8_ROLE_X, FP8_CHOOSE_BF16, "e4m3 flushes 6 % to zero, more than 5 %; e5m2 flushes 7 %"},
        {made(31.5, 0.05, 0, 0, 0), FP8_ROLE_W, FP8_CHOOSE_E4M3, "flushes 5 %"}, {made(31.5, 0.06, 40, 0, 0), FP8_ROLE_W, FP8_CHOOSE_BF16, "e4m3 flushes 6 %"},
        {made(31.5, 0.2, 25.5, 0, 0), FP8_ROLE_DY, FP8_CHOOSE_E5M2, "e5m2 keeps 25.5 dB of 23.5"}, {made(31.5, 0, 25.5, 0, 0.002), FP8_ROLE_DY, FP8_CHOOSE_E5M2, "e5m2"},
        {made(31.5, 0, 20, 0, 0.002), FP8_ROLE_DY, FP8_CHOOSE_BF16, "e4m3 saturates 0.2 %, more than 0.1 %; e5m2 has 20.0 dB"}, {made(24, 0, 25, 0, 0), FP8_ROLE_DY, FP8_CHOOSE_E5M2, "25.0"}};
    for (auto& c : cases) {
        std::string why;
        const int choice = fp8_choose(&c.m, c.role, 0, &why);
        CHECK(choice == c.choice && why.find(c.says) != std::string::npos, "role %d: %s because '%s', due %s, '%s'", c.role, fp8_choice_names[choice], why.c_str(), fp8_choice_names[c.choice], c.says);
    }
    Fp8Measured zero;
    std::string why;
    memset((void*)&zero, 0, sizeof(zero));
    CHECK(fp8_choose(&zero, FP8_ROLE_DY, 0, &why) == FP8_CHOOSE_E5M2 && why == "nothing but zeros" && fp8_percentile(&zero, 0.5) == 0, "zeros: %s", why.c_str());
    Fp8Measured a = made(30, 0.1, 20, 0, 0), b = made(30, 0.3, 20, 0, 0);
    b.smallest_bits = 0x20000000u;
    fp8_measured_merge(&a, &b);
    CHECK(a.quality[0][0].flushed == 400 && a.quality[0][0].elements == 2000 && a.smallest_bits == 0x20000000u && a.histogram[127] == 20, "merging");
}

// Ideal rounding of uniform mantissas: where the limits come from.
static void test_ideal_noise(void) {
    double signal[2] = {0, 0}, noise[2] = {0, 0};
    for (int i = 0; i < 100000; i++) {
        const float x = 1.0f + (i + 0.5f) / 100000;
        const double e4 = (double)(float)__nv_fp8_e4m3(x) - x, e5 = (double)(float)__nv_fp8_e5m2(x) - x;
        for (double* s : {signal, signal + 1}) { *s += (double)x * x; }
        noise[0] += e4 * e4;
        noise[1] += e5 * e5;
    }
    CHECK(fabs(10 * log10(signal[0] / noise[0]) - 10 * log10(28.0 * 64)) < 0.01 && fabs(10 * log10(signal[1] / noise[1]) - FP8_IDEAL_E5M2) < 0.05, "%.3f dB, %.3f dB",
          10 * log10(signal[0] / noise[0]), 10 * log10(signal[1] / noise[1]));
}

// A written file read again says the same; others are refused with their line and values; applying sets formats and BF16.
static void test_file(void) {
    FileError error;
    std::string folder = "/tmp/test_fp8_calibrate.XXXXXX";
    CHECK(mkdtemp(&folder[0]), "%s", strerror(errno));
    const std::string path = folder + "/c.tsv";
    const int L = 2, n = 3 * L * NUM_LINEARS;
    std::vector<Fp8Measured> measured(n, made(31.5, 0, 25.5, 0, 0));
    const int dy = (FP8_ROLE_DY * NUM_LINEARS + LINEAR_FC) * L + 1, w = (FP8_ROLE_W * NUM_LINEARS + LINEAR_QKV) * L, both = (FP8_ROLE_X * NUM_LINEARS + LINEAR_FC) * L + 1;
    measured[dy] = made(31.5, 0.2, 25.5, 0, 0);
    measured[w] = made(20, 0, 0, 0, 0);
    measured[w].quality[3][0] = measured[0].quality[0][0];  // the fourth recipe can
    bool may[NUM_FP8_RECIPES] = {true, true, true, false, true};
    Fp8Advice advice = fp8_advise(measured, L, 64, may);
    CHECK(advice.recipe == 0 && advice.in_bf16[0] == 1 && advice.in_bf16[3] == 0, "recipe %d, %d and %d in BF16", advice.recipe, advice.in_bf16[0], advice.in_bf16[3]);
    may[3] = true;
    advice = fp8_advise(measured, L, 64, may);
    CHECK(advice.recipe == 3, "recipe %d", advice.recipe);
    const std::string text = fp8_calibration_text(&advice, measured, "a test");
    auto write = [&](const std::string& s) {
        FILE* f = fopenCheck(path.c_str(), "wb");
        fwrite(s.data(), 1, s.size(), f);
        fclose(f);
    };
    write(text);
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        Fp8Calibration c;
        CHECK(fp8_calibration_read(&c, path.c_str(), L, 64, &fp8_recipes[r], &error), "%s", error.message);
        CHECK(c.recipe == fp8_recipes[3].name && c.choice == advice.choice[r] && c.choice[dy] == FP8_CHOOSE_E5M2 && c.choice[w] == (r == 3 ? FP8_CHOOSE_E4M3 : FP8_CHOOSE_BF16), "recipe %d: %s", r,
              c.recipe.c_str());
        Lab lab;
        Fp8Scaling s;
        fp8_scaling_init(&s, &fp8_recipes[r], L);
        const bool nothing[3] = {false, false, false}, keep_dy[3] = {false, false, true};
        const Fp8Format before = fp8_slot_format(&s, fp8_slot(&s, FP8_ROLE_DY, 0, LINEAR_FC));
        CHECK(fp8_calibration_apply(&s, &c, keep_dy) == (r != 3) && fp8_slot_format(&s, fp8_slot(&s, FP8_ROLE_DY, 0, LINEAR_FC)) == before, "the user's format was changed");
        CHECK(fp8_calibration_apply(&s, &c, nothing) == (r != 3) && fp8_slot_format(&s, fp8_slot(&s, FP8_ROLE_DY, 1, LINEAR_FC)) == FP8_E5M2 &&
              fp8_slot_format(&s, fp8_slot(&s, FP8_ROLE_DY, 0, LINEAR_FC)) == FP8_E4M3 && !s.in_bf16[LINEAR_QKV * L] == (r == 3) && !s.in_bf16[LINEAR_FC * L + 1], "recipe %d applied", r);
        c.choice[both] = FP8_CHOOSE_E5M2;
        CHECK(fp8_calibration_apply(&s, &c, nothing) == -1, "E5M2 x E5M2 went through");
        fp8_scaling_free(&s);
    }
    auto changed = [&](const char* from, const char* to) {
        std::string s = text;
        const size_t at = s.find(from);
        CHECK(at != std::string::npos, "no '%s' in the file", from);
        return s.replace(at, strlen(from), to);
    };
    const struct { std::string text; const char* says; } bad[] = {
        {changed("calibration 1", "calibration 2"), "line 1: no calibration of version 1"}, {"", "no line for x of qkv of layer 0"},
        {changed("model 2 64", "model 2 128"), "2 layers and 128 channels; this one has 2 and 64"},
        {changed("model 2 64", "model 2"), "line 2"}, {changed("recipe block", "rezept block"), "line 3"}, {changed("\tdelayed", "\tdelyaed"), "no column of --fp8-recipe delayed"},
        {changed("x   \t    1\tqkv", "x   \t    2\tqkv"), "no tensor of this model"}, {changed("x   \t    1\tqkv", "x   \t    0\tqkv"), "a second line of the same tensor"},
        {changed("x   \t    1\tqkv", "z   \t    1\tqkv"), "no tensor of this model"}, {changed("x   \t    1\tqkv", "x   \t   1a\tqkv"), "no tensor of this model"},
        {text.substr(0, text.rfind("dy  \t")), "has no line for dy of fcproj of layer 1"}, {text.substr(0, text.rfind("dy  \t") + 12), "too few fields"}};
    for (auto& b : bad) {
        Fp8Calibration c;
        write(b.text);
        CHECK(!fp8_calibration_read(&c, path.c_str(), L, 64, &fp8_recipes[1], &error) && strstr(error.message, b.says) && strstr(error.message, path.c_str()) && error.hint[0], "due '%s': %s", b.says,
              error.message);
    }
    std::string odd = text;
    const size_t row = odd.find("\ndy  \t    1\tfc "), cell = odd.find("e5m2    ", row);
    write(std::string(odd).replace(cell, 4, "e6m1"));
    Fp8Calibration c;
    CHECK(!fp8_calibration_read(&c, path.c_str(), L, 64, &fp8_recipes[0], &error) && strstr(error.message, "under the recipe stands e4m3, e5m2 or bf16"), "%s", error.message);
    CHECK(!fp8_calibration_read(&c, (folder + "/none").c_str(), L, 64, &fp8_recipes[0], &error) && error.hint[0], "a file that is not there");
    unlink(path.c_str());
    rmdir(folder.c_str());
}

// Formats of single tensors: a history gives each its own scale; a state that is restored into other formats has the scales of these.
static void test_formats_of_single_tensors(void) {
    ScalingLab* l = scaling_lab(2, settings_of("delayed"));
    Fp8Scaling* s = &l->s;
    const int a = fp8_slot(s, FP8_ROLE_DY, 0, LINEAR_QKV), b = fp8_slot(s, FP8_ROLE_DY, 1, LINEAR_QKV);
    s->format[a] = FP8_E4M3;
    bf16* x = lab_upload(&l->lab, tensor(3, 4));
    uint8_t* k = lab_alloc<uint8_t>(&l->lab, ROWS * COLS);
    fp8_scaling_begin_step(s, l->lab.dev.stream);
    for (int slot : {a, b}) {
        set_amax(l, slot, 0);
        amax_reduce(s->amax + slot, x, (size_t)ROWS * COLS, l->lab.dev.stream);
        fp8_quantize(s, slot, fp8_operand(s, slot, k, NULL, NULL, NULL), x, ROWS, COLS, NULL, NULL, false, l->lab.dev.stream);
    }
    char message[256];
    fp8_scaling_end_step(s, l->lab.dev.stream);
    const char* broken = check_state(l, a, b + 1, 0, message);
    CHECK(!broken, "%s", broken);
    CHECK(at(l, s->scale, b) == at(l, s->scale, a) * 128, "E5M2's scale %g, E4M3's %g", at(l, s->scale, b), at(l, s->scale, a));
    Fp8ScalingHost h;
    fp8_scaling_copy(s, &h);
    ScalingLab* other = scaling_lab(2, settings_of("delayed"));
    fp8_scaling_restore(&other->s, h.amax, h.amax_step, h.scale, h.history, s->settings.history);
    broken = check_state(other, a, b + 1, 0, message);
    CHECK(!broken, "restored: %s", broken);
    CHECK(at(other, other->s.scale, a) == at(l, s->scale, b), "restored into E5M2: scale %g", at(other, other->s.scale, a));
    fp8_scaling_host_free(&h);
    scaling_lab_free(other);
    scaling_lab_free(l);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"range_counts_everything", test_range_counts_everything, QUICK},
        {"quality_is_that_of_training", test_quality_is_that_of_training, QUICK},
        {"choices_and_reasons", test_choices_and_reasons, QUICK},
        {"ideal_noise", test_ideal_noise, QUICK},
        {"file", test_file, QUICK},
        {"formats_of_single_tensors", test_formats_of_single_tensors, QUICK},
    };
    return TEST_MAIN(tests);
}
