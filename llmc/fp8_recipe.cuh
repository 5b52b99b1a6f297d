/* fp8_recipe.cuh - the scale rules, and the Sinks through which every FP8 operand is written
 *
 * A recipe is one row of RECIPE_TABLE (fp8_recipes.h), which names a granularity for each role; a granularity is one Sink. Forward and backward never name
 * either: they ask for an Operand (llmc/matmul.cuh) of a tensor. What a producer must do for a Sink is said at the Sinks below.
 * A thread has a tile of 16 x 16 codes in registers, not in shared memory, because both orders are then 16-byte stores; on the CPU device it measured 4.5
 * times faster than a shared tile (CPU_DEVICE, quantize + transpose).
 *
 * Scale rule (fp8_scale_from_amax): scale = FP8_MAX / amax, one IEEE division; amax 0, inf or NaN -> 1; never above 2^126, so that descale = 1/scale is
 * a normal number. Powers of two: the mantissa of that scale cleared, which rounds it down: nothing saturates. A non-finite amax is reported, not hidden.
 * From a history (fp8_scale_from_history): FP8_MAX / amax / 2^margin, in f32, at most 2^126; amax 0, inf or NaN: the old scale stays.
 * UE8M0 (fp8_mx_exponent): byte e, the smallest >= 0 with FP8_MAX * 2^(e - 127) >= amax; amax inf -> 254, NaN -> 255. Codes are those of x * 2^(127 - e).
 * R1: values are BF16 already when the amax is taken and when they are scaled; x * scale is rounded once to f32, then converted (nearest even, saturating).
 * Tests: dev/test/test_kernels_fp8.cu, test_fp8_recipes.cu, test_fp8_convert.cu (all in dev/test)
 */
#ifndef LLMC_FP8_RECIPE_CUH
#define LLMC_FP8_RECIPE_CUH

#include "llmc/amax.cuh"
#include "llmc/fp8_layout.h"

// ----------------------------------------------------------------------------
// formats

// The smallest float that rounds beyond the largest finite value. Half a step above it is a tie: 464 goes to even 448, so only the float after it overflows;
// 61440 goes to even 65536, which E5M2 lacks.
#define FP8_OVERFLOW(format) ((format) == FP8_E4M3 ? 464.000030517578125f : 61440.0f)

template <Fp8Format F> static __device__ __forceinline__ unsigned fp8_convert2(float lo, float hi) {  // two codes, lo in the low byte
    return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, F == FP8_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

// The values of codes (NaN: NaN).
template <Fp8Format F> static __device__ __forceinline__ float fp8_decode(unsigned code) {
    if (F == FP8_E4M3) {
        __nv_fp8_e4m3 v;
        v.__x = (__nv_fp8_storage_t)code;
        return (float)v;
    }
    __nv_fp8_e5m2 v;
    v.__x = (__nv_fp8_storage_t)code;
    return (float)v;
}

// Sixteen values that are scaled already -> sixteen codes.
template <Fp8Format F> static __device__ __forceinline__ uint4 fp8_convert16(const float y[16]) {
#ifdef GPT_CPU_DEVICE
    uint8_t codes[16];
    uint4 packed;
    cpu_fp8_from_float16(codes, y, __NV_SATFINITE, F == FP8_E4M3 ? __NV_E4M3 : __NV_E5M2);
    memcpy(&packed, codes, 16);
    return packed;
#else
    unsigned w[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) { w[i] = fp8_convert2<F>(y[4 * i], y[4 * i + 1]) | (fp8_convert2<F>(y[4 * i + 2], y[4 * i + 3]) << 16); }
    return make_uint4(w[0], w[1], w[2], w[3]);
#endif
}

// ----------------------------------------------------------------------------
// scale rules

#define FP8_SCALE_LIMIT 8.507059173023462e37f  // 2^126

static __device__ __host__ __forceinline__ float fp8_divide(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}
static __device__ __host__ __forceinline__ float fp8_scale_from_amax(unsigned amax_bits, float fp8_max) {
    float amax;
    memcpy(&amax, &amax_bits, 4);
    if (amax_bits == 0 || amax_bits >= 0x7f800000u) { return 1.0f; }
    float scale = fp8_divide(fp8_max, amax);
    return scale < FP8_SCALE_LIMIT ? scale : FP8_SCALE_LIMIT;
}
// old: the scale until now.
static __device__ __host__ __forceinline__ float fp8_scale_from_history(unsigned amax_bits, float fp8_max, int margin, float old) {
    float amax;
    memcpy(&amax, &amax_bits, 4);
    if (amax_bits == 0 || amax_bits >= 0x7f800000u) { return old; }
    float scale = fp8_divide(fp8_max, amax) / (float)(1 << margin);
    return scale < FP8_SCALE_LIMIT ? scale : FP8_SCALE_LIMIT;
}
static __device__ __host__ __forceinline__ float fp8_round_down_to_power(float scale) {  // a positive, normal number
    unsigned bits;
    memcpy(&bits, &scale, 4);
    bits &= 0xff800000u;
    memcpy(&scale, &bits, 4);
    return scale;
}
// FP8_MAX is 1.75 * 2^8 (E4M3), 1.75 * 2^15 (E5M2): amax = m * 2^n needs n - 8 (- 15), and one more if m > 1.75.
static __device__ __host__ __forceinline__ unsigned fp8_mx_exponent(unsigned amax_bits, Fp8Format format) {
    if (amax_bits >= 0x7f800000u) { return amax_bits == 0x7f800000u ? 254u : 255u; }
    int e = (int)(amax_bits >> 23) - (format == FP8_E4M3 ? 8 : 15) + ((amax_bits & 0x7fffffu) > 0x600000u);
    return e > 0 ? (unsigned)e : 0u;
}
// 2^(127 - e), of which 2^-127 and 2^-128 are denormal.
static __device__ __host__ __forceinline__ float fp8_mx_scale(unsigned e) {
    unsigned bits = e < 254u ? (254u - e) << 23 : 0x00400000u >> (e - 254u);
    float scale;
    memcpy(&scale, &bits, 4);
    return scale;
}
// 2^(e - 127), what a GEMM multiplies with; 255: NaN.
static __device__ __host__ __forceinline__ float fp8_mx_descale(unsigned e) {
    unsigned bits = e == 255u ? 0x7fc00000u : e ? e << 23 : 0x00400000u;
    float descale;
    memcpy(&descale, &bits, 4);
    return descale;
}

// ----------------------------------------------------------------------------
// 16 x 16 bytes in registers

#define FP8_TILE 16

// Transposes q[row] (16 bytes each, byte c = column c) in place.
static __device__ __forceinline__ void fp8_transpose_tile(uint4 q[FP8_TILE]) {
#ifdef GPT_CPU_DEVICE
    // four rounds of the perfect shuffle: interleaving the bytes of row r and row r + 8 doubles the distance each byte has travelled
    typedef unsigned char Bytes __attribute__((vector_size(16)));
    Bytes a[FP8_TILE], b[FP8_TILE];
    memcpy(a, q, sizeof(a));
    for (int round = 0; round < 4; round++) {
        for (int r = 0; r < 8; r++) {
            b[2 * r] = __builtin_shuffle(a[r], a[r + 8], Bytes{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
            b[2 * r + 1] = __builtin_shuffle(a[r], a[r + 8], Bytes{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
        }
        memcpy(a, b, sizeof(a));
    }
    memcpy(q, a, sizeof(a));
#else
    // 4 x 4 blocks of 4 x 4 bytes: each block by byte permutes, blocks by naming
    unsigned w[FP8_TILE][4];
    #pragma unroll
    for (int r = 0; r < FP8_TILE; r++) { w[r][0] = q[r].x; w[r][1] = q[r].y; w[r][2] = q[r].z; w[r][3] = q[r].w; }
    unsigned o[FP8_TILE][4];
    #pragma unroll
    for (int br = 0; br < 4; br++) {
        #pragma unroll
        for (int bc = 0; bc < 4; bc++) {
            unsigned a = w[4 * br][bc], b = w[4 * br + 1][bc], c = w[4 * br + 2][bc], d = w[4 * br + 3][bc];
            unsigned ab_lo = __byte_perm(a, b, 0x5140), ab_hi = __byte_perm(a, b, 0x7362);
            unsigned cd_lo = __byte_perm(c, d, 0x5140), cd_hi = __byte_perm(c, d, 0x7362);
            o[4 * bc][br] = __byte_perm(ab_lo, cd_lo, 0x5410);
            o[4 * bc + 1][br] = __byte_perm(ab_lo, cd_lo, 0x7632);
            o[4 * bc + 2][br] = __byte_perm(ab_hi, cd_hi, 0x5410);
            o[4 * bc + 3][br] = __byte_perm(ab_hi, cd_hi, 0x7632);
        }
    }
    #pragma unroll
    for (int r = 0; r < FP8_TILE; r++) { q[r] = make_uint4(o[r][0], o[r][1], o[r][2], o[r][3]); }
#endif
}

// ----------------------------------------------------------------------------
// Sinks
//
// A thread block of FP8_SINK_THREADS works on 128 x 128 elements; thread i has the tile of 16 x 16 at row 16 (i % 8), column 16 (i / 8) of them, so that in
// a warp 8 tiles lie along the rows and 4 along the columns: rows of k and of t are 64 and 128 bytes apiece. A producer, in every thread of the block:
//     Sink<BY, F, COUNT> sink;  sink.begin(params, block_row, block_col);       block_row, block_col: in units of 128
//     if (sink.inside) { for r = 0 .. 15: sink.put_row(r, x); }                 x: columns col0 .. col0 + 15 of row row0 + r
//     sink.finish();                                                            all threads: it has barriers; then the next 128 x 128 may begin
// A block that has more threads, in whole warps, for other work calls all this in all of them: those beyond the first FP8_SINK_THREADS have no tile.
// and beyond that, by granularity:
//     TENSOR, scale from *amax (now): the whole tensor's amax was recorded before the kernel began (a pass of its own)
//     TENSOR, scale given:            nothing: one pass, the amax is recorded here
//     ROW                             the amax bits of all outer rows lie in k_scale and t_scale before the kernel began, and become descales after it (fp8_quantize.cuh)
//     VEC128, BLK128, VEC32           nothing: one pass, since 128 x 128 elements hold whole blocks of both orders
// The loop over r is unrolled by fp8_sink_unroll<BY>. x are values that BF16 holds exactly. Sizes are multiples of 16: a tile is inside or outside, and blocks at the edges are partial.
// VEC128 and VEC32 take 42 KB of shared memory, BLK128 33.
// Written: codes (k, t), scales (k_scale, t_scale; TENSOR: scale, descale if made here), the tensor's amax, counts. Any of k, t may be NULL: not written.

#define FP8_SINK_THREADS 64
// How far a producer unrolls its loop over the rows: wholly where codes are kept in registers; else a few, or the compiler loads all rows at once and spills.
template <Fp8Granularity BY> static constexpr int fp8_sink_unroll = BY == FP8_BY_TENSOR || BY == FP8_BY_ROW ? FP8_TILE : 4;
#define FP8_PATCH 128                 // edge of what a thread block works on
static_assert(FP8_PATCH == FP8_BLOCK && FP8_PATCH == 8 * FP8_TILE && FP8_SINK_THREADS == 8 * 8, "a thread block holds whole blocks of all granularities");

// A quantized tensor: codes in both orders (rows,cols), (cols,rows), each with its descales in the layout of fp8_layout.h. NULL: an order that is not wanted.
typedef struct { uint8_t *k, *t; void *k_scale, *t_scale; } Fp8Operand;

typedef struct {
    Fp8Operand out;
    int rows, cols;                   // multiples of 16
    unsigned *amax, *amax_step;       // bits, maximum with what is there; NULL: not recorded
    float *scale, *descale;           // TENSOR: the slot's
    bool now;                         // TENSOR: the scale is made here, from *amax
    bool powers_of_two;
    unsigned long long* counts;       // COUNT: += saturated, flushed to zero; of each order if they differ. NULL: not counted
} Fp8SinkParams;

// What a thread counts. A value is saturated if it rounds beyond the largest code; flushed if its code is 0 and it is not.
// COUNT: counts if counts are wanted (the same for all threads). Without it the code is not even there: with one scale a tensor it costs 50 of 180 registers.
template <Fp8Format F, bool COUNT> struct Fp8Tally {
    unsigned saturated, flushed;
    unsigned long long* counts;
    __device__ __forceinline__ void begin(unsigned long long* to) {
        saturated = flushed = 0;
        counts = to;
    }
    __device__ __forceinline__ void add(const float x[FP8_TILE], const float y[FP8_TILE], uint4 codes) {
        if (!COUNT || !counts) { return; }
        const unsigned w[4] = {codes.x, codes.y, codes.z, codes.w};
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) {
            saturated += fabsf(y[i]) >= FP8_OVERFLOW(F);
            flushed += ((w[i / 4] >> (8 * (i % 4))) & 0x7fu) == 0 && x[i] != 0.0f;
        }
    }
    __device__ __forceinline__ void finish() {
        if (!COUNT || !counts) { return; }
        saturated = warp_sum(saturated);
        flushed = warp_sum(flushed);
        if (threadIdx.x % WARP_SIZE == 0 && saturated) { atomicAdd(counts, (unsigned long long)saturated); }
        if (threadIdx.x % WARP_SIZE == 0 && flushed) { atomicAdd(counts + 1, (unsigned long long)flushed); }
    }
};

// What the Sinks share: where the tile is, its amax, its stores.
template <Fp8Format F, bool COUNT> struct Fp8SinkTile {
    Fp8SinkParams p;
    int block_row, block_col, row0, col0;
    bool inside;
    unsigned most[FP8_TILE];          // amaxes of the columns
    Fp8Tally<F, COUNT> tally;

    __device__ __forceinline__ void begin_tile(const Fp8SinkParams& params, int patch_row, int patch_col) {
        p = params;
        block_row = patch_row; block_col = patch_col;
        row0 = block_row * FP8_PATCH + (threadIdx.x % 8) * FP8_TILE;
        col0 = block_col * FP8_PATCH + (threadIdx.x / 8) * FP8_TILE;
        inside = threadIdx.x < FP8_SINK_THREADS && row0 < p.rows && col0 < p.cols;
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { most[i] = 0; }
        tally.begin(p.counts);
    }
    __device__ __forceinline__ void take_amax(const float x[FP8_TILE]) {
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { most[i] = max(most[i], abs_bits(x[i])); }
    }
    // The same for who needs no amaxes of columns: one register instead of sixteen.
    __device__ __forceinline__ void take_tile_amax(const float x[FP8_TILE]) {
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { most[0] = max(most[0], abs_bits(x[i])); }
    }
    __device__ __forceinline__ unsigned tile_amax() const {
        unsigned m = 0;
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { m = max(m, most[i]); }
        return m;
    }
    __device__ __forceinline__ void record(unsigned m) {
        amax_record(p.amax, m);
        amax_record(p.amax_step, m);
    }
    __device__ __forceinline__ void store_k(int r, uint4 codes) {
        *reinterpret_cast<uint4*>(p.out.k + (size_t)(row0 + r) * p.cols + col0) = codes;
    }
    __device__ __forceinline__ void store_t(uint4 q[FP8_TILE]) {
        fp8_transpose_tile(q);
        #pragma unroll
        for (int c = 0; c < FP8_TILE; c++) { *reinterpret_cast<uint4*>(p.out.t + (size_t)(col0 + c) * p.rows + row0) = q[c]; }
    }
};

// A thread's tile of values that BF16 holds, kept until its scales are known. On a GPU in shared memory, in pieces of 16 bytes, those of neighbours side by
// side: in registers it would take 128 of them, and a producer that has work of its own would spill. On the CPU device it is on the thread's own stack.
struct Fp8Held {
#ifdef GPT_CPU_DEVICE
    float row[FP8_TILE][FP8_TILE];
    void begin() {}
    void put(int r, const float x[FP8_TILE]) { memcpy(row[r], x, sizeof(row[r])); }
    void get(int r, float x[FP8_TILE]) const { memcpy(x, row[r], sizeof(row[r])); }
#else
    uint4* piece;
    __device__ __forceinline__ void begin() {
        SHARED(uint4, pieces, FP8_SINK_THREADS * 2 * FP8_TILE);
        piece = pieces + threadIdx.x;
    }
    __device__ __forceinline__ void put(int r, const float x[FP8_TILE]) {
        unsigned w[FP8_TILE / 2];
        #pragma unroll
        for (int i = 0; i < FP8_TILE / 2; i++) { w[i] = __byte_perm(__float_as_uint(x[2 * i]), __float_as_uint(x[2 * i + 1]), 0x7632); }
        piece[2 * r * FP8_SINK_THREADS] = make_uint4(w[0], w[1], w[2], w[3]);
        piece[(2 * r + 1) * FP8_SINK_THREADS] = make_uint4(w[4], w[5], w[6], w[7]);
    }
    __device__ __forceinline__ void get(int r, float x[FP8_TILE]) const {
        const uint4 a = piece[2 * r * FP8_SINK_THREADS], b = piece[(2 * r + 1) * FP8_SINK_THREADS];
        const unsigned w[FP8_TILE / 2] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        #pragma unroll
        for (int i = 0; i < FP8_TILE / 2; i++) {
            x[2 * i] = __uint_as_float(w[i] << 16);
            x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
#endif
};

// BY is one of, below. Held: where a Sink that must know all values before it writes the first keeps them; a producer that has its 128 x 128 values in shared
// memory anyway gives a type whose put does nothing.
template <Fp8Granularity BY, Fp8Format F, bool COUNT, class Held = Fp8Held> struct Sink;

// One scale a tensor: the two orders hold the same codes.
template <Fp8Format F, bool COUNT, class Held> struct Sink<FP8_BY_TENSOR, F, COUNT, Held> : Fp8SinkTile<F, COUNT> {
    float scale;
    uint4 q[FP8_TILE];

    __device__ __forceinline__ void begin(const Fp8SinkParams& params, int patch_row, int patch_col) {
        this->begin_tile(params, patch_row, patch_col);
        scale = params.now ? fp8_scale_from_amax(*params.amax, FP8_MAX(F)) : *params.scale;
        if (params.now && patch_row == 0 && patch_col == 0 && threadIdx.x == 0) {
            *params.scale = scale;
            *params.descale = 1.0f / scale;
            if (*params.amax > *params.amax_step) { *params.amax_step = *params.amax; }
        }
    }
    __device__ __forceinline__ void put_row(int r, const float x[FP8_TILE]) {
        float y[FP8_TILE];
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale; }
        q[r] = fp8_convert16<F>(y);
        if (!this->p.now) { this->take_tile_amax(x); }
        this->tally.add(x, y, q[r]);
    }
    __device__ __forceinline__ void finish() {
        if (this->inside) {
            if (this->p.out.k) {
                #pragma unroll
                for (int r = 0; r < FP8_TILE; r++) { this->store_k(r, q[r]); }
            }
            if (this->p.out.t) { this->store_t(q); }
        }
        if (!this->p.now) { this->record(this->tile_amax()); }
        this->tally.finish();
    }
};

// One scale an outer row. k_scale (rows) and t_scale (cols) hold amax bits while this runs.
template <Fp8Format F, bool COUNT, class Held> struct Sink<FP8_BY_ROW, F, COUNT, Held> : Fp8SinkTile<F, COUNT> {
    float column_scale[FP8_TILE];
    uint4 q[FP8_TILE];

    __device__ __forceinline__ void begin(const Fp8SinkParams& params, int patch_row, int patch_col) {
        this->begin_tile(params, patch_row, patch_col);
        if (!this->inside || !params.out.t) { return; }
        #pragma unroll
        for (int i = 0; i < FP8_TILE; i++) { column_scale[i] = fp8_scale_from_amax(((const unsigned*)params.out.t_scale)[this->col0 + i], FP8_MAX(F)); }
    }
    __device__ __forceinline__ void put_row(int r, const float x[FP8_TILE]) {
        float y[FP8_TILE];
        this->take_tile_amax(x);
        if (this->p.out.k) {
            const float scale = fp8_scale_from_amax(((const unsigned*)this->p.out.k_scale)[this->row0 + r], FP8_MAX(F));
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale; }
            const uint4 codes = fp8_convert16<F>(y);
            this->tally.add(x, y, codes);
            this->store_k(r, codes);
        }
        if (this->p.out.t) {
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * column_scale[i]; }
            q[r] = fp8_convert16<F>(y);
            this->tally.add(x, y, q[r]);
        }
    }
    __device__ __forceinline__ void finish() {
        if (this->inside && this->p.out.t) { this->store_t(q); }
        this->record(this->tile_amax());
        this->tally.finish();
    }
};

// One scale for 128 x 128 elements: the two orders hold the same codes, k_scale[block_row][block_col] = t_scale[block_col][block_row].
template <Fp8Format F, bool COUNT, class Held> struct Sink<FP8_BY_BLK128, F, COUNT, Held> : Fp8SinkTile<F, COUNT> {
    Held held;

    __device__ __forceinline__ void begin(const Fp8SinkParams& params, int patch_row, int patch_col) {
        this->begin_tile(params, patch_row, patch_col);
        held.begin();
    }
    __device__ __forceinline__ void put_row(int r, const float x[FP8_TILE]) {
        this->take_tile_amax(x);
        held.put(r, x);
    }
    // The last block along the contraction also fills up the row with zeros.
    static __device__ __forceinline__ void store_scale(void* scales, int outer, int block, int inner, float descale) {
        const int stride = (int)fp8_blk128_stride(inner), last = block == (int)fp8_blocks(inner) - 1 ? stride : block + 1;
        float* row = (float*)scales + (size_t)outer * stride;
        row[block] = descale;
        for (int i = block + 1; i < last; i++) { row[i] = 0.0f; }
    }
    __device__ __forceinline__ void finish() {
        const unsigned amax = block_max(this->tile_amax());
        float scale = fp8_scale_from_amax(amax, FP8_MAX(F));
        if (this->p.powers_of_two) { scale = fp8_round_down_to_power(scale); }
        if (threadIdx.x == 0) {
            if (this->p.out.k) { store_scale(this->p.out.k_scale, this->block_row, this->block_col, this->p.cols, 1.0f / scale); }
            if (this->p.out.t) { store_scale(this->p.out.t_scale, this->block_col, this->block_row, this->p.rows, 1.0f / scale); }
        }
        if (this->inside) {
            uint4 q[FP8_TILE];
            #pragma unroll
            for (int r = 0; r < FP8_TILE; r++) {
                float x[FP8_TILE], y[FP8_TILE];
                held.get(r, x);
                #pragma unroll
                for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale; }
                q[r] = fp8_convert16<F>(y);
                this->tally.add(x, y, q[r]);
                if (this->p.out.k) { this->store_k(r, q[r]); }
            }
            if (this->p.out.t) { this->store_t(q); }
        }
        this->record(amax);
        this->tally.finish();
    }
};

// 16 amaxes of rows and 16 of columns from each thread, 17 words apart (no two lanes of a warp meet in a bank).
#define FP8_EDGE 17
#define FP8_EDGES (2 * FP8_SINK_THREADS * FP8_EDGE)

// Outer row o of this thread block, 0 .. 127 a row, 128 .. 255 a column: its amaxes over the eight tiles that it crosses.
static __device__ __forceinline__ void fp8_edge_amaxes(unsigned amax[8], const unsigned* edges, int o) {
    const int tile = o % FP8_PATCH / FP8_TILE, at = o % FP8_TILE;
    #pragma unroll
    for (int j = 0; j < 8; j++) {
        amax[j] = o < FP8_PATCH ? edges[(j * 8 + tile) * FP8_EDGE + at] : edges[(FP8_SINK_THREADS + tile * 8 + j) * FP8_EDGE + at];
    }
}
static __device__ __forceinline__ unsigned fp8_row_amax(const float x[FP8_TILE]) {
    unsigned m = 0;
    #pragma unroll
    for (int i = 0; i < FP8_TILE; i++) { m = max(m, abs_bits(x[i])); }
    return m;
}

// VEC128 and VEC32: outer rows are scaled in blocks along the contraction; the orders are two quantizations of the same tile.
template <Fp8Granularity BY, Fp8Format F, bool COUNT, class Held> struct Sink : Fp8SinkTile<F, COUNT> {
    static_assert(BY == FP8_BY_VEC128 || BY == FP8_BY_VEC32, "the other granularities have Sinks of their own");
    Held held;
    unsigned *edges, *scales;         // shared; scales: floats of the 256 outer rows, or words of four bytes e in the order of the two 512-byte tiles

    __device__ __forceinline__ void begin(const Fp8SinkParams& params, int patch_row, int patch_col) {
        SHARED(unsigned, shared_edges, FP8_EDGES);
        SHARED(unsigned, shared_scales, 2 * FP8_PATCH);
        edges = shared_edges;
        scales = shared_scales;
        held.begin();
        this->begin_tile(params, patch_row, patch_col);
    }
    __device__ __forceinline__ void put_row(int r, const float x[FP8_TILE]) {
        edges[threadIdx.x * FP8_EDGE + r] = fp8_row_amax(x);
        this->take_amax(x);
        held.put(r, x);
    }
    static __device__ __forceinline__ int word(int o) { return o / FP8_PATCH * (FP8_MX_TILE / 4) + o % 32 * 4 + o % FP8_PATCH / 32; }

    // Scales of the outer rows threadIdx.x, + 64, + 128, + 192.
    __device__ __forceinline__ void make_scales() {
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const int o = n * FP8_SINK_THREADS + threadIdx.x;
            if (n < 2 ? !this->p.out.k : !this->p.out.t) { continue; }
            unsigned amax[8];
            fp8_edge_amaxes(amax, edges, o);
            if constexpr (BY == FP8_BY_VEC32) {
                unsigned e[4];
                #pragma unroll
                for (int j = 0; j < 4; j++) { e[j] = fp8_mx_exponent(max(amax[2 * j], amax[2 * j + 1]), F); }
                scales[word(o)] = e[0] | e[1] << 8 | e[2] << 16 | e[3] << 24;
            } else {
                #pragma unroll
                for (int j = 1; j < 8; j++) { amax[0] = max(amax[0], amax[j]); }
                float scale = fp8_scale_from_amax(amax[0], FP8_MAX(F));
                if (this->p.powers_of_two) { scale = fp8_round_down_to_power(scale); }
                scales[o] = __float_as_uint(scale);
                const int outer = n < 2 ? this->p.rows : this->p.cols, block = n < 2 ? this->block_col : this->block_row;
                const int row = (n < 2 ? this->block_row : this->block_col) * FP8_PATCH + o % FP8_PATCH;
                if (row < outer) { ((float*)(n < 2 ? this->p.out.k_scale : this->p.out.t_scale))[(size_t)block * outer + row] = 1.0f / scale; }
            }
        }
    }
    // Both tiles of bytes are ready: 16 bytes a thread.
    __device__ __forceinline__ void store_mx_tiles() {
        const bool k = threadIdx.x < FP8_MX_TILE / 16;
        if (k ? !this->p.out.k : !this->p.out.t) { return; }
        const size_t tile = k ? this->block_row * fp8_blocks(this->p.cols) + this->block_col : this->block_col * fp8_blocks(this->p.rows) + this->block_row;
        uint4* out = reinterpret_cast<uint4*>((uint8_t*)(k ? this->p.out.k_scale : this->p.out.t_scale) + tile * FP8_MX_TILE);
        out[threadIdx.x % (FP8_MX_TILE / 16)] = reinterpret_cast<const uint4*>(scales)[threadIdx.x];
    }
    // The scale of outer row o in this thread's tile. along: the tile's place along the contraction, 0 .. 7
    __device__ __forceinline__ float scale_of(int o, int along) const {
        return BY == FP8_BY_VEC32 ? fp8_mx_scale((scales[word(o)] >> (along / 2 * 8)) & 0xffu) : __uint_as_float(scales[o]);
    }
    __device__ __forceinline__ void finish() {
        const int tile_row = threadIdx.x % 8, tile_col = threadIdx.x / 8;
        const bool has_tile = threadIdx.x < FP8_SINK_THREADS;
        #pragma unroll
        for (int i = 0; has_tile && i < FP8_TILE; i++) {
            edges[(FP8_SINK_THREADS + threadIdx.x) * FP8_EDGE + i] = this->most[i];
            if (!this->inside) { edges[threadIdx.x * FP8_EDGE + i] = 0; }
        }
        __syncthreads();
        if (has_tile) { make_scales(); }
        __syncthreads();  // no third: the next edges are written after this one, the next scales after the next first one
        if (BY == FP8_BY_VEC32 && has_tile) { store_mx_tiles(); }
        if (this->inside && this->p.out.k) {
            #pragma unroll 4
            for (int r = 0; r < FP8_TILE; r++) {
                float x[FP8_TILE], y[FP8_TILE];
                const float scale = scale_of(tile_row * FP8_TILE + r, tile_col);
                held.get(r, x);
                #pragma unroll
                for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale; }
                const uint4 codes = fp8_convert16<F>(y);
                this->tally.add(x, y, codes);
                this->store_k(r, codes);
            }
        }
        if (this->inside && this->p.out.t) {
            float scale[FP8_TILE];
            uint4 q[FP8_TILE];
            #pragma unroll
            for (int i = 0; i < FP8_TILE; i++) { scale[i] = scale_of(FP8_PATCH + tile_col * FP8_TILE + i, tile_row); }
            #pragma unroll
            for (int r = 0; r < FP8_TILE; r++) {
                float x[FP8_TILE], y[FP8_TILE];
                held.get(r, x);
                #pragma unroll
                for (int i = 0; i < FP8_TILE; i++) { y[i] = x[i] * scale[i]; }
                q[r] = fp8_convert16<F>(y);
                this->tally.add(x, y, q[r]);
            }
            this->store_t(q);
        }
        this->record(this->tile_amax());
        this->tally.finish();
    }
};

#endif
