"""Messages with asyncio: `echo.py listen ADDRESS` returns each message, and `echo.py connect ADDRESS` sends some and
compares what comes back. A third argument is the transport. The examples in C and Rust do the same, so each end works
with any of them, and with `smbdirect listen --echo`."""

import asyncio
import sys

from smbdirect import aio


async def serve(connection):
    count = 0
    async with connection:
        async for message in connection:
            await connection.send(message)
            count += 1
    print(f"returned {count} messages")


async def listen(address, transport="iwarp"):
    async with aio.listen(address, transport=transport) as listener:
        print(f"listening on {listener.address}", flush=True)
        await serve(await listener.accept())


async def connect(address, transport="iwarp"):
    async with aio.connect(address, transport=transport) as connection:
        for length in (1, 64, 1364, 8192, 100_000, 1_000_000):
            message = bytes(at * 31 // 7 % 256 for at in range(length))
            await connection.send(message)
            if await connection.recv() != message:
                sys.exit(f"the echo of {length} bytes differs")
            print(f"{length} bytes came back")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("listen", "connect"):
        sys.exit("usage: echo.py listen|connect ADDRESS [TRANSPORT]")
    asyncio.run({"listen": listen, "connect": connect}[sys.argv[1]](*sys.argv[2:]))
