/* fused_classifier.cuh - softmax, cross-entropy loss and its gradient in one pass over a row of logits, in place
 *
 * What:      losses[r] += log(sum_v exp(z_v)) - z_target; z_v := (softmax(z)_v - [v == target]) * dloss for v < V; 0 for the padding V <= v < Vp.
 * Shapes:    logits (rows,Vp) T, Vp % 8 == 0, 16-byte aligned; targets (rows) i32 in [0,V), or NO_TARGET: such a row has no loss and gradient 0; losses (rows) f32.
 * Numerics:  f32 inside; the largest logit is subtracted first, so no logit overflows.
 * Design:    one block a row, 8 logits a thread and iteration; the block's size follows Vp alone (R3): one warp for bytes, 1,024 threads for GPT-2's
 *            vocabulary. write_dlogits false (validation) leaves the logits alone. The padding's gradient is written as 0, so padded rows of wte never move.
 * Tests:     dev/test/test_kernels_model.cu
 */
#ifndef LLMC_FUSED_CLASSIFIER_CUH
#define LLMC_FUSED_CLASSIFIER_CUH

#include "llmc/device.cuh"

#define NO_TARGET -1  // a row that only fills up a batch

template <class T>
static __global__ void __launch_bounds__(1024) fused_classifier_kernel1(T* logits, float* losses, const int* targets, float dloss, int V, int Vp, bool write_dlogits) {
    T* row = logits + (size_t)blockIdx.x * Vp;
    const int first = threadIdx.x * 8, stride = blockDim.x * 8;
    float top[8], z[8];
    for (int e = 0; e < 8; e++) { top[e] = -INFINITY; }
    for (int v = first; v < V; v += stride) {
        load8(z, row + v);
        for (int e = 0; e < 8; e++) { top[e] = fmaxf(top[e], v + e < V ? z[e] : -INFINITY); }
    }
    for (int e = 1; e < 8; e++) { top[0] = fmaxf(top[0], top[e]); }
    float highest = block_max(top[0]);
    float sum[8] = {0.0f};
    for (int v = first; v < V; v += stride) {
        load8(z, row + v);
        for (int e = 0; e < 8; e++) { sum[e] += v + e < V ? dev_expf(z[e] - highest) : 0.0f; }
    }
    for (int e = 1; e < 8; e++) { sum[0] += sum[e]; }
    float total = block_sum(sum[0]);
    int target = targets[blockIdx.x];
    if (threadIdx.x == 0 && target >= 0) { losses[blockIdx.x] += dev_logf(total) + (highest - to_float(row[target])); }
    if (!write_dlogits) { return; }
    __syncthreads();  // thread 0 has read the target's logit; now it may be overwritten
    float scale = target < 0 ? 0.0f : dloss / total;
    for (int v = first; v < Vp; v += stride) {
        load8(z, row + v);
        for (int e = 0; e < 8; e++) {
            float g = dev_expf(z[e] - highest) * scale - (v + e == target ? dloss : 0.0f);
            z[e] = v + e < V ? g : 0.0f;
        }
        store8(row + v, z);
    }
}

// See the header comment. dloss: the gradient of the loss of one token, 1 / (tokens of the whole optimizer step).
template <class T>
static inline void fused_classifier(T* logits, float* losses, const int* targets, float dloss, int rows, int V, int Vp, bool write_dlogits, cudaStream_t stream) {
    int threads = min(1024, ROUND_UP(CEIL_DIV(Vp, 8), WARP_SIZE));
    launch<fused_classifier_kernel1<T>>(dim3(rows), dim3(threads), 0, stream, logits, losses, targets, dloss, V, Vp, write_dlogits);
}

#endif
