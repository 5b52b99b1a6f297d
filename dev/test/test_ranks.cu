/* test_ranks.cu - identity of a process from launchers' environments and options, how ranks meet, NUMA binding; host only */
#include "llmc/ranks.h"

#include "dev/test/test.h"

static RanksOptions no_options(void) {
    RanksOptions o = {RANKS_AUTO, 0, -1, 8, "", 0, "", true};
    return o;
}

// An environment in one text: "A=1 B=2".
typedef struct { char text[2048]; const char* list[64]; } Env;
static Env* env_of(const char* text) {
    static Env e;
    int n = 0;
    snprintf(e.text, sizeof(e.text), "%s", text);
    for (char* p = strtok(e.text, " "); p && n < 63; p = strtok(NULL, " ")) { e.list[n++] = p; }
    e.list[n] = NULL;
    return &e;
}

static Ranks good(const char* env, const RanksOptions* o) {
    Ranks r;
    FileError error;
    bool ok = ranks_init(&r, env_of(env)->list, o, &error);
    CHECK(ok, "'%s': %s HINT %s", env, error.message, error.hint);
    return r;
}
// The message must contain every word of `words` (separated by |), and there must be a hint.
static void bad(const char* env, const RanksOptions* o, const char* words) {
    Ranks r;
    FileError error;
    char text[512];
    CHECK(!ranks_init(&r, env_of(env)->list, o, &error), "'%s' was accepted: %s %d of %d", env, ranks_source_name(r.source), r.rank, r.size);
    CHECK(error.hint[0], "no hint: %s", error.message);
    snprintf(text, sizeof(text), "%s", words);
    for (char* w = strtok(text, "|"); w; w = strtok(NULL, "|")) { CHECK(strstr(error.message, w), "'%s' is not in: %s", w, error.message); }
}
static void same(const Ranks* r, RanksSource source, RanksContact contact, int rank, int size, int local_rank, int local_size) {
    CHECK(r->source == source && r->contact == contact && r->rank == rank && r->size == size && r->local_rank == local_rank && r->local_size == local_size,
          "got %s %s, rank %d of %d, local %d of %d", ranks_source_name(r->source), ranks_contact_name(r->contact), r->rank, r->size, r->local_rank,
          r->local_size);
}

#define OMPI "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=77"
#define TORCH "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=nodeA MASTER_PORT=29500 TORCHELASTIC_RUN_ID=run7 TORCHELASTIC_RESTART_COUNT=2"
#define SLURM "SLURM_JOB_ID=41 SLURM_STEP_ID=3 SLURM_PROCID=6 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=0 SLURM_NODEID=2 " \
              "SLURM_STEP_TASKS_PER_NODE=3(x2),1 SLURM_STEP_NODELIST=gpu[03-05]"

static void test_ranks_alone(void) {
    RanksOptions o = no_options();
    Ranks r = good("HOME=/ PATH=/bin MASTER_ADDR=left-over", &o);
    same(&r, RANKS_ALONE, RANKS_NO_CONTACT, 0, 1, 0, 1);
    CHECK(r.host[0] && !r.note[0], "host '%s', note '%s'", r.host, r.note);
    // the shell of a batch script: tasks are counted, but this process is none of them
    r = good("SLURM_JOB_ID=41 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=4(x2) SLURM_JOB_NODELIST=gpu[1-2]", &o);
    same(&r, RANKS_ALONE, RANKS_NO_CONTACT, 0, 1, 0, 1);
    r = good("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", &o);
    same(&r, RANKS_BY_SLURM, RANKS_NO_CONTACT, 0, 1, 0, 1);
    // with -pi mpi, llm.c's default, its other options mean nothing: said once
    o.contact = RANKS_MPI;
    o.num_processes = 8;
    o.process_rank = 3;
    r = good("", &o);
    same(&r, RANKS_ALONE, RANKS_NO_CONTACT, 0, 1, 0, 1);
    CHECK(strstr(r.note, "-pn 8"), "note '%s'", r.note);
}

static void test_ranks_launchers(void) {
    RanksOptions o = no_options();
    Ranks r = good(OMPI, &o);
    same(&r, RANKS_BY_OPENMPI, RANKS_MPI, 5, 8, 1, 4);
    CHECK(!strcmp(r.job, "OpenMPI 77  ") && !r.address[0], "job '%s' address '%s'", r.job, r.address);
    r = good("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", &o);
    same(&r, RANKS_BY_MPICH, RANKS_MPI, 1, 2, 1, 2);
    CHECK(!strcmp(r.address, "127.0.0.1"), "all on this host: '%s'", r.address);
    r = good("PMI_RANK=3 PMI_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2", &o);
    same(&r, RANKS_BY_MPICH, RANKS_MPI, 3, 4, 1, 2);
    r = good(TORCH, &o);
    same(&r, RANKS_BY_TORCHRUN, RANKS_TCP, 9, 16, 1, 8);
    CHECK(!strcmp(r.address, "nodeA") && r.port == 29501 && !strcmp(r.job, "torchrun run7 29500 2"), "'%s' %d '%s'", r.address, r.port, r.job);
    r = good(SLURM, &o);
    same(&r, RANKS_BY_SLURM, RANKS_TCP, 6, 7, 0, 1);
    CHECK(!strcmp(r.address, "gpu03") && r.port >= 20000 && r.port < 30000 && !strcmp(r.job, "slurm 41 3 "), "'%s' %d '%s'", r.address, r.port, r.job);
    Ranks other = good("SLURM_JOB_ID=42 SLURM_STEP_ID=3 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2", &o);
    same(&other, RANKS_BY_SLURM, RANKS_TCP, 0, 2, 0, 2);
    CHECK(!strcmp(other.address, "127.0.0.1") && other.port != r.port, "'%s' %d %d", other.address, other.port, r.port);
}

// slurm (or a batch shell) may be outside of mpirun and torchrun; inner launchers that agree are one
static void test_ranks_nested(void) {
    RanksOptions o = no_options();
    Ranks r = good(SLURM " " OMPI, &o);
    same(&r, RANKS_BY_OPENMPI, RANKS_MPI, 5, 8, 1, 4);
    r = good(SLURM " " TORCH, &o);
    same(&r, RANKS_BY_TORCHRUN, RANKS_TCP, 9, 16, 1, 8);
    r = good(SLURM " PMI_RANK=6 PMI_SIZE=7", &o);  // srun --mpi=pmi2
    same(&r, RANKS_BY_SLURM, RANKS_TCP, 6, 7, 0, 1);
    r = good(OMPI " RANK=5 WORLD_SIZE=8", &o);  // a script that tells PyTorch what mpirun says
    same(&r, RANKS_BY_OPENMPI, RANKS_MPI, 5, 8, 1, 4);
    bad(OMPI " " TORCH, &o, "disagree|OMPI_COMM_WORLD_RANK=5|RANK=9|WORLD_SIZE=16");
    bad(OMPI " PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", &o, "disagree|PMI_RANK=1");
    o.contact = RANKS_TCP;
    o.server_ip = "10.1.2.3";
    o.num_processes = 16;
    o.process_rank = 12;
    o.gpus_per_node = 8;
    r = good(SLURM, &o);  // a wrapper under srun that starts the ranks of its node
    same(&r, RANKS_BY_OPTIONS, RANKS_TCP, 12, 16, 4, 8);
    bad(OMPI, &o, "-pn 16|OpenMPI|5 of 8");
    o.num_processes = 8;
    o.process_rank = 5;
    r = good(OMPI, &o);
    same(&r, RANKS_BY_OPENMPI, RANKS_TCP, 5, 8, 1, 4);
}

static void test_ranks_options(void) {
    RanksOptions o = no_options();
    o.contact = RANKS_TCP;
    o.num_processes = 11;
    o.process_rank = 9;
    o.gpus_per_node = 4;
    bad("", &o, "-pi tcp|address");
    o.server_ip = "10.0.0.1";
    Ranks r = good("", &o);
    same(&r, RANKS_BY_OPTIONS, RANKS_TCP, 9, 11, 1, 3);
    CHECK(!strcmp(r.address, "10.0.0.1") && r.port == 12345 && !r.job[0], "'%s' %d '%s'", r.address, r.port, r.job);
    o.server_port = 4321;
    r = good("", &o);
    CHECK(r.port == 4321, "%d", r.port);
    o.contact = RANKS_FILE;
    bad("", &o, "-pi fs|folder");
    o.fs_path = "/shared";
    r = good("", &o);
    same(&r, RANKS_BY_OPTIONS, RANKS_FILE, 9, 11, 1, 3);
    o.contact = RANKS_AUTO;
    r = good("", &o);
    same(&r, RANKS_BY_OPTIONS, RANKS_TCP, 9, 11, 1, 3);  // both given: the address
    o.server_ip = o.fs_path = "";
    bad("", &o, "-pn 11 -pr 9|find each other");
    o.server_ip = "10.0.0.1";
    o.process_rank = 11;
    bad("", &o, "-pr 11|-pn 11");
    o.process_rank = -1;
    bad("", &o, "-pr");
    o.process_rank = 2;
    o.num_processes = 0;
    bad("", &o, "-pn");
    // the launcher says who, -pi how
    o = no_options();
    o.contact = RANKS_FILE;
    o.fs_path = "/shared";
    r = good(SLURM, &o);
    same(&r, RANKS_BY_SLURM, RANKS_FILE, 6, 7, 0, 1);
    CHECK(!r.address[0], "rank 0 looks for its own address: '%s'", r.address);
    o.contact = RANKS_MPI;
    r = good(SLURM " PMI_RANK=6 PMI_SIZE=7", &o);
    same(&r, RANKS_BY_SLURM, RANKS_MPI, 6, 7, 0, 1);
    bad(TORCH, &o, "-pi mpi|torchrun");
    o.has_mpi = false;
    bad(OMPI, &o, "-pi mpi|without MPI");
    o.contact = RANKS_AUTO;
    o.fs_path = "";
    bad(OMPI, &o, "address of rank 0|OpenMPI");
    r = good("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2", &o);
    same(&r, RANKS_BY_OPENMPI, RANKS_TCP, 0, 2, 0, 2);
    CHECK(!strcmp(r.address, "127.0.0.1") && r.port == 12345, "'%s' %d", r.address, r.port);
    static char longer[5000];
    memset(longer, 'x', sizeof(longer) - 1);
    o.fs_path = longer;
    bad(OMPI, &o, "too long");
}

static void test_ranks_wrong_environment(void) {
    RanksOptions o = no_options();
    static const char* const cases[][2] = {
        {"RANK=1", "WORLD_SIZE is missing|RANK=1"},
        {"WORLD_SIZE=4", "RANK is missing|WORLD_SIZE=4"},
        {"LOCAL_RANK=0", "WORLD_SIZE is missing|LOCAL_RANK=0"},
        {"RANK=1 WORLD_SIZE=4", "LOCAL_WORLD_SIZE is missing"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4", "LOCAL_RANK is missing"},
        {"RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "RANK is '4'|WORLD_SIZE is '4'"},
        {"RANK=x WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "RANK is 'x'"},
        {"RANK=-1 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "RANK is '-1'"},
        {"RANK=1 WORLD_SIZE=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "WORLD_SIZE is '0'"},
        {"RANK=1 WORLD_SIZE=4x LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "WORLD_SIZE is '4x'"},
        {"RANK= WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "RANK is ''"},
        {"RANK=1 WORLD_SIZE=99999999999999999999 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "WORLD_SIZE is '99999999999999999999'"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK is '2'"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=5", "LOCAL_WORLD_SIZE is '5'"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR is missing"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=http", "MASTER_PORT is 'http'"},
        {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is missing"},
        {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is missing"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE is missing"},
        {"PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", "PMI_RANK is missing"},
        {"SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID is missing"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=4", "SLURM_PROCID is '4'"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3", "SLURM_LOCALID is missing"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1", "SLURM_NODEID is missing"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(y", "SLURM_STEP_TASKS_PER_NODE is '2(y'"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1", "SLURM_TASKS_PER_NODE is '(missing)'"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_STEP_TASKS_PER_NODE"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=a[1", "SLURM_STEP_NODELIST is 'a[1'"},
        {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2)", "address of rank 0"},
    };
    for (const auto& c : cases) { bad(c[0], &o, c[1]); }
}

static void test_ranks_slurm_lists(void) {
    static const struct { const char* list; const char* host; } hosts[] = {
        {"a", "a"}, {"gpu7,gpu9", "gpu7"}, {"gpu[03-05,7],x", "gpu03"}, {"gpu[9]", "gpu9"}, {"r[1-2]n[10-12]", "r1n10"}, {"n[001,005]-ib.site", "n001-ib.site"},
        {"", NULL}, {"a[1-", NULL}, {"a b", NULL}, {",a", NULL},
    };
    for (const auto& h : hosts) {
        char host[64];
        bool ok = ranks_slurm_first_host(h.list, host, sizeof(host));
        CHECK(ok == (h.host != NULL) && (!ok || !strcmp(host, h.host)), "'%s' -> '%s'", h.list, ok ? host : "(refused)");
    }
    static const struct { const char* text; int node, tasks; } tasks[] = {
        {"4", 0, 4}, {"4", 1, 0}, {"4(x2),2", 1, 4}, {"4(x2),2", 2, 2}, {"4(x2),2", 3, 0}, {"1,2,3", 1, 2}, {"x", 0, 0}, {"2(x", 0, 0}, {"", 0, 0}, {"0", 0, 0}, {"2;3", 1, 0},
    };
    for (const auto& t : tasks) { CHECK(ranks_slurm_tasks(t.text, t.node) == t.tasks, "'%s' node %d: %d", t.text, t.node, ranks_slurm_tasks(t.text, t.node)); }
}

static void test_ranks_mpi_must_agree(void) {
    RanksOptions o = no_options();
    FileError error;
    Ranks r = good(OMPI, &o);
    CHECK(ranks_check_mpi(&r, 5, 8, &error), "%s", error.message);
    CHECK(!ranks_check_mpi(&r, 0, 1, &error) && strstr(error.message, "5 of 8") && strstr(error.message, "0 of 1"), "%s", error.message);
    o.contact = RANKS_MPI;
    bad(SLURM, &o, "PMI_ or PMIX_|srun");  // OpenMPI's MPI_Init would end the program, MPICH's would make it rank 0 of 1
    r = good(SLURM " PMIX_RANK=6", &o);
    CHECK(!ranks_check_mpi(&r, 0, 1, &error) && strstr(error.hint, "pmix"), "%s", error.hint);
}

// A made-up /sys with a device 0000:3b:00.0 and folders of the nodes 0, 1 and 4095.
typedef struct { char root[32]; std::string device, nodes; } Sys;
static void sys_init(Sys* sys) {
    int code = 0;
    snprintf(sys->root, sizeof(sys->root), "/tmp/test_ranks.XXXXXX");
    CHECK(mkdtemp(sys->root), "mkdtemp");
    sys->device = std::string(sys->root) + "/bus/pci/devices/0000:3b:00.0";
    sys->nodes = std::string(sys->root) + "/devices/system/node";
    test_shell("mkdir -p " + sys->device + " " + sys->nodes + "/node-1 " + sys->nodes + "/node0 " + sys->nodes + "/node1 " + sys->nodes + "/node4095", &code);
    CHECK(code == 0, "mkdir");
}
static void sys_free(const Sys* sys) {
    int code = 0;
    test_shell(std::string("rm -r ") + sys->root, &code);
}
static cpu_set_t cpus_now(void) {
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity");
    return set;
}
static void cpus_set(const cpu_set_t* set) { CHECK(sched_setaffinity(0, sizeof(*set), set) == 0, "sched_setaffinity"); }

static void test_ranks_numa_unknown(void) {
    Sys sys;
    int node = 0;
    const cpu_set_t before = cpus_now();
    sys_init(&sys);
    CHECK(ranks_bind_numa(sys.root, "0000:3b:00.0", &node) == 0 && node == -1, "no file numa_node");
    test_write_file(sys.nodes + "/node-1/cpulist", "0-4095\n");
    test_write_file(sys.nodes + "/node1/cpulist", "0-4095\n");
    // no node, as on machines of one; no list of that node; out of range; nonsense
    static const char* const values[] = {"-1\n", "0\n", "7\n", "4096\n", "99999999999999999999\n", "x\n", "1x\n", "\n", ""};
    for (const char* value : values) {
        test_write_file(sys.device + "/numa_node", value);
        CHECK(ranks_bind_numa(sys.root, "0000:3b:00.0", &node) == 0 && node == -1, "numa_node '%s': node %d", value, node);
    }
    test_write_file(sys.device + "/numa_node", "1\n");
    static const char* const lists[] = {"4000-4005,70000-99999999999999999999\n", "", "\n", " \n", "none\n", "-1\n", ",0-4095\n", "5-3\n"};  // others' CPUs; a node of memory alone; nonsense
    for (const char* list : lists) {
        test_write_file(sys.nodes + "/node1/cpulist", list);
        CHECK(ranks_bind_numa(sys.root, "0000:3b:00.0", &node) == 0 && node == -1, "cpulist '%s': node %d", list, node);
    }
    test_write_file(sys.nodes + "/node1/cpulist", "0-4095\n");
    static const char* const names[] = {"0000:3c:00.0", "", ".", "..", "../../etc/passwd", "0000:3b:00.0/", "0000:3b:00.0 ", "00000000:00000000:3b:00.0:0000:3b:00.0"};
    for (const char* name : names) { CHECK(ranks_bind_numa(sys.root, name, &node) == 0 && node == -1, "device '%s': node %d", name, node); }
    CHECK(ranks_bind_numa("/no/such/folder", "0000:3b:00.0", &node) == 0, "no /sys");
    const cpu_set_t after = cpus_now();
    CHECK(CPU_EQUAL(&before, &after), "the CPUs were changed");
    sys_free(&sys);
}

// The CPUs that the list and the process have in common, whatever form the list has; never one that the process did not have.
static void test_ranks_numa_binds(void) {
    Sys sys;
    int node = 0;
    const cpu_set_t before = cpus_now();
    sys_init(&sys);
    int first = 0, last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(first, &before)) { first++; }
    while (!CPU_ISSET(last, &before)) { last--; }
    const int count = CPU_COUNT(&before);
    cpu_set_t only_first;
    CPU_ZERO(&only_first);
    CPU_SET(first, &only_first);
    test_write_file(sys.device + "/numa_node", "4095\n");
    const std::string file = sys.nodes + "/node4095/cpulist";
    const struct { char list[64]; int due; } cases[] = {
        {"%d\n", 1}, {"%d", 1}, {"%d-%d,4000-4005\n", 1}, {"4000-4005,%d\n", 1}, {"3000,%d,3500-3600,%d,4000\n", 1}, {"0-4095\n", count}, {"0-16383\n", count}, {"0-99999999\n", count},
    };
    for (const auto& c : cases) {
        char list[128];
        snprintf(list, sizeof(list), c.list, first, first);
        test_write_file(file, list);
        cpus_set(&before);
        CHECK(ranks_bind_numa(sys.root, "0000:3b:00.0", &node) == c.due && node == 4095, "'%s': node %d", list, node);
        const cpu_set_t after = cpus_now();
        CHECK(c.due == 1 ? CPU_EQUAL(&after, &only_first) : CPU_EQUAL(&after, &before), "'%s': %d CPUs", list, CPU_COUNT(&after));
    }
    cpus_set(&only_first);  // by the launcher: the others of the node are not for this process
    CHECK(ranks_bind_numa(sys.root, "0000:3b:00.0", &node) == 1, "bound already");
    cpu_set_t after = cpus_now();
    CHECK(CPU_EQUAL(&after, &only_first), "bound already: %d CPUs", CPU_COUNT(&after));
    if (last > first) {
        char list[32];
        snprintf(list, sizeof(list), "%d\n", last);
        test_write_file(file, list);
        CHECK(ranks_bind_numa(sys.root, "0000:3b:00.0", &node) == 0 && node == -1, "a CPU that is not this process': node %d", node);
        after = cpus_now();
        CHECK(CPU_EQUAL(&after, &only_first), "a CPU that is not this process'");
    }
    test_write_file(file, "0-4095\n");
    static const char* const names[] = {"0000:3b:00.0", "00000000:3B:00.0", "0000:3B:00.0"};  // as CUDA, NVML and lspci write it
    for (const char* name : names) {
        cpus_set(&before);
        CHECK(ranks_bind_numa(sys.root, name, &node) == count && node == 4095, "'%s': node %d", name, node);
    }
    cpus_set(&before);
    sys_free(&sys);
}

int main(int argc, char** argv) {
    static const Test tests[] = {
        {"ranks_alone", test_ranks_alone, QUICK},
        {"ranks_launchers", test_ranks_launchers, QUICK},
        {"ranks_nested", test_ranks_nested, QUICK},
        {"ranks_options", test_ranks_options, QUICK},
        {"ranks_wrong_environment", test_ranks_wrong_environment, QUICK},
        {"ranks_slurm_lists", test_ranks_slurm_lists, QUICK},
        {"ranks_mpi_must_agree", test_ranks_mpi_must_agree, QUICK},
        {"ranks_numa_unknown", test_ranks_numa_unknown, QUICK},
        {"ranks_numa_binds", test_ranks_numa_binds, QUICK},
    };
    return TEST_MAIN(tests);
}
