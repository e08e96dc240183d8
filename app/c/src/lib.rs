//! The library `pontoon` for C programs. `include/pontoon.h`, which cbindgen generates from this crate, documents the functions.
//!
//! The library calls no function of the program: requests for decisions and records of flows are taken from queues.
#![warn(missing_docs)]

mod call;
mod device;
mod frames;
mod network;
mod options;
mod queues;
mod text;

pub use call::{
    PONTOON_ERROR_AGAIN, PONTOON_ERROR_ENDED, PONTOON_ERROR_HOST, PONTOON_ERROR_INTERNAL,
    PONTOON_ERROR_INVALID, pontoon_error_text,
};
pub use device::{
    PONTOON_DEVICE_CONFIG, pontoon_device_activate, pontoon_device_config, pontoon_device_features,
    pontoon_device_reset, pontoon_memory_region, pontoon_network_device, pontoon_queue,
};
pub use frames::{
    PONTOON_FRAME_HEADER, pontoon_network_frame_fd, pontoon_network_read_frame, pontoon_network_write_frame,
};
pub use network::{
    PONTOON_PACKET, PONTOON_STREAM, PONTOON_TAP, PONTOON_VHOST_USER, pontoon_network,
    pontoon_network_address, pontoon_network_attach, pontoon_network_counter, pontoon_network_dispatch,
    pontoon_network_fd, pontoon_network_frames, pontoon_network_publish, pontoon_network_refresh_host,
    pontoon_network_set_rules, pontoon_network_stop, pontoon_network_unpublish,
};
pub use options::{pontoon_options, pontoon_options_free, pontoon_options_new, pontoon_options_set};
pub use queues::{
    PONTOON_ALLOW, PONTOON_DENY_DROP, PONTOON_DENY_RESET, PONTOON_DENY_UNREACHABLE, PONTOON_ICMP,
    PONTOON_REDIRECT, PONTOON_TCP, PONTOON_UDP, pontoon_network_decide, pontoon_network_next_event,
    pontoon_network_next_request, pontoon_network_redirect_to_stream, pontoon_request,
};
