//! Requests to end flows, and their results.

use pontoon_engine::Token;
use pontoon_engine::egress::Match;
use pontoon_ipc::text;
use serde::{Deserialize, Serialize};

/// Request to end flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndFlows {
    /// Number of the request, which the result repeats.
    pub number: u64,
    /// Flows to end.
    pub which: FlowSelection,
}

/// Flows that a request selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FlowSelection {
    /// The flow whose id is this number, a [`Token`].
    Id(u64),
    /// The flows that the guest has opened to these destinations.
    To(#[serde(with = "text")] Match),
}

/// Number of flows that a worker has ended by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedFlows {
    /// Number of the request.
    pub number: u64,
    /// Number of flows.
    pub count: u32,
}

impl EndFlows {
    pub(super) fn is_valid(&self) -> bool {
        match self.which {
            FlowSelection::Id(token) => Token(token).flow().is_some(),
            FlowSelection::To(_) => true,
        }
    }
}

impl EndedFlows {
    /// Maximum number of results in one report. If there are more, a worker sends the latest only.
    pub const MOST: usize = 128;
}

#[cfg(test)]
mod tests {
    use pontoon_engine::egress::RefusedFlows;
    use pontoon_ipc::{ChannelMessage, decode, encode};

    use super::*;
    use crate::messages::{Confirmation, Report, RulesUpdate, Update};

    #[test]
    fn invalid_requests_and_results_are_refused() {
        for message in [
            r#"{"end_flows":{"number":1,"which":{"id":648518346341351424}}}"#,
            r#"{"end_flows":{"number":1,"which":{"id":-1}}}"#,
            r#"{"end_flows":{"number":1,"which":{"to":"10.0.0"}}}"#,
            r#"{"end_flows":{"which":{"id":1}}}"#,
        ] {
            assert!(
                decode::<Update>(message.as_bytes(), Vec::new()).is_err(),
                "{message}"
            );
        }
        for (count, is_valid) in [(EndedFlows::MOST, true), (EndedFlows::MOST + 1, false)] {
            let ended = EndedFlows {
                number: u64::MAX,
                count: u32::MAX,
            };
            let report = Report::Confirmed(Confirmation {
                ended: vec![ended; count],
                ..Confirmation::default()
            });
            let bytes = encode(&report).unwrap();
            assert_eq!(decode::<Report>(&bytes, Vec::new()).is_ok(), is_valid, "{count}");
        }
    }

    #[test]
    fn no_request_is_replaced() {
        let request = |number| {
            Update::EndFlows(EndFlows {
                number,
                which: FlowSelection::Id(1),
            })
        };
        assert!(!request(2).replaces(&request(1)));
    }

    #[test]
    fn rules_that_keep_flows_do_not_replace_rules_that_reset_them() {
        let rules = |refused| {
            Update::Rules(RulesUpdate {
                generation: 1,
                rules: Vec::new(),
                refused,
            })
        };
        let [reset, keep] = [RefusedFlows::Reset, RefusedFlows::Keep].map(rules);
        assert!(reset.replaces(&reset) && reset.replaces(&keep) && keep.replaces(&keep));
        assert!(!keep.replaces(&reset));
    }
}
