// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process has for another one: an inbox that the other writes to, the other's inbox and queue, and what is to
//! be done with these, in order.

use crate::error::Result;
use crate::posting::Posting;
use crate::request::Lease;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use telegraphos::{Node, NodeId, Queue, Recent, Remote, RemoteQueue, Rights, Segment, Status};
use telegraphos_msg_core::layout::{CONTROL, Element, Layout, PORT, PROBE, Words, control, port_of};
use telegraphos_msg_core::{Config, Place, Process};
use telegraphos_wire::names;

fn inbox_name(of: Process, for_whom: Process) -> String {
    names::inbox(of.number.into(), (for_whom.node, for_whom.number.into()))
}

/// Of a place: its memory is registered for more than one message.
pub(crate) const LASTING: u64 = 1 << 63;
/// Imports of lasting memory of another process that are kept.
const KEPT: usize = 8;

/// What is done with a link, in this order.
#[derive(Debug)]
pub(crate) enum Item {
    /// Stores words, and bytes of a send behind them, into the other's inbox; then says that they are there.
    /// Before that, lets the other's board store so many bytes of a receive, if they are for it to store.
    Post { opens: Option<(Lease, u64)>, words: Option<Words>, bytes: Option<(Lease, u64, u32)>, element: Element },
    /// Copies bytes from a place of this one's inbox into the buffer of a receive.
    Take { at: u64, lease: Lease, offset: u64, length: u32 },
}

#[derive(Debug)]
struct Fifo {
    items: VecDeque<Item>,
    /// Nothing is posted any more.
    closed: bool,
    /// The thread that does the items has it, and will do those that come meanwhile.
    posting: Option<Posting>,
}

#[derive(Debug)]
pub(crate) struct Link {
    /// This process.
    me: Process,
    /// The board of the other one.
    node: NodeId,
    pub(crate) inbox: Segment,
    /// What the other's elements carry.
    pub(crate) key: u32,
    /// The queue of this process that they come by.
    pub(crate) port: u16,
    /// When it was made.
    pub(crate) begun: Instant,
    /// The other was gone at the last look.
    suspect: AtomicBool,
    /// The other's first queue, for a hello, until it is known which one to use.
    first: Mutex<Option<RemoteQueue>>,
    /// Once its inbox is imported.
    other: OnceLock<Other>,
    fifo: Mutex<Fifo>,
    /// Lasting memory of the other, that used last behind.
    imports: Mutex<Recent<Place, Arc<Remote>>>,
}

#[derive(Debug)]
pub(crate) struct Other {
    inbox: Remote,
    /// All that is said to it goes by this import, and stays in order.
    elements: RemoteQueue,
    /// What elements to it carry.
    pub(crate) key: u32,
}

/// What a look says of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    There,
    /// For the first time.
    Gone,
    Lost,
}

/// What came of an attempt to import another's inbox.
pub(crate) enum Found {
    Yes(Box<Other>),
    /// It has not made it yet, and will say hello when it has.
    NotYet,
    Unlike,
}

/// A lock whose value is as good after a panic as before it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Makes an inbox for another process, whose board has that id, and says hello.
    pub(crate) fn open(
        node: &Node,
        config: &Config,
        (me, port): (Process, u16),
        (other, at): (Process, NodeId),
        key: u32,
    ) -> Result<Link> {
        // The import shows that it is there: only then is memory made for it.
        let first = Queue::import(node, at, &names::queue(other.number.into(), 0)).soft().open()?;
        let size = Layout::of(config).size();
        let inbox = node.export(&inbox_name(me, other), size).nodes(&[at]).create()?;
        let words = control(config, key, port);
        for (n, word) in words.iter().enumerate().rev() {
            // The magic is the last.
            inbox.store(8 * n as u64, *word)?;
        }
        let posting = Some(Posting::new(Layout::of(config).slot_words()));
        Ok(Link {
            me,
            node: at,
            inbox,
            key,
            port,
            begun: Instant::now(),
            suspect: AtomicBool::new(false),
            first: Mutex::new(Some(first)),
            other: OnceLock::new(),
            fifo: Mutex::new(Fifo { items: VecDeque::new(), closed: false, posting }),
            imports: Mutex::default(),
        })
    }

    pub(crate) fn hello(&self) -> Result<()> {
        match &*lock(&self.first) {
            Some(first) => Ok(first.enqueue(Element::Hello(self.me).encode())?),
            None => Ok(()),
        }
    }

    /// The other, once its inbox is imported.
    pub(crate) fn other(&self) -> Option<&Other> {
        self.other.get()
    }

    /// Imports the inbox that a process has for this one, and the queue that it takes elements from.
    pub(crate) fn find(&self, node: &Node, config: &Config, other: Process) -> Result<Found> {
        let rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::DMA.0);
        let import = node.import(self.node, &inbox_name(other, self.me)).rights(rights).soft();
        let inbox = match import.open() {
            Err(error) if error.status() == Some(Status::NoSegment) => return Ok(Found::NotYet),
            inbox => inbox?,
        };
        if inbox.size() < Layout::of(config).size() {
            return Ok(Found::Unlike);
        }
        let mut words = [0; CONTROL];
        inbox.get_slice(0, &mut words)?;
        if inbox.state()?.dead {
            return Ok(Found::NotYet);
        }
        let (key, port) = (words[1] as u32, port_of(words[PORT]));
        if words != control(config, key, port) {
            return Ok(if words[0] == 0 { Found::NotYet } else { Found::Unlike });
        }
        let elements = match lock(&self.first).take_if(|_| port == 0) {
            Some(first) => first,
            None => Queue::import(node, self.node, &names::queue(other.number.into(), port)).soft().open()?,
        };
        Ok(Found::Yes(Box::new(Other { inbox, elements, key })))
    }

    /// The other has been found, for the first time: the next thing that is posted says that this one takes packets in
    /// its inbox. Returns what is not needed any more, which takes a while to drop.
    pub(crate) fn meet(&self, other: Other) -> Option<RemoteQueue> {
        let element = Element::Ready { key: other.key, of: self.key as u16 };
        _ = self.other.set(other);
        self.push(Item::Post { opens: None, words: None, bytes: None, element });
        lock(&self.first).take()
    }

    /// Says that this one ends, if there is the key that the other takes it with.
    pub(crate) fn goodbye(&self) {
        if let Some(Other { elements, key, .. }) = self.other() {
            // If the other has gone, a failure does not matter.
            _ = elements.enqueue(Element::Goodbye { key: *key }.encode());
        }
    }

    /// Looks whether the other is there. It is lost when it has been gone for two looks: what it said before it went
    /// has come then, and been handled in between. One look alone may find it gone just after its last elements have
    /// come.
    pub(crate) fn look(&self) -> Seen {
        let gone = self.is_gone();
        match (gone, self.suspect.swap(gone, Ordering::Relaxed)) {
            (false, _) => Seen::There,
            (true, false) => Seen::Gone,
            (true, true) => Seen::Lost,
        }
    }

    /// Whether the other is gone, as far as is known. A store finds out more until the next time.
    fn is_gone(&self) -> bool {
        let lost = |state: telegraphos::Result<telegraphos::State>| {
            state.map_or(true, |state| state.dead || state.cut || state.error.is_some())
        };
        match self.other() {
            Some(Other { inbox, elements, .. }) => {
                let stored = inbox.put64(PROBE, 1);
                stored.is_err() || lost(inbox.state()) || lost(elements.state())
            }
            // The same again: nothing else could be said.
            None => self.hello().is_err() || lock(&self.first).as_ref().is_some_and(|first| lost(first.state())),
        }
    }

    /// To be done, after what was to be done before, at the next [`Link::drain`].
    pub(crate) fn push(&self, item: Item) {
        lock(&self.fifo).items.push_back(item);
    }

    /// Nothing is posted from now on. What has come is still taken.
    pub(crate) fn close(&self) {
        lock(&self.fifo).closed = true;
    }

    /// Does what is to be done, unless another thread does. False if the other was not reached.
    ///
    /// A store waits while the other's board holds stores back: then this call waits, and none for another process
    /// does.
    pub(crate) fn drain(&self, node: &Node) -> bool {
        let mut fifo = lock(&self.fifo);
        let Some(mut posting) = fifo.posting.take() else { return true };
        let mut reached = true;
        while let Some(item) = fifo.items.pop_front() {
            let closed = fifo.closed;
            drop(fifo);
            if !(closed && matches!(item, Item::Post { .. })) {
                reached &= self.perform(item, node, &mut posting).is_ok();
            }
            fifo = lock(&self.fifo);
        }
        fifo.posting = Some(posting);
        reached
    }

    fn perform(&self, item: Item, node: &Node, posting: &mut Posting) -> telegraphos::Result<()> {
        match item {
            Item::Post { opens, words, bytes, element } => {
                let Some(other) = self.other() else { return Ok(()) };
                if let Some((lease, length)) = opens {
                    // Without its memory the receive fails, by what the other's board is answered.
                    if let Err(error) = lease.request().open_to(self.node, length) {
                        log::debug!("the memory of a receive is not there: {error}");
                    }
                }
                if let Some(words) = words {
                    let buffer = posting.words();
                    buffer.extend(words.words());
                    if let Some((lease, offset, length)) = &bytes {
                        // SAFETY: the send has not ended, since here is a lease of it.
                        unsafe { lease.request().buffer.read(*offset, *length, buffer) };
                    }
                    drop(bytes);
                    posting.put(node, &other.inbox, words.at)?;
                }
                // Fails if the inbox has had an error, so that nothing is said of what is not there.
                other.elements.put_notify::<u64>(&other.inbox, 0, &[], element.encode())
            }
            Item::Take { mut at, lease, offset, length } => {
                let next = || {
                    // Within the inbox, whose slots all have room for a block.
                    let word = self.inbox.load(at).unwrap_or(0);
                    at += 8;
                    word
                };
                // SAFETY: the receive has not ended, since here is a lease of it.
                unsafe { lease.request().buffer.write(offset, length, next) };
                Ok(())
            }
        }
    }

    /// Memory of the other process, imported to be read or written by this board.
    pub(crate) fn memory(&self, node: &Node, other: Process, at: Place, right: Rights) -> Result<Arc<Remote>> {
        let keeps = at.0 & LASTING != 0 && right == Rights::READ;
        if keeps {
            if let Some((_, import)) = lock(&self.imports).find(|place, _| *place == at) {
                return Ok(import.clone());
            }
        }
        let rights = Rights(right.0 | Rights::DMA.0);
        let import =
            Arc::new(node.import(self.node, &names::memory(other.number.into(), at.0)).rights(rights).soft().open()?);
        if keeps {
            let mut imports = lock(&self.imports);
            let least = (imports.len() >= KEPT).then(|| imports.evict());
            imports.insert(at, import.clone());
            drop(imports);
            // It may take as long as the other's board does.
            drop(least);
        }
        Ok(import)
    }

    /// Ends the imports of the other's memory that no transfer uses. Whether there were any.
    pub(crate) fn forget_unused(&self) -> bool {
        let mut imports = lock(&self.imports);
        let unused: Vec<_> = std::iter::from_fn(|| imports.take(|_, import| Arc::strong_count(import) == 1)).collect();
        drop(imports);
        // Without the lock: it may take as long as the other's board does.
        !unused.is_empty()
    }

    /// It has failed, and is not kept.
    pub(crate) fn forget(&self, at: Place) {
        let forgotten = lock(&self.imports).take(|place, _| *place == at);
        // Without the lock: it may take as long as the other's board does.
        drop(forgotten);
    }
}
