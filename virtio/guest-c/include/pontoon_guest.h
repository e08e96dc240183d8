/*
 * A network interface in shared memory, for unikernels and sandboxed processes.
 *
 * It is the driver of a virtio-net device: `pontoon vm --protocol vhost-user`, another vhost-user device, or a VMM's own.
 * Frames are Ethernet frames, from the destination address to the end of the payload, with complete checksums.
 *
 * An interface may be used by one thread at a time. Functions return a negative `enum pontoon_error` on failure. After
 * PONTOON_BROKEN and PONTOON_GONE an interface is unusable.
 */
#ifndef PONTOON_GUEST_H
#define PONTOON_GUEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pontoon_error {
    PONTOON_AGAIN = -1,   /* no free transmit buffer, or no frame to read */
    PONTOON_LONG = -2,    /* the frame is longer than the maximum */
    PONTOON_BROKEN = -3,  /* the device violated the ring protocol */
    PONTOON_GONE = -4,    /* the device has disconnected or ended */
    PONTOON_INVALID = -5, /* invalid argument, or memory misaligned */
    PONTOON_REFUSED = -6, /* the device cannot be reached, or refuses the interface */
};

/* Methods by which pontoon_poll waits. */
enum pontoon_pacing {
    PONTOON_EVENT = 0,  /* sleeps at once */
    PONTOON_HYBRID = 1, /* polls while recent waits were short, then sleeps */
    PONTOON_POLL = 2,   /* never sleeps */
};

/* Results of pontoon_poll. */
enum pontoon_ready {
    PONTOON_FRAME = 1, /* a frame can be read */
    PONTOON_ROOM = 2,  /* a frame can be queued, after PONTOON_AGAIN */
};

/* A deadline that means no deadline. */
#define PONTOON_FOREVER UINT64_MAX

/* Number of descriptors of each ring, and of frame buffers in each direction. */
#define PONTOON_RING_SIZE 256

struct pontoon;

/* -- On Linux: attached to a vhost-user socket -- */

/*
 * Attaches an interface to the device that listens at `path`, for frames of up to `frame` bytes: 14 more than the MTU.
 * `pacing` is one of `enum pontoon_pacing`. Deadlines are on CLOCK_MONOTONIC. After this call the library makes no
 * system calls but write, ppoll and read.
 */
int pontoon_attach(struct pontoon **interface, const char *path, uint16_t frame, int pacing);

/* Detaches and frees an attached interface. */
void pontoon_detach(struct pontoon *interface);

/* -- On any platform: in memory provided by the caller -- */

/* Functions of the environment that an interface needs, and their context. */
struct pontoon_platform {
    void *context;
    /* Returns the time since a fixed moment, in nanoseconds. */
    uint64_t (*now)(void *context);
    /* Notifies the device of new entries in ring 0 (from the device) or 1 (to it), after all earlier stores. */
    void (*notify)(void *context, int ring);
    /*
     * Sleeps until the device sends a notification for either ring, or until `until`; it may return early. A
     * notification since the last sleep must end this one at once. A result other than 0 means that the device has ended.
     */
    int (*sleep)(void *context, uint64_t until);
};

/* The addresses of a ring's parts, as the device sees them. */
struct pontoon_ring {
    uint64_t descriptors, available, used;
};

/* Size in bytes of an interface's private memory, which is aligned to 64. */
#define PONTOON_STORAGE 16384

/*
 * Returns the size in bytes of the memory to share with the device, which is aligned to 64, for frames of up to `frame`
 * bytes.
 */
size_t pontoon_shared_bytes(uint16_t frame);

/* The configuration of an interface. */
struct pontoon_config {
    void *storage;                     /* private memory, for the life of the interface */
    void *shared;                      /* memory shared with the device, for the same time */
    uint64_t address;                  /* device address of `shared`, a multiple of 64 */
    uint16_t frame;                    /* bytes of the longest frame: 14 more than the MTU */
    uint8_t event_idx;                 /* whether VIRTIO_F_EVENT_IDX was negotiated */
    int pacing;                        /* one of `enum pontoon_pacing` */
    struct pontoon_platform platform;
};

/*
 * Creates an interface with its rings and frames in the shared memory, and stores the addresses of the rings: 0 from the
 * device, 1 to it. VIRTIO_F_VERSION_1 must be negotiated with the device, and of the features that change rings or
 * headers only VIRTIO_F_EVENT_IDX may be. Configure the device with the rings, then call pontoon_start. This program may
 * access either memory only through the library while the interface is used; no cleanup is needed after that.
 */
int pontoon_create(struct pontoon **interface, const struct pontoon_config *config, struct pontoon_ring rings[2]);

/* Notifies the device, which must have the addresses of the rings already, that the receive ring has buffers. */
int pontoon_start(struct pontoon *interface);

/* -- Frames -- */

/* Copies a frame into a transmit buffer, to be sent at the next flush. */
int pontoon_queue(struct pontoon *interface, const void *frame, size_t len);

/* Makes queued frames available to the device, which is notified only if it has requested that. */
int pontoon_flush(struct pontoon *interface);

/* Queues a frame and flushes. */
int pontoon_write(struct pontoon *interface, const void *frame, size_t len);

/* Copies the next frame and returns its length. The part of a frame that exceeds `len` is lost. */
ptrdiff_t pontoon_read(struct pontoon *interface, void *frame, size_t len);

/*
 * Flushes, and waits until `deadline` for a frame to read, or for room after there was none. Returns bits of
 * `enum pontoon_ready`, or 0 at the deadline. Returns at once if the deadline has passed.
 */
int pontoon_poll(struct pontoon *interface, uint64_t deadline);

/* Returns the time on the clock that deadlines use, in nanoseconds. */
uint64_t pontoon_now(struct pontoon *interface);

#ifdef __cplusplus
}
#endif

#endif
