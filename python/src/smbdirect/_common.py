"""What the blocking and the asyncio interface share: errors, settings, descriptors, and memory."""

from __future__ import annotations

import _thread
import atexit
import collections.abc
import ctypes
import math
import operator
import os
import struct
import sys
import threading
import time
import weakref
from ctypes import byref, c_char, c_ubyte, c_uint32, c_void_p
from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Iterator,
    Literal,
    NoReturn,
    Optional,
    Protocol,
    Sequence,
    TypedDict,
    Union,
    cast,
)

from . import _library as c
from ._library import library

if TYPE_CHECKING:
    import typing_extensions

#: What can be sent, written or registered: any object with the buffer protocol. All its bytes count.
if sys.version_info >= (3, 12):
    Data = collections.abc.Buffer
elif TYPE_CHECKING:

    class _Array(Protocol):
        """numpy.ndarray, which type checkers know as a buffer from Python 3.12 only."""

        @property
        def data(self) -> memoryview: ...

    Data = Union[typing_extensions.Buffer, _Array]
else:
    Data = Union[bytes, bytearray, memoryview]

#: Longest time that the end of the interpreter waits for what was sent, in seconds.
LINGER = 10


class Error(OSError):
    """A call failed. `code` is a status code of libsmbdirect, a negative number. `errno` is the number of the
    system's error if one was the cause, and None otherwise."""

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
    c.ERROR_BUFFER_TOO_SMALL: InvalidError,
    c.ERROR_RANGE: InvalidError,
}


def exception(error: c.Error) -> Error:
    """Returns the exception of an error of the library, in the thread of the call."""
    text, number = error.message.decode("utf-8", "replace"), ctypes.get_errno()
    kind = _CLASSES.get(error.code, Error)
    raised = kind(number, text) if number else kind(text)
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


def number(name: str, value: int, bits: int) -> int:
    """Returns an unsigned number, which has to fit in the given bits."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}, not a number")
    value = operator.index(value)
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"{name} is {value}, which does not fit in {bits} bits without a sign")
    return value


def text(name: str, value: str) -> bytes:
    """Returns a text for the library."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not str")
    if "\0" in value:
        raise ValueError(f"{name} has a NUL: {value!r}")
    return value.encode()


class _Handlers:
    """Runs the handlers of signals when the library asks whether a call goes on."""

    def __init__(self) -> None:
        self.raised: Optional[BaseException] = None
        steps = self._run()
        next(steps)
        self.asked = c.INTERRUPT(steps.__next__)

    def _run(self) -> Iterator[int]:
        # A generator, and not a function: the interpreter runs the handlers when either is entered, which is inside of
        # the `try` here.
        try:
            while True:
                yield 0
        except GeneratorExit:
            return
        except BaseException as error:
            self.raised = error
        yield 1


#: Those of a call of the main thread, those of a call that such a handler makes, and so on.
_handlers: list[_Handlers] = []
#: Those that the library asks in the main thread.
_asked: Optional[_Handlers] = None
#: The calls that wait in the main thread.
_calls = 0


def _ask(index: int) -> _Handlers:
    """Has the library ask the handlers with this index, and returns them."""
    global _asked
    if index == len(_handlers):
        _handlers.append(_Handlers())
    if _asked is not _handlers[index]:
        _asked = _handlers[index]
        library.smbdirect_set_interrupt(_asked.asked, None)
    return _asked


def _forked() -> None:
    # Another thread may be the main one now, in which the library asks nothing.
    global _asked
    _asked = None


os.register_at_fork(after_in_child=_forked)


def interruptible(call: Callable[[], int]) -> int:
    """Returns the status of a call that waits. In the main thread, handlers of signals run meanwhile, and the exception
    of a handler ends the call."""
    global _calls
    if threading.get_ident() != threading.main_thread().ident:
        return call()
    index = _calls
    try:
        handlers, _calls = _ask(index), index + 1
        status = call()
    finally:
        _calls = index
        if index:
            _ask(index - 1)
    if handlers.raised is not None:
        del _handlers[index:]
        # The exception refers to this frame, which must not refer to the exception.
        raised, handlers.raised = handlers.raised, None
        try:
            raise raised
        finally:
            del raised
    return status


class _Background:
    """Calls that run in threads of their own and call Python back. The end of the interpreter waits for them: it
    would kill a thread that enters Python afterwards, and such a thread cannot be killed inside the library."""

    def __init__(self) -> None:
        self._running: set[Any] = set()
        self._ended = False

    def start(self, call: Callable[[], None]) -> None:
        """Runs `call` in a thread, or here if the interpreter ends. The garbage collector may call this."""
        done = _thread.allocate_lock()
        done.acquire()

        def run() -> None:
            try:
                call()
            finally:
                self._running.discard(done)
                done.release()

        if self._ended:
            call()
            return
        self._running.add(done)
        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:
            # There is no thread to be had, or the interpreter ends.
            run()

    def end(self, limit: float) -> None:
        """Waits for up to `limit` seconds for the calls that run. Later ones run where they are started."""
        self._ended = True
        deadline = time.monotonic() + limit
        for done in list(self._running):
            done.acquire(timeout=max(0, deadline - time.monotonic()))


background = _Background()


def _finish() -> None:
    """Waits until what was sent is delivered, in bounded time. Another Ctrl-C ends the wait."""
    deadline = time.monotonic() + LINGER
    try:
        # Handlers of signals run between the calls.
        while library.smbdirect_close_all(50) == c.ERROR_TIMED_OUT and time.monotonic() < deadline:
            pass
    finally:
        # The memory of Python is not used any more when it is freed.
        library.smbdirect_close_all(0)
        background.end(LINGER)


atexit.register(_finish)


@dataclass(frozen=True)
class Descriptor:
    """Buffer Descriptor V1 ([MS-SMBD] 2.2.3.1): memory that a peer has registered."""

    offset: int
    token: int
    length: int

    def __post_init__(self) -> None:
        for name, bits in (("offset", 64), ("token", 32), ("length", 32)):
            object.__setattr__(self, name, number(name, getattr(self, name), bits))

    def encode(self) -> bytes:
        """Returns the 16 bytes of the descriptor in a message."""
        return struct.pack("<QII", self.offset, self.token, self.length)

    @classmethod
    def decode(cls, data: Data) -> "Descriptor":
        """Reads the 16 bytes of a descriptor."""
        encoded = as_bytes(data)
        if len(encoded) != 16:
            raise ValueError(f"a descriptor of {len(encoded)} bytes, it has 16")
        return cls(*struct.unpack("<QII", encoded))


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


class Settings(TypedDict, total=False):
    """The settings of a connection that `connect` and `listen` take by name; smbdirect.h describes them. Those of a
    transport are for "iwarp" or "roce"."""

    send_credit_target: int
    receive_credit_max: int
    max_send_size: int
    max_receive_size: int
    max_fragmented_receive_size: int
    max_read_write_size: int
    keepalive_interval_ms: int
    keepalive_response_timeout_ms: int
    active_negotiation_timeout_ms: int
    passive_negotiation_timeout_ms: int
    busy_poll_us: int
    credit_grant_timeout_ms: Union[int, Literal["never"]]
    # Of iWARP and RoCE.
    ird: int
    ord: int
    connect_timeout_ms: int
    accept_timeout_ms: int
    close_timeout_ms: int
    max_half_open: int
    poll_window_us: int
    # Of iWARP.
    crc: Literal["auto", "on", "off"]
    revision: int
    fall_back: bool
    max_fpdu: int
    fpdu_alignment: Literal["auto", "off", "single", "runs"]
    startup_probe: bool
    congestion_control: str
    send_buffer: Union[int, Literal["auto", "system"]]
    # Of RoCE.
    udp_port: int
    peer_udp_port: int
    path_mtu: int
    max_in_flight: int


def settings(transport: str, profile: str, changes: Settings) -> c.Settings:
    """Returns the settings of a profile with changes."""
    if profile not in c.PROFILES:
        raise ValueError(f"no profile {profile!r}: use {', '.join(c.PROFILES)}")
    made = c.Settings()
    library.smbdirect_settings_init(byref(made), ctypes.sizeof(made), c.PROFILES[profile])
    made.transport = text("transport", transport)
    in_structure = {field[0]: 8 * ctypes.sizeof(field[1]) for field in c.Settings._fields_}
    options: list[c.Option] = []
    for name, value in changes.items():
        if name not in Settings.__annotations__:
            raise TypeError(f"no setting {name!r}: there are {', '.join(sorted(Settings.__annotations__))}")
        if name in in_structure:
            setattr(made, name, number(name, value, in_structure[name]))  # type: ignore[arg-type]
        else:
            options.append(c.Option(name.encode(), option(name, value)))
    made.options = (c.Option * len(options))(*options)
    made.options_count = len(options)
    return made


def option(name: str, value: object) -> bytes:
    """Returns the value of a setting of a transport for the library."""
    if isinstance(value, bool):
        return b"on" if value else b"off"
    if isinstance(value, str):
        return text(name, value)
    return str(number(name, value, 32)).encode()  # type: ignore[arg-type]


def viewed(data: Data) -> memoryview:
    """Returns a view of data, or says what is needed."""
    try:
        return memoryview(cast(Any, data))
    except TypeError:
        needed = "a bytes-like object is needed, such as bytes, bytearray or memoryview"
        cure = "; encode it: text.encode()" if isinstance(data, str) else ""
        raise TypeError(f"{needed}, not {type(data).__name__}{cure}") from None


def as_bytes(data: Data) -> bytes:
    """Returns data as bytes, without a copy if it is of that type."""
    if isinstance(data, bytes):
        return data
    with viewed(data) as view:
        return view.tobytes()


def room(buffer: Data) -> tuple["ctypes.Array[c.IoVec]", object]:
    """Returns the memory of a writable buffer for the library, and an object that keeps it from being moved."""
    with viewed(buffer) as view:
        if view.readonly:
            raise TypeError(f"a writable buffer is needed, such as a bytearray, not {type(buffer).__name__}")
        if not view.c_contiguous:
            raise BufferError("the bytes of the buffer are not in one piece")
        size = view.nbytes
        # The view keeps the buffer as it is until this does. An array of no bytes has no first one.
        held = c_char.from_buffer(cast(Any, buffer)) if size else None
    array = (c.IoVec * 1)()
    if held is not None:
        array[0].iov_base, array[0].iov_len = ctypes.addressof(held), size
    return array, held


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
        if not isinstance(one, Descriptor):
            raise TypeError(f"{type(one).__name__} is not a Descriptor")
        entry.offset, entry.token, entry.length = one.offset, one.token, one.length
    return array


def check_range(described: "ctypes.Array[c.BufferDescriptor]", offset: int, length: int) -> None:
    """Checks that a read is inside of the descriptors, before memory for it is allocated."""
    available = sum(entry.length for entry in described)
    if offset + length > available:
        raise InvalidError(f"{offset + length} bytes of remote memory are needed, the descriptors have {available}")


def new_buffer(content: Union[int, Data]) -> c_void_p:
    """Returns a buffer of the library with the content, or with a number of zero bytes."""
    if isinstance(content, int):
        held, length = b"", number("the length", content, 63)
    else:
        held = as_bytes(content)
        length = len(held)
    buffer = library.smbdirect_buffer_new(length)
    if buffer is None:
        raise MemoryError(f"a buffer of {length} bytes")
    if held:
        ctypes.memmove(library.smbdirect_buffer_data(buffer), held, length)
    return c_void_p(buffer)


def take_buffer(buffer: int) -> bytes:
    """Returns the content of a buffer of the library, and frees it."""
    try:
        return ctypes.string_at(library.smbdirect_buffer_data(buffer), library.smbdirect_buffer_length(buffer))
    finally:
        library.smbdirect_buffer_free(buffer)


class _Memory:
    """A buffer of the library. It is freed when nothing refers to this object any more."""

    def __init__(self, pointer: int) -> None:
        self.pointer: Optional[int] = pointer
        self.address: int = library.smbdirect_buffer_data(pointer)
        #: The views that exist.
        self.views: weakref.WeakSet[_Viewed] = weakref.WeakSet()

    def __del__(self) -> None:
        library.smbdirect_buffer_free(self.pointer)


class _Viewed:
    """What a view refers to. It refers to the memory."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        memory.views.add(self)


class Owner:
    """An object that owns a handle of the library, which a copy would free."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(f"cannot copy or pickle {type(self).__name__}, which owns a handle of this process")


class Buffer(Owner):
    """Memory that a registration takes and returns without a copy.

    `view` returns a memoryview of it. The buffer cannot be registered while such views, or views of them, exist: no
    program sees bytes that the peer changes. A view keeps the memory alive, also if the buffer is dropped.
    """

    def __init__(self, content: Union[int, Data]) -> None:
        """Creates a buffer with a copy of `content`, or with a number of zero bytes."""
        pointer = new_buffer(content).value
        assert pointer is not None
        self._adopt(pointer)

    def _adopt(self, pointer: int) -> None:
        self._length: int = library.smbdirect_buffer_length(pointer)
        #: The memory, or nothing after it was handed over. There is no lock, which a finalizer, the handler of a signal
        #: or a forked process could find locked: `view` announces itself before it looks here, and `_hand_over` takes
        #: the memory from here before it looks for views.
        self._held = [_Memory(pointer)]

    @classmethod
    def _of(cls, pointer: int) -> "Buffer":
        """Returns the buffer of a pointer of the library."""
        made = cls.__new__(cls)
        made._adopt(pointer)
        return made

    def view(self) -> memoryview:
        """Returns a writable view of the memory."""
        for memory in self._held:
            viewed = _Viewed(memory)
            if memory in self._held:
                array = (c_ubyte * self._length).from_address(memory.address)
                # The view refers to the array.
                setattr(array, "viewed", viewed)
                return memoryview(array).cast("B")
        raise self._gone()

    def __buffer__(self, flags: int) -> memoryview:
        """From Python 3.12, the buffer is a bytes-like object by itself."""
        return self.view()

    def __len__(self) -> int:
        return self._length

    def _hand_over(self) -> int:
        """Returns the pointer for the library, which gets the memory."""
        try:
            memory = self._held.pop()
        except IndexError:
            raise self._gone() from None
        if memory.views:
            self._held.append(memory)
            raise BufferError("views of the buffer exist: release them before it is registered")
        pointer, memory.pointer = memory.pointer, None
        assert pointer is not None
        return pointer

    def _gone(self) -> ValueError:
        return ValueError("the buffer was registered: deregister_buffer returns the memory as another one")


class Handle(Owner):
    """A connection, with the calls that never wait."""

    _pointer: Optional[int] = None

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def _live(self) -> int:
        if self._pointer is None:
            raise ValueError("the connection was freed")
        return self._pointer

    def __repr__(self) -> str:
        try:
            told = f"to {self.info().remote_address}"
        except ValueError:
            told = "freed"
        except Error:
            told = "not connected"
        return f"<{type(self).__module__}.{type(self).__qualname__} {told}>"

    def _take(self, receive: Callable[[c_void_p, c.Error], int]) -> Optional[bytes]:
        """Receives a message, or b"" at the end. Returns None if the call would have to wait."""
        error, message = c.Error(), c_void_p()
        status = receive(message, error)
        if status == c.ERROR_WOULD_BLOCK:
            return None
        if check(status, error) == 0:
            self.invalidated = None
            return b""
        try:
            token = ctypes.c_uint32()
            told = library.smbdirect_message_invalidated(message, byref(token))
            self.invalidated = token.value if told else None
            return ctypes.string_at(library.smbdirect_message_data(message), library.smbdirect_message_length(message))
        finally:
            library.smbdirect_message_free(message)

    def _take_into(self, receive: Callable[[Any, c.Error], int]) -> Optional[int]:
        """Receives a message into memory and returns its length. Returns None if the call would have to wait."""
        error, token = c.Error(), c_uint32()
        status = receive(byref(token), error)
        if status == c.ERROR_WOULD_BLOCK:
            return None
        length = check(status, error)
        self.invalidated = token.value or None
        return length

    #: The token of the registration that the peer ended with the last message that was received, if any. It is None
    #: after the end of the connection, and not after an empty message.
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

    def _register(self, content: Union[int, Data, Buffer], access: int) -> tuple[int, Descriptor]:
        error, region, descriptor, pointer = c.Error(), c_void_p(), c.BufferDescriptor(), self._live()
        buffer = c_void_p(content._hand_over()) if isinstance(content, Buffer) else new_buffer(content)
        try:
            check(library.smbdirect_register(pointer, byref(buffer), access, byref(region), byref(error)), error)
        finally:
            # It is NULL if the library has it now.
            if buffer.value is not None and isinstance(content, Buffer):
                content._adopt(buffer.value)
            else:
                library.smbdirect_buffer_free(buffer)
        check(library.smbdirect_region_descriptor(region, byref(descriptor), byref(error)), error)
        assert region.value is not None
        return region.value, Descriptor(descriptor.offset, descriptor.token, descriptor.length)

    def abort(self) -> None:
        """Ends the connection immediately."""
        error = c.Error()
        check(library.smbdirect_abort(self._live(), byref(error)), error)


class ListenerHandle(Owner):
    """A listener, with the calls that never wait."""

    _pointer: Optional[int] = None

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def _live(self) -> int:
        if self._pointer is None:
            raise ValueError("the listener was closed")
        return self._pointer

    def __repr__(self) -> str:
        try:
            told = f"on {self.address}"
        except ValueError:
            told = "closed"
        return f"<{type(self).__module__}.{type(self).__qualname__} {told}>"

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


class RegionHandle(Owner):
    """Memory that the peer can use. Send it `descriptor`."""

    _pointer: Optional[int] = None

    def __init__(self, pointer: int, descriptor: Descriptor) -> None:
        self._pointer = pointer
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


def open_listener(address: str, transport: str, profile: str, changes: Settings) -> int:
    """Listens on an address, and returns the pointer of the listener."""
    error, pointer = c.Error(), c_void_p()
    made = settings(transport, profile, changes)
    name = text("address", address)
    # It waits for the resolver of names.
    status = interruptible(lambda: library.smbdirect_listen(None, name, byref(made), byref(pointer), byref(error)))
    check(status, error)
    assert pointer.value is not None
    return pointer.value


def access(read: bool, write: bool, invalidate: bool) -> int:
    """Returns the rights of a registration."""
    return (
        bool(read) * c.ACCESS_REMOTE_READ
        + bool(write) * c.ACCESS_REMOTE_WRITE
        + bool(invalidate) * c.ACCESS_REMOTE_INVALIDATE
    )
