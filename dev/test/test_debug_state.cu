/* test_debug_state.cu - llm.c's debug state: every value where it belongs, every length, every wrong header, every failing system call
 *
 * The files are put together here byte by byte from the format's table, independently of the reader. */
#define GPT_FAULTS
#include <vector>

#include "dev/test/test.h"
#include "llmc/debug_state.h"

static std::string scratch(const char* name) {
    static std::string folder;
    if (folder.empty()) {
        char name_template[] = "/tmp/test_debug_state.XXXXXX";
        CHECK(mkdtemp(name_template), "%s", strerror(errno));
        folder = name_template;
        atexit([] { std::string command = "rm -rf " + folder; if (system(command.c_str()) != 0) { perror("rm"); } });
    }
    return folder + "/" + name;
}
#define HAS(text, word) CHECK((text).find(word) != std::string::npos, "'%s' is not in: %s", std::string(word).c_str(), (text).c_str())

static const ModelHeader model = {8, 11, 16, 1, 2, 16};   // maxT 8, V 11, Vp 16, L 1, NH 2, C 16
static const uint64_t parameters = 37;                    // the reader is told how many; it does not care which
static const int B = 2, T = 5;

static float logit(int row, int v) { return (float)(100 * row + v) * 0.25f; }
static float gradient(int i) { return -1.0f / (float)(i + 3); }
static void put_i32(std::string* s, int32_t x) { s->append((const char*)&x, 4); }
static void put_f32(std::string* s, float x) { s->append((const char*)&x, 4); }

// A good file; header: the first four words.
static std::string make_state(int32_t magic, int32_t version, int32_t batch, int32_t seq_len) {
    std::string s;
    for (int32_t word : {magic, version, batch, seq_len}) { put_i32(&s, word); }
    s.append(1024 - s.size(), '\0');
    for (int i = 0; i < B * T; i++) { put_i32(&s, i % 11); }
    for (int i = 0; i < B * T; i++) { put_i32(&s, (i + 1) % 11); }
    for (int r = 0; r < B * T; r++) { for (int v = 0; v < 11; v++) { put_f32(&s, logit(r, v)); } }
    put_f32(&s, 2.5f);
    for (uint64_t i = 0; i < parameters; i++) { put_f32(&s, gradient((int)i)); }
    return s;
}
static std::string good_state(void) { return make_state(20240327, 2, B, T); }

// The message and hint with which a content is refused.
static std::string refusal(const std::string& content, const ModelHeader* m = &model, uint64_t n = parameters) {
    DebugState d;
    FileError error;
    std::string path = scratch("state.bin");
    test_write_file(path, content);
    bool ok = debug_state_open(&d, path.c_str(), m, n, &error);
    if (ok) { debug_state_close(&d); }
    CHECK(!ok, "a wrong file of %zu bytes was accepted", content.size());
    CHECK(d.file.fd == -1 && !d.inputs && !d.targets, "something is left open");
    CHECK(error.hint[0], "no hint for: %s", error.message);
    std::string text = std::string(error.message) + "\n" + error.hint;
    HAS(text, path);
    return text;
}

static void test_debug_state_has_the_sizes_of_llmc(void) {
    CHECK(debug_state_bytes(4, 64, 50257, 124475904) == 549369860, "the 124M debug state of llm.c has 549369860 bytes, not %llu", (unsigned long long)debug_state_bytes(4, 64, 50257, 124475904));
    CHECK(debug_state_bytes(B, T, 11, parameters) == good_state().size(), "%zu bytes", good_state().size());
    // the largest that the limits allow: exact in 64 bits
    CHECK(debug_state_bytes(65536, 1 << 20, 1 << 24, 1ull << 48) == 1024 + 4 * ((1ull << 37) + (1ull << 60) + 1 + (1ull << 48)), "overflow");
}

static void test_debug_state_reads_every_value(void) {
    DebugState d;
    FileError error;
    std::string path = scratch("good.bin");
    test_write_file(path, good_state());
    CHECK(debug_state_open(&d, path.c_str(), &model, parameters, &error), "%s", error.message);
    CHECK(d.B == B && d.T == T && d.V == 11 && d.loss == 2.5f && d.num_parameters == parameters, "B %d, T %d, V %d, loss %g", d.B, d.T, d.V, d.loss);
    for (int i = 0; i < B * T; i++) { CHECK(d.inputs[i] == i % 11 && d.targets[i] == (i + 1) % 11, "tokens %d: %d, %d", i, d.inputs[i], d.targets[i]); }
    for (int first = 0; first <= B * T; first++) {  // any piece, in any order
        for (int rows = 0; first + rows <= B * T; rows++) {
            std::vector<float> z((size_t)rows * 11);
            CHECK(debug_state_read_logits(&d, first, rows, z.data(), &error), "%s", error.message);
            for (int i = 0; i < rows * 11; i++) { CHECK(z[i] == logit(first + i / 11, i % 11), "rows %d+%d, element %d: %g", first, rows, i, z[i]); }
        }
    }
    for (uint64_t first : {0, 1, 20, 36, 37}) {
        std::vector<float> g(parameters - first);
        CHECK(debug_state_read_gradients(&d, first, g.size(), g.data(), &error), "%s", error.message);
        for (size_t i = 0; i < g.size(); i++) { CHECK(g[i] == gradient((int)(first + i)), "gradient %llu: %g", (unsigned long long)(first + i), g[i]); }
    }
    debug_state_close(&d);
    std::string junk = good_state();
    junk[100] = 7;  // reserved words of the header are ignored, as llm.c ignores them
    test_write_file(path, junk);
    CHECK(debug_state_open(&d, path.c_str(), &model, parameters, &error), "%s", error.message);
    debug_state_close(&d);
}

static void test_debug_state_refuses_every_wrong_length(void) {
    std::string good = good_state();
    for (size_t n = 0; n < good.size(); n++) {
        std::string text = refusal(good.substr(0, n));
        HAS(text, n < 4 ? "not a debug state" : n < 1024 ? "header" : std::to_string(good.size() - n) + " too few");
        if (n >= 4) { HAS(text, std::to_string(n) + " bytes"); HAS(text, n < 1024 ? "1024" : std::to_string(good.size())); }
    }
    HAS(refusal(good + "x"), "1 too many");
    HAS(refusal(good + std::string(5000, 'x')), "5000 too many");
}

static void test_debug_state_refuses_wrong_headers(void) {
    const struct { int32_t magic, version, batch, seq_len; const char* words; } cases[] = {
        {20240326, 3, 8, 11, "a model file"},
        {20240328, 2, 11, 0, "a tokenizer file"},
        {20240527, 1, 1, 0, "an optimizer state written by llm.c"},
        {(int32_t)__builtin_bswap32(20240327), 2, B, T, "big-endian"},
        {12345, 2, B, T, "unknown kind"},
        {20240327, 1, B, T, "version 1 (vocabulary not padded); version 2"},
        {20240327, 3, B, T, "version 3; version 2"},
        {20240327, 2, 0, T, "B 0"}, {20240327, 2, -1, T, "B -1"}, {20240327, 2, 65537, T, "B 65537"},
        {20240327, 2, B, 0, "T 0"}, {20240327, 2, B, -7, "T -7"}, {20240327, 2, B, 9, "T 9; B must be 1 to 65536, and T at most the 8"},
        {20240327, 2, INT32_MAX, INT32_MAX, "B 2147483647"}, {20240327, 2, INT32_MIN, T, "B -2147483648"},
    };
    for (auto& c : cases) {
        HAS(refusal(make_state(c.magic, c.version, c.batch, c.seq_len)), c.words);
    }
    HAS(refusal(make_state(20240327, 2, B + 1, T)), "too few: B 3, T 5");
    HAS(refusal(make_state(20240327, 2, 65536, 8)), "too few");
}

// A good file beside the wrong model: another vocabulary, another number of parameters, fewer positions.
static void test_debug_state_refuses_another_model(void) {
    ModelHeader other = model;
    other.vocab_size = 12;
    HAS(refusal(good_state(), &other), "V 12 and 37 parameters");
    HAS(refusal(good_state(), &model, 36), "4 too many");
    HAS(refusal(good_state(), &model, 1ull << 47), "too few");
    other = model;
    other.max_seq_len = 4;
    HAS(refusal(good_state(), &other), "4 positions");
    other = model;                 // a smaller vocabulary whose missing logits are taken for parameters: only the tokens tell
    other.vocab_size = 10;
    HAS(refusal(good_state(), &other, parameters + B * T), "token 9 of the targets is 10; the model has tokens 0 to 9");
}

static void test_debug_state_refuses_tokens_outside_the_vocabulary(void) {
    for (int32_t token : {11, -1, INT32_MAX, INT32_MIN}) {
        for (int at : {0, 7, 10, 19}) {
            std::string s = good_state();
            memcpy(&s[1024 + 4 * at], &token, 4);
            HAS(refusal(s), "token " + std::to_string(at % 10) + " of the " + (at < 10 ? "inputs" : "targets") + " is " + std::to_string(token));
        }
    }
}

static void test_debug_state_refuses_what_is_no_file(void) {
    DebugState d;
    FileError error;
    CHECK(!debug_state_open(&d, scratch("missing.bin").c_str(), &model, parameters, &error) && error.code == ENOENT && error.hint[0], "%s", error.message);
    CHECK(!debug_state_open(&d, scratch(".").c_str(), &model, parameters, &error) && strstr(error.message, "a folder"), "%s", error.message);
    CHECK(!debug_state_open(&d, "/dev/null", &model, parameters, &error) && strstr(error.message, "not a regular file"), "%s", error.message);
}

// Each system call fails once; a file that shrinks between opening and reading is noticed.
static void test_debug_state_survives_failing_system_calls(void) {
    std::string path = scratch("good.bin");
    test_write_file(path, good_state());
    DebugState d;
    FileError error;
    int refused = 0;
    for (long n = 0;; n++) {
        file_faults()->countdown = n;
        file_faults()->code = EIO;
        bool ok = debug_state_open(&d, path.c_str(), &model, parameters, &error);
        file_faults()->countdown = -1;
        if (ok) { break; }
        CHECK(error.code == EIO && strstr(error.message, path.c_str()), "call %ld: %s", n, error.message);
        refused++;
    }
    CHECK(refused == 5, "%d system calls were made to open it: open, header, inputs, targets, loss", refused);
    CHECK(truncate(path.c_str(), 1024 + 8 * B * T + 4 * 11) == 0, "%s", strerror(errno));
    std::vector<float> z(B * T * 11);
    CHECK(debug_state_read_logits(&d, 0, 1, z.data(), &error), "%s", error.message);
    CHECK(!debug_state_read_logits(&d, 0, 2, z.data(), &error) && strstr(error.message, "44 more are due"), "%s", error.message);
    CHECK(!debug_state_read_gradients(&d, 0, 1, z.data(), &error) && error.hint[0], "%s", error.message);
    debug_state_close(&d);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"debug_state_has_the_sizes_of_llmc", test_debug_state_has_the_sizes_of_llmc, QUICK},
        {"debug_state_reads_every_value", test_debug_state_reads_every_value, QUICK},
        {"debug_state_refuses_every_wrong_length", test_debug_state_refuses_every_wrong_length, QUICK},
        {"debug_state_refuses_wrong_headers", test_debug_state_refuses_wrong_headers, QUICK},
        {"debug_state_refuses_another_model", test_debug_state_refuses_another_model, QUICK},
        {"debug_state_refuses_tokens_outside_the_vocabulary", test_debug_state_refuses_tokens_outside_the_vocabulary, QUICK},
        {"debug_state_refuses_what_is_no_file", test_debug_state_refuses_what_is_no_file, QUICK},
        {"debug_state_survives_failing_system_calls", test_debug_state_survives_failing_system_calls, QUICK},
    };
    return TEST_MAIN(tests);
}
