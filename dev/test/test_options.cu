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
        CHECK(strlen(s[i].letters) <= 2, "%s: letters '%s'", s[i].name, s[i].letters);
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
    // llm.c's names for what exists here, from its usage text (LLMC_COMPAT 1.2)
    static const char* const rows[][2] = {{"i", "train_data"}, {"j", "val_data"}, {"e", "model"}, {"o", "output_dir"}, {"n", "checkpoint_every"},
        {"nk", "checkpoint_keep"}, {"nm", "checkpoint_major_every"}, {"y", "resume"}, {"b", "batch_size"}, {"t", "seq_len"}, {"d", "total_batch_tokens"},
        {"x", "max_steps"}, {"k", "schedule"}, {"l", "learning_rate"}, {"u", "warmup_steps"}, {"q", "final_lr_fraction"}, {"c", "weight_decay"},
        {"sl", "skip_loss_z"}, {"sg", "skip_grad_z"}, {"v", "val_every"}, {"m", "val_steps"}, {"s", "sample_every"}, {"g", "sample_length"},
        {"a", "overfit_single_batch"}, {"w", "master_dtype"}, {"r", "recompute"}, {"f", "tf32"}};
    for (auto& row : rows) {
        const OptionSpec* s = option_find_letters(row[0]);
        CHECK(s && !strcmp(s->name, row[1]), "-%s is %s, llm.c's is %s", row[0], s ? s->name : "nothing", row[1]);
        CHECK(!option_llmc_only(row[0]), "-%s is also in the list of what is missing", row[0]);
    }
}

static void test_options_defaults(void) {
    Options o = parse("");
    CHECK(o.batch_size == 4 && o.seq_len == 1024 && o.total_batch_tokens == -1 && o.max_steps == -1 && o.schedule == SCHEDULE_COSINE, "training");
    CHECK(o.learning_rate == 3e-4f && o.beta2 == 0.95f && o.adam_eps == 1e-8f && o.seed == 42 && o.tf32 && !o.resume, "training");
    CHECK(!strcmp(o.model, "d12") && !strcmp(o.output_dir, "") && o.master_dtype == OPT_MASTER_BFLOAT16 && o.dtype == OPT_DTYPE_AUTO, "model");
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
}

static void test_options_refusals(void) {
    expect("--batch-sise 4", 2, {"unknown option '--batch-sise'", "did you mean --batch-size?"});
    expect("--no-resme", 2, {"unknown", "--resume"});
    expect("--steps 4", 2, {"--max-steps"});
    expect("-batch-size 4", 2, {"unknown", "--batch-size"});
    expect("--hlep", 2, {"--help"});
    expect("--qqqqqqqq", 2, {"unknown", "--help lists"});
    expect("-zz 1", 2, {"unknown option '-zz'"});
    expect("-ix data", 2, {"unknown"});  // llm.c takes it for -i
    expect("-z 1", 2, {"ZeRO", "llm.c"});
    expect("-h 1", 2, {"HellaSwag"});
    expect("-pm mpi", 2, {"unknown"});
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
    expect("-d 100 -t 64", 2, {"100", "multiple", "256"});
    expect("-d 0", 2, {"multiple"});
    expect("-n 10", 2, {"--output-dir"});
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

static void child_print(void* text) {
    Options o = parse((const char*)text);
    options_print(&o, stdout);
}
static void test_options_print_shows_all_and_marks_given(void) {
    std::string output;
    CHECK(test_child(child_print, (void*)"--batch-size 7 --no-tf32", &output) == 0, "exit code");
    CHECK(output.find("| batch-size             | 7 *  ") != std::string::npos, "%s", output.c_str());
    CHECK(output.find("| tf32                   | off *") != std::string::npos, "%s", output.c_str());
    CHECK(output.find("| seq-len                | 1024  ") != std::string::npos, "%s", output.c_str());
    size_t width = output.find('\n');
    for (size_t at = 0, end; (end = output.find('\n', at)) != std::string::npos; at = end + 1) {
        CHECK(end - at == width, "rows of %zu and %zu columns", width, end - at);
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
    CHECK(d[0].name == "model" && d[0].before == "d12" && d[0].after == "d6" && d[0].in_before && d[0].in_after, "%s", d[0].name.c_str());
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
        {"options_text_and_diff", test_options_text_and_diff, QUICK},
        {"options_float_text_reads_back", test_options_float_text_reads_back, QUICK},
    };
    return TEST_MAIN(tests);
}
