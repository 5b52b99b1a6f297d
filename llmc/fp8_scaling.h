/* fp8_scaling.h - the scaling state of every quantized tensor
 *
 * A slot is one tensor in one role: the input x, the weight w or the output gradient dy of one linear layer; slot = role * tensors + linear * layers + layer.
 * After the linear layers of all layers comes the head, if it is quantized: layer 0, LINEAR_HEAD.
 * A fourth role holds the inputs of evaluation and sampling, so that they never touch training's state. Device arrays are indexed by slot.
 * One use: amax := 0 (begin) -> a producer or the quantize kernel records max|x| (bits) -> scale, descale, codes, counts, amax_step -> the GEMM reads descale.
 * Weights live from optimizer step to optimizer step, x and dy from micro-step to micro-step. Recipes that scale rows or blocks keep scales with the codes:
 * a slot then has its amax and its counts, and scale 1.
 * Recipes with a history: end_step pushes each used slot's amax_step into its history (newest first) and makes the scale of the next step from that; a slot
 * whose history is empty is scaled by its own amax (R5). Evaluation uses the scale of the training input, and its own amax while there is none.
 * Invariants (fp8_scaling_check, fp8_scaling_check_moved, on host copies; a string names the first that does not hold):
 *   I1  scale is finite and positive, whatever the amax was (0, denormal, inf, NaN)
 *   I2  descale is 1/scale, correctly rounded, and a normal number
 *   I3  scale is what the rule of fp8_recipe.cuh gives for this amax and format; 1 where scales lie with the codes
 *   I4  amax_step is at least the amax of the last use (a maximum over micro-steps, as bits)
 *   I5  counts never exceed the number of elements quantized since they were cleared
 *   I6  a slot that was never used has amax 0 and scale 1
 *   I7  evaluation changes no slot of the roles x, w, dy
 *   I8  a history holds amaxes, then empty entries; it moves once an optimizer step, by that step's amax_step, and only if the slot was used
 *   I9  a slot with a history has the scale that its history gives (if that is 0, inf or NaN: any)
 * R4: max over ranks: of w's amax once an optimizer step; of all amax_step before end_step, one contiguous array. Else x and dy are local to rank and micro-step.
 * Saved with a checkpoint: amax, scale, amax_step, history of every slot; descale follows. Tests: dev/test/test_fp8_scaling.cu */
#ifndef LLMC_FP8_SCALING_H
#define LLMC_FP8_SCALING_H

#include "llmc/fp8_recipe.cuh"

typedef enum { FP8_ROLE_X, FP8_ROLE_W, FP8_ROLE_DY, FP8_ROLE_EVAL_X, NUM_FP8_ROLES } Fp8Role;
typedef enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, NUM_LINEARS, LINEAR_HEAD = NUM_LINEARS } Linear;  // NUM_LINEARS: of a layer
static const char* const fp8_role_names[NUM_FP8_ROLES] = {"x", "w", "dy", "eval_x"};
static const char* const linear_names[NUM_LINEARS + 1] = {"qkv", "attproj", "fc", "fcproj", "head"};

#define FP8_EMPTY 0xffffffffu  // a history's entry that no step has filled; above the bits of every amax

typedef struct {
    const Fp8Recipe* recipe;
    Fp8Settings settings;
    int layers, count;          // count = NUM_FP8_ROLES * fp8_tensors slots
    // device arrays (count)
    unsigned* amax;             // bits of max|x| of the current use
    unsigned* amax_step;        // bits of the maximum over the micro-steps since fp8_scaling_begin_step
    float *scale, *descale;
    unsigned long long* counts; // [2 * slot] saturated, [2 * slot + 1] flushed to zero, since fp8_scaling_clear_counts
    bool count_on;              // the quantize kernels count
    unsigned* history;          // (training slots, settings.history), newest first; NULL without a history
    double *noise, *noise_partial;  // [2 * slot] sum of x^2, [2 * slot + 1] of (x - dequantized)^2; scratch. NULL until fp8_scaling_alloc_noise
    size_t noise_blocks;        // for how many thread blocks there is scratch
    bool noise_on;              // quantizing is followed by measuring
    unsigned long long traffic; // bytes of inputs and output gradients of layers, not of the head, read and written only because they become FP8 (fp8_count_traffic); the caller clears it
    // host arrays (count)
    unsigned char* used;        // training slots: quantized in this optimizer step
    unsigned char* ready;       // training slots: the history is not empty
    unsigned long long* elements;  // quantized while counting, since fp8_scaling_clear_counts; twice where the two orders are two quantizations
    unsigned char* format;      // Fp8Format: the settings' format of the role, unless set before the first use (an x and its dy may not both be E5M2)
    unsigned char* in_bf16;     // [linear * layers + layer] 1: this linear layer stays in BF16. The caller asks (fp8_linear_on), nothing here does
} Fp8Scaling;

static inline int fp8_tensors(const Fp8Scaling* s) { return s->layers * NUM_LINEARS + s->settings.head; }  // of a role
static inline int fp8_slot(const Fp8Scaling* s, Fp8Role role, int layer, int linear) { return (int)role * fp8_tensors(s) + linear * s->layers + layer; }
static inline Fp8Role fp8_slot_role(const Fp8Scaling* s, int slot) { return (Fp8Role)(slot / fp8_tensors(s)); }
static inline int fp8_training_slots(const Fp8Scaling* s) { return fp8_slot(s, FP8_ROLE_EVAL_X, 0, 0); }  // they come first
template <class R> static inline Fp8Format fp8_role_format(const R* r, Fp8Role role) { return role == FP8_ROLE_W ? r->w : role == FP8_ROLE_DY ? r->dy : r->x; }  // of a recipe or settings
static inline Fp8Granularity fp8_role_granularity(const Fp8Recipe* r, Fp8Role role) { return role == FP8_ROLE_W ? r->by_w : role == FP8_ROLE_DY ? r->by_dy : r->by_x; }
static inline Fp8Format fp8_slot_format(const Fp8Scaling* s, int slot) { return (Fp8Format)s->format[slot]; }
static inline Fp8Granularity fp8_slot_granularity(const Fp8Scaling* s, int slot) { return fp8_role_granularity(s->recipe, fp8_slot_role(s, slot)); }
static inline bool fp8_linear_on(const Fp8Scaling* s, int layer, int linear) { return (linear < NUM_LINEARS || s->settings.head) && !s->in_bf16[linear * s->layers + layer]; }

// The slot whose scale is used for this one: itself, or for evaluation the training input, once that has a history.
static inline int fp8_scale_slot(const Fp8Scaling* s, int slot) {
    const int training = slot - fp8_training_slots(s);  // roles x and eval_x have the same order
    return s->settings.history && training >= 0 && s->ready[training] ? training : slot;
}
// Must a producer have recorded the amax before this slot is quantized (a pass of its own)? Otherwise it is recorded on the way.
static inline bool fp8_needs_amax(const Fp8Scaling* s, int slot) {
    return fp8_slot_granularity(s, slot) == FP8_BY_TENSOR && !(s->settings.history && s->ready[fp8_scale_slot(s, slot)]);
}

// "l3.fc.x": layer 3, linear fc, its input; "head.x". Returns a pointer to the caller's buffer.
static inline const char* fp8_slot_name(const Fp8Scaling* s, int slot, char buffer[48]) {
    const int tensor = slot % fp8_tensors(s), linear = tensor / s->layers;
    int n = linear == LINEAR_HEAD ? 0 : snprintf(buffer, 48, "l%d.", tensor % s->layers);
    snprintf(buffer + n, 48 - n, "%s.%s", linear_names[linear], fp8_role_names[fp8_slot_role(s, slot)]);
    return buffer;
}
// "fc of layer 3", "the head": tensor counts within a role.
static inline const char* fp8_linear_text(const Fp8Scaling* s, int tensor, char buffer[48]) {
    if (tensor / s->layers == LINEAR_HEAD) { snprintf(buffer, 48, "the head"); } else { snprintf(buffer, 48, "%s of layer %d", linear_names[tensor / s->layers], tensor % s->layers); }
    return buffer;
}

// ----------------------------------------------------------------------------
// memory

// Device bytes without fp8_scaling_alloc_noise.
static inline size_t fp8_scaling_bytes(const Fp8Settings* f, int layers) {
    const size_t slots = (size_t)layers * NUM_LINEARS + f->head;
    return NUM_FP8_ROLES * slots * (4 * 4 + 2 * 8) + (NUM_FP8_ROLES - 1) * slots * f->history * sizeof(unsigned);
}
static inline void fp8_scaling_init(Fp8Scaling* s, const Fp8Settings* settings, int layers) {
    memset(s, 0, sizeof(*s));
    s->recipe = settings->recipe;
    s->settings = *settings;
    s->layers = layers;
    s->count = NUM_FP8_ROLES * fp8_tensors(s);
    const size_t n = s->count, entries = (size_t)fp8_training_slots(s) * settings->history;
    cudaCheck(cudaMalloc((void**)&s->amax, n * sizeof(unsigned)));
    cudaCheck(cudaMalloc((void**)&s->amax_step, n * sizeof(unsigned)));
    cudaCheck(cudaMalloc((void**)&s->scale, n * sizeof(float)));
    cudaCheck(cudaMalloc((void**)&s->descale, n * sizeof(float)));
    cudaCheck(cudaMalloc((void**)&s->counts, n * 2 * sizeof(unsigned long long)));
    cudaCheck(cudaMemset(s->amax, 0, n * sizeof(unsigned)));
    cudaCheck(cudaMemset(s->amax_step, 0, n * sizeof(unsigned)));
    cudaCheck(cudaMemset(s->counts, 0, n * 2 * sizeof(unsigned long long)));
    if (entries) {
        cudaCheck(cudaMalloc((void**)&s->history, entries * sizeof(unsigned)));
        cudaCheck(cudaMemset(s->history, 0xff, entries * sizeof(unsigned)));  // FP8_EMPTY
    }
    s->used = (unsigned char*)mallocCheck(n);
    s->ready = (unsigned char*)mallocCheck(n);
    s->in_bf16 = (unsigned char*)mallocCheck(n);
    s->format = (unsigned char*)mallocCheck(n);
    for (int i = 0; i < s->count; i++) { s->format[i] = (unsigned char)fp8_role_format(&s->settings, fp8_slot_role(s, i)); }
    s->elements = (unsigned long long*)mallocCheck(n * sizeof(unsigned long long));
    memset(s->used, 0, n);
    memset(s->ready, 0, n);
    memset(s->in_bf16, 0, n);
    memset(s->elements, 0, n * sizeof(unsigned long long));
    float* ones = (float*)mallocCheck(n * sizeof(float));
    for (size_t i = 0; i < n; i++) { ones[i] = 1.0f; }
    cudaCheck(cudaMemcpy(s->scale, ones, n * sizeof(float), cudaMemcpyHostToDevice));
    cudaCheck(cudaMemcpy(s->descale, ones, n * sizeof(float), cudaMemcpyHostToDevice));
    cudaCheck(cudaDeviceSynchronize());  // that was the default stream, for which the program's own stream does not wait
    free(ones);
}
static inline void fp8_scaling_init(Fp8Scaling* s, const Fp8Recipe* recipe, int layers) {
    const Fp8Settings settings = fp8_settings(recipe);
    fp8_scaling_init(s, &settings, layers);
}
// Room to measure quantization noise of tensors of up to so many thread blocks (fp8_quantize_blocks). Waits for the device.
static inline void fp8_scaling_alloc_noise(Fp8Scaling* s, size_t blocks) {
    cudaCheck(cudaMalloc((void**)&s->noise, s->count * 2 * sizeof(double)));
    cudaCheck(cudaMalloc((void**)&s->noise_partial, blocks * 2 * sizeof(double)));
    cudaCheck(cudaMemset(s->noise, 0, s->count * 2 * sizeof(double)));
    cudaCheck(cudaDeviceSynchronize());
    s->noise_blocks = blocks;
}
static inline void fp8_scaling_free(Fp8Scaling* s) {
    void* const device[] = {s->amax, s->amax_step, s->scale, s->descale, s->counts, s->history, s->noise, s->noise_partial};
    for (void* p : device) { cudaCheck(cudaFree(p)); }
    free(s->used); free(s->ready); free(s->in_bf16); free(s->format); free(s->elements);
    memset(s, 0, sizeof(*s));
}

// ----------------------------------------------------------------------------
// the course of a step

// Before a producer records: amax of all slots of a role := 0.
static inline void fp8_scaling_begin(Fp8Scaling* s, Fp8Role role, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(s->amax + fp8_slot(s, role, 0, 0), 0, fp8_tensors(s) * sizeof(unsigned), stream));
}
// At micro-step 0 of an optimizer step: amax_step of x and dy := 0, none of them was used.
static inline void fp8_scaling_begin_step(Fp8Scaling* s, cudaStream_t stream) {
    const size_t n = fp8_tensors(s);
    const Fp8Role roles[] = {FP8_ROLE_X, FP8_ROLE_DY};
    for (Fp8Role role : roles) {
        cudaCheck(cudaMemsetAsync(s->amax_step + fp8_slot(s, role, 0, 0), 0, n * sizeof(unsigned), stream));
        memset(s->used + fp8_slot(s, role, 0, 0), 0, n);
    }
}
// Before the weights are quantized anew (so after end_step): their amax and amax_step := 0.
static inline void fp8_scaling_begin_weights(Fp8Scaling* s, cudaStream_t stream) {
    fp8_scaling_begin(s, FP8_ROLE_W, stream);
    cudaCheck(cudaMemsetAsync(s->amax_step + fp8_slot(s, FP8_ROLE_W, 0, 0), 0, fp8_tensors(s) * sizeof(unsigned), stream));
}
static inline void fp8_scaling_clear_counts(Fp8Scaling* s, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(s->counts, 0, s->count * 2 * sizeof(unsigned long long), stream));
    if (s->noise) { cudaCheck(cudaMemsetAsync(s->noise, 0, s->count * 2 * sizeof(double), stream)); }
    memset(s->elements, 0, s->count * sizeof(unsigned long long));
}

#define FP8_PUSH_BLOCK 128
typedef struct { unsigned bits[32]; } Fp8SlotMask;  // 1,024 slots

// slots first .. first + 1023: one thread a slot
static __global__ void fp8_push_history_kernel1(Fp8Settings f, Fp8SlotMask mask, Fp8SlotMask e5m2, unsigned* history, const unsigned* amax_step, float* scale, float* descale,
                                                int first, int last) {
    const int i = blockIdx.x * FP8_PUSH_BLOCK + threadIdx.x, slot = first + i;
    if (slot >= last || !(mask.bits[i / 32] >> (i % 32) & 1u)) { return; }
    unsigned* h = history + (size_t)slot * f.history;
    const unsigned now = amax_step[slot];
    unsigned most = now;
    for (int k = f.history - 1; k > 0; k--) {
        h[k] = h[k - 1];
        if (h[k] != FP8_EMPTY) { most = max(most, h[k]); }
    }
    h[0] = now;
    const Fp8Format format = e5m2.bits[i / 32] >> (i % 32) & 1u ? FP8_E5M2 : FP8_E4M3;
    const float made = fp8_scale_from_history(f.most_recent ? now : most, FP8_MAX(format), f.margin, scale[slot]);
    scale[slot] = made;
    descale[slot] = 1.0f / made;
}
// At the end of an optimizer step that counts (not of one that is skipped), after the maximum of amax_step over all ranks was taken, before the weights change:
// histories of the slots that were used move, scales of the next step are made. Without a history: nothing. Enqueues only.
static inline void fp8_scaling_end_step(Fp8Scaling* s, cudaStream_t stream) {
    if (!s->settings.history) { return; }
    const int n = fp8_training_slots(s), size = 32 * (int)(sizeof(Fp8SlotMask) / sizeof(unsigned));
    for (int first = 0; first < n; first += size) {
        Fp8SlotMask mask, e5m2;
        memset(&mask, 0, sizeof(mask));
        memset(&e5m2, 0, sizeof(e5m2));
        const int here = n - first < size ? n - first : size;
        for (int i = 0; i < here; i++) {
            mask.bits[i / 32] |= (unsigned)(s->used[first + i] != 0) << (i % 32);
            e5m2.bits[i / 32] |= (unsigned)(s->format[first + i] == FP8_E5M2) << (i % 32);
        }
        launch<fp8_push_history_kernel1>(dim3(CEIL_DIV(here, FP8_PUSH_BLOCK)), dim3(FP8_PUSH_BLOCK), 0, stream, s->settings, mask, e5m2, s->history,
                                         (const unsigned*)s->amax_step, s->scale, s->descale, first, n);
    }
    for (int i = 0; i < n; i++) { s->ready[i] |= s->used[i]; }
    memset(s->used, 0, n);
}

// Keeps a linear layer in BF16 from now on, or takes it back into FP8: its slots become what they were before their first use.
static inline void fp8_scaling_switch(Fp8Scaling* s, int layer, int linear, bool in_bf16, cudaStream_t stream) {
    static const float one = 1.0f;
    for (int role = 0; role < NUM_FP8_ROLES; role++) {
        const int slot = fp8_slot(s, (Fp8Role)role, layer, linear);
        cudaCheck(cudaMemsetAsync(s->amax + slot, 0, sizeof(unsigned), stream));
        cudaCheck(cudaMemsetAsync(s->amax_step + slot, 0, sizeof(unsigned), stream));
        cudaCheck(cudaMemcpyAsync(s->scale + slot, &one, sizeof(one), cudaMemcpyHostToDevice, stream));
        cudaCheck(cudaMemcpyAsync(s->descale + slot, &one, sizeof(one), cudaMemcpyHostToDevice, stream));
        if (s->history && role != FP8_ROLE_EVAL_X) {
            cudaCheck(cudaMemsetAsync(s->history + (size_t)slot * s->settings.history, 0xff, s->settings.history * sizeof(unsigned), stream));
        }
        s->used[slot] = s->ready[slot] = 0;
    }
    s->in_bf16[linear * s->layers + layer] = in_bf16;
}

static inline bool fp8_counts_traffic(const Fp8Scaling* s, int slot) {
    const Fp8Role role = fp8_slot_role(s, slot);
    return (role == FP8_ROLE_X || role == FP8_ROLE_DY) && slot % fp8_tensors(s) < s->layers * NUM_LINEARS;
}
// What a Sink needs to write the operand of a slot (rows, cols): for the quantize kernel and for kernels that produce and quantize at once. Marks the slot as
// used. again: the tensor was quantized before in this micro-step (a recompute level): with the scale of then, and nothing is recorded or counted; what comes may
// differ a little from what was there (activations kept in FP8).
static inline Fp8SinkParams fp8_sink_params(Fp8Scaling* s, int slot, Fp8Operand out, int rows, int cols, bool again) {
    const int scaled = fp8_scale_slot(s, slot);
    const bool recorded = scaled == slot && !again;  // evaluation with training's scale leaves no trace
    const Fp8Granularity by = fp8_slot_granularity(s, slot);
    require(rows % FP8_TILE == 0 && cols % FP8_TILE == 0, "sizes of FP8 tensors must be multiples of 16", "cannot quantize a %d x %d tensor to FP8", rows, cols);
    if (by != FP8_BY_TENSOR) { assert((!out.k || out.k_scale) && (!out.t || out.t_scale)); }
    Fp8SinkParams p = {out, rows, cols, recorded ? s->amax + slot : NULL, recorded ? s->amax_step + slot : NULL, s->scale + scaled, s->descale + scaled,
                       !again && fp8_needs_amax(s, slot), s->settings.powers_of_two, s->count_on && !again ? s->counts + 2 * slot : NULL};
    if (!again && (s->count_on || s->noise_on)) {
        const int orders = by == FP8_BY_TENSOR || by == FP8_BY_BLK128 ? 1 : (out.k != NULL) + (out.t != NULL);
        s->elements[slot] += (unsigned long long)rows * cols * orders;
    }
    if (fp8_counts_traffic(s, slot)) { s->traffic += (unsigned long long)rows * cols * ((out.k != NULL) + (out.t != NULL)); }
    s->used[slot] = 1;
    return p;
}
// Passes over a BF16 tensor of n elements for the sake of a slot: to take its amax, or to quantize what a producer wrote. A pass that quantizes (the first one)
// implies that the producer wrote it for nobody else. Scales are not counted, and a producer's own reading is not either.
static inline void fp8_count_traffic(Fp8Scaling* s, int slot, size_t n, int passes) {
    if (fp8_counts_traffic(s, slot)) { s->traffic += (unsigned long long)n * sizeof(bf16) * passes; }
}
// An operand whose scales lie where the recipe has them: with one scale a tensor that is the slot's descale, whatever is given.
static inline Fp8Operand fp8_operand(const Fp8Scaling* s, int slot, uint8_t* k, uint8_t* t, void* k_scale, void* t_scale) {
    float* descale = s->descale + fp8_scale_slot(s, slot);
    return fp8_slot_granularity(s, slot) == FP8_BY_TENSOR ? Fp8Operand{k, t, descale, descale} : Fp8Operand{k, t, k_scale, t_scale};
}

// ----------------------------------------------------------------------------
// host copies: check, report, save

typedef struct { unsigned *amax, *amax_step; float *scale, *descale; unsigned long long* counts; unsigned* history; double* noise; } Fp8ScalingHost;  // history, noise: NULL as in the state

// A copy of a device array, for the caller to free.
static inline void* fp8_scaling_copy_array(const void* device, size_t bytes) {
    if (!device) { return NULL; }
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
    h->history = (unsigned*)fp8_scaling_copy_array(s->history, (size_t)fp8_training_slots(s) * s->settings.history * sizeof(unsigned));
    h->noise = (double*)fp8_scaling_copy_array(s->noise, s->count * 2 * sizeof(double));
}
static inline void fp8_scaling_host_free(Fp8ScalingHost* h) {
    free(h->amax); free(h->amax_step); free(h->scale); free(h->descale); free(h->counts); free(h->history); free(h->noise);
}

// The amax that a history gives its scale; FP8_EMPTY: it is empty.
static inline unsigned fp8_history_amax(const Fp8Settings* f, const unsigned* history) {
    unsigned most = history[0];
    for (int k = 1; k < f->history && !f->most_recent && history[k] != FP8_EMPTY; k++) { most = history[k] > most ? history[k] : most; }
    return most;
}

// Puts back what was saved: arrays (count) as in a host copy of a state of as many layers; history (training slots, length), whose newest entries are kept if
// the length was another one; NULL, 0: there was none. A scale that a history gives is made from it again: the format, or the margin, may be another one now.
// The weights are quantized again after it. Waits for the device.
static inline void fp8_scaling_restore(Fp8Scaling* s, const unsigned* amax, const unsigned* amax_step, const float* scale, const unsigned* history, int length) {
    float *made = (float*)mallocCheck(s->count * sizeof(float)), *descale = (float*)mallocCheck(s->count * sizeof(float));
    memcpy(made, scale, s->count * sizeof(float));
    cudaCheck(cudaDeviceSynchronize());
    cudaCheck(cudaMemcpy(s->amax, amax, s->count * sizeof(unsigned), cudaMemcpyHostToDevice));
    cudaCheck(cudaMemcpy(s->amax_step, amax_step, s->count * sizeof(unsigned), cudaMemcpyHostToDevice));
    const int n = fp8_training_slots(s), H = s->settings.history, kept = length < H ? length : H;
    if (H) {
        unsigned* h = (unsigned*)mallocCheck((size_t)n * H * sizeof(unsigned));
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < H; k++) { h[(size_t)i * H + k] = k < kept ? history[(size_t)i * length + k] : FP8_EMPTY; }
            const unsigned most = fp8_history_amax(&s->settings, h + (size_t)i * H);
            s->ready[i] = most != FP8_EMPTY;
            if (s->ready[i]) { made[i] = fp8_scale_from_history(most, FP8_MAX(fp8_slot_format(s, i)), s->settings.margin, made[i]); }
        }
        cudaCheck(cudaMemcpy(s->history, h, (size_t)n * H * sizeof(unsigned), cudaMemcpyHostToDevice));
        free(h);
    }
    for (int i = 0; i < s->count; i++) {
        if (fp8_slot_granularity(s, i) != FP8_BY_TENSOR) { made[i] = 1.0f; }  // another recipe wrote the checkpoint
        descale[i] = 1.0f / made[i];
    }
    cudaCheck(cudaMemcpy(s->scale, made, s->count * sizeof(float), cudaMemcpyHostToDevice));
    cudaCheck(cudaMemcpy(s->descale, descale, s->count * sizeof(float), cudaMemcpyHostToDevice));
    cudaCheck(cudaDeviceSynchronize());
    free(made);
    free(descale);
}

// Checks I1..I6, I8 and I9 for slots [first, last), after a step's last use of them. elements: upper bound of the elements quantized per slot since the counts
// were cleared (0: I5 is not checked). Returns NULL, or a message in buffer that names the invariant, the slot and the values.
static inline const char* fp8_scaling_check(const Fp8Scaling* s, const Fp8ScalingHost* h, int first, int last, unsigned long long elements, char buffer[256]) {
    const int H = s->settings.history;
    for (int i = first; i < last; i++) {
        if (s->in_bf16[i % fp8_tensors(s)]) { continue; }  // AdamW records their amax with the others'
        char name[48];
        fp8_slot_name(s, i, name);
        float scale = h->scale[i], descale = h->descale[i];
        const char* broken = NULL;
        const unsigned* history = H && i < fp8_training_slots(s) ? h->history + (size_t)i * H : NULL;
        const float most = FP8_MAX(fp8_slot_format(s, i));
        const bool by_tensor = fp8_slot_granularity(s, i) == FP8_BY_TENSOR, ready = history && history[0] != FP8_EMPTY;
        const bool borrowed = H && i >= fp8_training_slots(s);  // evaluation may use its own scale now, training's later
        const bool used = h->amax_step[i] != 0 || h->amax[i] != 0;
        if (!(scale > 0.0f && scale < INFINITY)) { broken = "I1 scale finite and positive"; }
        else if (descale != 1.0f / scale || !(descale >= 1.1754944e-38f)) { broken = "I2 descale = 1/scale, normal"; }
        else if (!by_tensor && scale != 1.0f) { broken = "I3 scale 1, since scales lie with the codes"; }
        else if (by_tensor && used && !ready && !borrowed && scale != fp8_scale_from_amax(h->amax[i], most)) { broken = "I3 scale follows the amax"; }
        else if (h->amax_step[i] < h->amax[i]) { broken = "I4 amax_step >= amax"; }
        else if (elements && (h->counts[2 * i] > elements || h->counts[2 * i + 1] > elements)) { broken = "I5 counts <= elements"; }
        else if (!used && !ready && !borrowed && scale != 1.0f) { broken = "I6 unused slot has scale 1"; }
        else if (history && ready != (s->ready[i] != 0)) { broken = "I8 a slot is ready if its history is not empty"; }
        else if (ready && scale != fp8_scale_from_history(fp8_history_amax(&s->settings, history), most, s->settings.margin, scale)) { broken = "I9 scale follows the history"; }
        for (int k = 0; history && !broken && k < H; k++) {
            if ((history[k] != FP8_EMPTY && history[k] > 0x7fffffffu) || (k > 0 && history[k - 1] == FP8_EMPTY && history[k] != FP8_EMPTY)) { broken = "I8 a history is amaxes, then empty entries"; }
        }
        if (broken) {
            snprintf(buffer, 256, "%s: invariant %s: amax bits %08x, amax_step bits %08x, scale %g, descale %g, saturated %llu, flushed %llu", name, broken,
                     h->amax[i], h->amax_step[i], scale, descale, h->counts[2 * i], h->counts[2 * i + 1]);
            return buffer;
        }
    }
    return NULL;
}
// Checks between two copies what may have changed in the slots of training. used (count): one optimizer step ended between them (I8): histories of these slots
// moved by one, others stayed. NULL: there was only evaluation (I7): nothing changed. Returns NULL or a message in buffer.
static inline const char* fp8_scaling_check_moved(const Fp8Scaling* s, const Fp8ScalingHost* before, const Fp8ScalingHost* after, const unsigned char* used, char buffer[256]) {
    const int H = s->settings.history;
    for (int i = 0; i < fp8_training_slots(s); i++) {
        char name[48];
        fp8_slot_name(s, i, name);
        bool same = before->scale[i] == after->scale[i] && before->descale[i] == after->descale[i];
        if (!used && !(same && before->amax[i] == after->amax[i] && before->amax_step[i] == after->amax_step[i])) {
            snprintf(buffer, 256, "%s: invariant I7 evaluation changes nothing: amax bits %08x -> %08x, scale %g -> %g", name, before->amax[i], after->amax[i], before->scale[i], after->scale[i]);
            return buffer;
        }
        if (!H) { continue; }
        const unsigned *old = before->history + (size_t)i * H, *now = after->history + (size_t)i * H;
        const bool moved = used && used[i];
        if (moved) { same = now[0] == before->amax_step[i] && memcmp(now + 1, old, (H - 1) * sizeof(unsigned)) == 0; }
        else { same = same && memcmp(now, old, H * sizeof(unsigned)) == 0; }
        if (!same) {
            snprintf(buffer, 256, "%s: invariant I8 a history moves once a step and only if used: it should have %s; newest entry %08x -> %08x, amax_step %08x, scale %g -> %g", name,
                     moved ? "moved" : "stayed", old[0], now[0], before->amax_step[i], before->scale[i], after->scale[i]);
            return buffer;
        }
    }
    return NULL;
}

static __global__ void fp8_count_nonfinite_kernel1(float* count, const unsigned* amax_step, int n) {
    float bad = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) { bad += amax_step[i] >= 0x7f800000u; }
    bad = block_sum(bad);
    if (threadIdx.x == 0) { *count = bad; }
}
// *count (device) := training slots whose amax_step is inf or NaN. Enqueues only.
static inline void fp8_count_nonfinite(const Fp8Scaling* s, float* count, cudaStream_t stream) {
    launch<fp8_count_nonfinite_kernel1>(dim3(1), dim3(256), 0, stream, count, (const unsigned*)s->amax_step, fp8_training_slots(s));
}

// The slot in which a step's first inf or NaN shows, or -1: weights, then inputs from the first layer up, then output gradients from the last layer down.
// amax_step: host copy of the device array. Evaluation's slots are not looked at.
static inline int fp8_scaling_find_nonfinite(const Fp8Scaling* s, const unsigned* amax_step) {
    const Fp8Role roles[3] = {FP8_ROLE_W, FP8_ROLE_X, FP8_ROLE_DY};
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < fp8_tensors(s); i++) {
            int at = roles[r] == FP8_ROLE_DY ? fp8_tensors(s) - 1 - i : i;
            int slot = at == s->layers * NUM_LINEARS ? fp8_slot(s, roles[r], 0, LINEAR_HEAD) : fp8_slot(s, roles[r], at / NUM_LINEARS, at % NUM_LINEARS);
            if (amax_step[slot] >= 0x7f800000u) { return slot; }
        }
    }
    return -1;
}

// Signal to quantization noise in dB, power over power; NAN: not measured or not finite; INFINITY: no noise.
static inline double fp8_sqnr(const Fp8ScalingHost* h, int slot) {
    if (!h->noise || !(h->noise[2 * slot] > 0.0)) { return NAN; }
    return 10.0 * log10(h->noise[2 * slot] / h->noise[2 * slot + 1]);
}
// A table of all training slots.
static inline void fp8_scaling_print(FILE* out, const Fp8Scaling* s, const Fp8ScalingHost* h) {
    fprintf(out, "fp8 tensor          format      amax         scale  saturated %%  flushed %%%s\n", h->noise ? "  SQNR dB" : "");
    for (int i = 0; i < fp8_training_slots(s); i++) {
        char name[48], scale[32];
        float amax;
        memcpy(&amax, &h->amax_step[i], 4);
        const double n = s->elements[i] ? (double)s->elements[i] : 1.0;
        const Fp8Granularity by = fp8_slot_granularity(s, i);
        if (by == FP8_BY_TENSOR) { snprintf(scale, sizeof(scale), "%.4e", h->scale[i]); } else { snprintf(scale, sizeof(scale), "per %s", fp8_granularity_names[by]); }
        fprintf(out, "%-20s %s %12.4e %12s %12.5f %10.5f", fp8_slot_name(s, i, name), fp8_slot_format(s, i) == FP8_E4M3 ? "E4M3" : "E5M2", amax, scale,
                100.0 * h->counts[2 * i] / n, 100.0 * h->counts[2 * i + 1] / n);
        if (h->noise) { fprintf(out, " %8.2f", fp8_sqnr(h, i)); }
        fprintf(out, "%s\n", s->in_bf16[i % fp8_tensors(s)] ? "  (in BF16)" : "");
    }
}

#endif
