// SPDX-License-Identifier: MIT OR Apache-2.0
//! What it takes to hand over a message: by the layer of messages, and by the system's sockets over `tg0`.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;
use telegraphos::Node;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::mark;
use telegraphos_msg::{Config, Endpoint, Messages, Options, Pattern, Progress, Thread};

/// Of `tg-net serve`.
const PORT: u16 = 7700;
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: usize = 8;
const LONGER: usize = 1024;

/// A process that sends messages back (`tg-msg echo`), and one that sends bytes back (`tg-net serve`).
pub(crate) struct Layers {
    messages: Messages,
    to: Endpoint,
    socket: TcpStream,
}

fn refused(error: &dyn std::fmt::Display) -> Failure {
    Failure::Refused(error.to_string())
}

impl Layers {
    pub(crate) fn of(node: u16, name: &str, address: Ipv4Addr) -> Outcome<Layers> {
        // No thread of this process looks for answers while something is counted.
        let options = Options { progress: Progress::Blocking, ..Config::default().into() };
        let messages = Messages::open(Node::open()?, options).map_err(|e| refused(&e))?;
        let process = messages.find(node, name).map_err(|e| refused(&e))?;
        let connected = TcpStream::connect_timeout(&SocketAddr::from((address, PORT)), PATIENCE);
        let mut socket = connected.map_err(|e| refused(&e))?;
        let ready = socket.set_nodelay(true).and_then(|()| socket.set_read_timeout(Some(PATIENCE)));
        // All that comes after it is sent back.
        ready.and_then(|()| socket.write_all(b"e--------")).map_err(|e| refused(&e))?;
        Ok(Layers { messages, to: Endpoint { process, thread: 1 }, socket })
    }

    pub(crate) fn all(&mut self) -> Outcome<()> {
        let thread = self.messages.thread(1).map_err(|e| refused(&e))?;
        message::<24>(&thread, self.to, SHORT)?;
        message::<25>(&thread, self.to, LONGER)?;
        drop(thread);
        bytes::<26>(&mut self.socket, SHORT)?;
        bytes::<27>(&mut self.socket, LONGER)
    }
}

fn message<const REGION: u16>(thread: &Thread<'_>, to: Endpoint, length: usize) -> Outcome<()> {
    let (bytes, mut back) = (vec![7; length], vec![0; length]);
    mark::begin::<REGION>();
    let sent = thread.send_copy(to, 0, &bytes);
    mark::end::<REGION>();
    sent.map_err(|e| refused(&e))?.wait().outcome.map_err(|e| refused(&e))?;
    thread.receive_timeout(Pattern::exactly(to, 0), &mut back, PATIENCE).map_err(|e| refused(&e))?;
    Ok(())
}

fn bytes<const REGION: u16>(socket: &mut TcpStream, length: usize) -> Outcome<()> {
    let (bytes, mut back) = (vec![7; length], vec![0; length]);
    mark::begin::<REGION>();
    let sent = socket.write(&bytes);
    mark::end::<REGION>();
    let sent = sent.map_err(|e| refused(&e))?;
    if sent != length {
        return Err(Failure::Refused(format!("a socket took {sent} of {length} bytes at once")));
    }
    socket.read_exact(&mut back).map_err(|e| refused(&e))
}
