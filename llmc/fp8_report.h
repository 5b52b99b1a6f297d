/* fp8_report.h - what FP8 does to each tensor: shares, a line of JSON a tensor, and the guard's decision
 *
 * What:      Fp8Shares says of one slot, over one optimizer step and all ranks, what share saturated and what share was flushed to zero.
 *            fp8.jsonl: one line a tensor and report, {"step", "tensor", "format", "scales", "amax", "scale", "saturated", "flushed", "sqnr_db", "bf16"}; shares from 0
 *            to 1; what is not a number (nothing measured, NaN, inf, a scale that lies with the codes) is null. A resume cuts what lies beyond its step.
 *            The guard: a linear layer with a tensor beyond a limit is multiplied in BF16 for some steps, then tried in FP8 again.
 * Errors:    a file that cannot be written is a warning, once; training goes on.
 * Tests:     dev/test/test_fp8_report.cu  */
#ifndef LLMC_FP8_REPORT_H
#define LLMC_FP8_REPORT_H

#include <string>

#include "llmc/files.h"
#include "llmc/fp8_scaling.h"

typedef struct { double saturated, flushed; } Fp8Shares;   // of the elements quantized, 0 .. 1

typedef Fp8Shares Fp8Guard;  // the limits

static inline Fp8Shares fp8_shares(double saturated, double flushed, double elements) {
    Fp8Shares s = {elements > 0 ? saturated / elements : 0.0, elements > 0 ? flushed / elements : 0.0};
    return s;
}

// Does a tensor with these shares need BF16? why: in words, with both figures.
static inline bool fp8_guard_trips(const Fp8Guard* g, Fp8Shares s, char why[128]) {
    why[0] = 0;
    if (s.saturated > g->saturated) { snprintf(why, 128, "%.3g %% saturate, more than %.3g %%", 100.0 * s.saturated, 100.0 * g->saturated); }
    else if (s.flushed > g->flushed) { snprintf(why, 128, "%.3g %% are flushed to zero, more than %.3g %%", 100.0 * s.flushed, 100.0 * g->flushed); }
    return why[0] != 0;
}

// ----------------------------------------------------------------------------
// fp8.jsonl

// A number, or null.
static inline std::string fp8_json_number(double x) {
    char text[32];
    if (!isfinite(x)) { return "null"; }
    snprintf(text, sizeof(text), "%.6g", x);
    return text;
}
// The line of a training slot, with its line break.
static inline std::string fp8_json_line(const Fp8Scaling* s, const Fp8ScalingHost* h, int slot, Fp8Shares shares, int step) {
    char name[48];
    float amax;
    memcpy(&amax, &h->amax_step[slot], 4);
    const Fp8Granularity by = fp8_slot_granularity(s, slot);
    return "{\"step\":" + std::to_string(step) + ",\"tensor\":\"" + fp8_slot_name(s, slot, name) + "\",\"format\":\"" + (fp8_slot_format(s, slot) == FP8_E4M3 ? "e4m3" : "e5m2") +
           "\",\"scales\":\"" + fp8_granularity_names[by] + "\",\"amax\":" + fp8_json_number(amax) + ",\"scale\":" + (by == FP8_BY_TENSOR ? fp8_json_number(h->scale[slot]) : "null") +
           ",\"saturated\":" + fp8_json_number(shares.saturated) + ",\"flushed\":" + fp8_json_number(shares.flushed) + ",\"sqnr_db\":" + fp8_json_number(fp8_sqnr(h, slot)) +
           ",\"bf16\":" + (s->in_bf16[slot % fp8_tensors(s)] ? "true" : "false") + "}\n";
}

// Cuts the lines beyond `step`; keeps what is not ours.
static inline bool fp8_log_cut(const char* path, int step, FileError* error) {
    return file_keep_lines(path, [&](const std::string& line) {
        long s = 0;
        return sscanf(line.c_str(), "{\"step\":%ld", &s) != 1 || s <= step;
    }, error);
}
static inline bool fp8_log_append(const char* path, const std::string& lines, FileError* error) {
    const int code = file_append_lines(path, lines.data(), lines.size());
    return code == 0 || file_write_error(error, code < 0 ? ENOSPC : code, "write", path, lines.size());
}

#endif
