/* fp8_recipes.h - the recipes as a table: what a tensor of each role is rounded to, and how
 *
 * One row a recipe; --fp8-recipe, its help and the README's list are made from it. Host code only, so that the option table can include it.
 * The device side of a recipe is its Sink, in fp8_recipe.cuh.
 */
#ifndef LLMC_FP8_RECIPES_H
#define LLMC_FP8_RECIPES_H

typedef enum { FP8_E4M3 = 0, FP8_E5M2 = 1 } Fp8Format;
#define FP8_MAX(format) ((format) == FP8_E4M3 ? 448.0f : 57344.0f)

// name, formats of x, W, dY; fast accumulation in fprop, dgrad, wgrad; passes over the BF16 tensor (2: amax first, then quantize); what it needs
#define RECIPE_TABLE(X) \
    X(current, FP8_E4M3, FP8_E4M3, FP8_E5M2, 1, 0, 0, 2, "8.9, 9.0, 10.x, 12.x; CUDA 12.2")

typedef struct {
    const char* name;
    Fp8Format x, w, dy;
    bool fast_fprop, fast_dgrad, fast_wgrad;
    int passes;
    const char* needs;
} Fp8Recipe;

static const Fp8Recipe fp8_recipes[] = {
#define RECIPE_ROW(name, x, w, dy, ff, fd, fw, passes, needs) {#name, x, w, dy, ff, fd, fw, passes, needs},
    RECIPE_TABLE(RECIPE_ROW)
#undef RECIPE_ROW
};

#define RECIPE_CHOICE(name, x, w, dy, ff, fd, fw, passes, needs) #name ","
#define RECIPE_CHOICES RECIPE_TABLE(RECIPE_CHOICE)  // "current,": the choices of an option, whose value is then the row's index

#endif
