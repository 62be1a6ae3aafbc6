// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was captured of a switch is done again by a switch like it, and not by another.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::run::{alone, run, together};
use crate::common::{self, options};
use telegraphos_capture::{
    CaptureOptions, Captured, Difference, Direction, Ended, Link, Record, Recorder, Replay, ReplayError, Said, replay,
    replay_with,
};
use telegraphos_fabric_core::{Action, Bug, Switch, SwitchConfig};
use telegraphos_testkit::{Rng, scale, seed_or};
use telegraphos_topology::SwitchId;
use telegraphos_wire::link::Frame;

fn recorder(options: CaptureOptions, switches: &[(SwitchId, SwitchConfig)]) -> Recorder {
    let switches: Vec<_> = switches.iter().map(|(id, config)| (*id, config)).collect();
    Recorder::create(options, &switches).unwrap()
}

/// Captures a run; the number of events and of actions.
fn captured(seed: u64, steps: usize, options: CaptureOptions, switches: &[(SwitchId, SwitchConfig)]) -> (u64, u64) {
    let mut recorder = recorder(options, switches);
    let (mut events, mut actions, mut last) = (0, 0, 0);
    run(seed, steps, switches, &mut |switch, event, said, now| {
        events += 1;
        actions += said.len() as u64;
        recorder.event(switch, event, now);
        for action in said {
            recorder.action(switch, action, now);
        }
        last = now;
    });
    recorder.finish(last).unwrap();
    (events, actions)
}

fn differences(file: &Path) -> (Replay, Vec<Difference>) {
    let mut all = Vec::new();
    let outcome = replay(file, |difference| all.push(difference.clone())).unwrap();
    (outcome, all)
}

#[test]
fn a_captured_run_replays_without_a_difference() {
    let dir = tempfile::tempdir().unwrap();
    let first = seed_or(100);
    for seed in first..first + scale(3, 100) {
        for switches in [alone(), together("mesh:2x2"), together("torus:5x1"), together("tree:2x1")] {
            let file = dir.path().join("run.pcapng");
            let (events, actions) = captured(seed, 2000, options(&file), &switches);
            let forwarded = |c: &Captured| matches!(Frame::decode(&c.bytes), Ok(Some((Frame::Forward { .. }, _))));
            let crossed = common::read_all(&file).0.iter().filter(|c| forwarded(c)).count();
            assert!(crossed > 100 || switches.len() == 1, "seed {seed}: {crossed} packets on trunks");
            let (outcome, differences) = differences(&file);
            assert_eq!(differences, [], "seed {seed}");
            let expected = Replay { switches: switches.len(), events, actions, differences: 0, ended: Ended::Whole };
            assert_eq!(outcome, expected, "seed {seed}");
            assert!(events > 1500 && actions > 1000, "seed {seed}: {outcome:?}");
        }
    }
}

/// The run must be one in which each bug shows: that is what makes "no difference" above mean something.
#[test]
fn a_switch_with_a_bug_differs_from_the_capture_of_one_without() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcapng");
    let seed = seed_or(200);
    let here = [
        Bug::LifoLane,
        Bug::DropWhenBlocked,
        Bug::IgnoreReceiverCredit,
        Bug::LeakCredit,
        Bug::StrandCredit,
        Bug::IgnoreRoom,
        Bug::SwallowUnanswered,
        Bug::ReuseIncarnation,
        Bug::ForgetDown,
        Bug::LowestFirst,
        Bug::RequestsFirst,
        Bug::CreditsFirst,
        Bug::SwapRefusal,
        Bug::DuplicateMulticast,
        Bug::SkipMember,
        Bug::ReleaseEarly,
        Bug::ForgetAbsentMember,
        Bug::Patient,
    ];
    let on_trunks = [Bug::KeepDownLocal, Bug::ForgetSession, Bug::SendAllToEach, Bug::RepliesHoldTrunk];
    for (switches, bugs) in [(alone(), &here[..]), (together("mesh:2x2"), &on_trunks)] {
        captured(seed, 4000, options(&file), &switches);
        for bug in bugs {
            let mut first = None;
            let change = |config: &mut SwitchConfig| config.bug = Some(*bug);
            let outcome = replay_with(&file, change, |difference| {
                first.get_or_insert_with(|| difference.clone());
            });
            assert!(outcome.unwrap().differences > 0, "seed {seed}: {bug:?} shows no difference");
            let first = first.unwrap();
            assert_ne!(first.expected, first.found);
        }
    }
}

/// Rewrites the bytes of one captured record; its length stays.
fn edit(file: &Path, index: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(file).unwrap();
    let (mut at, mut seen) = (0, 0);
    loop {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (kind, length) = (word(at), word(at + 4) as usize);
        seen += usize::from(kind == 6);
        if kind == 6 && seen == index {
            let captured = word(at + 20) as usize;
            change(&mut bytes[at + 28..at + 28 + captured]);
            break;
        }
        at += length;
    }
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn an_edited_capture_differs_at_that_record_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcapng");
    captured(seed_or(300), 500, options(&file), &alone());
    let (all, _) = common::read_all(&file);
    // A packet that the switch sent, late in the run: another value of what it carries.
    let sent = all.iter().rev().find(|c| {
        c.direction == Direction::Outbound && matches!(Frame::decode(&c.bytes), Ok(Some((Frame::Packet(_), _))))
    });
    let sent = sent.unwrap();
    edit(&file, sent.index as usize, |bytes| bytes[8 + 8] ^= 1);
    let (outcome, differences) = differences(&file);
    assert_eq!((outcome.differences, differences.len()), (1, 1));
    let one = &differences[0];
    assert_eq!((one.index, one.time, one.link), (sent.index, sent.time, sent.link));
    let (Some(Said::Send(port, expected)), Some(Said::Send(other, found))) = (&one.expected, &one.found) else {
        panic!("{one}")
    };
    assert!(port == other && expected != found);
    let text = one.to_string();
    let parts = [format!("record {} (event ", sent.index), sent.link.to_string(), "\n  expected ".into()];
    assert!(parts.iter().all(|part| text.contains(part)) && text.contains("\n  found    "), "{text}");
}

#[test]
fn a_missing_action_is_one_difference_and_not_many() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcapng");
    let seed = seed_or(400);
    let mut recorder = recorder(options(&file), &alone());
    let (mut left_out, mut event_index, mut records) = (None, 0, 1);
    run(seed, 3000, &alone(), &mut |_, event, said, now| {
        recorder.event(2, event, now);
        records += 1;
        event_index = records;
        for (number, action) in said.iter().enumerate() {
            if left_out.is_none() && said.len() > 4 && number == 1 && !matches!(action, Action::Diagnostic(_)) {
                left_out = Some((event_index, action.clone()));
                continue;
            }
            records += 1;
            recorder.action(2, action, now);
        }
    });
    recorder.finish(0).unwrap();
    let (event, action) = left_out.expect("an event with many answers");
    let (outcome, differences) = differences(&file);
    // Equal actions of one event differ by their position only: whichever is missing, the report is the same.
    assert_eq!(outcome.differences, 1, "seed {seed}: {differences:#?}");
    assert_eq!((differences[0].event, &differences[0].expected), (event, &None));
    let Action::Send(port, frame) = action else { panic!() };
    assert_eq!(differences[0].found, Some(Said::Send(port, frame)));
}

#[test]
fn a_capture_that_breaks_off_replays_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (file, cut) = (dir.path().join("run.pcapng"), dir.path().join("cut.pcapng"));
    captured(seed_or(500), 300, options(&file), &together("mesh:2x1"));
    let bytes = std::fs::read(&file).unwrap();
    let mut events = 0;
    for length in (2000..bytes.len()).step_by(331) {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let (outcome, differences) = differences(&cut);
        assert_eq!(differences, [], "{length} bytes");
        assert!(matches!(outcome.ended, Ended::Broken(_) | Ended::Open), "{outcome:?}");
        assert!(outcome.events >= events);
        events = outcome.events;
    }
    assert!(events > 200);
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcapng");
    let refused = |options: CaptureOptions| {
        captured(600, 300, options, &alone());
        replay(&file, |_| {}).unwrap_err()
    };
    let links = vec![Link::Node(1), Link::Switch(2)];
    let error = refused(CaptureOptions { links, ..options(&file) });
    assert!(error.to_string().contains("node 1, switch 2") && error.to_string().contains("--capture-link"), "{error}");
    let error = refused(CaptureOptions { snap: Some(30), ..options(&file) });
    assert!(matches!(error, ReplayError::Snapped { kept: 30, .. }), "{error}");
    // A kind of frame that there is not, in a record that is an event.
    captured(600, 300, options(&file), &alone());
    let (all, _) = common::read_all(&file);
    let frame = all.iter().find(|c| c.direction == Direction::Inbound && c.port.is_some()).unwrap();
    edit(&file, frame.index as usize, |bytes| bytes[4] = 99);
    let error = replay(&file, |_| {}).unwrap_err();
    assert_eq!(error, ReplayError::Record { index: frame.index, why: "frame kind 99 is unknown or malformed".into() });
    for (content, part) in [(&b""[..], "is cut off"), (b"hello", "is no capture"), (&[0; 100], "is no capture")] {
        std::fs::write(&file, content).unwrap();
        let error = replay(&file, |_| {}).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("run.pcapng"), "{error}");
    }
    let error = replay(dir.path(), |_| {}).unwrap_err().to_string();
    assert!(error.contains("it is a directory"), "{error}");
    let error = replay(&dir.path().join("none"), |_| {}).unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
}

/// Captures a run from its event number `begin` on; the number of events and of actions.
fn captured_late(seed: u64, begin: u64, file: &Path, switches: &[(SwitchId, SwitchConfig)]) -> (u64, u64) {
    // They do what the switches of the run do.
    let mirror = |(id, config): &(SwitchId, SwitchConfig)| (*id, Switch::new(config.clone()).unwrap());
    let mut mirrors: BTreeMap<SwitchId, Switch> = switches.iter().map(mirror).collect();
    let mut late: Option<Recorder> = None;
    let (mut count, mut events, mut actions, mut last) = (0, 0, 0, 0);
    run(seed, 4000, switches, &mut |switch, event, said, now| {
        if count == begin {
            let mut recorder = recorder(CaptureOptions { late: true, ..options(file) }, switches);
            mirrors.iter().for_each(|(id, mirror)| recorder.state(*id, mirror, now));
            late = Some(recorder);
        }
        count += 1;
        mirrors.get_mut(&switch).unwrap().handle(event.clone(), &mut Vec::new());
        let Some(recorder) = &mut late else { return };
        events += 1;
        actions += said.len() as u64;
        recorder.event(switch, event, now);
        said.iter().for_each(|action| recorder.action(switch, action, now));
        last = now;
    });
    late.expect("a run with so many events").finish(last).unwrap();
    (events, actions)
}

#[test]
fn a_capture_that_begins_amid_traffic_replays_without_a_difference() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late.pcapng");
    let first = seed_or(900);
    for seed in first..first + scale(3, 100) {
        for switches in [alone(), together("mesh:2x2"), together("torus:5x1")] {
            for begin in [1, 7, 500 + seed % 97, 2500] {
                let (events, actions) = captured_late(seed, begin, &file, &switches);
                let (outcome, differences) = differences(&file);
                assert_eq!(differences, [], "seed {seed} from {begin}");
                let expected =
                    Replay { switches: switches.len(), events, actions, differences: 0, ended: Ended::Whole };
                assert_eq!(outcome, expected, "seed {seed} from {begin}");
                assert!(events > 500 && actions > 300, "{outcome:?}");
            }
        }
    }
}

#[test]
fn bugs_are_found_in_a_capture_that_begins_amid_traffic() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late.pcapng");
    let seed = seed_or(200);
    let here =
        [Bug::LifoLane, Bug::DropWhenBlocked, Bug::LeakCredit, Bug::LowestFirst, Bug::RequestsFirst, Bug::SkipMember];
    for (switches, bugs) in [(alone(), &here[..]), (together("mesh:2x2"), &[Bug::KeepDownLocal, Bug::ForgetSession])] {
        captured_late(seed, 1000, &file, &switches);
        for bug in bugs {
            let outcome = replay_with(&file, |config| config.bug = Some(*bug), |_| {});
            assert!(outcome.unwrap().differences > 0, "seed {seed}: {bug:?} shows no difference");
        }
    }
}

#[test]
fn a_capture_that_began_late_without_its_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late.pcapng");
    let switches = together("mesh:2x1");
    let mut recorder = recorder(CaptureOptions { late: true, ..options(&file) }, &switches);
    recorder.state(0, &Switch::new(switches[0].1.clone()).unwrap(), 5);
    recorder.action(1, &Action::Send(77, Frame::Probe), 5);
    recorder.finish(7).unwrap();
    let error = replay(&file, |_| {}).unwrap_err();
    assert_eq!(error, ReplayError::Late(1));
    assert!(error.to_string().contains("switch 1") && error.to_string().contains("capture again"), "{error}");
}

/// Whatever a file says of the state, it is refused or replayed, and nothing panics.
#[test]
fn a_state_that_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late.pcapng");
    captured_late(seed_or(950), 2000, &file, &together("mesh:2x1"));
    let whole = std::fs::read(&file).unwrap();
    let (all, _) = common::read_all(&file);
    let state = all.iter().find(|c| c.bytes.get(4) == Some(&0xfb)).unwrap();
    assert_eq!(Record::decode(&state.bytes).map(|record| matches!(record, Record::State { .. })), Ok(true));
    let mut random = Rng::new(seed_or(951));
    let mut refused = 0;
    for _ in 0..scale(300, 20_000) {
        std::fs::write(&file, &whole).unwrap();
        let at = 12 + random.below(state.bytes.len() as u64 - 12) as usize;
        // Digits become others, so that much of it is still JSON.
        edit(&file, state.index as usize, |bytes| {
            bytes[at] = if bytes[at].is_ascii_digit() { b'0' + (bytes[at] - b'0' + 1) % 10 } else { b' ' };
        });
        match replay(&file, |_| {}) {
            Err(ReplayError::State { switch: 0, why }) => refused += u64::from(!why.is_empty()),
            Err(other) => panic!("{other}"),
            Ok(_) => {}
        }
    }
    assert!(refused > scale(300, 20_000) / 4, "{refused} refused");
}

/// Every bit of the configuration matters: another one shows differences.
#[test]
fn what_another_configuration_would_have_done() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcapng");
    captured(seed_or(800), 1000, options(&file), &alone());
    let outcome = replay_with(&file, |config| config.credits = [5; 4], |_| {}).unwrap();
    assert!(outcome.differences > 0, "{outcome:?}");
}
