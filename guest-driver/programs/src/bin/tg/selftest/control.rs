// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names, secrets, nodes: which imports are admitted.

use super::context::{Context, Stop, Verdict, refused, same};
use std::os::fd::AsRawFd;
use telegraphos::{NAME_MAX, Node, NodeId};
use telegraphos_guest_tests::interface::call;
use telegraphos_wire::{CStruct, uapi};

pub(crate) use telegraphos_guest_tests::interface::call::structure as ioctl;

/// One with a structure that has a handle alone.
pub(crate) fn by_handle(node: &Node, number: u8, handle: u32, flags: u32) -> call::Answer {
    ioctl(node, number, &mut uapi::Handle { handle, flags, ..Default::default() })
}

/// Number of TG_IOCTL_LAUNCH.
pub(crate) const LAUNCH: u8 = uapi::IOCTL_LAB as u8;
/// Number of TG_IOCTL_QUEUE_POP.
pub(crate) const QUEUE_POP: u8 = LAUNCH + 1;

/// Whether the module for comparisons is loaded.
fn lab(node: &Node) -> bool {
    // Too little for it to do anything.
    words_ioctl(node, LAUNCH, &mut [8, 0]) != Err(libc::ENOTTY)
}

/// Skips a test that compares with what the kernel does, if that is not there.
pub(crate) fn needs_lab(context: &Context<'_>) -> Verdict {
    if lab(context.node()) {
        return Ok(());
    }
    Err(Stop::Skip("needs the module for comparisons, telegraphos_lab.ko: telegraphos run --lab".into()))
}

/// An ioctl with a structure of these words, the first of which is its size.
fn words_ioctl(node: &Node, number: u8, words: &mut [u32]) -> call::Answer {
    call::numbered(node, number, bytemuck::cast_slice_mut(words))
}

pub(crate) fn missing_name(context: &mut Context<'_>) -> Verdict {
    for node in [context.peers.right(), context.me()] {
        let result = context.node().import(node, "no such segment").open();
        refused(&format!("importing a missing name from node {node}"), result, libc::ENOENT)?;
    }
    Ok(())
}

pub(crate) fn absent_node(context: &mut Context<'_>) -> Verdict {
    let Some(absent) = context.peers.absent().last() else {
        return Err(Stop::Skip("every node that the window can address takes part".into()));
    };
    let result = context.node().import(absent, "anything").open();
    refused(&format!("importing from absent node {absent}"), result, libc::EHOSTUNREACH)
}

pub(crate) fn node_out_of_range(context: &mut Context<'_>) -> Verdict {
    for node in [context.peers.nodes, context.peers.nodes + 1, 0xffff] {
        let result = context.node().import(node as NodeId, "anything").open();
        refused(&format!("importing from node {node}"), result, libc::EINVAL)?;
    }
    let mut import = uapi::Import { node: 0x1_0000, rights: 1, ..Default::default() };
    import.name[0] = b'x';
    same("importing from node 65536", ioctl(context.node(), 3, &mut import), Err(libc::EINVAL))
}

pub(crate) fn duplicate_name(context: &mut Context<'_>) -> Verdict {
    let mine = context.export("data", 4096)?;
    mine.store(0, 1u64)?;
    refused("exporting a name twice", context.node().export(mine.name(), 4096).create(), libc::EEXIST)?;
    let other = context.other_file()?;
    refused("exporting it from another file", other.export(mine.name(), 4096).create(), libc::EEXIST)?;
    let own = context.import(context.me(), "data")?;
    same("a word of the first", own.get64(0)?, 1)
}

pub(crate) fn secret(context: &mut Context<'_>) -> Verdict {
    let (name, secret) = (context.name("secret"), *b"sixteen bytes of");
    let mine = context.node().export(&name, 4096).mode(0o606).secret(secret).create()?;
    context.sync()?;
    let import = || context.node().import(context.peers.right(), &name);
    refused("an import without the secret", import().open(), libc::EACCES)?;
    refused("an import with a wrong secret", import().secret(*b"sixteen bytes 0f").open(), libc::EACCES)?;
    let right = import().secret(secret).open()?;
    right.put64(0, 8)?;
    context.sync_behind(&right)?;
    same("the word", mine.load::<u64>(0)?, 8)?;
    context.sync()
}

pub(crate) fn listed_nodes(context: &mut Context<'_>) -> Verdict {
    let peers = context.peers;
    let (for_left, for_none) = (context.name("left"), context.name("none"));
    let admitted = context.node().export(&for_left, 4096).mode(0o606).nodes(&[peers.left()]).create()?;
    let closed = context.node().export(&for_none, 4096).mode(0o606).nodes(&[]).create()?;
    context.sync()?;
    let right = context.node().import(peers.right(), &for_left).open()?;
    right.put64(0, 9)?;
    right.quiet()?;
    refused("an import by a node not listed", context.node().import(peers.right(), &for_none).open(), libc::ENOENT)?;
    if peers.all.len() > 2 {
        let unlisted = context.node().import(peers.ring(2), &for_left).open();
        refused("an import by another node than the listed one", unlisted, libc::ENOENT)?;
    }
    context.sync()?;
    same("the word from the listed node", admitted.load::<u64>(0)?, 9)?;
    drop(closed);
    context.sync()
}

pub(crate) fn limits(context: &mut Context<'_>) -> Verdict {
    let node = context.node();
    let longest = format!("{:~<1$}", context.name("x "), NAME_MAX);
    let segment = node.export(&longest, 1).mode(0o606).create()?;
    let own = node.import(node.id(), &longest).open()?;
    same("the size of a segment of one byte", own.size(), 1)?;
    own.put8(0, 7)?;
    own.quiet()?;
    same("its byte", segment.load::<u8>(0)?, 7)?;
    refused("a name of 64 bytes", node.export(&"x".repeat(NAME_MAX + 1), 1).create(), libc::EINVAL)?;
    for forged in ["a\nb", "\u{1b}[2J", "a\u{7f}", "\u{e9}"] {
        refused("a name that is not printable ASCII", node.export(forged, 1).create(), libc::EINVAL)?;
    }
    refused("an empty name", node.export("", 1).create(), libc::EINVAL)?;
    refused("a size of 0", node.export(&context.name("zero"), 0).create(), libc::EINVAL)?;
    let window = node.info()?.window_size;
    refused("a size beyond the window", node.export(&context.name("huge"), window + 1).create(), libc::EINVAL)?;
    refused("an endless size", node.export(&context.name("huge"), u64::MAX).create(), libc::EINVAL)
}

pub(crate) fn name_reuse(context: &mut Context<'_>) -> Verdict {
    let (node, name) = (context.node(), context.name("again"));
    for round in 1..=5u64 {
        let segment = node.export(&name, 4096 * round).mode(0o606).create()?;
        let own = node.import(node.id(), &name).open()?;
        same("the size", own.size(), 4096 * round)?;
        own.put64(8, round)?;
        own.quiet()?;
        same("the word", segment.load::<u64>(8)?, round)?;
        own.close()?;
        segment.close()?;
        refused("importing the withdrawn name", node.import(node.id(), &name).open(), libc::ENOENT)?;
    }
    Ok(())
}

/// What a program gets that speaks to the driver without the library.
pub(crate) fn nonsense(context: &mut Context<'_>) -> Verdict {
    let node = context.node();
    let export = uapi::Export {
        name: call::name("selftest-nonsense"),
        length: 4096,
        nodes: [!0; 4],
        rights_owner: 3,
        ..Default::default()
    };
    let import = uapi::Import { name: export.name, node: node.id().into(), rights: 1, ..Default::default() };
    let invalid = Err(libc::EINVAL);
    let null = std::fs::File::open("/dev/null")?;
    let alone = std::net::TcpListener::bind("0.0.0.0:0")?;
    for (what, export) in [
        ("a name without end", uapi::Export { name: [b'x'; 64], ..export }),
        ("a name with something behind its end", uapi::Export { name: call::name("a\0b"), ..export }),
        ("a name of a connection that the driver has not made", uapi::Export { name: call::name("tcp:a"), ..export }),
        ("a descriptor without its flag", uapi::Export { connection: 1, ..export }),
        ("unknown rights of an export", uapi::Export { rights_others: 0x8000, ..export }),
    ] {
        same(what, ioctl(node, 1, &mut { export }), invalid)?;
    }
    for (what, import) in [
        ("unknown rights of an import", uapi::Import { rights: 0x8001, ..import }),
        ("an import without rights", uapi::Import { rights: 0, ..import }),
        ("a descriptor without its flag", uapi::Import { connection: 1, ..import }),
        ("an unknown flag of an import", uapi::Import { flags: 2, ..import }),
    ] {
        same(what, ioctl(node, 3, &mut { import }), invalid)?;
    }
    for (what, connection, error) in [
        ("control", null.as_raw_fd(), libc::ENOTSOCK),
        ("control", -1, libc::EBADF),
        ("control", alone.as_raw_fd(), libc::ENOTCONN),
        ("controls1", alone.as_raw_fd(), libc::EINVAL),
        ("Control", alone.as_raw_fd(), libc::EINVAL),
        ("c:d", alone.as_raw_fd(), libc::EINVAL),
    ] {
        let (name, flags) = (call::name(what), uapi::NAME_OF_CONNECTION as u32);
        let mut export = uapi::Export { name, flags, connection, ..export };
        same(format_args!("{what:?} of descriptor {connection}"), ioctl(node, 1, &mut export), Err(error))?;
        let mut import = uapi::Import { name, flags, connection, ..import };
        same(format_args!("{what:?} of descriptor {connection}, to import"), ioctl(node, 3, &mut import), Err(error))?;
    }
    same("a flag for a handle", by_handle(node, 4, 0, 1), invalid)?;
    for number in [2, 4, 6] {
        let wild = by_handle(node, number, 0xffff_ffff, 0);
        same(format_args!("a wild handle for ioctl {number}"), wild, Err(libc::EBADF))?;
    }
    same("an unknown ioctl", ioctl(node, 77, &mut [0u64; 8]), Err(libc::ENOTTY))?;
    // SAFETY: there is no memory at this address.
    let nowhere = unsafe { call::raw(node, INFO, std::ptr::without_provenance_mut(8)) };
    same("an ioctl into nowhere", nowhere, Err(libc::EFAULT))
}

const INFO: u32 = uapi::request(uapi::Direction::InOut, 0, size_of::<uapi::Info>());

/// Words of the first version of a structure, which every later driver takes: those that have grown since are named.
fn first_words(structure: &CStruct) -> usize {
    let bytes = match structure.name {
        "tg_info" => 56,
        "tg_export" => 144,
        "tg_register" => 152,
        _ => structure.size,
    };
    bytes / 4
}

/// Structures of other sizes than the driver's version, flags, and request numbers that are nearly right.
pub(crate) fn sizes_and_flags(context: &mut Context<'_>) -> Verdict {
    let node = context.node();
    const WORDS: usize = size_of::<uapi::Info>() / 4;
    let size = size_of::<uapi::Info>() as u32;
    let invalid = Err(libc::EINVAL);

    let info = |length: usize, said: u32, flags: u32, last: u32| {
        let mut words = vec![0; length];
        words[length - 1] = last;
        (words[0], words[1]) = (said, flags);
        let result = words_ioctl(node, 0, &mut words);
        (result, words)
    };
    let (result, words) = info(WORDS, size, 0, 0);
    same("the structure as it is", result, Ok(()))?;
    same("the interface's version", u64::from(words[2]), uapi::ABI_VERSION)?;
    same("the size behind the call", words[0], size)?;
    same("an unknown flag", info(WORDS, size, 2 * uapi::INFO_SOFT as u32, 0).0, invalid)?;
    same("the highest flag", info(WORDS, size, 1 << 31, 0).0, invalid)?;
    let first = first_words(uapi::IOCTLS[0].structure);
    same("the structure's first version", info(first, 4 * first as u32, 0, 0).0, Ok(()))?;
    same("that without its last word", info(first - 1, 4 * first as u32 - 4, 0, 0).0, invalid)?;
    same("a head without more", info(2, 8, 0, 0).0, invalid)?;
    same("a size of 0", info(WORDS, 0, 0, 0).0, invalid)?;
    same("a size that the number does not say", info(WORDS + 1, size, 0, 0).0, invalid)?;
    same("an endless size", info(WORDS, u32::MAX, 0, 0).0, invalid)?;

    let (result, longer) = info(WORDS + 2, size + 8, 0, 0);
    same("a longer structure with nothing behind", result, Ok(()))?;
    same("what the driver says in it", &longer[2..5], &words[2..5])?;
    same("a longer structure with something behind", info(WORDS + 2, size + 8, 0, 1).0, Err(libc::E2BIG))?;
    same("the same behind a page", info(2048, 8192, 0, 1).0, Err(libc::E2BIG))?;
    let mut handle = [16, 0, u32::MAX, 1];
    same("something behind a handle", words_ioctl(node, 2, &mut handle), Err(libc::E2BIG))?;
    handle[3] = 0;
    same("nothing behind a wild handle", words_ioctl(node, 2, &mut handle), Err(libc::EBADF))?;

    let mut words = info(WORDS, size, 0, 0).1;
    for (what, request) in [
        ("a number of another direction", uapi::request(uapi::Direction::In, 0, size as usize)),
        ("a number of interface 1", INFO & !0xff00 | u32::from(b'T') << 8),
        ("a number of no type", INFO & !0xff00),
    ] {
        // SAFETY: they are as long as the request numbers say.
        let result = unsafe { call::raw(node, request, words.as_mut_ptr().cast()) };
        same(what, result, Err(libc::ENOTTY))?;
    }
    let lab = lab(node);
    for ioctl in uapi::IOCTLS {
        if u64::from(ioctl.number) >= uapi::IOCTL_LAB && !lab {
            let mut words = vec![0; ioctl.structure.size / 4];
            words[0] = ioctl.structure.size as u32;
            let result = words_ioctl(node, ioctl.number, &mut words);
            same(format_args!("{} without its module", ioctl.name), result, Err(libc::ENOTTY))?;
            continue;
        }
        let mut words = vec![0; ioctl.structure.size / 4];
        (words[0], words[1]) = (ioctl.structure.size as u32, 4);
        same(format_args!("a flag for {}", ioctl.name), words_ioctl(node, ioctl.number, &mut words), invalid)?;
        let short = first_words(ioctl.structure) - 1;
        (words[0], words[1]) = (4 * short as u32, 0);
        let result = words_ioctl(node, ioctl.number, &mut words[..short]);
        same(format_args!("too little for {}", ioctl.name), result, invalid)?;
    }
    Ok(())
}
