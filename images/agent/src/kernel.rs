// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors that a guest's kernel reports in its log: an oops, `BUG:`, what its sanitisers find.
//!
//! Each record of `/dev/kmsg` says whose words it has: those of the kernel have facility 0, which no process can give
//! to its own. So a program that writes "Oops: ..." there or onto the console is none, and how the console shows a
//! record is of no matter.

use crate::bounded;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Bytes of a record, at most, as the kernel bounds them.
const RECORD: usize = 8 << 10;
/// Bytes of the text of an error.
const TEXT: usize = 512;
/// Errors of one boot that are reported: a kernel that has failed may fail without end.
const ERRORS: usize = 32;
/// Records that are read in one turn.
const TURN: usize = 1000;

/// How the texts of fatal errors begin: memory that is not there, `BUG()`, what KASAN, KFENCE and others find. A
/// warning (`WARNING:`) is none.
const BEGINNINGS: [&str; 5] = ["BUG: ", "Oops: ", "kernel BUG at ", "Internal error: ", "UBSAN: "];
/// That a machine is slow is not its kernel's error.
const SLOW: &str = "BUG: workqueue lockup";

/// Whether a text of the kernel, without time stamp, says that it has failed. What most architectures end the first
/// line of an oops with is the number of oopses: `general protection fault: 0000 [#1] SMP`.
pub fn is_error(text: &str) -> bool {
    let numbered = || {
        let (_, rest) = text.split_once("[#")?;
        let (number, _) = rest.split_once(']')?;
        (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(())
    };
    let begins = BEGINNINGS.iter().any(|beginning| text.starts_with(beginning));
    (begins || numbered().is_some()) && !text.starts_with(SLOW)
}

/// An error, and the number of its record, which grows within one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    pub sequence: u64,
    pub text: String,
}

/// The error that a record of `/dev/kmsg` is: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT`, and lines of a
/// dictionary.
fn error_of(record: &str) -> Option<KernelError> {
    let (head, text) = record.split_once(';')?;
    let mut numbers = head.split(',');
    let priority: u32 = numbers.next()?.parse().ok()?;
    let sequence = numbers.next()?.parse().ok()?;
    let text = text.lines().next().unwrap_or("");
    // The lowest three bits are the level.
    if priority >> 3 != 0 || !is_error(text) {
        return None;
    }
    Some(KernelError { sequence, text: bounded(text, TEXT).to_owned() })
}

/// The log of this guest's kernel, from its first record on.
#[derive(Debug)]
pub struct KernelLog {
    records: File,
    reported: usize,
}

impl KernelLog {
    /// Reads `/dev/kmsg`, or what is like it: one record for each read, which does not wait.
    pub fn open(path: &Path) -> io::Result<KernelLog> {
        use std::os::unix::fs::OpenOptionsExt;
        let records = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        Ok(KernelLog { records, reported: 0 })
    }

    /// The errors in what is new. Records that the kernel has overwritten meanwhile are passed over.
    pub fn look(&mut self) -> Vec<KernelError> {
        let mut errors = Vec::new();
        let mut record = [0; RECORD];
        for _ in 0..TURN {
            match self.records.read(&mut record) {
                Ok(0) => break,
                Ok(length) => errors.extend(error_of(&String::from_utf8_lossy(&record[..length]))),
                Err(e) if e.kind() == ErrorKind::Interrupted || e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        errors.truncate(ERRORS - self.reported);
        self.reported += errors.len();
        errors
    }
}

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_the_kernel_are_its_errors() {
        let of = |record: &str| error_of(record).map(|error| (error.sequence, error.text));
        let null = "BUG: kernel NULL pointer dereference, address: 0000000000000000";
        assert_eq!(of(&format!("1,412,5012345,-;{null}\n SUBSYSTEM=x\n")), Some((412, null.into())));
        assert_eq!(
            of("0,7,1,-,caller=T1;Oops: 0002 [#1] PREEMPT SMP"),
            Some((7, "Oops: 0002 [#1] PREEMPT SMP".into()))
        );
        // A process that writes into the log has at least the facility of users.
        assert_eq!(of(&format!("9,412,5012345,-;{null}")), None);
        assert_eq!(of("12,1,1,-;Oops: cannot reach the server"), None);
        for none in ["", ";", "1;BUG: x", "x,1,1,-;BUG: x", "6,1,1,-;a BUG: in words", "4,1,1,-;WARNING: CPU: 0 PID: 1"]
        {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn an_error_is_known_by_its_beginning_or_its_number() {
        for text in [
            "kernel BUG at mm/slub.c:435!",
            "BUG: KASAN: slab-use-after-free in x+0x1/0x2",
            "general protection fault, probably for non-canonical address 0x6b6b: 0000 [#1] PREEMPT SMP",
            "Internal error: Oops: 0000000096000004 [#2] SMP",
            "UBSAN: array-index-out-of-bounds in x.c:1:2",
        ] {
            assert!(is_error(text), "{text}");
        }
        for text in ["BUG: workqueue lockup - pool cpus=0", "x [#] y", "[#a] z", "the Oops: of others", "list [#1"] {
            assert!(!is_error(text), "{text}");
        }
    }

    #[test]
    fn long_texts_and_many_errors_are_bounded() {
        let long = error_of(&format!("1,1,1,-;BUG: {}", "ä".repeat(600))).unwrap();
        assert!(long.text.len() <= TEXT && long.text.len() > TEXT - 4);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        // A file gives as much as there is in one read, so that it is one record.
        std::fs::write(&path, "1,1,1,-;BUG: x\n").unwrap();
        let mut log = KernelLog::open(&path).unwrap();
        assert_eq!(log.look(), [KernelError { sequence: 1, text: "BUG: x".into() }]);
        assert!(log.look().is_empty());
        log.reported = ERRORS;
        log.records = File::open(&path).unwrap();
        assert!(log.look().is_empty());
    }
}
