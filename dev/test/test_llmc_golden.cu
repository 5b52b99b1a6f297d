/* test_llmc_golden.cu - golden numbers of llm.c that no other test holds: operations a token and the peaks of devices (host code only)
 *
 * dev/check_llmc.py lists where the other golden values are tested. */
#include "llmc/mfu.h"
#include "dev/test/test.h"

static void test_mfu_flops_are_llmcs(void) {
    const struct { const char* name; int L, C, T; double parameters, flops; } models[] = {
        {"d6", 6, 384, 1024, 30357504, 196300800},          {"d12", 12, 768, 1024, 124475904, 803478528},      {"d24", 24, 1024, 1024, 354871296, 2280222720},
        {"d36", 36, 1280, 1024, 774090240, 4927656960},     {"d48", 48, 1600, 1024, 1557686400, 9817977600},
        {"gpt3:c768", 12, 768, 2048, 125262336, 864820224}, {"gpt3:c2048", 24, 2048, 2048, 1315819520, 8498896896}};
    const DevicePeak one = {"", 1.0, 0.0, 0.0};  // 1 TFLOP/s: a share of 1 is 1e12 operations a second
    for (auto& m : models) {
        double flops = mfu_share(&one, m.parameters, m.L, m.C, m.T, 1.0) * 1e12;
        CHECK(fabs(flops - m.flops) < 0.5, "%s: %.0f operations a token instead of %.0f", m.name, flops, m.flops);
    }
}

// llm.c knows whole names only, and its table's numbers carry one decimal; the data sheet of the H100 says 989.4 where it has 988.8.
static void test_mfu_peaks_are_llmcs(void) {
    const struct { const char* name; double bf16; } devices[] = {
        {"NVIDIA A100-PCIE-40GB", 312.0},       {"NVIDIA A100-PCIE-80GB", 312.0},       {"NVIDIA A100-SXM4-40GB", 312.0}, {"NVIDIA A100-SXM4-80GB", 312.0},
        {"NVIDIA H100 PCIe", 756.0},            {"NVIDIA H100 80GB HBM3", 988.8},       {"NVIDIA GeForce RTX 4090", 165.2}, {"NVIDIA GeForce RTX 4080 SUPER", 104.5},
        {"NVIDIA GeForce RTX 4080", 97.5},      {"NVIDIA GeForce RTX 4070 Ti SUPER", 88.2}, {"NVIDIA GeForce RTX 4070 Ti", 80.2}, {"NVIDIA GeForce RTX 4070 SUPER", 71.0},
        {"NVIDIA GeForce RTX 4070", 58.3},      {"NVIDIA GeForce RTX 4060 Ti", 44.1},   {"NVIDIA GeForce RTX 4060", 30.2}, {"NVIDIA GeForce RTX 3090 Ti", 80.0},
        {"NVIDIA GeForce RTX 3090", 71.2},      {"NVIDIA GeForce RTX 3080 Ti", 68.2},   {"NVIDIA GeForce RTX 3080", 59.5}, {"NVIDIA GeForce RTX 3070 Ti", 43.5},
        {"NVIDIA GeForce RTX 3070", 40.6},      {"NVIDIA GeForce RTX 3060 Ti", 32.4},   {"NVIDIA GeForce RTX 3060", 25.5}, {"NVIDIA RTX A6000", 77.4},
        {"NVIDIA RTX A5500", 72.5},             {"NVIDIA RTX A5000", 55.5},             {"NVIDIA RTX A4500", 47.3},       {"NVIDIA RTX A4000", 38.3},
        {"NVIDIA RTX A2000", 16.0}};
    int unknown = 0;
    for (auto& d : devices) {
        const DevicePeak* peak = mfu_find_device(d.name);
        if (!peak) { fprintf(stderr, "    no peak for %s (llm.c: %.1f)\n", d.name, d.bf16); unknown++; continue; }
        CHECK(fabs(peak->bf16 / d.bf16 - 1.0) < 1e-3, "%s: %.1f TFLOP/s instead of %.1f", d.name, peak->bf16, d.bf16);
    }
    CHECK(unknown == 0, "%d devices of llm.c's table are not in mfu.h", unknown);
    for (const char* name : {"CPU device", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H1000", "NVIDIA X4090", ""}) { CHECK(!mfu_find_device(name), "'%s' has a peak", name); }
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"mfu_flops_are_llmcs", test_mfu_flops_are_llmcs, QUICK},
        {"mfu_peaks_are_llmcs", test_mfu_peaks_are_llmcs, QUICK},
    };
    return TEST_MAIN(tests);
}
