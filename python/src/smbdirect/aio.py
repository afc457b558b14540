"""SMB Direct for asyncio. The interface is that of the package, with coroutines.

    async with await smbdirect.aio.connect("192.0.2.1:5445") as connection:
        await connection.send(b"hello")
        print(await connection.recv())

There are no timeouts: use asyncio.timeout() or asyncio.wait_for(). A cancelled `recv` loses no message. A
cancelled `read` or `write` goes on without the caller. Use a connection on one event loop only.
"""

from __future__ import annotations

import asyncio
from ctypes import byref, c_void_p
from typing import Any, AsyncIterator, Callable, Optional, Sequence, TypeVar, Union

from . import _library as c
from ._common import (
    Data,
    Descriptor,
    Handle,
    ListenerHandle,
    RegionHandle,
    access,
    as_bytes,
    check,
    descriptors,
    exception,
    new_buffer,
    open_listener,
    parts,
    settings,
    take_buffer,
)
from ._library import library

__all__ = ["Connection", "Listener", "Region", "connect", "listen"]

T = TypeVar("T")


class _Events:
    """Wakes the coroutines that wait for a handle of the library."""

    def __init__(self, descriptor: int, service: Optional[Callable[[], None]] = None) -> None:
        """`service` makes the descriptor unreadable. Without it only attempts do so, and the loop has the descriptor
        only while a coroutine waits: otherwise it would run without a pause."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._service = service
        self._waiting: set[asyncio.Future[None]] = set()
        if service is not None:
            self._loop.add_reader(descriptor, self._ready)

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
        """Stops waiting for the descriptor, before its handle is freed. Coroutines that wait try again."""
        self._loop.remove_reader(self._descriptor)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


class _Operations:
    """The operations of a connection whose callbacks are outstanding, by their numbers."""

    def __init__(self) -> None:
        self._next = 0
        self._futures: dict[int, tuple[asyncio.Future[Optional[bytes]], Any]] = {}
        self.callback = c.CALLBACK(self._completed)

    def start(self, held: Any) -> tuple[int, "asyncio.Future[Optional[bytes]]"]:
        """Returns the number and the future of a new operation, for which `held` is kept alive."""
        self._next += 1
        future: asyncio.Future[Optional[bytes]] = asyncio.get_running_loop().create_future()
        self._futures[self._next] = future, held
        return self._next, future

    def withdraw(self, number: int) -> None:
        """Forgets an operation that was not started."""
        del self._futures[number]

    def _completed(self, _connection: int, error: Any, buffer: Optional[int], number: int) -> None:
        content = None if buffer is None else take_buffer(buffer)
        future, _held = self._futures.pop(number)
        if future.done():
            return
        if error:
            future.set_exception(exception(error.contents))
        else:
            future.set_result(content)


async def connect(
    address: str, *, transport: str = "iwarp", profile: str = "default", **changes: int
) -> "Connection":
    """Connects to a peer and negotiates. The arguments are those of `smbdirect.connect`."""
    error, pointer = c.Error(), c_void_p()
    made = settings(transport, profile, changes)
    check(library.smbdirect_connect_start(None, address.encode(), byref(made), byref(pointer), byref(error)), error)
    assert pointer.value is not None
    connection = Connection(pointer.value)
    try:
        await connection._events.until(lambda: connection._status(library.smbdirect_connect_finish, 0))
    except BaseException:
        connection.free()
        raise
    return connection


async def listen(
    address: str, *, transport: str = "iwarp", profile: str = "default", **changes: int
) -> "Listener":
    """Listens on an address; port 0 picks a free one."""
    return Listener(open_listener(address, transport, profile, changes))


class Connection(Handle):
    """An established connection. Use `connect` or `Listener.accept` to get one."""

    def __init__(self, pointer: int) -> None:
        super().__init__(pointer)
        error = c.Error()
        self._operations = _Operations()
        descriptor = check(library.smbdirect_get_fd(pointer, byref(error)), error)
        self._events = _Events(descriptor, self._service)

    def _service(self) -> None:
        if self._pointer is not None:
            library.smbdirect_service(self._pointer, byref(c.Error()))

    def _status(self, function: Any, *arguments: Any) -> Optional[bool]:
        """Calls a function of the library. Returns None if it would have to wait."""
        error = c.Error()
        status = function(self._live(), *arguments, byref(error))
        if status == c.ERROR_WOULD_BLOCK:
            return None
        check(status, error)
        return True

    async def send(self, *pieces: Data, invalidate: Optional[int] = None) -> None:
        """Sends one message of one or several pieces. Returns when it was submitted, with the data copied."""
        array, _held = parts(pieces)
        arguments: tuple[Any, ...] = (array, len(array))
        function = library.smbdirect_send
        if invalidate is not None:
            function, arguments = library.smbdirect_send_and_invalidate, (*arguments, invalidate)
        await self._events.until(lambda: self._status(function, *arguments, 0))

    async def recv(self) -> bytes:
        """Returns the next message, or b"" after the connection was closed gracefully."""
        return await self._events.until(lambda: self._take(0))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields messages until the connection is closed gracefully."""
        while message := await self.recv():
            yield message

    def register(
        self, content: Union[int, Data], *, read: bool = False, write: bool = False, invalidate: bool = True
    ) -> "Region":
        """Registers a copy of `content`, or a number of zero bytes, for the peer."""
        pointer, descriptor = self._register(content, access(read, write, invalidate))
        return Region(pointer, descriptor, self)

    async def read(
        self, source: Union[Descriptor, Sequence[Descriptor]], length: int, offset: int = 0
    ) -> bytes:
        """Reads the peer's memory by RDMA Read, from an offset into the range of its descriptors."""
        array, error, buffer = descriptors(source), c.Error(), new_buffer(length)
        number, future = self._operations.start(None)
        status = library.smbdirect_read_start(
            self._live(), array, len(array), offset, byref(buffer), self._operations.callback, number, byref(error)
        )
        if status < 0:
            self._operations.withdraw(number)
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
        array, error, held = descriptors(target), c.Error(), as_bytes(data)
        number, future = self._operations.start(held)
        status = library.smbdirect_write_start(
            self._live(),
            array,
            len(array),
            offset,
            held,
            len(held),
            self._operations.callback,
            number,
            byref(error),
        )
        if status < 0:
            self._operations.withdraw(number)
            raise exception(error)
        await future

    async def close(self) -> None:
        """Closes the connection gracefully and frees it."""
        if self._pointer is None:
            return
        try:
            await self._events.until(lambda: self._status(library.smbdirect_close, 0))
        finally:
            self.free()

    def free(self) -> None:
        """Frees the connection. Outstanding reads and writes fail, and abort it; otherwise it closes in the
        background."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._events.stop()
            # The callbacks of outstanding operations are called here.
            library.smbdirect_connection_free(pointer)

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
        """Ends the access of the peer and returns the content."""
        pointer, buffer, error = self._registered(), c_void_p(), c.Error()

        def attempt() -> Optional[bool]:
            status = library.smbdirect_deregister(pointer, 0, byref(buffer), byref(error))
            return None if status == c.ERROR_WOULD_BLOCK else check(status, error) == 0

        await self._connection._events.until(attempt)
        self.free()
        assert buffer.value is not None
        return take_buffer(buffer.value)


class Listener(ListenerHandle):
    """Accepts connections. `async for` accepts without end."""

    def __init__(self, pointer: int) -> None:
        super().__init__(pointer)
        error = c.Error()
        descriptor = check(library.smbdirect_listener_get_fd(pointer, byref(error)), error)
        self._events = _Events(descriptor)

    async def accept(self) -> Connection:
        """Returns the next connection, which is established."""
        error, pointer = c.Error(), c_void_p()

        def attempt() -> Optional[int]:
            status = library.smbdirect_accept(self._live(), 0, byref(pointer), byref(error))
            if status == c.ERROR_WOULD_BLOCK:
                return None
            check(status, error)
            return pointer.value

        return Connection(await self._events.until(attempt))

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            yield await self.accept()

    def close(self) -> None:
        """Stops listening. Connections that were not accepted are closed."""
        if self._pointer is not None:
            self._events.stop()
        super().close()

    async def __aenter__(self) -> "Listener":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
