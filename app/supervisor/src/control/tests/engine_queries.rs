//! Statistics, and queries to the engine: flows and confirmations, responses that are shared, and timeouts.

use pontoon_engine::flow_dump::{Phase, Traffic};
use pontoon_engine::{FlowId, Kind, WorkerId, egress};

use super::*;

const FLOWS: &str = "GET /v1/flows HTTP/1.1\r\n\r\n";

#[test]
fn stats_are_those_of_each_worker_and_their_sum() {
    let mut fixture = Fixture::new(2);
    let client = fixture.client();
    fixture.publish(1, &[0; 3]);
    send(&client, STATS);
    fixture.serve();
    let (answer, ended) = received(&client);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(status(head), "200");
    assert!(!ended, "the connection stays");
    let stats: reply::EngineStats = serde_json::from_str(body).unwrap();
    assert_eq!(
        (
            stats.workers.len(),
            stats.total.flows,
            stats.total.counters["frames_up"]
        ),
        (2, 4, 20)
    );
    let has_process = |stats: &reply::WorkerStats| stats.counters.contains_key("sandbox_refused");
    assert_eq!(
        [&stats.workers[0], &stats.workers[1], &stats.total].map(has_process),
        [true, false, true]
    );
}

#[test]
fn statistics_are_served_without_a_message_to_the_engine() {
    let mut fixture = Fixture::new(2);
    let client = fixture.client();
    for path in ["/v1/stats", "/metrics", "/v1/policy"] {
        send(&client, &format!("GET {path} HTTP/1.1\r\n\r\n"));
        fixture.serve();
        assert_eq!(status(&received(&client).0), "200", "{path}");
    }
    assert_eq!(fixture.updates, []);
    assert!(!fixture.control.is_asking());
}

#[test]
fn flows_of_all_workers_are_queried_page_by_page() {
    let mut fixture = Fixture::new(2);
    let (client, other) = (fixture.client(), fixture.client());
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
    send(&client, FLOWS);
    fixture.serve();
    send(&other, FLOWS);
    fixture.serve();
    fixture.report_flows(vec![flow(0, 1)], Some(256));
    fixture.report_flows(vec![flow(0, 257)], None);
    assert_eq!(received(&client).0, "");
    fixture.report_flows(vec![flow(1, 1)], None);
    let (answer, _) = received(&client);
    let flows: reply::Flows = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(flows.flows.len(), 3);
    let mut ids: Vec<_> = flows.flows.iter().map(|flow| flow.id.as_str()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert!(
        answer.contains(r#""protocol":"udp","guest":"10.0.2.15:999","remote":null,"direction":"out","state":"unanswered","age_ms":1500,"bytes_up":3,"bytes_down":0}"#),
        "{answer}"
    );
    let requests: Vec<_> = fixture
        .updates
        .iter()
        .map(|update| match update {
            Update::Flows(request) => (request.number, request.worker, request.from),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(requests, [(1, 0, 0), (1, 0, 256), (1, 1, 0), (2, 0, 0)]);
    // The other client sent its request during the first dump, so it waits for the second dump, for which no report has
    // arrived.
    assert_eq!(received(&other).0, "");
    fixture.wait(REPORT_TIMEOUT);
    assert_eq!(status(&received(&other).0), "503");
}

fn rounds(fixture: &Fixture) -> Vec<u64> {
    let round = |update: &Update| match update {
        Update::Confirm(round) => Some(*round),
        _ => None,
    };
    fixture.updates.iter().filter_map(round).collect()
}

#[test]
fn changes_during_a_round_share_the_next_round() {
    let mut fixture = Fixture::new(1);
    let (one, two, three) = (fixture.client(), fixture.client(), fixture.client());
    send(&one, CHANGE);
    fixture.serve();
    send(&two, CHANGE);
    send(&three, CHANGE);
    fixture.serve();
    assert_eq!(rounds(&fixture), [1]);
    fixture.confirm(1);
    assert_eq!(status(&received(&one).0), "200");
    assert_eq!(
        (received(&two).0, received(&three).0),
        (String::new(), String::new())
    );
    assert_eq!(rounds(&fixture), [1, 2]);
    fixture.confirm(1);
    assert_eq!(
        (status(&received(&two).0), status(&received(&three).0)),
        ("200", "200")
    );
    assert!(!fixture.control.is_asking());
}

#[test]
fn round_without_all_confirmations_times_out_with_status_503() {
    let mut fixture = Fixture::new(2);
    let client = fixture.client();
    send(&client, CHANGE);
    fixture.serve();
    fixture.confirm(1);
    fixture.wait(REPORT_TIMEOUT);
    assert_eq!(status(&received(&client).0), "503");
    assert!(!fixture.control.is_asking());
    // A late report does not count for the next round.
    send(&client, CHANGE);
    fixture.serve();
    fixture.confirm(2);
    assert_eq!(status(&received(&client).0), "200");
}

#[test]
fn unconfirmed_change_is_reported_as_pending() {
    let batch = format!(r#"{{"add": ["127.0.0.1:{}:80"]}}"#, free_port());
    let level = r#"{"level": "info"}"#;
    let len = level.len();
    for change in [
        put("{}"),
        post("/v1/publish", &batch),
        format!("PUT /v1/log-level HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{level}"),
    ] {
        let mut fixture = Fixture::new(1);
        let client = fixture.client();
        send(&client, &change);
        fixture.serve();
        fixture.wait(REPORT_TIMEOUT);
        let (answer, _) = received(&client);
        assert!(
            status(&answer) == "503"
                && answer.contains("not confirmed the change yet; it takes effect when it does"),
            "{answer}"
        );
    }
}
