//! State of the load client: the running job, and its messages to the harness.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::job::{Job, JobMessage, JobResults, JobSpec, ServerPorts};

use super::{failed, write_line};

/// The load client while it runs its job.
pub(crate) struct JobClient {
    server: IpAddr,
    job_spec: JobSpec,
    warm_up: Duration,
    duration: Duration,
    timeout: Duration,
}

impl JobClient {
    /// # Errors
    /// `Failed`: a duration in the job is negative or too long.
    pub(crate) fn new(server: IpAddr, job_spec: JobSpec) -> Result<Self, JobMessage> {
        let time = |seconds: f64| {
            Duration::try_from_secs_f64(seconds).map_err(|error| failed(format_args!("{seconds} s: {error}")))
        };
        Ok(Self {
            server,
            warm_up: time(job_spec.warm_up)?,
            duration: time(job_spec.duration)?.max(SHORTEST),
            timeout: time(job_spec.timeout)?.max(SHORTEST),
            job_spec,
        })
    }

    pub(crate) fn job(&self) -> &Job {
        &self.job_spec.job
    }

    pub(crate) fn ports(&self) -> &ServerPorts {
        &self.job_spec.ports
    }

    /// Returns the socket address of `port` at the load server.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server, port)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        self.warm_up
    }

    pub(crate) fn duration(&self) -> Duration {
        self.duration
    }

    /// Returns the longest time without progress before the job ends with `Stalled`.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Writes `Begin`: the measurement begins now.
    pub(crate) fn begin(&mut self) -> Result<(), JobMessage> {
        write_line(&JobMessage::Begin).map_err(failed)
    }

    /// Writes `End` with the results, and waits for the end of standard input. The caller's sockets stay open
    /// and its threads keep running until then, so that the harness reads its counters at `Begin` and at
    /// `End` under the same load.
    pub(crate) fn end(&mut self, results: JobResults) -> Result<(), JobMessage> {
        write_line(&JobMessage::End(results)).map_err(failed)?;
        io::copy(&mut io::stdin(), &mut io::sink()).map_err(failed)?;
        Ok(())
    }

    /// Sleeps for the duration of the measurement.
    pub(crate) fn idle(&mut self) -> Result<(), JobMessage> {
        std::thread::sleep(self.warm_up);
        self.begin()?;
        std::thread::sleep(self.duration);
        self.end(JobResults::default())
    }
}

/// Lower bound of socket timeouts: SO_RCVTIMEO and SO_SNDTIMEO of zero mean no timeout.
const SHORTEST: Duration = Duration::from_millis(1);
