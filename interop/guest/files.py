"""Stores and fetches files with the Python SMB client smbprotocol, as any script would.

files.py SERVER USER PASSWORD FROM TO
"""

import os
import sys

import smbclient


def copy(source, destination):
    """Copies one open file to another, 1 MiB at a time."""
    while piece := source.read(1 << 20):
        destination.write(piece)


def main():
    server, user, password, source, destination = sys.argv[1:]
    smbclient.register_session(server, username=user, password=password)
    share = rf"\\{server}\share"
    names = sorted(os.listdir(source))
    for name in names:
        with open(os.path.join(source, name), "rb") as local:
            with smbclient.open_file(rf"{share}\{name}", mode="wb") as remote:
                copy(local, remote)
    listed = set(smbclient.listdir(share))
    missing = [name for name in names if name not in listed]
    if missing:
        sys.exit(f"not listed: {missing}")
    for name in names:
        with smbclient.open_file(rf"{share}\{name}", mode="rb") as remote:
            with open(os.path.join(destination, name), "wb") as local:
                copy(remote, local)


main()
