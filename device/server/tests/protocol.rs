// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server against clients: an independent implementation (the crate `vfio_user`), and one that misbehaves.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::{self, Guest, PATIENCE, RAM, RawClient, Server, assert_healthy, memfd, window};
use telegraphos_device::Settings;
use telegraphos_device::vfio::message::{Access, DmaMap, DmaUnmap, IrqSet, SmallWrite, command, flag};
use telegraphos_testkit::eventually;
use telegraphos_wire::regs::{self, Register};
use telegraphos_wire::{Status, event, ids};
use vfio_user::Client;

const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const ENOTSUP: i32 = 95;

#[test]
fn the_crates_client_sees_the_device() {
    let server = Server::start();
    let mut client = Client::new(&server.socket()).unwrap();
    let size = |index| client.region(index).map(|r| (r.size, r.flags));
    assert_eq!(size(0), Some((0x4000, 3)));
    assert_eq!(size(1), Some((0, 0)));
    assert_eq!(size(2), Some((256 << 16, 3)));
    assert_eq!(size(4), Some((1 << 34, 3)));
    assert_eq!(size(7), Some((256, 3)));
    for (index, count) in [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)] {
        let info = client.get_irq_info(index).unwrap();
        assert_eq!((info.count, info.flags), (count, 1), "interrupt index {index}");
    }
    let mut magic = [0; 8];
    client.region_read(0, Register::Magic.offset(), &mut magic).unwrap();
    assert_eq!(&magic, b"TELEGRAF");
    let mut config = [0; 256];
    client.region_read(7, 0, &mut config).unwrap();
    assert_eq!(u16::from_le_bytes([config[0], config[1]]), ids::VENDOR_ID as u16);
    assert_eq!(config[0x34], 0x40, "a capability");
    assert_eq!(config[0x40], 5, "MSI");
    client.region_write(0, Register::EventBase.offset(), &0x1234_5670u64.to_le_bytes()).unwrap();
    let mut base = [0; 8];
    client.region_read(0, Register::EventBase.offset(), &mut base).unwrap();
    assert_eq!(u64::from_le_bytes(base), 0x1234_5670);
    client.reset().unwrap();
    client.region_read(0, Register::EventBase.offset(), &mut base).unwrap();
    assert_eq!(u64::from_le_bytes(base), 0);
    client.shutdown().unwrap();
    server.stop().unwrap();
}

#[test]
fn the_crates_client_drives_the_board_through_shared_memory() {
    let server = Server::start();
    let mut client = Client::new(&server.socket()).unwrap();
    let ram = memfd(1 << 20);
    client.dma_map(0, RAM, 1 << 20, ram.as_raw_fd()).unwrap();
    let irq = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    client.set_irqs(1, 0x24, 0, 1, &[irq.as_raw_fd()]).unwrap();
    client.region_write(7, 4, &6u16.to_le_bytes()).unwrap();
    let set = |client: &mut Client, register: Register, value: u64| {
        let bytes = value.to_le_bytes();
        client.region_write(0, register.offset(), &bytes[..register.size().into()]).unwrap();
    };
    set(&mut client, Register::EventBase, RAM);
    set(&mut client, Register::EventSize, 16);
    set(&mut client, Register::AdminBase, RAM + 0x1000);
    set(&mut client, Register::Control, regs::CONTROL_IRQ_ENABLE);
    // An empty command is answered, too: as invalid, with an event and an interrupt.
    set(&mut client, Register::AdminDoorbell, 3);
    let mut word = [0; 8];
    assert_eq!(rustix::io::read(&irq, &mut word).unwrap(), 8);
    let completion = 0x1000 + 3 * 256 + 192;
    rustix::io::pread(&ram, &mut word, completion).unwrap();
    assert_eq!(u64::from_le_bytes(word) >> 32, Status::Invalid as u64);
    client.dma_unmap(RAM, 1 << 20).unwrap();
    client.shutdown().unwrap();
}

#[test]
fn with_msix_the_capability_and_the_vectors_change() {
    let server = Server::with(Settings { msix: Some(true), ..Settings::default() });
    let mut client = Client::new(&server.socket()).unwrap();
    assert_eq!(client.get_irq_info(1).unwrap().count, 0);
    assert_eq!(client.get_irq_info(2).unwrap().count, 1);
    // MSI-X, and behind it the capability that resets the function.
    let mut capability = [0; 12];
    client.region_read(7, 0x40, &mut capability).unwrap();
    assert_eq!(capability, [0x11, 0x4c, 0, 0, 0, 0x20, 0, 0, 0, 0x30, 0, 0]);
    let mut reset = [0; 4];
    client.region_read(7, 0x4c, &mut reset).unwrap();
    assert_eq!(reset, [0x13, 0, 6, 3]);
    client.shutdown().unwrap();
}

#[test]
fn a_posted_write_gets_no_reply_not_even_an_error() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    client.store(0, Register::EventBase.offset(), &0x40u64.to_le_bytes());
    client.store(0, 1 << 40, &[0; 8]);
    client.store(99, 0, &[0; 8]);
    client.post(77, &[1, 2, 3]);
    client.post(command::REGION_WRITE, &[0; 3]);
    // The next reply is the answer to this read: `call` compares the ids.
    assert_eq!(client.register(Register::EventBase), 0x40);
}

#[test]
fn refusals_carry_an_errno_and_the_stream_continues() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    let access = |region, offset, count| bytemuck::bytes_of(&Access { offset, region, count }).to_vec();
    let cases: Vec<(u16, Vec<u8>, i32)> = vec![
        (0, vec![], ENOTSUP),
        (6, vec![0; 16], ENOTSUP),
        (14, vec![0; 40], ENOTSUP),
        (16, vec![0; 3], ENOTSUP),
        (u16::MAX, vec![0xff; 5000], ENOTSUP),
        (command::VERSION, vec![0; 4], EINVAL),
        (command::DMA_MAP, vec![0; 31], EINVAL),
        (command::DMA_UNMAP, vec![0; 8], EINVAL),
        (command::DEVICE_GET_INFO, vec![0; 16], EINVAL),
        (command::DEVICE_GET_REGION_INFO, vec![0xff; 32], EINVAL),
        (command::DEVICE_GET_IRQ_INFO, vec![0xff; 16], EINVAL),
        (command::DEVICE_SET_IRQS, vec![0xff; 20], EINVAL),
        (command::REGION_READ, access(0, 0, 0), EINVAL),
        (command::REGION_READ, access(0, 0, u32::MAX), EINVAL),
        (command::REGION_READ, access(0, 0x4000, 1), EINVAL),
        (command::REGION_READ, access(0, u64::MAX, 8), EINVAL),
        (command::REGION_READ, access(3, 0, 4), EINVAL),
        (command::REGION_READ, access(9, 0, 4), EINVAL),
        (command::REGION_READ, access(u32::MAX, 0, 4), EINVAL),
        (command::REGION_WRITE, access(0, 0, 4), EINVAL),
        (command::REGION_WRITE_MULTI, vec![0xff; 32], EINVAL),
    ];
    for (command, body, errno) in cases {
        let reply = client.call(command, &body);
        assert_eq!(reply.errno(), Some(errno), "command {command}");
        assert!(reply.body.is_empty());
        assert_eq!(client.register(Register::Magic), regs::MAGIC, "after command {command}");
    }
}

#[test]
fn nothing_is_served_before_the_version_is_agreed() {
    let server = Server::start();
    let mut client = RawClient::connect(&server.socket());
    assert_eq!(client.read_raw(0, 0, 8).errno(), Some(71));
    let reply = client.call(command::VERSION, &[1, 0, 0, 0]);
    assert_eq!(reply.errno(), Some(93), "protocol 1.0");
    assert_eq!(client.version(b"{}").errno(), None);
    assert_eq!(client.register(Register::Magic), regs::MAGIC);
}

#[test]
fn the_version_reply_offers_a_subset() {
    let server = Server::start();
    let mut client = RawClient::connect(&server.socket());
    let reply = client.version(br#"{"capabilities":{"write_multiple":true,"max_msg_fds":16,"new":[1]},"other":{}}"#);
    assert_eq!(&reply.body[..4], [0; 4]);
    let json: serde_json::Value = serde_json::from_slice(&reply.body[4..reply.body.len() - 1]).unwrap();
    assert_eq!(json["capabilities"]["write_multiple"], true);
    assert_eq!(json["capabilities"]["max_msg_fds"], 16);
    assert_eq!(reply.body.last(), Some(&0));
    drop(client);
    let mut client = RawClient::connect(&server.socket());
    let reply = client.version(b"{}");
    assert!(!String::from_utf8_lossy(&reply.body).contains("write_multiple"));
}

#[test]
fn many_writes_in_one_message_are_performed_in_order() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    let write = |register: Register, value: u64| SmallWrite {
        access: Access { offset: register.offset(), region: 0, count: register.size().into() },
        data: value.to_le_bytes(),
    };
    let writes: Vec<_> = (1..=200).map(|n| write(Register::AdminBase, n * 256)).collect();
    let mut body = 200u64.to_le_bytes().to_vec();
    body.extend_from_slice(bytemuck::cast_slice(&writes));
    client.post(command::REGION_WRITE_MULTI, &body);
    assert_eq!(client.register(Register::AdminBase), 200 * 256);
    assert_eq!(client.call(command::REGION_WRITE_MULTI, &body).errno(), None);
}

#[test]
fn odd_sized_accesses_are_answered_and_latched() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    for (region, offset, count) in
        [(0, 0, 3), (0, 1, 4), (0, 0, 64), (4, 5, 3), (4, 1, 8), (4, 0, 65536), (4, window(0, 0, 0), 16)]
    {
        client.set_register(Register::ErrorAck, 1);
        let reply = client.read_raw(region, offset, count);
        assert_eq!(reply.errno(), None);
        assert_eq!(reply.body.len(), 16 + count as usize);
        assert!(reply.body[16..].iter().all(|b| *b == 0xff), "region {region}, {count} bytes at {offset:#x}");
        let error = client.register(Register::Error);
        assert_eq!(error & 0xffff, Status::BadSize as u64, "region {region}, {count} bytes at {offset:#x}");
        assert_eq!(client.register(Register::ErrorAddress), offset);
    }
    let before = client.register(Register::ErrorCount);
    client.store(4, 2, &[1, 2, 3]);
    client.store(0, 0x60, &[0; 64]);
    assert_eq!(client.register(Register::ErrorCount), before + 2);
}

#[test]
fn an_unmapped_window_address_is_all_ones_at_once_and_latched() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    assert_eq!(client.read(4, window(1, 3, 8), 8), u64::MAX);
    assert_eq!(client.register(Register::Error) & 0xffff, Status::Unmapped as u64);
    client.store(4, window(63, 1023, 0xfff8), &[0; 8]);
    assert!(client.register(Register::CountDropped) >= 1);
}

#[test]
fn a_guest_reaches_its_own_memory_through_the_window() {
    let server = Server::start();
    let mut guest = Guest::boot(&server.socket());
    guest.open_context(0);
    let memory = RAM + 0x10_0000;
    guest.export("self", 0, 2, memory, 31);
    guest.reach(5, 0, "self", 3);
    for (n, size) in [1usize, 2, 4, 8].into_iter().enumerate() {
        let offset = 0x1_fff8 - 8 * n as u64;
        let data = &0x1122_3344_5566_7788u64.to_le_bytes()[..size];
        guest.client.store(4, window(0, 5, offset), data);
        assert_eq!(guest.quiet(), Status::Ok);
        assert_eq!(&guest.peek::<8>(memory + offset)[..size], data);
        guest.poke(memory + offset, &[0xa5; 8]);
        let expected = 0xa5a5_a5a5_a5a5_a5a5 >> (64 - 8 * size);
        assert_eq!(guest.client.read(4, window(0, 5, offset), size as u32), expected);
    }
    let mut word = [0; 8];
    assert!(rustix::io::read(&guest.irq, &mut word).is_ok(), "events came with an interrupt");
}

#[test]
fn a_guest_that_never_pauses_is_stopped_until_its_queue_has_run_dry() {
    let server = Server::with(Settings { intake_limit: Some(256), ..Settings::default() });
    let mut guest = Guest::boot(&server.socket());
    guest.open_context(0);
    guest.export("self", 0, 1, RAM + 0x10_0000, 3);
    guest.reach(4, 0, "self", 3);
    // After the few messages of the start.
    std::thread::sleep(std::time::Duration::from_millis(10));
    let states = |guest: &Guest| -> Vec<u64> {
        let of_import = |e: &event::Entry| e.kind == event::IMPORT_STATE && e.index == 4;
        guest.events().iter().filter(|e| of_import(e)).map(|e| e.value & event::IMPORT_CONGESTED).collect()
    };
    assert!(states(&guest).is_empty());
    let mut burst = Vec::new();
    for n in 0..4000u64 {
        let body = RawClient::write_body(4, window(0, 4, 8 * n), &n.to_le_bytes());
        burst.extend(guest.client.message(command::REGION_WRITE, flag::NO_REPLY, &body));
    }
    guest.client.stream.write_all(&burst).unwrap();
    eventually("a stop and its end", || (states(&guest) == [1, 0]).then_some(()));
    assert_eq!(guest.quiet(), Status::Ok);
    assert_eq!(guest.peek64(RAM + 0x10_0000 + 8 * 3999), 3999);
}

#[test]
fn a_client_that_maps_more_than_any_guest_has_is_refused_and_served() {
    const SIZE: u64 = 3 << 40;
    let server = Server::start();
    let mut guest = Guest::boot(&server.socket());
    let sparse = memfd(SIZE);
    let map = |n: u64| DmaMap { argsz: 32, flags: 3, offset: 0, address: n * SIZE, size: SIZE };
    // Three times the address space of a process. The guest's own memory is mapped, too.
    let taken = (1..=120).filter(|n| guest.client.map(map(*n), Some(&sparse)).errno().is_none()).count();
    assert_eq!(taken as u64, (16 << 40) / SIZE);
    // A map must not exceed its file.
    let beyond = DmaMap { offset: SIZE, ..map(121) };
    assert_eq!(guest.client.map(beyond, Some(&sparse)).errno(), Some(EINVAL));
    assert_eq!(guest.client.map(map(122), Some(&sparse)).errno(), Some(ENOMEM));
    // The board continues to work, and unmapped addresses can be mapped again.
    guest.open_context(0);
    assert_eq!(guest.quiet(), Status::Ok);
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: SIZE, size: SIZE };
    assert_eq!(guest.client.call(command::DMA_UNMAP, bytemuck::bytes_of(&unmap)).errno(), None);
    assert_eq!(guest.client.map(map(122), Some(&sparse)).errno(), None);
    assert_eq!(guest.quiet(), Status::Ok);
}

#[test]
fn private_memory_is_refused_with_its_own_status() {
    let server = Server::start();
    let mut guest = Guest::boot(&server.socket());
    let private = 0x8000_0000;
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: private, size: 0x10_0000 };
    assert_eq!(guest.client.map(map, None).errno(), None, "it is accepted");
    guest.open_context(0);
    guest.export("private", 0, 1, private, 3);
    guest.reach(0, 0, "private", 3);
    assert_eq!(guest.client.read(4, window(0, 0, 0), 8), u64::MAX);
    guest.client.store(4, window(0, 0, 0), &[0; 8]);
    assert_eq!(guest.quiet(), Status::PrivateMemory);
    // The board's own tables in private memory: latched in ERROR.
    guest.client.set_register(Register::ErrorAck, 1);
    guest.client.set_register(Register::AdminBase, private);
    guest.client.set_register(Register::AdminDoorbell, 0);
    assert_eq!(guest.client.register(Register::Error) & 0xffff, Status::PrivateMemory as u64);
}

#[test]
fn without_bus_mastering_guest_memory_is_left_alone() {
    let server = Server::start();
    let mut guest = Guest::boot(&server.socket());
    guest.open_context(0);
    guest.export("self", 0, 1, RAM + 0x10_0000, 3);
    guest.reach(0, 0, "self", 3);
    guest.client.write(7, 4, &2u16.to_le_bytes());
    guest.client.store(4, window(0, 0, 0), &[7; 8]);
    assert_eq!(guest.client.read(4, window(0, 0, 0), 8), u64::MAX);
    assert_eq!(guest.peek64(RAM + 0x10_0000), 0);
}

#[test]
fn unmapped_memory_is_not_touched_again() {
    let server = Server::start();
    let mut guest = Guest::boot(&server.socket());
    guest.open_context(0);
    guest.export("self", 0, 1, RAM + 0x10_0000, 3);
    guest.reach(0, 0, "self", 3);
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: RAM, size: support::RAM_SIZE };
    let reply = guest.client.call(command::DMA_UNMAP, bytemuck::bytes_of(&unmap));
    assert_eq!(reply.errno(), None);
    let echo: DmaUnmap = bytemuck::pod_read_unaligned(&reply.body);
    assert_eq!(echo, unmap);
    guest.client.store(4, window(0, 0, 0), &[7; 8]);
    assert_eq!(guest.client.read(4, window(0, 0, 0), 8), u64::MAX);
    assert_eq!(guest.peek64(RAM + 0x10_0000), 0);
    assert_eq!(guest.client.call(command::DMA_UNMAP, bytemuck::bytes_of(&unmap)).errno(), Some(2));
}

#[test]
fn a_rebooted_guest_finds_an_empty_board() {
    let server = Server::start();
    let mut guest = Guest::boot(&server.socket());
    guest.open_context(0);
    guest.export("self", 0, 1, RAM + 0x10_0000, 3);
    let before = guest.client.register(Register::Incarnation);
    assert_eq!(guest.client.call(command::DEVICE_RESET, &[]).errno(), None);
    assert_eq!(guest.client.register(Register::Incarnation), before + 1);
    assert_eq!(guest.client.register(Register::EventSize), 0);
    assert_eq!(guest.client.read(7, 4, 2), 0, "the command register");
    guest.program();
    assert_eq!(guest.lookup(0, "self", 3).status, Status::NoSegment as u32);
}

#[test]
fn the_next_qemu_is_served_when_one_ends() {
    let server = Server::start();
    let mut incarnation = 0;
    for _ in 0..5 {
        let mut guest = Guest::boot(&server.socket());
        let now = guest.client.register(Register::Incarnation);
        assert!(now > incarnation, "{now} after {incarnation}");
        incarnation = now;
        guest.open_context(0);
        guest.export("name", 0, 1, RAM + 0x10_0000, 3);
        // It closes without notice, as a killed QEMU does.
    }
}

#[test]
fn a_second_qemu_is_refused_and_the_first_not_disturbed() {
    let server = Server::start();
    let mut first = RawClient::new(&server.socket());
    first.set_register(Register::EventBase, 0x1000);
    let mut second = RawClient::connect(&server.socket());
    assert!(second.reply().is_none(), "closed");
    assert_eq!(first.register(Register::EventBase), 0x1000);
}

#[test]
fn a_silent_visitor_does_not_keep_qemu_out() {
    let server = Server::start();
    let _visitor = RawClient::connect(&server.socket());
    assert_healthy(&server.socket());
}

/// Open descriptors of this file in this process.
fn descriptors_of(file: &impl AsRawFd) -> usize {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let all = Path::new("/proc/self/fd");
    let this = id(&all.join(file.as_raw_fd().to_string())).unwrap();
    // One that is closed meanwhile has no metadata.
    std::fs::read_dir(all).unwrap().filter(|entry| id(&entry.as_ref().unwrap().path()) == Some(this)).count()
}

#[test]
fn unsolicited_descriptors_are_closed() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    let file = memfd(4096);
    for n in 0..200 {
        let fds = vec![file.as_fd(); n % 20];
        let body = bytemuck::bytes_of(&Access { offset: 0, region: 0, count: 8 }).to_vec();
        assert_eq!(client.call_with(command::REGION_READ, &body, &fds).errno(), None);
    }
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0, size: 4096 };
    let two = [file.as_fd(), file.as_fd()];
    assert_eq!(client.call_with(command::DMA_MAP, bytemuck::bytes_of(&map), &two).errno(), Some(EINVAL));
    let set = IrqSet { argsz: 20, flags: 0x24, index: 1, start: 0, count: 1 };
    assert_eq!(client.set_irqs(set, &[file.as_fd(); 19]).errno(), Some(EINVAL));
    // Server and tests share this process; no other test has this file.
    eventually("closing of the descriptors", || (descriptors_of(&file) == 1).then_some(()));
}

#[test]
fn a_message_of_impossible_length_ends_the_connection_and_only_that() {
    let server = Server::start();
    for size in [0u32, 15, 1 << 20, u32::MAX] {
        let mut client = RawClient::new(&server.socket());
        let mut bytes = client.message(command::REGION_READ, 0, &[0; 16]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        client.send(&bytes, &[]).unwrap();
        assert!(client.reply().is_none(), "length {size}");
        assert_healthy(&server.socket());
    }
}

#[test]
fn messages_may_arrive_byte_by_byte_or_many_at_once() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    let body = bytemuck::bytes_of(&Access { offset: 0, region: 0, count: 8 }).to_vec();
    for byte in client.message(command::REGION_READ, 0, &body) {
        client.send(&[byte], &[]).unwrap();
    }
    assert_eq!(client.reply().unwrap().body[16..], *b"TELEGRAF");
    let mut many = Vec::new();
    for _ in 0..500 {
        many.extend(client.message(command::REGION_READ, 0, &body));
    }
    client.send(&many, &[]).unwrap();
    for _ in 0..500 {
        assert_eq!(client.reply().unwrap().body[16..], *b"TELEGRAF");
    }
}

#[test]
fn a_client_that_does_not_read_its_replies_waits_for_itself() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    client.stream.set_nonblocking(true).unwrap();
    // Each request of 32 bytes reads 64 KiB.
    let body = bytemuck::bytes_of(&Access { offset: 0, region: 4, count: 65536 }).to_vec();
    let message = client.message(command::REGION_READ, 0, &body);
    let mut sent = 0;
    let mut idle = 0;
    while idle < 50 {
        match client.send(&message, &[]) {
            Ok(n) => {
                assert_eq!(n, message.len());
                sent += 1;
                idle = 0;
            }
            Err(rustix::io::Errno::AGAIN) => {
                idle += 1;
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            Err(e) => panic!("{e}"),
        }
        assert!(sent < 100_000, "the server takes everything");
    }
    client.stream.set_nonblocking(false).unwrap();
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..sent {
        assert_eq!(client.reply().unwrap().body.len(), 16 + 65536);
    }
    assert_eq!(client.register(Register::Magic), regs::MAGIC);
}

#[test]
fn replies_and_unknown_types_do_not_confuse_it() {
    let server = Server::start();
    let mut client = RawClient::new(&server.socket());
    let reply = client.message(command::REGION_READ, flag::REPLY, &[0; 16]);
    client.send(&reply, &[]).unwrap();
    let odd = client.message(command::REGION_READ, 7, &[0; 16]);
    client.send(&odd, &[]).unwrap();
    assert_eq!(client.reply().unwrap().errno(), Some(EINVAL));
    assert_eq!(client.register(Register::Magic), regs::MAGIC);
}
