// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of the map that a process has.

use super::image::Image;
use super::plan::{COLUMNS, ROWS, Scale, Tile};
use super::terrain::Palette;
use std::sync::{Arc, PoisonError, RwLock};
use telegraphos_guest_tests::cli::Outcome;

/// Bytes of all JPEGs, at most. Those of a map have a tenth of that.
const MOST: usize = 64 << 20;

/// A place for each image of the map.
#[derive(Debug)]
pub(crate) struct Map {
    images: RwLock<Vec<Option<Arc<Image>>>>,
}

fn index(tile: Tile) -> usize {
    usize::from(tile.row()) * usize::from(COLUMNS) + usize::from(tile.column())
}

impl Map {
    pub(crate) fn empty() -> Map {
        Map { images: RwLock::new(vec![None; usize::from(COLUMNS) * usize::from(ROWS)]) }
    }

    /// These images of a seed.
    pub(crate) fn draw(seed: u64, tiles: &[Tile]) -> Outcome<Map> {
        let (map, palette) = (Map::empty(), Palette::new());
        for tile in tiles {
            let image = Image::draw(seed, &palette, *tile);
            image.and_then(|image| map.keep(*tile, image))?;
        }
        Ok(map)
    }

    /// Keeps an image, instead of one that it had; refuses one for which there is no room.
    pub(crate) fn keep(&self, tile: Tile, image: Image) -> Result<(), String> {
        // Nothing panics while it is locked that leaves it half done.
        let mut images = self.images.write().unwrap_or_else(PoisonError::into_inner);
        let (place, new) = (index(tile), image.jpeg().len());
        let of = |image: &Option<Arc<Image>>| image.as_ref().map_or(0, |image| image.jpeg().len());
        let others = images.iter().map(of).sum::<usize>() - of(&images[place]);
        if others + new > MOST {
            return Err(format!(
                "tile {tile} is not kept: {new} bytes beside {others} of other images: expected at most {MOST} in all"
            ));
        }
        images[place] = Some(Arc::new(image));
        Ok(())
    }

    pub(crate) fn image(&self, tile: Tile) -> Result<Arc<Image>, String> {
        let images = self.images.read().unwrap_or_else(PoisonError::into_inner);
        images[index(tile)].clone().ok_or_else(|| format!("tile {tile} is not here: its image was never sent"))
    }

    /// The pixels of an image at a scale; an error names the tile.
    pub(crate) fn scaled(&self, tile: Tile, scale: Scale) -> Result<Vec<u8>, String> {
        self.image(tile)?.scaled(scale).map_err(|error| format!("tile {tile}: {error}"))
    }

    /// Images that it has, and the bytes of their JPEGs.
    pub(crate) fn size(&self) -> (usize, usize) {
        let images = self.images.read().unwrap_or_else(PoisonError::into_inner);
        let lengths = || images.iter().flatten().map(|image| image.jpeg().len());
        (lengths().count(), lengths().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::super::image;
    use super::*;

    #[test]
    fn there_is_room_for_so_many_bytes() {
        let (map, tiles) = (Map::empty(), Scale::ALL[6].tiles());
        let largest = || Image::new(vec![7; image::MOST]);
        for tile in &tiles[..64] {
            map.keep(*tile, largest()).unwrap();
        }
        assert_eq!(map.size(), (64, MOST));
        let error = map.keep(tiles[64], Image::new(vec![7])).unwrap_err();
        assert!(error.starts_with("tile 4,4 is not kept: 1 bytes beside 67108864 of other images"), "{error}");
        // Instead of another there is.
        map.keep(tiles[3], largest()).unwrap();
        map.keep(tiles[3], Image::new(vec![7])).unwrap();
        assert_eq!(map.image(tiles[3]).unwrap().jpeg(), [7]);
        assert!(map.image(tiles[64]).unwrap_err().contains("tile 4,4 is not here"));
    }
}
