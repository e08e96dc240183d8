//! One question asked of one stack.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::moment::{Interval, Moment, busy_cpus};
use super::processes::Use;
use super::session::{Next, Session};
use crate::host::{CLIENT, Host};
use crate::job::{Findings, Job, Order, Ports, Word};
use crate::network;
use crate::scenario::Unit;
use crate::schema::{Conditions, Histogram, Outcome, Sample, Trial};
use crate::stack::{Place, Stack, Wish};

/// For a stack to stand and a client to begin.
const START: Duration = Duration::from_secs(5);

/// Of the length of a measurement: how long it may take.
const DEADLINE: f64 = 3.0;

/// Beyond that, for the client to say so itself: it knows at which byte it stalled.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Everything that a scenario needs for its measurement.
pub(crate) struct Asking<'a> {
    pub(crate) host: &'a Host,
    pub(crate) stack: &'a dyn Stack,
    pub(crate) ports: Ports,
    pub(crate) congestion_control: String,
    /// Of one measurement, in seconds.
    pub(crate) duration: f64,
    pub(crate) unit: Unit,
    pub(crate) wish: Wish,
    /// Samples of this stack in this round.
    pub(crate) earlier: Vec<&'a Sample>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) histograms: BTreeMap<String, Histogram>,
    pub(crate) trials: Vec<Trial>,
    pub(crate) conditions: Conditions,
}

/// A job for the client, with more than the usual.
pub(crate) struct Request {
    pub(crate) job: Job,
    /// In seconds.
    pub(crate) duration: f64,
    /// Beyond the usual, to begin.
    pub(crate) start: Duration,
    /// Read the stack's memory at the end.
    pub(crate) memory: bool,
}

/// When a program inside a stack has done what it was timed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    End,
    FirstLine,
}

impl Request {
    /// For the usual time, with nothing unusual.
    pub(crate) fn usual(asking: &Asking<'_>, job: Job) -> Self {
        Self {
            job,
            duration: asking.duration,
            start: Duration::ZERO,
            memory: false,
        }
    }
}

impl Answer {
    pub(crate) fn measured() -> Self {
        Self::of(Outcome::Measured)
    }

    /// Without a figure.
    pub(crate) fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            values: BTreeMap::new(),
            histograms: BTreeMap::new(),
            trials: Vec::new(),
            conditions: Conditions::default(),
        }
    }

    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self::of(Outcome::Failed { why: why.into() })
    }

    pub(crate) fn unreachable(why: impl Into<String>) -> Self {
        Self::of(Outcome::Unreachable { why: why.into() })
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.outcome == Outcome::Measured
    }

    pub(crate) fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), value);
    }
}

impl Asking<'_> {
    pub(crate) fn place(&self) -> Place {
        self.stack.place()
    }

    /// The usual: the job for the usual time.
    pub(crate) fn client(&self, job: Job) -> Answer {
        self.request(Request::usual(self, job))
    }

    /// Has the client do a job inside the stack.
    pub(crate) fn request(&self, request: Request) -> Answer {
        let busy_before = busy_cpus();
        let mut answer = self
            .ask(&request)
            .unwrap_or_else(|error| Answer::failed(format!("{error:#}")));
        answer.conditions.busy_before = busy_before;
        answer
    }

    /// From the start of the stack with `program` inside.
    ///
    /// # Errors
    /// The answer, where it does not get that far.
    pub(crate) fn time(&self, program: &[OsString], until: Until) -> Result<Duration, Box<Answer>> {
        let begun = Instant::now();
        let mut session = Session::start(self.host, self.stack, &self.wish, program)
            .map_err(|error| Answer::failed(format!("{error:#}")))?;
        let reached = match until {
            Until::End => session.ends_well(begun + START),
            Until::FirstLine => matches!(session.next(begun + START), Next::Noise),
        };
        let elapsed = begun.elapsed();
        if reached {
            session.finish();
            return Ok(elapsed);
        }
        let silence = if elapsed < START {
            Silence::Over
        } else {
            Silence::Stalled
        };
        Err(cut_short(silence, session).into())
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        let order = Order {
            job: request.job.clone(),
            ports: self.ports,
            warm_up: (request.duration / 4.0).min(0.2),
            duration: request.duration,
        };
        let program: Vec<OsString> = vec![
            self.host.client.clone().into(),
            CLIENT.into(),
            "--congestion-control".into(),
            self.congestion_control.clone().into(),
            self.place().server.to_string().into(),
            serde_json::to_string(&order)?.into(),
        ];
        let session = Session::start(self.host, self.stack, &self.wish, &program)?;
        let patience = START + self.stack.boot() + request.start + seconds(order.warm_up * DEADLINE);
        let begin = match self.word(&session, Instant::now() + patience) {
            Ok(Word::Begin) => Moment::of_stack(&session.processes()),
            Ok(word) => return Ok(ended_early(word, session)),
            Err(silence) => return Ok(cut_short(silence, session)),
        };
        let patience = seconds(order.duration * DEADLINE) + LAST_WORD;
        let findings = match self.word(&session, Instant::now() + patience) {
            Ok(Word::End(findings)) => findings,
            Ok(word) => return Ok(ended_early(word, session)),
            Err(silence) => return Ok(cut_short(silence, session)),
        };
        let processes = session.processes();
        let interval = begin.until(&Moment::of_stack(&processes));
        let memory = request.memory.then(|| Use::all(&processes.stack()));
        let interface = processes
            .client()
            .and_then(|client| network::interface_of(client, self.place().server).ok());
        session.finish();
        Ok(self.answer(order.duration, findings, &interval, memory, interface))
    }

    /// The next word, or why there is none.
    fn word(&self, session: &Session, deadline: Instant) -> Result<Word, Silence> {
        loop {
            match session.next(deadline) {
                Next::Word(word) => return Ok(word),
                Next::Noise => {}
                Next::Over => return Err(Silence::Over),
                Next::Silence => return Err(Silence::Stalled),
            }
        }
    }

    fn answer(
        &self,
        duration: f64,
        findings: Findings,
        interval: &Interval,
        memory: Option<Use>,
        interface: Option<(u32, u32)>,
    ) -> Answer {
        let mut answer = Answer {
            outcome: Outcome::Measured,
            values: findings.values,
            histograms: findings.histograms,
            trials: Vec::new(),
            conditions: Conditions {
                congestion_control: findings.congestion_control,
                mtu: interface.map(|(mtu, _)| mtu),
                queue_length: interface.map(|(_, queue)| queue),
                busy_before: 0.0,
                steal: interval.steal,
                clock_drift_us: interval.clock_drift_us,
            },
        };
        let done = self.unit.done(&answer.values, duration);
        let (per, factor) = self.unit.costs();
        let mut cost = |whose: &str, cpu: f64| {
            answer.set(&format!("{whose}_cpu_s"), cpu);
            let each = whose.strip_prefix("stack").map_or("machine_", |_| "");
            if let (Some(per), Some(done)) = (per, done.filter(|done| *done > 0.0)) {
                answer.set(&format!("{each}cpu_per_{per}"), cpu / done * factor);
            }
        };
        cost("machine", interval.machine_cpu_s);
        if let Some(cpu) = interval.stack_cpu_s {
            cost("stack", cpu);
        }
        if let Some(memory) = memory.filter(|_| interval.stack_cpu_s.is_some()) {
            answer.set("rss_bytes", memory.rss as f64);
            if let Some(pss) = memory.pss {
                answer.set("pss_bytes", pss as f64);
            }
            if let Some(switches) = interval.switches {
                answer.set("wakeups_per_s", switches as f64 / interval.seconds);
            }
        }
        answer
    }
}

/// Why there is no word.
enum Silence {
    Over,
    Stalled,
}

/// A word that ends the measurement before its time.
fn ended_early(word: Word, session: Session) -> Answer {
    session.finish();
    match word {
        Word::Stalled { at_byte } => Answer::of(Outcome::Stalled { at_byte }),
        Word::Unreachable { why } => Answer::unreachable(why),
        Word::Failed { why } => Answer::failed(why),
        Word::Begin | Word::End(_) => Answer::failed("the client said its words in the wrong order"),
    }
}

fn cut_short(silence: Silence, session: Session) -> Answer {
    let complaint = session.kill();
    match silence {
        Silence::Stalled => Answer::of(Outcome::Stalled { at_byte: 0 }),
        Silence::Over if complaint.is_empty() => Answer::failed("it ended without a word"),
        Silence::Over => Answer::failed(complaint),
    }
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}
