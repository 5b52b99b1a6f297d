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

typedef struct { double saturated, flushed; int steps; } Fp8Guard;  // limits, and how many optimizer steps a layer stays in BF16

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
           ",\"bf16\":" + (s->in_bf16[slot % (s->layers * NUM_LINEARS)] ? "true" : "false") + "}\n";
}

// Cuts the lines beyond `step`, and a last one without its end; keeps what is not ours. A file that is not there is fine.
static inline bool fp8_log_cut(const char* path, int step, FileError* error) {
    InputFile in;
    if (access(path, F_OK) != 0) { return true; }
    if (!input_file_open(&in, path, error)) { return false; }
    std::string text(in.size, '\0'), kept;
    bool ok = input_file_read(&in, &text[0], in.size, error);
    input_file_close(&in);
    if (!ok) { return false; }
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
        long s = 0;
        if (sscanf(text.c_str() + at, "{\"step\":%ld", &s) != 1 || s <= step) { kept.append(text, at, end + 1 - at); }
    }
    if (kept == text) { return true; }
    AtomicFile out;
    return atomic_file_open(&out, path, kept.size(), error) && atomic_file_write(&out, kept.data(), kept.size(), error) && atomic_file_commit(&out, error);
}
static inline bool fp8_log_append(const char* path, const std::string& lines, FileError* error) {
    int fd = file_fault() ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) { return file_write_error(error, errno, "open", path, lines.size()); }
    const ssize_t n = file_fault() ? -1 : write(fd, lines.data(), lines.size());
    const int code = n < 0 ? errno : ENOSPC;
    bool ok = n == (ssize_t)lines.size();
    if (!ok && n > 0 && ftruncate(fd, lseek(fd, 0, SEEK_END) - n) != 0) { ok = false; }  // no half lines
    close(fd);
    return ok || file_write_error(error, code, "write", path, lines.size());
}

#endif
