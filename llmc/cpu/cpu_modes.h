/* cpu_modes.h - how the CPU device behaves: the one table of its environment variables
 *
 * Every variable starts with GPT_CPU_ and is a row of CPU_MODE_TABLE; a value that is not understood, or a GPT_CPU_ name that is not in the table,
 * ends the program with a message. Read once, at the first use of the device; tests then change the struct that cpu_modes() returns.
 * Tests: dev/test/test_cpu_device.cu
 */
#ifndef LLMC_CPU_MODES_H
#define LLMC_CPU_MODES_H

#include <limits.h>

#include "llmc/common.h"

extern "C" char** environ;

// kind: FLAG 0|1, BYTE 0..255, COUNT a number with an optional suffix K, M, G (powers of 1024), ARCH one of the architectures below, MODE fast|check,
// ORDER forward|reverse|a seed from 1
typedef enum { CPU_KIND_FLAG, CPU_KIND_BYTE, CPU_KIND_COUNT, CPU_KIND_ARCH, CPU_KIND_MODE, CPU_KIND_ORDER } CpuModeKind;
enum { CPU_ORDER_FORWARD = 0, CPU_ORDER_REVERSE = -1 };  // any positive number: a seed

//    field          variable            kind    default  meaning
#define CPU_MODE_TABLE(X) \
    X(check,         "GPT_CPU_MODE",     MODE,   0,       "fast, or check: fill fresh device and shared memory with poison, watch the gaps behind shared arrays, align them no better than asked") \
    X(poison,        "GPT_CPU_POISON",   BYTE,   255,     "the byte that check mode fills with; 255 is NaN in every floating point format and -1 in every integer") \
    X(order,         "GPT_CPU_ORDER",    ORDER,  0,       "order of blocks, threads, and ranks in a reduction: forward, reverse, or a seed (a number from 1) for a random legal order") \
    X(arch,          "GPT_CPU_ARCH",     ARCH,   0,       "compute capability to play: 80, 89, 90, 100, 120; 0 plays none in particular and allows all of them") \
    X(memory,        "GPT_CPU_MEMORY",   COUNT,  0,       "bytes of device memory (suffix K, M, G); 0: the memory of this machine") \
    X(sms,           "GPT_CPU_SMS",      COUNT,  0,       "number of multiprocessors to report; 0: the number of OpenMP threads") \
    X(hopper_acc,    "GPT_CPU_HOPPER_ACCUMULATOR", FLAG, 0, "1: float8 products accumulate with the truncated mantissa of Hopper's tensor cores where fast accumulation is on (slow)")

#define CPU_MODE_FIELD(field, variable, kind, value, meaning) long long field;
typedef struct { CPU_MODE_TABLE(CPU_MODE_FIELD) } CpuModes;
#undef CPU_MODE_FIELD

static inline long long cpu_mode_parse(const char* variable, CpuModeKind kind, const char* text) {
    char* end = NULL;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool number = end != text && errno == 0, whole = number && *end == 0;
    switch (kind) {
    case CPU_KIND_FLAG:
        if (whole && (n == 0 || n == 1)) { return n; }
        fail("set it to 0 or 1, or unset it", "%s='%s' is neither 0 nor 1", variable, text);
    case CPU_KIND_BYTE:
        if (whole && n >= 0 && n <= 255) { return n; }
        fail("set it to a number from 0 to 255, or unset it", "%s='%s' is no byte", variable, text);
    case CPU_KIND_MODE:
        if (!strcmp(text, "fast")) { return 0; }
        if (!strcmp(text, "check")) { return 1; }
        fail("set it to fast or check, or unset it", "%s='%s' is no mode of the CPU device", variable, text);
    case CPU_KIND_ORDER:
        if (!strcmp(text, "forward")) { return CPU_ORDER_FORWARD; }
        if (!strcmp(text, "reverse")) { return CPU_ORDER_REVERSE; }
        if (whole && n > 0) { return n; }
        fail("set it to forward, reverse or a seed from 1", "%s='%s' is no order of the CPU device", variable, text);
    case CPU_KIND_ARCH:
        if (whole && (n == 0 || n == 80 || n == 89 || n == 90 || n == 100 || n == 120)) { return n; }
        fail("set it to 80, 89, 90, 100 or 120, or unset it", "%s='%s' is no architecture that the CPU device can play", variable, text);
    case CPU_KIND_COUNT: {
        int shift = number ? (*end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0) : 0;
        if (shift) { end++; }
        if (number && *end == 0 && n >= 0 && n <= (LLONG_MAX >> shift)) { return n << shift; }
        fail("set it to a number such as 512M or 8G, or unset it", "%s='%s' is no count", variable, text);
    }
    }
    return 0;
}

static inline void cpu_mode_check_names(void) {
#define CPU_MODE_NAME(field, variable, kind, value, meaning) variable,
    static const char* const names[] = {CPU_MODE_TABLE(CPU_MODE_NAME)};
#undef CPU_MODE_NAME
    for (char** e = environ; *e; e++) {
        if (strncmp(*e, "GPT_CPU_", 8) != 0) { continue; }
        size_t length = strcspn(*e, "=");
        bool known = false;
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) { known = known || (strlen(names[i]) == length && !strncmp(names[i], *e, length)); }
        if (!known) {
            char hint[1024] = "the variables are";
            for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) { strcat(strcat(hint, " "), names[i]); }
            fail(hint, "the environment sets %.*s, which the CPU device does not know", (int)length, *e);
        }
    }
}

inline CpuModes cpu_modes_read(void) {
    CpuModes modes;
    cpu_mode_check_names();
#define CPU_MODE_READ(field, variable, kind, value, meaning) \
    { const char* text = getenv(variable); modes.field = text && text[0] ? cpu_mode_parse(variable, CPU_KIND_##kind, text) : value; }
    CPU_MODE_TABLE(CPU_MODE_READ)
#undef CPU_MODE_READ
    return modes;
}

// The one instance of the program.
inline CpuModes* cpu_modes(void) {
    static CpuModes modes = cpu_modes_read();
    return &modes;
}

static inline void cpu_modes_print(FILE* out) {
#define CPU_MODE_PRINT(field, variable, kind, value, meaning) fprintf(out, "  %-28s default %-3lld now %-12lld %s\n", variable, (long long)value, cpu_modes()->field, meaning);
    CPU_MODE_TABLE(CPU_MODE_PRINT)
#undef CPU_MODE_PRINT
}

#endif
