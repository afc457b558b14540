"""Uses a share with one of the SMB clients for Python, as any script would, and prints how each step ended.

clients.py CLIENT SERVER SHARE USER PASSWORD
"""

import io
import os
import random
import sys

SIZES = (0, 1, 4095, 65537, 1 << 20, 3145729)


class Smbprotocol:
    def __init__(self, server, share, user, password):
        import smbclient

        smbclient.register_session(server, username=user, password=password)
        self.client, self.share = smbclient, rf"\\{server}\{share}"

    def path(self, name):
        return rf"{self.share}\{name}"

    def sizes(self):
        return {entry.name: entry.stat().st_size for entry in self.client.scandir(self.share)}

    def write(self, name, data):
        with self.client.open_file(self.path(name), mode="wb") as file:
            file.write(data)

    def read(self, name):
        with self.client.open_file(self.path(name), mode="rb") as file:
            return file.read()

    def rename(self, name, other):
        self.client.rename(self.path(name), self.path(other))

    def delete(self, name):
        self.client.remove(self.path(name))


class Impacket:
    def __init__(self, server, share, user, password):
        from impacket.smbconnection import SMBConnection

        self.client, self.share = SMBConnection(server, server), share
        self.client.login(user, password)

    def sizes(self):
        files = [file for file in self.client.listPath(self.share, "*") if not file.is_directory()]
        return {file.get_longname(): file.get_filesize() for file in files}

    def write(self, name, data):
        self.client.putFile(self.share, name, io.BytesIO(data).read)

    def read(self, name):
        data = io.BytesIO()
        self.client.getFile(self.share, name, data.write)
        return data.getvalue()

    def rename(self, name, other):
        self.client.rename(self.share, name, other)

    def delete(self, name):
        self.client.deleteFile(self.share, name)


class Pysmb:
    def __init__(self, server, share, user, password):
        from smb.SMBConnection import SMBConnection

        self.client, self.share = SMBConnection(user, password, "client", server, is_direct_tcp=True), share
        if not self.client.connect(server, 445):
            raise PermissionError("the login is refused")

    def sizes(self):
        files = [file for file in self.client.listPath(self.share, "/") if not file.isDirectory]
        return {file.filename: file.file_size for file in files}

    def write(self, name, data):
        self.client.storeFile(self.share, name, io.BytesIO(data))

    def read(self, name):
        data = io.BytesIO()
        self.client.retrieveFile(self.share, name, data)
        return data.getvalue()

    def rename(self, name, other):
        self.client.rename(self.share, name, other)

    def delete(self, name):
        self.client.deleteFiles(self.share, name)


def step(name, does):
    """Prints the name of a step and how it ended. Returns what it returned, or None if it failed."""
    try:
        result = does()
    except Exception as error:
        print(name, type(error).__name__, flush=True)
        print(f"{name}: {error}", file=sys.stderr)
        return None
    print(name, "ok", flush=True)
    return result


def check(found, expected):
    """Raises an error if what came back is not what is expected."""
    if found != expected:
        raise ValueError(f"{str(found)[:200]} in place of {str(expected)[:200]}")


def main():
    client, *where = sys.argv[1:]
    client = step("connect", lambda: {"smbprotocol": Smbprotocol, "impacket": Impacket, "pysmb": Pysmb}[client](*where))
    if client is None:
        return
    files = {f"f{size}": random.Random(size).randbytes(size) for size in SIZES}
    for name, data in files.items():
        step(f"write-{name}", lambda: client.write(name, data))
    step("list", lambda: check(client.sizes(), {name: len(data) for name, data in files.items()}))
    for name, data in files.items():
        step(f"read-{name}", lambda: check(client.read(name), data))
    last, data = list(files.items())[-1]
    step("rename", lambda: client.rename(last, "renamed"))
    step("read-renamed", lambda: check(client.read("renamed"), data))
    for name in [*list(files)[:-1], "renamed"]:
        step(f"delete-{name}", lambda: client.delete(name))
    step("list-empty", lambda: check(client.sizes(), {}))


main()
# A client can leave a thread behind.
sys.stdout.flush()
os._exit(0)
