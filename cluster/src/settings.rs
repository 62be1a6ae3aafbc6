// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be chosen about a cluster: on the command line and, with the same names, in one TOML file.

use crate::node_settings::{NodeSettings, mebibytes, memory};
use crate::{Error, Result};
use serde::{Deserialize, Deserializer};
use std::fs;
use std::path::{Path, PathBuf};
use telegraphos_device::direct::TrustGroup;
use telegraphos_host::Threads;
use telegraphos_images::{BootOptions, KernelChoice, KvmState, Machine, Programs, RootChoice, Share, kvm_usable};

/// The most nodes of a cluster on one computer.
pub const MAX_NODES: usize = 64;
/// The most directories of the host in a guest: each is a device and a word for the kernel, whose command line has 2048
/// bytes.
const MAX_SHARES: usize = 8;
const MAX_APPEND: usize = 768;

/// What runs guest code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// KVM if it can run a guest here, else TCG.
    #[default]
    Auto,
    /// QEMU's emulation.
    Tcg,
    /// The processor's virtualisation.
    Kvm,
}

/// How the servers of a cluster are divided into processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Processes {
    /// One process has the fabric and all HIBs: fast.
    One,
    /// The fabric and each HIB have processes of their own: isolated.
    Each,
}

/// What networks the guests have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Net {
    /// None.
    #[default]
    None,
    /// Ethernet between the nodes over their boards (tg0), with addresses and names.
    Nodes,
    /// The same, and QEMU's user network to the outside (eth0).
    User,
}

/// Choices; what is not chosen has the default named here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Cluster options (the same names in the file of --config)")]
pub struct Settings {
    /// Number of virtual machines, 1 to 64 [default: 2, or that of the tables named node in the file]
    #[arg(long, value_name = "N")]
    pub nodes: Option<usize>,
    /// Guest kernel: 6.1, 6.12 or newest (6.12-generic for the generic flavour); a version of Debian's (6.12.57,
    /// linux-image-6.12.57+deb13-cloud-amd64); or a path with a slash: a bzImage, a vmlinux, the directory of a kernel
    /// build (see docs/boot.md) [default: 6.12]
    #[arg(long, value_name = "KERNEL")]
    pub kernel: Option<KernelChoice>,
    /// Where the modules of an own kernel are: a directory such as /lib/modules/RELEASE, or one above it
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,
    /// An initramfs that runs before the boot root
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Words added to the kernel's command line
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub append: Option<String>,
    /// Root of the guests: a directory or a disk image, neither of which is changed, or host, this machine's own
    /// [default: an own small one]
    #[arg(long, value_name = "ROOT")]
    pub root: Option<RootChoice>,
    /// A directory of this machine inside the guests, as HOSTDIR:GUESTDIR, or HOSTDIR:GUESTDIR:ro; as often as wanted
    #[arg(long, value_name = "SHARE")]
    #[serde(default)]
    pub share: Vec<Share>,
    /// Memory of each virtual machine: 512M, 2G; a number alone is MiB [default: 256M]
    #[arg(long = "memory", value_name = "SIZE", value_parser = mebibytes)]
    #[serde(default, rename = "memory", deserialize_with = "memory")]
    pub memory_mib: Option<u32>,
    /// Processors of each virtual machine [default: 1]
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,
    /// Machine of each guest: q35, or pc, which is without PCI Express [default: q35]
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<Machine>,
    /// What runs guest code [default: auto]
    #[arg(long, value_enum)]
    pub accel: Option<Accelerator>,
    /// Whether fabric and HIBs share one process, or each has one [default: one; each for bench --notify]
    #[arg(long, value_enum)]
    pub processes: Option<Processes>,
    /// Threads of the process that all share: 1, or one for the fabric and others among which the HIBs are divided;
    /// auto is one for each HIB where there are processors for all [default: auto]
    #[arg(long, value_name = "N")]
    pub threads: Option<Threads>,
    /// QEMU, instead of the host's or Debian's; must have vfio-user-pci [default: $TELEGRAPHOS_QEMU]
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    /// An argument of every QEMU, after all others; may be given several times (in the file: a list named qemu-arg)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    #[serde(default)]
    pub qemu_arg: Vec<String>,
    /// Nodes that trust each other, as NAME=NODES:MIB (lab=0,2-3:64; in the file: tables named trust, with name, nodes
    /// and size-mib): they get memory that each accesses directly, whatever is granted. Needs one process
    #[arg(long, value_name = "GROUP")]
    #[serde(default)]
    pub trust: Vec<TrustGroup>,
    /// A node whose kernel gdb may debug: prints the command line of gdb, for a socket in the private directory; as
    /// often as wanted. Time limits of boots and hangs are not for it, and its kernel has nokaslr
    #[arg(long, value_name = "NODE")]
    #[serde(default)]
    pub gdb: Vec<String>,
    /// Networks of the guests [default: nodes for run and up, else none]
    #[arg(long, value_enum)]
    pub net: Option<Net>,
    /// Keep tgd running in each guest: the nodes are one system, with tg-spawn and tg-task
    #[arg(long)]
    #[serde(default)]
    pub tgd: bool,
    /// Leaves out of an emulated boot what few programs use, a quarter of it: probes of the kernel's tracer, types of
    /// BPF, certificates for modules [default: only where neither kernel, root nor shares are your own]
    #[arg(long)]
    #[serde(default)]
    pub fast: bool,
    /// Seconds until a guest must be up [default: 180]
    #[arg(long, value_name = "SECONDS")]
    pub boot_timeout: Option<u64>,
    /// Seconds without an answer from a guest that is up, after which it counts as hung [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub hang_timeout: Option<u64>,
    /// An error that a kernel may report without a failure of run: one whose first line has this text (KASAN's and
    /// lkdtm's own tests); as often as wanted
    #[arg(long, value_name = "TEXT")]
    #[serde(default)]
    pub allow_report: Vec<String>,
    /// Keeps the private directory with all logs and says where it is
    #[arg(long)]
    #[serde(default)]
    pub keep: bool,
    /// Where the private directory for sockets is made [default: $XDG_RUNTIME_DIR, else /tmp]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Keeps the logs of all processes and consoles in this directory
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Cache of QEMU, kernels and guest images [default: ~/.cache/telegraphos]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// An option of telegraphos-hib for every HIB, as NAME=VALUE (in the file: a table named hib)
    #[arg(long = "hib", value_name = "NAME=VALUE", value_parser = pair)]
    #[serde(default, deserialize_with = "table::<_, telegraphos_device::Settings>")]
    pub hib: Vec<(String, String)>,
    /// An option of telegraphos-fabric, as NAME=VALUE (in the file: a table named fabric, with lists for options that
    /// may be given several times, and topology and faults as files or as tables)
    #[arg(long = "fabric", value_name = "NAME=VALUE", value_parser = pair)]
    #[serde(default, deserialize_with = "fabric")]
    pub fabric: Vec<(String, String)>,
    /// Nodes that differ, by number; only in the file: tables named node.
    #[arg(skip)]
    #[serde(default)]
    pub node: Vec<NodeSettings>,
    /// Our own programs in the guests' boot root; the command chooses.
    #[arg(skip)]
    #[serde(skip)]
    pub programs: Programs,
}

/// A table of options of another command, with the settings `S`, which define the names.
fn table<'de, D, S>(from: D) -> std::result::Result<Vec<(String, String)>, D::Error>
where
    D: Deserializer<'de>,
    S: serde::de::DeserializeOwned,
{
    let table = toml::Table::deserialize(from)?;
    table.clone().try_into::<S>().map_err(serde::de::Error::custom)?;
    let text = |value: toml::Value| match value {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    // An option that may be given several times is a list.
    let several = |(name, value): (String, toml::Value)| match value {
        toml::Value::Array(values) => values.into_iter().map(|value| (name.clone(), text(value))).collect(),
        value => vec![(name, text(value))],
    };
    Ok(table.into_iter().flat_map(several).collect())
}

/// The table of options of the fabric. What is a file on its command line may be tables here: a topology, and faults
/// that come and go. Their text then has several lines ([`crate::launch::with_files`]).
fn fabric<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<(String, String)>, D::Error> {
    let mut table = toml::Table::deserialize(from)?;
    let mut texts = Vec::new();
    for name in ["topology", "faults"] {
        let file = match table.get(name) {
            Some(toml::Value::Table(file)) => file.clone(),
            Some(events @ toml::Value::Array(_)) => [("event".to_owned(), events.clone())].into_iter().collect(),
            _ => continue,
        };
        table.remove(name);
        texts.push((name.to_owned(), format!("{file}\n")));
    }
    let mut options = self::table::<_, toml::Table>(table).map_err(serde::de::Error::custom)?;
    options.extend(texts);
    Ok(options)
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE, such as load-limit-ms=500")),
    }
}

impl Settings {
    /// Reads a TOML file; an unknown key is refused.
    pub fn read(path: &Path) -> Result<Settings> {
        let text = fs::read_to_string(path).map_err(Error::io("cannot read the configuration", path))?;
        toml::from_str(&text).map_err(|e| Error::Usage(format!("{}: {}", path.display(), e.to_string().trim_end())))
    }

    /// These choices, and those of `base` where nothing is chosen. Options of HIB and fabric add up; the last one
    /// counts.
    pub fn over(self, base: Settings) -> Settings {
        let add = |mut first: Vec<(String, String)>, then: Vec<(String, String)>| {
            first.retain(|(name, _)| !then.iter().any(|(other, _)| other == name));
            first.extend(then);
            first
        };
        Settings {
            nodes: self.nodes.or(base.nodes),
            kernel: self.kernel.or(base.kernel),
            modules: self.modules.or(base.modules),
            initrd: self.initrd.or(base.initrd),
            append: self.append.or(base.append),
            root: self.root.or(base.root),
            share: if self.share.is_empty() { base.share } else { self.share },
            memory_mib: self.memory_mib.or(base.memory_mib),
            cpus: self.cpus.or(base.cpus),
            machine: self.machine.or(base.machine),
            accel: self.accel.or(base.accel),
            processes: self.processes.or(base.processes),
            threads: self.threads.or(base.threads),
            trust: if self.trust.is_empty() { base.trust } else { self.trust },
            gdb: if self.gdb.is_empty() { base.gdb } else { self.gdb },
            net: self.net.or(base.net),
            tgd: self.tgd || base.tgd,
            fast: self.fast || base.fast,
            boot_timeout: self.boot_timeout.or(base.boot_timeout),
            hang_timeout: self.hang_timeout.or(base.hang_timeout),
            allow_report: [base.allow_report, self.allow_report].concat(),
            keep: self.keep || base.keep,
            qemu: self.qemu.or(base.qemu),
            qemu_arg: [base.qemu_arg, self.qemu_arg].concat(),
            run_dir: self.run_dir.or(base.run_dir),
            log_dir: self.log_dir.or(base.log_dir),
            cache: self.cache.or(base.cache),
            hib: add(base.hib, self.hib),
            fabric: add(base.fabric, self.fabric),
            node: if self.node.is_empty() { base.node } else { self.node },
            programs: self.programs,
        }
    }

    /// Refuses what cannot be.
    pub fn check(&self) -> Result<()> {
        self.check_one()?;
        self.check_nodes()?;
        self.check_trust()
    }

    /// The same without what concerns several nodes.
    pub(crate) fn check_one(&self) -> Result<()> {
        let range = |name: &str, value: Option<u64>, least: u64, most: u64, unit: &str| match value {
            Some(v) if v < least || v > most => {
                Err(Error::Usage(format!("{name} is {v}{unit}: expected {least} to {most}{unit}")))
            }
            _ => Ok(()),
        };
        range("nodes", Some(self.node_count() as u64), 1, MAX_NODES as u64, "")?;
        range("memory", self.memory_mib.map(u64::from), 128, 65_536, " MiB")?;
        range("cpus", self.cpus.map(u64::from), 1, 64, "")?;
        range("hang-timeout", self.hang_timeout, 5, 86_400, " s")?;
        range("boot-timeout", self.boot_timeout, 5, 3600, " s")?;
        if self.allow_report.iter().any(|text| text.trim().is_empty()) {
            return Err(Error::Usage(
                "allow-report is empty, which is in every report: give a part of the line, such as \"KASAN:\"".into(),
            ));
        }
        if let (Some(threads @ Threads::Fixed(2..)), Some(Processes::Each)) = (self.threads, self.processes) {
            return Err(Error::Usage(format!(
                "threads is {threads}, but the HIBs do not share a process; choose --processes one"
            )));
        }
        self.check_boot()
    }

    pub(crate) fn boot_options(&self) -> BootOptions {
        BootOptions {
            kernel: self.kernel.clone().unwrap_or_default(),
            modules: self.modules.clone(),
            initrd: self.initrd.clone(),
            root: self.root.clone(),
            shares: self.share.clone(),
            fast: self.fast,
            programs: self.programs,
        }
    }

    /// Refuses shares that hide each other, and words that are none.
    fn check_boot(&self) -> Result<()> {
        if self.share.len() > MAX_SHARES {
            return Err(Error::Usage(format!("{} shares: at most {MAX_SHARES} are possible", self.share.len())));
        }
        Share::in_order(self.share.clone())?;
        let append = self.append.as_deref().unwrap_or("");
        if append.len() > MAX_APPEND || append.contains(|c: char| c.is_control()) {
            return Err(Error::Usage(format!(
                "append has {} bytes: expected words for the kernel in one line of at most {MAX_APPEND}",
                append.len()
            )));
        }
        Ok(())
    }

    /// Refuses trust groups that cannot be, by their names.
    fn check_trust(&self) -> Result<()> {
        TrustGroup::check_all(&self.trust).map_err(|e| Error::Usage(e.to_string()))?;
        let nodes = self.node_count();
        for group in &self.trust {
            if let Some(node) = group.nodes.iter().find(|node| usize::from(**node) >= nodes) {
                let name = &group.name;
                return Err(Error::Usage(format!(
                    "trust group {name:?}: node {node} is not in this cluster; expected 0 to {}",
                    nodes - 1
                )));
            }
            if self.processes == Some(Processes::Each) {
                return Err(Error::Usage(format!(
                    "trust group {:?} needs one process for all HIBs: its memory is that process's; choose \
                     --processes one",
                    group.name
                )));
            }
        }
        Ok(())
    }

    /// Whether KVM is to be used, and a note for the user.
    pub(crate) fn use_kvm(&self) -> Result<(bool, Option<String>)> {
        choose_accelerator(self.accel.unwrap_or_default(), &kvm_usable())
    }
}

fn choose_accelerator(wanted: Accelerator, kvm: &KvmState) -> Result<(bool, Option<String>)> {
    match (wanted, kvm) {
        (Accelerator::Tcg, _) | (Accelerator::Auto, KvmState::Absent) => Ok((false, None)),
        (_, KvmState::Usable) => Ok((true, None)),
        (Accelerator::Auto, KvmState::PresentButUnusable { reason }) => {
            Ok((false, Some(format!("KVM is present but unusable: {reason}; guests run under TCG"))))
        }
        (Accelerator::Kvm, KvmState::PresentButUnusable { reason }) => {
            Err(Error::Usage(format!("KVM is present but unusable: {reason}; choose --accel tcg")))
        }
        (Accelerator::Kvm, KvmState::Absent) => {
            Err(Error::Usage("KVM is absent: there is no /dev/kvm; choose --accel tcg".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_images::KernelSeries;

    fn read(text: &str) -> Result<Settings> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.toml");
        fs::write(&path, text).unwrap();
        Settings::read(&path)
    }

    #[test]
    fn the_file_knows_the_names_of_the_command_line() {
        use clap::{Args, Command};
        let command = Settings::augment_args(Command::new("x"));
        let names: Vec<&str> = command.get_arguments().filter_map(|a| a.get_long()).collect();
        let text = "nodes = 3\nkernel = \"6.1\"\nmodules = \"/m\"\ninitrd = \"/i\"\nappend = \"a b\"\nroot = \"host\"\n\
                    share = [\"/a:/b:ro\"]\nmemory = \"512M\"\ncpus = 2\nmachine = \"pc\"\naccel = \"tcg\"\nprocesses = \"one\"\nthreads = 3\nnet = \"user\"\ntgd = true\ngdb = [\"2\"]\nboot-timeout = 60\n\
                    hang-timeout = 90\nallow-report = [\"KASAN:\"]\nfast = true\nkeep = true\nqemu = \"/q\"\nqemu-arg = [\"-d\", \"int\"]\n\
                    run-dir = \"/r\"\nlog-dir = \"/l\"\ncache = \"/c\"\n[hib]\nload-limit-ms = 500\n[fabric]\nnodes = 9\n\
                    [[trust]]\nname = \"lab\"\nnodes = [0, 2]\nsize-mib = 64\n";
        let settings = read(text).unwrap();
        for name in &names {
            assert!(
                text.contains(&format!("{name} = ")) || text.contains(&format!("[{name}]")),
                "{name} is not in the file"
            );
        }
        assert_eq!((settings.nodes, settings.kernel), (Some(3), Some(KernelSeries::V6_1.into())));
        assert_eq!(settings.hib, [("load-limit-ms".to_owned(), "500".to_owned())]);
        assert_eq!(settings.trust, ["lab=0,2:64".parse().unwrap()]);
        assert_eq!(settings.threads, Some(Threads::Fixed(3)));
        assert_eq!((settings.memory_mib, settings.keep, settings.qemu_arg.len()), (Some(512), true, 2));
    }

    #[test]
    fn sizes_have_units() {
        for (text, mib) in [("256", 256), ("512M", 512), ("512MiB", 512), ("2G", 2048), ("2GiB", 2048)] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for text in ["", "M", "2K", "2T", "-1", "1.5G", "2 G", "4294967296", "4194304G"] {
            let said = mebibytes(text).unwrap_err();
            assert!(said.contains(&format!("{text:?}")) && said.contains("512M or 2G"), "{said}");
        }
        assert_eq!(read("memory = 512\n").unwrap().memory_mib, Some(512));
        let said = read("memory = 1.5\n").unwrap_err().to_string();
        assert!(said.contains("1.5") && said.contains("512M"), "{said}");
    }

    #[test]
    fn an_unknown_key_is_named_with_what_was_expected() {
        let text = read("nodes = 2\nmemori = 5\n").unwrap_err().to_string();
        for part in ["cluster.toml", "memori", "memory", "line 2"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        let text = read("kernel = \"5.10\"").unwrap_err().to_string();
        assert!(text.contains("5.10") && text.contains("6.12"), "{text}");
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file = Settings {
            nodes: Some(2),
            cpus: Some(2),
            hib: vec![("a".into(), "1".into()), ("b".into(), "1".into())],
            ..Settings::default()
        };
        let line = Settings { nodes: Some(4), hib: vec![("a".into(), "2".into())], ..Settings::default() };
        let both = line.over(file);
        assert_eq!((both.nodes, both.cpus), (Some(4), Some(2)));
        assert_eq!(both.hib, [("b".into(), "1".into()), ("a".into(), "2".into())] as [(String, String); 2]);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let text = Settings { nodes: Some(65), ..Settings::default() }.check().unwrap_err().to_string();
        assert_eq!(text, "nodes is 65: expected 1 to 64");
        assert!(Settings { memory_mib: Some(1), ..Settings::default() }.check().is_err());
        let trust = |groups: &[&str], processes| {
            let trust = groups.iter().map(|text| text.parse().unwrap()).collect();
            Settings { nodes: Some(3), trust, processes, ..Settings::default() }.check().map_err(|e| e.to_string())
        };
        assert_eq!(trust(&["a=0,2:64", "b=1:1"], None), Ok(()));
        let text = trust(&["a=0,3:64"], None).unwrap_err();
        assert_eq!(text, "trust group \"a\": node 3 is not in this cluster; expected 0 to 2");
        let text = trust(&["a=0,1:64", "b=1:64"], None).unwrap_err();
        assert!(text.contains("trust group \"b\": node 1 is in group \"a\""), "{text}");
        let text = trust(&["a=0,1:64"], Some(Processes::Each)).unwrap_err();
        assert!(text.contains("trust group \"a\"") && text.contains("--processes one"), "{text}");
        assert!(Settings::default().check().is_ok());
    }

    #[test]
    fn shares_and_words_for_the_kernel_are_looked_at() {
        let share = |texts: &[&str]| {
            let share = texts.iter().map(|text| text.parse().unwrap()).collect();
            Settings { share, ..Settings::default() }.check().map_err(|e| e.to_string())
        };
        assert_eq!(share(&["/a:/x", "/a:/y"]), Ok(()));
        assert_eq!(share(&["/a:/x", "/b:/x"]).unwrap_err(), "two shares are at /x; give each a place of its own");
        assert!(share(&["/a:/0", "/a:/1", "/a:/2", "/a:/3", "/a:/4", "/a:/5", "/a:/6", "/a:/7", "/a:/8"]).is_err());
        let append = |text: &str| Settings { append: Some(text.into()), ..Settings::default() }.check();
        assert!(append("debug nosmp").is_ok() && append("a\nb").is_err() && append(&"x".repeat(2000)).is_err());
    }

    #[test]
    fn threads_are_those_of_one_process() {
        let check = |threads: &str, processes| {
            let threads = Some(threads.parse().unwrap());
            Settings { threads, processes, ..Settings::default() }.check().map_err(|e| e.to_string())
        };
        for processes in [None, Some(Processes::One)] {
            assert_eq!([check("3", processes), check("auto", processes)], [Ok(()), Ok(())]);
        }
        assert_eq!(check("1", Some(Processes::Each)), Ok(()));
        let text = check("2", Some(Processes::Each)).unwrap_err();
        assert!(text.contains("threads is 2") && text.contains("--processes one"), "{text}");
        let text = read("threads = 0\n").unwrap_err().to_string();
        assert!(text.contains("expected auto, or a number of threads from 1 on"), "{text}");
        assert_eq!(read("threads = \"auto\"\n").unwrap().threads, Some(Threads::Auto));
    }

    #[test]
    fn kvm_that_cannot_run_guests_is_said_and_not_used() {
        let broken = KvmState::PresentButUnusable { reason: "no vmx".into() };
        let (used, note) = choose_accelerator(Accelerator::Auto, &broken).unwrap();
        assert!(!used && note.unwrap().contains("KVM is present but unusable: no vmx; guests run under TCG"));
        let text = choose_accelerator(Accelerator::Kvm, &broken).unwrap_err().to_string();
        assert!(text.contains("no vmx") && text.contains("--accel tcg"), "{text}");
        assert!(choose_accelerator(Accelerator::Kvm, &KvmState::Absent).is_err());
        assert_eq!(choose_accelerator(Accelerator::Auto, &KvmState::Absent).unwrap(), (false, None));
        assert!(choose_accelerator(Accelerator::Auto, &KvmState::Usable).unwrap().0);
        assert!(!choose_accelerator(Accelerator::Tcg, &KvmState::Usable).unwrap().0);
    }
}
