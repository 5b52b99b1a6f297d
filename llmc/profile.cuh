/* profile.cuh - what ran: a ring of the last launches for error messages, and device time by kernel class
 *
 * ProfileScope brackets one launch (or one library call). Always: its name goes into a ring of 32. With GPT_TRACE=launch
 * it is printed to stderr as well, and the ring once more when the program fails. While the profiler is on: a pair of events around it; profile_print sums device milliseconds by class. The class of a
 * kernel is its name up to "_kernel"; that of a library call is the name it was given.
 * Events measure the CPU device as well, which executes at once. Statics: one Profiler, in profiler().
 */
#ifndef LLMC_PROFILE_CUH
#define LLMC_PROFILE_CUH

#include <cuda_runtime.h>
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "llmc/common.h"

#define LAUNCH_RING 32

typedef struct {
    const char* ring_name[LAUNCH_RING];
    size_t ring_blocks[LAUNCH_RING];
    size_t count;           // launches so far
    bool on, trace;
    struct Span { const char* name; cudaEvent_t begin, end; };
    std::vector<Span> spans;            // of this profile, in launch order
    std::vector<cudaEvent_t> free_events;
} Profiler;

static inline Profiler* profiler() {
    static Profiler* p = NULL;
    if (!p) {
        p = new Profiler();
        const char* trace = getenv("GPT_TRACE");
        p->trace = trace && strstr(trace, "launch");
    }
    return p;
}

// "... [with auto kernel = gelu_forward_kernel1<float>]" -> "gelu_forward"; other names stay.
static inline std::string profile_class(const char* name) {
    std::string s = name;
    size_t at = s.find("kernel = ");
    if (at == std::string::npos) { return s; }
    s = s.substr(at + 9);
    size_t address = s.find_first_not_of("(& ");
    s = s.substr(address == std::string::npos ? 0 : address);
    size_t end = s.find("_kernel");
    return s.substr(0, end == std::string::npos ? s.find_first_of("<;]") : end);
}

static inline cudaEvent_t profile_event(Profiler* p, cudaStream_t stream) {
    cudaEvent_t event;
    if (p->free_events.empty()) {
        if (cudaEventCreate(&event) != cudaSuccess) { fail("", "cudaEventCreate failed while profiling"); }
    } else {
        event = p->free_events.back();
        p->free_events.pop_back();
    }
    cudaEventRecord(event, stream);
    return event;
}

struct ProfileScope {
    Profiler* p;
    cudaStream_t stream;
    ProfileScope(const char* name, size_t blocks, cudaStream_t s) : p(profiler()), stream(s) {
        p->ring_name[p->count % LAUNCH_RING] = name;
        p->ring_blocks[p->count % LAUNCH_RING] = blocks;
        p->count++;
        note_progress();
        if (p->trace) { fprintf(stderr, "launch %zu %s, %zu blocks\n", p->count, profile_class(name).c_str(), blocks); }
        if (p->on) { p->spans.push_back({name, profile_event(p, s), NULL}); }
    }
    ~ProfileScope() {
        if (p->on && !p->spans.empty() && !p->spans.back().end) { p->spans.back().end = profile_event(p, stream); }
    }
};

// For ErrorContext.before_exit: the last launches, newest last.
static inline void profile_print_ring(void) {
    Profiler* p = profiler();
    if (!p->count || !p->trace) { return; }
    fprintf(stderr, "last launches:");
    for (size_t i = p->count > LAUNCH_RING ? p->count - LAUNCH_RING : 0; i < p->count; i++) {
        fprintf(stderr, " %s(%zu)", profile_class(p->ring_name[i % LAUNCH_RING]).c_str(), p->ring_blocks[i % LAUNCH_RING]);
    }
    fprintf(stderr, "\n");
}

static inline void profile_begin(void) { profiler()->on = true; }

// Ends the profile: milliseconds of device time by class. Waits for the device.
static inline std::map<std::string, double> profile_end(void) {
    Profiler* p = profiler();
    p->on = false;
    cudaDeviceSynchronize();
    std::map<std::string, double> ms;
    for (auto& span : p->spans) {
        float t = 0.0f;
        cudaEventElapsedTime(&t, span.begin, span.end);
        ms[profile_class(span.name)] += t;
        p->free_events.push_back(span.begin);
        p->free_events.push_back(span.end);
    }
    p->spans.clear();
    return ms;
}

static inline void profile_print(FILE* out, const std::map<std::string, double>& ms, double steps) {
    double total = 0.0;
    std::vector<std::pair<double, std::string>> rows;
    for (auto& row : ms) { rows.push_back({row.second, row.first}); total += row.second; }
    std::sort(rows.rbegin(), rows.rend());
    for (auto& row : rows) { fprintf(out, "  %-28s %10.3f ms  %5.1f %%\n", row.second.c_str(), row.first / steps, 100.0 * row.first / total); }
    fprintf(out, "  %-28s %10.3f ms\n", "total", total / steps);
}

#endif
