// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory devices of a trust group, with independent vfio-user clients in the place of QEMUs.

use std::fs::File;
use std::path::Path;

use telegraphos_device::direct::{GroupMemory, MemoryServer, memory_socket};
use telegraphos_device::memory::GuestMemory;
use telegraphos_device::vfio::message::{DmaMap, command, dma_map};
use telegraphos_device::{HibServer, Settings};
use telegraphos_device_client::{Client as BoardClient, Guest, MEMORY, window};
use telegraphos_device_core::{Step, StepResult};
use telegraphos_fabric::control::{ControlClient, Request, Target, default_path};
use telegraphos_fabric::{Config, Fabric};
use telegraphos_host::{HostError, Serving};
use telegraphos_testkit::{Served, eventually};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Rights, Status, UNIT, direct, event};
use vfio_user::Client;

use crate::common::{guest, served};

const SLICE: u64 = 1 << 20;

/// A host process of nodes 0 to 2, of which 0 and 2 are in group "lab", as a thread of this one.
struct Running {
    _host: Served<HostError>,
    dir: tempfile::TempDir,
}

/// The boards of half of the tests have threads of their own.
fn start(threads: usize) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path().join("fabric.sock"));
    config.control = Some(default_path(&config.listen));
    let fabric = Fabric::bind(config).unwrap();
    let lab = GroupMemory::create("lab=0,2:1".parse().unwrap()).unwrap();
    let (mut boards, mut memories) = (Vec::new(), Vec::new());
    for node in 0..3u16 {
        let socket = dir.path().join(format!("hib{node}"));
        let settings = Settings { socket: Some(socket.clone()), node: Some(node), ..Settings::default() };
        let fabric = Some(dir.path().join("fabric.sock"));
        let mut config = Settings { fabric, ..settings }.config().unwrap();
        config.direct = lab.member(node);
        memories.extend(lab.member(node).map(|_| {
            let member = config.direct.clone().unwrap();
            MemoryServer::bind(&memory_socket(&socket), member, None).unwrap()
        }));
        boards.push((node, HibServer::bind(config).unwrap()));
    }
    Running { _host: served(fabric, boards, memories, Serving { threads, spin: 0 }), dir }
}

impl Running {
    fn memory(&self, node: u16) -> Memory {
        Memory::open(&memory_socket(&self.dir.path().join(format!("hib{node}"))))
    }

    fn guest(&self, node: u16) -> Guest {
        guest(&self.dir.path().join(format!("hib{node}")))
    }
}

/// A memory device with its BAR2 mapped, as QEMU has it.
struct Memory {
    client: Client,
    bar: GuestMemory,
}

impl Memory {
    fn open(socket: &Path) -> Memory {
        let client = Client::new(socket).unwrap();
        let region = client.region(2).unwrap();
        let (file, size) = (region.file_offset.as_ref().unwrap(), region.size);
        assert_eq!((region.flags, size, file.start()), (7, 2 * SLICE, 0), "readable, writable, mappable");
        let fd: File = file.file().try_clone().unwrap();
        let mut bar = GuestMemory::default();
        let flags = dma_map::READ | dma_map::WRITE;
        bar.map(&DmaMap { argsz: 32, flags, offset: 0, address: 0, size }, Some(fd.into())).unwrap();
        Memory { client, bar }
    }

    fn register(&mut self, offset: u64, size: usize) -> u64 {
        let mut bytes = [0; 8];
        self.client.region_read(0, offset, &mut bytes[..size]).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn load(&self, address: u64) -> u64 {
        match self.bar.perform(&Step::Load { address, size: 8 }) {
            StepResult::Loaded(value) => value,
            other => panic!("{other:?}"),
        }
    }

    fn store(&self, address: u64, data: u64) {
        assert_eq!(self.bar.perform(&Step::Store { address, size: 8, data }), StepResult::Stored);
    }
}

#[test]
fn members_see_each_others_bytes() {
    let host = start(1);
    let (mut a, mut b) = (host.memory(0), host.memory(2));
    for (memory, node, place) in [(&mut a, 0, 0), (&mut b, 2, 1)] {
        assert_eq!(memory.register(direct::MAGIC, 8), direct::MAGIC_VALUE);
        assert_eq!(memory.register(direct::NODE, 4), node);
        assert_eq!(memory.register(direct::PLACE, 4), place);
        assert_eq!(memory.register(direct::PRESENT, 8), 3);
        assert_eq!(memory.register(direct::MEMBER_NODES + 4, 4), 2);
    }
    a.store(SLICE + UNIT, 7);
    assert_eq!(b.load(SLICE + UNIT), 7);
    b.store(0, 8);
    assert_eq!(a.load(0), 8);
    // What a client does not map is served by messages.
    let mut bytes = [0; 8];
    a.client.region_read(2, SLICE + UNIT, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 7);
    a.client.region_write(2, SLICE + UNIT, &9u64.to_le_bytes()).unwrap();
    assert_eq!(b.load(SLICE + UNIT), 9);
}

#[test]
fn a_board_reaches_its_own_slice_and_no_other() {
    let host = start(4);
    let mut memory = host.memory(0);
    let (mut importer, mut owner, mut outsider) = (host.guest(0), host.guest(2), host.guest(1));
    let pair = owner.client.register(Register::DirectPair).unwrap();
    assert_eq!(host.memory(2).register(direct::PAIR, 8), pair);
    assert_ne!(pair, importer.client.register(Register::DirectPair).unwrap());
    assert_eq!(outsider.client.register(Register::DirectPair).unwrap(), 0, "it is in no group");
    let rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);
    let mut page = 0;
    let mut stored = |owner: &mut Guest, node: u16, address: u64, value: u64| {
        let pages = owner.grant(node, page, 1, address, rights).unwrap();
        importer.import(page as u16, &pages, rights).unwrap();
        importer.client.store(4, window(node, page as u16, 8), &value.to_le_bytes()).unwrap();
        let quiet = importer.quiet().unwrap();
        // Its error is that of no other import.
        importer.close_import(page as u16).unwrap();
        page += 1;
        quiet
    };
    assert_eq!(stored(&mut owner, 2, direct::ADDRESS + SLICE + UNIT, 5), Status::Ok);
    assert_eq!(memory.load(SLICE + UNIT + 8), 5);
    assert_eq!(stored(&mut owner, 2, direct::ADDRESS + UNIT, 6), Status::MemoryFault, "another's slice");
    assert_eq!(stored(&mut outsider, 1, direct::ADDRESS + UNIT, 6), Status::MemoryFault, "in no group");
    assert_eq!(memory.load(UNIT + 8), 0);
    // Ordinary memory is as it was.
    assert_eq!(stored(&mut owner, 2, MEMORY, 6), Status::Ok);
    assert_eq!(owner.load64(MEMORY + 8).unwrap(), 6);
    assert_eq!(memory.register(direct::PLACE, 4), 0);
}

#[test]
fn what_a_guest_leaves_behind_is_removed() {
    let host = start(4);
    let (mut a, b) = (host.memory(0), host.memory(2));
    b.store(SLICE + 64, 1);
    b.store(64, 2);
    // A second client is turned away.
    let socket = memory_socket(&host.dir.path().join("hib2"));
    assert!(BoardClient::new(&socket).is_err());
    drop(b);
    eventually("the end of the other guest", || (a.register(direct::PRESENT, 8) == 1).then_some(()));
    assert_eq!((a.load(SLICE + 64), a.load(64)), (0, 2));
    let b = host.memory(2);
    assert_eq!(a.register(direct::PRESENT, 8), 3);
    b.store(SLICE + 64, 3);
    assert_eq!(a.load(SLICE + 64), 3);
}

/// While something is wrong with the link of a member, or all is captured, guests are notified to use the boards.
#[test]
fn faults_and_captures_are_reported_to_the_guests() {
    let host = start(1);
    let mut a = host.memory(0);
    let mut control = ControlClient::connect(&default_path(&host.dir.path().join("fabric.sock"))).unwrap();
    let mut observed = |what: &str, request: Request, value: u64| {
        control.command(&request).unwrap();
        eventually(what, || (a.register(direct::OBSERVED, 8) == value).then_some(()));
    };
    let faults = |node, faults: &str| Request::SetFaults { on: Target::Node(node), faults: faults.parse().unwrap() };
    observed("faults of a member", faults(2, "latency=1ms"), 1);
    observed("no faults", faults(2, "latency=0ms"), 0);
    observed("faults of another node", faults(1, "latency=1ms"), 0);
    let file = host.dir.path().join("capture.pcapng");
    observed("a capture", Request::CaptureStart { file: file.display().to_string(), on: Target::All }, 1);
    observed("no capture", Request::CaptureStop {}, 0);
}

/// Counts the events about direct memory of some boards.
struct Told<'a> {
    guests: [&'a mut Guest; 3],
    counts: [usize; 3],
}

impl Told<'_> {
    /// Waits until each board has posted so many.
    fn becomes(&mut self, what: &str, counts: [usize; 3]) {
        eventually(what, || {
            for (guest, count) in self.guests.iter_mut().zip(&mut self.counts) {
                let events = guest.events().unwrap();
                *count += events.iter().filter(|entry| entry.kind == event::DIRECT).count();
            }
            (self.counts == counts).then_some(())
        });
    }
}

/// Each board's events, exactly: none is left out, none comes twice, and none comes to a board that need not look.
#[test]
fn changes_are_events_of_the_boards() {
    for threads in [1, 4] {
        let host = start(threads);
        let (mut a, mut b) = (host.memory(0), host.memory(2));
        let mut control = ControlClient::connect(&default_path(&host.dir.path().join("fabric.sock"))).unwrap();
        let (mut first, mut outsider, mut second) = (host.guest(0), host.guest(1), host.guest(2));
        let mut told = Told { guests: [&mut first, &mut outsider, &mut second], counts: [0; 3] };
        a.client.region_write(0, direct::CHANGED, &[1, 0, 0, 0]).unwrap();
        told.becomes("the event of the other member", [0, 0, 1]);
        b.client.region_write(0, direct::CHANGED, &[0; 4]).unwrap();
        told.becomes("the event of the first member", [1, 0, 1]);
        let faults = |on, faults: &str| Request::SetFaults { on: Target::Node(on), faults: faults.parse().unwrap() };
        control.command(&faults(2, "latency=1ms")).unwrap();
        told.becomes("the events of both when they are observed", [2, 0, 2]);
        // Of a node outside the group; and more of the same of one inside.
        control.command(&faults(1, "latency=1ms")).unwrap();
        control.command(&faults(2, "latency=2ms")).unwrap();
        control.command(&faults(2, "latency=0ms")).unwrap();
        told.becomes("the events of both when they no longer are", [3, 0, 3]);
        drop(b);
        told.becomes("the event of the end of the other guest", [4, 0, 3]);
        // Nothing is under way any more: the others are as they were.
        a.client.region_write(0, direct::CHANGED, &[0; 4]).unwrap();
        told.becomes("the last event", [4, 0, 4]);
    }
}

#[test]
fn bad_messages_harm_no_other_client() {
    let host = start(4);
    let mut raw = BoardClient::new(&memory_socket(&host.dir.path().join("hib0"))).unwrap();
    for (region, offset, count) in [(2, 2 * SLICE - 4, 8), (2, u64::MAX, 8), (0, direct::BAR0_SIZE, 1), (1, 0, 4)] {
        assert!(raw.read_raw(region, offset, count).unwrap().errno().is_some(), "{region} {offset:#x}");
    }
    assert_eq!(raw.read_raw(2, 4, 8).unwrap().body[16..], [0xff; 8], "not aligned");
    assert_eq!(raw.read_raw(0, 0, 64).unwrap().body[16..], [0xff; 64]);
    assert!(raw.call_with(12345, &[], &[]).unwrap().errno().is_some());
    // Many descriptors under way at once, between answers without.
    for _ in 0..200 {
        let info = [[32u32, 0, 2, 0], [0; 4]].concat();
        let body = info.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(raw.call_with(command::DEVICE_GET_REGION_INFO, &body, &[]).unwrap().errno(), None);
    }
    drop(raw);
    let mut memory = host.memory(0);
    assert_eq!(memory.register(direct::MAGIC, 8), direct::MAGIC_VALUE);
}
