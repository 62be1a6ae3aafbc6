// SPDX-License-Identifier: MIT OR Apache-2.0
//! Routes of meshes and toruses, in closed form.
//!
//! A route goes the shorter way along x and the shorter way along y. If y rises on the way, x comes first; if it falls,
//! y comes first: so the way back uses the same trunks. The only turns are from -y to x and from x to +y, so what is
//! held along -y waits for x at most, and that for +y at most: a cycle of waits would have to lie within one row or
//! column, in one direction.
//!
//! A row or column of a mesh has no cycle. A ring of a torus has one, and two layers open it (Dally and Seitz's
//! dateline): in layer 1 travels what still has to cross the wrap-around trunk, in layer 0 what has crossed it or need
//! not. Rings of up to four switches need no second layer, since no route goes over the wrap-around trunk and on in the
//! same direction.

use crate::{Hop, SwitchId, Transit, TrunkId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) width: u16,
    pub(crate) height: u16,
    /// Rows and columns are rings.
    pub(crate) torus: bool,
    /// Two layers, if the rings need them.
    pub(crate) dateline: bool,
    /// 2^32 / width, rounded up: see [`Grid::place`].
    reciprocal: u64,
    #[cfg(feature = "bugs")]
    pub(crate) bug: Option<crate::Bug>,
}

/// One row or column, seen from one switch: `size` switches, of which the packet is at number `at` and goes to number
/// `to`.
struct Line {
    size: u16,
    at: u16,
    to: u16,
    torus: bool,
}

impl Line {
    /// Steps to go, upward if positive: the shorter way. Of two equally long ones that which does not wrap around, so
    /// that the way back is the same.
    fn displacement(&self) -> i32 {
        let straight = i32::from(self.to) - i32::from(self.at);
        if !self.torus {
            return straight;
        }
        let size = i32::from(self.size);
        let upward = if straight < 0 { straight + size } else { straight };
        if 2 * upward == size && !bug!(AsymmetricTie) {
            straight
        } else if 2 * upward <= size {
            upward
        } else {
            upward - size
        }
    }
}

impl Grid {
    /// A mesh or torus of `width` x `height` switches, neither 0.
    pub(crate) fn new(width: u16, height: u16, torus: bool) -> Grid {
        // From five switches on, a route can cross the wrap-around trunk and continue.
        let dateline = torus && width.max(height) >= 5;
        Grid {
            width,
            height,
            torus,
            dateline,
            reciprocal: (1_u64 << 32).div_ceil(width.max(1).into()),
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    /// Column and row of a switch.
    pub(crate) fn place(&self, switch: SwitchId) -> (u16, u16) {
        // A multiplication instead of a division: each packet asks for several places at each switch. It is exact for
        // 16 bits: the reciprocal times the width is less than 2^16 above 2^32, so the quotient less than 1 / width too
        // large.
        let row = ((u64::from(switch) * self.reciprocal) >> 32) as u16;
        (switch - row * self.width, row)
    }

    /// Trunks along a line of `size` switches. Two switches are joined once, also if they are a ring.
    fn trunks_along(&self, size: u16) -> u16 {
        if self.torus && size > 2 { size } else { size - 1 }
    }

    /// Ends of the trunks in their order: first those along x, row by row; then those along y, beginning with all that
    /// leave the lowest row.
    pub(crate) fn trunks(&self) -> impl Iterator<Item = (SwitchId, SwitchId)> {
        let (width, height) = (self.width, self.height);
        let along_x = self.trunks_along(width);
        let along_y = self.trunks_along(height);
        let x = (0..height).flat_map(move |y| (0..along_x).map(move |x| (y * width + x, y * width + (x + 1) % width)));
        let y = (0..along_y).flat_map(move |y| (0..width).map(move |x| (y * width + x, (y + 1) % height * width + x)));
        x.chain(y)
    }

    /// The next step of the route from `at` to `destination`; `None` if they are the same.
    pub(crate) fn hop(&self, at: SwitchId, destination: SwitchId) -> Option<Hop> {
        self.step(self.place(at), self.place(destination))
    }

    /// See [`Topology::transit`](crate::Topology::transit); `before` is the other end of `by`.
    pub(crate) fn transit(
        &self,
        [before, at]: [SwitchId; 2],
        by: TrunkId,
        source: SwitchId,
        destination: SwitchId,
    ) -> Transit {
        let [before, at, source, destination] = [before, at, source, destination].map(|switch| self.place(switch));
        Transit {
            came: self.step(before, destination),
            arrives: self.step(at, source).is_some_and(|back| back.trunk == by),
            next: self.step(at, destination),
        }
    }

    /// The next step of the route from one column and row to another; `None` if they are the same.
    fn step(&self, at: (u16, u16), to: (u16, u16)) -> Option<Hop> {
        #[cfg(feature = "bugs")]
        let _on = crate::bugs::turn_on(self.bug);
        let line = |size, at, to| Line { size, at, to, torus: self.torus };
        let (x, y) = (line(self.width, at.0, to.0), line(self.height, at.1, to.1));
        let (dx, dy) = (x.displacement(), y.displacement());
        let along_x = match (dx, dy) {
            (0, 0) => return None,
            (0, _) => false,
            _ => dy >= 0 || bug!(XFirstBothWays),
        };
        let (line, steps) = if along_x { (&x, dx) } else { (&y, dy) };
        // The number within the line of the trunk upward from `at` is `at`, that downward one less; from 0 it is the
        // wrap-around.
        let number = match steps {
            1.. => line.at,
            _ => line.at.checked_sub(1).unwrap_or(line.size - 1),
        };
        let row = self.trunks_along(self.width);
        let trunk = if along_x { y.at * row + number } else { self.height * row + number * self.width + x.at };
        // The wrap-around trunk is still ahead of what goes up to a lower number, or down to a higher one.
        let wraps = (steps > 0) != (line.to > line.at);
        let layered = self.dateline && !bug!(NoDateline);
        Some(Hop { trunk, layer: u8::from(layered && line.size > 4 && wraps) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_quotients_and_remainders() {
        for width in [1, 2, 3, 5, 63, 64, 65, 1000, 4095, 4096, 65535] {
            let grid = Grid::new(width, 1, false);
            for switch in 0..=SwitchId::MAX {
                assert_eq!(grid.place(switch), (switch % width, switch / width), "width {width}");
            }
        }
    }
}
