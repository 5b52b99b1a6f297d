/* test_moments.cu - AdamW's moments in BF16 and in 8 + 16 bits: what is stored, how it is rounded, that it survives a checkpoint
 *
 * Covers: llmc/moments.cuh, and adamw.cuh with it
 */
#include "dev/test/oracle.h"
#include "llmc/adamw.cuh"

static const MomentType low_types[] = {MOMENT_BF16, MOMENT_F8};

// Moments of one tensor on the device, 0.
static Moments lab_moments(Lab* lab, MomentType t, size_t stride, size_t layers) {
    const size_t n = stride * layers, groups = moment_groups(stride) * layers;
    return {lab_zeros<char>(lab, n * moment_m_bytes(t)), lab_zeros<char>(lab, n * moment_v_bytes(t)), lab_zeros<uint8_t>(lab, groups), lab_zeros<uint8_t>(lab, groups), stride};
}
static void read_moments(Lab* lab, MomentType t, Moments s, size_t layers, Floats* m, Floats* v) {
    float *dm = lab_alloc<float>(lab, s.stride), *dv = lab_alloc<float>(lab, s.stride);
    m->clear();
    v->clear();
    for (size_t l = 0; l < layers; l++) {
        moments_unpack(t, dm, dv, &s, l, 0, s.stride, lab->dev.stream);
        for (float x : lab_get(lab, dm, s.stride)) { m->push_back(x); }
        for (float x : lab_get(lab, dv, s.stride)) { v->push_back(x); }
    }
}
// All bytes as they lie there.
static std::vector<char> raw_moments(Lab* lab, MomentType t, Moments s, size_t layers) {
    std::vector<char> all = lab_download(lab, (char*)s.m, s.stride * layers * moment_m_bytes(t)), v = lab_download(lab, (char*)s.v, s.stride * layers * moment_v_bytes(t));
    all.insert(all.end(), v.begin(), v.end());
    return all;
}
static AdamWParams params_of(int step) {
    AdamWParams a = {1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, 0, 0, 1.0f, noise_key(42, step, 0, NOISE_PARAMETERS, 3), noise_key(42, step, 0, NOISE_M, 3), noise_key(42, step, 0, NOISE_V, 3)};
    a.beta1_correction = 1.0f - powf(a.beta1, (float)step);
    a.beta2_correction = 1.0f - powf(a.beta2, (float)step);
    return a;
}
// Gradients of a hard kind: magnitudes over many octaves, some 0, groups that are all 0, groups that are tiny.
static Floats hard_gradients(size_t n, uint64_t seed) {
    TestRng r = {seed};
    Floats g(n);
    for (size_t i = 0; i < n; i++) {
        const int kind = (int)(i / MOMENT_GROUP) % 5;
        const double octaves = kind == 1 ? -30 * test_rng_uniform(&r) : kind == 3 ? -60 - 10 * test_rng_uniform(&r) : kind == 4 ? -4 * test_rng_uniform(&r) : 0;
        g[i] = kind == 2 ? 0.0f : (float)(ldexp(2 * test_rng_uniform(&r) - 1, (int)octaves));
    }
    return g;
}

// ---------------------------------------------------------------------------- codes

// Every code decodes to what the format says: against CUDA's own conversion for E4M3, by definition for half precision.
static void test_moment_codes(void) {
    for (unsigned c = 0; c < 256; c++) {
        if ((c & 0x7f) == 0x7f) { continue; }  // NaN: never stored
        const __half_raw h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)c, __NV_E4M3);
        const double due = ((h.x & 0x8000) ? -1 : 1) * ldexp((h.x & 0x3ff) + ((h.x >> 10 & 31) ? 1024 : 0), ((h.x >> 10 & 31) ? (h.x >> 10 & 31) - 1 : 0) - 24);
        CHECK(moment_from_e4m3(c, 1.0f) == due, "E4M3 code %02x is %g, should be %g", c, moment_from_e4m3(c, 1.0f), due);
    }
    for (unsigned c = 0; c < 0x7c00; c++) {
        const double due = c >> 10 ? ldexp(1024 + (c & 1023), (int)(c >> 10) - 25) : ldexp(c, -24);
        CHECK(moment_from_half(c, 1.0f) == due, "half %04x is %g, should be %g", c, moment_from_half(c, 1.0f), due);
    }
}

// Rounding gives one of the two neighbours, the nearer one more often, so that the mean is the value: exactly over all noise, to the noise's own 2^-13 or 2^-16.
static void test_moment_rounding_is_unbiased(void) {
    const float values[] = {0.0f, 448.0f, 447.9f, 1.0f, 1.0625f, 3.3f, -2.71f, 0.017f, 0.0156f, 0.001f, -0.0019f, 1e-5f, 100.01f};
    for (float x : values) {
        double mean = 0, low = INFINITY, high = -INFINITY;
        for (unsigned noise = 0; noise < 1u << 16; noise++) {
            const double y = moment_from_e4m3(moment_to_e4m3(x, 1.0f, noise << 4 | noise >> 12), 1.0f);  // the low 20 bits take every sixteenth value
            mean += y / 65536;
            low = fmin(low, y);
            high = fmax(high, y);
        }
        const double step = fabs(x) < 0x1p-6 ? 0x1p-9 : ldexp(1, ilogb(x) - 3);
        CHECK(low <= x && x <= high && high - low <= step, "%g becomes %g to %g", x, low, high);
        CHECK(fabs(mean - x) <= step * 0x1p-12, "E4M3: the mean of %g is %g", x, mean);
    }
    for (float x : {0.0f, 1.0f, 32767.9f, 3.14159f, 6.1e-5f, 6.0e-5f, 1e-6f, 5e-8f, 1e-9f}) {
        double mean = 0;
        for (unsigned noise = 0; noise < 1u << 16; noise++) { mean += moment_from_half(moment_to_half(x, 1.0f, noise), 1.0f) / 65536.0; }
        const double step = x < 0x1p-14 ? 0x1p-24 : ldexp(1, ilogb(x) - 10);
        CHECK(fabs(mean - x) <= step * 0x1p-12, "half: the mean of %g is %g", x, mean);
    }
}

// ---------------------------------------------------------------------------- updates

// One update from zero moments: each stored value is a neighbour of the f32 one in its group's grid.
static void test_moment_error(void) {
    Lab lab;
    const size_t n = 128 * 9 + 40;  // the last group is short
    Floats grad = hard_gradients(n, 3), zeros(n, 0.0f), m, v;
    float *m32 = lab_put<float>(&lab, zeros), *v32 = lab_put<float>(&lab, zeros), *d_grad = lab_put<float>(&lab, grad);
    adamw_update(lab_put<float>(&lab, zeros), (float*)NULL, m32, v32, d_grad, n, 1, (unsigned*)NULL, params_of(1), lab.dev.stream);
    Floats em = lab_get(&lab, m32, n), ev = lab_get(&lab, v32, n);
    for (MomentType t : low_types) {
        Moments s = lab_moments(&lab, t, n, 1);
        adamw_update_moments(lab_put<float>(&lab, zeros), (float*)NULL, t, s, d_grad, AdamWLayout{n, n, 0, n, n, 1}, (unsigned*)NULL, params_of(1), lab.dev.stream);
        read_moments(&lab, t, s, 1, &m, &v);
        if (t == MOMENT_F8) { for (uint8_t c : lab_download(&lab, (uint8_t*)s.m, n)) { CHECK((c & 0x7f) != 0x7f, "the code %02x is a NaN", c); } }
        for (size_t i = 0; i < n; i++) {
            double m_most = 0, v_most = 0;
            for (size_t j = i / 128 * 128; j < i / 128 * 128 + 128 && j < n; j++) { m_most = fmax(m_most, fabs(em[j])); v_most = fmax(v_most, sqrt(ev[j])); }
            const double m_step = t == MOMENT_BF16 ? fabs(em[i]) * 0x1p-7 : fmax(fabs(em[i]) * 0x1p-3, m_most * 0x1p-16);
            const double root = sqrt(ev[i]), v_step = t == MOMENT_BF16 ? (ev[i] < FLT_MIN ? 0x1p-66 : root * 0x1p-7) : fmax(fmax(root * 0x1p-10, v_most * 0x1p-37), 0x1p-73);
            CHECK(fabs(m[i] - em[i]) <= m_step + 0x1p-134, "type %d: m[%zu] %.9g, f32 %.9g", t, i, m[i], em[i]);
            CHECK(fabs(sqrt(v[i]) - root) <= v_step * 1.001 + 0x1p-134, "type %d: sqrt(v)[%zu] %.9g, f32 %.9g", t, i, sqrt(v[i]), root);
        }
    }
}

// Many steps with gradients of one size: v converges to their mean square although every single update is less than half a step of its type, and the
// parameters stay near those of f32.
static void test_moment_no_standstill(void) {
    Lab lab;
    const size_t n = 128 * 32;
    const int steps = 300;
    TestRng r = {5};
    std::vector<float*> params;
    Floats zeros(n, 0.0f), p[3], v[3];
    for (int t = 0; t < 3; t++) { params.push_back(lab_put<float>(&lab, zeros)); }
    Moments s[3] = {lab_moments(&lab, MOMENT_F32, n, 1), lab_moments(&lab, MOMENT_BF16, n, 1), lab_moments(&lab, MOMENT_F8, n, 1)};
    float* d_grad = lab_alloc<float>(&lab, n);
    for (int step = 1; step <= steps; step++) {
        Floats grad(n);
        for (float& x : grad) { x = (float)(1e-3 * (2 * test_rng_uniform(&r) - 1) + 2e-4); }
        lab_write(&lab, d_grad, grad);
        AdamWParams a = params_of(step);
        a.learning_rate = 1e-3f;
        for (int t = 0; t < 3; t++) { adamw_update_moments(params[t], (float*)NULL, (MomentType)t, s[t], d_grad, AdamWLayout{n, n, 0, n, n, 1}, (unsigned*)NULL, a, lab.dev.stream); }
    }
    Floats m;
    for (int t = 0; t < 3; t++) { p[t] = lab_get(&lab, params[t], n); read_moments(&lab, (MomentType)t, s[t], 1, &m, &v[t]); }
    double moved = 0, mean_v = 0;
    for (size_t i = 0; i < n; i++) { moved += fabs(p[0][i]) / n; mean_v += v[0][i] / n; }
    for (int t = 1; t < 3; t++) {
        double apart = 0, bias = 0, low_v = 0;
        for (size_t i = 0; i < n; i++) { apart += fabs(p[t][i] - p[0][i]) / n; bias += (p[t][i] - p[0][i]) / n; low_v += v[t][i] / n; }
        // nearest rounding would leave v near where the last step that moves it is: 2^-10 / (1 - beta2) of its value
        CHECK(fabs(low_v / mean_v - 1) < 0.02, "type %d: mean v %.4g, f32 %.4g", t, low_v, mean_v);
        CHECK(apart < 0.15 * moved && fabs(bias) < 0.02 * moved, "type %d: parameters moved %.3g and are %.3g apart, on average %.3g", t, moved, apart, bias);
    }
}

// ---------------------------------------------------------------------------- checkpoints, shards

// f32 and back changes no byte of what counts, after updates of all kinds: read, stored, read again gives the same values, both or one at a time.
static void test_moments_survive_f32(void) {
    Lab lab;
    const size_t stride = 128 * 11 + 72, layers = 2, n = stride * layers;
    for (MomentType t : {MOMENT_F32, MOMENT_BF16, MOMENT_F8}) {
        Moments s = lab_moments(&lab, t, stride, layers), u = lab_moments(&lab, t, stride, layers);
        float *param = lab_put<float>(&lab, Floats(n, 0.5f)), *d_grad = lab_alloc<float>(&lab, n);
        for (int step = 1; step <= 6; step++) {
            lab_write(&lab, d_grad, hard_gradients(n, 10 + step));
            adamw_update_moments(param, (float*)NULL, t, s, d_grad, AdamWLayout{stride, stride, 0, stride, stride, (int)layers}, (unsigned*)NULL, params_of(step), lab.dev.stream);
        }
        Floats m, v, m2, v2;
        read_moments(&lab, t, s, layers, &m, &v);
        float *dm = lab_put<float>(&lab, m), *dv = lab_put<float>(&lab, v);
        for (size_t l = 0; l < layers; l++) {  // in pieces, v alone before m alone
            for (size_t i = 0; i < stride; i += 256) {
                const size_t part = stride - i < 256 ? stride - i : 256;
                moments_pack(t, &u, NULL, dv + l * stride + i, l, i, part, lab.dev.stream);
                moments_pack(t, &u, dm + l * stride + i, NULL, l, i, part, lab.dev.stream);
            }
        }
        read_moments(&lab, t, u, layers, &m2, &v2);
        for (size_t i = 0; i < n; i++) {
            CHECK(bits_of(m[i]) == bits_of(m2[i]) && bits_of(v[i]) == bits_of(v2[i]), "type %d, element %zu: m %.9g, v %.9g come back as %.9g, %.9g", t, i, m[i], v[i], m2[i], v2[i]);
        }
        // and the next updates are the same ones
        lab_write(&lab, d_grad, hard_gradients(n, 99));
        float* other = lab_upload(&lab, lab_download(&lab, param, n));
        adamw_update_moments(param, (float*)NULL, t, s, d_grad, AdamWLayout{stride, stride, 0, stride, stride, (int)layers}, (unsigned*)NULL, params_of(7), lab.dev.stream);
        adamw_update_moments(other, (float*)NULL, t, u, d_grad, AdamWLayout{stride, stride, 0, stride, stride, (int)layers}, (unsigned*)NULL, params_of(7), lab.dev.stream);
        CHECK(first_difference(lab_get(&lab, param, n), lab_get(&lab, other, n)) < 0, "type %d: parameters differ after a round trip", t);
        CHECK(raw_moments(&lab, t, s, layers) == raw_moments(&lab, t, u, layers), "type %d: bytes differ after a round trip and an update", t);
        lab_reset(&lab);
    }
}

// Shards of whole groups keep what the whole keeps.
static void test_moment_shards_equal_the_whole(void) {
    Lab lab;
    const size_t part = 1000, layers = 3, n = part * layers;
    Floats grad = hard_gradients(n, 7), m, v, sm, sv;
    for (MomentType t : low_types) {
        Moments whole = lab_moments(&lab, t, part, layers);
        float* param = lab_put<float>(&lab, Floats(n, 0.25f));
        adamw_update_moments(param, (float*)NULL, t, whole, lab_put<float>(&lab, grad), AdamWLayout{part, part, 0, part, part, (int)layers}, (unsigned*)NULL, params_of(1), lab.dev.stream);
        read_moments(&lab, t, whole, layers, &m, &v);
        for (size_t ranks : {2u, 3u, 5u}) {
            const size_t shard = ROUND_UP(CEIL_DIV(part, ranks), (size_t)256), stride = shard * ranks;
            Floats wide(stride * layers, 0.0f);
            for (size_t l = 0; l < layers; l++) { std::copy(&grad[l * part], &grad[l * part] + part, &wide[l * stride]); }
            float *d_grad = lab_put<float>(&lab, wide), *d_param = lab_put<float>(&lab, Floats(stride * layers, 0.25f));
            for (size_t r = 0; r < ranks; r++) {
                const size_t first = r * shard < part ? r * shard : part, held = part - first < shard ? part - first : shard;
                Moments s = lab_moments(&lab, t, shard, layers);
                adamw_update_moments(d_param, (float*)NULL, t, s, d_grad, AdamWLayout{part, stride, first, held, shard, (int)layers}, (unsigned*)NULL, params_of(1), lab.dev.stream);
                if (!held) { continue; }
                read_moments(&lab, t, s, layers, &sm, &sv);
                for (size_t l = 0; l < layers; l++) {
                    for (size_t i = 0; i < held; i++) {
                        const size_t at = l * part + first + i;
                        CHECK(bits_of(sm[l * shard + i]) == bits_of(m[at]) && bits_of(sv[l * shard + i]) == bits_of(v[at]), "type %d, %zu ranks, rank %zu, layer %zu, element %zu", t, ranks, r, l, i);
                    }
                }
            }
        }
        lab_reset(&lab);
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"moment_codes_decode_as_the_formats_say", test_moment_codes, QUICK},
        {"moment_rounding_is_unbiased", test_moment_rounding_is_unbiased, QUICK},
        {"moments_are_neighbours_of_the_exact_ones", test_moment_error, QUICK},
        {"moments_never_stand_still", test_moment_no_standstill, QUICK},
        {"moments_survive_a_checkpoint_to_the_bit", test_moments_survive_f32, QUICK},
        {"moment_shards_equal_the_whole", test_moment_shards_equal_the_whole, QUICK},
    };
    return TEST_MAIN(tests);
}
