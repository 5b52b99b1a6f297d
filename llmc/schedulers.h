/* schedulers.h - the learning rate of a step: cosine, linear, constant, wsd, with linear warmup
 *
 * What:      llm.c's four schedules. step is 0-based; w warmup steps, N steps in all, floor = peak * final_fraction.
 *            step < w: peak * (step + 1) / w; else with r = (step - w) / (N - w):
 *              cosine    floor + (1 + cos(pi r)) / 2 * (peak - floor)                          [Loshchilov & Hutter 2017, eq. 5]
 *              linear    peak - r * (peak - floor)
 *              constant  peak (llm.c ignores the warmup here without a word; whoever asks for one gets it)
 *              wsd       peak for the first 80 % of the steps, then floor + (1 - sqrt(r')) * (peak - floor)   [Haegele et al. 2024]
 * Numerics:  float32 as in llm.c: its values to the last bit. r is kept in 0..1, so a step past N (or w = N) gives the floor.
 * Tests:     dev/test/test_rand.cu, golden table. */
#ifndef LLMC_SCHEDULERS_H
#define LLMC_SCHEDULERS_H

#include <math.h>

// The list of schedules: enumerator, name on the command line. llmc/option_table.h expands it too.
#define SCHEDULE_CHOICES(X) \
    X(SCHEDULE_COSINE, "cosine") X(SCHEDULE_LINEAR, "linear") X(SCHEDULE_CONSTANT, "constant") X(SCHEDULE_WSD, "wsd")
#define SCHEDULE_ID(id, name) id,
typedef enum { SCHEDULE_CHOICES(SCHEDULE_ID) SCHEDULE_COUNT } Schedule;
#undef SCHEDULE_ID

typedef struct {
    int schedule;           // a Schedule
    float peak;             // learning rate after the warmup
    int warmup_steps;       // w >= 0
    int num_steps;          // N > 0, of the whole run (not of what is left after a resume)
    float final_fraction;   // floor / peak, 0..1
} LearningRate;

static inline float learning_rate_progress(int step, int from, int to) {
    if (step <= from && from < to) { return 0.0f; }
    return step >= to ? 1.0f : (float)(step - from) / (float)(to - from);
}

// The learning rate of 0-based step.
static inline float learning_rate_get(const LearningRate* s, int step) {
    if (step < s->warmup_steps) { return s->peak * ((float)(step + 1) / (float)s->warmup_steps); }
    if (s->schedule == SCHEDULE_CONSTANT) { return s->peak; }
    float floor_rate = s->peak * s->final_fraction;
    if (s->schedule == SCHEDULE_LINEAR) {
        return s->peak - learning_rate_progress(step, s->warmup_steps, s->num_steps) * (s->peak - floor_rate);
    }
    if (s->schedule == SCHEDULE_WSD) {
        int decay_from = (int)(0.8f * (float)s->num_steps);
        if (step < decay_from) { return s->peak; }
        return floor_rate + (1.0f - sqrtf(learning_rate_progress(step, decay_from, s->num_steps))) * (s->peak - floor_rate);
    }
    float half_turn = (float)(3.14159265358979323846 * (double)learning_rate_progress(step, s->warmup_steps, s->num_steps));
    return floor_rate + 0.5f * (1.0f + cosf(half_turn)) * (s->peak - floor_rate);
}

#endif
