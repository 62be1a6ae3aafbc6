// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statuses of the board, as errnos.

use rustix::io::Errno;
use telegraphos_wire::Status;

/// The errno of each status, as the driver maps them; of several statuses with one errno, `status_of` gives the first.
const ERRNOS: &[(Status, Errno)] = &[
    (Status::Denied, Errno::ACCESS),
    (Status::Rights, Errno::ACCESS),
    (Status::NotGranted, Errno::ACCESS),
    (Status::Unmapped, Errno::NXIO),
    (Status::Stale, Errno::STALE),
    (Status::NodeDown, Errno::HOSTUNREACH),
    (Status::LinkDown, Errno::NETDOWN),
    (Status::Timeout, Errno::TIMEDOUT),
    (Status::BadNode, Errno::INVAL),
    (Status::Invalid, Errno::INVAL),
    (Status::PrivateMemory, Errno::OPNOTSUPP),
    (Status::MemoryFault, Errno::FAULT),
    (Status::NoSegment, Errno::NOENT),
    (Status::Busy, Errno::BUSY),
    (Status::NoSpace, Errno::NOSPC),
    (Status::NameTaken, Errno::EXIST),
    (Status::BadKey, Errno::KEYREJECTED),
    (Status::Length, Errno::MSGSIZE),
    (Status::NotLocal, Errno::XDEV),
    (Status::Overlap, Errno::INVAL),
    (Status::Argument, Errno::INVAL),
    (Status::QueueHeader, Errno::IO),
    (Status::NotQueue, Errno::INVAL),
    (Status::NoHold, Errno::NOSPC),
    (Status::Moving, Errno::BUSY),
    (Status::BadName, Errno::INVAL),
];

/// The errno of a status, 0 for [`Status::Ok`]; EREMOTEIO for a status without one.
///
/// ```
/// use telegraphos::{Status, errno_of};
///
/// assert_eq!(errno_of(Status::Ok), 0);
/// assert_eq!(errno_of(Status::NoSegment), 2); // ENOENT
/// ```
pub fn errno_of(status: Status) -> i32 {
    if status.is_ok() {
        return 0;
    }
    ERRNOS.iter().find(|(s, _)| *s == status).map_or(Errno::REMOTEIO, |(_, errno)| *errno).raw_os_error()
}

/// The board's reason behind an errno of the driver.
pub(crate) fn status_of(errno: Errno) -> Option<Status> {
    ERRNOS.iter().find(|(_, e)| *e == errno).map(|(status, _)| *status)
}
