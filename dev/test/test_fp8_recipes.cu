/* test_fp8_recipes.cu - every granularity of scales: codes, scales and their layout, counts and noise, bit for bit
 *
 * The reference states the rules of FP8 recipes in double, value by value: the amax of each group, its scale, the nearest code; and where cuBLASLt wants the
 * scale of each group. It shares with the kernels only the table of recipes.
 * Covers: llmc/fp8_recipes.h, fp8_layout.h, fp8_recipe.cuh, fp8_quantize.cuh
 */
#include <algorithm>

#include "dev/test/fp8_lab.h"

// ---------------------------------------------------------------------------- the reference

struct Order { std::vector<uint8_t> codes, scales; unsigned long long saturated, flushed; double signal, noise; };

static int ref_mx_exponent(float amax, Fp8Format format) {
    if (isnan(amax)) { return 255; }
    if (isinf(amax)) { return 254; }
    int e = amax == 0 ? 0 : std::max(0, ilogb(amax) + 127 - 20);  // too small by far
    while (amax != 0 && ldexp(FP8_MAX(format), e - 127) < (double)amax) { e++; }
    return e;
}
// One order: a matrix of R rows contracted along its K columns; at(o, i) are its values.
template <class At> static Order ref_order(Fp8Granularity by, Fp8Format format, bool powers, int R, int K, At at) {
    const int kb = (K + 127) / 128, ro = by == FP8_BY_BLK128 ? 128 : by == FP8_BY_TENSOR ? R : 1, ki = by == FP8_BY_VEC128 || by == FP8_BY_BLK128 ? 128 : by == FP8_BY_VEC32 ? 32 : K;
    Order out = {std::vector<uint8_t>((size_t)R * K), {}, 0, 0, 0, 0};
    size_t floats = by == FP8_BY_ROW ? R : by == FP8_BY_VEC128 ? (size_t)kb * R : by == FP8_BY_BLK128 ? (size_t)(R + 127) / 128 * ((kb + 3) / 4 * 4) : 0;
    out.scales.assign(by == FP8_BY_VEC32 ? (size_t)(R + 127) / 128 * kb * 512 : floats * 4, 0);
    const RefTable* table = ref_table(format);
    double value[256];
    for (int code = 0; code < 256; code++) { value[code] = ref_decode(format, code); }
    for (int o0 = 0; o0 < R; o0 += ro) {
        for (int i0 = 0; i0 < K; i0 += ki) {
            const int o1 = std::min(R, o0 + ro), i1 = std::min(K, i0 + ki);
            uint32_t most = 0;
            for (int o = o0; o < o1; o++) { for (int i = i0; i < i1; i++) { most = std::max(most, bits_of(at(o, i)) & 0x7fffffffu); } }
            double scale, descale;
            if (by == FP8_BY_VEC32) {
                const int e = ref_mx_exponent(float_of(most), format), i = i0 / 32;
                scale = ldexp(1.0, 127 - e);
                descale = e == 255 ? NAN : ldexp(1.0, e - 127);
                out.scales[((size_t)(o0 / 128) * ((((K + 31) / 32) + 3) / 4) + i / 4) * 512 + (o0 % 32) * 16 + (o0 % 128) / 32 * 4 + i % 4] = (uint8_t)e;
            } else {
                const float amax = float_of(most);
                scale = amax == 0 || !isfinite(amax) ? 1.0 : std::min((double)(float)((double)FP8_MAX(format) / amax), 0x1p126);
                if (powers) { int e; frexp(scale, &e); scale = ldexp(1.0, e - 1); }
                const float inverse = 1.0f / (float)scale;
                descale = inverse;
                size_t to = by == FP8_BY_ROW ? o0 : by == FP8_BY_VEC128 ? (size_t)(i0 / 128) * R + o0 : (size_t)(o0 / 128) * ((kb + 3) / 4 * 4) + i0 / 128;
                if (by != FP8_BY_TENSOR) { memcpy(&out.scales[to * 4], &inverse, 4); }
            }
            for (int o = o0; o < o1; o++) {
                for (int i = i0; i < i1; i++) {
                    const float x = at(o, i);
                    bool over;
                    const int code = ref_encode(table, (float)((double)x * scale), &over);  // the product is exact in double, then rounded once
                    out.codes[(size_t)o * K + i] = (uint8_t)code;
                    out.saturated += over;
                    out.flushed += (code & 0x7f) == 0 && x != 0;
                    out.signal += (double)x * x;
                    const double error = x - value[code] * descale;
                    out.noise += error * error;
                }
            }
        }
    }
    return out;
}

// ---------------------------------------------------------------------------- kernels against it

static bool same_codes(Fp8Granularity by) { return by == FP8_BY_TENSOR || by == FP8_BY_BLK128; }

// Quantizes x (rows,cols) for a role, orders: 1 k, 2 t, 3 both, and compares everything that is written.
static void check_operand(ScalingLab* l, Fp8Role role, const Floats& x, int rows, int cols, int orders, const char* what) {
    const int slot = fp8_slot(&l->s, role, 0, LINEAR_FC);
    const Fp8Granularity by = fp8_slot_granularity(&l->s, slot);
    const Fp8Format format = fp8_slot_format(&l->s, slot);
    const bool powers = l->s.settings.powers_of_two;
    const size_t n = x.size();
    Order k = ref_order(by, format, powers, rows, cols, [&](int o, int i) { return x[(size_t)o * cols + i]; });
    Order t = ref_order(by, format, powers, cols, rows, [&](int o, int i) { return x[(size_t)i * cols + o]; });
    CHECK(fp8_scale_bytes(by, rows, cols) == k.scales.size() && fp8_scale_bytes(by, cols, rows) == t.scales.size(), "%d x %d: %zu and %zu bytes of scales, should be %zu and %zu",
          rows, cols, fp8_scale_bytes(by, rows, cols), fp8_scale_bytes(by, cols, rows), k.scales.size(), t.scales.size());
    uint8_t *d_k = orders & 1 ? lab_alloc<uint8_t>(&l->lab, n) : NULL, *d_t = orders & 2 ? lab_alloc<uint8_t>(&l->lab, n) : NULL;
    uint8_t *k_scale = orders & 1 ? lab_alloc<uint8_t>(&l->lab, k.scales.size()) : NULL, *t_scale = orders & 2 ? lab_alloc<uint8_t>(&l->lab, t.scales.size()) : NULL;
    bf16* d_x = lab_put<bf16>(&l->lab, x);
    fp8_scaling_begin(&l->s, role, l->lab.dev.stream);
    fp8_scaling_begin_step(&l->s, l->lab.dev.stream);
    fp8_scaling_begin_weights(&l->s, l->lab.dev.stream);
    fp8_scaling_clear_counts(&l->s, l->lab.dev.stream);
    if (fp8_needs_amax(&l->s, slot)) { amax_reduce(l->s.amax + slot, d_x, n, l->lab.dev.stream); }
    l->s.count_on = true;
    l->s.noise_on = l->s.noise != NULL;
    fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, d_k, d_t, k_scale, t_scale), d_x, rows, cols, NULL, NULL, false, l->lab.dev.stream);
    l->s.count_on = l->s.noise_on = false;
    const char* name = fp8_granularity_names[by];
    for (int order = 0; order < 2; order++) {
        if (!(orders >> order & 1)) { continue; }
        const Order& want = order ? t : k;
        const int R = order ? cols : rows, K = order ? rows : cols;
        std::vector<uint8_t> codes = lab_download(&l->lab, order ? d_t : d_k, n), scales = lab_download(&l->lab, order ? t_scale : k_scale, want.scales.size());
        for (size_t i = 0; i < scales.size(); i++) {
            CHECK(scales[i] == want.scales[i], "%s %s %d x %d, order %s: byte %zu of the scales is %02x, should be %02x", what, name, rows, cols, order ? "t" : "k", i, scales[i], want.scales[i]);
        }
        for (size_t i = 0; i < n; i++) {
            CHECK(codes[i] == want.codes[i], "%s %s %d x %d, order %s: code (%zu,%zu) of %g is %02x, should be %02x", what, name, R, K, order ? "t" : "k", i / K, i % K,
                  order ? x[i % K * cols + i / K] : x[i], codes[i], want.codes[i]);
        }
    }
    const unsigned amax = at(l, l->s.amax, slot), amax_step = at(l, l->s.amax_step, slot);
    CHECK((amax == max_bits(x) || (amax > 0x7f800000u && max_bits(x) > 0x7f800000u)) && amax_step == amax, "%s %s: amax %08x, of the step %08x, should be %08x",
        what, name, amax, amax_step, max_bits(x));
    Order sum = {{}, {}, 0, 0, 0, 0};
    const bool both = orders == 3 && !same_codes(by);
    for (const Order* o : {&k, &t}) {
        if (both || o == (orders & 1 ? &k : &t)) { sum.saturated += o->saturated; sum.flushed += o->flushed; sum.signal += o->signal; sum.noise += o->noise; }
    }
    std::vector<unsigned long long> counts = lab_download(&l->lab, l->s.counts + 2 * slot, 2);
    CHECK(counts[0] == sum.saturated && counts[1] == sum.flushed && l->s.elements[slot] == (both ? 2 : 1) * n,
        "%s %s %d x %d orders %d: %llu saturated, %llu flushed of %llu, should be %llu, %llu", what,
          name, rows, cols, orders, counts[0], counts[1], l->s.elements[slot], sum.saturated, sum.flushed);
    if (l->s.noise) {
        std::vector<double> noise = lab_download(&l->lab, l->s.noise + 2 * slot, 2);
        const double bound = 2.0 * n * DBL_EPSILON;  // of sums of 2n positive numbers in any order, relative
        for (int i = 0; i < 2; i++) {
            const double want = i ? sum.noise : sum.signal;
            CHECK(earned_error(want, noise[i]) <= bound * want || (!isfinite(want) && !isfinite(noise[i])), "%s %s %d x %d: sum %d of noise is %.17g, should be %.17g",
                what, name, rows, cols, i, noise[i], want);
        }
    }
    char message[256];
    const char* broken = check_state(l, slot, slot + 1, 2 * n, message);
    CHECK(!broken, "%s", message);
    lab_reset(&l->lab);
}

static const int shapes[][2] = {{16, 16}, {16, 48}, {48, 16}, {128, 128}, {144, 272}, {112, 240}, {48, 1600}, {1600, 32}, {272, 144}};
static const struct { const char* recipe; bool powers; Fp8Format dy; } variants[] = {
    {"current", false, FP8_E5M2}, {"row", false, FP8_E4M3}, {"row", false, FP8_E5M2}, {"block", false, FP8_E4M3}, {"block", true, FP8_E4M3}, {"block", true, FP8_E5M2},
    {"mx", false, FP8_E4M3}, {"mx", false, FP8_E5M2},
};
template <class F> static void for_variants(F f) {
    for (auto& v : variants) {
        Fp8Settings settings = settings_of(v.recipe);
        settings.powers_of_two = v.powers;
        settings.dy = v.dy;
        char message[160];
        CHECK(!fp8_settings_check(&settings, message), "%s", message);
        ScalingLab* l = scaling_lab(1, settings);
        f(l);
        scaling_lab_free(l);
    }
}
static void test_shapes(void) {
    for_variants([](ScalingLab* l) {
        fp8_scaling_alloc_noise(&l->s, 13 * 4);
        for (auto& c : shapes) {
            for (Fp8Role role : {FP8_ROLE_X, FP8_ROLE_W, FP8_ROLE_DY}) {
                if (role == FP8_ROLE_X && c[0] * c[1] > 2000) { continue; }  // as dy
                const size_t n = (size_t)c[0] * c[1];
                check_operand(l, role, make_input<bf16>(INPUT_ARANGE, n, n + role), c[0], c[1], 1, "arange");
                check_operand(l, role, make_input<bf16>(INPUT_EXTREME, n, n + role), c[0], c[1], 2, "extreme");
                check_operand(l, role, edge_input(c[0], c[1], n + role), c[0], c[1], 3, "edges");
                check_operand(l, role, Floats(n, 0.0f), c[0], c[1], 3, "zeros");
            }
        }
    });
}
// All 65,536 BF16 values, mixed, and in order: then the amax of a block runs through all values as well.
static void test_every_value(void) {
    for_variants([](ScalingLab* l) {
        for (unsigned factor : {40503u, 1u}) {
            Floats x(65536);
            for (uint32_t i = 0; i < 65536; i++) { x[i] = float_of(((i * factor) & 0xffffu) << 16); }
            for (float& v : x) { if (isnan(v)) { v = NAN; } }  // (which payload an amax has then is seen by test_kernels_fp8)
            check_operand(l, FP8_ROLE_DY, x, 256, 256, 3, factor == 1 ? "in order" : "mixed");
            check_operand(l, FP8_ROLE_W, x, 256, 256, 3, factor == 1 ? "in order" : "mixed");
        }
    });
}
static void test_mx_exponent(void) {
    TestRng r = {test_seed()};
    for (int format = 0; format < 2; format++) {
        for (int i = 0; i < 100000; i++) {
            uint32_t bits = i < (int)(sizeof(special_amaxes) / 4) ? special_amaxes[i] : (uint32_t)test_rng_u64(&r) & 0x7fffffffu;
            if (i % 3 == 0) { bits = (bits & 0x7f800000u) + 0x600000u + (uint32_t)(i % 5) - 2; }  // around 1.75 * 2^n
            const unsigned e = fp8_mx_exponent(bits, (Fp8Format)format);
            const int want = ref_mx_exponent(float_of(bits), (Fp8Format)format);
            CHECK((int)e == want, "amax %08x: e %u, should be %d", bits, e, want);
            CHECK((double)fp8_mx_scale(e) == ldexp(1.0, 127 - want) && (e == 255 ? isnan(fp8_mx_descale(e)) : (double)fp8_mx_descale(e) == ldexp(1.0, want - 127)), "e %u: scale %g, descale %g", e,
                  fp8_mx_scale(e), fp8_mx_descale(e));
        }
    }
}

// ---------------------------------------------------------------------------- layouts

// fp8_scale_index finds what the kernels wrote: every element of a group the same, every group another, all inside the array.
static void test_layouts(void) {
    for (int by = FP8_BY_ROW; by < NUM_FP8_GRANULARITIES; by++) {
        for (auto& c : shapes) {
            const int R = c[0], K = c[1], ro = by == FP8_BY_BLK128 ? 128 : 1, ki = by == FP8_BY_ROW ? K : by == FP8_BY_VEC32 ? 32 : 128;
            const size_t count = fp8_scale_count((Fp8Granularity)by, R, K);
            std::vector<int> owner(count, -1);
            for (int o = 0; o < R; o++) {
                for (int i = 0; i < K; i++) {
                    const size_t index = fp8_scale_index((Fp8Granularity)by, R, K, o, i);
                    const int group = o / ro * 1000 + i / ki;
                    CHECK(index < count, "%s %d x %d: scale of (%d,%d) at %zu of %zu", fp8_granularity_names[by], R, K, o, i, index, count);
                    CHECK(owner[index] == -1 || owner[index] == group, "%s %d x %d: (%d,%d) shares %zu with another group", fp8_granularity_names[by], R, K, o, i, index);
                    owner[index] = group;
                }
            }
            CHECK(fp8_scale_bytes((Fp8Granularity)by, R, K) % 16 == 0 && fp8_scale_bytes((Fp8Granularity)by, R, K) >= count * (by == FP8_BY_VEC32 ? 1 : 4), "%d x %d", R, K);
        }
    }
    // written out by hand: 256 x 1600 (12.5 blocks of 128)
    CHECK(fp8_scale_index(FP8_BY_VEC128, 256, 1600, 200, 1599) == 12 * 256 + 200 && fp8_scale_bytes(FP8_BY_VEC128, 256, 1600) == 13 * 256 * 4, "VEC128");
    CHECK(fp8_scale_index(FP8_BY_BLK128, 256, 1600, 200, 1599) == 16 + 12 && fp8_scale_bytes(FP8_BY_BLK128, 256, 1600) == 2 * 16 * 4, "BLK128");
    CHECK(fp8_scale_index(FP8_BY_VEC32, 256, 1600, 200, 1599) == (13 + 12) * 512 + 8 * 16 + 2 * 4 + 1 && fp8_scale_bytes(FP8_BY_VEC32, 256, 1600) == 2 * 13 * 512, "VEC32");
}

// ---------------------------------------------------------------------------- the table and the settings

static void test_recipe_table(void) {
    static const struct { int major, minor, cuda; const char* list; } devices[] = {
        {0, 0, 13000, "current, delayed, row, block, mx"}, {8, 0, 13000, "none"}, {8, 6, 13000, "none"}, {8, 9, 13000, "current, delayed"}, {9, 0, 13000, "current, delayed, row, block"},
        {9, 0, 12080, "current, delayed"}, {10, 0, 13000, "current, delayed, mx"}, {10, 3, 12080, "current, delayed, mx"}, {12, 0, 13000, "current, delayed, mx"}, {12, 1, 12040, "current, delayed"}};
    char buffer[64];
    for (auto& d : devices) { CHECK(!strcmp(fp8_recipe_list(d.major, d.minor, d.cuda, buffer), d.list), "%d.%d, CUDA %d: %s, should be %s", d.major, d.minor, d.cuda, buffer, d.list); }
    CHECK(NUM_FP8_RECIPES == 5 && !strcmp(RECIPE_CHOICES, "current,delayed,row,block,mx,"), "%s", RECIPE_CHOICES);
    CHECK(!strcmp(fp8_recipes[4].needs, "10.x, 12.x; CUDA 12.8") && !strcmp(fp8_recipes[0].needs, "8.9, 9.0, 10.x, 12.x; CUDA 12.2"), "%s", fp8_recipes[4].needs);
    static const struct { const char* recipe; int history, margin; bool powers; Fp8Format x, dy; const char* wrong; } settings[] = {
        {"delayed", 16, 0, false, FP8_E4M3, FP8_E5M2, NULL}, {"delayed", 1024, 6, false, FP8_E4M3, FP8_E5M2, NULL}, {"delayed", 0, 0, false, FP8_E4M3, FP8_E5M2, "1 to 1024"},
        {"delayed", 1025, 0, false, FP8_E4M3, FP8_E5M2, "1025"}, {"delayed", 16, 7, false, FP8_E4M3, FP8_E5M2, "0 to 6"}, {"delayed", 16, -1, false, FP8_E4M3, FP8_E5M2, "-1"},
        {"current", 16, 0, false, FP8_E4M3, FP8_E5M2, "no history"}, {"current", 0, 1, false, FP8_E4M3, FP8_E5M2, "no history"}, {"current", 0, 0, true, FP8_E4M3, FP8_E5M2, "128"},
        {"mx", 0, 0, true, FP8_E4M3, FP8_E4M3, "128"}, {"block", 0, 0, true, FP8_E4M3, FP8_E4M3, NULL}, {"current", 0, 0, false, FP8_E5M2, FP8_E5M2, "E5M2 x E5M2"},
        {"row", 0, 0, false, FP8_E5M2, FP8_E4M3, NULL}};
    for (auto& c : settings) {
        Fp8Settings s = settings_of(c.recipe);
        s.history = c.history; s.margin = c.margin; s.powers_of_two = c.powers; s.x = c.x; s.dy = c.dy;
        char message[160];
        const char* wrong = fp8_settings_check(&s, message);
        CHECK(c.wrong ? wrong && strstr(wrong, c.wrong) : !wrong, "%s, history %d, margin %d: %s, should say %s", c.recipe, c.history, c.margin,
            wrong ? wrong : "nothing", c.wrong ? c.wrong : "nothing");
    }
}

// ---------------------------------------------------------------------------- the Sink in other hands

// A producer that works through all of a tensor in one thread block: a Sink may begin again where it has finished. Values are handed on negated.
template <Fp8Granularity BY>
static __global__ void negate_and_quantize(const bf16* x, Fp8SinkParams p) {
    Sink<BY, FP8_E4M3, true> sink;
    for (int i = 0; i < CEIL_DIV(p.rows, FP8_PATCH); i++) {
        for (int j = 0; j < CEIL_DIV(p.cols, FP8_PATCH); j++) {
            sink.begin(p, i, j);
            if (sink.inside) {
                #pragma unroll fp8_sink_unroll<BY>
                for (int r = 0; r < FP8_TILE; r++) {
                    float v[FP8_TILE];
                    fp8_load_row(v, x + (size_t)(sink.row0 + r) * p.cols + sink.col0);
                    for (int c = 0; c < FP8_TILE; c++) { v[c] = -v[c]; }
                    sink.put_row(r, v);
                }
            }
            sink.finish();
        }
    }
}
static std::vector<uint8_t> quantize_all(ScalingLab* l, Fp8Role role, const Floats& x, int rows, int cols, bool fused) {
    const int slot = fp8_slot(&l->s, role, 0, LINEAR_FC);
    const Fp8Granularity by = fp8_slot_granularity(&l->s, slot);
    const size_t n = x.size(), bytes[4] = {n, n, fp8_scale_bytes(by, rows, cols), fp8_scale_bytes(by, cols, rows)};
    uint8_t* at[4];
    for (int i = 0; i < 4; i++) { at[i] = lab_alloc<uint8_t>(&l->lab, bytes[i]); }
    const Fp8Operand out = fp8_operand(&l->s, slot, at[0], at[1], at[2], at[3]);
    l->s.count_on = true;
    fp8_scaling_clear_counts(&l->s, l->lab.dev.stream);
    fp8_scaling_begin(&l->s, role, l->lab.dev.stream);
    bf16* d_x = lab_put<bf16>(&l->lab, x);
    if (fused) {
        const Fp8SinkParams p = fp8_sink_params(&l->s, slot, out, rows, cols, false);
        if (by == FP8_BY_VEC32) { launch<negate_and_quantize<FP8_BY_VEC32>>(dim3(1), dim3(FP8_SINK_THREADS), 0, l->lab.dev.stream, (const bf16*)d_x, p); }
        else if (by == FP8_BY_VEC128) { launch<negate_and_quantize<FP8_BY_VEC128>>(dim3(1), dim3(FP8_SINK_THREADS), 0, l->lab.dev.stream, (const bf16*)d_x, p); }
        else { launch<negate_and_quantize<FP8_BY_BLK128>>(dim3(1), dim3(FP8_SINK_THREADS), 0, l->lab.dev.stream, (const bf16*)d_x, p); }
    } else {
        fp8_quantize(&l->s, slot, out, d_x, rows, cols, NULL, NULL, false, l->lab.dev.stream);
    }
    std::vector<uint8_t> all;
    for (int i = 0; i < 4; i++) { std::vector<uint8_t> part = lab_download(&l->lab, at[i], bytes[i]); all.insert(all.end(), part.begin(), part.end()); }
    std::vector<unsigned long long> counts = lab_download(&l->lab, l->s.counts + 2 * slot, 2);
    all.insert(all.end(), (uint8_t*)counts.data(), (uint8_t*)(counts.data() + 2));
    const unsigned amax = lab_download(&l->lab, l->s.amax + slot, 1)[0];
    all.insert(all.end(), (const uint8_t*)&amax, (const uint8_t*)(&amax + 1));
    if (l->s.noise) { std::vector<double> noise = lab_download(&l->lab, l->s.noise + 2 * slot, 2); all.insert(all.end(), (uint8_t*)noise.data(), (uint8_t*)(noise.data() + 2)); }
    lab_reset(&l->lab);
    return all;
}
static void test_sink_again(void) {
    const int rows = 272, cols = 400;
    Floats x = make_input<bf16>(INPUT_EXTREME, (size_t)rows * cols, 5), minus = x;
    for (float& v : minus) { v = -v; }
    for (const char* recipe : {"block", "mx"}) {
        ScalingLab* l = scaling_lab(1, settings_of(recipe));
        for (Fp8Role role : {FP8_ROLE_X, FP8_ROLE_W}) {
            const std::vector<uint8_t> want = quantize_all(l, role, minus, rows, cols, false);
            CHECK(same_bits(want, quantize_all(l, role, x, rows, cols, true)), "%s %s: a producer in one thread block writes other bits", recipe, fp8_role_names[role]);
            check_repeats(recipe, [&] { return quantize_all(l, role, x, rows, cols, true); });
        }
        scaling_lab_free(l);
    }
}
static void test_repeats(void) {
    const int rows = 144, cols = 272;
    Floats x = make_input<bf16>(INPUT_EXTREME, (size_t)rows * cols, 9);
    for (const char* recipe : {"delayed", "row", "block", "mx"}) {
        ScalingLab* l = scaling_lab(1, settings_of(recipe));
        fp8_scaling_alloc_noise(&l->s, fp8_quantize_blocks(rows, cols));
        l->s.noise_on = true;
        memset(l->s.ready, 1, l->s.count);
        for (Fp8Role role : {FP8_ROLE_W, FP8_ROLE_DY}) { check_repeats(recipe, [&] { return quantize_all(l, role, x, rows, cols, false); }); }
        scaling_lab_free(l);
    }
}
// On the way: the bias gradient, by every recipe as bias_backward has it. Quantizing again counts nothing.
static void test_dbias_and_again(void) {
    for_variants([](ScalingLab* l) {
        const int rows = 144, cols = 272, slot = fp8_slot(&l->s, FP8_ROLE_DY, 0, LINEAR_QKV);
        const Fp8Granularity by = fp8_slot_granularity(&l->s, slot);
        Floats x = make_input<bf16>(INPUT_RANDOM, (size_t)rows * cols, 3);
        bf16* d_x = lab_put<bf16>(&l->lab, x);
        float *got = lab_zeros<float>(&l->lab, cols), *want = lab_zeros<float>(&l->lab, cols), *partial = lab_alloc<float>(&l->lab, column_sum_partials(rows, cols));
        uint8_t *k = lab_alloc<uint8_t>(&l->lab, x.size()), *t = lab_alloc<uint8_t>(&l->lab, x.size());
        uint8_t *k_scale = lab_alloc<uint8_t>(&l->lab, fp8_scale_bytes(by, rows, cols)), *t_scale = lab_alloc<uint8_t>(&l->lab, fp8_scale_bytes(by, cols, rows));
        amax_reduce(l->s.amax + slot, d_x, x.size(), l->lab.dev.stream);
        l->s.count_on = true;
        fp8_quantize(&l->s, slot, fp8_operand(&l->s, slot, k, t, k_scale, t_scale), d_x, rows, cols, got, partial, true, l->lab.dev.stream);
        bias_backward(want, partial, d_x, rows, cols, l->lab.dev.stream);
        CHECK(same_bits(lab_get(&l->lab, got, cols), lab_get(&l->lab, want, cols)), "%s: bias gradients differ", l->s.recipe->name);
        CHECK(l->s.elements[slot] == 0 && at(l, l->s.counts, 2 * slot + 1) == 0, "%s: counted again", l->s.recipe->name);
        lab_reset(&l->lab);
    });
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_recipe_table_and_settings", test_recipe_table, QUICK},
        {"fp8_scale_layouts", test_layouts, QUICK},
        {"fp8_mx_exponent_rule", test_mx_exponent, QUICK},
        {"fp8_recipes_shapes_exact", test_shapes, QUICK},
        {"fp8_recipes_every_value_exact", test_every_value, QUICK},
        {"fp8_recipes_bias_gradient_and_again", test_dbias_and_again, QUICK},
        {"fp8_recipes_repeat", test_repeats, QUICK},
        {"fp8_sink_begins_again", test_sink_again, QUICK},
    };
    return TEST_MAIN(tests);
}
