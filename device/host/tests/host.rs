// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards and a fabric in one process, with a test client in the place of each QEMU.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use telegraphos_device::{HibServer, Settings};
use telegraphos_device_client::{ClientError, Guest, MEMORY, Pages, window};
use telegraphos_fabric::control::{ControlClient, Request, Response, Snapshot, Target, default_path};
use telegraphos_fabric::{Config, Fabric};
use telegraphos_host::{Host, HostError, MAX_BOARDS, Serving};
use telegraphos_testkit::{Served, eventually};
use telegraphos_wire::{Rights, Status};

use crate::common::{guest, served};

fn socket(dir: &Path, node: u16) -> PathBuf {
    dir.join(format!("hib{node}.sock"))
}

fn board(dir: &Path, node: u16) -> (u16, HibServer) {
    board_with(dir, node, None)
}

/// With a window for 2^`node_bits` nodes.
fn board_with(dir: &Path, node: u16, node_bits: Option<u8>) -> (u16, HibServer) {
    let settings = Settings {
        socket: Some(socket(dir, node)),
        node: Some(node),
        fabric: Some(dir.join("fabric.sock")),
        node_bits,
        ..Settings::default()
    };
    (node, HibServer::bind(settings.config().unwrap()).unwrap())
}

/// A host process, as a thread of this one.
struct Running {
    host: Served<HostError>,
    dir: tempfile::TempDir,
}

impl Running {
    fn start(nodes: u16, serving: Serving) -> Running {
        Running::with(nodes, serving, |_| {})
    }

    fn with(nodes: u16, serving: Serving, change: impl FnOnce(&mut Config)) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path().join("fabric.sock"));
        change(&mut config);
        let fabric = Fabric::bind(config).unwrap();
        let boards = (0..nodes).map(|node| board(dir.path(), node)).collect();
        let host = served(fabric, boards, Vec::new(), serving);
        Running { dir, host }
    }

    fn guest(&self, node: u16) -> Guest {
        guest(&socket(self.dir.path(), node))
    }

    /// One that was started with [`controlled`].
    fn control(&self) -> ControlClient {
        ControlClient::connect(&default_path(&self.dir.path().join("fabric.sock"))).unwrap()
    }

    /// Stops it and returns its directory.
    fn stop(self) -> tempfile::TempDir {
        self.host.stop().unwrap();
        self.dir
    }
}

/// With a control socket.
fn controlled(config: &mut Config) {
    config.control = Some(default_path(&config.listen));
}

fn snapshot(control: &mut ControlClient) -> Snapshot {
    match control.request(&Request::Statistics {}).unwrap() {
        Response::Statistics(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

/// Until so many rings are in use.
fn come_to(control: &mut ControlClient, rings: u64) {
    eventually("the rings", || (snapshot(control).totals.rings == rings).then_some(()));
}

/// Opens an import, which is also its first window slot.
fn open(guest: &mut Guest, import: u16, pages: &Pages, rights: Rights) {
    // Until its node is known here.
    eventually("the node", || match guest.import(import, pages, rights) {
        Err(ClientError::Failed { status: Status::NodeDown, .. }) => None,
        done => {
            done.unwrap();
            Some(())
        }
    });
}

/// Makes a page of `of` an import of `from`, with the number of its node.
fn import(from: &mut Guest, of: &mut Guest, node: u16) {
    let rights = Rights(Rights::READ.0 | Rights::WRITE.0);
    let pages = of.grant(node, 0, 1, MEMORY, rights).unwrap();
    open(from, node, &pages, rights);
}

/// One thread for all, which sleeps at once or polls before; some boards to each of two beside the fabric's; one to
/// each.
const SERVING: [Serving; 4] = [
    Serving { threads: 1, spin: 0 },
    Serving { threads: 1, spin: 200 },
    Serving { threads: 3, spin: 0 },
    Serving { threads: 4, spin: 50 },
];

#[test]
fn stores_loads_and_quiet_between_boards_of_one_process() {
    SERVING.into_iter().for_each(stores_loads_and_quiet);
}

fn stores_loads_and_quiet(serving: Serving) {
    let host = Running::start(3, serving);
    let mut guests: Vec<Guest> = (0..3).map(|node| host.guest(node)).collect();
    for (from, to) in [(0usize, 1usize), (1, 2), (2, 0)] {
        let mut b = guests.remove(to);
        let a = &mut guests[from - usize::from(from > to)];
        import(a, &mut b, to as u16);
        for n in 0..2000u64 {
            let at = 8 * (n % 512);
            a.client.store(4, window(to as u16, to as u16, at), &(n + 1).to_le_bytes()).unwrap();
        }
        assert_eq!(a.quiet().unwrap(), Status::Ok);
        for word in 0..512u64 {
            let last = 1 + word + 512 * ((1999 - word) / 512);
            assert_eq!(b.load64(MEMORY + 8 * word).unwrap(), last);
            assert_eq!(a.client.read(4, window(to as u16, to as u16, 8 * word), 8).unwrap(), last);
        }
        guests.insert(to, b);
    }
    let dir = host.stop();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_guest_that_goes_ends_no_other() {
    SERVING.into_iter().for_each(a_guest_that_goes);
}

fn a_guest_that_goes(serving: Serving) {
    let host = Running::start(2, serving);
    let (mut a, mut b) = (host.guest(0), host.guest(1));
    import(&mut a, &mut b, 1);
    drop(b);
    eventually("the loss of the other guest", || {
        (a.client.read(4, window(1, 1, 0), 8).unwrap() == u64::MAX).then_some(())
    });
    let mut b = host.guest(1);
    import(&mut b, &mut a, 0);
    b.client.store(4, window(0, 0, 0), &7u64.to_le_bytes()).unwrap();
    assert_eq!(b.quiet().unwrap(), Status::Ok);
    assert_eq!(a.load64(MEMORY).unwrap(), 7);
    host.stop();
}

/// A link that gets faults while it is in use loses nothing by it, has them from then on, and is without them again.
#[test]
fn links_in_memory_have_faults() {
    SERVING.into_iter().for_each(faults_of_links);
}

fn faults_of_links(serving: Serving) {
    const LATENCY: Duration = Duration::from_millis(20);
    let host = Running::with(2, serving, controlled);
    let (mut a, mut b) = (host.guest(0), host.guest(1));
    import(&mut a, &mut b, 1);
    let mut control = host.control();
    let mut set = |faults: &str| {
        control.command(&Request::SetFaults { on: Target::Node(1), faults: faults.parse().unwrap() }).unwrap();
        if !faults.ends_with("=0ms") {
            // Everything meets them from here on.
            come_to(&mut control, 0);
        }
    };
    let mut sent = 0u64;
    let mut round_trip = |a: &mut Guest| {
        let begun = Instant::now();
        for _ in 0..100 {
            sent += 1;
            a.client.store(4, window(1, 1, 0), &sent.to_le_bytes()).unwrap();
        }
        assert_eq!(a.quiet().unwrap(), Status::Ok);
        assert_eq!(b.load64(MEMORY).unwrap(), sent);
        begun.elapsed()
    };
    round_trip(&mut a);
    set("latency=20ms");
    assert!(round_trip(&mut a) >= 2 * LATENCY, "there and back");
    set("latency=0ms");
    round_trip(&mut a);
    // A link that is down breaks, as any connection without loss must; its board comes back.
    set("down");
    eventually("the loss of the node", || (a.client.read(4, window(1, 1, 0), 8).unwrap() == u64::MAX).then_some(()));
    set("latency=0ms");
    b.join().unwrap();
    import(&mut b, &mut a, 0);
    b.client.store(4, window(0, 0, 0), &9u64.to_le_bytes()).unwrap();
    assert_eq!(b.quiet().unwrap(), Status::Ok);
    assert_eq!(a.load64(MEMORY).unwrap(), 9);
    host.stop();
}

/// From memory to memory; where the link has faults as bytes. Several copies are under way at once, and stores.
#[test]
fn copies_between_boards_of_one_process() {
    SERVING.into_iter().for_each(copies_between_boards);
}

fn copies_between_boards(serving: Serving) {
    const PAGES: u16 = 16;
    const LENGTH: u64 = 1 << 19;
    let host = Running::with(2, serving, controlled);
    let (mut a, mut b) = (host.guest(0), host.guest(1));
    let rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::DMA.0);
    let own = a.grant(0, 0, PAGES.into(), MEMORY, rights).unwrap();
    let other = b.grant(1, 0, PAGES.into(), MEMORY, rights).unwrap();
    open(&mut a, 0, &own, rights);
    open(&mut a, PAGES, &other, rights);
    let mut control = host.control();
    for (round, faults) in ["latency=0ms", "latency=1ms", "latency=0ms"].into_iter().enumerate() {
        control.command(&Request::SetFaults { on: Target::Node(1), faults: faults.parse().unwrap() }).unwrap();
        let data: Vec<u8> = (0..LENGTH).map(|n| (n * 7 + n / 253 + round as u64) as u8).collect();
        a.write(MEMORY, &data).unwrap();
        // There in two, one of them not aligned as its source is, while stores go there, too; then back in one.
        let half = LENGTH / 2;
        let first = a.begin_copy(1, [(1, PAGES, 0), (0, 0, 0)], half).unwrap();
        let second = a.begin_copy(2, [(1, PAGES, half + 8), (0, 0, half)], half).unwrap();
        for n in 0..1000u64 {
            a.client.store(4, window(1, PAGES, 2 * LENGTH - 8), &n.to_le_bytes()).unwrap();
        }
        for (slot, cookie) in [(1, first), (2, second)] {
            assert_eq!(eventually("the put", || a.done(slot, cookie).unwrap()), Status::Ok);
        }
        let back = a.begin_copy(3, [(0, 0, LENGTH), (1, PAGES, 8)], LENGTH - 8).unwrap();
        assert_eq!(eventually("the get", || a.done(3, back).unwrap()), Status::Ok);
        assert_eq!(a.quiet().unwrap(), Status::Ok);
        let mut there = vec![0; LENGTH as usize + 8];
        b.read(MEMORY, &mut there).unwrap();
        let (low, high) = there.split_at(half as usize);
        assert!(low == &data[..half as usize] && high[8..] == data[half as usize..], "round {round}");
        let mut returned = vec![0; LENGTH as usize - 8];
        a.read(MEMORY + LENGTH, &mut returned).unwrap();
        assert!(returned == there[8..LENGTH as usize], "round {round}");
        assert_eq!(b.load64(MEMORY + 2 * LENGTH - 8).unwrap(), 999);
    }
    host.stop();
}

/// What the boards of a process exchange passes no switch, unless that is to be seen.
#[test]
fn boards_of_one_process_have_rings() {
    SERVING.into_iter().for_each(rings_between_boards);
}

fn rings_between_boards(serving: Serving) {
    const LENGTH: u64 = 1 << 18;
    let host = Running::with(3, serving, |config| {
        controlled(config);
        // That bounds those in shared memory.
        config.rings = 1;
    });
    let (mut a, mut b) = (host.guest(0), host.guest(1));
    let rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::DMA.0);
    let own = a.grant(0, 0, 16, MEMORY, rights).unwrap();
    let other = b.grant(1, 0, 16, MEMORY, rights).unwrap();
    open(&mut a, 0, &own, rights);
    open(&mut a, 16, &other, rights);
    let mut control = host.control();
    // All packets, and those of them that have passed the switch.
    let received = |control: &mut ControlClient| -> (u64, u64) {
        let Snapshot { ports, totals, .. } = snapshot(control);
        let all = ports.iter().flat_map(|port| port.classes.iter()).map(|(_, class)| class.received.packets).sum();
        (all, all - totals.ring_packets)
    };
    let mut round = 0u64;
    // Stores, loads, and a copy there and back: the packets meanwhile, and those by the switch.
    let mut exchange = |control: &mut ControlClient| {
        round += 1;
        let before = received(control);
        // To two pages in turn, so that each is a packet.
        for n in 0..100u64 {
            a.client.store(4, window(1, 16 + n as u16 % 2, 8 * n), &(n + round).to_le_bytes()).unwrap();
        }
        assert_eq!(a.client.read(4, window(1, 17, 8 * 99), 8).unwrap(), 99 + round);
        let data: Vec<u8> = (0..LENGTH).map(|n| (n * 7 + n / 253 + round) as u8).collect();
        a.write(MEMORY, &data).unwrap();
        let put = a.begin_copy(1, [(1, 16, 8), (0, 0, 0)], LENGTH).unwrap();
        assert_eq!(eventually("the put", || a.done(1, put).unwrap()), Status::Ok);
        let get = a.begin_copy(1, [(0, 0, LENGTH), (1, 16, 8)], LENGTH).unwrap();
        assert_eq!(eventually("the get", || a.done(1, get).unwrap()), Status::Ok);
        let mut returned = vec![0; LENGTH as usize];
        a.read(MEMORY + LENGTH, &mut returned).unwrap();
        assert!(returned == data, "round {round}");
        let (all, by_switch) = received(control);
        assert!(all - before.0 > 100, "{all} packets, {before:?} before");
        by_switch - before.1
    };
    come_to(&mut control, 3);
    // The first request may have met one that was not answered.
    exchange(&mut control);
    assert_eq!((0..5).map(|_| exchange(&mut control)).sum::<u64>(), 0);
    let file = host.dir.path().join("capture.pcapng").display().to_string();
    control.command(&Request::CaptureStart { file, on: Target::All }).unwrap();
    come_to(&mut control, 0);
    assert!(exchange(&mut control) > 100);
    control.command(&Request::CaptureStop {}).unwrap();
    come_to(&mut control, 3);
    exchange(&mut control);
    assert_eq!(exchange(&mut control), 0);
    // A reset ends the ring, and the next incarnation has another one.
    let mut b = {
        drop(b);
        host.guest(1)
    };
    come_to(&mut control, 3);
    open(&mut b, 0, &own, rights);
    eventually("the ring after a reset", || {
        let (_, before) = received(&mut control);
        b.client.store(4, window(0, 0, 0), &9u64.to_le_bytes()).unwrap();
        assert_eq!(b.quiet().unwrap(), Status::Ok);
        (received(&mut control).1 == before).then_some(())
    });
    assert_eq!((a.load64(MEMORY).unwrap(), snapshot(&mut control).totals.rings_lost), (9, 0));
    host.stop();
}

#[test]
fn a_board_of_another_process_joins() {
    SERVING.into_iter().for_each(another_process_joins);
}

fn another_process_joins(serving: Serving) {
    let host = Running::start(1, serving);
    let (node, mut other) = board(host.dir.path(), 1);
    let stop = other.shutdown_handle();
    let other = Served::start(move || stop.shut_down(), move || other.run());
    let (mut a, mut b) = (host.guest(0), host.guest(node));
    import(&mut a, &mut b, node);
    a.client.store(4, window(1, 1, 0), &9u64.to_le_bytes()).unwrap();
    assert_eq!(a.quiet().unwrap(), Status::Ok);
    assert_eq!(b.load64(MEMORY).unwrap(), 9);
    other.stop().unwrap();
    host.stop();
}

/// Whichever thread serves it: a board that the fabric refuses ends alone, and is the process's failure at its end.
#[test]
fn a_refused_board_ends_alone_and_is_named() {
    SERVING.into_iter().for_each(refused_board);
}

fn refused_board(serving: Serving) {
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::bind(Config { nodes: 2, ..Config::new(dir.path().join("fabric.sock")) }).unwrap();
    let host = served(fabric, [0, 1, 5].map(|node| board(dir.path(), node)).into(), Vec::new(), serving);
    // Its socket goes with it, so a QEMU that comes later is refused.
    eventually("the end of the board", || (!socket(dir.path(), 5).exists()).then_some(()));
    let [mut a, mut b] = [0, 1].map(|node| guest(&socket(dir.path(), node)));
    import(&mut a, &mut b, 1);
    a.client.store(4, window(1, 1, 0), &9u64.to_le_bytes()).unwrap();
    assert_eq!(a.quiet().unwrap(), Status::Ok);
    assert_eq!(b.load64(MEMORY).unwrap(), 9);
    let error = host.stop().unwrap_err().to_string();
    for part in ["the board of node 5", "outside the cluster of 2 nodes", "--nodes"] {
        assert!(error.contains(part), "{error}");
    }
}

/// With the last board the process ends, which nothing else would notice.
#[test]
fn a_process_whose_only_board_is_refused_ends() {
    for serving in SERVING {
        let dir = tempfile::tempdir().unwrap();
        let fabric = Fabric::bind(Config { nodes: 2, ..Config::new(dir.path().join("fabric.sock")) }).unwrap();
        let error = Host::with(fabric, vec![board(dir.path(), 5)], Vec::new(), serving).unwrap().run().unwrap_err();
        assert!(error.to_string().contains("the board of node 5"), "{error}");
    }
}

#[test]
fn too_many_boards_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::bind(Config::new(dir.path().join("fabric.sock"))).unwrap();
    let boards = (0..=MAX_BOARDS as u16).map(|node| board_with(dir.path(), node, Some(7))).collect();
    let error = Host::new(fabric, boards).err().unwrap().to_string();
    assert!(error.contains("65 boards") && error.contains("at most 64"), "{error}");
}
