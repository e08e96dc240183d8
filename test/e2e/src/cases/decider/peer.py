"""Peers of redirected connections, and their clients in the guest.

peer.py serve PORT PATH NOTES     serves TCP port PORT of the loopback and the Unix socket PATH; notes ends in a file
peer.py MODE ADDRESS PORT         connects, and prints "ok" or what differs
"""

import hashlib
import random
import socket
import struct
import sys
import threading

LEN = 64 << 20


def content(seed):
    return random.Random(seed).randbytes(LEN)


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
        connection.sendall(hashlib.sha256(rest(connection)).hexdigest().encode() + content(2))
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
    connection.close()


def client(mode, connection):
    connection.settimeout(60)
    connection.sendall(f"{mode}\n".encode())
    if mode == "swap":
        connection.sendall(content(1))
        connection.shutdown(socket.SHUT_WR)
        got = rest(connection)
        wanted = hashlib.sha256(content(1)).hexdigest().encode() + content(2)
        return "ok" if got == wanted else f"{len(got)} of {len(wanted)} bytes"
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
    return f"unknown mode {mode}"


def main(words):
    if words[0] != "serve":
        print(client(words[0], socket.create_connection((words[1], int(words[2])))), flush=True)
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
