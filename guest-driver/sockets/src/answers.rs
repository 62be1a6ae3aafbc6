// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the other end of a connection answers, as the kernel and the board see it.

use crate::board::Fault;
use crate::process::board;
use crate::table::Connection;
use crate::{kernel, signals};
use libc::c_int;
use telegraphos::{Error, Status};

/// Of the memory of either end for the other: what is written there says nothing.
const PROBE: u64 = 128;

/// `struct tcp_info`, of which two numbers are of interest.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct TcpInfo {
    before: [u64; 15],
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
}

/// What the kernel says of a connection.
pub(crate) fn info(fd: c_int) -> Option<TcpInfo> {
    kernel::option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
}

/// Bytes that the other end's kernel has acknowledged.
pub(crate) fn acknowledged(fd: c_int) -> Option<u64> {
    info(fd).map(|info| info.bytes_acked)
}

/// A record could not be written: if the receiver's node does not answer, the kernel is to end the connection within
/// eight seconds where data is sent, too. Not before: the same limit would end a connection whose receiver is only slow
/// to read.
pub(crate) fn suspect(fd: c_int, fault: &Fault) {
    const MILLISECONDS: c_int = 8000;
    // The receiver's process has ended, or its program has been replaced; its node is there, and answers.
    let ended = [Status::Stale, Status::NotGranted, Status::NoSegment];
    if !matches!(fault, Fault::Failed(Error::Failed { status, .. }) if ended.contains(status)) {
        // What the program has set itself is its own.
        if kernel::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) == Ok(0) {
            let _ = kernel::set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, MILLISECONDS);
        }
    }
}

/// Asks by the board whether the node at the other end is there, of a connection that has a window to it.
pub(crate) fn probe(fd: c_int, connection: &Connection) {
    let _signals = signals::wait();
    let parts = connection.parts();
    let (Some(board), Some(theirs)) = (board(), parts.ring.as_ref().or(parts.own_control.as_ref())) else { return };
    match board.put(theirs, PROBE, 0) {
        Ok(()) | Err(Fault::Busy) => {}
        Err(fault) => suspect(fd, &fault),
    }
}
