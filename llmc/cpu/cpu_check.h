/* cpu_check.h - does a computation depend on what CUDA does not promise?
 *
 * cpu_check_orders runs it several times in check mode and compares the result bit by bit: with blocks and threads forward, in reverse and in several
 * random orders (a difference: a barrier is missing, or atomics make the order matter), then with another poison (a difference: it reads memory that
 * nobody wrote). Ends the program with "[cpu device: order-dependence]" or "[cpu device: uninitialised]".
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
        const bool other_poison = i == 2 + seeds;
        modes->check = 1;
        modes->poison = other_poison ? 0x3c : 0xff;
        modes->order = i == 0 || other_poison ? CPU_ORDER_FORWARD : i == 1 ? CPU_ORDER_REVERSE : i - 1;
        run(arg);
        const unsigned char* now = (const unsigned char*)result;
        if (i == 0) { memcpy(first, now, bytes); continue; }
        if (!memcmp(first, now, bytes)) { continue; }
        size_t at = 0;
        while (first[at] == now[at]) { at++; }
        if (other_poison) {
            cpu_fail("uninitialised", false, "write it before it is read",
                     "%s: byte %zu of the result is %02x or %02x, by what fresh memory held", what, at, first[at], now[at]);
        }
        cpu_fail("order-dependence", false, "look for a missing barrier, or for floating point atomics",
                 "%s: byte %zu of the result is %02x in forward order, %02x in order %lld",
                 what, at, first[at], now[at], modes->order);
    }
    free(first);
    *modes = saved;
}

#endif
