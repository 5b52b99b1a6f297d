/* gpu_info.h - utilization, clocks, power and temperature of the GPU, as one line, for -lg
 *
 * What:      the driver's management library NVML, found by dlopen: needs no header, no link, and no NVML on machines without a GPU.
 *            Declared here: what is used of its interface (nvml.h, stable since CUDA 8).
 * Line:      18 blanks, "compute 97.5% | memory: 41.0% | fan: 30% | 1980 MHz / 1980 MHz | 350 W / 700 W | 55°C / 87°C | no cap": percent of the time in which a
 *            kernel ran, and in which memory was read or written; fan; SM clock now and at most; power now and its limit; temperature now and where the
 *            driver slows down; what holds the clocks down. What a card does not tell (no fan, a virtual GPU) is "n/a", in the width of its column.
 * Averages:  over the samples that NVML took since the line before (since gpu_info_init for the first); if it took none, its utilization of just now.
 * Errors:    gpu_info_init returns false with a reason. Printing never fails and takes well under a millisecond a query.
 * Memory:    4 KiB of stack. gpu_info_free after a successful gpu_info_init.
 * Tests:     dev/test/test_gpu_info.cu
 */
#ifndef LLMC_GPU_INFO_H
#define LLMC_GPU_INFO_H

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// ----------------------------------------------------------------------------
// NVML

typedef void* NvmlDevice;
typedef struct { unsigned long long time; union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value; } NvmlSample;
typedef struct { unsigned compute, memory; } NvmlUtilization;  // percent

enum { NVML_SUCCESS = 0 };
enum { NVML_COMPUTE_SAMPLES = 1, NVML_MEMORY_SAMPLES = 2 };    // nvmlSamplingType_t
enum { NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0, NVML_THRESHOLD_SLOWDOWN = 1 };
enum { NVML_REASON_IDLE = 0x1, NVML_REASONS_POWER = 0x4 | 0x80, NVML_REASONS_THERMAL = 0x20 | 0x40 };  // software and hardware caps, of 64 bits

// field, symbol, result, arguments, needed (0: without it some columns are n/a)
#define NVML_TABLE(X) \
    X(init, "nvmlInit_v2", int, (void), 1) \
    X(shutdown, "nvmlShutdown", int, (void), 1) \
    X(error_string, "nvmlErrorString", const char*, (int), 1) \
    X(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2", int, (const char*, NvmlDevice*), 1) \
    X(samples, "nvmlDeviceGetSamples", int, (NvmlDevice, int type, unsigned long long after, int* value_type, unsigned* count, NvmlSample*), 0) \
    X(utilization, "nvmlDeviceGetUtilizationRates", int, (NvmlDevice, NvmlUtilization*), 0) \
    X(fan, "nvmlDeviceGetFanSpeed", int, (NvmlDevice, unsigned* percent), 0) \
    X(clock, "nvmlDeviceGetClockInfo", int, (NvmlDevice, int type, unsigned* mhz), 0) \
    X(clock_max, "nvmlDeviceGetMaxClockInfo", int, (NvmlDevice, int type, unsigned* mhz), 0) \
    X(power, "nvmlDeviceGetPowerUsage", int, (NvmlDevice, unsigned* milliwatts), 0) \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", int, (NvmlDevice, unsigned* milliwatts), 0) \
    X(temperature, "nvmlDeviceGetTemperature", int, (NvmlDevice, int sensor, unsigned* celsius), 0) \
    X(threshold, "nvmlDeviceGetTemperatureThreshold", int, (NvmlDevice, int which, unsigned* celsius), 0) \
    X(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons", int, (NvmlDevice, unsigned long long* bits), 0)

typedef struct {
#define NVML_FIELD(field, symbol, result, arguments, needed) result (*field) arguments;
    NVML_TABLE(NVML_FIELD)
#undef NVML_FIELD
} NvmlApi;

// Fills api from a library file, which it returns; NULL with a reason if there is none or it lacks what is needed.
static inline void* nvml_load(NvmlApi* api, const char* library, char reason[256]) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(reason, 256, "NVML is not here: %s", dlerror());
        return NULL;
    }
#define NVML_FIND(field, symbol, result, arguments, needed) \
    api->field = (result (*) arguments)dlsym(handle, symbol); \
    if (needed && !api->field) { snprintf(reason, 256, "%s has no %s", library, symbol); dlclose(handle); return NULL; }
    NVML_TABLE(NVML_FIND)
#undef NVML_FIND
    return handle;
}

// ----------------------------------------------------------------------------
// one GPU

typedef struct {
    NvmlApi api;
    void* library;                     // NULL: api is the caller's
    NvmlDevice device;
    unsigned long long last_sample[2]; // time of the newest compute and memory sample that was counted, 0: none
} GpuInfo;

#define GPU_INFO_MAX_SAMPLES 256       // NVML keeps about a hundred

// The mean of the samples of one type that are newer than *last, which advances; NAN if there are none.
static inline double gpu_info_average(const GpuInfo* info, int type, unsigned long long* last) {
    NvmlSample samples[GPU_INFO_MAX_SAMPLES];
    unsigned count = 0;
    int value_type = -1;
    if (!info->api.samples) { return NAN; }
    // the first call asks how many there may be
    if (info->api.samples(info->device, type, *last, &value_type, &count, NULL) != NVML_SUCCESS || count == 0 || count > GPU_INFO_MAX_SAMPLES) { return NAN; }
    if (info->api.samples(info->device, type, *last, &value_type, &count, samples) != NVML_SUCCESS || count == 0 || count > GPU_INFO_MAX_SAMPLES) { return NAN; }
    double sum = 0;
    for (unsigned i = 0; i < count; i++) {
        const NvmlSample* s = &samples[i];
        switch (value_type) {
            case 0: sum += s->value.d; break;
            case 1: sum += s->value.ui; break;
            case 2: sum += (double)s->value.ul; break;
            case 3: sum += (double)s->value.ull; break;
            case 4: sum += (double)s->value.sll; break;
            default: return NAN;
        }
        if (s->time > *last) { *last = s->time; }
    }
    return sum / count;
}

// Starts NVML (already in info->api) and finds the GPU.
static inline bool gpu_info_open(GpuInfo* info, const char* bus_id, char reason[256]) {
    int status = info->api.init();
    if (status != NVML_SUCCESS) {
        snprintf(reason, 256, "NVML does not start: %s", info->api.error_string(status));
        return false;
    }
    status = info->api.by_bus_id(bus_id, &info->device);
    if (status != NVML_SUCCESS) {
        snprintf(reason, 256, "NVML does not know the GPU at PCI address %s: %s", bus_id, info->api.error_string(status));
        info->api.shutdown();
        return false;
    }
    for (int i = 0; i < 2; i++) { gpu_info_average(info, NVML_COMPUTE_SAMPLES + i, &info->last_sample[i]); }  // what was before us does not count
    return true;
}

// bus_id: as cudaDeviceGetPCIBusId gives it, "0000:1b:00.0"; NVML counts GPUs in another order than CUDA. False: reason says why, nothing is held.
static inline bool gpu_info_init(GpuInfo* info, const char* bus_id, char reason[256]) {
    memset(info, 0, sizeof(*info));
    info->library = nvml_load(&info->api, "libnvidia-ml.so.1", reason);
    if (!info->library) { return false; }
    if (gpu_info_open(info, bus_id, reason)) { return true; }
    dlclose(info->library);
    return false;
}

static inline void gpu_info_free(GpuInfo* info) {
    info->api.shutdown();
    if (info->library) { dlclose(info->library); }
    memset(info, 0, sizeof(*info));
}

// ----------------------------------------------------------------------------
// the line

// "1980 MHz": the number, at least `width` wide, and its unit; NAN: "n/a" at the right end of `columns`.
static inline const char* gpu_info_text(char text[32], double value, int width, int decimals, const char* unit, int columns) {
    if (isnan(value)) { snprintf(text, 32, "%*s", columns, "n/a"); } else { snprintf(text, 32, "%*.*f%s", width, decimals, value, unit); }
    return text;
}

static inline const char* gpu_info_reason(const GpuInfo* info) {
    unsigned long long bits = 0;
    if (!info->api.reasons || info->api.reasons(info->device, &bits) != NVML_SUCCESS) { return "n/a"; }
    if (bits & NVML_REASONS_POWER) { return "power cap"; }
    if (bits & NVML_REASONS_THERMAL) { return "thermal cap"; }
    if (bits & ~(unsigned long long)NVML_REASON_IDLE) { return "other cap"; }
    return bits ? "idle" : "no cap";
}

static inline void gpu_info_print(GpuInfo* info, FILE* out) {
    const NvmlApi* api = &info->api;
    NvmlUtilization now;
    double used[2];
    const bool has_now = api->utilization && api->utilization(info->device, &now) == NVML_SUCCESS;
    for (int i = 0; i < 2; i++) {
        used[i] = gpu_info_average(info, NVML_COMPUTE_SAMPLES + i, &info->last_sample[i]);
        if (isnan(used[i]) && has_now) { used[i] = i == 0 ? now.compute : now.memory; }
    }
    unsigned x = 0;
    // the value of a query that answered, NAN otherwise
#define GPU_INFO_QUERY(field, scale, ...) (api->field && api->field(info->device, __VA_ARGS__) == NVML_SUCCESS ? x * (scale) : (double)NAN)
    const double fan = GPU_INFO_QUERY(fan, 1.0, &x), clock = GPU_INFO_QUERY(clock, 1.0, NVML_CLOCK_SM, &x), clock_max = GPU_INFO_QUERY(clock_max, 1.0, NVML_CLOCK_SM, &x);
    const double power = GPU_INFO_QUERY(power, 1e-3, &x), limit = GPU_INFO_QUERY(power_limit, 1e-3, &x);
    const double temperature = GPU_INFO_QUERY(temperature, 1.0, NVML_TEMPERATURE_GPU, &x), slowdown = GPU_INFO_QUERY(threshold, 1.0, NVML_THRESHOLD_SLOWDOWN, &x);
#undef GPU_INFO_QUERY
    char t[9][32];
    fprintf(out, "                  compute %s | memory: %s | fan: %s | %s / %s | %s / %s | %s / %s | %s\n", gpu_info_text(t[0], used[0], 2, 1, "%", 5),
            gpu_info_text(t[1], used[1], 2, 1, "%", 5), gpu_info_text(t[2], fan, 2, 0, "%", 3), gpu_info_text(t[3], clock, 4, 0, " MHz", 8),
            gpu_info_text(t[4], clock_max, 4, 0, " MHz", 8), gpu_info_text(t[5], power, 3, 0, " W", 5), gpu_info_text(t[6], limit, 3, 0, " W", 5),
            gpu_info_text(t[7], temperature, 1, 0, "\302\260C", 4), gpu_info_text(t[8], slowdown, 1, 0, "\302\260C", 4), gpu_info_reason(info));
}

#endif
