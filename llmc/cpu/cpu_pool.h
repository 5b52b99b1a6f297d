/* cpu_pool.h - the OpenMP pool waits asleep, not spinning
 *
 * GNU OpenMP reads its environment before main, and by default its threads spin for milliseconds between parallel regions. Beside any other process,
 * or a second pool, that starves whoever has the work: a training step took 5.7 times as long on two cores with two busy neighbours (2026-11-30).
 * There is no call to change it later, so a program that was started without OMP_WAIT_POLICY or GOMP_SPINCOUNT sets the first and starts itself again,
 * once, before anything else has happened. Whoever sets either variable keeps what he set.
 */
#ifndef LLMC_CPU_POOL_H
#define LLMC_CPU_POOL_H

#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void cpu_pool_wait_asleep(int, char** argv, char**) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) { return; }
    execv("/proc/self/exe", argv);  // comes back only if it failed: slower, not wrong
}

#endif
