//! Servers on the host's loopback: a resolver and a web server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

/// Address in each reply of the resolver.
pub(crate) const ANSWER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Bytes of the web server's page.
pub(crate) const PAGE: usize = 300_000;

const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n";

/// Addresses of servers, which run until the process ends.
pub(crate) struct Servers {
    pub(crate) resolver: SocketAddr,
    pub(crate) http: SocketAddr,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let resolver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let http = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let servers = Self {
            resolver: resolver.local_addr().unwrap(),
            http: http.local_addr().unwrap(),
        };
        thread::spawn(move || answer_queries(&resolver));
        thread::spawn(move || {
            for client in http.incoming() {
                let mut client = client.unwrap();
                let mut request = [0; 1024];
                let len = client.read(&mut request).unwrap();
                assert!(request[..len].starts_with(b"GET / HTTP/1.0\r\n"));
                client.write_all(HEAD).unwrap();
                client.write_all(&body()).unwrap();
            }
        });
        servers
    }
}

/// Starts a proxy for one connection to 192.0.2.1:80, which it establishes to `server`. Returns its address.
pub(crate) fn proxy(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut octet = [0];
            client.read_exact(&mut octet).unwrap();
            request.extend(octet);
        }
        let request = String::from_utf8(request).unwrap();
        assert!(
            request.starts_with("CONNECT 192.0.2.1:80 HTTP/1.1\r\n"),
            "{request}"
        );
        // "user:pass" in Base64.
        assert!(request.contains("Basic dXNlcjpwYXNz\r\n"), "{request}");
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut server = TcpStream::connect(server).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from, &mut to));
        std::io::copy(&mut server, &mut client).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    });
    address
}

fn body() -> Vec<u8> {
    (0..PAGE).map(|at| (at % 251) as u8).collect()
}

/// Checks a response of the web server.
pub(crate) fn check(response: &[u8]) {
    let page = response.strip_prefix(HEAD).expect("the head of the response");
    assert!(page == body(), "{} bytes of the page", page.len());
}

/// Answers each query (RFC 1035) with one address.
fn answer_queries(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((len, client)) = socket.recv_from(&mut query) {
        let mut reply = query[..len].to_vec();
        // A response without an error, with one answer and no further records.
        reply[2] |= 0x80;
        reply[3] = 0;
        reply[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
        // The question ends with an empty label, type and class.
        let name = reply[12..].iter().position(|byte| *byte == 0).unwrap();
        reply.truncate(12 + name + 5);
        // The name of the question, A, IN, 60 s.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(ANSWER.octets());
        socket.send_to(&reply, client).unwrap();
    }
}

/// Returns a query for the address of a name.
pub(crate) fn query() -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["www", "example", "org"] {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Returns the address in a response to [`query`].
pub(crate) fn address(response: &[u8]) -> Ipv4Addr {
    assert_eq!(response[..2], query()[..2], "the id");
    assert_eq!(response[3] & 15, 0, "no error");
    let address: [u8; 4] = *response.last_chunk().unwrap();
    address.into()
}
