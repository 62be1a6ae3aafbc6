// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench --latency`: what the fabric adds to one request and its answer, against the raw sockets below it.
//!
//! One thread sends a store of 64 bytes on its link and waits for the acknowledgement, which another thread sends from
//! its own link: with both nodes at one fabric process, and with two processes and a trunk of each kind in between. The
//! baseline is the same ping-pong of 64 bytes over a Unix stream, and over UDP, between two threads. All in turn, in
//! each round; everybody sleeps until something comes, as boards do.

use crate::replicas::quartiles;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telegraphos_cluster::cli::{Context, print, readable};
use telegraphos_cluster::{Error, MachineLock, Process, Result, RunDir, check_interrupt, start_fabric};
use telegraphos_fabric::keys;
use telegraphos_link::LinkClient;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, Class, ImportEpoch, NodeId, Packet, RemoteAddr, Status, WindowLayout};

/// Ping-pongs of one sample.
const COUNT: u32 = 50;
/// Bytes of a raw message: those of a store on a link.
const MESSAGE: usize = 64;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Trunks that are measured, and the raw socket below each.
const TRUNKS: [(&str, &str); 4] = [("unix", UNIX), ("ring", UNIX), ("udp", UDP), ("quic", UDP)];
const UNIX: &str = "unix stream";
const UDP: &str = "udp";

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    Error::io(what, "of the benchmark")
}

/// One end of a link, as a board has it.
struct Node {
    link: LinkClient,
    frames: Vec<Frame>,
    node: NodeId,
    incarnation: u64,
    credits: u32,
    owed: u32,
    peers: BTreeMap<NodeId, u64>,
}

impl Node {
    fn join(socket: &Path, node: NodeId) -> std::io::Result<Node> {
        let mut link = LinkClient::connect(socket)?;
        link.hello(node, WindowLayout::default(), [256; 4]).map_err(std::io::Error::other)?;
        let peers = BTreeMap::new();
        let mut this = Node { link, frames: Vec::new(), node, incarnation: 0, credits: 0, owed: 0, peers };
        let begun = Instant::now();
        while this.incarnation == 0 {
            this.packet(begun, false)?;
        }
        Ok(this)
    }

    /// Waits for the next packet (or, with `only_packets` false, for any frame), and serves the link meanwhile.
    fn packet(&mut self, begun: Instant, only_packets: bool) -> std::io::Result<Option<Packet>> {
        loop {
            self.link.flush()?;
            readable([self.link.fd()], Duration::from_secs(1))?;
            let mut frames = std::mem::take(&mut self.frames);
            let closed = self.link.receive(&mut frames)?.closed;
            let mut packet = None;
            for frame in frames.drain(..) {
                match frame {
                    Frame::Welcome { incarnation, credits, .. } => {
                        (self.incarnation, self.credits) = (incarnation, credits[Class::Request as usize]);
                    }
                    Frame::Credit { class: Class::Request, count } => self.credits += count,
                    Frame::NodeUp { node, incarnation, .. } => {
                        self.peers.insert(node, incarnation);
                    }
                    Frame::Probe => self.send(&Frame::Alive)?,
                    // One is on its way at a time.
                    Frame::Packet(one) => packet = Some(one),
                    _ => {}
                }
            }
            self.frames = frames;
            if packet.is_some() || !only_packets {
                return Ok(packet);
            }
            if closed || begun.elapsed() > PATIENCE {
                return Err(std::io::Error::other("the fabric closed the link, or nothing came for too long"));
            }
        }
    }

    fn send(&mut self, frame: &Frame) -> std::io::Result<()> {
        self.link.send(frame).map_err(std::io::Error::other)
    }

    fn wait_for(&mut self, peer: NodeId) -> std::io::Result<()> {
        let begun = Instant::now();
        while !self.peers.contains_key(&peer) {
            self.packet(begun, false)?;
            if begun.elapsed() > PATIENCE {
                return Err(std::io::Error::other("the other node was not announced"));
            }
        }
        Ok(())
    }

    /// A store to node `peer`, and its answer.
    fn ping(&mut self, peer: NodeId, tag: u32) -> std::io::Result<()> {
        let (at, epoch) = (RemoteAddr { page: 0, offset: 0, generation: 0 }, ImportEpoch::default());
        let body = Body::Write { at, context: 0, epoch, size: 8, data: u64::from(tag) };
        let target = self.peers.get(&peer).copied().unwrap_or(0);
        let (src, incarnation) = (self.node, self.incarnation);
        self.send(&Frame::Packet(Packet { src, dst: peer, tag, incarnation, target, body }))?;
        self.packet(Instant::now(), true).map(drop)
    }

    /// Answers stores until the asker leaves.
    fn echo(mut self, peer: NodeId) {
        let begun = Instant::now();
        while let Ok(packet) = self.packet(begun, false) {
            if let Some(request) = packet {
                let body = Body::WriteAck { status: Status::Ok };
                let answer = Packet { src: request.dst, dst: request.src, body, ..request };
                self.owed += 1;
                let credit = Frame::Credit { class: Class::Request, count: self.owed };
                if self.send(&Frame::Packet(answer)).is_err() || self.owed >= 64 && self.send(&credit).is_err() {
                    return;
                }
                self.owed %= 64;
            } else if begun.elapsed() > PATIENCE && !self.peers.contains_key(&peer) {
                return;
            }
        }
    }
}

/// Something that can be measured.
struct Case {
    name: String,
    ping: Box<dyn FnMut(u32) -> std::io::Result<()>>,
    /// Kept until it has been measured.
    _processes: Vec<Process>,
}

type RawMessage = [u8; MESSAGE];

/// A message to another thread, which sends it back until that fails.
fn raw(
    name: &str,
    mut echo: impl FnMut(&mut RawMessage) -> std::io::Result<()> + Send + 'static,
    mut ping: impl FnMut(&mut RawMessage) -> std::io::Result<()> + 'static,
) -> Case {
    let _: JoinHandle<()> = std::thread::spawn(move || while echo(&mut [0; MESSAGE]).is_ok() {});
    Case { name: name.to_owned(), ping: Box::new(move |_| ping(&mut [0; MESSAGE])), _processes: Vec::new() }
}

fn raw_unix() -> std::io::Result<Case> {
    let (mut near, mut far) = UnixStream::pair()?;
    near.set_read_timeout(Some(PATIENCE))?;
    let echo = move |message: &mut RawMessage| far.read_exact(message).and_then(|()| far.write_all(message));
    Ok(raw(UNIX, echo, move |message| near.write_all(message).and_then(|()| near.read_exact(message))))
}

fn raw_udp() -> std::io::Result<Case> {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    // The echo ends after a while without a packet, or when the other socket is closed.
    far.set_read_timeout(Some(PATIENCE))?;
    near.set_read_timeout(Some(PATIENCE))?;
    let echo = move |message: &mut RawMessage| far.recv(message).and_then(|_| far.send(message)).map(drop);
    Ok(raw(UDP, echo, move |message| near.send(message).and_then(|_| near.recv(message)).map(drop)))
}

fn through(name: String, sockets: [&Path; 2], processes: Vec<Process>) -> Result<Case> {
    let join = || -> std::io::Result<Node> {
        let mut near = Node::join(sockets[0], 0)?;
        let mut far = Node::join(sockets[1], 1)?;
        near.wait_for(1)?;
        far.wait_for(0)?;
        std::thread::spawn(move || far.echo(0));
        Ok(near)
    };
    let mut near = join().map_err(failed("cannot join the fabric"))?;
    Ok(Case { name, ping: Box::new(move |tag| near.ping(1, tag)), _processes: processes })
}

/// A free port of the loopback, as far as can be known.
fn free_port() -> std::io::Result<u16> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The options of a process's certificate.
fn certificate(keys: &Path, process: &str) -> Result<[(&'static str, String); 3]> {
    let made = if keys.exists() { Ok(()) } else { keys::new_cluster(keys) };
    made.and_then(|()| keys::new_process(keys, process, 1))
        .map_err(|e| failed("cannot make certificates")(std::io::Error::other(e.to_string())))?;
    let file = |name: String| keys.join(name).display().to_string();
    Ok([
        ("certificate", file(format!("{process}.pem"))),
        ("key", file(format!("{process}.key"))),
        ("peers-ca", file("ca.pem".to_owned())),
    ])
}

/// Two fabric processes, one node each, and a trunk of this kind.
fn with_trunk(kind: &str, directory: &Path) -> Result<Case> {
    let address = match kind {
        "udp" | "quic" => format!("{kind}:127.0.0.1:{}", free_port().map_err(failed("cannot find a free port"))?),
        kind => format!("{kind}:{}", directory.join(format!("{kind}.trunk")).display()),
    };
    let text = format!(
        "nodes = 2\n[[switch]]\nname = 'near'\nnodes = '0'\nprocess = 'near'\n[[switch]]\nname = 'far'\nnodes = '1'\nprocess = 'far'\n\
         [[trunk]]\nbetween = ['near', 'far']\nat = '{address}'\n"
    );
    let file = directory.join(format!("{kind}.toml"));
    std::fs::write(&file, text).map_err(Error::io("cannot write the topology", &file))?;
    let sockets = ["near", "far"].map(|process| directory.join(format!("{kind}.{process}")));
    let mut processes = Vec::new();
    for (process, socket) in ["near", "far"].into_iter().zip(&sockets) {
        let mut options = vec![("topology", file.display().to_string()), ("process", process.to_owned())];
        if kind == "quic" {
            options.extend(certificate(&directory.join("keys"), process)?);
        }
        let options: Vec<_> = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        processes.push(start_fabric(socket, &options, &directory.join(format!("{kind}.{process}.log")))?);
    }
    through(format!("trunk {kind}"), [&sockets[0], &sockets[1]], processes)
}

pub(super) fn latency(context: Context, rounds: u32) -> Result<u8> {
    let Context { settings, progress, .. } = context;
    let run_dir = RunDir::create(settings.run_dir.as_deref())?;
    let _lock = MachineLock::acquire(progress)?;
    let directory = run_dir.path();
    let star = directory.join("star");
    let fabric = start_fabric(&star, &settings.fabric, &directory.join("star.log"))?;
    let mut cases = vec![
        raw_unix().map_err(failed("cannot make a pair of sockets"))?,
        raw_udp().map_err(failed("cannot make UDP sockets"))?,
        through("one fabric".to_owned(), [&star, &star], vec![fabric])?,
    ];
    for (kind, _) in TRUNKS {
        cases.push(with_trunk(kind, directory)?);
    }
    let step = progress.step(format!("Measuring, {rounds} rounds"), None);
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for case in &mut cases {
            check_interrupt()?;
            let begun = Instant::now();
            for count in 0..COUNT {
                (case.ping)(round * COUNT + count).map_err(failed("a ping-pong has stopped"))?;
            }
            let each = begun.elapsed().as_nanos() as f64 / 1e3 / f64::from(COUNT);
            samples.entry(case.name.clone()).or_default().push(each);
        }
    }
    step.done();
    print(&table(&samples))?;
    Ok(0)
}

/// What was measured, in microseconds, and as ratios within the rounds.
fn table(samples: &BTreeMap<String, Vec<f64>>) -> String {
    let of = |name: &str| samples.get(name).cloned().unwrap_or_default();
    let mut out = format!("{:<26}{:>10}  {:<20}{:>8}  of what\n", "request and answer", "us", "(quartiles)", "ratio");
    let mut line = |name: &str, over: Option<(&str, Vec<f64>)>| {
        let [us, low, high] = quartiles(of(name));
        let ratio = over.map(|(what, ratios)| {
            let [ratio, low, high] = quartiles(ratios);
            format!("{ratio:>8.2}  {what} ({low:.2} to {high:.2})")
        });
        out += format!("{name:<26}{us:>10.1}  {:<20}{}", format!("({low:.1} to {high:.1})"), ratio.unwrap_or_default())
            .trim_end();
        out.push('\n');
    };
    line(UNIX, None);
    line(UDP, None);
    let ratios = of("one fabric").iter().zip(of(UNIX)).map(|(through, raw)| through / raw).collect();
    line("one fabric", Some(("the whole way, of a raw unix stream", ratios)));
    for (kind, raw) in TRUNKS {
        let name = format!("trunk {kind}");
        let rounds = of(&name).into_iter().zip(of("one fabric")).zip(of(raw));
        let added = rounds.map(|((with, without), raw)| (with - without) / raw);
        let what = format!("what the second switch and the trunk add, of raw {raw}");
        line(&name, Some((&what, added.collect())));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_the_rounds() {
        let samples = [
            (UNIX.to_owned(), vec![10.0, 20.0]),
            (UDP.to_owned(), vec![20.0, 40.0]),
            ("one fabric".to_owned(), vec![30.0, 60.0]),
            ("trunk unix".to_owned(), vec![50.0, 100.0]),
            ("trunk ring".to_owned(), vec![40.0, 80.0]),
            ("trunk udp".to_owned(), vec![60.0, 120.0]),
            ("trunk quic".to_owned(), vec![70.0, 140.0]),
        ];
        let text = table(&samples.into());
        let ratio = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split(')').nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(
            [ratio("one fabric"), ratio("trunk unix"), ratio("trunk udp"), ratio("trunk quic")],
            ["3.00", "2.00", "1.50", "2.00"],
            "{text}"
        );
    }
}
