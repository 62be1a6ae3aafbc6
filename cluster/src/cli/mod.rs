// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos`.

mod console;
mod context;
mod control;
mod ctl;
mod demo;
mod detached;
mod doctor;
mod input;
mod lab;
mod replay;
mod run;
mod terminal;
mod top;

use context::begin_with;
pub use context::{Common, Context, begin, print, usage, written};
pub use run::measure;
pub use terminal::readable;

use crate::report::{self, Files};
use crate::rundir::ClusterName;
use crate::{Error, MachineLock, Net, Processes, Result, Settings, User};
use clap::{Args, CommandFactory, Parser, Subcommand};
use context::complain;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Virtual clusters of machines that store into each other's memory.
///
/// Boots virtual machines on stock QEMU, each with a Telegraphos host interface board (HIB), joined by a fabric. All it
/// needs (QEMU, kernel, driver) it fetches and builds once from Debian's packages, without root.
#[derive(Debug, Parser)]
#[command(
    name = "telegraphos",
    version,
    max_term_width = 110,
    after_help = "Examples:\n  \
        telegraphos demo                                  three machines store into each other's memory\n  \
        telegraphos run --nodes 4 -- tg-selftest          the whole self test in four machines\n  \
        telegraphos run --kernel 6.1 --user root -- lspci -nvv\n  \
        telegraphos up --nodes 3                          shells on three machines\n  \
        telegraphos top                                   traffic between them, live\n  \
        telegraphos bench                                 what a store costs\n\n\
        Exit codes: 0 success; 1 a check or a guest failed; 2 usage or configuration; 3 the cluster could not be set \
        up,\nor a process of it ended; 124 a time limit; 130 interrupted; 254 a guest's kernel failed, or the guest \
        hung.\n`run` and `exec` pass on that of their command (128 + n for signal n), and have 125 in place of 1, 2 \
        and 3."
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Three machines store into each other's memory: each step counted, checked and timed, in some 30 seconds
    #[command(
        after_help = "Examples:\n  telegraphos demo\n  telegraphos demo --picture run.svg\n  telegraphos demo --plain \
                            > demo.log\n  telegraphos demo --inject-corruption     (must fail: one delivered word is flipped \
                            before it is checked)\n\nThe column \"at the board\" is what the counters of the boards say that \
                            one operation took of the guest. Exit code 1: a check failed."
    )]
    Demo {
        #[command(flatten)]
        options: demo::Options,
        #[command(flatten)]
        settings: Settings,
    },
    /// Boots machines with a shell on each console
    #[command(
        after_help = "Examples:\n  telegraphos up --nodes 3\n  telegraphos up -d --nodes 4 && telegraphos exec 0 -- \
                            tg-selftest\n  telegraphos up -d --cluster old --kernel 6.1\n\nOn a terminal you are at node 0's \
                            console; Ctrl-] and a digit goes to another node's, Ctrl-] and q ends everything.\n\nWith -d \
                            the command returns when all guests are up; status, exec, logs, cp and down are for the \
                            cluster then."
    )]
    Up {
        /// Returns when all guests are up; the cluster runs on until `telegraphos down`
        #[arg(long, short)]
        detach: bool,
        /// The name of the cluster, of several that run detached [default: default]
        #[arg(long, value_name = "NAME", requires = "detach")]
        cluster: Option<ClusterName>,
        #[command(flatten)]
        settings: Settings,
    },
    /// The state of a cluster that runs detached
    #[command(
        after_help = "Examples:\n  telegraphos status\n  telegraphos status --cluster old --json\n\nExit codes: 0 it is up; \
                            3 there is none, or a process of it has ended; 254 a guest's kernel panicked, or the guest \
                            hung."
    )]
    Status(detached::StatusArgs),
    /// Runs a command in a guest of a cluster that runs detached
    #[command(
        after_help = "Examples:\n  telegraphos exec 0 -- tg-selftest\n  telegraphos exec node1 --user root -- dmesg\n  \
                            tar -c DIR | telegraphos exec 0 -- tar -x -C /tmp\n\nStandard input, output and error are \
                            those of the command; a loop that reads its own input gives it < /dev/null.\nCtrl-C ends the \
                            command in the guest. The exit code is that of the command (128 + n for signal n); 125 for \
                            wrong\nusage, and where there is no such cluster, or it has ended; 254 the guest panicked or \
                            hung."
    )]
    Exec(detached::ExecArgs),
    /// Shows the logs of a cluster that runs detached, or that has ended by itself
    #[command(
        after_help = "Examples:\n  telegraphos logs\n  telegraphos logs 1 --follow\n  telegraphos logs --of fabric"
    )]
    Logs(detached::LogsArgs),
    /// Copies a file or directory into a guest of a cluster that runs detached, or out of one
    #[command(
        after_help = "Examples:\n  telegraphos cp ./program 0:/tmp/\n  telegraphos cp --user root node1:/proc/kallsyms \
                            symbols\n  telegraphos cp -r 0:/tmp/results .\n\nThe copy has the mode of the original. Of a \
                            directory that comes out of a guest,\nlinks that lead out of it, hard links and devices are \
                            left out and named (exit code 1)."
    )]
    Cp(detached::CpArgs),
    /// Ends a cluster that runs detached
    #[command(after_help = "Examples:\n  telegraphos down\n  telegraphos down --cluster old")]
    Down {
        #[command(flatten)]
        which: detached::Which,
    },
    /// Runs a command in every guest at once
    #[command(after_help = "Examples:\n  telegraphos run --nodes 4 --lab -- tg-selftest\n  telegraphos run --junit \
                            selftest.xml -- tg-selftest\n  telegraphos run --nodes 1 --user root -- sh -c 'dmesg | tail'\n  telegraphos run --nodes 1 -- sh < test.sh\n  git bisect run telegraphos run --bisect --kernel . -- tg-selftest\n\nThe exit code is that of the first command to fail, or 0; 126 and 127 as shells have \
                            them; 124 after --timeout; 254 for a guest whose\nkernel failed or that hung, with the kernel's stack and the end of its console. --junit and --ktap say the same for CI; a\nprogram \
                            that prints KTAP has its own tests there.")]
    Run(RunArgs),
    /// Makes one report of outputs with KTAP that were kept elsewhere, as consoles of machines that others have started
    #[command(
        after_help = "Examples:\n  telegraphos report --junit all.xml left=console0.log right=console1.log\n\nThe \
                            exit code is 0; 1 if a test has failed, or an output has no KTAP; 2 for wrong usage."
    )]
    Report {
        #[command(flatten)]
        files: report::Files,
        /// The output of each machine
        #[arg(required = true, value_name = "NAME=FILE")]
        outputs: Vec<report::Saved>,
    },
    /// Measures what operations and an idle board cost, beside what others offer in the same guests
    #[command(disable_help_flag = true)]
    Bench(lab::Arguments),
    /// Says what a report of a fault needs to say about this machine, and what is missing here
    #[command(
        after_help = "Examples:\n  telegraphos doctor > doctor.txt\n\nNothing is fetched, built or booted, and nothing \
                            private is shown: no name of a user or of this machine.\nExit code 1: something is missing \
                            without which no cluster boots."
    )]
    Doctor {
        /// Directory for everything that is fetched and built [default: ~/.cache/telegraphos]
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
    },
    /// Prepares QEMU and the guest image, and prints what they are made of
    #[command(after_help = "Examples:\n  telegraphos images --kernel newest\n  telegraphos images --refresh")]
    Images {
        /// Looks for newer versions of everything
        #[arg(long)]
        refresh: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// A live table of a running fabric: nodes, trunks, rates, stalls, hottest pairs
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopArgs),
    /// Queries a running fabric, sets faults, captures
    #[command(after_help = ctl::EXAMPLES)]
    Ctl(ctl::CtlArgs),
    /// Feeds a capture of a fabric to switches of the same configuration, and prints what they do otherwise
    #[command(
        after_help = "Example:\n  telegraphos-fabric --listen /tmp/fabric --capture run.pcapng\n  telegraphos replay run.pcapng\n\nExit codes: \
                            0 no difference; 1 differences; 2 the file cannot be replayed. Records are counted as Wireshark counts packets."
    )]
    Replay {
        /// The capture, of all links and from the start
        file: PathBuf,
        /// Differences that are printed; all are counted
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u64,
    },
    /// Simulates a cluster of up to 4096 nodes in virtual time: latencies, throughput, fairness
    #[command(disable_help_flag = true)]
    Sim(lab::Arguments),
    /// Attaches this terminal to a console's socket
    #[command(after_help = "Example:\n  telegraphos console /run/user/1000/telegraphos-1000-AbCdEf/console0")]
    Console {
        /// The socket `telegraphos up` has printed
        socket: PathBuf,
    },
}

impl Command {
    /// The detached cluster that it is about.
    fn which(&mut self) -> Option<&mut detached::Which> {
        match self {
            Command::Status(args) => Some(&mut args.which),
            Command::Exec(args) => Some(&mut args.which),
            Command::Logs(args) => Some(&mut args.which),
            Command::Cp(args) => Some(&mut args.which),
            Command::Down { which } => Some(which),
            _ => None,
        }
    }
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The user that runs it in the guests: tg or root
    #[arg(long, default_value = "tg")]
    user: User,
    /// Loads telegraphos_lab.ko in the guests, too: what the kernel does in comparisons
    #[arg(long)]
    lab: bool,
    /// Seconds after which it is killed; the exit code is then 124 [default: none]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Which commands get standard input: none, all, or that of a node, by number or name [default: that of the only
    /// node, unless it is a terminal; of several nodes none, and it is an error if there is any]
    #[arg(long, value_name = "WHICH")]
    stdin: Option<input::Wanted>,
    /// Exit codes for git bisect run: 0 good; 1 for a command that fails or is late, and for a kernel that panics,
    /// hangs or does not boot; 125 (skip) for what is not the kernel's fault; 255, which ends the search, for wrong
    /// usage
    #[arg(long)]
    bisect: bool,
    #[command(flatten)]
    reports: Files,
    #[command(flatten)]
    settings: Settings,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<OsString>,
}

/// The command line, for manual pages and the completion of shells.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command with these arguments (the first is the program's name).
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    run_command(args.into_iter().collect(), false)
}

/// The same as the process of a detached cluster, which [`main`] has started with its own arguments.
pub(crate) fn detached_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // It fails only for the leader of a process group, which a new child is not.
    let _ = rustix::process::setsid();
    run_command(args.into_iter().collect(), true)
}

fn run_command(args: Vec<OsString>, detached: bool) -> ExitCode {
    let codes = Codes::of(&args);
    begin_with(args.clone(), |code| codes.of_error(code), |cli| execute(cli, &args, detached))
}

/// Which exit codes errors of ours have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codes {
    /// Those of [`Error::exit_code`].
    Own,
    /// What a command in a guest hardly returns, since its codes are passed on.
    Beside,
    /// What `git bisect run` understands.
    Bisect,
}

impl Codes {
    /// Of a command line, which may be wrong.
    fn of(args: &[OsString]) -> Codes {
        let matches = Cli::command().ignore_errors(true).try_get_matches_from(args);
        match matches.as_ref().ok().and_then(|matches| matches.subcommand()) {
            Some(("run", options)) if matches!(options.try_get_one("bisect"), Ok(Some(true))) => Codes::Bisect,
            Some(("run" | "exec", _)) => Codes::Beside,
            _ => Codes::Own,
        }
    }

    fn of_error(self, code: u8) -> u8 {
        match (self, code) {
            (Codes::Beside, 1..=3) => Error::BESIDE_COMMANDS,
            (Codes::Bisect, 2) => run::BISECT_USAGE,
            (Codes::Bisect, 1 | 3) => run::BISECT_SKIP,
            _ => code,
        }
    }
}

fn execute(mut cli: Cli, args: &[OsString], detached: bool) -> Result<u8> {
    let common = cli.common;
    let base = common.settings()?;
    if let Some(which) = cli.command.which() {
        which.complete(&base);
    }
    let context = |settings: Settings| common.context(settings);
    // What people use is fast; what measures the parts by themselves has them apart, unless told otherwise.
    let fast = |settings: Settings| {
        let mut context = context(settings)?;
        context.settings.processes.get_or_insert(Processes::One);
        context.beside = std::env::var_os(MachineLock::VARIABLE).is_none();
        Ok::<_, Error>(context)
    };
    let networked = |settings: Settings| {
        let mut context = fast(settings)?;
        context.settings.net.get_or_insert(Net::Nodes);
        Ok::<_, Error>(context)
    };
    match cli.command {
        Command::Demo { options, settings } => demo::demo(fast(settings)?, options),
        Command::Up { detach: false, settings, .. } => console::up(networked(settings)?),
        Command::Up { cluster, settings, .. } => {
            let context = networked(settings)?;
            if context.settings.keep {
                return Err(usage("--keep is not for a cluster that runs detached: name a directory with --log-dir"));
            }
            match cluster.map_or_else(|| detached::DEFAULT.parse(), Ok) {
                Ok(name) if detached => detached::up(context, &name),
                Ok(_) => detached::start(args),
                Err(why) => Err(Error::Usage(why)),
            }
        }
        Command::Status(args) => detached::status(&args),
        Command::Exec(args) => detached::exec(&args),
        Command::Logs(args) => detached::logs(&args),
        Command::Cp(args) => detached::cp(&args),
        Command::Down { which } => detached::down(&which),
        Command::Run(args) => {
            let RunArgs { user, lab, timeout, stdin, bisect, reports, settings, argv } = args;
            let limit = timeout.map(Duration::from_secs);
            let program = run::Program { argv: &argv, user, lab, limit, stdin, reports };
            let context = networked(settings)?;
            run::check(&context, &program)?;
            let result = run::run(context, &program);
            if !bisect {
                return result;
            }
            result.as_ref().err().into_iter().for_each(complain);
            Ok(run::bisected(&result))
        }
        Command::Report { files, outputs } => report::report(&files, &outputs),
        Command::Bench(arguments) => lab::run("bench", &common, &arguments),
        Command::Sim(arguments) => lab::run("sim", &common, &arguments),
        Command::Images { refresh, settings } => {
            let context = context(settings)?;
            if refresh {
                let store = telegraphos_images::Store::open(context.settings.cache.clone(), context.progress)?;
                store.refresh()?;
            }
            print!("{}", crate::prepare(&context.settings, context.progress)?.manifest());
            Ok(0)
        }
        Command::Doctor { cache } => doctor::doctor(cache.or(base.cache)),
        Command::Top(args) => top::top(args),
        Command::Ctl(args) => ctl::ctl(args),
        Command::Replay { file, limit } => replay::replay(&file, limit),
        Command::Console { socket } => console::attach_one(&socket),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_in_guests_is_taken_as_it_is() {
        let cli = Cli::try_parse_from(["telegraphos", "run", "--nodes", "4", "--", "ls", "--nodes"]).unwrap();
        let Command::Run(args) = cli.command else { panic!() };
        assert_eq!((args.settings.nodes, args.argv.len(), args.user), (Some(4), 2, User::Tg));
    }

    #[test]
    fn codes_of_ours_are_none_that_commands_have() {
        let codes = |line: &str| Codes::of(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for (line, wanted) in [
            ("telegraphos run --nodes 2 -- true", Codes::Beside),
            ("telegraphos -q run --nodse 2 -- x", Codes::Beside),
            ("telegraphos run", Codes::Beside),
            ("telegraphos exec", Codes::Beside),
            ("telegraphos run --bisect --bad", Codes::Bisect),
            ("telegraphos run -- x --bisect", Codes::Beside),
            ("telegraphos up -d --cluster run", Codes::Own),
            ("telegraphos", Codes::Own),
        ] {
            assert_eq!(codes(line), wanted, "{line}");
        }
        let all = |codes: Codes| [1, 2, 3, 124, 126, 127, 130, 141, 254].map(|code| codes.of_error(code));
        assert_eq!(all(Codes::Own), [1, 2, 3, 124, 126, 127, 130, 141, 254]);
        assert_eq!(all(Codes::Beside), [125, 125, 125, 124, 126, 127, 130, 141, 254]);
        assert_eq!(all(Codes::Bisect)[..3], [125, 255, 125]);
        assert_eq!(Error::OutputClosed.exit_code(), 141);
    }

    #[test]
    fn usage_errors_are_2() {
        for line in [&["telegraphos"][..], &["telegraphos", "run"], &["telegraphos", "run", "--user", "bob", "--", "x"]]
        {
            assert_eq!(Cli::try_parse_from(line).unwrap_err().exit_code(), 2, "{line:?}");
        }
        assert_eq!(Error::Usage(String::new()).exit_code(), 2);
        assert_eq!(Error::Interrupted.exit_code(), 130);
    }
}
