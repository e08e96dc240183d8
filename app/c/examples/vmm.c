/*
 * The network of a small VMM, in one thread: frames of the guest by calls, decisions about its flows, and a record of each.
 *
 * The guest is a few lines here: it looks for the Ethernet address of its gateway, and sends a datagram to a server, which the rule
 * allows and the program denies.
 *
 *     cargo xtask library
 *     export PKG_CONFIG_PATH=target/library/lib/pkgconfig
 *     cc app/c/examples/vmm.c $(pkg-config --cflags --libs pontoon) -Wl,-rpath,target/library/lib -o vmm
 *     ./vmm
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pontoon.h>

enum { HEADER = PONTOON_FRAME_HEADER, FRAME = HEADER + 14 + 1500 };

static const unsigned char GUEST[6] = {2, 0, 0, 0, 0, 1}, GUEST_IP[4] = {10, 0, 2, 15}, GATEWAY_IP[4] = {10, 0, 2, 2},
                           SERVER_IP[4] = {192, 0, 2, 1};

/* Returns the result of a call of the library, unless it is an error other than "try again". */
static long check(long result)
{
    if (result >= 0 || result == PONTOON_ERROR_AGAIN)
        return result;
    fprintf(stderr, "vmm: %s\n", pontoon_error_text());
    exit(1);
}

static void set(struct pontoon_options *options, const char *name, const char *value)
{
    check(pontoon_options_set(options, name, value));
}

/* The guest sends an ARP request (RFC 826) for its gateway. */
static void send_request(struct pontoon_network *network)
{
    unsigned char frame[HEADER + 42] = {0}, *arp = frame + HEADER + 14;

    memset(frame + HEADER, 0xff, 6);
    memcpy(frame + HEADER + 6, GUEST, 6);
    memcpy(frame + HEADER + 12, "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01", 10);
    memcpy(arp + 8, GUEST, 6);
    memcpy(arp + 14, GUEST_IP, 4);
    memcpy(arp + 24, GATEWAY_IP, 4);
    check(pontoon_network_write_frame(network, frame, sizeof frame));
}

/* The guest sends a datagram without checksum to port 9 of the server. */
static void send_datagram(struct pontoon_network *network, const unsigned char *gateway)
{
    unsigned char frame[HEADER + 42] = {0}, *ip = frame + HEADER + 14;
    unsigned long sum = 0;
    int at;

    memcpy(frame + HEADER, gateway, 6);
    memcpy(frame + HEADER + 6, GUEST, 6);
    memcpy(frame + HEADER + 12, "\x08\x00\x45\x00\x00\x1c\x00\x00\x40\x00\x40\x11", 12);
    memcpy(ip + 12, GUEST_IP, 4);
    memcpy(ip + 16, SERVER_IP, 4);
    memcpy(ip + 20, "\x9c\x40\x00\x09\x00\x08\x00\x00", 8);
    for (at = 0; at < 20; at += 2)
        sum += (unsigned long)ip[at] << 8 | ip[at + 1];
    sum = ~(sum + (sum >> 16));
    ip[10] = (unsigned char)(sum >> 8);
    ip[11] = (unsigned char)sum;
    check(pontoon_network_write_frame(network, frame, sizeof frame));
}

/* Handles the frames to the guest. Returns true when it has received an ICMP error. */
static int receive(struct pontoon_network *network)
{
    unsigned char frame[FRAME], *ethernet = frame + HEADER;
    int refused = 0;

    while (check(pontoon_network_read_frame(network, frame, sizeof frame)) > 0) {
        if (memcmp(ethernet + 12, "\x08\x06", 2) == 0 && ethernet[21] == 2) {
            printf("the gateway is at %02x:%02x\n", ethernet[22], ethernet[23]);
            send_datagram(network, ethernet + 22);
        }
        refused |= memcmp(ethernet + 12, "\x08\x00", 2) == 0 && ethernet[23] == 1;
    }
    return refused;
}

/* Denies all flows, and prints the records. Returns true when a flow was refused. */
static int supervise(struct pontoon_network *network)
{
    struct pontoon_request request;
    char record[2048];
    int refused = 0;

    while (check(pontoon_network_next_request(network, &request)) == 0) {
        printf("deny protocol %u to %s, which '%s' allows\n", (unsigned)request.protocol, request.remote, request.rule);
        check(pontoon_network_decide(network, request.token, PONTOON_DENY_UNREACHABLE, NULL));
    }
    while (check(pontoon_network_next_event(network, record, sizeof record)) > 0) {
        printf("%s\n", record);
        refused |= strstr(record, "\"refused\"") != NULL;
    }
    return refused;
}

int main(void)
{
    struct pontoon_options *options = pontoon_options_new();
    struct pontoon_network *network;
    struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};
    int answered = 0, recorded = 0;

    set(options, "ipv4", "10.0.2.0/24");
    set(options, "dns", "none");
    set(options, "allow", "192.0.2.0/24");
    set(options, "decide", "on");
    set(options, "events", "on");
    set(options, "threads", "off");
    check(pontoon_network_frames(&network, options));
    pontoon_options_free(options);

    send_request(network);
    fds[0].fd = pontoon_network_fd(network);
    fds[1].fd = pontoon_network_frame_fd(network);
    while (!answered || !recorded) {
        if (poll(fds, 2, 10000) <= 0)
            return 1;
        check(pontoon_network_dispatch(network));
        answered |= receive(network);
        recorded |= supervise(network);
    }
    check(pontoon_network_stop(network));
    return 0;
}
