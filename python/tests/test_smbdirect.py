"""Tests of the Python interface, with both ends in this process. Each has a limit of time."""

import asyncio
import ctypes.util
import gc
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

import smbdirect
from smbdirect import aio


def free_udp_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


#: The transports that every machine has, and their settings. RoCE has a UDP port of its own, which no other test uses.
UDP_PORT = free_udp_port()
TRANSPORTS = {"iwarp": {}, "loopback": {}, "roce": {"udp_port": UDP_PORT, "peer_udp_port": UDP_PORT}}
#: Only a fault takes that long.
LIMIT = 240


def content(length):
    """Returns bytes that are not all the same."""
    return bytes(i * 31 // 7 % 256 for i in range(length))


class Blocking(unittest.TestCase):
    def pair(self, transport, **changes):
        """Returns both ends of a connection."""
        changes = {**TRANSPORTS[transport], **changes}
        listener = smbdirect.listen("127.0.0.1:0", transport=transport, **changes)
        self.addCleanup(listener.close)
        client = smbdirect.connect(listener.address, transport=transport, timeout=LIMIT, **changes)
        server = listener.accept(timeout=LIMIT)
        self.addCleanup(client.close, LIMIT)
        self.addCleanup(server.close, LIMIT)
        return client, server

    def test_messages_arrive_whole_and_in_order(self):
        for transport in TRANSPORTS:
            client, server = self.pair(transport)
            messages = [content(length) for length in (1, 1364, 100_000, 1_000_000)]
            sending = threading.Thread(target=lambda: [client.send(m[:1], m[1:], timeout=LIMIT) for m in messages])
            sending.start()
            for message in messages:
                self.assertEqual(server.recv(timeout=LIMIT), message)
            sending.join()
            self.assertEqual(client.info().messages_sent, 4)
            self.assertGreater(client.keepalive(timeout=LIMIT), 0)

    def test_remote_memory(self):
        for transport in TRANSPORTS:
            client, server = self.pair(transport)
            region = server.register(content(200_000), read=True, write=True)
            server.send(region.descriptor.encode())
            descriptor = smbdirect.Descriptor.decode(client.recv(timeout=LIMIT))
            self.assertEqual(client.read(descriptor, 1000, offset=70_000, timeout=LIMIT), content(71_000)[70_000:])
            client.write(descriptor, bytearray(b"new"), offset=5, timeout=LIMIT)
            client.send(b"done", invalidate=descriptor.token)
            self.assertEqual(server.recv(timeout=LIMIT), b"done")
            self.assertEqual(server.invalidated, descriptor.token)
            self.assertEqual(region.deregister(timeout=LIMIT)[:10], content(5) + b"new" + content(10)[8:])
            with self.assertRaises(ValueError):
                region.deregister()
            with self.assertRaises(smbdirect.InvalidError):
                client.read([], 1, timeout=LIMIT)

    def test_ends(self):
        client, server = self.pair("iwarp")
        with self.assertRaises(TimeoutError):
            client.recv(timeout=0)
        with self.assertRaises(smbdirect.TimedOutError):
            client.recv(timeout=0.02)
        client.send(b"last")
        client.close(timeout=LIMIT)
        self.assertEqual(server.recv(timeout=LIMIT), b"last")
        self.assertEqual(server.recv(timeout=LIMIT), b"")
        with self.assertRaises(ConnectionError):
            server.send(b"too late", timeout=LIMIT)
        with self.assertRaises(ValueError):
            client.send(b"freed")

    def test_errors(self):
        with self.assertRaises(ConnectionRefusedError) as raised:
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT)
        self.assertEqual(raised.exception.code, -5)
        # A time limit is never rounded to 0, which means another thing.
        with self.assertRaises(OSError):
            smbdirect.connect("127.0.0.1:1", timeout=0.00001)
        with self.assertRaises(smbdirect.InvalidError):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, max_send_size=1)
        with self.assertRaises(TypeError):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, speed=1)
        with self.assertRaises(ValueError):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, profile="solaris")
        with self.assertRaises(smbdirect.Error):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, transport="pigeon")

    def test_errors_name_the_address_and_what_to_try(self):
        with self.assertRaisesRegex(
            smbdirect.RefusedError, r"nothing listens on 127\.0\.0\.1:1 \(connection refused\); start"
        ):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = "127.0.0.1:%d" % silent.getsockname()[1]
            late = rf"{address} did not answer within 50\.0 ms; check the address"
            with self.assertRaisesRegex(smbdirect.TimedOutError, late):
                smbdirect.connect(address, timeout=0.05)
        with self.assertRaisesRegex(smbdirect.InvalidError, "ird is a number from 0 to 128, not \"200\""):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, ird=200)
        with self.assertRaisesRegex(smbdirect.InvalidError, "iwarp has .*, ird, .*, not \"udp_port\""):
            smbdirect.connect("127.0.0.1:1", timeout=LIMIT, udp_port=1)

    def test_ends_of_roce_with_different_settings_share_the_port(self):
        port = free_udp_port()
        common = {"transport": "roce", "udp_port": port, "peer_udp_port": port}
        listeners = [smbdirect.listen("127.0.0.1:0", accept_timeout_ms=ms, **common) for ms in (5000, 6000)]
        clients = []
        for listener in listeners:
            for limit in (7000, 8000):
                client = smbdirect.connect(listener.address, timeout=LIMIT, connect_timeout_ms=limit, **common)
                self.assertEqual(client.info().local_address, f"127.0.0.1:{port}")
                server = listener.accept(timeout=LIMIT)
                client.send(b"content")
                self.assertEqual(server.recv(timeout=LIMIT), b"content")
                clients += [client, server]
        for end in clients + listeners:
            end.close()

    def test_settings_of_a_transport_are_those_of_the_library(self):
        known = set()
        for transport, other in (("iwarp", {"udp_port": 1}), ("roce", {"crc": "off"})):
            with self.assertRaises(smbdirect.InvalidError) as raised:
                smbdirect.connect("127.0.0.1:1", transport=transport, timeout=LIMIT, **other)
            names = str(raised.exception).split(" has ")[1].split(", not ")[0].split(", ")
            known.update(names)
            for name in names:
                value = {"crc": "off", "fpdu_alignment": "runs", "send_buffer": "system", "congestion_control": "reno",
                         "fall_back": False, "startup_probe": True, "revision": 1, "path_mtu": 1024,
                         "udp_port": UDP_PORT, "peer_udp_port": UDP_PORT}.get(name, 100)
                changes = {**TRANSPORTS[transport], name: value}
                with self.assertRaises(smbdirect.RefusedError, msg=name):
                    smbdirect.connect("127.0.0.1:1", transport=transport, timeout=LIMIT, **changes)
        of_library = {field[0] for field in smbdirect._common.c.Settings._fields_}
        self.assertEqual(known, set(smbdirect.Settings.__annotations__) - of_library)

    def test_text_is_no_message(self):
        client, server = self.pair("loopback")
        with self.assertRaisesRegex(TypeError, "such as bytes, bytearray or memoryview, not str; encode it"):
            client.send("text")
        with self.assertRaisesRegex(TypeError, "a bytes-like object is needed.*, not int$"):
            client.send(1)
        with self.assertRaisesRegex(TypeError, "a writable buffer is needed, such as a bytearray, not bytes"):
            server.recv_into(bytes(8))

    def test_receive_into_memory(self):
        for transport in TRANSPORTS:
            client, server = self.pair(transport)
            client.send(content(1000))
            room = bytearray(500)
            with self.assertRaisesRegex(smbdirect.InvalidError, "1000 bytes"):
                server.recv_into(room, timeout=LIMIT)
            try:
                server.recv_into(room, timeout=LIMIT)
            except smbdirect.InvalidError:
                # The buffer may be moved while the error is handled.
                room.extend(bytes(1000))
            self.assertEqual(server.recv_into(room, timeout=LIMIT), 1000)
            client.send(content(1000))
            room = bytearray(1500)
            self.assertEqual(server.recv_into(room, timeout=LIMIT), 1000)
            self.assertEqual(room, content(1000) + bytes(500))
            client.send(content(10))
            self.assertEqual(server.recv_into(memoryview(room)[5:], timeout=LIMIT), 10)
            self.assertEqual(room[:20], content(5) + content(10) + content(20)[15:])
            with self.assertRaises(smbdirect.TimedOutError):
                server.recv_into(room, timeout=0)
            client.close(timeout=LIMIT)
            self.assertEqual(server.recv_into(room, timeout=LIMIT), 0)

    def test_library_that_is_missing_or_another_one(self):
        def imported(library):
            return subprocess.run(
                [sys.executable, "-B", "-c", "import smbdirect"],
                env={**os.environ, "SMBDIRECT_LIBRARY": library},
                capture_output=True,
                text=True,
            )

        told = imported("/nowhere/libsmbdirect.so").stderr
        self.assertRegex(told, "ImportError: libsmbdirect is missing .*: install the wheel")
        other = ctypes.util.find_library("c") or sys.executable
        self.assertRegex(imported(other).stderr, "ImportError: .* has no function .*: install the version")
        # An empty value is none: the library beside the package, or that of the system.
        done = imported("")
        self.assertTrue(done.returncode == 0 or "ImportError: libsmbdirect is missing" in done.stderr, done.stderr)

    def test_versions(self):
        library = smbdirect._common.library.smbdirect_version().decode()
        self.assertEqual(smbdirect.__version__, library)

    def test_stream_has_frames_of_smb(self):
        client, server = self.pair("loopback")
        stream = client.stream()
        stream.settimeout(LIMIT)
        with stream:
            stream.sendall(struct.pack(">I", 5) + b"hello")
            self.assertEqual(server.recv(timeout=LIMIT), b"hello")
            server.send(b"hi")
            self.assertEqual(stream.recv(6, socket.MSG_WAITALL), struct.pack(">I", 2) + b"hi")
        self.assertEqual(server.recv(timeout=LIMIT), b"")


class Asyncio(unittest.TestCase):
    def test_callbacks_run_no_python_code(self):
        """An exception that the handler of a signal raises in a callback would be lost, with the result."""
        entered, over = [], []
        service = aio.library.smbdirect_service

        def watched(*arguments):
            sys.setprofile(lambda frame, event, _: entered.append(frame) if event == "call" else None)
            try:
                over.append(service(*arguments))
            finally:
                sys.setprofile(None)
            return over[-1]

        async def operations():
            client, server, listener = await self.pair("iwarp")
            region = server.register(100_000, read=True, write=True)
            await client.write(region.descriptor, b"new")
            self.assertEqual(await client.read(region.descriptor, 5), b"new\0\0")
            region.free()
            with self.assertRaises(smbdirect.Error) as caught:
                await client.read(region.descriptor, 5)
            self.assertLess(caught.exception.code, 0)
            self.assertIsNone(caught.exception.errno)
            self.assertNotEqual(str(caught.exception), "")
            for end in (client, server, listener):
                end.close() if end is listener else end.free()

        with unittest.mock.patch.object(aio.library, "smbdirect_service", watched):
            self.run_limited(operations())
        self.assertEqual(sum(over), 3)
        self.assertEqual(entered, [])

    def run_limited(self, coroutine):
        """Runs a coroutine with the limit of time, and frees what it leaves."""
        asyncio.run(asyncio.wait_for(coroutine, LIMIT))
        gc.collect()

    async def pair(self, transport):
        """Returns both ends of a connection and their listener."""
        changes = TRANSPORTS[transport]
        listener = await aio.listen("127.0.0.1:0", transport=transport, **changes)
        client, server = await asyncio.gather(
            aio.connect(listener.address, transport=transport, **changes), listener.accept()
        )
        return client, server, listener

    def test_echo_of_many_messages(self):
        async def echo(transport):
            client, server, listener = await self.pair(transport)

            async def serve():
                async for message in server:
                    await server.send(message)

            async def ask():
                sent = [content(length) for length in range(1, 20_000, 100)]

                async def send_all():
                    for message in sent:
                        await client.send(message)

                sending = asyncio.ensure_future(send_all())
                for message in sent:
                    self.assertEqual(await client.recv(), message)
                await sending
                await client.close()

            await asyncio.gather(serve(), ask())
            await server.close()
            listener.close()

        for transport in TRANSPORTS:
            self.run_limited(echo(transport))

    def test_remote_memory(self):
        async def transfer(transport):
            client, server, listener = await self.pair(transport)
            region = server.register(100_000, write=True, read=True)
            data = content(100_000)
            await client.write(region.descriptor, data)
            pieces = await asyncio.gather(
                *(client.read(region.descriptor, 10_000, offset) for offset in range(0, 100_000, 10_000))
            )
            self.assertEqual(b"".join(pieces), data)
            with self.assertRaises(smbdirect.InvalidError):
                await client.write(region.descriptor, data, offset=1)
            self.assertEqual(await region.deregister(), data)
            await client.close()
            await server.close()
            listener.close()

        for transport in TRANSPORTS:
            self.run_limited(transfer(transport))

    def test_cancelled_receive_loses_no_message(self):
        async def cancel():
            client, server, listener = await self.pair("iwarp")
            for number in range(20):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(server.recv(), 0.001)
                await client.send(bytes([number]))
                self.assertEqual(await server.recv(), bytes([number]))
            await client.close()
            await server.close()
            listener.close()

        self.run_limited(cancel())

    def test_refused_and_aborted(self):
        async def refuse():
            with self.assertRaises(smbdirect.RefusedError):
                await aio.connect("127.0.0.1:1")
            client, server, listener = await self.pair("iwarp")
            receiving = asyncio.ensure_future(client.recv())
            await asyncio.sleep(0.01)
            server.abort()
            with self.assertRaises(ConnectionError):
                await receiving
            client.free()
            server.free()
            listener.close()

        self.run_limited(refuse())

    def test_waiting_takes_no_time_of_the_processor(self):
        async def wait():
            listener = await aio.listen("127.0.0.1:0")
            clients = [await aio.connect(listener.address) for _ in range(3)]
            server = await listener.accept()
            # Two connections wait to be accepted.
            begun = time.thread_time()
            await asyncio.sleep(0.5)
            self.assertLess(time.thread_time() - begun, 0.1)
            # They are not lost.
            servers = [server, await listener.accept(), await listener.accept()]
            accepting = asyncio.ensure_future(listener.accept())
            await asyncio.sleep(0.01)
            clients.append(await aio.connect(listener.address))
            servers.append(await accepting)
            for connection in clients + servers:
                connection.free()
            listener.close()

        self.run_limited(wait())

    def test_opening_is_a_context_manager_and_a_coroutine(self):
        async def use(transport):
            changes = TRANSPORTS[transport]
            async with aio.listen("127.0.0.1:0", transport=transport, **changes) as listener:
                connecting = asyncio.create_task(aio.connect(listener.address, transport=transport, **changes))
                server = await listener.accept()
                async with await connecting as client, server:
                    await client.send(b"hello")
                    room = bytearray(10)
                    self.assertEqual(await server.recv_into(room), 5)
                    self.assertEqual(room, b"hello" + bytes(5))
                async with aio.connect(listener.address, transport=transport, **changes) as client:
                    async with await listener.accept() as server:
                        await server.send(b"hi")
                        self.assertEqual(await asyncio.wait_for(client.recv(), LIMIT), b"hi")
                        region = server.register(smbdirect.Buffer(b"content"), read=True)
                        self.assertEqual(await client.read(region.descriptor, 7), b"content")
                        self.assertEqual(bytes((await region.deregister_buffer()).view()), b"content")
            self.assertIsNone(listener._pointer)
            with self.assertRaises(smbdirect.RefusedError):
                async with aio.connect("127.0.0.1:1"):
                    pass

        for transport in TRANSPORTS:
            self.run_limited(use(transport))


if __name__ == "__main__":
    unittest.main()
