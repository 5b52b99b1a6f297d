/* gemm.h - matrix products of the CPU device: D = alpha * A B + beta * C + bias, A and B with scales of rows, columns or blocks if asked
 *
 * What:      cpu_gemm(&g) for one product or a strided batch. Two engines: our own (always), oneDNN (when built with GPT_WITH_ONEDNN).
 * Shapes:    A (m,k), B (k,n), C and D (m,n); each by row and column stride, one of which is 1; slices of wider matrices are fine. A, B: BF16, E4M3, E5M2 or
 *            FP32; C, D: BF16 or FP32, C may be D. No alignment is needed beyond the element's.
 * Scales:    a_scales (ceil(k / scale_k), m), b_scales (.., n), f32: each scale_k elements along K are summed, times (a_scale * b_scale), added in the order of
 *            K. scale_k >= k: one scale a row of A and column of B. Exponents (bytes e, 2^(e - 127), 255: NaN) instead of scales, scale_k = 32: each product
 *            times 2^(ea + eb - 254), exactly, then summed. Usually elements are shifted while they are packed (cpu_gemm_mx says when not).
 * Numerics:  products exact, sums in FP32, one rounding at the end. The order of additions depends on the shape and the instruction set alone: K is cut at
 *            multiples of CPU_GEMM_KC and never across threads, so the result has the same bits for any number of threads. Subnormals: gemm_kernels.h.
 * Memory:    packed operands and tiles live in scratch of the calling threads, grown on demand, freed when they end.
 * Threads:   the OpenMP pool, at most one region a call; inside a parallel region a call runs on its thread alone.
 * Design:    B is packed in panels of 64 columns, A is read in place where its rows are contiguous; widening happens while packing, so FP8 costs no pass
 *            of its own. A super-block of B (and A) that fits the caches is packed by all threads, then tiles of D are handed out.
 * Tests:     dev/test/test_cpu_gemm.cu */
#ifndef LLMC_CPU_GEMM_H
#define LLMC_CPU_GEMM_H

#if defined(_OPENMP)
#include <omp.h>
#endif
#include <math.h>
#include <sched.h>

#include "llmc/common.h"
#include "cpu_pool.h"
#include "gemm_kernels.h"

typedef struct {
    const void* data;
    CpuGemmType type;
    int64_t row_stride, col_stride;  // in elements; one of them is 1
    int64_t batch_stride;            // in elements
} CpuGemmMatrix;

typedef struct {
    int64_t m, n, k, batch;
    CpuGemmMatrix a, b, c, d;    // d.data is written; c.data is read only when beta != 0
    float alpha, beta;
    const void* bias;            // NULL, or n (bias_along_n) or m elements
    CpuGemmType bias_type;       // F32 or BF16
    bool bias_along_n;
    int64_t bias_batch_stride;   // in elements
    bool hopper_accumulator;     // FP8 inputs only, not with exponents: the truncated accumulator of gemm_hopper.h, started anew every scale_k
    int64_t scale_k;             // see the top; 0: neither scales nor exponents. Otherwise batch is 1; scale_k < k: a multiple of 32 that divides 512
    const float *a_scales, *b_scales;
    const uint8_t *a_exponents, *b_exponents;  // FP8 inputs only
    // for cpu_gemm itself: what exponents have become
    const uint8_t *a_down, *b_down;            // elements are divided by 2^down while they are packed
    bool wide;                                 // scales are powers of two whose products a float may not hold
} CpuGemm;

// Where results come from; for tests and benchmarks. level -1: the best there is. max_threads 0: as many as OpenMP gives.
enum { CPU_GEMM_ENGINE_AUTO = 0, CPU_GEMM_ENGINE_OWN = 1, CPU_GEMM_ENGINE_ONEDNN = 2 };
// poison: the byte that scratch is filled with before every use, -1 for none. pack_bytes: the size of a super-block of packed B or A.
typedef struct { int engine, level, max_threads, poison; int64_t pack_bytes; } CpuGemmSettings;
inline CpuGemmSettings* cpu_gemm_settings(void) {
    static CpuGemmSettings settings = {CPU_GEMM_ENGINE_AUTO, -1, 0, -1, 4 << 20};
    return &settings;
}

#ifndef CPU_GEMM_KC
#define CPU_GEMM_KC 512          // steps of one K block (1,024 BF16 or 512 floats): 128 KB of a panel; 256 was 3 % slower, more gained nothing
#endif

// ----------------------------------------------------------------------------
// scratch, tickets and barriers

enum { CPU_GEMM_SCRATCH_A, CPU_GEMM_SCRATCH_B, CPU_GEMM_SCRATCH_TILE, CPU_GEMM_SCRATCH_BIAS, CPU_GEMM_SCRATCH_OTHER,
       CPU_GEMM_SCRATCH_SCALES_A, CPU_GEMM_SCRATCH_SCALES_B,                               // the caller's, scales put in order
       CPU_GEMM_SCRATCH_MX_A, CPU_GEMM_SCRATCH_MX_B, CPU_GEMM_SCRATCH_COUNT };
struct CpuGemmScratch {
    void* p[CPU_GEMM_SCRATCH_COUNT];
    size_t bytes[CPU_GEMM_SCRATCH_COUNT];
    ~CpuGemmScratch() { for (int i = 0; i < CPU_GEMM_SCRATCH_COUNT; i++) { free(p[i]); } }
};
// Memory of this thread, 64-byte aligned, valid until the next request for the same slot. Contents undefined.
inline void* cpu_gemm_scratch(int slot, size_t bytes) {
    static thread_local CpuGemmScratch s = {};
    if (s.bytes[slot] < bytes) {
        free(s.p[slot]);
        s.p[slot] = NULL;
        s.bytes[slot] = 0;
        size_t size = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
        if (posix_memalign(&s.p[slot], 4096, size) != 0) {
            s.p[slot] = NULL;
            fail("close other programs or choose a smaller model or batch", "out of host memory: %zu bytes of scratch for a matrix product", size);
        }
        s.bytes[slot] = size;
    }
    if (cpu_gemm_settings()->poison >= 0) { memset(s.p[slot], cpu_gemm_settings()->poison, s.bytes[slot]); }
    return s.p[slot];
}

// A team works through phases of numbered tasks. Tickets rise over all phases: at the end of a phase each thread has drawn exactly one too many.
typedef struct { alignas(64) int64_t ticket; alignas(64) int64_t arrived; int threads; } CpuGemmTeam;
typedef struct { int64_t phase_base, barriers; } CpuGemmMember;

static inline int64_t cpu_gemm_next(CpuGemmTeam* team, CpuGemmMember* me, int64_t tasks) {
    int64_t t = __atomic_fetch_add(&team->ticket, 1, __ATOMIC_RELAXED) - me->phase_base;
    return t < tasks ? t : -1;
}
static inline void cpu_gemm_end_phase(CpuGemmTeam* team, CpuGemmMember* me, int64_t tasks) {
    me->phase_base += tasks + team->threads;
    if (team->threads == 1) { return; }
    me->barriers++;
    int64_t target = me->barriers * team->threads;
    int64_t now = __atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL);
    // a few microseconds of spinning (a futex round trip costs more than most phases take), then the core is given away: on a busy machine
    // the one that is waited for may need it
    for (int spins = 0; now < target; spins++) {
        if (spins < 200) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else { sched_yield(); }
        now = __atomic_load_n(&team->arrived, __ATOMIC_ACQUIRE);
    }
}

// ----------------------------------------------------------------------------
// our own engine. Inside, D is row-major: a column-major D is computed as the transposed product.

typedef struct {
    const CpuGemmIsa* isa;
    CpuGemmSide a, b;
    int64_t m, n, k, steps;       // steps = k or ceil(k / 2)
    int64_t steps_padded;         // to 16
    int64_t m_super, n_super, m_tile, n_tile;
    bool a_direct;                // kernels read A in place
    int64_t a_ld;                 // of packed A (or of A), in steps
    char* d;
    const char* c;
    int d_size, c_size;
    CpuGemmEpilogue e;
    int64_t block_k, block_steps;           // sums end and are promoted every so many elements, steps; 0: at the end of K
    const float *a_scales, *b_scales;       // NULL: nothing is promoted
    const uint8_t *a_down, *b_down;
    int how;                                // of promote
} CpuGemmPlan;

static inline int64_t cpu_gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t cpu_gemm_round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// sums [+]= part times the scales of block `block` of K, for rows from i and columns from j of the matrix.
static inline void cpu_gemm_promote(const CpuGemmPlan* p, float* sums, int64_t lds, const float* part, int64_t ldp, int64_t rows, int64_t cols, int64_t i, int64_t j, int64_t block) {
    p->isa->promote(sums, lds, part, ldp, rows, cols, p->a_scales + block * p->m + i, p->b_scales + block * p->n + j, p->how | (block > 0 ? CPU_GEMM_PROMOTE_ADD : 0));
}

// One tile of D: rows [i0, i1), columns [j0, j1) of the matrix; a0 and b0 are where the packed super-blocks begin.
static inline void cpu_gemm_tile(const CpuGemmPlan* p, const uint32_t* pa, const uint32_t* pb, int64_t a0, int64_t b0,
                                 int64_t i0, int64_t i1, int64_t j0, int64_t j1, float* tile) {
    const CpuGemmIsa* isa = p->isa;
    alignas(64) float block[CPU_GEMM_MAX_ROWS * CPU_GEMM_MAX_VECS * 16], part[CPU_GEMM_MAX_ROWS * CPU_GEMM_MAX_VECS * 16];
    const bool one = p->steps <= CPU_GEMM_KC;  // no sums to keep between K blocks
    const int64_t ldt = one ? isa->width : cpu_gemm_round_up(j1 - j0, 16);
    for (int64_t s0 = 0; s0 < p->steps || s0 == 0; s0 += CPU_GEMM_KC) {
        const int64_t steps = cpu_gemm_min(CPU_GEMM_KC, p->steps - s0);
        const bool last = s0 + CPU_GEMM_KC >= p->steps;
        for (int64_t j = j0; j < j1; j += isa->width) {
            const int64_t width = cpu_gemm_min(isa->width, cpu_gemm_round_up(p->n - j, 16));
            const uint32_t* panel = pb + (j - b0) * p->steps_padded + s0 * width;
            for (int64_t i = i0; i < i1; i += isa->rows) {
                const int rows = (int)cpu_gemm_min(isa->rows, i1 - i);
                const char* a = (const char*)pa + ((i - a0) * p->a_ld + s0) * 4;
                float* sums = one ? block : tile + (i - i0) * ldt + (j - j0);
                const CpuGemmKernel kernel = isa->kernel[rows - 1][width / 16 - 1];
                const int64_t cols = cpu_gemm_min(width, j1 - j);
                if (p->block_steps == 0) { kernel(steps, (const uint32_t*)a, p->a_ld, panel, sums, ldt, s0 > 0); }
                else {
                    for (int64_t s = 0; s < steps; s += p->block_steps) {
                        kernel(cpu_gemm_min(p->block_steps, steps - s), (const uint32_t*)a + s, p->a_ld, panel + s * width, part, isa->width, false);
                        cpu_gemm_promote(p, sums, ldt, part, isa->width, rows, cols, i, j, (s0 + s) / p->block_steps);
                    }
                }
                if (last) {
                    if (p->a_scales && p->block_steps == 0) { cpu_gemm_promote(p, sums, ldt, sums, ldt, rows, cols, i, j, 0); }
                    isa->epilogue(p->d + (i * p->e.ldd + j) * p->d_size, p->c ? p->c + (i * p->e.ldc + j) * p->c_size : NULL, sums, ldt, rows,
                                  cols, i, j, &p->e);
                }
            }
        }
    }
}

// One member's share of the whole product.
static inline void cpu_gemm_work(const CpuGemmPlan* p, CpuGemmTeam* team, uint32_t* pa, uint32_t* pb) {
    CpuGemmMember me = {0, 0};
    const CpuGemmIsa* isa = p->isa;
    const int64_t chunk = 256;  // steps of one packing task
    float* tile = (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_TILE, (size_t)p->m_tile * p->n_tile * sizeof(float));
    for (int64_t n0 = 0; n0 < p->n; n0 += p->n_super) {
        const int64_t n1 = cpu_gemm_min(p->n, n0 + p->n_super);
        for (int64_t m0 = 0; m0 < p->m; m0 += p->m_super) {
            const int64_t m1 = cpu_gemm_min(p->m, m0 + p->m_super);
            const int64_t chunks = (p->steps + chunk - 1) / chunk;
            const int64_t b_tasks = m0 == 0 ? (n1 - n0 + isa->width - 1) / isa->width * chunks : 0;
            const bool pack_a = !p->a_direct && (n0 == 0 || p->m_super < p->m);
            const int64_t a_block = 48, a_tasks = pack_a ? (m1 - m0 + a_block - 1) / a_block * chunks : 0;
            if (a_tasks + b_tasks > 0) {
                for (int64_t t; (t = cpu_gemm_next(team, &me, a_tasks + b_tasks)) >= 0;) {
                    const int64_t s0 = (t < b_tasks ? t : t - b_tasks) % chunks * chunk, s1 = cpu_gemm_min(p->steps, s0 + chunk);
                    if (t < b_tasks) {
                        const int64_t j = n0 + t / chunks * isa->width, width = cpu_gemm_min(isa->width, cpu_gemm_round_up(p->n - j, 16));
                        uint32_t* to = pb + (j - n0) * p->steps_padded + s0 * width;
                        isa->pack(to, width, true, &p->b, p->n, p->k, j, j + width, s0, s1);
                        if (p->b_down) { isa->shift(to, width, true, p->b_down, p->n, j, j + width, s0, s1); }
                    } else {
                        const int64_t i = m0 + (t - b_tasks) / chunks * a_block, rows = cpu_gemm_min(a_block, m1 - i);
                        uint32_t* to = pa + (i - m0) * p->a_ld + s0;
                        isa->pack(to, p->a_ld, false, &p->a, p->m, p->k, i, i + rows, s0, s1);
                        if (p->a_down) { isa->shift(to, p->a_ld, false, p->a_down, p->m, i, i + rows, s0, s1); }
                    }
                }
                cpu_gemm_end_phase(team, &me, a_tasks + b_tasks);
            }
            const int64_t across = (n1 - n0 + p->n_tile - 1) / p->n_tile, down = (m1 - m0 + p->m_tile - 1) / p->m_tile;
            const uint32_t* a = p->a_direct ? (const uint32_t*)p->a.data : pa;
            const int64_t a0 = p->a_direct ? 0 : m0;
            for (int64_t t; (t = cpu_gemm_next(team, &me, across * down)) >= 0;) {
                const int64_t i = m0 + t % down * p->m_tile, j = n0 + t / down * p->n_tile;
                cpu_gemm_tile(p, a, pb, a0, n0, i, cpu_gemm_min(i + p->m_tile, m1), j, cpu_gemm_min(j + p->n_tile, n1), tile);
            }
            if (m1 < p->m || n1 < p->n) { cpu_gemm_end_phase(team, &me, across * down); }
        }
    }
}

static inline int cpu_gemm_threads(double flops) {
#if defined(_OPENMP)
    if (omp_in_parallel() || *cpu_pool_lost()) { return 1; }
    cpu_pool_used();
    int most = omp_get_max_threads(), wanted = cpu_gemm_settings()->max_threads;
    if (wanted > 0) { most = wanted; }
    double useful = flops / 2e6 + 1.0;  // starting a thread costs about what 2 MFLOP do
    return useful < most ? (int)useful : most;
#else
    (void)flops;
    return 1;
#endif
}

// The transposed problem if D is column-major, so that D's rows are contiguous.
static inline CpuGemm cpu_gemm_row_major(const CpuGemm* g) {
    CpuGemm r = *g;
    if (g->d.col_stride == 1) { return r; }
    r.m = g->n;
    r.n = g->m;
    const CpuGemmMatrix* from[4] = {&g->b, &g->a, &g->c, &g->d};
    CpuGemmMatrix* to[4] = {&r.a, &r.b, &r.c, &r.d};
    for (int i = 0; i < 4; i++) {
        *to[i] = *from[i];
        to[i]->row_stride = from[i]->col_stride;
        to[i]->col_stride = from[i]->row_stride;
    }
    r.bias_along_n = !g->bias_along_n;
    r.a_scales = g->b_scales;
    r.b_scales = g->a_scales;
    r.a_exponents = g->b_exponents;
    r.b_exponents = g->a_exponents;
    return r;
}

// A plan for one product of the batch, D row-major, done by `threads` threads.
static inline CpuGemmPlan cpu_gemm_plan(const CpuGemm* g, int64_t index, int threads) {
    CpuGemmPlan p = {};
    const CpuGemmSettings* settings = cpu_gemm_settings();
    const int best = cpu_gemm_best_level(), level = settings->level >= 0 && settings->level < best ? settings->level : best;
    p.isa = cpu_gemm_isa(level, g->a.type != CPU_GEMM_F32 && g->b.type != CPU_GEMM_F32);
    const char* a = (const char*)g->a.data + index * g->a.batch_stride * cpu_gemm_type_size(g->a.type);
    const char* b = (const char*)g->b.data + index * g->b.batch_stride * cpu_gemm_type_size(g->b.type);
    p.a = {a, g->a.type, g->a.row_stride, g->a.col_stride};
    p.b = {b, g->b.type, g->b.col_stride, g->b.row_stride};
    p.m = g->m;
    p.n = g->n;
    p.k = g->k;
    p.steps = p.isa->bf16 ? (g->k + 1) / 2 : g->k;
    p.steps_padded = cpu_gemm_round_up(p.steps > 0 ? p.steps : 1, 16);
    p.a_direct = g->a.col_stride == 1 && (p.isa->bf16 ? g->a.type == CPU_GEMM_BF16 && g->k % 2 == 0 && g->a.row_stride % 2 == 0 : g->a.type == CPU_GEMM_F32);
    p.a_ld = !p.a_direct ? p.steps_padded + 16 : p.isa->bf16 ? g->a.row_stride / 2 : g->a.row_stride;  // + 16: rows not a power of two apart
    p.n_super = cpu_gemm_round_up(cpu_gemm_min(p.n, settings->pack_bytes / 4 / p.steps_padded + 1), 64);
    p.m_super = p.a_direct ? p.m : cpu_gemm_round_up(cpu_gemm_min(p.m, settings->pack_bytes / 4 / p.a_ld + 1), 48);
    p.m_tile = 192;
    p.n_tile = 128;
    while (threads > 1 && p.n_tile * p.m_tile > 64 * 48) {  // enough tiles that no thread waits long for the last
        const int64_t tiles = ((cpu_gemm_min(p.m, p.m_super) + p.m_tile - 1) / p.m_tile) * ((cpu_gemm_min(p.n, p.n_super) + p.n_tile - 1) / p.n_tile);
        if (tiles >= 4 * threads) { break; }
        if (p.n_tile > p.m_tile) { p.n_tile /= 2; } else { p.m_tile /= 2; }
    }
    p.m_tile = cpu_gemm_min(p.m_tile, cpu_gemm_round_up(p.m, 6));
    p.n_tile = cpu_gemm_min(p.n_tile, cpu_gemm_round_up(p.n, 16));
    p.d_size = cpu_gemm_type_size(g->d.type);
    p.c_size = cpu_gemm_type_size(g->c.type);
    p.d = (char*)g->d.data + index * g->d.batch_stride * p.d_size;
    p.c = g->beta != 0.0f ? (const char*)g->c.data + index * g->c.batch_stride * p.c_size : NULL;
    p.e = {g->alpha, g->beta, g->c.type, g->d.type, g->c.row_stride, g->d.row_stride, NULL, NULL};
    p.block_k = g->a_scales && g->scale_k < g->k ? g->scale_k : 0;
    p.block_steps = p.isa->bf16 ? p.block_k / 2 : p.block_k;
    p.a_scales = g->a_scales;
    p.b_scales = g->b_scales;
    p.a_down = g->a_down;
    p.b_down = g->b_down;
    p.how = g->wide ? CPU_GEMM_PROMOTE_WIDE : 0;
    return p;
}

static inline void cpu_gemm_own_one(const CpuGemm* g, int64_t index, int threads, const float* bias) {
    CpuGemmPlan p = cpu_gemm_plan(g, index, threads);
    if (bias) { (g->bias_along_n ? p.e.bias_cols : p.e.bias_rows) = bias; }
    uint32_t* pb = (uint32_t*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_B, (size_t)p.n_super * p.steps_padded * 4);
    uint32_t* pa = p.a_direct ? NULL : (uint32_t*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_A, (size_t)p.m_super * p.a_ld * 4);
    CpuGemmTeam team = {};
    if (threads > 1) {
#if defined(_OPENMP)
        #pragma omp parallel num_threads(threads)
        {
            #pragma omp single
            team.threads = omp_get_num_threads();
            cpu_gemm_work(&p, &team, pa, pb);
        }
#endif
    } else {
        team.threads = 1;
        cpu_gemm_work(&p, &team, pa, pb);
    }
}

// The bias of product `index` as floats, or NULL.
static inline const float* cpu_gemm_bias(const CpuGemm* g, int64_t index, float* buffer) {
    if (!g->bias) { return NULL; }
    const int64_t count = g->bias_along_n ? g->n : g->m;
    for (int64_t i = 0; i < count; i++) { buffer[i] = cpu_gemm_load(g->bias, index * g->bias_batch_stride + i, g->bias_type); }
    return buffer;
}

static inline void cpu_gemm_own(const CpuGemm* g) {
    const double flops = 2.0 * g->m * g->n * g->k;
    const size_t bias_bytes = g->bias ? (size_t)(g->bias_along_n ? g->n : g->m) * sizeof(float) : 0;
    const int threads = cpu_gemm_threads(flops * g->batch);
    if (threads > 1 && g->batch >= threads) {  // whole products a thread: no barriers
#if defined(_OPENMP)
        #pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t i = 0; i < g->batch; i++) {
            float* buffer = bias_bytes ? (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_BIAS, bias_bytes) : NULL;
            cpu_gemm_own_one(g, i, 1, cpu_gemm_bias(g, i, buffer));
        }
#endif
    } else {
        float* buffer = bias_bytes ? (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_BIAS, bias_bytes) : NULL;
        for (int64_t i = 0; i < g->batch; i++) { cpu_gemm_own_one(g, i, cpu_gemm_threads(flops), cpu_gemm_bias(g, i, buffer)); }
    }
}

#include "gemm_hopper.h"

// ----------------------------------------------------------------------------
// oneDNN's engine: blocks of D of a fixed size, each made by one thread

#if defined(GPT_WITH_ONEDNN)
#include "gemm_onednn.h"

// The block at (i, j) as oneDNN sees it. FP8 sides are widened to BF16 rows in scratch first.
static inline CpuOnednnKey cpu_gemm_onednn_key(const CpuGemmPlan* p, int64_t i, int64_t j) {
    const bool wide_a = p->a.type >= CPU_GEMM_E4M3, wide_b = p->b.type >= CPU_GEMM_E4M3;
    const int64_t ld = 2 * (p->steps_padded + 16);
    CpuOnednnKey key = {};
    key.m = cpu_gemm_min(CPU_ONEDNN_BLOCK, p->m - i);
    key.n = cpu_gemm_min(CPU_ONEDNN_BLOCK, p->n - j);
    key.k = p->k;
    key.a_row = wide_a ? ld : p->a.row_stride;
    key.a_col = wide_a ? 1 : p->a.k_stride;
    key.b_col = wide_b ? ld : p->b.row_stride;
    key.b_row = wide_b ? 1 : p->b.k_stride;
    key.bf16 = p->isa->bf16;
    return key;
}
static inline const void* cpu_gemm_onednn_side(const CpuGemmPlan* p, const CpuGemmSide* side, int64_t rows, int64_t r0, int64_t r1, int slot) {
    if (side->type < CPU_GEMM_E4M3) { return (const char*)side->data + r0 * side->row_stride * cpu_gemm_type_size(side->type); }
    const int64_t ld = p->steps_padded + 16;
    uint32_t* wide = (uint32_t*)cpu_gemm_scratch(slot, (size_t)CPU_ONEDNN_BLOCK * ld * 4);
    p->isa->pack(wide, ld, false, side, rows, p->k, r0, r1, 0, p->steps);
    return wide;
}
static inline void cpu_gemm_onednn_task(const CpuGemmPlan* p, int64_t i, int64_t j) {
    const CpuOnednnKey key = cpu_gemm_onednn_key(p, i, j);
    const void* a = cpu_gemm_onednn_side(p, &p->a, p->m, i, i + key.m, CPU_GEMM_SCRATCH_A);
    const void* b = cpu_gemm_onednn_side(p, &p->b, p->n, j, j + key.n, CPU_GEMM_SCRATCH_B);
    float* sums = (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_TILE, CPU_ONEDNN_BLOCK * CPU_ONEDNN_BLOCK * sizeof(float));
    if (!cpu_onednn_run(&key, a, b, sums)) {
        fail("build without GPT_WITH_ONEDNN", "oneDNN failed on a block of %lld x %lld x %lld", (long long)key.m, (long long)key.n, (long long)key.k);
    }
    if (p->a_scales) { cpu_gemm_promote(p, sums, key.n, sums, key.n, key.m, key.n, i, j, 0); }
    p->isa->epilogue(p->d + (i * p->e.ldd + j) * p->d_size, p->c ? p->c + (i * p->e.ldc + j) * p->c_size : NULL, sums, key.n, key.m, key.n, i, j, &p->e);
}

// Whether oneDNN is the faster engine, by shape and processor. Measured on Zen 4 (AVX-512 BF16) and with AVX2 alone: never; our own is as fast or faster
// for every shape of the models, and always for FP8. Processors with AMX multiply BF16 several times faster than AVX-512 does, and our kernels do not use
// AMX: there oneDNN takes what is large enough to pay for its call (not measured, no such machine at hand).
static inline bool cpu_gemm_prefers_onednn(const CpuGemm* g) {
    return cpu_gemm_has_amx_bf16() && g->a.type != CPU_GEMM_F32 && g->k >= 32 && g->m * g->n * g->k >= 64 * 64 * 64;
}

// False: oneDNN has nothing fast for one of the blocks; nothing was written.
static inline bool cpu_gemm_onednn(const CpuGemm* g) {
    const bool narrow_a = g->a.type != CPU_GEMM_F32, narrow_b = g->b.type != CPU_GEMM_F32;
    const CpuGemmPlan first = cpu_gemm_plan(g, 0, 1);
    if (g->a_down || first.block_k > 0) { return false; }  // it cannot shift, nor stop within K
    if (narrow_a != narrow_b || first.isa->bf16 != narrow_a || g->k < 1) { return false; }  // no BF16 instructions: oneDNN would emulate them
    const int64_t down = (g->m + CPU_ONEDNN_BLOCK - 1) / CPU_ONEDNN_BLOCK, across = (g->n + CPU_ONEDNN_BLOCK - 1) / CPU_ONEDNN_BLOCK;
    const int64_t tasks = down * across * g->batch;
    for (int corner = 0; corner < 4; corner++) {
        const CpuOnednnKey key = cpu_gemm_onednn_key(&first, corner & 1 ? (down - 1) * CPU_ONEDNN_BLOCK : 0, corner & 2 ? (across - 1) * CPU_ONEDNN_BLOCK : 0);
        if (!cpu_onednn_can(&key)) { return false; }
    }
    const int64_t bias_count = !g->bias ? 0 : g->bias_along_n ? g->n : g->m;
    float* bias = bias_count ? (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_BIAS, (size_t)(bias_count * g->batch) * sizeof(float)) : NULL;
    for (int64_t i = 0; bias && i < g->batch; i++) { cpu_gemm_bias(g, i, bias + i * bias_count); }
    const int threads = cpu_gemm_threads(2.0 * g->m * g->n * g->k * g->batch);
    (void)threads;
    #pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t t = 0; t < tasks; t++) {
        const int64_t index = t / (down * across), block = t % (down * across);
        CpuGemmPlan p = cpu_gemm_plan(g, index, 1);
        if (bias) { (g->bias_along_n ? p.e.bias_cols : p.e.bias_rows) = bias + index * bias_count; }
        cpu_gemm_onednn_task(&p, block % down * CPU_ONEDNN_BLOCK, block / down * CPU_ONEDNN_BLOCK);
    }
    return true;
}
#endif

// ----------------------------------------------------------------------------
// exponents

typedef struct { int least, most; bool nan; } CpuGemmExponents;  // over the blocks of 32 that hold anything but zeros

static inline bool cpu_gemm_block_zero(const CpuGemmSide* side, int64_t r, int64_t k0, int64_t k1) {
    uint8_t any = 0;
    for (int64_t k = k0; k < k1; k++) { any |= ((const uint8_t*)side->data)[r * side->row_stride + k * side->k_stride]; }
    return (any & 0x7f) == 0;
}
// exponents (ceil(k / 32), rows). Only blocks far below the largest are looked at; one there that holds zeros alone (its exponent is 0) does not count.
static inline CpuGemmExponents cpu_gemm_exponents(const uint8_t* exponents, const CpuGemmSide* side, int64_t rows, int64_t k) {
    CpuGemmExponents x = {255, 0, false};
    const int64_t count = (k + 31) / 32 * rows;
    for (int64_t i = 0; i < count; i++) { x.most = exponents[i] > x.most ? exponents[i] : x.most; }
    x.nan = x.most == 255;
    for (int64_t i = 0; i < count && !x.nan; i++) {
        const int e = exponents[i];
        if (e >= x.least) { continue; }
        if ((e < x.most - 50 || e < 27) && cpu_gemm_block_zero(side, i % rows, i / rows * 32, cpu_gemm_min(k, i / rows * 32 + 32))) { continue; }
        x.least = e;
    }
    if (x.least == 255 && !x.nan) { x.least = x.most = 127; }  // a matrix of zeros
    return x;
}
static inline uint8_t* cpu_gemm_down(const uint8_t* exponents, int most, int64_t count, int slot) {
    uint8_t* down = (uint8_t*)cpu_gemm_scratch(slot, (size_t)count);
    for (int64_t i = 0; i < count; i++) { const int d = most - exponents[i]; down[i] = (uint8_t)(d < 0 ? 0 : d > 120 ? 120 : d); }
    return down;
}
static inline float* cpu_gemm_powers(const uint8_t* exponents, int64_t count, int slot) {
    float* powers = (float*)cpu_gemm_scratch(slot, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        const uint32_t e = exponents[i];
        powers[i] = cpu_gemm_bits_float(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
    }
    return powers;
}

// Exponents become something the engine knows. Ordinary case: A's elements are divided by 2^(largest e - their e), B's too, and alpha takes both largest:
// all that is packed, every product and every sum that is not zero is at least 2^-126 (smallest E5M2 2^-16 times smallest E4M3 2^-9, times 2^-100), so no
// bit is lost, not even by vdpbf16ps, which flushes subnormals. Else (exponents more than 100 apart, NaN, the sum of the largest beyond 2^100): sums of 32,
// each times its power of two in double. Both give the exact product times 2^(ea + eb - 254); the order of additions differs.
static inline void cpu_gemm_mx(CpuGemm* g) {
    const CpuGemmSide a = {g->a.data, g->a.type, g->a.row_stride, g->a.col_stride}, b = {g->b.data, g->b.type, g->b.col_stride, g->b.row_stride};
    const CpuGemmExponents ea = cpu_gemm_exponents(g->a_exponents, &a, g->m, g->k), eb = cpu_gemm_exponents(g->b_exponents, &b, g->n, g->k);
    const int64_t blocks = (g->k + 31) / 32;
    const int largest = ea.most + eb.most - 254;
    if (!ea.nan && !eb.nan && ea.most - ea.least + eb.most - eb.least <= 100 && largest >= -100 && largest <= 100) {
        g->a_down = cpu_gemm_down(g->a_exponents, ea.most, blocks * g->m, CPU_GEMM_SCRATCH_MX_A);
        g->b_down = cpu_gemm_down(g->b_exponents, eb.most, blocks * g->n, CPU_GEMM_SCRATCH_MX_B);
        g->alpha = (float)ldexp((double)g->alpha, largest);
    } else {
        g->a_scales = cpu_gemm_powers(g->a_exponents, blocks * g->m, CPU_GEMM_SCRATCH_MX_A);
        g->b_scales = cpu_gemm_powers(g->b_exponents, blocks * g->n, CPU_GEMM_SCRATCH_MX_B);
        g->wide = true;
    }
}

// D = alpha * A B + beta * C + bias for every product of the batch; returns when D is written.
static inline void cpu_gemm(const CpuGemm* original) {
    if (original->m <= 0 || original->n <= 0 || original->batch <= 0) { return; }
    CpuGemm g = cpu_gemm_row_major(original);
    const bool fp8 = g.a.type >= CPU_GEMM_E4M3 && g.b.type >= CPU_GEMM_E4M3;
    if (g.a_exponents) { cpu_gemm_mx(&g); }
    if (g.hopper_accumulator && fp8 && !g.a_exponents) { cpu_gemm_hopper(&g); return; }
#if defined(GPT_WITH_ONEDNN)
    const int engine = cpu_gemm_settings()->engine;
    if ((engine == CPU_GEMM_ENGINE_ONEDNN || (engine == CPU_GEMM_ENGINE_AUTO && cpu_gemm_prefers_onednn(&g))) && cpu_gemm_onednn(&g)) { return; }
#endif
    cpu_gemm_own(&g);
}

#endif
