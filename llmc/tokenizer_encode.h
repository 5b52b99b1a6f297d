/* tokenizer_encode.h - text to token ids: GPT-2's byte-pair encoding, and bytes for the byte tokenizer
 *
 * What:      the text is cut into pieces by GPT-2's pattern (tokenizer_piece); a piece that is a token is that token; in any other, those two
 *            neighbours are merged whose bytes together are the token of the lowest id, the leftmost of equals first, until none are a token
 *            [Sennrich et al. 2016, "Neural machine translation of rare words with subword units", over bytes as in Radford et al. 2019].
 *            The tokenizer file (tokenizer.h) is all that is needed: GPT-2's ids are in the order in which its merges were learned.
 *            Tokens are those of tiktoken's "gpt2", but for code points newer than Unicode 14 (unicode_table.h).
 * Any bytes: a byte that is no part of valid UTF-8 is a symbol by itself, so that decoding what was encoded gives the same bytes, whatever they are.
 * Special:   the end-of-text token comes only from its own bytes ("<|endoftext|>" in GPT-2's file) where the caller allows it (special = true: a
 *            prompt, tiktoken's allowed_special); otherwise they are text like any other (data, tiktoken's encode_ordinary).
 * Cost:      O(n log n) for n bytes, also where one piece is all of the text; e->steps counts. With GPT-2's vocabulary on one core of a Zen 4:
 *            1 to 7 ms to build the table, 35 MB/s of English prose, 2 MB/s of one word of a million random letters.
 * Memory:    16 to 32 bytes per token of the vocabulary, 4 bytes per byte of the longest text, 32 per byte of its longest piece that is no token.
 * Errors:    no tokenizer, or one that lacks a token for some byte: a message, exit 1.
 * Tests:     dev/test/test_tokenizer.cu */
#ifndef LLMC_TOKENIZER_ENCODE_H
#define LLMC_TOKENIZER_ENCODE_H

#include "llmc/tokenizer.h"
#include "llmc/unicode_table.h"

#define TOKENIZER_NONE 0xffffffffu

// One part of a piece while it is merged, kept at the index of its first byte.
typedef struct {
    uint32_t id;            // its token
    uint32_t end;           // index behind its last byte: where the next part begins
    uint32_t previous;      // index of the part before it
    uint32_t merged;        // token of this part and the next together; NONE: no such token, or this part was swallowed
} TokenizerPart;

typedef struct {
    const Tokenizer* tokenizer; // borrowed
    uint64_t* slots;            // hash table, open addressing: upper half of the hash << 32 | id + 1; 0 = empty
    uint32_t slot_mask;         // number of slots - 1
    uint32_t longest;           // bytes of the longest token
    uint32_t byte_ids[256];     // tokens of single bytes

    int* ids;                   // result of the last call, owned
    size_t count, capacity;     // of ids

    TokenizerPart* parts;       // scratch, part_capacity of them
    uint64_t* heap;             // scratch, 2 * part_capacity candidates: merged token << 32 | index of the left part
    uint32_t part_capacity;
    uint32_t heap_count;
    uint64_t steps;             // work so far: look-ups and moves in the heap
} TokenizerEncoder;

// ----------------------------------------------------------------------------
// the table from bytes to ids

// 64 bits that depend on all n >= 1 bytes: eight at a time, the last eight (or four, or up to three) overlapping those before.
static inline uint64_t tokenizer_hash(const unsigned char* p, uint32_t n) {
    const uint64_t odd = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio
    uint64_t h = n, word;
    uint32_t half[2];
    for (uint32_t i = 0; i + 8 < n; i += 8) {
        memcpy(&word, p + i, 8);
        h = (h ^ word) * odd;
        h ^= h >> 32;
    }
    if (n >= 8) {
        memcpy(&word, p + n - 8, 8);
    } else if (n >= 4) {
        memcpy(&half[0], p, 4);
        memcpy(&half[1], p + n - 4, 4);
        word = (uint64_t)half[0] << 32 | half[1];
    } else {
        word = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
    }
    h = (h ^ word) * odd;
    return h ^ h >> 29;
}

// The token of exactly these n >= 1 bytes, or TOKENIZER_NONE.
static inline uint32_t tokenizer_find(TokenizerEncoder* e, const unsigned char* p, uint32_t n) {
    if (n > e->longest) { return TOKENIZER_NONE; }
    const Tokenizer* t = e->tokenizer;
    uint64_t hash = tokenizer_hash(p, n);
    for (uint32_t i = (uint32_t)hash & e->slot_mask;; i = (i + 1) & e->slot_mask) {
        uint64_t slot = e->slots[i];
        e->steps++;
        if (slot == 0) { return TOKENIZER_NONE; }
        if (slot >> 32 != hash >> 32) { continue; }
        uint32_t id = (uint32_t)slot - 1, start = t->offsets[id];
        if (t->offsets[id + 1] - start == n && !memcmp(t->bytes + start, p, n)) { return id; }
    }
}

// Builds the table. t must outlive the encoder; path: its file, for messages.
static inline void tokenizer_encode_init(TokenizerEncoder* e, const Tokenizer* t, const char* path) {
    memset(e, 0, sizeof(*e));
    require(t->ok, "name a tokenizer file that exists (data/README.md says how to get one)", "text cannot be tokenized: there is no tokenizer '%s'",
            path);
    e->tokenizer = t;
    uint32_t num_slots = 512;
    while (num_slots < 2 * t->vocab_size) { num_slots *= 2; }
    e->slots = (uint64_t*)mallocCheck(num_slots * sizeof(uint64_t));
    memset(e->slots, 0, num_slots * sizeof(uint64_t));
    e->slot_mask = num_slots - 1;
    for (uint32_t id = 0; id < t->vocab_size; id++) {
        const unsigned char* bytes = t->bytes + t->offsets[id];
        uint32_t n = t->offsets[id + 1] - t->offsets[id];
        if (id == t->eot && n > 1) { continue; }  // text never becomes the end-of-text token by merging
        if (n > e->longest) { e->longest = n; }
        if (tokenizer_find(e, bytes, n) != TOKENIZER_NONE) { continue; }  // the same bytes again: the lower id stands
        uint64_t hash = tokenizer_hash(bytes, n);
        uint32_t i = (uint32_t)hash & e->slot_mask;
        while (e->slots[i] != 0) { i = (i + 1) & e->slot_mask; }
        e->slots[i] = hash >> 32 << 32 | (id + 1);
    }
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        e->byte_ids[b] = tokenizer_find(e, &byte, 1);
        require(e->byte_ids[b] != TOKENIZER_NONE, "use a byte-level tokenizer: GPT-2's, or the byte tokenizer that data/make_text.py makes",
                "the tokenizer '%s' cannot encode text: none of its %u tokens is the single byte 0x%02x", path, t->vocab_size, b);
    }
    e->steps = 0;
}

static inline void tokenizer_encode_free(TokenizerEncoder* e) {
    free(e->slots);
    free(e->ids);
    free(e->parts);
    free(e->heap);
    memset(e, 0, sizeof(*e));
}

// ----------------------------------------------------------------------------
// pieces

// Class of the code point at p, n >= 1 bytes are there; *length: its bytes. What is not UTF-8 is one byte of class OTHER.
static inline enum UnicodeClass tokenizer_class(const unsigned char* p, size_t n, uint32_t* length) {
    *length = 1;
    if (p[0] < 0x80) {
        if ((unsigned)(p[0] | 0x20) - 'a' < 26) { return UNICODE_LETTER; }
        if ((unsigned)p[0] - '0' < 10) { return UNICODE_NUMBER; }
        return p[0] == ' ' || (p[0] >= 9 && p[0] <= 13) ? UNICODE_SPACE : UNICODE_OTHER;
    }
    int due = utf8_sequence_length(p[0]);
    if (due == 0 || (size_t)due > n) { return UNICODE_OTHER; }
    uint32_t code = p[0] & (0x7fu >> due);
    for (int i = 1; i < due; i++) {
        if (!utf8_byte_continues(p[0], i, p[i])) { return UNICODE_OTHER; }
        code = code << 6 | (p[i] & 0x3fu);
    }
    *length = (uint32_t)due;
    return unicode_class(code);
}

// Bytes of the contraction at p: 's 't 'm 'd 're 've 'll, in lower case; 0 if there is none.
static inline size_t tokenizer_contraction(const unsigned char* p, size_t n) {
    if (n < 2 || p[0] != '\'') { return 0; }
    if (strchr("stmd", p[1]) && p[1]) { return 2; }
    return n >= 3 && (!memcmp(p + 1, "re", 2) || !memcmp(p + 1, "ve", 2) || !memcmp(p + 1, "ll", 2)) ? 3 : 0;
}

// Length in bytes of the piece that begins at p; n >= 1 bytes are there. GPT-2's pattern, the first alternative that matches:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// The last two: white space goes to the end of the text, or leaves its last character to what follows (and takes it after all if it is alone).
static inline size_t tokenizer_piece(const unsigned char* p, size_t n) {
    size_t end = tokenizer_contraction(p, n);
    if (end > 0) { return end; }
    uint32_t length;
    enum UnicodeClass type = tokenizer_class(p, n, &length);
    end = length;
    if (p[0] == ' ' && n > 1) {
        enum UnicodeClass next = tokenizer_class(p + 1, n - 1, &length);
        if (next != UNICODE_SPACE) {
            type = next;
            end = 1 + length;
        } else {
            length = 1;
        }
    }
    size_t last = end - length;  // where the last character of the run begins
    while (end < n && tokenizer_class(p + end, n - end, &length) == type) {
        last = end;
        end += length;
    }
    return type == UNICODE_SPACE && end < n && last > 0 ? last : end;
}

// For texts that are encoded a window at a time: the last place 0 < i < n where p[0..n) may be cut without changing a token, whatever follows; 0 if
// there is none. Every piece ends where white space follows something else, and nothing looks back across such a place.
static inline size_t tokenizer_last_cut(const unsigned char* p, size_t n) {
    for (size_t i = n; i-- > 1;) {
        if (p[i] != ' ' && p[i] != '\n') { continue; }
        size_t before = i - 1;  // the character before begins here, or later if this is not UTF-8
        while (before > 0 && i - before < 4 && p[before] >> 6 == 2) { before--; }
        uint32_t length;
        if (tokenizer_class(p + before, i - before, &length) != UNICODE_SPACE || before + length != i) { return i; }
    }
    return 0;
}

// ----------------------------------------------------------------------------
// merging

// The heap: its smallest candidate is at 0, that of the lowest token, the leftmost of equals.
static inline void tokenizer_heap_push(TokenizerEncoder* e, uint64_t key) {
    uint64_t* heap = e->heap;
    uint32_t i = e->heap_count++;
    for (; i > 0 && heap[(i - 1) / 2] > key; i = (i - 1) / 2) {
        heap[i] = heap[(i - 1) / 2];
        e->steps++;
    }
    heap[i] = key;
}
static inline uint64_t tokenizer_heap_pop(TokenizerEncoder* e) {
    uint64_t* heap = e->heap;
    uint64_t top = heap[0], key = heap[--e->heap_count];
    uint32_t i = 0, n = e->heap_count;
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) { child++; }
        if (heap[child] >= key) { break; }
        heap[i] = heap[child];
        e->steps++;
    }
    heap[i] = key;
    return top;
}

// Notes what part i and the one behind it would merge into.
static inline void tokenizer_pair(TokenizerEncoder* e, const unsigned char* p, uint32_t n, uint32_t i) {
    TokenizerPart* part = &e->parts[i];
    part->merged = part->end < n ? tokenizer_find(e, p + i, e->parts[part->end].end - i) : TOKENIZER_NONE;
    if (part->merged != TOKENIZER_NONE) { tokenizer_heap_push(e, (uint64_t)part->merged << 32 | i); }
}

// Appends the tokens of one piece of n >= 1 bytes; ids has room for n more.
static inline void tokenizer_encode_piece(TokenizerEncoder* e, const unsigned char* p, size_t bytes) {
    require(bytes < TOKENIZER_NONE, "break it into lines", "a word of %zu bytes cannot be tokenized", bytes);  // indices have 32 bits
    const uint32_t n = (uint32_t)bytes;
    uint32_t whole = tokenizer_find(e, p, n);
    if (whole != TOKENIZER_NONE) {
        e->ids[e->count++] = (int)whole;
        return;
    }
    if (n > e->part_capacity) {
        free(e->parts);
        free(e->heap);
        e->part_capacity = n < 256 ? 256 : n;
        e->parts = (TokenizerPart*)mallocCheck(e->part_capacity * sizeof(TokenizerPart));
        // n - 1 pairs at first; each of at most n - 1 merges takes one candidate and adds up to two
        e->heap = (uint64_t*)mallocCheck(2 * (size_t)e->part_capacity * sizeof(uint64_t));
    }
    TokenizerPart* parts = e->parts;
    for (uint32_t i = 0; i < n; i++) { parts[i] = {e->byte_ids[p[i]], i + 1, i - 1, TOKENIZER_NONE}; }
    for (uint32_t i = 0; i < n; i++) { tokenizer_pair(e, p, n, i); }
    while (e->heap_count > 0) {
        uint64_t key = tokenizer_heap_pop(e);
        uint32_t i = (uint32_t)key;
        if (parts[i].merged != key >> 32) { continue; }  // of a pair that is no more: a part grows, so the same pair never comes back
        uint32_t swallowed = parts[i].end, end = parts[swallowed].end;
        parts[i].id = parts[i].merged;
        parts[i].end = end;
        parts[swallowed].merged = TOKENIZER_NONE;
        if (end < n) { parts[end].previous = i; }
        tokenizer_pair(e, p, n, i);
        if (i > 0) { tokenizer_pair(e, p, n, parts[i].previous); }
    }
    for (uint32_t i = 0; i < n; i = parts[i].end) { e->ids[e->count++] = (int)parts[i].id; }
}

// ----------------------------------------------------------------------------
// public

// Encodes text (any bytes, need not be terminated) into e->ids[0 .. e->count), which the next call overwrites; returns e->count.
// special: the bytes of the end-of-text token become that token, and what is around them is encoded as texts of their own.
static inline size_t tokenizer_encode(TokenizerEncoder* e, const void* text, size_t bytes, bool special) {
    const unsigned char *p = (const unsigned char*)text, *text_end = p + bytes;
    int eot_bytes;
    const unsigned char* eot = tokenizer_decode(e->tokenizer, (int)e->tokenizer->eot, &eot_bytes);
    if (bytes > e->capacity) {  // no text has more tokens than bytes
        free(e->ids);
        e->ids = (int*)mallocCheck(bytes * sizeof(int));
        e->capacity = bytes;
    }
    e->count = 0;
    while (p < text_end) {
        const unsigned char* found = special ? (const unsigned char*)memmem(p, (size_t)(text_end - p), eot, (size_t)eot_bytes) : NULL;
        const unsigned char* end = found ? found : text_end;
        while (p < end) {
            size_t n = tokenizer_piece(p, (size_t)(end - p));
            tokenizer_encode_piece(e, p, n);
            p += n;
        }
        if (found) {
            e->ids[e->count++] = (int)e->tokenizer->eot;
            p += eot_bytes;
        }
    }
    return e->count;
}

#endif
