/* cpu_pool.h - the OpenMP pool: it waits asleep, not spinning, and does not survive a fork
 *
 * GNU OpenMP reads its environment before main, and by default its threads spin for milliseconds between parallel regions. Beside any other process,
 * or a second pool, that starves whoever has the work: a training step took 5.7 times as long on two cores with two busy neighbours (2026-11-30).
 * There is no call to change it later, so a program that was started without OMP_WAIT_POLICY or GOMP_SPINCOUNT sets the first and starts itself again,
 * once, before anything else has happened. Whoever sets either variable keeps what he set. A program that a loader was asked to run by name
 * (AT_BASE 0: /proc/self/exe is then the loader) goes on as it is.
 */
#ifndef LLMC_CPU_POOL_H
#define LLMC_CPU_POOL_H

#include <pthread.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

__attribute__((constructor)) static void cpu_pool_wait_asleep(int, char** argv, char**) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getauxval(AT_BASE) == 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) { return; }
    execv("/proc/self/exe", argv);  // comes back only if it failed: slower, not wrong
}

// Set in a child process whose parent had an OpenMP pool: the pool's threads do not exist there, and the first parallel region would wait for them.
inline bool* cpu_pool_lost(void) {
    static bool lost = false;
    return &lost;
}
inline void cpu_pool_used(void) {
    static bool used = (pthread_atfork(NULL, NULL, [] { *cpu_pool_lost() = true; }), true);
    (void)used;
}

#endif
