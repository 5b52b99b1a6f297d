/* xxh64.h - XXH64, the checksum of our state files: streaming, 64 bits, made for speed and not against an attacker
 *
 * What:      xxh64_init, xxh64_update (any number of pieces of any size), xxh64_digest (does not change the state: more may follow).
 * Source:    the published XXH64 specification (Yann Collet): four lanes of 8 bytes mixed by multiply and rotate, then a tail and an avalanche.
 * Numerics:  little-endian reads, as all of our files; the same digest on every machine, however the input was cut.
 * Speed:     several GB/s on one core (printed by the test), so that no write to a disk ever waits for it.
 * Tests:     dev/test/test_formats.cu (golden digests of an independent implementation, every split of a buffer)  */
#ifndef LLMC_XXH64_H
#define LLMC_XXH64_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "our files and their checksums are little-endian, and so must the machine be");

typedef struct {
    uint64_t lane[4];
    uint64_t seed;
    uint64_t bytes;             // taken so far
    unsigned char tail[32];     // the last bytes % 32 of them, not mixed yet
} Xxh64;

constexpr uint64_t XXH64_PRIME[5] = {0x9e3779b185ebca87ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull, 0x85ebca77c2b2ae63ull, 0x27d4eb2f165667c5ull};

static inline uint64_t xxh64_rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }
static inline uint64_t xxh64_mix(uint64_t lane, uint64_t word) { return xxh64_rotate(lane + word * XXH64_PRIME[1], 31) * XXH64_PRIME[0]; }
static inline uint64_t xxh64_load(const unsigned char* p) { uint64_t x; memcpy(&x, p, 8); return x; }

static inline void xxh64_init(Xxh64* h, uint64_t seed) {
    memset(h, 0, sizeof(*h));
    h->seed = seed;
    h->lane[0] = seed + XXH64_PRIME[0] + XXH64_PRIME[1];
    h->lane[1] = seed + XXH64_PRIME[1];
    h->lane[2] = seed;
    h->lane[3] = seed - XXH64_PRIME[0];
}

// Mixes whole stripes of 32 bytes; returns the first byte not taken. The lanes live in registers meanwhile.
static inline const unsigned char* xxh64_stripes(Xxh64* h, const unsigned char* p, size_t stripes) {
    uint64_t a = h->lane[0], b = h->lane[1], c = h->lane[2], d = h->lane[3];
    for (; stripes > 0; stripes--, p += 32) {
        a = xxh64_mix(a, xxh64_load(p));
        b = xxh64_mix(b, xxh64_load(p + 8));
        c = xxh64_mix(c, xxh64_load(p + 16));
        d = xxh64_mix(d, xxh64_load(p + 24));
    }
    h->lane[0] = a; h->lane[1] = b; h->lane[2] = c; h->lane[3] = d;
    return p;
}

static inline void xxh64_update(Xxh64* h, const void* data, size_t bytes) {
    const unsigned char* p = (const unsigned char*)data;
    size_t held = h->bytes % 32;
    h->bytes += bytes;
    if (held > 0) {
        size_t take = bytes < 32 - held ? bytes : 32 - held;
        if (take > 0) { memcpy(h->tail + held, p, take); }
        if (held + take < 32) { return; }
        xxh64_stripes(h, h->tail, 1);
        p += take;
        bytes -= take;
    }
    p = xxh64_stripes(h, p, bytes / 32);
    if (bytes % 32 > 0) { memcpy(h->tail, p, bytes % 32); }
}

static inline uint64_t xxh64_digest(const Xxh64* h) {
    uint64_t x = h->seed + XXH64_PRIME[4];
    if (h->bytes >= 32) {
        x = xxh64_rotate(h->lane[0], 1) + xxh64_rotate(h->lane[1], 7) + xxh64_rotate(h->lane[2], 12) + xxh64_rotate(h->lane[3], 18);
        for (int i = 0; i < 4; i++) { x = (x ^ xxh64_mix(0, h->lane[i])) * XXH64_PRIME[0] + XXH64_PRIME[3]; }
    }
    x += h->bytes;
    const unsigned char* p = h->tail;
    size_t left = h->bytes % 32;
    for (; left >= 8; left -= 8, p += 8) { x = xxh64_rotate(x ^ xxh64_mix(0, xxh64_load(p)), 27) * XXH64_PRIME[0] + XXH64_PRIME[3]; }
    if (left >= 4) {
        uint32_t word;
        memcpy(&word, p, 4);
        x = xxh64_rotate(x ^ word * XXH64_PRIME[0], 23) * XXH64_PRIME[1] + XXH64_PRIME[2];
        left -= 4;
        p += 4;
    }
    for (; left > 0; left--, p++) { x = xxh64_rotate(x ^ *p * XXH64_PRIME[4], 11) * XXH64_PRIME[0]; }
    x = (x ^ (x >> 33)) * XXH64_PRIME[1];
    x = (x ^ (x >> 29)) * XXH64_PRIME[2];
    return x ^ (x >> 32);
}

static inline uint64_t xxh64(const void* data, size_t bytes, uint64_t seed) {
    Xxh64 h;
    xxh64_init(&h, seed);
    xxh64_update(&h, data, bytes);
    return xxh64_digest(&h);
}

#endif
