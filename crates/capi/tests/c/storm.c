/* Four threads make every call at once, with handles that the others free: each call succeeds or fails with a status
 * code, every callback is called once, and no memory is used after it was freed. */
#include "common.h"
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, SLOTS = 3, LENGTH = 70000 };

static _Atomic(struct smbdirect_connection *) connections[SLOTS];
static _Atomic(struct smbdirect_listener *) listeners[SLOTS];
static _Atomic(struct smbdirect_region *) regions[SLOTS];
static _Atomic(struct smbdirect_buffer *) buffers[SLOTS];
static _Atomic(struct smbdirect_message *) messages[SLOTS];
static _Atomic(struct smbdirect_runtime *) runtimes[SLOTS];
static _Atomic(uint64_t) offsets[SLOTS];
static _Atomic(uint32_t) tokens[SLOTS];
static char addresses[SLOTS][SMBDIRECT_ADDRESS_LENGTH];
static pthread_mutex_t address_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int started, called;
/* It is lent, and never changes. */
static char memory[LENGTH];
static struct timespec begun;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9;
}

static void count(struct smbdirect_connection *connection, const struct smbdirect_error *error,
                  struct smbdirect_buffer *buffer, void *user_data)
{
    atomic_int *once = user_data;
    if (atomic_exchange(once, 2) != 1)
        abort();
    free(once);
    if (error != NULL && error->code >= 0)
        abort();
    smbdirect_buffer_free(buffer);
    smbdirect_connection_info info = { .size = sizeof info };
    smbdirect_query(connection, &info, NULL);
    atomic_fetch_add(&called, 1);
}

static int64_t checked(int64_t status)
{
    if (status < 0 && (status == SMBDIRECT_ERROR_INTERNAL || status < SMBDIRECT_ERROR_INTERNAL)) {
        fprintf(stderr, "status %lld\n", (long long)status);
        abort();
    }
    return status;
}

/* Puts a handle into a slot, and returns the one that was there. */
#define EXCHANGE(slots, slot, new) atomic_exchange(&(slots)[slot], (new))

static void establish(unsigned slot, unsigned choice, int timeout)
{
    struct smbdirect_connection *connection = NULL;
    struct smbdirect_settings settings;
    char address[SMBDIRECT_ADDRESS_LENGTH];
    struct smbdirect_runtime *runtime = runtimes[slot];

    smbdirect_settings_init(&settings, sizeof settings, SMBDIRECT_PROFILE_DEFAULT);
    settings.send_credit_target = settings.receive_credit_max = 4;
    pthread_mutex_lock(&address_lock);
    memcpy(address, addresses[slot], sizeof address);
    pthread_mutex_unlock(&address_lock);
    if (choice == 0)
        checked(smbdirect_connect(runtime, address, &settings, 100, &connection, NULL));
    else if (choice == 1)
        checked(smbdirect_connect_start(runtime, address, &settings, &connection, NULL));
    else if (choice == 2)
        checked(smbdirect_accept(listeners[slot], timeout, &connection, NULL));
    else {
        checked(smbdirect_connect_finish(connections[slot], timeout, NULL));
        return;
    }
    if (connection != NULL)
        smbdirect_connection_free(EXCHANGE(connections, slot, connection));
}

static void listening(unsigned slot, unsigned choice)
{
    struct smbdirect_listener *listener = NULL;
    struct smbdirect_runtime *runtime = NULL;
    char address[SMBDIRECT_ADDRESS_LENGTH];

    if (choice == 0) {
        if (checked(smbdirect_runtime_new(0, NULL, 0, NULL, &runtime, NULL)) == 0)
            smbdirect_runtime_free(EXCHANGE(runtimes, slot, runtime));
    } else if (choice == 1) {
        checked(smbdirect_runtime_run(runtimes[slot], 1, NULL));
    } else if (checked(smbdirect_listen(runtimes[slot], "127.0.0.1:0", NULL, &listener, NULL)) == 0) {
        checked(smbdirect_listener_get_fd(listener, NULL));
        if (checked(smbdirect_listener_address(listener, address, sizeof address, NULL)) == 0) {
            pthread_mutex_lock(&address_lock);
            memcpy(addresses[slot], address, sizeof address);
            pthread_mutex_unlock(&address_lock);
        }
        smbdirect_listener_free(EXCHANGE(listeners, slot, listener));
    }
}

static atomic_int *ticket(void)
{
    atomic_int *once = malloc(sizeof *once);
    if (once == NULL)
        abort();
    atomic_init(once, 0);
    atomic_store(once, 1);
    atomic_fetch_add(&started, 1);
    return once;
}

static void withdraw(int64_t status, atomic_int *once)
{
    if (checked(status) != 0) {
        free(once);
        atomic_fetch_sub(&started, 1);
    }
}

static void message(unsigned slot, unsigned choice, int timeout, unsigned length)
{
    char room[2000];
    struct iovec part = { memory, length }, into = { room, sizeof room };
    struct smbdirect_connection *connection = connections[slot];
    struct smbdirect_message *received = NULL;
    uint32_t token = tokens[slot];
    atomic_int *once;

    switch (choice) {
    case 0:
        checked(smbdirect_send(connection, &part, 1, timeout, NULL));
        break;
    case 1:
        checked(smbdirect_send_and_invalidate(connection, &part, 1, token, timeout, NULL));
        break;
    case 2:
        once = ticket();
        withdraw(smbdirect_send_start(connection, &part, 1, NULL, count, once, NULL), once);
        break;
    case 3:
        checked(smbdirect_recv(connection, &into, 1, timeout, &token, NULL));
        break;
    case 4:
        if (checked(smbdirect_recv_message(connection, timeout, &received, NULL)) == 1)
            smbdirect_message_free(EXCHANGE(messages, slot, received));
        break;
    default:
        smbdirect_message_length(messages[slot]);
        smbdirect_message_invalidated(messages[slot], &token);
        /* Its bytes are not used, because another thread may free it. */
        smbdirect_message_data(messages[slot]);
    }
}

static void remote(unsigned slot, unsigned choice, int timeout, unsigned length)
{
    struct smbdirect_connection *connection = connections[slot];
    struct smbdirect_buffer_descriptor descriptor = { offsets[slot], tokens[slot], LENGTH };
    struct smbdirect_region *region = NULL;
    struct smbdirect_buffer *buffer = NULL;
    atomic_int *once;
    int wait = timeout == 0 ? 1 : timeout;
    char room[100];

    switch (choice) {
    case 0:
        buffer = smbdirect_buffer_new(LENGTH);
        checked(smbdirect_register(connection, &buffer, 7, &region, NULL));
        smbdirect_buffer_free(EXCHANGE(buffers, slot, buffer));
        if (region != NULL && checked(smbdirect_region_descriptor(region, &descriptor, NULL)) == 0) {
            offsets[slot] = descriptor.offset;
            tokens[slot] = descriptor.token;
            smbdirect_region_free(EXCHANGE(regions, slot, region));
        }
        break;
    case 1:
        if (checked(smbdirect_deregister(regions[slot], timeout, &buffer, NULL)) == 0)
            smbdirect_buffer_free(EXCHANGE(buffers, slot, buffer));
        break;
    case 2:
        checked(smbdirect_read(connection, &descriptor, 1, 0, room, sizeof room, wait, NULL));
        break;
    case 3:
        checked(smbdirect_write(connection, &descriptor, 1, 0, memory, length, wait, NULL));
        break;
    case 4:
        once = ticket();
        buffer = smbdirect_buffer_new(length);
        withdraw(smbdirect_read_start(connection, &descriptor, 1, 0, &buffer, count, once, NULL), once);
        smbdirect_buffer_free(buffer);
        break;
    case 5:
        once = ticket();
        withdraw(smbdirect_write_start(connection, &descriptor, 1, 0, memory, length, count, once, NULL), once);
        break;
    default:
        smbdirect_buffer_length(buffers[slot]);
        smbdirect_buffer_data(buffers[slot]);
    }
}

static void other(unsigned slot, unsigned choice, int timeout)
{
    struct smbdirect_connection *connection = connections[slot];
    smbdirect_connection_info info = { .size = sizeof info };
    int fd = -1;

    switch (choice) {
    case 0:
        checked(smbdirect_service(connection, NULL));
        break;
    case 1:
        checked(smbdirect_query(connection, &info, NULL));
        break;
    case 2:
        checked(smbdirect_keepalive(connection, timeout == 0 ? 1 : timeout, NULL, NULL));
        break;
    case 3:
        checked(smbdirect_get_fd(connection, NULL));
        checked(smbdirect_which_events(connection));
        break;
    case 4:
        if (checked(smbdirect_stream(connection, &fd, NULL)) == 0)
            close(fd);
        break;
    case 5:
        checked(smbdirect_close(connection, timeout, NULL));
        break;
    default:
        checked(smbdirect_abort(connection, NULL));
    }
}

/* The handles stay in the slots, so that others go on to use them after they were freed. */
static void release(unsigned slot, unsigned choice)
{
    switch (choice) {
    case 0:
        smbdirect_connection_free(connections[slot]);
        break;
    case 1:
        smbdirect_region_free(regions[slot]);
        break;
    case 2:
        smbdirect_buffer_free(buffers[slot]);
        break;
    case 3:
        smbdirect_message_free(messages[slot]);
        break;
    case 4:
        smbdirect_listener_free(listeners[slot]);
        break;
    default:
        smbdirect_runtime_free(runtimes[slot]);
    }
}

static void *storm(void *argument)
{
    unsigned state = *(unsigned *)argument;
    double limit = atof(getenv("STORM_SECONDS") != NULL ? getenv("STORM_SECONDS") : "2");

    while (seconds() < limit) {
        static const unsigned lengths[] = { 0, 1, 1000, 9000, LENGTH };
        state = state * 1103515245u + 12345u;
        unsigned bits = state >> 8, slot = bits % SLOTS, choice = bits / SLOTS % 7;
        int timeout = (int)(bits / 21 % 3) * 5;
        unsigned length = lengths[bits / 63 % 5];
        switch (bits / 315 % 16) {
        case 0:
            listening(slot, choice % 3);
            break;
        case 1:
            release(slot, choice);
            break;
        case 2: case 3: case 4: case 5:
            establish(slot, choice % 4, timeout);
            break;
        case 6: case 7: case 8: case 9:
            message(slot, choice, timeout, length);
            break;
        case 10: case 11: case 12: case 13:
            remote(slot, choice, timeout, length);
            break;
        default:
            other(slot, choice, timeout);
        }
    }
    return NULL;
}

int main(void)
{
    struct smbdirect_error error = { 0 };
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];

    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (unsigned slot = 0; slot < SLOTS; slot++)
        listening(slot, 2);
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = 77 + i;
        CHECK(pthread_create(&threads[i], NULL, storm, &seeds[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned slot = 0; slot < SLOTS; slot++)
        for (unsigned choice = 0; choice < 6; choice++)
            release(slot, choice);
    CHECK(atomic_load(&started) == atomic_load(&called));
    printf("%d operations, each with one callback\n", atomic_load(&called));
    return 0;
}
