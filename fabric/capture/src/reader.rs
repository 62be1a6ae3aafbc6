// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads captures, as far as they go.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGOption, PcapNGReader};

use crate::config::{FORMAT, Header, TITLE};
use crate::pcapng::{self, Direction};
use crate::{Link, SwitchId};

/// Bytes of one block, at most: beyond it a file is damaged. The header of the largest topology has room.
const MAX_BLOCK: usize = 8 << 20;

/// One frame or record of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its number in the file, from 1, as Wireshark counts.
    pub index: u64,
    /// Microseconds of the fabric's clock.
    pub time: u64,
    /// The link.
    pub link: Link,
    /// The switch it was captured at.
    pub switch: SwitchId,
    /// Which way it went.
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
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// It is no capture of a fabric.
    #[error("{} is no capture of a Telegraphos fabric: {why}; expected a pcapng file written by telegraphos-fabric --capture", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// It ends in the middle of a block.
    #[error("the capture {} is cut off: it ends in the middle of the block at byte {offset}, after {records} whole records", file.display())]
    Cut {
        /// The file.
        file: PathBuf,
        /// Where the block begins that is not whole.
        offset: u64,
        /// Records before it.
        records: u64,
    },
    /// A block is not what it should be.
    #[error("the capture {} is damaged at byte {offset}, after {records} whole records: {why}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// Records before it.
        records: u64,
        /// What is wrong.
        why: String,
    },
}

#[derive(Debug)]
struct Interface {
    link: Link,
    switch: SwitchId,
}

/// A capture, record by record.
pub struct Reader {
    inner: PcapNGReader<File>,
    file: PathBuf,
    header: Header,
    interfaces: Vec<Interface>,
    big_endian: bool,
    records: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("file", &self.file).field("records", &self.records).finish_non_exhaustive()
    }
}

/// What a block was.
enum Step {
    Header(Result<Header, String>, bool),
    Interface(Result<Interface, String>),
    Packet(Result<Captured, String>),
    Other,
}

impl Reader {
    /// Opens a capture and reads its header.
    pub fn open(file: &Path) -> Result<Reader, ReadError> {
        let io = |why: String| ReadError::Io { file: file.to_owned(), why };
        let foreign = |why: String| ReadError::Foreign { file: file.to_owned(), why };
        let opened = File::open(file).map_err(|e| io(e.to_string()))?;
        if opened.metadata().map_err(|e| io(e.to_string()))?.is_dir() {
            return Err(io("it is a directory".into()));
        }
        let inner = match PcapNGReader::new(64 << 10, opened) {
            Ok(inner) => inner,
            // Its first read may have been short, or its header long.
            Err(PcapError::Incomplete(_)) => Reader::reopen(file)?,
            Err(PcapError::ReadError) => return Err(io("reading failed".into())),
            Err(_) => return Err(foreign("it does not begin as a pcapng file does".into())),
        };
        let header = Header::new(0, Vec::new(), false, &[]);
        let mut reader =
            Reader { inner, file: file.to_owned(), header, interfaces: Vec::new(), big_endian: false, records: 0 };
        match reader.step()? {
            Some(Step::Header(Ok(header), big_endian)) => {
                reader.header = header;
                reader.big_endian = big_endian;
                Ok(reader)
            }
            Some(Step::Header(Err(why), _)) => Err(foreign(why)),
            _ => Err(foreign("it does not begin with a section header".into())),
        }
    }

    /// With a buffer for the longest header.
    fn reopen(file: &Path) -> Result<PcapNGReader<File>, ReadError> {
        let io = |why: String| ReadError::Io { file: file.to_owned(), why };
        let opened = File::open(file).map_err(|e| io(e.to_string()))?;
        PcapNGReader::new(MAX_BLOCK, opened).map_err(|e| match e {
            PcapError::Incomplete(_) if begins_like_pcapng(file) => {
                ReadError::Cut { file: file.to_owned(), offset: 0, records: 0 }
            }
            PcapError::Incomplete(_) => {
                ReadError::Foreign { file: file.to_owned(), why: "it does not begin as a pcapng file does".into() }
            }
            _ => io("reading failed".into()),
        })
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
        loop {
            let offset = self.inner.consumed() as u64;
            let damaged =
                |records, file: &Path, why| ReadError::Damaged { file: file.to_owned(), offset, records, why };
            match self.step()? {
                None => return Ok(None),
                Some(Step::Packet(Ok(captured))) => {
                    self.records += 1;
                    return Ok(Some(captured));
                }
                Some(Step::Interface(Ok(interface))) => self.interfaces.push(interface),
                Some(Step::Other) => {}
                Some(Step::Header(..)) => {
                    let why = "a second section begins: expected one, files that were joined cannot be read".into();
                    return Err(damaged(self.records, &self.file, why));
                }
                Some(Step::Packet(Err(why)) | Step::Interface(Err(why))) => {
                    return Err(damaged(self.records, &self.file, why));
                }
            }
        }
    }

    /// One block.
    fn step(&mut self) -> Result<Option<Step>, ReadError> {
        let offset = self.inner.consumed() as u64;
        let (file, records) = (self.file.clone(), self.records);
        let cut = || ReadError::Cut { file: file.clone(), offset, records };
        let damaged = |why: &str| ReadError::Damaged { file: file.clone(), offset, records, why: why.into() };
        loop {
            let (interfaces, epoch, big_endian) = (&self.interfaces, self.header.epoch, self.big_endian);
            match self.inner.next() {
                Ok((used, block)) => {
                    let step = read_block(block, interfaces, epoch, big_endian, records);
                    self.inner.consume(used);
                    return Ok(Some(step));
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::UnexpectedEof) => return Err(cut()),
                Err(PcapError::Incomplete(_)) => {
                    let before = (self.inner.data().len(), self.inner.reader_exhausted());
                    match self.inner.refill() {
                        Ok(()) => {}
                        Err(_) => return Err(ReadError::Io { file, why: "reading failed".into() }),
                    }
                    // Neither more bytes nor the end of the file.
                    if before == (self.inner.data().len(), self.inner.reader_exhausted()) && !self.inner.grow(MAX_BLOCK)
                    {
                        return Err(if before.1 { cut() } else { damaged("a block says that it is too long") });
                    }
                }
                Err(PcapError::BufferTooSmall) => {
                    // Once: then the longest valid block fits.
                    if !self.inner.grow(MAX_BLOCK) {
                        return Err(damaged("a block says that it is longer than any can be"));
                    }
                    let _ = self.inner.refill();
                }
                Err(_) => return Err(damaged("these bytes are no pcapng block")),
            }
        }
    }
}

/// As far as it goes.
fn begins_like_pcapng(file: &Path) -> bool {
    let mut first = Vec::new();
    let read = File::open(file).and_then(|file| file.take(4).read_to_end(&mut first));
    read.is_ok() && pcapng::SECTION_HEADER.to_le_bytes().starts_with(&first)
}

fn text(options: &[PcapNGOption<'_>], code: u16) -> Vec<String> {
    let found = options.iter().filter(|option| option.code.0 == code);
    found.filter_map(|option| Some(String::from_utf8_lossy(option.as_bytes().ok()?).into_owned())).collect()
}

fn number(options: &[PcapNGOption<'_>], code: u16, big_endian: bool) -> Option<u32> {
    let option = options.iter().find(|option| option.code.0 == code)?;
    let bytes = <[u8; 4]>::try_from(option.as_bytes().ok()?).ok()?;
    Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

fn read_block(block: PcapBlockOwned<'_>, interfaces: &[Interface], epoch: i64, big_endian: bool, records: u64) -> Step {
    let PcapBlockOwned::NG(block) = block else { return Step::Other };
    match block {
        Block::SectionHeader(section) => {
            let comment = text(&section.options, pcapng::COMMENT).concat();
            Step::Header(read_header(&comment), section.big_endian())
        }
        Block::InterfaceDescription(interface) => {
            let option = |code| text(&interface.options, code).pop().unwrap_or_default();
            let resolution = interface.options.iter().find(|o| o.code.0 == pcapng::IF_TSRESOL);
            let resolution = resolution.and_then(|o| o.as_bytes().ok()?.first().copied());
            let (name, at) = (option(pcapng::IF_NAME), option(pcapng::IF_DESCRIPTION));
            Step::Interface(match (name.parse::<Link>(), at.parse::<Link>()) {
                _ if resolution.unwrap_or(pcapng::MICROSECONDS) != pcapng::MICROSECONDS => {
                    Err(format!("the timestamps of interface {name:?} are not in microseconds"))
                }
                (Ok(link), Ok(Link::Switch(switch))) => Ok(Interface { link, switch }),
                (Err(e), _) => Err(e.to_string()),
                (_, _) => Err(format!("interface {name:?} is described as {at:?}: expected the switch it belongs to")),
            })
        }
        Block::EnhancedPacket(packet) => {
            let Some(interface) = interfaces.get(packet.if_id as usize) else {
                return Step::Packet(Err(format!("a packet of interface {}, which is not described", packet.if_id)));
            };
            let since_1970 = i64::from(packet.ts_high) << 32 | i64::from(packet.ts_low);
            Step::Packet(Ok(Captured {
                index: records + 1,
                time: since_1970.saturating_sub(epoch).max(0) as u64,
                link: interface.link,
                switch: interface.switch,
                direction: number(&packet.options, pcapng::EPB_FLAGS, big_endian)
                    .map_or(Direction::None, Direction::from_flags),
                port: number(&packet.options, pcapng::EPB_QUEUE, big_endian),
                bytes: packet.packet_data().to_vec(),
                length: packet.origlen,
                comments: text(&packet.options, pcapng::COMMENT),
            }))
        }
        _ => Step::Other,
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
