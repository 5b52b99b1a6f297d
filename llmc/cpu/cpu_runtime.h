/* cpu_runtime.h - the CUDA runtime API of the CPU device: errors, memory, streams, events, properties
 *
 * Streams execute at once: a call returns when its work is done. Device memory is host memory of exactly the size asked for, aligned to 256
 * bytes, in a table, so that copies are checked against it. Error codes have CUDA's values.
 * What CUDA leaves undefined and what would corrupt memory ends the program with "[cpu device: NAME]"; what CUDA reports is reported as CUDA does.
 * Memory: cpu_device_bytes() is what cudaMalloc has given out and not got back.
 */
#ifndef LLMC_CPU_RUNTIME_H
#define LLMC_CPU_RUNTIME_H

#include <map>
#include <mutex>
#include <type_traits>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu_shared.h"

// ----------------------------------------------------------------------------
// errors

#define CPU_ERROR_TABLE(X) \
    X(cudaSuccess, 0, "no error") \
    X(cudaErrorInvalidValue, 1, "invalid argument") \
    X(cudaErrorMemoryAllocation, 2, "out of memory") \
    X(cudaErrorInitializationError, 3, "initialization error") \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy") \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version") \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function") \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected") \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal") \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device") \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle") \
    X(cudaErrorNotReady, 600, "device not ready") \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered") \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch") \
    X(cudaErrorMisalignedAddress, 716, "misaligned address") \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure") \
    X(cudaErrorNotSupported, 801, "operation not supported") \
    X(cudaErrorUnknown, 999, "unknown error")

typedef enum cudaError {
#define CPU_ERROR_ENUM(name, value, text) name = value,
    CPU_ERROR_TABLE(CPU_ERROR_ENUM)
#undef CPU_ERROR_ENUM
} cudaError_t;

static inline const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define CPU_ERROR_NAME(name, value, text) case name: return #name;
        CPU_ERROR_TABLE(CPU_ERROR_NAME)
#undef CPU_ERROR_NAME
    }
    return "unrecognized error code";
}
static inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define CPU_ERROR_TEXT(name, value, text) case name: return text;
        CPU_ERROR_TABLE(CPU_ERROR_TEXT)
#undef CPU_ERROR_TEXT
    }
    return "unrecognized error code";
}
static inline cudaError_t cpu_error(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) { cpu_last_error = error; }
    return error;
}
static inline cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)cpu_last_error; }
static inline cudaError_t cudaGetLastError(void) {
    cudaError_t error = (cudaError_t)cpu_last_error;
    cpu_last_error = cudaSuccess;
    return error;
}

// ----------------------------------------------------------------------------
// memory

typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0, cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4
} cudaMemcpyKind;
typedef struct CpuStream* cudaStream_t;

struct CpuAllocations {
    std::mutex lock;
    std::map<uintptr_t, size_t> live;   // address -> bytes
    size_t bytes, peak;
};
inline CpuAllocations* cpu_allocations(void) {
    static CpuAllocations* a = new CpuAllocations();
    return a;
}
static inline size_t cpu_device_bytes(void) { std::lock_guard<std::mutex> guard(cpu_allocations()->lock); return cpu_allocations()->bytes; }
static inline size_t cpu_device_bytes_peak(void) { std::lock_guard<std::mutex> guard(cpu_allocations()->lock); return cpu_allocations()->peak; }
static inline size_t cpu_device_allocations(void) { std::lock_guard<std::mutex> guard(cpu_allocations()->lock); return cpu_allocations()->live.size(); }

// The device allocation that holds this address. False: host memory.
static inline bool cpu_device_range(const void* pointer, uintptr_t* base, size_t* bytes) {
    CpuAllocations* a = cpu_allocations();
    std::lock_guard<std::mutex> guard(a->lock);
    auto it = a->live.upper_bound((uintptr_t)pointer);
    if (it == a->live.begin()) { return false; }
    --it;
    if ((uintptr_t)pointer >= it->first + it->second) { return false; }
    *base = it->first;
    *bytes = it->second;
    return true;
}

static inline size_t cpu_device_memory(void) {
    long long set = cpu_modes()->memory;
    return set ? (size_t)set : (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static inline cudaError_t cpu_malloc(void** pointer, size_t bytes) {
    if (!pointer) { return cpu_error(cudaErrorInvalidValue); }
    *pointer = NULL;
    if (!bytes) { return cudaSuccess; }
    CpuAllocations* a = cpu_allocations();
    std::lock_guard<std::mutex> guard(a->lock);
    void* p = NULL;
    if (bytes > cpu_device_memory() || a->bytes > cpu_device_memory() - bytes || posix_memalign(&p, 256, bytes) != 0) { return cpu_error(cudaErrorMemoryAllocation); }
#ifdef MADV_HUGEPAGE
    if (bytes >= 4u << 20) {  // fewer misses of the address translation; changes neither the size nor the contents
        uintptr_t first = ROUND_UP((uintptr_t)p, (uintptr_t)4096), end = ((uintptr_t)p + bytes) & ~(uintptr_t)4095;
        madvise((void*)first, end - first, MADV_HUGEPAGE);
    }
#endif
    if (cpu_modes()->check) { memset(p, (int)cpu_modes()->poison, bytes); }
    a->live[(uintptr_t)p] = bytes;
    a->bytes += bytes;
    if (a->bytes > a->peak) { a->peak = a->bytes; }
    *pointer = p;
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaMalloc(T** pointer, size_t bytes) { return cpu_malloc((void**)pointer, bytes); }

static inline cudaError_t cudaFree(void* pointer) {
    if (!pointer) { return cudaSuccess; }
    CpuAllocations* a = cpu_allocations();
    std::lock_guard<std::mutex> guard(a->lock);
    auto it = a->live.find((uintptr_t)pointer);
    if (it == a->live.end()) { return cpu_error(cudaErrorInvalidValue); }
    a->bytes -= it->second;
    a->live.erase(it);
    free(pointer);
    return cudaSuccess;
}

// Pinned host memory is ordinary memory, of a page's alignment as CUDA's.
static inline cudaError_t cpu_malloc_host(void** pointer, size_t bytes) {
    if (!pointer) { return cpu_error(cudaErrorInvalidValue); }
    *pointer = NULL;
    if (!bytes) { return cudaSuccess; }
    if (posix_memalign(pointer, 4096, bytes) != 0) { return cpu_error(cudaErrorMemoryAllocation); }
    if (cpu_modes()->check) { memset(*pointer, (int)cpu_modes()->poison, bytes); }
    return cudaSuccess;
}
#define cudaHostAllocDefault 0
#define cudaHostAllocPortable 1
#define cudaHostAllocMapped 2
#define cudaHostAllocWriteCombined 4
template <class T> static inline cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned flags = 0) { (void)flags; return cpu_malloc_host((void**)pointer, bytes); }
template <class T> static inline cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) { (void)flags; return cpu_malloc_host((void**)pointer, bytes); }
static inline cudaError_t cudaFreeHost(void* pointer) { free(pointer); return cudaSuccess; }

static inline cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = cpu_device_memory();
    size_t used = cpu_device_bytes();
    *free_bytes = used < *total ? *total - used : 0;
    return cudaSuccess;
}

// One side of a copy: inside one allocation when it starts in one, and on the side that the caller says.
static inline void cpu_check_range(const char* call, const char* role, const void* pointer, size_t bytes, int want_device) {
    uintptr_t base;
    size_t size;
    bool device = cpu_device_range(pointer, &base, &size);
    if (device && bytes > base + size - (uintptr_t)pointer) {
        cpu_fail("memcpy-overrun", false, "check the size: it is in bytes",
                 "%s of %zu bytes at offset %zu of a device allocation of %zu bytes (%s): %zu bytes too many",
                 call, bytes, (size_t)((uintptr_t)pointer - base), size, role, bytes - (size_t)(base + size - (uintptr_t)pointer));
    }
    if (want_device == 1 && !device) {
        cpu_fail("memcpy-kind", false, "check the direction and the pointer",
                 "%s: the %s %p is not in device memory, or has been freed", call, role, pointer);
    }
    if (want_device == 0 && device) {
        cpu_fail("memcpy-kind", false, "check the direction and the pointer",
                 "%s: the %s %p is device memory, not host memory", call, role, pointer);
    }
}

static inline cudaError_t cpu_memcpy(const char* call, void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
    if ((int)kind < 0 || (int)kind > 4) { return cpu_error(cudaErrorInvalidMemcpyDirection); }
    if (!bytes) { return cudaSuccess; }
    if (!dst || !src) { return cpu_error(cudaErrorInvalidValue); }
    cpu_check_range(call, "destination", dst, bytes, kind == cudaMemcpyDefault ? -1 : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
    cpu_check_range(call, "source", src, bytes, kind == cudaMemcpyDefault ? -1 : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
    memmove(dst, src, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) { return cpu_memcpy("cudaMemcpy", dst, src, bytes, kind); }
static inline cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = NULL) {
    (void)stream;
    return cpu_memcpy("cudaMemcpyAsync", dst, src, bytes, kind);
}
static inline cudaError_t cpu_memset(const char* call, void* dst, int value, size_t bytes) {
    if (!bytes) { return cudaSuccess; }
    if (!dst) { return cpu_error(cudaErrorInvalidValue); }
    cpu_check_range(call, "destination", dst, bytes, 1);
    memset(dst, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemset(void* dst, int value, size_t bytes) { return cpu_memset("cudaMemset", dst, value, bytes); }
static inline cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream = NULL) {
    (void)stream;
    return cpu_memset("cudaMemsetAsync", dst, value, bytes);
}
static inline cudaError_t cudaMemcpy2D(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
    if (width > dst_pitch || width > src_pitch) { return cpu_error(cudaErrorInvalidValue); }
    for (size_t row = 0; row < height; row++) {
        cudaError_t error = cpu_memcpy("cudaMemcpy2D", (char*)dst + row * dst_pitch, (const char*)src + row * src_pitch, width, kind);
        if (error != cudaSuccess) { return error; }
    }
    return cudaSuccess;
}

// ----------------------------------------------------------------------------
// streams and events: everything has already happened

#define CPU_STREAM_MAGIC 0x5354524du
#define CPU_EVENT_MAGIC 0x45564e54u
struct CpuStream { unsigned magic, flags; int priority; };
struct CpuEvent { unsigned magic, flags; bool recorded; uint64_t ns; };
typedef struct CpuEvent* cudaEvent_t;
#define cudaStreamDefault 0
#define cudaStreamNonBlocking 1
#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)
#define cudaEventDefault 0
#define cudaEventBlockingSync 1
#define cudaEventDisableTiming 2
#define cudaEventInterprocess 4
#define cudaEventRecordDefault 0
#define cudaEventWaitDefault 0

static inline bool cpu_stream_valid(cudaStream_t s) { return !s || s == cudaStreamLegacy || s == cudaStreamPerThread || s->magic == CPU_STREAM_MAGIC; }
static inline bool cpu_event_valid(cudaEvent_t e) { return e && e->magic == CPU_EVENT_MAGIC; }

static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (!stream || flags > 1) { return cpu_error(cudaErrorInvalidValue); }
    *stream = (cudaStream_t)mallocCheck(sizeof(CpuStream));
    **stream = {CPU_STREAM_MAGIC, flags, priority};
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
static inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread || !cpu_stream_valid(stream)) { return cpu_error(cudaErrorInvalidResourceHandle); }
    stream->magic = 0;
    free(stream);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cpu_error(cpu_stream_valid(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle); }
static inline cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
static inline cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    if (!cpu_stream_valid(stream)) { return cpu_error(cudaErrorInvalidResourceHandle); }
    *flags = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread ? 0 : stream->flags;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0) {
    if (flags) { return cpu_error(cudaErrorInvalidValue); }
    return cpu_error(cpu_stream_valid(stream) && cpu_event_valid(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    if (!event || flags > 7) { return cpu_error(cudaErrorInvalidValue); }
    *event = (cudaEvent_t)mallocCheck(sizeof(CpuEvent));
    **event = {CPU_EVENT_MAGIC, flags, false, 0};
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
static inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags) { return cudaEventCreateWithFlags(event, flags); }
static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = NULL) {
    if (!cpu_event_valid(event) || !cpu_stream_valid(stream)) { return cpu_error(cudaErrorInvalidResourceHandle); }
    event->recorded = true;
    event->ns = cpu_nanoseconds();
    return cudaSuccess;
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cpu_error(cpu_event_valid(event) ? cudaSuccess : cudaErrorInvalidResourceHandle); }
static inline cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
static inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    if (!ms) { return cpu_error(cudaErrorInvalidValue); }
    if (!cpu_event_valid(begin) || !cpu_event_valid(end) || !begin->recorded || !end->recorded || ((begin->flags | end->flags) & cudaEventDisableTiming)) {
        return cpu_error(cudaErrorInvalidResourceHandle);
    }
    *ms = (float)((double)(int64_t)(end->ns - begin->ns) * 1e-6);
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!cpu_event_valid(event)) { return cpu_error(cudaErrorInvalidResourceHandle); }
    event->magic = 0;
    free(event);
    return cudaSuccess;
}

// ----------------------------------------------------------------------------
// the device

#define CUDART_VERSION 13000

static inline cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
static inline cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
static inline cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
static inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
static inline cudaError_t cudaSetDevice(int device) { return cpu_error(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
static inline cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
static inline cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }

// The fields of CUDA 13's struct that mean something here.
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment;
    int multiProcessorCount, integrated, canMapHostMemory, concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, asyncEngineCount, unifiedAddressing;
    int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, pageableMemoryAccess, concurrentManagedAccess, cooperativeLaunch;
    size_t sharedMemPerBlockOptin;
    int maxBlocksPerMultiProcessor;
    size_t reservedSharedMemPerBlock;
    int memoryPoolsSupported, clusterLaunch;
};

static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (!p) { return cpu_error(cudaErrorInvalidValue); }
    if (device != 0) { return cpu_error(cudaErrorInvalidDevice); }
    memset(p, 0, sizeof(*p));
    int arch = (int)cpu_modes()->arch;
    if (arch) { snprintf(p->name, sizeof(p->name), "CPU device (playing compute capability %d.%d)", arch / 10, arch % 10); }
    else { snprintf(p->name, sizeof(p->name), "CPU device"); }
    p->totalGlobalMem = cpu_device_memory();
    p->sharedMemPerBlock = CPU_STATIC_SHARED_BYTES;
    p->sharedMemPerBlockOptin = cpu_shared_limit();
    p->reservedSharedMemPerBlock = 1024;
    p->sharedMemPerMultiprocessor = cpu_shared_limit() + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = CPU_WARP;
    p->memPitch = INT_MAX;
    p->maxThreadsPerBlock = CPU_MAX_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = CPU_MAX_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = arch / 10;
    p->minor = arch % 10;
    p->textureAlignment = 512;
#ifdef _OPENMP
    p->multiProcessorCount = cpu_modes()->sms ? (int)cpu_modes()->sms : omp_get_max_threads();
#else
    p->multiProcessorCount = cpu_modes()->sms ? (int)cpu_modes()->sms : 1;
#endif
    p->integrated = p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = 1;
    p->l2CacheSize = 1 << 20;
    p->maxThreadsPerMultiProcessor = arch == 89 || arch == 120 ? 1536 : 2048;
    p->maxBlocksPerMultiProcessor = arch == 89 || arch == 120 ? 24 : 32;
    return cudaSuccess;
}

typedef enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxBlockDimX = 2, cudaDevAttrMaxBlockDimY = 3, cudaDevAttrMaxBlockDimZ = 4, cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6, cudaDevAttrMaxGridDimZ = 7, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrWarpSize = 10, cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrClockRate = 13, cudaDevAttrMultiProcessorCount = 16, cudaDevAttrIntegrated = 18, cudaDevAttrComputeMode = 20, cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrMemoryClockRate = 36, cudaDevAttrGlobalMemoryBusWidth = 37, cudaDevAttrL2CacheSize = 38, cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrUnifiedAddressing = 41, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82, cudaDevAttrManagedMemory = 83, cudaDevAttrCooperativeLaunch = 95, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106, cudaDevAttrReservedSharedMemoryPerBlock = 111, cudaDevAttrMemoryPoolsSupported = 115,
} cudaDeviceAttr;

static inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    if (!value) { return cpu_error(cudaErrorInvalidValue); }
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) { return error; }
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrClockRate: *value = 0; break;          // kHz; unknown, so rates derived from it are plainly wrong instead of plausible
    case cudaDevAttrMemoryClockRate: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrIntegrated: *value = p.integrated; break;
    case cudaDevAttrComputeMode: *value = 0; break;
    case cudaDevAttrConcurrentKernels: *value = p.concurrentKernels; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrUnifiedAddressing: *value = p.unifiedAddressing; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrManagedMemory: *value = p.managedMemory; break;
    case cudaDevAttrCooperativeLaunch: *value = p.cooperativeLaunch; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = (int)p.reservedSharedMemPerBlock; break;
    case cudaDevAttrMemoryPoolsSupported: *value = p.memoryPoolsSupported; break;
    default: return cpu_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

#endif
