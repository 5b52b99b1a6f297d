/* test_formats.cu - checksum, atomic files, model files, state files: every byte, every length, every failing system call
 *
 * Golden XXH64 digests come from an independent implementation (Python's xxhash 3), golden file sizes from llm.c's. A "fault" test lets the first,
 * second, third ... system call fail until the operation succeeds, and checks after each that the old file is intact and no temporary is left.  */
#define GPT_FAULTS
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <algorithm>
#include <vector>

#include "dev/test/test.h"
#include "llmc/formats.h"

// ---------------------------------------------------------------------------- helpers

static std::string scratch(const char* name) {
    static std::string folder;
    if (folder.empty()) {
        char name_template[] = "/tmp/test_formats.XXXXXX";
        CHECK(mkdtemp(name_template), "%s", strerror(errno));
        folder = name_template;
        atexit([] { std::string command = "rm -rf " + folder; if (system(command.c_str()) != 0) { perror("rm"); } });
    }
    return folder + "/" + name;
}
static bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
#define HAS(text, word) CHECK(strstr(text, word), "'%s' is not in: %s", word, text)
#define OK(call) CHECK(call, "%s (%s)", error.message, error.hint)

// ---------------------------------------------------------------------------- xxh64

// byte i of the golden buffers
static unsigned char golden_byte(size_t i) { return (unsigned char)(i * 131 + (i >> 8) * 7 + 17); }

static void test_xxh64_matches_golden_digests(void) {
    const uint64_t P = 2654435761ull, M = ~0ull;
    const struct { size_t bytes; uint64_t seed, digest; } golden[] = {
        {0, 0, 0xef46db3751d8e999ull}, {0, P, 0xac75fda2929b17efull}, {0, M, 0x298f4c84b24f5380ull},
        {1, 0, 0xad10cd9780ac4ff7ull}, {1, P, 0xf88ae2f48ef24881ull}, {1, M, 0xdc2e21ee587419c3ull},
        {3, 0, 0x40626d96276e4594ull}, {3, P, 0xf0014c3e749973ceull}, {3, M, 0x208c3f6f49d52785ull},
        {4, 0, 0x882207c122c76e23ull}, {4, P, 0xc094e5997a59fca8ull}, {4, M, 0xa3ca1715ebc4e113ull},
        {7, 0, 0xcfc90033aa9dac4full}, {7, P, 0xfc78838e468e8d43ull}, {7, M, 0x90866867d75a4298ull},
        {8, 0, 0x90fda2f089fa86deull}, {8, P, 0x9695ee781e770068ull}, {8, M, 0x3bdf870fac3eed30ull},
        {15, 0, 0x59f95bad12d14c9dull}, {15, P, 0x24dad7ef0e22c47full}, {15, M, 0x28384c47f5c567e7ull},
        {31, 0, 0x44cc9efe5d2d0233ull}, {31, P, 0xd31a362c3b01d50aull}, {31, M, 0x25608d004db25b8eull},
        {32, 0, 0x0e1aab1d173cf196ull}, {32, P, 0x7c0185575a4c21e7ull}, {32, M, 0xea657ae0d58299c6ull},
        {33, 0, 0x5c820b4b4fe28fdcull}, {33, P, 0xeb179ec5ed36d2a8ull}, {33, M, 0x1c0b053e809de36eull},
        {63, 0, 0x1153d36cade87066ull}, {63, P, 0x53a474f0361430b1ull}, {63, M, 0x1a727c92eb65fb17ull},
        {64, 0, 0xd4c20ef54cbc9f67ull}, {64, P, 0x2a36d2b8f2422df9ull}, {64, M, 0xeb902852be97c9d2ull},
        {100, 0, 0x7f8375f3e09d8123ull}, {100, P, 0x4df30046fd46879full}, {100, M, 0x9539db4ada18374bull},
        {1000, 0, 0x1c0effbf9aa81cebull}, {1000, P, 0x671fab73493b19e5ull}, {1000, M, 0xb15b2ee70a93803eull},
        {65537, 0, 0x92f8144353454746ull}, {65537, P, 0x0bbe03ccf2e069b3ull}, {65537, M, 0x0377082ad959b40cull},
    };
    std::vector<unsigned char> data(65537);
    for (size_t i = 0; i < data.size(); i++) { data[i] = golden_byte(i); }
    for (auto& g : golden) {
        std::vector<unsigned char> exact(data.begin(), data.begin() + g.bytes);  // its own allocation: an address sanitizer sees a read past its end
        uint64_t found = xxh64(exact.data(), g.bytes, g.seed);
        CHECK(found == g.digest, "%zu bytes, seed %llx: %016llx, should be %016llx", g.bytes, (unsigned long long)g.seed, (unsigned long long)found,
              (unsigned long long)g.digest);
    }
    CHECK(xxh64("abc", 3, 0) == 0x44bc2cf5ad770999ull, "abc");
}

static void test_xxh64_does_not_depend_on_the_cuts(void) {
    unsigned char data[203];
    for (size_t i = 0; i < sizeof(data); i++) { data[i] = golden_byte(i); }
    for (size_t n = 0; n <= 100; n++) {
        for (size_t cut = 0; cut <= n; cut++) {
            Xxh64 h;
            xxh64_init(&h, 5);
            xxh64_update(&h, data, cut);
            xxh64_digest(&h);  // looking must not change it
            xxh64_update(&h, data + cut, n - cut);
            CHECK(xxh64_digest(&h) == xxh64(data, n, 5), "%zu bytes cut at %zu", n, cut);
        }
    }
    TestRng rng = {test_seed()};
    for (int trial = 0; trial < 2000; trial++) {
        Xxh64 h;
        xxh64_init(&h, 0);
        for (size_t at = 0; at < sizeof(data);) {
            size_t n = test_rng_u64(&rng) % 70;
            n = n < sizeof(data) - at ? n : sizeof(data) - at;
            xxh64_update(&h, data + at, n);
            at += n;
        }
        CHECK(xxh64_digest(&h) == xxh64(data, sizeof(data), 0), "trial %d", trial);
    }
}

static void test_xxh64_speed(void) {
    std::vector<char> data(64 << 20, 1);
    double best = 0.0;
    for (int i = 0; i < 5; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        volatile uint64_t digest = xxh64(data.data(), data.size(), 0);
        (void)digest;
        clock_gettime(CLOCK_MONOTONIC, &b);
        double rate = (double)data.size() / ((b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) * 1e-9) / 1e9;
        best = rate > best ? rate : best;
    }
    printf("note xxh64: %.1f GB/s\n", best);
    CHECK(best > 1.0, "%.2f GB/s: slower than a disk, which it must never hold up (4 and more on an idle machine)", best);
}

// ---------------------------------------------------------------------------- atomic files

static void test_atomic_file_holds_what_was_written(void) {
    std::string path = scratch("a.bin"), expected;
    AtomicFile f;
    FileError error;
    TestRng rng = {test_seed()};
    OK(atomic_file_open(&f, path.c_str(), 0, &error));
    const size_t sizes[] = {0, 1, 7, 4096, FILE_BUFFER_BYTES / 2, FILE_BUFFER_BYTES / 2 + 1, FILE_BUFFER_BYTES, FILE_BUFFER_BYTES + 3};
    for (int i = 0; i < 264; i++) {  // every pair of sizes below, around and above the buffer, then small ones
        std::string piece(i < 128 ? sizes[i % 2 ? i / 2 / 8 : i / 2 % 8] : sizes[test_rng_u64(&rng) % 4], '\0');
        for (auto& c : piece) { c = (char)test_rng_u64(&rng); }
        expected += piece;
        OK(atomic_file_write(&f, piece.data(), piece.size(), &error));
    }
    CHECK(f.bytes == expected.size(), "%llu", (unsigned long long)f.bytes);
    OK(atomic_file_patch(&f, 5, "patch", 5, &error));
    expected.replace(5, 5, "patch");
    CHECK(!exists(path), "the file must not appear before commit");
    OK(atomic_file_commit(&f, &error));
    CHECK(test_read_file(path) == expected, "content");
    CHECK(!exists(path + ".tmp"), "temporary left");
}

static void test_atomic_file_abort_keeps_the_old_file(void) {
    std::string path = scratch("b.bin");
    AtomicFile f;
    FileError error;
    test_write_file(path, "old");
    OK(atomic_file_open(&f, path.c_str(), 0, &error));
    OK(atomic_file_write(&f, "new content", 11, &error));
    atomic_file_abort(&f);
    CHECK(test_read_file(path) == "old", "content");
    CHECK(!exists(path + ".tmp"), "temporary left");
}

static void test_atomic_file_survives_every_fault(void) {
    std::string path = scratch("c.bin"), big(3 * FILE_BUFFER_BYTES + 5, 'x');
    const int codes[] = {ENOSPC, EIO, EDQUOT};
    for (int code : codes) {
        bool done = false;
        int n = 0;
        for (; !done; n++) {
            AtomicFile f;
            FileError error;
            test_write_file(path, "old");
            file_faults()->countdown = n;
            file_faults()->code = code;
            bool ok = atomic_file_open(&f, path.c_str(), big.size() + 2, &error);
            ok = atomic_file_write(&f, "ab", 2, &error) && ok;  // calls go on after a failure, as a careless caller's would
            ok = atomic_file_write(&f, big.data(), big.size(), &error) && ok;
            ok = atomic_file_patch(&f, 0, "AB", 2, &error) && ok;
            ok = atomic_file_commit(&f, &error) && ok;
            done = file_faults()->countdown >= 0;
            file_faults()->countdown = -1;
            CHECK(ok == done, "fault %d: ok %d, done %d", n, ok, done);
            std::string found = test_read_file(path);
            CHECK(found == "old" || found == "AB" + big, "fault %d left a broken file of %zu bytes", n, found.size());
            CHECK(!ok || found.size() == big.size() + 2, "success without the file");
            CHECK(!exists(path + ".tmp"), "fault %d left a temporary", n);
            if (ok) { break; }
            HAS(error.message, strerror(code));
            CHECK(error.hint[0] && error.code == code, "hint '%s', code %d", error.hint, error.code);
            if (found == "old") {
                HAS(error.message, path.c_str());
                HAS(error.message, "3145735 bytes wanted");
                HAS(error.message, "bytes free there");
            }
        }
        CHECK(n >= 7, "only %d system calls were tried", n);
    }
}

static void test_atomic_file_refuses_what_does_not_fit(void) {
    std::string path = scratch("d.bin");
    AtomicFile f;
    FileError error;
    test_write_file(path, "old");
    CHECK(!atomic_file_open(&f, path.c_str(), 1ull << 60, &error), "an exabyte fits?");
    HAS(error.message, "1152921504606846976 bytes wanted");
    HAS(error.message, "bytes free there");
    HAS(error.hint, "free space");
    CHECK(!atomic_file_commit(&f, &error), "a failed file must not commit");
    CHECK(test_read_file(path) == "old" && !exists(path + ".tmp"), "the old file");
    CHECK(!atomic_file_open(&f, scratch("no/such/folder/x").c_str(), 0, &error), "open");
    HAS(error.message, "No such file or directory");
    CHECK(!atomic_file_open(&f, std::string(2000, 'x').c_str(), 0, &error), "long name");
    HAS(error.message, "2000 bytes");
}

// A real full disk: a tmpfs of 1 MiB, where the machine lets us mount one.
static bool mount_small(const std::string& folder) {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
}
static void test_atomic_file_on_a_full_disk(void) {
    std::string folder = scratch("small");
    AtomicFile f;
    FileError error;
    std::string data(512 << 10, 'y');
    CHECK(mkdir(folder.c_str(), 0700) == 0, "mkdir");
    if (!mount_small(folder)) {
        SKIP("mounting a small file system is not allowed here: %s", strerror(errno));
    }
    std::string path = folder + "/x.bin";
    test_write_file(path, "old");
    OK(atomic_file_open(&f, path.c_str(), 0, &error));  // size not told, so the write is what fails
    bool ok = true;
    for (int i = 0; i < 4; i++) { ok = ok && atomic_file_write(&f, data.data(), data.size(), &error); }
    ok = ok && atomic_file_commit(&f, &error);
    CHECK(!ok, "2 MiB in a disk of 1 MiB");
    HAS(error.message, "No space left on device");
    CHECK(test_read_file(path) == "old" && !exists(path + ".tmp"), "the old file");
    umount(folder.c_str());
}

static void file_size_limit_child(void* arg) {
    struct rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    AtomicFile f;
    FileError error;
    if (!atomic_file_open(&f, ((std::string*)arg)->c_str(), 5000, &error)) { printf("%s / %s\n", error.message, error.hint); }
}
static void test_atomic_file_names_the_file_size_limit(void) {
    std::string path = scratch("e.bin"), output;
    int code = test_child(file_size_limit_child, &path, &output);
    CHECK(code == 0, "exit %d (a signal?): %s", code, output.c_str());
    HAS(output.c_str(), "File too large");
    HAS(output.c_str(), "ulimit -f");
}

// ---------------------------------------------------------------------------- shared files

// Three processes' writing, one after the other; a failed one makes all abort.
static bool write_shared(const std::string& path, FileError* error) {
    SharedFile f[3];
    std::string parts[3] = {std::string(1000, 'a'), std::string(2000, 'b'), std::string(500, 'c')};
    const uint64_t at[3] = {0, 1000, 3000};
    int begun = 0;
    bool ok = true;
    for (; ok && begun < 3; begun += ok) { ok = begun == 0 ? shared_file_create(&f[0], path.c_str(), 3500, error) : shared_file_open(&f[begun], path.c_str(), 3500, error); }
    for (int i = 2; ok && i >= 0; i--) {  // the last bytes first: the size is there already
        ok = shared_file_pwrite(&f[i], at[i] + 100, parts[i].data() + 100, parts[i].size() - 100, error) && shared_file_pwrite(&f[i], at[i], parts[i].data(), 100, error);
        ok = ok && shared_file_sync(&f[i], error);
    }
    ok = ok && shared_file_commit(&f[0], error);
    for (int i = 0; !ok && i < begun; i++) { shared_file_abort(&f[i]); }
    return ok;
}
static const std::string SHARED = std::string(1000, 'a') + std::string(2000, 'b') + std::string(500, 'c');

static void test_shared_file_holds_what_all_wrote(void) {
    std::string path = scratch("s.bin");
    FileError error;
    test_write_file(path, "old");
    SharedFile stale, f, g;
    OK(shared_file_create(&stale, path.c_str(), 3500, &error));  // of an interrupted run, one of whose processes lives on
    OK(shared_file_create(&f, path.c_str(), 3500, &error));
    OK(shared_file_pwrite(&stale, 0, "stale", 5, &error));
    CHECK(test_read_file(path + ".tmp") == std::string(3500, '\0'), "a lost process writes into the new file");
    CHECK(!shared_file_open(&g, path.c_str(), 3501, &error), "another size");
    HAS(error.message, "has 3500 bytes, not 3501");
    HAS(error.hint, "a file system that they share");
    shared_file_abort(&f);
    stale.creator = false;
    shared_file_abort(&stale);
    CHECK(!exists(path + ".tmp") && test_read_file(path) == "old", "abort");
    CHECK(!shared_file_open(&g, path.c_str(), 3500, &error), "nobody created it");
    HAS(error.message, (path + ".tmp").c_str());
    HAS(error.hint, "a file system that they share");
    OK(write_shared(path, &error));
    CHECK(test_read_file(path) == SHARED && !exists(path + ".tmp"), "content");
    test_write_file(scratch("target"), "precious");
    CHECK(symlink(scratch("target").c_str(), (path + ".tmp").c_str()) == 0, "symlink");
    OK(write_shared(path, &error));
    CHECK(test_read_file(scratch("target")) == "precious" && test_read_file(path) == SHARED, "a link was followed");
}

static void test_shared_file_survives_every_fault(void) {
    std::string path = scratch("t.bin");
    for (int code : {ENOSPC, EIO, EDQUOT, EOPNOTSUPP}) {
        for (int n = 0;; n++) {
            FileError error;
            test_write_file(path, "old");
            test_write_file(path + ".tmp", "left over");
            file_faults()->countdown = n;
            file_faults()->code = code;
            bool ok = write_shared(path, &error), done = file_faults()->countdown >= 0;
            file_faults()->countdown = -1;
            const std::string found = test_read_file(path);
            CHECK(ok == done || (ok && (code == EOPNOTSUPP)), "fault %d: ok %d, done %d", n, ok, done);  // a file system that cannot reserve, or not sync folders
            CHECK(ok ? found == SHARED : found == "old" || found == SHARED, "fault %d left %zu bytes", n, found.size());
            CHECK(!exists(path + ".tmp") || n == 0, "fault %d left a temporary", n);  // 0: its removal failed
            if (ok && done) { CHECK(n >= 18, "only %d system calls were tried", n); break; }
            if (ok) { continue; }
            HAS(error.message, strerror(code));
            HAS(error.message, found == "old" ? path.c_str() : path.substr(0, path.rfind('/')).c_str());
            CHECK(error.hint[0] && error.code == code, "hint '%s', code %d", error.hint, error.code);
        }
    }
}

static void shared_limit_child(void* arg) {
    struct rlimit limit = {1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    SharedFile f;
    FileError error;
    if (!shared_file_create(&f, ((std::string*)arg)->c_str(), 5000, &error)) { printf("%s / %s\n", error.message, error.hint); }
    if (!shared_file_create(&f, std::string(2000, 'x').c_str(), 10, &error)) { printf("%s\n", error.message); }
    if (!shared_file_create(&f, ((std::string*)arg)->c_str(), 1ull << 60, &error)) { printf("%s\n", error.message); }
}
static void test_shared_file_refuses_what_does_not_fit(void) {
    std::string path = scratch("u.bin"), output;
    int code = test_child(shared_limit_child, &path, &output);
    CHECK(code == 0, "exit %d (a signal?): %s", code, output.c_str());
    HAS(output.c_str(), "File too large");
    HAS(output.c_str(), "ulimit -f");
    HAS(output.c_str(), "2000 bytes");
    HAS(output.c_str(), "1152921504606846976 bytes wanted");
    SharedFile f;
    FileError error;
    CHECK(!shared_file_create(&f, path.c_str(), 1ull << 60, &error) && !exists(path + ".tmp"), "an exabyte fits?");
    HAS(error.hint, "free space");
    OK(shared_file_create(&f, path.c_str(), 0, &error));  // nothing is a size too
    OK(shared_file_sync(&f, &error));
    OK(shared_file_commit(&f, &error));
    CHECK(exists(path), "empty");
}

// A real full disk, as above: creating the file takes the room, so that no process finds it missing later.
static void test_shared_file_on_a_full_disk(void) {
    std::string folder = scratch("small2");
    SharedFile f, g;
    FileError error;
    CHECK(mkdir(folder.c_str(), 0700) == 0, "mkdir");
    if (!mount_small(folder)) { SKIP("mounting a small file system is not allowed here: %s", strerror(errno)); }
    OK(shared_file_create(&f, (folder + "/x").c_str(), 600 << 10, &error));
    CHECK(!shared_file_create(&g, (folder + "/y").c_str(), 600 << 10, &error), "1.2 MiB in a disk of 1 MiB");
    HAS(error.message, "No space left on device");
    CHECK(!exists(folder + "/y.tmp"), "temporary left");
    shared_file_abort(&f);
    umount(folder.c_str());
}

// ---------------------------------------------------------------------------- folders

static void test_make_folder_with_parents(void) {
    FileError error;
    std::string folder = scratch("one/two/three");
    OK(file_make_folder(folder.c_str(), &error));
    OK(file_make_folder(folder.c_str(), &error));  // again: fine
    OK(file_make_folder((folder + "/").c_str(), &error));
    CHECK(exists(folder), "%s", folder.c_str());
    test_write_file(folder + "/file", "x");
    CHECK(!file_make_folder((folder + "/file").c_str(), &error), "a file is in the way");
    HAS(error.message, "not a folder");
    CHECK(!file_make_folder((folder + "/file/below").c_str(), &error), "a file is in the way");
    HAS(error.message, (folder + "/file").c_str());
    CHECK(!file_make_folder("/proc/self/never", &error), "/proc");
    HAS(error.message, "cannot create the folder '/proc/self/never'");
    CHECK(!file_make_folder("/proc/self", &error), "/proc");
    HAS(error.message, "cannot write into the folder");
    CHECK(!file_make_folder("", &error), "empty");
}

// ---------------------------------------------------------------------------- model files

// GPT-2's parameters, written down independently of PARAM_TABLE (which belongs to the trainer)
static uint64_t count_gpt2(const ModelHeader* h) {
    uint64_t C = (uint64_t)h->channels, L = (uint64_t)h->num_layers;
    return (uint64_t)h->padded_vocab_size * C + (uint64_t)h->max_seq_len * C + L * (12 * C * C + 13 * C) + 2 * C;
}
static const ModelHeader TINY = {8, 10, 16, 2, 2, 4};  // maxT V Vp L NH C

static std::string write_tiny_model(const char* name, uint32_t dtype) {
    std::string path = scratch(name);
    AtomicFile f;
    FileError error;
    uint64_t n = count_gpt2(&TINY);
    int32_t head[256];
    model_header_pack(head, &TINY, dtype);
    std::vector<unsigned char> payload(n * file_dtype_bytes(dtype));
    for (size_t i = 0; i < payload.size(); i++) { payload[i] = golden_byte(i); }
    OK(atomic_file_open(&f, path.c_str(), 0, &error));
    OK(atomic_file_write(&f, head, sizeof(head), &error));
    OK(atomic_file_write(&f, payload.data(), payload.size(), &error));
    OK(atomic_file_commit(&f, &error));
    return path;
}

static void test_model_file_is_llmc_byte_for_byte(void) {
    for (uint32_t dtype : {(uint32_t)FILE_F32, (uint32_t)FILE_BF16}) {
        std::string content = test_read_file(write_tiny_model("m.bin", dtype)), expected(1024, '\0');
        const int32_t head[8] = {20240326, dtype == FILE_F32 ? 3 : 5, 8, 10, 2, 2, 4, 16};  // LLMC_COMPAT 2.1: magic, version, maxT, V, L, NH, C, Vp
        memcpy(&expected[0], head, sizeof(head));
        size_t n = 16 * 4 + 8 * 4 + 2 * (12 * 16 + 13 * 4) + 2 * 4;
        for (size_t i = 0; i < n * (dtype == FILE_F32 ? 4 : 2); i++) { expected += (char)golden_byte(i); }
        CHECK(content == expected, "%zu bytes, should be %zu", content.size(), expected.size());
    }
}

static void test_model_file_reads_back_in_pieces(void) {
    std::string path = write_tiny_model("m.bin", FILE_BF16), content = test_read_file(path);
    ModelFile m;
    FileError error;
    OK(model_file_open(&m, path.c_str(), count_gpt2, &error));
    CHECK(m.dtype == FILE_BF16 && m.num_parameters == count_gpt2(&TINY) && !memcmp(&m.header, &TINY, sizeof(TINY)), "header");
    std::string payload;
    for (uint64_t left = m.num_parameters; left > 0;) {
        uint16_t piece[37];
        uint64_t n = left < 37 ? left : 37;
        OK(model_file_read(&m, piece, n, &error));
        payload.append((char*)piece, n * 2);
        left -= n;
    }
    CHECK(payload == content.substr(1024), "payload");
    model_file_close(&m);
}

static void refuse_model(const std::string& content, const char* word) {
    std::string path = scratch("bad.bin");
    ModelHeader header;
    uint32_t dtype;
    uint64_t n;
    FileError error;
    test_write_file(path, content);
    CHECK(!model_file_read_header(path.c_str(), count_gpt2, &header, &dtype, &n, &error), "accepted, though: %s", word);
    HAS(error.message, path.c_str());
    HAS(error.message, word);
    CHECK(error.hint[0], "no hint");
}
static void test_model_file_refuses_by_name(void) {
    std::string good = test_read_file(write_tiny_model("m.bin", FILE_F32));
    const struct { int word; int32_t value; const char* says; } cases[] = {
        {0, 20240520, "a token shard"}, {0, 20240527, "an optimizer state written by llm.c"}, {0, 0x38504647, "a state file of this program"},
            {0, 1, "a file of unknown kind"},
        {0, (int32_t)__builtin_bswap32(20240326), "swapped bytes"}, {0, 0x04034b50, "zip archive"}, {0, 0x73726576, "git-lfs"},
        {1, 1, "version 1 (float32, vocabulary not padded)"}, {1, 2, "version 2 (bfloat16, vocabulary not padded)"},
            {1, 4, "version 4 (bfloat16 with LayerNorm in float32)"}, {1, 6, "version 6;"},
        {2, 0, "max_seq_len is 0"}, {2, -1, "max_seq_len is -1"}, {2, 1 << 21, "max_seq_len is 2097152"}, {3, 0, "vocab_size is 0"},
            {3, 17, "padded_vocab_size 16 is less than vocab_size 17"},
        {4, 0, "num_layers is 0"}, {4, 5000, "num_layers is 5000"}, {5, 0, "num_heads is 0"}, {5, 3, "4 channels cannot be divided among 3 heads"},
            {6, 0, "channels is 0"},
        {6, 1 << 30, "channels is 1073741824"}, {7, INT32_MIN, "padded_vocab_size is -2147483648"}, {2, 9, "16 too few"}, {2, 7, "16 too many"}};
    for (auto& c : cases) {
        std::string bad = good;
        memcpy(&bad[c.word * 4], &c.value, 4);
        refuse_model(bad, c.says);
    }
    for (size_t n : {0, 3, 4, 1023, 1024, (int)good.size() - 1}) {
        refuse_model(good.substr(0, n), n < 4 ? "less than 4 bytes" : n < 1024 ? "not even its header" : "too few");
    }
    refuse_model(good + "x", "1 too many");
    ModelFile m;
    FileError error;
    CHECK(!model_file_open(&m, scratch("missing.bin").c_str(), count_gpt2, &error), "missing");
    HAS(error.message, "No such file or directory");
    CHECK(!model_file_open(&m, "/tmp", count_gpt2, &error), "folder");
    HAS(error.message, "a folder, not a file");
}

// The sizes of llm.c's own files, as sparse files: 64-bit sizes all the way, and no size is an int.
static void test_model_file_sizes_of_gpt2(void) {
    const struct { ModelHeader h; int32_t version; uint64_t bytes; } cases[] = {
        {{1024, 50257, 50304, 12, 12, 768}, 5, 248952832ull}, {{1024, 50257, 50304, 12, 12, 768}, 3, 497904640ull},
            {{1024, 50257, 50304, 48, 25, 1600}, 5, 3115373824ull},
        {{1024, 50257, 50304, 72, 30, 2880}, 5, 14633776384ull}, {{2048, 50257, 50304, 96, 96, 12288}, 5, 349209674752ull}};
    for (auto& c : cases) {
        std::string path = scratch("sparse.bin");
        int32_t head[8] = {20240326, c.version, c.h.max_seq_len, c.h.vocab_size, c.h.num_layers, c.h.num_heads, c.h.channels, c.h.padded_vocab_size};
        test_write_file(path, std::string((char*)head, sizeof(head)));
        if (truncate(path.c_str(), (off_t)c.bytes) != 0) { SKIP("no sparse file of %llu bytes here: %s", (unsigned long long)c.bytes, strerror(errno)); }
        ModelFile m;
        FileError error;
        OK(model_file_open(&m, path.c_str(), count_gpt2, &error));
        char end[3] = {1, 1, 1};
        OK(input_file_read_at(&m.file, c.bytes - 2, end, 2, &error));
        CHECK(end[0] == 0 && end[1] == 0 && !input_file_read_at(&m.file, c.bytes - 2, end, 3, &error), "end of the file");
        HAS(error.message, "1 more are due");
        model_file_close(&m);
        unlink(path.c_str());
    }
}

// ---------------------------------------------------------------------------- state files

static float moments[1000];
static const char* CONFIG = "batch_size = 4\ndtype = float8\n";

static bool write_state(const std::string& path, size_t piece, FileError* error) {
    StateWriter w;
    for (int i = 0; i < 1000; i++) { moments[i] = (float)i * 0.25f; }
    uint64_t rng = 42;
    bool ok = state_write_begin(&w, path.c_str(), 77, 1, 3, CONFIG, sizeof(moments) + 100, error);
    w.header.model_bytes = 123456;
    w.header.model_xxh64 = 0xabcdef;
    w.header.num_parameters = 1000;
    w.header.writing = 99;
    ok = state_write_section_begin(&w, "m", FILE_F32, 1000, error) && ok;
    for (size_t at = 0; at < sizeof(moments); at += piece) {
        ok = state_write_append(&w, (char*)moments + at, std::min(piece, sizeof(moments) - at), error) && ok;
    }
    ok = state_write_section_end(&w, error) && ok;
    ok = state_write_section(&w, "nothing", FILE_BF16, 0, NULL, error) && ok;
    ok = state_write_section(&w, "rng", FILE_U64, 1, &rng, error) && ok;
    ok = state_write_section(&w, "loader/shard-order.0", FILE_U8, 13, "0123456789abc", error) && ok;
    return state_write_commit(&w, error) && ok;
}

static void test_state_round_trip(void) {
    std::string path = scratch("state.bin"), content[3];
    FileError error;
    const size_t pieces[3] = {4000, 1, 333};
    for (int i = 0; i < 3; i++) {
        OK(write_state(path, pieces[i], &error));
        content[i] = test_read_file(path);
        CHECK(content[i] == content[0], "the file depends on the size of the pieces");
    }
    StateReader r;
    OK(state_read_open(&r, path.c_str(), &error));
    CHECK(r.header.step == 77 && r.header.rank == 1 && r.header.num_ranks == 3 && r.header.model_bytes == 123456 && r.header.model_xxh64 == 0xabcdef,
          "header");
    CHECK(!strcmp(r.config, CONFIG), "config '%s'", r.config);
    float back[1000];
    uint64_t rng = 0;
    char order[13];
    OK(state_read_section_begin(&r, "m", FILE_F32, 1000, &error));
    for (size_t at = 0; at < 4000; at += 10) { OK(state_read_next(&r, (char*)back + at, 10, &error)); }
    OK(state_read_section_end(&r, &error));
    CHECK(!memcmp(back, moments, sizeof(back)), "moments");
    OK(state_read_section(&r, "loader/shard-order.0", FILE_U8, 13, order, &error));  // any order
    OK(state_read_section(&r, "rng", FILE_U64, 1, &rng, &error));
    OK(state_read_section(&r, "nothing", FILE_BF16, 0, NULL, &error));
    CHECK(rng == 42 && !memcmp(order, "0123456789abc", 13), "values");
    OK(state_read_verify(&r, &error));
    state_read_close(&r);
}

// The table in formats.h, read by offsets typed here a second time.
static void test_state_layout_is_as_documented(void) {
    std::string path = scratch("state.bin");
    FileError error;
    OK(write_state(path, 4000, &error));
    std::string s = test_read_file(path);
    auto u32 = [&](size_t at) { uint32_t x; memcpy(&x, &s.at(at), 4); return x; };
    auto u64 = [&](size_t at) { uint64_t x; memcpy(&x, &s.at(at), 8); return x; };
    CHECK(!memcmp(s.data(), "GFP8", 4) && u32(4) == 2 && u32(8) == 0x01020304 && u32(12) == 128 && u64(16) == 77 && u32(24) == 1 && u32(28) == 3,
          "header");
    CHECK(u64(32) == s.size() && u32(48) == 4 && u32(52) == strlen(CONFIG) && u64(56) == 123456 && u64(64) == 0xabcdef && u64(72) == 1000 && u64(80) == 99,
          "header");
    CHECK(s.substr(128, strlen(CONFIG)) == CONFIG, "config");
    uint64_t table = u64(40), at = 192;
    CHECK(table == s.size() - 8 - 4 * 96, "table at %llu", (unsigned long long)table);
    const struct { const char* name; uint32_t dtype; uint64_t count, bytes; } sections[4] = {{"m", 1, 1000, 4000}, {"nothing", 2, 0, 0},
            {"rng", 9, 1, 8}, {"loader/shard-order.0", 5, 13, 13}};
    for (int i = 0; i < 4; i++) {
        size_t e = table + i * 96;
        uint64_t padded = (sections[i].bytes + 63) / 64 * 64;
        CHECK(!strcmp(&s[e], sections[i].name) && u32(e + 48) == sections[i].dtype && u64(e + 56) == sections[i].count &&
              u64(e + 72) == sections[i].bytes, "entry %d", i);
        CHECK(u64(e + 64) == at && at % 64 == 0, "entry %d at %llu, should be %llu", i, (unsigned long long)u64(e + 64), (unsigned long long)at);
        CHECK(u64(e + 80) == xxh64(&s[at], padded, 0), "checksum of entry %d", i);
        at += padded;
    }
    CHECK(at == table, "end of sections");
    CHECK(u64(s.size() - 8) == xxh64((s.substr(0, 192) + s.substr(table, 4 * 96)).data(), 192 + 4 * 96, 0), "checksum of the table");
}

// Every byte of the file, changed: refused at open or when read, and the message says what is damaged.
static void test_state_corrupt_byte_is_found_anywhere(void) {
    std::string path = scratch("state.bin");
    FileError error;
    OK(write_state(path, 4000, &error));
    const std::string good = test_read_file(path);
    uint64_t table;
    memcpy(&table, &good[40], 8);
    int fd = open(path.c_str(), O_WRONLY);
    for (size_t i = 0; i < good.size(); i++) {
        char bad = good[i] ^ (char)(1 << i % 8);
        CHECK(pwrite(fd, &bad, 1, (off_t)i) == 1, "pwrite");
        StateReader r;
        bool ok = state_read_open(&r, path.c_str(), &error);
        bool in_sections = i >= 192 && i < table;
        CHECK(ok == in_sections, "byte %zu: open %d", i, ok);
        if (ok) {
            CHECK(!state_read_verify(&r, &error), "byte %zu is changed and nobody sees it", i);
            HAS(error.message, i < 192 + 4032 ? "section 'm'" : i < 192 + 4032 + 64 ? "section 'rng'" : "section 'loader/shard-order.0'");
            state_read_close(&r);
        }
        HAS(error.message, path.c_str());
        CHECK(error.hint[0], "byte %zu: no hint", i);
        CHECK(pwrite(fd, &good[i], 1, (off_t)i) == 1, "pwrite");
    }
    close(fd);
}

// A table that lies under a good checksum (made by hand, or by a bug of ours): still nothing is read out of bounds.
static void test_state_impossible_tables_are_refused(void) {
    std::string path = scratch("state.bin");
    FileError error;
    OK(write_state(path, 4000, &error));
    const std::string good = test_read_file(path);
    uint64_t table;
    memcpy(&table, &good[40], 8);
    const struct { int entry, field, bytes; uint64_t value; } cases[] = {
        {0, 48, 4, 0}, {0, 48, 4, 99}, {0, 56, 8, 999}, {0, 56, 8, 1ull << 62}, {0, 64, 8, 0}, {0, 64, 8, 256}, {0, 72, 8, 3996},
            {3, 64, 8, 1ull << 63}, {1, 0, 1, 'N'}, {1, 0, 1, 0}, {1, 8, 1, 'x'}};
    for (auto& c : cases) {
        std::string bad = good;
        memcpy(&bad[table + c.entry * 96 + c.field], &c.value, c.bytes);
        uint64_t digest = xxh64((bad.substr(0, 192) + bad.substr(table, 4 * 96)).data(), 192 + 4 * 96, 0);
        memcpy(&bad[bad.size() - 8], &digest, 8);
        test_write_file(path, bad);
        StateReader r;
        CHECK(!state_read_open(&r, path.c_str(), &error), "entry %d field %d value %llu", c.entry, c.field, (unsigned long long)c.value);
        HAS(error.message, (c.entry == 0 ? "entry 0 of the table" : c.entry == 1 ? "entry 1 of the table" : "entry 3 of the table"));
    }
    for (uint64_t bytes : {4100ull, 1ull << 40, ~0ull & ~3ull}) {  // longer than the file: count and bytes agree, the end does not
        std::string bad = good;
        uint64_t count = bytes / 4;
        memcpy(&bad[table + 56], &count, 8);
        memcpy(&bad[table + 72], &bytes, 8);
        uint64_t digest = xxh64((bad.substr(0, 192) + bad.substr(table, 4 * 96)).data(), 192 + 4 * 96, 0);
        memcpy(&bad[bad.size() - 8], &digest, 8);
        test_write_file(path, bad);
        StateReader r;
        CHECK(!state_read_open(&r, path.c_str(), &error), "%llu bytes", (unsigned long long)bytes);
        HAS(error.message, bytes < 5000 ? "entry 1 of the table" : "entry 0 of the table");
    }
}

static void test_state_truncated_at_any_length(void) {
    std::string path = scratch("state.bin"), output;
    FileError error;
    StateReader r;
    OK(write_state(path, 4000, &error));
    const std::string good = test_read_file(path);
    for (size_t n = good.size() - 1; n + 1 > 0; n--) {
        CHECK(truncate(path.c_str(), (off_t)n) == 0, "truncate");
        CHECK(!state_read_open(&r, path.c_str(), &error), "%zu of %zu bytes are accepted", n, good.size());
        HAS(error.message, n < 4 ? "less than 4 bytes" : n < 128 ? "not even its header" : "it was cut");
    }
    test_write_file(path, good + "x");
    CHECK(!state_read_open(&r, path.c_str(), &error), "extended");
    HAS(error.message, "extended");
}

static void test_state_refuses_other_files_by_name(void) {
    std::string path = scratch("other.bin");
    StateReader r;
    FileError error;
    const struct { int32_t magic, version; const char* message; const char* hint; } cases[] = {
        {20240527, 1, "an optimizer state written by llm.c", "-e model_"}, {20240326, 5, "a model file (llm.c's format)", ""},
            {0x38504647, 3, "has version 3; this program reads versions 1 and 2", "the program that wrote it"},
        {0x47465038, 1, "unknown kind", ""}};
    for (auto& c : cases) {
        std::string content(4096, '\0');
        memcpy(&content[0], &c.magic, 4);
        memcpy(&content[4], &c.version, 4);
        test_write_file(path, content);
        CHECK(!state_read_open(&r, path.c_str(), &error), "accepted");
        HAS(error.message, c.message);
        HAS(error.hint, c.hint);
    }
}

// A section of more than 4 GiB (a sparse file of zeros) and one behind it: offsets and sizes are 64 bits in the reader.
static void test_state_beyond_4_gib(void) {
    std::string path = scratch("huge.bin");
    FileError error;
    const uint64_t bytes = (4ull << 30) + 4096, after = 128 + bytes;
    std::vector<char> zeros(16 << 20);
    char last[64] = "behind";
    StateSection sections[2];
    StateHeader h;
    memset(sections, 0, sizeof(sections));
    memset(&h, 0, sizeof(h));
    strcpy(sections[0].name, "big");
    strcpy(sections[1].name, "behind");
    sections[0].dtype = sections[1].dtype = FILE_U8;
    sections[0].count = sections[0].bytes = bytes;
    sections[1].count = sections[1].bytes = 7;
    sections[0].offset = 128;
    sections[1].offset = after;
    Xxh64 hash;
    xxh64_init(&hash, 0);
    for (uint64_t at = 0; at < bytes; at += zeros.size()) { xxh64_update(&hash, zeros.data(), std::min<uint64_t>(zeros.size(), bytes - at)); }
    sections[0].xxh64 = xxh64_digest(&hash);
    sections[1].xxh64 = xxh64(last, 64, 0);
    h.magic = STATE_FILE_MAGIC;
    h.version = STATE_FILE_PIECES;
    h.byte_order = STATE_FILE_ORDER;
    h.header_bytes = 128;
    h.num_ranks = 1;
    h.num_sections = 2;
    h.table_offset = after + 64;
    h.total_bytes = after + 64 + 192 + 8;
    uint64_t digest = state_table_digest(&h, "", sections);
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)h.total_bytes) != 0) { SKIP("no sparse file of 4 GiB here: %s", strerror(errno)); }
    CHECK(pwrite(fd, &h, 128, 0) == 128 && pwrite(fd, last, 64, (off_t)after) == 64 && pwrite(fd, sections, 192, (off_t)h.table_offset) == 192 &&
          pwrite(fd, &digest, 8, (off_t)h.total_bytes - 8) == 8, "%s", strerror(errno));
    StateReader r;
    char back[7] = "";
    OK(state_read_open(&r, path.c_str(), &error));
    OK(state_read_section(&r, "behind", FILE_U8, 7, back, &error));
    CHECK(!strcmp(back, "behind"), "%s", back);
    OK(state_read_verify(&r, &error));
    state_read_close(&r);
    close(fd);
}

static void test_state_section_errors_say_what_there_is(void) {
    std::string path = scratch("state.bin");
    FileError error;
    StateReader r;
    OK(write_state(path, 4000, &error));
    OK(state_read_open(&r, path.c_str(), &error));
    CHECK(!state_find(&r, "v", &error), "v");
    HAS(error.message, "no section 'v'; it has: m, nothing, rng, loader/shard-order.0");
    CHECK(!state_read_section_begin(&r, "m", FILE_BF16, 1000, &error), "type");
    HAS(error.message, "section 'm' holds 1000 x float32; 1000 x bfloat16 are wanted");
    CHECK(!state_read_section_begin(&r, "m", FILE_F32, 999, &error), "count");
    HAS(error.message, "999 x float32 are wanted");
    state_read_close(&r);
    StateWriter w;  // as many sections as a large model's scales need: the list in the message is cut, not the message
    OK(state_write_begin(&w, path.c_str(), 1, 0, 1, "", 0, &error));
    for (int i = 0; i < 1000; i++) {
        char name[STATE_NAME_MAX];
        snprintf(name, sizeof(name), "scale.a_rather_long_name_of_a_tensor.%d", i % 1000);
        float x = (float)i;
        OK(state_write_section(&w, name, FILE_F32, 1, &x, &error));
    }
    OK(state_write_commit(&w, &error));
    OK(state_read_open(&r, path.c_str(), &error));
    CHECK(!state_find(&r, "v", &error), "v");
    HAS(error.message, "...");
    float x = 0.0f;
    OK(state_read_section(&r, "scale.a_rather_long_name_of_a_tensor.999", FILE_F32, 1, &x, &error));
    CHECK(x == 999.0f, "%g", x);
    state_read_close(&r);
}

static void test_state_write_survives_every_fault(void) {
    std::string path = scratch("state.bin");
    FileError error;
    int n = 0;
    for (bool done = false; !done; n++) {
        test_write_file(path, "old");
        file_faults()->countdown = n;
        file_faults()->code = ENOSPC;
        bool ok = write_state(path, 500, &error);
        done = file_faults()->countdown >= 0;
        file_faults()->countdown = -1;
        CHECK(ok == done, "fault %d: ok %d", n, ok);
        StateReader r;
        FileError ignored;
        bool whole = state_read_open(&r, path.c_str(), &ignored) && state_read_verify(&r, &ignored);
        if (whole) { state_read_close(&r); }
        CHECK(whole || test_read_file(path) == "old", "fault %d left a broken file", n);
        CHECK(!exists(path + ".tmp"), "fault %d left a temporary", n);
        if (!ok) { HAS(error.message, "No space left on device"); }
    }
    CHECK(n >= 8, "only %d system calls were tried", n);
    for (n = 0;; n++) {  // reading
        StateReader r;
        file_faults()->countdown = n;
        file_faults()->code = EIO;
        bool open = state_read_open(&r, path.c_str(), &error), ok = open && state_read_verify(&r, &error);
        bool done = file_faults()->countdown >= 0;
        file_faults()->countdown = -1;
        if (open) { state_read_close(&r); }
        CHECK(ok == done, "read fault %d", n);
        if (ok) { break; }
        HAS(error.message, "Input/output error");
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"xxh64_matches_golden_digests", test_xxh64_matches_golden_digests, QUICK},
        {"xxh64_does_not_depend_on_the_cuts", test_xxh64_does_not_depend_on_the_cuts, QUICK},
        {"xxh64_speed", test_xxh64_speed, SLOW},
        {"atomic_file_holds_what_was_written", test_atomic_file_holds_what_was_written, QUICK},
        {"atomic_file_abort_keeps_the_old_file", test_atomic_file_abort_keeps_the_old_file, QUICK},
        {"atomic_file_survives_every_fault", test_atomic_file_survives_every_fault, QUICK},
        {"atomic_file_refuses_what_does_not_fit", test_atomic_file_refuses_what_does_not_fit, QUICK},
        {"atomic_file_on_a_full_disk", test_atomic_file_on_a_full_disk, QUICK},
        {"atomic_file_names_the_file_size_limit", test_atomic_file_names_the_file_size_limit, QUICK},
        {"shared_file_holds_what_all_wrote", test_shared_file_holds_what_all_wrote, QUICK},
        {"shared_file_survives_every_fault", test_shared_file_survives_every_fault, QUICK},
        {"shared_file_refuses_what_does_not_fit", test_shared_file_refuses_what_does_not_fit, QUICK},
        {"shared_file_on_a_full_disk", test_shared_file_on_a_full_disk, QUICK},
        {"make_folder_with_parents", test_make_folder_with_parents, QUICK},
        {"model_file_is_llmc_byte_for_byte", test_model_file_is_llmc_byte_for_byte, QUICK},
        {"model_file_reads_back_in_pieces", test_model_file_reads_back_in_pieces, QUICK},
        {"model_file_refuses_by_name", test_model_file_refuses_by_name, QUICK},
        {"model_file_sizes_of_gpt2", test_model_file_sizes_of_gpt2, QUICK},
        {"state_round_trip", test_state_round_trip, QUICK},
        {"state_layout_is_as_documented", test_state_layout_is_as_documented, QUICK},
        {"state_corrupt_byte_is_found_anywhere", test_state_corrupt_byte_is_found_anywhere, QUICK},
        {"state_impossible_tables_are_refused", test_state_impossible_tables_are_refused, QUICK},
        {"state_truncated_at_any_length", test_state_truncated_at_any_length, QUICK},
        {"state_refuses_other_files_by_name", test_state_refuses_other_files_by_name, QUICK},
        {"state_section_errors_say_what_there_is", test_state_section_errors_say_what_there_is, QUICK},
        {"state_beyond_4_gib", test_state_beyond_4_gib, SLOW},
        {"state_write_survives_every_fault", test_state_write_survives_every_fault, QUICK},
    };
    return TEST_MAIN(tests);
}
