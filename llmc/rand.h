/* rand.h - random numbers on the host: MT19937 with PyTorch's normal fill (initial weights), xorshift* (sampling)
 *
 * What:      the same numbers as torch.manual_seed(s) and Tensor.normal_ on a CPU, and as llm.c: [Matsumoto & Nishimura 1998]; normals by pairs
 *            r cos(th), r sin(th) with r = sqrt(-2 ln u1), th = 2 pi u2 [Box & Muller 1958].
 * Numerics:  uniforms have 24 bits; the rest is float32, each step rounded as llm.c rounds it. logf, sinf and cosf are the C library's: glibc's
 *            give llm.c's golden values to the last bit. Another library may differ there: glibc's own are one unit in the last place off for 1
 *            argument in 100, so that exact functions do NOT give the golden values (tried: vectorized, twice as fast, and given up for that).
 * Speed:     a normal takes 0.4 ns for the MT19937, and 10 ns for the rest on one core, which OpenMP's threads share where the build has them:
 *            d12 (124M) in 1.5 s on one core; d48 (1.56G) in 16 s on one, in about 2 s on 16 (Zen 4, 2025-11; d48 is computed).
 * Tests:     dev/test/test_rand.cu */
#ifndef LLMC_RAND_H
#define LLMC_RAND_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// ----------------------------------------------------------------------------
// MT19937

#define MT_SIZE 624
#define MT_SHIFT 397

typedef struct {
    uint32_t state[MT_SIZE];
    int used;                   // numbers of this state already given out; MT_SIZE: make new ones first
    bool has_next_normal;       // of the path for fewer than 16 values, which makes two at a time and keeps one, as PyTorch
    double next_normal;
} Mt19937;

static inline void mt19937_init(Mt19937* mt, uint32_t seed) {
    memset(mt, 0, sizeof(*mt));
    mt->state[0] = seed;
    for (uint32_t i = 1; i < MT_SIZE; i++) { mt->state[i] = 1812433253u * (mt->state[i - 1] ^ (mt->state[i - 1] >> 30)) + i; }
    mt->used = MT_SIZE;
}

static inline uint32_t mt19937_twist(uint32_t upper, uint32_t lower, uint32_t far) {
    uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return far ^ (y >> 1) ^ ((0u - (lower & 1u)) & 0x9908b0dfu);
}

static inline void mt19937_next_state(Mt19937* mt) {
    uint32_t* s = mt->state;
    int i = 0;
    for (; i < MT_SIZE - MT_SHIFT; i++) { s[i] = mt19937_twist(s[i], s[i + 1], s[i + MT_SHIFT]); }
    for (; i < MT_SIZE - 1; i++) { s[i] = mt19937_twist(s[i], s[i + 1], s[i + MT_SHIFT - MT_SIZE]); }
    s[i] = mt19937_twist(s[i], s[0], s[i + MT_SHIFT - MT_SIZE]);
    mt->used = 0;
}

static inline uint32_t mt19937_temper(uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static inline uint32_t mt19937_u32(Mt19937* mt) {
    if (mt->used == MT_SIZE) { mt19937_next_state(mt); }
    return mt19937_temper(mt->state[mt->used++]);
}

static inline uint64_t mt19937_u64(Mt19937* mt) {
    uint64_t high = mt19937_u32(mt);
    return high << 32 | mt19937_u32(mt);
}

// uniform in [0, 1): 24 bits as float, 53 bits as double
static inline float mt19937_f32(Mt19937* mt) { return (float)(mt19937_u32(mt) & 0xffffffu) * (1.0f / 16777216.0f); }
static inline double mt19937_f64(Mt19937* mt) { return (double)(mt19937_u64(mt) & ((1ull << 53) - 1)) * (1.0 / 9007199254740992.0); }

// out (n) = uniforms; the same numbers as n calls of mt19937_f32
static inline void uniform_fill(float* out, size_t n, Mt19937* mt) {
    while (n > 0) {
        if (mt->used == MT_SIZE) { mt19937_next_state(mt); }
        size_t count = (size_t)(MT_SIZE - mt->used);
        if (count > n) { count = n; }
        const uint32_t* s = mt->state + mt->used;
        for (size_t i = 0; i < count; i++) { out[i] = (float)(int32_t)(mt19937_temper(s[i]) & 0xffffffu) * (1.0f / 16777216.0f); }
        mt->used += (int)count;
        out += count;
        n -= count;
    }
}

// ----------------------------------------------------------------------------
// normals

// 16 uniforms x -> 16 normals: pairs (x[t], x[t + 8]). The 1e-12 keeps ln from 0 and is part of the golden values.
static inline void normal_from_uniform16(float* x, float mean, float std) {
    for (int t = 0; t < 8; t++) {
        float u1 = 1.0f - x[t], angle = (float)(6.283185307179586477 * (double)x[t + 8]);
        float radius = sqrtf(-2.0f * logf((float)((double)u1 + 1e-12)));
        x[t] = radius * cosf(angle) * std + mean;
        x[t + 8] = radius * sinf(angle) * std + mean;
    }
}

// out (n) = normals, as torch's Tensor.normal_(mean, std) of a contiguous float tensor of n elements. Values depend on n: fill a tensor in one call.
static inline void normal_fill(float* out, size_t n, float mean, float std, Mt19937* mt) {
    if (n < 16) {
        for (size_t i = 0; i < n; i++) {
            double value = mt->next_normal;
            if (!mt->has_next_normal) {
                double u1 = mt19937_f64(mt), u2 = mt19937_f64(mt);
                double radius = sqrt(-2.0 * log1p(-u2)), angle = 6.283185307179586477 * u1;
                mt->next_normal = radius * sin(angle);
                value = radius * cos(angle);
            }
            mt->has_next_normal = !mt->has_next_normal;
            out[i] = (float)(value * (double)std + (double)mean);
        }
        return;
    }
    uniform_fill(out, n, mt);
    const int64_t blocks = (int64_t)(n / 16);
#ifdef _OPENMP
    #pragma omp parallel for schedule(static) if (blocks > 4096)
#endif
    for (int64_t i = 0; i < blocks; i++) { normal_from_uniform16(out + 16 * i, mean, std); }
    if (n % 16 != 0) {  // the last 16 are drawn again
        uniform_fill(out + n - 16, 16, mt);
        normal_from_uniform16(out + n - 16, mean, std);
    }
}

// ----------------------------------------------------------------------------
// xorshift* [Vigna 2016]: one uint64 of state, which must not be 0

static inline uint32_t random_u32(uint64_t* state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 0x2545f4914f6cdd1dull) >> 32);
}

// uniform in [0, 1), 24 bits
static inline float random_f32(uint64_t* state) { return (float)(random_u32(state) >> 8) * (1.0f / 16777216.0f); }

#endif
