/* Wrong arguments and wrong moments fail with a status code, and nothing crashes. */
#include "common.h"
#include "check.h"
#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#undef NDEBUG

static int callbacks;

static void count(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                  struct smbdirect_buffer *buffer, void *user_data)
{
    (void)connection;
    smbdirect_buffer_free(buffer);
    assert(user_data == &callbacks);
    assert(error == NULL || error->code < 0);
    callbacks++;
}

static int lines;

static void log_line(int32_t level, const char *message, void *user_data)
{
    assert(level >= 1 && level <= 5 && message[0] != 0 && user_data == &lines);
    __atomic_add_fetch(&lines, 1, __ATOMIC_RELAXED);
}

int main(void)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_connection *client, *server;
    struct smbdirect_listener *listener;
    struct smbdirect_runtime *runtime;
    struct smbdirect_settings settings;
    struct { struct smbdirect_settings settings; uint64_t field[8]; } newer;
    struct smbdirect_region *region;
    struct smbdirect_buffer *buffer;
    struct smbdirect_message *message;
    struct smbdirect_connection_info info;
    char address[SMBDIRECT_ADDRESS_LENGTH], text[] = "0123456789", little[4], room[64];
    struct smbdirect_option options[] = { { "udp_port", "14791" }, { "ird", "many" } };
    struct iovec part = { text, 10 }, small = { little, 4 }, large = { room, sizeof room };
    int fd;

    /* NULL is an error with a text, except where it means nothing to do. */
    CHECK(smbdirect_connect(NULL, NULL, NULL, 1000, &client, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(strstr(error.message, "address") != NULL);
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", NULL, 1000, NULL, NULL) == SMBDIRECT_ERROR_INVALID);
    CHECK(smbdirect_send(NULL, &part, 1, 0, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(smbdirect_recv(NULL, &part, 1, 0, NULL, &error) == SMBDIRECT_ERROR_INVALID);
    smbdirect_connection_free(NULL);
    smbdirect_listener_free(NULL);
    smbdirect_region_free(NULL);
    smbdirect_buffer_free(NULL);
    smbdirect_message_free(NULL);
    smbdirect_runtime_free(NULL);
    CHECK(smbdirect_buffer_data(NULL) == NULL && smbdirect_buffer_length(NULL) == 0);
    CHECK(strcmp(smbdirect_strerror(SMBDIRECT_ERROR_TIMED_OUT), "timed out") == 0);
    CHECK(smbdirect_strerror(77) != NULL);
    CHECK(strcmp(smbdirect_version(), SMBDIRECT_VERSION) == 0);

    /* Settings and addresses are checked. */
    CHECK(smbdirect_settings_init(&settings, sizeof settings - 1, 0) == SMBDIRECT_ERROR_INVALID);
    CHECK(smbdirect_settings_init(&settings, sizeof settings, 9) == SMBDIRECT_ERROR_INVALID);
    /* A program of the first version knows no options, and its memory ends before them. */
    memset(&settings, 0x55, sizeof settings);
    CHECK(smbdirect_settings_init(&settings, offsetof(struct smbdirect_settings, options), 0) == 0);
    CHECK(settings.options_count == (size_t)0x5555555555555555 && settings.busy_poll_us == 0);
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &settings, 5000, &client, &error) == SMBDIRECT_ERROR_REFUSED);
    /* A program of a later version has further fields, and 0 is the default of each. */
    memset(&newer, 0x55, sizeof newer);
    CHECK(smbdirect_settings_init(&newer.settings, 5000, 0) == SMBDIRECT_ERROR_INVALID);
    CHECK(smbdirect_settings_init(&newer.settings, sizeof newer, 0) == 0);
    CHECK(newer.field[0] == 0 && newer.field[7] == 0 && newer.settings.options_count == 0);
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &newer.settings, 5000, &client, &error) == SMBDIRECT_ERROR_REFUSED);
    newer.field[7] = 1;
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &newer.settings, 5000, &client, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(strstr(error.message, "this library does not know") != NULL);
    CHECK(smbdirect_settings_init(&settings, sizeof settings, SMBDIRECT_PROFILE_LINUX) == 0);
    settings.max_send_size = 1;
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &settings, 1000, &client, &error)
          == SMBDIRECT_ERROR_INVALID);
    settings.transport = "pigeon";
    settings.max_send_size = 1364;
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &settings, 1000, &client, &error)
          == SMBDIRECT_ERROR_UNSUPPORTED);
    settings.transport = NULL;
    settings.options = options;
    settings.options_count = 2;
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &settings, 1000, &client, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(strstr(error.message, "udp_port") != NULL);
    settings.transport = "roce";
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &settings, 1000, &client, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(strcmp(error.message, "ird is a number from 0 to 128, not \"many\"") == 0);
    settings.options = NULL;
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", &settings, 1000, &client, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(smbdirect_connect(NULL, "[::1", NULL, 1000, &client, &error) == SMBDIRECT_ERROR_INVALID);
    CHECK(smbdirect_connect(NULL, "127.0.0.1:1", NULL, 5000, &client, &error)
          == SMBDIRECT_ERROR_REFUSED);

    /* Each transport within one process: lend, time out, keep what is too long. */
    for (int round = 0; round < 4; round++) {
        int driven = round / 2;
        CHECK(smbdirect_runtime_new(driven, log_line, 5, &lines, &runtime, &error) == 0);
        CHECK(smbdirect_settings_init(&settings, sizeof settings, SMBDIRECT_PROFILE_DEFAULT) == 0);
        settings.transport = round % 2 == 0 ? "loopback" : "iwarp";
        CHECK(smbdirect_listen(runtime, "127.0.0.1:0", &settings, &listener, &error) == 0);
        CHECK(smbdirect_listener_address(listener, address, 3, &error) == SMBDIRECT_ERROR_INVALID);
        CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
        CHECK(smbdirect_accept(listener, 0, &server, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
        CHECK(smbdirect_accept(listener, 10, &server, &error) == SMBDIRECT_ERROR_TIMED_OUT);
        CHECK(smbdirect_connect_start(runtime, address, &settings, &client, &error) == 0);
        CHECK(smbdirect_connect_finish(client, 10000, &error) == 0);
        CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);

        CHECK(smbdirect_recv(client, &large, 1, 0, NULL, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
        CHECK(smbdirect_recv(client, &large, 1, 10, NULL, &error) == SMBDIRECT_ERROR_TIMED_OUT);
        CHECK(smbdirect_send(client, &part, -1, 0, &error) == SMBDIRECT_ERROR_INVALID);
        CHECK(smbdirect_send(client, NULL, 1, 0, &error) == SMBDIRECT_ERROR_INVALID);
        CHECK(smbdirect_send(client, &part, 1, 10000, &error) == 0);
        CHECK(smbdirect_recv(server, &small, 1, 10000, NULL, &error) == SMBDIRECT_ERROR_BUFFER_TOO_SMALL);
        CHECK(strstr(error.message, "10 bytes") != NULL);
        CHECK(smbdirect_recv(server, &large, 1, 0, NULL, &error) == 10);
        CHECK(memcmp(room, text, 10) == 0);

        /* Lent memory comes back by the callback, in a loop with poll(). */
        callbacks = 0;
        fd = smbdirect_get_fd(client, &error);
        CHECK(fd >= 0);
        CHECK(smbdirect_send_start(client, &part, 1, NULL, count, &callbacks, &error) == 0);
        for (int i = 0; callbacks == 0 && i < 1000; i++) {
            struct pollfd wait = { fd, POLLIN, 0 };
            CHECK(smbdirect_runtime_run(runtime, driven ? 10 : 0, &error) >= 0);
            CHECK(poll(&wait, 1, 10) >= 0);
            CHECK(smbdirect_service(client, &error) >= 0);
        }
        CHECK(callbacks == 1);
        CHECK(smbdirect_recv_message(server, 10000, &message, &error) == 1);
        CHECK(smbdirect_message_length(message) == 10);
        CHECK(memcmp(smbdirect_message_data(message), text, 10) == 0);
        smbdirect_message_free(message);

        /* A registration takes its buffer and gives it back once. */
        buffer = smbdirect_buffer_new(4096);
        CHECK(buffer != NULL);
        CHECK(smbdirect_register(client, &buffer, 0x40, &region, &error) == SMBDIRECT_ERROR_INVALID);
        CHECK(buffer != NULL);
        CHECK(smbdirect_register(client, &buffer, SMBDIRECT_ACCESS_REMOTE_WRITE, &region, &error) == 0);
        CHECK(buffer == NULL);
        CHECK(smbdirect_register(client, &buffer, SMBDIRECT_ACCESS_REMOTE_WRITE, &region, &error)
              == SMBDIRECT_ERROR_INVALID);
        CHECK(smbdirect_deregister(region, 10000, &buffer, &error) == 0);
        CHECK(smbdirect_buffer_length(buffer) == 4096);
        CHECK(smbdirect_deregister(region, 0, &buffer, &error) == SMBDIRECT_ERROR_INVALID);
        smbdirect_region_free(region);
        CHECK(smbdirect_write(client, NULL, 0, 0, text, 10, 10000, &error) == SMBDIRECT_ERROR_RANGE);
        CHECK(smbdirect_read_start(client, NULL, 0, 0, &buffer, count, &callbacks, &error) == 0);
        CHECK(buffer == NULL);

        info.size = 8;
        CHECK(smbdirect_query(client, &info, &error) == SMBDIRECT_ERROR_INVALID);
        info.size = sizeof info + 16;
        CHECK(smbdirect_query(client, &info, &error) == 0 && info.size == sizeof info);
        CHECK(smbdirect_query(client, &info, &error) == 0);
        CHECK(info.messages_sent == 2 && info.regions == 0 && strcmp(info.remote_address, address) == 0);

        /* The end of the peer is the end of the stream, and every call says so. */
        CHECK(smbdirect_close(server, 10000, &error) == 0);
        CHECK(smbdirect_recv(client, &large, 1, 10000, NULL, &error) == 0);
        CHECK(smbdirect_send(client, &part, 1, 1000, &error) == SMBDIRECT_ERROR_CLOSED);
        CHECK(smbdirect_abort(client, &error) == 0);
        smbdirect_runtime_free(runtime);
        smbdirect_connection_free(server);
        smbdirect_connection_free(client);
        smbdirect_listener_free(listener);
        /* The callback of the read was called at the latest when the connection was freed. */
        CHECK(callbacks == 2);
        CHECK(lines > 0);
    }
    /* A connection can be given up while it connects, here to a program that does not answer. */
    struct sockaddr_in silent = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t silent_length = sizeof silent;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&silent, sizeof silent) == 0 && listen(listening, 1) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)&silent, &silent_length) == 0);
    char silent_address[32];
    snprintf(silent_address, sizeof silent_address, "127.0.0.1:%d", ntohs(silent.sin_port));
    CHECK(smbdirect_connect(NULL, silent_address, NULL, 50, &client, &error) == SMBDIRECT_ERROR_TIMED_OUT);
    CHECK(strstr(error.message, silent_address) == error.message);
    CHECK(strstr(error.message, " did not answer within 50.0 ms; check the address") != NULL);
    CHECK(smbdirect_connect_start(NULL, silent_address, NULL, &client, &error) == 0);
    CHECK(smbdirect_send(client, &part, 1, 0, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    smbdirect_connection_free(client);
    close(listening);
    puts("every misuse failed with its status code");
    return 0;
}
