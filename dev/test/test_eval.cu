/* test_eval.cu - multiple-choice questions: every byte of the file, rows for any T and batch, any number of ranks, answers from known losses
 *
 * The writer below follows the description of the format (LLMC_COMPAT 2.6), not the reader's code; one file is spelled out word by word.
 * Covers: llmc/eval_loader.h (host code only)  */
#define GPT_FAULTS
#include <vector>

#include "dev/test/test.h"
#include "llmc/eval_loader.h"

// ---------------------------------------------------------------------------- files

static std::string scratch(const char* name) {
    static std::string folder;
    if (folder.empty()) {
        char name_template[] = "/tmp/test_eval.XXXXXX";
        CHECK(mkdtemp(name_template), "%s", strerror(errno));
        folder = name_template;
        atexit([] { std::string command = "rm -rf " + folder; if (system(command.c_str()) != 0) { perror("rm"); } });
    }
    return folder + "/" + name;
}

typedef std::vector<uint16_t> Words;
struct Example { int label; Words context, completion[4]; };

#define VOCAB 1000
// The context of example e begins with e, its completion c with 100 + c: a row of inputs tells which one it is.
static std::vector<Example> make_examples(int count, uint64_t seed) {
    TestRng rng = {test_seed() * 1000 + seed};
    auto tokens = [&](int first, int n) {
        Words w(1, (uint16_t)first);
        while ((int)w.size() < n) { w.push_back((uint16_t)(test_rng_u64(&rng) % VOCAB)); }
        return w;
    };
    std::vector<Example> examples(count);
    for (int e = 0; e < count; e++) {
        examples[e].label = (int)(test_rng_u64(&rng) % 4);
        examples[e].context = tokens(e, 1 + (int)(test_rng_u64(&rng) % 9));
        for (int c = 0; c < 4; c++) { examples[e].completion[c] = tokens(100 + c, 1 + (int)(test_rng_u64(&rng) % 6)); }
    }
    return examples;
}
static Words example_words(const Example& x, int index) {
    Words w = {65535, 0, (uint16_t)index, (uint16_t)x.label, 4, (uint16_t)x.context.size()};
    w.insert(w.end(), x.context.begin(), x.context.end());
    for (const Words& c : x.completion) {
        w.push_back((uint16_t)c.size());
        w.insert(w.end(), c.begin(), c.end());
    }
    w[1] = (uint16_t)(2 * w.size());
    return w;
}
static std::string file_bytes(int32_t num_examples, int32_t longest, const Words& stream) {
    int32_t header[256] = {20240522, 1, num_examples, longest};
    return std::string((const char*)header, sizeof(header)) + std::string((const char*)stream.data(), 2 * stream.size());
}
static std::string make_file(const std::vector<Example>& examples) {
    Words stream;
    size_t longest = 0;
    for (size_t e = 0; e < examples.size(); e++) {
        Words w = example_words(examples[e], (int)e);
        longest = 2 * w.size() > longest ? 2 * w.size() : longest;
        stream.insert(stream.end(), w.begin(), w.end());
    }
    return file_bytes((int32_t)examples.size(), (int32_t)longest, stream);
}
static int longest_row(const std::vector<Example>& examples) {
    size_t most = 0;
    for (const Example& x : examples) { for (const Words& c : x.completion) { most = x.context.size() + c.size() > most ? x.context.size() + c.size() : most; } }
    return (int)most;
}
static std::string write_file(const std::string& bytes) {
    std::string path = scratch("questions.bin");
    test_write_file(path, bytes);
    return path;
}

// The file must be refused, with all of these words in the message.
static void refused(const std::string& bytes, int T, std::vector<const char*> words, int vocab_size = VOCAB) {
    EvalLoader loader;
    FileError error;
    std::string path = write_file(bytes);
    CHECK(!eval_loader_init(&loader, path.c_str(), T, vocab_size, 0, 1, &error), "accepted, but '%s' was due", words[0]);
    CHECK(!loader.words && !loader.start && !loader.mean, "something is left after the refusal '%s'", error.message);
    CHECK(strstr(error.message, path.c_str()) && error.hint[0] && error.code == 0, "no path or no hint, code %d: %s (%s)", error.code, error.message, error.hint);
    for (const char* word : words) { CHECK(strstr(error.message, word) || strstr(error.hint, word), "'%s' is not in: %s (%s)", word, error.message, error.hint); }
}
static void load(EvalLoader* loader, const std::string& bytes, int T, int rank, int num_ranks) {
    FileError error;
    std::string path = write_file(bytes);
    CHECK(eval_loader_init(loader, path.c_str(), T, VOCAB, rank, num_ranks, &error), "%s (%s)", error.message, error.hint);
}

// ---------------------------------------------------------------------------- a file by hand

static void test_eval_file_by_hand(void) {
    const Words stream = {
        65535, 36, 0, 2, 4,   2, 11, 12,   1, 21,   2, 22, 23,   1, 24,   2, 25, 26,
        65535, 30, 1, 0, 4,   1, 13,       1, 31,   1, 32,       1, 33,   1, 34};
    EvalLoader loader;
    load(&loader, file_bytes(2, 36, stream), 5, 0, 1);
    CHECK(loader.num_examples == 2 && loader.num_rows == 8, "%d examples, %d rows", loader.num_examples, loader.num_rows);
    const std::vector<int32_t> want_inputs = {11, 12, 21, 0, 0,  11, 12, 22, 23, 0,  11, 12, 24, 0, 0,  11, 12, 25, 26, 0,
                                              13, 31, 0, 0, 0,   13, 32, 0, 0, 0,    13, 33, 0, 0, 0,   13, 34, 0, 0, 0,   0, 0, 0, 0, 0};
    const std::vector<int32_t> want_targets = {0, 21, 0, 0, 0,   0, 22, 23, 0, 0,    0, 24, 0, 0, 0,    0, 25, 26, 0, 0,
                                               31, 0, 0, 0, 0,   32, 0, 0, 0, 0,     33, 0, 0, 0, 0,    34, 0, 0, 0, 0,    0, 0, 0, 0, 0};
    std::vector<int32_t> inputs(45, -1), targets(45, -1);
    eval_loader_read_rows(&loader, inputs.data(), targets.data(), 0, 9);
    CHECK(inputs == want_inputs && targets == want_targets, "the rows are not those of the file");
    // means: 3, (2 + 4) / 2 = 3, 2.5, (2.25 + 2.5) / 2 = 2.375: answer 3, label 2; then 1, 1, 2, 1: the first of equals, 0, label 0
    std::vector<float> losses(45, -100.0f);
    const struct { int row, t; float loss; } known[] = {{0, 1, 3.0f}, {1, 1, 2.0f}, {1, 2, 4.0f}, {2, 1, 2.5f}, {3, 1, 2.25f}, {3, 2, 2.5f},
        {4, 0, 1.0f}, {5, 0, 1.0f}, {6, 0, 2.0f}, {7, 0, 1.0f}};
    for (auto& k : known) { losses[k.row * 5 + k.t] = k.loss; }
    int correct = -1, total = -1;
    eval_loader_add_losses(&loader, losses.data(), 0, 9);
    eval_loader_result(&loader, &correct, &total);
    CHECK(correct == 1 && total == 2, "%d of %d", correct, total);
    losses[2 * 5 + 1] = 2.375f;  // equal means of completions 2 and 3: 2, the label
    eval_loader_add_losses(&loader, losses.data(), 0, 9);
    eval_loader_result(&loader, &correct, &total);
    CHECK(correct == 2 && total == 2, "%d of %d after a tie", correct, total);
    losses[0 * 5 + 1] = INFINITY;
    losses[4 * 5 + 0] = NAN;  // no answer, though it is the first and the label
    eval_loader_add_losses(&loader, losses.data(), 0, 9);
    eval_loader_result(&loader, &correct, &total);
    CHECK(correct == 1 && total == 2, "%d of %d with an infinity in one example and a NaN in the other", correct, total);
    eval_loader_free(&loader);
}

// The mean is a float sum in the order of tokens (llm.c's): 1e8 + 1 - 1e8 is 0, and less than 0.2, while the exact mean is 1/3.
static void test_eval_mean_is_llmcs(void) {
    Example x = {1, {5}, {{1}, {1, 2, 3}, {1}, {1}}};
    EvalLoader loader;
    load(&loader, make_file({x}), 4, 0, 1);
    const float losses[16] = {0.2f, 9, 9, 9, 1e8f, 1.0f, -1e8f, 9, 1.0f, 9, 9, 9, 1.0f, 9, 9, 9};
    int correct, total;
    eval_loader_add_losses(&loader, losses, 0, 4);
    eval_loader_result(&loader, &correct, &total);
    CHECK(correct == 1 && total == 1, "%d of %d", correct, total);
    eval_loader_free(&loader);
}

// ---------------------------------------------------------------------------- a model of known losses

// The loss of token t of completion c of example e: any function that tells all three apart.
static float known_loss(int e, int c, int t) {
    TestRng rng = {(uint64_t)e * 7919 + (uint64_t)c * 104729 + (uint64_t)t * 1299709 + 5};
    return (float)(10 * test_rng_uniform(&rng));
}

// One row of T tokens as it must be; returns its example.
static int check_row(const std::vector<Example>& examples, const int32_t* inputs, const int32_t* targets, int T, int c) {
    const int e = inputs[0];
    CHECK(e >= 0 && e < (int)examples.size(), "a row begins with %d", e);
    const Words &x = examples[e].context, &y = examples[e].completion[c];
    const int n = (int)x.size(), m = (int)y.size();
    for (int t = 0; t < T; t++) {
        const int input = t < n ? x[t] : t < n + m ? y[t - n] : 0, target = t >= n - 1 && t < n - 1 + m ? y[t - n + 1] : 0;
        CHECK(inputs[t] == input && targets[t] == target, "example %d, completion %d, T %d, place %d: %d, %d instead of %d, %d", e, c, T, t, inputs[t], targets[t],
              input, target);
    }
    return e;
}

// One rank's evaluation by batches of B; seen[4 * example + completion] counts.
static void evaluate(EvalLoader* loader, const std::vector<Example>& examples, int B, std::vector<int>* seen, int* correct, int* total) {
    const int T = loader->seq_len;
    for (int row = 0; row < loader->num_rows + B; row += B) {  // a batch too many: ranks may run equally many
        std::vector<int32_t> inputs(B * T, -1), targets(B * T, -1);
        std::vector<float> losses(B * T, NAN);  // where no completion is they do not count
        eval_loader_read_rows(loader, inputs.data(), targets.data(), row, B);
        for (int b = 0; b < B; b++) {
            if (row + b >= loader->num_rows) {
                for (int i = b * T; i < (b + 1) * T; i++) { CHECK(inputs[i] == 0 && targets[i] == 0, "row %d past the last: %d, %d", row + b, inputs[i], targets[i]); }
                continue;
            }
            const int c = (row + b) % 4, e = check_row(examples, &inputs[b * T], &targets[b * T], T, c);
            for (size_t t = 0; t < examples[e].completion[c].size(); t++) { losses[b * T + examples[e].context.size() - 1 + t] = known_loss(e, c, (int)t); }
            (*seen)[4 * e + c]++;
        }
        eval_loader_add_losses(loader, losses.data(), row, B);
    }
    int correct_here = -1, total_here = -1;
    eval_loader_result(loader, &correct_here, &total_here);
    *correct += correct_here;
    *total += total_here;
}

static void test_eval_every_example_once(void) {
    for (int E : {1, 3, 10}) {
        std::vector<Example> examples = make_examples(E, E);
        int want = 0;
        for (int e = 0; e < E; e++) {
            double least = INFINITY;
            int answer = -1;
            for (int c = 0; c < 4; c++) {
                double mean = 0;
                const int m = (int)examples[e].completion[c].size();
                for (int t = 0; t < m; t++) { mean += known_loss(e, c, t) / (double)m; }
                CHECK(fabs(mean - least) > 1e-4, "example %d is too close to a tie for a test", e);  // 6 losses below 10: a float mean is off by 1e-5 at most
                if (mean < least) { least = mean; answer = c; }
            }
            if (e % 2 == 0) { examples[e].label = answer; }  // half of the answers are right for sure
            want += examples[e].label == answer;
        }
        const std::string bytes = make_file(examples);
        for (int T : {longest_row(examples), longest_row(examples) + 1, longest_row(examples) + 20}) {
            for (int P : {1, 3, 8}) {
                for (int B : {1, 2, 3, 4, 5, 8, 64}) {
                    int correct[2] = {0, 0}, total[2] = {0, 0};
                    std::vector<int> seen(E * 4, 0);
                    for (int rank = 0; rank < P; rank++) {
                        EvalLoader loader;
                        load(&loader, bytes, T, rank, P);
                        CHECK(loader.num_rows <= 4 * CEIL_DIV(E, P), "rank %d of %d has %d rows of %d examples", rank, P, loader.num_rows, E);
                        for (int again = 0; again < 2; again++) { evaluate(&loader, examples, B, &seen, &correct[again], &total[again]); }
                        eval_loader_free(&loader);
                    }
                    for (int i = 0; i < E * 4; i++) { CHECK(seen[i] == 2, "E %d, P %d, B %d: example %d, completion %d: read %d times in two evaluations", E, P, B,
                                                            i / 4, i % 4, seen[i]); }
                    for (int again = 0; again < 2; again++) {
                        CHECK(correct[again] == want && total[again] == E, "E %d, P %d, B %d, T %d, evaluation %d: %d of %d, should be %d of %d", E, P, B, T, again,
                              correct[again], total[again], want, E);
                    }
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------- files to refuse

static std::string with_header(std::string bytes, int word, int32_t value) {
    return bytes.replace(4 * word, 4, (const char*)&value, 4);
}

static void test_eval_refuses_wrong_headers(void) {
    const std::string good = make_file(make_examples(3, 1));
    refused("", 64, {"less than 4 bytes"});
    refused("\1\2\3", 64, {"less than 4 bytes"});
    refused(with_header(good, 0, 20240520), 64, {"token shard", "20240522"});
    refused(with_header(good, 0, 20240326), 64, {"model file"});
    refused(with_header(good, 0, (int32_t)__builtin_bswap32(20240522)), 64, {"swapped"});
    refused("a text that is no file of questions, long enough", 64, {"unknown kind"});
    refused(with_header(good, 1, 2), 64, {"version 2", "expected 1"});
    refused(with_header(good, 2, 0), 64, {"0 examples", "65535"});
    refused(with_header(good, 2, -1), 64, {"-1 examples"});
    refused(with_header(good, 2, 65536), 64, {"65536 examples"});
    refused(with_header(good, 2, 2), 64, {"after its header", "2 examples"});
    refused(with_header(good, 2, 4), 64, {"ends at byte", "example 3 of 4"});
    refused(with_header(good, 3, 0), 64, {"0 bytes"});
    refused(with_header(good, 3, 1 << 30), 64, {"1073741824 bytes"});
    refused(with_header(good, 3, 30), 64, {"bytes", "30"});
    int32_t longest;
    memcpy(&longest, &good[12], 4);
    refused(with_header(good, 3, longest - 1), 64, {"it says it has"});
    EvalLoader loader;
    load(&loader, with_header(with_header(good, 3, longest + 2), 255, 7), 64, 0, 1);  // an upper bound is one, and the rest of the header is not ours
    eval_loader_free(&loader);
}

// A small file cut after every byte, and with bytes behind its end.
static void test_eval_refuses_every_other_length(void) {
    const std::string good = make_file(make_examples(3, 2));
    for (size_t n = 0; n < good.size(); n++) {
        EvalLoader loader;
        FileError error;
        std::string path = write_file(good.substr(0, n));
        CHECK(!eval_loader_init(&loader, path.c_str(), 64, VOCAB, 0, 1, &error), "accepted with %zu of %zu bytes", n, good.size());
        CHECK(strstr(error.message, path.c_str()) && error.code == 0, "%zu bytes: %s", n, error.message);
    }
    refused(good.substr(0, 500), 64, {"500 bytes", "1024"});
    refused(good.substr(0, 1024), 64, {"ends at byte 1024", "example 0 of 3"});
    refused(good.substr(0, good.size() - 2), 64, {"example 2 at byte", "it says it has", "the rest of the file"});
    refused(good + '\0', 64, {"even number"});
    refused(good + std::string(2, '\0'), 64, {"goes on at byte", std::to_string(good.size()).c_str(), "example 2"});
    refused(good + std::string(100000, '\0'), 64, {"at most"});
}

static void test_eval_refuses_damaged_examples(void) {
    const std::vector<Example> examples = make_examples(3, 3);
    const std::string good = make_file(examples);
    const size_t second = EVAL_HEADER_BYTES / 2 + example_words(examples[0], 0).size(), length = example_words(examples[1], 1).size(), n = examples[1].context.size();
    auto damaged = [&](size_t word, int value) {
        std::string bytes = good;
        uint16_t v = (uint16_t)value;
        memcpy(&bytes[2 * (second + word)], &v, 2);
        return bytes;
    };
    const std::string at = "example 1 at byte " + std::to_string(2 * second);
    const char* where = at.c_str();
    refused(damaged(0, 17), 64, {where, "begins with 17", "65535"});
    refused(damaged(1, 0), 64, {where});
    refused(damaged(1, (int)(2 * length + 1)), 64, {where, "even"});
    refused(damaged(1, (int)(2 * length - 2)), 64, {where, "completion 3"});
    refused(damaged(1, 65534), 64, {where, "65534 bytes"});
    refused(damaged(2, 5), 64, {where, "index is 5", "expected 1"});
    refused(damaged(3, 4), 64, {where, "label is 4", "0 to 3"});
    refused(damaged(4, 5), 64, {where, "5 completions", "expected 4"});
    refused(damaged(5, 0), 64, {where, "context has 0 tokens"});
    refused(damaged(5, 65535), 64, {where, "context has 65535 tokens"});
    refused(damaged(6 + n, 0), 64, {where, "completion 0 has 0 tokens"});
    refused(damaged(6 + n, 60000), 64, {where, "completion 0 has 60000 tokens"});
    refused(damaged(6, VOCAB), 64, {"example 1", "token 1000", "context", "vocabulary size 1000"});
    refused(damaged(length - 1, 65535), 64, {"example 1", "token 65535", "completion 3"});
    refused(good, 64, {"vocabulary size 3"}, 3);
    // longer by two than its tokens
    Example longer = examples[0];
    Words w = example_words(longer, 0);
    w.push_back(7);
    w[1] = (uint16_t)(w[1] + 2);
    refused(file_bytes(1, w[1], w), 64, {"its tokens end after", std::to_string(w[1] - 2).c_str()});
    EvalLoader loader;
    FileError error;
    std::string path = write_file(damaged(6, VOCAB));
    CHECK(eval_loader_init(&loader, path.c_str(), 64, 0, 0, 1, &error), "vocab_size 0 takes any token: %s", error.message);
    eval_loader_free(&loader);
}

// Every word of the examples replaced by several values: refused, or read without leaving the file (the sanitizers look on).
static void test_eval_survives_any_word(void) {
    const std::string good = make_file(make_examples(2, 4));
    std::vector<int32_t> inputs(8 * 64), targets(8 * 64);
    for (size_t at = EVAL_HEADER_BYTES; at < good.size(); at += 2) {
        for (int value : {0, 1, 2, 4, 5, 30, 255, 999, 32768, 65534, 65535}) {
            std::string bytes = good;
            uint16_t v = (uint16_t)value;
            memcpy(&bytes[at], &v, 2);
            EvalLoader loader;
            FileError error;
            if (!eval_loader_init(&loader, write_file(bytes).c_str(), 64, VOCAB, 0, 1, &error)) { continue; }
            eval_loader_read_rows(&loader, inputs.data(), targets.data(), 0, 8);
            for (int32_t x : inputs) { CHECK(x >= 0 && x < VOCAB, "token %d", x); }
            for (int32_t x : targets) { CHECK(x >= 0 && x < VOCAB, "token %d", x); }
            eval_loader_free(&loader);
        }
    }
}

static void test_eval_refuses_short_sequences(void) {
    std::vector<Example> examples = make_examples(3, 5);
    examples[1].context = Words(20, 1);
    examples[1].completion[2] = Words(11, 2);
    examples[2].context = Words(30, 1);
    examples[2].completion[3] = Words(10, 2);
    const std::string bytes = make_file(examples);
    refused(bytes, 39, {"example 2", "have 40 tokens", "T = 39", "--seq-len 40"});
    refused(bytes, 30, {"example 1", "have 31 tokens", "T = 30", "--seq-len 40"});  // the first that is too long, and what all need
    EvalLoader loader;
    load(&loader, bytes, 40, 0, 1);
    eval_loader_free(&loader);
}

static void test_eval_missing_file(void) {
    EvalLoader loader;
    FileError error;
    CHECK(!eval_loader_init(&loader, scratch("none.bin").c_str(), 8, VOCAB, 0, 1, &error) && error.code == ENOENT, "code %d: %s", error.code, error.message);
    CHECK(!eval_loader_init(&loader, scratch("none/none.bin").c_str(), 8, VOCAB, 0, 1, &error) && error.code == ENOENT, "code %d: %s", error.code, error.message);
    CHECK(!eval_loader_init(&loader, "/tmp", 8, VOCAB, 0, 1, &error) && error.code == EINVAL && strstr(error.message, "folder"), "code %d: %s", error.code, error.message);
}

// The first, second, ... system call fails: an error each time, until none is left to fail.
static void test_eval_failing_reads(void) {
    const std::string path = write_file(make_file(make_examples(3, 6)));
    int failures = 0;
    for (;; failures++) {
        EvalLoader loader;
        FileError error;
        file_faults()->countdown = failures;
        file_faults()->code = EIO;
        const bool ok = eval_loader_init(&loader, path.c_str(), 64, VOCAB, 0, 1, &error);
        file_faults()->countdown = -1;
        if (ok) { eval_loader_free(&loader); break; }
        CHECK(error.code == EIO && strstr(error.message, path.c_str()) && !loader.words, "fault %d: code %d, %s", failures, error.code, error.message);
    }
    CHECK(failures == 3, "%d system calls could fail: open, header, examples", failures);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"eval_file_by_hand", test_eval_file_by_hand, QUICK},
        {"eval_mean_is_llmcs", test_eval_mean_is_llmcs, QUICK},
        {"eval_every_example_once", test_eval_every_example_once, QUICK},
        {"eval_refuses_wrong_headers", test_eval_refuses_wrong_headers, QUICK},
        {"eval_refuses_every_other_length", test_eval_refuses_every_other_length, QUICK},
        {"eval_refuses_damaged_examples", test_eval_refuses_damaged_examples, QUICK},
        {"eval_survives_any_word", test_eval_survives_any_word, QUICK},
        {"eval_refuses_short_sequences", test_eval_refuses_short_sequences, QUICK},
        {"eval_missing_file", test_eval_missing_file, QUICK},
        {"eval_failing_reads", test_eval_failing_reads, QUICK},
    };
    return TEST_MAIN(tests);
}
