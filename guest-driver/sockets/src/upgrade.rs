// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a direction becomes framed: see the crate.

use crate::answers::info;
use crate::board::Fault;
use crate::cell::phase;
use crate::kernel::{self, Errno, Outcome};
use crate::lock::Broken;
use crate::memory::RING;
use crate::peer;
use crate::process::board;
use crate::settings::{say, settings};
use crate::signals;
use crate::table::Connection;
use crate::watch;
use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use telegraphos::{Error, Rights};
use telegraphos_sockets_core::{Incoming, Outgoing};

/// Of the sender's memory: the size of the receiver's ring, once there is one.
const READY: u64 = 0;
/// Of the sender's memory: up to where the receiver has read the ring.
pub(crate) const READ: u64 = 64;

/// Bytes of the sender's memory.
const CONTROL: u64 = 4096;
/// A window is stored to, and copied to.
const COPY: Rights = Rights(Rights::WRITE.0 | Rights::DMA.0);

/// What the kernel has counted of a connection that was sent, and read; `None` if that changes all the time.
fn counted(fd: c_int) -> Option<(u64, u64)> {
    let waiting = |count: Result<usize, _>| count.unwrap_or(0) as u64;
    let mut before = info(fd)?;
    // Two questions are not one: bytes that arrive, or are acknowledged, in between would be missing.
    for _ in 0..100 {
        let (unacknowledged, unread) = (waiting(kernel::unacknowledged(fd)), waiting(kernel::unread(fd)));
        let after = info(fd)?;
        if (before.bytes_acked, before.bytes_received) == (after.bytes_acked, after.bytes_received) {
            return Some((after.bytes_acked + unacknowledged, after.bytes_received.saturating_sub(unread)));
        }
        before = after;
    }
    None
}

/// Whether the kernel has counted as many bytes: else some have passed us by, by system calls that are not libc's.
fn counts_agree(fd: c_int, sent: Option<u64>, received: Option<u64>) -> bool {
    let Some(kernels) = counted(fd) else {
        say(format_args!("descriptor {fd}: left alone, since what the kernel counts changes all the time"));
        return false;
    };
    // The kernel counts the beginning, or the end, of a direction as one, sometimes.
    let agree =
        |kernels: u64, ours: Option<u64>| ours.is_none_or(|ours| kernels == ours || kernels == ours.wrapping_add(1));
    let agree = agree(kernels.0, sent) && agree(kernels.1, received);
    if !agree {
        let (what, ours, kernels) = match (sent, received) {
            (Some(sent), _) => ("sent", sent, kernels.0),
            (None, received) => ("received", received.unwrap_or(0), kernels.1),
        };
        say(format_args!("descriptor {fd}: left alone, since the kernel counts {kernels} bytes {what}, and we {ours}"));
    }
    agree
}

/// Whether a descriptor is the connection's still, and no option of it, which may have been set before it was one, or
/// come from the socket that listens, makes the kernel count its bytes, or pass them in another way.
fn may_be_framed(fd: c_int, connection: &Connection) -> bool {
    const TCP_ULP: c_int = 31;
    if !connection.is_of_descriptor(fd) {
        return false;
    }
    let is = |name, usual: c_int| kernel::option::<c_int>(fd, libc::SOL_SOCKET, name).is_ok_and(|it| it != usual);
    let protocol = || kernel::option::<[u8; 16]>(fd, libc::IPPROTO_TCP, TCP_ULP).is_ok_and(|name| name[0] != 0);
    let bypasses = is(libc::SO_RCVLOWAT, 1)
        || is(libc::SO_PEEK_OFF, -1)
        || is(libc::SO_OOBINLINE, 0)
        || is(libc::SO_ZEROCOPY, 0)
        || protocol();
    if bypasses {
        connection.refused.store(1, Ordering::SeqCst);
        say(format_args!("descriptor {fd}: left alone, since options are set by which the kernel counts its bytes"));
    }
    !bypasses
}

fn report(fd: c_int, what: &str, error: &Error) {
    say(format_args!("descriptor {fd}: {what}: {error}"));
}

/// A sender that has sent enough says so to the receiver: by memory for what that may have to say.
pub(crate) fn offer(fd: c_int, connection: &Connection) {
    if connection.output.phase() != phase::RAW || connection.is_refused() || !connection.output.is_time() {
        return;
    }
    let _signals = signals::wait();
    if !may_be_framed(fd, connection) {
        return;
    }
    let mut parts = connection.parts();
    let Some(change) = connection.output.change(phase::RAW) else { return };
    let Some(node) = peer::node_of(fd) else { return };
    let Some(board) = board() else { return };
    if !counts_agree(fd, Some(connection.output.bytes()), None) {
        return;
    }
    match board.node.export("c", CONTROL).connection(fd).mode(0o602).nodes(&[node]).create() {
        Ok(control) => {
            connection.look_at(&control);
            parts.control = Some(control);
            change.to(phase::OFFERED);
        }
        Err(error) => report(fd, "nothing offered", &error),
    }
}

/// A receiver that has received enough looks for a sender that has offered, and makes a ring for it.
pub(crate) fn accept(fd: c_int, connection: &Connection) {
    if connection.input.phase() != phase::RAW || connection.is_refused() || !connection.input.is_time() {
        return;
    }
    let _signals = signals::wait();
    if !may_be_framed(fd, connection) {
        return;
    }
    let mut parts = connection.parts();
    let Some(mut change) = connection.input.change(phase::RAW) else { return };
    // `refuse` looks the other way round.
    if connection.is_refused() {
        return;
    }
    let Some(node) = peer::node_of(fd) else { return };
    if connection.is_bare() {
        return say(format_args!("descriptor {fd}: what is read is left alone, since a process has no ring for it"));
    }
    let Some(board) = board() else { return };
    if !counts_agree(fd, None, Some(connection.input.bytes())) {
        return;
    }
    let control = match board.node.import(node, "c").connection(fd).rights(COPY).soft().open() {
        Ok(control) => control,
        // Not yet, perhaps.
        Err(_) => return change.to(phase::RAW),
    };
    // It may have been made before, as one of another program with other settings.
    let Some(memory) = connection.ring_memory() else { return };
    let register = |size: u64| {
        let bytes = RING + size as usize;
        if bytes > memory.len() {
            return None;
        }
        let memory = std::ptr::slice_from_raw_parts_mut(memory.cast::<u8>(), bytes);
        // SAFETY: nothing else accesses it but this direction, which looks at what has arrived; it is unmapped
        // behind the registration's end.
        let ring = unsafe { board.node.register(memory) }.name("r").connection(fd).mode(0o602).nodes(&[node]).create();
        Some(ring.map(|ring| (ring, size)))
    };
    let ring = match register(memory.len() as u64 - RING as u64) {
        Some(Err(_)) => register(settings().small_ring()),
        ring => ring,
    };
    let Some(ring) = ring else { return };
    match ring {
        Ok((ring, size)) => {
            let Some(incoming) = Incoming::new(size) else { return };
            // A program has begun meanwhile that has no ring.
            if connection.is_bare() {
                return;
            }
            change.locked.incoming = incoming;
            keep_alive(fd, connection);
            let told = control.put(READY, size);
            (parts.own_ring, parts.own_control) = (Some(ring), Some(control));
            // Even if that has failed: the sender may have it.
            change.to(phase::OFFERED);
            drop(parts);
            watch::start();
            if let Err(error) = told {
                report(fd, "the sender does not hear of a ring", &error);
            }
        }
        Err(error) => report(fd, "no ring", &error),
    }
}

/// The state of a direction cannot be had. The connection is ended, if it is not another process's alone.
pub(crate) fn not_locked(fd: c_int, why: Broken) -> Outcome {
    match why {
        Broken::Left => Err(Errno(libc::ECONNRESET)),
        why => broken(fd, &why.to_string()),
    }
}

/// Ends a connection that cannot be understood.
pub(crate) fn broken(fd: c_int, why: &str) -> Outcome {
    say(format_args!("descriptor {fd}: {why}; the connection is ended"));
    kernel::shut_down(fd);
    Err(Errno(libc::ECONNRESET))
}

/// A sender whose receiver has a ring sends frames from here on.
pub(crate) fn frame(fd: c_int, connection: &Connection) {
    let size = connection.ready();
    if size == 0 || connection.output.phase() != phase::OFFERED || connection.is_refused() {
        return;
    }
    let _signals = signals::wait();
    if !may_be_framed(fd, connection) {
        return;
    }
    let mut parts = connection.parts();
    let Some(mut change) = connection.output.change(phase::OFFERED) else { return };
    // `refuse` looks the other way round.
    if connection.is_refused() {
        return;
    }
    let (Some(node), Some(board), Some(outgoing)) = (peer::node_of(fd), board(), Outgoing::new(size)) else { return };
    let begins = connection.output.bytes();
    if !counts_agree(fd, Some(begins), None) {
        return;
    }
    let ring = match board.node.import(node, "r").connection(fd).rights(COPY).soft().open() {
        Ok(ring) if ring.size() == RING as u64 + size => ring,
        Ok(ring) => return say(format_args!("descriptor {fd}: a ring of {} bytes, {size} announced", ring.size())),
        Err(error) => return report(fd, "no way to the ring", &error),
    };
    match board.put(&ring, 0, begins.wrapping_add(1)) {
        Ok(()) => {
            say(format_args!(
                "descriptor {fd}: long writes go through the memory of node {node} from byte {begins} on"
            ));
            change.locked.outgoing = outgoing;
            parts.ring = Some(ring);
            limit_buffer(fd, connection);
            hurry(fd, connection);
            keep_alive(fd, connection);
            change.to(phase::FRAMED);
            drop(parts);
            watch::start();
        }
        // Nothing was copied.
        Err(Fault::Busy) => change.to(phase::OFFERED),
        Err(Fault::Silent) => board.close(ring, false),
        // It may be there, or come: nothing more can be said that will be understood.
        Err(fault) => {
            say(format_args!(
                "descriptor {fd}: the receiver cannot be notified of frames, the connection is ended: {fault}"
            ));
            kernel::shut_down(fd);
            board.close(ring, false);
        }
    }
}

/// The kernel's buffer holds little from now on, since the ring is another, and faster. The program sees the old size.
fn limit_buffer(fd: c_int, connection: &Connection) {
    const BUFFER: c_int = 32 << 10;
    // The kernel doubles what it is given.
    change_option(fd, (libc::SOL_SOCKET, libc::SO_SNDBUF), BUFFER, |size| size > 2 * BUFFER, &connection.send_buffer);
}

/// The kernel sends the byte that announces a record at once, not when the one before has been acknowledged.
fn hurry(fd: c_int, connection: &Connection) {
    change_option(fd, (libc::IPPROTO_TCP, libc::TCP_NODELAY), 1, |on| on == 0, &connection.no_delay);
}

/// The kernel asks whether the other end is there where nothing is sent, and ends the connection after 30 seconds
/// without an answer: the other node may have been switched off. One that is stopped for a while, by a debugger or for
/// a snapshot, does not answer either.
fn keep_alive(fd: c_int, connection: &Connection) {
    let options = [(libc::TCP_KEEPIDLE, 5), (libc::TCP_KEEPINTVL, 5), (libc::TCP_KEEPCNT, 5)];
    if change_option(fd, (libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1, |on| on == 0, &connection.keepalive) {
        for (name, value) in options {
            // What the program has set itself is its own.
            let _ = kernel::set_option(fd, libc::IPPROTO_TCP, name, value);
        }
    }
}

/// Changes an option of the socket's if it is as expected, and keeps what the program knows.
fn change_option(
    fd: c_int,
    (level, name): (c_int, c_int),
    to: c_int,
    if_it: impl FnOnce(c_int) -> bool,
    known: &AtomicU32,
) -> bool {
    let Ok(before) = kernel::option::<c_int>(fd, level, name) else { return false };
    let changed = if_it(before) && kernel::set_option(fd, level, name, to).is_ok();
    if changed {
        known.store(u32::try_from(before).unwrap_or(0) + 1, Ordering::Relaxed);
    }
    changed
}
