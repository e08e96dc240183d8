/*
 * Starts and stops networks with each kind of guests many times, and compares memory, descriptors and threads before and after. The
 * argument is the number of networks.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <pontoon.h>

enum { WARM = 240, MEMORY = 0x10000, QUEUE = 256 };

/* Kinds of guests. */
enum { FRAMES, STREAM, PACKET, VHOST_USER, DEVICE, TAP };

/* The number of kinds: without taps, if the program may not open them. */
static int kinds = TAP + 1;
static void *memory;
static int events[4];

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, pontoon_error_text());
    exit(1);
}

static long resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long size, pages = -1;

    if (file == NULL || fscanf(file, "%ld %ld", &size, &pages) != 2)
        fail("statm");
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int entries(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;

    while (directory != NULL && readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static int open_tap(void)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

    strcpy(request.ifr_name, "tap0");
    if (tap >= 0 && ioctl(tap, TUNSETIFF, &request) != 0) {
        close(tap);
        return -1;
    }
    return tap;
}

static struct pontoon_queue queue(int number)
{
    uint64_t at = (uint64_t)number * MEMORY / 2;

    return (struct pontoon_queue){.descriptors = at,
                                  .available = at + 16 * QUEUE,
                                  .used = at + 20 * QUEUE,
                                  .size = QUEUE,
                                  .kick = events[2 * number],
                                  .call = events[2 * number + 1]};
}

/* Starts a network with a device, whose driver adds no buffers. In one of two networks it resets the device. */
static struct pontoon_network *start_device(const struct pontoon_options *options, int reset)
{
    struct pontoon_network *network;
    struct pontoon_memory_region region = {0, MEMORY, memory};
    struct pontoon_queue receive = queue(0), transmit = queue(1);

    if (pontoon_network_device(&network, options) != 0)
        fail("device");
    if (pontoon_device_activate(network, (uint64_t)1 << 32, &region, 1, &receive, &transmit) != 0)
        fail("activate");
    if (reset && pontoon_device_reset(network) != 0)
        fail("reset");
    return network;
}

/* Starts a network whose guest is behind one of the descriptors, which are closed at the end. */
static struct pontoon_network *start(int kind, const struct pontoon_options *options, int pair[2])
{
    int types[] = {[STREAM] = SOCK_STREAM, [PACKET] = SOCK_SEQPACKET, [VHOST_USER] = SOCK_STREAM};
    int links[] = {[STREAM] = PONTOON_STREAM, [PACKET] = PONTOON_PACKET, [VHOST_USER] = PONTOON_VHOST_USER, [TAP] = PONTOON_TAP};
    struct pontoon_network *network;

    if (kind == TAP)
        pair[0] = open_tap();
    else if (socketpair(AF_UNIX, types[kind], 0, pair) != 0)
        fail("socketpair");
    if (pontoon_network_attach(&network, options, links[kind], pair[0]) != 0)
        fail("attach");
    close(pair[0]);
    return network;
}

static void cycle(int number)
{
    struct pontoon_options *options = pontoon_options_new();
    struct pontoon_network *network;
    int kind = number % kinds, odd = number / kinds % 2, pair[2] = {-1, -1};

    pontoon_options_set(options, "events", "on");
    pontoon_options_set(options, "decide", "on");
    if (odd && kind != DEVICE)
        pontoon_options_set(options, "threads", "off");
    if (kind == DEVICE)
        network = start_device(options, odd);
    else if (kind != FRAMES)
        network = start(kind, options, pair);
    else if (pontoon_network_frames(&network, options) != 0)
        fail("frames");
    if (pontoon_network_dispatch(network) != 0)
        fail("dispatch");
    if (pontoon_network_stop(network) != 0)
        fail("stop");
    if (pair[1] >= 0)
        close(pair[1]);
    pontoon_options_free(options);
}

/* Enters a network namespace, whose taps the program may open. */
static void prepare(void)
{
    int tap = -1, number;

    if (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)
        tap = open_tap();
    if (tap < 0)
        kinds = TAP;
    else
        close(tap);
    for (number = 0; number < 4; number++)
        events[number] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
}

int main(int count, char **arguments)
{
    long before;
    int number, descriptors, threads, cycles = count > 1 ? atoi(arguments[1]) : 10000;

    prepare();
    for (number = 0; number < WARM; number++)
        cycle(number);
    before = resident();
    descriptors = entries("/proc/self/fd");
    threads = entries("/proc/self/task");
    for (number = 0; number < cycles; number++)
        cycle(number);
    printf("%d networks with %d kinds of guests: %ld KiB, then %ld KiB; %d and %d descriptors; %d and %d threads\n", cycles, kinds,
           before, resident(), descriptors - 2, entries("/proc/self/fd") - 2, threads - 2, entries("/proc/self/task") - 2);
    return resident() > before + 4096 || entries("/proc/self/fd") != descriptors || entries("/proc/self/task") != threads;
}
