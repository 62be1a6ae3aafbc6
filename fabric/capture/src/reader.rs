// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads captures, as far as they go.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, InterfaceDescriptionBlock, PcapNGOption, parse_block_be, parse_block_le};

use crate::config::{FORMAT, Header, TITLE};
use crate::pcapng::{self, Direction};
use crate::{Link, SwitchId};

/// Bytes of one block, at most: beyond it a file is damaged. The header of the largest topology has room.
const MAX_BLOCK: usize = 8 << 20;
/// Bytes of the shortest block; in a section header they include the order of bytes.
const SHORTEST_BLOCK: usize = 12;

/// One frame or record of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its number in the file, from 1, as Wireshark counts.
    pub index: u64,
    /// Microseconds of the fabric's clock.
    pub time: u64,
    pub link: Link,
    /// The switch it was captured at.
    pub switch: SwitchId,
    pub direction: Direction,
    /// The connection, of a frame.
    pub port: Option<u32>,
    /// The frame, or the record.
    pub bytes: Vec<u8>,
    /// Bytes that it had: more than those captured, if it was cut off.
    pub length: u32,
    /// What was said about it.
    pub comments: Vec<String>,
}

/// Why a capture cannot be read, or not any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the capture {}: {why}", file.display())]
    Io { file: PathBuf, why: String },
    /// It is no capture of a fabric.
    #[error("{} is no capture of a Telegraphos fabric: {why}; expected a pcapng file written by telegraphos-fabric --capture", file.display())]
    Foreign { file: PathBuf, why: String },
    /// It ends in the middle of a block.
    #[error("the capture {} is cut off: it ends in the middle of the block at byte {offset}, after {records} whole records", file.display())]
    Cut {
        file: PathBuf,
        /// Where the block begins that is not whole.
        offset: u64,
        /// Records before it.
        records: u64,
    },
    /// A block is not what it should be.
    #[error("the capture {} is damaged at byte {offset}, after {records} whole records: {why}", file.display())]
    Damaged {
        file: PathBuf,
        offset: u64,
        /// Records before it.
        records: u64,
        why: String,
    },
}

/// A capture, record by record.
#[derive(Debug)]
pub struct Reader {
    input: BufReader<File>,
    file: PathBuf,
    header: Header,
    /// The link of each interface and the switch it belongs to.
    interfaces: Vec<(Link, SwitchId)>,
    big_endian: bool,
    records: u64,
    /// The block that was read last, and where it begins.
    block: Vec<u8>,
    offset: u64,
}

impl Reader {
    /// Opens a capture and reads its header.
    pub fn open(file: &Path) -> Result<Reader, ReadError> {
        let io = |why: String| ReadError::Io { file: file.to_owned(), why };
        let opened = File::open(file).map_err(|e| io(e.to_string()))?;
        if opened.metadata().map_err(|e| io(e.to_string()))?.is_dir() {
            return Err(io("it is a directory".into()));
        }
        let mut reader = Reader {
            input: BufReader::with_capacity(64 << 10, opened),
            file: file.to_owned(),
            header: Header::new(0, Vec::new(), false, &[]),
            interfaces: Vec::new(),
            big_endian: false,
            records: 0,
            block: Vec::new(),
            offset: 0,
        };
        let read = reader.next_block();
        let foreign = |why: String| ReadError::Foreign { file: file.to_owned(), why };
        let begins = &reader.block[..reader.block.len().min(4)];
        if !pcapng::SECTION_HEADER.to_le_bytes().starts_with(begins) {
            return Err(foreign("it does not begin as a pcapng file does".into()));
        }
        if !read? {
            return Err(reader.cut());
        }
        let Ok((_, Block::SectionHeader(section))) = parse_block_le(&reader.block) else {
            return Err(foreign("it does not begin as a pcapng file does".into()));
        };
        reader.header = read_header(&text(&section.options, pcapng::COMMENT).concat()).map_err(foreign)?;
        Ok(reader)
    }

    /// The configuration in the file's section header.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// The links it was limited to; none means all.
    pub fn links(&self) -> &[String] {
        &self.header.links
    }

    /// The next frame or record; `None` at the end of a file that ends where a block ends. After an error there is
    /// nothing more.
    pub fn next_record(&mut self) -> Result<Option<Captured>, ReadError> {
        while self.next_block()? {
            if let Some(captured) = self.take_block().map_err(|why| self.damaged(why))? {
                self.records += 1;
                return Ok(Some(captured));
            }
        }
        Ok(None)
    }

    /// Reads the next block; false at the end of the file.
    fn next_block(&mut self) -> Result<bool, ReadError> {
        self.offset += self.block.len() as u64;
        self.block.clear();
        let whole = self.fill(SHORTEST_BLOCK)?;
        if self.block.is_empty() {
            return Ok(false);
        }
        let words: [[u8; 4]; 3] = std::array::from_fn(|at| field(&self.block, 4 * at));
        if u32::from_le_bytes(words[0]) == pcapng::SECTION_HEADER {
            self.big_endian = u32::from_be_bytes(words[2]) == pcapng::BYTE_ORDER;
        }
        let length = self.number(words[1]) as usize;
        if whole && length > MAX_BLOCK {
            return Err(self.damaged("a block says that it is longer than any can be".into()));
        }
        if whole && self.fill(length)? { Ok(true) } else { Err(self.cut()) }
    }

    /// Reads until the block has `length` bytes; false if the file ends before.
    fn fill(&mut self, length: usize) -> Result<bool, ReadError> {
        let more = length.saturating_sub(self.block.len()) as u64;
        let read = self.input.by_ref().take(more).read_to_end(&mut self.block);
        read.map_err(|e| ReadError::Io { file: self.file.clone(), why: e.to_string() })?;
        Ok(self.block.len() >= length)
    }

    fn cut(&self) -> ReadError {
        ReadError::Cut { file: self.file.clone(), offset: self.offset, records: self.records }
    }

    fn damaged(&self, why: String) -> ReadError {
        ReadError::Damaged { file: self.file.clone(), offset: self.offset, records: self.records, why }
    }

    fn number(&self, bytes: [u8; 4]) -> u32 {
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    /// Notes what the block that was read describes, or returns the frame or record in it.
    fn take_block(&mut self) -> Result<Option<Captured>, String> {
        let parse = if self.big_endian { parse_block_be } else { parse_block_le };
        let (_, block) = parse(&self.block).map_err(|_| "these bytes are no pcapng block")?;
        match block {
            Block::SectionHeader(_) => {
                Err("a second section begins: expected one, files that were joined cannot be read".into())
            }
            Block::InterfaceDescription(interface) => {
                self.interfaces.push(read_interface(&interface)?);
                Ok(None)
            }
            Block::EnhancedPacket(packet) => {
                let Some((link, switch)) = self.interfaces.get(packet.if_id as usize).copied() else {
                    return Err(format!("a packet of interface {}, which is not described", packet.if_id));
                };
                let since_1970 = i64::from(packet.ts_high) << 32 | i64::from(packet.ts_low);
                let number = |code| Some(self.number(value(&packet.options, code)?.try_into().ok()?));
                Ok(Some(Captured {
                    index: self.records + 1,
                    time: since_1970.saturating_sub(self.header.epoch).max(0) as u64,
                    link,
                    switch,
                    direction: number(pcapng::EPB_FLAGS).map_or(Direction::None, Direction::from_flags),
                    port: number(pcapng::EPB_QUEUE),
                    bytes: packet.packet_data().to_vec(),
                    length: packet.origlen,
                    comments: text(&packet.options, pcapng::COMMENT),
                }))
            }
            _ => Ok(None),
        }
    }
}

fn field(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or_default()
}

fn text(options: &[PcapNGOption<'_>], code: u16) -> Vec<String> {
    let found = options.iter().filter(|option| option.code.0 == code);
    found.filter_map(|option| Some(String::from_utf8_lossy(option.as_bytes().ok()?).into_owned())).collect()
}

fn value<'a>(options: &'a [PcapNGOption<'_>], code: u16) -> Option<&'a [u8]> {
    options.iter().find(|option| option.code.0 == code)?.as_bytes().ok()
}

fn read_interface(interface: &InterfaceDescriptionBlock<'_>) -> Result<(Link, SwitchId), String> {
    let option = |code| text(&interface.options, code).pop().unwrap_or_default();
    let (name, at) = (option(pcapng::IF_NAME), option(pcapng::IF_DESCRIPTION));
    let resolution = value(&interface.options, pcapng::IF_TSRESOL).and_then(|value| value.first().copied());
    if resolution.unwrap_or(pcapng::MICROSECONDS) != pcapng::MICROSECONDS {
        return Err(format!("the timestamps of interface {name:?} are not in microseconds"));
    }
    match (name.parse::<Link>().map_err(|e| e.to_string())?, at.parse::<Link>()) {
        (link, Ok(Link::Switch(switch))) => Ok((link, switch)),
        _ => Err(format!("interface {name:?} is described as {at:?}: expected the switch it belongs to")),
    }
}

fn read_header(comment: &str) -> Result<Header, String> {
    if !comment.contains(TITLE.trim_end()) {
        return Err("its section header has no such comment".into());
    }
    // The version first: another one has other keys.
    #[derive(serde::Deserialize)]
    struct Format {
        format: u32,
    }
    let why = |e: toml::de::Error| format!("the configuration in its section header: {}", e.to_string().trim_end());
    let format = toml::from_str::<Format>(comment).map_err(why)?.format;
    if format != FORMAT {
        return Err(format!("its format is {format}: expected {FORMAT}, so take the telegraphos that wrote it"));
    }
    toml::from_str(comment).map_err(why)
}
