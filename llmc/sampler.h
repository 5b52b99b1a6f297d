/* sampler.h - one token from a row of logits
 *
 * What:      softmax sampling at a temperature: the first i with coin * sum(e) < e_0 + ... + e_i, e_i = exp((logit_i - max) / temperature).
 * Numerics:  the sum in double, the running sum in float32, in index order, as llm.c; the maximum is subtracted, which llm.c leaves out (its
 *            exponentials overflow above 88). On ordinary logits at temperature 1 the choices are llm.c's; coins come from random_f32 of rand.h.
 * Tests:     dev/test/test_rand.cu */
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include <math.h>

// logits (n) f32; coin in [0, 1); temperature >= 0, 0 takes the largest logit (the first of equals). A logit of -inf is never drawn.
// Returns the index, or -1 if a logit is NaN or +inf or all are -inf: there is no distribution to draw from, and the caller says so.
static inline int sample_softmax(const float* logits, int n, float coin, float temperature) {
    int largest = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(logits[i])) { return -1; }
        if (logits[i] > logits[largest]) { largest = i; }
    }
    if (n <= 0 || !isfinite(logits[largest])) { return -1; }
    if (temperature <= 0.0f) { return largest; }
    const float max = logits[largest];
    double norm = 0.0;
    for (int i = 0; i < n; i++) { norm += (double)expf((logits[i] - max) / temperature); }
    const float threshold = (float)((double)coin * norm);
    float cdf = 0.0f;
    int last = largest;  // if rounding leaves the running sum below the threshold: the last token that can be drawn at all
    for (int i = 0; i < n; i++) {
        float e = expf((logits[i] - max) / temperature);
        if (e > 0.0f) { last = i; }
        cdf += e;
        if (threshold < cdf) { return i; }
    }
    return last;
}

#endif
