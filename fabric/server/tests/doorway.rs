// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real process, with few descriptors: unidentified connections leave room for nodes.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::Node;
use telegraphos_testkit::{Daemon, eventually};
use telegraphos_wire::WindowLayout;
use telegraphos_wire::link::Frame;

#[test]
fn a_fabric_without_descriptors_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fabric");
    let mut process = Daemon::start(
        Command::new("sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" --listen \"$1\" --silence-ms 0"])
            .arg(env!("CARGO_BIN_EXE_telegraphos-fabric"))
            .arg(&path)
            .stderr(Stdio::null()),
    );
    eventually("the socket", || UnixStream::connect(&path).ok());
    let mut zero = joined(&path, 0);
    let unidentified: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let one = joined(&path, 1);
    zero.expect("node 1", |frame| matches!(frame, Frame::NodeUp { node: 1, .. }));
    assert!(process.try_wait().unwrap().is_none(), "it still runs");
    drop((unidentified, one));
    zero.expect("the end of node 1", |frame| *frame == Frame::NodeDown { node: 1 });
}

fn joined(path: &std::path::Path, number: u16) -> Node {
    let mut node = Node::hello(path, number, WindowLayout::default(), 256);
    node.expect("a welcome", |frame| matches!(frame, Frame::Welcome { .. }));
    node
}
