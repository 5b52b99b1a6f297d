/* test_comm.cu - the ranks' collectives as the trainer calls them: results, exact sums, byte counts (CPU device only: ranks are forked processes)
 *
 * Covers: llmc/comm.cuh
 */
#include <sys/mman.h>
#include <sys/wait.h>

#include "dev/test/oracle.h"
#include "llmc/comm.cuh"

typedef struct { volatile int ready; char id[COMM_ID_BYTES]; } Meeting;

// Runs body(comm) in `size` processes that make up a communicator; false if one of them failed.
template <class F>
static bool on_ranks(int size, bool exact, F body) {
    Meeting* meeting = (Meeting*)mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(meeting != MAP_FAILED, "mmap");
    fflush(stdout);
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; rank++) {
        pid_t pid = fork();
        if (pid == 0) {
            Device dev;
            Comm comm;
            device_init(&dev, 0);
            comm_init(&comm, &dev, 0, 1, NULL, false);
            if (rank == 0) { comm_make_id(&comm, meeting->id); meeting->ready = 1; }
            while (!meeting->ready) { usleep(1000); }
            comm_init(&comm, &dev, rank, size, meeting->id, exact);
            body(&comm);
            comm_free(&comm);
            device_free(&dev);
            fflush(stdout);
            _exit(0);
        }
        children.push_back(pid);
    }
    bool ok = true;
    for (pid_t pid : children) {
        int status = 0;
        ok = waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 && ok;
    }
    munmap(meeting, sizeof(Meeting));
    return ok;
}

// What element i of rank r is: of many magnitudes, so that the order of a BF16 sum matters.
static float value_of(int r, size_t i) { return ref_round<bf16>((float)(((i * 7919 + (size_t)r * 104729) % 2001) - 1000.0f) * ldexpf(1.0f, (int)((i + 3 * r) % 12) - 6)); }

static void put(bf16* device, const Floats& x) {
    std::vector<bf16> y(x.size());
    for (size_t i = 0; i < x.size(); i++) { y[i] = from_float<bf16>(x[i]); }
    cudaCheck(cudaMemcpy(device, y.data(), y.size() * sizeof(bf16), cudaMemcpyHostToDevice));
}
static Floats get(const bf16* device, size_t n) {
    std::vector<bf16> y(n);
    cudaCheck(cudaMemcpy(y.data(), device, n * sizeof(bf16), cudaMemcpyDeviceToHost));
    Floats x(n);
    for (size_t i = 0; i < n; i++) { x[i] = to_float(y[i]); }
    return x;
}

// exact: the f32 sum in the order of the ranks, rounded once. Otherwise: no further from it than a rounding at every hop allows.
static void test_comm_reduce_scatter_and_gather(void) {
    for (int size : {1, 2, 3, 4}) {
        for (bool exact : {false, true}) {
            CHECK(on_ranks(size, exact, [size, exact](Comm* comm) {
                const size_t shard = 264, n = shard * size;
                bf16* x;
                Floats mine(n);
                cudaCheck(cudaMalloc((void**)&x, n * sizeof(bf16)));
                for (size_t i = 0; i < n; i++) { mine[i] = value_of(comm->rank, i); }
                put(x, mine);
                comm_reserve(comm, n);
                comm_clear(comm);
                comm_fork(comm);
                if (exact) { comm_reduce_scatter_exact(comm, COMM_GRADIENTS, x, shard); } else { comm_reduce_scatter(comm, COMM_GRADIENTS, x, shard, DTYPE_BF16); }
                comm_end(comm);
                comm_join(comm);
                cudaCheck(cudaDeviceSynchronize());
                Floats got = get(x, n);
                for (size_t i = comm->rank * shard; i < (comm->rank + 1) * shard; i++) {
                    float sum = 0.0f, largest = 0.0f;
                    for (int r = 0; r < size; r++) { sum += value_of(r, i); largest = fmaxf(largest, fabsf(value_of(r, i))); }
                    const float due = ref_round<bf16>(sum);
                    if (exact) { CHECK(got[i] == due, "%d ranks, element %zu: %.9g, the exact sum is %.9g", size, i, got[i], due); }
                    else { CHECK(fabsf(got[i] - due) <= size * size * largest * 0x1p-8f, "%d ranks, element %zu: %.9g, not near %.9g", size, i, got[i], due); }
                }
                const uint64_t all = n * sizeof(bf16), due_bytes = all * (size - 1) / size;
                CHECK(comm->bytes[COMM_GRADIENTS] == due_bytes, "%d ranks: %llu bytes, should be %llu", size, (unsigned long long)comm->bytes[COMM_GRADIENTS], (unsigned long long)due_bytes);
                comm_fork(comm);
                comm_all_gather(comm, COMM_WEIGHTS, x, shard, DTYPE_BF16);
                comm_end(comm);
                comm_join(comm);
                cudaCheck(cudaDeviceSynchronize());
                got = get(x, n);
                for (size_t i = 0; exact && i < n; i++) {
                    float sum = 0.0f;
                    for (int r = 0; r < size; r++) { sum += value_of(r, i); }
                    CHECK(got[i] == ref_round<bf16>(sum), "%d ranks, gathered element %zu: %.9g", size, i, got[i]);
                }
                CHECK(comm->bytes[COMM_WEIGHTS] == due_bytes, "%d ranks: %llu bytes gathered", size, (unsigned long long)comm->bytes[COMM_WEIGHTS]);
                double busy, exposed;
                comm_times(comm, &busy, &exposed);
                CHECK(size == 1 ? busy == 0.0 : busy > 0.0 && exposed <= busy, "busy %g, exposed %g", busy, exposed);
                cudaCheck(cudaFree(x));
            }), "%d ranks, exact %d", size, exact);
        }
    }
}

// f32 sums over all ranks; the maximum of amaxes as bits, in which a NaN survives (R2).
static void test_comm_all_reduce(void) {
    for (int size : {1, 2, 4}) {
        CHECK(on_ranks(size, false, [size](Comm* comm) {
            const size_t n = 1000;
            std::vector<float> mine(n), got(n);
            std::vector<unsigned> amax(n), most(n);
            for (size_t i = 0; i < n; i++) { mine[i] = value_of(comm->rank, i); amax[i] = (unsigned)((i * 31 + comm->rank * 977) % 1000) << 20; }
            amax[7] = comm->rank == size - 1 ? 0x7fc00000u : 0x3f800000u;  // one rank has a NaN
            float* x;
            unsigned* a;
            cudaCheck(cudaMalloc((void**)&x, n * 4));
            cudaCheck(cudaMalloc((void**)&a, n * 4));
            cudaCheck(cudaMemcpy(x, mine.data(), n * 4, cudaMemcpyHostToDevice));
            cudaCheck(cudaMemcpy(a, amax.data(), n * 4, cudaMemcpyHostToDevice));
            comm_fork(comm);
            comm_all_reduce(comm, COMM_GRADIENTS, x, n, DTYPE_F32);
            comm_all_reduce_max(comm, COMM_SCALES, a, n);
            comm_end(comm);
            comm_join(comm);
            cudaCheck(cudaDeviceSynchronize());
            cudaCheck(cudaMemcpy(got.data(), x, n * 4, cudaMemcpyDeviceToHost));
            cudaCheck(cudaMemcpy(most.data(), a, n * 4, cudaMemcpyDeviceToHost));
            for (size_t i = 0; i < n; i++) {
                double sum = 0, largest = 0;
                unsigned top = 0;
                for (int r = 0; r < size; r++) {
                    sum += value_of(r, i);
                    largest = fmax(largest, fabs(value_of(r, i)));
                    unsigned bits = i == 7 ? (r == size - 1 ? 0x7fc00000u : 0x3f800000u) : (unsigned)((i * 31 + r * 977) % 1000) << 20;
                    top = bits > top ? bits : top;
                }
                CHECK(fabs(got[i] - sum) <= size * largest * 0x1p-23, "%d ranks, element %zu: %.9g, should be %.9g", size, i, got[i], sum);
                CHECK(most[i] == top, "%d ranks, amax %zu: %08x, should be %08x", size, i, most[i], top);
            }
            CHECK(comm->bytes[COMM_GRADIENTS] == n * 4 * (size - 1) / size * 2, "%d ranks: %llu bytes", size, (unsigned long long)comm->bytes[COMM_GRADIENTS]);
            cudaCheck(cudaFree(x));
            cudaCheck(cudaFree(a));
        }), "%d ranks", size);
    }
}

// What went wrong after a collective was enqueued is told to who asks. Here: the other rank has ended.
static void test_comm_is_well_until_a_collective_fails(void) {
    Comm alone;
    char text[128] = "";
    Device dev;
    device_init(&dev, 0);
    comm_init(&alone, &dev, 0, 1, NULL, false);
    CHECK(comm_is_well(&alone, text, sizeof(text)), "one rank: %s", text);
    device_free(&dev);
    CHECK(on_ranks(2, false, [](Comm* comm) {
        char text[128] = "";
        float* x;
        cudaCheck(cudaMalloc((void**)&x, 256 * sizeof(float)));
        cudaCheck(cudaMemset(x, 0, 256 * sizeof(float)));
        comm_all_reduce(comm, COMM_GRADIENTS, x, 256, DTYPE_F32);
        cudaCheck(cudaDeviceSynchronize());
        CHECK(comm_is_well(comm, text, sizeof(text)), "rank %d: %s", comm->rank, text);
        if (comm->rank == 1) { fflush(stdout); _exit(0); }
        CHECK(ncclAllReduce(x, x, 256, ncclFloat32, ncclSum, comm->nccl, comm->stream) != ncclSuccess, "a collective without the other rank");
        const bool well = comm_is_well(comm, text, sizeof(text));
        CHECK(!well && !strncmp(text, "NCCL reports that a collective failed: ", 39) && strlen(text) > 42, "'%s'", text);
        cudaCheck(cudaFree(x));
    }), "two ranks");
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"comm_reduce_scatter_and_gather", test_comm_reduce_scatter_and_gather, QUICK},
        {"comm_all_reduce", test_comm_all_reduce, QUICK},
        {"comm_is_well_until_a_collective_fails", test_comm_is_well_until_a_collective_fails, QUICK},
    };
    return TEST_MAIN(tests);
}
