//! The load client: a job under way, and its messages to the harness.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::job::{Job, JobMessage, JobResults, JobSpec, ServerPorts};

use super::{failed, write_line};

/// The client of one job.
pub(crate) struct JobClient {
    server: IpAddr,
    job_spec: JobSpec,
    warm_up: Duration,
    duration: Duration,
    timeout: Duration,
}

impl JobClient {
    /// # Errors
    /// `Failed`: a time is negative or too long.
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

    /// Returns the server's address with `port`.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server, port)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        self.warm_up
    }

    pub(crate) fn duration(&self) -> Duration {
        self.duration
    }

    /// The longest time without progress.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Writes that the measurement begins.
    pub(crate) fn begin(&mut self) -> Result<(), JobMessage> {
        write_line(&JobMessage::Begin).map_err(failed)
    }

    /// Writes the results, and waits for the end of standard input. Sockets of the caller stay open and threads keep
    /// running until then, so that the counters read at `Begin` and at `End` were both read under load.
    pub(crate) fn end(&mut self, results: JobResults) -> Result<(), JobMessage> {
        write_line(&JobMessage::End(results)).map_err(failed)?;
        io::copy(&mut io::stdin(), &mut io::sink()).map_err(failed)?;
        Ok(())
    }

    /// Waits for the duration of the job.
    pub(crate) fn idle(&mut self) -> Result<(), JobMessage> {
        std::thread::sleep(self.warm_up);
        self.begin()?;
        std::thread::sleep(self.duration);
        self.end(JobResults::default())
    }
}

/// A timeout of zero would mean none to a socket.
const SHORTEST: Duration = Duration::from_millis(1);
