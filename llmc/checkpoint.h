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
 * Writing: checkpoint_begin (rank 0) -> barrier -> model and states (all ranks, state_set.h) -> barrier -> checkpoint_done -> checkpoint_prune (rank 0).
 * Reading: checkpoint_find_latest -> checkpoint_verify (every rank its part) -> if any rank found damage: checkpoint_find_before that step, and again.
 * Errors:  as in files.h. Rank 0 calls, except where said; nothing here communicates.
 * Tests:   dev/test/test_checkpoint_files.cu  */
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include <ctype.h>
#include <dirent.h>
#include <algorithm>
#include <string>
#include <vector>

#include "llmc/state_set.h"

// ---------------------------------------------------------------------------- names

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

// The states of an llm.c run: *num_ranks = 0 if rank 0's file is not llm.c's. Only their headers are looked at: llmc_state.h reads them.
static inline bool checkpoint_check_llmc(const char* folder, int step, int* num_ranks, FileError* error) {
    char path[FILE_PATH_MAX];
    *num_ranks = 0;
    for (int rank = 0; rank == 0 || rank < *num_ranks; rank++) {
        InputFile file;
        int32_t head[4] = {0};
        checkpoint_state_path(path, folder, step, rank);
        if (!input_file_open(&file, path, error)) { return rank == 0 && error->code == ENOENT; }  // state_set_open says it better
        bool read = file.size < sizeof(head) || input_file_read(&file, head, sizeof(head), error);
        uint64_t bytes = file.size;
        input_file_close(&file);
        if (!read) { return false; }
        const bool llmc = head[0] == 20240527 && bytes > 1024 && head[2] > 0 && head[3] == rank;
        if (rank == 0 && !llmc) { return true; }
        if (!llmc || (rank > 0 && head[2] != *num_ranks)) {
            return file_error(error, 0, "copy the file again", "'%s' is not the state that rank %d of %d of llm.c wrote", path, rank, *num_ranks);
        }
        *num_ranks = head[2];
    }
    return true;
}

// Number of ranks that wrote the files of a step, and whether they look whole: all states there and belonging together (state_set_open), llm.c's by their
// header, the model by its size (and its header's values, if count is given). What is in the files is checked when it is read, or by checkpoint_verify.
static inline bool checkpoint_check_files(const char* folder, int step, ModelCount count, int* num_ranks, FileError* error) {
    char path[FILE_PATH_MAX];
    ModelFile model;
    InputFile file;
    StateSet set;
    checkpoint_model_path(path, folder, step);
    if (count) {
        if (!model_file_open(&model, path, count, error)) { return false; }
        model_file_close(&model);
    }
    if (!checkpoint_check_llmc(folder, step, num_ranks, error)) { return false; }
    if (*num_ranks == 0) {
        if (!state_set_open(&set, folder, step, count ? model.num_parameters : 0, error)) { return false; }
        *num_ranks = set.num_ranks;
        state_set_close(&set);
        return true;
    }
    int32_t magic = 0;
    if (!input_file_open(&file, path, error)) { return false; }
    bool ok = file.size > MODEL_FILE_HEADER_BYTES && input_file_read(&file, &magic, sizeof(magic), error) && magic == MODEL_FILE_MAGIC;
    uint64_t bytes = file.size;
    input_file_close(&file);
    return ok ? true : file_error(error, 0, STATE_SET_HINT, "'%s' (%llu bytes) is not a whole model file", path, (unsigned long long)bytes);
}

// The same of a step whose files are said to be finished. num_ranks: out.
static inline bool checkpoint_check(const char* folder, const CheckpointEntry& e, ModelCount count, int* num_ranks, FileError* error) {
    if (!e.done) { return file_error(error, 0, "", "step %d has no DONE file: it was not finished", e.step); }
    if (!e.model) { return file_error(error, 0, STATE_SET_HINT, "step %d has a DONE file but no model file", e.step); }
    return checkpoint_check_files(folder, e.step, count, num_ranks, error);
}

// Reads a share of all that is in a checkpoint: true for every part of 0..parts-1 means that each byte is good. Every rank may call it. The states of llm.c
// have no checksums: nothing is read of them.
static inline bool checkpoint_verify(const char* folder, int step, int part, int parts, FileError* error) {
    StateSet set;
    int llmc_ranks;
    if (!checkpoint_check_llmc(folder, step, &llmc_ranks, error)) { return false; }
    if (llmc_ranks > 0) { return true; }
    if (!state_set_open(&set, folder, step, 0, error)) { return false; }
    bool ok = state_set_verify(&set, part, parts, error);
    state_set_close(&set);
    return ok;
}

typedef struct {
    int step;               // -1: there is none
    int num_ranks;          // that wrote it
    std::string skipped;    // one line for each newer DONE that was passed over, and why; "" if none. To be shown to the user
} CheckpointFound;

// The newest good checkpoint of a step below `before` (one that checkpoint_verify refused, say). Every rank may call it: it only reads.
static inline bool checkpoint_find_before(const char* folder, int64_t before, ModelCount count, CheckpointFound* found, FileError* error) {
    std::vector<CheckpointEntry> list;
    *found = CheckpointFound{-1, 0, ""};
    if (!checkpoint_list(folder, &list, error)) { return false; }
    for (auto& e : list) {
        FileError why;
        if (!e.done || e.step >= before) { continue; }
        if (checkpoint_check(folder, e, count, &found->num_ranks, &why)) { found->step = e.step; return true; }
        found->skipped += std::string("checkpoint of step ") + std::to_string(e.step) + " is not usable: " + why.message + "\n";
    }
    return true;
}
static inline bool checkpoint_find_latest(const char* folder, ModelCount count, CheckpointFound* found, FileError* error) {
    return checkpoint_find_before(folder, INT64_MAX, count, found, error);
}

// ---------------------------------------------------------------------------- writing

static inline bool checkpoint_unlink(const char* path, FileError* error) {
    note_progress();  // file systems may take long over each of many
    if ((file_fault() || unlink(path) != 0) && errno != ENOENT) {
        return file_error(error, errno, "check the output folder's permissions", "cannot remove '%s': %s", path, strerror(errno));
    }
    return true;
}

// DONE first, durably, then the model if it is to go, then the states: while they are there checkpoint_prune comes back for what is left.
static inline bool checkpoint_remove(const char* folder, const CheckpointEntry& e, bool model, FileError* error) {
    char path[FILE_PATH_MAX];
    checkpoint_done_path(path, folder, e.step);
    if (e.done && (!checkpoint_unlink(path, error) || !file_sync_folder(folder, error))) { return false; }
    checkpoint_model_path(path, folder, e.step);
    if (model && !checkpoint_unlink(path, error)) { return false; }
    for (int rank : e.state_ranks) {
        checkpoint_state_path(path, folder, e.step, rank);
        if (!checkpoint_unlink(path, error)) { return false; }
    }
    return true;
}
static inline bool checkpoint_delete(const char* folder, const CheckpointEntry& e, FileError* error) { return checkpoint_remove(folder, e, true, error); }

// Before the files of this step are written: a DONE of an earlier writing of the same step goes (I1), and the states, which may be those of more ranks.
static inline bool checkpoint_begin(const char* folder, int step, FileError* error) {
    std::vector<CheckpointEntry> list;
    if (!checkpoint_list(folder, &list, error)) { return false; }
    for (auto& e : list) { if (e.step == step && !checkpoint_remove(folder, e, false, error)) { return false; } }
    return true;
}

// After all ranks committed their files, which it looks at: what DONE promises is there. After a failure there is no DONE.
static inline bool checkpoint_done(const char* folder, int step, FileError* error) {
    char path[FILE_PATH_MAX];
    AtomicFile f;
    int num_ranks;
    if (!checkpoint_check_files(folder, step, NULL, &num_ranks, error)) { return false; }
    checkpoint_done_path(path, folder, step);
    if (atomic_file_open(&f, path, 0, error) && atomic_file_commit(&f, error)) { return true; }
    unlink(path);
    return false;
}

// After step's checkpoint is done: keeps the newest `keep` good checkpoints up to this step (-nk; 0 keeps all) and every major one (-nm: steps that are
// multiples of `major`; 0: none is). Removes the others, and old states whose DONE is gone (an interrupted removal or writing). A model file
// without states is not touched: someone may have put it there. damaged: steps that checkpoint_verify refused; they are not good ones, whatever they look like.
// deleted: steps removed. out: where each is told before it goes (a kill in between leaves a word), NULL: nowhere.
static inline bool checkpoint_prune(const char* folder, int step, int keep, int major, const std::vector<int>& damaged, std::vector<int>* deleted, FileError* error, FILE* out = NULL) {
    std::vector<CheckpointEntry> list;
    deleted->clear();
    if (keep <= 0) { return true; }
    if (!checkpoint_list(folder, &list, error)) { return false; }
    int good = 0;
    for (auto& e : list) {
        int num_ranks = 0;
        FileError why;
        note_progress();
        if (e.step > step) { continue; }
        const bool known_bad = std::find(damaged.begin(), damaged.end(), e.step) != damaged.end();
        bool is_good = good < keep && !known_bad && checkpoint_check(folder, e, NULL, &num_ranks, &why);
        if (good < keep) { good += is_good; continue; }  // broken ones between the newest good ones may be what someone is looking into
        if (major > 0 && e.step % major == 0) { continue; }
        if (!e.done && e.state_ranks.empty()) { continue; }
        if (out) {
            fprintf(out, "Deleting checkpoint at step %d\n", e.step);
            fflush(out);
        }
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
