// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated segments: what must not work, and how it fails.

use super::context::{Context, SOON, Verdict, must, refused, same};
use super::control::{by_handle, ioctl};
use super::limits::under_limits;
use super::protection::try_mmap;
use super::replica_members::refusal;
use super::trouble::REFUSED;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mprotect};
use std::ffi::c_void;
use telegraphos::{Error, Node, NodeId, ReplicaMode, Replicated, Rights, Status};
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::interface::call;
use telegraphos_guest_tests::mapping::READ_WRITE;
use telegraphos_guest_tests::replica::PAGE;
use telegraphos_guest_tests::user;
use telegraphos_wire::{admin, uapi};

/// Of the processor, which maps it.
const MAPPED: usize = 4096;

/// A copy, the home's too, is mapped read-only, and stays so.
pub(crate) fn read_only(context: &mut Context<'_>) -> Verdict {
    let boards = context.boards("page", PAGE)?;
    let node = context.node();
    for board in &boards {
        let offset = uapi::mmap_offset(uapi::MMAP_REPLICA, board.handle());
        let map = |protection| try_mmap(node, offset, MAPPED, protection, MapFlags::SHARED);
        same("another mapping of a copy", map(ProtFlags::READ), Ok(()))?;
        for protection in [READ_WRITE, ProtFlags::WRITE, ProtFlags::READ | ProtFlags::EXEC] {
            same(format_args!("a mapping of a copy for {protection:?}"), map(protection), Err(Errno::ACCESS))?;
        }
        for protection in [MprotectFlags::READ | MprotectFlags::WRITE, MprotectFlags::READ | MprotectFlags::EXEC] {
            // SAFETY: only this copy's own mapping would change, and no reference into it exists.
            let raised = unsafe { mprotect(board.as_ptr().cast_mut().cast::<c_void>(), MAPPED, protection) };
            same(format_args!("mprotect of a copy to {protection:?}"), raised, Err(Errno::ACCESS))?;
        }
    }
    let name = context.name("scribbled");
    let mut home = context.child_saying("ready", &["replica-scribble", "here", &name])?;
    home.must_end(End::SEGV)?;
    context.sync()?;
    let mine = context.replicated("scribbled", PAGE, |builder| builder)?;
    let mut copy = context.child_saying("ready", &["replica-scribble", &context.peers.right().to_string(), &name])?;
    copy.must_end(End::SEGV)?;
    context.sync()?;
    same("the word it would have reached", mine.load::<u64>(8)?, 0)?;
    context.sync()
}

/// Handles, kinds and lengths of mappings.
pub(crate) fn mappings(context: &mut Context<'_>) -> Verdict {
    const SIZE: u64 = 5 * MAPPED as u64;
    let boards = context.boards("page", SIZE)?;
    let node = context.node();
    let other = Node::open_path(node.path())?;
    for board in &boards {
        let (copy, window) = (board.handle(), board.remote().handle());
        let at = |node: &Node, kind, handle, more: u64, length: usize, protection| {
            try_mmap(node, uapi::mmap_offset(kind, handle) + more, length, protection, MapFlags::SHARED)
        };
        let kinds = [(uapi::MMAP_REPLICA, copy, ProtFlags::READ), (uapi::MMAP_REPLICA_WINDOW, window, READ_WRITE)];
        for (kind, handle, protection) in kinds {
            let what = |what: &str| format!("a mapping of kind {kind} {what}");
            let whole = SIZE as usize;
            same(what("of all"), at(node, kind, handle, 0, whole, protection), Ok(()))?;
            same(what("of a page more"), at(node, kind, handle, 0, whole + MAPPED, protection), Err(Errno::INVAL))?;
            same(what("behind the end"), at(node, kind, handle, SIZE, MAPPED, protection), Err(Errno::INVAL))?;
            same(what("of another file's"), at(&other, kind, handle, 0, MAPPED, protection), Err(Errno::INVAL))?;
            same(what("of nothing"), at(node, kind, 0x7fff_fff0, 0, MAPPED, protection), Err(Errno::INVAL))?;
            let offset = uapi::mmap_offset(kind, handle);
            let private = try_mmap(node, offset, MAPPED, ProtFlags::READ, MapFlags::PRIVATE);
            same(what("as private copy"), private, Err(Errno::INVAL))?;
        }
        let bad = Err(libc::EBADF);
        same("leaving another file's", by_handle(&other, 19, copy, 0), bad)?;
        same("adopting another file's", by_handle(&other, 21, copy, 0), bad)?;
        same("the state of another file's", state_of(&other, copy, 0), bad)?;
        // The window does not go by itself.
        must(by_handle(node, 4, window, 0).is_err(), || "the window was closed as an import".into())?;
        board.store(8 * u64::from(context.me()), 1u64)?;
        board.quiet_timeout(SOON)?;
    }
    context.sync()
}

/// Joins that are refused by the driver or by the home.
pub(crate) fn bad_joins(context: &mut Context<'_>) -> Verdict {
    let boards = context.boards("page", PAGE)?;
    let (nodes, me) = context.place();
    let (node, right) = (context.node(), context.peers.right());
    let ordinary = context.export("ordinary", PAGE)?;
    let queue = context.queue("queue", |queue| queue.words(8))?;
    context.sync()?;
    let prefix = context.name("");
    let join = |home: NodeId, part: &str| Replicated::join(node, home, &format!("{prefix}{part}")).mode(0o606);
    refused("joining at the own node", join(context.me(), "page").open(), libc::EINVAL)?;
    refusal("joining what is not there", join(right, "nothing").open(), libc::ENOENT, Some(Status::NoSegment))?;
    let far = context.peers.nodes as NodeId;
    refused("joining at a node that cannot be", join(far, "page").open(), libc::EINVAL)?;
    if let Some(absent) = context.peers.absent().last() {
        let down = Some(Status::NodeDown);
        refusal("joining at a node that is down", join(absent, "page").open(), libc::EHOSTUNREACH, down)?;
    }
    let not_home =
        |what: &str, join: telegraphos::JoinBuilder| refusal(what, join.open(), libc::EREMOTEIO, Some(Status::NotHome));
    not_home("joining an ordinary segment", join(right, "ordinary"))?;
    must(join(right, "queue").open().is_err(), || "a queue was joined".into())?;
    let busy = Some(Status::Busy);
    refusal("joining twice", join(right, "page").open(), libc::EBUSY, busy)?;
    let other = Node::open_path(node.path())?;
    let again = Replicated::join(&other, right, &context.name("page")).mode(0o606).open();
    refusal("joining from another process", again, libc::EBUSY, busy)?;
    // By another name there is one only at its home, and in its mode.
    let third = context.replicated("owner", PAGE, |builder| builder.replica_mode(ReplicaMode::Owner))?;
    context.sync()?;
    not_home("joining in another mode", join(right, "owner"))?;
    let naive = join(right, "owner").replica_mode(ReplicaMode::Naive).open();
    must(matches!(naive, Err(Error::Argument { .. })), || format!("joining naively: {naive:?}"))?;
    let copy = join(right, "owner").replica_mode(ReplicaMode::Owner).open()?;
    context.sync()?;
    // A copy is no home: the right neighbour has one of the segment of his right one.
    let only = |place: usize| format!("only-{}", place % nodes);
    let _mine = context.replicated(&only(me), PAGE, |builder| builder)?;
    context.sync()?;
    let held = join(right, &only(me + 1)).open()?;
    context.sync()?;
    refusal("joining at a copy", join(right, &only(me + 2)).open(), libc::ENOENT, Some(Status::NoSegment))?;
    context.sync()?;
    // After all that, everything works as before.
    drop((held, copy, third, ordinary, queue));
    for board in &boards {
        board.store(8 * me as u64, 3u64)?;
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for board in &boards {
        for writer in 0..nodes as u64 {
            same("a word", board.load::<u64>(8 * writer)?, 3)?;
        }
    }
    context.sync()
}

/// Secrets, lists of nodes, and rights, for the same user.
pub(crate) fn who_may(context: &mut Context<'_>) -> Verdict {
    let (name, secret) = (context.name("secret"), *b"sixteen bytes of");
    let node = context.node();
    let right = context.peers.right();
    let mine = Replicated::create(node, &name, PAGE).mode(0o606).secret(secret).create()?;
    mine.store(0, 11u64)?;
    let readable = context.name("readable");
    let reads = Replicated::create(node, &readable, PAGE).mode(0o404).create();
    let listed = context.name("listed");
    let for_left = Replicated::create(node, &listed, PAGE).mode(0o606).nodes(&[context.peers.left()]).create()?;
    let closed = context.name("closed");
    let for_none = Replicated::create(node, &closed, PAGE).mode(0o606).nodes(&[]).create()?;
    context.sync()?;
    let join = |name: &str| Replicated::join(node, right, name).mode(0o606);
    refused("joining without the secret", join(&name).open(), libc::EACCES)?;
    refused("joining with a wrong secret", join(&name).secret(*b"sixteen bytes 0f").open(), libc::EACCES)?;
    let copy = join(&name).secret(secret).open()?;
    same("the word", copy.load::<u64>(0)?, 11)?;
    refused("joining though no node is listed", join(&closed).open(), libc::ENOENT)?;
    let listed_copy = join(&listed).open()?;
    listed_copy.store(0, 12u64)?;
    listed_copy.quiet_timeout(SOON)?;
    if context.peers.all.len() > 2 {
        let unlisted = Replicated::join(node, context.peers.ring(2), &listed).mode(0o606).open();
        refused("joining by another node than the listed one", unlisted, libc::ENOENT)?;
    }
    context.sync()?;
    same("the word of the listed node", for_left.load::<u64>(0)?, 12)?;
    // Its home itself only loads from it.
    if let Ok(reads) = &reads {
        must(reads.store(0, 1u64).is_err(), || "a home without the right stores".into())?;
    }
    // Loads alone.
    let open = Replicated::create(node, &context.name("open"), PAGE).mode(0o606).create()?;
    open.store(0, 13u64)?;
    context.sync()?;
    let mut reader =
        context.child_saying("loaded 13", &["replica-reader", &right.to_string(), &context.name("open")])?;
    reader.must_end(End::SEGV)?;
    context.sync()?;
    same("the word after that", open.load::<u64>(0)?, 13)?;
    drop((copy, for_none));
    context.sync()
}

/// Digits of the mode are for others than the owner's user id.
pub(crate) fn other_users(context: &mut Context<'_>) -> Verdict {
    let (gid, _) = user::device_group().map_err(|e| e.to_string())?;
    let names = ["600", "604", "606"].map(|mode| context.name(mode));
    let modes = [0o600, 0o604, 0o606];
    let mut mine = Vec::new();
    for (name, mode) in names.iter().zip(modes) {
        let segment = Replicated::create(context.node(), name, PAGE).mode(mode).create()?;
        segment.store(0, u64::from(mode))?;
        mine.push(segment);
    }
    context.sync()?;
    let right = context.peers.right().to_string();
    let attempt = |name: &str, access: &str| -> Verdict<(Option<String>, End)> {
        Ok(context.child_of((user::ORDINARY + 1, gid), &["replica-join", &right, name, access])?.last()?)
    };
    let denied = || (Some(format!("errno {}", libc::EACCES)), End::Code(REFUSED));
    let joined = |mode: u32| (Some(format!("joined {mode}")), End::WELL);
    for (index, (access, expected)) in [
        ("400", denied()),
        ("600", denied()),
        ("400", joined(0o604)),
        ("600", denied()),
        ("400", joined(0o606)),
        ("600", joined(0o606)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = &names[index / 2];
        same(format_args!("another user joining {name} for {access}"), attempt(name, access)?, expected)?;
    }
    context.sync()
}

/// One page has one home.
pub(crate) fn second_home(context: &mut Context<'_>) -> Verdict {
    let boards = context.boards("page", PAGE)?;
    let (nodes, me) = context.place();
    let node = context.node();
    let create = |node: &Node| Replicated::create(node, &context.name("page"), PAGE).create();
    refused("a second segment of the name", create(node), libc::EEXIST)?;
    refused("one of another process", create(&Node::open_path(node.path())?), libc::EEXIST)?;
    refused("an export of the name", node.export(&context.name("page"), PAGE).create(), libc::EEXIST)?;
    for board in &boards {
        refused("adopting what has a home", board.adopt(), libc::EINVAL)?;
        same("adopting it past the library", by_handle(node, 21, board.handle(), 0), Err(libc::EINVAL))?;
        same("whether it is an orphan", board.state()?.orphan, None)?;
        board.store(8 * me as u64, 9u64)?;
        board.quiet_timeout(SOON)?;
    }
    context.sync()?;
    for (home, board) in boards.iter().enumerate() {
        same("the home", board.home()?, context.peers.all[home])?;
        for writer in 0..nodes as u64 {
            same("a word", board.load::<u64>(8 * writer)?, 9)?;
        }
    }
    context.sync()
}

/// Words that are not there, or lie across others.
pub(crate) fn bounds(context: &mut Context<'_>) -> Verdict {
    const SIZE: u64 = 1000;
    let boards = context.boards("page", SIZE)?;
    for board in &boards {
        for at in [SIZE, SIZE + 8, u64::MAX - 7, 1 << 40] {
            must(matches!(board.store(at, 1u64), Err(Error::Bounds { .. })), || {
                format!("a store to {at:#x} of {SIZE} bytes")
            })?;
            must(matches!(board.load::<u64>(at), Err(Error::Bounds { .. })), || {
                format!("a load of {at:#x} of {SIZE} bytes")
            })?;
            let atomic = board.fetch_inc::<u64>(at);
            must(matches!(atomic, Err(Error::Bounds { .. })), || format!("an atomic at {at:#x} of {SIZE} bytes"))?;
        }
        must(matches!(board.store(4, 1u64), Err(Error::Misaligned { .. })), || "a store across words".into())?;
        must(matches!(board.load::<u32>(2), Err(Error::Misaligned { .. })), || "a load across words".into())?;
        must(board.remote().put64(0, 1).is_err(), || "the window's import stores past the count".into())?;
        board.store(SIZE - 8, u64::from(context.me()))?;
        board.quiet_timeout(SOON)?;
    }
    context.sync()
}

/// What a program gets that speaks to the driver without the library.
pub(crate) fn nonsense(context: &mut Context<'_>) -> Verdict {
    let node = context.node();
    let rights = Rights::READ.0 | Rights::WRITE.0;
    let good = uapi::Replica {
        name: call::name("selftest-replica-nonsense"),
        nodes: [!0; 4],
        length: PAGE,
        home: uapi::REPLICA_HERE as u32,
        mode: admin::COUNTERS,
        rights_owner: rights,
        ..Default::default()
    };
    let window = node.info()?.window_size;
    for (what, bad) in [
        ("no size", uapi::Replica { length: 0, ..good }),
        ("a size beyond the window", uapi::Replica { length: window + 1, ..good }),
        ("an endless size", uapi::Replica { length: u64::MAX, ..good }),
        ("mode 0", uapi::Replica { mode: 0, ..good }),
        ("an unknown mode", uapi::Replica { mode: 77, ..good }),
        ("no right to load", uapi::Replica { rights_owner: Rights::WRITE.0, ..good }),
        ("no rights", uapi::Replica { rights_owner: 0, ..good }),
        ("the right to enqueue", uapi::Replica { rights_owner: rights | Rights::ENQUEUE.0, ..good }),
        ("the right to copy blocks", uapi::Replica { rights_others: Rights::DMA.0, ..good }),
        ("unknown rights", uapi::Replica { rights_others: 0x8000, ..good }),
        ("a page of its own choice", uapi::Replica { page: 1, ..good }),
        ("no name", uapi::Replica { name: [0; 64], ..good }),
        ("a name without end", uapi::Replica { name: [b'x'; 64], ..good }),
        ("a name with something behind its end", uapi::Replica { name: call::name("a\0b"), ..good }),
        ("a home out of range", uapi::Replica { home: context.peers.nodes, ..good }),
        ("a home far out of range", uapi::Replica { home: 0xffff_fffe, ..good }),
        ("itself as the home to join", uapi::Replica { home: node.id().into(), ..good }),
    ] {
        same(format_args!("a replicated segment with {what}"), ioctl(node, 18, &mut { bad }), Err(libc::EINVAL))?;
    }
    let mut naive = uapi::Replica { home: context.peers.right().into(), mode: admin::NAIVE, ..good };
    same("a naive join of what is not here", ioctl(node, 18, &mut naive), Err(libc::ENOENT))?;
    let bad = Err(libc::EBADF);
    for handle in [u32::MAX, 0x7fff, 0] {
        same("leaving what is not", by_handle(node, 19, handle, 0), bad)?;
        same("adopting what is not", by_handle(node, 21, handle, 0), bad)?;
        same("the state of what is not", state_of(node, handle, 0), bad)?;
    }
    let segment = Replicated::create(node, &context.name("mine"), PAGE).create()?;
    let handle = segment.handle();
    let invalid = Err(libc::EINVAL);
    same("a flag of leave", by_handle(node, 19, handle, 1), invalid)?;
    same("a flag of adopt", by_handle(node, 21, handle, 1), invalid)?;
    same("a flag of state", state_of(node, handle, 1), invalid)?;
    segment.store(0, 1u64)?;
    segment.quiet_timeout(SOON)?;
    segment.leave()?;
    same("the state of what was left", state_of(node, handle, 0), bad)
}

fn state_of(node: &Node, handle: u32, flags: u32) -> call::Answer {
    ioctl(node, 20, &mut uapi::ReplicaState { handle, flags, ..Default::default() })
}

/// Copies count as locked memory.
pub(crate) fn locked_memory(context: &mut Context<'_>) -> Verdict {
    let limits = [("262144", "512 KiB under a limit of 256 KiB"), ("1048576", "512 KiB under a limit of 1 MiB")];
    under_limits(context, "replica-limited", &[&context.name("limited"), "524288"], limits, "made")
}
