// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole system on real guests. One cluster of four is booted once and goes through everything in order: first what
//! leaves it whole, then the accidents.
//!
//! `cargo test -p telegraphos-tests -- WORD` runs only the parts whose names contain the word;
//! `TELEGRAPHOS_SCALE=full` makes the tests of endurance as long as promised.

mod input;
mod leftovers;

use std::process::{Command, ExitCode};
use telegraphos_tests::Suite;

/// First argument that makes this executable the command `telegraphos`: the code its own program runs.
const AS_COMMAND: &str = "__telegraphos";

fn main() -> ExitCode {
    if let Some(code) = telegraphos_cluster::reexecuted() {
        return code;
    }
    let mut args: Vec<_> = std::env::args_os().collect();
    if args.get(1).is_some_and(|a| a == AS_COMMAND) {
        args.remove(1);
        return telegraphos_cluster::cli::main(args);
    }
    if let Err(e) = telegraphos_cluster::catch_signals() {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let mut suite = Suite::new(std::env::args().skip(1));
    input(&mut suite);
    leftovers(&mut suite);
    suite.finish()
}

/// The command `telegraphos` with these arguments.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(AS_COMMAND).args(args);
    command
}

fn input(suite: &mut Suite) {
    suite.part("input_unwritable_socket_directory", input::a_directory_for_sockets_that_cannot_be_written);
    suite.part("input_unknown_configuration_key", input::a_configuration_with_an_unknown_key);
    suite.part("input_unfit_qemu", input::a_qemu_that_is_too_old_or_without_vfio_user);
    suite.part("input_unusable_kvm", input::kvm_that_cannot_run_a_guest_is_named_and_not_used);
    suite.part("input_private_guest_memory", input::guest_memory_that_is_private);
}

fn leftovers(suite: &mut Suite) {
    suite.part("leftovers_of_an_interrupted_command", leftovers::interrupt_at_any_time_leaves_nothing);
    suite.part("leftovers_of_a_killed_command", leftovers::even_a_killed_harness_takes_its_children_along);
}
