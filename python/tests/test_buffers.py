"""Tests of memory that is registered and returned without a copy, while it is viewed."""

import ctypes
import gc
import sys
import threading
import time
import unittest

import smbdirect
from test_lifetime import LENGTH, LIMIT, in_thread, pair


class Buffers(unittest.TestCase):
    def test_memory_moves_without_a_copy(self):
        client, server = pair(self)
        buffer = smbdirect.Buffer(LENGTH)
        with buffer.view() as view:
            view[:5] = b"hello"
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for _ in range(3):
            region = client.register(buffer, read=True, write=True)
            self.assertEqual(server.read(region.descriptor, 5), b"hello")
            server.write(region.descriptor, b"world", offset=LENGTH - 5)
            server.send(b"done")
            client.recv(timeout=LIMIT)
            buffer = region.deregister_buffer(timeout=LIMIT)
            with buffer.view() as view:
                self.assertEqual(len(view), len(buffer))
                self.assertEqual((bytes(view[:5]), bytes(view[-5:])), (b"hello", b"world"))
                self.assertEqual(ctypes.addressof(ctypes.c_char.from_buffer(view)), address)
        if sys.version_info >= (3, 12):
            self.assertEqual(memoryview(buffer)[:5], b"hello")

    def test_memory_that_is_viewed_is_not_registered(self):
        client, server = pair(self)
        buffer = smbdirect.Buffer(b"content")
        views = [buffer.view(), buffer.view()[2:], buffer.view().cast("c")]
        while views:
            with self.assertRaises(BufferError):
                client.register(buffer, read=True)
            views.pop()
        region = client.register(buffer, read=True)
        with self.assertRaises(ValueError):
            buffer.view()
        with self.assertRaises(ValueError):
            client.register(buffer, read=True)
        self.assertEqual(server.read(region.descriptor, 7), b"content")

    def test_buffer_stays_where_it_is_if_the_registration_fails(self):
        client, _server = pair(self)
        buffer = smbdirect.Buffer(b"content")
        client.abort()
        client.free()
        with self.assertRaises(ValueError):
            client.register(buffer, read=True)
        connection, _server = pair(self)
        smbdirect._common.library.smbdirect_connection_free(connection._pointer)
        with self.assertRaises(smbdirect.InvalidError):
            connection.register(buffer, read=True)
        self.assertEqual(bytes(buffer.view()), b"content")

    def test_views_outlive_everything_also_in_another_thread(self):
        client, server = pair(self)
        region = client.register(smbdirect.Buffer(b"x" * LENGTH), write=True)
        server.write(region.descriptor, b"y" * LENGTH)
        server.send(b"done")
        client.recv(timeout=LIMIT)
        buffer = region.deregister_buffer(timeout=LIMIT)
        view, reading = buffer.view(), threading.Event()

        def read(view):
            reading.set()
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                if bytes(view) != b"y" * LENGTH:
                    return False
            return True

        result = in_thread(lambda view=view: read(view))
        reading.wait(LIMIT)
        with self.assertRaises(BufferError):
            client.register(buffer, write=True)
        del buffer, view
        client.free()
        region.free()
        # Memory that were free would be taken for these.
        others = [smbdirect.Buffer(b"z" * LENGTH) for _ in range(20)]
        gc.collect()
        self.assertIs(result(), True)
        del others

    def test_threads_view_and_register_the_same_buffer(self):
        client, server = pair(self)
        buffers, errors, end = [smbdirect.Buffer(b"content")], [], time.monotonic() + 1

        def view():
            while time.monotonic() < end:
                try:
                    if bytes(buffers[0].view()) != b"content":
                        errors.append("content")
                except ValueError:
                    pass

        def register():
            count = 0
            while time.monotonic() < end:
                try:
                    region = client.register(buffers[0], read=True)
                except (BufferError, ValueError):
                    continue
                buffers[0] = region.deregister_buffer(timeout=LIMIT)
                count += 1
            return count

        threads = [in_thread(view), in_thread(view), in_thread(register), in_thread(register)]
        results = [thread() for thread in threads]
        self.assertEqual((results[:2], errors), ([None, None], []))
        self.assertGreater(sum(results[2:]), 0)


if __name__ == "__main__":
    unittest.main()
