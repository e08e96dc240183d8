//! How many datagrams per second arrive: of a flood, and at the highest rate at which nearly all do.

use crate::job::Job;
use crate::run::asking::{Answer, Asking, Request};
use crate::scenario::{Profile, Question, Scenario, Unit};
use crate::schema::Trial;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "udp-rate",
    title: "UDP rate",
    about: "How many datagrams per second arrive, and how many can be sent before some are lost?",
    questions,
};

/// What may be lost of what counts as lossless.
const TOLERANCE: f64 = 0.001;

/// Rates that a search tries.
const STEPS: u32 = 6;

fn questions(profile: Profile) -> Vec<Question> {
    let sizes: &[u16] = profile.pick(&[64], &[64, 300, 1400]);
    sizes.iter().map(|size| question(*size)).collect()
}

fn question(size: u16) -> Question {
    let parameters = [("size", &*size.to_string())];
    Question {
        cost: (1.0 + f64::from(STEPS) / 2.0, f64::from(STEPS + 1) * 0.3),
        ..Question::new(&SCENARIO, &parameters, "per_s", Unit::Datagram, move |asking| {
            ask(size, asking)
        })
    }
}

/// A flood; then, between nothing and what its sender managed, a bisection that begins below what arrived of it, each
/// step half as long as a measurement. Without a step that is lossless there is no `lossless_per_s`.
fn ask(size: u16, asking: &Asking<'_>) -> Answer {
    let mut answer = asking.client(Job::Datagrams { size, rate: None });
    let Some(flood) = trial(&answer) else {
        return answer;
    };
    answer.trials.push(flood);
    let mut lossless = (flood.loss < TOLERANCE).then_some(received_per_s(flood));
    let (mut low, mut high) = (0.0, flood.sent_per_s);
    let mut rate = (received_per_s(flood) * 0.9).max(1.0);
    for _ in 0..STEPS {
        if low == 0.0 && lossless.is_some() {
            break;
        }
        let step = asking.request(Request {
            duration: asking.duration / 2.0,
            ..Request::usual(
                asking,
                Job::Datagrams {
                    size,
                    rate: Some(rate),
                },
            )
        });
        let Some(trial) = trial(&step) else {
            answer.outcome = step.outcome;
            return answer;
        };
        answer.trials.push(trial);
        if trial.loss < TOLERANCE {
            low = rate;
            lossless = Some(received_per_s(trial));
        } else {
            high = rate;
        }
        rate = (low + high) / 2.0;
    }
    if let Some(lossless) = lossless {
        answer.set("lossless_per_s", lossless);
    }
    answer
}

/// What became of a measurement's datagrams.
fn trial(answer: &Answer) -> Option<Trial> {
    let value = |name| answer.values.get(name).filter(|_| answer.is_measured()).copied();
    Some(Trial {
        sent_per_s: value("sent_per_s")?,
        loss: value("loss")?,
    })
}

fn received_per_s(trial: Trial) -> f64 {
    trial.sent_per_s * (1.0 - trial.loss)
}
