/* fp8_recipe.cuh - the scale rule, and the Sinks through which every FP8 operand is written
 *
 * A recipe is one row of RECIPE_TABLE (fp8_recipes.h) and one Sink. Forward and backward never name one: they ask for an Operand (llmc/matmul.cuh) of a tensor, and
 * for the properties in this table. A Sink takes a 16 x 16 register tile row by row and writes it in both orders:
 *     k (rows, cols), contiguous along the columns, and t (cols, rows), contiguous along the rows;
 * either may be absent. A tile in registers, not in shared memory, because both orders are then 16-byte stores and no barrier is needed; on the CPU
 * device it measured 4.5 times faster than a shared tile (CPU_DEVICE, quantize + transpose).
 *
 * Scale rule (fp8_scale_from_amax): scale = FP8_MAX / amax, one IEEE division; amax 0, inf or NaN -> 1; never above 2^126, so that descale = 1/scale is
 * a normal number. A non-finite amax is reported by fp8_scaling.h, it is not hidden.
 * R1: values are BF16 already when the amax is taken and when they are scaled; x * scale is rounded once to f32, then converted (nearest even, saturating).
 * Tests: dev/test/test_kernels_fp8.cu, dev/test/test_fp8_convert.cu
 */
#ifndef LLMC_FP8_RECIPE_CUH
#define LLMC_FP8_RECIPE_CUH

#include "llmc/device.cuh"
#include "llmc/fp8_recipes.h"

// ----------------------------------------------------------------------------
// formats

// The smallest float that rounds beyond the largest finite value. Half a step above it is a tie: 464 goes to even 448, so only the float after it overflows;
// 61440 goes to even 65536, which E5M2 lacks.
#define FP8_OVERFLOW(format) ((format) == FP8_E4M3 ? 464.000030517578125f : 61440.0f)

template <Fp8Format F> static __device__ __forceinline__ unsigned fp8_convert2(float lo, float hi) {  // two codes, lo in the low byte
    return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, F == FP8_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

static __device__ __host__ __forceinline__ float fp8_scale_from_amax(unsigned amax_bits, float fp8_max) {
    float amax;
    memcpy(&amax, &amax_bits, 4);
    if (amax_bits == 0 || amax_bits >= 0x7f800000u) { return 1.0f; }
    const float limit = 8.507059173023462e37f;  // 2^126
#ifdef __CUDA_ARCH__
    float scale = __fdiv_rn(fp8_max, amax);
#else
    float scale = fp8_max / amax;
#endif
    return scale < limit ? scale : limit;
}

// ----------------------------------------------------------------------------
// 16 x 16 bytes in registers

#define FP8_TILE 16

// Transposes q[row] (16 bytes each, byte c = column c) in place.
static __device__ __forceinline__ void fp8_transpose_tile(uint4 q[FP8_TILE]) {
#ifdef GPT_CPU_DEVICE
    // four rounds of the perfect shuffle: interleaving the bytes of row r and row r + 8 doubles the distance each byte has travelled
    typedef unsigned char Bytes __attribute__((vector_size(16)));
    Bytes a[FP8_TILE], b[FP8_TILE];
    memcpy(a, q, sizeof(a));
    for (int round = 0; round < 4; round++) {
        for (int r = 0; r < 8; r++) {
            b[2 * r] = __builtin_shuffle(a[r], a[r + 8], Bytes{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
            b[2 * r + 1] = __builtin_shuffle(a[r], a[r + 8], Bytes{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
        }
        memcpy(a, b, sizeof(a));
    }
    memcpy(q, a, sizeof(a));
#else
    // 4 x 4 blocks of 4 x 4 bytes: each block by byte permutes, blocks by naming
    unsigned w[FP8_TILE][4];
    #pragma unroll
    for (int r = 0; r < FP8_TILE; r++) { w[r][0] = q[r].x; w[r][1] = q[r].y; w[r][2] = q[r].z; w[r][3] = q[r].w; }
    unsigned o[FP8_TILE][4];
    #pragma unroll
    for (int br = 0; br < 4; br++) {
        #pragma unroll
        for (int bc = 0; bc < 4; bc++) {
            unsigned a = w[4 * br][bc], b = w[4 * br + 1][bc], c = w[4 * br + 2][bc], d = w[4 * br + 3][bc];
            unsigned ab_lo = __byte_perm(a, b, 0x5140), ab_hi = __byte_perm(a, b, 0x7362);
            unsigned cd_lo = __byte_perm(c, d, 0x5140), cd_hi = __byte_perm(c, d, 0x7362);
            o[4 * bc][br] = __byte_perm(ab_lo, cd_lo, 0x5410);
            o[4 * bc + 1][br] = __byte_perm(ab_lo, cd_lo, 0x7632);
            o[4 * bc + 2][br] = __byte_perm(ab_hi, cd_hi, 0x5410);
            o[4 * bc + 3][br] = __byte_perm(ab_hi, cd_hi, 0x7632);
        }
    }
    #pragma unroll
    for (int r = 0; r < FP8_TILE; r++) { q[r] = make_uint4(o[r][0], o[r][1], o[r][2], o[r][3]); }
#endif
}

// ----------------------------------------------------------------------------
// the Sink of recipes with one scale a tensor: the two orders hold the same codes

template <Fp8Format F, bool COUNT>
struct SinkTensor {
    uint8_t *k, *t;      // (rows, cols), (cols, rows); NULL: not written
    int rows, cols;      // multiples of 16
    float scale;
    unsigned saturated, flushed;  // counted by this thread, if COUNT
    uint4 q[FP8_TILE];

    // row r of the tile: 16 values that BF16 holds exactly
    __device__ __forceinline__ void put_row(int r, const float x[FP8_TILE]) {
        float y[FP8_TILE];
        unsigned w[FP8_TILE / 4];
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale; }
#ifdef GPT_CPU_DEVICE
        uint8_t codes[FP8_TILE];
        cpu_fp8_from_float16(codes, y, __NV_SATFINITE, F == FP8_E4M3 ? __NV_E4M3 : __NV_E5M2);
        memcpy(w, codes, FP8_TILE);
#else
        #pragma unroll
        for (int i = 0; i < FP8_TILE / 4; i++) { w[i] = fp8_convert2<F>(y[4 * i], y[4 * i + 1]) | (fp8_convert2<F>(y[4 * i + 2], y[4 * i + 3]) << 16); }
#endif
        if (COUNT) {
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) {
                unsigned code = (w[i / 4] >> (8 * (i % 4))) & 0x7fu;
                saturated += fabsf(y[i]) >= FP8_OVERFLOW(F);
                flushed += code == 0 && x[i] != 0.0f;
            }
        }
        q[r] = make_uint4(w[0], w[1], w[2], w[3]);
    }
    // the tile's place in the tensor
    __device__ __forceinline__ void store_tile(int row0, int col0) {
        if (k) {
            #pragma unroll
            for (int r = 0; r < FP8_TILE; r++) { *reinterpret_cast<uint4*>(k + (size_t)(row0 + r) * cols + col0) = q[r]; }
        }
        if (t) {
            fp8_transpose_tile(q);
            #pragma unroll
            for (int c = 0; c < FP8_TILE; c++) { *reinterpret_cast<uint4*>(t + (size_t)(col0 + c) * rows + row0) = q[c]; }
        }
    }
};

#endif
