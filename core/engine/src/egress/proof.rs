//! Proof of names: rules with `/tls` and `/tls-strict`, which permit a TCP connection if its ClientHello names their domain.
//!
//! Such a rule is a candidate for a connection if the guest has received the destination's address for the rule's domain
//! (the address is pinned) when it sends its SYN. All later checks of the connection use the pins of that time.

use core::net::{IpAddr, SocketAddr};

use pontoon_names::HostName;
use pontoon_names::client_hello::{ClientHello, Failure};
use thiserror::Error;

use super::{
    Action, DecisionGround, Destination, Egress, EgressEntry, EgressProtocol, Pattern, PermissionGround,
    Proof, RefusalGround, RefusalNotice, Target,
};
use crate::Instant;

/// The reason why a connection has not proved the name of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unproven {
    /// The stream of the guest does not begin with a ClientHello that names a server.
    #[error(transparent)]
    Hello(#[from] Failure),
    /// The ClientHello names a server that no rule for this destination permits.
    #[error("the ClientHello names {0}")]
    OtherName(HostName),
    /// The ClientHello has the extension encrypted_client_hello, which `/tls-strict` does not permit.
    #[error("the ClientHello for {0} has the extension encrypted_client_hello")]
    Ech(HostName),
    /// The ClientHello was not complete in time.
    #[error("the ClientHello was not complete in time")]
    TimedOut,
    /// The guest has closed its direction before the end of the ClientHello.
    #[error("the guest has closed the connection before the end of the ClientHello")]
    Ended,
    /// Too many connections are being proved.
    #[error("too many connections are waiting for their ClientHello")]
    TooMany,
}

/// The kind of an [`Unproven`], without details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnprovenCause {
    /// The stream does not begin with a TLS handshake.
    NotTls,
    /// The ClientHello is malformed, ambiguous, or of an unknown version.
    Malformed,
    /// The ClientHello has more than 16 KiB.
    TooLong,
    /// The ClientHello names no server.
    NoName,
    /// The ClientHello names a server that no rule for this destination permits.
    OtherName,
    /// The ClientHello has the extension encrypted_client_hello.
    Ech,
    /// The ClientHello was not complete in time.
    Timeout,
    /// The guest has closed its direction before the end of the ClientHello.
    Ended,
    /// Too many connections are being proved.
    Limit,
}

impl Unproven {
    /// Returns the kind of the reason.
    #[must_use]
    pub const fn cause(&self) -> UnprovenCause {
        match self {
            Self::Hello(failure) => match failure {
                Failure::NotTls | Failure::Ssl2 | Failure::OtherMessage(_) => UnprovenCause::NotTls,
                Failure::NoName => UnprovenCause::NoName,
                Failure::TooLong => UnprovenCause::TooLong,
                Failure::OtherRecord(_)
                | Failure::EmptyRecord
                | Failure::LongRecord(_)
                | Failure::Malformed
                | Failure::Version(_)
                | Failure::RepeatedExtension(_)
                | Failure::SeveralNames
                | Failure::NameType(_)
                | Failure::Name(_) => UnprovenCause::Malformed,
            },
            Self::OtherName(_) => UnprovenCause::OtherName,
            Self::Ech(_) => UnprovenCause::Ech,
            Self::TimedOut => UnprovenCause::Timeout,
            Self::Ended => UnprovenCause::Ended,
            Self::TooMany => UnprovenCause::Limit,
        }
    }

    /// Returns the name in the ClientHello, if it is the reason.
    #[must_use]
    pub const fn name(&self) -> Option<&HostName> {
        match self {
            Self::OtherName(name) | Self::Ech(name) => Some(name),
            Self::Hello(_) | Self::TimedOut | Self::Ended | Self::TooMany => None,
        }
    }
}

impl UnprovenCause {
    /// All causes, in the order of their codes in records of events.
    pub const ALL: [Self; 9] = [
        Self::NotTls,
        Self::Malformed,
        Self::TooLong,
        Self::NoName,
        Self::OtherName,
        Self::Ech,
        Self::Timeout,
        Self::Ended,
        Self::Limit,
    ];

    /// Returns the word for the cause in events.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotTls => "not-tls",
            Self::Malformed => "malformed",
            Self::TooLong => "too-long",
            Self::NoName => "no-name",
            Self::OtherName => "other-name",
            Self::Ech => "ech",
            Self::Timeout => "timeout",
            Self::Ended => "ended",
            Self::Limit => "limit",
        }
    }
}

impl Egress {
    /// Returns true if a rule permits no encrypted_client_hello, so that the guest may receive no keys for it.
    #[must_use]
    pub fn forbids_ech(&self) -> bool {
        let mut rules = self.rules();
        rules.any(|rule| rule.to.proof == Some(Proof::TlsStrict))
    }

    /// Returns true if there are rules that may permit the connection to `to` of which the SYN was received at `opened`, once it
    /// proves its name.
    pub(crate) fn has_candidate(&self, to: &Destination<'_>, opened: Instant) -> bool {
        self.first_candidate(to, opened).is_some()
    }

    /// Returns the domains by which rules may permit the connection to `to` of which the SYN was received at `opened`.
    pub(crate) fn candidate_names(
        &self,
        to: &Destination<'_>,
        opened: Instant,
    ) -> impl Iterator<Item = &Pattern> {
        let candidates = self
            .entries
            .iter()
            .filter(move |entry| entry.is_candidate(to, opened));
        candidates.filter_map(|entry| match &entry.rule.to.target {
            Target::Name(pattern) => Some(pattern),
            Target::Any | Target::Net(_) => None,
        })
    }

    /// Returns true if a rule permits the connection to `to` of which the SYN was received at `opened` and whose ClientHello is
    /// `hello`. Nothing is counted.
    pub(crate) fn is_proved(&self, to: &Destination<'_>, hello: &ClientHello, opened: Instant) -> bool {
        self.proved_rule(to, hello, opened).is_ok()
    }

    /// Returns the rule that permits the connection to `to` of which the SYN was received at `opened`, by its ClientHello, and
    /// counts it.
    ///
    /// # Errors
    /// The reason why no rule permits the connection.
    pub(crate) fn prove(
        &mut self,
        to: &Destination<'_>,
        hello: &ClientHello,
        opened: Instant,
    ) -> Result<DecisionGround, Unproven> {
        let place = self.proved_rule(to, hello, opened)?;
        self.entries[place].tally.hits += 1;
        self.matches += 1;
        Ok(DecisionGround::of_rule(place))
    }

    /// Counts a connection to `to` that was refused because it has not proved its name, and adds a log line unless the last one
    /// is too recent. Returns the first rule that could have permitted it.
    pub(crate) fn refuse_unproven(
        &mut self,
        to: &Destination<'_>,
        why: &Unproven,
        opened: Instant,
        now: Instant,
    ) -> Option<DecisionGround> {
        let candidate = self.first_candidate(to, opened);
        self.unlisted.hits += 1;
        self.matches += 1;
        if let Some(times) = self.unproven.report(now) {
            let target = SocketAddr::new(to.written, to.port.unwrap_or(0));
            let rule = candidate.map_or_else(String::new, |place| format!("{}: ", self.entries[place].rule));
            self.notices.push(RefusalNotice(format!(
                "refused tcp to {target}: {rule}{why}{times}"
            )));
        }
        candidate.map(DecisionGround::of_rule)
    }

    /// Returns the ground of a destination that no rule permits without a proof, while there are allow rules.
    pub(super) fn ground_by_proof(
        &self,
        to: &Destination<'_>,
        now: Instant,
    ) -> Result<PermissionGround, RefusalGround> {
        match (to.protocol, self.first_candidate(to, now)) {
            (EgressProtocol::Tcp, Some(_)) => Ok(PermissionGround::Proof),
            (EgressProtocol::Udp, Some(place)) => Err(RefusalGround::TlsOnly(place)),
            (EgressProtocol::Icmp, Some(_)) | (_, None) => Err(RefusalGround::Unlisted),
        }
    }

    /// Returns the index of the first rule that may permit a connection to `to` by a proof.
    pub(super) fn first_candidate(&self, to: &Destination<'_>, opened: Instant) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| entry.is_candidate(to, opened))
    }

    fn proved_rule(
        &self,
        to: &Destination<'_>,
        hello: &ClientHello,
        opened: Instant,
    ) -> Result<usize, Unproven> {
        let mut why = Unproven::OtherName(hello.name.clone());
        for (place, entry) in self.entries.iter().enumerate() {
            if !entry.is_named(hello) || !entry.is_candidate(to, opened) {
                continue;
            }
            if entry.rule.to.proof == Some(Proof::TlsStrict) && hello.ech {
                why = Unproven::Ech(hello.name.clone());
                continue;
            }
            return Ok(place);
        }
        Err(why)
    }
}

impl EgressEntry {
    /// Returns true if the rule permits connections to `to` that prove its domain; for UDP, connections to the same address and
    /// port.
    fn is_candidate(&self, to: &Destination<'_>, now: Instant) -> bool {
        let pinned = |address: IpAddr| self.is_about(to, address, now);
        self.rule.action == Action::Allow
            && self.rule.to.proof.is_some()
            && to.port.is_some()
            && self.rule.to.is_for(EgressProtocol::Tcp, to.port)
            && (pinned(to.written) || pinned(to.remote))
    }

    fn is_named(&self, hello: &ClientHello) -> bool {
        match &self.rule.to.target {
            Target::Name(pattern) => pattern.matches(hello.name.as_str()),
            Target::Any | Target::Net(_) => false,
        }
    }
}
