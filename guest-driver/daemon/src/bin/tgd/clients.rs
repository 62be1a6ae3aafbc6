// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients, which come by a Unix socket. Who they are says the kernel.

use super::Input;
use log::warn;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use telegraphos_daemon_core::protocol::{Answer, Request, frame, unframe};
use telegraphos_daemon_core::{Event, Refusal, User};

/// Clients at once, at most.
const CLIENTS: usize = 128;
/// Of one user, at most, but of root.
const OF_A_USER: usize = 48;
/// Answers that a client has not read, at most.
const ANSWERS: usize = 2048;

/// The way to a client.
pub(crate) struct Client {
    answers: SyncSender<(u32, Answer)>,
    stream: UnixStream,
}

impl Client {
    /// Answers it. Does not wait: one that does not read is closed.
    pub(crate) fn answer(&self, id: u32, answer: Answer) {
        if self.answers.try_send((id, answer)).is_err() {
            _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

/// Whoever has the lock is the daemon; it is released with its process.
pub(crate) fn lock(path: &Path) -> Result<File, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut process = String::new();
        _ = file.read_to_string(&mut process);
        return Err(format!("tgd runs on this node already, as process {}: one is enough", process.trim()));
    }
    file.set_len(0).and_then(|()| file.write_all(std::process::id().to_string().as_bytes())).map_err(failed)?;
    Ok(file)
}

/// Listens at the socket, and reports clients and their requests.
pub(crate) fn listen(path: &Path, to: SyncSender<Input>) -> Result<(), String> {
    let listen = || {
        // That of a daemon that was killed: the lock is held.
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    let listener = listen().map_err(|error| format!("{}: {error}", path.display()))?;
    super::thread("clients", move || accept(&listener, &to))
}

fn accept(listener: &UnixListener, to: &SyncSender<Input>) {
    let users: Arc<Mutex<BTreeMap<u32, usize>>> = Arc::default();
    for (client, stream) in (1..).zip(listener.incoming()) {
        let Ok(stream) = stream else {
            // Out of descriptors, perhaps: not at once again.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { continue };
        let user = User { uid: peer.uid.as_raw(), gid: peer.gid.as_raw() };
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        if let Err(refusal) = admit(&users, user) {
            refuse(&stream, refusal);
            continue;
        }
        let leave = Leave { users: users.clone(), uid: user.uid };
        if let Err(error) = serve(client, stream, (pid, user), leave, to.clone()) {
            warn!("a client of user {}: {error}", user.uid);
        }
    }
}

/// Counts a client of a user's.
fn admit(users: &Mutex<BTreeMap<u32, usize>>, user: User) -> Result<(), Refusal> {
    let mut users = users.lock().unwrap_or_else(PoisonError::into_inner);
    let (all, own) = (users.values().sum::<usize>(), users.get(&user.uid).copied().unwrap_or_default());
    if all >= CLIENTS || (own >= OF_A_USER && !user.is_root()) {
        let text = format!(
            "{all} clients are connected, {own} of user {}: expected at most {CLIENTS}, and {OF_A_USER} of one user",
            user.uid
        );
        return Err(Refusal::new(Refusal::EAGAIN, text));
    }
    *users.entry(user.uid).or_default() += 1;
    Ok(())
}

/// Takes a client out of the count.
struct Leave {
    users: Arc<Mutex<BTreeMap<u32, usize>>>,
    uid: u32,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

fn serve(
    client: u64,
    stream: UnixStream,
    (pid, user): (u32, User),
    leave: Leave,
    to: SyncSender<Input>,
) -> Result<(), String> {
    let clone = || stream.try_clone().map_err(|error| error.to_string());
    let (writer, own) = (clone()?, clone()?);
    let (answers, waiting) = sync_channel(ANSWERS);
    let last = answers.clone();
    super::thread("answer", move || write(writer, &waiting))?;
    super::thread("client", move || {
        let _leave = leave;
        let connected = Input::Connected { client, pid, user, to: Client { answers, stream: own } };
        if to.send(connected).is_err() {
            return;
        }
        if let Err(error) = read(&stream, client, &to) {
            // Behind what it was answered before. It is closed when the daemon has forgotten it.
            _ = last.try_send((0, Answer::Refused(Refusal::new(Refusal::EINVAL, error))));
        }
        _ = to.send(Input::Event(Event::Gone { client }));
    })
}

fn read(mut stream: &UnixStream, client: u64, to: &SyncSender<Input>) -> Result<(), String> {
    let (mut buffer, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        while let Some((id, request)) = unframe::<(u32, Request)>(&mut buffer).map_err(|error| error.to_string())? {
            if to.send(Input::Event(Event::Request { client, id, request })).is_err() {
                return Ok(());
            }
        }
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => buffer.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Ok(()),
        }
    }
}

fn write(mut stream: UnixStream, waiting: &Receiver<(u32, Answer)>) {
    while let Ok(answer) = waiting.recv() {
        let written = frame(&answer).map_err(io::Error::other).and_then(|frame| stream.write_all(&frame));
        if written.is_err() {
            break;
        }
    }
    _ = stream.shutdown(Shutdown::Both);
}

/// Says why a client is closed that has not been served.
fn refuse(mut stream: &UnixStream, refusal: Refusal) {
    _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
    if let Ok(frame) = frame(&(0, Answer::Refused(refusal))) {
        _ = stream.write_all(&frame);
    }
    _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_client_whose_bytes_are_no_message_is_told_so() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let leave = Leave { users: Arc::default(), uid: 7 };
        let (to, from) = sync_channel(16);
        serve(5, near, (1, User { uid: 7, gid: 7 }), leave, to).unwrap();
        // It is kept, as the daemon does: answers go to it.
        let Input::Connected { client: 5, to: client, .. } = from.recv().unwrap() else { panic!("not connected") };
        far.write_all(&frame(&(3, Request::Nodes)).unwrap()).unwrap();
        assert!(matches!(
            from.recv().unwrap(),
            Input::Event(Event::Request { client: 5, id: 3, request: Request::Nodes })
        ));
        client.answer(3, Answer::Done);
        far.write_all(&[0xff; 4]).unwrap();
        assert!(matches!(from.recv().unwrap(), Input::Event(Event::Gone { client: 5 })));
        drop(client);
        let (mut bytes, mut answers) = (Vec::new(), Vec::new());
        far.read_to_end(&mut bytes).unwrap();
        while let Some(answer) = unframe::<(u32, Answer)>(&mut bytes).unwrap() {
            answers.push(answer);
        }
        let [(3, Answer::Done), (0, Answer::Refused(refusal))] = &answers[..] else { panic!("{answers:?}") };
        assert!(refusal.text.contains("a message of 4294967295 bytes"), "{refusal}");
    }

    #[test]
    fn one_user_does_not_take_all_places() {
        let users: Arc<Mutex<BTreeMap<u32, usize>>> = Arc::default();
        let user = |uid| User { uid, gid: uid };
        let leave = |uid| Leave { users: users.clone(), uid };
        for _ in 0..OF_A_USER {
            admit(&users, user(1)).unwrap();
        }
        assert!(admit(&users, user(1)).unwrap_err().text.contains("48 of user 1"));
        admit(&users, user(2)).unwrap();
        drop(leave(1));
        admit(&users, user(1)).unwrap();
        for _ in OF_A_USER + 1..CLIENTS {
            admit(&users, user(0)).unwrap();
        }
        assert_eq!(admit(&users, user(0)).unwrap_err().errno, Refusal::EAGAIN);
    }
}
