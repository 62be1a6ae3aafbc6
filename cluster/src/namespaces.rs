// SPDX-License-Identifier: MIT OR Apache-2.0
//! Network namespaces with cables (veth pairs) between them, for fabric processes.
//!
//! They have no names: descriptors of this process and the processes inside keep them. So nothing is left when those
//! end, however they end. Without root they are made inside one user namespace, in which
//! this user is root.

use crate::process::Process;
use crate::{Error, Result, launch};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use telegraphos_images::Program;

const NEEDED: &str = "network namespaces need root, or user namespaces for ordinary users (sysctl user.max_user_namespaces, \
                      kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)";

/// Some network namespaces, by number.
#[derive(Debug)]
pub(crate) struct Namespaces {
    /// The user namespace they belong to, if not this process's.
    user: Option<OwnedFd>,
    each: Vec<OwnedFd>,
    ip: Program,
    cables: usize,
}

/// Makes this process, a child between fork and exec, root in a new user namespace.
fn become_root(maps: &[(&'static std::ffi::CStr, Vec<u8>); 3]) -> rustix::io::Result<()> {
    // SAFETY: only descriptors would be unshared by FILES, which is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER)? };
    for (path, text) in maps {
        let file = rustix::fs::open(*path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::io::write(file, text)? != text.len() {
            return Err(Errno::IO);
        }
    }
    Ok(())
}

fn enter(user: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    match user {
        Some(user) => rustix::thread::move_into_link_name_space(user, Some(LinkNameSpaceType::User)),
        None => Ok(()),
    }
}

impl Namespaces {
    /// Makes `count` of them, each with its loopback interface up. `log` takes the output of helper processes.
    pub(crate) fn new(count: usize, ip: Program, log: &Path) -> Result<Namespaces> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut made = Namespaces { user: None, each: Vec::new(), ip, cables: 0 };
        for number in 0..count {
            let mut holder = launch::role("__namespace");
            let user = made.user.as_ref().map(dup).transpose()?;
            let first = uid != 0 && user.is_none();
            let maps = [
                (c"/proc/self/setgroups", b"deny".to_vec()),
                (c"/proc/self/uid_map", format!("0 {uid} 1").into_bytes()),
                (c"/proc/self/gid_map", format!("0 {gid} 1").into_bytes()),
            ];
            // SAFETY: between fork and exec this makes system calls and nothing else: no allocation, no lock.
            unsafe {
                holder.pre_exec(move || {
                    if first {
                        become_root(&maps)?;
                    }
                    enter(user.as_ref().map(|user| user.as_fd()))?;
                    rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)?;
                    Ok(())
                });
            }
            // It runs until its namespace is open here.
            let holder = Process::start("a process in a new network namespace", holder, log).map_err(|e| match e {
                Error::Spawn { what, source } => Error::Usage(format!("cannot start {what}: {source}; {NEEDED}")),
                e => e,
            })?;
            let open = |name: &str| {
                let path = PathBuf::from(format!("/proc/{}/ns/{name}", holder.pid()));
                File::open(&path).map(OwnedFd::from).map_err(Error::io("cannot open the namespace", &path))
            };
            if first {
                made.user = Some(open("user")?);
            }
            made.each.push(open("net")?);
            made.ip(number, &["link", "set", "lo", "up"], None)?;
        }
        Ok(made)
    }

    /// Makes a command run in namespace `number`.
    pub(crate) fn inside(&self, number: usize, command: &mut Command) -> Result<()> {
        let (user, net) = (self.user.as_ref().map(dup).transpose()?, dup(&self.each[number])?);
        // SAFETY: between fork and exec this makes system calls and nothing else: no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                enter(user.as_ref().map(|user| user.as_fd()))?;
                rustix::thread::move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(())
            });
        }
        Ok(())
    }

    /// Joins two by a veth pair, with an address at either end in a network of 256 addresses.
    pub(crate) fn cable(&mut self, ends: [(usize, Ipv4Addr); 2]) -> Result<()> {
        let name = format!("trunk{}", self.cables);
        self.cables += 1;
        let [(first, _), (second, _)] = ends;
        let other = dup(&self.each[second])?;
        let path = format!("/proc/self/fd/{}", other.as_raw_fd());
        self.ip(first, &["link", "add", &name, "type", "veth", "peer", "name", &name, "netns", &path], Some(other))?;
        for (end, address) in ends {
            self.ip(end, &["address", "add", &format!("{address}/24"), "dev", &name], None)?;
            self.ip(end, &["link", "set", &name, "up"], None)?;
        }
        Ok(())
    }

    /// Runs `ip` in namespace `number`; it inherits the descriptor `with` under the same number.
    fn ip(&self, number: usize, args: &[&str], with: Option<OwnedFd>) -> Result<()> {
        let mut command = self.ip.command();
        command.args(args);
        self.inside(number, &mut command)?;
        if let Some(fd) = with {
            // SAFETY: one system call, which changes a flag of a descriptor of the child alone.
            unsafe { command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&fd, FdFlags::empty())?)) };
        }
        let what = format!("ip {}", args.join(" "));
        let output = command.output().map_err(|source| Error::Spawn { what: what.clone(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let tail = format!("\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
        let during = format!("while network namespaces were joined ({NEEDED}; and a kernel with veth)");
        Err(Error::ended(what, output.status, during, tail))
    }
}

fn dup(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|source| Error::Spawn { what: "a process in a namespace".into(), source })
}

/// The main function of a process that only holds a namespace: waits to be killed.
pub(crate) fn hold() -> ! {
    loop {
        std::thread::park();
    }
}
