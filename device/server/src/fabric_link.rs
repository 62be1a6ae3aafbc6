// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board's connection to the fabric: connects, performs the handshake, and reconnects when the link breaks. `shell`
//! owns it. A fabric in another process is reached by its socket, one that the same thread serves by its door.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use log::{debug, info, warn};
use telegraphos_device_core::Event;
use telegraphos_link::limit::Limiter;
use telegraphos_link::{Door, LinkClient, MemoryLink, OutputFull, Received, hello};
use telegraphos_service::wait::{Places, Readiness, Watched};
use telegraphos_wire::link::{Frame, Refusal};
use telegraphos_wire::{NodeId, PROTOCOL_VERSION, WindowLayout};

use crate::rings::{Carrier, Offer};

/// The place of the link's descriptor among those of its board.
pub const PLACE: u32 = 3;
/// First and longest delay between attempts to connect, in microseconds.
const BACKOFF: (u64, u64) = (100_000, 1_000_000);
/// Time limit for the fabric's answer to the opening frame, in microseconds.
const HANDSHAKE: u64 = 5_000_000;
/// How long after a broken link a refusal with `NodeTaken` is retried, in microseconds: the fabric may not have noticed
/// that the old link is broken.
const TAKEN_GRACE: u64 = 5_000_000;

/// The fabric refuses this board, and a retry would not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fabric at {} refused this board: {why}", path.display())]
pub struct RefusedByFabric {
    /// Path of the fabric's socket.
    pub path: PathBuf,
    /// The value offered, the value expected, and the remedy.
    pub why: String,
}

#[derive(Debug)]
pub enum Arrival {
    /// An event for the core.
    Event(Event),
    /// An end of a ring.
    Ring(Offer),
}

#[derive(Debug)]
enum Link {
    Stream(Watched<LinkClient>),
    /// Within this process. It is waited for if another thread serves the fabric.
    Memory(Watched<MemoryLink>),
}

impl Link {
    fn send(&mut self, frame: Frame) -> Result<(), OutputFull> {
        match self {
            Link::Stream(link) => link.send(&frame),
            Link::Memory(link) => link.send(frame),
        }
    }

    fn receive(&mut self, frames: &mut VecDeque<Frame>) -> io::Result<Received> {
        match self {
            Link::Stream(link) => link.receive(frames),
            Link::Memory(link) => Ok(link.receive(frames)),
        }
    }

    /// What came with a [`Frame::Ring`].
    fn take_carrier(&mut self) -> Option<Carrier> {
        match self {
            Link::Stream(link) => link.take_fds().map(Carrier::Shared),
            Link::Memory(link) => link.take_ring_end().map(Carrier::Within),
        }
    }

    fn wants_write(&self) -> bool {
        matches!(self, Link::Stream(link) if link.wants_write())
    }

    /// Has its descriptor watched for room exactly while something waits for that.
    fn watch(&mut self) -> io::Result<()> {
        match self {
            Link::Stream(link) => {
                let write = link.wants_write();
                Ok(link.until(Readiness { write, ..Readiness::READ })?)
            }
            Link::Memory(_) => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Link::Stream(link) => link.flush().map(|_| ()),
            Link::Memory(_) => Ok(()),
        }
    }
}

#[derive(Debug)]
enum State {
    /// Not connected; the next attempt is at `until`.
    Waiting { until: u64 },
    /// The opening frame has been sent; the answer must arrive before `until`.
    Greeting { link: Link, until: u64 },
    /// The fabric has accepted the board.
    Joined { link: Link },
}

/// The board's end of the link, connected or not.
#[derive(Debug)]
pub struct FabricLink {
    path: PathBuf,
    /// Where it joins instead of connecting to `path`, and whether another thread serves the fabric there.
    door: Option<(Door, bool)>,
    node: NodeId,
    window: WindowLayout,
    credits: [u32; 4],
    state: State,
    backoff: u64,
    /// The loss of the link has been logged as a warning; failed attempts are logged at debug level.
    logged_down: bool,
    /// When the last established link was lost.
    lost_at: Option<u64>,
    joined_at: Option<u64>,
    frames: VecDeque<Frame>,
}

/// The text of a refusal, with the value offered and the value expected.
fn explain(node: NodeId, reason: Refusal, offered: u64, expected: u64) -> String {
    match reason {
        Refusal::NodeTaken => {
            format!("node {offered} has joined already; start this board with another --node, or stop the other one")
        }
        Refusal::NodeRange => format!(
            "node {offered} is outside the cluster of {expected} nodes; expected --node below {expected}, or start \
             telegraphos-fabric with a larger --nodes"
        ),
        Refusal::Version => format!(
            "this board speaks protocol version {offered}, the fabric {expected}; use HIB and fabric of the same build"
        ),
        Refusal::NodeBits => format!(
            "this board's window has {offered} node bits, the fabric's {expected}; start both with the same --node-bits"
        ),
        Refusal::OffsetBits => format!(
            "this board's window has {offered} offset bits, the fabric's {expected}; start both with the same --offset-bits"
        ),
        Refusal::Elsewhere => format!(
            "node {} is attached to switch {expected} of the topology, this fabric serves switch {offered}; connect this board to the \
             fabric process of that switch",
            node
        ),
        Refusal::Topology | Refusal::NoTrunk => {
            format!("it took this board for a switch (offered {offered}, expected {expected}); use the same build")
        }
        Refusal::Silent => format!(
            "this board was silent for {} ms, longer than the {} ms that the fabric allows; was it stopped?",
            offered / 1000,
            expected / 1000
        ),
        Refusal::Rate => format!(
            "this board joined or was reset too often: the fabric allows it {offered} times at once and {expected} times a second; is its \
             guest in a loop of resets?"
        ),
        Refusal::Handshake => {
            format!("the opening frame was not understood (offered {offered}, expected {expected}); use the same build")
        }
        Refusal::Protocol => {
            format!(
                "the board broke the link's rules (found {offered}, expected {expected}); please report this as a bug"
            )
        }
    }
}

impl FabricLink {
    /// A link that connects on the first call of [`FabricLink::timer`].
    pub fn new(path: &Path, node: NodeId, window: WindowLayout, credits: [u32; 4]) -> FabricLink {
        FabricLink {
            path: path.to_owned(),
            door: None,
            node,
            window,
            credits,
            state: State::Waiting { until: 0 },
            backoff: BACKOFF.0,
            logged_down: false,
            lost_at: None,
            joined_at: None,
            frames: VecDeque::new(),
        }
    }

    /// From its next connection on, the fabric behind this door takes the place of that at the path. If another thread
    /// serves it, they are `apart` and the link has a descriptor to wait for; else the thread that serves both calls
    /// [`FabricLink::receive`] while the link [needs attention](FabricLink::needs_attention).
    pub fn join_by(&mut self, door: Door, apart: bool) {
        self.door = Some((door, apart));
    }

    /// The node of the board.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether the fabric has accepted the board.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Joined { .. })
    }

    /// The connection, during the handshake or after it.
    fn link(&self) -> Option<&Link> {
        match &self.state {
            State::Waiting { .. } => None,
            State::Greeting { link, .. } | State::Joined { link } => Some(link),
        }
    }

    /// Whether something has arrived that no descriptor tells of.
    pub fn needs_attention(&self) -> bool {
        matches!(self.link(), Some(Link::Memory(link)) if link.needs_attention())
    }

    /// When [`FabricLink::timer`] must be called; `None` if it need not be.
    pub fn deadline(&self) -> Option<u64> {
        match self.state {
            State::Waiting { until } | State::Greeting { until, .. } => Some(until),
            State::Joined { .. } => None,
        }
    }

    /// Connects, or ends a handshake that has taken too long, if the deadline is reached. What it connects is watched
    /// at place [`PLACE`].
    pub fn timer(&mut self, now: u64, places: &Places) {
        match self.state {
            State::Waiting { until } if now >= until => self.connect(now, places),
            State::Greeting { until, .. } if now >= until => {
                self.retry(now, "it does not answer the opening frame; is something else listening there?");
            }
            _ => {}
        }
    }

    /// Ends a turn of the loop: has the link watched for what it waits for now. True if the link was lost.
    pub fn watch(&mut self, now: u64) -> bool {
        let watched = match &mut self.state {
            State::Waiting { .. } => return false,
            State::Greeting { link, .. } | State::Joined { link } => link.watch(),
        };
        watched.is_err_and(|e| self.lose(now, &e.to_string()))
    }

    /// Connects and sends the opening frame.
    fn connect(&mut self, now: u64, places: &Places) {
        let memory = |link| Ok(Link::Memory(places.watch(PLACE, link, Readiness::READ)?));
        let stream = |link| Ok(Link::Stream(places.watch(PLACE, link, Readiness::READ)?));
        let opened = match &self.door {
            Some((door, false)) => door.open().map(|link| Link::Memory(Watched::nowhere(link, Readiness::READ))),
            Some((door, true)) => door.open_apart().and_then(memory),
            None => LinkClient::connect(&self.path).and_then(stream),
        };
        let (node, window, credits) = (self.node, self.window, self.credits);
        let opened = opened.and_then(|mut link| {
            link.send(hello(node, window, credits)).map_err(io::Error::other)?;
            link.flush()?;
            Ok(link)
        });
        match opened {
            Ok(link) => self.state = State::Greeting { link, until: now.saturating_add(HANDSHAKE) },
            Err(e) => self.retry(now, &e.to_string()),
        }
    }

    /// Logs why there is no link and schedules the next attempt.
    fn retry(&mut self, now: u64, why: &str) {
        if !self.logged_down {
            self.logged_down = true;
            warn!("no link to the fabric at {}: {why} (trying again until it is there)", self.path.display());
        } else {
            debug!("still no link to the fabric: {why}");
        }
        self.state = State::Waiting { until: now.saturating_add(self.backoff) };
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }

    /// Ends the link. True if it was up; then the caller passes [`Event::LinkDown`] to the core.
    fn lose(&mut self, now: u64, why: &str) -> bool {
        let was_up = self.is_up();
        if was_up {
            self.logged_down = false;
            self.lost_at = Some(now);
            // The delay is kept after a short link, so that a fabric that closes every link at once is not tried and
            // logged ten times a second.
            if self.joined_at.is_some_and(|at| now >= at.saturating_add(BACKOFF.1)) {
                self.backoff = BACKOFF.0;
            }
        }
        self.retry(now, why);
        was_up
    }

    /// Receives once from the fabric; each frame becomes an event for the core, or an end of a ring.
    pub fn receive(&mut self, now: u64, mut arrive: impl FnMut(Arrival)) -> Result<(), RefusedByFabric> {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let received = match &mut self.state {
            State::Waiting { .. } => return Ok(()),
            State::Greeting { link, .. } | State::Joined { link } => link.receive(&mut frames),
        };
        let mut end = match received {
            Ok(received) if received.closed => Some("the fabric closed the link".to_string()),
            Ok(_) => None,
            Err(e) => Some(e.to_string()),
        };
        for frame in frames.drain(..) {
            if let Err(why) = self.frame(now, frame, &mut arrive)? {
                end = Some(why);
                break;
            }
        }
        self.frames = frames;
        // A refusal has ended the link already and logged its own reason.
        if let (Some(why), false) = (end, matches!(self.state, State::Waiting { .. })) {
            if self.lose(now, &why) {
                arrive(Arrival::Event(Event::LinkDown));
            }
        }
        Ok(())
    }

    /// Processes one frame. The inner error ends the link.
    fn frame(
        &mut self,
        now: u64,
        frame: Frame,
        arrive: &mut impl FnMut(Arrival),
    ) -> Result<Result<(), String>, RefusedByFabric> {
        let mut event = |event| arrive(Arrival::Event(event));
        match (frame, self.is_up()) {
            (Frame::Welcome { incarnation, nodes, credits }, false) => {
                let state = std::mem::replace(&mut self.state, State::Waiting { until: now });
                if let State::Greeting { link, .. } = state {
                    self.state = State::Joined { link };
                }
                info!("joined the fabric at {} as node {} of {nodes}", self.path.display(), self.node);
                self.logged_down = false;
                self.joined_at = Some(now);
                event(Event::LinkUp { incarnation, nodes, credits });
            }
            (Frame::Refuse { reason, offered, expected }, up) => {
                let why = explain(self.node, reason, offered, expected);
                // Not fatal: a board that was silent has lost its peers, and joins again as a new session. Nor may a
                // guest that resets its device in a loop disconnect the board for good.
                if matches!(reason, Refusal::Silent | Refusal::Rate) {
                    if self.lose(now, &why) {
                        event(Event::LinkDown);
                    }
                    return Ok(Ok(()));
                }
                let grace = self.lost_at.is_some_and(|at| now < at.saturating_add(TAKEN_GRACE));
                if reason == Refusal::NodeTaken && grace {
                    self.retry(now, &why);
                    return Ok(Ok(()));
                }
                if up {
                    event(Event::LinkDown);
                }
                return Err(RefusedByFabric { path: self.path.clone(), why });
            }
            (Frame::Packet(packet), true) => event(Event::Packet(packet)),
            (Frame::Credit { class, count }, true) => event(Event::Credit { class, count }),
            (Frame::NodeUp { node, incarnation, block }, true) => event(Event::NodeUp { node, incarnation, block }),
            (Frame::Probe, true) => {
                if let State::Joined { link } = &mut self.state {
                    // A full queue fails again at the next frame, which ends the link.
                    let _ = link.send(Frame::Alive);
                }
            }
            (Frame::Ring { node, incarnation, own, bytes, credits, side }, true) => {
                let carrier = match &mut self.state {
                    State::Joined { link } => link.take_carrier(),
                    _ => None,
                };
                arrive(Arrival::Ring(Offer { node, incarnation, own, bytes, credits, side, carrier }));
            }
            (frame @ (Frame::NodeDown { .. } | Frame::RingUse { .. } | Frame::RingLost { .. }), true) => {
                if let Ok(of_frame) = Event::try_from(frame) {
                    event(of_frame);
                }
            }
            (other, _) => {
                return Ok(Err(format!(
                    "it sent a frame out of turn ({other:?}); is it a telegraphos-fabric of version {PROTOCOL_VERSION}?"
                )));
            }
        }
        Ok(Ok(()))
    }

    /// Queues frames and sends as much as the socket takes. Without a link the frames are dropped: the core has been
    /// notified. True if the link was lost.
    pub fn send(&mut self, now: u64, frames: impl Iterator<Item = Frame>, limiter: &mut Limiter) -> bool {
        let State::Joined { link } = &mut self.state else {
            frames.for_each(drop);
            return false;
        };
        let mut full = None;
        for frame in frames {
            if full.is_none() {
                full = link.send(frame).err();
            }
        }
        if let Some(e) = full {
            limited!(limiter, "link full", now => warn "the link to the fabric is ended: {e}");
            return self.lose(now, &e.to_string());
        }
        self.flush(now)
    }

    /// Sends what is queued. True if the link was lost.
    pub fn flush(&mut self, now: u64) -> bool {
        let flushed = match &mut self.state {
            State::Waiting { .. } => return false,
            State::Greeting { link, .. } | State::Joined { link } => {
                if !link.wants_write() {
                    return false;
                }
                link.flush()
            }
        };
        match flushed {
            Ok(()) => false,
            // The fabric may have sent a refusal before it closed the connection; it is read first.
            Err(e) if matches!(self.state, State::Greeting { .. }) => {
                debug!("while greeting the fabric: {e}");
                false
            }
            Err(e) => self.lose(now, &e.to_string()),
        }
    }
}
