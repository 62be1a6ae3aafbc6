// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the ring on a model of replicated memory.

use super::shape::{FIRST_PLACE, PLACES, SHAPE};
use super::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

/// The unit within which stores stay in order on their way to a copy.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// A slot, and all words before the slots: no more than is promised.
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
    /// By the page, or the unit that is in order.
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
        let random = self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
            Found::Evicted if !self.evicted => return Err(format!("message {first}: evicted without a cause")),
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

/// Performs the steps, and then lets every consumer take every message.
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
    // Every consumer that remains gets the rest, and the end; none is stuck.
    for round in 0.. {
        producer.look(&home).unwrap();
        // All have reported all messages.
        if round > 1000 && producer.wanted().all(|(_, next)| next == producer.pushed()) {
            producer.end(&home).unwrap();
        }
        let mut idle = true;
        for listener in &mut listeners {
            // A node without a consumer by now does not join any more.
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
        Some((consumer, next)) => Err(format!("place {consumer} is still taken, next message {next}")),
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

    /// An evicted consumer loses the following messages, and never takes a torn one; the others lose nothing.
    #[test]
    fn evicted_consumers_notice_in_time(slots in 1u32..5, message in 1u32..60, places in 1u32..6, seed: u64, steps in steps()) {
        let shape = Shape::new(slots, message, places).unwrap();
        run(shape, Order::Slots(shape), true, seed, &steps).map_err(TestCaseError::fail)?;
    }

    /// Both sides survive any content of the words.
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

/// And the runs are long enough.
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
    // A consumer that does not return at all.
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
fn other_memory_is_refused() {
    let shape = Shape::new(4, 8, 2).unwrap();
    let world = World::new(shape, 1, Order::Slots(shape), 1);
    let home = View(&world, 0);
    let join = |bytes| Consumer::join(&home, bytes).unwrap();
    assert_eq!(join(shape.bytes()), Joined::Unready);
    Producer::create(shape, &home).unwrap();
    assert_eq!(join(shape.bytes() - 1), Joined::Unsound);
    for (word, value) in [(SHAPE, 0), (SHAPE, 4 << 32 | 3), (SHAPE, u64::MAX), (PLACES, 0), (PLACES, 1 << 40), (0, 7)] {
        let before = home.load(word).unwrap();
        home.store(word, value).unwrap();
        assert_eq!(join(u64::MAX), Joined::Unsound, "word {word} is {value:#x}");
        home.store(word, before).unwrap();
    }
}
