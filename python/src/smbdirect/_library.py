"""libsmbdirect for ctypes: its structures, constants and functions.

The names are those of smbdirect.h, which describes them. SMBDIRECT_LIBRARY is the path of another library than
the one in this package or the one that is installed on the system.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

OK = 0
ERROR_INVALID = -1
ERROR_WOULD_BLOCK = -2
ERROR_TIMED_OUT = -3
ERROR_CLOSED = -4
ERROR_REFUSED = -5
ERROR_ADDRESS = -6
ERROR_IN_USE = -7
ERROR_PROTOCOL = -8
ERROR_LOST = -9
ERROR_ABORTED = -10
ERROR_TOO_LARGE = -11
ERROR_BUFFER_TOO_SMALL = -12
ERROR_RANGE = -13
ERROR_UNSUPPORTED = -14
ERROR_SYSTEM = -15
ERROR_INTERRUPTED = -18

ACCESS_REMOTE_READ = 1
ACCESS_REMOTE_WRITE = 2
ACCESS_REMOTE_INVALIDATE = 4

PROFILES = {"default": 0, "windows": 1, "linux": 2}

ADDRESS_LENGTH = 64


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("message", c_char * 252)]


class Option(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Settings(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("transport", c_char_p),
        ("send_credit_target", c_uint16),
        ("receive_credit_max", c_uint16),
        ("max_send_size", c_uint32),
        ("max_receive_size", c_uint32),
        ("max_fragmented_receive_size", c_uint32),
        ("max_read_write_size", c_uint32),
        ("keepalive_interval_ms", c_uint32),
        ("keepalive_response_timeout_ms", c_uint32),
        ("active_negotiation_timeout_ms", c_uint32),
        ("passive_negotiation_timeout_ms", c_uint32),
        ("busy_poll_us", c_uint32),
        ("options", POINTER(Option)),
        ("options_count", c_size_t),
    ]


class BufferDescriptor(ctypes.Structure):
    _fields_ = [("offset", c_uint64), ("token", c_uint32), ("length", c_uint32)]


class ConnectionInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("local_address", c_char * ADDRESS_LENGTH),
        ("remote_address", c_char * ADDRESS_LENGTH),
        ("max_send_size", c_uint32),
        ("max_receive_size", c_uint32),
        ("max_fragmented_send_size", c_uint32),
        ("max_fragmented_receive_size", c_uint32),
        ("max_read_write_size", c_uint32),
        ("send_credits", c_uint32),
        ("receive_credits", c_uint32),
        ("messages_sent", c_uint64),
        ("messages_received", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_received", c_uint64),
        ("reads", c_uint64),
        ("writes", c_uint64),
        ("bytes_read", c_uint64),
        ("bytes_written", c_uint64),
        ("regions", c_uint64),
    ]


class IoVec(ctypes.Structure):
    _fields_ = [("iov_base", c_void_p), ("iov_len", c_size_t)]


#: Is told that an operation is over: connection, error or None, buffer or None, user data. The error is copied, as
#: bytes: its code is negative and small, so that none of the four bytes before the text is 0.
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_void_p, c_void_p)

#: Returns whether the call that waits ends. Its argument, user data, is left out.
INTERRUPT = ctypes.CFUNCTYPE(c_int)

_FUNCTIONS = {
    "smbdirect_version": (c_char_p, []),
    "smbdirect_settings_init": (c_int32, [POINTER(Settings), c_size_t, c_int32]),
    "smbdirect_connect": (c_int32, [c_void_p, c_char_p, POINTER(Settings), c_int32, POINTER(c_void_p), POINTER(Error)]),
    "smbdirect_connect_start": (c_int32, [c_void_p, c_char_p, POINTER(Settings), POINTER(c_void_p), POINTER(Error)]),
    "smbdirect_connect_finish": (c_int32, [c_void_p, c_int32, POINTER(Error)]),
    "smbdirect_connection_free": (None, [c_void_p]),
    "smbdirect_get_fd": (c_int32, [c_void_p, POINTER(Error)]),
    "smbdirect_service": (c_int32, [c_void_p, POINTER(Error)]),
    "smbdirect_keepalive": (c_int32, [c_void_p, c_int32, POINTER(c_uint64), POINTER(Error)]),
    "smbdirect_close": (c_int32, [c_void_p, c_int32, POINTER(Error)]),
    "smbdirect_close_all": (c_int32, [c_int32]),
    "smbdirect_set_interrupt": (None, [INTERRUPT, c_void_p]),
    "smbdirect_abort": (c_int32, [c_void_p, POINTER(Error)]),
    "smbdirect_query": (c_int32, [c_void_p, POINTER(ConnectionInfo), POINTER(Error)]),
    "smbdirect_stream": (c_int32, [c_void_p, POINTER(c_int), POINTER(Error)]),
    "smbdirect_listen": (c_int32, [c_void_p, c_char_p, POINTER(Settings), POINTER(c_void_p), POINTER(Error)]),
    "smbdirect_accept": (c_int32, [c_void_p, c_int32, POINTER(c_void_p), POINTER(Error)]),
    "smbdirect_listener_get_fd": (c_int32, [c_void_p, POINTER(Error)]),
    "smbdirect_listener_address": (c_int32, [c_void_p, c_char_p, c_size_t, POINTER(Error)]),
    "smbdirect_listener_free": (None, [c_void_p]),
    "smbdirect_send": (c_int32, [c_void_p, POINTER(IoVec), c_int, c_int32, POINTER(Error)]),
    "smbdirect_send_and_invalidate": (
        c_int32,
        [c_void_p, POINTER(IoVec), c_int, c_uint32, c_int32, POINTER(Error)],
    ),
    "smbdirect_recv": (c_int64, [c_void_p, POINTER(IoVec), c_int, c_int32, POINTER(c_uint32), POINTER(Error)]),
    "smbdirect_recv_message": (c_int32, [c_void_p, c_int32, POINTER(c_void_p), POINTER(Error)]),
    "smbdirect_message_length": (c_size_t, [c_void_p]),
    "smbdirect_message_data": (c_void_p, [c_void_p]),
    "smbdirect_message_invalidated": (c_int32, [c_void_p, POINTER(c_uint32)]),
    "smbdirect_message_free": (None, [c_void_p]),
    "smbdirect_buffer_new": (c_void_p, [c_size_t]),
    "smbdirect_buffer_data": (c_void_p, [c_void_p]),
    "smbdirect_buffer_length": (c_size_t, [c_void_p]),
    "smbdirect_buffer_free": (None, [c_void_p]),
    "smbdirect_register": (
        c_int32,
        [c_void_p, POINTER(c_void_p), c_uint32, POINTER(c_void_p), POINTER(Error)],
    ),
    "smbdirect_region_descriptor": (c_int32, [c_void_p, POINTER(BufferDescriptor), POINTER(Error)]),
    "smbdirect_deregister": (c_int32, [c_void_p, c_int32, POINTER(c_void_p), POINTER(Error)]),
    "smbdirect_region_free": (None, [c_void_p]),
    "smbdirect_read": (
        c_int32,
        [c_void_p, POINTER(BufferDescriptor), c_size_t, c_uint64, c_void_p, c_size_t, c_int32, POINTER(Error)],
    ),
    "smbdirect_read_start": (
        c_int32,
        [c_void_p, POINTER(BufferDescriptor), c_size_t, c_uint64, POINTER(c_void_p), CALLBACK, c_void_p, POINTER(Error)],
    ),
    "smbdirect_write": (
        c_int32,
        [c_void_p, POINTER(BufferDescriptor), c_size_t, c_uint64, c_void_p, c_size_t, c_int32, POINTER(Error)],
    ),
    "smbdirect_write_start": (
        c_int32,
        [
            c_void_p,
            POINTER(BufferDescriptor),
            c_size_t,
            c_uint64,
            c_void_p,
            c_size_t,
            CALLBACK,
            c_void_p,
            POINTER(Error),
        ],
    ),
}


def _load() -> ctypes.CDLL:
    inside = Path(__file__).with_name("libsmbdirect.so")
    # The number is that of the interface, so that another one is not taken for this.
    installed = str(inside) if inside.exists() else "libsmbdirect.so.0"
    path = os.environ.get("SMBDIRECT_LIBRARY") or installed
    try:
        library = ctypes.CDLL(path, use_errno=True)
    except OSError as error:
        raise ImportError(
            f"libsmbdirect is missing ({error}): install the wheel or Debian's libsmbdirect0, or run "
            "crates/capi/install, or set SMBDIRECT_LIBRARY to its path"
        ) from None
    for function, (result, arguments) in _FUNCTIONS.items():
        if not hasattr(library, function):
            raise ImportError(
                f"{path} has no function {function}, so it is another library or an older libsmbdirect: install the "
                "version of this package, or set SMBDIRECT_LIBRARY to its path"
            )
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


library = _load()
