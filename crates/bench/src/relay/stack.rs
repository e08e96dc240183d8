//! Relays, each as its own documentation starts it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::processes::Running;
use super::topology::{Hop, Network, Rewritten, group, sender_address};

/// A relay of others that takes part, and where its program is.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    kind: Kind,
    program: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pontoon,
    Smcroute,
    Socat,
    Mcr,
}

/// A relay that is there.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    kind: Kind,
    program: PathBuf,
    flags: Vec<String>,
}

/// Those of others.
const OTHERS: [Kind; 3] = [Kind::Mcr, Kind::Smcroute, Kind::Socat];

/// Where the sockets and files of others go; nothing else runs in our mount namespace.
const PLACE: &str = "/tmp";

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, program) = match text.split_once('=') {
            Some((name, program)) => (name, Some(PathBuf::from(program))),
            None => (text, None),
        };
        let kind = OTHERS.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| "none of mcr, smcroute, socat".to_owned())?;
        Ok(Self { kind, program })
    }
}

/// Pontoon, and those that are wanted, or all that are there.
pub(super) fn find(wanted: &[Wanted], flags: &str) -> Result<Vec<Stack>> {
    let mut stacks = vec![Stack {
        kind: Kind::Pontoon,
        program: std::env::current_exe().context("cannot find this program")?,
        flags: flags.split_whitespace().map(str::to_owned).collect(),
    }];
    let stack = |kind: Kind, program| Stack {
        kind,
        program,
        flags: Vec::new(),
    };
    if wanted.is_empty() {
        let there = OTHERS
            .iter()
            .filter_map(|kind| Some((*kind, in_path(kind.program())?)));
        stacks.extend(there.map(|(kind, program)| stack(kind, program)));
    }
    for one in wanted {
        let program = one.program.clone().or_else(|| in_path(one.kind.program()));
        let (name, program_name) = (one.kind.name(), one.kind.program());
        let program =
            program.with_context(|| format!("there is no {program_name} (try: --against {name}=PROGRAM)"))?;
        stacks.push(stack(one.kind, program));
    }
    Ok(stacks)
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pontoon => "pontoon",
            Self::Smcroute => "smcroute",
            Self::Socat => "socat",
            Self::Mcr => "mcr",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Pontoon => "pontoon",
            Self::Smcroute => "smcrouted",
            Self::Socat => "socat",
            Self::Mcr => "mcrd",
        }
    }
}

impl Stack {
    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The kernel's routes, which smcroute sets, keep the group.
    pub(super) fn rewritten(&self) -> Rewritten {
        match self.kind {
            Kind::Smcroute => Rewritten::No,
            Kind::Pontoon | Kind::Socat | Kind::Mcr => Rewritten::Yes,
        }
    }

    /// Starts one at every hop.
    pub(super) fn start(&self, network: &Network) -> Result<Running> {
        let mut running = Running(Vec::new());
        for hop in network.hops() {
            let started = match self.kind {
                Kind::Pontoon => self.pontoon(&hop),
                Kind::Smcroute => self.smcroute(&hop),
                Kind::Socat => self.socat(&hop),
                Kind::Mcr => self.mcr(&hop),
            };
            running.0.extend(started?);
        }
        Ok(running)
    }

    fn pontoon(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (from, to) = (group(hop.number), group(hop.number + 1));
        let outputs = (0..hop.outputs.len()).map(|output| format!("out{output} {to}"));
        let rule = format!("in {from} -> {}", outputs.collect::<Vec<_>>().join(", "));
        let mut command = self.command();
        command
            .args(["relay", "--quiet", "--rule", &rule])
            .args(&self.flags);
        Ok(vec![spawn(hop, &mut command)?])
    }

    fn smcroute(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (group, sender) = (*group(0).ip(), sender_address());
        let outputs = (0..hop.outputs.len()).map(|output| format!("out{output}"));
        let outputs = outputs.collect::<Vec<_>>().join(" ");
        let place = format!("{PLACE}/smcroute.{}.{}", std::process::id(), hop.number);
        let file = format!("{place}.conf");
        std::fs::write(
            &file,
            format!(
                "mgroup from in group {group}\nmroute from in source {sender} group {group} to {outputs}\n"
            ),
        )?;
        let mut command = self.command();
        command.args(["-n", "-f", &file, "-i", &format!("bench{}", hop.number)]);
        command.args(["-u", &format!("{place}.sock"), "-P", &format!("{place}.pid")]);
        Ok(vec![spawn(hop, &mut command)?])
    }

    /// One process for each output.
    fn socat(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (from, to) = (group(hop.number), group(hop.number + 1));
        let start = |address| {
            let mut command = self.command();
            command.arg("-u").args([
                format!(
                    "UDP4-RECV:{},bind={ip},reuseaddr,rcvbuf=4194304,ip-add-membership={ip}:in",
                    from.port(),
                    ip = from.ip()
                ),
                format!("UDP4-DATAGRAM:{to},ip-multicast-if={address},ip-multicast-ttl=8"),
            ]);
            spawn(hop, &mut command)
        };
        hop.outputs.iter().map(start).collect()
    }

    fn mcr(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (from, to) = (group(hop.number), group(hop.number + 1));
        let socket = format!("{PLACE}/mcr.{}.{}", std::process::id(), hop.number);
        let mut command = self.command();
        command.args(["supervisor", "--control-socket-path", &socket]);
        command.args(["--interface", "in", "--num-workers", "1"]);
        let child = spawn(hop, &mut command)?;
        let begin = Instant::now();
        loop {
            let mut control = Command::new(self.program.with_file_name("mcrctl"));
            control.args(["--socket-path", &socket, "add", "--input-interface", "in"]);
            control.args(["--input-group", &from.ip().to_string()]);
            control.args(["--input-port", &from.port().to_string()]);
            for output in 0..hop.outputs.len() {
                control.args(["--outputs", &format!("{to}:out{output}")]);
            }
            control.stdout(Stdio::null()).stderr(Stdio::null());
            if hop.namespace.enter(|| Ok(control.status()?))?.success() {
                return Ok(vec![child]);
            }
            ensure!(begin.elapsed() < PATIENCE, "mcrctl cannot add a rule");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn command(&self) -> Command {
        Command::new(&self.program)
    }
}

/// How long a daemon may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

fn spawn(hop: &Hop<'_>, command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let program = command.get_program().display().to_string();
    hop.namespace
        .enter(|| command.spawn().with_context(|| format!("cannot run {program}")))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    places.find_map(|place| Some(place.join(name)).filter(|program| program.is_file()))
}
