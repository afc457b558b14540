/* Threads send and receive on one connection at once, and every message arrives once. */
#include "common.h"
#include <pthread.h>

enum { THREADS = 4, MESSAGES = 500 };

static struct smbdirect_connection *client, *server;
static int seen[THREADS * MESSAGES];

static void *sender(void *argument)
{
    struct smbdirect_error error;
    int first = *(int *)argument;
    for (int i = 0; i < MESSAGES; i++) {
        int number = first + i;
        struct iovec part = { &number, sizeof number };
        if (smbdirect_send(client, &part, 1, 30000, &error) != 0)
            fail("send", &error);
    }
    return NULL;
}

static void *receiver(void *argument)
{
    struct smbdirect_error error;
    (void)argument;
    for (int i = 0; i < MESSAGES; i++) {
        int number = -1;
        struct iovec part = { &number, sizeof number };
        if (smbdirect_recv(server, &part, 1, 30000, NULL, &error) != sizeof number)
            fail("receive", &error);
        if (number < 0 || number >= THREADS * MESSAGES)
            exit(1);
        __atomic_add_fetch(&seen[number], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(void)
{
    struct smbdirect_error error;
    struct smbdirect_listener *listener;
    char address[SMBDIRECT_ADDRESS_LENGTH];
    pthread_t threads[2 * THREADS];
    int first[THREADS];

    if (smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) != 0
        || smbdirect_listener_address(listener, address, sizeof address, &error) != 0)
        fail("listen", &error);
    client = connect_to(address, NULL);
    if (smbdirect_accept(listener, 10000, &server, &error) != 0)
        fail("accept", &error);
    for (int i = 0; i < THREADS; i++) {
        first[i] = i * MESSAGES;
        if (pthread_create(&threads[i], NULL, sender, &first[i]) != 0
            || pthread_create(&threads[THREADS + i], NULL, receiver, NULL) != 0)
            return 1;
    }
    for (int i = 0; i < 2 * THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS * MESSAGES; i++)
        if (seen[i] != 1)
            return fprintf(stderr, "message %d arrived %d times\n", i, seen[i]), 1;
    smbdirect_connection_free(client);
    smbdirect_connection_free(server);
    smbdirect_listener_free(listener);
    puts("every message arrived once");
    return 0;
}
