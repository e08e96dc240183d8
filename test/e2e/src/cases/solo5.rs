//! Cases about the packet link with a unikernel of another project: Solo5's test_net, run by its tenders spt and hvt,
//! with address 10.0.0.2. The unikernel only answers, so a generator of echo requests takes the place of the engine.

use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pontoon_engine::{Frame, Transmit as _};
use pontoon_event::{Epoll, Events};
use pontoon_link::socket::{Packet, Socket};
use pontoon_link::{BURST, Link as _, Receive as _, Rest, Source, StopAt};
use pontoon_wire::checksum::Sum;
use pontoon_wire::vnet::Offload;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::case::{Case, Context, Outcome};
use crate::pattern::Pattern;
use crate::run::{self, RunningProgram};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::may_skip("solo5.spt-answers", 60, |_| answers("spt", SPT_REQUESTS)),
        Case::may_skip("solo5.hvt-answers", 60, hvt),
    ]
}

/// Number of echo requests to a unikernel behind seccomp (spt).
const SPT_REQUESTS: u32 = 100_000;
/// Number of echo requests to a unikernel in a virtual machine (hvt). Each frame causes a VM exit; nested in another
/// virtual machine hvt answers 670 requests a second (measured 2026-11-21).
const HVT_REQUESTS: u32 = 5_000;

/// Largest number of unanswered echo requests.
const WINDOW: u32 = 16;

/// Largest payload of an echo request in bytes, at an MTU of 1500.
const MAX_PAYLOAD: u32 = 1472;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const ICMP: usize = 8;
const HEADERS: usize = ETHERNET + IPV4 + ICMP;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OUR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Time without a frame after which a frame counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

fn hvt(_: &Context) -> Result<Outcome> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Ok(Outcome::Skipped(format!("needs /dev/kvm: {error}")));
    }
    answers("hvt", HVT_REQUESTS)
}

fn answers(tender: &str, requests: u32) -> Result<Outcome> {
    let Some(solo5) = directory(tender) else {
        return Ok(Outcome::Skipped(format!(
            "needs Solo5's {tender} tender and its test_net in target/solo5 (docs/vm.md)"
        )));
    };
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut tender = start(tender, &solo5, theirs)?;
    loop {
        let line = tender.line()?;
        eprintln!("{line}");
        if line.contains("Serving ping on 10.0.0.2") {
            break;
        }
    }
    let mut generator = Generator::new(ours, requests)?;
    generator.run()?;
    Ok(Outcome::Passed)
}

/// Returns the directory of the tender and the unikernel: that of this program, or the one beside its build
/// directory.
fn directory(tender: &str) -> Option<PathBuf> {
    let own = PathBuf::from(run::own_path());
    let mut directories = own.ancestors().skip(1).take(2).map(|above| above.join("solo5"));
    directories.find(|directory| directory.join(format!("solo5-{tender}")).exists())
}

fn start(tender: &str, solo5: &Path, socket: OwnedFd) -> Result<RunningProgram> {
    let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$@\" 3<&0 </dev/null", "sh"])
        .arg(solo5.join(format!("solo5-{tender}")))
        .args(["--net:service0=@3", &format!("--net-mac:service0={mac}")])
        .arg(solo5.join(format!("test_net.{tender}")))
        .stdin(socket)
        .stdout(Stdio::piped());
    eprintln!("+ {command:?}");
    RunningProgram::of(command.spawn().context("cannot run sh")?)
}

/// A generator of echo requests, which checks every byte of the replies and their order.
struct Generator {
    link: Socket<Packet>,
    epoll: Epoll,
    content: std::sync::Arc<Pattern>,
    requests: u32,
    sent: u32,
    answered: u32,
}

impl Generator {
    fn new(socket: OwnedFd, requests: u32) -> Result<Self> {
        let mut link = Socket::new(Source::Connected(socket), 1500)?;
        let epoll = Epoll::new()?;
        link.watch(&epoll)?;
        Ok(Self {
            link,
            epoll,
            content: Pattern::of(101),
            requests,
            sent: 0,
            answered: 0,
        })
    }

    fn run(&mut self) -> Result<()> {
        let mut events = Events::new();
        let begin = Instant::now();
        while self.answered < self.requests {
            self.send()?;
            if self.receive()? == Rest::Drained && self.answered < self.requests {
                self.epoll.wait(&mut events, Some(PATIENCE))?;
                ensure!(
                    events.edges().next().is_some(),
                    "no answer to request {} within {PATIENCE:?}",
                    self.answered
                );
            }
        }
        let rate = f64::from(self.requests) / begin.elapsed().as_secs_f64();
        eprintln!("{} answers, {rate:.0} a second", self.requests);
        Ok(())
    }

    /// Sends requests until [`WINDOW`] of them are unanswered.
    fn send(&mut self) -> Result<()> {
        let transmitter = self.link.transmitter();
        while self.sent < self.requests.min(self.answered + WINDOW) {
            let payload = payload(&self.content, self.sent);
            let head = request(self.sent, payload);
            let sent = transmitter.send(Offload::NONE, &head, payload);
            ensure!(sent.is_ok(), "request {}: {sent:?}", self.sent);
            self.sent += 1;
        }
        transmitter.flush();
        ensure!(
            !self.link.take_full()?,
            "no room for {WINDOW} frames on the socket"
        );
        Ok(())
    }

    fn receive(&mut self) -> Result<Rest> {
        let Self {
            link,
            content,
            answered,
            sent,
            ..
        } = self;
        let mut verdict = Ok(());
        let burst = link.halves().0.receive(BURST, StopAt::Empty, |frames| {
            verdict = frames.iter().try_for_each(|frame| {
                // The unikernel announces its address at its start.
                if is_arp(frame) {
                    return Ok(());
                }
                ensure!(*answered < *sent, "a reply arrived without a request");
                check(frame, content, *answered).with_context(|| format!("answer {answered}"))?;
                *answered += 1;
                Ok(())
            });
        });
        verdict?;
        ensure!(burst.malformed == 0, "{} malformed frames", burst.malformed);
        match burst.rest {
            Rest::Disconnected(reason) => bail!("{reason}"),
            rest => Ok(rest),
        }
    }
}

/// Returns the payload of request `number`, which differs from the other payloads in length and contents.
fn payload(content: &Pattern, number: u32) -> &[u8] {
    let len = number % (MAX_PAYLOAD + 1);
    // The pattern ends after its period, which may shorten the payload.
    content.at(u64::from(number) * 7919, len.into())
}

/// Returns the Ethernet, IPv4 and ICMP headers of request `number` (RFC 792).
fn request(number: u32, payload: &[u8]) -> [u8; HEADERS] {
    let mut head = [0; HEADERS];
    let (ethernet, rest) = head.split_at_mut(ETHERNET);
    let (ip, icmp) = rest.split_at_mut(IPV4);
    ethernet[..6].copy_from_slice(&MAC);
    ethernet[6..12].copy_from_slice(&OUR_MAC);
    ethernet[12..].copy_from_slice(&[8, 0]);
    let len = (IPV4 + ICMP + payload.len()) as u16;
    ip[..2].copy_from_slice(&[0x45, 0]);
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    ip[8..10].copy_from_slice(&[64, 1]);
    ip[12..16].copy_from_slice(&OUR_ADDRESS.octets());
    ip[16..].copy_from_slice(&ADDRESS.octets());
    let sum = Sum::new().add(ip).finish().to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    icmp[0] = 8;
    icmp[4..].copy_from_slice(&number.to_be_bytes());
    let sum = Sum::new().add(icmp).add(payload).finish().to_be_bytes();
    icmp[2..4].copy_from_slice(&sum);
    head
}

fn is_arp(frame: &Frame<'_>) -> bool {
    frame.head.get(12..ETHERNET) == Some(&[8, 6])
}

/// Checks that `frame` is the complete reply to request `number`.
fn check(frame: &Frame<'_>, content: &Pattern, number: u32) -> Result<()> {
    let mut bytes = vec![0; frame.len];
    frame.copy(0, &mut bytes);
    let payload = payload(content, number);
    ensure!(
        bytes.len() == HEADERS + payload.len(),
        "{} bytes instead of {}",
        bytes.len(),
        HEADERS + payload.len()
    );
    let (ip, icmp) = bytes[ETHERNET..].split_at(IPV4);
    ensure!(
        bytes[..6] == OUR_MAC && bytes[6..12] == MAC,
        "the Ethernet addresses are wrong"
    );
    ensure!(
        ip[12..16] == ADDRESS.octets() && ip[16..] == OUR_ADDRESS.octets(),
        "wrong addresses"
    );
    ensure!(icmp[..2] == [0, 0], "the ICMP message is not an echo reply");
    ensure!(
        icmp[4..8] == number.to_be_bytes(),
        "the echo reply belongs to another request"
    );
    ensure!(
        Sum::new().add(ip).finish() == 0,
        "the IPv4 header checksum is wrong"
    );
    ensure!(Sum::new().add(icmp).finish() == 0, "the ICMP checksum is wrong");
    ensure!(
        icmp[ICMP..] == *payload,
        "the payload differs from that of the request"
    );
    Ok(())
}
