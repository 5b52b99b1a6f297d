/* test_goodput.cu - goodput.log: exact figures for series of starts, kills at every system call, damaged files, clocks that were set back
 *
 * Seconds are multiples of 1/8, so that sums and shares are exact, in the file too. The oracle keeps every step of every start and asks of each whether a later
 * start went through it again.  */
#define GPT_FAULTS
#include <vector>

#include "dev/test/test.h"
#include "llmc/goodput.h"

// ---------------------------------------------------------------------------- helpers

static std::string scratch(const char* name) {
    static std::string folder;
    if (folder.empty()) {
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm/test_goodput.XXXXXX" : "/tmp/test_goodput.XXXXXX";
        CHECK(mkdtemp(&folder[0]), "%s", strerror(errno));
        static pid_t owner = getpid();
        atexit([] { std::string command = "chmod -R u+w " + folder + "; rm -rf " + folder; if (getpid() == owner && system(command.c_str()) != 0) { perror("rm"); } });
    }
    std::string path = folder + "/" + name;
    mkdir(path.c_str(), 0700);
    return path;
}
static std::string log_of(const std::string& folder) { return test_read_file(folder + "/goodput.log"); }
static std::string old_of(const std::string& folder) { return test_read_file(folder + "/goodput.log.old"); }
// The last line of the log, without its line break and the blanks at the end, must be this one.
static void check_line(const std::string& folder, size_t lines, const char* due) {
    const std::string log = log_of(folder), last = log.size() >= 128 ? log.substr(log.size() - 128) : log;
    CHECK(log.size() == lines * 128 && last.back() == '\n' && last.substr(0, last.find_last_not_of(" \n") + 1) == due, "%zu bytes\n%s\nnot\n%s", log.size(), last.c_str(), due);
}
static void clear(const std::string& folder) {
    unlink((folder + "/goodput.log").c_str());
    unlink((folder + "/goodput.log.old").c_str());
}
static std::string text_of(const Goodput* g) {
    char text[GOODPUT_TEXT_MAX];
    return goodput_text(g, text);
}
static double all_of(const Goodput* g) {
    double all = g->between;
    for (int i = 0; i < NUM_GOODPUT_CLASSES; i++) { all += g->earlier[i] + g->now.seconds[i]; }
    return all;
}
// A start as it is told: loading, then steps of the same time, then its end; killed: none.
static void one_start(Goodput* g, const std::string& folder, int resumed, double begin, double loading, int steps, double seconds, bool killed, GoodputEnd how, double saving = 0.0) {
    goodput_open(g, folder.c_str(), resumed, begin);
    CHECK(!g->note[0], "%s", g->note);
    double now = begin + loading;
    goodput_add(g, GOODPUT_LOADING, loading);
    for (int i = 1; i <= steps; i++) {
        goodput_add(g, GOODPUT_TRAINING, seconds);
        now += seconds;
        goodput_tick(g, (resumed > 0 ? resumed : 0) + i, now);
    }
    goodput_add(g, GOODPUT_SAVING, saving);
    if (!killed) { goodput_end(g, how, (resumed > 0 ? resumed : 0) + steps, now + saving); }
    else if (g->fd >= 0) { close(g->fd); }
}
#define DAY 1800000000.0

// ---------------------------------------------------------------------------- one start

static void test_one_start(void) {
    std::string folder = scratch("one");
    Goodput g;
    goodput_open(&g, folder.c_str(), -1, DAY);
    const std::string header = "begin (unix s)        written first step  last step      loading     training   evaluating       saving        other end       \n";
    CHECK(header.size() == 128, "%zu", header.size());
    CHECK(log_of(folder).substr(0, 128) == header, "%s", log_of(folder).c_str());
    check_line(folder, 2, "1800000000.000 1800000000.000          0          0        0.000        0.000        0.000        0.000        0.000 running");
    goodput_add(&g, GOODPUT_LOADING, 20.0);
    goodput_add(&g, GOODPUT_TRAINING, 3480.0);
    goodput_add(&g, GOODPUT_EVALUATING, 60.0);
    goodput_add(&g, GOODPUT_SAVING, 12.0);
    goodput_add(&g, GOODPUT_SAVING, -1.0);
    goodput_add(&g, GOODPUT_SAVING, (double)NAN);
    goodput_tick(&g, 7, DAY + 3600.25);
    check_line(folder, 2, "1800000000.000 1800003600.250          0          7       20.000     3480.000       60.000       12.000       28.250 running");
    CHECK(text_of(&g) == "goodput 96.7% of 1h00m: training 58m00s, loading 20s, evaluating 1m00s, saving 12s, other 28s (1 start)", "%s", text_of(&g).c_str());
    const std::string before = log_of(folder);
    goodput_add(&g, GOODPUT_TRAINING, 0.5);
    goodput_tick(&g, 8, DAY + 3601.125);  // 0.875 s later: not due
    CHECK(log_of(folder) == before, "%s", log_of(folder).c_str());
    goodput_add(&g, GOODPUT_TRAINING, 0.5);
    goodput_tick(&g, 9, DAY + 3601.25);
    check_line(folder, 2, "1800000000.000 1800003601.250          0          9       20.000     3481.000       60.000       12.000       28.250 running");
    goodput_end(&g, GOODPUT_DONE, 9, DAY + 3601.5);
    check_line(folder, 2, "1800000000.000 1800003601.500          0          9       20.000     3481.000       60.000       12.000       28.500 done");
    CHECK(g.fd == -1, "%d", g.fd);
}

static void test_no_folder(void) {
    for (const char* folder : {(const char*)NULL, ""}) {
        Goodput g;
        goodput_open(&g, folder, -1, DAY);
        goodput_add(&g, GOODPUT_TRAINING, 3.0);
        goodput_tick(&g, 1, DAY + 4.0);
        goodput_end(&g, GOODPUT_DONE, 1, DAY + 4.0);
        CHECK(!g.note[0] && text_of(&g) == "goodput 75.0% of 4.0s: training 3.0s, other 1.0s (1 start)", "%s %s", g.note, text_of(&g).c_str());
    }
    CHECK(access("goodput.log", F_OK) != 0, "a file in the working folder");
}

static void test_durations(void) {
    const struct { double seconds; const char* text; } cases[] = {{0, "0.0s"}, {0.04, "0.0s"}, {9.94, "9.9s"}, {9.96, "10s"}, {59.4, "59s"}, {59.6, "1m00s"}, {119.6, "2m00s"}, {3599.4, "59m59s"},
        {3599.6, "1h00m"}, {86399, "23h59m"}, {86400, "1d00h"}, {10 * 86400.0 + 7200, "10d02h"}, {1e8, "1157d09h"}};
    for (auto& c : cases) {
        char text[24];
        CHECK(!strcmp(goodput_duration(text, c.seconds), c.text), "%g: %s, not %s", c.seconds, text, c.text);
    }
    Goodput g;
    goodput_open(&g, NULL, -1, DAY);
    CHECK(text_of(&g) == "goodput 0.0% of 0.0s: training 0.0s (1 start)", "%s", text_of(&g).c_str());
    for (int i = 0; i < NUM_GOODPUT_CLASSES; i++) { g.earlier[i] = 1e8; g.now.seconds[i] = 1e8; }  // the longest line there can be
    g.lost = 5e7;
    g.between = 1e10;
    g.starts = 2000000000;
    CHECK(text_of(&g).size() < GOODPUT_TEXT_MAX - 1 && text_of(&g).substr(text_of(&g).size() - 19) == "(2000000000 starts)", "%s", text_of(&g).c_str());
}

// What does not fit is cut, never a longer line.
static void test_width(void) {
    GoodputStart s;
    char line[GOODPUT_LINE + 2];
    memset(&s, 0, sizeof(s));
    s.begin = 1e300;
    s.written = -5.0;
    s.first = 2000000000;
    s.last = 2147483647;
    s.seconds[0] = 1e12;
    s.seconds[1] = (double)INFINITY;
    s.seconds[2] = (double)NAN;
    s.end = GOODPUT_SAVED;
    goodput_format(line, &s);
    CHECK(!strcmp(line, "9999999999.000          0.000 2000000000 2147483647 99999999.999 99999999.999        0.000        0.000        0.000 saved     \n"), "%s", line);
    GoodputStart again;
    CHECK(goodput_parse(line, &again) && again.last == 2147483647 && again.end == GOODPUT_SAVED && again.seconds[0] == 99999999.999, "%s", line);
}

// ---------------------------------------------------------------------------- many starts

static void test_killed_and_resumed(void) {
    std::string folder = scratch("killed");
    Goodput g;
    // 20 steps of 2 s, a checkpoint at 15, killed; 70 s later it goes on from there, saves at 25 as a signal asked, and 10 s later to the end
    one_start(&g, folder, -1, DAY, 10.0, 20, 2.0, true, GOODPUT_RUNNING);
    one_start(&g, folder, 15, DAY + 120.0, 8.0, 10, 2.0, false, GOODPUT_SAVED, 4.0);
    CHECK(g.lost == 10.0 && g.between == 70.0, "lost %g, between %g", g.lost, g.between);
    goodput_open(&g, folder.c_str(), 25, DAY + 162.0);
    CHECK(!g.note[0] && g.starts == 3 && g.lost == 10.0 && g.between == 80.0, "%s %d starts, lost %g, between %g", g.note, g.starts, g.lost, g.between);
    goodput_add(&g, GOODPUT_LOADING, 2.0);
    goodput_add(&g, GOODPUT_TRAINING, 90.0);
    goodput_add(&g, GOODPUT_EVALUATING, 6.0);
    goodput_end(&g, GOODPUT_DONE, 70, DAY + 260.0);
    CHECK(text_of(&g) == "goodput 53.8% of 4m20s: training 2m20s, loading 20s, evaluating 6.0s, saving 4.0s, lost steps 10s, between starts 1m20s (3 starts)", "%s", text_of(&g).c_str());
    CHECK(all_of(&g) == 260.0, "%g", all_of(&g));
    // done: what comes until somebody trains further is no cost of this run
    goodput_open(&g, folder.c_str(), 70, DAY + 100000.0);
    CHECK(g.starts == 4 && g.lost == 10.0 && g.between == 80.0, "%d starts, lost %g, between %g", g.starts, g.lost, g.between);
    close(g.fd);
    CHECK(log_of(folder).size() == 5 * 128 && log_of(folder).substr(4 * 128 + 29, 22) == "         70         70", "%s", log_of(folder).c_str());
}

static void test_nothing_found_loses_all(void) {  // killed before the first checkpoint: --resume starts afresh, with step 0
    std::string folder = scratch("nothing");
    Goodput g;
    one_start(&g, folder, -1, DAY, 1.0, 6, 0.5, true, GOODPUT_RUNNING);
    one_start(&g, folder, 0, DAY + 10.0, 1.0, 4, 0.5, true, GOODPUT_RUNNING);
    one_start(&g, folder, 0, DAY + 20.0, 1.0, 2, 0.5, true, GOODPUT_RUNNING);
    CHECK(g.lost == 4.0 && g.starts == 3, "lost %g, %d starts", g.lost, g.starts);  // 5 of 6 steps and 3 of 4: the last one of each was never written
    goodput_open(&g, folder.c_str(), -1, DAY + 30.0);  // without --resume: another run
    CHECK(g.starts == 1 && g.lost == 0.0 && g.between == 0.0 && all_of(&g) == 0.0 && !strcmp(g.note, "goodput.log of an earlier run is now goodput.log.old"), "%s", g.note);
    close(g.fd);
    CHECK(log_of(folder).size() == 256 && old_of(folder).size() == 4 * 128, "%zu, %zu", log_of(folder).size(), old_of(folder).size());
    goodput_open(&g, folder.c_str(), -1, DAY + 40.0);
    close(g.fd);
    CHECK(old_of(folder).size() == 256 && !strcmp(g.note, "goodput.log of an earlier run is now goodput.log.old"), "%s", g.note);
}

// Random series: kills, saves, ends, resumes from any checkpoint before (the newest may be damaged) by any number of ranks: only steps and seconds count.
static void test_series_match_oracle(void) {
    std::string folder = scratch("series");
    TestRng rng = {test_seed()};
    auto below = [&](int n) { return (int)(test_rng_u64(&rng) % (uint64_t)n); };
    struct Step { int start, step; double seconds; };
    for (int series = 0; series < 300; series++) {
        clear(folder);
        std::vector<Step> steps;
        std::vector<int> firsts;
        double now = DAY + series, loading = 0.0, saving = 0.0, between = 0.0;
        const int starts = 1 + below(12);
        int reached = 0;
        Goodput g;
        for (int i = 0; i < starts; i++) {
            const int first = i ? below(reached + 1) : 0, n = below(9);
            const double load = below(80) / 8.0, each = (8 + below(40)) / 8.0, save = below(16) / 8.0, begin = now;
            const bool killed = below(2) == 0, done = !killed && below(3) == 0;
            one_start(&g, folder, i ? first : -1, begin, load, n, each, killed, done ? GOODPUT_DONE : GOODPUT_SAVED, save);
            firsts.push_back(first);
            for (int s = 1; s <= n; s++) { steps.push_back({i, first + s, each}); }
            // a kill before anything was written hides the loading; steps take a second at least, so each was written. What was added since is hidden as well
            const bool told = !killed || n > 0;
            if (i + 1 == starts) { loading += load; saving += save; }  // in the figures of the start itself nothing is hidden
            else if (told) { loading += load; saving += killed ? 0.0 : save; }
            reached = first + n > reached ? first + n : reached;
            const double gap = below(400) / 8.0;
            now = begin + load + n * each + save + gap;
            if (i + 1 < starts && !done) { between += gap + (killed ? save : 0.0) + (told ? 0.0 : load); }
        }
        double kept = 0.0, lost = 0.0;
        for (auto& s : steps) {
            bool again = false;
            for (int later = s.start + 1; later < starts; later++) { again = again || firsts[later] < s.step; }
            (again ? lost : kept) += s.seconds;
        }
        auto total = [&](int which) { return g.earlier[which] + g.now.seconds[which]; };
        const struct { const char* name; double found, due; } figures[] = {{"starts", (double)g.starts, (double)starts}, {"lost", g.lost, lost}, {"between", g.between, between},
            {"training", total(GOODPUT_TRAINING) - g.lost, kept}, {"loading", total(GOODPUT_LOADING), loading}, {"saving", total(GOODPUT_SAVING), saving}, {"other", total(GOODPUT_OTHER), 0.0}};
        for (auto& f : figures) { CHECK(f.found == f.due, "series %d: %s: %g, should be %g\n%s", series, f.name, f.found, f.due, log_of(folder).c_str()); }
    }
}

static void test_clock_set_back(void) {
    std::string folder = scratch("clock");
    Goodput g;
    one_start(&g, folder, -1, DAY, 4.0, 8, 2.0, true, GOODPUT_RUNNING);
    goodput_open(&g, folder.c_str(), 8, DAY - 86400.0);  // between starts
    CHECK(g.between == 0.0 && g.lost == 0.0 && g.earlier[GOODPUT_TRAINING] == 16.0 && strstr(g.note, "set back"), "%g %g %s", g.between, g.lost, g.note);
    goodput_add(&g, GOODPUT_TRAINING, 2.0);
    goodput_tick(&g, 9, DAY - 86397.0);
    goodput_add(&g, GOODPUT_TRAINING, 2.0);
    goodput_tick(&g, 10, DAY - 172800.0);  // while it trains: written at once, no time passed
    check_line(folder, 3, "1799913600.000 1799827200.000          8         10        0.000        4.000        0.000        0.000        0.000 running");
    close(g.fd);
    goodput_open(&g, folder.c_str(), 10, DAY - 172790.0);
    CHECK(g.between == 10.0 && g.earlier[GOODPUT_TRAINING] == 20.0 && strstr(g.note, "set back"), "%g %g %s", g.between, g.earlier[GOODPUT_TRAINING], g.note);
    goodput_end(&g, GOODPUT_DONE, 10, DAY);
}

// ---------------------------------------------------------------------------- files that are not whole, folders that cannot be written

// Opens what is there, as a resume at step 3: one start, a note, and the old content under .old.
static void check_foreign(const std::string& folder, const std::string& content, const char* what) {
    clear(folder);
    test_write_file(folder + "/goodput.log", content);
    Goodput g;
    goodput_open(&g, folder.c_str(), 3, DAY);
    CHECK(g.fd >= 0 && g.starts == 1 && all_of(&g) == 0.0 && g.lost == 0.0, "%s: %d starts, '%s'", what, g.starts, g.note);
    CHECK(strstr(g.note, "damaged or of another version") && strstr(g.note, "goodput.log.old"), "%s: '%s'", what, g.note);
    CHECK(old_of(folder) == content && log_of(folder).size() == 256, "%s: %zu, %zu", what, old_of(folder).size(), log_of(folder).size());
    goodput_end(&g, GOODPUT_DONE, 4, DAY + 1.0);
}

static void test_damaged_files(void) {
    std::string folder = scratch("damaged");
    Goodput g;
    one_start(&g, folder, -1, DAY, 10.0, 20, 2.0, true, GOODPUT_RUNNING);
    one_start(&g, folder, 15, DAY + 120.0, 8.0, 10, 2.0, false, GOODPUT_SAVED, 4.0);
    const std::string good = log_of(folder);
    CHECK(good.size() == 3 * 128, "%zu", good.size());
    for (size_t cut = 1; cut < good.size(); cut++) {
        if (cut % 128) { check_foreign(folder, good.substr(0, cut), "cut"); }
    }
    int told = 0;
    for (size_t at = 0; at < good.size(); at++) {  // any byte: noticed, or still a line of this form (a digit for a digit), never a crash
        for (char c : {'x', ' ', '7', '\0', '\n', '-'}) {
            if (good[at] == c) { continue; }
            clear(folder);
            std::string bad = good;
            bad[at] = c;
            test_write_file(folder + "/goodput.log", bad);
            goodput_open(&g, folder.c_str(), 15, DAY + 200.0);
            const bool noticed = strstr(g.note, "damaged") != NULL;
            told += noticed;
            CHECK(noticed || c == '7' || (c == ' ' && good[at] != '\n' && at >= 128), "byte %zu is %d, '%s'", at, c, g.note);
            CHECK(g.fd >= 0 && log_of(folder).size() == (noticed ? 256 : 512) && (!noticed || g.starts == 1), "byte %zu is %d", at, c);
            close(g.fd);
        }
    }
    CHECK(told > 1500, "%d", told);
    check_foreign(folder, "step 1 of another program\n", "a foreign file");
    check_foreign(folder, good.substr(0, 117) + "how ended \n" + good.substr(128), "other columns");
    check_foreign(folder, std::string(128, '\0'), "zeros");
    check_foreign(folder, good + std::string(128, '\0'), "a line of zeros, as after a loss of power");
    std::string backward = good;
    backward.replace(128 + 30 + 11, 10, "         -1");
    check_foreign(folder, backward.substr(0, good.size()), "a last step below 0");
    clear(folder);
    test_write_file(folder + "/goodput.log", "");  // killed between making and writing it
    goodput_open(&g, folder.c_str(), 3, DAY);
    CHECK(!g.note[0] && g.fd >= 0 && log_of(folder).size() == 256 && old_of(folder) == "(missing)", "%s", g.note);
    close(g.fd);
}

static void test_not_a_file(void) {
    std::string folder = scratch("nofile");
    const std::string path = folder + "/goodput.log";
    Goodput g;
    for (int resumed : {-1, 3}) {
        for (int kind = 0; kind < 3; kind++) {  // a folder, a pipe (which must not be waited for), a link to nowhere
            int made = kind == 0 ? mkdir(path.c_str(), 0700) : kind == 1 ? mkfifo(path.c_str(), 0600) : symlink("nowhere", path.c_str());
            CHECK(made == 0, "%s", strerror(errno));
            goodput_open(&g, folder.c_str(), resumed, DAY);
            CHECK(g.fd >= 0 && strstr(g.note, "goodput.log.old") && g.starts == 1, "%d: '%s'", kind, g.note);
            goodput_end(&g, GOODPUT_DONE, 4, DAY + 1.0);
            CHECK(log_of(folder).size() == 256 && access((folder + "/nowhere").c_str(), F_OK) != 0, "%zu", log_of(folder).size());
            unlink(path.c_str());
            if (rmdir((path + ".old").c_str()) != 0) { unlink((path + ".old").c_str()); }
        }
    }
    mkdir((path + ".old").c_str(), 0700);  // the way is blocked: it goes on without a file
    test_write_file(path, "foreign");
    goodput_open(&g, folder.c_str(), 3, DAY);
    goodput_add(&g, GOODPUT_TRAINING, 1.0);
    goodput_end(&g, GOODPUT_DONE, 4, DAY + 1.0);
    CHECK(strstr(g.note, "cannot write") && strstr(g.note, "this start only") && log_of(folder) == "foreign", "%s", g.note);
    CHECK(text_of(&g) == "goodput 100.0% of 1.0s: training 1.0s (1 start)", "%s", text_of(&g).c_str());
    goodput_open(&g, (folder + "/missing").c_str(), -1, DAY);
    CHECK(g.fd < 0 && strstr(g.note, "No such file") && strstr(g.note, "this start only"), "%s", g.note);
}

static void series(const std::string& folder, Goodput* last) {  // three starts, with every kind of call
    Goodput g;
    double now = DAY;
    for (int i = 0; i < 3; i++) {
        goodput_open(&g, folder.c_str(), i ? 4 * i : -1, now);
        goodput_add(&g, GOODPUT_LOADING, 1.0);
        for (int step = 4 * i + 1; step <= 4 * i + 5; step++) {
            goodput_add(&g, GOODPUT_TRAINING, 1.5);
            goodput_tick(&g, step, now + 1.0 + 1.5 * (step - 4 * i));
        }
        if (i != 1) { goodput_end(&g, i ? GOODPUT_DONE : GOODPUT_SAVED, 4 * i + 5, now + 9.0); } else if (g.fd >= 0) { close(g.fd); }
        now += 20.0;
    }
    *last = g;
}

// A call of the system that fails, for once: nothing ends, this start's own figures are right, and what is in the file are whole lines.
static void test_faults_at_every_call(void) {
    std::string folder = scratch("faults");
    Goodput g;
    series(folder, &g);
    const std::string planned = "goodput 39.8% of 49s: training 20s, loading 3.0s, other 1.0s, lost steps 3.0s, between starts 23s (3 starts)";
    CHECK(text_of(&g) == planned, "%s", text_of(&g).c_str());
    int whole = 0, tried = 0;
    for (int code : {ENOSPC, EIO}) {
        for (long at = 0;; at++, tried++) {
            clear(folder);
            file_faults()->countdown = at;
            file_faults()->code = code;
            series(folder, &g);
            const bool reached = file_faults()->countdown < 0;
            file_faults()->countdown = -1;
            if (!reached) { break; }
            const std::string log = log_of(folder);
            CHECK(log == "(missing)" || log.size() % 128 == 0, "%ld: %zu bytes", at, log.size());
            CHECK(g.now.seconds[GOODPUT_TRAINING] == 7.5 && g.now.seconds[GOODPUT_LOADING] == 1.0 && g.now.seconds[GOODPUT_OTHER] == 0.5, "%ld: %s", at, text_of(&g).c_str());
            CHECK(g.starts <= 3 && all_of(&g) <= 49.0, "%ld: %s", at, text_of(&g).c_str());
            whole += text_of(&g) == planned;
            goodput_open(&g, folder.c_str(), 0, DAY + 100.0);
            CHECK(!g.note[0] && g.fd >= 0 && log_of(folder).size() == (g.starts + 1) * (size_t)128, "%ld: '%s'", at, g.note);
            close(g.fd);
        }
    }
    CHECK(tried > 40 && whole > 20, "%d of %d", whole, tried);
}

// kill -9 at every call: what is left is whole lines, and a resume counts on.
static void test_kills_at_every_write(void) {
    std::string folder = scratch("kills");
    Goodput g;
    int killed = 0;
    for (long at = 0;; at++) {
        clear(folder);
        fflush(stdout);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            file_faults()->countdown = at;
            file_faults()->code = -9;
            series(folder, &g);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        const std::string log = log_of(folder);
        const size_t lines = log == "(missing)" ? 0 : log.size() / 128;
        CHECK(log == "(missing)" || log.size() % 128 == 0, "%ld: %zu bytes", at, log.size());
        goodput_open(&g, folder.c_str(), 0, DAY + 100.0);
        CHECK(!g.note[0] && g.fd >= 0 && g.starts == (lines ? (int)lines : 1), "%ld: %d starts of %zu lines, '%s'", at, g.starts, lines, g.note);
        CHECK(g.lost == g.earlier[GOODPUT_TRAINING], "%ld: resumed from 0: lost %g of %g", at, g.lost, g.earlier[GOODPUT_TRAINING]);
        close(g.fd);
        if (WEXITSTATUS(status) == 0) { break; }
        killed++;
    }
    CHECK(killed > 20, "%d", killed);
}

// A real SIGKILL while lines are written as fast as it goes.
static void test_sigkill_leaves_whole_lines(void) {
    std::string folder = scratch("sigkill");
    for (int round = 0; round < 20; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            Goodput g;
            goodput_open(&g, folder.c_str(), round ? round : -1, DAY + 1000.0 * round);
            for (int i = 1;; i++) { goodput_add(&g, GOODPUT_TRAINING, 1.0); goodput_tick(&g, round + i, DAY + 1000.0 * round + i); }
        }
        usleep(2000 + 500 * round);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    Goodput g;
    goodput_open(&g, folder.c_str(), 0, DAY + 1e6);
    CHECK(!g.note[0] || strstr(g.note, "set back"), "%s", g.note);
    CHECK(g.starts >= 2 && g.starts <= 21 && log_of(folder).size() == (size_t)(g.starts + 1) * 128, "%d starts, %zu bytes", g.starts, log_of(folder).size());
    close(g.fd);
}

static void test_full_disk(void) {
    std::string folder = scratch("full");
    Goodput g;
    one_start(&g, folder, -1, DAY, 1.0, 3, 2.0, true, GOODPUT_RUNNING);
    struct rlimit limit = {300, RLIM_INFINITY};  // bytes a file: the next line does not fit
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "%s", strerror(errno));
    goodput_open(&g, folder.c_str(), 3, DAY + 20.0);
    CHECK(g.fd < 0 && strstr(g.note, "cannot write") && log_of(folder).size() == 256, "%s, %zu bytes", g.note, log_of(folder).size());
    CHECK(g.starts == 1 && all_of(&g) == 0.0, "%d starts", g.starts);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"goodput_one_start", test_one_start, QUICK},
        {"goodput_no_folder", test_no_folder, QUICK},
        {"goodput_durations", test_durations, QUICK},
        {"goodput_width", test_width, QUICK},
        {"goodput_killed_and_resumed", test_killed_and_resumed, QUICK},
        {"goodput_nothing_found_loses_all", test_nothing_found_loses_all, QUICK},
        {"goodput_series_match_oracle", test_series_match_oracle, QUICK},
        {"goodput_clock_set_back", test_clock_set_back, QUICK},
        {"goodput_damaged_files", test_damaged_files, QUICK},
        {"goodput_not_a_file", test_not_a_file, QUICK},
        {"goodput_faults_at_every_call", test_faults_at_every_call, QUICK},
        {"goodput_kills_at_every_write", test_kills_at_every_write, QUICK},
        {"goodput_sigkill_leaves_whole_lines", test_sigkill_leaves_whole_lines, QUICK},
        {"goodput_full_disk", test_full_disk, QUICK},
    };
    return TEST_MAIN(tests);
}
