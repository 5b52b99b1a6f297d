/* fp8_calibrate.h - what a calibration found, what follows from it, and its file
 *
 * What:      Fp8Measured: of one tensor, over all batches and ranks, its range and what every recipe would make of it in both formats. fp8_choose picks the
 *            format that a recipe can give it, or BF16, by FP8_NEEDS below. A linear layer multiplies in FP8 if its x, w and dy all can. The recipe
 *            recommended is the one that leaves the fewest linear layers in BF16, of those the first in RECIPE_TABLE.
 * File:      text; fields are separated by blanks and tabs; lines that begin with # are for the reader. In this order:
 *              llm.fp8 calibration 1          the version
 *              model L C                      layers and channels; what the file can be used with
 *              recipe NAME                    the one recommended
 *              role layer linear amax smallest p1 median octaves zero% [RECIPE e4m3 e5m2]... because
 *              one line a tensor; under RECIPE what that recipe should use (e4m3, e5m2, bf16), then SQNR in dB/% flushed to zero/% saturated in either
 *              format; smallest, p1 (1 % are below) and median are of what is not zero, the last two to the octave; octaves: from p1 to amax
 *            A reader needs the first three fields of a tensor and its recipe's; who edits a choice by hand changes what training does.
 * Numerics:  SQNR = sum x^2 / sum (x - dequantized)^2, over all batches and both orders, as in fp8.jsonl. Saturation comes from scales of earlier steps.
 *            Ideal, from the format alone: rounding to m mantissa bits in the octave [2^e, 2^(e+1)) makes errors uniform within half a step of 2^(e-m), mean
 *            square 4^(e-m) / 12; uniform values there have mean square 7/3 4^e: 28 * 4^m, 32.5 dB for E4M3 and 26.5 dB for E5M2.
 * Errors:    FileError with the line's number.
 * Tests:     dev/test/test_fp8_calibrate.cu */
#ifndef LLMC_FP8_CALIBRATE_H
#define LLMC_FP8_CALIBRATE_H

#include <math.h>
#include <stdarg.h>

#include <string>
#include <vector>

#include "llmc/files.h"
#include "llmc/fp8_scaling.h"
#include "llmc/xxh64.h"

#define FP8_FORMATS 2
#define FP8_EXPONENTS 256
#define FP8_IDEAL_E5M2 26.5

// What a tensor of a role needs to stay in FP8: least SQNR in dB, largest shares flushed to zero and saturated, and why.
// SQNR is a matter of the large values, which carry the power; whether small ones still exist says the share flushed. AdamW divides by a gradient's own size: a
// parameter whose gradients are all flushed does not move at all, however small they are. The guard's limits are twice and equal to these by default.
#define FP8_NEEDS(X) \
    X(X,  FP8_IDEAL_E5M2,       0.05, 0.001, "the best that E5M2 can be: below it E4M3's third mantissa bit is lost") \
    X(W,  FP8_IDEAL_E5M2,       0.05, 0.001, "as x") \
    X(DY, FP8_IDEAL_E5M2 - 3.0, 0.05, 0.001, "gradients train in E5M2; as much noise again, from values below the normal range, is 3 dB")

typedef struct { double sqnr, flushed, saturated; const char* why; } Fp8Need;
static const Fp8Need fp8_needs[] = {
#define FP8_NEED(role, sqnr, flushed, saturated, why) {sqnr, flushed, saturated, why},
    FP8_NEEDS(FP8_NEED)
#undef FP8_NEED
};

typedef enum { FP8_CHOOSE_E4M3 = FP8_E4M3, FP8_CHOOSE_E5M2 = FP8_E5M2, FP8_CHOOSE_BF16, NUM_FP8_CHOICES } Fp8Choice;
static const char* const fp8_choice_names[NUM_FP8_CHOICES] = {"e4m3", "e5m2", "bf16"};

typedef struct { double signal, noise, saturated, flushed, elements; } Fp8Quality;  // sums; elements: twice where the two orders are two quantizations
typedef struct {
    double amax_bits, smallest_bits;                         // as floats' bits; smallest: of what is not zero; 0: there is nothing
    double zeros, histogram[FP8_EXPONENTS];                  // elements by biased exponent; 0: denormals, 255: inf and NaN
    Fp8Quality quality[NUM_FP8_RECIPES][FP8_FORMATS];
} Fp8Measured;

static inline bool fp8_format_possible(Fp8Role role, Fp8Format format) { return role != FP8_ROLE_W || format == FP8_E4M3; }  // fp8_settings_check

// a += b, of another rank.
static inline void fp8_measured_merge(Fp8Measured* a, const Fp8Measured* b) {
    a->amax_bits = fmax(a->amax_bits, b->amax_bits);
    if (b->smallest_bits > 0 && (a->smallest_bits == 0 || b->smallest_bits < a->smallest_bits)) { a->smallest_bits = b->smallest_bits; }
    a->zeros += b->zeros;
    for (int e = 0; e < FP8_EXPONENTS; e++) { a->histogram[e] += b->histogram[e]; }
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        for (int f = 0; f < FP8_FORMATS; f++) {
            Fp8Quality *to = &a->quality[r][f];
            const Fp8Quality* from = &b->quality[r][f];
            to->signal += from->signal; to->noise += from->noise; to->saturated += from->saturated; to->flushed += from->flushed; to->elements += from->elements;
        }
    }
}
// The value to the octave (a power of two) below which a share of the nonzero, finite elements lies; 0: there are none.
static inline double fp8_percentile(const Fp8Measured* m, double share) {
    double all = 0.0, below = 0.0;
    for (int e = 0; e < FP8_EXPONENTS - 1; e++) { all += m->histogram[e]; }
    for (int e = 0; e < FP8_EXPONENTS - 1; e++) {
        below += m->histogram[e];
        if (below > 0 && below >= share * all) { return exp2(e - 127.0); }
    }
    return 0.0;
}
static inline float fp8_float_of_bits(double bits) {
    const unsigned u = (unsigned)bits;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline double fp8_quality_sqnr(const Fp8Quality* q) { return q->signal > 0.0 ? 10.0 * log10(q->signal / q->noise) : NAN; }  // NAN: zeros only, or not finite
static inline double fp8_quality_share(const Fp8Quality* q, double count) { return q->elements > 0.0 ? count / q->elements : 0.0; }

// What recipe r should use for this tensor, and why in words.
static inline Fp8Choice fp8_choose(const Fp8Measured* m, Fp8Role role, int r, std::string* why) {
    const Fp8Need* need = &fp8_needs[role];
    const Fp8Format usual = fp8_role_format(&fp8_recipes[r], role);
    char text[256];
    *why = "";
    if (m->histogram[FP8_EXPONENTS - 1] > 0) { *why = "holds inf or NaN"; return FP8_CHOOSE_BF16; }
    if (m->amax_bits == 0) { *why = "nothing but zeros"; return (Fp8Choice)usual; }
    Fp8Choice best = FP8_CHOOSE_BF16;
    double most = 0.0;
    std::string fits, fails;
    for (int f = 0; f < FP8_FORMATS; f++) {
        if (!fp8_format_possible(role, (Fp8Format)f)) { continue; }
        const Fp8Quality* q = &m->quality[r][f];
        const double sqnr = fp8_quality_sqnr(q), flushed = fp8_quality_share(q, q->flushed), saturated = fp8_quality_share(q, q->saturated);
        const char* name = fp8_choice_names[f];
        if (!(sqnr >= need->sqnr)) { snprintf(text, sizeof(text), "%s has %.1f dB, needs %.1f", name, sqnr, need->sqnr); }
        else if (flushed > need->flushed) { snprintf(text, sizeof(text), "%s flushes %.3g %% to zero, more than %.3g %%", name, 100 * flushed, 100 * need->flushed); }
        else if (saturated > need->saturated) { snprintf(text, sizeof(text), "%s saturates %.3g %%, more than %.3g %%", name, 100 * saturated, 100 * need->saturated); }
        else {
            if (best == FP8_CHOOSE_BF16 || sqnr > most) {
                best = (Fp8Choice)f;
                most = sqnr;
                snprintf(text, sizeof(text), "%s keeps %.1f dB of %.1f needed, flushes %.2g %%", name, sqnr, need->sqnr, 100 * flushed);
                fits = text;
            }
            continue;
        }
        fails += (fails.empty() ? "" : "; ") + std::string(text);
    }
    *why = best == FP8_CHOOSE_BF16 ? fails : fits;
    return best;
}

// ----------------------------------------------------------------------------
// a model

typedef struct {
    int layers, channels, recipe;        // recipe: the one recommended, an index of fp8_recipes
    std::vector<int> choice[NUM_FP8_RECIPES];   // by training slot
    std::vector<std::string> why[NUM_FP8_RECIPES];
    int in_bf16[NUM_FP8_RECIPES];        // linear layers
} Fp8Advice;

// measured: by training slot (role, linear, layer). may[r]: recipe r can be recommended. One must be.
static inline Fp8Advice fp8_advise(const std::vector<Fp8Measured>& measured, int layers, int channels, const bool may[NUM_FP8_RECIPES]) {
    Fp8Advice a;
    const int linears = layers * NUM_LINEARS, n = (int)measured.size();
    a.layers = layers;
    a.channels = channels;
    a.recipe = -1;
    for (int r = 0; r < NUM_FP8_RECIPES; r++) {
        a.choice[r].resize(n);
        a.why[r].resize(n);
        a.in_bf16[r] = 0;
        for (int i = 0; i < n; i++) { a.choice[r][i] = fp8_choose(&measured[i], (Fp8Role)(i / linears), r, &a.why[r][i]); }
        for (int k = 0; k < linears; k++) {
            int *x = &a.choice[r][FP8_ROLE_X * linears + k], w = a.choice[r][FP8_ROLE_W * linears + k], dy = a.choice[r][FP8_ROLE_DY * linears + k];
            if (*x == FP8_CHOOSE_E5M2 && dy == FP8_CHOOSE_E5M2) {
                *x = FP8_CHOOSE_BF16;
                a.why[r][FP8_ROLE_X * linears + k] = "needs e5m2, as its dy does, and E5M2 x E5M2 is not multiplied";
            }
            a.in_bf16[r] += *x == FP8_CHOOSE_BF16 || w == FP8_CHOOSE_BF16 || dy == FP8_CHOOSE_BF16;
        }
        if (may[r] && (a.recipe < 0 || a.in_bf16[r] < a.in_bf16[a.recipe])) { a.recipe = r; }
    }
    return a;
}

static inline void fp8_append(std::string* out, const char* fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    *out += text;
}
// The file. note: a comment on how it was made, one line.
static inline std::string fp8_calibration_text(const Fp8Advice* a, const std::vector<Fp8Measured>& measured, const char* note) {
    std::string out;
    fp8_append(&out, "llm.fp8 calibration 1\nmodel %d %d\nrecipe %s\n# %s\n", a->layers, a->channels, fp8_recipes[a->recipe].name, note);
    const char* roles[] = {"x", "w", "dy"};
    for (int role = 0; role < 3; role++) {
        fp8_append(&out, "# %-2s needs %.1f dB (%s), at most %.3g %% flushed to zero and %.3g %% saturated\n", roles[role], fp8_needs[role].sqnr, fp8_needs[role].why,
                   100 * fp8_needs[role].flushed, 100 * fp8_needs[role].saturated);
    }
    for (int r = 0; r < NUM_FP8_RECIPES; r++) { fp8_append(&out, "# recipe %-8s leaves %d of %d linear layers in BF16\n", fp8_recipes[r].name, a->in_bf16[r], a->layers * NUM_LINEARS); }
    fp8_append(&out, "# under a recipe: its choice, then SQNR in dB/%% flushed to zero/%% saturated in each format; because: of the recipe recommended\n");
    fp8_append(&out, "%-4s\t%5s\t%-8s\t%-9s\t%-9s\t%-9s\t%-9s\t%7s\t%7s", "role", "layer", "linear", "amax", "smallest", "p1", "median", "octaves", "zero%");
    for (int r = 0; r < NUM_FP8_RECIPES; r++) { fp8_append(&out, "\t%-8s\t%-18s\t%-18s", fp8_recipes[r].name, "e4m3", "e5m2"); }
    out += "\tbecause\n";
    for (size_t i = 0; i < measured.size(); i++) {
        const Fp8Measured* m = &measured[i];
        const int l = (int)i % a->layers, linear = (int)i / a->layers % NUM_LINEARS, role = (int)i / a->layers / NUM_LINEARS;
        const double amax = fp8_float_of_bits(m->amax_bits), low = fp8_percentile(m, 0.01);
        double all = m->zeros;
        for (int e = 0; e < FP8_EXPONENTS; e++) { all += m->histogram[e]; }
        fp8_append(&out, "%-4s\t%5d\t%-8s\t%-9.4g\t%-9.4g\t%-9.4g\t%-9.4g\t%7.1f\t%7.3f", fp8_role_names[role], l, linear_names[linear], amax, fp8_float_of_bits(m->smallest_bits), low,
                   fp8_percentile(m, 0.5), low > 0 ? log2(amax / low) : 0.0, all > 0 ? 100 * m->zeros / all : 0.0);
        for (int r = 0; r < NUM_FP8_RECIPES; r++) {
            fp8_append(&out, "\t%-8s", fp8_choice_names[a->choice[r][i]]);
            for (int f = 0; f < FP8_FORMATS; f++) {
                const Fp8Quality* q = &m->quality[r][f];
                char text[64] = "-";
                if (fp8_format_possible((Fp8Role)role, (Fp8Format)f)) {
                    snprintf(text, sizeof(text), "%.2f/%.3g/%.3g", fp8_quality_sqnr(q), 100 * fp8_quality_share(q, q->flushed), 100 * fp8_quality_share(q, q->saturated));
                }
                fp8_append(&out, "\t%-18s", text);
            }
        }
        out += "\t" + a->why[a->recipe][i] + "\n";
    }
    return out;
}

// ----------------------------------------------------------------------------
// reading

typedef struct {
    std::string recipe;          // the one recommended
    std::vector<int> choice;     // Fp8Choice by training slot, for the recipe in use
    uint64_t digest;             // of the file
} Fp8Calibration;

static inline std::vector<std::string> fp8_fields(const std::string& line) {
    std::vector<std::string> fields;
    for (size_t at = 0, end; (at = line.find_first_not_of(" \t\r", at)) != std::string::npos; at = end) {
        end = line.find_first_of(" \t\r", at);
        if (end == std::string::npos) { end = line.size(); }
        fields.push_back(line.substr(at, end - at));
    }
    return fields;
}
static inline int fp8_find_name(const char* const* names, int n, const std::string& name) {
    for (int i = 0; i < n; i++) { if (name == names[i]) { return i; } }
    return -1;
}
// Reads what recipe should do with a model of so many layers and channels.
static inline bool fp8_calibration_read(Fp8Calibration* c, const char* path, int layers, int channels, const Fp8Recipe* recipe, FileError* error) {
    InputFile in;
    if (!input_file_open(&in, path, error)) { return false; }
    if (in.size > (64u << 20)) {
        input_file_close(&in);
        return file_error(error, 0, "make one with --calibrate", "'%s' has %llu bytes: it is no calibration", path, (unsigned long long)in.size);
    }
    std::string text(in.size, '\0');
    const bool ok = input_file_read(&in, &text[0], in.size, error);
    input_file_close(&in);
    if (!ok) { return false; }
    const int n = 3 * layers * NUM_LINEARS;  // training slots
    int number = 0, part = 0, column = -1, L, C;
    c->digest = xxh64(text.data(), text.size(), 0);
    c->choice.assign(n, -1);
    for (size_t at = 0; at < text.size(); ) {
        size_t end = text.find('\n', at);
        if (end == std::string::npos) { end = text.size(); }
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        number++;
        if (line.empty() || line[0] == '#') { continue; }
        const std::vector<std::string> f = fp8_fields(line);
        auto wrong = [&](const char* what) {
            return file_error(error, 0, "make it anew with --calibrate, or repair the line", "'%s', line %d: %s: '%.60s'", path, number, what, line.c_str());
        };
        if (part == 0) {
            if (line != "llm.fp8 calibration 1") { return wrong("no calibration of version 1"); }
        } else if (part == 1) {
            if (f.size() != 3 || sscanf(line.c_str(), "model %d %d", &L, &C) != 2) { return wrong("'model LAYERS CHANNELS' is due"); }
            if (L != layers || C != channels) {
                return file_error(error, 0, "calibrate this model (--calibrate)", "'%s' is the calibration of a model with %d layers and %d channels; this one has %d and %d", path,
                                  L, C, layers, channels);
            }
        } else if (part == 2) {
            if (f.size() != 2 || f[0] != "recipe") { return wrong("'recipe NAME' is due"); }
            c->recipe = f[1];
        } else if (part == 3) {
            if (f.size() < 4 || f[0] != "role" || f[1] != "layer" || f[2] != "linear") { return wrong("the names of the columns are due: role, layer, linear ..."); }
            for (size_t i = 3; i < f.size(); i++) { if (f[i] == recipe->name) { column = (int)i; } }
            if (column < 0) {
                return file_error(error, 0, "calibrate again with this program", "'%s', line %d: there is no column of --fp8-recipe %s", path, number, recipe->name);
            }
        } else {
            char* rest = NULL;
            if ((int)f.size() <= column) { return wrong("a tensor's line has too few fields"); }
            const int role = fp8_find_name(fp8_role_names, 3, f[0]), linear = fp8_find_name(linear_names, NUM_LINEARS, f[2]), choice = fp8_find_name(fp8_choice_names, NUM_FP8_CHOICES, f[column]);
            const long l = strtol(f[1].c_str(), &rest, 10);
            if (role < 0 || linear < 0 || *rest || l < 0 || l >= layers) { return wrong("no tensor of this model (role x, w or dy; layer; linear qkv, attproj, fc or fcproj)"); }
            if (choice < 0) { return wrong("under the recipe stands e4m3, e5m2 or bf16"); }
            if (choice == FP8_CHOOSE_E5M2 && role == FP8_ROLE_W) { return wrong("weights are e4m3 or bf16"); }
            int* to = &c->choice[(role * NUM_LINEARS + linear) * layers + l];
            if (*to >= 0) { return wrong("a second line of the same tensor"); }
            *to = choice;
        }
        part += part < 4;
    }
    for (int i = 0; i < n; i++) {
        if (c->choice[i] < 0) {
            return file_error(error, 0, "make it anew with --calibrate", "'%s' has no line for %s of %s of layer %d: it is not whole", path, fp8_role_names[i / layers / NUM_LINEARS],
                              linear_names[i / layers % NUM_LINEARS], i % layers);
        }
    }
    return true;
}

// Sets formats, and which linear layers stay in BF16, before the state is used. keep: roles whose format the user gave. Returns the number of linear layers that
// are in BF16 for it, -1: an x and its dy would both be E5M2.
static inline int fp8_calibration_apply(Fp8Scaling* s, const Fp8Calibration* c, const bool keep[3]) {
    const int linears = s->layers * NUM_LINEARS;
    int in_bf16 = 0;
    for (int k = 0; k < linears; k++) {
        bool bf16 = false;
        for (int role = 0; role < 3; role++) {
            const int choice = c->choice[role * linears + k];
            bf16 = bf16 || choice == FP8_CHOOSE_BF16;
            if (choice == FP8_CHOOSE_BF16 || keep[role]) { continue; }
            s->format[fp8_slot(s, (Fp8Role)role, k % s->layers, k / s->layers)] = (unsigned char)choice;
            if (role == FP8_ROLE_X) { s->format[fp8_slot(s, FP8_ROLE_EVAL_X, k % s->layers, k / s->layers)] = (unsigned char)choice; }
        }
        const int x = fp8_slot(s, FP8_ROLE_X, k % s->layers, k / s->layers), dy = fp8_slot(s, FP8_ROLE_DY, k % s->layers, k / s->layers);
        if (!bf16 && s->format[x] == FP8_E5M2 && s->format[dy] == FP8_E5M2) { return -1; }
        s->in_bf16[k] |= bf16;
        in_bf16 += bf16;
    }
    return in_bf16;
}

#endif
