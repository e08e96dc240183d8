//! Titles of scenarios and cells for readers who do not know `pontoon bench`.

use crate::scenario::Scenario;
use crate::schema::Cell;

use super::number;

/// Names of cells that represent their scenario in the headline table. A scenario without one is represented by its
/// first cell.
const HEADLINES: &[&str] = &[
    "tcp-up/1/cubic/best",
    "tcp-down/1/cubic/best",
    "crr/1",
    "publish-up/1/cubic",
    "publish-down/1/cubic",
    "publish-crr/1",
    "udp-rate/64",
    "blackhole/1000",
    "idle-flows/10000",
];

pub(super) fn title(scenario: &str) -> &str {
    Scenario::of(scenario).map_or(scenario, |known| known.title)
}

pub(super) fn about(scenario: &str) -> Option<&'static str> {
    Scenario::of(scenario).map(|known| known.about)
}

pub(super) fn is_headline(cell: &str) -> bool {
    HEADLINES.contains(&cell)
}

/// Returns the parameters that distinguish a cell within its scenario, such as `1 stream, cubic, best MTU`.
pub(super) fn parameters(cell: &Cell) -> String {
    let rest = cell.name.strip_prefix(&cell.scenario).unwrap_or(&cell.name);
    let parts = rest.split('/').filter(|part| !part.is_empty());
    let words: Vec<_> = parts
        .map(|part| {
            let parameter = cell.parameters.iter().find(|(_, value)| *value == part);
            parameter.map_or(part.to_owned(), |(name, value)| parameter_words(name, value))
        })
        .collect();
    words.join(", ")
}

fn parameter_words(name: &str, value: &str) -> String {
    let counted = |noun: &str| match value.parse() {
        Ok(1) => format!("1 {noun}"),
        Ok(count) => format!("{} {noun}s", number::count(count)),
        Err(_) => format!("{value} {noun}s"),
    };
    match name {
        "streams" => counted("stream"),
        "clients" => counted("client"),
        "flows" => format!("{} open", grouped(value)),
        "pending" => format!("{} pending", grouped(value)),
        "segments" => counted("segment"),
        "size" => format!("{value} bytes"),
        "check" if value == "hash" => "everything hashed".to_owned(),
        "receiver" => format!("receiver {value}"),
        "mtu" if value == "best" => "best MTU".to_owned(),
        "mtu" => format!("MTU {value}"),
        "congestion" | "congestion_control" => value.to_owned(),
        _ => format!("{name} {value}"),
    }
}

fn grouped(value: &str) -> String {
    value.parse().map_or(value.to_owned(), number::count)
}

/// Returns the title of a cell's scenario, and the cell's parameters.
pub(super) fn cell(cell: &Cell) -> String {
    let (title, parameters) = (title(&cell.scenario), parameters(cell));
    if parameters.is_empty() {
        title.to_owned()
    } else {
        format!("{title}, {parameters}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_order_of_the_cell_name() {
        let parameters = [("streams", "4"), ("mtu", "best"), ("congestion", "bbr")];
        let mut of = Cell {
            name: "tcp-up/4/bbr/best".to_owned(),
            scenario: "tcp-up".to_owned(),
            parameters: parameters
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            figure: "mbps".to_owned(),
            once: false,
        };
        assert_eq!(cell(&of), "TCP up, 4 streams, bbr, best MTU");
        of.parameters.clear();
        assert_eq!(cell(&of), "TCP up, 4, bbr, best");
        of.name = "tcp-up".to_owned();
        assert_eq!(cell(&of), "TCP up");
    }
}
