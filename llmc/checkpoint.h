/* checkpoint.h - the folder of checkpoints: names, the DONE marker, finding the newest good one, keeping a few
 *
 * A checkpoint of step s (= s completed updates) is                                   [names as llm.c's]
 *     model_%08d.bin  (rank 0)    state_%08d_%05d.bin  (step, rank)    DONE_%08d  (empty: all of the others are on the disk)
 *
 * Invariants
 *   I1  DONE exists => model and all states of that step exist, whole and fsynced. Hence: written last, removed first, also before the same step is
 *       written again, each with the folder fsynced; a crash at any moment leaves a folder that resumes.
 *   I2  No name but a temporary (*.tmp) ever holds a partial file (files.h). checkpoint_clean removes the temporaries of an interrupted run.
 *   I3  checkpoint_prune looks at what is there, not at where checkpoints should be: whatever the steps are, the newest nk good ones stay, and majors.
 *       It counts only good ones, so a broken checkpoint never pushes a good one out. llm.c computes the step to delete, and misses.
 *   I4  Steps later than the current one belong to another run in the same folder: never counted, never removed.
 *
 * Writing: checkpoint_begin (rank 0) -> model (rank 0), state (every rank) -> barrier -> checkpoint_done (rank 0) -> checkpoint_prune (rank 0).
 * Errors:  as in files.h. Rank 0 calls, except where said; nothing here communicates.
 * Tests:   dev/test/test_checkpoint_files.cu  */
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include <ctype.h>
#include <dirent.h>
#include <algorithm>
#include <string>
#include <vector>

#include "llmc/formats.h"

// ---------------------------------------------------------------------------- names

static inline void checkpoint_model_path(char path[FILE_PATH_MAX], const char* folder, int step) {
    snprintf(path, FILE_PATH_MAX, "%s/model_%08d.bin", folder, step);
}
static inline void checkpoint_state_path(char path[FILE_PATH_MAX], const char* folder, int step, int rank) {
    snprintf(path, FILE_PATH_MAX, "%s/state_%08d_%05d.bin", folder, step, rank);
}
static inline void checkpoint_done_path(char path[FILE_PATH_MAX], const char* folder, int step) {
    snprintf(path, FILE_PATH_MAX, "%s/DONE_%08d", folder, step);
}

// Reads prefix + at least `width` digits from *text and moves on; -1 if it does not begin so. No sign, no blank, at most INT32_MAX.
static inline long checkpoint_parse_number(const char** text, const char* prefix, int width) {
    size_t n = strlen(prefix);
    if (strncmp(*text, prefix, n) != 0) { return -1; }
    const char* p = *text + n;
    long value = 0;
    int digits = 0;
    for (; isdigit((unsigned char)*p); p++, digits++) {
        value = value * 10 + (*p - '0');
        if (value > INT32_MAX) { return -1; }
    }
    if (digits < width) { return -1; }
    *text = p;
    return value;
}

enum CheckpointKind { CHECKPOINT_NONE, CHECKPOINT_MODEL, CHECKPOINT_STATE, CHECKPOINT_DONE, CHECKPOINT_TEMPORARY };

// What a file name is. *step and *rank (states only) are set for MODEL, STATE and DONE. TEMPORARY: a .tmp that this program made.
static inline CheckpointKind checkpoint_parse_name(const char* name, int* step, int* rank) {
    CheckpointKind kind = CHECKPOINT_NONE;
    const char* rest = name;
    long s = -1, r = 0;
    if ((s = checkpoint_parse_number(&rest, "model_", 8)) >= 0) { kind = CHECKPOINT_MODEL; }
    else if ((s = checkpoint_parse_number(&rest, "state_", 8)) >= 0 && (r = checkpoint_parse_number(&rest, "_", 5)) >= 0) { kind = CHECKPOINT_STATE; }
    else if ((s = checkpoint_parse_number(&rest, "DONE_", 8)) >= 0) { kind = CHECKPOINT_DONE; }
    const char* end = kind == CHECKPOINT_DONE ? "" : ".bin";
    if (!strcmp(name, "main.log.tmp") || (!strncmp(name, "writable.", 9) && strlen(name) > 4 && !strcmp(name + strlen(name) - 4, ".tmp"))) {
        return CHECKPOINT_TEMPORARY;
    }
    if (kind == CHECKPOINT_NONE || strncmp(rest, end, strlen(end)) != 0) { return CHECKPOINT_NONE; }
    rest += strlen(end);
    if (!strcmp(rest, ".tmp")) { return CHECKPOINT_TEMPORARY; }
    if (*rest) { return CHECKPOINT_NONE; }
    *step = (int)s;
    *rank = (int)r;
    return kind;
}

// ---------------------------------------------------------------------------- what is in a folder

typedef struct {
    int step;
    bool done, model;
    std::vector<int> state_ranks;   // ascending
} CheckpointEntry;

// All steps of which any file is there, newest first. A folder that does not exist is empty.
static inline bool checkpoint_list(const char* folder, std::vector<CheckpointEntry>* list, FileError* error) {
    list->clear();
    DIR* dir = opendir(folder);
    if (!dir) {
        if (errno == ENOENT) { return true; }
        return file_error(error, errno, "check the output folder", "cannot list the folder '%s': %s", folder, strerror(errno));
    }
    while (struct dirent* entry = readdir(dir)) {
        int step = 0, rank = 0;
        CheckpointKind kind = checkpoint_parse_name(entry->d_name, &step, &rank);
        if (kind == CHECKPOINT_NONE || kind == CHECKPOINT_TEMPORARY) { continue; }
        auto at = std::find_if(list->begin(), list->end(), [&](const CheckpointEntry& e) { return e.step == step; });
        if (at == list->end()) { at = list->insert(list->end(), CheckpointEntry{step, false, false, {}}); }
        if (kind == CHECKPOINT_DONE) { at->done = true; }
        if (kind == CHECKPOINT_MODEL) { at->model = true; }
        if (kind == CHECKPOINT_STATE) { at->state_ranks.push_back(rank); }
    }
    closedir(dir);
    for (auto& e : *list) { std::sort(e.state_ranks.begin(), e.state_ranks.end()); }
    std::sort(list->begin(), list->end(), [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step > b.step; });
    return true;
}

// Number of ranks that wrote the checkpoint and whether its files look whole: all states there, ours opened (header, size, table), llm.c's by their
// header, the model by magic and size (exactly, if count is given). Payload checksums are verified when the payload is read. num_ranks: out.
static inline bool checkpoint_check(const char* folder, const CheckpointEntry& e, ModelCount count, int* num_ranks, FileError* error) {
    char path[FILE_PATH_MAX];
    const char* hint = "";
    ModelFile model;
    InputFile file;
    StateReader state;
    if (!e.done) { return file_error(error, 0, hint, "step %d has no DONE file: it was not finished", e.step); }
    if (!e.model) { return file_error(error, 0, hint, "step %d has a DONE file but no model file", e.step); }
    checkpoint_model_path(path, folder, e.step);
    if (count) {
        if (!model_file_open(&model, path, count, error)) { return false; }
        model_file_close(&model);
    }
    int32_t head[4] = {0};
    if (!input_file_open(&file, path, error)) { return false; }
    bool ok = file.size > MODEL_FILE_HEADER_BYTES && input_file_read(&file, head, sizeof(head), error) && head[0] == MODEL_FILE_MAGIC;
    uint64_t model_bytes = file.size;
    input_file_close(&file);
    if (!ok) { return file_error(error, 0, hint, "'%s' (%llu bytes) is not a whole model file", path, (unsigned long long)model_bytes); }
    *num_ranks = 1;
    for (int rank = 0; rank < *num_ranks; rank++) {
        if (!std::binary_search(e.state_ranks.begin(), e.state_ranks.end(), rank)) {
            return file_error(error, 0, hint, "step %d has a DONE file but no state file of rank %d", e.step, rank);
        }
        checkpoint_state_path(path, folder, e.step, rank);
        if (!input_file_open(&file, path, error)) { return false; }
        memset(head, 0, sizeof(head));
        ok = file.size >= sizeof(head) && input_file_read(&file, head, sizeof(head), error);
        bool llmc = ok && head[0] == 20240527 && file.size > 1024 && head[2] > 0 && head[3] == rank;
        input_file_close(&file);
        if (llmc) { *num_ranks = head[2]; continue; }
        if (!state_read_open(&state, path, error)) { return false; }
        StateHeader h = state.header;
        state_read_close(&state);
        *num_ranks = (int)h.num_ranks;
        if ((int)h.rank != rank || h.step != (uint64_t)e.step) {
            return file_error(error, 0, hint, "'%s' was written by rank %u at step %llu", path, h.rank, (unsigned long long)h.step);
        }
        if (rank == 0 && h.model_bytes && h.model_bytes != model_bytes) {
            return file_error(error, 0, hint, "the model file of step %d has %llu bytes, its state says %llu", e.step,
                              (unsigned long long)model_bytes, (unsigned long long)h.model_bytes);
        }
    }
    return true;
}

typedef struct {
    int step;               // -1: there is none
    int num_ranks;          // that wrote it
    std::string skipped;    // one line for each newer DONE that was passed over, and why; "" if none. To be shown to the user
} CheckpointFound;

// The newest good checkpoint. Every rank may call it: it only reads.
static inline bool checkpoint_find_latest(const char* folder, ModelCount count, CheckpointFound* found, FileError* error) {
    std::vector<CheckpointEntry> list;
    *found = CheckpointFound{-1, 0, ""};
    if (!checkpoint_list(folder, &list, error)) { return false; }
    for (auto& e : list) {
        FileError why;
        if (!e.done) { continue; }
        if (checkpoint_check(folder, e, count, &found->num_ranks, &why)) { found->step = e.step; return true; }
        found->skipped += std::string("checkpoint of step ") + std::to_string(e.step) + " is not usable: " + why.message + "\n";
    }
    return true;
}

// ---------------------------------------------------------------------------- writing

static inline bool checkpoint_unlink(const char* path, FileError* error) {
    if ((file_fault() || unlink(path) != 0) && errno != ENOENT) {
        return file_error(error, errno, "check the output folder's permissions", "cannot remove '%s': %s", path, strerror(errno));
    }
    return true;
}

// Before the model of this step is written: a DONE of an earlier writing of the same step goes (I1).
static inline bool checkpoint_begin(const char* folder, int step, FileError* error) {
    char path[FILE_PATH_MAX];
    checkpoint_done_path(path, folder, step);
    if (access(path, F_OK) != 0) { return true; }
    return checkpoint_unlink(path, error) && file_sync_folder(folder, error);
}

// After all ranks committed their files.
static inline bool checkpoint_done(const char* folder, int step, FileError* error) {
    char path[FILE_PATH_MAX];
    AtomicFile f;
    checkpoint_done_path(path, folder, step);
    return atomic_file_open(&f, path, 0, error) && atomic_file_commit(&f, error);
}

// DONE first, then the model, then the states.
static inline bool checkpoint_delete(const char* folder, const CheckpointEntry& e, FileError* error) {
    char path[FILE_PATH_MAX];
    if (!checkpoint_begin(folder, e.step, error)) { return false; }
    checkpoint_model_path(path, folder, e.step);
    if (!checkpoint_unlink(path, error)) { return false; }
    for (int rank : e.state_ranks) {
        checkpoint_state_path(path, folder, e.step, rank);
        if (!checkpoint_unlink(path, error)) { return false; }
    }
    return true;
}

// After step's checkpoint is done: keeps the newest `keep` good checkpoints up to this step (-nk; 0 keeps all) and every major one (-nm: steps that are
// multiples of `major`; 0: none is). Removes the others, and old states whose DONE is gone (an interrupted removal or writing). A model file
// without states is not touched: someone may have put it there. deleted: steps removed, for the log.
static inline bool checkpoint_prune(const char* folder, int step, int keep, int major, std::vector<int>* deleted, FileError* error) {
    std::vector<CheckpointEntry> list;
    deleted->clear();
    if (keep <= 0) { return true; }
    if (!checkpoint_list(folder, &list, error)) { return false; }
    int good = 0;
    for (auto& e : list) {
        int num_ranks = 0;
        FileError why;
        if (e.step > step) { continue; }
        bool is_good = checkpoint_check(folder, e, NULL, &num_ranks, &why);
        if (good < keep) { good += is_good; continue; }  // broken ones between the newest good ones may be what someone is looking into
        if (major > 0 && e.step % major == 0) { continue; }
        if (!e.done && e.state_ranks.empty()) { continue; }
        if (!checkpoint_delete(folder, e, error)) { return false; }
        deleted->push_back(e.step);
    }
    return true;
}

// At the start of a run: removes what an interrupted one left under temporary names. removed: how many.
static inline bool checkpoint_clean(const char* folder, int* removed, FileError* error) {
    *removed = 0;
    DIR* dir = opendir(folder);
    if (!dir) {
        return errno == ENOENT ? true : file_error(error, errno, "check the output folder", "cannot list the folder '%s': %s", folder,
                strerror(errno));
    }
    bool ok = true;
    while (struct dirent* entry = readdir(dir)) {
        int step = 0, rank = 0;
        if (checkpoint_parse_name(entry->d_name, &step, &rank) != CHECKPOINT_TEMPORARY) { continue; }
        std::string path = std::string(folder) + "/" + entry->d_name;
        if (checkpoint_unlink(path.c_str(), error)) { (*removed)++; } else { ok = false; }
    }
    closedir(dir);
    return ok;
}

#endif
