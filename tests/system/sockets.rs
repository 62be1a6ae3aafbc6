// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets of unmodified programs (SPEC item 36): a program in Python, from Debian's packages, with and without
//! `tg-sockets`.

use crate::messages;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Duration;
use telegraphos_cluster::{Builder, Cluster, Guest, Net, Running, Settings};
use telegraphos_images::Share;

const LIMIT: Duration = Duration::from_secs(120);
const PROGRAM: &str = "/mnt/tests/sockets.py";
/// What is said of each direction that became framed.
const THROUGH_MEMORY: &str = "long writes go through the memory of node";
/// What a program says that was started with connections of another.
const STARTED: &str = "connections of the program that was there before";

/// Two nodes with Python, a network, and programs that are linked with libraries of theirs.
pub(crate) fn nodes() -> Result<Builder> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-driver/sockets/tests");
    let settings = Settings {
        root: Some("debian+python3".parse()?),
        share: vec![
            Share { host: tests, guest: "/mnt/tests".into(), read_only: true },
            Share { host: crate::c::programs()?, guest: "/mnt/programs".into(), read_only: true },
        ],
        memory_mib: Some(512),
        net: Some(Net::Nodes),
        ..crate::settings("sockets")
    };
    Ok(Cluster::builder().nodes(2).settings(settings))
}

fn words<'a>(preloaded: bool, words: &[&'a str]) -> Vec<&'a str> {
    let tool: &[&str] = if preloaded { &["tg-sockets", "-v", "-a", "20000"] } else { &[] };
    [tool, &["python3", PROGRAM], words].concat()
}

/// A server, of root's, which can start programs of other users; clients are an ordinary user's.
fn server(node: &Guest, preloaded: bool, port: &str) -> Result<Running> {
    let mut server = node.argv(&words(preloaded, &["serve", port])).as_root().spawn()?;
    server.wait_for_line(LIMIT, |line| line == "ready")?;
    Ok(server)
}

/// What became of connections, as the client and as the server say.
struct Said {
    /// Directions that went through memory.
    through: [usize; 2],
    /// Programs that went on with connections of the one that had started them.
    started: [usize; 2],
}

/// Runs cases, which are all right.
fn cases(cluster: &Cluster, preloaded: [bool; 2], port: &str, cases: &[&str], count: usize) -> Result<Said> {
    let (client, at) = (cluster.node(0), cluster.node(1));
    let server = server(at, preloaded[1], port)?;
    let output = client.argv(&words(preloaded[0], &[&["node1", port], cases].concat())).limit(LIMIT).run()?;
    let served = server.wait_for(LIMIT)?;
    let both = format!("{}{}{}", output.stdout, output.stderr, served.stderr);
    let done = output.stdout.lines().filter(|line| line.starts_with("ok ")).count();
    let right = output.status.success() && served.status.success() && done == count;
    ensure!(right, "{done} of {count} cases are right: {both}");
    let said = |what: &str| [&output, &served].map(|output| output.stderr.matches(what).count());
    Ok(Said { through: said(THROUGH_MEMORY), started: said(STARTED) })
}

/// 31 cases of what programs do with sockets, through memory where much is sent.
pub(crate) fn an_unmodified_program(cluster: &Cluster) -> Result<()> {
    let Said { through, started } = cases(cluster, [true, true], "7001", &[], 31)?;
    println!("  directions through memory: {} of the client's, {} of the server's", through[0], through[1]);
    println!(
        "  programs that went on with a connection: {} of the client's, {} of the server's",
        started[0], started[1]
    );
    ensure!(through.iter().all(|count| *count >= 15), "{through:?} directions through memory");
    ensure!(started[1] >= 5, "{started:?} programs that went on with a connection");
    Ok(())
}

/// One end is not preloaded: all is as the system has it.
pub(crate) fn falls_back(cluster: &Cluster) -> Result<()> {
    let some = ["blocking", "epoll", "half_close", "fork", "stop"];
    for (preloaded, port) in [([true, false], "7002"), ([false, true], "7003")] {
        let through = cases(cluster, preloaded, port, &some, 4)?.through;
        ensure!(through == [0, 0], "{through:?} directions through memory");
    }
    Ok(())
}

/// What cannot be preloaded is said, and runs.
pub(crate) fn bad_input(cluster: &Cluster) -> Result<()> {
    let node = cluster.node(0);
    let run = |words: &[&str], code: u8, expected: &str| {
        let output = node.argv(words).limit(LIMIT).run()?;
        let right = output.status.code() == code && output.stderr.contains(expected);
        ensure!(right, "{words:?}: {}: {}{}", output.status, output.stdout, output.stderr);
        println!("  {words:?}: {}", output.stderr.trim());
        Ok(())
    };
    run(&["tg-sockets", "tg-export", "--help"], 0, "tg-export is linked statically: it runs without")?;
    run(&["tg-sockets", "su", "--help"], 0, "su runs with the rights of its owner: it runs without")?;
    run(&["tg-sockets", "none"], 127, "cannot run none: No such file or directory")?;
    run(&["tg-sockets"], 2, "no program is named; see tg-sockets --help")?;
    run(&["tg-sockets", "-a", "some", "true"], 2, "-a some: expected a number of bytes")?;
    run(&["tg-sockets", "--all", "true"], 2, "unknown option --all")?;
    // Files, pipes and programs are the system's.
    let script = "cd /tmp && dd if=/dev/urandom of=a bs=1M count=2 2>/dev/null && tg-sockets cp a b && tg-sockets sh -c \
                  'cat a | gzip | gzip -d >c' && cmp a b && cmp a c && tg-sockets sh -c 'exit 7'";
    ensure!(node.sh(script).limit(LIMIT).run()?.status.code() == 7, "files, pipes and programs are not as usual");
    // Names of connections are for those who have the connection.
    run(&["tg-export", "tcp:0:x", "4096"], 3, "Socket operation on non-socket")?;
    run(&["tg-export", "tcp:99:x", "4096"], 3, "Bad file descriptor")?;
    run(&["tg-export", "tcp:10.84.0.1:1-10.84.0.2:2:x", "4096"], 3, "the name 1 to 63")?;
    run(&["tg-export", "tcp:1:", "4096"], 3, "the name 1 to 63")
}

/// Nothing is left of connections that have ended.
pub(crate) fn nothing_is_left(cluster: &Cluster) -> Result<()> {
    messages::nothing_is_left_of(cluster, "tcp:")
}

/// A node is switched off: those who send to it, and those who wait for it, are told.
pub(crate) fn node_is_lost(cluster: &Cluster) -> Result<()> {
    let _server = server(cluster.node(1), true, "7004")?;
    let mut clients = ["lost_sending", "lost_waiting"]
        .map(|case| cluster.node(0).argv(&words(true, &["node1", "7004", case])).spawn());
    for client in clients.iter_mut().flatten() {
        client.wait_for_line(LIMIT, |line| line == "warm")?;
    }
    cluster.node(1).reset()?;
    for client in clients {
        let output = client?.wait_for(LIMIT).context("a client of a node that is lost")?;
        ensure!(output.status.success(), "{}{}", output.stdout, output.stderr);
        let through = output.stderr.split(" bytes through memory").next().and_then(|said| said.rsplit(' ').next());
        ensure!(through.is_some_and(|bytes| bytes > "0"), "not through memory: {}", output.stderr);
        println!("  {}", output.stdout.replace('\n', " "));
    }
    Ok(())
}
