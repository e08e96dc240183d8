//! Parser of the command line of `pontoon-bench`. Parsing opens no file and starts no process.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::styling::Styles;
use clap::{Args, Parser, Subcommand, value_parser};

use crate::library::LibraryGuest;
use crate::scenario::{Profile, SCENARIOS};
use crate::stack::{self, PONTOON, Selection, StackPurpose};
use crate::tap_guest::GuestLink;

/// Help text of `pontoon-bench --help`: examples first, then the options, one line each.
const HELP: &str = "\
{about}

  pontoon bench                                           all scenarios, quickly, with all installed stacks
  pontoon bench rr tcp-up --against veth,pasta            two scenarios, pontoon and two other stacks
  pontoon bench --variant poll='--io poll' crr            pontoon with two sets of flags
  pontoon bench --against pasta=/opt/pasta,pontoon-old=/tmp/pontoon    with these programs
  pontoon bench --profile full --output F.json --html F.html --resume  start, or continue after an interruption
  pontoon bench compare A.json B.json                     differences of two reports
  pontoon bench crr --against qemu-pontoon,qemu-passt     with a virtual machine
  pontoon bench rr --against lossy-stream-pontoon,lossy-stream-passt   without one, over a lossy link
  pontoon bench relay --rate 500000 --against smcroute    multicast relays
  pontoon bench list                                      scenarios, cells, and installed stacks
  pontoon bench shm                                       cost of a frame for a guest, by calls and in shared memory
  pontoon bench exits                                     exits of a virtual machine for a packet

{usage-heading} {usage}

{options}

A table is printed to standard output, progress to standard error. All measurements run in namespaces that end with the
run; root is not needed. The exit status is 0 if all cells were measured (or are not possible, and the table has the
reason), 3 if a measurement stalled or failed, 1 for other errors, 2 for wrong usage.
";

/// Compare network stacks on this machine
#[derive(Debug, Parser)]
#[command(
    name = "pontoon-bench",
    version,
    styles = Styles::plain(),
    help_template = HELP,
    override_usage = "pontoon bench [OPTIONS] [SCENARIO...]",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
    #[command(flatten)]
    pub(crate) measure: Measure,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Compare multicast relays
    Relay(crate::relay::RelayArguments),
    /// Compare two reports
    Compare(Compare),
    /// List scenarios, cells, and installed stacks
    List(List),
    /// Measure the cost of a frame for a guest, by a call for each and in shared memory
    Shm(Shm),
    /// Count VM exits of a guest, per packet and per connection
    Exits(crate::exits::Exits),
    #[command(hide = true)]
    LoadServer(LoadServer),
    #[command(hide = true)]
    LoadClient(LoadClient),
    #[command(hide = true)]
    TapGuest(TapGuest),
    #[command(hide = true)]
    Library(Library),
    #[command(hide = true)]
    FirstByte(FirstByte),
}

#[derive(Args, Debug)]
pub(crate) struct Measure {
    /// Scenarios [default: all]
    #[arg(value_name = "SCENARIO", value_parser = scenario, hide = true)]
    pub(crate) scenarios: Vec<String>,
    #[command(flatten)]
    pub(crate) stacks: Stacks,
    /// Number of measurements of each cell [default: 6 or 7]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Seconds of each measurement [default: 0.4 or 1]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) duration: Option<f64>,
    /// Write the report as JSON, after every measurement
    #[arg(long, value_name = "F.json")]
    pub(crate) output: Option<PathBuf>,
    /// Write the report as an HTML page with plots, at the end
    #[arg(long, value_name = "F.html")]
    pub(crate) html: Option<PathBuf>,
    /// Continue the incomplete run in the file of --output
    #[arg(long, requires = "output")]
    pub(crate) resume: bool,
}

/// Options that select the stacks to compare and the length of the run (quick or full).
#[derive(Args, Debug)]
pub(crate) struct Stacks {
    /// Stacks to compare with pontoon: NAME[=PROGRAM] [default: those of namespaces]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = against)]
    pub(crate) against: Vec<Selection>,
    /// Compare pontoon with these flags of 'run', too
    #[arg(long, value_name = "NAME='FLAGS'", value_parser = variant)]
    pub(crate) variant: Vec<Selection>,
    /// quick (ten minutes) or full (two hours)
    #[arg(
        long,
        value_name = "PROFILE",
        value_enum,
        default_value = "quick",
        hide_possible_values = true
    )]
    pub(crate) profile: Profile,
}

#[derive(Args, Debug)]
pub(crate) struct Compare {
    /// The report of the first run
    #[arg(value_name = "A.json")]
    pub(crate) before: PathBuf,
    /// The report of the second run
    #[arg(value_name = "B.json")]
    pub(crate) after: PathBuf,
    /// Compare stack A of the first report with stack B of the second
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1)]
    pub(crate) stacks: Vec<String>,
    /// Write the comparison [default: to standard output]
    #[arg(long, value_name = "F.md")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) stacks: Stacks,
}

#[derive(Args, Debug)]
pub(crate) struct Shm {
    /// Number of measurements of each row; its figures are medians
    #[arg(long, value_name = "N", default_value = "5", value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    pub(crate) duration: f64,
    /// Measure spt of this built source tree of Solo5, too, over a tap
    #[arg(long, value_name = "DIR")]
    pub(crate) solo5: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "F.json")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `load-server`, the server to which the load clients of all stacks connect.
#[derive(Args, Debug)]
pub(crate) struct LoadServer {
    pub(crate) listen: IpAddr,
}

/// Arguments of `load-client`, the load client that runs inside the stack under test.
#[derive(Args, Debug)]
pub(crate) struct LoadClient {
    /// TCP congestion control that the client sets in its network namespace before it runs the job.
    #[arg(long)]
    pub(crate) congestion_control: Option<String>,
    pub(crate) server: IpAddr,
    /// The job of the client: a [`crate::job::JobSpec`] as JSON.
    pub(crate) job_spec: String,
}

/// Arguments of `tap-guest`, which runs a command in a network namespace with a tap instead of a virtual
/// machine.
#[derive(Args, Debug)]
pub(crate) struct TapGuest {
    /// MTU of the tap in bytes.
    #[arg(long)]
    pub(crate) mtu: u16,
    /// The link that carries the frames of the tap.
    #[arg(long)]
    pub(crate) guest_link: GuestLink,
    /// Path of the UNIX socket at which the backend (pontoon or passt) listens.
    pub(crate) socket: PathBuf,
    /// The command to run in the namespace.
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of `library`, which embeds the library.
#[derive(Args, Debug)]
pub(crate) struct Library {
    /// The function of the library that serves the guest.
    #[arg(long)]
    pub(crate) guest: LibraryGuest,
    /// MTU of the guest's link in bytes.
    #[arg(long)]
    pub(crate) mtu: u16,
    /// TCP port of the guest to publish under the same number on the host.
    #[arg(long)]
    pub(crate) publish: Option<u16>,
    /// Path of the UNIX socket at which the program listens.
    pub(crate) socket: PathBuf,
}

/// Arguments of `first-byte`, which sends one byte to the echo port of the load server and receives it back.
#[derive(Args, Debug)]
pub(crate) struct FirstByte {
    pub(crate) server: IpAddr,
    pub(crate) port: u16,
}

impl Stacks {
    /// Returns the stacks to compare, by the options `--against` and `--variant`. Pontoon is one of them,
    /// unless only stacks for virtual machines are named.
    pub(crate) fn wanted(&self) -> Vec<Selection> {
        let mut wanted = self.against.clone();
        if wanted.is_empty() {
            wanted = stack::defaults().collect();
        }
        let is_pontoon = |one: &Selection| one.name == PONTOON;
        if !wanted.iter().any(is_pontoon) && wanted.iter().any(|one| stack::is_default(&one.name)) {
            wanted.push(Selection::usual(PONTOON));
        }
        let variants = match self.profile {
            Profile::Full if self.variant.is_empty() => &["event", "poll"][..],
            Profile::Full | Profile::Quick => &[],
        };
        wanted.extend(variants.iter().map(|mode| Selection {
            flags: vec!["--io".to_owned(), (*mode).to_owned()],
            ..Selection::usual(&format!("{PONTOON}-{mode}"))
        }));
        wanted.extend(self.variant.iter().cloned());
        wanted
    }
}

fn scenario(text: &str) -> Result<String, String> {
    if SCENARIOS.iter().any(|scenario| scenario.name == text) {
        return Ok(text.to_owned());
    }
    Err("unknown scenario (try: pontoon bench list)".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.05 to 600".into()),
    }
}

fn against(text: &str) -> Result<Selection, String> {
    Selection::parse(text, StackPurpose::Network)
}

fn variant(text: &str) -> Result<Selection, String> {
    let (name, flags) = text.split_once('=').ok_or("not of the form NAME='FLAGS'")?;
    let name = if name.starts_with(PONTOON) {
        name.to_owned()
    } else {
        format!("{PONTOON}-{name}")
    };
    Ok(Selection {
        name: stack::file_name(&name)?,
        program: None,
        flags: flags.split_whitespace().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests;
