/*
 * A network interface in shared memory, for unikernels and for processes that may do next to nothing.
 *
 * It drives a virtio-net device: `pontoon vm --protocol vhost-user`, another vhost-user device, or a VMM's own. Frames
 * are Ethernet frames, from the destination's address to the end of the payload, with all checksums in place.
 *
 * An interface belongs to one thread at a time. Functions return a negative `enum pontoon_error` when they fail; after
 * PONTOON_BROKEN and PONTOON_GONE an interface is of no more use.
 */
#ifndef PONTOON_GUEST_H
#define PONTOON_GUEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pontoon_error {
    PONTOON_AGAIN = -1,   /* no room for a frame now, or no frame to read */
    PONTOON_LONG = -2,    /* the frame is longer than frames can be */
    PONTOON_BROKEN = -3,  /* the device broke the ring's protocol */
    PONTOON_GONE = -4,    /* the device is gone */
    PONTOON_INVALID = -5, /* an argument, or memory too small or not aligned */
    PONTOON_REFUSED = -6, /* the device cannot be reached, or refuses */
};

/* How pontoon_poll waits. */
enum pontoon_pacing {
    PONTOON_EVENT = 0,  /* sleeps at once */
    PONTOON_HYBRID = 1, /* looks around while that pays, then sleeps */
    PONTOON_POLL = 2,   /* never sleeps */
};

/* What pontoon_poll found. */
enum pontoon_ready {
    PONTOON_FRAME = 1, /* a frame to read */
    PONTOON_ROOM = 2,  /* room for a frame, after PONTOON_AGAIN */
};

/* A deadline that never comes. */
#define PONTOON_FOREVER UINT64_MAX

/* Descriptors of each ring, and frames each way. */
#define PONTOON_RING_SIZE 256

struct pontoon;

/* -- On Linux: attached to a vhost-user socket -- */

/*
 * Attaches an interface to the device that listens at `path`, for frames of up to `frame` bytes: 14 more than the MTU.
 * `pacing` is one of `enum pontoon_pacing`. Deadlines are on CLOCK_MONOTONIC. From here on it makes no system calls but
 * write, ppoll and read.
 */
int pontoon_attach(struct pontoon **interface, const char *path, uint16_t frame, int pacing);

/* Gives an attached interface back. */
void pontoon_detach(struct pontoon *interface);

/* -- Anywhere: in memory handed over -- */

/* What an interface stands on. */
struct pontoon_platform {
    void *context;
    /* Nanoseconds since some moment that stays the same. */
    uint64_t (*now)(void *context);
    /* Notifies the device of ring 0 (from the device) or 1 (to it), after all stores before it. */
    void (*notify)(void *context, int ring);
    /*
     * Sleeps until the device notifies of either ring, or until `until`; it may return early. A notification that came
     * since the last sleep ends it at once. Anything but 0 means that the device is gone.
     */
    int (*sleep)(void *context, uint64_t until);
};

/* Where a ring's parts lie, as the device knows addresses. */
struct pontoon_ring {
    uint64_t descriptors, available, used;
};

/* Bytes of private memory for an interface, aligned to 64. */
#define PONTOON_STORAGE 16384

/* Bytes of memory to share with the device, aligned to 64, for frames of up to `frame` bytes. */
size_t pontoon_shared_bytes(uint16_t frame);

/* An interface to be made. */
struct pontoon_config {
    void *storage;                     /* private memory, which has to stay */
    void *shared;                      /* memory that the device sees too, which has to stay */
    uint64_t address;                  /* where the device has the latter: a multiple of 64 */
    uint16_t frame;                    /* bytes of the longest frame: 14 more than the MTU */
    uint8_t event_idx;                 /* whether VIRTIO_F_EVENT_IDX was negotiated */
    int pacing;                        /* one of `enum pontoon_pacing` */
    struct pontoon_platform platform;
};

/*
 * Makes an interface, with its rings and frames in the shared memory, and says where the rings are: 0 from the device,
 * 1 to it. With the device, VIRTIO_F_VERSION_1 has to be negotiated, and nothing that changes rings or headers but
 * VIRTIO_F_EVENT_IDX. Tell it of the rings, then start. Nobody else in this program may touch either memory for as long
 * as the interface is used; after that it may just be forgotten.
 */
int pontoon_create(struct pontoon **interface, const struct pontoon_config *config, struct pontoon_ring rings[2]);

/* Notifies the device, which knows of the rings by now. */
int pontoon_start(struct pontoon *interface);

/* -- Frames -- */

/* Copies a frame into the ring, to leave at the next flush. */
int pontoon_queue(struct pontoon *interface, const void *frame, size_t len);

/* Shows the device what was queued. It is notified only if it is asleep. */
int pontoon_flush(struct pontoon *interface);

/* Queues a frame and flushes. */
int pontoon_write(struct pontoon *interface, const void *frame, size_t len);

/* Takes the next frame, and says how long it is. Of one that is longer than `len`, the rest is lost. */
ptrdiff_t pontoon_read(struct pontoon *interface, void *frame, size_t len);

/*
 * Flushes, and waits for a frame to read, or for room where there was none, until `deadline`. Says which of
 * `enum pontoon_ready` there are, 0 for neither. A deadline that has passed does not wait.
 */
int pontoon_poll(struct pontoon *interface, uint64_t deadline);

/* The time, on the clock of deadlines, in nanoseconds. */
uint64_t pontoon_now(struct pontoon *interface);

#ifdef __cplusplus
}
#endif

#endif
