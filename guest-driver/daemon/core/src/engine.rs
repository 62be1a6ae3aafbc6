// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules: requests of clients, letters of other daemons, life and death.

use crate::bugs::Bug;
use crate::interface::{Action, Config, Event, Party};
use crate::members::{Heard, MOST_LOAD, Members};
use crate::outbox::Outbox;
use crate::partitions::Partitions;
use crate::protocol::{Answer, Envelope, Letter, Request, SHOWN, check_signal};
use crate::tasks::{End, Master, Starting, Tasks, Watcher};
use crate::types::{
    Exit, INCARNATION_BITS, Incarnation, Job, LOAD_ONE, NodeInfo, Partition, Place, Refusal, TaskId, TaskInfo, User,
    Watched,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::{Exhausted, Shares, Users};

/// Tickets of one client that are open, at most: its tasks, registrations and requests.
const TICKETS: usize = 512;
/// Those of all clients, by their user, and beside them those of root.
const TICKETS_OF_USERS: (Shares, u64) = (Shares { capacity: 8192, spenders: 32, guaranteed: 128, limit: 2048 }, 2048);
/// Signals that are being sent, and beside them those of root.
const SIGNALS: (Shares, u64) = (Shares { capacity: 192, spenders: 32, guaranteed: 2, limit: 64 }, 64);
/// Lists of tasks that one client waits for, at most.
const LISTS: usize = 4;
/// Tasks in a list, at most: so many fit a message.
const LISTED: usize = 600;

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
    /// The same, by the user of the client.
    tickets: Users,
    /// Signals that are being sent, by token: the watcher that gets the outcome.
    signals: BTreeMap<u64, Watcher>,
    /// The same, by the user whose signal it is.
    sending: Users,
    /// What is on its way to others.
    outbox: Outbox,
    /// How often a limit was met.
    refused: u64,
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
    /// Tickets that are open.
    open: usize,
    /// Lists that it waits for.
    lists: usize,
}

#[derive(Clone, Debug)]
struct Pending {
    client: u64,
    uid: u32,
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
    /// A daemon that has just started: its own node is the only member.
    pub fn new(config: Config) -> Engine {
        let mut members = Members::default();
        members.join(config.node, config.incarnation, 0);
        let outbox = Outbox::new(config.letters, config.has(Bug::OneUserTakesAll));
        let users = |(shares, reserve)| Users::new(shares, reserve);
        Engine {
            config,
            members,
            partitions: Partitions::default(),
            tasks: Tasks::default(),
            clients: BTreeMap::new(),
            pending: BTreeMap::new(),
            lists: BTreeMap::new(),
            tickets: users(TICKETS_OF_USERS),
            signals: BTreeMap::new(),
            sending: users(SIGNALS),
            outbox,
            refused: 0,
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

    /// Letters that are on their way to a node.
    pub fn on_their_way(&self, node: u16) -> usize {
        self.outbox.on_their_way(node)
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
            Event::Sent { node } => {
                let changed = self.outbox.sent(node);
                let changed: Vec<Partition> =
                    self.partitions.all().filter(|partition| changed.contains(&partition.name)).cloned().collect();
                changed.into_iter().for_each(|partition| self.send_partition(node, partition));
            }
            Event::Connected { client, pid, user } => {
                // What a client before it with this number waits for is not this one's.
                self.gone(client);
                self.clients.insert(client, Client { pid, user, open: 0, lists: 0 });
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
                if let Some(Watcher { node, incarnation, ticket, uid, .. }) = self.signals.remove(&token) {
                    self.sending.give(uid, 1);
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

    /// Takes note of a limit that a party has met; why it is refused.
    fn limit(&mut self, party: Party, what: &'static str, exhausted: Exhausted) -> Refusal {
        self.refused += 1;
        self.actions.push(Action::Refused { party, what, exhausted, times: self.refused });
        let Exhausted { held, requested, limit } = exhausted;
        let text = format!(
            "node {}: {party} has {held} {what}, and {requested} more were asked for: expected at most {limit}; try \
             again when some have ended",
            self.config.node
        );
        Refusal::new(Refusal::EAGAIN, text)
    }

    /// Sends the request of a user to a node that is alive, if that user may have one more on its way.
    fn request_of(&mut self, node: u16, uid: u32, letter: Letter) -> Result<(), Refusal> {
        let bytes = match &letter {
            Letter::Spawn { job, .. } => job.bytes(),
            _ => 0,
        };
        if node != self.config.node {
            if let Err((what, exhausted)) = self.outbox.request(node, uid, bytes) {
                if self.config.has(Bug::FullIsDead) {
                    self.dies(node);
                }
                return Err(self.limit(Party::User(uid), what, exhausted));
            }
        }
        if let Some(incarnation) = self.members.get(node).map(|member| member.incarnation) {
            self.send_to(node, incarnation, letter);
        }
        Ok(())
    }

    /// Sends a letter that is owed to a node's present incarnation, if it is alive.
    fn send(&mut self, node: u16, letter: Letter) {
        if let Some(member) = self.members.get(node).filter(|member| member.alive) {
            let incarnation = member.incarnation;
            self.owe(node, incarnation, letter);
        }
    }

    /// Sends a letter that is owed.
    fn owe(&mut self, node: u16, to: Incarnation, letter: Letter) {
        if node == self.config.node {
            return self.own.push_back(letter);
        }
        match self.outbox.owe(node) {
            Ok(()) => self.send_to(node, to, letter),
            // A daemon that keeps its own limits is never owed so many.
            Err(exhausted) => _ = self.limit(Party::Node(node), "letters that it does not take", exhausted),
        }
    }

    /// Sends a letter that the outbox has counted.
    fn send_to(&mut self, node: u16, to: Incarnation, letter: Letter) {
        if node == self.config.node {
            self.own.push_back(letter);
        } else {
            let envelope = Envelope { from: self.config.incarnation, to, number: self.next(), letter };
            self.actions.push(Action::Send { node, envelope });
        }
    }

    /// Answers a daemon, if that is still the one that has asked. This one may have become another meanwhile.
    fn reply(&mut self, node: u16, incarnation: Incarnation, letter: Letter) {
        if node == self.config.node || self.members.is_alive(node, incarnation) {
            self.owe(node, incarnation, letter);
        }
    }

    fn tell(&mut self, Watcher { node, incarnation, ticket, .. }: Watcher, exit: Exit) {
        self.reply(node, incarnation, Letter::Died { ticket, exit });
    }

    // ---- life and death

    fn tick(&mut self, running: u32) {
        let ends = self.tasks.tick();
        self.end(ends);
        for node in self.members.tick(self.config.node, self.config.silence.max(1)) {
            self.dies(node);
        }
        // The tasks of a node are few hundreds.
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
                if self.outbox.fence(node) {
                    self.send_to(node, incarnation, Letter::Fenced);
                }
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
        partitions.into_iter().for_each(|partition| self.send_partition(node, partition));
    }

    fn send_partition(&mut self, node: u16, partition: Partition) {
        let Some(member) = self.members.get(node).filter(|member| member.alive) else { return };
        let incarnation = member.incarnation;
        if self.outbox.partition(node, &partition.name) {
            self.send_to(node, incarnation, Letter::Partition(partition));
        }
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
        self.end_pending(node, &lost(node), |_| true);
    }

    /// Answers what clients wait for from a node, if it is of that kind: nothing comes from there any more.
    fn end_pending(&mut self, node: u16, why: &Refusal, is: impl Fn(Awaited) -> bool) {
        let of_it = |pending: &Pending| pending.node == node && is(pending.what);
        let tickets: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| of_it(pending)).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            let Some(Pending { client, id, what, .. }) = self.close(ticket) else { continue };
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

    /// Others have declared this incarnation dead: what it has ends, and the daemon continues as another one. Its tasks
    /// on other nodes end there, as those hear the new one. Only registrations for what is not its own outlive it.
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
            self.end_pending(node, &why, |what| !matches!(what, Awaited::Node | Awaited::Task { own: false, .. }));
            let watch = |(ticket, pending): (&u64, &Pending)| match pending.what {
                Awaited::Task { pid, own: false } if pending.node == node => {
                    let Client { user, .. } = self.clients.get(&pending.client)?;
                    Some(Letter::Watch { ticket: *ticket, client: pending.client, pid, user: *user })
                }
                _ => None,
            };
            let watches: Vec<_> = self.pending.iter().filter_map(watch).collect();
            watches.into_iter().for_each(|watch| self.send(node, watch));
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

    /// Opens a ticket of a client's, for which there is room.
    fn open(&mut self, client: u64, id: u32, node: u16, what: Awaited) -> u64 {
        let ticket = self.next();
        let Some(of) = self.clients.get_mut(&client) else { return ticket };
        of.open += 1;
        let uid = of.user.uid;
        _ = self.tickets.take(uid, 1);
        self.pending.insert(ticket, Pending { client, uid, id, node, what });
        ticket
    }

    /// Closes a ticket.
    fn close(&mut self, ticket: u64) -> Option<Pending> {
        let pending = self.pending.remove(&ticket)?;
        self.tickets.give(pending.uid, 1);
        if let Some(of) = self.clients.get_mut(&pending.client) {
            of.open -= 1;
        }
        Some(pending)
    }

    /// Checks that a client, and its user, may have so many more tickets.
    fn check_tickets(&mut self, client: u64, more: usize) -> Result<(), Refusal> {
        let Some(Client { user, open, .. }) = self.clients.get(&client) else { return Ok(()) };
        let (uid, open) = (user.uid, *open);
        let (held, requested, available) = (self.tickets.held(uid), more as u64, self.tickets.available(uid));
        if open + more > TICKETS {
            let exhausted = Exhausted { held: open as u64, requested, limit: TICKETS as u64 };
            self.limit(Party::User(uid), "tickets of one client", exhausted);
            let text = format!(
                "this client waits for {open} tasks, signals and registrations: expected at most {TICKETS}; spawn from \
                 more than one process"
            );
            return Err(Refusal::new(Refusal::EAGAIN, text));
        }
        if requested > available {
            let exhausted = Exhausted { held, requested, limit: held + available };
            return Err(self.limit(Party::User(uid), "tasks, signals and registrations that it waits for", exhausted));
        }
        Ok(())
    }

    fn request(&mut self, client: u64, id: u32, request: Request) -> Result<(), Refusal> {
        let Some(Client { user, lists, .. }) = self.clients.get(&client) else { return Ok(()) };
        let (user, lists) = (*user, *lists);
        let more = match &request {
            Request::Spawn { count, .. } => usize::from(*count),
            Request::Tasks => self.members.alive().count(),
            _ => 1,
        };
        self.check_tickets(client, more)?;
        match request {
            Request::Spawn { place, count, partition, job } => {
                return self.spawn((client, id), user, place, count, partition.as_deref(), job);
            }
            Request::Signal { task, signal } => {
                check_signal(signal).map_err(|error| Refusal::new(Refusal::EINVAL, error.to_string()))?;
                self.must_live(task.node)?;
                let ticket = self.open(client, id, task.node, Awaited::Signal);
                let letter = Letter::Signal { ticket, pid: task.pid, signal, user };
                self.request_of(task.node, user.uid, letter).inspect_err(|_| {
                    self.close(ticket);
                })?;
            }
            Request::Watch { what } => {
                let (Watched::Node(node) | Watched::Task(TaskId { node, .. })) = what;
                let member = self.members.get(node);
                match member.map(|member| member.alive) {
                    None => return Err(Refusal::new(Refusal::EHOSTUNREACH, self.unknown(node))),
                    // The node and its tasks are dead; since when does not matter.
                    Some(false) => self.answer(client, id, Answer::Died { what, exit: Exit::NodeLost }),
                    Some(true) => match what {
                        Watched::Node(_) => _ = self.open(client, id, node, Awaited::Node),
                        Watched::Task(TaskId { pid, .. }) => {
                            let ticket = self.open(client, id, node, Awaited::Task { pid, own: false });
                            let letter = Letter::Watch { ticket, client, pid, user };
                            self.request_of(node, user.uid, letter).inspect_err(|_| {
                                self.close(ticket);
                            })?;
                        }
                    },
                }
            }
            Request::Tasks => {
                self.list((client, id), user, lists)?;
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

    /// Gathers a list of all tasks.
    fn list(&mut self, (client, id): (u64, u32), user: User, open: usize) -> Result<(), Refusal> {
        let (uid, own) = (user.uid, self.config.node);
        if open >= LISTS || self.lists.contains_key(&(client, id)) {
            let exhausted = Exhausted { held: open as u64, requested: 1, limit: LISTS as u64 };
            return Err(self.limit(Party::User(uid), "lists of tasks that one client waits for", exhausted));
        }
        let nodes: Vec<u16> = self.members.alive().map(|(node, _)| node).collect();
        // All of them, or it would not be a list of all.
        if let Some(node) = nodes.iter().find(|node| **node != own && self.outbox.available(**node, uid) == 0) {
            let held = self.outbox.held(*node, uid);
            let exhausted = Exhausted { held, requested: 1, limit: held };
            return Err(self.limit(Party::User(uid), "letters to one node", exhausted));
        }
        self.lists.insert((client, id), (nodes.len(), Vec::new()));
        if let Some(of) = self.clients.get_mut(&client) {
            of.lists += 1;
        }
        for node in nodes {
            let ticket = self.open(client, id, node, Awaited::List);
            if self.request_of(node, uid, Letter::Tasks { ticket }).is_err() {
                self.close(ticket);
                self.gather(client, id, Vec::new());
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
        self.others().into_iter().for_each(|node| self.send_partition(node, changed.clone()));
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
            let letter = Letter::Spawn { ticket, client, master, user, job: job.clone() };
            if let Err(refusal) = self.request_of(node, user.uid, letter) {
                self.close(ticket);
                self.answer(client, id, Answer::Spawned { index, node, outcome: Err(refusal) });
                continue;
            }
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
        let of_it: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.client == client).map(|(ticket, _)| *ticket).collect();
        let mut nodes = BTreeSet::new();
        for pending in of_it.into_iter().filter_map(|ticket| self.close(ticket)) {
            if matches!(pending.what, Awaited::Start { .. } | Awaited::Task { .. }) {
                nodes.insert(pending.node);
            }
        }
        nodes.into_iter().for_each(|node| self.send(node, Letter::ClientGone { client }));
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
        list.sort_by_key(|info| info.task);
        list.truncate(LISTED);
        *missing = missing.saturating_sub(1);
        if *missing == 0 {
            let list = self.lists.remove(&(client, id)).map(|(_, list)| list).unwrap_or_default();
            if let Some(of) = self.clients.get_mut(&client) {
                of.lists -= 1;
            }
            self.answer(client, id, Answer::Tasks(list));
        }
    }

    // ---- letters

    fn envelope(&mut self, from: u16, envelope: Envelope) {
        if envelope.to != self.config.incarnation || from == self.config.node || from >= self.config.nodes {
            return;
        }
        // Two may have declared each other dead: each then accepts this from the other, or neither would continue.
        if envelope.letter == Letter::Fenced {
            return self.fenced();
        }
        if !self.hear(from, envelope.from) {
            return;
        }
        // It is sent again where its sender cannot say whether it has come.
        if !(self.members.is_new(from, envelope.number) || self.config.has(Bug::TakeTwice)) {
            return;
        }
        self.letter(from, envelope.from, envelope.letter);
    }

    fn letter(&mut self, node: u16, incarnation: Incarnation, letter: Letter) {
        match letter {
            Letter::Spawn { ticket, client, master, user, job } => {
                let owner = Watcher { node, incarnation, ticket, client, uid: user.uid };
                let program = job.argv.first().map_or_else(String::new, |word| word.chars().take(SHOWN).collect());
                let token = self.next();
                if let Err(refusal) = self.admit(token, Master { owner, task: master, program }) {
                    return self.reply(node, incarnation, Letter::Spawned { ticket, outcome: Err(refusal) });
                }
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
                        self.close(ticket);
                        Err(refusal)
                    }
                };
                self.answer(client, id, Answer::Spawned { index, node, outcome });
            }
            Letter::Signal { ticket, pid, signal, user } => {
                if let Err(exhausted) = self.sending.take(user.uid, 1) {
                    let outcome = Err(self.limit(Party::User(user.uid), "signals that are being sent", exhausted));
                    return self.reply(node, incarnation, Letter::Outcome { ticket, outcome });
                }
                let token = self.next();
                // Its client is not needed: the ticket names the request.
                self.signals.insert(token, Watcher { node, incarnation, ticket, client: 0, uid: user.uid });
                self.actions.push(Action::Signal { token, pid, signal, user });
            }
            Letter::Outcome { ticket, outcome } => {
                let refused = outcome.is_err();
                let answered = |pending: &Pending| {
                    let watch = refused && matches!(pending.what, Awaited::Task { own: false, .. });
                    pending.node == node && (watch || pending.what == Awaited::Signal)
                };
                if let Some(Pending { client, id, .. }) = self.take(ticket, answered) {
                    self.answer(client, id, outcome.map_or_else(Answer::Refused, |()| Answer::Done));
                }
            }
            Letter::Watch { ticket, client, pid, user } => {
                let watcher = Watcher { node, incarnation, ticket, client, uid: user.uid };
                if !(self.tasks.is_running(pid) || self.clients.values().any(|client| client.pid == pid)) {
                    let exit = self.tasks.ended(pid).unwrap_or(Exit::Unknown);
                    return self.tell(watcher, exit);
                }
                if let Err(exhausted) = self.tasks.watch(pid, watcher) {
                    let outcome = Err(self.limit(Party::User(user.uid), "registrations here", exhausted));
                    self.reply(node, incarnation, Letter::Outcome { ticket, outcome });
                }
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
            Letter::ClientGone { client } => {
                let of_it = |it: &Watcher| (it.node, it.incarnation, it.client) == (node, incarnation, client);
                self.tasks.forget(of_it);
                let ends = self.tasks.end(self.config.grace, |master| of_it(&master.owner));
                self.end(ends);
            }
            Letter::Tasks { ticket } => {
                let tasks = self.tasks.list(self.config.node);
                self.reply(node, incarnation, Letter::TaskList { ticket, tasks });
            }
            Letter::TaskList { ticket, mut tasks } => {
                // A node lists its own tasks only.
                tasks.retain(|info| info.task.node == node);
                let list = |pending: &Pending| pending.node == node && pending.what == Awaited::List;
                if let Some(Pending { client, id, .. }) = self.take(ticket, list) {
                    self.gather(client, id, tasks);
                }
            }
            Letter::Partition(partition) => {
                // One with nodes beyond the limit of this cluster is not taken.
                if partition.nodes.iter().all(|node| *node < self.config.nodes) {
                    self.partitions.merge(partition, self.config.has(Bug::LastComeWins));
                }
            }
            // `envelope` handles it, from any incarnation of the sender.
            Letter::Fenced => {}
        }
    }

    /// Whether one more task may be started here, for this master.
    fn admit(&mut self, token: u64, master: Master) -> Result<(), Refusal> {
        if self.stopped {
            return Err(Refusal::new(Refusal::EHOSTUNREACH, format!("node {} ends", self.config.node)));
        }
        let uid = master.owner.uid;
        self.tasks.start(token, master).map_err(|exhausted| self.limit(Party::User(uid), "tasks here", exhausted))
    }

    /// Closes a ticket, if it is of that kind.
    fn take(&mut self, ticket: u64, is: impl Fn(&Pending) -> bool) -> Option<Pending> {
        is(self.pending.get(&ticket)?).then(|| self.close(ticket)).flatten()
    }

    fn started(&mut self, token: u64, outcome: Result<u32, Refusal>) {
        let started = self.tasks.started(token, outcome.as_ref().ok().copied());
        let Some(Starting { master: Master { owner, .. }, doomed }) = started else { return };
        let Watcher { node, incarnation, ticket, .. } = owner;
        if outcome.is_ok() && doomed && !self.config.has(Bug::KeepLateStarts) {
            let ends = self.tasks.end(self.config.grace, |master| master.owner == owner);
            self.end(ends);
        }
        self.reply(node, incarnation, Letter::Spawned { ticket, outcome });
    }
}
