/* dataloader.h - batches of token sequences from shards, by position: no state to save, free of batch size and world size
 *
 * What:      a data set is S = sum over shards of floor((ntok - 1) / T) sequences: T inputs and the same shifted by one as targets. The training
 *            order is one endless list: position p is sequence permutation(p % S) of epoch p / S. A batch is B consecutive positions, so whoever
 *            knows the position of the first (step * sequences per step + ...) knows all: any B, any number of ranks, any resume sees the same list.
 *            Without shuffle the permutation is the identity (validation): shards in the order of their names, sequences as they lie.
 * Order:     the permutation of 0..S-1 is keyed by (seed, epoch): a Feistel network on the smallest 2^k >= S, k >= 8, walked until the value falls
 *            below S [Black & Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking]. No table; fewer than 2 walks on average (S >= 128).
 *            It is a file format in effect: a resumed run relies on it. test_data.cu pins it to numbers made by an independent program.
 *
 * File (token shard), little-endian, llm.c's, no checksum:
 *   OFFSET  SIZE     TYPE    MEANING
 *   0       4        i32     magic 20240520
 *   4       4        i32     version 1
 *   8       4        i32     ntok, number of tokens, 1 .. 2^31 - 1
 *   12      1012     i32[]   zero
 *   1024    2*ntok   u16[]   tokens; the file ends after the last
 *
 * Shapes:    inputs, targets (B,T) int32, host memory of the caller.
 * Errors:    wrong magic, version or size, a shard of fewer than T + 1 tokens, a token >= vocab_size: a message with file and place, exit 1.
 * Memory:    one buffer of T + 1 tokens; file descriptors of the first 128 shards stay open, later ones are opened for each read. Reads are
 *            pread with 64-bit offsets: a shard of 2^31 tokens is 4 GiB.
 * Tests:     dev/test/test_data.cu */
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H

#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "llmc/common.h"

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

typedef struct {
    Shard* shards;              // sorted by name, owned
    int num_shards;
    int seq_len;                // T
    int vocab_size;             // tokens must lie below; 0 = not checked
    bool shuffle;
    uint64_t seed;
    int64_t num_tokens;         // of all shards, with the remainders that no sequence uses
    uint64_t num_sequences;     // S, of one epoch
    uint64_t digest;            // see dataloader_digest
    uint16_t* buffer;           // (T + 1), owned
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
// public

// Opens the shards that match a glob pattern and checks them. seq_len = T > 0. vocab_size: tokens must lie below it, 0 = any.
// shuffle: the training order keyed by seed, else the order of the files.
static inline void dataloader_init(DataLoader* loader, const char* pattern, int seq_len, int vocab_size, bool shuffle, uint64_t seed) {
    memset(loader, 0, sizeof(*loader));
    require(seq_len > 0, "", "a data loader with sequences of %d tokens", seq_len);
    loader->seq_len = seq_len;
    loader->vocab_size = vocab_size;
    loader->shuffle = shuffle;
    loader->seed = seed;
    glob_t found;
    int error = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);
    require(error != GLOB_NOMATCH, "'make train' or python3 data/make_text.py makes data/text; data/README.md tells of the other sets",
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
    loader->buffer = (uint16_t*)mallocCheck(sizeof(uint16_t) * ((size_t)seq_len + 1));
}

static inline void dataloader_free(DataLoader* loader) {
    for (int i = 0; i < loader->num_shards; i++) {
        if (loader->shards[i].fd >= 0) { close(loader->shards[i].fd); }
        free(loader->shards[i].path);
    }
    free(loader->shards);
    free(loader->buffer);
    memset(loader, 0, sizeof(*loader));
}

// A number that tells data sets apart: names without folders, lengths and first 2,048 tokens of all shards in order. For resume: the folder may
// move, the data may not change. Free of T, seed and order.
static inline uint64_t dataloader_digest(const DataLoader* loader) { return loader->digest; }

// Which sequence (0..S-1, counted through the shards) stands at a position of the endless order.
static inline uint64_t dataloader_sequence_at(const DataLoader* loader, uint64_t position) {
    uint64_t epoch = position / loader->num_sequences, index = position % loader->num_sequences;
    return loader->shuffle ? dataloader_permute(index, loader->num_sequences, loader->seed, epoch) : index;
}

// Reads sequence number `sequence` (0..S-1): T + 1 tokens into loader->buffer, checked against the vocabulary.
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

// inputs, targets (B,T) = the sequences at positions first_position .. first_position + B - 1 of the endless order.
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

#endif
