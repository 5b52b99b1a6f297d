/* test_kernels_fp8.cu - amaxes, the scale rule, the scaling state and its invariants, quantization into both orders with one scale a tensor
 *
 * Codes are compared bit for bit with a scalar reference made from the decoded values of all codes: nearest, ties to the even code, saturating.
 * Covers: llmc/amax.cuh, fp8_recipe.cuh, fp8_scaling.h, fp8_quantize.cuh; the finer granularities: test_fp8_recipes.cu; histories: test_fp8_scaling.cu
 */
#include "dev/test/fp8_lab.h"

// ---------------------------------------------------------------------------- the scalar reference of oracle.h

static void test_reference(void) {
    for (int format = 0; format < 2; format++) {
        const RefTable* t = ref_table((Fp8Format)format);
        bool saturated;
        for (int i = 1; i <= t->largest + 1; i++) { CHECK(t->value[i] > t->value[i - 1], "codes %d, %d do not ascend", i - 1, i); }
        CHECK(t->value[t->largest] == FP8_MAX((Fp8Format)format), "largest value %g", t->value[t->largest]);
        for (int i = 0; i <= t->largest; i++) {
            CHECK(ref_encode(t, (float)-t->value[i], &saturated) == (i | 0x80) && !saturated, "code %d does not round-trip", i);
        }
        const float over = FP8_OVERFLOW((Fp8Format)format);
        ref_encode(t, nextafterf(over, 0), &saturated);
        CHECK(!saturated, "%.9g fits", nextafterf(over, 0));
        ref_encode(t, over, &saturated);
        CHECK(saturated, "%.9g is beyond the largest value", over);
    }
}

// ---------------------------------------------------------------------------- amax

template <class T>
static void test_amax(void) {
    Lab lab;
    for (size_t n : {8u, 16u, 264u, 8184u, 8192u, 8200u, 100000u}) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            Floats x = make_input<T>((Input)input, n, n + 1);
            T* d_x = lab_put<T>(&lab, x);
            unsigned* amax = lab_zeros<unsigned>(&lab, 1);
            amax_reduce(amax, d_x, n, lab.dev.stream);
            uint32_t got = lab_download(&lab, amax, 1)[0];
            CHECK(got == max_bits(x), "n %zu %s: amax %08x, should be %08x", n, input_names[input], got, max_bits(x));
            // a maximum with what was there: a smaller tensor changes nothing, one element more does, wherever it is
            amax_reduce(amax, lab_put<T>(&lab, Floats(16, 0.0f)), 16, lab.dev.stream);
            CHECK(lab_download(&lab, amax, 1)[0] == got, "zeros changed the amax");
            for (size_t at : {(size_t)0, n / 2, n - 1}) {
                for (float more : {-1e30f, INFINITY, NAN}) {
                    Floats y = x;
                    y[at] = ref_round<T>(more);
                    unsigned* other = lab_zeros<unsigned>(&lab, 1);
                    amax_reduce(other, lab_put<T>(&lab, y), n, lab.dev.stream);
                    uint32_t bits = lab_download(&lab, other, 1)[0];
                    CHECK(isnan(more) ? bits > 0x7f800000u : bits == (bits_of(y[at]) & 0x7fffffffu), "%g at %zu of %zu: amax %08x", more, at, n, bits);
                }
            }
            lab_reset(&lab);
        }
    }
    // NaN wins over infinity, also with its sign set and with the smallest payload that T has; denormals are not flushed
    const uint32_t smallest_nan = sizeof(T) == 2 ? 0xff810000u : 0xff800001u, smallest = sizeof(T) == 2 ? 0x00010000u : 1u;
    std::vector<T> raw(24);
    for (int i = 0; i < 24; i++) { uint32_t u = i == 3 ? 0x80000000u | smallest : 0; memcpy(&raw[i], (char*)&u + (4 - sizeof(T)), sizeof(T)); }
    unsigned* amax = lab_zeros<unsigned>(&lab, 1);
    amax_reduce(amax, lab_upload(&lab, raw), 24, lab.dev.stream);
    CHECK(lab_download(&lab, amax, 1)[0] == smallest, "smallest denormal: amax %08x", lab_download(&lab, amax, 1)[0]);
    for (int i = 0; i < 24; i++) { uint32_t u = i == 20 ? smallest_nan : 0x7f800000u; memcpy(&raw[i], (char*)&u + (4 - sizeof(T)), sizeof(T)); }
    amax_reduce(amax, lab_upload(&lab, raw), 24, lab.dev.stream);
    CHECK(lab_download(&lab, amax, 1)[0] == (smallest_nan & 0x7fffffffu), "NaN among infinities: amax %08x", lab_download(&lab, amax, 1)[0]);
    amax_reduce(amax, lab_put<T>(&lab, Floats(16, 1.0f)), 16, lab.dev.stream);
    CHECK(lab_download(&lab, amax, 1)[0] == (smallest_nan & 0x7fffffffu), "numbers replaced a NaN");
}

// ---------------------------------------------------------------------------- scale rule

static void test_scale_rule(void) {
    TestRng r = {test_seed()};
    for (int format = 0; format < 2; format++) {
        const float most = FP8_MAX((Fp8Format)format);
        const RefTable* t = ref_table((Fp8Format)format);
        for (int i = 0; i < 200000; i++) {
            uint32_t bits = i < (int)(sizeof(special_amaxes) / 4) ? special_amaxes[i] : (uint32_t)test_rng_u64(&r) & 0x7fffffffu;
            float scale = fp8_scale_from_amax(bits, most), amax = float_of(bits);
            if (bits == 0 || bits >= 0x7f800000u) { CHECK(scale == 1.0f, "amax %08x: scale %g, should be 1", bits, scale); continue; }
            // a quotient of floats, rounded to double and then to float, is correctly rounded: double has more than twice the digits
            float want = (float)((double)most / amax);
            want = want < 0x1p126f ? want : 0x1p126f;
            CHECK(scale == want, "amax %g: scale %.9g, should be %.9g", amax, scale, want);
            CHECK(1.0f / scale >= FLT_MIN && 1.0f / scale < INFINITY, "amax %g: descale %g", amax, 1.0f / scale);
            bool saturated;
            ref_encode(t, amax * scale, &saturated);
            CHECK(!saturated, "amax %g times its scale %g saturates", amax, scale);
        }
    }
}

// ---------------------------------------------------------------------------- scaling state

static void test_slots(void) {
    Fp8Scaling s = {};
    s.layers = 3;
    s.recipe = &fp8_recipes[0];
    std::vector<int> seen(NUM_FP8_ROLES * 3 * NUM_LINEARS, 0);
    char name[48];
    for (int role = 0; role < NUM_FP8_ROLES; role++) {
        for (int layer = 0; layer < 3; layer++) {
            for (int linear = 0; linear < NUM_LINEARS; linear++) {
                int slot = fp8_slot(&s, (Fp8Role)role, layer, linear);
                CHECK(slot >= 0 && slot < (int)seen.size() && !seen[slot]++, "slot %d of role %d layer %d linear %d", slot, role, layer, linear);
                CHECK(fp8_slot_role(&s, slot) == role, "slot %d has role %d, not %d", slot, fp8_slot_role(&s, slot), role);
                char want[48];
                snprintf(want, sizeof(want), "l%d.%s.%s", layer, linear_names[linear], fp8_role_names[role]);
                CHECK(!strcmp(fp8_slot_name(&s, slot, name), want), "slot %d is called %s, should be %s", slot, name, want);
            }
        }
    }
    CHECK(!strcmp(fp8_slot_name(&s, fp8_slot(&s, FP8_ROLE_X, 2, LINEAR_FC), name), "l2.fc.x"), "%s", name);
    s.settings.head = true;  // one more of each role, after the layers'
    for (int role = 0; role < NUM_FP8_ROLES; role++) {
        const int slot = fp8_slot(&s, (Fp8Role)role, 0, LINEAR_HEAD);
        CHECK(slot == (role + 1) * 13 - 1 && fp8_slot_role(&s, slot) == role && !strcmp(fp8_slot_name(&s, slot, name), (std::string("head.") + fp8_role_names[role]).c_str()),
              "slot %d: %s", slot, name);
        CHECK(!strcmp(fp8_slot_name(&s, fp8_slot(&s, (Fp8Role)role, 2, LINEAR_FCPROJ), name), (std::string("l2.fcproj.") + fp8_role_names[role]).c_str()), "%s", name);
    }
    CHECK(!strcmp(fp8_linear_text(&s, 12, name), "the head") && !strcmp(fp8_linear_text(&s, 2 * 3 + 1, name), "fc of layer 1"), "%s", name);
    s.settings.head = false;
    CHECK(fp8_role_format(s.recipe, FP8_ROLE_X) == FP8_E4M3 && fp8_role_format(s.recipe, FP8_ROLE_EVAL_X) == FP8_E4M3 &&
        fp8_role_format(s.recipe, FP8_ROLE_W) == FP8_E4M3 &&
          fp8_role_format(s.recipe, FP8_ROLE_DY) == FP8_E5M2, "the formats of recipe %s", s.recipe->name);
}

// Whatever the amax was, the invariants hold after the quantize kernel; I7: only the slot that was used has changed.
static void test_invariants_special(void) {
    const int layers = 2;
    ScalingLab* l = scaling_lab(layers);
    char message[256];
    CHECK(!check_state(l, 0, l->s.count, 1, message), "fresh state: %s", message);
    CHECK((size_t)l->s.count == NUM_FP8_ROLES * layers * NUM_LINEARS && fp8_scaling_bytes(&l->s.settings, layers) == (size_t)l->s.count * 32, "%d slots, %zu bytes",
        l->s.count, fp8_scaling_bytes(&l->s.settings, layers));
    Floats x = make_input<bf16>(INPUT_RANDOM, 256, 1);
    bf16* d_x = lab_put<bf16>(&l->lab, x);
    uint8_t *k = lab_alloc<uint8_t>(&l->lab, 256), *t = lab_alloc<uint8_t>(&l->lab, 256);
    l->s.count_on = true;
    for (int role = 0; role < NUM_FP8_ROLES; role++) {
        const int slot = fp8_slot(&l->s, (Fp8Role)role, 1, LINEAR_FC);
        uint32_t most = 0;
        for (uint32_t bits : special_amaxes) {
            Fp8ScalingHost before, after;
            fp8_scaling_copy(&l->s, &before);
            set_amax(l, slot, bits);
            fp8_scaling_clear_counts(&l->s, l->lab.dev.stream);
            fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, k, t, NULL, NULL), d_x, 16, 16, NULL, NULL, false, l->lab.dev.stream);
            most = bits > most ? bits : most;
            CHECK(!check_state(l, 0, l->s.count, 256, message), "amax %08x: %s", bits, message);
            fp8_scaling_copy(&l->s, &after);
            CHECK(after.amax[slot] == bits && after.amax_step[slot] == most, "amax %08x, amax_step %08x, should be %08x, %08x", after.amax[slot],
                after.amax_step[slot], bits, most);
            CHECK(after.scale[slot] == fp8_scale_from_amax(bits, FP8_MAX(fp8_role_format(l->s.recipe, (Fp8Role)role))) &&
                after.descale[slot] == 1.0f / after.scale[slot],
                  "amax %08x: scale %g, descale %g", bits, after.scale[slot], after.descale[slot]);
            for (int i = 0; i < l->s.count; i++) {
                CHECK(i == slot || (after.amax[i] == before.amax[i] && after.amax_step[i] == before.amax_step[i] &&
                    after.scale[i] == before.scale[i] && after.descale[i] == before.descale[i] &&
                      after.counts[2 * i] == 0 && after.counts[2 * i + 1] == 0), "slot %d changed when slot %d was used (I7)", i, slot);
            }
            fp8_scaling_host_free(&before);
            fp8_scaling_host_free(&after);
        }
    }
    // a step begins: x and dy forget their step maximum, weights and evaluation keep it; a role begins: its amaxes are 0
    fp8_scaling_begin_step(&l->s, l->lab.dev.stream);
    for (int role = 0; role < NUM_FP8_ROLES; role++) {
        const int slot = fp8_slot(&l->s, (Fp8Role)role, 1, LINEAR_FC);
        bool kept = role == FP8_ROLE_W || role == FP8_ROLE_EVAL_X;
        CHECK(at(l, l->s.amax_step, slot) == (kept ? 0x7fffffffu : 0u), "role %d: amax_step %08x after begin_step", role, at(l, l->s.amax_step, slot));
        fp8_scaling_begin(&l->s, (Fp8Role)role, l->lab.dev.stream);
        for (int other = 0; other < NUM_FP8_ROLES; other++) {
            uint32_t bits = at(l, l->s.amax, fp8_slot(&l->s, (Fp8Role)other, 1, LINEAR_FC));
            CHECK(bits == (other <= role ? 0u : 0x7fffffffu), "amax of role %d is %08x after role %d began", other, bits, role);
        }
    }
    scaling_lab_free(l);
}

// The check must see each violation: one field of a good host copy is broken at a time.
static void test_invariants_violated(void) {
    ScalingLab* l = scaling_lab(2);
    char message[256];
    const int slot = fp8_slot(&l->s, FP8_ROLE_X, 1, LINEAR_FC), unused = fp8_slot(&l->s, FP8_ROLE_DY, 0, LINEAR_QKV);
    bf16* x = lab_put<bf16>(&l->lab, make_input<bf16>(INPUT_RANDOM, 256, 1));
    amax_reduce(l->s.amax + slot, x, 256, l->lab.dev.stream);
    fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, lab_alloc<uint8_t>(&l->lab, 256), NULL, NULL, NULL), x, 16, 16, NULL, NULL, false, l->lab.dev.stream);
    cudaCheck(cudaStreamSynchronize(l->lab.dev.stream));
    Fp8ScalingHost h;
    fp8_scaling_copy(&l->s, &h);
    CHECK(!fp8_scaling_check(&l->s, &h, 0, l->s.count, 256, message), "%s", message);
    auto expect = [&](const char* invariant, const char* name, const char* how) {
        const char* broken = fp8_scaling_check(&l->s, &h, 0, l->s.count, 256, message);
        CHECK(broken && strstr(broken, invariant) && strstr(broken, name), "%s is not seen as a violation of %s in %s, but: %s", how, invariant, name,
            broken ? broken : "nothing");
    };
    const float scale = h.scale[slot], descale = h.descale[slot];
    const unsigned amax = h.amax[slot];
    for (float bad : {0.0f, -1.0f, INFINITY, NAN}) { h.scale[slot] = bad; expect("I1", "l1.fc.x", "a scale that is no positive number"); }
    h.scale[slot] = scale;
    for (float bad : {nextafterf(descale, 0), nextafterf(descale, INFINITY), 0.0f, NAN}) { h.descale[slot] = bad; expect("I2", "l1.fc.x", "a wrong descale"); }
    h.scale[slot] = 0x1p127f; h.descale[slot] = 0x1p-127f;
    expect("I2", "l1.fc.x", "a denormal descale");
    h.scale[slot] = 2 * scale; h.descale[slot] = 1.0f / (2 * scale);
    expect("I3", "l1.fc.x", "a scale that does not belong to the amax");
    h.scale[slot] = scale; h.descale[slot] = descale;
    h.amax_step[slot] = amax - 1;
    expect("I4", "l1.fc.x", "amax_step below the amax");
    h.amax_step[slot] = amax;
    h.counts[2 * slot] = 257;
    expect("I5", "l1.fc.x", "more saturated values than elements");
    h.counts[2 * slot] = 256; h.counts[2 * slot + 1] = 257;
    expect("I5", "l1.fc.x", "more flushed values than elements");
    h.counts[2 * slot + 1] = 0;
    h.scale[unused] = 2.0f; h.descale[unused] = 0.5f;
    expect("I6", "l0.qkv.dy", "an unused slot with a scale");
    h.scale[unused] = h.descale[unused] = 1.0f;
    CHECK(!fp8_scaling_check(&l->s, &h, 0, l->s.count, 256, message), "repaired, but: %s", message);
    h.scale[slot] = 0.0f;  // outside of the slots asked for
    CHECK(!fp8_scaling_check(&l->s, &h, slot + 1, l->s.count, 256, message), "%s", message);
    fp8_scaling_host_free(&h);
    scaling_lab_free(l);
}

// The report finds the first tensor of a step that is not finite: weights, inputs upwards, gradients downwards; never evaluation's.
static void test_find_nonfinite(void) {
    Fp8Scaling s = {};
    s.layers = 3;
    s.settings.head = true;
    std::vector<unsigned> amax(NUM_FP8_ROLES * fp8_tensors(&s), 0x7f7fffff);
    const int in_order[] = {fp8_slot(&s, FP8_ROLE_DY, 0, LINEAR_QKV), fp8_slot(&s, FP8_ROLE_DY, 0, LINEAR_FC), fp8_slot(&s, FP8_ROLE_DY, 2, LINEAR_QKV), fp8_slot(&s, FP8_ROLE_DY, 0, LINEAR_HEAD),
                            fp8_slot(&s, FP8_ROLE_X, 0, LINEAR_HEAD), fp8_slot(&s, FP8_ROLE_X, 2, LINEAR_QKV), fp8_slot(&s, FP8_ROLE_X, 0, LINEAR_FCPROJ),
                            fp8_slot(&s, FP8_ROLE_W, 0, LINEAR_HEAD), fp8_slot(&s, FP8_ROLE_W, 1, LINEAR_FC)};  // later ones come first in the step
    amax[fp8_slot(&s, FP8_ROLE_EVAL_X, 1, LINEAR_FC)] = 0x7fc00000;
    CHECK(fp8_scaling_find_nonfinite(&s, amax.data()) == -1, "found slot %d", fp8_scaling_find_nonfinite(&s, amax.data()));
    for (int i = 0; i < 9; i++) {
        amax[in_order[i]] = i % 2 ? 0x7f800000 : 0x7fc00000;
        char name[48], want[48];
        int found = fp8_scaling_find_nonfinite(&s, amax.data());
        CHECK(found == in_order[i], "found %s, not %s", found < 0 ? "nothing" : fp8_slot_name(&s, found, name), fp8_slot_name(&s, in_order[i], want));
    }
}

static void test_print(void) {
    ScalingLab* l = scaling_lab(1);
    Fp8ScalingHost h;
    fp8_scaling_copy(&l->s, &h);
    const int slot = fp8_slot(&l->s, FP8_ROLE_DY, 0, LINEAR_FC);
    h.amax_step[slot] = 0x7fc00000;
    h.counts[2 * slot] = 25;
    for (int i = 0; i < l->s.count; i++) { l->s.elements[i] = 1000; }
    FILE* f = tmpfile();
    fp8_scaling_print(f, &l->s, &h);
    rewind(f);
    char line[256];
    int lines = 0, found = 0;
    while (fgets(line, sizeof(line), f)) { lines++; found += strstr(line, "l0.fc.dy") && strstr(line, "E5M2") && strstr(line, "nan") && strstr(line, " 2.5"); }
    fclose(f);
    CHECK(lines == 1 + 3 * NUM_LINEARS && found == 1, "%d lines, %d of the slot in question", lines, found);
    fp8_scaling_host_free(&h);
    scaling_lab_free(l);
}

// ---------------------------------------------------------------------------- quantization

// Quantizes x (rows,cols), whose slot's amax is given, and compares everything with the reference.
static void check_quantize(ScalingLab* l, Fp8Role role, const Floats& x, int rows, int cols, uint32_t amax_bits) {
    const size_t n = (size_t)rows * cols;
    const int slot = fp8_slot(&l->s, role, 0, LINEAR_QKV);
    const Fp8Format format = fp8_role_format(l->s.recipe, role);
    const RefTable* table = ref_table(format);
    const float scale = fp8_scale_from_amax(amax_bits, FP8_MAX(format));
    std::vector<uint8_t> want_k(n), want_t(n);
    unsigned long long saturated = 0, flushed = 0;
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            float v = x[(size_t)r * cols + c];
            volatile float y = v * scale;  // rounded once to float, then converted (R1)
            bool over;
            int code = ref_encode(table, y, &over);
            want_k[(size_t)r * cols + c] = want_t[(size_t)c * rows + r] = (uint8_t)code;
            saturated += over;
            flushed += (code & 0x7f) == 0 && v != 0;
        }
    }
    bf16* d_x = lab_put<bf16>(&l->lab, x);
    for (int mode = 0; mode < 4; mode++) {  // both orders counted, both not counted, k alone, t alone
        uint8_t *k = mode == 3 ? NULL : lab_alloc<uint8_t>(&l->lab, n), *t = mode == 2 ? NULL : lab_alloc<uint8_t>(&l->lab, n);
        set_amax(l, slot, amax_bits);
        fp8_scaling_clear_counts(&l->s, l->lab.dev.stream);
        l->s.count_on = mode == 0;
        for (int pass = 0; pass < 2; pass++) { fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, k, t, NULL, NULL), d_x, rows, cols, NULL, NULL, false, l->lab.dev.stream); }
        for (int order = 0; order < 2; order++) {
            if (!(order ? t : k)) { continue; }
            std::vector<uint8_t> got = lab_download(&l->lab, order ? t : k, n);
            const std::vector<uint8_t>& want = order ? want_t : want_k;
            for (size_t i = 0; i < n; i++) {
                size_t at = order ? i % rows * cols + i / rows : i;
                CHECK(got[i] == want[i], "%d x %d, %s, amax %08x: %s code %zu is %02x, should be %02x (x %.9g, scale %.9g)", rows, cols,
                    format == FP8_E4M3 ? "E4M3" : "E5M2", amax_bits,
                      order ? "t" : "k", i, got[i], want[i], x[at], scale);
            }
        }
        std::vector<unsigned long long> counts = lab_download(&l->lab, l->s.counts + 2 * slot, 2);
        unsigned long long times = mode == 0 ? 2 : 0;  // two passes add up
        CHECK(counts[0] == times * saturated && counts[1] == times * flushed, "%d x %d: %llu saturated, %llu flushed, should be %llu, %llu", rows,
            cols, counts[0], counts[1], times * saturated, times * flushed);
        CHECK(at(l, l->s.scale, slot) == scale && at(l, l->s.descale, slot) == 1.0f / scale, "scale %g, should be %g", at(l, l->s.scale, slot), scale);
    }
    lab_reset(&l->lab);
}

static const int quantize_cases[][2] = {{16, 16}, {16, 48}, {48, 16}, {128, 256}, {144, 272}, {112, 240}, {64, 768}, {1600, 48}, {272, 528}};

template <int ROLE>
static void test_quantize_shapes(void) {
    ScalingLab* l = scaling_lab(1);
    for (auto& c : quantize_cases) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            Floats x = make_input<bf16>((Input)input, (size_t)c[0] * c[1], c[0] + c[1]);
            check_quantize(l, (Fp8Role)ROLE, x, c[0], c[1], max_bits(x));
        }
    }
    scaling_lab_free(l);
}

// All 65,536 BF16 values, NaN and infinity among them, at scales from the smallest to the largest; those below the true amax saturate.
template <int ROLE>
static void test_quantize_every_value(void) {
    ScalingLab* l = scaling_lab(1);
    Floats x(65536);
    for (uint32_t i = 0; i < 65536; i++) { x[i] = float_of(((i * 40503u) & 0xffffu) << 16); }  // an odd factor: every value once, mixed
    for (uint32_t i = 0; i < 65536; i++) { if (isnan(x[i])) { x[i] = NAN; } }                   // (the sign of a NaN is not kept by every conversion)
    std::vector<uint32_t> amaxes(special_amaxes, special_amaxes + sizeof(special_amaxes) / sizeof(special_amaxes[0]));
    for (float amax : {1e-3f, 0.7f, 3.0f, 100.0f, 463.0f, 464.0f, 1e4f, 6e4f}) { amaxes.push_back(bits_of(amax)); }
    for (uint32_t bits : amaxes) { check_quantize(l, (Fp8Role)ROLE, x, 256, 256, bits); }
    scaling_lab_free(l);
}

// The values at which codes meet: at scale 1 every midpoint of two codes that BF16 holds, and its BF16 neighbours.
template <int ROLE>
static void test_quantize_boundaries(void) {
    ScalingLab* l = scaling_lab(1);
    const Fp8Format format = fp8_role_format(l->s.recipe, (Fp8Role)ROLE);
    const RefTable* table = ref_table(format);
    Floats x;
    for (int i = 0; i <= table->largest; i++) {
        float middle = (float)((table->value[i] + table->value[i + 1]) / 2);
        CHECK(ref_round_bf16(middle) == middle, "BF16 does not hold the midpoint %g", middle);
        for (int d = -1; d <= 1; d++) { for (float sign : {1.0f, -1.0f}) { x.push_back(sign * float_of(bits_of(middle) + (uint32_t)d * 0x10000u)); } }
    }
    while (x.size() % 256) { x.push_back(0.0f); }
    check_quantize(l, (Fp8Role)ROLE, x, 16, (int)x.size() / 16, bits_of(FP8_MAX(format)));
    scaling_lab_free(l);
}

// dbias += column sums of the BF16 values: the bits of bias_backward, twice in a row; and exact for integers.
static void test_quantize_dbias(void) {
    ScalingLab* l = scaling_lab(1);
    for (auto& c : quantize_cases) {
        for (int input = 0; input < NUM_INPUTS; input++) {
            const int rows = c[0], cols = c[1], slot = fp8_slot(&l->s, FP8_ROLE_DY, 0, LINEAR_QKV);
            Floats x = make_input<bf16>((Input)input, (size_t)rows * cols, 3), dbias = make_input<float>(INPUT_INTEGER, cols, 4);
            bf16* d_x = lab_put<bf16>(&l->lab, x);
            float *got = lab_put<float>(&l->lab, dbias), *want = lab_put<float>(&l->lab, dbias),
                *partial = lab_alloc<float>(&l->lab, column_sum_partials(rows, cols));
            float* partial2 = lab_alloc<float>(&l->lab, column_sum_partials(rows, cols));
            set_amax(l, slot, max_bits(x));
            for (int pass = 0; pass < 2; pass++) {
                const Fp8Operand q = fp8_operand(&l->s, slot, lab_alloc<uint8_t>(&l->lab, x.size()), lab_alloc<uint8_t>(&l->lab, x.size()), NULL, NULL);
                fp8_quantize(&l->s, slot, q, d_x, rows, cols, got, partial, false, l->lab.dev.stream);
                bias_backward(want, partial2, d_x, rows, cols, l->lab.dev.stream);
            }
            Floats sums = lab_get(&l->lab, got, cols);
            CHECK(same_bits(sums, lab_get(&l->lab, want, cols)), "%d x %d %s: dbias of quantization and of bias_backward differ", rows, cols,
                input_names[input]);
            if (input == INPUT_INTEGER) {
                for (int i = 0; i < 2 * rows; i++) { for (int k = 0; k < cols; k++) { dbias[k] += x[(size_t)(i % rows) * cols + k]; } }
                CHECK_SAME(sums, dbias, "dbias of integers, %d x %d", rows, cols);
            }
            lab_reset(&l->lab);
        }
    }
    scaling_lab_free(l);
}

static void test_quantize_repeats(void) {
    ScalingLab* l = scaling_lab(1);
    const int rows = 272, cols = 528, slot = fp8_slot(&l->s, FP8_ROLE_DY, 0, LINEAR_QKV);
    Floats x = make_input<bf16>(INPUT_RANDOM, (size_t)rows * cols, 1);
    l->s.count_on = true;
    check_repeats("fp8_quantize", [&] {
        uint8_t *k = lab_alloc<uint8_t>(&l->lab, x.size()), *t = lab_alloc<uint8_t>(&l->lab, x.size());
        float *dbias = lab_zeros<float>(&l->lab, cols), *partial = lab_alloc<float>(&l->lab, column_sum_partials(rows, cols));
        set_amax(l, slot, bits_of(1.5f));  // below the true amax: some saturate
        fp8_scaling_clear_counts(&l->s, l->lab.dev.stream);
        fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, k, t, NULL, NULL), lab_put<bf16>(&l->lab, x), rows, cols, dbias, partial, false, l->lab.dev.stream);
        std::vector<uint8_t> all = lab_download(&l->lab, k, x.size()), more = lab_download(&l->lab, t, x.size());
        all.insert(all.end(), more.begin(), more.end());
        Floats sums = lab_get(&l->lab, dbias, cols);
        std::vector<unsigned long long> counts = lab_download(&l->lab, l->s.counts + 2 * slot, 2);
        CHECK(counts[0] > 0, "nothing saturated");
        all.insert(all.end(), (uint8_t*)sums.data(), (uint8_t*)(sums.data() + cols));
        all.insert(all.end(), (uint8_t*)counts.data(), (uint8_t*)(counts.data() + 2));
        return all;
    });
    scaling_lab_free(l);
}

// Sizes that are no multiples of 16 are refused, with the sizes.
static void quantize_odd(void* arg) {
    const int* size = (const int*)arg;
    ScalingLab* l = scaling_lab(1);
    uint8_t* k = lab_alloc<uint8_t>(&l->lab, size[0] * size[1]);
    const int slot = fp8_slot(&l->s, FP8_ROLE_X, 0, LINEAR_QKV);
    fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, k, NULL, NULL, NULL), lab_alloc<bf16>(&l->lab, size[0] * size[1]), size[0], size[1], NULL, NULL, false, l->lab.dev.stream);
}
static void test_quantize_refuses(void) {
    const int sizes[][2] = {{24, 32}, {32, 24}, {8, 16}};
    for (auto& size : sizes) {
        std::string output;
        char want[64];
        snprintf(want, sizeof(want), "%d x %d", size[0], size[1]);
        int code = test_child(quantize_odd, (void*)size, &output);
        CHECK(code == 1 && output.find(want) != std::string::npos && output.find("HINT") != std::string::npos &&
            output.find("16") != std::string::npos, "exit %d: %s", code, output.c_str());
    }
    const int good[2] = {32, 16};
    std::string output;
    CHECK(test_child(quantize_odd, (void*)good, &output) == 0, "32 x 16 is refused: %s", output.c_str());
}

// Codes that come from elsewhere are transposed as the quantize kernel would have written them; any shape, and nothing beyond it.
static void test_transpose_of_codes(void) {
    Lab lab;
    TestRng r = {test_seed()};
    for (int rows : {16, 48, 128, 144, 272}) {
        for (int cols : {16, 64, 256, 304}) {
            const size_t n = (size_t)rows * cols;
            std::vector<uint8_t> k(n);
            for (uint8_t& x : k) { x = (uint8_t)test_rng_u64(&r); }
            uint8_t *d_k = lab_zeros<uint8_t>(&lab, n), *d_t = lab_zeros<uint8_t>(&lab, n + 16);
            cudaCheck(cudaMemcpy(d_k, k.data(), n, cudaMemcpyHostToDevice));
            cudaCheck(cudaDeviceSynchronize());
            fp8_transpose(d_t, d_k, rows, cols, lab.dev.stream);
            std::vector<uint8_t> t = lab_download(&lab, d_t, n + 16);
            for (int i = 0; i < rows; i++) { for (int j = 0; j < cols; j++) { CHECK(t[(size_t)j * rows + i] == k[(size_t)i * cols + j], "%d x %d, (%d,%d)", rows, cols, i, j); } }
            for (int i = 0; i < 16; i++) { CHECK(t[n + i] == 0, "%d x %d: wrote beyond its end", rows, cols); }
            lab_reset(&lab);
        }
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_reference_encodes", test_reference, QUICK},
        {"amax_exact_f32", test_amax<float>, QUICK},
        {"amax_exact_bf16", test_amax<bf16>, QUICK},
        {"fp8_scale_rule", test_scale_rule, QUICK},
        {"fp8_slots", test_slots, QUICK},
        {"fp8_invariants_hold_for_special_amaxes", test_invariants_special, QUICK},
        {"fp8_invariants_violations_are_seen", test_invariants_violated, QUICK},
        {"fp8_find_nonfinite_order", test_find_nonfinite, QUICK},
        {"fp8_print", test_print, QUICK},
        {"fp8_quantize_shapes_e4m3", test_quantize_shapes<FP8_ROLE_X>, QUICK},
        {"fp8_quantize_shapes_e5m2", test_quantize_shapes<FP8_ROLE_DY>, QUICK},
        {"fp8_quantize_every_value_e4m3", test_quantize_every_value<FP8_ROLE_W>, QUICK},
        {"fp8_quantize_every_value_e5m2", test_quantize_every_value<FP8_ROLE_DY>, QUICK},
        {"fp8_quantize_boundaries_e4m3", test_quantize_boundaries<FP8_ROLE_EVAL_X>, QUICK},
        {"fp8_quantize_boundaries_e5m2", test_quantize_boundaries<FP8_ROLE_DY>, QUICK},
        {"fp8_quantize_bias_gradient", test_quantize_dbias, QUICK},
        {"fp8_quantize_repeats", test_quantize_repeats, QUICK},
        {"fp8_quantize_refuses_odd_sizes", test_quantize_refuses, QUICK},
        {"transpose_of_codes", test_transpose_of_codes, QUICK},
    };
    return TEST_MAIN(tests);
}
