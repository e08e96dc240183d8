use pontoon_control::reply::{Flow, WorkerStats};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::top::state::{KeyAction, Snapshot};

fn flow(id: &str, protocol: &str, remote: Option<&str>, state: &str, carried: (u64, u64)) -> Flow {
    Flow {
        id: id.to_owned(),
        worker: 0,
        protocol: protocol.to_owned(),
        guest: "10.0.2.15:40001".parse().unwrap(),
        remote: remote.map(|remote| remote.parse().unwrap()),
        direction: if state == "closing" { "in" } else { "out" }.to_owned(),
        state: state.to_owned(),
        age_ms: 65_000,
        bytes_up: carried.0,
        bytes_down: carried.1,
    }
}

fn take(top: &mut Top, at: Instant, more: u64) {
    let mut total = WorkerStats {
        flows: 5,
        ..WorkerStats::default()
    };
    total.counters.insert("tcp_retransmits".to_owned(), 1_234);
    let flows = vec![
        flow(
            "a",
            "tcp",
            Some("192.0.2.1:443"),
            "open",
            (1_000 + more, 5_000_000),
        ),
        flow(
            "b",
            "tcp",
            Some("[2001:db8:1234:5678:9abc:def0:1234:5678]:8443"),
            "connecting",
            (0, 0),
        ),
        flow("c", "udp", Some("192.0.2.53:53"), "unanswered", (120, 0)),
        flow("d", "udp", None, "unanswered", (0, 0)),
        flow(
            "e",
            "tcp",
            Some("198.51.100.7:51000"),
            "closing",
            (7, 20_000 + 3_000 * more),
        ),
    ];
    top.take(Ok(Snapshot::Total(total)), at);
    top.take(Ok(Snapshot::Flows { flows, at }), at);
}

/// Returns the state after two snapshots that are two seconds apart.
fn top(begin: Instant) -> Top {
    let mut top = Top::new("/run/control".to_owned());
    take(&mut top, begin, 0);
    let later = begin + Duration::from_secs(2);
    take(&mut top, later, 1_000);
    top
}

fn drawn(top: &mut Top, now: Instant, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, top, now)).unwrap();
    terminal.backend().to_string()
}

fn press(top: &mut Top, code: KeyCode) -> KeyAction {
    top.press(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Returns the column of remote addresses, from top to bottom.
fn remotes(top: &mut Top, now: Instant) -> Vec<String> {
    let screen = drawn(top, now, 80, 24);
    let rows = screen
        .lines()
        .skip(3)
        .map_while(|line| line.get(1..)?.split_whitespace().nth(3));
    rows.take(5).map(str::to_owned).collect()
}

#[test]
fn a_screen_of_80_by_24() {
    let begin = Instant::now();
    let mut top = top(begin);
    insta::assert_snapshot!(drawn(&mut top, top_time(begin), 80, 24));
}

fn top_time(begin: Instant) -> Instant {
    begin + Duration::from_millis(2_500)
}

#[test]
fn missing_response_or_error_is_shown_and_the_rows_are_kept() {
    let begin = Instant::now();
    let mut top = top(begin);
    let screen = drawn(&mut top, begin + Duration::from_secs(9), 80, 24);
    assert!(
        screen.contains("/run/control has not responded for 7 s; retrying"),
        "{screen}"
    );
    assert!(screen.contains("192.0.2.1:443"), "{screen}");
    top.take(
        Err(anyhow::anyhow!("cannot ask /run/control: gone")),
        begin + Duration::from_secs(9),
    );
    let screen = drawn(&mut top, begin + Duration::from_secs(9), 80, 24);
    assert!(
        screen.contains("cannot ask /run/control: gone; retrying"),
        "{screen}"
    );
    assert!(screen.contains("192.0.2.1:443"), "{screen}");
    // Statistics are shown while flows cannot be listed.
    let total = WorkerStats {
        flows: 77,
        ..WorkerStats::default()
    };
    top.take(Ok(Snapshot::Total(total)), begin + Duration::from_secs(9));
    let screen = drawn(&mut top, begin + Duration::from_secs(9), 80, 24);
    assert!(
        screen.contains("77 flows") && screen.contains("gone; retrying") && screen.contains("192.0.2.1:443"),
        "{screen}"
    );
    take(&mut top, begin + Duration::from_secs(10), 2_000);
    let screen = drawn(&mut top, begin + Duration::from_secs(10), 80, 24);
    assert!(!screen.contains("retrying"), "{screen}");
}

#[test]
fn keys_sort_scroll_and_quit() {
    let begin = Instant::now();
    let (mut top, now) = (top(begin), top_time(begin));
    for (key, first) in [
        ('d', "198.51.100.7:51000"),
        ('u', "192.0.2.1:443"),
        ('s', "198.51.100.7:51000"),
        ('b', "192.0.2.1:443"),
        ('r', "-"),
    ] {
        assert_eq!(press(&mut top, KeyCode::Char(key)), KeyAction::Continue);
        assert_eq!(remotes(&mut top, now)[0], first, "{key}");
    }
    // If all rows fit on the screen, it does not scroll.
    press(&mut top, KeyCode::Down);
    assert_eq!(remotes(&mut top, now)[0], "-");
    let screen = drawn(&mut top, now, 80, 6);
    press(&mut top, KeyCode::PageDown);
    assert_ne!(drawn(&mut top, now, 80, 6), screen);
    press(&mut top, KeyCode::Home);
    assert_eq!(drawn(&mut top, now, 80, 6), screen);
    assert_eq!(press(&mut top, KeyCode::Char('q')), KeyAction::Quit);
    assert_eq!(press(&mut top, KeyCode::Esc), KeyAction::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(top.press(interrupt), KeyAction::Quit);
}

#[test]
fn screens_of_any_size_are_drawn() {
    let begin = Instant::now();
    let mut top = top(begin);
    for (width, height) in [(1, 1), (20, 3), (79, 24), (200, 60)] {
        drawn(&mut top, top_time(begin), width, height);
    }
    let wide = drawn(&mut top, top_time(begin), 120, 24);
    assert!(
        wide.contains("[2001:db8:1234:5678:9abc:def0:1234:5678]:8443"),
        "{wide}"
    );
}
