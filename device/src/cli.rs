// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos-hib`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use log::{error, warn};
use telegraphos_device_core::HibConfig;
use telegraphos_service::command;
use telegraphos_service::settings::SettingsError;
use telegraphos_service::shutdown::ShutdownHandle;

use crate::guard::Guard;
use crate::settings::Settings;
use crate::shell::{Config, HibServer, ServeError, system};

#[derive(Debug, Parser)]
#[command(
    name = "telegraphos-hib",
    version,
    about = "The host interface board of one virtual machine: a PCI device for QEMU, a node for the fabric",
    after_help = "\
Examples:
  telegraphos-fabric --listen /tmp/fabric.sock &
  telegraphos-hib --socket /tmp/hib0.sock --node 0 --fabric /tmp/fabric.sock
      Prints the options with which QEMU (10.1.1 or newer) gets the board.

  telegraphos-hib --config node0.toml --log debug
      The file has the same names: socket = \"/tmp/hib0.sock\", node = 0, ... The command line wins.

Exit codes: 0 stopped by SIGINT or SIGTERM, 1 error, 2 wrong usage or configuration."
)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a TOML file with the same names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command: `args` starts with the program's name. Returns at a shutdown request or an error.
pub fn cli_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    configure(args).map_or_else(|code| code, |config| command::exit_code(serve(config)))
}

/// Starts the log and says how to serve, or the exit code where that is wrong.
fn configure(args: impl IntoIterator<Item = OsString>) -> Result<Config, ExitCode> {
    let usage = |e| command::usage("telegraphos-hib", &e);
    let settings = load(command::parse(args)?).map_err(usage)?;
    command::start(settings.log.as_deref(), settings.log_format, settings.node);
    settings.config().map_err(usage)
}

fn serve(config: Config) -> Result<(), ServeError> {
    // Before any thread is started.
    let guard = start_guard();
    let stop = ShutdownHandle::new().map_err(system("cannot create an event descriptor"))?;
    stop_on_signals(stop.clone())?;
    let (node, options) = (config.hib.node, qemu_options(&config.socket));
    let plug = hot_plug(&config.hib);
    let spin = config.spin.unwrap_or(0);
    telegraphos_service::spin::warn_of_few_processors(spin, 3, "the board, its guest and the fabric");
    let mut server = HibServer::bind_with(config, stop, guard)?;
    announce(node, &options, &plug);
    server.run()
}

/// Starts a guard, or logs why there is none. To be called before any thread is started.
pub fn start_guard() -> Option<Arc<Guard>> {
    Guard::start()
        .inspect_err(|e| warn!("if this process is killed, QEMU may abort: cannot start a guard: {e}"))
        .ok()
        .map(Arc::new)
}

/// The configuration of a board, from options of `telegraphos-hib` after the program's name, for another program that
/// serves boards; or what is wrong, printed, and the exit code. Options of the log are refused: it is that program's.
pub fn configuration(args: impl IntoIterator<Item = OsString>) -> Result<Config, ExitCode> {
    let usage = |e| command::usage("telegraphos-hib", &e);
    let settings = load(command::parse(args)?).map_err(usage)?;
    if settings.log.is_some() || settings.log_format.is_some() {
        let why = "boards of one process have one log: give these options before the first `--`";
        return Err(usage(SettingsError::refused("--log and --log-format", why)));
    }
    settings.config().map_err(usage)
}

fn load(cli: Cli) -> Result<Settings, SettingsError> {
    Ok(match &cli.config {
        Some(file) => cli.settings.over(Settings::from_file(file)?),
        None => cli.settings,
    })
}

fn stop_on_signals(handle: ShutdownHandle) -> Result<(), ServeError> {
    telegraphos_service::signals::on_stop(move || handle.shut_down()).map_err(|e| {
        error!("{e}");
        ServeError::System { what: "cannot handle SIGINT and SIGTERM", errno: rustix::io::Errno::INVAL }
    })
}

/// The options that attach the board at `socket` to a QEMU, ready to paste into a shell.
pub fn qemu_options(socket: &Path) -> String {
    let device = device_option(socket);
    format!("-m 1G -object memory-backend-memfd,id=ram,size=1G,share=on -machine memory-backend=ram \\\n  {device}")
}

/// The option that attaches the device at `socket`, for a shell.
pub fn device_option(socket: &Path) -> String {
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let json = serde_json::json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": socket.to_string_lossy() },
    });
    // Within single quotes a shell takes everything literally but the quote itself.
    let device = json.to_string().replace('\'', r"'\''");
    format!("-device '{device}'")
}

/// What a port needs so that this board can be plugged into it while the guest runs.
pub fn hot_plug(hib: &HibConfig) -> String {
    if hib.window.fits_any_port(hib.contexts) {
        return "It can also be plugged into any empty port while the guest runs.".into();
    }
    let mib = hib.window.pref64_reserve(hib.contexts) >> 20;
    format!(
        "To plug it in while the guest runs, the empty port needs: -device pcie-root-port,id=ID,pref64-reserve={mib}M\n\
         (or give the board a smaller window: --node-bits 3 --offset-bits 16 --contexts 16 fits any port)"
    )
}

/// Prints that a node is ready, the options with which QEMU gets its board, and how it is plugged in later.
pub fn announce(node: u16, options: &str, plug: &str) {
    // For the reader of the terminal; the board runs whether it is read or not.
    let _ = std::io::Write::write_all(
        &mut std::io::stdout(),
        format!(
            "node {node} is ready. Add to the command line of QEMU (10.1.1 or newer):\n\n  {options}\n\n{plug}\n\n"
        )
        .as_bytes(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_options_survive_a_shell() {
        let text = qemu_options(Path::new("/tmp/it's \"here\".sock"));
        let out = std::process::Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {text}")).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        let words: Vec<_> = out.lines().collect();
        assert_eq!(words[..2], ["-m", "1G"]);
        let json: serde_json::Value = serde_json::from_str(words[words.len() - 1]).unwrap();
        assert_eq!(json["socket"]["path"], "/tmp/it's \"here\".sock");
        assert!(words.iter().any(|w| w.contains("memory-backend-memfd") && w.contains("share=on")));
    }

    #[test]
    fn the_reservation_of_a_port_is_named_where_one_is_needed() {
        let mut hib = HibConfig::new(0);
        let text = hot_plug(&hib);
        assert!(text.contains("pref64-reserve=32768M"), "{text}");
        // What the text recommends needs none.
        let words: Vec<_> = text.split_whitespace().collect();
        let given = |name: &str| words[words.iter().position(|word| *word == name).unwrap() + 1];
        let bits = |name| given(name).parse().unwrap();
        hib.window = telegraphos_wire::WindowLayout::new(bits("--node-bits"), bits("--offset-bits")).unwrap();
        hib.contexts = given("--contexts").parse().unwrap();
        assert!(!hot_plug(&hib).contains("reserve"), "{}", hot_plug(&hib));
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
