// SPDX-License-Identifier: MIT OR Apache-2.0
//! A country that no map has shown before: height, colours, shades and contours of a seed.
//!
//! Integers only, so that every machine draws the same.

use super::plan::{HEIGHT, PIXEL, Tile, WIDTH};
use telegraphos_guest_tests::random;

/// Pixels between two points whose height is calculated; between those it is interpolated.
const STEP: u32 = 8;
/// Pixels between the points of the coarsest noise; each of the finer ones has half the distance and half the height.
const COARSEST: u32 = 2560;
const OCTAVES: u32 = 5;
/// Heights are below this.
const TOP: i32 = 1 << 16;
/// Height of the sea.
const SEA: i32 = 28_000;
/// Height between two contours.
const CONTOUR: i32 = 1 << 10;
/// Of each so many contours one is drawn stronger.
const STRONG: i32 = 4;

/// Colours at heights, between which they are mixed.
const COLOURS: [(i32, [i32; 3]); 9] = [
    (0, [24, 60, 120]),
    (20_000, [52, 112, 176]),
    (SEA - 1, [150, 200, 226]),
    (SEA, [214, 206, 156]),
    (30_000, [122, 170, 98]),
    (37_000, [174, 196, 118]),
    (44_000, [196, 160, 104]),
    (52_000, [148, 114, 90]),
    (TOP, [250, 250, 250]),
];

/// Noise at a point: between 0 and `TOP`, smooth, with this distance between random values.
fn noise(seed: u64, distance: u32, x: u32, y: u32) -> i64 {
    let corner = |x: u32, y: u32| (random::word(seed, u64::from(x) << 32 | u64::from(y)) & 0xffff) as i64;
    // 3t² - 2t³, of t in 1/65536.
    let smooth = |offset: u32| {
        let t = i64::from(offset) * 65_536 / i64::from(distance);
        (t * t / 65_536) * (3 * 65_536 - 2 * t) / 65_536
    };
    let (column, row) = (x / distance, y / distance);
    let (right, down) = (smooth(x % distance), smooth(y % distance));
    let mix = |a: i64, b: i64, part: i64| a + (b - a) * part / 65_536;
    let above = mix(corner(column, row), corner(column + 1, row), right);
    let below = mix(corner(column, row + 1), corner(column + 1, row + 1), right);
    mix(above, below, down)
}

/// Height of a point of the map: 0 to `TOP`.
fn height(seed: u64, x: u32, y: u32) -> i32 {
    let octaves = (0..OCTAVES).map(|n| noise(random::derive(seed, n.into()), COARSEST >> n, x, y) >> (n + 1));
    let sum: i64 = octaves.sum();
    // Noises that are added seldom reach their ends: stretched about the middle.
    let middle = i64::from(TOP / 2);
    (middle + (sum - middle) * 7 / 4).clamp(0, i64::from(TOP - 1)) as i32
}

fn colour(height: i32) -> [i32; 3] {
    let above = COLOURS.iter().position(|(from, _)| *from > height).unwrap_or(COLOURS.len() - 1).max(1);
    let ((from, low), (to, high)) = (COLOURS[above - 1], COLOURS[above]);
    std::array::from_fn(|n| low[n] + (high[n] - low[n]) * (height - from) / (to - from))
}

/// Colours of all heights, of which the last bits do not matter.
pub(crate) struct Palette {
    colours: Vec<[i32; 3]>,
}

impl Palette {
    const BITS: i32 = 4;

    pub(crate) fn new() -> Palette {
        Palette { colours: (0..TOP >> Palette::BITS).map(|height| colour(height << Palette::BITS)).collect() }
    }

    fn of(&self, height: i32) -> [i32; 3] {
        self.colours[(height >> Palette::BITS) as usize]
    }
}

/// Values at the corners of squares of `STEP` pixels.
struct Grid {
    values: Vec<i32>,
}

impl Grid {
    /// Of an image and what is next to it.
    const COLUMNS: usize = (WIDTH / STEP) as usize + 2;
    const ROWS: usize = (HEIGHT / STEP) as usize + 2;

    fn of(at: impl Fn(usize, usize) -> i32) -> Grid {
        let places = (0..Grid::ROWS).flat_map(|row| (0..Grid::COLUMNS).map(move |column| (column, row)));
        Grid { values: places.map(|(column, row)| at(column, row)).collect() }
    }

    /// Values of a row of pixels, and of the pixel next to it.
    fn row(&self, y: u32) -> Vec<i32> {
        let (step, down) = (STEP as i32, (y % STEP) as i32);
        let above = &self.values[(y / STEP) as usize * Grid::COLUMNS..];
        let below = &above[Grid::COLUMNS..];
        let corners: Vec<i32> = above.iter().zip(below).map(|(a, b)| a * (step - down) + b * down).collect();
        let pairs = corners.windows(2).take(Grid::COLUMNS - 1);
        let mixed = pairs.flat_map(|pair| (0..step).map(move |right| pair[0] * (step - right) + pair[1] * right));
        mixed.take(WIDTH as usize + 1).map(|sum| sum.div_euclid(step * step)).collect()
    }
}

/// Draws an image of the map: its pixels row by row.
pub(crate) fn draw(seed: u64, palette: &Palette, tile: Tile) -> Vec<u8> {
    let (left, top) = (u32::from(tile.column()) * WIDTH, u32::from(tile.row()) * HEIGHT);
    let heights = Grid::of(|column, row| height(seed, left + column as u32 * STEP, top + row as u32 * STEP));
    // Light comes from the upper left. The last corners have no neighbour, and are next to no pixel.
    let shades = Grid::of(|column, row| {
        let at = row * Grid::COLUMNS + column;
        let (here, neighbour) = (heights.values[at], heights.values.get(at + Grid::COLUMNS + 1));
        neighbour.filter(|_| here >= SEA).map_or(0, |neighbour| ((neighbour - here) / 4).clamp(-70, 70))
    });
    let mut pixels = Vec::with_capacity((WIDTH * HEIGHT) as usize * PIXEL);
    let mut row = heights.row(0);
    for y in 0..HEIGHT {
        let (shades, below) = (shades.row(y), heights.row(y + 1));
        for ((pair, below), shade) in row.windows(2).zip(&below).zip(shades) {
            let here = pair[0];
            // A contour is where the next pixel is on its other side.
            let crosses = |distance: i32| [pair[1], *below].iter().any(|next| next / distance != here / distance);
            let dark = match crosses(CONTOUR) {
                false => 0,
                true if here < SEA => 16,
                true if crosses(CONTOUR * STRONG) => 80,
                true => 36,
            };
            pixels.extend(palette.of(here).map(|part| (part + shade - dark).clamp(0, 255) as u8));
        }
        row = below;
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_continue_each_other() {
        let palette = Palette::new();
        for (x, y) in [(0, 0), (640, 480), (9599, 9599)] {
            assert!((0..TOP).contains(&height(7, x, y)));
        }
        // The last column of an image and the first of the next one are as alike as neighbours within an image.
        let (left, right) = (draw(7, &palette, Tile::new(3, 4).unwrap()), draw(7, &palette, Tile::new(4, 4).unwrap()));
        let row = WIDTH as usize * PIXEL;
        let distance = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>();
        let (mut within, mut between) = (0, 0);
        for (left, right) in left.chunks(row).zip(right.chunks(row)) {
            within += distance(&left[row - 2 * PIXEL..row - PIXEL], &left[row - PIXEL..]);
            between += distance(&left[row - PIXEL..], &right[..PIXEL]);
        }
        assert!(between < 2 * within + 1000, "{between} between, {within} within");
    }

    #[test]
    fn seeds_and_images_differ() {
        let palette = Palette::new();
        let tile = Tile::new(3, 4).unwrap();
        assert_eq!(draw(1, &palette, tile), draw(1, &palette, tile));
        assert_ne!(draw(1, &palette, tile), draw(2, &palette, tile));
        assert_ne!(draw(1, &palette, tile), draw(1, &palette, Tile::new(4, 3).unwrap()));
    }
}
