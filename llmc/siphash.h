/* siphash.h - SipHash-2-4, a keyed hash of 64 bits: who knows the key can prove it, who does not cannot guess the hash   [Aumasson, Bernstein 2012]
 * Tests: dev/test/test_control.cu (the authors' vectors) */
#ifndef LLMC_SIPHASH_H
#define LLMC_SIPHASH_H

#include "llmc/xxh64.h"

static inline void siphash_rounds(uint64_t v[4], int rounds) {
    for (int i = 0; i < rounds; i++) {
        v[0] += v[1]; v[2] += v[3];
        v[1] = xxh64_rotate(v[1], 13) ^ v[0];
        v[3] = xxh64_rotate(v[3], 16) ^ v[2];
        v[0] = xxh64_rotate(v[0], 32);
        v[2] += v[1]; v[0] += v[3];
        v[1] = xxh64_rotate(v[1], 17) ^ v[2];
        v[3] = xxh64_rotate(v[3], 21) ^ v[0];
        v[2] = xxh64_rotate(v[2], 32);
    }
}
static inline uint64_t siphash(const unsigned char key[16], const void* data, size_t bytes) {
    const unsigned char* p = (const unsigned char*)data;
    const uint64_t k0 = xxh64_load(key), k1 = xxh64_load(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
    unsigned char last[8] = {0};
    for (size_t left = bytes;; left -= 8, p += 8) {
        uint64_t word;
        if (left < 8) {
            memcpy(last, p, left);
            last[7] = (unsigned char)bytes;
            word = xxh64_load(last);
        } else {
            word = xxh64_load(p);
        }
        v[3] ^= word;
        siphash_rounds(v, 2);
        v[0] ^= word;
        if (left < 8) { break; }
    }
    v[2] ^= 0xff;
    siphash_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
