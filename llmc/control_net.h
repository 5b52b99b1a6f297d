/* control_net.h - what the control plane needs from the system: a clock, random bytes, TCP sockets with deadlines, this host's addresses, processes
 *
 * Errors:    -1, NULL or false, with errno. Deadlines are times of control_monotonic(). Every socket is non-blocking and closed on exec.
 * Tests:     dev/test/test_control.cu */
#ifndef LLMC_CONTROL_NET_H
#define LLMC_CONTROL_NET_H

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include "llmc/ranks.h"

static inline double control_monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline struct timespec control_timespec(double monotonic) {
    struct timespec t;
    t.tv_sec = (time_t)monotonic;
    t.tv_nsec = (long)((monotonic - (double)t.tv_sec) * 1e9);
    return t;
}
static inline void control_sleep(double seconds) { struct timespec t = control_timespec(seconds); nanosleep(&t, NULL); }

static inline bool control_random(void* data, size_t bytes) {
    return getrandom(data, bytes, 0) == (ssize_t)bytes;  // up to 256 bytes come whole
}

// Waits until fd is ready for events; false: the deadline (monotonic) passed.
static inline bool control_wait_fd(int fd, short events, double deadline) {
    struct pollfd p = {fd, events, 0};
    while (true) {
        double left = deadline - control_monotonic();
        if (left <= 0) { return false; }
        int n = poll(&p, 1, (int)(left * 1000) + 1);
        if (n > 0) { return true; }
        if (n < 0 && errno != EINTR) { return false; }
    }
}
static inline bool control_send_all(int fd, const void* data, size_t bytes, double deadline) {
    const char* p = (const char*)data;
    while (bytes > 0) {
        ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) { p += n; bytes -= (size_t)n; continue; }
        if (n < 0 && errno != EAGAIN && errno != EINTR) { return false; }
        if (!control_wait_fd(fd, POLLOUT, deadline)) { return false; }
    }
    return true;
}
static inline bool control_receive_all(int fd, void* data, size_t bytes, double deadline) {
    char* p = (char*)data;
    while (bytes > 0) {
        if (!control_wait_fd(fd, POLLIN, deadline)) { errno = ETIMEDOUT; return false; }
        ssize_t n = recv(fd, p, bytes, MSG_DONTWAIT);
        if (n == 0) { errno = ECONNRESET; return false; }
        if (n < 0 && errno != EAGAIN && errno != EINTR) { return false; }
        if (n > 0) { p += n; bytes -= (size_t)n; }
    }
    return true;
}

// The number of an address, and its port.
static inline int control_address_text(const struct sockaddr* a, socklen_t length, char text[64]) {
    char port[16] = "0";
    text[0] = 0;
    if (getnameinfo(a, length, text, 64, port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) { text[0] = 0; }
    return atoi(port);
}
static inline bool control_is_loopback(const struct sockaddr* a) {
    if (a->sa_family == AF_INET) { return (ntohl(((const struct sockaddr_in*)(const void*)a)->sin_addr.s_addr) >> 24) == 127; }
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6*)(const void*)a)->sin6_addr);
}
static inline struct addrinfo* control_resolve(const char* address, int port, int* code) {
    struct addrinfo hints, *list = NULL;
    char service[16];
    memset(&hints, 0, sizeof(hints));
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    snprintf(service, sizeof(service), "%d", port);
    *code = getaddrinfo(address, service, &hints, &list);
    return *code == 0 ? list : NULL;
}
static inline bool control_is_number(const char* address) {
    unsigned char binary[16];
    return inet_pton(AF_INET, address, binary) == 1 || inet_pton(AF_INET6, address, binary) == 1;
}

// Listens on one address. -1 with errno if that is impossible.
static inline int control_listen(const struct sockaddr* a, socklen_t length) {
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0) { return -1; }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // connections of an earlier run may still linger on the port
    if (bind(fd, a, length) == 0 && listen(fd, SOMAXCONN) == 0) { return fd; }
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

// Connects within seconds; -1 with errno.
static inline int control_connect(const struct sockaddr* a, socklen_t length, double deadline) {
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, code = 0;
    if (fd < 0) { return -1; }
    socklen_t size = sizeof(code);
    if (connect(fd, a, length) != 0) {
        code = errno;
        if (code == EINPROGRESS) {
            if (!control_wait_fd(fd, POLLOUT, deadline)) { code = ETIMEDOUT; }
            else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0) { code = errno; }
        }
    }
    if (code == 0) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); return fd; }
    close(fd);
    errno = code;
    return -1;
}

// Addresses of this host that others can reach: the first to *a, all as text. IPv4 first.
static inline int control_own_addresses(struct sockaddr_storage* a, socklen_t* length, char* list, size_t capacity) {
    struct ifaddrs* all = NULL;
    int count = 0;
    list[0] = 0;
    if (getifaddrs(&all) != 0) { return 0; }
    static const int families[] = {AF_INET, AF_INET6};
    for (int family : families) {
        if (family == AF_INET6 && count > 0) { break; }
        for (struct ifaddrs* i = all; i; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) || control_is_loopback(i->ifa_addr)) { continue; }
            if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6*)(void*)i->ifa_addr)->sin6_addr)) { continue; }
            socklen_t bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            char text[64];
            control_address_text(i->ifa_addr, bytes, text);
            size_t used = strlen(list);
            snprintf(list + used, capacity - used, "%s%s", count ? ", " : "", text);
            if (count++ == 0) { memcpy(a, i->ifa_addr, bytes); *length = bytes; }
        }
    }
    freeifaddrs(all);
    return count;
}

static inline void control_set_port(struct sockaddr_storage* a, int port) {
    if (a->ss_family == AF_INET) { ((struct sockaddr_in*)(void*)a)->sin_port = htons((uint16_t)port); }
    else { ((struct sockaddr_in6*)(void*)a)->sin6_port = htons((uint16_t)port); }
}

// When a process of this host started, in the system's ticks; 0: there is none.
static inline uint64_t control_process_start(int pid) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return 0; }
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char* p = strrchr(text, ')');  // the name before it may contain anything
    for (int field = 2; p && field < 22; field++) {
        p = strchr(p + 1, ' ');
    }
    return p ? strtoull(p, NULL, 10) : 0;
}

#endif
