/* fp8_attention.cuh - flash attention that writes its output as an FP8 operand itself
 *
 * What:      the y that flash_forward writes in BF16 (backward needs it) goes through the recipe's Sink from shared memory as well, in both orders: what
 *            fp8_quantize would read again is not read. Bit for bit the same codes, scales and amaxes, since y is rounded to BF16 first (R1).
 * When:      fp8_attention_fuses. The Sink works on patches of 128 x 128, so a block makes 128 rows of 128 / hs heads, one after the other, in place of their
 *            queries in shared memory: hs 64 or 128, and patches that do not cross sequences.
 * Memory:    allocates nothing. Shared memory: 52 / 68 KB for heads of 64 / 128, and the Sink's.
 * Tests:     dev/test/test_fp8_attention.cu (against the separate kernels)
 */
#ifndef LLMC_FP8_ATTENTION_CUH
#define LLMC_FP8_ATTENTION_CUH

#include "llmc/attention.cuh"
#include "llmc/fp8_quantize.cuh"

#define FP8_ATTENTION_PITCH (FP8_PATCH + 8)  // as flash_pitch, of a patch
static_assert(FP8_PATCH == FLASH_ROWS, "a block makes the rows of a patch");

template <int HS> static constexpr size_t fp8_flash_forward_bytes = (FP8_PATCH * FP8_ATTENTION_PITCH + 2 * FLASH_KEYS * flash_pitch<HS>) * sizeof(bf16);

// The Sink's own shared memory (fp8_recipe.cuh).
static inline size_t fp8_sink_shared_bytes(Fp8Granularity by) {
    return by == FP8_BY_TENSOR ? 0 : FP8_SINK_THREADS * 2 * FP8_TILE * sizeof(uint4) + (FP8_EDGES + 2 * FP8_PATCH) * sizeof(unsigned);
}
// Can flash attention over sequences of seq_len tokens write the operand of this slot, an input, in the same pass?
static inline bool fp8_attention_fuses(const Device* dev, const Fp8Scaling* s, int slot, int B, int seq_len, int C, int NH) {
    const Fp8Granularity by = fp8_slot_granularity(s, slot);
    const int hs = C / NH;
    if ((hs != 64 && hs != 128) || !attention_is_flash(dev, DTYPE_BF16, hs) || (B > 1 && seq_len % FP8_PATCH)) { return false; }
    if (by == FP8_BY_ROW || fp8_slot_format(s, slot) != FP8_E4M3 || fp8_needs_amax(s, slot) || s->count_on || s->noise_on) { return false; }
    return (hs == 64 ? fp8_flash_forward_bytes<64> : fp8_flash_forward_bytes<128>) + fp8_sink_shared_bytes(by) <= dev->props.sharedMemPerBlockOptin;
}

// A patch in shared memory -> the Sink. All threads of the block.
template <Fp8Granularity BY, Fp8Format F>
static __device__ __forceinline__ void fp8_sink_patch(const bf16* patch, const Fp8SinkParams& p, int patch_row, int patch_col) {
    Sink<BY, F, false> sink;
    sink.begin(p, patch_row, patch_col);
    if (sink.inside) {
        const bf16* tile = patch + threadIdx.x % 8 * FP8_TILE * FP8_ATTENTION_PITCH + threadIdx.x / 8 * FP8_TILE;
        #pragma unroll fp8_sink_unroll<BY>
        for (int r = 0; r < FP8_TILE; r++) {
            float v[FP8_TILE];
            fp8_load_row(v, tile + r * FP8_ATTENTION_PITCH);
            sink.put_row(r, v);
        }
    }
    sink.finish();
}

// grid (sequences * patches of channels, tiles of queries): those with the most keys first
template <Fp8Granularity BY, int HS>
static __global__ void __launch_bounds__(flash_forward_threads<HS>) fp8_flash_forward_kernel1(bf16* y, float* lse, const bf16* qkv, float scale, int seq_len, int C, int NH, Fp8SinkParams p) {
    SHARED_DYN(bf16, patch);
    const int patches = CEIL_DIV(C, FP8_PATCH), b = blockIdx.x / patches, patch_col = blockIdx.x % patches, tile = gridDim.y - 1 - blockIdx.y;
    const size_t token = (size_t)b * seq_len;
    for (int j = 0; j < FP8_PATCH / HS; j++) {
        const int h = patch_col * (FP8_PATCH / HS) + j;
        if (h < NH) {
            flash_forward_head<HS, FP8_ATTENTION_PITCH>(patch + j * HS, patch + FP8_PATCH * FP8_ATTENTION_PITCH, lse + ((size_t)b * NH + h) * seq_len, qkv + token * 3 * C + h * HS, scale,
                                                        tile * FP8_PATCH, seq_len, C, HS);
        }
    }
    __syncthreads();
    flash_store<FP8_PATCH, FP8_PATCH, flash_forward_threads<HS>>(y + token * C + patch_col * FP8_PATCH, C, patch, FP8_ATTENTION_PITCH, tile * FP8_PATCH, seq_len, C - patch_col * FP8_PATCH);
    fp8_sink_patch<BY, FP8_E4M3>(patch, p, (int)(token / FP8_PATCH) + tile, patch_col);
}
template <Fp8Granularity BY, int HS>
static inline void fp8_flash_forward_launch(bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH, const Fp8SinkParams& p, cudaStream_t stream) {
    flash_launch<fp8_flash_forward_kernel1<BY, HS>>(dim3(B * CEIL_DIV(C, FP8_PATCH), CEIL_DIV(seq_len, FP8_PATCH)), flash_forward_threads<HS>, fp8_flash_forward_bytes<HS>, stream,
                                                    y, lse, qkv, 1.0f / sqrtf((float)HS), seq_len, C, NH, p);
}
template <Fp8Granularity BY>
static inline void fp8_flash_forward_launch(bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH, const Fp8SinkParams& p, cudaStream_t stream) {
    if (C / NH == 64) { fp8_flash_forward_launch<BY, 64>(y, lse, qkv, B, seq_len, C, NH, p, stream); } else { fp8_flash_forward_launch<BY, 128>(y, lse, qkv, B, seq_len, C, NH, p, stream); }
}

// attention_forward, whose y (B,T,C) also becomes the operand of a slot for which fp8_attention_fuses. Enqueues only.
static inline void fp8_attention_forward(Device* dev, Fp8Scaling* s, int slot, Fp8Operand out, bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH) {
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, B * seq_len, C, false);
    switch (fp8_slot_granularity(s, slot)) {
    case FP8_BY_TENSOR: fp8_flash_forward_launch<FP8_BY_TENSOR>(y, lse, qkv, B, seq_len, C, NH, p, dev->stream); break;
    case FP8_BY_VEC128: fp8_flash_forward_launch<FP8_BY_VEC128>(y, lse, qkv, B, seq_len, C, NH, p, dev->stream); break;
    default: fp8_flash_forward_launch<FP8_BY_VEC32>(y, lse, qkv, B, seq_len, C, NH, p, dev->stream);
    }
}

#endif
