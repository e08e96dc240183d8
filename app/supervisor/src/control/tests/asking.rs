//! Questions to the engine: stats and flows, who waits for the answer, and who waits in vain.

use pontoon_engine::flow_dump::{Phase, Traffic};
use pontoon_engine::{FlowId, Kind, WorkerId, egress};

use super::*;

const FLOWS: &str = "GET /v1/flows HTTP/1.1\r\n\r\n";

#[test]
fn stats_are_each_workers_and_the_sum() {
    let mut desk = Desk::new(2);
    let client = desk.client();
    say(&client, STATS);
    desk.serve();
    assert_eq!(desk.told, [Update::Ask(1)]);
    assert_eq!(heard(&client), (String::new(), false));
    desk.answer(2);
    let (answer, ended) = heard(&client);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(status(head), "200");
    assert!(!ended, "the connection stays");
    let stats: reply::Stats = serde_json::from_str(body).unwrap();
    assert_eq!(
        (
            stats.workers.len(),
            stats.total.flows,
            stats.total.counters["frames_up"]
        ),
        (2, 4, 20)
    );
}

#[test]
fn flows_of_all_workers_page_by_page() {
    let mut desk = Desk::new(2);
    let (client, other) = (desk.client(), desk.client());
    let flow = |worker, index| Flow {
        id: FlowId {
            kind: Kind::Udp,
            worker: WorkerId(worker),
            index,
            generation: 2,
        },
        protocol: egress::EgressProtocol::Udp,
        guest: "10.0.2.15:999".parse().unwrap(),
        remote: None,
        came_in: false,
        phase: Phase::Unanswered,
        age: Duration::from_millis(1_500),
        traffic: Traffic { up: 3, down: 0 },
    };
    say(&client, FLOWS);
    desk.serve();
    say(&other, FLOWS);
    desk.serve();
    desk.tell_flows(vec![flow(0, 1)], Some(256));
    desk.tell_flows(vec![flow(0, 257)], None);
    assert_eq!(heard(&client).0, "");
    desk.tell_flows(vec![flow(1, 1)], None);
    let (answer, _) = heard(&client);
    let flows: reply::Flows = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(flows.flows.len(), 3);
    let mut ids: Vec<_> = flows.flows.iter().map(|flow| flow.id.as_str()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert!(
        answer.contains(r#""protocol":"udp","guest":"10.0.2.15:999","remote":null,"direction":"out","state":"unanswered","age_ms":1500,"bytes_up":3,"bytes_down":0}"#),
        "{answer}"
    );
    let turns: Vec<_> = desk
        .told
        .iter()
        .map(|update| match update {
            Update::Flows(turn) => (turn.number, turn.worker, turn.from),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(turns, [(1, 0, 0), (1, 0, 256), (1, 1, 0), (2, 0, 0)]);
    // The other one asked while the first census ran: it has its own. Now the engine falls silent.
    assert_eq!(heard(&other).0, "");
    desk.wait(REPORT_TIMEOUT);
    assert_eq!(status(&heard(&other).0), "503");
}

#[test]
fn those_who_ask_while_others_wait_get_the_next_answer() {
    let mut desk = Desk::new(1);
    let (one, two, three) = (desk.client(), desk.client(), desk.client());
    say(&one, STATS);
    desk.serve();
    say(&two, STATS);
    say(&three, STATS);
    desk.serve();
    assert_eq!(desk.told, [Update::Ask(1)]);
    desk.answer(1);
    assert_eq!(status(&heard(&one).0), "200");
    assert_eq!((heard(&two).0, heard(&three).0), (String::new(), String::new()));
    assert_eq!(desk.told, [Update::Ask(1), Update::Ask(2)]);
    desk.answer(1);
    assert_eq!((status(&heard(&two).0), status(&heard(&three).0)), ("200", "200"));
    assert!(!desk.control.is_asking());
}

#[test]
fn an_engine_that_is_silent_is_said_to_be() {
    let mut desk = Desk::new(2);
    let client = desk.client();
    say(&client, STATS);
    desk.serve();
    desk.answer(1);
    desk.wait(REPORT_TIMEOUT);
    assert_eq!(status(&heard(&client).0), "503");
    assert!(!desk.control.is_asking());
    // A late answer is of no use to the next question.
    say(&client, STATS);
    desk.serve();
    desk.answer(2);
    assert_eq!(status(&heard(&client).0), "200");
}

#[test]
fn a_change_that_is_not_confirmed_is_said_to_hold_yet() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let batch = format!(r#"{{"add": ["127.0.0.1:{}:80"]}}"#, free.unwrap().port());
    let level = r#"{"level": "info"}"#;
    let len = level.len();
    for change in [
        put("{}"),
        post("/v1/publish", &batch),
        format!("PUT /v1/log-level HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{level}"),
    ] {
        let mut desk = Desk::new(1);
        let client = desk.client();
        say(&client, &change);
        desk.serve();
        desk.wait(REPORT_TIMEOUT);
        let (answer, _) = heard(&client);
        assert!(
            status(&answer) == "503"
                && answer.contains("not confirmed the change yet; it takes effect when it does"),
            "{answer}"
        );
    }
}
