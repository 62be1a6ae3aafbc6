// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of tasks, and signals to processes. Each task has a thread, which starts it and waits for it.

use super::Input;
use rustix::process::{Resource, Rlimit};
use std::fs::File;
use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::{Duration, Instant};
use telegraphos_agent::child::{Child, Program, Report};
use telegraphos_agent::user::Account;
use telegraphos_daemon_core::{Event, Exit, Job, Logger, Refusal, TaskId, User};

/// Within this a logger is connected to.
const CONNECT: Duration = Duration::from_secs(10);
/// A stream that a logger has not taken is tried again after so long.
const AGAIN: Duration = Duration::from_millis(20);
/// Within this a child has become its user, entered its directory and begun to execute its program, which can be on a
/// filesystem of the user's.
const START: Duration = Duration::from_secs(10);
/// Within this a child has become its user and sent a signal.
const SIGNAL: Duration = Duration::from_secs(10);

/// What a task is started with.
pub(crate) struct Start {
    pub(crate) token: u64,
    pub(crate) node: u16,
    /// Whom it runs as.
    pub(crate) user: User,
    /// The node of its logger.
    pub(crate) master: u16,
    pub(crate) job: Job,
    /// The limit of descriptors that it has.
    pub(crate) files: Rlimit,
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

/// A stream that the logger has taken. What follows the key is written by the child, since it has its process id.
fn connect(own: u16, master: u16, logger: Logger) -> io::Result<OwnedFd> {
    let address = if own == master { Ipv4Addr::LOCALHOST } else { telegraphos_agent::network::address(master) };
    let address = SocketAddr::from((address, logger.port));
    let end = Instant::now() + CONNECT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        match connect_once(&address, logger, left) {
            Ok(stream) => return Ok(stream.into()),
            // It has made room for others, before its key was read.
            Err(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted) => {
                std::thread::sleep(AGAIN.min(left));
            }
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut) => {
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            Err(error) => return Err(error),
        }
    }
}

fn connect_once(address: &SocketAddr, logger: Logger, limit: Duration) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(address, limit)?;
    // Those who wait for a prompt of a program do not wait for a delayed acknowledgement.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(&logger.key)?;
    let mut taken = [0];
    stream.read_exact(&mut taken)?;
    stream.set_read_timeout(None)?;
    if taken != [Logger::TAKEN] {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    Ok(stream)
}

/// The standard streams of a task: none, and those to its logger.
fn streams(start: &Start) -> Result<[OwnedFd; 3], Refusal> {
    let Start { node, master, job, .. } = start;
    let null = || -> Result<OwnedFd, Refusal> {
        let null = File::options().read(true).write(true).open("/dev/null");
        null.map(Into::into).map_err(|error| refusal(*node, "cannot open /dev/null", &error))
    };
    let Some(logger) = job.logger else { return Ok([null()?, null()?, null()?]) };
    let stream = || {
        connect(*node, *master, logger).map_err(|error| {
            let what = format!("cannot connect to the logger at port {} of node {master}", logger.port);
            refusal(*node, &what, &error)
        })
    };
    Ok([null()?, stream()?, stream()?])
}

fn spawn(start: &Start) -> Result<Child, Refusal> {
    let Start { node, user: User { uid, gid }, job, .. } = start;
    let failed = |error: &io::Error| {
        let program = job.argv.first().map_or("", String::as_str);
        let what = format!("cannot run {program} in {} as user {uid}", job.dir);
        refusal(*node, &what, error)
    };
    let (argv, env) = (job.argv.iter().map(String::as_str), job.env.iter().map(|(name, value)| (&**name, &**value)));
    let program = Account::of(*uid).ids(*uid, *gid).and_then(|ids| Program::new(argv, env, &job.dir, Some(ids)));
    // The daemon's end is that of its tasks, also when it is killed.
    let program = program.map_err(|error| failed(&error))?.ends_with_parent();
    let streams = streams(start)?;
    let first = |pid| -> io::Result<()> {
        rustix::process::setrlimit(Resource::Nofile, start.files)?;
        if job.logger.is_some() {
            for (fd, stream) in [(1, 1), (2, 2)] {
                // SAFETY: a stream of this child's, which stays open.
                let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
                file.write_all(&Logger::head(TaskId { node: *node, pid }, stream))?;
            }
        }
        Ok(())
    };
    // SAFETY: `first` makes system calls on what is on its stack or was prepared.
    let child = unsafe { program.start(streams, first) }.map_err(|error| failed(&error))?;
    let report = child.report(START).transpose();
    let error = match report {
        // It runs, or has ended already, which is how a task ends.
        Some(Ok(Report::Closed)) => return Ok(child),
        Some(Ok(Report::Failed(error)) | Err(error)) => error,
        Some(Ok(Report::Done)) => io::Error::from_raw_os_error(libc::EINVAL),
        None => io::Error::from_raw_os_error(libc::ETIMEDOUT),
    };
    child.kill();
    child.reap();
    Err(failed(&error))
}

/// Waits for a task's end, ends what is left in its group, and reports it.
fn watch(child: Child, to: &SyncSender<Input>) {
    let pid = child.id();
    let status = wait_for(pid);
    // It is there until it is reaped below, so the group is still its own.
    end(pid, true);
    let exit = status.unwrap_or(Exit::Unknown);
    let (taken, wait): (Sender<()>, Receiver<()>) = channel();
    if to.send(Input::Exited { pid, exit, reap: Reap { _taken: taken } }).is_ok() {
        _ = wait.recv();
    }
    child.reap();
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
    // A stopped process takes a signal when it continues.
    if !kill {
        // SAFETY: as above.
        unsafe { libc::kill(-group, libc::SIGCONT) };
    }
}

/// Sends a process a signal as that user would, by a child that has become that user, and reports how that went.
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
    let kill = move || {
        // SAFETY: no memory is involved.
        match unsafe { libc::kill(pid, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    if user.is_root() {
        return kill();
    }
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null")?.into();
    let streams = [null.try_clone()?, null.try_clone()?, null];
    // Its groups do not matter to signals.
    let ids = Account::default().ids(user.uid, user.gid)?;
    let work = move || {
        ids.assume()?;
        kill()
    };
    // SAFETY: `work` makes system calls only.
    let child = unsafe { Child::fork(streams, false, work) }?;
    let report = child.report(SIGNAL).transpose();
    child.kill();
    child.reap();
    match report {
        Some(Ok(Report::Done)) => Ok(()),
        Some(Ok(Report::Failed(error)) | Err(error)) => Err(error),
        // Its user has ended or stopped it.
        Some(Ok(Report::Closed)) => Err(io::Error::from_raw_os_error(libc::EINTR)),
        None => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

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

    /// An ordinary user, of which nothing is left by other tests.
    const ORDINARY: User = User { uid: 65_534, gid: 65_534 };

    fn root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("not run: users are changed by root only");
        }
        root
    }

    #[test]
    fn no_thread_becomes_the_user_of_a_signal() {
        if !root() {
            return;
        }
        let mut target = Command::new("sleep").arg("100").uid(ORDINARY.uid).gid(ORDINARY.gid).spawn().unwrap();
        let (pid, signalled) = (target.id(), channel());
        // As the daemon sends it; then it is looked at while it is still there.
        let (end, until) = channel::<()>();
        let sender = std::thread::spawn(move || {
            send(pid, 0, ORDINARY).unwrap();
            signalled.0.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            _ = until.recv();
        });
        let thread = signalled.1.recv().unwrap();
        let script = format!("kill -0 {thread} && echo may");
        let attempt = Command::new("sh").args(["-c", &script]).uid(ORDINARY.uid).gid(ORDINARY.gid).output().unwrap();
        drop(end);
        sender.join().unwrap();
        target.kill().unwrap();
        target.wait().unwrap();
        assert_eq!(String::from_utf8_lossy(&attempt.stdout), "", "the user may end this process by its thread");
    }

    #[test]
    fn a_directory_is_entered_with_the_rights_of_the_user() {
        use std::os::unix::fs::PermissionsExt;
        if !root() {
            return;
        }
        let closed = tempfile::tempdir().unwrap();
        std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let inner = closed.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("file"), "secret").unwrap();
        let of = |dir: &std::path::Path| {
            let job = Job {
                argv: ["grep", "-q", "secret", "file"].map(String::from).into(),
                env: vec![("PATH".into(), "/usr/bin:/bin".into())],
                dir: dir.to_str().unwrap().into(),
                logger: None,
            };
            let files = rustix::process::getrlimit(Resource::Nofile);
            Start { token: 1, node: 0, user: ORDINARY, master: 0, job, files }
        };
        let refusal = match spawn(&of(&inner)) {
            Err(refusal) => refusal,
            Ok(child) => panic!("it runs there, and ends with {:?}", wait_for(child.id())),
        };
        assert_eq!(refusal.errno, libc::EACCES, "{refusal}");
    }
}
