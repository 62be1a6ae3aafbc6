// SPDX-License-Identifier: MIT OR Apache-2.0
//! What else the benchmark's guests have, to compare boards with: all of it in the same two guests, and in the same
//! rounds.
//!
//! ```text
//!   node 0 ── bare vfio-user loop, crate vfio_user ──┐
//!   node 0 ── ivshmem-plain ── memory ───────────────┤ the process of peers (role `__bench-peers`)
//!   node 1 ── ivshmem-plain ─────┘                   │
//!   both   ── ivshmem-doorbell ── ivshmem server ────┘
//!   node 0 ── virtio-net ── Unix datagrams ── virtio-net ── node 1
//!   each   ── edu, for the doorbell's interrupt
//! ```
//!
//! The memory is a memfd of the benchmark's process, which QEMU opens by its name in /proc: nothing is left of it.

mod bare;
mod by_crate;
mod host;
mod ivshmem;
mod memory;

use rustix::fs::MemfdFlags;
use serde_json::json;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use telegraphos_agent::bench::{SHARED_BYTES, slot};
use telegraphos_cluster::{Error, PROMPT, Process, Result, RunDir, check_interrupt, listens_seen_by, role, tail};

/// First argument of the process that serves them.
pub(crate) const ROLE: &str = "__bench-peers";
const BARE: &str = "bare";
const CRATE: &str = "crate";
const DOORBELL: &str = "doorbell";
/// Sockets that the process listens on.
const LISTENING: [&str; 3] = [BARE, CRATE, DOORBELL];

/// The running peers. They end, and their directory goes, when it is dropped.
#[derive(Debug)]
pub(super) struct Peers {
    // In this order they are dropped.
    process: Process,
    run_dir: RunDir,
    memory: OwnedFd,
}

impl Peers {
    /// Starts them; they listen when it returns.
    pub(super) fn start(run_dir: Option<&Path>) -> Result<Peers> {
        let failed = || Error::io("cannot make shared memory for", "the peers");
        let memory =
            rustix::fs::memfd_create("telegraphos-bench", MemfdFlags::CLOEXEC).map_err(|e| failed()(e.into()))?;
        rustix::fs::ftruncate(&memory, SHARED_BYTES).map_err(|e| failed()(e.into()))?;
        let run_dir = RunDir::create(run_dir)?;
        let directory = run_dir.path();
        let log = directory.join("peers.log");
        let mut command = role(ROLE);
        command.arg(directory).arg(name_of(&memory));
        let mut process = Process::start("the process of the benchmark's peers", command, &log)?;
        let (begun, pid) = (Instant::now(), process.pid().to_string());
        while !LISTENING.iter().all(|name| listens_seen_by(&directory.join(name), &pid)) {
            check_interrupt()?;
            let end = || format!("\n--- end of its log\n{}", tail(&log, 15));
            if let Some(status) = process.ended() {
                return Err(Error::ended(process.what(), status, "at its start", end()));
            }
            if begun.elapsed() > PROMPT {
                let (what, remedy) = ("the benchmark's peers listening".to_owned(), "see the log");
                return Err(Error::TimedOut { what, node: None, limit: PROMPT, remedy, tail: end() });
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok(Peers { process, run_dir, memory })
    }

    /// QEMU's options for the peers of a node; only the first two have any.
    pub(super) fn qemu_options(&self, node: usize) -> Vec<OsString> {
        let directory = self.run_dir.path();
        let path = |name: &str| directory.join(name).display().to_string();
        let mut options: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: String| options.extend([name.into(), value.into()]);
        let (memory, comma) = (name_of(&self.memory).display().to_string(), |path: String| path.replace(',', ",,"));
        add("-object", format!("memory-backend-file,id=peers,mem-path={memory},size={SHARED_BYTES},share=on"));
        add("-device", format!("ivshmem-plain,memdev=peers,addr={:x}.0", slot::IVSHMEM));
        add("-chardev", format!("socket,id=doorbell,path={}", comma(path(DOORBELL))));
        add("-device", format!("ivshmem-doorbell,chardev=doorbell,vectors=2,addr={:x}.0", slot::DOORBELL));
        add("-device", format!("edu,addr={:x}.0", slot::EDU));
        let cable = |node: usize| comma(path(&format!("cable{node}")));
        let (own, other) = (cable(node), cable(1 - node));
        add("-netdev", format!("dgram,id=cable,local.type=unix,local.path={own},remote.type=unix,remote.path={other}"));
        let mac = format!("52:54:00:99:00:{node:02x}");
        add("-device", format!("virtio-net-pci,netdev=cable,mac={mac},romfile=,addr={:x}.0", slot::NETWORK));
        for (name, slot) in [(BARE, slot::BARE), (CRATE, slot::CRATE)].into_iter().filter(|_| node == 0) {
            let socket = json!({"type": "unix", "path": path(name)});
            let addr = format!("{slot:x}.0");
            add("-device", json!({"driver": "vfio-user-pci", "addr": addr, "socket": socket}).to_string());
        }
        options
    }

    /// An error if the process has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.process.ended() {
            None => Ok(()),
            Some(status) => {
                let end = tail(&self.run_dir.path().join("peers.log"), 15);
                Err(Error::ended(self.process.what(), status, "during the measurement", format!("\n{end}")))
            }
        }
    }
}

/// How other processes of this user open it.
fn name_of(memory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()))
}

/// The process: serves until it is killed, which its parent's end does, too.
pub(crate) fn serve(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let paths: Vec<PathBuf> = arguments.into_iter().map(PathBuf::from).collect();
    let served = match &paths[..] {
        [directory, memory] => serve_in(directory, memory),
        _ => Err(std::io::Error::other("expected a directory and a file of shared memory")),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("the benchmark's peers: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve_in(directory: &Path, memory: &Path) -> std::io::Result<()> {
    let file = std::fs::File::options().read(true).write(true).open(memory)?;
    let shared = memory::Mapping::of(&file, SHARED_BYTES as usize)?;
    let bare = std::os::unix::net::UnixListener::bind(directory.join(BARE))?;
    let by_crate = by_crate::bind(&directory.join(CRATE))?;
    let doorbell = std::os::unix::net::UnixListener::bind(directory.join(DOORBELL))?;
    let threads = [
        std::thread::spawn(move || bare::serve(&bare, &shared)),
        std::thread::spawn(move || by_crate::serve(&by_crate)),
        std::thread::spawn(move || ivshmem::serve(&doorbell, &file)),
    ];
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(())
}
