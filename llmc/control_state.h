/* control_state.h - the control plane's configuration, messages, state, and the queues of its connections
 *
 * What:      the hub (rank 0) has a link to each peer, a peer one to the hub. A frame is ControlFrame and a payload; one buffer may stand in many queues.
 *            Both ends run the same build (the identity says so): plain structs, little-endian.
 * Threads:   all of Control but the notes is guarded by its mutex; sockets are read and written by the control thread alone (control_watch.h), after the
 *            joining (control_join.h), which comes before that thread.
 * Tests:     dev/test/test_control.cu */
#ifndef LLMC_CONTROL_STATE_H
#define LLMC_CONTROL_STATE_H

#include <pthread.h>

#include "llmc/control_net.h"

#define CONTROL_MAX_BYTES (1 << 20)     // of one rank in one operation
#define CONTROL_NAME_MAX 48             // bytes of an operation's name with its 0
#define CONTROL_TEXT_MAX 256            // bytes of the identity with its 0
#define CONTROL_ILL_MAX 160             // bytes of what control_watch_health found with its 0
#define CONTROL_PROOF_SECONDS 2.0       // time to prove the token in

typedef struct {
    const Ranks* ranks;                 // copied
    const char* identity;               // build and options that must agree, less than CONTROL_TEXT_MAX bytes; copied
    const char* secret;                 // getenv("GPT_JOB_TOKEN"); NULL or "": none. TCP only
    bool (*broadcast)(void* data, int bytes);  // RANKS_MPI only: from rank 0 to all; false if it failed
    double join_seconds;                // all must have joined by then; 0: 60
    double watchdog_seconds;            // bound on silence, on waiting and on a disk; 0: 60
    int exit_code;                      // of all processes when a rank is lost, hangs or disagrees; 0: 1
} ControlConfig;

// ----------------------------------------------------------------------------
// what goes over the wire

#define CONTROL_MAGIC "llmfp8c1"

typedef struct {                    // where a rank is: for messages, for seeing that it lives, for ending it
    char host[64], address[64];     // address and port: its listening socket, closed to all talk
    int32_t port, pid;
    uint64_t system, started;       // hash of the system's boot and name space of pids; start of the process: equal in all this is the same process
} ControlPlace;

typedef struct { char magic[8]; unsigned char nonce[16]; } ControlHello;            // peer to hub
typedef struct { unsigned char nonce[16]; uint64_t proof; } ControlChallenge;       // hub to peer
typedef struct {                                                                    // peer to hub
    int32_t rank, size;
    uint64_t instance;              // random, of the process: a peer that lost patience and came again is not a second one
    ControlPlace place;
    char identity[CONTROL_TEXT_MAX];
    uint64_t proof;                 // of all above and both nonces
} ControlJoin;
enum { CONTROL_WELCOME, CONTROL_REFUSED, CONTROL_QUIET };                           // QUIET: rank 0 prints what is wrong
typedef struct { int32_t status, exit_code; char text[504]; } ControlWelcome;       // hub to peer

// After that: frames.
typedef struct { uint32_t bytes, type; } ControlFrame;
enum { CONTROL_START = 1, CONTROL_BEAT, CONTROL_CONTRIBUTION, CONTROL_RESULT, CONTROL_CLAIM, CONTROL_GRANT, CONTROL_FAILED, CONTROL_ABORT };
typedef enum { CONTROL_BARRIER, CONTROL_BROADCAST, CONTROL_ALL_GATHER, CONTROL_AGREE, CONTROL_FINISH } ControlKind;
// How a thread does what its note says: FREE: for itself, as long as it takes. WAIT: for all others. DISK: it must come along, note by note. THREAD: it waits
// for the writing thread of this process.
enum { CONTROL_FREE, CONTROL_WAIT, CONTROL_DISK, CONTROL_THREAD };
enum { CONTROL_MAIN, CONTROL_WRITER, CONTROL_THREADS };                             // whose note it is
typedef struct { char op[CONTROL_NAME_MAX]; int64_t step; double seconds; int32_t manner, known; } ControlDoing;
typedef struct { ControlDoing doing[CONTROL_THREADS]; int32_t wish; char ill[CONTROL_ILL_MAX]; } ControlBeat;
typedef struct { char name[CONTROL_NAME_MAX]; int32_t kind, bytes; double seconds; } ControlOperation;

static inline const char* control_kind_name(int kind) {
    static const char* const names[] = {"barrier", "broadcast", "all-gather", "agreement", "end of the run"};
    return kind >= CONTROL_BARRIER && kind <= CONTROL_FINISH ? names[kind] : "unknown operation";
}

// ----------------------------------------------------------------------------
// state

typedef struct ControlBuffer { int refs; size_t bytes; } ControlBuffer;             // the bytes follow; shared by the queues it stands in
typedef struct ControlOut { ControlBuffer* buffer; struct ControlOut* next; } ControlOut;

typedef struct {
    int fd;                         // -1: closed
    unsigned char* in;              // the frame that is arriving
    size_t in_bytes, in_capacity;
    ControlOut *out, **out_end;     // frames to be sent
    size_t out_offset;              // bytes of the first that are sent
    double heard;                   // when anything came last
    ControlBeat beat;               // the last one, and when it came
    double beat_at;
} ControlLink;

typedef struct ControlPart { unsigned char* data; int bytes; bool here; } ControlPart;
typedef struct ControlOp {          // hub: an operation that some ranks have come to
    ControlOperation what;          // as its first rank said
    int first_rank, arrived;
    double since;
    ControlPart* parts;             // (size)
    struct ControlOp* next;
} ControlOp;

typedef struct ControlCall {        // a thread of this process that waits for a result; on its stack
    const char* name;
    void* out;
    size_t out_bytes;
    bool done;
    struct ControlCall* next;
} ControlCall;

typedef struct Control {
    Ranks ranks;
    ControlConfig config;           // the pointers to texts are not used after the start
    char identity[CONTROL_TEXT_MAX];
    double bound, interval;         // watchdog and heartbeat, s
    pthread_t thread, main_thread;
    pthread_mutex_t mutex;          // of all below but the notes and the wish
    pthread_cond_t changed;
    int wake, listener;             // eventfd for the control thread; a peer's listening socket, -1: none
    ControlLink* links;             // hub: (size), 0 unused; peer: (1), the hub
    int num_links;
    ControlPlace* places;           // (size); peers have them after the start
    struct pollfd* polls;           // (num_links + 1)
    ControlOp* ops;
    ControlCall* calls;
    double looked, paused;          // the control thread's last look at the clock; time in which this process was stopped
    double beat_sent;
    bool started, finished, stop;   // all joined; all called control_finish; the thread may end
    double stop_at;
    int claim_rank, claim_code;     // hub: who asked first to print an error, -1: nobody
    double claim_at;
    bool granted, own_failure;      // the claim was granted; this process prints its own error and exits by itself
    bool ending;                    // this process will end: by the verdict, or by its own failure
    double exit_at;                 // own failure: the process is ended then if it has not ended itself; 0: not set
    struct { bool set, print, hub_lost; int code; char text[2048], hint[512]; } verdict;
    bool (*health)(void* arg, char ill[CONTROL_ILL_MAX]);  // control_watch_health; NULL: none
    void* health_arg;
    double health_at;
    bool ill_seen;
    char ill[CONTROL_ILL_MAX];      // what it found, "": nothing
    int wish;                       // control_wish; atomic
    // what the main thread and the writing thread do; each written by that thread alone. sequence is odd while it writes.
    pthread_t writer;               // valid if has_writer
    int has_writer;
    struct { uint64_t sequence, op[CONTROL_NAME_MAX / 8]; int64_t step; int manner; } note[CONTROL_THREADS];  // op: a text
    uint64_t note_seen[CONTROL_THREADS];  // the control thread's: sequence that it saw last, and when first
    double note_since[CONTROL_THREADS];
} Control;

static inline double control_clock(const Control* c) { return control_monotonic() - c->paused; }

static inline void control_place_init(ControlPlace* place, const Ranks* ranks) {
    struct { char boot[64]; uint64_t pids; } system;  // containers may share a host's name, and hosts a number of pids
    struct stat st;
    memset(place, 0, sizeof(*place));
    memset(&system, 0, sizeof(system));
    snprintf(place->host, sizeof(place->host), "%s", ranks->host);
    place->pid = (int32_t)getpid();
    if (!ranks_read_line("/proc/sys/kernel/random/boot_id", system.boot, sizeof(system.boot)) || stat("/proc/self/ns/pid", &st) != 0) { return; }
    system.pids = (uint64_t)st.st_ino;
    place->system = xxh64(&system, sizeof(system), 0);
    place->started = control_process_start(place->pid);
}
// Ends a process of this host that does not end by itself, if its id still means what it meant.
static inline void control_kill_stuck(const ControlPlace* self, const ControlPlace* other) {
    if (!other->started || self->system != other->system || other->pid <= 1) { return; }
    if (control_process_start(other->pid) == other->started) { kill(other->pid, SIGKILL); }
}

// ----------------------------------------------------------------------------
// frames

static inline unsigned char* control_buffer_data(ControlBuffer* b) { return (unsigned char*)(b + 1); }

// A frame with a payload of two parts. One reference.
static inline ControlBuffer* control_frame(int type, const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
    ControlBuffer* buffer = (ControlBuffer*)mallocCheck(sizeof(ControlBuffer) + sizeof(ControlFrame) + a_bytes + b_bytes);
    ControlFrame frame = {(uint32_t)(a_bytes + b_bytes), (uint32_t)type};
    buffer->refs = 1;
    buffer->bytes = sizeof(frame) + a_bytes + b_bytes;
    unsigned char* p = control_buffer_data(buffer);
    memcpy(p, &frame, sizeof(frame));
    if (a_bytes) { memcpy(p + sizeof(frame), a, a_bytes); }
    if (b_bytes) { memcpy(p + sizeof(frame) + a_bytes, b, b_bytes); }
    return buffer;
}
static inline void control_buffer_release(ControlBuffer* buffer) { if (--buffer->refs == 0) { free(buffer); } }

static inline void control_link_init(ControlLink* l, int fd) {
    memset(l, 0, sizeof(*l));
    l->fd = fd;
    l->out_end = &l->out;
}
static inline void control_link_close(ControlLink* l) {
    if (l->fd >= 0) { close(l->fd); }
    l->fd = -1;
    while (l->out) {
        ControlOut* first = l->out;
        l->out = first->next;
        control_buffer_release(first->buffer);
        free(first);
    }
    l->out_end = &l->out;
    l->out_offset = 0;
    free(l->in);
    l->in = NULL;
    l->in_bytes = l->in_capacity = 0;
}
static inline void control_queue(ControlLink* l, ControlBuffer* buffer) {
    if (l->fd < 0) { return; }
    ControlOut* item = (ControlOut*)mallocCheck(sizeof(ControlOut));
    item->buffer = buffer;
    item->next = NULL;
    buffer->refs++;
    *l->out_end = item;
    l->out_end = &item->next;
}
static inline void control_send(ControlLink* l, int type, const void* data, size_t bytes) {
    ControlBuffer* buffer = control_frame(type, data, bytes, NULL, 0);
    control_queue(l, buffer);
    control_buffer_release(buffer);
}
static inline void control_send_to_all(Control* c, int type, const void* data, size_t bytes) {
    ControlBuffer* buffer = control_frame(type, data, bytes, NULL, 0);
    for (int i = 0; i < c->num_links; i++) { control_queue(&c->links[i], buffer); }
    control_buffer_release(buffer);
}
static inline void control_wake(Control* c) {
    uint64_t one = 1;
    while (write(c->wake, &one, sizeof(one)) < 0 && errno == EINTR) {}
}

// Sends what the socket takes. False: the connection is lost.
static inline bool control_write(ControlLink* l) {
    while (l->out) {
        ControlOut* first = l->out;
        ssize_t n = send(l->fd, control_buffer_data(first->buffer) + l->out_offset, first->buffer->bytes - l->out_offset, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
        l->out_offset += (size_t)n;
        if (l->out_offset < first->buffer->bytes) { continue; }
        l->out = first->next;
        if (!l->out) { l->out_end = &l->out; }
        l->out_offset = 0;
        control_buffer_release(first->buffer);
        free(first);
    }
    return true;
}

#endif
