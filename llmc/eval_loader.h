/* eval_loader.h - multiple-choice questions (HellaSwag, and MMLU and others written alike): rows for the model, answers from its losses
 *
 * What:      an example is a context and four completions. The model's answer is the completion of the least mean loss over its own tokens, ties to the
 *            first; the score is correct / examples. Each example makes four rows of T tokens, context then completion; the rows of a rank are numbered,
 *            and a micro-batch is any B of them in order: B may be 1, and an example may lie in two batches.
 *
 * File (llm.c's), little-endian, no checksum:
 *   OFFSET  SIZE  TYPE   MEANING
 *   0       4     i32    magic 20240522
 *   4       4     i32    version 1
 *   8       4     i32    num_examples E, 1 .. 65535
 *   12      4     i32    longest_example_bytes: no example has more
 *   16      1008  -      zero
 *   1024    ...   u16[]  E examples; the file ends after the last. Each: 65535, its bytes (these words included), its index from 0, the label 0 .. 3,
 *                        4 completions, n and n tokens of context, then four times m and m tokens of a completion; n, m > 0
 *
 * Numerics:  a row's mean is a float32 sum in the order of the tokens, divided once, as llm.c's: the same losses give the same answers. One difference:
 *            an example with a NaN among its four means counts as wrong, where llm.c takes the first answer.
 * Ranks:     rank r of P has the examples E*r/P .. E*(r+1)/P - 1, maybe none: each example is counted once, whatever P is; sum `correct` over ranks.
 * Errors:    as in files.h: eval_loader_init checks the whole file and tells file, example, byte, what was found and what was expected. error->code is
 *            ENOENT if there is no such file: whether that matters is the caller's decision.
 * Memory:    the file as it is (HellaSwag: 3.6 MB), 4 bytes an example, 16 bytes an example of this rank. Inputs, targets and losses are the caller's.
 * Tests:     dev/test/test_eval.cu */
#ifndef LLMC_EVAL_LOADER_H
#define LLMC_EVAL_LOADER_H

#include <math.h>

#include "llmc/files.h"

#define EVAL_MAGIC 20240522
#define EVAL_HEADER_BYTES 1024
#define EVAL_START 65535        // the word that begins an example
#define EVAL_COMPLETIONS 4
#define EVAL_HEAD_WORDS 5       // start, bytes, index, label, completions

typedef struct {
    uint16_t* words;            // the file after its header, owned
    uint32_t* start;            // (num_examples) where each example begins in words, owned
    int num_examples;           // E, of the file
    int seq_len;                // T
    int first_example;          // of this rank
    int num_rows;               // of this rank: 4 for each of its examples
    int rows_added;             // since the last result
    float* mean;                // (num_rows) mean loss of each row, owned
} EvalLoader;

// A row's tokens: its context and its completion, inside words.
typedef struct { const uint16_t *context, *completion; int context_length, completion_length; } EvalRow;

static inline EvalRow eval_loader_row(const EvalLoader* loader, int row) {
    const uint16_t* w = loader->words + loader->start[loader->first_example + row / EVAL_COMPLETIONS] + EVAL_HEAD_WORDS;
    EvalRow r = {w + 1, NULL, w[0], 0};
    w += 1 + w[0];
    for (int skip = row % EVAL_COMPLETIONS; skip > 0; skip--) { w += 1 + w[0]; }
    r.completion = w + 1;
    r.completion_length = w[0];
    return r;
}

// ----------------------------------------------------------------------------
// reading and checking

// Checks the example that begins at word `at` of num_words; *words gets its length, *row_tokens the tokens of its longest row.
static inline bool eval_loader_check_example(const EvalLoader* loader, const char* path, int example, uint64_t at, uint64_t num_words, int longest_bytes,
                                             int vocab_size, uint64_t* words, int* row_tokens, FileError* error) {
    static const char* const pieces[] = {"context", "completion 0", "completion 1", "completion 2", "completion 3"};
    const char* damaged = "the file is damaged or was cut: copy or make it again";
    const uint16_t* w = loader->words + at;
    const uint64_t left = num_words - at;
    const unsigned long long byte = EVAL_HEADER_BYTES + 2 * at;
    if (left < EVAL_HEAD_WORDS) {
        return file_error(error, 0, damaged, "'%s' ends at byte %llu, before example %d of %d is whole", path, EVAL_HEADER_BYTES + 2ull * num_words, example,
                          loader->num_examples);
    }
    if (w[0] != EVAL_START) {
        return file_error(error, 0, damaged, "'%s', example %d at byte %llu: it begins with %u, expected %d", path, example, byte, w[0], EVAL_START);
    }
    if (w[4] != EVAL_COMPLETIONS) {
        return file_error(error, 0, "take questions with four answers", "'%s', example %d at byte %llu: %u completions, expected %d", path, example, byte,
                          w[4], EVAL_COMPLETIONS);
    }
    if (w[1] % 2 != 0 || w[1] > longest_bytes || w[1] / 2u > left) {
        return file_error(error, 0, damaged, "'%s', example %d at byte %llu: it says it has %u bytes, expected an even number of at most %d (the header's "
                          "longest) and %llu (the rest of the file)", path, example, byte, w[1], longest_bytes, 2 * (unsigned long long)left);
    }
    if (w[2] != example) { return file_error(error, 0, damaged, "'%s', example %d at byte %llu: its index is %u, expected %d", path, example, byte, w[2], example); }
    if (w[3] >= EVAL_COMPLETIONS) {
        return file_error(error, 0, damaged, "'%s', example %d at byte %llu: its label is %u, expected 0 to %d", path, example, byte, w[3], EVAL_COMPLETIONS - 1);
    }
    const uint32_t end = w[1] / 2;
    uint32_t i = EVAL_HEAD_WORDS;
    *row_tokens = 0;
    for (int piece = 0; piece < 1 + EVAL_COMPLETIONS; piece++) {
        const uint32_t length = i < end ? w[i] : 0, room = i < end ? end - i - 1 : 0;
        if (length == 0 || length > room) {
            return file_error(error, 0, damaged, "'%s', example %d at byte %llu: its %s has %u tokens, expected 1 to %u (the rest of its %u bytes)", path,
                              example, byte, pieces[piece], length, room, w[1]);
        }
        for (uint32_t t = i + 1; t <= i + length; t++) {
            if (vocab_size > 0 && w[t] >= vocab_size) {
                return file_error(error, 0, "the questions were made for another tokenizer or model: check --eval-data, --tokenizer, --model and --vocab-size",
                                  "'%s', example %d: token %u at byte %llu (%s), expected one below the vocabulary size %d", path, example, w[t],
                                  byte + 2 * t, pieces[piece], vocab_size);
            }
        }
        const int tokens = w[EVAL_HEAD_WORDS] + (int)length;
        if (piece > 0 && tokens > *row_tokens) { *row_tokens = tokens; }
        i += 1 + length;
    }
    if (i != end) {
        return file_error(error, 0, damaged, "'%s', example %d at byte %llu: it says it has %u bytes, but its tokens end after %u", path, example, byte, w[1], 2 * i);
    }
    *words = end;
    return true;
}

// The file's content into words and start; every example is checked.
static inline bool eval_loader_read_file(EvalLoader* loader, InputFile* file, const char* path, int vocab_size, FileError* error) {
    const char* damaged = "the file is damaged or was cut: copy or make it again";
    int32_t h[EVAL_HEADER_BYTES / 4] = {0};
    const uint64_t head = file->size < sizeof(h) ? file->size : sizeof(h);
    if (!input_file_read(file, h, head, error)) { return false; }
    if (head < 4 || h[0] != EVAL_MAGIC) {
        return file_error(error, 0, "give a file of questions in llm.c's format (magic 20240522)", "'%s' is not a multiple-choice evaluation file but %s", path,
                          file_describe((unsigned char*)h, head));
    }
    if (head < sizeof(h)) {
        return file_error(error, 0, damaged, "'%s' has %llu bytes, expected a header of %zu", path, (unsigned long long)head, sizeof(h));
    }
    if (h[1] != 1) { return file_error(error, 0, "make it again", "'%s' has version %d, expected 1", path, h[1]); }
    if (h[2] < 1 || h[2] > 65535) { return file_error(error, 0, damaged, "'%s' says it has %d examples, expected 1 to 65535", path, h[2]); }
    if (h[3] < 1 || h[3] > 65535) { return file_error(error, 0, damaged, "'%s' says its longest example has %d bytes, expected 1 to 65535", path, h[3]); }
    const uint64_t bytes = file->size - EVAL_HEADER_BYTES, most = (uint64_t)h[2] * (uint64_t)h[3];
    if (bytes % 2 != 0 || bytes > most) {  // before so much memory is asked for
        return file_error(error, 0, damaged, "'%s' has %llu bytes after its header, expected an even number of at most %llu (%d examples of at most %d bytes)",
                          path, (unsigned long long)bytes, (unsigned long long)most, h[2], h[3]);
    }
    loader->num_examples = h[2];
    loader->words = (uint16_t*)mallocCheck(bytes);
    loader->start = (uint32_t*)mallocCheck(sizeof(uint32_t) * (size_t)loader->num_examples);
    if (!input_file_read(file, loader->words, bytes, error)) { return false; }
    uint64_t at = 0, words = 0;
    int tokens = 0, too_long = -1, too_long_tokens = 0, longest = 0;
    for (int e = 0; e < loader->num_examples; e++, at += words) {
        if (!eval_loader_check_example(loader, path, e, at, bytes / 2, h[3], vocab_size, &words, &tokens, error)) { return false; }
        loader->start[e] = (uint32_t)at;
        if (tokens > loader->seq_len && too_long < 0) { too_long = e; too_long_tokens = tokens; }
        if (tokens > longest) { longest = tokens; }
    }
    if (at != bytes / 2) {
        return file_error(error, 0, damaged, "'%s' goes on at byte %llu after its last example %d, expected its end", path,
                          (unsigned long long)(EVAL_HEADER_BYTES + 2 * at), loader->num_examples - 1);
    }
    if (too_long >= 0) {
        char hint[128];
        snprintf(hint, sizeof(hint), "choose --seq-len %d or more, or leave out --hellaswag", longest);
        return file_error(error, 0, hint, "'%s', example %d: context and completion have %d tokens, expected at most T = %d (the longest row of the file has %d)",
                          path, too_long, too_long_tokens, loader->seq_len, longest);
    }
    return true;
}

static inline void eval_loader_free(EvalLoader* loader) {
    free(loader->words);
    free(loader->start);
    free(loader->mean);
    memset(loader, 0, sizeof(*loader));
}

// Reads and checks the file at path. seq_len = T > 0 is the length of a row; tokens must lie below vocab_size, 0 = any; 0 <= rank < num_ranks.
// False: *loader is empty (needs no free) and *error says why; error->code is ENOENT if there is no such file.
static inline bool eval_loader_init(EvalLoader* loader, const char* path, int seq_len, int vocab_size, int rank, int num_ranks, FileError* error) {
    assert(seq_len > 0 && rank >= 0 && rank < num_ranks);
    memset(loader, 0, sizeof(*loader));
    loader->seq_len = seq_len;
    InputFile file;
    bool ok = input_file_open(&file, path, error);
    if (ok) {
        ok = eval_loader_read_file(loader, &file, path, vocab_size, error);
        input_file_close(&file);
    }
    if (!ok) {
        eval_loader_free(loader);
        return false;
    }
    loader->first_example = (int)((int64_t)loader->num_examples * rank / num_ranks);
    const int end = (int)((int64_t)loader->num_examples * (rank + 1) / num_ranks);
    loader->num_rows = EVAL_COMPLETIONS * (end - loader->first_example);
    loader->mean = (float*)mallocCheck(sizeof(float) * (size_t)loader->num_rows);
    return true;
}

// ----------------------------------------------------------------------------
// rows and answers. One evaluation: for (row = 0; row < num_rows; row += B) { read_rows; forward pass; add_losses; } result.

// inputs, targets (B,T) i32 = this rank's rows first_row .. first_row + B - 1. A row: context, completion, zeros; its targets are the completion's tokens,
// at the positions before theirs, context_length - 1 .. context_length + completion_length - 2, and zeros elsewhere. Rows past the last are all zeros.
static inline void eval_loader_read_rows(const EvalLoader* loader, int32_t* inputs, int32_t* targets, int first_row, int B) {
    const size_t T = (size_t)loader->seq_len;
    memset(inputs, 0, sizeof(int32_t) * B * T);
    memset(targets, 0, sizeof(int32_t) * B * T);
    for (int b = 0; b < B && first_row + b < loader->num_rows; b++) {
        const EvalRow r = eval_loader_row(loader, first_row + b);
        int32_t *in = inputs + b * T, *out = targets + b * T;
        for (int t = 0; t < r.context_length; t++) { in[t] = r.context[t]; }
        for (int t = 0; t < r.completion_length; t++) { in[r.context_length + t] = out[r.context_length - 1 + t] = r.completion[t]; }
    }
}

// Takes the losses (B,T) f32, in host memory, of the rows that eval_loader_read_rows gave for the same first_row and B: those of completions count,
// whatever stands elsewhere.
static inline void eval_loader_add_losses(EvalLoader* loader, const float* losses, int first_row, int B) {
    for (int b = 0; b < B && first_row + b < loader->num_rows; b++) {
        const EvalRow r = eval_loader_row(loader, first_row + b);
        const float* l = losses + (size_t)b * loader->seq_len + r.context_length - 1;
        float sum = 0.0f;
        for (int t = 0; t < r.completion_length; t++) { sum += l[t]; }
        loader->mean[first_row + b] = sum / (float)r.completion_length;
        loader->rows_added++;
    }
}

// *correct of *total examples of this rank, once the losses of all its rows are added; the next evaluation may begin.
static inline void eval_loader_result(EvalLoader* loader, int* correct, int* total) {
    assert(loader->rows_added == loader->num_rows);
    loader->rows_added = 0;
    *correct = 0;
    *total = loader->num_rows / EVAL_COMPLETIONS;
    for (int e = 0; e < *total; e++) {
        const float* mean = loader->mean + (size_t)e * EVAL_COMPLETIONS;
        int answer = 0;
        bool valid = true;
        for (int c = 0; c < EVAL_COMPLETIONS; c++) {
            valid = valid && !isnan(mean[c]);
            if (mean[c] < mean[answer]) { answer = c; }
        }
        *correct += valid && answer == loader->words[loader->start[loader->first_example + e] + 3];
    }
}

#endif
