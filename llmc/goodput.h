/* goodput.h - goodput.log: the share of wall time that trained, over all starts of a run
 *
 * What:      one line a start: seconds by class, the steps it went through, how it ended. A resume reads the lines of earlier starts: steps of theirs beyond
 *            the step resumed from are lost, in proportion to their training seconds; from the last line of one start to the begin of the next is "between
 *            starts", unless the earlier one was done. goodput = (training - lost) / (all classes + between).
 * File:      lines of 128 bytes; the first names the columns, and is the version: another table, another file. The line of the present start is overwritten
 *            in place, with one write, at most once a second. 128 divides a page, so the kernel takes a line whole or not at all: kill -9 leaves no half one.
 * Errors:    none ends a run. What is not a whole file of this format becomes goodput.log.old and the figures are those of this start, as they are where the
 *            file cannot be written; note says so. A clock that was set back: no time passed. Seconds are the caller's, from a clock that only goes forward.
 * Memory:    none but the struct. One owner, one thread: rank 0; elsewhere folder is NULL, and nothing is written.
 * Tests:     dev/test/test_goodput.cu  */
#ifndef LLMC_GOODPUT_H
#define LLMC_GOODPUT_H

#include "llmc/files.h"

#define GOODPUT_CLASSES(X) \
    X(LOADING,    "loading")     /* from the process' start to its first step */ \
    X(TRAINING,   "training")    /* finished optimizer steps */ \
    X(EVALUATING, "evaluating")  /* validation, questions, samples */ \
    X(SAVING,     "saving")      /* what training waited for a checkpoint: copying it, and one that was still being written */ \
    X(OTHER,      "other")       /* the rest; nobody adds to it */
#define GOODPUT_CLASS_ID(id, name) GOODPUT_##id,
#define GOODPUT_CLASS_NAME(id, name) name,
typedef enum { GOODPUT_CLASSES(GOODPUT_CLASS_ID) NUM_GOODPUT_CLASSES } GoodputClass;
static const char* const goodput_class_names[NUM_GOODPUT_CLASSES] = {GOODPUT_CLASSES(GOODPUT_CLASS_NAME)};

typedef enum { GOODPUT_RUNNING, GOODPUT_SAVED, GOODPUT_DONE, NUM_GOODPUT_ENDS } GoodputEnd;  // running: or killed; saved: a signal ended it
static const char* const goodput_end_names[NUM_GOODPUT_ENDS] = {"running", "saved", "done"};

#define GOODPUT_LINE 128            // bytes, with the line break
#define GOODPUT_SECONDS_MAX 99999999.999
#define GOODPUT_WRITE_SECONDS 1.0

typedef struct {
    double begin, written;          // unix time of the process' start, and up to which the seconds count
    int first, last;                // steps finished when it began (the step resumed from, or 0), and by now
    double seconds[NUM_GOODPUT_CLASSES];
    GoodputEnd end;
} GoodputStart;

typedef struct {
    char path[FILE_PATH_MAX];
    int fd;                         // -1: no file
    uint64_t offset;                // of this start's line
    double wrote;                   // unix time of the last writing
    bool warned;
    GoodputStart now;
    int starts;                     // with this one
    double earlier[NUM_GOODPUT_CLASSES], lost, between;  // seconds of the starts before; lost: part of earlier[GOODPUT_TRAINING]
    char note[FILE_PATH_MAX + 512]; // what goodput_open has to say, "": nothing
} Goodput;

// ----------------------------------------------------------------------------
// lines

static inline double goodput_clamp(double x, double limit) { return x > 0.0 ? x < limit ? x : limit : 0.0; }  // of what is not a number: 0

// The first line of a file: the columns.
static inline void goodput_format_header(char line[GOODPUT_LINE + 1]) {
    int n = snprintf(line, GOODPUT_LINE + 1, "%14s %14s %10s %10s", "begin (unix s)", "written", "first step", "last step");
    for (int i = 0; i < NUM_GOODPUT_CLASSES; i++) { n += snprintf(line + n, GOODPUT_LINE + 1 - n, " %12s", goodput_class_names[i]); }
    snprintf(line + n, GOODPUT_LINE + 1 - n, " %-*s\n", GOODPUT_LINE - 2 - n, "end");
}
static inline void goodput_format(char line[GOODPUT_LINE + 1], const GoodputStart* s) {
    int n = snprintf(line, GOODPUT_LINE + 1, "%14.3f %14.3f %10d %10d", goodput_clamp(s->begin, 9999999999.0), goodput_clamp(s->written, 9999999999.0), s->first, s->last);
    for (int i = 0; i < NUM_GOODPUT_CLASSES; i++) { n += snprintf(line + n, GOODPUT_LINE + 1 - n, " %12.3f", goodput_clamp(s->seconds[i], GOODPUT_SECONDS_MAX)); }
    snprintf(line + n, GOODPUT_LINE + 1 - n, " %-*s\n", GOODPUT_LINE - 2 - n, goodput_end_names[s->end]);
}

// False unless line is, to the byte, what goodput_format makes.
static inline bool goodput_parse(const char line[GOODPUT_LINE + 1], GoodputStart* s) {
    char end[16] = "", again[GOODPUT_LINE + 1];
    int at = 0, n = 0;
    if (sscanf(line, "%lf %lf %d %d%n", &s->begin, &s->written, &s->first, &s->last, &at) != 4 || s->first < 0 || s->last < s->first) { return false; }
    for (int i = 0; i < NUM_GOODPUT_CLASSES; i++, at += n) { if (sscanf(line + at, "%lf%n", &s->seconds[i], &n) != 1) { return false; } }
    if (sscanf(line + at, "%15s", end) != 1) { return false; }
    int e = 0;
    while (e < NUM_GOODPUT_ENDS && strcmp(end, goodput_end_names[e])) { e++; }
    if (e == NUM_GOODPUT_ENDS) { return false; }
    s->end = (GoodputEnd)e;
    goodput_format(again, s);
    return !memcmp(line, again, GOODPUT_LINE);
}

// ----------------------------------------------------------------------------
// the file

// The starts before, from the newest to the oldest: only later ones, which it knows by then, make steps of a start lost.
static inline bool goodput_read(Goodput* g, uint64_t size, bool* clock_back) {
    char line[GOODPUT_LINE + 1] = "", header[GOODPUT_LINE + 1];
    FileError error;
    InputFile in;
    if (!input_file_open(&in, g->path, &error)) { return false; }
    goodput_format_header(header);
    bool ok = input_file_read_at(&in, 0, line, GOODPUT_LINE, &error) && !memcmp(line, header, GOODPUT_LINE);
    GoodputStart s = g->now;
    int kept = g->now.first;  // steps up to here are part of the model
    for (uint64_t at = size; ok && at > GOODPUT_LINE; g->starts++) {
        const double next = s.begin;
        at -= GOODPUT_LINE;
        ok = input_file_read_at(&in, at, line, GOODPUT_LINE, &error) && goodput_parse(line, &s);
        if (!ok) { break; }
        const int steps = s.last - s.first, lost = s.last - (kept > s.first ? kept : s.first);
        if (lost > 0) { g->lost += s.seconds[GOODPUT_TRAINING] * lost / steps; }
        if (kept > s.first) { kept = s.first; }
        for (int i = 0; i < NUM_GOODPUT_CLASSES; i++) { g->earlier[i] += s.seconds[i]; }
        if (next < s.written) { *clock_back = true; } else if (s.end != GOODPUT_DONE) { g->between += next - s.written; }
    }
    input_file_close(&in);
    return ok;
}

static inline void goodput_forget(Goodput* g) {  // the starts before
    g->starts = 1;
    g->lost = g->between = 0.0;
    memset(g->earlier, 0, sizeof(g->earlier));
}
// Without a file from here on.
static inline void goodput_give_up(Goodput* g, int code) {
    goodput_forget(g);
    snprintf(g->note, sizeof(g->note), "cannot write '%s': %s; goodput counts this start only", g->path, strerror(code));
    if (g->fd >= 0) { close(g->fd); }
    g->fd = -1;
}

// Forgets the starts before, and moves what is there out of the way.
static inline bool goodput_start_afresh(Goodput* g, const char* why) {
    char old[FILE_PATH_MAX + 8];
    goodput_forget(g);
    snprintf(old, sizeof(old), "%s.old", g->path);
    if (file_fault() || rename(g->path, old) != 0) { goodput_give_up(g, errno); return false; }
    snprintf(g->note, sizeof(g->note), "goodput.log %s is now goodput.log.old", why);
    return true;
}

// folder: output folder, exists; NULL or "": no file. resumed_step: -1 = fresh start (a goodput.log that is there becomes goodput.log.old), else the step of the
// checkpoint resumed from (0: a resume was asked for and nothing was found). begin: unix time of the process' start, in seconds. Then note may say something.
static inline void goodput_open(Goodput* g, const char* folder, int resumed_step, double begin) {
    memset(g, 0, sizeof(*g));
    g->fd = -1;
    g->starts = 1;
    g->now.begin = g->now.written = g->wrote = begin;
    g->now.first = g->now.last = resumed_step > 0 ? resumed_step : 0;
    if (!folder || !folder[0]) { return; }
    snprintf(g->path, sizeof(g->path), "%s/goodput.log", folder);
    struct stat st;
    uint64_t size = 0;  // of whole lines that stay
    bool clock_back = false;
    const bool found = !file_fault() && lstat(g->path, &st) == 0;
    if (!found && errno != ENOENT) { goodput_give_up(g, errno); return; }
    if (found && !(S_ISREG(st.st_mode) && st.st_size == 0)) {  // empty: a start that was killed between making and writing it
        if (resumed_step < 0) {
            if (!goodput_start_afresh(g, "of an earlier run")) { return; }
        } else if (!S_ISREG(st.st_mode) || !goodput_read(g, (uint64_t)st.st_size, &clock_back)) {
            if (!goodput_start_afresh(g, "is damaged or of another version: goodput counts from this start on. It")) { return; }
        } else {
            size = (uint64_t)st.st_size;
        }
    }
    if (size && clock_back) { snprintf(g->note, sizeof(g->note), "goodput: the clock was set back between starts: some time between them is not counted"); }
    g->fd = file_fault() ? -1 : open(g->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (g->fd < 0) { goodput_give_up(g, errno); return; }
    char lines[2 * GOODPUT_LINE + 1];
    goodput_format_header(lines);
    goodput_format(lines + GOODPUT_LINE, &g->now);
    g->offset = size ? size : GOODPUT_LINE;
    int code = size ? file_put(g->fd, lines + GOODPUT_LINE, GOODPUT_LINE, size) : file_put(g->fd, lines, 2 * GOODPUT_LINE, 0);
    if (code) {
        if (ftruncate(g->fd, (off_t)size) != 0) {}  // no half line; if that fails, the next start finds it
        goodput_give_up(g, code);
    }
}

static inline void goodput_write(Goodput* g) {
    g->wrote = g->now.written;
    if (g->fd < 0) { return; }
    char line[GOODPUT_LINE + 1];
    goodput_format(line, &g->now);
    int code = file_put(g->fd, line, GOODPUT_LINE, g->offset);
    if (code && !g->warned) {
        fprintf(stderr, "WARNING: cannot write to '%s': %s; training goes on\n", g->path, strerror(code));
        g->warned = true;
    }
}

// ----------------------------------------------------------------------------
// what the run says

static inline void goodput_add(Goodput* g, GoodputClass which, double seconds) { g->now.seconds[which] += goodput_clamp(seconds, GOODPUT_SECONDS_MAX); }

static inline void goodput_update(Goodput* g, int step, double now) {
    double rest = now - g->now.begin;
    for (int i = 0; i < GOODPUT_OTHER; i++) { rest -= g->now.seconds[i]; }
    g->now.seconds[GOODPUT_OTHER] = goodput_clamp(rest, GOODPUT_SECONDS_MAX);
    g->now.written = now;
    g->now.last = step;
}

// step: steps finished, from the one resumed from on. now: unix time in seconds.
static inline void goodput_tick(Goodput* g, int step, double now) {
    goodput_update(g, step, now);
    if (now - g->wrote >= GOODPUT_WRITE_SECONDS || now < g->wrote) { goodput_write(g); }
}

// The last call but goodput_text.
static inline void goodput_end(Goodput* g, GoodputEnd how, int step, double now) {
    goodput_update(g, step, now);
    g->now.end = how;
    goodput_write(g);
    if (g->fd >= 0) { close(g->fd); }
    g->fd = -1;
}

// "4.2s", "35s", "2m05s", "3h07m", "2d01h"
static inline const char* goodput_duration(char text[24], double seconds) {
    const long s = (long)(seconds + 0.5);
    if (seconds < 9.95) { snprintf(text, 24, "%.1fs", seconds); }
    else if (s < 60) { snprintf(text, 24, "%lds", s); }
    else if (s < 3600) { snprintf(text, 24, "%ldm%02lds", s / 60, s % 60); }
    else if (s < 86400) { snprintf(text, 24, "%ldh%02ldm", s / 3600, s / 60 % 60); }
    else { snprintf(text, 24, "%ldd%02ldh", s / 86400, s / 3600 % 24); }
    return text;
}

#define GOODPUT_TEXT_MAX 320

// One line, as of the last tick: "goodput 93.1% of 1h02m: training 58m10s, loading 20s, ..., lost steps 40s, between starts 1m10s (3 starts)". What would show as
// 0.0s is left out, but for training; the parts are all of the time.
static inline const char* goodput_text(const Goodput* g, char text[GOODPUT_TEXT_MAX]) {
    double seconds[NUM_GOODPUT_CLASSES + 2], all = g->between;
    const char* names[NUM_GOODPUT_CLASSES + 2];
    for (int i = 0; i < NUM_GOODPUT_CLASSES; i++) {
        seconds[i] = g->earlier[i] + g->now.seconds[i];
        names[i] = goodput_class_names[i];
        all += seconds[i];
    }
    seconds[GOODPUT_TRAINING] -= g->lost;
    seconds[NUM_GOODPUT_CLASSES] = g->lost;
    names[NUM_GOODPUT_CLASSES] = "lost steps";
    seconds[NUM_GOODPUT_CLASSES + 1] = g->between;
    names[NUM_GOODPUT_CLASSES + 1] = "between starts";
    char duration[24], part[24];
    int n = snprintf(text, GOODPUT_TEXT_MAX, "goodput %.1f%% of %s: training %s", all > 0.0 ? 100.0 * seconds[GOODPUT_TRAINING] / all : 0.0, goodput_duration(duration, all),
                     goodput_duration(part, seconds[GOODPUT_TRAINING]));
    for (int i = 0; i < NUM_GOODPUT_CLASSES + 2; i++) {
        if (i != GOODPUT_TRAINING && seconds[i] >= 0.05) { n += snprintf(text + n, GOODPUT_TEXT_MAX - n, ", %s %s", names[i], goodput_duration(part, seconds[i])); }
    }
    snprintf(text + n, GOODPUT_TEXT_MAX - n, " (%d start%s)", g->starts, g->starts > 1 ? "s" : "");
    return text;
}

#endif
