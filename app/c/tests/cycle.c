/* Starts and stops networks of each kind many times, and compares memory and descriptors before and after. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <pontoon.h>

enum { WARM = 500, CYCLES = 10000 };

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

static void cycle(int number)
{
    struct pontoon_options *options = pontoon_options_new();
    struct pontoon_network *network;
    int pair[2];

    pontoon_options_set(options, "events", "on");
    pontoon_options_set(options, "decide", "on");
    if (number % 2 == 0)
        pontoon_options_set(options, "threads", "off");
    if (number % 4 < 2) {
        if (pontoon_network_frames(&network, options) != 0)
            fail("frames");
    } else {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
            fail("socketpair");
        if (pontoon_network_attach(&network, options, PONTOON_STREAM, pair[0]) != 0)
            fail("attach");
        close(pair[0]);
    }
    if (pontoon_network_dispatch(network) != 0)
        fail("dispatch");
    if (pontoon_network_stop(network) != 0)
        fail("stop");
    if (number % 4 >= 2)
        close(pair[1]);
    pontoon_options_free(options);
}

int main(void)
{
    long memory;
    int number, descriptors, threads;

    for (number = 0; number < WARM; number++)
        cycle(number);
    memory = resident();
    descriptors = entries("/proc/self/fd");
    threads = entries("/proc/self/task");
    for (number = 0; number < CYCLES; number++)
        cycle(number);
    printf("%d networks: %ld KiB, then %ld KiB; %d and %d descriptors; %d and %d threads\n", CYCLES, memory, resident(),
           descriptors - 2, entries("/proc/self/fd") - 2, threads - 2, entries("/proc/self/task") - 2);
    return resident() > memory + 4096 || entries("/proc/self/fd") != descriptors || entries("/proc/self/task") != threads;
}
