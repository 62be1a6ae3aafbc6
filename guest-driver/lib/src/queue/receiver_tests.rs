// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a queue's consumers, over buffers in ordinary memory.

use super::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use telegraphos_wire::queue::{BUSY, CONTROL_SIZE, HeaderWord, OWNER_SHIFT};

const WORDS: u32 = 16;
const QUOTA: u32 = 2;

/// Memory of a queue, and what a board does to it but for overflows: it waits.
struct Board {
    memory: OwnedFd,
    queue: Queue,
}

impl Board {
    fn new(width: u32) -> Board {
        let memory = memfd_create("queue", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, answer(width, 0).length).unwrap();
        let board = Board { queue: attach(&memory, Arc::new(Context::without_board()), width, 0), memory };
        let empty = board.queue.shape.empty().encode().into();
        board.queue.store(0, empty);
        board.queue.store(1, empty);
        board
    }

    /// Another process's view, or another context's.
    fn consumer(&self, context: &Arc<Context>, owner: u32) -> Queue {
        attach(&self.memory, context.clone(), self.queue.shape.width().into(), owner)
    }

    fn header(&self, word: u32) -> HeaderWord {
        self.queue.shape.header(self.queue.load(word)).unwrap()
    }

    fn is_empty(&self) -> bool {
        self.header(0) == self.header(1)
    }

    fn try_commit(&self, value: u64) -> bool {
        let tail = self.header(0);
        let fits = tail.advanced() != self.header(1);
        if fits {
            self.queue.store(tail.index.into(), value);
            self.queue.store(0, tail.advanced().encode().into());
        }
        fits
    }

    fn commit(&self, value: u64) {
        while !self.try_commit(value) {
            std::thread::yield_now();
        }
    }
}

fn answer(width: u32, owner: u32) -> uapi::Queue {
    let bytes = u64::from((1 + QUOTA) * WORDS * width);
    let arena = 2 * CONTROL_SIZE;
    uapi::Queue {
        words: WORDS,
        width,
        quota: QUOTA,
        page: 5,
        owner,
        arena,
        length: arena + bytes,
        ..uapi::Queue::default()
    }
}

fn attach(memory: &OwnedFd, context: Arc<Context>, width: u32, owner: u32) -> Queue {
    let answer = answer(width, owner);
    let shape = shape_of(&answer).unwrap();
    let mapping = Mapping::new(memory.as_fd(), 0, answer.length as usize, READ_WRITE).unwrap();
    Queue::of(Handle::new(context, 1, Object::Queue.of("x", 0), None), mapping, "x".into(), shape, &answer)
}

/// Threads of several processes take what one board appends: each element once, and each consumer sees them in order.
#[test]
fn i9_i10_consumers_share_a_queue() {
    const ELEMENTS: u64 = 20_000;
    for width in [4, 8] {
        let board = Board::new(width);
        let context = Arc::new(Context::without_board());
        let processes = [1, 2].map(|owner| board.consumer(&context, owner));
        let ended = AtomicBool::new(false);
        let mut got = std::thread::scope(|scope| {
            let consumers: Vec<_> = (0..4)
                .map(|number| {
                    let (queue, ended) = (&processes[number % 2], &ended);
                    scope.spawn(move || {
                        let mut got = vec![];
                        let mut batch = [0; 5];
                        loop {
                            let last = ended.load(Ordering::Acquire);
                            let count = match number / 2 {
                                0 => queue.pop_batch(&mut batch).unwrap(),
                                _ => queue.try_pop().unwrap().map_or(0, |value| {
                                    batch[0] = value;
                                    1
                                }),
                            };
                            got.extend_from_slice(&batch[..count]);
                            if count == 0 && last {
                                return got;
                            }
                            std::thread::yield_now();
                        }
                    })
                })
                .collect();
            (1..=ELEMENTS).for_each(|value| board.commit(value));
            ended.store(true, Ordering::Release);
            let got: Vec<_> = consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect();
            assert!(got.iter().all(|values| values.is_sorted()));
            got.concat()
        });
        got.sort_unstable();
        assert!(got.into_iter().eq(1..=ELEMENTS), "{width} bytes");
        let state = board.queue.flags().load(Ordering::Relaxed);
        assert!([1, 2].contains(&(state >> OWNER_SHIFT)) && state as u32 == 0, "{state:#x}");
    }
}

/// A poll of an empty queue changes nothing in memory, unless another process was inside last.
#[test]
fn an_empty_queue_is_looked_at_from_outside() {
    let board = Board::new(4);
    let context = Arc::new(Context::without_board());
    let (one, other) = (board.consumer(&context, 1), board.consumer(&context, 2));
    let last = || board.queue.flags().load(Ordering::Relaxed);
    assert_eq!(one.look(), None, "no process has been inside yet");
    assert_eq!(one.try_pop().unwrap(), None);
    assert_eq!(last(), 1 << OWNER_SHIFT);
    let seen = board.header(0).encode();
    assert_eq!((one.look(), other.look()), (Some(seen), None));
    // It is not even entered: a pass would store the number again, and wait for the lock.
    let held = one.exclusive.lock().unwrap();
    assert_eq!(one.try_pop().unwrap(), None);
    drop(held);
    board.commit(7);
    assert_eq!(one.look(), None);
    assert_eq!(other.try_pop().unwrap(), Some(7));
    assert_eq!((one.look(), other.look()), (None, Some(board.header(0).encode())));
    for flag in [BUSY, FULL, HELD, DEAD] {
        board.queue.flags().store(2 << OWNER_SHIFT | flag, Ordering::Release);
        assert_eq!(other.look(), None, "{flag:#x}");
    }
    board.queue.flags().store(2 << OWNER_SHIFT, Ordering::Release);
    assert!(other.look().is_some());
    // A linked buffer, and words that are not sound: for a pass to deal with.
    board.queue.store(2, 16);
    assert_eq!(other.look(), None);
    board.queue.store(2, 0);
    board.queue.store(0, 3);
    board.queue.store(1, 3);
    assert_eq!(other.look(), None);
    assert!(matches!(other.try_pop(), Err(Error::Broken { .. })));
}

/// Consumers that sleep, and a board that signals only when it must: no consumer sleeps on an element. Polls without an
/// event come once an hour here.
#[test]
fn no_wake_up_is_lost() {
    const ELEMENTS: u64 = 3000;
    const PATIENCE: Duration = Duration::from_secs(60);
    let board = Board::new(8);
    let context = Arc::new(Context::without_board());
    context.completions.without_board();
    let queue = board.consumer(&context, 1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut got = vec![];
                    loop {
                        let begun = Instant::now();
                        let value = queue.pop_wait(Some(PATIENCE)).unwrap();
                        // Its last pass, at the limit, finds an element without an event.
                        let slept = begun.elapsed() >= PATIENCE;
                        let Some(value) = value.filter(|_| !slept) else { panic!("asleep, after {got:?}") };
                        if value > ELEMENTS {
                            return got;
                        }
                        got.push(value);
                    }
                })
            })
            .collect();
        let arms = scope.spawn(|| {
            let (mut armed, mut arms) = (0u16, 0);
            let mut sent = 0;
            while !ended.load(Ordering::Acquire) {
                // In gusts, each after the one before is taken: an element on which everybody sleeps stays. One end
                // each.
                let next = sent % 3 != 0 || board.is_empty();
                if next && sent < ELEMENTS + 3 && board.try_commit(sent + 1) {
                    sent += 1;
                    if let Some(left) = armed.checked_sub(1) {
                        armed = left;
                        context.completions.signal(&context.device).unwrap();
                    }
                    continue;
                }
                // Delayed: an arm is a posted store, and elements come between the look before it and its arrival.
                let word = context.slots.take_register(QUEUE_ARM);
                if word == 0 {
                    std::thread::yield_now();
                    continue;
                }
                arms += 1;
                let QueueArm { count, page, seen } = QueueArm::decode(word);
                assert_eq!(page, 5);
                let finds_nothing = seen == board.header(0).encode() && board.is_empty();
                armed = armed.max(if finds_nothing { count } else { count - 1 });
                if !finds_nothing {
                    context.completions.signal(&context.device).unwrap();
                }
            }
            arms
        });
        let results: Vec<_> = consumers.into_iter().map(|consumer| consumer.join()).collect();
        ended.store(true, Ordering::Release);
        let mut got: Vec<_> = results.into_iter().flat_map(|result| result.unwrap()).collect();
        got.sort_unstable();
        assert!(got.into_iter().eq(1..=ELEMENTS));
        println!("{} arms", arms.join().unwrap());
    });
}

/// A consumer that sleeps after each element arms seldom; but at once when another process has been inside.
#[test]
fn who_sleeps_after_each_element_arms_seldom() {
    let board = Board::new(8);
    let context = Arc::new(Context::without_board());
    context.completions.without_board();
    let (queue, other) = (board.consumer(&context, 1), board.consumer(&context, 2));
    let short = Some(Duration::from_millis(1));
    let arm = || {
        assert_eq!(queue.pop_wait(short).unwrap(), None);
        let word = context.slots.take_register(QUEUE_ARM);
        (word != 0).then(|| QueueArm::decode(word).count)
    };
    let mut counts = Vec::new();
    for value in 1..40 {
        counts.extend(arm());
        board.commit(value);
        assert_eq!(queue.try_pop().unwrap(), Some(value));
    }
    assert_eq!(counts, [1, 2, 4, 8, 16, 16]);
    assert_eq!(arm(), None);
    board.commit(40);
    assert_eq!(other.try_pop().unwrap(), Some(40));
    assert!(arm().is_some());
}

#[test]
fn patience_ends_while_nothing_comes_or_another_is_inside() {
    let board = Board::new(4);
    let context = Arc::new(Context::without_board());
    context.completions.without_board();
    let queue = board.consumer(&context, 1);
    let short = Some(Duration::from_millis(2));
    assert_eq!(queue.pop_wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(context.slots.take_register(QUEUE_ARM), 0, "a single pass needs no arm");
    assert_eq!(queue.pop_wait(short).unwrap(), None);
    let seen = u64::from(board.header(0).encode());
    assert_eq!(context.slots.take_register(QUEUE_ARM), 5 << 32 | seen);
    board.commit(7);
    queue.arm().unwrap();
    assert_eq!(context.slots.take_register(QUEUE_ARM), 5 << 32 | seen, "what the last pass that found nothing saw");
    queue.flags().store(BUSY | 9 << OWNER_SHIFT, Ordering::Release);
    assert_eq!(queue.pop_wait(short).unwrap(), None);
    queue.flags().store(0, Ordering::Release);
    assert_eq!(queue.pop_wait(short).unwrap(), Some(7));
}

#[test]
fn an_element_whose_handling_panics_is_not_taken() {
    let board = Board::new(4);
    let context = Arc::new(Context::without_board());
    let queue = board.consumer(&context, 1);
    board.commit(1);
    board.commit(2);
    std::panic::set_hook(Box::new(|_| ()));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.try_pop_with(|_| panic!("a bug"))));
    let _ = std::panic::take_hook();
    assert!(panic.is_err());
    assert_eq!(queue.flags().load(Ordering::Relaxed), 1 << OWNER_SHIFT);
    assert_eq!(queue.try_pop_with(|value| value * 10).unwrap(), Some(10));
    let mut batch = [0; 4];
    assert_eq!(queue.pop_batch(&mut []).unwrap(), 0);
    assert_eq!(queue.pop_batch(&mut batch).unwrap(), 1);
    assert_eq!(batch[0], 2);
    assert_eq!(queue.pop_batch(&mut batch).unwrap(), 0);
}

#[test]
fn scribbled_buffers_are_errors_after_what_was_sound() {
    let board = Board::new(4);
    let context = Arc::new(Context::without_board());
    let queue = board.consumer(&context, 1);
    board.commit(1);
    board.queue.store(2, 7);
    let error = queue.try_pop().unwrap_err();
    assert!(error.to_string().contains("queue \"x\" of node 0: word 2 (next of buffer 0) is 0x7"), "{error}");
    assert!(matches!(error, Error::Broken { .. }) && error.status().is_none());
    board.queue.store(2, 0);
    board.queue.store(1, 2);
    let error = queue.pop_wait(None).unwrap_err();
    assert_eq!(error.status(), Some(Status::QueueHeader));
    assert_eq!(queue.flags().load(Ordering::Relaxed), 1 << OWNER_SHIFT);
    // A sound linked buffer in front of a broken one.
    let header = |index: u64| u64::from(WORDS) << 16 | index;
    for (word, value) in [(2, 16), (16, header(4)), (17, header(3)), (18, 0), (19, 42)] {
        board.queue.store(word, value);
    }
    let mut batch = [0; 4];
    assert_eq!(queue.pop_batch(&mut batch).unwrap(), 1);
    assert_eq!(batch[0], 42);
    assert!(queue.pop_batch(&mut batch).is_err());
}

#[test]
fn builders_ask_for_what_was_said() {
    let node = Node { context: Arc::new(Context::without_board()) };
    let new = || Queue::create(&node, "q");
    let request = new().request().unwrap();
    assert_eq!((request.words, request.width, request.quota, request.limit), (1 << 14, 4, 16, 8));
    assert_eq!((request.rights_owner, request.rights_others), (Rights::ENQUEUE.0, 0));
    assert_eq!(request.nodes, [u64::MAX; 4]);
    let request = new().wide().quota(5).mode(0o602).nodes(&[3, 64]).request().unwrap();
    assert_eq!((request.words, request.width, request.quota, request.limit), (1 << 13, 8, 5, 3));
    assert_eq!((request.rights_owner, request.rights_others), (Rights::ENQUEUE.0, Rights::ENQUEUE.0));
    assert_eq!(request.nodes, [8, 1, 0, 0]);
    assert_eq!(new().limit(0).mode(0o400).request().unwrap().rights_owner, 0);
    for (bad, text) in [
        (new().words(12), "12: expected a power of two from 8 to 16384"),
        (new().words(1 << 14).wide(), "16384: expected a power of two from 8 to 8192"),
        (new().quota(0), "0: expected 1 to 1024"),
        (new().quota(1025), "1025: expected 1 to 1024"),
        (new().quota(3).limit(4), "4: expected at most 3"),
        (new().mode(0o620), "0o620: expected"),
        (new().nodes(&[256]), "256: expected"),
    ] {
        let error = bad.request().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let refused = new().create().unwrap_err().to_string();
    assert!(refused.starts_with("queue \"q\" of 1 + 16 buffers of 16384 words is not made: "), "{refused}");
}

#[test]
fn what_the_driver_says_is_checked() {
    let good = answer(8, 1);
    assert!(shape_of(&good).is_some());
    for bad in [
        uapi::Queue { words: 12, ..good },
        uapi::Queue { width: 2, ..good },
        uapi::Queue { quota: 1025, ..good },
        uapi::Queue { quota: QUOTA + 1, ..good },
        uapi::Queue { length: good.length - 1, ..good },
        uapi::Queue { arena: 8, ..good },
        uapi::Queue { arena: good.arena - 4, ..good },
        uapi::Queue { arena: u64::MAX - 7, ..good },
    ] {
        assert_eq!(shape_of(&bad), None, "{bad:?}");
    }
}
