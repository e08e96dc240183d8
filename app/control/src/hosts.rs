//! Hosts that requests may name in their `Host` field.
//!
//! A web page that the user visits may make its own host name resolve to an address of this host (DNS rebinding); the
//! user's browser then lets the page read responses of a server on that address. The `Host` field of such a request names
//! the page's host.

use std::net::{IpAddr, SocketAddr};

/// Set of hosts that requests to a server may name.
#[derive(Clone, Debug)]
pub enum Hosts {
    /// All hosts, for a Unix socket, which no host name can resolve to.
    Any,
    /// Addresses, `localhost` and these names.
    Named(Vec<String>),
}

impl Hosts {
    /// Returns true if a request with this `Host` field (RFC 9110 section 7.2) is accepted. Browsers always send the field.
    pub(crate) fn admit(&self, host: Option<&str>) -> bool {
        let (Self::Named(names), Some(host)) = (self, host) else {
            return true;
        };
        let host = host.trim_ascii();
        if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
            return true;
        }
        if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return inner.parse::<IpAddr>().is_ok();
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut known = names.iter().map(String::as_str).chain(["localhost"]);
        known.any(|known| known.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_given_names_are_answered() {
        let hosts = Hosts::Named(vec!["Metrics.example.org".to_owned()]);
        for host in [
            "127.0.0.1",
            "127.0.0.1:9090",
            "192.0.2.1:9090",
            "[::1]",
            "[::1]:9090",
            "localhost",
            "LOCALHOST:9090",
            "localhost.:9090",
            "metrics.example.org",
            "metrics.example.ORG:9090",
        ] {
            assert!(hosts.admit(Some(host)), "{host}");
        }
        for host in [
            "",
            ":9090",
            "evil.example",
            "evil.example:9090",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "example.org",
            "x.metrics.example.org",
            "[::1",
            "[evil.example]",
            "localhost:9090:9090",
        ] {
            assert!(!hosts.admit(Some(host)), "{host}");
        }
        assert!(hosts.admit(None));
        assert!(Hosts::Any.admit(Some("evil.example")));
    }
}
