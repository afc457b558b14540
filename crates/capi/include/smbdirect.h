/* smbdirect.h: SMB Direct ([MS-SMBD]) in user space.
 *
 * A connection carries whole messages in both directions, and gives each end RDMA access to memory that the
 * other end registered. Link with `pkg-config --cflags --libs smbdirect`.
 *
 *     struct smbdirect_connection *connection;
 *     struct smbdirect_error error;
 *     char text[] = "hello";
 *     struct iovec iov = { text, sizeof text };
 *     if (smbdirect_connect(NULL, "192.0.2.1:5445", NULL, 5000, &connection, &error) != 0)
 *         return fail(error.message);
 *     smbdirect_send(connection, &iov, 1, -1, &error);
 *     int64_t length = smbdirect_recv(connection, &iov, 1, -1, NULL, &error);
 *     smbdirect_connection_free(connection);
 *
 * Errors. Functions return 0 or more on success and a negative SMBDIRECT_ERROR_ code otherwise. They then
 * also fill `error`, unless it is NULL. On success `error` and, on failure, all other results stay
 * unchanged, if the function does not say otherwise. errno is the number of the system's error if one was the
 * cause of the failure, such as ECONNREFUSED, and 0 otherwise.
 *
 * Timeouts are in milliseconds. With -1 a call waits without limit. With 0 it does not wait, and returns
 * SMBDIRECT_ERROR_WOULD_BLOCK where it would have to; smbdirect_get_fd() returns a descriptor for poll() that
 * tells when to repeat the call. Calls whose name ends with _start never wait, and smbdirect_service() calls
 * their callbacks.
 *
 * Rules for arguments. A handle is valid until it is freed, or handed over where a function says so. A call with a
 * handle that is not valid any more does nothing and returns SMBDIRECT_ERROR_INVALID; a handle is never used for
 * another object, except after 268 million further ones on machines with 32 bits. Texts end with a 0 byte and are
 * UTF-8. Memory that is passed in has to be valid and unchanged, and memory for results must be used by nothing else,
 * during the call; with callbacks, until the callback, also while the program ends.
 *
 * Callbacks return. The stack of a callback has frames of the library, which must not be skipped: an exception of C++
 * that leaves a callback ends the process by abort(), and longjmp() and pthread_exit() are undefined.
 *
 * Waits. A call that waits returns when its timeout is over, its handle is freed or its connection ends. A handler of
 * a signal runs meanwhile and does not end the call; smbdirect_set_interrupt() has it end the calls of a thread. No
 * call is a cancellation point: pthread_cancel() acts after the call has returned. As POSIX says for most functions,
 * a thread with the cancellation type PTHREAD_CANCEL_ASYNCHRONOUS must not call the library.
 *
 * Files. There is no registration of a file descriptor's memory: other processes can change or truncate the
 * file, and RDMA adapters cannot pin the pages of most file systems. To send a file without a copy, map it and
 * lend the mapping to smbdirect_write_start() or smbdirect_send_start(), until the callback. To store the peer's
 * bytes, write() the buffer that smbdirect_deregister() or the callback of smbdirect_read_start() returns.
 *
 * Threads. Every function may be called by several threads at once, with the same handle too, and while other
 * calls, operations and callbacks are outstanding. A handle may be freed at any time: the library holds what it uses.
 * Calls that wait on the handle then always end with SMBDIRECT_ERROR_ABORTED. Two things remain for the program:
 * memory that smbdirect_buffer_data() or smbdirect_message_data() returned must not be used after the buffer or the
 * message was freed or handed over by any thread, and callbacks run on the thread that calls smbdirect_service() or
 * smbdirect_connection_free().
 *
 * Delivery. What a function or a callback reported as sent is delivered, unless the peer or the network fails or the
 * program calls smbdirect_abort(): also if the handle is freed, its runtime is freed, or the program ends by exit()
 * or by the return of main(), which wait for up to 10 s. A program that ends in another way, such as by _exit() or a
 * signal, calls smbdirect_close_all() before. In the functions that exit() calls, those of atexit() and destructors of
 * static objects, calls return SMBDIRECT_ERROR_SYSTEM, and freeing a handle only forgets it.
 *
 * Processes. A child of fork() cannot use the handles of its parent: functions return
 * SMBDIRECT_ERROR_FORKED, and freeing a handle only forgets it. It can create handles of its own. The
 * parent's connections stay open until the child exits or calls exec().
 *
 * Logs. The library writes to no file. smbdirect_runtime_new() sets a callback for the lines of the log.
 *
 * Signals. The library changes no handler of a signal. Its threads block the signals of the process, which are for the
 * threads of the program.
 *
 * This file is generated from the source of the package smbdirect-capi. */


#ifndef SMBDIRECT_H
#define SMBDIRECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/**
 * Version of this header; smbdirect_version() returns that of the library.
 */
#define SMBDIRECT_VERSION "0.1.0"
#define SMBDIRECT_VERSION_MAJOR 0
#define SMBDIRECT_VERSION_MINOR 1
#define SMBDIRECT_VERSION_PATCH 0


/**
 * Length of the longest address as a text, in bytes, with the 0 at its end.
 */
#define SMBDIRECT_ADDRESS_LENGTH 64

/**
 * The peer may read the memory by RDMA Read.
 */
#define SMBDIRECT_ACCESS_REMOTE_READ 1

/**
 * The peer may write the memory by RDMA Write.
 */
#define SMBDIRECT_ACCESS_REMOTE_WRITE 2

/**
 * The peer may end the registration by Send with Invalidate.
 */
#define SMBDIRECT_ACCESS_REMOTE_INVALIDATE 4

/**
 * The settings that suit every known peer and are the fastest among those.
 */
#define SMBDIRECT_PROFILE_DEFAULT 0

/**
 * The settings of Windows.
 */
#define SMBDIRECT_PROFILE_WINDOWS 1

/**
 * The settings of Linux.
 */
#define SMBDIRECT_PROFILE_LINUX 2

/**
 * The call did what it was asked for.
 */
#define SMBDIRECT_OK 0

/**
 * An argument is invalid. The text names it.
 */
#define SMBDIRECT_ERROR_INVALID (-1)

/**
 * The timeout was 0 and the call would have to wait. The descriptor of the handle becomes readable when
 * the call is worth repeating.
 */
#define SMBDIRECT_ERROR_WOULD_BLOCK (-2)

/**
 * The timeout of the call, or a timer of the connection, ran out.
 */
#define SMBDIRECT_ERROR_TIMED_OUT (-3)

/**
 * The connection was closed gracefully, by the peer or by this end.
 */
#define SMBDIRECT_ERROR_CLOSED (-4)

/**
 * The peer refused the connection or the negotiation, or nothing listens on the address.
 */
#define SMBDIRECT_ERROR_REFUSED (-5)

/**
 * The address cannot be resolved, reached or used.
 */
#define SMBDIRECT_ERROR_ADDRESS (-6)

/**
 * The address is in use by another listener.
 */
#define SMBDIRECT_ERROR_IN_USE (-7)

/**
 * One end broke a rule of SMB Direct or RDMA. The text names the rule.
 */
#define SMBDIRECT_ERROR_PROTOCOL (-8)

/**
 * The RDMA connection was lost, or closed in the middle of a message.
 */
#define SMBDIRECT_ERROR_LOST (-9)

/**
 * This end aborted the connection.
 */
#define SMBDIRECT_ERROR_ABORTED (-10)

/**
 * The message is longer than the peer accepts.
 */
#define SMBDIRECT_ERROR_TOO_LARGE (-11)

/**
 * The message is longer than the caller's memory. It is kept for the next call.
 */
#define SMBDIRECT_ERROR_BUFFER_TOO_SMALL (-12)

/**
 * The range is outside the peer's buffer descriptors, or the peer has no RDMA Reads and Writes.
 */
#define SMBDIRECT_ERROR_RANGE (-13)

/**
 * The transport does not exist on this machine or in this build.
 */
#define SMBDIRECT_ERROR_UNSUPPORTED (-14)

/**
 * An operation of this machine failed. The text names it.
 */
#define SMBDIRECT_ERROR_SYSTEM (-15)

/**
 * The handle belongs to the process that forked this one.
 */
#define SMBDIRECT_ERROR_FORKED (-16)

/**
 * A bug of the library. The text helps to report it.
 */
#define SMBDIRECT_ERROR_INTERNAL (-17)

/**
 * The function that the program has set by smbdirect_set_interrupt() has ended the wait.
 */
#define SMBDIRECT_ERROR_INTERRUPTED (-18)

/**
 * A block of memory that belongs to the library. A program may use its bytes as long as it owns the buffer:
 * registering the buffer or reading into it hands it to the library, which returns it when it is done.
 */
typedef struct smbdirect_buffer smbdirect_buffer;

/**
 * A connection.
 */
typedef struct smbdirect_connection smbdirect_connection;

/**
 * A listener.
 */
typedef struct smbdirect_listener smbdirect_listener;

/**
 * A message that was received.
 */
typedef struct smbdirect_message smbdirect_message;

/**
 * A buffer that is registered for the peer.
 */
typedef struct smbdirect_region smbdirect_region;

/**
 * Threads and timers of the handles that are created from it.
 */
typedef struct smbdirect_runtime smbdirect_runtime;

/**
 * A setting by its name and value. Both are texts, which must stay valid until the call that uses the settings
 * returns. The names are those of the Rust interface, with the unit of a time at the end.
 *
 * Every transport: `credit_grant_timeout_ms` (milliseconds, or never) is the longest time that a message which was
 * submitted waits for credits of the peer before the connection ends, 5000 by default, as in Windows.
 *
 * "iwarp" and "roce": `ird` and `ord` (0 to 128), `connect_timeout_ms`, `accept_timeout_ms`, `close_timeout_ms`,
 * `max_half_open` (1 or more), `poll_window_us`.
 *
 * "iwarp": `crc` (auto, on, off), `revision` (1, 2), `fall_back` (on, off), `max_fpdu` (bytes), `fpdu_alignment`
 * (auto, off, single, runs), `startup_probe` (on, off), `congestion_control` (a name of the system), `send_buffer`
 * (auto, system, bytes).
 *
 * "roce": `udp_port` (1 to 65535) of this end and `peer_udp_port` of listeners to connect to, `path_mtu` (256, 512,
 * 1024, 2048, 4096), `max_in_flight` (bytes). Connections and listeners of one runtime with the same `udp_port` share
 * its socket. The first one decides `ird`, `ord`, `close_timeout_ms`, `max_half_open` and `max_in_flight` for it.
 */
typedef struct smbdirect_option {
    /**
     * The name, such as "udp_port".
     */
    const char *name;
    /**
     * The value, such as "4791".
     */
    const char *value;
} smbdirect_option;

/**
 * The settings of connections. Initialise them with smbdirect_settings_init(), then change fields. Later
 * versions of the library add fields at the end; `size` tells it which ones the program knows. In such a field 0 is
 * the default: a library that does not know the field takes the settings only then.
 */
typedef struct smbdirect_settings {
    /**
     * sizeof(struct smbdirect_settings).
     */
    size_t size;
    /**
     * "iwarp" (iWARP in software, over TCP), "roce" (RoCEv2 in software, over UDP), "verbs" (RDMA adapters, on
     * Linux) or "loopback" (within this process and runtime). NULL means "iwarp". The text must stay valid until
     * the call that uses the settings returns.
     */
    const char *transport;
    /**
     * SendCreditTarget: number of send credits to request from the peer; at least 1.
     */
    uint16_t send_credit_target;
    /**
     * ReceiveCreditMax: largest number of send credits to grant to the peer; at least 1.
     */
    uint16_t receive_credit_max;
    /**
     * MaxSendSize: largest single message to send, in bytes with its header; 128 or more.
     */
    uint32_t max_send_size;
    /**
     * MaxReceiveSize: largest single message to receive, in bytes with its header; 128 or more.
     */
    uint32_t max_receive_size;
    /**
     * MaxFragmentedRecvSize: largest reassembled message to receive, in bytes; 131072 or more.
     */
    uint32_t max_fragmented_receive_size;
    /**
     * MaxReadWriteSize: largest RDMA Read or Write, in bytes; 65536 or more.
     */
    uint32_t max_read_write_size;
    /**
     * KeepaliveInterval: milliseconds without a message after which the peer is asked for one.
     */
    uint32_t keepalive_interval_ms;
    /**
     * Longest time to wait for the answer to a keepalive, in milliseconds.
     */
    uint32_t keepalive_response_timeout_ms;
    /**
     * Longest time for connecting and negotiating together, in milliseconds.
     */
    uint32_t active_negotiation_timeout_ms;
    /**
     * Longest time for the negotiation of an accepted connection, in milliseconds.
     */
    uint32_t passive_negotiation_timeout_ms;
    /**
     * Time in microseconds that a receive polls before it sleeps, which shortens latency and costs a
     * core. With 0 it sleeps immediately.
     */
    uint32_t busy_poll_us;
    /**
     * Further settings, `options_count` of them, or NULL. Of two with the same name the later one counts.
     */
    const struct smbdirect_option *options;
    /**
     * Number of `options`.
     */
    size_t options_count;
} smbdirect_settings;

/**
 * Why a call failed: a status code for programs, and a text for people. The layout never changes.
 */
typedef struct smbdirect_error {
    /**
     * One of the SMBDIRECT_ERROR_ codes.
     */
    int32_t code;
    /**
     * A sentence in UTF-8 that names the cause, ended by a 0 byte; cut off if it is too long.
     */
    char message[252];
} smbdirect_error;

/**
 * Returns 0 if the call that waits goes on, and another number if it gives up. It may call every function of the
 * library.
 */
typedef int (*smbdirect_interrupt_callback)(void *user_data);

/**
 * The result of smbdirect_query(). Later versions of the library add fields at the end.
 */
typedef struct smbdirect_connection_info {
    /**
     * sizeof(struct smbdirect_connection_info), set by the caller. It becomes the size that the library knows, after
     * which nothing is stored.
     */
    size_t size;
    /**
     * Address of this end, such as "10.0.0.1:40000".
     */
    char local_address[SMBDIRECT_ADDRESS_LENGTH];
    /**
     * Address of the peer.
     */
    char remote_address[SMBDIRECT_ADDRESS_LENGTH];
    /**
     * Largest single message that this end sends, in bytes with its header.
     */
    uint32_t max_send_size;
    /**
     * Largest single message that this end receives, in bytes with its header.
     */
    uint32_t max_receive_size;
    /**
     * Largest message that smbdirect_send() takes, in bytes.
     */
    uint32_t max_fragmented_send_size;
    /**
     * Largest message that can arrive, in bytes.
     */
    uint32_t max_fragmented_receive_size;
    /**
     * Largest single RDMA Read or Write, in bytes. Longer ones are done in parts.
     */
    uint32_t max_read_write_size;
    /**
     * Number of messages that the peer allows now.
     */
    uint32_t send_credits;
    /**
     * Number of messages that the peer may send now.
     */
    uint32_t receive_credits;
    /**
     * Messages of the program that were sent completely.
     */
    uint64_t messages_sent;
    /**
     * Messages that arrived completely.
     */
    uint64_t messages_received;
    /**
     * Bytes of messages that were sent.
     */
    uint64_t bytes_sent;
    /**
     * Bytes of messages that arrived.
     */
    uint64_t bytes_received;
    /**
     * RDMA Reads that are complete.
     */
    uint64_t reads;
    /**
     * RDMA Writes that are complete.
     */
    uint64_t writes;
    /**
     * Bytes that RDMA Reads brought.
     */
    uint64_t bytes_read;
    /**
     * Bytes that this end has sent by RDMA Write.
     */
    uint64_t bytes_written;
    /**
     * Buffers that are registered now.
     */
    uint64_t regions;
} smbdirect_connection_info;

/**
 * Buffer Descriptor V1 ([MS-SMBD] 2.2.3.1): memory of a peer. Encode it in messages as 16 bytes, with the
 * fields in this order and little-endian.
 */
typedef struct smbdirect_buffer_descriptor {
    /**
     * Offset of the first byte.
     */
    uint64_t offset;
    /**
     * Token of the registration.
     */
    uint32_t token;
    /**
     * Length in bytes.
     */
    uint32_t length;
} smbdirect_buffer_descriptor;

/**
 * Receives a line of the log: `level` is 1 (error) to 5 (trace), and `message` ends with a 0 byte and is
 * valid during the call. It is called on threads of the library and in calls of the program, must not
 * call the library, and must be safe to call from several threads.
 */
typedef void (*smbdirect_log_callback)(int32_t level, const char *message, void *user_data);

/**
 * Receives the result of an operation that was started on `connection`. It is called by smbdirect_service() or
 * smbdirect_connection_free(), and nowhere else.
 *
 * `error` is NULL if the operation succeeded, and valid during the call otherwise, with errno as after a call.
 * `buffer` is the buffer of the operation, which belongs to the program again, or NULL if it has none. `user_data` is
 * the argument of the call that started the operation, whose memory belongs to the program again.
 *
 * The callback may call every function of the library, smbdirect_connection_free() included. If
 * smbdirect_connection_free() calls it, `connection` is not valid any more, and calls with it return
 * SMBDIRECT_ERROR_INVALID.
 */
typedef void (*smbdirect_callback)(struct smbdirect_connection *connection,
                                   const struct smbdirect_error *error,
                                   struct smbdirect_buffer *buffer,
                                   void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a buffer of `length` zero bytes. Returns NULL if there is not enough memory.
 */
struct smbdirect_buffer *smbdirect_buffer_new(size_t length);

/**
 * Returns the address of the first byte. The bytes may be used until the buffer is handed over or freed.
 * Returns NULL for NULL and for a buffer that was
 * freed or handed over.
 */
void *smbdirect_buffer_data(struct smbdirect_buffer *buffer);

/**
 * Returns the number of bytes, and 0 for NULL and for a buffer that was freed or handed over.
 */
size_t smbdirect_buffer_length(const struct smbdirect_buffer *buffer);

/**
 * Frees a buffer. NULL, and a buffer that was freed or handed over, are ignored.
 */
void smbdirect_buffer_free(struct smbdirect_buffer *buffer);

/**
 * Connects to a peer and negotiates, within `timeout_ms` milliseconds.
 *
 * `runtime` may be NULL for the shared one, and `settings` may be NULL for the default ones. `address` is
 * HOST or HOST:PORT, where an IPv6 address with a port is in brackets. Without a port, 5445 is used for iWARP
 * and 445 otherwise. With a timeout of -1 only the settings limit the time.
 *
 * Stores the connection and returns 0. Otherwise returns SMBDIRECT_ERROR_INVALID, _UNSUPPORTED, _ADDRESS,
 * _REFUSED, _TIMED_OUT, _PROTOCOL, _LOST or _SYSTEM, and stores nothing.
 */
int32_t smbdirect_connect(struct smbdirect_runtime *runtime,
                          const char *address,
                          const struct smbdirect_settings *settings,
                          int32_t timeout_ms,
                          struct smbdirect_connection **connection,
                          struct smbdirect_error *error);

/**
 * Starts to connect to a peer, and returns without waiting. The arguments are those of smbdirect_connect().
 *
 * Wait for the connection with smbdirect_connect_finish(). Until it succeeds, the other functions fail
 * with SMBDIRECT_ERROR_WOULD_BLOCK, except smbdirect_get_fd(), smbdirect_which_events(),
 * smbdirect_service() and smbdirect_connection_free().
 *
 * Stores the connection and returns 0, or SMBDIRECT_ERROR_INVALID, _UNSUPPORTED or _SYSTEM.
 */
int32_t smbdirect_connect_start(struct smbdirect_runtime *runtime,
                                const char *address,
                                const struct smbdirect_settings *settings,
                                struct smbdirect_connection **connection,
                                struct smbdirect_error *error);

/**
 * Waits until a connection that was started is established.
 *
 * Returns 0 when it is. Returns SMBDIRECT_ERROR_WOULD_BLOCK with a timeout of 0, or _TIMED_OUT, if it is not
 * established yet; the attempt continues. Every other error is final, and the connection has to be freed.
 */
int32_t smbdirect_connect_finish(struct smbdirect_connection *connection,
                                 int32_t timeout_ms,
                                 struct smbdirect_error *error);

/**
 * Returns a descriptor to wait for with poll(), select() or epoll, for the events that
 * smbdirect_which_events() names. It is readable when smbdirect_service() or a call that returned
 * SMBDIRECT_ERROR_WOULD_BLOCK is worth repeating. It is readable at first.
 *
 * The descriptor belongs to the connection. Do not read from it or close it. In a driven runtime it
 * becomes readable only during calls.
 *
 * Returns the descriptor, or SMBDIRECT_ERROR_SYSTEM or _FORKED.
 */
int32_t smbdirect_get_fd(struct smbdirect_connection *connection, struct smbdirect_error *error);

/**
 * Returns the events of poll() to wait for: always POLLIN.
 */
int32_t smbdirect_which_events(const struct smbdirect_connection *connection);

/**
 * Calls the callbacks of the operations that are over, and makes the descriptor unreadable until the next event for
 * which an operation, or a call that has returned SMBDIRECT_ERROR_WOULD_BLOCK, waits. Call it when the descriptor is
 * readable, then repeat the calls that returned SMBDIRECT_ERROR_WOULD_BLOCK.
 *
 * Returns the number of operations, or SMBDIRECT_ERROR_FORKED.
 */
int32_t smbdirect_service(struct smbdirect_connection *connection,
                          struct smbdirect_error *error);

/**
 * Asks the peer for a keepalive and waits for its answer, for up to `timeout_ms` milliseconds, which must
 * not be 0. Stores the time that this took in nanoseconds, unless `round_trip_ns` is NULL.
 *
 * Returns 0, SMBDIRECT_ERROR_TIMED_OUT, or why the connection is over.
 */
int32_t smbdirect_keepalive(struct smbdirect_connection *connection,
                            int32_t timeout_ms,
                            uint64_t *round_trip_ns,
                            struct smbdirect_error *error);

/**
 * Closes a connection gracefully: sends the messages that were submitted, finishes RDMA Reads and Writes,
 * disconnects, and waits for the end. The handle stays valid until it is freed.
 *
 * Take all messages before, as messages that were not received can keep the peer from granting the
 * credits that the last messages need.
 *
 * Returns 0, SMBDIRECT_ERROR_WOULD_BLOCK or _TIMED_OUT while the close continues, or the error that ended the
 * connection.
 */
int32_t smbdirect_close(struct smbdirect_connection *connection,
                        int32_t timeout_ms,
                        struct smbdirect_error *error);

/**
 * Ends a connection immediately. Operations that are not over fail with SMBDIRECT_ERROR_ABORTED.
 *
 * Returns 0, or SMBDIRECT_ERROR_WOULD_BLOCK if the connection is not established yet.
 */
int32_t smbdirect_abort(struct smbdirect_connection *connection, struct smbdirect_error *error);

/**
 * Frees a connection. An established one is closed in the background, after the messages that were
 * submitted were sent. NULL, and a connection that was freed before, are ignored.
 *
 * Calls of other threads that wait on the connection end with SMBDIRECT_ERROR_ABORTED. The callbacks of all
 * operations that were started are called before this function returns: reads fail immediately, and their
 * buffers are freed when they are over; sends and writes are waited for for up to 10 s, and then the connection is
 * aborted. Call smbdirect_abort() before to wait for nothing and to send nothing more.
 *
 * Free its regions first or later, in any order. A handle of the parent process is only forgotten.
 */
void smbdirect_connection_free(struct smbdirect_connection *connection);

/**
 * Closes all connections of this process, and waits for up to `timeout_ms` milliseconds until what was sent is
 * delivered, or without limit if it is negative. exit() and the return of main() do this with a limit of 10 s. A
 * program calls it before it ends in another way, such as by _exit() or by a signal, or unloads the library. Calls
 * that wait on these connections end, with SMBDIRECT_ERROR_ABORTED unless the peer closes first. Calls with these
 * connections and with later ones fail afterwards. The handles can be freed.
 *
 * With a timeout of 0, connections that are not over and have outstanding operations are aborted, so that nothing
 * uses the memory of the program any more.
 *
 * Returns 0 if all connections are over, and SMBDIRECT_ERROR_TIMED_OUT otherwise.
 */
int32_t smbdirect_close_all(int32_t timeout_ms);

/**
 * Sets the function that the calls of this thread ask every 50 ms while they wait. NULL removes it.
 *
 * If it returns another number than 0, the call returns SMBDIRECT_ERROR_INTERRUPTED with EINTR in errno, and has done
 * what it does after a timeout. To let a signal end a call, have the handler set a variable of the type
 * `volatile sig_atomic_t`, and have `interrupted` return it. Only smbdirect_connection_free() and
 * smbdirect_close_all(), whose waits are limited, never ask.
 */
void smbdirect_set_interrupt(smbdirect_interrupt_callback interrupted,
                             void *user_data);

/**
 * Listens on an address. The arguments are those of smbdirect_connect(); without a host, as in ":5445", it listens on
 * every address of the machine. Port 0 picks a free port, which smbdirect_listener_address() returns. Peers that
 * connect negotiate in the background.
 *
 * Stores the listener and returns 0, or SMBDIRECT_ERROR_INVALID, _UNSUPPORTED, _ADDRESS, _IN_USE or
 * _SYSTEM.
 */
int32_t smbdirect_listen(struct smbdirect_runtime *runtime,
                         const char *address,
                         const struct smbdirect_settings *settings,
                         struct smbdirect_listener **listener,
                         struct smbdirect_error *error);

/**
 * Returns the next connection, which is established.
 *
 * Stores the connection and returns 0. Otherwise returns SMBDIRECT_ERROR_WOULD_BLOCK, _TIMED_OUT, _ABORTED if the
 * listener is freed meanwhile, or why the listener cannot listen any more.
 */
int32_t smbdirect_accept(struct smbdirect_listener *listener,
                         int32_t timeout_ms,
                         struct smbdirect_connection **connection,
                         struct smbdirect_error *error);

/**
 * Returns a descriptor to wait for with poll(), for POLLIN: it is readable at first, and whenever
 * smbdirect_accept() with a timeout of 0 may have a result. Call smbdirect_accept() until it returns
 * SMBDIRECT_ERROR_WOULD_BLOCK, which makes it unreadable. It belongs to the listener.
 *
 * Returns the descriptor, or SMBDIRECT_ERROR_SYSTEM or _FORKED.
 */
int32_t smbdirect_listener_get_fd(struct smbdirect_listener *listener, struct smbdirect_error *error);

/**
 * Copies the address of the listener, such as "127.0.0.1:5445", into `text`, ended by a 0 byte.
 * SMBDIRECT_ADDRESS_LENGTH bytes are enough for every address.
 *
 * Returns 0, or SMBDIRECT_ERROR_INVALID if the memory is too short.
 */
int32_t smbdirect_listener_address(const struct smbdirect_listener *listener,
                                   char *text,
                                   size_t length,
                                   struct smbdirect_error *error);

/**
 * Frees a listener, which stops listening. Connections that were not accepted are closed. Calls of other threads
 * that wait in smbdirect_accept() end with SMBDIRECT_ERROR_ABORTED. NULL, and a listener that was freed before, are
 * ignored.
 */
void smbdirect_listener_free(struct smbdirect_listener *listener);

/**
 * Stores what was negotiated and what was counted. Set `info->size` before.
 *
 * Returns 0, SMBDIRECT_ERROR_INVALID, or _WOULD_BLOCK if the connection is not established yet. Works on a
 * connection that is over, too.
 */
int32_t smbdirect_query(const struct smbdirect_connection *connection,
                        struct smbdirect_connection_info *info,
                        struct smbdirect_error *error);

/**
 * Receives the next message into `iovcnt` pieces of memory, and waits for it for up to `timeout_ms`
 * milliseconds. Stores the token of the registration that the peer ended with this message in
 * `invalidated`, or 0, unless the pointer is NULL.
 *
 * Messages that arrived before the end of the connection are returned before its error.
 *
 * Returns the length of the message, or 0 when the connection was closed gracefully and all messages
 * were received. An empty message that ended a registration has the length 0, too, and a token. Otherwise returns
 * SMBDIRECT_ERROR_INVALID, _WOULD_BLOCK, _TIMED_OUT, why the connection is over, or
 * SMBDIRECT_ERROR_BUFFER_TOO_SMALL: the message is kept for the next call, and the text of the error names its length.
 * smbdirect_recv_message() takes messages of any length. An end in the middle of a message is an error.
 */
int64_t smbdirect_recv(struct smbdirect_connection *connection,
                       const struct iovec *iov,
                       int iovcnt,
                       int32_t timeout_ms,
                       uint32_t *invalidated,
                       struct smbdirect_error *error);

/**
 * Receives the next message, of any length, without a copy.
 *
 * Stores the message, which the caller frees with smbdirect_message_free(), and returns 1. Stores NULL and
 * returns 0 when the connection was closed gracefully. Otherwise returns the errors of
 * smbdirect_recv(). The memory of messages that are not freed is missing for further ones.
 */
int32_t smbdirect_recv_message(struct smbdirect_connection *connection,
                               int32_t timeout_ms,
                               struct smbdirect_message **message,
                               struct smbdirect_error *error);

/**
 * Returns the length of a message in bytes, and 0 for NULL and for a message that was freed.
 */
size_t smbdirect_message_length(const struct smbdirect_message *message);

/**
 * Stores the token of the registration that the peer ended with the message. Returns 1 if there is one, and
 * 0 otherwise.
 */
int32_t smbdirect_message_invalidated(const struct smbdirect_message *message, uint32_t *token);

/**
 * Returns the bytes of a message in one piece, which are valid until the message is freed. Copies them
 * together at the first call if they arrived in several pieces. Returns NULL for NULL and for a message that was
 * freed.
 */
const void *smbdirect_message_data(struct smbdirect_message *message);

/**
 * Frees a message. NULL, and a message that was freed before, are ignored.
 */
void smbdirect_message_free(struct smbdirect_message *message);

/**
 * Registers `*buffer` for the peer, with the rights in `access`: a sum of SMBDIRECT_ACCESS_ values.
 *
 * On success the buffer belongs to the library: `*buffer` becomes NULL, and its memory must not be used
 * until smbdirect_deregister() returns the buffer. Send the peer the descriptor of the region in a
 * message.
 *
 * Stores the region and returns 0. Otherwise the buffer is unchanged, and it returns
 * SMBDIRECT_ERROR_INVALID, _SYSTEM, or _WOULD_BLOCK if the connection is not established yet.
 */
int32_t smbdirect_register(struct smbdirect_connection *connection,
                           struct smbdirect_buffer **buffer,
                           uint32_t access,
                           struct smbdirect_region **region,
                           struct smbdirect_error *error);

/**
 * Stores the descriptor that the peer needs to use the region. Returns 0 or SMBDIRECT_ERROR_INVALID.
 */
int32_t smbdirect_region_descriptor(const struct smbdirect_region *region,
                                    struct smbdirect_buffer_descriptor *descriptor,
                                    struct smbdirect_error *error);

/**
 * Ends the access of the peer, and waits until nothing uses the memory any more. Also right for a
 * registration that the peer has invalidated.
 *
 * Stores the buffer, which belongs to the program again, in `buffer` and returns 0; free the region
 * then. Returns SMBDIRECT_ERROR_WOULD_BLOCK or _TIMED_OUT if queued work still uses the memory: the peer has
 * no access any more, and the call has to be repeated for the buffer. Returns SMBDIRECT_ERROR_INVALID if another
 * call has got the buffer, _ABORTED if the region is freed meanwhile, and another error if the buffer was lost.
 */
int32_t smbdirect_deregister(struct smbdirect_region *region,
                             int32_t timeout_ms,
                             struct smbdirect_buffer **buffer,
                             struct smbdirect_error *error);

/**
 * Frees a region. A registration that was not ended is ended, and its buffer is freed when nothing uses it
 * any more. Calls of other threads that wait in smbdirect_deregister() end with SMBDIRECT_ERROR_ABORTED. NULL, and a
 * region that was freed before, are ignored.
 */
void smbdirect_region_free(struct smbdirect_region *region);

/**
 * Creates a runtime, for programs that want a log, or want to drive the library with their own thread.
 * Programs that pass NULL for the runtime share one with a thread of its own, which starts at the first
 * call that needs it.
 *
 * With `driven` not 0, the runtime has no thread. Connections make progress, keepalives included, only
 * while the program is in smbdirect_runtime_run() or in another call on a handle of this runtime. This
 * saves the switch of threads for each message.
 *
 * `log` receives the lines of the log up to `log_level`: 1 error, 2 warning, 3 information, 4 debug,
 * 5 trace. It may be NULL. It is not called any more when the runtime and all handles that were created from it
 * have been freed.
 *
 * Returns 0 or SMBDIRECT_ERROR_SYSTEM.
 */
int32_t smbdirect_runtime_new(int32_t driven,
                              smbdirect_log_callback log,
                              int32_t log_level,
                              void *user_data,
                              struct smbdirect_runtime **runtime,
                              struct smbdirect_error *error);

/**
 * Lets a driven runtime work for up to `timeout_ms` milliseconds. Returns sooner when a handle of the
 * runtime has an event: a message, room for a message, a completed operation, a new connection, or the
 * end of a connection. A negative timeout waits without limit.
 *
 * Also works on a runtime with a thread, which then only waits.
 *
 * Returns 1 after an event and 0 after the timeout, or SMBDIRECT_ERROR_INVALID, _FORKED, _INTERRUPTED, or _ABORTED if
 * the runtime is freed meanwhile.
 */
int32_t smbdirect_runtime_run(struct smbdirect_runtime *runtime,
                              int32_t timeout_ms,
                              struct smbdirect_error *error);

/**
 * Frees a runtime. Handles that were created from it stay valid, and the last one to be freed ends it. Connections
 * that are still closing then, and those whose streams are open, are closed, which is waited for up to 10 s. NULL,
 * and a runtime that was freed before, are ignored. Calls of other threads that wait in smbdirect_runtime_run() end
 * with SMBDIRECT_ERROR_ABORTED.
 */
void smbdirect_runtime_free(struct smbdirect_runtime *runtime);

/**
 * Sends a message that consists of the bytes of `iovcnt` parts, 1024 at most. The bytes are copied, so the memory may
 * be used again when the call returns. Messages are sent in the order of the calls.
 *
 * Waits for up to `timeout_ms` milliseconds until the message can start: until the peer has granted a
 * credit and earlier messages have started. An empty message is sent, but no receive returns it, except
 * if it ends a registration.
 *
 * A peer that receives nothing makes this call wait, and no message is lost. The rest of a message that has started
 * needs credits, too: this library grants them always, but Linux, Windows and other peers need not. If such a peer
 * pauses in the middle of a message for longer than 5 s, the connection ends with SMBDIRECT_ERROR_TIMED_OUT; the
 * option `credit_grant_timeout_ms` changes that.
 *
 * A sender without credits can neither send a keepalive nor answer one. If the receiver takes nothing for longer than
 * `keepalive_interval_ms` and `keepalive_response_timeout_ms` of one of the ends together, 125 s by default, that end
 * ends the connection; the messages that were sent can still be received. To pause longer, make
 * `keepalive_interval_ms` of both ends longer than the pause.
 *
 * Returns 0 when the message was submitted. Otherwise nothing was sent, and it returns
 * SMBDIRECT_ERROR_INVALID, _WOULD_BLOCK, _TIMED_OUT, _TOO_LARGE, or why the connection is over.
 */
int32_t smbdirect_send(struct smbdirect_connection *connection,
                       const struct iovec *iov,
                       int iovcnt,
                       int32_t timeout_ms,
                       struct smbdirect_error *error);

/**
 * Sends a message as smbdirect_send() does, which also ends the registration of the peer with this token
 * when it arrives (Send with Invalidate).
 */
int32_t smbdirect_send_and_invalidate(struct smbdirect_connection *connection,
                                      const struct iovec *iov,
                                      int iovcnt,
                                      uint32_t token,
                                      int32_t timeout_ms,
                                      struct smbdirect_error *error);

/**
 * Submits a message without a copy and without waiting. The memory of the parts must stay valid and
 * unchanged until `callback` is called, which smbdirect_service() does when the last byte was handed to
 * the wire. The transport "loopback" copies.
 *
 * `invalidate` points to a token of the peer as for smbdirect_send_and_invalidate(), or is NULL. The
 * number of messages that wait is not limited: limit it by waiting for callbacks. A message that waits for the peer's
 * credits for longer than the option `credit_grant_timeout_ms` says ends the connection.
 *
 * Returns 0 when the message was submitted. Otherwise the callback is not called, and it returns
 * SMBDIRECT_ERROR_INVALID, _TOO_LARGE, or why the connection is over.
 */
int32_t smbdirect_send_start(struct smbdirect_connection *connection,
                             const struct iovec *iov,
                             int iovcnt,
                             const uint32_t *invalidate,
                             smbdirect_callback callback,
                             void *user_data,
                             struct smbdirect_error *error);

/**
 * Initialises the settings with a profile, one of the SMBDIRECT_PROFILE_ values. `size` is
 * sizeof(struct smbdirect_settings). Fields of a newer header than that of the library become 0.
 *
 * Returns 0, or SMBDIRECT_ERROR_INVALID for an unknown profile or a size of no version.
 */
int32_t smbdirect_settings_init(struct smbdirect_settings *settings, size_t size, int32_t profile);

/**
 * Returns the name of a status code, such as "timed out". Never returns NULL. The text is static.
 */
const char *smbdirect_strerror(int32_t code);

/**
 * Returns the version of the library that runs, such as "0.1.0". SMBDIRECT_VERSION is that of the header that a
 * program was built with. A library works with programs that were built with an older header of the same soname.
 */
const char *smbdirect_version(void);

/**
 * Makes a socket that carries the messages of the connection with the 4-byte length of SMB over TCP: a byte
 * 0, and the length in 24 bits, big-endian. Programs and libraries that speak SMB over TCP use it in place
 * of a TCP socket.
 *
 * The socket is a blocking AF_UNIX stream socket with close-on-exec set, and belongs to the program. It can
 * be set to non-blocking, polled, duplicated and passed to other processes, while this process runs.
 * Its backpressure and closing are those of TCP, except that closing its writing side closes the connection, and that
 * some peers must not pause for long, which smbdirect_send() describes. The connection stays open until the socket is
 * closed, even if the handle is freed.
 *
 * Afterwards use the handle for registrations, RDMA Reads and Writes only: a receive would take messages
 * away from the socket.
 *
 * Stores the descriptor and returns 0, or SMBDIRECT_ERROR_SYSTEM or why there is no connection.
 */
int32_t smbdirect_stream(struct smbdirect_connection *connection,
                         int *fd,
                         struct smbdirect_error *error);

/**
 * Connects to a peer as smbdirect_connect() does, and turns the connection into a socket as smbdirect_stream()
 * does.
 *
 * `connection` gets the handle for registrations, RDMA Reads and Writes. It may be NULL for programs that need
 * only the socket.
 *
 * Stores the handle and the descriptor and returns 0. Otherwise stores nothing, and returns the errors of
 * smbdirect_connect().
 */
int32_t smbdirect_connect_stream(struct smbdirect_runtime *runtime,
                                 const char *address,
                                 const struct smbdirect_settings *settings,
                                 int32_t timeout_ms,
                                 struct smbdirect_connection **connection,
                                 int *fd,
                                 struct smbdirect_error *error);

/**
 * Reads `length` bytes of the peer's memory into `data` by RDMA Read, from `offset` bytes into the range of
 * `count` descriptors, and waits for them for up to `timeout_ms` milliseconds, which must not be 0.
 *
 * Returns 0 when the bytes are in `data`. Otherwise `data` is unchanged, and it returns SMBDIRECT_ERROR_INVALID,
 * _TIMED_OUT, _RANGE, or why the connection is over. A read that timed out continues without the caller.
 */
int32_t smbdirect_read(struct smbdirect_connection *connection,
                       const struct smbdirect_buffer_descriptor *descriptors,
                       size_t count,
                       uint64_t offset,
                       void *data,
                       size_t length,
                       int32_t timeout_ms,
                       struct smbdirect_error *error);

/**
 * Starts to fill `*buffer` by RDMA Read without a copy and without waiting. On success the buffer belongs
 * to the library, `*buffer` becomes NULL, and `callback` gets it back, with unspecified contents if the read
 * failed.
 *
 * Returns 0 when the read was submitted. Otherwise the buffer is unchanged, the callback is not called,
 * and it returns SMBDIRECT_ERROR_INVALID or why there is no connection.
 */
int32_t smbdirect_read_start(struct smbdirect_connection *connection,
                             const struct smbdirect_buffer_descriptor *descriptors,
                             size_t count,
                             uint64_t offset,
                             struct smbdirect_buffer **buffer,
                             smbdirect_callback callback,
                             void *user_data,
                             struct smbdirect_error *error);

/**
 * Writes `length` bytes of `data` to the peer's memory by RDMA Write, from `offset` bytes into the range of
 * `count` descriptors. The bytes are copied. Waits for up to `timeout_ms` milliseconds, which must not be
 * 0, until they were handed to the wire. They are in place before the peer receives any message that is
 * sent after this call.
 *
 * Returns 0, or SMBDIRECT_ERROR_INVALID, _TIMED_OUT, _RANGE, or why the connection is over. A write that timed
 * out continues without the caller.
 */
int32_t smbdirect_write(struct smbdirect_connection *connection,
                        const struct smbdirect_buffer_descriptor *descriptors,
                        size_t count,
                        uint64_t offset,
                        const void *data,
                        size_t length,
                        int32_t timeout_ms,
                        struct smbdirect_error *error);

/**
 * Starts an RDMA Write without a copy and without waiting. The memory at `data` must stay valid and
 * unchanged until `callback` is called, which smbdirect_service() does when the last byte was handed to
 * the wire. The transport "loopback" copies.
 *
 * Returns 0 when the write was submitted. Otherwise the callback is not called, and it returns
 * SMBDIRECT_ERROR_INVALID or why there is no connection.
 */
int32_t smbdirect_write_start(struct smbdirect_connection *connection,
                              const struct smbdirect_buffer_descriptor *descriptors,
                              size_t count,
                              uint64_t offset,
                              const void *data,
                              size_t length,
                              smbdirect_callback callback,
                              void *user_data,
                              struct smbdirect_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SMBDIRECT_H */
