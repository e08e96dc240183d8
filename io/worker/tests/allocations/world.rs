//! Test environment: a worker between the network namespace of a guest and that of the test.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pontoon_engine::Config;
use pontoon_engine::address_plan::{AddressPlan, Ipv4Plan};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use pontoon_sys::tun::{self, Tap};
use pontoon_wire::Mac;
use pontoon_worker::events::{EventReader, EventSetup, Found};
use pontoon_worker::ledger::SharedLedger;
use pontoon_worker::messages::{EngineChannel, Report, SupervisorChannel};
use pontoon_worker::stats::StatsTable;
use pontoon_worker::{Attachment, EngineSetup, Pacing, TapOffload, TapQueues};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::counting;
use crate::namespace::{ip, sysctl};
use crate::workload::{self, Workload};

const WARM_UP: Duration = Duration::from_secs(2);
const STEADY: Duration = Duration::from_secs(10);

/// MTU of the guest's tap in bytes.
const MTU: u16 = 65_520;

/// Address of the gateway, which is translated to the loopback address of the test's namespace.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Runs the workload, and checks that the worker allocated nothing after the warm-up.
///
/// # Panics
/// The worker allocated memory, the guest did too few operations, or a step failed.
pub(crate) fn judge(workload: &'static Workload) {
    ip("link set lo up");
    let (namespace, tap) = thread::spawn(guest).join().unwrap();
    let (supervisor, worker) = worker(tap);
    let server = (workload.serve)().unwrap();
    let client = thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        (workload.load)((GATEWAY, server.port()).into())
    });

    thread::sleep(WARM_UP);
    let before = workload::operations();
    let (allocations, first) = counting::during(|| thread::sleep(STEADY));
    let operations = workload::operations() - before;

    workload::finish();
    client.join().unwrap().unwrap();
    drop(supervisor);
    worker.join().unwrap().unwrap();

    let unit = workload.unit;
    eprintln!("{allocations} allocations in {operations} {unit}");
    if let Some(first) = first {
        panic!("{allocations} allocations; the first:\n{first}");
    }
    assert!(operations >= workload.least, "{operations} {unit} are no load");
}

/// Creates a network namespace for the guest, and the tap in it.
fn guest() -> (File, Tap) {
    // SAFETY: unshare(2) with this flag changes only the network namespace of the calling thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    let tap = tun::open("tap0", TapOffload::all_but(&Disabled::default()), 1).unwrap();
    ip("link set lo up");
    ip(&format!("link set tap0 mtu {MTU} txqueuelen 4000 up"));
    ip("addr add 10.0.2.15/24 dev tap0");
    // Ports of the guest's connections in TIME_WAIT are not free for its next connections, so their number is limited.
    sysctl("net/ipv4/tcp_max_tw_buckets", "1000");
    (File::open("/proc/thread-self/ns/net").unwrap(), tap)
}

/// Starts a worker on the tap and waits until it is ready; returns the supervisor's end of its channel.
fn worker(tap: Tap) -> (SupervisorChannel, JoinHandle<io::Result<()>>) {
    let (supervisor, ours) = seqpacket::pair().unwrap();
    let ours = EngineChannel::new(ours, 0).unwrap();
    let mut supervisor = SupervisorChannel::new(supervisor, 0).unwrap();
    let events = EventSetup::new(1, 1024).unwrap();
    read_events(EventReader::new(events.try_clone().unwrap()));
    let setup = EngineSetup {
        config: config(),
        owned: Vec::new(),
        published: Vec::new(),
        socket_helper: None,
        raw_icmp: [None, None],
        pacing: Pacing::Hybrid,
        outbound: pontoon_worker::Outbound::default(),
        ledger: SharedLedger::new(1, 1024).unwrap(),
        stats: StatsTable::shared(1, 16).unwrap(),
        events: Some(events),
        rules_generation: 1,
        decider: None,
        restarted: false,
        set_log_level: |_| {},
    };
    let attachment = Attachment::Tap(TapQueues {
        queues: tap.queues,
        offload: tap.offload,
        vhost: None,
    });
    let worker = thread::spawn(move || {
        counting::judge_this_thread();
        let sandbox = Sandbox {
            role: Role::Engine,
            namespaces: Namespaces::NONE,
            required: false,
        };
        pontoon_worker::run(setup, attachment, sandbox, &Disabled::from_env()?, ours)
    });
    let timeout = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&supervisor, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(supervisor.receive().unwrap(), Some(Report::Ready));
    (supervisor, worker)
}

/// Reads the events of flows, as the supervisor does.
fn read_events(mut reader: EventReader) {
    reader.set_used(true);
    thread::spawn(move || {
        loop {
            while reader.read(4096, |found| {
                assert!(matches!(found, Found::Event(_)), "{found:?}")
            }) {}
            thread::sleep(Duration::from_millis(5));
        }
    });
}

fn config() -> Config {
    let config = Config::new(AddressPlan::private(
        Some(Ipv4Plan::private(Ipv4Plan::USUAL)),
        None,
    ));
    Config {
        our_mac: Mac([2, 0, 0, 0, 0, 2]),
        guest_mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: MTU,
        host_loopback: vec![IpAddr::V4(GATEWAY)],
        max_flows: 1024,
        max_udp_ports: 7_058,
        ..config
    }
}
