/* fp8_attention.cuh - flash attention whose output, and whose gradient, is written as an FP8 operand at once
 *
 * What:      forward: the y that flash_forward writes in BF16 (backward needs it) goes through the recipe's Sink from shared memory as well: what fp8_quantize would
 *            read again is not read. Backward: dqkv goes through the Sink only, with its column sums, and is never written in BF16. Both orders; bit for bit the
 *            same codes, scales, amaxes and sums as by the separate kernels, since values are rounded to BF16 first (R1).
 * When:      fp8_attention_fuses: where fp8_fuses says so, and where the geometry allows it. The Sink works on patches of 128 x 128, so a block makes 128 rows of
 *            128 / hs heads, one after the other, in place of their queries (keys, values) in shared memory: heads of 64 or 128, patches that do not cross
 *            sequences, and for dqkv C % 128 == 0, or a patch would hold dq and dk, which different kernels make.
 * Memory:    allocates nothing. Shared memory with the Sink's, heads of 64 / 128: forward 62 / 77 KB, backward 96 / 113 KB.
 * Tests:     dev/test/test_fp8_attention.cu (against the separate kernels)
 */
#ifndef LLMC_FP8_ATTENTION_CUH
#define LLMC_FP8_ATTENTION_CUH

#include "llmc/attention.cuh"
#include "llmc/fp8_producers.cuh"

#define FP8_ATTENTION_PITCH (FP8_PATCH + 8)  // as flash_pitch, of a patch
static_assert(FP8_PATCH == FLASH_ROWS, "a block makes the rows of a patch");

static constexpr int fp8_attention_patch = flash_rows(FP8_PATCH, FP8_ATTENTION_PITCH);  // elements
template <int HS, bool KEYS> static constexpr int fp8_flash_backward_threads = FP8_PATCH / (16 * flash_backward_tiles<HS, KEYS>) * WARP_SIZE;
template <int HS> static constexpr size_t fp8_flash_forward_bytes = (fp8_attention_patch + flash_rows(2 * FLASH_KEYS, flash_pitch<HS>)) * sizeof(bf16);
template <int HS, bool KEYS> static constexpr size_t fp8_flash_backward_bytes =
    (fp8_attention_patch + (KEYS ? fp8_attention_patch : flash_rows(FP8_PATCH, flash_pitch<HS>)) + flash_rows(4 * FLASH_STREAM, flash_pitch<HS>)) * sizeof(bf16) + 4 * FLASH_STREAM * sizeof(float);

// Can flash attention over (B,T) write the operand of this slot in the same pass: attproj's input, or qkv's output gradient?
static inline bool fp8_attention_fuses(const Device* dev, const Fp8Scaling* s, int slot, int B, int seq_len, int C, int NH) {
    const int hs = C / NH;
    const bool backward = fp8_slot_role(s, slot) == FP8_ROLE_DY;
    if ((hs != 64 && hs != 128) || !attention_is_flash(dev, DTYPE_BF16, hs) || (B > 1 && seq_len % FP8_PATCH) || (backward && C % FP8_PATCH) || !fp8_fuses(s, slot, false)) { return false; }
    const size_t sink = fp8_slot_granularity(s, slot) == FP8_BY_TENSOR ? 0 : (FP8_EDGES + 2 * FP8_PATCH) * sizeof(unsigned);
    const size_t most = backward ? (hs == 64 ? fp8_flash_backward_bytes<64, true> : fp8_flash_backward_bytes<128, true>) : hs == 64 ? fp8_flash_forward_bytes<64> : fp8_flash_forward_bytes<128>;
    return most + sink <= dev->props.sharedMemPerBlockOptin;
}

// A thread's tile of a patch, which stays where it is.
struct Fp8PatchHeld {
    const bf16* tile;
    __device__ __forceinline__ void begin() { tile = NULL; }
    __device__ __forceinline__ void put(int, const float[FP8_TILE]) {}
    __device__ __forceinline__ void get(int r, float x[FP8_TILE]) const { fp8_load_row(x, tile + r * FP8_ATTENTION_PITCH); }
};

// One scale a tensor: codes of t are made from the patch once more, or 64 registers of them would live beside what the kernel has already.
template <Fp8Format F, bool COUNT> struct Sink<FP8_BY_TENSOR, F, COUNT, Fp8PatchHeld> : Fp8SinkTile<F, COUNT> {
    float scale;
    Fp8PatchHeld held;

    __device__ __forceinline__ uint4 codes_of(const float x[FP8_TILE]) {
        float y[FP8_TILE];
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale; }
        return fp8_convert16<F>(y);
    }
    __device__ __forceinline__ void begin(const Fp8SinkParams& params, int patch_row, int patch_col) {
        this->begin_tile(params, patch_row, patch_col);
        scale = *params.scale;  // known before: fp8_fuses
    }
    __device__ __forceinline__ void put_row(int r, const float x[FP8_TILE]) {
        this->take_tile_amax(x);
        if (this->p.out.k) { this->store_k(r, codes_of(x)); }
    }
    __device__ __forceinline__ void finish() {
        if (this->inside && this->p.out.t) {
            uint4 q[FP8_TILE];
            #pragma unroll
            for (int r = 0; r < FP8_TILE; r++) {
                float x[FP8_TILE];
                held.get(r, x);
                q[r] = codes_of(x);
            }
            this->store_t(q);
        }
        this->record(this->tile_amax());
    }
};

// A patch in shared memory -> the Sink, and with bias_partial the sums of 16 rows. All threads of the block; the patch must be whole.
template <Fp8Granularity BY, Fp8Format F>
static __device__ __forceinline__ void fp8_sink_patch(const bf16* patch, float* bias_partial, const Fp8SinkParams& p, int patch_row, int patch_col) {
    Sink<BY, F, false, Fp8PatchHeld> sink;
    sink.begin(p, patch_row, patch_col);
    if (sink.inside) {
        const bf16* tile = patch + flash_rows(threadIdx.x % 8 * FP8_TILE, FP8_ATTENTION_PITCH) + threadIdx.x / 8 * FP8_TILE;
        float sum[FP8_TILE];
        sink.held.tile = tile;
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { sum[i] = 0.0f; }
        #pragma unroll 4
        for (int r = 0; r < FP8_TILE; r++) {
            float v[FP8_TILE];
            fp8_load_row(v, tile + r * FP8_ATTENTION_PITCH);
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { sum[i] += v[i]; }
            sink.put_row(r, v);
        }
        if (bias_partial) {
            float* partial = bias_partial + (size_t)(sink.row0 / FP8_TILE) * p.cols + sink.col0;
            store8(partial, sum);
            store8(partial + 8, sum + 8);
        }
    }
    sink.finish();
}

// ----------------------------------------------------------------------------
// forward

// grid (sequences * patches of channels, tiles of queries): those with the most keys first
template <Fp8Granularity BY, int HS>
static __global__ void __launch_bounds__(flash_forward_threads<HS>) fp8_flash_forward_kernel1(bf16* y, float* lse, const bf16* qkv, float scale, int seq_len, int C, int NH, Fp8SinkParams p) {
    SHARED_DYN(bf16, patch);
    const int patches = CEIL_DIV(C, FP8_PATCH), b = blockIdx.x / patches, patch_col = blockIdx.x % patches, tile = gridDim.y - 1 - blockIdx.y;
    const size_t token = (size_t)b * seq_len;
    for (int j = 0; j < FP8_PATCH / HS; j++) {
        const int h = patch_col * (FP8_PATCH / HS) + j;
        if (h < NH) {
            flash_forward_head<HS, FP8_ATTENTION_PITCH>(patch + j * HS, patch + fp8_attention_patch, lse + ((size_t)b * NH + h) * seq_len, qkv + token * 3 * C + h * HS, scale,
                                                        tile * FP8_PATCH, seq_len, C, HS);
        }
    }
    __syncthreads();
    flash_store<FP8_PATCH, FP8_PATCH, flash_forward_threads<HS>>(y + token * C + patch_col * FP8_PATCH, C, patch, FP8_ATTENTION_PITCH, tile * FP8_PATCH, seq_len, C - patch_col * FP8_PATCH,
                                                                 (unsigned*)NULL);
    fp8_sink_patch<BY, FP8_E4M3>(patch, NULL, p, (int)(token / FP8_PATCH) + tile, patch_col);
}
template <Fp8Granularity BY, int HS>
static inline void fp8_flash_forward_launch(bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH, float scale, const Fp8SinkParams& p, cudaStream_t stream) {
    flash_launch<fp8_flash_forward_kernel1<BY, HS>>(dim3(B * CEIL_DIV(C, FP8_PATCH), CEIL_DIV(seq_len, FP8_PATCH)), flash_forward_threads<HS>, fp8_flash_forward_bytes<HS>, stream,
                                                    y, lse, qkv, scale, seq_len, C, NH, p);
}

// attention_forward, whose y (B,T,C) also becomes the operand of a slot for which fp8_attention_fuses. Enqueues only.
static inline void fp8_attention_forward(Device* dev, Fp8Scaling* s, int slot, Fp8Operand out, bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH, float scale) {
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, B * seq_len, C, false);
    const bool small = C / NH == 64;
    switch (fp8_slot_granularity(s, slot)) {
    case FP8_BY_TENSOR: (small ? fp8_flash_forward_launch<FP8_BY_TENSOR, 64> : fp8_flash_forward_launch<FP8_BY_TENSOR, 128>)(y, lse, qkv, B, seq_len, C, NH, scale, p, dev->stream); break;
    case FP8_BY_VEC128: (small ? fp8_flash_forward_launch<FP8_BY_VEC128, 64> : fp8_flash_forward_launch<FP8_BY_VEC128, 128>)(y, lse, qkv, B, seq_len, C, NH, scale, p, dev->stream); break;
    default: (small ? fp8_flash_forward_launch<FP8_BY_VEC32, 64> : fp8_flash_forward_launch<FP8_BY_VEC32, 128>)(y, lse, qkv, B, seq_len, C, NH, scale, p, dev->stream);
    }
}

// ----------------------------------------------------------------------------
// backward

// KEYS: dk and dv, two patches; else dq. grid as in forward: rows with much work first
template <Fp8Granularity BY, int HS, bool KEYS>
static __global__ void __launch_bounds__((fp8_flash_backward_threads<HS, KEYS>))
fp8_flash_backward_kernel1(const bf16* dy, const bf16* qkv, const float* lse, const float* delta, float scale, int seq_len, int C, int NH, float* bias_partial, Fp8SinkParams p) {
    constexpr int THREADS = fp8_flash_backward_threads<HS, KEYS>, PY = KEYS ? FP8_ATTENTION_PITCH : flash_pitch<HS>;
    constexpr Fp8Format F = BY == FP8_BY_TENSOR ? FP8_E5M2 : FP8_E4M3;
    SHARED_DYN(bf16, patch);
    bf16 *own_y = patch + fp8_attention_patch, *stream = own_y + flash_rows(FP8_PATCH, PY);
    const int patches = C / FP8_PATCH, b = blockIdx.x / patches, patch_col = blockIdx.x % patches, tile = KEYS ? blockIdx.y : gridDim.y - 1 - blockIdx.y;
    const size_t token = (size_t)b * seq_len;
    for (int j = 0; j < FP8_PATCH / HS; j++) {
        const int h = patch_col * (FP8_PATCH / HS) + j;
        const size_t line = ((size_t)b * NH + h) * seq_len;
        flash_backward_head<HS, KEYS, THREADS, FP8_ATTENTION_PITCH, PY>(patch + j * HS, own_y + (KEYS ? j * HS : 0), stream, qkv + token * 3 * C + h * HS, dy + token * C + h * HS,
                                                                        lse + line, delta + line, scale, tile * FP8_PATCH, seq_len, C, HS);
    }
    __syncthreads();
    const int patch_row = (int)(token / FP8_PATCH) + tile;
    fp8_sink_patch<BY, F>(patch, bias_partial, p, patch_row, (KEYS ? patches : 0) + patch_col);
    if (KEYS) { fp8_sink_patch<BY, F>(own_y, bias_partial, p, patch_row, 2 * patches + patch_col); }
}
template <Fp8Granularity BY, int HS, bool KEYS>
static inline void fp8_flash_backward_launch(const bf16* dy, const bf16* qkv, const float* lse, const float* delta, int B, int seq_len, int C, int NH, float scale, float* bias_partial,
                                             const Fp8SinkParams& p, cudaStream_t stream) {
    flash_launch<fp8_flash_backward_kernel1<BY, HS, KEYS>>(dim3(B * (C / FP8_PATCH), CEIL_DIV(seq_len, FP8_PATCH)), fp8_flash_backward_threads<HS, KEYS>, fp8_flash_backward_bytes<HS, KEYS>, stream,
                                                           dy, qkv, lse, delta, scale, seq_len, C, NH, bias_partial, p);
}
template <Fp8Granularity BY, int HS>
static inline void fp8_flash_backward(const bf16* dy, const bf16* qkv, const float* lse, const float* delta, int B, int seq_len, int C, int NH, float scale, float* bias_partial,
                                      const Fp8SinkParams& p, cudaStream_t stream) {
    fp8_flash_backward_launch<BY, HS, true>(dy, qkv, lse, delta, B, seq_len, C, NH, scale, bias_partial, p, stream);
    fp8_flash_backward_launch<BY, HS, false>(dy, qkv, lse, delta, B, seq_len, C, NH, scale, bias_partial, p, stream);
}

// attention_backward, whose dqkv (B,T,3C) becomes the operand of a slot for which fp8_attention_fuses; dbias (3C) f32 += its column sums.
// partial: scratch of column_sum_partials(B * T, 3 * C) f32; scratch as that of attention_backward. Enqueues only.
static inline void fp8_attention_backward(Device* dev, Fp8Scaling* s, int slot, Fp8Operand out, float* dbias, float* partial, const bf16* dy, const bf16* qkv, const bf16* y, const float* lse,
                                          void* scratch, int B, int seq_len, int C, int NH, float scale) {
    const Fp8SinkParams p = fp8_sink_params(s, slot, out, B * seq_len, 3 * C, false);
    const bool small = C / NH == 64;
    float* delta = (float*)scratch;
    attention_delta(delta, dy, y, B, seq_len, C, NH, dev->stream);
    switch (fp8_slot_granularity(s, slot)) {
    case FP8_BY_TENSOR: (small ? fp8_flash_backward<FP8_BY_TENSOR, 64> : fp8_flash_backward<FP8_BY_TENSOR, 128>)(dy, qkv, lse, delta, B, seq_len, C, NH, scale, partial, p, dev->stream); break;
    case FP8_BY_VEC128: (small ? fp8_flash_backward<FP8_BY_VEC128, 64> : fp8_flash_backward<FP8_BY_VEC128, 128>)(dy, qkv, lse, delta, B, seq_len, C, NH, scale, partial, p, dev->stream); break;
    default: (small ? fp8_flash_backward<FP8_BY_VEC32, 64> : fp8_flash_backward<FP8_BY_VEC32, 128>)(dy, qkv, lse, delta, B, seq_len, C, NH, scale, partial, p, dev->stream);
    }
    column_sum(dbias, partial, B * seq_len / FP8_TILE, 3 * C, dev->stream);
}

#endif
