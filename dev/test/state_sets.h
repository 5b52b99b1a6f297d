/* state_sets.h - checkpoints for tests: every rank of a small run, one after the other in this process
 *
 * Each value says which array, step, run and element it belongs to, so that nothing can be mistaken for anything else.  */
#ifndef DEV_TEST_STATE_SETS_H
#define DEV_TEST_STATE_SETS_H

#include "dev/test/test.h"
#include "llmc/checkpoint.h"

#define HAS(text, word) CHECK(strstr(text, word), "'%s' is not in: %s", word, text)
#define OK(call) CHECK(call, "%s (%s)", error.message, error.hint)

static const ModelHeader TINY = {8, 10, 16, 2, 2, 4};  // maxT V Vp L NH C
// GPT-2's parameters, written down independently of PARAM_TABLE (which belongs to the trainer)
static inline uint64_t count_gpt2(const ModelHeader* h) {
    uint64_t C = (uint64_t)h->channels, L = (uint64_t)h->num_layers;
    return (uint64_t)h->padded_vocab_size * C + (uint64_t)h->max_seq_len * C + L * (12 * C * C + 13 * C) + 2 * C;
}

enum SetSharing { SET_SHARES, SET_BLOCKS, SET_RANDOM };     // one range a rank; small blocks in turn; random pieces of random owners
typedef struct {
    std::string folder;
    int step, num_ranks;
    uint64_t run;               // also the number of the writing
    SetSharing sharing;
    uint32_t dtype;             // of the model
    bool master;
    ModelHeader model;
} SetCase;
static inline SetCase set_case(const std::string& folder, int step, int num_ranks) {
    return SetCase{folder, step, num_ranks, 1, SET_BLOCKS, FILE_BF16, true, TINY};
}
static const char* const SET_ARRAYS[] = {"m", "v", "master", "model"};

// The bits of an element.
static inline uint32_t set_value(const SetCase* c, int array, uint64_t i) {
    TestRng r = {(c->run << 48) ^ ((uint64_t)c->step << 34) ^ ((uint64_t)array << 32) ^ i};
    return (uint32_t)test_rng_u64(&r);
}
static inline size_t set_element_bytes(const SetCase* c, int array) { return array == 3 ? file_dtype_bytes(c->dtype) : 4; }
static inline std::string set_values(const SetCase* c, int array, uint64_t first, uint64_t count) {
    std::string s;
    for (uint64_t i = first; i < first + count; i++) {
        uint32_t x = set_value(c, array, i);
        s.append((char*)&x, set_element_bytes(c, array));
    }
    return s;
}
static inline std::vector<StatePiece> set_pieces(const SetCase* c, int rank) {
    std::vector<StatePiece> pieces;
    const uint64_t N = count_gpt2(&c->model), P = (uint64_t)c->num_ranks, r = (uint64_t)rank;
    TestRng rng = {test_seed() + c->run};
    if (c->sharing == SET_SHARES) { state_pieces_add(&pieces, N * r / P, N * (r + 1) / P - N * r / P); }
    for (uint64_t at = 0, block = 0; c->sharing != SET_SHARES && at < N; block++) {
        uint64_t n = c->sharing == SET_BLOCKS ? 37 : 1 + test_rng_u64(&rng) % 100, owner = c->sharing == SET_BLOCKS ? block % P : test_rng_u64(&rng) % P;
        n = std::min(n, N - at);
        if (owner == r) { pieces.push_back(StatePiece{at, n}); }  // not joined: many small pieces
        at += n;
    }
    return pieces;
}

static inline bool set_begin_rank(StateSetWriter* w, const SetCase* c, int rank, FileError* error) {
    std::vector<StatePiece> pieces = set_pieces(c, rank);
    StateSetSpec spec = {c->folder.c_str(), c->step, rank, c->num_ranks, c->run, "steps = 9\n", &c->model, c->dtype, count_gpt2(&c->model), pieces.data(),
                         pieces.size(), c->master ? 3 : 2};
    return state_set_write_begin(w, &spec, error);
}
static inline bool set_write_array(StateSetWriter* w, const SetCase* c, int rank, int array, FileError* error) {
    std::string all;
    TestRng rng = {test_seed() + (uint64_t)(rank * 4 + array)};
    for (const StatePiece& p : set_pieces(c, rank)) { all += set_values(c, array, p.first, p.count); }
    const uint64_t size = set_element_bytes(c, array), elements = all.size() / size;
    state_set_array_begin(w, SET_ARRAYS[array], error);  // only the last call is looked at: a failure must stay
    for (uint64_t at = 0; at < elements;) {
        uint64_t n = std::min(elements - at, elements > 10000 ? elements : 1 + test_rng_u64(&rng) % 90);
        state_set_append(w, all.data() + at * size, n, error);
        at += n;
    }
    return state_set_array_end(w, error);
}
// The whole protocol. What a barrier would say, all ranks know at once.
static inline bool set_write(const SetCase* c, FileError* error) {
    std::vector<StateSetWriter> w((size_t)c->num_ranks);
    const char* folder = c->folder.c_str();
    int begun = 0;
    if (!checkpoint_begin(folder, c->step, error)) { return false; }
    bool ok = true;
    for (; ok && begun < c->num_ranks; begun += ok) { ok = set_begin_rank(&w[(size_t)begun], c, begun, error); }
    for (int a = 0; a < 4; a++) {
        for (int r = 0; ok && r < c->num_ranks; r++) { ok = (a == 2 && !c->master) || set_write_array(&w[(size_t)r], c, r, a, error); }
    }
    uint64_t place = (uint64_t)c->step * 10;
    ok = ok && state_write_section(&w[0].state, "run", FILE_U64, 1, &place, error);
    for (int r = 0; ok && r < c->num_ranks; r++) { ok = state_set_write_end(&w[(size_t)r], error); }
    if (ok && state_set_write_commit(&w[0], error) && checkpoint_done(folder, c->step, error)) { return true; }
    for (int r = 0; r < begun; r++) { state_set_write_abort(&w[(size_t)r]); }
    return false;
}
static inline void set_must_write(const SetCase& c) {
    FileError error;
    OK(set_write(&c, &error));
}

// Reads one array as reader r of Q does: its share, cut at random. False if it could not be read; values that are wrong end the test.
static inline bool set_read_share(StateSet* s, const SetCase* c, int array, int reader, int readers, FileError* error) {
    const uint64_t N = count_gpt2(&c->model), R = (uint64_t)reader, Q = (uint64_t)readers, end = N * (R + 1) / Q, size = set_element_bytes(c, array);
    TestRng rng = {test_seed() + R * 4 + (uint64_t)array};
    for (uint64_t at = N * R / Q; at < end;) {
        uint64_t n = std::min(end - at, N > 10000 ? (uint64_t)1000003 : 1 + test_rng_u64(&rng) % 80);
        std::string out(n * size + 1, '!');
        bool ok = array == 3 ? state_set_read_model(s, at, n, &out[0], error) : state_set_read(s, SET_ARRAYS[array], at, n, (float*)&out[0], error);
        if (!ok) { return false; }
        CHECK(out.back() == '!', "read past the end");
        CHECK(out.compare(0, n * size, set_values(c, array, at, n)) == 0, "%s of step %d, reader %d of %d: elements from %llu on are wrong", SET_ARRAYS[array], c->step,
              reader, readers, (unsigned long long)at);
        at += n;
    }
    return true;
}
static inline bool set_read_all(const SetCase* c, int readers, FileError* error) {
    for (int r = 0; r < readers; r++) {
        StateSet s;
        uint64_t place = 0;
        if (!state_set_open(&s, c->folder.c_str(), c->step, count_gpt2(&c->model), error)) { return false; }
        bool ok = s.num_ranks == c->num_ranks && s.model_dtype == c->dtype && state_set_has(&s, "master") == c->master;
        CHECK(ok, "%d ranks, dtype %u", s.num_ranks, s.model_dtype);
        for (int a = 0; ok && a < 4; a++) { ok = (a == 2 && !c->master) || set_read_share(&s, c, a, r, readers, error); }
        ok = ok && state_read_section(&s.first, "run", FILE_U64, 1, &place, error);
        CHECK(!ok || place == (uint64_t)c->step * 10, "the section of rank 0");
        state_set_close(&s);
        if (!ok) { return false; }
    }
    return true;
}
// Opens and reads every byte.
static inline bool set_verify(const SetCase* c, int parts, FileError* error) {
    for (int p = 0; p < parts; p++) { if (!checkpoint_verify(c->folder.c_str(), c->step, p, parts, error)) { return false; } }
    return true;
}

#endif
