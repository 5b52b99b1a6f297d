/* formats.h - what is in our files, byte by byte: model files (llm.c's v3/v5) and our state file
 *
 * What:      model_file_* read a model in llm.c's format. state_write_* / state_read_*: named, typed, checksummed sections, streamed, since
 *            moments come from the device in pieces. Token shards are in dataloader.h, the tokenizer's file in tokenizer.h.
 * Errors:    as in files.h: true, or false and a FileError. A file is refused with the value that is wrong and where; nothing is guessed.
 * Memory:    a reader holds the state's table and configuration; payloads pass through the caller's buffers, of any size.
 * Endian:    all numbers little-endian (asserted in xxh64.h). Sizes and offsets are 64 bits.
 * Tests:     dev/test/test_formats.cu  */
#ifndef LLMC_FORMATS_H
#define LLMC_FORMATS_H

#include "llmc/files.h"
#include "llmc/xxh64.h"

// ----------------------------------------------------------------------------
// element types in files. The numbers are part of the state format: never change one.

enum FileDtype { FILE_NONE = 0, FILE_F32 = 1, FILE_BF16 = 2, FILE_E4M3 = 3, FILE_E5M2 = 4, FILE_U8 = 5, FILE_I32 = 6, FILE_U32 = 7, FILE_I64 = 8,
                FILE_U64 = 9, FILE_F64 = 10, FILE_E8M0 = 11 };

static inline size_t file_dtype_bytes(uint32_t dtype) {  // 0: no such type
    static const unsigned char bytes[] = {0, 4, 2, 1, 1, 1, 4, 4, 8, 8, 8, 1};
    return dtype < sizeof(bytes) ? bytes[dtype] : 0;
}
static inline const char* file_dtype_name(uint32_t dtype) {
    static const char* const names[] = {"none", "float32", "bfloat16", "float8_e4m3", "float8_e5m2", "uint8", "int32", "uint32", "int64", "uint64",
                                        "float64", "float8_e8m0"};
    return dtype < sizeof(names) / sizeof(names[0]) ? names[dtype] : "unknown";
}

// ----------------------------------------------------------------------------
// Model file (llm.c): a header of 256 int32, then all parameters without padding. What is not listed is written 0 and ignored when read.
//
//   OFFSET  SIZE  TYPE  MEANING
//   0       4     i32   magic 20240326
//   4       4     i32   version: 3 = all tensors float32, 5 = all tensors bfloat16; both with the vocabulary padded
//   8       4     i32   max_seq_len maxT
//   12      4     i32   vocab_size V
//   16      4     i32   num_layers L
//   20      4     i32   num_heads NH
//   24      4     i32   channels C
//   28      4     i32   padded_vocab_size Vp
//   32      992   -     zero
//   1024    N*4 or N*2  the tensors of PARAM_TABLE in its order, row-major; matrices are (out, in); rows V..Vp-1 of wte are zero
//
// History: 1 = float32, vocabulary not padded; 2 = bfloat16, not padded; 4 = bfloat16, padded, LayerNorm in float32. None of them is read.

#define MODEL_FILE_MAGIC 20240326
#define MODEL_FILE_HEADER_BYTES 1024

typedef struct { int max_seq_len, vocab_size, padded_vocab_size, num_layers, num_heads, channels; } ModelHeader;

// How many parameters a model of these dimensions has: the caller's, who owns the one list of tensors.
typedef uint64_t (*ModelCount)(const ModelHeader* header);

// The limits keep every product below 2^63 (L*12*C*C < 2^48) and leave an order of magnitude above GPT-3.
static inline bool model_header_check(const ModelHeader* h, const char* path, FileError* error) {
    const struct { const char* name; int value, max; } fields[] = {
        {"max_seq_len", h->max_seq_len, 1 << 20}, {"vocab_size", h->vocab_size, 1 << 24}, {"padded_vocab_size", h->padded_vocab_size, 1 << 24},
        {"num_layers", h->num_layers, 4096}, {"num_heads", h->num_heads, 65536}, {"channels", h->channels, 65536}};
    const char* hint = "the file is damaged, or not a GPT-2 model: copy or export it again";
    for (auto& f : fields) {
        if (f.value < 1 || f.value > f.max) {
            return file_error(error, 0, hint, "'%s': %s is %d, which is outside 1 to %d", path, f.name, f.value, f.max);
        }
    }
    if (h->padded_vocab_size < h->vocab_size) {
        return file_error(error, 0, hint, "'%s': padded_vocab_size %d is less than vocab_size %d", path, h->padded_vocab_size, h->vocab_size);
    }
    if (h->channels % h->num_heads != 0) {
        return file_error(error, 0, hint, "'%s': %d channels cannot be divided among %d heads", path, h->channels, h->num_heads);
    }
    return true;
}

typedef struct {
    InputFile file;
    ModelHeader header;
    uint32_t dtype;             // FILE_F32 or FILE_BF16
    uint64_t num_parameters;
    uint64_t elements_read;
} ModelFile;

static inline void model_file_close(ModelFile* m) { input_file_close(&m->file); }

static inline bool model_file_parse(ModelFile* m, ModelCount count, FileError* error) {
    int32_t h[MODEL_FILE_HEADER_BYTES / 4];
    const char* path = m->file.path;
    memset(h, 0, sizeof(h));
    uint64_t head = m->file.size < sizeof(h) ? m->file.size : sizeof(h);
    if (!input_file_read(&m->file, h, head, error)) { return false; }
    if (head < 4 || h[0] != MODEL_FILE_MAGIC) {
        return file_error(error, 0, "give a model .bin in llm.c's format (magic 20240326)", "'%s' is not a model file but %s", path,
                          file_describe((unsigned char*)h, head));
    }
    if (head < sizeof(h)) {
        return file_error(error, 0, "copy or export it again", "'%s' has %llu bytes: not even its header of %zu is whole", path,
                          (unsigned long long)head, sizeof(h));
    }
    if (h[1] != 3 && h[1] != 5) {
        const char* was = h[1] == 1 ? " (float32, vocabulary not padded)" : h[1] == 2 ? " (bfloat16, vocabulary not padded)" :
                          h[1] == 4 ? " (bfloat16 with LayerNorm in float32)" : "";
        return file_error(error, 0, "export it again with llm.c's train_gpt2.py of June 2024 or later",
                          "'%s' has version %d%s; 3 (float32) and 5 (bfloat16) can be read", path, h[1], was);
    }
    m->dtype = h[1] == 3 ? FILE_F32 : FILE_BF16;
    m->header = {h[2], h[3], h[7], h[4], h[5], h[6]};
    if (!model_header_check(&m->header, path, error)) { return false; }
    m->num_parameters = count(&m->header);
    uint64_t due = MODEL_FILE_HEADER_BYTES + m->num_parameters * file_dtype_bytes(m->dtype);
    if (m->file.size != due) {
        return file_error(error, 0, "copy or export it again", "'%s' has %llu bytes, %llu too %s: its header says %llu parameters in %s, %llu bytes", path,
                          (unsigned long long)m->file.size, (unsigned long long)(m->file.size < due ? due - m->file.size : m->file.size - due),
                          m->file.size < due ? "few" : "many", (unsigned long long)m->num_parameters, file_dtype_name(m->dtype), (unsigned long long)due);
    }
    return true;
}

// Opens, checks header and size, stands at the first parameter. On failure nothing is left open.
static inline bool model_file_open(ModelFile* m, const char* path, ModelCount count, FileError* error) {
    memset(m, 0, sizeof(*m));
    if (!input_file_open(&m->file, path, error)) { return false; }
    if (model_file_parse(m, count, error)) { return true; }
    model_file_close(m);
    return false;
}

// The next elements, in the file's dtype.
static inline bool model_file_read(ModelFile* m, void* data, uint64_t elements, FileError* error) {
    assert(m->elements_read + elements <= m->num_parameters);
    m->elements_read += elements;
    return input_file_read(&m->file, data, elements * file_dtype_bytes(m->dtype), error);
}

// Only what the header says (memory planning, `doctor`, listings).
static inline bool model_file_read_header(const char* path, ModelCount count, ModelHeader* header, uint32_t* dtype, uint64_t* num_parameters,
                                          FileError* error) {
    ModelFile m;
    if (!model_file_open(&m, path, count, error)) { return false; }
    *header = m.header;
    *dtype = m.dtype;
    *num_parameters = m.num_parameters;
    model_file_close(&m);
    return true;
}

// The header as it is in the file. A model is written by state_set.h.
static inline void model_header_pack(int32_t head[MODEL_FILE_HEADER_BYTES / 4], const ModelHeader* h, uint32_t dtype) {
    assert(dtype == FILE_F32 || dtype == FILE_BF16);
    const int32_t fields[] = {MODEL_FILE_MAGIC, dtype == FILE_F32 ? 3 : 5, h->max_seq_len, h->vocab_size, h->num_layers, h->num_heads, h->channels,
                              h->padded_vocab_size};
    memset(head, 0, MODEL_FILE_HEADER_BYTES);
    memcpy(head, fields, sizeof(fields));
}

// ----------------------------------------------------------------------------
// State file (ours): all that a run needs besides the model to go on bit for bit. Sections in any number and order; every byte is covered by a checksum.
//
//   OFFSET  SIZE  TYPE  MEANING
//   0       4     u32   magic 0x38504647, the bytes "GFP8"
//   4       4     u32   version: 1 = whole arrays, written by one rank; 2 = pieces of the arrays, by any number of ranks (state_set.h)
//   8       4     u32   byte order: 0x01020304
//   12      4     u32   header bytes: 128
//   16      8     u64   step: completed updates, so the 0-based index of the next one
//   24      4     u32   rank that wrote it
//   28      4     u32   number of ranks, 1 to 2^20
//   32      8     u64   bytes of the whole file
//   40      8     u64   offset of the table
//   48      4     u32   number of sections S, 0 to 4096
//   52      4     u32   bytes of the configuration text, 0 to 2^20
//   56      8     u64   bytes of the model file of the same step, 0 = none
//   64      8     u64   version 1: XXH64 of that model file; version 2: of its header of 1024 bytes (the rest has digests piece by piece)
//   72      8     u64   version 2: number of parameters of the model, else 0
//   80      8     u64   version 2: the number of this writing: the same in the files of all ranks, another in another writing; else 0
//   88      40    -     zero
//   128     ..    text  the resolved configuration, then zeros up to a multiple of 64
//   ..      ..    -     the sections, each at a multiple of 64, in the table's order, without gaps but the zeros up to the next multiple of 64
//   table   96*S  -     one entry a section:
//             +0   48  text  name, of a-z 0-9 _ . - / and padded with zeros; unique
//             +48  4   u32   element type: enum FileDtype
//             +52  4   -     zero
//             +56  8   u64   number of elements
//             +64  8   u64   offset in the file
//             +72  8   u64   bytes: elements * size of the type
//             +80  8   u64   XXH64 (seed 0) of the section's bytes and the zeros that follow them
//             +88  8   -     zero
//   end-8   8     u64   XXH64 (seed 0) of header, configuration, zeros and table: all bytes that are in no section
//
// History: 1 = until many ranks wrote. A reader refuses any later version: a state is only good with a program that says it can read it.

#define STATE_FILE_MAGIC 0x38504647u
#define STATE_FILE_WHOLE 1u     // the versions
#define STATE_FILE_PIECES 2u
#define STATE_FILE_ORDER 0x01020304u
#define STATE_FILE_ALIGN 64u
#define STATE_FILE_MAX_SECTIONS 4096u
#define STATE_FILE_MAX_CONFIG (1u << 20)
#define STATE_FILE_MAX_RANKS (1u << 20)
#define STATE_NAME_MAX 48

typedef struct {
    uint32_t magic, version, byte_order, header_bytes;
    uint64_t step;
    uint32_t rank, num_ranks;
    uint64_t total_bytes, table_offset;
    uint32_t num_sections, config_bytes;
    uint64_t model_bytes, model_xxh64;
    uint64_t num_parameters, writing;
    uint64_t zero[5];
} StateHeader;

typedef struct {
    char name[STATE_NAME_MAX];
    uint32_t dtype, zero;
    uint64_t count, offset, bytes, xxh64, zero2;
} StateSection;

static_assert(sizeof(StateHeader) == 128 && offsetof(StateHeader, total_bytes) == 32 && offsetof(StateHeader, writing) == 80,
              "the layout is the file's");
static_assert(sizeof(StateSection) == 96 && offsetof(StateSection, count) == 56 && offsetof(StateSection, xxh64) == 80, "the layout is the file's");

static inline bool state_name_ok(const char name[STATE_NAME_MAX]) {
    size_t n = strnlen(name, STATE_NAME_MAX);
    if (n == 0 || n == STATE_NAME_MAX || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-/") != n) { return false; }
    for (; n < STATE_NAME_MAX; n++) { if (name[n]) { return false; } }
    return true;
}

// ---- writing: state_write_begin, then for each section begin, append..., end; then commit. One state_write_* call failing makes the rest fail.

typedef struct {
    AtomicFile file;
    StateHeader header;
    char* config;
    StateSection* sections;     // header.num_sections of them
    Xxh64 section_hash;
    bool in_section;
} StateWriter;

static inline void state_write_abort(StateWriter* w) {
    atomic_file_abort(&w->file);
    free(w->config);
    free(w->sections);
    w->config = NULL;
    w->sections = NULL;
}

static inline bool state_write_zeros(StateWriter* w, FileError* error) {
    static const char zeros[STATE_FILE_ALIGN] = {0};
    uint64_t n = ROUND_UP(w->file.bytes, STATE_FILE_ALIGN) - w->file.bytes;
    xxh64_update(&w->section_hash, zeros, n);
    return atomic_file_write(&w->file, zeros, n, error);
}

// expected_bytes: the payload of all sections, for the check of free space (0: unknown). config: text, may be "".
static inline bool state_write_begin(StateWriter* w, const char* path, uint64_t step, int rank, int num_ranks, const char* config,
                                     uint64_t expected_bytes, FileError* error) {
    memset(w, 0, sizeof(*w));
    size_t config_bytes = strlen(config);
    assert(config_bytes <= STATE_FILE_MAX_CONFIG && rank >= 0 && rank < num_ranks);
    if (!atomic_file_open(&w->file, path, expected_bytes, error)) { return false; }
    w->header.magic = STATE_FILE_MAGIC;
    w->header.version = STATE_FILE_PIECES;
    w->header.byte_order = STATE_FILE_ORDER;
    w->header.header_bytes = sizeof(StateHeader);
    w->header.step = step;
    w->header.rank = (uint32_t)rank;
    w->header.num_ranks = (uint32_t)num_ranks;
    w->header.config_bytes = (uint32_t)config_bytes;
    w->config = (char*)mallocCheck(config_bytes);
    memcpy(w->config, config, config_bytes);
    w->sections = (StateSection*)mallocCheck(STATE_FILE_MAX_SECTIONS * sizeof(StateSection));
    return atomic_file_write(&w->file, &w->header, sizeof(w->header), error) && atomic_file_write(&w->file, config, config_bytes, error) &&
        state_write_zeros(w, error);
}

static inline bool state_write_section_begin(StateWriter* w, const char* name, uint32_t dtype, uint64_t count, FileError* error) {
    if (w->file.failed) { *error = w->file.error; return false; }
    assert(!w->in_section && file_dtype_bytes(dtype) && w->header.num_sections < STATE_FILE_MAX_SECTIONS && strlen(name) < STATE_NAME_MAX);
    for (uint32_t i = 0; i < w->header.num_sections; i++) { assert(strcmp(w->sections[i].name, name) != 0); }
    StateSection* s = &w->sections[w->header.num_sections++];
    memset(s, 0, sizeof(*s));
    memcpy(s->name, name, strlen(name));
    assert(state_name_ok(s->name));
    s->dtype = dtype;
    s->count = count;
    s->bytes = count * file_dtype_bytes(dtype);
    s->offset = w->file.bytes;
    xxh64_init(&w->section_hash, 0);
    w->in_section = true;
    return true;
}
static inline bool state_write_append(StateWriter* w, const void* data, uint64_t bytes, FileError* error) {
    if (w->file.failed) { *error = w->file.error; return false; }
    if (bytes == 0) { return true; }
    assert(w->in_section);
    xxh64_update(&w->section_hash, data, bytes);
    return atomic_file_write(&w->file, data, bytes, error);
}
static inline bool state_write_section_end(StateWriter* w, FileError* error) {
    if (w->file.failed) { *error = w->file.error; return false; }
    StateSection* s = &w->sections[w->header.num_sections - 1];
    assert(w->in_section && w->file.bytes == s->offset + s->bytes);  // exactly the promised bytes were appended
    w->in_section = false;
    if (!state_write_zeros(w, error)) { return false; }
    s->xxh64 = xxh64_digest(&w->section_hash);
    return true;
}
// A whole section from host memory.
static inline bool state_write_section(StateWriter* w, const char* name, uint32_t dtype, uint64_t count, const void* data, FileError* error) {
    return state_write_section_begin(w, name, dtype, count, error) && state_write_append(w, data, count * file_dtype_bytes(dtype), error) &&
        state_write_section_end(w, error);
}

// Checksum of all bytes outside the sections.
static inline uint64_t state_table_digest(const StateHeader* h, const char* config, const StateSection* sections) {
    static const char zeros[STATE_FILE_ALIGN] = {0};
    Xxh64 hash;
    xxh64_init(&hash, 0);
    xxh64_update(&hash, h, sizeof(*h));
    xxh64_update(&hash, config, h->config_bytes);
    xxh64_update(&hash, zeros, ROUND_UP(h->config_bytes, STATE_FILE_ALIGN) - h->config_bytes);
    xxh64_update(&hash, sections, h->num_sections * sizeof(StateSection));
    return xxh64_digest(&hash);
}

// Table, checksum, header, fsync, rename. The writer is freed, whatever comes of it.
static inline bool state_write_commit(StateWriter* w, FileError* error) {
    bool ok = false;
    if (w->file.failed) { *error = w->file.error; }
    else {
        assert(!w->in_section);
        w->header.table_offset = w->file.bytes;
        w->header.total_bytes = w->file.bytes + w->header.num_sections * sizeof(StateSection) + sizeof(uint64_t);
        uint64_t digest = state_table_digest(&w->header, w->config, w->sections);
        ok = atomic_file_write(&w->file, w->sections, w->header.num_sections * sizeof(StateSection), error) &&
             atomic_file_write(&w->file, &digest, sizeof(digest), error) && atomic_file_patch(&w->file, 0, &w->header, sizeof(w->header), error) &&
             atomic_file_commit(&w->file, error);
    }
    state_write_abort(w);  // frees; a committed file is closed already
    return ok;
}

// ---- reading

typedef struct {
    InputFile file;
    StateHeader header;
    char* config;               // header.config_bytes of text and a 0
    StateSection* sections;
    const StateSection* current;
    uint64_t current_read;
    Xxh64 section_hash;
} StateReader;

static inline void state_read_close(StateReader* r) {
    input_file_close(&r->file);
    free(r->config);
    free(r->sections);
    r->config = NULL;
    r->sections = NULL;
}

static inline bool state_read_parse(StateReader* r, FileError* error) {
    StateHeader* h = &r->header;
    const char* path = r->file.path;
    const char* hint = "resume from an earlier checkpoint (remove the DONE file of this step), or copy the file again";
    uint64_t head = r->file.size < sizeof(*h) ? r->file.size : sizeof(*h);
    if (!input_file_read_at(&r->file, 0, h, head, error)) { return false; }
    if (head < 4 || h->magic != STATE_FILE_MAGIC) {
        int llmc = head >= 4 && h->magic == 20240527;
        const char* other = "this reader takes states of this program only; start from the model file of that step (-e model_....bin)";
        return file_error(error, 0, llmc ? other : hint, "'%s' is not a state file of this program but %s", path, file_describe((unsigned char*)h, head));
    }
    if (head < sizeof(*h)) {
        return file_error(error, 0, hint, "'%s' has %llu bytes: not even its header of %zu is whole", path, (unsigned long long)head, sizeof(*h));
    }
    if (h->version != STATE_FILE_WHOLE && h->version != STATE_FILE_PIECES) {
        return file_error(error, 0, "resume with the program that wrote it, or start from the model file of that step",
                          "'%s' has version %u; this program reads versions %u and %u", path, h->version, STATE_FILE_WHOLE, STATE_FILE_PIECES);
    }
    if (h->byte_order != STATE_FILE_ORDER || h->header_bytes != sizeof(*h)) {
        return file_error(error, 0, hint, "'%s': byte order mark %08x (should be %08x), header of %u bytes (should be %zu)", path, h->byte_order,
                          STATE_FILE_ORDER, h->header_bytes, sizeof(*h));
    }
    if (h->total_bytes != r->file.size) {
        return file_error(error, 0, hint, "'%s' has %llu bytes, its header says %llu: it was %s", path, (unsigned long long)r->file.size,
                          (unsigned long long)h->total_bytes, r->file.size < h->total_bytes ? "cut" : "extended or damaged");
    }
    uint64_t table_bytes = h->num_sections * (uint64_t)sizeof(StateSection), payload = sizeof(*h) + ROUND_UP((uint64_t)h->config_bytes, STATE_FILE_ALIGN);
    if (h->num_sections > STATE_FILE_MAX_SECTIONS || h->config_bytes > STATE_FILE_MAX_CONFIG || h->table_offset < payload ||
        h->table_offset > h->total_bytes || h->total_bytes - h->table_offset != table_bytes + 8 || h->num_ranks > STATE_FILE_MAX_RANKS || h->rank >= h->num_ranks) {
        return file_error(error, 0, hint, "'%s': damaged header: %u sections, %u bytes of configuration, table at %llu of %llu bytes, rank %u of %u",
                          path, h->num_sections, h->config_bytes, (unsigned long long)h->table_offset, (unsigned long long)h->total_bytes, h->rank, h->num_ranks);
    }
    uint64_t digest = 0, text_bytes = payload - sizeof(*h);
    r->config = (char*)mallocCheck(text_bytes + 1);
    r->sections = (StateSection*)mallocCheck(table_bytes);
    if (!input_file_read_at(&r->file, sizeof(*h), r->config, text_bytes, error) ||
        !input_file_read_at(&r->file, h->table_offset, r->sections, table_bytes, error) ||
        !input_file_read_at(&r->file, h->total_bytes - 8, &digest, 8, error)) { return false; }
    bool zeros = true;
    for (uint64_t i = h->config_bytes; i < text_bytes; i++) { zeros = zeros && r->config[i] == 0; }
    r->config[h->config_bytes] = 0;
    uint64_t found = state_table_digest(h, r->config, r->sections);
    if (!zeros || found != digest) {
        return file_error(error, 0, hint, "'%s': header, configuration or table are damaged (checksum %016llx, should be %016llx)", path,
                          (unsigned long long)found, (unsigned long long)digest);
    }
    uint64_t at = payload;  // a good checksum over a bad table would be our own bug; still nothing may be read out of bounds
    for (uint32_t i = 0; i < h->num_sections; i++) {
        const StateSection* s = &r->sections[i];
        size_t size = file_dtype_bytes(s->dtype);
        if (!state_name_ok(s->name) || !size || s->count > UINT64_MAX / size || s->bytes != s->count * size || s->offset != at ||
            s->bytes > h->table_offset - at) {
            return file_error(error, 0, hint, "'%s': entry %u of the table ('%.47s', type %u, %llu elements, %llu bytes at %llu) is impossible", path,
                              i, s->name, s->dtype, (unsigned long long)s->count, (unsigned long long)s->bytes, (unsigned long long)s->offset);
        }
        at += ROUND_UP(s->bytes, (uint64_t)STATE_FILE_ALIGN);
    }
    if (at != h->table_offset) {
        return file_error(error, 0, hint, "'%s': %llu bytes between the sections and the table", path, (unsigned long long)(h->table_offset - at));
    }
    return true;
}

// Opens and checks all that can be checked without reading the payload. On failure nothing is left open.
static inline bool state_read_open(StateReader* r, const char* path, FileError* error) {
    memset(r, 0, sizeof(*r));
    if (!input_file_open(&r->file, path, error)) { return false; }
    if (state_read_parse(r, error)) { return true; }
    state_read_close(r);
    return false;
}

// NULL and an error that lists what there is, if there is no such section.
static inline const StateSection* state_find(const StateReader* r, const char* name, FileError* error) {
    char list[1024] = "";
    for (uint32_t i = 0; i < r->header.num_sections; i++) {
        if (!strcmp(r->sections[i].name, name)) { return &r->sections[i]; }
        size_t used = strlen(list);
        if (used < sizeof(list) - STATE_NAME_MAX - 8) { snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", r->sections[i].name); }
        else if (list[used - 1] != '.') { snprintf(list + used, sizeof(list) - used, ", ..."); }
    }
    file_error(error, 0, "it was written by another version or with other options", "'%s' has no section '%s'; it has: %s", r->file.path, name,
               list[0] ? list : "none");
    return NULL;
}

// Begins to read a section that must have this type and this number of elements.
static inline bool state_read_section_begin(StateReader* r, const char* name, uint32_t dtype, uint64_t count, FileError* error) {
    const StateSection* s = state_find(r, name, error);
    if (!s) { return false; }
    if (s->dtype != dtype || s->count != count) {
        return file_error(error, 0, "resume with the same model, precision and number of ranks",
                          "'%s': section '%s' holds %llu x %s; %llu x %s are wanted", r->file.path, name,
                          (unsigned long long)s->count, file_dtype_name(s->dtype), (unsigned long long)count, file_dtype_name(dtype));
    }
    r->current = s;
    r->current_read = 0;
    xxh64_init(&r->section_hash, 0);
    return true;
}
static inline bool state_read_next(StateReader* r, void* data, uint64_t bytes, FileError* error) {
    assert(r->current && r->current_read + bytes <= r->current->bytes);
    if (bytes == 0) { return true; }
    if (!input_file_read_at(&r->file, r->current->offset + r->current_read, data, bytes, error)) { return false; }
    xxh64_update(&r->section_hash, data, bytes);
    r->current_read += bytes;
    return true;
}
// All bytes must have been read; verifies them. What was read before a false came back is not to be used.
static inline bool state_read_section_end(StateReader* r, FileError* error) {
    const StateSection* s = r->current;
    assert(s && r->current_read == s->bytes);
    r->current = NULL;
    char zeros[STATE_FILE_ALIGN];
    uint64_t n = ROUND_UP(s->bytes, (uint64_t)STATE_FILE_ALIGN) - s->bytes;
    if (n > 0 && !input_file_read_at(&r->file, s->offset + s->bytes, zeros, n, error)) { return false; }
    xxh64_update(&r->section_hash, zeros, n);
    uint64_t found = xxh64_digest(&r->section_hash);
    if (found != s->xxh64) {
        return file_error(error, 0, "resume from an earlier checkpoint (remove the DONE file of this step), or copy the file again",
                          "'%s': section '%s' (%llu bytes at %llu) is damaged: checksum %016llx, should be %016llx", r->file.path, s->name,
                          (unsigned long long)s->bytes, (unsigned long long)s->offset, (unsigned long long)found, (unsigned long long)s->xxh64);
    }
    return true;
}
// A whole section into host memory.
static inline bool state_read_section(StateReader* r, const char* name, uint32_t dtype, uint64_t count, void* data, FileError* error) {
    return state_read_section_begin(r, name, dtype, count, error) && state_read_next(r, data, count * file_dtype_bytes(dtype), error) &&
        state_read_section_end(r, error);
}
// Reads one section and throws it away: true if it is good to the last byte.
static inline bool state_read_check(StateReader* r, const StateSection* s, FileError* error) {
    char* chunk = (char*)mallocCheck(FILE_BUFFER_BYTES);
    bool ok = state_read_section_begin(r, s->name, s->dtype, s->count, error);
    while (ok && r->current_read < s->bytes) {
        uint64_t left = s->bytes - r->current_read;
        ok = state_read_next(r, chunk, left < FILE_BUFFER_BYTES ? left : FILE_BUFFER_BYTES, error);
    }
    free(chunk);
    return ok && state_read_section_end(r, error);
}
// The same for every section of the file.
static inline bool state_read_verify(StateReader* r, FileError* error) {
    bool ok = true;
    for (uint32_t i = 0; ok && i < r->header.num_sections; i++) { ok = state_read_check(r, &r->sections[i], error); }
    return ok;
}

// ----------------------------------------------------------------------------
// names of a checkpoint's files [llm.c's]; what belongs together: checkpoint.h

static inline void checkpoint_model_path(char path[FILE_PATH_MAX], const char* folder, int step) {
    snprintf(path, FILE_PATH_MAX, "%s/model_%08d.bin", folder, step);
}
static inline void checkpoint_state_path(char path[FILE_PATH_MAX], const char* folder, int step, int rank) {
    snprintf(path, FILE_PATH_MAX, "%s/state_%08d_%05d.bin", folder, step, rank);
}

#endif
