/* Calls that must fail, and leave everything as it was. */
#include <assert.h>
#include <setjmp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <pontoon.h>

static jmp_buf out;

/* A function of the program that uses the library and does not return. */
static void leave(struct pontoon_network *network)
{
    struct pontoon_request request;

    assert(pontoon_network_next_request(network, &request) == PONTOON_ERROR_AGAIN);
    longjmp(out, 1);
}

static void nulls(void)
{
    char buffer[64];
    uint64_t value;

    pontoon_options_free(NULL);
    assert(pontoon_network_stop(NULL) == 0);
    assert(pontoon_options_set(NULL, "mtu", "1500") == PONTOON_ERROR_INVALID);
    assert(strcmp(pontoon_error_text(), "the options are null") == 0);
    assert(pontoon_network_attach(NULL, NULL, PONTOON_STREAM, 0) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_frames(NULL, NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_device(NULL, NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_device_features(NULL, &value) == PONTOON_ERROR_INVALID);
    assert(pontoon_device_reset(NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_fd(NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_dispatch(NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_publish(NULL, "80") == PONTOON_ERROR_INVALID);
    assert(pontoon_network_counter(NULL, "flows", &value) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_address(NULL, "guest4", buffer, sizeof buffer) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_read_frame(NULL, buffer, sizeof buffer) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_next_event(NULL, buffer, sizeof buffer) == PONTOON_ERROR_INVALID);
}

static void options(void)
{
    struct pontoon_options *options = pontoon_options_new();

    assert(pontoon_options_set(options, "colour", "red") == PONTOON_ERROR_INVALID);
    assert(strcmp(pontoon_error_text(), "there is no option 'colour'") == 0);
    assert(pontoon_options_set(options, NULL, "red") == PONTOON_ERROR_INVALID);
    assert(pontoon_options_set(options, "mtu", NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_options_set(options, "hostname", "\xff") == PONTOON_ERROR_INVALID);
    assert(pontoon_options_set(options, "mtu", "1500") == 0);
    pontoon_options_free(options);
}

static void descriptors(void)
{
    struct pontoon_network *network = NULL;
    int pair[2], after;

    assert(pontoon_network_attach(&network, NULL, PONTOON_STREAM, -1) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_attach(&network, NULL, PONTOON_STREAM, 1000) == PONTOON_ERROR_HOST);
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    assert(pontoon_network_attach(&network, NULL, PONTOON_PACKET, pair[0]) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_attach(&network, NULL, 99, pair[0]) == PONTOON_ERROR_INVALID);
    assert(network == NULL);
    /* The descriptors are still the program's. */
    assert((after = dup(pair[1])) >= 0 && close(after) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void running(void)
{
    struct pontoon_options *options = pontoon_options_new();
    struct pontoon_network *network, *other;
    char buffer[2048], frame[2048] = {0};
    uint64_t value = 1;

    assert(pontoon_options_set(options, "ipv4", "10.0.2.0/24") == 0);
    assert(pontoon_options_set(options, "decide", "on") == 0);
    assert(pontoon_options_set(options, "events", "on") == 0);
    assert(pontoon_network_frames(&network, options) == 0);
    assert(pontoon_network_frames(&other, NULL) == 0);
    assert(pontoon_network_address(network, "guest4", buffer, 5) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_address(network, "guest4", buffer, sizeof buffer) == 12);
    assert(strcmp(buffer, "10.0.2.15/24") == 0);
    assert(pontoon_network_address(network, "colour", buffer, sizeof buffer) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_write_frame(network, frame, 12) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_write_frame(network, NULL, 100) == PONTOON_ERROR_INVALID);
    frame[1] = 5; /* VIRTIO_NET_HDR_GSO_UDP_L4 */
    assert(pontoon_network_write_frame(network, frame, 100) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_read_frame(network, buffer, 100) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_counter(network, "flows", &value) == 0 && value == 0);
    assert(pontoon_network_counter(network, "colour", &value) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_decide(network, 1, PONTOON_ALLOW, NULL) == 0);
    assert(pontoon_network_decide(network, 1, PONTOON_REDIRECT, NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_decide(network, 1, 99, NULL) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_redirect_to_stream(network, 1, -1) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_set_rules(network, "deny 192.0.2.0/24\n\nallow *\n") == 0);
    assert(pontoon_network_set_rules(network, "permit *") == PONTOON_ERROR_INVALID);
    assert(pontoon_network_publish(network, "http") == PONTOON_ERROR_INVALID);
    assert(pontoon_network_publish(network, "auto") == PONTOON_ERROR_INVALID);
    assert(pontoon_network_refresh_host(network) == 0);
    assert(pontoon_network_dispatch(network) == 0);

    /* The first record, which is kept as long as the buffer is too short. */
    while (pontoon_network_next_event(network, buffer, 10) == PONTOON_ERROR_AGAIN)
        ;
    assert(pontoon_network_next_event(network, buffer, 10) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_next_event(network, buffer, sizeof buffer) > 10);
    assert(strstr(buffer, "\"start\"") != NULL);

    /* Options that were not set. */
    assert(pontoon_network_next_event(other, buffer, sizeof buffer) == PONTOON_ERROR_INVALID);
    assert(pontoon_network_next_request(other, NULL) == PONTOON_ERROR_INVALID);

    if (setjmp(out) == 0)
        leave(network);
    assert(pontoon_network_dispatch(network) == 0);
    assert(pontoon_network_stop(network) == 0);
    assert(pontoon_network_stop(other) == 0);
    pontoon_options_free(options);
}

int main(void)
{
    nulls();
    options();
    descriptors();
    running();
    return 0;
}
