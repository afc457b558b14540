/* The receiver pauses for longer than the Send Credit Grant Timer permits a message to wait: the sender waits, and every
 * message arrives. Whole messages, and the frames of a stream. */
#include "common.h"
#include "check.h"
#include <pthread.h>
#include <unistd.h>

enum { LENGTH = 1 << 20, COUNT = 40 };

static const size_t lengths[] = { 1, 1364, 60000, LENGTH };
static struct smbdirect_connection *client, *server;
static char memory[4 + LENGTH], room[LENGTH];
static int fd;

/* 10 MiB in all, which is more than the receiver buffers. */
static size_t length_of(int number)
{
    return lengths[number % 4];
}

static void *send_messages(void *error)
{
    for (int i = 0; i < COUNT; i++) {
        struct iovec part = { memory, length_of(i) };
        if (smbdirect_send(client, &part, 1, -1, error) != 0)
            fail("send", error);
    }
    return NULL;
}

static void *write_frames(void *error)
{
    (void)error;
    for (int i = 0; i < COUNT; i++) {
        size_t length = length_of(i), done = 0;
        unsigned char header[4] = { 0, length >> 16 & 255, length >> 8 & 255, length & 255 };
        memcpy(memory, header, 4);
        while (done < 4 + length) {
            ssize_t written = write(fd, memory + done, 4 + length - done);
            if (written <= 0) {
                perror("write");
                exit(1);
            }
            done += (size_t)written;
        }
    }
    return NULL;
}

static void pause_and_receive(const char *transport, void *(*sends)(void *))
{
    struct smbdirect_error error = { 0 }, of_thread = { 0 };
    struct smbdirect_option options[] = { { "credit_grant_timeout_ms", "300" } };
    struct smbdirect_settings settings = settings_of(transport);
    struct smbdirect_listener *listener;
    char address[SMBDIRECT_ADDRESS_LENGTH];
    pthread_t thread;

    settings.options = options;
    settings.options_count = 1;
    settings.receive_credit_max = 20;
    const char *any = strcmp(transport, "roce") == 0 ? "127.0.77.3:0" : "127.0.0.1:0";
    CHECK(smbdirect_listen(NULL, any, &settings, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    CHECK(smbdirect_connect(NULL, address, &settings, 10000, &client, &error) == 0);
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    if (sends == write_frames)
        CHECK(smbdirect_stream(client, &fd, &error) == 0);
    CHECK(pthread_create(&thread, NULL, sends, &of_thread) == 0);
    usleep(1000000);
    for (int i = 0; i < COUNT; i++) {
        struct iovec into = { room, sizeof room };
        int64_t received = smbdirect_recv(server, &into, 1, 10000, NULL, &error);
        CHECK(received == (int64_t)length_of(i));
        /* It pauses again, in the middle of everything. */
        if (i == COUNT / 2)
            usleep(1000000);
    }
    pthread_join(thread, NULL);
    if (sends == write_frames)
        close(fd);
    CHECK(smbdirect_close(client, 10000, &error) == 0);
    smbdirect_connection_free(client);
    smbdirect_connection_free(server);
    smbdirect_listener_free(listener);
    printf("%s: all arrived\n", transport);
}

int main(void)
{
    static const char *const transports[] = { "iwarp", "roce", "loopback" };
    for (int i = 0; i < 3; i++) {
        pause_and_receive(transports[i], send_messages);
        pause_and_receive(transports[i], write_frames);
    }
    return 0;
}
