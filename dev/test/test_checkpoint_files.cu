/* test_checkpoint_files.cu - the folder of checkpoints and main.log: names, finding, keeping, crashes at any system call
 *
 * A checkpoint here is a real model file (llm.c's v5, 2 layers of 4 channels) and real state files (state_sets.h), so that what the trainer would load is
 * loaded. What is in the files: test_state_set.cu.  */
#define GPT_FAULTS
#include <sys/mman.h>
#include <atomic>

#include "dev/test/state_sets.h"
#include "llmc/logger.h"

// ---------------------------------------------------------------------------- helpers

static std::string scratch(const char* name) {
    static std::string folder;
    if (folder.empty()) {
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm/test_checkpoint.XXXXXX" : "/tmp/test_checkpoint.XXXXXX";  // memory: thousands of fsyncs
        CHECK(mkdtemp(&folder[0]), "%s", strerror(errno));
        static pid_t owner = getpid();
        atexit([] { std::string command = "rm -rf " + folder; if (getpid() == owner && system(command.c_str()) != 0) { perror("rm"); } });
    }
    std::string path = folder + "/" + name;
    mkdir(path.c_str(), 0700);
    return path;
}
// Names in a folder, sorted, blanks between.
static std::string names(const std::string& folder) {
    std::vector<std::string> all;
    std::string joined;
    DIR* dir = opendir(folder.c_str());
    while (struct dirent* e = readdir(dir)) { if (e->d_name[0] != '.') { all.push_back(e->d_name); } }
    closedir(dir);
    std::sort(all.begin(), all.end());
    for (auto& n : all) { joined += (joined.empty() ? "" : " ") + n; }
    return joined;
}
static void clear(const std::string& folder) {  // no shell: it is called a thousand times
    DIR* dir = opendir(folder.c_str());
    while (struct dirent* e = readdir(dir)) { unlink((folder + "/" + e->d_name).c_str()); }
    closedir(dir);
}

static void must_write(const std::string& folder, int step, int num_ranks) { set_must_write(set_case(folder, step, num_ranks)); }
// Loads all of it, as a resuming run of 2 ranks does; every value must say the step.
static void must_load(const std::string& folder, int step, int num_ranks) {
    SetCase c = set_case(folder, step, num_ranks);
    FileError error;
    OK(set_read_all(&c, 2, &error));
}
static int latest(const std::string& folder, std::string* skipped = NULL) {
    CheckpointFound found;
    FileError error;
    OK(checkpoint_find_latest(folder.c_str(), count_gpt2, &found, &error));
    if (skipped) { *skipped = found.skipped; }
    if (found.step >= 0) { must_load(folder, found.step, found.num_ranks); }
    return found.step;
}
static std::string prune(const std::string& folder, int step, int keep, int major, const std::vector<int>& damaged = {}) {
    std::vector<int> deleted;
    FileError error;
    std::string text;
    OK(checkpoint_prune(folder.c_str(), step, keep, major, damaged, &deleted, &error));
    for (int s : deleted) { text += (text.empty() ? "" : " ") + std::to_string(s); }
    return text;
}

// ---------------------------------------------------------------------------- names and finding

static void test_checkpoint_names_are_llmc(void) {
    std::string folder = scratch("names");
    must_write(folder, 20, 2);
    CHECK(names(folder) == "DONE_00000020 model_00000020.bin state_00000020_00000.bin state_00000020_00001.bin", "%s", names(folder).c_str());
    CHECK(test_read_file(folder + "/DONE_00000020").empty(), "DONE is empty");
    const struct { const char* name; CheckpointKind kind; int step, rank; } cases[] = {
        {"model_00000020.bin", CHECKPOINT_MODEL, 20, 0}, {"state_00000020_00007.bin", CHECKPOINT_STATE, 20, 7}, {"DONE_00000020", CHECKPOINT_DONE, 20, 0},
        {"DONE_123456789", CHECKPOINT_DONE, 123456789, 0}, {"DONE_2147483647", CHECKPOINT_DONE, INT32_MAX, 0},
            {"DONE_2147483648", CHECKPOINT_NONE, 0, 0}, {"DONE_99999999999999999999", CHECKPOINT_NONE, 0, 0},
        {"DONE_0000002", CHECKPOINT_NONE, 0, 0}, {"DONE_00000020x", CHECKPOINT_NONE, 0, 0}, {"DONE_-0000020", CHECKPOINT_NONE, 0, 0},
            {"DONE_", CHECKPOINT_NONE, 0, 0}, {"xDONE_00000020", CHECKPOINT_NONE, 0, 0},
        {"model_00000020.bin.bak", CHECKPOINT_NONE, 0, 0}, {"model_00000020", CHECKPOINT_NONE, 0, 0}, {"state_00000020.bin", CHECKPOINT_NONE, 0, 0},
            {"state_00000020_0000.bin", CHECKPOINT_NONE, 0, 0},
        {"main.log", CHECKPOINT_NONE, 0, 0}, {"model_00000020.bin.tmp", CHECKPOINT_TEMPORARY, 0, 0},
            {"state_00000020_00001.bin.tmp", CHECKPOINT_TEMPORARY, 0, 0}, {"DONE_00000020.tmp", CHECKPOINT_TEMPORARY, 0, 0},
        {"main.log.tmp", CHECKPOINT_TEMPORARY, 0, 0}, {"writable.123.tmp", CHECKPOINT_TEMPORARY, 0, 0}, {"notes.tmp", CHECKPOINT_NONE, 0, 0}};
    for (auto& c : cases) {
        int step = 0, rank = 0;
        CheckpointKind kind = checkpoint_parse_name(c.name, &step, &rank);
        CHECK(kind == c.kind && step == c.step && rank == c.rank, "%s: kind %d, step %d, rank %d", c.name, kind, step, rank);
    }
}

static void test_find_latest_takes_the_highest_good_one(void) {
    std::string folder = scratch("find"), skipped;
    FileError error;
    CheckpointFound found;
    OK(checkpoint_find_latest((folder + "/missing").c_str(), count_gpt2, &found, &error));
    CHECK(found.step == -1 && found.skipped.empty(), "a folder that does not exist");
    CHECK(latest(folder) == -1, "empty");
    for (int step : {100, 90, 1000, 20}) { must_write(folder, step, 2); }
    test_write_file(folder + "/DONE_2000000", "");  // seven digits: not ours
    CHECK(latest(folder, &skipped) == 1000 && skipped.empty(), "%s", skipped.c_str());

    const std::string model = folder + "/model_00001000.bin", state0 = folder + "/state_00001000_00000.bin", state1 = folder + "/state_00001000_00001.bin";
    const struct { std::string path; int keep_bytes; const char* says; } damages[] = {
        {model, -1, "no model file"}, {model, 10, "not even its header"}, {model, 1030, "too few"}, {state0, -1, "no state file of rank 0"},
            {state1, -1, "no state file of rank 1"},
        {state0, 0, "less than 4 bytes"}, {state1, 200, "it was cut"}};
    for (auto& d : damages) {
        must_write(folder, 1000, 2);
        if (d.keep_bytes < 0) { unlink(d.path.c_str()); } else { CHECK(truncate(d.path.c_str(), d.keep_bytes) == 0, "truncate"); }
        CHECK(latest(folder, &skipped) == 100, "%s: the one before must be found", d.says);
        HAS(skipped.c_str(), "checkpoint of step 1000 is not usable");
        HAS(skipped.c_str(), d.says);
    }
    must_write(folder, 1000, 2);
    test_write_file(state1, test_read_file(folder + "/state_00000100_00001.bin"));  // a state of another step under this name
    CHECK(latest(folder, &skipped) == 100, "foreign state");
    HAS(skipped.c_str(), "was written by rank 1 at step 100");
    for (int step : {20, 90, 100}) { unlink((folder + "/DONE_00000" + (step < 100 ? "0" : "") + std::to_string(step)).c_str()); }
    CHECK(latest(folder, &skipped) == -1, "no good one left, and no DONE but that of 1000");
    unlink((folder + "/DONE_00001000").c_str());
    CHECK(latest(folder, &skipped) == -1 && skipped.empty(), "files without DONE are not even mentioned");
}

// A folder that llm.c wrote: its states are good checkpoints here (whether they can be loaded is the trainer's to say).
static void test_find_latest_accepts_states_of_llmc(void) {
    std::string folder = scratch("llmc");
    must_write(folder, 10, 1);
    for (int rank = 0; rank < 2; rank++) {
        std::string state(2000, '\0');
        int32_t head[4] = {20240527, 1, 2, rank};
        memcpy(&state[0], head, sizeof(head));
        char path[FILE_PATH_MAX];
        checkpoint_state_path(path, folder.c_str(), 30, rank);
        test_write_file(path, state);
    }
    test_write_file(folder + "/model_00000030.bin", test_read_file(folder + "/model_00000010.bin"));
    test_write_file(folder + "/DONE_00000030", "");
    CheckpointFound found;
    FileError error;
    OK(checkpoint_find_latest(folder.c_str(), count_gpt2, &found, &error));
    CHECK(found.step == 30 && found.num_ranks == 2, "step %d, %d ranks: %s", found.step, found.num_ranks, found.skipped.c_str());
    unlink((folder + "/state_00000030_00001.bin").c_str());
    CHECK(latest(folder) == 10, "rank 1 is missing");
}

// ---------------------------------------------------------------------------- writing and keeping

// Damage that only reading finds: resume takes the one before, whose every byte is good.
static void test_find_before_passes_over_what_verify_refuses(void) {
    std::string folder = scratch("verify");
    FileError error;
    CheckpointFound found;
    for (int step : {10, 20, 30, INT32_MAX}) { must_write(folder, step, 3); }
    for (const char* path : {"/state_00000030_00002.bin", "/model_00000020.bin"}) {
        std::string bytes = test_read_file(folder + path);
        bytes[strstr(path, "state") ? 700 : 1100] ^= 1;  // a moment, a weight
        test_write_file(folder + path, bytes);
    }
    int64_t before = INT32_MAX;
    std::string why;
    for (;; before = found.step) {
        OK(checkpoint_find_before(folder.c_str(), before, count_gpt2, &found, &error));
        CHECK(found.step >= 0 && found.step < before && found.num_ranks == 3 && found.skipped.empty(), "step %d: %s", found.step, found.skipped.c_str());
        bool good = true;
        for (int part = 0; part < 2; part++) { good = checkpoint_verify(folder.c_str(), found.step, part, 2, &error) && good; if (!good) { why += error.message; } }
        if (good) { break; }
    }
    CHECK(found.step == 10, "step %d", found.step);
    HAS(why.c_str(), "state_00000030_00002.bin': elements ");
    HAS(why.c_str(), "model_00000020.bin': elements ");
    CHECK(latest(folder) == INT32_MAX, "the highest step there can be");
    OK(checkpoint_find_before(folder.c_str(), 10, count_gpt2, &found, &error));
    CHECK(found.step == -1, "there is none before");
}

// DONE promises that the files are there: it is not written for a rank that reported success but whose file went elsewhere.
static void test_done_is_refused_if_a_file_is_missing(void) {
    std::string folder = scratch("promise");
    FileError error;
    must_write(folder, 10, 3);
    for (const char* name : {"/state_00000010_00002.bin", "/model_00000010.bin", "/state_00000010_00000.bin"}) {
        const std::string content = test_read_file(folder + name);
        unlink((folder + "/DONE_00000010").c_str());
        unlink((folder + name).c_str());
        CHECK(!checkpoint_done(folder.c_str(), 10, &error) && names(folder).find("DONE") == std::string::npos, "%s", name);
        HAS(error.message, (folder + name).c_str());
        test_write_file(folder + name, content);
    }
    OK(checkpoint_done(folder.c_str(), 10, &error));
}

static void test_rewriting_a_step_takes_its_done_away_first(void) {
    std::string folder = scratch("rewrite");
    FileError error;
    must_write(folder, 10, 1);
    must_write(folder, 20, 1);
    OK(checkpoint_begin(folder.c_str(), 20, &error));
    CHECK(names(folder).find("DONE_00000020") == std::string::npos, "%s", names(folder).c_str());
    CHECK(latest(folder) == 10, "while 20 is written again, 10 counts");
    must_write(folder, 20, 4);
    must_write(folder, 20, 1);  // by fewer ranks
    CHECK(names(folder) == "DONE_00000010 DONE_00000020 model_00000010.bin model_00000020.bin state_00000010_00000.bin state_00000020_00000.bin", "%s",
          names(folder).c_str());
    CHECK(latest(folder) == 20, "20");
}

static void test_delete_removes_all_files_of_the_step(void) {
    std::string folder = scratch("delete");
    FileError error;
    std::vector<CheckpointEntry> list;
    must_write(folder, 10, 1);
    must_write(folder, 20, 3);
    test_write_file(folder + "/notes_00000020.txt", "mine");
    OK(checkpoint_list(folder.c_str(), &list, &error));
    CHECK(list.size() == 2 && list[0].step == 20 && list[0].state_ranks.size() == 3, "list");
    OK(checkpoint_delete(folder.c_str(), list[0], &error));
    CHECK(names(folder) == "DONE_00000010 model_00000010.bin notes_00000020.txt state_00000010_00000.bin", "%s", names(folder).c_str());
}

static void test_prune_keeps_the_newest_and_the_majors(void) {
    std::string folder = scratch("prune"), removed;
    const struct { int keep, major; std::vector<int> steps; const char* removed; const char* left; } cases[] = {
        {0, 0, {10, 20, 30, 40}, "", "10 20 30 40"},                // 0 keeps all
        {1, 0, {10, 20, 30, 40}, "10 20 30", "40"},
        {2, 0, {10, 20, 30, 40}, "10 20", "30 40"},
        {9, 0, {10, 20, 30, 40}, "", "10 20 30 40"},
        {2, 20, {10, 20, 30, 40, 50}, "10 30", "20 40 50"},         // 20 and 40 are majors
        {1, 10, {10, 20, 30}, "", "10 20 30"},                      // all are
        {2, 0, {10, 20, 30, 33}, "10 20", "30 33"},                 // a last step that is no multiple: llm.c leaves one too many
        {1, 0, {0, 10}, "0", "10"},
        {1, 1000, {10, 1000, 1010}, "10", "1000 1010"}};
    for (auto& c : cases) {
        clear(folder);
        removed = "";
        for (int step : c.steps) {
            must_write(folder, step, 2);
            std::string now = prune(folder, step, c.keep, c.major);
            removed += (removed.empty() || now.empty() ? "" : " ") + now;
        }
        CHECK(removed == c.removed, "keep %d major %d removed '%s', should be '%s'", c.keep, c.major, removed.c_str(), c.removed);
        std::vector<CheckpointEntry> list;
        FileError error;
        std::string left;
        OK(checkpoint_list(folder.c_str(), &list, &error));
        for (size_t i = list.size(); i-- > 0;) {
            left += (left.empty() ? "" : " ") + std::to_string(list[i].step); CHECK(list[i].done && list[i].model && list[i].state_ranks.size() == 2,
                    "half a checkpoint");
        }
        CHECK(left == c.left, "keep %d major %d left '%s', should be '%s'", c.keep, c.major, left.c_str(), c.left);
    }
}

static void test_prune_never_lets_a_broken_one_push_a_good_one_out(void) {
    std::string folder = scratch("prune2");
    for (int step : {10, 20, 30}) { must_write(folder, step, 1); }
    unlink((folder + "/model_00000030.bin").c_str());       // 30 is broken
    CHECK(prune(folder, 30, 1, 0) == "10", "20 is the newest good one and stays");
    CHECK(latest(folder) == 20, "20");
    must_write(folder, 40, 1);
    CHECK(prune(folder, 40, 1, 0) == "30 20", "now both may go");
    CHECK(latest(folder) == 40, "40");
    must_write(folder, 50, 1);
    must_write(folder, 60, 1);  // 50 looks whole, but was found damaged when it was read
    CHECK(prune(folder, 60, 2, 0, {50}) == "", "40 is the second good one");
    must_write(folder, 70, 1);
    CHECK(prune(folder, 70, 2, 0, {50}) == "50 40", "60 and 70 are good");
}

static void test_prune_leaves_other_runs_and_strangers_alone(void) {
    std::string folder = scratch("prune3");
    for (int step : {1000, 10, 20}) { must_write(folder, step, 1); }     // 1000: an earlier, longer run in the same folder
    test_write_file(folder + "/model_00000005.bin", "someone's model");       // without DONE and state: not ours to remove
    must_write(folder, 8, 1);
    unlink((folder + "/DONE_00000008").c_str());                         // an interrupted removal
    CHECK(prune(folder, 20, 1, 0) == "10 8", "removed");
    CHECK(names(folder) == "DONE_00000020 DONE_00001000 model_00000005.bin model_00000020.bin model_00001000.bin "
          "state_00000020_00000.bin state_00001000_00000.bin", "%s", names(folder).c_str());
}

static void test_clean_removes_temporaries_only(void) {
    std::string folder = scratch("clean");
    FileError error;
    int removed = 0;
    must_write(folder, 10, 1);
    for (const char* name : {"model_00000020.bin.tmp", "state_00000020_00003.bin.tmp", "DONE_00000020.tmp", "main.log.tmp", "writable.77.tmp",
                             "mine.tmp", "main.log"}) {
        test_write_file(folder + "/" + name, "x");
    }
    OK(checkpoint_clean(folder.c_str(), &removed, &error));
    CHECK(removed == 5, "%d removed", removed);
    CHECK(names(folder) == "DONE_00000010 main.log mine.tmp model_00000010.bin state_00000010_00000.bin", "%s", names(folder).c_str());
    OK(checkpoint_clean((folder + "/missing").c_str(), &removed, &error));
}

// Step 10 is there, of 2 ranks. Step 20 is written by 3, and 10 pruned. The process dies at the n-th system call, or the call fails: for every n the folder resumes from 10
// or from 20, with all values right; the rerun then succeeds and leaves nothing behind.
typedef struct { std::string folder; int n, code; } CrashCase;
static int crash_run(const CrashCase* c) {
    FileError error;
    std::vector<int> deleted;
    SetCase set = set_case(c->folder, 20, 3);
    set.sharing = SET_SHARES;
    file_faults()->countdown = c->n;
    file_faults()->code = c->code;
    bool ok = set_write(&set, &error) && checkpoint_prune(c->folder.c_str(), 20, 1, 0, {}, &deleted, &error);
    bool done = file_faults()->countdown >= 0;
    file_faults()->countdown = -1;
    return ok ? (done ? 0 : 3) : 4;  // 3: succeeded although a call failed (prune may overlook a file it cannot open; that loses nothing)
}
static void crash_child(void* arg) { _exit(crash_run((CrashCase*)arg)); }
static const char* ONLY_10 = "DONE_00000010 model_00000010.bin state_00000010_00000.bin state_00000010_00001.bin";
static void crash_everywhere(int code, bool rewrite) {
    CrashCase c = {scratch("crash"), 0, code};
    for (int exit_code = -1; exit_code != 0; c.n++) {
        std::string output;
        FileError error;
        int removed, ranks;
        clear(c.folder);
        must_write(c.folder, 10, 2);
        if (rewrite) { must_write(c.folder, 20, 5); }
        exit_code = code < 0 ? test_child(crash_child, &c, &output) : crash_run(&c);
        CHECK(exit_code == 0 || exit_code == 3 || exit_code == (code < 0 ? 9 : 4), "call %d: exit %d: %s", c.n, exit_code, output.c_str());
        std::vector<CheckpointEntry> list;
        OK(checkpoint_list(c.folder.c_str(), &list, &error));
        for (auto& e : list) {  // I1, at every moment
            if (!e.done) { continue; }
            OK(checkpoint_check(c.folder.c_str(), e, count_gpt2, &ranks, &error));
            OK(checkpoint_verify(c.folder.c_str(), e.step, 0, 1, &error));
        }
        int found = latest(c.folder);
        CHECK(found == 10 || found == 20, "call %d: found %d", c.n, found);
        if (exit_code == 4) {  // nothing is left of what failed, unless it was the removing
            const std::string after = names(c.folder);
            CHECK(after.find(".tmp") == std::string::npos && (found == 20 || after == ONLY_10), "call %d: %s", c.n, after.c_str());
        }
        OK(checkpoint_clean(c.folder.c_str(), &removed, &error));
        CrashCase again = {c.folder, 1 << 30, EIO};
        CHECK(crash_run(&again) == 0, "the rerun after call %d", c.n);
        CHECK(names(c.folder) == "DONE_00000020 model_00000020.bin state_00000020_00000.bin state_00000020_00001.bin state_00000020_00002.bin",
              "after call %d: %s", c.n, names(c.folder).c_str());
        CHECK(latest(c.folder) == 20, "20");
    }
    CHECK(c.n > 150, "only %d system calls were tried", c.n);
}
static void test_crash_at_any_system_call_leaves_a_good_checkpoint(void) { crash_everywhere(-9, false); }
static void test_crash_while_a_step_is_written_again(void) { crash_everywhere(-9, true); }  // over that of 5 ranks, whose states must go
static void test_failure_of_any_system_call_leaves_no_trace(void) { crash_everywhere(ENOSPC, false); crash_everywhere(EIO, false); }

// Real processes that write at once, step after step, and are all killed at a random moment; every second time one is killed first and the others see it.
typedef struct { std::atomic<int> arrived, failures; } Meeting;
static bool meet(Meeting* m, int* meetings, int ranks, bool ok) {  // true once all came and nobody failed
    m->failures += !ok;
    m->arrived++;
    for (++*meetings; m->arrived < *meetings * ranks;) { usleep(50); }
    return m->failures == 0;
}
static void rank_process(const std::string& folder, int rank, int ranks, Meeting* m) {
    int meetings = 0;
    for (int step = 20;; step += 10) {
        FileError error;
        StateSetWriter w;
        std::vector<int> deleted;
        SetCase c = set_case(folder, step, ranks);
        bool ok = rank > 0 || (checkpoint_begin(folder.c_str(), step, &error) && set_begin_rank(&w, &c, 0, &error));
        ok = meet(m, &meetings, ranks, ok) && (rank == 0 || set_begin_rank(&w, &c, rank, &error));
        for (int a = 0; ok && a < 4; a++) { ok = set_write_array(&w, &c, rank, a, &error); }
        uint64_t place = (uint64_t)step * 10;
        ok = ok && (rank > 0 || state_write_section(&w.state, "run", FILE_U64, 1, &place, &error)) && state_set_write_end(&w, &error);
        ok = meet(m, &meetings, ranks, ok) && (rank > 0 || (state_set_write_commit(&w, &error) && checkpoint_done(folder.c_str(), step, &error)));
        if (!meet(m, &meetings, ranks, ok)) { _exit(1); }
        if (rank == 0 && !checkpoint_prune(folder.c_str(), step, 1, 0, {}, &deleted, &error)) { _exit(2); }
    }
}
static void test_processes_that_write_at_once_die_at_any_moment(void) {
    TestRng rng = {test_seed()};
    std::string folder = scratch("kill");
    int last = 0;
    for (int trial = 0; trial < 40; trial++) {
        const int ranks = 1 + trial % 4;
        Meeting* m = (Meeting*)mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(m != MAP_FAILED, "mmap");
        clear(folder);
        must_write(folder, 10, 2);
        std::vector<pid_t> pids;
        for (int r = 0; r < ranks; r++) {
            pid_t pid = fork();
            CHECK(pid >= 0, "fork");
            if (pid == 0) { rank_process(folder, r, ranks, m); }
            pids.push_back(pid);
        }
        usleep((useconds_t)(test_rng_u64(&rng) % 40000));
        if (trial % 2) { std::rotate(pids.begin(), pids.begin() + 1, pids.end()); }
        kill(pids[0], SIGKILL);
        if (trial % 2) { usleep(2000); }
        for (pid_t pid : pids) {
            int status;
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            CHECK(WIFSIGNALED(status), "a rank ended by itself: %d", WEXITSTATUS(status));
        }
        munmap(m, sizeof(Meeting));
        FileError error;
        CheckpointFound found;
        OK(checkpoint_find_latest(folder.c_str(), count_gpt2, &found, &error));
        CHECK(found.step >= 10 && found.skipped.empty(), "trial %d: step %d, %s", trial, found.step, found.skipped.c_str());
        OK(checkpoint_verify(folder.c_str(), found.step, 0, 1, &error));
        must_load(folder, found.step, found.step == 10 ? 2 : ranks);
        last = std::max(last, found.step);
    }
    printf("    note: up to step %d was reached\n", last);
    CHECK(last >= 20, "no rank ever finished a checkpoint");
}

// Any sequence of writing, damage and pruning: no fewer than min(keep, good before) good ones stay, no major goes, the newest good one stays.
static void test_prune_keeps_its_promises_on_random_folders(void) {
    TestRng rng = {test_seed()};
    std::string folder = scratch("random");
    for (int trial = 0; trial < 60; trial++) {
        clear(folder);
        int keep = 1 + (int)(test_rng_u64(&rng) % 3), major = (int)(test_rng_u64(&rng) % 3) * 20;
        for (int step = 10; step <= 60; step += 10) {
            uint64_t dice = test_rng_u64(&rng);
            if (dice % 4 == 0) { continue; }
            must_write(folder, step, 1);
            char path[FILE_PATH_MAX];
            if (dice % 4 == 1) {
                dice % 8 < 4 ? checkpoint_model_path(path, folder.c_str(), step) : checkpoint_state_path(path, folder.c_str(), step, 0); unlink(path);
            }
        }
        auto good = [&] {
            std::vector<CheckpointEntry> list;
            std::vector<int> steps;
            FileError error;
            int ranks;
            OK(checkpoint_list(folder.c_str(), &list, &error));
            for (auto& e : list) { if (checkpoint_check(folder.c_str(), e, count_gpt2, &ranks, &error)) { steps.push_back(e.step); } }
            return steps;
        };
        std::vector<int> before = good(), expected;
        for (size_t i = 0; i < before.size(); i++) { if ((int)i < keep || (major && before[i] % major == 0)) { expected.push_back(before[i]); } }
        prune(folder, 60, keep, major);
        CHECK(good() == expected, "trial %d: keep %d, major %d: %zu good before, %zu after, should be %zu", trial, keep, major, before.size(),
              good().size(), expected.size());
    }
}

// ---------------------------------------------------------------------------- main.log

static const char* FULL_LOG =
    "s:0 tel:11.0000\n" "s:0 trl:10.9000 lr:0.000100 norm:15.25\n" "s:1 trl:10.8000 lr:0.000200 norm:14.00\n"
    "s:2 tel:10.7000\n" "s:2 eval:0.2500\n" "s:2 trl:10.6000 lr:0.000300 norm:13.00\n"
    "s:3 trl:10.5000 lr:0.000300 norm:12.00\n" "s:4 tel:10.4000\n";

static void log_from(Logger* log, int step) {
    if (step == 0) { logger_log_val(log, 0, 11.0f); logger_log_train(log, 0, 10.9f, 1e-4f, 15.25f); logger_log_train(log, 1, 10.8f, 2e-4f, 14.0f); }
    logger_log_val(log, 2, 10.7f);
    logger_log_eval(log, 2, 0.25f);
    logger_log_train(log, 2, 10.6f, 3e-4f, 13.0f);
    logger_log_train(log, 3, 10.5f, 3e-4f, 12.0f);
    logger_log_val(log, 4, 10.4f);
}
static void test_logger_writes_llmc_lines(void) {
    std::string folder = scratch("log"), path = folder + "/main.log";
    Logger log;
    FileError error;
    test_write_file(path, "old\n");
    OK(logger_init(&log, folder.c_str(), -1, &error));
    CHECK(test_read_file(path).empty(), "a fresh start empties it");
    log_from(&log, 0);
    CHECK(test_read_file(path) == FULL_LOG, "%s", test_read_file(path).c_str());
    Logger off;
    OK(logger_init(&off, NULL, -1, &error));
    log_from(&off, 0);
    CHECK(test_read_file(path) == FULL_LOG && names(folder) == "main.log", "an inactive logger wrote");
}

static void test_logger_resume_gives_the_log_of_an_uninterrupted_run(void) {
    std::string folder = scratch("log"), path = folder + "/main.log", full = FULL_LOG;
    Logger log;
    FileError error;
    for (size_t n = 0; n <= full.size(); n++) {  // the run died anywhere, in the middle of a line too
        for (int step : {0, 2}) {
            size_t past = step == 0 ? 0 : full.find("s:2 trl");
            if (n < past) { continue; }  // a checkpoint of step 2 implies that its past was logged
            test_write_file(path, full.substr(0, n));
            OK(logger_init(&log, folder.c_str(), step, &error));
            log_from(&log, step);
            CHECK(test_read_file(path) == full, "cut at %zu, resumed at %d: %s", n, step, test_read_file(path).c_str());
        }
    }
    CHECK(names(folder) == "main.log", "%s", names(folder).c_str());
}

static void test_logger_resume_keeps_strangers_and_differences(void) {
    std::string folder = scratch("log"), path = folder + "/main.log";
    Logger log;
    FileError error;
    test_write_file(path, "# my note\ns:2 tel:1.0000\ns:2 trl:1.0000 lr:0.000100 norm:1.00\ns:10 tel:2.0000\ns:2 strange\n");
    OK(logger_init(&log, folder.c_str(), 2, &error));
    logger_log_val(&log, 2, 1.5f);  // evaluated with other settings: both values are true
    CHECK(test_read_file(path) == "# my note\ns:2 tel:1.0000\ns:2 strange\ns:2 tel:1.5000\n", "%s", test_read_file(path).c_str());
    unlink(path.c_str());
    OK(logger_init(&log, folder.c_str(), 2, &error));  // nothing to cut
    logger_log_val(&log, 2, 1.5f);
    CHECK(test_read_file(path) == "s:2 tel:1.5000\n", "%s", test_read_file(path).c_str());
    FileError full;
    test_write_file(path, "s:2 tel:1.0000\ns:5 tel:1.0000\n");
    for (int n = 0;; n++) {  // cutting is atomic
        file_faults()->countdown = n;
        file_faults()->code = ENOSPC;
        bool ok = logger_init(&log, folder.c_str(), 2, &full), done = file_faults()->countdown >= 0;
        file_faults()->countdown = -1;
        std::string now = test_read_file(path);
        CHECK(now == "s:2 tel:1.0000\ns:5 tel:1.0000\n" || now == "s:2 tel:1.0000\n", "fault %d: %s", n, now.c_str());
        if (ok) { CHECK(done, "fault %d was overlooked", n); break; }
        HAS(full.message, folder.c_str());
        test_write_file(path, "s:2 tel:1.0000\ns:5 tel:1.0000\n");
    }
}

static void failing_log_child(void* arg) {
    Logger log;
    FileError error;
    if (!logger_init(&log, (const char*)arg, -1, &error)) { exit(1); }
    file_faults()->code = ENOSPC;
    for (int i = 0; i < 3; i++) { file_faults()->countdown = 1; logger_log_val(&log, i, 1.0f); }
    file_faults()->countdown = -1;
    logger_log_val(&log, 3, 1.0f);
}
static void test_logger_that_cannot_write_warns_once(void) {
    std::string folder = scratch("log"), output;
    int code = test_child(failing_log_child, (void*)folder.c_str(), &output);
    size_t first = output.find("WARNING: cannot write to");
    CHECK(code == 0 && first != std::string::npos && output.find("WARNING", first + 1) == std::string::npos, "exit %d: %s", code, output.c_str());
    HAS(output.c_str(), "No space left on device");
    CHECK(test_read_file(folder + "/main.log") == "s:3 tel:1.0000\n", "later lines are written again");
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"checkpoint_names_are_llmc", test_checkpoint_names_are_llmc, QUICK},
        {"find_latest_takes_the_highest_good_one", test_find_latest_takes_the_highest_good_one, QUICK},
        {"find_latest_accepts_states_of_llmc", test_find_latest_accepts_states_of_llmc, QUICK},
        {"find_before_passes_over_what_verify_refuses", test_find_before_passes_over_what_verify_refuses, QUICK},
        {"done_is_refused_if_a_file_is_missing", test_done_is_refused_if_a_file_is_missing, QUICK},
        {"rewriting_a_step_takes_its_done_away_first", test_rewriting_a_step_takes_its_done_away_first, QUICK},
        {"delete_removes_all_files_of_the_step", test_delete_removes_all_files_of_the_step, QUICK},
        {"prune_keeps_the_newest_and_the_majors", test_prune_keeps_the_newest_and_the_majors, QUICK},
        {"prune_never_lets_a_broken_one_push_a_good_one_out", test_prune_never_lets_a_broken_one_push_a_good_one_out, QUICK},
        {"prune_leaves_other_runs_and_strangers_alone", test_prune_leaves_other_runs_and_strangers_alone, QUICK},
        {"prune_keeps_its_promises_on_random_folders", test_prune_keeps_its_promises_on_random_folders, QUICK},
        {"clean_removes_temporaries_only", test_clean_removes_temporaries_only, QUICK},
        {"crash_at_any_system_call_leaves_a_good_checkpoint", test_crash_at_any_system_call_leaves_a_good_checkpoint, QUICK},
        {"crash_while_a_step_is_written_again", test_crash_while_a_step_is_written_again, SLOW},
        {"failure_of_any_system_call_leaves_no_trace", test_failure_of_any_system_call_leaves_no_trace, QUICK},
        {"processes_that_write_at_once_die_at_any_moment", test_processes_that_write_at_once_die_at_any_moment, QUICK},
        {"logger_writes_llmc_lines", test_logger_writes_llmc_lines, QUICK},
        {"logger_resume_gives_the_log_of_an_uninterrupted_run", test_logger_resume_gives_the_log_of_an_uninterrupted_run, QUICK},
        {"logger_resume_keeps_strangers_and_differences", test_logger_resume_keeps_strangers_and_differences, QUICK},
        {"logger_that_cannot_write_warns_once", test_logger_that_cannot_write_warns_once, QUICK},
    };
    return TEST_MAIN(tests);
}
