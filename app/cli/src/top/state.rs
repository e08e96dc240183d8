//! State of the screen of `pontoon top`: flows, their rates, and their order.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use pontoon_control::reply::{Flow, WorkerStats};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A response of the instance. The statistics are sent by the supervisor, the flows by the engine, which may not respond.
#[derive(Debug)]
pub(super) enum Snapshot {
    Total(WorkerStats),
    Flows { flows: Vec<Flow>, at: Instant },
}

/// State of the screen of `pontoon top`.
#[derive(Debug)]
pub(super) struct Top {
    /// Path of the control socket.
    pub(super) path: String,
    pub(super) total: WorkerStats,
    /// Rows of the table, in the order of `sort`.
    pub(super) rows: Vec<Row>,
    pub(super) sort: Sort,
    /// Number of rows above the first visible one.
    pub(super) above: usize,
    /// Error of the last request, if it failed.
    pub(super) problem: Option<String>,
    /// Time of the last response or error.
    pub(super) last_response: Instant,
    /// Time of the snapshot whose flows the rows show.
    seen: Option<Instant>,
}

/// Row of the table: a flow and its rates in bytes per second.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) flow: Flow,
    pub(super) up: u64,
    pub(super) down: u64,
}

/// Order of the rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// By the sum of the rates in both directions, largest first.
    Rate,
    Up,
    Down,
    /// By the number of bytes in both directions, largest first.
    Bytes,
    /// By age, oldest first.
    Age,
    /// By remote address.
    Remote,
}

/// Result of a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Continue,
    Quit,
}

/// Number of rows that a page key scrolls.
const PAGE: usize = 10;

impl Top {
    pub(super) fn new(path: String) -> Self {
        Self {
            path,
            total: WorkerStats::default(),
            rows: Vec::new(),
            sort: Sort::Rate,
            above: 0,
            problem: None,
            last_response: Instant::now(),
            seen: None,
        }
    }

    /// Replaces the flows by those of a snapshot. An error leaves the rows unchanged.
    pub(super) fn take(&mut self, snapshot: Result<Snapshot>, now: Instant) {
        self.last_response = now;
        let (flows, at) = match snapshot {
            Ok(Snapshot::Total(total)) => {
                self.total = total;
                return;
            }
            Ok(Snapshot::Flows { flows, at }) => (flows, at),
            Err(error) => {
                self.problem = Some(format!("{error:#}"));
                return;
            }
        };
        self.problem = None;
        let passed = self.seen.map(|seen| at.duration_since(seen));
        let before: HashMap<String, Flow> = self
            .rows
            .drain(..)
            .map(|row| (row.flow.id.clone(), row.flow))
            .collect();
        self.rows = flows
            .into_iter()
            .map(|flow| Row::new(before.get(&flow.id), flow, passed))
            .collect();
        self.seen = Some(at);
        self.arrange();
    }

    /// Returns the sums of the rates of all flows, up and down, in bytes per second.
    pub(super) fn rates(&self) -> (u64, u64) {
        let add = |(up, down), row: &Row| {
            (
                u64::saturating_add(up, row.up),
                u64::saturating_add(down, row.down),
            )
        };
        self.rows.iter().fold((0, 0), add)
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> KeyAction {
        let sort = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return KeyAction::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char(letter) => Sort::ALL.into_iter().find(|sort| sort.key() == letter),
            KeyCode::Up => return self.scroll(self.above.saturating_sub(1)),
            KeyCode::Down => return self.scroll(self.above + 1),
            KeyCode::PageUp => return self.scroll(self.above.saturating_sub(PAGE)),
            KeyCode::PageDown => return self.scroll(self.above + PAGE),
            KeyCode::Home => return self.scroll(0),
            _ => None,
        };
        if let Some(sort) = sort {
            self.sort = sort;
            self.above = 0;
            self.arrange();
        }
        KeyAction::Continue
    }

    fn scroll(&mut self, above: usize) -> KeyAction {
        self.above = above;
        KeyAction::Continue
    }

    fn arrange(&mut self) {
        let rows = &mut self.rows;
        // Rows that compare equal are ordered by id, so that they keep their order from one snapshot to the next.
        rows.sort_by(|one, other| one.flow.id.cmp(&other.flow.id));
        match self.sort {
            Sort::Rate => rows.sort_by_key(|row| Reverse(row.up.saturating_add(row.down))),
            Sort::Up => rows.sort_by_key(|row| Reverse(row.up)),
            Sort::Down => rows.sort_by_key(|row| Reverse(row.down)),
            Sort::Bytes => rows.sort_by_key(|row| Reverse(row.bytes())),
            Sort::Age => rows.sort_by_key(|row| Reverse(row.flow.age_ms)),
            Sort::Remote => rows.sort_by_key(|row| row.flow.remote),
        }
    }
}

impl Row {
    /// Computes the rates of a flow; `before` is the same flow in the previous snapshot, which was taken `passed` ago.
    fn new(before: Option<&Flow>, flow: Flow, passed: Option<Duration>) -> Self {
        // If a flow is younger than the interval, its bytes are divided by its age.
        let time = passed.map(|passed| passed.min(Duration::from_millis(flow.age_ms)).as_millis());
        let rate = |now: u64, before: Option<u64>| match time {
            Some(time @ 1..) => {
                let rate = u128::from(now.saturating_sub(before.unwrap_or(0))) * 1000 / time;
                u64::try_from(rate).unwrap_or(u64::MAX)
            }
            Some(0) | None => 0,
        };
        Self {
            up: rate(flow.bytes_up, before.map(|flow| flow.bytes_up)),
            down: rate(flow.bytes_down, before.map(|flow| flow.bytes_down)),
            flow,
        }
    }

    /// Returns the number of bytes of the flow in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.flow.bytes_up.saturating_add(self.flow.bytes_down)
    }
}

impl Sort {
    pub(super) const ALL: [Self; 6] = [
        Self::Rate,
        Self::Up,
        Self::Down,
        Self::Bytes,
        Self::Age,
        Self::Remote,
    ];

    /// Returns the name of the order on the screen.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "speed",
            Self::Up => "up",
            Self::Down => "down",
            Self::Bytes => "bytes",
            Self::Age => "age",
            Self::Remote => "remote",
        }
    }

    /// Returns the key that selects the order: the first letter of its name.
    fn key(self) -> char {
        self.name().chars().next().unwrap_or_default()
    }
}
