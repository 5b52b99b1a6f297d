/* test_data.cu - token shards, their endless order, the tokenizer, and data/make_text.py (host code only)
 * Files are made in a temporary folder that goes with the test. The maker is run as a program: from the repository's root, with python3.
 */
#include <algorithm>
#include <random>   // before common.h, whose fail() is a member of the library's streams too
#include <sstream>
#include <vector>
#include "llmc/dataloader.h"
#include "llmc/tokenizer.h"
#include "dev/test/test.h"

// ----------------------------------------------------------------------------
// scratch files

static std::string scratch;
static pid_t scratch_owner;
static void scratch_remove(void) {
    if (getpid() == scratch_owner && system(("rm -rf '" + scratch + "'").c_str()) != 0) { fprintf(stderr, "    '%s' is left behind\n", scratch.c_str()); }
}
// A path in this test's own temporary folder.
static std::string at(const std::string& name) {
    if (scratch.empty()) {
        const char* folder = getenv("TMPDIR");
        scratch = std::string(folder && folder[0] ? folder : P_tmpdir) + "/test_data.XXXXXX";
        CHECK(mkdtemp(&scratch[0]), "cannot make '%s': %s", scratch.c_str(), strerror(errno));
        scratch_owner = getpid();
        atexit(scratch_remove);
    }
    return scratch + "/" + name;
}

static void write_bytes(const std::string& path, const void* data, size_t bytes) {
    FILE* file = fopen(path.c_str(), "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes, "writing '%s'", path.c_str());
    fclose(file);
}
static std::string read_bytes(const std::string& path) {
    FILE* file = fopen(path.c_str(), "rb");
    CHECK(file, "'%s' is missing", path.c_str());
    std::string text;
    char buffer[65536];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) { text.append(buffer, n); }
    fclose(file);
    return text;
}

// A shard of ntok tokens first, first + 1, ... modulo 65536, with header words as given.
static std::string shard_bytes(int ntok, int first, int magic = SHARD_MAGIC, int version = 1, int stated = -1) {
    int32_t header[256] = {magic, version, stated == -1 ? ntok : stated};
    std::string bytes((const char*)header, sizeof(header));
    for (int i = 0; i < ntok; i++) {
        uint16_t token = (uint16_t)(first + i);
        bytes.append((const char*)&token, 2);
    }
    return bytes;
}
static void write_shard(const std::string& name, int ntok, int first) {
    std::string bytes = shard_bytes(ntok, first);
    write_bytes(at(name), bytes.data(), bytes.size());
}

// ----------------------------------------------------------------------------
// the order

static void test_dataloader_permutation_is_bijection(void) {
    for (uint64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 100, 1000, 1023, 1024, 1025, 65537}) {
        for (uint64_t seed : {(uint64_t)42, (uint64_t)0, ~(uint64_t)0}) {
            for (uint64_t epoch : {(uint64_t)0, (uint64_t)1, (uint64_t)1 << 40}) {
                std::vector<bool> seen(size, false);
                for (uint64_t i = 0; i < size; i++) {
                    uint64_t x = dataloader_permute(i, size, seed, epoch);
                    CHECK(x < size, "size %llu: %llu goes to %llu", (unsigned long long)size, (unsigned long long)i, (unsigned long long)x);
                    CHECK(!seen[x], "size %llu: %llu is hit twice", (unsigned long long)size, (unsigned long long)x);
                    seen[x] = true;
                }
            }
        }
    }
}

// Numbers of a separate program written from the description (big integers, no masks). They must never change: resumed runs rely on them.
static void test_dataloader_permutation_golden(void) {
    static const uint64_t s42e0[] = {0, 9, 6, 5, 7, 4, 2, 8, 1, 3}, s42e1[] = {2, 4, 8, 0, 7, 9, 3, 5, 1, 6}, s43e0[] = {2, 5, 6, 4, 1, 9, 7, 3, 8, 0};
    static const uint64_t thousand[] = {891, 240, 148, 72, 541, 810, 529, 250};
    for (uint64_t i = 0; i < 10; i++) {
        CHECK(dataloader_permute(i, 10, 42, 0) == s42e0[i], "seed 42, epoch 0, %d", (int)i);
        CHECK(dataloader_permute(i, 10, 42, 1) == s42e1[i], "seed 42, epoch 1, %d", (int)i);
        CHECK(dataloader_permute(i, 10, 43, 0) == s43e0[i], "seed 43, epoch 0, %d", (int)i);
        if (i < 8) { CHECK(dataloader_permute(i, 1000, 42, 0) == thousand[i], "size 1000, %d", (int)i); }
    }
    CHECK(dataloader_permute(65536, 65537, ~0ull, ~0ull) == 15485, "65536 of 65537");
    CHECK(dataloader_permute(2999999999999ull, 3000000000000ull, 1337, 7) == 1959528305000ull, "3e12");
}

static void test_dataloader_permutation_is_random(void) {
    // all 120 orders of 5 over 60000 epochs: chi-square of 119 degrees of freedom has mean 119 and deviation sqrt(238) = 15.4; six deviations
    std::vector<int> count(3125, 0);
    const int epochs = 60000;
    for (int epoch = 0; epoch < epochs; epoch++) {
        int code = 0;
        for (int i = 0; i < 5; i++) { code = code * 5 + (int)dataloader_permute(i, 5, 42, epoch); }
        count[code]++;
    }
    double chi = 0;
    int orders = 0;
    for (int c : count) { if (c) { orders++; chi += (c - epochs / 120.0) * (c - epochs / 120.0) / (epochs / 120.0); } }
    CHECK(orders == 120 && chi < 119 + 6 * 15.4, "%d orders, chi-square %g", orders, chi);
    // places that two permutations of 1000 share: Poisson of mean 1; P(more than 9) = 1e-7 a pair
    for (int other = 1; other < 200; other++) {
        int same_epoch = 0, same_seed = 0;
        for (int i = 0; i < 1000; i++) {
            same_epoch += dataloader_permute(i, 1000, 42, 0) == dataloader_permute(i, 1000, 42, other);
            same_seed += dataloader_permute(i, 1000, 42, 0) == dataloader_permute(i, 1000, 42 + other, 0);
        }
        CHECK(same_epoch <= 9 && same_seed <= 9, "epoch, seed + %d: %d and %d places are the same", other, same_epoch, same_seed);
    }
    // neighbours are torn apart: of 10000 pairs, Poisson of mean 2 stay neighbours
    int neighbours = 0;
    for (int i = 0; i + 1 < 10000; i++) {
        int64_t a = (int64_t)dataloader_permute(i, 10000, 42, 0), b = (int64_t)dataloader_permute(i + 1, 10000, 42, 0);
        neighbours += a - b == 1 || b - a == 1;
    }
    CHECK(neighbours <= 12, "%d neighbours", neighbours);
}

// ----------------------------------------------------------------------------
// reading

static void test_dataloader_reads_all_once_from_unequal_shards(void) {
    const int T = 10;
    // 3, 1, 10 and 2 sequences; names in an order that is not that of their making, nor that of a locale without case
    write_shard("s_b.bin", 31, 0);          // exactly 3 T + 1: no remainder
    write_shard("s_a.bin", 11, 1000);       // exactly T + 1
    write_shard("s_C.bin", 110, 2000);      // 10 sequences, 9 tokens over
    write_shard("s_d.bin", 30, 3000);       // one token short of 3
    DataLoader loader;
    dataloader_init(&loader, at("s_*.bin").c_str(), T, 0, true, 42);
    CHECK(loader.num_shards == 4 && loader.num_sequences == 16 && loader.num_tokens == 182, "%d shards, %llu sequences, %lld tokens", loader.num_shards,
          (unsigned long long)loader.num_sequences, (long long)loader.num_tokens);
    std::vector<int> expected = {2000, 2010, 2020, 2030, 2040, 2050, 2060, 2070, 2080, 2090, 1000, 0, 10, 20, 3000, 3010};  // C < a < b < d
    int32_t inputs[T], targets[T];
    std::vector<std::vector<int>> orders;
    for (int epoch = 0; epoch < 5; epoch++) {
        std::vector<int> order;
        for (int i = 0; i < 16; i++) {
            dataloader_read(&loader, inputs, targets, 1, epoch * 16 + i);
            for (int t = 0; t < T; t++) { CHECK(inputs[t] == inputs[0] + t && targets[t] == inputs[t] + 1, "token %d: %d -> %d", t, inputs[t], targets[t]); }
            CHECK(inputs[0] == expected[dataloader_permute(i, 16, 42, epoch)], "epoch %d, position %d: sequence of %d", epoch, i, inputs[0]);
            order.push_back(inputs[0]);
        }
        orders.push_back(order);
        std::sort(order.begin(), order.end());
        std::vector<int> sorted = expected;
        std::sort(sorted.begin(), sorted.end());
        CHECK(order == sorted, "epoch %d: not every sequence once", epoch);
        for (int e = 0; e < epoch; e++) { CHECK(orders[e] != orders[epoch], "epochs %d and %d have the same order", e, epoch); }
    }
    dataloader_free(&loader);

    dataloader_init(&loader, at("s_*.bin").c_str(), T, 0, false, 42);  // validation: the order of the files, round and round
    for (int i = 0; i < 40; i++) {
        dataloader_read(&loader, inputs, targets, 1, i);
        CHECK(inputs[0] == expected[i % 16], "position %d: sequence of %d", i, inputs[0]);
    }
    dataloader_free(&loader);
}

static void test_dataloader_stream_is_free_of_batch_size(void) {
    const int T = 7, total = 96;
    write_shard("a.bin", 150, 0);
    write_shard("b.bin", 77, 5000);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader loader;
        dataloader_init(&loader, at("?.bin").c_str(), T, 0, shuffle, 7);
        std::vector<int32_t> reference(total * T), targets(total * T);
        dataloader_read(&loader, reference.data(), targets.data(), total, 0);  // more than two epochs of 31 in one batch
        for (int B : {1, 2, 4, 32}) {
            for (int ranks : {1, 3}) {
                std::vector<int32_t> in(total * T), out(total * T);
                for (int step = 0; step < total / (B * ranks); step++) {
                    for (int rank = ranks - 1; rank >= 0; rank--) {  // each rank a loader of its own, in any order
                        DataLoader other;
                        dataloader_init(&other, at("?.bin").c_str(), T, 0, shuffle, 7);
                        uint64_t first = (uint64_t)(step * ranks + rank) * B;
                        dataloader_read(&other, &in[first * T], &out[first * T], B, first);
                        dataloader_free(&other);
                    }
                }
                CHECK(in == reference && out == targets, "shuffle %d, B %d, %d ranks", shuffle, B, ranks);
            }
        }
        dataloader_free(&loader);
    }
}

// ----------------------------------------------------------------------------
// llm.c's order, against a small loader that works as llm.c's does: one batch after the other, with a state; the generator is the C++ library's

struct SimulatedLoader {
    std::vector<std::vector<uint16_t>> shards;
    int B, T, P, rank;
    bool shuffle;
    std::mt19937 mt;
    std::vector<int> shard_order, sample_order;
    int shard_at = 0, sample_at = 0, num_samples = 0;

    SimulatedLoader(std::vector<std::vector<uint16_t>> s, int batch, int seq_len, int ranks, int r, bool shuffled)
        : shards(s), B(batch), T(seq_len), P(ranks), rank(r), shuffle(shuffled), mt(42 + r) {
        for (size_t i = 0; i < shards.size(); i++) { shard_order.push_back((int)i); }
        new_epoch();
    }
    void permute(std::vector<int>* x) { for (int i = (int)x->size() - 1; i > 0; i--) { std::swap((*x)[i], (*x)[mt() % (uint32_t)(i + 1)]); } }
    void open_shard() {
        num_samples = ((int)shards[shard_order[shard_at]].size() - 1) / (P * B * T);
        sample_at = 0;
        sample_order.clear();
        for (int i = 0; i < num_samples; i++) { sample_order.push_back(i); }
        if (shuffle) { permute(&sample_order); }
    }
    void new_epoch() {
        shard_at = 0;
        if (shuffle) { permute(&shard_order); }
        open_shard();
    }
    std::vector<uint16_t> next() {  // B*T + 1 tokens
        if (sample_at >= num_samples) {
            if (shard_at == (int)shards.size() - 1) { new_epoch(); } else { shard_at++; open_shard(); }
        }
        size_t first = ((size_t)sample_order[sample_at++] * P + rank) * B * T;
        const std::vector<uint16_t>& shard = shards[shard_order[shard_at]];
        return std::vector<uint16_t>(shard.begin() + first, shard.begin() + first + B * T + 1);
    }
    DataPlace place() {  // points into this loader
        DataPlace p;
        memset(&p, 0, sizeof(p));
        p.shuffle = shuffle;
        p.slot = shard_at;
        p.sample = sample_at;
        if (!shuffle) { return p; }
        p.num_shards = shards.size();
        p.num_samples = num_samples;
        p.shards = shard_order.data();
        p.samples = sample_order.data();
        std::stringstream words;
        words << mt;
        for (uint32_t& w : p.mt.state) { words >> w; }
        words >> p.mt.used;
        return p;
    }
};

// Writes shards of these sizes as name0.bin, name1.bin, ...; tokens are random: equal batches are the same place.
static std::vector<std::vector<uint16_t>> random_shards(const std::string& name, const std::vector<int>& sizes) {
    TestRng rng = {test_seed()};
    std::vector<std::vector<uint16_t>> shards;
    for (int ntok : sizes) {
        std::vector<uint16_t> tokens;
        int32_t header[256] = {SHARD_MAGIC, 1, ntok};
        for (int i = 0; i < ntok; i++) { tokens.push_back((uint16_t)test_rng_u64(&rng)); }
        std::string bytes((const char*)header, sizeof(header));
        bytes.append((const char*)tokens.data(), 2 * tokens.size());
        write_bytes(at(name + std::to_string(shards.size()) + ".bin"), bytes.data(), bytes.size());
        shards.push_back(tokens);
    }
    return shards;
}
// The batches of samples 0 .. count - 1 of rank, from the simulation.
static std::vector<std::vector<uint16_t>> simulated(SimulatedLoader s, int count) {
    std::vector<std::vector<uint16_t>> batches;
    for (int i = 0; i < count; i++) { batches.push_back(s.next()); }
    return batches;
}
// Reads the batch of B sequences at a position and compares it with B*T + 1 tokens.
static void check_batch(DataLoader* loader, int B, uint64_t position, const std::vector<uint16_t>& expected, const char* what) {
    std::vector<int32_t> in(B * loader->seq_len), out(B * loader->seq_len);
    dataloader_read(loader, in.data(), out.data(), B, position);
    for (size_t t = 0; t < in.size(); t++) {
        CHECK(in[t] == expected[t] && out[t] == expected[t + 1], "%s: position %llu, token %zu: %d -> %d, should be %d -> %d", what,
              (unsigned long long)position, t, in[t], out[t], expected[t], expected[t + 1]);
    }
}
static void init_llmc(DataLoader* loader, const std::string& pattern, int T, int B, int P, bool shuffle = true) {
    dataloader_init(loader, at(pattern).c_str(), T, 0, shuffle, 42, DATA_ORDER_LLMC, B, P);
}

// llm.c's own numbers.
static void test_dataloader_llmc_golden(void) {
    const int golden[2][10] = {{1, 3, 9, 7, 6, 0, 8, 4, 5, 2}, {2, 6, 9, 4, 0, 1, 5, 7, 3, 8}};
    random_shards("g", {2 * 10 * 4 + 1});
    DataLoader loader;
    init_llmc(&loader, "g*.bin", 4, 1, 2);
    for (int seed = 0; seed < 2; seed++) {
        int32_t x[10];
        Mt19937 mt;
        mt19937_init(&mt, 42 + seed);
        dataloader_count(x, 10);
        dataloader_shuffle(x, 10, &mt);
        for (int i = 0; i < 10; i++) {
            CHECK(x[i] == golden[seed][i], "seed %d, place %d: %d", 42 + seed, i, x[i]);
            uint64_t sequence = dataloader_sequence_at(&loader, 2 * i + seed);  // one shard: its 10 samples are the generator's first permutation
            CHECK(sequence == (uint64_t)(2 * golden[seed][i] + seed), "rank %d, sample %d: sequence %llu", seed, i, (unsigned long long)sequence);
        }
    }
    dataloader_free(&loader);
}

static void test_dataloader_llmc_stream_is_llmcs(void) {
    const int B = 2, T = 5;
    const std::vector<std::vector<int>> sets = {{161}, {161, 161, 161}, {41, 250, 90, 81}, {500, 41, 41, 41, 83, 41}};  // 41: the least for P = 4
    for (size_t set = 0; set < sets.size(); set++) {
        std::string name = "s" + std::to_string(set) + "_";
        auto shards = random_shards(name, sets[set]);
        for (int P : {1, 2, 4}) {
            for (bool shuffle : {true, false}) {
                int64_t per_epoch = 0, ntok = 0;
                for (int n : sets[set]) { per_epoch += (n - 1) / (P * B * T); ntok += n; }
                const int count = (int)per_epoch * 4 + 3;
                char what[64];
                snprintf(what, sizeof(what), "set %zu, P %d, shuffle %d", set, P, shuffle);
                DataLoader all;  // one loader for all ranks
                init_llmc(&all, name + "*.bin", T, B, P, shuffle);
                CHECK((int64_t)all.num_sequences == per_epoch * P * B && all.num_tokens == ntok, "%s: %llu sequences, %lld tokens", what,
                      (unsigned long long)all.num_sequences, (long long)all.num_tokens);
                std::vector<uint16_t> rows((size_t)count * P * B * (T + 1));
                for (int rank = 0; rank < P; rank++) {
                    auto batches = simulated(SimulatedLoader(shards, B, T, P, rank, shuffle), count);
                    DataLoader own;
                    init_llmc(&own, name + "*.bin", T, B, P, shuffle);
                    for (int k = 0; k < count; k++) {
                        const uint64_t position = ((uint64_t)k * P + rank) * B;
                        check_batch(&own, B, position, batches[k], what);
                        check_batch(&all, B, position, batches[k], what);
                        for (int b = 0; b < B; b++) { check_batch(&all, 1, position + b, std::vector<uint16_t>(&batches[k][b * T], &batches[k][b * T] + T + 1), what); }
                        DataLoader fresh;  // a resume at this position, and then a step back
                        init_llmc(&fresh, name + "*.bin", T, B, P, shuffle);
                        check_batch(&fresh, B, position, batches[k], what);
                        if (k > 0) { check_batch(&fresh, B, position - P * B, batches[k - 1], what); }
                        check_batch(&fresh, B, (uint64_t)rank * B, batches[0], what);
                        dataloader_free(&fresh);
                    }
                    dataloader_free(&own);
                }
                dataloader_free(&all);
            }
        }
    }
}

// Every usable sequence once an epoch; epochs differ.
static void test_dataloader_llmc_epochs_are_complete(void) {
    random_shards("e", {500, 41, 83, 122});
    DataLoader loader;
    init_llmc(&loader, "e*.bin", 5, 2, 4);
    const int64_t S = (int64_t)loader.num_sequences;
    CHECK(S == 8 * (12 + 1 + 2 + 3), "%lld sequences", (long long)S);
    std::vector<std::vector<uint64_t>> epochs;
    for (int e = 0; e < 4; e++) {
        std::vector<uint64_t> order;
        for (int64_t p = 0; p < S; p++) { order.push_back(dataloader_sequence_at(&loader, e * S + p)); }
        for (auto& other : epochs) { CHECK(other != order, "epoch %d repeats an earlier one", e); }
        epochs.push_back(order);
        std::sort(order.begin(), order.end());
        std::vector<uint64_t> sorted = epochs[0];
        std::sort(sorted.begin(), sorted.end());
        CHECK(order == sorted && std::unique(order.begin(), order.end()) == order.end(), "epoch %d: not every sequence once", e);
    }
    dataloader_free(&loader);
}

// A run of llm.c is taken over at each of its steps; our own state file goes on, with another batch size and number of ranks, from each position.
static void test_dataloader_llmc_takes_over_and_resumes(void) {
    const int B = 2, T = 5;
    FileError error;
    auto shards = random_shards("t", {41, 250, 90, 81});
    for (bool shuffle : {true, false}) {
        for (int P : {1, 2, 4}) {
            const int count = 4 * (410 / (P * B * T));
            std::vector<SimulatedLoader> ranks;
            std::vector<std::vector<std::vector<uint16_t>>> batches;
            for (int r = 0; r < P; r++) {
                ranks.push_back(SimulatedLoader(shards, B, T, P, r, shuffle));
                batches.push_back(simulated(ranks[r], count));
            }
            for (int k = 0; k < count; k++) {
                const int base = 1000;  // whatever the caller counts: sample k of llm.c is number base + k here
                DataLoader loader, resumed;
                init_llmc(&loader, "t*.bin", T, B, P, shuffle);
                for (int r = 0; r < P; r++) {
                    DataPlace place = ranks[r].place();
                    CHECK(dataloader_llmc_set_place(&loader, r, &place, (uint64_t)(base + k) * P * B, "x", &error), "sample %d: %s", k, error.message);
                }
                std::vector<unsigned char> kept(dataloader_llmc_order_bytes(&loader)), again(kept.size());
                dataloader_llmc_get_order(&loader, kept.data());
                dataloader_init(&resumed, at("t*.bin").c_str(), T, 0, shuffle, 7, DATA_ORDER_LLMC, 1, 1);
                CHECK(dataloader_llmc_set_order(&resumed, kept.data(), kept.size(), "x", &error), "%s", error.message);
                for (int i = k; i < count; i++) {
                    for (int r = 0; r < P; r++) { check_batch(&loader, B, ((uint64_t)(base + i) * P + r) * B, batches[r][i], "taken over"); }
                }
                for (int i = count - 1; i >= k; i -= 3) {
                    for (int r = 0; r < P; r++) { check_batch(&resumed, B, ((uint64_t)(base + i) * P + r) * B, batches[r][i], "resumed"); }
                }
                CHECK(dataloader_llmc_order_bytes(&loader) == kept.size(), "size");
                dataloader_llmc_get_order(&loader, again.data());
                CHECK(again == kept, "what is kept does not depend on what was read");
                CHECK(dataloader_llmc_order_bytes(&resumed) == kept.size(), "size");
                dataloader_llmc_get_order(&resumed, again.data());
                CHECK(again == kept, "nor on how often it was kept");
                dataloader_free(&loader);
                dataloader_free(&resumed);
                for (int r = 0; r < P; r++) { ranks[r].next(); }
            }
        }
    }
    // without a place: B, P and seed are kept, and win over those of init
    DataLoader loader, resumed;
    init_llmc(&loader, "t*.bin", T, 2, 4);
    dataloader_init(&resumed, at("t*.bin").c_str(), T, 0, true, 7, DATA_ORDER_LLMC, 3, 1);
    std::vector<unsigned char> kept(dataloader_llmc_order_bytes(&loader));
    dataloader_llmc_get_order(&loader, kept.data());
    CHECK(kept.size() == 36 && dataloader_llmc_set_order(&resumed, kept.data(), kept.size(), "x", &error), "%s", error.message);
    for (uint64_t p = 0; p < 200; p++) { CHECK(dataloader_sequence_at(&loader, p) == dataloader_sequence_at(&resumed, p), "position %d", (int)p); }
    dataloader_free(&loader);
    dataloader_free(&resumed);
}

typedef struct { std::string pattern; int T, B, P; } LoadLlmc;
static void child_load_llmc(void* p) {
    const LoadLlmc* load = (const LoadLlmc*)p;
    DataLoader loader;
    dataloader_init(&loader, load->pattern.c_str(), load->T, 0, true, 42, DATA_ORDER_LLMC, load->B, load->P);
    printf("LOADED\n");
}
static void child_read_before_place(void*) {
    FileError error;
    SimulatedLoader s(random_shards("r", {81, 81}), 2, 5, 1, 0, true);
    for (int i = 0; i < 6; i++) { s.next(); }
    DataPlace place = s.place();
    DataLoader loader;
    int32_t in[5], out[5];
    init_llmc(&loader, "r*.bin", 5, 2, 1);
    if (!dataloader_llmc_set_place(&loader, 0, &place, 20, "x", &error)) { return; }
    dataloader_read(&loader, in, out, 1, 20);
    printf("READ\n");
    dataloader_read(&loader, in, out, 1, 0);
}
static void test_dataloader_llmc_refusals(void) {
    const int B = 2, T = 5;
    FileError error;
    std::string output;
    auto has = [&](const char* text, std::vector<const char*> words) {
        for (const char* word : words) { CHECK(strstr(text, word), "no '%s' in\n%s", word, text); }
    };
    auto shards = random_shards("f", {250, 40, 90});
    LoadLlmc load = {at("f*.bin"), T, B, 4};
    CHECK(test_child(child_load_llmc, &load, &output) == 1, "%s", output.c_str());
    has(output.c_str(), {"f1.bin", "40 tokens", "4 x 2 x 5", "41", "HINT:", "--data-order sequence"});
    load.P = 3;
    CHECK(test_child(child_load_llmc, &load, &output) == 0, "%s", output.c_str());
    load.P = 0;
    CHECK(test_child(child_load_llmc, &load, &output) == 1, "%s", output.c_str());
    CHECK(test_child(child_read_before_place, NULL, &output) == 1, "%s", output.c_str());
    has(output.c_str(), {"READ", "sample 0 of rank 0", "(sample 4)", "HINT:"});  // the shard at hand began 6 samples before position 20

    // a place that does not fit
    DataLoader loader;
    init_llmc(&loader, "f*.bin", T, B, 2);
    SimulatedLoader s(shards, B, T, 2, 0, true);
    while (s.num_samples < 5) { s.next(); }  // into the first shard, which has 12
    auto refuse = [&](DataPlace place, std::vector<const char*> words) {
        CHECK(!dataloader_llmc_set_place(&loader, 0, &place, 20, "state.bin", &error), "accepted; '%s' was to be said", words[0]);
        words.push_back("state.bin");
        has(error.message, words);
        CHECK(error.hint[0], "no hint");
    };
    DataPlace good = s.place(), bad = good;
    bad.shuffle = false;
    refuse(bad, {"was not shuffled"});
    bad = good; bad.num_shards = 4;
    refuse(bad, {" of 4", "3 shards"});
    bad = good; bad.slot = 3;
    refuse(bad, {"shard 3", "3 shards"});
    std::vector<int32_t> twice = {0, 1, 1}, beyond = {0, 1, 3}, negative = {0, 1, -1};
    for (auto& list : {twice, beyond, negative}) {
        bad = good;
        bad.shards = (int32_t*)list.data();
        refuse(bad, {"3 shards is no permutation"});
    }
    std::vector<int> samples = s.sample_order;
    samples[0] = samples[1];
    bad = good; bad.samples = samples.data();
    refuse(bad, {"is no permutation"});
    bad = good; bad.sample = good.num_samples + 1;
    refuse(bad, {"stands at sample"});
    bad = good; bad.num_samples++;
    refuse(bad, {"2 x 2 x 5", "250 tokens", "13 samples"});
    // another batch size than that of the run: the one that fits is named
    SimulatedLoader other(shards, 3, T, 2, 0, true);
    while (other.num_samples != 8) { other.next(); }
    refuse(other.place(), {"8 samples", "250 tokens", "make it 12"});
    has(error.hint, {"--batch-size 3 would fit"});
    CHECK(dataloader_llmc_set_place(&loader, 0, &good, 20, "state.bin", &error), "%s", error.message);

    // a kept order that does not fit, or is damaged
    std::vector<unsigned char> kept(dataloader_llmc_order_bytes(&loader));
    dataloader_llmc_get_order(&loader, kept.data());
    dataloader_free(&loader);
    auto set = [&](const std::vector<unsigned char>& data, size_t bytes, int seq_len, bool shuffle, const char* pattern) {
        std::vector<unsigned char> exact(data.begin(), data.begin() + bytes);  // a sanitizer sees reads beyond
        init_llmc(&loader, pattern, seq_len, 1, 1, shuffle);
        bool ok = dataloader_llmc_set_order(&loader, exact.data(), exact.size(), "state.bin", &error);
        dataloader_free(&loader);
        if (!ok) { has(error.message, {"state.bin"}); CHECK(error.hint[0], "no hint"); }
        return ok;
    };
    CHECK(set(kept, kept.size(), T, true, "f*.bin"), "%s", error.message);
    for (size_t n = 0; n < kept.size(); n += n < 100 ? 1 : 61) { CHECK(!set(kept, n, T, true, "f*.bin"), "%zu of %zu bytes are accepted", n, kept.size()); }
    kept.push_back(0);
    CHECK(!set(kept, kept.size(), T, true, "f*.bin"), "extended");
    has(error.message, {"1 bytes after"});
    kept.pop_back();
    CHECK(!set(kept, kept.size(), T + 1, true, "f*.bin"), "another T");
    has(error.message, {"5 tokens", "--seq-len is 6"});
    has(error.hint, {"--seq-len 5"});
    CHECK(!set(kept, kept.size(), T, false, "f*.bin"), "not shuffled");
    CHECK(!set(kept, kept.size(), T, true, "f[02].bin"), "other shards");
    has(error.message, {" of 3", "2 shards"});
    for (int byte : {0, 8, 12, 16, 20, 32, 36, 40, 52, 56}) {  // version, B, P, shuffle, G, starts; rank, slot, used, n
        for (int value : {-1, 700, 200000000}) {
            std::vector<unsigned char> broken = kept;
            memcpy(&broken[byte], &value, 4);
            CHECK(!set(broken, broken.size(), T, true, "f*.bin"), "%d at byte %d is accepted", value, byte);
        }
    }
}

static void test_dataloader_llmc_skips_draws(void) {
    for (int before : {0, 1, 300, 623, 624}) {
        Mt19937 slow;
        mt19937_init(&slow, 42);
        for (int i = 0; i < before; i++) { mt19937_u32(&slow); }
        const Mt19937 start = slow;
        for (int n = 0; n < 2000; n++) {
            Mt19937 fast = start, now = slow;
            dataloader_skip_draws(&fast, n);
            CHECK(mt19937_u32(&fast) == mt19937_u32(&now), "%d draws after %d", n, before);
            mt19937_u32(&slow);
        }
    }
}

// A resume far into a run: the draws are counted, not the batches read.
static void test_dataloader_llmc_finds_far_positions(void) {
    const int P = 2, B = 1, T = 4;
    auto shards = random_shards("far", {40000, 30001, 12345});
    const int per_epoch = 39999 / 8 + 30000 / 8 + 12344 / 8, k = 1000000 + 12345;
    SimulatedLoader s(shards, B, T, P, 1, true);
    for (int i = 0; i < k; i++) { s.next(); }
    DataLoader loader;
    init_llmc(&loader, "far*.bin", T, B, P);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    check_batch(&loader, B, (uint64_t)k * P + 1, s.next(), "far");
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("    sample %d, in epoch %d, was found in %.2f ms\n", k, k / per_epoch, (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) * 1e-6);
    dataloader_free(&loader);
}

static void test_dataloader_many_shards(void) {
    // more shards than stay open; the descriptors in use do not grow with them
    for (int i = 0; i < DATALOADER_OPEN_SHARDS + 60; i++) {
        char name[32];
        snprintf(name, sizeof(name), "m_%06d.bin", i);
        write_shard(name, 5, i);
    }
    DataLoader loader;
    dataloader_init(&loader, at("m_*.bin").c_str(), 4, 0, false, 0);
    int next = dup(0);
    CHECK(next < DATALOADER_OPEN_SHARDS + 32, "descriptor %d is the next free one", next);
    close(next);
    int32_t in[4], out[4];
    for (int i = 0; i < DATALOADER_OPEN_SHARDS + 60; i++) {
        dataloader_read(&loader, in, out, 1, i);
        CHECK(in[0] == i && out[3] == i + 4, "shard %d: %d .. %d", i, in[0], out[3]);
    }
    dataloader_free(&loader);
}

static void test_dataloader_reads_beyond_4_gigabytes(void) {
    const int64_t ntok = 0x7fffffff;  // 4 GiB + 1022 bytes, all of it holes but the end
    int32_t header[256] = {SHARD_MAGIC, 1, (int32_t)ntok};
    int fd = open(at("big.bin").c_str(), O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0, "open");
    if (ftruncate(fd, SHARD_HEADER_BYTES + 2 * ntok) != 0) { SKIP("no sparse file of 4 GiB here: %s", strerror(errno)); }
    const int T = 1024;
    int64_t sequence = (ntok - 1) / T - 1, first = sequence * T;
    uint16_t tokens[T + 1];
    for (int t = 0; t <= T; t++) { tokens[t] = (uint16_t)(t + 1); }
    CHECK(pwrite(fd, header, sizeof(header), 0) == sizeof(header), "write");
    CHECK(pwrite(fd, tokens, sizeof(tokens), SHARD_HEADER_BYTES + 2 * first) == sizeof(tokens), "write");
    const uint16_t seven = 7, nine = 9;  // first input and last target of sequence 64 * 32767 - 1
    const off_t row = SHARD_HEADER_BYTES + 2 * (int64_t)T * (64 * 32767 - 1);
    CHECK(pwrite(fd, &seven, 2, row) == 2 && pwrite(fd, &nine, 2, row + 2 * T) == 2, "write");
    close(fd);
    DataLoader loader;
    dataloader_init(&loader, at("big.bin").c_str(), T, 50257, false, 0);
    CHECK(loader.num_tokens == ntok && (int64_t)loader.num_sequences == sequence + 1, "%lld tokens", (long long)loader.num_tokens);
    int32_t in[T], out[T];
    dataloader_read(&loader, in, out, 1, sequence);
    for (int t = 0; t < T; t++) { CHECK(in[t] == t + 1 && out[t] == t + 2, "token %d: %d -> %d", t, in[t], out[t]); }
    dataloader_read(&loader, in, out, 1, sequence / 2);
    CHECK(in[0] == 0 && out[T - 1] == 0, "the middle");
    dataloader_free(&loader);
    for (bool shuffle : {false, true}) {  // llm.c's order: the last sample of 64 sequences, at the place of its last row
        init_llmc(&loader, "big.bin", T, 64, 1, shuffle);
        const uint64_t n = loader.num_sequences / 64;
        CHECK(n == 32767, "%llu samples", (unsigned long long)n);
        for (uint64_t k = 0; k < n; k++) {
            uint64_t row = dataloader_sequence_at(&loader, 64 * k + 63);
            CHECK(row < (uint64_t)sequence && (shuffle || row == 64 * k + 63), "sample %llu: sequence %llu", (unsigned long long)k, (unsigned long long)row);
            if (row < 32766 * 64) { continue; }
            dataloader_read(&loader, in, out, 1, 64 * k + 63);
            CHECK(in[0] == 7 && out[T - 1] == 9, "the last sample: %d, %d", in[0], out[T - 1]);
        }
        dataloader_free(&loader);
    }
}

static void test_dataloader_digest(void) {
    auto digest = [](const char* pattern, int T, bool shuffle, uint64_t seed) {
        DataLoader loader;
        dataloader_init(&loader, at(pattern).c_str(), T, 0, shuffle, seed);
        uint64_t d = dataloader_digest(&loader);
        dataloader_free(&loader);
        return d;
    };
    CHECK(mkdir(at("x").c_str(), 0700) == 0 && mkdir(at("y").c_str(), 0700) == 0, "mkdir");
    write_shard("x/a.bin", 3000, 0);
    write_shard("x/b.bin", 3000, 1);
    write_shard("y/a.bin", 3000, 0);
    write_shard("y/b.bin", 3000, 1);
    uint64_t d = digest("x/*.bin", 8, true, 1);
    CHECK(d == digest("x/*.bin", 16, false, 2), "it is free of T, order and seed");
    CHECK(d == digest("y/*.bin", 8, true, 1), "it is free of the folder");
    CHECK(d != digest("x/a.bin", 8, true, 1) && digest("x/a.bin", 8, true, 1) != digest("x/b.bin", 8, true, 1), "shards");
    write_shard("y/b.bin", 3001, 1);
    CHECK(d != digest("y/*.bin", 8, true, 1), "length");
    write_shard("y/b.bin", 3000, 2);
    CHECK(d != digest("y/*.bin", 8, true, 1), "content");
    write_shard("y/b.bin", 3000, 1);
    CHECK(d == digest("y/*.bin", 8, true, 1), "back");
    CHECK(rename(at("y/b.bin").c_str(), at("y/c.bin").c_str()) == 0 && d != digest("y/*.bin", 8, true, 1), "name");
}

typedef struct { std::string pattern; int T, vocab_size; bool shrink; } Load;
static void child_load(void* p) {
    const Load* load = (const Load*)p;
    DataLoader loader;
    dataloader_init(&loader, load->pattern.c_str(), load->T, load->vocab_size, false, 0);
    if (load->shrink && truncate(load->pattern.c_str(), 1024 + 20) != 0) { return; }
    std::vector<int32_t> in(load->T), out(load->T);
    for (uint64_t s = 0; s < loader.num_sequences; s++) { dataloader_read(&loader, in.data(), out.data(), 1, s); }
    printf("LOADED\n");
}
static void expect_load(const Load& load, int code, std::vector<std::string> words) {
    std::string output;
    int got = test_child(child_load, (void*)&load, &output);
    CHECK(got == code, "'%s': exit %d instead of %d\n%s", load.pattern.c_str(), got, code, output.c_str());
    if (code) { words.push_back("HINT:"); }
    for (const std::string& word : words) { CHECK(output.find(word) != std::string::npos, "no '%s' in\n%s", word.c_str(), output.c_str()); }
}

static void test_dataloader_refusals(void) {
    auto refuse = [](const char* name, std::string bytes, std::vector<std::string> words) {
        write_bytes(at(name), bytes.data(), bytes.size());
        words.push_back(name);
        expect_load({at(name), 4, 0, false}, 1, words);
    };
    expect_load({at("nothing*.bin"), 4, 0, false}, 1, {"no token shard matches", "nothing*.bin"});
    CHECK(mkdir(at("folder").c_str(), 0700) == 0, "mkdir");
    expect_load({at("folder"), 4, 0, false}, 1, {"not a regular file"});
    refuse("empty.bin", "", {"only 0 bytes"});
    refuse("short.bin", shard_bytes(0, 0).substr(0, 1023), {"only 1023 bytes"});
    refuse("text.bin", std::string(2000, 'a'), {"no token shard", "1633771873", "20240520"});
    refuse("llama.bin", shard_bytes(10, 0, SHARD_MAGIC_LLAMA3, 7), {"Llama-3"});
    refuse("version.bin", shard_bytes(10, 0, SHARD_MAGIC, 2), {"version 2"});
    refuse("zero.bin", shard_bytes(0, 0), {"0 tokens"});
    refuse("negative.bin", shard_bytes(10, 0, SHARD_MAGIC, 1, -5), {"-5 tokens"});
    refuse("cut.bin", shard_bytes(10, 0, SHARD_MAGIC, 1, 11), {"1044 bytes", "1046 are needed", "11 tokens"});
    refuse("long.bin", shard_bytes(10, 0) + "x", {"1045 bytes"});
    refuse("few.bin", shard_bytes(4, 0), {"4 tokens", "--seq-len 4", "5"});
    write_shard("good.bin", 100, 0);
    expect_load({at("good.bin"), 4, 100, false}, 0, {"LOADED"});
    expect_load({at("good.bin"), 99, 100, false}, 0, {"LOADED"});
    expect_load({at("good.bin"), 100, 100, false}, 1, {"100 tokens", "101"});
    expect_load({at("good.bin"), 4, 50, false}, 1, {"token 50 at place 50", "good.bin", "50", "--tokenizer"});
    expect_load({at("good.bin"), 4, 0, true}, 1, {"ends at byte 1044"});
    if (geteuid() != 0) {
        CHECK(chmod(at("good.bin").c_str(), 0) == 0, "chmod");
        expect_load({at("good.bin"), 4, 0, false}, 1, {"Permission denied"});
    }
}

// ----------------------------------------------------------------------------
// tokenizer

// A tokenizer file of these tokens.
static std::string tokenizer_bytes(const std::vector<std::string>& tokens, uint32_t version = 2, uint32_t eot = 0, int stated = -1,
                                   uint32_t magic = TOKENIZER_MAGIC) {
    uint32_t header[256] = {magic, version, stated == -1 ? (uint32_t)tokens.size() : (uint32_t)stated, eot};
    std::string bytes((const char*)header, sizeof(header));
    for (const std::string& token : tokens) { bytes += (char)token.size() + token; }
    return bytes;
}
static Tokenizer tokenizer_of(const std::string& bytes) {
    write_bytes(at("tokenizer.bin"), bytes.data(), bytes.size());
    Tokenizer t;
    CHECK(tokenizer_init(&t, at("tokenizer.bin").c_str()), "tokenizer_init");
    return t;
}
static std::string printed(Tokenizer* t, const std::vector<int>& ids) {
    FILE* file = fopen(at("printed").c_str(), "wb");
    for (int id : ids) { tokenizer_print(t, file, id); }
    fclose(file);
    tokenizer_print_end(t);
    return read_bytes(at("printed"));
}

static void test_tokenizer_versions(void) {
    std::string longest(255, 'x');
    Tokenizer t = tokenizer_of(tokenizer_bytes({"a", std::string("b\0c", 3), longest}, 2, 1));
    int length;
    CHECK(t.ok && t.vocab_size == 3 && t.eot == 1, "V %u, EOT %u", t.vocab_size, t.eot);
    const unsigned char* bytes = tokenizer_decode(&t, 1, &length);
    CHECK(length == 3 && !memcmp(bytes, "b\0c", 3), "token 1 has %d bytes", length);
    bytes = tokenizer_decode(&t, 2, &length);
    CHECK(length == 255 && !memcmp(bytes, longest.data(), 255), "token 2 has %d bytes", length);
    CHECK(!tokenizer_decode(&t, 3, &length) && length == 0 && !tokenizer_decode(&t, -1, &length), "no such token");
    tokenizer_free(&t);
    std::vector<std::string> gpt2;
    for (int i = 0; i < 50257; i++) { gpt2.push_back(std::to_string(i)); }
    t = tokenizer_of(tokenizer_bytes(gpt2, 1, 12345));
    CHECK(t.vocab_size == 50257 && t.eot == 50256, "version 1: V %u, EOT %u", t.vocab_size, t.eot);
    bytes = tokenizer_decode(&t, 50256, &length);
    CHECK(length == 5 && !memcmp(bytes, "50256", 5), "the last token");
    tokenizer_free(&t);
    CHECK(!tokenizer_init(&t, at("missing.bin").c_str()) && !t.ok, "a missing file");
    CHECK(printed(&t, {7, 42}) == "7 42 ", "without a tokenizer the ids are printed");
    tokenizer_free(&t);
}

static void child_tokenizer(void* path) {
    Tokenizer t;
    tokenizer_init(&t, (const char*)path);
    printf("LOADED\n");
}
static void test_tokenizer_refusals(void) {
    auto refuse = [](const std::string& bytes, const char* words) {
        std::string path = at("bad.bin"), output;
        write_bytes(path, bytes.data(), bytes.size());
        int code = test_child(child_tokenizer, (void*)path.c_str(), &output);
        CHECK(code == 1 && output.find(words) != std::string::npos && output.find("HINT:") != std::string::npos && output.find("bad.bin") != std::string::npos,
              "exit %d, wanted '%s' in\n%s", code, words, output.c_str());
    };
    refuse("", "0 bytes");
    refuse(tokenizer_bytes({}).substr(0, 1000), "1000 bytes");
    refuse(tokenizer_bytes({"a"}, 2, 0, -1, 20240520), "20240520");
    refuse(tokenizer_bytes({"a"}, 3), "version 3");
    refuse(tokenizer_bytes({}), "0 tokens");
    refuse(tokenizer_bytes({"a"}, 2, 0, 1 << 21), "2097152 tokens");
    refuse(tokenizer_bytes({"a"}, 1), "50257");
    refuse(tokenizer_bytes({"a", "b"}, 2, 2), "token 2 as end of text");
    refuse(tokenizer_bytes({"a", "", "c"}), "token 1 is empty");
    refuse(tokenizer_bytes({"a", "b"}, 2, 0, 3), "before token 2 of 3");
    refuse(tokenizer_bytes({"a", "bcd"}).substr(0, 1024 + 4), "inside token 1 of 2");
    refuse(tokenizer_bytes({"a", "b"}, 2, 0, 1), "after its last token 0");
    std::string output;
    CHECK(test_child(child_tokenizer, (void*)scratch.c_str(), &output) == 1 && output.find("ERROR") != std::string::npos, "a folder\n%s", output.c_str());
}

static void test_tokenizer_prints_safely(void) {
    std::vector<std::string> tokens;
    for (int i = 0; i < 256; i++) { tokens.push_back(std::string(1, (char)i)); }
    Tokenizer t = tokenizer_of(tokenizer_bytes(tokens));
    auto text = [&](const std::string& bytes) {
        std::vector<int> ids;
        for (char c : bytes) { ids.push_back((unsigned char)c); }
        return printed(&t, ids);
    };
    std::string good = "plain ~\n\tz\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf end";  // up to U+10FFFF
    CHECK(text(good) == good, "byte tokens: %s", text(good).c_str());
    CHECK(text(std::string("a\0b\x1b[31mc\x7f\rd\be", 14)) == "ab[31mcde", "control characters: %s", text(std::string("a\0b\x1b[31mc\x7f\rd\be", 14)).c_str());
    CHECK(text("a\xc2\x9b" "31mb") == "a31mb", "U+009B starts terminal commands too");
    CHECK(text("a\x80" "b\xff" "c\xc0\xafz\xe0\x80\xaf" "d\xed\xa0\x80" "e\xf4\x90\x80\x80" "f\xf5g") == "abczdefg", "not UTF-8");
    CHECK(text("a\xe2\x82" "b\xe2\xc3\xbc" "c\xf0\x9f\x98") == "ab\xc3\xbc" "c", "cut sequences: the byte after is looked at afresh");
    CHECK(text("\xac" "x") == "x", "an earlier stream leaves nothing behind");
    CHECK(printed(&t, {65, 256, 66, -1}) == "A256 B-1 ", "ids outside the vocabulary");
    tokenizer_free(&t);
    t = tokenizer_of(tokenizer_bytes({"na\xc3", "\xafve", "\xe2\x82\xac", " 100"}));
    CHECK(printed(&t, {0, 1, 3, 2}) == "na\xc3\xafve 100\xe2\x82\xac", "sequences spread over longer tokens");
    tokenizer_free(&t);
}

// ----------------------------------------------------------------------------
// data/make_text.py

// Runs the maker; returns the exit code, *output gets all it prints.
static int make_text(const std::string& arguments, std::string* output) {
    if (access("data/make_text.py", R_OK) != 0) { SKIP("run from the repository's root"); }
    if (system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' > /dev/null 2>&1") != 0) { SKIP("no python3 of version 3.8 or later"); }
    int code = system(("python3 data/make_text.py " + arguments + " > '" + at("output") + "' 2>&1").c_str());
    *output = read_bytes(at("output"));
    CHECK(output->find("Traceback") == std::string::npos, "%s", output->c_str());
    return WEXITSTATUS(code);
}

// Paragraphs of words, some of several bytes a character; every one is different.
static std::string some_text(size_t bytes) {
    std::string text;
    TestRng rng = {test_seed()};
    for (int paragraph = 0; text.size() < bytes; paragraph++) {
        text += "Paragraph " + std::to_string(paragraph) + ":";
        for (int word = 0; word < 40; word++) {
            text += (word % 12 == 11 ? "\n" : " ") + std::string(word % 7 ? "word" : "\xc3\xbc\xe2\x82\xac") + std::to_string(test_rng_u64(&rng) % 1000);
        }
        text += ".\n\n";
    }
    return text;
}

// The bytes of a shard made by the maker, read through the data loader.
static std::string shard_text(const std::string& path) {
    DataLoader loader;
    dataloader_init(&loader, path.c_str(), 1, 256, false, 0);
    std::string text;
    int32_t in, out = 0;
    for (uint64_t i = 0; i < loader.num_sequences; i++) {
        dataloader_read(&loader, &in, &out, 1, i);
        text += (char)in;
    }
    text += (char)out;
    dataloader_free(&loader);
    return text;
}

static void test_make_text_splits_and_writes(void) {
    std::string text = some_text(400000), output, crlf, out = at("out");
    for (size_t i = 0; i < text.size(); i++) {  // line ends of all kinds, a byte order mark and NULs on top
        if (text[i] == '\n') { crlf += i % 3 == 0 || (i > 0 && text[i - 1] == '\n') ? "\r\n" : i % 3 == 1 && text[i + 1] != '\n' ? "\r" : "\n"; }
        else { crlf += text[i]; }
        if (i % 1000 == 0) { crlf += '\0'; }
    }
    crlf = "\xef\xbb\xbf" + crlf;
    write_bytes(at("text.txt"), crlf.data(), crlf.size());
    int code = make_text("--text '" + at("text.txt") + "' --out '" + out + "'", &output);
    CHECK(code == 0, "exit %d\n%s", code, output.c_str());
    std::string train = shard_text(out + "/train.bin"), val = shard_text(out + "/val.bin");
    CHECK(train.size() + val.size() == text.size(), "%zu + %zu bytes of %zu", train.size(), val.size(), text.size());
    CHECK(fabs((double)val.size() / (double)text.size() - 0.05) < 0.02, "validation is %zu of %zu bytes", val.size(), text.size());
    // Walk through the text: each paragraph comes whole from the front of what is left of either part. That proves order, and no overlap.
    size_t t = 0, v = 0, changes = 0;
    bool last_val = false;
    for (size_t from = 0; from < text.size();) {
        size_t length = text.find("\n\n", from) + 2 - from;
        bool is_val = !val.compare(v, length, text, from, length);
        CHECK(is_val || !train.compare(t, length, text, from, length), "the paragraph at byte %zu is in neither part", from);
        changes += is_val != last_val;
        last_val = is_val;
        (is_val ? v : t) += length;
        from += length;
    }
    CHECK(t == train.size() && v == val.size() && changes >= 8, "%zu and %zu bytes met, %zu changes", t, v, changes);
    Tokenizer tokenizer;
    CHECK(tokenizer_init(&tokenizer, (out + "/tokenizer.bin").c_str()) && tokenizer.vocab_size == 256 && tokenizer.eot == 0, "tokenizer");
    for (int i = 0; i < 256; i++) {
        int length;
        const unsigned char* bytes = tokenizer_decode(&tokenizer, i, &length);
        CHECK(length == 1 && bytes[0] == i, "token %d", i);
    }
    tokenizer_free(&tokenizer);
}

static void test_make_text_is_repeatable_and_idempotent(void) {
    std::string text = some_text(100000), output, a = at("a"), b = at("b");
    write_bytes(at("text.txt"), text.data(), text.size());
    std::string arguments = "--text '" + at("text.txt") + "' --out '" + a + "'";
    auto run = [&](const std::string& more) { CHECK(make_text(arguments + more, &output) == 0, "%s", output.c_str()); };
    auto made = [&] { return output.find("up to date") == std::string::npos && output.find("wrote") != std::string::npos; };
    run("");
    CHECK(made(), "%s", output.c_str());
    std::string train = read_bytes(a + "/train.bin");
    run("");
    CHECK(!made(), "a second run\n%s", output.c_str());
    run(" --force");
    CHECK(made() && read_bytes(a + "/train.bin") == train, "forced\n%s", output.c_str());
    CHECK(make_text("--text '" + at("text.txt") + "' --out '" + b + "'", &output) == 0 && read_bytes(b + "/train.bin") == train
          && read_bytes(b + "/val.bin") == read_bytes(a + "/val.bin"), "the same files elsewhere");
    run(" --val-fraction 0.1");
    CHECK(made() && read_bytes(a + "/train.bin").size() < train.size(), "another fraction\n%s", output.c_str());
    text[5000] ^= 1;
    write_bytes(at("text.txt"), text.data(), text.size());
    run("");
    CHECK(made(), "a changed text of the same length\n%s", output.c_str());
    CHECK(truncate((a + "/val.bin").c_str(), 100) == 0, "truncate");
    run("");
    CHECK(made(), "a damaged file\n%s", output.c_str());
    run("");
    CHECK(!made(), "and again\n%s", output.c_str());
    write_bytes(a + "/made.json", "{", 1);
    run("");
    CHECK(made(), "a damaged marker\n%s", output.c_str());
    CHECK(system(("test $(ls '" + a + "' | wc -l) = 4").c_str()) == 0, "nothing else is left in the folder");
}

static void test_make_text_refusals(void) {
    std::string output;
    auto refuse = [&](const std::string& arguments, int code, std::vector<const char*> words) {
        int got = make_text(arguments + " --out '" + at("never") + "'", &output);
        CHECK(got == code, "%s: exit %d instead of %d\n%s", arguments.c_str(), got, code, output.c_str());
        for (const char* word : words) { CHECK(output.find(word) != std::string::npos, "%s: no '%s' in\n%s", arguments.c_str(), word, output.c_str()); }
        CHECK(access(at("never/train.bin").c_str(), F_OK) != 0, "%s: made something", arguments.c_str());
    };
    std::string path = at("text.txt"), text = some_text(20000);
    refuse("--text '" + path + "'", 1, {"ERROR", "text.txt", "HINT"});
    write_bytes(path, text.data(), text.size());
    refuse("--text '" + path + "'", 1, {"bytes; at least 32768 are needed", "HINT"});
    refuse("--text '" + scratch + "'", 1, {"is a folder", "HINT"});
    std::string binary(100000, '\1');
    write_bytes(path, binary.data(), binary.size());
    refuse("--text '" + path + "'", 1, {"does not look like text", "HINT"});
    write_bytes(path, "\xff\xfe" "a\0b\0", 6);
    refuse("--text '" + path + "'", 1, {"UTF-16", "iconv"});
    write_bytes(path, "\x1f\x8b\x08\x00", 4);
    refuse("--text '" + path + "'", 1, {"compressed", "gunzip"});
    refuse("--text=", 2, {"empty"});
    refuse("--val-fraction 0.9", 2, {"0.5"});
    refuse("--nonsense", 2, {"nonsense"});
    CHECK(make_text("--text '" + path + "' --out '" + path + "/x'", &output) == 1 && output.find("HINT") != std::string::npos, "%s", output.c_str());
}

static void test_make_text_short_and_odd_texts(void) {
    std::string output, out = at("out");
    std::string flat(32768, 'x'), wide;
    while (wide.size() < 40000) { wide += "\xe2\x82\xac"; }  // no line ends: cut between characters
    for (const std::string& text : {flat, wide, some_text(32768)}) {
        write_bytes(at("text.txt"), text.data(), text.size());
        CHECK(make_text("--text '" + at("text.txt") + "' --out '" + out + "'", &output) == 0, "%s", output.c_str());
        std::string train = shard_text(out + "/train.bin"), val = shard_text(out + "/val.bin");
        CHECK(train.size() + val.size() == text.size() && train.size() > 1024 && val.size() > 1024, "%zu + %zu of %zu bytes",
              train.size(), val.size(), text.size());
        if (text == wide) { CHECK(train.size() % 3 == 0 && val.size() % 3 == 0, "a character is cut: %zu, %zu", train.size(), val.size()); }
    }
}

static void test_make_text_machine_source(void) {
    std::string output, out = at("out");
    int code = make_text("--source machine --out '" + out + "'", &output);
    if (code == 1 && output.find("bytes of documentation") != std::string::npos) { SKIP("%s", "this machine has too little documentation"); }
    CHECK(code == 0, "exit %d\n%s", code, output.c_str());
    CHECK(read_bytes(out + "/train.bin").size() > 300000, "size");
    std::string first = read_bytes(out + "/train.bin");
    CHECK(make_text("--source machine --force --out '" + out + "'", &output) == 0 && read_bytes(out + "/train.bin") == first, "the same machine, another text");
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"dataloader_permutation_is_bijection", test_dataloader_permutation_is_bijection, QUICK},
        {"dataloader_permutation_golden", test_dataloader_permutation_golden, QUICK},
        {"dataloader_permutation_is_random", test_dataloader_permutation_is_random, QUICK},
        {"dataloader_reads_all_once_from_unequal_shards", test_dataloader_reads_all_once_from_unequal_shards, QUICK},
        {"dataloader_stream_is_free_of_batch_size", test_dataloader_stream_is_free_of_batch_size, QUICK},
        {"dataloader_llmc_golden", test_dataloader_llmc_golden, QUICK},
        {"dataloader_llmc_stream_is_llmcs", test_dataloader_llmc_stream_is_llmcs, QUICK},
        {"dataloader_llmc_epochs_are_complete", test_dataloader_llmc_epochs_are_complete, QUICK},
        {"dataloader_llmc_takes_over_and_resumes", test_dataloader_llmc_takes_over_and_resumes, QUICK},
        {"dataloader_llmc_refusals", test_dataloader_llmc_refusals, QUICK},
        {"dataloader_llmc_skips_draws", test_dataloader_llmc_skips_draws, QUICK},
        {"dataloader_llmc_finds_far_positions", test_dataloader_llmc_finds_far_positions, QUICK},
        {"dataloader_many_shards", test_dataloader_many_shards, QUICK},
        {"dataloader_reads_beyond_4_gigabytes", test_dataloader_reads_beyond_4_gigabytes, QUICK},
        {"dataloader_digest", test_dataloader_digest, QUICK},
        {"dataloader_refusals", test_dataloader_refusals, QUICK},
        {"tokenizer_versions", test_tokenizer_versions, QUICK},
        {"tokenizer_refusals", test_tokenizer_refusals, QUICK},
        {"tokenizer_prints_safely", test_tokenizer_prints_safely, QUICK},
        {"make_text_splits_and_writes", test_make_text_splits_and_writes, QUICK},
        {"make_text_is_repeatable_and_idempotent", test_make_text_is_repeatable_and_idempotent, QUICK},
        {"make_text_refusals", test_make_text_refusals, QUICK},
        {"make_text_short_and_odd_texts", test_make_text_short_and_odd_texts, QUICK},
        {"make_text_machine_source", test_make_text_machine_source, SLOW},
    };
    return TEST_MAIN(tests);
}
