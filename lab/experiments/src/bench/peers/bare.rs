// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bare loop: the least that a vfio-user server can be. One thread, one connection, a register; one system call
//! for a posted store, or for as many as have come, and two for a load.

use super::host::Host;
use super::memory::Mapping;
use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use telegraphos_agent::bench::{BARE_BYTES, register, shared};
use telegraphos_device::vfio::message::{
    Access, DeviceInfo, DmaUnmap, HEADER_LEN, Header, IrqInfo, MAX_MESSAGE, RegionInfo, command, flag,
};

/// Region of the config space; BAR 0 is region 0.
const CONFIG: u32 = 7;
pub(super) const REGIONS: u32 = 9;
pub(super) const IRQS: u32 = 5;
/// How long it polls without a message before it sleeps regardless: a guest that is killed sends no message.
const SPIN_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of a region.
pub(super) fn region_bytes(region: u32) -> u64 {
    match region {
        0 => BARE_BYTES,
        CONFIG => 256,
        _ => 0,
    }
}

/// Config space of a function with one 32-bit BAR, of which QEMU emulates what matters, and which no driver wants.
#[derive(Debug)]
pub(super) struct Function {
    config: [u8; 256],
    pub(super) data: u64,
}

impl Function {
    pub(super) fn new() -> Function {
        let mut config = [0; 256];
        config[..4].copy_from_slice(&(0x7ff0 << 16 | telegraphos_wire::ids::VENDOR_ID).to_le_bytes());
        // Class: none of the known ones.
        config[11] = 0xff;
        Function { config, data: 0 }
    }

    pub(super) fn read(&self, region: u32, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let at = offset as usize;
        match region {
            CONFIG => {
                let end = (at + data.len()).min(self.config.len());
                let found = self.config.get(at..end).unwrap_or_default();
                data[..found.len()].copy_from_slice(found);
            }
            0 if offset == register::DATA => {
                let length = data.len().min(8);
                data[..length].copy_from_slice(&self.data.to_le_bytes()[..length]);
            }
            _ => {}
        }
    }

    pub(super) fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region {
            // The command register; BARs are QEMU's.
            CONFIG if offset == 4 => data.iter().take(2).enumerate().for_each(|(i, byte)| self.config[4 + i] = *byte),
            0 if offset == register::DATA => self.data = word(data),
            _ => {}
        }
    }
}

/// The low bytes of a word.
fn word(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = data.len().min(8);
    bytes[..length].copy_from_slice(&data[..length]);
    u64::from_le_bytes(bytes)
}

/// Serves one QEMU after the other, for ever.
pub(super) fn serve(listener: &UnixListener, shared: &Mapping) -> io::Result<()> {
    for stream in listener.incoming() {
        let mut server = Server { function: Function::new(), shared, spin: false, host: Host::default(), result: 0 };
        if let Err(e) = server.connection(stream?) {
            eprintln!("the bare loop: {e}");
        }
    }
    Ok(())
}

struct Server<'a> {
    function: Function,
    shared: &'a Mapping,
    spin: bool,
    host: Host,
    result: u64,
}

impl Server<'_> {
    fn connection(&mut self, mut stream: UnixStream) -> io::Result<()> {
        let mut buffer = vec![0; 2 * MAX_MESSAGE];
        let mut filled = 0;
        let mut reply = Vec::with_capacity(MAX_MESSAGE);
        loop {
            let more = self.receive(&stream, &mut buffer[filled..])?;
            if more == 0 {
                return Ok(());
            }
            filled += more;
            let mut at = 0;
            while filled - at >= HEADER_LEN {
                let header: Header = pod_read_unaligned(&buffer[at..at + HEADER_LEN]);
                let size = header.size as usize;
                if !(HEADER_LEN..=MAX_MESSAGE).contains(&size) {
                    return Err(io::Error::other(format!("a message of {size} bytes")));
                }
                if filled - at < size {
                    break;
                }
                reply.clear();
                self.message(&header, &buffer[at + HEADER_LEN..at + size], &mut reply);
                if header.wants_reply() {
                    let size = (HEADER_LEN + reply.len()) as u32;
                    let head = Header { size, flags: flag::REPLY, error: 0, ..header };
                    stream.write_all(&[bytes_of(&head), &reply[..]].concat())?;
                }
                at += size;
            }
            buffer.copy_within(at..filled, 0);
            filled -= at;
        }
    }

    /// What has come; descriptors, which it needs none of, are closed.
    fn receive(&self, stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let mut spin = self.spin;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = if spin { RecvFlags::DONTWAIT } else { RecvFlags::empty() } | RecvFlags::CMSG_CLOEXEC;
            match recvmsg(stream, &mut [IoSliceMut::new(into)], &mut ancillary, flags) {
                Ok(message) => return Ok(message.bytes),
                Err(Errno::AGAIN) => spin = begun.elapsed() < SPIN_LIMIT,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn message(&mut self, header: &Header, body: &[u8], reply: &mut Vec<u8>) {
        match header.command {
            command::REGION_WRITE => {
                let Some((access, data)) = split::<Access>(body) else { return };
                self.write(&access, data);
                reply.extend(bytes_of(&access));
            }
            command::REGION_READ => {
                let Some((access, _)) = split::<Access>(body) else { return };
                reply.extend(bytes_of(&access));
                let start = reply.len();
                reply.resize(start + (access.count as usize).min(256), 0);
                match access {
                    Access { region: 0, offset: register::RESULT, count: 8 } => {
                        reply[start..].copy_from_slice(&self.result.to_le_bytes());
                    }
                    _ => self.function.read(access.region, access.offset, &mut reply[start..]),
                }
            }
            command::VERSION => {
                reply.extend([0; 4]);
                reply.extend(br#"{"capabilities":{"max_msg_fds":16}}"#);
                reply.push(0);
            }
            command::DEVICE_GET_INFO => {
                let argsz = size_of::<DeviceInfo>() as u32;
                reply.extend(bytes_of(&DeviceInfo { argsz, flags: 1 | 2, regions: REGIONS, irqs: IRQS }));
            }
            command::DEVICE_GET_REGION_INFO => {
                let Some((info, _)) = split::<RegionInfo>(body) else { return };
                let size = region_bytes(info.index);
                let (argsz, flags) = (size_of::<RegionInfo>() as u32, if size > 0 { 1 | 2 } else { 0 });
                reply.extend(bytes_of(&RegionInfo { argsz, flags, index: info.index, size, ..RegionInfo::default() }));
            }
            command::DEVICE_GET_IRQ_INFO => {
                let Some((info, _)) = split::<IrqInfo>(body) else { return };
                let argsz = size_of::<IrqInfo>() as u32;
                reply.extend(bytes_of(&IrqInfo { argsz, flags: 1, index: info.index, count: 0 }));
            }
            command::DMA_UNMAP => {
                let Some((unmap, _)) = split::<DmaUnmap>(body) else { return };
                reply.extend(bytes_of(&unmap));
            }
            // DMA_MAP, SET_IRQS, RESET: it makes no use of them.
            _ => {}
        }
    }

    #[inline]
    fn write(&mut self, access: &Access, data: &[u8]) {
        match (access.region, access.offset) {
            (0, register::DATA) => {
                self.function.data = word(data);
                self.shared.store(shared::BARE, self.function.data);
            }
            (0, register::SPIN) => self.spin = word(data) != 0,
            (0, register::COMMAND) => self.result = self.host.measure(word(data)),
            (region, offset) => self.function.write(region, offset, data),
        }
    }
}

/// A structure and the bytes behind it.
fn split<T: Pod>(body: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = body.split_at_checked(size_of::<T>())?;
    Some((pod_read_unaligned(head), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_device_client::Client;

    #[test]
    fn stores_loads_and_commands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bare");
        let listener = UnixListener::bind(&path).unwrap();
        let memory = Mapping::new(telegraphos_agent::bench::SHARED_BYTES as usize).unwrap();
        std::thread::spawn(move || serve(&listener, &memory));
        let mut client = Client::new(&path).unwrap();
        for spin in [0u64, 1] {
            client.store(0, register::SPIN, &spin.to_le_bytes()).unwrap();
            for value in 0..1000u64 {
                client.store(0, register::DATA, &value.to_le_bytes()).unwrap();
            }
            assert_eq!(client.read(0, register::DATA, 8).unwrap(), 999);
        }
        let command = telegraphos_agent::bench::command::MEMCPY << telegraphos_agent::bench::command::SHIFT | 4096;
        client.store(0, register::COMMAND, &command.to_le_bytes()).unwrap();
        assert_ne!(client.read(0, register::RESULT, 8).unwrap(), u64::MAX);
        assert_eq!(client.read(CONFIG, 2, 2).unwrap(), 0x7ff0);
    }
}
