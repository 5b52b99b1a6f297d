/* test_llmc_state.cu - llm.c's optimizer state: every form of it that llm.c writes is read, everything else is refused (host code only)
 *
 * The files are made here byte by byte from the description of the format, with a small GPT-2 of 16 tensors; generators are the C++ library's.  */
#include <algorithm>
#include <random>   // before common.h, whose fail() is a member of the library's streams too
#include <sstream>
#define GPT_FAULTS
#include "dev/test/test.h"
#include "llmc/llmc_state.h"

// ---------------------------------------------------------------------------- a run of llm.c

static std::string scratch(void) {
    static std::string folder;
    if (folder.empty()) {
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm/test_llmc_state.XXXXXX" : "/tmp/test_llmc_state.XXXXXX";
        CHECK(mkdtemp(&folder[0]), "%s", strerror(errno));
        static pid_t owner = getpid();
        atexit([] { std::string command = "rm -rf " + folder; if (getpid() == owner && system(command.c_str()) != 0) { perror("rm"); } });
    }
    return folder;
}
#define OK(call) CHECK(call, "%s (%s)", error.message, error.hint)

static const int C = 8, L = 3;
static const LlmcTensor tensors[] = {
    {1, 16 * C}, {1, 8 * C}, {L, C}, {L, C}, {L, 3 * C * C}, {L, 3 * C}, {L, C * C}, {L, C}, {L, C}, {L, C}, {L, 4 * C * C}, {L, 4 * C}, {L, 4 * C * C},
    {L, C}, {1, C}, {1, C}};
static const int num_tensors = sizeof(tensors) / sizeof(tensors[0]);
static const int STEP = 40;

template <class T> static void put(std::string* s, T value) { s->append((const char*)&value, sizeof(value)); }
template <class T> static void set(std::string* s, size_t at, T value) { memcpy(&(*s)[at], &value, sizeof(value)); }

// What a run has; files() writes it as llm.c would.
struct LlmcRun {
    int P = 1;
    bool master = true, shuffle = true, sharded = false, model_f32 = false;
    std::vector<float> m, v, masters;
    std::vector<uint16_t> weights;
    std::vector<int> shards, samples;   // of every rank
    uint64_t slot = 1, sample = 4;
    int draws = 1000;                   // of the generator

    LlmcRun() {
        TestRng rng = {test_seed()};
        for (const LlmcTensor& t : tensors) {
            for (uint64_t i = 0; i < t.layers * t.part; i++) {
                m.push_back((float)test_rng_normal(&rng));
                v.push_back((float)(test_rng_uniform(&rng) * 1e-3));
                masters.push_back(i % 7 == 0 ? 0.0f : (float)(test_rng_normal(&rng) * 0.02));
                uint32_t bits;
                memcpy(&bits, &masters.back(), 4);
                if ((test_rng_u64(&rng) & 0xffff) < (bits & 0xffff)) { bits += 0x10000; }  // rounded at random to either neighbour
                weights.push_back((uint16_t)(bits >> 16));
            }
        }
        shards = {2, 0, 1};
        samples = {4, 3, 0, 6, 1, 5, 2};
    }
    uint64_t N() const { return m.size(); }

    // A rank's part of a full array: of each layer of each tensor, the rank's share.
    void put_array(std::string* s, const std::vector<float>& full, int rank) const {
        if (!sharded) { s->append((const char*)full.data(), 4 * full.size()); return; }
        size_t offset = 0;
        for (const LlmcTensor& t : tensors) {
            size_t share = t.part / P;
            for (uint64_t l = 0; l < t.layers; l++) { s->append((const char*)&full[offset + l * t.part + rank * share], 4 * share); }
            offset += t.layers * t.part;
        }
    }
    std::mt19937 generator(int rank) const {
        std::mt19937 mt(42 + rank);
        for (int i = 0; i < draws; i++) { mt(); }
        return mt;
    }
    std::string state(int rank) const {
        std::string s(1024, '\0');
        const int32_t head[] = {20240527, 1, P, rank, master, shuffle};
        memcpy(&s[0], head, sizeof(head));
        set(&s, 40, (int32_t)STEP);
        set(&s, 80, (uint64_t)0x123456789abcdefull);
        set(&s, 88, (uint64_t)0xfedcba987654321ull);
        set(&s, 120, slot);
        set(&s, 128, sample);
        put_array(&s, m, rank);
        put_array(&s, v, rank);
        if (master) { put_array(&s, masters, rank); }
        if (!shuffle) { return s; }
        put(&s, (uint64_t)shards.size());
        for (int x : shards) { put(&s, (int32_t)x); }
        put(&s, (uint64_t)samples.size());
        for (int x : samples) { put(&s, (int32_t)x); }
        std::stringstream words;
        words << generator(rank);
        uint32_t x, state[624];
        for (uint32_t& w : state) { words >> w; }
        words >> x;  // numbers of it already given out
        put(&s, (uint64_t)0xdeadbeefdeadbeefull);  // llm.c never sets it
        put(&s, draws == 0 ? (int32_t)1 : (int32_t)(625 - x));
        put(&s, draws == 0 ? 0u : x);
        s.append((const char*)state, sizeof(state));
        put(&s, 0u);
        put(&s, 0x9908b0dfu);
        return s;
    }
    std::string path(int rank) const {
        char name[64];
        snprintf(name, sizeof(name), "/state_%08d_%05d.bin", STEP, rank);
        return scratch() + name;
    }
    std::string model_path() const { return scratch() + "/model_00000040.bin"; }
    void files() const {
        for (int r = 0; r < P; r++) { test_write_file(path(r), state(r)); }
        std::string model(1024, '\0');
        const int32_t head[] = {20240326, model_f32 ? 3 : 5, 8, 10, L, 2, C, 16};
        memcpy(&model[0], head, sizeof(head));
        if (model_f32) { model.append((const char*)masters.data(), 4 * N()); } else { model.append((const char*)weights.data(), 2 * N()); }
        test_write_file(model_path(), model);
    }
};

static bool open_state(LlmcState* s, FileError* error) { return llmc_state_open(s, scratch().c_str(), STEP, tensors, num_tensors, error); }

static bool read_array(LlmcState* s, LlmcStateArray array, std::vector<float>* out, uint64_t piece, FileError* error) {
    out->assign(s->num_parameters, -1.0f);
    llmc_state_begin(s, array);
    for (uint64_t at = 0; at < out->size(); at += piece) {
        if (!llmc_state_next(s, &(*out)[at], std::min<uint64_t>(piece, out->size() - at), error)) { return false; }
    }
    return true;
}
// Opens and reads all of it.
static bool read_all(FileError* error) {
    LlmcState s;
    std::vector<float> x;
    if (!open_state(&s, error)) { return false; }
    bool ok = read_array(&s, LLMC_STATE_M, &x, 100, error) && read_array(&s, LLMC_STATE_V, &x, 100, error) &&
        (!s.has_master || read_array(&s, LLMC_STATE_MASTER, &x, 100, error));
    llmc_state_close(&s);
    return ok;
}
// The files as they are must be refused with all these words, and a hint.
static void refused(std::vector<const char*> words) {
    FileError error;
    CHECK(!read_all(&error), "accepted; '%s' was to be said", words[0]);
    for (const char* word : words) { CHECK(strstr(error.message, word), "no '%s' in: %s", word, error.message); }
    CHECK(error.hint[0], "no hint with: %s", error.message);
}

// ---------------------------------------------------------------------------- reading

static void test_llmc_state_reads_every_form(void) {
    FileError error;
    for (int P : {1, 2, 4}) {
        for (int form = 0; form < 16; form++) {
            LlmcRun run;
            run.P = P;
            run.master = form & 1;
            run.shuffle = form & 2;
            run.sharded = (form & 4) && P > 1;
            run.model_f32 = form & 8;
            run.files();
            for (uint64_t piece : {(uint64_t)1, (uint64_t)37, run.N()}) {
                LlmcState s;
                std::vector<float> m, v, masters;
                OK(open_state(&s, &error));
                CHECK(s.num_ranks == P && s.step == STEP && s.has_master == run.master && s.shuffle == run.shuffle && s.sharded == run.sharded &&
                      s.num_parameters == run.N(), "%d ranks, form %d", P, form);
                OK(read_array(&s, LLMC_STATE_M, &m, piece, &error));
                OK(read_array(&s, LLMC_STATE_V, &v, piece, &error));
                CHECK(m == run.m && v == run.v, "%d ranks, form %d, pieces of %d: moments", P, form, (int)piece);
                if (run.master) {
                    OK(read_array(&s, LLMC_STATE_MASTER, &masters, piece, &error));
                    CHECK(masters == run.masters, "%d ranks, form %d: masters", P, form);
                }
                OK(read_array(&s, LLMC_STATE_M, &m, piece, &error));
                CHECK(m == run.m, "read again");
                llmc_state_close(&s);
            }
        }
    }
}

static void test_llmc_state_places(void) {
    FileError error;
    LlmcState s;
    for (int draws : {0, 1, 623, 624, 625, 1000, 1248}) {
        LlmcRun run;
        run.P = 2;
        run.draws = draws;
        run.files();
        OK(open_state(&s, &error));
        for (int r = 0; r < 2; r++) {
            DataPlace p = s.ranks[r].place;
            CHECK(p.shuffle && p.slot == 1 && p.sample == 4 && p.num_shards == 3 && p.num_samples == 7, "rank %d", r);
            CHECK(std::equal(run.shards.begin(), run.shards.end(), p.shards) && std::equal(run.samples.begin(), run.samples.end(), p.samples), "orders");
            std::mt19937 mt = run.generator(r);
            for (int i = 0; i < 2000; i++) { uint32_t a = mt19937_u32(&p.mt), b = (uint32_t)mt(); CHECK(a == b, "%d draws, rank %d, then %d: %u %u", draws, r, i, a, b); }
        }
        llmc_state_close(&s);
    }
    LlmcRun run;
    run.shuffle = false;
    run.slot = 5;
    run.sample = 1234567;
    run.files();
    OK(open_state(&s, &error));
    const DataPlace* p = &s.ranks[0].place;
    CHECK(!p->shuffle && p->slot == 5 && p->sample == 1234567 && !p->shards && !p->samples, "not shuffled");
    llmc_state_close(&s);
}

// From the file to the batches: the loader goes through the rest of the shard at hand, in the order that the file says.
static void test_llmc_state_starts_the_loader(void) {
    LlmcRun run;
    FileError error;
    LlmcState s;
    DataLoader loader;
    run.P = 2;
    run.files();
    const int B = 3, T = 4, tokens = 2 * B * T;
    for (int i = 0; i < 3; i++) {
        std::string shard(1024, '\0');
        const int32_t head[] = {20240520, 1, tokens * (i == 0 ? 7 : 2) + 1 + i};  // shard 0 is the one at hand: shards[slot]
        memcpy(&shard[0], head, sizeof(head));
        for (int t = 0; t < head[2]; t++) { put(&shard, (uint16_t)(1000 * i + t)); }
        test_write_file(scratch() + "/data" + std::to_string(i) + ".bin", shard);
    }
    OK(open_state(&s, &error));
    dataloader_init(&loader, (scratch() + "/data*.bin").c_str(), T, 0, true, 42, DATA_ORDER_LLMC, B, 2);
    const uint64_t position = 300;
    for (int r = 0; r < 2; r++) { OK(dataloader_llmc_set_place(&loader, r, &s.ranks[r].place, position, s.ranks[r].file.path, &error)); }
    std::vector<int32_t> in(B * T), out(B * T);
    for (int k = 0; k < 5; k++) {
        for (int r = 0; r < 2; r++) {
            dataloader_read(&loader, in.data(), out.data(), B, position + (2 * k + r) * B);
            const int first = k < 3 ? run.samples[4 + k] * tokens + r * B * T : 0;  // 3 samples are left; then shards[2] = 1, in a new order
            CHECK(k < 3 ? in[0] == first && out[B * T - 1] == first + B * T : in[0] >= 1000 && in[0] < 2000, "sample %d, rank %d: %d", k, r, in[0]);
        }
    }
    dataloader_free(&loader);
    dataloader_init(&loader, (scratch() + "/data*.bin").c_str(), T, 0, true, 42, DATA_ORDER_LLMC, B + 1, 2);
    CHECK(!dataloader_llmc_set_place(&loader, 0, &s.ranks[0].place, 0, s.ranks[0].file.path, &error), "another batch size");
    CHECK(strstr(error.message, "state_00000040_00000.bin") && strstr(error.hint, "--batch-size 3"), "%s (%s)", error.message, error.hint);
    dataloader_free(&loader);
    llmc_state_close(&s);
}

// Arrays beyond 4 GiB, of which only the ends exist.
static void test_llmc_state_beyond_4_gib(void) {
    const LlmcTensor one = {1, 600000000};
    const uint64_t N = one.part;
    FileError error;
    LlmcState s;
    LlmcRun run;
    run.shuffle = false;
    run.sample = 0;
    std::string head = run.state(0).substr(0, 1024);
    run.files();
    test_write_file(run.path(0), head);
    if (truncate(run.path(0).c_str(), 1024 + 12 * (off_t)N) != 0 || truncate(run.model_path().c_str(), 1024 + 2 * (off_t)N) != 0) { SKIP("no sparse files of 7 GB here"); }
    int fd = open(run.path(0).c_str(), O_WRONLY), model = open(run.model_path().c_str(), O_WRONLY);
    const float ends[3] = {-1.5f, 2.5f, 3.5f};
    for (int i = 0; i < 3; i++) { CHECK(pwrite(fd, &ends[i], 4, 1024 + 4 * ((i + 1) * (off_t)N - 1)) == 4, "write"); }
    CHECK(pwrite(model, "\x60\x40", 2, 1024 + 2 * ((off_t)N - 1)) == 2, "write");
    close(fd);
    close(model);
    OK(llmc_state_open(&s, scratch().c_str(), STEP, &one, 1, &error));
    for (int i = 0; i < 3; i++) {
        float x[2];
        llmc_state_begin(&s, (LlmcStateArray)i);
        s.at = N - 2;  // nobody reads gigabytes of holes here
        OK(llmc_state_next(&s, x, 2, &error));
        CHECK(x[0] == 0.0f && x[1] == ends[i], "array %d: %g, %g", i, x[0], x[1]);
    }
    llmc_state_close(&s);
}

// ---------------------------------------------------------------------------- refusing

// A change of the state file of rank 0.
template <class T> static void refuse_changed(const LlmcRun& run, size_t at, T value, std::vector<const char*> words) {
    std::string state = run.state(0);
    set(&state, at, value);
    test_write_file(run.path(0), state);
    refused(words);
    test_write_file(run.path(0), run.state(0));
}

static void test_llmc_state_refuses_headers(void) {
    LlmcRun run;
    run.files();
    const char* name = "state_00000040_00000.bin";
    refuse_changed(run, 0, 20240326, {name, "a model file"});
    refuse_changed(run, 0, 0x38504647, {name, "a state file of this program"});
    refuse_changed(run, 0, 7, {name, "unknown kind"});
    refuse_changed(run, 4, 2, {name, "version 2", "version 1"});
    refuse_changed(run, 8, 0, {name, "0 ranks"});
    refuse_changed(run, 8, -1, {name, "-1 ranks"});
    refuse_changed(run, 8, 70000, {name, "70000 ranks"});
    refuse_changed(run, 8, 2, {"cannot open", "state_00000040_00001.bin"});
    refuse_changed(run, 12, 3, {name, "by rank 3 at step 40"});
    refuse_changed(run, 16, 2, {name, "masters 2"});
    refuse_changed(run, 20, -1, {name, "shuffle -1"});
    refuse_changed(run, 40, -40, {name, "step -40"});
    refuse_changed(run, 40, 41, {name, "by rank 0 at step 41"});
    refuse_changed(run, 120, (uint64_t)3, {name, "shard 3 of 3"});
    refuse_changed(run, 128, (uint64_t)8, {name, "sample 8 of 7"});
    refuse_changed(run, 128, (uint64_t)1 << 32, {name, "sample 4294967296 of 7"});
    refuse_changed(run, 16, 0, {name});  // masters there, but not said
    test_write_file(run.path(0), "");
    refused({name, "less than 4 bytes"});
    test_write_file(run.path(0), run.state(0).substr(0, 1023));
    refused({name, "1023 bytes", "header of 1024"});
    unlink(run.path(0).c_str());
    refused({"cannot open", name});
    run.master = false;
    run.files();
    refuse_changed(run, 16, 1, {name});  // masters said, but not there
    FileError error;
    OK(read_all(&error));
}

// The layouts of May and June 2024: (shard i32, place i64) at 120 and 124, place in bytes, later in samples.
static void test_llmc_state_refuses_historic_layouts(void) {
    LlmcRun run;
    FileError error;
    for (bool shuffle : {false, true}) {
        for (int64_t place : {(int64_t)1024, (int64_t)1024 + 66560, (int64_t)3, (int64_t)-5}) {
            run.shuffle = shuffle;
            run.files();
            std::string state = run.state(0);
            set(&state, 120, (int32_t)1);
            set(&state, 124, place);
            set(&state, 132, 0);
            test_write_file(run.path(0), state);
            refused({"state_00000040_00000.bin", "early llm.c", "shard 1"});
        }
        std::string state = run.state(0);  // at sample 0 both layouts are the same bytes
        set(&state, 120, (int32_t)1);
        set(&state, 124, (int64_t)0);
        set(&state, 132, 0);
        test_write_file(run.path(0), state);
        LlmcState s;
        OK(open_state(&s, &error));
        CHECK(s.ranks[0].place.slot == 1 && s.ranks[0].place.sample == 0, "%d, %d", (int)s.ranks[0].place.slot, (int)s.ranks[0].place.sample);
        llmc_state_close(&s);
    }
}

static void test_llmc_state_refuses_every_other_size(void) {
    for (int form = 0; form < 8; form++) {
        LlmcRun run;
        FileError error;
        run.P = form & 4 ? 4 : 1;
        run.sharded = run.P > 1;
        run.shuffle = form & 1;
        run.master = form & 2;
        run.files();
        const std::string good = run.state(0);
        for (size_t cut = 1; cut < good.size(); cut += cut < 2700 ? (form == 3 ? 1 : 53) : 977) {
            CHECK(truncate(run.path(0).c_str(), (off_t)(good.size() - cut)) == 0, "truncate");
            LlmcState s;
            CHECK(!open_state(&s, &error), "form %d: without the last %zu of %zu bytes it is accepted", form, cut, good.size());
            CHECK(strstr(error.message, run.path(0).c_str()), "%s", error.message);
            test_write_file(run.path(0), good);
        }
        CHECK(truncate(run.path(0).c_str(), (off_t)(good.size() - 2)) == 0, "truncate");
        if (run.shuffle) { refused({"2 too few", "3 shards and 7 samples"}); } else { refused({"bytes;", "are due for"}); }
        for (size_t more : {1, 4, 1000, 100000}) {
            test_write_file(run.path(0), good + std::string(more, '\0'));
            if (run.shuffle) { refused({std::to_string(more).c_str(), "too many", "7 samples"}); } else { refused({"bytes;", "are due for"}); }
        }
    }
    LlmcRun run;  // the state of another model
    run.files();
    LlmcTensor other[num_tensors];
    memcpy(other, tensors, sizeof(tensors));
    for (uint64_t part : {16 * C + 8, 16 * C - 8}) {
        LlmcState s;
        FileError error;
        other[0].part = part;
        CHECK(!llmc_state_open(&s, scratch().c_str(), STEP, other, num_tensors, &error), "another model's is accepted");
    }
}

static void test_llmc_state_refuses_loader_parts(void) {
    LlmcRun run;
    run.files();
    const size_t at = 1024 + 12 * run.N(), samples = at + 8 + 4 * 3, generator = samples + 8 + 4 * 7;
    CHECK(generator + 2520 == run.state(0).size(), "the layout");
    refuse_changed(run, at, (uint64_t)0, {"0 shards"});
    refuse_changed(run, at, (uint64_t)4, {"state_00000040_00000.bin"});  // then there stands no number of samples
    refuse_changed(run, at, (uint64_t)-1, {"18446744073709551615 shards"});
    refuse_changed(run, at + 8, 1, {"3 shards", "no permutation"});
    refuse_changed(run, at + 8, 3, {"no permutation"});
    refuse_changed(run, at + 8, -1, {"no permutation"});
    refuse_changed(run, samples, (uint64_t)6, {"4 too many", "6 samples"});
    refuse_changed(run, samples, (uint64_t)0, {"0 samples"});
    refuse_changed(run, samples, (uint64_t)1 << 40, {"1099511627776 samples"});
    refuse_changed(run, samples + 8, 6, {"no permutation"});
    refuse_changed(run, samples + 8, -4, {"no permutation"});
    for (int left : {0, -1, 1, 624, 625, 1000}) { if (left != 625 - 376) { refuse_changed(run, generator + 8, left, {"generator", "next 376"}); } }
    refuse_changed(run, generator + 12, 625u, {"generator", "next 625"});
    refuse_changed(run, generator + 12, 0u, {"generator"});
    refuse_changed(run, generator + 2512, 1, {"generator", "constants"});
    refuse_changed(run, generator + 2516, 0, {"generator", "constants"});
    FileError error;
    OK(read_all(&error));
}

static void test_llmc_state_refuses_ranks_that_do_not_belong_together(void) {
    LlmcRun run, other;
    FileError error;
    run.P = other.P = 2;
    auto with_rank_1 = [&](std::vector<const char*> words) {
        run.files();
        test_write_file(run.path(1), other.state(1));
        words.push_back("state_00000040_00001.bin");
        refused(words);
    };
    other.master = false;
    with_rank_1({"does not belong to the state of rank 0", "masters 0"});
    other.master = true;
    other.shuffle = false;
    with_rank_1({"shuffle 0"});
    other.shuffle = true;
    other.P = 4;
    with_rank_1({"4 ranks"});
    other.P = 2;
    other.sharded = true;
    with_rank_1({"stage 1"});
    run.sharded = true;
    other.sharded = false;
    with_rank_1({"stage 1"});
    run.files();
    test_write_file(run.path(1), run.state(0));
    refused({"state_00000040_00001.bin", "by rank 0"});
    unlink(run.path(1).c_str());
    refused({"cannot open", "state_00000040_00001.bin"});
    // N is a multiple of P, a tensor is not: no such file is llm.c's
    const LlmcTensor odd[] = {{1, 3}, {1, run.N() - 3}};
    run.files();
    LlmcState s;
    CHECK(!llmc_state_open(&s, scratch().c_str(), STEP, odd, 2, &error) && strstr(error.message, "cannot share 3 elements"), "%s", error.message);
}

static void test_llmc_state_refuses_values(void) {
    LlmcRun run;
    run.files();
    const size_t m = 1024, v = m + 4 * run.N(), master = v + 4 * run.N();
    refuse_changed(run, m + 4 * 5, NAN, {"m of parameter 5 is nan"});
    refuse_changed(run, m + 4 * (run.N() - 1), -INFINITY, {"m of parameter", "is -inf"});
    refuse_changed(run, v + 4 * 1, -1e-30f, {"v of parameter 1 is -1e-30"});
    refuse_changed(run, v, INFINITY, {"v of parameter 0 is inf"});
    refuse_changed(run, master + 4 * 8, NAN, {"master of parameter 8 is nan"});
    refuse_changed(run, master + 4 * 8, run.masters[8] * 1.02f, {"master of parameter 8", "model_00000040.bin"});
    refuse_changed(run, master + 4 * 8, -run.masters[8], {"master of parameter 8"});
    refuse_changed(run, master, 1e-40f, {"master of parameter 0"});  // 0 in the model: nothing but 0, or what is below the smallest bfloat16
}

// Every weight that llm.c can round a master to, and its neighbours, which it cannot.
static void test_llmc_state_rounding(void) {
    for (uint32_t sign : {0u, 0x80000000u}) {
        for (uint32_t upper : {0u, 1u, 0x7fu, 0x80u, 0x3f7fu, 0x3f80u, 0x7f7eu}) {
            for (uint32_t lower : {0u, 1u, 0x8000u, 0xffffu}) {
                const uint32_t bits = sign | upper << 16 | lower;
                for (int d = -2; d <= 2; d++) {
                    const bool can = d == 0 || (d == 1 && lower != 0);
                    const uint16_t w = (uint16_t)((bits >> 16) + d);
                    CHECK(llmc_state_rounds_to(bits, w) == can, "%08x to %04x", bits, w);
                }
            }
        }
    }
}

static void test_llmc_state_refuses_models(void) {
    LlmcRun run, other;
    run.files();
    std::string model = test_read_file(run.model_path());
    test_write_file(run.model_path(), model.substr(0, model.size() - 2));
    refused({"model_00000040.bin", "is not the model file of"});
    test_write_file(run.model_path(), model + "xx");
    refused({"model_00000040.bin"});
    test_write_file(run.model_path(), "abc");
    refused({"model_00000040.bin", "3 bytes"});
    unlink(run.model_path().c_str());
    refused({"cannot open", "model_00000040.bin"});
    std::string v3 = model;
    set(&v3, 4, 3);
    test_write_file(run.model_path(), v3);
    refused({"is not the model file of"});
    // the model of another run, of the same size
    for (uint16_t& w : other.weights) { w = (uint16_t)(w ^ 0x10); }
    other.files();
    refused({"master of parameter 0 is", "does not round to", "model_00000040.bin"});
    run.model_f32 = true;
    run.masters[100] = 0.5f;
    run.files();
    run.masters[100] = nextafterf(0.5f, 1.0f);
    test_write_file(run.path(0), run.state(0));
    refused({"master of parameter 100 is 0.50000006, which does not round to 0.5"});
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) { count += fcntl(fd, F_GETFD) != -1; }
    return count;
}

// Every system call may fail: an error, no leak (the sanitizers look), nothing left open.
static void test_llmc_state_faults(void) {
    LlmcRun run;
    FileError error;
    run.P = 2;
    run.sharded = true;
    run.files();
    const int before = open_descriptors();
    long faults = 0;
    for (bool done = false; !done; faults++) {
        *file_faults() = {faults, EIO};
        done = read_all(&error);
        CHECK(done || strstr(error.message, strerror(EIO)), "fault %ld: %s", faults, error.message);
        CHECK(done == (file_faults()->countdown >= 0), "fault %ld was not reported", faults);
        CHECK(open_descriptors() == before, "fault %ld: %d open descriptors, were %d", faults, open_descriptors(), before);
    }
    CHECK(faults > 20, "%ld faults", faults);
    *file_faults() = {-1, 0};
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"llmc_state_reads_every_form", test_llmc_state_reads_every_form, QUICK},
        {"llmc_state_places", test_llmc_state_places, QUICK},
        {"llmc_state_starts_the_loader", test_llmc_state_starts_the_loader, QUICK},
        {"llmc_state_beyond_4_gib", test_llmc_state_beyond_4_gib, QUICK},
        {"llmc_state_refuses_headers", test_llmc_state_refuses_headers, QUICK},
        {"llmc_state_refuses_historic_layouts", test_llmc_state_refuses_historic_layouts, QUICK},
        {"llmc_state_refuses_every_other_size", test_llmc_state_refuses_every_other_size, QUICK},
        {"llmc_state_refuses_loader_parts", test_llmc_state_refuses_loader_parts, QUICK},
        {"llmc_state_refuses_ranks_that_do_not_belong_together", test_llmc_state_refuses_ranks_that_do_not_belong_together, QUICK},
        {"llmc_state_refuses_values", test_llmc_state_refuses_values, QUICK},
        {"llmc_state_rounding", test_llmc_state_rounding, QUICK},
        {"llmc_state_refuses_models", test_llmc_state_refuses_models, QUICK},
        {"llmc_state_faults", test_llmc_state_faults, QUICK},
    };
    return TEST_MAIN(tests);
}
