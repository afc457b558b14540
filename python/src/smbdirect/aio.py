"""SMB Direct for asyncio. The interface is that of the package, with coroutines.

    async with smbdirect.aio.connect("192.0.2.1:5445") as connection:
        await connection.send(b"hello")
        print(await connection.recv())

`connect` and `listen` can be awaited, too, for an object that outlives a block. Coroutines that wait in `recv`, `send`
or `accept` are served in the order in which they wait. There are no timeouts: use asyncio.timeout() or
asyncio.wait_for(). A cancelled `recv` loses no message. A cancelled `read` or `write` goes on without the caller; its
memory is kept until it is over, also if the connection is dropped or the loop ends. Use a connection on one event loop
only.

A connection or listener that is dropped without `close` or `free` is freed with a ResourceWarning.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Coroutine
from ctypes import byref, c_void_p, set_errno, sizeof
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generator, Optional, Sequence, TypeVar, Union

from . import _library as c
from ._common import (
    Buffer,
    Data,
    Descriptor,
    Handle,
    ListenerHandle,
    LostError,
    RegionHandle,
    Settings,
    access,
    as_bytes,
    background,
    check,
    check_range,
    descriptors,
    exception,
    new_buffer,
    number,
    open_listener,
    parts,
    room,
    settings,
    take_buffer,
    text,
)
from ._library import library

__all__ = ["Connection", "Listener", "Region", "connect", "listen"]

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
Opened = TypeVar("Opened", "Connection", "Listener")


class _Events:
    """Wakes the coroutines that wait for a handle of the library. The loop refers to this object, and this object
    does not refer to the one that a program uses, so that the latter can be dropped."""

    def __init__(self, descriptor: int, service: Optional[Callable[[], object]] = None) -> None:
        """`service` makes the descriptor unreadable. Without it only attempts do so, and the loop has the descriptor
        only while a coroutine waits: otherwise it would run without a pause."""
        self._loop = asyncio.get_running_loop()
        # The library closes its own one with the handle, while the loop may still have it.
        self._descriptor = os.dup(descriptor)
        self._service = service
        self._waiting: set[asyncio.Future[None]] = set()
        if service is not None:
            self._loop.add_reader(self._descriptor, self._ready)

    def _ready(self) -> None:
        if self._service is not None:
            self._service()
        else:
            self._loop.remove_reader(self._descriptor)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def until(self, attempt: Callable[[], Optional[T]]) -> T:
        """Repeats an attempt until it does not return None."""
        while (value := attempt()) is None:
            future = self._loop.create_future()
            self._waiting.add(future)
            if self._service is None:
                self._loop.add_reader(self._descriptor, self._ready)
            try:
                await future
            finally:
                self._waiting.discard(future)
        return value

    def stop(self) -> None:
        """Stops waiting for the descriptor. Coroutines that wait try again. Does nothing the second time. The garbage
        collector may call it in any thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if self._loop.is_closed():
            # It has forgotten the descriptor.
            self._close()
        elif here or not self._loop.is_running():
            self._stop()
        else:
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                # It was closed meanwhile.
                self._close()

    def _stop(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
        self._close()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Completion(BaseException):
    """One operation. Its callback is `BaseException.__init__`, which stores the arguments in `args`: it runs no Python
    code, in which the handler of a signal could raise an exception that no caller gets."""

    def __init__(self, future: "asyncio.Future[Optional[bytes]]", held: Any) -> None:
        super().__init__()
        self.future: Optional[asyncio.Future[Optional[bytes]]] = future
        #: What the operation uses.
        self.held = held
        self.callback = c.CALLBACK(super().__init__)


class _Operations:
    """The operations of a connection whose callbacks are outstanding, in the order of their start."""

    def __init__(self) -> None:
        self._outstanding: dict[_Completion, None] = {}

    def start(self, held: Any) -> tuple[_Completion, "asyncio.Future[Optional[bytes]]"]:
        """Returns a new operation, for which `held` is kept alive, and its future."""
        future: asyncio.Future[Optional[bytes]] = asyncio.get_running_loop().create_future()
        operation = _Completion(future, held)
        self._outstanding[operation] = None
        return operation, future

    def withdraw(self, operation: _Completion) -> None:
        """Forgets an operation that is over, or was not started."""
        del self._outstanding[operation]
        # The callback refers to the operation.
        del operation.callback

    def free(self, pointer: int) -> None:
        """Frees the handle of the connection, without waiting. Futures that somebody awaits fail."""
        if not self._outstanding:
            library.smbdirect_connection_free(pointer)
            return
        for operation in list(self._outstanding):
            future, operation.future = operation.future, None
            if future is not None and not future.done() and not future.get_loop().is_closed():
                future.set_exception(LostError("the connection was freed"))
                # Nobody may await it any more, which is no mistake.
                future.exception()
        # Another thread waits until the memory is not used any more. It keeps this object, and so the memory.
        background.start(lambda: self._free(pointer))

    def _free(self, pointer: int) -> None:
        library.smbdirect_connection_free(pointer)
        self._finish()

    def service(self, pointer: int) -> None:
        """Gives futures the results of operations that are over."""
        library.smbdirect_service(pointer, None)
        self._finish()

    def _finish(self) -> None:
        for operation in [one for one in self._outstanding if one.args]:
            _connection, error, buffer, _user_data = operation.args
            future = operation.future
            if future is None or future.done():
                library.smbdirect_buffer_free(buffer)
            elif error is None:
                future.set_result(None if buffer is None else take_buffer(buffer))
            else:
                library.smbdirect_buffer_free(buffer)
                # The number of the system's error is that of another call now. The text names the error.
                set_errno(0)
                future.set_exception(exception(c.Error.from_buffer_copy(error.ljust(sizeof(c.Error), b"\0"))))
            self.withdraw(operation)


class Opening(Coroutine[Any, Any, Opened]):
    """The result of `connect` and `listen`: a coroutine, which is also the context manager of what it returns."""

    _opened: Opened

    def __init__(self, opening: Coroutine[Any, Any, Opened]) -> None:
        self._opening: Coroutine[Any, Any, Opened] = opening

    def send(self, value: Any) -> Any:
        return self._opening.send(value)

    def throw(self, *raised: Any) -> Any:
        return self._opening.throw(*raised)

    def close(self) -> None:
        self._opening.close()

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._opening.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self._opened.__aexit__(kind, value, traceback)


def connect(
    address: str, *, transport: str = "iwarp", profile: str = "default", **changes: Unpack[Settings]
) -> Opening["Connection"]:
    """Connects to a peer and negotiates. The arguments are those of `smbdirect.connect`.

    Use it as `async with connect(...) as connection`, or `connection = await connect(...)`.
    """
    return Opening(_connect(address, transport, profile, changes))


async def _connect(address: str, transport: str, profile: str, changes: Settings) -> "Connection":
    error, pointer = c.Error(), c_void_p()
    made = settings(transport, profile, changes)
    name = text("address", address)
    check(library.smbdirect_connect_start(None, name, byref(made), byref(pointer), byref(error)), error)
    assert pointer.value is not None
    connection = Connection(pointer.value)
    try:
        await connection._events.until(lambda: connection._status(library.smbdirect_connect_finish, 0))
    except BaseException:
        connection.free()
        raise
    return connection


def listen(
    address: str, *, transport: str = "iwarp", profile: str = "default", **changes: Unpack[Settings]
) -> Opening["Listener"]:
    """Listens on an address; the arguments are those of `smbdirect.listen`, and the use is that of `connect`."""
    return Opening(_listen(address, transport, profile, changes))


async def _listen(address: str, transport: str, profile: str, changes: Settings) -> "Listener":
    return Listener(open_listener(address, transport, profile, changes))


class Connection(Handle):
    """An established connection. Use `connect` or `Listener.accept` to get one."""

    def __init__(self, pointer: int) -> None:
        error = c.Error()
        self._operations = operations = _Operations()
        # A lock is given to the coroutines in the order in which they wait for it.
        self._sending, self._receiving, self._closing = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        try:
            descriptor = check(library.smbdirect_get_fd(pointer, byref(error)), error)
            self._events = _Events(descriptor, lambda: operations.service(pointer))
        except BaseException:
            library.smbdirect_connection_free(pointer)
            raise
        super().__init__(pointer)

    def _status(self, function: Any, *arguments: Any) -> Optional[bool]:
        """Calls a function of the library. Returns None if it would have to wait."""
        error = c.Error()
        status = function(self._live(), *arguments, byref(error))
        if status == c.ERROR_WOULD_BLOCK:
            return None
        check(status, error)
        return True

    async def send(self, *pieces: Data, invalidate: Optional[int] = None) -> None:
        """Sends one message of one or several pieces. Returns when it was submitted, with the data copied. An empty
        message is as for `smbdirect.Connection.send`."""
        array, _held = parts(pieces)
        arguments: tuple[Any, ...] = (array, len(array))
        function = library.smbdirect_send
        if invalidate is not None:
            token = number("invalidate", invalidate, 32)
            function, arguments = library.smbdirect_send_and_invalidate, (*arguments, token)
        async with self._sending:
            await self._events.until(lambda: self._status(function, *arguments, 0))

    async def recv(self) -> bytes:
        """Returns the next message, or b"" after the connection was closed gracefully; see
        `smbdirect.Connection.recv`."""
        async with self._receiving:
            return await self._events.until(
                lambda: self._take(
                    lambda message, error: library.smbdirect_recv_message(self._live(), 0, byref(message), byref(error))
                )
            )

    async def recv_into(self, buffer: Data) -> int:
        """Receives the next message into a writable buffer; see `smbdirect.Connection.recv_into`."""
        # The buffer cannot be moved as long as the object is held.
        array, held = room(buffer)
        try:
            async with self._receiving:
                return await self._events.until(
                    lambda: self._take_into(
                        lambda token, error: library.smbdirect_recv(
                            self._live(), array, len(array), 0, token, byref(error)
                        )
                    )
                )
        finally:
            # The traceback of an error refers to this frame.
            del held

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields messages until the connection is closed gracefully."""
        while (message := await self.recv()) or self.invalidated is not None:
            yield message

    def register(
        self, content: Union[int, Data, Buffer], *, read: bool = False, write: bool = False, invalidate: bool = True
    ) -> "Region":
        """Registers a copy of `content`, a number of zero bytes, or the memory of a `smbdirect.Buffer` for the peer."""
        pointer, descriptor = self._register(content, access(read, write, invalidate))
        return Region(pointer, descriptor, self)

    async def read(
        self, source: Union[Descriptor, Sequence[Descriptor]], length: int, offset: int = 0
    ) -> bytes:
        """Reads the peer's memory by RDMA Read, from an offset into the range of its descriptors."""
        pointer, array, error = self._live(), descriptors(source), c.Error()
        start, size = number("offset", offset, 64), number("length", length, 63)
        check_range(array, start, size)
        buffer = new_buffer(size)
        operation, future = self._operations.start(None)
        status = library.smbdirect_read_start(
            pointer, array, len(array), start, byref(buffer), operation.callback, None, byref(error)
        )
        if status < 0:
            self._operations.withdraw(operation)
            library.smbdirect_buffer_free(buffer)
            raise exception(error)
        content = await future
        assert content is not None
        return content

    async def write(
        self, target: Union[Descriptor, Sequence[Descriptor]], data: Data, offset: int = 0
    ) -> None:
        """Writes the peer's memory by RDMA Write, without a copy of `bytes`. The data is in place before the peer
        receives any message that is sent after this call."""
        pointer, array, error = self._live(), descriptors(target), c.Error()
        start, held = number("offset", offset, 64), as_bytes(data)
        operation, future = self._operations.start(held)
        status = library.smbdirect_write_start(
            pointer,
            array,
            len(array),
            start,
            held,
            len(held),
            operation.callback,
            None,
            byref(error),
        )
        if status < 0:
            self._operations.withdraw(operation)
            raise exception(error)
        await future

    async def close(self) -> None:
        """Closes the connection gracefully and frees it. Does nothing on a connection that was freed."""
        async with self._closing:
            try:
                await self._events.until(
                    lambda: self._pointer is None or self._status(library.smbdirect_close, 0)
                )
            finally:
                self.free()

    def free(self) -> None:
        """Frees the connection, which closes in the background after what was submitted. Outstanding reads and
        writes fail here; a write may still reach the peer."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._events.stop()
            self._operations.free(pointer)

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if self._pointer is not None:
            try:
                _warn(f"unclosed {self!r}", ResourceWarning, source=self)
            finally:
                self.free()

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.free()


class Region(RegionHandle):
    """Memory that the peer can use. Send it `descriptor`."""

    def __init__(self, pointer: int, descriptor: Descriptor, connection: Connection) -> None:
        super().__init__(pointer, descriptor)
        self._connection = connection

    async def deregister(self) -> bytes:
        """Ends the access of the peer and returns a copy of the content."""
        return take_buffer(await self._end())

    async def deregister_buffer(self) -> Buffer:
        """Ends the access of the peer and returns the memory without a copy."""
        return Buffer._of(await self._end())

    async def _end(self) -> int:
        """Ends the registration, and returns the pointer of its buffer."""
        pointer, buffer, error = self._registered(), c_void_p(), c.Error()

        def attempt() -> Optional[bool]:
            status = library.smbdirect_deregister(pointer, 0, byref(buffer), byref(error))
            return None if status == c.ERROR_WOULD_BLOCK else check(status, error) == 0

        await self._connection._events.until(attempt)
        self.free()
        assert buffer.value is not None
        return buffer.value


class Listener(ListenerHandle):
    """Accepts connections. `async for` accepts without end."""

    def __init__(self, pointer: int) -> None:
        error = c.Error()
        try:
            self._events = _Events(check(library.smbdirect_listener_get_fd(pointer, byref(error)), error))
        except BaseException:
            library.smbdirect_listener_free(pointer)
            raise
        self._accepting = asyncio.Lock()
        super().__init__(pointer)

    async def accept(self) -> Connection:
        """Returns the next connection, which is established."""
        error, pointer = c.Error(), c_void_p()

        def attempt() -> Optional[int]:
            status = library.smbdirect_accept(self._live(), 0, byref(pointer), byref(error))
            if status == c.ERROR_WOULD_BLOCK:
                return None
            check(status, error)
            return pointer.value

        async with self._accepting:
            return Connection(await self._events.until(attempt))

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            yield await self.accept()

    def close(self) -> None:
        """Stops listening. Connections that were not accepted are closed."""
        if self._pointer is not None:
            self._events.stop()
        super().close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if self._pointer is not None:
            try:
                _warn(f"unclosed {self!r}", ResourceWarning, source=self)
            finally:
                self.close()

    async def __aenter__(self) -> "Listener":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
