// SPDX-License-Identifier: MIT OR Apache-2.0
//! A detached cluster's end of a command in a guest: what goes in, what comes out, and what a client that does not read
//! can hold up, which is its own command alone.

use super::protocol::{Ended, FromCluster, PIECE, ToCluster, WINDOW};
use crate::command::Running;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use telegraphos_agent::{Decoder, Exit, encode};

/// Bytes of output that wait for the client, at which its command is stopped (SIGSTOP), and continues (SIGCONT), ...
const STOP_AT: usize = 1 << 20;
const CONTINUE_AT: usize = 256 << 10;
/// ... and at which it is killed: it has left its process group, where no signal reaches it.
const KILL_AT: usize = 8 << 20;
/// Frames of the client that are read ahead.
const AHEAD: usize = 64;
/// How often both ends are looked at.
const TURN: Duration = Duration::from_millis(10);
/// ... and while input comes.
const BUSY: Duration = Duration::from_millis(1);
/// What waits for a client when the cluster ends is delivered if it reads within this time.
const LAST: Duration = Duration::from_secs(2);
/// A command that fails because its guest did may fail so long before the reason is found.
const REASON: Duration = Duration::from_secs(2);

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Follows a command to its end, or until the client hangs up or `over` says why the cluster ends. A command that has
/// not ended is killed.
pub(super) fn follow(client: &UnixStream, decoder: Decoder, running: Running, over: &dyn Fn() -> Option<Ended>) {
    let done = AtomicBool::new(false);
    let (frames, input) = sync_channel(AHEAD);
    let Ok(reader) = client.try_clone() else { return };
    std::thread::scope(|scope| {
        let read = || read_frames(reader, decoder, &frames, &done);
        if std::thread::Builder::new().name("exec input".into()).spawn_scoped(scope, read).is_ok() {
            let conversation =
                Conversation { client, running, backlog: VecDeque::new(), stopped: false, received: 0, taken: 0 };
            if let Some(backlog) = conversation.hold(&input, over) {
                deliver(client, backlog, &input, over);
            }
        }
        done.store(true, Ordering::Release);
        // The reader may wait for a place for its frame.
        drop(input);
    });
}

/// Hands on the client's frames until it hangs up.
fn read_frames(
    mut client: UnixStream,
    mut decoder: Decoder,
    frames: &SyncSender<Option<ToCluster>>,
    done: &AtomicBool,
) {
    let mut bytes = [0; 64 << 10];
    // The time limit of the request's line is short enough to look at `done`.
    while !done.load(Ordering::Acquire) {
        while let Some(frame) = decoder.next() {
            if frames.send(Some(frame)).is_err() {
                return;
            }
        }
        match client.read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => decoder.push(&bytes[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock || e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // Nothing waits for it any more if this fails.
    let _ = frames.send(None);
}

struct Conversation<'a> {
    client: &'a UnixStream,
    running: Running,
    /// Frames that wait for the client.
    backlog: VecDeque<u8>,
    stopped: bool,
    /// Bytes of standard input that have come from the client, and those reported to it as passed on.
    received: usize,
    taken: usize,
}

enum End {
    /// The client is gone, or does not keep to the protocol.
    Client,
    Exited(Exit),
    Unread(Ended),
    Failed(Ended),
}

impl Conversation<'_> {
    /// Until the end; what is then still to be delivered. The command is gone.
    fn hold(mut self, input: &Receiver<Option<ToCluster>>, over: &dyn Fn() -> Option<Ended>) -> Option<VecDeque<u8>> {
        let last = loop {
            if let Some(why) = over() {
                break FromCluster::Failed(why.short());
            }
            match self.turn(input) {
                Ok(()) => {}
                Err(End::Client) => return None,
                Err(End::Exited(exit)) => break FromCluster::Exited(exit),
                Err(End::Unread(why)) => break FromCluster::Failed(why),
                Err(End::Failed(why)) => {
                    let begun = Instant::now();
                    while over().is_none() && begun.elapsed() < REASON {
                        std::thread::sleep(TURN);
                    }
                    break FromCluster::Failed(over().unwrap_or(why).short());
                }
            }
        };
        self.put(&last);
        Some(self.backlog)
    }

    fn turn(&mut self, input: &Receiver<Option<ToCluster>>) -> Result<(), End> {
        let busy = self.take_input(input)?;
        let failed = |e: crate::Error| End::Failed(Ended::of(&e));
        match self.running.next_bytes(if busy { BUSY } else { TURN }).map_err(failed)? {
            Some((stream, bytes)) => bytes.chunks(PIECE).for_each(|piece| {
                self.put(&FromCluster::Output(stream, piece.to_vec()));
            }),
            None => {
                if let Some(exit) = self.running.exit() {
                    return Err(End::Exited(exit));
                }
            }
        }
        flush(self.client, &mut self.backlog).map_err(|_| End::Client)?;
        let waiting = self.backlog.len();
        if waiting >= KILL_AT {
            let why = format!("{waiting} bytes of output wait for a client that does not read; the command was killed");
            return Err(End::Unread(Ended { code: 1, why }));
        }
        // A signal is lost only with the guest.
        if !self.stopped && waiting >= STOP_AT {
            self.stopped = self.running.signal(SIGSTOP).is_ok();
        } else if self.stopped && waiting <= CONTINUE_AT {
            self.stopped = self.running.signal(SIGCONT).is_err();
        }
        Ok(())
    }

    /// Whether there was some, or some waits.
    fn take_input(&mut self, input: &Receiver<Option<ToCluster>>) -> Result<bool, End> {
        let failed = |e: crate::Error| End::Failed(Ended::of(&e));
        loop {
            match input.try_recv() {
                Ok(Some(ToCluster::Stdin(bytes))) => {
                    self.received += bytes.len();
                    if self.received - self.taken > WINDOW {
                        log::warn!("a client sends more than {WINDOW} bytes ahead: its connection is ended");
                        return Err(End::Client);
                    }
                    self.running.write_bytes(&bytes).map_err(failed)?;
                }
                Ok(Some(ToCluster::CloseStdin)) => self.running.close_input().map_err(failed)?,
                Ok(Some(ToCluster::Signal(signal))) => {
                    self.running.signal(signal).map_err(failed)?;
                    if self.stopped && signal != SIGKILL {
                        // It is delivered when the command continues.
                        self.running.signal(SIGCONT).map_err(failed)?;
                        self.stopped = false;
                    }
                }
                Ok(Some(ToCluster::Resize(terminal))) => self.running.resize(terminal).map_err(failed)?,
                Ok(Some(ToCluster::Run { .. }) | None) | Err(TryRecvError::Disconnected) => return Err(End::Client),
                Err(TryRecvError::Empty) => break,
            }
        }
        let busy = self.received > self.taken;
        let gone = self.received - self.running.input_waiting() - self.taken;
        if gone > 0 {
            self.taken += gone;
            self.put(&FromCluster::Taken(gone as u32));
        }
        Ok(busy)
    }

    fn put(&mut self, frame: &FromCluster) {
        match encode(frame) {
            Ok(bytes) => self.backlog.extend(bytes),
            Err(e) => log::error!("a frame for a client is lost: {e}"),
        }
    }
}

/// Writes as much as the client takes at once; whether it took something.
fn flush(client: &UnixStream, backlog: &mut VecDeque<u8>) -> Result<bool, Errno> {
    let mut some = false;
    while !backlog.is_empty() {
        match send(client, backlog.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) => {
                backlog.drain(..n);
                some = true;
            }
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(some)
}

/// Writes the rest, until the client hangs up; not for long when the cluster ends.
fn deliver(
    client: &UnixStream,
    mut backlog: VecDeque<u8>,
    input: &Receiver<Option<ToCluster>>,
    over: &dyn Fn() -> Option<Ended>,
) {
    let mut ends = None;
    while !backlog.is_empty() {
        match flush(client, &mut backlog) {
            Ok(true) => {}
            Ok(false) => std::thread::sleep(TURN),
            Err(_) => return,
        }
        if ends.is_none() {
            ends = over().map(|_| Instant::now() + LAST);
        }
        let late = ends.is_some_and(|end| Instant::now() > end);
        if late || matches!(input.try_recv(), Ok(None) | Err(TryRecvError::Disconnected)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Line;
    use crate::agent::tests::{Peer, line};
    use crate::command::{GuestCommand, Stream};
    use telegraphos_agent::{ToGuest, ToHost};

    fn command(line: &Line) -> GuestCommand {
        GuestCommand::new(0.into(), Ok(line.clone()), vec!["x".into()]).keep_input_open()
    }

    /// Follows a command of this line for a client, whose end is returned.
    fn followed(line: &Line, over: impl Fn() -> Option<Ended> + Send + 'static) -> (Peer, std::thread::JoinHandle<()>) {
        let (client, there) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let command = command(line);
        let thread = std::thread::spawn(move || follow(&client, Decoder::default(), command.spawn().unwrap(), &over));
        (Peer::new(there), thread)
    }

    #[test]
    fn a_client_that_does_not_read_stops_its_own_command_alone() {
        let (line, mut agent) = line(0);
        let (mut client, following) = followed(&line, || None);
        let id = agent.started();
        // More than every buffer on the way.
        let count = (STOP_AT + (1 << 20)) / PIECE;
        for n in 0..count {
            agent.send(&ToHost::Stdout { id, bytes: vec![n as u8; PIECE] });
        }
        assert_eq!(agent.signal(), SIGSTOP);
        // Another command in the same guest runs to its end.
        let other = command(&line);
        let other = std::thread::spawn(move || other.run().unwrap().stdout);
        let second = agent.started();
        agent.send(&ToHost::Stdout { id: second, bytes: b"other\n".to_vec() });
        agent.send(&ToHost::Exited { id: second, exit: Exit::Code(0) });
        assert_eq!(other.join().unwrap(), "other\n");
        for n in 0..count {
            let FromCluster::Output(Stream::Stdout, bytes) = client.next() else { panic!("no output") };
            assert_eq!(bytes, vec![n as u8; PIECE]);
        }
        assert_eq!(agent.signal(), SIGCONT);
        agent.send(&ToHost::Exited { id, exit: Exit::Code(7) });
        assert_eq!(client.next::<FromCluster>(), FromCluster::Exited(Exit::Code(7)));
        following.join().unwrap();
    }

    #[test]
    fn a_command_beyond_the_reach_of_signals_is_killed_when_its_output_is_not_read() {
        let (line, mut agent) = line(0);
        let (mut client, following) = followed(&line, || None);
        let id = agent.started();
        for _ in 0..=KILL_AT / PIECE + 256 {
            agent.send(&ToHost::Stdout { id, bytes: vec![0; PIECE] });
        }
        assert_eq!((agent.signal(), agent.signal()), (SIGSTOP, SIGKILL));
        let end = loop {
            match client.next() {
                FromCluster::Output(..) => {}
                end => break end,
            }
        };
        assert!(matches!(&end, FromCluster::Failed(why) if why.why.contains("does not read")), "{end:?}");
        following.join().unwrap();
    }

    #[test]
    fn input_and_signals_reach_the_command_and_a_hang_up_kills_it() {
        let (line, mut agent) = line(0);
        let (mut client, following) = followed(&line, || None);
        let id = agent.started();
        client.send(&ToCluster::Stdin(b"abc".to_vec()));
        client.send(&ToCluster::Signal(2));
        client.send(&ToCluster::CloseStdin);
        assert_eq!(agent.next::<ToGuest>(), ToGuest::Stdin { id, bytes: b"abc".to_vec() });
        assert_eq!(agent.next::<ToGuest>(), ToGuest::Signal { id, signal: 2 });
        assert_eq!(agent.next::<ToGuest>(), ToGuest::CloseStdin { id });
        assert_eq!(client.next::<FromCluster>(), FromCluster::Taken(3));
        drop(client);
        assert_eq!(agent.signal(), SIGKILL);
        following.join().unwrap();
    }

    #[test]
    fn a_client_that_sends_more_than_its_window_is_hung_up_on() {
        let (line, mut agent) = line(0);
        let (mut client, following) = followed(&line, || None);
        agent.started();
        // The agent takes nothing but its own window.
        let window = WINDOW + telegraphos_agent::STDIN_WINDOW as usize;
        for _ in 0..=window / PIECE {
            client.send(&ToCluster::Stdin(vec![0; PIECE]));
        }
        assert_eq!(agent.signal(), SIGKILL);
        following.join().unwrap();
    }

    #[test]
    fn the_reason_of_the_clusters_end_is_that_of_the_command() {
        let (line, mut agent) = line(0);
        let begun = Instant::now();
        let over = move || {
            let why = Ended { code: 254, why: "the kernel has panicked".into() };
            (begun.elapsed() > Duration::from_millis(300)).then_some(why)
        };
        let (mut client, following) = followed(&line, over);
        agent.started();
        // The guest ends before the reason is found.
        drop(agent);
        let FromCluster::Failed(why) = client.next() else { panic!("no reason") };
        assert_eq!((why.code, why.why.as_str()), (254, "the kernel has panicked"));
        following.join().unwrap();
    }
}
