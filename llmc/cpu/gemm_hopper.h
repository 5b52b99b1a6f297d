/* gemm_hopper.h - FP8 products with the truncated accumulator of Hopper's tensor cores (fast accumulation), emulated
 *
 * What:      the same product as cpu_gemm for E4M3/E5M2 inputs, summed as an FP8 wgmma sums (k = 32 a step) when nothing promotes its accumulator to FP32.
 * Model:     the accumulator c is a float with 13 fraction bits (1 + 8 + 13 bits). Each step of 32 products p = a * b, in the order of k:
 *              exponents: of a product e(a) + e(b), not normalised, so that |p| < 4 * 2^e; e(x) = floor(log2 |x|), for subnormals that of the smallest
 *                         normal (-6 or -14); of c, floor(log2 |c|). Zeros have none. E = the largest of the 33.
 *              alignment: every product and c is cut toward zero to a multiple of 2^(E - 13).
 *              sum:       the 33 are added exactly, the result is cut toward zero to 13 fraction bits.
 *            This is what DeepSeek-V3 (section 3.5.2) and the DeepGEMM and SageAttention threads report of the chip: about 14 bits survive, aligned to the
 *            largest exponent, without rounding. Unverified on a chip by us: the choice of the unnormalised exponent and k = 32 a step.
 *            With scales of blocks of K (128) the accumulator starts anew in each: its sum is promoted to FP32 and scaled there, as DeepSeek-V3 and DeepGEMM do.
 *            Inputs with NaN or infinity: that element's dot product is summed in FP32 instead.
 * Speed:     13 GFLOP/s a core of a Zen 4, 1/16 of the FP32 path; for studies. Tests: dev/test/test_cpu_gemm.cu (against a plain loop in integers). */
#ifndef LLMC_CPU_GEMM_HOPPER_H
#define LLMC_CPU_GEMM_HOPPER_H

#ifndef LLMC_CPU_GEMM_H
#error "include gemm.h, of which this is a part"
#endif

#define CPU_HOPPER_STEP 32
#define CPU_HOPPER_LANES 16
#define CPU_HOPPER_NONE (-1000)  // exponent of zero: below all others, also in sums of two

typedef int32_t CpuHopperInt __attribute__((vector_size(64)));
typedef float CpuHopperFloat __attribute__((vector_size(64)));

// |code| = significand * 2^(exponent - 3); sign 0 or -1. Finite codes only.
static inline void cpu_hopper_decode(uint8_t code, CpuGemmType type, int32_t* significand, int32_t* exponent, int32_t* sign) {
    const int mantissa = type == CPU_GEMM_E4M3 ? 3 : 2, bias = type == CPU_GEMM_E4M3 ? 7 : 15;
    const int e = (code & 0x7f) >> mantissa, fraction = code & ((1 << mantissa) - 1);
    *significand = (e ? fraction | 1 << mantissa : fraction) << (3 - mantissa);
    *exponent = *significand == 0 ? CPU_HOPPER_NONE : (e ? e : 1) - bias;
    *sign = code & 0x80 ? -1 : 0;
}
static inline bool cpu_hopper_finite(uint8_t code, CpuGemmType type) { return type == CPU_GEMM_E4M3 ? (code & 0x7f) != 0x7f : (code & 0x7c) != 0x7c; }

// 16 accumulators take one step. a_*: 32 values; b_*: 32 vectors of 16.
static inline void cpu_hopper_step(CpuHopperFloat* acc, const int32_t* a_sig, const int32_t* a_exp, const int32_t* a_sign,
                                   const CpuHopperInt* b_sig, const CpuHopperInt* b_exp, const CpuHopperInt* b_sign) {
    CpuHopperInt bits;
    memcpy(&bits, acc, sizeof(bits));
    const CpuHopperInt c_zero = (bits & 0x7fffffff) == 0;
    const CpuHopperInt c_exp = c_zero ? CPU_HOPPER_NONE - (bits & 0) : ((bits >> 23) & 0xff) - 127;
    CpuHopperInt top = c_exp;
    for (int p = 0; p < CPU_HOPPER_STEP; p++) {
        const CpuHopperInt e = b_exp[p] + a_exp[p];
        top = e > top ? e : top;
    }
    const CpuHopperInt c_sig = c_zero ? (bits & 0) : ((bits & 0x7fffff) | 0x800000) >> 10, c_sign = bits >> 31;
    CpuHopperInt shift = top - c_exp;
    shift = shift > 31 ? (shift & 0) + 31 : shift;
    CpuHopperInt sum = ((c_sig >> shift) ^ c_sign) - c_sign;
    for (int p = 0; p < CPU_HOPPER_STEP; p++) {
        shift = top - b_exp[p] - a_exp[p];
        shift = shift > 31 ? (shift & 0) + 31 : shift;
        const CpuHopperInt sign = b_sign[p] ^ a_sign[p];
        sum += (((b_sig[p] * a_sig[p]) << 7 >> shift) ^ sign) - sign;  // 6 fraction bits become 13
    }
    CpuHopperFloat f = __builtin_convertvector(sum, CpuHopperFloat);  // below 2^21: exact
    memcpy(&bits, &f, sizeof(bits));
    bits &= (int32_t)0xfffffc00;                                       // 13 fraction bits
    const CpuHopperInt nonzero = sum != 0;
    bits += ((top - 13) << 23) & nonzero;                              // times 2^(E - 13); E is at least -28, no subnormals
    memcpy(acc, &bits, sizeof(bits));
}

typedef struct { int32_t *sig, *exp, *sign; bool* bad; } CpuHopperSide;

// 16 columns of D from j, all rows. scratch: 3 * k_padded vectors.
static inline void cpu_hopper_block(const CpuGemmPlan* p, int64_t j, const CpuHopperSide* a, int64_t k_padded, CpuHopperInt* scratch) {
    CpuHopperInt *b_sig = scratch, *b_exp = scratch + k_padded, *b_sign = scratch + 2 * k_padded;
    bool b_bad[CPU_HOPPER_LANES] = {false};
    for (int64_t k = 0; k < k_padded; k++) {
        int32_t sig[CPU_HOPPER_LANES], exponent[CPU_HOPPER_LANES], sign[CPU_HOPPER_LANES];
        for (int x = 0; x < CPU_HOPPER_LANES; x++) {
            const bool inside = k < p->k && j + x < p->n;
            const uint8_t code = inside ? ((const uint8_t*)p->b.data)[(j + x) * p->b.row_stride + k * p->b.k_stride] : 0;
            b_bad[x] = b_bad[x] || !cpu_hopper_finite(code, p->b.type);
            cpu_hopper_decode(code, p->b.type, &sig[x], &exponent[x], &sign[x]);
        }
        memcpy(&b_sig[k], sig, sizeof(sig));
        memcpy(&b_exp[k], exponent, sizeof(exponent));
        memcpy(&b_sign[k], sign, sizeof(sign));
    }
    const int64_t cols = cpu_gemm_min(CPU_HOPPER_LANES, p->n - j), block = p->block_k ? p->block_k : k_padded;
    for (int64_t i = 0; i < p->m; i++) {
        float sums[CPU_HOPPER_LANES] = {0.0f};
        for (int64_t k0 = 0; k0 < k_padded; k0 += block) {
            const int64_t k1 = cpu_gemm_min(k_padded, k0 + block);
            CpuHopperFloat acc = {};
            for (int64_t k = k0; k < k1; k += CPU_HOPPER_STEP) {
                const int64_t at = i * k_padded + k;
                cpu_hopper_step(&acc, a->sig + at, a->exp + at, a->sign + at, b_sig + k, b_exp + k, b_sign + k);
            }
            float part[CPU_HOPPER_LANES];
            memcpy(part, &acc, sizeof(part));
            for (int64_t x = 0; x < cols; x++) {
                if (!a->bad[i] && !b_bad[x]) { continue; }
                float sum = 0.0f;
                for (int64_t k = k0; k < cpu_gemm_min(k1, p->k); k++) {
                    sum += cpu_gemm_load(p->a.data, i * p->a.row_stride + k * p->a.k_stride, p->a.type) *
                           cpu_gemm_load(p->b.data, (j + x) * p->b.row_stride + k * p->b.k_stride, p->b.type);
                }
                part[x] = sum;
            }
            if (p->a_scales) { cpu_gemm_promote(p, sums, CPU_HOPPER_LANES, part, CPU_HOPPER_LANES, 1, cols, i, j, k0 / block); }
            else { memcpy(sums, part, sizeof(sums)); }
        }
        p->isa->epilogue(p->d + (i * p->e.ldd + j) * p->d_size, p->c ? p->c + (i * p->e.ldc + j) * p->c_size : NULL, sums, CPU_HOPPER_LANES, 1, cols, i, j, &p->e);
    }
}

static inline void cpu_gemm_hopper_one(const CpuGemm* g, int64_t index, const float* bias) {
    CpuGemmPlan p = cpu_gemm_plan(g, index, 1);
    if (bias) { (g->bias_along_n ? p.e.bias_cols : p.e.bias_rows) = bias; }
    const int64_t k_padded = cpu_gemm_round_up(p.k, CPU_HOPPER_STEP), count = p.m * k_padded;
    int32_t* memory = (int32_t*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_A, (size_t)(count * 3) * 4 + p.m);
    CpuHopperSide a = {memory, memory + count, memory + 2 * count, (bool*)(memory + 3 * count)};
    for (int64_t i = 0; i < p.m; i++) {
        a.bad[i] = false;
        for (int64_t k = 0; k < k_padded; k++) {
            const uint8_t code = k < p.k ? ((const uint8_t*)p.a.data)[i * p.a.row_stride + k * p.a.k_stride] : 0;
            a.bad[i] = a.bad[i] || !cpu_hopper_finite(code, p.a.type);
            cpu_hopper_decode(code, p.a.type, &a.sig[i * k_padded + k], &a.exp[i * k_padded + k], &a.sign[i * k_padded + k]);
        }
    }
    const int threads = cpu_gemm_threads(40.0 * p.m * p.n * p.k);
    (void)threads;
    #pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t j = 0; j < p.n; j += CPU_HOPPER_LANES) {
        cpu_hopper_block(&p, j, &a, k_padded, (CpuHopperInt*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_B, (size_t)k_padded * 3 * sizeof(CpuHopperInt)));
    }
}

// g: D row-major, both inputs FP8.
static inline void cpu_gemm_hopper(const CpuGemm* g) {
    const size_t bias_bytes = g->bias ? (size_t)(g->bias_along_n ? g->n : g->m) * sizeof(float) : 0;
    float* buffer = bias_bytes ? (float*)cpu_gemm_scratch(CPU_GEMM_SCRATCH_BIAS, bias_bytes) : NULL;
    for (int64_t i = 0; i < g->batch; i++) { cpu_gemm_hopper_one(g, i, cpu_gemm_bias(g, i, buffer)); }
}

#endif
