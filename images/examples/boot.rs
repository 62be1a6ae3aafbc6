// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots guests and talks to their agent: `boot [--repeat N] [--qemu "OPTIONS"] [--words "KERNEL WORDS"] SERIES...`.
//! Shows how long a guest takes to its agent and how much processor time its QEMU has used by then, user ids inside,
//! and how fast the serial line is.
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use telegraphos_agent::{Decoder, Exit, ToGuest, ToHost, encode};
use telegraphos_images::{KernelSeries, Machine, Progress, Store, TCG};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Vm(Child);

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Line {
    socket: UnixStream,
    decoder: Decoder,
}

impl Line {
    fn say(&mut self, message: &ToGuest) -> Result<()> {
        self.socket.write_all(&encode(message)?)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<ToHost> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.decoder.next() {
                return Ok(message);
            }
            let n = self.socket.read(&mut bytes)?;
            if n == 0 {
                return Err("the guest's serial line is closed".into());
            }
            self.decoder.push(&bytes[..n]);
        }
    }

    /// Runs a command to its end; everything it wrote.
    fn run(&mut self, uid: u32, argv: &[&str], input: &[u8]) -> Result<(Exit, Vec<u8>)> {
        let argv = argv.iter().map(|a| (*a).to_owned()).collect();
        self.say(&ToGuest::Run { id: 1, uid, gid: uid, argv, env: vec![("LANG".into(), "C".into())], cwd: None })?;
        let mut output = Vec::new();
        let mut window = telegraphos_agent::STDIN_WINDOW as usize;
        let mut input = input.chunks(telegraphos_agent::MAX_DATA).peekable();
        let mut closed = false;
        loop {
            match self.receive()? {
                ToHost::Started { .. } => {}
                ToHost::Stdout { bytes, .. } | ToHost::Stderr { bytes, .. } => output.extend(bytes),
                ToHost::StdinTaken { bytes, .. } => window += bytes as usize,
                ToHost::Exited { exit, .. } => return Ok((exit, output)),
                ToHost::Error { text, .. } => return Err(text.into()),
                other => return Err(format!("unexpected {other:?}").into()),
            }
            while let Some(bytes) = input.next_if(|b| b.len() <= window) {
                window -= bytes.len();
                self.say(&ToGuest::Stdin { id: 1, bytes: bytes.to_vec() })?;
            }
            if input.peek().is_none() && !closed {
                closed = true;
                self.say(&ToGuest::CloseStdin { id: 1 })?;
            }
        }
    }
}

/// Processor time that a process has used, in seconds; Linux counts it in hundredths for programs.
fn processor_time(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or("").split(' ');
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / 100.0)
}

fn boot(store: &Store, series: KernelSeries, extra: &[String], words: &str, talk: bool) -> Result<[f64; 2]> {
    let (qemu, guest) = (store.qemu()?, store.guest(series)?);
    let dir = tempfile::tempdir()?;
    let (console, agent) = (dir.path().join("console"), dir.path().join("agent"));
    let begun = Instant::now();
    let mut command = qemu.command();
    command.args(guest.qemu_args(Machine::default(), TCG, &format!("telegraphos.node=3 {words}")));
    command.args(["-m", "256M", "-object", "memory-backend-memfd,id=ram,size=256M,share=on"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.arg("-serial").arg(format!("unix:{},server=on,wait=off", agent.display()));
    command.args(["-device", "pcie-root-port,id=rp0,chassis=1,slot=1", "-no-reboot"]).args(extra);
    let mut vm = Vm(command.stdin(Stdio::null()).spawn()?);
    let socket = loop {
        match UnixStream::connect(&agent) {
            Ok(socket) => break socket,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                if let Some(status) = vm.0.try_wait()? {
                    return Err(format!("QEMU ended: {status}").into());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) => return Err(e.into()),
        }
    };
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut line = Line { socket, decoder: Decoder::default() };
    let hello = line.receive()?;
    let took = begun.elapsed().as_secs_f64();
    let used = processor_time(vm.0.id())?;
    println!("{series}: {hello:?} after {took:.2} s, {used:.2} s of processor time");
    if talk {
        for (uid, command) in [
            (0, "uname -a; cat /proc/cmdline"),
            (1000, "id; ls -l /dev/telegraphos* ; hostname; pwd"),
            (0, "lspci -nn; lsmod; dmesg -r | grep -E '^<[0-4]>'; ps | grep -v '\\[' | head -20"),
        ] {
            let (exit, output) = line.run(uid, &["sh", "-c", command], b"")?;
            println!("--- {command} -> {exit:?}\n{}", String::from_utf8_lossy(&output));
        }
        // Every byte value both ways, more than any buffer holds.
        let data: Vec<u8> = (0..600_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let begun = Instant::now();
        let (exit, output) = line.run(1000, &["cat"], &data)?;
        let took = begun.elapsed().as_secs_f64();
        println!(
            "cat of {} bytes: {exit:?}, equal: {}, {:.0} kB/s each way",
            data.len(),
            output == data,
            data.len() as f64 / took / 1e3
        );
        let begun = Instant::now();
        for nonce in 0..100 {
            line.say(&ToGuest::Ping { nonce })?;
            if line.receive()? != (ToHost::Pong { nonce }) {
                return Err("no pong".into());
            }
        }
        println!("ping: {:.2} ms", begun.elapsed().as_secs_f64() * 10.0);
        let begun = Instant::now();
        let (exit, _) = line.run(1000, &["true"], b"")?;
        println!(
            "true: {exit:?} in {:.1} ms; skipped {} bytes",
            begun.elapsed().as_secs_f64() * 1e3,
            line.decoder.skipped()
        );
        println!("{:?}", line.run(0, &["no-such-command"], b"").map_err(|e| e.to_string()));
    }
    line.say(&ToGuest::Run {
        id: 2,
        uid: 0,
        gid: 0,
        argv: vec!["poweroff".into(), "-f".into()],
        env: vec![],
        cwd: None,
    })?;
    let status = vm.0.wait()?;
    println!("{series}: powered off after {:.2} s, {status}", begun.elapsed().as_secs_f64());
    if talk {
        println!("--- console\n{}", std::fs::read_to_string(&console)?);
    }
    Ok([took, used])
}

fn main() -> Result<()> {
    let store = Store::open(None, Progress::Auto)?;
    let (mut repeat, mut extra, mut all, mut words) = (1, Vec::new(), Vec::new(), String::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--repeat" => repeat = args.next().ok_or("--repeat needs a number")?.parse()?,
            "--qemu" => extra.extend(args.next().ok_or("--qemu needs options")?.split_whitespace().map(str::to_owned)),
            "--words" => words = args.next().ok_or("--words needs words")?,
            series => all.push(series.parse::<KernelSeries>()?),
        }
    }
    if all.is_empty() {
        all.extend(KernelSeries::ALL);
    }
    for series in all {
        let mut times = Vec::new();
        for i in 0..repeat {
            times.push(boot(&store, series, &extra, &words, i == 0 && repeat == 1)?);
        }
        for (kind, what) in ["boot to agent", "processor time"].into_iter().enumerate() {
            let mut sorted: Vec<f64> = times.iter().map(|both| both[kind]).collect();
            sorted.sort_by(f64::total_cmp);
            println!("{series}: {what} min {:.2} median {:.2} s of {repeat}", sorted[0], sorted[sorted.len() / 2]);
        }
    }
    Ok(())
}
