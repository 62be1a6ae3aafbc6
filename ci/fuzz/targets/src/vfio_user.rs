// SPDX-License-Identifier: MIT OR Apache-2.0

use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use telegraphos_device::Board;
use telegraphos_device::vfio::message::{HEADER_LEN, Header};
use telegraphos_device::vfio::{Connection, Filled, Session};
use telegraphos_device_core::{Event, HibConfig};

use crate::hib::small;
use crate::input::Input;

/// Bytes of one input at most: what a socket takes without waiting.
const LONGEST: usize = 64 << 10;
/// Set in the first word: each piece carries a file.
const WITH_FILES: u16 = 1 << 15;
/// Bytes of that file.
const FILE: u64 = 64 << 10;
/// Most bytes of guest memory that may be mapped.
const DMA_LIMIT: u64 = 1 << 30;

/// A client's stream over a real socket, through session and board. Its first word (2 bytes, little-endian) says in
/// pieces of how many bytes the rest comes, 0 for all at once, and with bit 15 that each of them carries a file.
///
/// Each reply is a whole message, and no load waits beyond its limit.
pub fn vfio_user(data: &[u8]) {
    let mut input = Input(&data[..data.len().min(LONGEST)]);
    let first = input.u16();
    // Not more pieces than that, each of which is a system call or two.
    let piece = match usize::from(first & !WITH_FILES) {
        0 => LONGEST,
        length => length.max(input.0.len() / 64),
    };
    let Ok((server, client)) = UnixStream::pair() else { return };
    let file = if first & WITH_FILES != 0 { guest_memory() } else { None };
    if client.set_nonblocking(true).is_err() {
        return;
    }
    let mut session = Session::new();
    let mut config: HibConfig = small(0);
    config.load_limit = 1000;
    let mut served = Served {
        connection: Connection::new(server.into()),
        board: Board::new(config, DMA_LIMIT),
        client,
        said: Vec::new(),
    };
    let mut open = true;
    while open && !input.is_empty() {
        send(&served.client, input.bytes(piece), file.as_ref());
        open = served.serve(&mut session);
    }
    served.board.tick(1_000_000);
    served.answer(&mut session);
    served.board.feed(Event::IntakeDry);
    if open {
        whole_messages(&served.said);
    }
    session.end();
    served.board.client_gone();
}

struct Served {
    connection: Connection,
    board: Board,
    client: UnixStream,
    said: Vec<u8>,
}

impl Served {
    /// Takes what is there; whether the stream can continue.
    fn serve(&mut self, session: &mut Session) -> bool {
        loop {
            match self.connection.fill() {
                Ok(Filled::Bytes { .. }) => {}
                Ok(Filled::Empty) => return true,
                Ok(Filled::Closed) | Err(_) => return false,
            }
            loop {
                let Connection { input, output, .. } = &mut self.connection;
                match input.message() {
                    Ok(Some(message)) => drop(session.handle(message, &mut self.board, output)),
                    Ok(None) => break,
                    Err(_) => return false,
                }
                self.answer(session);
            }
        }
    }

    /// Completes loads and reads the replies.
    fn answer(&mut self, session: &mut Session) {
        self.board.turn();
        for (token, value) in self.board.take_completed() {
            session.complete(token, value, &mut self.connection.output);
        }
        while !self.connection.output.is_empty() {
            if self.connection.flush().is_err() {
                return;
            }
            let mut bytes = [0; 4096];
            loop {
                match self.client.read(&mut bytes) {
                    Ok(0) => return,
                    Ok(count) => self.said.extend_from_slice(&bytes[..count]),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        }
    }
}

fn guest_memory() -> Option<OwnedFd> {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, FILE).ok()?;
    Some(file)
}

fn send(client: &UnixStream, bytes: &[u8], file: Option<&OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    // All before has been taken, so that all of it fits.
    let _ = sendmsg(client, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn whole_messages(mut said: &[u8]) {
    while !said.is_empty() {
        assert!(said.len() >= HEADER_LEN, "{} bytes of replies are left", said.len());
        let header: Header = bytemuck::pod_read_unaligned(&said[..HEADER_LEN]);
        assert!((HEADER_LEN..=said.len()).contains(&(header.size as usize)), "{header:?} before {} bytes", said.len());
        said = &said[header.size as usize..];
    }
}
