// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks at the tasks and nodes of the cluster, sends signals, waits, and changes partitions.

use lexopt::prelude::{Long, Short, Value, ValueExt};
use std::process::ExitCode;
use telegraphos_daemon::program::{self, Failure};
use telegraphos_daemon::{Daemon, LOAD_ONE, TaskId, Watched};

const HELP: &str = "\
Looks at the tasks and the nodes of the cluster.

Usage: tg-task list                              all tasks: NODE.PID, user, master, program
       tg-task nodes                             all nodes: alive or dead, load, incarnation
       tg-task kill [-s SIGNAL] NODE.PID...      sends a signal, by number or name [default: TERM]
       tg-task wait NODE.PID...                  waits for the ends of processes; ends with the code of the last
       tg-task wait-node NODE...                 waits for the deaths of nodes
       tg-task partition list
       tg-task partition create NAME NODE...     makes or changes it (root)
       tg-task partition delete NAME             (root)

Options:
  -h, --help    Print this

Examples:
  tg-task nodes
  tg-task kill -s INT 2.345
  tg-task partition create batch 1 2 3

Exit codes: 0 done, 1 refused (what kill(2) would say, and why, on the standard error), 2 wrong use, 3 no daemon.
wait ends with the code of the process, 128 and the signal that has ended it, or 125 if its node is lost or its
code is not known.
";

/// The names of Linux.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// What is asked of the daemon: the exit code.
type Command = Box<dyn FnOnce(&mut Daemon) -> telegraphos_daemon::Result<u8>>;

fn main() -> ExitCode {
    program::run("tg-task", 1, || run(lexopt::Parser::from_env()))
}

fn signal(text: &str) -> Result<i32, Failure> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = (1..).zip(SIGNALS).find(|(_, signal)| *signal == name).map(|(number, _)| number);
    let number = named.or_else(|| text.parse().ok());
    number.ok_or_else(|| Failure::Usage(format!("the signal {text:?}: expected a number, or a name such as TERM")))
}

fn run(mut parser: lexopt::Parser) -> Result<ExitCode, Failure> {
    let mut words = Vec::new();
    let mut sent = "TERM".to_owned();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            Short('s') | Long("signal") if words.first().is_some_and(|word| word == "kill") => {
                sent = parser.value()?.string()?;
            }
            Value(word) => words.push(word.string()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let sent = signal(&sent)?;
    let task = |text: &&str| text.parse::<TaskId>().map_err(Failure::Usage);
    let node = |text: &&str| {
        text.parse::<u16>().map_err(|_| Failure::Usage(format!("the node {text:?}: expected a number, such as 2")))
    };
    // What is wrong with the words is said before a daemon is looked for.
    let command: Command = match words[..] {
        ["list"] => Box::new(list),
        ["nodes"] => Box::new(nodes),
        ["kill", ref tasks @ ..] if !tasks.is_empty() => {
            let tasks = tasks.iter().map(task).collect::<Result<Vec<_>, _>>()?;
            Box::new(move |daemon| tasks.into_iter().try_for_each(|task| daemon.signal(task, sent)).map(|()| 0))
        }
        ["wait", ref tasks @ ..] if !tasks.is_empty() => {
            let tasks = tasks.iter().map(task).collect::<Result<Vec<_>, _>>()?;
            Box::new(move |daemon| wait(daemon, &tasks.into_iter().map(Watched::Task).collect::<Vec<_>>()))
        }
        ["wait-node", ref nodes @ ..] if !nodes.is_empty() => {
            let nodes = nodes.iter().map(node).collect::<Result<Vec<_>, _>>()?;
            Box::new(move |daemon| wait(daemon, &nodes.into_iter().map(Watched::Node).collect::<Vec<_>>()).map(|_| 0))
        }
        ["partition", "list"] => Box::new(partitions),
        ["partition", "create", name, ref nodes @ ..] => {
            let nodes = nodes.iter().map(node).collect::<Result<Vec<_>, _>>()?;
            let name = name.to_owned();
            Box::new(move |daemon| daemon.set_partition(&name, nodes).map(|()| 0))
        }
        ["partition", "delete", name] => {
            let name = name.to_owned();
            Box::new(move |daemon| daemon.delete_partition(&name).map(|()| 0))
        }
        [] => return Err(Failure::Usage("no command is named".into())),
        _ => return Err(Failure::Usage(format!("the command {:?} is not one of tg-task's", words.join(" ")))),
    };
    match Daemon::connect() {
        Ok(mut daemon) => Ok(ExitCode::from(command(&mut daemon)?)),
        Err(error) => {
            eprintln!("tg-task: {error}");
            Ok(ExitCode::from(3))
        }
    }
}

fn list(daemon: &mut Daemon) -> telegraphos_daemon::Result<u8> {
    for info in daemon.tasks()? {
        println!("{}\tuser {}\tmaster {}\t{}", info.task, info.uid, info.master, info.program);
    }
    Ok(0)
}

fn nodes(daemon: &mut Daemon) -> telegraphos_daemon::Result<u8> {
    for info in daemon.nodes()? {
        let (alive, load) = (if info.alive { "alive" } else { "dead" }, f64::from(info.load) / f64::from(LOAD_ONE));
        println!("{}\t{alive}\tload {load:.2}\tincarnation {}", info.node, info.incarnation);
    }
    Ok(0)
}

fn partitions(daemon: &mut Daemon) -> telegraphos_daemon::Result<u8> {
    for partition in daemon.partitions()? {
        let nodes: Vec<String> = partition.nodes.iter().map(u16::to_string).collect();
        println!("{}\t{}", partition.name, nodes.join(" "));
    }
    Ok(0)
}

fn wait(daemon: &mut Daemon, what: &[Watched]) -> telegraphos_daemon::Result<u8> {
    for what in what {
        daemon.watch(*what)?;
    }
    let mut code = 0;
    while let Some((what, exit)) = daemon.next_death()? {
        println!("{what}: {exit}");
        code = exit.code();
    }
    Ok(code)
}
