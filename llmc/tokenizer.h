/* tokenizer.h - token ids to bytes, and printing them as they come
 *
 * What:      reads llm.c's tokenizer file; decodes; prints a stream of tokens so that a terminal survives it. Encoding: tokenizer_encode.h.
 *
 * File, little-endian, no checksum (llm.c's, kept byte for byte):
 *   OFFSET  SIZE  TYPE    MEANING
 *   0       4     u32     magic 20240328
 *   4       4     u32     version: 1 (GPT-2 only: V = 50257, EOT = 50256, header[3] unused) or 2
 *   8       4     u32     V, number of tokens, 1..2^20
 *   12      4     u32     EOT, the end-of-text token, < V (version 2)
 *   16      1008  u32[]   zero
 *   1024    ...           V times: u8 length (1..255), then so many bytes; the file ends after the last
 * Bytes as text: V = 256, every token one byte, EOT 0 (made by the makers in data/).
 *
 * Printing:  complete UTF-8 sequences and printable ASCII, newline and tab. Dropped: control characters (also those of U+0080..U+009F) and bytes
 *            that are not UTF-8. A sequence may be spread over tokens, as it always is with byte tokens: tokenizer_print keeps what is incomplete.
 * Errors:    a missing file is the caller's decision (false); a damaged one ends the program with a message.
 * Tests:     dev/test/test_data.cu */
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include <stdint.h>

#include "llmc/common.h"

#define TOKENIZER_MAGIC 20240328u
#define TOKENIZER_HEADER_BYTES 1024
#define TOKENIZER_MAX_VOCAB (1u << 20)

typedef struct {
    bool ok;                    // a file was read; otherwise tokenizer_print prints ids
    uint32_t vocab_size;        // V
    uint32_t eot;               // id of the end-of-text token
    unsigned char* bytes;       // the tokens' bytes one after the other, owned
    uint32_t* offsets;          // (V + 1): token i is bytes[offsets[i] .. offsets[i + 1]), owned
    unsigned char pending[4];   // start of a UTF-8 sequence that the next token may complete
    int pending_count;
} Tokenizer;

// Reads path. Returns false, with *t empty but usable, if there is no such file. A file that is no valid tokenizer ends the program.
static inline bool tokenizer_init(Tokenizer* t, const char* path) {
    memset(t, 0, sizeof(*t));
    FILE* file = fopen(path, "rb");
    if (!file && errno == ENOENT) { return false; }
    require(file, "check the path and its permissions", "cannot open the tokenizer '%s': %s", path, strerror(errno));
    const char* remake = "make the tokenizer again with the data (data/README.md), or name another with --tokenizer";
    uint32_t header[TOKENIZER_HEADER_BYTES / 4];
    size_t got = fread(header, 1, sizeof(header), file);
    require(got == sizeof(header), remake, "the tokenizer '%s' is cut short: %zu bytes, the header alone has %zu", path, got, sizeof(header));
    require(header[0] == TOKENIZER_MAGIC, remake, "'%s' is no tokenizer file: it begins with %u instead of %u", path, header[0], TOKENIZER_MAGIC);
    require(header[1] == 1 || header[1] == 2, remake, "the tokenizer '%s' has version %u; 1 and 2 are known", path, header[1]);
    uint32_t vocab_size = header[2];
    require(vocab_size >= 1 && vocab_size <= TOKENIZER_MAX_VOCAB, remake, "the tokenizer '%s' says it has %u tokens; 1 to %u are possible", path,
            vocab_size, TOKENIZER_MAX_VOCAB);
    require(header[1] == 2 || vocab_size == 50257, remake, "the tokenizer '%s' has version 1, which is GPT-2's with 50257 tokens, but says %u", path,
            vocab_size);
    uint32_t eot = header[1] == 2 ? header[3] : 50256;
    require(eot < vocab_size, remake, "the tokenizer '%s' names token %u as end of text, but has only %u tokens", path, eot, vocab_size);

    t->offsets = (uint32_t*)mallocCheck((vocab_size + 1) * sizeof(uint32_t));
    t->bytes = (unsigned char*)mallocCheck((size_t)vocab_size * 255);
    t->offsets[0] = 0;
    for (uint32_t id = 0; id < vocab_size; id++) {
        int length = fgetc(file);
        require(length != EOF, remake, "the tokenizer '%s' ends before token %u of %u", path, id, vocab_size);
        require(length > 0, remake, "the tokenizer '%s': token %u is empty", path, id);
        got = fread(t->bytes + t->offsets[id], 1, length, file);
        require(got == (size_t)length, remake, "the tokenizer '%s' ends inside token %u of %u", path, id, vocab_size);
        t->offsets[id + 1] = t->offsets[id] + length;
    }
    require(fgetc(file) == EOF, remake, "the tokenizer '%s' goes on after its last token %u", path, vocab_size - 1);
    fclose(file);
    t->vocab_size = vocab_size;
    t->eot = eot;
    t->ok = true;
    return true;
}

static inline void tokenizer_free(Tokenizer* t) {
    free(t->bytes);
    free(t->offsets);
    memset(t, 0, sizeof(*t));
}

// The bytes of token id (not terminated; may hold NUL); *length gets their number. NULL and 0 if there is no tokenizer or no such token.
static inline const unsigned char* tokenizer_decode(const Tokenizer* t, int id, int* length) {
    *length = 0;
    if (!t->ok || id < 0 || (uint32_t)id >= t->vocab_size) { return NULL; }
    *length = (int)(t->offsets[id + 1] - t->offsets[id]);
    return t->bytes + t->offsets[id];
}

// Length of the UTF-8 sequence that this byte starts, 0 if none does. C0, C1 and F5..FF start no valid sequence.
static inline int utf8_sequence_length(unsigned char first) {
    if (first < 0x80) { return 1; }
    if (first >= 0xc2 && first <= 0xdf) { return 2; }
    if (first >= 0xe0 && first <= 0xef) { return 3; }
    if (first >= 0xf0 && first <= 0xf4) { return 4; }
    return 0;
}

// May byte follow as number index (1..3) of a sequence that starts with first? The second byte excludes overlong forms, surrogates and > U+10FFFF
// [Unicode 15, table 3-7].
static inline bool utf8_byte_continues(unsigned char first, int index, unsigned char byte) {
    unsigned char low = 0x80, high = 0xbf;
    if (index == 1) {
        if (first == 0xe0) { low = 0xa0; }
        if (first == 0xed) { high = 0x9f; }
        if (first == 0xf0) { low = 0x90; }
        if (first == 0xf4) { high = 0x8f; }
    }
    return byte >= low && byte <= high;
}

// Takes the next byte of a stream; prints what is complete and harmless.
static inline void tokenizer_print_byte(Tokenizer* t, FILE* out, unsigned char byte) {
    if (t->pending_count > 0) {
        if (!utf8_byte_continues(t->pending[0], t->pending_count, byte)) {
            t->pending_count = 0;  // not UTF-8: drop what came, and look at this byte afresh
        } else {
            t->pending[t->pending_count++] = byte;
            if (t->pending_count == utf8_sequence_length(t->pending[0])) {
                bool control = t->pending[0] == 0xc2 && t->pending[1] < 0xa0;  // U+0080..U+009F
                if (!control) { fwrite(t->pending, 1, t->pending_count, out); }
                t->pending_count = 0;
            }
            return;
        }
    }
    int length = utf8_sequence_length(byte);
    if (length == 1) {
        if ((byte >= 0x20 && byte < 0x7f) || byte == '\n' || byte == '\t') { fputc(byte, out); }
    } else if (length > 1) {
        t->pending[0] = byte;
        t->pending_count = 1;
    }
}

// Prints one token of a stream; without a tokenizer its number.
static inline void tokenizer_print(Tokenizer* t, FILE* out, int id) {
    int length;
    const unsigned char* bytes = tokenizer_decode(t, id, &length);
    if (!bytes) {
        fprintf(out, "%d ", id);
        return;
    }
    for (int i = 0; i < length; i++) { tokenizer_print_byte(t, out, bytes[i]); }
}

// Ends a stream: an unfinished sequence is forgotten, so that the next stream starts clean.
static inline void tokenizer_print_end(Tokenizer* t) { t->pending_count = 0; }

#endif
