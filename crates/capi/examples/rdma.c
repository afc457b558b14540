/* Remote memory: `rdma listen ADDRESS` registers a buffer and sends its descriptor, and `rdma connect ADDRESS`
 * reads it by RDMA Read, writes half of it by RDMA Write, and ends the registration by Send with Invalidate. The
 * connecting end also uses the memory of `smbdirect listen --memory`. */
#include "common.h"

enum { LENGTH = 1 << 20 };

static void serve(const char *address, const char *transport)
{
    struct smbdirect_connection *connection = accept_one(address, transport);
    struct smbdirect_buffer *buffer = smbdirect_buffer_new(LENGTH);
    struct smbdirect_buffer_descriptor descriptor;
    struct smbdirect_region *region;
    struct smbdirect_error error;
    unsigned char encoded[16];
    char done[16];
    uint32_t invalidated;

    if (buffer == NULL)
        exit(1);
    memset(smbdirect_buffer_data(buffer), 'a', LENGTH);
    if (smbdirect_register(connection, &buffer,
                           SMBDIRECT_ACCESS_REMOTE_READ | SMBDIRECT_ACCESS_REMOTE_WRITE
                               | SMBDIRECT_ACCESS_REMOTE_INVALIDATE,
                           &region, &error) != 0)
        fail("register", &error);
    if (smbdirect_region_descriptor(region, &descriptor, &error) != 0)
        fail("descriptor", &error);
    encode_descriptor(&descriptor, encoded);
    struct iovec out = { encoded, sizeof encoded }, in = { done, sizeof done };
    if (smbdirect_send(connection, &out, 1, 30000, &error) != 0)
        fail("send", &error);

    /* The data of a write is in place before the message that follows it arrives. */
    if (smbdirect_recv(connection, &in, 1, 30000, &invalidated, &error) < 0)
        fail("receive", &error);
    if (smbdirect_deregister(region, 30000, &buffer, &error) != 0)
        fail("deregister", &error);
    const char *data = smbdirect_buffer_data(buffer);
    for (size_t at = 0; at < LENGTH; at++)
        if (data[at] != (at < LENGTH / 2 ? 'a' : 'b')) {
            fprintf(stderr, "byte %zu differs\n", at);
            exit(1);
        }
    if (invalidated != descriptor.token) {
        fprintf(stderr, "the message ended token %#x instead of %#x\n", invalidated, descriptor.token);
        exit(1);
    }
    printf("the peer wrote half of %d bytes and ended its access\n", LENGTH);
    smbdirect_region_free(region);
    smbdirect_buffer_free(buffer);
    smbdirect_connection_free(connection);
}

static void use(const char *address, const char *transport)
{
    struct smbdirect_connection *connection = connect_to(address, transport);
    struct smbdirect_buffer_descriptor descriptor;
    struct smbdirect_error error;
    unsigned char encoded[16];
    char done[] = "done";

    struct iovec in = { encoded, sizeof encoded }, out = { done, sizeof done - 1 };
    if (smbdirect_recv(connection, &in, 1, 30000, NULL, &error) != sizeof encoded)
        fail("receive", &error);
    decode_descriptor(encoded, &descriptor);
    size_t length = descriptor.length, half = length / 2;
    char *before = malloc(length), *after = malloc(length);
    if (before == NULL || after == NULL)
        exit(1);
    if (smbdirect_read(connection, &descriptor, 1, 0, before, length, 30000, &error) != 0)
        fail("read", &error);
    memset(before + half, 'b', length - half);
    if (smbdirect_write(connection, &descriptor, 1, half, before + half, length - half, 30000, &error) != 0)
        fail("write", &error);
    /* The read follows the write, so it finds what was written. */
    if (smbdirect_read(connection, &descriptor, 1, 0, after, length, 30000, &error) != 0)
        fail("read", &error);
    if (memcmp(before, after, length) != 0) {
        fprintf(stderr, "the memory has other bytes than were written\n");
        exit(1);
    }
    /* Beyond the descriptor the library refuses a transfer, and the connection lives on. */
    if (smbdirect_read(connection, &descriptor, 1, 1, after, length, 30000, &error) != SMBDIRECT_ERROR_RANGE)
        exit(1);
    if (smbdirect_send_and_invalidate(connection, &out, 1, descriptor.token, 30000, &error) != 0)
        fail("send", &error);
    if (smbdirect_close(connection, 30000, &error) != 0)
        fail("close", &error);
    smbdirect_connection_free(connection);
    free(before);
    free(after);
    printf("read %zu bytes and wrote %zu\n", length, length - half);
}

int main(int argc, char **argv)
{
    const char *transport = argc == 4 ? argv[3] : NULL;

    if ((argc == 3 || argc == 4) && strcmp(argv[1], "listen") == 0)
        serve(argv[2], transport);
    else if ((argc == 3 || argc == 4) && strcmp(argv[1], "connect") == 0)
        use(argv[2], transport);
    else
        return fprintf(stderr, "usage: rdma listen|connect ADDRESS [TRANSPORT]\n"), 2;
    return 0;
}
