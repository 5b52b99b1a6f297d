/* test_fp8_scaling.cu - scales from a history of amaxes: sequences of steps against a model of the rules, what moves when, restoring, switching to BF16
 *
 * The model keeps a list of amaxes a slot and states the rules in double.
 * Covers: llmc/fp8_scaling.h, llmc/fp8_quantize.cuh
 */
#include <algorithm>

#include "dev/test/fp8_lab.h"

// ---------------------------------------------------------------------------- the model

struct ModelSlot { std::vector<uint32_t> history; float scale; uint32_t step; bool used; };
typedef std::vector<ModelSlot> Model;

static Model model_new(const Fp8Scaling* s) { return Model(fp8_training_slots(s), ModelSlot{{}, 1.0f, 0, false}); }
static float model_scale(Fp8Format format, uint32_t bits, float old, int margin) {
    const float amax = float_of(bits);
    if (amax == 0 || !isfinite(amax)) { return old; }
    double quotient = (double)(float)((double)FP8_MAX(format) / amax);  // rounded to float: infinite for denormals
    return (float)std::min(ldexp(quotient, -margin), 0x1p126);
}
static void model_end_step(Model* m, const Fp8Scaling* s) {
    const Fp8Settings* f = &s->settings;
    for (size_t i = 0; i < m->size(); i++) {
        ModelSlot* slot = &(*m)[i];
        if (!slot->used) { continue; }
        slot->history.insert(slot->history.begin(), slot->step);
        if ((int)slot->history.size() > f->history) { slot->history.pop_back(); }
        const uint32_t amax = f->most_recent ? slot->history[0] : *std::max_element(slot->history.begin(), slot->history.end());
        slot->scale = model_scale(fp8_role_format(f, (Fp8Role)(i / NUM_LINEARS / s->layers)), amax, slot->scale, f->margin);
        slot->used = false;
    }
}
static void model_check(const Model& m, ScalingLab* l, const char* when) {
    Fp8ScalingHost h;
    fp8_scaling_copy(&l->s, &h);
    const int H = l->s.settings.history;
    for (size_t i = 0; i < m.size(); i++) {
        char name[48];
        fp8_slot_name(&l->s, (int)i, name);
        CHECK(h.scale[i] == m[i].scale && h.descale[i] == 1.0f / m[i].scale, "%s %s: scale %.9g, descale %.9g, should be %.9g", when, name, h.scale[i], h.descale[i], m[i].scale);
        for (int k = 0; k < H; k++) {
            const uint32_t want = k < (int)m[i].history.size() ? m[i].history[k] : FP8_EMPTY;
            CHECK(h.history[i * H + k] == want, "%s %s: history[%d] is %08x, should be %08x", when, name, k, h.history[i * H + k], want);
        }
        CHECK((l->s.ready[i] != 0) == !m[i].history.empty(), "%s %s: ready %d", when, name, l->s.ready[i]);
    }
    char message[256];
    const char* broken = fp8_scaling_check(&l->s, &h, 0, l->s.count, 0, message);
    CHECK(!broken, "%s: %s", when, message);
    fp8_scaling_host_free(&h);
}

// A tensor of 16 x 32 with this amax, in which every size of value below it occurs.
static Floats tensor_of(float amax, TestRng* r) {
    Floats x(512);
    for (float& v : x) { v = ref_round_bf16(amax * ldexp(test_rng_uniform(r) * 2 - 1, -(int)(test_rng_u64(r) % 12))); }
    x[test_rng_u64(r) % 512] = isnan(amax) ? NAN : -amax;
    return x;
}
static float some_amax(TestRng* r) {
    switch (test_rng_u64(r) % 16) {
    case 0: return 0.0f;
    case 1: return 0x1.8p-130f;
    case 2: return 0x1p-126f;
    case 3: return 0x1.fep127f;
    case 4: return test_rng_u64(r) % 4 ? 1.0f : INFINITY;
    case 5: return test_rng_u64(r) % 4 ? 1.0f : NAN;
    default: return ref_round_bf16(ldexp(1.0 + test_rng_uniform(r), (int)(test_rng_u64(r) % 30) - 20));
    }
}

// Quantizes a tensor in both orders and compares the codes with those of `scale`. The amax is recorded before where it has to be.
static void check_codes(ScalingLab* l, int slot, const Floats& x, float scale, const char* what) {
    const Fp8Format format = fp8_slot_format(&l->s, slot);
    bf16* d_x = lab_put<bf16>(&l->lab, x);
    uint8_t *k = lab_alloc<uint8_t>(&l->lab, x.size()), *t = lab_alloc<uint8_t>(&l->lab, x.size());
    if (fp8_needs_amax(&l->s, slot)) { amax_reduce(l->s.amax + slot, d_x, x.size(), l->lab.dev.stream); }
    const Fp8Operand out = fp8_operand(&l->s, slot, k, t, NULL, NULL);
    fp8_quantize(&l->s, slot, out, d_x, 16, 32, NULL, NULL, false, l->lab.dev.stream);
    std::vector<uint8_t> codes = lab_download(&l->lab, k, x.size()), other = lab_download(&l->lab, t, x.size());
    const float descale = lab_download(&l->lab, (float*)out.k_scale, 1)[0];
    CHECK(out.k_scale == out.t_scale && descale == 1.0f / scale, "%s: the GEMM reads descale %.9g, should be %.9g", what, descale, 1.0f / scale);
    for (size_t i = 0; i < x.size(); i++) {
        bool over;
        const int want = ref_encode(ref_table(format), (float)((double)x[i] * scale), &over);
        CHECK(codes[i] == want && other[i % 32 * 16 + i / 32] == want, "%s: code of %g is %02x and %02x, should be %02x (scale %g)", what, x[i], codes[i], other[i % 32 * 16 + i / 32], want, scale);
    }
}

// ---------------------------------------------------------------------------- sequences

static uint32_t canonical(uint32_t bits) { return bits > 0x7f800000u ? 0x7fff0000u : bits; }  // what from_float makes of a NaN

static void run_sequence(int H, bool most_recent, int margin, int steps) {
    Fp8Settings settings = settings_of("delayed");
    settings.history = H; settings.most_recent = most_recent; settings.margin = margin;
    ScalingLab* l = scaling_lab(2, settings);
    Fp8Scaling* s = &l->s;
    Model m = model_new(s);
    TestRng r = {test_seed() + H * 100 + margin};
    cudaStream_t stream = l->lab.dev.stream;
    const int w = fp8_slot(s, FP8_ROLE_W, 0, LINEAR_QKV), eval = fp8_slot(s, FP8_ROLE_EVAL_X, 1, LINEAR_FC), input = fp8_slot(s, FP8_ROLE_X, 1, LINEAR_FC);
    const int slots[] = {input, fp8_slot(s, FP8_ROLE_X, 0, LINEAR_ATTPROJ), fp8_slot(s, FP8_ROLE_DY, 0, LINEAR_FCPROJ), fp8_slot(s, FP8_ROLE_DY, 1, LINEAR_QKV)};
    char what[96], message[256];
    auto use = [&](int slot, const char* name) {
        const Floats x = tensor_of(some_amax(&r), &r);
        const uint32_t amax = canonical(max_bits(x));
        ModelSlot* model = &m[slot];
        if (model->history.empty()) { model->scale = model_scale(fp8_slot_format(s, slot), amax, 1.0f, 0); }
        CHECK(fp8_needs_amax(s, slot) == model->history.empty(), "%s: needs an amax: %d", name, fp8_needs_amax(s, slot));
        check_codes(l, slot, x, model->scale, name);
        model->step = model->used ? std::max(model->step, amax) : amax;
        model->used = true;
        CHECK(at(l, s->amax_step, slot) == model->step, "%s: amax_step %08x, should be %08x", name, at(l, s->amax_step, slot), model->step);
    };
    fp8_scaling_begin_weights(s, stream);
    use(w, "first weights");
    for (int step = 0; step < steps; step++) {
        fp8_scaling_begin_step(s, stream);
        for (int slot : slots) { m[slot].used = false; m[slot].step = 0; }
        for (int micro = 0; micro < 2; micro++) {
            fp8_scaling_begin(s, FP8_ROLE_X, stream);
            fp8_scaling_begin(s, FP8_ROLE_DY, stream);
            for (int slot : slots) {
                if (test_rng_u64(&r) % 4 == 0) { continue; }
                snprintf(what, sizeof(what), "H %d step %d.%d slot %d", H, step, micro, slot);
                use(slot, what);
            }
            lab_reset(&l->lab);
        }
        // evaluation in between: the scale of training's input, no trace (I7)
        Fp8ScalingHost before, after;
        std::vector<unsigned char> used(s->used, s->used + s->count);
        fp8_scaling_copy(s, &before);
        fp8_scaling_begin(s, FP8_ROLE_EVAL_X, stream);
        const Floats x = tensor_of(some_amax(&r), &r);
        const bool borrowed = !m[input].history.empty();
        check_codes(l, eval, x, borrowed ? m[input].scale : model_scale(settings.x, canonical(max_bits(x)), 1.0f, 0), "evaluation");
        fp8_scaling_copy(s, &after);
        CHECK(!fp8_scaling_check_moved(s, &before, &after, NULL, message), "step %d: %s", step, message);
        CHECK(!memcmp(used.data(), s->used, fp8_training_slots(s)), "evaluation marked a slot of training");
        CHECK(!borrowed || (after.amax[eval] == 0 && after.amax_step[eval] == before.amax_step[eval]), "evaluation with training's scale was recorded");
        fp8_scaling_host_free(&before);
        if (step % 5 == 3) {  // a skipped step: its amaxes are forgotten
            fp8_scaling_host_free(&after);
            model_check(m, l, "after a skipped step");
            continue;
        }
        fp8_scaling_end_step(s, stream);
        model_end_step(&m, s);
        model_check(m, l, "after a step");
        fp8_scaling_copy(s, &before);
        CHECK(!fp8_scaling_check_moved(s, &after, &before, used.data(), message), "step %d: %s", step, message);
        fp8_scaling_host_free(&before);
        fp8_scaling_host_free(&after);
        fp8_scaling_begin_weights(s, stream);  // the update
        use(w, "weights");
        lab_reset(&l->lab);
    }
    scaling_lab_free(l);
}
static void test_sequences(void) {
    for (bool most_recent : {false, true}) {
        for (int H : {1, 2, 5, 16}) { run_sequence(H, most_recent, H == 2 ? 6 : H == 5 ? 1 : 0, H + 14); }
    }
}

// More slots than one launch takes; every third is used.
static void test_many_slots(void) {
    Fp8Settings settings = settings_of("delayed");
    settings.history = 3;
    ScalingLab* l = scaling_lab(100, settings);
    Model m = model_new(&l->s);
    TestRng r = {test_seed()};
    for (int step = 0; step < 5; step++) {
        std::vector<unsigned> amax(l->s.count);
        for (int i = 0; i < l->s.count; i++) { amax[i] = bits_of(some_amax(&r)) & 0x7fffffffu; }
        lab_write(&l->lab, l->s.amax_step, amax);
        for (size_t i = 0; i < m.size(); i++) { l->s.used[i] = m[i].used = (i + step) % 3 == 0; m[i].step = amax[i]; }
        fp8_scaling_end_step(&l->s, l->lab.dev.stream);
        model_end_step(&m, &l->s);
        model_check(m, l, "many slots");
    }
    scaling_lab_free(l);
}

// ---------------------------------------------------------------------------- saving, switching, violations

static ScalingLab* lab_with_history(int layers, int H, int steps) {
    Fp8Settings settings = settings_of("delayed");
    settings.history = H;
    ScalingLab* l = scaling_lab(layers, settings);
    for (int step = 0; step < steps; step++) {
        std::vector<unsigned> amax(l->s.count);
        for (int i = 0; i < l->s.count; i++) { amax[i] = bits_of(1.0f + i + 100 * step); l->s.used[i] = i < fp8_training_slots(&l->s) && i % 2 == 0; }
        lab_write(&l->lab, l->s.amax_step, amax);
        fp8_scaling_end_step(&l->s, l->lab.dev.stream);
    }
    return l;
}
static void test_restore(void) {
    ScalingLab* a = lab_with_history(2, 4, 6);
    Fp8ScalingHost saved;
    fp8_scaling_copy(&a->s, &saved);
    for (int H : {1, 9, 4}) {
        Fp8Settings settings = settings_of("delayed");
        settings.history = H;
        ScalingLab* b = scaling_lab(2, settings);
        fp8_scaling_restore(&b->s, saved.amax, saved.amax_step, saved.scale, saved.history, 4);
        Fp8ScalingHost h;
        fp8_scaling_copy(&b->s, &h);
        CHECK(!memcmp(h.scale, saved.scale, b->s.count * 4) && !memcmp(h.descale, saved.descale, b->s.count * 4) && !memcmp(h.amax_step, saved.amax_step, b->s.count * 4) &&
              !memcmp(h.amax, saved.amax, b->s.count * 4) && !memcmp(a->s.ready, b->s.ready, b->s.count), "H %d: the state differs after it was restored", H);
        for (int i = 0; i < fp8_training_slots(&b->s); i++) {
            for (int k = 0; k < H; k++) {
                const unsigned want = k < 4 ? saved.history[i * 4 + k] : FP8_EMPTY;
                CHECK(h.history[i * H + k] == want, "H %d slot %d: history[%d] %08x, should be %08x", H, i, k, h.history[i * H + k], want);
            }
        }
        fp8_scaling_host_free(&h);
        if (H == 4) {  // and goes on as the other does
            for (ScalingLab* l : {a, b}) {
                for (int i = 0; i < fp8_training_slots(&l->s); i++) { l->s.used[i] = i % 3 == 0; }
                fp8_scaling_end_step(&l->s, l->lab.dev.stream);
            }
            Fp8ScalingHost x, y;
            fp8_scaling_copy(&a->s, &x);
            fp8_scaling_copy(&b->s, &y);
            CHECK(!memcmp(x.scale, y.scale, a->s.count * 4) && !memcmp(x.history, y.history, fp8_training_slots(&a->s) * 16), "the next step differs");
            fp8_scaling_host_free(&x);
            fp8_scaling_host_free(&y);
        }
        scaling_lab_free(b);
    }
    ScalingLab* c = scaling_lab(2);  // a recipe without a history takes the rest
    fp8_scaling_restore(&c->s, saved.amax, saved.amax_step, saved.scale, NULL, 0);
    CHECK(at(c, c->s.scale, 4) == saved.scale[4] && !c->s.history, "restored without a history");
    scaling_lab_free(c);
    fp8_scaling_host_free(&saved);
    scaling_lab_free(a);
}
static void test_switch(void) {
    ScalingLab* l = lab_with_history(2, 4, 3);
    char message[256];
    Fp8ScalingHost before, after;
    fp8_scaling_copy(&l->s, &before);
    fp8_scaling_switch(&l->s, 0, LINEAR_FC, true, l->lab.dev.stream);
    fp8_scaling_copy(&l->s, &after);
    CHECK(!fp8_linear_on(&l->s, 0, LINEAR_FC) && fp8_linear_on(&l->s, 1, LINEAR_FC) && fp8_linear_on(&l->s, 0, LINEAR_QKV), "which linear layers are on");
    for (int i = 0; i < fp8_training_slots(&l->s); i++) {
        const bool off = i % 2 == 0 && i / 2 % NUM_LINEARS == LINEAR_FC;  // layer 0
        const bool same = after.scale[i] == before.scale[i] && !memcmp(after.history + i * 4, before.history + i * 4, 16);
        CHECK(off ? after.scale[i] == 1 && after.amax[i] == 0 && after.history[i * 4] == FP8_EMPTY && fp8_needs_amax(&l->s, i) : same, "slot %d after the switch", i);
    }
    CHECK(!fp8_scaling_check(&l->s, &after, 0, fp8_training_slots(&l->s), 0, message), "%s", message);
    FILE* f = tmpfile();
    fp8_scaling_print(f, &l->s, &after);
    rewind(f);
    char line[256];
    int marked = 0;
    while (fgets(line, sizeof(line), f)) { marked += strstr(line, "in BF16") && strstr(line, "l0.fc."); }
    fclose(f);
    CHECK(marked == 3, "%d slots are marked as BF16", marked);
    fp8_scaling_switch(&l->s, 0, LINEAR_FC, false, l->lab.dev.stream);
    CHECK(fp8_linear_on(&l->s, 0, LINEAR_FC), "it stays off");
    fp8_scaling_host_free(&before);
    fp8_scaling_host_free(&after);
    scaling_lab_free(l);
}
static void test_violations(void) {
    ScalingLab* l = lab_with_history(2, 4, 3);
    const int slot = 4, idle = 5, H = 4;
    char message[256], name[48];
    Fp8ScalingHost h, old;
    fp8_scaling_copy(&l->s, &h);
    fp8_scaling_copy(&l->s, &old);
    const int n = fp8_training_slots(&l->s);
    auto expect = [&](const char* broken, const char* invariant, int at, const char* how) {
        CHECK(broken && strstr(broken, invariant) && strstr(broken, fp8_slot_name(&l->s, at, name)), "%s is not seen as a violation of %s, but: %s", how, invariant, broken ? broken : "nothing");
    };
    CHECK(!fp8_scaling_check(&l->s, &h, 0, n, 0, message), "%s", message);
    h.scale[slot] = 2 * h.scale[slot]; h.descale[slot] = 1.0f / h.scale[slot];
    expect(fp8_scaling_check(&l->s, &h, 0, n, 0, message), "I9", slot, "a scale that its history does not give");
    h.scale[slot] = old.scale[slot]; h.descale[slot] = old.descale[slot];
    h.history[slot * H + 1] = 0x80000001u;
    expect(fp8_scaling_check(&l->s, &h, 0, n, 0, message), "I8", slot, "an entry that is no amax");
    h.history[slot * H + 1] = FP8_EMPTY;  // the newest is also the largest: only the gap is wrong
    expect(fp8_scaling_check(&l->s, &h, 0, n, 0, message), "I8", slot, "a gap");
    h.history[slot * H + 1] = old.history[slot * H + 1];
    h.history[idle * H] = bits_of(1.0f);
    expect(fp8_scaling_check(&l->s, &h, 0, n, 0, message), "I8", idle, "a history of a slot that is not ready");
    h.history[idle * H] = FP8_EMPTY;
    CHECK(!fp8_scaling_check_moved(&l->s, &old, &h, NULL, message), "%s", message);
    unsigned* fields[] = {h.amax, h.amax_step, (unsigned*)h.scale, h.history};
    for (int i = 0; i < 4; i++) {
        const int where = i == 3 ? slot * H + 2 : slot;
        fields[i][where] ^= 1;
        expect(fp8_scaling_check_moved(&l->s, &old, &h, NULL, message), i == 3 ? "I8" : "I7", slot, "a change by evaluation");
        fields[i][where] ^= 1;
    }
    std::vector<unsigned char> used(l->s.count, 0);
    used[slot] = 1;
    expect(fp8_scaling_check_moved(&l->s, &old, &h, used.data(), message), "I8", slot, "a history that did not move");
    for (int k = H - 1; k > 0; k--) { h.history[slot * H + k] = h.history[slot * H + k - 1]; }
    h.history[slot * H] = old.amax_step[slot];
    CHECK(!fp8_scaling_check_moved(&l->s, &old, &h, used.data(), message), "%s", message);
    h.history[slot * H] ^= 1;
    expect(fp8_scaling_check_moved(&l->s, &old, &h, used.data(), message), "I8", slot, "a history that moved by another amax");
    h.history[slot * H] ^= 1;
    used[slot] = 0;
    expect(fp8_scaling_check_moved(&l->s, &old, &h, used.data(), message), "I8", slot, "a history that moved without use");
    fp8_scaling_host_free(&h);
    fp8_scaling_host_free(&old);
    scaling_lab_free(l);
    // scales that lie with the codes
    ScalingLab* b = scaling_lab(1, settings_of("block"));
    fp8_scaling_copy(&b->s, &h);
    CHECK(!fp8_scaling_check(&b->s, &h, 0, b->s.count, 1, message), "%s", message);
    h.scale[2] = 2.0f; h.descale[2] = 0.5f;
    const char* broken = fp8_scaling_check(&b->s, &h, 0, b->s.count, 1, message);
    CHECK(broken && strstr(broken, "I3"), "%s", broken ? broken : "nothing");
    fp8_scaling_host_free(&h);
    scaling_lab_free(b);
}
// Measured noise is a number of decibels in the table; a perfect tensor has none, an unmeasured one nan.
static void test_noise_in_table(void) {
    ScalingLab* l = scaling_lab(1);
    fp8_scaling_alloc_noise(&l->s, 1);
    Fp8ScalingHost h;
    fp8_scaling_copy(&l->s, &h);
    h.noise[0] = 1000; h.noise[1] = 1;
    h.noise[2] = 5; h.noise[3] = 0;
    CHECK(fp8_sqnr(&h, 0) == 30.0 && isinf(fp8_sqnr(&h, 1)) && isnan(fp8_sqnr(&h, 2)), "%g, %g, %g dB", fp8_sqnr(&h, 0), fp8_sqnr(&h, 1), fp8_sqnr(&h, 2));
    FILE* f = tmpfile();
    fp8_scaling_print(f, &l->s, &h);
    rewind(f);
    char line[256];
    int found = 0;
    while (fgets(line, sizeof(line), f)) { found += strstr(line, "SQNR") || (strstr(line, "l0.qkv.x") && strstr(line, "30.00")); }
    fclose(f);
    CHECK(found == 2, "%d of 2 lines", found);
    fp8_scaling_host_free(&h);
    scaling_lab_free(l);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_history_sequences", test_sequences, QUICK},
        {"fp8_history_many_slots", test_many_slots, QUICK},
        {"fp8_scaling_restore", test_restore, QUICK},
        {"fp8_scaling_switch_to_bf16", test_switch, QUICK},
        {"fp8_history_violations_are_seen", test_violations, QUICK},
        {"fp8_noise_in_the_table", test_noise_in_table, QUICK},
    };
    return TEST_MAIN(tests);
}
