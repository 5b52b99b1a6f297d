/* test_kernels_matmul.cu - products through cuBLASLt: shapes, transposes, batches, FP8 with descales, the passes of a linear layer, plans and refusals
 *
 * Oracle: double, from the values that the operands hold. Naive version: one dot product after the other in float (oracle.h: naive_dot), one rounding.
 * A fused GELU and the same by two kernels are held to the same oracle and bound; the naive version rounds between product and GELU, as the two do.
 * Integer-valued operands with k * max|a| * max|b| <= 2^13 must be exact on every device. What lies between the rows of a matrix is NaN and stays untouched.
 * Covers: llmc/matmul.cuh
 */
#include "dev/test/oracle.h"
#include "llmc/fp8_quantize.cuh"
#include "llmc/gelu.cuh"
#include "llmc/matmul.cuh"

// ---------------------------------------------------------------------------- tensors of any element type

static Fp8Format dtype_format(int d) { return d == DTYPE_E4M3 ? FP8_E4M3 : FP8_E5M2; }
static float dtype_round(int d, float x) {
    if (d == DTYPE_F32) { return x; }
    if (d == DTYPE_BF16) { return ref_round_bf16(x); }
    bool saturated;
    return (float)ref_decode(dtype_format(d), ref_encode(ref_table(dtype_format(d)), x, &saturated));
}
static void* put_dtype(Lab* lab, int d, const Floats& v) {
    if (d == DTYPE_F32) { return lab_put<float>(lab, v); }
    if (d == DTYPE_BF16) { return lab_put<bf16>(lab, v); }
    bool saturated;
    std::vector<uint8_t> codes(v.size());
    for (size_t i = 0; i < v.size(); i++) { codes[i] = (uint8_t)ref_encode(ref_table(dtype_format(d)), v[i], &saturated); }
    return lab_upload(lab, codes);
}
static Floats get_dtype(Lab* lab, int d, const void* p, size_t n) {
    return d == DTYPE_F32 ? lab_get(lab, (const float*)p, n) : lab_get(lab, (const bf16*)p, n);
}

// batch matrices (rows,cols) in rows of ld elements; what lies between is NaN
typedef struct { Floats values; size_t rows, cols, ld, stride; } Stored;
static Stored stored(int dtype, Input input, size_t rows, size_t cols, size_t ld, size_t batch, size_t stride, uint64_t seed, float scale) {
    Stored m = {Floats((batch - 1) * stride + (rows - 1) * ld + cols, NAN), rows, cols, ld, stride};
    Floats v = make_input<float>(input, batch * rows * cols, seed, scale);
    for (size_t b = 0; b < batch; b++) {
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < cols; j++) { m.values[b * stride + i * ld + j] = dtype_round(dtype, v[(b * rows + i) * cols + j]); }
        }
    }
    return m;
}

// ---------------------------------------------------------------------------- one product

typedef struct { int m, n, k; } Size;

// The result of one product against double and the naive version. a_descale, b_descale 0: none.
static void check_gemm(Lab* lab, GemmShape s, Input input, uint64_t seed, float a_descale, float b_descale, Earned* e) {
    const bool f32 = s.a == DTYPE_F32, fp8 = dtype_is_fp8((DType)s.a);
    Stored a = stored(s.a, input, s.a_t ? s.k : s.m, s.a_t ? s.m : s.k, s.lda, s.batch, s.stride_a, seed, 1.0f);
    Stored b = stored(s.b, input, s.b_t ? s.k : s.n, s.b_t ? s.n : s.k, s.ldb, s.batch, s.stride_b, seed + 1, 1.0f);
    Stored d = stored(s.d, input == INPUT_INTEGER ? INPUT_INTEGER : INPUT_RANDOM, s.m, s.n, s.ldd, s.batch, s.stride_d, seed + 2, 1.0f);
    Floats bias = make_input<bf16>(input == INPUT_INTEGER ? INPUT_INTEGER : INPUT_RANDOM, s.n, seed + 3);
    void *d_a = put_dtype(lab, s.a, a.values), *d_b = put_dtype(lab, s.b, b.values), *d_d = put_dtype(lab, s.d, d.values);
    gemm(&lab->dev, "gemm test", &s, d_d, d_a, d_b, a_descale != 0 ? lab_upload(lab, Floats(1, a_descale)) : NULL,
        b_descale != 0 ? lab_upload(lab, Floats(1, b_descale)) : NULL,
         s.bias ? put_dtype(lab, s.d, bias) : NULL);
    Floats got = get_dtype(lab, s.d, d_d, d.values.size()), result((size_t)s.m * s.n), lowp(result.size());
    Doubles cpu(result.size());
    const double descale = (a_descale != 0 ? (double)a_descale : 1.0) * (b_descale != 0 ? (double)b_descale : 1.0);
    const int bits = naive_sum_bits(&lab->dev, f32, fp8, s.fast_accum != 0);
    // denormal BF16 operands may count as zero (x86's dot products flush them), which is no error in a result of ordinary size: smaller ones count as of this
    const double flushed = (double)FLT_MIN * s.k * (input == INPUT_EXTREME ? 1e5 : 1) / e->floor;
    char what[256];
    for (int batch = 0; batch < s.batch; batch++) {
        for (int i = 0; i < s.m; i++) {
            for (int j = 0; j < s.n; j++) {
                const float *pa = a.values.data() + batch * s.stride_a + (s.a_t ? i : (size_t)i * s.lda),
                    *pb = b.values.data() + batch * s.stride_b + (s.b_t ? j : (size_t)j * s.ldb);
                const size_t sa = s.a_t ? s.lda : 1, sb = s.b_t ? s.ldb : 1, at = batch * s.stride_d + (size_t)i * s.ldd + j, to = (size_t)i * s.n + j;
                double sum = 0;
                for (int k = 0; k < s.k; k++) { sum += (double)pa[k * sa] * pb[k * sb]; }
                cpu[to] = sum * descale + (s.accumulate ? d.values[at] : 0.0f) + (s.bias ? bias[j] : 0.0f);
                float x = naive_dot(0, pa, sa, pb, sb, s.k, bits, fp8 ? 32 : 16) * (float)descale;
                lowp[to] = dtype_round(s.d, x + (s.accumulate ? d.values[at] : 0.0f) + (s.bias ? bias[j] : 0.0f));
                result[to] = got[at];
                if (input == INPUT_INTEGER) {
                    CHECK(got[at] == dtype_round(s.d, (float)cpu[to]), "%s: integers: D[%d][%d][%d] is %.9g, should be %.9g", gemm_describe(&s, what),
                        batch, i, j, got[at], cpu[to]);
                }
                d.values[at] = got[at];
            }
        }
        double most = 0;
        for (double x : cpu) { most = fmax(most, fabs(x)); }
        earned_add(e, cpu, result, lowp, s.m, s.n, most < flushed ? flushed : 0.0);
    }
    CHECK_SAME(got, d.values, "%s: what lies between the rows of D", gemm_describe(&s, what));
    lab_reset(lab);
}

// Every combination of transposes, bias and accumulation, over sizes of which none is special.
static void check_gemm_types(DType a, DType b, DType d, const std::vector<Size>& sizes) {
    Lab lab;
    for (const Size& size : sizes) {
        for (int input : {INPUT_ARANGE, INPUT_RANDOM, INPUT_EXTREME, INPUT_INTEGER}) {
            if (input == INPUT_INTEGER && size.k * 16 > 8192) { continue; }
            Earned e = d == DTYPE_F32 ? earned<float>() : earned<bf16>();
            for (int variant = 0; variant < 4; variant++) {  // plain, bias, accumulate, transposes in turn
                for (int transposes = 0; transposes < (dtype_is_fp8(a) ? 1 : 4); transposes++) {
                    if (variant != 3 && transposes) { continue; }
                    GemmShape s = gemm_shape(size.m, size.n, size.k, a, b, d);
                    s.bias = variant == 1 && !(dtype_is_fp8(a) && d == DTYPE_F32);
                    s.accumulate = variant == 2;
                    s.a_t = transposes & 1;
                    s.b_t = transposes >> 1;
                    if (s.a_t) { s.lda = size.m; }
                    if (s.b_t) { s.ldb = size.n; }
                    s.fast_accum = dtype_is_fp8(a) && variant == 3;
                    for (int repeat = 0; repeat < repeats_for((size_t)size.m * size.n * size.k / 64); repeat++) {
                        const float scale = dtype_is_fp8(a) ? input == INPUT_INTEGER ? 0.25f : 0.37f : 0.0f;
                        check_gemm(&lab, s, (Input)input, 100 * repeat + variant, scale, scale == 0 ? 0 : input == INPUT_INTEGER ? 2.0f : 3.1f, &e);
                    }
                }
            }
            earned_check(&e, "gemm %s x %s -> %s %dx%dx%d %s", dtype_names[a], dtype_names[b], dtype_names[d], size.m, size.n, size.k, input_names[input]);
        }
    }
}
static const std::vector<Size> odd_sizes = {{1, 1, 1}, {3, 5, 7}, {1, 16, 48}, {33, 48, 16}, {17, 300, 128}, {64, 96, 768}, {16, 24, 1600}};
static const std::vector<Size> fp8_sizes = {{16, 16, 16}, {48, 32, 16}, {16, 48, 128}, {64, 144, 128}, {32, 64, 768}, {16, 16, 1600}};

static void test_gemm_f32(void) { check_gemm_types(DTYPE_F32, DTYPE_F32, DTYPE_F32, odd_sizes); }
static void test_gemm_bf16(void) { check_gemm_types(DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, odd_sizes); }
static void test_gemm_bf16_f32(void) { check_gemm_types(DTYPE_BF16, DTYPE_BF16, DTYPE_F32, odd_sizes); }
static void exit_without_fp8(void* arg) {
    (void)arg;
    Lab lab;
    if (!device_has_fp8(&lab.dev)) { exit(TEST_SKIPPED); }
}
static void skip_without_fp8(void) {
    std::string output;
    // in a child: the tests of refusals must not start the device
    if (test_child(exit_without_fp8, NULL, &output) == TEST_SKIPPED) { SKIP("this device has no FP8"); }
}
static void test_gemm_fp8(void) {
    skip_without_fp8();
    check_gemm_types(DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16, fp8_sizes);
    check_gemm_types(DTYPE_E5M2, DTYPE_E4M3, DTYPE_BF16, fp8_sizes);
    check_gemm_types(DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, fp8_sizes);
}
static void test_gemm_fp8_f32(void) {
    skip_without_fp8();
    check_gemm_types(DTYPE_E4M3, DTYPE_E4M3, DTYPE_F32, fp8_sizes);
    check_gemm_types(DTYPE_E5M2, DTYPE_E4M3, DTYPE_F32, fp8_sizes);
}

// Batches with rows and matrices apart, as attention and the head use them, pointers aligned to 16 bytes.
static void test_gemm_strided(void) {
    Lab lab;
    for (int dtype : {DTYPE_F32, DTYPE_BF16}) {
        Earned e = dtype == DTYPE_F32 ? earned<float>() : earned<bf16>();
        for (int transposes = 0; transposes < 4; transposes++) {
            for (int batch : {1, 3}) {
                for (int accumulate = 0; accumulate < 2; accumulate++) {
                    GemmShape s = gemm_shape(17, 24, 33, (DType)dtype, (DType)dtype, (DType)dtype);
                    s.a_t = transposes & 1; s.b_t = transposes >> 1; s.batch = batch; s.align = 16; s.accumulate = accumulate;
                    s.lda = 40; s.ldb = 48; s.ldd = 32;
                    s.stride_a = 40 * 40 + 8; s.stride_b = 48 * 48; s.stride_d = 32 * 17 + 16;
                    for (int input = 0; input < NUM_INPUTS; input++) { check_gemm(&lab, s, (Input)input, 10 + transposes, 0, 0, &e); }
                }
            }
        }
        earned_check(&e, "gemm strided %s", dtype_names[dtype]);
    }
}

// The same bits whatever the order; more products and more columns do not change a product's own bits.
static void test_gemm_repeats(void) {
    Lab lab;
    Floats a = make_input<bf16>(INPUT_RANDOM, 80 * 1600, 1), b = make_input<bf16>(INPUT_RANDOM, 96 * 1600, 2);
    check_repeats("gemm", [&] {
        GemmShape s = gemm_shape(80, 96, 1600, DTYPE_BF16, DTYPE_BF16, DTYPE_F32);
        s.accumulate = 1;
        float* d = lab_zeros<float>(&lab, 80 * 96);
        bf16 *d_a = lab_put<bf16>(&lab, a), *d_b = lab_put<bf16>(&lab, b);
        for (int i = 0; i < 2; i++) { gemm(&lab.dev, "gemm test", &s, d, d_a, d_b, NULL, NULL, NULL); }
        return lab_get(&lab, d, 80 * 96);
    });
}

// Infinity and NaN come out where they must, and only there.
static void test_gemm_special(void) {
    Lab lab;
    for (int dtype : {DTYPE_F32, DTYPE_BF16}) {
        Floats a(16 * 32, 1.0f), b(16 * 32, 1.0f);
        a[3 * 32 + 5] = NAN;
        b[7 * 32 + 31] = INFINITY;
        GemmShape s = gemm_shape(16, 16, 32, (DType)dtype, (DType)dtype, (DType)dtype);
        void* d = put_dtype(&lab, dtype, Floats(256, 0.0f));
        gemm(&lab.dev, "gemm test", &s, d, put_dtype(&lab, dtype, a), put_dtype(&lab, dtype, b), NULL, NULL, NULL);
        Floats got = get_dtype(&lab, dtype, d, 256);
        for (int i = 0; i < 256; i++) {
            bool nan = i / 16 == 3, inf = i % 16 == 7;
            CHECK(nan ? isnan(got[i]) : inf ? got[i] == INFINITY : got[i] == 32.0f, "%s: D[%d][%d] is %g", dtype_names[dtype], i / 16, i % 16, got[i]);
        }
    }
}

// ---------------------------------------------------------------------------- linear layers

// y = x W^T + b, dx = dY W, dW += dY^T x (twice), from operands that hold x, w, dy exactly as given in `values`.
typedef struct { Floats x, w, dy; } LinearValues;
static void check_linear(Lab* lab, Operand x, Operand w, Operand dy, const LinearValues& v, int N, int C, int OC, DType out, bool fast, Earned errors[3]) {
    const bool fp8 = dtype_is_fp8(x.dtype);
    Floats bias = make_input<bf16>(INPUT_RANDOM, OC, 5), old = make_input<bf16>(INPUT_RANDOM, (size_t)OC * C, 6);
    void *y = put_dtype(lab, out, Floats((size_t)N * OC, NAN)), *dx = put_dtype(lab, out, Floats((size_t)N * C, NAN)), *dw = put_dtype(lab, out, old);
    linear_forward(&lab->dev, y, out, x, w, put_dtype(lab, out, bias), fast);
    linear_dgrad(&lab->dev, dx, out, dy, w, fast);
    for (int pass = 0; pass < 2; pass++) { linear_wgrad(&lab->dev, dw, out, dy, x, fast); }
    const int bits = naive_sum_bits(&lab->dev, x.dtype == DTYPE_F32, fp8, fast), step = fp8 ? 32 : 16;
    Doubles y_cpu((size_t)N * OC), dx_cpu((size_t)N * C), dw_cpu((size_t)OC * C);
    Floats y_lowp(y_cpu.size()), dx_lowp(dx_cpu.size()), dw_lowp(dw_cpu.size());
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < OC; j++) {
            double sum = bias[j];
            for (int k = 0; k < C; k++) { sum += (double)v.x[(size_t)i * C + k] * v.w[(size_t)j * C + k]; }
            y_cpu[(size_t)i * OC + j] = sum;
            y_lowp[(size_t)i * OC + j] = dtype_round(out, naive_dot(0, &v.x[(size_t)i * C], 1, &v.w[(size_t)j * C], 1, C, bits, step) + bias[j]);
        }
        for (int k = 0; k < C; k++) {
            double sum = 0;
            for (int j = 0; j < OC; j++) { sum += (double)v.dy[(size_t)i * OC + j] * v.w[(size_t)j * C + k]; }
            dx_cpu[(size_t)i * C + k] = sum;
            dx_lowp[(size_t)i * C + k] = dtype_round(out, naive_dot(0, &v.dy[(size_t)i * OC], 1, &v.w[k], C, OC, bits, step));
        }
    }
    for (int j = 0; j < OC; j++) {
        for (int k = 0; k < C; k++) {
            double sum = 0;
            for (int i = 0; i < N; i++) { sum += (double)v.dy[(size_t)i * OC + j] * v.x[(size_t)i * C + k]; }
            float lowp = naive_dot(0, &v.dy[j], OC, &v.x[k], C, N, bits, step);
            dw_cpu[(size_t)j * C + k] = old[(size_t)j * C + k] + 2 * sum;
            dw_lowp[(size_t)j * C + k] = dtype_round(out, dtype_round(out, old[(size_t)j * C + k] + lowp) + lowp);
        }
    }
    earned_add(&errors[PASS_FPROP], y_cpu, get_dtype(lab, out, y, y_cpu.size()), y_lowp, N, OC);
    earned_add(&errors[PASS_DGRAD], dx_cpu, get_dtype(lab, out, dx, dx_cpu.size()), dx_lowp, N, C);
    earned_add(&errors[PASS_WGRAD], dw_cpu, get_dtype(lab, out, dw, dw_cpu.size()), dw_lowp, OC, C);
}

typedef struct { int N, C, OC; } LinearSize;

template <class T>
static void test_linear(void) {
    Lab lab;
    const LinearSize sizes[] = {{1, 8, 8}, {7, 16, 48}, {33, 48, 16}, {64, 128, 384}, {16, 1600, 24}};
    for (const LinearSize& s : sizes) {
        for (int input : {INPUT_ARANGE, INPUT_RANDOM, INPUT_EXTREME}) {
            Earned errors[3] = {earned<T>(), earned<T>(), earned<T>()};
            for (int repeat = 0; repeat < repeats_for((size_t)s.C * s.OC); repeat++) {
                LinearValues v = {make_input<T>((Input)input, (size_t)s.N * s.C, 3 * repeat + 1),
                    make_input<T>(INPUT_RANDOM, (size_t)s.OC * s.C, 3 * repeat + 2),
                                  make_input<T>((Input)input, (size_t)s.N * s.OC, 3 * repeat + 3)};
                check_linear(&lab, operand_plain(lab_put<T>(&lab, v.x), s.N, s.C), operand_plain(lab_put<T>(&lab, v.w), s.OC, s.C),
                    operand_plain(lab_put<T>(&lab, v.dy), s.N, s.OC), v,
                             s.N, s.C, s.OC, dtype_of<T>(), false, errors);
                lab_reset(&lab);
            }
            for (int pass = 0; pass < NUM_PASSES; pass++) {
                earned_check(&errors[pass], "linear %s %s %dx%dx%d %s", pass_names[pass], type_name<T>(), s.N, s.C, s.OC, input_names[input]);
            }
        }
    }
}

// ---------------------------------------------------------------------------- GELU fused into products

static double ref_gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double ref_dgelu(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + (fabs(t) < 1 ? 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x) : 0.0);
}
static float naive_gate(float x) { return 1.0f / (1.0f + naive_expf(-2.0f * 0.79788456f * (x + 0.044715f * x * x * x))); }
static float naive_dgelu(float x) {
    float s = naive_gate(x);
    return s + (s > 0.0f && s < 1.0f ? 2.0f * x * s * (1.0f - s) * 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x) : 0.0f);
}

typedef enum { GELU_H, GELU_OUT, GELU_DH, NUM_GELU_RESULTS } GeluResult;
static const char* const gelu_result_names[NUM_GELU_RESULTS] = {"h", "gelu", "dh"};

// h (N,H), gelu(h) and dh (N,H) of one MLP, fused or by separate kernels: x (N,C) and fc's w (H,C), bias (H); dy (N,C), fcproj's w (C,H), h_in (N,H).
typedef struct { int N, C, H; } MlpSize;
typedef struct { Floats x, fcw, fcb, dy, fcprojw, h_in; } MlpValues;
template <class T>
static MlpValues mlp_values(Input input, MlpSize s, int seed) {
    return {make_input<T>(input, (size_t)s.N * s.C, seed), make_input<T>(INPUT_RANDOM, (size_t)s.H * s.C, seed + 1, 0.3f), make_input<T>(INPUT_RANDOM, s.H, seed + 2),
            make_input<T>(input, (size_t)s.N * s.C, seed + 3), make_input<T>(INPUT_RANDOM, (size_t)s.C * s.H, seed + 4, 0.3f), make_input<T>(input, (size_t)s.N * s.H, seed + 5)};
}
template <class T>
static void run_mlp_gelu(Lab* lab, const MlpValues& v, MlpSize s, bool fused, Floats results[NUM_GELU_RESULTS]) {
    const size_t n = (size_t)s.N * s.H;
    T *h = lab_alloc<T>(lab, n), *gelu = lab_alloc<T>(lab, n), *dh = lab_alloc<T>(lab, n), *h_in = lab_put<T>(lab, v.h_in), *fcb = lab_put<T>(lab, v.fcb);
    Operand x = operand_plain(lab_put<T>(lab, v.x), s.N, s.C), fcw = operand_plain(lab_put<T>(lab, v.fcw), s.H, s.C);
    Operand dy = operand_plain(lab_put<T>(lab, v.dy), s.N, s.C), fcprojw = operand_plain(lab_put<T>(lab, v.fcprojw), s.C, s.H);
    if (fused) {
        linear_forward_gelu(&lab->dev, gelu, h, x, fcw, fcb);
        linear_dgrad_gelu(&lab->dev, dh, h_in, dy, fcprojw);
    } else {
        linear_forward(&lab->dev, h, dtype_of<T>(), x, fcw, fcb, false);
        gelu_forward(gelu, h, n, (unsigned*)NULL, lab->dev.stream);
        linear_dgrad(&lab->dev, dh, dtype_of<T>(), dy, fcprojw, false);
        gelu_backward(dh, h_in, dh, n, (unsigned*)NULL, lab->dev.stream);
    }
    results[GELU_H] = lab_get(lab, h, n);
    results[GELU_OUT] = lab_get(lab, gelu, n);
    results[GELU_DH] = lab_get(lab, dh, n);
    CHECK_SAME(lab_get(lab, h_in, n), v.h_in, "the input of backward, after it");
    lab_reset(lab);
}

template <class T>
static void test_linear_gelu(void) {
    Lab lab;
    const MlpSize sizes[] = {{1, 8, 8}, {7, 16, 64}, {33, 24, 96}, {64, 96, 384}, {16, 400, 1600}};
    for (const MlpSize& s : sizes) {
        for (int input : {INPUT_ARANGE, INPUT_RANDOM, INPUT_EXTREME}) {
            Earned errors[2][NUM_GELU_RESULTS];
            for (auto& e : errors) { for (Earned& each : e) { each = earned<T>(); } }
            for (int repeat = 0; repeat < repeats_for((size_t)s.C * s.H); repeat++) {
                MlpValues v = mlp_values<T>((Input)input, s, 10 * repeat + 1);
                const size_t n = (size_t)s.N * s.H;
                const int bits = naive_sum_bits(&lab.dev, sizeof(T) == 4, false, false);
                Doubles cpu[NUM_GELU_RESULTS] = {Doubles(n), Doubles(n), Doubles(n)};
                Floats lowp[NUM_GELU_RESULTS] = {Floats(n), Floats(n), Floats(n)};
                for (int i = 0; i < s.N; i++) {
                    for (int j = 0; j < s.H; j++) {
                        const size_t at = (size_t)i * s.H + j;
                        double z = v.fcb[j], dz = 0;
                        for (int k = 0; k < s.C; k++) {
                            z += (double)v.x[(size_t)i * s.C + k] * v.fcw[(size_t)j * s.C + k];
                            dz += (double)v.dy[(size_t)i * s.C + k] * v.fcprojw[(size_t)k * s.H + j];
                        }
                        float h = ref_round<T>(naive_dot(0, &v.x[(size_t)i * s.C], 1, &v.fcw[(size_t)j * s.C], 1, s.C, bits, 16) + v.fcb[j]);
                        float dgelu = ref_round<T>(naive_dot(0, &v.dy[(size_t)i * s.C], 1, &v.fcprojw[j], s.H, s.C, bits, 16));
                        cpu[GELU_H][at] = z;
                        cpu[GELU_OUT][at] = ref_gelu(z);
                        cpu[GELU_DH][at] = dz * ref_dgelu(v.h_in[at]);
                        lowp[GELU_H][at] = h;
                        lowp[GELU_OUT][at] = ref_round<T>(h * naive_gate(h));
                        lowp[GELU_DH][at] = ref_round<T>(dgelu * naive_dgelu(v.h_in[at]));
                    }
                }
                for (int fused = 0; fused < 2; fused++) {
                    Floats results[NUM_GELU_RESULTS];
                    run_mlp_gelu<T>(&lab, v, s, fused, results);
                    for (int r = 0; r < NUM_GELU_RESULTS; r++) { earned_add(&errors[fused][r], cpu[r], results[r], lowp[r], s.N, s.H); }
                }
            }
            for (int fused = 0; fused < 2; fused++) {
                for (int r = 0; r < NUM_GELU_RESULTS; r++) {
                    earned_check(&errors[fused][r], "%s %s %s %dx%dx%d %s", fused ? "fused" : "separate", gelu_result_names[r], type_name<T>(), s.N, s.C, s.H, input_names[input]);
                }
            }
        }
    }
}

template <class T>
static void test_linear_gelu_repeats(void) {
    Lab lab;
    const MlpSize s = {48, 96, 384};
    MlpValues v = mlp_values<T>(INPUT_RANDOM, s, 1);
    Floats fused[NUM_GELU_RESULTS];
    check_repeats("fused GELU", [&] {
        run_mlp_gelu<T>(&lab, v, s, true, fused);
        fused[GELU_OUT].insert(fused[GELU_OUT].end(), fused[GELU_DH].begin(), fused[GELU_DH].end());
        return fused[GELU_OUT];
    });
#ifdef GPT_CPU_DEVICE  // a GPU may take another algorithm for the fused product
    Floats separate[NUM_GELU_RESULTS];
    run_mlp_gelu<T>(&lab, v, s, false, separate);
    CHECK(same_bits(fused[GELU_H], separate[GELU_H]), "the fused product's h is not the plain product's");
#endif
}

// A BF16 tensor as FP8 operand, made by the quantize kernel; values: what its codes and descale stand for.
static Operand quantized(Lab* lab, Fp8Scaling* scaling, Fp8Role role, const Floats& x, int rows, int cols, bool with_t, Floats* values) {
    const int slot = fp8_slot(scaling, role, 0, LINEAR_FC);
    const Fp8Format format = fp8_role_format(scaling->recipe, role);
    bf16* d_x = lab_put<bf16>(lab, x);
    uint8_t *k = lab_alloc<uint8_t>(lab, x.size()), *t = with_t ? lab_alloc<uint8_t>(lab, x.size()) : NULL;
    fp8_scaling_begin(scaling, role, lab->dev.stream);
    amax_reduce(scaling->amax + slot, d_x, x.size(), lab->dev.stream);
    fp8_quantize(scaling, slot, fp8_operand(scaling, slot, k, t, NULL, NULL), d_x, rows, cols, NULL, NULL, false, lab->dev.stream);
    std::vector<uint8_t> codes = lab_download(lab, k, x.size());
    float descale = lab_download(lab, scaling->descale + slot, 1)[0];
    values->resize(x.size());
    for (size_t i = 0; i < x.size(); i++) { (*values)[i] = (float)ref_decode(format, codes[i]) * descale; }  // one rounding of float: far below BF16's
    return {k, t, scaling->descale + slot, scaling->descale + slot, FP8_BY_TENSOR, format == FP8_E4M3 ? DTYPE_E4M3 : DTYPE_E5M2, rows, cols};
}

static void check_linear_fp8(Lab* lab, bool with_t) {
    Fp8Scaling scaling;
    fp8_scaling_init(&scaling, &fp8_recipes[0], 1);
    const LinearSize sizes[] = {{16, 16, 16}, {48, 16, 32}, {64, 128, 384}, {16, 1600, 48}};
    for (const LinearSize& s : sizes) {
        for (int input : {INPUT_ARANGE, INPUT_RANDOM, INPUT_EXTREME}) {
            for (int fast = 0; fast < 2; fast++) {
                Earned errors[3] = {earned<bf16>(), earned<bf16>(), earned<bf16>()};
                for (int repeat = 0; repeat < repeats_for((size_t)s.C * s.OC); repeat++) {
                    LinearValues v;
                    Operand x = quantized(lab, &scaling, FP8_ROLE_X, make_input<bf16>((Input)input, (size_t)s.N * s.C, 3 * repeat + 1), s.N, s.C, with_t, &v.x);
                    Operand w = quantized(lab, &scaling, FP8_ROLE_W, make_input<bf16>(INPUT_RANDOM, (size_t)s.OC * s.C, 3 * repeat + 2, 0.02f), s.OC,
                        s.C, with_t, &v.w);
                    Operand dy = quantized(lab, &scaling, FP8_ROLE_DY, make_input<bf16>((Input)input, (size_t)s.N * s.OC, 3 * repeat + 3, 1e-5f), s.N,
                        s.OC, with_t, &v.dy);
                    check_linear(lab, x, w, dy, v, s.N, s.C, s.OC, DTYPE_BF16, fast, errors);
                    lab_reset(lab);
                }
                for (int pass = 0; pass < NUM_PASSES; pass++) {
                    earned_check(&errors[pass], "linear %s fp8%s%s %dx%dx%d %s", pass_names[pass], with_t ? "" : " any layout", fast ? " fast" : "",
                        s.N, s.C, s.OC, input_names[input]);
                }
            }
        }
    }
    fp8_scaling_free(&scaling);
}
static void test_linear_fp8(void) {
    skip_without_fp8();
    Lab lab;
    check_linear_fp8(&lab, true);
}
// 10.x multiplies FP8 in any layout: no transposed copies.
static void test_linear_fp8_any_layout(void) {
#ifdef GPT_CPU_DEVICE
    cpu_modes()->arch = 100;
#endif
    Lab lab;
    if (!device_fp8_any_layout(&lab.dev)) { SKIP("compute capability %d multiplies FP8 in one layout only", lab.dev.capability); }
    check_linear_fp8(&lab, false);
}
// With Hopper's accumulator played, fast accumulation differs from FP32 sums, within what a naive truncated sum earns; without it nothing changes.
static void test_linear_fp8_hopper(void) {
#ifdef GPT_CPU_DEVICE
    cpu_modes()->hopper_acc = 1;
    Lab lab;
    check_linear_fp8(&lab, true);
    Floats results[4];
    Floats a = make_input<float>(INPUT_RANDOM, 16 * 1024, 1, 20.0f);
    for (float& x : a) { x = dtype_round(DTYPE_E4M3, x); }
    for (int i = 0; i < 4; i++) {
        cpu_modes()->hopper_acc = i & 1;
        GemmShape s = gemm_shape(16, 16, 1024, DTYPE_E4M3, DTYPE_E4M3, DTYPE_F32);
        s.fast_accum = i >> 1;
        float* d = lab_alloc<float>(&lab, 256);
        void* d_a = put_dtype(&lab, DTYPE_E4M3, a);
        float* one = lab_upload(&lab, Floats(1, 1.0f));
        gemm(&lab.dev, "gemm test", &s, d, d_a, d_a, one, one, NULL);
        results[i] = lab_get(&lab, d, 256);
    }
    CHECK(same_bits(results[0], results[1]) && same_bits(results[0], results[2]), "products without the truncated accumulator differ");
    CHECK(!same_bits(results[0], results[3]), "the truncated accumulator changes nothing");
#else
    SKIP("the emulation is the CPU device's");
#endif
}

// ---------------------------------------------------------------------------- plans and refusals

static void test_gemm_plans(void) {
    Lab lab;
    GemmShape s = gemm_shape(32, 48, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16), again = gemm_shape(32, 48, 64, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16), other = s;
    GemmPlan* p = gemm_plan_or_fail(&lab.dev, &s, "plan test");
    CHECK(gemm_plan(&lab.dev, &again) == p && lab.dev.plans.size() == 1, "the same shape was planned twice: %zu plans", lab.dev.plans.size());
    other.accumulate = 1;
    CHECK(gemm_plan(&lab.dev, &other) != p && lab.dev.plans.size() == 2, "another shape has the same plan");
    gemm(&lab.dev, "plan test", &s, lab_alloc<bf16>(&lab, 32 * 48), lab_zeros<bf16>(&lab, 32 * 64), lab_zeros<bf16>(&lab, 48 * 64), NULL, NULL, NULL);
    CHECK(lab.dev.plans.size() == 2, "running a planned product made a plan: %zu", lab.dev.plans.size());
    char what[256];
    s.bias = s.fast_accum = 1;
    gemm_describe(&s, what);
    for (const char* word : {"m 32", "n 48", "k 64", "bf16", "bias", "fast"}) { CHECK(strstr(what, word), "'%s' lacks '%s'", what, word); }
}

// Planning and running use the same shapes.
static void test_linear_shapes(void) {
    GemmShape f = linear_shape(PASS_FPROP, 64, 128, 384, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, true, true);
    CHECK(f.m == 64 && f.n == 384 && f.k == 128 && f.bias && !f.accumulate && f.fast_accum && !f.a_t && !f.b_t, "fprop m %d n %d k %d", f.m, f.n, f.k);
    GemmShape d = linear_shape(PASS_DGRAD, 64, 128, 384, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, true, false);
    CHECK(d.m == 64 && d.n == 128 && d.k == 384 && d.a == DTYPE_E5M2 && d.b == DTYPE_E4M3 && !d.bias && !d.accumulate && !d.fast_accum &&
        d.ldb == 384, "dgrad m %d n %d k %d", d.m, d.n, d.k);
    GemmShape w = linear_shape(PASS_WGRAD, 64, 128, 384, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, true, false);
    CHECK(w.m == 384 && w.n == 128 && w.k == 64 && w.accumulate && w.a == DTYPE_E5M2 && w.b == DTYPE_E4M3 && w.lda == 64 && w.ldb == 64,
        "wgrad m %d n %d k %d", w.m, w.n, w.k);
    GemmShape plain = linear_shape(PASS_WGRAD, 64, 128, 384, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, true);
    CHECK(plain.a_t && plain.b_t && plain.lda == 384 && plain.ldb == 128 && !plain.fast_accum, "plain wgrad lda %d ldb %d", plain.lda, plain.ldb);
}

// fc is planned as GELU's producer, fcproj's dgrad as its consumer; each is a plan of its own.
static void test_linear_gelu_shapes(void) {
    GemmShape f = linear_gelu_shape(PASS_FPROP, 64, 128, 512, DTYPE_BF16), d = linear_gelu_shape(PASS_DGRAD, 64, 512, 128, DTYPE_F32);
    CHECK(f.m == 64 && f.n == 512 && f.k == 128 && f.bias && f.gelu == GEMM_GELU_FORWARD && f.ld_h == 512 && f.d == DTYPE_BF16, "forward m %d n %d k %d", f.m, f.n, f.k);
    CHECK(d.m == 64 && d.n == 512 && d.k == 128 && !d.bias && d.gelu == GEMM_GELU_BACKWARD && d.ld_h == 512 && d.b_t && d.ldb == 512, "backward m %d n %d k %d", d.m, d.n, d.k);
    GemmShape plain = linear_shape(PASS_FPROP, 64, 128, 512, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, false);
    Lab lab;
    CHECK(gemm_plan_or_fail(&lab.dev, &f, "fc gemm fprop") != gemm_plan_or_fail(&lab.dev, &plain, "fc gemm fprop"), "one plan for two products");
    char what[256];
    CHECK(strstr(gemm_describe(&f, what), "bias, GELU,") && strstr(gemm_describe(&d, what), "GELU backward"), "'%s'", what);
}

typedef struct { GemmShape shape; const char* name; int arch; } Refusal;
static void plan_in_child(void* arg) {
    Refusal* r = (Refusal*)arg;
#ifdef GPT_CPU_DEVICE
    char arch[16];
    snprintf(arch, sizeof(arch), "%d", r->arch);
    setenv("GPT_CPU_ARCH", arch, 1);
#endif
    Lab lab;
    gemm_plan_or_fail(&lab.dev, &r->shape, r->name);
}
// exit code 1 and a message with all words; an empty list: accepted.
static void expect_refusal(Refusal r, std::vector<const char*> words) {
    std::string output;
    int code = test_child(plan_in_child, &r, &output);
    char what[256];
    gemm_describe(&r.shape, what);
    if (words.empty()) { CHECK(code == 0, "arch %d: %s is refused: %s", r.arch, what, output.c_str()); return; }
    CHECK(code == 1, "arch %d: %s is not refused (exit %d)", r.arch, what, code);
    for (const char* word : words) { CHECK(output.find(word) != std::string::npos, "arch %d: the message lacks '%s':\n%s", r.arch, word, output.c_str()); }
}

static void test_gemm_refuses(void) {
    skip_without_fp8();
    GemmShape k24 = gemm_shape(16, 32, 24, DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16);
    expect_refusal({k24, "fc gemm fprop", 0}, {"ERROR:", "'fc gemm fprop'", "m 16, n 32, k 24", "e4m3", "HINT:",
        "accepted is with sizes rounded up to multiples of 16", "k 32"});
    GemmShape e5m2 = gemm_shape(16, 32, 64, DTYPE_E5M2, DTYPE_E5M2, DTYPE_BF16);
    expect_refusal({e5m2, "both E5M2", 0}, {"ERROR:", "e5m2", "HINT:", "--dtype bfloat16"});
    GemmShape odd_gelu = linear_gelu_shape(PASS_FPROP, 16, 32, 12, DTYPE_BF16);
    expect_refusal({odd_gelu, "fc gemm fprop", 0}, {"GELU", "ld 12", "HINT:", "accepted is without GELU fusion (-ge 0)"});
#ifdef GPT_CPU_DEVICE  // a GPU plays no other
    GemmShape fprop = linear_shape(PASS_FPROP, 64, 128, 384, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, true, true);
    GemmShape wgrad_any = linear_shape(PASS_WGRAD, 64, 128, 384, DTYPE_E4M3, DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16, false, false);
    GemmShape bf16_any = linear_shape(PASS_WGRAD, 64, 128, 384, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false, false);
    GemmShape f32_bias = gemm_shape(16, 32, 64, DTYPE_E4M3, DTYPE_E4M3, DTYPE_F32);
    f32_bias.bias = 1;
    for (int arch : {0, 80, 89, 90, 100, 120}) {
        const bool fp8 = arch != 80, any = arch == 100;
        expect_refusal({fprop, "qkv gemm fprop", arch}, fp8 ? std::vector<const char*>{} : std::vector<const char*>{"'qkv gemm fprop'",
            "m 64, n 384, k 128", "accepted is with --dtype bfloat16"});
        expect_refusal({wgrad_any, "fc gemm wgrad", arch}, any ? std::vector<const char*>{} : std::vector<const char*>{"'fc gemm wgrad'",
            "transposed", "accepted is with --dtype bfloat16"});
        expect_refusal({bf16_any, "fc gemm wgrad", arch}, {});
        if (fp8) { expect_refusal({f32_bias, "f32 bias", arch}, {"bias", "accepted is without the bias epilogue"}); }
    }
#endif
}

// A pointer that is less aligned than its plan says ends the program before the library sees it.
static void run_misaligned(void* arg) {
    (void)arg;
    Lab lab;
    GemmShape s = gemm_shape(16, 16, 16, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    float* x = lab_zeros<float>(&lab, 512);
    gemm(&lab.dev, "gemm slanted", &s, x, x + 4, x + 64, NULL, NULL, NULL);
}
static void run_misaligned_h(void* arg) {
    (void)arg;
    Lab lab;
    float* x = lab_zeros<float>(&lab, 4096);
    linear_dgrad_gelu(&lab.dev, x, x + 1028, operand_plain(x + 2048, 16, 16), operand_plain(x + 3072, 16, 16));
}
static void run_overlapping_h(void* arg) {
    (void)arg;
    Lab lab;
    float* x = lab_zeros<float>(&lab, 4096);
    linear_dgrad_gelu(&lab.dev, x, x, operand_plain(x + 2048, 16, 16), operand_plain(x + 3072, 16, 16));
}
static void test_gemm_misaligned(void) {
    std::string output;
    int h = test_child(run_misaligned_h, NULL, &output);
    CHECK(h == 1 && output.find("aligned to 256") != std::string::npos, "h: exit %d: %s", h, output.c_str());
#ifdef GPT_CPU_DEVICE  // a GPU would compute something
    h = test_child(run_overlapping_h, NULL, &output);
    CHECK(h == 1 && output.find("overlaps") != std::string::npos, "dh over h: exit %d: %s", h, output.c_str());
#else
    (void)run_overlapping_h;
#endif
    int code = test_child(run_misaligned, NULL, &output);
    CHECK(code == 1 && output.find("'gemm slanted'") != std::string::npos && output.find("aligned to 256") != std::string::npos, "exit %d: %s", code,
        output.c_str());
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"gemm_f32_matches_double", test_gemm_f32, QUICK},
        {"gemm_bf16_matches_double", test_gemm_bf16, QUICK},
        {"gemm_bf16_to_f32_matches_double", test_gemm_bf16_f32, QUICK},
        {"gemm_fp8_matches_double", test_gemm_fp8, QUICK},
        {"gemm_fp8_to_f32_matches_double", test_gemm_fp8_f32, QUICK},
        {"gemm_strided_batches", test_gemm_strided, QUICK},
        {"gemm_special_values", test_gemm_special, QUICK},
        {"gemm_repeats", test_gemm_repeats, QUICK},
        {"linear_f32_matches_double", test_linear<float>, QUICK},
        {"linear_bf16_matches_double", test_linear<bf16>, QUICK},
        {"linear_fp8_matches_double", test_linear_fp8, QUICK},
        {"linear_fp8_any_layout", test_linear_fp8_any_layout, QUICK},
        {"linear_fp8_hopper_accumulator", test_linear_fp8_hopper, SLOW},
        {"linear_gelu_f32_matches_double", test_linear_gelu<float>, QUICK},
        {"linear_gelu_bf16_matches_double", test_linear_gelu<bf16>, QUICK},
        {"linear_gelu_f32_repeats", test_linear_gelu_repeats<float>, QUICK},
        {"linear_gelu_bf16_repeats", test_linear_gelu_repeats<bf16>, QUICK},
        {"linear_gelu_shapes", test_linear_gelu_shapes, QUICK},
        {"linear_shapes", test_linear_shapes, QUICK},
        {"gemm_plans_are_reused", test_gemm_plans, QUICK},
        {"gemm_refuses_with_the_nearest_setting", test_gemm_refuses, QUICK},
        {"gemm_refuses_misaligned_pointers", test_gemm_misaligned, QUICK},
    };
    return TEST_MAIN(tests);
}
