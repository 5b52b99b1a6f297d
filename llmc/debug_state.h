/* debug_state.h - reads llm.c's debug state: one batch with the logits, the loss and every gradient that PyTorch computed for it
 *
 * What:      debug_state_open checks the file against the model it belongs to and takes the tokens and the loss; logits and gradients are read in pieces
 *            of any size from anywhere, since those of a 124M model are 549 MB. Written by llm.c's train_gpt2.py and by dev/reference.
 *
 * File, little-endian, no checksum. V, and N, the number of parameters, are the model's: the file does not say them.
 *   OFFSET         SIZE     TYPE  MEANING
 *   0              4        i32   magic 20240327
 *   4              4        i32   version 2
 *   8              4        i32   B, sequences
 *   12             4        i32   T, tokens of a sequence
 *   16             1008     -     zero (ignored when read)
 *   1024           4*B*T    i32   inputs
 *   ..             4*B*T    i32   targets
 *   ..             4*B*T*V  f32   logits, V a row: not padded
 *   ..             4        f32   loss, the mean over B*T
 *   ..             4*N      f32   gradients, in the order and shapes of the model file: wte has its padded rows
 * History: 1 = wte not padded. It is not read.
 *
 * Errors:    as in files.h: true, or false and a FileError that names the file, what was found and what was expected.
 * Memory:    holds the tokens; the rest goes into the caller's buffers.
 * Tests:     dev/test/test_debug_state.cu  */
#ifndef LLMC_DEBUG_STATE_H
#define LLMC_DEBUG_STATE_H

#include "llmc/formats.h"

#define DEBUG_STATE_MAGIC 20240327
#define DEBUG_STATE_VERSION 2
#define DEBUG_STATE_HEADER_BYTES 1024
#define DEBUG_STATE_MAX_BATCH 65536  // with the limits of a model's header no size overflows 64 bits: 2^16 * 2^20 * 2^24 * 4

typedef struct {
    InputFile file;
    int B, T, V;
    uint64_t num_parameters;
    int32_t *inputs, *targets;           // (B,T), each within 0..V-1
    float loss;
    uint64_t logits_at, gradients_at;    // offsets in the file
} DebugState;

// How large the debug state of a batch and a model is.
static inline uint64_t debug_state_bytes(uint64_t B, uint64_t T, uint64_t V, uint64_t num_parameters) {
    return DEBUG_STATE_HEADER_BYTES + 4 * (2 * B * T + B * T * V + 1 + num_parameters);
}

static inline void debug_state_close(DebugState* d) {
    input_file_close(&d->file);
    free(d->inputs);
    free(d->targets);
    d->inputs = d->targets = NULL;
}

// The next B*T tokens of the file.
static inline bool debug_state_read_tokens(DebugState* d, const char* what, int32_t** tokens, FileError* error) {
    const uint64_t n = (uint64_t)d->B * d->T;
    *tokens = (int32_t*)mallocCheck(n * sizeof(int32_t));
    if (!input_file_read(&d->file, *tokens, n * sizeof(int32_t), error)) { return false; }
    for (uint64_t i = 0; i < n; i++) {
        if ((*tokens)[i] < 0 || (*tokens)[i] >= d->V) {
            return file_error(error, 0, "give the model that the debug state was written with, or write it again", "'%s': token %llu of the %s is %d; the model has tokens 0 to %d",
                              d->file.path, (unsigned long long)i, what, (*tokens)[i], d->V - 1);
        }
    }
    return true;
}

static inline bool debug_state_parse(DebugState* d, const ModelHeader* model, FileError* error) {
    int32_t h[DEBUG_STATE_HEADER_BYTES / 4];
    const char* path = d->file.path;
    memset(h, 0, sizeof(h));
    const uint64_t head = d->file.size < sizeof(h) ? d->file.size : sizeof(h);
    if (!input_file_read(&d->file, h, head, error)) { return false; }
    if (head < 4 || h[0] != DEBUG_STATE_MAGIC) {
        return file_error(error, 0, "give a *_debug_state.bin of llm.c's train_gpt2.py or of dev/reference (magic 20240327)", "'%s' is not a debug state but %s", path,
                          file_describe((unsigned char*)h, head));
    }
    if (head < sizeof(h)) {
        return file_error(error, 0, "copy or write it again", "'%s' has %llu bytes: not even its header of %zu is whole", path, (unsigned long long)head, sizeof(h));
    }
    if (h[1] != DEBUG_STATE_VERSION) {
        return file_error(error, 0, "write it again with llm.c's train_gpt2.py of May 2024 or later", "'%s' has version %d%s; version %d can be read", path, h[1],
                          h[1] == 1 ? " (vocabulary not padded)" : "", DEBUG_STATE_VERSION);
    }
    if (h[2] < 1 || h[2] > DEBUG_STATE_MAX_BATCH || h[3] < 1 || h[3] > model->max_seq_len) {
        return file_error(error, 0, "the file is damaged, or belongs to a model of more positions", "'%s' says B %d, T %d; B must be 1 to %d, and T at most the %d positions of the model", path,
                          h[2], h[3], DEBUG_STATE_MAX_BATCH, model->max_seq_len);
    }
    d->B = h[2];
    d->T = h[3];
    d->V = model->vocab_size;
    const uint64_t rows = (uint64_t)d->B * d->T, due = debug_state_bytes(d->B, d->T, d->V, d->num_parameters);
    if (d->file.size != due) {
        return file_error(error, 0, "give the model that it was written with, or copy or write it again",
                          "'%s' has %llu bytes, %llu too %s: B %d, T %d of its header, and V %d and %llu parameters of the model, make %llu bytes", path, (unsigned long long)d->file.size,
                          (unsigned long long)(d->file.size < due ? due - d->file.size : d->file.size - due), d->file.size < due ? "few" : "many", d->B, d->T, d->V,
                          (unsigned long long)d->num_parameters, (unsigned long long)due);
    }
    d->logits_at = DEBUG_STATE_HEADER_BYTES + 8 * rows;
    const uint64_t loss_at = d->logits_at + 4 * rows * d->V;
    d->gradients_at = loss_at + 4;
    return debug_state_read_tokens(d, "inputs", &d->inputs, error) && debug_state_read_tokens(d, "targets", &d->targets, error) &&
        input_file_read_at(&d->file, loss_at, &d->loss, sizeof(d->loss), error);
}

// model: a header that model_header_check passed; num_parameters: how many such a model has. On failure nothing is left open.
static inline bool debug_state_open(DebugState* d, const char* path, const ModelHeader* model, uint64_t num_parameters, FileError* error) {
    memset(d, 0, sizeof(*d));
    if (!input_file_open(&d->file, path, error)) { return false; }
    d->num_parameters = num_parameters;
    if (debug_state_parse(d, model, error)) { return true; }
    debug_state_close(d);
    return false;
}

// logits (rows,V) of the rows from `first` on; row b*T + t is position t of sequence b.
static inline bool debug_state_read_logits(const DebugState* d, uint64_t first, uint64_t rows, float* logits, FileError* error) {
    assert(first + rows <= (uint64_t)d->B * d->T);
    return input_file_read_at(&d->file, d->logits_at + 4 * first * d->V, logits, 4 * rows * d->V, error);
}

// n gradients from element `first` on, counted as in the model file.
static inline bool debug_state_read_gradients(const DebugState* d, uint64_t first, uint64_t n, float* gradients, FileError* error) {
    assert(first + n <= d->num_parameters);
    return input_file_read_at(&d->file, d->gradients_at + 4 * first, gradients, 4 * n, error);
}

#endif
