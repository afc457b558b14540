/* A forked process cannot use the handles of its parent, and makes its own. */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *start_runtime(void *address)
{
    struct smbdirect_connection *connection;
    struct smbdirect_error error;

    if (smbdirect_connect_start(NULL, address, NULL, &connection, &error) == 0)
        smbdirect_connection_free(connection);
    return NULL;
}

/* A thread forks while another one starts the shared runtime: the child starts its own. Each attempt needs a
 * process in which the runtime was not started. */
static void fork_while_another_thread_starts(void)
{
    static char nowhere[] = "127.0.0.1:1";

    for (int attempt = 0; attempt < 200; attempt++) {
        int status;
        pid_t fresh = fork();
        if (fresh == 0) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, start_runtime, nowhere) != 0)
                _exit(1);
            for (volatile int delay = 0; delay < attempt * 500; delay++)
                ;
            pid_t child = fork();
            if (child == 0) {
                /* If it waits for a lock whose owner does not exist here, this ends it. */
                alarm(60);
                start_runtime(nowhere);
                _exit(0);
            }
            if (waitpid(child, &status, 0) != child)
                _exit(1);
            pthread_join(thread, NULL);
            _exit(status != 0);
        }
        if (waitpid(fresh, &status, 0) != fresh || status != 0) {
            fprintf(stderr, "the child of attempt %d hung\n", attempt);
            exit(1);
        }
    }
}

int main(void)
{
    struct smbdirect_error error;
    struct smbdirect_listener *listener;
    struct smbdirect_connection *inherited, *server, *own;
    char address[SMBDIRECT_ADDRESS_LENGTH], text[] = "hello", room[16];
    struct iovec out = { text, sizeof text }, in = { room, sizeof room };
    int status;

    fork_while_another_thread_starts();
    if (smbdirect_listen(NULL, "127.0.0.1:0", NULL, &listener, &error) != 0
        || smbdirect_listener_address(listener, address, sizeof address, &error) != 0)
        fail("listen", &error);
    inherited = connect_to(address, NULL);
    if (smbdirect_accept(listener, 10000, &server, &error) != 0)
        fail("accept", &error);
    pid_t child = fork();
    if (child == 0) {
        if (smbdirect_send(inherited, &out, 1, 1000, &error) != SMBDIRECT_ERROR_FORKED)
            _exit(2);
        if (smbdirect_service(inherited, &error) != SMBDIRECT_ERROR_FORKED)
            _exit(3);
        smbdirect_connection_free(inherited);
        smbdirect_listener_free(listener);
        own = connect_to(address, NULL);
        if (smbdirect_send(own, &out, 1, 10000, &error) != 0
            || smbdirect_recv(own, &in, 1, 10000, NULL, &error) != sizeof text)
            _exit(4);
        if (smbdirect_close(own, 10000, &error) != 0)
            _exit(5);
        smbdirect_connection_free(own);
        _exit(0);
    }
    struct smbdirect_connection *of_child;
    if (smbdirect_accept(listener, 10000, &of_child, &error) != 0
        || smbdirect_recv(of_child, &in, 1, 10000, NULL, &error) != sizeof text)
        fail("the child's connection", &error);
    struct iovec reply = { room, sizeof text };
    if (smbdirect_send(of_child, &reply, 1, 10000, &error) != 0)
        fail("reply", &error);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return fprintf(stderr, "the child ended with %#x\n", (unsigned)status), 1;
    /* The connection of the parent is as it was. */
    if (smbdirect_send(inherited, &out, 1, 10000, &error) != 0
        || smbdirect_recv(server, &in, 1, 10000, NULL, &error) != sizeof text)
        fail("the parent's connection", &error);
    smbdirect_connection_free(inherited);
    smbdirect_connection_free(server);
    smbdirect_connection_free(of_child);
    smbdirect_listener_free(listener);
    puts("the child had a connection of its own");
    return 0;
}
