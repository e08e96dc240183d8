//! `pontoon top`: the flows of a running instance and their rates, in a terminal.
//!
//! A thread sends requests once a second. The main thread, which draws and reads keys, never waits for it: if the instance
//! does not respond, the screen shows that in a line.

mod state;
mod view;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pontoon_control::reply;
use pontoon_process::termination::TerminationSignals;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::args;
use crate::ctl::client::Client;
use state::{KeyAction, Snapshot, Top};

/// Interval between requests.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum interval between redraws, without a key or a change of the terminal's size.
const FRAME: Duration = Duration::from_millis(250);

pub(crate) fn top(arguments: &args::TopArgs) -> Result<()> {
    let path = arguments.control.clone();
    // It is an error if the instance does not run at the start, as with other verbs.
    let first = total(&path)?;
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "standard input and output must be a terminal (try: pontoon ctl flows --follow)"
    );
    let mut top = Top::new(path.display().to_string());
    top.take(Ok(first), Instant::now());
    // The signals are blocked before another thread is started, so that the thread inherits the mask.
    let signals = TerminationSignals::collect().context("cannot collect signals")?;
    let (to, snapshots) = mpsc::channel();
    thread::spawn(move || follow(&path, &to));
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let result = show(&mut terminal, &snapshots, &signals, top);
    ratatui::restore();
    result
}

/// Shows snapshots on the screen, until a key or a signal ends the program.
fn show(
    terminal: &mut DefaultTerminal,
    snapshots: &Receiver<Result<Snapshot>>,
    signals: &TerminationSignals,
    mut top: Top,
) -> Result<()> {
    while !signals.is_pending()? {
        let now = Instant::now();
        for snapshot in snapshots.try_iter() {
            top.take(snapshot, now);
        }
        terminal.draw(|frame| view::draw(frame, &mut top, now))?;
        if event::poll(FRAME)?
            && let Event::Key(key) = event::read()?
            && top.press(key) == KeyAction::Quit
        {
            break;
        }
    }
    Ok(())
}

/// Sends snapshots, until the receiver is dropped. The statistics do not wait for the flows.
fn follow(path: &Path, to: &Sender<Result<Snapshot>>) {
    loop {
        let total = total(path);
        let responds = total.is_ok();
        if to.send(total).is_err() || responds && to.send(flows(path)).is_err() {
            return;
        }
        thread::sleep(PERIOD);
    }
}

fn total(path: &Path) -> Result<Snapshot> {
    let stats: reply::EngineStats = Client::new(path).get("/v1/stats")?;
    Ok(Snapshot::Total(stats.total))
}

fn flows(path: &Path) -> Result<Snapshot> {
    let flows: reply::Flows = Client::new(path).get("/v1/flows")?;
    Ok(Snapshot::Flows {
        flows: flows.flows,
        at: Instant::now(),
    })
}
