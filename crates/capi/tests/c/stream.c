/* A connection is a socket with the frames of SMB over TCP, with and without its handle. */
#include "common.h"
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void round_trip(struct smbdirect_listener *listener, const char *address,
                       struct smbdirect_connection **handle)
{
    static const char frame[] = "\0\0\0\5hello";
    struct smbdirect_error error;
    struct smbdirect_connection *server;
    char room[16];
    struct iovec in = { room, sizeof room }, out = { "hi", 2 };
    int fd = -1;

    if (smbdirect_connect_stream(NULL, address, NULL, 10000, handle, &fd, &error) != 0)
        fail("connect_stream", &error);
    if (smbdirect_accept(listener, 10000, &server, &error) != 0)
        fail("accept", &error);
    if (write(fd, frame, 9) != 9)
        exit(1);
    if (smbdirect_recv(server, &in, 1, 10000, NULL, &error) != 5 || memcmp(room, "hello", 5) != 0)
        fail("receive", &error);
    if (smbdirect_send(server, &out, 1, 10000, &error) != 0)
        fail("send", &error);
    size_t length = 0;
    while (length < 6) {
        ssize_t more = read(fd, room + length, sizeof room - length);
        if (more <= 0)
            exit(2);
        length += (size_t)more;
    }
    if (length != 6 || memcmp(room, "\0\0\0\2hi", 6) != 0)
        exit(3);
    /* The end of the socket is the end of the connection. */
    close(fd);
    if (smbdirect_recv(server, &in, 1, 10000, NULL, &error) != 0)
        fail("the end", &error);
    smbdirect_connection_free(server);
}

/* Sends a descriptor to another process. */
static void pass(int to, int fd)
{
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = { 0 };
    struct iovec part = { "x", 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    control.header = (struct cmsghdr) { .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    if (sendmsg(to, &message, 0) != 1)
        exit(6);
}

/* Receives a descriptor, exchanges frames on it, and ends. */
static int use_passed(int from)
{
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = { 0 };
    char byte, reply[6];
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof control };
    int fd;
    if (recvmsg(from, &message, 0) != 1 || control.header.cmsg_type != SCM_RIGHTS)
        return 1;
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    if (write(fd, "\0\0\0\5hello", 9) != 9)
        return 2;
    return recv(fd, reply, 6, MSG_WAITALL) != 6 || memcmp(reply, "\0\0\0\2hi", 6) != 0;
}

/* A process that does not have the library uses the socket of one that does. */
static void passed_to_another_process(struct smbdirect_listener *listener, const char *address, int to, pid_t child)
{
    struct smbdirect_error error;
    struct smbdirect_connection *server;
    char room[16];
    struct iovec in = { room, sizeof room }, out = { "hi", 2 };
    int fd, status;

    if (smbdirect_connect_stream(NULL, address, NULL, 10000, NULL, &fd, &error) != 0)
        fail("connect_stream", &error);
    if (smbdirect_accept(listener, 10000, &server, &error) != 0)
        fail("accept", &error);
    pass(to, fd);
    close(fd);
    if (smbdirect_recv(server, &in, 1, 10000, NULL, &error) != 5
        || smbdirect_send(server, &out, 1, 10000, &error) != 0)
        fail("the other process", &error);
    if (waitpid(child, &status, 0) != child || status != 0)
        exit(7);
    /* Its end has closed the last descriptor. */
    if (smbdirect_recv(server, &in, 1, 10000, NULL, &error) != 0)
        fail("the end", &error);
    smbdirect_connection_free(server);
}

/* The program reads the end of the stream although it has a handle. */
static void ended_by_the_peer(struct smbdirect_listener *listener, const char *address)
{
    struct smbdirect_error error;
    struct smbdirect_connection *handle, *server;
    char room[16];
    int fd;

    if (smbdirect_connect_stream(NULL, address, NULL, 10000, &handle, &fd, &error) != 0
        || smbdirect_accept(listener, 10000, &server, &error) != 0
        || smbdirect_close(server, 10000, &error) != 0)
        fail("close", &error);
    if (read(fd, room, sizeof room) != 0)
        exit(8);
    close(fd);
    /* A stream of a connection that is over ends at once. */
    if (smbdirect_close(handle, 10000, &error) == 0 && smbdirect_stream(handle, &fd, &error) == 0) {
        if (read(fd, room, sizeof room) != 0)
            exit(9);
        close(fd);
    }
    smbdirect_connection_free(handle);
    smbdirect_connection_free(server);
}

int main(void)
{
    struct smbdirect_error error;
    struct smbdirect_listener *listener;
    struct smbdirect_connection *handle = NULL;
    char address[SMBDIRECT_ADDRESS_LENGTH];
    int fd = -1, pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return 1;
    pid_t child = fork();
    if (child == 0)
        _exit(use_passed(pair[1]));
    if (smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) != 0
        || smbdirect_listener_address(listener, address, sizeof address, &error) != 0)
        fail("listen", &error);
    round_trip(listener, address, &handle);
    if (handle == NULL)
        return 4;
    smbdirect_connection_free(handle);
    round_trip(listener, address, NULL);
    passed_to_another_process(listener, address, pair[0], child);
    ended_by_the_peer(listener, address);
    smbdirect_listener_free(listener);

    /* A failure stores nothing. */
    handle = NULL;
    if (smbdirect_connect_stream(NULL, address, NULL, 5000, &handle, &fd, &error) >= 0
        || smbdirect_connect_stream(NULL, address, NULL, 0, &handle, &fd, &error) != SMBDIRECT_ERROR_INVALID
        || smbdirect_connect_stream(NULL, address, NULL, 5000, &handle, NULL, &error) != SMBDIRECT_ERROR_INVALID
        || handle != NULL || fd != -1)
        return 5;
    puts("frames went both ways, and the socket ended the connection");
    return 0;
}
