/* nccl_mpi.h - ranks as processes of an MPI job: bytes between them go through MPI's messages
 *
 * What:    messages of MPI_COMM_WORLD under four tags of the communicator's own, made from the random number of its unique id. The ranks need not be all of
 *          the job's processes, nor in its order: they tell the maker of the id who they are, and it tells all of them. The maker must be one of the ranks.
 * How:     a message is CPU_NCCL_CHUNK bytes at most and is copied before it is sent, so that a buffer in place may be written while a peer still receives.
 *          MPI moves nothing while nobody calls it, so a call ends when its own messages have arrived.
 * Waiting: MPI cannot wait asleep: so look, sleep for a moment, look again (cpu_nccl_mpi_nap).
 * Threads: one at a time (MPI_THREAD_SERIALIZED suffices); with less, ncclCommAbort from a second thread tells the peers nothing.
 * Dead:    mpirun ends the others by itself; peers of this machine are looked at as in nccl_shm.h.
 * Included by nccl.h with GPT_WITH_MPI.   Tests: dev/test/test_nccl.cu */
#ifndef LLMC_CPU_NCCL_MPI_H
#define LLMC_CPU_NCCL_MPI_H

#ifndef LLMC_CPU_NCCL_H
#error "include nccl.h, of which this is a part"
#endif

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

enum { CPU_NCCL_TAG_JOIN, CPU_NCCL_TAG_RANKS, CPU_NCCL_TAG_DATA, CPU_NCCL_TAG_LEAVE, CPU_NCCL_TAGS };
#define CPU_NCCL_MPI_BUFFERS 2

typedef struct { int32_t nranks, rank, world; CpuNcclProcess process; } CpuNcclMpiMember;
typedef struct {
    char* out[CPU_NCCL_MPI_BUFFERS];
    MPI_Request sending[CPU_NCCL_MPI_BUFFERS];
    char* in;                   // a message of which only the beginning was wanted
    size_t in_at, in_bytes;
    int world;                  // its rank in MPI_COMM_WORLD
    CpuNcclState state;
} CpuNcclMpiPeer;
struct CpuNcclMpi {
    int tag;                    // the first of CPU_NCCL_TAGS
    int come;                   // the maker of the id: ranks that have told it who they are
    CpuNcclMpiMember* members;  // (nranks)
    CpuNcclMpiPeer* peers;      // (nranks)
    uint32_t bell;
    int looks;                  // since something last moved
};

// MPI is there, and is a job of several processes: a program built with MPI and started alone uses shared memory.
static inline bool cpu_nccl_mpi_active(int* world_rank) {
    int begun = 0, ended = 0, size = 1;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (!begun || ended) { return false; }
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, world_rank);
    return size > 1;
}
static inline bool cpu_nccl_mpi_may_call(void) {
    int level = MPI_THREAD_SINGLE, main_thread = 0, ended = 0;
    MPI_Finalized(&ended);
    if (ended) { return false; }
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    return level >= MPI_THREAD_SERIALIZED || main_thread;
}

// ----------------------------------------------------------------------------
// the transport's functions (CpuNcclTransport)

static inline size_t cpu_nccl_mpi_send(ncclComm_t comm, int p, const char* data, size_t bytes) {
    CpuNcclMpiPeer* peer = &comm->mpi->peers[p];
    for (int i = 0; i < CPU_NCCL_MPI_BUFFERS; i++) {
        int done = 1;
        if (peer->sending[i] != MPI_REQUEST_NULL) { MPI_Test(&peer->sending[i], &done, MPI_STATUS_IGNORE); }
        if (!done) { continue; }
        const size_t n = bytes < CPU_NCCL_CHUNK ? bytes : CPU_NCCL_CHUNK;
        memcpy(peer->out[i], data, n);
        // synchronous: ends when the other side has begun to receive it
        (comm->alone ? MPI_Issend : MPI_Isend)(peer->out[i], (int)n, MPI_BYTE, peer->world, comm->mpi->tag + CPU_NCCL_TAG_DATA, MPI_COMM_WORLD, &peer->sending[i]);
        comm->mpi->looks = 0;
        return n;
    }
    return 0;
}
static inline size_t cpu_nccl_mpi_recv(ncclComm_t comm, int p, char* data, size_t bytes) {
    CpuNcclMpiPeer* peer = &comm->mpi->peers[p];
    const int tag = comm->mpi->tag + CPU_NCCL_TAG_DATA;
    if (peer->in_at == peer->in_bytes) {
        int there = 0, n = 0;
        MPI_Status status;
        MPI_Iprobe(peer->world, tag, MPI_COMM_WORLD, &there, &status);
        if (!there) { return 0; }
        MPI_Get_count(&status, MPI_BYTE, &n);
        comm->mpi->looks = 0;
        const bool whole = (size_t)n <= bytes;
        MPI_Recv(whole ? data : peer->in, n, MPI_BYTE, peer->world, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (whole) { return (size_t)n; }
        peer->in_at = 0;
        peer->in_bytes = (size_t)n;
    }
    const size_t left = peer->in_bytes - peer->in_at, n = bytes < left ? bytes : left;
    memcpy(data, peer->in + peer->in_at, n);
    peer->in_at += n;
    return n;
}
static inline bool cpu_nccl_mpi_flushed(ncclComm_t comm) {
    bool flushed = true;
    for (int p = 0; p < comm->nranks; p++) {
        for (MPI_Request& request : comm->mpi->peers[p].sending) {
            int done = 1;
            if (request != MPI_REQUEST_NULL) { MPI_Test(&request, &done, MPI_STATUS_IGNORE); }
            flushed = flushed && done;
        }
    }
    return flushed;
}
static inline uint32_t cpu_nccl_mpi_bell(ncclComm_t comm) { return comm->mpi->bell; }
// Between two looks: sleeps 5, 10, ..., 640 us. Giving way instead (sched_yield) costs milliseconds beside a busy process on the same core.
static inline void cpu_nccl_mpi_nap(CpuNcclMpi* mpi) {
    struct timespec t = {0, 5000L << mpi->looks};
    nanosleep(&t, NULL);
    if (mpi->looks < 7) { mpi->looks++; }
}
static inline void cpu_nccl_mpi_wait(ncclComm_t comm, uint32_t bell, long nanoseconds) {
    (void)bell;  // nobody rings: look
    const uint64_t begin = cpu_nanoseconds();
    int there = 0;
    do {
        cpu_nccl_mpi_nap(comm->mpi);
        MPI_Iprobe(MPI_ANY_SOURCE, comm->mpi->tag + CPU_NCCL_TAG_DATA, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
        there = there || __atomic_load_n(&comm->aborted, __ATOMIC_SEQ_CST);
        for (int p = 0; p < comm->nranks && !there; p++) {
            for (MPI_Request& request : comm->mpi->peers[p].sending) {
                if (request != MPI_REQUEST_NULL && !there) { MPI_Test(&request, &there, MPI_STATUS_IGNORE); }
            }
        }
    } while (!there && cpu_nanoseconds() - begin < (uint64_t)nanoseconds);
    comm->mpi->bell += there ? 1 : 0;
}
static inline void cpu_nccl_mpi_wake(ncclComm_t comm) { (void)comm; }  // the one who waits looks at `aborted` itself
static inline CpuNcclState cpu_nccl_mpi_state(ncclComm_t comm, int p) {
    CpuNcclMpiPeer* peer = &comm->mpi->peers[p];
    const int tag = comm->mpi->tag + CPU_NCCL_TAG_LEAVE;
    int there = 0, state = 0;
    MPI_Iprobe(peer->world, tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    if (there) {
        MPI_Recv(&state, 1, MPI_INT, peer->world, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        peer->state = (CpuNcclState)state;
    }
    return peer->state;
}
static inline void cpu_nccl_mpi_free(ncclComm_t comm) {
    for (int p = 0; p < comm->nranks; p++) {
        for (char* out : comm->mpi->peers[p].out) { free(out); }
        free(comm->mpi->peers[p].in);
    }
    free(comm->mpi->peers);
    free(comm->mpi->members);
    free(comm->mpi);
    comm->mpi = NULL;
}
static inline void cpu_nccl_mpi_leave(ncclComm_t comm, CpuNcclState state) {
    static const int left = CPU_NCCL_LEFT, aborted = CPU_NCCL_ABORTED;
    if (!cpu_nccl_mpi_may_call()) { comm->mpi = NULL; return; }
    for (int p = 0; p < comm->nranks; p++) {
        if (p == comm->rank) { continue; }
        MPI_Request request;
        MPI_Isend(state == CPU_NCCL_ABORTED ? &aborted : &left, 1, MPI_INT, comm->mpi->peers[p].world, comm->mpi->tag + CPU_NCCL_TAG_LEAVE, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
    }
    // a call that ended well has sent everything; after an error MPI still owns buffers, and keeps them
    if (cpu_nccl_mpi_flushed(comm)) { cpu_nccl_mpi_free(comm); }
    comm->mpi = NULL;
}
static const CpuNcclTransport cpu_nccl_mpi = {
    cpu_nccl_mpi_send, cpu_nccl_mpi_recv, cpu_nccl_mpi_flushed, cpu_nccl_mpi_bell, cpu_nccl_mpi_wait, cpu_nccl_mpi_wake, cpu_nccl_mpi_state, cpu_nccl_mpi_leave};

// ----------------------------------------------------------------------------
// joining: each rank sends a CpuNcclMpiMember to the maker of the id; when all have, it sends each of them a verdict ("": welcome) and all members

typedef struct { char why[256]; } CpuNcclMpiVerdict;

static inline ncclResult_t cpu_nccl_mpi_join(ncclComm_t comm, const CpuNcclId* id) {
    int world = -1, *most = NULL, set = 0;
    if (!cpu_nccl_mpi_active(&world)) {
        return cpu_nccl_error(ncclInvalidUsage, "the unique id belongs to an MPI job: call MPI_Init before ncclCommInitRank, start all ranks with one mpirun");
    }
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &set);
    const uint64_t tags = (uint64_t)(set ? *most : 32767) / CPU_NCCL_TAGS;
    CpuNcclMpi* mpi = comm->mpi = (CpuNcclMpi*)mallocCheck(sizeof(CpuNcclMpi));
    memset((void*)mpi, 0, sizeof(*mpi));
    mpi->tag = (int)(1 + id->random % (tags - 1)) * CPU_NCCL_TAGS;
    mpi->members = (CpuNcclMpiMember*)calloc((size_t)comm->nranks, sizeof(CpuNcclMpiMember));
    mpi->peers = (CpuNcclMpiPeer*)calloc((size_t)comm->nranks, sizeof(CpuNcclMpiPeer));
    require(mpi->members && mpi->peers, "", "out of host memory");
    for (int p = 0; p < comm->nranks; p++) {
        for (MPI_Request& request : mpi->peers[p].sending) { request = MPI_REQUEST_NULL; }
        if (p == comm->rank) { continue; }
        for (char*& out : mpi->peers[p].out) { out = (char*)mallocCheck(CPU_NCCL_CHUNK); }
        mpi->peers[p].in = (char*)mallocCheck(CPU_NCCL_CHUNK);
    }
    mpi->members[comm->rank] = {comm->nranks, comm->rank, world, comm->process};
    mpi->come = 1;
    if (world != id->world_rank) { MPI_Send(&mpi->members[comm->rank], sizeof(CpuNcclMpiMember), MPI_BYTE, id->world_rank, mpi->tag + CPU_NCCL_TAG_JOIN, MPI_COMM_WORLD); }
    return ncclInProgress;
}
static inline void cpu_nccl_mpi_answer(ncclComm_t comm, int world, const CpuNcclMpiVerdict* verdict) {
    const int tag = comm->mpi->tag + CPU_NCCL_TAG_RANKS;
    MPI_Send(verdict, sizeof(*verdict), MPI_BYTE, world, tag, MPI_COMM_WORLD);
    if (!verdict->why[0]) { MPI_Send(comm->mpi->members, comm->nranks * (int)sizeof(CpuNcclMpiMember), MPI_BYTE, world, tag, MPI_COMM_WORLD); }
}
// The maker: takes who has come. A contradiction ends it for all that have.
static inline ncclResult_t cpu_nccl_mpi_gather(ncclComm_t comm) {
    CpuNcclMpi* mpi = comm->mpi;
    CpuNcclMpiVerdict verdict = {""};
    while (mpi->come < comm->nranks && !verdict.why[0]) {
        CpuNcclMpiMember member;
        int there = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, mpi->tag + CPU_NCCL_TAG_JOIN, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
        if (!there) { return ncclInProgress; }
        MPI_Recv(&member, sizeof(member), MPI_BYTE, MPI_ANY_SOURCE, mpi->tag + CPU_NCCL_TAG_JOIN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (member.nranks != comm->nranks) {
            snprintf(verdict.why, sizeof(verdict.why), "rank %d joins a communicator of %d ranks, rank %d one of %d: nranks must be the same for all",
                     member.rank, member.nranks, comm->rank, comm->nranks);
        } else if (mpi->members[member.rank].nranks) {
            snprintf(verdict.why, sizeof(verdict.why), "rank %d of %d joins twice: process %d has taken this rank, process %d wants it, too",
                     member.rank, member.nranks, mpi->members[member.rank].process.pid, member.process.pid);
        } else {
            mpi->members[member.rank] = member;
            mpi->come++;
            continue;
        }
        cpu_nccl_mpi_answer(comm, member.world, &verdict);
    }
    for (int p = 0; p < comm->nranks; p++) {
        if (p != comm->rank && mpi->members[p].nranks) { cpu_nccl_mpi_answer(comm, mpi->members[p].world, &verdict); }
    }
    return verdict.why[0] ? cpu_nccl_error(ncclInvalidUsage, "%s", verdict.why) : ncclSuccess;
}
// One look; ncclInProgress: not all have come yet.
static inline ncclResult_t cpu_nccl_mpi_joined(ncclComm_t comm, const CpuNcclId* id) {
    CpuNcclMpi* mpi = comm->mpi;
    ncclResult_t result = ncclInProgress;
    if (mpi->members[comm->rank].world == id->world_rank) { result = cpu_nccl_mpi_gather(comm); }
    else {
        const int tag = mpi->tag + CPU_NCCL_TAG_RANKS;
        int there = 0;
        MPI_Iprobe(id->world_rank, tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
        if (there) {
            CpuNcclMpiVerdict verdict;
            MPI_Recv(&verdict, sizeof(verdict), MPI_BYTE, id->world_rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (verdict.why[0]) { return cpu_nccl_error(ncclInvalidUsage, "%s", verdict.why); }
            MPI_Recv(mpi->members, comm->nranks * (int)sizeof(CpuNcclMpiMember), MPI_BYTE, id->world_rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            result = ncclSuccess;
        } else if (cpu_nccl_process_gone(&id->process, comm->process.machine)) {
            return cpu_nccl_error(ncclRemoteError, "rank %d of %d: the process %d that made the unique id has ended", comm->rank, comm->nranks, id->process.pid);
        }
    }
    if (result == ncclInProgress) { cpu_nccl_mpi_nap(mpi); }
    for (int p = 0; p < comm->nranks && result == ncclSuccess; p++) {
        comm->peers[p].process = mpi->members[p].process;
        mpi->peers[p].world = mpi->members[p].world;
        mpi->peers[p].state = CPU_NCCL_JOINED;
        comm->transport = &cpu_nccl_mpi;
    }
    return result;
}

#endif
