// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error messages.

use crate::Status;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static LAST_STATUS: Cell<Status> = const { Cell::new(Status::Ok) };
    /// The errno of the last failure.
    static LAST_ERRNO: Cell<c_int> = const { Cell::new(0) };
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static ERROR_TEXT: RefCell<CString> = RefCell::default();
}

/// Text for C; a zero byte, which no message contains, would end it.
fn c_text(text: String) -> CString {
    let bytes: Vec<u8> = text.into_bytes().into_iter().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Keeps why a function has failed.
pub(super) fn keep(text: String, errno: c_int, status: Option<Status>) {
    LAST_STATUS.set(status.unwrap_or(Status::Ok));
    LAST_ERRNO.set(errno);
    LAST_ERROR.with(|last| *last.borrow_mut() = c_text(text));
}

c_functions! { ERRORS;
    /// Orders all earlier accesses of this thread before all later ones. It does not wait for them, as tg_quiet does.
    fn tg_fence() -> () = crate::fence();

    /// The meaning of a result, positive or negative. An errno can be the board's or the system's (EACCES of a refused
    /// import, or of the device file): of the thread's last failure it is what that was. Valid until the thread's next
    /// call of this function.
    fn tg_strerror(error: c_int) -> *const c_char = {
        // Linux has no larger errno.
        let text = match i32::try_from(error.unsigned_abs()) {
            Ok(0) => "Done.".to_owned(),
            Ok(errno @ 1..4096) => {
                let os = std::io::Error::from_raw_os_error(errno);
                let last = (LAST_ERRNO.get() == errno).then(|| Some(LAST_STATUS.get()).filter(|status| !status.is_ok()));
                match last.unwrap_or_else(|| crate::error::status_of(Errno::from_raw_os_error(errno))) {
                    Some(status) => format!("{} ({os})", status.describe()),
                    None => os.to_string(),
                }
            }
            _ => format!("{error} is no errno."),
        };
        ERROR_TEXT.with(|last| {
            *last.borrow_mut() = c_text(text);
            last.borrow().as_ptr()
        })
    };

    /// The board's reason for the last failure in this thread: TG_ERR_*, or TG_OK if the board was not the reason.
    fn tg_last_status() -> c_int = LAST_STATUS.get() as c_int;

    /// The message of the last failure in this thread, with what to do. Valid until the thread's next call that fails.
    fn tg_last_error() -> *const c_char = LAST_ERROR.with(|last| last.borrow().as_ptr());
}
