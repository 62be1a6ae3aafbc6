// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric that only records its commands, and its control socket driven by the test with a clock of the test's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use telegraphos_fabric::control::snapshot::{
    FaultView, FaultsView, Port, PortState, Process, Snapshot, Status, SwitchView, TopologyView,
};
use telegraphos_fabric::control::{ControlServer, Controlled, Done, FaultSpec, Limits, Response, Target};

#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) commands: Vec<String>,
    pub(crate) faults: Vec<(Target, FaultSpec)>,
    /// Ports in each snapshot.
    pub(crate) ports: u16,
    pub(crate) snapshots: u64,
}

impl Fake {
    fn note(&mut self, text: String) -> Result<Done, String> {
        self.commands.push(text);
        Ok(Done::changed(1))
    }
}

impl Controlled for Fake {
    fn status(&mut self) -> Status {
        Status { protocol: 1, nodes: 64, present: vec![0, 3], log: "info".into(), ..Status::default() }
    }

    fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        let process = Process { uptime_us: self.snapshots, ..Process::default() };
        let port = |node| Port { node, state: PortState::Up, incarnation: 4096, ..Port::default() };
        Snapshot { process, nodes: 64, ports: (0..self.ports).map(port).collect(), ..Snapshot::default() }
    }

    fn topology(&mut self) -> TopologyView {
        let switch = SwitchView { here: true, nodes: vec![0, 1], ..SwitchView::default() };
        TopologyView { digest: "0123456789abcdef".into(), switches: vec![switch], trunks: Vec::new() }
    }

    fn faults(&mut self) -> FaultsView {
        let view = |(on, faults): &(Target, FaultSpec)| FaultView { on: on.clone(), faults: *faults, down: false };
        FaultsView { faults: self.faults.iter().map(view).collect(), ..FaultsView::default() }
    }

    fn set_faults(&mut self, on: &Target, faults: &FaultSpec) -> Result<Done, String> {
        self.faults.retain(|(other, _)| other != on);
        if !faults.is_none() {
            self.faults.push((on.clone(), *faults));
        }
        Ok(Done::changed(1))
    }

    fn set_link(&mut self, on: &Target, up: bool) -> Result<Done, String> {
        self.note(format!("link {on} {up}"))
    }

    fn partition(&mut self, groups: &[Vec<String>]) -> Result<Done, String> {
        self.note(format!("partition {groups:?}"))
    }

    fn slow(&mut self, node: u16, bytes_per_second: Option<u64>) -> Result<Done, String> {
        self.note(format!("slow {node} {bytes_per_second:?}"))
    }

    fn crash(&mut self, node: u16, out: bool) -> Result<Done, String> {
        if node >= 64 {
            return Err(format!("node is {node}: expected 0 to 63"));
        }
        self.note(format!("crash {node} {out}"))
    }

    fn capture_start(&mut self, file: &Path, on: &Target) -> Result<Done, String> {
        self.note(format!("capture {} {on}", file.display()))
    }

    fn capture_stop(&mut self) -> Result<Done, String> {
        self.note("capture stop".into())
    }

    fn log(&mut self, filter: &str) -> Result<Done, String> {
        self.note(format!("log {filter}"))
    }
}

pub(crate) struct Served {
    pub(crate) server: ControlServer,
    pub(crate) fake: Fake,
    pub(crate) now: u64,
    pub(crate) path: PathBuf,
    pub(crate) _dir: tempfile::TempDir,
}

impl Served {
    pub(crate) fn new(limits: Limits) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let server = ControlServer::bind(&path, "--control", limits).unwrap();
        Served { server, fake: Fake::default(), now: 1, path, _dir: dir }
    }

    pub(crate) fn connect(&mut self) -> Peer {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.turn();
        Peer { stream, bytes: Vec::new(), closed: false }
    }

    /// As a loop does: until nothing is readable and no deadline has come.
    pub(crate) fn turn(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        for _ in 0..100_000 {
            self.server.ready(self.now, &mut self.fake);
            let fd = self.server.fd();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let readable = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0;
            if !readable && self.server.deadline().is_none_or(|d| d > self.now) {
                return;
            }
        }
        panic!("the loop turns without end");
    }

    /// One line, and its answer.
    pub(crate) fn ask(&mut self, peer: &mut Peer, line: &str) -> String {
        peer.send(line.as_bytes());
        peer.send(b"\n");
        self.turn();
        peer.line().unwrap_or_else(|| panic!("no answer to {line}"))
    }
}

pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    bytes: Vec<u8>,
    pub(crate) closed: bool,
}

impl Peer {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn receive(&mut self) {
        let mut piece = [0; 1 << 16];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => self.closed = true,
                Ok(n) => {
                    self.bytes.extend_from_slice(&piece[..n]);
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            return;
        }
    }

    /// The next line that has come.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.receive();
        let end = self.bytes.iter().position(|b| *b == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(String::from_utf8(line).unwrap().trim_end().to_owned())
    }

    pub(crate) fn is_closed(&mut self) -> bool {
        self.receive();
        self.closed
    }
}

pub(crate) fn error(line: &str) -> telegraphos_fabric::control::ErrorAnswer {
    match serde_json::from_str(line).unwrap() {
        Response::Error(e) => e,
        other => panic!("{other:?}"),
    }
}
