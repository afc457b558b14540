"""Tests of objects that are freed, dropped or given up while they are used, and of arguments that do not fit."""

import array
import asyncio
import copy
import ctypes
import errno
import functools
import gc
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import warnings
from unittest import mock

import smbdirect
from smbdirect import aio

#: Only a fault takes that long.
LIMIT = 240
LENGTH = 400_000
COUNT = 12


def pair(test, **changes):
    """Returns both ends of a connection."""
    listener = smbdirect.listen("127.0.0.1:0", **changes)
    test.addCleanup(listener.close)
    client = smbdirect.connect(listener.address, timeout=LIMIT)
    server = listener.accept(timeout=LIMIT)
    test.addCleanup(client.free)
    test.addCleanup(server.free)
    return client, server


def in_thread(call):
    """Starts a call in a thread, and returns a function that waits for its result or exception."""
    results = []

    def run():
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(LIMIT)
        return results[0]

    return result


def sleeps(thread):
    """Returns whether a thread of this process sleeps."""
    with open(f"/proc/self/task/{thread}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


class Freed(unittest.TestCase):
    """Objects that one thread frees while others use them."""

    def test_calls_that_wait_end(self):
        for free in (smbdirect.Connection.free, smbdirect.Connection.abort, smbdirect.Connection.close):
            client, _server = pair(self)
            waiting = [in_thread(client.recv) for _ in range(5)] + [in_thread(lambda: client.recv(timeout=LIMIT))]
            time.sleep(0.05)
            free(client)
            for result in waiting:
                ended = result()
                self.assertTrue(ended == b"" or isinstance(ended, (smbdirect.Error, ValueError)), ended)

    def test_accept_ends(self):
        listener = smbdirect.listen("127.0.0.1:0")
        waiting = [in_thread(listener.accept) for _ in range(3)]
        time.sleep(0.05)
        listener.close()
        for result in waiting:
            self.assertIsInstance(result(), (smbdirect.LostError, ValueError))
        with self.assertRaises(ValueError):
            listener.accept()

    def test_one_of_several_threads_deregisters(self):
        client, _server = pair(self)
        for _ in range(50):
            region = client.register(b"content", read=True)
            results = [in_thread(region.deregister) for _ in range(4)]
            ended = [result() for result in results]
            self.assertEqual(ended.count(b"content"), 1, ended)
            self.assertEqual(sum(isinstance(one, ValueError) for one in ended), 3, ended)

    def test_objects_are_freed_twice_and_out_of_order(self):
        client, server = pair(self)
        region = client.register(10, write=True)
        descriptor = region.descriptor
        client.free()
        client.free()
        self.assertEqual(region.deregister(timeout=LIMIT), bytes(10))
        region.free()
        with self.assertRaises(ValueError):
            client.info()
        with self.assertRaises(smbdirect.Error):
            server.read(descriptor, 1, timeout=LIMIT)

    def test_numbers_that_are_no_handles(self):
        library = smbdirect._common.library
        client, server = pair(self)
        for pointer in (1, 7, 16, 0xDEADBEEF, 2**63, 2**64 - 1, id(client), client._pointer + 8):
            for kind in ("connection", "region", "listener", "buffer", "message"):
                getattr(library, f"smbdirect_{kind}_free")(pointer)
            self.assertEqual(library.smbdirect_service(pointer, None), -1)
            self.assertEqual(library.smbdirect_buffer_length(pointer), 0)
            self.assertIsNone(library.smbdirect_message_data(pointer))
        # A handle of another kind is none.
        library.smbdirect_listener_free(client._pointer)
        library.smbdirect_buffer_free(client._pointer)
        client.send(b"alive", timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"alive")

    def test_forked_process_drops_the_objects(self):
        client, server = pair(self)
        region = server.register(100, write=True)
        child = os.fork()
        if child == 0:
            try:
                with self.assertRaises(smbdirect.Error):
                    client.send(b"x")
                region.free()
                client.free()
                server.free()
                own, other = pair(self)
                own.send(b"child", timeout=LIMIT)
                self.assertEqual(other.recv(timeout=LIMIT), b"child")
            except BaseException:
                os._exit(1)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        client.send(b"parent", timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"parent")

    def test_every_call_at_once(self):
        """Four threads call everything on the same objects, and free them."""
        slots = {"listener": smbdirect.listen("127.0.0.1:0")}
        end = time.monotonic() + float(os.environ.get("STORM_SECONDS", "2"))
        unexpected = []

        def connect():
            slots["client"] = smbdirect.connect(slots["listener"].address, timeout=1)

        def accept():
            slots["server"] = slots["listener"].accept(timeout=0.01)

        def listen():
            before, slots["listener"] = slots["listener"], smbdirect.listen("127.0.0.1:0")
            before.close()

        def register():
            slots["region"] = slots["server"].register(50_000, read=True, write=True)
            slots["descriptor"] = slots["region"].descriptor

        data = bytes(50_000)
        calls = [connect, accept, register, connect, accept, register, listen]
        calls += [
            lambda: slots["client"].send(data, timeout=0.01),
            lambda: slots["client"].send(b"", b"x", invalidate=slots["descriptor"].token, timeout=0),
            lambda: slots["server"].recv(timeout=0.01),
            lambda: slots["client"].read(slots["descriptor"], 50_000, timeout=0.1),
            lambda: slots["client"].write(slots["descriptor"], data, timeout=0.1),
            lambda: slots["client"].keepalive(timeout=0.1),
            lambda: slots["server"].info(),
            lambda: slots["region"].deregister(timeout=0.01),
            lambda: slots["region"].free(),
            lambda: slots["client"].stream().close(),
            lambda: slots["client"].close(timeout=0.01),
            lambda: slots["server"].free(),
            lambda: slots["client"].abort(),
            lambda: slots.pop("server"),
        ]

        def storm(seed):
            choose = random.Random(seed).choice
            while time.monotonic() < end:
                try:
                    choose(calls)()
                except (smbdirect.Error, ValueError, KeyError):
                    pass
                except BaseException as error:
                    unexpected.append(error)
                    raise

        threads = [in_thread(lambda seed=seed: storm(seed)) for seed in range(4)]
        for result in threads:
            self.assertIsNone(result())
        self.assertEqual(unexpected, [])


class Owners(unittest.TestCase):
    """Objects that own a handle of the library."""

    def test_objects_are_neither_copied_nor_pickled(self):
        client, server = pair(self)
        listener = smbdirect.listen("127.0.0.1:0")
        region = client.register(10, write=True)
        for owner in (client, listener, region, smbdirect.Buffer(10)):
            for attempt in (copy.copy, copy.deepcopy, *(functools.partial(pickle.dumps, protocol=p) for p in range(6))):
                with self.subTest(owner=owner, attempt=attempt), self.assertRaisesRegex(TypeError, "owns a handle"):
                    attempt(owner)
        gc.collect()
        client.send(b"alive", timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"alive")
        for value in (region.descriptor, client.info()):
            self.assertEqual(pickle.loads(pickle.dumps(value)), value)

    def test_two_closes_are_one(self):
        for _ in range(20):
            client, server = pair(self)
            taking = in_thread(lambda server=server: list(server))
            closing = [in_thread(lambda client=client: client.close(timeout=LIMIT)) for _ in range(3)]
            self.assertEqual([result() for result in closing], [None] * 3)
            client.close()
            self.assertEqual(taking(), [])

    def test_texts_have_addresses(self):
        client, _server = pair(self)
        address = client.info().remote_address
        self.assertEqual(repr(client), f"<smbdirect.Connection to {address}>")
        client.free()
        self.assertEqual(repr(client), "<smbdirect.Connection freed>")
        with smbdirect.listen("127.0.0.1:0") as listener:
            self.assertEqual(repr(listener), f"<smbdirect.Listener on {listener.address}>")
        self.assertEqual(repr(listener), "<smbdirect.Listener closed>")

    def test_threads_receive_in_the_order_in_which_they_wait(self):
        client, server = pair(self)
        waiting = []
        for _ in range(5):
            identity = []
            waiting.append(in_thread(lambda identity=identity: identity.append(threading.get_native_id()) or server.recv()))
            seen = 0
            while seen < 3:
                time.sleep(0.001)
                seen = seen + 1 if identity and sleeps(identity[0]) else 0
        for number in range(5):
            client.send(b"%d" % number, timeout=LIMIT)
        self.assertEqual([result() for result in waiting], [b"%d" % number for number in range(5)])

    def test_receivers_and_closers_of_asyncio_take_turns(self):
        async def run():
            async with aio.listen("127.0.0.1:0") as listener:
                client = await aio.connect(listener.address)
                server = await listener.accept()
                waiting = [asyncio.ensure_future(client.recv()) for _ in range(10)]
                await asyncio.sleep(0)
                waiting[3].cancel()
                for number in range(9):
                    await server.send(b"%d" % number)
                received = await asyncio.gather(*waiting, return_exceptions=True)
                self.assertIsInstance(received.pop(3), asyncio.CancelledError)
                self.assertEqual(received, [b"%d" % number for number in range(9)])
                self.assertEqual(await asyncio.gather(client.close(), client.close()), [None, None])
                await client.close()
                server.free()

        asyncio.run(asyncio.wait_for(run(), LIMIT))


class Signals(unittest.TestCase):
    """Handlers of signals run while a call waits, and their exceptions end it."""

    class Interrupt(Exception):
        pass

    def with_signal(self, call, handler):
        """Makes a call, during which a signal comes, and returns its result."""
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def held_up(self):
        """Returns an end of a connection whose peer can be stopped, and a region of the peer."""
        listener = smbdirect.listen("127.0.0.1:0", receive_credit_max=2)
        self.addCleanup(listener.close)
        front = socket.create_server(("127.0.0.1", 0))
        flowing = threading.Event()
        flowing.set()

        def pump(source, target, is_held):
            try:
                while data := source.recv(65536):
                    if is_held:
                        flowing.wait()
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        def relay():
            port = int(listener.address.rsplit(":", 1)[1])
            with front, front.accept()[0] as near, socket.create_connection(("127.0.0.1", port)) as far:
                back = threading.Thread(target=pump, args=(far, near, False))
                back.start()
                pump(near, far, True)
                back.join()

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        self.addCleanup(thread.join, LIMIT)
        self.addCleanup(flowing.set)
        client = smbdirect.connect("127.0.0.1:%d" % front.getsockname()[1], timeout=LIMIT)
        server = listener.accept(timeout=LIMIT)
        region = server.register(1000, read=True, write=True)
        self.addCleanup(client.free)
        self.addCleanup(server.free)
        flowing.clear()
        return client, region

    def calls(self):
        """Returns calls that wait for long."""
        client, region = self.held_up()
        mute = socket.create_server(("127.0.0.1", 0))
        listener = smbdirect.listen("127.0.0.1:0")
        self.addCleanup(mute.close)
        self.addCleanup(listener.close)
        full = b"x" * 1_000_000

        def send_many():
            while True:
                client.send(full, timeout=LIMIT)

        return {
            "recv": client.recv,
            "recv with a limit": lambda: client.recv(timeout=LIMIT),
            "accept": listener.accept,
            "connect": lambda: smbdirect.connect("127.0.0.1:%d" % mute.getsockname()[1], timeout=LIMIT),
            "read": lambda: client.read(region.descriptor, 100),
            "keepalive": client.keepalive,
            "send": send_many,
            "close": client.close,
        }

    def test_exception_of_a_handler_ends_every_call(self):
        def interrupt(*_):
            raise self.Interrupt

        for name, call in self.calls().items():
            begun = time.monotonic()
            with self.subTest(name), self.assertRaises(self.Interrupt):
                self.with_signal(call, interrupt)
            self.assertLess(time.monotonic() - begun, LIMIT, name)

    def test_exception_of_a_handler_is_not_kept(self):
        """It refers to the frames of the call, and so to the memory of the program."""
        client, _server = pair(self)

        def interrupt(*_):
            raise self.Interrupt

        room = bytearray(100)
        with self.assertRaises(self.Interrupt):
            self.with_signal(lambda: client.recv_into(room), interrupt)
        room.extend(b"moved")

    def test_call_goes_on_after_a_handler(self):
        client, server = pair(self)
        seen = []

        def answer(*_):
            seen.append(1)
            server.send(b"from the handler", timeout=LIMIT)

        self.assertEqual(self.with_signal(client.recv, answer), b"from the handler")
        begun = time.monotonic()
        with self.assertRaises(smbdirect.TimedOutError) as raised:
            self.with_signal(lambda: client.recv(timeout=0.4), lambda *_: seen.append(1))
        self.assertGreaterEqual(time.monotonic() - begun, 0.4)
        self.assertIn("400 ms", str(raised.exception))
        self.assertEqual(len(seen), 2)

    def test_handler_makes_calls_that_handlers_end(self):
        """The second signal comes while the handler of the first one waits."""
        client, server = pair(self)
        seen = []

        def handler(*_):
            seen.append(len(seen))
            if len(seen) == 1:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with self.assertRaises(self.Interrupt):
                    client.recv(timeout=LIMIT)
                signal.setitimer(signal.ITIMER_REAL, 0.1)
            elif len(seen) == 2:
                raise self.Interrupt
            else:
                server.send(b"at last", timeout=LIMIT)

        self.assertEqual(self.with_signal(lambda: client.recv(timeout=LIMIT), handler), b"at last")
        self.assertEqual(seen, [0, 1, 2])

    def test_no_call_starts_a_thread(self):
        client, server = pair(self)
        region = server.register(10, read=True, write=True)
        with mock.patch("_thread.start_new_thread") as started, mock.patch("threading.Thread.start") as also_started:
            client.write(region.descriptor, b"x", timeout=LIMIT)
            client.read(region.descriptor, 1, timeout=LIMIT)
            client.keepalive(timeout=LIMIT)
            smbdirect.listen("127.0.0.1:0").close()
        started.assert_not_called()
        also_started.assert_not_called()

    def test_handler_frees_the_object_of_the_call(self):
        client, _server = pair(self)
        listener = smbdirect.listen("127.0.0.1:0")
        for call, free in ((client.recv, client.free), (listener.accept, listener.close)):
            begun = time.monotonic()
            try:
                self.assertEqual(self.with_signal(call, lambda *_, free=free: free()), b"")
            except (smbdirect.Error, ValueError):
                pass
            self.assertLess(time.monotonic() - begun, LIMIT)

    def test_many_signals_lose_no_message(self):
        client, server = pair(self)
        sent = [number.to_bytes(2, "big") * 5000 for number in range(200)]
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        try:
            sending = in_thread(lambda: [client.send(message, timeout=LIMIT) or time.sleep(0.001) for message in sent])
            self.assertEqual([server.recv(timeout=LIMIT) for _ in sent], sent)
            sending()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class Arguments(unittest.TestCase):
    """Arguments of a wrong type or range are exceptions, and never other values."""

    def test_wrong_arguments(self):
        client, server = pair(self)
        address = "127.0.0.1:1"
        descriptor = smbdirect.Descriptor(0, 1, 1 << 31)
        wrong = {
            TypeError: [
                lambda: client.send(5),
                lambda: client.send([1, 2]),
                lambda: client.send("text"),
                lambda: client.send(None),
                lambda: client.send(True),
                lambda: client.register(True),
                lambda: client.register(1.5),
                lambda: client.register(None),
                lambda: client.write(descriptor, 5),
                lambda: client.write([descriptor, 7], b""),
                lambda: client.read(descriptor, "1"),
                lambda: client.read(descriptor, b"12"),
                lambda: client.read(descriptor, True),
                lambda: client.read(5, 1),
                lambda: client.recv(timeout="1"),
                lambda: client.send(b"", invalidate="x"),
                lambda: smbdirect.connect(b"127.0.0.1:1", timeout=1),
                lambda: smbdirect.connect(None, timeout=1),
                lambda: smbdirect.connect(address, timeout=1, transport=5),
                lambda: smbdirect.connect(address, timeout=1, max_send_size=1364.0),
                lambda: smbdirect.connect(address, timeout=1, max_send_size="1364"),
                lambda: smbdirect.listen(5),
                lambda: smbdirect.Descriptor("a", 1, 1),
            ],
            OverflowError: [
                lambda: client.register(2**64 + 8),
                lambda: client.register(-1),
                lambda: client.read(descriptor, 2**63),
                lambda: client.read(descriptor, -1),
                lambda: client.read(descriptor, 1, offset=2**64),
                lambda: client.write(descriptor, b"x", offset=-1),
                lambda: client.send(b"x", invalidate=2**32),
                lambda: client.send(b"x", invalidate=-1),
                lambda: smbdirect.Descriptor(2**64, 1, 1),
                lambda: smbdirect.Descriptor(0, 2**32, 1),
                lambda: smbdirect.Descriptor(0, 1, -1),
                lambda: smbdirect.connect(address, timeout=1, max_send_size=2**32 + 1364),
                lambda: smbdirect.connect(address, timeout=1, send_credit_target=65546),
                lambda: smbdirect.connect(address, timeout=1, keepalive_interval_ms=2**32),
                lambda: smbdirect.listen("127.0.0.1:0", receive_credit_max=-1),
                lambda: client.recv(timeout=float("inf")),
            ],
            ValueError: [
                lambda: smbdirect.connect(address + "\0x", timeout=1),
                lambda: smbdirect.listen("127.0.0.1:0\0"),
                lambda: smbdirect.connect("\ud800", timeout=1),
                lambda: smbdirect.connect(address, timeout=1, transport="iwarp\0"),
                lambda: smbdirect.connect(address, timeout=-1),
                lambda: client.recv(timeout=-0.1),
                lambda: client.recv(timeout=float("nan")),
                lambda: smbdirect.Descriptor.decode(b"short"),
                lambda: client.send(*[b"x"] * 2000, timeout=1),
                lambda: client.send(*[bytes(1 << 24)] * 1024, timeout=1),
                lambda: client.read([descriptor] * 2000, 1, timeout=1),
                lambda: client.read(descriptor, 2**32, timeout=1),
            ],
            (MemoryError, OverflowError, OSError): [
                lambda: client.register(2**62),
                lambda: client.register(2**33),
                lambda: client.read([descriptor] * 1000, 2**62, timeout=1),
            ],
        }
        for kind, calls in wrong.items():
            for index, call in enumerate(calls):
                with self.subTest(kind=kind, index=index), self.assertRaises(kind):
                    call()
        # Nothing was sent, and the connection is as it was.
        client.send(b"still here", timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"still here")

    def test_buffers_count_by_bytes(self):
        client, server = pair(self)
        numbers = array.array("I", [1, 2, 3])
        views = [
            numbers,
            memoryview(numbers),
            memoryview(numbers)[::2],
            memoryview(bytes(12)).cast("B", (3, 4)),
            memoryview(numbers)[:0],
            (ctypes.c_uint16 * 3)(1, 2, 3),
            bytearray(b"abc"),
        ]
        for view in views:
            expected = memoryview(view).tobytes()
            region = client.register(view, read=True, write=True)
            self.assertEqual(region.descriptor.length, len(expected))
            if expected:
                client.send(view, timeout=LIMIT)
                self.assertEqual(server.recv(timeout=LIMIT), expected)
                server.write(region.descriptor, view, timeout=LIMIT)
                self.assertEqual(server.read(region.descriptor, len(expected), timeout=LIMIT), expected)
            self.assertEqual(region.deregister(timeout=LIMIT), expected)

    def test_empty_message_is_sent_and_not_received(self):
        client, server = pair(self)
        region = server.register(10, write=True)
        client.send(b"", timeout=LIMIT)
        client.send(timeout=LIMIT)
        client.send(b"next", timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"next")
        self.assertIsNone(server.invalidated)
        # The end of a registration is told, and differs from the end of the connection.
        client.send(b"", invalidate=region.descriptor.token, timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"")
        self.assertEqual(server.invalidated, region.descriptor.token)
        self.assertEqual(client.info().messages_sent, 4)
        client.close(timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"")
        self.assertIsNone(server.invalidated)

    def test_errors_of_the_system_have_their_number(self):
        with self.assertRaises(ConnectionRefusedError) as raised:
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT)
        self.assertEqual(raised.exception.errno, errno.ECONNREFUSED)
        with self.assertRaises(ConnectionRefusedError) as raised:
            asyncio.run(aio.connect("127.0.0.1:1"))
        self.assertEqual(raised.exception.errno, errno.ECONNREFUSED)
        with socket.create_server(("127.0.0.1", 0)) as taken, self.assertRaises(OSError) as raised:
            smbdirect.listen("127.0.0.1:%d" % taken.getsockname()[1])
        self.assertEqual(raised.exception.errno, errno.EADDRINUSE)
        with self.assertRaises(OSError) as raised:
            smbdirect.listen("203.0.113.1:0")
        self.assertEqual(raised.exception.errno, errno.EADDRNOTAVAIL)
        with self.assertRaises(smbdirect.Error) as raised:
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, transport="pigeon")
        self.assertIsNone(raised.exception.errno)


class Dropped(unittest.TestCase):
    """Objects of asyncio that nobody closes."""

    def test_dropped_objects_warn_and_close(self):
        async def drop():
            listener = await aio.listen("127.0.0.1:0")
            client = await aio.connect(listener.address)
            server = await listener.accept()
            await client.send(b"last")
            with self.assertWarns(ResourceWarning):
                del client
                gc.collect()
            self.assertEqual(await server.recv(), b"last")
            self.assertEqual(await server.recv(), b"")
            await server.close()
            with self.assertWarns(ResourceWarning):
                del listener
                gc.collect()

        asyncio.run(asyncio.wait_for(drop(), LIMIT))

    def test_connection_stays_while_a_coroutine_uses_it(self):
        async def use():
            listener = await aio.listen("127.0.0.1:0")
            client, server = await asyncio.gather(aio.connect(listener.address), listener.accept())
            region = client.register(100_000, write=True)
            writing = asyncio.ensure_future(server.write(region.descriptor, b"x" * 100_000))
            receiving = asyncio.ensure_future(server.recv())
            del server
            gc.collect()
            await writing
            await client.send(b"hello")
            self.assertEqual(await receiving, b"hello")
            self.assertEqual(await region.deregister(), b"x" * 100_000)
            await client.close()
            listener.close()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            asyncio.run(asyncio.wait_for(use(), LIMIT))
            gc.collect()

    def test_free_fails_what_is_outstanding_and_frees_descriptors(self):
        async def free():
            listener = await aio.listen("127.0.0.1:0")
            for turn in range(10):
                if turn == 5:
                    before = len(os.listdir("/proc/self/fd"))
                client = await aio.connect(listener.address)
                server = await listener.accept()
                region = server.register(1 << 20, read=True, write=True)
                works = [asyncio.ensure_future(client.write(region.descriptor, bytes(1 << 20))) for _ in range(8)]
                works += [asyncio.ensure_future(client.read(region.descriptor, 1 << 20)) for _ in range(8)]
                works.append(asyncio.ensure_future(client.recv()))
                await asyncio.sleep(0)
                client.free()
                for result in await asyncio.gather(*works, return_exceptions=True):
                    self.assertIsInstance(result, (smbdirect.Error, ValueError, bytes, type(None)))
                server.free()
            for _ in range(500):
                if len(os.listdir("/proc/self/fd")) <= before:
                    break
                await asyncio.sleep(0.01)
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)
            listener.close()

        asyncio.run(asyncio.wait_for(free(), LIMIT))


#: Programs that send COUNT messages of LENGTH bytes to the address in their arguments, and end.
ENDS = {
    "blocking": """
c = smbdirect.connect(address, timeout=30)
for i in range(count): c.send(bytes([i]) * length)
""",
    "sys.exit": """
c = smbdirect.connect(address, timeout=30)
for i in range(count): c.send(bytes([i]) * length)
sys.exit(0)
""",
    "free": """
c = smbdirect.connect(address, timeout=30)
for i in range(count): c.send(bytes([i]) * length)
c.free()
""",
    "exception": """
try:
    with smbdirect.connect(address, timeout=30) as c:
        for i in range(count): c.send(bytes([i]) * length)
        raise RuntimeError
except RuntimeError: pass
""",
    "thread": """
def work():
    c = smbdirect.connect(address, timeout=30)
    for i in range(count): c.send(bytes([i]) * length)
threading.Thread(target=work).start()
""",
    "stream": """
s = smbdirect.connect(address, timeout=30).stream()
for i in range(count): s.sendall(length.to_bytes(4, "big") + bytes([i]) * length)
""",
    "asyncio": """
async def main():
    c = await aio.connect(address)
    for i in range(count): await c.send(bytes([i]) * length)
asyncio.run(main())
""",
    "asyncio, kept": """
async def main():
    global c
    c = await aio.connect(address)
    for i in range(count): await c.send(bytes([i]) * length)
asyncio.run(main())
""",
    "Ctrl-C": """
c = smbdirect.connect(address, timeout=30)
for i in range(count): c.send(bytes([i]) * length)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(30)
""",
}


class Ends(unittest.TestCase):
    """What was reported as sent arrives, although the interpreter ends."""

    def start(self, program, address):
        imports = "import asyncio, os, signal, sys, threading, time, smbdirect\nfrom smbdirect import aio\n"
        values = f"address, count, length = {address!r}, {COUNT}, {LENGTH}\n"
        process = subprocess.Popen(
            [sys.executable, "-B", "-c", imports + values + program], stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(process.kill)
        return process

    def test_messages_arrive(self):
        # With few credits, messages wait at the other end when it ends.
        listener = smbdirect.listen("127.0.0.1:0", receive_credit_max=2)
        self.addCleanup(listener.close)
        for name, program in ENDS.items():
            process = self.start(program, listener.address)
            server = listener.accept(timeout=LIMIT)
            arrived = []
            with self.subTest(name):
                while message := server.recv(timeout=LIMIT):
                    self.assertEqual(message, message[:1] * LENGTH)
                    arrived.append(message[0])
                self.assertEqual(arrived, list(range(COUNT)))
                _, errors = process.communicate(timeout=LIMIT)
                status = -signal.SIGINT if name == "Ctrl-C" else 0
                self.assertEqual(process.returncode, status, errors)
            server.free()

    def test_memory_of_writes_outlives_everything(self):
        """The loop, the objects and the interpreter end with writes outstanding: the peer gets the data or nothing."""
        program = """
async def main():
    c = await aio.connect(address, max_read_write_size=1 << 23)
    d = smbdirect.Descriptor.decode(await c.recv())
    works = [asyncio.ensure_future(c.write(d, b"A" * 60000, i * 60000)) for i in range(100)]
    await asyncio.sleep(0)
asyncio.run(main())
junk = [b"B" * 60000 for _ in range(300)]
"""
        listener = smbdirect.listen("127.0.0.1:0", max_read_write_size=1 << 23)
        self.addCleanup(listener.close)
        for _ in range(3):
            process = self.start(program, listener.address)
            server = listener.accept(timeout=LIMIT)
            region = server.register(6_000_000, write=True)
            server.send(region.descriptor.encode())
            self.assertEqual(server.recv(timeout=LIMIT), b"")
            _, errors = process.communicate(timeout=LIMIT)
            self.assertEqual(process.returncode, 0, errors)
            self.assertLessEqual(set(region.deregister(timeout=LIMIT)), {0, ord("A")})
            server.free()

    def test_end_within_a_message_is_an_error(self):
        """A peer that is stopped grants no credits, and the sender ends the connection in the middle of a message."""
        program = """
c = smbdirect.connect(address)
assert c.recv() == b"whole"
print("received", file=sys.stderr, flush=True)
try:
    while True:
        assert len(c.recv()) == 1_000_000
except smbdirect.LostError:
    pass
for receive in (c.recv, lambda: c.recv_into(bytearray(10)), lambda: list(c), lambda: asyncio.run(again())):
    try:
        print(receive(), file=sys.stderr)
    except smbdirect.LostError:
        pass
"""
        again = """
async def again():
    connection = aio.Connection(c._pointer)
    c._pointer = None
    async for message in connection:
        print(message, file=sys.stderr)
"""
        listener = smbdirect.listen("127.0.0.1:0", credit_grant_timeout_ms=100)
        self.addCleanup(listener.close)
        process = self.start(again + program, listener.address)
        server = listener.accept(timeout=LIMIT)
        server.send(b"whole", timeout=LIMIT)
        self.assertEqual(process.stderr.readline(), "received\n")
        process.send_signal(signal.SIGSTOP)
        with self.assertRaisesRegex(smbdirect.TimedOutError, "credits"):
            while True:
                server.send(bytes(1_000_000), timeout=LIMIT)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, errors), (0, ""))
        server.free()

    def test_calls_work_at_the_end(self):
        """From Python 3.12 a function of atexit cannot start threads."""
        program = """
import atexit

async def both():
    async with aio.listen("127.0.0.1:0") as listener, aio.connect(listener.address) as client:
        server = await listener.accept()
        region = server.register(10, read=True, write=True)
        await client.write(region.descriptor, b"aio")
        await client.send(await client.read(region.descriptor, 3))
        assert await server.recv() == b"aio"
        server.free()

def last():
    listener = smbdirect.listen("127.0.0.1:0")
    client = smbdirect.connect(listener.address, timeout=5)
    server = listener.accept(timeout=5)
    region = server.register(10, read=True, write=True)
    client.write(region.descriptor, b"blocking", timeout=5)
    client.send(client.read(region.descriptor, 8, timeout=5))
    assert server.recv(timeout=5) == b"blocking"
    assert client.keepalive(timeout=5) > 0
    assert region.deregister(timeout=5) == b"blocking" + bytes(2)
    client.close(timeout=5)
    asyncio.run(both())
    print("all works", file=sys.stderr)

atexit.register(last)
"""
        process = self.start(program, "")
        _, errors = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, errors), (0, "all works\n"))


if __name__ == "__main__":
    unittest.main()
