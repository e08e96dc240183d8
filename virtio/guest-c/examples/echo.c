/*
 * Echoes UDP over IPv4 at the guest's end of a vhost-user socket, until the device goes away.
 *
 *     cargo build --release -p pontoon-guest-c
 *     cc -Ivirtio/guest-c/include virtio/guest-c/examples/echo.c target/release/libpontoon_guest_c.a -o echo
 *     ./echo /run/pontoon/guest.sock
 */
#include <stdio.h>
#include <string.h>

#include "pontoon_guest.h"

enum { ETHERNET = 14, IPV4 = 20, FRAME = 1514 };

static void swap(unsigned char *one, unsigned char *other, size_t len)
{
    unsigned char both[6];

    memcpy(both, one, len);
    memcpy(one, other, len);
    memcpy(other, both, len);
}

/* Turns a datagram into its reply, which leaves both checksums valid. Returns 0 if it is not a datagram. */
static int reverse(unsigned char *frame, size_t len)
{
    unsigned char *ip = frame + ETHERNET, *udp = ip + IPV4;

    if (len < ETHERNET + IPV4 + 8 || memcmp(frame + 12, "\x08\x00\x45", 3) != 0 || ip[9] != 17)
        return 0;
    swap(frame, frame + 6, 6);
    swap(ip + 12, ip + 16, 4);
    swap(udp, udp + 2, 2);
    return 1;
}

/* Reads all frames, and queues the replies. */
static ptrdiff_t echo(struct pontoon *interface)
{
    unsigned char frame[FRAME];
    ptrdiff_t len;
    int queued;

    while ((len = pontoon_read(interface, frame, sizeof frame)) >= 0) {
        if (!reverse(frame, (size_t)len))
            continue;
        while ((queued = pontoon_queue(interface, frame, (size_t)len)) == PONTOON_AGAIN) {
            queued = pontoon_poll(interface, PONTOON_FOREVER); /* publishes queued frames, and waits for room */
            if (queued < 0)
                break;
        }
        if (queued < 0)
            return queued;
    }
    return len == PONTOON_AGAIN ? 0 : len;
}

int main(int argc, char **argv)
{
    struct pontoon *interface;
    ptrdiff_t outcome;

    if (argc != 2) {
        fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
        return 2;
    }
    outcome = pontoon_attach(&interface, argv[1], FRAME, PONTOON_HYBRID);
    if (outcome < 0) {
        fprintf(stderr, "cannot attach to %s: error %td\n", argv[1], outcome);
        return 1;
    }
    do {
        outcome = pontoon_poll(interface, PONTOON_FOREVER);
        if (outcome >= 0)
            outcome = echo(interface);
    } while (outcome >= 0);
    pontoon_detach(interface);
    if (outcome != PONTOON_GONE) {
        fprintf(stderr, "the interface failed: error %td\n", outcome);
        return 1;
    }
    return 0;
}
