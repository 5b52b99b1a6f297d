/* llmc_state.h - reads the optimizer state that llm.c's train_gpt2cu writes, so that a run of llm.c goes on here with its moments and masters
 *
 * What:      state_%08d_%05d.bin (step, rank), version 1, of all ranks: m, v and FP32 masters in the order of the model file, and each rank's place in
 *            the data. Use, with the ParamSpec table of the trainer as {layers, part}:
 *                LlmcState s;
 *                fileCheck(llmc_state_open(&s, folder, step, tensors, NUM_PARAMS, &error), &error);   // all that can be checked without the payload
 *                llmc_state_begin(&s, LLMC_STATE_M);
 *                for each piece of n elements, in the model file's order: fileCheck(llmc_state_next(&s, buffer, n, &error), &error);
 *                ... LLMC_STATE_V; LLMC_STATE_MASTER if s.has_master
 *                if (data order is llm.c's) for r < s.num_ranks:                          // the loader: B of that run, P = s.num_ranks
 *                    fileCheck(dataloader_llmc_set_place(&loader, r, &s.ranks[r].place, position, s.ranks[r].file.path, &error), &error);
 *                llmc_state_close(&s);
 *            The weights are those of model_%08d.bin, as llm.c rounded them. Its random state is not used: our rounding is keyed by step.
 *
 * Checks:    llm.c records neither N nor the model: the exact size must be due, the orders be permutations, the generator possible, the moments finite and
 *            v not negative, and each master must be one that llm.c rounds to the weight in the model file (to either neighbour: it rounds at random).
 * Errors:    as in files.h.   Memory: the loader parts; one descriptor a rank, one for the model.   Tests: dev/test/test_llmc_state.cu */
#ifndef LLMC_LLMC_STATE_H
#define LLMC_LLMC_STATE_H

#include <math.h>

#include "llmc/checkpoint.h"
#include "llmc/dataloader.h"

// File (little-endian, no checksum): a header of 256 int32 (what is not listed is 0 and ignored), then the arrays without padding.
//   OFFSET  SIZE    TYPE    MEANING
//   0       4       i32     magic 20240527
//   4       4       i32     version 1
//   8       4       i32     P, number of ranks
//   12      4       i32     rank
//   16      4       i32     1: there are masters
//   20      4       i32     1: the data is shuffled, there is a loader part
//   40      4       i32     step: completed updates
//   80      16      u64[2]  random state now, and before the last update
//   120     8       u64     place in the order of shards
//   128     8       u64     next sample of that shard, 0 to n
//   1024    4*S     f32     m
//   ..      4*S     f32     v
//   ..      4*S     f32     masters, if there are
//   ..      8, 4*G  u64, i32  the loader part, if shuffled: number of shards G, their order
//   ..      8, 4*n  u64, i32  samples n of the shard at hand, their order
//   ..      2520    -       generator: u64 not initialised; i32 left; u32 next; u32[624] state; u32[2] {0, 0x9908b0df}
//
// ZeRO:      stage 0: S = N, every rank has all (rank 0's is read). Stage 1: S = N / P; rank r has, of each layer of each tensor (part elements), the
//            elements r * part/P .. (r + 1) * part/P - 1, in the model file's order. The file does not say the stage: its size does.
//
// Historic:  in May and June 2024 the shard was one int32 and the place an int64 at byte 124 (a byte offset, later a sample), under the same version.
//            A place other than 0 makes the word at byte 124 nonzero, which it is not today (a shard's number would be 2^32 at least): such files are
//            refused. At place 0 both layouts are the same bytes with the same meaning.

#define LLMC_STATE_MAGIC 20240527
#define LLMC_STATE_HEADER_BYTES 1024
#define LLMC_STATE_MAX_RANKS 65536
#define LLMC_STATE_GENERATOR_BYTES 2520

typedef struct { uint64_t layers, part; } LlmcTensor;   // layers * part elements in the model file; layers 1 for what is not per layer

typedef struct {
    InputFile file;
    uint64_t shard_parameters;  // S
    DataPlace place;            // its arrays are owned
} LlmcStateRank;

enum LlmcStateArray { LLMC_STATE_M, LLMC_STATE_V, LLMC_STATE_MASTER };

typedef struct {
    int step, num_ranks;
    bool has_master, shuffle;
    bool sharded;               // ZeRO stage 1
    uint64_t num_parameters;    // N
    LlmcTensor* tensors;        // (num_tensors), owned
    int num_tensors;
    LlmcStateRank* ranks;       // (num_ranks), owned
    InputFile model;            // of the same step
    uint32_t model_dtype;
    LlmcStateArray array;       // being read
    uint64_t at;                // elements of it read so far
    int tensor;                 // the one that `at` lies in, and the elements before it
    uint64_t tensor_first;
} LlmcState;

static inline void llmc_state_close(LlmcState* s) {
    for (int r = 0; s->ranks && r < s->num_ranks; r++) {
        input_file_close(&s->ranks[r].file);
        free(s->ranks[r].place.shards);
        free(s->ranks[r].place.samples);
    }
    input_file_close(&s->model);
    free(s->ranks);
    free(s->tensors);
    s->ranks = NULL;
    s->tensors = NULL;
}

#define LLMC_STATE_HINT "resume from an earlier checkpoint (remove the DONE file of this step), or copy the file again"

// Bytes before the loader part, for S parameters.
static inline uint64_t llmc_state_array_bytes(const LlmcState* s, uint64_t S) { return LLMC_STATE_HEADER_BYTES + 4 * S * (s->has_master ? 3 : 2); }

// Reads the loader part of a file of S parameters into place (its slot and sample are set). Returns how far it agrees: 0 too short (no error is set), 1 no
// such counts, 2 other size, 3 impossible content or not readable, 4 good.
static inline int llmc_state_read_place(const LlmcState* s, const InputFile* f, uint64_t S, DataPlace* place, FileError* error) {
    const uint64_t at = llmc_state_array_bytes(s, S);
    const char* path = f->path;
    uint64_t G = 0, n = 0;
    if (f->size < at + 16 + LLMC_STATE_GENERATOR_BYTES) { return 0; }
    if (!input_file_read_at(f, at, &G, sizeof(G), error)) { return 3; }
    if (G < 1 || G > 1 << 20 || at + 8 + 4 * G + 8 > f->size) {
        file_error(error, 0, LLMC_STATE_HINT, "'%s': the loader part at byte %llu begins with %llu shards, where 1 to %d are possible", path,
                   (unsigned long long)at, (unsigned long long)G, 1 << 20);
        return 1;
    }
    if (!input_file_read_at(f, at + 8 + 4 * G, &n, sizeof(n), error)) { return 3; }
    if (n < 1 || n > INT32_MAX) {
        file_error(error, 0, LLMC_STATE_HINT, "'%s': after %llu shards, at byte %llu, stand %llu samples, where 1 to %d are possible", path,
                   (unsigned long long)G, (unsigned long long)(at + 8 + 4 * G), (unsigned long long)n, INT32_MAX);
        return 1;
    }
    const uint64_t due = at + 8 + 4 * G + 8 + 4 * n + LLMC_STATE_GENERATOR_BYTES;
    if (f->size != due) {
        file_error(error, 0, LLMC_STATE_HINT, "'%s' has %llu bytes, %llu too %s: %llu are due for %llu parameters%s, %llu shards and %llu samples", path,
                   (unsigned long long)f->size, (unsigned long long)(f->size < due ? due - f->size : f->size - due), f->size < due ? "few" : "many",
                   (unsigned long long)due, (unsigned long long)S, s->has_master ? " with masters" : "", (unsigned long long)G, (unsigned long long)n);
        return 2;
    }
    struct { uint64_t seed; int32_t left; uint32_t next, state[MT_SIZE], matrix[2]; } generator;
    static_assert(sizeof(generator) == LLMC_STATE_GENERATOR_BYTES, "the layout is the file's");
    place->num_shards = G;
    place->num_samples = n;
    place->shards = (int32_t*)mallocCheck(4 * G);
    place->samples = (int32_t*)mallocCheck(4 * n);
    if (!input_file_read_at(f, at + 8, place->shards, 4 * G, error) || !input_file_read_at(f, at + 8 + 4 * G + 8, place->samples, 4 * n, error) ||
        !input_file_read_at(f, due - sizeof(generator), &generator, sizeof(generator), error)) { return 3; }
    const bool fresh = generator.left == 1 && generator.next == 0;  // seeded, nothing drawn yet
    if (generator.matrix[0] != 0 || generator.matrix[1] != 0x9908b0dfu ||
        (!fresh && (generator.next < 1 || generator.next > MT_SIZE || generator.left != MT_SIZE + 1 - (int32_t)generator.next))) {
        file_error(error, 0, LLMC_STATE_HINT, "'%s': impossible generator: left %d, next %u, constants %08x %08x", path, generator.left, generator.next,
                   generator.matrix[0], generator.matrix[1]);
        return 3;
    }
    memset(&place->mt, 0, sizeof(place->mt));
    memcpy(place->mt.state, generator.state, sizeof(generator.state));
    place->mt.used = fresh ? MT_SIZE : (int)generator.next;
    if (place->slot >= G || place->sample > n) {
        file_error(error, 0, LLMC_STATE_HINT, "'%s' stands at sample %llu of %llu in shard %llu of %llu", path, (unsigned long long)place->sample,
                   (unsigned long long)n, (unsigned long long)place->slot, (unsigned long long)G);
        return 3;
    }
    if (!dataloader_is_permutation(place->shards, G) || !dataloader_is_permutation(place->samples, n)) {
        file_error(error, 0, LLMC_STATE_HINT, "'%s': the order of its %llu shards or %llu samples is no permutation", path, (unsigned long long)G,
                   (unsigned long long)n);
        return 3;
    }
    return 4;
}

// Finds S, N or N / P, from the size of the file, and reads the loader part if there is one: counts, two orders that are permutations and an exact size
// at once do not occur in the middle of moments, so that the first that agrees is the one.
static inline bool llmc_state_find_size(const LlmcState* s, LlmcStateRank* r, FileError* error) {
    const uint64_t N = s->num_parameters, P = (uint64_t)s->num_ranks, sizes[2] = {N, N / P};
    const int stages = P > 1 && N % P == 0 ? 2 : 1;
    const DataPlace from_header = r->place;
    int best = 0;
    for (int stage = 0; stage < stages && best < 4; stage++) {
        DataPlace place = from_header;
        FileError why;
        int level = s->shuffle ? llmc_state_read_place(s, &r->file, sizes[stage], &place, &why) :
                    r->file.size == llmc_state_array_bytes(s, sizes[stage]) ? 4 : 0;
        if (level > best) {
            best = level;
            free(r->place.shards);
            free(r->place.samples);
            r->place = place;
            r->shard_parameters = sizes[stage];
            if (level < 4) { *error = why; }
        } else {
            free(place.shards);
            free(place.samples);
        }
    }
    if (best > 0) { return best == 4; }
    char sharded[128] = "";
    if (stages == 2) {
        snprintf(sharded, sizeof(sharded), ", or %llu with ZeRO stage 1 over %d ranks", (unsigned long long)llmc_state_array_bytes(s, N / P), s->num_ranks);
    }
    return file_error(error, 0, LLMC_STATE_HINT, "'%s' has %llu bytes; %llu are due for %llu parameters%s%s%s", r->file.path,
                      (unsigned long long)r->file.size, (unsigned long long)llmc_state_array_bytes(s, N), (unsigned long long)N,
                      s->has_master ? " with masters" : "", sharded, s->shuffle ? ", and then the loader part" : "");
}

static inline bool llmc_state_open_rank(LlmcState* s, const char* folder, int rank, FileError* error) {
    LlmcStateRank* r = &s->ranks[rank];
    char path[FILE_PATH_MAX];
    int32_t h[LLMC_STATE_HEADER_BYTES / 4] = {0};
    checkpoint_state_path(path, folder, s->step, rank);
    if (!input_file_open(&r->file, path, error)) { return false; }
    const uint64_t head = r->file.size < sizeof(h) ? r->file.size : sizeof(h);
    if (!input_file_read(&r->file, h, head, error)) { return false; }
    if (head < 4 || h[0] != LLMC_STATE_MAGIC) {
        return file_error(error, 0, LLMC_STATE_HINT, "'%s' is not an optimizer state of llm.c but %s", path, file_describe((unsigned char*)h, head));
    }
    if (head < sizeof(h)) {
        return file_error(error, 0, LLMC_STATE_HINT, "'%s' has %llu bytes: not even its header of %zu is whole", path, (unsigned long long)head, sizeof(h));
    }
    if (h[1] != 1) {
        return file_error(error, 0, "start from the model file of that step (-e)", "'%s' has version %d; llm.c's version 1 can be read", path, h[1]);
    }
    if (h[2] < 1 || h[2] > LLMC_STATE_MAX_RANKS || h[4] < 0 || h[4] > 1 || h[5] < 0 || h[5] > 1 || h[10] < 0) {
        return file_error(error, 0, LLMC_STATE_HINT, "'%s': damaged header: %d ranks (1 to %d), masters %d and shuffle %d (0 or 1), step %d", path, h[2],
                          LLMC_STATE_MAX_RANKS, h[4], h[5], h[10]);
    }
    if (h[3] != rank || h[10] != s->step) {
        return file_error(error, 0, "give the file its name back, or copy it again", "'%s' was written by rank %d at step %d, as its header says", path,
                          h[3], h[10]);
    }
    if (h[31] != 0) {
        return file_error(error, 0, "start from the model file of that step (-e), or let an llm.c of that time go on with it",
                          "'%s' was written by an early llm.c, which kept its place in the data in another layout (shard %d, %d at byte 124)", path,
                          h[30], h[31]);
    }
    if (rank == 0) {
        s->num_ranks = h[2];
        s->has_master = h[4] != 0;
        s->shuffle = h[5] != 0;
    } else if (h[2] != s->num_ranks || (h[4] != 0) != s->has_master || (h[5] != 0) != s->shuffle) {
        return file_error(error, 0, LLMC_STATE_HINT, "'%s' does not belong to the state of rank 0: %d ranks, masters %d, shuffle %d, there %d, %d, %d", path,
                          h[2], h[4], h[5], s->num_ranks, s->has_master, s->shuffle);
    }
    r->place.shuffle = s->shuffle;
    memcpy(&r->place.slot, &h[30], 8);
    memcpy(&r->place.sample, &h[32], 8);
    return llmc_state_find_size(s, r, error);
}

static inline bool llmc_state_open_all(LlmcState* s, const char* folder, FileError* error) {
    s->num_ranks = 1;
    s->ranks = (LlmcStateRank*)mallocCheck(sizeof(LlmcStateRank));
    memset(s->ranks, 0, sizeof(LlmcStateRank));
    s->ranks[0].file.fd = -1;
    const bool first = llmc_state_open_rank(s, folder, 0, error);
    const int P = s->num_ranks;
    LlmcStateRank* ranks = (LlmcStateRank*)mallocCheck(sizeof(LlmcStateRank) * (size_t)P);
    memset(ranks, 0, sizeof(LlmcStateRank) * (size_t)P);
    for (int r = 0; r < P; r++) { ranks[r].file.fd = -1; }
    ranks[0] = s->ranks[0];
    free(s->ranks);
    s->ranks = ranks;
    if (!first) { return false; }
    for (int r = 1; r < P; r++) {
        if (!llmc_state_open_rank(s, folder, r, error)) { return false; }
        if (ranks[r].shard_parameters != ranks[0].shard_parameters) {
            return file_error(error, 0, LLMC_STATE_HINT, "'%s' holds %llu parameters, '%s' %llu: one is of ZeRO stage 1, the other of stage 0",
                              ranks[0].file.path, (unsigned long long)ranks[0].shard_parameters, ranks[r].file.path,
                              (unsigned long long)ranks[r].shard_parameters);
        }
    }
    s->sharded = ranks[0].shard_parameters != s->num_parameters;
    for (int i = 0; s->sharded && i < s->num_tensors; i++) {
        if (s->tensors[i].part % (uint64_t)P != 0) {
            return file_error(error, 0, "give the model that the run trained", "'%s' looks like ZeRO stage 1 over %d ranks, which cannot share %llu elements "
                              "of tensor %d: it belongs to another model", ranks[0].file.path, P, (unsigned long long)s->tensors[i].part, i);
        }
    }
    char path[FILE_PATH_MAX];
    int32_t h[2] = {0};
    checkpoint_model_path(path, folder, s->step);
    if (!input_file_open(&s->model, path, error) || !input_file_read_at(&s->model, 0, h, s->model.size < 8 ? s->model.size : 8, error)) { return false; }
    s->model_dtype = h[1] == 3 ? FILE_F32 : FILE_BF16;
    const uint64_t due = MODEL_FILE_HEADER_BYTES + s->num_parameters * file_dtype_bytes(s->model_dtype);
    if (h[0] != MODEL_FILE_MAGIC || (h[1] != 3 && h[1] != 5) || s->model.size != due) {
        return file_error(error, 0, LLMC_STATE_HINT, "'%s' (%llu bytes) is not the model file of %llu parameters that belongs to '%s'", path,
                          (unsigned long long)s->model.size, (unsigned long long)s->num_parameters, ranks[0].file.path);
    }
    return true;
}

// Opens the states of all ranks of a step and its model file, and checks all that can be checked without reading the arrays. tensors: all parameters in the
// order of the model file, copied. On failure nothing is left open.
static inline bool llmc_state_open(LlmcState* s, const char* folder, int step, const LlmcTensor* tensors, int num_tensors, FileError* error) {
    memset(s, 0, sizeof(*s));
    s->step = step;
    s->model.fd = -1;
    s->num_tensors = num_tensors;
    s->tensors = (LlmcTensor*)mallocCheck(sizeof(LlmcTensor) * (size_t)num_tensors);
    memcpy(s->tensors, tensors, sizeof(LlmcTensor) * (size_t)num_tensors);
    for (int i = 0; i < num_tensors; i++) { s->num_parameters += tensors[i].layers * tensors[i].part; }
    if (llmc_state_open_all(s, folder, error)) { return true; }
    llmc_state_close(s);
    return false;
}

// Begins to read an array from its first element. LLMC_STATE_MASTER only if has_master.
static inline void llmc_state_begin(LlmcState* s, LlmcStateArray array) {
    assert(array != LLMC_STATE_MASTER || s->has_master);
    s->array = array;
    s->at = s->tensor_first = 0;
    s->tensor = 0;
}

// Where element s->at lies: rank, element of its array, and how many follow there. Moves s->tensor on.
static inline uint64_t llmc_state_locate(LlmcState* s, int* rank, uint64_t* element) {
    *rank = 0;
    *element = s->at;
    if (!s->sharded) { return s->num_parameters - s->at; }
    while (s->at >= s->tensor_first + s->tensors[s->tensor].layers * s->tensors[s->tensor].part) {
        s->tensor_first += s->tensors[s->tensor].layers * s->tensors[s->tensor].part;
        s->tensor++;
    }
    const uint64_t P = (uint64_t)s->num_ranks, part = s->tensors[s->tensor].part, piece = part / P;
    const uint64_t layer = (s->at - s->tensor_first) / part, inside = (s->at - s->tensor_first) % part;
    *rank = (int)(inside / piece);
    *element = s->tensor_first / P + layer * piece + inside % piece;
    return piece - inside % piece;
}

// Is w (bits of a bfloat16) what a float with these bits can be rounded to: its upper half, or, unless it is exact, the next one away from zero?
static inline bool llmc_state_rounds_to(uint32_t bits, uint16_t w) {
    const uint32_t upper = bits >> 16;
    return w == upper || ((bits & 0xffffu) != 0 && w == upper + 1);
}

// Checks n values that were read at s->at of rank's file.
static inline bool llmc_state_check_values(const LlmcState* s, int rank, const float* values, uint64_t n, FileError* error) {
    static const char* const names[] = {"m", "v", "master"};
    for (uint64_t i = 0; i < n; i++) {
        if (isfinite(values[i]) && (s->array != LLMC_STATE_V || values[i] >= 0.0f)) { continue; }
        return file_error(error, 0, "the run had diverged, or the file is damaged: resume from an earlier checkpoint (remove the DONE file of this step)",
                          "'%s': %s of parameter %llu is %g", s->ranks[rank].file.path, names[s->array], (unsigned long long)(s->at + i), (double)values[i]);
    }
    if (s->array != LLMC_STATE_MASTER) { return true; }
    union { uint16_t bf16[8192]; float f32[4096]; } weights;
    const bool narrow = s->model_dtype == FILE_BF16;
    const uint64_t size = narrow ? 2 : 4, room = sizeof(weights) / size;
    for (uint64_t begin = 0; begin < n; begin += room) {
        const uint64_t count = n - begin < room ? n - begin : room;
        if (!input_file_read_at(&s->model, MODEL_FILE_HEADER_BYTES + (s->at + begin) * size, &weights, count * size, error)) { return false; }
        uint64_t i = 0;
        for (uint32_t bits; i < count; i++) {
            memcpy(&bits, &values[begin + i], 4);
            if (narrow ? !llmc_state_rounds_to(bits, weights.bf16[i]) : memcmp(&bits, &weights.f32[i], 4) != 0) { break; }
        }
        if (i == count) { continue; }
        float weight = 0.0f;  // a bfloat16 is the upper half of a float
        memcpy((char*)&weight + (4 - size), (const char*)&weights + i * size, size);
        return file_error(error, 0, "model and state must be of the same run and step: copy both again, or resume from an earlier checkpoint",
                          "'%s': the master of parameter %llu is %.9g, which does not round to %.9g, its weight in '%s'", s->ranks[rank].file.path,
                          (unsigned long long)(s->at + begin + i), (double)values[begin + i], (double)weight, s->model.path);
    }
    return true;
}

// The next n values of the array, in the order of the model file. What was read before a false came back is not to be used.
static inline bool llmc_state_next(LlmcState* s, float* values, uint64_t n, FileError* error) {
    assert(s->at + n <= s->num_parameters);
    while (n > 0) {
        int rank;
        uint64_t element, count = llmc_state_locate(s, &rank, &element);
        if (count > n) { count = n; }
        const LlmcStateRank* r = &s->ranks[rank];
        if (!input_file_read_at(&r->file, LLMC_STATE_HEADER_BYTES + 4 * ((uint64_t)s->array * r->shard_parameters + element), values, 4 * count, error) ||
            !llmc_state_check_values(s, rank, values, count, error)) { return false; }
        s->at += count;
        values += count;
        n -= count;
    }
    return true;
}

#endif
