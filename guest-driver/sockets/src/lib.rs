// SPDX-License-Identifier: MIT OR Apache-2.0
//! TCP connections between nodes whose long writes go through the memory of the other node (SPEC item 36): what
//! `libtelegraphos_preload.so` does in place of libc's functions.
//!
//! ```text
//!   table      descriptor -> connection, without locks        table.rs
//!   cell       what processes that share a connection share   cell.rs, lock.rs
//!   receive, send   in place of recvmsg and sendmsg           receive.rs, send.rs
//!   offer, accept   how a direction becomes framed            upgrade.rs
//!   adopt      what a program finds that exec has started     adopt.rs, memory.rs
//!   process    the board, settings                            process.rs, settings.rs
//!   copies     memory for copies, which may be unanswered     copies.rs
//!   signals    wait while a thread has locks                  signals.rs
//!   watch      whether the other end's node is there          watch.rs
//!   peer       the node at the other end                      peer.rs
//!   kernel     system calls                                   kernel.rs
//! ```
//!
//! A write of 8 KiB or more is copied by the board into a ring in the receiver's memory; then one byte of the
//! connection announces it.
//!
//! Connections stay the kernel's, with all that it decides: addresses, readiness, order, ends, failures. What is done
//! with a descriptor that was passed to no function here is left alone, as is every connection that is not TCP of IPv4
//! to another node over `tg0`, or over which little is sent.
//!
//! # How a direction becomes framed
//!
//! ```text
//!   sender                                            receiver
//!   has sent 4 MiB: exports "c" of the connection, control
//!                                                     has received 4 MiB: imports that; if there is one,
//!                                                     registers a ring, "r", says so in control,
//!                                                     and looks before it consumes from now on
//!   sees that at its next write: imports the ring,
//!   copies to its first word where frames begin,
//!   and writes frames from there on
//! ```
//!
//! The driver names both by the ends of the connection, so that only those who hold the two ends find each other.
//! The first word of the ring is there before the first frame is sent, so a receiver that looks at it behind the bytes
//! that it has peeked at knows whether frames are among them.
//!
//! # Processes
//!
//! After a fork both processes have the connection, and the state of its two directions, which is in shared memory.
//! The process in which a direction became framed has the windows. Others send in the connection what that one would
//! put into the ring. What is announced has arrived, so nothing depends on a ring any more when its owner ends. All
//! that may read a ring have its memory: it is made when the direction becomes framed, or before, when the process
//! forks. Where a process may read that does not have it, the direction is not framed.
//!
//! # Programs that are started
//!
//! The state of connections, and each ring, is a file in memory, whose descriptor stays open across `exec`, regardless
//! of the caller: `posix_spawn`, `system`, a child of `vfork`. A program that begins with such files looks for sockets
//! among its descriptors whose inodes they name, and is to these connections what a child after a fork is: it has no
//! windows, sends in the connection, and reads the ring of the program that was there before, for what has been
//! announced has arrived in that memory. The sender finds that ring full or gone. Nothing is done before `exec`, so
//! nothing is to be undone if it fails.

mod adopt;
mod answers;
mod board;
mod cell;
mod changes;
mod copies;
mod descriptors;
mod kernel;
mod lock;
mod memory;
mod peer;
mod process;
mod receive;
mod send;
mod settings;
mod signals;
mod table;
mod upgrade;
mod watch;

pub use changes::{forked, forking, is_own_descriptor, is_retired, retire, settle, user_has_changed};
pub use descriptors::is_tracked;
pub use kernel::{Errno, Outcome, close_range, get_descriptor, is_tcp, system_call};
pub use memory::inherited;
pub use process::is_this as is_this_process;
pub use receive::{available, receive};
pub use send::{send, send_file};
pub use table::{closed, duplicated, opened, option_of, refuse, revalidate, same_as, set_option_of, tracked_from};
