// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the map's images are, and which of them a window shows (s4 §7.1).

use std::fmt;

/// Pixels of an image.
pub(crate) const WIDTH: u32 = 640;
/// Pixels of an image.
pub(crate) const HEIGHT: u32 = 480;
/// Images of the map, side by side.
pub(crate) const COLUMNS: u16 = 15;
/// Images of the map, one below the other.
pub(crate) const ROWS: u16 = 20;
/// Pixels of the window, which is a square.
pub(crate) const WINDOW: u32 = 600;
/// Bytes of a pixel: red, green, blue.
pub(crate) const PIXEL: usize = 3;

/// An image of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    column: u16,
    row: u16,
}

impl Tile {
    /// That of this column and row, both from 0.
    pub(crate) fn new(column: u16, row: u16) -> Result<Tile, String> {
        if column < COLUMNS && row < ROWS {
            return Ok(Tile { column, row });
        }
        let (columns, rows) = (COLUMNS - 1, ROWS - 1);
        Err(format!("tile {column},{row} is outside of the map: expected columns 0 to {columns} and rows 0 to {rows}"))
    }

    pub(crate) fn column(self) -> u16 {
        self.column
    }

    pub(crate) fn row(self) -> u16 {
        self.row
    }

    /// Which of so many servers has it, and no other: the "simple hash function" of s4 §7.2.
    pub(crate) fn server(self, servers: usize) -> usize {
        usize::from(self.column + self.row) % servers.max(1)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.column, self.row)
    }
}

/// Pixels of the map, in each direction, that become one of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale(u32);

impl Scale {
    /// The paper's seven.
    pub(crate) const ALL: [Scale; 7] = [Scale(1), Scale(2), Scale(4), Scale(5), Scale(8), Scale(10), Scale(16)];

    /// One of [`Scale::ALL`], which all divide an image without a rest.
    pub(crate) fn new(scale: u32) -> Result<Scale, String> {
        Scale::ALL
            .into_iter()
            .find(|other| other.0 == scale)
            .ok_or_else(|| format!("scale {scale} does not exist: expected 1, 2, 4, 5, 8, 10 or 16"))
    }

    pub(crate) fn pixels(self) -> u32 {
        self.0
    }

    /// Pixels of an image in the window: columns and rows.
    pub(crate) fn size(self) -> (u32, u32) {
        (WIDTH / self.0, HEIGHT / self.0)
    }

    /// Bytes of an image in the window.
    pub(crate) fn bytes(self) -> usize {
        let (width, height) = self.size();
        width as usize * height as usize * PIXEL
    }

    /// The images that the window shows at least in part. It shows the upper left of the map.
    pub(crate) fn tiles(self) -> Vec<Tile> {
        let (width, height) = self.size();
        // No more than the map has: at the largest scale it just fits.
        let (columns, rows) = (WINDOW.div_ceil(width) as u16, WINDOW.div_ceil(height) as u16);
        (0..rows).flat_map(|row| (0..columns).map(move |column| Tile { column, row })).collect()
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_windows_show_2_to_300_images() {
        let tiles = Scale::ALL.map(|scale| scale.tiles().len());
        assert_eq!(tiles, [2, 6, 20, 35, 80, 130, 300]);
        for scale in Scale::ALL {
            assert_eq!((WIDTH % scale.pixels(), HEIGHT % scale.pixels()), (0, 0), "{scale}");
            for tile in scale.tiles() {
                assert_eq!(Tile::new(tile.column(), tile.row()), Ok(tile));
            }
        }
        assert_eq!(Scale::ALL[6].size(), (40, 30));
    }

    #[test]
    fn servers_have_equal_shares() {
        for servers in 1..=4 {
            let mut shares = vec![0; servers];
            Scale::ALL[6].tiles().iter().for_each(|tile| shares[tile.server(servers)] += 1);
            assert!(shares.iter().all(|share| *share == 300 / servers), "{shares:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for (column, row) in [(15, 0), (0, 20), (u16::MAX, u16::MAX)] {
            let error = Tile::new(column, row).unwrap_err();
            assert!(error.contains("is outside of the map: expected columns 0 to 14 and rows 0 to 19"), "{error}");
        }
        for scale in [0, 3, 17, u32::MAX] {
            let error = Scale::new(scale).unwrap_err();
            assert!(error.starts_with(&format!("scale {scale} does not exist")), "{error}");
        }
    }
}
