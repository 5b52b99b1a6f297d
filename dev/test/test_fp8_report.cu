/* test_fp8_report.cu - shares, the guard's decision, lines of fp8.jsonl and what a resume cuts of them
 *
 * Covers: llmc/fp8_report.h, fp8_count_nonfinite of fp8_scaling.h
 */
#include "dev/test/oracle.h"
#include "llmc/fp8_report.h"

static void test_guard_trips_beyond_its_limits(void) {
    const Fp8Guard g = {0.001, 0.1};
    const struct { double saturated, flushed, elements; const char* says; } cases[] = {
        {0, 0, 1000, NULL}, {1, 0, 1000, NULL}, {2, 0, 1000, "0.2 % saturate, more than 0.1 %"}, {0, 100, 1000, NULL}, {0, 101, 1000, "10.1 % are flushed to zero, more than 10 %"},
        {5, 500, 1000, "0.5 % saturate"}, {0, 0, 0, NULL}};
    for (auto& c : cases) {
        char why[128];
        const bool trips = fp8_guard_trips(&g, fp8_shares(c.saturated, c.flushed, c.elements), why);
        CHECK(trips == (c.says != NULL) && (!trips || strstr(why, c.says)), "%g saturated, %g flushed of %g: %d '%s'", c.saturated, c.flushed, c.elements, trips, why);
    }
}

// A line for every slot, whatever the amax; NaN and inf become null.
static void test_json_lines(void) {
    Lab lab;
    Fp8Scaling s;
    fp8_scaling_init(&s, &fp8_recipes[0], 2);
    const float amaxes[] = {0.0f, 1e-40f, 2.5f, 3e38f, INFINITY, NAN};
    for (int i = 0; i < 6; i++) {
        unsigned bits;
        memcpy(&bits, &amaxes[i], 4);
        bits &= 0x7fffffffu;
        cudaCheck(cudaMemcpy(s.amax_step + i, &bits, 4, cudaMemcpyHostToDevice));
    }
    s.in_bf16[2] = 1;
    Fp8ScalingHost h;
    fp8_scaling_copy(&s, &h);
    const char* due[] = {"\"amax\":0,", "\"amax\":9.99995e-41,", "\"amax\":2.5,", "\"amax\":3e+38,", "\"amax\":null,", "\"amax\":null,"};
    for (int i = 0; i < 6; i++) {
        const std::string line = fp8_json_line(&s, &h, i, fp8_shares(1, 2, 8), 7);
        CHECK(line.find(due[i]) != std::string::npos && line.find("{\"step\":7,\"tensor\":\"l") == 0 && line.find("\"saturated\":0.125,\"flushed\":0.25,\"sqnr_db\":null") != std::string::npos &&
              line.find(i == 2 ? "\"bf16\":true}\n" : "\"bf16\":false}\n") != std::string::npos, "slot %d: %s", i, line.c_str());
        CHECK(line.find("nan") == std::string::npos && line.find("inf") == std::string::npos, "no JSON: %s", line.c_str());
    }
    float* count = lab_alloc<float>(&lab, 1);
    fp8_count_nonfinite(&s, count, lab.dev.stream);
    CHECK(lab_get(&lab, count, 1)[0] == 2, "2 amaxes are not finite, counted %g", lab_get(&lab, count, 1)[0]);
    fp8_scaling_host_free(&h);
    fp8_scaling_free(&s);
}

static void test_log_cut_keeps_the_past(void) {
    FileError error;
    std::string folder = "/tmp/test_fp8_report.XXXXXX";
    CHECK(mkdtemp(&folder[0]), "%s", strerror(errno));
    const std::string path = folder + "/fp8.jsonl";
    CHECK(fp8_log_cut(path.c_str(), 3, &error), "a file that is not there: %s", error.message);
    CHECK(fp8_log_append(path.c_str(), "{\"step\":2,\"a\":1}\n{\"step\":4,\"a\":2}\n", &error) && fp8_log_append(path.c_str(), "# a note\n{\"step\":6}\n{\"step\":1", &error), "%s", error.message);
    CHECK(fp8_log_cut(path.c_str(), 4, &error), "%s", error.message);
    const std::string text = test_read_file(path);
    CHECK(text == "{\"step\":2,\"a\":1}\n{\"step\":4,\"a\":2}\n# a note\n", "after the cut: %s", text.c_str());
    CHECK(!fp8_log_append((folder + "/no/fp8.jsonl").c_str(), "x\n", &error) && strstr(error.message, "no/fp8.jsonl") && error.hint[0], "a folder that is not there: %s", error.message);
    unlink(path.c_str());
    rmdir(folder.c_str());
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"fp8_guard_trips_beyond_its_limits", test_guard_trips_beyond_its_limits, QUICK},
        {"fp8_json_lines", test_json_lines, QUICK},
        {"fp8_log_cut_keeps_the_past", test_log_cut_keeps_the_past, QUICK},
    };
    return TEST_MAIN(tests);
}
