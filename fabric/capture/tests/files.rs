// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in the file is what was given, and what happens when the file cannot take it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::frames::{encode, one_of_each};
use crate::common::{self, options, read_all, recorder};
use telegraphos_capture::{
    CaptureError, CaptureOptions, Direction, Link, ReadError, Reader, Record, Recorder, Stopped,
};
use telegraphos_fabric_core::{Action, Event, SwitchConfig};
use telegraphos_testkit::{Rng, scale, seed_or};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{STREAM_BLOCK, WindowLayout};

fn fill(recorder: &mut Recorder, frames: u64) {
    for number in 0..frames {
        recorder.action(
            0,
            &Action::Send(3, Frame::NodeUp { node: 1, incarnation: number, block: STREAM_BLOCK as u32 }),
            number,
        );
    }
}

#[test]
fn what_was_recorded_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pcapng");
    let all = one_of_each(&mut Rng::new(seed_or(1)));
    let mut recorder = recorder(options(&file), 4096);
    for (number, frame) in all.iter().enumerate() {
        recorder.action(0, &Action::Send(number as u32, frame.clone()), 10 * number as u64);
    }
    let statistics = recorder.finish(5000).unwrap();
    assert_eq!(statistics.bytes, std::fs::metadata(&file).unwrap().len());
    assert_eq!(statistics.records, all.len() as u64 + 2);
    let (read, error) = read_all(&file);
    assert_eq!(error, None);
    assert_eq!(read.len(), all.len() + 2);
    for (number, (frame, captured)) in all.iter().zip(&read[1..]).enumerate() {
        assert_eq!(captured.bytes, encode(frame));
        assert_eq!((captured.index, captured.port), (number as u64 + 2, Some(number as u32)));
        assert_eq!((captured.time, captured.direction), (10 * number as u64, Direction::Outbound));
    }
    let end = read.last().unwrap();
    assert_eq!(Record::decode(&end.bytes), Ok(Record::End(all.len() as u64 + 1)));
    assert_eq!((end.time, end.link), (5000, Link::Switch(0)));
}

#[test]
fn a_file_that_is_cut_off_is_read_up_to_there_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let (file, cut) = (dir.path().join("a.pcapng"), dir.path().join("cut.pcapng"));
    let mut recorder = recorder(options(&file), 64);
    fill(&mut recorder, 20);
    recorder.finish(0).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let (whole, _) = read_all(&file);
    // Where blocks begin.
    let mut begins = vec![0];
    while let Some(at) = begins.last().copied().filter(|at| *at < bytes.len()) {
        begins.push(at + u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize);
    }
    for length in 1..bytes.len() {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let (read, error) = read_all(&cut);
        assert_eq!(read, whole[..read.len()], "{length}");
        let block = begins.iter().rev().find(|at| **at <= length).copied().unwrap();
        match error {
            None => assert!(block == length && length > 0, "{length}"),
            Some(ReadError::Cut { offset, records, ref file }) => {
                assert!(block < length, "{length}");
                assert_eq!((offset as usize, records as usize), (block, read.len()), "{length}");
                let text = error.as_ref().unwrap().to_string();
                assert!(text.contains(&format!("byte {block}")) && text.contains("cut.pcapng"), "{text}");
                assert_eq!(*file, cut);
            }
            Some(ReadError::Foreign { .. }) => assert!(length < 28, "{length}"),
            Some(other) => panic!("{length}: {other}"),
        }
    }
}

/// Bytes of a capture changed at random: read without panic and without end, and what was before the change stays.
#[test]
fn damaged_files_are_read_up_to_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (file, damaged) = (dir.path().join("a.pcapng"), dir.path().join("damaged.pcapng"));
    let mut recorder = recorder(options(&file), 64);
    fill(&mut recorder, 60);
    recorder.finish(0).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let (whole, _) = read_all(&file);
    let seed = seed_or(2);
    let mut random = Rng::new(seed);
    for round in 0..scale(150, 20_000) {
        let mut changed = bytes.clone();
        let at = random.below(bytes.len() as u64) as usize;
        changed[at] = random.next() as u8;
        std::fs::write(&damaged, &changed).unwrap();
        let (read, _) = read_all(&damaged);
        assert!(read.len() <= whole.len(), "seed {seed}, round {round}");
        let same = read.iter().zip(&whole).take_while(|(one, other)| one == other).count();
        // Each of these records takes at least 60 bytes, so the blocks before the change are at least so many.
        let least = at.saturating_sub(700) / 100;
        assert!(same >= least.min(whole.len()) || read.is_empty(), "seed {seed}, round {round}: {same} at {at}");
        let _ = telegraphos_capture::replay(&damaged, |_| {});
    }
}

#[test]
fn a_full_device_ends_the_capture_with_one_clear_error_and_nothing_else() {
    let mut recorder = recorder(options(Path::new("/dev/full")), 64);
    let mut said = Vec::new();
    for round in 0..2000 {
        fill(&mut recorder, 100);
        said.extend(recorder.stopped());
        if round == 1999 || !said.is_empty() && round > 10 {
            break;
        }
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let [Stopped::Write { file, offset, source }] = &said[..] else { panic!("{said:?}") };
    assert_eq!((file.as_path(), *offset, source.raw_os_error()), (Path::new("/dev/full"), 0, Some(28)));
    let text = said[0].to_string();
    for part in ["/dev/full", "0 bytes", "No space left", "--capture-limit", "the fabric continues"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    fill(&mut recorder, 10);
    let statistics = recorder.statistics();
    assert!(statistics.stopped == 1 && statistics.after_stop >= 10, "{statistics:?}");
    assert!(recorder.stopped().is_none());
    // It has been said; the end says nothing again.
    assert_eq!(recorder.finish(0).unwrap().stopped, 1);
}

/// A disk that fills in the middle of a block: a process whose files may have 100 KiB.
#[test]
fn a_disk_that_fills_leaves_a_file_that_ends_where_a_block_ends() {
    const CHILD: &str = "TELEGRAPHOS_TEST_CAPTURE";
    if let Some(file) = std::env::var_os(CHILD) {
        let mut recorder = recorder(options(&PathBuf::from(file)), 64);
        fill(&mut recorder, 10_000);
        let Err(Stopped::Write { offset, source, .. }) = recorder.finish(0) else { panic!() };
        assert_eq!(source.raw_os_error(), Some(27));
        println!("stopped at {offset}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full.pcapng");
    let me = std::env::current_exe().unwrap();
    let out = Command::new("bash")
        .args(["-c", "ulimit -f 100 && exec \"$0\" --exact --nocapture \"$1\""])
        .arg(me)
        .arg("files::a_disk_that_fills_leaves_a_file_that_ends_where_a_block_ends")
        .env(CHILD, &file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let (read, error) = read_all(&file);
    assert_eq!(error, None);
    let length = std::fs::metadata(&file).unwrap().len();
    assert!(text.contains(&format!("stopped at {length}\n")), "{text}");
    assert!(length <= 100 * 1024 && length > 99 * 1024 && read.len() > 900, "{length} bytes, {} records", read.len());
    assert!(read[1..].iter().enumerate().all(|(number, captured)| captured.time == number as u64));
}

#[test]
fn a_limit_ends_the_capture_there_and_says_so_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("limited.pcapng");
    let mut recorder = recorder(CaptureOptions { limit: Some(10_000), ..options(&file) }, 64);
    fill(&mut recorder, 1000);
    let stopped = recorder.stopped().unwrap();
    assert!(matches!(stopped, Stopped::Limit { limit: 10_000, .. }));
    assert!(stopped.to_string().contains("limit of 10000 bytes"), "{stopped}");
    assert!(recorder.stopped().is_none());
    let statistics = recorder.statistics();
    recorder.finish(0).unwrap();
    let length = std::fs::metadata(&file).unwrap().len();
    assert!(length <= 10_000 && length > 9_000 && length == statistics.bytes, "{length} {statistics:?}");
    let (read, error) = read_all(&file);
    assert_eq!((read.len() as u64, error), (statistics.records, None));
    assert_eq!(statistics.records - 1 + statistics.after_stop, 1000);
    // One that does not reach its limit ends as others do, within it.
    let limit = 4096;
    let mut recorder = common::recorder(CaptureOptions { limit: Some(limit), ..options(&file) }, 64);
    while recorder.statistics().bytes + 256 + 100 < limit {
        fill(&mut recorder, 1);
    }
    assert!(recorder.finish(0).unwrap().bytes <= limit);
    let (read, _) = read_all(&file);
    assert!(matches!(Record::decode(&read.last().unwrap().bytes), Ok(Record::End(_))));
    assert!(std::fs::metadata(&file).unwrap().len() <= limit);
}

#[test]
fn only_the_links_asked_for_are_captured_and_the_file_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("some.pcapng");
    let mut recorder = recorder(CaptureOptions { links: vec![Link::Node(2)], ..options(&file) }, 8);
    for node in 0..4 {
        let port = 10 + u32::from(node);
        recorder.event(0, &Event::PortOpened { port, room: 5, block: STREAM_BLOCK as u32 }, 1);
        let window = WindowLayout::default();
        recorder.event(0, &Event::Frame { port, frame: Frame::Hello { version: 1, node, window, credits: [1; 4] } }, 2);
        recorder.action(0, &Action::Send(port, Frame::NodeDown { node: 7 }), 2);
        recorder.event(0, &Event::PortClosed { port }, 3);
        // A second Hello does not make it another's.
        recorder.action(0, &Action::Send(port, Frame::NodeDown { node: 7 }), 4);
    }
    recorder.finish(5).unwrap();
    let reader = Reader::open(&file).unwrap();
    assert_eq!(reader.links(), ["node 2"]);
    let (read, error) = read_all(&file);
    assert_eq!(error, None);
    let (end, rest) = read.split_last().unwrap();
    assert!(matches!(Record::decode(&end.bytes), Ok(Record::End(3))));
    assert_eq!(rest.iter().map(|c| (c.link, c.time)).collect::<Vec<_>>(), [2, 2, 3].map(|time| (Link::Node(2), time)));
    // A node id that cannot be names no link.
    let mut recorder = common::recorder(options(&file), 8);
    let window = WindowLayout::default();
    let hello = Frame::Hello { version: 1, node: 900, window, credits: [1; 4] };
    recorder.event(0, &Event::Frame { port: 1, frame: hello }, 2);
    recorder.finish(5).unwrap();
    assert_eq!(read_all(&file).0[1].link, Link::Switch(0));
}

#[test]
fn impossible_captures_are_refused_with_name_value_and_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.pcapng");
    let config = SwitchConfig::new(8);
    let refused = |options: CaptureOptions| Recorder::create(options, &[(1, &config)]).unwrap_err();
    let base = options(&file);
    for (options, parts) in [
        (CaptureOptions { limit: Some(10), ..base.clone() }, ["--capture-limit is 10", "at least 4096"]),
        (CaptureOptions { snap: Some(7), ..base.clone() }, ["--capture-snap is 7", "at least 8"]),
        (CaptureOptions { links: vec![Link::Node(8)], ..base.clone() }, ["--capture-link node 8", "below 8"]),
        (CaptureOptions { links: vec![Link::Trunk(0, 1)], ..base.clone() }, ["trunk 0-1", "A one of 1"]),
        (CaptureOptions { links: vec![Link::Switch(0)], ..base.clone() }, ["switch 0", "S one of 1"]),
        (
            CaptureOptions { file: dir.path().join("no/such/x.pcapng"), ..base.clone() },
            ["no/such/x.pcapng", "directory that exists"],
        ),
    ] {
        let error = refused(options);
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert!(matches!(error, CaptureError::Create { .. }) || !file.exists(), "{text}");
    }
}
