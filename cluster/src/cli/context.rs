// SPDX-License-Identifier: MIT OR Apache-2.0
//! What commands that boot clusters have in common: options, settings, how they begin and how they end.

use crate::rundir::ClusterName;
use crate::{Error, NodeOptions, ProgressMode, Result, Settings, interrupt};
use clap::{Args, Parser};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use telegraphos_service::logging::printable;

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// TOML file with the names of the cluster options; the command line wins
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// No progress on stderr
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

impl Common {
    /// Those of the file.
    pub fn settings(&self) -> Result<Settings> {
        Ok(self.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default())
    }

    /// With these settings over those of the file.
    pub fn context(&self, settings: Settings) -> Result<Context> {
        let settings = settings.over(self.settings()?);
        settings.check()?;
        let progress = if self.quiet { ProgressMode::Silent } else { ProgressMode::Auto };
        Ok(Context { settings, progress, beside: false })
    }
}

/// What every command that boots a cluster starts from.
pub struct Context {
    pub settings: Settings,
    pub progress: ProgressMode,
    /// Other clusters may run at the same time.
    pub beside: bool,
}

impl Context {
    pub(super) fn builder(&self, each: impl FnOnce(&mut NodeOptions)) -> crate::Builder {
        let builder = crate::Cluster::builder().settings(self.settings.clone()).progress(self.progress);
        builder.beside_others(self.beside).each(each)
    }

    pub fn boot(&self, each: impl FnOnce(&mut NodeOptions)) -> Result<crate::Cluster> {
        self.builder(each).boot()
    }

    /// The same, to be found by this name.
    pub(super) fn boot_named(&self, name: ClusterName, each: impl FnOnce(&mut NodeOptions)) -> Result<crate::Cluster> {
        self.builder(each).named(name).boot()
    }
}

/// Runs a command with these arguments, of which the first is the program's name. Signals end it as an error does.
pub fn begin<C: Parser>(args: Vec<OsString>, execute: impl FnOnce(C) -> Result<u8>) -> ExitCode {
    begin_with(args, |code| code, execute)
}

/// The same with other codes for errors: `code` is given that of [`Error::exit_code`], or 2 for wrong usage.
pub(super) fn begin_with<C: Parser>(
    args: Vec<OsString>,
    code: impl Fn(u8) -> u8,
    execute: impl FnOnce(C) -> Result<u8>,
) -> ExitCode {
    let cli = match C::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // Fails if standard output is closed.
            let _ = e.print();
            return ExitCode::from(code(e.exit_code() as u8));
        }
    };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match interrupt::catch_signals().and_then(|()| execute(cli)) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            complain(&e);
            ExitCode::from(code(e.exit_code()))
        }
    }
}

/// Writes why a command has failed. What a guest has written is part of some reasons: the ends of consoles, and what
/// commands say.
pub(super) fn complain(error: &Error) {
    if matches!(error, Error::OutputClosed) {
        return;
    }
    eprintln!("telegraphos: {}", printable(&error.to_string(), &['\n', '\t']));
}

/// Standard output can be a closed pipe; that ends the command quietly.
pub fn written(result: std::io::Result<()>) -> Result<()> {
    result.map_err(|e| match e.kind() {
        std::io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::io("cannot write to", "standard output")(e),
    })
}

/// What is wrong with an argument, or with what it names.
pub fn usage(e: impl std::fmt::Display) -> Error {
    Error::Usage(e.to_string())
}

/// Prints a text that is whole lines.
pub fn print(text: &str) -> Result<()> {
    written(std::io::stdout().write_all(text.as_bytes()))
}
