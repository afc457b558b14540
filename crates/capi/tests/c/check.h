/* CHECK, for tests in which a step fails with the last error of a call. */

#include <stdio.h>
#include <stdlib.h>

/* Ends the test unless the condition holds. `error` is the struct smbdirect_error of the calls. */
#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
            fprintf(stderr, "last error: %s\n", error.message);                   \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
