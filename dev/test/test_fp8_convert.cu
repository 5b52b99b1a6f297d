/* test_fp8_convert.cu - FP8 and BF16 conversions are CUDA's, bit for bit
 *
 * Three judges: digests committed here, made by fp8_oracle.cpp over the CUDA toolkit's own header; that program itself, built and compared byte by
 * byte, where a toolkit is installed; and a search for the nearest code in double, which knows nothing of bits. Under nvcc the same tests hold the
 * hardware's instruction against the header's host code.
 */
#include "llmc/device.cuh"
#include "dev/test/test.h"

#define FP8_ORACLE_INCLUDED
#include "dev/test/fp8_oracle.cpp"

// printed by fp8_oracle (CUDA 13.0)
static const struct { const char* name; uint64_t digest; } oracle_digests[FP8_ORACLE_COUNT] = {
    {"bf16_e4m3", 0x94de5dbff6402119ull},
    {"bf16_e5m2", 0x22a771a2e5d03eb2ull},
    {"bf16_e4m3_nosat", 0xfc18a7868d8fee63ull},
    {"bf16_e5m2_nosat", 0x4afa037639e87706ull},
    {"float_e4m3", 0xf10a2557eeb1eddcull},
    {"float_e5m2", 0xfcb81473c56d9d5aull},
    {"float_bf16", 0x713ae8704fc7c0f8ull},
    {"e4m3_float", 0xa58f5740a960206bull},
    {"e5m2_float", 0xc31331b8e6795452ull},
};

static void test_fp8_convert_equals_cuda_digests(void) {
    std::vector<unsigned char> bytes;
    for (int i = 0; i < FP8_ORACLE_COUNT; i++) {
        fp8_oracle_fill((Fp8OracleSection)i, &bytes);
        uint64_t digest = xxh64(bytes.data(), bytes.size(), 0);
        CHECK(digest == oracle_digests[i].digest, "%s: digest 0x%016llx, CUDA's is 0x%016llx", oracle_digests[i].name, (unsigned long long)digest, (unsigned long long)oracle_digests[i].digest);
    }
}

// Without the newline at its end.
static std::string run_shell(const std::string& command, int* code) {
    std::string out = test_shell(command, code);
    while (!out.empty() && out.back() == '\n') { out.pop_back(); }
    return out;
}
static void test_fp8_convert_equals_cuda_header(void) {
    int code;
    const char *home = getenv("CUDA_HOME"), *cxx = getenv("CXX") ? getenv("CXX") : "g++";
    std::string toolkit = home ? home : run_shell("dirname \"$(dirname \"$(readlink -f \"$(command -v nvcc)\")\")\"", &code);
    run_shell("test -f '" + toolkit + "/include/cuda_fp8.h' && command -v " + cxx, &code);
    if (code) { SKIP("no CUDA toolkit (nvcc on the PATH, or CUDA_HOME) or no %s", cxx); }
    std::string source = __FILE__, root = ".";
    size_t slash = source.rfind("dev/test/");
    if (slash != std::string::npos && slash > 0) { root = source.substr(0, slash); }
    char folder[] = "/tmp/test_fp8_convert_XXXXXX";
    CHECK(mkdtemp(folder), "mkdtemp failed");
    std::string program = std::string(folder) + "/oracle", file = std::string(folder) + "/codes";
    std::string out = run_shell("cd " + root + " && " + cxx + " -std=c++17 -O1 -I '" + toolkit + "/include' -I. dev/test/fp8_oracle.cpp -o " + program + " && " + program + " " + file, &code);
    CHECK(code == 0, "%s", out.c_str());
    FILE* f = fopen(file.c_str(), "rb");
    CHECK(f, "no %s", file.c_str());
    std::vector<unsigned char> ours, cuda;
    for (int i = 0; i < FP8_ORACLE_COUNT; i++) {
        fp8_oracle_fill((Fp8OracleSection)i, &ours);
        cuda.resize(ours.size());
        CHECK(fread(cuda.data(), 1, cuda.size(), f) == cuda.size(), "%s is too short", file.c_str());
        for (size_t k = 0; k < ours.size(); k++) { CHECK(ours[k] == cuda[k], "%s, byte %zu: %02x, CUDA gives %02x", oracle_digests[i].name, k, ours[k], cuda[k]); }
    }
    fclose(f);
    unlink(file.c_str());
    unlink(program.c_str());
    rmdir(folder);
}

// ----------------------------------------------------------------------------
// the definition: the nearest representable value, ties to the even code

static double value_of(int code, bool e4m3) {  // OCP FP8 v1.0, finite codes
    int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    double v = exponent ? ldexp(1.0 + ldexp((double)mantissa, -mantissa_bits), exponent - bias) : ldexp((double)mantissa, 1 - bias - mantissa_bits);
    return code & 0x80 ? -v : v;
}
static int nearest_code(float x, bool e4m3) {
    int last = e4m3 ? 0x7e : 0x7b, sign = signbit(x) ? 0x80 : 0, best = 0;
    if (x != x) { return 0x7f; }
    double a = fmin(fabs((double)x), 1e6);  // beyond that all distances look alike in double
    for (int code = 1; code <= last; code++) {
        double now = fabs(value_of(code, e4m3) - a), was = fabs(value_of(best, e4m3) - a);
        if (now < was || (now == was && code % 2 == 0)) { best = code; }
    }
    return sign | best;
}
static float neighbour(float x, int steps) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    bits += steps;
    memcpy(&x, &bits, 4);
    return x;
}
static void test_fp8_convert_rounds_to_nearest_even(void) {
    for (bool e4m3 : {true, false}) {
        __nv_fp8_interpretation_t format = e4m3 ? __NV_E4M3 : __NV_E5M2;
        std::vector<float> xs = {0.0f, 1e-45f, 1e-38f, 1e-20f, 1e20f, 3.4e38f, INFINITY, NAN};
        for (int code = 0; code <= (e4m3 ? 0x7e : 0x7b); code++) {
            double v = value_of(code, e4m3), next = code == (e4m3 ? 0x7e : 0x7b) ? v * 1.125 : value_of(code + 1, e4m3);
            for (double x : {v, (v + next) / 2, (3 * v + next) / 4}) { for (int steps : {-1, 0, 1}) { if (x > 0) { xs.push_back(neighbour((float)x, steps)); } } }
        }
        for (float x : xs) {
            for (float y : {x, -x}) {
                int got = __nv_cvt_float_to_fp8(y, __NV_SATFINITE, format), expected = nearest_code(y, e4m3);
                CHECK(got == expected, "%a to %s: code %02x, nearest is %02x", y, e4m3 ? "E4M3" : "E5M2", got, expected);
            }
        }
    }
}
static void test_fp8_convert_round_trip(void) {
    for (int code = 0; code < 256; code++) {
        __nv_fp8_e4m3 a;
        __nv_fp8_e5m2 b;
        a.__x = b.__x = (unsigned char)code;
        bool nan_a = (code & 0x7f) == 0x7f, nan_b = (code & 0x7f) > 0x7c, inf_b = (code & 0x7f) == 0x7c;
        if (!nan_a) { CHECK((double)(float)a == value_of(code, true) && __nv_cvt_float_to_fp8((float)a, __NV_SATFINITE, __NV_E4M3) == code, "E4M3 code %02x", code); }
        else { CHECK((float)a != (float)a, "E4M3 code %02x", code); }
        if (inf_b) { CHECK((float)b == (code & 0x80 ? -INFINITY : INFINITY) && __nv_cvt_float_to_fp8((float)b, __NV_NOSAT, __NV_E5M2) == code, "E5M2 code %02x", code); }
        else if (!nan_b) { CHECK((double)(float)b == value_of(code, false) && __nv_cvt_float_to_fp8((float)b, __NV_SATFINITE, __NV_E5M2) == code, "E5M2 code %02x", code); }
        else { CHECK((float)b != (float)b, "E5M2 code %02x", code); }
    }
    for (unsigned i = 0; i < 65536; i++) {  // every BF16 survives the way through float, but NaN becomes one NaN
        bf16 x = __ushort_as_bfloat16((unsigned short)i);
        unsigned back = __bfloat16_as_ushort(__float2bfloat16_rn(__bfloat162float(x)));
        CHECK(back == ((i & 0x7fff) > 0x7f80 ? 0x7fffu : i), "BF16 %04x comes back as %04x", i, back);
    }
}

// ----------------------------------------------------------------------------
// in a kernel: on a GPU the instruction, on the CPU device whatever the vectorizer made of it

struct DeviceCodes { unsigned char e4m3, e5m2, pair_lo, pair_hi; unsigned short rounded; };
static __global__ void convert_kernel1(DeviceCodes* out, const float* in, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= n) { return; }
    float x[8];
    unsigned char a[8], b[8];
    unsigned short r[8];
    load8(x, in + i);
    for (int k = 0; k < 8; k++) { a[k] = __nv_cvt_float_to_fp8(x[k], __NV_SATFINITE, __NV_E4M3); }
    for (int k = 0; k < 8; k++) { b[k] = __nv_cvt_float_to_fp8(x[k], __NV_SATFINITE, __NV_E5M2); }
    for (int k = 0; k < 8; k++) { r[k] = __bfloat16_as_ushort(__float2bfloat16_rn(x[k])); }
    for (int k = 0; k < 8; k++) {
        unsigned pair = __nv_cvt_float2_to_fp8x2(make_float2(x[k], x[7 - k]), __NV_SATFINITE, __NV_E4M3);
        out[i + k] = DeviceCodes{a[k], b[k], (unsigned char)(pair & 0xff), (unsigned char)(pair >> 8), r[k]};
    }
}
static void test_fp8_convert_in_kernels_equals_host(void) {
    const int n = 1 << 17;
    std::vector<float> x(n);
    for (int i = 0; i < n; i++) {
        uint32_t bits = i < 65536 ? (uint32_t)i << 16 : 0;
        memcpy(&x[i], &bits, 4);
        if (i >= 65536) { x[i] = fp8_oracle_float((uint32_t)i); }
    }
    float* in;
    DeviceCodes* out;
    cudaCheck(cudaMalloc(&in, n * sizeof(float)));
    cudaCheck(cudaMalloc(&out, n * sizeof(DeviceCodes)));
    cudaCheck(cudaMemcpy(in, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    launch<convert_kernel1>(n / 8 / 128, 128, 0, 0, out, in, n);
    std::vector<DeviceCodes> got(n);
    cudaCheck(cudaMemcpy(got.data(), out, n * sizeof(DeviceCodes), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) {
        int a = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3), b = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2);
        int partner = __nv_cvt_float_to_fp8(x[i / 8 * 8 + 7 - i % 8], __NV_SATFINITE, __NV_E4M3);
        unsigned r = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
        CHECK(got[i].e4m3 == a && got[i].e5m2 == b && got[i].pair_lo == a && got[i].pair_hi == partner && got[i].rounded == r,
              "%a: %02x %02x %02x %02x %04x in the kernel, %02x %02x %02x %02x %04x on the host", x[i], got[i].e4m3, got[i].e5m2, got[i].pair_lo, got[i].pair_hi, got[i].rounded, a, b, a, partner, r);
    }
    cudaCheck(cudaFree(in));
    cudaCheck(cudaFree(out));
}

#ifdef GPT_CPU_DEVICE
static void test_fp8_convert_vectors_equal_scalars(void) {
    for (__nv_fp8_interpretation_t format : {__NV_E4M3, __NV_E5M2}) {
        for (__nv_saturation_t saturate : {__NV_SATFINITE, __NV_NOSAT}) {
            for (uint32_t i = 0; i < FP8_ORACLE_FLOATS; i += 16) {
                float x[16], back[16];
                unsigned char codes[16], one[16];
                for (uint32_t k = 0; k < 16; k++) { x[k] = fp8_oracle_float(i + k); }
                cpu_fp8_from_float16(codes, x, saturate, format);
                cpu_fp8_to_float16(back, codes, format);
                for (int k = 0; k < 16; k++) { one[k] = __nv_cvt_float_to_fp8(x[k], saturate, format); }
                for (int k = 0; k < 16; k++) {
                    CHECK(codes[k] == one[k], "%a: %02x among sixteen, %02x alone", x[k], codes[k], one[k]);
                    float f = cpu_fp8_to_float(codes[k], format);
                    CHECK(!memcmp(&f, &back[k], 4), "code %02x: %a among sixteen, %a alone", codes[k], back[k], f);
                }
            }
        }
    }
}
// Half precision holds every FP8 value, so CUDA's intermediate format loses nothing.
static void test_fp8_convert_to_half(void) {
    for (__nv_fp8_interpretation_t format : {__NV_E4M3, __NV_E5M2}) {
        for (int code = 0; code < 256; code++) {
            unsigned h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, format).x, exponent = h >> 10 & 31u, mantissa = h & 1023u;
            float f = cpu_fp8_to_float((unsigned)code, format);
            if (f != f) { CHECK(h == 0x7fff, "code %02x: half %04x", code, h); continue; }
            double v = exponent == 31 ? INFINITY : exponent ? ldexp(1024.0 + mantissa, (int)exponent - 25) : ldexp((double)mantissa, -24);
            CHECK((h & 0x8000u ? -v : v) == (double)f && !!signbit(f) == !!(h & 0x8000u), "code %02x: half %04x, float %a", code, h, f);
        }
    }
}
#endif

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_convert_equals_cuda_digests", test_fp8_convert_equals_cuda_digests, QUICK},
        {"fp8_convert_equals_cuda_header", test_fp8_convert_equals_cuda_header, SLOW},
        {"fp8_convert_rounds_to_nearest_even", test_fp8_convert_rounds_to_nearest_even, QUICK},
        {"fp8_convert_round_trip", test_fp8_convert_round_trip, QUICK},
        {"fp8_convert_in_kernels_equals_host", test_fp8_convert_in_kernels_equals_host, QUICK},
#ifdef GPT_CPU_DEVICE
        {"fp8_convert_vectors_equal_scalars", test_fp8_convert_vectors_equal_scalars, QUICK},
        {"fp8_convert_to_half", test_fp8_convert_to_half, QUICK},
#endif
    };
    return TEST_MAIN(tests);
}
