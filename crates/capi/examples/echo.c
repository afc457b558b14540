/* Messages with blocking calls: `echo listen ADDRESS` returns each message, and `echo connect ADDRESS` sends
 * messages of several lengths and compares what comes back. The examples in Rust and Python do the same, so each
 * end works with any of them, and with `smbdirect listen --echo`. */
#include "common.h"

static void serve(const char *address, const char *transport)
{
    struct smbdirect_connection *connection = accept_one(address, transport);
    struct smbdirect_message *message;
    struct smbdirect_error error;
    int received;
    unsigned long count = 0;

    while ((received = smbdirect_recv_message(connection, 30000, &message, &error)) == 1) {
        struct iovec part = { (void *)smbdirect_message_data(message), smbdirect_message_length(message) };
        if (smbdirect_send(connection, &part, 1, 30000, &error) != 0)
            fail("send", &error);
        smbdirect_message_free(message);
        count++;
    }
    if (received < 0)
        fail("receive", &error);
    printf("returned %lu messages\n", count);
    smbdirect_connection_free(connection);
}

static void ask(const char *address, const char *transport)
{
    static const size_t lengths[] = { 1, 64, 1364, 8192, 100000, 1000000 };
    struct smbdirect_connection *connection = connect_to(address, transport);
    struct smbdirect_error error;
    uint64_t round_trip;

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t length = lengths[i], half = length / 2;
        char *sent = malloc(length), *returned = malloc(length);
        if (sent == NULL || returned == NULL)
            return;
        for (size_t at = 0; at < length; at++)
            sent[at] = (char)(at * 31 / 7);
        /* Two parts are one message, and a message may be received into several parts. */
        struct iovec out[] = { { sent, half }, { sent + half, length - half } };
        struct iovec in[] = { { returned, length - half }, { returned + (length - half), half } };
        if (smbdirect_send(connection, out, 2, 30000, &error) != 0)
            fail("send", &error);
        int64_t received = smbdirect_recv(connection, in, 2, 30000, NULL, &error);
        if (received < 0)
            fail("receive", &error);
        if ((size_t)received != length || memcmp(sent, returned, length) != 0) {
            fprintf(stderr, "the echo of %zu bytes differs\n", length);
            exit(1);
        }
        printf("%zu bytes came back\n", length);
        free(sent);
        free(returned);
    }
    if (smbdirect_keepalive(connection, 30000, &round_trip, &error) != 0)
        fail("keepalive", &error);
    if (smbdirect_close(connection, 30000, &error) != 0)
        fail("close", &error);
    smbdirect_connection_free(connection);
}

int main(int argc, char **argv)
{
    const char *transport = argc == 4 ? argv[3] : NULL;

    if ((argc == 3 || argc == 4) && strcmp(argv[1], "listen") == 0)
        serve(argv[2], transport);
    else if ((argc == 3 || argc == 4) && strcmp(argv[1], "connect") == 0)
        ask(argv[2], transport);
    else
        return fprintf(stderr, "usage: echo listen|connect ADDRESS [TRANSPORT]\n"), 2;
    return 0;
}
