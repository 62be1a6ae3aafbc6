// SPDX-License-Identifier: MIT OR Apache-2.0
//! One node of a cluster: its virtual machine and its HIB, and all that can be done to them.

use crate::agent::{GuestCommand, Line};
use crate::cluster::Plan;
use crate::process::{Memory, Process, listens_in, tail};
use crate::qmp::Qmp;
use crate::{Error, Result, boards, interrupt};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telegraphos_images::Qemu;

/// How long QEMU may take for what it does at once.
const PROMPT: Duration = Duration::from_secs(30);
/// The HIB in QEMU.
const DEVICE: &str = "hib";
/// Its slot, so that it can be unplugged.
const PORT: &str = "rp0";

/// What makes one node unlike the others.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Guest memory is shared with the HIB (`memory-backend-memfd,share=on`). Without it a HIB can reach nothing.
    pub shared_memory: bool,
    /// The node has a HIB.
    pub hib: bool,
    /// The guest loads the driver at boot.
    pub driver: bool,
    /// It loads `telegraphos_lab.ko`, too: what the kernel does in comparisons (`LaunchStyle::Plain` and `Special`,
    /// `Queue::pop_in_kernel`).
    pub lab: bool,
    /// With HIB and driver, boot waits for the device.
    pub wait_for_device: bool,
    /// The guest runs a root shell on its console.
    pub shell: bool,
    /// A `pci-testdev`, the yardstick for accesses to a device inside QEMU.
    pub test_device: bool,
    /// More words for the guest kernel's command line.
    pub append: String,
    /// More options of `telegraphos-hib`, name and value.
    pub hib_options: Vec<(String, String)>,
    /// Another QEMU than the cluster's.
    pub qemu: Option<Qemu>,
    /// More options of QEMU, after all others.
    pub qemu_options: Vec<OsString>,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            shared_memory: true,
            hib: true,
            driver: true,
            lab: false,
            wait_for_device: true,
            shell: false,
            test_device: false,
            append: String::new(),
            hib_options: Vec::new(),
            qemu: None,
            qemu_options: Vec::new(),
        }
    }
}

/// One node.
#[derive(Debug)]
pub struct Guest {
    node: usize,
    options: NodeOptions,
    plan: Arc<Plan>,
    vm: Mutex<Option<Vm>>,
    qmp: Mutex<Option<Qmp>>,
    hib: Mutex<Option<Process>>,
}

#[derive(Debug)]
struct Vm {
    process: Process,
    line: Line,
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.process.kill();
        self.line.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    pub(crate) fn new(node: usize, options: NodeOptions, plan: Arc<Plan>) -> Guest {
        Guest { node, options, plan, vm: Mutex::default(), qmp: Mutex::default(), hib: Mutex::default() }
    }

    /// Its node id.
    pub fn node(&self) -> usize {
        self.node
    }

    fn socket(&self, kind: &str) -> PathBuf {
        self.plan.run_dir.join(format!("{kind}{}", self.node))
    }

    fn log(&self, kind: &str) -> PathBuf {
        self.plan.log_dir.join(format!("{kind}.{}.log", self.node))
    }

    /// The Unix socket of its console. One client at a time.
    pub fn console_socket(&self) -> PathBuf {
        self.socket("console")
    }

    /// Everything its console has shown since the cluster was made.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.log("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Everything its HIB has logged.
    pub fn hib_log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log("hib")).unwrap_or_default()).into_owned()
    }

    /// The ends of its logs, for an error.
    fn tails(&self) -> String {
        let mut text = String::new();
        for (what, kind) in [("console", "console"), ("QEMU", "qemu"), ("HIB", "hib")] {
            let end = tail(&self.log(kind), 15);
            if !end.is_empty() {
                text += &format!("\n--- end of node {}'s {what} log\n{end}", self.node);
            }
        }
        text
    }

    // ---- commands in the guest

    /// A command, given to the guest's shell, to be run as user `tg` unless told otherwise.
    pub fn sh(&self, script: &str) -> GuestCommand {
        self.argv(&["sh", "-c", script])
    }

    /// A command by its words, without a shell.
    pub fn argv<S: AsRef<str>>(&self, argv: &[S]) -> GuestCommand {
        let argv = argv.iter().map(|a| a.as_ref().to_owned()).collect();
        GuestCommand::new(self.node, self.line().ok_or_else(|| "the virtual machine does not run".into()), argv)
    }

    fn line(&self) -> Option<Line> {
        lock(&self.vm).as_ref().map(|vm| vm.line.clone())
    }

    /// `uname -r`, and how long the guest's kernel ran until its agent was ready.
    pub fn greeting(&self) -> (String, Duration) {
        self.line().map(|line| line.greeting()).unwrap_or_default()
    }

    /// The kernel's messages, each with its level (`dmesg -r`).
    pub fn dmesg(&self) -> Result<String> {
        self.argv(&["dmesg", "-r"]).as_root().check()
    }

    /// Waits until user `tg` can open the board's device.
    pub fn wait_for_device(&self) -> Result<()> {
        let script = "i=0; until [ -w /dev/telegraphos0 ]; do i=$((i+1)); [ $i -lt 200 ] || exit 1; sleep 0.1; done";
        let output = self.sh(script).limit(Duration::from_secs(60)).run()?;
        if output.status.success() {
            return Ok(());
        }
        let dmesg = self.dmesg().unwrap_or_default();
        let lines: Vec<&str> = dmesg.lines().collect();
        let end = lines[lines.len().saturating_sub(15)..].join("\n");
        Err(Error::Failed {
            node: self.node,
            command: "waiting for /dev/telegraphos0".into(),
            status: "it did not appear in 20 s".into(),
            output: format!("--- end of the guest's kernel log\n{end}{}", self.tails()),
        })
    }

    // ---- the HIB

    pub(crate) fn start_hib(&self) -> Result<()> {
        let options = self.plan.hib_options(&self.options.hib_options);
        let (socket, fabric) = (self.socket("hib"), self.plan.fabric_socket());
        let process = boards::start_hib(self.node, &socket, &fabric, &options, &self.log("hib"))?;
        *lock(&self.hib) = Some(process);
        Ok(())
    }

    /// Waits until the HIB takes a QEMU.
    pub(crate) fn wait_for_hib(&self) -> Result<()> {
        let path = self.socket("hib");
        match &mut *lock(&self.hib) {
            Some(hib) => wait_for_socket(&path, hib, || self.tails()),
            None => Ok(()),
        }
    }

    /// Ends the HIB at once, as a crash would.
    pub fn kill_hib(&self) {
        *lock(&self.hib) = None;
    }

    /// Starts the HIB anew. QEMU never connects again by itself: unplug and plug the device, or restart QEMU.
    pub fn restart_hib(&self) -> Result<()> {
        self.kill_hib();
        self.start_hib()?;
        self.wait_for_hib()
    }

    // ---- the virtual machine

    /// Starts QEMU and takes its agent line; the guest is not up yet.
    pub(crate) fn start_qemu(&self) -> Result<()> {
        *lock(&self.qmp) = None;
        *lock(&self.vm) = None;
        for kind in ["agent", "qmp", "console"] {
            // Left by an earlier QEMU.
            let _ = fs::remove_file(self.socket(kind));
        }
        let mut command = self.options.qemu.as_ref().unwrap_or(&self.plan.qemu).command();
        command.args(self.qemu_args());
        let mut process = Process::start(format!("QEMU of node {}", self.node), command, &self.log("qemu"))?;
        let path = self.socket("agent");
        wait_for_socket(&path, &mut process, || self.tails())?;
        let socket = UnixStream::connect(&path).map_err(Error::io("cannot connect to the agent line", &path))?;
        let line = Line::open(self.node, socket)?;
        *lock(&self.vm) = Some(Vm { process, line });
        Ok(())
    }

    fn qemu_args(&self) -> Vec<OsString> {
        let plan = &self.plan;
        let mut append = format!("telegraphos.node={}", self.node);
        let o = &self.options;
        for (wanted, word) in
            [(o.shell, "telegraphos.shell"), (!o.driver, "telegraphos.noload"), (o.lab, "telegraphos.lab")]
        {
            if wanted {
                append += &format!(" {word}");
            }
        }
        if let Some(khz) = crate::clock::tsc_khz().filter(|_| !plan.kvm) {
            append += &format!(" tsc_early_khz={khz}");
        }
        append += &format!(" {}", self.options.append);
        let mut args = plan.image.qemu_args(&append);
        if plan.kvm {
            for arg in &mut args {
                if arg == "tcg,thread=multi" {
                    *arg = "kvm".into();
                }
            }
        }
        let mut add = |name: &str, value: String| args.extend([name.into(), OsString::from(value)]);
        add("-name", format!("telegraphos-node{}", self.node));
        let size = format!("{}M", plan.memory_mib);
        add("-m", size.clone());
        add("-smp", plan.smp.to_string());
        add(
            "-object",
            match self.options.shared_memory {
                true => format!("memory-backend-memfd,id=ram,size={size},share=on"),
                false => format!("memory-backend-ram,id=ram,size={size}"),
            },
        );
        let path = |p: PathBuf| p.display().to_string().replace(',', ",,");
        let (console, log) = (path(self.socket("console")), path(self.log("console")));
        add("-chardev", format!("socket,id=console,path={console},server=on,wait=off,logfile={log},logappend=on"));
        add("-serial", "chardev:console".into());
        add("-chardev", format!("socket,id=agent,path={},server=on,wait=off", path(self.socket("agent"))));
        add("-serial", "chardev:agent".into());
        add("-qmp", format!("unix:{},server=on,wait=off", path(self.socket("qmp"))));
        // Twice the window: firmware gives a port without reservation too little for a window plugged later.
        let reserve = plan.window_bytes * 2;
        add("-device", format!("pcie-root-port,id={PORT},chassis=1,slot=1,pref64-reserve={reserve}"));
        if self.options.hib {
            add("-device", self.device().to_string());
        }
        if self.options.test_device {
            add("-device", "pci-testdev,addr=1e.0".into());
        }
        args.extend(self.options.qemu_options.iter().cloned());
        args
    }

    /// The board's device as QEMU wants it.
    fn device(&self) -> Value {
        json!({
            "driver": "vfio-user-pci",
            "id": DEVICE,
            "bus": PORT,
            "socket": {"type": "unix", "path": self.socket("hib")},
        })
    }

    /// Whether the guest has come up more than `lives` times; waits a little. An error if that cannot happen any more.
    pub(crate) fn poll_life(&self, lives: u64) -> Result<bool> {
        interrupt::check()?;
        let Some(line) = self.line() else {
            return Err(self.ended("QEMU", "it was not started".into(), "while the guest boots"));
        };
        if line.wait_for_life(lives, Duration::from_millis(10)) {
            return Ok(true);
        }
        for process in [lock(&self.vm).as_mut().map(|vm| &mut vm.process), lock(&self.hib).as_mut()] {
            let Some(process) = process else { continue };
            if let Some(status) = process.ended() {
                return Err(self.ended(process.what(), status.to_string(), "while the guest boots"));
            }
        }
        Ok(false)
    }

    fn ended(&self, what: &str, status: String, during: &str) -> Error {
        Error::Ended { what: what.into(), status, during: during.into(), tail: self.tails() }
    }

    /// Times the guest has come up under the present QEMU.
    pub fn lives(&self) -> u64 {
        self.line().map_or(0, |line| line.lives())
    }

    /// Waits until the guest has come up more often than `lives` times and, if it has one, its device is there.
    pub fn wait_for_boot(&self, lives: u64) -> Result<()> {
        let begun = Instant::now();
        while !self.poll_life(lives)? {
            if begun.elapsed() > self.plan.boot_limit {
                return Err(self.late(begun));
            }
        }
        let has_device = self.options.hib && self.options.driver;
        if has_device && self.options.wait_for_device { self.wait_for_device() } else { Ok(()) }
    }

    pub(crate) fn late(&self, _begun: Instant) -> Error {
        Error::Late {
            what: format!("the boot of node {}", self.node),
            limit: self.plan.boot_limit,
            remedy: "on a slow machine give --boot-limit more",
            tail: self.tails(),
        }
    }

    /// Ends QEMU at once, as a crash would.
    pub fn kill_qemu(&self) {
        *lock(&self.qmp) = None;
        *lock(&self.vm) = None;
    }

    /// Starts QEMU anew on the same HIB and waits for the guest.
    pub fn restart_qemu(&self) -> Result<()> {
        self.start_qemu()?;
        self.wait_for_boot(0)
    }

    /// The reset button; waits for the guest.
    pub fn reset(&self) -> Result<()> {
        let lives = self.lives();
        self.qmp("system_reset", json!({}))?;
        self.wait_for_boot(lives)
    }

    /// Lets the guest reboot itself; waits for it.
    pub fn reboot(&self) -> Result<()> {
        let lives = self.lives();
        // The guest goes away before it can say how the command ended. Dropped earlier, the command would be killed.
        let _rebooting = self.argv(&["reboot", "-f"]).as_root().spawn();
        self.wait_for_boot(lives)
    }

    /// Executes a QMP command.
    pub fn qmp(&self, command: &str, arguments: Value) -> Result<Value> {
        self.with_qmp(|qmp| qmp.execute(command, arguments, PROMPT))
    }

    fn with_qmp<T>(&self, work: impl FnOnce(&mut Qmp) -> Result<T>) -> Result<T> {
        let mut slot = lock(&self.qmp);
        let mut qmp = match slot.take() {
            Some(qmp) => qmp,
            None => Qmp::connect(self.node, &self.socket("qmp"), PROMPT)?,
        };
        let result = work(&mut qmp);
        *slot = Some(qmp);
        result
    }

    /// Unplugs the board; returns when the guest has let it go.
    pub fn device_del(&self) -> Result<()> {
        self.with_qmp(|qmp| {
            qmp.forget_events();
            qmp.execute("device_del", json!({"id": DEVICE}), PROMPT)?;
            qmp.wait_event("DEVICE_DELETED", Duration::from_secs(60), |data| data["device"] == DEVICE)?;
            Ok(())
        })
    }

    /// Plugs the board; [`Guest::wait_for_device`] waits for the driver.
    pub fn device_add(&self) -> Result<()> {
        self.qmp("device_add", self.device()).map(drop)
    }

    // ---- what it costs

    /// Memory of its QEMU.
    pub fn qemu_memory(&self) -> Option<Memory> {
        lock(&self.vm).as_ref()?.process.memory()
    }

    /// Memory of its HIB.
    pub fn hib_memory(&self) -> Option<Memory> {
        lock(&self.hib).as_ref()?.memory()
    }

    /// Stops its HIB where it is, as one that the machine does not schedule, or lets it go on.
    pub fn hang_hib(&self, hangs: bool) {
        if let Some(hib) = lock(&self.hib).as_ref() {
            hib.hang(hangs);
        }
    }

    /// Processor time its HIB has used.
    pub fn hib_cpu_time(&self) -> Option<Duration> {
        lock(&self.hib).as_ref()?.cpu_time()
    }

    /// Process ids of its QEMU and its HIB, of those that run.
    pub fn pids(&self) -> Vec<u32> {
        let vm = lock(&self.vm).as_ref().map(|vm| vm.process.pid());
        vm.into_iter().chain(lock(&self.hib).as_ref().map(Process::pid)).collect()
    }
}

/// Waits until the process listens on its socket.
pub(crate) fn wait_for_socket(path: &Path, process: &mut Process, tails: impl Fn() -> String) -> Result<()> {
    let begun = Instant::now();
    while !listens_in(process, path) {
        interrupt::check()?;
        if let Some(status) = process.ended() {
            return Err(Error::Ended {
                what: process.what().into(),
                status: status.to_string(),
                during: "at its start".into(),
                tail: tails(),
            });
        }
        if begun.elapsed() > PROMPT {
            return Err(Error::Late {
                what: format!("{} listening on {}", process.what(), path.display()),
                limit: PROMPT,
                remedy: "see its log",
                tail: tails(),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
