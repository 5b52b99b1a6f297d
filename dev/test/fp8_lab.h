/* fp8_lab.h - what the FP8 tests share: a device with a scaling state, amaxes worth trying */
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

#endif
