/* fp8_layout.h - where the scales of an FP8 operand lie: bytes and indices, for the host and the device
 *
 * One order of an operand is a matrix of `outer` rows by `inner` columns, contracted along its columns: for a tensor (rows, cols) the order k is
 * (rows, cols) and t is (cols, rows). What a GEMM reads are inverse scales ("descales"), in the layouts that cuBLASLt prescribes:
 *     TENSOR  one float, that of the tensor's slot in fp8_scaling.h: no array
 *     ROW     float s[outer]
 *     VEC128  float s[inner/128][outer]                                   the last block along the contraction may be partial
 *     BLK128  float s[outer/128][inner/128 rounded up to a multiple of 4] padding is 0
 *     VEC32   bytes e, meaning 2^(e - 127), in tiles of 128 outer rows x 4 blocks of 32; tiles s[outer/128][inner/128], in a tile
 *             byte (o % 32) * 16 + (o / 32) * 4 + block; padding is 0
 * (divisions round up). Every array is a multiple of 16 bytes long and must start at one.
 * Tests: dev/test/test_fp8_recipes.cu
 */
#ifndef LLMC_FP8_LAYOUT_H
#define LLMC_FP8_LAYOUT_H

#include <stddef.h>

#include "llmc/fp8_recipes.h"

#ifdef __CUDACC__
#define FP8_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FP8_HOST_DEVICE inline
#endif

#define FP8_BLOCK 128      // elements of a VEC128 scale, edge of a BLK128
#define FP8_MX_BLOCK 32    // elements of a VEC32 scale
#define FP8_MX_TILE 512    // bytes of a tile of VEC32 scales: 128 x 4

static FP8_HOST_DEVICE size_t fp8_blocks(int n) { return ((size_t)n + FP8_BLOCK - 1) / FP8_BLOCK; }
static FP8_HOST_DEVICE size_t fp8_blk128_stride(int inner) { return (fp8_blocks(inner) + 3) / 4 * 4; }

// Elements of the array (bytes for VEC32, floats for the others); 0 for TENSOR.
static FP8_HOST_DEVICE size_t fp8_scale_count(Fp8Granularity by, int outer, int inner) {
    switch (by) {
    case FP8_BY_ROW: return outer;
    case FP8_BY_VEC128: return fp8_blocks(inner) * outer;
    case FP8_BY_BLK128: return fp8_blocks(outer) * fp8_blk128_stride(inner);
    case FP8_BY_VEC32: return fp8_blocks(outer) * fp8_blocks(inner) * FP8_MX_TILE;
    default: return 0;
    }
}
static FP8_HOST_DEVICE size_t fp8_scale_bytes(Fp8Granularity by, int outer, int inner) {
    return (fp8_scale_count(by, outer, inner) * (by == FP8_BY_VEC32 ? 1 : sizeof(float)) + 15) / 16 * 16;
}
// The element of the array that scales element (o, i).
static FP8_HOST_DEVICE size_t fp8_scale_index(Fp8Granularity by, int outer, int inner, int o, int i) {
    switch (by) {
    case FP8_BY_ROW: return o;
    case FP8_BY_VEC128: return (size_t)(i / FP8_BLOCK) * outer + o;
    case FP8_BY_BLK128: return (o / FP8_BLOCK) * fp8_blk128_stride(inner) + i / FP8_BLOCK;
    case FP8_BY_VEC32: return ((o / FP8_BLOCK) * fp8_blocks(inner) + i / FP8_BLOCK) * FP8_MX_TILE + (o % 32) * 16 + o % FP8_BLOCK / 32 * 4 + i % FP8_BLOCK / FP8_MX_BLOCK;
    default: return 0;
    }
}

#endif
