// SPDX-License-Identifier: MIT OR Apache-2.0
//! An image of the map in memory: a JPEG, which is decoded and scaled down when it is wanted.

use super::plan::{HEIGHT, PIXEL, Scale, Tile, WIDTH};
use super::terrain::{self, Palette};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;

/// Bytes of a JPEG, at most. Those of the map have a tenth of that.
pub(crate) const MOST: usize = 1 << 20;
const QUALITY: u8 = 80;

/// A JPEG, and what its bytes were when it came: a decoder does not notice all that can happen to them.
#[derive(Debug)]
pub(crate) struct Image {
    jpeg: Vec<u8>,
    checksum: u32,
}

impl Image {
    /// With these bytes, whatever they are.
    pub(crate) fn new(jpeg: Vec<u8>) -> Image {
        Image { checksum: crc32c::crc32c(&jpeg), jpeg }
    }

    /// That of a seed.
    pub(crate) fn draw(seed: u64, palette: &Palette, tile: Tile) -> Result<Image, String> {
        let mut jpeg = Vec::new();
        let mut encoder = Encoder::new(&mut jpeg, QUALITY);
        // Colours at full resolution, as their noise has it.
        encoder.set_sampling_factor(SamplingFactor::R_4_4_4);
        encoder
            .encode(&terrain::draw(seed, palette, tile), WIDTH as u16, HEIGHT as u16, ColorType::Rgb)
            .map_err(|error| format!("tile {tile} could not be encoded: {error}"))?;
        Ok(Image::new(jpeg))
    }

    pub(crate) fn jpeg(&self) -> &[u8] {
        &self.jpeg
    }

    /// Changes its bytes as failing memory would.
    pub(crate) fn damage(&mut self) {
        let middle = self.jpeg.len() / 2;
        self.jpeg.iter_mut().skip(middle).step_by(97).take(8).for_each(|byte| *byte ^= 0x10);
    }

    /// Its pixels at a scale, row by row: each is the mean of those that it stands for.
    pub(crate) fn scaled(&self, scale: Scale) -> Result<Vec<u8>, String> {
        let checksum = crc32c::crc32c(&self.jpeg);
        if checksum != self.checksum {
            return Err(format!(
                "the JPEG is broken: its checksum is {checksum:08x}: expected {:08x}; its memory has changed",
                self.checksum
            ));
        }
        Ok(scaled_down(&self.decoded()?, scale))
    }

    fn decoded(&self) -> Result<Vec<u8>, String> {
        let broken = |error: DecodeErrors| format!("the JPEG is broken: {error}");
        let mut decoder = JpegDecoder::new(ZCursor::new(&self.jpeg));
        decoder.decode_headers().map_err(broken)?;
        // Before anything is allocated for its pixels.
        let (width, height) = decoder.dimensions().unwrap_or_default();
        let colours = decoder.input_colorspace();
        if (width, height) != (WIDTH as usize, HEIGHT as usize) || colours != Some(ColorSpace::YCbCr) {
            let colours = colours.unwrap_or(ColorSpace::Unknown);
            return Err(format!(
                "the JPEG has {width}x{height} pixels of {colours:?}: expected {WIDTH}x{HEIGHT} of {:?}",
                ColorSpace::YCbCr
            ));
        }
        decoder.decode().map_err(broken)
    }
}

fn scaled_down(pixels: &[u8], scale: Scale) -> Vec<u8> {
    let (factor, width) = (scale.pixels() as usize, scale.size().0 as usize);
    let count = (factor * factor) as u32;
    let mut scaled = Vec::with_capacity(scale.bytes());
    for rows in pixels.chunks_exact(WIDTH as usize * PIXEL * factor) {
        let mut sums = vec![[0_u32; PIXEL]; width];
        for row in rows.chunks_exact(WIDTH as usize * PIXEL) {
            for (sum, square) in sums.iter_mut().zip(row.chunks_exact(PIXEL * factor)) {
                for pixel in square.chunks_exact(PIXEL) {
                    sum.iter_mut().zip(pixel).for_each(|(sum, part)| *sum += u32::from(*part));
                }
            }
        }
        // Rounded; a mean of bytes is a byte.
        scaled.extend(sums.iter().flatten().map(|sum| ((sum + count / 2) / count) as u8));
    }
    scaled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile() -> Tile {
        Tile::new(5, 6).unwrap()
    }

    #[test]
    fn a_jpeg_has_nearly_the_pixels_that_were_drawn() {
        let (image, drawn) =
            (Image::draw(1, &Palette::new(), tile()).unwrap(), terrain::draw(1, &Palette::new(), tile()));
        assert!(image.jpeg().len() < MOST / 4, "{} bytes", image.jpeg().len());
        let decoded = image.scaled(Scale::ALL[0]).unwrap();
        assert_eq!(decoded.len(), drawn.len());
        let error: u64 = decoded.iter().zip(&drawn).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        assert!(error < 6 * drawn.len() as u64, "{} on average", error / drawn.len() as u64);
    }

    #[test]
    fn scaled_pixels_are_means() {
        let row = WIDTH as usize * PIXEL;
        // Red counts columns, green rows, blue is always the same.
        let pixel = |at: usize| [(at % WIDTH as usize % 5) as u8, (at / WIDTH as usize % 5) as u8, 77];
        let pixels: Vec<u8> = (0..(WIDTH * HEIGHT) as usize).flat_map(pixel).collect();
        assert_eq!(scaled_down(&pixels, Scale::ALL[0]), pixels);
        let by_five = scaled_down(&pixels, Scale::new(5).unwrap());
        assert_eq!(by_five.len(), Scale::new(5).unwrap().bytes());
        assert!(by_five.chunks(PIXEL).all(|pixel| pixel == [2, 2, 77]));
        let by_two = scaled_down(&pixels, Scale::new(2).unwrap());
        // (0+1)/2 and (2+3)/2 are rounded up, as are (4+0)/2 and so on.
        assert_eq!(by_two[..4 * PIXEL], [1, 1, 77, 3, 1, 77, 2, 1, 77, 2, 1, 77]);
        assert_eq!(pixels[row..row + PIXEL], [0, 1, 77]);
    }

    #[test]
    fn what_is_broken_is_no_picture() {
        let refused = |image: &Image, words: &str| {
            let error = image.scaled(Scale::ALL[6]).unwrap_err();
            assert!(error.contains(words), "{error}: expected {words:?}");
        };
        let mut image = Image::draw(1, &Palette::new(), tile()).unwrap();
        let whole = image.jpeg().to_vec();
        image.damage();
        refused(&image, "the JPEG is broken: its checksum is");
        // Broken when they came.
        refused(&Image::new(Vec::new()), "the JPEG is broken");
        refused(&Image::new(vec![7; 1000]), "the JPEG is broken");
        refused(&Image::new(whole[..100].to_vec()), "the JPEG is broken");
        let mut small = Vec::new();
        Encoder::new(&mut small, QUALITY).encode(&[0; 12], 2, 2, ColorType::Rgb).unwrap();
        refused(&Image::new(small), "the JPEG has 2x2 pixels of YCbCr: expected 640x480 of YCbCr");
        let mut grey = Vec::new();
        let pixels = vec![0; (WIDTH * HEIGHT) as usize];
        Encoder::new(&mut grey, QUALITY).encode(&pixels, WIDTH as u16, HEIGHT as u16, ColorType::Luma).unwrap();
        refused(&Image::new(grey), "the JPEG has 640x480 pixels of Luma: expected 640x480 of YCbCr");
    }
}
