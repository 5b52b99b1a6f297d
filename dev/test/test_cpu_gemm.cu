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
// Hopper's accumulator, against the model of gemm_hopper.h written with 64-bit integers

static double cut(double x, int fraction_bits) {  // toward zero, to so many bits after the leading one
    if (x == 0.0) { return 0.0; }
    const int e = ilogb(x);
    return ldexp(trunc(ldexp(x, fraction_bits - e)), e - fraction_bits);
}
static double hopper_dot(const Problem& p, int x, int i, int j) {
    auto exponent = [](float v, CpuGemmType t) { const int least = t == CPU_GEMM_E4M3 ? -6 : -14, e = ilogb(v); return e < least ? least : e; };
    double c = 0.0;
    for (int k0 = 0; k0 < p.s.k; k0 += 32) {
        int top = -10000;
        if (c != 0.0) { top = ilogb(c); }
        for (int k = k0; k < k0 + 32 && k < p.s.k; k++) {
            const float a = p.a.get(x, i, k), b = p.b.get(x, k, j);
            if (a != 0.0f && b != 0.0f) { const int e = exponent(a, p.s.a) + exponent(b, p.s.b); top = e > top ? e : top; }
        }
        double sum = trunc(ldexp(c, 13 - top));
        for (int k = k0; k < k0 + 32 && k < p.s.k; k++) { sum += trunc(ldexp((double)p.a.get(x, i, k) * p.b.get(x, k, j), 13 - top)); }
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
                        const double want = hopper_dot(p, 0, i, j), got = d.get(0, i, j), exact = plain.get(0, i, j);
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
        {"cpu_gemm_hopper_model", test_cpu_gemm_hopper_model, QUICK},
        {"cpu_gemm_hopper_exact_integers_and_epilogue", test_cpu_gemm_hopper_exact_integers_and_epilogue, QUICK},
    };
    return TEST_MAIN(tests);
}
