"""Remote memory with blocking calls: `rdma.py listen ADDRESS` registers memory and sends its descriptor, and
`rdma.py connect ADDRESS` reads it by RDMA Read, writes half of it by RDMA Write, and ends the registration. A third
argument is the transport. The examples in C and Rust do the same, so each end works with any of them; the connecting
end also uses the memory of `smbdirect listen --memory`."""

import sys

import smbdirect

LENGTH = 1 << 20


def listen(address, transport="iwarp"):
    with smbdirect.listen(address, transport=transport) as listener:
        print(f"listening on {listener.address}", flush=True)
        connection = listener.accept(timeout=30)
    with connection:
        region = connection.register(b"a" * LENGTH, read=True, write=True)
        connection.send(region.descriptor.encode())
        # The data of a write is in place before the message that follows it arrives.
        connection.recv(timeout=30)
        if connection.invalidated != region.descriptor.token:
            sys.exit(f"the message ended token {connection.invalidated}")
        if region.deregister() != b"a" * (LENGTH // 2) + b"b" * (LENGTH // 2):
            sys.exit("the memory differs")
        print(f"the peer wrote half of {LENGTH} bytes and ended its access")


def connect(address, transport="iwarp"):
    with smbdirect.connect(address, transport=transport, timeout=10) as connection:
        memory = smbdirect.Descriptor.decode(connection.recv(timeout=30))
        half = memory.length // 2
        before = connection.read(memory, memory.length, timeout=30)
        written = b"b" * (memory.length - half)
        connection.write(memory, written, offset=half, timeout=30)
        # The read follows the write, so it finds what was written.
        if connection.read(memory, memory.length, timeout=30) != before[:half] + written:
            sys.exit("the memory has other bytes than were written")
        # Beyond the descriptor the library refuses a transfer, and the connection lives on.
        try:
            connection.read(memory, memory.length, offset=1, timeout=30)
            sys.exit("a read beyond the memory succeeded")
        except smbdirect.InvalidError:
            pass
        connection.send(b"done", invalidate=memory.token)
        print(f"read {memory.length} bytes and wrote {len(written)}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("listen", "connect"):
        sys.exit("usage: rdma.py listen|connect ADDRESS [TRANSPORT]")
    {"listen": listen, "connect": connect}[sys.argv[1]](*sys.argv[2:])
