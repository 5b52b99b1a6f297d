/* fp8_scaling.h - the scaling state of every quantized tensor
 *
 * A slot is one tensor in one role: the input x, the weight w or the output gradient dy of one linear layer; slot = (role * 4 + linear) * layers + layer.
 * The device arrays are indexed by slot. A fourth role holds the inputs of evaluation and sampling, so that they never touch training's state.
 *
 * Life of a slot in one use:   amax := 0  ->  producer records max|x| (bits)  ->  the quantize kernel derives scale and descale, writes codes,
 *                              counts, and folds the amax into amax_step  ->  the GEMM reads descale.
 * Weights live from optimizer step to optimizer step, x and dy from micro-step to micro-step.
 *
 * Invariants (checked by fp8_scaling_check on a host copy; a string names the first that does not hold):
 *   I1  scale is finite and positive, whatever the amax was (0, denormal, inf, NaN)
 *   I2  descale is 1/scale, correctly rounded, and a normal number
 *   I3  scale is what the rule of fp8_recipe.cuh gives for this amax and format
 *   I4  amax_step is at least the amax of the last use (a maximum over micro-steps, as bits)
 *   I5  counts never exceed the number of elements quantized since they were cleared
 *   I6  a slot that was never used has amax 0 and scale 1
 *   I7  evaluation changes no slot of the roles x, w, dy
 * R4: w scales are the maximum over ranks once an optimizer step; x and dy are local to rank and micro-step.
 * Saved with a checkpoint: amax, scale and amax_step of every slot; descale follows from scale.
 * Memory: fp8_scaling_init allocates 32 bytes a slot on the device; owned by the struct.
 * Tests: dev/test/test_kernels_fp8.cu
 */
#ifndef LLMC_FP8_SCALING_H
#define LLMC_FP8_SCALING_H

#include "llmc/fp8_recipe.cuh"

typedef enum { FP8_ROLE_X, FP8_ROLE_W, FP8_ROLE_DY, FP8_ROLE_EVAL_X, NUM_FP8_ROLES } Fp8Role;
typedef enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, NUM_LINEARS } Linear;
static const char* const fp8_role_names[NUM_FP8_ROLES] = {"x", "w", "dy", "eval_x"};
static const char* const linear_names[NUM_LINEARS] = {"qkv", "attproj", "fc", "fcproj"};

typedef struct {
    const Fp8Recipe* recipe;
    int layers, count;          // count = NUM_FP8_ROLES * layers * NUM_LINEARS slots
    // device arrays (count)
    unsigned* amax;             // bits of max|x| of the current use
    unsigned* amax_step;        // bits of the maximum over the micro-steps since fp8_scaling_begin_step
    float *scale, *descale;
    unsigned long long* counts; // [2 * slot] saturated, [2 * slot + 1] flushed to zero, since fp8_scaling_clear_counts
    bool count_on;              // the quantize kernels count
} Fp8Scaling;

static inline int fp8_slot(const Fp8Scaling* s, Fp8Role role, int layer, int linear) { return ((int)role * NUM_LINEARS + linear) * s->layers + layer; }
static inline Fp8Role fp8_slot_role(const Fp8Scaling* s, int slot) { return (Fp8Role)(slot / s->layers / NUM_LINEARS); }
static inline Fp8Format fp8_role_format(const Fp8Recipe* r, Fp8Role role) { return role == FP8_ROLE_W ? r->w : role == FP8_ROLE_DY ? r->dy : r->x; }

// "l3.fc.x": layer 3, linear fc, its input. Returns a pointer to the caller's buffer.
static inline const char* fp8_slot_name(const Fp8Scaling* s, int slot, char buffer[48]) {
    snprintf(buffer, 48, "l%d.%s.%s", slot % s->layers, linear_names[slot / s->layers % NUM_LINEARS], fp8_role_names[fp8_slot_role(s, slot)]);
    return buffer;
}

static inline void fp8_scaling_init(Fp8Scaling* s, const Fp8Recipe* recipe, int layers) {
    memset(s, 0, sizeof(*s));
    s->recipe = recipe;
    s->layers = layers;
    s->count = NUM_FP8_ROLES * layers * NUM_LINEARS;
    cudaCheck(cudaMalloc((void**)&s->amax, s->count * sizeof(unsigned)));
    cudaCheck(cudaMalloc((void**)&s->amax_step, s->count * sizeof(unsigned)));
    cudaCheck(cudaMalloc((void**)&s->scale, s->count * sizeof(float)));
    cudaCheck(cudaMalloc((void**)&s->descale, s->count * sizeof(float)));
    cudaCheck(cudaMalloc((void**)&s->counts, s->count * 2 * sizeof(unsigned long long)));
    cudaCheck(cudaMemset(s->amax, 0, s->count * sizeof(unsigned)));
    cudaCheck(cudaMemset(s->amax_step, 0, s->count * sizeof(unsigned)));
    cudaCheck(cudaMemset(s->counts, 0, s->count * 2 * sizeof(unsigned long long)));
    float* ones = (float*)mallocCheck(s->count * sizeof(float));
    for (int i = 0; i < s->count; i++) { ones[i] = 1.0f; }
    cudaCheck(cudaMemcpy(s->scale, ones, s->count * sizeof(float), cudaMemcpyHostToDevice));
    cudaCheck(cudaMemcpy(s->descale, ones, s->count * sizeof(float), cudaMemcpyHostToDevice));
    cudaCheck(cudaDeviceSynchronize());  // that was the default stream, for which the program's own stream does not wait
    free(ones);
}

static inline void fp8_scaling_free(Fp8Scaling* s) {
    cudaCheck(cudaFree(s->amax));
    cudaCheck(cudaFree(s->amax_step));
    cudaCheck(cudaFree(s->scale));
    cudaCheck(cudaFree(s->descale));
    cudaCheck(cudaFree(s->counts));
    memset(s, 0, sizeof(*s));
}

static inline size_t fp8_scaling_bytes(int layers) { return (size_t)NUM_FP8_ROLES * layers * NUM_LINEARS * (4 * 4 + 2 * 8); }

// Before a producer records: amax of all slots of a role := 0.
static inline void fp8_scaling_begin(Fp8Scaling* s, Fp8Role role, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(s->amax + fp8_slot(s, role, 0, 0), 0, (size_t)s->layers * NUM_LINEARS * sizeof(unsigned), stream));
}
// At micro-step 0 of an optimizer step: amax_step of x and dy := 0. (That of w is written once an optimizer step, by the quantize kernel after it.)
static inline void fp8_scaling_begin_step(Fp8Scaling* s, cudaStream_t stream) {
    size_t bytes = (size_t)s->layers * NUM_LINEARS * sizeof(unsigned);
    cudaCheck(cudaMemsetAsync(s->amax_step + fp8_slot(s, FP8_ROLE_X, 0, 0), 0, bytes, stream));
    cudaCheck(cudaMemsetAsync(s->amax_step + fp8_slot(s, FP8_ROLE_DY, 0, 0), 0, bytes, stream));
}
static inline void fp8_scaling_clear_counts(Fp8Scaling* s, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(s->counts, 0, s->count * 2 * sizeof(unsigned long long), stream));
}

// ----------------------------------------------------------------------------
// host copies: check, report, save

typedef struct { unsigned *amax, *amax_step; float *scale, *descale; unsigned long long* counts; } Fp8ScalingHost;

// A copy of a device array, for the caller to free.
static inline void* fp8_scaling_copy_array(const void* device, size_t bytes) {
    void* host = mallocCheck(bytes);
    memset(host, 0, bytes);  // compilers do not know that the copy fills it
    cudaCheck(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    return host;
}
// Waits for the device: its streams do not wait for each other.
static inline void fp8_scaling_copy(const Fp8Scaling* s, Fp8ScalingHost* h) {
    cudaCheck(cudaDeviceSynchronize());
    h->amax = (unsigned*)fp8_scaling_copy_array(s->amax, s->count * sizeof(unsigned));
    h->amax_step = (unsigned*)fp8_scaling_copy_array(s->amax_step, s->count * sizeof(unsigned));
    h->scale = (float*)fp8_scaling_copy_array(s->scale, s->count * sizeof(float));
    h->descale = (float*)fp8_scaling_copy_array(s->descale, s->count * sizeof(float));
    h->counts = (unsigned long long*)fp8_scaling_copy_array(s->counts, s->count * 2 * sizeof(unsigned long long));
}
static inline void fp8_scaling_host_free(Fp8ScalingHost* h) {
    free(h->amax); free(h->amax_step); free(h->scale); free(h->descale); free(h->counts);
}

// Checks I1..I6 for slots [first, last). elements: upper bound of the elements quantized per slot since the counts were cleared (0: I5 is not checked).
// Returns NULL, or a message in buffer that names the invariant, the slot and the values.
static inline const char* fp8_scaling_check(const Fp8Scaling* s, const Fp8ScalingHost* h, int first, int last, unsigned long long elements, char buffer[256]) {
    for (int i = first; i < last; i++) {
        char name[48];
        fp8_slot_name(s, i, name);
        float scale = h->scale[i], descale = h->descale[i];
        const char* broken = NULL;
        Fp8Role role = fp8_slot_role(s, i);
        bool used = h->amax_step[i] != 0 || h->amax[i] != 0;
        if (!(scale > 0.0f && scale < INFINITY)) { broken = "I1 scale finite and positive"; }
        else if (descale != 1.0f / scale || !(descale >= 1.1754944e-38f)) { broken = "I2 descale = 1/scale, normal"; }
        else if (used && scale != fp8_scale_from_amax(h->amax[i], FP8_MAX(fp8_role_format(s->recipe, role)))) { broken = "I3 scale follows the amax"; }
        else if (h->amax_step[i] < h->amax[i]) { broken = "I4 amax_step >= amax"; }
        else if (elements && (h->counts[2 * i] > elements || h->counts[2 * i + 1] > elements)) { broken = "I5 counts <= elements"; }
        else if (!used && scale != 1.0f) { broken = "I6 unused slot has scale 1"; }
        if (broken) {
            snprintf(buffer, 256, "%s: invariant %s: amax bits %08x, amax_step bits %08x, scale %g, descale %g, saturated %llu, flushed %llu", name, broken,
                     h->amax[i], h->amax_step[i], scale, descale, h->counts[2 * i], h->counts[2 * i + 1]);
            return buffer;
        }
    }
    return NULL;
}

// The slot in which a step's first inf or NaN shows, or -1: weights, then inputs from the first layer up, then output gradients from the last layer down.
// amax_step: host copy of the device array. Evaluation's slots are not looked at.
static inline int fp8_scaling_find_nonfinite(const Fp8Scaling* s, const unsigned* amax_step) {
    const Fp8Role roles[3] = {FP8_ROLE_W, FP8_ROLE_X, FP8_ROLE_DY};
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < s->layers * NUM_LINEARS; i++) {
            int at = roles[r] == FP8_ROLE_DY ? s->layers * NUM_LINEARS - 1 - i : i;
            int slot = fp8_slot(s, roles[r], at / NUM_LINEARS, at % NUM_LINEARS);
            if (amax_step[slot] >= 0x7f800000u) { return slot; }
        }
    }
    return -1;
}

// A table of all training slots. elements (count): how many elements each slot quantized while counting (for the percentages).
static inline void fp8_scaling_print(FILE* out, const Fp8Scaling* s, const Fp8ScalingHost* h, const double* elements) {
    fprintf(out, "fp8 tensor          format      amax         scale  saturated %%  flushed %%\n");
    for (int i = 0; i < fp8_slot(s, FP8_ROLE_EVAL_X, 0, 0); i++) {
        char name[48];
        float amax;
        memcpy(&amax, &h->amax_step[i], 4);
        double n = elements[i] > 0 ? elements[i] : 1.0;
        fprintf(out, "%-20s %s %12.4e %12.4e %12.5f %10.5f\n", fp8_slot_name(s, i, name),
                fp8_role_format(s->recipe, fp8_slot_role(s, i)) == FP8_E4M3 ? "E4M3" : "E5M2",
                amax, h->scale[i], 100.0 * h->counts[2 * i] / n, 100.0 * h->counts[2 * i + 1] / n);
    }
}

#endif
