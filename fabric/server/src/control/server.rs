// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's end of the control socket, driven by the loop of the process it belongs to: nothing here waits.
//!
//! What a client can cost is bounded. Of each there is one request and one answer in memory: while an answer waits for
//! its reader, nothing more is read from it. In one round of the loop each client is served one request. A client that
//! does not take an answer within [`Limits::patience_us`] is dropped. When there are too many, the one that has been
//! silent for longest makes place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use log::{debug, warn};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use telegraphos_link::limit::Limiter;
use telegraphos_link::listener::{ListenError, Listener};
use telegraphos_link::send_queue::SendQueue;
use telegraphos_service::wait::{Readiness, WaitSet};

use super::protocol::{Done, ErrorAnswer, ErrorKind, MAX_REQUEST, Request, Response};

/// How much clients may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at once (32).
    pub clients: usize,
    /// Microseconds in which an answer must be taken (10 s).
    pub patience_us: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { clients: 32, patience_us: 10_000_000 }
    }
}

/// After an answer longer than this the buffer is given back.
const KEPT_OUTPUT: usize = 64 << 10;
/// Without descriptors for a client, the listener rests for so many microseconds.
const REST: u64 = 1_000_000;
/// The place of the listener; clients have their index.
const LISTENER: u64 = u64::MAX;

#[derive(Debug)]
struct Watch {
    every_us: u64,
    next: u64,
}

#[derive(Debug)]
struct Client {
    stream: OwnedFd,
    input: Vec<u8>,
    output: SendQueue,
    /// Since when output waits.
    waiting_since: Option<u64>,
    /// The end of its requests has come.
    ended: bool,
    /// To be ended when the output is gone.
    closing: bool,
    watch: Option<Watch>,
    /// When its last request came.
    active: u64,
    /// Is never ended to make room for others.
    internal: bool,
    interest: Readiness,
}

impl Client {
    /// The next whole line of its input, or why there cannot be one.
    fn line(&mut self) -> Option<Result<Vec<u8>, ErrorAnswer>> {
        if let Some(end) = self.input.iter().position(|b| *b == b'\n') {
            let mut line: Vec<u8> = self.input.drain(..=end).collect();
            line.pop();
            return Some(Ok(line));
        }
        if self.input.len() > MAX_REQUEST {
            let text = format!("a request has more than {MAX_REQUEST} bytes: expected a line with at most as many");
            return Some(Err(ErrorAnswer::new(ErrorKind::Malformed, text)));
        }
        None
    }

    fn has_line(&self) -> bool {
        self.input.len() > MAX_REQUEST || self.input.contains(&b'\n')
    }
}

/// The listening socket and its clients.
#[derive(Debug)]
pub struct ControlServer {
    set: WaitSet,
    listener: Option<Listener>,
    /// When the listener is watched again after descriptors ran out.
    resting: Option<u64>,
    clients: Vec<Option<Client>>,
    limits: Limits,
    limiter: Limiter,
    dropped: u64,
}

impl ControlServer {
    /// Listens at `path` (mode 0600), which the command line's `option` names.
    pub fn bind(path: &Path, option: &'static str, limits: Limits) -> Result<ControlServer, ListenError> {
        let listener = Listener::bind(path, option)?;
        let failed = |errno| ListenError::Io { path: path.to_owned(), option, errno };
        let mut server = ControlServer::new(limits).map_err(failed)?;
        server.set.add(listener.fd(), LISTENER, Readiness::READ).map_err(failed)?;
        server.listener = Some(listener);
        Ok(server)
    }

    /// Listens nowhere: has the clients only that it [adopts](ControlServer::adopt).
    pub fn new(limits: Limits) -> Result<ControlServer, Errno> {
        Ok(ControlServer {
            set: WaitSet::new()?,
            listener: None,
            resting: None,
            clients: Vec::new(),
            limits,
            limiter: Limiter::default(),
            dropped: 0,
        })
    }

    /// The one descriptor to poll: when it is readable, call [`ControlServer::ready`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    pub fn path(&self) -> Option<&Path> {
        self.listener.as_ref().map(Listener::path)
    }

    /// When [`ControlServer::ready`] is to be called at the latest, on the clock of its `now`; 0: as soon as the
    /// process has looked after its other work.
    pub fn deadline(&self) -> Option<u64> {
        let clients = self.clients.iter().flatten().filter_map(|client| {
            if client.output.is_empty() && client.has_line() {
                return Some(0);
            }
            let watch = client.watch.as_ref().map(|w| w.next);
            let patience = client.waiting_since.map(|since| since.saturating_add(self.limits.patience_us));
            [watch, patience].into_iter().flatten().min()
        });
        clients.chain(self.resting).min()
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.clients.iter().flatten().count()
    }

    /// Clients that were dropped because they did not read, or to make place.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Serves a stream made otherwise, such as one end of a pair of sockets: a client of the process itself, which is
    /// never dropped to make place.
    pub fn adopt(&mut self, stream: OwnedFd, now: u64) -> Result<(), Errno> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        self.insert(stream, true, now).map(drop)
    }

    /// Does what can be done now, without waiting. `now` is in microseconds of any clock that does not go back.
    /// `perform` answers a query or performs a command; its errors name the value and what was expected.
    pub fn ready(&mut self, now: u64, perform: &mut impl FnMut(&Request) -> Result<Response, String>) {
        let mut found = Vec::new();
        if let Err(e) = self.set.wait(Some(0), |place, ready| found.push((place, ready))) {
            self.complain(now, format_args!("control socket: cannot look for requests: {e}"));
        }
        let mut accept = false;
        for (place, ready) in found {
            match place {
                LISTENER => accept = true,
                index => self.receive(index as usize, ready),
            }
        }
        if let (Some(listener), Some(_)) = (&self.listener, self.resting.filter(|until| *until <= now)) {
            let watched = self.set.add(listener.fd(), LISTENER, Readiness::READ).is_ok();
            self.resting = if watched { None } else { Some(now.saturating_add(REST)) };
        }
        if accept {
            self.accept(now);
        }
        for index in 0..self.clients.len() {
            self.serve(index, now, perform);
        }
    }

    fn complain(&mut self, now: u64, what: std::fmt::Arguments<'_>) {
        if let Some(more) = self.limiter.admit("control", now) {
            warn!("{what}{more}");
        }
    }

    fn insert(&mut self, stream: OwnedFd, internal: bool, now: u64) -> Result<usize, Errno> {
        let index = match self.clients.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.clients.push(None);
                self.clients.len() - 1
            }
        };
        let interest = Readiness::READ;
        self.set.add(&stream, index as u64, interest)?;
        self.clients[index] = Some(Client {
            stream,
            input: Vec::new(),
            output: SendQueue::default(),
            waiting_since: None,
            ended: false,
            closing: false,
            watch: None,
            active: now,
            internal,
            interest,
        });
        Ok(index)
    }

    fn accept(&mut self, now: u64) {
        loop {
            let Some(listener) = &self.listener else { return };
            let stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(e) => {
                    // It stays readable: without a rest the loop would turn without end.
                    self.complain(
                        now,
                        format_args!("control socket: cannot accept a connection: {e}; trying again in a second"),
                    );
                    let _ = self.listener.as_ref().map(|listener| self.set.remove(listener.fd()));
                    self.resting = Some(now.saturating_add(REST));
                    return;
                }
            };
            let outside = self.clients.iter().flatten().filter(|c| !c.internal).count();
            let place = outside < self.limits.clients || self.make_place(now);
            match self.insert(stream, false, now) {
                Ok(index) if !place => {
                    let text = format!("{outside} clients already watch: expected at most {}", self.limits.clients);
                    self.answer(index, &Response::Error(ErrorAnswer::new(ErrorKind::Busy, text)));
                    if let Some(client) = &mut self.clients[index] {
                        client.closing = true;
                    }
                }
                Ok(_) => {}
                Err(e) => self.complain(now, format_args!("control socket: cannot watch a connection: {e}")),
            }
        }
    }

    /// Ends the client that has been silent for longest and does not watch.
    fn make_place(&mut self, now: u64) -> bool {
        let idle = |c: &Client| !c.internal && c.watch.is_none();
        let clients = self.clients.iter().enumerate().filter_map(|(i, c)| Some((i, c.as_ref().filter(|c| idle(c))?)));
        let Some(oldest) = clients.min_by_key(|(_, c)| c.active).map(|(i, _)| i) else { return false };
        self.clients[oldest] = None;
        self.dropped += 1;
        let most = self.limits.clients;
        self.complain(now, format_args!("control socket: {most} clients: ending the one that was silent for longest"));
        true
    }

    /// One receive. More only when the line so far has been served, so that the buffer stays below two requests.
    fn receive(&mut self, index: usize, ready: Readiness) {
        let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) else { return };
        if ready.broken {
            self.clients[index] = None;
            return;
        }
        if client.ended || client.closing || !client.output.is_empty() || client.has_line() {
            // No reader is left for what is queued.
            if ready.ended {
                self.clients[index] = None;
            }
            return;
        }
        let mut bytes = [0; 4096];
        match net::recv(&client.stream, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => client.ended = true,
            Ok((_, n)) => client.input.extend_from_slice(&bytes[..n]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => {
                debug!("control client {index}: {e}");
                self.clients[index] = None;
            }
        }
    }

    fn answer(&mut self, index: usize, response: &Response) {
        if let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) {
            client.output.bytes().extend_from_slice(response.line().as_bytes());
        }
    }

    /// One request of a client, or one answer of its watch; and what the socket takes of it.
    fn serve(&mut self, index: usize, now: u64, perform: &mut impl FnMut(&Request) -> Result<Response, String>) {
        let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) else { return };
        if client.output.is_empty() && !client.closing {
            if let Some(line) = client.line() {
                client.active = now;
                match line {
                    // So that people may press Enter.
                    Ok(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                    Ok(line) => {
                        let response = match Request::parse(&line) {
                            Ok(Request::Watch { every_ms }) => self.watch(index, every_ms, now, perform),
                            Ok(request) => answer_to(&request, perform),
                            Err(e) => Response::Error(e),
                        };
                        self.answer(index, &response);
                    }
                    Err(e) => {
                        // Where the next request begins cannot be known.
                        client.closing = true;
                        self.answer(index, &Response::Error(e));
                    }
                }
            } else if client.ended && client.watch.is_none() {
                self.clients[index] = None;
                return;
            } else if let Some(watch) = client.watch.as_mut().filter(|w| w.next <= now) {
                // Intervals that passed meanwhile are skipped.
                let missed = now.saturating_sub(watch.next) / watch.every_us;
                watch.next = watch.next.saturating_add((missed + 1).saturating_mul(watch.every_us));
                self.answer(index, &answer_to(&Request::Statistics {}, perform));
            }
        }
        self.flush(index, now);
    }

    fn watch(
        &mut self,
        index: usize,
        every_ms: u64,
        now: u64,
        perform: &mut impl FnMut(&Request) -> Result<Response, String>,
    ) -> Response {
        let every_us = every_ms.saturating_mul(1000);
        if let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) {
            client.watch = (every_us > 0).then(|| Watch { every_us, next: now.saturating_add(every_us) });
        }
        if every_us > 0 { answer_to(&Request::Statistics {}, perform) } else { Response::Done(Done::default()) }
    }

    fn flush(&mut self, index: usize, now: u64) {
        let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) else { return };
        let length = client.output.len();
        match client.output.flush(client.stream.as_fd()) {
            Ok(true) => {
                client.waiting_since = None;
                if length > KEPT_OUTPUT {
                    client.output = SendQueue::default();
                }
                if client.closing {
                    self.clients[index] = None;
                    return;
                }
            }
            Ok(false) => {
                let since = *client.waiting_since.get_or_insert(now);
                if now.saturating_sub(since) >= self.limits.patience_us {
                    let waiting = client.output.len();
                    self.clients[index] = None;
                    self.dropped += 1;
                    self.complain(now, format_args!("control socket: a client left {waiting} bytes unread: ending it"));
                    return;
                }
            }
            Err(e) => {
                debug!("control client {index}: {e}");
                self.clients[index] = None;
                return;
            }
        }
        let interest = match (client.output.is_empty(), client.ended || client.has_line()) {
            (false, _) => Readiness { write: true, ..Readiness::NONE },
            // The deadline says when it is served next.
            (true, true) => Readiness::NONE,
            (true, false) => Readiness::READ,
        };
        if interest != client.interest {
            client.interest = interest;
            if self.set.change(&client.stream, index as u64, interest).is_err() {
                self.clients[index] = None;
            }
        }
    }
}

fn answer_to(request: &Request, perform: &mut impl FnMut(&Request) -> Result<Response, String>) -> Response {
    perform(request).unwrap_or_else(|text| Response::Error(ErrorAnswer::refused(text)))
}
