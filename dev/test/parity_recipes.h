/* parity_recipes.h - every FP8 recipe against the PyTorch reference: codes and scales to the last bit, histories, whole models
 *
 * What:      the reference's BF16 tensors (*_float8_fp8.bin) through our quantize kernel by each recipe of its *_codes.bin files: codes of both orders and the
 *            arrays of descales in cuBLASLt's layouts, padding included, are the reference's. edge_delayed.txt: the scale of every use in the course of many steps. Each
 *            variant of the reference as a model: its FP8 weights exactly; logits, losses and gradients of a step, and three steps, as in parity.h.
 * Layouts:   written down once more here (recipe_layout), not taken from llmc/fp8_layout.h.
 * Bounds:    as in parity.h: twice the error of the reference's own run by that recipe.
 * Errors:    a missing or damaged file fails the test with a message; a file in the fixtures' folder that no test reads does as well.
 * Usage:     include after parity.h
 */
#ifndef DEV_TEST_PARITY_RECIPES_H
#define DEV_TEST_PARITY_RECIPES_H

#include <dirent.h>
#include <set>

#include "dev/test/parity.h"

// A recipe as the reference ran it: NAME_codes.bin, and what it is in our terms.
typedef struct {
    const char *name, *recipe;
    Fp8Format x, dy;
    bool powers_of_two;
} RecipeCase;
static const RecipeCase recipe_cases[] = {
    {"current",        "current", FP8_E4M3, FP8_E5M2, false},   // has no codes file: float8_fp8.bin are its codes
    {"current_e4m3",   "current", FP8_E4M3, FP8_E4M3, false}, {"current_e5m2_x", "current", FP8_E5M2, FP8_E4M3, false}, {"delayed",    "delayed", FP8_E4M3, FP8_E5M2, false},
    {"row",            "row",     FP8_E4M3, FP8_E4M3, false}, {"block",          "block",   FP8_E4M3, FP8_E4M3, false}, {"block_pow2", "block",   FP8_E4M3, FP8_E4M3, true},
    {"mx",             "mx",      FP8_E4M3, FP8_E4M3, false}, {"mx_e5m2_dy",     "mx",      FP8_E4M3, FP8_E5M2, false}};

// A model that the reference ran: NAME_debug_state.bin and its lines in small_steps.txt.
typedef struct {
    const char *name, *recipe;             // recipe: name of a RecipeCase
    bool wgrad_bf16;
    const char* in_bf16;
    bool head;
} RecipeVariant;
static const RecipeVariant recipe_variants[] = {
    {"delayed", "delayed", false, "", false}, {"row", "row", false, "", false}, {"block", "block", false, "", false}, {"block_pow2", "block_pow2", false, "", false},
    {"mx", "mx", false, "", false}, {"row_bf16_wgrad", "row", true, "", false}, {"mixed", "mx_e5m2_dy", false, "0,attproj", false}, {"head", "current", false, "", true}};
#define VARIANT_STEPS 3

static Fp8Settings recipe_settings(const char* name) {
    for (const RecipeCase& c : recipe_cases) {
        for (const Fp8Recipe& r : fp8_recipes) {
            if (strcmp(c.name, name) || strcmp(c.recipe, r.name)) { continue; }
            Fp8Settings s = fp8_settings(&r);
            s.x = c.x;
            s.dy = c.dy;
            s.powers_of_two = c.powers_of_two;
            return s;
        }
    }
    CHECK(false, "there is no recipe %s", name);
    return Fp8Settings();
}

// ---------------------------------------------------------------------------- codes and scales

// What a recipe makes of one order, (outer, inner), of a tensor.
typedef struct {
    int32_t format, block_outer, block_inner, whole;   // whole: the codes themselves are in the file
    std::vector<uint32_t> words;                       // of each block, in rows of blocks: the bits of the descale, or the byte of a power of two
    uint64_t digest;                                   // XXH64 of the codes
    std::vector<uint8_t> codes;
} OrderDue;
typedef struct { std::string name; int rows, cols; OrderDue k, t; } TensorDue;

#define CODES_MAGIC 20261201
// The file's layout is in dev/reference/README.md.
static std::vector<TensorDue> recipe_read_codes(const std::string& path) {
    InputFile f;
    FileError error;
    int32_t h[4];
    fileCheck(input_file_open(&f, path.c_str(), &error) && input_file_read(&f, h, sizeof(h), &error), &error);
    CHECK(h[0] == CODES_MAGIC && h[1] == 1 && h[2] > 0, "'%s' has magic %d, version %d, %d records; magic %d and version 1 are expected", path.c_str(), h[0], h[1], h[2], CODES_MAGIC);
    std::vector<TensorDue> tensors(h[2]);
    for (TensorDue& d : tensors) {
        char name[33] = "";
        int32_t size[2];
        fileCheck(input_file_read(&f, name, 32, &error) && input_file_read(&f, size, sizeof(size), &error), &error);
        d.name = name;
        d.rows = size[0];
        d.cols = size[1];
        CHECK(d.rows > 0 && d.rows <= 65536 && d.cols > 0 && d.cols <= 65536, "'%s': '%s' has %d x %d elements", path.c_str(), name, d.rows, d.cols);
        for (OrderDue* q : {&d.k, &d.t}) {
            const int outer = q == &d.k ? d.rows : d.cols, inner = q == &d.k ? d.cols : d.rows;
            fileCheck(input_file_read(&f, &q->format, 4 * sizeof(int32_t), &error), &error);
            CHECK(q->block_outer > 0 && q->block_inner > 0, "'%s': '%s' has blocks of %d x %d", path.c_str(), name, q->block_outer, q->block_inner);
            q->words.resize((size_t)CEIL_DIV(outer, q->block_outer) * CEIL_DIV(inner, q->block_inner));
            q->codes.resize(q->whole ? (size_t)outer * inner : 0);
            fileCheck(input_file_read(&f, q->words.data(), q->words.size() * 4, &error) && input_file_read(&f, &q->digest, 8, &error) &&
                      input_file_read(&f, q->codes.data(), q->codes.size(), &error), &error);
        }
    }
    CHECK(f.offset == f.size, "'%s' has %llu bytes after its last record", path.c_str(), (unsigned long long)(f.size - f.offset));
    input_file_close(&f);
    return tensors;
}

// The array of descales of an order (outer, inner) as cuBLASLt's documents lay it out: bytes, padding 0. by TENSOR: the one float.
static std::vector<uint8_t> recipe_layout(Fp8Granularity by, const OrderDue* q, int outer, int inner) {
    const int blocks = CEIL_DIV(inner, q->block_inner), rows = CEIL_DIV(outer, q->block_outer);
    const size_t mx_tiles = (size_t)CEIL_DIV(outer, 128) * CEIL_DIV(blocks, 4), stride = CEIL_DIV(blocks, 4) * 4;  // of a row of blk128
    std::vector<uint8_t> bytes(by == FP8_BY_VEC32 ? mx_tiles * 512 : by == FP8_BY_BLK128 ? rows * stride * 4 : q->words.size() * 4, 0);
    for (int o = 0; o < rows; o++) {
        for (int i = 0; i < blocks; i++) {
            const uint32_t word = q->words[(size_t)o * blocks + i];
            if (by == FP8_BY_VEC32) {
                bytes[((size_t)(o / 128) * CEIL_DIV(blocks, 4) + i / 4) * 512 + o % 32 * 16 + o % 128 / 32 * 4 + i % 4] = (uint8_t)word;
            } else {
                memcpy(&bytes[4 * (by == FP8_BY_VEC128 ? (size_t)i * outer + o : by == FP8_BY_BLK128 ? o * stride + i : (size_t)o)], &word, 4);
            }
        }
    }
    return bytes;
}
// Are these blocks what the granularity means? E.g. a file whose weights have blocks of 1 x 128 is not one of our recipe.
static bool recipe_blocks_fit(Fp8Granularity by, const OrderDue* q, int outer, int inner) {
    switch (by) {
    case FP8_BY_TENSOR: return q->block_outer == outer && q->block_inner == inner;
    case FP8_BY_ROW: return q->block_outer == 1 && q->block_inner == inner;
    case FP8_BY_VEC128: return q->block_outer == 1 && q->block_inner == 128;
    case FP8_BY_BLK128: return q->block_outer == 128 && q->block_inner == 128;
    default: return q->block_outer == 1 && q->block_inner == 32;
    }
}

// Compares an order on the device, its codes (outer, inner) and descales, with what is due; "" or what is wrong.
static std::string recipe_compare(Fp8Granularity by, const OrderDue* q, int outer, int inner, const uint8_t* codes, const void* scales) {
    const std::vector<uint8_t> ours = fetch_codes(codes, (size_t)outer * inner), due = recipe_layout(by, q, outer, inner), found = fetch_codes((const uint8_t*)scales, due.size());
    size_t scales_off = 0;
    for (size_t i = 0; i < due.size(); i += by == FP8_BY_VEC32 ? 1 : 4) { scales_off += memcmp(&due[i], &found[i], by == FP8_BY_VEC32 ? 1 : 4) != 0; }
    std::string wrong;
    if (scales_off) { wrong += std::to_string(scales_off) + " scales"; }
    const bool equal = xxh64(ours.data(), ours.size(), 0) == q->digest && (!q->whole || ours == q->codes);
    if (!equal) { wrong += wrong.empty() ? "codes" : " and codes"; }
    return wrong;
}

// One case's file on the inputs of `where` (small, edge): each tensor in all ways that the program quantizes it.
static void recipe_check_codes(const std::string& where, const RecipeCase* c) {
    const std::string path = where + "_" + c->name + "_codes.bin";
    const Fp8Settings settings = recipe_settings(c->name);
    std::vector<Fp8Record> inputs = parity_read_fp8((where + "_float8_fp8.bin").c_str());
    std::vector<TensorDue> due = recipe_read_codes(path);
    CHECK(inputs.size() == due.size(), "'%s' has %zu tensors, its inputs are %zu", path.c_str(), due.size(), inputs.size());
    Device dev;
    device_init(&dev, 0);
    std::string wrong;
    for (size_t n = 0; n < due.size(); n++) {
        const Fp8Record* r = &inputs[n];
        const TensorDue* d = &due[n];
        CHECK(d->name == r->name && d->rows == r->rows && d->cols == r->cols, "'%s': tensor %zu is '%s' (%d x %d), its input '%s'", path.c_str(), n, d->name.c_str(), d->rows, d->cols,
              r->name.c_str());
        const Fp8Granularity by = fp8_role_granularity(settings.recipe, r->role);
        CHECK(recipe_blocks_fit(by, &d->k, r->rows, r->cols) && recipe_blocks_fit(by, &d->t, r->cols, r->rows) && d->k.format == fp8_role_format(&settings, r->role) && d->t.format == d->k.format,
              "'%s': '%s' has format %d and blocks of %d x %d, not what %s means", path.c_str(), d->name.c_str(), d->k.format, d->k.block_outer, d->k.block_inner, c->name);
        const size_t size = r->x.size(), scale_bytes = size * 4 + 512;   // more than any layout takes
        bf16* x = (bf16*)device_alloc(&dev, MEM_SCRATCH, "x", size * sizeof(bf16));
        uint8_t *k = (uint8_t*)device_alloc(&dev, MEM_SCRATCH, "k", size), *t = (uint8_t*)device_alloc(&dev, MEM_SCRATCH, "t", size);
        uint8_t *k_scale = (uint8_t*)device_alloc(&dev, MEM_SCRATCH, "k scales", scale_bytes), *t_scale = (uint8_t*)device_alloc(&dev, MEM_SCRATCH, "t scales", scale_bytes);
        float* dbias = (float*)device_alloc(&dev, MEM_SCRATCH, "dbias", r->cols * sizeof(float));
        float* partial = (float*)device_alloc(&dev, MEM_SCRATCH, "partial", column_sum_partials(r->rows, r->cols) * sizeof(float));
        cudaCheck(cudaMemcpy(x, r->x.data(), size * sizeof(bf16), cudaMemcpyHostToDevice));
        enum { TRAINING, COUNTING, ONLY_K, ONLY_T, EVALUATION, NUM_WAYS };
        for (int way = 0; way < NUM_WAYS; way++) {
            if (way == EVALUATION && r->role != FP8_ROLE_X) { continue; }
            const bool has_k = way != ONLY_T, has_t = way != ONLY_K && way != EVALUATION, bias = r->role == FP8_ROLE_DY;
            Fp8Scaling s;
            fp8_scaling_init(&s, &settings, 1);
            s.count_on = way == COUNTING;
            const int slot = fp8_slot(&s, way == EVALUATION ? FP8_ROLE_EVAL_X : r->role, 0, r->linear < 0 ? 0 : r->linear);
            for (uint8_t* each : {k_scale, t_scale}) { cudaCheck(cudaMemset(each, 0x55, scale_bytes)); }
            for (uint8_t* each : {k, t}) { cudaCheck(cudaMemset(each, 0x55, size)); }
            cudaCheck(cudaMemset(dbias, 0, r->cols * sizeof(float)));
            cudaCheck(cudaDeviceSynchronize());
            if (fp8_needs_amax(&s, slot)) { amax_reduce(s.amax + slot, x, size, dev.stream); }
            const Fp8Operand q = fp8_operand(&s, slot, has_k ? k : NULL, has_t ? t : NULL, k_scale, t_scale);
            fp8_quantize(&s, slot, q, x, r->rows, r->cols, bias ? dbias : NULL, bias ? partial : NULL, false, dev.stream);
            cudaCheck(cudaStreamSynchronize(dev.stream));
            const std::string of_k = has_k ? recipe_compare(by, &d->k, r->rows, r->cols, k, q.k_scale) : "", of_t = has_t ? recipe_compare(by, &d->t, r->cols, r->rows, t, q.t_scale) : "";
            const size_t wrong_sums = bias ? parity_count_wrong_sums(r, fetch_values(dbias, r->cols)) : 0;
            if (!of_k.empty() || !of_t.empty() || wrong_sums) {
                printf("    %s: %s, way %d: wrong of k: %s; of t: %s; %zu column sums\n", c->name, d->name.c_str(), way, of_k.c_str(), of_t.c_str(), wrong_sums);
                if (wrong.find(d->name) == std::string::npos) { wrong += (wrong.empty() ? "" : ", ") + d->name; }
            }
            fp8_scaling_free(&s);
        }
        for (void* p : {(void*)x, (void*)k, (void*)t, (void*)k_scale, (void*)t_scale, (void*)dbias, (void*)partial}) { cudaCheck(cudaFree(p)); }
    }
    device_free(&dev);
    printf("    %s: %zu tensors\n", path.c_str(), due.size());
    CHECK(wrong.empty(), "'%s': codes or scales differ from the reference's: %s", path.c_str(), wrong.c_str());
}
static void test_parity_recipes_codes_equal_reference(void) {
    NEEDS_FP8();
    for (const RecipeCase& c : recipe_cases) {
        if (!strcmp(c.name, "current")) { continue; }
        recipe_check_codes(FIXTURES "small", &c);
        recipe_check_codes(FIXTURES "edge", &c);
    }
}

// ---------------------------------------------------------------------------- histories

// The courses of steps of edge_delayed.txt: the scale of every use and of every evaluation. A tensor of 16 x 16 equal values has the amax that a line says.
static void test_parity_recipes_history_equals_reference(void) {
    NEEDS_FP8();
    const char* path = FIXTURES "edge_delayed.txt";
    Device dev;
    device_init(&dev, 0);
    FILE* f = fopenCheck(path, "r");
    bf16* x = (bf16*)device_alloc(&dev, MEM_SCRATCH, "x", 256 * sizeof(bf16));
    uint8_t* k = (uint8_t*)device_alloc(&dev, MEM_SCRATCH, "k", 256);
    Fp8Scaling s;
    bool open = false, begun = false;
    char line[256], name[32] = "", last[8], format[8];
    int cases = 0, uses = 0, number = 0, wrong = 0;
    while (fgets(line, sizeof(line), f)) {
        number++;
        int length, margin;
        unsigned amax, due;
        char word[8];
        if (line[0] == '#') { continue; }
        if (sscanf(line, "case %31s %d %7s %d %7s", name, &length, last, &margin, format) == 5) {
            Fp8Settings settings = recipe_settings("delayed");
            char why[160];
            settings.history = length;
            settings.most_recent = !strcmp(last, "recent");
            settings.margin = margin;
            settings.x = !strcmp(format, "E5M2") ? FP8_E5M2 : FP8_E4M3;
            settings.dy = FP8_E4M3;
            CHECK(!fp8_settings_check(&settings, why), "'%s' line %d: %s", path, number, why);
            if (open) { fp8_scaling_free(&s); }
            fp8_scaling_init(&s, &settings, 1);
            open = true;
            begun = false;
            cases++;
            continue;
        }
        CHECK(open && sscanf(line, "%7s", word) == 1, "'%s' line %d: '%s'", path, number, line);
        if (!begun) { fp8_scaling_begin_step(&s, dev.stream); }  // as micro-step 0 does
        begun = true;
        if (!strcmp(word, "end") || !strcmp(word, "skip")) {
            if (word[0] == 'e') { fp8_scaling_end_step(&s, dev.stream); }
            begun = false;
            continue;
        }
        CHECK(sscanf(line, "%7s %x %x", word, &amax, &due) == 3, "'%s' line %d: '%s'", path, number, line);
        const Fp8Role role = !strcmp(word, "eval") ? FP8_ROLE_EVAL_X : FP8_ROLE_X;
        const int slot = fp8_slot(&s, role, 0, LINEAR_FC);
        const std::vector<uint16_t> values(256, (uint16_t)(amax >> 16));
        cudaCheck(cudaMemcpy(x, values.data(), 256 * sizeof(bf16), cudaMemcpyHostToDevice));
        cudaCheck(cudaDeviceSynchronize());
        fp8_scaling_begin(&s, role, dev.stream);
        if (fp8_needs_amax(&s, slot)) { amax_reduce(s.amax + slot, x, 256, dev.stream); }
        const int scaled = fp8_scale_slot(&s, slot);
        fp8_quantize(&s, slot, fp8_operand(&s, slot, k, NULL, NULL, NULL), x, 16, 16, NULL, NULL, false, dev.stream);
        float found[2], expected;
        cudaCheck(cudaStreamSynchronize(dev.stream));
        cudaCheck(cudaMemcpy(&found[0], s.scale + scaled, sizeof(float), cudaMemcpyDeviceToHost));
        cudaCheck(cudaMemcpy(&found[1], s.descale + scaled, sizeof(float), cudaMemcpyDeviceToHost));
        memcpy(&expected, &due, sizeof(float));
        if (!same_float(found[0], expected) || !same_float(found[1], 1.0f / expected)) {
            if (wrong++ < 8) { printf("    line %d, case %s, length %d: %s of amax %08x has the scale %.9g, should be %.9g\n", number, name, s.settings.history, word, amax, found[0], expected); }
        }
        uses++;
    }
    fclose(f);
    if (open) { fp8_scaling_free(&s); }
    cudaCheck(cudaFree(x));
    cudaCheck(cudaFree(k));
    device_free(&dev);
    printf("    %d courses, %d uses\n", cases, uses);
    CHECK(cases >= 20 && uses >= 2000, "'%s' has only %d courses with %d uses", path, cases, uses);
    CHECK(wrong == 0, "%d of %d scales are not the reference's", wrong, uses);
}

// ---------------------------------------------------------------------------- whole models

static bool device_lacks_recipe(const Fp8Recipe* r) {
    Device dev;
    device_init(&dev, 0);
    const bool lacks = !fp8_recipe_runs(r, dev.capability / 10, dev.capability % 10);
    device_free(&dev);
    return lacks;
}

// The model's FP8 weights, every layer's in both orders, are what the reference made of them.
static void recipe_check_weights(GPT<bf16>* g, const RecipeVariant* v) {
    const std::vector<TensorDue> due = recipe_read_codes(std::string(FIXTURES "small_") + v->recipe + "_codes.bin");
    int compared = 0;
    cudaCheck(cudaStreamSynchronize(g->dev->stream));
    for (const TensorDue& d : due) {
        int layer = 0, linear = NUM_LINEARS - 1;
        char name[32];
        if (sscanf(d.name.c_str(), "w/%d/%31s", &layer, name) != 2) { continue; }
        while (linear > 0 && strcmp(name, linear_names[linear])) { linear--; }
        if (!gpt_linear_fp8(g, layer, linear)) { continue; }
        const Fp8Granularity by = g->scaling.recipe->by_w;
        const Fp8Operand q = gpt_weight_operand(g, layer, linear);
        const std::string of_k = recipe_compare(by, &d.k, d.rows, d.cols, q.k, q.k_scale), of_t = q.t ? recipe_compare(by, &d.t, d.cols, d.rows, q.t, q.t_scale) : "";
        CHECK(of_k.empty() && of_t.empty(), "%s: the model's %s: wrong of k: %s; of t: %s", v->name, d.name.c_str(), of_k.c_str(), of_t.c_str());
        compared++;
    }
    CHECK(compared > 0, "%s: no weight was compared", v->name);
}

// The means of losses and norms of as many runs of three steps as the reference made.
static void recipe_check_steps(const RecipeVariant* v, const SubjectRecipe* how, const DebugState* batch) {
    Hyper hyper;
    Steps truth, reference, ours;
    parity_read_steps(FIXTURES "small_steps.txt", "float64", &hyper, &truth, STEPS);
    parity_read_steps(FIXTURES "small_steps.txt", v->name, &hyper, &reference, VARIANT_STEPS);
    truth.losses.resize(VARIANT_STEPS);
    truth.norms.resize(VARIANT_STEPS);
    parity_allow_luck(&reference, &truth);
    ours.losses.assign(VARIANT_STEPS, 0.0f);
    ours.norms.assign(VARIANT_STEPS, 0.0f);
    for (int run = 0; run < (int)hyper.draws; run++) {
        Subject<bf16>* s = subject_init<bf16>(FIXTURES "small.bin", true, false, batch, how);
        if (run == 0 && strcmp(v->recipe, "current")) { recipe_check_weights(&s->gpt, v); }
        Steps steps;
        s->opt.seed = 1 + run;
        subject_run_steps(s, &hyper, VARIANT_STEPS, &steps);
        for (int i = 0; i < VARIANT_STEPS; i++) {
            ours.losses[i] += steps.losses[i] / (float)hyper.draws;
            ours.norms[i] += steps.norms[i] / (float)hyper.draws;
        }
        subject_free(s);
    }
    Parity losses = {}, norms = {};
    std::string failed;
    parity_add_row(&losses, ours.losses.data(), truth.losses.data(), reference.losses.data(), NULL, VARIANT_STEPS);
    parity_add_row(&norms, ours.norms.data(), truth.norms.data(), reference.norms.data(), NULL, VARIANT_STEPS);
    parity_report_earned(&losses, FLOAT8, "3 losses", &failed);
    parity_report_earned(&norms, FLOAT8, "3 norms", &failed);
    CHECK(failed.empty(), "%s: further from the truth than the bound after three steps: %s", v->name, failed.c_str());
}
static void test_parity_recipes_match_reference(void) {
    NEEDS_FP8();
    ModelFile file;
    DebugState batch;
    parity_open_model(&file, FIXTURES "small.bin");
    parity_open_state(&batch, FIXTURES "small_float64_debug_state.bin", &file.header);
    model_file_close(&file);
    for (const RecipeVariant& v : recipe_variants) {
        SubjectRecipe how = {recipe_settings(v.recipe), v.wgrad_bf16, v.in_bf16};
        how.settings.head = v.head;
        if (device_lacks_recipe(how.settings.recipe)) { printf("    %s: not on this device\n", v.name); continue; }
        printf("    %s\n", v.name);
        parity_check_batch<bf16>(FLOAT8, v.name, &how);
        recipe_check_steps(&v, &how, &batch);
    }
    debug_state_close(&batch);
}

// ---------------------------------------------------------------------------- what is read

// Every file in the fixtures' folder is one that a test above, or in parity.h, reads: a recipe that the reference has and this program does not is noticed.
static void test_parity_recipes_read_every_fixture(void) {
    std::set<std::string> read = {"small.bin", "small_steps.txt", "small_float64_debug_state.bin", "small_float64_after10.bin", "small_float8_fp8.bin", "edge_float8_fp8.bin", "edge_delayed.txt"};
    for (const char* p : precision_names) { for (const char* end : {"_debug_state.bin", "_after10.bin"}) { read.insert(std::string("small_") + p + end); } }
    for (const RecipeVariant& v : recipe_variants) { read.insert(std::string("small_") + v.name + "_debug_state.bin"); }
    for (const RecipeCase& c : recipe_cases) {
        if (strcmp(c.name, "current")) { for (const char* where : {"small_", "edge_"}) { read.insert(std::string(where) + c.name + "_codes.bin"); } }
    }
    DIR* folder = opendir(FIXTURES);
    CHECK(folder, "'%s': %s; run the tests from the top folder of the repository", FIXTURES, strerror(errno));
    std::string orphans;
    size_t found = 0;
    while (struct dirent* entry = readdir(folder)) {
        if (entry->d_name[0] == '.') { continue; }
        found++;
        if (!read.count(entry->d_name)) { orphans += std::string(orphans.empty() ? "" : ", ") + entry->d_name; }
    }
    closedir(folder);
    CHECK(orphans.empty(), "no test reads %s of " FIXTURES, orphans.c_str());
    CHECK(found == read.size(), "%zu files, %zu are read", found, read.size());
    // of small_steps.txt, every line's precision
    const std::string steps = test_read_file(FIXTURES "small_steps.txt");
    for (size_t at = 0; at < steps.size(); at = steps.find('\n', at) + 1) {
        const std::string name = steps.substr(at, steps.find(' ', at) - at);
        CHECK(name == "#" || read.count("small_" + name + "_debug_state.bin"), "no test reads the lines of %s in small_steps.txt", name.c_str());
    }
}

#define PARITY_RECIPE_TESTS \
    {"parity_recipes_read_every_fixture", test_parity_recipes_read_every_fixture, QUICK}, \
    {"parity_recipes_codes_equal_reference", test_parity_recipes_codes_equal_reference, QUICK}, \
    {"parity_recipes_history_equals_reference", test_parity_recipes_history_equals_reference, QUICK}, \
    {"parity_recipes_match_reference", test_parity_recipes_match_reference, QUICK},

#endif
