//! UDP throughput: sent as fast as possible, and at the highest rate without loss.

use crate::job::Job;
use crate::run::measurement::{JobRequest, Measurement, Observation};
use crate::scenario::{CellSpec, Profile, Scenario, Unit};
use crate::schema::Trial;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "udp-rate",
    title: "UDP rate",
    about: "How many datagrams per second arrive, and how many can be sent before some are lost?",
    cells,
};

/// The share of lost datagrams up to which a rate counts as lossless.
const TOLERANCE: f64 = 0.001;

/// Number of rates that a search tries.
const STEPS: u32 = 6;

fn cells(profile: Profile) -> Vec<CellSpec> {
    let sizes: &[u16] = profile.pick(&[64], &[64, 300, 1400]);
    sizes.iter().map(|size| spec(*size)).collect()
}

fn spec(size: u16) -> CellSpec {
    let parameters = [("size", &*size.to_string())];
    CellSpec {
        cost: (1.0 + f64::from(STEPS) / 2.0, f64::from(STEPS + 1) * 0.3),
        ..CellSpec::new(
            &SCENARIO,
            &parameters,
            "per_s",
            Unit::Datagram,
            move |measurement| measure(size, measurement),
        )
    }
}

/// Measures a flood, then searches the highest lossless rate by bisection between zero and the flood's rate. The
/// search begins below the rate at which the flood's datagrams arrived, and each step is half as long as a
/// measurement. If no step is lossless, there is no `lossless_per_s`.
fn measure(size: u16, measurement: &Measurement<'_>) -> Observation {
    let mut observation = measurement.client(Job::Datagrams { size, rate: None });
    let Some(flood) = trial(&observation) else {
        return observation;
    };
    observation.trials.push(flood);
    let mut lossless = (flood.loss < TOLERANCE).then_some(received_per_s(flood));
    let (mut low, mut high) = (0.0, flood.sent_per_s);
    let mut rate = (received_per_s(flood) * 0.9).max(1.0);
    for _ in 0..STEPS {
        if low == 0.0 && lossless.is_some() {
            break;
        }
        let step = measurement.request(JobRequest {
            duration: measurement.duration / 2.0,
            ..JobRequest::usual(
                measurement,
                Job::Datagrams {
                    size,
                    rate: Some(rate),
                },
            )
        });
        let Some(trial) = trial(&step) else {
            observation.outcome = step.outcome;
            return observation;
        };
        observation.trials.push(trial);
        if trial.loss < TOLERANCE {
            low = rate;
            lossless = Some(received_per_s(trial));
        } else {
            high = rate;
        }
        rate = (low + high) / 2.0;
    }
    if let Some(lossless) = lossless {
        observation.set("lossless_per_s", lossless);
    }
    observation
}

/// Returns the send rate and the loss of a measurement with UDP datagrams.
fn trial(observation: &Observation) -> Option<Trial> {
    let value = |name| {
        observation
            .values
            .get(name)
            .filter(|_| observation.is_measured())
            .copied()
    };
    Some(Trial {
        sent_per_s: value("sent_per_s")?,
        loss: value("loss")?,
    })
}

fn received_per_s(trial: Trial) -> f64 {
    trial.sent_per_s * (1.0 - trial.loss)
}
