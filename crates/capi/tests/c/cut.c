/* The connection ends in the middle of a message: every receive returns an error, and never 0, and the stream ends
 * within a frame. */
#include "common.h"
#include "check.h"
#include <unistd.h>

enum { LENGTH = 1 << 20 };

static char memory[LENGTH], room[LENGTH];

static void done(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                 struct smbdirect_buffer *buffer, void *user_data)
{
    (void)connection, (void)error, (void)buffer, (void)user_data;
}

/* Sends a whole message, and the first part of another one, to a peer that makes no progress. */
static struct smbdirect_connection *cut(struct smbdirect_runtime *driven)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_option options[] = { { "credit_grant_timeout_ms", "100" } };
    struct smbdirect_settings settings = settings_of(NULL);
    struct smbdirect_listener *listener;
    struct smbdirect_connection *client, *server;
    struct iovec whole = { "whole", 5 }, part = { memory, LENGTH };
    char address[SMBDIRECT_ADDRESS_LENGTH];

    settings.options = options;
    settings.options_count = 1;
    settings.receive_credit_max = 10;
    CHECK(smbdirect_listen(driven, "127.0.0.1:0", &settings, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    CHECK(smbdirect_connect_start(NULL, address, &settings, &client, &error) == 0);
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    CHECK(smbdirect_connect_finish(client, 10000, &error) == 0);
    smbdirect_listener_free(listener);
    CHECK(smbdirect_send(client, &whole, 1, 10000, &error) == 0);
    CHECK(smbdirect_send_start(client, &part, 1, NULL, done, NULL, &error) == 0);
    CHECK(smbdirect_recv(client, &part, 1, 10000, NULL, &error) == SMBDIRECT_ERROR_TIMED_OUT);
    smbdirect_connection_free(client);
    return server;
}

int main(void)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_runtime *driven;
    struct smbdirect_message *message;
    struct iovec into = { room, LENGTH };
    int fd;

    CHECK(smbdirect_runtime_new(1, NULL, 0, NULL, &driven, &error) == 0);
    struct smbdirect_connection *server = cut(driven);
    CHECK(smbdirect_recv(server, &into, 1, 10000, NULL, &error) == 5);
    for (int i = 0; i < 2; i++) {
        CHECK(smbdirect_recv(server, &into, 1, 10000, NULL, &error) == SMBDIRECT_ERROR_LOST);
        CHECK(smbdirect_recv_message(server, 0, &message, &error) == SMBDIRECT_ERROR_LOST);
    }
    puts(error.message);
    smbdirect_connection_free(server);

    server = cut(driven);
    CHECK(smbdirect_stream(server, &fd, &error) == 0);
    size_t length = 0;
    for (ssize_t more = 1; more > 0; length += (size_t)more) {
        while (smbdirect_runtime_run(driven, 100, &error) > 0)
            ;
        more = read(fd, room + length, LENGTH - length);
        CHECK(more >= 0);
    }
    /* The header of the second frame says that all of it follows. */
    CHECK(length > 13 && length < 9 + LENGTH && memcmp(room, "\0\0\0\5whole\0\x10\0\0", 13) == 0);
    close(fd);
    smbdirect_connection_free(server);
    smbdirect_runtime_free(driven);
    puts("the end in the middle of a message was an error");
    return 0;
}
