// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric and the boards at it, each in a thread of its own.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use telegraphos_device::{Config, HibServer, ServeError, Settings, ShutdownHandle};
use telegraphos_fabric::{Fabric, FabricError};
use telegraphos_testkit::eventually;
use telegraphos_wire::regs::{self, Register};

use super::Guest;

/// A fabric in a thread of its own.
pub struct Switch {
    stop: telegraphos_fabric::ShutdownHandle,
    thread: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Switch {
    pub fn start(path: &Path) -> Switch {
        Switch::with(telegraphos_fabric::Config::new(path))
    }

    pub fn with(config: telegraphos_fabric::Config) -> Switch {
        let fabric = Fabric::bind(config).unwrap();
        let stop = fabric.shutdown_handle();
        Switch { stop, thread: Some(std::thread::spawn(move || fabric.run())) }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.shut_down();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// A board in a thread of its own.
pub struct Node {
    pub socket: PathBuf,
    stop: ShutdownHandle,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Node {
    pub fn start(dir: &Path, node: u16, settings: Settings) -> Node {
        let config = Node::config(dir, node, settings);
        let socket = config.socket.clone();
        let mut server = HibServer::bind(config).unwrap();
        let stop = server.shutdown_handle();
        Node { socket, stop, thread: Some(std::thread::spawn(move || server.run())) }
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

    pub fn ended(mut self) -> Result<(), ServeError> {
        self.thread.take().unwrap().join().expect("the server panicked")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.shut_down();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// A guest of the board at `socket`, once that has joined the fabric, with context 0 open.
pub fn joined(socket: &Path) -> Guest {
    let mut guest = Guest::boot(socket);
    let linked = |guest: &mut Guest| guest.client.register(Register::StatusBits) & regs::STATUS_LINK_UP != 0;
    eventually("joining of the fabric", || linked(&mut guest).then_some(()));
    guest.open_context(0);
    guest
}
