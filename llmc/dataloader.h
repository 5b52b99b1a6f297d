/* dataloader.h - batches of token sequences from shards, by position: free of what was read before
 *
 * What:      a data set is a row of shards; a sequence is T inputs and the same shifted by one as targets, at tokens i*T .. i*T + T of its shard. The
 *            training order is one endless list of sequences. A batch is B consecutive positions of it, so whoever knows the position of the first
 *            (step * sequences per step + ...) knows all: any batch size, any number of ranks, any resume sees the same list.
 *            The two orders are file formats in effect (enum DataOrder): a resumed run relies on them. test_data.cu pins them to numbers made independently.
 *
 * Shapes:    inputs, targets (B,T) int32, host memory of the caller.
 * Errors:    wrong magic, version or size, a shard of fewer than T + 1 tokens (of a sample and one), a token >= vocab_size: a message with file and
 *            place, exit 1. What a state says is refused by false and a FileError.
 * Memory:    one buffer of T + 1 tokens; llm.c's order: 8 (G + n) + 5,000 bytes a rank that is read. File descriptors of the first 128 shards stay
 *            open, later ones are opened for each read. Reads are pread with 64-bit offsets: a shard of 2^31 tokens is 4 GiB.
 * Tests:     dev/test/test_data.cu */
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H

#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <string>
#include <vector>

#include "llmc/files.h"
#include "llmc/rand.h"

// File (token shard), little-endian, llm.c's, no checksum:
//   OFFSET  SIZE     TYPE    MEANING
//   0       4        i32     magic 20240520
//   4       4        i32     version 1
//   8       4        i32     ntok, number of tokens, 1 .. 2^31 - 1
//   12      1012     i32[]   zero
//   1024    2*ntok   u16[]   tokens; the file ends after the last

#define SHARD_MAGIC 20240520
#define SHARD_MAGIC_LLAMA3 20240801     // 32-bit tokens: not readable here, but worth naming
#define SHARD_HEADER_BYTES 1024
#define DATALOADER_OPEN_SHARDS 128      // of the usual limit of 1,024 descriptors a process

static_assert(sizeof(off_t) == 8, "files beyond 2 GiB need 64-bit offsets");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the readers of this program take files as they lie: little-endian");

typedef struct {
    char* path;                 // owned
    int fd;                     // -1: opened for each read
    int64_t num_tokens;         // ntok
    uint64_t first_sequence;    // number of sequences in the shards before this one
} Shard;

// The orders of a data set
//
// DATA_ORDER_SEQUENCE: an epoch is S = sum over shards of floor((ntok - 1) / T) sequences; position p is sequence permutation(p % S) of epoch p / S. The
//            permutation of 0..S-1 is keyed by (seed, epoch): a Feistel network on the smallest 2^k >= S, k >= 8, walked until the value falls below S
//            [Black & Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking]. No table; fewer than 2 walks on average (S >= 128).
//            Without shuffle it is the identity (validation): shards in the order of their names, sequences as they lie.
//
// DATA_ORDER_LLMC: llm.c's stream. A sample is W = P*B sequences in a row (P ranks, B each, of the order: fixed when it begins); a shard has
//            n = floor((ntok - 1) / (W*T)) of them, the tokens after are never used, and n = 0 is refused, as there. Position p is row p % W of sample
//            k = p / W; row r*B + b is sequence b of rank r. Each rank has a list of samples of its own, from an MT19937 seeded with seed + r (42 + r):
//              shards = 0..G-1 at first; at each epoch's beginning: shuffle(shards), the list that the epoch before left
//              for each shard of the list, when it is opened: samples = shuffle(0..n-1), read in this order
//              shuffle(x of m): for i = m-1 .. 1: swap x[i] with x[u32 % (i + 1)]
//            Without shuffle (validation, and llm.c's -a 1): shards and samples as they lie, round and round.
//            A position is found from the one before, or from the start by counting draws: 10^6 samples in 0.2 ms (test_data.cu measures it).
//            The start is position 0, or a place that llm.c's state names (dataloader_llmc_set_place); dataloader_llmc_get_order keeps it for resume.
enum DataOrder { DATA_ORDER_SEQUENCE, DATA_ORDER_LLMC };

// Where a rank stands in llm.c's order: in shard shards[slot], the next sample to read being samples[sample]. As llm.c's state file says it.
typedef struct {
    bool shuffle;                       // false: shard and sample numbers are slot and sample themselves, and all below is 0
    uint64_t slot, sample;              // sample may be n: the shard is at its end
    uint64_t num_shards, num_samples;   // G, n of the shard at hand
    int32_t *shards, *samples;          // (G), (n): the permutations, owned by whoever made the place
    Mt19937 mt;                         // after the draws for samples
} DataPlace;

// One rank's list of samples at one open shard.
typedef struct {
    int64_t first;              // number in the list of this shard's first sample; below 0 if the list starts inside the shard
    int slot;
    int32_t* shards;            // (G), owned; NULL: not made yet
    int32_t* samples;           // (n), room for max_samples, owned; not used without shuffle
    Mt19937 mt;
} DataCursor;
typedef struct {
    bool taken_over;            // start was set from a place, not made from the seed
    DataCursor start, now;
} DataStream;

typedef struct {
    Shard* shards;              // sorted by name, owned
    int num_shards;
    int seq_len;                // T
    int vocab_size;             // tokens must lie below; 0 = not checked
    bool shuffle;
    uint64_t seed;
    int64_t num_tokens;         // of all shards, with the remainders that no sequence uses
    uint64_t num_sequences;     // of one epoch of this order
    uint64_t digest;            // see dataloader_digest
    uint16_t* buffer;           // (T + 1), owned
    DataOrder order;
    int batch_size, num_ranks;  // B and P of llm.c's order
    int64_t max_samples;        // n of the largest shard
    bool taken_over;            // a stream starts at a place that was given
    DataStream* streams;        // (num_ranks), owned, in llm.c's order
} DataLoader;

// ----------------------------------------------------------------------------
// the permutation

// A bijection on 64-bit numbers whose output bits all depend on all input bits [Steele, Lea, Flood 2014: the finalizer of SplitMix64].
static inline uint64_t dataloader_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Image of index under the permutation of 0..size-1 keyed by (seed, epoch). size > 0, index < size.
// Each of the 8 rounds changes one part of the k-bit number by a keyed hash of the other part: invertible whatever the hash. 8 bits at least: on 3
// bits they do not reach all orders alike (chi-square of the 120 orders of 5 elements over 60,000 epochs: 65 deviations off; on 8 bits less than 1).
static inline uint64_t dataloader_permute(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch) {
    const uint64_t golden = 0x9e3779b97f4a7c15ull;
    int bits = 8;
    while (bits < 64 && (1ull << bits) < size) { bits++; }
    const int low_bits = bits / 2, high_bits = bits - low_bits;
    const uint64_t low_mask = (1ull << low_bits) - 1, high_mask = (1ull << high_bits) - 1;
    const uint64_t key = dataloader_mix(dataloader_mix(seed + golden) + epoch * golden);
    uint64_t x = index;
    do {
        uint64_t low = x & low_mask, high = x >> low_bits;
        for (int round = 0; round < 8; round += 2) {
            high ^= dataloader_mix(low + dataloader_mix(key + (round + 1) * golden)) & high_mask;
            low ^= dataloader_mix(high + dataloader_mix(key + (round + 2) * golden)) & low_mask;
        }
        x = high << low_bits | low;
    } while (x >= size);
    return x;
}

// ----------------------------------------------------------------------------
// shards

static inline uint64_t dataloader_fnv1a(uint64_t hash, const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) { hash = (hash ^ ((const unsigned char*)data)[i]) * 0x100000001b3ull; }
    return hash;
}

// Reads exactly so many bytes at an offset; opens the file if it is not kept open.
static inline void dataloader_pread(const Shard* shard, void* out, size_t bytes, off_t offset) {
    int fd = shard->fd >= 0 ? shard->fd : open(shard->path, O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "check the path and its permissions", "cannot open the token shard '%s': %s", shard->path, strerror(errno));
    size_t done = 0;
    while (done < bytes) {
        note_progress();
        ssize_t got = pread(fd, (char*)out + done, bytes - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR) { continue; }
        require(got >= 0, "check the disk", "reading %zu bytes at byte %lld of '%s' failed: %s", bytes, (long long)offset, shard->path,
                strerror(errno));
        require(got > 0, "the file shrank while it was in use: make or copy the data again, then resume",
                "'%s' ends at byte %lld; %zu bytes at byte %lld were wanted", shard->path, (long long)(offset + (off_t)done), bytes, (long long)offset);
        done += (size_t)got;
    }
    if (shard->fd < 0) { close(fd); }
}

// Opens and checks one shard; sets its num_tokens and fd. Returns the digest of its name (without folders), length and first 2,048 tokens.
static inline uint64_t dataloader_open_shard(Shard* shard, int seq_len, bool keep_open) {
    const char* remake = "make the data again (data/README.md), or give another pattern with --train-data and --val-data";
    const char* path = shard->path;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "check the path and its permissions", "cannot open the token shard '%s': %s", path, strerror(errno));
    shard->fd = fd;
    struct stat info;
    require(fstat(fd, &info) == 0, "", "cannot stat '%s': %s", path, strerror(errno));
    require(S_ISREG(info.st_mode), "give a pattern that matches files, such as 'data/text/train*.bin'", "the token shard '%s' is not a regular file",
            path);
    require(info.st_size >= SHARD_HEADER_BYTES, remake, "the token shard '%s' has only %lld bytes; the header alone has %d", path,
            (long long)info.st_size, SHARD_HEADER_BYTES);
    int32_t header[SHARD_HEADER_BYTES / 4];
    dataloader_pread(shard, header, sizeof(header), 0);
    require(header[0] != SHARD_MAGIC_LLAMA3, "tokenize the text with GPT-2's or the byte tokenizer",
            "'%s' holds 32-bit Llama-3 tokens; only 16-bit shards can be read", path);
    require(header[0] == SHARD_MAGIC, remake, "'%s' is no token shard: it begins with %d instead of %d", path, header[0], SHARD_MAGIC);
    require(header[1] == 1, remake, "the token shard '%s' has version %d; 1 is known", path, header[1]);
    require(header[2] > 0, remake, "the token shard '%s' says it has %d tokens", path, header[2]);
    int64_t expected = SHARD_HEADER_BYTES + 2 * (int64_t)header[2];
    require(info.st_size == expected, remake, "the token shard '%s' has %lld bytes; %lld are needed for the %d tokens that its header tells of", path,
            (long long)info.st_size, (long long)expected, header[2]);
    require(header[2] > seq_len, "choose a smaller --seq-len or a longer text", "the token shard '%s' has %d tokens; a sequence of --seq-len %d takes %lld",
            path, header[2], seq_len, (long long)seq_len + 1);
    shard->num_tokens = header[2];

    uint16_t first[2048];
    size_t bytes = 2 * (size_t)(header[2] < 2048 ? header[2] : 2048);
    dataloader_pread(shard, first, bytes, SHARD_HEADER_BYTES);
    const char* slash = strrchr(path, '/');
    const char* name = slash ? slash + 1 : path;
    uint64_t hash = dataloader_fnv1a(0xcbf29ce484222325ull, name, strlen(name) + 1);
    hash = dataloader_fnv1a(hash, &header[2], sizeof(header[2]));
    hash = dataloader_fnv1a(hash, first, bytes);
    if (!keep_open) {
        close(fd);
        shard->fd = -1;
    }
    return hash;
}

static inline int dataloader_compare_paths(const void* a, const void* b) { return strcmp(*(char* const*)a, *(char* const*)b); }

// ----------------------------------------------------------------------------
// llm.c's order

static inline int64_t dataloader_shard_samples(const DataLoader* loader, uint64_t shard) {
    return (loader->shards[shard].num_tokens - 1) / ((int64_t)loader->seq_len * loader->batch_size * loader->num_ranks);
}

// Fisher-Yates from the end; n - 1 draws.
static inline void dataloader_shuffle(int32_t* x, int64_t n, Mt19937* mt) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = mt19937_u32(mt) % (uint32_t)(i + 1);
        int32_t swap = x[i];
        x[i] = x[j];
        x[j] = swap;
    }
}
static inline void dataloader_count(int32_t* x, int64_t n) { for (int64_t i = 0; i < n; i++) { x[i] = (int32_t)i; } }

// The effect of n draws on the generator.
static inline void dataloader_skip_draws(Mt19937* mt, int64_t n) {
    while (n > MT_SIZE - mt->used) {
        n -= MT_SIZE - mt->used;
        mt19937_next_state(mt);
    }
    mt->used += (int)n;
}

static inline bool dataloader_is_permutation(const int32_t* x, uint64_t n) {
    unsigned char* seen = (unsigned char*)mallocCheck(n);
    memset(seen, 0, n);
    bool ok = true;
    for (uint64_t i = 0; ok && i < n; i++) {
        ok = x[i] >= 0 && (uint64_t)x[i] < n && !seen[x[i]];
        if (ok) { seen[x[i]] = 1; }
    }
    free(seen);
    return ok;
}

static inline void dataloader_cursor_alloc(const DataLoader* loader, DataCursor* cursor) {
    if (cursor->shards) { return; }
    cursor->shards = (int32_t*)mallocCheck(sizeof(int32_t) * (size_t)loader->num_shards);
    cursor->samples = (int32_t*)mallocCheck(sizeof(int32_t) * (size_t)(loader->shuffle ? loader->max_samples : 0));
}
static inline void dataloader_cursor_copy(const DataLoader* loader, DataCursor* out, const DataCursor* from) {
    dataloader_cursor_alloc(loader, out);
    memcpy(out->shards, from->shards, sizeof(int32_t) * (size_t)loader->num_shards);
    if (loader->shuffle) { memcpy(out->samples, from->samples, sizeof(int32_t) * (size_t)dataloader_shard_samples(loader, from->shards[from->slot])); }
    out->first = from->first;
    out->slot = from->slot;
    out->mt = from->mt;
}
static inline void dataloader_free_streams(DataLoader* loader) {
    for (int r = 0; loader->streams && r < loader->num_ranks; r++) {
        for (DataCursor* cursor : {&loader->streams[r].start, &loader->streams[r].now}) {
            free(cursor->shards);
            free(cursor->samples);
        }
    }
    free(loader->streams);
    loader->streams = NULL;
}

// The cursor's shard is opened: its samples are shuffled, or only their draws counted if none is wanted.
static inline void dataloader_cursor_open_shard(const DataLoader* loader, DataCursor* cursor, bool wanted) {
    if (!loader->shuffle) { return; }
    int64_t n = dataloader_shard_samples(loader, cursor->shards[cursor->slot]);
    if (!wanted) { dataloader_skip_draws(&cursor->mt, n - 1); return; }
    dataloader_count(cursor->samples, n);
    dataloader_shuffle(cursor->samples, n, &cursor->mt);
}

// The stream from its start, at position 0.
static inline void dataloader_stream_init(const DataLoader* loader, DataStream* stream, int rank) {
    DataCursor* c = &stream->start;
    dataloader_cursor_alloc(loader, c);
    dataloader_count(c->shards, loader->num_shards);
    mt19937_init(&c->mt, (uint32_t)(loader->seed ^ (loader->seed >> 32)) + (uint32_t)rank);
    if (loader->shuffle) { dataloader_shuffle(c->shards, loader->num_shards, &c->mt); }
    dataloader_cursor_open_shard(loader, c, true);
    dataloader_cursor_copy(loader, &stream->now, c);
}

// Shard and number there of sample k of a rank's list. Samples before the one of the last call cost a walk from the start.
static inline void dataloader_find_sample(DataLoader* loader, int rank, int64_t k, int* shard, int64_t* sample) {
    DataStream* stream = &loader->streams[rank];
    require(!loader->taken_over || stream->taken_over, "this is a defect of the program: please report it",
            "the data order was taken over, but not the place of rank %d", rank);
    if (!stream->start.shards) { dataloader_stream_init(loader, stream, rank); }
    DataCursor* c = &stream->now;
    if (k < c->first) { dataloader_cursor_copy(loader, c, &stream->start); }
    require(k >= c->first, "go on with the checkpoint's own position", "sample %lld of rank %d lies before the place that the run was taken over from "
            "(sample %lld)", (long long)k, rank, (long long)c->first);
    int64_t n = dataloader_shard_samples(loader, c->shards[c->slot]);
    while (k - c->first >= n) {
        c->first += n;
        if (++c->slot == loader->num_shards) {
            c->slot = 0;
            if (loader->shuffle) { dataloader_shuffle(c->shards, loader->num_shards, &c->mt); }
        }
        n = dataloader_shard_samples(loader, c->shards[c->slot]);
        dataloader_cursor_open_shard(loader, c, k - c->first < n);
    }
    *shard = c->shards[c->slot];
    *sample = loader->shuffle ? c->samples[k - c->first] : k - c->first;
}

// Begins llm.c's order anew: samples of num_ranks * batch_size sequences. False if a shard cannot hold one: nothing is changed then.
static inline bool dataloader_begin_llmc(DataLoader* loader, int batch_size, int num_ranks, FileError* error) {
    int64_t tokens = (int64_t)loader->seq_len * batch_size * num_ranks, samples = 0, max_samples = 0;
    for (int i = 0; i < loader->num_shards; i++) {
        const Shard* shard = &loader->shards[i];
        int64_t n = (shard->num_tokens - 1) / tokens;
        if (n < 1) {
            return file_error(error, 0, "choose a smaller --batch-size, leave this shard out of the pattern, or take --data-order sequence, which uses "
                              "every sequence", "the token shard '%s' has %lld tokens: llm.c's order needs one sample of %d x %d x %d (ranks, batch size, "
                              "sequence length) and a token, %lld", shard->path, (long long)shard->num_tokens, num_ranks, batch_size, loader->seq_len,
                              (long long)tokens + 1);
        }
        samples += n;
        max_samples = n > max_samples ? n : max_samples;
    }
    dataloader_free_streams(loader);
    loader->taken_over = false;
    loader->batch_size = batch_size;
    loader->num_ranks = num_ranks;
    loader->max_samples = max_samples;
    loader->num_sequences = (uint64_t)samples * (uint64_t)batch_size * (uint64_t)num_ranks;
    loader->streams = (DataStream*)mallocCheck(sizeof(DataStream) * (size_t)num_ranks);
    memset(loader->streams, 0, sizeof(DataStream) * (size_t)num_ranks);
    return true;
}

// ----------------------------------------------------------------------------
// public

// Opens the shards that match a glob pattern and checks them. seq_len = T > 0. vocab_size: tokens must lie below it, 0 = any.
// shuffle: the training order keyed by seed (llm.c's seed is 42), else the order of the files. batch_size, num_ranks: B and P of llm.c's order, > 0;
// the other has no use for them.
static inline void dataloader_init(DataLoader* loader, const char* pattern, int seq_len, int vocab_size, bool shuffle, uint64_t seed,
                                   DataOrder order = DATA_ORDER_SEQUENCE, int batch_size = 0, int num_ranks = 0) {
    memset(loader, 0, sizeof(*loader));
    require(seq_len > 0, "", "a data loader with sequences of %d tokens", seq_len);
    loader->seq_len = seq_len;
    loader->vocab_size = vocab_size;
    loader->shuffle = shuffle;
    loader->seed = seed;
    glob_t found;
    int error = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);
    require(error != GLOB_NOMATCH, "python3 data/tinyshakespeare.py makes llm.c's default data, 'make train' or python3 data/make_text.py makes data/text; data/README.md tells of others",
            "no token shard matches '%s'", pattern);
    require(error == 0, "check that the folders of the pattern can be read", "looking for token shards '%s' failed: %s", pattern,
            error == GLOB_NOSPACE ? "out of memory" : strerror(errno));
    qsort(found.gl_pathv, found.gl_pathc, sizeof(char*), dataloader_compare_paths);  // by bytes: glob's own order depends on the locale
    loader->num_shards = (int)found.gl_pathc;
    loader->shards = (Shard*)mallocCheck(sizeof(Shard) * found.gl_pathc);
    loader->digest = 0xcbf29ce484222325ull;
    for (int i = 0; i < loader->num_shards; i++) {
        Shard* shard = &loader->shards[i];
        size_t bytes = strlen(found.gl_pathv[i]) + 1;
        shard->path = (char*)mallocCheck(bytes);
        memcpy(shard->path, found.gl_pathv[i], bytes);
        uint64_t hash = dataloader_open_shard(shard, seq_len, i < DATALOADER_OPEN_SHARDS);
        loader->digest = dataloader_fnv1a(loader->digest, &hash, sizeof(hash));
        shard->first_sequence = loader->num_sequences;
        loader->num_sequences += (uint64_t)(shard->num_tokens - 1) / (uint64_t)seq_len;
        loader->num_tokens += shard->num_tokens;
    }
    globfree(&found);
    loader->order = order;
    if (order == DATA_ORDER_LLMC) {
        FileError why;
        require(batch_size > 0 && num_ranks > 0, "", "llm.c's order with samples of %d x %d sequences", num_ranks, batch_size);
        fileCheck(dataloader_begin_llmc(loader, batch_size, num_ranks, &why), &why);
    }
    loader->buffer = (uint16_t*)mallocCheck(sizeof(uint16_t) * ((size_t)seq_len + 1));
}

static inline void dataloader_free(DataLoader* loader) {
    for (int i = 0; i < loader->num_shards; i++) {
        if (loader->shards[i].fd >= 0) { close(loader->shards[i].fd); }
        free(loader->shards[i].path);
    }
    dataloader_free_streams(loader);
    free(loader->shards);
    free(loader->buffer);
    memset(loader, 0, sizeof(*loader));
}

// A number that tells data sets apart: names without folders, lengths and first 2,048 tokens of all shards in order. For resume: the folder may
// move, the data may not change. Free of T, seed and order.
static inline uint64_t dataloader_digest(const DataLoader* loader) { return loader->digest; }

// Which sequence (counted through the shards, floor((ntok - 1) / T) a shard) stands at a position of the endless order.
static inline uint64_t dataloader_sequence_at(DataLoader* loader, uint64_t position) {
    if (loader->order == DATA_ORDER_LLMC) {
        uint64_t sample_rows = (uint64_t)loader->batch_size * (uint64_t)loader->num_ranks, row = position % sample_rows;
        int shard = 0;
        int64_t sample = 0;
        dataloader_find_sample(loader, (int)(row / (uint64_t)loader->batch_size), (int64_t)(position / sample_rows), &shard, &sample);
        return loader->shards[shard].first_sequence + (uint64_t)sample * sample_rows + row;
    }
    uint64_t epoch = position / loader->num_sequences, index = position % loader->num_sequences;
    return loader->shuffle ? dataloader_permute(index, loader->num_sequences, loader->seed, epoch) : index;
}

// Reads sequence number `sequence` (counted as above): T + 1 tokens into loader->buffer, checked against the vocabulary.
static inline void dataloader_read_sequence(DataLoader* loader, uint64_t sequence) {
    int low = 0, high = loader->num_shards - 1;  // the last shard whose first sequence is not beyond
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (loader->shards[middle].first_sequence <= sequence) { low = middle; } else { high = middle - 1; }
    }
    const Shard* shard = &loader->shards[low];
    const int T = loader->seq_len;
    uint64_t first_token = (sequence - shard->first_sequence) * (uint64_t)T;
    dataloader_pread(shard, loader->buffer, sizeof(uint16_t) * ((size_t)T + 1), (off_t)(SHARD_HEADER_BYTES + 2 * first_token));
    if (loader->vocab_size > 0) {
        unsigned largest = 0;
        for (int t = 0; t <= T; t++) { largest = loader->buffer[t] > largest ? loader->buffer[t] : largest; }
        if (largest >= (unsigned)loader->vocab_size) {
            int t = 0;
            while (loader->buffer[t] < (unsigned)loader->vocab_size) { t++; }
            fail("the data was made for another tokenizer or model: check --train-data, --val-data, --tokenizer, --model and --vocab-size",
                 "token %u at place %llu of '%s' is not below the vocabulary size %d", (unsigned)loader->buffer[t],
                 (unsigned long long)(first_token + t), shard->path, loader->vocab_size);
        }
    }
}

// inputs, targets (B,T) = the sequences at positions first_position .. first_position + B - 1 of the endless order. In llm.c's order of the same B
// and P ranks, rank r's batch of micro-step k (counted from the start of the run) is at (k * P + r) * B.
static inline void dataloader_read(DataLoader* loader, int32_t* inputs, int32_t* targets, int B, uint64_t first_position) {
    const int T = loader->seq_len;
    for (int b = 0; b < B; b++) {
        dataloader_read_sequence(loader, dataloader_sequence_at(loader, first_position + (uint64_t)b));
        int32_t *in = inputs + (size_t)b * T, *out = targets + (size_t)b * T;
        for (int t = 0; t < T; t++) {
            in[t] = loader->buffer[t];
            out[t] = loader->buffer[t + 1];
        }
    }
}

// ----------------------------------------------------------------------------
// llm.c's order: taking a run over, and keeping its place
//
// Kept order: what our state file holds of llm.c's order, so that the same list of sequences goes on. Little-endian, no padding.
//   OFFSET  SIZE     TYPE    MEANING
//   0       4        u32     version 1
//   4       4        u32     T
//   8       4        u32     B
//   12      4        u32     P
//   16      4        u32     shuffle 0 or 1
//   20      4        u32     G, number of shards
//   24      8        u64     seed
//   32      4        u32     number of starts that follow: 0 = the list starts at position 0 from the seed
//   36      ..       -       for each start, by ascending rank:
//           +0   4   u32     rank
//           +4   4   u32     slot
//           +8   8   i64     number in the list of the first sample of the shard at hand
//           +16  4   u32     used: numbers of the generator's state already given out, 1 to 624 (0 without shuffle)
//           +20  4   u32     n, samples of the shard at hand; 0 without shuffle
//           +24  ..  u32     (624) the generator's state; i32 (G) shards; i32 (n) samples

#define DATA_ORDER_VERSION 1u
typedef struct __attribute__((packed)) {
    uint32_t version, seq_len, batch_size, num_ranks, shuffle, num_shards;
    uint64_t seed;
    uint32_t num_starts;
} DataOrderHeader;
typedef struct { uint32_t rank, slot; int64_t first; uint32_t used, num_samples, state[MT_SIZE]; } DataOrderStart;
static_assert(sizeof(DataOrderHeader) == 36 && sizeof(DataOrderStart) == 24 + 4 * MT_SIZE, "the layout is the file's");

// Starts a rank's list at a place, which gets the position `position` (sequences that the run consumed so far, as the caller counts; a multiple of B*P).
// Refused, with the loader as it was, if the place does not fit the data, B, T or P. source: the file it comes from, for messages.
static inline bool dataloader_llmc_set_place(DataLoader* loader, int rank, const DataPlace* place, uint64_t position, const char* source,
                                             FileError* error) {
    assert(loader->order == DATA_ORDER_LLMC && rank >= 0 && rank < loader->num_ranks);
    const uint64_t sample_rows = (uint64_t)loader->batch_size * (uint64_t)loader->num_ranks, G = (uint64_t)loader->num_shards;
    assert(position % sample_rows == 0);
    if (place->shuffle != loader->shuffle) {
        return file_error(error, 0, "give --overfit-single-batch (-a) as that run did", "'%s' belongs to a run whose data was %s; here it %s", source,
                          place->shuffle ? "shuffled" : "not shuffled", loader->shuffle ? "is" : "is not");
    }
    if ((place->shuffle && place->num_shards != G) || place->slot >= G) {
        return file_error(error, 0, "give the --train-data (-i) that the run had, with all its shards, or take --data-order sequence",
                          "'%s' stands in shard %llu%s%s; there are %llu shards like '%s'", source, (unsigned long long)place->slot,
                          place->shuffle ? " of " : "", place->shuffle ? std::to_string(place->num_shards).c_str() : "", (unsigned long long)G,
                          loader->shards[0].path);
    }
    if (place->shuffle && !dataloader_is_permutation(place->shards, G)) {
        return file_error(error, 0, "the file is damaged: copy it again, or resume from an earlier checkpoint",
                          "'%s': its order of %llu shards is no permutation", source, (unsigned long long)G);
    }
    const Shard* shard = &loader->shards[place->shuffle ? (uint64_t)place->shards[place->slot] : place->slot];
    const int64_t n = dataloader_shard_samples(loader, (uint64_t)(shard - loader->shards));
    if (place->shuffle && place->num_samples != (uint64_t)n) {
        char hint[256] = "give the --batch-size (-b) and --seq-len (-t) that the run had";
        int64_t unit = (int64_t)loader->seq_len * loader->num_ranks, usable = shard->num_tokens - 1, m = (int64_t)place->num_samples;
        int64_t high = m > 0 ? usable / m / unit : 0, low = usable / (m + 1) / unit + 1;
        if (low <= high) { snprintf(hint, sizeof(hint), "%s: with --seq-len %d, --batch-size %lld%s%s would fit", "give the -b and -t that the run had",
                                    loader->seq_len, (long long)low, low < high ? " to " : "", low < high ? std::to_string(high).c_str() : ""); }
        return file_error(error, 0, hint, "'%s' has %llu samples in the shard '%s' of %lld tokens; samples of %d x %d x %d (ranks, batch size, sequence "
                          "length) make it %lld", source, (unsigned long long)place->num_samples, shard->path, (long long)shard->num_tokens,
                          loader->num_ranks, loader->batch_size, loader->seq_len, (long long)n);
    }
    if (place->sample > (uint64_t)n) {
        return file_error(error, 0, "give the --batch-size (-b) and --seq-len (-t) that the run had", "'%s' stands at sample %llu of the shard '%s', which "
                          "has %lld", source, (unsigned long long)place->sample, shard->path, (long long)n);
    }
    if (place->shuffle && !dataloader_is_permutation(place->samples, (uint64_t)n)) {
        return file_error(error, 0, "the file is damaged: copy it again, or resume from an earlier checkpoint",
                          "'%s': its order of %lld samples is no permutation", source, (long long)n);
    }
    DataStream* stream = &loader->streams[rank];
    DataCursor* c = &stream->start;
    dataloader_cursor_alloc(loader, c);
    c->first = (int64_t)(position / sample_rows) - (int64_t)place->sample;
    c->slot = (int)place->slot;
    c->mt = place->mt;
    if (loader->shuffle) {
        memcpy(c->shards, place->shards, sizeof(int32_t) * G);
        memcpy(c->samples, place->samples, sizeof(int32_t) * (size_t)n);
    } else {
        dataloader_count(c->shards, loader->num_shards);
    }
    dataloader_cursor_copy(loader, &stream->now, c);
    stream->taken_over = loader->taken_over = true;
    return true;
}

// Samples that the kept order lists for a start.
static inline int64_t dataloader_start_samples(const DataLoader* loader, const DataCursor* start) {
    return loader->shuffle ? dataloader_shard_samples(loader, (uint64_t)start->shards[start->slot]) : 0;
}

// Size of the kept order in bytes, and writing it to out.
static inline uint64_t dataloader_llmc_order_bytes(const DataLoader* loader) {
    assert(loader->order == DATA_ORDER_LLMC);
    uint64_t bytes = sizeof(DataOrderHeader);
    for (int r = 0; r < loader->num_ranks; r++) {
        const DataStream* stream = &loader->streams[r];
        if (!stream->taken_over) { continue; }
        bytes += sizeof(DataOrderStart) + sizeof(int32_t) * ((uint64_t)loader->num_shards + (uint64_t)dataloader_start_samples(loader, &stream->start));
    }
    return bytes;
}
static inline void dataloader_llmc_get_order(const DataLoader* loader, void* out) {
    assert(loader->order == DATA_ORDER_LLMC);
    unsigned char* at = (unsigned char*)out;
    auto put = [&](const void* data, size_t bytes) { memcpy(at, data, bytes); at += bytes; };
    DataOrderHeader h = {DATA_ORDER_VERSION, (uint32_t)loader->seq_len, (uint32_t)loader->batch_size, (uint32_t)loader->num_ranks, loader->shuffle,
                         (uint32_t)loader->num_shards, loader->seed, 0};
    for (int r = 0; r < loader->num_ranks; r++) { h.num_starts += loader->streams[r].taken_over; }
    put(&h, sizeof(h));
    for (int r = 0; r < loader->num_ranks; r++) {
        if (!loader->streams[r].taken_over) { continue; }
        const DataCursor* c = &loader->streams[r].start;
        const size_t n = (size_t)dataloader_start_samples(loader, c);
        DataOrderStart s = {(uint32_t)r, (uint32_t)c->slot, c->first, (uint32_t)c->mt.used, (uint32_t)n, {0}};
        memcpy(s.state, c->mt.state, sizeof(s.state));
        put(&s, sizeof(s));
        put(c->shards, sizeof(int32_t) * (size_t)loader->num_shards);
        put(c->samples, sizeof(int32_t) * n);
    }
}

// Goes on with a kept order: its B, P, seed and starts replace those of dataloader_init, so that the list of sequences stays the same, whatever batch
// size and number of ranks read it now. Another T or shuffle, or with starts other shards, are refused; the loader is then not to be used. source: as
// above.
static inline bool dataloader_llmc_set_order(DataLoader* loader, const void* data, uint64_t bytes, const char* source, FileError* error) {
    assert(loader->order == DATA_ORDER_LLMC);
    const char* damaged = "the file is damaged: copy it again, or resume from an earlier checkpoint";
    const unsigned char *at = (const unsigned char*)data, *end = at + bytes;
    DataOrderHeader h;
    if (bytes < sizeof(h)) {
        return file_error(error, 0, damaged, "'%s': %llu bytes of data order; its header alone has %zu", source, (unsigned long long)bytes, sizeof(h));
    }
    memcpy(&h, at, sizeof(h));
    at += sizeof(h);
    if (h.version != DATA_ORDER_VERSION) {
        return file_error(error, 0, "resume with the program that wrote it", "'%s': version %u of the data order; %u is known", source, h.version,
                          DATA_ORDER_VERSION);
    }
    if (h.shuffle > 1 || h.batch_size < 1 || h.num_ranks < 1 || h.batch_size > INT32_MAX || h.num_ranks > 65536 || h.num_starts > h.num_ranks) {
        return file_error(error, 0, damaged, "'%s': impossible data order: %u x %u sequences a sample, shuffle %u, %u starts", source, h.num_ranks,
                          h.batch_size, h.shuffle, h.num_starts);
    }
    if (h.seq_len != (uint32_t)loader->seq_len) {
        char hint[128];
        snprintf(hint, sizeof(hint), "give --seq-len %u (-t), or take --data-order sequence", h.seq_len);
        return file_error(error, 0, hint, "'%s' goes through the data in llm.c's order with sequences of %u tokens; --seq-len is %d", source, h.seq_len,
                          loader->seq_len);
    }
    if ((h.shuffle != 0) != loader->shuffle) {
        return file_error(error, 0, "give --overfit-single-batch (-a) as that run did", "'%s' belongs to a run whose data was %s; here it %s", source,
                          h.shuffle ? "shuffled" : "not shuffled", loader->shuffle ? "is" : "is not");
    }
    FileError why;
    if (!dataloader_begin_llmc(loader, (int)h.batch_size, (int)h.num_ranks, &why)) {
        return file_error(error, 0, "give the --train-data (-i) that the run had, or take --data-order sequence", "'%s' does not fit the data: %s", source,
                          why.message);
    }
    loader->seed = h.seed;
    for (uint32_t i = 0; i < h.num_starts; i++) {
        DataOrderStart s;
        uint64_t left = (uint64_t)(end - at), arrays = 0;
        if (left >= sizeof(s)) {
            memcpy(&s, at, sizeof(s));
            at += sizeof(s);
            left -= sizeof(s);
            arrays = sizeof(int32_t) * ((uint64_t)h.num_shards + s.num_samples);
        }
        if (arrays == 0 || left < arrays || s.rank >= h.num_ranks || loader->streams[s.rank].taken_over ||
            (h.shuffle && (s.used < 1 || s.used > MT_SIZE)) || s.first < -INT32_MAX || s.first > INT64_MAX / 2) {
            return file_error(error, 0, damaged, "'%s': start %u of %u of the data order is cut or impossible", source, i + 1, h.num_starts);
        }
        DataPlace place = {h.shuffle != 0, s.slot, 0, h.num_shards, s.num_samples, NULL, NULL, {{0}, (int)s.used, false, 0.0}};
        std::vector<int32_t> lists(arrays / sizeof(int32_t));  // the bytes at hand may lie anywhere
        memcpy(lists.data(), at, arrays);
        at += arrays;
        memcpy(place.mt.state, s.state, sizeof(s.state));
        place.shards = lists.data();
        place.samples = lists.data() + h.num_shards;
        if (!dataloader_llmc_set_place(loader, (int)s.rank, &place, 0, source, error)) { return false; }
        loader->streams[s.rank].start.first = loader->streams[s.rank].now.first = s.first;
    }
    if (at != end) {
        return file_error(error, 0, damaged, "'%s': %llu bytes after the data order", source, (unsigned long long)(end - at));
    }
    return true;
}

#endif
