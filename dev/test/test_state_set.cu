/* test_state_set.cu - checkpoints of any number of ranks: every way to share, every byte, every length, every failing system call
 *
 * The folder's side (DONE, finding, keeping, crashes while writing) is in test_checkpoint_files.cu.  */
#define GPT_FAULTS
#include "dev/test/state_sets.h"

// ---------------------------------------------------------------------------- helpers

static std::string scratch(const char* name) {
    static std::string folder;
    if (folder.empty()) {
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm/test_state_set.XXXXXX" : "/tmp/test_state_set.XXXXXX";  // memory: thousands of fsyncs
        CHECK(mkdtemp(&folder[0]), "%s", strerror(errno));
        static pid_t owner = getpid();
        atexit([] { std::string command = "rm -rf " + folder; if (getpid() == owner && system(command.c_str()) != 0) { perror("rm"); } });
    }
    std::string path = folder + "/" + name;
    mkdir(path.c_str(), 0700);
    return path;
}
static std::string state_path(const SetCase& c, int rank) {
    char path[FILE_PATH_MAX];
    checkpoint_state_path(path, c.folder.c_str(), c.step, rank);
    return path;
}
static std::string model_path(const SetCase& c) {
    char path[FILE_PATH_MAX];
    checkpoint_model_path(path, c.folder.c_str(), c.step);
    return path;
}
static std::vector<std::string> all_paths(const SetCase& c) {
    std::vector<std::string> paths = {model_path(c)};
    for (int r = 0; r < c.num_ranks; r++) { paths.push_back(state_path(c, r)); }
    return paths;
}
static void refused(const SetCase& c, uint64_t num_parameters, const std::string& path, const char* words) {
    StateSet s;
    FileError error;
    CHECK(!state_set_open(&s, c.folder.c_str(), c.step, num_parameters, &error), "accepted, though: %s", words);
    HAS(error.message, path.c_str());
    HAS(error.message, words);
    CHECK(error.hint[0], "no hint: %s", error.message);
}
static int open_files(void) {
    int n = 0;
    DIR* dir = opendir("/proc/self/fd");
    while (dir && readdir(dir)) { n++; }
    closedir(dir);
    return n;
}
// A version 1 checkpoint, as one rank wrote it.
static void write_whole(const SetCase& c) {
    StateWriter w;
    FileError error;
    const uint64_t N = count_gpt2(&c.model), place = (uint64_t)c.step * 10;
    const std::string weights = set_values(&c, 3, 0, N);
    int32_t head[256];
    model_header_pack(head, &c.model, c.dtype);
    const std::string model = std::string((char*)head, sizeof(head)) + weights;
    test_write_file(model_path(c), model);
    OK(state_write_begin(&w, state_path(c, 0).c_str(), (uint64_t)c.step, 0, 1, "steps = 9\n", 0, &error));
    w.header.version = STATE_FILE_WHOLE;
    w.header.model_bytes = model.size();
    w.header.model_xxh64 = xxh64(model.data(), model.size(), 0);
    for (int a = 0; a < (c.master ? 3 : 2); a++) { OK(state_write_section(&w, SET_ARRAYS[a], FILE_F32, N, set_values(&c, a, 0, N).data(), &error)); }
    OK(state_write_section(&w, "run", FILE_U64, 1, &place, &error));
    OK(state_write_commit(&w, &error));
}

// ---------------------------------------------------------------------------- what is written is read

static void test_pieces_join_and_split(void) {
    std::vector<StatePiece> p;
    state_pieces_add(&p, 5, 0);
    CHECK(p.empty(), "nothing");
    state_pieces_add(&p, 5, 10);
    state_pieces_add(&p, 15, 1);                            // follows: one piece
    state_pieces_add(&p, 17, 2 * STATE_PIECE_MAX + 3);      // a gap before, too long for one
    state_pieces_add(&p, 20 + 2 * STATE_PIECE_MAX, 4);      // joins the last one
    const StatePiece due[] = {{5, 11}, {17, STATE_PIECE_MAX}, {17 + STATE_PIECE_MAX, STATE_PIECE_MAX}, {17 + 2 * STATE_PIECE_MAX, 7}};
    CHECK(p.size() == 4 && !memcmp(p.data(), due, sizeof(due)), "%zu pieces", p.size());
}

static void test_any_ranks_write_and_any_read(void) {
    FileError error;
    int cases = 0;
    for (int P : {1, 2, 3, 8}) {
        for (SetSharing sharing : {SET_SHARES, SET_BLOCKS, SET_RANDOM}) {
            for (bool master : {false, true}) {
                SetCase c = set_case(scratch("any"), 7 + cases++, P);
                c.sharing = sharing;
                c.master = master;
                c.dtype = master ? FILE_BF16 : FILE_F32;
                set_must_write(c);
                for (int Q : {1, 2, 3, 8}) { OK(set_read_all(&c, Q, &error)); OK(set_verify(&c, Q, &error)); }
            }
        }
    }
    CHECK(cases == 24, "%d", cases);
}

// The model file is llm.c's, byte for byte what one rank writes; its own reader takes it.
static void test_model_is_the_file_that_one_rank_writes(void) {
    SetCase c = set_case(scratch("model"), 3, 8), one = set_case(scratch("model1"), 3, 1);
    set_must_write(c);
    write_whole(one);
    std::string content = test_read_file(model_path(c));
    CHECK(content.size() == 1024 + 2 * count_gpt2(&TINY) && content == test_read_file(model_path(one)), "%zu bytes", content.size());
    ModelFile m;
    FileError error;
    OK(model_file_open(&m, model_path(c).c_str(), count_gpt2, &error));
    model_file_close(&m);
}

// More ranks than files may be open, more than there are elements to share.
static void test_many_ranks(void) {
    FileError error;
    const int before = open_files();
    for (int P : {100, 700}) {
        SetCase c = set_case(scratch("many"), P, P);
        c.sharing = P == 100 ? SET_RANDOM : SET_SHARES;  // 592 elements: some of the 700 ranks have none
        set_must_write(c);
        OK(set_read_all(&c, 2, &error));
        OK(set_verify(&c, 3, &error));
        StateSet s;
        OK(state_set_open(&s, c.folder.c_str(), c.step, 0, &error));
        float x;
        for (uint64_t i = 0; i < s.num_parameters; i++) { OK(state_set_read(&s, "m", i * 211 % s.num_parameters, 1, &x, &error)); }
        CHECK(open_files() <= before + STATE_SET_OPEN_MAX + 2, "%d files are open", open_files());  // and rank 0's, and the model
        state_set_close(&s);
    }
    CHECK(open_files() == before, "%d files open before, %d after", before, open_files());
}

// Pieces of full size: 9.4 million parameters.
static void test_large_pieces(void) {
    FileError error;
    SetCase c = set_case(scratch("large"), 5, 2);
    c.model = {512, 32768, 32768, 1, 2, 256};
    c.sharing = SET_SHARES;
    c.master = false;
    set_must_write(c);
    StateSet s;
    OK(state_set_open(&s, c.folder.c_str(), c.step, 0, &error));
    CHECK(s.num_parameters > 9200000 && s.pieces.size() == 4 && s.pieces[0].count == STATE_PIECE_MAX, "%llu parameters", (unsigned long long)s.num_parameters);
    state_set_close(&s);
    OK(set_read_all(&c, 3, &error));
    remove(state_path(c, 0).c_str());
}

// The sections by offsets typed here a second time (the file's own layout: test_formats.cu).
static void test_layout_is_as_documented(void) {
    SetCase c = set_case(scratch("layout"), 77, 3);
    set_must_write(c);
    uint64_t elements = 0, N = count_gpt2(&TINY);
    for (int rank = 0; rank < 3; rank++) {
        std::string s = test_read_file(state_path(c, rank)), model = test_read_file(model_path(c));
        auto u32 = [&](size_t at) { uint32_t x; memcpy(&x, &s.at(at), 4); return x; };
        auto u64 = [&](size_t at) { uint64_t x; memcpy(&x, &s.at(at), 8); return x; };
        CHECK(u32(4) == 2 && u64(16) == 77 && u32(24) == (uint32_t)rank && u32(28) == 3 && u64(56) == model.size() && u64(64) == xxh64(model.data(), 1024, 0) &&
              u64(72) == N && u64(80) == 1, "header");
        std::vector<StatePiece> pieces = set_pieces(&c, rank);
        const char* names[] = {"pieces", "m", "m/xxh64", "v", "v/xxh64", "master", "master/xxh64", "model/xxh64", "run"};
        CHECK(u32(48) == (rank == 0 ? 9 : 8), "%u sections", u32(48));
        for (uint32_t i = 0; i < u32(48); i++) {
            size_t e = u64(40) + i * 96, at = u64(e + 64);
            CHECK(!strcmp(&s[e], names[i]), "section %u is %s", i, &s[e]);
            const int array = i == 7 ? 3 : ((int)i - 1) / 2;
            size_t first = at;
            for (size_t p = 0; p < pieces.size(); p++) {
                std::string values = set_values(&c, array, pieces[p].first, pieces[p].count);
                if (i == 0) { CHECK(u64(at + 16 * p) == pieces[p].first && u64(at + 16 * p + 8) == pieces[p].count, "piece %zu", p); elements += pieces[p].count; }
                else if (i == 8) { break; }
                else if (i == 7 || i % 2 == 0) { CHECK(u64(at + 8 * p) == xxh64(values.data(), values.size(), 0), "digest %zu of %s", p, names[i]); }
                else { CHECK(!s.compare(first, values.size(), values), "values %zu of %s", p, names[i]); first += values.size(); }
            }
        }
    }
    CHECK(elements == N, "%llu elements", (unsigned long long)elements);
}

// Ascending reads of one array cost one pass: as many reads of the disk as there are pieces, not as there are ranges.
static void test_sequential_reads_cost_one_pass(void) {
    SetCase c = set_case(scratch("pass"), 4, 3);
    set_must_write(c);
    StateSet s;
    FileError error;
    float x;
    OK(state_set_open(&s, c.folder.c_str(), c.step, 0, &error));
    OK(state_set_read(&s, "v", 0, 1, &x, &error));  // files are open
    for (uint64_t i = 0; i < s.num_parameters; i++) { OK(state_set_read(&s, "v", i, 1, &x, &error)); }
    file_faults()->countdown = 1 << 30;
    for (uint64_t i = 0; i < s.num_parameters; i++) { OK(state_set_read(&s, "m", i, 1, &x, &error)); }
    long reads = (1 << 30) - file_faults()->countdown;
    file_faults()->countdown = -1;
    CHECK(reads == (long)s.pieces.size() && s.pieces.size() == 16, "%ld reads of %zu pieces", reads, s.pieces.size());
    state_set_close(&s);
}

// ---------------------------------------------------------------------------- what is wrong is found

// Every byte of every file, changed: not one gets by, the message names the file, and nobody ever gets a wrong value.
static void test_every_flipped_byte_is_found(void) {
    SetCase c = set_case(scratch("flip"), 6, 3);
    FileError error;
    size_t flips = 0;
    set_must_write(c);
    for (const std::string& path : all_paths(c)) {
        const std::string good = test_read_file(path);
        int fd = open(path.c_str(), O_WRONLY);
        for (size_t i = 0; i < good.size(); i++, flips++) {
            char bad = good[i] ^ (char)(1 << i % 8);
            CHECK(pwrite(fd, &bad, 1, (off_t)i) == 1, "pwrite");
            CHECK(!set_verify(&c, 1 + (int)(i % 3), &error), "%s: byte %zu is changed and nobody sees it", path.c_str(), i);
            HAS(error.message, path.c_str());
            CHECK(error.hint[0], "byte %zu: no hint", i);
            if (i % 4 == 0 && !set_read_all(&c, 1, &error)) { HAS(error.message, path.c_str()); }
            CHECK(pwrite(fd, &good[i], 1, (off_t)i) == 1, "pwrite");
        }
        close(fd);
    }
    OK(set_verify(&c, 2, &error));
    CHECK(flips > 10000, "%zu", flips);
}

static void test_every_length_but_the_right_one_is_refused(void) {
    const int before = open_files();
    SetCase c = set_case(scratch("cut"), 6, 2);
    FileError error;
    StateSet s;
    set_must_write(c);
    for (const std::string& path : all_paths(c)) {
        const std::string good = test_read_file(path);
        for (size_t n = good.size() - 1; n + 1 > 0; n--) {
            CHECK(truncate(path.c_str(), (off_t)n) == 0, "truncate");
            CHECK(!state_set_open(&s, c.folder.c_str(), c.step, 0, &error), "%zu of %zu bytes are accepted", n, good.size());
            HAS(error.message, path.c_str());
            CHECK(open_files() == before, "a refused checkpoint stays open");
        }
        test_write_file(path, good + "x");
        CHECK(!state_set_open(&s, c.folder.c_str(), c.step, 0, &error), "extended");
        HAS(error.message, path.c_str());
        unlink(path.c_str());
        refused(c, 0, path, "is missing");
        test_write_file(path, good);
    }
    OK(set_verify(&c, 1, &error));
}

static void test_files_that_do_not_belong_together_are_refused(void) {
    const uint64_t N = count_gpt2(&TINY);
    FileError error;
    SetCase c = set_case(scratch("mixed"), 6, 3), other = set_case(scratch("other"), 6, 3);
    set_must_write(c);
    const std::string state1 = test_read_file(state_path(c, 1)), state2 = test_read_file(state_path(c, 2)), model = test_read_file(model_path(c));
    refused(c, N + 1, state_path(c, 0), "belongs to a model of 592 parameters, not 593");
    test_write_file(state_path(c, 1), state2);                                      // two names exchanged
    refused(c, N, state_path(c, 1), "was written by rank 2 at step 6, not by rank 1 at step 6");
    auto foreign = [&](void (*change)(SetCase*), const char* words) {
        SetCase o = other;
        change(&o);
        set_must_write(o);
        test_write_file(state_path(c, 1), test_read_file(state_path(o, 1)));
        refused(c, N, state_path(c, 1), words);
        for (const std::string& path : all_paths(o)) { unlink(path.c_str()); }
    };
    foreign([](SetCase* o) { o->step = 5; }, "was written by rank 1 at step 5");
    foreign([](SetCase* o) { o->num_ranks = 4; }, "4 ranks");
    foreign([](SetCase* o) { o->run = 255; }, "writing 00000000000000ff");          // another run
    foreign([](SetCase* o) { o->dtype = FILE_F32; }, "model of 3392 bytes");
    foreign([](SetCase* o) { o->model.max_seq_len = 9; }, "596 parameters");
    foreign([](SetCase* o) { o->model.num_heads = 1; }, "there 2, 3, 592,");        // the same sizes, another model
    foreign([](SetCase* o) { o->master = false; }, "no section 'master/xxh64'");
    other.sharing = SET_SHARES;                                                     // other pieces: some are missing, others there twice
    set_must_write(other);
    test_write_file(state_path(c, 1), test_read_file(state_path(other, 1)));
    refused(c, N, c.folder, "elements 37 to 73 of 592 are in none of them");
    other.sharing = SET_BLOCKS;
    test_write_file(state_path(c, 1), state1);
    OK(set_verify(&c, 1, &error));

    // the same number of the writing by bad luck: the values still do not fit
    other.run = 2;
    set_must_write(other);
    test_write_file(model_path(c), test_read_file(model_path(other)));
    CHECK(!set_verify(&c, 1, &error), "the model of another run");
    HAS(error.message, model_path(c).c_str());
    HAS(error.message, "elements 0 to 36 of 'model'");
    test_write_file(model_path(c), model);
    std::string bytes = test_read_file(state_path(other, 1));
    uint64_t one = 1, table, config = strlen("steps = 9\n");
    memcpy(&bytes[80], &one, 8);
    memcpy(&table, &bytes[40], 8);
    StateHeader h;
    memcpy(&h, bytes.data(), sizeof(h));
    uint64_t digest = state_table_digest(&h, bytes.substr(128, config).c_str(), (const StateSection*)(bytes.data() + table));
    memcpy(&bytes[bytes.size() - 8], &digest, 8);
    test_write_file(state_path(c, 1), bytes);
    CHECK(!set_verify(&c, 1, &error), "the state of another run");
    HAS(error.message, model_path(c).c_str());
    HAS(error.message, "elements 37 to 73 of 'model'");
}

// A state file as no writer of ours makes it, under a good checksum.
static void craft(const SetCase& c, int rank, const std::vector<uint64_t>& pieces, uint64_t elements, uint64_t digests) {
    StateWriter w;
    FileError error;
    int32_t head[256];
    model_header_pack(head, &c.model, c.dtype);
    std::string zeros(8192, '\0');
    OK(state_write_begin(&w, state_path(c, rank).c_str(), (uint64_t)c.step, rank, c.num_ranks, "", 0, &error));
    w.header.num_parameters = count_gpt2(&c.model);
    w.header.writing = c.run;
    w.header.model_bytes = MODEL_FILE_HEADER_BYTES + w.header.num_parameters * file_dtype_bytes(c.dtype);
    w.header.model_xxh64 = xxh64(head, sizeof(head), 0);
    OK(state_write_section(&w, "pieces", FILE_U64, pieces.size(), pieces.data(), &error));
    for (const char* name : {"m", "v", "master"}) {
        OK(state_write_section(&w, name, FILE_F32, elements, zeros.data(), &error));
        OK(state_write_section(&w, (std::string(name) + "/xxh64").c_str(), FILE_U64, digests, zeros.data(), &error));
    }
    OK(state_write_section(&w, "model/xxh64", FILE_U64, digests, zeros.data(), &error));
    OK(state_write_commit(&w, &error));
}
static void test_impossible_pieces_are_refused(void) {
    SetCase c = set_case(scratch("pieces"), 6, 2);
    c.sharing = SET_SHARES;         // of 592: 0 to 295, 296 to 591
    set_must_write(c);
    const struct { std::vector<uint64_t> pieces; uint64_t elements, digests; const char* words; } cases[] = {
        {{296, 296}, 296, 1, ""},   // well made
        {{296, 295}, 295, 1, "elements 591 to 591 of 592 are in none of them"},
        {{297, 295}, 295, 1, "elements 296 to 296 of 592 are in none of them"},
        {{}, 0, 0, "elements 296 to 591 of 592 are in none of them"},
        {{296, 100, 400, 192}, 292, 2, "elements 396 to 399 of 592 are in none of them"},
        {{295, 297}, 297, 1, "holds the elements from 295 on"},
        {{0, 296, 296, 296}, 592, 2, "which '"},
        {{100, 10, 296, 296}, 306, 2, "holds the elements from 100 on, which '"},
        {{296, 297}, 297, 1, "piece 0, 297 elements from 296 on, is impossible: 1 to 4194304 elements between 0 and 592 are due"},
        {{593, 1}, 1, 1, "piece 0, 1 elements from 593 on, is impossible"},
        {{592, 1}, 1, 1, "piece 0, 1 elements from 592 on, is impossible"},
        {{UINT64_MAX, 2}, 2, 1, "piece 0, 2 elements from 18446744073709551615 on, is impossible"},
        {{296, UINT64_MAX}, 2, 1, "is impossible"},
        {{296, 0, 296, 296}, 296, 2, "piece 0, 0 elements"},
        {{444, 148, 296, 148}, 296, 2, "piece 1, 148 elements from 296 on, is impossible: 1 to 4194304 elements between 592 and 592"},
        {{296, 200, 495, 97}, 297, 2, "piece 1, 97 elements from 495 on, is impossible: 1 to 4194304 elements between 496 and 592"},
        {{296}, 296, 0, "'pieces' has 1 numbers, which are not pairs"},
        {{296, 296}, 295, 1, "section 'm' holds 295 x float32; 296 x float32 are wanted"},
        {{296, 296}, 296, 2, "'model/xxh64' holds 2 x uint64; 1 x uint64 are wanted"}};
    for (auto& k : cases) {
        craft(c, 1, k.pieces, k.elements, k.digests);
        if (k.words[0]) { refused(c, 0, c.folder, k.words); continue; }
        StateSet s;
        FileError error;
        OK(state_set_open(&s, c.folder.c_str(), c.step, 0, &error));
        state_set_close(&s);
    }
    craft(c, 1, {}, 0, 0);  // a rank that has nothing is fine, if another has it
    craft(c, 0, {0, 592}, 592, 1);
    StateSet s;
    FileError error;
    OK(state_set_open(&s, c.folder.c_str(), c.step, 0, &error));
    float x;
    CHECK(!state_set_read(&s, "w", 0, 1, &x, &error) && !state_set_has(&s, "w"), "an array that is not there");
    HAS(error.message, "no array 'w'; it has: model, m, v, master");
    CHECK(!state_set_read(&s, "m", 0, 1, &x, &error), "the digests are zeros");
    HAS(error.message, "elements 0 to 591 of 'm' (2368 bytes at ");
    HAS(error.message, "checksum ");
    HAS(error.message, "should be 0000000000000000");
    state_set_close(&s);
}

static void test_every_failing_read_is_reported(void) {
    SetCase c = set_case(scratch("eio"), 6, 3);
    FileError error;
    set_must_write(c);
    for (bool verify : {false, true}) {
        for (int n = 0;; n++) {
            file_faults()->countdown = n;
            file_faults()->code = EIO;
            bool ok = verify ? set_verify(&c, 2, &error) : set_read_all(&c, 1, &error), done = file_faults()->countdown >= 0;
            file_faults()->countdown = -1;
            CHECK(ok == done, "call %d: ok %d", n, ok);
            if (ok) { CHECK(n > 100, "only %d calls", n); break; }
            HAS(error.message, "Input/output error");
            HAS(error.message, c.folder.c_str());
        }
    }
}

// A rank whose turn never came aborts like the others: nothing of its writer is set.
static void test_abort_before_begin_does_nothing(void) {
    alignas(StateSetWriter) static char memory[sizeof(StateSetWriter)];
    memset(memory, 0x5a, sizeof(memory));
    StateSetWriter* w = new (memory) StateSetWriter;
    state_set_write_abort(w);
    SetCase c = set_case(scratch("abort"), 6, 1);
    FileError error;
    OK(set_begin_rank(w, &c, 0, &error));
    state_set_write_abort(w);
    state_set_write_abort(w);
    CHECK(access((model_path(c) + ".tmp").c_str(), F_OK) != 0 && access((state_path(c, 0) + ".tmp").c_str(), F_OK) != 0, "a temporary is left");
    w->~StateSetWriter();
}

// ---------------------------------------------------------------------------- version 1

static void test_states_of_version_1_are_read(void) {
    SetCase c = set_case(scratch("v1"), 6, 1);
    FileError error;
    for (bool master : {false, true}) {
        c.master = master;
        c.dtype = master ? FILE_BF16 : FILE_F32;
        write_whole(c);
        for (int Q : {1, 3}) { OK(set_read_all(&c, Q, &error)); OK(set_verify(&c, Q, &error)); }
        for (const std::string& path : all_paths(c)) {
            const std::string good = test_read_file(path);
            for (size_t i = 0; i < good.size(); i++) {
                std::string bad = good;
                bad[i] ^= (char)(1 << i % 8);
                test_write_file(path, bad);
                CHECK(!set_verify(&c, 1, &error), "%s: byte %zu", path.c_str(), i);
                HAS(error.message, path.c_str());
                if (i % 8 == 0 && !set_read_all(&c, 1, &error)) { HAS(error.message, path.c_str()); }
            }
            test_write_file(path, good);
        }
    }
    refused(c, 593, state_path(c, 0), "belongs to a model of 592 parameters, not 593");
    SetCase two = set_case(c.folder, 6, 2);
    StateWriter w;
    float x = 1.0f;
    OK(state_write_begin(&w, state_path(c, 0).c_str(), 6, 0, 2, "", 0, &error));
    w.header.version = STATE_FILE_WHOLE;
    OK(state_write_section(&w, "m", FILE_F32, 1, &x, &error));
    OK(state_write_commit(&w, &error));
    refused(two, 0, state_path(c, 0), "has version 1, which one rank writes, and says 2 ranks");
    set_must_write(two);    // a file of version 1 among those of version 2
    OK(state_write_begin(&w, state_path(two, 1).c_str(), 6, 1, 2, "", 0, &error));
    w.header.version = STATE_FILE_WHOLE;
    OK(state_write_section(&w, "m", FILE_F32, 1, &x, &error));
    OK(state_write_commit(&w, &error));
    refused(two, 0, state_path(two, 1), "version 1, 2 ranks");
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"pieces_join_and_split", test_pieces_join_and_split, QUICK},
        {"any_ranks_write_and_any_read", test_any_ranks_write_and_any_read, QUICK},
        {"model_is_the_file_that_one_rank_writes", test_model_is_the_file_that_one_rank_writes, QUICK},
        {"many_ranks", test_many_ranks, QUICK},
        {"large_pieces", test_large_pieces, SLOW},
        {"layout_is_as_documented", test_layout_is_as_documented, QUICK},
        {"sequential_reads_cost_one_pass", test_sequential_reads_cost_one_pass, QUICK},
        {"every_flipped_byte_is_found", test_every_flipped_byte_is_found, QUICK},
        {"every_length_but_the_right_one_is_refused", test_every_length_but_the_right_one_is_refused, QUICK},
        {"files_that_do_not_belong_together_are_refused", test_files_that_do_not_belong_together_are_refused, QUICK},
        {"impossible_pieces_are_refused", test_impossible_pieces_are_refused, QUICK},
        {"every_failing_read_is_reported", test_every_failing_read_is_reported, QUICK},
        {"abort_before_begin_does_nothing", test_abort_before_begin_does_nothing, QUICK},
        {"states_of_version_1_are_read", test_states_of_version_1_are_read, QUICK},
    };
    return TEST_MAIN(tests);
}
