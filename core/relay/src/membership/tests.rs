use super::*;

mod election;
mod groups;
mod limits;
mod memberships;
mod messages;
mod queries;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A querier, and the memberships that the supervisor learns from its reports.
struct ReportedQuerier {
    querier: Querier,
    memberships: Memberships,
}

impl std::ops::Deref for ReportedQuerier {
    type Target = Querier;

    fn deref(&self) -> &Querier {
        &self.querier
    }
}

impl std::ops::DerefMut for ReportedQuerier {
    fn deref_mut(&mut self) -> &mut Querier {
        &mut self.querier
    }
}

fn querier_at(own: &str) -> ReportedQuerier {
    let own = address(own);
    ReportedQuerier {
        querier: Querier::new(own, at(0)),
        memberships: Memberships::new(own.is_ipv6()),
    }
}

fn querier() -> ReportedQuerier {
    querier_at("10.0.0.5")
}

fn report(group: &str, change: SourceChange) -> Message {
    let host = if group.contains(':') {
        "fe80::7"
    } else {
        "10.0.0.7"
    };
    report_of(host, group, change)
}

fn report_of(host: &str, group: &str, change: SourceChange) -> Message {
    Message::Reports {
        from: address(host),
        records: vec![Record {
            group: address(group),
            change,
        }],
    }
}

fn from(sources: &[&str], exclusive: bool) -> SourceChange {
    SourceChange::Include {
        sources: sources.iter().map(|text| address(text)).collect(),
        exclusive,
    }
}

/// Returns the memberships after all changes so far have been reported.
fn wanted(reporting: &mut ReportedQuerier) -> Vec<String> {
    while let Some((group, filter)) = reporting.querier.next_change() {
        reporting.memberships.set(group, filter).unwrap();
    }
    shown(&reporting.memberships)
}

fn shown(memberships: &Memberships) -> Vec<String> {
    let shown = |(group, source): (IpAddr, Option<IpAddr>)| match source {
        None => group.to_string(),
        Some(source) => format!("{group} from {source}"),
    };
    memberships.iter().map(shown).collect()
}
