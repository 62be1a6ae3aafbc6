// SPDX-License-Identifier: MIT OR Apache-2.0
//! What acceptors and addresses owe.

use std::process::{Command, Stdio};

use telegraphos_fabric::transports::Address;
use telegraphos_transport::Received;

use super::drive::{Peer, accept, drive, now, pattern, same, sleep};
use super::subjects::Subject;

/// Set for the child process of [`a_killed_peer_is_noticed`]: where to connect.
const CHILD: &str = "TELEGRAPHOS_CONFORMANCE_CHILD";
/// And the directory of its parent.
const DIRECTORY: &str = "TELEGRAPHOS_CONFORMANCE_DIRECTORY";
/// What the child sends before it waits to be killed.
const LAST: usize = 10_000;

fn with<R>(subject: Subject, test: impl FnOnce(&Address, &std::path::Path) -> R) -> R {
    let directory = tempfile::tempdir().unwrap();
    let address = subject.address(directory.path()).unwrap();
    test(&address, directory.path())
}

/// The child: connects, sends, sleeps until killed. Does nothing in an ordinary run.
pub(crate) fn child(subject: Subject) {
    let Some(address) = std::env::var(CHILD).ok().filter(|text| text != "alone") else { return };
    let directory = std::path::PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let transport = subject.connect(&address.parse().unwrap(), &directory).unwrap();
    let mut peer = Peer::sending(transport, pattern(9, LAST));
    // Until it is killed; or the test has failed, and its parent is gone.
    while !peer.ended {
        peer.proceed().unwrap();
        sleep(&[&peer], 1_000_000);
    }
}

/// A process that is killed is noticed, behind the bytes it had sent.
pub(crate) fn a_killed_peer_is_noticed(subject: Subject, child_test: &str) {
    with(subject, |address, directory| {
        let mut acceptor = subject.listen(address, directory).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([child_test, "--exact", "--nocapture"])
            .env(CHILD, address.to_string())
            .env(DIRECTORY, directory)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut peer = Peer::new(accept(&mut *acceptor, &mut []));
        while peer.got.len() < LAST {
            peer.proceed().unwrap();
            assert!(peer.got.len() >= LAST || sleep(&[&peer], 30_000_000), "the child sends nothing");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        while !peer.ended {
            peer.proceed().unwrap();
            assert!(peer.ended || sleep(&[&peer], 30_000_000), "the death was not noticed");
        }
        same(&peer.got, &pattern(9, LAST));
    });
}

/// After an end the same client comes back, to the same acceptor and to a new one.
pub(crate) fn reconnecting_works(subject: Subject) {
    with(subject, |address, directory| {
        for round in 0..3 {
            let mut acceptor = subject.listen(address, directory).unwrap();
            for turn in 0..3 {
                let bytes = pattern(round * 10 + turn, 5000);
                let mut a = Peer::sending(subject.connect(address, directory).unwrap(), bytes.clone());
                a.proceed().unwrap();
                let mut b = Peer::new(accept(&mut *acceptor, &mut [&mut *a.transport]));
                drive(&mut a, &mut b, |_, b| b.got.len() == bytes.len()).unwrap();
                same(&b.got, &bytes);
            }
        }
    });
}

/// Many connections at once, none of which takes another's bytes.
///
/// A crowded QUIC listener does not answer every caller before the caller's time is up. That is an error at the caller,
/// which calls again: so do the trunks of a fabric. No other transport has such an error.
pub(crate) fn many_connections_at_once(subject: Subject) {
    const CALLERS: u64 = 100;
    with(subject, |address, directory| {
        let mut acceptor = subject.listen(address, directory).unwrap();
        let call = |n: u64| Peer::sending(subject.connect(address, directory).unwrap(), pattern(n, 1000));
        let mut clients: Vec<Peer> = (0..CALLERS).map(call).collect();
        let mut served: Vec<Peer> = Vec::new();
        let mut whole: Vec<Vec<u8>> = Vec::new();
        let start = now();
        while (whole.len() as u64) < CALLERS {
            assert!(now() - start < 120_000_000, "hangs: {} of {CALLERS}; {acceptor:?}", whole.len());
            for (n, client) in (0..).zip(&mut clients) {
                let went = client.proceed();
                // An end after all bytes have arrived is as it should be.
                if went.is_err() || client.ended && !whole.contains(&client.to_send) {
                    assert!(matches!(subject, Subject::Quic(_)), "{went:?}");
                    *client = call(n);
                }
            }
            served.extend(std::iter::from_fn(|| acceptor.accept(now()).unwrap()).map(Peer::new));
            served.retain_mut(|server| match server.proceed() {
                Ok(()) => {
                    let done = server.got.len() >= 1000;
                    whole.extend(done.then(|| std::mem::take(&mut server.got)));
                    !done
                }
                // Its caller has called again.
                Err(e) => {
                    assert!(matches!(subject, Subject::Quic(_)), "{e}");
                    false
                }
            });
            sleep(&served.iter().chain(&clients).collect::<Vec<_>>(), 1_000);
        }
        let mut expected: Vec<Vec<u8>> = (0..CALLERS).map(|n| pattern(n, 1000)).collect();
        whole.sort();
        expected.sort();
        assert!(whole == expected);
    });
}

/// Descriptors and memory do not grow with the number of connections that came and went. Counted in a process of its
/// own, where no other test opens any: see [`alone`].
pub(crate) fn a_thousand_connects_leave_nothing(alone_test: &str) {
    let output = count_alone(alone_test);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains(COUNTED), "it did not run");
}

/// Lets [`alone`] count.
pub(crate) fn count_alone(alone_test: &str) -> std::process::Output {
    Command::new(std::env::current_exe().unwrap())
        .args([alone_test, "--exact", "--nocapture"])
        .env(CHILD, "alone")
        .output()
        .unwrap()
}

/// What [`alone`] says when it has counted.
const COUNTED: &str = "descriptors and memory counted";

/// The process that counts. Does nothing in an ordinary run.
pub(crate) fn alone(subject: Subject) {
    if std::env::var(CHILD).as_deref() != Ok("alone") {
        return;
    }
    with(subject, |address, directory| {
        let mut acceptor = subject.listen(address, directory).unwrap();
        let mut once = |n: u64| {
            let mut a = Peer::sending(subject.connect(address, directory).unwrap(), pattern(n, 100));
            a.proceed().unwrap();
            let mut b = Peer::new(accept(&mut *acceptor, &mut [&mut *a.transport]));
            drive(&mut a, &mut b, |_, b| b.got.len() == 100).unwrap();
        };
        // Until as many have ended a moment ago, and are still remembered, as ever will have.
        (0..300).for_each(&mut once);
        let before = measure();
        (0..1000).for_each(&mut once);
        let after = measure();
        assert_eq!(after.0, before.0, "descriptors");
        assert!(after.1 < before.1 + 4096, "KiB resident: {} before, {} after", before.1, after.1);
        println!("{COUNTED}");
    });
}

/// Open descriptors and KiB resident.
fn measure() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.trim().trim_end_matches(" kB").trim().parse().unwrap();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), resident)
}

/// Without a listener, the error says where, and what to do.
pub(crate) fn an_absent_listener_is_an_error_or_an_end(subject: Subject) {
    with(subject, |address, directory| {
        let error = match subject.connect(address, directory) {
            Err(error) => error.to_string(),
            // Datagrams cannot know at once.
            Ok(transport) => {
                let mut peer = Peer::sending(transport, b"hello?".to_vec());
                loop {
                    match peer.proceed() {
                        Err(e) => break e.to_string(),
                        Ok(()) if peer.ended => return,
                        Ok(()) => assert!(sleep(&[&peer], 30_000_000), "never noticed"),
                    }
                }
            }
        };
        assert!(error.contains(&address.to_string()) || error.contains("reset"), "{error}");
    });
}

/// A stale socket is replaced, a live one is not; the file goes with its acceptor.
pub(crate) fn a_stale_socket_is_replaced_and_a_live_one_refused(subject: Subject) {
    use std::os::unix::fs::PermissionsExt;
    with(subject, |address, directory| {
        let path = directory.join("socket");
        match address {
            Address::UnixDatagram(_) => drop(std::os::unix::net::UnixDatagram::bind(&path).unwrap()),
            _ => drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
        }
        let mut acceptor = subject.listen(address, directory).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = subject.listen(address, directory).unwrap_err().to_string();
        assert!(error.contains("another process is listening") && error.contains(path.to_str().unwrap()), "{error}");
        let mut a = Peer::sending(subject.connect(address, directory).unwrap(), b"still there?".to_vec());
        a.proceed().unwrap();
        // The refused one probed the socket; that may have been a connection.
        let mut b = Peer::new(accept(&mut *acceptor, &mut [&mut *a.transport]));
        b.proceed().unwrap();
        while b.ended {
            b = Peer::new(accept(&mut *acceptor, &mut [&mut *a.transport]));
            b.proceed().unwrap();
        }
        drive(&mut a, &mut b, |_, b| b.got.len() == 12).unwrap();
        drop(acceptor);
        assert!(!path.exists());
    });
}

/// A peer that sends garbage, or hangs up at once, affects no other.
pub(crate) fn garbage_affects_no_other_peer(subject: Subject) {
    use std::io::Write;
    with(subject, |address, directory| {
        let path = directory.join("socket");
        let mut acceptor = subject.listen(address, directory).unwrap();
        let mut invalid = Vec::new();
        for n in 0..20_usize {
            let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
            stream.write_all(&pattern(n as u64, n * 37 % 500)).unwrap();
            if n % 3 > 0 {
                invalid.push(stream);
            }
        }
        let mut a = Peer::sending(subject.connect(address, directory).unwrap(), pattern(99, 5000));
        a.proceed().unwrap();
        let mut served: Vec<Peer> = Vec::new();
        let start = now();
        while served.iter().all(|peer| peer.got != a.to_send) {
            assert!(now() - start < 60_000_000, "the honest one is not served");
            served.extend(acceptor.accept(now()).unwrap().map(Peer::new));
            a.proceed().unwrap();
            // To an error or an end, but never a panic or a hang; any bytes are valid on a plain stream.
            served.retain_mut(|peer| peer.proceed().is_ok());
        }
    });
}

/// To connect by the wrong transport is an error or an end, never a hang.
pub(crate) fn another_transport_is_refused(subject: Subject) {
    with(subject, |address, directory| {
        let path = directory.join("socket");
        let (Address::Ring(_), server) = (address, subject.listen(address, directory).unwrap()) else {
            return;
        };
        let mut server = server;
        // A ring that is called as a stream: the peer's first bytes are no wake-ups.
        let mut a = Peer::sending(subject.connect(&Address::Unix(path.clone()), directory).unwrap(), pattern(1, 100));
        a.proceed().unwrap();
        let mut b = accept(&mut *server, &mut [&mut *a.transport]);
        let error = b.receive(now(), &mut [0; 100]).unwrap_err().to_string();
        assert!(error.contains("other end of the rings"), "{error}");
        drop((a, b, server));
        // A stream that is called as a ring: what it says is no greeting.
        let mut server = subject.listen(&Address::Unix(path.clone()), directory).unwrap();
        let mut a = subject.connect(&Address::Ring(path), directory).unwrap();
        let mut b = Peer::sending(accept(&mut *server, &mut [&mut *a]), b"welcome, any other party".to_vec());
        b.proceed().unwrap();
        let error = loop {
            match a.receive(now(), &mut [0; 100]) {
                Ok(Received::Nothing) => {}
                other => break other.unwrap_err().to_string(),
            }
        };
        assert!(error.contains("does not speak of rings"), "{error}");
    });
}
