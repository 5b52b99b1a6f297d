/* flash_attention.cuh - causal self-attention on tensor cores, scores in registers only: forward, backward
 *
 * What:      as llmc/attention.cuh, by tiles of keys: with m the largest score so far, l = sum exp(s - m) and o = sum exp(s - m) v are rescaled by
 *            exp(m_old - m_new) when a tile has a larger one; y = o / l, lse = m + log l.                      [Dao 2023, "FlashAttention-2", section 3.1]
 *            Backward makes P = exp(s - lse) again; one kernel owns rows of keys (dK, dV) and one rows of queries (dQ), so that nothing is added up
 *            by several blocks: no atomics, and the same bits every time (R3). It costs two of seven products more than one kernel with atomics.
 * Shapes:    qkv, dqkv (B,T,3C), y, dy (B,T,C) bf16, lse, delta (B,NH,T) f32, as there; any T; hs = C / NH <= 128, hs % 8 == 0, padded to HS with zeros in
 *            shared memory. 16-byte aligned.
 * Numerics:  products of bf16 summed in f32; P and dS are rounded to bf16 for the products that read them. y: P is rounded before it is divided by l.
 * Design:    a warp owns 16 or 32 rows of its block's; their scores with the other side's rows stay in the accumulators, whose layout is that of the next
 *            product's left operand. dK and dV come from S^T = K Q^T, so backward never transposes; both its kernels are one template.
 * Memory:    allocates nothing. Shared memory, HS 64 / 128: forward 37 / 70 KB, backward 55 / 70 KB (sm_89 and sm_120 have 99).
 * Tests:     dev/test/test_kernels_attention.cu
 */
#ifndef LLMC_FLASH_ATTENTION_CUH
#define LLMC_FLASH_ATTENTION_CUH

#include "llmc/amax.cuh"
#include "llmc/ptx.cuh"

#define FLASH_MAX_HEAD 128
#define FLASH_ROWS 128              // queries of a forward block
#define FLASH_KEYS 64               // keys of a tile that goes by in forward
#define FLASH_STREAM 32             // rows of a tile that goes by in backward
#define FLASH_LOG2E 1.4426950408889634f

// Elements from row to row of a tile in shared memory, and what 16 rows take: 16-byte pieces of eight neighbouring rows lie in different banks, and those of
// rows that are 16 apart do as well (fp8_attention.cuh reads them).
template <int HS> static constexpr int flash_pitch = HS + 8;
static __device__ __host__ constexpr int flash_rows(int rows, int pitch) { return rows * pitch + rows / 16 * 8; }
// Tiles of 16 rows that a warp owns. Two share what is loaded of the other side, if the registers allow it (ptxas for 8.0 and 9.0: up to 255, no spills).
template <int HS> static constexpr int flash_forward_tiles = HS <= 64 ? 2 : 1;
template <int HS, bool KEYS> static constexpr int flash_backward_tiles = !KEYS && HS <= 80 ? 2 : 1;  // two of 64 columns with dK and dV spill on 8.x
template <int HS> static constexpr int flash_forward_threads = FLASH_ROWS / (16 * flash_forward_tiles<HS>) * WARP_SIZE;
#define FLASH_BACKWARD_THREADS 128
template <int HS, bool KEYS> static constexpr int flash_backward_rows = FLASH_BACKWARD_THREADS / WARP_SIZE * 16 * flash_backward_tiles<HS, KEYS>;

template <int HS> static constexpr size_t flash_forward_bytes = flash_rows(FLASH_ROWS + 2 * FLASH_KEYS, flash_pitch<HS>) * sizeof(bf16);
template <int HS, bool KEYS> static constexpr size_t flash_backward_bytes =
    flash_rows(2 * flash_backward_rows<HS, KEYS> + 4 * FLASH_STREAM, flash_pitch<HS>) * sizeof(bf16) + 4 * FLASH_STREAM * sizeof(float);

// ----------------------------------------------------------------------------
// pieces

// tile (rows,HS) of row distance `pitch` = rows first .. of x (seq_len,hs) at row distance `stride`, zeros beyond. On its way until waited for.
template <int HS, int ROWS, int THREADS>
static __device__ __forceinline__ void flash_copy(bf16* tile, int pitch, const bf16* x, size_t stride, int first, int seq_len, int hs) {
    #pragma unroll
    for (int i = threadIdx.x; i < ROWS * (HS / 8); i += THREADS) {
        const int row = i / (HS / 8), column = i % (HS / 8) * 8;
        const bool valid = first + row < seq_len && column < hs;
        ptx_copy16(tile + flash_rows(row, pitch) + column, valid ? x + (first + row) * stride + column : x, valid);
    }
}
// What was left in a tile of `rows` rows -> global, 16 bytes a thread.
template <int HS, int ROWS, int THREADS>
static __device__ __forceinline__ void flash_store(bf16* x, size_t stride, const bf16* tile, int pitch, int first, int seq_len, int hs, unsigned* amax) {
    unsigned most = 0;
    for (int i = threadIdx.x; i < ROWS * (HS / 8); i += THREADS) {
        const int row = i / (HS / 8), column = i % (HS / 8) * 8;
        if (first + row < seq_len && column < hs) {
            const uint4 eight = *reinterpret_cast<const uint4*>(tile + flash_rows(row, pitch) + column);
            const unsigned w[4] = {eight.x, eight.y, eight.z, eight.w};
            *reinterpret_cast<uint4*>(x + (first + row) * stride + column) = eight;
            #pragma unroll
            for (int j = 0; j < 4; j++) { most = max(most, max(w[j] << 16 & 0x7fffffffu, w[j] & 0x7fff0000u)); }
        }
    }
    amax_record(amax, most);
}
// The fragment of a 16 x 16 tile: as left operand (rows x k); as right operand, from memory that holds it as columns x k, as k x columns.
static __device__ __forceinline__ void flash_load_a(unsigned (&a)[4], const bf16* tile, int pitch) {
    const int lane = threadIdx.x % WARP_SIZE;
    ptx_ldmatrix4(a, tile + lane % 16 * pitch + lane / 16 * 8);
}
static __device__ __forceinline__ void flash_load_b(unsigned (&b)[4], const bf16* tile, int pitch) {
    const int lane = threadIdx.x % WARP_SIZE;
    ptx_ldmatrix4(b, tile + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8);
}
static __device__ __forceinline__ void flash_load_b_rows(unsigned (&b)[4], const bf16* tile, int pitch) {
    const int lane = threadIdx.x % WARP_SIZE;
    ptx_ldmatrix4_trans(b, tile + lane % 16 * pitch + lane / 16 * 8);
}
static __device__ __forceinline__ unsigned flash_pack(float lo, float hi) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    unsigned bits;
    memcpy(&bits, &pair, 4);
    return bits;
}
// An accumulator, rounded, as a left operand: its columns become k.
static __device__ __forceinline__ void flash_as_a(unsigned (&a)[4], const float (&d)[2][4]) {
    a[0] = flash_pack(d[0][0], d[0][1]);
    a[1] = flash_pack(d[0][2], d[0][3]);
    a[2] = flash_pack(d[1][0], d[1][1]);
    a[3] = flash_pack(d[1][2], d[1][3]);
}
// An accumulator times a factor for its upper, for its lower rows, rounded, into shared memory.
static __device__ __forceinline__ void flash_put(bf16* tile, int pitch, const float (&d)[2][4], float upper, float lower) {
    const int lane = threadIdx.x % WARP_SIZE;
    bf16* at = tile + lane / 4 * pitch + lane % 4 * 2;
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        *reinterpret_cast<unsigned*>(at + j * 8) = flash_pack(d[j][0] * upper, d[j][1] * upper);
        *reinterpret_cast<unsigned*>(at + 8 * pitch + j * 8) = flash_pack(d[j][2] * lower, d[j][3] * lower);
    }
}
// Row and column of element e of accumulator d[j]: in its 16 x 16 tile.
static __device__ __forceinline__ int flash_row(int e) { return threadIdx.x % WARP_SIZE / 4 + e / 2 * 8; }
static __device__ __forceinline__ int flash_column(int j, int e) { return j * 8 + threadIdx.x % 4 * 2 + e % 2; }

// Over the four lanes that hold a row.
static __device__ __forceinline__ float flash_row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 2));
}
static __device__ __forceinline__ float flash_row_sum(float x) {
    x += __shfl_xor_sync(FULL_MASK, x, 1);
    return x + __shfl_xor_sync(FULL_MASK, x, 2);
}

// ----------------------------------------------------------------------------
// forward

// FLASH_ROWS rows of one head: its y, rounded, is left in shared memory where its queries were put (q, row distance PITCH; each warp's rows are written by itself
// alone); lse (T) of the head is stored. kv: shared memory for FLASH_KEYS keys and values. x: q of token 0 of this sequence and head in qkv.
template <int HS, int PITCH>
static __device__ __forceinline__ void flash_forward_head(bf16* q, bf16* kv, float* lse, const bf16* x, float scale, int row0, int seq_len, int C, int hs) {
    constexpr int MT = flash_forward_tiles<HS>, THREADS = flash_forward_threads<HS>, P = flash_pitch<HS>, NK = FLASH_KEYS / 16, NC = HS / 16;
    const size_t stride = (size_t)3 * C;
    const int warp_row = threadIdx.x / WARP_SIZE * 16 * MT, first = row0 + warp_row, tiles = CEIL_DIV(min(row0 + FLASH_ROWS, seq_len), FLASH_KEYS);
    const float scale2 = scale * FLASH_LOG2E;
    bf16 *k = kv, *v = kv + flash_rows(FLASH_KEYS, P);
    unsigned qa[MT][NC][4];
    float o[MT][NC][2][4], top[MT][2], sum[MT][2];
    #pragma unroll
    for (int m = 0; m < MT; m++) {
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            top[m][i] = -INFINITY;
            sum[m][i] = 0.0f;
        }
        #pragma unroll
        for (int c = 0; c < NC; c++) {
            #pragma unroll
            for (int e = 0; e < 8; e++) { o[m][c][e / 4][e % 4] = 0.0f; }
        }
    }
    flash_copy<HS, FLASH_ROWS, THREADS>(q, PITCH, x, stride, row0, seq_len, hs);
    flash_copy<HS, FLASH_KEYS, THREADS>(k, P, x + C, stride, 0, seq_len, hs);
    ptx_copy_commit();
    ptx_copy_wait<0>();
    __syncthreads();
    #pragma unroll
    for (int m = 0; m < MT; m++) {
        #pragma unroll
        for (int c = 0; c < NC; c++) { flash_load_a(qa[m][c], q + flash_rows(warp_row + m * 16, PITCH) + c * 16, PITCH); }
    }
    for (int tile = 0; tile < tiles; tile++) {
        const int key0 = tile * FLASH_KEYS;
        const bool work = key0 < first + 16 * MT;  // of this warp: a key that one of its rows sees
        float s[MT][NK][2][4];
        flash_copy<HS, FLASH_KEYS, THREADS>(v, P, x + 2 * C, stride, key0, seq_len, hs);
        ptx_copy_commit();
        if (work) {
            #pragma unroll
            for (int n = 0; n < NK; n++) {
                #pragma unroll
                for (int e = 0; e < 8 * MT; e++) { s[e / 8][n][e % 8 / 4][e % 4] = 0.0f; }
                #pragma unroll
                for (int c = 0; c < NC; c++) {
                    unsigned b[4];
                    flash_load_b(b, k + flash_rows(n * 16, P) + c * 16, P);
                    #pragma unroll
                    for (int m = 0; m < MT; m++) { ptx_mma16(s[m][n], qa[m][c], b); }
                }
            }
        }
        ptx_copy_wait<0>();
        __syncthreads();  // values are there, keys are read
        if (tile + 1 < tiles) { flash_copy<HS, FLASH_KEYS, THREADS>(k, P, x + C, stride, key0 + FLASH_KEYS, seq_len, hs); }
        ptx_copy_commit();
        if (work) {
            #pragma unroll
            for (int m = 0; m < MT; m++) {
                const int row = first + m * 16;
                float most[2] = {-INFINITY, -INFINITY};
                #pragma unroll
                for (int n = 0; n < NK; n++) {
                    #pragma unroll
                    for (int e = 0; e < 8; e++) {
                        if (key0 + FLASH_KEYS > row && key0 + n * 16 + flash_column(e / 4, e % 4) > row + flash_row(e % 4)) { s[m][n][e / 4][e % 4] = -INFINITY; }
                        most[e % 4 / 2] = fmaxf(most[e % 4 / 2], s[m][n][e / 4][e % 4]);
                    }
                }
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    most[i] = fmaxf(top[m][i], flash_row_max(most[i]));
                    const float rescale = ptx_exp2((top[m][i] - most[i]) * scale2);  // the first tile: 0
                    top[m][i] = most[i];
                    sum[m][i] *= rescale;
                    #pragma unroll
                    for (int c = 0; c < NC; c++) {
                        #pragma unroll
                        for (int e = 0; e < 4; e++) { o[m][c][e / 2][i * 2 + e % 2] *= rescale; }
                    }
                }
                #pragma unroll
                for (int n = 0; n < NK; n++) {
                    #pragma unroll
                    for (int e = 0; e < 8; e++) {
                        float* p = &s[m][n][e / 4][e % 4];
                        *p = ptx_exp2(fmaf(*p, scale2, -most[e % 4 / 2] * scale2));
                        sum[m][e % 4 / 2] += *p;
                    }
                }
            }
            #pragma unroll
            for (int n = 0; n < NK; n++) {
                unsigned p[MT][4];
                #pragma unroll
                for (int m = 0; m < MT; m++) { flash_as_a(p[m], s[m][n]); }
                #pragma unroll
                for (int c = 0; c < NC; c++) {
                    unsigned b[4];
                    flash_load_b_rows(b, v + flash_rows(n * 16, P) + c * 16, P);
                    #pragma unroll
                    for (int m = 0; m < MT; m++) { ptx_mma16(o[m][c], p[m], b); }
                }
            }
        }
        ptx_copy_wait<0>();
        __syncthreads();  // the next keys are there, values are read
    }
    #pragma unroll
    for (int m = 0; m < MT; m++) {
        float inverse[2];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const float total = flash_row_sum(sum[m][i]);
            const int row = first + m * 16 + flash_row(2 * i);
            inverse[i] = 1.0f / total;
            if (threadIdx.x % 4 == 0 && row < seq_len) { lse[row] = fmaf(top[m][i], scale, dev_logf(total)); }
        }
        #pragma unroll
        for (int c = 0; c < NC; c++) { flash_put(q + flash_rows(warp_row + m * 16, PITCH) + c * 16, PITCH, o[m][c], inverse[0], inverse[1]); }
    }
}

// grid (B * NH, tiles of queries): those with the most keys first
template <int HS>
static __global__ void __launch_bounds__(flash_forward_threads<HS>) flash_forward_kernel1(bf16* y, float* lse, const bf16* qkv, float scale, int seq_len, int C, int NH, int hs,
                                                                                                         unsigned* amax) {
    SHARED_DYN(bf16, shared);
    const int b = blockIdx.x / NH, h = blockIdx.x % NH, row0 = (gridDim.y - 1 - blockIdx.y) * FLASH_ROWS;
    const size_t token = (size_t)b * seq_len;
    flash_forward_head<HS, flash_pitch<HS>>(shared, shared + flash_rows(FLASH_ROWS, flash_pitch<HS>), lse + (size_t)blockIdx.x * seq_len, qkv + token * 3 * C + h * hs, scale,
                                            row0, seq_len, C, hs);
    __syncthreads();
    flash_store<HS, FLASH_ROWS, flash_forward_threads<HS>>(y + token * C + h * hs, C, shared, flash_pitch<HS>, row0, seq_len, hs, amax);
}

// ----------------------------------------------------------------------------
// backward

// A block owns rows of one head, from row0 on, and lets tiles of FLASH_STREAM rows of the other side go by.
//              own rows   X  Y    other side   1  2    S = X 1^T, R = Y 2^T
//     KEYS     keys       k  v    queries      q  dy   S = scores^T, R = dP^T    dV = P^T dy, dK = dS^T q
//     else     queries    q  dy   keys         k  v    S = scores,   R = dP      dQ = dS k
// The gradients, rounded, are left in shared memory where X (dK, dQ) and Y (dV) were put, at row distances PX, PY; each warp's rows are written by itself alone.
// stream: shared memory for two stages of two tiles, then of lse and delta. q, g: of token 0 of this sequence and head in qkv, dy; lse, delta (T) of the head,
// delta = rowsum(dy * y).
template <int HS, bool KEYS, int THREADS, int PX, int PY>
static __device__ __forceinline__ void flash_backward_head(bf16* own_x, bf16* own_y, bf16* stream, const bf16* q, const bf16* g, const float* lse, const float* delta, float scale,
                                                           int row0, int seq_len, int C, int hs) {
    constexpr int MT = flash_backward_tiles<HS, KEYS>, ROWS = THREADS / WARP_SIZE * 16 * MT, P = flash_pitch<HS>, NS = FLASH_STREAM / 16, NC = HS / 16;
    constexpr int TILE = flash_rows(FLASH_STREAM, P);
    float* stream_stats = reinterpret_cast<float*>(stream + 4 * TILE);
    const size_t stride = (size_t)3 * C;
    const bf16 *k = q + C, *v = q + 2 * C;
    const int warp_row = threadIdx.x / WARP_SIZE * 16 * MT, first = row0 + warp_row;
    const int begin = KEYS ? row0 / FLASH_STREAM : 0, end = CEIL_DIV(KEYS ? seq_len : min(row0 + ROWS, seq_len), FLASH_STREAM);
    const float scale2 = scale * FLASH_LOG2E;

    float dx[MT][NC][2][4], dv[KEYS ? MT : 1][KEYS ? NC : 1][2][4];
    #pragma unroll
    for (int m = 0; m < MT; m++) {
        #pragma unroll
        for (int c = 0; c < NC; c++) {
            #pragma unroll
            for (int e = 0; e < 8; e++) {
                dx[m][c][e / 4][e % 4] = 0.0f;
                if (KEYS) { dv[m][c][e / 4][e % 4] = 0.0f; }
            }
        }
    }
    float own_lse[MT][2], own_delta[MT][2];  // of this thread's rows, if they are queries: lse in units of log 2; beyond the end infinite, so that P is 0
    if (!KEYS) {
        #pragma unroll
        for (int m = 0; m < MT; m++) {
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = first + m * 16 + flash_row(2 * i);
                own_lse[m][i] = row < seq_len ? lse[row] * FLASH_LOG2E : INFINITY;
                own_delta[m][i] = row < seq_len ? delta[row] : 0.0f;
            }
        }
    }
    auto copy_stream = [&](int tile) {
        bf16* to = stream + tile % 2 * 2 * TILE;
        flash_copy<HS, FLASH_STREAM, THREADS>(to, P, KEYS ? q : k, stride, tile * FLASH_STREAM, seq_len, hs);
        flash_copy<HS, FLASH_STREAM, THREADS>(to + TILE, P, KEYS ? g : v, KEYS ? (size_t)C : stride, tile * FLASH_STREAM, seq_len, hs);
        if (KEYS && threadIdx.x < 2 * FLASH_STREAM) {
            const int row = tile * FLASH_STREAM + threadIdx.x % FLASH_STREAM;
            const bool is_lse = threadIdx.x < FLASH_STREAM;
            stream_stats[tile % 2 * 2 * FLASH_STREAM + threadIdx.x] = row < seq_len ? (is_lse ? lse[row] * FLASH_LOG2E : delta[row]) : is_lse ? INFINITY : 0.0f;
        }
    };
    flash_copy<HS, ROWS, THREADS>(own_x, PX, KEYS ? k : q, stride, row0, seq_len, hs);
    flash_copy<HS, ROWS, THREADS>(own_y, PY, KEYS ? v : g, KEYS ? stride : (size_t)C, row0, seq_len, hs);
    copy_stream(begin);
    ptx_copy_commit();
    for (int tile = begin; tile < end; tile++) {
        if (tile + 1 < end) { copy_stream(tile + 1); }
        ptx_copy_commit();
        ptx_copy_wait<1>();
        __syncthreads();
        const int other0 = tile * FLASH_STREAM;
        const bf16 *one = stream + tile % 2 * 2 * TILE, *two = one + TILE;
        const float* stats = stream_stats + tile % 2 * 2 * FLASH_STREAM;
        if (KEYS ? other0 + FLASH_STREAM > first : other0 < first + 16 * MT) {  // a query of the one side sees a key of the other
            float s[MT][NS][2][4], r[MT][NS][2][4];
            #pragma unroll
            for (int e = 0; e < MT * NS * 8; e++) { s[e / (NS * 8)][e / 8 % NS][e % 8 / 4][e % 4] = r[e / (NS * 8)][e / 8 % NS][e % 8 / 4][e % 4] = 0.0f; }
            #pragma unroll
            for (int c = 0; c < NC; c++) {
                unsigned x[MT][4], y[MT][4];
                #pragma unroll
                for (int m = 0; m < MT; m++) {
                    flash_load_a(x[m], own_x + flash_rows(warp_row + m * 16, PX) + c * 16, PX);
                    flash_load_a(y[m], own_y + flash_rows(warp_row + m * 16, PY) + c * 16, PY);
                }
                #pragma unroll
                for (int n = 0; n < NS; n++) {
                    unsigned b1[4], b2[4];
                    flash_load_b(b1, one + flash_rows(n * 16, P) + c * 16, P);
                    flash_load_b(b2, two + flash_rows(n * 16, P) + c * 16, P);
                    #pragma unroll
                    for (int m = 0; m < MT; m++) {
                        ptx_mma16(s[m][n], x[m], b1);
                        ptx_mma16(r[m][n], y[m], b2);
                    }
                }
            }
            #pragma unroll
            for (int n = 0; n < NS; n++) {
                unsigned p[MT][4], ds[MT][4];
                #pragma unroll
                for (int m = 0; m < MT; m++) {
                    #pragma unroll
                    for (int e = 0; e < 8; e++) {
                        float *at = &s[m][n][e / 4][e % 4], *ds_at = &r[m][n][e / 4][e % 4];
                        const int own = first + m * 16 + flash_row(e % 4), column = n * 16 + flash_column(e / 4, e % 4), other = other0 + column;
                        const float l = KEYS ? stats[column] : own_lse[m][e % 4 / 2], d = KEYS ? stats[FLASH_STREAM + column] : own_delta[m][e % 4 / 2];
                        *at = (KEYS ? own <= other : other <= own) ? ptx_exp2(fmaf(*at, scale2, -l)) : 0.0f;
                        *ds_at = *at * (*ds_at - d);
                    }
                    flash_as_a(ds[m], r[m][n]);
                    if (KEYS) { flash_as_a(p[m], s[m][n]); }
                }
                #pragma unroll
                for (int c = 0; c < NC; c++) {
                    unsigned b1[4], b2[4];
                    flash_load_b_rows(b1, one + flash_rows(n * 16, P) + c * 16, P);
                    if (KEYS) { flash_load_b_rows(b2, two + flash_rows(n * 16, P) + c * 16, P); }
                    #pragma unroll
                    for (int m = 0; m < MT; m++) {
                        ptx_mma16(dx[m][c], ds[m], b1);
                        if (KEYS) { ptx_mma16(dv[m][c], p[m], b2); }
                    }
                }
            }
        }
        __syncthreads();  // before the next copies overwrite what was read
    }
    #pragma unroll
    for (int m = 0; m < MT; m++) {
        #pragma unroll
        for (int c = 0; c < NC; c++) {
            flash_put(own_x + flash_rows(warp_row + m * 16, PX) + c * 16, PX, dx[m][c], scale, scale);
            if (KEYS) { flash_put(own_y + flash_rows(warp_row + m * 16, PY) + c * 16, PY, dv[m][c], 1.0f, 1.0f); }
        }
    }
}

// grid (B * NH, tiles of rows): those with much work first
template <int HS, bool KEYS>
static __global__ void __launch_bounds__(FLASH_BACKWARD_THREADS)
flash_backward_kernel1(bf16* dqkv, const bf16* dy, const bf16* qkv, const float* lse, const float* delta, float scale, int seq_len, int C, int NH, int hs, unsigned* amax) {
    constexpr int ROWS = flash_backward_rows<HS, KEYS>, THREADS = FLASH_BACKWARD_THREADS, P = flash_pitch<HS>;
    SHARED_DYN(bf16, shared);
    bf16 *own_x = shared, *own_y = own_x + flash_rows(ROWS, P), *stream = own_y + flash_rows(ROWS, P);
    const int b = blockIdx.x / NH, h = blockIdx.x % NH, row0 = (KEYS ? blockIdx.y : gridDim.y - 1 - blockIdx.y) * ROWS;
    const size_t token = (size_t)b * seq_len, in = token * 3 * C + h * hs, line = (size_t)blockIdx.x * seq_len;
    flash_backward_head<HS, KEYS, THREADS, P, P>(own_x, own_y, stream, qkv + in, dy + token * C + h * hs, lse + line, delta + line, scale, row0, seq_len, C, hs);
    __syncthreads();
    flash_store<HS, ROWS, THREADS>(dqkv + in + (KEYS ? C : 0), (size_t)3 * C, own_x, P, row0, seq_len, hs, amax);
    if (KEYS) { flash_store<HS, ROWS, THREADS>(dqkv + in + 2 * C, (size_t)3 * C, own_y, P, row0, seq_len, hs, amax); }
}

// ----------------------------------------------------------------------------
// launchers

// Beyond 48 KiB a kernel must be allowed its dynamic shared memory.
template <auto kernel, class... Args>
static inline void flash_launch(dim3 grid, int threads, size_t bytes, cudaStream_t stream, Args... args) {
    cudaCheck(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    launch<kernel>(grid, dim3(threads), bytes, stream, args...);
}
template <int HS>
static inline void flash_forward_launch(bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH, float scale, unsigned* amax, cudaStream_t stream) {
    const int hs = C / NH;
    flash_launch<flash_forward_kernel1<HS>>(dim3(B * NH, CEIL_DIV(seq_len, FLASH_ROWS)), flash_forward_threads<HS>, flash_forward_bytes<HS>, stream,
                                            y, lse, qkv, scale, seq_len, C, NH, hs, amax);
}
template <int HS, bool KEYS>
static inline void flash_backward_launch(bf16* dqkv, const bf16* dy, const bf16* qkv, const float* lse, const float* delta, int B, int seq_len, int C, int NH, float scale,
                                         unsigned* amax, cudaStream_t stream) {
    const int hs = C / NH;
    flash_launch<flash_backward_kernel1<HS, KEYS>>(dim3(B * NH, CEIL_DIV(seq_len, (flash_backward_rows<HS, KEYS>))), FLASH_BACKWARD_THREADS, (flash_backward_bytes<HS, KEYS>), stream,
                                                   dqkv, dy, qkv, lse, delta, scale, seq_len, C, NH, hs, amax);
}
// f(HS) for the smallest HS that holds a head.
template <class F> static inline void flash_for_head(int hs, F f) {
    assert(hs % 8 == 0 && hs >= 8 && hs <= FLASH_MAX_HEAD);
    if (hs <= 64) { f(std::integral_constant<int, 64>()); }
    else if (hs <= 80) { f(std::integral_constant<int, 80>()); }
    else if (hs <= 96) { f(std::integral_constant<int, 96>()); }
    else { f(std::integral_constant<int, 128>()); }
}

// amax (bits; NULL: not taken) = max with that of y.
static inline void flash_forward(bf16* y, float* lse, const bf16* qkv, int B, int seq_len, int C, int NH, float scale, unsigned* amax, cudaStream_t stream) {
    flash_for_head(C / NH, [&](auto head) { flash_forward_launch<decltype(head)::value>(y, lse, qkv, B, seq_len, C, NH, scale, amax, stream); });
}
// dqkv = gradient of qkv; delta (B,NH,T) = rowsum(dy * y), y and lse as forward left them.
static inline void flash_backward(bf16* dqkv, const bf16* dy, const bf16* qkv, const float* lse, const float* delta, int B, int seq_len, int C, int NH, float scale, unsigned* amax,
                                  cudaStream_t stream) {
    flash_for_head(C / NH, [&](auto head) {
        flash_backward_launch<decltype(head)::value, true>(dqkv, dy, qkv, lse, delta, B, seq_len, C, NH, scale, amax, stream);
        flash_backward_launch<decltype(head)::value, false>(dqkv, dy, qkv, lse, delta, B, seq_len, C, NH, scale, amax, stream);
    });
}

#endif
