// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes that others do for the program: threads of libc's (POSIX AIO), which do not call the functions that
//! are replaced. A connection that is used so is left alone; where it is framed already, they fail, as they do for
//! files that have none.

use crate::fail;
use crate::next::replaced;
use libc::{aiocb, c_int, sigevent};
use telegraphos_sockets::refuse;

/// Whether the operation's descriptor may be used so.
///
/// # Safety
///
/// It is an operation, or null.
unsafe fn may(operation: *const aiocb) -> bool {
    // SAFETY: as promised.
    let may = unsafe { operation.as_ref() }.is_none_or(|operation| refuse(operation.aio_fildes));
    if !may {
        fail(libc::EINVAL);
    }
    may
}

/// Functions of one operation.
macro_rules! operations {
    ($($name:ident),*) => { replaced! { $(
        fn $name(operation: *mut aiocb) -> c_int = |next| if may(operation) { next() } else { -1 };
    )* } };
}

// Both have the same structure on machines of 64 bits.
operations!(aio_read, aio_read64, aio_write, aio_write64);

/// Functions of a list of operations.
macro_rules! lists {
    ($($name:ident),*) => { replaced! { $(
        fn $name(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int = |next| {
            let may_all = (0..usize::try_from(count).unwrap_or(0)).all(|at| may(*list.add(at)));
            if may_all { next() } else { -1 }
        };
    )* } };
}

lists!(lio_listio, lio_listio64);
