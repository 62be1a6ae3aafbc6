// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server for `ivshmem-doorbell`, which Debian does not package: it hands out numbers, the shared memory and event
//! descriptors (QEMU's docs/specs/ivshmem-spec.rst, "Client-Server protocol"). Each message is a number of 8 bytes,
//! some with a descriptor.

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvFlags, SendFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use telegraphos_agent::bench::VECTORS;
use telegraphos_link::descriptors;

const VERSION: i64 = 0;
const MEMORY: i64 = -1;

/// A guest that is connected: its number is that of its node, since QEMUs are started in order.
struct Client {
    number: i64,
    stream: UnixStream,
    vectors: Vec<OwnedFd>,
}

fn send(stream: &UnixStream, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let (bytes, fds) = (number.to_le_bytes(), Vec::from_iter(fd));
    let sent = descriptors::send(stream.as_fd(), &bytes, &fds, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a message went only in part")) }
}

/// Serves clients for ever.
pub(super) fn serve(listener: &UnixListener, memory: &File) -> io::Result<()> {
    let mut clients: Vec<Client> = Vec::new();
    for stream in listener.incoming() {
        let stream = stream?;
        // Clients that have gone are removed only here, before the others get a message about the new one.
        clients.retain(|client| alive(&client.stream));
        let number = (0..).find(|number| clients.iter().all(|client| client.number != *number)).unwrap_or(0);
        match introduce(stream, number, memory, &clients) {
            Ok(client) => clients.push(client),
            Err(e) => eprintln!("ivshmem client {number}: {e}"),
        }
    }
    Ok(())
}

fn alive(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    // It never sends: it is there, or it has closed.
    !matches!(rustix::net::recv(stream, &mut [0_u8; 1], flags), Ok((_, 0)))
}

/// Tells the newcomer about itself and the others, and the others about it.
fn introduce(stream: UnixStream, number: i64, memory: &File, others: &[Client]) -> io::Result<Client> {
    let vector = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let vectors = VECTORS.iter().map(vector).collect::<Result<Vec<_>, _>>()?;
    send(&stream, VERSION, None)?;
    send(&stream, number, None)?;
    send(&stream, MEMORY, Some(memory.as_fd()))?;
    for other in others {
        other.vectors.iter().try_for_each(|fd| send(&stream, other.number, Some(fd.as_fd())))?;
        vectors.iter().try_for_each(|fd| send(&other.stream, number, Some(fd.as_fd())))?;
    }
    vectors.iter().try_for_each(|fd| send(&stream, number, Some(fd.as_fd())))?;
    Ok(Client { number, stream, vectors })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(stream: &UnixStream) -> (i64, usize) {
        let mut bytes = [0; 8];
        let (got, fds) = descriptors::receive(stream.as_fd(), &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!(got, 8);
        (i64::from_le_bytes(bytes), fds.unwrap().len())
    }

    #[test]
    fn clients_learn_of_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("doorbell");
        let listener = UnixListener::bind(&path).unwrap();
        let memory = tempfile::tempfile().unwrap();
        std::thread::spawn(move || serve(&listener, &memory));
        let messages = |stream: &UnixStream, count| (0..count).map(|_| receive(stream)).collect::<Vec<_>>();
        let first = UnixStream::connect(&path).unwrap();
        assert_eq!(messages(&first, 5), [(0, 0), (0, 0), (-1, 1), (0, 1), (0, 1)]);
        let second = UnixStream::connect(&path).unwrap();
        assert_eq!(messages(&second, 7), [(0, 0), (1, 0), (-1, 1), (0, 1), (0, 1), (1, 1), (1, 1)]);
        assert_eq!(messages(&first, 2), [(1, 1), (1, 1)]);
        // A number is free again when its guest has gone.
        drop(first);
        let third = UnixStream::connect(&path).unwrap();
        assert_eq!(messages(&third, 3), [(0, 0), (0, 0), (-1, 1)]);
    }
}
