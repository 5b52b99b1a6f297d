/* outlier_detector.h - how unusual is this loss or gradient norm: z-score over the last 128 values
 *
 * What:      z = (new - mean) / std over the window that includes the new value, population std; NaN until the window was full before the call
 *            (so for the first 128 values), 0 if std is 0. No z can exceed sqrt(127) = 11.269: a threshold above that never fires.
 * Numerics:  double; mean and std are summed over the window afresh (two passes, 128 values), so nothing drifts or cancels.
 *            A NaN or inf is answered with NaN and NOT entered: llm.c enters it and is blind ever after.
 * State:     plain bytes; save and load the whole struct with a checkpoint and a resumed run decides as the uninterrupted one.
 * Tests:     dev/test/test_rand.cu */
#ifndef LLMC_OUTLIER_DETECTOR_H
#define LLMC_OUTLIER_DETECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define OUTLIER_WINDOW 128

typedef struct {
    double window[OUTLIER_WINDOW];
    int32_t count;      // values entered, up to OUTLIER_WINDOW
    int32_t next;       // the slot of the next value, that is of the oldest once the window is full
} OutlierDetector;

static inline void outlier_detector_init(OutlierDetector* d) { memset(d, 0, sizeof(*d)); }

// Enters value (if finite) and returns its z-score, NaN while there is none.
static inline double outlier_detector_update(OutlierDetector* d, double value) {
    if (!isfinite(value)) { return NAN; }
    bool was_full = d->count == OUTLIER_WINDOW;
    d->window[d->next] = value;
    d->next = (d->next + 1) % OUTLIER_WINDOW;
    if (!was_full) {
        d->count++;
        return NAN;
    }
    double sum = 0.0, sum_squares = 0.0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) { sum += d->window[i] - d->window[0]; }  // differences: exactly 0 for a constant window
    double mean = d->window[0] + sum / OUTLIER_WINDOW;
    for (int i = 0; i < OUTLIER_WINDOW; i++) { sum_squares += (d->window[i] - mean) * (d->window[i] - mean); }
    double std = sqrt(sum_squares / OUTLIER_WINDOW);
    return std > 0.0 ? (value - mean) / std : 0.0;
}

// Is this z a reason to skip the update? threshold 0 = never.
static inline bool outlier_detector_skips(double z, double threshold) { return threshold > 0.0 && isfinite(z) && z > threshold; }

#endif
