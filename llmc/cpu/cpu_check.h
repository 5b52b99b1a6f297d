/* cpu_check.h - does a computation depend on what CUDA does not promise?
 *
 * cpu_check_orders runs it several times in check mode: in two poisons (a difference: it reads memory that nobody wrote), then with blocks and threads
 * in reverse and in several random orders (a difference: a barrier is missing, or atomics make the order matter), and compares the result bit by
 * bit. Ends the program with "[cpu device: uninitialised]" or "[cpu device: order-dependence]".
 * Tests: dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_CHECK_H
#define LLMC_CPU_CHECK_H

#include <cuda_runtime.h>

// run(arg) does everything from cudaMalloc on, and writes its result (bytes of it) to result, host memory. seeds: random orders besides the fixed ones.
static inline void cpu_check_orders(const char* what, void (*run)(void* arg), void* arg, const void* result, size_t bytes, int seeds) {
    CpuModes* modes = cpu_modes();
    const CpuModes saved = *modes;
    unsigned char* first = (unsigned char*)mallocCheck(bytes);
    for (int i = 0; i < 3 + seeds; i++) {
        modes->check = 1;
        modes->poison = i == 1 ? 0x3c : 0xff;
        modes->order = i < 2 ? CPU_ORDER_FORWARD : i == 2 ? CPU_ORDER_REVERSE : i - 2;
        run(arg);
        if (i == 0) { memcpy(first, result, bytes); continue; }
        if (!memcmp(first, result, bytes)) { continue; }
        size_t at = 0;
        while (first[at] == ((const unsigned char*)result)[at]) { at++; }
        if (i == 1) {
            cpu_fail("uninitialised", false, "write it before it is read", "%s: byte %zu of the result is %02x or %02x, by what fresh memory held", what, at, first[at],
                     ((const unsigned char*)result)[at]);
        }
        cpu_fail("order-dependence", false, "look for a missing barrier, or for floating point atomics", "%s: byte %zu of the result is %02x in forward order, %02x in order %lld",
                 what, at, first[at], ((const unsigned char*)result)[at], modes->order);
    }
    free(first);
    *modes = saved;
}

#endif
