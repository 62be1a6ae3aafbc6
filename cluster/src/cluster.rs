// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster: a fabric, and a HIB and a QEMU for each node, in one private directory. Fabric and HIBs have processes of
//! their own, or share one.

use crate::guest::{Guest, NodeOptions, Plan};
use crate::launch::{Logs, log_end, start_fabric, start_host, wait_for_socket, with_files};
use crate::prepared::prepare;
use crate::process::{Memory, Process};
use crate::rundir::{ClusterName, MachineLock, RunDir};
use crate::settings::{Net, Processes, Settings};
use crate::stopwatch::Stopwatch;
use crate::{Error, ProgressMode, Result, interrupt, lock, ssh};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telegraphos_device::direct::memory_socket;
use telegraphos_fabric::control::{ControlClient, default_path};
use telegraphos_images::{KernelChoice, Manifest};

/// Choices about a cluster to be booted.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    settings: Settings,
    progress: ProgressMode,
    each: NodeOptions,
    special: Vec<(usize, NodeOptions)>,
    beside: bool,
    name: Option<ClusterName>,
}

impl Builder {
    /// Number of nodes; 2 without this.
    pub fn nodes(mut self, nodes: usize) -> Builder {
        self.settings.nodes = Some(nodes);
        self
    }

    /// Guest kernel; 6.12 without this.
    pub fn kernel(mut self, kernel: impl Into<KernelChoice>) -> Builder {
        self.settings.kernel = Some(kernel.into());
        self
    }

    /// Processors of each guest; 1 without this.
    pub fn cpus(mut self, processors: u32) -> Builder {
        self.settings.cpus = Some(processors);
        self
    }

    /// An option of `telegraphos-hib` for every node.
    pub fn hib_option(mut self, name: &str, value: &str) -> Builder {
        self.settings.hib.push((name.into(), value.into()));
        self
    }

    /// Everything the command line can choose; what is chosen here wins over earlier choices.
    pub fn settings(mut self, settings: Settings) -> Builder {
        self.settings = settings.over(self.settings);
        self
    }

    /// How progress is reported; bars or lines on stderr without this.
    pub fn progress(mut self, progress: ProgressMode) -> Builder {
        self.progress = progress;
        self
    }

    /// Does not wait until no other cluster runs on this machine. Without this, one that does not say so either is
    /// waited for: tests and measurements have limits of time.
    pub fn beside_others(mut self, beside: bool) -> Builder {
        self.beside = beside;
        self
    }

    /// Runs under this name, by which other processes find it.
    pub(crate) fn named(mut self, name: ClusterName) -> Builder {
        self.name = Some(name);
        self
    }

    /// What every node is like.
    pub fn each(mut self, change: impl FnOnce(&mut NodeOptions)) -> Builder {
        change(&mut self.each);
        self
    }

    /// What differs at one node. To be called after [`Builder::each`].
    pub fn node(mut self, node: usize, change: impl FnOnce(&mut NodeOptions)) -> Builder {
        let mut options = self.each.clone();
        change(&mut options);
        self.special.retain(|(n, _)| *n != node);
        self.special.push((node, options));
        self
    }

    /// Prepares what is needed and boots all nodes. Returns when every guest is up and its device can be used.
    pub fn boot(self) -> Result<Cluster> {
        let Builder { settings, progress, each, special, beside, name } = self;
        settings.check()?;
        let (kvm, note) = settings.use_kvm()?;
        if let (Some(note), false) = (note, progress == ProgressMode::Silent) {
            eprintln!("{note}");
        }
        // Before anything slow: a directory that cannot be used is an error at once.
        let mut run_dir = RunDir::create_for(settings.run_dir.as_deref(), name.as_ref())?;
        run_dir.keep(settings.keep);
        let prepared = prepare(&settings, progress)?;
        let lock = if beside { None } else { Some(MachineLock::acquire(progress)?) };
        let logs = Logs::open(&settings, &run_dir)?;
        let nodes = settings.node_count();
        let fabric_options = with_files(&settings.fabric, run_dir.path())?;
        let manifest = prepared.manifest();
        let settings = Settings { fabric: fabric_options, ..settings };
        let debugged = settings.debugged()?;
        let plan = Arc::new(Plan { prepared, settings, kvm, debugged, run_dir: run_dir.path().to_path_buf(), logs });
        let options = |node| special.iter().find(|(n, _)| *n == node).map_or(&each, |(_, o)| o).clone();
        let guests = (0..nodes).map(|node| Guest::new(node, options(node), Arc::clone(&plan))).collect();
        let fabric = Mutex::default();
        let cluster = Cluster { guests, fabric, plan, manifest, run_dir, _lock: lock };
        cluster.start(progress, &options)?;
        Ok(cluster)
    }
}

/// A running cluster. Everything ends, and its directory goes, when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    // In this order they are dropped: QEMUs and HIBs, fabric, directory, lock.
    guests: Vec<Guest>,
    fabric: Mutex<Option<Process>>,
    plan: Arc<Plan>,
    manifest: Manifest,
    run_dir: RunDir,
    _lock: Option<Arc<MachineLock>>,
}

impl Cluster {
    /// Begins to describe a cluster.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn start(&self, progress: ProgressMode, options: &dyn Fn(usize) -> NodeOptions) -> Result<()> {
        let with_hib: Vec<&Guest> = self.guests.iter().filter(|g| options(g.node()).hib).collect();
        match self.plan.processes() {
            _ if with_hib.is_empty() => {}
            Processes::One => self.start_host(&with_hib)?,
            Processes::Each => {
                self.start_fabric()?;
                with_hib.iter().try_for_each(|guest| guest.start_hib())?;
                with_hib.iter().try_for_each(|guest| guest.wait_for_hib())?;
            }
        }
        let n = self.guests.len();
        let text = format!("Booting {n} virtual machine{}", if n == 1 { "" } else { "s" });
        let mut step = progress.step(text, None);
        let mut begun = Stopwatch::start();
        for guest in &self.guests {
            guest.start_qemu()?;
            if let Some(command) = guest.gdb_command() {
                eprintln!("gdb for node {}:\n{command}", guest.label());
            }
        }
        let mut waiting: Vec<&Guest> = self.guests.iter().collect();
        while !waiting.is_empty() {
            self.check_fabric()?;
            let mut still = Vec::new();
            for guest in waiting {
                if !guest.poll_boot(0)? {
                    if guest.is_late(&mut begun) {
                        return Err(guest.boot_timed_out());
                    }
                    still.push(guest);
                }
            }
            waiting = still;
            step.detail(&format!("{} of {n} up", n - waiting.len()));
        }
        for guest in &self.guests {
            guest.wait_for_boot(0)?;
        }
        step.done();
        let rooted = self.guests.iter().any(Guest::has_root);
        if rooted && self.plan.settings.net.unwrap_or_default() != Net::None {
            let step = progress.step("Exchanging keys for ssh", None);
            ssh::connect(&self.guests, progress)?;
            step.done();
        }
        self.guests.iter().filter(|guest| guest.is_debugged()).try_for_each(Guest::write_gdb_script)
    }

    /// Starts the process that has the fabric and the HIBs of these guests, and waits until it listens everywhere.
    fn start_host(&self, guests: &[&Guest]) -> Result<()> {
        let (socket, log) = (self.plan.fabric_socket(), self.plan.logs.path("host"));
        let sockets: Vec<PathBuf> = guests.iter().map(|guest| guest.hib_socket()).collect();
        let hibs = guests.iter().zip(&sockets).map(|(guest, socket)| guest.hib(socket));
        let settings = &self.plan.settings;
        let mut process =
            start_host(&socket, &settings.fabric, settings.threads.unwrap_or_default(), &settings.trust, hibs, &log)?;
        let trusted = guests.iter().filter(|guest| self.plan.is_trusted(guest.node()));
        let memories: Vec<PathBuf> = trusted.map(|guest| memory_socket(&guest.hib_socket())).collect();
        for path in sockets.iter().chain(&memories).chain([&socket]) {
            wait_for_socket(path, &mut process, || log_end("the host process", &log))?;
        }
        *lock(&self.fabric) = Some(process);
        Ok(())
    }

    /// An error if a process of the cluster has ended by itself, a kernel has panicked, a guest has hung, or the user
    /// interrupts.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_with(Guest::check_kernel)
    }

    /// The same, and an error after which the kernel continues is one, too.
    pub(crate) fn check_strictly(&self) -> Result<()> {
        self.check_with(Guest::check_kernel_strictly)
    }

    fn check_with(&self, check_kernel: impl Fn(&Guest) -> Result<()>) -> Result<()> {
        interrupt::check()?;
        // A panic comes first: it is why others end.
        self.guests.iter().try_for_each(check_kernel)?;
        self.check_fabric()?;
        self.guests.iter().try_for_each(Guest::check)
    }

    /// An error if the process with the fabric has ended by itself.
    fn check_fabric(&self) -> Result<()> {
        let Some(fabric) = &mut *lock(&self.fabric) else { return Ok(()) };
        let Some(status) = fabric.ended() else { return Ok(()) };
        let name = if self.plan.processes() == Processes::One { "host" } else { "fabric" };
        let tail = log_end(fabric.what(), &self.plan.logs.path(name));
        Err(Error::ended(fabric.what(), status, "while the guests run", tail))
    }

    fn start_fabric(&self) -> Result<()> {
        let socket = self.plan.fabric_socket();
        let process = start_fabric(&socket, &self.plan.settings.fabric, &self.plan.logs.path("fabric"))?;
        *lock(&self.fabric) = Some(process);
        Ok(())
    }

    /// A connection to the control socket of the fabric.
    pub fn control(&self) -> Result<ControlClient> {
        Ok(ControlClient::connect(&self.control_socket())?)
    }

    /// Ends the fabric at once, as a crash would; with one process, all HIBs with it.
    pub fn kill_fabric(&self) {
        *lock(&self.fabric) = None;
    }

    /// Starts the fabric anew; HIBs that have processes of their own join it by themselves.
    pub fn restart_fabric(&self) -> Result<()> {
        self.kill_fabric();
        self.start_fabric()
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// The directory of its logs.
    pub(crate) fn log_dir(&self) -> &Path {
        self.plan.logs.dir()
    }

    /// The control socket of its fabric.
    pub(crate) fn control_socket(&self) -> PathBuf {
        default_path(&self.plan.fabric_socket())
    }

    /// Ends it; its logs and this record stay in its private directory.
    pub(crate) fn end_with_record(mut self, record: &[u8]) -> Result<()> {
        let path = self.run_dir().to_path_buf();
        self.run_dir.leave_record(record).map_err(Error::io("cannot write into", &path))
    }

    pub fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// Node `node`, which must be one of the cluster's.
    pub fn node(&self, node: usize) -> &Guest {
        &self.guests[node]
    }

    /// The processes that have the HIBs: what each has, the processor time that it has used, and its memory. None of a
    /// process that has ended.
    pub fn servers(&self) -> Vec<(String, Duration, Memory)> {
        let used = |name: String, process: &Process| Some((name, process.cpu_time()?, process.memory()?));
        match self.plan.processes() {
            Processes::One => lock(&self.fabric).iter().filter_map(|host| used("all HIBs".into(), host)).collect(),
            Processes::Each => self.guests.iter().filter_map(|guest| guest.of_hib(used)).collect(),
        }
    }

    /// What QEMU and the guests are made of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether the guests run on the host's own processors (KVM), not under emulation.
    pub fn uses_kvm(&self) -> bool {
        self.plan.kvm
    }

    /// Process ids of everything it runs.
    pub fn pids(&self) -> Vec<u32> {
        let fabric = lock(&self.fabric).as_ref().map(Process::pid);
        fabric.into_iter().chain(self.guests.iter().flat_map(Guest::pids)).collect()
    }
}
