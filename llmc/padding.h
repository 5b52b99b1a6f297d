/* padding.h - tensors that have longer rows here than in files: where their real elements lie, and how they come and go
 *
 * What:      products and kernels take rows of whole 16 bytes, models may have others. An axis is cut into equal segments (heads, or one of all channels), each
 *            of which has `padded` places: its `real` elements, then zeros. A layer of a tensor has two axes, rows and columns, and lies here row-major.
 * Order:     padding only puts zeros between the elements, so a range of places here is a range of elements there: what a rank keeps of a layer is one
 *            range in a file too, whatever the padding. Files know nothing of it.
 * Memory:    padding_expand takes a copy of its input, the rest none.
 * Tests:     dev/test/test_padding.cu
 */
#ifndef LLMC_PADDING_H
#define LLMC_PADDING_H

#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <vector>

typedef struct { int segments, real, padded; } PaddedAxis;  // real <= padded
typedef struct { PaddedAxis rows, cols; } PaddedShape;      // of one layer

static inline int padded_axis_real(PaddedAxis a) { return a.segments * a.real; }
static inline int padded_axis_length(PaddedAxis a) { return a.segments * a.padded; }
static inline bool padded_shape_is_plain(const PaddedShape* s) { return s->rows.real == s->rows.padded && s->cols.real == s->cols.padded; }

// Of the first `at` places of a layer, how many have real elements: the place's element, counted as in files.
static inline size_t padding_real(const PaddedShape* s, size_t at) {
    if (padded_shape_is_plain(s)) { return at; }
    auto before = [](PaddedAxis a, size_t i) { size_t in = i % a.padded; return i / a.padded * a.real + (in < (size_t)a.real ? in : (size_t)a.real); };
    const size_t cols = padded_axis_length(s->cols), row = at / cols, col = at % cols;
    const bool row_is_real = row % s->rows.padded < (size_t)s->rows.real;
    return before(s->rows, row) * padded_axis_real(s->cols) + (row_is_real ? before(s->cols, col) : 0);
}

// From place `at` on, how many are all real or all zeros; *real: which.
static inline size_t padding_run(const PaddedShape* s, size_t at, bool* real) {
    const size_t cols = padded_axis_length(s->cols), row = at / cols % s->rows.padded, col = at % cols, in = col % s->cols.padded;
    *real = row < (size_t)s->rows.real && in < (size_t)s->cols.real;
    if (row >= (size_t)s->rows.real) { return (s->rows.padded - row) * cols - col; }
    return (*real ? s->cols.real : s->cols.padded) - in;
}

// x holds, one after the other, the real elements of the places at .. at + n; then it holds those places (n), zeros among them. bytes: of an element whose
// zero has no bit set. x has room for n.
static inline void padding_expand(const PaddedShape* s, size_t at, size_t n, void* x, size_t bytes) {
    if (padded_shape_is_plain(s)) { return; }
    const std::vector<char> elements((char*)x, (char*)x + (padding_real(s, at + n) - padding_real(s, at)) * bytes);
    size_t from = 0;
    for (size_t i = 0, run; i < n; i += run) {
        bool real;
        run = padding_run(s, at + i, &real);
        if (run > n - i) { run = n - i; }
        if (real) { memcpy((char*)x + i * bytes, elements.data() + from, run * bytes); } else { memset((char*)x + i * bytes, 0, run * bytes); }
        from += real ? run * bytes : 0;
    }
    assert(from == elements.size());
}

// The way back: of the places at .. at + n in x the real elements remain, at its beginning. Returns how many.
static inline size_t padding_compact(const PaddedShape* s, size_t at, size_t n, void* x, size_t bytes) {
    if (padded_shape_is_plain(s)) { return n; }
    size_t to = 0;
    for (size_t i = 0, run; i < n; i += run) {
        bool real;
        run = padding_run(s, at + i, &real);
        if (run > n - i) { run = n - i; }
        if (!real) { continue; }
        memmove((char*)x + to * bytes, (char*)x + i * bytes, run * bytes);
        to += run;
    }
    return to;
}

#endif
