/* A connection whose peer is gone fails with a status code. The program handles no signal, so SIGPIPE would end it. */
#include "common.h"
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

static struct smbdirect_error error;
static struct smbdirect_listener *listener;
static char address[SMBDIRECT_ADDRESS_LENGTH];

/* Makes a connection whose peer aborts it, and which only works during calls. */
static struct smbdirect_connection *aborted(struct smbdirect_runtime *runtime)
{
    struct smbdirect_connection *client, *server;
    CHECK(smbdirect_connect(runtime, address, NULL, 10000, &client, &error) == 0);
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    CHECK(smbdirect_abort(server, &error) == 0);
    smbdirect_connection_free(server);
    poll(NULL, 0, 50);
    return client;
}

int main(void)
{
    static char data[1 << 20];
    struct iovec part = { data, sizeof data }, small = { data, 64 };
    struct smbdirect_connection *client, *server;
    struct smbdirect_runtime *driven;

    signal(SIGPIPE, SIG_DFL);
    CHECK(smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    CHECK(smbdirect_runtime_new(1, NULL, 0, NULL, &driven, &error) == 0);
    for (int i = 0; i < 20; i++) {
        client = aborted(i % 2 == 0 ? driven : NULL);
        for (int sent = 0; sent < 20; sent++)
            if (smbdirect_send_start(client, i % 4 < 2 ? &part : &small, 1, NULL, NULL, NULL, &error) < 0)
                break;
        while (smbdirect_send(client, &small, 1, 10000, &error) == 0)
            ;
        CHECK(error.code < 0);
        smbdirect_connection_free(client);
    }

    /* The program closes the socket of a connection while messages arrive. */
    for (int i = 0; i < 20; i++) {
        int fd;
        CHECK(smbdirect_connect_stream(NULL, address, NULL, 10000, NULL, &fd, &error) == 0);
        CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
        CHECK(smbdirect_send(server, &part, 1, 10000, &error) == 0);
        CHECK(shutdown(fd, SHUT_RD) == 0);
        for (int sent = 0; sent < 5 && smbdirect_send(server, &part, 1, 1000, &error) == 0; sent++)
            ;
        CHECK(close(fd) == 0);
        while (smbdirect_send(server, &small, 1, 10000, &error) == 0)
            ;
        smbdirect_connection_free(server);
    }
    poll(NULL, 0, 100);
    smbdirect_listener_free(listener);
    smbdirect_runtime_free(driven);
    puts("no signal ended the program");
    return 0;
}
