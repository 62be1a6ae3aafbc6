// SPDX-License-Identifier: MIT OR Apache-2.0
//! The round trip of a trunk between two fabric processes, whatever carries it: in the snapshot and for Prometheus,
//! positive from the start, and greater when the trunk is slow.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use crate::common::{command, udp_port};
use telegraphos_fabric::control::snapshot::{Snapshot, TrunkEnd};
use telegraphos_fabric::control::{ControlClient, FaultSpec, Request, Response, Target};
use telegraphos_testkit::{Daemon, eventually};

/// A fabric process, which ends with this.
struct Process {
    _daemon: Daemon,
    control: PathBuf,
    metrics: u16,
}

impl Process {
    fn start(dir: &Path, name: &str) -> Process {
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let control = dir.join(format!("{name}.control"));
        let mut command = command();
        // Often enough for a test: a probe each quarter of the silence.
        command.args(["--silence-ms", "4000", "--process", name, "--log", "warn"]);
        command.arg("--listen").arg(dir.join(name)).arg("--control").arg(&control);
        command.arg("--metrics").arg(metrics.to_string()).arg("--topology").arg(dir.join("topology.toml"));
        for (option, file) in [("--certificate", format!("{name}.pem")), ("--key", format!("{name}.key"))] {
            command.arg(option).arg(dir.join("keys").join(file));
        }
        command.arg("--peers-ca").arg(dir.join("keys/ca.pem"));
        Process { _daemon: Daemon::start(&mut command), control, metrics }
    }

    fn ask(&self, request: &Request) -> Option<Response> {
        ControlClient::connect(&self.control).ok()?.request(request).ok()
    }

    /// The one end of a trunk here, once it has a round trip.
    fn trunk(&self) -> Option<TrunkEnd> {
        let Response::Statistics(Snapshot { trunks, .. }) = self.ask(&Request::Statistics {})? else { return None };
        trunks.into_iter().find(|end| end.up && end.rtt_us.is_some())
    }

    fn scraped(&self) -> Option<f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let line = text.lines().find(|line| line.starts_with("telegraphos_trunk_round_trip_seconds{"))?;
        assert!(line.contains("trunk=\"l-r\""), "{line}");
        line.rsplit_once(' ')?.1.parse().ok()
    }
}

fn measured(transport: &str) {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    telegraphos_fabric::keys::new_cluster(&keys).unwrap();
    for name in ["left", "right"] {
        telegraphos_fabric::keys::new_process(&keys, name, 30).unwrap();
    }
    let at = match transport {
        "udp" | "quic" => format!("{transport}:127.0.0.1:{}", udp_port()),
        _ => format!("{transport}:{}", dir.path().join("trunk").display()),
    };
    let text = format!(
        "nodes = 2\n[[switch]]\nname = 'l'\nnodes = '0'\nprocess = 'left'\n[[switch]]\nname = 'r'\nnodes = '1'\nprocess = 'right'\n\
         [[trunk]]\nbetween = ['l', 'r']\nat = '{at}'\n"
    );
    std::fs::write(dir.path().join("topology.toml"), text).unwrap();
    let processes = ["left", "right"].map(|name| Process::start(dir.path(), name));
    for process in &processes {
        let end = eventually("a round trip", || process.trunk());
        assert_eq!(end.transport, transport);
        assert!(end.rtt_us > Some(0), "{end:?}");
        assert!(eventually("a metric", || process.scraped()) > 0.0);
    }
    // 30 ms each way, at one end: both measure 60 ms then.
    let faults: FaultSpec = serde_json::from_str("\"latency=30ms\"").unwrap();
    let slow = Request::SetFaults { on: Target::Trunk("l-r".into()), faults };
    assert!(matches!(processes[0].ask(&slow), Some(Response::Done(_))));
    for process in &processes {
        eventually("a longer round trip", || process.trunk().filter(|end| end.rtt_us > Some(20_000)));
        eventually("a greater metric", || process.scraped().filter(|seconds| *seconds > 0.02));
    }
}

#[test]
fn of_a_stream() {
    measured("unix");
}

#[test]
fn of_rings() {
    measured("ring");
}

#[test]
fn of_rdp_over_unix_datagrams() {
    measured("unix-datagram");
}

#[test]
fn of_rdp_over_udp() {
    measured("udp");
}

#[test]
fn of_quic() {
    measured("quic");
}
