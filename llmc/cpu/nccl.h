/* nccl.h - collectives by NCCL's names on the CPU device: ranks are processes, of one machine over shared memory, or of an MPI job
 *
 * What:      the part of NCCL 2.28 that a data-parallel trainer uses, with its enum values. Built with -DGPT_WITH_MPI and MPI initialised (more than one
 *            process): over MPI's messages (nccl_mpi.h). Otherwise: shared memory (nccl_shm.h). What travels and who has died: nccl_comm.h.
 * Numerics:  nccl_reduce.h: BF16 rounded at every hop, in a fixed or seeded order; the same bits on all ranks, in both transports, for any number of threads.
 * Streams:   work runs at once, so a collective blocks its caller until this rank's part is done, and ncclGroupEnd until that of the whole group is.
 * Refused:   as NCCL does (ncclInvalidArgument, ncclInvalidUsage; ncclGetLastError says why): NULL, rank, root, type, operation, reductions of FP8 below
 *            compute capability 9.0. By the CPU device alone: reductions of FP16 and FP8, several ranks in one process by a group.
 * Ends with: "[cpu device: nccl-...]" what would corrupt or hang on a GPU: overrun (count against the allocation), pointer (host memory), alignment, overlap
 *            (in place, but not as NCCL wants it), mismatch (ranks make different calls), deadlock (two ranks send outside of a group), handle (use after destroy).
 * Errors:    a peer that died, left or aborted: ncclRemoteError; ncclCommAbort from another thread: ncclSystemError. The communicator then answers nothing else.
 * Tests:     dev/test/test_nccl.cu */
#ifndef LLMC_CPU_NCCL_H
#define LLMC_CPU_NCCL_H

#include <algorithm>
#include <mutex>
#include <sys/random.h>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
#define NCCL_COMM_NULL NULL
#define NCCL_UNIQUE_ID_BYTES 128

typedef struct ncclComm* ncclComm_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

// name, value, NCCL's words (in ours)
#define CPU_NCCL_RESULT_TABLE(X) \
    X(ncclSuccess, 0, "no error") \
    X(ncclUnhandledCudaError, 1, "a CUDA call failed") \
    X(ncclSystemError, 2, "a system call failed, or the communicator was aborted") \
    X(ncclInternalError, 3, "internal error") \
    X(ncclInvalidArgument, 4, "invalid argument") \
    X(ncclInvalidUsage, 5, "invalid usage") \
    X(ncclRemoteError, 6, "another process has died, left or aborted") \
    X(ncclInProgress, 7, "in progress")
typedef enum {
#define CPU_NCCL_RESULT_ENUM(name, value, text) name = value,
    CPU_NCCL_RESULT_TABLE(CPU_NCCL_RESULT_ENUM)
#undef CPU_NCCL_RESULT_ENUM
    ncclNumResults = 8
} ncclResult_t;

typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;

// name, value, bytes, how messages call it, whether the CPU device reduces it
#define CPU_NCCL_TYPE_TABLE(X) \
    X(ncclInt8, 0, 1, "int8", true) X(ncclUint8, 1, 1, "uint8", true) X(ncclInt32, 2, 4, "int32", true) X(ncclUint32, 3, 4, "uint32", true) \
    X(ncclInt64, 4, 8, "int64", true) X(ncclUint64, 5, 8, "uint64", true) X(ncclFloat16, 6, 2, "float16", false) X(ncclFloat32, 7, 4, "float32", true) \
    X(ncclFloat64, 8, 8, "float64", true) X(ncclBfloat16, 9, 2, "bfloat16", true) X(ncclFloat8e4m3, 10, 1, "float8 e4m3", false) X(ncclFloat8e5m2, 11, 1, "float8 e5m2", false)
typedef enum {
#define CPU_NCCL_TYPE_ENUM(name, value, bytes, text, reduces) name = value,
    CPU_NCCL_TYPE_TABLE(CPU_NCCL_TYPE_ENUM)
#undef CPU_NCCL_TYPE_ENUM
    ncclChar = 0, ncclInt = 2, ncclHalf = 6, ncclFloat = 7, ncclDouble = 8, ncclNumTypes = 12
} ncclDataType_t;

static inline const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
#define CPU_NCCL_RESULT_TEXT(name, value, text) case name: return text;
        CPU_NCCL_RESULT_TABLE(CPU_NCCL_RESULT_TEXT)
#undef CPU_NCCL_RESULT_TEXT
        default: return "unknown result code";
    }
}

// The last error of the process, in words: ncclGetLastError.
typedef struct { std::mutex lock; char text[1024]; } CpuNcclLastError;
inline CpuNcclLastError* cpu_nccl_last_error(void) {
    static CpuNcclLastError* e = new CpuNcclLastError();
    return e;
}
__attribute__((format(printf, 2, 3)))
static inline ncclResult_t cpu_nccl_error(ncclResult_t result, const char* fmt, ...) {
    CpuNcclLastError* e = cpu_nccl_last_error();
    std::lock_guard<std::mutex> guard(e->lock);
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, args);
    va_end(args);
    return result;
}
static inline const char* ncclGetLastError(ncclComm_t comm) { (void)comm; return cpu_nccl_last_error()->text; }
static inline ncclResult_t ncclGetVersion(int* version) {
    if (!version) { return cpu_nccl_error(ncclInvalidArgument, "ncclGetVersion: version is NULL"); }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

#include "nccl_reduce.h"
#include "nccl_comm.h"
#include "nccl_shm.h"
#ifdef GPT_WITH_MPI
#include "nccl_mpi.h"
#endif

// ----------------------------------------------------------------------------
// communicators

struct CpuNcclComms { std::mutex lock; std::vector<ncclComm_t> all; };  // those that were destroyed, too: their use is then named
inline CpuNcclComms* cpu_nccl_comms(void) {
    static CpuNcclComms* c = new CpuNcclComms();
    return c;
}
// Ends the program for a handle that is none (any more); false: NULL.
static inline bool cpu_nccl_check_comm(const char* call, ncclComm_t comm) {
    if (!comm) { cpu_nccl_error(ncclInvalidArgument, "%s: the communicator is NULL", call); return false; }
    CpuNcclComms* c = cpu_nccl_comms();
    std::lock_guard<std::mutex> guard(c->lock);
    bool known = false;
    for (ncclComm_t other : c->all) { known = known || other == comm; }
    if (!known || comm->magic != CPU_NCCL_MAGIC) {
        cpu_fail("nccl-handle", false, "check the order of destruction, and who else has the handle",
                 "%s: the communicator %p %s", call, (void*)comm, !known ? "was not made by ncclCommInitRank" : comm->aborted ? "has been aborted" : "has been destroyed");
    }
    if (comm->process.pid != getpid()) {
        cpu_fail("nccl-handle", false, "make communicators after fork", "%s: the communicator of process %d is used in process %d", call, comm->process.pid, (int)getpid());
    }
    return true;
}

typedef struct { int depth; std::vector<CpuNcclOp> ops; ncclResult_t error; } CpuNcclGroup;
inline CpuNcclGroup* cpu_nccl_group(void) {  // of this thread
    static thread_local CpuNcclGroup group;
    return &group;
}

static inline ncclResult_t ncclGetUniqueId(ncclUniqueId* unique) {
    if (!unique) { return cpu_nccl_error(ncclInvalidArgument, "ncclGetUniqueId: the id is NULL"); }
    memset(unique, 0, sizeof(*unique));
    CpuNcclId id = {CPU_NCCL_MAGIC, 0, cpu_nccl_process(), -1, -1};
    static_assert(sizeof(id) <= sizeof(*unique), "an id has 128 bytes");
    if (getrandom(&id.random, sizeof(id.random), 0) != (ssize_t)sizeof(id.random)) { return cpu_nccl_error(ncclSystemError, "ncclGetUniqueId: no random numbers: %s", strerror(errno)); }
#ifdef GPT_WITH_MPI
    int world = -1;
    const bool by_mpi = cpu_nccl_mpi_active(&world);
    id.world_rank = by_mpi ? world : -1;
#else
    const bool by_mpi = false;
#endif
    const ncclResult_t result = by_mpi ? ncclSuccess : cpu_nccl_shm_make_id(&id);
    if (result == ncclSuccess) { memcpy(unique->internal, &id, sizeof(id)); }
    return result;
}

// Memory goes, the handle stays.
static inline void cpu_nccl_free(ncclComm_t comm, CpuNcclState state) {
    const CpuNcclTransport* transport = comm->transport;
    {
        std::lock_guard<std::mutex> guard(cpu_nccl_comms()->lock);  // cpu_nccl_end of another thread looks at them
        comm->transport = NULL;
        comm->magic = 0;
    }
    if (transport) { transport->leave(comm, state); }
    for (int p = 0; p < comm->nranks; p++) { free(comm->peers[p].staged); }
    delete[] comm->peers;
    free(comm->sum);
    free(comm->inputs);
    free(comm->order);
    comm->peers = NULL;
}

// Waits for all ranks, over the transport that the maker of the id has chosen.
static inline ncclResult_t cpu_nccl_join(ncclComm_t comm, const CpuNcclId* id) {
    ncclResult_t result;
    if (id->world_rank >= 0) {
#ifdef GPT_WITH_MPI
        result = cpu_nccl_mpi_join(comm, id);
        while (result == ncclInProgress) { result = cpu_nccl_mpi_joined(comm, id); }
        if (result != ncclSuccess && comm->mpi) { cpu_nccl_mpi_free(comm); }
#else
        result = cpu_nccl_error(ncclInvalidUsage, "the unique id belongs to an MPI job, but this program was built without MPI");
#endif
    } else {
        result = cpu_nccl_shm_join(comm, id);
        while (result == ncclInProgress) { result = cpu_nccl_shm_joined(comm, id); }
    }
    return result;
}

static inline ncclResult_t ncclCommInitRank(ncclComm_t* out, int nranks, ncclUniqueId unique, int rank) {
    CpuNcclId id;
    memcpy(&id, unique.internal, sizeof(id));
    if (!out) { return cpu_nccl_error(ncclInvalidArgument, "ncclCommInitRank: the communicator's address is NULL"); }
    *out = NULL;
    if (nranks < 1 || rank < 0 || rank >= nranks) { return cpu_nccl_error(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d ranks", rank, nranks); }
    if (id.magic != CPU_NCCL_MAGIC) { return cpu_nccl_error(ncclInvalidArgument, "ncclCommInitRank: the unique id was not made by ncclGetUniqueId"); }
    if (cpu_nccl_group()->depth) { return cpu_nccl_error(ncclInvalidUsage, "the CPU device has one rank a process: ncclCommInitRank outside of a group"); }
    ncclComm_t comm = new ncclComm();
    comm->magic = CPU_NCCL_MAGIC;
    comm->rank = rank;
    comm->nranks = nranks;
    comm->process = cpu_nccl_process();
    comm->busy = new std::mutex();
    comm->peers = new CpuNcclPeer[(size_t)nranks]();
    comm->inputs = (const void**)mallocCheck((size_t)nranks * sizeof(void*));
    comm->order = (int*)mallocCheck((size_t)nranks * sizeof(int));
    comm->sum = (char*)mallocCheck(CPU_NCCL_CHUNK);
    for (int p = 0; p < nranks; p++) { if (p != rank) { comm->peers[p].staged = (char*)mallocCheck(CPU_NCCL_CHUNK); } }
    {
        std::lock_guard<std::mutex> guard(cpu_nccl_comms()->lock);
        cpu_nccl_comms()->all.push_back(comm);
    }
    const ncclResult_t result = nranks == 1 ? ncclSuccess : cpu_nccl_join(comm, &id);
    cpu_nccl_shm_close_id(&id);
    if (result != ncclSuccess) { cpu_nccl_free(comm, CPU_NCCL_LEFT); return result; }
    *out = comm;
    return ncclSuccess;
}

// Ends a communicator's life in one of two ways; waits until no call of it runs any more.
static inline ncclResult_t cpu_nccl_end(const char* call, ncclComm_t comm, CpuNcclState state) {
    if (!cpu_nccl_check_comm(call, comm)) { return ncclInvalidArgument; }
    if (state == CPU_NCCL_ABORTED) {
        std::lock_guard<std::mutex> guard(cpu_nccl_comms()->lock);
        __atomic_store_n(&comm->aborted, 1, __ATOMIC_SEQ_CST);
        if (comm->transport) { comm->transport->wake(comm); }
    }
    std::lock_guard<std::mutex> guard(*comm->busy);
    if (comm->magic == CPU_NCCL_MAGIC) { cpu_nccl_free(comm, state); }
    return ncclSuccess;
}
static inline ncclResult_t ncclCommFinalize(ncclComm_t comm) { return cpu_nccl_check_comm("ncclCommFinalize", comm) ? ncclSuccess : ncclInvalidArgument; }
static inline ncclResult_t ncclCommDestroy(ncclComm_t comm) { return cpu_nccl_end("ncclCommDestroy", comm, CPU_NCCL_LEFT); }
static inline ncclResult_t ncclCommAbort(ncclComm_t comm) { return cpu_nccl_end("ncclCommAbort", comm, CPU_NCCL_ABORTED); }

static inline ncclResult_t cpu_nccl_get(const char* call, ncclComm_t comm, int* value, int what) {
    if (!cpu_nccl_check_comm(call, comm)) { return ncclInvalidArgument; }
    if (!value) { return cpu_nccl_error(ncclInvalidArgument, "%s: the result's address is NULL", call); }
    *value = what == 0 ? comm->nranks : what == 1 ? comm->rank : 0;
    return ncclSuccess;
}
static inline ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) { return cpu_nccl_get("ncclCommCount", comm, count, 0); }
static inline ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) { return cpu_nccl_get("ncclCommUserRank", comm, rank, 1); }
static inline ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) { return cpu_nccl_get("ncclCommCuDevice", comm, device, 2); }
// For tests: bytes of data that this rank has sent to all peers. A reduce-scatter or an all-gather of S bytes in all sends S * (nranks - 1) / nranks, an
// all-reduce twice that, as NCCL's rings do; the root of a broadcast sends to each.
static inline uint64_t cpu_nccl_sent_bytes(ncclComm_t comm) { return comm->sent; }
static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    if (!cpu_nccl_check_comm("ncclCommGetAsyncError", comm)) { return ncclInvalidArgument; }
    if (!error) { return cpu_nccl_error(ncclInvalidArgument, "ncclCommGetAsyncError: the result's address is NULL"); }
    *error = __atomic_load_n(&comm->error, __ATOMIC_SEQ_CST);
    return ncclSuccess;
}

// ----------------------------------------------------------------------------
// groups

// Messages of a rank to itself: the first sent is the first received.
static inline ncclResult_t cpu_nccl_copy_to_self(std::vector<CpuNcclOp>& ops, ncclComm_t comm) {
    size_t r = 0;
    for (size_t s = 0; s < ops.size(); s++) {
        if (ops[s].comm != comm || ops[s].call.kind != CPU_NCCL_SEND || ops[s].call.peer != comm->rank) { continue; }
        while (r < ops.size() && !(ops[r].comm == comm && ops[r].call.kind == CPU_NCCL_RECV && ops[r].call.peer == comm->rank)) { r++; }
        if (r == ops.size()) { return cpu_nccl_error(ncclInvalidUsage, "rank %d sends to itself and does not receive it in the same group", comm->rank); }
        const CpuNcclCall *a = &ops[s].call, *b = &ops[r].call;
        if (a->count != b->count || a->type != b->type) {
            const CpuNcclText x = cpu_nccl_describe(a), y = cpu_nccl_describe(b);
            cpu_fail("nccl-mismatch", false, "both sides of a message need the same count and type", "rank %d calls %s and %s", comm->rank, x.text, y.text);
        }
        memmove(ops[r].recv, ops[s].send, a->count * cpu_nccl_type_bytes(a->type));
        r++;
    }
    for (; r < ops.size(); r++) {
        if (ops[r].comm == comm && ops[r].call.kind == CPU_NCCL_RECV && ops[r].call.peer == comm->rank) {
            return cpu_nccl_error(ncclInvalidUsage, "rank %d receives from itself what it does not send in the same group", comm->rank);
        }
    }
    return ncclSuccess;
}

static inline ncclResult_t cpu_nccl_run_all(std::vector<CpuNcclOp>& ops) {
    std::vector<ncclComm_t> comms;
    for (CpuNcclOp& op : ops) { comms.push_back(op.comm); }
    std::sort(comms.begin(), comms.end());  // one order of locking for all threads
    comms.erase(std::unique(comms.begin(), comms.end()), comms.end());
    for (ncclComm_t comm : comms) { comm->busy->lock(); }
    ncclResult_t result = ncclSuccess;
    for (ncclComm_t comm : comms) {
        if (__atomic_load_n(&comm->aborted, __ATOMIC_SEQ_CST)) { result = cpu_nccl_error(ncclSystemError, "rank %d: the communicator was aborted", comm->rank); }
        else if (comm->error != ncclSuccess) { result = comm->error; }
        else if (result == ncclSuccess) { result = cpu_nccl_copy_to_self(ops, comm); }
    }
    if (result == ncclSuccess) {
        for (int messages = 0; messages <= 1; messages++) {  // as NCCL: messages of a group follow its collectives
            for (CpuNcclOp& op : ops) {
                if (cpu_nccl_is_message(op.call.kind) != (messages != 0) || (messages && op.call.peer == op.comm->rank)) { continue; }
                if (messages) { cpu_nccl_plan_message(&op); } else { cpu_nccl_plan_collective(&op); }
            }
        }
        result = cpu_nccl_run(comms.data(), comms.size());
    }
    for (ncclComm_t comm : comms) { comm->busy->unlock(); }
    return result;
}

static inline ncclResult_t ncclGroupStart(void) { cpu_nccl_group()->depth++; return ncclSuccess; }
static inline ncclResult_t ncclGroupEnd(void) {
    CpuNcclGroup* group = cpu_nccl_group();
    if (!group->depth) { return cpu_nccl_error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"); }
    if (--group->depth) { return ncclSuccess; }
    const ncclResult_t refused = group->error;
    std::vector<CpuNcclOp> ops;
    ops.swap(group->ops);
    group->error = ncclSuccess;
    return refused != ncclSuccess ? refused : ops.empty() ? ncclSuccess : cpu_nccl_run_all(ops);  // one call refused: none is made
}

// ----------------------------------------------------------------------------
// calls

// count elements of a buffer: device memory, of one allocation, aligned to the element.
static inline void cpu_nccl_check_buffer(const CpuNcclCall* call, const char* role, const void* pointer, uint64_t count) {
    const size_t size = cpu_nccl_type_bytes(call->type);
    const CpuNcclText text = cpu_nccl_describe(call);
    uintptr_t base;
    size_t bytes;
    if (!count) { return; }
    if (!pointer || !cpu_device_range(pointer, &base, &bytes)) {
        cpu_fail("nccl-pointer", false, "pass memory that cudaMalloc gave and that is not freed yet",
                 "rank %d: %s: the %s %p is not device memory", call->rank, text.text, role, pointer);
    }
    const size_t left = base + bytes - (uintptr_t)pointer;
    if (count > left / size) {
        cpu_fail("nccl-overrun", false, "counts are in elements, not in bytes; reduce-scatter sends, all-gather receives nranks * count of them",
                 "rank %d: %s: the %s has to hold %llu elements of %zu bytes, but only %zu bytes are left of its allocation of %zu bytes",
                 call->rank, text.text, role, (unsigned long long)count, size, left, bytes);
    }
    if ((uintptr_t)pointer % size) {
        cpu_fail("nccl-alignment", false, "buffers must be aligned to their element", "rank %d: %s: the %s %p is not aligned to %zu bytes", call->rank, text.text, role, pointer, size);
    }
}
// send and recv may overlap only where NCCL says that this is the call in place: send + send_at == recv + recv_at (bytes).
static inline void cpu_nccl_check_overlap(const CpuNcclOp* op, size_t send_bytes, size_t recv_bytes, size_t send_at, size_t recv_at) {
    const char *send = op->send, *recv = op->recv;
    if (!send_bytes || !recv_bytes || send + send_bytes <= recv || recv + recv_bytes <= send || send + send_at == recv + recv_at) { return; }
    const CpuNcclText text = cpu_nccl_describe(&op->call);
    cpu_fail("nccl-overlap", false, "in place means: all-reduce, reduce, broadcast send == recv; reduce-scatter recv == send + rank * count; all-gather send == recv + rank * count",
             "rank %d: %s: recv is at send %+lld bytes: they overlap, but not as the call in place", op->call.rank, text.text, (long long)(recv - send));
}

// A refused call inside a group refuses the group.
static inline ncclResult_t cpu_nccl_refuse(ncclResult_t result) {
    CpuNcclGroup* group = cpu_nccl_group();
    if (group->depth && group->error == ncclSuccess) { group->error = result; }
    return result;
}

static inline ncclResult_t cpu_nccl_call(CpuNcclKind kind, const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int peer, ncclComm_t comm, cudaStream_t stream) {
    const char* name = cpu_nccl_call_name(kind);
    if (!cpu_nccl_check_comm(name, comm)) { return cpu_nccl_refuse(ncclInvalidArgument); }
    const size_t size = cpu_nccl_type_bytes(type), nranks = (size_t)comm->nranks;
    if (!size) { return cpu_nccl_refuse(cpu_nccl_error(ncclInvalidArgument, "%s: %d is no type", name, (int)type)); }
    if (cpu_nccl_reduces(kind)) {
        const int arch = (int)cpu_modes()->arch;
        if (op < 0 || op >= ncclNumOps) { return cpu_nccl_refuse(cpu_nccl_error(ncclInvalidArgument, "%s: %d is no operation", name, (int)op)); }
        if (size == 1 && !cpu_nccl_type_reduces(type) && arch && arch < 90) {
            return cpu_nccl_refuse(cpu_nccl_error(ncclInvalidArgument, "%s: %s is reduced from compute capability 9.0 on, not by %d.%d", name, cpu_nccl_type_name(type), arch / 10, arch % 10));
        }
        if (!cpu_nccl_type_reduces(type)) { return cpu_nccl_refuse(cpu_nccl_error(ncclInvalidArgument, "%s: the CPU device does not reduce %s", name, cpu_nccl_type_name(type))); }
    }
    if (peer < 0 || peer >= comm->nranks) {
        return cpu_nccl_refuse(cpu_nccl_error(ncclInvalidArgument, "%s: %s %d of %d ranks", name, cpu_nccl_is_message(kind) ? "peer" : "root", peer, comm->nranks));
    }
    if (count > SIZE_MAX / 8 / nranks) { return cpu_nccl_refuse(cpu_nccl_error(ncclInvalidArgument, "%s: count %zu is beyond all memory", name, count)); }
    if (!cpu_stream_valid(stream)) { return cpu_nccl_refuse(cpu_nccl_error(ncclUnhandledCudaError, "%s: the stream is none", name)); }
    CpuNcclOp call = {{CPU_NCCL_MAGIC, 0, count, comm->rank, kind, type, cpu_nccl_reduces(kind) ? op : 0, peer, !cpu_nccl_group()->depth}, comm, (const char*)send, (char*)recv, NULL, NULL, 0, 0};
    const size_t bytes = count * size, me = (size_t)comm->rank;
    const bool root = comm->rank == peer;
    // elements that are read and written
    const size_t sends = kind == CPU_NCCL_REDUCE_SCATTER ? nranks * count : kind == CPU_NCCL_RECV || (kind == CPU_NCCL_BROADCAST && !root) ? 0 : count;
    const size_t recvs = kind == CPU_NCCL_ALL_GATHER ? nranks * count : kind == CPU_NCCL_SEND || (kind == CPU_NCCL_REDUCE && !root) ? 0 : count;
    cpu_nccl_check_buffer(&call.call, "send buffer", send, sends);
    cpu_nccl_check_buffer(&call.call, "receive buffer", recv, recvs);
    cpu_nccl_check_overlap(&call, sends * size, recvs * size, kind == CPU_NCCL_REDUCE_SCATTER ? me * bytes : 0, kind == CPU_NCCL_ALL_GATHER ? me * bytes : 0);
    CpuNcclGroup* group = cpu_nccl_group();
    group->ops.push_back(call);
    if (group->depth) { return ncclSuccess; }
    std::vector<CpuNcclOp> ops;
    ops.swap(group->ops);
    return cpu_nccl_run_all(ops);
}

// Meanings, counts and places as in NCCL's documentation. recv of ncclReduce and send of ncclBroadcast are looked at on the root only.
static inline ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_ALL_REDUCE, send, recv, count, type, op, 0, comm, stream);
}
static inline ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream);
}
static inline ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_ALL_GATHER, send, recv, count, type, ncclSum, 0, comm, stream);
}
static inline ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_BROADCAST, send, recv, count, type, ncclSum, root, comm, stream);
}
static inline ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_REDUCE, send, recv, count, type, op, root, comm, stream);
}
static inline ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_SEND, send, NULL, count, type, ncclSum, peer, comm, stream);
}
static inline ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return cpu_nccl_call(CPU_NCCL_RECV, NULL, recv, count, type, ncclSum, peer, comm, stream);
}

#endif
