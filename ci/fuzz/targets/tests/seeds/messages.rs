// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts for the targets `messages`, `routes`, `sockets` and `channel`, whose documentation describes them, and what
//! `tgd` is asked.

use telegraphos_channel_core::{ASLEEP, CONSUMED, END, Head, RING, WORD};
use telegraphos_daemon_core::protocol::{Envelope, Letter, Request, encode, frame};
use telegraphos_daemon_core::{Exit, Job, Partition, Place, Refusal, TaskId, TaskInfo, User, Watched};
use telegraphos_msg_core::far::{Body, Frame as Said, Passage, Sizes, Word};
use telegraphos_msg_core::layout::{Element, Kind};
use telegraphos_msg_core::routes::{News, Route};
use telegraphos_msg_core::{Answer, Config, Process};
use telegraphos_sockets_core::Frame;

/// A packet of the first peer, with the words of its slot.
fn said(kind: Kind, slot: u16, words: [u64; 4]) -> Vec<u8> {
    let element = Element::Packet { key: 7, kind, slot }.encode();
    [&[0][..], &element.to_le_bytes(), &words.map(u64::to_le_bytes).concat()].concat()
}

/// The head of a message with tag 1 for thread 0.
fn head(length: u64, fragment: u64) -> [u64; 4] {
    [0, 1 | fragment << 32, length, 77]
}

fn send(length: u16) -> Vec<u8> {
    [&[2, 0, 1][..], &length.to_le_bytes()].concat()
}

/// From any sender, with any tag; with a place.
fn receive(capacity: u16) -> Vec<u8> {
    [&[3, 0, 8, 0][..], &capacity.to_le_bytes()].concat()
}

const END_OF_TRANSFER: [u8; 2] = [5, 0];

pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let none = [0; 4];
    let done = |slot| said(Kind::Done(Answer::Taken), slot, none);
    let fragments = |length| (0..3).flat_map(move |n| said(Kind::Eager, n as u16, head(length, n)));
    vec![
        ("short", [vec![0], receive(100), said(Kind::Eager, 0, head(10, 0)), send(16), done(0)].concat()),
        ("fragments", [vec![0], receive(100), fragments(40).collect(), send(40), done(0), done(1), done(2)].concat()),
        ("cut", [vec![0], fragments(40).collect(), receive(20)].concat()),
        ("get", [vec![0], said(Kind::Request, 0, head(500, 0)), receive(500), END_OF_TRANSFER.into()].concat()),
        (
            "put",
            [
                vec![1],
                receive(500),
                said(Kind::Request, 0, head(500, 0)),
                said(Kind::Stored { whole: true }, 0, none),
                send(900),
                said(Kind::Clear, 0, [5, 900, 0, 0]),
                END_OF_TRANSFER.into(),
            ]
            .concat(),
        ),
        (
            "withdrawn",
            [
                vec![0],
                said(Kind::Request, 1, head(500, 0)),
                said(Kind::Withdraw, 1, none),
                send(900),
                vec![4, 0],
                said(Kind::Done(Answer::Withdrawn), 0, none),
            ]
            .concat(),
        ),
        ("gone", [vec![0], receive(100), send(900), send(10), vec![7, 7, 0x87, 6, 0, 6, 1]].concat()),
    ]
}

/// Over a stream of a gateway.
fn sent(stream: u8, frame: &Said) -> Vec<u8> {
    let bytes = postcard::to_allocvec(frame).unwrap();
    [&[stream << 3, bytes.len() as u8][..], &bytes].concat()
}

fn path(numbers: &[u16]) -> Vec<Process> {
    numbers.iter().map(|node| Process { node: *node, number: 0 }).collect()
}

fn told(stream: u8, numbers: &[u16], lost: &[u16]) -> Vec<u8> {
    let routes = vec![Route { path: path(numbers), names: vec!["x".into()] }];
    sent(stream, &Said::News(News { routes, lost: path(lost) }))
}

fn passed(stream: u8, numbers: &[u16], session: u64, word: Word) -> Vec<u8> {
    sent(stream, &Said::Passage(Passage { path: path(numbers), at: 1, session, word }))
}

pub(super) fn gateways() -> Vec<(&'static str, Vec<u8>)> {
    let sizes = Sizes::of(&Config::default());
    let body = |number| Word::Body(number, Body::Bytes { number, bytes: Some(vec![7; 20]) });
    let tick = vec![6];
    vec![
        (
            "told",
            [told(0, &[1, 9], &[]), told(1, &[2, 8, 9], &[]), told(0, &[1], &[9]), tick.clone(), vec![7]].concat(),
        ),
        (
            "session",
            [
                told(0, &[1, 9], &[]),
                vec![4, 9],
                passed(0, &[9, 1, 0], 100, Word::Accept(55)),
                passed(0, &[1, 0], 7, Word::Open(sizes)),
                passed(0, &[1, 0], 101, body(0)),
                passed(0, &[1, 0], 101, body(1)),
                tick.clone(),
                vec![5, 1],
            ]
            .concat(),
        ),
        (
            "passed",
            [
                passed(0, &[1, 0, 2], 7, Word::Open(sizes)),
                passed(1, &[2, 0, 1], 7, Word::Accept(9)),
                passed(0, &[1, 0, 5], 9, body(0)),
                passed(2, &[3, 0], 9, body(0)),
                tick,
            ]
            .concat(),
        ),
    ]
}

fn arrive(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

fn read(bytes: u16) -> Vec<u8> {
    [&[2][..], &(bytes - 1).to_le_bytes()].concat()
}

fn write(bytes: u16, head: u64, takes: u16) -> Vec<u8> {
    [&[3][..], &bytes.to_le_bytes(), &head.to_le_bytes(), &takes.to_le_bytes()].concat()
}

/// A word of the ring.
fn ring(at: u16, word: u64) -> Vec<u8> {
    [&[1][..], &(at / 8).to_le_bytes(), &word.to_le_bytes()].concat()
}

pub(super) fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let (five, record) = (Frame::Bytes(5).code(), Frame::Record.code());
    let framed = [&[five][..], b"hello", &[five], b"worl"].concat();
    vec![
        ("bytes", [arrive(&framed), read(3), read(20), arrive(b"d"), read(1)].concat()),
        (
            "records",
            [
                ring(0, 300),
                ring(8, 0x1234_5678),
                arrive(&[record, five, b'a', b'b', b'c', b'd', b'e', record]),
                read(100),
                read(1000),
                ring(320, 9),
                read(20),
                arrive(&[record]),
                ring(384, 4000),
                read(9000),
            ]
            .concat(),
        ),
        ("raw", [arrive(&[five, b'a', b'b', b'c', b'd', b'e', Frame::Raw.code(), b'x']), read(100)].concat()),
        ("writes", [write(50, 0, 100), write(1000, 0, 10), write(2900, 1008, 3000), write(300, 0, 7)].concat()),
    ]
}

/// Scripts for the target `channel`.
pub(super) fn channels() -> Vec<(&'static str, Vec<u8>)> {
    let head = |length, number| Head { length, kind: 1, number }.encode();
    let store = |at: u64, word: u64| [&[0, (at / WORD) as u8][..], &word.to_le_bytes()].concat();
    let take = |at: u64, word: u64| [&[2, (at / WORD) as u8][..], &word.to_le_bytes()].concat();
    let put = |length: u8| vec![1, length];
    let (looks, armed, sleep) = (vec![0], vec![2], vec![3]);
    let record =
        [store(RING + 8, 7), store(RING, head(8, 0)), take(RING + 16, head(0, 1)), take(RING + 24, 0)].concat();
    vec![
        ("records", [&armed[..], &record].concat()),
        ("changes", [armed, store(RING, head(16, 0)), take(RING, head(u32::MAX, 0)), take(RING + 24, 9)].concat()),
        ("credits", [looks.clone(), [put(100), put(100)].concat(), store(CONSUMED, 112), put(100), put(3)].concat()),
        ("sleep", [looks, sleep, store(ASLEEP, 5), put(8), put(8), store(END, 1), take(END, 0)].concat()),
    ]
}

pub(super) fn letters() -> Vec<(&'static str, Vec<u8>)> {
    let job = || Job { argv: vec!["true".into()], env: vec![("A".into(), "b".into())], dir: "/".into(), logger: None };
    let task = TaskId { node: 3, pid: 77 };
    let user = User { uid: 1000, gid: 1000 };
    let requests = [
        Request::Spawn { place: Place::LeastLoaded, count: 2, partition: Some("night".into()), job: job() },
        Request::Signal { task, signal: 15 },
        Request::Tasks,
        Request::SetPartition { name: "night".into(), nodes: vec![1, 2] },
    ];
    let asked = requests.into_iter().zip(1_u32..).flat_map(|(request, ticket)| frame(&(ticket, request)).unwrap());
    let letter = Letter::Spawn { ticket: 9, client: 4, master: task, user, job: job() };
    vec![
        ("client", asked.collect()),
        ("spawn", encode(&Envelope { from: 1, to: 2, number: 3, letter }).unwrap()),
        ("fenced", encode(&Envelope { from: 1, to: 2, number: 3, letter: Letter::Fenced }).unwrap()),
        ("script", script(&job(), user)),
    ]
}

/// One of each kind of step, see the target: requests, letters that are asked and answered, and what the shell reports.
fn script(job: &Job, user: User) -> Vec<u8> {
    let (task, refusal) = (TaskId { node: 1, pid: 77 }, Refusal::new(Refusal::ESRCH, "none"));
    let spawn = Request::Spawn { place: Place::Node(1), count: 1, partition: None, job: job.clone() };
    let own = Request::Spawn { place: Place::Node(0), count: 1, partition: None, job: job.clone() };
    let requests = [
        (0, spawn),
        (0, own),
        (0, Request::Watch { what: Watched::Task(task) }),
        (0, Request::Watch { what: Watched::Node(1) }),
        (1, Request::Signal { task, signal: 15 }),
        (1, Request::Tasks),
        (0, Request::Nodes),
        (1, Request::SetPartition { name: "night".into(), nodes: vec![0, 1] }),
        (1, Request::DeletePartition { name: "night".into() }),
        (0, Request::Partitions),
    ];
    let framed = |bytes: Vec<u8>| [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
    let mut script = Vec::new();
    for (ticket, (client, request)) in (1_u32..).zip(requests) {
        script.push(client);
        script.extend(frame(&(ticket, request)).unwrap());
    }
    // Tickets are the first numbers that the daemon counts.
    let info = TaskInfo { task, master: task, uid: 7, program: "true".into() };
    let letters = [
        Letter::Spawned { ticket: 1, outcome: Ok(77) },
        Letter::Died { ticket: 1, exit: Exit::Code(0) },
        Letter::Outcome { ticket: 6, outcome: Err(refusal) },
        Letter::TaskList { ticket: 10, tasks: vec![info] },
        Letter::Spawn { ticket: 9, client: 4, master: task, user, job: job.clone() },
        Letter::Signal { ticket: 10, pid: 5, signal: 9, user },
        Letter::Watch { ticket: 11, client: 4, pid: 50, user },
        Letter::Tasks { ticket: 12 },
        Letter::Partition(Partition { name: "day".into(), version: 2, writer: 1, nodes: [1].into() }),
        Letter::ClientGone { client: 4 },
        Letter::Fenced,
    ];
    for (number, letter) in (1..).zip(letters) {
        script.push(2 + 4);
        script.extend(framed(encode(&Envelope { from: 7, to: 1, number, letter }).unwrap()));
    }
    script.extend((0..16).map(|what| 3 + 4 * what));
    script
}
