/* layernorm.cuh - (residual +) layernorm, forward and backward
 *
 * What:      residual = inp + branch; out = (residual - mean) * rstd * w + b over the last axis, eps 1e-5         [Ba et al. 2016, eq. 3-4]
 * Shapes:    residual, inp, branch, out, dout (N,C) T; w, b (C) T; mean, rstd (N) f32; dw, db (C) f32. C % 8 == 0, pointers 16-byte aligned.
 *            width <= C: the axis ends there; what is beyond must be 0 in everything that is read, and becomes 0 in everything that is written.
 * Numerics:  sums in f32; the residual is rounded to T before its statistics are taken, so that backward sees the same numbers.
 * Gradients: dw, db +=; the residual's gradient += (a residual stream collects from every branch), rounded to T once.
 * Statistics only: forward without out, layernorm_backward_sums: fp8_producers.cuh makes the rest on the way into FP8, from the same two expressions.
 * Amax:      forward takes that of out, backward that of the new residual gradient: the next FP8 operands (bits, see amax.cuh; NULL: not taken).
 * Design:    one warp a row; the row is read again from L1 instead of being held, so that C is free. dw and db are a second kernel over columns
 *            in the two stages of column_sum.cuh: deterministic, and no shared memory.
 * Tests:     dev/test/test_kernels_model.cu
 */
#ifndef LLMC_LAYERNORM_CUH
#define LLMC_LAYERNORM_CUH

#include "llmc/amax.cuh"
#include "llmc/column_sum.cuh"

#define LAYERNORM_EPS 1e-5f
#define LAYERNORM_ROWS 4  // rows (warps) a block

// Rounded to T, as both ways of writing it must be (R1).
template <class T> static __device__ __forceinline__ float layernorm_value(float x, float mean, float rstd, float w, float b) { return to_float(from_float<T>(fmaf((x - mean) * rstd, w, b))); }
template <class T> static __device__ __forceinline__ float layernorm_gradient(bool inside, float old, float dout, float x, float w, float mean, float rstd, float mean_d, float mean_dn) {
    const float d = inside ? rstd * (dout * w - mean_d - (x - mean) * rstd * mean_dn) : 0.0f;
    return to_float(from_float<T>(old + d));
}

static __device__ __forceinline__ float sum8(const float x[8]) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

template <class T>
static __global__ void layernorm_forward_kernel1(T* out, float* mean, float* rstd, T* residual, const T* inp, const T* branch, const T* weight, const T* bias,
                                                 int N, int C, int width, unsigned* amax) {
    int row = blockIdx.x * LAYERNORM_ROWS + threadIdx.y;
    if (row >= N) { return; }  // uniform over the warp; only warp collectives follow
    const T* x_row = (branch ? residual : inp) + (size_t)row * C;  // written below by the lane that reads it again
    const int first = threadIdx.x * 8, stride = WARP_SIZE * 8;
    float sum[8] = {0.0f};
    for (int c = first; c < C; c += stride) {
        float x[8];
        load8(x, inp + (size_t)row * C + c);
        if (branch) {
            float y[8];
            load8(y, branch + (size_t)row * C + c);
            for (int e = 0; e < 8; e++) { x[e] = to_float(from_float<T>(x[e] + y[e])); }
            store8(residual + (size_t)row * C + c, x);
        }
        for (int e = 0; e < 8; e++) { sum[e] += x[e]; }
    }
    float m = warp_sum(sum8(sum)) / width;
    float square[8] = {0.0f};
    for (int c = first; c < C; c += stride) {
        float x[8];
        load8(x, x_row + c);
        for (int e = 0; e < 8; e++) { float d = c + e < width ? x[e] - m : 0.0f; square[e] = fmaf(d, d, square[e]); }
    }
    float s = 1.0f / sqrtf(warp_sum(sum8(square)) / width + LAYERNORM_EPS);
    unsigned local[8] = {0};
    for (int c = first; out && c < C; c += stride) {
        float x[8], w[8], b[8];
        load8(x, x_row + c);
        load8(w, weight + c);
        load8(b, bias + c);
        for (int e = 0; e < 8; e++) {
            x[e] = layernorm_value<T>(x[e], m, s, w[e], b[e]);
            local[e] = max(local[e], abs_bits(x[e]));
        }
        store8(out + (size_t)row * C + c, x);
    }
    for (int e = 1; e < 8; e++) { local[0] = max(local[0], local[e]); }
    amax_record(amax, local[0]);
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

// residual (N,C) = inp + branch; out (N,C), mean, rstd (N) = layernorm(residual). branch NULL: inp is normalized, residual is not used. out NULL: not written.
// Enqueues only.
template <class T>
static inline void layernorm_forward(T* out, float* mean, float* rstd, T* residual, const T* inp, const T* branch, const T* weight, const T* bias,
                                     int N, int C, int width, unsigned* amax, cudaStream_t stream) {
    launch<layernorm_forward_kernel1<T>>(dim3(CEIL_DIV(N, LAYERNORM_ROWS)), dim3(WARP_SIZE, LAYERNORM_ROWS), 0, stream,
                                         out, mean, rstd, residual, inp, branch, weight, bias, N, C, width, amax);
}

// dx = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)), dnorm = dout * w, norm = (x - mean) * rstd
// The two means of a row, by its warp: s = rstd, m = mean of the row that starts at `base`.
template <class T>
static __device__ __forceinline__ float2 layernorm_row_means(const T* dout, const T* x, const T* weight, float m, float s, size_t base, int C, int width) {
    const int first = threadIdx.x * 8, stride = WARP_SIZE * 8;
    float sum_d[8] = {0.0f}, sum_dn[8] = {0.0f};
    for (int c = first; c < C; c += stride) {
        float g[8], v[8], w[8];
        load8(g, dout + base + c);
        load8(v, x + base + c);
        load8(w, weight + c);
        for (int e = 0; e < 8; e++) {
            float d = g[e] * w[e];
            sum_d[e] += d;
            sum_dn[e] = fmaf(d, (v[e] - m) * s, sum_dn[e]);
        }
    }
    const float mean_d = warp_sum(sum8(sum_d)) / width;
    return make_float2(mean_d, warp_sum(sum8(sum_dn)) / width);
}
template <class T>
static __global__ void layernorm_backward_kernel1(T* dresidual, const T* dout, const T* x, const T* weight, const float* mean, const float* rstd,
                                                  int N, int C, int width, bool accumulate, unsigned* amax) {
    int row = blockIdx.x * LAYERNORM_ROWS + threadIdx.y;
    if (row >= N) { return; }
    const size_t base = (size_t)row * C;
    const int first = threadIdx.x * 8, stride = WARP_SIZE * 8;
    const float m = mean[row], s = rstd[row];
    const float2 means = layernorm_row_means(dout, x, weight, m, s, base, C, width);
    unsigned local[8] = {0};
    for (int c = first; c < C; c += stride) {
        float g[8], v[8], w[8], old[8];
        load8(g, dout + base + c);
        load8(v, x + base + c);
        load8(w, weight + c);
        if (accumulate) {
            load8(old, dresidual + base + c);
        } else {
            for (int e = 0; e < 8; e++) { old[e] = 0.0f; }
        }
        for (int e = 0; e < 8; e++) {
            g[e] = layernorm_gradient<T>(c + e < width, old[e], g[e], v[e], w[e], m, s, means.x, means.y);
            local[e] = max(local[e], abs_bits(g[e]));
        }
        store8(dresidual + base + c, g);
    }
    for (int e = 1; e < 8; e++) { local[0] = max(local[0], local[e]); }
    amax_record(amax, local[0]);
}

// one thread: 16 rows x 8 columns of dw and db
template <class T>
static __global__ void layernorm_partial_kernel1(float* dw_partial, float* db_partial, const T* dout, const T* x, const float* mean, const float* rstd, int N, int C) {
    int c = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (c >= C) { return; }
    int row0 = blockIdx.x * COLUMN_SUM_ROWS;
    int row1 = min(row0 + COLUMN_SUM_ROWS, N);
    float dw[8] = {0.0f}, db[8] = {0.0f};
    for (int r = row0; r < row1; r++) {
        float g[8], v[8];
        load8(g, dout + (size_t)r * C + c);
        load8(v, x + (size_t)r * C + c);
        float m = mean[r], s = rstd[r];
        for (int e = 0; e < 8; e++) {
            dw[e] = fmaf(g[e], (v[e] - m) * s, dw[e]);
            db[e] += g[e];
        }
    }
    store8(dw_partial + (size_t)blockIdx.x * C + c, dw);
    store8(db_partial + (size_t)blockIdx.x * C + c, db);
}

// means (N): what the gradient of each row subtracts.
template <class T>
static __global__ void layernorm_backward_sums_kernel1(float2* means, const T* dout, const T* x, const T* weight, const float* mean, const float* rstd, int N, int C, int width) {
    int row = blockIdx.x * LAYERNORM_ROWS + threadIdx.y;
    if (row >= N) { return; }
    const float2 both = layernorm_row_means(dout, x, weight, mean[row], rstd[row], (size_t)row * C, C, width);
    if (threadIdx.x == 0) { means[row] = both; }
}
template <class T>
static inline void layernorm_backward_sums(float2* means, const T* dout, const T* x, const T* weight, const float* mean, const float* rstd, int N, int C, int width, cudaStream_t stream) {
    launch<layernorm_backward_sums_kernel1<T>>(dim3(CEIL_DIV(N, LAYERNORM_ROWS)), dim3(WARP_SIZE, LAYERNORM_ROWS), 0, stream, means, dout, x, weight, mean, rstd, N, C, width);
}

// dw, db (C) f32 += the gradients of layernorm's parameters. partial: scratch of 2 * column_sum_partials(N, C) f32.
template <class T>
static inline void layernorm_backward_params(float* dw, float* db, float* partial, const T* dout, const T* x, const float* mean, const float* rstd, int N, int C, cudaStream_t stream) {
    float* db_partial = partial + column_sum_partials(N, C);
    int num_partials = CEIL_DIV(N, COLUMN_SUM_ROWS);
    launch<layernorm_partial_kernel1<T>>(dim3(num_partials, CEIL_DIV(C / 8, 32)), dim3(32), 0, stream, partial, db_partial, dout, x, mean, rstd, N, C);
    column_sum(dw, partial, num_partials, C, stream);
    column_sum(db, db_partial, num_partials, C, stream);
}

// dresidual (N,C) += (accumulate) or = the gradient of x (N,C), the residual that forward normalized; dw, db (C) f32 +=.
// partial: scratch of 2 * column_sum_partials(N, C) f32.
template <class T>
static inline void layernorm_backward(T* dresidual, float* dw, float* db, float* partial, const T* dout, const T* x, const T* weight, const float* mean,
                                      const float* rstd, int N, int C, int width, bool accumulate, unsigned* amax, cudaStream_t stream) {
    layernorm_backward_params(dw, db, partial, dout, x, mean, rstd, N, C, stream);
    launch<layernorm_backward_kernel1<T>>(dim3(CEIL_DIV(N, LAYERNORM_ROWS)), dim3(WARP_SIZE, LAYERNORM_ROWS), 0, stream,
                                          dresidual, dout, x, weight, mean, rstd, N, C, width, accumulate, amax);
}

#endif
