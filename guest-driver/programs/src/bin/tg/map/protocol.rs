// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a viewer asks a server, and what that answers.

use super::image;
use super::plan::{Scale, Tile};

/// The thread of a server that receives.
pub(crate) const SERVER: u32 = 0;
/// Tag of an answer that is what was asked for.
pub(crate) const DONE: u32 = 0;
/// Tag of an answer that says why there is none, in at most [`REASON`] bytes of text.
pub(crate) const REFUSED: u32 = 1;
pub(crate) const REASON: usize = 512;
/// Bytes of a request, at most.
pub(crate) const LONGEST: usize = PLACE + image::MOST;

const KEEP: u32 = 2;
const SCALED: u32 = 3;
const END: u32 = 4;
/// Bytes of a tile's column and row.
const PLACE: usize = 4;

/// A request: a message with a tag and bytes, little-endian.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// Column and row (2 bytes each), and a JPEG to keep under them. The answer is empty.
    Keep { tile: Tile, jpeg: &'a [u8] },
    /// Column and row, and a scale (4 bytes). The answer is the tile's pixels at that scale.
    Scaled { tile: Tile, scale: Scale },
    /// Nothing. The answer is empty, and the server ends.
    End,
}

impl Request<'_> {
    /// Its tag and bytes.
    pub(crate) fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Request::Keep { tile, jpeg } => (KEEP, [&place(tile.column(), tile.row())[..], jpeg].concat()),
            Request::Scaled { tile, scale } => scaled(tile.column(), tile.row(), scale.pixels()),
            Request::End => (END, Vec::new()),
        }
    }

    /// What this message asks for, or what is wrong with it.
    pub(crate) fn decode(tag: u32, bytes: &[u8]) -> Result<Request<'_>, String> {
        let wrong = |expected: &str| format!("a request with tag {tag} has {} bytes: expected {expected}", bytes.len());
        match tag {
            KEEP => {
                let (tile, jpeg) = tile(bytes)?.ok_or_else(|| wrong("at least 4"))?;
                if jpeg.len() > image::MOST {
                    return Err(wrong(&format!("at most {LONGEST}")));
                }
                Ok(Request::Keep { tile, jpeg })
            }
            SCALED => {
                let (tile, scale) = tile(bytes)?.ok_or_else(|| wrong("8"))?;
                let scale = scale.try_into().map_err(|_| wrong("8"))?;
                Ok(Request::Scaled { tile, scale: Scale::new(u32::from_le_bytes(scale))? })
            }
            END => Ok(Request::End),
            _ => Err(format!("tag {tag} is no request: expected {KEEP} to {END}")),
        }
    }
}

fn place(column: u16, row: u16) -> [u8; PLACE] {
    let ([a, b], [c, d]) = (column.to_le_bytes(), row.to_le_bytes());
    [a, b, c, d]
}

/// A tile, and the bytes behind it; none if there are too few.
fn tile(bytes: &[u8]) -> Result<Option<(Tile, &[u8])>, String> {
    let Some(([a, b, c, d], rest)) = bytes.split_first_chunk::<PLACE>() else { return Ok(None) };
    Ok(Some((Tile::new(u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]))?, rest)))
}

/// The request for a tile at a scale, even where there is none.
pub(crate) fn scaled(column: u16, row: u16, scale: u32) -> (u32, Vec<u8>) {
    (SCALED, [place(column, row), scale.to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back() {
        let (tile, scale) = (Tile::new(14, 19).unwrap(), Scale::new(16).unwrap());
        let all = [Request::Keep { tile, jpeg: b"JPEG" }, Request::Scaled { tile, scale }, Request::End];
        for request in all {
            let (tag, bytes) = request.encode();
            assert_eq!(Request::decode(tag, &bytes), Ok(request));
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let long = [&[0; PLACE][..], &vec![7; image::MOST + 1]].concat();
        for (tag, bytes, words) in [
            (KEEP, &b"abc"[..], "a request with tag 2 has 3 bytes: expected at least 4"),
            (KEEP, &long, "expected at most 1048580"),
            (KEEP, &[15, 0, 0, 0, 9], "tile 15,0 is outside of the map"),
            (SCALED, b"", "expected 8"),
            (SCALED, &[0; 7], "expected 8"),
            (SCALED, &[0; 9], "expected 8"),
            (SCALED, &scaled(0, 20, 1).1, "tile 0,20 is outside of the map"),
            (SCALED, &scaled(0, 0, 3).1, "scale 3 does not exist"),
            (0, b"", "tag 0 is no request"),
            (u32::MAX, b"", "is no request"),
        ] {
            let error = Request::decode(tag, bytes).unwrap_err();
            assert!(error.contains(words), "{error}: expected {words:?}");
        }
    }
}
