// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program on other nodes: it is the master of the tasks, their outputs and their ends come here.

use lexopt::prelude::{Long, Short, Value, ValueExt};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;
use telegraphos_daemon::program::{self, Failure};
use telegraphos_daemon::{Daemon, Error, Exit, Job, Outputs, Piece, Place, Refusal, Spawn, TaskId, Watched};

const HELP: &str = "\
Runs a program on the nodes of the cluster, and waits for it.

Usage: tg-spawn [OPTIONS] PROGRAM [ARGUMENT...]

The program runs as this user, with this environment and in this directory, on the least loaded nodes; its output
comes here, by whole lines. When tg-spawn ends, by whatever cause, so do its tasks: by SIGTERM, then by SIGKILL.

Options:
  -n, --count N         How many tasks, 1 to 256, one after the other on the least loaded nodes [default: 1]
  -N, --node NODE       All of them on this node
  -P, --partition NAME  Only on nodes of this partition [default: $TELEGRAPHOS_PARTITION]
  -d, --dir DIRECTORY   Working directory [default: this one]
  -e, --env NAME=VALUE  One more variable of the environment
  -l, --label           Put [NODE.PID] before each line
  -v, --verbose         Say which tasks there are, and how they end
  -h, --help            Print this

Examples:
  tg-spawn -n 4 -l hostname
  tg-spawn --node 2 -- sh -c 'echo $PWD'
  tg-spawn --partition batch make -j2

Exit codes: 0 if all tasks end with 0; else that of the first that does not, 128 and the signal if one has ended it;
125 if something is wrong here, 126 or 127 if the program cannot be run or found, 2 for a wrong use.
";

/// The variable that keeps a master, and all its children, in a partition.
const PARTITION: &str = "TELEGRAPHOS_PARTITION";
/// How long the outputs of tasks that have ended are waited for, which their children may hold.
const OUTPUTS: Duration = Duration::from_secs(5);
const FAILED: u8 = 125;

fn main() -> ExitCode {
    program::run("tg-spawn", FAILED, || run(lexopt::Parser::from_env()))
}

struct Options {
    spawn: Spawn,
    label: bool,
    verbose: bool,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<Options>, Failure> {
    let usage = |text: String| Failure::Usage(text);
    let (mut count, mut place, mut dir) = (1, Place::LeastLoaded, None);
    let mut partition = std::env::var(PARTITION).ok().filter(|name| !name.is_empty());
    let text = |value: std::ffi::OsString| value.into_string().map_err(|value| usage(format!("{value:?} is no UTF-8")));
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        env.insert(text(name)?, text(value)?);
    }
    let (mut label, mut verbose) = (false, false);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Short('n') | Long("count") => {
                count = parser.value()?.parse()?;
                if !(1..=256).contains(&count) {
                    return Err(usage(format!("--count is {count}: expected 1 to 256")));
                }
            }
            Short('N') | Long("node") => place = Place::Node(parser.value()?.parse()?),
            Short('P') | Long("partition") => partition = Some(parser.value()?.string()?),
            Short('d') | Long("dir") => dir = Some(parser.value()?.string()?),
            Short('e') | Long("env") => {
                let value = parser.value()?.string()?;
                let (name, value) =
                    value.split_once('=').ok_or_else(|| usage(format!("--env is {value:?}: expected NAME=VALUE")))?;
                env.insert(name.into(), value.into());
            }
            Short('l') | Long("label") => label = true,
            Short('v') | Long("verbose") => verbose = true,
            Value(program) => {
                let mut argv = vec![text(program)?];
                for word in parser.raw_args()? {
                    argv.push(text(word)?);
                }
                if let Some(partition) = &partition {
                    env.insert(PARTITION.into(), partition.clone());
                }
                let dir = match dir {
                    Some(dir) => dir,
                    None => text(
                        std::env::current_dir().map_err(|error| usage(format!("this directory: {error}")))?.into(),
                    )?,
                };
                let job = Job { argv, env: env.into_iter().collect(), dir, logger: None };
                return Ok(Some(Options { spawn: Spawn { place, count, partition, job }, label, verbose }));
            }
            _ => return Err(argument.unexpected().into()),
        }
    }
    Err(usage("no program is named".into()))
}

/// Writes what a task has written, in one piece.
fn print(piece: &Piece<'_>, label: bool) -> io::Result<()> {
    let mut text = Vec::with_capacity(piece.bytes.len());
    for line in piece.bytes.split_inclusive(|byte| *byte == b'\n') {
        if label {
            write!(text, "[{}] ", piece.task)?;
        }
        text.extend_from_slice(line);
    }
    match piece.stream {
        1 => {
            let mut out = io::stdout().lock();
            out.write_all(&text)?;
            out.flush()
        }
        _ => io::stderr().lock().write_all(&text),
    }
}

/// What a task that has not been started counts as: as of env(1).
fn code_of(refusal: &Refusal) -> u8 {
    match refusal.errno {
        Refusal::ENOENT => 127,
        Refusal::EHOSTUNREACH | Refusal::EAGAIN => FAILED,
        _ => 126,
    }
}

fn run(parser: lexopt::Parser) -> Result<ExitCode, Failure> {
    let Some(Options { mut spawn, label, verbose }) = options(parser)? else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let mut daemon = Daemon::connect()?;
    let outputs = Outputs::listen(move |piece| print(&piece, label))?;
    spawn.job.logger = Some(outputs.logger());
    let mut code = 0;
    let mut failed = |value: u8| {
        if code == 0 {
            code = value;
        }
    };
    let mut tasks: Vec<TaskId> = Vec::new();
    let spawned = match daemon.spawn(spawn) {
        Err(Error::Refused(refusal)) => return Err(Failure::Failed(refusal.to_string())),
        spawned => spawned?,
    };
    for spawned in spawned {
        match spawned.outcome {
            Ok(task) => {
                if verbose {
                    eprintln!("tg-spawn: task {} is {task}", spawned.index);
                }
                tasks.push(task);
            }
            Err(refusal) => {
                eprintln!("tg-spawn: task {}: {refusal}", spawned.index);
                failed(code_of(&refusal));
            }
        }
    }
    // Nothing more is to come from a node that is lost.
    let mut lost = Vec::new();
    while let Some((what, exit)) = daemon.next_death()? {
        if verbose || matches!(exit, Exit::NodeLost | Exit::Unknown) {
            eprintln!("tg-spawn: {what}: {exit}");
        }
        if exit.code() != 0 {
            failed(exit.code());
        }
        if let (Watched::Task(task), Exit::NodeLost) = (what, exit) {
            lost.push(task);
        }
    }
    tasks.retain(|task| !lost.contains(task));
    outputs.wait(&tasks, OUTPUTS);
    Ok(ExitCode::from(code))
}
