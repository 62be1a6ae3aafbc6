// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric in a thread of the test, and the HIB's end of its links with the bookkeeping of credits.
#![allow(dead_code, reason = "slow_reader.rs uses a part of this")]

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use telegraphos_fabric::{Config, Fabric, FabricError, ShutdownHandle};
use telegraphos_link::LinkClient;
use telegraphos_testkit::Ended;
use telegraphos_topology::{Plan, Topology};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, Class, NodeId, Packet, RemoteAddr, Status, WindowLayout};

/// After so long without an expected frame a test fails: no assertion on speed, only against hanging for ever.
const PATIENCE: i64 = 60;

/// The command `telegraphos-fabric`.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telegraphos-fabric"));
    command.env_remove("RUST_LOG");
    command
}

/// Its exit code, and what it writes to both outputs.
pub(crate) fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Ended { status, stdout, stderr } = Ended::of(command().args(args));
    (status.code(), stdout, stderr)
}

/// A regular topology in one process.
pub(crate) fn regular(name: &str, nodes: u32) -> Plan {
    Plan::in_one_process(Topology::parse_flag(name, nodes).unwrap())
}

pub(crate) struct Served {
    pub(crate) path: PathBuf,
    handle: ShutdownHandle,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
    pub(crate) tid: i32,
    dir: Option<tempfile::TempDir>,
}

pub(crate) fn serve(change: impl FnOnce(&mut Config)) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let mut served = serve_at(&dir.path().join("fabric"), change);
    served.dir = Some(dir);
    served
}

pub(crate) fn serve_at(path: &Path, change: impl FnOnce(&mut Config)) -> Served {
    let path = path.to_owned();
    let mut config = Config::new(&path);
    // Nodes of these tests do not answer probes.
    config.silence = None;
    // Nor are they boards, which alone have a use for rings.
    config.rings = 0;
    change(&mut config);
    let fabric = Fabric::bind(config).unwrap();
    let handle = fabric.shutdown_handle();
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        fabric.run()
    });
    Served { path, handle, thread: Some(thread), tid: receive.recv().unwrap(), dir: None }
}

impl Served {
    pub(crate) fn stop(&mut self) {
        self.handle.shut_down();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A HIB's end with the bookkeeping of credits.
pub(crate) struct Node {
    pub(crate) link: LinkClient,
    pub(crate) node: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) credits: [u32; 4],
    /// Frames received and not looked at.
    pub(crate) frames: VecDeque<Frame>,
    pub(crate) closed: bool,
}

/// Waits for the socket; false after `ms` milliseconds, if given.
pub(crate) fn wait(link: &LinkClient, ms: Option<i64>) -> bool {
    let mut flags = PollFlags::IN;
    flags.set(PollFlags::OUT, link.wants_write());
    let fd = link.fd();
    let mut fds = [PollFd::new(&fd, flags)];
    let ms = ms.unwrap_or(PATIENCE * 1000);
    poll(&mut fds, Some(&Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 })).unwrap() > 0
}

impl Node {
    pub(crate) fn hello(path: &Path, node: NodeId, window: WindowLayout, offered: u32) -> Node {
        let mut link = LinkClient::connect(path).unwrap();
        link.hello(node, window, [offered; 4]).unwrap();
        link.flush().unwrap();
        Node::over(link, node)
    }

    pub(crate) fn over(link: LinkClient, node: NodeId) -> Node {
        Node { link, node, incarnation: 0, credits: [0; 4], frames: VecDeque::new(), closed: false }
    }

    pub(crate) fn join_offering(served: &Served, node: NodeId, offered: u32) -> Node {
        let mut this = Node::hello(&served.path, node, WindowLayout::default(), offered);
        match this.next() {
            Some(Frame::Welcome { incarnation, credits, .. }) => {
                this.incarnation = incarnation;
                this.credits = credits;
            }
            other => panic!("node {node}: {other:?}"),
        }
        this
    }

    pub(crate) fn join(served: &Served, node: NodeId) -> Node {
        Node::join_offering(served, node, 256)
    }

    /// What the socket has now, and sends what waits.
    pub(crate) fn exchange(&mut self) {
        self.link.flush().unwrap();
        let mut frames = Vec::new();
        let received = self.link.receive(&mut frames).unwrap();
        self.closed |= received.closed;
        self.frames.extend(frames);
    }

    /// The next frame; `None` when the fabric has closed the link.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            if self.closed {
                return None;
            }
            assert!(wait(&self.link, None), "node {}: nothing came", self.node);
            self.exchange();
        }
    }

    /// Skips frames until one fits.
    pub(crate) fn expect(&mut self, what: &str, fits: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            match self.next() {
                Some(frame) if fits(&frame) => return frame,
                Some(Frame::Credit { class, count }) => self.credits[class as usize] += count,
                Some(_) => {}
                None => panic!("node {}: closed before {what}", self.node),
            }
        }
    }

    pub(crate) fn write(&self, dst: NodeId, tag: u32) -> Packet {
        let at = RemoteAddr { page: 0, offset: 0, generation: 0 };
        let body = Body::Write {
            at,
            context: 0,
            epoch: telegraphos_wire::ImportEpoch::default(),
            size: 8,
            data: u64::from(tag),
        };
        Packet { src: self.node, dst, tag, incarnation: self.incarnation, target: 0, body }
    }

    /// Sends a store if there is a credit.
    pub(crate) fn store(&mut self, dst: NodeId, tag: u32) -> bool {
        let credits = &mut self.credits[Class::Request as usize];
        if *credits == 0 {
            return false;
        }
        *credits -= 1;
        let packet = self.write(dst, tag);
        self.link.send(&Frame::Packet(packet)).unwrap();
        true
    }
}

pub(crate) fn ack(request: &Packet) -> Frame {
    let body = Body::WriteAck { status: Status::Ok };
    Frame::Packet(Packet { src: request.dst, dst: request.src, body, ..*request })
}

/// Sends `count` stores to each of `peers`, at most `window` unanswered, and answers what they send, until `incoming`
/// stores have come too. Panics if a store or an answer is out of order.
pub(crate) fn traffic(node: &mut Node, peers: &[NodeId], count: u32, window: u32, incoming: u64) {
    let mut sent = vec![0u32; peers.len()];
    let mut answered = vec![0u32; peers.len()];
    let mut expected = [0u32; 64];
    let (mut got, mut used) = (0u64, 0u32);
    while answered.iter().any(|a| *a < count) || got < incoming || node.link.wants_write() {
        for (i, peer) in peers.iter().enumerate() {
            while sent[i] < count && sent[i] - answered[i] < window && node.store(*peer, sent[i]) {
                sent[i] += 1;
            }
        }
        node.exchange();
        if node.frames.is_empty() {
            let done = answered.iter().all(|a| *a == count) && got >= incoming;
            if done && !node.link.wants_write() {
                break;
            }
            assert!(!node.closed, "node {}: disconnected", node.node);
            assert!(wait(&node.link, None), "node {}: sent {sent:?} answered {answered:?} got {got}", node.node);
            continue;
        }
        while let Some(frame) = node.frames.pop_front() {
            match frame {
                Frame::Credit { class, count } => node.credits[class as usize] += count,
                Frame::Packet(packet) if packet.class() == Class::Reply => {
                    let i = peers.iter().position(|p| *p == packet.src).unwrap();
                    assert_eq!(packet.body, Body::WriteAck { status: Status::Ok });
                    assert_eq!(packet.tag, answered[i], "answers of node {} to node {}", packet.src, node.node);
                    answered[i] += 1;
                }
                Frame::Packet(packet) => {
                    let next = &mut expected[usize::from(packet.src)];
                    assert_eq!(packet.tag, *next, "stores of node {} to node {}", packet.src, node.node);
                    *next += 1;
                    got += 1;
                    node.link.send(&ack(&packet)).unwrap();
                    used += 1;
                    // As a board does: credits in portions.
                    if used == 64 {
                        node.link.send(&Frame::Credit { class: Class::Request, count: used }).unwrap();
                        used = 0;
                    }
                }
                Frame::NodeUp { .. } => {}
                other => panic!("node {}: {other:?}", node.node),
            }
        }
    }
}

/// Each node sends so many stores to each other one, at most `window` unanswered; all at once.
pub(crate) fn all_to_all<const N: usize>(nodes: [Node; N], count: u32, window: u32) -> [Node; N] {
    let all = nodes.each_ref().map(|node| node.node);
    let threads = nodes.map(|mut node| {
        let peers: Vec<NodeId> = all.into_iter().filter(|peer| *peer != node.node).collect();
        std::thread::spawn(move || {
            traffic(&mut node, &peers, count, window, u64::from(count) * peers.len() as u64);
            node
        })
    });
    // Kept until all are done: one that left would be news to the others.
    threads.map(|thread| thread.join().unwrap())
}

/// All nodes of a fabric, which know each other.
pub(crate) fn all_of<const N: usize>(served: &Served) -> [Node; N] {
    let mut nodes: [Node; N] = std::array::from_fn(|node| Node::join(served, node as NodeId));
    for node in &mut nodes {
        let others: Vec<NodeId> = (0..N as NodeId).filter(|peer| *peer != node.node).collect();
        all_up(node, &others);
    }
    nodes
}

/// Until all peers are known, in whatever order: their incarnations in the order of `peers`.
pub(crate) fn all_up(node: &mut Node, peers: &[NodeId]) -> Vec<u64> {
    let mut known = BTreeMap::new();
    while peers.iter().any(|peer| !known.contains_key(peer)) {
        if let Frame::NodeUp { node, incarnation, .. } = node.expect("all peers", |f| matches!(f, Frame::NodeUp { .. }))
        {
            known.insert(node, incarnation);
        }
    }
    peers.iter().map(|peer| known[peer]).collect()
}

/// The incarnation with which a peer comes up.
pub(crate) fn up(node: &mut Node, peer: NodeId) -> u64 {
    match node.expect("news of a peer", |f| matches!(f, Frame::NodeUp { node, .. } if *node == peer)) {
        Frame::NodeUp { incarnation, .. } => incarnation,
        _ => 0,
    }
}

pub(crate) fn down(node: &mut Node, peer: NodeId) {
    node.expect("the end of a peer", |f| *f == Frame::NodeDown { node: peer });
}

/// A UDP port that was free a moment ago, and that no other test of this process gets.
pub(crate) fn udp_port() -> u16 {
    static PORTS: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut given = PORTS.lock().unwrap();
    loop {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        if !given.contains(&port) {
            given.push(port);
            return port;
        }
    }
}
