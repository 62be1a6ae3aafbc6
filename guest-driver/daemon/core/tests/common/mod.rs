// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster of engines, and what is expected of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use telegraphos_daemon_core::protocol::{Answer, Envelope, Letter, Request, decode, encode};
use telegraphos_daemon_core::{
    Action, Bug, Config, Engine, Event, Exit, Incarnation, Job, NodeInfo, Party, Place, Refusal, TaskId, User, Watched,
};
use telegraphos_testkit::{Rng, counts};

pub(crate) const NODES: u16 = 4;
const SILENCE: u32 = 4;
const GRACE: u32 = 2;
/// Requests on their way to one node, at most; those of a user and of root that are always possible.
const LETTERS: u64 = 128;
const OF_A_USER: u64 = 2;
const OF_ROOT: u64 = 18;
/// Users of clients.
const USERS: [u32; 4] = [0, 0, 1000, 1001];

macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(format!($($text)*));
        }
    };
}

counts! {
    pub(crate) struct Counts {
        spawned, refused, told, lost, ended, killed, crashes, fenced, partitions,
        /// Requests refused since too many letters were on their way.
        full,
    }
}

/// What is spawned.
pub(crate) fn job() -> Job {
    Job { argv: vec!["work".into()], env: Vec::new(), dir: "/".into(), logger: None }
}

/// The daemon of node 0, with other nodes that are alive.
pub(crate) fn engine(others: u16) -> Engine {
    let mut engine = Engine::new(Config::new(0, 1, 8));
    for node in 1..=others {
        engine.handle(Event::Heard { node, incarnation: 7, load: 0 });
    }
    engine
}

/// A letter of another node's daemon, as bytes, as it really comes.
pub(crate) fn letter_of(engine: &mut Engine, from: u16, letter: Letter) -> Vec<Action> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let envelope = Envelope { from: 7, to: 1, number: NUMBER.fetch_add(1, Relaxed), letter };
    let envelope = decode::<Envelope>(&encode(&envelope).unwrap()).unwrap();
    engine.handle(Event::Letter { from, envelope })
}

/// A process of a node.
#[derive(Debug)]
struct Process {
    /// It ignores SIGTERM.
    stubborn: bool,
}

#[derive(Debug)]
struct Machine {
    engine: Engine,
    processes: BTreeMap<u32, Process>,
    starts: Vec<u64>,
    /// Its alive messages are not heard for so many of its ticks.
    muted: u32,
    /// Which start of a daemon it is.
    boot: u64,
}

/// What a client was promised.
#[derive(Debug, Default)]
struct Promised {
    /// Answers that must come for a spawn.
    spawns: BTreeMap<u32, BTreeSet<u16>>,
    /// Registrations by request: told how often.
    deaths: BTreeMap<(u32, Watched), u32>,
    /// Tasks spawned, by whatever incarnation.
    tasks: Vec<TaskId>,
}

/// All of it.
pub(crate) struct World {
    random: Rng,
    machines: Vec<Option<Machine>>,
    /// Letters on their way, by sender and receiver, with the start of the sender.
    channels: BTreeMap<(u16, u16), VecDeque<(u64, Envelope)>>,
    boots: u64,
    /// Of each node at each other: the incarnation that was heard last, and how many ticks ago.
    heard: BTreeMap<(u16, u16), (Incarnation, u32)>,
    next_pid: u32,
    next_client: u64,
    next_id: u32,
    next_incarnation: Incarnation,
    /// Living clients, with their node.
    clients: BTreeMap<u64, (u16, Promised)>,
    /// Every task that has been spawned.
    tasks: BTreeSet<TaskId>,
    /// Tasks whose death a client was notified of, with the node of its daemon. A daemon that crashes takes its entries
    /// with it: it may not have notified the node that it had declared dead.
    dead: BTreeSet<(TaskId, u16)>,
    /// Of each process that was started: in which incarnation of its node.
    started: BTreeMap<TaskId, Incarnation>,
    /// What the engine that acts had as nodes before the event.
    seen: Vec<NodeInfo>,
    bug: Option<Bug>,
    pub(crate) counts: Counts,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut world = World {
            random: Rng::new(seed),
            machines: (0..NODES).map(|_| None).collect(),
            channels: BTreeMap::new(),
            boots: 0,
            heard: BTreeMap::new(),
            next_pid: 100,
            next_client: 0,
            next_id: 0,
            next_incarnation: 100,
            clients: BTreeMap::new(),
            tasks: BTreeSet::new(),
            dead: BTreeSet::new(),
            started: BTreeMap::new(),
            seen: Vec::new(),
            bug,
            counts: Counts::default(),
        };
        (0..NODES).for_each(|node| world.boot(node));
        world
    }

    fn boot(&mut self, node: u16) {
        self.next_incarnation += 100;
        let mut config = Config::new(node, self.next_incarnation, NODES);
        (config.silence, config.grace, config.letters, config.bug) = (SILENCE, GRACE, LETTERS, self.bug);
        self.boots += 1;
        self.machines[usize::from(node)] = Some(Machine {
            engine: Engine::new(config),
            processes: BTreeMap::new(),
            starts: Vec::new(),
            muted: 0,
            boot: self.boots,
        });
        self.heard.retain(|(by, _), _| *by != node);
    }

    fn crash(&mut self, node: u16) {
        self.machines[usize::from(node)] = None;
        self.clients.retain(|_, (at, _)| *at != node);
        self.dead.retain(|(_, by)| *by != node);
        self.counts.crashes += 1;
    }

    fn living(&self) -> Vec<u16> {
        (0..NODES).filter(|node| self.machines[usize::from(*node)].is_some()).collect()
    }

    fn feed(&mut self, node: u16, event: Event) -> Result<(), String> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(machine) = &mut self.machines[usize::from(node)] else { return Ok(()) };
            let before = machine.engine.incarnation();
            match &event {
                Event::Heard { node: other, incarnation, .. } => {
                    self.heard.insert((node, *other), (*incarnation, 0));
                }
                Event::Letter { from, envelope } if envelope.to == before && envelope.letter != Letter::Fenced => {
                    self.heard.insert((node, *from), (envelope.from, 0));
                }
                Event::Tick { .. } => {
                    self.heard.iter_mut().filter(|((by, _), _)| *by == node).for_each(|(_, (_, ticks))| *ticks += 1);
                }
                _ => {}
            }
            let seen = machine.engine.nodes();
            let actions = machine.engine.handle(event);
            if machine.engine.incarnation() != before {
                self.counts.fenced += 1;
            }
            for action in actions {
                // Others may have acted meanwhile.
                self.seen.clone_from(&seen);
                self.act(node, action, &mut events)?;
            }
        }
        Ok(())
    }

    fn act(&mut self, node: u16, action: Action, events: &mut VecDeque<Event>) -> Result<(), String> {
        let machine = self.machines[usize::from(node)].as_mut().unwrap();
        match action {
            Action::Beat { incarnation, load } => {
                if machine.muted > 0 {
                    machine.muted -= 1;
                    return Ok(());
                }
                for other in self.living().into_iter().filter(|other| *other != node) {
                    self.feed(other, Event::Heard { node, incarnation, load })?;
                }
            }
            Action::Send { node: to, envelope } => {
                // As bytes, as it really goes.
                let envelope = decode(&encode(&envelope).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
                let boot = machine.boot;
                self.channels.entry((node, to)).or_default().push_back((boot, envelope));
            }
            Action::Start { token, .. } => machine.starts.push(token),
            Action::Signal { token, pid, .. } => {
                let outcome = match machine.processes.contains_key(&pid) {
                    true => Ok(()),
                    false => Err(Refusal::new(Refusal::ESRCH, "no such process")),
                };
                events.push_back(Event::Signalled { token, outcome });
            }
            Action::End { pid, kill } => {
                let Some(process) = machine.processes.get(&pid) else { return Ok(()) };
                if kill || !process.stubborn {
                    machine.processes.remove(&pid);
                    self.counts.killed += 1;
                    events.push_back(Event::Exited { pid, exit: Exit::Signal(if kill { 9 } else { 15 }) });
                }
            }
            Action::Answer { client, id, answer } => self.answered(client, id, answer)?,
            Action::Lost { node: lost, incarnation } => {
                // Another incarnation that is heard ends the one before.
                let silent =
                    self.heard.get(&(node, lost)).is_none_or(|(of, ticks)| *of != incarnation || *ticks >= SILENCE);
                ensure!(silent, "node {node} declares node {lost} dead, which was not silent");
            }
            Action::Refused { party: Party::User(uid), what: "letters to one node", exhausted, .. } => {
                self.counts.full += 1;
                let share = if uid == 0 { OF_ROOT } else { OF_A_USER };
                ensure!(exhausted.held >= share, "user {uid} was refused within its share: {exhausted}");
            }
            Action::Refused { .. } | Action::Joined { .. } | Action::Renewed { .. } => {}
        }
        Ok(())
    }

    fn answered(&mut self, client: u64, id: u32, answer: Answer) -> Result<(), String> {
        let Some((node, promised)) = self.clients.get_mut(&client) else {
            return Err(format!("an answer for client {client}, which is gone"));
        };
        match answer {
            Answer::Spawned { index, outcome, .. } => {
                let missing = promised.spawns.get_mut(&id).ok_or("an answer to no spawn")?;
                ensure!(
                    missing.remove(&index),
                    "client {client} was notified twice that task {index} of request {id} is spawned"
                );
                match outcome {
                    Ok(task) => {
                        self.counts.spawned += 1;
                        promised.tasks.push(task);
                        promised.deaths.insert((id, Watched::Task(task)), 0);
                        self.tasks.insert(task);
                    }
                    Err(_) => self.counts.refused += 1,
                }
            }
            Answer::Died { what, exit } => {
                let told = promised.deaths.get_mut(&(id, what)).ok_or("notified of what was not asked for")?;
                *told += 1;
                ensure!(*told == 1, "client {client} was notified twice of the death of {what:?}");
                self.counts.told += 1;
                if exit == Exit::NodeLost {
                    self.counts.lost += 1;
                }
                if let Watched::Task(task) = what {
                    // Of a node that is dead for this one, and has become another since, it cannot know the tasks.
                    let seen = self.seen.iter().find(|info| info.node == task.node);
                    if seen.map(|info| info.incarnation) == self.started.get(&task).copied() {
                        self.dead.insert((task, *node));
                    }
                }
            }
            Answer::Refused(_) => {
                promised.spawns.remove(&id);
                promised.deaths.retain(|(of, _), _| *of != id);
                self.counts.refused += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// What a daemon must choose from what it says itself.
    fn expected(nodes: &[NodeInfo], allowed: &BTreeSet<u16>, count: u16) -> Vec<u16> {
        let mut alive: Vec<_> =
            nodes.iter().filter(|info| info.alive && allowed.contains(&info.node)).map(|i| (i.load, i.node)).collect();
        alive.sort_unstable();
        let chosen = alive.iter().map(|(_, node)| *node).cycle();
        chosen.take(if alive.is_empty() { 0 } else { usize::from(count) }).collect()
    }

    fn request(&mut self, client: u64, request: Request) -> Result<(), String> {
        self.next_id += 1;
        let id = self.next_id;
        let (node, promised) = self.clients.get_mut(&client).unwrap();
        let node = *node;
        match &request {
            Request::Spawn { count, .. } => _ = promised.spawns.insert(id, (0..*count).collect()),
            Request::Watch { what } => _ = promised.deaths.insert((id, *what), 0),
            _ => {}
        }
        let Request::Spawn { place: Place::LeastLoaded, count, ref partition, .. } = request else {
            return self.feed(node, Event::Request { client, id, request });
        };
        let engine = &self.machines[usize::from(node)].as_ref().unwrap().engine;
        let allowed = match partition {
            Some(name) => {
                let partitions = engine.partitions();
                partitions.into_iter().find(|p| p.name == *name).map(|p| p.nodes).unwrap_or_default()
            }
            None => (0..NODES).collect(),
        };
        let (nodes, expected) = (engine.nodes(), Self::expected(&engine.nodes(), &allowed, count));
        let full = self.counts.full;
        // The loads show where the tasks went.
        self.feed(node, Event::Request { client, id, request })?;
        let after = self.machines[usize::from(node)].as_ref().unwrap().engine.nodes();
        for (before, after) in nodes.iter().zip(&after) {
            let went = (after.load - before.load) / telegraphos_daemon_core::LOAD_ONE;
            let wanted = expected.iter().filter(|node| **node == before.node).count();
            ensure!(
                went == 0 || allowed.contains(&before.node),
                "a task on node {} is outside its partition",
                before.node
            );
            let all = went as usize == wanted || self.counts.full > full;
            ensure!(all, "{went} tasks on node {}, not the least loaded: {nodes:?}", before.node);
        }
        Ok(())
    }

    fn any_client(&mut self) -> Option<u64> {
        let clients: Vec<u64> = self.clients.keys().copied().collect();
        (!clients.is_empty()).then(|| clients[self.random.below(clients.len())])
    }

    pub(crate) fn step(&mut self) -> Result<(), String> {
        let node = self.random.below(NODES);
        if self.machines[usize::from(node)].is_none() {
            if self.random.percent(20) {
                self.boot(node);
            }
            return Ok(());
        }
        match self.random.below(100_u32) {
            0..30 => self.tick(node)?,
            30..60 => {
                let count = 1 + self.random.below(6_u32);
                _ = self.deliver_some(count)?;
            }
            60..68 => {
                self.next_client += 1;
                self.next_pid += 1;
                let (client, pid) = (self.next_client, self.next_pid);
                self.clients.insert(client, (node, Promised::default()));
                let uid = USERS[self.random.below(USERS.len())];
                self.feed(node, Event::Connected { client, pid, user: User { uid, gid: uid } })?;
            }
            68..78 => {
                let Some(client) = self.any_client() else { return Ok(()) };
                let place = match self.random.percent(30) {
                    true => Place::Node(self.random.below(NODES)),
                    false => Place::LeastLoaded,
                };
                let partition = self.random.percent(40).then(|| ["a", "b"][self.random.below(2_usize)].into());
                let count = 1 + self.random.below(6_u16);
                self.request(client, Request::Spawn { place, count, partition, job: job() })?;
            }
            78..83 => {
                let Some(client) = self.any_client() else { return Ok(()) };
                let tasks: Vec<TaskId> = self.tasks.iter().copied().collect();
                let what = match tasks.is_empty() || self.random.percent(20) {
                    true => Watched::Node(self.random.below(NODES)),
                    false => Watched::Task(tasks[self.random.below(tasks.len())]),
                };
                let request = match (what, self.random.percent(30)) {
                    (Watched::Task(task), true) => Request::Signal { task, signal: 0 },
                    _ => Request::Watch { what },
                };
                self.request(client, request)?;
            }
            83..86 => {
                let Some(client) = self.any_client() else { return Ok(()) };
                let name = ["a", "b"][self.random.below(2_usize)].to_owned();
                let nodes: Vec<u16> = (0..NODES).filter(|_| self.random.percent(50)).collect();
                let request = match nodes.is_empty() {
                    true => Request::DeletePartition { name },
                    false => Request::SetPartition { name, nodes },
                };
                self.counts.partitions += 1;
                self.request(client, request)?;
            }
            86..91 => self.start_one(node)?,
            91..95 => self.exit_one(node)?,
            95..97 => {
                if let Some(client) = self.any_client() {
                    let (node, _) = self.clients.remove(&client).unwrap();
                    self.feed(node, Event::Gone { client })?;
                }
            }
            97 if self.random.percent(80) => self.crash(node),
            97 => {
                // As fast as it can, and what is refused again.
                let Some(client) = self.any_client() else { return Ok(()) };
                let task = TaskId { node: self.random.below(NODES), pid: 1 };
                for _ in 0..self.random.below(300_u32) {
                    self.request(client, Request::Signal { task, signal: 0 })?;
                }
            }
            _ => self.machines[usize::from(node)].as_mut().unwrap().muted = self.random.below(3 * SILENCE),
        }
        Ok(())
    }

    fn tick(&mut self, node: u16) -> Result<(), String> {
        let running = self.random.below(1000_u32);
        self.feed(node, Event::Tick { running })
    }

    /// Delivers some letters; false if there are none that can be.
    fn deliver_some(&mut self, count: u32) -> Result<bool, String> {
        let mut some = false;
        for _ in 0..count {
            let channels: Vec<_> =
                self.channels.iter().filter(|(_, queue)| !queue.is_empty()).map(|(k, _)| *k).collect();
            if channels.is_empty() {
                break;
            }
            let channel = channels[self.random.below(channels.len())];
            some |= self.deliver(channel)?;
        }
        Ok(some)
    }

    /// Delivers a letter, which waits for its node as long as that is alive for its sender.
    fn deliver(&mut self, (from, to): (u16, u16)) -> Result<bool, String> {
        let sender = |world: &World, boot: u64| {
            let machine = world.machines[usize::from(from)].as_ref().filter(|machine| machine.boot == boot);
            machine.map(|machine| machine.engine.nodes())
        };
        let Some((boot, envelope)) = self.channels.get(&(from, to)).and_then(VecDeque::front) else { return Ok(false) };
        let (boot, incarnation) = (*boot, envelope.to);
        let arrives = self.machines[usize::from(to)].is_some();
        let is_alive = |node: &NodeInfo| node.node == to && node.alive && node.incarnation == incarnation;
        if !arrives && sender(self, boot).is_some_and(|nodes| nodes.iter().any(is_alive)) {
            return Ok(false);
        }
        let Some((_, envelope)) = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return Ok(false);
        };
        // Where it is not clear whether it has arrived, it is sent again.
        for _ in 0..u32::from(arrives) + u32::from(arrives && self.random.percent(5)) {
            self.feed(to, Event::Letter { from, envelope: envelope.clone() })?;
        }
        if sender(self, boot).is_some() {
            self.feed(from, Event::Sent { node: to })?;
        }
        Ok(true)
    }

    fn start_one(&mut self, node: u16) -> Result<(), String> {
        let machine = self.machines[usize::from(node)].as_mut().unwrap();
        if machine.starts.is_empty() {
            return Ok(());
        }
        let token = machine.starts.remove(self.random.below(machine.starts.len()));
        let outcome = if self.random.percent(10) {
            Err(Refusal::new(Refusal::ENOENT, "no such program"))
        } else {
            self.next_pid += 1;
            let stubborn = self.random.percent(30);
            machine.processes.insert(self.next_pid, Process { stubborn });
            self.started.insert(TaskId { node, pid: self.next_pid }, machine.engine.incarnation());
            Ok(self.next_pid)
        };
        self.feed(node, Event::Started { token, outcome })
    }

    fn exit_one(&mut self, node: u16) -> Result<(), String> {
        let machine = self.machines[usize::from(node)].as_mut().unwrap();
        let pids: Vec<u32> = machine.processes.keys().copied().collect();
        if pids.is_empty() {
            return Ok(());
        }
        let pid = pids[self.random.below(pids.len())];
        machine.processes.remove(&pid);
        self.counts.ended += 1;
        let exit = Exit::Code(self.random.below(256_u32) as u8);
        self.feed(node, Event::Exited { pid, exit })
    }

    /// Lets everything arrive and the grace pass, without further accidents; then looks.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        for node in 0..NODES {
            match &mut self.machines[usize::from(node)] {
                Some(machine) => machine.muted = 0,
                None if self.random.percent(50) => self.boot(node),
                None => {}
            }
        }
        for _ in 0..4 * (SILENCE + GRACE) {
            for node in self.living() {
                self.tick(node)?;
                while !self.machines[usize::from(node)].as_ref().unwrap().starts.is_empty() {
                    self.start_one(node)?;
                }
            }
            for channel in self.channels.keys().copied().collect::<Vec<_>>() {
                while self.deliver(channel)? {}
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        let living = self.living();
        let machine = |node: u16| self.machines[usize::from(node)].as_ref().unwrap();
        let is_running =
            |task: &TaskId| living.contains(&task.node) && machine(task.node).processes.contains_key(&task.pid);
        // Every process is some client's that lives.
        let tasks: BTreeSet<TaskId> = self.clients.values().flat_map(|(_, promised)| promised.tasks.clone()).collect();
        for node in &living {
            for pid in machine(*node).processes.keys() {
                let task = TaskId { node: *node, pid: *pid };
                ensure!(tasks.contains(&task), "{task} runs and its master is dead");
            }
        }
        if let Some((task, _)) = self.dead.iter().find(|(task, _)| is_running(task)) {
            return Err(format!("{task} was declared dead, and runs"));
        }
        for (node, other) in living.iter().flat_map(|node| (0..NODES).map(|other| (*node, other))) {
            let left = machine(node).engine.on_their_way(other);
            ensure!(left == 0, "{left} letters from node {node} to node {other} are still on their way");
        }
        for (client, (_, promised)) in &self.clients {
            let open: Vec<_> = promised.spawns.values().filter(|missing| !missing.is_empty()).collect();
            ensure!(open.is_empty(), "client {client} was never notified of the outcome of {open:?}");
            for ((_, what), told) in &promised.deaths {
                let alive = match what {
                    // It may be the process of a client.
                    Watched::Task(task) => is_running(task),
                    Watched::Node(_) => *told == 0,
                };
                ensure!(alive || *told == 1, "client {client} was never notified of the death of {what:?}");
            }
        }
        let (first, rest) = living.split_first().ok_or("no node lives")?;
        let seen = |node: u16| -> Vec<_> {
            machine(node).engine.nodes().into_iter().filter(|i| i.alive).map(|i| (i.node, i.incarnation)).collect()
        };
        let expected: Vec<_> = living.iter().map(|node| (*node, machine(*node).engine.incarnation())).collect();
        for node in &living {
            ensure!(seen(*node) == expected, "node {node} sees {:?}: expected {expected:?}", seen(*node));
        }
        for node in rest {
            let (a, b) = (machine(*first).engine.partitions(), machine(*node).engine.partitions());
            ensure!(a == b, "nodes {first} and {node} have other partitions: {a:?} and {b:?}");
        }
        Ok(())
    }
}
