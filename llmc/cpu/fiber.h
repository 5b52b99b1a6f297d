/* fiber.h - many stacks on one operating system thread: what a CUDA thread of the CPU device runs on
 *
 * What:      CpuFiber is a stack and a saved stack pointer; cpu_fiber_switch(from, to) continues another one. Never between OS threads:
 *            compilers keep the addresses of thread-local variables across the switch.
 * How:       a swap of the stack pointer and a jump on x86-64, inlined, the compiler keeping what it still needs; a function that keeps ten pairs of
 *            registers on aarch64; swapcontext elsewhere (some 50 times slower: it makes a system call). Floating point control words are not
 *            saved: kernels do not change them.
 * Memory:    CPU_STACK_BYTES a stack (64 KiB, 256 KiB under ASan), committed page by page as it is used, below it a page that faults.
 *            Stacks would all start at the same offset of a page and so fight for the same sets of the first-level cache: each is shifted.
 * ASan:      every switch is announced (__sanitizer_start_switch_fiber), or stack addresses would be reported.
 * Tests:     dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_FIBER_H
#define LLMC_CPU_FIBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "llmc/common.h"

#if defined(__SANITIZE_ADDRESS__)
#define CPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CPU_ASAN 1
#endif
#endif
#ifndef CPU_ASAN
#define CPU_ASAN 0
#endif

#if CPU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define CPU_STACK_BYTES (256 * 1024)
#else
#define CPU_STACK_BYTES (64 * 1024)
#endif

#if !defined(CPU_FIBER_UCONTEXT) && !(defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__)))
#define CPU_FIBER_UCONTEXT
#endif
#ifdef CPU_FIBER_UCONTEXT
#include <ucontext.h>
#endif

typedef struct CpuFiber {
    void* sp;                   // saved stack pointer while it does not run (ucontext: unused)
    struct CpuFiber* next;      // in the list of parked fibers
    char* base;                 // the mapping: guard page, then the stack; NULL: the stack of the OS thread itself
    const void* stack_bottom;   // for ASan
    size_t stack_size;
    void* fake_stack;           // ASan's
    char* top;                  // where the stack begins, cache shift included
    unsigned long launch;       // for whose kernel it is primed
#ifdef CPU_FIBER_UCONTEXT
    ucontext_t context;
#endif
} CpuFiber;

// ----------------------------------------------------------------------------
// the switch

#ifdef CPU_FIBER_UCONTEXT
#elif defined(__x86_64__)
// Inlined, with a jump instead of a return: what the processor expects of the returns that follow then stays right, since all stacks of a block
// have the same calls below. Every register is given up except the frame pointer; 128 bytes below the stack pointer may be in use (the ABI's red zone).
#if defined(__AVX512F__)
#define CPU_CLOBBER_AVX512 , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", \
    "xmm30", "xmm31", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define CPU_CLOBBER_AVX512
#endif
static inline __attribute__((always_inline)) void cpu_fiber_swap(void** save_sp, void* load_sp) {
    __asm__ volatile(
        "leaq -128(%%rsp), %%rsp\n"
        "pushq %%rbp\n"
        "leaq 1f(%%rip), %%rax\n"
        "pushq %%rax\n"
        "movq %%rsp, (%%rdi)\n"
        "movq %%rsi, %%rsp\n"
        "popq %%rax\n"
        "jmp *%%rax\n"
        ".p2align 4\n"
        "1: popq %%rbp\n"
        "leaq 128(%%rsp), %%rsp\n"
        : "+D"(save_sp), "+S"(load_sp) :
        : "memory", "cc", "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
          "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15" CPU_CLOBBER_AVX512);
}
// A stack that looks as if it had been switched away from just before entry: returns the stack pointer to load. top: a multiple of 16.
static inline void* cpu_fiber_frame(char* top, void (*entry)(void)) {
    void** sp = (void**)top - 2;  // entry finds the stack pointer 8 below a multiple of 16, as after a call
    sp[0] = (void*)entry;
    sp[1] = NULL;
    return sp;
}
#else
// One copy a program: a COMDAT section of a name of our own.
extern "C" void cpu_fiber_swap(void** save_sp, void* load_sp);
__asm__(
    ".pushsection .text.cpu_fiber_swap,\"axG\",%progbits,cpu_fiber_swap,comdat\n"
    ".weak cpu_fiber_swap\n"
    ".hidden cpu_fiber_swap\n"
    ".type cpu_fiber_swap,%function\n"
    ".p2align 4\n"
    "cpu_fiber_swap:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n    stp x25, x26, [sp, #48]\n"
    "    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
    "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
    "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n"
    ".size cpu_fiber_swap, .-cpu_fiber_swap\n"
    ".popsection\n");
static inline void* cpu_fiber_frame(char* top, void (*entry)(void)) {
    void** sp = (void**)top - 20;
    memset(sp, 0, 160);
    sp[11] = (void*)entry;  // x30, where ret goes
    return sp;
}
#endif

// Continues `to`; returns when somebody continues `from`, which must be the running fiber.
static inline __attribute__((always_inline)) void cpu_fiber_switch(CpuFiber* from, CpuFiber* to) {
#if CPU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack_bottom, to->stack_size);
#endif
#ifdef CPU_FIBER_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    cpu_fiber_swap(&from->sp, to->sp);
#endif
#if CPU_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

// ----------------------------------------------------------------------------
// stacks

// A stack, not yet primed. number: any small integer, spreads stacks over cache sets.
static inline CpuFiber* cpu_fiber_create(int number) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = page + CPU_STACK_BYTES;
    char* base = (char*)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(base != MAP_FAILED, "raise the limit of memory maps (sysctl vm.max_map_count) or use fewer OpenMP threads (OMP_NUM_THREADS)",
            "no memory for the stack of a CUDA thread (%zu bytes): %s", bytes, strerror(errno));
    mprotect(base, page, PROT_NONE);  // may fail when the kernel's table of mappings is full: then this stack goes without a guard
    CpuFiber* fiber = (CpuFiber*)calloc(1, sizeof(CpuFiber));
    require(fiber, "close other programs", "out of host memory for a fiber");
    fiber->base = base;
    fiber->stack_bottom = base + page;
    fiber->stack_size = CPU_STACK_BYTES;
    // 11 cache lines apart within 3 KiB: the frames of about 5 fibers fit the 64 lines of a page before lines repeat, and a fiber keeps one hot page
    fiber->top = base + bytes - 64 - ((size_t)number * 11 % 48) * 64;
    return fiber;
}

// Makes the fiber start in entry (which must never return) when it is next continued. What was on its stack is forgotten.
static inline void cpu_fiber_prime(CpuFiber* fiber, void (*entry)(void)) {
#if CPU_ASAN
    __asan_unpoison_memory_region(fiber->stack_bottom, fiber->stack_size);
#endif
#ifdef CPU_FIBER_UCONTEXT
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = (void*)fiber->stack_bottom;
    fiber->context.uc_stack.ss_size = (size_t)(fiber->top - (const char*)fiber->stack_bottom);
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, entry, 0);
#else
    fiber->sp = cpu_fiber_frame(fiber->top, entry);
#endif
}

// First thing in an entry function: completes the switch that led here.
static inline void cpu_fiber_started(void) {
#if CPU_ASAN
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
}

static inline void cpu_fiber_free(CpuFiber* fiber) {
    if (fiber->base) { munmap(fiber->base, (size_t)sysconf(_SC_PAGESIZE) + CPU_STACK_BYTES); }
    free(fiber);
}

#endif
