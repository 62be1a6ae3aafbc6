// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real process, with few descriptors: connections that never say whose they are leave room for nodes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod common;

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::Node;
use telegraphos_wire::WindowLayout;
use telegraphos_wire::link::Frame;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_fabric_without_descriptors_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fabric");
    let mut process = Process(
        Command::new("sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" --listen \"$1\" --silence-ms 0"])
            .arg(env!("CARGO_BIN_EXE_telegraphos-fabric"))
            .arg(&path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    while UnixStream::connect(&path).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut zero = joined(&path, 0);
    let strangers: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let one = joined(&path, 1);
    zero.expect("node 1", |frame| matches!(frame, Frame::NodeUp { node: 1, .. }));
    assert!(process.0.try_wait().unwrap().is_none(), "it still runs");
    drop((strangers, one));
    zero.expect("the end of node 1", |frame| *frame == Frame::NodeDown { node: 1 });
}

fn joined(path: &std::path::Path, number: u16) -> Node {
    let mut node = Node::hello(path, number, WindowLayout::default(), 256);
    node.expect("a welcome", |frame| matches!(frame, Frame::Welcome { .. }));
    node
}
