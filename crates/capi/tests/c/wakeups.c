/* A descriptor tells when a call is worth repeating, also after a call with a time limit has waited in between. */
#include "common.h"
#include "check.h"
#include <poll.h>

/* Returns whether a descriptor becomes readable in time. */
static int readable(int fd, int timeout_ms)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    return poll(&wait, 1, timeout_ms) == 1;
}

static void accepting(void)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_connection *client, *server;
    struct smbdirect_listener *listener;
    char address[SMBDIRECT_ADDRESS_LENGTH];

    CHECK(smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    int fd = smbdirect_listener_get_fd(listener, &error);
    CHECK(fd >= 0 && readable(fd, 0));
    CHECK(smbdirect_accept(listener, 0, &server, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    CHECK(!readable(fd, 0));
    CHECK(smbdirect_accept(listener, 20, &server, &error) == SMBDIRECT_ERROR_TIMED_OUT);
    /* The program goes on with its loop, in which the next call does not wait. */
    if (readable(fd, 0))
        CHECK(smbdirect_accept(listener, 0, &server, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    client = connect_to(address, NULL);
    CHECK(readable(fd, 10000));
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    smbdirect_connection_free(client);
    smbdirect_connection_free(server);
    smbdirect_listener_free(listener);
}

static void receiving(void)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_connection *client, *server;
    struct smbdirect_listener *listener;
    char address[SMBDIRECT_ADDRESS_LENGTH], room[8];
    struct iovec into = { room, sizeof room };

    CHECK(smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    client = connect_to(address, NULL);
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    int fd = smbdirect_get_fd(client, &error);
    CHECK(fd >= 0 && smbdirect_service(client, &error) == 0);
    CHECK(smbdirect_recv(client, &into, 1, 0, NULL, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    /* The only message goes to the call that waits, although another one has asked before. */
    CHECK(smbdirect_send(server, &into, 1, -1, &error) == 0);
    CHECK(smbdirect_recv(client, &into, 1, 10000, NULL, &error) == sizeof room);
    CHECK(smbdirect_recv(client, &into, 1, 0, NULL, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    CHECK(smbdirect_recv(client, &into, 1, 20, NULL, &error) == SMBDIRECT_ERROR_TIMED_OUT);
    if (readable(fd, 0)) {
        CHECK(smbdirect_service(client, &error) == 0);
        CHECK(smbdirect_recv(client, &into, 1, 0, NULL, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    }
    CHECK(smbdirect_send(server, &into, 1, -1, &error) == 0);
    CHECK(readable(fd, 10000));
    CHECK(smbdirect_recv(client, &into, 1, 0, NULL, &error) == sizeof room);
    smbdirect_connection_free(client);
    smbdirect_connection_free(server);
    smbdirect_listener_free(listener);
}

static void received(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                     struct smbdirect_buffer *buffer, void *user_data)
{
    (void)connection;
    *(int *)user_data = error == NULL ? 1 : error->code;
    smbdirect_buffer_free(buffer);
}

/* The peer reads a region, and does not take the data: the region stays in use until it does. */
static void deregistering(void)
{
    enum { LENGTH = 64 << 20 };
    struct smbdirect_error error = { 0 };
    struct smbdirect_runtime *driven;
    struct smbdirect_connection *client, *server;
    struct smbdirect_listener *listener;
    struct smbdirect_region *region;
    struct smbdirect_buffer *buffer = smbdirect_buffer_new(LENGTH), *into = smbdirect_buffer_new(LENGTH);
    struct smbdirect_buffer_descriptor descriptor;
    char address[SMBDIRECT_ADDRESS_LENGTH];
    int done = 0, status = 0;

    CHECK(smbdirect_runtime_new(1, NULL, 0, NULL, &driven, &error) == 0);
    CHECK(smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    CHECK(smbdirect_connect(driven, address, NULL, 10000, &client, &error) == 0);
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    CHECK(smbdirect_register(server, &buffer, SMBDIRECT_ACCESS_REMOTE_READ, &region, &error) == 0);
    CHECK(smbdirect_region_descriptor(region, &descriptor, &error) == 0);
    CHECK(smbdirect_read_start(client, &descriptor, 1, 0, &into, received, &done, &error) == 0);
    /* The request leaves, and the answer fills the sockets. */
    for (int i = 0; i < 3; i++)
        CHECK(smbdirect_runtime_run(driven, 1, &error) >= 0);
    CHECK(poll(NULL, 0, 200) == 0);

    int fd = smbdirect_get_fd(server, &error);
    CHECK(fd >= 0);
    CHECK(smbdirect_deregister(region, 0, &buffer, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    CHECK(smbdirect_deregister(region, 20, &buffer, &error) == SMBDIRECT_ERROR_TIMED_OUT);
    CHECK(smbdirect_service(server, &error) == 0 || readable(fd, 0));
    CHECK(smbdirect_deregister(region, 20, &buffer, &error) == SMBDIRECT_ERROR_TIMED_OUT);
    if (readable(fd, 0)) {
        CHECK(smbdirect_service(server, &error) == 0);
        CHECK(smbdirect_deregister(region, 0, &buffer, &error) == SMBDIRECT_ERROR_WOULD_BLOCK);
    }
    for (int i = 0; i < 3000 && done == 0; i++) {
        CHECK(smbdirect_runtime_run(driven, 10, &error) >= 0);
        CHECK(smbdirect_service(client, &error) >= 0);
    }
    CHECK(done == 1 || done == SMBDIRECT_ERROR_PROTOCOL || done == SMBDIRECT_ERROR_LOST);
    for (int i = 0; i < 100 && status != 1; i++) {
        CHECK(readable(fd, 10000));
        CHECK(smbdirect_service(server, &error) == 0);
        status = smbdirect_deregister(region, 0, &buffer, &error) == 0;
    }
    CHECK(status == 1 && smbdirect_buffer_length(buffer) == LENGTH);
    smbdirect_buffer_free(buffer);
    smbdirect_region_free(region);
    smbdirect_connection_free(client);
    smbdirect_connection_free(server);
    smbdirect_listener_free(listener);
    smbdirect_runtime_free(driven);
}

int main(void)
{
    accepting();
    receiving();
    deregistering();
    puts("no event was lost");
    return 0;
}
