// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric and the boards at it, each in a thread of its own.

use std::path::{Path, PathBuf};

use telegraphos_device::{Config, HibServer, ServeError, Settings};
use telegraphos_fabric::{Fabric, FabricError};
use telegraphos_testkit::{Served, eventually};
use telegraphos_wire::regs::{self, Register};

use super::Guest;

/// A fabric in a thread of its own.
pub struct Switch(#[allow(dead_code, reason = "it is to be dropped")] Served<FabricError>);

impl Switch {
    /// The fabric of the boards that have their sockets in this directory.
    pub fn start(dir: &Path) -> Switch {
        Switch::with(telegraphos_fabric::Config::new(dir.join("fabric.sock")))
    }

    pub fn with(config: telegraphos_fabric::Config) -> Switch {
        let fabric = Fabric::bind(config).unwrap();
        let stop = fabric.shutdown_handle();
        Switch(Served::start(move || stop.shut_down(), move || fabric.run()))
    }
}

/// A board in a thread of its own.
pub struct Node {
    pub socket: PathBuf,
    served: Served<ServeError>,
}

impl Node {
    pub fn start(dir: &Path, node: u16, settings: Settings) -> Node {
        Node::with(Node::config(dir, node, settings), || {})
    }

    /// With something that its thread does first.
    pub fn with(config: Config, first: impl FnOnce() + Send + 'static) -> Node {
        let socket = config.socket.clone();
        let mut server = HibServer::bind(config).unwrap();
        let stop = server.shutdown_handle();
        let run = move || {
            first();
            server.run()
        };
        Node { socket, served: Served::start(move || stop.shut_down(), run) }
    }

    pub fn config(dir: &Path, node: u16, settings: Settings) -> Config {
        let defaults = Settings {
            socket: Some(dir.join(format!("hib{node}.sock"))),
            node: Some(node),
            fabric: Some(dir.join("fabric.sock")),
            ..Settings::default()
        };
        settings.over(defaults).config().unwrap()
    }

    /// A guest whose board has joined the fabric.
    pub fn guest(&self) -> Guest {
        joined(&self.socket)
    }

    /// Stops it and returns its result.
    pub fn stop(self) -> Result<(), ServeError> {
        self.served.stop()
    }

    /// Waits until it ends by itself.
    pub fn ended(self) -> Result<(), ServeError> {
        self.served.ended()
    }
}

/// A guest of the board at `socket`, once that has joined the fabric, with context 0 open.
pub fn joined(socket: &Path) -> Guest {
    let mut guest = Guest::boot(socket);
    eventually("joining of the fabric", || is_linked(&mut guest).then_some(()));
    guest.open_context(0);
    guest
}

/// Whether a guest's board has joined the fabric.
pub fn is_linked(guest: &mut Guest) -> bool {
    guest.client.register(Register::StatusBits) & regs::STATUS_LINK_UP != 0
}

/// A fabric, boards 0 and 1 at it, and their guests.
pub struct Pair {
    pub a: Guest,
    pub b: Guest,
    pub nodes: [Node; 2],
    pub switch: Switch,
    pub dir: tempfile::TempDir,
}

impl Pair {
    pub fn start() -> Pair {
        Pair::with(|_| {})
    }

    /// With a change to the fabric's configuration.
    pub fn with(change: impl FnOnce(&mut telegraphos_fabric::Config)) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        let mut config = telegraphos_fabric::Config::new(dir.path().join("fabric.sock"));
        change(&mut config);
        let switch = Switch::with(config);
        let nodes = [0, 1].map(|node| Node::start(dir.path(), node, Settings::default()));
        Pair { a: nodes[0].guest(), b: nodes[1].guest(), nodes, switch, dir }
    }
}
