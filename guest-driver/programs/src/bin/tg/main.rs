// SPDX-License-Identifier: MIT OR Apache-2.0
//! All programs of guests in one but that of the demonstration (`tg-demo`), which is built without the others: it runs
//! as the program by whose name it is started, as busybox does.
//!
//! Exit codes of all of them: 0 done, 1 a check failed, 2 usage, 3 the board, the driver or a peer refused.

// Each of the library's examples declares what examples share.
#![allow(clippy::duplicate_mod)]

mod bench;
#[path = "../../../../lib/examples/blockcopy.rs"]
mod blockcopy;
#[path = "../../../../lib/examples/broadcast.rs"]
mod broadcast;
mod channel;
mod chaos;
mod count;
mod export;
#[path = "../../../../lib/examples/farm.rs"]
mod farm;
mod faults;
mod flood;
mod hostile;
mod hostile_tgd;
#[path = "../../../../lib/examples/hotpage.rs"]
mod hotpage;
mod load;
#[path = "../../../../lib/examples/lock.rs"]
mod lock;
#[path = "../../../../lib/examples/mailbox.rs"]
mod mailbox;
mod map;
mod mixed;
mod msg;
mod net;
mod notify;
#[path = "../../../../lib/examples/pingpong.rs"]
mod pingpong;
mod queue;
mod race;
#[path = "../../../../lib/examples/register.rs"]
mod register;
mod replica;
mod replicate;
mod selftest;
mod store;
mod top;
mod traffic;
mod watch;
#[path = "../../../../lib/examples/whiteboard.rs"]
mod whiteboard;
#[path = "../../../../lib/examples/work.rs"]
mod work;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use telegraphos_guest_tests::child;
use telegraphos_guest_tests::cli::{self, Line, Outcome};

enum Start {
    Own(fn(Line) -> Outcome<()>),
    /// An example of the library.
    Example(fn() -> ExitCode),
}

use Start::{Example, Own};

/// The programs: the name of each, its help, whose first line says what it is, and its start.
const PROGRAMS: &[(&str, &str, Start)] = &[
    ("tg-bench", bench::USAGE, Own(bench::run)),
    ("tg-broadcast", broadcast::USAGE, Example(broadcast::main)),
    ("tg-channel", channel::USAGE, Own(channel::run)),
    ("tg-chaos", chaos::USAGE, Own(chaos::run)),
    ("tg-copy", blockcopy::USAGE, Example(blockcopy::main)),
    ("tg-count", count::USAGE, Own(count::run)),
    ("tg-export", export::USAGE, Own(export::run)),
    ("tg-farm", farm::USAGE, Example(farm::main)),
    ("tg-faults", faults::USAGE, Own(faults::run)),
    ("tg-flood", flood::USAGE, Own(flood::run)),
    ("tg-hostile", hostile::USAGE, Own(hostile::run)),
    ("tg-hostile-tgd", hostile_tgd::USAGE, Own(hostile_tgd::run)),
    ("tg-hotpage", hotpage::USAGE, Example(hotpage::main)),
    ("tg-load", load::USAGE, Own(load::run)),
    ("tg-lock", lock::USAGE, Example(lock::main)),
    ("tg-mailbox", mailbox::USAGE, Example(mailbox::main)),
    ("tg-map", map::USAGE, Own(map::run)),
    ("tg-mixed", mixed::USAGE, Own(mixed::run)),
    ("tg-msg", msg::USAGE, Own(msg::run)),
    ("tg-net", net::USAGE, Own(net::run)),
    ("tg-notify", notify::USAGE, Own(notify::run)),
    ("tg-pingpong", pingpong::USAGE, Example(pingpong::main)),
    ("tg-queue", queue::USAGE, Own(queue::run)),
    ("tg-race", race::USAGE, Own(race::run)),
    ("tg-register", register::USAGE, Example(register::main)),
    ("tg-replica", replica::USAGE, Own(replica::run)),
    ("tg-replicate", replicate::USAGE, Own(replicate::run)),
    ("tg-selftest", selftest::USAGE, Own(selftest::run)),
    ("tg-store", store::USAGE, Own(store::run)),
    ("tg-top", top::USAGE, Own(top::run)),
    ("tg-traffic", traffic::USAGE, Own(traffic::run)),
    ("tg-watch", watch::USAGE, Own(watch::run)),
    ("tg-whiteboard", whiteboard::USAGE, Example(whiteboard::main)),
    ("tg-work", work::USAGE, Example(work::main)),
];

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let own = words.next().unwrap_or_default();
    match PROGRAMS.iter().find(|(name, ..)| Path::new(&own).ends_with(name)) {
        Some((name, usage, Own(run))) => cli::main(name, usage, run),
        Some((.., Example(main))) => main(),
        None => by_first_word(words),
    }
}

/// Started by another name: the first word is that of the program, with or without `tg-`.
fn by_first_word(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let first = words.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    let named = PROGRAMS.iter().find(|(name, ..)| *name == first || name.strip_prefix("tg-") == Some(&first));
    if let Some((name, ..)) = named {
        // Once more by its name, which its messages have, and the processes that it starts.
        eprintln!("{name}: {}", child::again().arg0(name).args(words).exec());
        return ExitCode::from(3);
    }
    match first.as_str() {
        "--list" => PROGRAMS.iter().for_each(|(name, ..)| println!("{name}")),
        "--help" => print!("{}", help()),
        _ => {
            eprint!("{}", help());
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn help() -> String {
    let mut help = "The programs of guests, each by its name or as the first argument of tg\n\n\
                    Usage: tg PROGRAM ...\n       tg --list\n\n"
        .to_owned();
    for (name, usage, _) in PROGRAMS {
        let what = usage.lines().next().unwrap_or_default();
        help += &format!("  {name:<14} {}\n", what.trim_start_matches(name).trim_start_matches(": "));
    }
    help
}
