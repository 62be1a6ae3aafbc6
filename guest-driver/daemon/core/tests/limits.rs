// SPDX-License-Identifier: MIT OR Apache-2.0
//! One user does not take all tasks of a node, and one client not all of its daemon.
#![allow(clippy::unwrap_used, reason = "a test")]

use telegraphos_daemon_core::protocol::{Answer, Request};
use telegraphos_daemon_core::{Action, Config, Engine, Event, Job, Place, Refusal, User, Watched};

/// Has a client spawn on its own node: how many are started, and the refusals.
fn spawn(engine: &mut Engine, client: u64, uid: u32, count: u16) -> (usize, Vec<Refusal>) {
    let user = User { uid, gid: uid };
    // No process has such an id.
    engine.handle(Event::Connected { client, pid: 1 << 30, user });
    let job = Job { argv: vec!["work".into()], env: Vec::new(), dir: "/".into(), logger: None };
    let request = Request::Spawn { place: Place::Node(0), count, partition: None, job };
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

#[test]
fn a_users_tasks_leave_room_for_those_of_others() {
    let mut engine = Engine::new(Config::new(0, 1, 4));
    let (started, refusals) = spawn(&mut engine, 1, 1000, 256);
    assert_eq!((started, refusals.len()), (192, 64));
    assert!(refusals[0].errno == Refusal::EAGAIN && refusals[0].text.contains("192 of user 1000"), "{}", refusals[0]);
    assert_eq!(spawn(&mut engine, 2, 1001, 40).0, 40);
    let (started, refusals) = spawn(&mut engine, 3, 0, 30);
    assert_eq!((started, refusals.len()), (24, 6));
    assert!(refusals[0].text.contains("node 0 has 256 tasks"), "{}", refusals[0]);
}

#[test]
fn a_client_waits_for_so_many_things_at_most() {
    let mut engine = Engine::new(Config::new(0, 1, 4));
    assert_eq!(spawn(&mut engine, 1, 0, 256).0, 256);
    // What waits to be started is waited for.
    let (_, refusals) = spawn(&mut engine, 1, 0, 256);
    assert_eq!(refusals.len(), 256);
    let (_, refusals) = spawn(&mut engine, 1, 0, 256);
    assert_eq!(refusals.len(), 256);
    for registration in 1..=256 {
        let request = Request::Watch { what: Watched::Node(0) };
        engine.handle(Event::Request { client: 1, id: 1 + registration, request });
    }
    let actions = engine.handle(Event::Request { client: 1, id: 999, request: Request::Tasks });
    let refused = actions.iter().find_map(|action| match action {
        Action::Answer { answer: Answer::Refused(refusal), .. } => Some(refusal.clone()),
        _ => None,
    });
    assert!(refused.unwrap().text.contains("this client waits for 512 tasks, signals and registrations"));
}
