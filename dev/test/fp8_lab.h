/* fp8_lab.h - what the FP8 tests share: a device with a scaling state, amaxes and tensors worth trying */
#ifndef DEV_TEST_FP8_LAB_H
#define DEV_TEST_FP8_LAB_H

#include "dev/test/oracle.h"
#include "llmc/fp8_quantize.cuh"

static const uint32_t special_amaxes[] = {0, 1, 0x00010000, 0x00400000, 0x007fffff, 0x00800000, 0x006ce3ee /* 1e-38 */, 0x3f800000,
    0x43e00000 /* 448 */, 0x47600000 /* 57344 */,
                                          0x7f61b1e6 /* 3e38 */, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};

struct ScalingLab { Lab lab; Fp8Scaling s; };
static inline Fp8Settings settings_of(const char* recipe) {
    for (const Fp8Recipe& r : fp8_recipes) { if (!strcmp(r.name, recipe)) { return fp8_settings(&r); } }
    CHECK(false, "no recipe %s", recipe);
    return {};
}
static inline ScalingLab* scaling_lab(int layers, Fp8Settings settings = fp8_settings(&fp8_recipes[0])) {
    ScalingLab* l = new ScalingLab();
    fp8_scaling_init(&l->s, &settings, layers);
    return l;
}
static inline void scaling_lab_free(ScalingLab* l) {
    fp8_scaling_free(&l->s);
    delete l;
}
static inline const char* check_state(ScalingLab* l, int first, int last, unsigned long long elements, char message[256]) {
    cudaCheck(cudaStreamSynchronize(l->lab.dev.stream));
    Fp8ScalingHost h;
    fp8_scaling_copy(&l->s, &h);
    const char* broken = fp8_scaling_check(&l->s, &h, first, last, elements, message);
    fp8_scaling_host_free(&h);
    return broken;
}
static inline void set_amax(ScalingLab* l, int slot, uint32_t bits) { lab_write(&l->lab, l->s.amax + slot, std::vector<unsigned>(1, bits)); }
template <class V> static inline V at(ScalingLab* l, const V* array, int slot) { return lab_download(&l->lab, array + slot, 1)[0]; }

// Blocks of 16 x 16 that differ: zeros, denormals, tiny, huge, infinities, NaNs, exact largest values of the formats and the numbers next to them, ties.
static inline Floats edge_input(int rows, int cols, uint64_t seed) {
    TestRng r = {test_seed() + seed};
    Floats x((size_t)rows * cols);
    std::vector<int> kinds((rows / 16) * (cols / 16));
    for (int& kind : kinds) { kind = (int)(test_rng_u64(&r) % 12); }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            const int kind = kinds[(i / 16) * (cols / 16) + j / 16], exponent = (int)(test_rng_u64(&r) % 5);
            const double z = test_rng_normal(&r);
            const bool rare = test_rng_u64(&r) % 64 == 0;
            double v = z;
            switch (kind) {
            case 0: v = rare ? -0.0 : 0.0; break;
            case 1: v = z * 1e-39; break;                        // denormals
            case 2: v = z * 1e-37; break;
            case 3: v = copysign(fmin(fabs(z) * 1e38, 3.38e38), z); break;
            case 4: v = rare ? -INFINITY : z; break;
            case 5: v = rare ? NAN : z; break;
            case 6: v = ldexp(rare ? 448 : (double)(test_rng_u64(&r) % 29) * 16, exponent - 60); break;   // amax exactly 1.75 * 2^n: scales are powers of two, and ties are many
            case 7: v = ldexp(rare ? 450 : z, 40); break;        // just above 1.75 * 2^n
            case 8: v = rare ? z * 1e6 : z * 1e-6; break;        // outliers flush the rest
            case 9: v = ldexp((double)(test_rng_u64(&r) % 256), -133); break;  // around the smallest normal number
            default: break;
            }
            x[(size_t)i * cols + j] = ref_round_bf16(v);
        }
    }
    return x;
}

#endif
