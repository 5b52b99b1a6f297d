/* encoder.cuh - token and position embedding, forward and backward
 *
 * What:      out[b,t,:] = wte[inp[b,t],:] + wpe[t,:]                                 [Radford et al. 2019, GPT-2]
 * Shapes:    inp (B,T) i32; wte (Vp,C), wpe (maxT,C), out (B,T,C) T; dwte (Vp,C), dwpe (maxT,C) f32. C % 8 == 0, pointers 16-byte aligned.
 * Gradients: +=, in f32, in a fixed order: tokens are grouped on the host (encoder_group_tokens), so that each row of dwte has one owner.
 * Memory:    allocates nothing; the caller owns all buffers.
 * Tests:     dev/test/test_kernels_model.cu
 */
#ifndef LLMC_ENCODER_CUH
#define LLMC_ENCODER_CUH

#include "llmc/device.cuh"

template <class T>
static __global__ void encoder_forward_kernel1(T* out, const int* inp, const T* wte, const T* wpe, int N, int seq_len, int C) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= (size_t)N * C) { return; }
    int row = (int)(i / C), c = (int)(i % C);
    float a[8], b[8];
    load8(a, wte + (size_t)inp[row] * C + c);
    load8(b, wpe + (size_t)(row % seq_len) * C + c);
    for (int e = 0; e < 8; e++) { a[e] += b[e]; }
    store8(out + i, a);
}

// out (B,T,C) = wte[inp] + wpe. Every inp must be below the number of rows of wte (the data loader checks).
// Sequences that begin at a later position p: pass wpe + p * C; the newest token alone is B = 1, seq_len = 1.
template <class T>
static inline void encoder_forward(T* out, const int* inp, const T* wte, const T* wpe, int B, int seq_len, int C, cudaStream_t stream) {
    size_t n = (size_t)B * seq_len * C;
    launch<encoder_forward_kernel1<T>>(dim3(CEIL_DIV(n / 8, (size_t)256)), dim3(256), 0, stream, out, inp, wte, wpe, B * seq_len, seq_len, C);
}

// The positions of every distinct token of a micro-batch, grouped: group g is token[g] at positions order[start[g] .. start[g+1]), ascending.
// Host arrays: order (N), start (N+1), token (N); count (vocab_size + 1) is scratch. Returns the number of groups.
static inline int encoder_group_tokens(int* order, int* start, int* token, int* count, const int* inp, int N, int vocab_size) {
    memset(count, 0, sizeof(int) * (vocab_size + 1));
    for (int i = 0; i < N; i++) { count[inp[i] + 1]++; }
    int groups = 0;
    for (int v = 0; v < vocab_size; v++) {
        if (count[v + 1]) { start[groups] = count[v]; token[groups++] = v; }
        count[v + 1] += count[v];
    }
    start[groups] = N;
    for (int i = 0; i < N; i++) { order[count[inp[i]]++] = i; }  // count[v] is now where token v's next position goes
    return groups;
}

template <class T>
static __global__ void encoder_backward_wte_kernel1(float* dwte, const T* dout, const int* order, const int* start, const int* token, int C) {
    int c = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (c >= C) { return; }
    int group = blockIdx.x;
    float sum[8] = {0.0f};
    for (int j = start[group]; j < start[group + 1]; j++) {
        float g[8];
        load8(g, dout + (size_t)order[j] * C + c);
        for (int e = 0; e < 8; e++) { sum[e] += g[e]; }
    }
    float* row = dwte + (size_t)token[group] * C + c;
    float old[8];
    load8(old, row);
    for (int e = 0; e < 8; e++) { old[e] += sum[e]; }
    store8(row, old);
}

template <class T>
static __global__ void encoder_backward_wpe_kernel1(float* dwpe, const T* dout, int B, int seq_len, int C) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= (size_t)seq_len * C) { return; }
    float sum[8];
    load8(sum, dwpe + i);
    for (int b = 0; b < B; b++) {
        float g[8];
        load8(g, dout + (size_t)b * seq_len * C + i);
        for (int e = 0; e < 8; e++) { sum[e] += g[e]; }
    }
    store8(dwpe + i, sum);
}

// dwte (Vp,C), dwpe (maxT,C) f32 += gradients of dout (B,T,C). order, start, token: device copies of encoder_group_tokens' arrays.
template <class T>
static inline void encoder_backward(float* dwte, float* dwpe, const T* dout, const int* order, const int* start, const int* token, int groups,
                                    int B, int seq_len, int C, cudaStream_t stream) {
    launch<encoder_backward_wte_kernel1<T>>(dim3(groups, CEIL_DIV(C / 8, 32)), dim3(32), 0, stream, dwte, dout, order, start, token, C);
    launch<encoder_backward_wpe_kernel1<T>>(dim3(CEIL_DIV((size_t)seq_len * C / 8, (size_t)256)), dim3(256), 0, stream, dwpe, dout, B, seq_len, C);
}

#endif
