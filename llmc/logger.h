/* logger.h - main.log: one line an event, in llm.c's words, so that its plotting tools read ours
 *
 *     s:%d tel:%.4f                         validation loss (nats a token) at step s, 0-based
 *     s:%d eval:%.4f                        accuracy of the evaluation, 0..1
 *     s:%d trl:%.4f lr:%.6f norm:%.2f       update s: training loss, learning rate, gradient norm before clipping
 *
 * A fresh start empties the file. A resume at step s keeps what happened before the checkpoint of step s: training lines below s, tel and eval up to s;
 * later lines are cut, atomically, and so is a half-written last line. (llm.c keeps them, and steps appear twice.) Lines that are not
 * ours stay. The evaluation of step s, which a resume repeats, is not written a second time if it says the same.
 * Lines go out one write each, with O_APPEND. A log that cannot be written does not end a run: one warning, and it tries again at the next line.
 * Rank 0 only: elsewhere call logger_init with folder NULL, and every call does nothing.
 * Tests: dev/test/test_checkpoint_files.cu  */
#ifndef LLMC_LOGGER_H
#define LLMC_LOGGER_H

#include <string>

#include "llmc/files.h"

typedef struct {
    char path[FILE_PATH_MAX];   // "": off
    bool warned;
    std::string repeated;       // kept tel and eval lines of the resumed step
} Logger;

// True if a line of main.log belongs to the past of a run that resumes at `step`.
static inline bool logger_keeps(const char* line, int step) {
    long s = 0;
    char kind[8] = "";
    if (sscanf(line, "s:%ld %7[a-z]:", &s, kind) != 2) { return true; }
    return s < step || (s == step && strcmp(kind, "trl") != 0);
}

// Cuts the file to the past of `step`; keeps the file as it is if nothing is to be cut.
static inline bool logger_cut(Logger* log, int step, FileError* error) {
    char prefix[32];
    snprintf(prefix, sizeof(prefix), "s:%d ", step);
    return file_keep_lines(log->path, [&](const std::string& line) {
        const bool keeps = logger_keeps(line.c_str(), step);
        if (keeps && !line.compare(0, strlen(prefix), prefix)) { log->repeated += line; }
        return keeps;
    }, error);
}

// folder: output folder, exists; NULL or "": no log. resume_step: -1 = fresh start (empties main.log), else the step of the checkpoint resumed from (0: a
// resume was asked for and nothing was found).
static inline bool logger_init(Logger* log, const char* folder, int resume_step, FileError* error) {
    log->path[0] = 0;
    log->warned = false;
    log->repeated = "";
    if (!folder || !folder[0]) { return true; }
    snprintf(log->path, sizeof(log->path), "%s/main.log", folder);
    if (resume_step >= 0) { return logger_cut(log, resume_step, error); }
    AtomicFile empty;
    return atomic_file_open(&empty, log->path, 0, error) && atomic_file_commit(&empty, error);
}

static inline void logger_write(Logger* log, const char* line) {
    if (!log->path[0]) { return; }
    if (log->repeated.find(line) != std::string::npos) { return; }
    const int code = file_append_lines(log->path, line, strlen(line));
    if (code && !log->warned) {
        fprintf(stderr, "WARNING: cannot write to '%s': %s; training goes on\n", log->path, code < 0 ? "disk full" : strerror(code));
        log->warned = true;
    }
}

static inline void logger_log_val(Logger* log, int step, float loss) {
    char line[64];
    snprintf(line, sizeof(line), "s:%d tel:%.4f\n", step, loss);
    logger_write(log, line);
}
static inline void logger_log_eval(Logger* log, int step, float accuracy) {
    char line[64];
    snprintf(line, sizeof(line), "s:%d eval:%.4f\n", step, accuracy);
    logger_write(log, line);
}
static inline void logger_log_train(Logger* log, int step, float loss, float lr, float norm) {
    char line[160];
    snprintf(line, sizeof(line), "s:%d trl:%.4f lr:%.6f norm:%.2f\n", step, loss, lr, norm);
    logger_write(log, line);
}

#endif
