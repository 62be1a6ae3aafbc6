// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients, which connect to a Unix socket. The kernel reports the process and user of each.

use super::{Input, Warnings};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use telegraphos_accounts::{Shares, Users};
use telegraphos_daemon_core::protocol::{Answer, Request, frame, unframe};
use telegraphos_daemon_core::{Event, Party, Refusal, User};

/// Clients at once, at most.
const CLIENTS: Shares = Shares { capacity: 128, spenders: 32, guaranteed: 2, limit: 48 };
/// Beside them those of root.
const OF_ROOT: u64 = 32;
/// Bytes of answers that a client has not read, at most, beside those that its socket takes: all that one request can
/// have.
const UNREAD: usize = 320 << 10;

/// The way to a client.
#[derive(Clone)]
pub(crate) struct Client {
    answers: Sender<Vec<u8>>,
    /// Bytes of those that its socket has not taken.
    unread: Arc<AtomicUsize>,
    stream: Arc<UnixStream>,
}

impl Client {
    /// Answers it. Does not wait: one that does not read is closed.
    pub(crate) fn answer(&self, id: u32, answer: Answer) {
        // One that is too long is this daemon's mistake: the client would wait for it without end.
        let Ok(frame) = frame(&(id, answer)) else { return self.close() };
        let length = frame.len();
        let before = self.unread.fetch_add(length, Relaxed);
        if before + length > UNREAD || self.answers.send(frame).is_err() {
            self.close();
        }
    }

    fn close(&self) {
        _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The process that holds the lock is the daemon; the kernel releases it when the process ends.
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
    let users = Arc::new(Mutex::new(Users::new(CLIENTS, OF_ROOT)));
    let mut warnings = Warnings::default();
    for (client, stream) in (1..).zip(listener.incoming()) {
        let Ok(stream) = stream else {
            // Out of descriptors, perhaps: not at once again.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { continue };
        let user = User { uid: peer.uid.as_raw(), gid: peer.gid.as_raw() };
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let place = match admit(&users, user.uid) {
            Ok(place) => place,
            Err(refusal) => {
                warnings.warn(Party::User(user.uid), &refusal.text);
                refuse(&stream, refusal);
                continue;
            }
        };
        if let Err(error) = serve(client, stream, (pid, user), place, to.clone()) {
            warnings.warn(Party::User(user.uid), &format!("a client of user {}: {error}", user.uid));
        }
    }
}

/// The place of a client.
struct Place {
    users: Arc<Mutex<Users>>,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).give(self.uid, 1);
    }
}

/// Takes a place for a client of a user's.
fn admit(users: &Arc<Mutex<Users>>, uid: u32) -> Result<Place, Refusal> {
    let mut held = users.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(exhausted) = held.take(uid, 1) {
        let text = format!(
            "{} clients are connected, {} of user {uid}: expected at most {} of that user now, and {} of one user \
             ever; {} have been refused so far",
            held.total(),
            exhausted.held,
            exhausted.limit,
            CLIENTS.limit,
            held.refused()
        );
        return Err(Refusal::new(Refusal::EAGAIN, text));
    }
    Ok(Place { users: users.clone(), uid })
}

fn serve(
    client: u64,
    stream: UnixStream,
    (pid, user): (u32, User),
    place: Place,
    to: SyncSender<Input>,
) -> Result<(), String> {
    let (answers, waiting) = channel();
    let own = Client { answers, unread: Arc::default(), stream: Arc::new(stream) };
    let (writer, unread) = (own.stream.clone(), own.unread.clone());
    super::thread("answer", move || write(&writer, &waiting, &unread))?;
    super::thread("client", move || {
        let _place = place;
        let stream = own.stream.clone();
        if to.send(Input::Connected { client, pid, user, to: own.clone() }).is_err() {
            return;
        }
        if let Err(error) = read(&stream, client, &to) {
            // Behind what it was answered before. It is closed when the daemon has forgotten it.
            own.answer(0, Answer::Refused(Refusal::new(Refusal::EINVAL, error)));
        }
        // Its place is another's when the daemon has forgotten it.
        drop(own);
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

fn write(mut stream: &UnixStream, waiting: &Receiver<Vec<u8>>, unread: &AtomicUsize) {
    while let Ok(frame) = waiting.recv() {
        if stream.write_all(&frame).is_err() {
            break;
        }
        unread.fetch_sub(frame.len(), Relaxed);
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
    use std::sync::mpsc::sync_channel;
    use telegraphos_daemon_core::NodeInfo;
    use telegraphos_daemon_core::protocol::MAX_MESSAGE;

    const USER: User = User { uid: 7, gid: 7 };

    fn users() -> Arc<Mutex<Users>> {
        Arc::new(Mutex::new(Users::new(CLIENTS, OF_ROOT)))
    }

    /// A client that is connected, its own end, and what the daemon has of it.
    fn connected(users: &Arc<Mutex<Users>>, number: u64) -> (UnixStream, Client, Receiver<Input>) {
        let (near, far) = UnixStream::pair().unwrap();
        let (to, from) = sync_channel(16);
        serve(number, near, (1, USER), admit(users, USER.uid).unwrap(), to).unwrap();
        // It is kept, as the daemon does: answers go to it.
        let Input::Connected { client, to, .. } = from.recv().unwrap() else { panic!("not connected") };
        assert_eq!(client, number);
        (far, to, from)
    }

    fn answers(far: &mut UnixStream) -> Vec<(u32, Answer)> {
        let (mut bytes, mut answers) = (Vec::new(), Vec::new());
        _ = far.read_to_end(&mut bytes);
        while let Some(answer) = unframe::<(u32, Answer)>(&mut bytes).unwrap() {
            answers.push(answer);
        }
        answers
    }

    #[test]
    fn a_client_whose_bytes_are_no_message_gets_an_error() {
        let (mut far, client, from) = connected(&users(), 5);
        far.write_all(&frame(&(3, Request::Nodes)).unwrap()).unwrap();
        assert!(matches!(
            from.recv().unwrap(),
            Input::Event(Event::Request { client: 5, id: 3, request: Request::Nodes })
        ));
        client.answer(3, Answer::Done);
        far.write_all(&[0xff; 4]).unwrap();
        assert!(matches!(from.recv().unwrap(), Input::Event(Event::Gone { client: 5 })));
        drop(client);
        let answers = answers(&mut far);
        let [(3, Answer::Done), (0, Answer::Refused(refusal))] = &answers[..] else { panic!("{answers:?}") };
        assert!(refusal.text.contains("a message of 4294967295 bytes"), "{refusal}");
    }

    #[test]
    fn whatever_a_client_sends_ends_that_client_alone() {
        let users = users();
        let whole = frame(&(3, Request::Tasks)).unwrap();
        let mut long = ((MAX_MESSAGE + 1) as u32).to_le_bytes().to_vec();
        long.extend(vec![0; MAX_MESSAGE + 1]);
        let mut behind = 4_u32.to_le_bytes().to_vec();
        behind.extend([3, 3, 0, 0]);
        let no_kind = [&2_u32.to_le_bytes()[..], &[3, 0xff]].concat();
        let none = 0_u32.to_le_bytes().to_vec();
        // Nothing; half of one, and then its end; one and a half; what is longer than there is; what is no request.
        let cases = [
            Vec::new(),
            whole[..3].to_vec(),
            whole[..5].to_vec(),
            [&whole[..], &whole[..4]].concat(),
            long,
            behind,
            no_kind,
            none,
        ];
        for (number, bytes) in (1..).zip(cases) {
            let (mut far, client, from) = connected(&users, number);
            _ = far.write_all(&bytes);
            _ = far.shutdown(Shutdown::Write);
            let requests = from.iter().take_while(|input| !matches!(input, Input::Event(Event::Gone { .. }))).count();
            assert_eq!(requests, usize::from(number == 4), "case {number}");
            drop(client);
            // Its thread has ended.
            assert!(from.recv().is_err());
            let answers = answers(&mut far);
            let refused = matches!(&answers[..], [(0, Answer::Refused(refusal))] if refusal.errno == Refusal::EINVAL);
            assert_eq!(refused, number >= 5, "case {number}: {answers:?}");
        }
        assert_eq!(users.lock().unwrap().total(), 0);
    }

    #[test]
    fn a_client_that_does_not_read_is_closed_and_takes_bounded_memory() {
        let (mut far, client, from) = connected(&users(), 1);
        let info = |node| NodeInfo { node, alive: true, load: u32::MAX, incarnation: 1 };
        let answer = Answer::Nodes((0..2000).map(info).collect());
        // As often as it asks. Each is 20 KiB and more.
        for id in 0..1000 {
            client.answer(id, answer.clone());
        }
        // It is closed, and what was kept for it is bounded.
        assert!(matches!(from.recv().unwrap(), Input::Event(Event::Gone { client: 1 })));
        assert!(client.answers.send(Vec::new()).is_err() || client.unread.load(Relaxed) > UNREAD);
        drop(client);
        let mut bytes = Vec::new();
        _ = far.read_to_end(&mut bytes);
        assert!(bytes.len() < 4 << 20, "{} bytes came", bytes.len());
    }

    #[test]
    fn users_do_not_take_all_places_and_root_has_its_own() {
        let users = users();
        let mut places = Vec::new();
        let mut most = |uid| {
            let before = places.len();
            let refusal = loop {
                match admit(&users, uid) {
                    Ok(place) => places.push(place),
                    Err(refusal) => break refusal,
                }
            };
            (places.len() - before, refusal)
        };
        let (count, refusal) = most(1);
        assert_eq!((count, refusal.errno), (48, Refusal::EAGAIN));
        assert!(refusal.text.contains("48 of user 1: expected at most 48 of that user"), "{refusal}");
        // Of three that take all that they can, a fourth has its guarantee, and root its reserve.
        assert_eq!([most(2).0, most(3).0], [20, 2]);
        assert_eq!([most(4).0, most(0).0], [2, 34]);
        let place = places.remove(0);
        assert!(admit(&users, 1).is_err());
        drop(place);
        assert!(admit(&users, 1).is_ok());
    }
}
