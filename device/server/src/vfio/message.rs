// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire format of the vfio-user protocol. Each message is parsed once, completely, before anything acts on it.
//! `connection` and `server` use this module.
//!
//! Layouts are those of the vfio-user specification and of `<linux/vfio.h>`; all integers are little-endian. A message
//! is a [`Header`] of 16 bytes, which contains the length of the message, and a body.

use std::fmt::Display;

use bytemuck::{Pod, Zeroable};
use rustix::io::Errno;
use serde::Deserialize;

/// Size of a [`Header`] in bytes.
pub const HEADER_LEN: usize = 16;
/// Limit on the data of one region access, in bytes; announced as `max_data_xfer_size`. QEMU's longest access is that
/// of the whole config space.
pub const MAX_DATA: usize = 64 << 10;
/// Limit on the length of a message, in bytes: a region access with [`MAX_DATA`] bytes, or a long version message.
pub const MAX_MESSAGE: usize = MAX_DATA + 4096;
/// Limit on the descriptors of one message; announced as `max_msg_fds`. QEMU sends at most 16.
pub const MAX_FDS: usize = 16;

pub mod command {
    /// Protocol version and capabilities; the first message.
    pub const VERSION: u16 = 1;
    /// Maps a range of guest memory.
    pub const DMA_MAP: u16 = 2;
    /// Unmaps guest memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Describes the device.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Describes a region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Describes an interrupt index.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Attaches event descriptors, masks or triggers interrupt vectors.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Loads from a region.
    pub const REGION_READ: u16 = 9;
    /// Stores to a region.
    pub const REGION_WRITE: u16 = 10;
    /// Resets the device (function level reset).
    pub const DEVICE_RESET: u16 = 13;
    /// Performs many stores (announced by QEMU as `write_multiple`).
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Header flag bits.
pub mod flag {
    /// Mask of the message type: 0 is a command, 1 a reply.
    pub const TYPE: u32 = 0xf;
    /// Type of a reply.
    pub const REPLY: u32 = 1;
    /// No reply is requested: a posted write.
    pub const NO_REPLY: u32 = 0x10;
    /// The reply carries an errno.
    pub const ERROR: u32 = 0x20;
}

/// Bits of [`IrqSet::flags`].
pub mod irq_set {
    /// No data: the action applies to all vectors of the range.
    pub const DATA_NONE: u32 = 1;
    /// One byte per vector says whether the action applies to it.
    pub const DATA_BOOL: u32 = 2;
    /// One event descriptor per vector, or none to detach them.
    pub const DATA_EVENTFD: u32 = 4;
    pub const ACTION_MASK: u32 = 8;
    pub const ACTION_UNMASK: u32 = 16;
    /// Trigger vectors; with DATA_EVENTFD, attach the descriptors to trigger.
    pub const ACTION_TRIGGER: u32 = 32;
}

/// Bits of [`DmaMap::flags`].
pub mod dma_map {
    /// The device may load from it.
    pub const READ: u32 = 1;
    /// The device may store to it.
    pub const WRITE: u32 = 2;
}

/// Bits of [`DmaUnmap::flags`].
pub mod dma_unmap {
    /// A bitmap of dirty pages is requested (not supported).
    pub const GET_DIRTY_BITMAP: u32 = 1;
    /// Unmap everything; address and size are ignored.
    pub const ALL: u32 = 2;
}

/// Declares structures whose layout in memory is that of their bytes.
macro_rules! layouts {
    ($($(#[$doc:meta])* pub struct $name:ident $fields:tt)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name $fields)*
    };
}

layouts! {
    /// The header of every message.
    pub struct Header {
        /// Chosen by the sender and returned in the reply.
        pub id: u16,
        /// One of [`command`].
        pub command: u16,
        /// Length of the whole message in bytes.
        pub size: u32,
        /// Bits of [`flag`].
        pub flags: u32,
        /// errno of an error reply, else 0.
        pub error: u32,
    }

    /// Body of DMA_MAP.
    pub struct DmaMap {
        /// Bytes of this structure.
        pub argsz: u32,
        /// Bits of [`dma_map`].
        pub flags: u32,
        /// Offset in the file that comes with the message, if any.
        pub offset: u64,
        /// First DMA address.
        pub address: u64,
        /// Length in bytes.
        pub size: u64,
    }

    /// Body of DMA_UNMAP and of its reply.
    pub struct DmaUnmap {
        /// Bytes of this structure.
        pub argsz: u32,
        /// Bits of [`dma_unmap`].
        pub flags: u32,
        /// First DMA address.
        pub address: u64,
        /// Length in bytes; in the reply, the number of bytes unmapped.
        pub size: u64,
    }

    /// Body of DEVICE_GET_INFO and of its reply.
    pub struct DeviceInfo {
        /// Bytes that the sender can receive, or sends.
        pub argsz: u32,
        /// 1: resettable; 2: PCI.
        pub flags: u32,
        /// Number of regions.
        pub regions: u32,
        /// Number of interrupt indexes.
        pub irqs: u32,
    }

    /// Body of DEVICE_GET_REGION_INFO and of its reply.
    pub struct RegionInfo {
        /// Bytes that the sender can receive, or sends.
        pub argsz: u32,
        /// 1: readable; 2: writable; 4: may be mapped, by the descriptor that comes along. A single region with 4 ends
        /// posted writes for the whole device, so the board has none.
        pub flags: u32,
        pub index: u32,
        /// Offset of the capabilities in this structure; 0, there are none.
        pub cap_offset: u32,
        /// Size of the region in bytes.
        pub size: u64,
        /// Offset of the region in the file to be mapped: 0.
        pub offset: u64,
    }

    /// Body of DEVICE_GET_IRQ_INFO and of its reply.
    pub struct IrqInfo {
        /// Bytes that the sender can receive, or sends.
        pub argsz: u32,
        /// 1: interrupts are signalled through event descriptors.
        pub flags: u32,
        pub index: u32,
        /// Number of vectors of this index.
        pub count: u32,
    }

    /// Body of DEVICE_SET_IRQS, without its data.
    pub struct IrqSet {
        /// Bytes of this structure and its data.
        pub argsz: u32,
        /// Bits of [`irq_set`].
        pub flags: u32,
        pub index: u32,
        pub start: u32,
        /// Number of vectors.
        pub count: u32,
    }

    /// Body of REGION_READ and REGION_WRITE and of their replies, without the data.
    pub struct Access {
        /// Offset in the region.
        pub offset: u64,
        pub region: u32,
        /// Length in bytes.
        pub count: u32,
    }

    /// One store of REGION_WRITE_MULTI.
    pub struct SmallWrite {
        /// Region, offset, and length (at most 8 bytes).
        pub access: Access,
        /// The bytes, lowest address first.
        pub data: [u8; 8],
    }
}

impl Header {
    /// Whether the sender expects a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & flag::NO_REPLY == 0
    }
}

/// The client's capabilities in VERSION; one that is missing has the default of the specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Capabilities {
    /// Whether the client sends REGION_WRITE_MULTI if the server supports it.
    #[serde(default)]
    pub write_multiple: bool,
}

#[derive(Default, Deserialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Capabilities,
}

/// A parsed and checked message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    Version {
        /// Proposed major version.
        major: u16,
        /// Proposed minor version.
        minor: u16,
        capabilities: Capabilities,
    },
    DmaMap(DmaMap),
    DmaUnmap(DmaUnmap),
    DeviceInfo,
    /// DEVICE_GET_REGION_INFO of a region index.
    RegionInfo(u32),
    /// DEVICE_GET_IRQ_INFO of an interrupt index.
    IrqInfo(u32),
    /// DEVICE_SET_IRQS and, with DATA_BOOL, one byte per vector.
    SetIrqs(IrqSet, &'a [u8]),
    Read(Access),
    /// REGION_WRITE, with exactly `count` bytes.
    Write(Access, &'a [u8]),
    WriteMulti(SmallWrites<'a>),
    Reset,
}

/// The stores of a REGION_WRITE_MULTI; the length is a multiple of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmallWrites<'a>(&'a [u8]);

impl<'a> SmallWrites<'a> {
    /// The stores in order.
    pub fn iter(&self) -> impl Iterator<Item = SmallWrite> + 'a {
        self.0.chunks_exact(size_of::<SmallWrite>()).map(bytemuck::pod_read_unaligned)
    }
}

/// Why a message is refused; the stream continues with the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// errno of the error reply.
    pub errno: Errno,
    /// For the log: the field, its value, and what was expected.
    pub why: String,
}

impl Refused {
    /// A refusal with this errno and text.
    pub fn new(errno: Errno, why: impl Into<String>) -> Refused {
        Refused { errno, why: why.into() }
    }

    /// Refuses an invalid message.
    pub fn invalid<T>(why: impl Into<String>) -> Result<T, Refused> {
        Err(Refused::new(Errno::INVAL, why))
    }
}

/// The length of a message is invalid, so the start of the next one is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message claims {0} bytes, expected {HEADER_LEN} to {MAX_MESSAGE}: the place of the next one is lost")]
pub struct Desync(pub u32);

/// The header at the start of `bytes` and the length of its message; `None` if the header is incomplete.
pub fn frame(bytes: &[u8]) -> Result<Option<(Header, usize)>, Desync> {
    let Some(head) = bytes.get(..HEADER_LEN) else { return Ok(None) };
    let header: Header = bytemuck::pod_read_unaligned(head);
    let size = header.size as usize;
    if !(HEADER_LEN..=MAX_MESSAGE).contains(&size) {
        return Err(Desync(header.size));
    }
    Ok(Some((header, size)))
}

/// What is left of a message's body, with the name of its command.
#[derive(Clone, Copy)]
struct Body<'a> {
    name: &'static str,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn refused<T>(self, why: impl Display) -> Result<T, Refused> {
        Refused::invalid(format!("{}: {why}", self.name))
    }

    /// Takes the structure at its start.
    fn take<T: Pod>(&mut self) -> Result<T, Refused> {
        let (found, expected) = (self.rest.len(), size_of::<T>());
        let Some((head, rest)) = self.rest.split_at_checked(expected) else {
            return self.refused(format_args!("body of {found} bytes, expected at least {expected}"));
        };
        self.rest = rest;
        Ok(bytemuck::pod_read_unaligned(head))
    }

    /// All of it, which must have this length.
    fn data(self, expected: usize) -> Result<&'a [u8], Refused> {
        match self.rest.len() {
            found if found == expected => Ok(self.rest),
            found => self.refused(format_args!("{found} bytes of data, expected {expected}")),
        }
    }

    /// The structure that is all of it.
    fn whole<T: Pod>(mut self) -> Result<T, Refused> {
        let value = self.take()?;
        self.data(0).map(|_| value)
    }

    /// The structure of an information request, whose reply must fit into its `argsz`.
    fn info<T: Pod>(mut self) -> Result<T, Refused> {
        // Each of these structures begins with `argsz`.
        let (mut first, expected) = (self, size_of::<T>());
        let info = self.take()?;
        match first.take::<u32>()? {
            argsz if argsz as usize >= expected => Ok(info),
            argsz => self.refused(format_args!("argsz {argsz}, expected at least {expected}")),
        }
    }

    /// Refuses an access of no bytes or of more than [`MAX_DATA`].
    fn counted(self, access: Access) -> Result<Access, Refused> {
        match access.count as usize {
            1..=MAX_DATA => Ok(access),
            count => self.refused(format_args!("{count} bytes, expected 1 to {MAX_DATA}")),
        }
    }

    /// The JSON text of a version message, which may be missing.
    fn capabilities(self) -> Result<Capabilities, Refused> {
        match self.rest.split_last() {
            None | Some((0, [])) => Ok(Capabilities::default()),
            Some((0, text)) => match serde_json::from_slice::<VersionData>(text) {
                Ok(data) => Ok(data.capabilities),
                Err(e) => self.refused(format_args!("the capabilities are not the JSON expected: {e}")),
            },
            Some(_) => self.refused("the capabilities do not end with NUL"),
        }
    }
}

impl<'a> Request<'a> {
    /// Parses the body of a message. Never panics. Lengths and counts in the result agree with each other.
    pub fn parse(header: &Header, body: &'a [u8]) -> Result<Request<'a>, Refused> {
        let body = |name| Body { name, rest: body };
        match header.command {
            command::VERSION => {
                let mut body = body("VERSION");
                let [major, minor] = body.take()?;
                Ok(Request::Version { major, minor, capabilities: body.capabilities()? })
            }
            command::DMA_MAP => body("DMA_MAP").whole().map(Request::DmaMap),
            command::DMA_UNMAP => {
                let mut body = body("DMA_UNMAP");
                let unmap: DmaUnmap = body.take()?;
                if unmap.flags & dma_unmap::GET_DIRTY_BITMAP != 0 {
                    return Err(Refused::new(Errno::NOTSUP, "DMA_UNMAP: dirty page bitmaps are not kept"));
                }
                body.data(0).map(|_| Request::DmaUnmap(unmap))
            }
            command::DEVICE_GET_INFO => body("DEVICE_GET_INFO").info().map(|_: DeviceInfo| Request::DeviceInfo),
            command::DEVICE_GET_REGION_INFO => {
                body("DEVICE_GET_REGION_INFO").info().map(|info: RegionInfo| Request::RegionInfo(info.index))
            }
            command::DEVICE_GET_IRQ_INFO => {
                body("DEVICE_GET_IRQ_INFO").info().map(|info: IrqInfo| Request::IrqInfo(info.index))
            }
            command::DEVICE_SET_IRQS => {
                let mut body = body("DEVICE_SET_IRQS");
                let set: IrqSet = body.take()?;
                if set.flags & irq_set::DATA_BOOL != 0 {
                    Body { name: "DEVICE_SET_IRQS with DATA_BOOL", ..body }.data(set.count as usize)?;
                }
                Ok(Request::SetIrqs(set, body.rest))
            }
            command::REGION_READ => {
                let body = body("REGION_READ");
                body.counted(body.whole()?).map(Request::Read)
            }
            command::REGION_WRITE => {
                let mut body = body("REGION_WRITE");
                let access = body.take()?;
                let access = body.counted(access)?;
                Ok(Request::Write(access, body.data(access.count as usize)?))
            }
            command::REGION_WRITE_MULTI => {
                let mut body = body("REGION_WRITE_MULTI");
                let (count, found): (u64, _) = (body.take()?, body.rest.len());
                let expected = usize::try_from(count).ok().and_then(|n| n.checked_mul(size_of::<SmallWrite>()));
                if expected != Some(found) {
                    return body.refused(format_args!("{count} stores in {found} bytes, expected 24 each"));
                }
                let writes = SmallWrites(body.rest);
                match writes.iter().map(|write| write.access.count).find(|count| *count > 8) {
                    Some(count) => body.refused(format_args!("a store of {count} bytes, expected at most 8")),
                    None => Ok(Request::WriteMulti(writes)),
                }
            }
            command::DEVICE_RESET => Ok(Request::Reset),
            // This includes GET_REGION_IO_FDS and DIRTY_PAGES, and DMA_READ and DMA_WRITE, which only a server sends.
            other => Err(Refused::new(Errno::NOTSUP, format!("command {other} is not supported"))),
        }
    }
}

/// The capabilities of this server, a subset of the client's: JSON, NUL-terminated.
pub fn version_reply(client: Capabilities) -> Vec<u8> {
    let mut text = format!(r#"{{"capabilities":{{"max_msg_fds":{MAX_FDS},"max_data_xfer_size":{MAX_DATA}"#);
    if client.write_multiple {
        text.push_str(r#","write_multiple":true"#);
    }
    text.push_str("}}\0");
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(command: u16, body: usize) -> Header {
        Header { id: 1, command, size: (HEADER_LEN + body) as u32, flags: 0, error: 0 }
    }

    #[test]
    fn the_layouts_are_those_of_the_specification() {
        assert_eq!(size_of::<Header>(), 16);
        assert_eq!(size_of::<DmaMap>(), 32);
        assert_eq!(size_of::<DmaUnmap>(), 24);
        assert_eq!(size_of::<DeviceInfo>(), 16);
        assert_eq!(size_of::<RegionInfo>(), 32);
        assert_eq!(size_of::<IrqInfo>(), 16);
        assert_eq!(size_of::<IrqSet>(), 20);
        assert_eq!(size_of::<Access>(), 16);
        assert_eq!(size_of::<SmallWrite>(), 24);
    }

    #[test]
    fn qemus_version_message_is_understood() {
        let json = br#"{"capabilities": {"max_msg_fds": 16, "max_data_xfer_size": 1048576, "write_multiple": true, "migration": {"pgsize": 4096}}}"#;
        let mut body = vec![0, 0, 0, 0];
        body.extend_from_slice(json);
        body.push(0);
        let request = Request::parse(&header(command::VERSION, body.len()), &body).unwrap();
        let capabilities = Capabilities { write_multiple: true };
        assert_eq!(request, Request::Version { major: 0, minor: 0, capabilities });
        // QEMU's buffer for the reply is as long as its request.
        assert!(version_reply(capabilities).len() <= json.len());
    }

    #[test]
    fn a_version_without_capabilities_has_the_defaults() {
        for body in [&[0, 0, 1, 0][..], &[0, 0, 1, 0, 0], b"\0\0\x01\0{}\0"] {
            let request = Request::parse(&header(command::VERSION, body.len()), body).unwrap();
            assert_eq!(request, Request::Version { major: 0, minor: 1, capabilities: Capabilities::default() });
        }
        for body in [&[0, 0, 1][..], b"\0\0\x01\0{}", b"\0\0\x01\0{\0", b"\0\0\x01\0\xff\xff\0"] {
            assert_eq!(Request::parse(&header(command::VERSION, body.len()), body).unwrap_err().errno, Errno::INVAL);
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_kept() {
        for (size, ok) in [(0u32, false), (15, false), (16, true), (MAX_MESSAGE as u32, true), (u32::MAX, false)] {
            let bytes = bytemuck::bytes_of(&Header { size, ..header(9, 0) }).to_vec();
            assert_eq!(frame(&bytes).is_ok(), ok, "{size}");
        }
        assert_eq!(frame(&[0xff; 15]), Ok(None));
    }

    #[test]
    fn counts_that_disagree_with_lengths_are_refused() {
        let access = |count| Access { offset: 0, region: 0, count };
        let mut body = bytemuck::bytes_of(&access(4)).to_vec();
        body.extend_from_slice(&[1, 2, 3]);
        assert!(Request::parse(&header(command::REGION_WRITE, body.len()), &body).is_err());
        body.push(4);
        assert!(Request::parse(&header(command::REGION_WRITE, body.len()), &body).is_ok());
        for count in [0, MAX_DATA as u32 + 1, u32::MAX] {
            let body = bytemuck::bytes_of(&access(count)).to_vec();
            assert!(Request::parse(&header(command::REGION_READ, body.len()), &body).is_err());
        }
        for count in [0u64, 2, u64::MAX, u64::MAX / 24 + 1] {
            let mut body = count.to_le_bytes().to_vec();
            body.extend_from_slice(bytemuck::bytes_of(&SmallWrite::default()));
            assert!(Request::parse(&header(command::REGION_WRITE_MULTI, body.len()), &body).is_err());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(command in 0u16..20, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = frame(&body);
            if let Ok(Request::WriteMulti(writes)) = Request::parse(&header(command, body.len()), &body) {
                prop_assert!(writes.iter().all(|w| w.access.count <= 8));
            }
        }
    }
}
