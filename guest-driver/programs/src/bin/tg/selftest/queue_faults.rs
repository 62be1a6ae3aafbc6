// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues: what must not work, and which processes it affects (SPEC item 13, E13, E14, I11).

use super::context::{self, Context, LONG, MILLISECOND, SOON, Stop, Verdict, joined, must, refused, same, two_users};
use super::control::{LAUNCH, QUEUE_POP, by_handle, ioctl, needs_lab};
use super::life::leave_nothing;
use super::limits::under_limits;
use super::protection::try_mmap;
use super::queues::{WIDTHS, blocks, not_quiet, queue_becomes, send_range, take_range};
use super::trouble::REFUSED;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mprotect};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use telegraphos::{Error, Node, Queue, RemoteQueue, State, Status};
use telegraphos_guest_tests::child::{Child, End};
use telegraphos_guest_tests::interface::call;
use telegraphos_guest_tests::mapping::{Mapping, READ_WRITE};
use telegraphos_guest_tests::patience::admitted;
use telegraphos_guest_tests::queue::{Memory, element, import_patiently, shaped};
use telegraphos_guest_tests::raw;
use telegraphos_wire::uapi;

const PAGE: usize = 4096;

/// Waits until the state of an import is as wanted.
fn becomes(queue: &RemoteQueue, what: &str, wanted: impl Fn(&State) -> bool) -> Verdict<State> {
    context::becomes(
        SOON,
        MILLISECOND,
        || Ok(queue.state()?),
        wanted,
        |state| format!("the import of {:?} stays {state:?}: expected {what}", queue.name()),
    )
}

/// Why an import is not quiet.
fn failure(queue: &RemoteQueue) -> Option<Status> {
    queue.quiet_timeout(SOON).err().and_then(|error| error.status())
}

/// Nothing but whole words at the base: anything else is refused, cuts the import, and does nothing (SPEC E14).
pub(crate) fn only_the_base(context: &mut Context<'_>) -> Verdict {
    use Status::{Bounds, NotQueue};
    // Offset, bytes, error; a buffer has 8 words, and a linked one lies behind it in memory.
    let narrow = [(0, 8, NotQueue), (0, 1, NotQueue), (0, 2, NotQueue), (4, 4, NotQueue), (28, 4, NotQueue)];
    let narrow_beyond = [(32, 4, Bounds), (32 + 12, 4, Bounds), (4092, 4, Bounds)];
    let wide = [(0, 4, NotQueue), (0, 1, NotQueue), (4, 4, NotQueue), (8, 8, NotQueue), (56, 8, NotQueue)];
    let wide_beyond = [(64, 8, Bounds), (64 + 24, 8, Bounds), (4088, 8, Bounds)];
    let cases = [narrow.iter().chain(&narrow_beyond), wide.iter().chain(&wide_beyond)];
    for ((width, part), cases) in WIDTHS.into_iter().zip(cases) {
        let (mine, right) = context.queue_pair(part, |q| shaped(q, 8, width))?;
        // One linked buffer.
        send_range(&right, 1, 0, 6)?;
        right.quiet_timeout(SOON)?;
        let mut number = 6;
        for (offset, size, status) in cases {
            // SAFETY: the word lies in the mapped page.
            unsafe { raw::store_size(right.as_ptr(), *offset, *size, 0xdead) };
            let what = format!("a store of {size} bytes at {offset} of a queue of {width}-byte words");
            same(&what, failure(&right), Some(*status))?;
            becomes(&right, "cut with that error", |state| state.cut && state.error == Some(*status))?;
            // Behind a lost one nothing is sent.
            send_range(&right, 1, 999, 1000)?;
            right.acknowledge()?;
            send_range(&right, 1, number, number + 1)?;
            right.quiet_timeout(SOON)?;
            number += 1;
        }
        context.sync()?;
        take_range(&mine, 1, 0, number)?;
        same("one element more", mine.try_pop()?, None)?;
        same("whether the queue is dead", mine.state()?.dead, None)?;
        context.sync()?;
    }
    // Far behind the base, where the library maps nothing.
    let (mine, right) = context.queue_pair("large", |q| q)?;
    let offset = uapi::mmap_offset(uapi::MMAP_ENQUEUE, right.handle());
    let whole = Mapping::of(context.node(), offset, 1 << 16, ProtFlags::WRITE)
        .map_err(|e| format!("mmap of a whole enqueue aperture: {e}"))?;
    // SAFETY: its last word.
    unsafe { raw::store::<u32>(whole.at(), 65532, 1) };
    drop(whole);
    same("a store to the buffer's last word", failure(&right), Some(Status::NotQueue))?;
    right.acknowledge()?;
    send_range(&right, 1, 0, 1)?;
    context.sync_behind(&right)?;
    take_range(&mine, 1, 0, 1)?;
    context.sync()
}

/// Enqueue only: neither kind of mapping, nor any operation, leads past it.
pub(crate) fn mappings(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let (segment, far) = context.neighbour(4096)?;
    let (mine, right) = context.queue_pair("box", |q| q.words(1 << 11))?;
    let node = context.node();
    let at = |kind, handle, more: u64, length, protection| {
        let offset = uapi::mmap_offset(kind, handle) + more;
        try_mmap(node, offset, length, protection, MapFlags::SHARED)
    };
    let (queue, plain) = (right.handle(), far.handle());
    let (denied, invalid) = (Err(Errno::ACCESS), Err(Errno::INVAL));
    for protection in [ProtFlags::READ, ProtFlags::WRITE, READ_WRITE, ProtFlags::empty()] {
        let what = |what| format!("{what} for {protection:?}");
        same(what("a plain mapping of a queue"), at(uapi::MMAP_IMPORT, queue, 0, PAGE, protection), denied)?;
        same(what("an argument mapping of a queue"), at(uapi::MMAP_ARGUMENT, queue, 0, PAGE, protection), denied)?;
        same(what("an enqueue mapping of memory"), at(uapi::MMAP_ENQUEUE, plain, 0, PAGE, protection), denied)?;
    }
    for protection in [ProtFlags::READ, READ_WRITE, ProtFlags::WRITE | ProtFlags::EXEC, ProtFlags::empty()] {
        let what = format!("an enqueue mapping for {protection:?}");
        same(what, at(uapi::MMAP_ENQUEUE, queue, 0, PAGE, protection), denied)?;
    }
    same("an enqueue mapping", at(uapi::MMAP_ENQUEUE, queue, 0, 2 * PAGE, ProtFlags::WRITE), Ok(()))?;
    same("a page beyond it", at(uapi::MMAP_ENQUEUE, queue, 0, 3 * PAGE, ProtFlags::WRITE), invalid)?;
    same("behind it", at(uapi::MMAP_ENQUEUE, queue, 2 * PAGE as u64, PAGE, ProtFlags::WRITE), invalid)?;
    // SAFETY: only this import's own mapping changes, and no reference into it exists.
    let raised = unsafe { mprotect(right.as_ptr().cast(), PAGE, MprotectFlags::READ | MprotectFlags::WRITE) };
    same("mprotect of an enqueue mapping to readable", raised, denied)?;

    // The owner's mapping: the control page, and 17 buffers of 8 KiB.
    let whole = PAGE + 17 * 2 * PAGE;
    let own = mine.handle();
    same("a mapping of an own queue", at(uapi::MMAP_QUEUE, own, 0, whole, READ_WRITE), Ok(()))?;
    same("a page beyond it", at(uapi::MMAP_QUEUE, own, 0, whole + PAGE, READ_WRITE), invalid)?;
    same("of it as code", at(uapi::MMAP_QUEUE, own, 0, PAGE, READ_WRITE | ProtFlags::EXEC), denied)?;
    let private = try_mmap(node, uapi::mmap_offset(uapi::MMAP_QUEUE, own), PAGE, READ_WRITE, MapFlags::PRIVATE);
    same("a private one", private, invalid)?;
    let other = Node::open_path(node.path())?;
    for (kind, handle) in [(uapi::MMAP_QUEUE, own), (uapi::MMAP_ENQUEUE, queue)] {
        let offset = uapi::mmap_offset(kind, handle);
        let foreign = try_mmap(&other, offset, PAGE, ProtFlags::WRITE, MapFlags::SHARED);
        same("a mapping of another file's queue", foreign, invalid)?;
    }
    same("attaching to another file's queue", Queue::attach(&other, own).err().map(|e| e.errno()), Some(libc::EINVAL))?;

    // Loads reach nothing: the processor refuses them, or the board.
    let mut child = context.child_saying("ready", &["queue-load", &right.node().to_string(), &context.name("box")])?;
    child.go()?;
    match child.line()? {
        Some(line) => same("a load from an enqueue aperture", line.as_str(), "loaded 0xffffffff")?,
        None => child.must_end(End::SEGV)?,
    }

    // Nor do atomics and copies that name it.
    let local = segment.remote()?.handle();
    let wide = 256;
    for (what, operation, target, source) in [
        ("a fetch-and-add", 1 | wide, queue, 0),
        ("a copy to it", 4, queue, local),
        ("a copy from it", 4, local, queue),
    ] {
        let mut launch = uapi::Launch { operation, target, source, length: 8, ..Default::default() };
        let result = ioctl(node, LAUNCH, &mut launch);
        must(result.is_err(), || format!("{what} of a queue was launched"))?;
    }
    // Not even by name, and a queue is nothing but a queue.
    for rights in [telegraphos::READ_WRITE, telegraphos::Rights::READ, telegraphos::FULL] {
        let import = node.import(right.node(), right.name()).rights(rights).open();
        refused("an import of a queue as memory", import, libc::EACCES)?;
    }
    let segment_as_queue = Queue::import(node, far.node(), far.name()).open();
    must(segment_as_queue.is_err(), || "memory was imported as a queue".into())?;

    send_range(&right, 1, 0, 1)?;
    right.quiet_timeout(SOON)?;
    far.put64(0, 1)?;
    context.sync_behind(&far)?;
    take_range(&mine, 1, 0, 1)?;
    context.sync()
}

pub(crate) fn who_may(context: &mut Context<'_>) -> Verdict {
    let (node, right) = (context.node(), context.peers.right());
    let secret = *b"sixteen bytes of";
    let names = ["closed", "secret", "for-left", "for-none"].map(|part| context.name(part));
    let create = |name: &str| Queue::create(node, name).words(8).mode(0o602);
    let closed = create(&names[0]).mode(0o400).create()?;
    let secretive = create(&names[1]).secret(secret).create()?;
    let for_left = create(&names[2]).nodes(&[context.peers.left()]).create()?;
    let for_none = create(&names[3]).nodes(&[]).create()?;
    for queue in [closed, secretive, for_left, for_none] {
        context.keep(queue);
    }
    context.sync()?;
    let import = |index: usize| Queue::import(node, right, &names[index]);
    refused("an import without the right to append", import(0).open(), libc::EACCES)?;
    refused("an import without the secret", import(1).open(), libc::EACCES)?;
    refused("an import with a wrong secret", import(1).secret(*b"sixteen bytes 0f").open(), libc::EACCES)?;
    let one = import(1).secret(secret).open()?;
    let two = import(2).open()?;
    refused("an import by a node not listed", import(3).open(), libc::ENOENT)?;
    if context.peers.all.len() > 2 {
        let unlisted = Queue::import(node, context.peers.ring(2), &names[2]).open();
        refused("an import by another node than the listed one", unlisted, libc::ENOENT)?;
    }
    refused("an import of a missing name", Queue::import(node, right, "no such queue").open(), libc::ENOENT)?;
    refused("a name taken twice", Queue::create(node, &names[0]).create(), libc::EEXIST)?;
    refused("a segment of a queue's name", node.export(&names[0], 4096).create(), libc::EEXIST)?;
    for queue in [&one, &two] {
        send_range(queue, 1, 0, 1)?;
        queue.quiet_timeout(SOON)?;
    }
    context.sync()
}

pub(crate) fn other_users(context: &mut Context<'_>) -> Verdict {
    let (one, two) = two_users()?;
    let (private, open) = (context.name("private"), context.name("open"));
    let mut owners = Vec::new();
    for (name, mode) in [(&private, "600"), (&open, "602")] {
        let mut child = context.child_of(one, &["queue-owner", name, mode, "1"])?;
        child.expect("made")?;
        owners.push(child);
    }
    context.sync()?;
    let right = context.peers.right().to_string();
    let attempt =
        |ids, name: &str| -> Verdict<End> { Ok(context.child_of(ids, &["queue-import", &right, name])?.end()?) };
    same("0600 for its owner", attempt(one, &private)?, End::WELL)?;
    same("0600 for another", attempt(two, &private)?, End::Code(REFUSED))?;
    same("0602 for another", attempt(two, &open)?, End::WELL)?;
    context.sync()
}

/// A receiver that scribbles its own header harms itself alone (SPEC I11).
pub(crate) fn corrupt_header(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    // Word, what is written there, and the queue's word width; buffers have 8 words.
    const CASES: [(u64, u64, u32); 11] = [
        (0, 12 << 16 | 3, 4),
        (0, 16 << 16 | 3, 8),
        (0, 0, 4),
        (0, 8 << 16 | 2, 8),
        (0, 8 << 16 | 8, 4),
        (0, u64::MAX, 8),
        (0, 1 << 32 | 8 << 16 | 3, 8),
        (1, 8 << 16 | 2, 4),
        (1, 8 << 16 | 8, 8),
        (1, 4 << 16 | 3, 4),
        (1, 1 << 40 | 8 << 16 | 3, 8),
    ];
    let (good, right_good) = context.queue_pair("good", |q| q.words(8))?;
    let mut sides = Vec::new();
    for (index, (word, value, width)) in CASES.into_iter().enumerate() {
        let (mine, right) = context.queue_pair(&index.to_string(), |q| shaped(q, 8, width))?;
        let memory = Memory::of(context.node(), &mine)?;
        sides.push((format!("{value:#x} in word {word} of {width} bytes"), mine, right, memory, word, value));
    }
    for (_, _, right, ..) in &sides {
        send_range(right, 1, 0, 1)?;
        right.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for (_, mine, _, memory, word, value) in &sides {
        take_range(mine, 1, 0, 1)?;
        memory.set(*word, *value);
    }
    context.sync()?;
    for (what, _, right, ..) in &sides {
        // Several are on their way when the first is found out.
        send_range(right, 1, 1, 2)?;
        same(format_args!("its sender's status after {what}"), failure(right), Some(Status::QueueHeader))?;
        becomes(right, "dead with QueueHeader", |state| state.dead && state.error == Some(Status::QueueHeader))?;
        let anew = Queue::import(context.node(), right.node(), right.name()).open().err().and_then(|e| e.status());
        same(format_args!("importing it anew with {what}"), anew, Some(Status::QueueHeader))?;
        send_range(&right_good, 1, 0, 1)?;
    }
    context.sync_behind(&right_good)?;
    for (what, mine, ..) in &sides {
        let state = queue_becomes(mine, "dead", |state| state.dead.is_some())?;
        same(format_args!("why its owner's is dead with {what}"), state.dead, Some(Status::QueueHeader))?;
        let header = |result: Result<Option<u64>, Error>| match result {
            Err(error) => Ok(error.status()),
            Ok(found) => Err(Stop::Fail(format!("{found:?} was taken with {what}"))),
        };
        same("a consumer's status", header(mine.try_pop())?, Some(Status::QueueHeader))?;
        same("a waiting consumer's status", header(mine.pop_wait(Some(SOON)))?, Some(Status::QueueHeader))?;
        same("the status of a dequeue in the kernel", header(mine.pop_in_kernel())?, Some(Status::QueueHeader))?;
        same("the element of the good queue", good.try_pop()?, Some(element(4, 1, 0)))?;
    }
    context.sync()
}

/// The same while the queue is stopped: the driver finds it, when it is to copy.
pub(crate) fn corrupt_while_held(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.queue_pair("held", |q| q.words(8).quota(1))?;
    let (good, right_good) = context.queue_pair("good", |q| q.words(8))?;
    let memory = Memory::of(context.node(), &mine)?;
    send_range(&right, 1, 0, 60)?;
    not_quiet(&right)?;
    queue_becomes(&mine, "held", |state| state.held)?;
    memory.set(0, 8 << 16 | 1);
    context.sync()?;
    // What the linked buffer holds is sound. Emptied, it makes room, and the driver looks at the first one.
    let mut taken = 0;
    let broken = loop {
        match mine.try_pop() {
            Ok(Some(value)) => same("an element of the linked buffer", value, element(4, 1, taken))?,
            Ok(None) => return Err(format!("empty after {taken} elements").into()),
            Err(error) => break error,
        }
        taken += 1;
        must(taken < 60, || "elements come out of a broken buffer".into())?;
    };
    same("the consumer's error", broken.status(), Some(Status::QueueHeader))?;
    same("elements of the linked buffer", taken, 4)?;
    let state = queue_becomes(&mine, "dead", |state| state.dead.is_some())?;
    same("why it is dead", state.dead, Some(Status::QueueHeader))?;
    let status = failure(&right);
    let fatal = [Status::Stale, Status::NotGranted, Status::QueueHeader].map(Some);
    must(fatal.contains(&status), || format!("its sender gets {status:?}: expected one of {fatal:?}"))?;
    becomes(&right, "dead", |state| state.dead)?;
    send_range(&right_good, 1, 0, 6)?;
    take_range(&good, 1, 0, 6)?;
    context.sync()
}

/// `next` leads a consumer nowhere, and never round and round; the driver checks it.
pub(crate) fn corrupt_next(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    const WORDS: u64 = 8;
    const QUOTA: u64 = 3;
    for (width, part) in WIDTHS {
        let (mine, right) = context.queue_pair(part, |q| shaped(q, 8, width).quota(QUOTA as u32))?;
        let memory = Memory::of(context.node(), &mine)?;
        // Two linked buffers behind the first.
        send_range(&right, 1, 0, 9)?;
        context.sync_behind(&right)?;
        let newest = memory.word(2);
        let oldest = memory.word(newest + 2);
        must(newest % WORDS == 0 && oldest % WORDS == 0 && newest != oldest && oldest != 0, || {
            format!("the buffers behind the first are {newest} and {oldest}")
        })?;
        let beyond = WORDS * (QUOTA + 1);
        let most = raw::masked(u64::MAX, width as usize);
        for (what, at, next) in [
            ("itself", oldest + 2, oldest),
            ("the one before", oldest + 2, newest),
            ("the middle of a buffer", oldest + 2, oldest + 3),
            ("a buffer beyond the quota", oldest + 2, beyond),
            ("the end of the world", oldest + 2, most),
            ("its middle, from the first", 2, 5),
        ] {
            let before = memory.word(at);
            memory.set(at, next);
            for _ in 0..2 {
                match mine.try_pop() {
                    Err(Error::Broken { .. }) => {}
                    other => return Err(format!("with next at {what}, a look says {other:?}").into()),
                }
            }
            same("flags after it", memory.state().load(Ordering::SeqCst) as u32, 0)?;
            memory.set(at, before);
        }
        // The driver has its own list.
        memory.set(newest + 2, newest);
        same("an element by the kernel", mine.pop_in_kernel()?, Some(element(width, 1, 0)))?;
        memory.set(2, beyond);
        context.sync()?;
        // It writes the links anew at the next overflow: element 13.
        send_range(&right, 1, 9, 13)?;
        context.sync_behind(&right)?;
        take_range(&mine, 1, 1, 13)?;
        same("whether it is dead", mine.state()?.dead, None)?;
        context.sync()?;
    }
    Ok(())
}

/// An import of a queue that is gone: a waiter is woken, a store is SIGBUS.
fn is_dead(queue: &RemoteQueue) -> Verdict {
    let fatal = |status| matches!(status, Some(Status::Stale | Status::NotGranted));
    becomes(queue, "dead with Stale or NotGranted", |state| state.dead && fatal(state.error))?;
    let status = failure(queue);
    must(fatal(status), || format!("quiet says {status:?}: expected Stale or NotGranted"))
}

/// A queue that ends, by its owner's will or death, with elements in flight.
pub(crate) fn ends(context: &mut Context<'_>, killed: bool) -> Verdict {
    let name = context.name("ends");
    let node = context.node();
    let mut owner = context.child_saying("made", &["queue-owner", &name, "602", "1"])?;
    let right = import_patiently(node, context.peers.right(), &name, context.patience)?;
    let far = right.node().to_string();
    let mut later = context.child_saying("ready", &["queue-until-sigbus", &far, &name])?;
    // They are not taken: more than the queue holds, and its receive credits.
    send_range(&right, 1, 0, 100)?;
    not_quiet(&right)?;
    let mut blocked = context.child_saying("ready", &["queue-send-loop", &far, &name, "2"])?;
    blocks(&mut blocked)?;
    context.sync()?;
    match killed {
        true => owner.must_be_killed()?,
        false => owner.must_go_to(End::WELL)?,
    }
    is_dead(&right)?;
    blocked.must_end(End::BUS)?;
    later.must_go_to(End::BUS)?;
    context.sync()?;
    right.close()?;
    // The same name, and most likely the same pages.
    let (mine, right) = context.queue_pair("ends", |q| q.words(8))?;
    same("what is in a new queue", mine.try_pop()?, None)?;
    context.sync()?;
    send_range(&right, 3, 0, 6)?;
    take_range(&mine, 3, 0, 6)?;
    context.sync_behind(&right)?;
    same("one element more", mine.try_pop()?, None)
}

fn pop(node: &Node, mut element: uapi::QueuePop) -> call::Answer {
    ioctl(node, QUEUE_POP, &mut element)
}

/// What a program gets that speaks to the driver without the library.
pub(crate) fn nonsense(context: &mut Context<'_>) -> Verdict {
    needs_lab(context)?;
    let (node, invalid) = (context.node(), Err(libc::EINVAL));
    let enqueue = telegraphos::Rights::ENQUEUE.0;
    let good = uapi::Queue {
        name: call::name("selftest-queue-nonsense"),
        nodes: [!0; 4],
        words: 8,
        width: 4,
        quota: 1,
        limit: 1,
        rights_owner: enqueue,
        ..Default::default()
    };
    for (what, bad) in [
        ("a quota of 0", uapi::Queue { quota: 0, limit: 0, ..good }),
        ("a quota of 1025", uapi::Queue { quota: 1025, ..good }),
        ("an endless quota", uapi::Queue { quota: u32::MAX, ..good }),
        ("a limit above the quota", uapi::Queue { limit: 2, ..good }),
        ("4 words", uapi::Queue { words: 4, ..good }),
        ("12 words", uapi::Queue { words: 12, ..good }),
        ("no words", uapi::Queue { words: 0, ..good }),
        ("2^15 words", uapi::Queue { words: 1 << 15, ..good }),
        ("2^14 wide words", uapi::Queue { words: 1 << 14, width: 8, ..good }),
        ("2^31 words", uapi::Queue { words: 1 << 31, width: 8, ..good }),
        ("words of 0 bytes", uapi::Queue { width: 0, ..good }),
        ("words of 2 bytes", uapi::Queue { width: 2, ..good }),
        ("words of 16 bytes", uapi::Queue { width: 16, ..good }),
        ("the right to store", uapi::Queue { rights_others: enqueue | 2, ..good }),
        ("unknown rights", uapi::Queue { rights_owner: 0x8000, ..good }),
        ("no name", uapi::Queue { name: [0; 64], ..good }),
        ("a name without end", uapi::Queue { name: [b'x'; 64], ..good }),
        ("a name with something behind its end", uapi::Queue { name: call::name("a\0b"), ..good }),
    ] {
        same(format_args!("a queue with {what}"), ioctl(node, 12, &mut { bad }), invalid)?;
    }
    let mut import =
        uapi::Import { name: good.name, node: node.id().into(), rights: u32::from(enqueue) | 1, ..Default::default() };
    same("an import to append and to load", ioctl(node, 3, &mut import), invalid)?;
    // ATTACH, DESTROY, SERVICE, STATE and POP of handles that are not, or are another file's.
    let mine = Queue::create(node, &context.name("mine")).words(8).create()?;
    let other = Node::open_path(node.path())?;
    let bad = Err(libc::EBADF);
    for (node, handle) in [(node, u32::MAX), (node, mine.handle() + 77), (&other, mine.handle())] {
        same("attaching", ioctl(node, 13, &mut uapi::Queue { handle, ..good }), bad)?;
        same("destroying", by_handle(node, 14, handle, 0), bad)?;
        same("a call for service", by_handle(node, 15, handle, 0), bad)?;
        same("asking for the state", ioctl(node, 16, &mut uapi::QueueState { handle, ..Default::default() }), bad)?;
        same("taking an element", pop(node, uapi::QueuePop { handle, ..Default::default() }), bad)?;
    }
    let handle = mine.handle();
    same("a reserved field", pop(node, uapi::QueuePop { handle, reserved: 1, ..Default::default() }), invalid)?;
    same("a flag", by_handle(node, 14, handle, 1), invalid)?;
    same("a flag", by_handle(node, 15, handle, 1), invalid)?;
    same("a call for service without need", by_handle(node, 15, handle, 0), Ok(()))?;
    same("taking from an empty queue", mine.pop_in_kernel()?, None)?;
    mine.close()?;
    same("what is gone", ioctl(node, 16, &mut uapi::QueueState { handle, ..Default::default() }), bad)
}

/// The receiver's hold slots are reserved at the import, and come back.
pub(crate) fn hold_slots(context: &mut Context<'_>) -> Verdict {
    const MOST: usize = 1000;
    let (mine, right) = context.queue_pair("crowded", |q| q.words(8))?;
    context.sync()?;
    let (node, far, name) = (context.node(), right.node(), context.name("crowded"));
    let fill = || -> Verdict<Vec<RemoteQueue>> {
        let mut imports = Vec::new();
        loop {
            match Queue::import(node, far, &name).open() {
                Ok(import) => imports.push(import),
                Err(error) => {
                    same("why another import is refused", error.status(), Some(Status::NoHold))?;
                    same("its errno", error.errno(), libc::ENOSPC)?;
                    return Ok(imports);
                }
            }
            must(imports.len() < MOST, || format!("{MOST} imports of queues of one node"))?;
        }
    };
    let mut imports = fill()?;
    let count = imports.len();
    must(count > 0, || "not one more import is possible".into())?;
    // Those that are there work.
    for import in [&right, &imports[0], &imports[count - 1]] {
        send_range(import, 1, 0, 1)?;
        import.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for _ in 0..3 {
        take_range(&mine, 1, 0, 1)?;
    }
    // One is free again when one is closed, and all when all are.
    drop(imports.pop());
    imports.push(import_with_room(node, far, &name)?);
    drop(imports);
    drop(import_with_room(node, far, &name)?);
    context::becomes(
        SOON,
        10 * MILLISECOND,
        || Ok(fill()?.len()),
        |again| *again == count,
        |again| format!("{again} imports find room: expected {count}, as before"),
    )?;
    context.note(format!("{} imports of queues of one node", count + 1));
    context.sync()
}

/// The room that a closed import leaves comes back by a message to the queue's node.
fn import_with_room(node: &Node, far: telegraphos::NodeId, name: &str) -> Verdict<RemoteQueue> {
    Ok(admitted(SOON, &[Status::NoHold], || Queue::import(node, far, name).open())?)
}

/// However many imports of a full queue are closed with elements on their way: others are opened and closed meanwhile,
/// and the elements come.
pub(crate) fn closing_delays_no_others(context: &mut Context<'_>) -> Verdict {
    const SENDERS: u32 = 14;
    let (mine, right) = context.queue_pair("full", |q| q.words(8).quota(1))?;
    let (_segment, far) = context.neighbour(4096)?;
    send_range(&right, 1, 0, 9)?;
    not_quiet(&right)?;
    queue_becomes(&mine, "held", |state| state.held)?;
    context.sync()?;
    let mut senders = Vec::new();
    for _ in 0..SENDERS {
        senders
            .push(context.child_saying("sent", &["queue-send-one", &right.node().to_string(), &context.name("full")])?);
    }
    senders.iter_mut().try_for_each(Child::kill)?;
    std::thread::sleep(LONG);
    // Others are opened and closed, while the children's elements are not taken.
    let (node, name) = (context.node(), far.name());
    let result = std::thread::scope(|scope| -> Verdict {
        let closer = scope.spawn(|| -> Verdict {
            let import = node.import(far.node(), name).open()?;
            import.put64(0, 1)?;
            Ok(import.close()?)
        });
        let deadline = Instant::now() + SOON;
        while !closer.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let in_time = closer.is_finished();
        // Only now are elements taken.
        let synced = context.sync();
        let mut taken = 0;
        let deadline = Instant::now() + SOON;
        while taken < 9 + SENDERS && Instant::now() < deadline {
            match mine.try_pop()? {
                Some(_) => taken += 1,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        joined(closer)?;
        synced?;
        same("elements taken", taken, 9 + SENDERS)?;
        must(in_time, || {
            format!(
                "{SENDERS} imports of a full queue have been closed, and then another import is not closed within {SOON:?}"
            )
        })
    });
    senders.iter_mut().try_for_each(|child| child.must_end(End::KILLED))?;
    result?;
    context.sync_behind(&right)
}

/// The control page's word is the consumers' own: lies about it harm this queue alone.
pub(crate) fn scribbled_state(context: &mut Context<'_>) -> Verdict {
    use telegraphos_wire::queue::{BUSY, DEAD, FULL, HELD};
    let (good, right) = context.queue_pair("good", |q| q.words(8))?;
    let name = context.name("scribbled");
    // What is written, and what a consumer then reports; nothing if it waits for an absent owner.
    let cases = [
        (FULL, Some("took Some(5)")),
        (HELD, Some("took Some(5)")),
        (FULL | HELD | 0xffff_ffff << 32, Some("took Some(5)")),
        (0xffff_fff0, Some("took Some(5)")),
        (DEAD, Some("errno 5")),
        (u64::MAX, Some("errno 5")),
        (BUSY | 0x7777 << 32, None),
        (BUSY | FULL, None),
    ];
    for (state, expected) in cases {
        let mut child = context.child_saying("scribbled", &["queue-scribble", &name, &state.to_string()])?;
        match expected {
            Some(expected) => {
                let said = child.line()?;
                same(format_args!("a consumer's word with state {state:#x}"), said.as_deref(), Some(expected))?;
                child.end()?;
            }
            None => {
                std::thread::sleep(LONG);
                same(format_args!("a consumer's word with state {state:#x}"), child.line_now()?, None)?;
                child.must_be_killed()?;
            }
        }
        send_range(&right, 1, 0, 6)?;
        take_range(&good, 1, 0, 6)?;
    }
    context.sync()
}

/// A queue's buffers count as locked memory.
pub(crate) fn locked_memory(context: &mut Context<'_>) -> Verdict {
    let limits = [("262144", "576 KiB under a limit of 256 KiB"), ("1048576", "576 KiB under a limit of 1 MiB")];
    under_limits(context, "queue-limited", &[&context.name("limited"), "8"], limits, "made")
}

pub(crate) fn cycles(context: &mut Context<'_>) -> Verdict {
    const CYCLES: u64 = 300;
    const QUOTA: u32 = 3;
    // A whole queue in KiB.
    const SIZE: u64 = 64 * (QUOTA as u64 + 1);
    let (mine, right) = context.queue_pair("far", |q| q.words(64).quota(64))?;
    let (board, name, far) = (context.node(), context.name("cycle"), right.name().to_owned());
    let mut sent = 0;
    let cycle = |number: u64| -> Verdict {
        let node = Node::open_path(board.path())?;
        let queue = Queue::create(&node, &name).mode(0o602).quota(QUOTA).create()?;
        let own = Queue::import(&node, node.id(), &name).open()?;
        let away = Queue::import(&node, right.node(), &far).open()?;
        send_range(&own, 1, 0, 3)?;
        send_range(&away, 1, 0, 1)?;
        sent += 1;
        take_range(&queue, 1, 0, 2)?;
        if number % 2 == 0 {
            node.quiet_timeout(SOON)?;
            return Ok(());
        }
        // Half of them in the other order, with elements still on their way.
        drop(queue);
        drop(node);
        Ok(())
    };
    // One lost queue per cycle would be 75 MiB.
    leave_nothing(context, (20, CYCLES), (SIZE, 20), cycle)?;
    context.sync_behind(&right)?;
    for number in 0..sent {
        same(format_args!("the element of cycle {number}"), mine.try_pop()?, Some(element(4, 1, 0)))?;
    }
    same("one element more", mine.try_pop()?, None)?;
    context.sync()
}
