// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that become a user, and then act for it.
//!
//! Credentials change in a child with a single thread, never in a thread of a process that continues: a signal to a
//! thread is checked against the user of that thread, and ends the whole process.
//!
//! Once it has changed, the child is the user's: the user may stop or end it at any time, and what it opens may be on a
//! filesystem of the user's, which answers or not. So before the change it closes every descriptor but its standard
//! streams and its report, and removes its parent's signal handlers; its copy of the parent's memory can be read by
//! neither ptrace nor a core dump ([`Ids::assume`]); and the parent waits for its report with a bound.
#![allow(unsafe_code, reason = "fork and exec")]

use crate::user::Ids;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::process::{Pid, WaitStatus};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::time::{Duration, Instant};

/// Where a child reports.
const REPORT: RawFd = 3;
/// The highest signal of Linux.
const SIGNALS: c_int = 64;

unsafe extern "C" {
    /// The environment that `execvp` takes the path from, and hands over.
    static mut environ: *const *const c_char;
}

/// A child that has not been reaped.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    report: OwnedFd,
}

/// What a child has reported.
#[derive(Debug)]
pub enum Report {
    /// It has done its work.
    Done,
    /// It executes a program, or was ended before it could report.
    Closed,
    Failed(io::Error),
}

/// A descriptor that no standard stream and no report can be confused with.
fn above(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > REPORT {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, REPORT + 1)?)
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Child {
    /// Forks a child in its own process group, with these standard streams and no other descriptors of this process. It
    /// does its work, reports how that went, and ends. With `session`, it leads a session, whose terminal its standard
    /// input is.
    ///
    /// # Safety
    ///
    /// The process may have other threads, which hold locks that nothing in the child releases. So `work` makes system
    /// calls on memory that was prepared before: it allocates nothing, frees nothing, takes no lock and does not
    /// panic.
    pub unsafe fn fork(
        streams: [OwnedFd; 3],
        session: bool,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Child> {
        let [input, output, errors] = streams;
        let streams = [above(input)?, above(output)?, above(errors)?];
        let (report, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let write = above(write)?;
        let streams_of_child = [streams[0].as_raw_fd(), streams[1].as_raw_fd(), streams[2].as_raw_fd()];
        // No handler of this process runs in the child.
        let before = block_signals()?;
        // SAFETY: the child makes system calls on prepared memory only, as the caller has promised for `work`.
        let forked = checked(unsafe { libc::fork() });
        if let Ok(0) = forked {
            in_child(write.as_raw_fd(), streams_of_child, session, work);
        }
        restore_signals(&before);
        let pid = Pid::from_raw(forked?).ok_or(io::ErrorKind::NotFound)?;
        // The child does the same: a signal to the group finds it from now on. Once it executes it has, and this fails.
        // The leader of a group cannot begin a session.
        if !session {
            _ = rustix::process::setpgid(Some(pid), Some(pid));
        }
        Ok(Child { pid, report })
    }

    /// Its process id, which is also that of its group.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Where it reports: readable when it has.
    pub fn report_fd(&self) -> &OwnedFd {
        &self.report
    }

    /// Waits for the report, for at most this time; `None` if there is none then.
    pub fn report(&self, limit: Duration) -> io::Result<Option<Report>> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.report, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                result => _ = result?,
            }
            let mut number = [0; 4];
            // Written at once, or not at all.
            return match rustix::io::read(&self.report, &mut number)? {
                4 => Ok(Some(match i32::from_ne_bytes(number) {
                    0 => Report::Done,
                    errno => Report::Failed(io::Error::from_raw_os_error(errno)),
                })),
                _ => Ok(Some(Report::Closed)),
            };
        }
    }

    /// Kills it, and what it has started in its group.
    pub fn kill(&self) {
        _ = rustix::process::kill_process_group(self.pid, rustix::process::Signal::KILL);
    }

    /// How it has ended; it is forgotten then.
    pub fn try_reap(&self) -> io::Result<Option<WaitStatus>> {
        let status = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::NOHANG)?;
        Ok(status.map(|(_, status)| status))
    }

    /// Waits until it has ended, and forgets it.
    pub fn reap(self) {
        while let Err(rustix::io::Errno::INTR) =
            rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty())
        {}
    }
}

/// The rest of a child.
fn in_child(report: RawFd, streams: [RawFd; 3], session: bool, work: impl FnOnce() -> io::Result<()>) -> ! {
    let (mut at, alone) = (report, detach(report, streams, session));
    if alone.is_ok() {
        at = REPORT;
    }
    let outcome = alone.and_then(|()| work());
    let number = outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL)).to_ne_bytes();
    // SAFETY: the number is as long as that; the descriptor is that of the report, or closed.
    unsafe { libc::write(at, number.as_ptr().cast(), number.len()) };
    // SAFETY: ends this process without any of the parent's destructors.
    unsafe { libc::_exit(126) }
}

/// Leaves a child its streams and its report, and nothing that its parent does at a signal.
fn detach(report: RawFd, streams: [RawFd; 3], session: bool) -> io::Result<()> {
    // SAFETY: all zero is a valid action: the default one, without flags.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    for signal in 1..=SIGNALS {
        // SAFETY: the action lives; some signals have none, which is no harm.
        unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
    }
    for (to, from) in (0..).zip(streams) {
        // SAFETY: no memory is involved; all of the streams are above the standard ones.
        checked(unsafe { libc::dup2(from, to) })?;
    }
    // SAFETY: no memory is involved; the descriptor is above that of the report.
    checked(unsafe { libc::dup3(report, REPORT, libc::O_CLOEXEC) })?;
    // SAFETY: no memory is involved; nothing in this process uses any of them, and it runs no destructor.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, REPORT + 1, u32::MAX, 0) };
    checked(closed as c_int)?;
    if session {
        rustix::process::setsid()?;
        // SAFETY: no memory is involved.
        checked(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    } else {
        rustix::process::setpgid(None, None)?;
    }
    // SAFETY: the empty set is initialised before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        checked(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()))?;
    }
    Ok(())
}

/// Blocks all signals of this thread; those that were.
fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: both sets are written before they are read.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) {
            0 => Ok(before),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set is one that the kernel has returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// A program that runs as a user.
#[derive(Debug)]
pub struct Program {
    argv: Vec<CString>,
    env: Vec<CString>,
    dir: CString,
    ids: Option<Ids>,
    ends_with_parent: bool,
    session: bool,
}

impl Program {
    /// A program and its arguments, which need be no text, its whole environment, in whose `PATH` it is looked up, and
    /// its directory. Both are found with the rights of these ids; without, with those of this process.
    ///
    /// # Errors
    ///
    /// No program, or a text with a zero byte in it.
    pub fn new<'a>(
        argv: impl IntoIterator<Item = impl Into<Vec<u8>>>,
        env: impl IntoIterator<Item = (&'a str, &'a str)>,
        dir: &str,
        ids: Option<Ids>,
    ) -> io::Result<Program> {
        let argv: Vec<CString> = argv.into_iter().map(CString::new).collect::<Result<_, _>>()?;
        if argv.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program is named"));
        }
        let env = env.into_iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        let env = env.collect::<Result<_, _>>()?;
        Ok(Program { argv, env, dir: CString::new(dir)?, ids, ends_with_parent: false, session: false })
    }

    /// SIGKILL ends it when the thread that starts it ends.
    #[must_use]
    pub fn ends_with_parent(mut self) -> Program {
        self.ends_with_parent = true;
        self
    }

    /// It leads a session, whose terminal its standard input is.
    #[must_use]
    pub fn with_terminal(mut self) -> Program {
        self.session = true;
        self
    }

    /// Starts it in its own process group; [`Report::Closed`] means that it runs, or has been ended already. `first` is
    /// done before the child changes its user, with its process id.
    ///
    /// # Safety
    ///
    /// For `first` holds what holds for the work of [`Child::fork`].
    pub unsafe fn start(&self, streams: [OwnedFd; 3], first: impl FnOnce(u32) -> io::Result<()>) -> io::Result<Child> {
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&self.argv), pointers(&self.env));
        let parent = rustix::process::getpid();
        let work = || -> io::Result<()> {
            first(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs())?;
            if let Some(ids) = &self.ids {
                ids.assume()?;
            }
            if self.ends_with_parent {
                // After the change of user, which forgets it.
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                if rustix::process::getppid() != Some(parent) {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            rustix::process::chdir(&self.dir)?;
            // SAFETY: this child has one thread; both lists and their texts outlive it, and end with a null pointer.
            // The first argument is not null. `execvp` allocates nothing and takes no lock.
            unsafe {
                environ = env.as_ptr();
                libc::execvp(argv.first().copied().unwrap_or(std::ptr::null()), argv.as_ptr());
            }
            Err(io::Error::last_os_error())
        };
        // SAFETY: `work` makes system calls on what was prepared above, and so does `first`, as the caller promises.
        unsafe { Child::fork(streams, self.session, work) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use crate::user::Account;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Output};

    const UNPRIVILEGED: u32 = 65_534;
    const LONG: Duration = Duration::from_secs(60);

    fn ids() -> Ids {
        Account::default().ids(UNPRIVILEGED, UNPRIVILEGED).unwrap()
    }

    fn null() -> OwnedFd {
        File::options().read(true).write(true).open("/dev/null").unwrap().into()
    }

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("not run: only root changes its user");
        }
        root
    }

    fn as_unprivileged(script: &str) -> Output {
        Command::new("sh").args(["-c", script]).uid(UNPRIVILEGED).gid(UNPRIVILEGED).output().unwrap()
    }

    /// A child of that user, which stays in its work.
    fn asleep() -> Child {
        let ids = ids();
        let work = move || -> io::Result<()> {
            ids.assume()?;
            rustix::stdio::stdout();
            rustix::io::write(rustix::stdio::stdout(), b".")?;
            loop {
                rustix::event::pause();
            }
        };
        let (read, write) = rustix::pipe::pipe().unwrap();
        // SAFETY: system calls only.
        let child = unsafe { Child::fork([null(), write, null()], false, work) }.unwrap();
        // It has changed its user.
        assert_eq!(File::from(read).read(&mut [0]).unwrap(), 1);
        child
    }

    #[test]
    fn a_stopped_child_is_waited_for_with_a_bound() {
        if !is_root() {
            return;
        }
        let child = asleep();
        assert!(as_unprivileged(&format!("kill -STOP {}", child.id())).status.success());
        assert!(child.report(Duration::from_millis(20)).unwrap().is_none());
        child.kill();
        assert!(matches!(child.report(LONG).unwrap(), Some(Report::Closed)));
        child.reap();
    }

    #[test]
    fn a_user_ends_the_child_and_nothing_else() {
        static HANDLED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        extern "C" fn handler(_: c_int) {
            HANDLED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        if !is_root() {
            return;
        }
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGUSR1, handler as extern "C" fn(c_int) as usize) };
        let child = asleep();
        // The handler of this process would have let it continue.
        assert!(as_unprivileged(&format!("kill -USR1 {}", child.id())).status.success());
        assert!(matches!(child.report(LONG).unwrap(), Some(Report::Closed)));
        child.reap();
        let own = as_unprivileged(&format!(
            "for task in /proc/{}/task/*; do kill -0 ${{task##*/}} && echo $task; done; true",
            std::process::id()
        ));
        assert_eq!(String::from_utf8_lossy(&own.stdout), "", "threads that this user may signal");
    }

    #[test]
    fn a_child_has_no_descriptors_of_its_parent_and_its_memory_is_closed() {
        if !is_root() {
            return;
        }
        // One that is inherited by whatever is forked and executed.
        let open = rustix::io::fcntl_dupfd_cloexec(null(), 100).unwrap();
        rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
        let child = asleep();
        let listed: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", child.id()))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(listed.iter().all(|fd| fd.parse::<RawFd>().unwrap() <= REPORT), "{listed:?}");
        for name in ["mem", "environ", "maps"] {
            let read = as_unprivileged(&format!("head -c 1 /proc/{}/{name}", child.id()));
            assert!(!read.status.success(), "{name} can be read: {:?}", read.stdout);
        }
        child.kill();
        child.reap();
    }

    fn start(program: &Program, output: OwnedFd) -> Child {
        // SAFETY: nothing is done.
        unsafe { program.start([null(), output, null()], |_| Ok(())) }.unwrap()
    }

    #[test]
    fn a_program_has_its_arguments_environment_and_directory() {
        let own = is_root().then(ids);
        let argv = ["sh", "-c", "echo $COLOUR $1 $PWD; id -u; kill -PIPE $$; echo not here", "sh", "one"];
        let env = [("PATH", "/usr/bin:/bin"), ("COLOUR", "red")];
        let program = Program::new(argv, env, "/usr", own).unwrap().ends_with_parent();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let child = start(&program, write);
        assert!(matches!(child.report(LONG).unwrap(), Some(Report::Closed)));
        let mut said = String::new();
        File::from(read).read_to_string(&mut said).unwrap();
        child.reap();
        let uid = if is_root() { UNPRIVILEGED } else { rustix::process::geteuid().as_raw() };
        assert_eq!(said, format!("red one /usr\n{uid}\n"));
    }

    #[test]
    fn what_cannot_be_executed_says_why() {
        let failed = |argv: &[&str], dir: &str| {
            let env = [("PATH", "/usr/bin:/bin")];
            let child = start(&Program::new(argv.iter().copied(), env, dir, None).unwrap(), null());
            let report = child.report(LONG).unwrap();
            child.reap();
            match report {
                Some(Report::Failed(error)) => error.raw_os_error(),
                report => panic!("{report:?}"),
            }
        };
        assert_eq!(failed(&["no-such-program"], "/"), Some(libc::ENOENT));
        assert_eq!(failed(&["true"], "/no/such/directory"), Some(libc::ENOENT));
        assert_eq!(failed(&["/etc/passwd"], "/"), Some(libc::EACCES));
        assert!(Program::new([""; 0], [], "/", None).is_err());
        assert!(Program::new(["a\0b"], [], "/", None).is_err());
    }
}
