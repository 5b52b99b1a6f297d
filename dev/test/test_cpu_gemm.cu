/* test_cpu_gemm.cu - the CPU device's matrix products (llmc/cpu/gemm.h): both engines, every instruction set level of this machine
 *
 * Integers: exact, whatever the order of additions. Random: against double, within twice the error of a plain FP32 loop on the same inputs.
 * Bits: the same for 1, 2 and 3 threads. Everything runs with poisoned scratch and guards around D. The processor's missing levels are not tested. */
#include <cuda_runtime.h>
#include <cuda_fp8.h>
#include <vector>

#include "llmc/cpu/gemm.h"
#include "dev/test/test.h"

// ----------------------------------------------------------------------------
// problems

typedef struct {
    int m, n, k, batch;
    CpuGemmType a, b, d;
    bool a_by_col, b_by_col, d_by_col;  // stored column-major
    int pad;                            // added to every leading dimension
    float alpha, beta;
    int bias;                           // 0 none, 1 along n, 2 along m
} Shape;

static const char* const type_names[] = {"f32", "bf16", "e4m3", "e5m2"};
static std::string describe(const Shape& s) {
    char text[256];
    snprintf(text, sizeof(text), "m %d n %d k %d batch %d, a %s%s b %s%s d %s%s, pad %d alpha %g beta %g bias %d; engine %d level %d threads %d", s.m, s.n, s.k, s.batch,
             type_names[s.a], s.a_by_col ? " col" : "", type_names[s.b], s.b_by_col ? " col" : "", type_names[s.d], s.d_by_col ? " col" : "", s.pad, s.alpha, s.beta, s.bias,
             cpu_gemm_settings()->engine, cpu_gemm_settings()->level, omp_get_max_threads());
    return text;
}

struct Buffer {
    CpuGemmType type;
    int64_t row_stride, col_stride, batch_stride;
    std::vector<uint8_t> bytes;
    Buffer(int rows, int cols, int batch, CpuGemmType t, bool by_col, int pad) : type(t) {
        row_stride = by_col ? 1 : cols + pad;
        col_stride = by_col ? rows + pad : 1;
        batch_stride = (by_col ? (int64_t)(rows + pad) * cols : (int64_t)(cols + pad) * rows) + pad;
        // exactly what the last element needs, so that a sanitizer sees one byte too many
        bytes.assign((size_t)((batch - 1) * batch_stride + (int64_t)(rows - 1) * row_stride + (int64_t)(cols - 1) * col_stride + 1) * cpu_gemm_type_size(t), 0xff);
    }
    int64_t at(int b, int i, int j) const { return b * batch_stride + i * row_stride + j * col_stride; }
    float get(int b, int i, int j) const { return cpu_gemm_load(bytes.data(), at(b, i, j), type); }
    void set(int b, int i, int j, float x) {
        void* p = bytes.data() + at(b, i, j) * cpu_gemm_type_size(type);
        if (type == CPU_GEMM_F32) { memcpy(p, &x, 4); }
        else if (type == CPU_GEMM_BF16) { uint16_t h = cpu_gemm_float_to_bf16(x); memcpy(p, &h, 2); }
        else { *(uint8_t*)p = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, type == CPU_GEMM_E4M3 ? __NV_E4M3 : __NV_E5M2); }
    }
    CpuGemmMatrix matrix() { return {bytes.data(), type, row_stride, col_stride, batch_stride}; }
};

enum Fill { INTEGERS, NORMAL };
struct Problem {
    Shape s;
    Buffer a, b, c;
    std::vector<float> bias;
    Problem(const Shape& shape, Fill fill, uint64_t seed) : s(shape), a(s.m, s.k > 0 ? s.k : 1, s.batch, s.a, s.a_by_col, s.pad),
            b(s.k > 0 ? s.k : 1, s.n, s.batch, s.b, s.b_by_col, s.pad), c(s.m, s.n, s.batch, s.d, s.d_by_col, s.pad) {
        TestRng rng = {seed + test_seed()};
        auto value = [&](double limit) { return fill == INTEGERS ? (float)((int)(test_rng_u64(&rng) % (uint64_t)(2 * limit + 1)) - (int)limit) : (float)test_rng_normal(&rng); };
        for (int x = 0; x < s.batch; x++) {
            for (int i = 0; i < s.m; i++) { for (int p = 0; p < s.k; p++) { a.set(x, i, p, value(3)); } }
            for (int p = 0; p < s.k; p++) { for (int j = 0; j < s.n; j++) { b.set(x, p, j, value(3)); } }
            for (int i = 0; i < s.m; i++) { for (int j = 0; j < s.n; j++) { c.set(x, i, j, value(8)); } }
        }
        bias.resize(s.bias == 1 ? s.n : s.bias == 2 ? s.m : 0);
        for (float& x : bias) { x = value(5); }
    }
    CpuGemm gemm(Buffer* d) {
        CpuGemm g = {};
        g.m = s.m;
        g.n = s.n;
        g.k = s.k;
        g.batch = s.batch;
        g.a = a.matrix();
        g.b = b.matrix();
        g.c = c.matrix();
        g.d = d->matrix();
        g.alpha = s.alpha;
        g.beta = s.beta;
        g.bias = s.bias ? bias.data() : NULL;
        g.bias_type = CPU_GEMM_F32;
        g.bias_along_n = s.bias == 1;
        return g;
    }
    float bias_at(int i, int j) const { return s.bias == 1 ? bias[j] : s.bias == 2 ? bias[i] : 0.0f; }
    double oracle(int x, int i, int j) const {
        double sum = 0.0;
        for (int p = 0; p < s.k; p++) { sum += (double)a.get(x, i, p) * b.get(x, p, j); }
        return s.alpha * sum + (s.beta != 0.0f ? s.beta * (double)c.get(x, i, j) : 0.0) + bias_at(i, j);
    }
    float naive(int x, int i, int j) const {
        float sum = 0.0f;
        for (int p = 0; p < s.k; p++) { sum += a.get(x, i, p) * b.get(x, p, j); }
        float v = s.alpha * sum;
        if (s.beta != 0.0f) { v = v + s.beta * c.get(x, i, j); }
        v = v + bias_at(i, j);
        return s.d == CPU_GEMM_BF16 ? cpu_gemm_load(std::vector<uint16_t>{cpu_gemm_float_to_bf16(v)}.data(), 0, CPU_GEMM_BF16) : v;
    }
};

// D of a problem, separate from C, with 0xff wherever D has no element: checked to be there still.
static Buffer run(Problem* p) {
    Buffer d(p->s.m, p->s.n, p->s.batch, p->s.d, p->s.d_by_col, p->s.pad);
    CpuGemm g = p->gemm(&d);
    cpu_gemm(&g);
    std::vector<uint8_t> mine(d.bytes.size(), 0);
    const int size = cpu_gemm_type_size(d.type);
    for (int x = 0; x < p->s.batch; x++) {
        for (int i = 0; i < p->s.m; i++) { for (int j = 0; j < p->s.n; j++) { memset(&mine[d.at(x, i, j) * size], 1, size); } }
    }
    for (size_t i = 0; i < mine.size(); i++) { CHECK(mine[i] || d.bytes[i] == 0xff, "byte %zu between D's rows was written: %s", i, describe(p->s).c_str()); }
    return d;
}

static int engines(void) {
#if defined(GPT_WITH_ONEDNN)
    return 2;
#else
    return 1;
#endif
}
static void choose(int engine, int level, int threads) {
    cpu_gemm_settings()->engine = engine;
    cpu_gemm_settings()->level = level;
    cpu_gemm_settings()->poison = 0xff;
    omp_set_num_threads(threads);
}
// Calls fn for every engine and level of this build and machine.
template <class F> static void for_each_way(F fn) {
    for (int level = 0; level <= cpu_gemm_best_level(); level++) {
        choose(CPU_GEMM_ENGINE_OWN, level, 2);
        fn();
    }
    if (engines() == 2) {
        choose(CPU_GEMM_ENGINE_ONEDNN, -1, 2);
        fn();
    }
}

static const int input_types[][2] = {{CPU_GEMM_F32, CPU_GEMM_F32}, {CPU_GEMM_BF16, CPU_GEMM_BF16}, {CPU_GEMM_E4M3, CPU_GEMM_E4M3}, {CPU_GEMM_E4M3, CPU_GEMM_E5M2},
                                     {CPU_GEMM_E5M2, CPU_GEMM_E4M3}, {CPU_GEMM_F32, CPU_GEMM_BF16}};

// ----------------------------------------------------------------------------
// widening and packing

static void test_cpu_gemm_widening_all_codes(void) {
    for (int code = 0; code < 256; code++) {
        for (int t = 0; t < 2; t++) {
            const CpuGemmType type = t ? CPU_GEMM_E5M2 : CPU_GEMM_E4M3;
            const uint8_t byte = (uint8_t)code;
            const float want = cpu_fp8_to_float(byte, t ? __NV_E5M2 : __NV_E4M3), by_table = cpu_gemm_load(&byte, 0, type);
            const float by_bits = cpu_gemm_bits_float(t ? cpu_gemm_widen_bits<CPU_GEMM_E5M2>(&byte, 0) : cpu_gemm_widen_bits<CPU_GEMM_E4M3>(&byte, 0));
            CHECK(isnan(want) ? isnan(by_table) : by_table == want && signbit(by_table) == signbit(want), "%s code %02x: %g, not %g", type_names[type], code, by_table, want);
            CHECK(isnan(want) ? isnan(by_bits) : by_bits == want && signbit(by_bits) == signbit(want), "%s code %02x: %g, not %g", type_names[type], code, by_bits, want);
        }
    }
}

static void test_cpu_gemm_packing(void) {
    TestRng rng = {test_seed()};
    const int rows = 37, k = 51;  // 3 and 4 blocks, the last ones partial
    for (int level = 0; level <= cpu_gemm_best_level(); level++) {
        for (int type = 0; type < 4; type++) {
            for (int by_col = 0; by_col < 2; by_col++) {
                Buffer x(rows, k, 1, (CpuGemmType)type, by_col, 3);
                for (int i = 0; i < rows; i++) { for (int p = 0; p < k; p++) { x.set(0, i, p, (float)test_rng_normal(&rng)); } }
                const CpuGemmIsa* isa = cpu_gemm_isa(level, type != CPU_GEMM_F32);
                const int unit = isa->bf16 ? 2 : 1, steps = (k + unit - 1) / unit;
                const CpuGemmSide side = {x.bytes.data(), x.type, x.row_stride, x.col_stride};
                for (int by_step = 0; by_step < 2; by_step++) {
                    for (int r0 = 0; r0 < rows; r0 += 16) {
                        for (int s0 = 0; s0 < steps; s0 += 16) {
                            const int64_t ld = 80;
                            std::vector<uint32_t> out(80 * 80, 0xdeadbeef);
                            isa->pack(out.data(), ld, by_step, &side, rows, k, r0, rows, s0, steps);
                            for (int r = r0; r < (rows + 15) / 16 * 16; r++) {
                                for (int s = s0; s < (steps + 15) / 16 * 16; s++) {
                                    const uint32_t got = out[by_step ? (s - s0) * ld + (r - r0) : (r - r0) * ld + (s - s0)];
                                    for (int u = 0; u < unit; u++) {
                                        const float have = unit == 1 ? cpu_gemm_bits_float(got) : cpu_gemm_bits_float((got >> (16 * u)) << 16);
                                        const int p = s * unit + u;
                                        const float want = r < rows && p < k ? x.get(0, r, p) : 0.0f;
                                        CHECK(have == want, "%s %s by_col %d by_step %d row %d k %d: %g, not %g", isa->name, type_names[type], by_col, by_step, r, p, have, want);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

// ----------------------------------------------------------------------------
// exactness

static void check_exact(const Shape& s, uint64_t seed) {
    Problem p(s, INTEGERS, seed);
    Buffer want(s.m, s.n, s.batch, s.d, s.d_by_col, s.pad);
    for (int x = 0; x < s.batch; x++) {
        for (int i = 0; i < s.m; i++) { for (int j = 0; j < s.n; j++) { want.set(x, i, j, (float)p.oracle(x, i, j)); } }  // exact in float; rounded once to BF16
    }
    for_each_way([&] {
        Buffer d = run(&p);
        for (int x = 0; x < s.batch; x++) {
            for (int i = 0; i < s.m; i++) {
                for (int j = 0; j < s.n; j++) {
                    CHECK(d.get(x, i, j) == want.get(x, i, j), "(%d, %d, %d) is %g, not %g: %s", x, i, j, d.get(x, i, j), want.get(x, i, j), describe(s).c_str());
                }
            }
        }
    });
}

static void test_cpu_gemm_integers_odd_shapes(void) {
    static const int sizes[][3] = {{1, 1, 1}, {1, 17, 2}, {2, 1, 33}, {5, 16, 15}, {6, 64, 32}, {7, 65, 31}, {13, 48, 64}, {17, 130, 3}, {50, 33, 129}, {6, 5, 0}};
    for (auto& size : sizes) {
        for (auto& types : input_types) {
            for (int layout = 0; layout < 8; layout++) {
                Shape s = {size[0], size[1], size[2], 1, (CpuGemmType)types[0], (CpuGemmType)types[1], layout % 3 ? CPU_GEMM_BF16 : CPU_GEMM_F32,
                           (layout & 1) != 0, (layout & 2) != 0, (layout & 4) != 0, layout % 4 == 3 ? 0 : layout + 1, 1.0f, 0.0f, 0};
                check_exact(s, layout);
            }
        }
    }
}

// More than one K block, several tiles.
static void test_cpu_gemm_integers_blocks(void) {
    static const Shape shapes[] = {
        {200, 200, 1030, 1, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_F32, false, true, false, 0, 1.0f, 0.0f, 0},
        {70, 150, 2100, 1, CPU_GEMM_E4M3, CPU_GEMM_E4M3, CPU_GEMM_BF16, false, true, false, 0, 1.0f, 0.0f, 0},
        {150, 70, 1100, 1, CPU_GEMM_F32, CPU_GEMM_F32, CPU_GEMM_F32, true, false, true, 2, 1.0f, 0.0f, 0},
    };
    for (const Shape& s : shapes) { check_exact(s, 1); }
}

// Several super-blocks of packed B, of packed A, and of both; A in place.
static void test_cpu_gemm_integers_super_blocks(void) {
    cpu_gemm_settings()->pack_bytes = 1 << 15;
    for (auto& size : {std::pair<int, int>(200, 300), {20, 300}, {200, 20}}) {
        for (int a_by_col = 0; a_by_col < 2; a_by_col++) {
            for (auto& types : input_types) {
                Shape s = {size.first, size.second, 90, 1, (CpuGemmType)types[0], (CpuGemmType)types[1], CPU_GEMM_F32, a_by_col != 0, true, false, 0, 1.0f, 0.0f, 0};
                check_exact(s, a_by_col);
            }
        }
    }
}

static void test_cpu_gemm_integers_alpha_beta_bias(void) {
    for (int i = 0; i < 24; i++) {
        Shape s = {19, 70, 36, 1, i & 1 ? CPU_GEMM_E4M3 : CPU_GEMM_BF16, i & 1 ? CPU_GEMM_E5M2 : CPU_GEMM_BF16, i & 2 ? CPU_GEMM_BF16 : CPU_GEMM_F32,
                   false, true, (i & 4) != 0, 4, i & 8 ? 0.5f : 1.0f, i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.0f : -2.0f, i % 4 == 3 ? 0 : i % 4};
        check_exact(s, i);
    }
}

static void test_cpu_gemm_beta_in_place(void) {
    for_each_way([] {
        for (int d_by_col = 0; d_by_col < 2; d_by_col++) {
            for (int type = 0; type < 2; type++) {
                Shape s = {23, 90, 40, 2, CPU_GEMM_BF16, CPU_GEMM_BF16, (CpuGemmType)type, false, true, d_by_col != 0, 3, 1.0f, 1.0f, 1};
                Problem p(s, INTEGERS, type);
                Buffer d = run(&p), in_place = p.c;
                CpuGemm g = p.gemm(&in_place);
                g.c = g.d;
                cpu_gemm(&g);
                CHECK(in_place.bytes == d.bytes, "C == D gives other bits: %s", describe(s).c_str());
            }
        }
    });
}

// NaN in an unread C or D must not reach the result; NaN and infinity in the inputs must, and only where they belong.
static void test_cpu_gemm_non_finite(void) {
    for_each_way([] {
        Shape s = {20, 70, 33, 1, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_F32, false, true, false, 1, 1.0f, 0.0f, 0};
        Problem p(s, INTEGERS, 5);
        for (int i = 0; i < s.m; i++) { for (int j = 0; j < s.n; j++) { p.c.set(0, i, j, NAN); } }
        p.a.set(0, 7, 32, NAN);
        p.a.set(0, 11, 3, INFINITY);
        for (int k = 0; k < s.k; k++) { p.b.set(0, k, 5, 1.0f); }
        Buffer d = run(&p);
        for (int i = 0; i < s.m; i++) {
            for (int j = 0; j < s.n; j++) {
                if (i == 7) { CHECK(isnan(d.get(0, i, j)), "(%d, %d) lost its NaN: %s", i, j, describe(s).c_str()); }
                else if (i != 11) { CHECK(d.get(0, i, j) == (float)p.oracle(0, i, j), "(%d, %d) is %g: %s", i, j, d.get(0, i, j), describe(s).c_str()); }
                else if (j == 5) { CHECK(d.get(0, i, j) == INFINITY, "(%d, %d) is %g, not infinity: %s", i, j, d.get(0, i, j), describe(s).c_str()); }
            }
        }
    });
}

// What the header says of subnormals: FP32 inputs keep them; BF16 inputs keep them unless vdpbf16ps does the work, which reads them as zero.
static void test_cpu_gemm_subnormals(void) {
    for (int level = 0; level <= cpu_gemm_best_level(); level++) {
        for (int type = 0; type < 2; type++) {
            choose(CPU_GEMM_ENGINE_OWN, level, 1);
            Shape s = {3, 20, 4, 1, (CpuGemmType)type, (CpuGemmType)type, CPU_GEMM_F32, false, true, false, 0, 1.0f, 0.0f, 0};
            Problem p(s, INTEGERS, 1);
            for (int k = 0; k < 4; k++) { p.a.set(0, 1, k, 0x1p-130f); p.b.set(0, k, 2, 2.0f); }
            Buffer d = run(&p);
            const bool flushes = level == 3 && type == CPU_GEMM_BF16;
            CHECK(d.get(0, 1, 2) == (flushes ? 0.0f : 0x1p-127f), "%s level %d: %g", type_names[type], level, d.get(0, 1, 2));
        }
    }
}

// D in BF16 is the FP32 result after alpha, beta and bias, rounded once.
static void test_cpu_gemm_rounds_once(void) {
    for_each_way([] {
        Shape s = {30, 77, 200, 1, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_F32, false, true, false, 0, 1.0f, 0.0f, 0};
        Problem p(s, NORMAL, 3);
        Buffer sums = run(&p);
        Shape t = s;
        t.d = CPU_GEMM_BF16;
        t.alpha = 0.3f;
        t.beta = 0.7f;
        t.bias = 2;
        Problem q(t, NORMAL, 3);
        q.a = p.a;
        q.b = p.b;
        Buffer d = run(&q);
        for (int i = 0; i < s.m; i++) {
            for (int j = 0; j < s.n; j++) {
                float v = 0.3f * sums.get(0, i, j);
                v = v + 0.7f * q.c.get(0, i, j);
                v = v + q.bias[i];
                Buffer want(1, 1, 1, CPU_GEMM_BF16, false, 0);
                want.set(0, 0, 0, v);
                CHECK(d.get(0, i, j) == want.get(0, 0, 0), "(%d, %d) is %.9g, not %.9g: %s", i, j, d.get(0, i, j), want.get(0, 0, 0), describe(t).c_str());
            }
        }
    });
}

// ----------------------------------------------------------------------------
// accuracy

static void test_cpu_gemm_random_within_bound(void) {
    for (int k : {64, 777, 3072}) {
        for (auto& types : input_types) {
            for (int layout = 0; layout < 4; layout++) {
                Shape s = {15, 35, k, 1, (CpuGemmType)types[0], (CpuGemmType)types[1], layout == 3 ? CPU_GEMM_BF16 : CPU_GEMM_F32,
                           (layout & 1) != 0, (layout & 2) != 0, false, 0, 1.0f, 0.0f, 0};
                Problem p(s, NORMAL, k + layout);
                std::vector<double> want(s.m * s.n);
                double naive = 0.0;
                for (int i = 0; i < s.m * s.n; i++) {
                    want[i] = p.oracle(0, i / s.n, i % s.n);
                    naive = fmax(naive, fabs(p.naive(0, i / s.n, i % s.n) - want[i]));
                }
                for_each_way([&] {
                    Buffer d = run(&p);
                    double ours = 0.0;
                    for (int i = 0; i < s.m * s.n; i++) { ours = fmax(ours, fabs(d.get(0, i / s.n, i % s.n) - want[i])); }
                    CHECK(ours <= 2.0 * naive, "error %g, a plain loop has %g: %s", ours, naive, describe(s).c_str());
                });
            }
        }
    }
}

// ----------------------------------------------------------------------------
// threads, batches

static void test_cpu_gemm_same_bits_for_any_threads(void) {
    static const Shape shapes[] = {
        {200, 500, 300, 1, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_BF16, false, true, false, 0, 1.0f, 0.0f, 1},
        {64, 64, 4096, 1, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_F32, true, false, false, 0, 1.0f, 0.0f, 0},   // where oneDNN by itself splits K
        {64, 64, 4096, 1, CPU_GEMM_F32, CPU_GEMM_F32, CPU_GEMM_F32, true, false, false, 0, 1.0f, 0.0f, 0},
        {40, 64, 2048, 1, CPU_GEMM_E4M3, CPU_GEMM_E5M2, CPU_GEMM_F32, false, true, true, 0, 1.0f, 0.0f, 0},
        {257, 129, 1500, 1, CPU_GEMM_F32, CPU_GEMM_F32, CPU_GEMM_F32, false, false, true, 5, 1.0f, 1.0f, 0},
        {129, 65, 64, 24, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_BF16, false, true, false, 2, 1.0f, 0.0f, 0},
        {300, 300, 100, 2, CPU_GEMM_BF16, CPU_GEMM_BF16, CPU_GEMM_F32, false, true, false, 0, 1.0f, 0.0f, 0},
    };
    for (int engine = CPU_GEMM_ENGINE_OWN; engine <= engines(); engine++) {
        for (int level = engine == CPU_GEMM_ENGINE_OWN ? 0 : cpu_gemm_best_level(); level <= cpu_gemm_best_level(); level++) {
            for (const Shape& s : shapes) {
                Problem p(s, NORMAL, 1);
                std::vector<uint8_t> first;
                for (int threads = 1; threads <= 3; threads++) {
                    choose(engine, level, threads);
                    for (int repeat = 0; repeat < (threads == 2 ? 2 : 1); repeat++) {
                        Buffer d = run(&p);
                        if (first.empty()) { first = d.bytes; }
                        CHECK(d.bytes == first, "the bits depend on the threads: %s", describe(s).c_str());
                    }
                }
                // nor on being called inside a parallel region
                choose(engine, level, 2);
                Buffer d(s.m, s.n, s.batch, s.d, s.d_by_col, s.pad);
                CpuGemm g = p.gemm(&d);
                #pragma omp parallel num_threads(2)
                {
                    #pragma omp single
                    cpu_gemm(&g);
                }
                CHECK(d.bytes == first, "other bits inside a parallel region: %s", describe(s).c_str());
            }
        }
    }
}

// Attention: per head slices of a row-major (T, 3C) matrix, strides of the whole row.
static void test_cpu_gemm_attention_slices(void) {
    for_each_way([] {
        for (int hs : {32, 64, 80, 128}) {
            const int T = 70, NH = 3, C = NH * hs;
            TestRng rng = {test_seed()};
            std::vector<uint16_t> qkv((size_t)T * 3 * C), out((size_t)T * C, 0xffff);
            std::vector<float> scores((size_t)NH * T * T, NAN);
            for (uint16_t& x : qkv) { x = cpu_gemm_float_to_bf16((float)(int)(test_rng_u64(&rng) % 7) - 3.0f); }
            auto at = [&](int t, int part, int h, int i) { return cpu_gemm_load(qkv.data(), (int64_t)t * 3 * C + part * C + h * hs + i, CPU_GEMM_BF16); };
            CpuGemm g = {};
            g.m = g.n = T;
            g.k = hs;
            g.batch = NH;
            g.a = {qkv.data(), CPU_GEMM_BF16, 3 * C, 1, hs};
            g.b = {qkv.data() + C, CPU_GEMM_BF16, 1, 3 * C, hs};
            g.c = g.d = {scores.data(), CPU_GEMM_F32, T, 1, T * T};
            g.alpha = 0.125f;
            cpu_gemm(&g);
            std::vector<uint16_t> p(scores.size());
            for (int h = 0; h < NH; h++) {
                for (int i = 0; i < T; i++) {
                    for (int j = 0; j < T; j++) {
                        float want = 0.0f;
                        for (int x = 0; x < hs; x++) { want += at(i, 0, h, x) * at(j, 1, h, x); }
                        CHECK(scores[((size_t)h * T + i) * T + j] == want * 0.125f, "head %d (%d, %d), hs %d", h, i, j, hs);
                        p[((size_t)h * T + i) * T + j] = cpu_gemm_float_to_bf16((float)((i * 7 + j * 3 + h) % 5));
                    }
                }
            }
            CpuGemm v = {};
            v.m = T;
            v.n = hs;
            v.k = T;
            v.batch = NH;
            v.a = {p.data(), CPU_GEMM_BF16, T, 1, T * T};
            v.b = {qkv.data() + 2 * C, CPU_GEMM_BF16, 3 * C, 1, hs};
            v.c = v.d = {out.data(), CPU_GEMM_BF16, C, 1, hs};
            v.alpha = 1.0f;
            cpu_gemm(&v);
            for (int h = 0; h < NH; h++) {
                for (int i = 0; i < T; i++) {
                    for (int x = 0; x < hs; x++) {
                        float want = 0.0f;
                        for (int j = 0; j < T; j++) { want += (float)((i * 7 + j * 3 + h) % 5) * at(j, 2, h, x); }
                        CHECK(out[(size_t)i * C + h * hs + x] == cpu_gemm_float_to_bf16(want), "head %d (%d, %d), hs %d", h, i, x, hs);
                    }
                }
            }
        }
    });
}

static void test_cpu_gemm_bias_batches(void) {
    for_each_way([] {
        const int m = 9, n = 34, k = 8, batch = 5;
        std::vector<float> a(m * k * batch, 1.0f), b(k * n * batch, 2.0f), bias((n + 3) * batch), d(m * n * batch, NAN);
        for (size_t i = 0; i < bias.size(); i++) { bias[i] = (float)i; }
        CpuGemm g = {};
        g.m = m;
        g.n = n;
        g.k = k;
        g.batch = batch;
        g.a = {a.data(), CPU_GEMM_F32, k, 1, m * k};
        g.b = {b.data(), CPU_GEMM_F32, n, 1, k * n};
        g.c = g.d = {d.data(), CPU_GEMM_F32, n, 1, m * n};
        g.alpha = 1.0f;
        g.bias = bias.data();
        g.bias_type = CPU_GEMM_F32;
        g.bias_along_n = true;
        g.bias_batch_stride = n + 3;
        cpu_gemm(&g);
        for (int x = 0; x < batch; x++) {
            for (int i = 0; i < m; i++) { for (int j = 0; j < n; j++) { CHECK(d[(x * m + i) * n + j] == 16.0f + x * (n + 3) + j, "batch %d (%d, %d)", x, i, j); } }
        }
    });
}

// ----------------------------------------------------------------------------
// scales of rows and columns, of blocks along K, and exponents

enum ScaleKind { OUTER, BLOCK128, EXPONENTS };
static const char* const kind_names[] = {"one scale a row and column", "a scale every 128", "an exponent every 32"};
struct Scaled : Problem {
    ScaleKind kind;
    int scale_k, blocks;
    std::vector<float> a_scales, b_scales;        // what an oracle multiplies with, also for exponents; [block][row or column]
    std::vector<uint8_t> a_exponents, b_exponents;
    // powers: scales are powers of two, 2^-2 to 2^2
    Scaled(const Shape& shape, ScaleKind kind_, Fill fill, bool powers, uint64_t seed) : Problem(shape, fill, seed), kind(kind_) {
        TestRng rng = {seed * 77 + test_seed()};
        scale_k = kind == OUTER ? s.k : kind == BLOCK128 ? 128 : 32;
        blocks = (s.k + scale_k - 1) / scale_k;
        auto make = [&](int count, std::vector<float>* scales, std::vector<uint8_t>* exponents) {
            for (int i = 0; i < count * blocks; i++) {
                const int e = (int)(test_rng_u64(&rng) % 5) - 2;
                scales->push_back(powers || kind == EXPONENTS ? ldexpf(1.0f, e) : 0.01f + (float)test_rng_uniform(&rng));
                exponents->push_back((uint8_t)(e + 127));
            }
        };
        make(s.m, &a_scales, &a_exponents);
        make(s.n, &b_scales, &b_exponents);
    }
    CpuGemm gemm(Buffer* d) {
        CpuGemm g = Problem::gemm(d);
        g.scale_k = scale_k;
        if (kind == EXPONENTS) { g.a_exponents = a_exponents.data(); g.b_exponents = b_exponents.data(); }
        else { g.a_scales = a_scales.data(); g.b_scales = b_scales.data(); }
        return g;
    }
    Buffer run(void) {
        Buffer d(s.m, s.n, 1, s.d, s.d_by_col, s.pad);
        CpuGemm g = gemm(&d);
        cpu_gemm(&g);
        return d;
    }
    double oracle(int i, int j) const {
        double sum = 0.0;
        for (int k = 0; k < s.k; k++) { sum += (double)a.get(0, i, k) * b.get(0, k, j) * a_scales[k / scale_k * s.m + i] * b_scales[k / scale_k * s.n + j]; }
        return s.alpha * sum + (s.beta != 0.0f ? s.beta * (double)c.get(0, i, j) : 0.0) + bias_at(i, j);
    }
    // the definition, in FP32
    float naive(int i, int j) const {
        float sum = 0.0f;
        for (int b0 = 0; b0 < blocks; b0++) {
            float part = 0.0f;
            const float r = a_scales[b0 * s.m + i], q = b_scales[b0 * s.n + j];
            for (int k = b0 * scale_k; k < s.k && k < (b0 + 1) * scale_k; k++) {
                const float product = a.get(0, i, k) * b.get(0, k, j);
                if (kind == EXPONENTS) { sum += product * (r * q); } else { part += product; }
            }
            if (kind != EXPONENTS) { sum += part * (r * q); }
        }
        float v = s.alpha * sum;
        if (s.beta != 0.0f) { v = v + s.beta * c.get(0, i, j); }
        return v + bias_at(i, j);
    }
};
static std::string describe(const Scaled& p) { return std::string(kind_names[p.kind]) + ", " + describe(p.s); }

static void check_scaled_exact(const Shape& s, ScaleKind kind, uint64_t seed) {
    Scaled p(s, kind, INTEGERS, true, seed);
    Buffer want(s.m, s.n, 1, s.d, s.d_by_col, s.pad);
    for (int i = 0; i < s.m; i++) { for (int j = 0; j < s.n; j++) { want.set(0, i, j, (float)p.oracle(i, j)); } }
    for_each_way([&] {
        Buffer d = p.run();
        CHECK(d.bytes == want.bytes, "other bits than the exact product: %s", describe(p).c_str());
    });
}

// Partial last blocks, several K blocks (512 steps), every layout, C, bias, alpha; scales are powers of two, so that nothing is rounded before D.
static void test_cpu_gemm_scaled_integers(void) {
    static const int sizes[][3] = {{1, 1, 16}, {17, 5, 32}, {6, 64, 128}, {20, 70, 144}, {13, 130, 400}, {70, 33, 1136}, {14, 20, 2160}};
    for (int kind = OUTER; kind <= EXPONENTS; kind++) {
        int i = 0;
        for (auto& size : sizes) {
            for (int layout = 0; layout < 8; layout++, i++) {
                Shape s = {size[0], size[1], size[2], 1, i % 3 == 1 ? CPU_GEMM_E5M2 : CPU_GEMM_E4M3, i % 3 == 2 ? CPU_GEMM_E5M2 : CPU_GEMM_E4M3, i % 2 ? CPU_GEMM_BF16 : CPU_GEMM_F32,
                           (layout & 1) != 0, (layout & 2) == 0, (layout & 4) != 0, i % 5, i % 4 == 3 ? 0.5f : 1.0f, (float)(i % 3) - 1.0f, i % 7 < 3 ? i % 7 : 0};
                check_scaled_exact(s, (ScaleKind)kind, i);
            }
        }
    }
}

// Several super-blocks of packed A and B.
static void test_cpu_gemm_scaled_super_blocks(void) {
    cpu_gemm_settings()->pack_bytes = 1 << 14;
    for (int kind = OUTER; kind <= EXPONENTS; kind++) {
        for (auto& size : {std::pair<int, int>(100, 150), {20, 150}, {100, 20}}) {
            for (int by_col = 0; by_col < 2; by_col++) {
                Shape s = {size.first, size.second, 272, 1, CPU_GEMM_E4M3, CPU_GEMM_E4M3, CPU_GEMM_F32, by_col != 0, by_col == 0, by_col != 0, 0, 1.0f, 0.0f, 0};
                check_scaled_exact(s, (ScaleKind)kind, by_col);
            }
        }
    }
}

static void test_cpu_gemm_scaled_within_bound(void) {
    for (int kind = OUTER; kind <= EXPONENTS; kind++) {
        for (int k : {144, 800, 3072}) {
            for (int layout = 0; layout < 2; layout++) {
                Shape s = {15, 35, k, 1, CPU_GEMM_E4M3, layout ? CPU_GEMM_E5M2 : CPU_GEMM_E4M3, CPU_GEMM_F32, false, true, layout != 0, 0, 1.0f, layout ? 1.0f : 0.0f, layout};
                Scaled p(s, (ScaleKind)kind, NORMAL, false, k + layout);
                std::vector<double> want(s.m * s.n);
                double naive = 0.0;
                for (int i = 0; i < s.m * s.n; i++) {
                    want[i] = p.oracle(i / s.n, i % s.n);
                    naive = fmax(naive, fabs(p.naive(i / s.n, i % s.n) - want[i]));
                }
                for_each_way([&] {
                    Buffer d = p.run();
                    double ours = 0.0;
                    for (int i = 0; i < s.m * s.n; i++) { ours = fmax(ours, fabs(d.get(0, i / s.n, i % s.n) - want[i])); }
                    CHECK(ours <= 2.0 * naive, "error %g, the definition in FP32 has %g: %s", ours, naive, describe(p).c_str());
                });
            }
        }
    }
}

static void test_cpu_gemm_scaled_same_bits_for_any_threads(void) {
    for (int kind = OUTER; kind <= EXPONENTS; kind++) {
        for (int level = 0; level <= cpu_gemm_best_level(); level++) {
            for (int nan = 0; nan <= (kind == EXPONENTS); nan++) {  // an exponent of NaN: the other way
                Shape s = {100, 150, 1136, 1, CPU_GEMM_E4M3, CPU_GEMM_E4M3, CPU_GEMM_BF16, false, true, true, 0, 1.0f, 1.0f, 1};
                Scaled p(s, (ScaleKind)kind, NORMAL, false, 1);
                if (nan) { p.a_exponents[0] = 255; }
                std::vector<uint8_t> first;
                for (int threads = 1; threads <= 3; threads++) {
                    choose(CPU_GEMM_ENGINE_OWN, level, threads);
                    Buffer d = p.run();
                    if (first.empty()) { first = d.bytes; }
                    CHECK(d.bytes == first, "the bits depend on the threads: %s", describe(p).c_str());
                }
            }
        }
    }
}

// Equal scales are a scalar: OUTER gives the bits of alpha.
static void test_cpu_gemm_outer_equal_scales_are_alpha(void) {
    for_each_way([] {
        Shape s = {30, 70, 700, 1, CPU_GEMM_E4M3, CPU_GEMM_E5M2, CPU_GEMM_BF16, false, true, true, 0, 1.0f, 1.0f, 1};
        Scaled p(s, OUTER, NORMAL, false, 4);
        const float r = 0.013f, q = 0.37f;
        for (float& x : p.a_scales) { x = r; }
        for (float& x : p.b_scales) { x = q; }
        Buffer outer = p.run(), scalar(s.m, s.n, 1, s.d, s.d_by_col, s.pad);
        CpuGemm g = p.Problem::gemm(&scalar);
        g.alpha = r * q;
        cpu_gemm(&g);
        CHECK(outer.bytes == scalar.bytes, "other bits than alpha's: %s", describe(p).c_str());
    });
}

// Packing with exponents: every code, every shift that is allowed, both layouts.
static void test_cpu_gemm_shift(void) {
    for (int level = 0; level <= cpu_gemm_best_level(); level++) {
        const CpuGemmIsa* isa = cpu_gemm_isa(level, true);
        for (int type = CPU_GEMM_E4M3; type <= CPU_GEMM_E5M2; type++) {
            const int rows = 35, k = 272, unit = isa->bf16 ? 2 : 1, steps = k / unit, ld = 320;
            Buffer x(rows, k, 1, (CpuGemmType)type, false, 0);
            for (int i = 0; i < rows * k; i++) { x.bytes[i] = (uint8_t)(i * 37 + i / 256); }
            std::vector<uint8_t> down((k + 31) / 32 * rows);
            for (size_t i = 0; i < down.size(); i++) { down[i] = (uint8_t)(i * 7 % 101); }
            const CpuGemmSide side = {x.bytes.data(), x.type, k, 1};
            for (int by_step = 0; by_step < 2; by_step++) {
                std::vector<uint32_t> out(320 * 320, 0xdeadbeef);
                isa->pack(out.data(), ld, by_step, &side, rows, k, 0, rows, 0, steps);
                isa->shift(out.data(), ld, by_step, down.data(), rows, 0, rows, 0, steps);
                for (int r = 0; r < rows; r++) {
                    for (int q = 0; q < k; q++) {
                        const uint32_t got = out[by_step ? q / unit * ld + r : r * ld + q / unit];
                        const float have = unit == 1 ? cpu_gemm_bits_float(got) : cpu_gemm_bits_float((got >> (16 * (q % 2))) << 16), code = x.get(0, r, q);
                        const float want = ldexpf(code, -(int)down[q / 32 * rows + r]);
                        CHECK(isnan(want) ? isnan(have) : have == want && signbit(have) == signbit(want), "%s %s by_step %d row %d k %d: %g / 2^%d is %g", isa->name, type_names[type],
                              by_step, r, q, code, down[q / 32 * rows + r], have);
                    }
                }
            }
        }
    }
}

// Exponents to both ends. Row i of A holds integers in block i % 3 alone, so that D is one exact dot product times a power of two, rounded once.
static void test_cpu_gemm_exponents_to_the_ends(void) {
    static const struct { int a_low, a_high, b_low, b_high, idle; bool shifts; } table[] = {  // idle: the exponent of A's blocks of zeros
        {117, 137, 117, 137, 0, true}, {90, 140, 100, 150, 0, true}, {120, 124, 110, 114, 127, true}, {3, 40, 190, 220, 0, true}, {200, 240, 10, 40, 0, true},
        {0, 5, 240, 254, 0, true}, {60, 200, 120, 130, 0, false}, {20, 230, 20, 230, 0, false}, {0, 20, 0, 20, 0, false}, {248, 254, 2, 30, 0, true}, {248, 254, 100, 127, 0, false},
        {254, 254, 254, 254, 0, false}, {128, 128, 120, 130, 0, true}, {120, 130, 120, 130, 254, false}, {0, 254, 0, 254, 17, false},
    };
    int subnormal = 0, infinite = 0;
    for (auto& row : table) {
        for_each_way([&] {
            Shape s = {48, 40, 96, 1, CPU_GEMM_E4M3, CPU_GEMM_E4M3, CPU_GEMM_F32, false, true, true, 0, 1.0f, 0.0f, 0};
            Scaled p(s, EXPONENTS, INTEGERS, true, 9);
            TestRng rng = {test_seed()};
            auto between = [&](int low, int high) { return (uint8_t)(low + (int)(test_rng_u64(&rng) % (uint64_t)(high - low + 1))); };
            for (int b = 0; b < 3; b++) {
                for (int i = 0; i < s.m; i++) { p.a_exponents[b * s.m + i] = b == i % 3 ? between(row.a_low, row.a_high) : (uint8_t)row.idle; }
                for (int j = 0; j < s.n; j++) { p.b_exponents[b * s.n + j] = between(row.b_low, row.b_high); }
                for (int i = 0; i < s.m; i++) { for (int k = b * 32; b != i % 3 && k < b * 32 + 32; k++) { p.a.set(0, i, k, k % 2 ? 0.0f : -0.0f); } }
            }
            Buffer d(s.m, s.n, 1, s.d, s.d_by_col, s.pad);
            CpuGemm g = p.gemm(&d), seen = cpu_gemm_row_major(&g);
            cpu_gemm_mx(&seen);
            CHECK((seen.a_down != NULL) == row.shifts && seen.wide == !row.shifts, "A %d to %d, B %d to %d: elements are%s shifted", row.a_low, row.a_high, row.b_low, row.b_high,
                  seen.a_down ? "" : " not");
            cpu_gemm(&g);
            for (int i = 0; i < s.m; i++) {
                for (int j = 0; j < s.n; j++) {
                    double dot = 0.0;
                    for (int k = i % 3 * 32; k < i % 3 * 32 + 32; k++) { dot += (double)p.a.get(0, i, k) * p.b.get(0, k, j); }
                    const int e = p.a_exponents[i % 3 * s.m + i] + p.b_exponents[i % 3 * s.n + j] - 254;
                    const float want = (float)ldexp(dot, e), got = d.get(0, i, j);
                    CHECK(got == want, "(%d, %d) is %.9g, not %.9g = %g * 2^%d: A %d to %d, B %d to %d, %s", i, j, got, want, dot, e, row.a_low, row.a_high, row.b_low, row.b_high,
                          describe(p).c_str());
                    subnormal += want != 0.0f && fabsf(want) < 0x1p-126f;
                    infinite += isinf(want);
                }
            }
        });
    }
    CHECK(subnormal > 0 && infinite > 0, "%d subnormal and %d infinite results: the test shows less than it says", subnormal, infinite);
}

// NaN and infinities, among the codes and as an exponent, reach the rows they belong to and no others; so do NaN and infinite scales.
static void test_cpu_gemm_scaled_non_finite(void) {
    for (int kind = OUTER; kind <= EXPONENTS; kind++) {
        for (int way = 0; way < 3; way++) {  // a code, a scale, both
            for_each_way([&] {
                Shape s = {20, 70, 272, 1, CPU_GEMM_E5M2, CPU_GEMM_E4M3, CPU_GEMM_F32, false, true, true, 1, 1.0f, 0.0f, 0};
                Scaled p(s, (ScaleKind)kind, INTEGERS, true, 5);
                Buffer clean = p.run();
                const int last = (p.blocks - 1) * s.m;
                if (way != 1) { p.a.set(0, 7, 271, NAN); p.a.bytes[p.a.at(0, 11, 3)] = 0x7c; }  // conversion would saturate
                if (way != 0) { p.a_scales[last + 3] = NAN; p.a_exponents[last + 3] = 255; }
                for (int k = 0; k < s.k; k++) { p.b.set(0, k, 5, 1.0f); }
                Buffer d = p.run();
                for (int i = 0; i < s.m; i++) {
                    for (int j = 0; j < s.n; j++) {
                        if (j == 5) { if (way != 1 && i == 11) { CHECK(d.get(0, i, j) == INFINITY, "row 11 is %g, not infinite: %s", d.get(0, i, j), describe(p).c_str()); } }
                        else if ((way != 1 && i == 7) || (way != 0 && i == 3)) { CHECK(isnan(d.get(0, i, j)), "(%d, %d) lost its NaN: %s", i, j, describe(p).c_str()); }
                        else if (way == 1 || i != 11) { CHECK(d.get(0, i, j) == clean.get(0, i, j), "(%d, %d) is %g: %s", i, j, d.get(0, i, j), describe(p).c_str()); }
                    }
                }
            });
        }
    }
}

// ----------------------------------------------------------------------------
// Hopper's accumulator, against the model of gemm_hopper.h written with 64-bit integers

static double cut(double x, int fraction_bits) {  // toward zero, to so many bits after the leading one
    if (x == 0.0) { return 0.0; }
    const int e = ilogb(x);
    return ldexp(trunc(ldexp(x, fraction_bits - e)), e - fraction_bits);
}
static double hopper_dot(const Problem& p, int x, int i, int j, int from, int to) {  // over k in [from, to)
    auto exponent = [](float v, CpuGemmType t) { const int least = t == CPU_GEMM_E4M3 ? -6 : -14, e = ilogb(v); return e < least ? least : e; };
    double c = 0.0;
    for (int k0 = from; k0 < to; k0 += 32) {
        int top = -10000;
        if (c != 0.0) { top = ilogb(c); }
        for (int k = k0; k < k0 + 32 && k < to; k++) {
            const float a = p.a.get(x, i, k), b = p.b.get(x, k, j);
            if (a != 0.0f && b != 0.0f) { const int e = exponent(a, p.s.a) + exponent(b, p.s.b); top = e > top ? e : top; }
        }
        double sum = trunc(ldexp(c, 13 - top));
        for (int k = k0; k < k0 + 32 && k < to; k++) { sum += trunc(ldexp((double)p.a.get(x, i, k) * p.b.get(x, k, j), 13 - top)); }
        c = cut(ldexp(sum, top - 13), 13);
    }
    return c;
}

static void test_cpu_gemm_hopper_model(void) {
    choose(CPU_GEMM_ENGINE_OWN, -1, 2);
    double difference = 0.0;
    for (auto& types : {std::pair<CpuGemmType, CpuGemmType>(CPU_GEMM_E4M3, CPU_GEMM_E4M3), {CPU_GEMM_E4M3, CPU_GEMM_E5M2}, {CPU_GEMM_E5M2, CPU_GEMM_E4M3}}) {
        for (int k : {16, 48, 1024}) {
            for (int scale = -12; scale <= 8; scale += 10) {  // -12: subnormal codes
                Shape s = {9, 37, k, 1, types.first, types.second, CPU_GEMM_F32, false, true, k == 48, 0, 1.0f, 0.0f, 0};
                Problem p(s, NORMAL, k);
                TestRng rng = {test_seed()};
                for (int i = 0; i < s.m; i++) { for (int q = 0; q < k; q++) { p.a.set(0, i, q, ldexpf((float)test_rng_normal(&rng), scale)); } }
                Buffer plain = run(&p), d(s.m, s.n, 1, s.d, s.d_by_col, 0);
                CpuGemm g = p.gemm(&d);
                g.hopper_accumulator = true;
                cpu_gemm(&g);
                for (int i = 0; i < s.m; i++) {
                    for (int j = 0; j < s.n; j++) {
                        const double want = hopper_dot(p, 0, i, j, 0, k), got = d.get(0, i, j), exact = plain.get(0, i, j);
                        CHECK(got == want, "(%d, %d) is %.9g, not %.9g: scale %d, %s", i, j, got, want, scale, describe(s).c_str());
                        difference = fmax(difference, fabs(got - exact) / (fabs(exact) + ldexp(1.0, scale)));
                    }
                }
            }
        }
    }
    CHECK(difference > 1e-4 && difference < 1e-1, "the truncated accumulator differs from FP32 by %g", difference);
}

static void test_cpu_gemm_hopper_exact_integers_and_epilogue(void) {
    choose(CPU_GEMM_ENGINE_OWN, -1, 2);
    Shape s = {20, 40, 96, 2, CPU_GEMM_E4M3, CPU_GEMM_E4M3, CPU_GEMM_BF16, false, true, false, 2, 0.5f, 1.0f, 1};
    Problem p(s, INTEGERS, 1);  // 96 * 9 < 2^13: nothing is cut
    Buffer want = run(&p), d(s.m, s.n, s.batch, s.d, s.d_by_col, s.pad);
    CpuGemm g = p.gemm(&d);
    g.hopper_accumulator = true;
    cpu_gemm(&g);
    CHECK(d.bytes == want.bytes, "small integers differ from the FP32 path: %s", describe(s).c_str());
    p.a.set(0, 3, 5, NAN);
    cpu_gemm(&g);
    CHECK(isnan(d.get(0, 3, 0)) && d.get(0, 4, 0) == want.get(0, 4, 0), "NaN in row 3 gives %g there and %g in row 4", d.get(0, 3, 0), d.get(0, 4, 0));
}

// Scales of blocks: the truncated accumulator starts anew every 128 and is promoted; of rows and columns: it runs through. Integers stay exact.
static void test_cpu_gemm_hopper_scaled(void) {
    choose(CPU_GEMM_ENGINE_OWN, -1, 2);
    for (int kind = OUTER; kind <= BLOCK128; kind++) {
        for (int k : {96, 400, 1024}) {
            Shape s = {9, 37, k, 1, CPU_GEMM_E4M3, CPU_GEMM_E4M3, CPU_GEMM_F32, false, true, false, 0, 1.0f, 0.0f, 0};
            Scaled p(s, (ScaleKind)kind, NORMAL, false, k);
            Buffer d(s.m, s.n, 1, s.d, s.d_by_col, 0);
            CpuGemm g = p.gemm(&d);
            g.hopper_accumulator = true;
            cpu_gemm(&g);
            for (int i = 0; i < s.m; i++) {
                for (int j = 0; j < s.n; j++) {
                    float want = 0.0f;
                    for (int b = 0; b < p.blocks; b++) {
                        const float part = (float)hopper_dot(p, 0, i, j, b * p.scale_k, k < (b + 1) * p.scale_k ? k : (b + 1) * p.scale_k);
                        const float scaled = part * (p.a_scales[b * s.m + i] * p.b_scales[b * s.n + j]);
                        want = b ? want + scaled : scaled;
                    }
                    CHECK(d.get(0, i, j) == want, "(%d, %d) is %.9g, not %.9g: %s", i, j, d.get(0, i, j), want, describe(p).c_str());
                }
            }
        }
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"cpu_gemm_widening_all_codes", test_cpu_gemm_widening_all_codes, QUICK},
        {"cpu_gemm_packing", test_cpu_gemm_packing, QUICK},
        {"cpu_gemm_integers_odd_shapes", test_cpu_gemm_integers_odd_shapes, QUICK},
        {"cpu_gemm_integers_blocks", test_cpu_gemm_integers_blocks, QUICK},
        {"cpu_gemm_integers_super_blocks", test_cpu_gemm_integers_super_blocks, QUICK},
        {"cpu_gemm_integers_alpha_beta_bias", test_cpu_gemm_integers_alpha_beta_bias, QUICK},
        {"cpu_gemm_beta_in_place", test_cpu_gemm_beta_in_place, QUICK},
        {"cpu_gemm_non_finite", test_cpu_gemm_non_finite, QUICK},
        {"cpu_gemm_subnormals", test_cpu_gemm_subnormals, QUICK},
        {"cpu_gemm_rounds_once", test_cpu_gemm_rounds_once, QUICK},
        {"cpu_gemm_random_within_bound", test_cpu_gemm_random_within_bound, QUICK},
        {"cpu_gemm_same_bits_for_any_threads", test_cpu_gemm_same_bits_for_any_threads, QUICK},
        {"cpu_gemm_attention_slices", test_cpu_gemm_attention_slices, QUICK},
        {"cpu_gemm_bias_batches", test_cpu_gemm_bias_batches, QUICK},
        {"cpu_gemm_scaled_integers", test_cpu_gemm_scaled_integers, QUICK},
        {"cpu_gemm_scaled_super_blocks", test_cpu_gemm_scaled_super_blocks, QUICK},
        {"cpu_gemm_scaled_within_bound", test_cpu_gemm_scaled_within_bound, QUICK},
        {"cpu_gemm_scaled_same_bits_for_any_threads", test_cpu_gemm_scaled_same_bits_for_any_threads, QUICK},
        {"cpu_gemm_outer_equal_scales_are_alpha", test_cpu_gemm_outer_equal_scales_are_alpha, QUICK},
        {"cpu_gemm_shift", test_cpu_gemm_shift, QUICK},
        {"cpu_gemm_exponents_to_the_ends", test_cpu_gemm_exponents_to_the_ends, QUICK},
        {"cpu_gemm_scaled_non_finite", test_cpu_gemm_scaled_non_finite, QUICK},
        {"cpu_gemm_hopper_model", test_cpu_gemm_hopper_model, QUICK},
        {"cpu_gemm_hopper_exact_integers_and_epilogue", test_cpu_gemm_hopper_exact_integers_and_epilogue, QUICK},
        {"cpu_gemm_hopper_scaled", test_cpu_gemm_hopper_scaled, QUICK},
    };
    return TEST_MAIN(tests);
}
