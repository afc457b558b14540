"""Tests of the Python interface, with both ends in this process. Each has a limit of time."""

import asyncio
import gc
import socket
import struct
import threading
import time
import unittest

import smbdirect
from smbdirect import aio

TRANSPORTS = ("iwarp", "loopback")
LIMIT = 30


def content(length):
    """Returns bytes that are not all the same."""
    return bytes(i * 31 // 7 % 256 for i in range(length))


class Blocking(unittest.TestCase):
    def pair(self, transport, **changes):
        """Returns both ends of a connection."""
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
    def run_limited(self, coroutine):
        """Runs a coroutine with the limit of time, and frees what it leaves."""
        asyncio.run(asyncio.wait_for(coroutine, LIMIT))
        gc.collect()

    async def pair(self, transport):
        """Returns both ends of a connection and their listener."""
        listener = await aio.listen("127.0.0.1:0", transport=transport)
        client, server = await asyncio.gather(
            aio.connect(listener.address, transport=transport), listener.accept()
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


if __name__ == "__main__":
    unittest.main()
