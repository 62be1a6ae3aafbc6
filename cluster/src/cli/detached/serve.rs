// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process of a detached cluster: boots it, lets go of the terminal, and serves the cluster's socket until the
//! cluster ends.

use super::super::terminal::readable;
use super::super::{Context, print};
use super::exec;
use super::protocol::{
    Answer, Ended, LOG, MAX_REQUEST, NodeStatus, Request, SOCKET, STATE, Status, ToCluster, read_frame, read_line,
    write_line,
};
use crate::nodes::number;
use crate::rundir::ClusterName;
use crate::{Cluster, Error, Guest, Result, User, lock};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use telegraphos_agent::Decoder;

/// Connections at once. Each is a thread and, of a command, some MiB at most.
const MAX_CLIENTS: usize = 32;
/// How often the cluster is looked at.
const EVERY: Duration = Duration::from_millis(100);

/// Boots and serves. Standard input is the connection to the command that has started this process.
pub(in super::super) fn up(context: Context, name: &ClusterName) -> Result<u8> {
    let cluster = context.boot_named(name.clone(), |node| node.shell = true)?;
    let path = cluster.run_dir().join(SOCKET);
    let listener = UnixListener::bind(&path).map_err(Error::io("cannot listen at", &path))?;
    // Its directory is the user's alone; so is what it lets others do.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(Error::io("cannot protect", &path))?;
    listener.set_nonblocking(true).map_err(Error::io("cannot listen at", &path))?;
    let begun = Instant::now();
    let status = || status(&cluster, name, begun);
    let state = cluster.run_dir().join(STATE);
    let text = serde_json::to_vec(&status()).map_err(|e| Error::Usage(e.to_string()))?;
    fs::write(&state, text).map_err(Error::io("cannot write", &state))?;
    print(&cluster.manifest().to_string())?;
    print(&format!("Cluster {name} is up: {}.\n", super::nodes(cluster.guests().len())))?;
    detach(&cluster)?;
    let served = serve(&cluster, &listener, &status);
    // Nothing answers any more, and nothing else is of interest until the reason is in its place.
    drop(listener);
    match served {
        Ok(()) => Ok(0),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(e) => {
            let record = serde_json::to_vec(&Ended::of(&e)).map_err(|e| Error::Usage(e.to_string()))?;
            cluster.end_with_record(&record)?;
            Err(e)
        }
    }
}

/// Lets go of the terminal and of the command that waits. If that has gone, so does the cluster.
fn detach(cluster: &Cluster) -> Result<()> {
    let failed = |e: rustix::io::Errno| Error::io("cannot detach from", "the terminal")(e.into());
    let path = cluster.run_dir().join(LOG);
    let log = File::options().create(true).append(true).open(&path).map_err(Error::io("cannot open", &path))?;
    let none = File::open("/dev/null").map_err(Error::io("cannot open", "/dev/null"))?;
    rustix::stdio::dup2_stdout(&log).map_err(failed)?;
    rustix::stdio::dup2_stderr(&log).map_err(failed)?;
    rustix::io::write(std::io::stdin(), super::UP).map_err(failed)?;
    rustix::stdio::dup2_stdin(&none).map_err(failed)
}

/// What clients and the cluster have in common.
#[derive(Default)]
struct Shared {
    over: Mutex<Option<Ended>>,
    /// A client wants the end.
    down: AtomicBool,
    clients: AtomicUsize,
}

/// Serves until a client, a signal or an accident ends the cluster.
fn serve(cluster: &Cluster, listener: &UnixListener, status: &(dyn Fn() -> Status + Sync)) -> Result<()> {
    let shared = Shared::default();
    std::thread::scope(|scope| {
        let _end = End(&shared);
        loop {
            if shared.down.load(Ordering::Acquire) {
                return Ok(());
            }
            if let Err(e) = cluster.check() {
                // Commands in guests end with this reason, not with that of their guest's end.
                *lock(&shared.over) = Some(Ended::of(&e));
                return Err(e);
            }
            let [ready] = readable([listener.as_fd()], EVERY).map_err(Error::io("cannot wait at", SOCKET))?;
            if !ready {
                continue;
            }
            match listener.accept() {
                Ok((client, _)) => {
                    let shared = &shared;
                    let before = shared.clients.fetch_add(1, Ordering::AcqRel);
                    let client = Client { client, cluster, shared };
                    let work = move || client.serve(before, status);
                    // A failure drops the client's connection.
                    if let Err(e) = std::thread::Builder::new().name("client".into()).spawn_scoped(scope, work) {
                        log::warn!("no thread for a client: {e}");
                    }
                }
                Err(e) => {
                    log::warn!("no connection for a client: {e}");
                    crate::sleep(EVERY)?;
                }
            }
        }
    })
}

/// Ends the clients, however the loop ends.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        lock(&self.0.over).get_or_insert(Ended { code: 3, why: "the cluster was ended".into() });
    }
}

struct Client<'a> {
    client: UnixStream,
    cluster: &'a Cluster,
    shared: &'a Shared,
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.shared.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Client<'_> {
    fn serve(self, before: usize, status: &dyn Fn() -> Status) {
        if let Err(e) = self.answer(before, status) {
            log::debug!("a client is gone: {e}");
        }
    }

    fn answer(&self, before: usize, status: &dyn Fn() -> Status) -> std::io::Result<()> {
        let client = &self.client;
        let refuse = |code, why: String| write_line(client, &Answer::Refused { code, why });
        if before >= MAX_CLIENTS {
            return refuse(1, format!("{MAX_CLIENTS} commands use the cluster already, which is the most; end one"));
        }
        let (request, rest) = match read_line(client, MAX_REQUEST) {
            Ok(read) => read,
            Err(why) => return refuse(2, format!("the request is none: {why}")),
        };
        let (node, user) = match request {
            Request::Status => return write_line(client, &Answer::Status(status())),
            Request::Down => {
                write_line(client, &Answer::Ending { pid: std::process::id() })?;
                self.shared.down.store(true, Ordering::Release);
                return Ok(());
            }
            Request::Exec { node, user } => (node, user),
        };
        let guests = self.cluster.guests();
        let names: Vec<String> = guests.iter().map(|guest| guest.label().host_name()).collect();
        let guest = match number(&node, &names) {
            Ok(number) => &guests[number],
            Err(why) => return refuse(2, why),
        };
        let user = match user.parse::<User>() {
            Ok(user) => user,
            Err(why) => return refuse(2, why),
        };
        let mut decoder = Decoder::default();
        decoder.push(&rest);
        let (argv, terminal) = match read_frame(client, &mut decoder) {
            Ok(ToCluster::Run { argv, terminal }) => (argv, terminal),
            Ok(_) => return refuse(2, "the command is missing: expected it behind the request".into()),
            Err(why) => return refuse(2, format!("the command cannot be read: {why}")),
        };
        let argv: Vec<OsString> = argv.into_iter().map(|word| OsString::from_vec(word.into_vec())).collect();
        match guest.argv(&argv).user(user).terminal(terminal).keep_input_open().spawn() {
            Ok(running) => {
                write_line(client, &Answer::Started)?;
                exec::follow(client, decoder, running, &|| lock(&self.shared.over).clone());
                Ok(())
            }
            Err(e) => refuse(e.exit_code(), e.to_string()),
        }
    }
}

fn status(cluster: &Cluster, name: &ClusterName, begun: Instant) -> Status {
    let node = |guest: &Guest| NodeStatus {
        node: guest.node(),
        name: guest.label().host_name(),
        kernel: guest.greeting().0,
        boots: guest.boots(),
        console: guest.console_socket(),
    };
    Status {
        cluster: name.to_string(),
        pid: std::process::id(),
        up_seconds: begun.elapsed().as_secs(),
        accelerator: if cluster.uses_kvm() { "kvm" } else { "tcg" }.into(),
        directory: cluster.run_dir().into(),
        logs: cluster.log_dir().into(),
        fabric: cluster.control_socket(),
        nodes: cluster.guests().iter().map(node).collect(),
    }
}
