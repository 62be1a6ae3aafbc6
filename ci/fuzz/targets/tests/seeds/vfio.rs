// SPDX-License-Identifier: MIT OR Apache-2.0
//! What QEMU says to a board.

use telegraphos_device::vfio::message::{
    Access, DeviceInfo, DmaMap, DmaUnmap, HEADER_LEN, Header, IrqInfo, IrqSet, RegionInfo, SmallWrite, command,
    dma_map, flag, irq_set,
};
use telegraphos_wire::regs::Register;

const REGISTERS: u32 = 0;
const CONTEXTS: u32 = 2;
const WINDOW: u32 = 4;
const CONFIG: u32 = 7;

#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    id: u16,
}

impl Stream {
    /// `first` is what the target takes from the front.
    fn new(first: u16) -> Stream {
        let mut stream = Stream { bytes: first.to_le_bytes().to_vec(), id: 0 };
        stream.say(
            command::VERSION,
            &[b"\0\0\x01\0".as_slice(), br#"{"capabilities":{"write_multiple":true}}"#, &[0]].concat(),
        );
        stream
    }

    fn flagged(&mut self, command: u16, flags: u32, body: &[u8]) {
        self.id += 1;
        let header = Header { id: self.id, command, size: (HEADER_LEN + body.len()) as u32, flags, error: 0 };
        self.bytes.extend_from_slice(bytemuck::bytes_of(&header));
        self.bytes.extend_from_slice(body);
    }

    fn say(&mut self, command: u16, body: &[u8]) {
        self.flagged(command, 0, body);
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) {
        self.say(command::REGION_READ, bytemuck::bytes_of(&Access { offset, region, count }));
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let access = Access { offset, region, count: data.len() as u32 };
        self.flagged(command::REGION_WRITE, flag::NO_REPLY, &[bytemuck::bytes_of(&access), data].concat());
    }

    fn register(&mut self, register: Register, value: u64) {
        self.write(REGISTERS, register.offset(), &value.to_le_bytes()[..usize::from(register.size())]);
    }

    fn map(&mut self, address: u64, size: u64) {
        let map = DmaMap { argsz: 32, flags: dma_map::READ | dma_map::WRITE, offset: 0, address, size };
        self.say(command::DMA_MAP, bytemuck::bytes_of(&map));
    }

    fn irqs(&mut self, flags: u32, index: u32, count: u32, data: &[u8]) {
        let set = IrqSet { argsz: 20 + data.len() as u32, flags, index, start: 0, count };
        self.say(command::DEVICE_SET_IRQS, &[bytemuck::bytes_of(&set), data].concat());
    }
}

/// QEMU reads the device's description and sets it up, as far as that needs no descriptors.
fn probe() -> Vec<u8> {
    let mut s = Stream::new(0);
    let of = |argsz: u32| argsz;
    s.say(command::DEVICE_GET_INFO, bytemuck::bytes_of(&DeviceInfo { argsz: of(16), ..DeviceInfo::default() }));
    for index in 0..9 {
        let info = RegionInfo { argsz: of(32), index, ..RegionInfo::default() };
        s.say(command::DEVICE_GET_REGION_INFO, bytemuck::bytes_of(&info));
    }
    for index in 0..5 {
        let info = IrqInfo { argsz: of(16), index, ..IrqInfo::default() };
        s.say(command::DEVICE_GET_IRQ_INFO, bytemuck::bytes_of(&info));
    }
    s.read(CONFIG, 0, 256);
    s.write(CONFIG, 0x10, &[0xff; 4]);
    s.read(CONFIG, 0x10, 4);
    s.write(CONFIG, 0x04, &[0x06, 0x04]);
    s.irqs(irq_set::DATA_NONE | irq_set::ACTION_TRIGGER, 1, 1, &[]);
    s.irqs(irq_set::DATA_BOOL | irq_set::ACTION_UNMASK, 1, 1, &[1]);
    s.say(command::DEVICE_RESET, &[]);
    s.bytes
}

/// The guest's driver and a process: registers, an admin command in memory of a file, stores, loads, many stores in one
/// message.
fn driver() -> Vec<u8> {
    // Each piece of so many bytes carries a file.
    let mut s = Stream::new(1 << 15);
    s.map(0, 64 << 10);
    s.write(CONFIG, 0x04, &[0x06, 0x04]);
    for register in Register::ALL {
        s.read(REGISTERS, register.offset(), register.size().into());
    }
    s.register(Register::AdminBase, 0x1000);
    s.register(Register::EventBase, 0x8000);
    s.register(Register::EventSize, 16);
    s.register(Register::Control, 1);
    s.register(Register::AdminDoorbell, 0);
    s.write(WINDOW, 0x100, &42u64.to_le_bytes());
    s.read(WINDOW, 0x100, 8);
    s.write(CONTEXTS, 0x40, &1u64.to_le_bytes());
    let store =
        |offset: u64| SmallWrite { access: Access { offset, region: WINDOW, count: 8 }, data: offset.to_le_bytes() };
    let stores = [store(0), store(8), store(16)];
    s.say(
        command::REGION_WRITE_MULTI,
        &[&3u64.to_le_bytes(), bytemuck::cast_slice::<SmallWrite, u8>(&stores)].concat(),
    );
    let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0, size: 64 << 10 };
    s.say(command::DMA_UNMAP, bytemuck::bytes_of(&unmap));
    s.bytes
}

/// What comes in pieces and is refused: an unknown command, a reply, private memory, accesses beyond regions.
fn refused() -> Vec<u8> {
    let mut s = Stream::new(13);
    s.say(99, &[1, 2, 3]);
    s.flagged(command::DEVICE_GET_INFO, flag::REPLY, &[0; 16]);
    s.map(0x10_0000, 0x1000);
    s.map(u64::MAX - 0xfff, 0x2000);
    s.read(REGISTERS, 0x3ffc, 8);
    s.read(CONFIG, 0xfff, 8);
    s.irqs(irq_set::DATA_EVENTFD | irq_set::ACTION_TRIGGER, 1, 40, &[]);
    s.say(command::VERSION, b"\0\0\x01\0{}\0");
    s.bytes
}

pub(super) fn streams() -> Vec<(&'static str, Vec<u8>)> {
    vec![("probe", probe()), ("driver", driver()), ("refused", refused())]
}
