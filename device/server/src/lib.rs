// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HIB server of one virtual machine: a PCI device for a stock QEMU on one side, a node of the fabric on the other.
//!
//! ```text
//!            QEMU                              fabric
//!              │ vfio-user                        │ link
//!   socket ─ vfio/{connection,message,server}   fabric_link
//!              │ Backend                          │ events, frames
//!            board ──────────── telegraphos_device_core::Hib ────┘        the pure state machine (device/core)
//!              ├─ config_space     PCI identity, BARs, MSI
//!              ├─ memory           guest RAM: the only code that touches it
//!              ├─ interrupts       event descriptors
//!              └─ notices          log lines, rate limited
//!   rings          frames to and from boards of the same host, in shared memory
//!   shell          the poll loop around all of it
//!   intake         when the client has run dry, and when it is left unread for a while
//!   direct         the memory device beside the board, and the memory of a trust group
//!   guard          hangs up on QEMU when the shell is killed
//!   settings, cli  the command `telegraphos-hib`
//!   attach         what attaches a board to a machine of QEMU, libvirt or virtme-ng
//! ```
//!
//! `unsafe` exists in `memory` and `guard` only.
#![deny(unsafe_code)]

/// Logs a line, unless the rate limit of its kind is exceeded; the next line then has the number of those left out.
macro_rules! limited {
    ($limiter:expr, $kind:literal, $now:expr => $level:ident $($text:tt)+) => {
        if let Some(more) = $limiter.admit($kind, $now) {
            log::$level!("{}{more}", format_args!($($text)+));
        }
    };
}

mod attach;
mod board;
pub mod cli;
mod clock;
pub mod config_space;
pub mod direct;
mod error;
pub mod fabric_link;
mod guard;
mod intake;
pub mod interrupts;
pub mod memory;
mod notices;
pub mod rings;
pub mod settings;
pub mod shell;
pub mod vfio;

pub use attach::{Attachment, Starter};
pub use board::Board;
pub use cli::cli_main;
pub use clock::Clock;
pub use error::ServeError;
pub use fabric_link::RefusedByFabric;
pub use guard::Guard;
pub use settings::Settings;
pub use shell::{Config, HibServer, PLACES};
pub use telegraphos_service::shutdown::ShutdownHandle;
