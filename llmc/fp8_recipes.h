/* fp8_recipes.h - the recipes as a table: what a tensor of each role is rounded to, how finely it is scaled, and where that runs
 *
 * One row a recipe; --fp8-recipe, its help and the README's list are made from it. Host code only, so that the option table can include it.
 * What a run may vary is in Fp8Settings, a copy of the row that options then change: who needs a property asks the settings, and nobody outside of
 * llmc/fp8_* names a recipe. The device side of a granularity is its Sink, in fp8_recipe.cuh; the order of the scales in memory is fp8_layout.h.
 * Tests: dev/test/test_fp8_recipes.cu
 */
#ifndef LLMC_FP8_RECIPES_H
#define LLMC_FP8_RECIPES_H

#include <stdio.h>
#include <string.h>

typedef enum { FP8_E4M3 = 0, FP8_E5M2 = 1 } Fp8Format;
#define FP8_MAX(format) ((format) == FP8_E4M3 ? 448.0f : 57344.0f)

// Which elements share a scale. "Outer row": along the contraction of the order in question, so that an operand's two orders are scaled differently.
typedef enum {
    FP8_BY_TENSOR,   // the whole tensor, both orders: SCALAR_32F
    FP8_BY_ROW,      // an outer row: OUTER_VEC_32F
    FP8_BY_VEC128,   // 128 elements of an outer row: VEC128_32F
    FP8_BY_BLK128,   // 128 x 128 elements, both orders: BLK128x128_32F
    FP8_BY_VEC32,    // 32 elements of an outer row, a power of two in a byte: VEC32_UE8M0
    NUM_FP8_GRANULARITIES
} Fp8Granularity;
static const char* const fp8_granularity_names[NUM_FP8_GRANULARITIES] = {"tensor", "row", "vec128", "blk128", "vec32"};

// Which compute capabilities multiply with scales of a kind, as bits and in words (cuBLASLt 13).
typedef enum { FP8_CAP_89 = 1, FP8_CAP_90 = 2, FP8_CAP_100 = 4, FP8_CAP_120 = 8 } Fp8Capability;
#define FP8_CAPS_ALL (FP8_CAP_89 | FP8_CAP_90 | FP8_CAP_100 | FP8_CAP_120)
#define FP8_CAPS_HOPPER (FP8_CAP_90)
#define FP8_CAPS_BLACKWELL (FP8_CAP_100 | FP8_CAP_120)
#define FP8_TEXT_ALL "8.9, 9.0, 10.x, 12.x"
#define FP8_TEXT_HOPPER "9.0"
#define FP8_TEXT_BLACKWELL "10.x, 12.x"

// name; granularity of x, w, dy; formats of x, w, dy; fast accumulation in fprop, dgrad, wgrad; passes over the BF16 tensor (2: amax first, then quantize);
// history (1: scales come from earlier steps); where it runs; CUDA version that it needs
#define RECIPE_TABLE(X) \
    X(current, TENSOR, TENSOR, TENSOR, E4M3, E4M3, E5M2, 1, 0, 0, 2, 0, ALL,       12, 2) \
    X(delayed, TENSOR, TENSOR, TENSOR, E4M3, E4M3, E5M2, 1, 0, 0, 1, 1, ALL,       12, 2) \
    X(row,     ROW,    ROW,    ROW,    E4M3, E4M3, E4M3, 1, 0, 0, 2, 0, HOPPER,    12, 9) \
    X(block,   VEC128, BLK128, VEC128, E4M3, E4M3, E4M3, 0, 0, 0, 1, 0, HOPPER,    12, 9) \
    X(mx,      VEC32,  VEC32,  VEC32,  E4M3, E4M3, E4M3, 0, 0, 0, 1, 0, BLACKWELL, 12, 8)

typedef struct {
    const char* name;
    Fp8Granularity by_x, by_w, by_dy;
    Fp8Format x, w, dy;
    bool fast_fprop, fast_dgrad, fast_wgrad;
    int passes;
    bool history;
    int capabilities;      // Fp8Capability bits
    int cuda;              // as CUDART_VERSION: 1000 * major + 10 * minor
    const char* needs;     // both in words
} Fp8Recipe;

static const Fp8Recipe fp8_recipes[] = {
#define RECIPE_ROW(name, gx, gw, gdy, x, w, dy, ff, fd, fw, passes, history, caps, cuda_major, cuda_minor) \
    {#name, FP8_BY_##gx, FP8_BY_##gw, FP8_BY_##gdy, FP8_##x, FP8_##w, FP8_##dy, ff, fd, fw, passes, history, FP8_CAPS_##caps, 1000 * cuda_major + 10 * cuda_minor, \
     FP8_TEXT_##caps "; CUDA " #cuda_major "." #cuda_minor},
    RECIPE_TABLE(RECIPE_ROW)
#undef RECIPE_ROW
};
#define NUM_FP8_RECIPES ((int)(sizeof(fp8_recipes) / sizeof(fp8_recipes[0])))

#define RECIPE_CHOICE(name, ...) #name ","
#define RECIPE_CHOICES RECIPE_TABLE(RECIPE_CHOICE)  // "current,delayed,...": the choices of an option, whose value is then the row's index

// Does a GPU of this compute capability run the recipe? 0.0, the CPU device that plays no particular GPU, runs all.
static inline bool fp8_recipe_runs(const Fp8Recipe* r, int major, int minor) {
    int bit = major == 8 && minor == 9 ? FP8_CAP_89 : major == 9 ? FP8_CAP_90 : major == 10 ? FP8_CAP_100 : major == 12 ? FP8_CAP_120 : 0;
    return (major == 0 && minor == 0) || (r->capabilities & bit) != 0;
}
// "current, delayed, mx": those that run there with this version of CUDA (CUDART_VERSION); "none". Returns the caller's buffer.
static inline const char* fp8_recipe_list(int major, int minor, int cuda, char buffer[64]) {
    buffer[0] = 0;
    for (int i = 0; i < NUM_FP8_RECIPES; i++) {
        if (!fp8_recipe_runs(&fp8_recipes[i], major, minor) || fp8_recipes[i].cuda > cuda) { continue; }
        size_t used = strlen(buffer);
        snprintf(buffer + used, 64 - used, "%s%s", used ? ", " : "", fp8_recipes[i].name);
    }
    if (!buffer[0]) { snprintf(buffer, 64, "none"); }
    return buffer;
}

// ----------------------------------------------------------------------------
// a recipe as a run uses it

#define FP8_HISTORY_MAX 1024
#define FP8_MARGIN_MAX 6  // MAX / amax is at least 448 / 2^128 = 2^-119.2: six halvings more and the scale is still a normal number, its inverse finite

typedef struct {
    const Fp8Recipe* recipe;                  // the row that this was copied from
    Fp8Format x, w, dy;
    bool fast_fprop, fast_dgrad, fast_wgrad;
    bool powers_of_two;                       // scales of 128 elements and of 128 x 128 are rounded down to a power of two
    int history;                              // recipes with a history: how many optimizer steps it remembers, 1 .. FP8_HISTORY_MAX; 0: no history
    bool most_recent;                         // ... its newest amax counts, not its largest
    int margin;                               // ... the scale is divided by 2^margin, 0 .. FP8_MARGIN_MAX
    bool head;                                // the head's products, with the tied embedding, are quantized as well
} Fp8Settings;

static inline Fp8Settings fp8_settings(const Fp8Recipe* r) {
    Fp8Settings s = {r, r->x, r->w, r->dy, r->fast_fprop, r->fast_dgrad, r->fast_wgrad, false, r->history ? 16 : 0, false, 0, false};
    return s;
}
// NULL, or what contradicts itself, in buffer: to be checked after options were applied.
static inline const char* fp8_settings_check(const Fp8Settings* s, char buffer[160]) {
    const Fp8Recipe* r = s->recipe;
    const bool blocks = r->by_x == FP8_BY_VEC128 || r->by_w == FP8_BY_BLK128 || r->by_dy == FP8_BY_VEC128;
    buffer[0] = 0;
    if (s->powers_of_two && !blocks) { snprintf(buffer, 160, "recipe %s has no scales of 128 elements to round to powers of two", r->name); }
    if (!r->history && (s->history || s->most_recent || s->margin)) { snprintf(buffer, 160, "recipe %s has no history (length %d, margin %d)", r->name, s->history, s->margin); }
    if (r->history && (s->history < 1 || s->history > FP8_HISTORY_MAX)) { snprintf(buffer, 160, "a history of %d steps: it must be 1 to %d", s->history, FP8_HISTORY_MAX); }
    if (s->margin < 0 || s->margin > FP8_MARGIN_MAX) { snprintf(buffer, 160, "a margin of %d: it must be 0 to %d", s->margin, FP8_MARGIN_MAX); }
    if (s->w == FP8_E5M2) { snprintf(buffer, 160, "weights are E4M3"); }
    if (s->x == FP8_E5M2 && s->dy == FP8_E5M2) { snprintf(buffer, 160, "E5M2 x E5M2 is not multiplied: inputs and gradients cannot both be E5M2"); }
    return buffer[0] ? buffer : NULL;
}

#endif
