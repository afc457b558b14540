"""Negotiates SMB2 with a server through the Python package, with blocking calls and with asyncio.

negotiate.py SERVER[:PORT]
"""

import asyncio
import struct
import sys
import uuid

import smbdirect
from smbdirect import aio

DIALECTS = (0x0300, 0x0302)


def request():
    """Returns an SMB2 NEGOTIATE request ([MS-SMB2] 2.2.3)."""
    header = struct.pack("<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, bytes(16))
    body = struct.pack("<HHHHI16sQ", 36, len(DIALECTS), 1, 0, 0, uuid.uuid4().bytes, 0)
    return header + body + struct.pack(f"<{len(DIALECTS)}H", *DIALECTS)


def check(response):
    """Returns the dialect of a response, or ends the program."""
    protocol, size, _, status, command = struct.unpack_from("<4sHHIH", response)
    if (protocol, size, status, command) != (b"\xfeSMB", 64, 0, 0):
        sys.exit(f"not the response to NEGOTIATE: {response[:64].hex()}")
    _, _, dialect = struct.unpack_from("<HHH", response, 64)
    if dialect not in DIALECTS:
        sys.exit(f"dialect {dialect:#x}")
    return dialect


def blocking(address):
    """Negotiates, and asks for a keepalive."""
    with smbdirect.connect(address, timeout=10) as connection:
        # A message may have several pieces.
        whole = request()
        connection.send(whole[:64], whole[64:], timeout=10)
        dialect = check(connection.recv(timeout=10))
        round_trip = connection.keepalive(timeout=10)
        info = connection.info()
    return dialect, round_trip, info


async def concurrent(address):
    """Negotiates on two connections at the same time."""

    async def one():
        async with aio.connect(address) as connection:
            await connection.send(request())
            return check(await connection.recv())

    return await asyncio.wait_for(asyncio.gather(one(), one()), 30)


def main():
    address = sys.argv[1]
    dialect, round_trip, info = blocking(address)
    others = asyncio.run(concurrent(address))
    if set(others) != {dialect}:
        sys.exit(f"dialects {others}")
    print(
        f"SMB {dialect >> 8}.{dialect >> 4 & 15}.{dialect & 15}, keepalive in {round_trip * 1e6:.0f} us, "
        f"{info.max_fragmented_send_size} B a message, {info.send_credits} credits"
    )


main()
