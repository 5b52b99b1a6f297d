/* test_control.cu - the control plane with forked ranks on this host: joining, strangers, operations, deaths, hangs, clean and unclean ends; host only
 *
 * A job is 1 to 4 forked ranks with host names "h0", "h1" ...; many jobs run side by side, since most of their time is waiting for a bound of 2 s. Of each
 * rank the exit code, the time of its end and all it printed are kept; every failing job must have printed exactly one "ERROR:". */
#include "llmc/control.h"

#include <sys/mman.h>
#include <initializer_list>
#include <vector>

#include "dev/test/test.h"

#define MAX_RANKS 4
#define BOUND 2.0          // watchdog, s
#ifdef __SANITIZE_THREAD__
#define SLACK 6.0          // this sanitizer is slow
#else
#define SLACK 2.5          // beyond the bound until all must have ended: 2 s by contract, 0.5 s for a loaded machine
#endif

// ----------------------------------------------------------------------------
// jobs

// What a job's processes share: the MPI broadcast of these tests, flags.
typedef struct { int posted; unsigned char data[256]; int flag[MAX_RANKS + 1]; } Shared;
static Shared* shared_now;      // of the job whose process this is

typedef struct Job Job;
struct Job {
    int size;
    RanksContact contact;
    int port;
    char fs_path[256];
    const char* address;
    bool spread;                    // as if each rank were on a host of its own
    const char* name;               // the launcher's name of the job
    const char* secret[MAX_RANKS];  // of each rank
    const char* identity[MAX_RANKS];
    double join_seconds, bound;
    double delay[MAX_RANKS];        // s before the rank starts
    bool absent[MAX_RANKS];
    void (*body)(Job* job, Control* c, int rank);
    // for the bodies
    int kind, victim, signal;
    bool inside;
    // results
    Shared* shared;
    pid_t pid[MAX_RANKS + 2];       // more than the ranks: doubles
    int count, code[MAX_RANKS + 2];
    double began, ended[MAX_RANKS + 2];
    FILE* out[MAX_RANKS + 2];
    std::string text[MAX_RANKS + 2];
};

static bool broadcast_by_memory(void* data, int bytes) {  // rank 0 posts; the flag of MAX_RANKS says whether this process is rank 0
    Shared* s = shared_now;
    if (getenv("TEST_RANK")[0] == '0') {
        memcpy(s->data, data, (size_t)bytes);
        __atomic_store_n(&s->posted, 1, __ATOMIC_RELEASE);
    } else {
        while (!__atomic_load_n(&s->posted, __ATOMIC_ACQUIRE)) { usleep(1000); }
        memcpy(data, s->data, (size_t)bytes);
    }
    return true;
}

static int free_port(void) {
    struct sockaddr_in a;
    socklen_t length = sizeof(a);
    memset(&a, 0, sizeof(a));
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = control_listen((struct sockaddr*)(void*)&a, sizeof(a));
    CHECK(fd >= 0, "listen: %s", strerror(errno));
    getsockname(fd, (struct sockaddr*)(void*)&a, &length);
    close(fd);
    return ntohs(a.sin_port);
}

static Job* job_new(int size, RanksContact contact, void (*body)(Job*, Control*, int)) {
    Job* job = new Job();
    job->size = size;
    job->contact = size == 1 ? RANKS_NO_CONTACT : contact;
    job->port = contact == RANKS_TCP ? free_port() : 0;
    job->address = "127.0.0.1";
    job->name = "";
    job->join_seconds = 10;
    job->bound = BOUND;
    job->body = body;
    for (int r = 0; r < MAX_RANKS; r++) { job->identity[r] = "test 1"; }
    job->shared = (Shared*)mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(job->shared != MAP_FAILED, "mmap");
    if (contact == RANKS_FILE) {
        snprintf(job->fs_path, sizeof(job->fs_path), "/tmp/test_control.XXXXXX");
        CHECK(mkdtemp(job->fs_path), "mkdtemp: %s", strerror(errno));
    }
    return job;
}

static Ranks job_ranks(const Job* job, int rank) {
    Ranks r;
    memset(&r, 0, sizeof(r));
    r.rank = r.local_rank = rank;
    r.size = r.local_size = job->size;
    if (job->spread) { r.local_rank = 0; r.local_size = 1; }
    r.source = RANKS_BY_OPTIONS;
    r.contact = job->contact;
    snprintf(r.host, sizeof(r.host), "h%d", rank);
    snprintf(r.address, sizeof(r.address), "%s", job->address);
    snprintf(r.fs_path, sizeof(r.fs_path), "%s", job->fs_path);
    snprintf(r.job, sizeof(r.job), "%s", job->name);
    r.port = job->port;
    return r;
}

static void job_rank_main(Job* job, int rank) {
    FileError error;
    char number[16];
    snprintf(number, sizeof(number), "%d", rank);
    setenv("TEST_RANK", number, 1);
    shared_now = job->shared;
    control_sleep(job->delay[rank]);
    Ranks ranks = job_ranks(job, rank);
    ControlConfig config = {&ranks, job->identity[rank], job->secret[rank], broadcast_by_memory, job->join_seconds, job->bound, 3};
    Control* c = control_start(&config, &error);
    if (!c) { fail(error.hint, "%s", error.message); }
    job->body(job, c, rank);
    control_finish(c);
}

static void job_spawn(Job* job, int rank) {
    int i = job->count++;
    job->out[i] = tmpfile();
    CHECK(job->out[i], "tmpfile");
    fflush(stdout);
    fflush(stderr);
    job->pid[i] = fork();
    CHECK(job->pid[i] >= 0, "fork: %s", strerror(errno));
    if (job->pid[i] == 0) {
        dup2(fileno(job->out[i]), 1);
        dup2(fileno(job->out[i]), 2);
        job_rank_main(job, rank);
        fflush(stdout);
        exit(0);
    }
}
static void job_start(Job* job) {
    job->began = control_monotonic();
    for (int r = 0; r < job->size; r++) { if (!job->absent[r]) { job_spawn(job, r); } }
}

// Waits until all processes have ended; those that have not in `seconds` since the job's start are an orphan each: a failed check.
static void job_wait(Job* job, double seconds) {
    for (int left = job->count; left > 0;) {
        left = 0;
        for (int i = 0; i < job->count; i++) {
            if (job->ended[i] > 0) { continue; }
            int status = 0;
            if (waitpid(job->pid[i], &status, WNOHANG) == job->pid[i]) {
                job->code[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                job->ended[i] = control_monotonic() - job->began;
            } else {
                left++;
            }
        }
        if (left && control_monotonic() - job->began > seconds) { break; }
        control_sleep(0.005);
    }
    std::string all;
    bool orphan = false;
    for (int i = 0; i < job->count; i++) {
        char buffer[4096];
        if (job->ended[i] == 0) {
            kill(job->pid[i], SIGKILL);
            waitpid(job->pid[i], NULL, 0);
            orphan = true;
        }
        rewind(job->out[i]);
        for (size_t n; (n = fread(buffer, 1, sizeof(buffer), job->out[i])) > 0;) { job->text[i].append(buffer, n); }
        fclose(job->out[i]);
        all += "[" + std::to_string(i) + (job->ended[i] == 0 ? " ORPHAN" : " exit " + std::to_string(job->code[i])) + " at " + std::to_string(job->ended[i]) + "] " + job->text[i];
    }
    CHECK(!orphan, "size %d contact %d kind %d victim %d signal %d inside %d: did not end in %.1f s\n%s", job->size, job->contact, job->kind, job->victim,
          job->signal, job->inside, seconds, all.c_str());
    if (job->fs_path[0]) {
        int code;
        std::string left = test_shell("ls -A " + std::string(job->fs_path) + "; rm -r " + job->fs_path, &code);
        CHECK(left.empty(), "files are left: %s", left.c_str());
    }
    munmap(job->shared, sizeof(Shared));
}
static std::string job_text(const Job* job) {
    std::string all;
    for (int i = 0; i < job->count; i++) { all += "[" + std::to_string(i) + " exit " + std::to_string(job->code[i]) + " at " + std::to_string(job->ended[i]) + "]\n" + job->text[i]; }
    return all;
}
static int count_of(const std::string& text, const char* word) {
    int n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) { n++; }
    return n;
}
static void job_check_good(Job* job, double seconds) {
    job_wait(job, seconds);
    for (int i = 0; i < job->count; i++) { CHECK(job->code[i] == 0 && job->text[i].empty(), "size %d contact %d kind %d\n%s", job->size, job->contact, job->kind, job_text(job).c_str()); }
    delete job;
}
// All end: one message, with every one of `words` (separated by |); the printer is rank `printer` (-1: any); all exit with `code` but the victim (-1: none),
// which was killed.
static void job_check_bad(Job* job, double seconds, const char* words, int printer, int code, int killed) {
    job_wait(job, seconds);
    const std::string all = job_text(job);
    std::string list = words;
    CHECK(count_of(all, "ERROR:") == 1 && count_of(all, "HINT:") == 1, "size %d kind %d victim %d signal %d inside %d: not one message\n%s", job->size, job->kind,
          job->victim, job->signal, job->inside, all.c_str());
    CHECK(printer < 0 || count_of(job->text[printer], "ERROR:") == 1, "rank %d should have printed\n%s", printer, all.c_str());
    for (char* w = strtok(&list[0], "|"); w; w = strtok(NULL, "|")) {
        CHECK(all.find(w) != std::string::npos, "size %d kind %d victim %d signal %d inside %d: '%s' is not in\n%s", job->size, job->kind, job->victim,
              job->signal, job->inside, w, all.c_str());
    }
    for (int i = 0; i < job->count; i++) {
        CHECK(killed < 0 || job->signal == SIGSTOP || job->ended[i] - job->ended[killed] < SLACK, "rank %d ended %.1f s after the victim\n%s", i,
              job->ended[i] - job->ended[killed], all.c_str());
        CHECK(job->code[i] == (i == killed ? 137 : code), "rank %d: exit code %d, victim %d signal %d kind %d\n%s", i, job->code[i], job->victim, job->signal,
              job->kind, all.c_str());
    }
    delete job;
}

// ----------------------------------------------------------------------------
// bodies

// Every operation, with results that depend on rank and repetition.
static void operate(Control* c, int size, int rank, int repetition, const char* prefix) {
    char name[CONTROL_NAME_MAX];
    const int sizes[] = {0, 1, 1000, 100000};
    const int bytes = sizes[repetition % 4];
    std::string in((size_t)bytes, 0), out((size_t)bytes * size + 1, 0), text = "digest " + std::to_string(repetition);
    for (int i = 0; i < bytes; i++) { in[i] = (char)(rank * 31 + i + repetition); }
    snprintf(name, sizeof(name), "%s barrier", prefix);
    control_barrier(c, name, 0);
    snprintf(name, sizeof(name), "%s all", prefix);
    control_all_gather(c, name, in.data(), bytes, &out[0], 0);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < bytes; i++) { CHECK(out[(size_t)r * bytes + i] == (char)(r * 31 + i + repetition), "all_gather: rank %d byte %d", r, i); }
    }
    snprintf(name, sizeof(name), "%s broadcast", prefix);
    control_broadcast(c, name, &in[0], bytes, 0);
    for (int i = 0; i < bytes; i++) { CHECK(in[i] == (char)(i + repetition), "broadcast: byte %d", i); }
    snprintf(name, sizeof(name), "%s agree", prefix);
    control_agree(c, name, text.c_str(), 0);
}
static void body_operations(Job* job, Control* c, int rank) {
    for (int i = 0; i < 8; i++) {
        control_note(c, "work", i);
        operate(c, job->size, rank, i, "main");
    }
}
static void body_nothing(Job*, Control*, int) {}

typedef struct { Control* c; int size, rank; } ThreadArg;
static void* thread_operations(void* arg) {
    ThreadArg* t = (ThreadArg*)arg;
    for (int i = 0; i < 60; i++) { operate(t->c, t->size, t->rank, i, "background"); }
    return NULL;
}
static void body_two_threads(Job* job, Control* c, int rank) {
    ThreadArg t = {c, job->size, rank};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, thread_operations, &t) == 0, "pthread_create");
    for (int i = 0; i < 60; i++) {
        control_note(c, "work", i);
        operate(c, job->size, rank, i + 1, "main");
    }
    pthread_join(thread, NULL);
}

enum { IN_COMPUTE, IN_BARRIER, IN_BROADCAST, IN_ALL_GATHER, IN_AGREE, IN_WAIT, IN_FINISH, IN_COUNT };
static void one_operation(Control* c, int kind) {
    char buffer[64] = "", out[64 * MAX_RANKS];
    switch (kind) {
        case IN_COMPUTE: control_note(c, "compute", 18); control_sleep(30); break;
        case IN_BARRIER: control_barrier(c, "barrier op", 0); break;
        case IN_BROADCAST: control_broadcast(c, "broadcast op", buffer, 64, 0); break;
        case IN_ALL_GATHER: control_all_gather(c, "all-gather op", buffer, 64, out, 0); break;
        case IN_AGREE: control_agree(c, "agree op", "same", 0); break;
        case IN_WAIT: control_note_wait(c, "all-reduce", 17); control_sleep(30); break;
        case IN_FINISH: control_finish(c); break;
        default: break;
    }
}
static void* thread_signal(void* arg) {
    control_sleep(0.8);
    kill(getpid(), *(int*)arg);
    return NULL;
}
// The victim gets the signal before the operation in which the others wait, or inside of it, while the last rank that is not the victim comes late.
static void body_victim(Job* job, Control* c, int rank) {
    control_note(c, "forward", 17);
    const int late = job->victim == job->size - 1 ? job->size - 2 : job->size - 1;
    pthread_t thread;
    if (rank == job->victim) { CHECK(pthread_create(&thread, NULL, thread_signal, &job->signal) == 0, "pthread_create"); }
    control_sleep(0.3);
    if (rank == job->victim && !job->inside) { control_sleep(30); }
    if (rank == late && job->inside) { control_sleep(1.2); }
    one_operation(c, job->kind);
    control_sleep(30);
}

// ----------------------------------------------------------------------------
// tests

static void test_control_siphash_vectors(void) {
    // of the reference implementation: key 00..0f, inputs of 0 to 8 and 15 bytes 00, 01, ...
    static const struct { int bytes; uint64_t hash; } vectors[] = {
        {0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {2, 0x0d6c8009d9a94f5a}, {3, 0x85676696d7fb7e2d}, {4, 0xcf2794e0277187b7}, {5, 0x18765564cd99a68d},
        {6, 0xcbc9466e58fee3ce}, {7, 0xab0200f58b01d137}, {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5},
    };
    unsigned char key[16], data[64];
    for (int i = 0; i < 16; i++) { key[i] = (unsigned char)i; }
    for (int i = 0; i < 64; i++) { data[i] = (unsigned char)i; }
    for (const auto& v : vectors) { CHECK(siphash(key, data, (size_t)v.bytes) == v.hash, "%d bytes: %016llx", v.bytes, (unsigned long long)siphash(key, data, (size_t)v.bytes)); }
}

static void test_control_joins_and_operates(void) {
    static const RanksContact contacts[] = {RANKS_MPI, RANKS_TCP, RANKS_FILE};
    std::vector<Job*> jobs;
    for (RanksContact contact : contacts) {
        for (int size = 1; size <= MAX_RANKS; size++) {
            Job* job = job_new(size, contact, body_operations);
            job->delay[size % 2 ? 0 : size - 1] = 0.3;  // the hub, or the last, comes late
            if (contact == RANKS_TCP && size == 3) { job->secret[0] = job->secret[1] = job->secret[2] = "a secret"; }
            if (contact == RANKS_TCP && size == 4) { job->name = "slurm 7 0"; job->address = "localhost"; }
            jobs.push_back(job);
            job_start(job);
        }
    }
    for (Job* job : jobs) { job_check_good(job, 10); }
}

// Ranks of several hosts: rank 0 takes an address that others can reach, though its own name may mean a loopback address here.
static void test_control_several_hosts(void) {
    struct sockaddr_storage own;
    socklen_t length = 0;
    char list[512], name[64];
    if (control_own_addresses(&own, &length, list, sizeof(list)) == 0) { SKIP("this host has only loopback addresses"); }
    CHECK(gethostname(name, sizeof(name)) == 0, "gethostname");
    std::vector<Job*> jobs;
    for (RanksContact contact : {RANKS_MPI, RANKS_FILE, RANKS_TCP}) {
        Job* job = job_new(3, contact, body_operations);
        char first[64];
        snprintf(first, sizeof(first), "%.*s", (int)strcspn(list, ","), list);
        job->spread = true;
        job->address = contact == RANKS_TCP ? strdup(first) : "";
        job->delay[0] = 0.2;
        jobs.push_back(job);
        job_start(job);
    }
    for (Job* job : jobs) {
        const char* address = job->contact == RANKS_TCP ? job->address : NULL;
        job_check_good(job, 10);
        free((void*)(uintptr_t)address);
    }
    // the listening socket itself: bound to what the message would name, never to all interfaces
    Ranks r;
    ControlContact where;
    FileError error;
    memset(&r, 0, sizeof(r));
    memset(&where, 0, sizeof(where));
    r.size = 2;
    r.local_size = 1;
    r.contact = RANKS_MPI;
    snprintf(r.host, sizeof(r.host), "%s", name);
    int fd = control_listen_hub(&r, &where, &error);
    CHECK(fd >= 0, "%s", error.message);
    CHECK(strncmp(where.address, "127.", 4) && strcmp(where.address, "0.0.0.0") && strcmp(where.address, "::") && where.port > 0, "%s port %d", where.address, where.port);
    close(fd);
}

static void test_control_two_threads(void) {
    Job* job = job_new(3, RANKS_MPI, body_two_threads);
    job_start(job);
    job_check_good(job, 20);
}

// ---- strangers

static int connect_to(int port) {
    struct sockaddr_in a;
    memset(&a, 0, sizeof(a));
    a.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return control_connect((struct sockaddr*)(void*)&a, sizeof(a), control_monotonic() + 1);
}
// Does everything a stranger can do, for some seconds, then ends.
static void strangers(int port, double seconds) {
    const double until = control_monotonic() + seconds;
    TestRng rng = {test_seed()};
    std::vector<int> open;
    ControlJoin join;
    unsigned char token[16] = {0};
    for (long i = 0; control_monotonic() < until; i++) {
        int fd = connect_to(port);
        if (fd < 0) { control_sleep(0.01); continue; }
        unsigned char bytes[700];
        ControlHello hello;
        ControlChallenge challenge;
        memcpy(hello.magic, CONTROL_MAGIC, 8);
        for (unsigned char& b : hello.nonce) { b = (unsigned char)test_rng_u64(&rng); }
        for (unsigned char& b : bytes) { b = (unsigned char)test_rng_u64(&rng); }
        const double deadline = control_monotonic() + 0.2;
        switch (i % 6) {
            case 0: break;                                                                              // a half-open connection
            case 1: close(fd); fd = -1; break;                                                          // a port scan
            case 2: send(fd, bytes, 1 + test_rng_u64(&rng) % sizeof(bytes), MSG_NOSIGNAL); break;       // garbage
            case 3: send(fd, &hello, 1 + test_rng_u64(&rng) % sizeof(hello), MSG_NOSIGNAL); break;      // a part of the first word
            case 4:                                                                                     // the first word, then garbage
                send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
                if (control_receive_all(fd, &challenge, sizeof(challenge), deadline)) { send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL); }
                break;
            default:                                                                                    // all in form, but by another token
                send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
                if (!control_receive_all(fd, &challenge, sizeof(challenge), deadline)) { break; }
                memset(&join, 0, sizeof(join));
                join.rank = 2;  // the one that comes late
                join.size = 3;
                snprintf(join.identity, sizeof(join.identity), "test 1");
                join.proof = control_prove(token, CONTROL_LABEL_PEER, challenge.nonce, hello.nonce, &join, offsetof(ControlJoin, proof));
                send(fd, &join, sizeof(join), MSG_NOSIGNAL);
        }
        if (fd >= 0) { open.push_back(fd); }
        if (open.size() > 400) { close(open[0]); open.erase(open.begin()); }
        if (i % 16 == 0) { control_sleep(0.001); }
    }
    for (int fd : open) { close(fd); }
}
static void test_control_strangers(void) {
    Job* job = job_new(3, RANKS_TCP, body_operations);
    job->delay[2] = 1.0;
    job_start(job);
    pid_t pids[2];
    for (pid_t& pid : pids) {
        fflush(stdout);
        pid = fork();
        if (pid == 0) { strangers(job->port, 2.0); _exit(0); }
    }
    job_check_good(job, 10);
    for (pid_t pid : pids) { kill(pid, SIGKILL); waitpid(pid, NULL, 0); }
}

// Half-open connections alone do not hold a place beyond 2 s, and cannot fill the hub's table.
static void test_control_silent_flood(void) {
    Job* job = job_new(2, RANKS_TCP, body_nothing);
    job->delay[1] = 0.7;
    job_start(job);
    control_sleep(0.3);
    std::vector<int> open;
    for (int i = 0; i < 300; i++) { open.push_back(connect_to(job->port)); }
    int alive = 0;
    control_sleep(0.2);
    for (int fd : open) {
        char byte;
        if (fd >= 0 && recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) { alive++; }
    }
    CHECK(alive <= 64 + 2 * 2, "%d connections are open at the hub", alive);
    job_check_good(job, 10);
    for (int fd : open) { close(fd); }
}

// One that has said the first word and no more is closed after 2 s, while the hub goes on waiting.
static void test_control_silence_is_closed(void) {
    Job* job = job_new(2, RANKS_TCP, body_nothing);
    job->delay[1] = CONTROL_PROOF_SECONDS + 0.8;
    job_start(job);
    control_sleep(0.2);
    int silent = connect_to(job->port), polite = connect_to(job->port);
    ControlHello hello;
    memset(&hello, 0, sizeof(hello));
    memcpy(hello.magic, CONTROL_MAGIC, 8);
    CHECK(silent >= 0 && polite >= 0 && send(polite, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello), "connect");
    for (int fd : {silent, polite}) {
        char bytes[64];
        ssize_t n = 1;
        while (n > 0 && control_wait_fd(fd, POLLIN, job->began + CONTROL_PROOF_SECONDS + 0.7)) { n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT); }
        CHECK(n <= 0, "a connection is still open after %.1f s", control_monotonic() - job->began);
        close(fd);
    }
    job_check_good(job, 10);
}

static void test_control_listens_on_one_interface_only(void) {
    struct sockaddr_storage own;
    socklen_t length = 0;
    char list[512];
    if (control_own_addresses(&own, &length, list, sizeof(list)) == 0) { SKIP("this host has only loopback addresses"); }
    Job* job = job_new(2, RANKS_TCP, body_nothing);
    job->delay[1] = 0.8;
    job_start(job);
    control_sleep(0.3);
    control_set_port(&own, job->port);
    int fd = control_connect((struct sockaddr*)(void*)&own, length, control_monotonic() + 1);
    CHECK(fd < 0 && errno == ECONNREFUSED, "port %d answers on %s (%s)", job->port, list, fd < 0 ? strerror(errno) : "connected");
    fd = connect_to(job->port);
    CHECK(fd >= 0, "port %d does not answer on 127.0.0.1: %s", job->port, strerror(errno));
    close(fd);
    job_check_good(job, 10);
}

// ---- who may not join

static void test_control_wrong_token(void) {
    Job* job = job_new(3, RANKS_TCP, body_nothing);
    job->join_seconds = 0.8;
    job->secret[0] = job->secret[1] = "right";
    job->secret[2] = "wrong";
    job_start(job);
    job_wait(job, 5);
    const std::string all = job_text(job);
    CHECK(count_of(job->text[0], "missing 2") == 1 && count_of(job->text[2], "does not know this job's token") == 1 && job->text[1].empty(), "%s", all.c_str());
    CHECK(job->code[0] == 1 && job->code[1] == 3 && job->code[2] == 1, "%s", all.c_str());
    delete job;
}
static void test_control_missing_rank(void) {
    static const RanksContact contacts[] = {RANKS_MPI, RANKS_TCP, RANKS_FILE};
    std::vector<Job*> jobs;
    for (RanksContact contact : contacts) {
        Job* job = job_new(4, contact, body_nothing);
        job->join_seconds = 0.6;
        job->absent[1] = job->absent[3] = true;
        jobs.push_back(job);
        job_start(job);
    }
    for (Job* job : jobs) {
        job_wait(job, 4);
        const std::string all = job_text(job);
        CHECK(count_of(all, "ERROR:") == 1 && count_of(job->text[0], "2 of 4 ranks have not joined within 0.6 s: missing 1, 3") == 1, "%s", all.c_str());
        CHECK(job->code[0] == 1 && job->code[1] == 3 && job->ended[1] < 2.5, "%s", all.c_str());
        delete job;
    }
}
static void test_control_missing_hub(void) {
    static const RanksContact contacts[] = {RANKS_TCP, RANKS_FILE};
    for (RanksContact contact : contacts) {
        Job* job = job_new(2, contact, body_nothing);
        job->join_seconds = 0.6;
        job->absent[0] = true;
        job_start(job);
        job_check_bad(job, 4, contact == RANKS_TCP ? "rank 1 (host h1) has not reached rank 0|127.0.0.1 port|refused" : "rank 1 (host h1)|by the file|not there", 0, 1, -1);
    }
}
static void test_control_duplicate_rank(void) {
    Job* job = job_new(3, RANKS_TCP, body_operations);
    job->delay[2] = 0.8;
    job_start(job);
    control_sleep(0.3);
    job_spawn(job, 1);  // a second rank 1: process 3
    job_wait(job, 10);
    const std::string all = job_text(job);
    CHECK(count_of(job->text[3], "two processes are rank 1") == 1 && job->code[3] == 1 && count_of(all, "ERROR:") == 1, "%s", all.c_str());
    CHECK(job->code[0] == 0 && job->code[1] == 0 && job->code[2] == 0, "%s", all.c_str());
    delete job;
}
static void body_wrong_size(Job*, Control*, int) {}
static void test_control_other_size_or_identity(void) {
    Job* job = job_new(3, RANKS_TCP, body_nothing);
    job->identity[2] = "test 2";
    job->delay[2] = 0.2;
    job_start(job);
    job_wait(job, 5);
    std::string all = job_text(job);
    CHECK(count_of(all, "ERROR:") == 1 && count_of(job->text[0], "rank 2 (host h2) is 'test 2', rank 0 (host h0) is 'test 1'") == 1, "%s", all.c_str());
    CHECK(job->code[0] == 1 && job->code[1] == 3 && job->code[2] == 3, "%s", all.c_str());
    Job* other = job_new(2, RANKS_TCP, body_wrong_size);
    other->name = "same";
    other->absent[1] = true;
    job_start(other);
    other->size = 3;
    job_spawn(other, 2);
    job_wait(other, 5);
    all = job_text(other);
    CHECK(count_of(all, "ERROR:") == 1 && count_of(other->text[0], "host h2 joins as rank 2 of 3, but rank 0 (host h0) has 2 ranks") == 1, "%s", all.c_str());
    delete job;
    delete other;
}
static void test_control_hub_cannot_listen(void) {
    Job* job = job_new(3, RANKS_MPI, body_nothing);
    job->address = "203.0.113.7";  // of no host
    job_start(job);
    job_wait(job, 5);
    std::string all = job_text(job);
    CHECK(count_of(all, "ERROR:") == 1 && count_of(job->text[0], "cannot listen on 203.0.113.7") == 1 && job->code[1] == 3 && job->code[2] == 3, "%s", all.c_str());
    delete job;
    Job* first = job_new(2, RANKS_TCP, body_nothing);
    first->absent[1] = true;
    first->join_seconds = 1;
    job_start(first);
    control_sleep(0.3);
    Job* second = job_new(2, RANKS_TCP, body_nothing);
    second->port = first->port;
    second->absent[1] = true;
    job_start(second);
    job_check_bad(second, 5, "cannot listen on 127.0.0.1 port|in use|--server-port", 0, 1, -1);
    job_check_bad(first, 5, "missing 1", 0, 1, -1);
}

// ---- files of earlier runs

static void test_control_stale_files(void) {
    std::vector<Job*> jobs;
    std::vector<int> fds;
    for (int k = 0; k < 6; k++) {
        Job* job = job_new(3, RANKS_FILE, body_operations);
        Ranks r = job_ranks(job, 0);
        ControlContact stale;
        FileError error;
        char path[FILE_PATH_MAX];
        memset(&stale, 0, sizeof(stale));
        memset(stale.token, 7, sizeof(stale.token));
        snprintf(stale.address, sizeof(stale.address), "127.0.0.1");
        stale.port = free_port();                                   // 0: nobody listens there
        if (k == 1 || k == 2) {                                     // 1: somebody listens and says nothing. 2: somebody who answers wrongly
            struct sockaddr_in a;
            memset(&a, 0, sizeof(a));
            a.sin_family = AF_INET;
            a.sin_port = htons((uint16_t)stale.port);
            a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            int fd = control_listen((struct sockaddr*)(void*)&a, sizeof(a));
            CHECK(fd >= 0, "listen");
            fds.push_back(fd);
            fflush(stdout);
            pid_t pid = k == 2 ? fork() : -1;
            if (pid == 0) {
                char noise[4096] = {0};  // looks like a welcome to a peer that checks nothing
                for (double until = control_monotonic() + 4; control_monotonic() < until;) {
                    int peer = accept(fd, NULL, NULL);
                    if (peer >= 0) { send(peer, noise, sizeof(noise), MSG_NOSIGNAL); }
                    control_sleep(0.002);
                }
                _exit(0);
            }
        }
        control_file_path(&r, path);
        CHECK(control_file_write(path, &r, &stale, &error), "%s", error.message);
        if (k == 3) { test_write_file(path, "llm.fp8 meeting point 1\njob \nsize 3\naddress 127.0.0.1\nport 1\ntoken 00"); chmod(path, 0600); }  // damaged
        if (k == 4) { chmod(path, 0644); }                          // could be anybody's
        if (k == 5) { unlink(path); CHECK(mkfifo(path, 0600) == 0, "mkfifo"); }
        job->delay[0] = 0.5;                                        // the peers see the old file first
        job_start(job);
        jobs.push_back(job);
    }
    for (Job* job : jobs) { job_check_good(job, 8); }
    for (int fd : fds) { close(fd); }
}
// Whatever bytes change or are cut off: such a file is not believed.
static void test_control_damaged_file_is_refused(void) {
    Job* job = job_new(3, RANKS_FILE, body_nothing);
    Ranks r = job_ranks(job, 0);
    ControlContact written, seen;
    FileError error;
    TestRng rng = {test_seed()};
    char path[FILE_PATH_MAX], why[256];
    int code;
    memset(&written, 0, sizeof(written));
    snprintf(written.address, sizeof(written.address), "10.0.0.1");
    written.port = 1234;
    for (unsigned char& b : written.token) { b = (unsigned char)test_rng_u64(&rng); }
    control_file_path(&r, path);
    CHECK(control_file_write(path, &r, &written, &error), "%s", error.message);
    CHECK(control_file_read(path, &r, &seen, why) && !memcmp(&seen, &written, sizeof(seen)), "%s", why);
    const std::string text = test_read_file(path);
    for (int i = 0; i < 300; i++) {
        std::string bad = text;
        for (int changes = 1 + (int)(test_rng_u64(&rng) % 4); changes > 0; changes--) { bad[test_rng_u64(&rng) % bad.size()] = (char)test_rng_u64(&rng); }
        if (i % 3 == 0) { bad.resize(test_rng_u64(&rng) % bad.size()); }
        if (i % 50 == 0) { bad = text + text; }
        if (bad == text) { continue; }
        test_write_file(path, bad);
        CHECK(!control_file_read(path, &r, &seen, why), "believed: %s", bad.c_str());
    }
    test_write_file(path, text);
    CHECK(control_file_read(path, &r, &seen, why), "%s", why);
    chmod(path, 0640);
    CHECK(!control_file_read(path, &r, &seen, why) && strstr(why, "640"), "open to others: %s", why);
    chmod(path, 0600);
    r.size = 4;
    CHECK(!control_file_read(path, &r, &seen, why), "of another size");
    test_shell(std::string("rm -r ") + job->fs_path, &code);
    delete job;
}
static void test_control_file_is_private_and_removed(void) {
    Job* job = job_new(2, RANKS_FILE, body_nothing);
    Ranks r = job_ranks(job, 0);
    char path[FILE_PATH_MAX];
    struct stat st;
    control_file_path(&r, path);
    job->delay[1] = 1.4;
    job_start(job);
    control_sleep(0.4);
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600, "mode %o", (unsigned)st.st_mode);
    unlink(path);  // somebody cleans up: rank 0 writes it again
    job_check_good(job, 8);
}
static void test_control_two_runs_in_one_folder(void) {
    Job* first = job_new(2, RANKS_FILE, body_nothing);
    first->absent[1] = true;
    job_start(first);
    control_sleep(0.3);
    Job* second = job_new(2, RANKS_FILE, body_operations);
    char own[256];
    snprintf(own, sizeof(own), "%s", second->fs_path);
    snprintf(second->fs_path, sizeof(second->fs_path), "%s", first->fs_path);
    second->delay[1] = 1.5;
    job_start(second);
    first->fs_path[0] = 0;  // the second one checks and removes the folder
    job_check_bad(first, 5, "two runs meet in one folder", 0, 1, -1);
    job_check_good(second, 8);
    rmdir(own);
}

// ---- deaths and hangs

static void test_control_kill_everywhere(void) {
    std::vector<Job*> jobs;
    for (int kind = 0; kind < IN_COUNT; kind++) {
        for (int victim = 0; victim < 3; victim++) {
            for (int inside = 0; inside < 2; inside++) {
                Job* job = job_new(victim == 0 && kind % 2 ? 2 : victim == 1 && kind % 2 ? 4 : 3, RANKS_MPI, body_victim);
                job->kind = kind;
                job->victim = victim;
                job->inside = inside;
                job->signal = SIGKILL;
                job->bound = 20;  // the end of a connection is seen at once, not by the bound
                jobs.push_back(job);
                job_start(job);
            }
        }
    }
    for (Job* job : jobs) {
        char words[128];
        const char* op[] = {"'compute'", "'barrier op'", "'broadcast op'", "'all-gather op'", "'agree op'", "'all-reduce'", "'end of the run'"};
        snprintf(words, sizeof(words), "rank %d (host h%d) ended|at step %d in %s", job->victim, job->victim, job->inside && job->kind == IN_COMPUTE ? 18 : 17,
                 job->inside ? op[job->kind] : "'forward'");
        const int victim = job->victim;
        job_check_bad(job, 10, words, victim == 0 ? 1 : 0, 3, victim);
    }
}
static void body_sleep(Job*, Control* c, int) {
    control_note(c, "forward", 1);
    control_sleep(1.5);
    control_barrier(c, "after", 0);
}
// The hub and the rank that would speak for it die at the same time: the next one speaks, the others see that it lives.
static void test_control_kill_two(void) {
    Job* job = job_new(4, RANKS_MPI, body_sleep);
    job->bound = 20;
    job_start(job);
    control_sleep(0.8);
    kill(job->pid[0], SIGSTOP);  // so that neither can say anything about the other
    kill(job->pid[1], SIGSTOP);
    kill(job->pid[1], SIGKILL);
    kill(job->pid[0], SIGKILL);
    job_wait(job, 10);
    const std::string all = job_text(job);
    CHECK(count_of(all, "ERROR:") == 1 && count_of(job->text[2], "rank 0 (host h0) ended") == 1, "%s", all.c_str());
    CHECK(job->code[0] == 137 && job->code[1] == 137 && job->code[2] == 3 && job->code[3] == 3, "%s", all.c_str());
    delete job;
}
static void test_control_stop_everywhere(void) {
    std::vector<Job*> jobs;
    for (int kind = 0; kind < IN_COUNT; kind++) {
        for (int victim = 0; victim < 3; victim++) {
            Job* job = job_new(3, RANKS_MPI, body_victim);
            job->kind = kind;
            job->victim = victim;
            job->inside = kind % 2 && kind != IN_FINISH;  // once all have come to the end, a stopped rank is no failure
            job->signal = SIGSTOP;
            jobs.push_back(job);
            job_start(job);
        }
    }
    for (Job* job : jobs) {
        char words[128];
        const int victim = job->victim;
        snprintf(words, sizeof(words), "rank %d (host h%d)|at step 1", victim, victim);
        job_check_bad(job, 0.8 + BOUND + SLACK, words, victim == 0 ? 1 : 0, 3, victim);  // the hub ends a process of its host that is stopped
    }
}

// A rank that hangs in its own work: its heart beats, but it does not come.
static void body_hang(Job* job, Control* c, int rank) {
    control_note(c, "forward", 17);
    if (rank == job->victim) {
        control_note(c, "a very long kernel", 18);
        control_sleep(30);
    }
    one_operation(c, job->kind);
    control_sleep(30);
}
static void body_all_wait(Job*, Control* c, int) { one_operation(c, IN_WAIT); }
static void body_slow(Job* job, Control* c, int rank) {  // one rank is slow, but note follows note
    control_note(c, "forward", 1);
    for (int i = 0; rank == job->victim && i < 6; i++) {
        control_note(c, "evaluate", 1);
        control_sleep(0.5);
    }
    if (job->kind == IN_BARRIER) { control_barrier(c, "slow", 0); return; }
    control_note_wait(c, "all-reduce", 1);
    if (rank != job->victim) { control_sleep(3); }
    control_note(c, "forward", 2);
}
static void body_limit(Job*, Control* c, int rank) {  // a limit of its own holds for slow ranks too
    for (int i = 0; rank == 1 && i < 12; i++) {
        control_note(c, "evaluate", 1);
        control_sleep(0.1);
    }
    control_barrier(c, "limited", rank == 0 ? 0.5 : 5);
}
static void body_long_save(Job*, Control* c, int rank) {  // longer than the bound, but it was said
    control_note(c, "save", 2);
    if (rank == 0) { control_sleep(BOUND + 0.7); }
    control_barrier(c, "saved", 20);
}
static void body_different(Job* job, Control* c, int rank) {  // ranks that took different ways: both wait
    control_note(c, "forward", 17);
    one_operation(c, rank == job->victim ? IN_WAIT : IN_BARRIER);
}
static void test_control_hangs(void) {
    std::vector<Job*> jobs;
    for (int kind = IN_BARRIER; kind <= IN_FINISH; kind++) {
        for (int victim = 0; victim < 3; victim += 2) {
            Job* job = job_new(3, RANKS_MPI, body_hang);
            job->kind = kind;
            job->victim = victim;
            jobs.push_back(job);
            job_start(job);
        }
    }
    Job* all = job_new(2, RANKS_MPI, body_all_wait);
    Job* slow = job_new(3, RANKS_MPI, body_slow);
    Job* suspended = job_new(3, RANKS_MPI, body_sleep);
    Job* different = job_new(4, RANKS_MPI, body_different);
    Job* save = job_new(2, RANKS_MPI, body_long_save);
    Job* slow_barrier = job_new(3, RANKS_MPI, body_slow);
    Job* late = job_new(2, RANKS_MPI, body_limit);
    slow_barrier->kind = IN_BARRIER;
    slow_barrier->victim = 2;
    slow->victim = 1;
    different->victim = 2;
    job_start(all);
    job_start(slow);
    job_start(save);
    job_start(slow_barrier);
    job_start(late);
    job_start(suspended);
    job_start(different);
    control_sleep(0.5);
    for (int r = 0; r < 3; r++) { kill(suspended->pid[r], SIGSTOP); }  // as a scheduler suspends a job
    const double resume = control_monotonic() + BOUND + 1;
    job_check_bad(all, BOUND + SLACK, "all 2 ranks are in 'all-reduce' of step 17|itself hangs", 0, 3, -1);
    job_check_bad(different, BOUND + SLACK, "rank 2 (host h2) has not come to the barrier 'barrier op'|at step 17 in 'all-reduce'", 0, 3, -1);
    for (Job* job : jobs) {
        char words[160];
        snprintf(words, sizeof(words), "rank %d (host h%d) has not come to|at step 18 in 'a very long kernel'", job->victim, job->victim);
        job_check_bad(job, BOUND + SLACK, words, 0, 3, -1);
    }
    while (control_monotonic() < resume) { control_sleep(0.02); }
    for (int r = 0; r < 3; r++) { kill(suspended->pid[r], SIGCONT); }
    job_check_good(suspended, 12);
    job_check_good(slow, 12);
    job_check_good(save, 12);
    job_check_good(slow_barrier, 12);
    job_check_bad(late, 12, "rank 1 (host h1) has not come to the barrier 'limited', where rank 0 (host h0) waits for 0.|in 'evaluate'", 0, 3, -1);
}

// ---- ends

static void body_fail(Job* job, Control* c, int rank) {
    control_note(c, "forward", 5);
    control_sleep(0.2);
    if (rank != job->victim) { one_operation(c, job->kind); control_sleep(30); }
    fprintf(stderr, "ERROR: my own words\nHINT: none\n");
    control_fail(c, 7);
    exit(7);
}
static void body_all_claim(Job*, Control* c, int) {  // all ranks find the same error
    control_claim(c, 9);
    fprintf(stderr, "ERROR: the same everywhere\nHINT: none\n");
    control_fail(c, 9);
    exit(9);
}
static void body_claim_after_death(Job* job, Control* c, int rank) {  // the death of one makes the others' calls fail
    control_note(c, "all-reduce", 5);
    control_sleep(0.8);
    if (rank == job->victim) { kill(getpid(), SIGKILL); }
    control_sleep(rank == 0 ? 0.0 : 0.005);
    control_claim(c, 9);
    fprintf(stderr, "ERROR: remote error\nHINT: none\n");
    control_fail(c, 9);
    exit(9);
}
static void body_exit(Job* job, Control* c, int rank) {
    control_note(c, "forward", 5);
    if (rank == job->victim) { control_sleep(0.8); _exit(3); }
    one_operation(c, IN_BARRIER);
}
static void test_control_failures_that_speak(void) {
    std::vector<Job*> jobs;
    for (int victim = 0; victim < 3; victim++) {
        Job* job = job_new(3, RANKS_MPI, body_fail);
        job->victim = victim;
        job->kind = victim ? IN_BARRIER : IN_WAIT;
        jobs.push_back(job);
        job_start(job);
    }
    for (int k = 0; k < 3; k++) { jobs.push_back(job_new(4, RANKS_MPI, body_all_claim)); job_start(jobs.back()); }
    Job* death[2];
    for (int k = 0; k < 2; k++) {
        death[k] = job_new(4, RANKS_MPI, body_claim_after_death);
        death[k]->victim = 2;
        job_start(death[k]);
    }
    Job* silent = job_new(2, RANKS_MPI, body_exit);
    silent->victim = 1;
    job_start(silent);
    for (int i = 0; i < 3; i++) { job_check_bad(jobs[i], 4, "my own words", i, 7, -1); }
    for (int i = 3; i < 6; i++) { job_check_bad(jobs[i], 4, "the same everywhere", -1, 9, -1); }
    job_check_bad(silent, 4, "rank 1 (host h1) ended|at step 5 in 'forward'", 0, 3, -1);
    for (Job* job : death) { job_check_bad(job, 5, "rank 2 (host h2) ended", 0, 3, 2); }
}

// ---- files that do not come along, slow work, health, wishes

enum { DISK_WRITER_HANGS, DISK_MAIN_HANGS, DISK_ALL_HANG, DISK_SLOW };
typedef struct { Job* job; Control* c; int rank; } WriterArg;
// A writing thread: the victim's disk hangs, or is slow, longer than the bound in all; the others wait for it.
static void* thread_writer(void* arg) {
    WriterArg* w = (WriterArg*)arg;
    control_writer_begin(w->c);
    control_note_disk(w->c, "writing a checkpoint", 7);
    if (w->rank == w->job->victim && w->job->kind == DISK_WRITER_HANGS) { control_sleep(30); }
    for (int i = 0; w->rank == w->job->victim && i < 8; i++) {
        control_sleep(BOUND / 4);
        control_progress(w->c);
    }
    control_barrier(w->c, "written", 0);
    control_writer_end(w->c);
    return NULL;
}
static void body_disk(Job* job, Control* c, int rank) {
    WriterArg arg = {job, c, rank};
    pthread_t thread;
    control_note(c, "forward", 7);
    if (job->kind == DISK_MAIN_HANGS || job->kind == DISK_ALL_HANG) {
        control_note_disk(c, "loading the model", 7);
        if (rank == job->victim || job->kind == DISK_ALL_HANG) { control_sleep(30); }
        control_note(c, "forward", 7);
        control_sleep(30);
    }
    CHECK(pthread_create(&thread, NULL, thread_writer, &arg) == 0, "pthread_create");
    if (job->kind == DISK_SLOW) { control_note_thread(c, "waiting for the writer", 8); }
    for (int i = 0; job->kind == DISK_WRITER_HANGS && i < 300; i++) {  // training goes on meanwhile
        control_note(c, "forward", 8);
        control_sleep(0.1);
    }
    pthread_join(thread, NULL);
    control_note(c, "forward", 8);
    control_barrier(c, "after", 0);
}
// A collective of a step that takes longer than the bound: healthy while the last rank to come makes progress.
static void body_slow_step(Job* job, Control* c, int rank) {
    control_note_wait(c, "a training step", 5);
    for (int i = 0; i < (int)(2 * BOUND / 0.1); i++) {
        control_sleep(0.1);
        if (rank == job->victim) { control_progress(c); }
    }
    if (rank == job->victim && job->kind) { control_sleep(30); }  // then it hangs after all
    if (job->kind) { control_sleep(30); }
    control_note(c, "after", 5);
    control_barrier(c, "stepped", 0);
}
static bool health_of(void* arg, char ill[CONTROL_ILL_MAX]) {
    Job* job = (Job*)arg;
    const int asked = job->shared->flag[0]++;
    snprintf(ill, CONTROL_ILL_MAX, "the link is broken");
    return job->kind ? asked == 1 : asked < 1;  // kind 1: ill now and then, which heals
}
static void body_ill(Job* job, Control* c, int rank) {
    control_note(c, "forward", 9);
    if (rank == job->victim) { control_watch_health(c, health_of, job); }
    for (int i = 0; i < (job->kind ? 20 : 300); i++) { control_sleep(0.1); control_note(c, "forward", 9); }
    control_watch_health(c, NULL, NULL);
    const int asked = job->shared->flag[0];
    control_sleep(1.5);
    CHECK(job->shared->flag[0] == asked && asked == (job->kind ? 2 : asked), "asked %d times, then %d", asked, job->shared->flag[0]);
}
static void body_wish(Job* job, Control* c, int rank) {
    control_barrier(c, "before", 0);
    CHECK(rank == job->victim || !control_wished(c), "too early");
    if (rank == job->victim) { control_wish(c); }
    const double end = control_monotonic() + 1;
    while (!control_wished(c) && control_monotonic() < end) { control_sleep(0.01); }
    CHECK(control_wished(c), "rank %d has not heard of it", rank);
    control_barrier(c, "all heard", 0);
}
static void test_control_files(void) {
    std::vector<Job*> jobs;
    for (int kind = DISK_WRITER_HANGS; kind <= DISK_SLOW; kind++) {
        for (int victim = 0; victim < 3; victim += 2) {
            jobs.push_back(job_new(3, RANKS_MPI, body_disk));
            jobs.back()->kind = kind;
            jobs.back()->victim = victim;
            job_start(jobs.back());
        }
        jobs.push_back(job_new(1, RANKS_MPI, body_disk));  // one process watches over its files as well
        jobs.back()->kind = kind;
        job_start(jobs.back());
    }
    for (Job* job : jobs) {
        char words[160];
        if (job->kind == DISK_SLOW) { job_check_good(job, 12); continue; }
        snprintf(words, sizeof(words), "rank %d (host h%d) makes no progress with its files|at step 7 in '%s' for 2.", job->kind == DISK_ALL_HANG ? 0 : job->victim,
                 job->kind == DISK_ALL_HANG ? 0 : job->victim, job->kind == DISK_WRITER_HANGS ? "writing a checkpoint" : "loading the model");
        job_check_bad(job, BOUND + SLACK, words, 0, 3, -1);
    }
}
static void test_control_health_and_wishes(void) {
    Job *ill[2], *flaps = job_new(2, RANKS_MPI, body_ill), *wish[2], *step[2];
    flaps->kind = 1;
    flaps->victim = 1;
    job_start(flaps);
    for (int k = 0; k < 2; k++) {
        ill[k] = job_new(3, RANKS_MPI, body_ill);
        wish[k] = job_new(3, RANKS_MPI, body_wish);
        step[k] = job_new(3, RANKS_MPI, body_slow_step);
        ill[k]->victim = wish[k]->victim = 2 * k;
        step[k]->victim = 1;
        step[k]->kind = k;
        for (Job* job : {ill[k], wish[k], step[k]}) { job_start(job); }
    }
    job_check_bad(ill[0], 5 + SLACK, "rank 0 (host h0): the link is broken; it is at step 9 in 'forward'", 0, 3, -1);
    job_check_bad(ill[1], 5 + SLACK, "rank 2 (host h2): the link is broken; it is at step 9 in 'forward'", 0, 3, -1);
    for (int k = 0; k < 2; k++) { job_check_good(wish[k], 5 + SLACK); }
    job_check_good(flaps, 8 + SLACK);
    job_check_good(step[0], 8 + SLACK);
    job_check_bad(step[1], 3 * BOUND + SLACK, "all 3 ranks are in 'a training step' of step 5|itself hangs", 0, 3, -1);
}

// ---- disagreement, misuse, garbage from a rank

static void body_disagree(Job* job, Control* c, int rank) { control_agree(c, "weights", rank == job->victim ? "digest 5678" : "digest 1234", 0); }
static void body_other_bytes(Job* job, Control* c, int rank) {
    char data[16] = "", out[16 * MAX_RANKS];
    control_all_gather(c, "sizes", data, rank == job->victim ? 8 : 16, out, 0);
}
static void body_other_kind(Job* job, Control* c, int rank) {
    if (rank == job->victim) { control_barrier(c, "step", 0); } else { control_agree(c, "step", "x", 0); }
}
static void body_garbage(Job* job, Control* c, int rank) {
    control_note(c, "forward", 5);
    if (rank == job->victim) {
        const ControlFrame frames[] = {{0xffffffff, CONTROL_BEAT}, {4, 77}, {3, CONTROL_CONTRIBUTION}, {sizeof(ControlOperation), CONTROL_CONTRIBUTION},
                                       {sizeof(ControlOperation), CONTROL_CONTRIBUTION}};
        unsigned char all[sizeof(ControlFrame) + sizeof(ControlOperation)];
        memset(all, 0xff, sizeof(all));
        memcpy(all, &frames[job->kind], sizeof(ControlFrame));
        ControlOperation twice = {"never", CONTROL_BARRIER, 0, 30};  // well formed, but this rank comes to the barrier again below
        if (job->kind == 4) { memcpy(all + sizeof(ControlFrame), &twice, sizeof(twice)); }
        send(c->links[0].fd, all, sizeof(all), MSG_NOSIGNAL);
    }
    if (rank != job->size - 1 || rank == job->victim) { control_barrier(c, "never", 0); }
    control_sleep(30);
}
static void* thread_same_name(void* arg) { control_barrier((Control*)arg, "twice", 0); return NULL; }
static void body_same_name(Job*, Control* c, int rank) {
    pthread_t thread;
    if (rank == 1) {
        CHECK(pthread_create(&thread, NULL, thread_same_name, c) == 0, "pthread_create");
        control_sleep(0.2);
        control_claim(c, 1);
        control_barrier(c, "twice", 0);
    }
    control_sleep(30);
}
static void test_control_disagreement_and_misuse(void) {
    Job* job[4];
    void (*const bodies[])(Job*, Control*, int) = {body_disagree, body_other_bytes, body_other_kind, body_same_name};
    for (int k = 0; k < 4; k++) {
        job[k] = job_new(3, RANKS_MPI, bodies[k]);
        job[k]->victim = 2;
        job_start(job[k]);
    }
    std::vector<Job*> garbage;
    for (int k = 0; k < 5; k++) {
        garbage.push_back(job_new(3, RANKS_MPI, body_garbage));
        garbage[k]->victim = 1 + k % 2;
        garbage[k]->kind = k;
        job_start(garbage[k]);
    }
    job_check_bad(job[0], 4, "disagree about 'weights'|rank 2 (host h2) has 'digest 5678'|rank 0 (host h0) and 1 more have 'digest 1234'", 0, 3, -1);
    job_check_bad(job[1], 4, "all-gather 'sizes' with|8 bytes|16 bytes", 0, 3, -1);
    job_check_bad(job[2], 4, "barrier 'step'|the agreement of this name", 0, 3, -1);
    job_check_bad(job[3], 4, "two threads of rank 1 are in the operation 'twice' at once", 1, 1, -1);
    for (Job* g : garbage) { job_check_bad(g, 4, g->victim == 1 ? "rank 1 (host h1) sent what is no message" : "rank 2 (host h2) sent what is no message", 0, 3, -1); }
}

static void test_control_alone(void) {
    Ranks r;
    RanksOptions o = {RANKS_AUTO, 0, -1, 8, "", 0, "", true};
    FileError error;
    const char* const empty[] = {NULL};
    char in[4] = "abc", out[4] = "";
    CHECK(ranks_init(&r, empty, &o, &error), "%s", error.message);
    ControlConfig config = {&r, "test", NULL, NULL, 0, 0, 0};
    Control* c = control_start(&config, &error);
    CHECK(c, "%s", error.message);
    control_note(c, "x", 1);
    control_note_wait(c, "y", 1);
    control_barrier(c, "b", 0);
    control_broadcast(c, "b", in, 4, 0);
    control_agree(c, "b", "x", 0);
    control_all_gather(c, "b", in, 4, out, 0);
    CHECK(!strcmp(out, "abc"), "'%s'", out);
    control_note_disk(c, "z", 1);
    control_progress(c);
    control_wish(c);
    CHECK(control_wished(c), "a wish");
    control_claim(c, 5);
    control_fail(c, 5);
    control_finish(c);
}

// ----------------------------------------------------------------------------
// most tests wait for something: groups of them run side by side

static void together(const Test* tests, int count) {
    std::vector<pid_t> pids;
    int failed = 0;
    for (int i = 0; i < count; i++) {
        fflush(stdout);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) { tests[i].fn(); fflush(stdout); exit(0); }
        pids.push_back(pid);
    }
    for (int i = 0; i < count; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        const bool good = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == TEST_SKIPPED);
        if (!good) { fprintf(stderr, "    %s failed\n", tests[i].name); failed++; }
    }
    CHECK(!failed, "%d of %d", failed, count);
}
#define TOGETHER(name, ...) \
    static void name(void) { static const Test tests[] = {__VA_ARGS__}; together(tests, (int)(sizeof(tests) / sizeof(tests[0]))); }

TOGETHER(test_control_basics, {"control_siphash_vectors", test_control_siphash_vectors, QUICK}, {"control_alone", test_control_alone, QUICK},
         {"control_joins_and_operates", test_control_joins_and_operates, QUICK}, {"control_two_threads", test_control_two_threads, QUICK},
         {"control_several_hosts", test_control_several_hosts, QUICK})
TOGETHER(test_control_strangers_cannot_join_stall_or_crash, {"control_strangers", test_control_strangers, QUICK}, {"control_silent_flood", test_control_silent_flood, QUICK},
         {"control_silence_is_closed", test_control_silence_is_closed, QUICK},
         {"control_listens_on_one_interface_only", test_control_listens_on_one_interface_only, QUICK})
TOGETHER(test_control_wrong_ranks_are_refused, {"control_wrong_token", test_control_wrong_token, QUICK}, {"control_missing_rank", test_control_missing_rank, QUICK},
         {"control_missing_hub", test_control_missing_hub, QUICK}, {"control_duplicate_rank", test_control_duplicate_rank, QUICK},
         {"control_other_size_or_identity", test_control_other_size_or_identity, QUICK}, {"control_hub_cannot_listen", test_control_hub_cannot_listen, QUICK})
TOGETHER(test_control_files_of_other_runs, {"control_stale_files", test_control_stale_files, QUICK}, {"control_damaged_file_is_refused", test_control_damaged_file_is_refused, QUICK},
         {"control_file_is_private_and_removed", test_control_file_is_private_and_removed, QUICK},
         {"control_two_runs_in_one_folder", test_control_two_runs_in_one_folder, QUICK})
TOGETHER(test_control_deaths, {"control_kill_everywhere", test_control_kill_everywhere, QUICK}, {"control_kill_two", test_control_kill_two, QUICK})
TOGETHER(test_control_errors, {"control_failures_that_speak", test_control_failures_that_speak, QUICK}, {"control_disagreement_and_misuse", test_control_disagreement_and_misuse, QUICK})
TOGETHER(test_control_stops_and_hangs, {"control_stop_everywhere", test_control_stop_everywhere, QUICK}, {"control_hangs", test_control_hangs, QUICK},
         {"control_files", test_control_files, QUICK}, {"control_health_and_wishes", test_control_health_and_wishes, QUICK})

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"control_basics", test_control_basics, QUICK},
        {"control_strangers_cannot_join_stall_or_crash", test_control_strangers_cannot_join_stall_or_crash, QUICK},
        {"control_wrong_ranks_are_refused", test_control_wrong_ranks_are_refused, QUICK},
        {"control_files_of_other_runs", test_control_files_of_other_runs, QUICK},
        {"control_deaths", test_control_deaths, QUICK},
        {"control_errors", test_control_errors, QUICK},
        {"control_stops_and_hangs", test_control_stops_and_hangs, QUICK},
    };
    return TEST_MAIN(tests);
}
