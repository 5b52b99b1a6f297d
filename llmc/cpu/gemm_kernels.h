/* gemm_kernels.h - what gemm.h is made of: widening, packing, register-blocked kernels and epilogues, one set an instruction set
 *
 * What:      CpuGemmIsa is a row of function pointers; cpu_gemm_isa(level) fills it. A step is one dword of the contraction: two BF16 (BF16 rows) or one
 *            float (FP32 rows). An odd K is padded with zeros.
 * Layouts:   A: rows of steps, [row][lda]. B: panels of `width` columns (the last may be narrower, always a multiple of 16), [step][width]. Tiles: float [row][ldt].
 * Levels:    3 AVX-512 BF16 (vdpbf16ps), 2 AVX-512, 1 AVX2 + FMA, 0 plain C (SSE2, NEON: whatever the compiler makes of it). FP32 inputs run on 2 where 3
 *            is asked for; 16- and 8-bit inputs are widened to FP32 below 3. Chosen at run time, so one binary runs everywhere.
 * Numerics:  E4M3 and E5M2 values are exact in BF16 and products of two BF16 are exact in FP32, so all levels differ in the order of additions only
 *            (vdpbf16ps adds the odd product, then the even one). vdpbf16ps ignores the control word: it reads subnormal inputs as zero and flushes
 *            subnormal sums to zero (|x| < 2^-126); the other levels keep them, as the GPU does.
 * Tests:     dev/test/test_cpu_gemm.cu */
#ifndef LLMC_CPU_GEMM_KERNELS_H
#define LLMC_CPU_GEMM_KERNELS_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef enum { CPU_GEMM_F32 = 0, CPU_GEMM_BF16 = 1, CPU_GEMM_E4M3 = 2, CPU_GEMM_E5M2 = 3 } CpuGemmType;
static inline int cpu_gemm_type_size(CpuGemmType type) { return type == CPU_GEMM_F32 ? 4 : type == CPU_GEMM_BF16 ? 2 : 1; }

#define CPU_GEMM_TILE 16   // packing works on blocks of 16 rows x 16 steps
#define CPU_GEMM_MAX_ROWS 6
#define CPU_GEMM_MAX_VECS 4

// One side of the product as packing sees it: element (r, k) at data + r*row_stride + k*k_stride, in elements, one of the strides 1.
typedef struct {
    const void* data;
    CpuGemmType type;
    int64_t row_stride, k_stride;
} CpuGemmSide;

// What the epilogue does with a block of sums: out = alpha * sum + beta * c + bias.
typedef struct {
    float alpha, beta;          // beta == 0: c is not read
    CpuGemmType c_type, d_type; // F32 or BF16
    int64_t ldc, ldd;           // row strides in elements
    const float* bias_cols;     // one a column of the whole matrix, or NULL
    const float* bias_rows;     // one a row of the whole matrix, or NULL
} CpuGemmEpilogue;

typedef void (*CpuGemmKernel)(int64_t steps, const uint32_t* a, int64_t lda, const uint32_t* b, float* tile, int64_t ldt, bool add);
typedef struct {
    const char* name;
    bool bf16;                  // a step holds two BF16, else one float
    int rows, width;            // register block: rows x width columns; width is a multiple of 16
    // Packs rows [r0, r1) and steps [s0, s1) of a side with rows x k elements; what lies beyond becomes zero. r0 and s0 are multiples of 16.
    // by_step: dst[(s - s0) * ld + (r - r0)], else dst[(r - r0) * ld + (s - s0)]. Writes whole blocks of 16 x 16.
    void (*pack)(uint32_t* dst, int64_t ld, bool by_step, const CpuGemmSide* side, int64_t rows, int64_t k, int64_t r0, int64_t r1, int64_t s0, int64_t s1);
    CpuGemmKernel kernel[CPU_GEMM_MAX_ROWS][CPU_GEMM_MAX_VECS];  // [rows - 1][columns / 16 - 1]
    // The block of rows x cols at (i, j) of the matrix; c and d point at its first element.
    void (*epilogue)(void* d, const void* c, const float* tile, int64_t ldt, int64_t rows, int64_t cols, int64_t i, int64_t j, const CpuGemmEpilogue* e);
    // sums (rows, cols) = part * (row[i] * col[j]), or that is added to them (CPU_GEMM_PROMOTE_ADD). part may be sums.
    void (*promote)(float* sums, int64_t lds, const float* part, int64_t ldp, int64_t rows, int64_t cols, const float* row, const float* col, int how);
    // Divides what pack wrote (E4M3 and E5M2 only) by 2^down, down (ceil(k / 32), rows) at most 120, small enough that quotients are normal.
    void (*shift)(uint32_t* dst, int64_t ld, bool by_step, const uint8_t* down, int64_t rows, int64_t r0, int64_t r1, int64_t s0, int64_t s1);
} CpuGemmIsa;

// ----------------------------------------------------------------------------
// widening

static inline float cpu_gemm_bits_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t cpu_gemm_float_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

// BF16 bits of an FP8 magnitude (sign bit clear). mantissa bits: 3 (E4M3, bias 7, no infinity, 0x7f is NaN) or 2 (E5M2, bias 15, IEEE-like).
static constexpr uint16_t cpu_gemm_fp8_magnitude(int code, int mantissa) {
    int bias = mantissa == 3 ? 7 : 15, exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    if (mantissa == 3 && code == 0x7f) { return 0x7fc0; }
    if (mantissa == 2 && exponent == 31) { return fraction ? 0x7fc0 : 0x7f80; }
    if (exponent == 0) {  // subnormal in FP8, normal in BF16
        if (fraction == 0) { return 0; }
        int shift = 0;
        while (!((fraction << shift) & (1 << mantissa))) { shift++; }
        fraction = (fraction << shift) & ((1 << mantissa) - 1);
        exponent = 1 - shift;
    }
    return (uint16_t)(((exponent - bias + 127) << 7) | (fraction << (7 - mantissa)));
}
typedef struct { alignas(64) uint16_t magnitude[2][128]; } CpuGemmFp8Table;
static constexpr CpuGemmFp8Table cpu_gemm_fp8_make_table(void) {
    CpuGemmFp8Table t = {};
    for (int i = 0; i < 128; i++) { t.magnitude[0][i] = cpu_gemm_fp8_magnitude(i, 3); t.magnitude[1][i] = cpu_gemm_fp8_magnitude(i, 2); }
    return t;
}
static constexpr CpuGemmFp8Table cpu_gemm_fp8_table = cpu_gemm_fp8_make_table();

static inline uint16_t cpu_gemm_fp8_to_bf16(uint8_t code, CpuGemmType type) {
    return (uint16_t)(cpu_gemm_fp8_table.magnitude[type == CPU_GEMM_E5M2][code & 0x7f] | (code & 0x80) << 8);
}
static inline float cpu_gemm_load(const void* data, int64_t i, CpuGemmType type) {
    if (type == CPU_GEMM_F32) { return ((const float*)data)[i]; }
    uint32_t bf16 = type == CPU_GEMM_BF16 ? ((const uint16_t*)data)[i] : cpu_gemm_fp8_to_bf16(((const uint8_t*)data)[i], type);
    return cpu_gemm_bits_float(bf16 << 16);
}
// Nearest, ties to even; every NaN becomes 0x7fff, as the GPU's conversion does.
static inline __attribute__((always_inline)) uint16_t cpu_gemm_float_to_bf16(float x) {
    uint32_t u = cpu_gemm_float_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

// ----------------------------------------------------------------------------
// bodies that the compiler vectorizes for whatever instruction set the caller is compiled for

#if defined(__clang__)
#define CPU_GEMM_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define CPU_GEMM_IVDEP _Pragma("GCC ivdep")
#endif

#define CPU_GEMM_INLINE static inline __attribute__((always_inline))
#define CPU_GEMM_EPILOGUE_ARGS void* d, const void* c, const float* tile, int64_t ldt, int64_t rows, int64_t cols, int64_t i, int64_t j, const CpuGemmEpilogue* e

template <CpuGemmType CT, CpuGemmType DT, bool BETA, int BIAS>
CPU_GEMM_INLINE void cpu_gemm_epilogue_block(CPU_GEMM_EPILOGUE_ARGS) {
    const float alpha = e->alpha, beta = e->beta;
    for (int64_t y = 0; y < rows; y++) {
        const float* t = tile + y * ldt;
        const float* bias_cols = BIAS == 1 ? e->bias_cols + j : NULL;
        const float bias_row = BIAS == 2 ? e->bias_rows[i + y] : 0.0f;
        float* d_f32 = (float*)d + y * e->ldd;
        uint16_t* d_bf16 = (uint16_t*)d + y * e->ldd;
        const float* c_f32 = (const float*)c + y * e->ldc;
        const uint16_t* c_bf16 = (const uint16_t*)c + y * e->ldc;
        CPU_GEMM_IVDEP  // d may be c, element by element
        for (int64_t x = 0; x < cols; x++) {
            float v = alpha * t[x];
            if (BETA) { v = v + beta * (CT == CPU_GEMM_F32 ? c_f32[x] : cpu_gemm_bits_float((uint32_t)c_bf16[x] << 16)); }
            if (BIAS == 1) { v = v + bias_cols[x]; }
            if (BIAS == 2) { v = v + bias_row; }
            if (DT == CPU_GEMM_F32) { d_f32[x] = v; } else { d_bf16[x] = cpu_gemm_float_to_bf16(v); }
        }
    }
}
template <CpuGemmType CT, CpuGemmType DT, bool BETA>
CPU_GEMM_INLINE void cpu_gemm_epilogue_bias(CPU_GEMM_EPILOGUE_ARGS) {
    if (e->bias_cols) { cpu_gemm_epilogue_block<CT, DT, BETA, 1>(d, c, tile, ldt, rows, cols, i, j, e); }
    else if (e->bias_rows) { cpu_gemm_epilogue_block<CT, DT, BETA, 2>(d, c, tile, ldt, rows, cols, i, j, e); }
    else { cpu_gemm_epilogue_block<CT, DT, BETA, 0>(d, c, tile, ldt, rows, cols, i, j, e); }
}
CPU_GEMM_INLINE void cpu_gemm_epilogue_body(CPU_GEMM_EPILOGUE_ARGS) {
    const int kind = (e->beta != 0.0f ? 4 + 2 * (e->c_type == CPU_GEMM_BF16) : 0) + (e->d_type == CPU_GEMM_BF16);
    switch (kind) {
        case 0: cpu_gemm_epilogue_bias<CPU_GEMM_F32, CPU_GEMM_F32, false>(d, c, tile, ldt, rows, cols, i, j, e); break;
        case 1: cpu_gemm_epilogue_bias<CPU_GEMM_F32, CPU_GEMM_BF16, false>(d, c, tile, ldt, rows, cols, i, j, e); break;
        case 4: cpu_gemm_epilogue_bias<CPU_GEMM_F32, CPU_GEMM_F32, true>(d, c, tile, ldt, rows, cols, i, j, e); break;
        case 5: cpu_gemm_epilogue_bias<CPU_GEMM_F32, CPU_GEMM_BF16, true>(d, c, tile, ldt, rows, cols, i, j, e); break;
        case 6: cpu_gemm_epilogue_bias<CPU_GEMM_BF16, CPU_GEMM_F32, true>(d, c, tile, ldt, rows, cols, i, j, e); break;
        case 7: cpu_gemm_epilogue_bias<CPU_GEMM_BF16, CPU_GEMM_BF16, true>(d, c, tile, ldt, rows, cols, i, j, e); break;
    }
}

// WIDE: row[i] * col[j] are powers of two that a float may not hold, so they meet in double, where nothing is lost before the last rounding.
enum { CPU_GEMM_PROMOTE_ADD = 1, CPU_GEMM_PROMOTE_WIDE = 2 };
#define CPU_GEMM_PROMOTE_ARGS float* sums, int64_t lds, const float* part, int64_t ldp, int64_t rows, int64_t cols, const float* row, const float* col, int how

template <bool ADD, bool WIDE>
CPU_GEMM_INLINE void cpu_gemm_promote_block(CPU_GEMM_PROMOTE_ARGS) {
    (void)how;
    for (int64_t y = 0; y < rows; y++) {
        float* s = sums + y * lds;
        const float* t = part + y * ldp;
        const float r = row[y];
        CPU_GEMM_IVDEP
        for (int64_t x = 0; x < cols; x++) {
            const float v = WIDE ? (float)((double)t[x] * ((double)r * (double)col[x])) : t[x] * (r * col[x]);
            s[x] = ADD ? s[x] + v : v;
        }
    }
}
CPU_GEMM_INLINE void cpu_gemm_promote_body(CPU_GEMM_PROMOTE_ARGS) {
    switch (how) {
        case 0: cpu_gemm_promote_block<false, false>(sums, lds, part, ldp, rows, cols, row, col, how); break;
        case 1: cpu_gemm_promote_block<true, false>(sums, lds, part, ldp, rows, cols, row, col, how); break;
        case 2: cpu_gemm_promote_block<false, true>(sums, lds, part, ldp, rows, cols, row, col, how); break;
        case 3: cpu_gemm_promote_block<true, true>(sums, lds, part, ldp, rows, cols, row, col, how); break;
    }
}

#define CPU_GEMM_SHIFT_ARGS uint32_t* dst, int64_t ld, bool by_step, const uint8_t* down, int64_t rows, int64_t r0, int64_t r1, int64_t s0, int64_t s1

// One step divided by 2^down. PAIRS: two BF16, whose exponents sink; zeros, infinities and NaN stay.
template <bool PAIRS>
CPU_GEMM_INLINE uint32_t cpu_gemm_shift_step(uint32_t step, uint32_t down) {
    if (!PAIRS) { return cpu_gemm_float_bits(cpu_gemm_bits_float(step) * cpu_gemm_bits_float((127 - down) << 23)); }
    const uint32_t lo = step & 0x7fffu, hi = step & 0x7fff0000u;
    return step - (lo - 1 < 0x7f7fu ? down << 7 : 0) - (hi - 0x10000u < 0x7f7f0000u ? down << 23 : 0);
}
template <bool PAIRS>
CPU_GEMM_INLINE void cpu_gemm_shift_body(CPU_GEMM_SHIFT_ARGS) {
    const int64_t block = PAIRS ? 16 : 32, count = (r1 < rows ? r1 : rows) - r0;  // steps of 32 elements; rows that exist
    for (int64_t s = s0; s < s1; s += block) {
        const uint8_t* d = down + s / block * rows + r0;
        const int64_t steps = block < s1 - s ? block : s1 - s;
        if (by_step) {
            for (int64_t i = 0; i < steps; i++) {
                uint32_t* to = dst + (s - s0 + i) * ld;
                CPU_GEMM_IVDEP
                for (int64_t r = 0; r < count; r++) { to[r] = cpu_gemm_shift_step<PAIRS>(to[r], d[r]); }
            }
        } else {
            for (int64_t r = 0; r < count; r++) {
                uint32_t* to = dst + r * ld + (s - s0);
                CPU_GEMM_IVDEP
                for (int64_t i = 0; i < steps; i++) { to[i] = cpu_gemm_shift_step<PAIRS>(to[i], d[r]); }
            }
        }
    }
}

#define CPU_GEMM_PACK_ARGS uint32_t* dst, int64_t ld, bool by_step, const CpuGemmSide* side, int64_t rows, int64_t k, int64_t r0, int64_t r1, int64_t s0, int64_t s1
#define CPU_GEMM_KERNEL_ARGS int64_t steps, const uint32_t* a, int64_t lda, const uint32_t* b, float* tile, int64_t ldt, bool add

static inline int cpu_gemm_clip(int64_t n, int most) { return n <= 0 ? 0 : n < most ? (int)n : most; }

// The bits of an element as a float, without branches or tables.
template <CpuGemmType T>
CPU_GEMM_INLINE uint32_t cpu_gemm_widen_bits(const void* data, int64_t at) {
    if (T == CPU_GEMM_F32) { return ((const uint32_t*)data)[at]; }
    if (T == CPU_GEMM_BF16) { return (uint32_t)((const uint16_t*)data)[at] << 16; }
    const uint32_t code = ((const uint8_t*)data)[at], a = code & 0x7f, sign = (code & 0x80) << 24;
    const uint32_t normal = T == CPU_GEMM_E4M3 ? (a << 20) + (120u << 23) : (a << 21) + (112u << 23);
    const uint32_t tiny = cpu_gemm_float_bits((float)(int)a * (T == CPU_GEMM_E4M3 ? 0x1p-9f : 0x1p-16f));
    const uint32_t finite = a < (T == CPU_GEMM_E4M3 ? 8u : 4u) ? tiny : normal;
    return sign | (T == CPU_GEMM_E4M3 ? (a == 0x7f ? 0x7fc00000u : finite) : (a > 0x7c ? 0x7fc00000u : a == 0x7c ? 0x7f800000u : finite));
}

// Packing to floats: vectors of 16 run along the contiguous direction; a block is written as it was read, or transposed.
template <CpuGemmType T>
CPU_GEMM_INLINE void cpu_gemm_pack_f32_typed(CPU_GEMM_PACK_ARGS) {
    const int64_t rs = side->row_stride, ks = side->k_stride;
    const bool along_k = ks == 1, transpose = along_k == by_step;
    for (int64_t r = r0; r < r1; r += CPU_GEMM_TILE) {
        for (int64_t s = s0; s < s1; s += CPU_GEMM_TILE) {
            const int nr = cpu_gemm_clip(rows - r, CPU_GEMM_TILE), nk = cpu_gemm_clip(k - s, CPU_GEMM_TILE);
            const int vectors = along_k ? nr : nk, length = along_k ? nk : nr;
            uint32_t x[CPU_GEMM_TILE][CPU_GEMM_TILE];
            for (int i = 0; i < CPU_GEMM_TILE; i++) {
                const int64_t at = along_k ? (r + i) * rs + s : (s + i) * ks + r;
                const int n = i < vectors ? length : 0;
                if (n == CPU_GEMM_TILE) { for (int j = 0; j < CPU_GEMM_TILE; j++) { x[i][j] = cpu_gemm_widen_bits<T>(side->data, at + j); } }
                else { for (int j = 0; j < CPU_GEMM_TILE; j++) { x[i][j] = j < n ? cpu_gemm_widen_bits<T>(side->data, at + j) : 0; } }
            }
            uint32_t* to = by_step ? dst + (s - s0) * ld + (r - r0) : dst + (r - r0) * ld + (s - s0);
            for (int i = 0; i < CPU_GEMM_TILE; i++) {
                if (transpose) { for (int j = 0; j < CPU_GEMM_TILE; j++) { to[i * ld + j] = x[j][i]; } }
                else { for (int j = 0; j < CPU_GEMM_TILE; j++) { to[i * ld + j] = x[i][j]; } }
            }
        }
    }
}
CPU_GEMM_INLINE void cpu_gemm_pack_f32_body(CPU_GEMM_PACK_ARGS) {
    switch (side->type) {
        case CPU_GEMM_F32: cpu_gemm_pack_f32_typed<CPU_GEMM_F32>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
        case CPU_GEMM_BF16: cpu_gemm_pack_f32_typed<CPU_GEMM_BF16>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
        case CPU_GEMM_E4M3: cpu_gemm_pack_f32_typed<CPU_GEMM_E4M3>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
        case CPU_GEMM_E5M2: cpu_gemm_pack_f32_typed<CPU_GEMM_E5M2>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
    }
}

// Full unrolling keeps the register block in registers.
#if defined(__clang__)
#define CPU_GEMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CPU_GEMM_UNROLL _Pragma("GCC unroll 8")
#endif

// ----------------------------------------------------------------------------
// level 0: plain C

#if defined(__FMA__) || defined(__aarch64__)
#define CPU_GEMM_FMA(x, y, z) __builtin_fmaf(x, y, z)
#else
#define CPU_GEMM_FMA(x, y, z) ((x) * (y) + (z))
#endif

#if defined(__aarch64__)
#define CPU_GEMM_PLAIN_ROWS 6  // 32 registers of 4 floats
#else
#define CPU_GEMM_PLAIN_ROWS 3  // 16 registers of 4 floats
#endif

template <int ROWS, int VECS>
static void cpu_gemm_kernel_plain(CPU_GEMM_KERNEL_ARGS) {
    const int W = VECS * 16;
    float acc[ROWS][W];
    for (int r = 0; r < ROWS; r++) { for (int j = 0; j < W; j++) { acc[r][j] = add ? tile[r * ldt + j] : 0.0f; } }
    for (int64_t s = 0; s < steps; s++) {
        for (int r = 0; r < ROWS; r++) {
            float x = cpu_gemm_bits_float(a[r * lda + s]);
            for (int j = 0; j < W; j++) { acc[r][j] = CPU_GEMM_FMA(x, cpu_gemm_bits_float(b[s * W + j]), acc[r][j]); }
        }
    }
    for (int r = 0; r < ROWS; r++) { for (int j = 0; j < W; j++) { tile[r * ldt + j] = acc[r][j]; } }
}
static void cpu_gemm_pack_plain(CPU_GEMM_PACK_ARGS) { cpu_gemm_pack_f32_body(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); }
static void cpu_gemm_epilogue_plain(CPU_GEMM_EPILOGUE_ARGS) { cpu_gemm_epilogue_body(d, c, tile, ldt, rows, cols, i, j, e); }
static void cpu_gemm_promote_plain(CPU_GEMM_PROMOTE_ARGS) { cpu_gemm_promote_body(sums, lds, part, ldp, rows, cols, row, col, how); }
static void cpu_gemm_shift_plain(CPU_GEMM_SHIFT_ARGS) { cpu_gemm_shift_body<false>(dst, ld, by_step, down, rows, r0, r1, s0, s1); }

#if defined(__x86_64__)

// ----------------------------------------------------------------------------
// level 1: AVX2 + FMA

#define CPU_GEMM_AVX2 __attribute__((target("avx2,fma")))

template <int ROWS, int VECS>
CPU_GEMM_AVX2 static void cpu_gemm_kernel_avx2(CPU_GEMM_KERNEL_ARGS) {
    const int V = VECS * 2;
    __m256 acc[ROWS][V];
    if (add) {
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < V; v++) { acc[r][v] = _mm256_loadu_ps(tile + r * ldt + v * 8); } }
    } else {
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < V; v++) { acc[r][v] = _mm256_setzero_ps(); } }
    }
    for (int64_t s = 0; s < steps; s++) {
        __m256 y[V];
        CPU_GEMM_UNROLL for (int v = 0; v < V; v++) { y[v] = _mm256_loadu_ps((const float*)b + s * V * 8 + v * 8); }
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) {
            __m256 x = _mm256_broadcast_ss((const float*)a + r * lda + s);
            CPU_GEMM_UNROLL for (int v = 0; v < V; v++) { acc[r][v] = _mm256_fmadd_ps(x, y[v], acc[r][v]); }
        }
    }
    CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < V; v++) { _mm256_storeu_ps(tile + r * ldt + v * 8, acc[r][v]); } }
}
CPU_GEMM_AVX2 static void cpu_gemm_pack_avx2(CPU_GEMM_PACK_ARGS) { cpu_gemm_pack_f32_body(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); }
CPU_GEMM_AVX2 static void cpu_gemm_epilogue_avx2(CPU_GEMM_EPILOGUE_ARGS) { cpu_gemm_epilogue_body(d, c, tile, ldt, rows, cols, i, j, e); }
CPU_GEMM_AVX2 static void cpu_gemm_promote_avx2(CPU_GEMM_PROMOTE_ARGS) { cpu_gemm_promote_body(sums, lds, part, ldp, rows, cols, row, col, how); }
CPU_GEMM_AVX2 static void cpu_gemm_shift_avx2(CPU_GEMM_SHIFT_ARGS) { cpu_gemm_shift_body<false>(dst, ld, by_step, down, rows, r0, r1, s0, s1); }

// ----------------------------------------------------------------------------
// levels 2 and 3: AVX-512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12's own intrinsics use an undefined vector as a don't-care
#endif

#define CPU_GEMM_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define CPU_GEMM_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))

template <int ROWS, int VECS>
CPU_GEMM_AVX512 static void cpu_gemm_kernel_avx512(CPU_GEMM_KERNEL_ARGS) {
    __m512 acc[ROWS][VECS];
    if (add) {
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { acc[r][v] = _mm512_loadu_ps(tile + r * ldt + v * 16); } }
    } else {
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { acc[r][v] = _mm512_setzero_ps(); } }
    }
    for (int64_t s = 0; s < steps; s++) {
        __m512 y[VECS];
        CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { y[v] = _mm512_loadu_ps((const float*)b + s * VECS * 16 + v * 16); }
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) {
            __m512 x = _mm512_set1_ps(((const float*)a)[r * lda + s]);
            CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { acc[r][v] = _mm512_fmadd_ps(x, y[v], acc[r][v]); }
        }
    }
    CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { _mm512_storeu_ps(tile + r * ldt + v * 16, acc[r][v]); } }
}

typedef uint32_t __attribute__((aligned(2), may_alias)) CpuGemmPair;  // two BF16 of a row of any alignment

template <int ROWS, int VECS>
CPU_GEMM_AVX512_BF16 static void cpu_gemm_kernel_avx512_bf16(CPU_GEMM_KERNEL_ARGS) {
    __m512 acc[ROWS][VECS];
    if (add) {
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { acc[r][v] = _mm512_loadu_ps(tile + r * ldt + v * 16); } }
    } else {
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { acc[r][v] = _mm512_setzero_ps(); } }
    }
    const char* row = (const char*)a;
    for (int64_t s = 0; s < steps; s++) {
        __m512i y[VECS];
        CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { y[v] = _mm512_loadu_si512(b + s * VECS * 16 + v * 16); }
        CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) {
            __m512i x = _mm512_set1_epi32((int)*(const CpuGemmPair*)(row + r * lda * 4 + s * 4));
            CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)x, (__m512bh)y[v]); }
        }
    }
    CPU_GEMM_UNROLL for (int r = 0; r < ROWS; r++) { CPU_GEMM_UNROLL for (int v = 0; v < VECS; v++) { _mm512_storeu_ps(tile + r * ldt + v * 16, acc[r][v]); } }
}

// 16 x 16 dwords in place: x[i] lane j <-> x[j] lane i.
CPU_GEMM_AVX512 static inline void cpu_gemm_transpose16(__m512i x[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 4) {
        __m512i p = _mm512_unpacklo_epi32(x[i], x[i + 1]), q = _mm512_unpackhi_epi32(x[i], x[i + 1]);
        __m512i r = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]), s = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        t[i] = _mm512_unpacklo_epi64(p, r);      // in each 128-bit lane L: column 4L of rows i..i+3
        t[i + 1] = _mm512_unpackhi_epi64(p, r);  // column 4L + 1
        t[i + 2] = _mm512_unpacklo_epi64(q, s);
        t[i + 3] = _mm512_unpackhi_epi64(q, s);
    }
    for (int c = 0; c < 4; c++) {  // gather the 128-bit lanes: column 4L + c
        __m512i a = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88), b = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
        __m512i e = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88), f = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
        x[c] = _mm512_shuffle_i32x4(a, e, 0x88);
        x[8 + c] = _mm512_shuffle_i32x4(a, e, 0xdd);
        x[4 + c] = _mm512_shuffle_i32x4(b, f, 0x88);
        x[12 + c] = _mm512_shuffle_i32x4(b, f, 0xdd);
    }
}

// 32 FP8 codes (zero-extended to 16 bits) to BF16: a table of 128 magnitudes in four registers, the sign moved over.
typedef struct { __m512i t[4]; } CpuGemmFp8Lut;
template <CpuGemmType T>
CPU_GEMM_AVX512 static inline CpuGemmFp8Lut cpu_gemm_fp8_lut(void) {
    CpuGemmFp8Lut lut = {};
    if (T == CPU_GEMM_E4M3 || T == CPU_GEMM_E5M2) {
        for (int i = 0; i < 4; i++) { lut.t[i] = _mm512_load_si512(cpu_gemm_fp8_table.magnitude[T == CPU_GEMM_E5M2] + 32 * i); }
    }
    return lut;
}
CPU_GEMM_AVX512 static inline __m512i cpu_gemm_fp8_widen(__m512i codes, const CpuGemmFp8Lut* lut) {
    __m512i low = _mm512_permutex2var_epi16(lut->t[0], codes, lut->t[1]), high = _mm512_permutex2var_epi16(lut->t[2], codes, lut->t[3]);
    __mmask32 upper = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    __m512i magnitude = _mm512_mask_blend_epi16(upper, low, high);
    return _mm512_or_si512(magnitude, _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)), 8));
}

// 16 BF16 in dwords (low half), from 16 consecutive elements of which n exist.
template <CpuGemmType T>
CPU_GEMM_AVX512 static inline __m512i cpu_gemm_load16(const void* data, int64_t at, int n, const CpuGemmFp8Lut* lut) {
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (T == CPU_GEMM_F32) { return _mm512_maskz_loadu_epi32(mask, (const float*)data + at); }
    if (T == CPU_GEMM_BF16) { return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, (const uint16_t*)data + at)); }
    __m512i codes = _mm512_cvtepu8_epi16(_mm256_castsi128_si256(_mm_maskz_loadu_epi8(mask, (const uint8_t*)data + at)));
    return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(cpu_gemm_fp8_widen(codes, lut)));
}
// 32 BF16 from consecutive elements of which n exist.
template <CpuGemmType T>
CPU_GEMM_AVX512 static inline __m512i cpu_gemm_load32(const void* data, int64_t at, int n, const CpuGemmFp8Lut* lut) {
    __mmask32 mask = n >= 32 ? 0xffffffffu : (1u << n) - 1;
    if (T == CPU_GEMM_BF16) { return _mm512_maskz_loadu_epi16(mask, (const uint16_t*)data + at); }
    return cpu_gemm_fp8_widen(_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, (const uint8_t*)data + at)), lut);
}
// PAIRS: a step is two BF16, else one float.
template <CpuGemmType T, bool PAIRS>
CPU_GEMM_AVX512 static void cpu_gemm_pack_avx512_typed(CPU_GEMM_PACK_ARGS) {
    const CpuGemmFp8Lut lut = cpu_gemm_fp8_lut<T>();
    const int unit = PAIRS ? 2 : 1;
    const int64_t rs = side->row_stride, ks = side->k_stride;
    const bool along_k = ks == 1;                 // vectors run along the steps of one row, else along the rows of one step
    const bool transpose = along_k == by_step;
    for (int64_t r = r0; r < r1; r += CPU_GEMM_TILE) {
        const int nr = cpu_gemm_clip(rows - r, CPU_GEMM_TILE);
        for (int64_t s = s0; s < s1; s += CPU_GEMM_TILE) {
            __m512i x[CPU_GEMM_TILE];
            if (along_k) {
                const int nk = cpu_gemm_clip(k - s * unit, CPU_GEMM_TILE * unit);
                for (int i = 0; i < CPU_GEMM_TILE; i++) {
                    if (i >= nr) { x[i] = _mm512_setzero_si512(); }
                    else if (PAIRS) { x[i] = cpu_gemm_load32<T>(side->data, (r + i) * rs + s * unit, nk, &lut); }
                    else { x[i] = cpu_gemm_load16<T>(side->data, (r + i) * rs + s, nk, &lut); if (T != CPU_GEMM_F32) { x[i] = _mm512_slli_epi32(x[i], 16); } }
                }
            } else {
                for (int i = 0; i < CPU_GEMM_TILE; i++) {
                    const int64_t at = (s + i) * unit;
                    x[i] = at < k ? cpu_gemm_load16<T>(side->data, r + at * ks, nr, &lut) : _mm512_setzero_si512();
                    if (PAIRS) {
                        if (at + 1 < k) { x[i] = _mm512_or_si512(x[i], _mm512_slli_epi32(cpu_gemm_load16<T>(side->data, r + (at + 1) * ks, nr, &lut), 16)); }
                    } else if (T != CPU_GEMM_F32) { x[i] = _mm512_slli_epi32(x[i], 16); }
                }
            }
            if (transpose) { cpu_gemm_transpose16(x); }
            uint32_t* to = by_step ? dst + (s - s0) * ld + (r - r0) : dst + (r - r0) * ld + (s - s0);
            for (int i = 0; i < CPU_GEMM_TILE; i++) { _mm512_storeu_si512(to + i * ld, x[i]); }
        }
    }
}
template <bool PAIRS>
static void cpu_gemm_pack_avx512(CPU_GEMM_PACK_ARGS) {
    switch (side->type) {
        case CPU_GEMM_F32: if (!PAIRS) { cpu_gemm_pack_avx512_typed<CPU_GEMM_F32, false>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); } break;
        case CPU_GEMM_BF16: cpu_gemm_pack_avx512_typed<CPU_GEMM_BF16, PAIRS>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
        case CPU_GEMM_E4M3: cpu_gemm_pack_avx512_typed<CPU_GEMM_E4M3, PAIRS>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
        case CPU_GEMM_E5M2: cpu_gemm_pack_avx512_typed<CPU_GEMM_E5M2, PAIRS>(dst, ld, by_step, side, rows, k, r0, r1, s0, s1); break;
    }
}
CPU_GEMM_AVX512 static void cpu_gemm_epilogue_avx512(CPU_GEMM_EPILOGUE_ARGS) { cpu_gemm_epilogue_body(d, c, tile, ldt, rows, cols, i, j, e); }
CPU_GEMM_AVX512 static void cpu_gemm_promote_avx512(CPU_GEMM_PROMOTE_ARGS) { cpu_gemm_promote_body(sums, lds, part, ldp, rows, cols, row, col, how); }
template <bool PAIRS>
CPU_GEMM_AVX512 static void cpu_gemm_shift_avx512(CPU_GEMM_SHIFT_ARGS) { cpu_gemm_shift_body<PAIRS>(dst, ld, by_step, down, rows, r0, r1, s0, s1); }

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif

// ----------------------------------------------------------------------------
// the table

#define CPU_GEMM_KERNEL_ROW(fn, r) {fn<r, 1>, fn<r, 2>, fn<r, 3>, fn<r, 4>}
#define CPU_GEMM_KERNELS(fn) {CPU_GEMM_KERNEL_ROW(fn, 1), CPU_GEMM_KERNEL_ROW(fn, 2), CPU_GEMM_KERNEL_ROW(fn, 3), \
                              CPU_GEMM_KERNEL_ROW(fn, 4), CPU_GEMM_KERNEL_ROW(fn, 5), CPU_GEMM_KERNEL_ROW(fn, 6)}
// for small register files: one vector of 16 columns
#define CPU_GEMM_KERNELS1(fn) {{fn<1, 1>}, {fn<2, 1>}, {fn<3, 1>}, {fn<4, 1>}, {fn<5, 1>}, {fn<6, 1>}}

// The highest level this processor has.
static inline int cpu_gemm_best_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) { return 1; }
#endif
    return 0;
}

// Tile multiplication of BF16 (Sapphire Rapids and later): CPUID 7.0, EDX bit 22.
static inline bool cpu_gemm_has_amx_bf16(void) {
#if defined(__x86_64__)
    static const bool has = [] {  // asked once: a virtual machine traps here
        unsigned a, b, c, d;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
    }();
    return has;
#else
    return false;
#endif
}

// The functions for a level and kind of inputs. level must not exceed cpu_gemm_best_level().
static inline const CpuGemmIsa* cpu_gemm_isa(int level, bool inputs_fit_bf16) {
    static const CpuGemmIsa plain = {"plain", false, CPU_GEMM_PLAIN_ROWS, 16, cpu_gemm_pack_plain, CPU_GEMM_KERNELS1(cpu_gemm_kernel_plain), cpu_gemm_epilogue_plain,
                                      cpu_gemm_promote_plain, cpu_gemm_shift_plain};
#if defined(__x86_64__)
    static const CpuGemmIsa avx2 = {"avx2", false, 6, 16, cpu_gemm_pack_avx2, CPU_GEMM_KERNELS1(cpu_gemm_kernel_avx2), cpu_gemm_epilogue_avx2,
                                     cpu_gemm_promote_avx2, cpu_gemm_shift_avx2};
    static const CpuGemmIsa avx512 = {"avx512", false, 6, 64, cpu_gemm_pack_avx512<false>, CPU_GEMM_KERNELS(cpu_gemm_kernel_avx512), cpu_gemm_epilogue_avx512,
                                       cpu_gemm_promote_avx512, cpu_gemm_shift_avx512<false>};
    static const CpuGemmIsa bf16 = {"avx512_bf16", true, 6, 64, cpu_gemm_pack_avx512<true>, CPU_GEMM_KERNELS(cpu_gemm_kernel_avx512_bf16), cpu_gemm_epilogue_avx512,
                                     cpu_gemm_promote_avx512, cpu_gemm_shift_avx512<true>};
    if (level >= 3 && inputs_fit_bf16) { return &bf16; }
    if (level >= 2) { return &avx512; }
    if (level == 1) { return &avx2; }
#endif
    (void)level;
    (void)inputs_fit_bf16;
    return &plain;
}

#endif
