// SPDX-License-Identifier: MIT OR Apache-2.0
//! Direct segments: memory of a trust group. Skipped where the nodes are in none.

use super::context::{Context, Stop, Verdict, YIELD, must, refused, same, until};
use super::inspect::{board_directory, line, number};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telegraphos::{Error, Remote, Rights, Segment, Status};
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::user;

const UNIT: u64 = 65536;

/// The trust group of this node.
fn group(context: &Context<'_>) -> Verdict<String> {
    let none = || Stop::Skip("this node is in no trust group: telegraphos run --trust lab=0-1:64".into());
    context.node().trust_group()?.ok_or_else(none)
}

/// Own direct memory, and the right neighbour's, which is accessed directly.
fn neighbour(context: &mut Context<'_>, size: u64) -> Verdict<(Arc<Segment>, Remote)> {
    let group = group(context)?;
    let mine = export(context, &group, "direct", size)?;
    let mine = context.keep(mine);
    let right = context.import(context.peers.right(), "direct")?;
    must(right.state()?.direct, || "the import of a direct segment is not direct".into())?;
    Ok((mine, right))
}

/// Direct memory, for all.
fn export(context: &Context<'_>, group: &str, part: &str, size: u64) -> Result<Segment, Error> {
    context.node().export(&context.name(part), size).mode(0o606).direct(group).create()
}

/// What the driver says about direct memory.
struct Table(PathBuf);

impl Table {
    fn of(context: &Context<'_>) -> Verdict<Table> {
        Ok(Table(board_directory(context)?))
    }

    fn get<const N: usize>(&self, names: [&str; N]) -> Verdict<[u64; N]> {
        let line = line(&self.0, "direct", &[])?;
        let mut values = [0; N];
        for (value, name) in values.iter_mut().zip(names) {
            *value = number(&line, name)?;
        }
        Ok(values)
    }
}

/// How much later values are more than earlier ones.
fn more<const N: usize>(later: [u64; N], earlier: [u64; N]) -> [u64; N] {
    std::array::from_fn(|n| later[n] - earlier[n])
}

/// A store is in the owner's memory before the next instruction of this node can notify another node.
pub(crate) fn stores_and_loads(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = neighbour(context, 3 * UNIT + 4096)?;
    let end = 3 * UNIT + 4096;
    let me = u64::from(context.me());
    for at in (0..end).step_by(4096 - 8) {
        right.put64(at, me << 32 | at)?;
        same("a load of what was stored", right.get64(at)?, me << 32 | at)?;
    }
    right.put8(end - 9, 0x11)?;
    right.put16(end - 12, 0x2222)?;
    right.put32(end - 16, 0x3333_3333)?;
    // No quiet: nothing is on its way.
    context.sync()?;
    let left = u64::from(context.peers.left());
    for at in (0..end).step_by(4096 - 8) {
        same(format_args!("the word at {at:#x}"), mine.load::<u64>(at)?, left << 32 | at)?;
    }
    same("8 bits", mine.load::<u8>(end - 9)?, 0x11)?;
    same("16 bits", mine.load::<u16>(end - 12)?, 0x2222)?;
    same("32 bits", mine.load::<u32>(end - 16)?, 0x3333_3333)?;
    context.sync_behind(&right)
}

/// The owner's stores are seen by polling, both ways, without any message.
pub(crate) fn polled(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 1000;
    let (mine, right) = neighbour(context, UNIT)?;
    context.sync()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 1..=ROUNDS {
        right.put64(0, round)?;
        let left = deadline.saturating_duration_since(Instant::now());
        until(left, YIELD, || Ok(mine.load::<u64>(0)? >= round), || format!("round {round} of {ROUNDS} after 60 s"))?;
    }
    context.sync()
}

/// What the boards do with ordinary memory they do with this.
pub(crate) fn through_the_boards(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = neighbour(context, 2 * UNIT)?;
    let local = mine.remote()?;
    right.put64(8, 100)?;
    same("fetch-and-add", right.fetch_add::<u64>(8, 5)?, 100)?;
    same("what it left", right.get64(8)?, 105)?;
    same("compare-and-swap", right.compare_swap::<u32>(8, 105, 7)?, 105)?;
    context.sync()?;
    same("the owner's word", mine.load::<u64>(8)?, 7)?;
    same("the owner's own atomic", local.fetch_add::<u64>(8, 1)?, 7)?;
    context.sync()?;
    same("seen from outside", right.get64(8)?, 8)?;
    // A copy from memory to memory, of odd size and alignment; it is done when the call returns.
    for at in 0..200 {
        mine.store::<u8>(4096 + at, at as u8 + 1)?;
    }
    right.put_block(UNIT + 3, &mine, 4096, 200)?;
    for at in 0..200 {
        same("a copied byte", right.get8(UNIT + 3 + at)?, at as u8 + 1)?;
    }
    right.get_block(UNIT + 3, &mine, 9000, 200)?;
    same("a byte that was copied back", mine.load::<u8>(9199)?, 200)?;
    context.sync()
}

/// Armed counters see every access, of other imports of the page, too.
pub(crate) fn counted(context: &mut Context<'_>) -> Verdict {
    const N: u64 = 20;
    let (mine, right) = neighbour(context, 2 * UNIT)?;
    let before = context.import(context.peers.right(), "direct")?;
    right.put64(UNIT, 1)?;
    before.put64(UNIT + 8, 1)?;
    context.sync()?;
    let counter = right.arm_counter(1, 1000, 1000)?;
    let after = context.import(context.peers.right(), "direct")?;
    for (what, import) in [("the counted import", &right), ("an earlier one", &before), ("a later one", &after)] {
        must(!import.state()?.direct, || format!("{what} is still direct"))?;
        for n in 0..N {
            import.put64(UNIT + 8 * n, n)?;
            same("what was stored", import.get64(UNIT + 8 * n)?, n)?;
        }
    }
    right.quiet()?;
    let count = counter.read()?;
    same("reads and writes left", (count.reads, count.writes), (1000 - 3 * N, 1000 - 3 * N))?;
    context.sync()?;
    same("the owner's word", mine.load::<u64>(UNIT + 8 * (N - 1))?, N - 1)?;
    counter.disarm()?;
    for (what, import) in [("the counted import", &right), ("an earlier one", &before), ("a later one", &after)] {
        must(import.state()?.direct, || format!("{what} is not direct again"))?;
        same("a load of it", import.get64(UNIT)?, 0)?;
    }
    context.sync()
}

/// An import that ends with an armed counter leaves no other one of the page trapped.
pub(crate) fn counter_ends_with_its_import(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = neighbour(context, UNIT)?;
    let counting = context.import(context.peers.right(), "direct")?;
    let counter = counting.arm_counter(0, 1000, 1000)?;
    must(!right.state()?.direct, || "a counted import is still direct".into())?;
    // As a process that is killed: nothing disarms it.
    std::mem::forget(counter);
    drop(counting);
    context.state_becomes(&right, "a direct one", |state| state.direct)?;
    right.put64(0, 1)?;
    same("what was stored", right.get64(0)?, 1)?;
    context.sync()
}

/// A page that is counted now and then while its word is stored to: no store comes late.
pub(crate) fn back_and_forth(context: &mut Context<'_>) -> Verdict {
    const ROUNDS: u64 = 30;
    let (mine, right) = neighbour(context, UNIT)?;
    let mut value = 0;
    for round in 0..ROUNDS {
        let counter = right.arm_counter(0, 0, 1 << 40)?;
        let burst = 1 + round * 7;
        for _ in 0..burst {
            value += 1;
            right.put64(0, value)?;
        }
        same("writes left", counter.read()?.writes, (1 << 40) - burst)?;
        // No quiet by this process: the driver sees to it that the trapped stores are not behind the next one.
        counter.disarm()?;
        must(right.state()?.direct, || format!("it is not direct again in round {round}"))?;
        value += 1;
        right.put64(0, value)?;
        std::thread::sleep(Duration::from_millis(2));
        same(format_args!("the word after round {round}"), right.get64(0)?, value)?;
    }
    context.sync()?;
    same("the owner's word", mine.load::<u64>(0)?, value)?;
    context.sync()
}

/// The rights of an import hold for the process; one that may only store is not direct, since it could load.
pub(crate) fn rights(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = neighbour(context, UNIT)?;
    let name = context.name("direct");
    let other = context.peers.right();
    let blind = context.node().import(other, &name).rights(Rights::WRITE).open()?;
    must(!blind.state()?.direct, || "an import without the right to load is direct".into())?;
    blind.put64(16, 9)?;
    blind.quiet()?;
    same("its store", right.get64(16)?, 9)?;
    let mut child = context.child_saying("ready", &["store", &other.to_string(), &name, "r", "0", "1"])?;
    child.must_go_to(End::SEGV)?;
    same("what the child has tried to overwrite", right.get64(0)?, 0)?;
    context.sync()
}

/// Imports of a segment that its owner has withdrawn end, and its memory is not used again before that.
pub(crate) fn withdrawn(context: &mut Context<'_>) -> Verdict {
    let group = group(context)?;
    let mine = export(context, &group, "short", UNIT)?;
    let right = context.import(context.peers.right(), "short")?;
    must(right.state()?.direct, || "it is not direct".into())?;
    let name = context.name("short");
    let mut child =
        context.child_saying("ready", &["until-sigbus", &context.peers.right().to_string(), &name, "store"])?;
    right.put64(8, 1)?;
    context.sync()?;
    same("the word", mine.load::<u64>(8)?, 1)?;
    context.sync()?;
    child.go()?;
    mine.close()?;
    let next = export(context, &group, "next", UNIT)?;
    // It stores until it learns of it.
    child.must_end(End::BUS)?;
    context.state_becomes(&right, "dead with Stale", |s| s.dead && s.error == Some(Status::Stale))?;
    must(!right.state()?.direct, || "it is dead and direct".into())?;
    context.sync()?;
    same("a word of the next segment", next.load::<u64>(8)?, 0)?;
    right.close()?;
    context.sync()
}

/// The import of a withdrawn segment ends although nothing accesses it: only the event tells its driver.
pub(crate) fn withdrawal_is_an_event(context: &mut Context<'_>) -> Verdict {
    let group = group(context)?;
    let table = Table::of(context)?;
    let mine = export(context, &group, "short", UNIT)?;
    let mut mapped = Vec::new();
    for _ in 0..3 {
        let import = context.import(context.peers.right(), "short")?;
        must(import.state()?.direct, || "it is not direct".into())?;
        import.put64(8, 1)?;
        mapped.push(import);
    }
    context.sync()?;
    let before = table.get(["ended", "events"])?;
    context.sync()?;
    mine.close()?;
    for import in &mapped {
        context.state_becomes(import, "dead with Stale", |s| s.dead && s.error == Some(Status::Stale))?;
    }
    let [ended, events] = more(table.get(["ended", "events"])?, before);
    same("the imports that have ended", ended, 3)?;
    must(events > 0, || "there was no event".into())?;
    context.sync()
}

/// A huge page of direct memory takes one page fault; what has been trapped is mapped by small pages again.
pub(crate) fn huge_pages(context: &mut Context<'_>) -> Verdict {
    const HUGE: u64 = 2 << 20;
    const PAGE: u64 = 4096;
    let table = Table::of(context)?;
    let (mine, right) = neighbour(context, 2 * HUGE + UNIT)?;
    let local = mine.clone();
    let faults = |what: &str, size: u64, huge: u64, access: &dyn Fn(u64) -> Verdict| -> Verdict {
        let before = table.get(["faults", "huge_faults"])?;
        for at in (0..size).step_by(PAGE as usize) {
            access(at)?;
        }
        let [faults, huge_faults] = more(table.get(["faults", "huge_faults"])?, before);
        // A kernel without such mappings: all small.
        let huge = if table.get(["huge_bytes"])? == [0] { 0 } else { huge };
        let small = (size - huge * HUGE) / PAGE;
        same(format_args!("faults of small and huge pages, {what}"), (faults, huge_faults), (small, huge))
    };
    let store = |at: u64| -> Verdict { Ok(right.put64(at, at + 1)?) };
    faults("stored to", 2 * HUGE + UNIT, 2, &store)?;
    let again = table.get(["faults", "huge_faults"])?;
    (0..2 * HUGE + UNIT).step_by(PAGE as usize).try_for_each(store)?;
    same("faults of what is mapped", more(table.get(["faults", "huge_faults"])?, again), [0, 0])?;
    context.sync()?;
    let load = |at: u64| same(format_args!("the owner's word at {at:#x}"), local.load::<u64>(at)?, at + 1);
    faults("loaded by their owner", 2 * HUGE + UNIT, 2, &load)?;
    context.sync()?;
    // The first huge page is accessed while it is trapped, so that it has a table of small ones.
    let counter = right.arm_counter(0, 0, 1000)?;
    must(!right.state()?.direct, || "a counted import is still direct".into())?;
    right.put64(0, 5)?;
    counter.disarm()?;
    must(right.state()?.direct, || "it is not direct again".into())?;
    faults("stored to after that", 2 * HUGE, 1, &store)?;
    same("the first word", right.get64(0)?, 1)?;
    context.sync()?;
    same("the owner's first word", mine.load::<u64>(0)?, 1)?;
    context.sync()
}

/// The memory device of this node without its driver, until this is dropped.
struct Unbound {
    driver: &'static Path,
    device: String,
}

impl Unbound {
    fn new() -> Verdict<Unbound> {
        let driver = Path::new("/sys/bus/pci/drivers/telegraphos-memory");
        let mut devices =
            std::fs::read_dir(driver)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        // 0000:00:04.0
        let device = devices.find(|name| name.contains(':'));
        let device = device.ok_or_else(|| Stop::Fail(format!("{} has no device", driver.display())))?;
        std::fs::write(driver.join("unbind"), &device)?;
        Ok(Unbound { driver, device })
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        let _ = std::fs::write(self.driver.join("bind"), &self.device);
    }
}

/// A node whose memory device loses its driver continues through the boards, and is direct again when it has one. What
/// it exports directly ends, for others, too.
pub(crate) fn unbound(context: &mut Context<'_>) -> Verdict {
    let group = group(context)?;
    if user::uid() != 0 {
        return Err(Stop::Skip("needs root, to unbind a driver: telegraphos run --user root".into()));
    }
    let table = Table::of(context)?;
    let (mine, right) = neighbour(context, 2 * UNIT)?;
    let (nodes, me) = context.place();
    right.put64(8, 1)?;
    context.sync()?;
    if me == 0 {
        let before = table.get(["trapped", "untrapped", "bound"])?;
        let unbound = Unbound::new()?;
        must(!right.state()?.direct, || "an import is direct without its memory device".into())?;
        same("a word stored before", right.get64(8)?, 1)?;
        right.put64(16, 2)?;
        right.quiet()?;
        same("a word stored without it", right.get64(16)?, 2)?;
        same("fetch-and-add", right.fetch_add::<u64>(16, 1)?, 2)?;
        same("the trust group", context.node().trust_group()?, None)?;
        let name = context.name("meanwhile");
        refused("direct memory", context.node().export(&name, UNIT).direct(&group).create(), libc::EXDEV)?;
        line(&board_directory(context)?, "exports", &["dead=1", &format!("name=\"{}\"", mine.name())])?;
        let late = context.import(context.peers.right(), "direct")?;
        late.put64(24, 3)?;
        late.quiet()?;
        same("the driver", table.get(["bound"])?, [0])?;
        drop(unbound);
        for import in [&right, &late] {
            context.state_becomes(import, "a direct one", |state| state.direct)?;
            same("a word from before", import.get64(16)?, 3)?;
        }
        late.put64(32, 4)?;
        let [trapped, untrapped, bound] = table.get(["trapped", "untrapped", "bound"])?;
        same("imports that were trapped, and are no more", more([trapped, untrapped], [before[0], before[1]]), [1, 2])?;
        same("the driver, before and after", (before[2], bound), (1, 1))?;
    } else if me == nodes - 1 {
        // Its right neighbour's.
        context.state_becomes(&right, "dead with Stale", |s| s.dead && s.error == Some(Status::Stale))?;
    }
    context.sync()?;
    if me == 1 {
        let words = [8, 16, 24, 32].map(|at| mine.load::<u64>(at));
        for (found, expected) in words.into_iter().zip([1, 3, 3, 4]) {
            same("a word of the left neighbour", found?, expected)?;
        }
    }
    let again = export(context, &group, "again", UNIT)?;
    context.keep(again);
    let right = context.import(context.peers.right(), "again")?;
    must(right.state()?.direct, || "a new import is not direct".into())?;
    same("its first word", right.get64(0)?, 0)?;
    context.sync()
}

/// Memory is zeroed before it is anybody's, and comes back when it is withdrawn.
pub(crate) fn cycles(context: &mut Context<'_>) -> Verdict {
    let group = group(context)?;
    // Far more than a slice has, one after the other.
    for round in 0..40 {
        let segment = context.node().export(&context.name("cycle"), 16 << 20).direct(&group).create()?;
        for at in (0..16 << 20).step_by(1 << 20) {
            same(format_args!("a new word in round {round}"), segment.load::<u64>(at)?, 0)?;
            segment.store::<u64>(at, u64::MAX)?;
        }
        segment.close()?;
    }
    context.sync()
}

/// A store to a replicated page is ordered by its home's board, so no member of the group reaches its memory around it.
pub(crate) fn replicated(context: &mut Context<'_>) -> Verdict {
    group(context)?;
    let table = Table::of(context)?;
    let before = table.get(["faults", "huge_faults"])?;
    let boards = context.boards("ordered", UNIT)?;
    let (nodes, me) = context.place();
    let home = (me + 1) % nodes;
    let name = context.name("ordered");
    let import = context.node().import(context.peers.right(), &name).rights(telegraphos::READ_WRITE).open()?;
    must(!import.state()?.direct, || "an import of a replicated segment is direct".into())?;
    for at in (0..UNIT).step_by(4096) {
        import.put64(at, u64::from(context.me()) << 32 | at)?;
    }
    import.quiet()?;
    for at in (0..UNIT).step_by(4096) {
        same(format_args!("the copy's word at {at:#x}"), boards[home].load(at)?, u64::from(context.me()) << 32 | at)?;
    }
    same("page faults for direct memory", more(table.get(["faults", "huge_faults"])?, before), [0, 0])?;
    context.sync()
}

/// Refused, and with the names of both groups.
pub(crate) fn outside(context: &mut Context<'_>) -> Verdict {
    let group = group(context)?;
    let outside = |group: &str| context.node().export(&context.name("outside"), UNIT).direct(group).create();
    let says = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        let all = parts.iter().all(|part| text.contains(part));
        must(all, || format!("{text:?}: expected {parts:?}"))
    };
    match outside("elsewhere") {
        Ok(_) => return Err(Stop::Fail("a segment in another group was made".into())),
        Err(error) => {
            same("its errno", error.errno(), libc::EXDEV)?;
            says(error, &["\"elsewhere\"", &format!("{group:?}")])?;
        }
    }
    refused("a name with a NUL", outside("a\0b"), libc::EINVAL)?;
    refused("more than there is", export(context, &group, "big", 64 << 20), libc::ENOSPC)?;
    context.sync()
}
