"""SMB Direct ([MS-SMBD], SMB3 over RDMA) in user space.

A connection carries whole messages in both directions, and gives each end RDMA access to memory that the other
end registered. Calls of this module block; `smbdirect.aio` has the same for asyncio.

    with smbdirect.connect("192.0.2.1:5445", timeout=5) as connection:
        connection.send(b"hello")
        print(connection.recv(timeout=5))

Timeouts are in seconds, and None is no limit. All objects may be used by several threads at once, and freed or
closed at any time: calls of other threads that wait on the object end with an exception. Handlers of signals run
while a call waits, and an exception of a handler, such as KeyboardInterrupt, ends it.

What a call reported as sent is delivered, unless the peer or the network fails or the program calls `abort`: also if
the connection is freed or dropped, or the interpreter ends, which waits for up to 10 s.
"""

from __future__ import annotations

import ctypes
import socket
from ctypes import byref, c_int, c_uint64, c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, Iterator, Optional, Sequence, Union

from . import _library as c
from ._common import (
    Buffer,
    ClosedError,
    Data,
    Descriptor,
    Error,
    Handle,
    Info,
    InvalidError,
    ListenerHandle,
    LostError,
    ProtocolError,
    RefusedError,
    RegionHandle,
    Settings,
    TimedOutError,
    access,
    as_bytes,
    check,
    check_range,
    descriptors,
    interruptible,
    milliseconds,
    number,
    open_listener,
    parts,
    room,
    settings,
    take_buffer,
    text,
)
from ._library import library

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The version of the package. It works with every library of the same soname.
__version__ = "0.1.0"

__all__ = [
    "Buffer",
    "ClosedError",
    "Connection",
    "Data",
    "Descriptor",
    "Error",
    "Info",
    "InvalidError",
    "Listener",
    "LostError",
    "ProtocolError",
    "RefusedError",
    "Region",
    "Settings",
    "TimedOutError",
    "connect",
    "listen",
]


def connect(
    address: str,
    *,
    timeout: Optional[float] = None,
    transport: str = "iwarp",
    profile: str = "default",
    **changes: Unpack[Settings],
) -> "Connection":
    """Connects to a peer and negotiates.

    `address` is HOST, HOST:PORT or [IPV6]:PORT, `transport` is "iwarp", "roce", "verbs" or "loopback", and `profile`
    is "default", "windows" or "linux". Further arguments change settings of smbdirect.h, such as
    `max_fragmented_receive_size`, and those of iWARP and RoCE, such as `crc="off"` or `udp_port=14791`. SMB servers
    that send up to 8 MiB need 8454144 for `max_fragmented_receive_size`.

    Raises Error, most often RefusedError or TimedOutError; OverflowError for a setting that does not fit; ValueError
    for an address with a NUL, or a timeout of 0.
    """
    limit = milliseconds(timeout)
    if limit == 0:
        raise ValueError("a timeout of 0 s")
    error, pointer = c.Error(), c_void_p()
    made = settings(transport, profile, changes)
    name = text("address", address)
    check(library.smbdirect_connect_start(None, name, byref(made), byref(pointer), byref(error)), error)
    assert pointer.value is not None
    connection = Connection(pointer.value)
    try:
        status = interruptible(lambda: library.smbdirect_connect_finish(pointer, limit, byref(error)))
        check(status, error)
    except BaseException:
        connection.free()
        raise
    return connection


def listen(
    address: str, *, transport: str = "iwarp", profile: str = "default", **changes: Unpack[Settings]
) -> "Listener":
    """Listens on an address; port 0 picks a free one, and :PORT is every address of the machine. The arguments are those
    of `connect`."""
    return Listener(open_listener(address, transport, profile, changes))


class Connection(Handle):
    """An established connection. Use `connect` or `Listener.accept` to get one."""

    def send(self, *pieces: Data, timeout: Optional[float] = None, invalidate: Optional[int] = None) -> None:
        """Sends one message of one or several pieces. Returns when it was submitted, with the data copied.

        `invalidate` is a token of the peer, whose registration ends when the message arrives. An empty message is
        sent, but no `recv` of the peer returns it. Only with `invalidate`, `recv` returns b"" for it, and
        `invalidated` tells it from the end of the connection.
        """
        array, _held = parts(pieces)
        pointer, error, limit = self._live(), c.Error(), milliseconds(timeout)
        function, arguments = library.smbdirect_send, [pointer, array, len(array)]
        if invalidate is not None:
            function = library.smbdirect_send_and_invalidate
            arguments.append(number("invalidate", invalidate, 32))
        check(interruptible(lambda: function(*arguments, limit, byref(error))), error)

    def recv(self, timeout: Optional[float] = None) -> bytes:
        """Returns the next message, or b"" after the connection was closed gracefully.

        Afterwards, `invalidated` is the token of the registration that the peer ended with it, if any. b"" with a
        token is an empty message, not the end.
        """
        pointer, limit = self._live(), milliseconds(timeout)
        message = self._take(
            lambda message, error: interruptible(
                lambda: library.smbdirect_recv_message(pointer, limit, byref(message), byref(error))
            )
        )
        if message is None:
            raise TimedOutError("no message has arrived")
        return message

    def recv_into(self, buffer: Data, timeout: Optional[float] = None) -> int:
        """Receives the next message into a writable buffer, and returns its length; 0 is the end, as b"" is of `recv`.

        Raises InvalidError for a message that is longer than the buffer, which the next call gets.
        """
        pointer, limit = self._live(), milliseconds(timeout)
        array, held = room(buffer)
        try:
            length = self._take_into(
                lambda token, error: interruptible(
                    lambda: library.smbdirect_recv(pointer, array, len(array), limit, token, byref(error))
                )
            )
        finally:
            # The traceback of an error refers to this frame, which would keep the buffer from being moved.
            del held
        if length is None:
            raise TimedOutError("no message has arrived")
        return length

    def __iter__(self) -> Iterator[bytes]:
        """Yields messages until the connection is closed gracefully."""
        while (message := self.recv()) or self.invalidated is not None:
            yield message

    def register(
        self, content: Union[int, Data, Buffer], *, read: bool = False, write: bool = False, invalidate: bool = True
    ) -> "Region":
        """Registers a copy of `content`, a number of zero bytes, or the memory of a `Buffer` for the peer.

        The peer may read it by RDMA Read, write it by RDMA Write, and end the registration by a message.
        """
        return Region(*self._register(content, access(read, write, invalidate)))

    def read(
        self,
        source: Union[Descriptor, Sequence[Descriptor]],
        length: int,
        offset: int = 0,
        timeout: Optional[float] = None,
    ) -> bytes:
        """Reads the peer's memory by RDMA Read, from an offset into the range of its descriptors."""
        array, error = descriptors(source), c.Error()
        start, size = number("offset", offset, 64), number("length", length, 63)
        pointer, limit = self._live(), milliseconds(timeout)
        check_range(array, start, size)
        into = ctypes.create_string_buffer(size)
        status = interruptible(
            lambda: library.smbdirect_read(pointer, array, len(array), start, into, size, limit, byref(error))
        )
        check(status, error)
        return into.raw

    def write(
        self,
        target: Union[Descriptor, Sequence[Descriptor]],
        data: Data,
        offset: int = 0,
        timeout: Optional[float] = None,
    ) -> None:
        """Writes the peer's memory by RDMA Write. The data is in place before the peer receives any message that
        is sent after this call."""
        array, error, held = descriptors(target), c.Error(), as_bytes(data)
        pointer, start, limit = self._live(), number("offset", offset, 64), milliseconds(timeout)
        status = interruptible(
            lambda: library.smbdirect_write(pointer, array, len(array), start, held, len(held), limit, byref(error))
        )
        check(status, error)

    def keepalive(self, timeout: Optional[float] = None) -> float:
        """Asks the peer for a keepalive, and returns the seconds until its answer."""
        error, nanoseconds = c.Error(), c_uint64()
        pointer, limit = self._live(), milliseconds(timeout)
        status = interruptible(
            lambda: library.smbdirect_keepalive(pointer, limit, byref(nanoseconds), byref(error))
        )
        check(status, error)
        return nanoseconds.value / 1e9

    def stream(self) -> socket.socket:
        """Returns a socket that carries the messages with the 4-byte length of SMB over TCP, for libraries that
        speak SMB over a socket. Afterwards use the connection for registrations, reads and writes only."""
        error, descriptor = c.Error(), c_int()
        check(library.smbdirect_stream(self._live(), byref(descriptor), byref(error)), error)
        return socket.socket(fileno=descriptor.value)

    def close(self, timeout: Optional[float] = None) -> None:
        """Closes the connection gracefully and frees it. Does nothing on a connection that was freed."""
        pointer, error, limit = self._pointer, c.Error(), milliseconds(timeout)
        if pointer is None:
            return
        try:
            status = interruptible(lambda: library.smbdirect_close(pointer, limit, byref(error)))
            if self._pointer is not None:
                # Otherwise another thread has freed the connection meanwhile.
                check(status, error)
        finally:
            self.free()

    def free(self) -> None:
        """Frees the connection, which closes in the background after the messages that were submitted. Calls of
        other threads that wait on it end with LostError."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            library.smbdirect_connection_free(pointer)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.close(timeout=30)
        else:
            self.free()

    def __del__(self) -> None:
        self.free()


class Region(RegionHandle):
    """Memory that the peer can use. Send it `descriptor`."""

    def deregister(self, timeout: Optional[float] = None) -> bytes:
        """Ends the access of the peer and returns a copy of the content. Of several threads that call it, one gets the
        content and the others ValueError."""
        return take_buffer(self._end(timeout))

    def deregister_buffer(self, timeout: Optional[float] = None) -> Buffer:
        """Ends the access of the peer and returns the memory without a copy, likewise."""
        return Buffer._of(self._end(timeout))

    def _end(self, timeout: Optional[float]) -> int:
        """Ends the registration, and returns the pointer of its buffer."""
        pointer, error, buffer, limit = self._registered(), c.Error(), c_void_p(), milliseconds(timeout)
        status = interruptible(
            lambda: library.smbdirect_deregister(pointer, limit, byref(buffer), byref(error))
        )
        if status < 0:
            # Another thread may have got the buffer and freed the region.
            self._registered()
        check(status, error)
        self.free()
        assert buffer.value is not None
        return buffer.value


class Listener(ListenerHandle):
    """Accepts connections. Iterating over it accepts without end."""

    def accept(self, timeout: Optional[float] = None) -> Connection:
        """Returns the next connection, which is established. Raises LostError if another thread closes the
        listener meanwhile."""
        listener, error, pointer, limit = self._live(), c.Error(), c_void_p(), milliseconds(timeout)
        status = interruptible(
            lambda: library.smbdirect_accept(listener, limit, byref(pointer), byref(error))
        )
        check(status, error)
        assert pointer.value is not None
        return Connection(pointer.value)

    def __iter__(self) -> Iterator[Connection]:
        while True:
            yield self.accept()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
