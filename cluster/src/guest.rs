// SPDX-License-Identifier: MIT OR Apache-2.0
//! One node of a cluster: its virtual machine and its HIB.

use crate::agent::Line;
use crate::command::GuestCommand;
use crate::gdb;
use crate::launch::{Hib, Logs, PROMPT, read_log, start_hib, wait_for_socket};
use crate::node_name::NodeLabel;
use crate::panic::{Console, SOON, Signs};
use crate::prepared::Prepared;
use crate::process::{Memory, Process};
use crate::qmp::{Qmp, Resets};
use crate::rundir::FABRIC;
use crate::settings::{Net, Processes, Settings};
use crate::stopwatch::Stopwatch;
use crate::{Error, Result, interrupt, lock};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use telegraphos_device::direct::memory_socket;
use telegraphos_images::{Guest as Image, Machine, Qemu, TCG};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{WindowLayout, context};

/// The HIB in QEMU.
const DEVICE: &str = "hib";
/// The memory device in QEMU, and its slot.
const MEMORY_DEVICE: &str = "hib-memory";
const MEMORY_SLOT: &str = "17.0";
/// The socket of the QMP connection that is for events alone.
const EVENTS: &str = "events";
/// Bytes that a kernel takes of its command line on x86 (`COMMAND_LINE_SIZE`, with a zero behind them).
const LONGEST_COMMAND_LINE: usize = 2047;
/// So long the processors of a guest that does not come up are watched.
const SAMPLE: Duration = Duration::from_secs(1);
/// The socket of the port over which the agent sends much data, and the slot of the device with the port.
const PORT_SOCKET: &str = "port";
const PORTS_SLOT: &str = "16.0";
/// The root port that it is behind, so that it can be unplugged.
const PORT: &str = "rp0";

/// Prints the line of BAR0 of the board's device, which begins with its address.
const FIND_REGISTERS: &str =
    "for d in /sys/bus/pci/devices/*; do [ \"$(cat $d/vendor)\" = 0x7e1e ] && head -n 1 $d/resource; done";

/// What can differ from node to node.
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
    /// Words added to the kernel's command line.
    pub kernel_words: Vec<String>,
    /// A `pci-testdev`, the baseline for accesses to a device inside QEMU.
    pub test_device: bool,
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
            kernel_words: Vec::new(),
            test_device: false,
            hib_options: Vec::new(),
            qemu: None,
            qemu_options: Vec::new(),
        }
    }
}

/// What every node of a cluster has in common.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) prepared: Prepared,
    /// `hib` has the options of every HIB, unless a node has others.
    pub(crate) settings: Settings,
    pub(crate) kvm: bool,
    /// Nodes with a server for gdb.
    pub(crate) debugged: Vec<usize>,
    pub(crate) run_dir: PathBuf,
    pub(crate) logs: Logs,
}

impl Plan {
    /// Where the fabric listens for HIBs.
    pub(crate) fn fabric_socket(&self) -> PathBuf {
        self.run_dir.join(FABRIC)
    }

    /// How the servers are divided.
    pub(crate) fn processes(&self) -> Processes {
        // The memory of a trust group is that of one process.
        let default = if self.settings.trust.is_empty() { Processes::Each } else { Processes::One };
        self.settings.processes.unwrap_or(default)
    }

    /// Whether a node is in a trust group, and so has a memory device.
    pub(crate) fn is_trusted(&self, node: usize) -> bool {
        self.settings.trust.iter().any(|group| group.nodes.iter().any(|member| usize::from(*member) == node))
    }

    pub(crate) fn boot_timeout(&self) -> Duration {
        Duration::from_secs(self.settings.boot_timeout.unwrap_or(180))
    }
}

/// What a port must reserve for a HIB with these options. Options that make no sense are for the HIB to refuse.
fn port_reserve<'a>(hib: impl Iterator<Item = &'a (String, String)> + Clone) -> u64 {
    fn option<'a, T: FromStr>(hib: impl Iterator<Item = &'a (String, String)>, wanted: &str, default: T) -> T {
        hib.filter(|(name, _)| name == wanted).filter_map(|(_, value)| value.parse().ok()).last().unwrap_or(default)
    }
    let default = WindowLayout::default();
    let node_bits = option(hib.clone(), "node-bits", default.node_bits);
    let offset_bits = option(hib.clone(), "offset-bits", default.offset_bits);
    let contexts = option(hib, "contexts", context::COUNT as u16).min(context::COUNT as u16);
    WindowLayout::new(node_bits, offset_bits).unwrap_or(default).pref64_reserve(contexts)
}

#[derive(Debug)]
pub struct Guest {
    node: usize,
    label: NodeLabel,
    options: NodeOptions,
    plan: Arc<Plan>,
    /// The cluster's, with what is this node's own.
    settings: Settings,
    vm: Mutex<Option<Vm>>,
    qmp: Mutex<Option<Qmp>>,
    hib: Mutex<Option<Process>>,
    /// What its kernel says, since QEMU was started last.
    kernel: Mutex<Option<Console>>,
}

#[derive(Debug)]
struct Vm {
    process: Process,
    line: Line,
    resets: Resets,
    /// The servers of its directories; each serves one QEMU.
    _directories: Vec<Process>,
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.process.kill();
        self.line.close();
    }
}

impl Guest {
    pub(crate) fn new(node: usize, options: NodeOptions, plan: Arc<Plan>) -> Guest {
        let (vm, qmp, hib, kernel) = (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        let (label, settings) = (plan.settings.label(node), plan.settings.of_node(node));
        Guest { node, label, options, plan, settings, vm, qmp, hib, kernel }
    }

    pub fn node(&self) -> usize {
        self.node
    }

    /// Its number and name, for messages.
    pub fn label(&self) -> &NodeLabel {
        &self.label
    }

    fn image(&self) -> &Image {
        self.plan.prepared.image(self.node)
    }

    fn socket(&self, kind: &str) -> PathBuf {
        self.plan.run_dir.join(format!("{kind}{}", self.node))
    }

    fn log(&self, kind: &str) -> PathBuf {
        self.plan.logs.of_node(kind, self.node)
    }

    /// The Unix socket of its console. One client at a time.
    pub fn console_socket(&self) -> PathBuf {
        self.socket("console")
    }

    /// Everything its console has shown since the cluster was made.
    pub fn console(&self) -> String {
        read_log(&self.log("console")).replace('\r', "")
    }

    /// Everything its HIB has logged.
    pub fn hib_log(&self) -> String {
        if self.plan.processes() == Processes::Each {
            return read_log(&self.log("hib"));
        }
        let log = read_log(&self.plan.logs.path("host"));
        let own = format!("node {}: ", self.node);
        log.lines().filter(|line| line.contains(&own)).flat_map(|line| [line, "\n"]).collect()
    }

    /// The ends of its logs, for an error.
    fn tails(&self) -> String {
        self.plan.logs.tails(self.node)
    }

    // ---- debugging

    /// Whether gdb may stop it at any time.
    pub(crate) fn is_debugged(&self) -> bool {
        self.plan.debugged.contains(&self.node)
    }

    /// The socket of QEMU's server for gdb.
    pub(crate) fn gdb_socket(&self) -> Option<PathBuf> {
        self.is_debugged().then(|| self.socket("gdb"))
    }

    /// The command line of gdb for it.
    pub(crate) fn gdb_command(&self) -> Option<String> {
        let symbols = self.image().symbols.as_deref();
        self.gdb_socket().map(|socket| gdb::command(symbols, &socket, &self.gdb_script()))
    }

    fn gdb_script(&self) -> PathBuf {
        self.plan.run_dir.join(format!("gdb{}.modules", self.node))
    }

    /// Writes the script that tells gdb where the driver's modules are; to be called when the guest is up.
    pub(crate) fn write_gdb_script(&self) -> Result<()> {
        let sections = self.sh(gdb::SECTIONS).as_root().check()?;
        let script = self.gdb_script();
        fs::write(&script, gdb::script(&sections, &self.image().drivers)).map_err(Error::io("cannot write", &script))
    }

    // ---- commands in the guest

    /// A command for the guest's shell, which runs as user `tg` by default.
    pub fn sh(&self, script: &str) -> GuestCommand {
        self.argv(&["sh", "-c", script])
    }

    /// A command by its words, without a shell.
    pub fn argv<S: AsRef<OsStr>>(&self, argv: &[S]) -> GuestCommand {
        let argv = argv.iter().map(|word| word.as_ref().to_owned()).collect();
        let line = self.line().ok_or_else(|| "the virtual machine does not run".into());
        let command = GuestCommand::new(self.label.clone(), line, argv);
        // One that gdb has stopped answers when gdb lets it.
        if self.is_debugged() { command.patient() } else { command }
    }

    fn line(&self) -> Option<Line> {
        lock(&self.vm).as_ref().map(|vm| vm.line.clone())
    }

    /// `uname -r`, and how long the guest's kernel ran until its agent was ready.
    pub fn greeting(&self) -> (String, Duration) {
        self.line().map(|line| line.boot()).map(|boot| (boot.release, boot.uptime)).unwrap_or_default()
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
            node: self.label.clone(),
            command: "waiting for /dev/telegraphos0".into(),
            status: "it did not appear in 20 s".into(),
            output: format!("--- end of the guest's kernel log\n{end}{}", self.tails()),
        })
    }

    // ---- the HIB

    pub(crate) fn start_hib(&self) -> Result<()> {
        let started = start_hib(self.hib(&self.hib_socket()), &self.plan.fabric_socket(), &self.log("hib"))?;
        *lock(&self.hib) = Some(started);
        Ok(())
    }

    /// What its HIB is started with.
    pub(crate) fn hib<'a>(&'a self, socket: &'a Path) -> Hib<'a> {
        Hib { node: self.node, socket, common: &self.plan.settings.hib, own: &self.options.hib_options }
    }

    /// Where its HIB listens for QEMU.
    pub(crate) fn hib_socket(&self) -> PathBuf {
        self.socket("hib")
    }

    /// Waits until the HIB listens for QEMU.
    pub(crate) fn wait_for_hib(&self) -> Result<()> {
        let path = self.hib_socket();
        match &mut *lock(&self.hib) {
            Some(hib) => wait_for_socket(&path, hib, || self.tails()).map_err(|e| e.of_node(self.node)),
            None => Ok(()),
        }
    }

    /// Kills the HIB, as a crash would, if it has a process of its own.
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
        self.try_start_qemu().map_err(|e| e.of_node(self.node))
    }

    fn try_start_qemu(&self) -> Result<()> {
        *lock(&self.qmp) = None;
        *lock(&self.vm) = None;
        for kind in ["agent", PORT_SOCKET, "qmp", EVENTS, "console", "gdb"] {
            // Left by an earlier QEMU.
            let _ = fs::remove_file(self.socket(kind));
        }
        *lock(&self.kernel) = Some(Console::follow(self.log("console"), self.image().symbols.clone()));
        let mut command = self.options.qemu.as_ref().unwrap_or(&self.plan.prepared.qemu).command();
        let own = self.qemu_args();
        check_command_line(&own)?;
        command.args(own);
        let (directories, args) = self.start_directories()?;
        command.args(args).args(self.image().disk_args()?);
        let mut process = Process::start(format!("QEMU of node {}", self.label), command, &self.log("qemu"))?;
        let path = self.socket("agent");
        wait_for_socket(&path, &mut process, || self.tails())?;
        let socket = UnixStream::connect(&path).map_err(Error::io("cannot connect to the agent line", &path))?;
        let line = Line::open(self.node, socket, Some(self.socket(PORT_SOCKET)))?;
        let path = self.socket(EVENTS);
        wait_for_socket(&path, &mut process, || self.tails())?;
        let boots = line.clone();
        let resets = Resets::watch(&self.label, &path, PROMPT, move || boots.boot().count)?;
        *lock(&self.vm) = Some(Vm { process, line, resets, _directories: directories });
        Ok(())
    }

    /// Starts what serves the host's directories to this guest, and waits until it listens; QEMU's options for them.
    fn start_directories(&self) -> Result<(Vec<Process>, Vec<OsString>)> {
        let image = self.image();
        let (mut servers, mut args) = (Vec::new(), Vec::new());
        for (n, directory) in image.directories.iter().enumerate() {
            let socket = self.socket(&format!("fs{n}-"));
            let _ = fs::remove_file(&socket);
            args.extend(image.directory_args(directory, &socket));
            let Some(command) = image.directory_server(directory, &socket) else { continue };
            let what = format!("virtiofsd of node {} for {}", self.label, directory.host.display());
            let mut server = Process::start(what, command, &self.log("virtiofsd"))?;
            wait_for_socket(&socket, &mut server, || self.tails())?;
            servers.push(server);
        }
        Ok((servers, args))
    }

    fn qemu_args(&self) -> Vec<OsString> {
        let (plan, machine) = (&self.plan, self.machine());
        let mut append = format!("telegraphos.node={}", self.node);
        let o = &self.options;
        for (wanted, word) in
            [(o.shell, "telegraphos.shell"), (!self.driver(), "telegraphos.noload"), (o.lab, "telegraphos.lab")]
        {
            if wanted {
                append += &format!(" {word}");
            }
        }
        let net = plan.settings.net.unwrap_or_default();
        if net != Net::None {
            append += &format!(" telegraphos.net={}", plan.settings.node_count());
            plan.settings.name_words().iter().for_each(|word| append += word);
        } else if let Some(name) = &self.label.name {
            append += &format!(" telegraphos.name={}:{name}", self.node);
        }
        if net == Net::User {
            append += " telegraphos.outside";
        }
        if plan.settings.tgd {
            append += " telegraphos.tgd";
        }
        if self.is_debugged() {
            // Else the addresses in vmlinux are not those of the kernel that runs.
            append += " nokaslr";
        }
        for word in o.kernel_words.iter().chain(&self.settings.append) {
            append += &format!(" {word}");
        }
        if let Some(khz) = crate::clock::tsc_khz().filter(|_| !plan.kvm) {
            append += &format!(" tsc_early_khz={khz}");
        }
        let mut args = self.image().qemu_args(machine, if plan.kvm { "kvm" } else { TCG }, &append);
        let mut add = |name: &str, value: String| args.extend([name.into(), OsString::from(value)]);
        add("-name", format!("telegraphos-node{}", self.node));
        let size = format!("{}M", self.settings.memory_mib.unwrap_or(256));
        add("-m", size.clone());
        add("-smp", self.settings.cpus.unwrap_or(1).to_string());
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
        add("-chardev", format!("socket,id=port,path={},server=on,wait=off", path(self.socket(PORT_SOCKET))));
        add("-device", format!("virtio-serial-pci,id=ports,max_ports=2,addr={PORTS_SLOT}"));
        add("-device", format!("virtserialport,bus=ports.0,chardev=port,name={}", telegraphos_agent::PORT));
        for kind in ["qmp", EVENTS] {
            add("-qmp", format!("unix:{},server=on,wait=off", path(self.socket(kind))));
        }
        // Firmware gives a port without reservation too little for a window that is plugged later.
        let reserve = port_reserve(plan.settings.hib.iter().chain(&self.options.hib_options));
        if machine == Machine::Q35 {
            add("-device", format!("pcie-root-port,id={PORT},chassis=1,slot=1,pref64-reserve={reserve}"));
        }
        if self.options.hib {
            add("-device", self.device(self.bus()).to_string());
        }
        if self.options.hib && plan.is_trusted(self.node) {
            add("-device", self.memory_device().to_string());
        }
        if let Some(socket) = self.gdb_socket() {
            add("-gdb", format!("unix:{},server=on,wait=off", path(socket)));
        }
        if net == Net::User {
            add("-netdev", "user,id=outside".into());
            add("-device", "virtio-net-pci,netdev=outside,romfile=,addr=1d.0".into());
        }
        if self.options.test_device {
            add("-device", "pci-testdev,addr=1e.0".into());
        }
        args.extend(self.settings.qemu_arg.iter().map(OsString::from));
        args.extend(self.options.qemu_options.iter().cloned());
        args
    }

    /// Whether the guest is to load the driver, and there is one for its kernel.
    fn driver(&self) -> bool {
        self.options.driver && self.image().without_driver.is_none()
    }

    /// Whether it has another root than the image.
    pub(crate) fn has_root(&self) -> bool {
        self.settings.root.is_some()
    }

    fn machine(&self) -> Machine {
        self.settings.machine.unwrap_or_default()
    }

    /// Where its board is plugged in: behind a port, where its machine has any.
    fn bus(&self) -> &'static str {
        match self.machine() {
            Machine::Q35 => PORT,
            machine @ Machine::Pc => machine.bus(),
        }
    }

    /// The board's device behind a port, in QEMU's JSON syntax.
    fn device(&self, port: &str) -> Value {
        json!({
            "driver": "vfio-user-pci",
            "id": DEVICE,
            "bus": port,
            "socket": {"type": "unix", "path": self.hib_socket()},
        })
    }

    /// The memory device beside it, in a slot of its own: it is not unplugged.
    fn memory_device(&self) -> Value {
        json!({
            "driver": "vfio-user-pci",
            "id": MEMORY_DEVICE,
            "bus": self.machine().bus(),
            "addr": MEMORY_SLOT,
            "socket": {"type": "unix", "path": memory_socket(&self.hib_socket())},
        })
    }

    /// Whether the guest has booted more than `boots` times; waits 10 ms for it. An error if QEMU or the HIB has ended.
    pub(crate) fn poll_boot(&self, boots: u64) -> Result<bool> {
        interrupt::check()?;
        let Some(line) = self.line() else {
            return Err(
                Error::ended("QEMU", "it was not started", "while the guest boots", self.tails()).of_node(self.node)
            );
        };
        if line.wait_for_boot(boots, Duration::from_millis(10)) {
            return Ok(true);
        }
        self.check_kernel()?;
        self.check_processes("while the guest boots")?;
        Ok(false)
    }

    /// An error if its kernel has died since the last call.
    pub(crate) fn check_kernel(&self) -> Result<()> {
        let (resets, line) = match &*lock(&self.vm) {
            Some(vm) => (vm.resets.count(), vm.line.clone()),
            None => return Ok(()),
        };
        let alone = || !line.is_up() || !self.is_debugged() && line.is_silent(SOON.min(self.hang_timeout()));
        let mut console = lock(&self.kernel);
        let died = console.as_mut().and_then(|console| console.died(&self.label, &Signs { resets, alone: &alone }));
        died.map_or(Ok(()), Err)
    }

    /// The same, also of an error after which the kernel continues.
    pub(crate) fn check_kernel_strictly(&self) -> Result<()> {
        self.check_kernel()?;
        let (Some(line), Some(console)) = (self.line(), &mut *lock(&self.kernel)) else { return Ok(()) };
        while let Some(text) = line.kernel_error() {
            if !self.plan.settings.allow_report.iter().any(|allowed| text.contains(allowed)) {
                return Err(console.failed(&self.label, &text));
            }
        }
        Ok(())
    }

    /// So long its agent may be silent.
    fn hang_timeout(&self) -> Duration {
        Duration::from_secs(self.plan.settings.hang_timeout.unwrap_or(60))
    }

    /// An error if QEMU or the HIB has ended by itself.
    fn check_processes(&self, during: &str) -> Result<()> {
        for process in [lock(&self.vm).as_mut().map(|vm| &mut vm.process), lock(&self.hib).as_mut()] {
            let Some(process) = process else { continue };
            if let Some(status) = process.ended() {
                return Err(Error::ended(process.what(), status, during, self.tails()).of_node(self.node));
            }
        }
        Ok(())
    }

    /// An error if QEMU or the HIB has ended by itself, or the guest that was up has hung.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_processes("while the guests run")?;
        let limit = self.hang_timeout();
        if !self.is_debugged() && self.line().is_some_and(|line| line.is_silent(limit)) {
            let error = lock(&self.kernel).as_mut().and_then(Console::last_error);
            let error = error.map(|error| format!(", and its console shows {error:?}")).unwrap_or_default();
            let what = format!(
                "the guest has hung: QEMU runs, but the guest's agent has not answered for {limit:?}{error}; on a slow \
                 machine give --hang-timeout more"
            );
            return Err(Error::Dead { node: self.label.clone(), what, tail: self.tails() });
        }
        Ok(())
    }

    /// Times the guest has booted under the present QEMU.
    pub fn boots(&self) -> u64 {
        self.line().map_or(0, |line| line.boot().count)
    }

    /// Waits until the guest has booted more than `boots` times and, if it has one, its device is there.
    pub fn wait_for_boot(&self, boots: u64) -> Result<()> {
        let mut begun = Stopwatch::start();
        while !self.poll_boot(boots)? {
            if self.is_late(&mut begun) {
                return Err(self.boot_timed_out());
            }
        }
        let wanted = self.options.hib && self.driver() && self.options.wait_for_device;
        // The agent comes after the driver: usually no more is to be waited for, and no command run.
        let found = self.line().is_some_and(|line| line.boot().board);
        if wanted && !found { self.wait_for_device() } else { Ok(()) }
    }

    /// Whether its boot, begun then, has taken too long.
    pub(crate) fn is_late(&self, begun: &mut Stopwatch) -> bool {
        begun.elapsed() > self.plan.boot_timeout() && !self.is_debugged()
    }

    /// What its processors have done lately: a boot that waits for something looks different from one that is slow.
    fn activity(&self) -> &'static str {
        let used = || lock(&self.vm).as_ref().and_then(|vm| vm.process.cpu_time());
        let (before, begun) = (used(), Instant::now());
        std::thread::sleep(SAMPLE);
        match (before, used()) {
            (Some(before), Some(after)) if after.saturating_sub(before) * 10 < begun.elapsed() => {
                "its processors are idle: the kernel waits for something that does not come"
            }
            (Some(_), Some(_)) => {
                "its processors are busy: it is slow, or runs in a loop; --boot-timeout gives more time"
            }
            _ => "QEMU has ended",
        }
    }

    /// The error of a boot that is late, or that of its kernel, if that is why.
    pub(crate) fn boot_timed_out(&self) -> Error {
        if let Err(e) = self.check_kernel_strictly() {
            return e;
        }
        // Only the kernel has written there.
        if let Some(console) = &mut *lock(&self.kernel) {
            if let Some(text) = console.last_error() {
                return console.failed(&self.label, &text);
            }
        }
        Error::TimedOut {
            what: format!("the boot of node {}", self.label),
            node: Some(self.node),
            limit: self.plan.boot_timeout(),
            remedy: self.activity(),
            tail: self.tails(),
        }
    }

    /// Kills QEMU, as a crash would.
    pub fn kill_qemu(&self) {
        *lock(&self.qmp) = None;
        *lock(&self.vm) = None;
    }

    /// Starts QEMU anew on the same HIB and waits for the guest.
    pub fn restart_qemu(&self) -> Result<()> {
        self.start_qemu()?;
        self.wait_for_boot(0)
    }

    /// Resets the machine (QMP `system_reset`) and waits for the guest.
    pub fn reset(&self) -> Result<()> {
        let boots = self.boots();
        self.qmp("system_reset", json!({}))?;
        self.wait_for_boot(boots)
    }

    /// Lets the guest reboot itself; waits for it.
    pub fn reboot(&self) -> Result<()> {
        let boots = self.boots();
        // The guest reboots before it can report how the command ended. Dropped earlier, the command would be killed.
        let _rebooting = self.argv(&["reboot", "-f"]).as_root().spawn();
        self.wait_for_boot(boots)
    }

    /// Executes a QMP command.
    pub fn qmp(&self, command: &str, arguments: Value) -> Result<Value> {
        self.with_qmp(|qmp| qmp.execute(command, arguments, PROMPT))
    }

    fn with_qmp<T>(&self, work: impl FnOnce(&mut Qmp) -> Result<T>) -> Result<T> {
        let mut slot = lock(&self.qmp);
        let mut qmp = match slot.take() {
            Some(qmp) => qmp,
            None => Qmp::connect(self.label.clone(), &self.socket("qmp"), PROMPT)?,
        };
        let result = work(&mut qmp);
        *slot = Some(qmp);
        result
    }

    /// Unplugs the board; returns when the guest has released it.
    pub fn device_del(&self) -> Result<()> {
        self.with_qmp(|qmp| {
            qmp.forget_events();
            qmp.execute("device_del", json!({"id": DEVICE}), PROMPT)?;
            qmp.wait_event("DEVICE_DELETED", Duration::from_secs(60), |data| data["device"] == DEVICE)?;
            Ok(())
        })
    }

    /// Plugs the board into its port; [`Guest::wait_for_device`] waits for the driver.
    pub fn device_add(&self) -> Result<()> {
        self.device_add_behind(self.bus())
    }

    /// Plugs the board into another port, which [`NodeOptions::qemu_options`] have made.
    pub fn device_add_behind(&self, port: &str) -> Result<()> {
        self.qmp("device_add", self.device(port)).map(drop)
    }

    // ---- resources

    /// Registers of its board, read as QEMU reads them for the guest's processors: the guest notices nothing.
    pub fn registers<const N: usize>(&self, registers: [Register; N]) -> Result<[u64; N]> {
        let failed = |command: &str, said: &str| Error::Command {
            node: self.label.clone(),
            command: command.into(),
            why: format!("expected the address or value of a register, found {said:?}"),
        };
        let resource = self.sh(FIND_REGISTERS).check()?;
        let base = resource.split_whitespace().next().and_then(hex).ok_or_else(|| failed(FIND_REGISTERS, &resource))?;
        let mut values = [0; N];
        for (value, register) in values.iter_mut().zip(registers) {
            let line = format!("xp /1gx {:#x}", base + register.offset());
            let said = self.qmp("human-monitor-command", json!({ "command-line": line }))?;
            let said = said.as_str().unwrap_or_default();
            *value = said.split_whitespace().nth(1).and_then(hex).ok_or_else(|| failed(&line, said))?;
        }
        Ok(values)
    }

    /// Memory of its QEMU.
    pub fn qemu_memory(&self) -> Option<Memory> {
        lock(&self.vm).as_ref()?.process.memory()
    }

    /// Memory of its HIB, if it has a process of its own.
    pub fn hib_memory(&self) -> Option<Memory> {
        lock(&self.hib).as_ref()?.memory()
    }

    /// Stops its HIB (SIGSTOP), as if the machine did not schedule it, or continues it.
    pub fn hang_hib(&self, hangs: bool) {
        if let Some(hib) = lock(&self.hib).as_ref() {
            hib.hang(hangs);
        }
    }

    /// Calls `f` with a name for its HIB and the process of it, if it has one of its own.
    pub(crate) fn of_hib<T>(&self, f: impl Fn(String, &Process) -> Option<T>) -> Option<T> {
        f(format!("HIB {}", self.node), lock(&self.hib).as_ref()?)
    }

    /// Process ids of its QEMU and its HIB, of those that run.
    pub fn pids(&self) -> Vec<u32> {
        let vm = lock(&self.vm).as_ref().map(|vm| vm.process.pid());
        vm.into_iter().chain(lock(&self.hib).as_ref().map(Process::pid)).collect()
    }
}

/// Refuses a command line that the kernel would cut, wherever its words come from: it would wait for a root, or for
/// directories, that it knows nothing of.
fn check_command_line(args: &[OsString]) -> Result<()> {
    let mut lines = args.windows(2).rev().filter(|pair| pair[0] == "-append").map(|pair| pair[1].len());
    match lines.next() {
        Some(length) if length > LONGEST_COMMAND_LINE => Err(Error::Usage(format!(
            "the kernel's command line has {length} bytes, of which it takes {LONGEST_COMMAND_LINE}: shorten --append, the \
             places of shares in the guests, or the names of nodes"
        ))),
        _ => Ok(()),
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_that_would_be_cut_is_refused_with_its_length() {
        let check = |lengths: &[usize]| {
            let line =
                |length: &usize| [OsString::from("-append"), "x".repeat(*length).into(), "-smp".into(), "1".into()];
            let args: Vec<OsString> = lengths.iter().flat_map(line).collect();
            check_command_line(&args).map_err(|e| (e.exit_code(), e.to_string()))
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[2047]), Ok(()));
        let (code, why) = check(&[2048]).unwrap_err();
        assert!(code == 2 && why.contains("has 2048 bytes") && why.contains("--append"), "{why}");
        // QEMU takes the last.
        assert_eq!(check(&[2048, 20]), Ok(()));
    }
}
