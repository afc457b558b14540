"""Tests of memory that is registered and returned without a copy, while it is viewed."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import unittest

import smbdirect
from test_lifetime import LENGTH, LIMIT, in_thread, pair


@contextlib.contextmanager
def before_line(number, functions, act):
    """Acts before the line with this number of those that the functions execute, as another thread might. Gives a list
    that is not empty if there was such a line."""
    lines, reached, before = 0, [], sys.gettrace()

    def line(_frame, event, _argument):
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == number:
                reached.append(True)
                act()
        return line

    sys.settrace(lambda frame, _event, _argument: line if frame.f_code.co_name in functions else None)
    try:
        yield reached
    finally:
        sys.settrace(before)


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
            # On a busy machine all of them may fail until nobody views the buffer any more.
            while time.monotonic() < end or (count == 0 and time.monotonic() < end + LIMIT):
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

    def test_buffer_is_viewed_in_the_middle_of_its_registration(self):
        live, _server = pair(self)
        freed, _other = pair(self)
        smbdirect._common.library.smbdirect_connection_free(freed._pointer)
        for connection in (live, freed):
            at, viewed, is_line = 0, 0, True
            while is_line:
                at += 1
                buffer, views, error = smbdirect.Buffer(b"content"), [], None

                def view():
                    try:
                        views.append(buffer.view())
                    except ValueError:
                        pass

                try:
                    with before_line(at, ("_register", "_hand_over", "_adopt"), view) as reached:
                        connection.register(buffer, read=True)
                except (BufferError, smbdirect.InvalidError) as raised:
                    error = raised
                is_line = bool(reached)
                if views:
                    viewed += 1
                    self.assertIsNotNone(error, at)
                    with self.assertRaises(BufferError):
                        connection.register(buffer, read=True)
                    self.assertEqual(bytes(views[0]), b"content")
                elif error is not None:
                    self.assertEqual(bytes(buffer.view()), b"content")
            self.assertGreater(viewed, 0)

    def test_memory_to_receive_into_is_not_moved(self):
        at, is_line = 0, True
        while is_line:
            at += 1
            buffer = bytearray(1000)

            def shrink():
                try:
                    del buffer[10:]
                except BufferError:
                    pass

            with before_line(at, ("room",), shrink) as reached:
                array, held = smbdirect._common.room(buffer)
            is_line = bool(reached)
            self.assertEqual(array[0].iov_len, len(buffer), at)
            del held

    def test_signal_handlers_and_finalizers_may_view(self):
        """They run in the middle of a call on the same buffer."""
        buffer, end = smbdirect.Buffer(b"content"), time.monotonic() + 0.5

        def handler(*_):
            self.assertEqual(bytes(buffer.view()), b"content")

        before = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        while time.monotonic() < end:
            self.assertEqual(bytes(buffer.view()), b"content")

    def test_forked_process_views(self):
        buffer, end = smbdirect.Buffer(b"content"), time.monotonic() + 1

        def view():
            while time.monotonic() < end:
                buffer.view()

        viewing = [in_thread(view) for _ in range(2)]
        while time.monotonic() < end:
            child = os.fork()
            if child == 0:
                signal.alarm(LIMIT)
                try:
                    # The library says that a forked process cannot use its handles.
                    buffer.view()
                finally:
                    os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        for result in viewing:
            self.assertIsNone(result())


if __name__ == "__main__":
    unittest.main()
