//! Command `pontoon ctl flows`: filter, order, and changes of flows.

use std::collections::HashMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use ipnet::IpNet;
use pontoon_control::reply::{self, Flow};
use pontoon_engine::egress::{EgressProtocol, Match, Target};

use super::client::Client;
use crate::args::{FlowArgs, FlowOrder, FlowsCommand};

/// Interval between requests with `--follow`.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) fn show(client: &Client<'_>, arguments: &FlowArgs, json: bool, to: &mut impl Write) -> Result<()> {
    if let Some(FlowsCommand::Kill { id, rule }) = &arguments.command {
        return kill(client, id.as_deref(), rule.as_ref(), json, to);
    }
    if arguments.follow {
        return follow(client, arguments, json, to);
    }
    let mut flows = ask(client, arguments)?;
    sort(&mut flows, arguments.sort);
    flows.truncate(arguments.limit.unwrap_or(usize::MAX));
    if json {
        serde_json::to_writer(&mut *to, &reply::Flows { flows })?;
        return Ok(writeln!(to)?);
    }
    writeln!(to, "{}", HEAD)?;
    flows
        .iter()
        .try_for_each(|flow| Ok(writeln!(to, "{}", line(flow))?))
}

/// Ends the flow with the id `id`, or the flows to the destinations that `rule` names, and prints their number.
fn kill(
    client: &Client<'_>,
    id: Option<&str>,
    rule: Option<&Match>,
    json: bool,
    to: &mut impl Write,
) -> Result<()> {
    let ended: reply::FlowsEnded = match (id, rule) {
        (Some(id), _) => client.delete(&format!("/v1/flows/{id}"))?,
        (None, Some(rule)) => {
            let rule = rule.to_string();
            client.post("/v1/flows/kill", &serde_json::json!({ "rule": rule }))?
        }
        (None, None) => bail!("neither an id nor a rule is given"),
    };
    super::print(to, json, &ended, |ended, to| {
        let flows = if ended.ended == 1 { "flow" } else { "flows" };
        writeln!(to, "{} {flows} ended", ended.ended)
    })
}

/// Prints flows that begin and end, until the process is terminated. A flow that is shorter than [`PERIOD`] may be missed.
fn follow(client: &Client<'_>, arguments: &FlowArgs, json: bool, to: &mut impl Write) -> Result<()> {
    let mut known: HashMap<String, Flow> = HashMap::new();
    loop {
        let now: HashMap<String, Flow> = ask(client, arguments)?
            .into_iter()
            .map(|flow| (flow.id.clone(), flow))
            .collect();
        let of = |flows: &HashMap<String, Flow>, others: &HashMap<String, Flow>| {
            let alone = flows.values().filter(|flow| !others.contains_key(&flow.id));
            let mut alone: Vec<_> = alone.cloned().collect();
            sort(&mut alone, arguments.sort);
            alone
        };
        let (ended, begun) = (of(&known, &now), of(&now, &known));
        for (event, flow) in ended
            .iter()
            .map(|flow| ("end", flow))
            .chain(begun.iter().map(|flow| ("begin", flow)))
        {
            match json {
                true => writeln!(to, "{}", serde_json::json!({ "event": event, "flow": flow }))?,
                false => writeln!(to, "{event:<5} {}", line(flow))?,
            }
        }
        to.flush()?;
        known = now;
        thread::sleep(PERIOD);
    }
}

fn ask(client: &Client<'_>, arguments: &FlowArgs) -> Result<Vec<Flow>> {
    let mut flows = client.get::<reply::Flows>("/v1/flows")?.flows;
    if let Some(to) = &arguments.to {
        let filter = Filter::new(to)?;
        flows.retain(|flow| filter.takes(flow));
    }
    Ok(flows)
}

/// Filter of flows by destination (`--to`).
struct Filter<'a> {
    pattern: &'a Match,
    net: Option<IpNet>,
}

impl<'a> Filter<'a> {
    fn new(pattern: &'a Match) -> Result<Self> {
        let net = match &pattern.target {
            Target::Any => None,
            Target::Net(net) => Some(*net),
            Target::Name(_) => bail!("flows have addresses, not names (try: an address, or '*')"),
        };
        Ok(Self { pattern, net })
    }

    fn takes(&self, flow: &Flow) -> bool {
        let protocol = match flow.protocol.as_str() {
            "tcp" => EgressProtocol::Tcp,
            "udp" => EgressProtocol::Udp,
            _ => EgressProtocol::Icmp,
        };
        let port = flow.remote.map(|remote| remote.port());
        let in_net = |net: IpNet| flow.remote.is_some_and(|remote| net.contains(&remote.ip()));
        self.pattern.is_for(protocol, port) && self.net.is_none_or(in_net)
    }
}

pub(crate) fn sort(flows: &mut [Flow], order: FlowOrder) {
    match order {
        FlowOrder::Age => flows.sort_by_key(|flow| std::cmp::Reverse(flow.age_ms)),
        FlowOrder::Up => flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes_up)),
        FlowOrder::Down => flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes_down)),
        FlowOrder::Bytes => {
            flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes_up.saturating_add(flow.bytes_down)))
        }
        FlowOrder::Remote => flows.sort_by_key(|flow| flow.remote),
    }
}

const HEAD: &str = "PROTO GUEST                    DIR REMOTE                         STATE           AGE         UP       DOWN ID";

fn line(flow: &Flow) -> String {
    let remote = flow
        .remote
        .map_or_else(|| "-".to_owned(), |remote| remote.to_string());
    let arrow = if flow.direction == "in" { "<-" } else { "->" };
    format!(
        "{:<5} {:<24} {arrow:<3} {remote:<30} {:<10} {:>8} {:>10} {:>10} {}",
        flow.protocol,
        flow.guest,
        flow.state,
        age(flow.age_ms),
        bytes(flow.bytes_up),
        bytes(flow.bytes_down),
        flow.id
    )
}

/// Formats a duration in at most seven characters.
pub(crate) fn age(ms: u64) -> String {
    match ms / 1000 {
        0 => format!("{ms}ms"),
        seconds @ 1..60 => format!("{seconds}.{}s", ms % 1000 / 100),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Formats a number of bytes in powers of 1000.
pub(crate) fn bytes(amount: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let place = (amount.max(1).ilog10() / 3) as usize;
    match place {
        0 => amount.to_string(),
        place => {
            #[expect(clippy::cast_precision_loss, reason = "one digit behind the point is shown")]
            let value = amount as f64 / 1000_f64.powi(i32::try_from(place).unwrap_or(0));
            format!("{value:.1}{}", units[place])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(protocol: &str, remote: Option<&str>, up: u64) -> Flow {
        Flow {
            id: format!("{up}"),
            worker: 0,
            protocol: protocol.to_owned(),
            guest: "10.0.2.15:999".parse().unwrap(),
            remote: remote.map(|remote| remote.parse().unwrap()),
            direction: "out".to_owned(),
            state: "open".to_owned(),
            age_ms: 100 - up,
            bytes_up: up,
            bytes_down: 0,
        }
    }

    #[test]
    fn filter_has_the_syntax_of_rules() {
        let flows = [
            flow("tcp", Some("192.0.2.1:443"), 1),
            flow("udp", Some("192.0.2.9:53"), 2),
            flow("icmp", Some("[2001:db8::1]:0"), 3),
            flow("udp", None, 4),
        ];
        for (to, taken) in [
            ("*", &[1, 2, 3, 4][..]),
            ("192.0.2.0/24", &[1, 2]),
            ("192.0.2.0/24:443", &[1]),
            ("*/udp", &[2, 4]),
            ("[2001:db8::/32]:1-9", &[]),
            ("2001:db8::/32", &[3]),
        ] {
            let pattern = to.parse().unwrap();
            let filter = Filter::new(&pattern).unwrap();
            let found: Vec<_> = flows
                .iter()
                .filter(|flow| filter.takes(flow))
                .map(|flow| flow.bytes_up)
                .collect();
            assert_eq!(found, taken, "{to}");
        }
        assert!(Filter::new(&"example.org".parse().unwrap()).is_err());
    }

    #[test]
    fn flows_are_sorted_in_descending_order() {
        let mut flows = [flow("tcp", None, 1), flow("tcp", None, 3), flow("tcp", None, 2)];
        sort(&mut flows, FlowOrder::Up);
        assert_eq!(flows.each_ref().map(|flow| flow.bytes_up), [3, 2, 1]);
        sort(&mut flows, FlowOrder::Age);
        assert_eq!(flows.each_ref().map(|flow| flow.bytes_up), [1, 2, 3]);
    }

    #[test]
    fn amounts_and_times_are_formatted_in_few_characters() {
        assert_eq!(
            [0, 999, 1_000, 1_550_000, u64::MAX].map(bytes),
            ["0", "999", "1.0k", "1.6M", "18.4E"]
        );
        assert_eq!(
            [7, 1_250, 61_000, 7_260_000].map(age),
            ["7ms", "1.2s", "1m01s", "2h01m"]
        );
    }
}
