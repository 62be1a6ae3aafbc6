// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child process of the harness, which ends with the harness, also when that is killed.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// A child process, with what it has started in its process group: the program may be a script that starts the real
/// one. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    /// It has been waited for: its number may be another's by now.
    reaped: bool,
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs a job on a thread that runs as long as this process. The kernel ties a child's parent-death signal to the
/// *thread* that forked it: a child forked by a passing thread would be killed when that thread ends.
fn on_lasting_thread<T: Send + 'static>(job: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    static SPAWNER: LazyLock<io::Result<Sender<Job>>> = LazyLock::new(|| {
        let (jobs, queue) = channel::<Job>();
        let serve = move || queue.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("spawner".into()).spawn(serve).map(|_| jobs)
    });
    let ended = || io::Error::other("the spawning thread has ended");
    let (answer, result) = channel();
    let job: Job = Box::new(move || {
        // The caller waits for it below.
        let _ = answer.send(job());
    });
    let jobs = SPAWNER.as_ref().map_err(|e| io::Error::new(e.kind(), e.to_string()))?;
    jobs.send(job).map_err(|_| ended())?;
    result.recv().map_err(|_| ended())?
}

/// Programs that this process starts from now on inherit standard input, output and error alone: what a daemon holds
/// open, such as a lock or a pipe of its caller's, stays so for as long as it runs.
pub(crate) fn inherit_nothing() {
    // SAFETY: it sets flags of file descriptors, and closes none. It fails on kernels before 5.11, which changes
    // nothing.
    let failed = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    if failed != 0 {
        log::debug!("inherited file descriptors stay open: {}", io::Error::last_os_error());
    }
}

impl Process {
    /// Starts `command`; what it prints is appended to `log`.
    pub fn start(what: impl Into<String>, mut command: Command, log: &Path) -> Result<Process> {
        let what = what.into();
        let out = OpenOptions::new().create(true).append(true).open(log).map_err(Error::io("cannot open", log))?;
        let err = out.try_clone().map_err(Error::io("cannot use", log))?;
        // A separate process group: Ctrl-C on the terminal is for the harness, which then ends its children in order.
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec this makes two system calls and nothing else: no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                // The harness may have died before the line above.
                if rustix::process::getppid() != Some(parent) {
                    return Err(rustix::io::Errno::SRCH.into());
                }
                Ok(())
            });
        }
        log::debug!("starting {what}: {command:?}");
        let child =
            on_lasting_thread(move || command.spawn()).map_err(|source| Error::Spawn { what: what.clone(), source })?;
        Ok(Process { what, child, reaped: false })
    }

    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has. Then nothing else of its group runs either.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if !self.reaped && matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), looks), Ok(Some(_))) {
            self.kill();
        }
        self.child.try_wait().ok().flatten()
    }

    /// Stops it (SIGSTOP), as a process that hangs, or continues it. Does nothing to one that has ended.
    pub(crate) fn hang(&self, hangs: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        // It fails only if the child has ended and been waited for.
        let _ = kill_process(Pid::from_child(&self.child), if hangs { Signal::STOP } else { Signal::CONT });
    }

    /// Kills it, with its group, and waits for its end.
    pub(crate) fn kill(&mut self) {
        use rustix::process::{Pid, Signal, kill_process_group};
        if !self.reaped {
            // Before it is waited for: until then the group's number is its own.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
            self.reaped = true;
        }
    }

    /// Its memory at present, if it runs.
    pub(crate) fn memory(&self) -> Option<Memory> {
        Memory::read(&fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?)
    }

    /// Processor time that its threads have used so far, to the nanosecond where the kernel counts so; that of threads
    /// that have ended is not in it.
    pub fn cpu_time(&self) -> Option<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
        let of = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Duration::from_nanos(tasks.flatten().filter_map(of).sum()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Memory of a process, in KiB, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident private memory: heap and stack.
    pub anonymous: u64,
    /// Resident pages of files: program and libraries.
    pub file: u64,
    /// Resident shared memory. Guest RAM is here, in QEMU and in the HIB that has mapped it.
    pub shared: u64,
}

impl Memory {
    fn read(status: &str) -> Option<Memory> {
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()
        };
        Some(Memory { anonymous: field("RssAnon")?, file: field("RssFile")?, shared: field("RssShmem")? })
    }

    /// Resident memory beyond guest RAM.
    pub fn own(&self) -> u64 {
        self.anonymous + self.file
    }
}

/// The length of a log; 0 if there is none.
pub(crate) fn length(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |metadata| metadata.len())
}

/// Bytes of a log, from there on; none if it cannot be read.
pub(crate) fn read_part(log: &Path, from: u64, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = || -> io::Result<()> {
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(from))?;
        file.take(most).read_to_end(&mut bytes).map(drop)
    };
    // One that is not there yet is empty.
    let _ = { read }();
    bytes
}

/// The last lines of a log.
pub fn tail(path: &Path, lines: usize) -> String {
    const MOST: u64 = 64 * 1024;
    let text = read_part(path, length(path).saturating_sub(MOST), MOST);
    let text = String::from_utf8_lossy(&text).replace('\r', "");
    let all: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Whether a process listens on that Unix socket, as the kernel says: a trial connection would count as the one client
/// that a HIB serves.
pub(crate) fn listens(path: &Path) -> bool {
    listens_seen_by(path, "self")
}

/// The same, of a process that may be in another network namespace: its number, or `self`.
pub fn listens_seen_by(path: &Path, process: &str) -> bool {
    let table = fs::read(format!("/proc/{process}/net/unix")).unwrap_or_default();
    is_listed(&table, path)
}

/// Whether a table of the kernel's has a socket with this path that listens. The path is the end of an entry, as it is,
/// with spaces and newlines.
fn is_listed(table: &[u8], path: &Path) -> bool {
    /// `__SO_ACCEPTCON` in the fourth of seven columns.
    const LISTENING: &[u8] = b"00010000";
    let end = [b" ", path.as_os_str().as_bytes(), b"\n"].concat();
    let places = table.windows(end.len()).enumerate().filter(|(_, window)| *window == end).map(|(at, _)| at);
    places.into_iter().any(|at| {
        let begin = table[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let mut columns = table[begin..at].split(|byte| *byte == b' ').filter(|column| !column.is_empty());
        columns.nth(3) == Some(LISTENING) && columns.count() == 3
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn sleeper(dir: &Path) -> Process {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Process::start("sleep", command, &dir.join("log")).unwrap()
    }

    #[test]
    fn a_child_outlives_the_thread_that_started_it_but_not_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_path_buf();
        let mut child = std::thread::spawn(move || sleeper(&at)).join().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(child.ended(), None);
        let proc = PathBuf::from(format!("/proc/{}", child.pid()));
        assert!(proc.exists() && child.memory().is_some() && child.cpu_time().is_some());
        drop(child);
        assert!(!proc.exists());
    }

    /// A script that starts the program without `exec`; the number of the program's process.
    fn script(dir: &Path, then: &str) -> (Process, PathBuf) {
        let pid = dir.join("pid");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("sleep 1000 & echo $! >{0}.new && mv {0}.new {0}; {then}", pid.display())]);
        let process = Process::start("script", command, &dir.join("log")).unwrap();
        let begun = std::time::Instant::now();
        while !pid.exists() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = fs::read_to_string(pid).unwrap();
        (process, PathBuf::from(format!("/proc/{}/exe", pid.trim())))
    }

    /// A process that has ended has no program, also where it is not waited for.
    fn ends(program: &Path) -> bool {
        let begun = std::time::Instant::now();
        while fs::read_link(program).is_ok() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::read_link(program).is_err()
    }

    #[test]
    fn what_a_script_has_started_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let (process, program) = script(dir.path(), "wait");
        assert!(fs::read_link(&program).is_ok());
        drop(process);
        assert!(ends(&program));
        // The script ends first.
        let dir = tempfile::tempdir().unwrap();
        let (mut process, program) = script(dir.path(), "exit 7");
        while process.ended().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(process.ended().and_then(|status| status.code()), Some(7));
        assert!(ends(&program));
    }

    #[test]
    fn memory_is_read_from_the_kernels_words() {
        let text = "VmRSS:\t  300 kB\nRssAnon:\t     100 kB\nRssFile:\t      50 kB\nRssShmem:\t     150 kB\n";
        let memory = Memory::read(text).unwrap();
        assert_eq!(memory, Memory { anonymous: 100, file: 50, shared: 150 });
        assert_eq!(memory.own(), 150);
        assert_eq!(Memory::read("Name: zombie"), None);
    }

    #[test]
    fn a_socket_listens_only_while_it_does() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["socket", "so cket", " a  b ", "new\nline", "ä,=\"'"] {
            let path = dir.path().join(name);
            assert!(!listens(&path));
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            assert!(listens(&path), "{name:?}");
            let rest = name.split(' ').next_back().unwrap_or_default();
            assert!(rest == name || !listens(Path::new(rest)));
            drop(listener);
            assert!(path.exists() && !listens(&path));
        }
        // Connected, not listening; and a path that only ends so.
        let line = "0000000000000000: 00000003 00000000 00000000 0001 03 12345 /a b\n";
        assert!(!is_listed(line.as_bytes(), Path::new("/a b")));
        let line = line.replace("00000000 00000000 0001", "00000000 00010000 0001");
        assert!(is_listed(line.as_bytes(), Path::new("/a b")) && !is_listed(line.as_bytes(), Path::new("b")));
    }

    #[test]
    fn tail_is_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "a\r\n\nb\nc\n").unwrap();
        assert_eq!(tail(&path, 2), "b\nc");
        assert_eq!(tail(&dir.path().join("none"), 2), "");
    }
}
