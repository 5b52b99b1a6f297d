/* nccl_comm.h - communicators of the CPU device: who is in them, what travels between them, who has died
 *
 * How:     A transport (shared memory, MPI) moves bytes between two ranks, in order, without blocking. Everything else is here: a call becomes segments in
 *          lanes, one lane a peer and direction. In front of a collective's data, to every peer, and in front of a message travels the call itself
 *          (CpuNcclCall), so that the other side compares it with its own. All lanes of all communicators of a group move at once; a rank that cannot move sleeps.
 *          Lanes hold the calls of all ranks in the same order (collectives first, then messages), so no order of calls within a group can deadlock.
 * Blocks:  of a reduction are reduced by the rank that keeps them: every rank sends its part to the owner, chunk by chunk; an all-reduce then gathers. So an
 *          all-reduce of a count that nranks divides has the bits of a reduce-scatter followed by an all-gather.
 * Errors:  what would corrupt or hang on a GPU ends the program ("[cpu device: nccl-...]"); a peer that has died, left or aborted is ncclRemoteError.
 * Memory:  CPU_NCCL_CHUNK bytes a rank of the communicator for reductions; what is destroyed leaves its handle behind, so that later use is named.
 * Included by nccl.h.   Tests: dev/test/test_nccl.cu */
#ifndef LLMC_CPU_NCCL_COMM_H
#define LLMC_CPU_NCCL_COMM_H

#ifndef LLMC_CPU_NCCL_H
#error "include nccl.h, of which this is a part"
#endif

#define CPU_NCCL_MAGIC 0x6c63636e75706300ull
#define CPU_NCCL_CHUNK ((size_t)64 << 10)
#define CPU_NCCL_LOOK_NS 50000000L  // how long a rank sleeps before it looks whether its peers still live

typedef enum { CPU_NCCL_EMPTY, CPU_NCCL_JOINING, CPU_NCCL_JOINED, CPU_NCCL_LEFT, CPU_NCCL_ABORTED } CpuNcclState;
typedef struct { int32_t pid; uint64_t started, machine; } CpuNcclProcess;  // started: in clock ticks since boot, tells a reused pid from the old one
// What the 128 bytes of a unique id hold.
typedef struct { uint64_t magic, random; CpuNcclProcess process; int32_t fd, world_rank; } CpuNcclId;

typedef enum { CPU_NCCL_ALL_REDUCE, CPU_NCCL_REDUCE_SCATTER, CPU_NCCL_ALL_GATHER, CPU_NCCL_BROADCAST, CPU_NCCL_REDUCE, CPU_NCCL_SEND, CPU_NCCL_RECV } CpuNcclKind;
// A call as it travels. sequence: of the communicator's collectives, or of the messages from one rank to another. peer: root, or the other end.
// alone: a message outside of a group, which blocks until the other side has taken it.
typedef struct { uint64_t magic, sequence, count; int32_t rank, kind, type, op, peer, alone; } CpuNcclCall;

typedef struct {
    size_t (*send)(ncclComm_t comm, int peer, const char* data, size_t bytes);   // returns how many bytes it took
    size_t (*recv)(ncclComm_t comm, int peer, char* data, size_t bytes);         // returns how many bytes it gave
    bool (*flushed)(ncclComm_t comm);                                           // all that was sent gets there without further calls; comm->alone: is there
    uint32_t (*bell)(ncclComm_t comm);                                          // a number that changes when a peer has sent or taken something
    void (*wait)(ncclComm_t comm, uint32_t bell, long nanoseconds);              // until it is another number, at most so long
    void (*wake)(ncclComm_t comm);                                              // ends this rank's wait, from another thread
    CpuNcclState (*state)(ncclComm_t comm, int peer);
    void (*leave)(ncclComm_t comm, CpuNcclState state);                         // tells the peers, frees what the transport holds
} CpuNcclTransport;

// call: sent; the peer's is compared with this one's. data: copied. stage: kept until all peers' chunks are there. result: sent as far as it is reduced.
typedef enum { CPU_NCCL_CALL, CPU_NCCL_DATA, CPU_NCCL_STAGE, CPU_NCCL_RESULT } CpuNcclSegmentKind;
struct CpuNcclOp;
struct CpuNcclShared;
struct CpuNcclMpi;
typedef struct { CpuNcclSegmentKind kind; char* data; size_t bytes; struct CpuNcclOp* op; } CpuNcclSegment;
typedef struct {
    std::vector<CpuNcclSegment> segments;
    size_t at, done;            // current segment, bytes of it that have moved
} CpuNcclLane;
typedef struct {
    CpuNcclProcess process;
    CpuNcclLane out, in;
    CpuNcclCall call;           // the peer's next
    size_t call_bytes;          // of it that have arrived
    char* staged;               // CPU_NCCL_CHUNK bytes
    uint64_t sent, received;    // messages
    bool gone;                  // one more look at what it has left behind, then it is an error
} CpuNcclPeer;


// A call of this rank. block: its own input to the part of a reduction that it keeps, result: where that goes; `reduced` of block_bytes are done.
typedef struct CpuNcclOp {
    CpuNcclCall call;
    ncclComm_t comm;
    const char* send;
    char* recv;
    const char* block;
    char* result;
    size_t block_bytes, reduced;
} CpuNcclOp;

struct ncclComm {
    uint64_t magic;             // CPU_NCCL_MAGIC while it lives
    int rank, nranks;
    CpuNcclProcess process;
    CpuNcclPeer* peers;         // (nranks), its own unused
    char* sum;                  // CPU_NCCL_CHUNK bytes, to reduce into
    const void** inputs;        // (nranks), of the chunk being reduced
    int* order;                 // (nranks)
    uint64_t sequence;          // collectives so far
    uint64_t sent;              // bytes of data so far, to all peers
    const CpuNcclOp* alone;     // the ncclSend outside of a group that is running
    const CpuNcclTransport* transport;  // NULL: alone, or not joined
    CpuNcclShared* shared;
    CpuNcclMpi* mpi;
    std::mutex* busy;           // held while calls run
    int aborted;
    ncclResult_t error;         // the first one: all later calls answer it
};

// ----------------------------------------------------------------------------
// processes

static inline uint64_t cpu_nccl_hash(uint64_t hash, const void* data, size_t bytes) {  // FNV-1a
    for (size_t i = 0; i < bytes; i++) { hash = (hash ^ ((const unsigned char*)data)[i]) * 0x100000001b3ull; }
    return hash;
}
static inline size_t cpu_nccl_read_file(const char* path, char* text, size_t size) {
    FILE* f = fopen(path, "rb");
    const size_t n = f ? fread(text, 1, size - 1, f) : 0;
    if (f) { fclose(f); }
    text[n] = 0;
    return n;
}
// State letter and start time out of /proc/PID/stat; false if there is no such process. The name before them may hold anything, so count from the last ')'.
static inline bool cpu_nccl_process_stat(int pid, char* state, uint64_t* started) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (!cpu_nccl_read_file(path, text, sizeof(text))) { return false; }
    const char* p = strrchr(text, ')');
    unsigned long long ticks = 0;
    if (!p || sscanf(p + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", state, &ticks) != 2) { return false; }
    *started = ticks;
    return true;
}
// machine: of which boot and which space of process ids.
static inline CpuNcclProcess cpu_nccl_process(void) {
    CpuNcclProcess process = {(int32_t)getpid(), 0, 0xcbf29ce484222325ull};
    char state, text[256];
    cpu_nccl_process_stat(process.pid, &state, &process.started);
    process.machine = cpu_nccl_hash(process.machine, text, cpu_nccl_read_file("/proc/sys/kernel/random/boot_id", text, sizeof(text)));
    const ssize_t n = readlink("/proc/self/ns/pid", text, sizeof(text));
    process.machine = cpu_nccl_hash(process.machine, text, n > 0 ? (size_t)n : 0);
    return process;
}
// Ended, or a zombie. False for a process of another machine: that cannot be seen from here.
static inline bool cpu_nccl_process_gone(const CpuNcclProcess* process, uint64_t machine) {
    if (process->machine != machine) { return false; }
    char state = 0;
    uint64_t started = 0;
    return !cpu_nccl_process_stat(process->pid, &state, &started) || state == 'Z' || state == 'X' || started != process->started;
}

// ----------------------------------------------------------------------------
// words

static inline size_t cpu_nccl_type_bytes(int type) {
    switch (type) {
#define CPU_NCCL_TYPE_BYTES(name, value, bytes, text, reduces) case value: return bytes;
        CPU_NCCL_TYPE_TABLE(CPU_NCCL_TYPE_BYTES)
#undef CPU_NCCL_TYPE_BYTES
    }
    return 0;
}
static inline const char* cpu_nccl_type_name(int type) {
    switch (type) {
#define CPU_NCCL_TYPE_TEXT(name, value, bytes, text, reduces) case value: return text;
        CPU_NCCL_TYPE_TABLE(CPU_NCCL_TYPE_TEXT)
#undef CPU_NCCL_TYPE_TEXT
    }
    return "no type";
}
static inline bool cpu_nccl_type_reduces(int type) {
    switch (type) {
#define CPU_NCCL_TYPE_REDUCES(name, value, bytes, text, reduces) case value: return reduces;
        CPU_NCCL_TYPE_TABLE(CPU_NCCL_TYPE_REDUCES)
#undef CPU_NCCL_TYPE_REDUCES
    }
    return false;
}
static inline const char* cpu_nccl_call_name(int kind) {
    static const char* const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv"};
    return kind >= 0 && kind < (int)(sizeof(names) / sizeof(names[0])) ? names[kind] : "?";
}
static inline bool cpu_nccl_is_message(int kind) { return kind == CPU_NCCL_SEND || kind == CPU_NCCL_RECV; }
static inline bool cpu_nccl_reduces(int kind) { return kind == CPU_NCCL_ALL_REDUCE || kind == CPU_NCCL_REDUCE_SCATTER || kind == CPU_NCCL_REDUCE; }
static inline bool cpu_nccl_has_root(int kind) { return kind == CPU_NCCL_BROADCAST || kind == CPU_NCCL_REDUCE; }

typedef struct { char text[256]; } CpuNcclText;
// "ncclReduce(count 12, float32, sum, root 1)"
static inline CpuNcclText cpu_nccl_describe(const CpuNcclCall* call) {
    static const char* const ops[] = {"sum", "prod", "max", "min", "avg"};
    CpuNcclText t;
    int n = snprintf(t.text, sizeof(t.text), "%s(count %llu, %s", cpu_nccl_call_name(call->kind), (unsigned long long)call->count, cpu_nccl_type_name(call->type));
    if (cpu_nccl_reduces(call->kind)) { n += snprintf(t.text + n, sizeof(t.text) - n, ", %s", call->op >= 0 && call->op < 5 ? ops[call->op] : "?"); }
    if (cpu_nccl_has_root(call->kind)) { n += snprintf(t.text + n, sizeof(t.text) - n, ", root %d", call->peer); }
    if (cpu_nccl_is_message(call->kind)) { n += snprintf(t.text + n, sizeof(t.text) - n, ", %s %d", call->kind == CPU_NCCL_SEND ? "to" : "from", call->peer); }
    snprintf(t.text + n, sizeof(t.text) - n, ")");
    return t;
}

// ----------------------------------------------------------------------------
// what a call sends and gets

static inline void cpu_nccl_push(CpuNcclLane* lane, CpuNcclSegmentKind kind, const void* data, size_t bytes, CpuNcclOp* op) {
    if (bytes) { lane->segments.push_back({kind, (char*)data, bytes, op}); }
}
// Part `rank` of count elements dealt out in nranks pieces, the last ones shorter or empty: first byte and bytes.
static inline void cpu_nccl_slice(const CpuNcclCall* call, int nranks, int rank, size_t* at, size_t* bytes) {
    const size_t size = cpu_nccl_type_bytes(call->type), piece = CEIL_DIV(call->count, (size_t)nranks);
    const size_t begin = piece * (size_t)rank < call->count ? piece * (size_t)rank : call->count, end = begin + piece < call->count ? begin + piece : call->count;
    *at = begin * size;
    *bytes = (end - begin) * size;
}

// Fills the lanes with a collective. Buffers are checked; count 0 compares the calls and moves nothing.
static inline void cpu_nccl_plan_collective(CpuNcclOp* op) {
    ncclComm_t comm = op->comm;
    const CpuNcclCall* call = &op->call;
    const size_t bytes = call->count * cpu_nccl_type_bytes(call->type);
    const int me = comm->rank, root = call->peer;
    size_t mine_at = 0, mine = bytes;
    op->call.sequence = comm->sequence++;
    comm->alone = NULL;
    op->reduced = op->block_bytes = 0;
    switch (call->kind) {
        case CPU_NCCL_ALL_REDUCE:
            cpu_nccl_slice(call, comm->nranks, me, &mine_at, &mine);
            op->block = op->send + mine_at;
            op->result = op->recv + mine_at;
            op->block_bytes = mine;
            break;
        case CPU_NCCL_REDUCE_SCATTER:
            op->block = op->send + bytes * (size_t)me;
            op->result = op->recv;
            op->block_bytes = bytes;
            break;
        case CPU_NCCL_REDUCE:
            op->block = op->send;
            op->result = op->recv;
            op->block_bytes = me == root ? bytes : 0;
            break;
        case CPU_NCCL_ALL_GATHER: if (bytes) { memmove(op->recv + bytes * (size_t)me, op->send, bytes); } break;
        case CPU_NCCL_BROADCAST: if (bytes && me == root) { memmove(op->recv, op->send, bytes); } break;
    }
    if (comm->nranks == 1 && op->block_bytes) { memmove(op->result, op->block, op->block_bytes); }
    for (int p = 0; p < comm->nranks; p++) {
        if (p == me) { continue; }
        CpuNcclLane *out = &comm->peers[p].out, *in = &comm->peers[p].in;
        size_t at, part;
        cpu_nccl_push(out, CPU_NCCL_CALL, call, sizeof(*call), op);
        cpu_nccl_push(in, CPU_NCCL_CALL, NULL, sizeof(*call), op);
        cpu_nccl_push(in, CPU_NCCL_STAGE, NULL, op->block_bytes, op);
        switch (call->kind) {
            case CPU_NCCL_ALL_REDUCE:
                cpu_nccl_slice(call, comm->nranks, p, &at, &part);
                cpu_nccl_push(out, CPU_NCCL_DATA, op->send + at, part, op);
                cpu_nccl_push(out, CPU_NCCL_RESULT, op->result, mine, op);
                cpu_nccl_push(in, CPU_NCCL_DATA, op->recv + at, part, op);
                break;
            case CPU_NCCL_REDUCE_SCATTER: cpu_nccl_push(out, CPU_NCCL_DATA, op->send + bytes * (size_t)p, bytes, op); break;
            case CPU_NCCL_REDUCE: if (p == root) { cpu_nccl_push(out, CPU_NCCL_DATA, op->send, bytes, op); } break;
            case CPU_NCCL_ALL_GATHER:
                cpu_nccl_push(out, CPU_NCCL_DATA, op->send, bytes, op);
                cpu_nccl_push(in, CPU_NCCL_DATA, op->recv + bytes * (size_t)p, bytes, op);
                break;
            case CPU_NCCL_BROADCAST:
                if (me == root) { cpu_nccl_push(out, CPU_NCCL_DATA, op->send, bytes, op); }
                if (p == root) { cpu_nccl_push(in, CPU_NCCL_DATA, op->recv, bytes, op); }
                break;
        }
    }
}
// A message to or from another rank.
static inline void cpu_nccl_plan_message(CpuNcclOp* op) {
    CpuNcclPeer* peer = &op->comm->peers[op->call.peer];
    const size_t bytes = op->call.count * cpu_nccl_type_bytes(op->call.type);
    const bool send = op->call.kind == CPU_NCCL_SEND;
    op->call.sequence = send ? peer->sent++ : peer->received++;
    if (send) { cpu_nccl_push(&peer->out, CPU_NCCL_CALL, &op->call, sizeof(op->call), op); } else { cpu_nccl_push(&peer->in, CPU_NCCL_CALL, NULL, sizeof(op->call), op); }
    cpu_nccl_push(send ? &peer->out : &peer->in, CPU_NCCL_DATA, send ? op->send : op->recv, bytes, op);
    op->comm->alone = send && op->call.alone ? op : NULL;
}

// ----------------------------------------------------------------------------
// moving

// The call that came from the peer against the one of this rank that is next in line.
static inline void cpu_nccl_compare(const CpuNcclOp* op, const CpuNcclCall* theirs) {
    const CpuNcclCall* mine = &op->call;
    const bool message = cpu_nccl_is_message(mine->kind);
    const bool same = theirs->magic == CPU_NCCL_MAGIC && theirs->sequence == mine->sequence && theirs->count == mine->count && theirs->type == mine->type &&
                      (message ? theirs->kind == CPU_NCCL_SEND && theirs->peer == mine->rank && theirs->rank == mine->peer
                               : theirs->kind == mine->kind && theirs->op == mine->op && theirs->peer == mine->peer);
    if (same) { return; }
    require(theirs->magic == CPU_NCCL_MAGIC, "", "[cpu device: nccl-mismatch] rank %d got bytes that are no call: the CPU device itself has lost its place", mine->rank);
    const CpuNcclText a = cpu_nccl_describe(mine), b = cpu_nccl_describe(theirs);
    cpu_fail("nccl-mismatch", false, "all ranks must make the same calls in the same order, with the same count, type, operation and root",
             "rank %d calls %s as number %llu, rank %d calls %s as number %llu", mine->rank, a.text, (unsigned long long)mine->sequence,
             theirs->rank, b.text, (unsigned long long)theirs->sequence);
}

static inline bool cpu_nccl_lane_ended(const CpuNcclLane* lane) { return lane->at == lane->segments.size(); }
static inline void cpu_nccl_lane_next(CpuNcclLane* lane, size_t bytes) {
    lane->done += bytes;
    if (lane->done == lane->segments[lane->at].bytes) { lane->at++; lane->done = 0; }
}
static inline bool cpu_nccl_move_out(ncclComm_t comm, int p) {
    CpuNcclLane* lane = &comm->peers[p].out;
    bool moved = false;
    while (!cpu_nccl_lane_ended(lane)) {
        const CpuNcclSegment* s = &lane->segments[lane->at];
        const size_t ready = (s->kind == CPU_NCCL_RESULT ? s->op->reduced : s->bytes) - lane->done;
        const size_t n = ready ? comm->transport->send(comm, p, s->data + lane->done, ready) : 0;
        if (!n) { break; }
        comm->sent += s->kind == CPU_NCCL_CALL ? 0 : n;
        cpu_nccl_lane_next(lane, n);
        moved = true;
    }
    return moved;
}
// The peer's next call, as far as it has come. True: something came.
static inline bool cpu_nccl_move_call(ncclComm_t comm, int p) {
    CpuNcclPeer* peer = &comm->peers[p];
    const size_t n = comm->transport->recv(comm, p, (char*)&peer->call + peer->call_bytes, sizeof(peer->call) - peer->call_bytes);
    peer->call_bytes += n;
    return n > 0;
}
// Staged bytes of a chunk are counted in lane->done; the chunk that is being filled begins at op->reduced.
static inline bool cpu_nccl_move_in(ncclComm_t comm, int p) {
    CpuNcclLane* lane = &comm->peers[p].in;
    bool moved = false;
    while (!cpu_nccl_lane_ended(lane)) {
        const CpuNcclSegment* s = &lane->segments[lane->at];
        if (s->kind == CPU_NCCL_CALL) {
            CpuNcclPeer* peer = &comm->peers[p];
            if (peer->call_bytes < sizeof(peer->call)) {
                if (!cpu_nccl_move_call(comm, p)) { break; }
                moved = true;
                continue;
            }
            cpu_nccl_compare(s->op, &peer->call);
            peer->call_bytes = 0;
            cpu_nccl_lane_next(lane, s->bytes);
            continue;
        }
        char* to = s->data + lane->done;
        size_t room = s->bytes - lane->done;
        if (s->kind == CPU_NCCL_STAGE) {
            const size_t staged = lane->done - s->op->reduced;
            to = comm->peers[p].staged + staged;
            if (room > CPU_NCCL_CHUNK - staged) { room = CPU_NCCL_CHUNK - staged; }
        }
        const size_t n = room ? comm->transport->recv(comm, p, to, room) : 0;
        if (!n) { break; }
        moved = true;
        if (s->kind == CPU_NCCL_STAGE) { lane->done += n; continue; }  // cpu_nccl_reduce_chunk goes on to the next segment
        cpu_nccl_lane_next(lane, n);
    }
    return moved;
}
// Reduces the next chunk if all peers' parts of it are there.
static inline bool cpu_nccl_reduce_chunk(ncclComm_t comm) {
    CpuNcclOp* op = NULL;
    size_t n = 0;
    for (int p = 0; p < comm->nranks; p++) {
        if (p == comm->rank) { continue; }
        const CpuNcclLane* lane = &comm->peers[p].in;
        if (cpu_nccl_lane_ended(lane) || lane->segments[lane->at].kind != CPU_NCCL_STAGE || (op && op != lane->segments[lane->at].op)) { return false; }
        op = lane->segments[lane->at].op;
        n = op->block_bytes - op->reduced < CPU_NCCL_CHUNK ? op->block_bytes - op->reduced : CPU_NCCL_CHUNK;
        if (lane->done - op->reduced < n) { return false; }
        comm->inputs[p] = comm->peers[p].staged;
    }
    comm->inputs[comm->rank] = op->block + op->reduced;
    cpu_nccl_order(comm->order, comm->nranks, comm->rank, op->call.sequence);
    cpu_nccl_reduce((ncclDataType_t)op->call.type, (ncclRedOp_t)op->call.op, comm->sum, comm->inputs, comm->order, comm->nranks, n / cpu_nccl_type_bytes(op->call.type));
    memcpy(op->result + op->reduced, comm->sum, n);
    op->reduced += n;
    for (int p = 0; p < comm->nranks && op->reduced == op->block_bytes; p++) {
        if (p != comm->rank) { comm->peers[p].in.at++; comm->peers[p].in.done = 0; }
    }
    return true;
}
static inline bool cpu_nccl_move(ncclComm_t comm) {
    bool moved = false;
    for (int p = 0; p < comm->nranks; p++) {
        if (p == comm->rank) { continue; }
        moved |= cpu_nccl_move_in(comm, p);
        moved |= cpu_nccl_move_out(comm, p);
    }
    return (comm->nranks > 1 && cpu_nccl_reduce_chunk(comm)) || moved;
}
static inline bool cpu_nccl_finished(ncclComm_t comm) {
    for (int p = 0; p < comm->nranks; p++) {
        if (p != comm->rank && (!cpu_nccl_lane_ended(&comm->peers[p].out) || !cpu_nccl_lane_ended(&comm->peers[p].in))) { return false; }
    }
    return comm->nranks == 1 || comm->transport->flushed(comm);
}

// A peer that this rank waits for and that will never answer: found twice in a row, with a look for what it had sent in between. Of several the dead one is
// named: the others have left because of it.
static inline ncclResult_t cpu_nccl_look_for_dead(ncclComm_t comm) {
    static const char* const words[] = {"which has destroyed its communicator", "which has aborted its communicator", "which has died"};
    int worst = -1, rank = -1;
    for (int p = 0; p < comm->nranks; p++) {
        CpuNcclPeer* peer = &comm->peers[p];
        const bool taking = comm->alone && comm->alone->call.peer == p;  // all is sent, not all is taken
        if (p == comm->rank || (!taking && cpu_nccl_lane_ended(&peer->out) && cpu_nccl_lane_ended(&peer->in))) { continue; }
        const CpuNcclState state = comm->transport->state(comm, p);
        const int how = state == CPU_NCCL_LEFT ? 0 : state == CPU_NCCL_ABORTED ? 1 : cpu_nccl_process_gone(&peer->process, comm->process.machine) ? 2 : -1;
        if (how > worst && peer->gone) { worst = how; rank = p; }
        peer->gone = how >= 0;
    }
    if (worst < 0) { return ncclSuccess; }
    const CpuNcclPeer* peer = &comm->peers[rank];
    const CpuNcclLane* lane = !cpu_nccl_lane_ended(&peer->in) ? &peer->in : &peer->out;
    const CpuNcclText call = cpu_nccl_describe(comm->alone ? &comm->alone->call : &lane->segments[lane->at].op->call);
    return cpu_nccl_error(ncclRemoteError, "rank %d waits in %s for rank %d, %s (process %d)", comm->rank, call.text, rank, words[worst], peer->process.pid);
}

// Two ranks that send to each other outside of a group: both wait for ever, on a GPU too once messages are longer than its buffers.
static inline void cpu_nccl_look_for_deadlock(ncclComm_t comm) {
    if (!comm->alone) { return; }
    CpuNcclPeer* peer = &comm->peers[comm->alone->call.peer];
    while (peer->call_bytes < sizeof(peer->call) && cpu_nccl_move_call(comm, comm->alone->call.peer)) { }
    if (peer->call_bytes < sizeof(peer->call) || peer->call.kind != CPU_NCCL_SEND || !peer->call.alone) { return; }
    const CpuNcclText a = cpu_nccl_describe(&comm->alone->call), b = cpu_nccl_describe(&peer->call);
    cpu_fail("nccl-deadlock", false, "put the sends and receives between ncclGroupStart and ncclGroupEnd",
             "rank %d is in %s, rank %d in %s: neither receives", comm->rank, a.text, comm->alone->call.peer, b.text);
}

// Runs what is in the lanes of these communicators (their `busy` held) to its end, or to the first error, which then sticks to all of them.
static inline ncclResult_t cpu_nccl_run(ncclComm_t* comms, size_t count) {
    ncclResult_t result = ncclSuccess;
    uint64_t look = cpu_nanoseconds() + CPU_NCCL_LOOK_NS;
    for (size_t i = 0; i < count; i++) {
        for (int p = 0; p < comms[i]->nranks; p++) { comms[i]->peers[p].gone = false; }
    }
    while (result == ncclSuccess) {
        ncclComm_t waits = NULL;
        uint32_t bell = 0;
        size_t waiting = 0;
        bool moved = false;
        for (size_t i = 0; i < count; i++) {
            const uint32_t before = comms[i]->transport ? comms[i]->transport->bell(comms[i]) : 0;
            if (__atomic_load_n(&comms[i]->aborted, __ATOMIC_SEQ_CST)) { result = cpu_nccl_error(ncclSystemError, "ncclCommAbort ended the call of rank %d", comms[i]->rank); }
            moved |= cpu_nccl_move(comms[i]);
            if (cpu_nccl_finished(comms[i])) { continue; }
            waiting++;
            waits = comms[i];
            bell = before;
        }
        if (!waiting) { break; }
        if (moved || result != ncclSuccess) { continue; }
        // several communicators have several bells: sleep for a moment on one of them
        waits->transport->wait(waits, bell, waiting > 1 ? 1000000L : CPU_NCCL_LOOK_NS);
        if (cpu_nanoseconds() < look) { continue; }
        look = cpu_nanoseconds() + CPU_NCCL_LOOK_NS;
        for (size_t i = 0; i < count && result == ncclSuccess; i++) {
            cpu_nccl_look_for_deadlock(comms[i]);
            result = comms[i]->nranks > 1 ? cpu_nccl_look_for_dead(comms[i]) : ncclSuccess;
        }
    }
    for (size_t i = 0; i < count; i++) {
        for (int p = 0; p < comms[i]->nranks; p++) {
            for (CpuNcclLane* lane : {&comms[i]->peers[p].out, &comms[i]->peers[p].in}) { lane->segments.clear(); lane->at = lane->done = 0; }
        }
        comms[i]->alone = NULL;
        if (result != ncclSuccess) { __atomic_store_n(&comms[i]->error, result, __ATOMIC_SEQ_CST); }
    }
    return result;
}

#endif
