/* files.h - files that appear whole or not at all, and reading that checks
 *
 * What:      AtomicFile writes PATH.tmp, then renames it to PATH; SharedFile is the same for a file that many processes write at once; InputFile reads a
 *            regular file of known size. Folders. What is in the files: formats.h, dataloader.h, tokenizer.h.
 * Errors:    every function that touches a file returns true, or false with a FileError that says what, where, how many bytes, and a hint. Nothing
 *            here ends the program: a full disk must not kill a run that could go on. fileCheck(call, &error) does, for callers without a better idea.
 * Memory:    a writer holds 1 MiB of buffer; payloads pass through the caller's buffers, of any size. Sizes and offsets are 64 bits.
 * Faults:    with -DGPT_FAULTS (tests), file_faults()->countdown makes the n-th system call below fail with file_faults()->code.
 * Tests:     dev/test/test_formats.cu  */
#ifndef LLMC_FILES_H
#define LLMC_FILES_H

#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <string>

#include "llmc/common.h"

#define FILE_PATH_MAX 1024              // bytes of a path with its terminating 0
#define FILE_BUFFER_BYTES (1u << 20)    // small writes gather here; larger ones go straight to the system
#define FILE_PIECE_BYTES (4u << 20)     // of one call
#define FILE_AHEAD_BYTES (16u << 20)    // that the system may hold back before the disk is waited for: within a minute at 0.3 MB/s

// ----------------------------------------------------------------------------
// errors

typedef struct {
    int code;               // errno of the failed call, 0 if the content was wrong
    char message[2048];     // what and where, with values
    char hint[512];
} FileError;

__attribute__((format(printf, 4, 5)))
static inline bool file_error(FileError* error, int code, const char* hint, const char* fmt, ...) {
    error->code = code;
    snprintf(error->hint, sizeof(error->hint), "%s", hint);
    va_list args;
    va_start(args, fmt);
    vsnprintf(error->message, sizeof(error->message), fmt, args);
    va_end(args);
    return false;
}
#define fileCheck(call, error) do { if (!(call)) { fail((error)->hint, "%s", (error)->message); } } while (0)

// Fault points for tests: when countdown reaches 0 the system call at hand fails with errno = code, once; code < 0: the process ends there, as in a
// crash. Without GPT_FAULTS they cost nothing.
#ifdef GPT_FAULTS
typedef struct { long countdown; int code; } FileFaults;
static inline FileFaults* file_faults(void) { static FileFaults faults = {-1, 0}; return &faults; }
static inline bool file_fault(void) {
    FileFaults* f = file_faults();
    if (f->countdown < 0 || f->countdown-- > 0) { return false; }
    if (f->code < 0) { _exit(-f->code); }
    errno = f->code;
    return true;
}
#else
static inline bool file_fault(void) { return false; }
#endif

// What a file is, from its first bytes: for messages about a file of the wrong kind.
static inline const char* file_describe(const unsigned char* head, size_t bytes) {
    uint32_t magic = 0;
    if (bytes < 4) { return "a file of less than 4 bytes"; }
    memcpy(&magic, head, 4);
    switch (magic) {
        case 20240326: return "a model file (llm.c's format)";
        case 20240327: return "an llm.c debug state (activations of train_gpt2.py)";
        case 20240328: return "a tokenizer file";
        case 20240520: return "a token shard";
        case 20240522: return "a multiple-choice evaluation file (HellaSwag)";
        case 20240527: return "an optimizer state written by llm.c";
        case 20240801: return "a llama-3 token shard";
        case 20240803: return "a llama-3 model file";
        case 0x38504647: return "a state file of this program";
        default: break;
    }
    uint32_t swapped = __builtin_bswap32(magic);
    if (swapped >= 20240326 && swapped <= 20240803) { return "a file with swapped bytes (written on a big-endian machine)"; }
    if (!memcmp(head, "PK\3\4", 4)) { return "a zip archive (a PyTorch checkpoint?)"; }
    if (bytes >= 9 && head[7] == 0 && head[8] == '{') { return "a safetensors file"; }
    if (!memcmp(head, "vers", 4)) { return "a text that begins like a git-lfs pointer, not the file it points to"; }
    return "a file of unknown kind";
}

// ----------------------------------------------------------------------------
// folders

// Writes the folder part of path to folder ("." if there is none).
static inline void file_folder(char folder[FILE_PATH_MAX], const char* path) {
    snprintf(folder, FILE_PATH_MAX, "%s", path);
    char* slash = strrchr(folder, '/');
    if (!slash) { snprintf(folder, FILE_PATH_MAX, "."); }
    else { slash[slash == folder] = 0; }
}

// Makes renames and removals in the folder durable. Some network file systems refuse fsync on folders: they order renames themselves.
static inline bool file_sync_folder(const char* folder, FileError* error) {
    int fd = file_fault() ? -1 : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { return file_error(error, errno, "check that the folder still exists", "cannot open the folder '%s': %s", folder, strerror(errno)); }
    int result = file_fault() ? -1 : fsync(fd);
    int code = errno;
    close(fd);
    if (result != 0 && code != EINVAL && code != ENOTSUP) {
        return file_error(error, code, "check the disk", "cannot fsync the folder '%s': %s", folder, strerror(code));
    }
    return true;
}

// Creates a folder and its parents; checks that files can be made in it.
static inline bool file_make_folder(const char* folder, FileError* error) {
    char path[FILE_PATH_MAX];
    const char* hint = "choose another output folder, or make this one writable";
    if (!folder[0] || strlen(folder) + 64 > FILE_PATH_MAX) {
        return file_error(error, ENAMETOOLONG, hint, "the output folder's name has %zu bytes (1 to %d are possible)", strlen(folder),
                          FILE_PATH_MAX - 64);
    }
    snprintf(path, sizeof(path), "%s", folder);
    for (char* p = path + 1;; p++) {
        if (*p != '/' && *p != 0) { continue; }
        char end = *p;
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return file_error(error, errno, hint, "cannot create the folder '%s': %s", path, strerror(errno));
        }
        *p = end;
        if (!end) { break; }
    }
    struct stat st;
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode)) { return file_error(error, ENOTDIR, hint, "'%s' exists and is not a folder", folder); }
    snprintf(path, sizeof(path), "%s/writable.%ld.tmp", folder, (long)getpid());  // the only sure test: quotas, read-only mounts, root
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) { return file_error(error, errno, hint, "cannot write into the folder '%s': %s", folder, strerror(errno)); }
    close(fd);
    unlink(path);
    return true;
}

// Takes the folder for this process until *fd is closed or the process ends, so that two runs cannot write into the same one. File systems without
// locks are let pass: the lock guards against a mistake, not against an attack.
static inline bool file_lock_folder(const char* folder, int* fd, FileError* error) {
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) { return file_error(error, errno, "check the path and its permissions", "cannot open the folder '%s': %s", folder, strerror(errno)); }
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) { return true; }
    close(*fd);
    *fd = -1;
    return file_error(error, EWOULDBLOCK, "wait for it, or choose another output folder", "another process is running in the folder '%s'", folder);
}

// ----------------------------------------------------------------------------
// what all writers need

// Fills error with a failed write: what was to be done with which file, how many bytes it takes and how many are free there.
static inline bool file_write_error(FileError* error, int code, const char* what, const char* path, uint64_t wanted) {
    struct statvfs vfs;
    char folder[FILE_PATH_MAX], room[128] = "";
    const char* hint = "check the path, its permissions and the disk";
    file_folder(folder, path);
    if (statvfs(folder, &vfs) == 0) { snprintf(room, sizeof(room), ", %llu bytes free there", (unsigned long long)vfs.f_bavail * vfs.f_frsize); }
    if (code == ENOSPC || code == EDQUOT) { hint = "free space there (old checkpoints, --checkpoint-keep), or choose another output folder"; }
    if (code == EFBIG) { hint = "raise the file size limit (ulimit -f), or use a file system that takes larger files"; }
    return file_error(error, code, hint, "cannot %s '%s': %s (%llu bytes wanted%s); an older file of that name is intact", what, path, strerror(code),
                      (unsigned long long)wanted, room);
}

// 0, or the errno that writing so many bytes to path would end with: a disk that has less room is refused at once instead of after minutes.
static inline int file_check_room(const char* path, uint64_t bytes) {
    char folder[FILE_PATH_MAX];
    struct statvfs vfs;
    struct rlimit limit;
    file_folder(folder, path);
    // past this limit the system would send a signal that ends the program
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) { return EFBIG; }
    return bytes > 0 && statvfs(folder, &vfs) == 0 && (uint64_t)vfs.f_bavail * vfs.f_frsize < bytes ? ENOSPC : 0;
}

// Writes all bytes at the given offset, whatever the system takes at a time. 0 or an errno. The disk is kept at it and waited for, so that an fsync at the end
// finds little left: each call is short where the disk is slow, and tells (note_progress) that it comes along. What is unknown to a file system is left out.
static inline int file_put(int fd, const void* data, uint64_t bytes, uint64_t offset) {
    const unsigned char* p = (const unsigned char*)data;
    while (bytes > 0) {
        ssize_t n = file_fault() ? -1 : pwrite(fd, p, bytes < FILE_PIECE_BYTES ? bytes : FILE_PIECE_BYTES, (off_t)offset);
        if (n < 0 && errno == EINTR) { continue; }
        if (n <= 0) { return n < 0 ? errno : ENOSPC; }
        int sync = sync_file_range(fd, (off_t)offset, n, SYNC_FILE_RANGE_WRITE);
        if (sync == 0 && offset >= FILE_AHEAD_BYTES) { sync = sync_file_range(fd, (off_t)(offset - FILE_AHEAD_BYTES), n, SYNC_FILE_RANGE_WAIT_BEFORE); }
        if (sync != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) { return errno; }
        note_progress();
        p += n;
        bytes -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

// Bytes a second, fsync included, that this process writes into the folder: tried with up to `bytes`, for about half a second. 0: it cannot be tried, for
// instance for lack of room; who writes for good will say why. The name is one that an interrupted run's cleaning knows.
static inline double file_measure_writing(const char* folder, int rank, uint64_t bytes) {
    const uint64_t piece = 4 << 20, limit = 64 << 20;
    char path[FILE_PATH_MAX];
    struct timespec begin, now;
    snprintf(path, sizeof(path), "%s/writable.%d.tmp", folder, rank);
    bytes = bytes < limit ? bytes : limit;
    int fd = file_check_room(path, bytes) ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) { return 0.0; }
    void* data = mallocCheck(piece);
    memset(data, 0x5a, piece);  // not zeros, which some file systems do not store
    uint64_t done = 0;
    bool ok = true;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    auto seconds = [&] {
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (now.tv_sec - begin.tv_sec) + (now.tv_nsec - begin.tv_nsec) * 1e-9;
    };
    do {
        const uint64_t n = bytes - done < piece ? bytes - done : piece;
        ok = file_put(fd, data, n, done) == 0;
        done += n;
    } while (ok && done < bytes && seconds() < 0.5);
    ok = ok && fsync(fd) == 0;
    const double took = seconds();
    free(data);
    close(fd);
    unlink(path);
    return ok && took > 0.0 ? done / took : 0.0;
}

// Bytes of host memory that this process could still take, by whichever limit is the nearest: the machine's, its control group's, ulimit -v.
static inline uint64_t host_memory_available(void) {
    uint64_t available = UINT64_MAX, kib = 0, most = 0, used = 0;
    char line[256];
    FILE* f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof(line), f)) { if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) { available = kib << 10; } }
    if (f) { fclose(f); }
    static const char* const groups[2][2] = {{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
                                             {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
    for (auto& group : groups) {
        int read = 0;
        for (int i = 0; i < 2; i++) {
            if (!(f = fopen(group[i], "r"))) { continue; }
            read += fscanf(f, "%" SCNu64, i ? &used : &most);  // "max": no number, no limit
            fclose(f);
        }
        if (read == 2 && most >= used && most - used < available) { available = most - used; }
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && (f = fopen("/proc/self/statm", "r"))) {
        if (fscanf(f, "%" SCNu64, &used) == 1) {
            used *= (uint64_t)sysconf(_SC_PAGESIZE);
            const uint64_t left = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
            if (left < available) { available = left; }
        }
        fclose(f);
    }
    return available;
}

// Writes path and path.tmp; false if the name is empty or too long.
static inline bool file_names(char path[FILE_PATH_MAX], char temporary[FILE_PATH_MAX], const char* given, FileError* error) {
    const size_t n = strlen(given);
    if (n == 0 || n + 5 > FILE_PATH_MAX) {
        return file_error(error, ENAMETOOLONG, "choose another path", "a file name of %zu bytes (1 to %d are possible)", n, FILE_PATH_MAX - 5);
    }
    memcpy(path, given, n + 1);
    memcpy(temporary, given, n);
    memcpy(temporary + n, ".tmp", 5);
    return true;
}

// ----------------------------------------------------------------------------
// AtomicFile: PATH.tmp is written, fsynced, renamed to PATH, and the folder fsynced. Until commit an old PATH stays as it was. After an error the
// temporary is gone and further calls return the same error, so that a caller may check the last call only.

typedef struct {
    char path[FILE_PATH_MAX], temporary[FILE_PATH_MAX];
    int fd;                     // -1: not open
    unsigned char* buffer;
    size_t buffered;
    uint64_t bytes;             // taken so far, the buffered ones included
    uint64_t expected;          // size it will have, 0 = unknown
    bool failed;
    FileError error;
} AtomicFile;

static inline void atomic_file_abort(AtomicFile* f) {
    if (f->fd >= 0) { close(f->fd); unlink(f->temporary); }
    f->fd = -1;
    free(f->buffer);
    f->buffer = NULL;
}

// Notes the failure of a system call, removes the temporary, fills error.
static inline bool atomic_file_fail(AtomicFile* f, int code, const char* what, FileError* error) {
    atomic_file_abort(f);
    file_write_error(&f->error, code, what, f->path, f->expected > f->bytes ? f->expected : f->bytes);
    f->failed = true;
    *error = f->error;
    return false;
}

// expected: bytes that will be written, 0 if unknown; a disk that has less room is refused.
static inline bool atomic_file_open(AtomicFile* f, const char* path, uint64_t expected, FileError* error) {
    memset(f, 0, sizeof(*f));
    f->fd = -1;
    f->expected = expected;
    if (!file_names(f->path, f->temporary, path, &f->error)) {
        f->failed = true;
        *error = f->error;
        return false;
    }
    int code = file_check_room(path, expected);
    if (code) { return atomic_file_fail(f, code, "write", error); }
    f->buffer = (unsigned char*)mallocCheck(FILE_BUFFER_BYTES);
    f->fd = file_fault() ? -1 : open(f->temporary, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (f->fd < 0) { return atomic_file_fail(f, errno, "create", error); }
    return true;
}

static inline bool atomic_file_put(AtomicFile* f, const void* data, size_t bytes, uint64_t offset, FileError* error) {
    int code = file_put(f->fd, data, bytes, offset);
    return code ? atomic_file_fail(f, code, "write", error) : true;
}
static inline bool atomic_file_flush(AtomicFile* f, FileError* error) {
    size_t n = f->buffered;
    f->buffered = 0;
    return atomic_file_put(f, f->buffer, n, f->bytes - n, error);
}

static inline bool atomic_file_write(AtomicFile* f, const void* data, uint64_t bytes, FileError* error) {
    if (f->failed) { *error = f->error; return false; }
    if (bytes == 0) { return true; }
    if (f->buffered + bytes > FILE_BUFFER_BYTES && !atomic_file_flush(f, error)) { return false; }
    f->bytes += bytes;
    if (bytes > FILE_BUFFER_BYTES / 2 && f->buffered == 0) { return atomic_file_put(f, data, bytes, f->bytes - bytes, error); }
    memcpy(f->buffer + f->buffered, data, bytes);
    f->buffered += bytes;
    return true;
}

// Overwrites bytes that were written before: a header whose numbers are known at the end.
static inline bool atomic_file_patch(AtomicFile* f, uint64_t offset, const void* data, size_t bytes, FileError* error) {
    if (f->failed) { *error = f->error; return false; }
    assert(offset + bytes <= f->bytes);
    return atomic_file_flush(f, error) && atomic_file_put(f, data, bytes, offset, error);
}

static inline bool atomic_file_commit(AtomicFile* f, FileError* error) {
    if (f->failed) { *error = f->error; return false; }
    if (!atomic_file_flush(f, error)) { return false; }
    if (file_fault() || fsync(f->fd) != 0) { return atomic_file_fail(f, errno, "fsync", error); }
    int fd = f->fd;
    f->fd = -1;
    if (file_fault() || close(fd) != 0) {
        int code = errno;
        unlink(f->temporary);
        return atomic_file_fail(f, code, "close", error);
    }
    if (file_fault() || rename(f->temporary, f->path) != 0) {
        int code = errno;
        unlink(f->temporary);
        return atomic_file_fail(f, code, "rename a temporary file to", error);
    }
    atomic_file_abort(f);  // frees the buffer; the file is closed already
    char folder[FILE_PATH_MAX];
    file_folder(folder, f->path);
    return file_sync_folder(folder, error);
}

// ----------------------------------------------------------------------------
// SharedFile: an AtomicFile of known size that many processes, on many machines too, write at once, each its own bytes. The protocol:
//     one: create -> barrier -> the others: open -> all: pwrite ..., sync -> barrier (all succeeded?) -> the one: commit (or all: abort)
// The barriers are the caller's. After an error of a call the file is closed, and gone if this process created it.

typedef struct {
    char path[FILE_PATH_MAX], temporary[FILE_PATH_MAX];
    int fd;             // -1: not open
    bool creator;       // this process made the temporary, and removes or renames it
    uint64_t bytes;     // of the whole file
} SharedFile;

static inline void shared_file_abort(SharedFile* f) {
    if (f->fd >= 0) { close(f->fd); }
    f->fd = -1;
    if (f->creator) { unlink(f->temporary); }
    f->creator = false;
}
static inline bool shared_file_fail(SharedFile* f, int code, const char* what, FileError* error) {
    shared_file_abort(f);
    return file_write_error(error, code, what, f->path, f->bytes);
}

// Makes PATH.tmp of its full size. Where the file system can, the room is reserved, so that a full disk is found now and by one process. A temporary that an
// interrupted run left is not used again but replaced: a lost process of that run may still hold it open and write.
static inline bool shared_file_create(SharedFile* f, const char* path, uint64_t bytes, FileError* error) {
    memset(f, 0, sizeof(*f));
    f->fd = -1;
    f->bytes = bytes;
    if (!file_names(f->path, f->temporary, path, error)) { return false; }
    int code = file_check_room(path, bytes);
    if (code) { return shared_file_fail(f, code, "write", error); }
    if ((file_fault() || unlink(f->temporary) != 0) && errno != ENOENT) { return shared_file_fail(f, errno, "remove the old temporary of", error); }
    // without reading: some network file systems write a whole page back if they have read it, over what another machine wrote beside
    f->fd = file_fault() ? -1 : open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (f->fd < 0) { return shared_file_fail(f, errno, "create", error); }
    f->creator = true;
    int result;
    do { result = bytes == 0 ? 0 : file_fault() ? -1 : fallocate(f->fd, 0, 0, (off_t)bytes); } while (result != 0 && errno == EINTR);
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) { result = file_fault() ? -1 : ftruncate(f->fd, (off_t)bytes); }
    return result == 0 ? true : shared_file_fail(f, errno, "reserve the room of", error);
}

// Opens what another process created. bytes: as there.
static inline bool shared_file_open(SharedFile* f, const char* path, uint64_t bytes, FileError* error) {
    const char* hint = "all processes must see the same output folder: on several machines it must lie on a file system that they share";
    memset(f, 0, sizeof(*f));
    f->fd = -1;
    f->bytes = bytes;
    struct stat st;
    if (!file_names(f->path, f->temporary, path, error)) { return false; }
    f->fd = file_fault() ? -1 : open(f->temporary, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) {
        int code = errno;
        shared_file_abort(f);
        return file_error(error, code, code == ENOENT ? hint : "check its permissions and the disk", "cannot open '%s', which another process made: %s",
                          f->temporary, strerror(code));
    }
    if ((uint64_t)st.st_size != bytes) {
        shared_file_abort(f);
        return file_error(error, 0, hint, "'%s' has %llu bytes, not %llu as the process that made it said", f->temporary, (unsigned long long)st.st_size,
                          (unsigned long long)bytes);
    }
    return true;
}

static inline bool shared_file_pwrite(SharedFile* f, uint64_t offset, const void* data, uint64_t bytes, FileError* error) {
    assert(offset <= f->bytes && bytes <= f->bytes - offset);
    int code = file_put(f->fd, data, bytes, offset);
    return code ? shared_file_fail(f, code, "write", error) : true;
}

// What this process wrote is on the disk; the file is closed.
static inline bool shared_file_sync(SharedFile* f, FileError* error) {
    if (file_fault() || fsync(f->fd) != 0) { return shared_file_fail(f, errno, "fsync", error); }
    int fd = f->fd;
    f->fd = -1;
    return file_fault() || close(fd) != 0 ? shared_file_fail(f, errno, "close", error) : true;
}

// The creator's, after every process has synced.
static inline bool shared_file_commit(SharedFile* f, FileError* error) {
    assert(f->creator && f->fd < 0);
    char folder[FILE_PATH_MAX];
    if (file_fault() || rename(f->temporary, f->path) != 0) { return shared_file_fail(f, errno, "rename a temporary file to", error); }
    f->creator = false;
    file_folder(folder, f->path);
    return file_sync_folder(folder, error);
}

// ----------------------------------------------------------------------------
// InputFile: a regular file of known size, read front to back or anywhere

typedef struct {
    char path[FILE_PATH_MAX];
    int fd;                 // -1: not open
    uint64_t size, offset;  // bytes in the file, bytes read
} InputFile;

static inline void input_file_close(InputFile* f) {
    if (f->fd >= 0) { close(f->fd); }
    f->fd = -1;
}

static inline bool input_file_open(InputFile* f, const char* path, FileError* error) {
    memset(f, 0, sizeof(*f));
    snprintf(f->path, sizeof(f->path), "%s", path);
    struct stat st;
    f->fd = file_fault() ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) {
        int code = errno;
        input_file_close(f);
        return file_error(error, code, "check the path and its permissions", "cannot open '%s': %s", path, strerror(code));
    }
    if (!S_ISREG(st.st_mode)) {
        input_file_close(f);
        return file_error(error, EINVAL, "name a file", "'%s' is %s", path, S_ISDIR(st.st_mode) ? "a folder, not a file" : "not a regular file");
    }
    f->size = (uint64_t)st.st_size;
    return true;
}

static inline bool input_file_read_at(const InputFile* f, uint64_t offset, void* data, uint64_t bytes, FileError* error) {
    unsigned char* p = (unsigned char*)data;
    while (bytes > 0) {
        ssize_t n = file_fault() ? -1 : pread(f->fd, p, bytes < FILE_PIECE_BYTES ? bytes : FILE_PIECE_BYTES, (off_t)offset);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) {
            return file_error(error, errno, "check the disk", "cannot read '%s' at byte %llu: %s", f->path, (unsigned long long)offset,
                              strerror(errno));
        }
        if (n == 0) {
            return file_error(error, 0, "the file was cut: copy or make it again", "'%s' ends at byte %llu, where %llu more are due", f->path,
                              (unsigned long long)offset, (unsigned long long)bytes);
        }
        note_progress();
        p += n;
        bytes -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return true;
}
static inline bool input_file_read(InputFile* f, void* data, uint64_t bytes, FileError* error) {
    if (!input_file_read_at(f, f->offset, data, bytes, error)) { return false; }
    f->offset += bytes;
    return true;
}

// ----------------------------------------------------------------------------
// text files that grow by lines

// Keeps the lines for which keeps(line, with its line break) is true; a last line without its end goes as well. Atomic; a file that stays as it is, or is not
// there, is not touched.
template <class Keeps>
static inline bool file_keep_lines(const char* path, Keeps keeps, FileError* error) {
    InputFile in;
    if (access(path, F_OK) != 0) { return true; }
    if (!input_file_open(&in, path, error)) { return false; }
    std::string text(in.size, '\0'), kept;
    bool ok = input_file_read(&in, &text[0], in.size, error);
    input_file_close(&in);
    if (!ok) { return false; }
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
        const std::string line = text.substr(at, end + 1 - at);
        if (keeps(line)) { kept += line; }
    }
    if (kept == text) { return true; }
    AtomicFile out;
    return atomic_file_open(&out, path, kept.size(), error) && atomic_file_write(&out, kept.data(), kept.size(), error) && atomic_file_commit(&out, error);
}

// Appends whole lines with one write, or nothing. 0, an errno, or -1: the disk took a part only.
static inline int file_append_lines(const char* path, const char* lines, size_t bytes) {
    int fd = file_fault() ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) { return errno; }
    const ssize_t n = file_fault() ? -1 : write(fd, lines, bytes);
    int code = n < 0 ? errno : n < (ssize_t)bytes ? -1 : 0;
    if (n > 0 && code && ftruncate(fd, lseek(fd, 0, SEEK_END) - n) != 0) { code = errno; }  // no half lines
    close(fd);
    return code;
}

#endif
