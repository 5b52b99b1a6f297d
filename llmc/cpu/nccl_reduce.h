/* nccl_reduce.h - the arithmetic of the CPU device's collectives: one rank's values added to what has been reduced so far
 *
 * Numerics: as NCCL's kernels. BF16 is rounded to BF16 after every rank ("hop"), integers wrap. Max and Min of floats ignore NaN (fmaxf) and order -0 below
 *           +0. Avg of floats multiplies each input by 1/nranks rounded to the type (product rounded too) and then adds; of integers it divides the sum,
 *           towards zero.
 * Order:    a block that ends at rank r is reduced as a ring would: r+1 + r+2, then + r+3, ..., at last + r. GPT_CPU_ORDER=reverse goes round the other way;
 *           a seed takes another random order for every collective and block. Results are a function of inputs, order, sequence number and block alone.
 * Included by nccl.h.   Tests: dev/test/test_nccl.cu
 */
#ifndef LLMC_CPU_NCCL_REDUCE_H
#define LLMC_CPU_NCCL_REDUCE_H

#ifndef LLMC_CPU_NCCL_H
#error "include nccl.h, of which this is a part"
#endif

template <class T> struct CpuNcclBits { typedef std::make_unsigned_t<T> Type; };
template <> struct CpuNcclBits<float> { typedef uint32_t Type; };
template <> struct CpuNcclBits<double> { typedef uint64_t Type; };

// BF16 computes in float and is rounded when it is stored; all other types compute in themselves.
template <class T> struct CpuNcclCompute { typedef T Type; };
template <> struct CpuNcclCompute<__nv_bfloat16> { typedef float Type; };

template <class T> static __forceinline__ T cpu_nccl_bits_both(T a, T b, bool all) {  // of two equal values: and, or of their bits: differ for zeros only
    typedef typename CpuNcclBits<T>::Type U;
    const U x = __builtin_bit_cast(U, a), y = __builtin_bit_cast(U, b);
    return __builtin_bit_cast(T, (U)(all ? x & y : x | y));
}
template <int OP, class T> static __forceinline__ T cpu_nccl_apply(T a, T b) {
    if constexpr (OP == ncclMax || OP == ncclMin) {
        if constexpr (std::is_floating_point<T>::value) {
            const bool take_b = (OP == ncclMax ? b > a : b < a) | (a != a);
            return take_b ? b : a == b ? cpu_nccl_bits_both(a, b, OP == ncclMax) : a;
        } else { return (OP == ncclMax ? b > a : b < a) ? b : a; }
    } else if constexpr (std::is_floating_point<T>::value) {
        return OP == ncclProd ? a * b : a + b;
    } else {
        typedef std::make_unsigned_t<T> U;  // wraps instead of overflowing
        return (T)(OP == ncclProd ? (U)a * (U)b : (U)a + (U)b);
    }
}

// acc[i] = acc[i] OP x[i] * factor (the factor for Avg of floats only). first: acc[i] = x[i] * factor.
template <int OP, class T> static void cpu_nccl_hop(T* acc, const T* x, size_t n, bool first, int nranks) {
    typedef typename CpuNcclCompute<T>::Type F;
    if constexpr (OP == ncclAvg && std::is_floating_point<F>::value) {
        const F factor = (F)(T)(F)(1.0 / nranks);
        if (first) { for (size_t i = 0; i < n; i++) { acc[i] = (T)((F)x[i] * factor); } }
        else { for (size_t i = 0; i < n; i++) { acc[i] = (T)((F)acc[i] + (F)(T)((F)x[i] * factor)); } }
    } else {
        (void)nranks;
        if (first) { memcpy((void*)acc, (const void*)x, n * sizeof(T)); }
        else { for (size_t i = 0; i < n; i++) { acc[i] = (T)cpu_nccl_apply<OP, F>((F)acc[i], (F)x[i]); } }
    }
}

// acc (n) = x[order[0]] OP x[order[1]] OP ... , each (n), of one type. x must not overlap acc.
template <int OP, class T> static void cpu_nccl_reduce_typed(void* acc, const void* const* x, const int* order, int nranks, size_t n) {
    for (int i = 0; i < nranks; i++) { cpu_nccl_hop<OP, T>((T*)acc, (const T*)x[order[i]], n, i == 0, nranks); }
    if constexpr (OP == ncclAvg && std::is_integral<T>::value) {
        for (size_t i = 0; i < n; i++) { ((T*)acc)[i] = (T)(((T*)acc)[i] / nranks); }
    }
}
template <class T> static inline void cpu_nccl_reduce_op(ncclRedOp_t op, void* acc, const void* const* x, const int* order, int nranks, size_t n) {
    switch (op) {
        case ncclSum: return cpu_nccl_reduce_typed<ncclSum, T>(acc, x, order, nranks, n);
        case ncclProd: return cpu_nccl_reduce_typed<ncclProd, T>(acc, x, order, nranks, n);
        case ncclMax: return cpu_nccl_reduce_typed<ncclMax, T>(acc, x, order, nranks, n);
        case ncclMin: return cpu_nccl_reduce_typed<ncclMin, T>(acc, x, order, nranks, n);
        case ncclAvg: return cpu_nccl_reduce_typed<ncclAvg, T>(acc, x, order, nranks, n);
        default: return;  // refused before
    }
}
static inline void cpu_nccl_reduce(ncclDataType_t type, ncclRedOp_t op, void* acc, const void* const* x, const int* order, int nranks, size_t n) {
    switch (type) {
        case ncclInt8: return cpu_nccl_reduce_op<int8_t>(op, acc, x, order, nranks, n);
        case ncclUint8: return cpu_nccl_reduce_op<uint8_t>(op, acc, x, order, nranks, n);
        case ncclInt32: return cpu_nccl_reduce_op<int32_t>(op, acc, x, order, nranks, n);
        case ncclUint32: return cpu_nccl_reduce_op<uint32_t>(op, acc, x, order, nranks, n);
        case ncclInt64: return cpu_nccl_reduce_op<int64_t>(op, acc, x, order, nranks, n);
        case ncclUint64: return cpu_nccl_reduce_op<uint64_t>(op, acc, x, order, nranks, n);
        case ncclFloat32: return cpu_nccl_reduce_op<float>(op, acc, x, order, nranks, n);
        case ncclFloat64: return cpu_nccl_reduce_op<double>(op, acc, x, order, nranks, n);
        case ncclBfloat16: return cpu_nccl_reduce_op<__nv_bfloat16>(op, acc, x, order, nranks, n);
        default: return;  // refused before
    }
}

// order (nranks): in which the ranks' values of the block that ends at rank `owner` are taken, in collective number `sequence` of the communicator.
static inline void cpu_nccl_order(int* order, int nranks, int owner, uint64_t sequence) {
    const long long mode = cpu_modes()->order;
    for (int i = 0; i < nranks; i++) { order[i] = mode == CPU_ORDER_REVERSE ? (owner + nranks - i) % nranks : (owner + 1 + i) % nranks; }
    if (mode <= 0) { return; }
    uint64_t random = (uint64_t)mode * 0x9e3779b97f4a7c15ull + sequence * 0xd1342543de82ef95ull + (uint64_t)owner;
    for (int i = nranks - 1; i > 0; i--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's MMIX generator; its high bits are good enough for a shuffle
        const int j = (int)((random >> 33) % (uint64_t)(i + 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

#endif
