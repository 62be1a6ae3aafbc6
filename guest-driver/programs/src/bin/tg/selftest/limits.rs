// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many, and much.

use super::context::{Context, Verdict, must, same};
use super::trouble::REFUSED;
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::random;

pub(crate) fn many_imports(context: &mut Context<'_>) -> Verdict {
    const COUNT: u64 = 300;
    let (mine, right) = context.neighbour(4096)?;
    let name = context.name("data");
    let imports =
        (0..COUNT).map(|_| Ok(context.node().import(right.node(), &name).open()?)).collect::<Verdict<Vec<_>>>()?;
    let mut handles: Vec<u32> = imports.iter().map(|i| i.handle()).collect();
    handles.sort_unstable();
    handles.dedup();
    same("the number of different handles", handles.len(), COUNT as usize)?;
    for (index, import) in imports.iter().enumerate() {
        import.put64(index as u64 * 8, random::word(3, index as u64))?;
    }
    context.node().quiet()?;
    context.sync()?;
    for index in 0..COUNT {
        same(format_args!("the word of import {index}"), mine.load::<u64>(index * 8)?, random::word(3, index))?;
    }
    context.sync()
}

/// What an ordinary user makes under two limits on locked memory, of which the first is too low. Root has none.
pub(crate) fn under_limits(
    context: &Context<'_>,
    action: &str,
    words: &[&str],
    [(low, too_much), (high, not_too_much)]: [(&str, &str); 2],
    made: &str,
) -> Verdict {
    let attempt = |limit| -> Verdict<(Option<String>, End)> {
        Ok(context.ordinary_child(&[&[action, limit], words].concat())?.last()?)
    };
    let (line, end) = attempt(low)?;
    same(too_much, line, Some(format!("errno {}", libc::ENOMEM)))?;
    same("its end", end, End::Code(REFUSED))?;
    let (line, _) = attempt(high)?;
    same(not_too_much, line, Some(made.into()))
}

pub(crate) fn locked_memory(context: &mut Context<'_>) -> Verdict {
    let limits = [("262144", "1 MiB under a limit of 256 KiB"), ("2097152", "1 MiB under a limit of 2 MiB")];
    under_limits(context, "export-limited", &[&context.name("limited"), "1048576"], limits, "exported")
}

/// Memory exported through an inherited descriptor exists as long as that, and so does its charge: the process that
/// exported it is gone by then.
pub(crate) fn locked_memory_of_forked(context: &mut Context<'_>) -> Verdict {
    let mut child = context.ordinary_child(&["export-forked", "2097152", &context.name("forked"), "1048576", "4"])?;
    child.expect("exit 0")?;
    // The next is beyond the limit with the status page's neighbours; at the latest the third.
    let mut refused = 0;
    for _ in 1..4 {
        refused += u32::from(child.line()? == Some(format!("exit {}", libc::ENOMEM)));
    }
    child.must_end(End::WELL)?;
    must(refused >= 2, || format!("4 children exported 1 MiB each under a limit of 2 MiB: {refused} were refused"))?;
    // It all went with the descriptor.
    let mut child = context.ordinary_child(&["export-limited", "2097152", &context.name("limited"), "1048576"])?;
    same("1 MiB under a limit of 2 MiB, after that", child.line()?, Some("exported".into()))
}

/// One process takes all imports, counters and contexts that it can get. Another of the same user, and one of another
/// user, get their shares.
pub(crate) fn greedy_process(context: &mut Context<'_>) -> Verdict {
    let mine = context.export("data", 4096)?;
    let (id, name) = (context.me().to_string(), context.name("data"));
    let mut greedy = context.ordinary_child(&["greedy", &id, &name])?;
    let said = greedy.line()?.unwrap_or_default();
    let taken: Vec<u64> = said.split(' ').filter_map(|n| n.parse().ok()).collect();
    must(taken.len() == 3 && taken.iter().all(|n| *n > 0), || format!("the greedy process said {said:?}"))?;
    let mut modest = context.ordinary_child(&["modest", &id, &name])?;
    modest.must_end_saying("served")?;
    // This process, which may be root's.
    let node = context.other_file()?;
    let own = node.import(context.me(), &name).open()?;
    own.put64(8, 77)?;
    own.quiet()?;
    same("the word", mine.load::<u64>(8)?, 77)?;
    greedy.must_go_to(End::WELL)?;
    // All of it is free again.
    let mut greedy = context.ordinary_child(&["greedy", &id, &name])?;
    same("what it gets the second time", greedy.line()?, Some(said))?;
    greedy.go()?;
    Ok(greedy.must_end(End::WELL)?)
}

pub(crate) fn many_units(context: &mut Context<'_>) -> Verdict {
    const UNIT: u64 = 64 << 10;
    let (mine, right) = context.neighbour(64 * UNIT)?;
    let (own_seed, peer_seed) = context.seeds()?;
    for unit in 0..64 {
        right.put64(unit * UNIT, random::word(own_seed, 2 * unit))?;
        right.put64((unit + 1) * UNIT - 8, random::word(own_seed, 2 * unit + 1))?;
    }
    context.sync_behind(&right)?;
    for unit in 0..64 {
        same(
            format_args!("the first word of unit {unit}"),
            mine.load(unit * UNIT)?,
            random::word(peer_seed, 2 * unit),
        )?;
        let last = mine.load((unit + 1) * UNIT - 8)?;
        same(format_args!("the last word of unit {unit}"), last, random::word(peer_seed, 2 * unit + 1))?;
    }
    let others = (0..64 * UNIT).step_by(8).filter(|at| at % UNIT != 0 && at % UNIT != UNIT - 8);
    for at in others.step_by(37) {
        let found: u64 = mine.load(at)?;
        must(found == 0, || format!("word {at:#x} is {found:#x}: expected 0, no store was made there"))?;
    }
    context.sync()
}
