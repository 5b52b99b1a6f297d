/* control.h - the control plane: ranks join with a job token, small operations by name, and a watch that ends all processes when one fails
 *
 * What:      a TCP star. Rank 0, the hub, listens on one interface while the ranks join (control_join.h), then not any more. Each process has a control
 *            thread (control_watch.h) that sends four times a second what its main thread and its writing thread do (control_note), and ends the process when
 *            the hub says so or is gone: with one message in all, within 2 s.
 * Use:       control_start; notes and control_progress all the time; operations; control_finish. Errors: control_claim, print, control_fail, exit.
 * Sockets:   besides, every peer keeps one listening socket on the address of its link, which never accepts: by it the others see that the rank lives when
 *            the hub is gone.
 * Errors:    control_start: NULL with a FileError. Later ones end the process with config.exit_code; misuse (a name used twice at once): require.
 * Memory:    below 2 MiB a rank on the hub, and size * bytes while a gather runs. No statics.
 * Tests:     dev/test/test_control.cu */
#ifndef LLMC_CONTROL_H
#define LLMC_CONTROL_H

#include <sys/eventfd.h>

#include "llmc/control_join.h"
#include "llmc/control_watch.h"

// ----------------------------------------------------------------------------
// what the trainer calls

// Frees a Control whose thread does not run.
static inline void control_free(Control* c) {
    while (c->ops) {
        ControlOp* op = c->ops;
        c->ops = op->next;
        control_op_free(c, op);
    }
    for (int i = 0; i < c->num_links; i++) { control_link_close(&c->links[i]); }
    if (c->listener >= 0) { close(c->listener); }
    if (c->wake >= 0) { close(c->wake); }
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->changed);
    free(c->links);
    free(c->places);
    free(c->polls);
    free(c);
}

static inline Control* control_new(const ControlConfig* config) {
    Control* c = (Control*)mallocCheck(sizeof(Control));
    memset(c, 0, sizeof(*c));
    c->ranks = *config->ranks;
    c->config = *config;
    if (c->config.join_seconds <= 0) { c->config.join_seconds = 60; }
    if (c->config.watchdog_seconds <= 0) { c->config.watchdog_seconds = 60; }
    if (c->config.exit_code == 0) { c->config.exit_code = 1; }
    snprintf(c->identity, sizeof(c->identity), "%s", config->identity);
    c->bound = c->config.watchdog_seconds;
    c->interval = c->bound / 8 < 0.25 ? c->bound / 8 : 0.25;
    c->main_thread = pthread_self();
    c->wake = c->listener = c->claim_rank = -1;
    for (auto& note : c->note) { note.step = -1; }
    c->num_links = c->ranks.rank == 0 ? c->ranks.size : 1;
    c->links = (ControlLink*)mallocCheck((size_t)c->num_links * sizeof(ControlLink));
    c->polls = (struct pollfd*)mallocCheck((size_t)(c->num_links + 1) * sizeof(struct pollfd));
    c->places = (ControlPlace*)mallocCheck((size_t)c->ranks.size * sizeof(ControlPlace));
    memset(c->places, 0, (size_t)c->ranks.size * sizeof(ControlPlace));
    for (int i = 0; i < c->num_links; i++) { control_link_init(&c->links[i], -1); c->links[i].beat.doing[CONTROL_MAIN].step = -1; }
    control_place_init(&c->places[c->ranks.rank], &c->ranks);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&c->mutex, NULL);
    return c;
}

// Meets and joins; the links are there afterwards.
static inline bool control_meet(Control* c, FileError* error) {
    const Ranks* r = &c->ranks;
    ControlContact contact;
    char path[FILE_PATH_MAX] = "";
    int listener = -1;
    memset(&contact, 0, sizeof(contact));
    contact.port = r->port;
    if (r->contact == RANKS_FILE) { control_file_path(r, path); }
    if (r->contact == RANKS_TCP) { control_token_tcp(contact.token, &c->config); }
    else if (r->rank == 0 && !control_random(contact.token, sizeof(contact.token))) {
        return file_error(error, errno, "", "no random numbers for the job's token: %s", strerror(errno));
    }
    if (r->rank == 0) {
        listener = control_listen_hub(r, &contact, error);
        contact.good = listener >= 0 && (!path[0] || control_file_write(path, r, &contact, error));
    }
    bool good = r->rank != 0 || contact.good;
    if (r->contact == RANKS_MPI) {
        if (!c->config.broadcast(&contact, (int)sizeof(contact))) {
            good = file_error(error, 0, "look at the messages of MPI", "the MPI broadcast of rank 0's address failed on rank %d (host %s)", r->rank, r->host);
        } else if (!contact.good && r->rank != 0) {
            _exit(c->config.exit_code);  // rank 0 prints why
        }
    }
    if (good) { good = r->rank == 0 ? control_join_hub(c, listener, &contact, path, error) : control_join_peer(c, &contact, path, error); }
    if (listener >= 0) { close(listener); }
    if (r->rank == 0 && path[0]) {
        ControlContact seen;
        char why[256];
        if (control_file_read(path, r, &seen, why) && !memcmp(seen.token, contact.token, 16)) { unlink(path); }
    }
    if (!good && r->rank == 0) {  // those that have joined end quietly
        const int32_t code = c->config.exit_code;
        control_send_to_all(c, CONTROL_ABORT, &code, sizeof(code));
        control_drain(c, control_monotonic() + 0.7);
    }
    return good;
}

// Meets the other ranks and starts the control thread, which blocks all signals (they are the main thread's). NULL with an error if that fails; ranks whose
// failure rank 0 prints end here with the exit code. size 1: no socket, operations return at once; the thread is there and watches over the files.
static inline Control* control_start(const ControlConfig* config, FileError* error) {
    assert(config->identity && strlen(config->identity) < CONTROL_TEXT_MAX);
    assert(config->ranks->contact != RANKS_MPI || config->broadcast);
    Control* c = control_new(config);
    struct rlimit files;
    const rlim_t files_needed = (rlim_t)c->ranks.size * 3 + 256;  // links and strangers; the trainer's own
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files_needed && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max < files_needed ? files.rlim_max : files_needed;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    c->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    bool good = c->wake >= 0 || file_error(error, errno, "raise the limit of open files (ulimit -n)", "no eventfd: %s", strerror(errno));
    if (!good || (c->ranks.size > 1 && !control_meet(c, error))) { control_free(c); return NULL; }
    c->looked = control_monotonic();
    for (int i = 0; i < c->num_links; i++) { c->links[i].heard = c->looked; }
    if (c->ranks.rank == 0) {
        c->started = true;
        control_send_to_all(c, CONTROL_START, c->places, (size_t)c->ranks.size * sizeof(ControlPlace));
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&c->thread, NULL, control_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code != 0) {
        file_error(error, code, "raise the limit of processes (ulimit -u)", "rank %d (host %s) cannot start its control thread: %s", c->ranks.rank, c->ranks.host, strerror(code));
        control_free(c);
        return NULL;
    }
    // the hub itself waits for the last rank no longer than join_seconds, and began before this rank joined
    const struct timespec until = control_timespec(control_monotonic() + c->config.join_seconds + 5);
    pthread_mutex_lock(&c->mutex);
    while (!c->started && pthread_cond_timedwait(&c->changed, &c->mutex, &until) != ETIMEDOUT) {}
    if (!c->started) {
        control_judge(c, CONTROL_HINT_HANG, "rank %d (host %s) has joined, but rank 0 has not started the run within %.1f s", c->ranks.rank, c->ranks.host,
                      c->config.join_seconds + 5);
    }
    while (!c->started) { pthread_cond_wait(&c->changed, &c->mutex); }
    pthread_mutex_unlock(&c->mutex);
    return c;
}

// The calling thread's note: -1 if it has none.
static inline int control_thread(const Control* c) {
    if (pthread_equal(pthread_self(), c->main_thread)) { return CONTROL_MAIN; }
    return __atomic_load_n(&c->has_writer, __ATOMIC_ACQUIRE) && pthread_equal(pthread_self(), c->writer) ? CONTROL_WRITER : -1;
}
static inline void control_set_note(Control* c, const char* op, int64_t step, int manner) {
    const int thread = control_thread(c);
    if (thread < 0) { return; }
    auto& note = c->note[thread];
    uint64_t text[CONTROL_NAME_MAX / 8] = {0};
    memcpy(text, op, strnlen(op, CONTROL_NAME_MAX - 1));
    uint64_t sequence = __atomic_load_n(&note.sequence, __ATOMIC_RELAXED);
    __atomic_store_n(&note.sequence, sequence + 1, __ATOMIC_RELAXED);
    for (int i = 0; i < CONTROL_NAME_MAX / 8; i++) { __atomic_store_n(&note.op[i], text[i], __ATOMIC_RELEASE); }
    __atomic_store_n(&note.step, step, __ATOMIC_RELEASE);
    __atomic_store_n(&note.manner, manner, __ATOMIC_RELEASE);
    __atomic_store_n(&note.sequence, sequence + 2, __ATOMIC_RELEASE);
}
// What the main thread does now, or the writing thread; those of other threads are not kept. op: its first CONTROL_NAME_MAX - 1 bytes are. A few stores: call
// it as often as you like. step: -1 before the first. _wait: an operation in which this rank waits for all others (a collective, a stream with one): a rank in
// it longer than the bound while another is elsewhere as long without a new note is a hang, and so is all ranks being in it that long. _disk: work on files,
// which must come along: without a new note, or control_progress, for the bound the run ends. _thread: the main thread waits for the writing thread.
static inline void control_note(Control* c, const char* op, long step) { control_set_note(c, op, step, CONTROL_FREE); }
static inline void control_note_wait(Control* c, const char* op, long step) { control_set_note(c, op, step, CONTROL_WAIT); }
static inline void control_note_disk(Control* c, const char* op, long step) { control_set_note(c, op, step, CONTROL_DISK); }
static inline void control_note_thread(Control* c, const char* op, long step) { control_set_note(c, op, step, CONTROL_THREAD); }
// The calling thread's work comes along: its note is as good as new. Two stores.
static inline void control_progress(Control* c) {
    const int thread = control_thread(c);
    if (thread >= 0) { __atomic_store_n(&c->note[thread].sequence, c->note[thread].sequence + 2, __ATOMIC_RELEASE); }
}
// The calling thread becomes the writing thread, of which there is one at a time, or is it no longer.
static inline void control_writer_begin(Control* c) {
    c->writer = pthread_self();
    __atomic_store_n(&c->has_writer, 1, __ATOMIC_RELEASE);
}
static inline void control_writer_end(Control* c) {
    control_set_note(c, "", -1, CONTROL_FREE);
    __atomic_store_n(&c->has_writer, 0, __ATOMIC_RELEASE);
}

// A wish of this rank that all are to hear of, within half a second: the program ends soon, say. It needs no call of the others; what all do about it at which
// moment they must agree on by an operation. True where a rank has it, this one included.
static inline void control_wish(Control* c) { __atomic_store_n(&c->wish, 1, __ATOMIC_RELEASE); }
static inline bool control_wished(const Control* c) { return __atomic_load_n(&c->wish, __ATOMIC_ACQUIRE) != 0; }

// The control thread asks health(arg, ill) once a second, which must not wait: false twice in a row, with ill saying why, ends the run with these words. NULL:
// no longer; it is not being asked when this returns.
static inline void control_watch_health(Control* c, bool (*health)(void* arg, char ill[CONTROL_ILL_MAX]), void* arg) {
    pthread_mutex_lock(&c->mutex);
    c->health = health;
    c->health_arg = arg;
    pthread_mutex_unlock(&c->mutex);
}

// One operation of all ranks; returns when the result is there. When the run ends by a verdict it does not return.
static inline void control_operate(Control* c, ControlKind kind, const char* name, const void* in, int bytes, void* out, size_t out_bytes, double seconds) {
    ControlOperation what;
    ControlCall call = {name, out, out_bytes, false, NULL};
    memset(&what, 0, sizeof(what));
    require(strlen(name) < CONTROL_NAME_MAX && bytes >= 0 && bytes <= CONTROL_MAX_BYTES, "", "operation '%s' with %d bytes: names have less than %d bytes, data at most %d",
            name, bytes, CONTROL_NAME_MAX, CONTROL_MAX_BYTES);
    snprintf(what.name, sizeof(what.name), "%s", name);
    what.kind = kind;
    what.bytes = bytes;
    what.seconds = seconds;
    const int thread = control_thread(c);
    char op[CONTROL_NAME_MAX] = "";  // the thread's note is this operation meanwhile
    int64_t step = -1;
    int manner = CONTROL_FREE;
    if (thread >= 0) {
        memcpy(op, c->note[thread].op, sizeof(op));
        step = c->note[thread].step;
        manner = c->note[thread].manner;
        control_set_note(c, name, step, CONTROL_FREE);
    }
    pthread_mutex_lock(&c->mutex);
    for (ControlCall* other = c->calls; other; other = other->next) {
        if (!strcmp(other->name, name)) {
            pthread_mutex_unlock(&c->mutex);
            fail("give each thread's operations their own names", "two threads of rank %d are in the operation '%s' at once", c->ranks.rank, name);
        }
    }
    call.next = c->calls;
    c->calls = &call;
    if (c->ending) {  // the links belong to the control thread alone now, which ends this process
    } else if (c->ranks.rank == 0) {
        control_contribute(c, 0, &what, in);
    } else {
        ControlBuffer* frame = control_frame(CONTROL_CONTRIBUTION, &what, sizeof(what), in, in ? (size_t)bytes : 0);
        control_queue(&c->links[0], frame);
        control_buffer_release(frame);
    }
    control_wake(c);
    while (!call.done) { pthread_cond_wait(&c->changed, &c->mutex); }
    ControlCall** at = &c->calls;
    while (*at != &call) { at = &(*at)->next; }
    *at = call.next;
    pthread_mutex_unlock(&c->mutex);
    control_set_note(c, op, step, manner);
}

// Operations of all ranks, matched by name (less than CONTROL_NAME_MAX bytes). From any thread; different names may be outstanding at once; a name may be used
// again when it has returned. All end when the last rank has come. seconds: how long the first to come may wait for the last, the smallest that any rank gives;
// 0: the watchdog's bound, and beyond it while those that are missing still come along from note to note. They do not return when a rank is lost, late or
// disagrees: all processes end. bytes: at most CONTROL_MAX_BYTES, equal on all ranks.
static inline void control_barrier(Control* c, const char* name, double seconds) {
    if (c->ranks.size > 1) { control_operate(c, CONTROL_BARRIER, name, NULL, 0, NULL, 0, seconds); }
}
// data (bytes): from rank 0 to all.
static inline void control_broadcast(Control* c, const char* name, void* data, int bytes, double seconds) {
    const bool root = c->ranks.rank == 0;
    if (c->ranks.size > 1) { control_operate(c, CONTROL_BROADCAST, name, root ? data : NULL, bytes, root ? NULL : data, (size_t)bytes, seconds); }
}
// in (bytes) of every rank to out (size * bytes) in order of rank.
static inline void control_all_gather(Control* c, const char* name, const void* in, int bytes, void* out, double seconds) {
    if (c->ranks.size == 1) { memmove(out, in, (size_t)bytes); return; }
    control_operate(c, CONTROL_ALL_GATHER, name, in, bytes, out, (size_t)bytes * (size_t)c->ranks.size, seconds);
}
// All ranks must have the same text (a digest in hexadecimal, options); else all end with a message that names two ranks and their texts.
static inline void control_agree(Control* c, const char* name, const char* text, double seconds) {
    if (c->ranks.size > 1) { control_operate(c, CONTROL_AGREE, name, text, (int)strlen(text), NULL, 0, seconds); }
}

// To be called before this rank prints an error message: returns if it may; then print, control_fail, exit. Where another rank's failure came first it does not
// return: the process ends in here without a word, with the run's exit code. Takes 0.2 to 0.4 s, in which a rank that was lost is found to be the better
// explanation; 1 s at most.
static inline void control_claim(Control* c, int exit_code) {
    if (c->ranks.size == 1 || pthread_equal(pthread_self(), c->thread)) { return; }
    const bool hub = c->ranks.rank == 0;
    const double now = control_monotonic();
    const struct timespec answer = control_timespec(now + 1), end = control_timespec(now + 4);
    const int32_t code = exit_code;
    pthread_mutex_lock(&c->mutex);
    if (c->ending) {  // the links belong to the control thread alone now
    } else if (!hub) {
        control_send(&c->links[0], CONTROL_CLAIM, &code, sizeof(code));
        c->claim_code = code;
    } else if (c->claim_rank < 0) {
        c->claim_rank = 0;
        c->claim_code = code;
        c->claim_at = control_clock(c);
    }
    control_wake(c);
    while (!c->ending && !(c->granted && (!hub || c->claim_rank == 0)) && pthread_cond_timedwait(&c->changed, &c->mutex, &answer) != ETIMEDOUT) {}
    const double silent = hub ? 0 : control_clock(c) - c->links[0].heard;
    if (silent > 1 && !c->ending && !c->granted) {  // no answer and no sign of life: rank 0 is lost, and all ranks have come here for that
        char doing[192];
        c->verdict.hub_lost = true;
        control_judge(c, CONTROL_HINT_LOST, "rank 0 (host %s) gave no sign of life for %.1f s while others failed: its machine or network is down; it was last %s",
                      c->places[0].host, silent, control_describe(c, 0, CONTROL_MAIN, control_clock(c), doing));
        control_wake(c);
    }
    const bool mine = !c->ending && !c->verdict.set && !(hub && c->granted && c->claim_rank != 0);
    while (!mine && pthread_cond_timedwait(&c->changed, &c->mutex, &end) != ETIMEDOUT) {}  // the control thread ends the process
    if (!mine) { _exit(c->verdict.set ? c->verdict.code : c->claim_code); }  // it has not
    pthread_mutex_unlock(&c->mutex);
}

// This rank has printed its message and is about to exit with exit_code: the others end without a word, with the same code. Returns within 1 s; then exit (the
// control thread ends a process that has not done so in 2 s). Nothing else may be called afterwards.
static inline void control_fail(Control* c, int exit_code) {
    if (c->ranks.size == 1 || pthread_equal(pthread_self(), c->thread)) { return; }
    const struct timespec until = control_timespec(control_monotonic() + 1);
    const int32_t code = exit_code;
    pthread_mutex_lock(&c->mutex);
    while (c->verdict.set && !c->own_failure) { pthread_cond_wait(&c->changed, &c->mutex); }  // too late: the control thread ends the process
    c->own_failure = true;
    c->claim_code = code;
    c->exit_at = control_clock(c) + 2;
    if (c->ranks.rank == 0) {
        control_send_to_all(c, CONTROL_ABORT, &code, sizeof(code));
        control_judge_quiet(c, code);
    } else {
        control_send(&c->links[0], CONTROL_FAILED, &code, sizeof(code));
    }
    control_wake(c);
    // a peer: until the hub's answer; the hub: until all have hung up, so that none misses the word
    for (bool told = false; !told;) {
        if (pthread_cond_timedwait(&c->changed, &c->mutex, &until) == ETIMEDOUT) { break; }
        told = true;
        for (int i = 0; i < c->num_links; i++) { told = told && c->links[i].fd < 0; }
        told = told || (c->ranks.rank != 0 && c->verdict.set);
    }
    pthread_mutex_unlock(&c->mutex);
}

// A clean end: waits for all ranks to come here, stops the thread, frees c. What other ranks do afterwards is no failure.
static inline void control_finish(Control* c) {
    if (c->ranks.size > 1) { control_operate(c, CONTROL_FINISH, control_kind_name(CONTROL_FINISH), NULL, 0, NULL, 0, 0); }
    pthread_mutex_lock(&c->mutex);
    c->stop = true;
    c->stop_at = control_clock(c);
    pthread_mutex_unlock(&c->mutex);
    control_wake(c);
    pthread_join(c->thread, NULL);
    control_free(c);
}

#endif
