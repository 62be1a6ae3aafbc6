// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other parties send late, never, twice or with a lie in it: clients, the daemons of other nodes, and the shell.
//! Each has no effect, or one on the party alone that sent it.

use crate::common::{self, job, letter_of};
use telegraphos_daemon_core::protocol::{Answer, Checked, Envelope, Letter, Request, decode};
use telegraphos_daemon_core::{
    Action, Engine, Event, Exit, Job, Logger, Partition, Place, Refusal, TaskId, TaskInfo, User, Watched,
};

const USER: User = User { uid: 1000, gid: 1000 };
const PID: u32 = 4000;

/// The daemon of node 0, with nodes 1 and 2, and a client, number 1.
fn engine() -> Engine {
    let mut engine = common::engine(2);
    engine.handle(Event::Connected { client: 1, pid: PID, user: USER });
    engine
}

fn request(engine: &mut Engine, request: Request) -> Vec<Action> {
    engine.handle(Event::Request { client: 1, id: 9, request })
}

/// The ticket of the letter that a request becomes.
fn ticket(actions: &[Action]) -> u64 {
    let ticket = actions.iter().find_map(|action| match action {
        Action::Send { envelope, .. } => match envelope.letter {
            Letter::Spawn { ticket, .. }
            | Letter::Signal { ticket, .. }
            | Letter::Watch { ticket, .. }
            | Letter::Tasks { ticket } => Some(ticket),
            _ => None,
        },
        _ => None,
    });
    ticket.unwrap()
}

/// Each kind of letter that answers.
fn answers(ticket: u64) -> Vec<Letter> {
    let refusal = Refusal::new(Refusal::ESRCH, "no");
    let info =
        TaskInfo { task: TaskId { node: 1, pid: 5 }, master: TaskId { node: 1, pid: 6 }, uid: 0, program: "x".into() };
    vec![
        Letter::Spawned { ticket, outcome: Ok(77) },
        Letter::Spawned { ticket, outcome: Err(refusal.clone()) },
        Letter::Outcome { ticket, outcome: Ok(()) },
        Letter::Outcome { ticket, outcome: Err(refusal) },
        Letter::Died { ticket, exit: Exit::Code(0) },
        Letter::TaskList { ticket, tasks: vec![info] },
    ]
}

fn requests() -> Vec<Request> {
    vec![
        Request::Spawn { place: Place::Node(1), count: 1, partition: None, job: job() },
        Request::Signal { task: TaskId { node: 1, pid: 5 }, signal: 0 },
        Request::Watch { what: Watched::Task(TaskId { node: 1, pid: 5 }) },
        Request::Tasks,
    ]
}

/// Which of the answers may be given to which request, from the node that was asked.
const FITS: [&[usize]; 3] = [&[0, 1], &[2, 3], &[3, 4]];

#[test]
fn answers_count_once_to_their_request_and_from_the_node_that_was_asked() {
    // A list has answers of several nodes: see below.
    for (request_made, fits) in requests().into_iter().zip(FITS) {
        for number in 0..answers(0).len() {
            let mut engine = engine();
            let ticket = ticket(&request(&mut engine, request_made.clone()));
            let answer = answers(ticket).swap_remove(number);
            assert_eq!(letter_of(&mut engine, 2, answer.clone()), [], "{answer:?} of another node");
            let far = answers(ticket + 1000).swap_remove(number);
            assert_eq!(letter_of(&mut engine, 1, far), [], "to no request");
            let actions = letter_of(&mut engine, 1, answer.clone());
            let expected = usize::from(fits.contains(&number));
            assert_eq!(actions.len(), expected, "{answer:?} to {request_made:?}: {actions:?}");
            assert!(actions.iter().all(|action| matches!(action, Action::Answer { client: 1, id: 9, .. })));
            if expected == 1 {
                assert_eq!(letter_of(&mut engine, 1, answer.clone()), [], "{answer:?} twice");
            }
        }
    }
}

#[test]
fn a_list_has_one_part_of_each_node() {
    let mut engine = engine();
    let letters = request(&mut engine, Request::Tasks);
    let [first, second] = [1, 2].map(|node| {
        let of_it = letters.iter().filter(|action| matches!(action, Action::Send { node: to, .. } if *to == node));
        ticket(&of_it.cloned().collect::<Vec<_>>())
    });
    let part = |ticket| answers(ticket).swap_remove(5);
    assert_eq!(letter_of(&mut engine, 1, part(second)), [], "that of the other");
    assert_eq!(letter_of(&mut engine, 1, part(first)), []);
    assert_eq!(letter_of(&mut engine, 1, part(first)), [], "twice");
    let complete = letter_of(&mut engine, 2, part(second));
    let [Action::Answer { answer: Answer::Tasks(tasks), .. }] = &complete[..] else { panic!("{complete:?}") };
    assert_eq!(tasks.iter().map(|info| info.task.node).collect::<Vec<_>>(), [1]);
    assert_eq!(letter_of(&mut engine, 2, part(second)), []);
}

#[test]
fn answers_that_come_after_their_client_has_gone_reach_no_other() {
    for made in requests() {
        for number in 0..answers(0).len() {
            let mut engine = engine();
            let ticket = ticket(&request(&mut engine, made.clone()));
            engine.handle(Event::Gone { client: 1 });
            engine.handle(Event::Gone { client: 1 });
            engine.handle(Event::Connected { client: 2, pid: PID, user: USER });
            let late = answers(ticket).swap_remove(number);
            assert_eq!(letter_of(&mut engine, 1, late), []);
            assert_eq!(
                engine.handle(Event::Request { client: 1, id: 9, request: made.clone() }),
                [],
                "of one that has gone"
            );
        }
    }
}

#[test]
fn answers_that_never_come_end_with_the_node() {
    for made in requests() {
        let mut engine = engine();
        request(&mut engine, made.clone());
        for _ in 0..8 {
            engine.handle(Event::Heard { node: 2, incarnation: 7, load: 0 });
            // Its letters stay where they are, and neither node is dead for it.
            assert!(engine.on_their_way(1) > 0);
            let actions = engine.handle(Event::Tick { running: 0 });
            let answered =
                actions.iter().filter(|action| matches!(action, Action::Answer { client: 1, id: 9, .. })).count();
            let lost = actions.iter().any(|action| matches!(action, Action::Lost { node: 1, .. }));
            // A list is complete when the others have answered.
            assert_eq!(answered > 0, lost && made != Request::Tasks, "{made:?}: {actions:?}");
        }
        assert!(engine.nodes().iter().any(|info| info.node == 1 && !info.alive));
    }
}

#[test]
fn letters_of_other_incarnations_of_no_node_and_of_itself_have_no_effect() {
    let mut engine = engine();
    let ask = Letter::Signal { ticket: 1, pid: 5, signal: 0, user: USER };
    for (node, from, to) in [(1, 7, 2), (1, 7, 0), (0, 1, 1), (8, 7, 1), (u16::MAX, 7, 1), (1, 0, 1)] {
        let envelope = Envelope { from, to, number: 1, letter: ask.clone() };
        assert_eq!(engine.handle(Event::Letter { from: node, envelope }), [], "node {node}, from {from} to {to}");
    }
    for (node, incarnation) in [(0, 5), (8, 5), (u16::MAX, 5), (1, 0)] {
        assert_eq!(engine.handle(Event::Heard { node, incarnation, load: u32::MAX }), [], "node {node}");
    }
    assert_eq!(letter_of(&mut engine, 1, ask).len(), 1);
}

#[test]
fn a_load_that_cannot_be_is_the_greatest() {
    let mut engine = engine();
    engine.handle(Event::Heard { node: 1, incarnation: 7, load: u32::MAX });
    engine.handle(Event::Heard { node: 2, incarnation: 7, load: u32::MAX - 1 });
    let loads = |engine: &Engine| engine.nodes().iter().map(|info| info.load).collect::<Vec<_>>();
    let greatest = (1 << 24) - 1;
    assert_eq!(loads(&engine), [0, greatest, greatest]);
    // A task that is spawned on a node is added to its load.
    for node in [1, 1, 2] {
        request(&mut engine, Request::Spawn { place: Place::Node(node), count: 1, partition: None, job: job() });
    }
    assert_eq!(loads(&engine), [0, greatest, greatest]);
}

#[test]
fn letters_beyond_the_limits_are_no_letters() {
    let lie = |letter: Letter, says: &str| {
        let envelope = Envelope { from: 7, to: 1, number: 1, letter };
        let said = envelope.check().unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
        // The receiver checks it, whatever the sender does.
        assert!(decode::<Envelope>(&postcard::to_allocvec(&envelope).unwrap()).is_err());
    };
    // For setresuid(2), that is to leave it as it is: root.
    let none = User { uid: u32::MAX, gid: 1000 };
    let group = User { uid: 1000, gid: u32::MAX };
    let master = TaskId { node: 1, pid: 5 };
    for user in [none, group] {
        lie(Letter::Spawn { ticket: 1, client: 1, master, user, job: job() }, "expected less than 4294967295");
        lie(Letter::Signal { ticket: 1, pid: 5, signal: 9, user }, "expected less than");
        lie(Letter::Watch { ticket: 1, client: 1, pid: 5, user }, "expected less than");
    }
    for pid in [0, 1 << 31, u32::MAX] {
        lie(Letter::Spawned { ticket: 1, outcome: Ok(pid) }, "expected 1 to 2147483647");
    }
    for signal in [-1, 65, i32::MAX] {
        lie(Letter::Signal { ticket: 1, pid: 5, signal, user: USER }, "expected 0 to 64");
    }
    let long = Refusal { errno: 1, text: "x".repeat(2000) };
    lie(Letter::Spawned { ticket: 1, outcome: Err(long.clone()) }, "too long");
    lie(Letter::Outcome { ticket: 1, outcome: Err(long) }, "too long");
    let info = TaskInfo { task: master, master, uid: 0, program: "x".repeat(33) };
    lie(Letter::TaskList { ticket: 1, tasks: vec![info] }, "more than 32 characters");
    let logger = Some(Logger { port: 22, key: [0; 16] });
    let job = Job { logger, ..job() };
    lie(Letter::Spawn { ticket: 1, client: 1, master, user: USER, job }, "below 1024");
    let name = "../..".to_owned() + &"x".repeat(40);
    lie(Letter::Partition(Partition { name, version: 1, writer: 1, nodes: [0].into() }), "expected 1 to 32 letters");
}

#[test]
fn a_partition_of_nodes_that_there_cannot_be_is_not_taken() {
    let mut engine = engine();
    let partition = |nodes: &[u16]| Partition {
        name: "p".into(),
        version: u64::MAX,
        writer: u16::MAX,
        nodes: nodes.iter().copied().collect(),
    };
    assert_eq!(letter_of(&mut engine, 1, Letter::Partition(partition(&[1, 8]))), []);
    assert_eq!(engine.partitions(), []);
    assert_eq!(letter_of(&mut engine, 1, Letter::Partition(partition(&[1, 7]))), []);
    assert_eq!(engine.partitions().len(), 1);
    // Its version cannot be exceeded: that is refused, and nothing else.
    engine.handle(Event::Connected { client: 2, pid: 5, user: User { uid: 0, gid: 0 } });
    let set = Request::SetPartition { name: "p".into(), nodes: vec![0] };
    let actions = engine.handle(Event::Request { client: 2, id: 1, request: set });
    assert!(
        matches!(&actions[..], [Action::Answer { answer: Answer::Refused(refusal), .. }] if refusal.errno == Refusal::EAGAIN)
    );
}

#[test]
fn a_node_ends_its_own_clients_tasks_and_registrations_alone() {
    let mut engine = engine();
    let mut start = |from: u16, pid: u32| {
        let master = TaskId { node: from, pid: 5 };
        let actions =
            letter_of(&mut engine, from, Letter::Spawn { ticket: 3, client: 1, master, user: USER, job: job() });
        let [Action::Start { token, .. }] = actions[..] else { panic!("{actions:?}") };
        assert_eq!(engine.handle(Event::Started { token, outcome: Ok(pid) }).len(), 1);
        // What has been reported is reported again, by no process.
        assert_eq!(engine.handle(Event::Started { token, outcome: Ok(pid + 50) }), []);
    };
    start(1, 100);
    start(2, 101);
    let actions = letter_of(&mut engine, 1, Letter::ClientGone { client: 1 });
    assert_eq!(actions, [Action::End { pid: 100, kill: false }]);
    assert_eq!(letter_of(&mut engine, 1, Letter::ClientGone { client: 1 }), []);
    assert_eq!(engine.own_tasks(), 2);
    engine.handle(Event::Exited { pid: 100, exit: Exit::Code(0) });
    assert_eq!(engine.handle(Event::Exited { pid: 100, exit: Exit::Code(0) }), []);
    assert_eq!(engine.handle(Event::Exited { pid: 9999, exit: Exit::Code(0) }), []);
    assert_eq!(engine.own_tasks(), 1);
}

#[test]
fn requests_of_one_id_and_to_odd_places_are_answered_each() {
    let mut engine = engine();
    let count = |actions: &[Action]| actions.iter().filter(|action| matches!(action, Action::Answer { .. })).count();
    for _ in 0..3 {
        let far = Request::Signal { task: TaskId { node: 7, pid: 5 }, signal: 0 };
        assert_eq!(count(&request(&mut engine, far)), 1);
        assert_eq!(count(&request(&mut engine, Request::Watch { what: Watched::Node(u16::MAX) })), 1);
        assert_eq!(count(&request(&mut engine, Request::DeletePartition { name: "none".into() })), 1);
        assert_eq!(count(&request(&mut engine, Request::SetPartition { name: "p".into(), nodes: vec![1] })), 1);
        assert_eq!(count(&request(&mut engine, Request::Nodes)), 1);
        for signal in [-1, 65, i32::MIN] {
            assert_eq!(count(&request(&mut engine, Request::Signal { task: TaskId { node: 1, pid: 5 }, signal })), 1);
        }
        let nowhere = Request::Spawn { place: Place::Node(99), count: 256, partition: None, job: job() };
        assert_eq!(count(&request(&mut engine, nowhere)), 1);
    }
    // Two lists by one id are one, and the other is refused.
    assert_eq!(count(&request(&mut engine, Request::Tasks)), 0);
    assert_eq!(count(&request(&mut engine, Request::Tasks)), 1);
    assert_eq!(engine.partitions(), []);
}

#[test]
fn letters_that_arrive_are_reported_twice_and_of_no_node_without_harm() {
    let mut engine = engine();
    for node in [0, 1, 2, 7, 8, u16::MAX] {
        for _ in 0..3 {
            assert_eq!(engine.handle(Event::Sent { node }), []);
        }
    }
    request(&mut engine, Request::Signal { task: TaskId { node: 1, pid: 5 }, signal: 0 });
    assert_eq!(engine.on_their_way(1), 1);
}

#[test]
fn a_letter_that_comes_twice_counts_once() {
    let mut engine = engine();
    let master = TaskId { node: 1, pid: 5 };
    let letter = Letter::Spawn { ticket: 3, client: 1, master, user: USER, job: job() };
    let twice =
        |number| Event::Letter { from: 1, envelope: Envelope { from: 7, to: 1, number, letter: letter.clone() } };
    assert_eq!(engine.handle(twice(5)).len(), 1);
    for number in [5, 4, 0] {
        assert_eq!(engine.handle(twice(number)), []);
    }
    // Its next incarnation counts anew.
    let envelope = Envelope { from: 8, to: 1, number: 1, letter: letter.clone() };
    let actions = engine.handle(Event::Letter { from: 1, envelope });
    assert!(actions.iter().any(|action| matches!(action, Action::Start { .. })), "{actions:?}");
}

/// The shell gives a number to one client only; what if not.
#[test]
fn a_client_with_the_number_of_another_waits_for_nothing_of_that_ones() {
    let mut engine = engine();
    let task = TaskId { node: 1, pid: 5 };
    let ticket = ticket(&request(&mut engine, Request::Watch { what: Watched::Task(task) }));
    engine.handle(Event::Connected { client: 1, pid: PID, user: USER });
    let actions = letter_of(&mut engine, 1, Letter::Died { ticket, exit: Exit::Code(0) });
    assert!(!actions.iter().any(|action| matches!(action, Action::Answer { .. })), "{actions:?}");
    let refusal = Refusal::new(Refusal::ESRCH, "no");
    letter_of(&mut engine, 1, Letter::Outcome { ticket, outcome: Err(refusal) });
}
