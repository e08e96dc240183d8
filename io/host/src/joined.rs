//! Moves data between two TCP sockets, without a copy in this process if there is much of it.
//!
//! Little data is copied: peeked, sent, and discarded as far as it was sent, so that no byte waits in this process. If a peek
//! fills the buffer, the data that follows is moved by splice(2) through a pipe. A connection has a pipe only while bytes are in
//! it, because the pages of all pipes of a user are limited (`/proc/sys/fs/pipe-user-pages-soft`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_engine::host::{MoveError, MoveState};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use vm_memory::VolatileSlice;

use super::KernelHost;
use super::failure::failure;
use super::stream::Stream;

/// Size of the buffer by which data is copied.
const BUFFER: usize = 64 << 10;

/// Size of a pipe in bytes, and the maximum number of bytes that one splice(2) takes from a socket. With pipes of 64 KiB, the
/// default, to the guest and from it, one stream and four: 17.3, 19.1, 18.3 and 19.5 Gbit/s; of 1 MiB: 16.8, 22.9, 20.2 and 23.8
/// (medians of five interleaved rounds, 2 cores, 2026-11-27).
const PIPE: usize = 1 << 20;

/// Number of bytes below which data that arrives at once is copied, because splice(2) needs as many system calls and handles
/// pages.
const LITTLE: usize = 16 << 10;

/// Maximum number of pipes of a worker, a fourth of the user's limit, which is 16,384 pages by default. Other connections copy
/// meanwhile, so connections whose receiver does not read cannot use up the limit.
const MAX_PIPES: usize = 16;

/// Maximum number of pipes that are kept for later use. A connection whose receiver reads returns its pipe at once.
const MAX_IDLE: usize = 2;

/// A pipe, both ends of which are non-blocking.
#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Bytes in a pipe, which were taken from one socket and not accepted by the other yet.
#[derive(Debug)]
pub(super) struct Transit {
    pipe: Pipe,
    len: usize,
}

/// The pipes of a worker, and its buffer for data that is copied.
#[derive(Debug)]
pub(super) struct Mover {
    idle: Vec<Pipe>,
    /// Number of open pipes, with those that connections have.
    open: usize,
    buffer: Vec<u8>,
}

impl Mover {
    pub(super) const fn new() -> Self {
        Self {
            idle: Vec::new(),
            open: 0,
            buffer: Vec::new(),
        }
    }

    /// Returns an empty pipe; `None` if the user or the worker has too many.
    fn take_pipe(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.pop() {
            return Some(pipe);
        }
        if self.open >= MAX_PIPES {
            return None;
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Beyond the user's limit the pipe keeps its size.
        let _ = fcntl_setpipe_size(&write, PIPE);
        self.open += 1;
        Some(Pipe { read, write })
    }

    /// Takes back an empty pipe.
    fn give_back(&mut self, pipe: Pipe) {
        match self.idle.len() < MAX_IDLE {
            true => self.idle.push(pipe),
            false => self.open -= 1,
        }
    }

    /// Closes the pipe of a connection that has ended, with the bytes in it.
    pub(super) fn forget(&mut self, stream: &mut Stream) {
        if stream.transit.take().is_some() {
            self.open -= 1;
        }
    }

    /// Moves about `most` bytes from `from` to `to`.
    fn run(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        most: usize,
    ) -> Result<(usize, MoveState), MoveError> {
        let mut moved = 0;
        loop {
            if let Some(mut transit) = from.transit.take() {
                match splice_some(transit.pipe.read.as_fd(), to.as_fd(), transit.len) {
                    Ok(len) => {
                        moved += len;
                        transit.len -= len.min(transit.len);
                        match transit.len {
                            0 => self.give_back(transit.pipe),
                            _ => from.transit = Some(transit),
                        }
                    }
                    Err(error) => {
                        from.transit = Some(transit);
                        return match error {
                            Errno::AGAIN => Ok((moved, MoveState::Full)),
                            error => Err(sink(error)),
                        };
                    }
                }
                continue;
            }
            if moved >= most {
                return Ok((moved, MoveState::More));
            }
            let taken = match from.has_much {
                true => self.fill_pipe(from, to, moved)?,
                false => self.copy(from, to, &mut moved)?,
            };
            if let Some(state) = taken {
                return Ok((moved, state));
            }
        }
    }

    /// Moves data from the socket into a pipe. Returns a state if there is none.
    fn fill_pipe(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        moved: usize,
    ) -> Result<Option<MoveState>, MoveError> {
        let Some(pipe) = self.take_pipe() else {
            from.has_much = false;
            return Ok(None);
        };
        to.before_send(BUFFER).map_err(sink)?;
        let spliced = splice_some(from.as_fd(), pipe.write.as_fd(), PIPE);
        if let Ok(len @ 1..) = spliced {
            from.transit = Some(Box::new(Transit { pipe, len }));
            return Ok(None);
        }
        self.give_back(pipe);
        if let Err(error) = spliced
            && error != Errno::AGAIN
        {
            return Err(source(error));
        }
        from.has_much = moved >= LITTLE;
        // A splice stops in front of urgent data as at the end of the queue or stream; a peek does not.
        match recv(&*from, &mut [0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Some(MoveState::Ended)),
            Ok(_) => {
                from.has_much = false;
                Ok(None)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(MoveState::Drained)),
            Err(error) => Err(source(error)),
        }
    }

    /// Copies data from one socket to the other. Returns a state if there is no more data or room.
    fn copy(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        moved: &mut usize,
    ) -> Result<Option<MoveState>, MoveError> {
        self.buffer.resize(BUFFER, 0);
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let len = match recv(&*from, &mut self.buffer[..], peek) {
            Ok((0, _)) => return Ok(Some(MoveState::Ended)),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Some(MoveState::Drained)),
            Err(error) => return Err(source(error)),
        };
        let part = VolatileSlice::from(&mut self.buffer[..len]);
        let sent = match to.send(&[part]) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Some(MoveState::Full)),
            Err(error) => return Err(sink(error)),
        };
        *moved += sent;
        let discarded = u32::try_from(sent).map_err(|_| Errno::INVAL);
        discarded.and_then(|sent| from.discard(sent)).map_err(source)?;
        if sent < len {
            return Ok(Some(MoveState::Full));
        }
        from.has_much = len == BUFFER && (self.open < MAX_PIPES || !self.idle.is_empty());
        Ok(None)
    }
}

impl KernelHost {
    pub(super) fn move_bytes(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        most: usize,
    ) -> Result<(usize, MoveState), MoveError> {
        self.mover.run(from, to, most)
    }
}

fn splice_some(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> Result<usize, Errno> {
    match splice(
        from,
        None,
        to,
        None,
        len,
        SpliceFlags::NONBLOCK | SpliceFlags::MOVE,
    ) {
        Err(Errno::INTR) => Err(Errno::AGAIN),
        result => result,
    }
}

fn source(error: Errno) -> MoveError {
    MoveError::Source(failure(error))
}

fn sink(error: Errno) -> MoveError {
    MoveError::Sink(failure(error))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use pontoon_engine::Failure;
    use rustix::net::{SendFlags, send, sockopt};

    use super::*;

    /// Returns a connection: a program's end, and the engine's.
    fn connection() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let engine = listener.accept().unwrap().0;
        engine.set_nonblocking(true).unwrap();
        sockopt::set_socket_oobinline(&engine, true).unwrap();
        (program, Stream::of_guest(engine.into()))
    }

    /// Moves data until the source has ended.
    fn move_all(mover: &mut Mover, from: &mut Stream, to: &mut Stream) {
        while mover.run(from, to, 1 << 20).unwrap().1 != MoveState::Ended {
            thread::sleep(Duration::from_micros(100));
        }
        to.shutdown().unwrap();
    }

    #[test]
    fn bytes_arrive_in_order_with_and_without_pipes() {
        let data: Vec<u8> = (0..8_000_000_u32).map(|at| (at / 7 % 251) as u8).collect();
        // Beyond the user's limit, a pipe has one page.
        for (held, small) in [(0, false), (0, true), (MAX_PIPES, false)] {
            let (mut client, mut outer) = connection();
            let (mut server, mut inner) = connection();
            let mut mover = Mover::new();
            mover.open = held;
            if small {
                let pipe = mover.take_pipe().unwrap();
                assert!(fcntl_setpipe_size(&pipe.write, 1).unwrap() < PIPE);
                mover.give_back(pipe);
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    client.write_all(&data).unwrap();
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let received = scope.spawn(|| {
                    let mut received = Vec::new();
                    server.read_to_end(&mut received).unwrap();
                    received
                });
                move_all(&mut mover, &mut outer, &mut inner);
                assert!(
                    received.join().unwrap() == data,
                    "{held} pipes are held, small: {small}"
                );
            });
            assert!(outer.transit.is_none());
            assert_eq!(mover.open - mover.idle.len(), held);
            assert_eq!(mover.idle.is_empty(), held == MAX_PIPES, "a pipe was used");
        }
    }

    #[test]
    fn pipe_is_held_while_the_sink_is_full_and_closed_with_the_connection() {
        let (client, mut outer) = connection();
        let (_server, mut inner) = connection();
        client.set_nonblocking(true).unwrap();
        let mut mover = Mover::new();
        let mut state = MoveState::Drained;
        for _ in 0..10_000 {
            let _ = (&client).write(&[7; 1 << 17]);
            state = mover.run(&mut outer, &mut inner, 1 << 20).unwrap().1;
            if state == MoveState::Full {
                break;
            }
        }
        assert_eq!(state, MoveState::Full);
        assert_eq!((mover.open, outer.transit.is_some()), (1, true));
        mover.forget(&mut outer);
        assert_eq!((mover.open, outer.transit.is_some()), (0, false));
    }

    #[test]
    fn urgent_data_does_not_stop_the_stream() {
        for has_much in [false, true] {
            let (client, mut outer) = connection();
            let (mut server, mut inner) = connection();
            send(&client, b"ab", SendFlags::empty()).unwrap();
            send(&client, b"c", SendFlags::OOB).unwrap();
            send(&client, b"def", SendFlags::empty()).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            outer.has_much = has_much;
            move_all(&mut Mover::new(), &mut outer, &mut inner);
            let mut received = String::new();
            server.read_to_string(&mut received).unwrap();
            assert_eq!(received, "abcdef", "{has_much}");
        }
    }

    #[test]
    fn data_of_a_unix_socket_arrives_once() {
        let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 7 % 251) as u8).collect();
        let (mut program, engine) = UnixStream::pair().unwrap();
        engine.set_nonblocking(true).unwrap();
        let mut source = Stream::unix(engine.into());
        let (mut server, mut sink) = connection();
        thread::scope(|scope| {
            scope.spawn(|| {
                program.write_all(&data).unwrap();
                program.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let received = scope.spawn(|| {
                let mut received = Vec::new();
                server.read_to_end(&mut received).unwrap();
                received
            });
            move_all(&mut Mover::new(), &mut source, &mut sink);
            assert!(received.join().unwrap() == data);
        });
    }

    #[test]
    fn failure_names_the_socket() {
        let (client, mut outer) = connection();
        let (server, mut inner) = connection();
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let mut mover = Mover::new();
        let failed = mover.run(&mut outer, &mut inner, 1);
        assert_eq!(failed, Err(MoveError::Source(Failure::Reset)));
        let (mut client, mut outer) = connection();
        sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);
        client.write_all(b"x").unwrap();
        let failed = mover.run(&mut outer, &mut inner, 1);
        assert_eq!(failed, Err(MoveError::Sink(Failure::Reset)));
    }
}
