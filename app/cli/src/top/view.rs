//! Screen of `pontoon top`: a line of sums, a line for an error, a table of flows, and a line of keys, in at least 80
//! columns.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table};

use super::state::{Row, Sort, Top};
use crate::ctl::flows::{age, bytes};

/// Time without a response after which the screen shows that the instance does not respond.
const SILENCE: Duration = Duration::from_secs(3);

/// Titles and widths of the columns; the remaining width is for the remote address.
const COLUMNS: [(&str, Constraint); 9] = [
    ("PROTO", Constraint::Length(5)),
    ("PORT", Constraint::Length(5)),
    ("", Constraint::Length(2)),
    ("REMOTE", Constraint::Fill(1)),
    ("STATE", Constraint::Length(10)),
    ("    AGE", Constraint::Length(7)),
    ("   UP/s", Constraint::Length(7)),
    (" DOWN/s", Constraint::Length(7)),
    ("  BYTES", Constraint::Length(7)),
];

pub(super) fn draw(frame: &mut Frame<'_>, top: &mut Top, now: Instant) {
    let line = Constraint::Length(1);
    let areas = [line, line, Constraint::Fill(1), line];
    let [sums, news, table, keys] = Layout::vertical(areas).areas(frame.area());
    draw_sums(frame, sums, top);
    let wrong = wrong(top, now);
    match &wrong {
        Some(wrong) => frame.render_widget(Paragraph::new(wrong.as_str()).style(LOUD), news),
        None => frame.render_widget(Paragraph::new(counted(top)), news),
    }
    draw_table(frame, table, top, wrong.is_some());
    draw_keys(frame, keys, top.sort);
}

fn draw_sums(frame: &mut Frame<'_>, area: Rect, top: &Top) {
    let (up, down) = top.rates();
    let sums = format!(
        "  {} flows  up {}/s  down {}/s",
        top.total.flows,
        bytes(up),
        bytes(down)
    );
    frame.render_widget(Paragraph::new(format!("pontoon {}", top.path)).style(BOLD), area);
    frame.render_widget(Paragraph::new(Line::from(sums).right_aligned()), area);
}

/// Returns a line about a failed request or a missing response, if there is one.
fn wrong(top: &Top, now: Instant) -> Option<String> {
    let silence = now.saturating_duration_since(top.last_response);
    match &top.problem {
        Some(problem) => Some(format!("{problem}; retrying")),
        None => (silence >= SILENCE).then(|| {
            format!(
                "{} has not responded for {} s; retrying",
                top.path,
                silence.as_secs()
            )
        }),
    }
}

/// Returns a line with the counters of refusals and retransmissions.
fn counted(top: &Top) -> String {
    let counts = [
        ("policy_refused", "refused by policy"),
        ("flows_refused", "by limits"),
        ("tcp_connect_failed", "connects failed"),
        ("tcp_retransmits", "retransmits"),
    ];
    let counted = counts.map(|(name, what)| {
        let count = top.total.counters.get(name).copied().unwrap_or(0);
        format!("{what} {}", bytes(count))
    });
    counted.join("  ")
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, top: &mut Top, stale: bool) {
    let fitting = usize::from(area.height.saturating_sub(1));
    // The last page is always full.
    top.above = top.above.min(top.rows.len().saturating_sub(fitting));
    let widths = COLUMNS.map(|(_, width)| width);
    let columns = Layout::horizontal(widths).spacing(1).split(area);
    let remote = usize::from(columns[3].width);
    let rows = top.rows.iter().skip(top.above).take(fitting);
    let table = Table::new(rows.map(|row| cells(row, remote)), widths)
        .header(Cells::new(COLUMNS.map(|(name, _)| name)).style(HEAD))
        .style(if stale { FAINT } else { Style::new() });
    frame.render_widget(table, area);
}

fn cells(row: &Row, remote: usize) -> Cells<'static> {
    let flow = &row.flow;
    let to = flow
        .remote
        .map_or_else(|| "-".to_owned(), |remote| remote.to_string());
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    Cells::new([
        Cell::from(flow.protocol.clone()),
        right(flow.guest.port().to_string()),
        Cell::from(if flow.direction == "in" { "<-" } else { "->" }),
        Cell::from(shortened(to, remote)),
        Cell::from(flow.state.clone()),
        right(age(flow.age_ms)),
        right(bytes(row.up)),
        right(bytes(row.down)),
        right(bytes(row.bytes())),
    ])
}

/// Returns an address and port in at most `room` characters. The address is shortened, and the port is complete.
fn shortened(address: String, room: usize) -> String {
    let port = address.rfind(':').unwrap_or(address.len());
    let tail = address.len() - port + 1;
    if address.len() <= room || room <= tail {
        return address;
    }
    format!("{}…{}", &address[..room - tail], &address[port..])
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, sort: Sort) {
    let names = Sort::ALL.map(Sort::name).join(" ");
    let keys = format!("q quit   sort by first letter: {names}");
    frame.render_widget(Paragraph::new(keys).style(FAINT), area);
    let by = Line::from(format!(" by {}", sort.name())).right_aligned();
    frame.render_widget(Paragraph::new(by).style(BOLD), area);
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
const LOUD: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::REVERSED));

#[cfg(test)]
mod tests;
