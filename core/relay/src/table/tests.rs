use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::Rule;

/// Builds a table of these inputs; the value of each is its index.
fn table(inputs: &[Input]) -> RuleTable<usize> {
    RuleTable::new(inputs.iter().zip(0..))
}

fn input(text: &str) -> Input {
    format!("{text} -> z 239.255.0.1:1")
        .parse::<Rule>()
        .unwrap()
        .input
}

#[test]
fn most_specific_input_matches() {
    let inputs = [
        "a 239.1.1.1:5001",
        "a 239.1.1.1:5001 from 10.0.0.1",
        "a 239.1.1.1:5001 from 10.0.0.0/24",
        "a 239.1.1.1:*",
        "a 239.1.1.1:* from 10.0.0.9",
        "a 239.1.0.0/16:5001",
        "a 239.1.0.0/16:* from 10.0.0.1",
        "a 224.0.0.0/4:7000",
        "a 239.2.2.2:1 from 10.0.0.1",
        "a [ff3e::/96]:5001",
        "a [ff3e::1]:5001 from 2001:db8::/32",
        "a 192.0.2.1:5001",
    ];
    let table = table(&inputs.map(input));
    for (from, to, expected) in [
        // The sender decides if destination address and port are equal.
        ("10.0.0.1", "239.1.1.1:5001", Some(inputs[1])),
        ("10.0.0.2", "239.1.1.1:5001", Some(inputs[2])),
        ("10.0.1.2", "239.1.1.1:5001", Some(inputs[0])),
        // An input with the port precedes one for any port, even if the latter names the sender.
        ("10.0.0.9", "239.1.1.1:5001", Some(inputs[2])),
        ("10.0.0.9", "239.1.1.1:5002", Some(inputs[4])),
        ("10.0.0.1", "239.1.1.1:5002", Some(inputs[3])),
        // A longer prefix of the group precedes port and sender.
        ("10.0.0.1", "239.1.1.1:9", Some(inputs[3])),
        ("10.0.0.1", "239.1.1.2:5001", Some(inputs[5])),
        ("10.0.0.1", "239.1.1.2:9", Some(inputs[6])),
        ("10.0.0.2", "239.1.1.2:9", None),
        // An input with a longer prefix is not chosen if its port or sender does not match.
        ("10.0.0.2", "239.1.9.9:7000", Some(inputs[7])),
        ("10.0.0.1", "239.1.9.9:7000", Some(inputs[6])),
        ("10.0.0.2", "239.2.2.2:7000", Some(inputs[7])),
        ("10.0.0.1", "239.2.2.2:1", Some(inputs[8])),
        ("10.0.0.2", "239.2.2.2:1", None),
        ("10.0.0.2", "239.2.2.2:2", None),
        // IPv6 and unicast inputs.
        ("2001:db8::7", "[ff3e::1]:5001", Some(inputs[10])),
        ("2001:db9::7", "[ff3e::1]:5001", Some(inputs[9])),
        ("2001:db8::7", "[ff3e::1:0:1]:5001", None),
        ("10.0.0.1", "192.0.2.1:5001", Some(inputs[11])),
        ("10.0.0.1", "192.0.2.2:5001", None),
    ] {
        let to: SocketAddr = to.parse().unwrap();
        let found = table.find(from.parse().unwrap(), to.ip(), to.port());
        assert_eq!(found.map(|index| inputs[index]), expected, "{from} {to}");
    }
}

#[test]
fn empty_table_matches_nothing() {
    let empty = table(&[]);
    assert_eq!(
        empty.find("10.0.0.1".parse().unwrap(), "239.1.1.1".parse().unwrap(), 1),
        None
    );
}

proptest! {
    /// The table returns the same value as a search of all inputs, in whatever order they were added.
    #[test]
    fn table_agrees_with_a_linear_search(
        picks in prop::collection::vec((0..4_u8, prop::option::of(1..3_u16), prop::option::of(0..3_u8)), 0..12),
        from in 0..4_u8, to in 0..4_u8, port in 1..4_u16,
    ) {
        let mut inputs: Vec<Input> = Vec::new();
        for (length, port, source) in picks {
            let net = ["239.0.0.0/8", "239.1.0.0/16", "239.1.1.0/24", "239.1.1.1"][usize::from(length)];
            let port = port.map_or("*".into(), |port| port.to_string());
            let from = source.map_or(String::new(), |source| {
                format!(" from {}", ["10.0.0.0/8", "10.0.0.0/31", "10.0.0.1"][usize::from(source)])
            });
            let input = input(&format!("a {net}:{port}{from}"));
            if !inputs.contains(&input) {
                inputs.push(input);
            }
        }
        let from: IpAddr = [10, 0, 0, from].into();
        let to: IpAddr = [239, 1, 1, to].into();
        let fits = |input: &&Input| input.to.contains(&to)
            && input.port.is_none_or(|own| own.get() == port)
            && input.from.is_none_or(|net| net.contains(&from));
        let best = inputs.iter().filter(fits).max_by_key(|input| {
            (input.to.prefix_len(), input.port.is_some(), input.from.map(|net| net.prefix_len()))
        });
        let found = table(&inputs).find(from, to, port).map(|index| &inputs[index]);
        prop_assert_eq!(found, best);
    }
}
