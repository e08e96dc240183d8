//! A vhost-user network device that is built from rust-vmm's crates.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;
use vhost::vhost_user::message::VhostUserVirtioFeatures;
use vhost::vhost_user::{Listener, VhostUserProtocolFeatures};
use vhost_user_backend::{ShutdownHandle, VhostUserBackendMut, VhostUserDaemon, VringMutex, VringT};
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

/// Number of the feature bit VIRTIO_F_VERSION_1.
const VIRTIO_F_VERSION_1: u32 = 32;
/// Number of the feature bit VIRTIO_F_EVENT_IDX.
const VIRTIO_RING_F_EVENT_IDX: u32 = 29;

/// Length of `virtio_net_hdr` with `num_buffers` in bytes.
const HEADER: usize = 12;

/// A vhost-user device for one front-end, with its own threads.
pub struct Device {
    directory: TempDir,
    shutdown: mpsc::Receiver<ShutdownHandle>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts a device that sends `frames` to the guest. Received frames are passed to `sink`, or, without one, sent
    /// back.
    pub fn new(frames: Vec<Vec<u8>>, sink: Option<mpsc::Sender<Vec<u8>>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut listener = Listener::new(socket(directory.path()), true).unwrap();
        let (sender, shutdown) = mpsc::channel();
        let net = NetBackend {
            memory: None,
            frames: frames.into(),
            sink,
        };
        let thread = thread::spawn(move || {
            let backend = Arc::new(Mutex::new(net));
            let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
            let mut daemon = VhostUserDaemon::new("device".into(), backend, memory).unwrap();
            daemon.start(&mut listener).unwrap();
            sender.send(daemon.shutdown_handle().unwrap()).unwrap();
            // The result of the session is not checked.
            let _ = daemon.wait();
        });
        Self {
            directory,
            shutdown,
            thread: Some(thread),
        }
    }

    /// Returns the path of the device's socket.
    pub fn path(&self) -> PathBuf {
        socket(self.directory.path())
    }
}

impl Drop for Device {
    /// Stops the device, which may be connected to a front-end.
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.shutdown.recv().unwrap().shutdown();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}

/// The device's side of the two virtqueues.
struct NetBackend {
    memory: Option<GuestMemoryAtomic<GuestMemoryMmap>>,
    /// Frames to be sent to the guest.
    frames: VecDeque<Vec<u8>>,
    sink: Option<mpsc::Sender<Vec<u8>>>,
}

impl VhostUserBackendMut for NetBackend {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        2
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        1_u64 << VIRTIO_F_VERSION_1
            | 1_u64 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _: bool) {}

    fn update_memory(&mut self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        self.memory = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        Some(new_event_consumer_and_notifier(EventFlag::NONBLOCK).unwrap())
    }

    /// Processes a kick of either ring: receives all frames, and sends as many frames as the guest has buffers for.
    fn handle_event(&mut self, _: u16, _: EventSet, vrings: &[VringMutex], _: usize) -> io::Result<()> {
        let [to_guest, from_guest] = vrings else {
            panic!("{} rings", vrings.len())
        };
        // The daemon calls this function as soon as a ring has its kick descriptor, which may be before it is ready.
        if vrings.iter().any(|vring| !vring.get_ref().get_queue().ready()) {
            return Ok(());
        }
        loop {
            self.take(from_guest);
            self.give(to_guest);
            let more = from_guest.enable_notification().unwrap();
            let room = to_guest.enable_notification().unwrap() && !self.frames.is_empty();
            if !more && !room {
                return Ok(());
            }
        }
    }
}

impl NetBackend {
    fn take(&mut self, vring: &VringMutex) {
        let memory = self.memory.as_ref().unwrap().memory();
        let mut ring = vring.get_mut();
        while let Some(chain) = ring.get_queue_mut().pop_descriptor_chain(memory.clone()) {
            let head = chain.head_index();
            let mut bytes = Vec::new();
            for descriptor in chain {
                assert!(!descriptor.is_write_only());
                let at = bytes.len();
                bytes.resize(at + descriptor.len() as usize, 0);
                memory.read_slice(&mut bytes[at..], descriptor.addr()).unwrap();
            }
            let frame = bytes.split_off(HEADER);
            assert_eq!(bytes, [0; HEADER]);
            match &self.sink {
                // The test may have dropped the receiver.
                Some(sink) => drop(sink.send(frame)),
                None => self.frames.push_back(frame),
            }
            ring.add_used(head, 0).unwrap();
        }
        if ring.needs_notification().unwrap() {
            ring.signal_used_queue().unwrap();
        }
    }

    fn give(&mut self, vring: &VringMutex) {
        let memory = self.memory.as_ref().unwrap().memory();
        let mut ring = vring.get_mut();
        while !self.frames.is_empty() {
            let Some(mut chain) = ring.get_queue_mut().pop_descriptor_chain(memory.clone()) else {
                break;
            };
            let head = chain.head_index();
            let descriptor = chain.next().unwrap();
            assert!(descriptor.is_write_only());
            let mut bytes = vec![0; HEADER];
            // The field num_buffers of virtio_net_hdr.
            bytes[HEADER - 2] = 1;
            bytes.extend(self.frames.pop_front().unwrap());
            memory.write_slice(&bytes, descriptor.addr()).unwrap();
            ring.add_used(head, bytes.len() as u32).unwrap();
        }
        if ring.needs_notification().unwrap() {
            ring.signal_used_queue().unwrap();
        }
    }
}
