// SPDX-License-Identifier: MIT OR Apache-2.0
//! One user does not use up what the daemon of a node has for all, root has a reserve, and a node that is healthy is
//! alive whatever users do.

use crate::common::{engine, job, letter_of};
use telegraphos_daemon_core::protocol::{Answer, Envelope, Letter, Request};
use telegraphos_daemon_core::{Action, Engine, Event, Job, Party, Place, Refusal, TaskId, TaskInfo, User, Watched};

/// No process of the engine has such an id.
const PID: u32 = 1 << 30;

fn user(uid: u32) -> User {
    User { uid, gid: uid }
}

fn connect(engine: &mut Engine, client: u64, uid: u32) {
    engine.handle(Event::Connected { client, pid: PID, user: user(uid) });
}

/// What is refused, and the letters that go.
fn request(engine: &mut Engine, client: u64, id: u32, request: Request) -> (Vec<Refusal>, Vec<Letter>) {
    let (mut refusals, mut letters) = (Vec::new(), Vec::new());
    for action in engine.handle(Event::Request { client, id, request }) {
        match action {
            Action::Answer { answer: Answer::Spawned { outcome: Err(refusal), .. }, .. }
            | Action::Answer { answer: Answer::Refused(refusal), .. } => refusals.push(refusal),
            Action::Send { envelope, .. } => letters.push(envelope.letter),
            _ => {}
        }
    }
    (refusals, letters)
}

/// Has a client spawn on its own node: how many are started, and the refusals.
fn spawn(engine: &mut Engine, client: u64, uid: u32, count: u16) -> (usize, Vec<Refusal>) {
    connect(engine, client, uid);
    let request = Request::Spawn { place: Place::Node(0), count, partition: None, job: job() };
    let actions = engine.handle(Event::Request { client, id: 1, request });
    let started = actions.iter().filter(|action| matches!(action, Action::Start { .. })).count();
    let refusals = actions.into_iter().filter_map(|action| match action {
        Action::Answer { answer: Answer::Spawned { outcome: Err(refusal), .. } | Answer::Refused(refusal), .. } => {
            Some(refusal)
        }
        _ => None,
    });
    (started, refusals.collect())
}

/// Sends signals to node 1 until one is refused, by as many clients as it takes: how many went.
fn fill(engine: &mut Engine, first: u64, uid: u32) -> (usize, Refusal) {
    let (mut client, mut went) = (first, 0);
    connect(engine, client, uid);
    loop {
        let task = TaskId { node: 1, pid: 1 };
        let (refusals, letters) = request(engine, client, 1, Request::Signal { task, signal: 0 });
        went += letters.len();
        match refusals.into_iter().next() {
            Some(refusal) if refusal.text.contains("this client waits") => {
                client += 1;
                connect(engine, client, uid);
            }
            Some(refusal) => return (went, refusal),
            None => {}
        }
    }
}

fn is_alive(engine: &Engine, node: u16) -> bool {
    engine.nodes().iter().any(|info| info.node == node && info.alive)
}

#[test]
fn s3_letters_that_wait_are_of_those_that_send_them_and_no_death() {
    let mut engine = engine(2);
    let (went, refusal) = fill(&mut engine, 100, 1000);
    assert_eq!(went, 512);
    assert_eq!(refusal.errno, Refusal::EAGAIN);
    assert!(refusal.text.contains("user 1000 has 512 letters to one node, and 1 more"), "{refusal}");
    // Others take what is left, and those that come last their guarantee.
    let counts: Vec<usize> = (1..32_u32).map(|n| fill(&mut engine, 1000 * u64::from(n + 1), 1000 + n).0).collect();
    assert_eq!((counts[0], counts[1], counts[30]), (32, 16, 16), "{counts:?}");
    assert_eq!(fill(&mut engine, 90_000, 5000).0, 0, "one user beyond those with a guarantee");
    assert_eq!(fill(&mut engine, 91_000, 0).0, 128);
    assert!(is_alive(&engine, 1) && is_alive(&engine, 2));
    // Those to others go, and what the node is owed.
    connect(&mut engine, 1, 1000);
    let task = TaskId { node: 2, pid: 1 };
    assert_eq!(request(&mut engine, 1, 1, Request::Signal { task, signal: 0 }).1.len(), 1);
    let ask = Letter::Tasks { ticket: 9 };
    let asked = engine.handle(Event::Letter { from: 1, envelope: Envelope { from: 7, to: 1, number: 1, letter: ask } });
    assert!(
        matches!(&asked[..], [Action::Send { node: 1, envelope }] if matches!(envelope.letter, Letter::TaskList { ticket: 9, .. }))
    );
    // As they arrive, there is room.
    engine.handle(Event::Sent { node: 1 });
    let task = TaskId { node: 1, pid: 1 };
    assert_eq!(request(&mut engine, 1, 2, Request::Signal { task, signal: 0 }).1.len(), 1);
    assert_eq!(request(&mut engine, 1, 3, Request::Signal { task, signal: 0 }).0[0].errno, Refusal::EAGAIN);
    for _ in 0..engine.on_their_way(1) {
        engine.handle(Event::Sent { node: 1 });
    }
    assert_eq!(engine.on_their_way(1), 0);
    assert_eq!(fill(&mut engine, 200_000, 1040).0, 512);
}

#[test]
fn long_requests_are_on_the_account_of_their_user_by_their_bytes() {
    let mut engine = engine(7);
    let job = Job { argv: vec!["x".repeat(32_000)], ..job() };
    let mut refused = Vec::new();
    for client in 1..=3 {
        connect(&mut engine, client, 1000);
        let spawn = Request::Spawn { place: Place::LeastLoaded, count: 200, partition: None, job: job.clone() };
        refused.extend(request(&mut engine, client, 1, spawn).0);
    }
    assert!(refused[0].text.contains("KiB of letters"), "{}", refused[0]);
    let held = 12 * 1024 / 32;
    // Those of its own node are no letters.
    let own = 600 / 8;
    assert_eq!(refused.len(), 600 - own - held);
}

#[test]
fn a_users_tasks_leave_room_for_those_of_others() {
    let mut engine = engine(0);
    let (started, refusals) = spawn(&mut engine, 1, 1000, 256);
    assert_eq!((started, refusals.len()), (128, 128));
    assert!(refusals[0].errno == Refusal::EAGAIN && refusals[0].text.contains("user 1000 has 128"), "{}", refusals[0]);
    assert_eq!(spawn(&mut engine, 2, 1001, 40).0, 40);
    // Its reserve, and what is left of the others' but for their guarantees.
    let (started, refusals) = spawn(&mut engine, 3, 0, 70);
    assert_eq!((started, refusals.len()), (62, 8));
    assert!(refusals[0].text.contains("node 0: user 0 has 62 tasks here"), "{}", refusals[0]);
    assert_eq!(spawn(&mut engine, 4, 1002, 3).0, 2);
}

#[test]
fn a_client_waits_for_so_many_things_at_most() {
    let mut engine = engine(0);
    connect(&mut engine, 1, 1000);
    for id in 1..=512 {
        assert!(request(&mut engine, 1, id, Request::Watch { what: Watched::Node(0) }).0.is_empty());
    }
    let (refusals, _) = request(&mut engine, 1, 999, Request::Tasks);
    assert!(refusals[0].text.contains("this client waits for 512 tasks, signals and registrations"), "{}", refusals[0]);
    // All clients of a user together, and others have theirs.
    let mut open = 512;
    let refusal = (2..).find_map(|client| {
        connect(&mut engine, client, 1000);
        (0..512).find_map(|id| {
            let refusals = request(&mut engine, client, id, Request::Watch { what: Watched::Node(0) }).0;
            open += usize::from(refusals.is_empty());
            refusals.into_iter().next()
        })
    });
    assert_eq!(open, 2048);
    assert!(refusal.unwrap().text.contains("user 1000 has 2048 tasks, signals and registrations"));
    connect(&mut engine, 99, 1001);
    assert!(request(&mut engine, 99, 1, Request::Watch { what: Watched::Node(0) }).0.is_empty());
    // They are given back with their clients.
    engine.handle(Event::Gone { client: 1 });
    connect(&mut engine, 100, 1000);
    assert!(request(&mut engine, 100, 1, Request::Watch { what: Watched::Node(0) }).0.is_empty());
}

/// A letter of the daemon of node 1: what is answered.
fn letter(engine: &mut Engine, letter: Letter) -> Vec<Action> {
    letter_of(engine, 1, letter)
}

fn outcome(actions: &[Action]) -> Option<&Refusal> {
    actions.iter().find_map(|action| match action {
        Action::Send { envelope: Envelope { letter: Letter::Outcome { outcome: Err(refusal), .. }, .. }, .. } => {
            Some(refusal)
        }
        _ => None,
    })
}

#[test]
fn signals_that_are_being_sent_are_of_their_users() {
    let mut engine = engine(1);
    let mut tokens = Vec::new();
    let mut signal = |engine: &mut Engine, uid: u32| {
        let actions = letter(engine, Letter::Signal { ticket: 1, pid: 2, signal: 0, user: user(uid) });
        tokens.extend(actions.iter().find_map(|action| match action {
            Action::Signal { token, .. } => Some(*token),
            _ => None,
        }));
        outcome(&actions).cloned()
    };
    let refused = (0..).find_map(|n| signal(&mut engine, 1000).map(|refusal| (n, refusal))).unwrap();
    assert_eq!((refused.0, refused.1.errno), (64, Refusal::EAGAIN));
    assert!((0..64).all(|_| signal(&mut engine, 1001).is_none()));
    assert!((0..2).all(|_| signal(&mut engine, 1002).is_none()));
    assert!((0..64).all(|_| signal(&mut engine, 0).is_none()));
    let token = tokens[0];
    engine.handle(Event::Signalled { token, outcome: Ok(()) });
    // Nothing is given back twice.
    engine.handle(Event::Signalled { token, outcome: Ok(()) });
    assert!(letter(&mut engine, Letter::Signal { ticket: 1, pid: 2, signal: 0, user: user(1000) }).len() == 1);
    assert!(outcome(&letter(&mut engine, Letter::Signal { ticket: 1, pid: 2, signal: 0, user: user(1000) })).is_some());
}

#[test]
fn registrations_are_of_their_users_and_a_refusal_is_no_death() {
    let mut engine = engine(1);
    connect(&mut engine, 1, 0);
    let watch = |engine: &mut Engine, ticket: u64, uid: u32| {
        let actions = letter(engine, Letter::Watch { ticket, client: 5, pid: PID, user: user(uid) });
        let died = |action: &Action| matches!(action, Action::Send { envelope, .. } if matches!(envelope.letter, Letter::Died { .. }));
        assert!(!actions.iter().any(died), "{actions:?}");
        outcome(&actions).cloned()
    };
    let (count, refusal) = (0..).find_map(|n| watch(&mut engine, n, 1000).map(|refusal| (n, refusal))).unwrap();
    assert_eq!((count, refusal.errno), (1024, Refusal::EAGAIN));
    assert!(watch(&mut engine, 5000, 1001).is_none() && watch(&mut engine, 5001, 0).is_none());
    // Of another client.
    letter(&mut engine, Letter::ClientGone { client: 6 });
    assert!(watch(&mut engine, 5002, 1000).is_some());
    letter(&mut engine, Letter::ClientGone { client: 5 });
    assert!(watch(&mut engine, 5003, 1000).is_none());
}

#[test]
fn what_a_node_is_owed_is_bounded_also_if_it_breaks_the_rules() {
    let mut engine = engine(1);
    let mut sent = 0;
    let mut refused = Vec::new();
    for ticket in 0..20_000 {
        for action in letter(&mut engine, Letter::Tasks { ticket }) {
            match action {
                Action::Send { .. } => sent += 1,
                Action::Refused { party, times, .. } => refused.push((party, times)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((sent, engine.on_their_way(1)), (16 << 10, 16 << 10));
    assert_eq!(refused.len(), 20_000 - (16 << 10));
    assert_eq!((refused[0], refused[1]), ((Party::Node(1), 1), (Party::Node(1), 2)));
    assert!(is_alive(&engine, 1));
}

#[test]
fn a_dead_node_gets_one_notice_at_a_time_and_partitions_do_not_pile_up() {
    let mut engine = engine(1);
    connect(&mut engine, 1, 0);
    let mut sent = 0;
    for _ in 0..10 {
        for n in 0..200 {
            let name = format!("p{n}");
            sent += request(&mut engine, 1, 1, Request::SetPartition { name, nodes: vec![0, 1] }).1.len();
        }
    }
    assert_eq!((sent, engine.on_their_way(1)), (256, 256));
    // All that have changed meanwhile go when those have arrived, once each.
    let later: usize = (0..256).map(|_| engine.handle(Event::Sent { node: 1 }).len()).sum();
    assert_eq!((later, engine.on_their_way(1)), (200, 200));

    for _ in 0..8 {
        engine.handle(Event::Tick { running: 0 });
    }
    assert!(!is_alive(&engine, 1));
    let heard = Event::Heard { node: 1, incarnation: 7, load: 0 };
    let sent: usize = (0..100).map(|_| engine.handle(heard.clone()).len()).sum();
    assert_eq!((sent, engine.on_their_way(1)), (1, 201));
}

#[test]
fn lists_are_bounded_and_of_their_nodes() {
    let mut engine = engine(1);
    connect(&mut engine, 1, 1000);
    let mut tickets = Vec::new();
    for id in 1..=4 {
        let (refusals, letters) = request(&mut engine, 1, id, Request::Tasks);
        assert!(refusals.is_empty(), "{refusals:?}");
        tickets.extend(letters.iter().map(|letter| match letter {
            Letter::Tasks { ticket } => *ticket,
            other => panic!("{other:?}"),
        }));
    }
    let (refusals, _) = request(&mut engine, 1, 5, Request::Tasks);
    assert!(refusals[0].text.contains("user 1000 has 4 lists of tasks that one client waits for"), "{}", refusals[0]);
    let info = |node, pid| TaskInfo {
        task: TaskId { node, pid },
        master: TaskId { node, pid: 1 },
        uid: 7,
        program: "x".into(),
    };
    let tasks: Vec<TaskInfo> = (1..=700).map(|pid| info(1, pid)).chain([info(0, 5), info(3, 5)]).collect();
    let answers = letter(&mut engine, Letter::TaskList { ticket: tickets[0], tasks });
    let [Action::Answer { id: 1, answer: Answer::Tasks(list), .. }] = &answers[..] else { panic!("{answers:?}") };
    assert!(list.len() == 600 && list.iter().all(|info| info.task.node == 1));
    // There is room for another now.
    assert!(request(&mut engine, 1, 6, Request::Tasks).0.is_empty());
}
