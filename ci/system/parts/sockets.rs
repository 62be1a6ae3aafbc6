// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets of unmodified programs (SPEC item 36): a program in Python, from Debian's packages, with and without
//! `tg-sockets`; and what one in C takes, beside the layers below.

use crate::deaths::{all_of, told};
use crate::help::{LIMIT, Start, plug, step_by_step};
use crate::{c, processes};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use telegraphos_cluster::{Builder, Cluster, Guest, Net, Output, Running, Settings};
use telegraphos_images::Share;
use telegraphos_testkit::Scale;

const PROGRAM: &str = "/mnt/tests/sockets.py";
/// What is said of each direction that became framed.
const THROUGH_MEMORY: &str = "long writes go through the memory of node";
/// What a program says that was started with connections of another.
const STARTED: &str = "connections of the program that was there before";

/// Two nodes with Python, a network, and programs that are linked with libraries of theirs; and QEMU's own network,
/// whose cable is a pair of sockets in a directory.
pub(crate) fn nodes(cable: &Path) -> Result<Builder> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-driver/sockets/tests");
    let settings = Settings {
        root: Some("debian+python3".parse()?),
        share: vec![
            Share { host: tests, guest: "/mnt/tests".into(), read_only: true },
            Share { host: c::programs()?, guest: "/mnt/programs".into(), read_only: true },
        ],
        memory_mib: Some(512),
        net: Some(Net::Nodes),
        ..crate::settings("sockets")
    };
    let socket = |node: usize| cable.join(node.to_string()).display().to_string().replace(',', ",,");
    let network = |node: usize| {
        let (own, other) = (socket(node), socket(1 - node));
        let ends = format!("local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
        let device = format!("virtio-net-pci,netdev=other,mac=52:54:00:85:00:{node:02x},romfile=,addr=1b.0");
        ["-netdev".into(), format!("dgram,id=other,{ends}").into(), "-device".into(), device.into()]
    };
    let builder = Cluster::builder().nodes(2).settings(settings);
    Ok([0, 1]
        .into_iter()
        .fold(builder, |builder, node| builder.node(node, |options| options.qemu_options.extend(network(node)))))
}

/// What tells the program which connections it is to expect where much has been sent.
const MEMORY: [&str; 2] = ["env", "EXPECTED=memory"];
const SYSTEM: [&str; 2] = ["env", "EXPECTED=system"];

fn words<'a>(expected: [&'a str; 2], preloaded: bool, words: &[&'a str]) -> Vec<&'a str> {
    let tool: &[&str] = if preloaded { &["tg-sockets", "-v", "-a", "20000"] } else { &[] };
    [&expected, tool, &["python3", PROGRAM], words].concat()
}

/// A server, of root's, which can start programs of other users; clients are an ordinary user's.
fn server(node: &Guest, expected: [&str; 2], preloaded: bool, port: &str) -> Result<Running> {
    node.argv(&words(expected, preloaded, &["serve", port])).as_root().until("ready")
}

/// What became of connections, as the client and as the server say.
struct Said {
    /// Directions that went through memory.
    through: [usize; 2],
    /// Programs that continued connections of the one that had started them.
    started: [usize; 2],
    /// The cases, and how long each took.
    cases: String,
}

/// Whether as many cases are right as there should be.
fn all_right(client: &Output, count: usize) -> bool {
    client.status.success() && client.stdout.lines().filter(|line| line.starts_with("ok ")).count() == count
}

/// How often each has said that of its connections.
fn said_by(outputs: [&Output; 2], what: &str) -> [usize; 2] {
    outputs.map(|output| output.stderr.matches(what).count())
}

/// Runs cases, which are all right.
fn cases(
    cluster: &Cluster,
    expected: [&str; 2],
    preloaded: [bool; 2],
    port: &str,
    cases: &[&str],
    count: usize,
) -> Result<Said> {
    let (client, at) = (cluster.node(0), cluster.node(1));
    let server = server(at, expected, preloaded[1], port)?;
    let client = client.argv(&words(expected, preloaded[0], &[&["node1", port], cases].concat()));
    let output = step_by_step(client.spawn()?)?;
    let served = server.wait_for(LIMIT)?;
    let right = all_right(&output, count) && served.status.success();
    ensure!(right, "not {count} cases are right: {}{}{}", output.stdout, output.stderr, served.stderr);
    let said = |what| said_by([&output, &served], what);
    let cases = output.stdout.lines().filter_map(|line| line.strip_prefix("ok ")).collect::<Vec<_>>().join(", ");
    Ok(Said { through: said(THROUGH_MEMORY), started: said(STARTED), cases })
}

/// 37 cases of what programs do with sockets, through memory where much is sent.
pub(crate) fn an_unmodified_program(cluster: &Cluster) -> Result<()> {
    let Said { through, started, cases } = cases(cluster, MEMORY, [true, true], "7001", &[], 37)?;
    println!("  {cases}");
    println!("  directions through memory: {} of the client's, {} of the server's", through[0], through[1]);
    println!("  programs that continued a connection: {} of the client's, {} of the server's", started[0], started[1]);
    ensure!(through.iter().all(|count| *count >= 15), "{through:?} directions through memory");
    ensure!(started[1] >= 5, "{started:?} programs that continued a connection");
    Ok(())
}

/// One end is not preloaded, is not a node's, or may not use the board or lock memory: all is as the system has it.
pub(crate) fn falls_back(cluster: &Cluster) -> Result<()> {
    let some = ["blocking", "epoll", "half_close", "fork", "splice", "options", "stop"];
    for (preloaded, port) in [([true, false], "7002"), ([false, true], "7003")] {
        let through = cases(cluster, SYSTEM, preloaded, port, &some, 6)?.through;
        ensure!(through == [0, 0], "{through:?} directions through memory");
    }
    without_all_that_is_needed(cluster)
}

/// Both ends are preloaded, but the other one is not over a board, or a user may not use that, or may not lock memory.
fn without_all_that_is_needed(cluster: &Cluster) -> Result<()> {
    let program = c::ordinary("sockets/tests/stream.c", "stream")?;
    let (near, far) = (cluster.node(0), cluster.node(1));
    use_virtio(near)?;
    let addresses = [address(far), use_virtio(far)?];
    let [ours, others] = addresses.each_ref().map(String::as_str);
    // A user without access to the board is in no group. Of 64 KiB nothing can be locked that is needed, of 200 KiB
    // what a sender needs, but no ring.
    let unprivileged = "setpriv --reuid 65534 --regid 65534 --clear-groups ";
    let runs = [
        ("over another network", near, others, "", "", [0, 0]),
        ("within a machine", far, "127.0.0.1", "", "", [0, 0]),
        ("within a node", far, ours, "", "", [0, 0]),
        ("without the board", near, ours, unprivileged, "without the board: ", [0, 0]),
        ("without locked memory", near, ours, "ulimit -l 64; exec ", "without the board: ", [0, 0]),
        ("without memory for a ring", near, ours, "ulimit -l 200; exec ", "no ring: ", [1, 0]),
    ];
    for (name, node, host, before, why, expected) in runs {
        let run = |node: &Guest, before: &str, rest: &str| {
            node.sh(&format!("{before}tg-sockets -v -a 20000 {program} {rest}")).limit(LIMIT)
        };
        let server = run(far, "", "serve 7009").until("serving")?;
        let client = run(node, before, &format!("connect {host} 7009")).input("100000 10 10\n");
        // Only root becomes another user.
        let client = if before == unprivileged { client.as_root() } else { client }.run()?;
        let served = server.wait_for(LIMIT)?;
        let right = client.status.success() && served.status.success() && client.stdout.lines().count() == 1;
        ensure!(right, "{name}: {}: {}; {}: {}", client.status, client.stderr, served.status, served.stderr);
        let through = said_by([&client, &served], THROUGH_MEMORY);
        let right = through == expected && client.stderr.contains(why);
        ensure!(right, "{name}: expected {why:?} and {expected:?} directions through memory: {}", client.stderr);
        println!("  {name}: {}", client.stderr.lines().find(|line| line.contains(why)).unwrap_or("the system's"));
    }
    Ok(())
}

/// What both ends of a connection between the nodes say, of a program of `guest-driver/sockets/tests` that makes one
/// under `tg-sockets`; each direction goes through memory. The last lines are the same.
fn both_ends(cluster: &Cluster, name: &str, port: &str) -> Result<(String, Output)> {
    let program = c::ordinary(&format!("sockets/tests/{name}.c"), name)?;
    let run = |node: usize, rest: &str| cluster.node(node).sh(&format!("exec tg-sockets -v -a 65536 {program} {rest}"));
    let server = run(1, &format!("serve {port}")).until("serving")?;
    let client = run(0, &format!("connect {} {port}", address(cluster.node(1)))).limit(LIMIT).run()?;
    let served = server.wait_for(LIMIT)?;
    let both = [&client, &served].map(|output| (output.stdout.lines().last().unwrap_or(""), output.status.success()));
    let [said, counted] = both;
    ensure!(said == counted && said.1, "{said:?} and {counted:?}: {}{}", client.stderr, served.stderr);
    let through = said_by([&client, &served], THROUGH_MEMORY);
    ensure!(through == [1, 1], "{through:?} directions through memory: {}{}", client.stderr, served.stderr);
    Ok((said.0.to_owned(), client))
}

/// Handlers of signals write to the connection that a thread was writing to or reading from, and read from it.
pub(crate) fn signals(cluster: &Cluster) -> Result<()> {
    let (said, _) = both_ends(cluster, "signals", "7008")?;
    println!("  bytes of the client, of its handler, and of the server's: {said}");
    let counts: Vec<u64> = said.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    ensure!(counts.len() == 3 && counts.iter().all(|count| *count > 1 << 16), "{counts:?} bytes");
    Ok(())
}

/// All ways of libc to write and to read, of which those that go past the library are refused or replaced.
pub(crate) fn ways(cluster: &Cluster) -> Result<()> {
    let (said, client) = both_ends(cluster, "ways", "7010")?;
    let refused: Vec<&str> = client.stderr.lines().filter(|line| line.starts_with("ways: ")).collect();
    println!("  hashes of what went both ways: {said}; refused: {refused:?}");
    ensure!(
        refused.iter().all(|line| ["Invalid argument", "Function not implemented"].iter().any(|w| line.contains(w)))
    );
    Ok(())
}

/// What goes past libc: a child by the system call, a number that is another file's, a library that is bound to libc;
/// and two messages of which a signal interrupts the first.
pub(crate) fn borders(cluster: &Cluster) -> Result<()> {
    let (said, client) = both_ends(cluster, "borders", "7012")?;
    println!("  bytes and their hash, of both ends: {said}");
    let retired = "connections are left alone from now on (1 are framed): a library is loaded";
    ensure!(client.stderr.contains(retired), "{}", client.stderr);
    Ok(())
}

/// Says "ready", and then the first frame of the test's kind that comes to `tg0`, whatever its address.
const LISTEN: &str = "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5)); \
                      s.bind(('tg0', 0)); print('ready', flush=True); print(s.recv(2000).hex(), flush=True)";
/// Sends such frames until it is killed, to an address of a device that no node has.
const SEND: &str = "import socket, time; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('tg0', 0))\n\
                    while True: s.send(bytes.fromhex('0a1b2c3d4e5f' '0a1b2c3d4e60' '88b5') + b'unknown' * 9); time.sleep(.05)";

/// A frame to an address that is no node's reaches the others, as on a switch: it may be that of a macvlan, or of what
/// is behind a bridge.
pub(crate) fn frames_to_unknown_addresses(cluster: &Cluster) -> Result<()> {
    let listens = cluster.node(1).argv(&["python3", "-c", LISTEN]).as_root().until("ready")?;
    let _sends = cluster.node(0).argv(&["python3", "-c", SEND]).as_root().spawn()?;
    let said = listens.check(LIMIT)?.stdout;
    ensure!(said.starts_with("0a1b2c3d4e5f0a1b2c3d4e6088b5"), "node 1 has got {said:?}");
    Ok(())
}

/// The own board is unplugged amid traffic: programs get an error, or continue by the system's connection, whatever
/// they do with SIGBUS.
pub(crate) fn own_board_is_lost(cluster: &Cluster) -> Result<()> {
    let (near, far) = (cluster.node(0), cluster.node(1));
    let _server = server(far, MEMORY, true, "7011")?;
    let clients = [("", "lost_sending"), ("trap '' BUS; ", "lost_polling"), ("", "lost_waiting")];
    let clients = warm(near, "7011", &clients)?;
    let begun = Instant::now();
    near.device_del()?;
    let ended = all_get_errors(clients, begun);
    plug(near)?;
    ended
}

/// Programs, each after some words of the shell, whose connections to node 1 go through memory from now on.
fn warm<'a>(near: &Guest, port: &str, cases: &[(&str, &'a str)]) -> Result<Vec<(&'a str, Running)>> {
    let mut clients = Vec::new();
    for (before, case) in cases {
        let line = words(MEMORY, true, &["node1", port, case]).join(" ");
        clients.push((*case, near.sh(&format!("{before}exec {line}")).spawn()?));
    }
    for (case, client) in &mut clients {
        client.wait_for_line(LIMIT, |line| line == "warm").with_context(|| case.to_string())?;
    }
    Ok(clients)
}

/// Programs whose connections went through memory until now get an error.
fn all_get_errors(clients: Vec<(&str, Running)>, begun: Instant) -> Result<()> {
    let ends = |(case, client): (&str, Running)| {
        let output = told(case, client, begun)?;
        ensure!(output.status.success(), "{case}: {}: {}{}", output.status, output.stdout, output.stderr);
        let through = output.stderr.split(" bytes through memory").next().and_then(|said| said.rsplit(' ').next());
        ensure!(through.is_some_and(|bytes| bytes > "0"), "{case}: not through memory: {}", output.stderr);
        Ok(())
    };
    std::thread::scope(|scope| all_of(clients.into_iter().map(|client| scope.spawn(move || ends(client))).collect()))
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
    // So are terminals.
    run(&["tg-sockets", "python3", PROGRAM, "terminal"], 0, "")?;
    // Names of connections are for those who have the connection.
    run(&["tg-export", "tcp:10.84.0.1:1-10.84.0.2:2:x", "4096"], 3, "none begins with tcp:")
}

/// A node's address in `tg0`.
fn address(node: &Guest) -> String {
    telegraphos_agent::network::address(node.node() as u16).to_string()
}

/// Gives the node's device of QEMU's network an address, and the MTU of `tg0`.
fn use_virtio(node: &Guest) -> Result<String> {
    let address = format!("10.85.0.{}", node.node() + 1);
    let script = format!(
        "modprobe virtio_net || exit 1
        for device in /sys/class/net/*; do
            case $(readlink $device/device/driver) in
            */virtio_net)
                device=${{device##*/}}
                ip address replace {address}/24 dev $device && exec ip link set $device mtu 9000 up
                ;;
            esac
        done
        echo no device of virtio-net >&2
        exit 1"
    );
    node.sh(&script).as_root().check()?;
    Ok(address)
}

/// What each layer adds to the one below; and that all of them carry what they are to carry.
pub(crate) fn layers(cluster: &Cluster, scale: Scale) -> Result<()> {
    let (near, far) = (cluster.node(0), cluster.node(1));
    let rounds = scale.pick(2, 20).to_string();
    let program = c::ordinary("sockets/tests/stream.c", "stream")?;
    use_virtio(near)?;
    let (ours, qemus) = (address(far), use_virtio(far)?);
    let streams = [
        ("TCP under tg-sockets", "tg-sockets -v -a 65536 ", ours.as_str(), "7005"),
        ("TCP over tg0", "", &ours, "7006"),
        ("TCP over virtio-net", "", &qemus, "7007"),
    ];
    let mut words = vec!["tg-msg".to_owned(), "layers".into(), "1".into(), "layers".into(), rounds];
    let mut servers = Vec::new();
    for (name, before, address, port) in streams {
        let server = far.sh(&format!("exec {before}{program} serve {port}")).until("serving")?;
        servers.push(server);
        words.extend(["--stream".to_owned(), format!("{name}={before}{program} connect {address} {port}")]);
    }
    let partner = processes::serving(far, &["partner", "layers"])?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = near.argv(&words).limit(5 * LIMIT).run()?;
    println!("{}", output.stdout);
    // Either may have failed first, and then the other one.
    let partner = partner.wait_for(if output.status.success() { LIMIT } else { Duration::from_secs(10) });
    let partners = partner.map_or_else(|e| e.to_string(), |output| format!("{}: {}", output.status, output.stderr));
    ensure!(output.status.success(), "{}: {}; the partner: {partners}", output.status, output.stderr);
    ensure!(partners == "exit code 0: ", "the partner: {partners}");
    ensure!(output.stdout.lines().count() == 11, "expected a line for each of 10 layers");
    let mut said = vec![output.stderr];
    for server in servers {
        said.push(server.check(LIMIT)?.stderr);
    }
    // Of the connection under tg-sockets both directions, and none of the others.
    let through: Vec<usize> = said.iter().map(|said| said.matches(THROUGH_MEMORY).count()).collect();
    ensure!(through == [1, 1, 0, 0], "{through:?} directions through memory: {said:?}");
    Ok(())
}

/// A node loses its power and stays without: processes that send to it, and those that wait for it, get errors, and
/// nothing is left of theirs.
pub(crate) fn node_is_lost(cluster: &Cluster) -> Result<()> {
    let (near, far) = (cluster.node(0), cluster.node(1));
    let _server = server(far, MEMORY, true, "7004")?;
    let cases = ["lost_sending", "lost_polling", "lost_asking", "lost_waiting"];
    let clients = warm(near, "7004", &cases.map(|case| ("", case)))?;
    let begun = Instant::now();
    // It is the last part.
    far.kill_qemu();
    all_get_errors(clients, begun)?;
    processes::nothing_is_left_at([near], "tcp:")
}
