//! Cases about UDP.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail, ensure};

use super::{expect, talk, udp_server};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::network::Network;
use crate::process::QuietMachine;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for mtu in [1500, 65520] {
        for path in [
            NetworkPath::Wide,
            NetworkPath::Narrow,
            NetworkPath::NarrowBehindARouter,
        ] {
            for (topic, df) in [("udp.every-size", false), ("udp.every-size-df", true)] {
                let name = format!("{topic}.mtu-{mtu}.path-{}", path.name());
                let sizes = move |context: &Context, family| every_size(context, family, mtu, path, df);
                // Without the program under test the guest's interface has an MTU of 1500.
                cases.extend(Case::both(&name, 60, sizes).map(|case| match path {
                    NetworkPath::Narrow => case,
                    NetworkPath::Wide | NetworkPath::NarrowBehindARouter => case.pontoon_only(),
                }));
            }
        }
    }
    cases.extend(Case::both("udp.large-datagrams", 30, large));
    cases.extend(Case::both("udp.traceroute-finds-the-mtu", 30, path_mtu).map(Case::pontoon_only));
    cases.extend(Case::both("udp.refused-within-10-ms", 20, refused).map(Case::alone));
    cases.extend(Case::both("udp.5000-peers-of-one-port", 60, peers));
    cases.extend(Case::both("udp.one-mapping-for-two-servers", 20, mapping));
    cases.extend(
        Case::both("udp.unsolicited-is-dropped-and-counted", 20, unsolicited).map(Case::pontoon_only),
    );
    cases.extend(Case::both(
        "udp.fragments-and-extension-headers",
        20,
        |context, family| raw(context, family, "fragments"),
    ));
    cases.extend(Case::both("udp.malformed-frames", 40, |context, family| {
        raw(context, family, "malformed")
    }));
    cases.extend(Case::both("udp.malformed-frames-are-counted", 20, malformed).map(Case::pontoon_only));
    cases
}

/// The network path between the host and the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NetworkPath {
    /// One link with an MTU of 65,535, the largest length of an IP packet.
    Wide,
    /// One link with an MTU of 1500.
    Narrow,
    /// A link with a large MTU to a router, and a link with an MTU of 1500 behind it.
    NarrowBehindARouter,
}

impl NetworkPath {
    const WIDE: u16 = 65535;
    const NARROW: u16 = 1500;

    fn name(self) -> &'static str {
        match self {
            Self::Wide => "65535",
            Self::Narrow => "1500",
            Self::NarrowBehindARouter => "1500-behind-a-router",
        }
    }

    fn mtu(self) -> u16 {
        match self {
            Self::Wide => Self::WIDE,
            Self::Narrow | Self::NarrowBehindARouter => Self::NARROW,
        }
    }

    fn network(self, context: &Context) -> Result<Network<'_>> {
        let network = Network::with_routers(context, u8::from(self == Self::NarrowBehindARouter))?;
        match self {
            Self::Wide => network.set_mtu(0, Self::WIDE)?,
            Self::Narrow => network.set_mtu(0, Self::NARROW)?,
            Self::NarrowBehindARouter => {
                network.set_mtu(0, Self::WIDE)?;
                network.set_mtu(1, Self::NARROW)?;
            }
        }
        Ok(network)
    }
}

/// Tests datagrams of every length in both directions, with a guest's interface of this MTU.
fn every_size(context: &Context, family: Family, mtu: u16, path: NetworkPath, df: bool) -> Result<()> {
    let network = path.network(context)?;
    let server = udp_server(&network, family)?.to_string();
    let least = mtu.min(path.mtu()).to_string();
    let run = network.run().options(["--mtu".to_string(), mtu.to_string()]);
    let run = if df {
        run.guest(["udp", "sizes-df", &server, &least])
    } else {
        run.guest(["udp", "sizes", &server])
    };
    expect(&run.text()?, "ok")
}

/// Tests datagrams larger than the MTU of the host's interface, from a guest's interface with a larger MTU.
fn large(context: &Context, family: Family) -> Result<()> {
    let network = NetworkPath::Narrow.network(context)?;
    let server = udp_server(&network, family)?.to_string();
    expect(&network.run().guest(["udp", "large", &server]).text()?, "ok")
}

/// Tests a path whose second hop is the server, over an interface of the host with a smaller MTU than the guest's.
fn path_mtu(context: &Context, family: Family) -> Result<()> {
    let network = NetworkPath::Narrow.network(context)?;
    let end = network.server_address(family);
    let line = format!("traceroute --mtu -n -q 1 -w 2 -m 4 {end}");
    let text = network.run().shell(&line).text()?;
    ensure!(text.contains("F=1500"), "{text}");
    Ok(())
}

fn refused(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let closed = SocketAddr::new(network.server_address(family), 9).to_string();
    let machine = QuietMachine::begin()?;
    let micros: u64 = network
        .run()
        .guest(["udp", "refused", &closed])
        .text()?
        .trim_end()
        .parse()?;
    machine.judge(micros <= 10_000, &format!("refused after {micros} us"))
}

fn peers(context: &Context, family: Family) -> Result<()> {
    const PEERS: u16 = 5000;
    let network = Network::new(context)?;
    let first = SocketAddr::new(network.server_address(family), 10_000);
    let addresses = (0..PEERS).map(|index| SocketAddr::new(first.ip(), first.port() + index));
    let sockets = network
        .server()
        .enter(|| addresses.map(server::udp::bind).collect::<Result<Vec<_>>>())?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| server::udp::echo_all(&sockets, &done));
        let words = ["udp", "peers", &first.to_string(), &PEERS.to_string()];
        let answer = network.run().guest(words).text();
        done.store(true, Ordering::Relaxed);
        echo.join().unwrap_or_else(|_| bail!("the server panicked"))?;
        expect(&answer?, "ok")
    })
}

/// Tests endpoint-independent mapping (RFC 4787 REQ-1).
fn mapping(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let one = SocketAddr::new(network.server_address(family), 3478);
    let other = SocketAddr::new(network.add_server_address(family, 3)?, 3479);
    network.server().enter(|| server::stun::start(one))?;
    network.server().enter(|| server::stun::start(other))?;
    network
        .run()
        .guest(["udp", "stun", &one.to_string(), &other.to_string()])
        .text()?;
    Ok(())
}

/// Tests address-dependent filtering (RFC 4787): the server may send from other ports; datagrams from another address
/// are dropped and counted.
fn unsolicited(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let known = SocketAddr::new(network.server_address(family), 3478);
    let stranger = network.add_server_address(family, 3)?;
    network.server().enter(|| server::stun::start(known))?;
    let talk = talk()?;
    let mut running = network
        .run()
        .options([counters::LOGGED])
        .talk_to(&talk)
        .guest(["udp", "listen", &known.to_string()])
        .spawn()?;
    let mapped: SocketAddr = running.line()?.parse()?;
    let send = |from, text: &str| -> Result<()> {
        let socket = network
            .server()
            .enter(|| Ok(UdpSocket::bind(SocketAddr::new(from, 0))?))?;
        socket.send_to(text.as_bytes(), mapped)?;
        Ok(())
    };
    send(stranger, "from a stranger")?;
    send(known.ip(), "from a known address")?;
    send(stranger, "from a stranger again")?;
    send(known.ip(), "end")?;
    expect(&running.finish()?, "from a known address\nended")?;
    let counters = Counters::read(&talk)?;
    counters.expect("udp_unsolicited", 2)?;
    // The response of the STUN server, and the datagrams from its address.
    counters.expect("udp_down", 3)
}

/// Tests that each malformed frame is counted once.
fn malformed(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = udp_server(&network, family)?;
    let talk = talk()?;
    let sent = network
        .run()
        .options([counters::LOGGED])
        .talk_to(&talk)
        .guest([
            "raw",
            "broken",
            &server.ip().to_string(),
            &server.port().to_string(),
        ])
        .text()?;
    Counters::read(&talk)?.expect("malformed", sent.trim_end().parse()?)
}

/// Runs the guest command `raw what`, a guest that builds its frames itself.
fn raw(context: &Context, family: Family, what: &str) -> Result<()> {
    let network = Network::new(context)?;
    let server = udp_server(&network, family)?;
    let words = ["raw", what, &server.ip().to_string(), &server.port().to_string()];
    let text = network.run().guest(words).text()?;
    ensure!(text.trim_end() == "ok", "{text}");
    Ok(())
}
