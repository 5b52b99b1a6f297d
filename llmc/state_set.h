/* state_set.h - one checkpoint, written by any number of ranks at once and read by any other number
 *
 * What:      the parameters are one flat list of N elements in the order of the model file. A rank's state file holds PIECES of it (at most 4 Mi elements
 *            each, those that the rank owns); the pieces of all ranks cover 0..N-1 exactly once. The model file is one file that all ranks write into.
 * File:      sections of a state of version 2 (formats.h), beside which rank 0's file has those of the run as a whole:
 *                pieces        u64   first, count of each piece, ascending
 *                m, v, master  f32   the pieces' elements one after the other (any name; the same ones in every file)
 *                NAME/xxh64    u64   XXH64 of each piece of that section; model/xxh64: of the piece's bytes in the model file
 * Writing:   rank 0: checkpoint_begin, state_set_write_begin -> barrier -> others: state_set_write_begin -> all: array_begin, append ..., array_end for each
 *            array and for "model"; rank 0: its own sections; all: state_set_write_end -> barrier (did all succeed?) -> rank 0: state_set_write_commit,
 *            checkpoint_done. If anything failed, every rank that began calls state_set_write_abort. The barriers are the caller's.
 * Reading:   state_set_open, state_set_read of any range of an array, state_set_read_model of the model, set.first for rank 0's sections, close. A range's
 *            pieces are read whole and their digests compared before anything is handed out. States of version 1 are taken too (one rank, whole arrays:
 *            checked as a whole before their first use).
 * Errors:    as in files.h; messages name the file, what was found and what is due. After a failed writing call the later ones return the same error.
 * Memory:    writing: 1 MiB and 16 bytes a piece. Reading: one piece (16 MiB at most; so a sequential reader reads each byte once), 80 bytes a piece.
 * Threads:   none of its own; a writer or a set belongs to one thread at a time, which need not be the main one.
 * Tests:     dev/test/test_state_set.cu  */
#ifndef LLMC_STATE_SET_H
#define LLMC_STATE_SET_H

#include <algorithm>
#include <string>
#include <vector>

#include "llmc/formats.h"

#define STATE_PIECE_MAX ((uint64_t)4 << 20)  // elements of a piece: a reader holds one, and 16 MiB are enough for a disk's full speed
#define STATE_SET_OPEN_MAX 64           // state files open at a time, whatever the number of ranks
#define STATE_SET_MODEL "model"         // the name of the array that is in the model file
#define STATE_SET_HINT "resume from an earlier checkpoint (remove the DONE file of this step), or copy the file again"

typedef struct { uint64_t first, count; } StatePiece;   // elements of the flat list

// Appends a range that a rank owns, in pieces; a range that follows the last one is joined with it. Ranges come in ascending order.
static inline void state_pieces_add(std::vector<StatePiece>* pieces, uint64_t first, uint64_t count) {
    while (count > 0) {
        bool joins = !pieces->empty() && pieces->back().first + pieces->back().count == first && pieces->back().count < STATE_PIECE_MAX;
        if (!joins) { pieces->push_back(StatePiece{first, 0}); }
        uint64_t n = std::min(count, STATE_PIECE_MAX - pieces->back().count);
        pieces->back().count += n;
        first += n;
        count -= n;
    }
}

// ---------------------------------------------------------------------------- writing

// What one rank's part of a checkpoint is. The pointers' targets are needed during state_set_write_begin only.
typedef struct {
    const char* folder;
    int step, rank, num_ranks;
    uint64_t writing;               // the same on all ranks, another for another run or time: keeps files of different writings apart
    const char* config;
    const ModelHeader* model;
    uint32_t model_dtype;           // FILE_F32 or FILE_BF16
    uint64_t num_parameters;        // N
    const StatePiece* pieces;       // that this rank writes, of the arrays and of the model; ascending, none empty
    uint64_t num_pieces;
    int num_arrays;                 // besides the model: for the check of free space
} StateSetSpec;

typedef struct {
    StateWriter state;              // state_write_section(&w.state, ...) for sections that are not arrays
    SharedFile model;
    std::vector<StatePiece> pieces;
    uint64_t elements;              // in all pieces
    char array[STATE_NAME_MAX];     // being written
    bool in_model;
    size_t element_bytes;
    size_t piece;                   // the next element's piece, and how many of it are written
    uint64_t done;
    Xxh64 hash;                     // of that piece so far
    std::vector<uint64_t> digests;  // of the pieces before
    char state_path[FILE_PATH_MAX];
    bool begun = false;             // an abort has something to do
    bool ended, committed;          // the state file has its name; the model file too
    bool failed;
    FileError error;
} StateSetWriter;

// Removes all that this rank wrote, also what state_set_write_end and commit finished; nothing if it did not begin. Not after checkpoint_done succeeded.
static inline void state_set_write_abort(StateSetWriter* w) {
    if (!w->begun) { return; }
    state_write_abort(&w->state);
    shared_file_abort(&w->model);
    if (w->ended) { unlink(w->state_path); }
    if (w->committed) { unlink(w->model.path); }
    w->begun = false;
}
static inline bool state_set_write_fail(StateSetWriter* w, FileError* error) {
    state_set_write_abort(w);
    w->failed = true;
    w->error = *error;
    return false;
}

static inline bool state_set_write_header(StateSetWriter* w, const StateSetSpec* spec, FileError* error) {
    char path[FILE_PATH_MAX];
    int32_t head[MODEL_FILE_HEADER_BYTES / 4];
    const uint64_t model_bytes = MODEL_FILE_HEADER_BYTES + spec->num_parameters * file_dtype_bytes(spec->model_dtype);
    model_header_pack(head, spec->model, spec->model_dtype);
    checkpoint_model_path(path, spec->folder, spec->step);
    checkpoint_state_path(w->state_path, spec->folder, spec->step, spec->rank);
    if (spec->rank > 0) { if (!shared_file_open(&w->model, path, model_bytes, error)) { return false; } }
    else if (!shared_file_create(&w->model, path, model_bytes, error) || !shared_file_pwrite(&w->model, 0, head, sizeof(head), error)) { return false; }
    const uint64_t payload = w->elements * sizeof(float) * (uint64_t)spec->num_arrays;
    if (!state_write_begin(&w->state, w->state_path, (uint64_t)spec->step, spec->rank, spec->num_ranks, spec->config, payload, error)) { return false; }
    StateHeader* h = &w->state.header;
    h->model_bytes = model_bytes;
    h->model_xxh64 = xxh64(head, sizeof(head), 0);
    h->num_parameters = spec->num_parameters;
    h->writing = spec->writing;
    return state_write_section(&w->state, "pieces", FILE_U64, 2 * spec->num_pieces, spec->pieces, error);
}

// Begins this rank's state file, and creates (rank 0) or opens (the others, after rank 0) the model file. w needs no initialization.
static inline bool state_set_write_begin(StateSetWriter* w, const StateSetSpec* spec, FileError* error) {
    *w = StateSetWriter{};
    w->state.file.fd = w->model.fd = -1;
    w->begun = true;
    w->element_bytes = file_dtype_bytes(spec->model_dtype);
    w->pieces.assign(spec->pieces, spec->pieces + spec->num_pieces);
    uint64_t end = 0;
    for (const StatePiece& p : w->pieces) {
        assert(p.first >= end && p.count > 0 && p.count <= STATE_PIECE_MAX && p.count <= spec->num_parameters && p.first <= spec->num_parameters - p.count);
        end = p.first + p.count;
        w->elements += p.count;
    }
    return state_set_write_header(w, spec, error) ? true : state_set_write_fail(w, error);
}

// Begins an array: "model" for the model file, whose elements have the model's dtype; else a section of float32.
static inline bool state_set_array_begin(StateSetWriter* w, const char* name, FileError* error) {
    if (w->failed) { *error = w->error; return false; }
    assert(!w->array[0] && strlen(name) + strlen("/xxh64") < STATE_NAME_MAX);
    memcpy(w->array, name, strlen(name) + 1);
    w->in_model = !strcmp(name, STATE_SET_MODEL);
    w->piece = 0;
    w->done = 0;
    w->digests.clear();
    xxh64_init(&w->hash, 0);
    return w->in_model || state_write_section_begin(&w->state, name, FILE_F32, w->elements, error) ? true : state_set_write_fail(w, error);
}
// The next elements of the rank's pieces, in order; cut as the caller likes.
static inline bool state_set_append(StateSetWriter* w, const void* data, uint64_t elements, FileError* error) {
    if (w->failed) { *error = w->error; return false; }
    const size_t size = w->in_model ? w->element_bytes : sizeof(float);
    const char* from = (const char*)data;
    while (elements > 0) {
        assert(w->array[0] && w->piece < w->pieces.size());
        const StatePiece p = w->pieces[w->piece];
        const uint64_t n = std::min(elements, p.count - w->done);
        const uint64_t offset = MODEL_FILE_HEADER_BYTES + (p.first + w->done) * size;
        xxh64_update(&w->hash, from, n * size);
        bool ok = w->in_model ? shared_file_pwrite(&w->model, offset, from, n * size, error) : state_write_append(&w->state, from, n * size, error);
        if (!ok) { return state_set_write_fail(w, error); }
        from += n * size;
        elements -= n;
        w->done += n;
        if (w->done == p.count) {
            w->digests.push_back(xxh64_digest(&w->hash));
            xxh64_init(&w->hash, 0);
            w->piece++;
            w->done = 0;
        }
    }
    return true;
}
// All elements were appended; writes their digests.
static inline bool state_set_array_end(StateSetWriter* w, FileError* error) {
    if (w->failed) { *error = w->error; return false; }
    assert(w->array[0] && w->piece == w->pieces.size());
    char name[STATE_NAME_MAX + 8];
    snprintf(name, sizeof(name), "%s/xxh64", w->array);
    w->array[0] = 0;
    bool ok = w->in_model || state_write_section_end(&w->state, error);
    ok = ok && state_write_section(&w->state, name, FILE_U64, w->digests.size(), w->digests.data(), error);
    return ok ? true : state_set_write_fail(w, error);
}

// Every rank: all that it wrote is on the disk, and its state file has its name.
static inline bool state_set_write_end(StateSetWriter* w, FileError* error) {
    if (w->failed) { *error = w->error; return false; }
    assert(!w->array[0]);
    w->ended = true;  // what fails after the renaming is to be removed too
    return shared_file_sync(&w->model, error) && state_write_commit(&w->state, error) ? true : state_set_write_fail(w, error);
}
// Rank 0, after every rank ended: the model file gets its name.
static inline bool state_set_write_commit(StateSetWriter* w, FileError* error) {
    if (w->failed) { *error = w->error; return false; }
    assert(w->ended);
    w->committed = true;
    return shared_file_commit(&w->model, error) ? true : state_set_write_fail(w, error);
}

// ---------------------------------------------------------------------------- reading

typedef struct {
    uint64_t first, count;      // elements of the flat list
    uint64_t before;            // elements of the same file's arrays before it
    int rank;                   // whose file has it
    size_t number;              // among all pieces, file by file: where its digests are
} StateSetPiece;

typedef struct {
    char name[STATE_NAME_MAX];
    std::vector<uint64_t> offsets;  // in bytes, of the array in each rank's file (the model: of its first element in the model file)
    std::vector<uint64_t> digests;  // by StateSetPiece.number; version 1: empty until the array was checked as a whole
} StateSetArray;

typedef struct { int rank; InputFile file; } StateSetFile;

typedef struct {
    std::string folder;
    int step, num_ranks;
    uint64_t num_parameters;            // N
    StateReader first;                  // rank 0's file: header, config, sections of the run as a whole
    InputFile model;
    uint32_t model_dtype;               // FILE_F32 or FILE_BF16
    std::vector<StateSetPiece> pieces;  // ascending: they cover 0..N-1
    std::vector<StateSetArray> arrays;  // [0] is the model
    std::vector<StateSetFile> open;     // STATE_SET_OPEN_MAX at most
    size_t oldest;                      // of open: the next one to give way
    std::vector<unsigned char> cache;   // the last piece read
    size_t cached_array, cached_piece;  // SIZE_MAX: none
} StateSet;

static inline void state_set_close(StateSet* s) {
    state_read_close(&s->first);
    input_file_close(&s->model);
    for (StateSetFile& f : s->open) { input_file_close(&f.file); }
    s->open.clear();
    s->pieces.clear();
    s->arrays.clear();
    std::vector<unsigned char>().swap(s->cache);
}

static inline uint64_t state_set_element_bytes(const StateSet* s, size_t array) { return array == 0 ? file_dtype_bytes(s->model_dtype) : sizeof(float); }

// The state file of a rank, opened if it is not.
static inline bool state_set_file(StateSet* s, int rank, const InputFile** file, FileError* error) {
    for (StateSetFile& f : s->open) { if (f.rank == rank) { *file = &f.file; return true; } }
    char path[FILE_PATH_MAX];
    StateSetFile f;
    checkpoint_state_path(path, s->folder.c_str(), s->step, rank);
    if (!input_file_open(&f.file, path, error)) { return false; }
    f.rank = rank;
    size_t slot = s->open.size();
    if (slot < STATE_SET_OPEN_MAX) { s->open.push_back(f); }
    else {
        slot = s->oldest;
        s->oldest = (s->oldest + 1) % STATE_SET_OPEN_MAX;
        input_file_close(&s->open[slot].file);
        s->open[slot] = f;
    }
    *file = &s->open[slot].file;
    return true;
}

// A rank's state file, with its table.
static inline bool state_set_open_reader(const StateSet* s, int rank, StateReader* r, FileError* error) {
    char path[FILE_PATH_MAX];
    checkpoint_state_path(path, s->folder.c_str(), s->step, rank);
    if (state_read_open(r, path, error)) { return true; }
    if (error->code == ENOENT) { file_error(error, ENOENT, STATE_SET_HINT, "step %d has no state file of rank %d: '%s' is missing", s->step, rank, path); }
    return false;
}

// The pieces of one file, and that they are possible.
static inline bool state_set_open_pieces(StateSet* s, StateReader* r, std::vector<StatePiece>* pieces, FileError* error) {
    const StateSection* section = state_find(r, "pieces", error);
    if (!section) { return false; }
    if (section->count % 2 != 0) {
        return file_error(error, 0, STATE_SET_HINT, "'%s': section 'pieces' has %llu numbers, which are not pairs", r->file.path,
                          (unsigned long long)section->count);
    }
    pieces->resize(section->count / 2);
    if (!state_read_section(r, "pieces", FILE_U64, section->count, pieces->data(), error)) { return false; }
    uint64_t end = 0, N = s->num_parameters;
    for (size_t i = 0; i < pieces->size(); i++) {
        const StatePiece p = (*pieces)[i];
        if (p.count < 1 || p.count > STATE_PIECE_MAX || p.first < end || p.first > N || p.count > N - p.first) {
            return file_error(error, 0, STATE_SET_HINT, "'%s': piece %zu, %llu elements from %llu on, is impossible: 1 to %llu elements between %llu and %llu "
                              "are due", r->file.path, i, (unsigned long long)p.count, (unsigned long long)p.first, (unsigned long long)STATE_PIECE_MAX,
                              (unsigned long long)end, (unsigned long long)N);
        }
        end = p.first + p.count;
    }
    return true;
}

// One array of one file: its place, its digests, the zeros after it (no digest covers them).
static inline bool state_set_open_array(StateReader* r, StateSetArray* a, uint64_t elements, uint64_t num_pieces, FileError* error) {
    char name[STATE_NAME_MAX + 8];
    snprintf(name, sizeof(name), "%s/xxh64", a->name);
    const size_t before = a->digests.size();
    a->digests.resize(before + num_pieces);
    if (!state_read_section(r, name, FILE_U64, num_pieces, a->digests.data() + before, error)) { return false; }
    if (!strcmp(a->name, STATE_SET_MODEL)) { return true; }
    if (!state_read_section_begin(r, a->name, FILE_F32, elements, error)) { return false; }
    const StateSection* s = r->current;
    char zeros[STATE_FILE_ALIGN] = {0};
    const uint64_t n = ROUND_UP(s->bytes, (uint64_t)STATE_FILE_ALIGN) - s->bytes;
    if (!input_file_read_at(&r->file, s->offset + s->bytes, zeros, n, error)) { return false; }
    for (char z : zeros) {
        if (z) { return file_error(error, 0, STATE_SET_HINT, "'%s': section '%s' is damaged: the zeros after it are none", r->file.path, a->name); }
    }
    a->offsets.push_back(s->offset);
    return true;
}

// One rank's file: does it belong to the others, what has it.
static inline bool state_set_open_file(StateSet* s, StateReader* r, int rank, FileError* error) {
    const StateHeader *h = &r->header, *h0 = &s->first.header;
    if ((int)h->rank != rank || h->step != (uint64_t)s->step) {
        return file_error(error, 0, "give the file its name back, or copy it again", "'%s' was written by rank %u at step %llu, not by rank %d at step %d",
                          r->file.path, h->rank, (unsigned long long)h->step, rank, s->step);
    }
    if (h->version != h0->version || h->num_ranks != h0->num_ranks || h->num_parameters != h0->num_parameters || h->writing != h0->writing ||
        h->model_bytes != h0->model_bytes || h->model_xxh64 != h0->model_xxh64) {
        return file_error(error, 0, "files of two runs are mixed here: resume from an earlier checkpoint (remove the DONE file of this step)",
                          "'%s' does not belong to '%s': version %u, %u ranks, %llu parameters, writing %016llx, model of %llu bytes with header %016llx; there "
                          "%u, %u, %llu, %016llx, %llu, %016llx", r->file.path, s->first.file.path, h->version, h->num_ranks,
                          (unsigned long long)h->num_parameters, (unsigned long long)h->writing, (unsigned long long)h->model_bytes,
                          (unsigned long long)h->model_xxh64, h0->version, h0->num_ranks, (unsigned long long)h0->num_parameters,
                          (unsigned long long)h0->writing, (unsigned long long)h0->model_bytes, (unsigned long long)h0->model_xxh64);
    }
    std::vector<StatePiece> pieces;
    if (!state_set_open_pieces(s, r, &pieces, error)) { return false; }
    uint64_t elements = 0;
    for (const StatePiece& p : pieces) {
        s->pieces.push_back(StateSetPiece{p.first, p.count, elements, rank, s->pieces.size()});
        elements += p.count;
    }
    for (StateSetArray& a : s->arrays) { if (!state_set_open_array(r, &a, elements, pieces.size(), error)) { return false; } }
    return true;
}

// The pieces in order, each element once.
static inline bool state_set_check_cover(StateSet* s, FileError* error) {
    std::sort(s->pieces.begin(), s->pieces.end(), [](const StateSetPiece& a, const StateSetPiece& b) { return a.first < b.first; });
    uint64_t end = 0;
    char path[FILE_PATH_MAX], other[FILE_PATH_MAX];
    for (size_t i = 0; i <= s->pieces.size(); i++) {
        const uint64_t first = i < s->pieces.size() ? s->pieces[i].first : s->num_parameters;
        if (first > end) {
            checkpoint_state_path(path, s->folder.c_str(), s->step, 0);
            return file_error(error, 0, STATE_SET_HINT, "'%s' and the files of the %d other ranks: elements %llu to %llu of %llu are in none of them", path,
                              s->num_ranks - 1, (unsigned long long)end, (unsigned long long)first - 1, (unsigned long long)s->num_parameters);
        }
        if (i == s->pieces.size()) { break; }
        if (first < end) {
            checkpoint_state_path(path, s->folder.c_str(), s->step, s->pieces[i].rank);
            checkpoint_state_path(other, s->folder.c_str(), s->step, s->pieces[i - 1].rank);
            return file_error(error, 0, STATE_SET_HINT, "'%s' holds the elements from %llu on, which '%s' holds too, up to %llu: each is due once", path,
                              (unsigned long long)first, other, (unsigned long long)end - 1);
        }
        end = first + s->pieces[i].count;
    }
    return true;
}

// Version 1: one rank, whole arrays, no digests of pieces yet.
static inline bool state_set_open_whole(StateSet* s, FileError* error) {
    std::vector<StatePiece> pieces;
    state_pieces_add(&pieces, 0, s->num_parameters);
    for (const StatePiece& p : pieces) { s->pieces.push_back(StateSetPiece{p.first, p.count, p.first, 0, s->pieces.size()}); }
    for (StateSetArray& a : s->arrays) {
        if (!strcmp(a.name, STATE_SET_MODEL)) { continue; }
        if (!state_read_section_begin(&s->first, a.name, FILE_F32, s->num_parameters, error)) { return false; }
        a.offsets.push_back(s->first.current->offset);
    }
    return true;
}

// The model file: size, magic, and the digest of its header (version 1: of the whole, when it is read).
static inline bool state_set_open_model(StateSet* s, FileError* error) {
    char path[FILE_PATH_MAX];
    int32_t head[MODEL_FILE_HEADER_BYTES / 4] = {0};
    const StateHeader* h = &s->first.header;
    checkpoint_model_path(path, s->folder.c_str(), s->step);
    if (!input_file_open(&s->model, path, error)) {
        if (error->code == ENOENT) { file_error(error, ENOENT, STATE_SET_HINT, "step %d has no model file: '%s' is missing", s->step, path); }
        return false;
    }
    if (!input_file_read_at(&s->model, 0, head, std::min<uint64_t>(s->model.size, sizeof(head)), error)) { return false; }
    s->model_dtype = head[1] == 5 ? FILE_BF16 : FILE_F32;
    const uint64_t due = MODEL_FILE_HEADER_BYTES + s->num_parameters * file_dtype_bytes(s->model_dtype), digest = xxh64(head, sizeof(head), 0);
    if (head[0] != MODEL_FILE_MAGIC || (head[1] != 3 && head[1] != 5)) {
        return file_error(error, 0, STATE_SET_HINT, "'%s' is not a whole model file but %s (magic %d, version %d)", path,
                          file_describe((unsigned char*)head, std::min<uint64_t>(s->model.size, sizeof(head))), head[0], head[1]);
    }
    if (h->model_bytes != s->model.size || due != s->model.size) {
        return file_error(error, 0, STATE_SET_HINT, "the model file '%s' has %llu bytes; %llu are due for %llu parameters in %s, and %llu as '%s' says", path,
                          (unsigned long long)s->model.size, (unsigned long long)due, (unsigned long long)s->num_parameters, file_dtype_name(s->model_dtype),
                          (unsigned long long)h->model_bytes, s->first.file.path);
    }
    if (h->version == STATE_FILE_PIECES && digest != h->model_xxh64) {
        return file_error(error, 0, STATE_SET_HINT, "the model file '%s' is damaged or of another run: its header has checksum %016llx, '%s' says %016llx", path,
                          (unsigned long long)digest, s->first.file.path, (unsigned long long)h->model_xxh64);
    }
    s->arrays[0].offsets.assign((size_t)s->num_ranks, MODEL_FILE_HEADER_BYTES);
    return true;
}

static inline bool state_set_open_all(StateSet* s, FileError* error) {
    if (!state_set_open_reader(s, 0, &s->first, error)) { return false; }
    const StateHeader* h = &s->first.header;
    const bool whole = h->version == STATE_FILE_WHOLE;
    s->num_ranks = (int)h->num_ranks;
    s->arrays.push_back(StateSetArray{STATE_SET_MODEL, {}, {}});
    for (uint32_t i = 0; i < h->num_sections; i++) {
        const StateSection* section = &s->first.sections[i];
        const size_t n = strlen(section->name);
        StateSetArray a = {};
        if (whole && (!strcmp(section->name, "m") || !strcmp(section->name, "v") || !strcmp(section->name, "master"))) { memcpy(a.name, section->name, n); }
        if (!whole && n > 6 && !strcmp(section->name + n - 6, "/xxh64")) { memcpy(a.name, section->name, n - 6); }
        if (a.name[0] && strcmp(a.name, STATE_SET_MODEL) != 0) { s->arrays.push_back(a); }
    }
    uint64_t N = h->num_parameters;
    if (whole) {
        const StateSection* m = state_find(&s->first, "m", error);
        if (!m) { return false; }
        N = m->count;
        if (h->num_ranks != 1) {
            return file_error(error, 0, STATE_SET_HINT, "'%s' has version 1, which one rank writes, and says %u ranks", s->first.file.path, h->num_ranks);
        }
    }
    if (N < 1 || N > UINT64_MAX / 16 || (s->num_parameters && N != s->num_parameters)) {
        return file_error(error, 0, "give the model that the run trained", "'%s' belongs to a model of %llu parameters, not %llu", s->first.file.path,
                          (unsigned long long)N, (unsigned long long)s->num_parameters);
    }
    s->num_parameters = N;
    if (whole) { if (!state_set_open_whole(s, error)) { return false; } }
    else {
        if (!state_set_open_file(s, &s->first, 0, error)) { return false; }
        for (int rank = 1; rank < s->num_ranks; rank++) {
            StateReader r;
            if (!state_set_open_reader(s, rank, &r, error)) { return false; }
            bool ok = state_set_open_file(s, &r, rank, error);
            state_read_close(&r);
            if (!ok) { return false; }
        }
        if (!state_set_check_cover(s, error)) { return false; }
    }
    return state_set_open_model(s, error);
}

// Opens all files of a step and checks all that can be checked without reading the arrays: that they belong together, and that nothing is missing or there
// twice. num_parameters: what the model has, 0: whatever it is. On failure nothing is left open.
static inline bool state_set_open(StateSet* s, const char* folder, int step, uint64_t num_parameters, FileError* error) {
    *s = StateSet{};
    s->folder = folder;
    s->step = step;
    s->num_parameters = num_parameters;
    s->first.file.fd = s->model.fd = -1;
    s->cached_array = s->cached_piece = SIZE_MAX;
    if (state_set_open_all(s, error)) { return true; }
    state_set_close(s);
    return false;
}

// The number of an array, SIZE_MAX and an error if there is none of this name.
static inline size_t state_set_find(const StateSet* s, const char* name, FileError* error) {
    std::string list;
    for (size_t i = 0; i < s->arrays.size(); i++) {
        if (!strcmp(s->arrays[i].name, name)) { return i; }
        list += (i ? ", " : "") + std::string(s->arrays[i].name);
    }
    file_error(error, 0, "it was written by another version or with other options", "'%s' has no array '%s'; it has: %s", s->first.file.path, name, list.c_str());
    return SIZE_MAX;
}
static inline bool state_set_has(const StateSet* s, const char* name) {
    FileError none;
    return state_set_find(s, name, &none) != SIZE_MAX;
}

// Reads a piece of an array into the cache; *file: whose it is. Without its digest.
static inline bool state_set_read_piece(StateSet* s, size_t array, size_t piece, const InputFile** file, uint64_t* offset, uint64_t* bytes, FileError* error) {
    const StateSetPiece& p = s->pieces[piece];
    const uint64_t size = state_set_element_bytes(s, array);
    s->cached_array = s->cached_piece = SIZE_MAX;
    *file = &s->model;
    *offset = s->arrays[array].offsets[(size_t)p.rank] + (array == 0 ? p.first : p.before) * size;
    *bytes = p.count * size;
    if (array > 0 && !state_set_file(s, p.rank, file, error)) { return false; }
    if (s->cache.size() < *bytes) { s->cache.resize(*bytes); }
    return input_file_read_at(*file, *offset, s->cache.data(), *bytes, error);
}

// Version 1: reads an array as a whole, compares its one checksum, and notes the digests of what will count as its pieces.
static inline bool state_set_check_whole(StateSet* s, size_t array, FileError* error) {
    StateSetArray* a = &s->arrays[array];
    const InputFile* file = NULL;
    uint64_t offset, bytes, due;
    std::vector<uint64_t> digests;
    Xxh64 hash;
    char edge[MODEL_FILE_HEADER_BYTES];  // before the model's elements its header, after a section's its zeros
    xxh64_init(&hash, 0);
    if (array == 0) {
        if (!input_file_read_at(&s->model, 0, edge, sizeof(edge), error)) { return false; }
        xxh64_update(&hash, edge, sizeof(edge));
    }
    for (size_t i = 0; i < s->pieces.size(); i++) {
        if (!state_set_read_piece(s, array, i, &file, &offset, &bytes, error)) { return false; }
        xxh64_update(&hash, s->cache.data(), bytes);
        digests.push_back(xxh64(s->cache.data(), bytes, 0));
    }
    if (array == 0) { due = s->first.header.model_xxh64; }
    else {
        const StateSection* section = state_find(&s->first, a->name, error);
        const uint64_t n = ROUND_UP(section->bytes, (uint64_t)STATE_FILE_ALIGN) - section->bytes;
        if (!input_file_read_at(file, section->offset + section->bytes, edge, n, error)) { return false; }
        xxh64_update(&hash, edge, n);
        due = section->xxh64;
    }
    if (xxh64_digest(&hash) != due) {
        return file_error(error, 0, STATE_SET_HINT, "'%s': %s is damaged: checksum %016llx, should be %016llx", file->path, array == 0 ? "the model" : a->name,
                          (unsigned long long)xxh64_digest(&hash), (unsigned long long)due);
    }
    a->digests = digests;
    return true;
}

// A piece of an array, in the cache, with the right digest.
static inline bool state_set_load(StateSet* s, size_t array, size_t piece, FileError* error) {
    if (s->cached_array == array && s->cached_piece == piece) { return true; }
    StateSetArray* a = &s->arrays[array];
    const StateSetPiece& p = s->pieces[piece];
    const InputFile* file;
    uint64_t offset, bytes;
    if (a->digests.empty() && !state_set_check_whole(s, array, error)) { return false; }
    if (!state_set_read_piece(s, array, piece, &file, &offset, &bytes, error)) { return false; }
    const uint64_t found = xxh64(s->cache.data(), bytes, 0), due = a->digests[p.number];
    if (found != due) {
        return file_error(error, 0, STATE_SET_HINT, "'%s': elements %llu to %llu of '%s' (%llu bytes at %llu) are damaged: checksum %016llx, should be %016llx",
                          file->path, (unsigned long long)p.first, (unsigned long long)(p.first + p.count - 1), a->name, (unsigned long long)bytes,
                          (unsigned long long)offset, (unsigned long long)found, (unsigned long long)due);
    }
    s->cached_array = array;
    s->cached_piece = piece;
    return true;
}

static inline bool state_set_read_array(StateSet* s, size_t array, uint64_t first, uint64_t count, void* out, FileError* error) {
    assert(first <= s->num_parameters && count <= s->num_parameters - first);
    const uint64_t size = state_set_element_bytes(s, array);
    auto after = std::upper_bound(s->pieces.begin(), s->pieces.end(), first, [](uint64_t x, const StateSetPiece& p) { return x < p.first; });
    char* to = (char*)out;
    for (size_t i = (size_t)(after - s->pieces.begin()) - 1; count > 0; i++) {
        const StateSetPiece& p = s->pieces[i];
        const uint64_t n = std::min(count, p.first + p.count - first);
        if (!state_set_load(s, array, i, error)) { return false; }
        memcpy(to, s->cache.data() + (first - p.first) * size, n * size);
        to += n * size;
        first += n;
        count -= n;
    }
    return true;
}

// Elements first..first+count-1 of an array, from whatever files they are in. Ascending ranges of one array after the other cost one pass over the files.
// What was read before a false came back is not to be used.
static inline bool state_set_read(StateSet* s, const char* name, uint64_t first, uint64_t count, float* out, FileError* error) {
    const size_t array = state_set_find(s, name, error);
    return array != SIZE_MAX && state_set_read_array(s, array, first, count, out, error);
}
// The same of the model, in its own dtype (s->model_dtype).
static inline bool state_set_read_model(StateSet* s, uint64_t first, uint64_t count, void* out, FileError* error) {
    return state_set_read_array(s, 0, first, count, out, error);
}

// Reads a share of all that the files hold and throws it away: if it is true for every part of 0..parts-1, each byte is good.
static inline bool state_set_verify(StateSet* s, int part, int parts, FileError* error) {
    for (size_t a = 0; a < s->arrays.size(); a++) {
        for (size_t i = (size_t)part; i < s->pieces.size(); i += (size_t)parts) { if (!state_set_load(s, a, i, error)) { return false; } }
    }
    for (int rank = part; rank < s->num_ranks; rank += parts) {  // what is in no piece
        StateReader r;
        if (!state_set_open_reader(s, rank, &r, error)) { return false; }
        bool ok = true;
        for (uint32_t i = 0; ok && i < r.header.num_sections; i++) {
            if (!state_set_has(s, r.sections[i].name)) { ok = state_read_check(&r, &r.sections[i], error); }
        }
        state_read_close(&r);
        if (!ok) { return false; }
    }
    return true;
}

#endif
