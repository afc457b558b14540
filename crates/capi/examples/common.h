/* What the examples share: ending with an error, and buffer descriptors in messages. */
#include <smbdirect.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints why a call failed, and ends the program. */
static inline void fail(const char *what, const struct smbdirect_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->message);
    exit(1);
}

/* Returns the default settings of a transport, such as "iwarp" or "roce"; NULL is that of the library. */
static inline struct smbdirect_settings settings_of(const char *transport)
{
    struct smbdirect_settings settings;

    if (smbdirect_settings_init(&settings, sizeof settings, SMBDIRECT_PROFILE_DEFAULT) != 0)
        exit(1);
    settings.transport = transport;
    return settings;
}

/* Listens on an address, prints the actual one, and returns the first connection. */
static inline struct smbdirect_connection *accept_one(const char *address, const char *transport)
{
    struct smbdirect_settings settings = settings_of(transport);
    struct smbdirect_listener *listener;
    struct smbdirect_connection *connection;
    struct smbdirect_error error;
    char actual[SMBDIRECT_ADDRESS_LENGTH];

    if (smbdirect_listen(NULL, address, &settings, &listener, &error) != 0)
        fail("listen", &error);
    if (smbdirect_listener_address(listener, actual, sizeof actual, &error) != 0)
        fail("listener address", &error);
    printf("listening on %s\n", actual);
    fflush(stdout);
    if (smbdirect_accept(listener, 30000, &connection, &error) != 0)
        fail("accept", &error);
    smbdirect_listener_free(listener);
    return connection;
}

/* Connects within ten seconds. */
static inline struct smbdirect_connection *connect_to(const char *address, const char *transport)
{
    struct smbdirect_settings settings = settings_of(transport);
    struct smbdirect_connection *connection;
    struct smbdirect_error error;

    if (smbdirect_connect(NULL, address, &settings, 10000, &connection, &error) != 0)
        fail("connect", &error);
    return connection;
}

/* Writes a buffer descriptor as [MS-SMBD] 2.2.3.1 has it on the wire. */
static inline void encode_descriptor(const struct smbdirect_buffer_descriptor *from, unsigned char to[16])
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(from->offset >> (8 * i));
    for (int i = 0; i < 4; i++)
        to[8 + i] = (unsigned char)(from->token >> (8 * i));
    for (int i = 0; i < 4; i++)
        to[12 + i] = (unsigned char)(from->length >> (8 * i));
}

/* Reads a buffer descriptor from a message. */
static inline void decode_descriptor(const unsigned char from[16], struct smbdirect_buffer_descriptor *to)
{
    to->offset = 0;
    to->token = 0;
    to->length = 0;
    for (int i = 7; i >= 0; i--)
        to->offset = to->offset << 8 | from[i];
    for (int i = 3; i >= 0; i--)
        to->token = to->token << 8 | from[8 + i];
    for (int i = 3; i >= 0; i--)
        to->length = to->length << 8 | from[12 + i];
}
