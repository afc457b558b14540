/* A program that speaks SMB's frames over TCP, as any SMB client: run with and without `smbdirect run`, it must
 * see the same. Arguments: an address where a peer returns each frame, one where nothing listens, and the port
 * of both. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
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
    /* The end of what is sent is the end of the connection. */
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
    }
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    server = argv[1];
    nobody = argv[2];
    port = atoi(argv[3]);
    blocking();
    for (int how = 0; how < 3; how++)
        non_blocking(how);
    /* Other sockets are none of the library's. */
    int other = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(connect_to(other, server) == 0 && close(other) == 0);
    /* The exit status is passed on. */
    return 7;
}
