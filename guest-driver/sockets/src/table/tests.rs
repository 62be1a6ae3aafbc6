// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::changes;
use crate::descriptors::is_own;
use crate::kernel::part;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

/// Once, as in a program.
fn settle() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(changes::settle);
}

/// Both ends of a connection, looked after. Nothing else in this process closes descriptors by our functions.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (two, _) = listener.accept().unwrap();
    for end in [&one, &two] {
        tracked_from(end.as_raw_fd());
    }
    (one, two)
}

#[test]
fn a_connection_is_its_last_descriptors() {
    settle();
    let (one, _two) = pair();
    let fd = one.as_raw_fd();
    let copy = one.try_clone().unwrap().into_raw_fd();
    duplicated(fd, copy);
    let cell = |fd| std::ptr::from_ref(Connection::of_descriptor(fd).unwrap().cell);
    let first = cell(fd);
    assert_eq!(first, cell(copy));
    closed(fd);
    assert!(!is_tracked(fd) && is_tracked(copy));
    // Still in use: another one is another cell.
    let in_use = Connection::of_descriptor(copy).unwrap();
    closed(copy);
    let (three, _four) = pair();
    assert_ne!(cell(three.as_raw_fd()), first);
    let slot = in_use.slot;
    assert_eq!(slot.state.load(Ordering::SeqCst), state::TAKEN);
    drop(in_use);
    assert_eq!(slot.state.load(Ordering::SeqCst), state::CLOSED);
    opened(three.as_raw_fd());
    assert!(!is_tracked(three.as_raw_fd()));
}

#[test]
fn slots_are_used_again_when_no_process_has_the_connection() {
    settle();
    let (kept, _other) = pair();
    let number = entry(kept.as_raw_fd()).unwrap().load(Ordering::SeqCst);
    // Closed here, but open: a child may have it.
    closed(kept.as_raw_fd());
    for _ in 0..6 * CHUNK {
        let (one, two) = pair();
        for end in [one, two] {
            assert_ne!(entry(end.as_raw_fd()).unwrap().load(Ordering::SeqCst), number);
            closed(end.as_raw_fd());
        }
    }
    let all = chunks().filter(|(_, chunk)| chunk.is_of(process::id())).count();
    assert!(all <= 6, "{all} chunks for 12 times as many connections as one has");
}

#[test]
fn a_program_that_is_started_finds_its_connections() {
    settle();
    let (one, two) = pair();
    let known = Connection::of_descriptor(one.as_raw_fd()).unwrap();
    known.output.count(7);
    let memory = known.ring_memory().unwrap();
    assert_eq!((memory.len(), known.ring_memory()), (ring_bytes(), Some(memory)), "made once");
    let inode_of = |fd| kernel::status(fd).map_or(0, |status| status.st_ino);
    let inode = known.cell.ring.load(Ordering::SeqCst);
    let file = owned().find(|fd| inode_of(*fd) == inode).unwrap();
    // As if a program began here with copies of these descriptors, and another one.
    let copies = [&one, &one, &two].map(|end| end.try_clone().unwrap().into_raw_fd());
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into_raw_fd();
    // Of tests that run at the same time.
    copies.into_iter().chain([other]).for_each(opened);
    let sockets = [copies[0], copies[1], other].map(|fd| (kernel::socket_inode(fd).unwrap(), fd));
    let memory = process::cells(Head::WHOLE).unwrap();
    let find = |wanted: u64| (wanted == inode).then(|| Shared::found(file)).flatten();
    assert_eq!(adopt(memory, &sockets, find), 1);
    assert!(is_tracked(copies[0]) && is_tracked(copies[1]) && !is_tracked(copies[2]) && !is_tracked(other));
    let found = Connection::of_descriptor(copies[1]).unwrap();
    assert_eq!((found.output.bytes(), found.slot.descriptors.load(Ordering::SeqCst)), (7, 2));
    assert!(found.ring().is_some_and(|at| Some(at) != known.ring()), "mapped once more");
    assert!(!found.is_bare());
    // They are one connection.
    found.output.count(1);
    assert_eq!(known.output.bytes(), 8);
    // Nothing is adopted twice, nor from other memory.
    assert_eq!(adopt(memory, &sockets, |_| None), 0);
    // Without its ring, a program has what is read raw.
    closed(copies[1]);
    assert_eq!(adopt(memory, &sockets[1..2], |_| None), 1);
    assert!(known.is_bare());
    let other = Shared::new(Use::Cells, Head::WHOLE).unwrap();
    closed(copies[0]);
    assert_eq!(adopt(&other, &sockets, |_| None), 0, "zeros");
    assert_eq!(adopt(&Shared::new(Use::Cells, 4096).unwrap(), &sockets, |_| None), 0, "short");
    let file = tempfile::tempfile().unwrap();
    file.set_len(Head::WHOLE as u64).unwrap();
    assert!(Shared::found(file.as_raw_fd()).is_none(), "a file that may shrink");
    assert!(!is_own(file.as_raw_fd()));
}

#[test]
fn bytes_are_counted_and_a_connection_that_is_not_over_a_board_is_left() {
    settle();
    let (mut one, two) = pair();
    let (to, from) = (one.as_raw_fd(), two.as_raw_fd());
    let data = vec![7; settings().after as usize];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Past us: not counted.
            one.write_all(b"x").unwrap();
            let mut left = &data[..];
            while !left.is_empty() {
                let raw = || crate::kernel::send(to, &mut [part(left)], 0);
                // SAFETY: `left` is valid.
                left = &left[unsafe { crate::send(to, &[part(left)], 0, raw) }.unwrap()..];
            }
        });
        let mut got = 0;
        while got < data.len() + 1 {
            let mut buffer = vec![0; 10_000];
            let parts = [crate::kernel::part_mut(&mut buffer)];
            // SAFETY: `buffer` is valid.
            got += unsafe { crate::receive(from, &parts, 0, || crate::kernel::receive(from, &mut parts.clone(), 0)) }
                .unwrap();
        }
    });
    let (sent, received) = (Connection::of_descriptor(to).unwrap(), Connection::of_descriptor(from).unwrap());
    assert_eq!((sent.output.bytes(), received.input.bytes()), (settings().after, settings().after + 1));
    assert_eq!((sent.output.phase(), received.input.phase()), (phase::LEFT, phase::LEFT));
    assert_eq!((sent.input.phase(), received.output.phase()), (phase::RAW, phase::RAW));
    assert!(!is_framed(to) && refuse(to));
    // What a sender has offered it need not do; what a receiver has, the sender decides.
    received.output.enter(phase::OFFERED);
    assert!(!received.is_refused() && refuse(from) && received.is_refused());
    sent.input.enter(phase::OFFERED);
    assert!(is_framed(to) && !refuse(to));
}

/// A child of this process, which runs `child` and ends with what that returns.
fn child(child: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child runs only what is below, and ends without what this process does at its end.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: as above.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

/// The exit code of a child; -1 if it was killed.
fn code(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

fn connection(end: &TcpStream) -> Connection {
    Connection::of_descriptor(end.as_raw_fd()).unwrap()
}

/// Both directions between the two ends are framed, without a ring that is written.
fn frame(ends: [&TcpStream; 2]) {
    for end in ends.map(connection) {
        end.ring_memory().unwrap();
        end.input.enter(phase::FRAMED);
        end.output.enter(phase::FRAMED);
    }
}

fn send_bytes(end: &TcpStream, bytes: &[u8]) -> kernel::Outcome {
    let (fd, flags) = (end.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: valid bytes.
    unsafe { crate::send(fd, &[part(bytes)], flags, || kernel::send(fd, &mut [part(bytes)], flags)) }
}

fn receive_bytes(end: &TcpStream, bytes: &mut [u8], flags: c_int) -> kernel::Outcome {
    let (fd, parts) = (end.as_raw_fd(), [kernel::part_mut(bytes)]);
    // SAFETY: valid bytes.
    unsafe { crate::receive(fd, &parts, flags, || kernel::receive(fd, &mut parts.clone(), flags)) }
}

#[test]
fn what_processes_share_has_no_address() {
    settle();
    let (one, two) = pair();
    frame([&one, &two]);
    send_bytes(&one, b"abc").unwrap();
    let ends = [&one, &two].map(connection);
    let _locked = ends.each_ref().map(|end| (end.lock_input().unwrap(), end.lock_output().unwrap()));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges: Vec<(u64, u64)> = maps
        .lines()
        .filter_map(|line| line.split(' ').next()?.split_once('-'))
        .map(|(from, to)| (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap()))
        .collect();
    for end in &ends {
        let words = std::ptr::from_ref(end.cell).cast::<u64>();
        for at in 0..size_of::<Cell>() / 8 {
            // SAFETY: of the cell.
            let word = unsafe { words.add(at).read_volatile() };
            let is_address = ranges.iter().any(|(from, to)| (*from..*to).contains(&word));
            assert!(!is_address, "word {at} of a cell, {word:#x}, is an address of this process's");
        }
    }
}

#[test]
fn a_lock_is_another_processs_until_it_lets_go_or_ends() {
    settle();
    let (one, two) = pair();
    frame([&one, &two]);
    // With the lock, this process makes another one, which waits for it.
    let end = connection(&one);
    let locked = end.lock_output().unwrap();
    let waiter = child(|| i32::from(connection(&one).lock_output().is_err()));
    std::thread::sleep(std::time::Duration::from_millis(30));
    drop(locked);
    assert_eq!(code(waiter), 0);
    assert_eq!(send_bytes(&one, b"abc"), Ok(3));
    // One ends with it: what is known of that direction is not believed any more, and the connection is ended.
    let dies = child(|| {
        let end = connection(&one);
        std::mem::forget(end.lock_output());
        // SAFETY: this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }
    });
    assert_eq!(code(dies), -1);
    assert_eq!(connection(&one).lock_output().err(), Some(Broken::Ended));
    assert_eq!(send_bytes(&one, b"abc"), Err(kernel::Errno(libc::ECONNRESET)));
    let mut got = [0; 9];
    assert_eq!((receive_bytes(&two, &mut got, 0), &got[..3]), (Ok(3), &b"abc"[..]));
    assert_eq!(receive_bytes(&two, &mut got, 0), Ok(0));
    // Others are as before.
    let (three, four) = pair();
    frame([&three, &four]);
    assert_eq!(send_bytes(&three, b"def"), Ok(3));
    assert_eq!((receive_bytes(&four, &mut got, 0), &got[..3]), (Ok(3), &b"def"[..]));
}

/// A process that has the same memory writes what it likes there, all the time. This one gets errors, or other
/// bytes; it does not end, nor wait for ever.
#[test]
fn whatever_another_process_writes_there_this_one_continues() {
    settle();
    let rounds = telegraphos_testkit::rounds(20, 10_000);
    let seed = telegraphos_testkit::seed_or(1);
    let mut errors = 0;
    for round in rounds {
        let (one, two) = pair();
        frame([&one, &two]);
        let cells: Vec<usize> = [&one, &two].map(|end| std::ptr::from_ref(connection(end).cell) as usize).to_vec();
        let words = size_of::<Cell>() / 8;
        let mut random = telegraphos_testkit::Rng::new(seed.wrapping_add(round) << 8);
        let mut scribble = move |count: u32| {
            for _ in 0..count {
                let at = (cells[random.below(2_usize)] + 8 * random.below(words)) as *mut u64;
                let value = match random.below(6_u32) {
                    0 => random.below(6_u64),
                    1 => 1 << random.below(64_u32),
                    2 => u64::MAX - random.below(3_u64),
                    3 => (ring_bytes() - 4096) as u64,
                    4 => random.below(1 << 20),
                    _ => random.below(u64::MAX),
                };
                // SAFETY: a word of a cell, which is never unmapped.
                unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Relaxed);
            }
        };
        // Most rounds once, before: the others race.
        let writer = (round % 5 == 0).then(|| {
            let mut scribble = scribble.clone();
            child(move || {
                loop {
                    scribble(1);
                }
            })
        });
        let mut got = vec![0; 5000];
        for _ in 0..4 {
            if writer.is_none() {
                scribble(1 + round as u32 % 40);
            }
            let fd = one.as_raw_fd();
            let outcomes = [
                send_bytes(&one, &[7; 3000]),
                receive_bytes(&two, &mut got, libc::MSG_DONTWAIT),
                send_bytes(&two, &[8; 100]),
                receive_bytes(&one, &mut got, libc::MSG_DONTWAIT | libc::MSG_PEEK),
                crate::available(fd).unwrap_or(Ok(0)),
            ];
            errors += outcomes.iter().filter(|outcome| outcome.is_err()).count();
            option_of(fd, libc::SOL_SOCKET, libc::SO_SNDBUF);
            set_option_of(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 5);
            let copy = one.try_clone().unwrap().into_raw_fd();
            duplicated(fd, copy);
            refuse(copy);
            closed(copy);
            kernel::close(copy);
        }
        if let Some(writer) = writer {
            // SAFETY: a child of this process.
            unsafe { libc::kill(writer, libc::SIGKILL) };
            assert_eq!(code(writer), -1);
        }
        [one, two].iter().for_each(|end| closed(end.as_raw_fd()));
    }
    assert!(errors > 0);
}

/// Descriptors that are closed, and used for something else, past the functions that are replaced.
#[test]
fn a_number_that_another_file_has_is_that_file() {
    settle();
    let (one, two) = pair();
    let (_near, mut far) = pair();
    frame([&one, &two]);
    // As by the system calls: the number is one of another connection, and of a pipe.
    let fd = one.as_raw_fd();
    // SAFETY: both are descriptors of this test.
    assert_eq!(unsafe { libc::dup2(_near.as_raw_fd(), fd) }, fd);
    assert_eq!(send_bytes(&one, b"other"), Ok(5));
    assert!(!is_tracked(fd), "left alone from now on");
    let mut got = [0; 16];
    std::io::Read::read_exact(&mut far, &mut got[..5]).unwrap();
    assert_eq!(&got[..5], b"other", "without a code of a frame");
    let fd = two.as_raw_fd();
    let mut pipe = [0; 2];
    // SAFETY: two numbers, and descriptors of this test.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], b"piped".as_ptr().cast(), 5), 5);
        assert_eq!(libc::dup2(pipe[0], fd), fd);
    }
    let parts = [kernel::part_mut(&mut got)];
    // SAFETY: valid bytes.
    let read = unsafe { crate::receive(fd, &parts, 0, || kernel::read_file(fd, None, &mut [0; 16])) };
    assert_eq!((read, is_tracked(fd)), (Ok(5), false), "by the system's own function");
    pipe.into_iter().for_each(kernel::close);
    assert_eq!(option_of(fd, libc::SOL_SOCKET, libc::SO_SNDBUF), None);
}

/// A child that is made by the system call itself has no board, and knows it before it uses one.
#[test]
fn a_child_that_was_made_past_all_functions_is_one() {
    settle();
    let (one, two) = pair();
    frame([&one, &two]);
    let parent = process::id();
    // SAFETY: as `child`.
    let made = match unsafe { libc::syscall(libc::SYS_fork) } {
        0 => {
            let known_before = process::id() == parent;
            let sent = send_bytes(&one, b"of the child");
            let right = known_before && sent == Ok(12) && process::id() == std::process::id();
            // SAFETY: as above.
            unsafe { libc::_exit(if right { 0 } else { 1 }) }
        }
        pid => pid as libc::pid_t,
    };
    assert_eq!(code(made), 0);
    let mut got = [0; 12];
    assert_eq!((receive_bytes(&two, &mut got, 0), &got), (Ok(12), b"of the child"));
    assert_eq!(process::id(), parent);
    assert!(!process::is_unknown_child());
}

extern "C" fn ignore(_: c_int) {}

/// Has SIGUSR1 handled with these flags, and sent to this thread often while `work` runs.
fn with_signals<T>(flags: c_int, work: impl FnOnce() -> T) -> T {
    // SAFETY: a handler that does nothing; the thread waits for the other one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(c_int) as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    // SAFETY: it only names this thread.
    let thread = unsafe { libc::pthread_self() };
    let over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(2));
                // SAFETY: the thread is there until this one has ended.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            }
        });
        let result = work();
        over.store(true, Ordering::SeqCst);
        result
    });
    // SAFETY: no handler from now on.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
    result
}

/// A write that waits is begun again behind a handler with SA_RESTART, and ends at one without; in a child, whose
/// handlers are those of this test alone.
#[test]
fn a_write_that_waits_is_interrupted_as_the_kernel_does_it() {
    settle();
    let child = child(|| {
        for (flags, expected) in [(libc::SA_RESTART, false), (0, true)] {
            let (one, two) = pair();
            frame([&one, &two]);
            let bytes = vec![7; 1 << 20];
            let fd = one.as_raw_fd();
            let parts = [part(&bytes)];
            // SAFETY: valid bytes.
            let send = || unsafe { crate::send(fd, &parts, libc::MSG_NOSIGNAL, || panic!("it is framed")) };
            // It waits once the buffers are full, until that is read.
            let reader = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(300));
                let mut got = vec![0; 64 << 10];
                let mut all = 0;
                while let Ok(bytes @ 1..) = receive_bytes(&two, &mut got, 0) {
                    all += bytes;
                }
                all
            });
            // Many times as much as they hold.
            let mut interrupted = false;
            let sent = with_signals(flags, || {
                let mut sent = 0;
                for _ in 0..16 {
                    match send() {
                        Ok(bytes) => {
                            interrupted |= bytes < 1 << 20;
                            sent += bytes;
                        }
                        Err(errno) => {
                            assert_eq!(errno.0, libc::EINTR);
                            interrupted = true;
                        }
                    }
                }
                sent
            });
            kernel::shut_down(fd);
            assert_eq!(reader.join().unwrap(), sent);
            assert_eq!(interrupted, expected, "flags {flags:#x}");
        }
        0
    });
    assert_eq!(code(child), 0);
}

#[test]
fn a_look_ahead_that_waits_for_all_sees_all() {
    settle();
    let (one, two) = pair();
    frame([&one, &two]);
    let mut got = vec![0; 8000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (length, pause) in [(3000, 50), (4000, 50), (1000, 0)] {
                assert_eq!(send_bytes(&one, &vec![length as u8; length]), Ok(length));
                std::thread::sleep(std::time::Duration::from_millis(pause));
            }
        });
        let all = libc::MSG_PEEK | libc::MSG_WAITALL;
        assert_eq!(receive_bytes(&two, &mut got, all), Ok(8000));
        assert_eq!((got[2999], got[3000], got[7999]), (3000_u16 as u8, 4000_u16 as u8, 1000_u16 as u8));
    });
    assert_eq!(receive_bytes(&two, &mut got, libc::MSG_WAITALL), Ok(8000), "they are there still");
    // One that asks whether there is as much does not wait, and one behind the end has what there is.
    assert_eq!(send_bytes(&one, b"abc"), Ok(3));
    assert_eq!(receive_bytes(&two, &mut got, libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_DONTWAIT), Ok(3));
    kernel::shut_down(one.as_raw_fd());
    assert_eq!(receive_bytes(&two, &mut got, libc::MSG_PEEK | libc::MSG_WAITALL), Ok(3));
}

#[test]
fn a_process_that_is_confined_leaves_connections_alone() {
    settle();
    let child = child(|| {
        let (raw, _far) = pair();
        let (framed, other) = pair();
        frame([&framed, &other]);
        assert!(!changes::is_retired());
        changes::retire("a test");
        assert!(changes::is_retired() && connection(&raw).is_refused());
        assert_eq!(send_bytes(&framed, b"abc"), Ok(3), "what is framed is understood still");
        let mut got = [0; 3];
        assert_eq!(receive_bytes(&other, &mut got, 0), Ok(3));
        0
    });
    assert_eq!(code(child), 0);
}

/// In a child, since a process leaves as a whole.
#[test]
fn a_process_of_another_user_leaves_what_it_shared_and_connections_stay_right_or_end() {
    settle();
    let (raw, far_raw) = pair();
    let (framed, far) = pair();
    frame([&framed, &far]);
    let cells = [&raw, &framed].map(|end| std::ptr::from_ref(connection(end).cell).cast_mut());
    let left = child(|| {
        changes::leave(kernel::users()[1]);
        // Not in common any more.
        for cell in cells {
            // SAFETY: mapped still, as zeros.
            unsafe { cell.cast::<[u64; size_of::<Cell>() / 8]>().write_volatile([u64::MAX; size_of::<Cell>() / 8]) };
        }
        assert!(!is_tracked(raw.as_raw_fd()) && !is_tracked(framed.as_raw_fd()));
        assert_eq!(owned().count(), 0);
        assert_eq!(send_bytes(&raw, b"raw"), Ok(3));
        let mut got = [0; 9];
        assert_eq!(receive_bytes(&framed, &mut got, libc::MSG_DONTWAIT), Err(kernel::Errno(libc::ENOTCONN)));
        assert!(send_bytes(&framed, b"framed").is_err());
        // New ones are looked after, in memory of its own.
        let (new, other) = pair();
        frame([&new, &other]);
        assert_eq!(send_bytes(&new, b"new"), Ok(3));
        assert_eq!(receive_bytes(&other, &mut got, 0), Ok(3));
        0
    });
    assert_eq!(code(left), 0);
    // The others have theirs.
    assert!(connection(&raw).is_refused() && connection(&framed).is_refused());
    let mut got = [0; 9];
    assert_eq!((receive_bytes(&far_raw, &mut got, 0), &got[..3]), (Ok(3), &b"raw"[..]));
    assert_eq!(send_bytes(&framed, b"abc"), Ok(3));
    assert_eq!((receive_bytes(&far, &mut got, 0), &got[..3]), (Ok(3), &b"abc"[..]));
}
