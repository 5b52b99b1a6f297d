/* control_join.h - how ranks meet and prove that they belong together, before the control thread starts
 *
 * Meeting:   by MPI the token is random and broadcast with address and port. By file: rank 0 replaces the file (temporary, 0600, rename) and removes it when
 *            all have joined; it has address, port and a random token that only the process that wrote it knows, and is read again before every try. A stale
 *            one therefore leads to nobody or to one who cannot prove the token, for 2 s at most. Rank 0 looks after its file: if another rank 0 took its
 *            place, it ends. The file's name has the launcher's job, its content job, size and a checksum. By TCP the token is made of GPT_JOB_TOKEN;
 *            else of the launcher's job name, which keeps out port scans, strangers and other jobs, not someone who knows the name; else (llm.c's options by
 *            hand) of address, port and size: that keeps out strangers by accident only.
 * Proof:     both sides show a SipHash of two fresh nonces under the token, the hub first; then the peer tells rank, size, identity. What is sent later is
 *            neither encrypted nor authenticated: a trusted network is assumed, as NCCL and MPI do.
 * Strangers: the hub says nothing before the right first word. A connection that has not proved itself is closed by its first wrong byte or after 2 s; there
 *            are 64 + 2 * size of them at most, the oldest silent one makes room. No allocation follows from their bytes.
 * Errors:    false with a FileError; ranks whose failure rank 0 prints end here with the exit code.
 * Tests:     dev/test/test_control.cu */
#ifndef LLMC_CONTROL_JOIN_H
#define LLMC_CONTROL_JOIN_H

#include "llmc/control_state.h"
#include "llmc/siphash.h"

// ----------------------------------------------------------------------------
// meeting: address, port and token

typedef struct {
    char address[64];               // number of rank 0's address
    int32_t port;
    unsigned char token[16];
    int32_t good;                   // by MPI: rank 0 listens; 0: it has printed why it does not
} ControlContact;

// A token from texts that the ranks share.
static inline void control_token_from(unsigned char token[16], const char* kind, const char* text) {
    static const unsigned char keys[2][16] = {"llm.fp8 token 0", "llm.fp8 token 1"};
    char all[1024];
    int n = snprintf(all, sizeof(all), "%s:%s", kind, text);
    for (int i = 0; i < 2; i++) {
        uint64_t half = siphash(keys[i], all, n < (int)sizeof(all) ? (size_t)n : sizeof(all) - 1);
        memcpy(token + 8 * i, &half, 8);
    }
}
static inline void control_token_tcp(unsigned char token[16], const ControlConfig* config) {
    const Ranks* r = config->ranks;
    char place[512];
    snprintf(place, sizeof(place), "%s %d %d", r->address, r->port, r->size);
    if (config->secret && config->secret[0]) { control_token_from(token, "secret", config->secret); }
    else if (r->job[0]) { control_token_from(token, "job", r->job); }
    else { control_token_from(token, "place", place); }
}

// Rank 0's listening socket: on the address of the ranks' description only. *where: what it is bound to.
static inline int control_listen_hub(const Ranks* r, ControlContact* where, FileError* error) {
    struct sockaddr_storage own;
    socklen_t own_length = 0;
    char list[512], text[64];
    int code = 0, fd = -1;
    const int port = r->contact == RANKS_TCP ? r->port : 0;
    const int count = control_own_addresses(&own, &own_length, list, sizeof(list));
    char name[256];
    snprintf(name, sizeof(name), "%s", r->address[0] ? r->address : r->host);
    struct addrinfo* found = control_resolve(name, port, &code);
    if (!found && r->address[0]) {
        file_error(error, 0, "give a number: --server-ip 10.0.0.1", "the address of rank 0, '%s', cannot be resolved on host %s: %s", name, r->host, gai_strerror(code));
        return -1;
    }
    const struct addrinfo* use = found;
    // some systems give their own name a loopback address, which other hosts cannot reach
    const bool literal = control_is_number(name) || !strcmp(name, "localhost");
    while (use && !literal && r->local_size < r->size && control_is_loopback(use->ai_addr)) { use = use->ai_next; }
    if (use) {
        fd = control_listen(use->ai_addr, use->ai_addrlen);
        code = errno;
        control_address_text(use->ai_addr, use->ai_addrlen, text);
    } else if (count == 1 || (count > 1 && !r->address[0])) {
        control_set_port(&own, port);
        fd = control_listen((struct sockaddr*)(void*)&own, own_length);
        code = errno;
        control_address_text((struct sockaddr*)(void*)&own, own_length, text);
    } else {
        file_error(error, 0, "say which address the others can reach: --server-ip ADDRESS", "'%s' is a loopback address on host %s, which the other hosts cannot "
                   "reach; this host has %s", name, r->host, count ? list : "no other");
        if (found) { freeaddrinfo(found); }
        return -1;
    }
    if (found) { freeaddrinfo(found); }
    if (fd < 0) {
        const char* hint = code == EADDRINUSE ? "another job uses it, or an earlier one still ends: choose another (--server-port), or wait"
                         : code == EADDRNOTAVAIL ? "--server-ip must be an address of the host that rank 0 runs on" : "choose another address (--server-ip) or port (--server-port)";
        file_error(error, code, hint, "rank 0 cannot listen on %s port %d (host %s has %s): %s", text, port, r->host, count ? list : "no address but loopback",
                   strerror(code));
        return -1;
    }
    struct sockaddr_storage bound;
    socklen_t length = sizeof(bound);
    getsockname(fd, (struct sockaddr*)(void*)&bound, &length);
    where->port = control_address_text((struct sockaddr*)(void*)&bound, length, where->address);
    return fd;
}

// ---- the file

static inline void control_file_path(const Ranks* r, char path[FILE_PATH_MAX]) {
    char job[256];
    snprintf(job, sizeof(job), "%s %d", r->job, r->size);
    snprintf(path, FILE_PATH_MAX, "%.960s/llm.fp8-%016llx.ranks", r->fs_path, (unsigned long long)xxh64(job, strlen(job), 0));
}

// Text of the file: lines, the last one a checksum of those before.
static inline int control_file_text(const ControlContact* contact, const Ranks* r, char text[1024]) {
    int n = snprintf(text, 960, "llm.fp8 meeting point 1\njob %s\nsize %d\naddress %s\nport %d\ntoken ", r->job, r->size, contact->address, contact->port);
    for (int i = 0; i < 16; i++) { n += snprintf(text + n, 960 - (size_t)n, "%02x", contact->token[i]); }
    n += snprintf(text + n, 960 - (size_t)n, "\n");
    return n + snprintf(text + n, 64, "sum %016llx\n", (unsigned long long)xxh64(text, (size_t)n, 0));
}

// Reads it back. False: not there, another user's, open to others, damaged or of another job; why says which.
static inline bool control_file_read(const char* path, const Ranks* r, ControlContact* contact, char why[256]) {
    char text[1025], again[1024];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        snprintf(why, 256, "its file is not there (%s)", strerror(errno));
        if (fd >= 0) { close(fd); }
        return false;
    }
    ssize_t n = S_ISREG(st.st_mode) ? read(fd, text, sizeof(text) - 1) : -1;
    close(fd);
    if ((st.st_uid != geteuid() && geteuid() != 0) || (st.st_mode & 077)) {
        snprintf(why, 256, "the file belongs to user %u with mode %o, not to this user alone", (unsigned)st.st_uid, (unsigned)(st.st_mode & 0777));
        return false;
    }
    text[n > 0 ? n : 0] = 0;
    memset(contact, 0, sizeof(*contact));
    const char* address = strstr(text, "\naddress ");
    const char* port = strstr(text, "\nport ");
    const char* token = strstr(text, "\ntoken ");
    bool good = address && port && token && strlen(token) >= 7 + 32;
    if (good) {
        snprintf(contact->address, sizeof(contact->address), "%.*s", (int)(strcspn(address + 9, "\n") < 63 ? strcspn(address + 9, "\n") : 63), address + 9);
        contact->port = atoi(port + 6);
        for (int i = 0; i < 16; i++) {
            const char hex[3] = {token[7 + 2 * i], token[8 + 2 * i], 0};
            contact->token[i] = (unsigned char)strtoul(hex, NULL, 16);
        }
        good = control_file_text(contact, r, again) == n && !memcmp(again, text, (size_t)n);  // one form only, checksum, job and size included
    }
    if (!good) { snprintf(why, 256, "its file is damaged or of another job"); }
    return good;
}

static inline bool control_file_write(const char* path, const Ranks* r, const ControlContact* contact, FileError* error) {
    char text[1024], temporary[FILE_PATH_MAX + 32];
    int n = control_file_text(contact, r, text);
    snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write(fd, text, (size_t)n) == n && fsync(fd) == 0;
    int code = errno;
    if (fd >= 0) { close(fd); }
    if (good && rename(temporary, path) != 0) { good = false; code = errno; }
    if (good) { return true; }
    unlink(temporary);
    return file_error(error, code, "choose a folder that this user can write into and all hosts see (--fs-path)", "cannot write the file '%s' by which the ranks "
                      "meet: %s", path, strerror(code));
}

// ----------------------------------------------------------------------------
// joining: the proofs

static inline uint64_t control_prove(const unsigned char token[16], const char label[8], const unsigned char hub[16], const unsigned char peer[16], const void* data, size_t bytes) {
    unsigned char all[8 + 32 + sizeof(ControlJoin)];
    assert(bytes <= sizeof(ControlJoin));
    memcpy(all, label, 8);
    memcpy(all + 8, hub, 16);
    memcpy(all + 24, peer, 16);
    if (bytes) { memcpy(all + 40, data, bytes); }
    return siphash(token, all, 40 + bytes);
}
#define CONTROL_LABEL_HUB "hub---->"
#define CONTROL_LABEL_PEER "peer--->"

// The hub's side: a connection that has not proved itself yet.
typedef struct {
    int fd;                         // -1: free
    bool challenged;                // it has said the first word
    size_t got;
    double since;
    unsigned char nonce[16];
    ControlHello hello;
    ControlJoin join;
} ControlPending;

typedef struct {
    ControlPending* pending;        // (capacity)
    int capacity, joined;
    long dropped;                   // connections that did not prove the token
    uint64_t* instances;            // (size)
    char refused[384];              // what was wrong with the last rank that proved the token and could not join
} ControlDoor;

static inline void control_door_drop(ControlDoor* door, ControlPending* p) {
    close(p->fd);
    p->fd = -1;
    door->dropped++;
}

// Answers a proven rank and closes; status CONTROL_REFUSED or CONTROL_QUIET.
static inline void control_door_refuse(Control* c, ControlPending* p, int status, const char* text) {
    ControlWelcome welcome;
    memset(&welcome, 0, sizeof(welcome));
    welcome.status = status;
    welcome.exit_code = c->config.exit_code;
    snprintf(welcome.text, sizeof(welcome.text), "%s", text);
    control_send_all(p->fd, &welcome, sizeof(welcome), 0);
    shutdown(p->fd, SHUT_WR);
    close(p->fd);
    p->fd = -1;
}

// A proven rank: takes it in, or says why not. False: the whole start has failed (error).
static inline bool control_door_join(Control* c, ControlDoor* door, ControlPending* p, FileError* error) {
    ControlJoin* j = &p->join;
    char text[384];
    j->identity[CONTROL_TEXT_MAX - 1] = j->place.host[sizeof(j->place.host) - 1] = 0;
    if (j->size != c->ranks.size || j->rank < 1 || j->rank >= c->ranks.size) {
        control_door_refuse(c, p, CONTROL_QUIET, "");
        return file_error(error, 0, "start all ranks by one command; with -pn and -pr, give all the same -pn and each its own -pr",
                          "host %s joins as rank %d of %d, but rank 0 (host %s) has %d ranks", j->place.host, j->rank, j->size, c->ranks.host, c->ranks.size);
    }
    if (strcmp(j->identity, c->identity)) {
        control_door_refuse(c, p, CONTROL_QUIET, "");
        return file_error(error, 0, "start all ranks with the same program and the same options", "rank %d (host %s) is '%s', rank 0 (host %s) is '%s'", j->rank,
                          j->place.host, j->identity, c->ranks.host, c->identity);
    }
    ControlLink* l = &c->links[j->rank];
    if (l->fd >= 0 && door->instances[j->rank] != j->instance) {
        snprintf(text, sizeof(text), "two processes are rank %d: pid %d on host %s, which came first, and pid %d on host %s", j->rank, c->places[j->rank].pid,
                 c->places[j->rank].host, j->place.pid, j->place.host);
        snprintf(door->refused, sizeof(door->refused), "%s", text);
        control_door_refuse(c, p, CONTROL_REFUSED, text);
        return true;
    }
    ControlWelcome welcome;
    memset(&welcome, 0, sizeof(welcome));
    if (!control_send_all(p->fd, &welcome, sizeof(welcome), 0)) { control_door_drop(door, p); return true; }
    if (l->fd >= 0) { control_link_close(l); door->joined--; }
    struct sockaddr_storage a;
    socklen_t length = sizeof(a);
    c->places[j->rank] = j->place;
    c->places[j->rank].address[0] = 0;
    if (getpeername(p->fd, (struct sockaddr*)(void*)&a, &length) == 0) { control_address_text((struct sockaddr*)(void*)&a, length, c->places[j->rank].address); }
    door->instances[j->rank] = j->instance;
    control_link_init(l, p->fd);
    p->fd = -1;
    door->joined++;
    return true;
}

// Bytes of a pending connection. False: the whole start has failed.
static inline bool control_door_read(Control* c, ControlDoor* door, ControlPending* p, const unsigned char token[16], FileError* error) {
    while (p->fd >= 0) {
        unsigned char* to = p->challenged ? (unsigned char*)&p->join : (unsigned char*)&p->hello;
        const size_t due = p->challenged ? sizeof(p->join) : sizeof(p->hello);
        ssize_t n = recv(p->fd, to + p->got, due - p->got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) { return true; }
        if (n <= 0) { control_door_drop(door, p); return true; }
        p->got += (size_t)n;
        if (!p->challenged) {
            const size_t look = p->got < 8 ? p->got : 8;
            if (memcmp(p->hello.magic, CONTROL_MAGIC, look)) { control_door_drop(door, p); return true; }
        }
        if (p->got < due) { continue; }
        p->got = 0;
        if (!p->challenged) {
            ControlChallenge challenge;
            if (!control_random(p->nonce, sizeof(p->nonce))) { control_door_drop(door, p); return true; }
            memcpy(challenge.nonce, p->nonce, sizeof(p->nonce));
            challenge.proof = control_prove(token, CONTROL_LABEL_HUB, p->nonce, p->hello.nonce, NULL, 0);
            p->challenged = true;
            if (!control_send_all(p->fd, &challenge, sizeof(challenge), 0)) { control_door_drop(door, p); }
            continue;
        }
        if (p->join.proof != control_prove(token, CONTROL_LABEL_PEER, p->nonce, p->hello.nonce, &p->join, offsetof(ControlJoin, proof))) {
            control_door_drop(door, p);
            return true;
        }
        return control_door_join(c, door, p, error);
    }
    return true;
}

// A new connection; if all places are taken the oldest goes, first among those that have said nothing.
static inline void control_door_accept(ControlDoor* door, int listener, double now) {
    for (int i = 0; i < 64; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
        if (fd < 0 && errno != EMFILE && errno != ENFILE) { return; }
        ControlPending *place = NULL, *oldest = NULL;
        for (int k = 0; k < door->capacity; k++) {
            ControlPending* p = &door->pending[k];
            if (p->fd < 0) { place = p; continue; }
            if (!oldest || (oldest->challenged && !p->challenged) || (oldest->challenged == p->challenged && p->since < oldest->since)) { oldest = p; }
        }
        if ((!place || fd < 0) && oldest) { control_door_drop(door, oldest); place = oldest; }
        if (fd < 0) { return; }  // no descriptor was free: one is now
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        memset(place, 0, sizeof(*place));
        place->fd = fd;
        place->since = now;
    }
}

static inline bool control_missing_error(const Control* c, const ControlDoor* door, const ControlContact* where, FileError* error) {
    char missing[256] = "", more[512] = "";
    int count = 0;
    for (int r = 1; r < c->ranks.size; r++) {
        if (c->links[r].fd >= 0) { continue; }
        size_t used = strlen(missing);
        if (count++ < 16) { snprintf(missing + used, sizeof(missing) - used, "%s%d", count > 1 ? ", " : "", r); }
    }
    if (door->refused[0]) { snprintf(more, sizeof(more), "; refused: %s", door->refused); }
    if (door->dropped) { snprintf(more + strlen(more), sizeof(more) - strlen(more), "; %ld connections did not prove the job's token", door->dropped); }
    return file_error(error, 0, "look at the messages of those ranks, if they were started at all; can their hosts reach this address (firewall; --server-ip)? --join-seconds waits longer",
                      "%d of %d ranks have not joined within %.1f s: missing %s%s (rank 0 on host %s listens on %s port %d)%s", count, c->ranks.size,
                      c->config.join_seconds, missing, count > 16 ? " ..." : "", c->ranks.host, where->address, where->port, more);
}

// Rank 0 takes the others in. path: the file, "" if there is none.
static inline bool control_join_hub(Control* c, int listener, const ControlContact* where, const char* path, FileError* error) {
    ControlDoor door;
    memset(&door, 0, sizeof(door));
    door.capacity = 64 + 2 * c->ranks.size;
    door.pending = (ControlPending*)mallocCheck((size_t)door.capacity * sizeof(ControlPending));
    door.instances = (uint64_t*)mallocCheck((size_t)c->ranks.size * sizeof(uint64_t));
    const int polls_max = 1 + door.capacity + c->ranks.size;
    struct pollfd* polls = (struct pollfd*)mallocCheck((size_t)polls_max * sizeof(struct pollfd));
    for (int i = 0; i < door.capacity; i++) { door.pending[i].fd = -1; }
    const double deadline = control_monotonic() + c->config.join_seconds;
    double looked = control_monotonic();
    bool good = true;
    while (good && door.joined < c->ranks.size - 1) {
        int n = 0;
        polls[n++] = {listener, POLLIN, 0};
        for (int i = 0; i < door.capacity; i++) { polls[n++] = {door.pending[i].fd, POLLIN, 0}; }  // poll skips -1
        for (int r = 1; r < c->ranks.size; r++) { polls[n++] = {c->links[r].fd, POLLRDHUP, 0}; }   // they are silent until the start
        double now = control_monotonic();
        if (now > deadline) { good = control_missing_error(c, &door, where, error); break; }
        if (poll(polls, (nfds_t)n, 50) < 0 && errno != EINTR) { control_sleep(0.01); }
        now = control_monotonic();
        for (int r = 1; r < c->ranks.size; r++) {
            if (c->links[r].fd < 0 || !polls[door.capacity + r].revents) { continue; }
            snprintf(door.refused, sizeof(door.refused), "rank %d (pid %d on host %s) had joined and ended", r, c->places[r].pid, c->places[r].host);
            control_link_close(&c->links[r]);
            door.joined--;
        }
        for (int i = 0; i < door.capacity && good; i++) {
            ControlPending* p = &door.pending[i];
            if (p->fd >= 0 && polls[1 + i].revents) { good = control_door_read(c, &door, p, where->token, error); }
            if (p->fd >= 0 && now - p->since > CONTROL_PROOF_SECONDS) { control_door_drop(&door, p); }
        }
        if (polls[0].revents) { control_door_accept(&door, listener, now); }
        if (good && path[0] && now - looked > 0.5) {
            ControlContact seen;
            char why[256];
            looked = now;
            if (control_file_read(path, &c->ranks, &seen, why)) {
                if (memcmp(seen.token, where->token, 16)) {
                    good = file_error(error, 0, "give each run its own --fs-path, or wait until the other has started", "another rank 0 has put its file in the "
                                      "place of '%s': two runs meet in one folder", path);
                }
            } else {
                good = control_file_write(path, &c->ranks, where, error);  // somebody cleaned up
            }
        }
    }
    for (int i = 0; i < door.capacity; i++) { if (door.pending[i].fd >= 0) { close(door.pending[i].fd); } }
    free(polls);
    free(door.pending);
    free(door.instances);
    return good;
}

// The peer's side. JOINED: *fd. AGAIN: why. REFUSED: by a hub that proved the token, why. QUIET: rank 0 prints; *code.
typedef enum { CONTROL_JOINED, CONTROL_AGAIN, CONTROL_NO } ControlTry;

static inline ControlTry control_try(Control* c, const struct addrinfo* a, const unsigned char token[16], uint64_t instance, double deadline, char why[512]) {
    ControlHello hello;
    ControlChallenge challenge;
    ControlJoin join;
    ControlWelcome welcome;
    struct sockaddr_storage own;
    socklen_t length = sizeof(own);
    char text[64];
    memcpy(hello.magic, CONTROL_MAGIC, sizeof(hello.magic));
    if (!control_random(hello.nonce, sizeof(hello.nonce))) { snprintf(why, 512, "no random numbers (%s)", strerror(errno)); return CONTROL_AGAIN; }
    int fd = control_connect(a->ai_addr, a->ai_addrlen, deadline);
    if (fd < 0) { snprintf(why, 512, "%s", strerror(errno)); return CONTROL_AGAIN; }
    if (!control_send_all(fd, &hello, sizeof(hello), deadline) || !control_receive_all(fd, &challenge, sizeof(challenge), deadline)) {
        snprintf(why, 512, "what listens there does not answer as rank 0 does (%s)", strerror(errno));
        close(fd);
        return CONTROL_AGAIN;
    }
    if (challenge.proof != control_prove(token, CONTROL_LABEL_HUB, challenge.nonce, hello.nonce, NULL, 0)) {
        snprintf(why, 512, "what listens there does not know this job's token: another job, or another GPT_JOB_TOKEN");
        close(fd);
        return CONTROL_AGAIN;
    }
    memset(&join, 0, sizeof(join));
    join.rank = c->ranks.rank;
    join.size = c->ranks.size;
    join.instance = instance;
    control_place_init(&join.place, &c->ranks);
    if (c->listener < 0 && getsockname(fd, (struct sockaddr*)(void*)&own, &length) == 0) {
        control_set_port(&own, 0);
        c->listener = control_listen((struct sockaddr*)(void*)&own, length);
    }
    length = sizeof(own);
    if (c->listener >= 0 && getsockname(c->listener, (struct sockaddr*)(void*)&own, &length) == 0) {
        join.place.port = control_address_text((struct sockaddr*)(void*)&own, length, text);
    }
    snprintf(join.identity, sizeof(join.identity), "%s", c->identity);
    join.proof = control_prove(token, CONTROL_LABEL_PEER, challenge.nonce, hello.nonce, &join, offsetof(ControlJoin, proof));
    if (!control_send_all(fd, &join, sizeof(join), deadline) || !control_receive_all(fd, &welcome, sizeof(welcome), deadline)) {
        snprintf(why, 512, "rank 0 did not take this rank's proof (%s)", strerror(errno));
        close(fd);
        return CONTROL_AGAIN;
    }
    if (welcome.status == CONTROL_WELCOME) { control_link_init(&c->links[0], fd); return CONTROL_JOINED; }
    close(fd);
    if (welcome.status == CONTROL_QUIET) { _exit(welcome.exit_code); }
    welcome.text[sizeof(welcome.text) - 1] = 0;
    snprintf(why, 512, "%s", welcome.text);
    return CONTROL_NO;
}

static inline bool control_join_peer(Control* c, const ControlContact* given, const char* path, FileError* error) {
    char why[512] = "", address[256];
    uint64_t instance = 0;
    const Ranks* r = &c->ranks;
    ControlContact contact = *given;
    snprintf(address, sizeof(address), "%s", r->contact == RANKS_TCP ? r->address : contact.address);
    control_random(&instance, sizeof(instance));
    const double deadline = control_monotonic() + c->config.join_seconds;
    for (double pause = 0.02; control_monotonic() < deadline; pause = pause < 0.25 ? pause * 1.5 : 0.25) {
        bool known = true;
        if (path[0]) {
            known = control_file_read(path, r, &contact, why);
            if (known) { snprintf(address, sizeof(address), "%s", contact.address); }
        }
        int code = 0;
        struct addrinfo* list = known ? control_resolve(address, contact.port, &code) : NULL;
        if (known && !list) { snprintf(why, sizeof(why), "the address cannot be resolved: %s", gai_strerror(code)); }
        for (struct addrinfo* a = list; a; a = a->ai_next) {
            ControlTry got = control_try(c, a, contact.token, instance, control_monotonic() + CONTROL_PROOF_SECONDS, why);
            if (got == CONTROL_AGAIN) { continue; }
            freeaddrinfo(list);
            if (got == CONTROL_JOINED) { return true; }
            return file_error(error, 0, "start each rank once: with -pr, each its own number", "rank %d (host %s) cannot join: %s", r->rank, r->host, why);
        }
        if (list) { freeaddrinfo(list); }
        control_sleep(pause);
    }
    char where[FILE_PATH_MAX + 64];
    if (path[0]) { snprintf(where, sizeof(where), "by the file '%s'", path); }
    else { snprintf(where, sizeof(where), "at %s port %d (%s)", address, contact.port, ranks_contact_name(r->contact)); }
    return file_error(error, 0, path[0] ? "is rank 0 started, does it see the same folder (--fs-path), can this host reach its address (--server-ip)? --join-seconds waits longer"
                                        : "is rank 0 started, and can this host reach that address (firewall; --server-ip, --server-port)? --join-seconds waits longer",
                      "rank %d (host %s) has not reached rank 0 %s within %.1f s: %s", r->rank, r->host, where, c->config.join_seconds, why);
}

#endif
