//! A control socket, its clients, and an engine that says what it is told to.

mod capture;
pub(crate) mod document;
mod log_level;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use pontoon_engine::inspect::{Flow, Page, Phase, Traffic};
use pontoon_engine::{FlowId, Kind, WorkerId, egress};
use pontoon_runtime::messages::{Door, Flows, Refused, Stats, Turn};

use super::*;
use crate::control::guest::DOCUMENT;
use crate::control::http::{BODY, CONTINUE};
use crate::publish::Families;

/// One worker without rules and ports.
fn served() -> Served {
    Served {
        rules: Vec::new(),
        forwarder: true,
        workers: 1,
        ports: Ports::new(Families::V4),
        set_log_level: |_| {},
    }
}

/// A control socket in a directory of its own.
struct Desk {
    control: Control,
    path: PathBuf,
    told: Vec<Update>,
    /// Published ports that every worker does without.
    refused: Vec<Refused>,
    now: Instant,
    _directory: tempfile::TempDir,
}

impl Desk {
    fn new(workers: u8) -> Self {
        Self::with(workers, |_| {})
    }

    fn with(workers: u8, set_log_level: fn(LevelFilter)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let served = Served {
            rules: vec!["deny 192.0.2.1".parse().unwrap()],
            workers,
            set_log_level,
            ..served()
        };
        Self {
            control: Control::open(Some(&path), None, served).unwrap(),
            path,
            told: Vec::new(),
            refused: Vec::new(),
            now: Instant::now(),
            _directory: directory,
        }
    }

    fn client(&self) -> UnixStream {
        let client = UnixStream::connect(&self.path).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    fn serve(&mut self) {
        let told = &mut self.told;
        self.control.serve(&mut |update| told.push(update), self.now);
    }

    /// Every worker answers what it was last asked.
    fn answer(&mut self, workers: u8) {
        let asked = self.told.iter().rev().find_map(|update| match update {
            Update::Ask(round) => Some(*round),
            _ => None,
        });
        for worker in 0..workers {
            let stats = Stats {
                round: asked.unwrap(),
                worker,
                flows: 2,
                pool_bytes: 65_536,
                rules: vec![3, 4, 5],
                refused: self.refused.clone(),
                histograms: Vec::new(),
                counters: vec![("frames_up".to_owned(), 10)],
            };
            let told = &mut self.told;
            self.control
                .hear(Report::Stats(stats), &mut |update| told.push(update), self.now);
        }
    }

    /// The worker that was asked last for flows tells of these.
    fn tell_flows(&mut self, flows: Vec<Flow>, next: Option<u64>) {
        let Some(Update::Flows(Turn { number, .. })) = self.told.last().cloned() else {
            panic!("{:?}", self.told);
        };
        let page = Page { flows, next };
        let told = &mut self.told;
        self.control.hear(
            Report::Flows(Flows { number, page }),
            &mut |update| told.push(update),
            self.now,
        );
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.serve();
    }
}

fn say(mut client: &UnixStream, text: &str) {
    client.write_all(text.as_bytes()).unwrap();
}

/// What has come; the flag says that there will be no more.
fn heard(mut client: &UnixStream) -> (String, bool) {
    let mut text = Vec::new();
    let ended = client.read_to_end(&mut text).is_ok();
    (String::from_utf8(text).unwrap(), ended)
}

fn status(answer: &str) -> &str {
    answer.split_whitespace().nth(1).unwrap_or(answer)
}

fn put(body: &str) -> String {
    format!(
        "PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

const FLOWS: &str = "GET /v1/flows HTTP/1.1\r\n\r\n";
const STATS: &str = "GET /v1/stats HTTP/1.1\r\nHost: pontoon\r\n\r\n";

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
        protocol: egress::Protocol::Udp,
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
    desk.wait(ENGINE);
    assert_eq!(status(&heard(&other).0), "503");
}

#[test]
fn half_a_request_waits_until_its_time_is_over_and_delays_nobody() {
    let mut desk = Desk::new(1);
    let (stuck, other) = (desk.client(), desk.client());
    say(&stuck, "GET /v1/st");
    say(&other, STATS);
    desk.serve();
    desk.answer(1);
    assert_eq!(status(&heard(&other).0), "200");
    desk.wait(PATIENCE - Duration::from_millis(1));
    assert_eq!(heard(&stuck), (String::new(), false));
    assert!(desk.control.deadline().unwrap() <= desk.now + Duration::from_millis(1));
    desk.wait(Duration::from_millis(1));
    assert_eq!(heard(&stuck), (String::new(), true));
}

#[test]
fn an_engine_that_is_silent_is_said_to_be() {
    let mut desk = Desk::new(2);
    let client = desk.client();
    say(&client, STATS);
    desk.serve();
    desk.answer(1);
    desk.wait(ENGINE);
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
        desk.wait(ENGINE);
        let (answer, _) = heard(&client);
        assert!(
            status(&answer) == "503"
                && answer.contains("not confirmed the change yet; it holds once it does"),
            "{answer}"
        );
    }
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
fn other_rules_are_told_before_they_are_counted() {
    let mut desk = Desk::new(1);
    let (one, two) = (desk.client(), desk.client());
    say(&one, STATS);
    desk.serve();
    say(
        &two,
        &put(r#"{"allow": ["*.Example.org:443/tcp"], "deny": ["10.0.0.0/8"]}"#),
    );
    desk.serve();
    let rules = ["allow *.example.org:443/tcp", "deny 10.0.0.0/8"].map(|rule| rule.parse().unwrap());
    // The round that ran was about the rules before.
    assert_eq!(
        desk.told,
        [Update::Ask(1), Update::Rules(rules.to_vec()), Update::Ask(2)]
    );
    desk.answer(1);
    desk.answer(1);
    assert_eq!(status(&heard(&one).0), "200");
    let (answer, _) = heard(&two);
    let policy: reply::Policy = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(
        (policy.rules.len(), policy.rules[1].hits, policy.unlisted),
        (2, 4, 5)
    );
}

#[test]
fn rules_that_are_none_change_nothing() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for (body, why) in [
        ("", "no JSON object"),
        ("[]", "no JSON object"),
        ("{", "EOF while parsing"),
        (r#"{"alow": []}"#, "unknown field `alow`"),
        (r#"{"allow": ["10.0.0"]}"#, "'10.0.0' is neither"),
        (r#"{"deny": ["*:0"]}"#, "'0' is not a port"),
        (r#"{"deny": ["a\n\u001bb"]}"#, "'a  b' is neither"),
    ] {
        say(&client, &put(body));
        desk.serve();
        let (answer, _) = heard(&client);
        assert_eq!(status(&answer), "400", "{body}: {answer}");
        assert!(answer.contains(why), "{body}: {answer}");
    }
    assert_eq!(desk.told, []);
}

#[test]
fn without_a_forwarder_no_rule_names_a_domain() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let served = Served {
        forwarder: false,
        ..served()
    };
    let mut control = Control::open(Some(&path), None, served).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    say(&client, &put(r#"{"deny": ["ads.example"]}"#));
    control.serve(&mut |update| panic!("{update:?}"), Instant::now());
    client.set_nonblocking(true).unwrap();
    assert_eq!(status(&heard(&client).0), "400");
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn ports_are_published_together_or_not_at_all() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let batch = format!(r#"{{"add": ["127.0.0.2:{port}:80", "127.0.0.1:{port}:80"]}}"#);
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    assert_eq!((status(&heard(&client).0), desk.told.len()), ("409", 0));
    say(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    desk.serve();
    assert!(heard(&client).0.ends_with(r#"{"published":[]}"#));

    drop(taken);
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    // The workers are asked once they have been told: then it holds.
    let [Update::Published(doors), Update::Ask(1)] = &desk.told[..] else {
        panic!("{:?}", desk.told);
    };
    assert_eq!(doors.len(), 2);
    assert_eq!(heard(&client).0, "");
    desk.answer(1);
    let (answer, _) = heard(&client);
    let text = format!(r#"{{"added":["127.0.0.1:{port}:80/tcp","127.0.0.2:{port}:80/tcp"],"removed":[]}}"#);
    assert!(status(&answer) == "200" && answer.ends_with(&text), "{answer}");

    // Nothing is to be done for what is there.
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    assert!(heard(&client).0.ends_with(r#"{"added":[],"removed":[]}"#));
    for (body, why) in [
        (r#"{"add": ["80"]}"#, "'80': no guest port"),
        (r#"{"add": ["[::1]:1:1"]}"#, "the guest has no IPv6"),
        (r#"{"del": []}"#, "unknown field `del`"),
        ("[]", "no JSON object"),
    ] {
        say(&client, &post("/v1/publish", body));
        desk.serve();
        let (answer, _) = heard(&client);
        assert!(
            status(&answer) == "400" && answer.contains(why),
            "{body}: {answer}"
        );
    }
    assert_eq!(desk.told.len(), 2);
}

#[test]
fn what_the_engine_cannot_take_over_is_taken_back() {
    let mut desk = Desk::new(1);
    let (client, other) = (desk.client(), desk.client());
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let [old, new] = [free(), free()].map(|address| address.unwrap().port());
    let batch = format!(r#"{{"add": ["127.0.0.1:{old}:80"]}}"#);
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    desk.answer(1);
    assert_eq!(status(&heard(&client).0), "200");

    let batch = format!(
        r#"{{"remove": ["127.0.0.1:{old}:80"], "add": ["127.0.0.1:{new}:80", "127.0.0.2:{old}:80"]}}"#
    );
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    let batch = format!(r#"{{"add": ["127.0.0.2:{new}:80"]}}"#);
    say(&other, &post("/v1/publish", &batch));
    desk.serve();
    let Some(Update::Published(doors)) = desk.told.get(2) else {
        panic!("{:?}", desk.told);
    };
    desk.refused = vec![Refused {
        port: doors[1].published(),
        why: "no descriptor".to_owned(),
    }];
    desk.told.clear();
    desk.told.push(Update::Ask(2));
    desk.answer(1);
    let (answer, _) = heard(&client);
    let why = format!("the engine cannot take over 127.0.0.1:{new}/tcp: no descriptor");
    assert!(status(&answer) == "409" && answer.contains(&why), "{answer}");
    let [Update::Ask(2), Update::Published(doors), Update::Ask(3)] = &desk.told[..] else {
        panic!("{:?}", desk.told);
    };
    assert!(
        matches!(doors[..], [Door::Close(_), Door::Close(_), Door::Open(..)]),
        "{doors:?}"
    );
    // Somebody else's change stays.
    desk.refused.clear();
    desk.told.retain(|update| matches!(update, Update::Ask(_)));
    desk.answer(1);
    assert_eq!(status(&heard(&other).0), "200");
    say(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    desk.serve();
    let (answer, _) = heard(&client);
    let left = format!(r#"{{"published":["127.0.0.1:{old}:80/tcp","127.0.0.2:{new}:80/tcp"]}}"#);
    assert!(answer.ends_with(&left), "{answer}");
}

#[test]
fn a_batch_of_more_ports_than_there_are_is_refused_before_it_is_looked_at() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for list in ["remove", "add"] {
        let ranges = vec![r#""1-65535:1-65535""#; 14_000].join(",");
        let body = format!(r#"{{"{list}":[{ranges}]}}"#);
        assert!(body.len() <= BODY);
        let request = post("/v1/publish", &body);
        let mut rest = request.as_bytes();
        let begun = Instant::now();
        while let Ok(1..) = (&client).write(rest).inspect(|len| rest = &rest[*len..]) {
            desk.serve();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let (answer, _) = heard(&client);
        let why = format!("'{list}' names 917490000 ports, and may name 131070");
        assert!(status(&answer) == "400" && answer.contains(&why), "{answer}");
    }

    // All of either protocol at once.
    let body = r#"{"remove": ["1-65535:1-65535", "1-65535:1-65535/udp"]}"#;
    say(&client, &post("/v1/publish", body));
    desk.serve();
    assert_eq!(status(&heard(&client).0), "200");
}

#[test]
fn requests_in_pieces_and_in_a_row() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    let text = "GET /v1/openapi.json HTTP/1.1\r\n\r\nGET /no?x=1 HTTP/1.1\r\nconnection: CLOSE\r\n\r\n";
    for letter in text.chars() {
        say(&client, letter.encode_utf8(&mut [0; 4]));
        desk.serve();
    }
    let mut all = String::new();
    // The document may be longer than the socket takes at once.
    loop {
        let (part, ended) = heard(&client);
        all.push_str(&part);
        desk.serve();
        if ended {
            break;
        }
    }
    assert!(all.contains(DOCUMENT));
    let (_, second) = all.split_once(DOCUMENT).unwrap();
    assert!(second.starts_with("HTTP/1.1 404 "), "{second}");
    assert!(
        second.contains("\r\nConnection: close\r\n") && second.ends_with(r#"{"error":"there is no /no"}"#)
    );
}

#[test]
fn what_is_no_request_is_refused_and_ends_the_connection() {
    for (text, wanted) in [
        ("SSH-2.0-x\r\n\r\n".to_owned(), "400"),
        (
            "GET /v1/stats HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "501",
        ),
        (
            "PUT /v1/policy HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "PUT /v1/policy HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
            "400",
        ),
        (
            format!("PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n", BODY + 1),
            "413",
        ),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9_000)), "431"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)), "431"),
    ] {
        let mut desk = Desk::new(1);
        let client = desk.client();
        say(&client, &text);
        desk.serve();
        let (answer, ended) = heard(&client);
        assert_eq!((status(&answer), ended), (wanted, true), "{text:?}: {answer}");
    }
}

#[test]
fn another_method_is_told_which_there_are() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    say(&client, "DELETE /v1/policy HTTP/1.1\r\n\r\n");
    desk.serve();
    let (answer, _) = heard(&client);
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET, PUT\r\n"),
        "{answer}"
    );
    say(&client, "HEAD /v1/policy HTTP/1.1\r\n\r\n");
    desk.serve();
    let (answer, _) = heard(&client);
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[test]
fn a_body_that_asks_whether_it_is_wanted() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    say(
        &client,
        "PUT /v1/policy HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    desk.serve();
    desk.serve();
    assert_eq!(heard(&client).0.as_bytes(), CONTINUE);
    say(&client, "{}");
    desk.serve();
    desk.answer(1);
    assert_eq!(status(&heard(&client).0), "200");
}

#[test]
fn a_client_that_has_no_more_to_say_gets_its_answer() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    say(&client, STATS);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    desk.serve();
    desk.answer(1);
    let (answer, ended) = heard(&client);
    assert_eq!((status(&answer), ended), ("200", true));
    assert!(desk.control.servers[0].clients() == 0);
}

#[test]
fn one_client_too_many_takes_the_stalest_ones_place() {
    let mut desk = Desk::new(1);
    let mut clients = Vec::new();
    for _ in 0..=CLIENTS {
        clients.push(desk.client());
        desk.wait(Duration::from_millis(1));
    }
    assert_eq!(desk.control.servers[0].clients(), CLIENTS);
    let ended: Vec<bool> = clients.iter().map(|client| heard(client).1).collect();
    assert!(ended[0] && ended[1..].iter().all(|ended| !ended), "{ended:?}");
    desk.wait(IDLE);
    assert!(desk.control.servers[0].clients() == 0);
}

#[test]
fn who_is_idle_makes_room_before_who_is_not() {
    let mut desk = Desk::new(1);
    // The oldest of all, and the one whose time is over first.
    let busy = desk.client();
    say(&busy, "PUT /v1/policy HTTP/1.1\r\nContent-Length: 2\r\n\r\n{");
    desk.wait(Duration::from_millis(1));
    let waiting = desk.client();
    say(&waiting, STATS);
    desk.wait(Duration::from_millis(1));
    let mut idle = Vec::new();
    for _ in 2..CLIENTS + 1 {
        idle.push(desk.client());
        desk.wait(Duration::from_millis(1));
    }
    assert!(heard(&idle[0]).1);
    say(&busy, "}");
    desk.serve();
    desk.answer(1);
    desk.answer(1);
    assert_eq!(
        (status(&heard(&waiting).0), status(&heard(&busy).0)),
        ("200", "200")
    );
}

#[test]
fn who_says_too_much_hears_why() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    let body = "x".repeat(2 * BODY);
    let head = format!(
        "PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    say(&client, &head);
    let mut rest = body.as_bytes();
    while !rest.is_empty() {
        desk.serve();
        let len = (&client).write(rest).unwrap();
        rest = &rest[len..];
    }
    let (answer, ended) = heard(&client);
    assert_eq!((status(&answer), ended), ("413", true));
    drop(client);
    desk.serve();
    assert_eq!(desk.control.servers[0].clients(), 0);

    // Who goes on without end is not heard out.
    let client = desk.client();
    say(&client, &head);
    let talk = vec![b'x'; 64 << 10];
    let mut said = 0;
    while let Ok(len) = (&client).write(&talk) {
        said += len;
        desk.serve();
    }
    assert!((16 << 20..17 << 20).contains(&said), "{said}");
}

#[test]
fn a_target_may_say_whose_it_is() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for (target, wanted) in [
        ("http://pontoon/v1/publish", "200"),
        ("HTTP://pontoon/v1/publish?x=/v1/stats", "200"),
        ("http://pontoon", "404"),
        ("http://pontoon?/v1/publish", "404"),
        ("https://pontoon/v1/publish", "404"),
        ("/http://pontoon/v1/publish", "404"),
    ] {
        say(&client, &format!("GET {target} HTTP/1.1\r\n\r\n"));
        desk.serve();
        assert_eq!(status(&heard(&client).0), wanted, "{target}");
    }
}

#[test]
fn metrics_over_tcp_and_nothing_else() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let error = Control::open(None, Some(at), served()).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("cannot listen on {at}: address already in use (try: another port)")
    );
    drop(taken);
    let mut control = Control::open(None, Some(at), served()).unwrap();
    let mut client = std::net::TcpStream::connect(at).unwrap();
    let mut ask = |control: &mut Control, path: &str| {
        client
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
        let now = Instant::now();
        control.serve(&mut |_| {}, now);
        let stats = Stats {
            round: 1,
            ..Stats::default()
        };
        control.hear(Report::Stats(stats), &mut |_| {}, now);
        let mut answer = vec![0; 65_536];
        let len = client.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..len]).into_owned()
    };
    let metrics = ask(&mut control, "/metrics");
    assert_eq!(status(&metrics), "200");
    assert!(
        metrics.contains("\r\nContent-Type: text/plain; version=0.0.4; "),
        "{metrics}"
    );
    for path in ["/v1/stats", "/v1/publish", "/v1/policy"] {
        assert_eq!(status(&ask(&mut control, path)), "404");
    }
}

#[test]
fn the_file_is_ours_alone_and_goes_with_us() {
    let desk = Desk::new(1);
    let mode = std::fs::metadata(&desk.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Desk {
        control,
        path,
        _directory,
        ..
    } = desk;
    let taken = Control::open(Some(&path), None, served())
        .unwrap_err()
        .to_string();
    assert!(
        taken.starts_with(&format!("cannot open control socket {}: address", path.display())),
        "{taken}"
    );
    drop(control);
    assert!(!path.exists());
    // What a dead one left is taken over, what is no socket is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(Control::open(Some(&path), None, served()).unwrap());
    std::fs::write(&path, "precious").unwrap();
    Control::open(Some(&path), None, served()).unwrap_err();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}
