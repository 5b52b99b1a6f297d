/* common.h - errors with values and a hint, checked C library calls
 *
 * require(cond, hint, fmt, ...) is how this program refuses: always on, one message on stderr with the values, the condition, the place,
 * rank and step, and a HINT line that says what to do; exit code 1. assert() is for internal invariants only and never looks at user input.
 * Host code only: no CUDA here, so that tools and tests can include it alone.
 * One mutable static: error_context(), rank, step and what to print before the end.
 */
#ifndef LLMC_COMMON_H
#define LLMC_COMMON_H

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ----------------------------------------------------------------------------
// errors

// What an error message says besides its own words. before_exit runs once, after the message (prints the last launches, removes temporary files).
typedef struct {
    int rank;                  // process rank, -1 = not known yet (not printed)
    long step;                 // training step, -1 = not training (not printed)
    void (*before_exit)(void);
    // Among ranks, the first that fails says why and the others end quietly. claim: returns if this one may print. announce: it has printed and will end.
    // NULL: alone.
    void (*claim)(void* job, int exit_code);
    void (*announce)(void* job, int exit_code);
    void (*progress)(void* job);  // long work comes along: see note_progress. NULL: nobody watches
    void* job;
} ErrorContext;

static inline ErrorContext* error_context(void) {
    static ErrorContext context = {-1, -1, NULL, NULL, NULL, NULL, NULL};
    return &context;
}
// Every launch and every few MiB of a file call this: whoever watches over the job sees that slow work is no hang. From any thread.
static inline void note_progress(void) {
    ErrorContext* context = error_context();
    if (context->progress) { context->progress(context->job); }
}

// Prints one error message to stderr and ends the process with the given exit code (1: failure, 2: usage).
__attribute__((noreturn, format(printf, 6, 7)))
static inline void fail_at(int exit_code, const char* file, int line, const char* condition, const char* hint, const char* fmt, ...) {
    ErrorContext* context = error_context();
    void (*claim)(void*, int) = context->claim;
    context->claim = NULL;  // an error on the way out must not ask again
    fflush(stdout);
    if (claim) { claim(context->job, exit_code); }
    fprintf(stderr, "ERROR: ");
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    if (exit_code != 2) {  // a usage error is the user's line, not ours: the place in the source would only distract
        fprintf(stderr, "\n       at %s:%d", file, line);
        if (condition[0]) { fprintf(stderr, ", where %s does not hold", condition); }
        if (context->rank >= 0) { fprintf(stderr, ", rank %d", context->rank); }
        if (context->step >= 0) { fprintf(stderr, ", step %ld", context->step); }
    }
    if (hint[0]) { fprintf(stderr, "\nHINT:  %s", hint); }
    fprintf(stderr, "\n");
    fflush(stderr);
    void (*before_exit)(void) = context->before_exit;
    context->before_exit = NULL;  // an error inside before_exit must not loop
    if (before_exit) { before_exit(); }
    if (context->announce) { context->announce(context->job, exit_code); }
    exit(exit_code);
}

// require(cond, hint, fmt, ...): ends the program with a message unless cond holds. hint: what the user can do, "" if nothing.
#define require(cond, hint, ...) \
    do { if (!(cond)) { fail_at(1, __FILE__, __LINE__, #cond, hint, __VA_ARGS__); } } while (0)
// fail(hint, fmt, ...): the same without a condition. fail_usage: a wrong command line, exit code 2.
#define fail(hint, ...) fail_at(1, __FILE__, __LINE__, "", hint, __VA_ARGS__)
#define fail_usage(hint, ...) fail_at(2, __FILE__, __LINE__, "", hint, __VA_ARGS__)

// ----------------------------------------------------------------------------
// C library calls that must succeed (names as in llm.c's utils.h)

static inline void* malloc_check(size_t bytes, const char* file, int line) {
    void* p = malloc(bytes ? bytes : 1);
    if (!p) { fail_at(1, file, line, "", "close other programs or choose a smaller model or batch", "out of host memory: malloc of %zu bytes failed", bytes); }
    return p;
}
static inline FILE* fopen_check(const char* path, const char* mode, const char* file, int line) {
    FILE* fp = fopen(path, mode);
    if (!fp) { fail_at(1, file, line, "", "check the path and its permissions", "cannot open '%s' (mode %s): %s", path, mode, strerror(errno)); }
    return fp;
}
#define mallocCheck(bytes) malloc_check(bytes, __FILE__, __LINE__)
#define fopenCheck(path, mode) fopen_check(path, mode, __FILE__, __LINE__)

// ----------------------------------------------------------------------------
// small helpers

#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define ROUND_UP(a, b) (CEIL_DIV(a, b) * (b))

#endif
