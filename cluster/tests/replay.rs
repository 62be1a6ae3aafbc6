// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos replay` as a user runs it.

use std::path::Path;

use super::telegraphos;
use telegraphos_capture::{CaptureOptions, Recorder};
use telegraphos_fabric_core::{Action, Event, Switch, SwitchConfig};
use telegraphos_testkit::Ended;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{PROTOCOL_VERSION, STREAM_BLOCK, WindowLayout};

/// Captures three nodes that join; of the frames to the last, one says something else.
fn capture(file: &Path, falsify: bool) {
    let config = SwitchConfig::new(8);
    let options = CaptureOptions { file: file.to_owned(), ..CaptureOptions::default() };
    let mut recorder = Recorder::create(options, &[(0, &config)]).unwrap();
    let mut switch = Switch::new(config).unwrap();
    let hello =
        |node| Frame::Hello { version: PROTOCOL_VERSION, node, window: WindowLayout::default(), credits: [8; 4] };
    for node in 0..3 {
        let port = 40 + u32::from(node);
        for event in [
            Event::PortOpened { port, room: 100, block: STREAM_BLOCK as u32 },
            Event::Frame { port, frame: hello(node) },
        ] {
            let mut actions = Vec::new();
            switch.handle(event.clone(), &mut actions);
            recorder.event(0, &event, 1_500_000);
            for mut action in actions {
                if let (Action::Send(42, Frame::Welcome { nodes, .. }), true) = (&mut action, falsify) {
                    *nodes = 9;
                }
                recorder.action(0, &action, 1_500_000);
            }
        }
    }
    recorder.finish(2_000_000).unwrap();
}

fn replay(args: &[&str]) -> Ended {
    Ended::of(telegraphos().arg("replay").args(args))
}

#[test]
fn the_exit_code_says_whether_a_capture_replays() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pcapng");
    let name = file.to_str().unwrap();
    capture(&file, false);
    let Ended { status, stdout, .. } = replay(&[name]);
    assert_eq!(status.code(), Some(0), "{stdout}");
    assert!(stdout.starts_with("no difference in 6 events and ") && stdout.ends_with(" of 1 switch\n"), "{stdout}");

    capture(&file, true);
    let Ended { status, stdout, .. } = replay(&[name]);
    assert_eq!(status.code(), Some(1), "{stdout}");
    for part in [", 1.500000 s, node 2 of switch 0\n", "expected Welcome", "nodes: 9", "found    Welcome", "nodes: 8"] {
        assert!(stdout.contains(part), "{part} is not in: {stdout}");
    }
    let Ended { stdout, .. } = replay(&[name, "--limit", "0"]);
    assert!(stdout.starts_with("... and 1 more; --limit 1 prints all\n1 difference in 6 events"), "{stdout}");

    std::fs::write(&file, "no capture at all, but long enough to be one").unwrap();
    let Ended { status, stderr, .. } = replay(&[name]);
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("run.pcapng is no capture of a Telegraphos fabric"), "{stderr}");
}
