// SPDX-License-Identifier: MIT OR Apache-2.0
//! How `run` and `up` end when a command, a kernel or a process of the cluster does not do what it should: exit code,
//! reason, last lines, and nothing left behind.

use crate::command;
use crate::help::{Said, ended, ends, plug, signal};
use crate::leftovers::{end, none_runs, nothing_left, processes_of};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use telegraphos_cluster::report;
use telegraphos_cluster::{Cluster, NodeSettings, Settings};
use telegraphos_images::Machine;
use telegraphos_testkit::Daemon;

/// Runs `run` on one node with these options and this command, expects this exit code, and nothing left behind.
fn run(options: &[&str], argv: &[&str], code: i32) -> Result<Said> {
    let dir = tempfile::tempdir()?;
    let mut command = command(&[&["--quiet", "run", "--nodes", "1"], options].concat());
    let said = ends(command.arg("--run-dir").arg(dir.path()).arg("--").args(argv), code)?;
    nothing_left(dir.path())?;
    Ok(said)
}

/// The file of `--junit`: each suite's name with its cases, as outcome and name.
fn cases(path: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let text = fs::read_to_string(path)?;
    let document = roxmltree::Document::parse(&text).with_context(|| format!("no XML:\n{text}"))?;
    let tagged = |node: roxmltree::Node<'_, '_>, name| node.is_element() && node.has_tag_name(name);
    let case = |case: roxmltree::Node<'_, '_>| {
        let outcome = case.children().find(|node| node.is_element()).map_or("passed", |node| node.tag_name().name());
        format!("{outcome} {}", case.attribute("name").unwrap_or_default())
    };
    let suites = document.descendants().filter(|node| tagged(*node, "testsuite"));
    let suite = |suite: roxmltree::Node<'_, '_>| {
        let cases = suite.children().filter(|node| tagged(*node, "testcase")).map(case).collect();
        (suite.attribute("name").unwrap_or_default().to_owned(), cases)
    };
    Ok(suites.map(suite).collect())
}

fn reported(path: &Path, wanted: &[(&str, &[&str])]) -> Result<()> {
    let wanted: Vec<(String, Vec<String>)> = wanted
        .iter()
        .map(|(name, cases)| ((*name).into(), cases.iter().map(|case| (*case).into()).collect()))
        .collect();
    let found = cases(path)?;
    ensure!(found == wanted, "{} has {found:?}: expected {wanted:?}", path.display());
    Ok(())
}

/// Two nodes with names, kernels, processors and words of their own, in one file with the fabric's faults; one prints
/// KTAP with bytes that are no text, the other none.
pub(crate) fn unlike_nodes_report_what_they_are() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (file, junit, ktap) =
        (dir.path().join("cluster.toml"), dir.path().join("out.xml"), dir.path().join("out.ktap"));
    let text = "append = \"for=all\"\n[[node]]\nname = \"left\"\ncpus = 2\nmemory = \"320M\"\n[[node]]\nkernel = \"6.1\"\n\
                append = \"for=one\"\n[fabric]\nfault = [\"node:1=latency=1ms\"]\ntopology = \"star\"\n[[fabric.faults]]\n\
                at = \"1s\"\nlink = \"node:1\"\nset = \"latency=2ms\"\n";
    fs::write(&file, text)?;
    let script = r#"echo "is $(hostname) $(nproc) $(uname -r | cut -d. -f1-2) $(grep -o 'for=[a-z]*' /proc/cmdline | tr '\n' ' ')"
        if [ "$(hostname)" = left ]; then
            ping -c 1 -W 20 node1 > /dev/null && ok=ok || ok="not ok"
            printf "KTAP version 1\n1..2\n$ok 1 ping\n  KTAP version 1\n  1..1\n# \001\033[31m<odd> \377\n  not ok 1 deep\nnot ok 2 outer\n"
            exit 3
        fi
        ping -c 1 -W 20 left > /dev/null"#;
    let (file, junit_path) = (file.display().to_string(), junit.display().to_string());
    let ktap_path = ktap.display().to_string();
    let mut command =
        command(&["--quiet", "--config", &file, "run", "--user", "root", "--junit", &junit_path, "--ktap"]);
    command.arg(&ktap_path).arg("--run-dir").arg(dir.path()).args(["--", "sh", "-c", script]);
    let Said { out, err } = ends(&mut command, 3)?;
    for line in ["[left] is left 2 6.12 for=all ", "[1] is node1 1 6.1 for=all for=one "] {
        ensure!(out.lines().any(|found| found == line), "{line:?} is not in what it said:\n{out}{err}");
    }
    let own = format!("passed sh -c {script}");
    let cases = cases(&junit)?;
    ensure!(
        cases.len() == 2 && cases[0] == ("left".into(), vec!["passed ping".into(), "failure deep".into()]),
        "{cases:?}"
    );
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(cases[1].0 == "node1" && cases[1].1.iter().map(|case| words(case)).eq([words(&own)]), "{cases:?}");
    let merged = fs::read_to_string(&ktap)?;
    let tests = report::tests(&merged).context("no KTAP")?;
    let tests: Vec<_> = tests.iter().map(|test| (test.name.as_str(), test.has_failed())).collect();
    ensure!(tests == [("left", true), ("node1", false)], "{tests:?} of:\n{merged}");
    none_runs(dir.path())?;
    let mut names: Vec<_> = fs::read_dir(dir.path())?.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    ensure!(names == ["cluster.toml", "out.ktap", "out.xml"], "still there: {names:?}");
    Ok(())
}

pub(crate) fn a_panic_is_254_with_its_stack() -> Result<()> {
    // The output is with the host before the kernel stops: nothing takes it out of a kernel that has.
    let script = "echo before; printf 'test 7: '; sleep 1; echo c > /proc/sysrq-trigger; sleep 60";
    let dir = tempfile::tempdir()?;
    let junit = dir.path().join("out.xml");
    // How the console shows what the kernel says is of no matter.
    let options = ["--user", "root", "--append", "console_msg_format=syslog", "--junit", &junit.display().to_string()];
    let output = run(&options, &["sh", "-c", script], 254)?;
    reported(&junit, &[("node0", &[&format!("error sh -c {script}")])])?;
    let text = fs::read_to_string(&junit)?;
    ensure!(text.contains("sysrq triggered crash") && text.contains("sysrq_handle_crash+0x"), "{text}");
    // Also a line that it did not end.
    ensure!(output.out == "[0] before\n[0] test 7: \n", "the output before it is {:?}", output.out);
    ensure!(text.contains("test 7: "), "{text}");
    let stack = ["--- the kernel's stack", "sysrq_handle_crash+0x", "--- end of the console"];
    output.names(&["node 0: the kernel has panicked: sysrq triggered crash"])?;
    output.names(&stack)
}

pub(crate) fn a_panic_at_boot_is_254_at_once() -> Result<()> {
    // The kernel reads what is behind -append last.
    let output =
        run(&["--qemu-arg", "-append", "--qemu-arg", "console=ttyS0 panic=-1 root=/dev/none"], &["true"], 254)?;
    // A limit of time would end it with 124.
    output.names(&["node 0: the kernel has panicked: VFS: Unable to mount root fs", "mount_root", "end of the console"])
}

pub(crate) fn a_late_command_is_124() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (junit, ktap) = (dir.path().join("out.xml"), dir.path().join("out.ktap"));
    let (junit_path, ktap_path) = (junit.display().to_string(), ktap.display().to_string());
    let output = run(&["--timeout", "2", "--junit", &junit_path, "--ktap", &ktap_path], &["sleep", "1000"], 124)?;
    reported(&junit, &[("node0", &["error sleep 1000"])])?;
    let text = fs::read_to_string(&ktap)?;
    ensure!(text.contains("not ok 1 sleep 1000 # TIMEOUT\n"), "{text}");
    output.names(&["node 0: sleep 1000: did not end within 2s"])
}

/// An error after which the kernel continues, as a bug of a module is; and the same where it is expected.
pub(crate) fn an_error_of_the_kernel_is_254_without_a_panic() -> Result<()> {
    let fail = "echo 1 >/sys/module/telegraphos_lab/parameters/oops; sleep 6000";
    // Without the error it would be a limit of time: 124.
    let options = ["--user", "root", "--lab", "--timeout", "600"];
    let output = run(&options, &["sh", "-c", fail], 254)?;
    output.names(&["node 0: the kernel has failed: kernel BUG at ", "--- the kernel's stack", "tg_lab_fail"])?;
    let fail = "echo 1 >/sys/module/telegraphos_lab/parameters/oops; echo on";
    let allowed = ["--allow-report", "kernel BUG at ", "--allow-report", "Oops: "];
    let output = run(&[&options[..], &allowed].concat(), &["sh", "-c", fail], 0)?;
    ensure!(output.out == "[0] on\n", "{output:?}");
    Ok(())
}

/// What programs write on the console and into the kernel's log is not what the kernel says. The script is standard
/// input, which the command of the only node gets. The sockets are in a directory that is several words.
pub(crate) fn words_of_programs_are_no_failure() -> Result<()> {
    let script = "
        echo '[myapp] Oops: cannot reach the server' >/dev/console
        echo 'Kernel panic - not syncing: says a program' >/dev/console
        echo '[    5.0] BUG: says another' >/dev/console
        echo '<0>BUG: unable to handle page fault for address: ffffdead00000000' >/dev/kmsg
        sleep 3
        echo on
        exit 7
    ";
    let above = tempfile::tempdir()?;
    let dir = above.path().join("a b");
    fs::create_dir(&dir)?;
    let mut run = command(&["--quiet", "run", "--nodes", "1", "--user", "root", "--run-dir"]);
    let mut run = run.arg(&dir).args(["--", "sh"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    run.stdin.take().context("no input")?.write_all(script.as_bytes())?;
    let said = ended(run.wait_with_output()?, 7)?;
    ensure!(said.out == "[0] on\n", "{said:?}");
    nothing_left(&dir)?;
    // Of several nodes, none is meant.
    let mut several = command(&["--quiet", "run", "--nodes", "2", "--", "sh"]);
    let mut several = several.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut input = several.stdin.take().context("no input")?;
    // It looks once more before the command begins, so that it is refused in any case.
    input.write_all(b"exit 7")?;
    let said = ended(several.wait_with_output()?, 125)?;
    said.names(&["standard input has data", "--stdin none"])
}

/// `git bisect run` over revisions of which one cannot be booted, and whose kernel panics from one on.
pub(crate) fn a_bisection_finds_the_revision() -> Result<()> {
    const REVISIONS: usize = 16;
    const BAD: usize = 11;
    let dir = tempfile::tempdir()?;
    let (tree, runs) = (dir.path().join("tree"), dir.path().join("runs"));
    fs::create_dir(&tree)?;
    fs::create_dir(&runs)?;
    // As a shell has it: there, this process is another one.
    let this = command(&["--quiet", "run", "--bisect"]);
    let git = |words: &[&str], code: i32| {
        let mut git = std::process::Command::new("git");
        git.envs(this.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost", "-c", "commit.gpgsign=false"];
        ends(git.arg("-C").arg(&tree).args(identity).args(words), code)
    };
    git(&["init", "--quiet"], 0)?;
    for revision in 0..REVISIONS {
        let what = if revision >= BAD { "echo c >/proc/sysrq-trigger; sleep 600" } else { "true" };
        fs::write(tree.join("test.sh"), format!("# {revision}\n{what}\n"))?;
        // As where a build has failed.
        let kernel = if revision == 7 { "./no-such-kernel" } else { "6.12" };
        fs::write(tree.join("kernel"), kernel)?;
        git(&["add", "."], 0)?;
        git(&["commit", "--quiet", "-m", &format!("revision {revision}")], 0)?;
    }
    let words: Vec<_> = this.get_args().map(|word| word.to_string_lossy()).collect();
    let run = format!(
        "exec '{}' {} --nodes 1 --user root --kernel \"$(cat kernel)\" --run-dir '{}' -- sh <test.sh",
        std::env::current_exe()?.display(),
        words.join(" "),
        runs.display()
    );
    git(&["bisect", "start", "HEAD", &format!("HEAD~{}", REVISIONS - 1)], 0)?;
    let said = git(&["bisect", "run", "sh", "-c", &run], 0)?;
    let first = git(&["log", "-1", "--format=%s", "refs/bisect/bad"], 0)?;
    ensure!(first.out.trim() == format!("revision {BAD}"), "it found {first:?}:\n{}\n{}", said.out, said.err);
    nothing_left(&runs)?;
    // Wrong usage ends a search: to git, 2 would be a bad revision.
    ends(&mut command(&["run", "--bisect", "--nodes", "x", "--", "true"]), 255)?;
    ends(&mut command(&["run", "--bisect", "--nodes", "900", "--", "true"]), 255)?;
    Ok(())
}

pub(crate) fn a_guest_that_hangs_is_254() -> Result<()> {
    let script = "echo before; sleep 1; killall -STOP tg-agent; sleep 600";
    let output = run(&["--user", "root", "--hang-timeout", "6"], &["sh", "-c", script], 254)?;
    output.names(&["node 0: the guest has hung", "has not answered for 6s", "end of node 0's console log"])
}

/// The whole cluster is stopped for twice the time after which a guest has hung, as in a container that is frozen.
pub(crate) fn time_in_which_all_is_stopped_does_not_count() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut run = command(&["--quiet", "run", "--nodes", "1", "--hang-timeout", "6", "--timeout", "20", "--run-dir"]);
    let run = run.arg(dir.path()).args(["--", "sh", "-c", "echo begun; sleep 8; echo on"]);
    let mut run = Daemon::start(run.stdout(Stdio::piped()));
    let mut out = run.stdout.take().context("no output")?;
    let mut said = [0; 10];
    out.read_exact(&mut said)?;
    ensure!(&said == b"[0] begun\n", "it said {said:?}");
    let all: Vec<u32> = processes_of(dir.path()).into_iter().map(|(pid, _)| pid).chain([run.id()]).collect();
    ensure!(all.len() >= 3, "of the cluster run {all:?}");
    all.iter().try_for_each(|pid| signal(*pid, "STOP"))?;
    std::thread::sleep(Duration::from_secs(13));
    all.iter().try_for_each(|pid| signal(*pid, "CONT"))?;
    let mut rest = String::new();
    out.read_to_string(&mut rest)?;
    let status = run.wait()?;
    ensure!(status.code() == Some(0) && rest == "[0] on\n", "{status}: {rest:?}");
    nothing_left(dir.path())
}

pub(crate) fn a_boot_that_waits_for_ever_is_124() -> Result<()> {
    let append = "console=ttyS0 panic=-1 root=/dev/none rootwait";
    let options = ["--boot-timeout", "25", "--qemu-arg", "-append", "--qemu-arg", append];
    let output = run(&options, &["true"], 124)?;
    output.names(&[
        "the boot of node 0 did not happen within 25 s",
        "its processors are idle",
        "Waiting for root device /dev/none",
    ])
}

/// One packet of gdb's remote protocol, and the answer to it.
fn gdb(server: &mut UnixStream, packet: &str) -> Result<String> {
    let sum = packet.bytes().fold(0u8, u8::wrapping_add);
    server.write_all(format!("${packet}#{sum:02x}").as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.windows(3).any(|end| end[0] == b'#') {
        server.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    server.write_all(b"+")?;
    let text = String::from_utf8(answer)?;
    let begin = text.find('$').context("no answer of gdb's protocol")?;
    Ok(text[begin + 1..text.len() - 3].to_owned())
}

/// A guest that gdb stops for longer than a guest may hang continues when gdb lets it.
pub(crate) fn gdb_stops_a_guest_as_long_as_it_wants() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let args = ["--quiet", "run", "--nodes", "2", "--gdb", "node1", "--hang-timeout", "5", "--run-dir"];
    let mut command = command(&args);
    command.arg(dir.path()).args(["--", "sh", "-c", "echo runs; sleep 2; echo done"]);
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let mut run = Daemon::start(&mut command);
    says_in(&out, ("runs", 2), &err, &mut run)?;
    let said = fs::read_to_string(&err)?;
    let target = said.split("'target remote ").nth(1).and_then(|rest| rest.split('\'').next());
    let target = target.with_context(|| format!("no command line of gdb in:\n{said}"))?;
    let modules = said.split("source ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let script = fs::read_to_string(modules)?;
    ensure!(script.contains("telegraphos.ko\" -s .text 0xffffffff"), "{modules} has {script:?}");
    // A connection stops the guest.
    let mut server = UnixStream::connect(target)?;
    server.set_read_timeout(Some(Duration::from_secs(60)))?;
    let features = gdb(&mut server, "qSupported")?;
    ensure!(features.contains("PacketSize="), "the server has {features:?}");
    let registers = gdb(&mut server, "g")?;
    ensure!(registers.len() > 300 && registers.chars().all(|c| c.is_ascii_hexdigit()), "registers are {registers:?}");
    std::thread::sleep(Duration::from_secs(12));
    ensure!(run.try_wait()?.is_none(), "it ended while gdb had stopped the guest:\n{}", fs::read_to_string(&err)?);
    ensure!(fs::read_to_string(&out)?.matches("[1] done").count() == 0, "the guest continued");
    let answer = gdb(&mut server, "D")?;
    ensure!(answer == "OK", "the server says {answer:?}");
    let code = run.wait()?.code();
    let text = fs::read_to_string(&out)?;
    ensure!(code == Some(0) && text.matches("done").count() == 2, "it ended with {code:?}, and said:\n{text}");
    Ok(())
}

/// QEMU of one node is killed, then in another cluster the process that has all HIBs.
pub(crate) fn up_ends_with_its_processes() -> Result<()> {
    for (what, is_it) in [("QEMU of node 0", "-machine"), ("the host process", "__host")] {
        let dir = tempfile::tempdir()?;
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let run_dir = dir.path().join("run");
        fs::create_dir(&run_dir)?;
        let mut command = command(&["--quiet", "up", "--nodes", "1", "--run-dir"]);
        command.arg(&run_dir).stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        let mut up = Daemon::start(&mut command);
        says_in(&out, ("Up.", 1), &err, &mut up)?;
        let all = processes_of(&run_dir);
        let (pid, _) = all.iter().find(|(_, line)| line.contains(is_it)).with_context(|| format!("{what}: {all:?}"))?;
        signal(*pid, "KILL")?;
        let code = end(&mut up)?;
        let text = fs::read_to_string(&err)?;
        ensure!(code == Some(3), "without {what} it ended with {code:?}: expected 3; it said:\n{text}");
        for word in [what, "signal: 9", "while the guests run"] {
            ensure!(text.contains(word), "{word:?} is not in what it said:\n{text}");
        }
        nothing_left(&run_dir)?;
    }
    Ok(())
}

/// The board works, is unplugged and plugged in on the machine without PCI Express, beside one with it.
pub(crate) fn a_board_works_on_the_machine_pc() -> Result<()> {
    let pc = NodeSettings { machine: Some(Machine::Pc), ..NodeSettings::default() };
    let settings = Settings { node: vec![pc, NodeSettings::default()], ..crate::settings("machine-pc") };
    let cluster = Cluster::builder().settings(settings).boot()?;
    let found =
        |node: usize| cluster.node(node).sh("cat /sys/bus/pci/drivers/telegraphos/0000:*/uevent").as_root().check();
    for (node, slot) in [(0, "PCI_SLOT_NAME=0000:00:"), (1, "PCI_SLOT_NAME=0000:01:00.0")] {
        let text = found(node)?;
        ensure!(text.contains(slot), "the board of node {node} is in {text:?}: expected {slot}");
    }
    let filter = ["tg-selftest", "--only", "remote-write/"];
    let commands: Vec<_> =
        cluster.guests().iter().map(|guest| guest.argv(&filter).spawn()).collect::<Result<_, _>>()?;
    for command in commands {
        let output = command.check(Duration::from_secs(300))?;
        ensure!(output.stdout.contains("ok 1 "), "{}{}", output.stdout, output.stderr);
    }
    cluster.node(0).device_del()?;
    ensure!(found(0).is_err(), "the board was unplugged and is still there");
    plug(cluster.node(0))?;
    Ok(())
}

/// Two detached clusters and three commands with clusters of their own at the same time: each has its own guests.
pub(crate) fn clusters_run_beside_each_other() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let beside = |args: &[&str]| {
        let mut command = command(&[&["--quiet"], args].concat());
        command.arg("--run-dir").arg(dir.path()).stdin(Stdio::null());
        command
    };
    // Five guests on few processors.
    let slow = ["--nodes", "1", "--boot-timeout", "600", "--hang-timeout", "300"];
    let start = |args: &[&str], argv: &[&str]| -> Result<std::process::Child> {
        let mut command = beside(args);
        if !argv.is_empty() {
            command.arg("--").args(argv);
        }
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    };
    let done = |child: std::process::Child, what: &str| -> Result<String> {
        Ok(ended(child.wait_with_output()?, 0).with_context(|| what.to_owned())?.out)
    };
    let up = |name: &str| start(&[&["up", "-d", "--cluster", name], &slow[..]].concat(), &[]);
    let (first, second) = (up("first")?, up("second")?);
    let runs: Vec<_> = (0..3)
        .map(|n| {
            start(
                &[&["run"], &slow[..]].concat(),
                &["sh", "-c", &format!("echo of {n} >/tmp/it; cat /tmp/it; ls /tmp")],
            )
        })
        .collect::<Result<_>>()?;
    let results = [done(first, "up first"), done(second, "up second")];
    let exec = |name: &str, script: &str| {
        done(start(&["exec", "0", "--cluster", name], &["sh", "-c", script])?, &format!("exec in {name}"))
    };
    let both = || -> Result<()> {
        exec("first", "echo of first >/tmp/it")?;
        exec("second", "echo of second >/tmp/it")?;
        ensure!(exec("first", "cat /tmp/it")? == "of first\n" && exec("second", "cat /tmp/it")? == "of second\n");
        Ok(())
    };
    let both = results.into_iter().try_for_each(|result| result.map(drop)).and_then(|()| both());
    let said: Vec<Result<String>> = runs.into_iter().map(|run| done(run, "run")).collect();
    for name in ["first", "second"] {
        // Also where something before has failed.
        let down = done(start(&["down", "--cluster", name], &[])?, "down");
        both.as_ref().map_or(Ok(()), |()| down.map(drop))?;
    }
    both?;
    for (n, said) in said.into_iter().enumerate() {
        let (said, wanted) = (said?, format!("[0] of {n}\n[0] it\n"));
        ensure!(said == wanted, "run {n} said {said:?}: expected {wanted:?}");
    }
    nothing_left(dir.path())
}

/// Waits until a command has written a word so many times to the file `out`.
fn says_in(out: &Path, (word, times): (&str, usize), err: &Path, command: &mut Daemon) -> Result<()> {
    let begun = Instant::now();
    while fs::read_to_string(out)?.matches(word).count() < times {
        let ended = command.try_wait()?;
        ensure!(ended.is_none(), "it ended ({ended:?}) before it said {word:?}:\n{}", fs::read_to_string(err)?);
        ensure!(begun.elapsed() < Duration::from_secs(300), "no {word:?} after 300 s");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
