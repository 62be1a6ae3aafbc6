// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is checked while nothing is broken.

use crate::help::{at_once, with_lab};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use telegraphos_cluster::report::{self, Outcome};
use telegraphos_cluster::{Cluster, Guest, Net, Settings, User};
use telegraphos_system::{lspci, plan};
use telegraphos_testkit::Scale;

/// The tests that must not become fewer.
const PLAN: &str = include_str!("../../../guest-driver/programs/plan.txt");

/// `tg-selftest` in all guests at once. As root nothing may be skipped; as an ordinary user what needs other users is.
pub(crate) fn selftest(cluster: &Cluster, user: User, scale: Scale) -> Result<()> {
    let guests = cluster.guests();
    let plan: BTreeSet<String> = plan(PLAN).collect();
    ensure!(plan.len() >= 50, "the plan of the self test has shrunk to {} tests", plan.len());
    let (nodes, seconds) = (guests.len().to_string(), scale.pick("1", "5"));
    with_lab(guests, || {
        at_once(guests, |guest| {
            let command = guest.argv(&["tg-selftest", "--nodes", &nodes, "--seconds", seconds]);
            let output = command.user(user).limit(Duration::from_secs(400)).run()?;
            is_as_planned(&output.stdout, &plan, user)
                .and_then(|()| {
                    ensure!(output.status.success(), "every test passed, and yet: {}", output.status);
                    Ok(())
                })
                .with_context(|| format!("node {}:\n{}{}", guest.node(), output.stdout, output.stderr))
        })
    })?;
    Ok(())
}

fn is_as_planned(text: &str, plan: &BTreeSet<String>, user: User) -> Result<()> {
    let tests = report::tests(text).context("it printed no report")?;
    let names: BTreeSet<String> = tests.iter().map(|t| t.name.clone()).collect();
    let (missing, new): (Vec<_>, Vec<_>) = (plan.difference(&names).collect(), names.difference(plan).collect());
    ensure!(missing.is_empty() && new.is_empty(), "not run: {missing:?}; not in plan.txt: {new:?}");
    let failed: Vec<_> = tests.iter().filter(|t| t.has_failed()).map(|t| &t.name).collect();
    ensure!(failed.is_empty(), "failed: {failed:?}");
    // Those need a trust group: see `direct`.
    let own = tests.iter().filter(|t| !t.name.starts_with("direct/"));
    let skipped: Vec<_> = own.filter(|t| matches!(t.outcome, Outcome::Skipped(_))).map(|t| &t.name).collect();
    ensure!(user == User::Tg || skipped.is_empty(), "skipped although root runs it: {skipped:?}");
    ensure!(skipped.len() <= 10, "more is skipped than what needs root: {skipped:?}");
    Ok(())
}

/// In guests with `threadirqs` also the hard handler is a thread: sleepers wake regardless.
pub(crate) fn interrupts_in_threads_wake_sleepers(cluster: &Cluster) -> Result<()> {
    let guests = cluster.guests();
    let nodes = guests.len().to_string();
    for only in ["interrupt/", "queue/wait-"] {
        at_once(guests, |guest| {
            let command = guest.argv(&["tg-selftest", "--nodes", &nodes, "--only", only]);
            let output = command.as_root().limit(Duration::from_secs(60)).run()?;
            let tests = report::tests(&output.stdout).with_context(|| output.stderr.clone())?;
            let passed = tests.iter().filter(|test| test.outcome == Outcome::Passed).count();
            ensure!(passed > 0 && passed == tests.len(), "node {}:\n{}", guest.node(), output.stdout);
            Ok(())
        })?;
    }
    Ok(())
}

/// `lspci -nvvv` of the board. `TELEGRAPHOS_BLESS=1` writes the golden file.
pub(crate) fn lspci_is_the_golden_one(cluster: &Cluster) -> Result<()> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/lspci.txt");
    let listing = cluster.node(0).argv(&["lspci", "-nvvv", "-d", "7e1e:"]).as_root().check()?;
    let found = lspci::normalise(&listing);
    if std::env::var_os("TELEGRAPHOS_BLESS").is_some() {
        std::fs::write(&golden, &found)?;
    }
    let expected = std::fs::read_to_string(&golden).with_context(|| golden.display().to_string())?;
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        ensure!(
            expected == found,
            "{}:{}: expected\n{expected}\nfound\n{found}\nif that is intended, TELEGRAPHOS_BLESS=1 writes it",
            golden.display(),
            number + 1
        );
    }
    ensure!(expected == found, "other lines:\n{found}");
    Ok(())
}

/// No warning of our driver or about our board.
pub(crate) fn guest_logs_are_silent(cluster: &Cluster) -> Result<()> {
    for guest in cluster.guests() {
        let log = guest.dmesg()?;
        ensure!(log.contains("telegraphos0: node"), "node {}: the driver has not said hello:\n{log}", guest.node());
        let bad: Vec<&str> = log.lines().filter(|line| is_warning_of_ours(line) || is_crash(line)).collect();
        ensure!(bad.is_empty(), "node {}:\n{}", guest.node(), bad.join("\n"));
    }
    Ok(())
}

/// After accidents the driver may complain, but the kernel has no reason to.
pub(crate) fn no_kernel_has_crashed(cluster: &Cluster) -> Result<()> {
    for guest in cluster.guests() {
        // The console as well: what has made a guest boot again is not in its log any more.
        if let Some(crash) = crash(guest) {
            bail!(crash);
        }
        let log = guest.dmesg()?;
        ensure!(!log.lines().any(is_crash), "node {}:\n{log}", guest.node());
    }
    Ok(())
}

/// What a guest's kernel has said of a crash on its console, from the first such line on.
pub(crate) fn crash(guest: &Guest) -> Option<String> {
    const MOST: usize = 80;
    let console = guest.console();
    let lines: Vec<_> = console.lines().skip_while(|line| !is_crash(line)).take(MOST).collect();
    (!lines.is_empty()).then(|| format!("console of node {}:\n{}", guest.node(), lines.join("\n")))
}

fn is_warning_of_ours(line: &str) -> bool {
    /// Warnings and worse; the kernel's own facility is 0.
    const WARNING: u32 = 4;
    // What every module from outside the kernel's own tree brings about.
    if line.contains("loading out-of-tree module taints") || line.contains("module verification failed") {
        return false;
    }
    let level = line.strip_prefix('<').and_then(|rest| rest.split_once('>')).and_then(|(level, _)| level.parse().ok());
    let own = ["telegraphos", "0000:01:00.0", "7e1e"].iter().any(|word| line.contains(word));
    own && level.unwrap_or(0) % 8 <= WARNING
}

fn is_crash(line: &str) -> bool {
    ["WARNING:", "BUG:", "Oops", "general protection", "Call Trace", "blocked for more than"]
        .iter()
        .any(|word| line.contains(word))
}

/// Where the build's files go: this executable is in `target/PROFILE/deps`.
fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    exe.ancestors().nth(3).map(Path::to_path_buf).context("this executable is not in a target directory")
}

/// The newest kernel is tried and reported; it does not gate, since a new one may break any driver.
pub(crate) fn newest_kernel(scale: Scale) -> Result<String> {
    let attempt = || -> Result<String> {
        let cluster = Cluster::builder()
            .nodes(2)
            .kernel(telegraphos_images::KernelSeries::Newest)
            .settings(Settings { net: Some(Net::Nodes), ..Settings::default() })
            .boot()?;
        let (release, _) = cluster.node(0).greeting();
        let parts = [
            crate::net::between_two(&cluster).context("network"),
            selftest(&cluster, User::Root, scale).context("self test"),
            guest_logs_are_silent(&cluster).context("guest log"),
        ];
        let bad: Vec<String> = parts.into_iter().filter_map(|r| r.err()).map(|e| format!("{e:#}")).collect();
        if bad.is_empty() {
            Ok(format!("Linux {release}: all right"))
        } else {
            bail!("Linux {release}: {}", bad.join("\n"))
        }
    };
    let report = match attempt() {
        Ok(text) => text,
        Err(e) => format!("FAILED: {e:#}"),
    };
    std::fs::write(target_dir()?.join("newest-kernel.txt"), format!("{report}\n"))?;
    Ok(report)
}
