/* test_ptx.cu - tensor core products, ldmatrix and asynchronous copies against what the PTX manual says, element by element
 *
 * The same kernels run on a GPU and on the CPU device: on a GPU this tests that the emulation's layout is the hardware's.
 * Covers: llmc/ptx.cuh, llmc/cpu/cpu_ptx.h
 */
#include "dev/test/oracle.h"
#include "llmc/ptx.cuh"

#define PITCH 24  // elements from row to row of a tile in shared memory

// d (16,16) f32 += a (16,16) b, three times, with b as (k,columns) or, trans, as (columns,k); through ldmatrix, as kernels load them. One block of two warps,
// each with matrices of its own.
static __global__ void mma_kernel1(float* d, const bf16* a, const bf16* b, bool columns_first) {
    SHARED(bf16, tiles, 2 * 2 * 16 * PITCH);
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    bf16 *ta = tiles + warp * 2 * 16 * PITCH, *tb = ta + 16 * PITCH;
    for (int i = lane; i < 2 * 16; i += WARP_SIZE) {
        ptx_copy16(ta + i / 2 * PITCH + i % 2 * 8, a + warp * 256 + i * 8, true);
        ptx_copy16(tb + i / 2 * PITCH + i % 2 * 8, b + warp * 256 + i * 8, true);
    }
    ptx_copy_commit();
    ptx_copy_wait<0>();
    __syncthreads();
    unsigned fa[4], fb[4];
    float acc[2][4];
    ptx_ldmatrix4(fa, ta + lane % 16 * PITCH + lane / 16 * 8);
    if (columns_first) { ptx_ldmatrix4(fb, tb + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8); }
    else { ptx_ldmatrix4_trans(fb, tb + lane % 16 * PITCH + lane / 16 * 8); }
    for (int e = 0; e < 8; e++) { acc[e / 4][e % 4] = d[warp * 256 + (lane / 4 + e % 4 / 2 * 8) * 16 + e / 4 * 8 + lane % 4 * 2 + e % 2]; }
    for (int i = 0; i < 3; i++) { ptx_mma16(acc, fa, fb); }
    for (int e = 0; e < 8; e++) { d[warp * 256 + (lane / 4 + e % 4 / 2 * 8) * 16 + e / 4 * 8 + lane % 4 * 2 + e % 2] = acc[e / 4][e % 4]; }
}

// Integers: every sum is exact, whatever the order and however few bits a sum keeps.
static void test_ptx_mma_exact(void) {
    Lab lab;
    Floats a = make_input<bf16>(INPUT_INTEGER, 512, 1), b = make_input<bf16>(INPUT_INTEGER, 512, 2), d = make_input<float>(INPUT_INTEGER, 512, 3);
    for (int columns_first = 0; columns_first < 2; columns_first++) {
        float* got = lab_put<float>(&lab, d);
        launch<mma_kernel1>(dim3(1), dim3(64), 0, lab.dev.stream, got, (const bf16*)lab_put<bf16>(&lab, a), (const bf16*)lab_put<bf16>(&lab, b), columns_first != 0);
        Floats want = d;
        for (int m = 0; m < 2; m++) {
            for (int i = 0; i < 256; i++) {
                for (int k = 0; k < 16; k++) { want[m * 256 + i] += 3 * a[m * 256 + i / 16 * 16 + k] * (columns_first ? b[m * 256 + i % 16 * 16 + k] : b[m * 256 + k * 16 + i % 16]); }
            }
        }
        CHECK_SAME(lab_get(&lab, got, 512), want, "d += a b, b by %s", columns_first ? "columns" : "rows");
    }
}

// What each lane gets, in its four registers: elements 2 lane, 2 lane + 1 of the output row of the register.
static __global__ void ldmatrix_kernel1(unsigned* out, const bf16* in, bool trans) {
    SHARED(bf16, tile, 32 * PITCH);
    for (int i = threadIdx.x; i < 32 * 8; i += WARP_SIZE) { tile[i / 8 * PITCH + i % 8] = in[i]; }
    __syncthreads();
    unsigned r[4];
    const bf16* row = tile + threadIdx.x * PITCH;  // matrix j: rows 8j .. 8j + 7
    if (trans) { ptx_ldmatrix4_trans(r, row); } else { ptx_ldmatrix4(r, row); }
    for (int j = 0; j < 4; j++) { out[j * WARP_SIZE + threadIdx.x] = r[j]; }
}
static void test_ptx_ldmatrix(void) {
    Lab lab;
    Floats in(256);
    for (int i = 0; i < 256; i++) { in[i] = (float)(i - 100); }
    for (int trans = 0; trans < 2; trans++) {
        unsigned* out = lab_alloc<unsigned>(&lab, 128);
        launch<ldmatrix_kernel1>(dim3(1), dim3(WARP_SIZE), 0, lab.dev.stream, out, (const bf16*)lab_put<bf16>(&lab, in), trans != 0);
        std::vector<unsigned> got = lab_download(&lab, out, 128);
        for (int i = 0; i < 128; i++) {
            const int j = i / 32, g = i % 32 / 4, t = i % 4;
            for (int half = 0; half < 2; half++) {
                const float x = float_of((half ? got[i] >> 16 : got[i] & 0xffffu) << 16), want = in[j * 64 + (trans ? (2 * t + half) * 8 + g : g * 8 + 2 * t + half)];
                CHECK(x == want, "trans %d, register %d of lane %d, half %d: %g, should be %g", trans, j, i % 32, half, x, want);
            }
        }
    }
}

// Three groups on their way, waited for one by one; a copy that is not valid gives zeros.
static __global__ void copy_kernel1(float* out, const float* in, int valid) {
    SHARED(float, tile, 3 * WARP_SIZE * 4);
    for (int group = 0; group < 3; group++) {
        const int i = (group * WARP_SIZE + threadIdx.x) * 4;
        ptx_copy16(tile + i, i < valid ? in + i : in, i < valid);
        ptx_copy_commit();
    }
    ptx_copy_wait<2>();
    for (int e = 0; e < 4; e++) { out[threadIdx.x * 4 + e] = tile[threadIdx.x * 4 + e]; }
    ptx_copy_wait<0>();
    for (int group = 1; group < 3; group++) { for (int e = 0; e < 4; e++) { out[(group * WARP_SIZE + threadIdx.x) * 4 + e] = tile[(group * WARP_SIZE + threadIdx.x) * 4 + e]; } }
}
static void test_ptx_copy(void) {
    Lab lab;
    check_repeats("copies", [&] {
        Floats in(200), want(384, 0.0f);
        for (int i = 0; i < 200; i++) { in[i] = want[i] = (float)i + 1; }
        float* out = lab_alloc<float>(&lab, 384);
        launch<copy_kernel1>(dim3(1), dim3(WARP_SIZE), 0, lab.dev.stream, out, (const float*)lab_put<float>(&lab, in), 200);
        Floats got = lab_get(&lab, out, 384);
        CHECK_SAME(got, want, "copies");
        return got;
    });
}

static __global__ void exp2_kernel1(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = ptx_exp2(in[i]); }
}
// Powers that kernels ask for: differences of scores, never above a little over 0. ex2.approx is good to 2^-22; on the CPU device the argument is rounded once more.
static void test_ptx_exp2(void) {
    Lab lab;
    Floats in = {0.0f, -INFINITY, -1000.0f, NAN};
    for (int i = 0; i < 4000; i++) { in.push_back(-(float)i / 32.0f); }
    float* out = lab_alloc<float>(&lab, in.size());
    launch<exp2_kernel1>(dim3(CEIL_DIV(in.size(), (size_t)128)), dim3(128), 0, lab.dev.stream, out, (const float*)lab_put<float>(&lab, in), (int)in.size());
    Floats got = lab_get(&lab, out, in.size());
    CHECK(got[0] == 1.0f && got[1] == 0.0f && got[2] == 0.0f && isnan(got[3]), "of 0, -inf, -1000, NaN: %g %g %g %g", got[0], got[1], got[2], got[3]);
    for (size_t i = 4; i < in.size(); i++) {
        const double want = exp2((double)in[i]);
        CHECK(fabs(got[i] - want) <= want * (0x1p-22 + fabs(in[i]) * 0x1p-24) + 0x1p-126, "2^%g is %.9g, should be %.9g", in[i], got[i], want);
    }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"ptx_mma_exact", test_ptx_mma_exact, QUICK},
        {"ptx_ldmatrix", test_ptx_ldmatrix, QUICK},
        {"ptx_copy", test_ptx_copy, QUICK},
        {"ptx_exp2", test_ptx_exp2, QUICK},
    };
    return TEST_MAIN(tests);
}
