// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures of one switch with two nodes.

use telegraphos_capture::{CaptureOptions, Recorder};
use telegraphos_fabric_core::{Event, Switch, SwitchConfig, UNLIMITED};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, ImportEpoch, PROTOCOL_VERSION, Packet, RemoteAddr, STREAM_BLOCK, WindowLayout};

fn events() -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    for port in 0..2u32 {
        let hello = Frame::Hello {
            version: PROTOCOL_VERSION,
            node: port as u16,
            window: WindowLayout::default(),
            credits: [4; 4],
        };
        events.push((10, Event::PortOpened { port, room: UNLIMITED, block: STREAM_BLOCK as u32 }));
        events.push((20, Event::Frame { port, frame: hello }));
    }
    let at = RemoteAddr { page: 0, offset: 8, generation: 1 };
    let epoch = ImportEpoch { import: 0, epoch: 0 };
    let store = Body::Write { at, context: 0, epoch, size: 8, data: 42 };
    let packet = Packet { src: 0, dst: 1, tag: 1, incarnation: 0x7000, target: 0x7000, body: store };
    events.push((30, Event::Frame { port: 0, frame: Frame::Packet(packet) }));
    events.push((40, Event::Malformed { port: 0 }));
    events.push((50, Event::Tick { now: 50 }));
    events.push((60, Event::PortClosed { port: 1 }));
    events
}

fn recorded(change: impl Fn(&mut CaptureOptions), first: usize) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("capture.pcapng");
    let mut options = CaptureOptions { file: file.clone(), epoch: 1_700_000_000_000_000, ..CaptureOptions::default() };
    change(&mut options);
    options.late = first > 0;
    let mut config = SwitchConfig::new(2);
    config.base_incarnation = 0x7000;
    let mut switch = Switch::new(config.clone()).unwrap();
    let (mut recorder, mut actions) = (None, Vec::new());
    for (number, (now, event)) in events().into_iter().enumerate() {
        if number == first {
            let mut begun = Recorder::create(options.clone(), &[(0, &config)]).unwrap();
            if first > 0 {
                begun.state(0, &switch, now);
            }
            recorder = Some(begun);
        }
        actions.clear();
        switch.handle(event.clone(), &mut actions);
        if let Some(recorder) = &mut recorder {
            recorder.event(0, &event, now);
            if let Event::Malformed { port } = event {
                recorder.malformed(0, port, b"no frame", now);
            }
            actions.iter().for_each(|action| recorder.action(0, action, now));
        }
    }
    recorder.unwrap().finish(100).unwrap();
    std::fs::read(&file).unwrap()
}

pub(super) fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("whole.pcapng", recorded(|_| {}, 0)),
        ("late.pcapng", recorded(|_| {}, 4)),
        ("cut-frames.pcapng", recorded(|options| options.snap = Some(16), 0)),
    ]
}
