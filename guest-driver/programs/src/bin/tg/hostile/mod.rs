// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hostile user of the driver: every ioctl of the interface's table with what no program would send.

mod attacks;
mod gone;
mod held;
mod maps;
mod neighbours;
mod tables;
mod threads;
mod watch;

use tables::Tables;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::interface::call;
use telegraphos_guest_tests::interface::rows::World;
use telegraphos_guest_tests::pins;

pub(crate) const USAGE: &str = "\
tg-hostile: a hostile user of the driver: every ioctl with what no program would send

Usage: tg-hostile [--only TEXT] [--rounds N]
       tg-hostile gone
       tg-hostile neighbours [--rounds N]

  --only TEXT      only attacks with TEXT in their names
  --rounds N       how often each object is used by several threads while it is closed [10]

An attack is refused with an errno, or does what it may, and leaves nothing: objects, contexts and pinned pages are
those that were there before, and a process beside it continues. With `gone` it makes one object of each kind, prints
\"ready\", waits until the board has gone, and sends everything once more. With `neighbours` it measures what another
process of the node notices, in N turns each: its rounds beside a hostile user, and beside one that only computes.

Needs root. It prints one line for each attack. Exit codes: 0 done, 1 a check failed, 2 usage, 3 no board, no driver.

Example: telegraphos run --nodes 2 --user root -- tg-hostile
";

/// An attack, which leaves nothing.
struct Attack {
    name: &'static str,
    run: fn(&World, usize) -> Outcome<u64>,
}

const ATTACKS: &[Attack] = &[
    Attack { name: "sizes", run: |world, _| attacks::sizes(world) },
    Attack { name: "flags", run: |world, _| attacks::flags(world) },
    Attack { name: "pointers", run: |world, _| attacks::pointers(world) },
    Attack { name: "fields", run: |world, _| attacks::fields(world) },
    Attack { name: "handles", run: |world, _| attacks::handles(world) },
    Attack { name: "numbers", run: |world, _| attacks::numbers(world) },
    Attack { name: "reads-and-polls", run: |_, _| attacks::reads() },
    Attack { name: "maps", run: |world, _| maps::every(world) },
    Attack { name: "held-by-userfaultfd", run: |world, _| held::every(world) },
    Attack { name: "killed-while-held", run: |_, _| held::killed() },
    Attack { name: "closed-by-other-threads", run: threads::close },
];

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut only, mut rounds) = (String::new(), 10);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "only" => only = line.text()?,
            "rounds" => rounds = line.number("--rounds")?,
            // What this program starts itself.
            "child" => line.words.push("child".into()),
            _ => return Err(cli::unknown(&option)),
        }
    }
    let words = line.words();
    match words[..] {
        [] => {}
        ["gone"] => return gone::run(),
        ["neighbours"] => return neighbours::run(rounds),
        ["child", "beside", kind] => return neighbours::child(kind),
        ["child", "held", name, when] => return held::child(name, when),
        _ => return Err(Failure::Usage(format!("arguments {words:?}: expected none, gone or neighbours"))),
    }
    drop(call::open()?);
    tables::mount();
    let before = Tables::now()?;
    watch::watch();
    for attack in ATTACKS.iter().filter(|attack| attack.name.contains(&only)) {
        // Nothing of the attack before is in what this one begins with.
        before.come_back()?;
        let world = World::new()?;
        let begun = Tables::now()?;
        let calls = (attack.run)(&world, rounds).map_err(|failure| of_attack(attack.name, failure))?;
        begun.come_back().map_err(|failure| of_attack(attack.name, failure))?;
        drop(world);
        println!("{}: {calls} calls", attack.name);
    }
    before.come_back()?;
    pins::nothing_is_pinned().map_err(Failure::Check)
}

fn of_attack(name: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Check(text) | Failure::Refused(text) => Failure::Check(format!("{name}: {text}")),
        other => other,
    }
}
