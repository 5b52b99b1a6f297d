/* fp8_calibrate.cuh - measures BF16 tensors for a calibration: their range, and what each recipe would make of them in both formats
 *
 * What:      fp8_calibrator_measure quantizes a tensor by every recipe of RECIPE_TABLE with the kernels that training uses, into scratch, and lets them count
 *            and measure the noise; a kernel of its own counts exponents. The model itself runs in BF16 meanwhile.
 *            A recipe with a history keeps one over the batches: fp8_calibrator_end_batch is its optimizer step.
 * Numerics:  counts are integers (R3), noise is summed in double in an order that follows from the shapes.
 * Shapes:    x (rows, cols) bf16, rows and cols % 16 == 0, 16-byte aligned.
 * Memory:    codes in both orders and scales of the largest tensor; 2 KB a tensor.
 * Tests:     dev/test/test_fp8_calibrate.cu */
#ifndef LLMC_FP8_CALIBRATE_CUH
#define LLMC_FP8_CALIBRATE_CUH

#include "llmc/fp8_calibrate.h"
#include "llmc/fp8_quantize.cuh"

#define FP8_RANGE_BINS (FP8_EXPONENTS + 1)  // by exponent, then zeros

typedef struct {
    Fp8Recipe recipe[NUM_FP8_RECIPES][FP8_FORMATS];      // with x and dy in that format
    Fp8Scaling scaling[NUM_FP8_RECIPES][FP8_FORMATS];
    int layers, slots;                                   // training slots
    unsigned long long* bins;                            // device (slots, FP8_RANGE_BINS)
    unsigned* range;                                     // device (slots, 2): bits of the largest |x|; inverted bits of the smallest that is not zero
    uint8_t *k, *t;                                      // scratch
    void *k_scale, *t_scale;
} Fp8Calibrator;

// block 256: a thread 4 x 8 elements
static __global__ void fp8_range_kernel1(unsigned long long* bins, unsigned* range, const bf16* x, size_t n) {
    SHARED(unsigned, count, FP8_RANGE_BINS);
    for (int i = threadIdx.x; i < FP8_RANGE_BINS; i += 256) { count[i] = 0; }
    __syncthreads();
    unsigned most = 0, least = 0;
    for (int j = 0; j < 4; j++) {
        const size_t at = (size_t)blockIdx.x * (256 * 32) + (size_t)j * (256 * 8) + threadIdx.x * 8;
        if (at >= n) { continue; }
        float v[8];
        load8(v, x + at);
        for (int e = 0; e < 8; e++) {
            const unsigned bits = abs_bits(v[e]);
            most = max(most, bits);
            if (bits) { least = max(least, ~bits); }
            atomicAdd(count + (bits ? bits >> 23 : (unsigned)FP8_EXPONENTS), 1u);
        }
    }
    amax_record(range, most);
    amax_record(range + 1, least);
    __syncthreads();
    for (int i = threadIdx.x; i < FP8_RANGE_BINS; i += 256) { if (count[i]) { atomicAdd(bins + i, (unsigned long long)count[i]); } }
}

// largest: rows * cols of the largest tensor; blocks: its fp8_quantize_blocks; scale_bytes: of its largest scales. Waits for the device.
static inline void fp8_calibrator_init(Fp8Calibrator* c, int layers, size_t largest, size_t blocks, size_t scale_bytes) {
    c->layers = layers;
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        for (int f = 0; f < FP8_FORMATS; f++) {
            Fp8Recipe* recipe = &c->recipe[r][f];
            *recipe = fp8_recipes[r];
            recipe->x = recipe->dy = (Fp8Format)f;
            fp8_scaling_init(&c->scaling[r][f], recipe, layers);
            fp8_scaling_alloc_noise(&c->scaling[r][f], blocks);
            c->scaling[r][f].count_on = c->scaling[r][f].noise_on = true;
        }
    }
    c->slots = fp8_training_slots(&c->scaling[0][0]);
    cudaCheck(cudaMalloc((void**)&c->bins, (size_t)c->slots * FP8_RANGE_BINS * sizeof(unsigned long long)));
    cudaCheck(cudaMalloc((void**)&c->range, (size_t)c->slots * 2 * sizeof(unsigned)));
    cudaCheck(cudaMalloc((void**)&c->k, largest));
    cudaCheck(cudaMalloc((void**)&c->t, largest));
    cudaCheck(cudaMalloc(&c->k_scale, scale_bytes));
    cudaCheck(cudaMalloc(&c->t_scale, scale_bytes));
    cudaCheck(cudaMemset(c->bins, 0, (size_t)c->slots * FP8_RANGE_BINS * sizeof(unsigned long long)));
    cudaCheck(cudaMemset(c->range, 0, (size_t)c->slots * 2 * sizeof(unsigned)));
    cudaCheck(cudaDeviceSynchronize());
}
static inline void fp8_calibrator_free(Fp8Calibrator* c) {
    for (int r = 0; r < NUM_FP8_RECIPES; r++) { for (int f = 0; f < FP8_FORMATS; f++) { fp8_scaling_free(&c->scaling[r][f]); } }
    void* const device[] = {c->bins, c->range, c->k, c->t, c->k_scale, c->t_scale};
    for (void* p : device) { cudaCheck(cudaFree(p)); }
}
// Bytes of the largest scales that any recipe has for a tensor (rows, cols), in either order.
static inline size_t fp8_calibrator_scale_bytes(int rows, int cols) {
    size_t most = 16;
    for (int by = 0; by < NUM_FP8_GRANULARITIES; by++) {
        const size_t k = fp8_scale_bytes((Fp8Granularity)by, rows, cols), t = fp8_scale_bytes((Fp8Granularity)by, cols, rows);
        most = most < k ? k : most;
        most = most < t ? t : most;
    }
    return most;
}

// Before the tensors of a batch. Enqueues only.
static inline void fp8_calibrator_begin_batch(Fp8Calibrator* c, cudaStream_t stream) {
    for (int r = 0; r < NUM_FP8_RECIPES; r++) { for (int f = 0; f < FP8_FORMATS; f++) { fp8_scaling_begin_step(&c->scaling[r][f], stream); } }
}
// A tensor of one micro-step: role x, w or dy of a linear layer. Enqueues only.
static inline void fp8_calibrator_measure(Fp8Calibrator* c, Fp8Role role, int layer, int linear, const bf16* x, int rows, int cols, cudaStream_t stream) {
    const size_t n = (size_t)rows * cols;
    const int at = fp8_slot(&c->scaling[0][0], role, layer, linear);
    launch<fp8_range_kernel1>(dim3(CEIL_DIV(n, (size_t)(256 * 32))), dim3(256), 0, stream, c->bins + (size_t)at * FP8_RANGE_BINS, c->range + 2 * at, x, n);
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        for (int f = 0; f < FP8_FORMATS; f++) {
            if (!fp8_format_possible(role, (Fp8Format)f)) { continue; }
            Fp8Scaling* s = &c->scaling[r][f];
            cudaCheck(cudaMemsetAsync(s->amax + at, 0, sizeof(unsigned), stream));
            if (fp8_needs_amax(s, at)) { amax_reduce(s->amax + at, x, n, stream); }
            fp8_quantize(s, at, fp8_operand(s, at, c->k, c->t, c->k_scale, c->t_scale), x, rows, cols, NULL, NULL, false, stream);
        }
    }
}
// After them. reduce(amax_step, n): maximum over the ranks, enqueued (R4). Enqueues only.
template <class F>
static inline void fp8_calibrator_end_batch(Fp8Calibrator* c, cudaStream_t stream, F reduce) {
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        for (int f = 0; f < FP8_FORMATS; f++) {
            Fp8Scaling* s = &c->scaling[r][f];
            if (!s->settings.history) { continue; }
            const Fp8Role roles[] = {FP8_ROLE_X, FP8_ROLE_DY};
            for (Fp8Role role : roles) { memset(s->used + fp8_slot(s, role, 0, 0), 1, (size_t)s->layers * NUM_LINEARS); }  // also where this rank had no sequences
            reduce(s->amax_step, c->slots);
            fp8_scaling_end_step(s, stream);
        }
    }
}

// What this rank measured, by training slot. Waits for the device.
static inline std::vector<Fp8Measured> fp8_calibrator_read(const Fp8Calibrator* c) {
    cudaCheck(cudaDeviceSynchronize());
    std::vector<Fp8Measured> all(c->slots);
    unsigned long long* bins = (unsigned long long*)fp8_scaling_copy_array(c->bins, (size_t)c->slots * FP8_RANGE_BINS * sizeof(unsigned long long));
    unsigned* range = (unsigned*)fp8_scaling_copy_array(c->range, (size_t)c->slots * 2 * sizeof(unsigned));
    for (int i = 0; i < c->slots; i++) {
        memset((void*)&all[i], 0, sizeof(all[i]));
        all[i].amax_bits = range[2 * i];
        all[i].smallest_bits = range[2 * i + 1] ? ~range[2 * i + 1] : 0u;
        for (int e = 0; e < FP8_EXPONENTS; e++) { all[i].histogram[e] = (double)bins[(size_t)i * FP8_RANGE_BINS + e]; }
        all[i].zeros = (double)bins[(size_t)i * FP8_RANGE_BINS + FP8_EXPONENTS];
    }
    free(bins);
    free(range);
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        for (int f = 0; f < FP8_FORMATS; f++) {
            const Fp8Scaling* s = &c->scaling[r][f];
            Fp8ScalingHost h;
            fp8_scaling_copy(s, &h);
            for (int i = 0; i < c->slots; i++) {
                all[i].quality[r][f] = {h.noise[2 * i], h.noise[2 * i + 1], (double)h.counts[2 * i], (double)h.counts[2 * i + 1], (double)s->elements[i]};
            }
            fp8_scaling_host_free(&h);
        }
    }
    return all;
}

#endif
