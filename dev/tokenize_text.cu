/* tokenize_text.cu - a text to a token shard, without Python: what the makers in data/ call for GPT-2's tokens
 *
 *   make build/tokenize_text
 *   build/tokenize_text TEXT TOKENIZER OUT [none|blank-line|nul|endoftext]
 *
 * TEXT       any bytes; /dev/stdin for a pipe.      TOKENIZER  gpt2_tokenizer.bin or another (llmc/tokenizer.h).
 * OUT        llm.c's token shard (llmc/dataloader.h), up to 2^31 - 1 tokens; appears whole or not at all.
 * Documents: the end-of-text token precedes each. They end with the text, and before that (last argument, default none)
 *            blank-line  behind two newlines, which stay part of the document, as in llm.c's tinyshakespeare
 *            nul         at a 0 byte                  endoftext  at the words <|endoftext|>; these two are dropped
 *            Behind a last separator there is no further document. Inside a document nothing is special.
 * Memory:    a window of the text and its tokens; the longest document does not matter unless it has neither spaces nor line ends.
 * Exit code: 0 made, 1 failed (message and hint, OUT as it was), 2 wrong arguments.      Tests: dev/test/test_tokenizer.cu */
#include <time.h>

#include "llmc/dataloader.h"
#include "llmc/files.h"
#include "llmc/tokenizer_encode.h"

static const struct { const char *name, *separator; size_t bytes; bool keep; } tokenize_modes[] = {
    {"none", "", 0, false}, {"blank-line", "\n\n", 2, true}, {"nul", "", 1, false}, {"endoftext", "<|endoftext|>", 13, false}};
#define TOKENIZE_NUM_MODES ((int)(sizeof(tokenize_modes) / sizeof(tokenize_modes[0])))

typedef struct {
    TokenizerEncoder encoder;
    AtomicFile out;
    FileError error;
    uint64_t documents, tokens, bytes;  // so far
    double start, reported;             // seconds
} TokenizeJob;

static TokenizeJob tokenize_job;  // one a process: tokenize_cleanup, called on the way out of an error, must find the open file
static void tokenize_cleanup(void) { atomic_file_abort(&tokenize_job.out); }

static double tokenize_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void tokenize_report(const TokenizeJob* job, const char* path) {
    double seconds = tokenize_seconds() - job->start;
    printf("%s: %llu documents, %llu tokens of %llu bytes, %.1f s, %.0f tokens/s\n", path, (unsigned long long)job->documents,
           (unsigned long long)job->tokens, (unsigned long long)job->bytes, seconds, (double)job->tokens / (seconds > 1e-9 ? seconds : 1e-9));
    fflush(stdout);
}

// Writes ids (n) as 16-bit tokens.
static void tokenize_write(TokenizeJob* job, const int* ids, size_t n) {
    uint16_t tokens[4096];
    job->tokens += n;
    require(job->tokens <= 0x7fffffff, "divide the text into several files", "the text has more than the 2147483647 tokens that a shard can hold");
    for (size_t done = 0, count; done < n; done += count) {
        count = n - done < 4096 ? n - done : 4096;
        for (size_t i = 0; i < count; i++) { tokens[i] = (uint16_t)ids[done + i]; }
        fileCheck(atomic_file_write(&job->out, tokens, 2 * count, &job->error), &job->error);
    }
}

// Reads the text window by window. window: bytes, more only where a window has no place to cut.
static void tokenize_stream(TokenizeJob* job, FILE* text, const char* path, int mode, size_t window) {
    unsigned char* buffer = (unsigned char*)mallocCheck(window);
    const int eot = (int)job->encoder.tokenizer->eot;
    size_t count = 0;  // bytes in the buffer
    bool at_end = false, in_document = false;
    while (!at_end) {
        count += fread(buffer + count, 1, window - count, text);
        require(!ferror(text), "check the path and the disk", "cannot read the text '%s': %s", path, strerror(errno));
        at_end = count < window;
        size_t done = 0;
        while (done < count) {
            const unsigned char *p = buffer + done, *found = NULL;
            const size_t rest = count - done, separator_bytes = tokenize_modes[mode].bytes, kept = tokenize_modes[mode].keep ? separator_bytes : 0;
            if (separator_bytes > 0) { found = (const unsigned char*)memmem(p, rest, tokenize_modes[mode].separator, separator_bytes); }
            size_t bytes = found ? (size_t)(found - p) + kept : at_end ? rest : tokenizer_last_cut(p, rest);
            if (bytes == 0 && !found) { break; }  // undecided before more is read
            if (!in_document) {
                tokenize_write(job, &eot, 1);
                job->documents++;
            }
            tokenizer_encode(&job->encoder, p, bytes, false);
            tokenize_write(job, job->encoder.ids, job->encoder.count);
            done += bytes + (found ? separator_bytes - kept : 0);
            in_document = !found;
        }
        job->bytes += done;
        memmove(buffer, buffer + done, count - done);
        count -= done;
        if (count > window / 2 && !at_end) {  // grow, so that what is looked through again stays in proportion
            unsigned char* larger = (unsigned char*)mallocCheck(2 * window);
            memcpy(larger, buffer, count);
            free(buffer);
            buffer = larger;
            window *= 2;
        }
        if (tokenize_seconds() - job->reported > 2) {
            tokenize_report(job, path);
            job->reported = tokenize_seconds();
        }
    }
    free(buffer);
}

static int tokenize_main(int argc, char** argv, size_t window) {
    const char* usage = "tokenize_text TEXT TOKENIZER OUT [none|blank-line|nul|endoftext]";
    if (argc < 4 || argc > 5) { fail_usage(usage, "3 or 4 arguments are needed, not %d", argc - 1); }
    int mode = 0;
    while (argc == 5 && mode < TOKENIZE_NUM_MODES && strcmp(argv[4], tokenize_modes[mode].name) != 0) { mode++; }
    if (mode == TOKENIZE_NUM_MODES) { fail_usage(usage, "'%s' is no way to tell documents apart", argv[4]); }
    TokenizeJob* job = &tokenize_job;
    job->start = job->reported = tokenize_seconds();
    Tokenizer tokenizer;
    tokenizer_init(&tokenizer, argv[2]);
    tokenizer_encode_init(&job->encoder, &tokenizer, argv[2]);
    require(tokenizer.vocab_size <= 65536, "use GPT-2's tokenizer", "the tokenizer '%s' has %u tokens; a token shard holds numbers below 65536",
            argv[2], tokenizer.vocab_size);
    FILE* text = fopenCheck(argv[1], "rb");
    int32_t header[SHARD_HEADER_BYTES / 4] = {SHARD_MAGIC, 1};
    fileCheck(atomic_file_open(&job->out, argv[3], 0, &job->error), &job->error);
    error_context()->before_exit = tokenize_cleanup;
    fileCheck(atomic_file_write(&job->out, header, sizeof(header), &job->error), &job->error);
    tokenize_stream(job, text, argv[1], mode, window);
    fclose(text);
    require(job->tokens > 0, "", "the text '%s' is empty", argv[1]);
    header[2] = (int32_t)job->tokens;
    fileCheck(atomic_file_patch(&job->out, 0, header, sizeof(header), &job->error) && atomic_file_commit(&job->out, &job->error), &job->error);
    error_context()->before_exit = NULL;
    tokenize_report(job, argv[3]);
    tokenizer_encode_free(&job->encoder);
    tokenizer_free(&tokenizer);
    return 0;
}

#ifndef TESTING
int main(int argc, char** argv) { return tokenize_main(argc, argv, 8 << 20); }
#endif
