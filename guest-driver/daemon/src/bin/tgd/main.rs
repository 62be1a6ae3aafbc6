// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon of a node: one system image of the cluster (s3 §6, SPEC item 38). The rules are in
//! `telegraphos-daemon-core`; here are its board, sockets, processes and clock.
//!
//! ```text
//!   clients ── Unix socket ──┐                  ┌── alive: one store a period, to all nodes
//!   other daemons ── messages ┼─ Input ─► main ─┼── letters: a thread for each node
//!                   processes ┘   (Engine)      └── processes: a thread for each task
//! ```
//!
//! All threads hand what happens to the main thread, which never waits for anything else. Alive messages are read by it
//! alone, once a period: however much the others hand over, no node looks silent for it.

mod alive;
mod clients;
mod letters;
mod processes;

use alive::Alive;
use clients::Client;
use letters::Letters;
use lexopt::prelude::{Long, Short, ValueExt};
use log::{info, warn};
use processes::{Reap, Start};
use rustix::process::{Resource, Rlimit};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_accounts::{Rate, Rates};
use telegraphos_daemon::SOCKET;
use telegraphos_daemon::program::{self, Failure};
use telegraphos_daemon_core::{
    Action, Config, Engine, Event, Exit, INCARNATION_BITS, Incarnation, LOAD_ONE, Party, User,
};

const HELP: &str = "\
The daemon of a node: knows which nodes of the cluster are alive, and runs tasks on any of them.

Usage: tgd [OPTIONS]      (as root, once on each node)

Options:
  -p, --period MS    Time between two alive messages, the same on all nodes [default: 250]
  -s, --silence N    Periods without one after which a node is dead [default: 8]
  -g, --grace N      Periods between SIGTERM and SIGKILL for the tasks of a master that has gone [default: 8]
  -h, --help         Print this

Clients connect at /run/telegraphos/tgd.sock; see tg-spawn and tg-task. It says on the standard error which
nodes come and go; RUST_LOG=debug says more. SIGTERM and SIGINT end it, and its tasks.

Examples:
  tgd &
  tgd --period 100 --silence 20

Exit codes: 0 ended by a signal, 1 cannot start or continue, 2 wrong use.
";

/// What the threads have to report, at most, before they wait.
const INPUTS: usize = 256;

pub(crate) enum Input {
    Event(Event),
    Connected {
        client: u64,
        pid: u32,
        user: User,
        to: Client,
    },
    Exited {
        pid: u32,
        exit: Exit,
        reap: Reap,
    },
    /// It is to end.
    Stop,
    /// It cannot continue.
    Broken(String),
}

/// Parties whose log lines are counted apart.
const PARTIES: usize = 256;

/// Log lines that others can cause: of each party one a second, five at once.
pub(crate) struct Warnings {
    begin: Instant,
    rates: Rates<Party>,
}

impl Default for Warnings {
    fn default() -> Warnings {
        Warnings { begin: Instant::now(), rates: Rates::new(Rate::new(1, 5), Rate::new(10, 50), PARTIES) }
    }
}

impl Warnings {
    pub(crate) fn warn(&mut self, party: Party, text: &str) {
        let now = u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        if self.rates.take(party, now) {
            warn!("{text}");
        }
    }
}

/// Starts a thread.
pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).format_target(false).init();
    program::run("tgd", 1, || run(lexopt::Parser::from_env()))
}

struct Options {
    period: Duration,
    silence: u32,
    grace: u32,
}

fn options(mut parser: lexopt::Parser) -> Result<Option<Options>, Failure> {
    let mut options = Options { period: Duration::from_millis(250), silence: 8, grace: 8 };
    let within = |name: &str, value: u32, least: u32, most: u32| match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(Failure::Usage(format!("{name} is {value}: expected {least} to {most}"))),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Short('p') | Long("period") => {
                let period = within("--period", parser.value()?.parse()?, 10, 60_000)?;
                options.period = Duration::from_millis(period.into());
            }
            Short('s') | Long("silence") => options.silence = within("--silence", parser.value()?.parse()?, 2, 1000)?,
            Short('g') | Long("grace") => options.grace = within("--grace", parser.value()?.parse()?, 0, 1000)?,
            _ => return Err(argument.unexpected().into()),
        }
    }
    Ok(Some(options))
}

fn run(parser: lexopt::Parser) -> Result<ExitCode, Failure> {
    let Some(options) = options(parser)? else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Failed("it runs tasks of all users, so it must be started by root".into()));
    }
    let socket = PathBuf::from(SOCKET);
    let _lock = clients::lock(&socket.with_extension("lock")).map_err(Failure::Failed)?;
    let (to, from) = sync_channel(INPUTS);
    let stop = to.clone();
    ctrlc::set_handler(move || _ = stop.send(Input::Stop)).map_err(|error| Failure::Failed(error.to_string()))?;
    let files = all_descriptors().map_err(|error| Failure::Failed(format!("the limit of open files: {error}")))?;
    let mut daemon = Daemon::open(&options, to, &socket, files).map_err(Failure::Failed)?;
    let ended = daemon.run(&from, &options);
    _ = std::fs::remove_file(&socket);
    ended.map(|()| ExitCode::SUCCESS).map_err(Failure::Failed)
}

/// Takes all descriptors that there may be: clients and tasks that start, of all users, have more than the usual 1024.
/// What the limit was, which tasks have.
fn all_descriptors() -> rustix::io::Result<Rlimit> {
    let before = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before })?;
    Ok(before)
}

/// The engine, and what its actions are done with.
struct Daemon {
    engine: Engine,
    node: u16,
    alive: Alive,
    letters: Letters,
    clients: BTreeMap<u64, Client>,
    warnings: Warnings,
    /// The limit of descriptors that tasks have.
    files: Rlimit,
    to: SyncSender<Input>,
}

/// A number that an earlier start hardly had.
fn incarnation() -> Result<Incarnation, String> {
    let mut bytes = [0; 4];
    let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    random.map_err(|error| format!("no random number: {error}"))?;
    Ok((u32::from_le_bytes(bytes) & ((1 << INCARNATION_BITS) - 1)).max(1))
}

/// The run queue of this node: the first number of /proc/loadavg.
fn running() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().and_then(|load| load.parse::<f64>().ok()).unwrap_or_default();
    // Saturates.
    (load * f64::from(LOAD_ONE)) as u32
}

impl Daemon {
    fn open(options: &Options, to: SyncSender<Input>, socket: &Path, files: Rlimit) -> Result<Daemon, String> {
        let board = || Node::open().map_err(|error| error.to_string());
        let node = board()?;
        let info = node.info().map_err(|error| error.to_string())?;
        let nodes = u16::try_from(info.nodes).map_err(|_| format!("{} nodes: expected at most 65535", info.nodes))?;
        let mut config = Config::new(info.node, incarnation()?, nodes);
        (config.silence, config.grace) = (options.silence, options.grace);
        info!("node {}: tgd begins, incarnation {}", config.node, config.incarnation);
        let alive = Alive::open(&node, nodes, options.period, options.silence)?;
        let letters = Letters::open(board()?, to.clone())?;
        clients::listen(socket, to.clone())?;
        let node = config.node;
        let (clients, warnings) = (BTreeMap::new(), Warnings::default());
        Ok(Daemon { engine: Engine::new(config), node, alive, letters, clients, warnings, files, to })
    }

    fn run(&mut self, from: &Receiver<Input>, options: &Options) -> Result<(), String> {
        let mut next = Instant::now();
        // Once it is to end: how long it waits for its tasks.
        let mut end: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if now >= next {
                // Of periods that were missed, the nodes that are heard have not been silent for.
                next = now + options.period;
                for heard in self.alive.heard().map_err(|error| format!("the board: {error}"))? {
                    self.event(heard)?;
                }
                self.event(Event::Tick { running: running() })?;
                self.letters.start();
                if end.is_some_and(|end| now >= end || self.engine.own_tasks() == 0) {
                    return Ok(());
                }
            }
            let input = match from.recv_timeout(next.saturating_duration_since(now)) {
                Ok(input) => input,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err("all threads have ended".into()),
            };
            match input {
                Input::Stop => {
                    info!("node {}: tgd ends, and its tasks", self.node);
                    let grace = options.period * options.grace;
                    end = end.or(Some(Instant::now() + 2 * grace + Duration::from_secs(1)));
                    self.event(Event::Stop)?;
                }
                Input::Broken(why) => return Err(why),
                Input::Connected { client, pid, user, to } => {
                    self.clients.insert(client, to);
                    self.event(Event::Connected { client, pid, user })?;
                }
                Input::Exited { pid, exit, reap } => {
                    self.event(Event::Exited { pid, exit })?;
                    drop(reap);
                }
                Input::Event(event) => {
                    if let Event::Gone { client } = event {
                        self.clients.remove(&client);
                    }
                    self.event(event)?;
                }
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        // What fails at once is an event as well.
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.engine.handle(event) {
                events.extend(self.act(action)?);
            }
        }
        Ok(())
    }

    /// Does what the engine wants; how it has failed, if it has.
    fn act(&mut self, action: Action) -> Result<Option<Event>, String> {
        match action {
            Action::Beat { incarnation, load } => {
                self.alive.beat(incarnation, load).map_err(|error| format!("the board: {error}"))?;
            }
            Action::Send { node, envelope } => self.letters.send(node, envelope),
            Action::Start { token, user, master, job } => {
                let start = Start { token, node: self.node, user, master, job, files: self.files };
                if let Err(refusal) = processes::start(start, self.to.clone()) {
                    return Ok(Some(Event::Started { token, outcome: Err(refusal) }));
                }
            }
            Action::Signal { token, pid, signal, user } => {
                if let Err(refusal) = processes::signal(token, self.node, pid, signal, user, self.to.clone()) {
                    return Ok(Some(Event::Signalled { token, outcome: Err(refusal) }));
                }
            }
            Action::End { pid, kill } => processes::end(pid, kill),
            Action::Answer { client, id, answer } => {
                if let Some(client) = self.clients.get(&client) {
                    client.answer(id, answer);
                }
            }
            Action::Joined { node, incarnation } => {
                self.letters.alive(node, incarnation);
                info!("node {node} is alive, incarnation {incarnation}");
            }
            Action::Lost { node, incarnation } => {
                self.letters.alive(node, 0);
                info!("node {node} is dead, incarnation {incarnation}");
            }
            Action::Refused { party, what, exhausted, times } => {
                self.warnings.warn(party, &format!("{party}: {what}: {exhausted}; {times} refusals so far"));
            }
            Action::Renewed { incarnation } => {
                warn!("others have declared this node dead: its tasks end; it is incarnation {incarnation} now");
            }
        }
        Ok(None)
    }
}
