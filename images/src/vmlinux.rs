// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks the `vmlinux` inside a compressed x86 kernel. QEMU enters an uncompressed kernel through its PVH note, which
//! spares an emulated processor the decompression: two to three seconds of every boot.

use std::io::Read;

/// Why a file is no kernel this module can unpack.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmlinuxError {
    /// No Linux boot header of protocol 2.08 or newer.
    #[error("no x86 Linux boot header (2.08 or newer) in it; expected a Debian amd64 kernel")]
    NoHeader,
    /// The header points outside the file.
    #[error("its header says the payload is at {offset}..{end}, the file ends at {len}; fetch the kernel again")]
    Truncated {
        /// First byte of the payload.
        offset: u64,
        /// One past its last byte.
        end: u64,
        len: u64,
    },
    #[error("its payload begins with {0:02x?}; expected gzip, LZ4, XZ or Zstandard")]
    UnknownCompression([u8; 4]),
    /// The payload does not unpack.
    #[error("its payload does not unpack: {0}; fetch the kernel again")]
    Corrupt(String),
    /// The payload unpacks to something that is no ELF file.
    #[error("its payload is no ELF file")]
    NotElf,
}

/// No Debian kernel is larger; bounds what a damaged file can make us allocate.
const MAX_VMLINUX: u64 = 1 << 30;

/// The ELF kernel inside a `bzImage`. The boot protocol's header says where the payload lies (fields `setup_sects`,
/// `payload_offset`, `payload_length`), so nothing is searched for.
pub fn extract(image: &[u8]) -> Result<Vec<u8>, VmlinuxError> {
    let u32_at =
        |at: usize| image.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).map(u64::from);
    let version = image.get(0x206..0x208).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes);
    if image.get(0x202..0x206) != Some(b"HdrS") || version.is_none_or(|v| v < 0x0208) {
        return Err(VmlinuxError::NoHeader);
    }
    // The protocol reads zero as four.
    let setup = match image[0x1f1] {
        0 => 4,
        n => u64::from(n),
    };
    let (Some(offset), Some(length)) = (u32_at(0x248), u32_at(0x24c)) else {
        return Err(VmlinuxError::NoHeader);
    };
    let offset = (setup + 1) * 512 + offset;
    let end = offset + length;
    let payload = image.get(offset as usize..end as usize).ok_or(VmlinuxError::Truncated {
        offset,
        end,
        len: image.len() as u64,
    })?;
    let elf = match payload {
        [0x1f, 0x8b, ..] => read_all(flate2::read::GzDecoder::new(payload))?,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder =
                ruzstd::decoding::StreamingDecoder::new(payload).map_err(|e| VmlinuxError::Corrupt(e.to_string()))?;
            read_all(decoder)?
        }
        [0x02, 0x21, 0x4c, 0x18, rest @ ..] => lz4_legacy(rest)?,
        [0xfd, b'7', b'z', b'X', ..] => read_all(lzma_rust2::XzReader::new(payload, false))?,
        _ => {
            let magic = std::array::from_fn(|n| payload.get(n).copied().unwrap_or(0));
            return Err(VmlinuxError::UnknownCompression(magic));
        }
    };
    if elf.starts_with(b"\x7fELF") { Ok(elf) } else { Err(VmlinuxError::NotElf) }
}

fn read_all(reader: impl Read) -> Result<Vec<u8>, VmlinuxError> {
    let mut out = Vec::new();
    reader.take(MAX_VMLINUX).read_to_end(&mut out).map_err(|e| VmlinuxError::Corrupt(e.to_string()))?;
    Ok(out)
}

/// LZ4's old stream format: blocks of {compressed length, bytes}, each up to 8 MiB unpacked. The kernel's build
/// appends four bytes with the unpacked size, which end the loop.
fn lz4_legacy(mut rest: &[u8]) -> Result<Vec<u8>, VmlinuxError> {
    const BLOCK: usize = 8 << 20;
    let mut out = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        if tail.is_empty() {
            break;
        }
        let length = u32::from_le_bytes(*length) as usize;
        let block = tail
            .get(..length)
            .ok_or_else(|| VmlinuxError::Corrupt(format!("a block of {length} bytes, {} are left", tail.len())))?;
        let unpacked = lz4_flex::block::decompress(block, BLOCK).map_err(|e| VmlinuxError::Corrupt(e.to_string()))?;
        out.extend_from_slice(&unpacked);
        if out.len() as u64 > MAX_VMLINUX {
            return Err(VmlinuxError::Corrupt(format!("more than {MAX_VMLINUX} bytes")));
        }
        rest = &tail[length..];
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A bzImage with the given payload: two setup sectors, then a stretch of code, then the payload.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut v = vec![0u8; 3 * 512 + 64];
        v[0x1f1] = 2;
        v[0x202..0x206].copy_from_slice(b"HdrS");
        v[0x206..0x208].copy_from_slice(&0x020fu16.to_le_bytes());
        v[0x248..0x24c].copy_from_slice(&64u32.to_le_bytes());
        v[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        v.extend_from_slice(payload);
        v.extend_from_slice(b"signature");
        v
    }

    fn elf(len: usize) -> Vec<u8> {
        let mut v = b"\x7fELF".to_vec();
        v.extend((0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 27) as u8));
        v
    }

    fn lz4(content: &[u8]) -> Vec<u8> {
        let mut v = vec![0x02, 0x21, 0x4c, 0x18];
        for chunk in content.chunks(8 << 20) {
            // Stored literals only: token 15 << 4, length continued in bytes of 255, then the literals.
            let mut block = vec![0xf0];
            let mut left = chunk.len() - 15;
            while left >= 255 {
                block.push(255);
                left -= 255;
            }
            block.push(left as u8);
            block.extend_from_slice(chunk);
            v.extend_from_slice(&(block.len() as u32).to_le_bytes());
            v.extend(block);
        }
        v.extend_from_slice(&(content.len() as u32).to_le_bytes());
        v
    }

    #[test]
    fn gzip_lz4_zstd_and_xz_unpack() {
        let kernel = elf(9 << 20);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&kernel).unwrap();
        assert!(extract(&image(&gz.finish().unwrap())).unwrap() == kernel);
        assert!(extract(&image(&lz4(&kernel))).unwrap() == kernel);
        let small = elf(70_000);
        let mut z = ruzstd::encoding::compress_to_vec(&small[..], ruzstd::encoding::CompressionLevel::Fastest);
        z.extend_from_slice(&(small.len() as u32).to_le_bytes());
        assert!(extract(&image(&z)).unwrap() == small);
        // As the kernel's build does: calls of x86 code are filtered, and the unpacked size follows.
        let mut options = lzma_rust2::XzOptions::with_preset(1);
        options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
        let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        xz.write_all(&small).unwrap();
        let mut xz = xz.finish().unwrap();
        xz.extend_from_slice(&(small.len() as u32).to_le_bytes());
        assert!(extract(&image(&xz)).unwrap() == small);
    }

    #[test]
    fn bad_images_are_named() {
        assert_eq!(extract(b"short"), Err(VmlinuxError::NoHeader));
        assert_eq!(extract(&image(b"BZh9....")), Err(VmlinuxError::UnknownCompression(*b"BZh9")));
        let mut cut = image(&lz4(&elf(1000)));
        cut.truncate(3 * 512 + 100);
        assert!(matches!(extract(&cut), Err(VmlinuxError::Truncated { .. })));
        assert_eq!(extract(&image(&lz4(&[b'x'; 500]))), Err(VmlinuxError::NotElf));
        let mut long_block = lz4(&elf(1000));
        long_block[4] = 0xff;
        assert!(matches!(extract(&image(&long_block)), Err(VmlinuxError::Corrupt(_))));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes: Vec<u8>, flip in 0usize..4000, to: u8) {
            let _ = extract(&bytes);
            let mut good = image(&lz4(&elf(2000)));
            let at = flip % good.len();
            good[at] = to;
            let _ = extract(&good);
            bytes.resize(0x300, 0);
            bytes[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
            let _ = extract(&bytes);
        }
    }
}
