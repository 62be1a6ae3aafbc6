// SPDX-License-Identifier: MIT OR Apache-2.0
//! The semantics of vfio-user messages: a [`Session`] performs them on a [`Backend`] and replies. `shell` feeds it the
//! messages of its client.
//!
//! A load may be answered at once or later, while further messages are served. Each message that requests a reply gets
//! exactly one; a posted message gets none, not even an error. An invalid message is refused with an errno, and the
//! stream continues with the next one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::connection::{Message, Output};
use super::message::{
    Access, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, IrqSet, Refused, RegionInfo, Request, flag, version_reply,
};

/// Identifies a load that is answered later; never reused.
pub type Token = u64;

/// Limit on unanswered loads. QEMU has at most one, since it holds its big lock meanwhile.
pub const MAX_WAITING: usize = 4096;

/// Number of region indexes of a PCI device: BARs 0 to 5, ROM, config space, VGA.
pub const REGIONS: u32 = 9;
/// Region index of the config space.
pub const CONFIG_REGION: u32 = 7;
/// Number of interrupt indexes of a PCI device: INTx, MSI, MSI-X, error, request.
pub const IRQ_INDEXES: u32 = 5;

/// Result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The data has been written to the buffer.
    Now,
    /// [`Session::complete`] will be called with the token.
    Later,
}

/// A device behind the protocol. The caller has checked that offsets and sizes lie within the region.
pub trait Backend {
    /// Bytes of a region; 0 if the device has no such region.
    fn region_size(&self, region: u32) -> u64;

    /// The file whose first [`Backend::region_size`] bytes are the region, if the client may map them. One such region
    /// ends posted writes for the whole device.
    fn region_file(&self, _region: u32) -> Option<&Arc<OwnedFd>> {
        None
    }

    /// Number of vectors of an interrupt index; 0 if the device has none.
    fn vectors(&self, index: u32) -> u32;

    /// Loads `data.len()` bytes into `data`.
    fn read(&mut self, token: Token, region: u32, offset: u64, data: &mut [u8]) -> Answer;

    /// Stores `data`.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);

    /// Maps a range of guest memory, with a file or without.
    fn dma_map(&mut self, map: DmaMap, fd: Option<OwnedFd>) -> Result<(), Refused>;

    /// Unmaps guest memory and returns the number of bytes; afterwards the device holds no reference to it.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<u64, Refused>;

    /// DEVICE_SET_IRQS: attaches event descriptors, masks or triggers vectors.
    fn set_irqs(&mut self, set: IrqSet, data: &[u8], fds: Vec<OwnedFd>) -> Result<(), Refused>;

    /// Resets the device. Afterwards nothing that began before touches guest memory.
    fn reset(&mut self);
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    header: Header,
    access: Access,
}

/// The protocol state of one client at a time.
#[derive(Debug, Default)]
pub struct Session {
    negotiated: bool,
    waiting: HashMap<Token, Waiting>,
    next_token: Token,
}

impl Session {
    /// A session without a client.
    pub fn new() -> Session {
        Session::default()
    }

    /// Whether the client has completed the handshake (VERSION).
    pub fn negotiated(&self) -> bool {
        self.negotiated
    }

    /// Ends the session of a client that has disconnected, and drops its unanswered loads.
    pub fn end(&mut self) {
        self.negotiated = false;
        self.waiting.clear();
    }

    /// Serves one message. `Err` says for the log why it was refused; the error reply has been queued.
    pub fn handle(
        &mut self,
        message: Message<'_>,
        backend: &mut impl Backend,
        out: &mut Output,
    ) -> Result<(), Refused> {
        let header = message.header;
        let served = match header.flags & flag::TYPE {
            0 => Request::parse(&header, message.body)
                .and_then(|request| self.serve(&header, request, message.fds, backend, out)),
            // This side sends no commands, so it expects no replies. Answering one could start an endless exchange.
            flag::REPLY => return Refused::invalid(format!("a reply (id {}) to nothing", header.id)),
            other => Refused::invalid(format!("message type {other}, expected 0 (command)")),
        };
        served.inspect_err(|refused| {
            if header.wants_reply() {
                out.error(&header, refused.errno);
            }
        })
    }

    /// Performs a parsed request.
    fn serve(
        &mut self,
        header: &Header,
        request: Request<'_>,
        mut fds: Vec<OwnedFd>,
        backend: &mut impl Backend,
        out: &mut Output,
    ) -> Result<(), Refused> {
        if let Request::Version { major, minor, capabilities } = request {
            if self.negotiated {
                return Refused::invalid("a second VERSION message");
            }
            if major != 0 {
                let why = format!("the client speaks protocol {major}.{minor}, expected 0.x");
                return Err(Refused::new(Errno::PROTONOSUPPORT, why));
            }
            self.negotiated = true;
            self.reply(header, &[&[0; 4], &version_reply(capabilities)], out);
            return Ok(());
        }
        if !self.negotiated {
            return Err(Refused::new(Errno::PROTO, format!("command {} before VERSION", header.command)));
        }
        match request {
            Request::Version { .. } => {}
            Request::DmaMap(map) => {
                if fds.len() > 1 {
                    return Refused::invalid(format!("DMA_MAP with {} descriptors, expected 0 or 1", fds.len()));
                }
                backend.dma_map(map, fds.pop())?;
                self.reply(header, &[], out);
            }
            Request::DmaUnmap(unmap) => {
                let size = backend.dma_unmap(unmap)?;
                self.reply(header, &[bytemuck::bytes_of(&DmaUnmap { size, ..unmap })], out);
            }
            Request::DeviceInfo => {
                let argsz = size_of::<DeviceInfo>() as u32;
                let info = DeviceInfo { argsz, flags: 1 | 2, regions: REGIONS, irqs: IRQ_INDEXES };
                self.reply(header, &[bytemuck::bytes_of(&info)], out);
            }
            Request::RegionInfo(index) => {
                below("DEVICE_GET_REGION_INFO of region", index, REGIONS)?;
                let size = backend.region_size(index);
                let (argsz, flags) = (size_of::<RegionInfo>() as u32, if size > 0 { 1 | 2 } else { 0 });
                let info = RegionInfo { argsz, flags, index, size, ..RegionInfo::default() };
                match backend.region_file(index).filter(|_| header.wants_reply()) {
                    Some(file) => {
                        let info = RegionInfo { flags: flags | 4, ..info };
                        out.reply_with_file(header, bytemuck::bytes_of(&info), file.clone());
                    }
                    None => self.reply(header, &[bytemuck::bytes_of(&info)], out),
                }
            }
            Request::IrqInfo(index) => {
                below("DEVICE_GET_IRQ_INFO of index", index, IRQ_INDEXES)?;
                // NORESIZE stays clear, as QEMU expects; so does MASKABLE, since MSI vectors are masked in the guest.
                let argsz = size_of::<IrqInfo>() as u32;
                let info = IrqInfo { argsz, flags: 1, index, count: backend.vectors(index) };
                self.reply(header, &[bytemuck::bytes_of(&info)], out);
            }
            Request::SetIrqs(set, data) => {
                below("DEVICE_SET_IRQS of index", set.index, IRQ_INDEXES)?;
                backend.set_irqs(set, data, fds)?;
                self.reply(header, &[], out);
            }
            Request::Read(access) => {
                check(backend, &access)?;
                if !header.wants_reply() {
                    return Refused::invalid("REGION_READ without a reply wanted");
                }
                if self.waiting.len() >= MAX_WAITING {
                    return Err(Refused::new(Errno::BUSY, format!("{MAX_WAITING} loads wait already")));
                }
                let token = self.next_token;
                self.next_token += 1;
                let head = bytemuck::bytes_of(&access);
                let now = out.reply_with(header, head, access.count as usize, |data| {
                    match backend.read(token, access.region, access.offset, data) {
                        Answer::Now => Some(()),
                        Answer::Later => None,
                    }
                });
                if now.is_none() {
                    self.waiting.insert(token, Waiting { header: *header, access });
                }
            }
            Request::Write(access, data) => {
                check(backend, &access)?;
                backend.write(access.region, access.offset, data);
                self.reply(header, &[bytemuck::bytes_of(&access)], out);
            }
            Request::WriteMulti(writes) => {
                for write in writes.iter() {
                    check(backend, &write.access)?;
                    let data = &write.data[..(write.access.count as usize).min(8)];
                    backend.write(write.access.region, write.access.offset, data);
                }
                self.reply(header, &[], out);
            }
            Request::Reset => {
                backend.reset();
                self.reply(header, &[], out);
            }
        }
        Ok(())
    }

    /// Queues a successful reply, if one is requested.
    fn reply(&self, header: &Header, body: &[&[u8]], out: &mut Output) {
        if header.wants_reply() {
            out.reply(header, body);
        }
    }

    /// Answers a load that [`Backend::read`] left for later. A load of a client that has disconnected is ignored.
    pub fn complete(&mut self, token: Token, value: u64, out: &mut Output) {
        let Some(Waiting { header, access }) = self.waiting.remove(&token) else { return };
        let head = bytemuck::bytes_of(&access);
        out.reply_with(&header, head, access.count as usize, |data| {
            spread(value, data);
            Some(())
        });
    }
}

/// Writes the low bytes of `value`. An access of more than 8 bytes is not supported and reads all-ones.
pub fn spread(value: u64, data: &mut [u8]) {
    match data.len() {
        n @ 0..=8 => data.copy_from_slice(&value.to_le_bytes()[..n]),
        _ => data.fill(0xff),
    }
}

/// Refuses an index that is not below `limit`.
fn below(what: &str, index: u32, limit: u32) -> Result<(), Refused> {
    if index >= limit {
        return Refused::invalid(format!("{what} {index}, expected 0 to {}", limit - 1));
    }
    Ok(())
}

/// Refuses an access that is not within its region.
fn check(backend: &impl Backend, access: &Access) -> Result<(), Refused> {
    let size = if access.region < REGIONS { backend.region_size(access.region) } else { 0 };
    let inside = access.offset.checked_add(u64::from(access.count)).is_some_and(|end| end <= size);
    if !inside {
        return Refused::invalid(format!(
            "access of {} bytes at {:#x} of region {}: the region has {size} bytes",
            access.count, access.offset, access.region
        ));
    }
    Ok(())
}
