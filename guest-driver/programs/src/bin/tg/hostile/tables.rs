// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the board has, by the driver's tables, and whether a process beside continues.

use super::watch::PATIENCE;
use std::time::Duration;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::interface::rows::World;
use telegraphos_guest_tests::patience::becomes;

/// Mounts debugfs, if it is not; where it cannot be, the first look says so.
pub(crate) fn mount() {
    const AT: &std::ffi::CStr = c"/sys/kernel/debug";
    if !std::path::Path::new("/sys/kernel/debug/telegraphos").exists() {
        // SAFETY: the strings end with NUL, and no data goes with them.
        unsafe { libc::mount(AT.as_ptr(), AT.as_ptr(), c"debugfs".as_ptr(), 0, std::ptr::null::<libc::c_void>()) };
    }
}

/// Lines of the driver's tables: what the board has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tables(Vec<(&'static str, usize)>);

impl Tables {
    const ALL: [&str; 7] = ["contexts", "exports", "imports", "queues", "replicas", "registrations", "page_counters"];
    /// What is under way.
    const COMMANDS: &str = "commands";

    pub(crate) fn now() -> Outcome<Tables> {
        Tables::ALL.into_iter().map(|table| Ok((table, Tables::lines(table)?))).collect::<Outcome<_>>().map(Tables)
    }

    fn lines(table: &str) -> Outcome<usize> {
        let path = format!("/sys/kernel/debug/telegraphos/telegraphos0/{table}");
        let text = std::fs::read_to_string(&path).map_err(|e| {
            Failure::Refused(format!("{path}: {e}; expected root, and debugfs mounted at /sys/kernel/debug"))
        })?;
        Ok(text.lines().count())
    }

    /// Waits until there is as much as there was, and nothing under way: workers end what processes have left.
    pub(crate) fn come_back(&self) -> Outcome<()> {
        let look = || Ok((Tables::now()?, Tables::lines(Tables::COMMANDS)?));
        let late = |(now, commands): &(Tables, usize)| {
            let text = format!("the board has {:?} and {commands} commands: expected {:?} and none", now.0, self.0);
            Failure::Check(text)
        };
        let back = |(now, commands): &(Tables, usize)| now == self && *commands == 0;
        becomes(PATIENCE / 4, Duration::from_millis(20), look, back, late).map(drop)
    }
}

/// A process beside continues: it makes one object of each kind, and ends them.
pub(crate) fn others_continue() -> Outcome<()> {
    drop(World::new()?);
    Ok(())
}
