// SPDX-License-Identifier: MIT OR Apache-2.0
use super::super::consumer::BroadcastConsumer;
use super::*;
use crate::context::Context;
use crate::{READ_WRITE, Rights};

fn node() -> Node {
    Node { context: Arc::new(Context::without_board()) }
}

#[test]
fn shapes_are_checked_before_the_driver_sees_them() {
    let create = || Broadcast::create(&node(), "news");
    for bad in [create().slots(0), create().message(0), create().message(65_529), create().consumers(256)] {
        let error = bad.create().unwrap_err().to_string();
        assert!(error.starts_with("the shape of a broadcast is ") && error.contains("expected 1 to 65536"), "{error}");
    }
    assert!(create().mode(0o602).create().unwrap_err().to_string().contains("0o602"));
    // The remaining error is the missing board.
    assert!(matches!(create().create(), Err(Error::Replicate { .. })));
}

/// A ring in memory that shows what was stored to the window as the home's board would: the copy is the window.
fn broadcast(slots: u32) -> (Arc<Context>, Broadcast) {
    let context = Arc::new(Context::without_board());
    let segment = Arc::new(Replicated::mirrored(&context, Rights(READ_WRITE.0 | Rights::ATOMIC.0)));
    let shape = Shape::new(slots, 24, 2).unwrap();
    let producer = Producer::create(shape, &*segment).unwrap();
    (context, Broadcast { segment, producer })
}

#[test]
fn messages_that_do_not_fit_are_refused() {
    let (_, mut broadcast) = broadcast(2);
    let error = broadcast.push(&[0; 25], None).unwrap_err().to_string();
    assert!(error.contains("is 25: expected at most 24 bytes"), "{error}");
    assert_eq!(broadcast.pushed(), 0);
    broadcast.push(&[1; 24], None).unwrap();
    assert_eq!(broadcast.pushed(), 1);
}

#[test]
fn a_wait_ends_at_its_limit_and_nothing_is_stored() {
    let (context, mut broadcast) = broadcast(2);
    let now = Some(Duration::ZERO);
    assert!(matches!(broadcast.wait_consumers(1, now), Err(Error::Pending { .. })));
    // A consumer with the board's answers to its atomics: it claims place 0, and is assigned message 0.
    let word = 8 * 4;
    let consumer = std::thread::scope(|scope| {
        let segment = broadcast.segment.clone();
        let consumer = scope.spawn(move || BroadcastConsumer::of(segment).unwrap());
        answer(&context, || broadcast.segment.store(word, u64::MAX).unwrap(), 0);
        consumer.join().unwrap()
    });
    std::thread::scope(|scope| {
        let broadcast = &mut broadcast;
        let segment = broadcast.segment.clone();
        let looking = scope.spawn(move || broadcast.behind().unwrap());
        answer(&context, || segment.store(word, 1u64).unwrap(), u64::MAX);
        assert_eq!(looking.join().unwrap(), [(0, 0)]);
    });
    let mut consumer = consumer;
    assert!(matches!(consumer.pop(now), Err(Error::Pending { .. })));
    for text in [b"one", b"two"] {
        broadcast.push(text, now).unwrap();
    }
    assert!(!broadcast.try_push(b"three").unwrap());
    let error = broadcast.push(b"three", now).unwrap_err();
    assert!(matches!(error, Error::Pending { .. }) && error.to_string().contains("broadcast \"x\""), "{error}");
    assert_eq!(broadcast.behind().unwrap(), [(0, 2)]);
    assert_eq!(consumer.pop(now).unwrap().as_deref(), Some(&b"one"[..]));
    broadcast.push(b"three", now).unwrap();
    assert_eq!(consumer.pop(now).unwrap().as_deref(), Some(&b"two"[..]));
    assert_eq!(consumer.pop(now).unwrap().as_deref(), Some(&b"three"[..]));
    broadcast.drain(now).unwrap();
    broadcast.producer.end(&*broadcast.segment).unwrap();
    assert!(!consumer.ended());
    assert_eq!(consumer.pop(now).unwrap(), None);
    assert!(consumer.ended());
    assert_eq!(consumer.pop(now).unwrap(), None);
    // It has left by itself.
    assert_eq!(broadcast.behind().unwrap(), []);
}

/// Answers the next atomic, as the board does: its effect, then the previous word.
fn answer(context: &Context, effect: impl FnOnce(), before: u64) {
    use telegraphos_wire::context;
    let launched = || context.slots.take_register(context::REGISTERS + context::LAUNCH);
    while launched() == 0 {
        std::thread::yield_now();
    }
    effect();
    context.slots.give_answer(0, crate::Status::Ok, before);
}
