// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards joined by a real fabric: stores of one guest reach another, and parts that fail.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::crate_server::CrateServer;
use crate::support::linked::{Node, Pair, Switch, is_linked, joined};
use crate::support::{self, Guest, MEMORY, RW, window};
use telegraphos_device::Settings;
use telegraphos_testkit::{Daemon, eventually};
use telegraphos_wire::admin::{Command, QueueCommand, ReplicaCommand};
use telegraphos_wire::link::Frame;
use telegraphos_wire::queue::{HeaderWord, Shape};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Rights, STREAM_BLOCK, Status, admin};

const READ: u16 = Rights::READ.0;

/// Two boards, of which the guest of the first has imported memory of the second.
fn one_reaches_the_other() -> Pair {
    let mut pair = Pair::start();
    pair.b.export("b", 0, 1, MEMORY, RW);
    pair.a.reach(0, 1, "b", RW);
    pair
}

fn both_ways(a: &mut Guest, node_a: u16, b: &mut Guest, node_b: u16) {
    a.export("a", 0, 2, MEMORY, RW);
    b.export("b", 0, 2, MEMORY, RW);
    a.reach(0, node_b, "b", RW);
    b.reach(0, node_a, "a", RW);
    one_way(a, b, node_b);
    one_way(b, a, node_a);
}

/// Through import 0 of `from` into what `to` exports.
fn one_way(from: &mut Guest, to: &Guest, node: u16) {
    for (n, size) in [1usize, 2, 4, 8].into_iter().enumerate() {
        // Up to the last word of the last page.
        let offset = 0x1_fff8 - 0x1000 * n as u64;
        let value = 0x0102_0304_0506_0708u64 * (n as u64 + 1);
        from.client.store(4, window(node, 0, offset), &value.to_le_bytes()[..size]);
        assert_eq!(from.quiet(), Status::Ok);
        assert_eq!(to.peek::<8>(MEMORY + offset)[..size], value.to_le_bytes()[..size]);
        to.poke(MEMORY + offset, &(!value).to_le_bytes());
        let expected = !value & (u64::MAX >> (64 - 8 * size));
        assert_eq!(from.client.read(4, window(node, 0, offset), size as u32), expected);
    }
}

#[test]
fn e19_stores_and_loads_cross_both_ways_and_quiet_waits_for_them() {
    let mut pair = Pair::start();
    both_ways(&mut pair.a, 0, &mut pair.b, 1);
}

/// A board that is not scheduled for a while finds more posted stores than its reserve takes, and the network is slower
/// than its guest. It accepts them at the network's pace: none is lost, the order is kept, and a load behind them is
/// answered in time.
#[test]
fn i8_a_board_that_was_not_scheduled_takes_its_backlog_in_at_the_networks_pace() {
    use rustix::process::{Pid, Signal, kill_process};
    const STORES: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let _switch = Switch::start(dir.path());
    let n1 = Node::start(dir.path(), 1, Settings::default());
    let mut b = n1.guest();
    b.export("a", 0, 2, MEMORY, RW);
    let socket = dir.path().join("hib0.sock");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_telegraphos-hib"));
    command.current_dir(dir.path()).args(["--socket", "hib0.sock", "--node", "0", "--fabric", "fabric.sock"]);
    // The load behind the backlog has its share of the time: the pause is as long as it can be.
    command.args(["--reserve", "4096", "--load-limit-ms", "500"]);
    let child = Daemon::start(command.stdout(std::process::Stdio::null()));
    eventually("the socket", || UnixStream::connect(&socket).ok());
    let mut a = joined(&socket);
    a.reach(0, 1, "a", RW);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    let resume = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        kill_process(pid, Signal::CONT).unwrap();
    });
    a.client.store_all(4, (0..STORES).map(|n| (window(1, 0, 8 * (n % 8192)), 1 + n))).unwrap();
    let last = window(1, 0, 8 * ((STORES - 1) % 8192));
    assert_eq!(a.client.read(4, last, 8), STORES, "a load behind them");
    resume.join().unwrap();
    assert_eq!(a.quiet(), Status::Ok, "none is lost");
    assert_eq!(b.peek64(MEMORY + 8 * ((STORES - 1) % 8192)), STORES);
}

/// Three boards with copies of one page, over the switch that copies what the home sends: every store, made anywhere,
/// is at all copies when quiet is done (SPEC items 23 to 25, E19). The switch would disconnect a home that multicasts
/// to a group it has not announced.
#[test]
fn e19_stores_to_a_replicated_page_reach_every_copy() {
    let dir = tempfile::tempdir().unwrap();
    let _switch = Switch::start(dir.path());
    let nodes: Vec<Node> = (0..3).map(|node| Node::start(dir.path(), node, Settings::default())).collect();
    let mut guests: Vec<Guest> = nodes.iter().map(Node::guest).collect();
    for (node, guest) in guests.iter_mut().enumerate() {
        guest.export("page", 0, 1, MEMORY, RW);
        guest.reach(0, node as u16, "page", RW);
        let home = guest.find(0, "page", RW);
        let set = ReplicaCommand {
            opcode: admin::REPLICA_SET,
            page: 0,
            mode: admin::COUNTERS,
            node: 0,
            home_page: home.index,
            home_generation: home.generation,
            ..ReplicaCommand::default()
        };
        guest.admin_ok(set.into());
    }
    for value in 1..=300u64 {
        let node = (value % 3) as usize;
        let offset = (value * 0x98) & 0xfff8;
        guests[node].client.store(4, window(node as u16, 0, offset), &value.to_le_bytes());
        if value % 10 == 0 {
            assert_eq!(guests[node].quiet(), Status::Ok);
            for guest in &guests {
                assert_eq!(guest.peek64(MEMORY + offset), value);
            }
        }
    }
    for guest in &mut guests {
        assert_eq!(guest.quiet(), Status::Ok);
    }
    let page = |n: usize| guests[n].peek::<0x1_0000>(MEMORY);
    assert!(page(0) == page(1) && page(0) == page(2), "the copies differ");
    // A copy's node leaves: no node waits for it, and the other still receives everything.
    drop(guests.pop());
    let mut nodes = nodes;
    drop(nodes.pop());
    for value in 1000..1100u64 {
        guests[0].client.store(4, window(0, 0, 8), &value.to_le_bytes());
    }
    assert_eq!(guests[0].quiet(), Status::Ok);
    assert_eq!(guests[1].peek64(MEMORY + 8), 1099);
}

/// Frames that only a HIB sends, and invalid groups, end the link; the board reconnects.
#[test]
fn a_fabric_that_names_groups_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("fabric.sock")).unwrap();
    let _node = Node::start(dir.path(), 0, Settings::default());
    for members in [vec![1, 2], vec![2, 1]] {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        Frame::Welcome { incarnation: 0x1000, nodes: 64, credits: [8; 4] }.encode(&mut bytes);
        Frame::Group { page: 1, members }.encode(&mut bytes);
        stream.write_all(&bytes).unwrap();
        let mut said = Vec::new();
        // However the stream ends, earlier messages arrive.
        let _ = stream.read_to_end(&mut said);
        assert!(matches!(Frame::decode(&said), Ok(Some((Frame::Hello { node: 0, .. }, _)))));
    }
    listener.accept().unwrap();
}

#[test]
fn the_crates_server_serves_the_same_board() {
    let dir = tempfile::tempdir().unwrap();
    let _switch = Switch::start(dir.path());
    let n0 = CrateServer::start(Node::config(dir.path(), 0, Settings::default()));
    let n1 = Node::start(dir.path(), 1, Settings::default());
    let (mut a, mut b) = (joined(&n0.socket), n1.guest());
    both_ways(&mut a, 0, &mut b, 1);
    // The next QEMU is served, too, and a message that makes the crate panic costs only its connection.
    drop(a);
    let mut rude = support::RawClient::connect(&n0.socket);
    let mut short = rude.message(1, 0, &[]);
    short.truncate(16);
    rude.send(&short, &[]).unwrap();
    drop(rude);
    let mut a = joined(&n0.socket);
    a.reach(0, 1, "b", RW);
    a.client.store(4, window(1, 0, 0), &[9; 8]);
    assert_eq!(a.quiet(), Status::Ok);
    assert_eq!(b.peek::<8>(MEMORY), [9; 8]);
}

#[test]
fn i8_a_hundred_thousand_stores_arrive_once_and_in_order() {
    let Pair { mut a, mut b, nodes: _nodes, switch: _switch, dir: _dir } = one_reaches_the_other();
    // A counter word and, before it, a data word: a reader of count n reads data n or later.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (b, stop) = (&b, &stop);
        let receiver = scope.spawn(move || {
            let (mut last, mut looks) = (0, 0u64);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let count = b.peek64(MEMORY + 8);
                let data = b.peek64(MEMORY);
                assert!(count >= last, "the counter went back: {count} after {last}");
                assert!(data >= count, "count {count} overtook its data {data}");
                last = count;
                looks += 1;
            }
            looks
        });
        for n in 1..=50_000u64 {
            a.client.store(4, window(1, 0, 0), &n.to_le_bytes());
            a.client.store(4, window(1, 0, 8), &n.to_le_bytes());
        }
        let status = a.quiet();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(receiver.join().unwrap() > 0);
        assert_eq!(status, Status::Ok);
    });
    assert_eq!((b.peek64(MEMORY), b.peek64(MEMORY + 8)), (50_000, 50_000));
    assert_eq!(b.client.register(Register::CountServed), 100_000 + 1, "each once, and the lookup");
    assert_eq!(a.client.register(Register::CountDropped), 0);
}

/// Makes 32 or 64 bit words at `address` a queue of 8 words.
fn queue(guest: &mut Guest, name: &str, page: u32, address: u64, width: u32) {
    let shape = Shape::new(8, width).unwrap();
    let width = u64::from(shape.width());
    for word in [0, 1] {
        guest.poke(address + word * width, &u64::from(shape.empty().encode()).to_le_bytes()[..width as usize]);
    }
    let set = QueueCommand {
        opcode: admin::QUEUE_SET,
        page,
        words: 8,
        width: shape.width().into(),
        address,
        nodes: [u64::MAX; 4],
        ..QueueCommand::default()
    };
    let generation = guest.admin_ok(set.into()).generation;
    guest.admin_ok(Command {
        opcode: admin::SEGMENT_PUBLISH,
        index: page,
        count: 1,
        length: shape.bytes(),
        generation,
        rights_owner: Rights::ENQUEUE.0,
        rights_others: Rights::ENQUEUE.0,
        name: support::named(name),
        ..Command::default()
    });
}

/// Two nodes enqueue 3000 elements each to a queue of 8 words, which overflows all the time; its owner is the second.
#[test]
fn i9_i10_elements_of_two_nodes_overflow_a_queue_and_none_is_lost() {
    const EACH: u32 = 3000;
    let Pair { mut a, mut b, nodes: _nodes, switch: _switch, dir: _dir } = Pair::start();
    for width in [4u32, 8] {
        let (name, page, wide) = (format!("q{width}"), 4 + width, u64::from(width));
        let base = MEMORY + u64::from(width) * 0x1_0000;
        queue(&mut b, &name, page, base, width);
        let enqueue = (2 << 32) + window(1, width as u16, 0);
        for guest in [&mut a, &mut b] {
            let queue = guest.reach(width as u16, 1, &name, Rights::ENQUEUE.0);
            assert_eq!(queue.width, width);
        }
        let overflows_before = b.client.register(Register::CountOverflows);
        let (mut sent, mut handled, mut out) = (0, overflows_before, Vec::new());
        let index = |guest: &Guest, word: u64| {
            let value = u32::from_le_bytes(guest.peek(base + word * wide));
            HeaderWord::decode(value).unwrap_or_else(|| panic!("word {word} is {value:#x}"))
        };
        while out.len() < 2 * EACH as usize {
            for _ in 0..20 {
                if sent < EACH {
                    sent += 1;
                    let (of_a, of_b) = (u64::from(1 << 16 | sent), u64::from(2 << 16 | sent));
                    a.client.store(4, enqueue, &of_a.to_le_bytes()[..width as usize]);
                    b.client.store(4, enqueue, &of_b.to_le_bytes()[..width as usize]);
                }
            }
            let stopped = b.client.register(Register::CountOverflows) > handled;
            let (tail, mut head) = (index(&b, 0), index(&b, 1));
            while head != tail {
                out.push(u32::from_le_bytes(b.peek(base + u64::from(head.index) * wide)));
                head = head.advanced();
            }
            if stopped {
                head.index = 3;
            }
            b.poke(base + wide, &u64::from(head.encode()).to_le_bytes()[..width as usize]);
            if stopped {
                b.admin_ok(Command { opcode: admin::QUEUE_RESUME, index: page, ..Command::default() });
                handled += 1;
            }
        }
        for sender in [1, 2] {
            let of_it: Vec<u32> = out.iter().filter(|v| **v >> 16 == sender).map(|v| v & 0xffff).collect();
            assert_eq!(of_it, (1..=EACH).collect::<Vec<_>>(), "width {width}, sender {sender}");
        }
        assert!(
            handled > overflows_before + 100,
            "{} overflows are too few to show anything",
            handled - overflows_before
        );
        assert_eq!((a.quiet(), b.quiet()), (Status::Ok, Status::Ok));
    }
}

#[test]
fn i13_two_nodes_that_load_from_each_other_both_progress() {
    let Pair { mut a, mut b, nodes: _nodes, switch: _switch, dir: _dir } = Pair::start();
    a.export("a", 0, 1, MEMORY, RW);
    b.export("b", 0, 1, MEMORY, RW);
    a.reach(0, 1, "b", RW);
    b.reach(0, 0, "a", RW);
    a.poke(MEMORY, &[0xaa; 8]);
    b.poke(MEMORY, &[0xbb; 8]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5000 {
                assert_eq!(a.client.read(4, window(1, 0, 0), 8), 0xbbbb_bbbb_bbbb_bbbb);
            }
        });
        scope.spawn(|| {
            for _ in 0..5000 {
                assert_eq!(b.client.read(4, window(0, 0, 0), 8), 0xaaaa_aaaa_aaaa_aaaa);
            }
        });
    });
}

#[test]
fn what_is_not_granted_is_refused_and_told() {
    let Pair { mut a, mut b, nodes: _nodes, switch: _switch, dir: _dir } = Pair::start();
    b.export("read-only", 0, 1, MEMORY, READ);
    let answer = a.find(1, "read-only", READ);
    assert_eq!(a.lookup(1, "read-only", RW).status, Status::Denied as u32);
    assert_eq!(a.lookup(1, "nothing", READ).status, Status::NoSegment as u32);
    assert_eq!(a.lookup(7, "absent", READ).status, Status::NodeDown as u32);
    // A driver that claims a right that was not granted.
    a.import(0, 1, &answer, RW);
    a.client.store(4, window(1, 0, 0), &[1; 8]);
    assert_eq!(a.quiet(), Status::Rights);
    assert_eq!(b.peek64(MEMORY), 0);
    assert!(b.client.register(Register::CountRefused) >= 1);
    // An old generation.
    let stale = admin::Completion { generation: answer.generation - 1, ..answer };
    a.import(1, 1, &stale, READ);
    assert_eq!(a.client.read(4, window(1, 1, 0), 8), u64::MAX);
}

#[test]
fn a_node_that_goes_is_noticed_and_its_return_too() {
    let dir = tempfile::tempdir().unwrap();
    let _switch = Switch::start(dir.path());
    let n0 = Node::start(dir.path(), 0, Settings::default());
    let mut a = n0.guest();
    for round in 0..3u64 {
        let n1 = Node::start(dir.path(), 1, Settings::default());
        let mut b = n1.guest();
        b.export("b", 0, 1, MEMORY, RW);
        let import = round as u16;
        a.reach(import, 1, "b", RW);
        a.client.store(4, window(1, import, 0), &round.to_le_bytes());
        assert_eq!(a.client.read(4, window(1, import, 0), 8), round);
        drop((b, n1));
        eventually("all-ones from a node that has gone", || {
            (a.client.read(4, window(1, import, 0), 8) == u64::MAX).then_some(())
        });
    }
}

#[test]
fn a_peer_that_stores_while_its_target_reboots_does_not_touch_the_new_life() {
    let Pair { mut a, mut b, nodes: _nodes, switch: _switch, dir: _dir } = one_reaches_the_other();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (a, stop) = (&mut a, &stop);
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for n in 0..64 {
                    a.client.store(4, window(1, 0, 8 * n), &[0xff; 8]);
                }
                // Not faster than they are accepted: this process owns the socket buffers.
                a.client.register(Register::StatusBits);
            }
        });
        eventually("the first store", || (b.peek64(MEMORY) != 0).then_some(()));
        for _ in 0..20 {
            assert_eq!(b.client.call(13, &[]).errno(), None);
            b.poke(MEMORY, &[0; 512]);
            b.program();
            b.open_context(0);
            // The new incarnation uses the same export page for other memory.
            b.export("other", 0, 1, MEMORY + 0x2_0000, RW);
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert_eq!(b.peek::<512>(MEMORY), [0; 512]);
            assert_eq!(b.peek::<512>(MEMORY + 0x2_0000), [0; 512]);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_fabric_that_goes_and_comes_back_is_joined_again() {
    let Pair { mut a, mut b, nodes: _nodes, switch, dir } = one_reaches_the_other();
    assert_eq!(a.client.read(4, window(1, 0, 0), 8), 0);
    drop(switch);
    eventually("loss of the link", || (!is_linked(&mut a)).then_some(()));
    assert_eq!(a.client.read(4, window(1, 0, 0), 8), u64::MAX);
    let _switch = Switch::start(dir.path());
    for guest in [&mut a, &mut b] {
        eventually("the link", || is_linked(guest).then_some(()));
    }
    // The segment survived its fabric; the old import did not.
    a.reach(1, 1, "b", RW);
    a.client.store(4, window(1, 1, 0), &[5; 8]);
    assert_eq!(a.client.read(4, window(1, 1, 0), 8), 0x0505_0505_0505_0505);
    assert_eq!(a.client.read(4, window(1, 0, 0), 8), u64::MAX);
}

/// Board 0 with the test in the place of its fabric, which has let it join and has announced node 1.
fn at_the_test(settings: Settings) -> (tempfile::TempDir, Node, UnixStream) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("fabric.sock")).unwrap();
    let node = Node::start(dir.path(), 0, settings);
    let (mut fabric, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    Frame::Welcome { incarnation: 0x1000, nodes: 64, credits: [256; 4] }.encode(&mut bytes);
    Frame::NodeUp { node: 1, incarnation: 0x2000, block: STREAM_BLOCK as u32 }.encode(&mut bytes);
    fabric.write_all(&bytes).unwrap();
    (dir, node, fabric)
}

#[test]
fn an_unanswered_load_is_all_ones_in_time() {
    // What it sends to the fabric is discarded.
    let (_dir, n0, _fabric) = at_the_test(Settings { load_limit_ms: Some(50), ..Settings::default() });
    let mut a = n0.guest();
    let segment = admin::Completion { generation: 1, count: 1, length: 0x1_0000, ..Default::default() };
    a.import(0, 1, &segment, RW);
    let (read, status) = (a.client.read(4, window(1, 0, 8), 4), a.quiet());
    assert_eq!(read, 0xffff_ffff);
    assert_eq!(status, Status::Timeout);
}

/// What comes together is performed in one turn, and acknowledged by one packet instead of one for each store.
#[test]
fn stores_that_come_together_are_acknowledged_by_one_packet() {
    use telegraphos_wire::{Body, ImportEpoch, Packet, RemoteAddr};
    const STORES: u64 = 64;
    let (_dir, node, mut fabric) = at_the_test(Settings::default());
    fabric.set_read_timeout(Some(telegraphos_testkit::PATIENCE)).unwrap();
    let mut a = node.guest();
    let generation = a.export("a", 0, 1, MEMORY, RW);
    let packet = |n: u64| {
        let at = RemoteAddr { page: 0, offset: 8 * n as u32, generation };
        let body = Body::Write { at, context: 0, epoch: ImportEpoch::default(), size: 8, data: n + 1 };
        Packet { src: 1, dst: 0, tag: n as u32, incarnation: 0x2000, target: 0x1000, body }
    };
    let mut bytes = Vec::new();
    for n in 0..STORES {
        Frame::Packet(packet(n)).encode(&mut bytes);
    }
    fabric.write_all(&bytes).unwrap();
    let (mut said, mut answered, mut packets) = (Vec::new(), Vec::new(), 0);
    while (answered.len() as u64) < STORES {
        let mut piece = [0; 4096];
        let length = fabric.read(&mut piece).unwrap();
        assert!(length > 0, "the board has left after {answered:?}");
        said.extend_from_slice(&piece[..length]);
        while let Some((frame, length)) = Frame::decode(&said).unwrap() {
            said.drain(..length);
            let Frame::Packet(reply) = frame else { continue };
            packets += 1;
            match reply.body {
                Body::WriteAcks { tags } => answered.extend(tags.within(reply.tag)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((packets, answered), (1, (0..STORES as u32).collect()));
    assert!((0..STORES).all(|n| a.peek64(MEMORY + 8 * n) == n + 1));
}

#[test]
fn a_taken_node_id_and_another_window_are_refused_with_both_values() {
    let dir = tempfile::tempdir().unwrap();
    let config = telegraphos_fabric::Config::new(dir.path().join("fabric.sock"));
    let _switch = Switch::with(telegraphos_fabric::Config { nodes: 3, ..config });
    let n0 = Node::start(dir.path(), 0, Settings::default());
    let _guest = n0.guest();
    let second = |node: u16, name: &str, settings: Settings| {
        let settings = Settings { socket: Some(dir.path().join(name)), ..settings };
        Node::start(dir.path(), node, settings).ended().unwrap_err().to_string()
    };
    let taken = second(0, "second.sock", Settings::default());
    assert!(taken.contains("node 0") && taken.contains("--node"), "{taken}");
    let bits = second(1, "bits.sock", Settings { node_bits: Some(7), ..Settings::default() });
    assert!(bits.contains("7 node bits") && bits.contains('6') && bits.contains("--node-bits"), "{bits}");
    let offset = second(1, "offset.sock", Settings { offset_bits: Some(20), ..Settings::default() });
    assert!(offset.contains("20 offset bits") && offset.contains("26"), "{offset}");
    let range = second(5, "range.sock", Settings::default());
    assert!(range.contains("node 5") && range.contains("below 3"), "{range}");
}
