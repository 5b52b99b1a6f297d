/* test_options.cu - the option table: every way to write a value, every way to get one wrong (host code only) */
#include "llmc/option_table.h"
#include "dev/test/test.h"

// A command line in a string, split at blanks ('~' stands for an empty argument).
typedef struct { std::vector<std::string> words; std::vector<char*> argv; } Line;
static void line_split(Line* line, const char* text) {
    std::string word;
    line->words = {"prog"};
    for (const char* p = text;; p++) {
        if (*p && *p != ' ') { word += *p; continue; }
        if (!word.empty()) { line->words.push_back(word == "~" ? "" : word); }
        word.clear();
        if (!*p) { break; }
    }
    for (std::string& w : line->words) { line->argv.push_back(&w[0]); }
    line->argv.push_back(NULL);
}

static Line kept_line;  // the options' strings point into it
static Options parse(const char* text) {
    Options o;
    kept_line = Line();
    line_split(&kept_line, text);
    options_parse(&o, (int)kept_line.words.size(), kept_line.argv.data());
    return o;
}

static void child_parse(void* text) {
    parse((const char*)text);
    printf("PARSED\n");
}
// The command line ends the program with this exit code and says all of these words.
static void expect(const char* text, int code, std::vector<const char*> words) {
    std::string output;
    int got = test_child(child_parse, (void*)text, &output);
    CHECK(got == code, "'%s': exit %d instead of %d\n%s", text, got, code, output.c_str());
    for (const char* word : words) { CHECK(output.find(word) != std::string::npos, "'%s': no '%s' in\n%s", text, word, output.c_str()); }
    if (code == 2) {
        CHECK(output.find("HINT:") != std::string::npos, "'%s': no hint in\n%s", text, output.c_str());
        CHECK(output.find(".h:") == std::string::npos, "'%s': names a source line\n%s", text, output.c_str());
    }
}

static void test_options_table_is_sound(void) {
    const OptionSpec* s = option_specs();
    Options o;
    options_init(&o);
    for (int i = 0; i < OPTION_COUNT; i++) {
        CHECK(!strchr(s[i].name, '-'), "%s: a field name", s[i].name);
        CHECK(strlen(s[i].help) > 10 && !strchr(s[i].help, '|'), "%s: help '%s' (a | would break the Markdown table)", s[i].name, s[i].help);
        CHECK(strncmp(s[i].name, "no_", 3) && strcmp(s[i].name, "help") && strcmp(s[i].name, "print_config"), "%s: a reserved name", s[i].name);
        if (s[i].type == OPTION_ENUM) { CHECK(s[i].choices[0] && s[i].choices[strlen(s[i].choices) - 1] == ',', "%s: choices '%s'", s[i].name, s[i].choices); }
        else { CHECK(s[i].min <= s[i].max, "%s: min above max", s[i].name); }
        // the default passes the option's own checks, and survives being written and read
        std::string text = option_text(&o, &s[i]);
        Options back;
        options_init(&back);
        option_store(&back, &s[i], "default", text.c_str());
        CHECK(option_text(&back, &s[i]) == text, "%s: default '%s' reads back as '%s'", s[i].name, text.c_str(), option_text(&back, &s[i]).c_str());
        for (const char* p = s[i].letters; *p; p += strcspn(p, "|") + (p[strcspn(p, "|")] == '|')) {
            CHECK(strcspn(p, "|") <= 2 && strcspn(p, "|") > 0, "%s: letters '%s'", s[i].name, s[i].letters);
        }
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(s[i].name, s[j].name), "%s is there twice", s[i].name);
            CHECK(!s[i].letters[0] || strcmp(s[i].letters, s[j].letters), "-%s is there twice", s[i].letters);
            CHECK(strcmp(s[i].group, s[j].group) || !strcmp(s[i - 1].group, s[i].group), "%s: the rows of group '%s' do not stand together",
                  s[i].name, s[i].group);
        }
    }
    options_check(&o);
}

static void test_options_llmc_letters_are_llmcs(void) {
    // all of llm.c's switches, from its parser, and the two that only its usage text has (-pm, -pp)
    static const char* const rows[][2] = {{"i", "train_data"}, {"j", "val_data"}, {"e", "model"}, {"o", "output_dir"}, {"n", "checkpoint_every"},
        {"nk", "checkpoint_keep"}, {"nm", "checkpoint_major_every"}, {"y", "resume"}, {"b", "batch_size"}, {"t", "seq_len"}, {"d", "total_batch_tokens"},
        {"x", "max_steps"}, {"k", "schedule"}, {"l", "learning_rate"}, {"u", "warmup_steps"}, {"q", "final_lr_fraction"}, {"c", "weight_decay"},
        {"sl", "skip_loss_z"}, {"sg", "skip_grad_z"}, {"v", "val_every"}, {"m", "val_steps"}, {"s", "sample_every"}, {"g", "sample_length"},
        {"a", "overfit_single_batch"}, {"w", "master_dtype"}, {"r", "recompute"}, {"f", "tf32"},
        {"h", "hellaswag"}, {"lg", "gpu_info_every"}, {"ge", "gelu_fusion"}, {"z", "zero_stage"}, {"pn", "num_processes"}, {"pr", "process_rank"}, {"pg", "gpus_per_node"},
        {"pi", "nccl_init"}, {"pm", "nccl_init"}, {"ps", "server_ip"}, {"pf", "fs_path"}, {"pp", "fs_path"}};
    for (auto& row : rows) {
        const OptionSpec* s = option_find_letters(row[0]);
        CHECK(s && !strcmp(s->name, row[1]), "-%s is %s, llm.c's is %s", row[0], s ? s->name : "nothing", row[1]);
    }
}

static void test_options_defaults(void) {
    Options o = parse("");
    CHECK(o.batch_size == 4 && o.seq_len == 1024 && o.total_batch_tokens == -1 && o.max_steps == -1 && o.schedule == SCHEDULE_COSINE, "training");
    CHECK(o.learning_rate == 3e-4f && o.beta2 == 0.95f && o.adam_eps == 1e-8f && o.seed == 42 && o.tf32 && !o.resume, "training");
    CHECK(!strcmp(o.train_data, "dev/data/tinyshakespeare/tiny_shakespeare_train.bin") && !strcmp(o.val_data, "dev/data/tinyshakespeare/tiny_shakespeare_val.bin"), "data");
    CHECK(o.checkpoint_every == 0 && o.checkpoint_keep == 0 && o.checkpoint_major_every == 0 && o.warmup_steps == 0 && o.final_lr_fraction == 1.0f && o.weight_decay == 0.0f, "training");
    CHECK(o.skip_loss_z == 0 && o.skip_grad_z == 0 && o.val_every == 20 && o.val_steps == 20 && o.sample_every == 20 && o.sample_length == 64 && !o.hellaswag, "evaluation");
    CHECK(!o.overfit_single_batch && o.gelu_fusion == 0 && o.zero_stage == 0 && o.recompute == 1 && o.num_processes == 1 && o.process_rank == 0 && o.gpus_per_node == 8, "the rest");
    CHECK(o.nccl_init == OPT_NCCL_MPI && !o.server_ip[0] && !o.fs_path[0] && o.gpu_info_every == -1, "the rest");
    CHECK(!strcmp(o.model, "gpt2_124M_bf16.bin") && !strcmp(o.output_dir, "") && o.master_dtype == OPT_MASTER_BFLOAT16 && o.dtype == OPT_DTYPE_AUTO, "model");
    for (int i = 0; i < OPTION_COUNT; i++) { CHECK(!o.given[i], "%s counts as given", option_specs()[i].name); }
}

static void test_options_every_way_to_write(void) {
    Options o = parse("--batch-size 8 --seq_len=64 -l 1e-3 --total-batch-tokens 512 -x -1 --schedule wsd --model=x=y.bin --weight-decay=-0 --warmup-steps=+5");
    CHECK(o.batch_size == 8 && o.seq_len == 64 && o.learning_rate == 1e-3f && o.total_batch_tokens == 512 && o.max_steps == -1, "values");
    CHECK(o.schedule == SCHEDULE_WSD && !strcmp(o.model, "x=y.bin") && o.weight_decay == 0.0f && !signbit(o.weight_decay) && o.warmup_steps == 5, "values");
    CHECK(options_is_set(&o, "batch-size") && options_is_set(&o, "batch_size") && options_is_set(&o, "learning-rate") && !options_is_set(&o, "seed"), "set");
    o = parse("-o log --resume --no-tf32 --overfit-single-batch=1");
    CHECK(o.resume && !o.tf32 && o.overfit_single_batch, "flags");
    o = parse("-o log -y 1 -f 0 -a 0");
    CHECK(o.resume && !o.tf32 && !o.overfit_single_batch && options_is_set(&o, "tf32"), "llm.c's flags");
    CHECK(parse("-w 1").master_dtype == OPT_MASTER_FLOAT32 && parse("-w 0").master_dtype == OPT_MASTER_BFLOAT16, "llm.c's -w");
    CHECK(parse("--dtype fp8").dtype == OPT_DTYPE_FLOAT8 && parse("--dtype=bf16").dtype == OPT_DTYPE_BFLOAT16, "synonyms");
    CHECK(parse("--dtype float32").dtype == OPT_DTYPE_FLOAT32, "synonyms");
    CHECK(parse("--seed 9007199254740991").seed == 9007199254740991ll, "64 bits");
    CHECK(!strcmp(parse("--output-dir=--odd").output_dir, "--odd") && !strcmp(parse("--tokenizer=").tokenizer, ""), "texts after =");
    CHECK(parse("--no_tf32").tf32 == false, "underscore");
    CHECK(parse("-pi fs").nccl_init == OPT_NCCL_FS && parse("-pm tcp").nccl_init == OPT_NCCL_TCP && !strcmp(parse("-pp /tmp").fs_path, "/tmp"), "both spellings");
    CHECK(parse("-h 1").hellaswag && !parse("-h 0").hellaswag && parse("-ge -1").gelu_fusion == 0 && parse("-lg 5").gpu_info_every == 5, "llm.c's letters");
    CHECK(!strcmp(parse("-ix data").train_data, "data") && parse("-gx 9").sample_length == 9 && parse("-bb 3").batch_size == 3, "llm.c reads the first letter only");
    CHECK(parse("-k constant -u 5").warmup_steps == 0 && parse("-k constant --warmup-steps 5").warmup_steps == 5 && parse("-k linear -u 5").warmup_steps == 5, "llm.c's -u");
    CHECK(parse("-n 10").checkpoint_every == 0 && parse("-n 10 -o log").checkpoint_every == 10, "llm.c's -n without -o");
    CHECK(parse("-sl 20").skip_loss_z == 20.0f, "llm.c takes thresholds that never fire");
}

static void test_options_refusals(void) {
    expect("--batch-sise 4", 2, {"unknown option '--batch-sise'", "did you mean --batch-size?"});
    expect("--no-resme", 2, {"unknown", "--resume"});
    expect("--steps 4", 2, {"--max-steps"});
    expect("-batch-size 4", 2, {"unknown", "--batch-size"});
    expect("--hlep", 2, {"--help"});
    expect("--qqqqqqqq", 2, {"unknown", "--help lists"});
    expect("-zzz 1", 2, {"unknown option '-zzz'"});
    expect("-zz 1", 0, {"WARNING: -zz is read as -z", "PARSED"});
    for (const char* text : {"-lx 1", "-nx 1", "-sx 1", "-px 1", "-p 1"}) { expect(text, 2, {"unknown option"}); }  // errors in llm.c too
    CHECK(parse("-pn 2 -pi tcp").num_processes == 2, "llm.c's processes without MPI");
    expect("-pr 1 -pi fs", 2, {"--process-rank 1", "--num-processes 1"});
    expect("-pn 2 -pr 1", 0, {"note", "launcher", "PARSED"});  // MPI says them, in llm.c too
    expect("-pi smoke", 2, {"smoke", "mpi, tcp, fs"});
    expect("-n 10", 0, {"WARNING", "-o", "PARSED"});
    expect("-k constant -u 5", 0, {"note", "constant", "PARSED"});
    expect("--sample-only -h 1", 2, {"--sample-only"});
    expect("--batch", 2, {"--batch-size"});
    expect("--batch-size", 2, {"missing", "sequences"});
    expect("--batch-size --resume", 2, {"missing", "--resume"});
    expect("--output-dir --resume", 2, {"missing", "--output-dir=--resume"});
    expect("-o -b 4", 2, {"missing"});
    expect("--batch-size=", 2, {"not a whole number"});
    expect("--batch-size ~", 2, {"not a whole number"});
    expect("--batch-size 4x", 2, {"'4x'"});
    expect("--batch-size 4.0", 2, {"'4.0'"});
    expect("--batch-size 0x10", 2, {"'0x10'"});
    expect("-d 1e6", 2, {"'1e6'", "1000000"});
    expect("--batch-size 0", 2, {"0", "1 to 65536"});
    expect("--batch-size 65537", 2, {"65537", "1 to 65536"});
    expect("--batch-size 99999999999999999999", 2, {"out of range"});
    expect("--batch-size -1", 2, {"-1", "out of range"});
    expect("--learning-rate nan", 2, {"nan", "out of range"});
    expect("--learning-rate=-inf", 2, {"out of range", "0 to 100"});
    expect("--learning-rate 1e-3s", 2, {"not a number"});
    expect("--final-lr-fraction 1.5", 2, {"1.5", "0 to 1"});
    expect("--adam-eps 1e-60", 2, {"out of range"});
    expect("--dtype fp9", 2, {"fp9", "float8 (fp8)", "bfloat16 (bf16)"});
    expect("--dtype FP8", 2, {"not one of the choices"});
    expect("--dtype float8|fp8", 2, {"not one of the choices"});
    expect("--dtype=", 2, {"not one of the choices"});
    expect("-y 2", 2, {"not 0 or 1"});
    expect("-y", 2, {"missing"});
    expect("--resume=yes", 2, {"not a whole number"});
    expect("--no-resume=1", 2, {"no value"});
    expect("--no-batch-size", 2, {"not a flag"});
    expect("--resume 1", 2, {"'1' stands where"});
    expect("train", 2, {"'train' stands where"});
    expect("-", 2, {"unknown option '-'"});
    expect("--", 2, {"unknown option '--'"});
    expect("~", 2, {"stands where"});
    expect("--model=", 2, {"empty"});
    expect("--model=a\nb", 2, {"control character (byte 10)"});
    expect("--batch-size 4 --batch-size 4", 2, {"twice"});
    expect("--batch-size 4 --batch_size=5", 2, {"twice"});
    expect("--resume --no-resume -o x", 2, {"twice"});
    expect("-b 4 --batch-size 4", 2, {"twice", "-b", "--batch-size"});
    expect("-d 100 -t 64", 2, {"100", "multiple", "128"});
    expect("-d 0", 2, {"multiple"});
    expect("--checkpoint-every 10", 2, {"--output-dir"});
    expect("-y 1", 2, {"--output-dir"});
    expect("--channels 100 --heads 3", 2, {"100", "3"});
}

static void test_options_edit_distance(void) {
    CHECK(option_edit_distance("dtpye", "dtype") == 1 && option_edit_distance("", "abc") == 3 && option_edit_distance("abc", "abc") == 0, "swap, insert");
    CHECK(option_edit_distance("kitten", "sitting") == 3 && option_edit_distance("abcd", "bd") == 2, "replace, delete");
}

static void test_options_letter_twice_warns(void) {
    expect("-b 3 -b 5 -t 8 -t 8", 0, {"WARNING: -b is given twice", "WARNING: -t", "PARSED"});
    CHECK(freopen("/dev/null", "w", stderr), "freopen");
    CHECK(parse("-b 3 -b 5").batch_size == 5, "the last wins");
}

static void test_options_actions(void) {
    expect("--help", 0, {"usage: prog", "--batch-size N, -b", "[0.0003]", "checkpoints", "cosine, linear"});
    expect("-h", 0, {"usage: prog"});
    expect("-b 4 -h --dtype fp8", 0, {"usage: prog"});
    expect("--help-markdown", 0, {"| `--batch-size` | `-b` | integer, 1 to 65536 | `4` |", "| flag | `off` |",
                                  "one of auto, float8 (fp8), bfloat16 (bf16), float32 (fp32)"});
    expect("--print-config --batch-size 7 -w 1 --no-tf32 -t 10", 0,
           {"batch_size=7\n", "master_dtype=float32\n", "tf32=0\n", "output_dir=\n", "learning_rate=0.0003\n"});
    expect("--print-config --batch-size 0", 2, {"out of range"});  // checked first
    std::string output;
    test_child(child_parse, (void*)"--help", &output);
    CHECK(output.find("PARSED") == std::string::npos, "--help ends the program");
    for (int i = 0; i < OPTION_COUNT; i++) {
        CHECK(output.find(option_long_name(&option_specs()[i])) != std::string::npos, "%s is not in --help", option_specs()[i].name);
    }
    for (size_t at = 0, end; (end = output.find('\n', at)) != std::string::npos; at = end + 1) { CHECK(end - at <= 142, "a line of %zu columns", end - at); }
}

static void test_options_presets(void) {
    Options defaults = parse(""), o;
    for (const OptionPreset& preset : option_presets) {
        CHECK(strlen(preset.purpose) > 10 && strlen(preset.tradeoff) > 10 && !strchr(preset.purpose, '|') && !strchr(preset.tradeoff, '|'), "%s: no words, or a |", preset.name);
        // it does what its options would do, each of them known, different from the default, and named once
        std::string alone;
        for (const char* set = preset.sets; *set; set += strlen(set) + 1) { alone += std::string(" --") + set; }
        o = parse(alone.c_str());
        o.preset = (int)(&preset - option_presets);
        const std::string by_hand = options_to_text(&o);
        o = parse((std::string("--preset ") + preset.name).c_str());
        const std::string by_preset = options_to_text(&o);
        CHECK(by_preset == by_hand, "--preset %s:\n%s\nits options:\n%s", preset.name, by_preset.c_str(), by_hand.c_str());
        for (int i = 0; i < OPTION_COUNT; i++) {
            const OptionSpec* s = &option_specs()[i];
            const bool set = option_text(&o, s) != option_text(&defaults, s), given = o.given[i] != NULL;
            CHECK(!strcmp(s->name, "preset") || set == given, "--preset %s: %s is '%s' and %s", preset.name, s->name, option_text(&o, s).c_str(), given ? "counts as set" : "does not count as set");
        }
    }
    CHECK(!strcmp(option_presets[defaults.preset].name, "pretrain") && !option_presets[defaults.preset].sets[0], "the default preset sets nothing");
    // the command line wins, whatever the order and the way to write it
    for (const char* line : {"--preset memory --moment-dtype bfloat16", "--moment-dtype=bfloat16 --preset=memory"}) {
        o = parse(line);
        CHECK(o.moment_dtype == OPT_MOMENT_BFLOAT16 && strcmp(o.given[OPTION_INDEX_moment_dtype], OPTION_BY_PRESET), "%s", line);
    }
    CHECK(parse("--moment-dtype float32 --preset memory").moment_dtype == OPT_MOMENT_FLOAT32, "a default that was given stays");
    o = parse("--preset safe --fp8-wgrad float8");
    CHECK(o.fp8_wgrad == OPT_WGRAD_FLOAT8 && !strcmp(o.fp8_bf16_layers, "0,-1") && options_is_set(&o, "fp8-bf16-layers"), "safe, one part overridden: '%s'", o.fp8_bf16_layers);
    o = parse("-b 8 --preset safe");
    CHECK(o.batch_size == 8 && o.fp8_wgrad == OPT_WGRAD_BFLOAT16 && !option_given_by_letter(&o, OPTION_INDEX_fp8_wgrad), "safe");
    o = parse("--preset safe --dtype bfloat16");
    CHECK(o.fp8_wgrad == OPT_WGRAD_FLOAT8 && !o.fp8_bf16_layers[0] && !options_is_set(&o, "fp8-wgrad"), "no FP8, no options of FP8");
    CHECK(parse("--dtype float32 --preset memory").moment_dtype == OPT_MOMENT_FLOAT8, "moments are no matter of FP8 products");
    expect("--preset sae", 2, {"sae", "pretrain, memory, finetune-fp8, safe"});
    expect("--preset", 2, {"missing"});
    expect("--preset safe --preset memory", 2, {"twice"});
    expect("--print-config --preset safe", 0, {"preset=safe\n", "fp8_bf16_layers=0,-1\n", "fp8_wgrad=bfloat16\n"});
    expect("--help", 0, {"presets: --preset NAME", "  safe ", "[--fp8-bf16-layers 0,-1 --fp8-wgrad bfloat16]"});
    expect("--help-markdown", 0, {"| `safe` | ", "| `--fp8-bf16-layers 0,-1` `--fp8-wgrad bfloat16` |"});
}

static void child_print(void* text) {
    Options o = parse((const char*)text);
    options_print_llmc(&o, stdout, 1234);
    options_print_rest(&o, stdout);
}
static void test_options_print_shows_all_and_marks_given(void) {
    std::string output;
    CHECK(test_child(child_print, (void*)"-i train.bin -j val.bin --batch-size 7 --no-tf32 -w 1 --eval-data questions.bin", &output) == 0, "exit code");
    for (const char* row : {"| Parameter             | Value                                              |", "| train data pattern    | train.bin                                          |",
                            "| output log dir        | NULL    ", "| micro batch size B    | 7    ", "| total batch size      | 1234   ", "| LR scheduler          | cosine   ",
                            "| learning rate (LR)    | 3.000000e-04    ", "| skip update lossz     | 0.000000   ", "| use_master_weights    | enabled   ", "| recompute             | 1  ",
                            "| tf32                  | off *", "| seed                  | 42  ", "+-----------------------+----------------------------------------------------+"}) {
        CHECK(output.find(row) != std::string::npos, "no row '%s' in\n%s", row, output.c_str());
    }
    size_t width = output.find('\n');
    for (size_t at = 0, end; (end = output.find('\n', at)) != std::string::npos; at = end + 1) {
        CHECK(end - at == width || output.compare(at, 10, "| checkpoi") == 0, "rows of %zu and %zu columns", width, end - at);  // checkpoint-major-every is longer than the column
    }
}

static void test_options_print_marks_what_a_preset_set(void) {
    std::string output;
    CHECK(test_child(child_print, (void*)"--preset safe --fp8-wgrad=float8", &output) == 0, "exit code");
    for (const char* row : {"| preset                | safe *  ", "| fp8-bf16-layers       | 0,-1 (preset)  ", "| fp8-wgrad             | float8 *  ", "| moment-dtype          | float32  "}) {
        CHECK(output.find(row) != std::string::npos, "no row '%s' in\n%s", row, output.c_str());
    }
}

static void test_options_text_and_diff(void) {
    Options o = parse("-b 4 -l 0.1");
    std::string a = options_to_text(&o);
    o = parse("-b 8 -l 0.1 --model=d6");
    std::string b = options_to_text(&o);
    CHECK(options_diff(a, a).empty(), "equal texts");
    std::vector<OptionDiff> d = options_diff(a, b + "new_option=1\n");
    CHECK(d.size() == 3, "%zu differences", d.size());
    CHECK(d[0].name == "model" && d[0].before == "gpt2_124M_bf16.bin" && d[0].after == "d6" && d[0].in_before && d[0].in_after, "%s", d[0].name.c_str());
    CHECK(d[1].name == "batch_size" && d[1].before == "4" && d[1].after == "8", "%s", d[1].name.c_str());
    CHECK(d[2].name == "new_option" && !d[2].in_before && d[2].in_after && d[2].after == "1", "%s", d[2].name.c_str());
}

static void test_options_float_text_reads_back(void) {
    TestRng rng = {test_seed()};
    for (int i = 0; i < 100000; i++) {
        uint32_t bits = (uint32_t)test_rng_u64(&rng);
        float x;
        memcpy(&x, &bits, 4);
        if (!isfinite(x)) { continue; }
        std::string text = option_float_text(x);
        CHECK((float)strtod(text.c_str(), NULL) == x, "%.9g is written %s", (double)x, text.c_str());
    }
    CHECK(option_float_text(3e-4f) == "0.0003" && option_float_text(100.0f) == "100" && option_float_text(0.0f) == "0", "short");
    CHECK(option_float_text(1e-8f) == "1e-08", "short");
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"options_table_is_sound", test_options_table_is_sound, QUICK},
        {"options_llmc_letters_are_llmcs", test_options_llmc_letters_are_llmcs, QUICK},
        {"options_defaults", test_options_defaults, QUICK},
        {"options_every_way_to_write", test_options_every_way_to_write, QUICK},
        {"options_refusals", test_options_refusals, QUICK},
        {"options_edit_distance", test_options_edit_distance, QUICK},
        {"options_letter_twice_warns", test_options_letter_twice_warns, QUICK},
        {"options_actions", test_options_actions, QUICK},
        {"options_print_shows_all_and_marks_given", test_options_print_shows_all_and_marks_given, QUICK},
        {"options_presets", test_options_presets, QUICK},
        {"options_print_marks_what_a_preset_set", test_options_print_marks_what_a_preset_set, QUICK},
        {"options_text_and_diff", test_options_text_and_diff, QUICK},
        {"options_float_text_reads_back", test_options_float_text_reads_back, QUICK},
    };
    return TEST_MAIN(tests);
}
