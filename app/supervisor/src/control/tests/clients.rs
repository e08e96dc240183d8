//! Tests of many clients of the control socket: timeouts, the limit on clients, and disconnects.

use rustix::event::{Timespec, poll};

use super::*;

#[test]
fn partial_request_times_out_and_delays_no_other_client() {
    let mut fixture = Fixture::new(1);
    let (stuck, other) = (fixture.client(), fixture.client());
    send(&stuck, "GET /v1/st");
    send(&other, STATS);
    fixture.serve();
    assert_eq!(status(&received(&other).0), "200");
    fixture.wait(REQUEST_TIMEOUT - Duration::from_millis(1));
    assert_eq!(received(&stuck), (String::new(), false));
    assert!(fixture.control.deadline().unwrap() <= fixture.now + Duration::from_millis(1));
    fixture.wait(Duration::from_millis(1));
    assert_eq!(received(&stuck), (String::new(), true));
}

#[test]
fn half_closed_client_gets_its_response() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    send(&client, CHANGE);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    fixture.serve();
    fixture.confirm(1);
    let (answer, ended) = received(&client);
    assert_eq!((status(&answer), ended), ("200", true));
    assert!(fixture.control.servers[0].clients() == 0);
}

#[test]
fn closed_client_with_a_pipelined_request_does_not_keep_the_loop_awake() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    send(&client, &CHANGE.repeat(2));
    fixture.serve();
    client.shutdown(std::net::Shutdown::Both).unwrap();
    let mut fds: Vec<_> = fixture.control.poll_fds().collect();
    assert_eq!(poll(&mut fds, Some(&Timespec::default())).unwrap(), 0);
    drop(fds);
    fixture.confirm(1);
    assert_eq!(fixture.control.servers[0].clients(), 0);
}

#[test]
fn client_over_the_limit_replaces_the_longest_idle() {
    let mut fixture = Fixture::new(1);
    let mut clients = Vec::new();
    for _ in 0..=CLIENTS {
        clients.push(fixture.client());
        fixture.wait(Duration::from_millis(1));
    }
    assert_eq!(fixture.control.servers[0].clients(), CLIENTS);
    let ended: Vec<bool> = clients.iter().map(|client| received(client).1).collect();
    assert!(ended[0] && ended[1..].iter().all(|ended| !ended), "{ended:?}");
    fixture.wait(IDLE_TIMEOUT);
    assert!(fixture.control.servers[0].clients() == 0);
}

#[test]
fn idle_client_is_replaced_before_a_busy_one() {
    let mut fixture = Fixture::new(1);
    // The busy client has been connected for longest, and its timeout expires first.
    let busy = fixture.client();
    send(&busy, "PUT /v1/policy HTTP/1.1\r\nContent-Length: 2\r\n\r\n{");
    fixture.wait(Duration::from_millis(1));
    let waiting = fixture.client();
    send(&waiting, CHANGE);
    fixture.wait(Duration::from_millis(1));
    let mut idle = Vec::new();
    for _ in 2..CLIENTS + 1 {
        idle.push(fixture.client());
        fixture.wait(Duration::from_millis(1));
    }
    assert!(received(&idle[0]).1);
    send(&busy, "}");
    fixture.serve();
    fixture.confirm(1);
    fixture.confirm(1);
    assert_eq!(
        (status(&received(&waiting).0), status(&received(&busy).0)),
        ("200", "200")
    );
}

#[test]
fn pipelined_requests_are_served_one_in_each_turn() {
    const MANY: usize = 1000;
    let mut fixture = Fixture::new(1);
    let (many, other) = (fixture.client(), fixture.client());
    send(&many, &"GET /no HTTP/1.1\r\n\r\n".repeat(MANY));
    many.shutdown(std::net::Shutdown::Write).unwrap();
    send(&other, STATS);
    fixture.serve();
    let (mut answers, _) = received(&many);
    assert_eq!(answers.matches("HTTP/1.1 404").count(), 1);
    assert_eq!(status(&received(&other).0), "200");
    for _ in 0..MANY {
        // The client sends no more requests: only the pipelined ones keep the loop awake.
        let ready = |fds: &mut Vec<PollFd<'_>>| poll(fds, Some(&Timespec::default())).unwrap();
        if ready(&mut fixture.control.poll_fds().collect()) == 0 {
            break;
        }
        fixture.serve();
        let (text, _) = received(&many);
        answers.push_str(&text);
    }
    assert_eq!(answers.matches("HTTP/1.1 404").count(), MANY);
    assert_eq!(fixture.control.servers[0].clients(), 1);
}
