/* test.h - the test runner: a table of tests, each in its own process, one line each, summary last
 *
 *   static void test_gelu_matches_oracle(void) { CHECK(x < y, "x %g, y %g", x, y); }
 *   int main(int argc, char** argv) { static const Test tests[] = {{"gelu_matches_oracle", test_gelu_matches_oracle, QUICK}, ...}; return TEST_MAIN(tests); }
 *
 * ./test_x            all tests          ./test_x -q      only the QUICK ones
 * ./test_x NAME...    tests whose name contains NAME      TEST_SEED=7 ./test_x     another seed (printed on failure)
 * Closing line: "N passed, N failed, N skipped"; exit code 1 if any failed. A test ends by returning (passed), by a failed CHECK, by exit != 0 or a
 * signal (failed), or by SKIP(reason). test_child runs a function in a child process and returns its exit code with all that it printed: for
 * programs that must refuse.
 */
#ifndef DEV_TEST_H
#define DEV_TEST_H

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum TestSpeed { QUICK, SLOW };
typedef struct { const char* name; void (*fn)(void); TestSpeed speed; } Test;

#define TEST_SKIPPED 77
#define CHECK(cond, ...) \
    do { if (!(cond)) { fflush(stdout); fprintf(stderr, "    %s:%d: CHECK(%s) failed: ", __FILE__, __LINE__, #cond); fprintf(stderr, __VA_ARGS__); fprintf(stderr, "\n"); exit(1); } } while (0)
#define SKIP(...) do { printf("    skipped: "); printf(__VA_ARGS__); printf("\n"); fflush(stdout); exit(TEST_SKIPPED); } while (0)

static inline uint64_t test_seed(void) {
    const char* s = getenv("TEST_SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

// Deterministic random numbers for tests: splitmix64, uniform in [0, 1) and a rough normal.
typedef struct { uint64_t s; } TestRng;
static inline uint64_t test_rng_u64(TestRng* r) {
    uint64_t z = (r->s += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static inline double test_rng_uniform(TestRng* r) { return (double)(test_rng_u64(r) >> 11) / 9007199254740992.0; }
static inline double test_rng_normal(TestRng* r) {
    double u = 1.0 - test_rng_uniform(r), v = test_rng_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

// A whole file, "(missing)" if it cannot be opened; writing it; a shell command's output (stderr too) and exit code.
static inline std::string test_read_file(const std::string& path) {
    FILE* f = fopen(path.c_str(), "rb");
    if (!f) { return "(missing)"; }
    std::string s;
    char buffer[65536];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), f)) > 0;) { s.append(buffer, n); }
    fclose(f);
    return s;
}
static inline void test_write_file(const std::string& path, const std::string& content) {
    FILE* f = fopen(path.c_str(), "wb");
    CHECK(f && fwrite(content.data(), 1, content.size(), f) == content.size(), "%s", path.c_str());
    fclose(f);
}
static inline std::string test_shell(const std::string& command, int* code) {
    std::string out;
    char buffer[4096];
    FILE* pipe = popen((command + " 2>&1").c_str(), "r");
    CHECK(pipe, "popen failed");
    while (size_t n = fread(buffer, 1, sizeof(buffer), pipe)) { out.append(buffer, n); }
    int status = pclose(pipe);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return out;
}

// Runs fn(arg) in a child; returns its exit code (128 + signal if it was killed); *output gets stdout and stderr.
static inline int test_child(void (*fn)(void*), void* arg, std::string* output) {
    int fds[2];
    fflush(stdout);
    fflush(stderr);
    if (pipe(fds) != 0) { perror("pipe"); exit(1); }
    pid_t pid = fork();
    if (pid < 0) { perror("fork"); exit(1); }
    if (pid == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        fn(arg);
        fflush(stdout);
        _exit(0);
    }
    close(fds[1]);
    output->clear();
    char buffer[4096];
    ssize_t n;
    while ((n = read(fds[0], buffer, sizeof(buffer))) > 0) { output->append(buffer, n); }
    close(fds[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int test_main(int argc, char** argv, const Test* tests, int count) {
    bool quick = false;
    int passed = 0, failed = 0, skipped = 0, matched = 0;
    for (int i = 1; i < argc; i++) { if (!strcmp(argv[i], "-q")) { quick = true; } }
    for (int t = 0; t < count; t++) {
        bool wanted = true, named = false;
        for (int i = 1; i < argc; i++) {
            if (argv[i][0] == '-') { continue; }
            if (!named) { wanted = false; named = true; }
            if (strstr(tests[t].name, argv[i])) { wanted = true; }
        }
        if (!wanted || (quick && tests[t].speed == SLOW)) { continue; }
        matched++;
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        fflush(stdout);
        fflush(stderr);
        pid_t pid = fork();
        if (pid == 0) { tests[t].fn(); fflush(stdout); exit(0); }  // exit, not _exit: leak checkers report here
        int status = 0;
        waitpid(pid, &status, 0);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double seconds = (b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) * 1e-9;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        const char* word = code == 0 ? "ok" : code == TEST_SKIPPED ? "skip" : "FAIL";
        printf("%-4s %s (%.1f s)", word, tests[t].name, seconds);
        if (code != 0 && code != TEST_SKIPPED) { printf("  exit %d; TEST_SEED=%llu %s %s", code, (unsigned long long)test_seed(), argv[0], tests[t].name); }
        printf("\n");
        if (code == 0) { passed++; } else if (code == TEST_SKIPPED) { skipped++; } else { failed++; }
    }
    if (!matched) { printf("no test matches\n"); failed++; }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}
#define TEST_MAIN(tests) test_main(argc, argv, tests, (int)(sizeof(tests) / sizeof((tests)[0])))

#endif
