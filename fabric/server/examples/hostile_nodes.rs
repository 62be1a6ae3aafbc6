// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an honest pair of nodes notices of a hostile one: round trips and stores a second through the real process,
//! with a hostile process and, in turn with that, with no other and with a process that merely uses a processor. The
//! latter two differ: where a processor sleeps between two packets, to wake it takes longer than all else.
//!
//! ```sh
//! cargo run --release -p telegraphos-fabric --example hostile_nodes -- \
//!     [--fabric PATH] [--rounds N] [--slice-ms MS] [ATTACK..]
//! ```
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use telegraphos_link::LinkClient;
use telegraphos_wire::link::Frame;
use telegraphos_wire::packet::MULTICAST;
use telegraphos_wire::{Body, Class, ImportEpoch, NodeId, PROTOCOL_VERSION, Packet, RemoteAddr, Status, WindowLayout};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ATTACKS: [&str; 8] = ["groups", "resets", "probes", "connections", "malformed", "hoard", "multicasts", "stores"];
/// Stores that the honest node has under way, when it sends as many as it can.
const WINDOW: u32 = 64;
const HOSTILE: NodeId = 5;
const AT: RemoteAddr = RemoteAddr { page: 0, offset: 0, generation: 0 };

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (mut fabric, mut rounds, mut slice, mut attacks) = (None, 5, 600, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--hostile" => return hostile(&value()?, Path::new(&value()?)),
            "--fabric" => fabric = Some(PathBuf::from(value()?)),
            "--rounds" => rounds = value()?.parse::<usize>()?.max(1),
            "--slice-ms" => slice = value()?.parse::<u64>()?.max(100),
            attack if ATTACKS.contains(&attack) => attacks.push(argument),
            other => return Err(format!("{other}: expected an option or one of {}", ATTACKS.join(", ")).into()),
        }
    }
    if attacks.is_empty() {
        attacks = ATTACKS.map(str::to_owned).to_vec();
    }
    let fabric = match fabric {
        Some(path) => path,
        // target/PROFILE/examples/hostile_nodes
        None => std::env::current_exe()?.with_file_name("../telegraphos-fabric"),
    };
    println!(
        "{rounds} rounds of {slice} ms each: alone, with a spinning process, with the hostile one; medians; ratios to alone"
    );
    println!(
        "{:11} {:>8} {:>8} {:>8} {:>5}  {:>7} {:>7} {:>8} {:>5}  {:>8} {:>5} {:>8}  {:>7}",
        "attack",
        "stores/s",
        "spinning",
        "attacked",
        "ratio",
        "trip us",
        "spin",
        "attacked",
        "ratio",
        "worst ms",
        "spin",
        "attacked",
        "RSS MiB"
    );
    for attack in attacks {
        compare(&fabric, &attack, rounds, Duration::from_millis(slice))?;
    }
    Ok(())
}

/// A process that ends with its handle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compare(fabric: &Path, attack: &str, rounds: usize, slice: Duration) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("fabric");
    let process = Command::new(fabric)
        .arg("--listen")
        .arg(&path)
        .args(["--control", "none", "--silence-ms", "0"])
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{}: {e}; build telegraphos-fabric or name it with --fabric", fabric.display()))?;
    let process = Running(process);
    while UnixStream::connect(&path).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut answering = Honest::join(&path, 1)?;
    let mut asking = Honest::join(&path, 0)?;
    let stop = done.clone();
    let answers = std::thread::spawn(move || -> Result<(), Failure> {
        while !stop.load(Ordering::Relaxed) {
            answering.wait(20)?;
            answering.exchange()?;
            while let Some(frame) = answering.frames.pop_front() {
                if let Frame::Packet(packet) = frame {
                    let body = Body::WriteAck { status: Status::Ok };
                    answering.link.send(&Frame::Packet(Packet { src: packet.dst, dst: packet.src, body, ..packet }))?;
                    answering.used += 1;
                    if answering.used == 64 {
                        answering.used = 0;
                        answering.link.send(&Frame::Credit { class: Class::Request, count: 64 })?;
                    }
                }
            }
            answering.link.flush()?;
        }
        Ok(())
    });
    // Of each: stores a second, a round trip, the longest.
    let mut seen: [[Vec<f64>; 3]; 3] = Default::default();
    for _ in 0..rounds {
        for (role, seen) in ["sleep", "spin", attack].into_iter().zip(&mut seen) {
            let child = Command::new(std::env::current_exe()?).args(["--hostile", role]).arg(&path).spawn()?;
            let hostile = Running(child);
            std::thread::sleep(Duration::from_millis(100));
            let rate = asking.stores(slice / 2)?;
            let mut trips = asking.trips(slice / 2)?;
            drop(hostile);
            trips.sort_by(f64::total_cmp);
            seen[0].push(rate);
            seen[1].push(trips[trips.len() / 2]);
            seen[2].push(trips[trips.len() - 1]);
        }
    }
    done.store(true, Ordering::Relaxed);
    answers.join().map_err(|_| "the answering node panicked")??;
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0").trim();
    let peak: f64 = peak.split_whitespace().next().unwrap_or("0").parse()?;
    let mut median = |role: usize, what: usize| {
        let values = &mut seen[role][what];
        values.sort_by(f64::total_cmp);
        if what == 2 { values[values.len() - 1] } else { values[values.len() / 2] }
    };
    let [rate, trip, worst] = [0, 1, 2].map(|what| [0, 1, 2].map(|role| median(role, what)));
    println!(
        "{attack:11} {:>8.0} {:>8.0} {:>8.0} {:>5.2}  {:>7.1} {:>7.1} {:>8.1} {:>5.2}  {:>8.1} {:>5.1} {:>8.1}  {:>7.0}",
        rate[0],
        rate[1],
        rate[2],
        rate[0] / rate[2].max(1.0),
        trip[0],
        trip[1],
        trip[2],
        trip[2] / trip[0],
        worst[0] / 1000.0,
        worst[1] / 1000.0,
        worst[2] / 1000.0,
        peak / 1024.0
    );
    Ok(())
}

/// A node that keeps to the rules.
struct Honest {
    link: LinkClient,
    node: NodeId,
    incarnation: u64,
    credits: u32,
    used: u32,
    frames: VecDeque<Frame>,
}

impl Honest {
    fn join(path: &Path, node: NodeId) -> Result<Honest, Failure> {
        Honest::offering(path, node, [256; 4])
    }

    fn offering(path: &Path, node: NodeId, offered: [u32; 4]) -> Result<Honest, Failure> {
        let mut link = LinkClient::connect(path)?;
        link.hello(node, WindowLayout::default(), offered)?;
        link.flush()?;
        let mut honest = Honest { link, node, incarnation: 0, credits: 0, used: 0, frames: VecDeque::new() };
        loop {
            honest.wait(1000)?;
            honest.exchange()?;
            if let Some(Frame::Welcome { incarnation, credits, .. }) = honest.frames.pop_front() {
                (honest.incarnation, honest.credits) = (incarnation, credits[Class::Request as usize]);
                return Ok(honest);
            }
        }
    }

    fn wait(&self, ms: i64) -> Result<(), Failure> {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.link.wants_write());
        let fd = self.link.fd();
        poll(&mut [PollFd::new(&fd, flags)], Some(&Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }))?;
        Ok(())
    }

    fn exchange(&mut self) -> Result<(), Failure> {
        self.link.flush()?;
        let mut frames = Vec::new();
        if self.link.receive(&mut frames)?.closed {
            return Err(format!("node {} was disconnected", self.node).into());
        }
        for frame in frames {
            match frame {
                Frame::Credit { class: Class::Request, count } => self.credits += count,
                frame => self.frames.push_back(frame),
            }
        }
        Ok(())
    }

    fn packet(&self, dst: NodeId, tag: u32, body: Body) -> Frame {
        Frame::Packet(Packet { src: self.node, dst, tag, incarnation: self.incarnation, target: 0, body })
    }

    fn store(&mut self, dst: NodeId, tag: u32) -> Result<(), Failure> {
        self.credits -= 1;
        let body = Body::Write { at: AT, context: 0, epoch: ImportEpoch::default(), size: 8, data: 0 };
        Ok(self.link.send(&self.packet(dst, tag, body))?)
    }

    /// Answers that have come.
    fn answers(&mut self) -> u32 {
        let answers = self.frames.iter().filter(|f| matches!(f, Frame::Packet(p) if p.class() == Class::Reply)).count();
        self.frames.clear();
        answers as u32
    }

    /// Stores answered in a second, as many under way as may be.
    fn stores(&mut self, time: Duration) -> Result<f64, Failure> {
        let clock = Instant::now();
        let (mut under_way, mut done) = (0, 0u64);
        while clock.elapsed() < time || under_way > 0 {
            while clock.elapsed() < time && under_way < WINDOW && self.credits > 0 {
                self.store(1, 0)?;
                under_way += 1;
            }
            self.exchange()?;
            let answers = self.answers();
            under_way -= answers;
            done += u64::from(answers);
            if answers == 0 {
                self.wait(100)?;
            }
        }
        Ok(done as f64 / clock.elapsed().as_secs_f64())
    }

    /// Round trips of one store at a time, in microseconds.
    fn trips(&mut self, time: Duration) -> Result<Vec<f64>, Failure> {
        let clock = Instant::now();
        let mut trips = Vec::new();
        while trips.is_empty() || clock.elapsed() < time {
            while self.credits == 0 {
                self.wait(100)?;
                self.exchange()?;
            }
            let start = Instant::now();
            self.store(1, 0)?;
            self.exchange()?;
            while self.answers() == 0 {
                self.wait(100)?;
                self.exchange()?;
            }
            trips.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(trips)
    }
}

// ---- the hostile process ----

/// Attacks until it is killed; whenever it is disconnected it comes back.
fn hostile(attack: &str, path: &Path) -> Result<(), Failure> {
    loop {
        let ended = match attack {
            "sleep" => loop {
                std::thread::sleep(Duration::from_secs(60));
            },
            "spin" => loop {
                std::hint::spin_loop();
            },
            "connections" => connections(path),
            "malformed" => malformed(path),
            "multicasts" => multicasts(path),
            "stores" => stores(path),
            _ => flood(attack, path),
        };
        // Refused, disconnected, or the backlog is full.
        if ended.is_err() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn connections(path: &Path) -> Result<(), Failure> {
    let mut open = VecDeque::new();
    loop {
        open.push_back(LinkClient::connect(path)?);
        if open.len() > 500 {
            open.drain(..250);
        }
    }
}

fn malformed(path: &Path) -> Result<(), Failure> {
    loop {
        let mut stream = UnixStream::connect(path)?;
        let _ = stream.write_all(&[0xff; 64]);
    }
}

/// One kind of frame, as fast as the fabric reads.
fn flood(attack: &str, path: &Path) -> Result<(), Failure> {
    let mut stream = UnixStream::connect(path)?;
    let offered = [u32::MAX; 4];
    let mut bytes = Vec::new();
    let hello =
        Frame::Hello { version: PROTOCOL_VERSION, node: HOSTILE, window: WindowLayout::default(), credits: offered };
    hello.encode(&mut bytes);
    stream.write_all(&bytes)?;
    let mut welcome = [0; 36];
    stream.read_exact(&mut welcome)?;
    let Some((Frame::Welcome { mut incarnation, .. }, _)) = Frame::decode(&welcome)? else {
        return Err("refused".into());
    };
    if attack != "hoard" {
        let mut reader = stream.try_clone()?;
        std::thread::spawn(move || {
            let mut sink = vec![0; 1 << 20];
            while reader.read(&mut sink).is_ok_and(|read| read > 0) {}
        });
    }
    let mut page = 0;
    loop {
        bytes.clear();
        while bytes.len() < 60 << 10 {
            match attack {
                "groups" => {
                    page = (page + 1) % 16_000;
                    Frame::Group { page, members: vec![0, 1] }
                }
                "resets" => {
                    incarnation += 1;
                    Frame::Reset { incarnation }
                }
                "hoard" => {
                    let body = Body::BlockReply { status: Status::Ok, data: vec![0; 8192].into() };
                    Frame::Packet(Packet { src: HOSTILE, dst: HOSTILE, tag: 0, incarnation, target: 0, body })
                }
                _ => Frame::Probe,
            }
            .encode(&mut bytes);
        }
        stream.write_all(&bytes)?;
    }
}

/// To as many nodes as there are, none of which is present: the switch answers for each.
fn multicasts(path: &Path) -> Result<(), Failure> {
    let mut node = Honest::join(path, HOSTILE)?;
    node.link.send(&Frame::Group { page: 1, members: (6..64).collect() })?;
    let at = RemoteAddr { page: 1, ..AT };
    let mut credits = 256;
    loop {
        while credits > 0 {
            credits -= 1;
            let body = Body::Reflected { at, size: 8, data: 0, writer: HOSTILE };
            let packet = node.packet(MULTICAST, 0, body);
            node.link.send(&packet)?;
        }
        node.exchange()?;
        let mut more = 0;
        for frame in node.frames.drain(..) {
            if let Frame::Credit { class: Class::Reflected, count } = frame {
                more += count;
            }
        }
        credits += more;
        if more == 0 {
            node.wait(100)?;
        }
    }
}

/// Stores to itself, answered, as fast as credits allow: what an honest node may do, too.
fn stores(path: &Path) -> Result<(), Failure> {
    let mut node = Honest::join(path, HOSTILE)?;
    loop {
        while node.credits > 0 {
            node.store(HOSTILE, 0)?;
        }
        node.exchange()?;
        if node.frames.is_empty() {
            node.wait(100)?;
        }
        while let Some(frame) = node.frames.pop_front() {
            if let Frame::Packet(packet) = frame {
                if packet.class() == Class::Request {
                    let ack = node.packet(HOSTILE, packet.tag, Body::WriteAck { status: Status::Ok });
                    node.link.send(&ack)?;
                    node.link.send(&Frame::Credit { class: Class::Request, count: 1 })?;
                }
            }
        }
    }
}
