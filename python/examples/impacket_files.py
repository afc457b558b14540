"""The SMB client of impacket over SMB Direct: it works on a socket, and `Connection.stream` returns one.

    impacket_files.py SERVER[:PORT] SHARE USER FROM TO

Stores the files of the folder FROM on the share, lists them, and fetches them to the folder TO. The password is in
SMB_PASSWORD. Data goes in messages.
"""

import os
import sys
from unittest.mock import patch

import smbdirect
from impacket.nmb import NetBIOSTCPSession
from impacket.smbconnection import SMBConnection


def login(server, user, password):
    """Returns a session of impacket over SMB Direct. The connection has to be kept as long as it is used."""
    # The answer to a READ of Samba's largest size has to fit in a message.
    connection = smbdirect.connect(server, timeout=10, max_fragmented_receive_size=8 * 2**20 + 2**16)

    # impacket's SMB3 class takes a session with a socket, but then begins with message 1 instead of 0, which
    # Samba refuses. So the function that connects is replaced while the session is made.
    def stream(_self, _peer, _timeout=None):
        return connection.stream()

    host = server.rsplit(":", 1)[0]
    with patch.object(NetBIOSTCPSession, "_setup_connection", stream):
        smb = SMBConnection(host, host)
    smb.login(user, password)
    return connection, smb


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    server, share, user, source, destination = sys.argv[1:]
    connection, smb = login(server, user, os.environ["SMB_PASSWORD"])
    names = sorted(os.listdir(source))
    for name in names:
        with open(os.path.join(source, name), "rb") as local:
            smb.putFile(share, name, local.read)
    listed = {entry.get_longname() for entry in smb.listPath(share, "*")}
    if not listed.issuperset(names):
        sys.exit(f"not listed: {set(names) - listed}")
    for name in names:
        with open(os.path.join(destination, name), "wb") as local:
            smb.getFile(share, name, local.write)
    info = connection.info()
    print(f"sent {info.bytes_sent} B and received {info.bytes_received} B in messages of SMB Direct")
    smb.close()


if __name__ == "__main__":
    main()
