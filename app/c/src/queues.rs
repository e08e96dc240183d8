//! Requests for decisions, and records of flows.

use core::ffi::{c_char, c_int};
use std::net::SocketAddr;

use pontoon::{DecisionToken, Denial, FlowRequest, Protocol, Verdict};

use crate::call::{Failure, call};
use crate::network::{duplicate, lock, network, pontoon_network};
use crate::text;

/// Values of `protocol` in a request.
pub const PONTOON_TCP: u32 = 6;
/// UDP.
pub const PONTOON_UDP: u32 = 17;
/// ICMP or ICMPv6 echo.
pub const PONTOON_ICMP: u32 = 1;

/// Verdicts: the flow is opened as if it had not been asked about.
pub const PONTOON_ALLOW: c_int = 0;
/// The flow is refused by a reset (TCP) or "port unreachable".
pub const PONTOON_DENY_RESET: c_int = 1;
/// The flow is refused by ICMP "administratively prohibited".
pub const PONTOON_DENY_UNREACHABLE: c_int = 2;
/// The flow is refused without an answer.
pub const PONTOON_DENY_DROP: c_int = 3;
/// The flow is opened to another address.
pub const PONTOON_REDIRECT: c_int = 4;

/// A request for a decision about a new flow. Strings end with a zero byte; addresses have the form `192.0.2.1:80` or
/// `[2001:db8::1]:80`, and are empty if there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pontoon_request {
    /// Number to which the verdict refers.
    pub token: u64,
    /// PONTOON_TCP, PONTOON_UDP or PONTOON_ICMP.
    pub protocol: u32,
    /// Time within which the verdict has to arrive, in milliseconds.
    pub deadline_ms: u32,
    /// The guest's address and port; for an echo request, the id takes the port's place.
    pub guest: [c_char; 64],
    /// The other address and port on the host's side.
    pub remote: [c_char; 64],
    /// Destination as the guest has sent it; empty for a client of a published port.
    pub destination: [c_char; 64],
    /// Address and port of the published port to which a client has connected; empty for a flow that the guest opens.
    pub published: [c_char; 64],
    /// The rule that allows the flow, if there are rules; truncated to the size.
    pub rule: [c_char; 320],
}

impl From<&FlowRequest> for pontoon_request {
    fn from(request: &FlowRequest) -> Self {
        let address = |address: Option<SocketAddr>| {
            let text = address.map(|address| address.to_string());
            text::fill(&text.unwrap_or_default())
        };
        Self {
            token: request.token.number(),
            protocol: match request.protocol {
                Protocol::Tcp => PONTOON_TCP,
                Protocol::Udp => PONTOON_UDP,
                _ => PONTOON_ICMP,
            },
            deadline_ms: u32::try_from(request.deadline.as_millis()).unwrap_or(u32::MAX),
            guest: address(Some(request.guest)),
            remote: address(Some(request.remote)),
            destination: address(request.destination),
            published: address(request.published),
            rule: text::fill(request.rule.as_deref().unwrap_or_default()),
        }
    }
}

/// Takes the oldest request for a decision, with the option `decide`. Returns 0 and writes it to `request`, or an error:
/// PONTOON_ERROR_AGAIN if there is none.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `request` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_next_request(
    network: *const pontoon_network,
    request: *mut pontoon_request,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        if request.is_null() {
            return Err(Failure::invalid("the place for the request is null"));
        }
        let queue = network.requests.as_ref();
        let queue = queue.ok_or_else(|| Failure::invalid("the option 'decide' is not set"))?;
        let next = queue.try_next().ok_or_else(Failure::again)?;
        // SAFETY: the caller promises that it can be written.
        unsafe { request.write((&next).into()) };
        Ok(0)
    })
}

/// Sends the verdict about a request: PONTOON_ALLOW, PONTOON_DENY_RESET, PONTOON_DENY_UNREACHABLE, PONTOON_DENY_DROP, or
/// PONTOON_REDIRECT to the address and port `to`, which is otherwise ignored and may be NULL. It has no effect after the deadline.
/// Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `to` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_decide(
    network: *const pontoon_network,
    token: u64,
    verdict: c_int,
    to: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        let verdict = match verdict {
            PONTOON_ALLOW => Verdict::Allow,
            PONTOON_DENY_RESET => Verdict::Deny(Denial::Reset),
            PONTOON_DENY_UNREACHABLE => Verdict::Deny(Denial::Unreachable),
            PONTOON_DENY_DROP => Verdict::Deny(Denial::Drop),
            PONTOON_REDIRECT => {
                // SAFETY: the caller promises that it is a string.
                let to = unsafe { text::read(to)? };
                let invalid = |_| Failure::invalid(format!("'{to}' is not an address with a port"));
                Verdict::Redirect(to.parse().map_err(invalid)?)
            }
            _ => return Err(Failure::invalid("there is no such verdict")),
        };
        network
            .lock()?
            .decide(DecisionToken::from_number(token), verdict)?;
        Ok(0)
    })
}

/// Sends the verdict that the guest's TCP connection is carried by `fd`, a connected Unix stream socket. The library duplicates
/// the descriptor, and sets the socket to non-blocking. It has no effect after the deadline. Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; no other thread closes `fd` during it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_redirect_to_stream(
    network: *const pontoon_network,
    token: u64,
    fd: c_int,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let (network, fd) = unsafe { (self::network(network)?, duplicate(fd)?) };
        network
            .lock()?
            .redirect_to_stream(DecisionToken::from_number(token), fd)?;
        Ok(0)
    })
}

/// Takes the oldest record of a flow, with the option `events`, and writes it to `buffer`: an object of JSON on one line
/// (docs/events.md), with a zero byte at its end. Returns its length, or an error: PONTOON_ERROR_AGAIN if there is none,
/// PONTOON_ERROR_INVALID if the buffer is too short; the record is then kept. 2,048 bytes suffice.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `size` bytes at `buffer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_next_event(
    network: *const pontoon_network,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        let events = network.events.as_ref();
        let (queue, kept) = events.ok_or_else(|| Failure::invalid("the option 'events' is not set"))?;
        let mut kept = lock(kept)?;
        let record = kept.take().or_else(|| queue.try_next());
        let record = record.ok_or_else(Failure::again)?;
        // SAFETY: the caller promises that the buffer can be written.
        match unsafe { text::write(&record, buffer, size) } {
            Ok(len) => Ok(c_int::try_from(len).unwrap_or(c_int::MAX)),
            Err(failure) => {
                *kept = Some(record);
                Err(failure)
            }
        }
    })
}
