// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dissector, the tables it is made from, and the code of `wire` agree. Reads captures with the real tshark.

use std::path::Path;

use crate::common::frames::{self, Fields, Value};
use crate::common::tshark::{dissect, names, number, says};
use crate::common::{self, options, recorder};
use telegraphos_capture::Link;
use telegraphos_fabric_core::{Action, Diagnostic, Event};
use telegraphos_testkit::{Rng, scale, seed_or};
use telegraphos_wire::layout::{self, Field, Kind, Show, Tail};
use telegraphos_wire::link::{Frame, HEAD_LEN};
use telegraphos_wire::packet::HEADER_LEN;
use telegraphos_wire::{Body, Class, Packet, STREAM_BLOCK, Status};

#[test]
fn committed_dissector_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/dissector/telegraphos.lua");
    let committed = std::fs::read_to_string(path).expect("fabric/capture/dissector/telegraphos.lua");
    let generated = telegraphos_capture::dissector::generate();
    assert!(
        committed == generated,
        "fabric/capture/dissector/telegraphos.lua is stale: run\n  cargo run -p telegraphos-capture --example dissector"
    );
}

// ---- the tables against the code of wire ----

/// Reads a field by its table and blanks it.
fn take(bytes: &mut [u8], base: usize, field: &Field) -> Value {
    let range = &mut bytes[base + field.at..base + field.at + field.len];
    let value = match field.show {
        Show::Text => {
            let end = range.iter().position(|b| *b == 0).unwrap_or(range.len());
            Value::Text(String::from_utf8_lossy(&range[..end]).into_owned())
        }
        Show::Bytes => Value::Bytes(range.to_vec()),
        show => {
            let number = range.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            Value::Number(if show == Show::Flag { u64::from(number != 0) } else { number })
        }
    };
    range.fill(0);
    value
}

fn take_all(bytes: &mut [u8], base: usize, fields: &[Field], out: &mut Fields) {
    for field in fields {
        let value = take(bytes, base, field);
        assert!(out.insert(field.name, value).is_none(), "{} twice", field.name);
    }
}

fn take_members(bytes: &mut [u8], out: &mut Fields) {
    let nodes: Vec<u64> = bytes.chunks_exact(2).map(|b| u64::from(u16::from_le_bytes([b[0], b[1]]))).collect();
    bytes.fill(0);
    if !nodes.is_empty() {
        out.insert("member", Value::List(nodes));
    }
}

fn take_packet(bytes: &mut [u8], out: &mut Fields) {
    let kind = kind_of(layout::PACKETS, bytes[1]);
    take_all(bytes, 0, layout::HEADER, out);
    let class = kind.class.expect("packets have classes");
    out.insert("class", Value::Number(class as u64));
    if class != Class::Reply {
        take_all(bytes, 0, layout::TARGET, out);
    }
    take_all(bytes, 0, kind.fields, out);
    if kind.tail == Tail::Block && bytes.len() > kind.len {
        out.insert("block", Value::Bytes(bytes[kind.len..].to_vec()));
        bytes[kind.len..].fill(0);
    }
}

fn kind_of(kinds: &'static [Kind], number: u8) -> &'static Kind {
    kinds.iter().find(|kind| kind.number == number).expect("a kind of the tables")
}

/// On random frames of all kinds: what the tables find in the bytes is what was encoded, and they miss no byte that is
/// not 0.
#[test]
fn the_tables_find_each_field_that_wire_encodes_and_leave_none_out() {
    let seed = seed_or(1);
    let mut random = Rng::new(seed);
    for round in 0..scale(300, 20_000) {
        for frame in frames::one_of_each(&mut random) {
            let mut bytes = frames::encode(&frame);
            let mut found = Fields::new();
            let kind = kind_of(layout::FRAMES, bytes[4]);
            let (head, body) = bytes.split_at_mut(HEAD_LEN);
            let mut in_head = Fields::new();
            take_all(head, 0, layout::HEAD, &mut in_head);
            match kind.tail {
                Tail::Packet => take_packet(body, &mut found),
                Tail::Members => {
                    take_all(body, 0, kind.fields, &mut found);
                    take_members(&mut body[kind.len..], &mut found);
                }
                Tail::MembersAndPacket => {
                    take_all(body, 0, kind.fields, &mut found);
                    let Some(Value::Number(count)) = found.get("count") else { panic!() };
                    let packet = kind.len + 2 * *count as usize;
                    take_members(&mut body[kind.len..packet], &mut found);
                    take_packet(&mut body[packet..], &mut found);
                }
                _ => {
                    assert_eq!(body.len(), kind.len, "{frame:?}");
                    take_all(body, 0, kind.fields, &mut found);
                }
            }
            for also in ["packet_version", "packet_kind"] {
                found.remove(also);
            }
            assert_eq!(found, frames::fields(&frame), "seed {seed}, round {round}: {frame:?}");
            assert!(bytes.iter().all(|byte| *byte == 0), "seed {seed}, round {round}: {frame:?} leaves {bytes:x?}");
        }
    }
}

// ---- the dissector against the code of wire ----

fn capture(file: &Path, all: &[Frame]) {
    let mut recorder = recorder(options(file), 4096);
    for (now, frame) in all.iter().enumerate() {
        recorder.action(0, &Action::Send(7, frame.clone()), now as u64);
    }
    recorder.finish(all.len() as u64).unwrap();
}

fn check(frame: &Frame, row: &common::tshark::Row) -> Result<(), String> {
    let expected = frames::fields(frame);
    for (name, value) in &expected {
        let cell = row.get(&format!("telegraphos.{name}"));
        if !says(cell, value) {
            return Err(format!("{name} is {cell:?}: expected {value:?}"));
        }
    }
    let known = ["frame_length", "kind", "version", "packet_version", "packet_kind", "operation_name"];
    for name in names() {
        let empty = expected.contains_key(name) || known.contains(&name);
        if row.contains_key(&format!("telegraphos.{name}")) && !empty {
            return Err(format!("there is a {name}, which this frame has not"));
        }
    }
    let said = row.get("_ws.expert.message").map(|cell| cell.join("|")).unwrap_or_default();
    let status = expected.get("status").filter(|status| **status != Value::Number(0));
    if !said.is_empty() && status.is_none() {
        return Err(format!("tshark complains: {said}"));
    }
    if row.get("telegraphos.operation_name") != Some(&vec![frames::name(frame).to_owned()]) {
        return Err(format!("it is named {:?}", row.get("telegraphos.operation_name")));
    }
    let info = row.get("_ws.col.info").map(|cell| cell.join("|")).unwrap_or_default();
    let title = frames::name(frame).replace('-', " ");
    if !info.to_lowercase().starts_with(&title) || info.contains("malformed") {
        return Err(format!("its line is {info:?}"));
    }
    Ok(())
}

#[test]
fn tshark_names_every_kind_of_frame_and_packet_and_reads_every_field() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("each.pcapng");
    let seed = seed_or(2);
    let mut random = Rng::new(seed);
    let mut all = frames::one_of_each(&mut random);
    for _ in 0..scale(10, 200) {
        all.extend(frames::one_of_each(&mut random));
    }
    // Where a nibble is easily lost.
    let ack = |tag| Packet {
        src: 0xffff,
        dst: 0,
        tag,
        incarnation: u64::MAX,
        target: 0,
        body: Body::ReadReply { status: Status::Ok, data: u64::MAX },
    };
    all.extend([Frame::Packet(ack(u32::MAX)), Frame::Packet(ack(0))]);
    capture(&file, &all);
    let rows = dissect(&file, &["frame.interface_name", "frame.time_epoch"]);
    // Before them the comment that it begins, behind them the end.
    assert_eq!(rows.len(), all.len() + 2);
    for (number, (frame, row)) in all.iter().zip(&rows[1..]).enumerate() {
        if let Err(why) = check(frame, row) {
            panic!("seed {seed}: frame {number} {frame:?}: {why}\n{row:#?}");
        }
    }
    assert_eq!(rows[1]["frame.time_epoch"], ["1700000000.000000000"]);
    assert_eq!(rows[4]["frame.time_epoch"], ["1700000000.000003000"]);
}

/// Whatever bytes: the dissector calls malformed exactly what `wire` refuses, and never fails itself.
#[test]
fn tshark_calls_malformed_what_wire_refuses_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("broken.pcapng");
    let seed = seed_or(3);
    let mut random = Rng::new(seed);
    let mut all: Vec<Vec<u8>> = vec![vec![], vec![0; 7], vec![0; 8], vec![0xff; 8], vec![8, 0, 0, 0, 200, 1, 0, 0]];
    let mut ring =
        frames::encode(&Frame::Ring { node: 3, incarnation: 1, own: 2, bytes: 1 << 17, credits: 64, side: 1 });
    // Of its three sides.
    ring[HEAD_LEN + 28] = 2;
    all.push(ring);
    for _ in 0..scale(25, 500) {
        for frame in frames::one_of_each(&mut random) {
            let mut bytes = frames::encode(&frame);
            let cut = random.below(bytes.len() as u64) as usize;
            match random.below(8) {
                0 => bytes.truncate(cut),
                // Cut, and it says so.
                1 if cut >= HEAD_LEN => {
                    bytes.truncate(cut);
                    bytes[..4].copy_from_slice(&(cut as u32).to_le_bytes());
                }
                2 => {
                    bytes.extend((0..1 + random.below(3)).map(|_| 0));
                    let length = bytes.len() as u32;
                    bytes[..4].copy_from_slice(&length.to_le_bytes());
                }
                // Where the numbers are that decide.
                3 => bytes[random.below(12).min(cut as u64) as usize] ^= 1 << random.below(8),
                4 if bytes.len() >= HEAD_LEN + HEADER_LEN => {
                    let at = HEAD_LEN + [0, 1, 2, 3, 20, 21, 22, 44, 45, 46][random.below(10) as usize];
                    bytes[at] = random.next() as u8;
                }
                5 => bytes[cut] = random.next() as u8,
                6 => bytes[cut] = 0xff,
                _ => {}
            }
            all.push(bytes);
        }
    }
    // Such bytes no switch sends, so the file is written here.
    std::fs::write(&file, raw_capture(&all)).unwrap();
    let rows = dissect(&file, &[]);
    assert_eq!(rows.len(), all.len());
    let (mut refused, mut accepted) = (0, 0);
    for (number, (bytes, row)) in all.iter().zip(&rows).enumerate() {
        let decoded = Frame::decode(bytes);
        let good = matches!(&decoded, Ok(Some((_, used))) if *used == bytes.len());
        let info = row.get("_ws.col.info").map(|cell| cell.join("|")).unwrap_or_default();
        let said = row.get("_ws.expert.message").map(|cell| cell.join("|")).unwrap_or_default();
        assert_eq!(!good, info.contains("[malformed: "), "seed {seed}: {number}: {decoded:?}\n{bytes:x?}\n{row:#?}");
        assert!(good || said.len() > 5 && info.contains(said.split('|').next().unwrap()), "{number}: {row:#?}");
        assert_eq!(row["_ws.col.protocol"], ["Telegraphos"]);
        if good { accepted += 1 } else { refused += 1 }
    }
    assert!(refused > all.len() / 4 && accepted > all.len() / 8, "{refused} refused, {accepted} accepted");
}

/// A pcapng file of these packets, byte for byte; made without the crate's writer.
fn raw_capture(all: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = (12 + body.len() as u32).to_le_bytes();
        out.extend(kind.to_le_bytes().iter().chain(&length).chain(body).chain(&length));
    };
    let mut header = Vec::from(0x1a2b_3c4d_u32.to_le_bytes());
    header.extend([1, 0, 0, 0]);
    header.extend([0xff; 8]);
    block(0x0a0d_0d0a, &header);
    block(1, &[147, 0, 0, 0, 0, 0, 0, 0]);
    for bytes in all {
        let mut body = vec![0; 12];
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend(bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        block(6, &body);
    }
    out
}

// ---- what is no frame ----

#[test]
fn tshark_shows_links_directions_comments_and_which_reply_answers_which_request() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.pcapng");
    let mut recorder = recorder(options(&file), 64);
    let mut random = Rng::new(5);
    let request = Packet { src: 3, dst: 4, tag: 9, ..frames::packet(0, &mut random) };
    let reply = Packet {
        src: 4,
        dst: 3,
        tag: 9,
        incarnation: request.incarnation,
        target: 0,
        body: Body::WriteAck { status: Status::Stale },
    };
    let hello =
        Frame::Hello { version: 1, node: 3, window: telegraphos_wire::WindowLayout::default(), credits: [1; 4] };
    recorder.event(0, &Event::PortOpened { port: 5, room: 12, block: STREAM_BLOCK as u32 }, 10);
    recorder.event(0, &Event::Frame { port: 5, frame: hello }, 20);
    recorder.action(0, &Action::Diagnostic(Diagnostic::Joined { port: 5, node: 3, incarnation: 0x1000 }), 20);
    recorder.event(0, &Event::PortRoom { port: 5, frames: 3 }, 30);
    recorder.event(0, &Event::Frame { port: 5, frame: Frame::Packet(request) }, 1_000_040);
    recorder.action(0, &Action::Send(5, Frame::Packet(reply)), 1_000_140);
    recorder.comment(0, Link::Node(3), "fault: dropped 1 frame (loss 5 %)", 1_000_150);
    recorder.malformed(0, 5, &[1, 2, 3], 1_000_160);
    recorder.action(0, &Action::Close(5), 1_000_160);
    recorder.event(0, &Event::PortClosed { port: 5 }, 1_000_170);
    recorder.finish(1_000_180).unwrap();
    let more = [
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.comment",
        "_ws.col.def_src",
        "_ws.col.def_dst",
        "telegraphos.request_in",
        "telegraphos.response_in",
        "telegraphos.response_time",
    ];
    let rows = dissect(&file, &more);
    let cell = |row: usize, name: &str| rows[row].get(name).map(|cell| cell.join("|")).unwrap_or_default();
    let seen = |row: usize| (cell(row, "frame.interface_name"), cell(row, "_ws.col.info"), cell(row, "frame.comment"));
    let says = |link: &str, info: &str, comment: &str| (link.to_owned(), info.to_owned(), comment.to_owned());
    assert_eq!(
        seen(1),
        says("switch 0", "[Port opened] port 5 room 12", "port 5 opened with room 12 and blocks of at most 8192 bytes")
    );
    assert_eq!(cell(2, "frame.interface_name"), "node 3");
    assert!(cell(2, "_ws.col.info").starts_with("Hello node 3"), "{}", cell(2, "_ws.col.info"));
    let notice = "Joined { port: 5, node: 3, incarnation: 4096 }";
    assert_eq!(seen(3), says("switch 0", &format!("[Notice] {notice}"), "node 3 joined, incarnation 0x1000"));
    assert_eq!(seen(4), says("node 3", "[Port room] port 5 room 3", "room 3"));
    assert!(cell(5, "_ws.col.info").starts_with("Write page "), "{}", cell(5, "_ws.col.info"));
    assert!(cell(5, "_ws.col.info").ends_with("(3 > 4, tag 9)"), "{}", cell(5, "_ws.col.info"));
    assert_eq!((cell(5, "_ws.col.def_src"), cell(5, "_ws.col.def_dst")), ("node 3".into(), "node 4".into()));
    // Requests know their replies and the other way round, frames being counted from 1.
    assert_eq!((cell(5, "telegraphos.response_in"), cell(6, "telegraphos.request_in")), ("7".into(), "6".into()));
    assert!(cell(6, "telegraphos.response_time").starts_with("0.000100"), "{}", cell(6, "telegraphos.response_time"));
    assert!(cell(6, "_ws.col.info").starts_with("Write ack: Stale"), "{}", cell(6, "_ws.col.info"));
    let fault = "fault: dropped 1 frame (loss 5 %)";
    assert_eq!(seen(7), says("node 3", &format!("[Comment] {fault}"), fault));
    assert_eq!(cell(8, "telegraphos.bytes").replace(':', ""), "010203");
    assert_eq!(seen(9), says("node 3", "[Close] port 5", "the switch closes port 5"));
    assert_eq!(seen(10), says("node 3", "[Port closed] port 5", "port 5 closed"));
    assert_eq!(number(&cell(11, "telegraphos.records")), 11);
    let directions: Vec<String> = [2, 6, 7].map(|row| cell(row, "frame.packet_flags_direction")).into();
    assert_eq!(directions.iter().map(|text| text.trim_start_matches("0x0000000")).collect::<Vec<_>>(), ["1", "2", ""]);
}

#[test]
fn frames_cut_by_the_snap_length_are_called_cut_and_not_malformed() {
    let dir = tempfile::tempdir().unwrap();
    for snap in scale(&[8, 20, 64][..], &[8, 9, 20, 63, 64, 80, 120]) {
        let snap = *snap;
        let file = dir.path().join(format!("{snap}.pcapng"));
        let mut recorder = recorder(telegraphos_capture::CaptureOptions { snap: Some(snap), ..options(&file) }, 64);
        let mut random = Rng::new(seed_or(6));
        let all = frames::one_of_each(&mut random);
        for frame in &all {
            recorder.action(0, &Action::Send(1, frame.clone()), 0);
        }
        recorder.finish(0).unwrap();
        let rows = dissect(&file, &[]);
        for (frame, row) in all.iter().zip(&rows[1..]) {
            let said = row.get("_ws.expert.message").map(|cell| cell.join("|")).unwrap_or_default();
            let cut = frames::encode(frame).len() > snap as usize;
            assert_eq!(cut, said.contains("cut off"), "snap {snap}: {frame:?}: {row:#?}");
            assert!(!row["_ws.col.info"].concat().contains("malformed"), "snap {snap}: {frame:?}: {row:#?}");
        }
    }
}
