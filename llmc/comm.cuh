/* comm.cuh - ranks that train together: NCCL's collectives on a stream of their own, and what they cost
 *
 * What:      a Comm is this process's place among `size` ranks. The collectives are in place, enqueued on the communication stream, and do nothing with one
 *            rank. comm_fork lets that stream wait for what the main stream made, comm_join lets the main stream wait for what came back.
 * Shards:    a tensor of n elements, padded to size * shard, is reduced and scattered so that rank r's shard lies at r * shard, and gathered from there.
 * Numerics:  sums of gradients, not averages: the loss was divided by all tokens already. BF16 is rounded at every hop of NCCL's rings; with exact set,
 *            BF16 shards are exchanged (as many bytes), added in f32 in the order of the ranks and rounded once. f32 is summed in f32.
 * Bytes:     what this rank sends by the ring algorithms: reduce-scatter and all-gather (P-1)/P of all, all-reduce twice that, by class.
 * Time:      busy: while collectives ran; exposed: while the main stream waited for them. The rest was hidden behind backward.
 * Errors:    a failing call ends the program with NCCL's own words. A build without NCCL has one rank.
 * Memory:    exact needs scratch of the largest BF16 tensor; owned by the Comm.
 * Tests:     dev/test/test_comm.cu
 */
#ifndef LLMC_COMM_CUH
#define LLMC_COMM_CUH

#include "llmc/gpu.cuh"
#include "llmc/matmul.cuh"

#ifdef GPT_WITH_NCCL
#define COMM_WITH_NCCL 1
#include <nccl.h>
#endif

typedef enum { COMM_GRADIENTS, COMM_WEIGHTS, COMM_SCALES, COMM_SCALARS, NUM_COMM_CLASSES } CommClass;
static const char* const comm_class_names[NUM_COMM_CLASSES] = {"gradients", "weights", "scales", "scalars"};

typedef struct { cudaEvent_t* events; int count, used; } CommMarks;  // reused, owned

typedef struct Comm {
    int rank, size;
    bool exact;                             // f32 sums of BF16 gradients
    Device* dev;
    cudaStream_t stream;
    cudaEvent_t ready, done;                // main -> communication, communication -> main
    CommMarks busy, waits;                  // begin and end of each stretch of collectives, of each wait of the main stream, since comm_clear
    uint64_t bytes[NUM_COMM_CLASSES];       // sent since comm_clear
    void* scratch;                          // exact: (size, shard) of the largest tensor
    size_t scratch_bytes;
#ifdef COMM_WITH_NCCL
    ncclComm_t nccl;
#endif
} Comm;

#ifdef COMM_WITH_NCCL
static inline void nccl_check(ncclResult_t result, Comm* comm, const char* call, const char* file, int line) {
    if (result != ncclSuccess) {
        fail_at(1, file, line, "", "NCCL_DEBUG=INFO shows more; the first rank that failed says why", "rank %d of %d: NCCL: %s from %s: %s", comm->rank, comm->size,
                ncclGetErrorString(result), call, ncclGetLastError(NULL));
    }
}
#define ncclCheck(call) nccl_check((call), comm, #call, __FILE__, __LINE__)
static inline ncclDataType_t comm_type(DType d) { return d == DTYPE_F32 ? ncclFloat32 : d == DTYPE_BF16 ? ncclBfloat16 : ncclUint8; }
#endif

// Joins the ranks. id: 128 bytes that rank 0 made with comm_make_id and all have. With size 1 there is nothing to join.
static inline void comm_make_id(Comm* comm, void* id) {
#ifdef COMM_WITH_NCCL
    ncclUniqueId unique;
    ncclCheck(ncclGetUniqueId(&unique));
    memcpy(id, &unique, sizeof(unique));
#else
    (void)comm; (void)id;
#endif
}
#define COMM_ID_BYTES 128

static inline void comm_init(Comm* comm, Device* dev, int rank, int size, const void* id, bool exact) {
    memset((void*)comm, 0, sizeof(*comm));
    comm->rank = rank;
    comm->size = 1;  // until it is whole
    comm->dev = dev;
    comm->exact = exact;
    if (size == 1) { return; }
#ifdef COMM_WITH_NCCL
    ncclUniqueId unique;
    static_assert(sizeof(unique) == COMM_ID_BYTES, "as NCCL's");
    memcpy(&unique, id, sizeof(unique));
    ncclCheck(ncclCommInitRank(&comm->nccl, size, unique, rank));
    comm->size = size;
    cudaCheck(cudaStreamCreateWithFlags(&comm->stream, cudaStreamNonBlocking));
    cudaCheck(cudaEventCreateWithFlags(&comm->ready, cudaEventDisableTiming));
    cudaCheck(cudaEventCreateWithFlags(&comm->done, cudaEventDisableTiming));
#else
    (void)id;
    fail("build with NCCL (it comes with CUDA, or from your distribution: libnccl-dev), or start one process", "this program was built without NCCL: it trains on one GPU, not %d", size);
#endif
}

static inline void comm_free(Comm* comm) {
    if (comm->size <= 1) { return; }
#ifdef COMM_WITH_NCCL
    ncclCheck(ncclCommDestroy(comm->nccl));
    cudaCheck(cudaStreamDestroy(comm->stream));
    for (cudaEvent_t event : {comm->ready, comm->done}) { cudaCheck(cudaEventDestroy(event)); }
    for (CommMarks* marks : {&comm->busy, &comm->waits}) {
        for (int i = 0; i < marks->count; i++) { cudaCheck(cudaEventDestroy(marks->events[i])); }
        free(marks->events);
    }
    cudaCheck(cudaFree(comm->scratch));
#endif
    comm->size = 1;
}

// Has a collective failed after it was enqueued? False with NCCL's words in text. From any thread, between comm_init and comm_free; does not wait.
static inline bool comm_is_well(Comm* comm, char* text, size_t bytes) {
#ifdef COMM_WITH_NCCL
    ncclResult_t later = ncclSuccess;
    const ncclResult_t asked = comm->size > 1 ? ncclCommGetAsyncError(comm->nccl, &later) : ncclSuccess;
    const ncclResult_t found = asked != ncclSuccess ? asked : later;
    if (found == ncclSuccess || found == ncclInProgress) { return true; }
    snprintf(text, bytes, "NCCL reports that a collective failed: %s", ncclGetErrorString(found));
    return false;
#else
    (void)comm; (void)text; (void)bytes;
    return true;
#endif
}

// ----------------------------------------------------------------------------
// order of the two streams, and time

static inline void comm_mark(CommMarks* marks, cudaStream_t stream) {
    if (marks->used == marks->count) {
        marks->events = (cudaEvent_t*)realloc(marks->events, (marks->count + 1) * sizeof(cudaEvent_t));
        require(marks->events, "", "out of memory for %d events", marks->count + 1);
        cudaCheck(cudaEventCreate(&marks->events[marks->count++]));
    }
    cudaCheck(cudaEventRecord(marks->events[marks->used++], stream));
}
// Milliseconds between the pairs; their streams must be idle.
static inline double comm_marked_ms(const CommMarks* marks) {
    double sum = 0.0;
    for (int i = 0; i + 1 < marks->used; i += 2) {
        float ms = 0.0f;
        cudaCheck(cudaEventElapsedTime(&ms, marks->events[i], marks->events[i + 1]));
        sum += ms;
    }
    return sum;
}

// What follows on the communication stream waits for what the main stream has enqueued so far. Ends with comm_end.
static inline void comm_fork(Comm* comm) {
    if (comm->size == 1) { return; }
    cudaCheck(cudaEventRecord(comm->ready, comm->dev->stream));
    cudaCheck(cudaStreamWaitEvent(comm->stream, comm->ready, 0));
    comm_mark(&comm->busy, comm->stream);
}
static inline void comm_end(Comm* comm) { if (comm->size > 1) { comm_mark(&comm->busy, comm->stream); } }

// What follows on the main stream waits for all collectives so far.
static inline void comm_join(Comm* comm) {
    if (comm->size == 1) { return; }
    cudaCheck(cudaEventRecord(comm->done, comm->stream));
    comm_mark(&comm->waits, comm->dev->stream);
    cudaCheck(cudaStreamWaitEvent(comm->dev->stream, comm->done, 0));
    comm_mark(&comm->waits, comm->dev->stream);
}

// Milliseconds since comm_clear; both streams must be idle. The CPU device runs collectives when they are enqueued: nothing is hidden there.
static inline void comm_times(Comm* comm, double* busy, double* exposed) {
    *busy = comm_marked_ms(&comm->busy);
    const double waited = comm->dev->is_cpu ? *busy : comm_marked_ms(&comm->waits);
    *exposed = waited < *busy ? waited : *busy;
}
static inline void comm_clear(Comm* comm) {
    comm->busy.used = comm->waits.used = 0;
    memset(comm->bytes, 0, sizeof(comm->bytes));
}

// ----------------------------------------------------------------------------
// collectives, in place, on the communication stream

static inline void comm_count(Comm* comm, CommClass c, uint64_t all_bytes, int passes) { comm->bytes[c] += all_bytes * (uint64_t)(comm->size - 1) / (uint64_t)comm->size * passes; }

// Several collectives as one: fewer launches, and no order among them.
static inline void comm_group_begin(Comm* comm) {
#ifdef COMM_WITH_NCCL
    if (comm->size > 1) { ncclCheck(ncclGroupStart()); }
#else
    (void)comm;
#endif
}
static inline void comm_group_end(Comm* comm) {
#ifdef COMM_WITH_NCCL
    if (comm->size > 1) { ncclCheck(ncclGroupEnd()); }
#else
    (void)comm;
#endif
}

// x (size * shard) of type: rank r's shard, at x + r * shard, := its sum over ranks; the rest is left undefined.
static inline void comm_reduce_scatter(Comm* comm, CommClass c, void* x, size_t shard, DType type) {
    if (comm->size == 1 || shard == 0) { return; }
    comm_count(comm, c, shard * comm->size * dtype_bytes(type), 1);
#ifdef COMM_WITH_NCCL
    ncclCheck(ncclReduceScatter(x, (char*)x + comm->rank * shard * dtype_bytes(type), shard, comm_type(type), ncclSum, comm->nccl, comm->stream));
#else
    (void)x;
#endif
}
// x (size * shard): every rank gets every rank's shard.
static inline void comm_all_gather(Comm* comm, CommClass c, void* x, size_t shard, DType type) {
    if (comm->size == 1 || shard == 0) { return; }
    comm_count(comm, c, shard * comm->size * dtype_bytes(type), 1);
#ifdef COMM_WITH_NCCL
    ncclCheck(ncclAllGather((char*)x + comm->rank * shard * dtype_bytes(type), x, shard, comm_type(type), comm->nccl, comm->stream));
#else
    (void)x;
#endif
}
// x (n) := sum over ranks
static inline void comm_all_reduce(Comm* comm, CommClass c, void* x, size_t n, DType type) {
    if (comm->size == 1 || n == 0) { return; }
    comm_count(comm, c, n * dtype_bytes(type), 2);
#ifdef COMM_WITH_NCCL
    ncclCheck(ncclAllReduce(x, x, n, comm_type(type), ncclSum, comm->nccl, comm->stream));
#else
    (void)x;
#endif
}
// x (n) u32 := maximum over ranks: of amaxes as bits, so that a NaN survives (R2)
static inline void comm_all_reduce_max(Comm* comm, CommClass c, unsigned* x, size_t n) {
    if (comm->size == 1 || n == 0) { return; }
    comm_count(comm, c, n * sizeof(unsigned), 2);
#ifdef COMM_WITH_NCCL
    ncclCheck(ncclAllReduce(x, x, n, ncclUint32, ncclMax, comm->nccl, comm->stream));
#else
    (void)x;
#endif
}

static __global__ void comm_sum_kernel1(bf16* out, const bf16* in, size_t shard, int size) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= shard) { return; }
    float sum[8] = {0.0f}, x[8];
    for (int r = 0; r < size; r++) {
        load8(x, in + r * shard + i);
        for (int e = 0; e < 8; e++) { sum[e] += x[e]; }
    }
    store8(out + i, sum);
}

// Room for the exact sums of tensors of up to `elements` BF16.
static inline void comm_reserve(Comm* comm, size_t elements) {
    if (comm->size == 1 || !comm->exact || elements * sizeof(bf16) <= comm->scratch_bytes) { return; }
    cudaCheck(cudaFree(comm->scratch));
    comm->scratch_bytes = elements * sizeof(bf16);
    comm->scratch = device_alloc(comm->dev, MEM_SCRATCH, "exact sums", comm->scratch_bytes);
}

// The same as comm_reduce_scatter for BF16 with f32 sums. shard % 8 == 0. Not inside a group.
static inline void comm_reduce_scatter_exact(Comm* comm, CommClass c, bf16* x, size_t shard) {
    if (comm->size == 1 || shard == 0) { return; }
    comm_count(comm, c, shard * comm->size * sizeof(bf16), 1);
    bf16* in = (bf16*)comm->scratch;
    require(shard * comm->size * sizeof(bf16) <= comm->scratch_bytes && shard % 8 == 0, "", "exact sum of %d x %zu elements in %zu bytes of scratch", comm->size, shard, comm->scratch_bytes);
    comm_group_begin(comm);
#ifdef COMM_WITH_NCCL
    for (int r = 0; r < comm->size; r++) {
        ncclCheck(ncclSend(x + r * shard, shard, ncclBfloat16, r, comm->nccl, comm->stream));
        ncclCheck(ncclRecv(in + r * shard, shard, ncclBfloat16, r, comm->nccl, comm->stream));
    }
#endif
    comm_group_end(comm);
    launch<comm_sum_kernel1>(dim3(CEIL_DIV(shard / 8, (size_t)256)), dim3(256), 0, comm->stream, x + comm->rank * shard, in, shard, comm->size);
}

#endif
