/* test_nccl.cu - llmc/cpu/nccl.h: real ranks as processes, over shared memory and over MPI. CPU device only.
 *
 * Every collective, type and operation in and out of place against an oracle that computes each hop in double or in 64-bit integers and rounds it; the order of
 * ranks; groups, messages, several communicators; what must be refused, and the checks that name what would corrupt memory or hang on a GPU; ranks that die,
 * leave and abort. The same rank functions run under mpirun where it and mpicxx are installed: this file is then its own program (test_nccl RANK_FUNCTION).
 */
#include <nccl.h>
#include <string>
#include <thread>
#include <vector>

#include "dev/test/test.h"

#define OK(call) do { ncclResult_t e_ = (call); CHECK(e_ == ncclSuccess, "%s: %s (%s)", #call, ncclGetErrorString(e_), ncclGetLastError(NULL)); } while (0)

typedef struct { ncclComm_t comm; int rank, n; } Ranks;
typedef void (*RankFunction)(Ranks*);

template <class T> static T* device(size_t n) {
    T* p;
    CHECK(cudaMalloc(&p, n ? n * sizeof(T) : 1) == cudaSuccess, "out of memory");
    return p;
}

// ----------------------------------------------------------------------------
// values and the oracle

static const ncclDataType_t types[] = {ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat32, ncclFloat64, ncclBfloat16};
static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
static size_t size_of(ncclDataType_t t) { return t <= ncclUint8 ? 1 : t == ncclBfloat16 ? 2 : t == ncclInt32 || t == ncclUint32 || t == ncclFloat32 ? 4 : 8; }
static bool is_float(ncclDataType_t t) { return t >= ncclFloat32; }

// A value of any type in one of two forms: floats as double, integers as 64 bits (two's complement).
typedef struct { double f; uint64_t i; } Value;

// To BF16 by the nearest of two neighbours, ties to even: nothing of the device's bit tricks.
static double round_bf16(double x) {
    if (x == 0 || !std::isfinite(x)) { return x; }
    int e;
    frexp(x, &e);
    const double unit = ldexp(1.0, (e - 1 < -126 ? -126 : e - 1) - 7);
    const double r = nearbyint(x / unit) * unit;  // x / unit is exact; nearbyint rounds ties to even
    return fabs(r) > 3.3895313892515355e38 ? copysign(INFINITY, r) : r;
}
static double round_to(ncclDataType_t t, double x) { return t == ncclFloat32 ? (double)(float)x : t == ncclBfloat16 ? round_bf16(x) : x; }
static Value value_of(ncclDataType_t t, const void* p) {
    switch (t) {
        case ncclInt8: return {0, (uint64_t)(int64_t)*(const int8_t*)p};
        case ncclUint8: return {0, *(const uint8_t*)p};
        case ncclInt32: return {0, (uint64_t)(int64_t)*(const int32_t*)p};
        case ncclUint32: return {0, *(const uint32_t*)p};
        case ncclFloat32: return {*(const float*)p, 0};
        case ncclFloat64: return {*(const double*)p, 0};
        case ncclBfloat16: { const uint32_t u = (uint32_t)*(const uint16_t*)p << 16; float f; memcpy(&f, &u, 4); return {f, 0}; }
        default: return {0, *(const uint64_t*)p};
    }
}
static uint64_t wrap(ncclDataType_t t, uint64_t x) {
    return t == ncclInt8 ? (uint64_t)(int8_t)x : t == ncclUint8 ? (uint8_t)x : t == ncclInt32 ? (uint64_t)(int32_t)x : t == ncclUint32 ? (uint32_t)x : x;
}
static bool is_signed(ncclDataType_t t) { return t == ncclInt8 || t == ncclInt32 || t == ncclInt64; }

// The input of a rank: element i of a buffer, a function of its arguments alone. Floats of several magnitudes; for Max and Min also NaN (of one rank at most), zeros of both signs.
static void input(void* at, ncclDataType_t t, ncclRedOp_t op, int rank, int n, size_t i, int salt) {
    TestRng rng = {test_seed() + i * 1000003 + (uint64_t)rank * 7919 + (uint64_t)salt * 104729 + t * 31};
    const uint64_t bits = test_rng_u64(&rng);
    if (!is_float(t)) { memcpy(at, &bits, size_of(t)); return; }
    double x = ldexp(test_rng_uniform(&rng) * 2 - 1, (int)(test_rng_u64(&rng) % 9) - 4);
    if (op == ncclMax || op == ncclMin) {
        if (i % 5 == 0) { x = bits & 1 ? 0.0 : -0.0; }
        if (i % 7 == 0 && (int)(i / 7 % (size_t)n) == rank && n > 1) { x = NAN; }
    }
    if (t == ncclFloat64) { memcpy(at, &x, 8); return; }
    const float f = (float)round_to(t, x);
    if (t == ncclFloat32) { memcpy(at, &f, 4); return; }
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint16_t h = (uint16_t)(u >> 16);
    memcpy(at, &h, 2);
}
static void fill(void* buffer, size_t count, ncclDataType_t t, ncclRedOp_t op, int rank, int n, int salt, size_t first = 0) {
    for (size_t i = 0; i < count; i++) { input((char*)buffer + i * size_of(t), t, op, rank, n, first + i, salt); }
}
// What element i must be when the block that holds it ends at rank `owner`: r+1, r+2, ..., r.
static Value oracle(ncclDataType_t t, ncclRedOp_t op, int n, size_t i, int salt, int owner) {
    Value acc = {0, 0};
    for (int k = 0; k < n; k++) {
        uint64_t raw = 0;
        input(&raw, t, op, (owner + 1 + k) % n, n, i, salt);
        Value x = value_of(t, &raw);
        if (is_float(t) && op == ncclAvg) { x.f = round_to(t, x.f * round_to(t, 1.0 / n)); }
        if (k == 0) { acc = x; continue; }
        switch (op) {
            case ncclProd: acc = {round_to(t, acc.f * x.f), wrap(t, acc.i * x.i)}; break;
            case ncclMax: case ncclMin:
                if (is_float(t)) {
                    if (std::isnan(x.f)) { break; }
                    if (std::isnan(acc.f) || (acc.f == 0 && x.f == 0 ? std::signbit(acc.f) == (op == ncclMax) : op == ncclMax ? x.f > acc.f : x.f < acc.f)) { acc = x; }
                } else {
                    const bool less = is_signed(t) ? (int64_t)acc.i < (int64_t)x.i : acc.i < x.i;
                    if (less == (op == ncclMax)) { acc = x; }
                }
                break;
            default: acc = {round_to(t, acc.f + x.f), wrap(t, acc.i + x.i)};
        }
    }
    if (op == ncclAvg && !is_float(t)) { acc.i = is_signed(t) ? (uint64_t)((int64_t)acc.i / n) : acc.i / (uint64_t)n; }
    return acc;
}
static void check_value(ncclDataType_t t, const void* got, Value want, const char* what, ncclRedOp_t op, int n, size_t i, size_t count) {
    const Value v = value_of(t, got);
    const bool same = is_float(t) ? memcmp(&v.f, &want.f, 8) == 0 || (std::isnan(v.f) && std::isnan(want.f)) : v.i == want.i;
    CHECK(same, "%s type %d op %d, %d ranks, element %zu of %zu: %.17g/%lld, not %.17g/%lld", what, t, op, n, i, count, v.f, (long long)v.i, want.f, (long long)want.i);
}

// ----------------------------------------------------------------------------
// rank functions: what every rank does, over either transport

// Poisons what a call must not read or write around its buffers and looks at it afterwards.
struct Buffer {
    char* base;
    size_t bytes;
    Buffer(size_t bytes_) : base(device<char>(bytes_ + 512)), bytes(bytes_) { memset(base, 0x5a, bytes + 512); }
    char* at(void) { return base + 256; }
    ~Buffer() {
        for (size_t i = 0; i < 512; i++) { CHECK(base[i < 256 ? i : bytes + i] == 0x5a, "byte %zd of a buffer of %zu bytes was written", (ssize_t)(i < 256 ? i - 256 : bytes + i - 256), bytes); }
        cudaFree(base);
    }
};

static void one_reduction(Ranks* r, ncclDataType_t t, ncclRedOp_t op, size_t count, bool in_place, int salt) {
    const size_t s = size_of(t), n = (size_t)r->n, me = (size_t)r->rank;
    const int root = salt % r->n;
    const size_t piece = CEIL_DIV(count, n);
    {   // all-reduce
        Buffer a(count * s), b(count * s);
        char* out = in_place ? a.at() : b.at();
        fill(a.at(), count, t, op, r->rank, r->n, salt);
        OK(ncclAllReduce(a.at(), out, count, t, op, r->comm, NULL));
        for (size_t i = 0; i < count; i++) { check_value(t, out + i * s, oracle(t, op, r->n, i, salt, (int)(i / piece)), "all-reduce", op, r->n, i, count); }
    }
    {   // reduce-scatter
        Buffer a(n * count * s), b(count * s);
        char* out = in_place ? a.at() + me * count * s : b.at();
        fill(a.at(), n * count, t, op, r->rank, r->n, salt);
        OK(ncclReduceScatter(a.at(), out, count, t, op, r->comm, NULL));
        for (size_t i = 0; i < count; i++) { check_value(t, out + i * s, oracle(t, op, r->n, me * count + i, salt, r->rank), "reduce-scatter", op, r->n, i, count); }
        for (size_t i = 0; i < n * count; i++) {  // the rest of what was sent is as it was
            uint64_t raw = 0;
            input(&raw, t, op, r->rank, r->n, i, salt);
            if (!in_place || i / count != me) { CHECK(!memcmp(a.at() + i * s, &raw, s), "reduce-scatter wrote into its input at %zu", i); }
        }
    }
    {   // reduce
        Buffer a(count * s), b(count * s);
        char* out = in_place ? a.at() : b.at();
        fill(a.at(), count, t, op, r->rank, r->n, salt);
        OK(ncclReduce(a.at(), r->rank == root ? out : NULL, count, t, op, root, r->comm, NULL));
        for (size_t i = 0; i < count && r->rank == root; i++) { check_value(t, out + i * s, oracle(t, op, r->n, i, salt, root), "reduce", op, r->n, i, count); }
    }
}
static void one_copy(Ranks* r, ncclDataType_t t, size_t count, bool in_place, int salt) {
    const size_t s = size_of(t), n = (size_t)r->n, me = (size_t)r->rank;
    const int root = salt % r->n;
    {   // all-gather
        Buffer a(count * s), b(n * count * s);
        char* in = in_place ? b.at() + me * count * s : a.at();
        fill(in, count, t, ncclSum, r->rank, r->n, salt);
        OK(ncclAllGather(in, b.at(), count, t, r->comm, NULL));
        for (size_t i = 0; i < n * count; i++) {
            uint64_t raw = 0;
            input(&raw, t, ncclSum, (int)(i / count), r->n, i % count, salt);
            CHECK(!memcmp(b.at() + i * s, &raw, s), "all-gather type %d, %d ranks, element %zu of %zu", t, r->n, i, n * count);
        }
    }
    {   // broadcast
        Buffer a(count * s), b(count * s);
        char* out = in_place ? a.at() : b.at();
        fill(a.at(), count, t, ncclSum, r->rank, r->n, salt);
        OK(ncclBroadcast(r->rank == root || in_place ? a.at() : NULL, out, count, t, root, r->comm, NULL));
        for (size_t i = 0; i < count; i++) {
            uint64_t raw = 0;
            input(&raw, t, ncclSum, root, r->n, i, salt);
            CHECK(!memcmp(out + i * s, &raw, s), "broadcast type %d, %d ranks, element %zu of %zu", t, r->n, i, count);
        }
    }
}
static void rank_collectives(Ranks* r) {
    int salt = 0;
    for (ncclDataType_t t : types) {
        for (size_t count : {(size_t)0, (size_t)1, (size_t)3, (size_t)257}) {
            for (int in_place = 0; in_place <= 1; in_place++) {
                for (ncclRedOp_t op : ops) { one_reduction(r, t, op, count, in_place != 0, salt++); }
                one_copy(r, t, count, in_place != 0, salt++);
            }
        }
    }
    // more than a chunk of a reduction, and more than a ring holds; odd, so that no two pieces are alike
    const size_t large = 70001;
    for (int in_place = 0; in_place <= 1; in_place++) {
        one_reduction(r, ncclFloat32, ncclSum, large, in_place != 0, salt++);
        one_reduction(r, ncclBfloat16, ncclAvg, large, in_place != 0, salt++);
        one_copy(r, ncclFloat64, large, in_place != 0, salt++);
        one_copy(r, ncclUint8, large, in_place != 0, salt++);
    }
    // data of types that nothing here computes with
    for (ncclDataType_t t : {ncclFloat16, ncclFloat8e4m3, ncclFloat8e5m2}) {
        unsigned char* x = device<unsigned char>((size_t)r->n * 10);
        const size_t bytes = t == ncclFloat16 ? 10 : 5;
        memset(x + (size_t)r->rank * bytes, r->rank + 1, bytes);
        OK(ncclAllGather(x + (size_t)r->rank * bytes, x, 5, t, r->comm, NULL));
        for (size_t i = 0; i < bytes * (size_t)r->n; i++) { CHECK(x[i] == i / bytes + 1, "byte %zu", i); }
        cudaFree(x);
    }
}

// A unique id of `maker`, known to all.
static ncclUniqueId share_id(Ranks* r, int maker) {
    ncclUniqueId* id = device<ncclUniqueId>(1);
    if (r->rank == maker) { OK(ncclGetUniqueId(id)); }
    OK(ncclBroadcast(id, id, sizeof(*id), ncclUint8, maker, r->comm, NULL));
    const ncclUniqueId copy = *id;
    cudaFree(id);
    return copy;
}
// Order: repeated bits, other bits for other seeds, ring and reverse as documented; all-reduce == reduce-scatter + all-gather when nranks divides the count.
static void rank_order(Ranks* r) {
    const size_t n = (size_t)r->n, piece = 1000, count = piece * n;
    float *x = device<float>(count), *y = device<float>(count);
    std::vector<std::vector<float>> got;
    fill(x, count, ncclFloat32, ncclSum, r->rank, r->n, 5);
    for (long long order : {(long long)CPU_ORDER_FORWARD, (long long)CPU_ORDER_REVERSE, 1ll, 2ll, 3ll, 1ll}) {
        cpu_modes()->order = order;
        // seeds look at the number of the collective: begin each run at the same
        const ncclUniqueId id = share_id(r, 0);
        ncclComm_t comm;
        OK(ncclCommInitRank(&comm, r->n, id, r->rank));
        OK(ncclAllReduce(x, y, count, ncclFloat32, ncclSum, comm, NULL));
        OK(ncclCommDestroy(comm));
        got.push_back(std::vector<float>(y, y + count));
    }
    cpu_modes()->order = CPU_ORDER_FORWARD;
    CHECK(got[2] == got[5], "one seed, two results");
    CHECK(r->n < 3 || got[0] != got[1], "forward and reverse agree in every bit");
    CHECK(r->n < 3 || (got[2] != got[3] && got[3] != got[4]), "seeds do nothing");
    CHECK(r->n != 2 || got[0] == got[1], "two ranks have one sum");
    for (size_t i = 0; i < count; i++) {  // every order: within n roundings of the sum of magnitudes
        double sum = 0, magnitudes = 0;
        for (int k = 0; k < r->n; k++) {
            float v;
            input(&v, ncclFloat32, ncclSum, k, r->n, i, 5);
            sum += v;
            magnitudes += fabs(v);
        }
        for (const std::vector<float>& g : got) { CHECK(fabs(g[i] - sum) <= (double)n * 0x1p-24 * magnitudes, "element %zu: %g, not %g", i, g[i], sum); }
    }
    for (ncclDataType_t t : {ncclFloat32, ncclBfloat16}) {
        char *a = device<char>(count * size_of(t)), *b = device<char>(count * size_of(t));
        fill(a, count, t, ncclSum, r->rank, r->n, 6);
        OK(ncclAllReduce(a, b, count, t, ncclSum, r->comm, NULL));
        OK(ncclReduceScatter(a, a + (size_t)r->rank * piece * size_of(t), piece, t, ncclSum, r->comm, NULL));
        OK(ncclAllGather(a + (size_t)r->rank * piece * size_of(t), a, piece, t, r->comm, NULL));
        CHECK(!memcmp(a, b, count * size_of(t)), "type %d: all-reduce is not reduce-scatter and all-gather", t);
        cudaFree(a);
        cudaFree(b);
    }
    cudaFree(x);
    cudaFree(y);
}

// Bytes that travel: as the formulas of a ring.
static void rank_sent_bytes(Ranks* r) {
    const uint64_t n = (uint64_t)r->n, piece = 1000, count = piece * n;
    float* x = device<float>(count);
    memset(x, 0, count * 4);
    uint64_t before = cpu_nccl_sent_bytes(r->comm);
    OK(ncclReduceScatter(x, x + (uint64_t)r->rank * piece, piece, ncclFloat32, ncclSum, r->comm, NULL));
    CHECK(cpu_nccl_sent_bytes(r->comm) - before == 4 * count * (n - 1) / n, "reduce-scatter sent %llu", (unsigned long long)(cpu_nccl_sent_bytes(r->comm) - before));
    before = cpu_nccl_sent_bytes(r->comm);
    OK(ncclAllGather((char*)x + (uint64_t)r->rank * piece, x, piece, ncclUint8, r->comm, NULL));
    CHECK(cpu_nccl_sent_bytes(r->comm) - before == count * (n - 1) / n, "all-gather sent %llu", (unsigned long long)(cpu_nccl_sent_bytes(r->comm) - before));
    before = cpu_nccl_sent_bytes(r->comm);
    OK(ncclAllReduce(x, x, count, ncclBfloat16, ncclSum, r->comm, NULL));
    CHECK(cpu_nccl_sent_bytes(r->comm) - before == 2 * 2 * count * (n - 1) / n, "all-reduce sent %llu", (unsigned long long)(cpu_nccl_sent_bytes(r->comm) - before));
    cudaFree(x);
}

// Messages: around the ring, everyone with everyone, to itself, several to one peer; all sizes, in groups.
static void rank_messages(Ranks* r) {
    const size_t n = (size_t)r->n, me = (size_t)r->rank;
    for (size_t count : {(size_t)0, (size_t)1, (size_t)999, (size_t)150001}) {
        double *a = device<double>(count), *b = device<double>(count);
        for (size_t i = 0; i < count; i++) { a[i] = (double)(me * 1000000 + i); }
        OK(ncclGroupStart());
        OK(ncclSend(a, count, ncclFloat64, (int)((me + 1) % n), r->comm, NULL));
        OK(ncclRecv(b, count, ncclFloat64, (int)((me + n - 1) % n), r->comm, NULL));
        OK(ncclGroupEnd());
        for (size_t i = 0; i < count; i++) { CHECK(b[i] == (double)((me + n - 1) % n * 1000000 + i), "ring of %zu: element %zu is %g", count, i, b[i]); }
        cudaFree(a);
        cudaFree(b);
    }
    // everyone with everyone, two messages a pair, each rank in its own order; each message is as long as who sends and who gets it say
    const size_t room = 40000;
    int *out = device<int>(2 * n * room), *in = device<int>(2 * n * room);
    OK(ncclGroupStart());
    for (size_t k = 0; k < 2 * n; k++) {
        const size_t p = (k + me * 3) % n, which = k / n, length = which ? 7 + me * n + p : room - me * n - p, back = which ? 7 + p * n + me : room - p * n - me;
        for (size_t i = 0; i < length; i++) { out[(which * n + p) * room + i] = (int)(me * 10000000 + p * 1000000 + which * 500000 + i); }
        OK(ncclRecv(in + (which * n + p) * room, back, ncclInt32, (int)p, r->comm, NULL));
        OK(ncclSend(out + (which * n + p) * room, length, ncclInt32, (int)p, r->comm, NULL));
    }
    OK(ncclGroupEnd());
    for (size_t p = 0; p < n; p++) {
        for (size_t which = 0; which <= 1; which++) {
            for (size_t i = 0; i < (which ? 7 + p * n + me : room - p * n - me); i++) {
                CHECK(in[(which * n + p) * room + i] == (int)(p * 10000000 + me * 1000000 + which * 500000 + i), "message %zu of rank %zu, element %zu", which, p, i);
            }
        }
    }
    cudaFree(out);
    cudaFree(in);
    // outside of a group: one sends, the other receives
    float* x = device<float>(100000);
    for (size_t i = 0; i < 100000; i++) { x[i] = (float)(me * 100000 + i); }
    if (n > 1 && me == 0) { OK(ncclSend(x, 100000, ncclFloat32, 1, r->comm, NULL)); }
    if (n > 1 && me == 1) {
        OK(ncclRecv(x, 100000, ncclFloat32, 0, r->comm, NULL));
        for (size_t i = 0; i < 100000; i++) { CHECK(x[i] == (float)i, "element %zu", i); }
    }
    cudaFree(x);
}

// Groups: many collectives in one, nested, mixed with messages in another order on each rank, over several communicators in another order on each rank.
static void rank_groups(Ranks* r) {
    const size_t n = (size_t)r->n, me = (size_t)r->rank, count = 30011;
    const ncclUniqueId id = share_id(r, r->n - 1), id2 = share_id(r, 0);
    ncclComm_t reversed, third;
    OK(ncclCommInitRank(&reversed, r->n, id, r->n - 1 - r->rank));  // the last rank made the id
    OK(ncclCommInitRank(&third, r->n, id2, r->rank));
    int value = -1;
    OK(ncclCommCount(reversed, &value));
    CHECK(value == r->n, "%d ranks", value);
    OK(ncclCommUserRank(reversed, &value));
    CHECK(value == r->n - 1 - r->rank, "rank %d", value);
    const size_t right = (me + 1) % n, left = (me + n - 1) % n;
    int *a = device<int>(count), *b = device<int>(count), *c = device<int>(count), *d = device<int>(count), *e = device<int>(5), *f = device<int>(5), *g = device<int>(3 * n), *h = device<int>(1);
    for (size_t i = 0; i < count; i++) { a[i] = b[i] = c[i] = (int)((me + 1) * (i % 97)); }
    for (size_t k = 0; k < 5; k++) { e[k] = (int)(me * 10 + k); }
    for (size_t k = 0; k < 3; k++) { g[me * 3 + k] = (int)(me * 10 + k); }
    *h = (int)me;
    OK(ncclGroupStart());
    for (size_t step = 0; step < 6; step++) {  // each rank takes the six in another order; the two collectives of one communicator are one of them
        switch ((step + me) % 6) {
            case 0:
                OK(ncclGroupStart());
                OK(ncclAllReduce(a, a, count, ncclInt32, ncclSum, r->comm, NULL));
                OK(ncclAllGather(g + me * 3, g, 3, ncclInt32, r->comm, NULL));
                OK(ncclGroupEnd());
                break;
            case 1: OK(ncclAllReduce(b, b, count, ncclInt32, ncclSum, reversed, NULL)); break;
            case 2: OK(ncclAllReduce(h, h, 1, ncclInt32, ncclMax, third, NULL)); break;
            case 3: OK(ncclSend(c, count, ncclInt32, (int)right, r->comm, NULL)); break;
            case 4: OK(ncclRecv(d, count, ncclInt32, (int)left, r->comm, NULL)); break;
            case 5:
                OK(ncclRecv(f, 5, ncclInt32, (int)(n - 1 - right), reversed, NULL));
                OK(ncclSend(e, 5, ncclInt32, (int)(n - 1 - left), reversed, NULL));
                break;
        }
    }
    if (n > 1) { CHECK(d[1] != 0 + (int)(left + 1), "a group moves nothing before it ends"); }
    OK(ncclGroupEnd());
    for (size_t i = 0; i < count; i++) {
        const int all = (int)(n * (n + 1) / 2 * (i % 97));
        CHECK(a[i] == all && b[i] == all && d[i] == (int)((left + 1) * (i % 97)), "element %zu: %d and %d, not %d; %d of rank %zu", i, a[i], b[i], all, d[i], left);
    }
    for (size_t k = 0; k < 3 * n; k++) { CHECK(g[k] == (int)(k / 3 * 10 + k % 3), "gathered %zu: %d", k, g[k]); }
    for (size_t k = 0; k < 5; k++) { CHECK(f[k] == (int)(right * 10 + k), "reversed %zu: %d", k, f[k]); }
    CHECK(*h == (int)n - 1, "maximum %d", *h);
    // a refused call refuses the whole group: nothing has moved, and the communicator still works
    *h = (int)me;
    OK(ncclGroupStart());
    OK(ncclAllReduce(h, h, 1, ncclInt32, ncclSum, r->comm, NULL));
    CHECK(ncclBroadcast(h, h, 1, ncclInt32, (int)n, r->comm, NULL) == ncclInvalidArgument, "a root beyond the ranks");
    CHECK(ncclGroupEnd() == ncclInvalidArgument && *h == (int)me, "a refused group ran");
    CHECK(ncclGroupEnd() == ncclInvalidUsage, "an end without a start");
    OK(ncclGroupStart());
    OK(ncclGroupEnd());
    OK(ncclAllReduce(h, h, 1, ncclInt32, ncclSum, r->comm, NULL));
    CHECK(*h == (int)(n * (n - 1) / 2), "sum %d", *h);
    // a group's collectives go first, wherever they stand in it: the others need no group to match
    *h = (int)me;
    if (me == 0) {
        OK(ncclGroupStart());
        if (n > 1) { OK(ncclSend(e, 5, ncclInt32, 1, r->comm, NULL)); }
        OK(ncclAllReduce(h, h, 1, ncclInt32, ncclMax, r->comm, NULL));
        OK(ncclGroupEnd());
    } else {
        OK(ncclAllReduce(h, h, 1, ncclInt32, ncclMax, r->comm, NULL));
        if (me == 1) { OK(ncclRecv(f, 5, ncclInt32, 0, r->comm, NULL)); CHECK(f[4] == 4, "received %d", f[4]); }
    }
    CHECK(*h == (int)n - 1, "maximum %d", *h);
    OK(ncclCommDestroy(third));
    OK(ncclCommDestroy(reversed));
    for (int* p : {a, b, c, d, e, f, g, h}) { cudaFree(p); }
}
// Some of the ranks only, while the others do something else.
static void rank_subset(Ranks* r) {
    const ncclUniqueId id = share_id(r, 0);
    if (r->rank % 2) { return; }
    const int n = (r->n + 1) / 2;
    ncclComm_t even;
    OK(ncclCommInitRank(&even, n, id, r->rank / 2));
    float* x = device<float>(1);
    *x = (float)r->rank;
    OK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, even, NULL));
    CHECK(*x == (float)(n * (n - 1)), "sum %g", *x);
    OK(ncclCommDestroy(even));
    cudaFree(x);
}
// A rank dies by a signal in the middle of many calls: the others are told, with its number, and keep being told.
static void rank_killed(Ranks* r) {
    const size_t count = 1 << 20;
    float* x = device<float>(count);
    memset(x, 0, count * 4);
    OK(ncclAllReduce(x, x, count, ncclFloat32, ncclSum, r->comm, NULL));
    if (r->rank == 1) { raise(SIGKILL); }
    const ncclResult_t result = ncclAllReduce(x, x, count, ncclFloat32, ncclSum, r->comm, NULL);
    ncclResult_t later = ncclSuccess;
    CHECK(result == ncclRemoteError && strstr(ncclGetLastError(NULL), "for rank 1") && strstr(ncclGetLastError(NULL), "died"), "%s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
    OK(ncclCommGetAsyncError(r->comm, &later));
    CHECK(later == ncclRemoteError, "%s", ncclGetErrorString(later));
    CHECK(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r->comm, NULL) == ncclRemoteError, "a broken communicator went on");
    cudaFree(x);
    printf("rank %d was told\n", r->rank);
    fflush(stdout);
}
// A watchdog's thread aborts while the last rank's program is stuck in a call that the others never make.
static void rank_aborts(Ranks* r) {
    float* x = device<float>(10);
    memset(x, 0, 40);
    ncclResult_t result;
    if (r->rank == r->n - 1) {
        std::thread watchdog([r] { usleep(100000); OK(ncclCommAbort(r->comm)); });
        result = ncclAllReduce(x, x, 10, ncclFloat32, ncclSum, r->comm, NULL);
        watchdog.join();
        CHECK(result == ncclSystemError, "%s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
    } else {
        usleep(200000);
        result = ncclAllReduce(x, x, 10, ncclFloat32, ncclSum, r->comm, NULL);
        CHECK(result == ncclRemoteError && strstr(ncclGetLastError(NULL), "aborted"), "%s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
        OK(ncclCommAbort(r->comm));
    }
    r->comm = NULL;
    cudaFree(x);
}
static void rank_other_count(Ranks* r) {
    float* x = device<float>(100);
    memset(x, 0, 400);
    const ncclResult_t result = ncclAllReduce(x, x, r->rank == 1 ? 99 : 100, ncclFloat32, ncclSum, r->comm, NULL);
    CHECK(result == ncclRemoteError, "not refused: %s", ncclGetErrorString(result));
}

static const struct { const char* name; RankFunction fn; } rank_functions[] = {
    {"collectives", rank_collectives}, {"order", rank_order}, {"sent_bytes", rank_sent_bytes}, {"messages", rank_messages}, {"groups", rank_groups}, {"subset", rank_subset},
    {"killed", rank_killed}, {"aborts", rank_aborts}, {"other_count", rank_other_count}};

// ----------------------------------------------------------------------------
// the same functions as a program that mpirun starts

#ifdef TEST_NCCL_DRIVER

int main(int argc, char** argv) {
    Ranks r = {NULL, 0, 1};
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.n);
    alarm(100);
    for (int i = 1; i < argc; i++) {
        for (const auto& f : rank_functions) {
            if (strcmp(f.name, argv[i])) { continue; }
            ncclUniqueId id = {};
            if (r.rank == r.n - 1) { OK(ncclGetUniqueId(&id)); }
            MPI_Bcast(&id, sizeof(id), MPI_BYTE, r.n - 1, MPI_COMM_WORLD);
            OK(ncclCommInitRank(&r.comm, r.n, id, r.rank));
            f.fn(&r);
            if (r.comm) { OK(ncclCommDestroy(r.comm)); }
            CHECK(cpu_device_allocations() == 0, "%s left device memory behind", f.name);
            if (r.rank == 0) { printf("%s ok\n", f.name); }
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}

#else

// ----------------------------------------------------------------------------
// ranks over shared memory

typedef struct { int code; std::string out; } Ended;

// Runs fn in n processes, each with a communicator if `join` is its id; what each printed and how it ended. Every one is killed after 60 s.
static std::vector<Ended> run_ranks(int n, RankFunction fn, const ncclUniqueId* join) {
    std::vector<FILE*> files;
    std::vector<pid_t> pids;
    fflush(stdout);
    fflush(stderr);
    for (int r = 0; r < n; r++) {
        files.push_back(tmpfile());
        CHECK(files.back(), "tmpfile: %s", strerror(errno));
        pids.push_back(fork());
        CHECK(pids.back() >= 0, "fork: %s", strerror(errno));
        if (pids.back()) { continue; }
        alarm(60);
        dup2(fileno(files.back()), 1);
        dup2(fileno(files.back()), 2);
        Ranks ranks = {NULL, r, n};
        if (join) { OK(ncclCommInitRank(&ranks.comm, n, *join, r)); }
        fn(&ranks);
        if (ranks.comm) { OK(ncclCommDestroy(ranks.comm)); }
        for (FILE* f : files) { fclose(f); }
        exit(0);
    }
    std::vector<Ended> ended;
    for (int r = 0; r < n; r++) {
        int status;
        waitpid(pids[r], &status, 0);
        Ended e = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ""};
        char buffer[4096];
        rewind(files[r]);
        for (size_t got; (got = fread(buffer, 1, sizeof(buffer), files[r])) > 0;) { e.out.append(buffer, got); }
        fclose(files[r]);
        ended.push_back(e);
    }
    return ended;
}
static ncclUniqueId new_id(void) {
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    return id;
}
static std::vector<Ended> run_ranks(int n, RankFunction fn) {
    const ncclUniqueId id = new_id();
    return run_ranks(n, fn, &id);
}
static void expect_ok(int n, RankFunction fn) {
    std::vector<Ended> ended = run_ranks(n, fn);
    for (int r = 0; r < n; r++) { CHECK(ended[r].code == 0, "rank %d of %d: exit %d: %s", r, n, ended[r].code, ended[r].out.c_str()); }
}

static void rank_same_call(Ranks* r) {
    float* x = device<float>(1000);
    memset(x, 0, 4000);
    OK(ncclAllReduce(x, x, 1000, ncclFloat32, ncclSum, r->comm, NULL));
    cudaFree(x);
}

static void test_nccl_collectives_equal_oracle(void) { for (int n = 1; n <= 4; n++) { expect_ok(n, rank_collectives); } }
static void test_nccl_order_of_ranks(void) { for (int n = 1; n <= 4; n++) { expect_ok(n, rank_order); } }
static void test_nccl_bytes_that_travel(void) { for (int n = 1; n <= 4; n++) { expect_ok(n, rank_sent_bytes); } }
static void test_nccl_messages(void) { for (int n = 1; n <= 4; n++) { expect_ok(n, rank_messages); } }
static void test_nccl_groups(void) { for (int n = 1; n <= 4; n++) { expect_ok(n, rank_groups); } }
static void test_nccl_some_ranks_only(void) { for (int n = 1; n <= 4; n++) { expect_ok(n, rank_subset); } }

// Hundreds of ranks share small rings.
static void rank_crowd(Ranks* r) {
    int* x = device<int>(5000);
    for (int i = 0; i < 5000; i++) { x[i] = r->rank + i; }
    OK(ncclAllReduce(x, x, 5000, ncclInt32, ncclSum, r->comm, NULL));
    for (int i = 0; i < 5000; i++) { CHECK(x[i] == r->n * (r->n - 1) / 2 + r->n * i, "element %d: %d", i, x[i]); }
    cudaFree(x);
}
static void test_nccl_many_ranks(void) { expect_ok(33, rank_crowd); }

// --- what must be refused

static std::string last_error(void) { return ncclGetLastError(NULL); }
#define REFUSED(call, code, word) \
    do { ncclResult_t e_ = (call); CHECK(e_ == code && last_error().find(word) != std::string::npos, "%s: %s, %s", #call, ncclGetErrorString(e_), last_error().c_str()); } while (0)

static void test_nccl_refuses_arguments(void) {
    ncclComm_t comm;
    ncclUniqueId id = new_id(), none = {};
    REFUSED(ncclGetUniqueId(NULL), ncclInvalidArgument, "NULL");
    REFUSED(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "NULL");
    REFUSED(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 of 2");
    REFUSED(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, "rank -1 of 2");
    REFUSED(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "of 0");
    REFUSED(ncclCommInitRank(&comm, 1, none, 0), ncclInvalidArgument, "ncclGetUniqueId");
    REFUSED(ncclCommInitRank(&comm, 1000, id, 0), ncclInvalidArgument, "mpirun");
    CHECK(!comm, "a refused communicator has a handle");
    id = new_id();
    OK(ncclCommInitRank(&comm, 1, id, 0));
    float* x = device<float>(4);
    int value;
    ncclResult_t async;
    REFUSED(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, NULL, NULL), ncclInvalidArgument, "NULL");
    REFUSED(ncclAllReduce(x, x, 4, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument, "12 is no type");
    REFUSED(ncclAllReduce(x, x, 4, ncclFloat32, (ncclRedOp_t)5, comm, NULL), ncclInvalidArgument, "5 is no operation");
    REFUSED(ncclAllReduce(x, x, 4, ncclFloat16, ncclSum, comm, NULL), ncclInvalidArgument, "the CPU device does not reduce float16");
    REFUSED(ncclAllReduce(x, x, 4, ncclFloat8e4m3, ncclSum, comm, NULL), ncclInvalidArgument, "the CPU device does not reduce float8");
    cpu_modes()->arch = 89;
    REFUSED(ncclAllReduce(x, x, 4, ncclFloat8e4m3, ncclSum, comm, NULL), ncclInvalidArgument, "not by 8.9");
    OK(ncclAllGather(x, x, 4, ncclFloat8e4m3, comm, NULL));
    cpu_modes()->arch = 0;
    REFUSED(ncclBroadcast(x, x, 4, ncclFloat32, 1, comm, NULL), ncclInvalidArgument, "root 1 of 1");
    REFUSED(ncclReduce(x, x, 4, ncclFloat32, ncclSum, -1, comm, NULL), ncclInvalidArgument, "root -1");
    REFUSED(ncclSend(x, 4, ncclFloat32, 1, comm, NULL), ncclInvalidArgument, "peer 1 of 1");
    REFUSED(ncclAllReduce(x, x, SIZE_MAX / 4, ncclFloat32, ncclSum, comm, NULL), ncclInvalidArgument, "beyond all memory");
    CpuStream bad_stream = {1, 0, 0};
    REFUSED(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, &bad_stream), ncclUnhandledCudaError, "stream");
    REFUSED(ncclSend(x, 4, ncclFloat32, 0, comm, NULL), ncclInvalidUsage, "sends to itself");
    REFUSED(ncclRecv(x, 4, ncclFloat32, 0, comm, NULL), ncclInvalidUsage, "receives from itself");
    REFUSED(ncclCommCount(comm, NULL), ncclInvalidArgument, "NULL");
    REFUSED(ncclCommGetAsyncError(comm, NULL), ncclInvalidArgument, "NULL");
    REFUSED(ncclGetVersion(NULL), ncclInvalidArgument, "NULL");
    OK(ncclGetVersion(&value));
    CHECK(value == NCCL_VERSION(2, 28, 9), "version %d", value);
    OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, NULL));  // nothing of nothing
    OK(ncclAllGather(NULL, NULL, 0, ncclFloat32, comm, NULL));
    OK(ncclBroadcast(NULL, NULL, 0, ncclFloat32, 0, comm, NULL));
    OK(ncclGroupStart());
    ncclComm_t inside;
    REFUSED(ncclCommInitRank(&inside, 1, id, 0), ncclInvalidUsage, "outside of a group");
    OK(ncclGroupEnd());
    OK(ncclCommGetAsyncError(comm, &async));
    CHECK(async == ncclSuccess, "a refused argument broke the communicator");
    OK(ncclCommFinalize(comm));
    OK(ncclCommDestroy(comm));
    REFUSED(ncclCommDestroy(NULL), ncclInvalidArgument, "NULL");
    cudaFree(x);
}

typedef struct { const char* name; const char* words[4]; void (*fn)(ncclComm_t, float*, int); } Bad;  // x: 12 floats; the rank
// What would corrupt memory or hang, each in a communicator of two ranks; rank 0 makes the mistake alone, or both do.
static const Bad bad_calls[] = {
    // llm.c's defect: a count of sizeof(float), in elements, for one float
    {"nccl-overrun", {"ncclAllReduce(count 4, float32, avg)", "4 elements of 4 bytes", "only 4 bytes are left"},
     [](ncclComm_t c, float* x, int) { ncclAllReduce(x + 11, x + 11, sizeof(float), ncclFloat32, ncclAvg, c, NULL); }},
    {"nccl-overrun", {"ncclReduceScatter(count 7", "send buffer", "14 elements"},
     [](ncclComm_t c, float* x, int r) { ncclReduceScatter(x, x + r * 7, 7, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-overrun", {"ncclAllGather(count 7", "receive buffer", "14 elements"},
     [](ncclComm_t c, float* x, int r) { ncclAllGather(x + r * 7, x, 7, ncclFloat32, c, NULL); }},
    {"nccl-overrun", {"ncclBroadcast(count 13, float32, root 0)"},
     [](ncclComm_t c, float* x, int) { ncclBroadcast(x, x, 13, ncclFloat32, 0, c, NULL); }},
    {"nccl-overrun", {"ncclReduce(count 25, bfloat16, sum, root 1)", "send buffer"},
     [](ncclComm_t c, float* x, int) { ncclReduce(x, x, 25, ncclBfloat16, ncclSum, 1, c, NULL); }},
    {"nccl-overrun", {"ncclSend(count 49, uint8, to "},
     [](ncclComm_t c, float* x, int r) { ncclSend(x, 49, ncclUint8, 1 - r, c, NULL); }},
    {"nccl-overrun", {"ncclRecv(count 7, float64, from "},
     [](ncclComm_t c, float* x, int r) { ncclRecv(x, 7, ncclFloat64, 1 - r, c, NULL); }},
    {"nccl-pointer", {"send buffer", "is not device memory"},
     [](ncclComm_t c, float* x, int) { float y[4] = {}; ncclAllReduce(y, x, 4, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-pointer", {"receive buffer", "is not device memory"},
     [](ncclComm_t c, float* x, int) { ncclAllReduce(x, NULL, 4, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-pointer", {"is not device memory"},
     [](ncclComm_t c, float* x, int) { float* y = NULL; cudaMalloc(&y, 16); cudaFree(y); ncclAllReduce(x, y, 4, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-alignment", {"4 bytes"},
     [](ncclComm_t c, float* x, int) { ncclAllReduce((char*)x + 2, (char*)x + 2, 4, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-overlap", {"ncclAllReduce", "+4 bytes"},
     [](ncclComm_t c, float* x, int) { ncclAllReduce(x, x + 1, 4, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-overlap", {"rank 1: ncclReduceScatter", "reduce-scatter recv == send + rank * count"},
     [](ncclComm_t c, float* x, int) { ncclReduceScatter(x, x, 6, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-overlap", {"rank 1: ncclAllGather"},
     [](ncclComm_t c, float* x, int) { ncclAllGather(x, x, 6, ncclFloat32, c, NULL); }},
    {"nccl-handle", {"ncclAllReduce", "has been destroyed"},
     [](ncclComm_t c, float* x, int) { ncclCommDestroy(c); ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-handle", {"ncclCommDestroy", "has been destroyed"},
     [](ncclComm_t c, float*, int) { ncclCommDestroy(c); ncclCommDestroy(c); }},
    {"nccl-handle", {"was not made by ncclCommInitRank"},
     [](ncclComm_t, float* x, int) { ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, (ncclComm_t)x, NULL); }},
    {"nccl-mismatch", {"rank 0 calls ncclAllReduce(count 4,", "rank 1 calls ncclAllReduce(count 5,"},
     [](ncclComm_t c, float* x, int r) { ncclAllReduce(x, x, 4 + (size_t)r, ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-mismatch", {"rank 0 calls ncclAllReduce(count 4, float32", "rank 1 calls ncclAllReduce(count 4, int32"},
     [](ncclComm_t c, float* x, int r) { ncclAllReduce(x, x, 4, r ? ncclInt32 : ncclFloat32, ncclSum, c, NULL); }},
    {"nccl-mismatch", {"float32, sum)", "float32, max)"},
     [](ncclComm_t c, float* x, int r) { ncclAllReduce(x, x, 4, ncclFloat32, r ? ncclMax : ncclSum, c, NULL); }},
    {"nccl-mismatch", {"root 0)", "root 1)"},
     [](ncclComm_t c, float* x, int r) { ncclBroadcast(x, x, 4, ncclFloat32, r, c, NULL); }},
    {"nccl-mismatch", {"ncclBroadcast(count 4, float32, root 0) as number 0", "ncclAllReduce(count 4, float32, sum) as number 0"},
     [](ncclComm_t c, float* x, int r) {
         if (r) { ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, c, NULL); }
         ncclBroadcast(x, x, 4, ncclFloat32, 0, c, NULL);
         if (!r) { ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, c, NULL); }
     }},
    {"nccl-mismatch", {"ncclSend(count 3, float32, to 1)", "ncclRecv(count 4, float32, from 0)"},
     [](ncclComm_t c, float* x, int r) { if (r) { ncclRecv(x, 4, ncclFloat32, 0, c, NULL); } else { ncclSend(x, 3, ncclFloat32, 1, c, NULL); } }},
    {"nccl-mismatch", {"ncclRecv(count 4, float32, from 0)", "ncclAllReduce(count 1, float32, sum)"},
     [](ncclComm_t c, float* x, int r) { if (r) { ncclRecv(x, 4, ncclFloat32, 0, c, NULL); } else { ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, c, NULL); } }},
    {"nccl-deadlock", {"in ncclSend(count 4, float32, to 0)", "in ncclSend(count 4, float32, to 1)", "neither receives"},
     [](ncclComm_t c, float* x, int r) { ncclSend(x, 4, ncclFloat32, 1 - r, c, NULL); ncclRecv(x + 4, 4, ncclFloat32, 1 - r, c, NULL); }},
    {"nccl-handle", {"is used in process"},
     [](ncclComm_t c, float* x, int r) {
         int status;
         if (fork()) { wait(&status); exit(WEXITSTATUS(status)); }
         if (r == 0) { ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, c, NULL); }
     }},
    {"nccl-mismatch", {"rank 0 calls ncclSend(count 2", "and ncclRecv(count 3"},
     [](ncclComm_t c, float* x, int r) { ncclGroupStart(); ncclSend(x, 2, ncclFloat32, r, c, NULL); ncclRecv(x + 4, 3, ncclFloat32, r, c, NULL); ncclGroupEnd(); }},
};
static int bad_call;
static void rank_bad(Ranks* r) {
    float* x = device<float>(12);
    memset(x, 0, 48);
    bad_calls[bad_call].fn(r->comm, x, r->rank);
    exit(0);
}
static void test_nccl_names_bad_calls(void) {
    for (bad_call = 0; bad_call < (int)(sizeof(bad_calls) / sizeof(bad_calls[0])); bad_call++) {
        const Bad* bad = &bad_calls[bad_call];
        std::vector<Ended> ended = run_ranks(2, rank_bad);
        std::string all = ended[0].out + ended[1].out;
        CHECK(ended[0].code == 1 || ended[1].code == 1, "%d: %s was not caught: %s", bad_call, bad->name, all.c_str());
        CHECK(all.find(std::string("[cpu device: ") + bad->name + "]") != std::string::npos && all.find("HINT:") != std::string::npos, "%d: %s not named: %s", bad_call, bad->name, all.c_str());
        for (const char* word : bad->words) { CHECK(!word || all.find(word) != std::string::npos, "%d: '%s' not in: %s", bad_call, word, all.c_str()); }
    }
}

// --- who comes, goes and dies

static ncclUniqueId shared_id;
static void join_as(int nranks, int rank, ncclResult_t want, const char* word) {
    ncclComm_t comm;
    const ncclResult_t result = ncclCommInitRank(&comm, nranks, shared_id, rank);
    CHECK(result == want && last_error().find(word) != std::string::npos, "%s: %s", ncclGetErrorString(result), last_error().c_str());
}
static void rank_joins_twice(Ranks* r) {  // both want rank 0 of 2
    if (r->rank == 1) { usleep(100000); join_as(2, 0, ncclInvalidUsage, "rank 0 of 2 joins twice"); exit(0); }
    join_as(2, 0, ncclRemoteError, "has ended");  // waits until the maker of the id is gone
}
static void rank_other_size(Ranks* r) {
    if (r->rank == 1) { usleep(100000); join_as(3, 1, ncclInvalidUsage, "nranks must be the same for all"); exit(0); }
    join_as(2, 0, ncclRemoteError, "has ended");
}
static void rank_dies_before_all_have_come(Ranks* r) {
    if (r->rank == 0) { alarm(1); }
    join_as(3, r->rank, ncclRemoteError, "rank 0 of 3 has died");
}
static void make_id_and_run(void* fn) {  // in a process of its own, which then ends: the maker of the id
    shared_id = new_id();
    for (int r = 0; r < 2; r++) {
        if (fork()) { continue; }
        alarm(30);
        Ranks ranks = {NULL, r, 2};
        ((RankFunction)fn)(&ranks);
        printf("told\n");
        exit(0);
    }
    usleep(300000);
}
static void test_nccl_joins_that_cannot_be(void) {
    for (RankFunction fn : {rank_joins_twice, rank_other_size}) {
        std::string out;
        const int code = test_child(make_id_and_run, (void*)fn, &out);  // reads until the last of them has ended
        CHECK(code == 0 && out == "told\n", "exit %d: %s", code, out.c_str());
    }
    shared_id = new_id();
    std::vector<Ended> ended = run_ranks(2, rank_dies_before_all_have_come, NULL);
    CHECK(ended[0].code == 128 + SIGALRM && ended[1].code == 0, "exits %d and %d: %s", ended[0].code, ended[1].code, ended[1].out.c_str());
    // an id serves one communicator
    ncclComm_t first, second;
    OK(ncclCommInitRank(&first, 1, shared_id, 0));
    OK(ncclCommDestroy(first));
    shared_id = new_id();
    ended = run_ranks(2, rank_same_call, &shared_id);
    CHECK(ended[0].code == 0 && ended[1].code == 0, "%s%s", ended[0].out.c_str(), ended[1].out.c_str());
    REFUSED(ncclCommInitRank(&second, 2, shared_id, 1), ncclInvalidUsage, "joins twice");
}
static void test_nccl_killed_rank_is_named(void) {
    for (int n = 2; n <= 4; n++) {
        const uint64_t begin = cpu_nanoseconds();
        std::vector<Ended> ended = run_ranks(n, rank_killed);
        for (int r = 0; r < n; r++) { CHECK(ended[r].code == (r == 1 ? 128 + SIGKILL : 0), "rank %d: exit %d: %s", r, ended[r].code, ended[r].out.c_str()); }
        CHECK(cpu_nanoseconds() - begin < 5000000000ull, "it took %.1f s", (double)(cpu_nanoseconds() - begin) * 1e-9);
    }
}
static void rank_leaves(Ranks* r) {  // rank 1 does not make the second call, but what it sent in the first arrives
    float* x = device<float>(60000);
    for (int i = 0; i < 60000; i++) { x[i] = (float)r->rank; }
    if (r->rank == 1) { OK(ncclSend(x, 60000, ncclFloat32, 0, r->comm, NULL)); cudaFree(x); return; }
    if (r->rank == 0) {
        usleep(200000);
        OK(ncclRecv(x, 60000, ncclFloat32, 1, r->comm, NULL));
        CHECK(x[59999] == 1, "what was sent before is lost");
    }
    REFUSED(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, r->comm, NULL), ncclRemoteError, "for rank 1, which has destroyed its communicator");
    cudaFree(x);
}
static void test_nccl_rank_that_leaves(void) { expect_ok(3, rank_leaves); }
static void test_nccl_abort_from_another_thread(void) { for (int n = 2; n <= 3; n++) { expect_ok(n, rank_aborts); } }


static void test_nccl_leaves_nothing_behind(void) {
    int code;
    run_ranks(3, rank_killed);
    CHECK(test_shell("ls -A /dev/shm", &code).find("nccl") == std::string::npos, "a name in /dev/shm");
    const int first = dup(1);
    close(first);
    for (int i = 0; i < 3; i++) {
        ncclComm_t comm;
        OK(ncclCommInitRank(&comm, 1, new_id(), 0));
        OK(ncclCommDestroy(comm));
    }
    const int last = dup(1);
    close(last);
    CHECK(first == last, "file descriptors stay open: %d, then %d", first, last);
}

// Enum values against the toolkit's header, where there is one.
static void test_nccl_enum_values(void) {
    const char* home = getenv("CUDA_HOME");
    const std::string path = std::string(home ? home : "/usr/local/cuda") + "/include/nccl.h", text = test_read_file(path);
    if (text == "(missing)") { SKIP("no %s", path.c_str()); }
#define E(name) {#name, name}
    static const struct { const char* name; int value; } ours[] = {
#define RESULT_VALUE(name, value, text) E(name),
#define TYPE_VALUE(name, value, bytes, text, reduces) E(name),
        CPU_NCCL_RESULT_TABLE(RESULT_VALUE) CPU_NCCL_TYPE_TABLE(TYPE_VALUE)
        E(ncclNumResults), E(ncclSum), E(ncclProd), E(ncclMax), E(ncclMin), E(ncclAvg), E(ncclNumOps), E(ncclChar), E(ncclInt), E(ncclHalf), E(ncclFloat), E(ncclDouble)};
    for (const auto& e : ours) {
        const std::string name = e.name;
        size_t at = text.find(name);
        while (at != std::string::npos && (isalnum(text[at + name.size()]) || text[text.find_first_not_of(' ', at + name.size())] != '=')) { at = text.find(name, at + 1); }
        CHECK(at != std::string::npos, "%s is not in %s", e.name, path.c_str());
        const int theirs = atoi(text.c_str() + text.find('=', at) + 1);
        CHECK(theirs == e.value, "%s is %d there, %d here", e.name, theirs, e.value);
    }
    for (int i = 0; i < ncclNumResults; i++) { CHECK(strcmp(ncclGetErrorString((ncclResult_t)i), "unknown result code") != 0, "result %d has no words", i); }
}

// --- MPI: this file again, built with mpicxx, started by mpirun

static void test_nccl_over_mpi(void) {
    int code;
    test_shell("command -v mpirun && command -v mpicxx && mpirun --version | grep -q 'Open MPI'", &code);
    if (code) { SKIP("no mpirun and mpicxx of OpenMPI"); }
    std::string source = __FILE__, root = ".";
    const size_t slash = source.rfind("dev/test/");
    if (slash != std::string::npos && slash > 0) { root = source.substr(0, slash); }
    char folder[] = "/tmp/test_nccl_XXXXXX";
    CHECK(mkdtemp(folder), "mkdtemp failed");
    const std::string program = std::string(folder) + "/ranks";
    std::string out = test_shell("cd " + root + " && mpicxx -x c++ -std=c++17 -O1 -ffp-contract=off -fno-strict-aliasing -fopenmp -Wall -Wextra -Wno-unknown-pragmas -Werror "
                                 "-DGPT_WITH_MPI -DTEST_NCCL_DRIVER -Illmc/cpu -I. dev/test/test_nccl.cu -o " + program, &code);
    CHECK(code == 0, "%s", out.c_str());
    const std::string mpirun = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1 "
                               "timeout 120 mpirun --oversubscribe --bind-to none -np ";
    for (const char* n : {"2", "3"}) {
        out = test_shell(mpirun + n + " " + program + " collectives order sent_bytes messages groups subset aborts", &code);
        CHECK(code == 0, "-np %s: exit %d: %s", n, code, out.c_str());
        for (const char* name : {"collectives", "order", "sent_bytes", "messages", "groups", "subset", "aborts"}) {
            CHECK(out.find(std::string(name) + " ok") != std::string::npos, "-np %s, %s: %s", n, name, out.c_str());
        }
    }
    out = test_shell(mpirun + "3 " + program + " other_count", &code);
    CHECK(code != 0 && out.find("[cpu device: nccl-mismatch]") != std::string::npos, "exit %d: %s", code, out.c_str());
    CHECK(out.find("rank 1 calls ncclAllReduce(count 99,") != std::string::npos && out.find("count 100,") != std::string::npos, "%s", out.c_str());
    out = test_shell(mpirun + "2 --enable-recovery " + program + " killed", &code);  // --enable-recovery: mpirun lets the others live
    CHECK(out.find("rank 0 was told") != std::string::npos, "exit %d: %s", code, out.c_str());
    unlink(program.c_str());
    rmdir(folder);
}

int main(int argc, char** argv) {
    setenv("OMP_NUM_THREADS", "1", 1);
    static const Test tests[] = {
        {"nccl_collectives_equal_oracle", test_nccl_collectives_equal_oracle, QUICK},
        {"nccl_order_of_ranks", test_nccl_order_of_ranks, QUICK},
        {"nccl_bytes_that_travel", test_nccl_bytes_that_travel, QUICK},
        {"nccl_messages", test_nccl_messages, QUICK},
        {"nccl_groups", test_nccl_groups, QUICK},
        {"nccl_some_ranks_only", test_nccl_some_ranks_only, QUICK},
        {"nccl_many_ranks", test_nccl_many_ranks, QUICK},
        {"nccl_refuses_arguments", test_nccl_refuses_arguments, QUICK},
        {"nccl_names_bad_calls", test_nccl_names_bad_calls, QUICK},
        {"nccl_joins_that_cannot_be", test_nccl_joins_that_cannot_be, QUICK},
        {"nccl_killed_rank_is_named", test_nccl_killed_rank_is_named, QUICK},
        {"nccl_rank_that_leaves", test_nccl_rank_that_leaves, QUICK},
        {"nccl_abort_from_another_thread", test_nccl_abort_from_another_thread, QUICK},
        {"nccl_leaves_nothing_behind", test_nccl_leaves_nothing_behind, QUICK},
        {"nccl_enum_values", test_nccl_enum_values, QUICK},
        {"nccl_over_mpi", test_nccl_over_mpi, SLOW},
    };
    return TEST_MAIN(tests);
}

#endif
