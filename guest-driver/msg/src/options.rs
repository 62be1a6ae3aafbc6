// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the messages of a process are opened with.

use telegraphos_msg_core::Config;

/// How a process finds out that a message has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Progress {
    /// A thread looks all the time. For processes with a processor to spare.
    Polling,
    /// A thread sleeps until an interrupt, and then wakes the one whose message has come.
    #[default]
    Blocking,
    /// Threads that wait look themselves for as long as that has been worth it, and sleep then. Neither an interrupt
    /// nor another thread stands between a message and a thread that looks.
    Adaptive,
}

/// What the messages of a process are opened with; from a [`Config`], or with other fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Sizes and limits, which must be the same for all processes that talk to each other.
    pub config: Config,
    /// Ports: queues with a thread each, 1 to [`Options::MOST_PORTS`]. One is opened for each process that this one
    /// talks to, until there are so many; further processes share them (s4 §4: any number of threads over 8 ports).
    pub ports: u16,
    /// How messages are waited for.
    pub progress: Progress,
    /// Threads that look let others of this processor run between two looks (s3's hint for coscheduling). Without it,
    /// processes that exchange messages on one processor each look until the scheduler takes it from them.
    pub yields: bool,
}

impl Options {
    /// Ports, at most.
    pub const MOST_PORTS: u16 = 64;
}

impl Default for Options {
    fn default() -> Options {
        Config::default().into()
    }
}

impl From<Config> for Options {
    fn from(config: Config) -> Options {
        Options { config, ports: 8, progress: Progress::default(), yields: true }
    }
}
