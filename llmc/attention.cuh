/* attention.cuh - causal self-attention: forward, backward, and one row at a time for sampling; the T x T matrix is never saved (rule R7)
 *
 * What:      y_t = sum_{u<=t} softmax_u(q_t . k_u / sqrt(hs)) v_u per head                                   [Vaswani et al. 2017, eq. 1, causal]
 *            lse_t = log sum_u exp(q_t . k_u / sqrt(hs)), from which backward makes the probabilities again: P = exp(s - lse),
 *            dV = P^T dY, dP = dY V^T, dS = P (dP - rowsum(dY Y)) / sqrt(hs), dQ = dS K, dK = dS^T Q           [Dao et al. 2022, appendix B.2]
 * Shapes:    qkv, dqkv (B,T,3C) T: per token q, k, v of C each, head h at h*hs; y, dy (B,T,C) T; lse (B,NH,T) f32. hs = C/NH, hs % 8 == 0; 16-byte aligned.
 *            A head with fewer channels is filled up with zeros, which stay zero: the caller's scale is that of its own channels (attention_scale).
 * Numerics:  scores and dP in f32, P and dS rounded to T once for the products.
 * Design:    two implementations behind attention_forward / attention_backward, chosen by attention_is_flash: flash_attention.cuh (bf16 on a GPU), and here
 *            GEMM + softmax by groups of heads of one sequence, small enough that a group's scores stay below ATTENTION_GROUP_ELEMENTS.
 *            attention_decode needs no products of matrices: one block a head reads the keys and values once; qkv is its key-value cache.
 * Memory:    scratch of attention_scratch_bytes(), owned by the caller; allocates nothing. attention_decode needs none.
 * Tests:     dev/test/test_kernels_attention.cu
 */
#ifndef LLMC_ATTENTION_CUH
#define LLMC_ATTENTION_CUH

#include "llmc/flash_attention.cuh"
#include "llmc/matmul.cuh"

#ifndef ATTENTION_GROUP_ELEMENTS            // tests make it small, so that heads fall into several groups
#define ATTENTION_GROUP_ELEMENTS (1 << 24)  // scores alive at once: 64 MiB of f32
#endif
#ifndef ATTENTION_DECODE_TILE               // tests make it small, so that a context falls into several tiles
#define ATTENTION_DECODE_TILE 1024          // keys whose probabilities are alive at once: 4 KiB of shared memory
#endif
#define ATTENTION_DECODE_THREADS 256        // at most
#define ATTENTION_DECODE_CHUNKS 32          // eights of columns a block: all threads of its smallest size

static inline int attention_pitch(int seq_len) { return ROUND_UP(seq_len, 8); }  // elements from row to row of the score matrices: 16-byte rows for T = bf16
static inline float attention_scale(int channels) { return 1.0f / sqrtf((float)channels); }  // of a head
// How many heads are alive at once.
static inline int attention_group(int NH, int seq_len) {
    long long fit = ATTENTION_GROUP_ELEMENTS / ((long long)seq_len * attention_pitch(seq_len));
    return fit < 1 ? 1 : fit > NH ? NH : (int)fit;
}
// Which of the two: as dev->attention says; auto: flash on a GPU, since products of tensor cores are slow on the CPU device.
static inline bool attention_flash_fits(DType x, int hs) { return x == DTYPE_BF16 && hs <= FLASH_MAX_HEAD && hs % 8 == 0; }
static inline bool attention_is_flash(const Device* dev, DType x, int hs) {
    return attention_flash_fits(x, hs) && (dev->attention == ATTENTION_AUTO ? !dev->is_cpu : dev->attention == ATTENTION_FLASH);
}
// Bytes of scratch for sequences of up to seq_len: one f32 a token and head, and without flash scores and dP in f32, P and dS in T.
static inline size_t attention_scratch_bytes(bool flash, int B, int seq_len, int NH) {
    size_t matrix = flash ? 0 : (size_t)attention_group(NH, seq_len) * seq_len * attention_pitch(seq_len);
    return matrix * 16 + ROUND_UP((size_t)B * NH * seq_len * sizeof(float), (size_t)256);
}

// One warp a row. scores (rows,pitch) f32 -> p (rows,pitch) T, may be the same memory for T = float; row r belongs to position r % seq_len.
template <class T>
static __global__ void attention_softmax_kernel1(T* p, float* lse, const float* scores, float scale, int rows, int seq_len, int pitch) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) { return; }
    const int t = row % seq_len, first = threadIdx.x * 8, stride = WARP_SIZE * 8;
    const float* s = scores + (size_t)row * pitch;
    float top[8], x[8];
    for (int e = 0; e < 8; e++) { top[e] = -INFINITY; }
    for (int u = first; u <= t; u += stride) {
        load8(x, s + u);
        for (int e = 0; e < 8; e++) { top[e] = fmaxf(top[e], u + e <= t ? x[e] : -INFINITY); }
    }
    for (int e = 1; e < 8; e++) { top[0] = fmaxf(top[0], top[e]); }
    const float highest = warp_max(top[0]) * scale;
    float sum[8] = {0.0f};
    for (int u = first; u <= t; u += stride) {
        load8(x, s + u);
        for (int e = 0; e < 8; e++) { sum[e] += u + e <= t ? dev_expf(fmaf(x[e], scale, -highest)) : 0.0f; }
    }
    const float total = warp_sum(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
    const float inverse = 1.0f / total;
    T* out = p + (size_t)row * pitch;
    for (int u = first; u < pitch; u += stride) {
        load8(x, s + u);
        for (int e = 0; e < 8; e++) { x[e] = u + e <= t ? dev_expf(fmaf(x[e], scale, -highest)) * inverse : 0.0f; }
        store8(out + u, x);
    }
    if (threadIdx.x == 0) { lse[row] = highest + dev_logf(total); }
}

// delta (B,NH,T) f32 = rowsum over a head of dy * y; one thread a (token, head)
template <class T>
static __global__ void attention_delta_kernel1(float* delta, const T* dy, const T* y, int N, int seq_len, int C, int NH) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N * NH) { return; }
    int token = i / NH, h = i % NH, hs = C / NH;
    size_t base = (size_t)token * C + (size_t)h * hs;
    float sum[8] = {0.0f};
    for (int c = 0; c < hs; c += 8) {
        float a[8], b[8];
        load8(a, dy + base + c);
        load8(b, y + base + c);
        for (int e = 0; e < 8; e++) { sum[e] = fmaf(a[e], b[e], sum[e]); }
    }
    delta[((size_t)(token / seq_len) * NH + h) * seq_len + token % seq_len] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

template <class T>
static inline void attention_delta(float* delta, const T* dy, const T* y, int B, int seq_len, int C, int NH, cudaStream_t stream) {
    const int N = B * seq_len;
    launch<attention_delta_kernel1<T>>(dim3(CEIL_DIV(N * NH, 256)), dim3(256), 0, stream, delta, dy, y, N, seq_len, C, NH);
}

// p = exp(scale*scores - lse), ds = p * (dp - delta) * scale; 0 above the diagonal. One thread 8 elements; may be in place for T = float.
template <class T>
static __global__ void attention_softmax_backward_kernel1(T* p, T* ds, const float* scores, const float* dp, const float* lse, const float* delta,
                                                          float scale, int rows, int seq_len, int pitch) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= (size_t)rows * pitch) { return; }
    int row = (int)(i / pitch), u = (int)(i % pitch), t = row % seq_len;
    float x[8] = {0.0f}, d[8] = {0.0f};
    if (u <= t) {
        const float l = lse[row], dl = delta[row];
        load8(x, scores + i);
        load8(d, dp + i);
        for (int e = 0; e < 8; e++) {
            x[e] = u + e <= t ? dev_expf(fmaf(x[e], scale, -l)) : 0.0f;
            d[e] = u + e <= t ? x[e] * (d[e] - dl) * scale : 0.0f;
        }
    }
    store8(p + i, x);
    store8(ds + i, d);
}

// The three kinds of product of one head group; the one place for their shapes, used by planning as well.
// scores (T,T) f32 = A (T,hs) B (T,hs)^T with row distances lda, ldb
static inline GemmShape attention_scores_shape(DType x, int group, int seq_len, int hs, int lda, int ldb) {
    GemmShape s = gemm_shape(seq_len, seq_len, hs, x, x, DTYPE_F32);
    s.lda = lda; s.ldb = ldb; s.ldd = attention_pitch(seq_len);
    s.batch = group; s.align = 16; s.stride_a = hs; s.stride_b = hs; s.stride_d = (long long)seq_len * s.ldd;
    return s;
}
// out (T,hs) = M (T,T) X (T,hs), or M^T X
static inline GemmShape attention_apply_shape(DType x, int group, int seq_len, int hs, bool transpose_m, int ldx, int ldout) {
    GemmShape s = gemm_shape(seq_len, hs, seq_len, x, x, x);
    s.lda = attention_pitch(seq_len); s.a_t = transpose_m; s.b_t = 1; s.ldb = ldx; s.ldd = ldout;
    s.batch = group; s.align = 16; s.stride_a = (long long)seq_len * s.lda; s.stride_b = hs; s.stride_d = hs;
    return s;
}

// amax (bits) = max with that of y; NULL: not taken. Flash takes it on the way, a library's product is read once more.
template <class T>
static inline void attention_forward(Device* dev, T* y, float* lse, const T* qkv, void* scratch, int B, int seq_len, int C, int NH, float scale,
                                     unsigned* amax = NULL) {
    if constexpr (sizeof(T) == 2) {
        if (attention_is_flash(dev, DTYPE_BF16, C / NH)) { flash_forward(y, lse, qkv, B, seq_len, C, NH, scale, amax, dev->stream); return; }
    }
    const int hs = C / NH, pitch = attention_pitch(seq_len), group = attention_group(NH, seq_len);
    float* scores = (float*)scratch;
    T* p = sizeof(T) == 4 ? (T*)scores : (T*)(scores + (size_t)group * seq_len * pitch);
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h += group) {
            int g = min(group, NH - h), rows = g * seq_len;
            const T* q = qkv + (size_t)b * seq_len * 3 * C + (size_t)h * hs;
            GemmShape s = attention_scores_shape(dtype_of<T>(), g, seq_len, hs, 3 * C, 3 * C);
            gemm(dev, "gemm attention", &s, scores, q, q + C, NULL, NULL, NULL);
            launch<attention_softmax_kernel1<T>>(dim3(CEIL_DIV(rows, 4)), dim3(WARP_SIZE, 4), 0, dev->stream,
                                                 p, lse + ((size_t)b * NH + h) * seq_len, scores, scale, rows, seq_len, pitch);
            s = attention_apply_shape(dtype_of<T>(), g, seq_len, hs, false, 3 * C, C);
            gemm(dev, "gemm attention", &s, y + (size_t)b * seq_len * C + (size_t)h * hs, p, q + 2 * C, NULL, NULL, NULL);
        }
    }
    if (amax) { amax_reduce(amax, y, (size_t)B * seq_len * C, dev->stream); }
}

// dqkv (B,T,3C) = gradient of qkv; y and lse as forward left them. amax: of dqkv.
template <class T>
static inline void attention_backward(Device* dev, T* dqkv, const T* dy, const T* qkv, const T* y, const float* lse, void* scratch, int B, int seq_len, int C, int NH, float scale,
                                     unsigned* amax = NULL) {
    const int hs = C / NH, pitch = attention_pitch(seq_len), group = attention_group(NH, seq_len);
    const bool flash = attention_is_flash(dev, dtype_of<T>(), hs);
    const size_t matrix = flash ? 0 : (size_t)group * seq_len * pitch;
    float *scores = (float*)scratch, *dp = scores + matrix, *delta = scores + 4 * matrix;
    T* p = sizeof(T) == 4 ? (T*)scores : (T*)(dp + matrix);
    T* ds = sizeof(T) == 4 ? (T*)dp : p + matrix;
    attention_delta(delta, dy, y, B, seq_len, C, NH, dev->stream);
    if constexpr (sizeof(T) == 2) {
        if (flash) { flash_backward(dqkv, dy, qkv, lse, delta, B, seq_len, C, NH, scale, amax, dev->stream); return; }
    }
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h += group) {
            int g = min(group, NH - h), rows = g * seq_len;
            size_t in = (size_t)b * seq_len * 3 * C + (size_t)h * hs, out = (size_t)b * seq_len * C + (size_t)h * hs, line = ((size_t)b * NH + h) * seq_len;
            const T *q = qkv + in, *k = q + C, *v = q + 2 * C;
            GemmShape s = attention_scores_shape(dtype_of<T>(), g, seq_len, hs, 3 * C, 3 * C);
            gemm(dev, "gemm attention", &s, scores, q, k, NULL, NULL, NULL);
            s = attention_scores_shape(dtype_of<T>(), g, seq_len, hs, C, 3 * C);
            gemm(dev, "gemm attention", &s, dp, dy + out, v, NULL, NULL, NULL);
            launch<attention_softmax_backward_kernel1<T>>(dim3(CEIL_DIV((size_t)rows * pitch / 8, (size_t)256)), dim3(256), 0, dev->stream,
                                                          p, ds, scores, dp, lse + line, delta + line, scale, rows, seq_len, pitch);
            s = attention_apply_shape(dtype_of<T>(), g, seq_len, hs, true, C, 3 * C);
            gemm(dev, "gemm attention", &s, dqkv + in + 2 * C, p, dy + out, NULL, NULL, NULL);
            s = attention_apply_shape(dtype_of<T>(), g, seq_len, hs, false, 3 * C, 3 * C);
            gemm(dev, "gemm attention", &s, dqkv + in, ds, k, NULL, NULL, NULL);
            s = attention_apply_shape(dtype_of<T>(), g, seq_len, hs, true, 3 * C, 3 * C);
            gemm(dev, "gemm attention", &s, dqkv + in + C, ds, q, NULL, NULL, NULL);
        }
    }
    if (amax) { amax_reduce(amax, dqkv, (size_t)B * seq_len * 3 * C, dev->stream); }
}

// One head a block (x), up to 256 of its columns (y). A thread takes whole keys, since hs / 8 need not divide a warp: dot products without a shuffle.
// Then it adds eight columns of every groups-th value, and the groups are added in order. A tile's maximum rescales what earlier tiles left.
template <class T>
static __global__ void attention_decode_kernel1(T* out, const T* qkv, float scale, int position, int C, int hs) {
    SHARED(float, p, ATTENTION_DECODE_TILE);
    SHARED(float, partial, ATTENTION_DECODE_THREADS * 8);
    const int first_chunk = blockIdx.y * ATTENTION_DECODE_CHUNKS, chunks = min(hs / 8 - first_chunk, ATTENTION_DECODE_CHUNKS);
    const int groups = blockDim.x / chunks, group = threadIdx.x / chunks, column = blockIdx.x * hs + (first_chunk + threadIdx.x % chunks) * 8;
    const T *q = qkv + (size_t)position * 3 * C + blockIdx.x * hs, *k = qkv + C + blockIdx.x * hs, *v = qkv + 2 * C + column;
    float highest = -INFINITY, total = 0.0f, sum[8] = {0.0f};
    for (int first = 0; first <= position; first += ATTENTION_DECODE_TILE) {
        const int count = min(ATTENTION_DECODE_TILE, position + 1 - first);
        float top = -INFINITY, weight = 0.0f;
        for (int u = threadIdx.x; u < count; u += blockDim.x) {
            const T* key = k + (size_t)(first + u) * 3 * C;
            float s[8] = {0.0f}, a[8], b[8];
            for (int c = 0; c < hs; c += 8) {
                load8(a, q + c);
                load8(b, key + c);
                for (int e = 0; e < 8; e++) { s[e] = fmaf(a[e], b[e], s[e]); }
            }
            p[u] = (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))) * scale;
            top = fmaxf(top, p[u]);
        }
        top = fmaxf(highest, block_max(top));
        const float rescale = dev_expf(highest - top);  // the first tile: 0
        highest = top;
        for (int u = threadIdx.x; u < count; u += blockDim.x) {
            p[u] = dev_expf(p[u] - highest);
            weight += p[u];
        }
        total = fmaf(total, rescale, block_sum(weight));  // its barrier also shows all of p to all
        for (int e = 0; e < 8; e++) { sum[e] *= rescale; }
        for (int u = group < groups ? group : count; u < count; u += groups) {
            float x[8];
            load8(x, v + (size_t)(first + u) * 3 * C);
            for (int e = 0; e < 8; e++) { sum[e] = fmaf(p[u], x[e], sum[e]); }
        }
        if (first + ATTENTION_DECODE_TILE <= position) { __syncthreads(); }  // before the next tile overwrites p
    }
    store8(partial + threadIdx.x * 8, sum);
    __syncthreads();
    if (group > 0) { return; }
    for (int g = 1; g < groups; g++) {
        float x[8];
        load8(x, partial + (g * chunks + threadIdx.x) * 8);
        for (int e = 0; e < 8; e++) { sum[e] += x[e]; }
    }
    const float inverse = 1.0f / total;
    for (int e = 0; e < 8; e++) { sum[e] *= inverse; }
    store8(out + column, sum);
}

// out (C) T = the row of y that belongs to 0-based `position`, of one sequence whose rows 0 .. position lie in qkv (T,3C), as attention_forward reads
// them: its query, and the keys and values of all rows up to it. Rows beyond are not read. Probabilities stay f32, which attention_forward rounds to T.
// Reads 2 (position + 1) C elements. Enqueues only; the geometry hangs on position and hs alone (R3). Not in place.
template <class T>
static inline void attention_decode(T* out, const T* qkv, int position, int C, int NH, float scale, cudaStream_t stream) {
    const int hs = C / NH, threads = min(ATTENTION_DECODE_THREADS, ROUND_UP(CEIL_DIV(position + 1, 2), WARP_SIZE));  // two keys a thread, then more
    launch<attention_decode_kernel1<T>>(dim3(NH, CEIL_DIV(hs / 8, ATTENTION_DECODE_CHUNKS)), dim3(threads), 0, stream,
                                        out, qkv, scale, position, C, hs);
}

#endif
