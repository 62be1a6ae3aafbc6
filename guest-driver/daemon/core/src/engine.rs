// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: requests of clients, letters of other daemons, life and death.

use crate::bugs::Bug;
use crate::interface::{Action, Config, Event};
use crate::members::{Heard, Members};
use crate::partitions::Partitions;
use crate::protocol::{Answer, Envelope, Letter, Request};
use crate::tasks::{self, End, Master, Starting, Tasks, Watcher};
use crate::types::{
    Exit, INCARNATION_BITS, Incarnation, Job, LOAD_ONE, NodeInfo, Partition, Place, Refusal, TaskId, TaskInfo, User,
    Watched,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Tickets of one client that are open, at most: its tasks, registrations and requests.
const TICKETS: usize = 512;
/// Signals that are being sent, at most.
const SIGNALS: usize = 256;
/// Tasks in a list, at most: so many fit a message.
const LISTED: usize = 600;
/// The greatest load.
const MOST_LOAD: u32 = (1 << 24) - 1;
/// Characters of a program's name in a list.
const SHOWN: usize = 32;

/// The daemon of a node.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    members: Members,
    partitions: Partitions,
    tasks: Tasks,
    clients: BTreeMap<u64, Client>,
    /// What clients wait for, by ticket.
    pending: BTreeMap<u64, Pending>,
    /// Lists that are being gathered, by client and request: answers that are missing, and what has come.
    lists: BTreeMap<(u64, u32), (usize, Vec<TaskInfo>)>,
    /// Signals that are being sent, by token: who is to be told.
    signals: BTreeMap<u64, Watcher>,
    /// The last ticket or token.
    last: u64,
    /// Letters of this daemon to itself.
    own: VecDeque<Letter>,
    /// No tasks are started any more.
    stopped: bool,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Client {
    pid: u32,
    user: User,
}

#[derive(Clone, Debug)]
struct Pending {
    client: u64,
    id: u32,
    node: u16,
    what: Awaited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// The process id of a task.
    Start { index: u16 },
    /// The death of a task that this client has spawned, or registered for.
    Task { pid: u32, own: bool },
    /// The death of a node.
    Node,
    /// How a signal was delivered.
    Signal,
    /// The tasks of a node.
    List,
}

fn lost(node: u16) -> Refusal {
    Refusal::new(Refusal::EHOSTUNREACH, format!("node {node} has died"))
}

impl Engine {
    /// A daemon that has just started, and has heard of nobody.
    pub fn new(config: Config) -> Engine {
        let mut members = Members::default();
        members.join(config.node, config.incarnation, 0);
        Engine {
            config,
            members,
            partitions: Partitions::default(),
            tasks: Tasks::default(),
            clients: BTreeMap::new(),
            pending: BTreeMap::new(),
            lists: BTreeMap::new(),
            signals: BTreeMap::new(),
            last: 0,
            own: VecDeque::new(),
            stopped: false,
            actions: Vec::new(),
        }
    }

    /// This daemon's incarnation: another one once it was declared dead by mistake.
    pub fn incarnation(&self) -> Incarnation {
        self.config.incarnation
    }

    /// Tasks of this node that run or start.
    pub fn own_tasks(&self) -> usize {
        self.tasks.count()
    }

    /// The nodes that it has heard of.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        let info = |(node, member): (u16, &crate::members::Member)| NodeInfo {
            node,
            alive: member.alive,
            load: member.load,
            incarnation: member.incarnation,
        };
        self.members.iter().map(info).collect()
    }

    /// The partitions, in the order of their names.
    pub fn partitions(&self) -> Vec<Partition> {
        self.partitions.iter().cloned().collect()
    }

    /// Takes an event; what is to be done.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Tick { running } => self.tick(running),
            Event::Heard { node, incarnation, load } => {
                if self.hear(node, incarnation) {
                    self.members.join(node, incarnation, load);
                }
            }
            Event::Letter { from, envelope } => self.envelope(from, envelope),
            Event::Unreachable { node, incarnation } => {
                if node != self.config.node && self.members.is_alive(node, incarnation) {
                    self.dies(node);
                }
            }
            Event::Connected { client, pid, user } => {
                self.clients.insert(client, Client { pid, user });
            }
            Event::Request { client, id, request } => {
                if let Err(refusal) = self.request(client, id, request) {
                    self.answer(client, id, Answer::Refused(refusal));
                }
            }
            Event::Gone { client } => self.gone(client),
            Event::Started { token, outcome } => self.started(token, outcome),
            Event::Exited { pid, exit } => {
                let told = self.tasks.exited(pid, exit);
                told.into_iter().for_each(|watcher| self.tell(watcher, exit));
            }
            Event::Stop => {
                self.stopped = true;
                let ends = self.tasks.end(self.config.grace, |_| true);
                self.end(ends);
            }
            Event::Signalled { token, outcome } => {
                if let Some(Watcher { node, incarnation, ticket }) = self.signals.remove(&token) {
                    self.reply(node, incarnation, Letter::Outcome { ticket, outcome });
                }
            }
        }
        while let Some(letter) = self.own.pop_front() {
            self.letter(self.config.node, self.config.incarnation, letter);
        }
        std::mem::take(&mut self.actions)
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn answer(&mut self, client: u64, id: u32, answer: Answer) {
        if self.clients.contains_key(&client) {
            self.actions.push(Action::Answer { client, id, answer });
        }
    }

    /// Sends a letter to a node's present incarnation, if it is alive.
    fn send(&mut self, node: u16, letter: Letter) {
        if let Some(member) = self.members.get(node).filter(|member| member.alive) {
            let incarnation = member.incarnation;
            self.send_to(node, incarnation, letter);
        }
    }

    fn send_to(&mut self, node: u16, to: Incarnation, letter: Letter) {
        if node == self.config.node {
            self.own.push_back(letter);
        } else {
            let envelope = Envelope { from: self.config.incarnation, to, letter };
            self.actions.push(Action::Send { node, envelope });
        }
    }

    /// Answers a daemon, if that is still the one that has asked. This one may have become another meanwhile.
    fn reply(&mut self, node: u16, incarnation: Incarnation, letter: Letter) {
        if node == self.config.node || self.members.is_alive(node, incarnation) {
            self.send_to(node, incarnation, letter);
        }
    }

    fn tell(&mut self, Watcher { node, incarnation, ticket }: Watcher, exit: Exit) {
        self.reply(node, incarnation, Letter::Died { ticket, exit });
    }

    // ---- life and death

    fn tick(&mut self, running: u32) {
        let ends = self.tasks.tick();
        self.end(ends);
        for node in self.members.tick(self.config.node, self.config.silence.max(1)) {
            self.dies(node);
        }
        // At most `tasks::MOST` tasks.
        let load = running.saturating_add(LOAD_ONE * self.tasks.count() as u32).min(MOST_LOAD);
        let incarnation = self.config.incarnation;
        self.members.join(self.config.node, incarnation, load);
        self.actions.push(Action::Beat { incarnation, load });
    }

    /// Whether what that incarnation says counts; it is alive then.
    fn hear(&mut self, node: u16, incarnation: Incarnation) -> bool {
        if node == self.config.node || node >= self.config.nodes || incarnation == 0 {
            return false;
        }
        let mut heard = self.members.hear(node, incarnation);
        if heard == Heard::Dead && self.config.has(Bug::HearTheDead) {
            heard = Heard::Joined;
        }
        match heard {
            Heard::Again => return true,
            Heard::Dead => {
                // It does not know yet. It hears of it as often as it says that it is alive.
                self.send_to(node, incarnation, Letter::Fenced);
                return false;
            }
            Heard::Replaced => self.dies(node),
            Heard::Joined => {}
        }
        self.members.join(node, incarnation, 0);
        self.actions.push(Action::Joined { node, incarnation });
        self.send_partitions(node);
        true
    }

    /// The other nodes that are alive.
    fn others(&self) -> Vec<u16> {
        self.members.alive().map(|(node, _)| node).filter(|node| *node != self.config.node).collect()
    }

    fn send_partitions(&mut self, node: u16) {
        let partitions: Vec<Partition> = self.partitions.all().cloned().collect();
        partitions.into_iter().for_each(|partition| self.send(node, Letter::Partition(partition)));
    }

    fn dies(&mut self, node: u16) {
        if let Some(incarnation) = self.members.die(node) {
            self.actions.push(Action::Lost { node, incarnation });
            self.lose(node, incarnation);
            // What it has said last, perhaps only some have heard.
            self.others().into_iter().for_each(|node| self.send_partitions(node));
        }
    }

    /// What an incarnation of a node was for this one ends.
    fn lose(&mut self, node: u16, incarnation: Incarnation) {
        if !self.config.has(Bug::KeepOrphans) {
            let of = |master: &Master| master.owner.node == node && master.owner.incarnation == incarnation;
            let ends = self.tasks.end(self.config.grace, of);
            self.end(ends);
        }
        self.tasks.forget(|watcher| watcher.node == node);
        self.give_up(node, &lost(node), |_| true);
    }

    /// Answers what clients wait for from a node, if it is of that kind: nothing comes from there any more.
    fn give_up(&mut self, node: u16, why: &Refusal, is: impl Fn(Awaited) -> bool) {
        let of_it = |pending: &Pending| pending.node == node && is(pending.what);
        let tickets: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| of_it(pending)).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            let Some(Pending { client, id, what, .. }) = self.pending.remove(&ticket) else { continue };
            let exit = Exit::NodeLost;
            let answer = match what {
                Awaited::Task { .. } if self.config.has(Bug::ForgetTasksOfNode) => continue,
                Awaited::Start { index } => Answer::Spawned { index, node, outcome: Err(why.clone()) },
                Awaited::Task { pid, .. } => Answer::Died { what: Watched::Task(TaskId { node, pid }), exit },
                Awaited::Node => Answer::Died { what: Watched::Node(node), exit },
                Awaited::Signal => Answer::Refused(why.clone()),
                Awaited::List => {
                    self.gather(client, id, Vec::new());
                    continue;
                }
            };
            self.answer(client, id, answer);
        }
    }

    /// Others have declared this incarnation dead: what it has ends, and it goes on as another. Its tasks on other
    /// nodes end there, as those hear the new one. Only registrations for what is not its own outlive it.
    fn fenced(&mut self) {
        let ends = self.tasks.end(0, |_| true);
        self.end(ends);
        let own = self.config.node;
        let next = (self.config.incarnation + 1) & ((1 << INCARNATION_BITS) - 1);
        self.config.incarnation = next.max(1);
        self.members.join(own, self.config.incarnation, 0);
        self.actions.push(Action::Renewed { incarnation: self.config.incarnation });
        for node in self.others() {
            // What it had sent as the other incarnation may not have counted.
            self.send_partitions(node);
            self.tasks.forget(|watcher| watcher.node == node);
            let why =
                Refusal::new(Refusal::EHOSTUNREACH, format!("node {own} was declared dead by others, by mistake"));
            self.give_up(node, &why, |what| !matches!(what, Awaited::Node | Awaited::Task { own: false, .. }));
            let watch = |(ticket, pending): (&u64, &Pending)| match pending.what {
                Awaited::Task { pid, own: false } if pending.node == node => Some((*ticket, pid)),
                _ => None,
            };
            let watches: Vec<_> = self.pending.iter().filter_map(watch).collect();
            watches.into_iter().for_each(|(ticket, pid)| self.send(node, Letter::Watch { ticket, pid }));
        }
    }

    fn end(&mut self, ends: Vec<End>) {
        for End { pid, kill } in ends {
            if !(kill && self.config.has(Bug::NoSecondSignal)) {
                self.actions.push(Action::End { pid, kill });
            }
        }
    }

    // ---- requests of clients

    /// Opens a ticket of a client's.
    fn open(&mut self, client: u64, id: u32, node: u16, what: Awaited) -> u64 {
        let ticket = self.next();
        self.pending.insert(ticket, Pending { client, id, node, what });
        ticket
    }

    fn request(&mut self, client: u64, id: u32, request: Request) -> Result<(), Refusal> {
        let Some(Client { user, .. }) = self.clients.get(&client) else { return Ok(()) };
        let user = *user;
        let open = self.pending.values().filter(|pending| pending.client == client).count();
        let more = match &request {
            Request::Spawn { count, .. } => usize::from(*count),
            Request::Tasks => self.members.alive().count(),
            _ => 1,
        };
        if open + more > TICKETS {
            let text = format!(
                "this client waits for {open} tasks, signals and registrations: expected at most {TICKETS}; spawn from \
                 more than one process"
            );
            return Err(Refusal::new(Refusal::EAGAIN, text));
        }
        match request {
            Request::Spawn { place, count, partition, job } => {
                return self.spawn((client, id), user, place, count, partition.as_deref(), job);
            }
            Request::Signal { task, signal } => {
                if !(0..=64).contains(&signal) {
                    let text = format!("the signal {signal}: expected 0 to 64");
                    return Err(Refusal::new(Refusal::EINVAL, text));
                }
                self.must_live(task.node)?;
                let ticket = self.open(client, id, task.node, Awaited::Signal);
                self.send(task.node, Letter::Signal { ticket, pid: task.pid, signal, user });
            }
            Request::Watch { what } => {
                let (Watched::Node(node) | Watched::Task(TaskId { node, .. })) = what;
                let member = self.members.get(node);
                match member.map(|member| member.alive) {
                    None => return Err(Refusal::new(Refusal::EHOSTUNREACH, self.unknown(node))),
                    // Whoever was there is dead, and it does not matter since when.
                    Some(false) => self.answer(client, id, Answer::Died { what, exit: Exit::NodeLost }),
                    Some(true) => match what {
                        Watched::Node(_) => _ = self.open(client, id, node, Awaited::Node),
                        Watched::Task(TaskId { pid, .. }) => {
                            let ticket = self.open(client, id, node, Awaited::Task { pid, own: false });
                            self.send(node, Letter::Watch { ticket, pid });
                        }
                    },
                }
            }
            Request::Tasks => {
                let nodes: Vec<u16> = self.members.alive().map(|(node, _)| node).collect();
                self.lists.insert((client, id), (nodes.len(), Vec::new()));
                for node in nodes {
                    let ticket = self.open(client, id, node, Awaited::List);
                    self.send(node, Letter::Tasks { ticket });
                }
            }
            Request::Nodes => self.answer(client, id, Answer::Nodes(self.nodes())),
            Request::Partitions => self.answer(client, id, Answer::Partitions(self.partitions())),
            Request::SetPartition { name, nodes } => {
                let nodes: BTreeSet<u16> = nodes.into_iter().collect();
                if nodes.is_empty() {
                    let text = format!("the partition {name:?} has no nodes: expected one at least");
                    return Err(Refusal::new(Refusal::EINVAL, text));
                }
                if let Some(node) = nodes.iter().find(|node| self.members.get(**node).is_none()) {
                    return Err(Refusal::new(Refusal::EINVAL, self.unknown(*node)));
                }
                self.change_partition((client, id), user, &name, nodes)?;
            }
            Request::DeletePartition { name } => {
                self.partitions.nodes(&name)?;
                self.change_partition((client, id), user, &name, BTreeSet::new())?;
            }
        }
        Ok(())
    }

    fn unknown(&self, node: u16) -> String {
        let known: Vec<String> = self.members.iter().map(|(node, _)| node.to_string()).collect();
        format!("node {node} has never been heard of: expected one of {}; does tgd run there?", known.join(", "))
    }

    fn must_live(&self, node: u16) -> Result<(), Refusal> {
        match self.members.get(node) {
            None => Err(Refusal::new(Refusal::EHOSTUNREACH, self.unknown(node))),
            Some(member) if !member.alive => {
                let text = format!("node {node} is dead: nothing has been heard of it; see tg-task nodes");
                Err(Refusal::new(Refusal::EHOSTUNREACH, text))
            }
            Some(_) => Ok(()),
        }
    }

    fn change_partition(
        &mut self,
        (client, id): (u64, u32),
        user: User,
        name: &str,
        nodes: BTreeSet<u16>,
    ) -> Result<(), Refusal> {
        if !user.is_root() {
            let text = format!("partitions are changed by root, not by user {}", user.uid);
            return Err(Refusal::new(Refusal::EPERM, text));
        }
        let changed = self.partitions.change(name, nodes, self.config.node)?;
        self.others().into_iter().for_each(|node| self.send(node, Letter::Partition(changed.clone())));
        self.answer(client, id, Answer::Done);
        Ok(())
    }

    /// The nodes that tasks may be spawned on, the least loaded first.
    fn candidates(&self, place: Place, partition: Option<&str>) -> Result<Vec<u16>, Refusal> {
        let allowed = partition.map(|name| self.partitions.nodes(name)).transpose()?;
        let is_allowed =
            |node: &u16| self.config.has(Bug::IgnorePartition) || allowed.is_none_or(|allowed| allowed.contains(node));
        if let Place::Node(node) = place {
            self.must_live(node)?;
            if !is_allowed(&node) {
                let text = format!("node {node} is not in the partition {:?}", partition.unwrap_or_default());
                return Err(Refusal::new(Refusal::EINVAL, text));
            }
            return Ok(vec![node]);
        }
        let mut nodes: Vec<(u32, u16)> =
            self.members.alive().filter(|(node, _)| is_allowed(node)).map(|(node, m)| (m.load, node)).collect();
        nodes.sort_unstable();
        if self.config.has(Bug::MostLoaded) {
            nodes.reverse();
        }
        if nodes.is_empty() {
            let text =
                format!("no node of the partition {:?} is alive; see tg-task nodes", partition.unwrap_or_default());
            return Err(Refusal::new(Refusal::EHOSTUNREACH, text));
        }
        Ok(nodes.into_iter().map(|(_, node)| node).collect())
    }

    fn spawn(
        &mut self,
        (client, id): (u64, u32),
        user: User,
        place: Place,
        count: u16,
        partition: Option<&str>,
        job: Job,
    ) -> Result<(), Refusal> {
        let nodes = self.candidates(place, partition)?;
        let pid = self.clients.get(&client).map_or(0, |client| client.pid);
        let master = TaskId { node: self.config.node, pid };
        for (index, node) in (0..count).zip(nodes.iter().copied().cycle()) {
            let ticket = self.open(client, id, node, Awaited::Start { index });
            self.send(node, Letter::Spawn { ticket, client, master, user, job: job.clone() });
            // Until it says so itself: more tasks may be spawned before that.
            if let Some(member) = self.members.get_mut(node) {
                member.load = (member.load + LOAD_ONE).min(MOST_LOAD);
            }
        }
        Ok(())
    }

    fn gone(&mut self, client: u64) {
        let Some(Client { pid, .. }) = self.clients.remove(&client) else { return };
        self.lists.retain(|(of, _), _| *of != client);
        let of_it: Vec<(u64, Pending)> =
            self.pending.iter().filter(|(_, p)| p.client == client).map(|(ticket, p)| (*ticket, p.clone())).collect();
        let mut masters = BTreeSet::new();
        for (ticket, pending) in of_it {
            self.pending.remove(&ticket);
            match pending.what {
                Awaited::Start { .. } | Awaited::Task { own: true, .. } => _ = masters.insert(pending.node),
                Awaited::Task { own: false, .. } => self.send(pending.node, Letter::Forget { ticket }),
                _ => {}
            }
        }
        masters.into_iter().for_each(|node| self.send(node, Letter::MasterGone { client }));
        // Others may wait for the process itself.
        if !self.tasks.is_running(pid) && self.clients.values().all(|other| other.pid != pid) {
            let watchers = self.tasks.take_watchers(pid);
            watchers.into_iter().for_each(|watcher| self.tell(watcher, Exit::Unknown));
        }
    }

    /// Adds to a list of tasks, and answers when it is complete.
    fn gather(&mut self, client: u64, id: u32, tasks: Vec<TaskInfo>) {
        let Some((missing, list)) = self.lists.get_mut(&(client, id)) else { return };
        list.extend(tasks);
        *missing = missing.saturating_sub(1);
        if *missing == 0 {
            let mut list = self.lists.remove(&(client, id)).map(|(_, list)| list).unwrap_or_default();
            list.sort_by_key(|info| info.task);
            list.truncate(LISTED);
            self.answer(client, id, Answer::Tasks(list));
        }
    }

    // ---- letters

    fn envelope(&mut self, from: u16, envelope: Envelope) {
        if envelope.to != self.config.incarnation || from == self.config.node || from >= self.config.nodes {
            return;
        }
        // Two may have declared each other dead: then each hears that of the other, or neither would go on.
        if envelope.letter == Letter::Fenced {
            return self.fenced();
        }
        if !self.hear(from, envelope.from) {
            return;
        }
        self.letter(from, envelope.from, envelope.letter);
    }

    fn letter(&mut self, node: u16, incarnation: Incarnation, letter: Letter) {
        match letter {
            Letter::Spawn { ticket, client, master, user, job } => {
                let owner = Watcher { node, incarnation, ticket };
                if let Err(refusal) = self.admit(user) {
                    return self.reply(node, incarnation, Letter::Spawned { ticket, outcome: Err(refusal) });
                }
                let program = job.argv.first().map_or_else(String::new, |word| word.chars().take(SHOWN).collect());
                let token = self.next();
                let master = Master { owner, client, task: master, uid: user.uid, program };
                self.tasks.starting.insert(token, Starting { master, doomed: false });
                self.actions.push(Action::Start { token, user, master: node, job });
            }
            Letter::Spawned { ticket, outcome } => {
                let Some(pending) = self.pending.get_mut(&ticket).filter(|pending| pending.node == node) else {
                    return;
                };
                let (client, id, what) = (pending.client, pending.id, pending.what);
                let Awaited::Start { index } = what else { return };
                let outcome = match outcome {
                    Ok(pid) => {
                        pending.what = Awaited::Task { pid, own: true };
                        Ok(TaskId { node, pid })
                    }
                    Err(refusal) => {
                        self.pending.remove(&ticket);
                        Err(refusal)
                    }
                };
                self.answer(client, id, Answer::Spawned { index, node, outcome });
            }
            Letter::Signal { ticket, pid, signal, user } => {
                if self.signals.len() >= SIGNALS {
                    let text = format!("node {} has {SIGNALS} signals to send; try again", self.config.node);
                    let outcome = Err(Refusal::new(Refusal::EAGAIN, text));
                    return self.reply(node, incarnation, Letter::Outcome { ticket, outcome });
                }
                let token = self.next();
                self.signals.insert(token, Watcher { node, incarnation, ticket });
                self.actions.push(Action::Signal { token, pid, signal, user });
            }
            Letter::Outcome { ticket, outcome } => {
                let signal = |pending: &Pending| pending.node == node && pending.what == Awaited::Signal;
                if let Some(Pending { client, id, .. }) = self.take(ticket, signal) {
                    self.answer(client, id, outcome.map_or_else(Answer::Refused, |()| Answer::Done));
                }
            }
            Letter::Watch { ticket, pid } => {
                let watcher = Watcher { node, incarnation, ticket };
                let is_here = self.tasks.is_running(pid) || self.clients.values().any(|client| client.pid == pid);
                // Where there is no room for one more, it is not there for whoever asks.
                if !(is_here && self.tasks.watch(pid, watcher)) {
                    let exit = self.tasks.ended(pid).filter(|_| !is_here).unwrap_or(Exit::Unknown);
                    self.tell(watcher, exit);
                }
            }
            Letter::Forget { ticket } => {
                self.tasks.forget(|watcher| *watcher == Watcher { node, incarnation, ticket });
            }
            Letter::Died { ticket, exit } => {
                let task = |pending: &Pending| pending.node == node && matches!(pending.what, Awaited::Task { .. });
                let pending = match self.config.has(Bug::TellAgain) {
                    true => self.pending.get(&ticket).filter(|pending| task(pending)).cloned(),
                    false => self.take(ticket, task),
                };
                if let Some(Pending { client, id, what: Awaited::Task { pid, .. }, .. }) = pending {
                    let what = Watched::Task(TaskId { node, pid });
                    self.answer(client, id, Answer::Died { what, exit });
                }
            }
            Letter::MasterGone { client } => {
                let of = |master: &Master| {
                    let owner = master.owner;
                    (owner.node, owner.incarnation, master.client) == (node, incarnation, client)
                };
                let ends = self.tasks.end(self.config.grace, of);
                self.end(ends);
            }
            Letter::Tasks { ticket } => {
                let tasks = self.tasks.list(self.config.node);
                self.reply(node, incarnation, Letter::TaskList { ticket, tasks });
            }
            Letter::TaskList { ticket, tasks } => {
                let list = |pending: &Pending| pending.node == node && pending.what == Awaited::List;
                if let Some(Pending { client, id, .. }) = self.take(ticket, list) {
                    self.gather(client, id, tasks);
                }
            }
            Letter::Partition(partition) => self.partitions.merge(partition, self.config.has(Bug::LastComeWins)),
            // It is handled whoever says it, see above.
            Letter::Fenced => {}
        }
    }

    /// Whether one more task of this user may be started here.
    fn admit(&self, user: User) -> Result<(), Refusal> {
        let node = self.config.node;
        if self.stopped {
            return Err(Refusal::new(Refusal::EHOSTUNREACH, format!("node {node} ends")));
        }
        let (running, own) = (self.tasks.count(), self.tasks.count_of(user.uid));
        if running >= tasks::MOST || (own >= tasks::OF_A_USER && !user.is_root()) {
            let (most, of_a_user, uid) = (tasks::MOST, tasks::OF_A_USER, user.uid);
            let text = format!(
                "node {node} has {running} tasks, {own} of user {uid}: expected at most {most}, and {of_a_user} of one \
                 user; wait for some to end"
            );
            return Err(Refusal::new(Refusal::EAGAIN, text));
        }
        Ok(())
    }

    /// Closes a ticket, if it is of that kind.
    fn take(&mut self, ticket: u64, is: impl Fn(&Pending) -> bool) -> Option<Pending> {
        is(self.pending.get(&ticket)?).then(|| self.pending.remove(&ticket)).flatten()
    }

    fn started(&mut self, token: u64, outcome: Result<u32, Refusal>) {
        let Some(Starting { master, doomed }) = self.tasks.starting.remove(&token) else { return };
        let Watcher { node, incarnation, ticket } = master.owner;
        if let Ok(pid) = outcome {
            let client = master.client;
            self.tasks.add(pid, master);
            if doomed && !self.config.has(Bug::KeepLateStarts) {
                let of = |master: &Master| master.owner.ticket == ticket && master.client == client;
                let ends = self.tasks.end(self.config.grace, of);
                self.end(ends);
            }
        }
        self.reply(node, incarnation, Letter::Spawned { ticket, outcome });
    }
}
