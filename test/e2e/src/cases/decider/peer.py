"""Servers of redirected connections, and their clients in the guest.

peer.py serve PORT PATH NOTES           serves TCP port PORT of the loopback and the Unix socket PATH; notes ends in a file
peer.py MODE ADDRESS PORT [MEBIBYTES]   connects, and prints "ok" or what differs
"""

import hashlib
import random
import socket
import struct
import sys
import threading

MEBIBYTE = 1 << 20


def content(seed, mebibytes):
    """The parts of a stream; each MiB begins with its number."""
    part = bytearray(random.Random(seed).randbytes(MEBIBYTE))
    for number in range(mebibytes):
        part[:8] = number.to_bytes(8, "big")
        yield part


def send(connection, seed, mebibytes, hashes):
    """Sends a stream, and appends its hash to a list."""
    total = hashlib.sha256()
    for part in content(seed, mebibytes):
        connection.sendall(part)
        total.update(part)
    hashes.append(total.hexdigest())


def receive(connection, mebibytes):
    """Receives a stream, and returns its hash."""
    total = hashlib.sha256()
    left = mebibytes * MEBIBYTE
    while left and (part := connection.recv(min(left, MEBIBYTE))):
        total.update(part)
        left -= len(part)
    return total.hexdigest()


def swap(connection, ours, theirs, mebibytes):
    """Sends and receives a stream at the same time, and then both hashes. Returns the hashes of this end and of the other."""
    sent = []
    sender = threading.Thread(target=send, args=(connection, ours, mebibytes, sent))
    sender.start()
    received = receive(connection, mebibytes)
    sender.join()
    connection.sendall(f"{sent[0]} {received}\n".encode())
    connection.shutdown(socket.SHUT_WR)
    other = rest(connection).decode().split()
    return [sent[0], received], other[::-1]


def rest(connection):
    parts = []
    while part := connection.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def line(connection):
    text = b""
    while not text.endswith(b"\n"):
        text += connection.recv(1)
    return text.decode().split()


def serve(connection, name, note):
    words = line(connection)
    if words[0] == "GET":
        connection.sendall(f"HTTP/1.0 200 OK\r\n\r\nfrom {name}".encode())
    elif words[0] == "swap":
        swap(connection, 2, 1, int(words[1]))
    elif words[0] == "half-theirs":
        connection.sendall(b"theirs")
        connection.shutdown(socket.SHUT_WR)
        note(f"{name}: {rest(connection).decode()}")
    elif words[0] == "reset-theirs":
        # Closing with unread data is a reset for TCP and an error for Unix sockets.
        connection.recv(1, socket.MSG_PEEK)
    elif words[0] == "reset-ours":
        connection.sendall(b"x")
        try:
            rest(connection)
            note(f"{name}: end")
        except ConnectionResetError:
            note(f"{name}: reset")
    elif words[0] == "held":
        connection.sendall(b"x")
        rest(connection)
    connection.close()


def client(mode, connection, mebibytes):
    connection.settimeout(60)
    connection.sendall(f"{mode} {mebibytes}\n".encode())
    if mode == "swap":
        ours, theirs = swap(connection, 1, 2, mebibytes)
        return "ok" if ours == theirs else f"{ours} here, {theirs} at the server"
    if mode == "half-theirs":
        got = rest(connection)
        connection.sendall(b"after")
        connection.shutdown(socket.SHUT_WR)
        return "ok" if got == b"theirs" else repr(got)
    if mode == "reset-theirs":
        connection.sendall(b"unread")
        try:
            return repr(rest(connection))
        except ConnectionResetError:
            return "ok"
    if mode == "reset-ours":
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        return "ok"
    if mode == "held":
        connection.recv(1)
        print("held", flush=True)
        try:
            rest(connection)
        except ConnectionResetError:
            pass
        return "ended"
    return f"unknown mode {mode}"


def refused(address, port):
    try:
        with socket.create_connection((address, port), 10) as connection:
            # The host's connect of a redirected connection may fail after the guest's has succeeded.
            return repr(connection.recv(1))
    except (ConnectionRefusedError, ConnectionResetError):
        return "ok"


def main(words):
    if words[0] == "refused":
        print(refused(words[1], int(words[2])), flush=True)
        return
    if words[0] != "serve":
        mode, address, port, mebibytes = *words[:3], words[3] if len(words) > 3 else 0
        connection = socket.create_connection((address, int(port)))
        print(client(mode, connection, int(mebibytes)), flush=True)
        return
    tcp = socket.create_server(("127.0.0.1", int(words[1])))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(words[2])
    unix.listen()

    def note(text):
        with open(words[3], "a") as notes:
            print(text, file=notes)

    def accept(listener, name):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, name, note), daemon=True).start()

    threading.Thread(target=accept, args=(tcp, words[1]), daemon=True).start()
    print("listening", flush=True)
    accept(unix, words[2])


main(sys.argv[1:])
