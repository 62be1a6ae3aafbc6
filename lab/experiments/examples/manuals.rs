// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes manual pages, and completions for bash, fish and zsh, of all programs for the host:
//! `cargo run -p telegraphos-lab --example manuals -- DIR`. They are made from the command lines themselves.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Where each kind is in `DIR`.
const MAN: &str = "man1";
const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, "bash"), (Shell::Fish, "fish"), (Shell::Zsh, "zsh")];

/// Every program that a host runs.
fn programs() -> [Command; 4] {
    [
        telegraphos_lab::command_line(),
        telegraphos_device::cli::command_line(),
        telegraphos_fabric::command_line(),
        telegraphos_host::command_line(),
    ]
}

/// Writes all files; their paths.
fn write(dir: &Path) -> Result<Vec<PathBuf>> {
    let man = dir.join(MAN);
    std::fs::create_dir_all(&man)?;
    for (_, name) in SHELLS {
        std::fs::create_dir_all(dir.join(name))?;
    }
    let mut written = Vec::new();
    for mut program in programs() {
        clap_mangen::generate_to(program.clone(), &man)?;
        let name = program.get_name().to_owned();
        for (shell, place) in SHELLS {
            written.push(clap_complete::generate_to(shell, &mut program, &name, dir.join(place))?);
        }
    }
    for page in std::fs::read_dir(&man)? {
        written.push(page?.path());
    }
    Ok(written)
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir] = arguments.as_slice() else {
        eprintln!("usage: manuals DIR");
        return ExitCode::from(2);
    };
    let dir = Path::new(dir);
    match write(dir) {
        Ok(written) => {
            println!("{} files in {}", written.len(), dir.display());
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("cannot write manual pages and completions to {}: {e}", dir.display());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// The name of the page of each command, with the command; `help` and what is hidden have none.
    fn pages(command: &Command, name: String, into: &mut Vec<(String, Command)>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
            pages(below, format!("{name}-{}", below.get_name()), into);
        }
        into.push((name, command.clone()));
    }

    #[test]
    fn each_command_has_a_page_and_each_option_is_in_it_and_in_each_completion() {
        let dir = tempfile::tempdir().unwrap();
        let written = write(dir.path()).unwrap();
        assert!(written.iter().all(|path| path.metadata().unwrap().len() > 0), "{written:?}");
        let read = |path: PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut options = 0;
        for program in programs() {
            let name = program.get_name().to_owned();
            let scripts = [format!("bash/{name}.bash"), format!("fish/{name}.fish"), format!("zsh/_{name}")];
            let scripts = scripts.map(|script| read(dir.path().join(script)));
            let mut all = Vec::new();
            let mut built = program;
            built.build();
            pages(&built, name, &mut all);
            for (name, command) in all {
                let page = read(dir.path().join(MAN).join(format!("{name}.1")));
                assert!(page.contains(&format!(".TH {name} 1")) && page.contains(".SH SYNOPSIS"), "{name}: {page}");
                let shown = command.get_arguments().filter(|a| !a.is_hide_set()).filter_map(|a| a.get_long());
                for long in shown {
                    options += 1;
                    // In roff a hyphen is `\-`.
                    assert!(page.contains(&format!("\\-\\-{}", long.replace('-', "\\-"))), "{name} --{long}: {page}");
                    assert!(scripts.iter().all(|script| script.contains(long)), "{name} --{long}");
                }
            }
        }
        assert!(options > 100, "{options}");
        for script in written.iter().filter(|path| path.extension().is_some_and(|e| e == "bash")) {
            let checked = std::process::Command::new("bash").arg("-n").arg(script).status().unwrap();
            assert!(checked.success(), "{}", script.display());
        }
    }
}
