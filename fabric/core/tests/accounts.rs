// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one hostile node can make the switch hold or do is on its account: groups, resets and joins, replies. Each
//! check has a deliberate bug that it finds.

use crate::common::{Failure, class_of, fail, frame, handle, join_offering, joined_offering, packet};
use telegraphos_accounts::Rate;
use telegraphos_fabric_core::{
    Action, Attached, Bug, Diagnostic, Event, MAX_ACCEPTED_CREDITS, PortId, Switch, SwitchConfig, Violation,
};
use telegraphos_wire::link::{Frame, MAX_GROUPS, MAX_MEMBERSHIPS, RESET_BITS, Refusal, incarnation_at};
use telegraphos_wire::{Body, Class, NodeId, Packet, RemoteAddr, STREAM_BLOCK, Status, Tags};

fn config(bug: Option<Bug>) -> SwitchConfig {
    let mut config = SwitchConfig::new(4);
    config.class_of = class_of;
    config.bug = bug;
    config
}

fn join(switch: &mut Switch, node: NodeId) -> Vec<Action> {
    join_offering(switch, node, 256)
}

fn refusal(actions: &[Action], of: PortId) -> Option<(Refusal, u64, u64)> {
    actions.iter().find_map(|action| match action {
        Action::Send(port, Frame::Refuse { reason, offered, expected }) if *port == of => {
            Some((*reason, *offered, *expected))
        }
        _ => None,
    })
}

// ---- groups ----

/// As many groups as the switch keeps; one more ends the node that names it. An ended one makes place for another, and
/// a reset for all.
fn groups(bug: Option<Bug>) -> Result<(), Failure> {
    let mut switch = Switch::new(config(bug)).unwrap();
    join(&mut switch, 0);
    let name = |switch: &mut Switch, page: u32, members: &[NodeId]| {
        refusal(&frame(switch, 0, Frame::Group { page, members: members.to_vec() }), 0)
    };
    let most = MAX_GROUPS as u32;
    for page in 0..most {
        if let Some(refusal) = name(&mut switch, page, &[1, 2]) {
            return fail("groups_allowed", format!("group {page}: {refusal:?}"));
        }
    }
    // Anew is not in addition, however often.
    for round in 0..MAX_MEMBERSHIPS as u32 {
        if let Some(refusal) = name(&mut switch, round % most, &[3]) {
            return fail("groups_allowed", format!("round {round}: {refusal:?}"));
        }
    }
    if let Err(e) = switch.audit() {
        return fail("groups_audit", e);
    }
    assert_eq!(name(&mut switch, 0, &[]), None);
    assert_eq!(name(&mut switch, most, &[1]), None, "an ended one makes place");
    match name(&mut switch, most + 1, &[1]) {
        Some((Refusal::Protocol, count, limit)) if (count, limit) == (u64::from(most) + 1, u64::from(most)) => {}
        other => return fail("groups_bounded", format!("{other:?}")),
    }
    // The next connection begins with none.
    join(&mut switch, 0);
    assert_eq!(name(&mut switch, 0, &[1]), None);
    switch.audit().unwrap();
    Ok(())
}

#[test]
fn groups_are_on_the_account_of_their_node() {
    groups(None).unwrap();
}

// ---- resets and joins ----

/// A node may join and be reset a few times at once and then at a rate, whatever connections it uses; others are not
/// refused for it.
fn presence(bug: Option<Bug>) -> Result<(), Failure> {
    const BURST: u32 = 10;
    const RATE: u32 = 4;
    let mut config = config(bug);
    config.presence_rate = Some(Rate::new(RATE, BURST));
    let mut switch = Switch::new(config).unwrap();
    handle(&mut switch, Event::Tick { now: 5_000_000 });
    join(&mut switch, 1);
    join(&mut switch, 0);
    let first = switch.incarnation(0).unwrap() + 1;
    let refused = Some((Refusal::Rate, u64::from(BURST), u64::from(RATE)));
    for n in 0..BURST {
        let incarnation = first + u64::from(n);
        let actions = frame(&mut switch, 0, Frame::Reset { incarnation });
        if n + 1 < BURST {
            assert_eq!(refusal(&actions, 0), None, "reset {n}");
            continue;
        }
        if refusal(&actions, 0) != refused || !actions.contains(&Action::Close(0)) {
            return fail("resets_bounded", format!("{} resets, {:?}", n + 1, refusal(&actions, 0)));
        }
        let what = Violation::Presence { burst: BURST, per_second: RATE };
        let who = Attached::Node(0);
        assert!(actions.contains(&Action::Diagnostic(Diagnostic::Violation { port: 0, who, what })), "{actions:?}");
        assert!(actions.contains(&Action::Send(1, Frame::NodeDown { node: 0 })), "its end is known");
    }
    // A new connection is no new account.
    let before = switch.statistics().refused;
    let actions = join(&mut switch, 0);
    if refusal(&actions, 0) != refused {
        return fail("joins_bounded", "it joined again at once");
    }
    assert_eq!(switch.statistics().refused, before + 1);
    assert_eq!(refusal(&join(&mut switch, 2), 2), None, "another node's account is its own");
    // After a second it has as many as the rate says.
    handle(&mut switch, Event::Tick { now: 6_000_000 });
    for n in 0..RATE {
        assert_eq!(refusal(&join(&mut switch, 0), 0), None, "join {n} of the second");
        handle(&mut switch, Event::PortClosed { port: 0 });
    }
    if refusal(&join(&mut switch, 0), 0) != refused {
        return fail("joins_bounded", "more than the rate");
    }
    switch.audit().unwrap();
    Ok(())
}

#[test]
fn joins_and_resets_of_a_node_have_a_rate() {
    presence(None).unwrap();
}

// ---- incarnations ----

fn welcomed(actions: &[Action]) -> u64 {
    let welcome = actions.iter().find_map(|action| match action {
        Action::Send(_, Frame::Welcome { incarnation, .. }) => Some(*incarnation),
        _ => None,
    });
    welcome.unwrap()
}

/// Fabrics that are started again, on any day until 2100, give a node incarnations, and trunks epochs, that are greater
/// than all before, and so do the grants' generations that boards derive from them.
fn restarts(bug: Option<Bug>) -> Result<(), Failure> {
    const DAY: u64 = 86_400;
    const YEAR_2100: u64 = 4_102_444_800;
    let (mut last, mut generation) = (0, 0);
    // Some seconds apart at first, then some days: also multiples of the powers of two that once came round.
    let close = (0..2000).map(|n| 1_795_000_000 + n);
    let far = (1_796_000_000..YEAR_2100).step_by(6 * DAY as usize + 5888);
    for seconds in close.chain(far) {
        let mut config = config(bug);
        config.base_incarnation = incarnation_at(seconds);
        let mut switch = Switch::new(config).unwrap();
        // As often as a node may in a second, with the resets that the low bits count.
        for _ in 0..16 {
            let incarnation = welcomed(&join(&mut switch, 0));
            if incarnation <= last {
                return fail("incarnations_grow", format!("{incarnation:#x} at {seconds}, after {last:#x}"));
            }
            last = incarnation + (1 << RESET_BITS) - 1;
            frame(&mut switch, 0, Frame::Reset { incarnation: last });
            handle(&mut switch, Event::PortClosed { port: 0 });
        }
        let floor = last.checked_mul(1 << RESET_BITS);
        if floor.is_none_or(|floor| floor <= generation) {
            return fail("generations_grow", format!("{last:#x} at {seconds}"));
        }
        generation = floor.unwrap();
    }
    Ok(())
}

#[test]
fn incarnations_do_not_come_round_before_2100() {
    restarts(None).unwrap();
    for seconds in [0, 1, 1 << 19, 1 << 31, (1 << 32) - 2] {
        assert!(incarnation_at(seconds) < incarnation_at(seconds + 1));
        assert!(
            incarnation_at(seconds) >> RESET_BITS < incarnation_at(seconds + 1) >> RESET_BITS,
            "epochs begin with it"
        );
    }
}

/// 2^20 resets of one join, and 2^20 joins: each greater than all before.
#[test]
fn a_million_resets_and_joins_are_distinguished() {
    let mut config = config(None);
    config.base_incarnation = incarnation_at(1_795_000_000);
    let mut switch = Switch::new(config).unwrap();
    join(&mut switch, 1);
    let mut last = welcomed(&join(&mut switch, 0));
    for _ in 0..1 << 20 {
        last += 1;
        let notified = frame(&mut switch, 0, Frame::Reset { incarnation: last });
        assert_eq!(
            notified,
            [
                Action::Diagnostic(Diagnostic::Reset { node: 0, incarnation: last }),
                Action::Send(1, Frame::NodeUp { node: 0, incarnation: last, block: STREAM_BLOCK as u32 })
            ]
        );
    }
    for _ in 0..1 << 20 {
        handle(&mut switch, Event::PortClosed { port: 0 });
        let incarnation = welcomed(&join(&mut switch, 0));
        assert!(incarnation > last);
        last = incarnation;
    }
}

/// A node does not use up the incarnations of those that come after it under its id.
fn ahead(bug: Option<Bug>) -> Result<(), Failure> {
    let mut switch = Switch::new(config(bug)).unwrap();
    join(&mut switch, 0);
    let last = switch.incarnation(0).unwrap();
    let announced = u64::MAX;
    let actions = frame(&mut switch, 0, Frame::Reset { incarnation: announced });
    if refusal(&actions, 0) != Some((Refusal::Protocol, announced, last + 1)) {
        return fail("incarnations_are_left", format!("{actions:?}"));
    }
    assert_eq!(refusal(&join(&mut switch, 0), 0), None);
    // A board that has outlived a fabric with a clock ahead of this one's.
    let ahead = switch.incarnation(0).unwrap() + (1 << 45);
    assert_eq!(refusal(&frame(&mut switch, 0, Frame::Reset { incarnation: ahead }), 0), None);
    Ok(())
}

#[test]
fn a_node_does_not_use_up_the_incarnations() {
    ahead(None).unwrap();
}

// ---- replies ----

const AT: RemoteAddr = RemoteAddr { page: 0, offset: 0, generation: 0 };

fn block(bytes: usize) -> Frame {
    let body = Body::BlockReply { status: Status::Ok, data: vec![0; bytes].into() };
    Frame::Packet(Packet { body, ..packet(0, 0, Class::Reply, 0, 0) })
}

/// A node that offers the most credits possible, requests blocks of itself without end, answers all of it at once and
/// does not read: what of it the switch holds is bounded by a figure of the switch. Replies of others continue.
fn hoard(bug: Option<Bug>) -> Result<u64, Failure> {
    const MOST: u64 = 32 << 20;
    let mut switch = Switch::new(config(bug)).unwrap();
    join(&mut switch, 1);
    join_offering(&mut switch, 0, u32::MAX);
    let ask = |tag| {
        Frame::Packet(Packet {
            body: Body::ReadBlock { at: AT, context: 1, length: 8192 },
            ..packet(0, 0, Class::Request, tag, 0)
        })
    };
    // It reads requests and credits, and answers nothing yet.
    let (mut held, mut requests) = (256u64, 0u64);
    while held > 0 && requests < 100_000 {
        held -= 1;
        requests += 1;
        for action in frame(&mut switch, 0, ask(requests as u32)) {
            match action {
                Action::Send(0, Frame::Credit { class: Class::Request, count }) => held += u64::from(count),
                // It says that it has made room, at once.
                Action::Send(0, Frame::Packet(_)) if bug.is_some() || requests < 50_000 => {
                    let credit = Frame::Credit { class: Class::Request, count: 1 };
                    for action in frame(&mut switch, 0, credit) {
                        if let Action::Send(0, Frame::Credit { class: Class::Request, count }) = action {
                            held += u64::from(count);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    handle(&mut switch, Event::PortRoom { port: 0, frames: 0 });
    let mut waiting = 0;
    loop {
        let actions = frame(&mut switch, 0, block(8192));
        if actions.contains(&Action::Close(0)) {
            break;
        }
        waiting += 8256;
        if waiting > MOST {
            return fail("replies_to_itself", format!("{waiting} bytes wait, after {requests} requests"));
        }
    }
    switch.audit().unwrap();
    join(&mut switch, 2);
    assert_eq!(refusal(&frame(&mut switch, 2, Frame::Packet(packet(2, 1, Class::Request, 0, 0))), 2), None);
    Ok(waiting)
}

#[test]
fn replies_to_itself_are_bounded_by_a_figure_of_the_switch() {
    let waiting = hoard(None).unwrap();
    println!("{waiting} bytes of replies wait when the node is disconnected");
    assert!(
        waiting >= 8256 * u64::from(MAX_ACCEPTED_CREDITS[Class::Request as usize]),
        "what it was requests it may answer"
    );
}

/// Nodes that all do not read: a sender of replies without requests has its limit once, not once for each of them.
fn unasked(bug: Option<Bug>) -> Result<(), Failure> {
    let mut switch = joined_offering(SwitchConfig { credits: [4; 4], ..config(bug) }, 256);
    for port in 0..4 {
        handle(&mut switch, Event::PortRoom { port, frames: 0 });
    }
    let limit = 2 * 3 * 4;
    for n in 0..10 * limit {
        let reply = Packet {
            body: Body::WriteAck { status: Status::Ok },
            ..packet(0, 1 + n as NodeId % 3, Class::Reply, 0, 0)
        };
        let actions = frame(&mut switch, 0, Frame::Packet(reply));
        if actions.contains(&Action::Close(0)) {
            assert_eq!(refusal(&actions, 0), Some((Refusal::Protocol, limit + 1, limit)));
            return if n == limit { Ok(()) } else { fail("unasked_replies", format!("ended at {n}")) };
        }
        if n >= limit {
            return fail("unasked_replies", format!("{} wait, limit {limit}", n + 1));
        }
    }
    fail("unasked_replies", "never ended")
}

#[test]
fn unsolicited_replies_are_counted_together() {
    unasked(None).unwrap();
}

/// A node has as many unasked replies waiting as it may, is sent requests, and acknowledges all of them at once: after
/// that, each reply is one more unsolicited one.
fn several(bug: Option<Bug>) -> Result<(), Failure> {
    let mut switch = joined_offering(SwitchConfig { credits: [4; 4], ..config(bug) }, 256);
    for port in 1..4 {
        handle(&mut switch, Event::PortRoom { port, frames: 0 });
    }
    let to = |dst, body| Packet { body, ..packet(0, dst, Class::Reply, 0, 0) };
    let limit = 2 * 3 * 4;
    for n in 0..limit {
        let reply = to(1 + n as NodeId % 3, Body::WriteAck { status: Status::Ok });
        assert_eq!(frame(&mut switch, 0, Frame::Packet(reply)), [], "reply {n}");
    }
    let mut tags = Tags::of(0);
    for tag in 0..4 {
        let request = packet(1, 0, Class::Request, tag, 0);
        let actions = frame(&mut switch, 1, Frame::Packet(request.clone()));
        assert!(actions.contains(&Action::Send(0, Frame::Packet(request))), "{actions:?}");
        tags.insert(tag);
    }
    assert_eq!(frame(&mut switch, 0, Frame::Packet(to(1, Body::WriteAcks { tags }))), [], "it was asked for");
    let actions = frame(&mut switch, 0, Frame::Packet(to(1, Body::WriteAck { status: Status::Ok })));
    if actions.contains(&Action::Close(0)) {
        Ok(())
    } else {
        fail("several_are_answered", "four requests and five answers")
    }
}

#[test]
fn an_acknowledgement_of_several_requests_answers_all_of_them() {
    several(None).unwrap();
}

/// Credits that are offered beyond the figure of the switch are not used: the rest waits in the switch, on its senders'
/// credits.
#[test]
fn an_offer_is_accepted_up_to_the_limit_of_the_switch() {
    for class in [Class::Enqueue, Class::Request, Class::Reflected] {
        let mut config = config(None);
        config.credits = [1 << 20; 4];
        config.credits[class as usize] = 1000;
        let most = MAX_ACCEPTED_CREDITS[class as usize];
        let mut switch = Switch::new(config).unwrap();
        join(&mut switch, 1);
        join_offering(&mut switch, 0, u32::MAX);
        let mut delivered = 0;
        let mut sent = 0;
        loop {
            let actions = frame(&mut switch, 1, Frame::Packet(packet(1, 0, class, sent, 0)));
            if refusal(&actions, 1).is_some() {
                break;
            }
            sent += 1;
            delivered += actions.iter().filter(|a| matches!(a, Action::Send(0, Frame::Packet(_)))).count() as u32;
        }
        assert_eq!((delivered, sent), (most, most + 1000), "{class:?}");
    }
}

#[test]
fn each_bug_is_found_by_its_check() {
    let found = |result: Result<(), Failure>| result.err().map(|f| f.check);
    assert_eq!(found(groups(Some(Bug::UnlimitedGroups))), Some("groups_bounded"));
    assert_eq!(found(groups(Some(Bug::LeakMemberships))), Some("groups_allowed"));
    assert_eq!(found(presence(Some(Bug::UnlimitedPresence))), Some("resets_bounded"));
    assert_eq!(found(presence(Some(Bug::ForgetPresence))), Some("joins_bounded"));
    assert_eq!(found(hoard(Some(Bug::AcceptAnyOffer)).map(|_| ())), Some("replies_to_itself"));
    assert_eq!(found(restarts(Some(Bug::ShortIncarnation))), Some("incarnations_grow"));
    assert_eq!(found(ahead(Some(Bug::AcceptAnyIncarnation))), Some("incarnations_are_left"));
    assert_eq!(found(unasked(Some(Bug::UnaskedPerReceiver))), Some("unasked_replies"));
    assert_eq!(found(several(Some(Bug::CountOneAnswer))), Some("several_are_answered"));
}
