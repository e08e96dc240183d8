"""A network for a guest behind a packet socket, by ctypes: python3 network.py target/library/lib/libpontoon.so

The guest sends an ARP request for its gateway, and receives the reply.
"""
import ctypes
import json
import socket
import sys

PACKET = 2  # PONTOON_PACKET
AGAIN = -4  # PONTOON_ERROR_AGAIN

pontoon = ctypes.CDLL(sys.argv[1])
pontoon.pontoon_error_text.restype = ctypes.c_char_p
pontoon.pontoon_options_new.restype = ctypes.c_void_p
pontoon.pontoon_options_free.restype = None


def check(result):
    if result < 0:
        raise OSError(pontoon.pontoon_error_text().decode())
    return result


options = ctypes.c_void_p(pontoon.pontoon_options_new())
for name, value in [("ipv4", "10.0.2.0/24"), ("events", "on"), ("allow", "*.example.org:443/tcp")]:
    check(pontoon.pontoon_options_set(options, name.encode(), value.encode()))
guest, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
network = ctypes.c_void_p()
check(pontoon.pontoon_network_attach(ctypes.byref(network), options, PACKET, ours.fileno()))
pontoon.pontoon_options_free(options)
ours.close()

text = ctypes.create_string_buffer(64)
check(pontoon.pontoon_network_address(network, b"gateway4", text, ctypes.c_size_t(len(text))))
gateway = text.value.decode()
mac = bytes.fromhex("020000000001")
arp = bytes.fromhex("0001080006040001") + mac + socket.inet_aton("10.0.2.15") + bytes(6) + socket.inet_aton(gateway)
guest.send(b"\xff" * 6 + mac + b"\x08\x06" + arp)
guest.settimeout(10)
while (frame := guest.recv(2048))[12:14] != b"\x08\x06":
    pass
print("the gateway", gateway, "is at", frame[22:28].hex(":"))

record = ctypes.create_string_buffer(2048)
while (length := pontoon.pontoon_network_next_event(network, record, ctypes.c_size_t(len(record)))) == AGAIN:
    pass
check(length)
print("the first record is", json.loads(record.value)["type"])
check(pontoon.pontoon_network_stop(network))
