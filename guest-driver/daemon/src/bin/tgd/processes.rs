// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of tasks, and signals to processes. Each task has a thread, which starts it and waits for it.

use super::Input;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::Duration;
use telegraphos_agent::user::Account;
use telegraphos_daemon_core::{Event, Exit, Job, Logger, Refusal, TaskId, User};

/// Within this a logger is connected to.
const CONNECT: Duration = Duration::from_secs(10);

/// What a task is started with.
pub(crate) struct Start {
    /// Comes back.
    pub(crate) token: u64,
    /// This node.
    pub(crate) node: u16,
    /// Whom it runs as.
    pub(crate) user: User,
    /// The node of its logger.
    pub(crate) master: u16,
    /// What it executes.
    pub(crate) job: Job,
}

/// That the end of a process has been taken note of: its id may be another's after that.
pub(crate) struct Reap {
    _taken: Sender<()>,
}

/// A thread for what waits, or why there is none.
fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    super::thread(name, body).map_err(|why| Refusal::new(Refusal::EAGAIN, why))
}

/// Starts a task, and reports that, and how it ends.
pub(crate) fn start(start: Start, to: SyncSender<Input>) -> Result<(), Refusal> {
    thread("task", move || {
        let spawned = spawn(&start);
        let outcome = spawned.as_ref().map(Child::id).map_err(Clone::clone);
        let told = to.send(Input::Event(Event::Started { token: start.token, outcome })).is_ok();
        if let (Ok(child), true) = (spawned, told) {
            watch(child, &to);
        }
    })
}

fn refusal(node: u16, what: &str, error: &io::Error) -> Refusal {
    // Without the number that the standard library adds.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    Refusal::new(error.raw_os_error().unwrap_or(Refusal::EINVAL), format!("node {node}: {what}: {text}"))
}

/// A stream to the logger. What it begins with the child writes, which knows its process id.
fn connect(own: u16, master: u16, logger: Logger) -> io::Result<OwnedFd> {
    let address = if own == master { Ipv4Addr::LOCALHOST } else { telegraphos_agent::network::address(master) };
    let stream = TcpStream::connect_timeout(&SocketAddr::from((address, logger.port)), CONNECT)?;
    // Those who wait for a prompt of a program do not wait for a delayed acknowledgement.
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

fn spawn(start: &Start) -> Result<Child, Refusal> {
    let Start { node, user, master, job, .. } = start;
    let [program, args @ ..] = job.argv.as_slice() else {
        return Err(Refusal::new(Refusal::EINVAL, "the program has no name"));
    };
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(job.env.iter().map(|(name, value)| (name, value))).current_dir(&job.dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if let Some(logger) = job.logger {
        let stream = || {
            connect(*node, *master, logger).map_err(|error| {
                let what = format!("cannot connect to the logger at port {} of node {master}", logger.port);
                refusal(*node, &what, &error)
            })
        };
        command.stdout(stream()?).stderr(stream()?);
    }
    let (uid, gid, own, logger) = (user.uid, user.gid, *node, job.logger);
    let ids = Account::of(uid).ids(uid, gid);
    let prepare = move || -> io::Result<()> {
        if let Some(logger) = logger {
            let task = TaskId { node: own, pid: std::process::id() };
            for (fd, stream) in [(1, 1), (2, 2)] {
                // SAFETY: a stream of this child's, which stays open.
                let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
                file.write_all(&logger.head(task, stream))?;
            }
        }
        ids.assume()?;
        // The daemon's end is that of its tasks, also when it is killed; after the change of user, which forgets it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        Ok(())
    };
    // SAFETY: runs in the child between fork and exec; it makes system calls on memory prepared before the fork,
    // allocates nothing and takes no lock. The child has this one thread, so per-thread ids are the process's.
    unsafe { command.pre_exec(prepare) };
    let failed = |error| {
        let what = format!("cannot run {program} in {} as user {uid}", job.dir);
        refusal(*node, &what, &error)
    };
    command.spawn().map_err(failed)
}

/// Waits for a task's end, ends what is left in its group, and reports it.
fn watch(mut child: Child, to: &SyncSender<Input>) {
    let pid = child.id();
    let status = wait_for(pid);
    // It is there until it is reaped below, so the group is still its own.
    end(pid, true);
    let exit = status.unwrap_or(Exit::Unknown);
    let (taken, wait): (Sender<()>, Receiver<()>) = channel();
    if to.send(Input::Exited { pid, exit, reap: Reap { _taken: taken } }).is_ok() {
        _ = wait.recv();
    }
    _ = child.wait();
}

/// How a child has ended, which is not reaped.
fn wait_for(pid: u32) -> Option<Exit> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => {
                let byte = |number: i32| u8::try_from(number & 0xff).ok();
                return match status.exit_status() {
                    Some(code) => byte(code).map(Exit::Code),
                    None => status.terminating_signal().and_then(byte).map(Exit::Signal),
                };
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => return None,
        }
    }
}

/// Ends the process group of a task.
pub(crate) fn end(pid: u32, kill: bool) {
    let Ok(group @ 2..) = i32::try_from(pid) else { return };
    let signal = if kill { libc::SIGKILL } else { libc::SIGTERM };
    // SAFETY: no memory is involved; the group is that of a child which has not been reaped.
    unsafe { libc::kill(-group, signal) };
    // One that is stopped takes a signal when it goes on.
    if !kill {
        // SAFETY: as above.
        unsafe { libc::kill(-group, libc::SIGCONT) };
    }
}

/// Sends a process a signal as that user would, by a thread that has become that user, and reports how that went.
pub(crate) fn signal(
    token: u64,
    node: u16,
    pid: u32,
    signal: i32,
    user: User,
    to: SyncSender<Input>,
) -> Result<(), Refusal> {
    thread("signal", move || {
        let outcome = send(pid, signal, user).map_err(|error| {
            let what = format!("cannot send the signal {signal} to process {pid} as user {}", user.uid);
            refusal(node, &what, &error)
        });
        _ = to.send(Input::Event(Event::Signalled { token, outcome }));
    })
}

fn send(pid: u32, signal: i32, user: User) -> io::Result<()> {
    // 0 and what is negative are groups for kill(2), of the daemon's own among them.
    let Ok(pid @ 1..) = i32::try_from(pid) else { return Err(io::Error::from_raw_os_error(libc::ESRCH)) };
    if !user.is_root() {
        let uid = rustix::process::Uid::from_raw(user.uid);
        // Of this thread only, which ends after it. Without root's ids it has no capabilities either.
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    // SAFETY: no memory is involved.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn how_a_process_ended_is_what_its_parent_sees() {
        for (script, expected) in
            [("exit 7", Exit::Code(7)), ("kill -15 $$", Exit::Signal(15)), ("exit 255", Exit::Code(255))]
        {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            assert_eq!(wait_for(child.id()), Some(expected));
            let status = child.wait().unwrap();
            let byte = |number: i32| u8::try_from(number).unwrap();
            let found = status.code().map(|code| Exit::Code(byte(code)));
            assert_eq!(found.or(status.signal().map(|signal| Exit::Signal(byte(signal)))), Some(expected));
        }
    }

    #[test]
    fn groups_are_not_sent_signals() {
        let user = User { uid: 0, gid: 0 };
        for pid in [0, u32::MAX, 1 << 31] {
            assert_eq!(send(pid, 0, user).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
        send(std::process::id(), 0, user).unwrap();
        assert_eq!(send(std::process::id(), 65, user).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
