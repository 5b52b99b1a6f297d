/* noise.cuh - rounding noise as a pure function, and stochastic rounding to BF16
 *
 * Rule R6: noise depends on (seed, step, micro-step, array, tensor, element) and on nothing else: not on rank, world size or launch geometry.
 * noise_key mixes all but the element on the host (SplitMix64 finalizer, Steele et al. 2014); noise_at hashes the element with it on the device.
 * The hash is SquirrelNoise5 (Eiserloh, GDC 2017, revised 2021; five multiply / add / xor-shift rounds); golden values in LLMC's tests are ours too.
 * Tests: dev/test/test_kernels_optimizer.cu
 */
#ifndef LLMC_NOISE_CUH
#define LLMC_NOISE_CUH

#include "llmc/device.cuh"

// 32 noise bits for a position and a seed.
static __device__ __host__ __forceinline__ uint32_t noise_hash(uint32_t position, uint32_t seed) {
    uint32_t h = position * 0xd2a80a3fu + seed;
    h = (h ^ (h >> 9)) + 0xa884f197u;
    h = (h ^ (h >> 11)) * 0x6c736f4bu;
    h = (h ^ (h >> 13)) + 0xb79f3abbu;
    h = (h ^ (h >> 15)) * 0x1b56c4f5u;
    return h ^ (h >> 17);
}

// The same for a 64-bit element index: two-dimensional position (low, high), high scaled by a large prime.
static __device__ __host__ __forceinline__ uint32_t noise_at(uint64_t element, uint32_t key) {
    return noise_hash((uint32_t)element + 198491317u * (uint32_t)(element >> 32), key);
}

// What noise belongs to: the array is what is being rounded (parameters, initial values ...).
typedef enum { NOISE_PARAMETERS = 1, NOISE_INIT = 2, NOISE_M = 3, NOISE_V = 4 } NoiseArray;

static inline uint32_t noise_key(uint64_t seed, uint64_t step, uint32_t micro_step, NoiseArray array, uint32_t tensor) {
    uint64_t z = 0;
    const uint64_t parts[5] = {seed, step, micro_step, (uint64_t)array, tensor};  // each mixed before the next is added: seed 1, step 2 is not seed 2, step 1
    for (int i = 0; i < 5; i++) {
        z += 0x9e3779b97f4a7c15ull + parts[i];
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
    }
    return (uint32_t)(z ^ (z >> 32));
}

// x rounded to one of its two BF16 neighbours: up (away from zero) with probability (low 16 bits) / 65536, so that the mean is x.
// Exact values never change; NaN and infinity stay. noise: 16 random bits (higher bits are ignored). Returns a float that BF16 holds exactly.
static __device__ __host__ __forceinline__ float round_stochastic_bf16(float x, uint32_t noise) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + (noise & 0xffffu)) & 0xffff0000u;
    bool special = (bits & 0x7f800000u) == 0x7f800000u;
    rounded = special ? ((bits & 0xffff0000u) | ((bits & 0x007fffffu) ? 0x00400000u : 0u)) : rounded;  // a NaN must not lose its payload and become inf
    float y;
    memcpy(&y, &rounded, 4);
    return y;
}

#endif
