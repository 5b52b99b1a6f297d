/* gemm_onednn.h - the second engine of gemm.h: oneDNN's matmul, one thread a block of D
 *
 * What:      computes one block of a product (up to 256 x 256) into FP32 sums; gemm.h hands out the blocks and runs the epilogue.
 * Why so:    left to itself oneDNN splits K across threads where M and N are small (2.6.3: (64,64,4096) with A transposed gave other bits on two threads),
 *            which rule R3 forbids. Blocks of a fixed size, each on one thread, cannot depend on the number of threads.
 * Memory:    primitives are kept per thread, one a (shape, types, strides), in a table of 128; created in about a millisecond, called in two microseconds.
 * Versions:  2.x and 3.x of the C interface. An implementation that oneDNN calls a reference is not used.
 * Tests:     dev/test/test_cpu_gemm.cu */
#ifndef LLMC_CPU_GEMM_ONEDNN_H
#define LLMC_CPU_GEMM_ONEDNN_H

#include <stdint.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>

#define CPU_ONEDNN_BLOCK 256
#define CPU_ONEDNN_PRIMITIVES 128

// FP32 inputs or BF16 inputs; sums (m,n) with row stride n.
typedef struct { int64_t m, n, k, a_row, a_col, b_row, b_col; bool bf16; } CpuOnednnKey;
typedef struct {
    CpuOnednnKey key;
    bool used, usable;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, d;
} CpuOnednnEntry;
struct CpuOnednnThread {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    CpuOnednnEntry entries[CPU_ONEDNN_PRIMITIVES];
    ~CpuOnednnThread();
};

static inline void cpu_onednn_release(CpuOnednnEntry* e) {
    if (e->primitive) { dnnl_primitive_destroy(e->primitive); }
    if (e->a) { dnnl_memory_destroy(e->a); }
    if (e->b) { dnnl_memory_destroy(e->b); }
    if (e->d) { dnnl_memory_destroy(e->d); }
    memset(e, 0, sizeof(*e));
}
inline CpuOnednnThread::~CpuOnednnThread() {
    for (int i = 0; i < CPU_ONEDNN_PRIMITIVES; i++) { cpu_onednn_release(&entries[i]); }
    if (stream) { dnnl_stream_destroy(stream); }
    if (engine) { dnnl_engine_destroy(engine); }
}
inline CpuOnednnThread* cpu_onednn_thread(void) {
    static thread_local CpuOnednnThread t = {};
    if (!t.engine) {
        if (dnnl_engine_create(&t.engine, dnnl_cpu, 0) != dnnl_success) { t.engine = NULL; return NULL; }
        if (dnnl_stream_create(&t.stream, t.engine, dnnl_stream_default_flags) != dnnl_success) { t.stream = NULL; return NULL; }
    }
    return &t;
}

static inline bool cpu_onednn_describe(const CpuOnednnKey* k, CpuOnednnThread* t, CpuOnednnEntry* e) {
    const dnnl_data_type_t type = k->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t a_dims = {k->m, k->k}, b_dims = {k->k, k->n}, d_dims = {k->m, k->n};
    const dnnl_dims_t a_strides = {k->a_row, k->a_col}, b_strides = {k->b_row, k->b_col}, d_strides = {k->n, 1};
    dnnl_primitive_desc_t desc = NULL;
    bool ok = true;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t a = NULL, b = NULL, d = NULL;
    ok = ok && dnnl_memory_desc_create_with_strides(&a, 2, a_dims, type, a_strides) == dnnl_success;
    ok = ok && dnnl_memory_desc_create_with_strides(&b, 2, b_dims, type, b_strides) == dnnl_success;
    ok = ok && dnnl_memory_desc_create_with_strides(&d, 2, d_dims, dnnl_f32, d_strides) == dnnl_success;
    ok = ok && dnnl_matmul_primitive_desc_create(&desc, t->engine, a, b, NULL, d, NULL) == dnnl_success;
    ok = ok && dnnl_memory_create(&e->a, a, t->engine, DNNL_MEMORY_NONE) == dnnl_success;
    ok = ok && dnnl_memory_create(&e->b, b, t->engine, DNNL_MEMORY_NONE) == dnnl_success;
    ok = ok && dnnl_memory_create(&e->d, d, t->engine, DNNL_MEMORY_NONE) == dnnl_success;
    if (a) { dnnl_memory_desc_destroy(a); }
    if (b) { dnnl_memory_desc_destroy(b); }
    if (d) { dnnl_memory_desc_destroy(d); }
#else
    dnnl_memory_desc_t a, b, d;
    dnnl_matmul_desc_t op;
    ok = ok && dnnl_memory_desc_init_by_strides(&a, 2, a_dims, type, a_strides) == dnnl_success;
    ok = ok && dnnl_memory_desc_init_by_strides(&b, 2, b_dims, type, b_strides) == dnnl_success;
    ok = ok && dnnl_memory_desc_init_by_strides(&d, 2, d_dims, dnnl_f32, d_strides) == dnnl_success;
    ok = ok && dnnl_matmul_desc_init(&op, &a, &b, NULL, &d) == dnnl_success;
    ok = ok && dnnl_primitive_desc_create(&desc, &op, NULL, t->engine, NULL) == dnnl_success;
    ok = ok && dnnl_memory_create(&e->a, &a, t->engine, DNNL_MEMORY_NONE) == dnnl_success;
    ok = ok && dnnl_memory_create(&e->b, &b, t->engine, DNNL_MEMORY_NONE) == dnnl_success;
    ok = ok && dnnl_memory_create(&e->d, &d, t->engine, DNNL_MEMORY_NONE) == dnnl_success;
#endif
    const char* name = "ref";
    ok = ok && dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name) == dnnl_success && strncmp(name, "ref", 3) != 0;
    ok = ok && dnnl_primitive_create(&e->primitive, desc) == dnnl_success;
    if (desc) { dnnl_primitive_desc_destroy(desc); }
    return ok;
}

// Primitives are made and run as if there were one thread; some implementations look when they run.
struct CpuOnednnOneThread {
#if defined(_OPENMP)
    int threads;
    CpuOnednnOneThread() : threads(omp_get_max_threads()) { omp_set_num_threads(1); }
    ~CpuOnednnOneThread() { omp_set_num_threads(threads); }
#endif
};

// This thread's entry for a block, made at need; NULL: oneDNN has nothing fast for it.
static inline CpuOnednnEntry* cpu_onednn_find(const CpuOnednnKey* key) {
    CpuOnednnThread* t = cpu_onednn_thread();
    if (!t) { return NULL; }
    uint64_t hash = 0;
    const int64_t parts[8] = {key->m, key->n, key->k, key->a_row, key->a_col, key->b_row, key->b_col, key->bf16};
    for (int i = 0; i < 8; i++) { hash = (hash ^ (uint64_t)parts[i]) * 0x9e3779b97f4a7c15ull; hash ^= hash >> 29; }
    CpuOnednnEntry* e = &t->entries[hash % CPU_ONEDNN_PRIMITIVES];
    const CpuOnednnKey* have = &e->key;
    const bool same = e->used && have->m == key->m && have->n == key->n && have->k == key->k && have->a_row == key->a_row && have->a_col == key->a_col &&
                      have->b_row == key->b_row && have->b_col == key->b_col && have->bf16 == key->bf16;
    if (!same) {
        cpu_onednn_release(e);
        e->key = *key;
        e->used = true;
        e->usable = cpu_onednn_describe(key, t, e);
    }
    return e->usable ? e : NULL;
}
static inline bool cpu_onednn_can(const CpuOnednnKey* key) {
    CpuOnednnOneThread one;
    (void)one;
    return cpu_onednn_find(key) != NULL;
}
// sums (m,n) = A B for one block.
static inline bool cpu_onednn_run(const CpuOnednnKey* key, const void* a, const void* b, float* sums) {
    CpuOnednnOneThread one;
    (void)one;
    CpuOnednnEntry* e = cpu_onednn_find(key);
    if (!e) { return false; }
    dnnl_memory_set_data_handle(e->a, (void*)a);
    dnnl_memory_set_data_handle(e->b, (void*)b);
    dnnl_memory_set_data_handle(e->d, sums);
    const dnnl_exec_arg_t args[3] = {{DNNL_ARG_SRC, e->a}, {DNNL_ARG_WEIGHTS, e->b}, {DNNL_ARG_DST, e->d}};
    dnnl_stream_t stream = cpu_onednn_thread()->stream;
    return dnnl_primitive_execute(e->primitive, stream, 3, args) == dnnl_success && dnnl_stream_wait(stream) == dnnl_success;
}

#endif
