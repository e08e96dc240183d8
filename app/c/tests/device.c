/* A VMM's side of the virtio-net device, and a guest that looks for the Ethernet address of its gateway. */
#define _GNU_SOURCE
#include <assert.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pontoon.h>

/* Physical address and size of the guest's memory, and offsets in it. */
enum { BASE = 0x10000, MEMORY = 0x10000, RECEIVE = 0, TRANSMIT = 0x1000, BUFFERS = 0x2000, FRAME = 0x6000 };
enum { QUEUE = 4, AVAILABLE = 0x400, USED = 0x800, BUFFER = 2048, HEADER = PONTOON_FRAME_HEADER };

/* Structures of split virtqueues (virtio 1.2, section 2.7), on little-endian machines. */
struct descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags, next;
};
struct available {
    uint16_t flags, index, ring[QUEUE];
};
struct used {
    uint16_t flags, index;
    struct {
        uint32_t id, length;
    } ring[QUEUE];
};

static unsigned char *memory;

/* Makes a buffer available in a queue, and notifies the device. */
static void add(unsigned queue, int kick, uint16_t number, uint64_t at, uint32_t length, uint16_t flags)
{
    struct descriptor *descriptors = (struct descriptor *)(void *)(memory + queue);
    struct available *available = (struct available *)(void *)(memory + queue + AVAILABLE);

    descriptors[number] = (struct descriptor){BASE + at, length, flags, 0};
    available->ring[available->index % QUEUE] = number;
    __atomic_store_n(&available->index, (uint16_t)(available->index + 1), __ATOMIC_SEQ_CST);
    assert(eventfd_write(kick, 1) == 0);
}

static struct pontoon_queue queue(unsigned at)
{
    return (struct pontoon_queue){.descriptors = BASE + at,
                                  .available = BASE + at + AVAILABLE,
                                  .used = BASE + at + USED,
                                  .size = QUEUE,
                                  .kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                  .call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
}

/* Waits for the ARP reply of the gateway, and prints its address. */
static void receive(const struct pontoon_queue *receive)
{
    struct used *used = (struct used *)(void *)(memory + RECEIVE + USED);
    struct pollfd poll_call = {.fd = receive->call, .events = POLLIN};
    uint16_t seen = 0;
    uint64_t count;

    for (;;) {
        while (seen != __atomic_load_n(&used->index, __ATOMIC_SEQ_CST)) {
            uint32_t id = used->ring[seen++ % QUEUE].id;
            unsigned char *frame = memory + BUFFERS + id * BUFFER + HEADER;

            if (memcmp(frame + 12, "\x08\x06", 2) == 0 && frame[21] == 2) {
                printf("the gateway is at %02x:%02x\n", frame[22], frame[23]);
                return;
            }
            add(RECEIVE, receive->kick, (uint16_t)id, BUFFERS + id * BUFFER, BUFFER, 2);
        }
        assert(poll(&poll_call, 1, 10000) == 1);
        (void)!read(receive->call, &count, sizeof count);
    }
}

int main(void)
{
    static const unsigned char arp[] = {0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2};
    struct pontoon_options *options = pontoon_options_new();
    struct pontoon_network *network, *other;
    struct pontoon_memory_region region;
    struct pontoon_queue rx = queue(RECEIVE), tx = queue(TRANSMIT), outside;
    unsigned char space[PONTOON_DEVICE_CONFIG], *frame;
    uint64_t features, version_1 = (uint64_t)1 << 32;
    uint16_t number;

    assert(pontoon_options_set(options, "ipv4", "10.0.2.0/24") == 0);
    assert(pontoon_options_set(options, "mac", "02:00:00:00:00:01") == 0);
    assert(pontoon_network_device(&network, options) == 0);
    assert(pontoon_options_set(options, "threads", "off") == 0);
    assert(pontoon_network_device(&other, options) == PONTOON_ERROR_INVALID);
    pontoon_options_free(options);
    assert(pontoon_device_features(network, &features) == 0 && (features & version_1) != 0);
    assert(pontoon_device_config(network, space) == 0 && memcmp(space, "\x02\0\0\0\0\x01", 6) == 0 && space[10] == 0xdc);

    memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    region = (struct pontoon_memory_region){BASE, MEMORY, memory};

    /* Calls that must fail. */
    outside = tx;
    outside.used = BASE + MEMORY;
    assert(pontoon_device_activate(network, version_1, &region, 1, &rx, &outside) == PONTOON_ERROR_INVALID);
    assert(pontoon_device_activate(network, (uint64_t)1 << 63, &region, 1, &rx, &tx) == PONTOON_ERROR_INVALID);
    assert(pontoon_device_activate(network, version_1, &region, 0, &rx, &tx) == PONTOON_ERROR_INVALID);
    assert(pontoon_device_activate(network, version_1, &region, 1, NULL, &tx) == PONTOON_ERROR_INVALID);
    region.memory = memory + 1;
    assert(pontoon_device_activate(network, version_1, &region, 1, &rx, &tx) == PONTOON_ERROR_INVALID);
    region.memory = memory;
    assert(pontoon_network_frames(&other, NULL) == 0);
    assert(pontoon_device_reset(other) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_stop(other) == 0);

    /* The guest starts twice, with a reset between. */
    for (int start = 0; start < 2; start++) {
        memset(memory, 0, MEMORY);
        assert(pontoon_device_activate(network, version_1, &region, 1, &rx, &tx) == 0);
        for (number = 0; number < QUEUE; number++)
            add(RECEIVE, rx.kick, number, BUFFERS + (uint64_t)number * BUFFER, BUFFER, 2);
        frame = memory + FRAME + HEADER;
        memset(frame, 0xff, 6);
        memcpy(frame + 6, "\x02\0\0\0\0\x01\x08\x06", 8);
        memcpy(frame + 14, arp, sizeof arp);
        add(TRANSMIT, tx.kick, 0, FRAME, HEADER + 14 + sizeof arp, 0);
        receive(&rx);
        assert(pontoon_device_reset(network) == 0);
    }
    /* Nothing accesses the memory any more. */
    assert(munmap(memory, MEMORY) == 0);
    assert(pontoon_network_stop(network) == 0);
    close(rx.kick), close(rx.call), close(tx.kick), close(tx.call);
    return 0;
}
