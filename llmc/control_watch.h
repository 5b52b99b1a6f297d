/* control_watch.h - the control thread: moves the frames, completes operations, judges, ends the process
 *
 * What:      the hub judges: a connection ends, no sign of life for the bound, an operation that some rank has not come to, files that do not come along, a
 *            communicator that is ill. It prints one message, tells all, and all end within 2 s; a process of its host that does not (it is stopped) is killed.
 *            When the hub is gone, the lowest rank that lives prints.
 * Clock:     time in which this process itself was stopped (SIGSTOP, a suspended job) does not count.
 * Threads:   control_main and what it calls run in the control thread; control_contribute also in a caller of rank 0, with the mutex.
 * Tests:     dev/test/test_control.cu */
#ifndef LLMC_CONTROL_WATCH_H
#define LLMC_CONTROL_WATCH_H

#include "llmc/control_state.h"

// ----------------------------------------------------------------------------
// the verdict: why all processes end. The first one counts.

__attribute__((format(printf, 3, 4)))
static inline void control_judge(Control* c, const char* hint, const char* fmt, ...) {
    if (c->verdict.set) { return; }
    c->verdict.set = true;
    c->verdict.print = !c->granted;  // a rank that fails by its own words is the reason for what follows
    c->verdict.code = c->granted ? c->claim_code : c->config.exit_code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->verdict.text, sizeof(c->verdict.text), fmt, args);
    va_end(args);
    snprintf(c->verdict.hint, sizeof(c->verdict.hint), "%s", hint);
}
static inline void control_judge_quiet(Control* c, int code) {
    if (c->verdict.set) { return; }
    c->verdict.set = true;
    c->verdict.code = code;
}

#define CONTROL_HINT_LOST "look for that rank's own last words, for the out-of-memory killer (dmesg) and for GPU errors (Xid); then resume from the last checkpoint"
#define CONTROL_HINT_DISK "look at that host's disk or network file system (dmesg, mount); what was complete there stays: then resume from the last checkpoint"
#define CONTROL_HINT_HANG "look at that rank's process, GPU and network; if it is only slow there, raise --watchdog-seconds; then resume from the last checkpoint"

// For how long a rank's thread has said nothing new.
static inline double control_unchanged(const Control* c, int rank, int thread, double now) {
    return c->links[rank].beat.doing[thread].seconds + (now - c->links[rank].beat_at);
}
// What a thread of a rank does, from what it said last; "" and more if it never said anything.
static inline const char* control_describe(const Control* c, int rank, int thread, double now, char text[192]) {
    const ControlDoing* d = &c->links[rank].beat.doing[thread];
    char step[48] = "before the first step";
    if (d->step >= 0) { snprintf(step, sizeof(step), "at step %lld", (long long)d->step); }
    if (!d->known || !d->op[0]) { snprintf(text, 192, "%s", step); }
    else { snprintf(text, 192, "%s in '%s' for %.1f s", step, d->op, control_unchanged(c, rank, thread, now)); }
    return text;
}

// ----------------------------------------------------------------------------
// operations on the hub

static inline void control_op_free(const Control* c, ControlOp* op) {
    for (int r = 0; r < c->ranks.size; r++) { free(op->parts[r].data); }
    free(op->parts);
    free(op);
}

// This process' caller of a name gets its result.
static inline bool control_deliver(Control* c, const char* name, const void* data, size_t bytes) {
    for (ControlCall* call = c->calls; call; call = call->next) {
        if (strcmp(call->name, name)) { continue; }
        if (call->done || (call->out_bytes != bytes && call->out)) { return false; }
        if (call->out && bytes) { memcpy(call->out, data, bytes); }
        call->done = true;
        pthread_cond_broadcast(&c->changed);
        return true;
    }
    return false;
}

// All have come: the result goes to all.
static inline void control_op_complete(Control* c, ControlOp* op) {
    const int size = c->ranks.size, bytes = op->what.bytes;
    if (op->what.kind == CONTROL_AGREE) {
        const ControlPart* zero = &op->parts[0];
        int other = -1, equal = 0;
        for (int r = 0; r < size; r++) {
            bool same = op->parts[r].bytes == zero->bytes && !memcmp(op->parts[r].data, zero->data, (size_t)zero->bytes);
            equal += same;
            if (!same && other < 0) { other = r; }
        }
        if (other >= 0) {
            const ControlPart* x = &op->parts[other];
            int from = 0;  // long texts: from a little before the first byte that differs
            while (from < x->bytes && from < zero->bytes && x->data[from] == zero->data[from]) { from++; }
            from = from > 400 ? from - 40 : 0;
            control_judge(c, "start all ranks with the same program, options and data; if they are the same, one machine computes wrongly: leave out that host",
                          "the ranks disagree about '%s': rank %d (host %s) has '%s%.*s', rank 0 (host %s) and %d more have '%s%.*s'", op->what.name, other,
                          c->places[other].host, from ? "..." : "", x->bytes - from < 500 ? x->bytes - from : 500, (const char*)x->data + from,
                          c->places[0].host, equal - 1, from ? "..." : "", zero->bytes - from < 500 ? zero->bytes - from : 500, (const char*)zero->data + from);
            return;
        }
    }
    unsigned char* all = NULL;
    size_t all_bytes = 0;
    if (op->what.kind == CONTROL_ALL_GATHER) {
        all_bytes = (size_t)size * (size_t)bytes;
        all = (unsigned char*)mallocCheck(all_bytes);
        for (int r = 0; r < size; r++) { if (bytes) { memcpy(all + (size_t)r * bytes, op->parts[r].data, (size_t)bytes); } }
    }
    const unsigned char* data = op->what.kind == CONTROL_BROADCAST ? op->parts[0].data : all;
    size_t data_bytes = op->what.kind == CONTROL_BROADCAST ? (size_t)bytes : all_bytes;
    ControlBuffer* result = control_frame(CONTROL_RESULT, op->what.name, CONTROL_NAME_MAX, data, data_bytes);
    for (int r = 1; r < size; r++) { control_queue(&c->links[r], result); }
    control_buffer_release(result);
    if (op->what.kind == CONTROL_FINISH) { c->finished = true; }
    control_deliver(c, op->what.name, data, data_bytes);
    free(all);
}

// A rank has come to an operation. False: it breaks the rules (its connection is then as good as lost).
static inline bool control_contribute(Control* c, int rank, const ControlOperation* what, const void* data) {
    ControlOp** at = &c->ops;
    while (*at && strcmp((*at)->what.name, what->name)) { at = &(*at)->next; }
    ControlOp* op = *at;
    if (!op) {
        op = (ControlOp*)mallocCheck(sizeof(ControlOp));
        memset(op, 0, sizeof(*op));
        op->what = *what;
        op->first_rank = rank;
        op->since = control_clock(c);
        op->parts = (ControlPart*)mallocCheck((size_t)c->ranks.size * sizeof(ControlPart));
        memset(op->parts, 0, (size_t)c->ranks.size * sizeof(ControlPart));
        *at = op;
    }
    ControlPart* part = &op->parts[rank];
    if (part->here) { return false; }
    if (what->kind != op->what.kind || (what->bytes != op->what.bytes && what->kind != CONTROL_AGREE)) {
        control_judge(c, "this is an error of the program: all ranks must run the same build with the same options", "rank %d (host %s) comes to the %s '%s' "
                      "with %d bytes, rank %d (host %s) to the %s of this name with %d bytes", rank, c->places[rank].host, control_kind_name(what->kind),
                      what->name, what->bytes, op->first_rank, c->places[op->first_rank].host, control_kind_name(op->what.kind), op->what.bytes);
        return true;
    }
    if (what->seconds > 0 && (op->what.seconds <= 0 || what->seconds < op->what.seconds)) { op->what.seconds = what->seconds; }
    part->here = true;
    part->bytes = what->bytes;
    if (what->bytes && (what->kind != CONTROL_BROADCAST || rank == 0)) {
        part->data = (unsigned char*)mallocCheck((size_t)what->bytes);
        memcpy(part->data, data, (size_t)what->bytes);
    }
    if (++op->arrived < c->ranks.size) { return true; }
    *at = op->next;
    control_op_complete(c, op);
    control_op_free(c, op);
    return true;
}

// ----------------------------------------------------------------------------
// frames that arrive

static inline bool control_handle_beat(Control* c, ControlLink* l, const unsigned char* p) {
    memcpy(&l->beat, p, sizeof(l->beat));
    for (ControlDoing& doing : l->beat.doing) { doing.op[CONTROL_NAME_MAX - 1] = 0; }
    l->beat.ill[CONTROL_ILL_MAX - 1] = 0;
    if (l->beat.wish) { __atomic_store_n(&c->wish, 1, __ATOMIC_RELEASE); }  // the hub's next heartbeat tells all
    l->beat_at = control_clock(c);
    return true;
}

static inline bool control_handle_hub(Control* c, int rank, int type, const unsigned char* p, size_t bytes) {
    ControlLink* l = &c->links[rank];
    if (type == CONTROL_BEAT && bytes == sizeof(ControlBeat)) { return control_handle_beat(c, l, p); }
    if (type == CONTROL_CONTRIBUTION && bytes >= sizeof(ControlOperation)) {
        ControlOperation what;
        memcpy(&what, p, sizeof(what));
        what.name[CONTROL_NAME_MAX - 1] = 0;
        const size_t data_bytes = bytes - sizeof(what), due = what.kind == CONTROL_BROADCAST ? 0 : (size_t)what.bytes;  // rank 0 alone has something to broadcast
        if (what.bytes < 0 || what.bytes > CONTROL_MAX_BYTES || data_bytes != due) { return false; }
        return control_contribute(c, rank, &what, p + sizeof(what));
    }
    int32_t code = 0;
    if (bytes < sizeof(code)) { return false; }
    memcpy(&code, p, sizeof(code));
    if (type == CONTROL_CLAIM) {
        if (c->claim_rank < 0) {
            c->claim_rank = rank;
            c->claim_code = code;
            c->claim_at = control_clock(c);
        } else if (c->granted) {
            int32_t first = c->claim_code;
            control_send(l, CONTROL_ABORT, &first, sizeof(first));
        }
        return true;
    }
    if (type == CONTROL_FAILED) { control_judge_quiet(c, c->granted ? c->claim_code : code); return true; }
    return false;
}

static inline bool control_handle_peer(Control* c, int type, const unsigned char* p, size_t bytes) {
    if (type == CONTROL_BEAT && bytes == sizeof(ControlBeat)) { return control_handle_beat(c, &c->links[0], p); }
    if (type == CONTROL_START && bytes == (size_t)c->ranks.size * sizeof(ControlPlace) && !c->started) {
        memcpy(c->places, p, bytes);
        c->started = true;
        pthread_cond_broadcast(&c->changed);
        return true;
    }
    if (type == CONTROL_RESULT && bytes >= CONTROL_NAME_MAX) {
        char name[CONTROL_NAME_MAX];
        memcpy(name, p, sizeof(name));
        name[sizeof(name) - 1] = 0;
        if (!strcmp(name, control_kind_name(CONTROL_FINISH))) { c->finished = true; }
        return control_deliver(c, name, p + CONTROL_NAME_MAX, bytes - CONTROL_NAME_MAX);
    }
    if (type == CONTROL_GRANT) {
        c->granted = c->own_failure = true;
        c->exit_at = control_clock(c) + 2;
        pthread_cond_broadcast(&c->changed);
        return true;
    }
    int32_t code = 0;
    if (type != CONTROL_ABORT || bytes != sizeof(code)) { return false; }
    memcpy(&code, p, sizeof(code));
    control_judge_quiet(c, code);
    return true;
}

// Reads what is there. False: the connection is lost, or what comes is no frame.
static inline bool control_read(Control* c, int index) {
    ControlLink* l = &c->links[index];
    const bool hub = c->ranks.rank == 0;
    size_t most = sizeof(ControlOperation) + CONTROL_MAX_BYTES;
    if (!hub) { most += (size_t)c->ranks.size * (CONTROL_MAX_BYTES + sizeof(ControlPlace)); }
    for (int frames = 0; frames < 64 && !c->verdict.set;) {
        ControlFrame frame = {0, 0};
        if (l->in_bytes >= sizeof(frame)) { memcpy(&frame, l->in, sizeof(frame)); }
        const size_t need = sizeof(frame) + frame.bytes;
        if (frame.bytes > most) { errno = EPROTO; return false; }
        if (l->in_capacity < need) {
            l->in = (unsigned char*)realloc(l->in, need);
            if (!l->in) { return false; }
            l->in_capacity = need;
        }
        if (l->in_bytes < need) {
            ssize_t n = recv(l->fd, l->in + l->in_bytes, need - l->in_bytes, MSG_DONTWAIT);
            if (n == 0) { return false; }
            if (n < 0) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
            l->in_bytes += (size_t)n;
            l->heard = control_clock(c);
            continue;  // the frame's length may be known now
        }
        l->in_bytes = 0;
        frames++;
        bool good = hub ? control_handle_hub(c, index, (int)frame.type, l->in + sizeof(frame), frame.bytes)
                        : control_handle_peer(c, (int)frame.type, l->in + sizeof(frame), frame.bytes);
        if (!good) { errno = EPROTO; return false; }
    }
    return true;
}

// ----------------------------------------------------------------------------
// the control thread

// What the threads of this process do now, into a heartbeat. The sequence is even and the same before and after a clean look.
static inline void control_look(Control* c, double now, ControlBeat* beat) {
    memset(beat, 0, sizeof(*beat));
    for (int t = 0; t < CONTROL_THREADS; t++) {
        auto& note = c->note[t];
        ControlDoing* doing = &beat->doing[t];
        uint64_t before, after, op[CONTROL_NAME_MAX / 8];
        do {
            before = __atomic_load_n(&note.sequence, __ATOMIC_ACQUIRE);
            for (int i = 0; i < CONTROL_NAME_MAX / 8; i++) { op[i] = __atomic_load_n(&note.op[i], __ATOMIC_ACQUIRE); }
            doing->step = __atomic_load_n(&note.step, __ATOMIC_ACQUIRE);
            doing->manner = __atomic_load_n(&note.manner, __ATOMIC_ACQUIRE);
            after = __atomic_load_n(&note.sequence, __ATOMIC_ACQUIRE);
        } while ((before & 1) || before != after);
        memcpy(doing->op, op, sizeof(doing->op));
        if (before != c->note_seen[t]) { c->note_seen[t] = before; c->note_since[t] = now; }
        doing->seconds = now - c->note_since[t];
        doing->known = t == CONTROL_MAIN || doing->op[0];
    }
    beat->wish = __atomic_load_n(&c->wish, __ATOMIC_ACQUIRE);
    if (c->health && !c->ending && !c->own_failure && now - c->health_at > 1) {
        char ill[CONTROL_ILL_MAX] = "";
        c->health_at = now;
        // told the second time: a rank that was lost is the better explanation, and is found by then
        if (c->health(c->health_arg, ill)) { c->ill_seen = false; }
        else if (!c->ill_seen) { c->ill_seen = true; }
        else { memcpy(c->ill, ill, sizeof(ill)); }
    }
    memcpy(beat->ill, c->ill, sizeof(beat->ill));
}

// Time in which this process was stopped (SIGSTOP, a suspended job or machine) is nobody's silence: it is taken out of the clock.
static inline void control_account(Control* c, double timeout) {
    double now = control_monotonic(), late = now - c->looked - timeout;
    if (late > 1) { c->paused += late; }
    c->looked = now;
}

// Has a rank said nothing new for longer than the bound? A main thread that waits for the writing thread comes along as that one does.
static inline bool control_is_stuck(const Control* c, int rank, double now) {
    const ControlDoing* doing = c->links[rank].beat.doing;
    const int thread = doing[CONTROL_MAIN].manner == CONTROL_THREAD ? CONTROL_WRITER : CONTROL_MAIN;
    return doing[thread].known && control_unchanged(c, rank, thread, now) > c->bound;
}

// An operation that not all have come to. With a limit of its own: as soon as that is over. Else, as with control_note_wait: after the bound, if one that is
// missing hangs; one that comes along note by note is slow, not hanging.
static inline void control_judge_op(Control* c, const ControlOp* op, double now) {
    char missing[256] = "", what[192], doing[192];
    int first = -1, count = 0;
    if (now - op->since <= (op->what.seconds > 0 ? op->what.seconds : c->bound)) { return; }
    for (int r = 0; r < c->ranks.size; r++) {
        if (op->parts[r].here) { continue; }
        if (first < 0 && (op->what.seconds > 0 || control_is_stuck(c, r, now))) { first = r; }
        size_t used = strlen(missing);
        if (count++ < 8) { snprintf(missing + used, sizeof(missing) - used, "%s%d", count > 1 ? ", " : "", r); }
    }
    if (first < 0) { return; }
    const bool is_named = op->what.kind != CONTROL_FINISH;
    snprintf(what, sizeof(what), "%s%s%s%s", control_kind_name(op->what.kind), is_named ? " '" : "", is_named ? op->what.name : "", is_named ? "'" : "");
    control_describe(c, first, CONTROL_MAIN, now, doing);
    const char* host = c->places[op->first_rank].host;
    if (count == 1) {
        control_judge(c, CONTROL_HINT_HANG, "rank %d (host %s) has not come to the %s, where rank %d (host %s) waits for %.1f s: it is %s", first,
                      c->places[first].host, what, op->first_rank, host, now - op->since, doing);
    } else {
        control_judge(c, CONTROL_HINT_HANG, "%d ranks (%s%s) have not come to the %s, where rank %d (host %s) waits for %.1f s: rank %d (host %s) is %s", count,
                      missing, count > 8 ? " ..." : "", what, op->first_rank, host, now - op->since, first, c->places[first].host, doing);
    }
}

// A rank waits in an operation for others (control_note_wait) longer than the bound. If another has been elsewhere as long without a new note, that one
// hangs; if all wait in it, the operation itself does. One that comes along note by note is slow, not hanging.
static inline void control_judge_waits(Control* c, double now) {
    char doing[192];
    for (int w = 0; w < c->ranks.size; w++) {
        const ControlDoing* a = &c->links[w].beat.doing[CONTROL_MAIN];
        if (a->manner != CONTROL_WAIT || !control_is_stuck(c, w, now)) { continue; }
        bool all_in = true;
        for (int r = 0; r < c->ranks.size; r++) {
            const ControlDoing* b = &c->links[r].beat.doing[CONTROL_MAIN];
            const bool in = b->known && b->manner == CONTROL_WAIT && !strcmp(a->op, b->op);
            const bool stuck = control_is_stuck(c, r, now);
            if (!in && stuck) {
                control_describe(c, r, CONTROL_MAIN, now, doing);
                control_judge(c, CONTROL_HINT_HANG, "rank %d (host %s) has not come to '%s' of step %lld, where rank %d (host %s) waits for %.1f s: it is %s", r,
                              c->places[r].host, a->op, (long long)a->step, w, c->places[w].host, control_unchanged(c, w, CONTROL_MAIN, now), doing);
                return;
            }
            all_in = all_in && in && stuck;
        }
        if (all_in) {
            control_judge(c, "look at the network and the GPUs (NCCL_DEBUG=INFO says more); then resume from the last checkpoint",
                          "all %d ranks are in '%s' of step %lld for more than %.1f s: the operation itself hangs", c->ranks.size, a->op, (long long)a->step,
                          c->bound);
            return;
        }
    }
}

// A thread that reads or writes files has not come along for the bound: its disk does not answer. And what the ranks' own looks at their health found.
static inline void control_judge_rank(Control* c, int rank, double now) {
    const ControlBeat* b = &c->links[rank].beat;
    char doing[192];
    for (int t = 0; t < CONTROL_THREADS; t++) {
        const ControlDoing* d = &b->doing[t];
        if (!d->known || d->manner != CONTROL_DISK || control_unchanged(c, rank, t, now) <= c->bound) { continue; }
        control_judge(c, CONTROL_HINT_DISK, "rank %d (host %s) makes no progress with its files: it is %s", rank, c->places[rank].host,
                      control_describe(c, rank, t, now, doing));
    }
    if (b->ill[0]) {
        control_judge(c, CONTROL_HINT_LOST, "rank %d (host %s): %s; it is %s", rank, c->places[rank].host, b->ill, control_describe(c, rank, CONTROL_MAIN, now, doing));
    }
}

static inline void control_judge_hub(Control* c, double now) {
    char doing[192];
    if (c->claim_rank >= 0 && !c->granted && now - c->claim_at > 0.2) {  // nobody was lost meanwhile: that rank's message is the reason
        c->granted = true;
        int32_t code = c->claim_code;
        if (c->claim_rank == 0) { pthread_cond_broadcast(&c->changed); }
        else { control_send(&c->links[c->claim_rank], CONTROL_GRANT, &code, sizeof(code)); }
    }
    if (c->granted && now - c->claim_at > 1.5) { control_judge_quiet(c, c->claim_code); }
    for (int r = 1; r < c->ranks.size && !c->finished; r++) {
        if (now - c->links[r].heard <= c->bound) { continue; }
        control_describe(c, r, CONTROL_MAIN, now, doing);
        control_judge(c, CONTROL_HINT_HANG, "rank %d (host %s) gave no sign of life for %.1f s: it is stopped, or its machine or network is down; it was last %s", r,
                      c->places[r].host, now - c->links[r].heard, doing);
    }
    for (int r = 0; r < c->ranks.size && !c->finished; r++) { control_judge_rank(c, r, now); }  // first: it knows more than who misses that rank
    for (const ControlOp* op = c->ops; op && !c->verdict.set; op = op->next) { control_judge_op(c, op, now); }
    if (!c->finished) { control_judge_waits(c, now); }
}

static inline void control_lost(Control* c, int index, double now) {
    char doing[192];
    const bool garbage = errno == EPROTO;
    if (!garbage || c->ranks.rank != 0) { control_link_close(&c->links[index]); }  // who sends garbage still hears that the run ends
    if (c->finished || c->ending || c->verdict.set) { return; }
    if (c->ranks.rank != 0) {
        c->verdict.hub_lost = true;
        if (c->started) { control_judge(c, CONTROL_HINT_LOST, "rank 0 (host %s) ended: it was last %s", c->places[0].host, control_describe(c, 0, CONTROL_MAIN, now, doing)); }
        else { control_judge(c, CONTROL_HINT_LOST, "rank 0 ended while rank %d (host %s) waited for the other ranks to join", c->ranks.rank, c->ranks.host); }
    } else {
        control_judge(c, CONTROL_HINT_LOST, "rank %d (host %s) %s: it was last %s", index, c->places[index].host,
                      garbage ? "sent what is no message" : "ended", control_describe(c, index, CONTROL_MAIN, now, doing));
    }
}

// One round: waits up to seconds for bytes or a call, then reads and writes what can be. Takes the mutex, returns with it.
static inline void control_round(Control* c, double seconds) {
    pthread_mutex_lock(&c->mutex);
    for (int i = 0; i < c->num_links; i++) {
        c->polls[i].fd = c->links[i].fd;
        c->polls[i].events = (short)(POLLIN | (c->links[i].out ? POLLOUT : 0));
        c->polls[i].revents = 0;
    }
    pthread_mutex_unlock(&c->mutex);
    c->polls[c->num_links].fd = c->wake;
    c->polls[c->num_links].events = POLLIN;
    c->polls[c->num_links].revents = 0;
    poll(c->polls, (nfds_t)c->num_links + 1, (int)(seconds * 1000));
    uint64_t count;
    if (c->polls[c->num_links].revents && read(c->wake, &count, sizeof(count)) < 0) { count = 0; }
    pthread_mutex_lock(&c->mutex);
    control_account(c, seconds);
    for (int i = 0; i < c->num_links; i++) {
        ControlLink* l = &c->links[i];
        errno = 0;
        if (l->fd >= 0 && c->polls[i].revents && !control_read(c, i)) { control_lost(c, i, control_clock(c)); }
        errno = 0;
        if (l->fd >= 0 && !control_write(l)) { control_lost(c, i, control_clock(c)); }
    }
}

// Sends what is queued and drops what comes until all links are closed by the other side, for some seconds at most. After the verdict; no mutex.
static inline void control_drain(Control* c, double deadline) {
    char scrap[4096];
    while (true) {
        int open = 0;
        for (int i = 0; i < c->num_links; i++) {
            ControlLink* l = &c->links[i];
            c->polls[i].fd = l->fd;
            c->polls[i].events = (short)(POLLIN | (l->out ? POLLOUT : 0));
            c->polls[i].revents = 0;
            open += l->fd >= 0;
        }
        double left = deadline - control_monotonic();
        if (!open || left <= 0) { return; }
        poll(c->polls, (nfds_t)c->num_links, (int)(left * 1000) + 1);
        for (int i = 0; i < c->num_links; i++) {
            ControlLink* l = &c->links[i];
            if (l->fd < 0 || !c->polls[i].revents) { continue; }
            ssize_t n = recv(l->fd, scrap, sizeof(scrap), MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || !control_write(l)) { control_link_close(l); }
        }
    }
}

static inline void control_print_verdict(const Control* c) {
    char text[3072];
    int n = snprintf(text, sizeof(text), "ERROR: %s\n       seen by rank %d (host %s); all ranks end\nHINT:  %s\n", c->verdict.text, c->ranks.rank, c->ranks.host,
                     c->verdict.hint);
    for (int at = 0; at < n;) {
        ssize_t written = write(2, text + at, (size_t)(n - at));
        if (written < 0 && errno != EINTR) { return; }
        if (written > 0) { at += (int)written; }
    }
}

// Without the hub: does a rank below this one live? Its system answers for it, whatever it is doing.
static inline bool control_lower_lives(const Control* c) {
    struct pollfd tries[64];
    int count = 0;
    bool lives = false;
    for (int r = 1; r < c->ranks.rank && count < 64; r++) {
        int code;
        if (!c->places[r].port) { continue; }
        struct addrinfo* a = control_resolve(c->places[r].address, c->places[r].port, &code);
        if (!a) { continue; }
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0) {
            if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) { lives = true; }
            tries[count].fd = fd;
            tries[count].events = POLLOUT;
            tries[count++].revents = 0;
        }
        freeaddrinfo(a);
    }
    const double deadline = control_monotonic() + 0.5;
    for (int open = count; open > 0 && !lives;) {
        double left = deadline - control_monotonic();
        if (left <= 0 || poll(tries, (nfds_t)count, (int)(left * 1000) + 1) <= 0) { break; }
        for (int i = 0; i < count; i++) {
            if (tries[i].fd < 0 || !tries[i].revents) { continue; }
            int code = 0;
            socklen_t size = sizeof(code);
            if (getsockopt(tries[i].fd, SOL_SOCKET, SO_ERROR, &code, &size) == 0 && code == 0) { lives = true; }
            close(tries[i].fd);
            tries[i].fd = -1;
            open--;
        }
    }
    for (int i = 0; i < count; i++) { if (tries[i].fd >= 0) { close(tries[i].fd); } }
    return lives;
}

// The end by a verdict, in the control thread: message, the others told, _exit, which ends what waits in a collective or on a disk as well. Less than 2 s.
__attribute__((noreturn))
static inline void control_end(Control* c) {
    const double begin = control_monotonic();
    const int32_t code = c->verdict.code;
    const bool hub = c->ranks.rank == 0;
    if (c->verdict.print && !c->verdict.hub_lost) { control_print_verdict(c); }
    if (hub) { control_send_to_all(c, CONTROL_ABORT, &code, sizeof(code)); }
    else if (c->links[0].fd >= 0 && !c->verdict.hub_lost) { shutdown(c->links[0].fd, SHUT_RDWR); }  // the hub sees that this rank has understood
    if (hub) {
        control_drain(c, begin + 0.7);
        for (int r = 1; r < c->ranks.size; r++) { if (c->links[r].fd >= 0) { control_kill_stuck(&c->places[0], &c->places[r]); } }
    }
    if (c->verdict.hub_lost) {
        if (c->started) { control_kill_stuck(&c->places[c->ranks.rank], &c->places[0]); }
        bool lower = true;  // asked for a while: the socket of a process that is being killed answers a little longer than it lives
        while (c->verdict.print && (lower = control_lower_lives(c)) && control_monotonic() < begin + 0.4) { control_sleep(0.05); }
        if (c->verdict.print && !lower) { control_print_verdict(c); }
        while (control_monotonic() < begin + 1.2) { control_sleep(0.02); }  // the others look whether this rank lives
    }
    _exit(code);
}

// May the thread end? All said and, on the hub, all others gone (a close with bytes unread would take from them what was said last).
static inline bool control_is_over(const Control* c, double now) {
    if (!c->stop) { return false; }
    bool over = true;
    for (int i = 0; i < c->num_links; i++) { over = over && (c->links[i].fd < 0 || (c->ranks.rank != 0 && !c->links[i].out)); }
    return over || now > c->stop_at + 2;
}

static inline void* control_main(void* arg) {
    Control* c = (Control*)arg;
    for (bool over = false; !over;) {
        control_round(c, c->interval < 0.1 ? c->interval : 0.1);
        const double now = control_clock(c);
        char doing[192];
        ControlBeat beat;
        control_look(c, now, &beat);
        if (c->started && !c->finished && now - c->beat_sent >= c->interval) {
            control_send_to_all(c, CONTROL_BEAT, &beat, sizeof(beat));
            c->beat_sent = now;
        }
        if (!c->ending && !c->verdict.set) {
            if (c->ranks.rank == 0) {
                c->links[0].beat = beat;
                c->links[0].beat_at = c->links[0].heard = now;
                control_judge_hub(c, now);
            } else if (c->started && !c->finished && now - c->links[0].heard > c->bound) {
                c->verdict.hub_lost = true;
                control_judge(c, CONTROL_HINT_HANG, "rank 0 (host %s) gave no sign of life for %.1f s: it is stopped, or its machine or network is down; "
                              "it was last %s", c->places[0].host, now - c->links[0].heard, control_describe(c, 0, CONTROL_MAIN, now, doing));
            }
        }
        if (c->exit_at > 0 && now > c->exit_at) { _exit(c->claim_code); }
        if (c->own_failure && c->verdict.set && c->ranks.rank != 0) { control_link_close(&c->links[0]); }  // understood; the end is the main thread's
        const bool end = c->verdict.set && !c->own_failure;
        if (c->verdict.set) {
            c->ending = true;
            pthread_cond_broadcast(&c->changed);
        }
        over = control_is_over(c, now);
        pthread_mutex_unlock(&c->mutex);
        if (end) { control_end(c); }
    }
    return NULL;
}

#endif
