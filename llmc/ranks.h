/* ranks.h - who this process is among the processes of a job, how they first meet, and the CPUs near its GPU
 *
 * What:      ranks_init reads the environment that the launcher made (OpenMPI, MPICH, slurm's srun, torchrun) or llm.c's options -pn -pr -pg.
 * Who wins:  a launcher that started this very process: -pn and -pr with -pi tcp or fs, OpenMPI, MPICH (PMI), torchrun. Two of them that disagree are an
 *            error. slurm comes last and is never compared: it may be the outer launcher that started mpirun or torchrun on each node. A batch script's
 *            shell has SLURM_PROCID and SLURM_NTASKS too, but no SLURM_STEP_NUM_TASKS: it is no task of a step, and the process is alone.
 * Meeting:   RANKS_MPI: rank 0 tells its address by an MPI broadcast. RANKS_TCP: the address is --server-ip, else MASTER_ADDR, else the first host of
 *            slurm's node list; 127.0.0.1 if all are on this host and no address was given. The port is --server-port, else MASTER_PORT + 1 (torchrun's
 *            own store listens on MASTER_PORT), else 20000 + hash(job) % 10000 where the launcher gives the job a name (two jobs on a node do not
 *            meet; below the ports that systems hand out), else 12345 as in llm.c. RANKS_FILE: rank 0 writes a file into --fs-path.
 *            Without -pi: OpenMPI and MPICH meet by MPI (if this build has it), options by what was given, the others by TCP.
 * Errors:    false with a FileError that names the variable, its value and a hint. Nothing is guessed from half an environment.
 * Memory:    no allocation, no statics; the environment is an argument (environ, or a test's own).
 * Tests:     dev/test/test_ranks.cu */
#ifndef LLMC_RANKS_H
#define LLMC_RANKS_H

#include <ctype.h>
#include <limits.h>
#include <sched.h>

#include "llmc/files.h"
#include "llmc/xxh64.h"

typedef enum { RANKS_ALONE, RANKS_BY_OPENMPI, RANKS_BY_MPICH, RANKS_BY_TORCHRUN, RANKS_BY_SLURM, RANKS_BY_OPTIONS } RanksSource;
typedef enum { RANKS_AUTO, RANKS_MPI, RANKS_TCP, RANKS_FILE, RANKS_NO_CONTACT } RanksContact;  // how processes first meet; AUTO: only in the options

typedef struct {
    RanksContact contact;       // -pi, RANKS_AUTO if it was not given
    int num_processes;          // -pn, 0: not given
    int process_rank;           // -pr, -1: not given
    int gpus_per_node;          // -pg
    const char* server_ip;      // --server-ip, "": not given
    int server_port;            // --server-port, 0: not given
    const char* fs_path;        // --fs-path, "": not given
    bool has_mpi;               // this build can use MPI
} RanksOptions;

typedef struct {
    int rank, size;                 // 0 <= rank < size
    int local_rank, local_size;     // among the processes on this host
    RanksSource source;
    RanksContact contact;           // RANKS_NO_CONTACT if size is 1
    char host[64];                  // of this process
    char address[256];              // RANKS_TCP: name or number of rank 0's host. RANKS_MPI: what rank 0 binds, "": its first address that others reach
    int port;                       // RANKS_TCP only
    char fs_path[FILE_PATH_MAX];    // RANKS_FILE only
    char job[192];                  // name that the launcher gave to this job, the same on all ranks, "" if it gave none. Not a secret.
    char note[512];                 // a warning to be printed, "" if there is none
} Ranks;

static inline const char* ranks_source_name(RanksSource source) {
    static const char* const names[] = {"alone", "OpenMPI", "MPICH", "torchrun", "slurm", "options"};
    return names[source];
}
static inline const char* ranks_contact_name(RanksContact contact) {
    static const char* const names[] = {"auto", "mpi", "tcp", "fs", "none"};
    return names[contact];
}

// ----------------------------------------------------------------------------
// the environment

// Value of a variable in a list of "NAME=value" that ends with NULL; NULL if it is not there.
static inline const char* ranks_env(const char* const* env, const char* name) {
    size_t length = strlen(name);
    for (; *env; env++) {
        if (!strncmp(*env, name, length) && (*env)[length] == '=') { return *env + length + 1; }
    }
    return NULL;
}

// Is there a variable whose name begins so?
static inline bool ranks_env_any(const char* const* env, const char* begin) {
    for (; *env; env++) {
        if (!strncmp(*env, begin, strlen(begin))) { return true; }
    }
    return false;
}

// A variable that must be there and be a number from min to max. because: why it must.
static inline bool ranks_env_int(const char* const* env, const char* name, const char* because, int min, int max, int* value, FileError* error) {
    const char* text = ranks_env(env, name);
    if (!text) {
        return file_error(error, 0, "let the launcher (mpirun, srun, torchrun) set all of its variables, or unset those that an earlier one left behind",
                          "the environment variable %s is missing, but %s", name, because);
    }
    char* end = NULL;
    errno = 0;
    long x = strtol(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || x < min || x > max) {
        return file_error(error, 0, "start all processes by one launcher (mpirun, srun, torchrun), or unset the variable if this process is alone",
                          "the environment variable %s is '%.64s', not a number from %d to %d", name, text, min, max);
    }
    *value = (int)x;
    return true;
}

// What one launcher says. Variables that are NULL are not set by it.
typedef struct {
    RanksSource source;
    const char *rank, *size, *local_rank, *local_size;  // names of variables
} RanksVariables;

// Reads rank and size of a launcher: *found if its variables are there, an error if only some of them are.
static inline bool ranks_read_pair(const char* const* env, const RanksVariables* v, int* rank, int* size, bool* found, FileError* error) {
    char because[256];
    const char* const names[] = {v->rank, v->size, v->local_rank, v->local_size};
    const char* value = NULL;
    *found = false;
    for (int i = 0; i < 4 && !value; i++) {
        value = names[i] ? ranks_env(env, names[i]) : NULL;
        if (value) { snprintf(because, sizeof(because), "%s=%.64s is set", names[i], value); }
    }
    if (!value) { return true; }
    if (!ranks_env_int(env, v->size, because, 1, 1 << 20, size, error)) { return false; }
    if (!ranks_env_int(env, v->rank, because, 0, INT_MAX, rank, error)) { return false; }
    if (*rank >= *size) {
        return file_error(error, 0, "start all processes by one launcher (mpirun, srun, torchrun); ranks count from 0",
                          "the environment variable %s is '%s', but %s is '%s': a rank must be less than the number of processes", v->rank,
                          ranks_env(env, v->rank), v->size, ranks_env(env, v->size));
    }
    *found = true;
    return true;
}

// "4(x2),2": tasks of each node, run-length coded. Tasks of this node; 0 if the text is something else.
static inline int ranks_slurm_tasks(const char* text, int node) {
    while (*text) {
        char* end = NULL;
        long tasks = strtol(text, &end, 10), repeat = 1;
        if (end == text || tasks < 1 || tasks > 1 << 20) { return 0; }
        if (!strncmp(end, "(x", 2)) {
            const char* p = end + 2;
            repeat = strtol(p, &end, 10);
            if (end == p || *end != ')' || repeat < 1) { return 0; }
            end++;
        }
        if (node < repeat) { return (int)tasks; }
        node -= (int)repeat;
        if (*end && *end != ',') { return 0; }
        text = *end ? end + 1 : end;
    }
    return 0;
}

// First host of a node list: "gpu[03-05,7],login" -> "gpu03". False if the text has no such form.
static inline bool ranks_slurm_first_host(const char* list, char* host, size_t capacity) {
    size_t n = 0;
    bool inside = false, skip = false;  // in brackets; after the first number of them
    for (; *list && (inside || *list != ','); list++) {
        if (*list == '[' && !inside) { inside = true; skip = false; continue; }
        if (*list == ']' && inside) { inside = false; continue; }
        if (inside && (*list == ',' || *list == '-')) { skip = true; }
        if (inside && skip) { continue; }
        if ((!isalnum((unsigned char)*list) && !strchr("-._", *list)) || n + 1 >= capacity) { return false; }
        host[n++] = *list;
    }
    host[n] = 0;
    return n > 0 && !inside;
}

// ----------------------------------------------------------------------------
// who and where

static inline bool ranks_init_slurm(Ranks* r, const char* const* env, FileError* error) {
    const RanksVariables v = {RANKS_BY_SLURM, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, NULL};
    bool found;
    if (!ranks_env(env, "SLURM_STEP_NUM_TASKS")) { return true; }
    if (!ranks_read_pair(env, &v, &r->rank, &r->size, &found, error)) { return false; }
    r->source = RANKS_BY_SLURM;
    if (r->size == 1) { return true; }
    const char* because = "SLURM_STEP_NUM_TASKS says that this is a task of a step";
    int node = 0;
    if (!ranks_env_int(env, "SLURM_LOCALID", because, 0, r->size - 1, &r->local_rank, error)) { return false; }
    if (!ranks_env_int(env, "SLURM_NODEID", because, 0, r->size - 1, &node, error)) { return false; }
    const char* name = ranks_env(env, "SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
    const char* tasks = ranks_env(env, name);
    r->local_size = tasks ? ranks_slurm_tasks(tasks, node) : 0;
    if (r->local_size <= r->local_rank || r->local_size > r->size) {
        return file_error(error, 0, "start the processes by srun, which sets these variables", "the environment variable %s is '%.64s': it must give the "
                          "number of tasks of node %d (SLURM_NODEID), more than SLURM_LOCALID=%d and at most SLURM_STEP_NUM_TASKS=%d", name,
                          tasks ? tasks : "(missing)", node, r->local_rank, r->size);
    }
    return true;
}

// Identity by the inner launchers, in the order of the table; each other one that is there must say the same.
static inline bool ranks_init_launcher(Ranks* r, const char* const* env, FileError* error) {
    const bool hydra = ranks_env(env, "MPI_LOCALRANKID");
    const RanksVariables launchers[] = {
        {RANKS_BY_OPENMPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {RANKS_BY_MPICH, "PMI_RANK", "PMI_SIZE", hydra ? "MPI_LOCALRANKID" : "MV2_COMM_WORLD_LOCAL_RANK",
         hydra ? "MPI_LOCALNRANKS" : "MV2_COMM_WORLD_LOCAL_SIZE"},
        {RANKS_BY_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    };
    const bool slurm_pmi = ranks_env(env, "SLURM_STEP_NUM_TASKS") && !ranks_env(env, launchers[1].local_rank);  // srun --mpi=pmi2 sets PMI_RANK too
    const RanksVariables* from = NULL;
    for (const RanksVariables& v : launchers) {
        if (v.source == RANKS_BY_MPICH && slurm_pmi) { continue; }
        int rank = 0, size = 1;
        bool found;
        if (!ranks_read_pair(env, &v, &rank, &size, &found, error)) { return false; }
        if (!found) { continue; }
        if (from) {
            if (rank == r->rank && size == r->size) { continue; }
            return file_error(error, 0, "unset the variables of the launcher that is not meant (in the shell: env -u NAME ...), or start by one launcher only",
                              "two launchers disagree: %s says %s=%d %s=%d, %s says %s=%d %s=%d", ranks_source_name(r->source), from->rank, r->rank,
                              from->size, r->size, ranks_source_name(v.source), v.rank, rank, v.size, size);
        }
        from = &v;
        r->rank = rank;
        r->size = size;
        r->source = v.source;
    }
    if (!from) { return ranks_init_slurm(r, env, error); }
    char because[128];
    snprintf(because, sizeof(because), "%s=%d is set", from->size, r->size);
    if (!ranks_env_int(env, from->local_size, because, 1, r->size, &r->local_size, error)) { return false; }
    return ranks_env_int(env, from->local_rank, because, 0, r->local_size - 1, &r->local_rank, error);
}

// -pn and -pr with -pi tcp or fs: as llm.c reads them.
static inline bool ranks_init_options(Ranks* r, const RanksOptions* o, FileError* error) {
    const char* hint = "give -pn (processes), -pr (this one's number, from 0) and -pg (GPUs per machine), or start by mpirun, srun or torchrun";
    if (r->source == RANKS_BY_SLURM && o->num_processes > 0 && o->process_rank >= 0) { r->source = RANKS_ALONE; }  // the outer launcher
    if (r->source != RANKS_ALONE) {
        if ((o->num_processes > 0 && o->num_processes != r->size) || (o->process_rank >= 0 && o->process_rank != r->rank)) {
            return file_error(error, 0, "leave -pn and -pr out: the launcher says it", "-pn %d -pr %d, but %s says that this is process %d of %d",
                              o->num_processes > 0 ? o->num_processes : r->size, o->process_rank >= 0 ? o->process_rank : r->rank,
                              ranks_source_name(r->source), r->rank, r->size);
        }
        return true;
    }
    if (o->num_processes <= 1 && o->process_rank <= 0) { return true; }
    if (o->num_processes <= 0 || o->process_rank < 0) {
        return file_error(error, 0, hint, "%s is missing: the processes are numbered by the options, since no launcher's variables are in the environment",
                          o->num_processes <= 0 ? "-pn (--num-processes)" : "-pr (--process-rank)");
    }
    if (o->process_rank >= o->num_processes) {
        return file_error(error, 0, hint, "-pr %d, but -pn %d: a rank must be less than the number of processes", o->process_rank, o->num_processes);
    }
    if (o->gpus_per_node < 1) { return file_error(error, 0, hint, "-pg %d: a machine has at least one process", o->gpus_per_node); }
    r->source = RANKS_BY_OPTIONS;
    r->rank = o->process_rank;
    r->size = o->num_processes;
    int first = r->rank - r->rank % o->gpus_per_node;
    r->local_rank = r->rank - first;
    r->local_size = r->size - first < o->gpus_per_node ? r->size - first : o->gpus_per_node;
    return true;
}

// The launcher's name of this job.
static inline void ranks_init_job(Ranks* r, const char* const* env) {
    const char* id = NULL;
    const char *more = "", *count = "";
    if (r->source == RANKS_BY_TORCHRUN) {
        id = ranks_env(env, "TORCHELASTIC_RUN_ID");
        more = ranks_env(env, "MASTER_PORT");
        count = ranks_env(env, "TORCHELASTIC_RESTART_COUNT");
    } else if (r->source == RANKS_BY_OPENMPI) {
        id = ranks_env(env, "PMIX_NAMESPACE");
    } else if (r->source == RANKS_BY_MPICH) {
        id = ranks_env(env, "PMI_JOBID");
    } else if (r->source == RANKS_BY_SLURM) {
        id = ranks_env(env, "SLURM_JOB_ID");
        more = ranks_env(env, "SLURM_STEP_ID");
        count = ranks_env(env, "SLURM_RESTART_COUNT");
    }
    if (id) {
        snprintf(r->job, sizeof(r->job), "%s %.64s %.32s %.32s", ranks_source_name(r->source), id, more ? more : "", count ? count : "");
    }
}

static inline bool ranks_init_tcp(Ranks* r, const char* const* env, const RanksOptions* o, FileError* error) {
    const char* hint = "give the address of rank 0's host: --server-ip 10.0.0.1";
    const char* master = r->source == RANKS_BY_TORCHRUN ? ranks_env(env, "MASTER_ADDR") : NULL;
    const char* nodes_name = ranks_env(env, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char* nodes = r->source == RANKS_BY_SLURM ? ranks_env(env, nodes_name) : NULL;
    if (o->server_ip[0]) {
        snprintf(r->address, sizeof(r->address), "%s", o->server_ip);
    } else if (r->local_size == r->size) {
        snprintf(r->address, sizeof(r->address), "127.0.0.1");
    } else if (master && master[0]) {
        snprintf(r->address, sizeof(r->address), "%s", master);
    } else if (nodes) {
        if (!ranks_slurm_first_host(nodes, r->address, sizeof(r->address))) {
            return file_error(error, 0, hint, "the environment variable %s is '%.64s': no list of host names", nodes_name, nodes);
        }
    } else {
        return file_error(error, 0, hint, "%d processes on several hosts are to meet by TCP (started by: %s), but the address of rank 0 is not known%s",
                          r->size, ranks_source_name(r->source), r->source == RANKS_BY_TORCHRUN ? ": the environment variable MASTER_ADDR is missing" : "");
    }
    r->port = o->server_port;
    if (r->port == 0 && r->source == RANKS_BY_TORCHRUN && ranks_env(env, "MASTER_PORT")) {
        if (!ranks_env_int(env, "MASTER_PORT", "MASTER_ADDR is set", 1, 65534, &r->port, error)) { return false; }
        r->port++;
    }
    if (r->port == 0) { r->port = r->job[0] ? 20000 + (int)(xxh64(r->job, strlen(r->job), 0) % 10000) : 12345; }
    return true;
}

static inline bool ranks_init_contact(Ranks* r, const char* const* env, const RanksOptions* o, FileError* error) {
    bool by_mpi = r->source == RANKS_BY_OPENMPI || r->source == RANKS_BY_MPICH;
    r->contact = o->contact;
    if (r->contact == RANKS_AUTO) {
        r->contact = by_mpi && o->has_mpi ? RANKS_MPI : o->fs_path[0] && !o->server_ip[0] ? RANKS_FILE : RANKS_TCP;
        if (r->source == RANKS_BY_OPTIONS && !o->server_ip[0] && !o->fs_path[0]) {
            return file_error(error, 0, "add -pi tcp -ps ADDRESS-OF-RANK-0, or -pi fs -pf SHARED-FOLDER, or start by mpirun, srun or torchrun",
                              "-pn %d -pr %d, but not how the processes find each other", r->size, r->rank);
        }
    }
    if (r->contact == RANKS_MPI) {
        if (!o->has_mpi) {
            return file_error(error, 0, "use -pi tcp or -pi fs, or build with MPI", "-pi mpi, but this program was built without MPI");
        }
        if (!by_mpi && r->source != RANKS_BY_SLURM) {
            return file_error(error, 0, "start by mpirun, or leave -pi out", "-pi mpi, but the processes were started by %s, not by MPI",
                              ranks_source_name(r->source));
        }
        if (r->source == RANKS_BY_SLURM && !ranks_env_any(env, "PMI")) {  // MPI_Init would end the program, or find itself alone
            return file_error(error, 0, "start by srun --mpi=pmix (srun --mpi=list shows what there is), or use -pi tcp or -pi fs",
                              "-pi mpi, but srun has started the processes without MPI: no PMI_ or PMIX_ variable is in the environment");
        }
        snprintf(r->address, sizeof(r->address), "%s", o->server_ip[0] ? o->server_ip : r->local_size == r->size ? "127.0.0.1" : "");
        return true;
    }
    if (r->contact == RANKS_FILE) {
        if (!o->fs_path[0]) {
            return file_error(error, 0, "add -pf FOLDER (--fs-path), a folder that all processes see", "-pi fs, but the folder is not given");
        }
        snprintf(r->fs_path, sizeof(r->fs_path), "%s", o->fs_path);
        snprintf(r->address, sizeof(r->address), "%s", o->server_ip[0] ? o->server_ip : r->local_size == r->size ? "127.0.0.1" : "");
        return true;
    }
    if (r->source == RANKS_BY_OPTIONS && !o->server_ip[0]) {
        return file_error(error, 0, "add -ps ADDRESS (--server-ip) of rank 0's host; 127.0.0.1 if all are on this one", "-pi tcp, but the address is not given");
    }
    return ranks_init_tcp(r, env, o, error);
}

// Fills *r. env: the process' environment (environ). False if it contradicts itself, the options or this build.
static inline bool ranks_init(Ranks* r, const char* const* env, const RanksOptions* o, FileError* error) {
    memset(r, 0, sizeof(*r));
    r->size = r->local_size = 1;
    if (gethostname(r->host, sizeof(r->host)) != 0 || !r->host[0]) { snprintf(r->host, sizeof(r->host), "unknown"); }
    r->host[sizeof(r->host) - 1] = 0;
    if (strlen(o->server_ip) >= sizeof(r->address) || strlen(o->fs_path) >= sizeof(r->fs_path) - 64) {
        return file_error(error, 0, "choose a shorter one", "--server-ip has %zu bytes and --fs-path %zu: too long", strlen(o->server_ip), strlen(o->fs_path));
    }
    if (!ranks_init_launcher(r, env, error)) { return false; }
    if (o->contact != RANKS_MPI) {  // as in llm.c, where MPI says these things
        if (!ranks_init_options(r, o, error)) { return false; }
    } else if (o->num_processes > 1 && o->num_processes != r->size) {
        snprintf(r->note, sizeof(r->note), "-pn %d is ignored: with -pi mpi the launcher counts the processes (%s: %d)", o->num_processes,
                 ranks_source_name(r->source), r->size);
    }
    ranks_init_job(r, env);
    if (r->size == 1) { r->contact = RANKS_NO_CONTACT; return true; }
    return ranks_init_contact(r, env, o, error);
}

// Does MPI, once it is initialized, say the same? (A program that srun starts without MPI's help is rank 0 of 1 to MPI.)
static inline bool ranks_check_mpi(const Ranks* r, int mpi_rank, int mpi_size, FileError* error) {
    if (r->rank == mpi_rank && r->size == mpi_size) { return true; }
    return file_error(error, 0, r->source == RANKS_BY_SLURM ? "start by srun --mpi=pmix, or use -pi tcp" : "use the mpirun of the MPI that this program "
                      "was built with (make doctor shows it), or -pi tcp", "%s says that this is process %d of %d, MPI says %d of %d",
                      ranks_source_name(r->source), r->rank, r->size, mpi_rank, mpi_size);
}

// ----------------------------------------------------------------------------
// NUMA: the loader, the logger and the CUDA driver of a rank should run beside its GPU

static inline bool ranks_read_line(const char* path, char* line, int capacity) {
    FILE* f = fopen(path, "r");
    bool good = f && fgets(line, capacity, f);
    if (f) { fclose(f); }
    if (good) { line[strcspn(line, "\n")] = 0; }
    return good;
}

// Restricts this thread, and the threads it will start (call it first), to those of its present CPUs that belong to the NUMA node of a PCI device.
// sys_root: "/sys". bus_id: "0000:3b:00.0", also with NVML's 8 digits or in capitals. Returns the number of CPUs, *node gets the NUMA node;
// 0 where the node is not known (a machine of one node, a container without /sys) or has none of this process' CPUs: nothing is changed then.
static inline int ranks_bind_numa(const char* sys_root, const char* bus_id, int* node) {
    char id[32], path[512], line[4096];
    size_t length = strlen(bus_id);
    *node = -1;
    if (length == 16 && !strncmp(bus_id, "0000", 4)) { bus_id += 4; length -= 4; }  // NVML's domains have 8 digits
    if (length >= sizeof(id)) { return 0; }
    for (size_t i = 0; i <= length; i++) { id[i] = (char)tolower((unsigned char)bus_id[i]); }
    if (strspn(id, "0123456789abcdef:.") != length) { return 0; }
    snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/numa_node", sys_root, id);
    if (!ranks_read_line(path, line, sizeof(line))) { return 0; }
    char* end = NULL;
    long found = strtol(line, &end, 10);
    if (end == line || *end || found < 0 || found > 4095) { return 0; }
    snprintf(path, sizeof(path), "%s/devices/system/node/node%ld/cpulist", sys_root, found);
    if (!ranks_read_line(path, line, sizeof(line))) { return 0; }
    enum { MAX_CPUS = 16384 };
    cpu_set_t* now = CPU_ALLOC(MAX_CPUS);
    cpu_set_t* wanted = CPU_ALLOC(MAX_CPUS);
    const size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    int count = 0;
    if (now && wanted && sched_getaffinity(0, bytes, now) == 0) {
        CPU_ZERO_S(bytes, wanted);
        for (const char* p = line; isdigit((unsigned char)*p); p += *p == ',') {  // "0-15,32-47"
            long first = strtol(p, &end, 10), last = first;
            p = end;
            if (*p == '-') { last = strtol(p + 1, &end, 10); p = end; }
            for (long cpu = first; cpu <= last && cpu < MAX_CPUS; cpu++) {
                if (CPU_ISSET_S(cpu, bytes, now)) { CPU_SET_S(cpu, bytes, wanted); }
            }
        }
        count = CPU_COUNT_S(bytes, wanted);
        if (count > 0 && sched_setaffinity(0, bytes, wanted) != 0) { count = 0; }
        if (count > 0) { *node = (int)found; }
    }
    CPU_FREE(now);
    CPU_FREE(wanted);
    return count;
}

#endif
