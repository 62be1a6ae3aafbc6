// SPDX-License-Identifier: MIT OR Apache-2.0
//! The picture in the window, made of scaled images (s4's `imgViewer`).

use super::loader::Loader;
use super::plan::{PIXEL, Scale, Tile, WINDOW};
use png::{BitDepth, ColorType, Compression, Encoder, Filter};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use telegraphos_guest_tests::cli::{Failure, Outcome};

/// Pixels of the window, row by row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pixels: Vec<u8>,
}

/// Where a tile begins in the window, and how many of its columns and rows are in there.
struct Place {
    left: usize,
    top: usize,
    columns: usize,
    rows: usize,
}

fn place(tile: Tile, scale: Scale) -> Place {
    let (width, height) = scale.size();
    let (left, top) = (u32::from(tile.column()) * width, u32::from(tile.row()) * height);
    Place {
        left: left as usize,
        top: top as usize,
        columns: width.min(WINDOW.saturating_sub(left)) as usize,
        rows: height.min(WINDOW.saturating_sub(top)) as usize,
    }
}

impl Picture {
    /// Has a loader load all tiles of a window, and puts them together.
    pub(crate) fn draw(loader: &dyn Loader, scale: Scale) -> Outcome<Picture> {
        let tiles = scale.tiles();
        let picture = Mutex::new((vec![0; (WINDOW * WINDOW) as usize * PIXEL], 0));
        loader.load(scale, &tiles, &|tile, pixels| {
            if pixels.len() != scale.bytes() {
                let (found, expected) = (pixels.len(), scale.bytes());
                return Err(Failure::Check(format!("tile {tile} has {found} bytes at {scale}: expected {expected}")));
            }
            let mut picture = picture.lock().unwrap_or_else(PoisonError::into_inner);
            paste(&mut picture.0, tile, scale, pixels);
            picture.1 += 1;
            Ok(())
        })?;
        let (pixels, loaded) = picture.into_inner().unwrap_or_else(PoisonError::into_inner);
        match loaded == tiles.len() {
            true => Ok(Picture { pixels }),
            false => Err(Failure::Check(format!("{loaded} tiles were loaded at {scale}: expected {}", tiles.len()))),
        }
    }

    pub(crate) fn checksum(&self) -> u32 {
        crc32c::crc32c(&self.pixels)
    }

    /// Fails with the first tile that differs from the same one in another picture.
    pub(crate) fn compare(&self, expected: &Picture, scale: Scale) -> Outcome<()> {
        let differ = |(found, expected): (&[u8], &[u8])| found != expected;
        let pairs = || self.pixels.chunks(PIXEL).zip(expected.pixels.chunks(PIXEL));
        let Some(first) = pairs().position(differ) else { return Ok(()) };
        let (x, y) = (first % WINDOW as usize, first / WINDOW as usize);
        let tile = scale.tiles().into_iter().find(|tile| {
            let Place { left, top, columns, rows } = place(*tile, scale);
            (left..left + columns).contains(&x) && (top..top + rows).contains(&y)
        });
        let tile = tile.map_or("none".to_owned(), |tile| tile.to_string());
        let count = pairs().filter(|pair| differ(*pair)).count();
        Err(Failure::Check(format!("{count} pixels differ at {scale}, the first at {x},{y}, in tile {tile}")))
    }

    /// Writes it to a file, with 32 levels of each colour: the noise that JPEGs have would treble its size.
    pub(crate) fn write_png(&self, path: &Path) -> Outcome<()> {
        let refused = |error: String| Failure::Refused(format!("{}: {error}", path.display()));
        let file = BufWriter::new(File::create(path).map_err(|error| refused(error.to_string()))?);
        // In the middle of those that become the same.
        let pixels: Vec<u8> = self.pixels.iter().map(|part| part & !7 | 4).collect();
        let mut encoder = Encoder::new(file, WINDOW, WINDOW);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        encoder.set_compression(Compression::High);
        encoder.set_filter(Filter::Up);
        let written = encoder.write_header().and_then(|mut writer| {
            writer.write_image_data(&pixels)?;
            writer.finish()
        });
        written.map_err(|error| refused(error.to_string()))
    }
}

/// Copies what is in the window of a tile.
fn paste(window: &mut [u8], tile: Tile, scale: Scale, pixels: &[u8]) {
    let Place { left, top, columns, rows } = place(tile, scale);
    let from = pixels.chunks_exact(scale.size().0 as usize * PIXEL);
    let to = window.chunks_exact_mut(WINDOW as usize * PIXEL).skip(top);
    for (from, to) in from.take(rows).zip(to) {
        to[left * PIXEL..(left + columns) * PIXEL].copy_from_slice(&from[..columns * PIXEL]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::loader::Place as Put;
    use super::*;

    /// Each pixel of a tile has the tile's column, row, and its own number.
    struct Numbers {
        wrong: Option<Tile>,
        missing: bool,
    }

    fn numbers(tile: Tile, scale: Scale) -> Vec<u8> {
        (0..scale.bytes() / PIXEL).flat_map(|n| [tile.column() as u8, tile.row() as u8, n as u8]).collect()
    }

    impl Loader for Numbers {
        fn load(&self, scale: Scale, tiles: &[Tile], place: Put<'_>) -> Outcome<()> {
            for tile in &tiles[usize::from(self.missing)..] {
                let mut pixels = numbers(*tile, scale);
                if self.wrong == Some(*tile) {
                    pixels.rotate_left(PIXEL);
                }
                place(*tile, &pixels)?;
            }
            Ok(())
        }
    }

    #[test]
    fn tiles_are_where_they_belong() {
        for scale in Scale::ALL {
            let picture = Picture::draw(&Numbers { wrong: None, missing: false }, scale).unwrap();
            let (width, height) = scale.size();
            for (n, pixel) in (0..).zip(picture.pixels.chunks(PIXEL)) {
                let (x, y) = (n % WINDOW, n / WINDOW);
                let within = y % height * width + x % width;
                assert_eq!(pixel, [(x / width) as u8, (y / height) as u8, within as u8], "{scale}: {x},{y}");
            }
        }
    }

    #[test]
    fn a_wrong_tile_is_named_and_a_missing_one_is_an_error() {
        let scale = Scale::new(4).unwrap();
        let right = Picture::draw(&Numbers { wrong: None, missing: false }, scale).unwrap();
        let wrong = Numbers { wrong: Some(Tile::new(2, 3).unwrap()), missing: false };
        let wrong = Picture::draw(&wrong, scale).unwrap();
        right.compare(&right, scale).unwrap();
        let error = wrong.compare(&right, scale).unwrap_err().to_string();
        assert_eq!(error, "19200 pixels differ at 1:4, the first at 320,360, in tile 2,3");
        let error = Picture::draw(&Numbers { wrong: None, missing: true }, scale).unwrap_err().to_string();
        assert_eq!(error, "19 tiles were loaded at 1:4: expected 20");
    }
}
