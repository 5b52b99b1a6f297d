/* gpu.cuh - the Device: properties, stream, cuBLASLt handle, workspace, ledger of allocations; the checks before the first kernel
 *
 * One Device a process and GPU, passed explicitly. Device buffers are allocated by device_alloc, which books their bytes under a class for the memory
 * report (but for the few bytes a tensor of fp8_scaling.h); whoever allocates frees with cudaFree. device_free is in matmul.cuh, which knows the plans.
 * Start-up refusals, one message each: no GPU, driver too old, build without code for this GPU, no FP8 on this architecture.
 */
#ifndef LLMC_GPU_CUH
#define LLMC_GPU_CUH

#include <cublasLt.h>
#include <string>
#include <vector>

#include "llmc/device.cuh"
#include "llmc/mfu.h"

typedef enum { MEM_PARAMETERS, MEM_FP8_WEIGHTS, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_ACTIVATIONS, MEM_SCRATCH, MEM_WORKSPACE, NUM_MEM_CLASSES } MemClass;
static const char* const mem_class_names[NUM_MEM_CLASSES] = {"parameters", "FP8 weights", "gradients", "optimizer state", "activations", "scratch", "cuBLASLt workspace"};

typedef enum { ATTENTION_AUTO, ATTENTION_GEMM, ATTENTION_FLASH } AttentionKind;  // llmc/attention.cuh

struct GemmPlan;  // llmc/matmul.cuh

typedef struct Device {
    cudaDeviceProp props;
    int capability;              // 10 * major + minor: 80, 89, 90, 100, 120; 0 = CPU device that plays no particular GPU
    bool is_cpu;
    bool counting;               // device_alloc only books: what would be allocated
    const DevicePeak* peak;      // NULL: unknown device
    cudaStream_t stream;         // everything runs on it, in order
    cublasLtHandle_t lt;
    void* workspace;
    size_t workspace_bytes;
    bool tf32;                   // float32 GEMMs may round their inputs to TF32
    AttentionKind attention;
    size_t allocated[NUM_MEM_CLASSES];
    std::vector<struct GemmPlan*> plans;
} Device;

// ----------------------------------------------------------------------------
// memory

// Device memory, 256-byte aligned; booked under class c. Ends the program with the sizes when there is not enough.
static inline void* device_alloc(Device* dev, MemClass c, const char* name, size_t bytes) {
    void* p = NULL;
    if (bytes == 0) { return NULL; }
    cudaError_t error = dev->counting ? cudaSuccess : cudaMalloc(&p, bytes);
    if (error != cudaSuccess) {
        size_t free_bytes = 0, total = 0, booked = 0;
        cudaMemGetInfo(&free_bytes, &total);
        for (int i = 0; i < NUM_MEM_CLASSES; i++) { booked += dev->allocated[i]; }
        fail("choose a smaller --batch-size (with the same --total-batch-tokens), --seq-len or model, or --recompute 3",
             "out of device memory: %.1f MiB for %s (%s); %.1f MiB are allocated, %.1f of %.1f MiB are free (%s)",
             bytes / 1048576.0, name, mem_class_names[c], booked / 1048576.0, free_bytes / 1048576.0, total / 1048576.0, cudaGetErrorName(error));
    }
    dev->allocated[c] += bytes;
    return p;
}

static inline void device_print_memory(const Device* dev, FILE* out) {
    size_t total = 0;
    fprintf(out, "device memory, MiB:");
    for (int i = 0; i < NUM_MEM_CLASSES; i++) {
        if (dev->allocated[i]) { fprintf(out, " %s %.1f,", mem_class_names[i], dev->allocated[i] / 1048576.0); }
        total += dev->allocated[i];
    }
    fprintf(out, " total %.1f of %.1f\n", total / 1048576.0, dev->props.totalGlobalMem / 1048576.0);
}

// ----------------------------------------------------------------------------
// start-up

static __global__ void device_probe_kernel1(int* out) { if (threadIdx.x == 0) { *out = 1; } }

// FP8 matrix products exist from compute capability 8.9 on; the CPU device without a particular GPU has them.
static inline bool device_has_fp8(const Device* dev) { return dev->capability == 0 || dev->capability >= 89; }
// 10.x multiplies FP8 operands in any layout: the transposed copies are not needed there.
static inline bool device_fp8_any_layout(const Device* dev) { return dev->capability >= 100 && dev->capability < 120; }

static inline void device_init(Device* dev, int local_rank) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        if (driver == 0) { fail("build and run the CPU device instead: make cpu && ./train_gpt_fp8_cpu", "no NVIDIA driver answers on this machine (CUDA error %d)", (int)error); }
        fail("update the NVIDIA driver, or build with a CUDA toolkit no newer than the driver's version",
             "the NVIDIA driver is too old: it supports CUDA %d.%d, this program was built with CUDA %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (error != cudaSuccess || count == 0) {
        fail("check nvidia-smi and CUDA_VISIBLE_DEVICES, or run the CPU device: make cpu && ./train_gpt_fp8_cpu", "no CUDA GPU found: %d devices, %s", count, cudaGetErrorString(error));
    }
    if (count == 1) { local_rank = 0; }  // the launcher shows each process its own GPU only; two that share one are refused by NCCL
    require(local_rank < count, "start at most one process a GPU", "process %d of this machine has no GPU: %d found", local_rank, count);
    cudaCheck(cudaSetDevice(local_rank));
    cudaCheck(cudaGetDeviceProperties(&dev->props, local_rank));
    dev->capability = dev->props.major * 10 + dev->props.minor;
    dev->counting = false;
#ifdef GPT_CPU_DEVICE
    dev->is_cpu = true;
    dev->peak = NULL;
#else
    dev->is_cpu = false;
    dev->peak = mfu_find_device(dev->props.name);
#endif
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, (const void*)device_probe_kernel1);
    if (error != cudaSuccess) {
        fail("build for this GPU: make clean gpu ARCH=<its compute capability without the dot, e.g. 90a>",
             "this build has no code for %s, compute capability %d.%d (%s)", dev->props.name, dev->props.major, dev->props.minor, cudaGetErrorName(error));
    }
    cudaCheck(cudaStreamCreateWithFlags(&dev->stream, cudaStreamNonBlocking));
    cublasStatus_t status = cublasLtCreate(&dev->lt);
    require(status == CUBLAS_STATUS_SUCCESS, "check that the cuBLASLt library fits the driver (LD_LIBRARY_PATH)", "cublasLtCreate failed with status %d", (int)status);
    dev->workspace_bytes = dev->props.major >= 9 || dev->capability == 0 ? (size_t)32 << 20 : (size_t)4 << 20;  // the library's own advice by architecture
    dev->workspace = device_alloc(dev, MEM_WORKSPACE, "workspace", dev->workspace_bytes);
}

#endif
