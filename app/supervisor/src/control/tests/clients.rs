//! Many clients: who waits, who makes room, and who has gone.

use rustix::event::{Timespec, poll};

use super::*;

#[test]
fn half_a_request_waits_until_its_time_is_over_and_delays_nobody() {
    let mut desk = Desk::new(1);
    let (stuck, other) = (desk.client(), desk.client());
    say(&stuck, "GET /v1/st");
    say(&other, STATS);
    desk.serve();
    desk.answer(1);
    assert_eq!(status(&heard(&other).0), "200");
    desk.wait(REQUEST_TIMEOUT - Duration::from_millis(1));
    assert_eq!(heard(&stuck), (String::new(), false));
    assert!(desk.control.deadline().unwrap() <= desk.now + Duration::from_millis(1));
    desk.wait(Duration::from_millis(1));
    assert_eq!(heard(&stuck), (String::new(), true));
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
fn closed_client_with_a_pipelined_request_does_not_keep_the_loop_awake() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    say(&client, &STATS.repeat(2));
    desk.serve();
    drop(client);
    let mut fds: Vec<_> = desk.control.poll_fds().collect();
    assert_eq!(poll(&mut fds, Some(&Timespec::default())).unwrap(), 0);
    drop(fds);
    desk.answer(1);
    assert_eq!(desk.control.servers[0].clients(), 0);
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
    desk.wait(IDLE_TIMEOUT);
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
fn many_requests_at_once_are_answered_one_in_each_turn() {
    const MANY: usize = 1000;
    let mut desk = Desk::new(1);
    let (many, other) = (desk.client(), desk.client());
    say(&many, &"GET /no HTTP/1.1\r\n\r\n".repeat(MANY));
    many.shutdown(std::net::Shutdown::Write).unwrap();
    say(&other, STATS);
    desk.serve();
    let (mut answers, _) = heard(&many);
    assert_eq!(answers.matches("HTTP/1.1 404").count(), 1);
    desk.answer(1);
    assert_eq!(status(&heard(&other).0), "200");
    for _ in 0..MANY {
        // Nothing comes from the client: the loop is awake all the same.
        let ready = |fds: &mut Vec<PollFd<'_>>| poll(fds, Some(&Timespec::default())).unwrap();
        if ready(&mut desk.control.poll_fds().collect()) == 0 {
            break;
        }
        desk.serve();
        let (text, _) = heard(&many);
        answers.push_str(&text);
    }
    assert_eq!(answers.matches("HTTP/1.1 404").count(), MANY);
    assert_eq!(desk.control.servers[0].clients(), 1);
}
