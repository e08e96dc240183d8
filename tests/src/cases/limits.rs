//! Limits, and that they are told of.

use anyhow::{Result, ensure};

use super::talk;
use crate::case::{Case, Context, Family};
use crate::network::Network;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("limits.flows-at-one-time", 20, |context, family| {
            bites(context, family, "--max-flows", "5")
        }),
        Case::both("limits.new-flows-per-second", 20, |context, family| {
            bites(context, family, "--max-flow-rate", "5")
        }),
    ]
    .into_iter()
    .flatten()
    .map(Case::pontoon_only)
    .collect()
}

/// Twenty connections to where nobody answers are too many, which is said once.
fn bites(context: &Context, family: Family, option: &str, limit: &str) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let words = ["raw", "pending", &nowhere.to_string(), "20"].map(String::from);
    let run = network.run().options([option, limit]).guest(words).talk_to(&talk);
    run.text()?;
    let talk = std::fs::read_to_string(&talk)?;
    let told: Vec<_> = talk
        .lines()
        .filter(|line| line.contains("flows refused"))
        .collect();
    ensure!(
        told.len() == 1 && told[0].contains(&format!("{option} {limit}")),
        "told {told:?}:\n{talk}"
    );
    Ok(())
}
