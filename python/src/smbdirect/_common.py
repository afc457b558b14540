"""What the blocking and the asyncio interface share: errors, settings, descriptors, and memory."""

from __future__ import annotations

import ctypes
import math
import struct
from ctypes import byref, c_void_p
from dataclasses import dataclass, fields
from typing import Any, Iterable, Optional, Sequence, Union

from . import _library as c
from ._library import library

#: What can be sent or written: any object with the buffer protocol in one piece.
Data = Union[bytes, bytearray, memoryview]


class Error(OSError):
    """A call failed. `code` is a status code of libsmbdirect, a negative number."""

    code: int = 0


class InvalidError(Error, ValueError):
    """An argument is invalid."""


class ClosedError(Error, ConnectionError):
    """The connection was closed gracefully."""


class RefusedError(Error, ConnectionRefusedError):
    """The peer refused the connection or the negotiation, or nothing listens on the address."""


class TimedOutError(Error, TimeoutError):
    """The timeout of the call, or a timer of the connection, ran out."""


class ProtocolError(Error, ConnectionError):
    """One end broke a rule of SMB Direct or RDMA. The text names the rule."""


class LostError(Error, ConnectionError):
    """The RDMA connection was lost, or aborted by this end."""


_CLASSES = {
    c.ERROR_INVALID: InvalidError,
    c.ERROR_WOULD_BLOCK: TimedOutError,
    c.ERROR_TIMED_OUT: TimedOutError,
    c.ERROR_CLOSED: ClosedError,
    c.ERROR_REFUSED: RefusedError,
    c.ERROR_PROTOCOL: ProtocolError,
    c.ERROR_LOST: LostError,
    c.ERROR_ABORTED: LostError,
    c.ERROR_TOO_LARGE: InvalidError,
    c.ERROR_RANGE: InvalidError,
}


def exception(error: c.Error) -> Error:
    """Returns the exception of an error of the library."""
    raised = _CLASSES.get(error.code, Error)(error.message.decode("utf-8", "replace"))
    raised.code = error.code
    return raised


def check(status: int, error: c.Error) -> int:
    """Returns the value of a call, or raises its error."""
    if status < 0:
        raise exception(error)
    return status


def milliseconds(timeout: Optional[float]) -> int:
    """Returns a timeout in seconds, or None for no limit, as the library has it."""
    if timeout is None:
        return -1
    if timeout < 0:
        raise ValueError(f"a timeout of {timeout} s")
    return min(math.ceil(timeout * 1000), 2**31 - 1)


@dataclass(frozen=True)
class Descriptor:
    """Buffer Descriptor V1 ([MS-SMBD] 2.2.3.1): memory that a peer has registered."""

    offset: int
    token: int
    length: int

    def encode(self) -> bytes:
        """Returns the 16 bytes of the descriptor in a message."""
        return struct.pack("<QII", self.offset, self.token, self.length)

    @classmethod
    def decode(cls, data: Data) -> "Descriptor":
        """Reads the 16 bytes of a descriptor."""
        return cls(*struct.unpack("<QII", data))


@dataclass(frozen=True)
class Info:
    """The negotiated values and the counters of a connection. Sizes are in bytes."""

    local_address: str
    remote_address: str
    max_send_size: int
    max_receive_size: int
    max_fragmented_send_size: int
    max_fragmented_receive_size: int
    max_read_write_size: int
    send_credits: int
    receive_credits: int
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    reads: int
    writes: int
    bytes_read: int
    bytes_written: int
    regions: int


def settings(transport: str, profile: str, changes: dict[str, int]) -> c.Settings:
    """Returns the settings of a profile with changes."""
    if profile not in c.PROFILES:
        raise ValueError(f"no profile {profile!r}: use {', '.join(c.PROFILES)}")
    made = c.Settings()
    library.smbdirect_settings_init(byref(made), ctypes.sizeof(made), c.PROFILES[profile])
    made.transport = transport.encode()
    known = {field[0] for field in c.Settings._fields_} - {"size", "transport"}
    for name, value in changes.items():
        if name not in known:
            raise TypeError(f"no setting {name!r}: there are {', '.join(sorted(known))}")
        setattr(made, name, value)
    return made


def as_bytes(data: Data) -> bytes:
    """Returns data as bytes, without a copy if it is of that type."""
    return data if isinstance(data, bytes) else bytes(data)


def parts(pieces: Iterable[Data]) -> tuple["ctypes.Array[c.IoVec]", list[bytes]]:
    """Returns pieces of a message for the library, and the objects that keep their memory alive."""
    held = [as_bytes(piece) for piece in pieces]
    array = (c.IoVec * len(held))()
    for entry, piece in zip(array, held):
        entry.iov_base = ctypes.cast(ctypes.c_char_p(piece), c_void_p)
        entry.iov_len = len(piece)
    return array, held


def descriptors(given: Union[Descriptor, Sequence[Descriptor]]) -> "ctypes.Array[c.BufferDescriptor]":
    """Returns descriptors for the library."""
    listed = [given] if isinstance(given, Descriptor) else list(given)
    array = (c.BufferDescriptor * len(listed))()
    for entry, one in zip(array, listed):
        entry.offset, entry.token, entry.length = one.offset, one.token, one.length
    return array


def new_buffer(content: Union[int, Data]) -> c_void_p:
    """Returns a buffer of the library with the content, or with a number of zero bytes."""
    length = content if isinstance(content, int) else len(content)
    buffer = library.smbdirect_buffer_new(length)
    if buffer is None:
        raise MemoryError(f"a buffer of {length} bytes")
    if not isinstance(content, int):
        ctypes.memmove(library.smbdirect_buffer_data(buffer), as_bytes(content), length)
    return c_void_p(buffer)


def take_buffer(buffer: int) -> bytes:
    """Returns the content of a buffer of the library, and frees it."""
    try:
        return ctypes.string_at(library.smbdirect_buffer_data(buffer), library.smbdirect_buffer_length(buffer))
    finally:
        library.smbdirect_buffer_free(buffer)


class Handle:
    """A connection, with the calls that never wait."""

    def __init__(self, pointer: int) -> None:
        self._pointer: Optional[int] = pointer

    def _live(self) -> int:
        if self._pointer is None:
            raise ValueError("the connection was freed")
        return self._pointer

    def _take(self, timeout_ms: int) -> Optional[bytes]:
        """Receives a message, or b"" at the end. Returns None if there is none and the timeout is 0."""
        error, message = c.Error(), c_void_p()
        status = library.smbdirect_recv_message(self._live(), timeout_ms, byref(message), byref(error))
        if status == c.ERROR_WOULD_BLOCK and timeout_ms == 0:
            return None
        if check(status, error) == 0:
            return b""
        try:
            token = ctypes.c_uint32()
            told = library.smbdirect_message_invalidated(message, byref(token))
            self.invalidated = token.value if told else None
            return ctypes.string_at(library.smbdirect_message_data(message), library.smbdirect_message_length(message))
        finally:
            library.smbdirect_message_free(message)

    #: The token of the registration that the peer ended with the last message that was received, if any.
    invalidated: Optional[int] = None

    def info(self) -> Info:
        """Returns the negotiated values and the counters of the connection."""
        error, made = c.Error(), c.ConnectionInfo()
        made.size = ctypes.sizeof(made)
        check(library.smbdirect_query(self._live(), byref(made), byref(error)), error)
        values: dict[str, Any] = {field.name: getattr(made, field.name) for field in fields(Info)}
        for address in ("local_address", "remote_address"):
            values[address] = values[address].decode()
        return Info(**values)

    def _register(self, content: Union[int, Data], access: int) -> tuple[int, Descriptor]:
        error, region, descriptor = c.Error(), c_void_p(), c.BufferDescriptor()
        buffer = new_buffer(content)
        try:
            check(library.smbdirect_register(self._live(), byref(buffer), access, byref(region), byref(error)), error)
        finally:
            # It is NULL if the library has it now.
            library.smbdirect_buffer_free(buffer)
        check(library.smbdirect_region_descriptor(region, byref(descriptor), byref(error)), error)
        assert region.value is not None
        return region.value, Descriptor(descriptor.offset, descriptor.token, descriptor.length)

    def abort(self) -> None:
        """Ends the connection immediately."""
        error = c.Error()
        check(library.smbdirect_abort(self._live(), byref(error)), error)


class ListenerHandle:
    """A listener, with the calls that never wait."""

    def __init__(self, pointer: int) -> None:
        self._pointer: Optional[int] = pointer

    def _live(self) -> int:
        if self._pointer is None:
            raise ValueError("the listener was closed")
        return self._pointer

    @property
    def address(self) -> str:
        """The address with the port that was picked."""
        error, text = c.Error(), ctypes.create_string_buffer(c.ADDRESS_LENGTH)
        check(library.smbdirect_listener_address(self._live(), text, len(text), byref(error)), error)
        return text.value.decode()

    def close(self) -> None:
        """Stops listening. Connections that were not accepted are closed."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            library.smbdirect_listener_free(pointer)


class RegionHandle:
    """Memory that the peer can use. Send it `descriptor`."""

    def __init__(self, pointer: int, descriptor: Descriptor) -> None:
        self._pointer: Optional[int] = pointer
        self.descriptor = descriptor

    def _registered(self) -> int:
        if self._pointer is None:
            raise ValueError("the region was deregistered before")
        return self._pointer

    def free(self) -> None:
        """Ends the access of the peer without the content. Does nothing after `deregister`."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            library.smbdirect_region_free(pointer)

    def __del__(self) -> None:
        self.free()


def open_listener(address: str, transport: str, profile: str, changes: dict[str, int]) -> int:
    """Listens on an address, and returns the pointer of the listener."""
    error, pointer = c.Error(), c_void_p()
    made = settings(transport, profile, changes)
    check(library.smbdirect_listen(None, address.encode(), byref(made), byref(pointer), byref(error)), error)
    assert pointer.value is not None
    return pointer.value


def access(read: bool, write: bool, invalidate: bool) -> int:
    """Returns the rights of a registration."""
    return (
        read * c.ACCESS_REMOTE_READ
        + write * c.ACCESS_REMOTE_WRITE
        + invalidate * c.ACCESS_REMOTE_INVALIDATE
    )
