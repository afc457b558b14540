"""Runs both ends of the example, as its users do."""

import subprocess
import sys

EXAMPLE = [sys.executable, "-B", "examples/echo.py"]

listener = subprocess.Popen([*EXAMPLE, "listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
try:
    address = listener.stdout.readline().split()[-1]
    said = subprocess.run([*EXAMPLE, "connect", address], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("came back") == 4, said.stdout
    rest, _ = listener.communicate(timeout=60)
    assert rest == "returned 4 messages\n" and listener.returncode == 0, rest
finally:
    listener.kill()
    listener.wait()
