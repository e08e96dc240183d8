"""Writes the first bytes that a TLS client sends to a file: python3 record.py FILE COMMAND...

PORT in the command is replaced by the port of the listener, which reads until the client has been silent for a second
and then closes the connection. The client fails, which is intended. README.md lists the commands.
"""

import socket
import subprocess
import sys

path, command = sys.argv[1], sys.argv[2:]
with socket.create_server(("127.0.0.1", 0)) as listener:
    port = str(listener.getsockname()[1])
    null = subprocess.DEVNULL
    client = subprocess.Popen(
        [word.replace("PORT", port) for word in command], stdin=null, stdout=null, stderr=null
    )
    listener.settimeout(20)
    data = b""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(1)
        try:
            while part := connection.recv(65536):
                data += part
        except TimeoutError:
            pass
    client.kill()
    client.wait()
with open(path, "wb") as file:
    file.write(data)
