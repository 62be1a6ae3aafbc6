// SPDX-License-Identifier: MIT OR Apache-2.0
//! A host in a thread of a test, and guests of its boards.

use std::path::Path;

use telegraphos_device::HibServer;
use telegraphos_device::direct::MemoryServer;
use telegraphos_device_client::{Client, Guest};
use telegraphos_fabric::Fabric;
use telegraphos_host::{Host, HostError, Serving};
use telegraphos_testkit::Served;

pub(crate) fn served(
    fabric: Fabric,
    boards: Vec<(u16, HibServer)>,
    memories: Vec<MemoryServer>,
    serving: Serving,
) -> Served<HostError> {
    let stop = fabric.shutdown_handle();
    Served::start(move || stop.shut_down(), move || Host::with(fabric, boards, memories, serving)?.run())
}

/// A guest of the board at this socket, once that has joined the fabric, with context 0 open.
pub(crate) fn guest(socket: &Path) -> Guest {
    let mut guest = Guest::boot(Client::new(socket).unwrap()).unwrap();
    guest.join().unwrap();
    guest.open_context(0).unwrap();
    guest
}
