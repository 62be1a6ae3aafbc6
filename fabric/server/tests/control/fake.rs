// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric that only records its commands, and its control socket driven by the test with a clock of the test's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use telegraphos_fabric::control::snapshot::{
    FaultView, FaultsView, Port, PortState, Process, Snapshot, Status, SwitchView, TopologyView,
};
use telegraphos_fabric::control::{ControlServer, Done, FaultSpec, Limits, Request, Response, Target};

#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) commands: Vec<String>,
    pub(crate) faults: Vec<(Target, FaultSpec)>,
    /// Ports in each snapshot.
    pub(crate) ports: u16,
    pub(crate) snapshots: u64,
}

impl Fake {
    pub(crate) fn perform(&mut self, request: &Request) -> Result<Response, String> {
        let command = match request {
            Request::Status {} => {
                let present = vec![0, 3];
                return Ok(Response::Status(Status {
                    protocol: 1,
                    nodes: 64,
                    present,
                    log: "info".into(),
                    ..Status::default()
                }));
            }
            Request::Statistics {} | Request::Watch { .. } => return Ok(Response::Statistics(self.snapshot())),
            Request::Topology {} => {
                let switch = SwitchView { here: true, nodes: vec![0, 1], ..SwitchView::default() };
                let digest = "0123456789abcdef".into();
                return Ok(Response::Topology(TopologyView { digest, switches: vec![switch], trunks: Vec::new() }));
            }
            Request::Faults {} => {
                let faults = self.faults.iter();
                let faults = faults.map(|(on, faults)| FaultView { on: on.clone(), faults: *faults, down: false });
                return Ok(Response::Faults(FaultsView { faults: faults.collect(), ..FaultsView::default() }));
            }
            Request::SetFaults { on, faults } => return Ok(self.set_faults(on, *faults)),
            Request::ClearFaults { on } => return Ok(self.set_faults(on, FaultSpec::default())),
            Request::Link { on, up } => format!("link {on} {up}"),
            Request::Partition { groups } => format!("partition {groups:?}"),
            Request::Heal {} => "partition []".to_owned(),
            Request::Slow { node, bytes_per_second } => format!("slow {node} {bytes_per_second:?}"),
            Request::Crash { node } | Request::Restore { node } if *node >= 64 => {
                return Err(format!("node is {node}: expected 0 to 63"));
            }
            Request::Crash { node } => format!("crash {node} true"),
            Request::Restore { node } => format!("crash {node} false"),
            Request::CaptureStart { file, on } => format!("capture {file} {on}"),
            Request::CaptureStop {} => "capture stop".to_owned(),
            Request::Log { level } => format!("log {level}"),
        };
        self.commands.push(command);
        Ok(Response::Done(Done::changed(1)))
    }

    fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        let process = Process { uptime_us: self.snapshots, ..Process::default() };
        let port = |node| Port { node, state: PortState::Up, incarnation: 4096, ..Port::default() };
        Snapshot { process, nodes: 64, ports: (0..self.ports).map(port).collect(), ..Snapshot::default() }
    }

    fn set_faults(&mut self, on: &Target, faults: FaultSpec) -> Response {
        self.faults.retain(|(other, _)| other != on);
        if !faults.is_none() {
            self.faults.push((on.clone(), faults));
        }
        Response::Done(Done::changed(1))
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
            self.server.ready(self.now, &mut |request| self.fake.perform(request));
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
