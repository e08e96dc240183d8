//! Threads of a network, and the functions of the program that they call. This module has no items.
//!
//! # Threads
//!
//! | thread | when | work |
//! |---|---|---|
//! | `pontoon` | one for each network, unless it was built [`without_thread`](crate::NetworkBuilder::without_thread) | processes packets |
//! | `worker-N` | for vhost-user with several queues, one for each further queue | processes packets |
//! | `pontoon-host` | one for each network, unless it was built `without_thread` | follows the host's addresses, routes and resolvers |
//! | `pontoon-events` | if a function or a queue receives events, unless the network has no thread | reads events, calls the function |
//!
//! All of them have ended when [`Network::stop`](crate::Network::stop) returns, or when the network was dropped. They inherit the
//! signal mask of the thread that starts the network. Networks share no threads, locks or limits, and any number of them exist in
//! one process.
//!
//! # Values
//!
//! All types are `Send`. [`Network`](crate::Network) is used by one thread at a time, which its `&mut self` ensures; a
//! [`VerdictSender`](crate::VerdictSender), [`RequestQueue`](crate::RequestQueue) or [`EventQueue`](crate::EventQueue) by any
//! number of threads. A [`NetDevice`](crate::NetDevice) and a [`FramePort`](crate::FramePort) belong to the guest's side, and are
//! used beside the network, for example in the thread of a virtual CPU or device.
//!
//! # Waiting
//!
//! Functions that change a network ([`publish`](crate::Network::publish), [`set_rules`](crate::Network::set_rules), ...) send a
//! message to its threads and wait until these have applied it: for the time of one turn of their loop, which is some hundred
//! microseconds under load. After 5 s they return an error. [`stats`](crate::Network::stats) reads shared memory and does not
//! wait. [`stop`](crate::Network::stop) and dropping a network wait for its threads, and so for a function of the program that has
//! not returned.
//!
//! # Functions of the program
//!
//! No function of the program is called while the library holds a lock.
//!
//! | function | called in | while it does not return | if it panics |
//! |---|---|---|---|
//! | of [`decide_by`](crate::NetworkBuilder::decide_by) | the thread that processes packets | no packet of the network is processed | the flow is denied |
//! | of [`on_event`](crate::NetworkBuilder::on_event) | `pontoon-events` | events wait, and are lost when their memory is full | it is not called again, and `stop` returns an error |
//!
//! A decider that takes 10 ms or longer is counted ([`Stats::slow_decisions`](crate::Stats::slow_decisions)), and logged by
//! programs with debug assertions. A decider that needs time returns `None`, or is a
//! [queue](crate::NetworkBuilder::decide_by_queue).
//!
//! A function may use other networks and a `VerdictSender` of its own network. It cannot use its own network, which is borrowed
//! mutably by the caller, except behind a lock: a decider that waits for a lock whose owner waits for the network is a deadlock,
//! which ends after 5 s with an error for the owner.
//!
//! # Without a thread
//!
//! The program polls the descriptor of the network ([`AsFd`](std::os::fd::AsFd)) for reading, with its own descriptors, and calls
//! [`dispatch`](crate::Network::dispatch) when it is readable. A call takes up to some milliseconds under load, and processes
//! what is pending; the descriptor is readable again if there is more. Timers and changes of the host's network are a part of the
//! descriptor: while the program does not call `dispatch`, no packet is processed, and so none reaches an address that the host
//! has got.
//!
//! ```
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//!
//! use pontoon::{Error, ErrorKind, Guest, Network};
//! use rustix::event::{PollFd, PollFlags, poll};
//!
//! let (guest, ours) = UnixStream::pair()?;
//! let mut network = Network::builder().without_thread().attach(Guest::stream(ours.into())?)?;
//! drop(guest); // This guest disconnects at once.
//! loop {
//!     poll(&mut [PollFd::new(&network, PollFlags::IN)], None)?;
//!     match network.dispatch() {
//!         Ok(()) => {}
//!         Err(error) if error.kind() == ErrorKind::Ended => break,
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Processes and signals
//!
//! A child process that the program forks has no network: the threads do not exist in it, and it must not use, stop or drop the
//! value (it may execute another program). All descriptors of the library are close-on-exec.
//!
//! There is one signal handler, and only for [`Guest::vhost_user`](crate::Guest::vhost_user): for SIGBUS, as files of a guest's
//! memory may be truncated. Signals for other addresses are passed to the earlier handler. A program that installs its own
//! handler afterwards has to call this one, which stays installed when the network has stopped. SIGPIPE is not raised.
