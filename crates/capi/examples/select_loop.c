/* An event loop with select(): `select_loop listen ADDRESS` serves two connections at once on one thread and
 * returns their messages without a copy, and `select_loop connect ADDRESS` drives two connections. Loops with
 * poll() or epoll wait for the same descriptors; smbdirect_which_events() gives the events of poll(). */
#include "common.h"
#include <sys/select.h>

enum { CONNECTIONS = 2, MESSAGES = 200, LENGTH = 20000 };

/* Ends the program if a step failed in another way than that it would have to wait. */
static void check(const char *what, int64_t status, const struct smbdirect_error *error)
{
    if (status < 0 && status != SMBDIRECT_ERROR_WOULD_BLOCK)
        fail(what, error);
}

/* Adds the descriptor of a handle to a set, and returns the highest one. */
static int add(int fd, fd_set *set, int highest, const struct smbdirect_error *error)
{
    if (fd < 0)
        fail("descriptor", error);
    if (fd >= FD_SETSIZE) {
        fprintf(stderr, "select() takes no descriptor like %d, poll() does\n", fd);
        exit(1);
    }
    FD_SET(fd, set);
    return fd > highest ? fd : highest;
}

/* Waits until a descriptor of the set is readable. */
static void wait_readable(fd_set *set, int highest)
{
    struct timeval limit = { 30, 0 };
    if (select(highest + 1, set, NULL, NULL, &limit) <= 0) {
        fprintf(stderr, "nothing happened for 30 seconds\n");
        exit(1);
    }
}

/* A message that was lent to the library was sent. */
static void message_sent(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                         struct smbdirect_buffer *buffer, void *user_data)
{
    (void)connection;
    (void)buffer;
    if (error != NULL)
        fail("send", error);
    smbdirect_message_free(user_data);
}

static void serve(const char *address)
{
    struct smbdirect_connection *connections[CONNECTIONS] = { NULL };
    struct smbdirect_listener *listener;
    struct smbdirect_error error;
    char actual[SMBDIRECT_ADDRESS_LENGTH];
    int accepted = 0, closed = 0;
    long returned = 0;

    if (smbdirect_listen(NULL, address, NULL, &listener, &error) != 0
        || smbdirect_listener_address(listener, actual, sizeof actual, &error) != 0)
        fail("listen", &error);
    printf("listening on %s\n", actual);
    fflush(stdout);
    while (closed < CONNECTIONS) {
        fd_set readable;
        int highest = -1;
        FD_ZERO(&readable);
        if (accepted < CONNECTIONS)
            highest = add(smbdirect_listener_get_fd(listener, &error), &readable, highest, &error);
        for (int i = 0; i < accepted; i++)
            if (connections[i] != NULL)
                highest = add(smbdirect_get_fd(connections[i], &error), &readable, highest, &error);
        wait_readable(&readable, highest);
        while (accepted < CONNECTIONS
               && smbdirect_accept(listener, 0, &connections[accepted], &error) == 0)
            accepted++;
        for (int i = 0; i < accepted; i++) {
            struct smbdirect_message *message;
            int received = 1;
            if (connections[i] == NULL)
                continue;
            check("service", smbdirect_service(connections[i], &error), &error);
            while ((received = smbdirect_recv_message(connections[i], 0, &message, &error)) == 1) {
                struct iovec part = { (void *)smbdirect_message_data(message),
                                      smbdirect_message_length(message) };
                check("send", smbdirect_send_start(connections[i], &part, 1, NULL, message_sent, message,
                                                   &error), &error);
                returned++;
            }
            check("receive", received, &error);
            if (received == 0) {
                smbdirect_connection_free(connections[i]);
                connections[i] = NULL;
                closed++;
            }
        }
    }
    smbdirect_listener_free(listener);
    printf("returned %ld messages of %d connections\n", returned, CONNECTIONS);
}

static void ask(const char *address)
{
    struct smbdirect_connection *connections[CONNECTIONS];
    int established[CONNECTIONS] = { 0 }, sent[CONNECTIONS] = { 0 }, received[CONNECTIONS] = { 0 };
    struct smbdirect_error error;
    static char out[LENGTH], in[LENGTH];
    int done = 0;

    for (int i = 0; i < CONNECTIONS; i++)
        if (smbdirect_connect_start(NULL, address, NULL, &connections[i], &error) != 0)
            fail("connect", &error);
    while (done < CONNECTIONS) {
        fd_set readable;
        int highest = -1;
        FD_ZERO(&readable);
        for (int i = 0; i < CONNECTIONS; i++)
            if (received[i] < MESSAGES)
                highest = add(smbdirect_get_fd(connections[i], &error), &readable, highest, &error);
        wait_readable(&readable, highest);
        for (int i = 0; i < CONNECTIONS; i++) {
            int64_t length;
            if (received[i] == MESSAGES)
                continue;
            check("service", smbdirect_service(connections[i], &error), &error);
            if (!established[i]) {
                int status = smbdirect_connect_finish(connections[i], 0, &error);
                check("connect", status, &error);
                if (status != 0)
                    continue;
                established[i] = 1;
            }
            while (sent[i] < MESSAGES) {
                struct iovec part = { out, LENGTH };
                memset(out, 'a' + sent[i] % 26, LENGTH);
                int status = smbdirect_send(connections[i], &part, 1, 0, &error);
                check("send", status, &error);
                if (status != 0)
                    break;
                sent[i]++;
            }
            struct iovec part = { in, LENGTH };
            while (received[i] < MESSAGES
                   && (length = smbdirect_recv(connections[i], &part, 1, 0, NULL, &error)) != 0) {
                check("receive", length, &error);
                if (length < 0)
                    break;
                if (length != LENGTH || in[0] != 'a' + received[i] % 26 || in[LENGTH - 1] != in[0])
                    exit(1);
                received[i]++;
            }
            if (received[i] == MESSAGES)
                done++;
        }
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        if (smbdirect_close(connections[i], 30000, &error) != 0)
            fail("close", &error);
        smbdirect_connection_free(connections[i]);
    }
    printf("%d messages came back on each of %d connections\n", MESSAGES, CONNECTIONS);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "listen") == 0)
        serve(argv[2]);
    else if (argc == 3 && strcmp(argv[1], "connect") == 0)
        ask(argv[2]);
    else
        return fprintf(stderr, "usage: select_loop listen|connect ADDRESS\n"), 2;
    return 0;
}
