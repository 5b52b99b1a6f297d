/* nccl_shm.h - ranks as processes of one machine: bytes between them go through shared memory
 *
 * What:    ncclGetUniqueId makes an anonymous file in memory (memfd), whose name is /proc/PID/fd/N of the process that made it: no name is left behind,
 *          whatever dies. A rank opens it, takes its slot, and waits until all have. A 64-bit random number in the id and in the file proves that they belong together.
 * File:    CpuNcclShared (one slot a rank), then one ring a pair of ranks and direction, in the order from * nranks + to; pages that are never used cost nothing.
 * Waiting: asleep (futex on the rank's bell, which everyone rings who wrote to it or read from it), never spinning: ranks share few cores.
 * Dead:    a peer whose process is gone, or is a zombie, is noticed while waiting (cpu_nccl_process_gone), what it had written before is still read.
 * Included by nccl.h.   Tests: dev/test/test_nccl.cu */
#ifndef LLMC_CPU_NCCL_SHM_H
#define LLMC_CPU_NCCL_SHM_H

#ifndef LLMC_CPU_NCCL_H
#error "include nccl.h, of which this is a part"
#endif

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define CPU_NCCL_SHM_MAX_RANKS 256

typedef struct alignas(64) {
    uint32_t state;             // CpuNcclState; taken by compare and swap
    uint32_t bell, sleeping;    // futex, and whether its rank waits on it
    CpuNcclProcess process;
} CpuNcclSlot;
struct CpuNcclShared {
    uint64_t magic, random;
    uint32_t nranks;            // 0: nobody has come yet
    uint32_t joined;            // futex: ranks that have
    CpuNcclSlot slot[CPU_NCCL_SHM_MAX_RANKS];
};
typedef struct { alignas(64) uint64_t written; alignas(64) uint64_t read; } CpuNcclRing;  // bytes since the beginning; data follows

// 1 MiB a rank, in rings of a power of two, 4 KiB at least.
static inline size_t cpu_nccl_ring_bytes(int nranks) {
    size_t bytes = 256 << 10;
    while (bytes > 4096 && bytes * (size_t)nranks > 1 << 20) { bytes /= 2; }
    return bytes;
}
static inline size_t cpu_nccl_shm_bytes(int nranks) {
    return ROUND_UP(sizeof(CpuNcclShared), (size_t)4096) + (size_t)nranks * (size_t)nranks * (sizeof(CpuNcclRing) + cpu_nccl_ring_bytes(nranks));
}
static inline CpuNcclRing* cpu_nccl_ring(ncclComm_t comm, int from, int to) {
    const size_t at = ((size_t)from * (size_t)comm->nranks + (size_t)to) * (sizeof(CpuNcclRing) + cpu_nccl_ring_bytes(comm->nranks));
    return (CpuNcclRing*)((char*)comm->shared + ROUND_UP(sizeof(CpuNcclShared), (size_t)4096) + at);
}

static inline void cpu_futex_wait(uint32_t* word, uint32_t value, long nanoseconds) {
    struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}
static inline void cpu_futex_wake(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
static inline void cpu_nccl_shm_ring_bell(ncclComm_t comm, int rank) {
    CpuNcclSlot* slot = &comm->shared->slot[rank];
    __atomic_add_fetch(&slot->bell, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&slot->sleeping, __ATOMIC_SEQ_CST)) { cpu_futex_wake(&slot->bell); }
}

// ----------------------------------------------------------------------------
// the transport's functions (CpuNcclTransport)

static inline size_t cpu_nccl_shm_send(ncclComm_t comm, int peer, const char* data, size_t bytes) {
    CpuNcclRing* ring = cpu_nccl_ring(comm, comm->rank, peer);
    const size_t size = cpu_nccl_ring_bytes(comm->nranks);
    const uint64_t written = ring->written, used = written - __atomic_load_n(&ring->read, __ATOMIC_ACQUIRE);
    const size_t n = bytes < size - used ? bytes : size - used, at = written % size, first = n < size - at ? n : size - at;
    if (!n) { return 0; }
    memcpy((char*)(ring + 1) + at, data, first);
    memcpy((char*)(ring + 1), data + first, n - first);
    __atomic_store_n(&ring->written, written + n, __ATOMIC_RELEASE);
    cpu_nccl_shm_ring_bell(comm, peer);
    return n;
}
static inline size_t cpu_nccl_shm_recv(ncclComm_t comm, int peer, char* data, size_t bytes) {
    CpuNcclRing* ring = cpu_nccl_ring(comm, peer, comm->rank);
    const size_t size = cpu_nccl_ring_bytes(comm->nranks);
    const uint64_t read = ring->read;
    const size_t used = __atomic_load_n(&ring->written, __ATOMIC_ACQUIRE) - read;
    const size_t n = bytes < used ? bytes : used, at = read % size, first = n < size - at ? n : size - at;
    if (!n) { return 0; }
    memcpy(data, (char*)(ring + 1) + at, first);
    memcpy(data + first, (char*)(ring + 1), n - first);
    __atomic_store_n(&ring->read, read + n, __ATOMIC_RELEASE);
    cpu_nccl_shm_ring_bell(comm, peer);
    return n;
}
static inline bool cpu_nccl_shm_flushed(ncclComm_t comm) {  // what is in a ring survives its writer
    if (!comm->alone) { return true; }
    const CpuNcclRing* ring = cpu_nccl_ring(comm, comm->rank, comm->alone->call.peer);
    return __atomic_load_n(&ring->read, __ATOMIC_ACQUIRE) == ring->written;
}
static inline uint32_t cpu_nccl_shm_bell(ncclComm_t comm) { return __atomic_load_n(&comm->shared->slot[comm->rank].bell, __ATOMIC_SEQ_CST); }
static inline void cpu_nccl_shm_wait(ncclComm_t comm, uint32_t bell, long nanoseconds) {
    CpuNcclSlot* slot = &comm->shared->slot[comm->rank];
    __atomic_store_n(&slot->sleeping, 1, __ATOMIC_SEQ_CST);
    cpu_futex_wait(&slot->bell, bell, nanoseconds);
    __atomic_store_n(&slot->sleeping, 0, __ATOMIC_SEQ_CST);
}
static inline void cpu_nccl_shm_wake(ncclComm_t comm) { cpu_nccl_shm_ring_bell(comm, comm->rank); }
static inline CpuNcclState cpu_nccl_shm_state(ncclComm_t comm, int peer) { return (CpuNcclState)__atomic_load_n(&comm->shared->slot[peer].state, __ATOMIC_SEQ_CST); }
static inline void cpu_nccl_shm_leave(ncclComm_t comm, CpuNcclState state) {
    __atomic_store_n(&comm->shared->slot[comm->rank].state, (uint32_t)state, __ATOMIC_SEQ_CST);
    for (int peer = 0; peer < comm->nranks; peer++) { if (peer != comm->rank) { cpu_nccl_shm_ring_bell(comm, peer); } }
    munmap((void*)comm->shared, cpu_nccl_shm_bytes(comm->nranks));
    comm->shared = NULL;
}
static const CpuNcclTransport cpu_nccl_shm = {
    cpu_nccl_shm_send, cpu_nccl_shm_recv, cpu_nccl_shm_flushed, cpu_nccl_shm_bell, cpu_nccl_shm_wait, cpu_nccl_shm_wake, cpu_nccl_shm_state, cpu_nccl_shm_leave};

// ----------------------------------------------------------------------------
// joining

static inline ncclResult_t cpu_nccl_shm_make_id(CpuNcclId* id) {
    const int fd = memfd_create("gpt_cpu_nccl", MFD_CLOEXEC);
    if (fd < 0) { return cpu_nccl_error(ncclSystemError, "no shared memory for a communicator: %s", strerror(errno)); }
    const uint64_t head[2] = {CPU_NCCL_MAGIC, id->random};
    if (ftruncate(fd, sizeof(CpuNcclShared)) != 0 || pwrite(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head)) {
        close(fd);
        return cpu_nccl_error(ncclSystemError, "no shared memory for a communicator: %s", strerror(errno));
    }
    id->fd = fd;  // stays open: it is the name by which the others find it
    return ncclSuccess;
}

static inline bool cpu_nccl_shm_is_id(int fd, const CpuNcclId* id) {
    uint64_t head[2] = {0, 0};
    return pread(fd, head, sizeof(head), 0) == (ssize_t)sizeof(head) && head[0] == CPU_NCCL_MAGIC && head[1] == id->random;
}
// The maker of the id, once it has joined or failed to: nobody needs the name any more.
static inline void cpu_nccl_shm_close_id(const CpuNcclId* id) {
    if (id->process.pid == getpid() && id->fd >= 0 && cpu_nccl_shm_is_id(id->fd, id)) { close(id->fd); }
}

static inline ncclResult_t cpu_nccl_shm_open(ncclComm_t comm, const CpuNcclId* id) {
    if (comm->nranks > CPU_NCCL_SHM_MAX_RANKS) {
        return cpu_nccl_error(ncclInvalidArgument, "%d ranks: the CPU device has at most %d in shared memory; start them with mpirun", comm->nranks, CPU_NCCL_SHM_MAX_RANKS);
    }
    if (id->process.machine != comm->process.machine) {
        return cpu_nccl_error(ncclSystemError, "rank %d is on another machine than the maker of the unique id: start the ranks with mpirun", comm->rank);
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", id->process.pid, id->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || !cpu_nccl_shm_is_id(fd, id)) {
        if (fd >= 0) { close(fd); }
        return cpu_nccl_error(ncclRemoteError, "rank %d: the process %d that made the unique id has ended, or the id was used before", comm->rank, id->process.pid);
    }
    const size_t bytes = cpu_nccl_shm_bytes(comm->nranks);
    // a file never shrinks: two ranks that both see it small set the same size
    const bool sized = fstat(fd, &status) == 0 && ((size_t)status.st_size >= bytes || ftruncate(fd, (off_t)bytes) == 0);
    void* mapped = sized ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (mapped == MAP_FAILED) { return cpu_nccl_error(ncclSystemError, "no shared memory for %d ranks (%zu bytes): %s", comm->nranks, bytes, strerror(errno)); }
    comm->shared = (CpuNcclShared*)mapped;
    return ncclSuccess;
}

// Takes the rank's slot. Then cpu_nccl_shm_joined is called until it no longer says ncclInProgress.
static inline ncclResult_t cpu_nccl_shm_join(ncclComm_t comm, const CpuNcclId* id) {
    ncclResult_t result = cpu_nccl_shm_open(comm, id);
    if (result != ncclSuccess) { return result; }
    CpuNcclShared* shared = comm->shared;
    uint32_t nobody = 0, empty = CPU_NCCL_EMPTY;
    if (!__atomic_compare_exchange_n(&shared->nranks, &nobody, (uint32_t)comm->nranks, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && nobody != (uint32_t)comm->nranks) {
        result = cpu_nccl_error(ncclInvalidUsage, "rank %d joins a communicator of %d ranks, others one of %u: nranks must be the same for all", comm->rank, comm->nranks, nobody);
    } else if (!__atomic_compare_exchange_n(&shared->slot[comm->rank].state, &empty, CPU_NCCL_JOINING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        result = cpu_nccl_error(ncclInvalidUsage, "rank %d of %d joins twice: process %d has taken this rank, process %d wants it, too",
                                comm->rank, comm->nranks, shared->slot[comm->rank].process.pid, comm->process.pid);
    }
    if (result != ncclSuccess) {
        munmap((void*)shared, cpu_nccl_shm_bytes(comm->nranks));
        comm->shared = NULL;
        return result;
    }
    comm->transport = &cpu_nccl_shm;
    shared->slot[comm->rank].process = comm->process;
    __atomic_store_n(&shared->slot[comm->rank].state, CPU_NCCL_JOINED, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&shared->joined, 1, __ATOMIC_SEQ_CST);
    cpu_futex_wake(&shared->joined);
    return ncclInProgress;
}
static inline ncclResult_t cpu_nccl_shm_joined(ncclComm_t comm, const CpuNcclId* id) {
    CpuNcclShared* shared = comm->shared;
    uint32_t joined = __atomic_load_n(&shared->joined, __ATOMIC_SEQ_CST);
    if (joined < (uint32_t)comm->nranks) {
        cpu_futex_wait(&shared->joined, joined, CPU_NCCL_LOOK_NS);
        int dead = -1;
        for (int r = 0; r < comm->nranks; r++) {
            const uint32_t state = __atomic_load_n(&shared->slot[r].state, __ATOMIC_SEQ_CST);
            if (state >= CPU_NCCL_JOINED && (state != CPU_NCCL_JOINED || cpu_nccl_process_gone(&shared->slot[r].process, comm->process.machine))) { dead = r; }
        }
        const bool maker_gone = cpu_nccl_process_gone(&id->process, comm->process.machine);
        joined = __atomic_load_n(&shared->joined, __ATOMIC_SEQ_CST);  // last: who has gone after all had come is no error yet
        if (joined < (uint32_t)comm->nranks) {
            if (dead >= 0) { return cpu_nccl_error(ncclRemoteError, "rank %d of %d has died or given up while others wait for %d more", dead, comm->nranks, comm->nranks - (int)joined); }
            if (maker_gone) { return cpu_nccl_error(ncclRemoteError, "the process %d that made the unique id has ended, %d ranks of %d have come", id->process.pid, (int)joined, comm->nranks); }
            return ncclInProgress;
        }
    }
    for (int r = 0; r < comm->nranks; r++) { comm->peers[r].process = shared->slot[r].process; }
    return ncclSuccess;
}

#endif
