//! Takes one sample: the measurement of one cell with one stack.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::processes::ProcessUsage;
use super::session::{ClientEvent, ClientSession};
use super::snapshot::{Snapshot, SnapshotDelta, busy_cpus};
use crate::host::{CLIENT, Host};
use crate::job::{Job, JobMessage, JobResults, JobSpec, ServerPorts};
use crate::network;
use crate::scenario::Unit;
use crate::schema::{Conditions, Histogram, Sample, SampleOutcome, Trial};
use crate::stack::{NetworkConfig, Stack, StackAddresses};

/// Time limit for a stack to start, and for its client to write `Begin`.
const START: Duration = Duration::from_secs(5);

/// The longest time without progress of a job, as a multiple of the measurement's duration.
const TIMEOUT: f64 = 2.0;

/// Time limit of a measurement as a multiple of its duration: a wait of [`TIMEOUT`] may begin at its end.
const DEADLINE: f64 = 1.0 + TIMEOUT;

/// Time beyond the deadline in which the client reports a stall itself, with the position that only the client knows.
const REPORT_GRACE: Duration = Duration::from_secs(1);

/// The inputs of one measurement: cell, stack and host.
pub(crate) struct Measurement<'a> {
    pub(crate) host: &'a Host,
    pub(crate) stack: &'a dyn Stack,
    pub(crate) ports: ServerPorts,
    pub(crate) congestion_control: String,
    /// Duration of the measurement in seconds.
    pub(crate) duration: f64,
    pub(crate) unit: Unit,
    pub(crate) config: NetworkConfig,
    /// Samples of this stack in the same round, taken earlier.
    pub(crate) earlier: Vec<&'a Sample>,
}

/// The outcome of a measurement, with its figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    pub(crate) outcome: SampleOutcome,
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) histograms: BTreeMap<String, Histogram>,
    pub(crate) trials: Vec<Trial>,
    pub(crate) conditions: Conditions,
}

/// A job for the client, with the duration and limits that a scenario may change.
pub(crate) struct JobRequest {
    pub(crate) job: Job,
    /// Duration of the measurement in seconds.
    pub(crate) duration: f64,
    /// Additional time limit, beyond [`START`], for the client to write `Begin`.
    pub(crate) start: Duration,
    /// True if the memory of the stack's processes is read at the end.
    pub(crate) memory: bool,
}

/// The event up to which the start of a program is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedEvent {
    End,
    FirstLine,
}

impl JobRequest {
    /// Returns a request with the duration of the measurement and default limits.
    pub(crate) fn usual(measurement: &Measurement<'_>, job: Job) -> Self {
        Self {
            job,
            duration: measurement.duration,
            start: Duration::ZERO,
            memory: false,
        }
    }
}

impl Observation {
    pub(crate) fn measured() -> Self {
        Self::of(SampleOutcome::Measured)
    }

    /// Returns an observation with this outcome and without figures.
    pub(crate) fn of(outcome: SampleOutcome) -> Self {
        Self {
            outcome,
            values: BTreeMap::new(),
            histograms: BTreeMap::new(),
            trials: Vec::new(),
            conditions: Conditions::default(),
        }
    }

    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self::of(SampleOutcome::Failed { why: why.into() })
    }

    pub(crate) fn unreachable(why: impl Into<String>) -> Self {
        Self::of(SampleOutcome::Unreachable { why: why.into() })
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.outcome == SampleOutcome::Measured
    }

    pub(crate) fn set(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), value);
    }
}

impl Measurement<'_> {
    pub(crate) fn addresses(&self) -> StackAddresses {
        self.stack.addresses()
    }

    /// Runs a job for the duration of the measurement, and returns its figures.
    pub(crate) fn client(&self, job: Job) -> Observation {
        self.request(JobRequest::usual(self, job))
    }

    /// Starts the stack with the load client inside, runs the job, and returns the figures.
    pub(crate) fn request(&self, request: JobRequest) -> Observation {
        let busy_before = busy_cpus();
        let mut observation = self
            .run_job(&request)
            .unwrap_or_else(|error| Observation::failed(format!("{error:#}")));
        observation.conditions.busy_before = busy_before;
        observation
    }

    /// Returns the time from the start of the stack with `program` inside to the event `until`.
    ///
    /// # Errors
    /// The observation of a failed start.
    pub(crate) fn time(&self, program: &[OsString], until: TimedEvent) -> Result<Duration, Box<Observation>> {
        let begun = Instant::now();
        let mut session = ClientSession::start(self.host, self.stack, &self.config, program)
            .map_err(|error| Observation::failed(format!("{error:#}")))?;
        let reached = match until {
            TimedEvent::End => session.wait_for_success(begun + START),
            TimedEvent::FirstLine => matches!(session.next(begun + START), ClientEvent::Other),
        };
        let elapsed = begun.elapsed();
        if reached {
            session.finish();
            return Ok(elapsed);
        }
        let reason = if elapsed < START {
            NoMessage::Closed
        } else {
            NoMessage::TimedOut
        };
        Err(aborted(reason, session).into())
    }

    fn run_job(&self, request: &JobRequest) -> Result<Observation> {
        let job_spec = JobSpec {
            job: request.job.clone(),
            ports: self.ports,
            warm_up: (request.duration / 4.0).min(0.2),
            duration: request.duration,
            timeout: request.duration * TIMEOUT,
        };
        let program: Vec<OsString> = vec![
            self.host.client.clone().into(),
            CLIENT.into(),
            "--congestion-control".into(),
            self.congestion_control.clone().into(),
            self.addresses().server.to_string().into(),
            serde_json::to_string(&job_spec)?.into(),
        ];
        let session = ClientSession::start(self.host, self.stack, &self.config, &program)?;
        let timeout = START + self.stack.boot() + request.start + seconds(job_spec.warm_up * DEADLINE);
        let begin = match self.message(&session, Instant::now() + timeout) {
            Ok(JobMessage::Begin) => Snapshot::of_stack(&session.processes()),
            Ok(message) => return Ok(ended_by(message, session)),
            Err(reason) => return Ok(aborted(reason, session)),
        };
        let timeout = seconds(job_spec.duration * DEADLINE) + REPORT_GRACE;
        let results = match self.message(&session, Instant::now() + timeout) {
            Ok(JobMessage::End(results)) => results,
            Ok(message) => return Ok(ended_by(message, session)),
            Err(reason) => return Ok(aborted(reason, session)),
        };
        let processes = session.processes();
        let delta = begin.until(&Snapshot::of_stack(&processes));
        let memory = request.memory.then(|| ProcessUsage::all(&processes.stack()));
        let interface = processes
            .client()
            .and_then(|client| network::interface_of(client, self.addresses().server).ok());
        session.finish();
        Ok(self.observation(job_spec.duration, results, &delta, memory, interface))
    }

    /// Returns the client's next message, or the reason why there was none before `deadline`.
    fn message(&self, session: &ClientSession, deadline: Instant) -> Result<JobMessage, NoMessage> {
        loop {
            match session.next(deadline) {
                ClientEvent::JobMessage(message) => return Ok(message),
                ClientEvent::Other => {}
                ClientEvent::Closed => return Err(NoMessage::Closed),
                ClientEvent::TimedOut => return Err(NoMessage::TimedOut),
            }
        }
    }

    fn observation(
        &self,
        duration: f64,
        results: JobResults,
        delta: &SnapshotDelta,
        memory: Option<ProcessUsage>,
        interface: Option<(u32, u32)>,
    ) -> Observation {
        let mut observation = Observation {
            outcome: SampleOutcome::Measured,
            values: results.values,
            histograms: results.histograms,
            trials: Vec::new(),
            conditions: Conditions {
                congestion_control: results.congestion_control,
                mtu: interface.map(|(mtu, _)| mtu),
                queue_length: interface.map(|(_, queue)| queue),
                busy_before: 0.0,
                steal: delta.steal,
                clock_drift_us: delta.clock_drift_us,
            },
        };
        let done = self.unit.done(&observation.values, duration);
        let (per, factor) = self.unit.costs();
        let mut cost = |whose: &str, cpu: f64| {
            observation.set(&format!("{whose}_cpu_s"), cpu);
            let each = whose.strip_prefix("stack").map_or("machine_", |_| "");
            if let (Some(per), Some(done)) = (per, done.filter(|done| *done > 0.0)) {
                observation.set(&format!("{each}cpu_per_{per}"), cpu / done * factor);
            }
        };
        cost("machine", delta.machine_cpu_s);
        if let Some(cpu) = delta.stack_cpu_s {
            cost("stack", cpu);
        }
        if let Some(memory) = memory.filter(|_| delta.stack_cpu_s.is_some()) {
            observation.set("rss_bytes", memory.rss as f64);
            if let Some(pss) = memory.pss {
                observation.set("pss_bytes", pss as f64);
            }
            if let Some(switches) = delta.switches {
                observation.set("wakeups_per_s", switches as f64 / delta.seconds);
            }
        }
        observation
    }
}

/// The reason why the client sent no message.
enum NoMessage {
    Closed,
    TimedOut,
}

/// Returns the observation for a client's message that ended the measurement early.
fn ended_by(message: JobMessage, session: ClientSession) -> Observation {
    session.finish();
    match message {
        JobMessage::Stalled { at_byte } => Observation::of(SampleOutcome::Stalled { at_byte }),
        JobMessage::Unreachable { why } => Observation::unreachable(why),
        JobMessage::Failed { why } => Observation::failed(why),
        JobMessage::Begin | JobMessage::End(_) => {
            Observation::failed("the client sent its messages in the wrong order")
        }
    }
}

fn aborted(reason: NoMessage, session: ClientSession) -> Observation {
    let last_stderr_line = session.kill();
    match reason {
        NoMessage::TimedOut => Observation::of(SampleOutcome::Stalled { at_byte: 0 }),
        NoMessage::Closed if last_stderr_line.is_empty() => {
            Observation::failed("the program ended without a message")
        }
        NoMessage::Closed => Observation::failed(last_stderr_line),
    }
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}
