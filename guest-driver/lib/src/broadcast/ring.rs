// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a broadcast, over a [`Memory`] whose every call is one access.
//!
//! ```text
//!   word 0       MAGIC, stored last                          written by
//!        1       slots << 32 | words of a slot               the producer
//!        2       places for consumers
//!        3       1 + number of messages, at the end
//!        4 ..    place: 0 free, JOINING, 1 + next message    its consumer; the producer turns JOINING into a number
//!          ..    evicted: 1 if that place's consumer is      the producer
//!   slots        data ..., commit = (1 + number) << 16 | bytes
//! ```
//!
//! All there is to rely on: the stores of one writer into one page reach every copy in their order, and an atomic or
//! quiet that has returned is in all copies. Hence
//!
//! - a slot lies within one page, and its commit word is stored last: who finds it finds the data (no message is ever
//!   torn);
//! - a consumer reads a slot before it says so in its place, and the producer reads that before it stores to the slot
//!   again;
//! - places are claimed and assigned by atomics, so that no two consumers think that one is theirs, and none is
//!   assigned to who has left.
//!
//! Nothing here is unsafe or waits. What others have stored is not believed: it may stop a ring, and no more.

/// What word 0 holds when the header is complete; its low 16 bits are the layout's version.
pub const MAGIC: u64 = 0x5447_4252_4f41_0001;
/// Bytes of a page, within which stores are in order.
pub const PAGE: u64 = telegraphos_wire::UNIT;
/// Places for consumers, at most.
pub const CONSUMERS_MAX: u32 = 255;
/// Bytes of a message, at most.
pub const MESSAGE_MAX: u32 = PAGE as u32 - 8;

const SHAPE: u32 = 1;
const PLACES: u32 = 2;
const END: u32 = 3;
const FIRST_PLACE: u32 = 4;
const FREE: u64 = 0;
const JOINING: u64 = u64::MAX;
const LENGTH_BITS: u32 = 16;

/// A copy of the ring's words. Each call is one access, and one step of a model.
///
/// ```
/// use std::cell::RefCell;
/// use std::convert::Infallible;
/// use telegraphos::broadcast::ring::{Consumer, Found, Joined, Memory, Producer, Shape};
///
/// /// One copy for all.
/// struct Model(RefCell<Vec<u64>>);
///
/// impl Memory for Model {
///     type Error = Infallible;
///     fn load(&self, word: u32) -> Result<u64, Infallible> {
///         Ok(self.0.borrow()[word as usize])
///     }
///     fn store(&self, word: u32, value: u64) -> Result<(), Infallible> {
///         self.0.borrow_mut()[word as usize] = value;
///         Ok(())
///     }
///     fn compare_swap(&self, word: u32, expected: u64, new: u64) -> Result<u64, Infallible> {
///         let word = &mut self.0.borrow_mut()[word as usize];
///         let before = *word;
///         *word = if before == expected { new } else { before };
///         Ok(before)
///     }
///     fn quiet(&self) -> Result<(), Infallible> {
///         Ok(())
///     }
/// }
///
/// let shape = Shape::new(4, 16, 2).unwrap();
/// let memory = Model(RefCell::new(vec![0; shape.bytes() as usize / 8]));
/// let Ok(mut producer) = Producer::create(shape, &memory);
/// let Ok(Joined::Consumer(mut consumer)) = Consumer::join(&memory, shape.bytes()) else { panic!("no place") };
/// producer.look(&memory)?; // gives it its number
/// assert!(producer.push(&memory, b"ready")?);
/// let mut message = Vec::new();
/// assert_eq!(consumer.pop(&memory, &mut message)?, Found::Message);
/// assert_eq!(message, b"ready");
/// # Ok::<(), Infallible>(())
/// ```
pub trait Memory {
    /// Why an access fails.
    type Error;

    /// Loads a word of this node's copy (acquire). It may miss this process's own last store, and the ring never asks
    /// for that.
    fn load(&self, word: u32) -> Result<u64, Self::Error>;

    /// Stores a word (release), to all copies.
    fn store(&self, word: u32, value: u64) -> Result<(), Self::Error>;

    /// Compare-and-swap: the word before. When it returns, all copies have its result.
    fn compare_swap(&self, word: u32, expected: u64, new: u64) -> Result<u64, Self::Error>;

    /// Returns when all copies have every earlier store.
    fn quiet(&self) -> Result<(), Self::Error>;
}

/// Where things lie in a ring.
///
/// ```
/// use telegraphos::broadcast::ring::Shape;
///
/// let shape = Shape::new(64, 250, 16).unwrap();
/// assert_eq!((shape.slots(), shape.message(), shape.consumers()), (64, 504, 16)); // a slot is a power of two words
/// assert_eq!(Shape::new(64, 0, 16), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    slots: u32,
    slot_words: u32,
    consumers: u32,
}

impl Shape {
    /// A ring of `slots` messages of at most `message` bytes for at most `consumers`; `None` if there can be none:
    /// `slots` is 1 to 65536, `message` 1 to [`MESSAGE_MAX`], `consumers` 1 to [`CONSUMERS_MAX`].
    pub fn new(slots: u32, message: u32, consumers: u32) -> Option<Shape> {
        if message == 0 || message > MESSAGE_MAX {
            return None;
        }
        // A power of two, so that no slot lies in two pages.
        Shape::of(slots, (message.div_ceil(8) + 1).next_power_of_two(), consumers)
    }

    fn of(slots: u32, slot_words: u32, consumers: u32) -> Option<Shape> {
        let sound = (1..=1 << 16).contains(&slots)
            && slot_words.is_power_of_two()
            && (2..=PAGE as u32 / 8).contains(&slot_words)
            && (1..=CONSUMERS_MAX).contains(&consumers);
        // At most 2^29 words and the header, which 32 bits count.
        sound.then_some(Shape { slots, slot_words, consumers })
    }

    /// Messages that the slowest consumer may be behind.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a message, at most.
    pub fn message(&self) -> u32 {
        (self.slot_words - 1) * 8
    }

    /// Places for consumers.
    pub fn consumers(&self) -> u32 {
        self.consumers
    }

    /// Bytes of the whole ring.
    pub fn bytes(&self) -> u64 {
        8 * (u64::from(self.first_slot()) + u64::from(self.slots) * u64::from(self.slot_words))
    }

    fn first_slot(&self) -> u32 {
        (FIRST_PLACE + 2 * self.consumers).next_multiple_of(self.slot_words)
    }

    fn slot(&self, message: u64) -> u32 {
        self.first_slot() + (message % u64::from(self.slots)) as u32 * self.slot_words
    }

    fn place(&self, consumer: u32) -> u32 {
        FIRST_PLACE + consumer
    }

    fn evicted(&self, consumer: u32) -> u32 {
        FIRST_PLACE + self.consumers + consumer
    }
}

/// The word behind a message's data.
fn commit(message: u64, bytes: usize) -> u64 {
    (message + 1) << LENGTH_BITS | bytes as u64
}

/// What the producer knows of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Free,
    /// Its consumer wants this message next.
    Taken(u64),
    /// Its consumer was left behind, and has not noticed.
    Evicted,
}

/// The producer's side. [`Memory`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Producer {
    shape: Shape,
    next: u64,
    places: Vec<Place>,
}

impl Producer {
    /// Makes an empty ring of zeroed memory.
    pub fn create<M: Memory>(shape: Shape, memory: &M) -> Result<Producer, M::Error> {
        memory.store(SHAPE, u64::from(shape.slots) << 32 | u64::from(shape.slot_words))?;
        memory.store(PLACES, shape.consumers.into())?;
        memory.store(0, MAGIC)?;
        Ok(Producer { shape, next: 0, places: vec![Place::Free; shape.consumers as usize] })
    }

    /// Where things lie.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Messages pushed so far.
    pub fn pushed(&self) -> u64 {
        self.next
    }

    /// Looks at all places: who has read how much, who joins, who has left.
    pub fn look<M: Memory>(&mut self, memory: &M) -> Result<(), M::Error> {
        for consumer in 0..self.shape.consumers {
            let word = memory.load(self.shape.place(consumer))?;
            let place = &mut self.places[consumer as usize];
            *place = match (*place, word) {
                // It has left, and if it was evicted it knows.
                (Place::Evicted, FREE | JOINING) => {
                    memory.store(self.shape.evicted(consumer), 0)?;
                    Place::Free
                }
                (Place::Evicted, _) => Place::Evicted,
                (_, FREE) => Place::Free,
                (before, _) => before,
            };
            *place = match (*place, word) {
                (_, JOINING) => {
                    // It may have thought better of it.
                    match memory.compare_swap(self.shape.place(consumer), JOINING, self.next + 1)? {
                        JOINING => Place::Taken(self.next),
                        _ => Place::Free,
                    }
                }
                // What cannot be is not believed.
                (Place::Taken(before), word) if (before..=self.next).contains(&word.wrapping_sub(1)) => {
                    Place::Taken(word - 1)
                }
                (before, _) => before,
            };
        }
        Ok(())
    }

    /// The message that each consumer wants next, by its place, as last seen.
    pub fn wanted(&self) -> impl Iterator<Item = (u32, u64)> {
        self.places.iter().zip(0..).filter_map(|(place, consumer)| match place {
            Place::Taken(next) => Some((consumer, *next)),
            Place::Free | Place::Evicted => None,
        })
    }

    /// Stores a message, if the slowest consumer leaves room for it: whether it has. It must not be longer than
    /// [`Shape::message`]; what is beyond is cut off.
    pub fn push<M: Memory>(&mut self, memory: &M, message: &[u8]) -> Result<bool, M::Error> {
        self.look(memory)?;
        let slowest = self.wanted().map(|(_, next)| next).min().unwrap_or(self.next);
        if self.next - slowest >= self.shape.slots.into() {
            return Ok(false);
        }
        let message = &message[..message.len().min(self.shape.message() as usize)];
        let slot = self.shape.slot(self.next);
        for (word, bytes) in (slot..).zip(message.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            memory.store(word, u64::from_le_bytes(padded))?;
        }
        memory.store(slot + self.shape.slot_words - 1, commit(self.next, message.len()))?;
        self.next += 1;
        Ok(true)
    }

    /// Goes on without a consumer; false if that place is free. It will notice before it takes a message that is not
    /// whole.
    pub fn evict<M: Memory>(&mut self, memory: &M, consumer: u32) -> Result<bool, M::Error> {
        match self.places.get_mut(consumer as usize) {
            Some(place @ Place::Taken(_)) => {
                memory.store(self.shape.evicted(consumer), 1)?;
                // Everywhere before any of its messages is overwritten, in whichever page.
                memory.quiet()?;
                *place = Place::Evicted;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Says that no message follows.
    pub fn end<M: Memory>(&mut self, memory: &M) -> Result<(), M::Error> {
        memory.store(END, self.next + 1)
    }
}

/// How joining ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Joined {
    /// As this consumer.
    Consumer(Consumer),
    /// All places are taken.
    Full,
    /// The producer has not made the ring yet: try again.
    Unready,
    /// The words are no ring, or not of this version or size.
    Unsound,
}

/// What a consumer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// The next message, whole.
    Message,
    /// No message.
    Empty,
    /// No message follows.
    Ended,
    /// The producer has gone on without this consumer.
    Evicted,
}

/// A consumer's side. [`Memory`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Consumer {
    shape: Shape,
    place: u32,
    /// The next message, once the producer has said.
    next: Option<u64>,
    /// What the producer knows of that.
    told: u64,
}

impl Consumer {
    /// Claims a place in the ring in `bytes` of memory. The producer assigns the first message at its next look.
    pub fn join<M: Memory>(memory: &M, bytes: u64) -> Result<Joined, M::Error> {
        match memory.load(0)? {
            MAGIC => {}
            0 => return Ok(Joined::Unready),
            _ => return Ok(Joined::Unsound),
        }
        let (words, consumers) = (memory.load(SHAPE)?, memory.load(PLACES)?);
        let shape = u32::try_from(consumers).ok().and_then(|c| Shape::of((words >> 32) as u32, words as u32, c));
        let Some(shape) = shape.filter(|shape| shape.bytes() <= bytes) else { return Ok(Joined::Unsound) };
        for place in 0..shape.consumers {
            let word = shape.place(place);
            if memory.load(word)? == FREE && memory.compare_swap(word, FREE, JOINING)? == FREE {
                return Ok(Joined::Consumer(Consumer { shape, place, next: None, told: 0 }));
            }
        }
        Ok(Joined::Full)
    }

    /// Where things lie.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its place.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// The number of the next message; `None` until the producer has assigned the first.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Takes the next message into `message`.
    ///
    /// The producer is told when a quarter of the ring has been read, and when there is nothing more to read: each
    /// telling is a store to all copies.
    pub fn pop<M: Memory>(&mut self, memory: &M, message: &mut Vec<u8>) -> Result<Found, M::Error> {
        let next = match self.next {
            Some(next) => next,
            None => match memory.load(self.shape.place(self.place))? {
                // A free place is not ours: what it holds was our claim.
                JOINING | FREE => return Ok(Found::Empty),
                word => {
                    self.told = word - 1;
                    *self.next.insert(word - 1)
                }
            },
        };
        let slot = self.shape.slot(next);
        let word = memory.load(slot + self.shape.slot_words - 1)?;
        let length = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        if word != commit(next, length) || length > self.shape.message() as usize {
            return self.nothing(memory, next);
        }
        message.clear();
        for word in (slot..).take(length.div_ceil(8)) {
            message.extend_from_slice(&memory.load(word)?.to_le_bytes());
        }
        message.truncate(length);
        // Behind the data: were it another message's by now, this would say so.
        if memory.load(self.shape.evicted(self.place))? != 0 {
            return Ok(Found::Evicted);
        }
        self.next = Some(next + 1);
        if next + 1 - self.told >= u64::from(self.shape.slots / 4).max(1) {
            self.tell(memory, next + 1)?;
        }
        Ok(Found::Message)
    }

    fn nothing<M: Memory>(&mut self, memory: &M, next: u64) -> Result<Found, M::Error> {
        if memory.load(self.shape.evicted(self.place))? != 0 {
            return Ok(Found::Evicted);
        }
        if next != self.told {
            self.tell(memory, next)?;
        }
        Ok(if memory.load(END)? == next + 1 { Found::Ended } else { Found::Empty })
    }

    fn tell<M: Memory>(&mut self, memory: &M, next: u64) -> Result<(), M::Error> {
        self.told = next;
        memory.store(self.shape.place(self.place), next + 1)
    }

    /// Gives the place up, also one that it was evicted from.
    pub fn leave<M: Memory>(self, memory: &M) -> Result<(), M::Error> {
        // The producer may be assigning it just now: its atomic comes before this, and then it sees this, or behind it
        // and fails.
        memory.store(self.shape.place(self.place), FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use std::cell::{Cell, RefCell};
    use std::collections::{BTreeMap, VecDeque};
    use std::convert::Infallible;

    /// Within what stores stay in order on their way to a copy.
    #[derive(Clone, Copy, PartialEq)]
    enum Order {
        /// A slot, and all words before the slots: no more than what is promised.
        Slots(Shape),
        /// One word: less than that.
        Words,
    }

    /// Node 0 is the home. Copies lag behind as they like.
    struct World {
        order: Order,
        state: RefCell<State>,
        random: Cell<u64>,
    }

    #[derive(Default)]
    struct State {
        nodes: Vec<Vec<u64>>,
        to_home: Vec<VecDeque<(u32, u64)>>,
        /// By the page, or whatever is in order.
        to_copy: Vec<BTreeMap<u32, VecDeque<Reflected>>>,
        /// Pending writes of each node.
        pending: Vec<BTreeMap<u32, u32>>,
    }

    /// Word, value, writer.
    type Reflected = (u32, u64, usize);

    struct View<'a>(&'a World, usize);

    impl World {
        fn new(shape: Shape, nodes: usize, order: Order, seed: u64) -> World {
            let state = State {
                nodes: vec![vec![0; shape.bytes() as usize / 8]; nodes],
                to_home: vec![VecDeque::new(); nodes],
                to_copy: vec![BTreeMap::new(); nodes],
                pending: vec![BTreeMap::new(); nodes],
            };
            World { order, state: RefCell::new(state), random: Cell::new(seed) }
        }

        /// Between any two accesses something may arrive.
        fn meanwhile(&self, node: usize) {
            let random =
                self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.random.set(random);
            let nodes = self.state.borrow().nodes.len() as u64;
            let other = (random >> 40 & 0xff) % nodes;
            match (random >> 60, node) {
                (0..4, 0) => drop(self.to_home(other as usize)),
                (0..4, _) => drop(self.to_copy(node, (random >> 48 & 0xff) as usize)),
                _ => {}
            }
        }

        fn multicast(&self, word: u32, value: u64, writer: usize) {
            let page = match self.order {
                Order::Words => word,
                Order::Slots(shape) => word.checked_sub(shape.first_slot()).map_or(0, |w| 1 + w / shape.slot_words),
            };
            for copy in self.state.borrow_mut().to_copy.iter_mut().skip(1) {
                copy.entry(page).or_default().push_back((word, value, writer));
            }
        }

        /// The home takes the next store of a node.
        fn to_home(&self, node: usize) -> bool {
            let Some((word, value)) = self.state.borrow_mut().to_home[node].pop_front() else { return false };
            self.state.borrow_mut().nodes[0][word as usize] = value;
            self.multicast(word, value, node);
            true
        }

        /// A copy takes the next store of some page.
        fn to_copy(&self, node: usize, which: usize) -> bool {
            let state = &mut *self.state.borrow_mut();
            let pages: Vec<u32> = state.to_copy[node].iter().filter(|(_, q)| !q.is_empty()).map(|(p, _)| *p).collect();
            if pages.is_empty() {
                return false;
            }
            let queue = state.to_copy[node].get_mut(&pages[which % pages.len()]).unwrap();
            let (word, value, writer) = queue.pop_front().unwrap();
            let pending = state.pending[node].entry(word).or_default();
            if writer == node {
                *pending -= 1;
            } else if *pending == 0 {
                state.nodes[node][word as usize] = value;
            }
            true
        }

        fn settle(&self, node: usize) {
            while self.to_home(node) {}
            let nodes = self.state.borrow().nodes.len();
            for copy in 1..nodes {
                while self.to_copy(copy, 0) {}
            }
        }
    }

    impl Memory for View<'_> {
        type Error = Infallible;

        fn load(&self, word: u32) -> Result<u64, Infallible> {
            self.0.meanwhile(self.1);
            Ok(self.0.state.borrow().nodes[self.1][word as usize])
        }

        fn store(&self, word: u32, value: u64) -> Result<(), Infallible> {
            let node = self.1;
            self.0.meanwhile(node);
            self.0.state.borrow_mut().nodes[node][word as usize] = value;
            if node == 0 {
                self.0.multicast(word, value, 0);
            } else {
                let mut state = self.0.state.borrow_mut();
                *state.pending[node].entry(word).or_default() += 1;
                state.to_home[node].push_back((word, value));
            }
            Ok(())
        }

        fn compare_swap(&self, word: u32, expected: u64, new: u64) -> Result<u64, Infallible> {
            self.0.meanwhile(self.1);
            while self.0.to_home(self.1) {}
            let before = self.0.state.borrow().nodes[0][word as usize];
            let after = if before == expected { new } else { before };
            self.0.state.borrow_mut().nodes[0][word as usize] = after;
            self.0.multicast(word, after, 0);
            self.0.settle(self.1);
            Ok(before)
        }

        fn quiet(&self) -> Result<(), Infallible> {
            self.0.settle(self.1);
            Ok(())
        }
    }

    fn text(number: u64, shape: Shape) -> Vec<u8> {
        let length = number.wrapping_mul(0x9e37_79b9) % (u64::from(shape.message()) + 1);
        (0..length).map(|at| (number * 31 + at) as u8).collect()
    }

    /// A consumer, and the next message that it must get.
    struct Listener {
        node: usize,
        consumer: Option<Consumer>,
        expected: Option<u64>,
        evicted: bool,
        ended: bool,
    }

    impl Listener {
        fn look(&mut self, world: &World, shape: Shape) -> Result<Option<Found>, String> {
            let view = View(world, self.node);
            if self.ended {
                return Ok(None);
            }
            let Some(consumer) = &mut self.consumer else {
                if let Joined::Consumer(consumer) = Consumer::join(&view, shape.bytes()).unwrap() {
                    self.consumer = Some(consumer);
                    (self.expected, self.evicted) = (None, false);
                }
                return Ok(None);
            };
            let mut message = vec![0xee; 3];
            let found = consumer.pop(&view, &mut message).unwrap();
            let first = *self.expected.get_or_insert(match (found, consumer.next()) {
                (Found::Message, Some(next)) => next - 1,
                (_, Some(next)) => next,
                (_, None) => return Ok(Some(found)),
            });
            match found {
                Found::Message if message != text(first, shape) => {
                    return Err(format!("message {first} is {message:?}: expected {:?}", text(first, shape)));
                }
                Found::Message => self.expected = Some(first + 1),
                Found::Evicted if !self.evicted => return Err(format!("message {first}: evicted by nobody")),
                Found::Evicted => self.consumer.take().unwrap().leave(&view).unwrap(),
                Found::Ended => {
                    self.consumer.take().unwrap().leave(&view).unwrap();
                    self.ended = true;
                }
                Found::Empty => {}
            }
            Ok(Some(found))
        }
    }

    /// What happens, one step after the other, and then until everybody has everything.
    fn run(shape: Shape, order: Order, evicts: bool, seed: u64, steps: &[(u8, u8)]) -> Result<u64, String> {
        let world = World::new(shape, 4, order, seed);
        let home = View(&world, 0);
        let mut producer = Producer::create(shape, &home).unwrap();
        let listener = |node| Listener { node, consumer: None, expected: None, evicted: false, ended: false };
        // Two of them on one node, and one beside the producer.
        let mut listeners = [1, 2, 3, 3, 0].map(listener);
        for (what, which) in steps {
            let which = usize::from(*which);
            let listener = &mut listeners[which % 5];
            match what % 16 {
                0..4 => {
                    let message = text(producer.pushed(), shape);
                    producer.push(&home, &message).unwrap();
                }
                4..8 => {
                    listener.look(&world, shape)?;
                }
                8..10 => {
                    world.to_home(1 + which % 3);
                }
                10..14 => {
                    world.to_copy(1 + which % 3, which / 3);
                }
                14 => {
                    if let Some(consumer) = listener.consumer.take() {
                        consumer.leave(&View(&world, listener.node)).unwrap();
                    }
                }
                _ if evicts => {
                    let place = which as u32 % shape.consumers();
                    let evicted = producer.evict(&home, place).unwrap();
                    for listener in &mut listeners {
                        listener.evicted |= evicted && listener.consumer.as_ref().is_some_and(|c| c.place() == place);
                    }
                }
                _ => {}
            }
        }
        // Everybody who listens gets the rest, and hears of the end; nobody is stuck.
        for round in 0.. {
            producer.look(&home).unwrap();
            // All have told that they have all.
            if round > 1000 && producer.wanted().all(|(_, next)| next == producer.pushed()) {
                producer.end(&home).unwrap();
            }
            let mut idle = true;
            for listener in &mut listeners {
                // Who does not listen by now does not begin.
                listener.ended |= listener.consumer.is_none();
                idle &= listener.look(&world, shape)?.is_none();
            }
            for node in 1..4 {
                world.to_home(node);
                world.to_copy(node, 0);
            }
            if idle {
                break;
            }
            if round > 100_000 {
                return Err(format!("stuck after {} messages", producer.pushed()));
            }
        }
        for node in 0..4 {
            world.settle(node);
        }
        producer.look(&home).unwrap();
        match producer.wanted().next() {
            Some((consumer, next)) => Err(format!("place {consumer} is still taken, and wants {next}")),
            None => Ok(producer.pushed()),
        }
    }

    fn steps() -> impl Strategy<Value = Vec<(u8, u8)>> {
        proptest::collection::vec(any::<(u8, u8)>(), 0..1200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Every consumer gets every message from its joining on, once, in order, whole; the producer waits for the
        /// slowest.
        #[test]
        fn nothing_is_lost_torn_or_stuck(slots in 1u32..9, message in 1u32..60, places in 1u32..6, seed: u64, steps in steps()) {
            let shape = Shape::new(slots, message, places).unwrap();
            run(shape, Order::Slots(shape), false, seed, &steps).map_err(TestCaseError::fail)?;
        }

        /// Who is evicted loses what follows, and never takes what is not whole; the others lose nothing.
        #[test]
        fn evicted_consumers_notice_in_time(slots in 1u32..5, message in 1u32..60, places in 1u32..6, seed: u64, steps in steps()) {
            let shape = Shape::new(slots, message, places).unwrap();
            run(shape, Order::Slots(shape), true, seed, &steps).map_err(TestCaseError::fail)?;
        }

        /// Whatever the words hold, both sides survive it.
        #[test]
        fn anything_in_memory_is_survived(words in proptest::collection::vec(0u64..200, 64), big in any::<[u64; 4]>()) {
            let shape = Shape::new(4, 24, 3).unwrap();
            let world = World::new(shape, 1, Order::Slots(shape), 1);
            let home = View(&world, 0);
            let mut producer = Producer::create(shape, &home).unwrap();
            let Joined::Consumer(mut consumer) = Consumer::join(&home, shape.bytes()).unwrap() else { unreachable!() };
            producer.look(&home).unwrap();
            for (at, value) in words.iter().enumerate() {
                let word = at % (shape.bytes() as usize / 8);
                let value = if *value < 4 { big[*value as usize] } else { *value };
                world.state.borrow_mut().nodes[0][word] = value;
                let mut message = Vec::new();
                consumer.pop(&home, &mut message).unwrap();
                prop_assert!(message.len() <= shape.message() as usize);
                producer.push(&home, b"words").unwrap();
                let _ = Consumer::join(&home, shape.bytes()).unwrap();
            }
        }
    }

    /// The check above can fail: were the words of a slot not in order, messages would be torn.
    #[test]
    fn the_order_within_a_page_is_needed() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let torn = (0..300).any(|seed| {
            let steps = steps().new_tree(&mut runner).unwrap().current();
            let shape = Shape::new(2, 40, 3).unwrap();
            run(shape, Order::Words, false, seed, &steps).is_err_and(|error| error.contains("expected ["))
        });
        assert!(torn);
    }

    /// And enough happens in it.
    #[test]
    fn rings_wrap_many_times() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let shape = Shape::new(2, 40, 3).unwrap();
        let pushed = (0..50).map(|seed| {
            let steps = steps().new_tree(&mut runner).unwrap().current();
            run(shape, Order::Slots(shape), false, seed, &steps).unwrap()
        });
        assert!(pushed.max() > Some(20));
    }

    #[test]
    fn the_producer_waits_for_the_slowest() {
        let shape = Shape::new(4, 8, 2).unwrap();
        let world = World::new(shape, 1, Order::Slots(shape), 1);
        let home = View(&world, 0);
        let mut producer = Producer::create(shape, &home).unwrap();
        let join = || match Consumer::join(&home, shape.bytes()).unwrap() {
            Joined::Consumer(consumer) => consumer,
            other => panic!("{other:?}"),
        };
        let (mut fast, mut slow) = (join(), join());
        assert_eq!(Consumer::join(&home, shape.bytes()).unwrap(), Joined::Full);
        let mut message = Vec::new();
        assert_eq!(slow.pop(&home, &mut message).unwrap(), Found::Empty);
        for number in 0..4u64 {
            assert!(producer.push(&home, &number.to_le_bytes()).unwrap());
            assert_eq!(fast.pop(&home, &mut message).unwrap(), Found::Message);
            assert_eq!(message, number.to_le_bytes());
        }
        assert!(!producer.push(&home, b"full").unwrap());
        assert_eq!(producer.wanted().collect::<Vec<_>>(), [(0, 4), (1, 0)]);
        assert_eq!(slow.pop(&home, &mut message).unwrap(), Found::Message);
        assert_eq!(message, 0u64.to_le_bytes());
        assert!(producer.push(&home, b"room").unwrap());
        assert!(!producer.push(&home, b"full").unwrap());
        // One that does not come back at all.
        assert!(producer.evict(&home, 1).unwrap());
        assert!(!producer.evict(&home, 1).unwrap() && !producer.evict(&home, 9).unwrap());
        assert!(producer.push(&home, b"on").unwrap());
        assert_eq!(slow.pop(&home, &mut message).unwrap(), Found::Evicted);
        assert_eq!(Consumer::join(&home, shape.bytes()).unwrap(), Joined::Full);
        slow.leave(&home).unwrap();
        assert!(matches!(Consumer::join(&home, shape.bytes()).unwrap(), Joined::Consumer(_)));
    }

    #[test]
    fn shapes_fit_their_pages() {
        for bad in [(0, 8, 1), (65537, 8, 1), (1, 0, 1), (1, 65529, 1), (1, 8, 0), (1, 8, 256)] {
            assert_eq!(Shape::new(bad.0, bad.1, bad.2), None, "{bad:?}");
        }
        for (slots, message, consumers) in [(1, 1, 1), (64, 248, 16), (7, 65528, 255), (1000, 100, 30)] {
            let shape = Shape::new(slots, message, consumers).unwrap();
            assert!(shape.message() >= message && shape.slots() == slots && shape.consumers() == consumers);
            assert!(8 * u64::from(FIRST_PLACE + 2 * consumers) <= PAGE);
            for number in 0..u64::from(slots) {
                let (first, last) = (shape.slot(number), shape.slot(number) + shape.slot_words - 1);
                assert_eq!(8 * u64::from(first) / PAGE, 8 * u64::from(last) / PAGE, "slot {number} of {shape:?}");
                assert!(first >= FIRST_PLACE + 2 * consumers && 8 * u64::from(last) < shape.bytes());
            }
            assert_eq!(shape.slot(slots.into()), shape.slot(0));
        }
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let shape = Shape::new(4, 8, 2).unwrap();
        let world = World::new(shape, 1, Order::Slots(shape), 1);
        let home = View(&world, 0);
        let join = |bytes| Consumer::join(&home, bytes).unwrap();
        assert_eq!(join(shape.bytes()), Joined::Unready);
        Producer::create(shape, &home).unwrap();
        assert_eq!(join(shape.bytes() - 1), Joined::Unsound);
        for (word, value) in
            [(SHAPE, 0), (SHAPE, 4 << 32 | 3), (SHAPE, u64::MAX), (PLACES, 0), (PLACES, 1 << 40), (0, 7)]
        {
            let before = home.load(word).unwrap();
            home.store(word, value).unwrap();
            assert_eq!(join(u64::MAX), Joined::Unsound, "word {word} is {value:#x}");
            home.store(word, before).unwrap();
        }
    }
}
