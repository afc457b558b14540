/* An end pauses: the other end waits, the memory stays within its bound, and every message arrives. PAUSE_MS is the time,
 * 1000 without it. With more than 5000 a pause is longer than the Send Credit Grant Timer, which must not end a
 * connection for it. Each case is a process. */
#include "common.h"
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* Config::receive_buffer() of the default settings, and what a message costs there beyond its bytes. */
enum { RECEIVE_BUFFER = 8404992, OVERHEAD = 128, MEBIBYTE = 1 << 20 };
/* Config::receive_memory() of the default settings is 14.4 MiB. The sender has copies of a message, and allocators and
 * the buffers of a socket take some more. */
enum { MEMORY_LIMIT_KIB = 24 << 10 };
/* Messages before the sender pauses, and after it. */
enum { COUNT = 40 };

static const char *const transports[] = { "iwarp", "roce", "loopback" };
static const size_t lengths[] = { 1, 4096, 65536, MEBIBYTE };
static const struct timespec millisecond = { 0, 1000000 };

static size_t length;
static int fd, sender_pauses;
static long pause_ms;
static struct smbdirect_connection *client;
static atomic_long sent;
static atomic_int stops;

static void pause_for(long milliseconds)
{
    for (long i = 0; i < milliseconds; i++)
        nanosleep(&millisecond, NULL);
}

/* Returns a line of /proc/self/status, which is in KiB, or 0 where it does not exist. */
static long status_kib(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long value = 0;

    while (file != NULL && value == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name) + 1);
    if (file != NULL)
        fclose(file);
    return value;
}

static void write_all(const char *from, size_t count)
{
    while (count > 0) {
        ssize_t written = write(fd, from, count);
        if (written <= 0) {
            perror("write");
            exit(1);
        }
        from += written;
        count -= (size_t)written;
    }
}

/* Sends message `number`, whose bytes tell the number. A frame may have a pause in its middle. */
static void send_one(long number, int pauses)
{
    static char frame[4 + MEBIBYTE];
    struct smbdirect_error error = { 0 };
    struct iovec part = { frame + 4, length };
    unsigned char header[4] = { 0, length >> 16 & 255, length >> 8 & 255, length & 255 };

    memcpy(frame, header, 4);
    memset(frame + 4, (int)(number & 255), length);
    if (fd >= 0) {
        write_all(frame, (4 + length) / 2);
        if (pauses)
            pause_for(pause_ms);
        write_all(frame + (4 + length) / 2, 4 + length - (4 + length) / 2);
    } else {
        if (pauses)
            pause_for(pause_ms);
        CHECK(smbdirect_send(client, &part, 1, -1, &error) == 0);
    }
    sent++;
}

static void *send_all(void *unused)
{
    struct smbdirect_error error = { 0 };

    for (long i = 0; sender_pauses ? i < 2 * COUNT : !stops; i++)
        send_one(i, sender_pauses && i == COUNT);
    if (fd >= 0)
        close(fd);
    else
        CHECK(smbdirect_close(client, -1, &error) == 0);
    return unused;
}

/* Pauses after the sender has begun to wait, and checks that it waits for the whole time. */
static void pause_receiver(void)
{
    struct smbdirect_error error = { 0 };
    long before;

    do {
        before = sent;
        pause_for(500);
    } while (before == 0 || sent != before);
    pause_for(pause_ms);
    CHECK(sent == before);
    /* The frames of a stream are also in two sockets of the system and in one message of each end. */
    CHECK(sent * (long)(length + OVERHEAD) <= RECEIVE_BUFFER + (fd >= 0 ? 4 : 2) * MEBIBYTE);
    stops = 1;
}

/* Runs one case, in a process of its own. */
static void run(int number, const char *transport, int is_stream)
{
    static char room[MEBIBYTE];
    struct smbdirect_error error = { 0 };
    struct smbdirect_settings settings = settings_of(transport);
    struct smbdirect_listener *listener;
    struct smbdirect_connection *server;
    struct iovec into = { room, sizeof room };
    char address[SMBDIRECT_ADDRESS_LENGTH];
    pthread_t thread;
    int64_t got;
    long received = 0;

    /* Each process has an address for its UDP port. */
    snprintf(address, sizeof address, "127.0.%d.1:0", strcmp(transport, "roce") == 0 ? 100 + number : 0);
    CHECK(smbdirect_listen(NULL, address, &settings, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    CHECK(smbdirect_connect(NULL, address, &settings, 30000, &client, &error) == 0);
    CHECK(smbdirect_accept(listener, 30000, &server, &error) == 0);
    smbdirect_listener_free(listener);
    fd = -1;
    if (is_stream)
        CHECK(smbdirect_stream(client, &fd, &error) == 0);
    long memory = status_kib("VmRSS");
    CHECK(pthread_create(&thread, NULL, send_all, NULL) == 0);
    if (!sender_pauses)
        pause_receiver();
    long waiting = sent;
    while ((got = smbdirect_recv(server, &into, 1, -1, NULL, &error)) > 0) {
        CHECK(got == (int64_t)length && room[0] == (char)received && room[length - 1] == (char)received);
        received++;
    }
    CHECK(got == 0);
    pthread_join(thread, NULL);
    CHECK(received == sent);
    smbdirect_connection_free(client);
    smbdirect_connection_free(server);
    memory = status_kib("VmHWM") - memory;
    printf("%s, %s of %zu bytes, %s pauses %ld ms: %ld waited, %ld of %ld arrived, %ld KiB more\n", transport,
           is_stream ? "frames" : "messages", length, sender_pauses ? "sender" : "receiver", pause_ms,
           sender_pauses ? 0 : waiting, received, (long)sent, memory);
    CHECK(memory <= MEMORY_LIMIT_KIB);
}

int main(void)
{
    struct smbdirect_error error = { 0 };
    int number = 0, status;

    pause_ms = getenv("PAUSE_MS") != NULL ? atol(getenv("PAUSE_MS")) : 1000;
    for (; number < 3 * 4 * 4; number++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            length = lengths[number / 4 % 4];
            sender_pauses = number / 2 % 2;
            run(number, transports[number / 16], number % 2);
            return 0;
        }
    }
    int failed = 0;
    while (wait(&status) > 0)
        failed += status != 0;
    return failed != 0;
}
