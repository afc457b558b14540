/* What ends a call that waits.
 *
 * A handle is freed while another thread waits in a call on it: the call returns SMBDIRECT_ERROR_ABORTED, a hundred
 * times for each call. In further rounds the handle is freed at any moment of the call. The function of
 * smbdirect_set_interrupt() ends each call, and pthread_cancel() none. Signals are for the threads of the program. */
#include "common.h"
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS = 100, LENGTH = 16 << 20 };

/* The client has a thread of the library. Its peer makes progress only in calls, so that it can be mute. */
static struct smbdirect_runtime *mute, *run;
static struct smbdirect_listener *listener, *other;
static struct smbdirect_connection *client, *server;
static struct smbdirect_buffer_descriptor descriptor;
static char address[SMBDIRECT_ADDRESS_LENGTH], memory[LENGTH];
static atomic_int thread_id;

static int64_t in_recv(void)
{
    struct iovec into = { memory, 8 };
    return smbdirect_recv(client, &into, 1, -1, NULL, NULL);
}

static int64_t in_recv_message(void)
{
    struct smbdirect_message *message;
    return smbdirect_recv_message(client, -1, &message, NULL);
}

static int64_t in_accept(void)
{
    struct smbdirect_connection *accepted;
    return smbdirect_accept(other, -1, &accepted, NULL);
}

static int64_t in_send(void)
{
    struct iovec part = { memory, 100000 };
    return smbdirect_send(client, &part, 1, -1, NULL);
}

static int64_t in_keepalive(void)
{
    return smbdirect_keepalive(client, -1, NULL, NULL);
}

static int64_t in_read(void)
{
    return smbdirect_read(client, &descriptor, 1, 0, memory, 100, -1, NULL);
}

static int64_t in_write(void)
{
    return smbdirect_write(client, &descriptor, 1, 0, memory, LENGTH, -1, NULL);
}

static int64_t in_run(void)
{
    int64_t status;
    while ((status = smbdirect_runtime_run(run, -1, NULL)) >= 0)
        ;
    return status;
}

static void free_client(void)
{
    smbdirect_connection_free(client);
}

static void free_listener(void)
{
    smbdirect_listener_free(other);
}

static void free_runtime(void)
{
    smbdirect_runtime_free(run);
}

static const struct {
    const char *name;
    int64_t (*call)(void);
    void (*end)(void);
} cases[] = {
    { "recv", in_recv, free_client },
    { "recv_message", in_recv_message, free_client },
    { "accept", in_accept, free_listener },
    { "send", in_send, free_client },
    { "keepalive", in_keepalive, free_client },
    { "read", in_read, free_client },
    { "write", in_write, free_client },
    { "run", in_run, free_runtime },
    { "run driven", in_run, free_runtime },
};

static void *waiter(void *call)
{
    atomic_store(&thread_id, (int)syscall(SYS_gettid));
    return (void *)(intptr_t)(*(int64_t (**)(void))call)();
}

/* Returns whether a thread of this process sleeps. */
static int sleeps(int thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    int got = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    const char *name_end = strrchr(text, ')');
    return got && name_end != NULL && name_end[2] == 'S';
}

static void set_up(size_t which)
{
    struct smbdirect_error error = { 0 };
    struct smbdirect_buffer *buffer;
    struct smbdirect_region *region;

    if (cases[which].call == in_run) {
        int is_driven = strcmp(cases[which].name, "run driven") == 0;
        CHECK(smbdirect_runtime_new(is_driven, NULL, 0, NULL, &run, &error) == 0);
        return;
    }
    CHECK(smbdirect_listen(NULL, "127.0.0.1:0", NULL, &other, &error) == 0);
    CHECK(smbdirect_connect_start(NULL, address, NULL, &client, &error) == 0);
    CHECK(smbdirect_accept(listener, 10000, &server, &error) == 0);
    CHECK(smbdirect_connect_finish(client, 10000, &error) == 0);
    CHECK((buffer = smbdirect_buffer_new(LENGTH)) != NULL);
    CHECK(smbdirect_register(server, &buffer, SMBDIRECT_ACCESS_REMOTE_READ | SMBDIRECT_ACCESS_REMOTE_WRITE, &region,
                             &error) == 0);
    CHECK(smbdirect_region_descriptor(region, &descriptor, &error) == 0);
    smbdirect_region_free(region);
    if (cases[which].call == in_send) {
        struct iovec part = { memory, 100000 };
        while (smbdirect_send(client, &part, 1, 20, &error) == 0)
            ;
        CHECK(error.code == SMBDIRECT_ERROR_TIMED_OUT);
    }
}

static void take_down(size_t which)
{
    if (cases[which].call == in_run)
        return;
    smbdirect_connection_free(client);
    smbdirect_abort(server, NULL);
    smbdirect_connection_free(server);
    smbdirect_listener_free(other);
}

/* Lets the thread of the call come to its wait, or a random part of the way there. */
static void let_wait(int round)
{
    int thread;
    while ((thread = atomic_load(&thread_id)) == 0)
        sched_yield();
    if (round < ROUNDS)
        for (int seen = 0; seen < 3; seen = sleeps(thread) ? seen + 1 : 0)
            usleep(200);
    else
        usleep((useconds_t)(rand() % 300));
}

static void is_freed(size_t which)
{
    int freed_before = 0;
    for (int round = 0; round < 2 * ROUNDS; round++) {
        pthread_t thread;
        void *status;
        set_up(which);
        atomic_store(&thread_id, 0);
        pthread_create(&thread, NULL, waiter, (void *)&cases[which].call);
        let_wait(round);
        cases[which].end();
        pthread_join(thread, &status);
        int was_before = (intptr_t)status == SMBDIRECT_ERROR_INVALID && round >= ROUNDS;
        if ((intptr_t)status != SMBDIRECT_ERROR_ABORTED && !was_before) {
            fprintf(stderr, "%s, round %d: %d\n", cases[which].name, round, (int)(intptr_t)status);
            exit(1);
        }
        freed_before += was_before;
        take_down(which);
    }
    printf("%s: aborted %d times, and %d times freed before the call\n", cases[which].name,
           2 * ROUNDS - freed_before, freed_before);
}

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
    (void)number;
    signals++;
}

/* The second signal ends the call. */
static int interrupted(void *user_data)
{
    return signals >= *(int *)user_data;
}

static void is_interrupted(size_t which)
{
    struct sigaction action = { .sa_handler = on_signal };
    int limit = 2;

    set_up(which);
    signals = 0;
    sigaction(SIGALRM, &action, NULL);
    smbdirect_set_interrupt(interrupted, &limit);
    ualarm(20000, 20000);
    int64_t status = cases[which].call();
    int number = errno;
    ualarm(0, 0);
    smbdirect_set_interrupt(NULL, NULL);
    if (status != SMBDIRECT_ERROR_INTERRUPTED || number != EINTR || signals < 2) {
        fprintf(stderr, "%s: %d after %d signals\n", cases[which].name, (int)status, (int)signals);
        exit(1);
    }
    cases[which].end();
    take_down(which);
}

static void *cancelled(void *call)
{
    void *status = waiter(call);
    pthread_testcancel();
    return status;
}

static void is_cancelled(size_t which)
{
    pthread_t thread;
    void *status;

    set_up(which);
    atomic_store(&thread_id, 0);
    pthread_create(&thread, NULL, cancelled, (void *)&cases[which].call);
    let_wait(0);
    pthread_cancel(thread);
    cases[which].end();
    pthread_join(thread, &status);
    if (status != PTHREAD_CANCELED) {
        fprintf(stderr, "%s: %d, not cancelled\n", cases[which].name, (int)(intptr_t)status);
        exit(1);
    }
    take_down(which);
}

static int closes_everything(void *status)
{
    *(int *)status = smbdirect_close_all(10000);
    return 0;
}

/* The function that a call asks may end all connections, that of the call too. The peer is of this process as well. The
 * call ends with ABORTED unless the peer closes first, as the header says, and then with the end of the messages. */
static void closes_itself(void)
{
    struct smbdirect_error error = { 0 };
    int status = 1;
    int64_t ended;

    set_up(0);
    smbdirect_set_interrupt(closes_everything, &status);
    ended = cases[0].call();
    CHECK((ended == SMBDIRECT_ERROR_ABORTED || ended == 0) && status == 0);
    smbdirect_set_interrupt(NULL, NULL);
    take_down(0);
}

/* A thread of the program waits for a signal that all its threads block. The thread of the library blocks it, too:
 * otherwise the signal would end the process. */
static void signals_are_left_to_the_program(void)
{
    struct smbdirect_error error = { 0 };
    struct timespec limit = { .tv_sec = 10 };
    sigset_t signals;

    set_up(0);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    kill(getpid(), SIGTERM);
    CHECK(sigtimedwait(&signals, NULL, &limit) == SIGTERM);
    take_down(0);
}

int main(void)
{
    struct smbdirect_error error = { 0 };

    CHECK(smbdirect_runtime_new(1, NULL, 0, NULL, &mute, &error) == 0);
    CHECK(smbdirect_listen(mute, "127.0.0.1:0", NULL, &listener, &error) == 0);
    CHECK(smbdirect_listener_address(listener, address, sizeof address, &error) == 0);
    for (size_t which = 0; which < sizeof cases / sizeof cases[0]; which++) {
        is_freed(which);
        is_interrupted(which);
        is_cancelled(which);
    }
    signals_are_left_to_the_program();
    closes_itself();
    smbdirect_listener_free(listener);
    smbdirect_runtime_free(mute);
    return 0;
}
