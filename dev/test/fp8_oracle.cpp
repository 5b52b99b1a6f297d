/* fp8_oracle.cpp - what CUDA's own header makes of every BF16 value, and more: the oracle of the FP8 and BF16 conversions
 *
 * Its own program over the toolkit's cuda_fp8.h and cuda_bf16.h, which compute on the host: needs the toolkit's headers and g++, no GPU, no nvcc.
 *     g++ -std=c++17 -O2 -I $CUDA/include -I. dev/test/fp8_oracle.cpp -o fp8_oracle
 *     ./fp8_oracle          prints one digest (XXH64) a section: the constants in test_fp8_convert.cu
 *     ./fp8_oracle FILE     writes all sections to FILE, one after the other
 * test_fp8_convert.cu includes this file with FP8_ORACLE_INCLUDED: there the same code runs over the header under test. One executable never holds both.
 */
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "llmc/xxh64.h"

#define FP8_ORACLE_FLOATS (1 << 18)

// name, bytes: what the section holds
#define FP8_ORACLE_SECTIONS(X) \
    X(bf16_e4m3, 65536)            /* codes of all BF16 inputs, saturating */ \
    X(bf16_e5m2, 65536) \
    X(bf16_e4m3_nosat, 65536)      /* the same, not saturating */ \
    X(bf16_e5m2_nosat, 65536) \
    X(float_e4m3, FP8_ORACLE_FLOATS)   /* codes of floats with all 32 bits in use, saturating */ \
    X(float_e5m2, FP8_ORACLE_FLOATS) \
    X(float_bf16, 2 * FP8_ORACLE_FLOATS)  /* the same floats rounded to BF16 */ \
    X(e4m3_float, 1024)            /* all codes as float */ \
    X(e5m2_float, 1024)

typedef enum {
#define FP8_ORACLE_ENUM(name, bytes) FP8_ORACLE_##name,
    FP8_ORACLE_SECTIONS(FP8_ORACLE_ENUM)
#undef FP8_ORACLE_ENUM
    FP8_ORACLE_COUNT
} Fp8OracleSection;

// Float number i: every bit pattern class; three in four near the ranges of the two formats, where they round, go denormal or overflow.
static inline float fp8_oracle_float(uint32_t i) {
    uint64_t z = i * 0x9e3779b97f4a7c15ull + 0x1234567;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    uint32_t bits = (uint32_t)(z >> 32);
    if (i % 4) { bits = (bits & 0x807fffffu) | (uint32_t)(127 - 20 + (z & 0xff) % 40) << 23; }
    if (i % 16 == 5) { bits &= 0xfff80000u; }  // often exactly between two codes, or a code
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline void fp8_oracle_fill(Fp8OracleSection section, std::vector<unsigned char>* out) {
    static const size_t sizes[] = {
#define FP8_ORACLE_SIZE(name, bytes) bytes,
        FP8_ORACLE_SECTIONS(FP8_ORACLE_SIZE)
#undef FP8_ORACLE_SIZE
    };
    out->resize(sizes[section]);
    unsigned char* bytes = out->data();
    switch (section) {
    case FP8_ORACLE_bf16_e4m3: case FP8_ORACLE_bf16_e5m2: case FP8_ORACLE_bf16_e4m3_nosat: case FP8_ORACLE_bf16_e5m2_nosat:
        for (uint32_t i = 0; i < 65536; i++) {
            __nv_bfloat16_raw raw;
            raw.x = (unsigned short)i;
            bytes[i] = __nv_cvt_bfloat16raw_to_fp8(raw, section <= FP8_ORACLE_bf16_e5m2 ? __NV_SATFINITE : __NV_NOSAT,
                                                   section == FP8_ORACLE_bf16_e4m3 || section == FP8_ORACLE_bf16_e4m3_nosat ? __NV_E4M3 : __NV_E5M2);
        }
        break;
    case FP8_ORACLE_float_e4m3: case FP8_ORACLE_float_e5m2:
        for (uint32_t i = 0; i < FP8_ORACLE_FLOATS; i++) {
            bytes[i] = __nv_cvt_float_to_fp8(fp8_oracle_float(i), __NV_SATFINITE, section == FP8_ORACLE_float_e4m3 ? __NV_E4M3 : __NV_E5M2);
        }
        break;
    case FP8_ORACLE_float_bf16:
        for (uint32_t i = 0; i < FP8_ORACLE_FLOATS; i++) {
            unsigned short code = __bfloat16_as_ushort(__float2bfloat16_rn(fp8_oracle_float(i)));
            memcpy(bytes + 2 * (size_t)i, &code, 2);
        }
        break;
    default:
        for (int i = 0; i < 256; i++) {
            __nv_fp8_e4m3 a;
            __nv_fp8_e5m2 b;
            a.__x = b.__x = (unsigned char)i;
            float f = section == FP8_ORACLE_e4m3_float ? (float)a : (float)b;
            memcpy(bytes + 4 * i, &f, 4);
        }
    }
}

#ifndef FP8_ORACLE_INCLUDED
int main(int argc, char** argv) {
#define FP8_ORACLE_NAME(name, bytes) #name,
    static const char* const names[] = {FP8_ORACLE_SECTIONS(FP8_ORACLE_NAME)};
#undef FP8_ORACLE_NAME
    FILE* file = argc > 1 ? fopen(argv[1], "wb") : NULL;
    if (argc > 1 && !file) { fprintf(stderr, "cannot write %s\n", argv[1]); return 1; }
    std::vector<unsigned char> bytes;
    for (int i = 0; i < FP8_ORACLE_COUNT; i++) {
        fp8_oracle_fill((Fp8OracleSection)i, &bytes);
        if (file && fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) { fprintf(stderr, "cannot write %s\n", argv[1]); return 1; }
        printf("%s 0x%016llx\n", names[i], (unsigned long long)xxh64(bytes.data(), bytes.size(), 0));
    }
    return file && fclose(file) != 0;
}
#endif
