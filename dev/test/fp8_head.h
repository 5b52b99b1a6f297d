/* fp8_head.h - the FP8 head: gradients, chunks, scaling state, and the program with --fp8-head
 *
 * What:      on the reference's small model: cosines with the reference in float64, by every recipe; a head in chunks against one in one piece, the last one short;
 *            the slots of the head after training and after evaluation. On the program: recompute levels and resumes to the bit, checkpoints with and without
 *            the head's scales, the guard, telemetry, sampling, --plan, refusals. Parity with the reference by bits is in parity_recipes.h.
 * Usage:     included by test_gpt_fp8.cu, after its own helpers
 */
#ifndef DEV_TEST_FP8_HEAD_H
#define DEV_TEST_FP8_HEAD_H

#include "dev/test/parity_recipes.h"

// A batch of B sequences of the reference's tokens.
struct HeadBatch {
    DebugState first, all;
    std::vector<int> inputs, targets;
};
static HeadBatch* head_batch(int B) {
    HeadBatch* b = new HeadBatch();
    ModelFile file;
    parity_open_model(&file, FIXTURES "small.bin");
    parity_open_state(&b->first, FIXTURES "small_float64_debug_state.bin", &file.header);
    model_file_close(&file);
    b->all = b->first;
    b->all.B = B;
    const int N = b->first.B * b->first.T;
    for (int i = 0; i < B * b->first.T; i++) {
        b->inputs.push_back(b->first.inputs[i * 5 % N]);
        b->targets.push_back(b->first.targets[i * 7 % N]);
    }
    b->all.inputs = b->inputs.data();
    b->all.targets = b->targets.data();
    return b;
}
static void head_batch_free(HeadBatch* b) {
    debug_state_close(&b->first);
    delete b;
}
// Calls fn(name, SubjectRecipe with an FP8 head) for each recipe that the device runs.
template <class F>
static void head_for_recipes(F fn) {
    for (const RecipeCase& c : recipe_cases) {
        SubjectRecipe how = {recipe_settings(c.name), false, ""};
        how.settings.head = true;
        if (!device_lacks_recipe(how.settings.recipe)) { fn(c.name, &how); }
    }
}

// 0.95 is the gate of every recipe's gradients (test_gpt_float8_gradients_point_as_float32).
static void test_head_gradients_point_as_reference(void) {
    NEEDS_FP8();
    ModelFile file;
    DebugState truth;
    parity_open_model(&file, FIXTURES "small.bin");
    parity_open_state(&truth, FIXTURES "small_float64_debug_state.bin", &file.header);
    model_file_close(&file);
    for (int wgrad_bf16 = 0; wgrad_bf16 < 2; wgrad_bf16++) {
        head_for_recipes([&](const char* name, SubjectRecipe* how) {
            how->wgrad_bf16 = wgrad_bf16;
            Subject<bf16>* s = subject_init<bf16>(FIXTURES "small.bin", true, false, &truth, how);
            Result ours;
            double least = 1.0;
            subject_result(s, &ours);
            parity_compare_batch(s->gpt.spec, &ours, &truth, NULL, NULL, [&](const char* tensor, const Parity* p) {
                least = fmin(least, parity_cosine(p));
                CHECK(parity_cosine(p) >= 0.95, "%s: %s: cosine %g with the reference in float64 is below 0.95", name, tensor, parity_cosine(p));
            });
            printf("    %s%s: cosines from %.4f\n", name, wgrad_bf16 ? ", wgrad in BF16" : "", least);
            subject_free(s);
        });
    }
    debug_state_close(&truth);
}

// Two steps of the head in chunks of `rows`: gradients and losses of the second one, and the head's slots.
struct HeadRun { Result result; unsigned amax_step[NUM_FP8_ROLES]; };
static HeadRun* head_run(const SubjectRecipe* how, const DebugState* batch, int rows) {
    HeadRun* run = new HeadRun();
    Subject<bf16>* s = subject_init<bf16>(FIXTURES "small.bin", true, false, batch, how);
    GPT<bf16>* g = &s->gpt;
    float norm;
    subject_step(s, &norm);  // with one chunk: histories begin alike
    gpt_update(g, &s->opt, 0.0f, norm, 0);
    g->head_rows = rows;
    subject_result(s, &run->result);
    Fp8ScalingHost h;
    fp8_scaling_copy(&g->scaling, &h);
    for (int role = 0; role < NUM_FP8_ROLES; role++) { run->amax_step[role] = h.amax_step[fp8_slot(&g->scaling, (Fp8Role)role, 0, LINEAR_HEAD)]; }
    fp8_scaling_host_free(&h);
    subject_free(s);
    return run;
}
// Chunks change no scale where it belongs to a row, or comes from a history: then they change nothing but the sums of dwte, whose contraction they cut. Where a
// chunk has its own scale (current), gradients stay close.
static void test_head_in_chunks(void) {
    NEEDS_FP8();
    HeadBatch* batch = head_batch(3);  // 48 rows: 32 and 16
    head_for_recipes([&](const char* name, SubjectRecipe* how) {
        const bool own = how->settings.recipe->by_x == FP8_BY_TENSOR && !how->settings.history;
        HeadRun *whole = head_run(how, &batch->all, 48), *cut = head_run(how, &batch->all, 32);
        double least = 1.0;
        for (int p = 0; p < NUM_PARAMS; p++) {
            const Values &a = whole->result.grad[p], &b = cut->result.grad[p];
            const double c = cosine(std::vector<double>(a.begin(), a.end()), std::vector<double>(b.begin(), b.end()));
            least = fmin(least, c);
            CHECK(c >= (own ? 0.97 : 0.99), "%s: gradient %d: cosine %g of a head in one piece and in two", name, p, c);
            CHECK(own || p == P_wte || a == b, "%s: gradient %d of a head in two pieces differs", name, p);
        }
        CHECK(own || whole->result.losses == cut->result.losses, "%s: losses of a head in two pieces differ", name);
        for (int role = 0; role < FP8_ROLE_DY; role++) {
            CHECK(whole->amax_step[role] == cut->amax_step[role] && cut->amax_step[role] != 0, "%s: the head's largest %s is %08x in one piece, %08x in two", name, fp8_role_names[role],
                  whole->amax_step[role], cut->amax_step[role]);
        }
        CHECK(own || whole->amax_step[FP8_ROLE_DY] == cut->amax_step[FP8_ROLE_DY], "%s: the head's largest dy differs", name);
        printf("    %s: cosines from %.5f\n", name, least);
        delete whole;
        delete cut;
    });
    head_batch_free(batch);
}

// Slots of the head hold the invariants, are counted, move once a step, and evaluation leaves those of training alone. Their amax is that of the tensors.
static void test_head_scaling_state(void) {
    NEEDS_FP8();
    HeadBatch* batch = head_batch(3);
    head_for_recipes([&](const char* name, SubjectRecipe* how) {
        Subject<bf16>* s = subject_init<bf16>(FIXTURES "small.bin", true, false, &batch->all, how);
        GPT<bf16>* g = &s->gpt;
        Fp8Scaling* f = &g->scaling;
        char message[256], buffer[48];
        g->head_rows = 32;
        f->count_on = true;
        CHECK(fp8_tensors(f) == 4 * g->config.num_layers + 1 && f->count == NUM_FP8_ROLES * fp8_tensors(f), "%d tensors of a role, %d slots", fp8_tensors(f), f->count);
        CHECK(!strcmp(fp8_slot_name(f, fp8_slot(f, FP8_ROLE_DY, 0, LINEAR_HEAD), buffer), "head.dy") && fp8_slot_role(f, fp8_slot(f, FP8_ROLE_DY, 0, LINEAR_HEAD)) == FP8_ROLE_DY, "%s", buffer);
        for (int step = 0; step < 3; step++) {
            Fp8ScalingHost before, after;
            float norm;
            fp8_scaling_clear_counts(f, s->dev.stream);
            subject_step(s, &norm);
            const std::vector<unsigned char> used(f->used, f->used + fp8_training_slots(f));
            fp8_scaling_copy(f, &before);
            for (int role = 0; role < FP8_ROLE_EVAL_X; role++) {
                const int slot = fp8_slot(f, (Fp8Role)role, 0, LINEAR_HEAD);
                const unsigned long long elements = role == FP8_ROLE_W ? 0 : (48ull * (role == FP8_ROLE_X ? 32 : 128)) * (f->recipe->by_x == FP8_BY_TENSOR ? 1 : 2);
                CHECK(before.amax_step[slot] != 0 && f->elements[slot] == elements, "%s: %s: amax %08x, %llu elements counted, not %llu", name, fp8_slot_name(f, slot, buffer), before.amax_step[slot],
                      f->elements[slot], elements);
            }
            float largest = 0.0f, amax;
            for (float x : fetch_values(g->acts.lnf, 48 * 32)) { largest = fmaxf(largest, fabsf(x)); }
            memcpy(&amax, &before.amax_step[fp8_slot(f, FP8_ROLE_X, 0, LINEAR_HEAD)], sizeof(amax));
            CHECK(amax == largest, "%s: the head's amax is %g, that of its input %g", name, amax, largest);
            gpt_update(g, &s->opt, 1e-3f, norm, step);
            fp8_scaling_copy(f, &after);
            if (how->settings.history) {
                const char* broken = fp8_scaling_check_moved(f, &before, &after, used.data(), message);
                CHECK(!broken, "%s: %s", name, broken);
            }
            const char* broken = fp8_scaling_check(f, &after, 0, f->count, 2ull * 48 * 128 * 32, message);
            CHECK(!broken, "%s: %s", name, broken);
            fp8_scaling_host_free(&before);
            gpt_evaluate(g, s->inputs.data(), s->targets.data());
            fp8_scaling_copy(f, &before);
            broken = fp8_scaling_check_moved(f, &after, &before, NULL, message);
            CHECK(!broken, "%s: %s", name, broken);
            fp8_scaling_host_free(&before);
            fp8_scaling_host_free(&after);
        }
        subject_free(s);
    });
    head_batch_free(batch);
}

// A token through the cache, as a row of a padded product, gives the logits of a whole pass, within what FP8 errs there.
static void test_head_samples(void) {
    NEEDS_FP8();
    HeadBatch* batch = head_batch(2);
    head_for_recipes([&](const char* name, SubjectRecipe* how) {
        Subject<bf16>* s = subject_init<bf16>(FIXTURES "small.bin", true, false, &batch->all, how);
        Subject<float>* exact = subject_init<float>(FIXTURES "small.bin", false, false, &batch->all);
        const int T = batch->all.T, V = s->gpt.config.vocab_size;
        gpt_plan_sampling(&s->gpt, T, 3, T);
        const size_t planned = s->dev.plans.size();
        std::vector<float> one, whole, truth;
        double error_one = 0, error_whole = 0;
        for (int n = 3, cached = 0; n <= T; n++) {
            int none = 0, zero = 0;
            gpt_next_logits(&s->gpt, batch->inputs.data(), n, &cached, &one);
            gpt_next_logits(&exact->gpt, batch->inputs.data(), n, &zero, &truth);
            for (int v = 0; v < V; v++) { error_one = fmax(error_one, fabs(one[v] - truth[v])); }
            if (n == T) { gpt_next_logits(&s->gpt, batch->inputs.data(), n, &none, &whole); }
        }
        for (int v = 0; v < V; v++) { error_whole = fmax(error_whole, fabs(whole[v] - truth[v])); }
        CHECK(s->dev.plans.size() == planned, "%s: %zu products were not planned", name, s->dev.plans.size() - planned);
        printf("    %s: error through the cache %g, of a whole pass %g\n", name, error_one, error_whole);
        CHECK(error_one < 0.8 && error_whole < 0.8, "%s: logits are off by %g through the cache, %g in a whole pass", name, error_one, error_whole);
        subject_free(s);
        subject_free(exact);
    });
    head_batch_free(batch);
}

// ---------------------------------------------------------------------------- the program

static void test_head_resume_equals_uninterrupted(void) {
    NEEDS_FP8();
    check_resume("float8", "--fp8-head");
    if (device_lacks_recipe(recipe_settings("delayed").recipe)) { return; }
    check_resume("float8", "--fp8-head --fp8-recipe delayed --fp8-history-algorithm recent -l 3e-2 -s 3 --fp8-guard-every 2 --fp8-guard-saturated 0 --fp8-guard-steps 3");
}
static void test_head_recompute_levels_give_equal_bits(void) {
    NEEDS_FP8();
    std::string dir, out, model;
    make_data(&dir);
    for (int r = 0; r < 3; r++) {
        const std::string folder = dir + "/r" + std::to_string(r);
        CHECK(trainer(base(dir) + "--dtype float8 --fp8-head --fp8-recipe delayed -x 4 -n 4 -r " + std::to_string(r) + " -o " + folder, &out) == 0, "%s", out.c_str());
        const std::string now = test_read_file(folder + "/model_00000004.bin");
        CHECK(r == 0 || now == model, "recompute level %d gives another model", r);
        model = now;
    }
    remove_folder(dir);
}
// A head that is kept in BF16 is the head of a run without --fp8-head, to the bit.
static void test_head_in_bf16_is_the_plain_head(void) {
    NEEDS_FP8();
    std::string dir, plain, kept, fp8;
    make_data(&dir);
    const std::string args = base(dir) + "--dtype float8 -x 5 ";
    CHECK(trainer(args, &plain) == 0 && trainer(args + "--fp8-head --fp8-bf16-layers head", &kept) == 0 && trainer(args + "--fp8-head", &fp8) == 0, "%s%s%s", plain.c_str(), kept.c_str(), fp8.c_str());
    CHECK(!numbers_of(plain).empty() && numbers_of(plain) == numbers_of(kept), "%s\n--\n%s", plain.c_str(), kept.c_str());
    CHECK(numbers_of(plain) != numbers_of(fp8), "--fp8-head changes nothing");
    remove_folder(dir);
}
// Checkpoints of a run without the head's scales go on in one with them, and the other way round; both say so.
static void test_head_comes_and_goes_on_resume(void) {
    NEEDS_FP8();
    std::string dir, out;
    make_data(&dir);
    for (const char* recipe : {"current", "delayed"}) {
        const std::string args = base(dir) + "--dtype float8 --fp8-recipe " + recipe + " -n 2 -o " + dir + "/" + recipe + " ";
        CHECK(trainer(args + "-x 2", &out) == 0, "%s", out.c_str());
        CHECK(trainer(args + "-x 4 -y 1 --fp8-head --fp8-stats-every 1", &out) == 0 && out.find("no FP8 scales of the head: they start afresh") != std::string::npos &&
              out.find("--fp8-head was 0, is 1") != std::string::npos && out.find("head.dy") != std::string::npos, "%s", out.c_str());
        CHECK(trainer(args + "-x 6 -y 1", &out) == 0 && out.find("scales of the head are not used") != std::string::npos && out.find("step    6/6") != std::string::npos, "%s", out.c_str());
    }
    remove_folder(dir);
}
static void test_head_is_reported_and_guarded(void) {
    NEEDS_FP8();
    std::string dir, out;
    make_data(&dir);
    CHECK(trainer(base(dir) + "--dtype float8 --fp8-head --fp8-recipe delayed --fp8-history-algorithm recent -l 3e-2 -x 6 -n 6 -s 6 -g 20 --fp8-stats-every 3 --fp8-log-every 3 --fp8-guard-every 2 "
                  "--fp8-guard-saturated 0 --fp8-guard-steps 2 -o " + dir + "/a", &out) == 0, "%s", out.c_str());
    for (const char* words : {"head.x ", "head.w ", "head.dy ", ": the head is in BF16 until step", "the head is in FP8 again", "sampled 19 tokens"}) {
        CHECK(out.find(words) != std::string::npos, "no '%s' in\n%s", words, out.c_str());
    }
    CHECK(test_read_file(dir + "/a/fp8.jsonl").find("\"tensor\":\"head.w\"") != std::string::npos, "fp8.jsonl lacks the head");
    for (const char* dtype : {"bfloat16", "float32"}) {
        CHECK(trainer(base(dir) + "--fp8-head -x 1 --dtype " + dtype, &out) == 2 && out.find("--fp8-head needs --dtype float8") != std::string::npos && out.find("HINT") != std::string::npos,
              "%s", out.c_str());
    }
    CHECK(trainer(base(dir) + "--dtype float8 -x 1 --fp8-bf16-layers head", &out) == 1 && out.find("the head is not in FP8") != std::string::npos, "%s", out.c_str());
    remove_folder(dir);
}
// --plan counts the FP8 copies of wte and the operands' scratch. d12, B 1, T 1024: 50304 x 768 twice; a chunk of 1024 rows of logits and lnf twice. Kilobytes of scales aside.
static void test_head_is_planned(void) {
    NEEDS_FP8();
    std::string out;
    double weights[2], scratch[2];
    for (int head = 0; head < 2; head++) {
        CHECK(trainer(std::string("-e d12 -b 1 -t 1024 --dtype float8 --plan") + (head ? " --fp8-head" : ""), &out) == 0, "%s", out.c_str());
        const size_t w = out.find("FP8 weights"), s = out.find("scratch");
        CHECK(w != std::string::npos && s != std::string::npos, "%s", out.c_str());
        weights[head] = strtod(out.c_str() + w + 11, NULL);
        scratch[head] = strtod(out.c_str() + s + 7, NULL);
    }
    const int orders = device_lacks_recipe(recipe_settings("row").recipe) && !device_lacks_recipe(recipe_settings("mx").recipe) ? 1 : 2;  // 10.x, 12.x: any layout
    const double MiB = 1 << 20, wte = orders * 50304.0 * 768 / MiB, operands = orders * 1024.0 * (50304 + 768) / MiB;
    CHECK(fabs(weights[1] - weights[0] - wte) < 0.11 && fabs(scratch[1] - scratch[0] - operands) < 0.11, "FP8 weights %.1f -> %.1f MiB, scratch %.1f -> %.1f; %.1f and %.1f more are due", weights[0],
          weights[1], scratch[0], scratch[1], wte, operands);
}

#define HEAD_TESTS \
    {"head_gradients_point_as_reference", test_head_gradients_point_as_reference, QUICK}, \
    {"head_in_chunks", test_head_in_chunks, QUICK}, \
    {"head_scaling_state", test_head_scaling_state, QUICK}, \
    {"head_samples", test_head_samples, QUICK}, \
    {"head_resume_equals_uninterrupted", test_head_resume_equals_uninterrupted, QUICK}, \
    {"head_recompute_levels_give_equal_bits", test_head_recompute_levels_give_equal_bits, QUICK}, \
    {"head_in_bf16_is_the_plain_head", test_head_in_bf16_is_the_plain_head, QUICK}, \
    {"head_comes_and_goes_on_resume", test_head_comes_and_goes_on_resume, QUICK}, \
    {"head_is_reported_and_guarded", test_head_is_reported_and_guarded, QUICK}, \
    {"head_is_planned", test_head_is_planned, QUICK},

#endif
