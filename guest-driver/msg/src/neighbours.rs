// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that keep streams to neighbours: one for each that is connected to, one that listens, one for each stream
//! that was accepted, a writer for each stream, and one that says each second that this process is alive.

use crate::beyond::{Beyond, MOST_STREAMS};
use crate::error::{Error, Result};
use crate::options::{Options, Routing};
use crate::session::Side;
use crate::shared::Shared;
use crate::streams::{Ended, LINGER, LONGEST_BLOCK, Stream, connect, greet, pause};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telegraphos_msg_core::Process;
use telegraphos_msg_core::routes::StreamId;

/// Between two attempts to connect to a neighbour, and two ticks.
const SECOND: Duration = Duration::from_secs(1);
/// Unidentified connections, at most: of all addresses, and of one.
const UNIDENTIFIED: [usize; 2] = [64, 4];
/// Between two reports of connections that were refused.
const WARNINGS: Duration = Duration::from_secs(10);
/// Between two looks whether the messages are closed.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Checks how a process is to take part in routing, and listens if it is to.
pub(crate) fn listener(options: &Options) -> Result<Option<TcpListener>> {
    let (Some(routing), config) = (&options.routing, &options.config) else { return Ok(None) };
    if config.block > LONGEST_BLOCK {
        let block = config.block;
        return Err(Error::Routing(format!("block is {block}: expected at most {LONGEST_BLOCK}, which a frame has")));
    }
    let Routing { key, neighbours, listen, .. } = routing;
    if key.len() < Routing::SHORTEST_KEY {
        let (least, found) = (Routing::SHORTEST_KEY, key.len());
        return Err(Error::Routing(format!("a key of {found} bytes: expected at least {least}, too many to guess")));
    }
    if neighbours.len() > Routing::MOST_NEIGHBOURS {
        let (most, found) = (Routing::MOST_NEIGHBOURS, neighbours.len());
        return Err(Error::Routing(format!("{found} neighbours: expected at most {most}")));
    }
    for at in neighbours.iter().chain(listen) {
        let port =
            at.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err(Error::Routing(format!("address {at:?}: expected HOST:PORT, as 10.84.0.1:7000")));
        }
    }
    let bind = |at: &String| {
        let listener = TcpListener::bind(at.as_str()).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|error| Error::Routing(format!("listening at {at}: {error}")))
    };
    listen.as_ref().map(bind).transpose()
}

/// Starts the threads, unless there is no routing.
pub(crate) fn start(shared: &Arc<Shared>, listener: Option<TcpListener>) -> Result<()> {
    let Some(routing) = &shared.options.routing else { return Ok(()) };
    shared.spawn("msg-alive", |shared| {
        while pause(SECOND, || shared.signals.is_closed()) {
            shared.with(|state| {
                if let Some(beyond) = &mut state.beyond {
                    beyond.far.tick();
                }
            });
        }
    })?;
    if let Some(listener) = listener {
        shared.spawn("msg-listen", move |shared| listen(&shared, &listener))?;
    }
    for (n, address) in routing.neighbours.iter().enumerate() {
        let address = address.clone();
        shared.spawn(&format!("msg-to-{n}"), move |shared| keep(&shared, &address))?;
    }
    Ok(())
}

/// Keeps a stream to a neighbour.
fn keep(shared: &Arc<Shared>, address: &str) {
    let mut said = String::new();
    loop {
        let ended = connect(address).and_then(|socket| {
            let met = meet(shared, socket, Side::Connects)?;
            said.clear();
            run(shared, met)
        });
        if shared.signals.is_closed() {
            return;
        }
        // Once, not each second.
        if let Err(error) = ended {
            let now = error.to_string();
            if now != said {
                log::warn!("the neighbour at {address}: {now}; tried again each second");
                said = now;
            }
        }
        if !pause(SECOND, || shared.signals.is_closed()) {
            return;
        }
    }
}

/// Numbers of unidentified connections, by their addresses.
#[derive(Debug, Default)]
struct Unidentified(Mutex<BTreeMap<IpAddr, usize>>);

impl Unidentified {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, unless there are as many as may be.
    fn admit(self: &Arc<Unidentified>, from: IpAddr) -> Option<Admitted> {
        let mut known = self.lock();
        let [all, of_one] = UNIDENTIFIED;
        if known.values().sum::<usize>() >= all || known.get(&from).is_some_and(|count| *count >= of_one) {
            return None;
        }
        *known.entry(from).or_default() += 1;
        Some(Admitted { from, of: self.clone() })
    }
}

/// Connections that were refused, and when that was last reported.
#[derive(Debug, Default)]
struct Refused(Mutex<(u64, Option<Instant>)>);

impl Refused {
    fn report(&self, from: impl std::fmt::Display, why: impl std::fmt::Display) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, reported) = &mut *refused;
        *count += 1;
        if reported.is_none_or(|at| at.elapsed() >= WARNINGS) {
            *reported = Some(Instant::now());
            log::warn!("the connection from {from} is refused: {why}; {count} were since the messages were opened");
        }
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
struct Admitted {
    from: IpAddr,
    of: Arc<Unidentified>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut known = self.of.lock();
        let left = known.get(&self.from).map_or(0, |count| count - 1);
        if left == 0 {
            known.remove(&self.from);
        } else {
            known.insert(self.from, left);
        }
    }
}

/// Accepts streams of neighbours until the messages are closed.
fn listen(shared: &Arc<Shared>, listener: &TcpListener) {
    let (unidentified, refused) = (Arc::<Unidentified>::default(), Arc::<Refused>::default());
    while !shared.signals.is_closed() {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        if !poll(&mut ready, Some(&LOOK)).is_ok_and(|ready| ready > 0) {
            continue;
        }
        let Ok((socket, from)) = listener.accept() else { continue };
        // One that is not admitted tries again.
        let Some(admitted) = unidentified.admit(from.ip()) else {
            let [all, of_one] = UNIDENTIFIED;
            refused.report(from, format_args!("{all} connections, or {of_one} of its address, have not shown the key"));
            continue;
        };
        let refused = refused.clone();
        let spawned = shared.spawn("msg-accepted", move |shared| {
            let met = meet(&shared, socket, Side::Accepts);
            drop(admitted);
            match met {
                Err(error) => refused.report(from, error),
                Ok(met) => {
                    if let Err(error) = run(&shared, met) {
                        log::debug!("the neighbour from {from}: {error}");
                    }
                }
            }
        });
        if let Err(error) = spawned {
            log::debug!("the neighbour from {from} is not accepted: {error}");
        }
    }
}

/// Identifies the process at the other end of a connection.
fn meet(shared: &Shared, socket: TcpStream, side: Side) -> Result<(Stream, Process), Ended> {
    let Some(routing) = &shared.options.routing else { return Err(closed()) };
    let (process, session) = greet(&socket, side, shared.me, &routing.key)?;
    Ok((Stream::new(socket, session), process))
}

/// Takes frames of a stream until it ends, and says why it has.
fn run(shared: &Arc<Shared>, (stream, neighbour): (Stream, Process)) -> Result<(), Ended> {
    let stream = Arc::new(stream);
    let writer = stream.clone();
    shared.spawn("msg-write", move |_| writer.write()).map_err(|error| Ended(error.to_string()))?;
    let joined = shared.with(|state| match &mut state.beyond {
        Some(beyond) if !shared.signals.is_closed() => Ok(beyond.join(&stream, neighbour)),
        _ => Err(closed()),
    });
    let ended = match joined {
        Ok(Some(id)) => {
            log::info!("{neighbour} is a neighbour");
            let ended = take(shared, &stream, id);
            shared.with(|state| state.beyond.iter_mut().for_each(|beyond| beyond.leave(id)));
            log::info!("{neighbour} is a neighbour no more");
            ended
        }
        Ok(None) => Err(Ended(format!("there are {MOST_STREAMS} streams, which is the limit"))),
        Err(closed) => Err(closed),
    };
    stream.end();
    ended
}

fn closed() -> Ended {
    Ended("the messages have been closed".into())
}

fn take(shared: &Shared, stream: &Stream, id: StreamId) -> Result<(), Ended> {
    let mut closed_at = None;
    loop {
        let Some(frame) = stream.read()? else { return Ok(()) };
        if shared.signals.is_closed() && closed_at.get_or_insert_with(Instant::now).elapsed() > LINGER {
            return Err(closed());
        }
        let heard = shared.with(|state| state.beyond.as_mut().map(|beyond: &mut Beyond| beyond.far.frame(id, frame)));
        if let Some(Err(wrong)) = heard {
            return Err(Ended(format!("it has broken the rules: {wrong}")));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn unidentified_connections_of_one_address_leave_room_for_others() {
        let unidentified = Arc::<Unidentified>::default();
        let [all, of_one] = UNIDENTIFIED;
        let admit = |address: usize| unidentified.admit(Ipv4Addr::from(address as u32).into());
        let mut admitted: Vec<_> = (0..of_one).map(|_| admit(1).unwrap()).collect();
        assert!(admit(1).is_none());
        admitted.extend((of_one..all).map(|n| admit(1 + n).unwrap()));
        assert!(admit(1 + all).is_none());
        admitted.truncate(1);
        assert!(admit(1).is_some() && unidentified.lock().len() == 1);
        admitted.clear();
        assert!(unidentified.lock().is_empty());
    }
}
