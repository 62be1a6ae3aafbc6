// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory: copies of any of it, what others see under a name, what happens when it goes, and that nothing
//! stays pinned.

use super::context::{Context, Stop, Verdict, must, same};
use super::inspect;
use super::limits::under_limits;
use super::memory::{Memory, PAGE, byte, file};
use super::trouble::{Trouble, limit_locked_memory, number};
use rustix::fs::{MemfdFlags, ftruncate};
use rustix::mm::{Advice, MprotectFlags};
use std::time::{Duration, Instant};
use telegraphos::{Error, Node, RegistrationCache, Remote, Segment, Status};
use telegraphos_guest_tests::child::say;
use telegraphos_guest_tests::{pins, user};

/// From, to and length of copies, across the bounds of words, pages and units.
const SHAPES: &[(usize, usize, usize)] =
    &[(0, 0, 1), (1, 7, 9), (4095, 1, 2), (17, 4099, 4096), (3, 65_533, 65_536), (123, 77, 196_287)];
pub(crate) const SIZE: usize = 4 << 16;

/// Puts of registered memory to the right neighbour, and gets back to other places of it.
fn copies(context: &mut Context<'_>, memory: &Memory, skip: usize) -> Verdict {
    let (mine, right) = context.neighbour(SIZE as u64)?;
    let length = SIZE - skip - 5;
    let registered = memory.register(context.node(), skip, length)?;
    let (own_seed, peer_seed) = context.seeds()?;
    for &(from, to, count) in SHAPES {
        memory.fill(own_seed);
        right.put_block(to as u64, &registered, from as u64, count as u64)?;
        context.sync()?;
        for at in 0..count {
            let found: u8 = mine.load((to + at) as u64)?;
            must(found == byte(peer_seed, skip + from + at), || format!("byte {at} of {count} from {from} to {to}"))?;
        }
        // Our own bytes come back to another place, and all others stay as they are.
        let back = (to * 3 + 1) % (length - count);
        right.get_block(to as u64, &registered, back as u64, count as u64)?;
        for at in 0..memory.length().min(SIZE) {
            let inside = (skip + back..skip + back + count).contains(&at);
            let expected = if inside { byte(own_seed, at - back + from) } else { byte(own_seed, at) };
            must(memory.byte(at) == expected, || format!("byte {at} after {count} bytes came back to {back}"))?;
        }
        context.sync()?;
    }
    context.note(format!("{length} bytes in {} runs", registered.runs()));
    Ok(registered.close()?)
}

pub(crate) fn anonymous(context: &mut Context<'_>) -> Verdict {
    let memory = Memory::anonymous(SIZE)?;
    copies(context, &memory, 13)
}

pub(crate) fn files(context: &mut Context<'_>) -> Verdict {
    let memory = Memory::of_file(SIZE, MemfdFlags::CLOEXEC)?;
    copies(context, &memory, 4090)
}

pub(crate) fn huge_pages(context: &mut Context<'_>) -> Verdict {
    const HUGE: usize = 2 << 20;
    let pool = "/proc/sys/vm/nr_hugepages";
    if user::uid() == 0 {
        std::fs::write(pool, "4")?;
        page_of_1_gib(context)?;
    }
    let memory = Memory::of_file(HUGE, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    let verdict = match memory {
        Ok(memory) => {
            let whole = memory.register(context.node(), 0, HUGE)?;
            same("runs of a huge page", whole.runs(), 1)?;
            whole.close()?;
            copies(context, &memory, 8)
        }
        Err(_) if user::uid() != 0 => {
            // The other nodes continue.
            context.neighbour(SIZE as u64)?;
            context.seeds()?;
            SHAPES.iter().try_for_each(|_| context.sync().and_then(|()| context.sync()))?;
            Err(Stop::Skip("needs root, to make huge pages: telegraphos run --user root".into()))
        }
        Err(stop) => Err(stop),
    };
    if user::uid() == 0 {
        std::fs::write(pool, "0")?;
    }
    verdict
}

/// A page of 1 GiB, if the kernel was booted with one, is one run, and is reached at both ends.
fn page_of_1_gib(context: &mut Context<'_>) -> Verdict {
    const HUGE: usize = 1 << 30;
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages");
    if free.map_or(true, |free| free.trim() == "0") {
        context.note("no page of 1 GiB: boot with hugepagesz=1G hugepages=1 for it".into());
        return Ok(());
    }
    let memory = Memory::of_file(HUGE, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB)?;
    let begin = Instant::now();
    let whole = memory.register(context.node(), 0, HUGE)?;
    let took = begin.elapsed();
    same("runs of a page of 1 GiB", whole.runs(), 1)?;
    let segment = context.node().export(&context.name("gib"), SIZE as u64).create()?;
    for from in [0, HUGE - SIZE] {
        (0..SIZE).for_each(|at| memory.set(from + at, byte(from as u64, at)));
        segment.remote()?.put_block(0, &whole, from as u64, SIZE as u64)?;
        for at in 0..SIZE {
            same(format!("byte {at} from {from:#x}"), segment.load::<u8>(at as u64)?, byte(from as u64, at))?;
        }
    }
    whole.close()?;
    context.note(format!("a page of 1 GiB is registered in {took:.0?}"));
    Ok(())
}

/// Others import registered memory by its name as they do any segment.
pub(crate) fn by_name(context: &mut Context<'_>) -> Verdict {
    let memory = Memory::anonymous(SIZE)?;
    let name = context.name("named");
    let registered = memory.named(context, &name, PAGE, SIZE - 2 * PAGE).create()?;
    let right = context.import(context.peers.right(), "named")?;
    same("its size", right.size(), (SIZE - 2 * PAGE) as u64)?;
    right.put64(8, 0x1122_3344_5566_7788)?;
    right.put8(right.size() - 1, 0x5a)?;
    same("an addition", right.fetch_add(8, 1u64)?, 0x1122_3344_5566_7788)?;
    context.sync_behind(&right)?;
    same("the lowest byte of the word", memory.byte(PAGE + 8), 0x89)?;
    same("the last byte", memory.byte(SIZE - PAGE - 1), 0x5a)?;
    same("the byte behind", memory.byte(SIZE - PAGE), 0)?;
    memory.set(PAGE, 0x77);
    context.sync()?;
    same("a loaded byte", right.get8(0)?, 0x77)?;
    context.sync()?;
    registered.close()?;
    context.sync()?;
    let ended = right.put8(0, 1).and_then(|()| right.quiet());
    must(ended.is_err() || right.state()?.dead, || "a store to memory that is not registered any more arrives".into())
}

/// Memory behind a gate is reached by the node that it is open to, and is its own process's in any case.
pub(crate) fn gated(context: &mut Context<'_>) -> Verdict {
    const WORD: u64 = 0x2121_2121_2121_2121;
    const BYTES: u64 = PAGE as u64;
    let segment = context.node().export(&context.name("copy of it"), BYTES).create()?;
    let memory = Memory::anonymous(2 * PAGE)?;
    memory.fill_with(0x21);
    let name = context.name("gated");
    let registered = memory.named(context, &name, 0, 2 * PAGE).gated().create()?;
    let (left, right) = (context.peers.left(), context.peers.right());
    let status = |result: Result<(), Error>| result.err().and_then(|error| error.status());
    context.sync()?;
    let closed = status(context.node().import(right, &name).open().map(drop));
    same("an import while the gate is closed", closed, Some(Status::NoSegment))?;
    context.sync()?;
    registered.open_gate(left, BYTES)?;
    context.sync()?;
    // A refusal ends an import, which would be a signal.
    let soft = |context: &Context<'_>| context.node().import(right, &name).soft().open();
    let import = soft(context)?;
    same("a load of the last open word", import.get64(BYTES - 8)?, WORD)?;
    context.sync()?;
    registered.close_gate()?;
    segment.remote()?.put_block(0, &registered, 0, BYTES)?;
    same("a copy by its own process", segment.load::<u8>(77)?, 0x21)?;
    registered.open_gate(left, 2 * BYTES)?;
    context.sync()?;
    same("a load by the same import when it is open again", import.get64(BYTES)?, WORD)?;
    same("its state", import.state()?.error, None)?;
    context.sync()?;
    registered.close_gate()?;
    context.sync()?;
    must(import.get64(0)? != WORD, || "a load goes through the closed gate".into())?;
    context.state_becomes(&import, "the error NotGranted", |s| s.error == Some(Status::NotGranted))?;
    context.sync()?;
    registered.open_gate(left, BYTES)?;
    context.sync()?;
    let import = soft(context)?;
    must(import.get64(BYTES)? != WORD, || "a load goes beyond what is open".into())?;
    context.state_becomes(&import, "the error Bounds", |s| s.error == Some(Status::Bounds))?;
    context.sync()?;
    let plain = memory.register(context.node(), 0, PAGE)?;
    same("the gate of memory without one", status(plain.open_gate(left, 8)), Some(Status::Invalid))?;
    must(registered.open_gate(left, 0).is_err(), || "a gate is opened for no bytes".into())?;
    must(registered.open_gate(left, 2 * BYTES + 1).is_err(), || "a gate is opened beyond the memory".into())?;
    context.sync()
}

/// A child of a process gets copies of its registered pages; the process keeps them.
pub(crate) fn forked(context: &mut Context<'_>) -> Verdict {
    let segment = context.node().export(&context.name("forked"), PAGE as u64).create()?;
    let memory = Memory::anonymous(8 * PAGE)?;
    memory.fill(3);
    let registered = memory.register(context.node(), 0, 8 * PAGE)?;
    // SAFETY: the child stores some bytes and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        (0..8 * PAGE).for_each(|at| memory.set(at, 0xcc));
        // SAFETY: nothing of the parent's is run at the end.
        unsafe { libc::_exit(0) };
    }
    must(child > 0, || "fork fails".into())?;
    // While both share what they share.
    memory.set(0, 0x42);
    segment.remote()?.put_block(0, &registered, 0, PAGE as u64)?;
    let mut status = 0;
    // SAFETY: the child's number, and a place for its status.
    must(unsafe { libc::waitpid(child, &mut status, 0) } == child && status == 0, || "the child fails".into())?;
    same("the process's own byte", segment.load::<u8>(0)?, 0x42)?;
    same("the next", segment.load::<u8>(1)?, byte(3, 1))?;
    segment.store(7, 0x24u8)?;
    segment.remote()?.get_block(0, &registered, 4096, 8)?;
    same("a byte that came", memory.byte(4103), 0x24)?;
    must(registered.is_alive()?, || "fork has ended it".into())
}

/// Processes are killed in the middle of copies.
pub(crate) fn killed(context: &mut Context<'_>) -> Verdict {
    let mine = context.export("data", 1 << 20)?;
    for round in 0..3 {
        let mut child =
            context.child_saying("copies", &["register-and-copy", &context.me().to_string(), &context.name("data")])?;
        std::thread::sleep(Duration::from_millis(20 * round));
        child.must_be_killed()?;
    }
    nothing_is_pinned()?;
    // The memory that they copied to is as good as any.
    mine.store(0, 1u8)?;
    Ok(())
}

/// [`killed`]'s child: copies without end from memory of its own, and back.
pub(crate) fn copy_until_killed(id: &str, name: &str) -> Result<(), Trouble> {
    let node = Node::open()?;
    let far = node.import(number(id)? as u16, name).open()?;
    let mut data = vec![7u8; 1 << 20];
    // SAFETY: only the copies access it.
    let registered = unsafe { node.register(data.as_mut_slice()) }.create()?;
    say("copies");
    loop {
        far.put_block(0, &registered, 0, 1 << 20)?;
        far.get_block(0, &registered, 0, 1 << 20)?;
    }
}

/// The user's limit on locked memory.
pub(crate) fn locked_memory(context: &mut Context<'_>) -> Verdict {
    let limits = [("262144", "1 MiB under a limit of 256 KiB"), ("2097152", "1 MiB under a limit of 2 MiB")];
    under_limits(context, "register-limited", &["1048576"], limits, "registered")
}

/// [`locked_memory`]'s child.
pub(crate) fn register_limited(limit: &str, size: &str) -> Result<(), Trouble> {
    limit_locked_memory(limit)?;
    let mut data = vec![0u8; number(size)? as usize];
    let node = Node::open()?;
    // SAFETY: nothing accesses it.
    unsafe { node.register(data.as_mut_slice()) }.create()?;
    say("registered");
    Ok(())
}

/// What cannot be registered, and why.
pub(crate) fn refusals(context: &mut Context<'_>) -> Verdict {
    let node = context.node();
    let refused = |memory: *mut [u8], errno: i32, what: &str| -> Verdict {
        // SAFETY: it is not registered.
        match unsafe { node.register(memory) }.create() {
            Ok(_) => Err(Stop::Fail(format!("{what} is registered"))),
            Err(error) => same(what, error.errno(), errno),
        }
    };
    let memory = Memory::anonymous(4 * PAGE)?;
    refused(memory.range(0, 0), libc::EINVAL, "nothing")?;
    memory.unmap(2 * PAGE, PAGE)?;
    refused(memory.range(0, 4 * PAGE), libc::EFAULT, "a range with a hole")?;
    says_where(context)?;
    static CONSTANT: [u8; 4 * PAGE] = [1; 4 * PAGE];
    let constant = std::ptr::slice_from_raw_parts_mut(CONSTANT.as_ptr().cast_mut(), CONSTANT.len());
    refused(constant, libc::EFAULT, "a constant")?;
    let wild = std::ptr::slice_from_raw_parts_mut(usize::MAX.wrapping_sub(4095) as *mut u8, 100);
    refused(wild, libc::EINVAL, "an address of the kernel's")?;
    let huge = std::ptr::slice_from_raw_parts_mut(memory.at(), (16 << 30) + 1);
    refused(huge, libc::EINVAL, "more than 16 GiB")?;
    // A board's own page is no memory.
    let segment = node.export(&context.name("own"), PAGE as u64).create()?;
    refused(std::ptr::slice_from_raw_parts_mut(segment.as_ptr(), PAGE), libc::EFAULT, "a segment")
}

/// A range of which some is pinned when a page is found that cannot be: the error names that, and nothing stays pinned
/// or charged.
fn says_where(context: &Context<'_>) -> Verdict {
    // The driver pins 2048 pages by one call: in the first batch, at its end, and later. Within 8 MiB an ordinary user
    // may lock no more.
    let pages = if user::uid() == 0 { 5000 } else { 1000 };
    let bad = |memory: &Memory, page: usize, how: &str| -> Verdict {
        let at = memory.at().wrapping_add(page * PAGE) as u64;
        for _ in 0..3 {
            // SAFETY: it is not registered.
            match unsafe { context.node().register(memory.range(5, pages * PAGE - 10)) }.create() {
                Err(Error::Register { fault, errno, .. }) => {
                    same(format!("the errno of a range with {how}"), errno.raw_os_error(), libc::EFAULT)?;
                    same(format!("the address of {how}"), fault, Some(at))?;
                }
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(format!("a range with {how} at page {page} is registered").into()),
            }
        }
        Ok(())
    };
    for page in [0, 1, 2047, 2048, 4999].map(|page: usize| page.min(pages - 1)) {
        let memory = Memory::anonymous(pages * PAGE)?;
        memory.unmap(page * PAGE, PAGE)?;
        bad(&memory, page, "a page that is not mapped")?;
        // Something is mapped there again before all of it is unmapped.
        memory.replace()?;
        memory.protect(page * PAGE, PAGE, MprotectFlags::READ)?;
        bad(&memory, page, "a page that may not be written")?;
    }
    let fd = file(pages * PAGE, MemfdFlags::CLOEXEC)?;
    let memory = Memory::of(&fd, pages * PAGE)?;
    ftruncate(&fd, (pages as u64 - 1) * PAGE as u64).map_err(std::io::Error::from)?;
    bad(&memory, pages - 1, "a page behind the end of its file")?;
    ftruncate(&fd, pages as u64 * PAGE as u64).map_err(std::io::Error::from)?;
    memory.register(context.node(), 0, pages * PAGE)?.close()?;
    nothing_is_pinned()
}

/// Pages of a file of 256, in an order in which no two that follow each other in it are neighbours.
fn shuffled(page: usize) -> usize {
    page * 85 % 256
}

/// The byte at an offset of a mapping of such pages.
fn shuffled_byte(seed: u64, at: usize) -> u8 {
    byte(seed, shuffled(at / PAGE) * PAGE + at % PAGE)
}

/// Whether this user may lock that much.
fn may_lock(bytes: usize) -> Verdict {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if user::uid() != 0 && limit.is_some_and(|limit| limit < bytes as u64) {
        let text = format!("needs root, to lock {} MiB: telegraphos run --user root", bytes >> 20);
        return Err(Stop::Skip(text));
    }
    Ok(())
}

/// Memory in more runs than the driver tells the board of at once: copies across the ends of the lists.
pub(crate) fn several_lists(context: &mut Context<'_>) -> Verdict {
    const PAGES: usize = 9000;
    const LIST: usize = telegraphos_wire::range::LIST as usize;
    may_lock(PAGES * PAGE)?;
    let fd = file(256 * PAGE, MemfdFlags::CLOEXEC)?;
    let (straight, length) = (Memory::of(&fd, 256 * PAGE)?, 70_001);
    // In this order: pages that are first touched in the order of the pieces may be adjacent in that.
    straight.fill_with(0);
    let memory = Memory::of_pieces(&fd, PAGE, (0..PAGES).map(|page| (shuffled(page) * PAGE) as u64))?;
    let segment = context.node().export(&context.name("lists"), SIZE as u64).create()?;
    let begin = Instant::now();
    let registered = memory.register(context.node(), 3, PAGES * PAGE - 9)?;
    let took = begin.elapsed();
    let lists = registered.runs().div_ceil(LIST as u32);
    must(lists >= 3, || format!("{PAGES} pages are {} runs in {lists} lists: expected 3", registered.runs()))?;
    for end in [LIST, 2 * LIST, PAGES - 20] {
        straight.fill(end as u64);
        let from = end * PAGE - length / 2;
        segment.remote()?.put_block(7, &registered, from as u64 - 3, length as u64)?;
        for at in 0..length {
            let expected = shuffled_byte(end as u64, from + at);
            same(format!("byte {at} from page {end}"), segment.load::<u8>(7 + at as u64)?, expected)?;
        }
        straight.fill_with(0);
        segment.remote()?.get_block(7, &registered, from as u64 - 3, length as u64)?;
        for at in from - 9..from + length + 9 {
            let expected = if (from..from + length).contains(&at) { shuffled_byte(end as u64, at) } else { 0 };
            same(format!("byte {at} that came back, near page {end}"), memory.byte(at), expected)?;
        }
    }
    let runs = registered.runs();
    let begin = Instant::now();
    registered.close()?;
    context.note(format!("{runs} runs in {lists} lists: {took:.0?}, and {:.0?} to end it", begin.elapsed()));
    nothing_is_pinned()
}

/// More memory under a name than the window of a node has: copies and atomics reach all of it, loads and stores none.
pub(crate) fn longer_than_the_window(context: &mut Context<'_>) -> Verdict {
    const PIECE: usize = 1 << 20;
    let length = context.node().info()?.window_size as usize + (2 * PIECE) - 100;
    may_lock(length)?;
    let fd = file(PIECE, MemfdFlags::CLOEXEC)?;
    let memory = Memory::of_pieces(&fd, PIECE, vec![0; length.div_ceil(PIECE)].into_iter())?;
    let registered = memory.named(context, &context.name("long"), 0, length).create()?;
    let right = context.import(context.peers.right(), "long")?;
    same("its size", right.size(), length as u64)?;
    must(!right.has_window(), || format!("{length} bytes have a window"))?;
    let segment = context.node().export(&context.name("source"), SIZE as u64).create()?;
    let (own_seed, peer_seed) = context.seeds()?;
    for at in 0..SIZE {
        segment.store(at as u64, byte(own_seed, at))?;
    }
    let far = length - SIZE;
    right.put_block(far as u64, &segment, 0, SIZE as u64)?;
    let word = length / 8 * 8 - 8;
    context.sync()?;
    for at in 0..SIZE {
        same(format!("byte {at} at the far end"), memory.byte(far + at), byte(peer_seed, at))?;
    }
    context.sync()?;
    let before = u64::from_le_bytes(std::array::from_fn(|n| byte(own_seed, word - far + n)));
    same("the last word", right.fetch_add(word as u64, 1u64)?, before)?;
    same("the word then", right.fetch_add(word as u64, 0u64)?, before.wrapping_add(1))?;
    must(right.get64(word as u64).is_err(), || "there is a load without a window".into())?;
    must(right.put64(word as u64, 1).is_err(), || "there is a store without a window".into())?;
    let beyond = right.put_block(length as u64 - 7, &segment, 0, 8);
    must(beyond.is_err(), || "a copy beyond the end is performed".into())?;
    context.note(format!("{length} bytes in {} runs", registered.runs()));
    context.sync()?;
    registered.close()?;
    nothing_is_pinned()
}

/// What people see of registrations, from their beginning to their end.
pub(crate) fn shown(context: &mut Context<'_>) -> Verdict {
    let directory = inspect::board_directory(context)?;
    let table = |words: &[&str]| inspect::line(&directory, "registrations", words);
    let memory = Memory::anonymous(SIZE)?;
    let name = context.name("shown");
    let registered = memory.named(context, &name, 5, SIZE - 9).secret([0x53; 16]).create()?;
    let process = format!("process={}", std::process::id());
    let address = format!("address={:#x}", registered.address());
    let name = format!("name=\"{name}\"");
    let line = table(&[&process, &address, &name, "uid=0", "dead=0", "published=1"])?;
    same("its bytes", inspect::number(&line, "bytes")?, SIZE as u64 - 9)?;
    same("its pages", inspect::number(&line, "pinned")?, (SIZE / PAGE) as u64)?;
    same("its runs", inspect::number(&line, "runs")?, registered.runs().into())?;
    must(!line.contains("SSSS"), || format!("it shows a secret: {line}"))?;
    memory.replace()?;
    must(!registered.is_alive()?, || "it is alive without its memory".into())?;
    table(&[&process, &address, "dead=1", "pinned=0"])?;
    registered.close()?;
    must(table(&[&process, &address]).is_err(), || "it is shown after its end".into())
}

/// As many pages are unpinned as were pinned, soon.
pub(crate) fn nothing_is_pinned() -> Verdict {
    Ok(pins::nothing_is_pinned()?)
}

/// Many registrations, one after the other, and a large one.
pub(crate) fn cycles(context: &mut Context<'_>) -> Verdict {
    let memory = Memory::anonymous(16 * PAGE)?;
    let begin = Instant::now();
    let count = cycle_count();
    for round in 0..count {
        memory.register(context.node(), round % 9000, 3 * PAGE)?.close()?;
    }
    context.note(format!("{count} registrations of 12 KiB, {:.0?} each", begin.elapsed() / count as u32));
    nothing_is_pinned()?;
    let size = large()?;
    let memory = Memory::anonymous(size)?;
    (0..size).step_by(PAGE).for_each(|at| memory.set(at, 1));
    let begin = Instant::now();
    let registered = memory.register(context.node(), 0, size)?;
    let took = begin.elapsed();
    let (runs, begin) = (registered.runs(), Instant::now());
    registered.close()?;
    context.note(format!("{} MiB in {runs} runs: {took:.0?}, and {:.0?} to end it", size >> 20, begin.elapsed()));
    nothing_is_pinned()
}

/// 300, or as many as TELEGRAPHOS_REGISTRATIONS says.
fn cycle_count() -> usize {
    std::env::var("TELEGRAPHOS_REGISTRATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// An eighth of the guest's free memory, 1 GiB at most, or half of what this user may lock.
fn large() -> Verdict<usize> {
    let free = (super::life::available()? as usize) << 10;
    // A guest with room for 1 GiB is one of at least 2 GiB.
    let most = if free > 3 << 29 { 1 << 30 } else { free / 8 };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let locked = limit.filter(|_| user::uid() != 0).map_or(usize::MAX, |limit| limit as usize / 2);
    Ok(most.min(locked) / PAGE * PAGE)
}

/// The library's cache: hits, memory that went and came back at the same address, and its bounds.
pub(crate) fn cache(context: &mut Context<'_>) -> Verdict {
    let segment = context.node().export(&context.name("cache"), SIZE as u64).create()?;
    let remote = segment.remote()?;
    let mut cache = RegistrationCache::new(context.node(), SIZE as u64);
    let memory = Memory::anonymous(SIZE)?;
    memory.fill(5);
    let put = |cache: &mut RegistrationCache<'_>, memory: &Memory, from: usize, length: usize| -> Verdict {
        // SAFETY: nothing changes the bytes meanwhile.
        let bytes = unsafe { &*memory.range(from, length) };
        put_and_check(cache, remote, &segment, bytes)
    };
    put(&mut cache, &memory, 3, 10_000)?;
    put(&mut cache, &memory, 100, 5000)?;
    same("hits and misses", (cache.hits(), cache.misses()), (1, 1))?;
    put(&mut cache, &memory, 9000, 20_000)?;
    same("registrations after an overlap", cache.len(), 1)?;
    put(&mut cache, &memory, 3, 29_000)?;
    same("hits and misses of what is merged", (cache.hits(), cache.misses()), (2, 2))?;
    // Other memory at the same address.
    memory.replace()?;
    memory.fill(6);
    put(&mut cache, &memory, 3, 10_000)?;
    // And discarded.
    memory.advise(0, SIZE, Advice::LinuxDontNeed)?;
    memory.fill(7);
    put(&mut cache, &memory, 3, 10_000)?;
    // More memory than it keeps.
    let other = Memory::anonymous(SIZE)?;
    other.fill(8);
    put(&mut cache, &other, 0, SIZE)?;
    same("registrations of a full cache", cache.len(), 1)?;
    let mut into = vec![0u8; 70_001];
    cache.get(remote, 11, &mut into[1..])?;
    must(into[1..].iter().enumerate().all(|(n, found)| *found == byte(8, n + 11)), || "a get brings others".into())?;
    memory.fill(9);
    cache.clear();
    must(cache.is_empty(), || "it is not empty".into())?;
    nothing_is_pinned()
}

fn put_and_check(cache: &mut RegistrationCache<'_>, remote: &Remote, segment: &Segment, bytes: &[u8]) -> Verdict {
    cache.put(remote, 0, bytes)?;
    for (at, expected) in bytes.iter().enumerate() {
        let found: u8 = segment.load(at as u64)?;
        must(found == *expected, || format!("byte {at} of {} is {found:#04x}: expected {expected:#04x}", bytes.len()))?;
    }
    Ok(())
}
