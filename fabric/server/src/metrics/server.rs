// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that serves scrapers.
//!
//! Bounded like the control socket: a number of connections, one request each, and a time limit for request and answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::http::{self, MAX_REQUEST, Parsed};
use super::{MetricsAddress, encode};
use crate::control::{ControlClient, Request, Response};

/// Connections at once.
const MAX_CLIENTS: usize = 16;
/// How long one connection may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// Without descriptors for a connection, the listener rests for so long.
const REST: Duration = Duration::from_secs(1);

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("--metrics {address}: {why}")]
pub struct MetricsError {
    address: MetricsAddress,
    why: String,
}

/// The endpoint; it ends when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    fabric: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens at `address` and answers with statistics requested over `fabric`, whose other end a
    /// [`ControlServer`](crate::control::ControlServer) has adopted.
    pub fn start(address: MetricsAddress, fabric: UnixStream) -> Result<MetricsServer, MetricsError> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => {
                let why = "another process listens there; choose another port, or 0 for any that is free".to_owned();
                MetricsError { address, why }
            }
            _ => MetricsError { address, why: error.to_string() },
        };
        let listener = TcpListener::bind(address.0).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let client = fabric.try_clone().and_then(ControlClient::over).map_err(failed)?;
        let serving = Serving { listener, fabric: client, clients: Vec::new(), resting: None };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || serving.run()).map_err(failed)?;
        info!("metrics at http://{local}/metrics");
        Ok(MetricsServer { address: local, fabric, thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        // Wakes the thread, whatever it waits for.
        let _ = self.fabric.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // Its result is of no use.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
enum State {
    /// Its request is being read.
    Reading(Vec<u8>),
    /// Its answer is being sent: the bytes, and how many were sent.
    Writing(Vec<u8>, usize),
    /// The answer is sent. What the client still sends is read, or the system would reset the connection and drop the
    /// answer.
    Ending,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    state: State,
    until: Instant,
}

struct Serving {
    listener: TcpListener,
    fabric: ControlClient,
    clients: Vec<Client>,
    resting: Option<Instant>,
}

impl Serving {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            if self.resting.is_some_and(|until| until <= now) {
                self.resting = None;
            }
            let Some((accept, ready)) = self.wait(now) else { return };
            let now = Instant::now();
            let mut ready = ready.into_iter();
            let clients = std::mem::take(&mut self.clients);
            for mut client in clients {
                let stays = !ready.next().unwrap_or(false) || self.serve(&mut client);
                if stays && client.until > now {
                    self.clients.push(client);
                }
            }
            if accept {
                self.accept(now);
            }
        }
    }

    /// Waits until something can be done: whether there is a connection to accept, and which clients are ready; none if
    /// the fabric has gone.
    fn wait(&self, now: Instant) -> Option<(bool, Vec<bool>)> {
        let deadline = self.clients.iter().map(|c| c.until).chain(self.resting).min();
        // Rounded up: a wake-up before the deadline would find nothing to do.
        let timeout = deadline.map(|d| d.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let fabric = self.fabric.stream();
        let listening = if self.resting.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(fabric, PollFlags::RDHUP), PollFd::new(&self.listener, listening)];
        for client in &self.clients {
            let flags = if matches!(client.state, State::Writing(..)) { PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(&client.stream, flags));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                warn!("metrics: cannot wait for requests: {e}; ending the endpoint");
                return None;
            }
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let (ended, accept) = (ready.next()?, ready.next()?);
        (!ended).then(|| (accept, ready.collect()))
    }

    fn accept(&mut self, now: Instant) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.clients.len() >= MAX_CLIENTS {
                        // The first is the oldest.
                        self.clients.remove(0);
                    }
                    let state = State::Reading(Vec::new());
                    self.clients.push(Client { stream, state, until: now + PATIENCE });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    debug!("metrics: cannot accept a connection: {e}; trying again in a second");
                    self.resting = Some(now + REST);
                    return;
                }
            }
        }
    }

    /// Whether the connection stays open.
    fn serve(&mut self, client: &mut Client) -> bool {
        let passes = |e: &io::Error| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        self.step(client).unwrap_or_else(|e| passes(&e))
    }

    /// The same, or an error, which may pass.
    fn step(&mut self, client: &mut Client) -> io::Result<bool> {
        let mut piece = [0; MAX_REQUEST];
        match &mut client.state {
            State::Reading(bytes) => {
                let room = MAX_REQUEST - bytes.len();
                let n = client.stream.read(&mut piece[..room])?;
                if n == 0 {
                    return Ok(false);
                }
                bytes.extend_from_slice(&piece[..n]);
                let answer = match http::parse(bytes) {
                    Parsed::Incomplete => return Ok(true),
                    Parsed::Metrics { head } => self.metrics(head),
                    Parsed::Refused(status) => http::refuse(status),
                };
                client.state = State::Writing(answer, 0);
                self.step(client)
            }
            State::Writing(bytes, sent) => {
                while *sent < bytes.len() {
                    *sent += client.stream.write(&bytes[*sent..])?;
                }
                client.stream.shutdown(Shutdown::Write)?;
                client.state = State::Ending;
                Ok(true)
            }
            State::Ending => Ok(client.stream.read(&mut piece)? > 0),
        }
    }

    fn metrics(&mut self, head: bool) -> Vec<u8> {
        match self.fabric.request(&Request::Statistics {}) {
            Ok(Response::Statistics(snapshot)) => {
                encode(snapshot).map_or_else(|_| http::refuse(503), |text| http::metrics(&text, head))
            }
            Ok(_) => http::refuse(503),
            Err(e) => {
                debug!("metrics: {e}");
                http::refuse(503)
            }
        }
    }
}
