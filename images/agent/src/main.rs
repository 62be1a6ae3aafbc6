// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tg-agent TTY`: serves a harness outside the guest, see the library. One thread, one poll loop; every buffer is
//! bounded: a command whose output the line cannot take is simply not read until the line is free. With `--devices` it
//! also gives the device nodes of boards their owner when they appear, with `--network` their network devices the
//! address of their node, and with `--kernel` it reports errors of this machine's kernel.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitStatus};
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, OptionalActions, Winsize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos_agent::child::{Child, Program, Report};
use telegraphos_agent::devices::Devices;
use telegraphos_agent::kernel::KernelLog;
use telegraphos_agent::network::BoardDevices;
use telegraphos_agent::user::Account;
use telegraphos_agent::{
    BULK, ByteBuf, Decoder, Exit, MAX_DATA, Run, STDIN_WINDOW, Terminal, ToGuest, ToHost, bounded, encode,
};
use telegraphos_agent::{memory, port};

/// The device node of the first board.
const BOARD: &str = "/dev/telegraphos0";
/// Commands that may run at once.
const MAX_JOBS: usize = 64;
/// Refusals that wait until a command has begun, at most.
const MAX_REFUSED: usize = 16;
/// Within this a command begins: its program and its directory can be on a filesystem of its user's.
const START: Duration = Duration::from_secs(10);
/// What shells exit with where a program is not found, or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// What a command has written before its end is in its pipes, which hold no more than this.
const LAST: usize = 1 << 20;
/// Outputs of commands that have ended which are read on, and how often each in one turn.
const MAX_LEFT: usize = 128;
const DISCARDED: usize = 16;
/// A port appears within this time after its modules are loaded; so often it is looked for.
const PORT_APPEARS: Duration = Duration::from_secs(2);
const PORT_LOOK: Duration = Duration::from_millis(10);
/// Bytes of a reason.
const TEXT: usize = 1024;
/// With more than this waiting for the line, commands' output is not read.
const OUT_HIGH: usize = 32 * 1024;
/// With more than this waiting, not even the line is read: a host that sends without reading must wait.
const OUT_LIMIT: usize = 256 * 1024;

struct Job {
    id: u32,
    child: Child,
    name: String,
    /// It has not begun; then it is ended.
    begins: Option<Instant>,
    /// What is refused meanwhile: an error before it has begun would say that it does not.
    refused: Vec<String>,
    watch: OwnedFd,
    stdin: Option<File>,
    pending: VecDeque<u8>,
    close_stdin: bool,
    /// Standard output and standard error.
    outputs: [Option<File>; 2],
    status: Option<WaitStatus>,
    /// Bytes that were read after its end.
    after: usize,
    /// The host that started it is gone; its messages are dropped.
    muted: bool,
}

/// One way to the harness.
struct Way {
    file: File,
    out: VecDeque<u8>,
    decoder: Decoder,
}

/// The fast way.
enum Port {
    Unused,
    /// It appears until then.
    Coming(Instant),
    Open {
        way: Way,
        /// The host speaks on it, too.
        heard: bool,
    },
    None,
}

struct Agent {
    line: Way,
    port: Port,
    /// Bytes of output that were said on the line.
    said: usize,
    /// In the order of their start.
    jobs: Vec<Job>,
    /// Outputs of commands that have ended, which processes that they have left behind still have.
    left: VecDeque<File>,
    watches: Watches,
}

/// What it looks after beside commands.
#[derive(Default)]
struct Watches {
    devices: Option<Devices>,
    network: Option<BoardDevices>,
    kernel: Option<KernelLog>,
}

impl Watches {
    fn of(args: &mut std::iter::Peekable<impl Iterator<Item = String>>) -> io::Result<Watches> {
        let mut given = |option: &str| args.next_if(|arg| arg == option).is_some();
        // Before it says that a board is there.
        let devices = given("--devices").then(|| Devices::watch("/dev".as_ref())).transpose()?;
        let network = given("--network").then(BoardDevices::watch).transpose()?;
        // A root may have no such log; then the console says what there is.
        let kernel = given("--kernel").then(|| KernelLog::open("/dev/kmsg".as_ref()).ok()).flatten();
        if kernel.is_some() {
            memory::be_spared();
        }
        Ok(Watches { devices, network, kernel })
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let watches = Watches::of(&mut args);
    let (Some(path), None) = (args.next(), args.next()) else {
        eprintln!("usage: tg-agent [--devices] [--network] [--kernel] TTY\nexample: tg-agent /dev/ttyS1");
        return ExitCode::from(2);
    };
    match watches.and_then(|watches| Agent::open(&path, watches)).and_then(|mut agent| agent.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tg-agent: {path}: {e}");
            // Started again at once by init, it would spin.
            std::thread::sleep(std::time::Duration::from_secs(1));
            ExitCode::FAILURE
        }
    }
}

impl Way {
    fn new(file: File) -> Way {
        Way { file, out: VecDeque::new(), decoder: Decoder::default() }
    }

    fn say(&mut self, message: &ToHost) {
        // Every message this program makes is short enough: data is cut to MAX_DATA, texts to 1 KiB.
        if let Ok(frame) = encode(message) {
            self.out.extend(frame);
        }
    }

    /// Writes what it takes at once.
    fn write(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.file.write(self.out.as_slices().0) {
                Ok(0) => break,
                Ok(n) => drop(self.out.drain(..n)),
                Err(e) if would_block(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads what there is at once; whether it was something.
    fn read(&mut self) -> io::Result<bool> {
        let mut bytes = [0; MAX_DATA];
        match self.file.read(&mut bytes) {
            Ok(n) => {
                self.decoder.push(&bytes[..n]);
                Ok(n > 0)
            }
            Err(e) if would_block(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn poll(&self, reads: bool) -> PollFd<'_> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, reads);
        wanted.set(PollFlags::OUT, !self.out.is_empty());
        PollFd::new(&self.file, wanted)
    }
}

impl Agent {
    fn open(path: &str, watches: Watches) -> io::Result<Agent> {
        let line =
            rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        let mut settings = termios::tcgetattr(&line)?;
        settings.make_raw();
        settings.set_speed(115_200)?;
        termios::tcsetattr(&line, OptionalActions::Now, &settings)?;
        let (line, port, jobs, left) = (Way::new(line.into()), Port::Unused, Vec::new(), VecDeque::new());
        let mut agent = Agent { line, port, said: 0, jobs, left, watches };
        agent.hello();
        Ok(agent)
    }

    /// Begins the conversation, on the line.
    fn hello(&mut self) {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let uptime_ms = up.tv_sec.unsigned_abs() * 1000 + up.tv_nsec.unsigned_abs() / 1_000_000;
        let board = Path::new(BOARD).exists();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        (self.port, self.said) = (Port::Unused, 0);
        self.say(&ToHost::Hello { release, uptime_ms, board, boot: boot.trim().to_owned() });
    }

    fn look_at_kernel(&mut self) {
        for error in self.watches.kernel.as_mut().map(KernelLog::look).unwrap_or_default() {
            self.say(&ToHost::Kernel { sequence: error.sequence, text: error.text });
        }
    }

    fn say(&mut self, message: &ToHost) {
        match &mut self.port {
            Port::Open { way, .. } => way.say(message),
            _ => self.line.say(message),
        }
    }

    /// Says what a command has written.
    fn say_output(&mut self, message: &ToHost, length: usize) {
        self.say(message);
        self.said = self.said.saturating_add(length);
        if self.said >= BULK {
            self.use_port();
        }
    }

    /// Bytes that wait for the harness.
    fn waiting(&self) -> usize {
        let port = if let Port::Open { way, .. } = &self.port { way.out.len() } else { 0 };
        self.line.out.len() + port
    }

    /// Looks for the port, if it has not done so.
    fn use_port(&mut self) {
        match self.port {
            Port::Unused => {}
            Port::None => return self.say(&ToHost::NoPort),
            Port::Coming(_) | Port::Open { .. } => return,
        }
        if let Err(e) = port::load() {
            eprintln!("tg-agent: the port for much data: {e}");
        }
        self.port = Port::Coming(Instant::now() + PORT_APPEARS);
    }

    /// Continues on the port if it has come.
    fn look_for_port(&mut self) {
        let Port::Coming(end) = self.port else { return };
        let found = port::find().inspect_err(|e| eprintln!("tg-agent: the port for much data: {e}"));
        match found {
            Ok(Some(file)) => {
                self.line.say(&ToHost::OnPort);
                self.port = Port::Open { way: Way::new(file), heard: false };
            }
            Ok(None) if Instant::now() < end => {}
            Ok(None) | Err(_) => {
                self.port = Port::None;
                self.say(&ToHost::NoPort);
            }
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.look_for_port();
            self.line.write()?;
            if let Port::Open { way, .. } = &mut self.port {
                way.write()?;
            }
            self.wait()?;
            if let Some(devices) = &self.watches.devices {
                devices.look()?;
            }
            if let Some(network) = &mut self.watches.network {
                network.look()?;
            }
            self.look_at_kernel();
            if self.waiting() <= OUT_LIMIT {
                self.read()?;
            }
            self.work();
            self.discard();
        }
    }

    /// Sleeps until something can be done. Which it was is found out by trying: everything is non-blocking.
    fn wait(&self) -> io::Result<()> {
        let waiting = self.waiting();
        let free = waiting <= OUT_HIGH;
        let mut fds = vec![self.line.poll(waiting <= OUT_LIMIT)];
        if let Port::Open { way, heard } = &self.port {
            fds.push(way.poll(*heard && waiting <= OUT_LIMIT));
        }
        let Watches { devices, network, kernel } = &self.watches;
        fds.extend(devices.iter().map(|devices| PollFd::new(devices, PollFlags::IN)));
        fds.extend(network.iter().map(|network| PollFd::new(network, PollFlags::IN)));
        fds.extend(kernel.iter().map(|kernel| PollFd::new(kernel, PollFlags::IN)));
        for job in &self.jobs {
            if job.begins.is_some() {
                fds.push(PollFd::new(job.child.report_fd(), PollFlags::IN));
            }
            if job.status.is_none() {
                fds.push(PollFd::new(&job.watch, PollFlags::IN));
            }
            if free {
                fds.extend(job.outputs.iter().flatten().map(|f| PollFd::new(f, PollFlags::IN)));
            }
            if !job.pending.is_empty() {
                fds.extend(job.stdin.as_ref().map(|f| PollFd::new(f, PollFlags::OUT)));
            }
        }
        fds.extend(self.left.iter().map(|f| PollFd::new(f, PollFlags::IN)));
        // What has ended may have left output.
        let at_once = (free && self.jobs.iter().any(|j| j.status.is_some())).then_some(Timespec::default());
        let begins = self.jobs.iter().filter_map(|job| job.begins).min();
        let begins = begins.map(|end| end.saturating_duration_since(Instant::now()));
        // A second later is no harm, and never too early.
        let begins = begins.map(|left| Timespec { tv_sec: left.as_secs() as i64 + 1, tv_nsec: 0 });
        let coming = matches!(self.port, Port::Coming(_));
        let coming = coming.then_some(Timespec { tv_sec: 0, tv_nsec: PORT_LOOK.as_nanos() as i64 });
        match rustix::event::poll(&mut fds, at_once.or(coming).or(begins).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        // The host connects anew.
        let closed = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::HUP);
        if matches!(self.port, Port::Open { .. }) && fds.get(1).is_some_and(closed) {
            std::thread::sleep(PORT_LOOK);
        }
        Ok(())
    }

    /// What the host says on the port comes behind what it has said on the line.
    fn read(&mut self) -> io::Result<()> {
        while self.line.read()? {
            while let Some(message) = self.line.decoder.next() {
                self.handle(message);
            }
        }
        // As much as it may have on the way of two commands: a turn has an end.
        for _ in 0..2 * STDIN_WINDOW as usize / MAX_DATA {
            let Port::Open { way, heard: true } = &mut self.port else { break };
            if !way.read()? {
                break;
            }
            while let Some(message) = self.next_of_port() {
                self.handle(message);
            }
        }
        Ok(())
    }

    fn next_of_port(&mut self) -> Option<ToGuest> {
        match &mut self.port {
            Port::Open { way, .. } => way.decoder.next(),
            _ => None,
        }
    }

    fn handle(&mut self, message: ToGuest) {
        let is_run = matches!(message, ToGuest::Run(_));
        let (id, done) = match message {
            ToGuest::Attach => {
                for job in &mut self.jobs {
                    job.muted = true;
                    let _ = job.signal(Signal::KILL);
                }
                return self.hello();
            }
            ToGuest::Ping { nonce } => return self.say(&ToHost::Pong { nonce }),
            ToGuest::UsePort => return self.use_port(),
            ToGuest::OnPort => {
                if let Port::Open { heard, .. } = &mut self.port {
                    *heard = true;
                }
                return;
            }
            ToGuest::Run(run) => (run.id, self.run(&run)),
            ToGuest::Resize { id, terminal } => {
                (id, self.job(id).and_then(|job| job.resize(terminal).map_err(|e| e.to_string())))
            }
            ToGuest::Stdin { id, bytes } => (id, self.job(id).and_then(|job| job.take(bytes))),
            ToGuest::CloseStdin { id } => (id, self.job(id).map(|job| job.close_stdin = true)),
            ToGuest::Signal { id, signal } => {
                let named = Signal::from_named_raw(signal).ok_or_else(|| format!("{signal} is no signal"));
                (id, self.job(id).and_then(|job| job.signal(named?).map_err(|e| e.to_string())))
            }
        };
        let Err(text) = done else { return };
        match self.jobs.iter_mut().find(|job| job.id == id && job.begins.is_some() && !is_run) {
            Some(job) if job.refused.len() < MAX_REFUSED => job.refused.push(text),
            Some(_) => {}
            None => self.refuse(id, text),
        }
    }

    fn refuse(&mut self, id: u32, text: String) {
        self.say(&ToHost::Error { id, text: bounded(&text, TEXT).to_owned() });
    }

    fn run(&mut self, run: &Run) -> Result<(), String> {
        if self.job(run.id).is_ok() {
            return Err(format!("command id {} is in use; choose another", run.id));
        }
        if self.jobs.len() >= MAX_JOBS {
            return Err(format!("{MAX_JOBS} commands run already; wait for one to end"));
        }
        // Whether it begins is found out beside everything else.
        let failed = |e| format!("cannot run {:?}: {e}", run.argv.first().map_or("".into(), name_of));
        self.jobs.push(spawn(run).map_err(failed)?);
        Ok(())
    }

    fn job(&mut self, id: u32) -> Result<&mut Job, String> {
        self.jobs.iter_mut().find(|j| j.id == id && !j.muted).ok_or_else(|| format!("no command {id} runs"))
    }

    /// One round over all commands: input, output, end.
    fn work(&mut self) {
        // Taken out, so that their messages can be appended meanwhile.
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.retain_mut(|job| !self.work_on(job));
        self.jobs = jobs;
    }

    /// Takes and discards what processes in the background write whose command has ended, so that they continue.
    fn discard(&mut self) {
        let mut bytes = [0; MAX_DATA];
        self.left.retain_mut(|from| {
            for _ in 0..DISCARDED {
                match from.read(&mut bytes) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(e) => return would_block(&e),
                }
            }
            true
        });
        // The end of its output ends the process that writes, as without this.
        while self.left.len() > MAX_LEFT {
            self.left.pop_front();
        }
    }

    /// Whether the command has begun, or why it does not, with the code that a shell has for that.
    fn begin(&mut self, job: &mut Job, end: Instant) -> Result<(), (u8, String)> {
        match job.child.report(Duration::ZERO) {
            Ok(Some(Report::Closed | Report::Done)) => {
                job.begins = None;
                if !job.muted {
                    self.say(&ToHost::Started { id: job.id, pid: job.child.id() });
                    std::mem::take(&mut job.refused).into_iter().for_each(|text| self.refuse(job.id, text));
                }
                Ok(())
            }
            Ok(Some(Report::Failed(error))) | Err(error) => {
                let missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
                Err((if missing { NOT_FOUND } else { NOT_EXECUTABLE }, error.to_string()))
            }
            Ok(None) if Instant::now() >= end => {
                Err((NOT_EXECUTABLE, format!("its directory or program is not there within {} s", START.as_secs())))
            }
            Ok(None) => Ok(()),
        }
    }

    /// Whether the command has ended and that is reported.
    fn work_on(&mut self, job: &mut Job) -> bool {
        if let Some(end) = job.begins {
            if let Err((code, why)) = self.begin(job, end) {
                job.child.kill();
                if !job.muted {
                    let text = bounded(&format!("cannot run {:?}: {why}", job.name), TEXT).to_owned();
                    self.say(&ToHost::NotStarted { id: job.id, code, text });
                }
                // It is reaped as one that has been forgotten.
                (job.begins, job.muted, job.outputs) = (None, true, [None, None]);
            } else if job.begins.is_some() {
                return false;
            }
        }
        let taken = job.feed();
        if taken > 0 && !job.muted {
            self.say(&ToHost::StdinTaken { id: job.id, bytes: taken });
        }
        if job.status.is_none() {
            job.status = job.child.try_reap().ok().flatten();
        }
        // Output that was written before the end is reported before the end.
        let mut drained = true;
        for (stream, from) in job.outputs.iter_mut().enumerate() {
            if !job.muted && self.waiting() > OUT_HIGH {
                drained = false;
                continue;
            }
            // Of those that it has left behind, it is not waited for the end.
            if job.after > LAST {
                continue;
            }
            let Some(bytes) = read_some(from) else { continue };
            drained = false;
            if job.status.is_some() {
                job.after += bytes.len();
            }
            let (id, length) = (job.id, bytes.len());
            if !job.muted {
                let message = if stream == 0 { ToHost::Stdout { id, bytes } } else { ToHost::Stderr { id, bytes } };
                self.say_output(&message, length);
            }
        }
        let Some(status) = job.status.filter(|_| drained) else { return false };
        if !job.muted {
            let exit = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, signal) => Exit::Signal(signal.unwrap_or(0)),
            };
            // What the command has made the kernel report comes before its end.
            self.look_at_kernel();
            self.say(&ToHost::Exited { id: job.id, exit });
            self.left.extend(job.outputs.iter_mut().filter_map(Option::take));
        }
        true
    }
}

impl Job {
    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        match Pid::from_raw(self.child.id() as i32) {
            // Not after the end: the number may be another's by then.
            Some(pid) if self.status.is_none() => rustix::process::kill_process_group(pid, signal),
            _ => Ok(()),
        }
    }

    fn resize(&self, terminal: Terminal) -> rustix::io::Result<()> {
        match &self.stdin {
            Some(stdin) => termios::tcsetwinsize(stdin, size(terminal)),
            None => Ok(()),
        }
    }

    /// Takes input for it.
    fn take(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        if self.close_stdin || self.pending.len() + bytes.len() > STDIN_WINDOW as usize {
            return Err(format!("{} bytes of input beyond the window or after the end", bytes.len()));
        }
        self.pending.extend(bytes);
        Ok(())
    }

    /// Moves waiting input on; returns how many bytes left.
    fn feed(&mut self) -> u32 {
        let mut taken = 0;
        while let Some(stdin) = &mut self.stdin {
            if self.pending.is_empty() {
                if self.close_stdin {
                    self.stdin = None;
                }
                break;
            }
            match stdin.write(self.pending.as_slices().0) {
                Ok(n) => {
                    self.pending.drain(..n);
                    taken += n as u32;
                }
                Err(e) if would_block(&e) => break,
                Err(_) => self.stdin = None,
            }
        }
        if self.stdin.is_none() {
            taken += self.pending.len() as u32;
            self.pending.clear();
        }
        taken
    }
}

/// Up to [`MAX_DATA`] bytes; nothing when there are none now. The end of the stream closes it.
fn read_some(from: &mut Option<File>) -> Option<Vec<u8>> {
    let reader = from.as_mut()?;
    let mut bytes = vec![0; MAX_DATA];
    match reader.read(&mut bytes) {
        Ok(n) if n > 0 => {
            bytes.truncate(n);
            Some(bytes)
        }
        Err(e) if would_block(&e) => None,
        _ => {
            *from = None;
            None
        }
    }
}

fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A word for messages.
fn name_of(word: &ByteBuf) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn size(terminal: Terminal) -> Winsize {
    Winsize { ws_row: terminal.rows, ws_col: terminal.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What a command has as its standard streams, and this end of them.
struct Streams {
    theirs: [OwnedFd; 3],
    input: OwnedFd,
    outputs: [Option<OwnedFd>; 2],
}

fn pipes() -> io::Result<Streams> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let ((their_input, input), (output, their_output), (errors, their_errors)) = (pipe()?, pipe()?, pipe()?);
    Ok(Streams { theirs: [their_input, their_output, their_errors], input, outputs: [Some(output), Some(errors)] })
}

/// One terminal for all three, which belongs to this user.
fn terminal_of(uid: u32, terminal: Terminal) -> io::Result<Streams> {
    let ours = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    pty::grantpt(&ours)?;
    pty::unlockpt(&ours)?;
    let name = pty::ptsname(&ours, Vec::new())?;
    let theirs = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&theirs, Some(rustix::process::Uid::from_raw(uid)), None)?;
    }
    termios::tcsetwinsize(&ours, size(terminal))?;
    let input = ours.try_clone()?;
    Ok(Streams { theirs: [theirs.try_clone()?, theirs.try_clone()?, theirs], input, outputs: [Some(ours), None] })
}

fn spawn(run: &Run) -> io::Result<Job> {
    let Run { id, uid, gid, argv, env, cwd, terminal } = run;
    let (id, uid, gid) = (*id, *uid, *gid);
    let name = argv.first().ok_or_else(|| io::Error::other("empty command"))?;
    let user = Account::of(uid);
    // Set by tg-init in a root of the user's.
    let usual = std::env::var("TELEGRAPHOS_PATH").unwrap_or_else(|_| "/bin".into());
    let path = env.iter().find(|(k, _)| k == "PATH").map_or(usual.as_str(), |(_, v)| v.as_str());
    let usual = [("PATH", path), ("HOME", &user.home), ("USER", &user.name), ("TERM", "dumb")];
    let env: BTreeMap<&str, &str> =
        usual.into_iter().chain(env.iter().map(|(name, value)| (&**name, &**value))).collect();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root && (uid != rustix::process::geteuid().as_raw() || gid != rustix::process::getegid().as_raw()) {
        return Err(io::Error::other("the agent is not root and cannot become another user"));
    }
    let ids = is_root.then(|| user.ids(uid, gid)).transpose()?;
    let program = Program::new(argv.iter().map(|word| word.to_vec()), env, cwd.as_deref().unwrap_or("/"), ids)?;
    let program = if terminal.is_some() { program.with_terminal() } else { program };
    let Streams { theirs, input, outputs } = terminal.map_or_else(pipes, |terminal| terminal_of(uid, terminal))?;
    for fd in outputs.iter().flatten().chain([&input]) {
        rustix::io::ioctl_fionbio(fd, true)?;
    }
    let be_usual = |_| {
        memory::be_usual();
        Ok(())
    };
    // SAFETY: it makes system calls only.
    let child = unsafe { program.start(theirs, be_usual) }?;
    let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("no process id"))?;
    // Readable when the child has ended.
    let watch = rustix::process::pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| child.kill())?;
    Ok(Job {
        id,
        name: name_of(name),
        begins: Some(Instant::now() + START),
        refused: Vec::new(),
        watch,
        stdin: Some(input.into()),
        outputs: outputs.map(|output| output.map(File::from)),
        child,
        pending: VecDeque::new(),
        close_stdin: false,
        status: None,
        after: 0,
        muted: false,
    })
}
