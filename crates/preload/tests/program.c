/* A program that speaks SMB's frames over TCP, as any SMB client: run with and without `smbdirect run`, it must
 * see the same. Arguments: an address where a peer returns each frame, one where nothing listens, the port
 * of both, and perhaps an address where connecting takes forever. With the arguments `send`, an address and a port,
 * it sends one frame and exits; with `copy`, a descriptor, an address and a port, it uses a connection. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *server, *nobody;
static int port;

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno));   \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static struct sockaddr_in at(const char *host)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((unsigned short)port) };
    CHECK(inet_pton(AF_INET, host, &address.sin_addr) == 1);
    return address;
}

static int connect_to(int fd, const char *host)
{
    struct sockaddr_in address = at(host);
    return connect(fd, (struct sockaddr *)&address, sizeof address);
}

static void write_all(int fd, const void *data, size_t length)
{
    const char *from = data;
    while (length > 0) {
        ssize_t written = send(fd, from, length, MSG_NOSIGNAL);
        CHECK(written > 0);
        from += written;
        length -= (size_t)written;
    }
}

static void read_all(int fd, void *data, size_t length)
{
    char *to = data;
    while (length > 0) {
        ssize_t got = recv(fd, to, length, 0);
        CHECK(got > 0);
        to += got;
        length -= (size_t)got;
    }
}

/* Sends a frame and compares the one that comes back. */
static void echo(int fd, size_t length)
{
    unsigned char header[4] = { 0, (unsigned char)(length >> 16), (unsigned char)(length >> 8),
                                (unsigned char)length };
    unsigned char returned[4];
    char *out = malloc(length), *in = malloc(length);
    CHECK(out != NULL && in != NULL);
    for (size_t i = 0; i < length; i++)
        out[i] = (char)(i * 7);
    write_all(fd, header, 4);
    write_all(fd, out, length);
    read_all(fd, returned, 4);
    CHECK(memcmp(header, returned, 4) == 0);
    read_all(fd, in, length);
    CHECK(memcmp(out, in, length) == 0);
    free(out);
    free(in);
}

static int error_of(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && length == sizeof error);
    return error;
}

/* Returns whether the socket has a peer. */
static int is_connected(int fd)
{
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int status = getpeername(fd, (struct sockaddr *)&peer, &length);
    CHECK(status == 0 || errno == ENOTCONN);
    return status == 0;
}

static void blocking(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in peer, expected = at(server);
    socklen_t length = sizeof peer;

    CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(connect_to(fd, server) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && length == sizeof peer);
    CHECK(peer.sin_family == AF_INET && peer.sin_port == expected.sin_port
          && peer.sin_addr.s_addr == expected.sin_addr.s_addr);
    length = sizeof peer;
    CHECK(getsockname(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_family == AF_INET);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
    CHECK(error_of(fd) == 0);
    CHECK(connect_to(fd, server) == -1 && errno == EISCONN);
    echo(fd, 1);
    echo(fd, 100000);
    /* A child inherits the connection, as one of TCP. */
    pid_t child = fork();
    if (child == 0) {
        echo(fd, 5000);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    echo(fd, 3);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(recv(fd, &one, sizeof one, 0) == 0);
    CHECK(close(fd) == 0);

    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect_to(fd, nobody) == -1 && errno == ECONNREFUSED);
    CHECK(close(fd) == 0);

    /* A number that becomes another socket is no connection any more. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect_to(fd, server) == 0);
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fresh >= 0 && dup2(fresh, fd) == fd && close(fresh) == 0);
    length = sizeof peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == -1 && errno == ENOTCONN);
    CHECK(connect_to(fd, server) == 0);
    echo(fd, 10);
    CHECK(close(fd) == 0);
}

/* Waits by one of three calls until a descriptor is writable. */
static void wait_writable(int fd, int how)
{
    if (how == 0) {
        struct pollfd wait = { fd, POLLOUT, 0 };
        CHECK(poll(&wait, 1, 10000) == 1);
    } else if (how == 1) {
        fd_set set;
        struct timeval limit = { 10, 0 };
        FD_ZERO(&set);
        FD_SET(fd, &set);
        CHECK(select(fd + 1, NULL, &set, NULL, &limit) == 1);
    } else {
        struct epoll_event event = { .events = EPOLLOUT };
        int epoll = epoll_create1(0);
        CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(epoll_wait(epoll, &event, 1, 10000) == 1);
        CHECK(close(epoll) == 0);
    }
}

static void non_blocking(int how)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    char byte;
    CHECK(connect_to(fd, server) == -1 && errno == EINPROGRESS);
    wait_writable(fd, how);
    CHECK(error_of(fd) == 0);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
    CHECK((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0 && fcntl(fd, F_SETFL, 0) == 0);
    echo(fd, 70000);
    CHECK(close(fd) == 0);

    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect_to(fd, nobody) == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    if (errno == EINPROGRESS) {
        wait_writable(fd, how);
        CHECK(error_of(fd) == ECONNREFUSED);
        CHECK(error_of(fd) == 0);
        CHECK(!is_connected(fd));
        /* This says that the attempt is over, and the next one is another. */
        CHECK(connect_to(fd, server) == -1 && errno == ECONNABORTED);
    }
    CHECK(!is_connected(fd));
    CHECK(connect_to(fd, server) == -1 && errno == EINPROGRESS);
    wait_writable(fd, how);
    CHECK(error_of(fd) == 0 && is_connected(fd));
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    echo(fd, 10);
    CHECK(close(fd) == 0);

    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect_to(fd, nobody) == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
    if (errno == EINPROGRESS) {
        wait_writable(fd, how);
        CHECK(connect_to(fd, server) == -1 && errno == ECONNREFUSED);
    }
    CHECK(close(fd) == 0);
}

/* Programs may wait before they connect: epoll keeps the socket, with the data of the program. */
static void epoll_before_connect(void)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 0x123456789abcdef };
    int epoll = epoll_create1(0), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), other = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, other, &event) == 0 && close(other) == 0);
    /* A socket that is not connected has events. */
    CHECK(epoll_wait(epoll, &event, 1, 0) >= 0);
    CHECK(connect_to(fd, server) == -1 && errno == EINPROGRESS);
    do
        CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.data.u64 == 0x123456789abcdef);
    while ((event.events & EPOLLHUP) != 0);
    CHECK((event.events & EPOLLOUT) != 0 && error_of(fd) == 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
    CHECK(close(epoll) == 0 && close(fd) == 0);
}

/* A number that becomes another file is no connection any more, however it came to that. */
static void other_files(void)
{
    int pair[2], domain = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    CHECK(connect_to(fd, server) == 0);
    FILE *stream = fdopen(fd, "r+");
    CHECK(stream != NULL && fclose(stream) == 0);
    /* The lowest free number is the one that was closed. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == fd);
    CHECK(getpeername(fd, (struct sockaddr *)&name, &length) == 0 && name.ss_family == AF_UNIX);
    length = sizeof domain;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &domain, sizeof domain) == -1 && errno == EOPNOTSUPP);
    CHECK(connect_to(fd, server) == -1 && errno != EALREADY && errno != EINTR);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);

    /* A program that closes all numbers that it does not know. */
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect_to(fd, server) == -1 && errno == EINPROGRESS);
    CHECK(syscall(SYS_close_range, fd + 1, ~0U, 0) == 0);
    int files[8];
    for (int i = 0; i < 8; i++)
        CHECK((files[i] = open("/dev/null", O_RDONLY)) >= 0);
    wait_writable(fd, 0);
    CHECK(error_of(fd) == 0 && is_connected(fd) && fcntl(fd, F_SETFL, 0) == 0);
    echo(fd, 10);
    CHECK(close(fd) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(fcntl(files[i], F_GETFD) >= 0 && close(files[i]) == 0);

    /* A child of vfork() has the memory of its parent, and descriptors of its own. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect_to(fd, server) == 0);
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && is_connected(fd));
    echo(fd, 10);
    CHECK(close(fd) == 0);
}

/* Time limits of a socket are set before or after it is connected. */
static void time_limits(void)
{
    struct timeval limit = { 0, 50000 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(connect_to(fd, server) == 0);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
    CHECK(close(fd) == 0);
}

static void on_signal(int number)
{
    (void)number;
}

/* A connect that takes forever ends at a signal and at the time limit, and goes on behind the program. */
static void interrupted(const char *mute)
{
    struct timeval limit = { 0, 100000 };
    struct itimerval timer = { { 0, 100000 }, { 0, 100000 } }, none = { { 0, 0 }, { 0, 0 } };
    struct sigaction action = { .sa_handler = on_signal };
    struct pollfd wait = { -1, POLLOUT, 0 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    CHECK(connect_to(fd, mute) == -1 && errno == EINPROGRESS);
    CHECK(!is_connected(fd) && error_of(fd) == 0);
    CHECK(connect_to(fd, mute) == -1 && errno == EALREADY);
    wait.fd = fd;
    CHECK(poll(&wait, 1, 0) == 0 && close(fd) == 0);

    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
    CHECK(connect_to(fd, mute) == -1 && errno == EINTR);
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && connect_to(fd, mute) == -1 && errno == EALREADY);
    wait.fd = fd;
    CHECK(!is_connected(fd) && poll(&wait, 1, 0) == 0 && close(fd) == 0);
}

enum { VICTIMS = 20 };
static int victims[VICTIMS], asked;
static volatile sig_atomic_t closed;
static volatile int stop;

/* Closes the next connection. POSIX lets signal handlers call close(). */
static void close_one(int number)
{
    (void)number;
    if (closed < VICTIMS)
        close(victims[closed++]);
}

static void *ask(void *unused)
{
    while (!stop)
        CHECK(error_of(asked) == 0);
    return unused;
}

/* Signal handlers and forked processes close connections while others use them. */
static void signals_and_forks(void)
{
    struct itimerval timer = { { 0, 1000 }, { 0, 1000 } }, none = { { 0, 0 }, { 0, 0 } };
    struct sigaction action = { .sa_handler = close_one, .sa_flags = SA_RESTART };
    pthread_t thread;
    for (int i = 0; i < VICTIMS; i++) {
        victims[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect_to(victims[i], server) == 0);
    }
    asked = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect_to(asked, server) == 0);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
    while (closed < VICTIMS)
        CHECK(error_of(asked) == 0);
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);

    CHECK(pthread_create(&thread, NULL, ask, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            CHECK(error_of(asked) == 0);
            _exit(close(asked));
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    echo(asked, 10);
    CHECK(close(asked) == 0);
}

/* Connects, and checks that a copy of the socket that was made before is connected, too. */
static void connected_copy(int fd, int copy)
{
    CHECK(connect_to(fd, server) == 0 && is_connected(copy) && close(fd) == 0);
    echo(copy, 300);
    CHECK(close(copy) == 0);
}

/* A socket is one object with several descriptors, also those from before it is connected. */
static void copies(char **argv)
{
    struct rlimit files = { 6000, 6000 };
    int fd = socket(AF_INET, SOCK_STREAM, 0), pair[2], status;
    connected_copy(fd, dup(fd));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(dup2(fd, 200) == 200);
    connected_copy(200, fd);
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    connected_copy(fcntl(fd, F_DUPFD_CLOEXEC, 5000), fd);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    connected_copy(fd, fcntl(fd, F_DUPFD, 5000));

    /* A descriptor that is in a message while the socket is connected. */
    char byte = 0, control[CMSG_SPACE(sizeof fd)];
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && connect_to(fd, server) == 0 && close(fd) == 0);
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    CHECK(is_connected(fd) && close(pair[0]) == 0 && close(pair[1]) == 0);
    echo(fd, 20);
    CHECK(close(fd) == 0);

    /* A child connects, and executes a program that uses the connection. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    pid_t child = fork();
    if (child == 0) {
        char number[12];
        snprintf(number, sizeof number, "%d", fd);
        CHECK(connect_to(fd, server) == 0);
        execl("/proc/self/exe", argv[0], "copy", number, server, argv[3], (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(is_connected(fd));
    echo(fd, 1);
    CHECK(close(fd) == 0);
}

/* Checks the name of the peer, as a program that got the socket by exec. */
static int copy_after_exec(int fd, const char *host)
{
    struct sockaddr_in peer, expected = at(host);
    socklen_t length = sizeof peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && length == sizeof peer);
    CHECK(memcmp(&peer, &expected, sizeof peer) == 0);
    echo(fd, 4000);
    return 7;
}

/* Answers arrive after the program has shut down its sending side, then the end. */
static void half_close(void)
{
    unsigned char frames[] = { 0x85, 0, 0, 0, 0, 0, 0, 1, 'a', 0, 0, 0, 0, 0, 0, 0, 2, 'b', 'c' };
    unsigned char answer[11];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect_to(fd, server) == 0);
    /* Keepalives of NetBIOS and empty frames are nothing. */
    write_all(fd, frames, sizeof frames);
    CHECK(shutdown(fd, SHUT_WR) == 0 && send(fd, frames, 4, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    read_all(fd, answer, sizeof answer);
    CHECK(memcmp(answer, frames + 4, 5) == 0 && memcmp(answer + 5, frames + 13, 6) == 0);
    CHECK(recv(fd, answer, 1, 0) == 0 && close(fd) == 0);
}

/* Names of sockets, and pointers and lengths that are wrong. */
static void names(void)
{
    struct sockaddr_storage name, long_name = { 0 };
    struct sockaddr_in bound = { .sin_family = AF_INET }, expected = at(server), own;
    socklen_t length = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)8, sizeof expected) == -1 && errno == EFAULT);
    CHECK(connect(fd, NULL, sizeof expected) == -1 && errno == EFAULT);
    CHECK(connect(fd, (struct sockaddr *)&expected, 8) == -1 && errno == EINVAL);
    CHECK(connect(fd, (struct sockaddr *)&expected, (socklen_t)-1) == -1 && errno == EINVAL);
    memcpy(&long_name, &expected, sizeof expected);
    CHECK(inet_pton(AF_INET, "127.0.0.1", &bound.sin_addr) == 1);
    length = sizeof bound;
    CHECK(bind(fd, (struct sockaddr *)&bound, length) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&bound, &length) == 0);
    CHECK(connect(fd, (struct sockaddr *)&long_name, sizeof long_name) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&own, &length) == 0 && memcmp(&own, &bound, sizeof own) == 0);
    length = sizeof name;
    CHECK(getpeername(fd, (struct sockaddr *)&name, &length) == 0 && length == sizeof expected);
    /* A short buffer gets the beginning, and the whole length. */
    memset(&name, 0xff, sizeof name);
    length = 4;
    CHECK(getpeername(fd, (struct sockaddr *)&name, &length) == 0 && length == sizeof expected);
    CHECK(memcmp(&name, &expected, 4) == 0 && ((unsigned char *)&name)[4] == 0xff);
    length = (socklen_t)-1;
    CHECK(getpeername(fd, (struct sockaddr *)&name, &length) == -1 && errno == EINVAL);
    length = sizeof name;
    CHECK(getpeername(fd, (struct sockaddr *)8, &length) == -1 && errno == EFAULT);
    CHECK(getpeername(fd, (struct sockaddr *)&name, (socklen_t *)8) == -1 && errno == EFAULT);
    /* Disconnected, it connects again. */
    echo(fd, 2);
    name.ss_family = AF_UNSPEC;
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof bound) == 0 && !is_connected(fd));
    CHECK(connect_to(fd, server) == 0);
    echo(fd, 2);
    CHECK(close(fd) == 0);
}

/* The first use of a socket whose connection was refused says so. */
static void refused(void)
{
    char byte = 0;
    for (int sends = 0; sends < 2; sends++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(connect_to(fd, nobody) == -1 && errno == EINPROGRESS);
        wait_writable(fd, 0);
        CHECK((sends ? send(fd, &byte, 1, MSG_NOSIGNAL) : recv(fd, &byte, 1, 0)) == -1 && errno == ECONNREFUSED);
        CHECK(close(fd) == 0);
    }
}

/* Options and flags that are set before connecting stay. */
static void options(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0), value = 0;
    struct linger linger = { 1, 5 };
    socklen_t length = sizeof value;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 77 }, sizeof one) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(signal(SIGIO, on_signal) != SIG_ERR && fcntl(fd, F_SETOWN, getpid()) == 0);
    CHECK(fcntl(fd, F_SETFL, O_ASYNC) == 0 && connect_to(fd, server) == 0);
    CHECK((fcntl(fd, F_GETFL) & (O_ASYNC | O_NONBLOCK)) == O_ASYNC && fcntl(fd, F_SETFL, 0) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length) == 0 && value == 1);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, &length) == 0 && value == 77);
    CHECK(setsockopt(fd, IPPROTO_TCP, 9999, &one, sizeof one) == -1 && errno == ENOPROTOOPT);
    echo(fd, 5);
    CHECK(close(fd) == 0);
}

/* Every call that moves data. */
static void calls(void)
{
    unsigned char frame[] = { 0, 0, 0, 2, 'h', 'i' }, answer[sizeof frame];
    struct sockaddr_in address = at(server);
    int fd = socket(AF_INET, SOCK_STREAM, 0), pipes[2];
    /* With TCP Fast Open the first data connects. */
    CHECK(sendto(fd, frame, sizeof frame, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address) == sizeof frame);
    read_all(fd, answer, sizeof answer);
    CHECK(is_connected(fd));
    CHECK(sendto(fd, frame, sizeof frame, 0, (struct sockaddr *)&address, sizeof address) == sizeof frame);
    read_all(fd, answer, sizeof answer);
    struct iovec parts[] = { { frame, 3 }, { frame + 3, 3 } };
    CHECK(writev(fd, parts, 2) == sizeof frame);
    struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = parts, .msg_iovlen = 2 } } };
    messages[1] = messages[0];
    read_all(fd, answer, sizeof answer);
    CHECK(sendmmsg(fd, messages, 2, 0) == 2);
    read_all(fd, answer, sizeof answer);
    read_all(fd, answer, sizeof answer);
    CHECK(pipe(pipes) == 0 && write(pipes[1], frame, sizeof frame) == sizeof frame);
    CHECK(splice(pipes[0], NULL, fd, NULL, sizeof frame, 0) == sizeof frame);
    CHECK(splice(fd, NULL, pipes[1], NULL, sizeof frame, 0) > 0);
    CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0 && close(fd) == 0);
}

/* Sends one frame and exits, with no regard to the answer. */
static int send_and_exit(void)
{
    unsigned char frame[4 + 200] = { 0, 0, 0, 200 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect_to(fd, server) == 0);
    write_all(fd, frame, sizeof frame);
    return 7;
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5)
        return 2;
    if (strcmp(argv[1], "copy") == 0) {
        port = atoi(argv[4]);
        return copy_after_exec(atoi(argv[2]), argv[3]);
    }
    port = atoi(argv[3]);
    if (strcmp(argv[1], "send") == 0) {
        server = argv[2];
        return send_and_exit();
    }
    server = argv[1];
    nobody = argv[2];
    blocking();
    for (int how = 0; how < 3; how++)
        non_blocking(how);
    epoll_before_connect();
    other_files();
    time_limits();
    copies(argv);
    half_close();
    names();
    refused();
    options();
    calls();
    if (argc == 5)
        interrupted(argv[4]);
    signals_and_forks();
    /* Other sockets are none of the library's. */
    int other = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(connect_to(other, server) == 0 && close(other) == 0);
    /* The exit status is passed on. */
    return 7;
}
