/* mfu.h - what a step costs in operations, and what the device could do at best
 *
 * flops a token (MFU, as llm.c and PaLM appendix B):  6 N + 6 L C T, N = all parameters (padded).
 * Speed of light (SOL): the time that the products alone need at the data-sheet peak of their own type, over the measured time:
 *     6 N_block at the rate of the linear layers' type + 6 V C (head) + 6 L C T (causal half of attention) at the BF16 rate; recomputation is not counted.
 * The table holds dense tensor-core peaks in TFLOP/s (BF16 and FP8 with f32 accumulation) and memory bandwidth in TB/s, from vendors' data sheets.
 * The first row whose text occurs in the device's name as whole words counts (laptop chips share names with
 * larger ones and have none); an unknown device has no row and prints "n/a", never a made-up number.
 */
#ifndef LLMC_MFU_H
#define LLMC_MFU_H

#include <ctype.h>
#include <stddef.h>
#include <string.h>

typedef struct { const char* name; double bf16, fp8, bandwidth; } DevicePeak;  // fp8 0: the device has none

static const DevicePeak device_peaks[] = {
    {"GH200", 989.4, 1978.9, 4.0},         {"H200 NVL", 835.0, 1671.0, 4.8},    {"H200", 989.4, 1978.9, 4.8},        {"H800", 989.4, 1978.9, 3.35},
    {"H100 PCIe", 756.0, 1513.0, 2.04},    {"H100 NVL", 835.0, 1671.0, 3.94},   {"H100", 989.4, 1978.9, 3.35},
    {"B300", 2250.0, 4500.0, 8.0},         {"GB200", 2250.0, 4500.0, 8.0},      {"B200", 2250.0, 4500.0, 8.0},
    {"A100-SXM4-80GB", 312.0, 0.0, 2.04},  {"A100", 312.0, 0.0, 1.56},          {"A800", 312.0, 0.0, 2.04},
    {"L40S", 362.05, 733.0, 0.864},        {"L40", 181.0, 362.0, 0.864},        {"L4", 121.0, 242.0, 0.3},
    {"RTX 5090", 209.5, 419.0, 1.79},      {"RTX PRO 6000 Blackwell Max-Q", 438.9, 877.9, 1.79}, {"RTX PRO 6000", 503.8, 1007.6, 1.79},
    {"RTX 4090 D", 147.1, 294.3, 1.01},    {"RTX 4090", 165.2, 330.3, 1.01},      {"RTX 4080 SUPER", 104.5, 209.0, 0.736}, {"RTX 4080", 97.5, 195.0, 0.717},
    {"RTX 4070 Ti SUPER", 88.2, 176.4, 0.672}, {"RTX 4070 Ti", 80.2, 160.4, 0.504}, {"RTX 4070 SUPER", 71.0, 142.0, 0.504},
    {"RTX 4070", 58.3, 116.6, 0.504},      {"RTX 4060 Ti", 44.1, 88.2, 0.288},  {"RTX 4060", 30.2, 60.4, 0.272},
    {"RTX 3090 Ti", 80.0, 0.0, 1.01},      {"RTX 3090", 71.2, 0.0, 0.936},      {"RTX 3080 Ti", 68.2, 0.0, 0.912},
    {"RTX 3080", 59.5, 0.0, 0.760},        {"RTX 3070 Ti", 43.5, 0.0, 0.608},   {"RTX 3070", 40.6, 0.0, 0.448},
    {"RTX 3060 Ti", 32.4, 0.0, 0.448},     {"RTX 3060", 25.5, 0.0, 0.360},
    {"RTX 6000 Ada", 182.2, 364.2, 0.960}, {"RTX A6000 ADA", 182.2, 364.2, 0.960}, {"RTX 5880 Ada", 138.6, 277.2, 0.960}, {"RTX A5880 ADA", 138.6, 277.2, 0.960},
    {"RTX 5000 Ada", 130.6, 261.1, 0.576}, {"RTX A5000 ADA", 130.6, 261.1, 0.576}, {"RTX 4500 Ada", 79.3, 158.5, 0.432}, {"RTX A4500 ADA", 74.0, 148.0, 0.432},
    {"RTX 4000 Ada", 53.5, 107.0, 0.360},  {"RTX A4000 ADA", 53.5, 107.0, 0.360}, {"RTX 2000 Ada", 24.0, 48.0, 0.224},  {"RTX A2000 ADA", 24.0, 48.0, 0.224},
    {"RTX A6000", 77.4, 0.0, 0.768},       {"RTX A5500", 72.5, 0.0, 0.768},     {"RTX A5000", 55.5, 0.0, 0.768},     {"RTX A4500", 47.3, 0.0, 0.640},
    {"RTX A4000", 38.3, 0.0, 0.448},       {"RTX A2000", 16.0, 0.0, 0.288},
};

// The peaks of a device by its name, or NULL.
static inline const DevicePeak* mfu_find_device(const char* device_name) {
    if (strstr(device_name, "Laptop")) { return NULL; }
    for (size_t i = 0; i < sizeof(device_peaks) / sizeof(device_peaks[0]); i++) {
        const char* at = strstr(device_name, device_peaks[i].name);
        if (at && (at == device_name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[strlen(device_peaks[i].name)])) { return &device_peaks[i]; }
    }
    return NULL;
}

// Operations a token of the three kinds; sum = the numerator of a FLOP rate.
typedef struct { double block, head, attention; } FlopsPerToken;
static inline FlopsPerToken mfu_flops(int L, int C, int T, int V) {
    FlopsPerToken f = {6.0 * 12.0 * L * C * C, 6.0 * V * C, 6.0 * L * C * T};
    return f;
}

// Share of the peak (0..1) by llm.c's count; 0 if the device is unknown.
static inline double mfu_share(const DevicePeak* peak, double num_parameters, int L, int C, int T, double tokens_per_second) {
    return peak ? (6.0 * num_parameters + 6.0 * L * C * T) * tokens_per_second / (peak->bf16 * 1e12) : 0.0;
}

// Tokens a second at the speed of light; 0 if the device is unknown or lacks FP8.
static inline double mfu_speed_of_light(const DevicePeak* peak, FlopsPerToken f, bool fp8) {
    if (!peak || (fp8 && peak->fp8 == 0.0)) { return 0.0; }
    return 1e12 / (f.block / (fp8 ? peak->fp8 : peak->bf16) + (f.head + f.attention) / peak->bf16);
}

#endif
