/* test_gpu_info.cu - the line of -lg, from an NVML that is made up: injected functions, and a library of them that the test compiles and dlopens
 *
 * Covers: llmc/gpu_info.h
 */
#include "dev/test/test.h"
#include "llmc/gpu_info.h"

// ---------------------------------------------------------------------------- an NVML that is made up

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6 };
static struct {
    int init, find, query;                 // answers of init, of finding the GPU, of all queries
    int starts, stops;
    unsigned values[8];                    // fan, clock, its maximum, power, its limit, temperature, threshold, of which those with `lacks` are not supported
    int lacks;                             // bits: values 0..6, samples 7, utilization 8, reasons 9
    int value_type;
    unsigned count;                        // samples newer than any seen before
    double first[2];                       // samples are first, first + 1, ... percent
    unsigned long long time, reasons;      // time of the newest sample
    char bus_id[32];
} fake;

static int answer(int bit) { return fake.query ? fake.query : fake.lacks >> bit & 1 ? (int)NOT_SUPPORTED : 0; }
static int value(int i, unsigned* x) { *x = fake.values[i]; return answer(i); }
static int fake_init(void) { fake.starts++; return fake.init; }
static int fake_shutdown(void) { fake.stops++; return NVML_SUCCESS; }
static const char* fake_error_string(int status) { return status == NOT_FOUND ? "not found (fake)" : "an error (fake)"; }
static int fake_by_bus_id(const char* id, NvmlDevice* device) {
    snprintf(fake.bus_id, sizeof(fake.bus_id), "%s", id);
    *device = &fake;
    return fake.find;
}
static int fake_samples(NvmlDevice device, int type, unsigned long long after, int* value_type, unsigned* count, NvmlSample* samples) {
    CHECK(device == &fake && (type == 1 || type == 2), "device %p, type %d", device, type);
    if (answer(7)) { return answer(7); }
    *value_type = fake.value_type;
    if (!samples) { *count = 120; return NVML_SUCCESS; }
    CHECK(*count == 120, "room for %u samples, 120 were announced", *count);
    const unsigned fresh = after >= fake.time ? 0 : fake.count;
    if (!fresh) { return NOT_FOUND; }
    *count = fresh;
    for (unsigned i = 0; i < fresh; i++) {
        const double x = fake.first[type - 1] + i;
        samples[i].time = fake.time - fresh + 1 + i;
        samples[i].value.ull = 0;
        if (fake.value_type == 0) { samples[i].value.d = x; } else if (fake.value_type == 1) { samples[i].value.ui = (unsigned)x; } else { samples[i].value.ull = (unsigned long long)x; }
    }
    return NVML_SUCCESS;
}
static int fake_utilization(NvmlDevice, NvmlUtilization* now) { now->compute = 12; now->memory = 3; return answer(8); }
static int fake_fan(NvmlDevice, unsigned* x) { return value(0, x); }
static int fake_clock(NvmlDevice, int type, unsigned* x) { CHECK(type == 1, "clock %d", type); return value(1, x); }
static int fake_clock_max(NvmlDevice, int type, unsigned* x) { CHECK(type == 1, "clock %d", type); return value(2, x); }
static int fake_power(NvmlDevice, unsigned* x) { return value(3, x); }
static int fake_power_limit(NvmlDevice, unsigned* x) { return value(4, x); }
static int fake_temperature(NvmlDevice, int sensor, unsigned* x) { CHECK(sensor == 0, "sensor %d", sensor); return value(5, x); }
static int fake_threshold(NvmlDevice, int which, unsigned* x) { CHECK(which == 1, "threshold %d", which); return value(6, x); }
static int fake_reasons(NvmlDevice, unsigned long long* bits) { *bits = fake.reasons; return answer(9); }

static GpuInfo fake_open(void) {
    memset(&fake, 0, sizeof(fake));
    const unsigned values[] = {30, 1755, 1980, 350400, 700000, 55, 87};
    memcpy(fake.values, values, sizeof(values));
    fake.value_type = 1;
    fake.count = 4;
    fake.first[0] = 96;
    fake.first[1] = 40;
    fake.time = 1000;
    GpuInfo info = {};
    info.api = {fake_init, fake_shutdown, fake_error_string, fake_by_bus_id, fake_samples, fake_utilization, fake_fan, fake_clock, fake_clock_max, fake_power, fake_power_limit,
                fake_temperature, fake_threshold, fake_reasons};
    char reason[256] = "";
    CHECK(gpu_info_open(&info, "0000:1b:00.0", reason), "%s", reason);
    fake.time += 100;  // samples that are new
    return info;
}
static std::string printed(GpuInfo* info) {
    char* text = NULL;
    size_t bytes = 0;
    FILE* out = open_memstream(&text, &bytes);
    gpu_info_print(info, out);
    fclose(out);
    std::string s(text, bytes);
    free(text);
    return s;
}
static void expect(const std::string& got, const std::string& want) { CHECK(got == want, "\n    got  [%s]\n    want [%s]", got.c_str(), want.c_str()); }

// ---------------------------------------------------------------------------- tests

// The format of llm.c, LLMC_COMPAT 1.5, line B, by its own conversions.
static void test_gpu_info_line(void) {
    GpuInfo info = fake_open();
    char want[256];
    snprintf(want, sizeof(want), "                  compute %2.1f%% | memory: %2.1f%% | fan: %2d%% | %4d MHz / %4d MHz | %3d W / %3d W | %d\302\260C / %d\302\260C | %s\n", 97.5, 41.5, 30, 1755, 1980,
             350, 700, 55, 87, "no cap");
    expect(printed(&info), want);
    const unsigned low[] = {5, 210, 990, 9700, 99500, 9, 100};
    memcpy(fake.values, low, sizeof(low));
    fake.first[0] = fake.first[1] = 0;
    fake.count = 2;
    fake.time += 100;
    snprintf(want, sizeof(want), "                  compute %2.1f%% | memory: %2.1f%% | fan: %2d%% | %4d MHz / %4d MHz | %3d W / %3d W | %d\302\260C / %d\302\260C | %s\n", 0.5, 0.5, 5, 210, 990, 10,
             100, 9, 100, "no cap");
    expect(printed(&info), want);
    CHECK(!strcmp(fake.bus_id, "0000:1b:00.0") && fake.starts == 1 && fake.stops == 0, "%s: %d starts, %d stops", fake.bus_id, fake.starts, fake.stops);
    gpu_info_free(&info);
    CHECK(fake.stops == 1, "%d stops", fake.stops);
}

// Only samples since the line before count; without new ones the utilization of just now does, in every type that values may have.
static void test_gpu_info_averages(void) {
    for (int type : {0, 1, 2, 3, 4, 7}) {
        GpuInfo info = fake_open();
        fake.value_type = type;
        std::string line = printed(&info);
        const char* want = type == 7 ? "compute 12.0% | memory: 3.0% |" : "compute 97.5% | memory: 41.5% |";
        CHECK(line.find(want) != std::string::npos, "type %d: %s", type, line.c_str());
        line = printed(&info);
        CHECK(line.find("compute 12.0% | memory: 3.0% |") != std::string::npos, "nothing new: %s", line.c_str());
        fake.time += 100;
        fake.count = 1;
        fake.first[0] = 80;
        line = printed(&info);
        CHECK(line.find(type == 7 ? "compute 12.0%" : "compute 80.0% | memory: 40.0%") != std::string::npos, "type %d: %s", type, line.c_str());
        gpu_info_free(&info);
    }
}

// Any query may be unsupported, or its symbol missing: its column says n/a, the others do not move.
static void test_gpu_info_unsupported(void) {
    GpuInfo info = fake_open();
    fake.lacks = 1 << 0;
    expect(printed(&info), "                  compute 97.5% | memory: 41.5% | fan: n/a | 1755 MHz / 1980 MHz | 350 W / 700 W | 55\302\260C / 87\302\260C | no cap\n");
    fake.time += 100;
    const std::string whole = printed(&info);
    for (int bit = 0; bit < 10; bit++) {
        fake.time += 100;
        fake.lacks = 1 << bit;
        const std::string line = printed(&info);
        if (bit == 7) { CHECK(line.find("n/a") == std::string::npos, "without samples: %s", line.c_str()); continue; }
        if (bit == 8) { CHECK(line.find("n/a") == std::string::npos, "without utilization: %s", line.c_str()); continue; }
        CHECK(line.find("n/a") != std::string::npos, "value %d: %s", bit, line.c_str());
        // where a degree sign of two bytes is missing the bytes, not the columns, are fewer
        if (bit != 9) { CHECK(line.size() == whole.size() - (bit == 5 || bit == 6), "value %d: %zu bytes, not %zu: %s", bit, line.size(), whole.size(), line.c_str()); }
    }
    fake.lacks = 0;
    fake.query = NOT_SUPPORTED;
    expect(printed(&info), "                  compute   n/a | memory:   n/a | fan: n/a |      n/a /      n/a |   n/a /   n/a |  n/a /  n/a | n/a\n");
    fake.query = NVML_SUCCESS;
    NvmlApi bare = {info.api.init, info.api.shutdown, info.api.error_string, info.api.by_bus_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    info.api = bare;
    expect(printed(&info), "                  compute   n/a | memory:   n/a | fan: n/a |      n/a /      n/a |   n/a /   n/a |  n/a /  n/a | n/a\n");
    gpu_info_free(&info);
}

static void test_gpu_info_reasons(void) {
    GpuInfo info = fake_open();
    const struct { unsigned long long bits; const char* text; } cases[] = {
        {0, "no cap"}, {0x1, "idle"}, {0x2, "other cap"}, {0x4, "power cap"}, {0x8, "other cap"}, {0x10, "other cap"}, {0x20, "thermal cap"}, {0x40, "thermal cap"},
        {0x80, "power cap"}, {0x100, "other cap"}, {0x48, "thermal cap"}, {0x24, "power cap"}, {0x101, "other cap"}};
    for (auto& c : cases) {
        fake.reasons = c.bits;
        const std::string line = printed(&info), end = std::string("| ") + c.text + "\n";
        CHECK(line.size() > end.size() && line.substr(line.size() - end.size()) == end, "reasons %llx: %s", c.bits, line.c_str());
    }
    gpu_info_free(&info);
}

static void test_gpu_info_does_not_start(void) {
    GpuInfo info = fake_open(), other = info;
    char reason[256];
    fake.starts = fake.stops = 0;
    fake.init = 9;
    CHECK(!gpu_info_open(&other, "0000:1b:00.0", reason) && strstr(reason, "does not start: an error (fake)") && fake.stops == 0, "%s", reason);
    fake.init = NVML_SUCCESS;
    fake.find = NOT_FOUND;
    CHECK(!gpu_info_open(&other, "0000:ff:00.0", reason) && strstr(reason, "0000:ff:00.0: not found (fake)") && fake.stops == 1, "%s, %d stops", reason, fake.stops);
    gpu_info_free(&info);
    NvmlApi api;
    CHECK(!nvml_load(&api, "libthere-is-none.so.1", reason) && strstr(reason, "NVML is not here") && strstr(reason, "libthere-is-none.so.1"), "%s", reason);
}

// The symbols' names and the calling of them, through a shared library; then one that lacks what is needed.
static void test_gpu_info_library(void) {
    char folder[] = "/tmp/test_gpu_info.XXXXXX";
    CHECK(mkdtemp(folder), "no temporary folder");
    int removed;
    const std::string path = folder, source = path + "/fake.c", library = path + "/libfake.so";
    auto build = [&](const char* text) {
        int code;
        test_write_file(source, text);
        const std::string out = test_shell("cc -shared -fPIC -o " + library + " " + source, &code);
        return code == 0 ? std::string() : "cc: " + out;
    };
    const char* whole =
        "typedef void* D; typedef unsigned U; typedef unsigned long long L;\n"
        "int nvmlInit_v2(void) { return 0; } int nvmlShutdown(void) { return 0; } const char* nvmlErrorString(int e) { (void)e; return \"?\"; }\n"
        "int nvmlDeviceGetHandleByPciBusId_v2(const char* id, D* d) { *d = (D)id; return id[0] == '0' ? 0 : 2; }\n"
        "int nvmlDeviceGetSamples(D d, int t, L after, int* type, U* n, void* s) { return 3; }\n"
        "int nvmlDeviceGetUtilizationRates(D d, U* u) { u[0] = 64; u[1] = 32; return 0; }\n"
        "int nvmlDeviceGetFanSpeed(D d, U* x) { return 3; }\n"
        "int nvmlDeviceGetClockInfo(D d, int t, U* x) { *x = 1200 + t; return 0; } int nvmlDeviceGetMaxClockInfo(D d, int t, U* x) { *x = 1980; return 0; }\n"
        "int nvmlDeviceGetPowerUsage(D d, U* x) { *x = 123456; return 0; } int nvmlDeviceGetEnforcedPowerLimit(D d, U* x) { *x = 700000; return 0; }\n"
        "int nvmlDeviceGetTemperature(D d, int s, U* x) { *x = 41; return 0; } int nvmlDeviceGetTemperatureThreshold(D d, int w, U* x) { *x = 86 + w; return 0; }\n"
        "int nvmlDeviceGetCurrentClocksThrottleReasons(D d, L* x) { *x = 4; return 0; }\n";
    std::string error = build(whole);
    if (!error.empty()) {
        test_shell("rm -r " + path, &removed);
        SKIP("no C compiler: %s", error.c_str());
    }
    GpuInfo info = {};
    char reason[256] = "";
    info.library = nvml_load(&info.api, library.c_str(), reason);
    CHECK(info.library && gpu_info_open(&info, "0000:01:00.0", reason), "%s", reason);
    const std::string line = printed(&info);
    gpu_info_free(&info);
    expect(line, "                  compute 64.0% | memory: 32.0% | fan: n/a | 1201 MHz / 1980 MHz | 123 W / 700 W | 41\302\260C / 87\302\260C | power cap\n");
    error = build("int nvmlInit_v2(void) { return 0; }\n");
    NvmlApi api;
    CHECK(error.empty() && !nvml_load(&api, library.c_str(), reason) && strstr(reason, "nvmlShutdown"), "%s%s", error.c_str(), reason);
    test_shell("rm -r " + path, &removed);
}

// Whatever this machine has: a line, or a reason.
static void test_gpu_info_here(void) {
    GpuInfo info;
    char reason[256] = "";
    if (!gpu_info_init(&info, "0000:00:00.0", reason)) {
        CHECK(strlen(reason) > 10 && !info.device, "reason '%s'", reason);
        printf("    here: %s\n", reason);
        return;
    }
    printf("%s", printed(&info).c_str());
    gpu_info_free(&info);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"gpu_info_prints_llmc_line", test_gpu_info_line, QUICK},
        {"gpu_info_averages_new_samples", test_gpu_info_averages, QUICK},
        {"gpu_info_unsupported_is_na", test_gpu_info_unsupported, QUICK},
        {"gpu_info_names_the_reason", test_gpu_info_reasons, QUICK},
        {"gpu_info_refuses_with_reason", test_gpu_info_does_not_start, QUICK},
        {"gpu_info_loads_a_library", test_gpu_info_library, QUICK},
        {"gpu_info_on_this_machine", test_gpu_info_here, QUICK},
    };
    return TEST_MAIN(tests);
}
