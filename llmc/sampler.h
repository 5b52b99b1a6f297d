/* sampler.h - one token from a row of logits
 *
 * What:      softmax sampling at a temperature: the first i with coin * sum(e) < e_0 + ... + e_i, e_i = exp((logit_i - max) / temperature).
 *            top-k: e_i = 0 for all but the k largest logits; of equal ones the lower indices stay. The sums run in index order for every k.
 * Numerics:  the sum in double, the running sum in float32, in index order, as llm.c; the maximum is subtracted, which llm.c leaves out (its
 *            exponentials overflow above 88). On ordinary logits at temperature 1 the choices are llm.c's; coins come from random_f32 of rand.h.
 * Tests:     dev/test/test_rand.cu */
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

// The bits of a float that is no NaN, such that unsigned order is the order of values. -0 is 0.
static inline uint32_t sample_ordered_bits(float x) {
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof(u));
    return u >> 31 ? ~u : u | 0x80000000u;
}
// Among the k largest of logits (n), 0 < k < n, are all above the returned value and the first *ties that equal it. No copy of the row: the ordered bits
// of the k-th largest are found byte by byte from the top, by counting.
static inline float sample_kth_largest(const float* logits, int n, int k, int* ties) {
    uint32_t known = 0, mask = 0;  // bits found so far, and which these are
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, digit = 255;
        for (int i = 0; i < n; i++) {
            uint32_t u = sample_ordered_bits(logits[i]);
            if ((u & mask) == known) { count[u >> shift & 255]++; }
        }
        while (count[digit] < k) { k -= count[digit--]; }
        known |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    *ties = k;
    known = known >> 31 ? known & 0x7fffffffu : ~known;
    float value;
    memcpy(&value, &known, sizeof(value));
    return value;
}

// logits (n) f32; coin in [0, 1); temperature >= 0, 0 takes the largest logit (the first of equals). A logit of -inf is never drawn.
// top_k: only the top_k largest can be drawn; 0, or n and above: all.
// Returns the index, or -1 if a logit is NaN or +inf or all are -inf: there is no distribution to draw from, and the caller says so.
static inline int sample_softmax(const float* logits, int n, float coin, float temperature, int top_k) {
    int largest = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(logits[i])) { return -1; }
        if (logits[i] > logits[largest]) { largest = i; }
    }
    if (n <= 0 || !isfinite(logits[largest])) { return -1; }
    if (temperature <= 0.0f) { return largest; }
    const float max = logits[largest];
    int ties = n;
    const float bound = top_k > 0 && top_k < n ? sample_kth_largest(logits, n, top_k, &ties) : -INFINITY;
    double norm = 0.0;
    for (int i = 0, left = ties; i < n; i++) {
        if (logits[i] > bound || (logits[i] == bound && left-- > 0)) { norm += (double)expf((logits[i] - max) / temperature); }
    }
    const float threshold = (float)((double)coin * norm);
    float cdf = 0.0f;
    int last = largest;  // if rounding leaves the running sum below the threshold: the last token that can be drawn at all
    for (int i = 0, left = ties; i < n; i++) {
        if (!(logits[i] > bound || (logits[i] == bound && left-- > 0))) { continue; }
        float e = expf((logits[i] - max) / temperature);
        if (e > 0.0f) { last = i; }
        cdf += e;
        if (threshold < cdf) { return i; }
    }
    return last;
}

#endif
