// SPDX-License-Identifier: MIT OR Apache-2.0
//! How two processes come to a channel; `telegraphos_channel_core::handshake` has the words.

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::options::Options;
use std::time::{Duration, Instant};
use telegraphos::{ImportBuilder, Node, NodeId, Queue, Remote, Segment, Status};
use telegraphos_channel_core::Layout;
use telegraphos_channel_core::handshake::{ANSWER, Answer, CONTROL_SIZE, GROUP_BYTES, Hello, Offer};

/// Characters of the name of a channel, at most.
pub const NAME_MAX: usize = 32;
/// Names of the objects of channels begin so.
const PREFIX: &str = "ch.";
/// Hellos that may wait in the queue of a name.
const HELLOS: u32 = 64;
/// How long a sleep in a handshake lasts at most, before the other end is looked after.
const SLICE: Duration = Duration::from_millis(50);

/// What both roles of a handshake have in common.
#[derive(Debug)]
struct Party<'a> {
    node: &'a Node,
    options: &'a Options,
    offer: Offer,
    /// The name of what both ends export: that of the channel, the node that connects, and its number.
    base: String,
    peer: NodeId,
    ends: Instant,
}

/// The name of a queue, if it is one of a channel.
fn queue_name(name: &str) -> Result<String> {
    let is_sound = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_sound { Ok(format!("{PREFIX}{name}")) } else { Err(Error::Name(name.into())) }
}

fn offer(node: &Node, options: &Options) -> Result<Offer> {
    let mut group = [0; GROUP_BYTES];
    if let Some(name) = node.trust_group()?.filter(|name| options.direct && name.len() < GROUP_BYTES) {
        group[..name.len()].copy_from_slice(name.as_bytes());
    }
    Ok(Offer { layout: Layout::new(options.ring)?, group })
}

impl Party<'_> {
    fn late(&self) -> Error {
        let what = "the other end has not answered: is it there, with the same key, and does it admit this user?";
        Error::TimedOut { what, time: self.options.patience }
    }

    fn export(&self, role: &str, size: u64, direct: Option<&str>) -> Result<Segment> {
        let mut export = self.node.export(&format!("{}{role}", self.base), size);
        export = export.mode(self.options.mode).secret(self.options.key);
        // The set of nodes ends there; a secret and the mode admit beyond.
        if self.peer < 256 && self.node.id() < 256 {
            export = export.nodes(&[self.peer, self.node.id()]);
        }
        Ok(match direct {
            Some(group) => export.direct(group),
            None => export,
        }
        .create()?)
    }

    fn import(&self, role: &str) -> Result<Remote> {
        let import: ImportBuilder = self.node.import(self.peer, &format!("{}{role}", self.base));
        Ok(import.rights(telegraphos::READ_WRITE).secret(self.options.key).soft().open()?)
    }

    /// This end's control segment.
    fn control(&self, role: &str) -> Result<Segment> {
        let control = self.export(role, CONTROL_SIZE, None)?;
        // The first word, by which it is known, comes last.
        self.offer.words().rev().try_for_each(|(at, word)| control.store(at, word))?;
        Ok(control)
    }

    /// This end's memory, and whether it is in common with the other one.
    fn memory(&self, role: &str, other: &Offer) -> Result<(Segment, bool)> {
        let size = self.offer.layout.size();
        if self.offer.is_of_group(other) {
            let group = self.node.trust_group()?.unwrap_or_default();
            match self.export(role, size, Some(&group)) {
                Ok(memory) => return Ok((memory, true)),
                Err(error) => log::warn!("a channel goes through the boards: {error}"),
            }
        }
        Ok((self.export(role, size, None)?, false))
    }

    /// What the other end offers.
    fn other(&self, control: &Remote) -> Result<Offer> {
        Offer::read(|at| Ok(control.get(at)?)).map_err(|error| match error {
            Error::Offer { error, .. } => Error::Offer { node: self.peer, error },
            error => error,
        })
    }

    /// Waits for the other end's answer.
    fn answer(&self, control: &Segment) -> Result<Answer> {
        loop {
            match control.load(ANSWER)? {
                0 => {}
                word => {
                    let unknown = || self.gone(format!("it has answered {word:#x}, which is no answer"));
                    return Answer::decode(word).ok_or_else(unknown);
                }
            }
            let left = self.ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.late());
            }
            control.wait_change(&[(ANSWER, 0)], left.min(SLICE))?;
        }
    }

    fn gone(&self, reason: String) -> Error {
        Error::Gone { node: self.peer, reason }
    }

    fn channel(
        self,
        control: Segment,
        far_control: Remote,
        (memory, says): (Segment, bool),
        far: (Remote, bool),
        other: Offer,
    ) -> Result<Channel> {
        if far.0.size() < other.layout.size() {
            return Err(self.gone(format!("its memory has {} bytes: expected {}", far.0.size(), other.layout.size())));
        }
        let layouts = (self.offer.layout, other.layout);
        Ok(Channel::new(*self.options, control, far_control, (memory, says), far, layouts))
    }
}

impl Channel {
    /// Opens a name under which processes connect: 1 to [`NAME_MAX`](crate::NAME_MAX) ASCII characters that can be
    /// seen, at which no other process of this node listens.
    pub fn listen(node: &Node, name: &str, options: Options) -> Result<Listener> {
        Listener::new(node, name, options)
    }

    /// Connects to a process of `peer`, which may be this node, that listens at `name`, within [`Options::patience`].
    pub fn connect(node: &Node, peer: NodeId, name: &str, options: Options) -> Result<Channel> {
        connect(node, peer, name, options)
    }
}

/// A name under which processes connect.
///
/// ```no_run
/// use telegraphos::Node;
/// use telegraphos_channel::{Channel, Options};
///
/// # fn main() -> telegraphos_channel::Result<()> {
/// let node = Node::open()?;
/// let listener = Channel::listen(&node, "worker", Options::default())?;
/// while let Some(mut channel) = listener.accept(None)? {
///     channel.send(b"hello")?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Listener {
    node: Node,
    queue: Queue,
    options: Options,
}

impl Listener {
    fn new(node: &Node, name: &str, options: Options) -> Result<Listener> {
        let queue = Queue::create(node, &queue_name(name)?);
        let queue = queue.mode(options.mode).secret(options.key).wide().words(HELLOS).quota(1).create()?;
        offer(node, &options)?;
        Ok(Listener { node: node.clone(), queue, options })
    }

    /// The next process that connects; `None` after `timeout` (`None` waits for ever). One that does not complete the
    /// handshake within [`Options::patience`] is logged, and the next one is admitted.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<Channel>> {
        let begun = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let Some(word) = self.queue.pop_wait(left)? else { return Ok(None) };
            match Hello::decode(word).map(|hello| self.admit(hello)) {
                Some(Ok(channel)) => return Ok(Some(channel)),
                Some(Err(error)) => log::warn!("a process that connects is not admitted: {error}"),
                None => log::warn!("an element {word:#x} of a channel's queue is no hello"),
            }
        }
    }

    fn admit(&self, Hello { node: peer, number }: Hello) -> Result<Channel> {
        let base = format!("{}.{peer}.{number:x}", self.queue.name());
        let (node, options, ends) = (&self.node, &self.options, Instant::now() + self.options.patience);
        let party = Party { node, options, offer: offer(node, options)?, base, peer, ends };
        let far_control = party.import(".c")?;
        let other = party.other(&far_control)?;
        let control = party.control(".l")?;
        let (memory, direct) = party.memory(".lm", &other)?;
        far_control.put(ANSWER, Answer { direct }.encode())?;
        let answer = party.answer(&control)?;
        let far = party.import(".cm")?;
        party.channel(control, far_control, (memory, direct), (far, answer.direct), other)
    }
}

fn connect(node: &Node, peer: NodeId, name: &str, options: Options) -> Result<Channel> {
    let queue_name = queue_name(name)?;
    let mut number = [0; 4];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| telegraphos::Error::Os { what: "the number of a channel".into(), errno })?;
    let number = u32::from_le_bytes(number);
    let ends = Instant::now() + options.patience;
    let queue = loop {
        match Queue::import(node, peer, &queue_name).secret(options.key).soft().open() {
            Ok(queue) => break queue,
            Err(error) => {
                let may_come = matches!(error.status(), Some(Status::NoSegment | Status::NodeDown | Status::NoHold));
                if !may_come || Instant::now() >= ends {
                    return Err(error.into());
                }
                std::thread::sleep(SLICE);
            }
        }
    };
    let base = format!("{queue_name}.{}.{number:x}", node.id());
    let party = Party { node, options: &options, offer: offer(node, &options)?, base, peer, ends };
    let control = party.control(".c")?;
    queue.enqueue(Hello { node: node.id(), number }.encode())?;
    let answer = party.answer(&control)?;
    drop(queue);
    let (far_control, far) = (party.import(".l")?, party.import(".lm")?);
    let other = party.other(&far_control)?;
    let (memory, direct) = party.memory(".cm", &other)?;
    far_control.put(ANSWER, Answer { direct }.encode())?;
    party.channel(control, far_control, (memory, direct), (far, answer.direct), other)
}
