/* What was reported as sent arrives, however a program gives up the connection or ends. A child process sends, and this
 * one receives, with few credits so that the child has messages that wait when it ends. */
#include "common.h"
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 12, LENGTH = 400000 };

/* It is lent, and lives until the end of the process. */
static char memory[LENGTH];

static const char *const ways[] = {
    "return",  "exit in a thread", "free",   "free and exit", "close_all and _exit", "start",  "start and free",
    "runtime", "driven",           "stream", "closed stream", "unread", "late calls", "late calls, registered early", "callback frees", "runtime in a call",
};

static void callback(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                     struct smbdirect_buffer *buffer, void *user_data)
{
    (void)connection, (void)buffer;
    *(int *)user_data += error == NULL ? 1 : 1000;
}

static void free_own(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                     struct smbdirect_buffer *buffer, void *user_data)
{
    smbdirect_connection_free(connection);
    callback(connection, error, buffer, user_data);
}

static struct smbdirect_connection *kept;

/* exit() calls it, before or after the library closes the connection. */
static void late(void)
{
    struct smbdirect_error error = { 0 };
    struct iovec part = { memory, LENGTH };

    CHECK(smbdirect_send(kept, &part, 1, 1000, &error) == SMBDIRECT_ERROR_SYSTEM);
    smbdirect_connection_free(kept);
    smbdirect_connection_free(kept);
}

static void *end_in_thread(void *argument)
{
    (void)argument;
    exit(0);
}

/* The call ends with its handle. Then its thread has the last reference to the runtime, which closes the connection. */
static void *wait_in_call(void *argument)
{
    (void)argument;
    smbdirect_recv(kept, &(struct iovec) { NULL, 0 }, 1, -1, NULL, NULL);
    return NULL;
}

static void send_frames(struct smbdirect_connection *connection, int is_closed)
{
    struct smbdirect_error error = { 0 };
    unsigned char header[4] = { 0, LENGTH >> 16 & 255, LENGTH >> 8 & 255, LENGTH & 255 };
    int fd;

    CHECK(smbdirect_stream(connection, &fd, &error) == 0);
    for (int i = 0; i < COUNT; i++) {
        memory[0] = (char)i;
        CHECK(write(fd, header, sizeof header) == sizeof header);
        for (size_t done = 0; done < LENGTH;) {
            ssize_t written = write(fd, memory + done, LENGTH - done);
            CHECK(written > 0);
            done += (size_t)written;
        }
    }
    if (is_closed)
        close(fd);
}

/* The child: sends, and ends in one way. */
static int child(const char *way, const char *address)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_runtime *runtime = NULL;
    struct smbdirect_connection *connection;
    struct iovec part = { memory, LENGTH };
    int is_driven = strcmp(way, "driven") == 0;
    static int results;

    if (strcmp(way, "late calls, registered early") == 0)
        CHECK(atexit(late) == 0);
    if (is_driven || strncmp(way, "runtime", 7) == 0)
        CHECK(smbdirect_runtime_new(is_driven, NULL, 0, NULL, &runtime, &error) == 0);
    CHECK(smbdirect_connect(runtime, address, NULL, 10000, &connection, &error) == 0);
    kept = connection;
    if (strcmp(way, "late calls") == 0)
        CHECK(atexit(late) == 0);
    if (strstr(way, "stream") != NULL) {
        send_frames(connection, strcmp(way, "closed stream") == 0);
        return 0;
    }
    if (strcmp(way, "runtime in a call") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, wait_in_call, NULL) == 0);
        usleep(100000);
    }
    for (int i = 0; i < COUNT; i++) {
        if (strncmp(way, "start", 5) == 0) {
            CHECK(smbdirect_send_start(connection, &part, 1, NULL, callback, &results, &error) == 0);
        } else if (strcmp(way, "callback frees") == 0) {
            CHECK(smbdirect_send_start(connection, &part, 1, NULL, free_own, &results, &error) == 0);
        } else {
            memory[0] = (char)i;
            CHECK(smbdirect_send(connection, &part, 1, 30000, &error) == 0);
        }
    }
    if (strcmp(way, "exit in a thread") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, end_in_thread, NULL) == 0);
        pthread_join(thread, NULL);
    }
    if (strcmp(way, "free") == 0 || strncmp(way, "runtime", 7) == 0)
        smbdirect_connection_free(connection);
    if (strcmp(way, "callback frees") == 0) {
        while (smbdirect_service(connection, &error) >= 0)
            usleep(100);
        CHECK(results == COUNT && error.code == SMBDIRECT_ERROR_INVALID);
    }
    if (strcmp(way, "start and free") == 0) {
        smbdirect_connection_free(connection);
        CHECK(results == COUNT);
        /* The memory belongs to the program again. */
        memset(memory, 'x', sizeof memory);
    }
    if (strcmp(way, "free and exit") == 0) {
        smbdirect_connection_free(connection);
        exit(0);
    }
    if (strcmp(way, "close_all and _exit") == 0) {
        CHECK(smbdirect_close_all(30000) == 0);
        _exit(0);
    }
    smbdirect_runtime_free(runtime);
    if (strcmp(way, "runtime in a call") == 0)
        /* The other thread has begun to close. */
        usleep(500);
    return 0;
}

int main(int count, char **arguments)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_settings settings;
    struct smbdirect_listener *listener;
    struct smbdirect_connection *connection;
    char address[SMBDIRECT_ADDRESS_LENGTH];
    extern char **environ;

    if (count == 3)
        return child(arguments[1], arguments[2]);
    CHECK(smbdirect_settings_init(&settings, sizeof settings, SMBDIRECT_PROFILE_DEFAULT) == 0);
    settings.receive_credit_max = 2;
    CHECK(smbdirect_listen(NULL, "127.0.0.1:0", &settings, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        char *program[] = { arguments[0], (char *)ways[way], address, NULL };
        struct smbdirect_message *message;
        struct iovec greeting = { memory, 1000 };
        pid_t process;
        int status, arrived = 0, received;

        CHECK(posix_spawn(&process, program[0], NULL, NULL, program, environ) == 0);
        CHECK(smbdirect_accept(listener, 30000, &connection, &error) == 0);
        if (strcmp(ways[way], "unread") == 0)
            for (int i = 0; i < 3; i++)
                CHECK(smbdirect_send(connection, &greeting, 1, 30000, &error) == 0);
        while ((received = smbdirect_recv_message(connection, 30000, &message, &error)) == 1) {
            const char *bytes = smbdirect_message_data(message);
            CHECK(smbdirect_message_length(message) == LENGTH);
            int is_lent = strncmp(ways[way], "start", 5) == 0 || strcmp(ways[way], "callback frees") == 0;
            CHECK(bytes[0] == (is_lent ? 0 : arrived));
            CHECK(bytes[LENGTH - 1] == 0);
            smbdirect_message_free(message);
            arrived++;
        }
        if (received != 0 || arrived != COUNT)
            return fprintf(stderr, "%s: %d of %d arrived, then %s\n", ways[way], arrived, COUNT, error.message), 1;
        smbdirect_connection_free(connection);
        CHECK(waitpid(process, &status, 0) == process && status == 0);
        printf("%s: all arrived\n", ways[way]);
    }
    smbdirect_listener_free(listener);
    return 0;
}
