/* Sizes and offsets of the interface of version 0, on machines with 64-bit pointers. */
#include <stddef.h>
#include <stdint.h>

#include <pontoon.h>

#define SAME(value, expected) _Static_assert((value) == (expected), #value)

SAME(sizeof(struct pontoon_request), 592);
SAME(offsetof(struct pontoon_request, token), 0);
SAME(offsetof(struct pontoon_request, protocol), 8);
SAME(offsetof(struct pontoon_request, deadline_ms), 12);
SAME(offsetof(struct pontoon_request, guest), 16);
SAME(offsetof(struct pontoon_request, remote), 80);
SAME(offsetof(struct pontoon_request, destination), 144);
SAME(offsetof(struct pontoon_request, published), 208);
SAME(offsetof(struct pontoon_request, rule), 272);
SAME(sizeof(((struct pontoon_request *)0)->rule), 320);

SAME(sizeof(struct pontoon_memory_region), 24);
SAME(offsetof(struct pontoon_memory_region, guest_address), 0);
SAME(offsetof(struct pontoon_memory_region, size), 8);
SAME(offsetof(struct pontoon_memory_region, memory), 16);

SAME(sizeof(struct pontoon_queue), 40);
SAME(offsetof(struct pontoon_queue, descriptors), 0);
SAME(offsetof(struct pontoon_queue, available), 8);
SAME(offsetof(struct pontoon_queue, used), 16);
SAME(offsetof(struct pontoon_queue, size), 24);
SAME(offsetof(struct pontoon_queue, kick), 28);
SAME(offsetof(struct pontoon_queue, call), 32);

SAME(PONTOON_ERROR_INVALID, -1);
SAME(PONTOON_ERROR_HOST, -2);
SAME(PONTOON_ERROR_ENDED, -3);
SAME(PONTOON_ERROR_AGAIN, -4);
SAME(PONTOON_ERROR_INTERNAL, -5);
SAME(PONTOON_STREAM, 1);
SAME(PONTOON_PACKET, 2);
SAME(PONTOON_VHOST_USER, 3);
SAME(PONTOON_TAP, 4);
SAME(PONTOON_FRAME_HEADER, 12);
SAME(PONTOON_DEVICE_CONFIG, 12);
SAME(PONTOON_ICMP, 1);
SAME(PONTOON_TCP, 6);
SAME(PONTOON_UDP, 17);
SAME(PONTOON_ALLOW, 0);
SAME(PONTOON_DENY_RESET, 1);
SAME(PONTOON_DENY_UNREACHABLE, 2);
SAME(PONTOON_DENY_DROP, 3);
SAME(PONTOON_REDIRECT, 4);

int main(void)
{
    int (*attach)(struct pontoon_network **, const struct pontoon_options *, int, int) = pontoon_network_attach;
    ptrdiff_t (*read)(const struct pontoon_network *, void *, size_t) = pontoon_network_read_frame;

    return attach == NULL || read == NULL;
}
