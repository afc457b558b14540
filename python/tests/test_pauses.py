"""Tests of ends that pause: the other end waits, the memory stays within its bound, and every message arrives.

PAUSE_MS is the time of a pause, 1000 without it. With more than 5000 a pause is longer than the Send Credit Grant Timer,
which must not end a connection for it. packaging/test-wheel does so."""

import asyncio
import os
import sys
import threading
import time
import unittest

import smbdirect
from smbdirect import aio
from test_smbdirect import free_udp_port

PAUSE = int(os.environ.get("PAUSE_MS", "1000")) / 1000
LENGTHS = (1, 4096, 65_536, 1 << 20)
#: The buffer of the receiver counts 128 bytes more for each message.
RECEIVE_BUFFER, OVERHEAD = 8_404_992, 128
#: What a connection may add to the memory of the process: Config::receive_memory() of the default settings is 14.4
#: MiB, and the sender has copies of a message.
MEMORY_LIMIT_KIB = 24 << 10
#: Messages before the sender pauses, and after it.
COUNT = 40

PORT = free_udp_port()
TRANSPORTS = {"iwarp": {}, "roce": {"udp_port": PORT, "peer_udp_port": PORT}}
CASES = [(transport, length) for transport in TRANSPORTS for length in LENGTHS]


def status_kib(name):
    """Returns a line of /proc/self/status, which is in KiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


class Sent:
    """The messages of a sender. Each has bytes that tell its number."""

    def __init__(self, length, pauses):
        self.length, self.pauses = length, pauses
        self.number, self.stops = 0, False

    def is_over(self):
        return self.stops or self.pauses and self.number == 2 * COUNT

    def is_pause(self):
        return self.pauses and self.number == COUNT

    def message(self, number):
        return bytes([number % 256]) * self.length

    def waits(self, before):
        """Returns whether the sender has sent something, and nothing since `before`."""
        return self.number > 0 and self.number == before

    def check(self, more):
        """Checks that what the sender has sent during the pause is within the limit."""
        if self.number * (self.length + OVERHEAD) > RECEIVE_BUFFER + more * (1 << 20):
            raise AssertionError(f"{self.number} messages of {self.length} bytes wait")


class Pauses(unittest.TestCase):
    def setUp(self):
        self.memory = status_kib("VmRSS") if sys.platform == "linux" else None

    def tearDown(self):
        if self.memory is not None:
            more = status_kib("VmHWM") - self.memory
            print(f"{self.id()}: {len(CASES)} connections pause {PAUSE} s, {more} KiB more", file=sys.stderr)
            self.assertLessEqual(more, len(CASES) * MEMORY_LIMIT_KIB)

    def blocking(self, pauses, is_stream):
        failures = []

        def send(client, sent):
            stream = client.stream() if is_stream else None
            while not sent.is_over():
                message = sent.message(sent.number)
                if stream is None:
                    if sent.is_pause():
                        time.sleep(PAUSE)
                    client.send(message)
                else:
                    frame = len(message).to_bytes(4, "big") + message
                    half = len(frame) // 2
                    stream.sendall(frame[:half])
                    if sent.is_pause():
                        time.sleep(PAUSE)
                    stream.sendall(frame[half:])
                sent.number += 1
            if stream is None:
                client.close()
            else:
                stream.close()

        def receive(server, sent):
            if not pauses:
                before = None
                while not sent.waits(before):
                    before = sent.number
                    time.sleep(0.5)
                time.sleep(PAUSE)
                sent.check(4 if is_stream else 2)
                sent.stops = True
            count = 0
            for message in server:
                if message != sent.message(count):
                    raise AssertionError(f"message {count} of {sent.length} bytes")
                count += 1
            ends.append(count)

        def guarded(function, *arguments):
            try:
                function(*arguments)
            except BaseException as error:
                failures.append(error)

        ends, expected, threads, connections = [], [], [], []
        for transport, length in CASES:
            with smbdirect.listen("127.0.0.1:0", transport=transport, **TRANSPORTS[transport]) as listener:
                client = smbdirect.connect(listener.address, transport=transport, **TRANSPORTS[transport])
                server = listener.accept()
            connections += [client, server]
            sent = Sent(length, pauses)
            expected.append(sent)
            for function, end in ((send, client), (receive, server)):
                threads.append(threading.Thread(target=guarded, args=(function, end, sent)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.free()
        self.assertEqual(failures, [])
        self.assertEqual(sorted(ends), sorted(sent.number for sent in expected))

    def test_blocking_receiver(self):
        self.blocking(False, False)

    def test_blocking_sender(self):
        self.blocking(True, False)

    def test_stream_receiver(self):
        self.blocking(False, True)

    def test_stream_sender(self):
        self.blocking(True, True)

    def asynchronous(self, pauses):
        async def send(client, sent):
            while not sent.is_over():
                if sent.is_pause():
                    await asyncio.sleep(PAUSE)
                await client.send(sent.message(sent.number))
                sent.number += 1
                # A send that need not wait does not give way to others.
                await asyncio.sleep(0)
            await client.close()

        async def receive(server, sent):
            if not pauses:
                before = None
                while not sent.waits(before):
                    before = sent.number
                    await asyncio.sleep(0.5)
                await asyncio.sleep(PAUSE)
                sent.check(2)
                sent.stops = True
            count = 0
            async for message in server:
                self.assertEqual(message, sent.message(count))
                count += 1
            self.assertEqual(count, sent.number)
            await server.close()

        async def case(transport, length):
            async with aio.listen("127.0.0.1:0", transport=transport, **TRANSPORTS[transport]) as listener:
                client, server = await asyncio.gather(
                    aio.connect(listener.address, transport=transport, **TRANSPORTS[transport]), listener.accept()
                )
            sent = Sent(length, pauses)
            await asyncio.gather(send(client, sent), receive(server, sent))

        async def all_cases():
            await asyncio.gather(*(case(*one) for one in CASES))

        asyncio.run(all_cases())

    def test_asyncio_receiver(self):
        self.asynchronous(False)

    def test_asyncio_sender(self):
        self.asynchronous(True)


if __name__ == "__main__":
    unittest.main()
