// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regular topologies by name: `star`, `tree:4x2`, `mesh:4x4`, `torus:8x8`.

use std::fmt;
use std::str::FromStr;

use crate::error::refused;
use crate::{MAX_SWITCHES, TopologyError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    Star,
    /// A root, and `depth` levels of switches below it, each switch with `arity` below itself.
    Tree {
        /// Switches below each switch, at least 2.
        arity: u16,
        /// Trunks between the root and each leaf, at least 1.
        depth: u16,
    },
    /// `width` x `height` switches, each joined with those beside, above and below it.
    Mesh {
        /// Switches along x.
        width: u16,
        /// Switches along y.
        height: u16,
    },
    /// A mesh whose rows and columns are closed to rings.
    Torus {
        /// Switches along x.
        width: u16,
        /// Switches along y.
        height: u16,
    },
}

impl Shape {
    /// Whether this is to be read as the name of a regular topology, right or wrong, and not as that of a file.
    pub fn is_meant_by(text: &str) -> bool {
        let name = text.split_once(':').map_or(text, |(name, _)| name);
        matches!(name, "star" | "tree" | "mesh" | "torus")
    }

    /// How many switches it has, if that is not more than there may be and the sizes make sense.
    pub(crate) fn switches(self) -> Result<u16, TopologyError> {
        let count = match self {
            Shape::Star => Some(1),
            Shape::Tree { arity, depth } => {
                if arity < 2 || depth == 0 {
                    return Err(refused!("topology {self}: expected an arity of at least 2 and a depth of at least 1"));
                }
                // 1 + arity + arity^2 + ...: more than 12 levels are too many even of two.
                (0..depth).try_fold(1u32, |sum, _| {
                    sum.checked_mul(arity.into())?.checked_add(1).filter(|sum| *sum <= MAX_SWITCHES)
                })
            }
            Shape::Mesh { width, height } | Shape::Torus { width, height } => {
                if width == 0 || height == 0 {
                    return Err(refused!("topology {self}: expected a width and a height of at least 1"));
                }
                Some(u32::from(width) * u32::from(height)).filter(|count| *count <= MAX_SWITCHES)
            }
        };
        count.and_then(|count| u16::try_from(count).ok()).ok_or_else(|| {
            refused!("topology {self} has more than {MAX_SWITCHES} switches: expected at most {MAX_SWITCHES}")
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Star => write!(f, "star"),
            Shape::Tree { arity, depth } => write!(f, "tree:{arity}x{depth}"),
            Shape::Mesh { width, height } => write!(f, "mesh:{width}x{height}"),
            Shape::Torus { width, height } => write!(f, "torus:{width}x{height}"),
        }
    }
}

impl FromStr for Shape {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Shape, TopologyError> {
        let unknown = || {
            refused!(
                "topology `{text}`: expected star, tree:ARITYxDEPTH, mesh:WIDTHxHEIGHT or torus:WIDTHxHEIGHT, such as \
                 torus:4x4"
            )
        };
        if text == "star" {
            return Ok(Shape::Star);
        }
        let (name, sizes) = text.split_once(':').ok_or_else(unknown)?;
        let (first, second) = sizes.split_once('x').ok_or_else(unknown)?;
        let number = |digits: &str| {
            // `parse` would take a sign.
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u16>().ok().filter(|_| plain).ok_or_else(unknown)
        };
        let (first, second) = (number(first)?, number(second)?);
        let shape = match name {
            "tree" => Shape::Tree { arity: first, depth: second },
            "mesh" => Shape::Mesh { width: first, height: second },
            "torus" => Shape::Torus { width: first, height: second },
            _ => return Err(unknown()),
        };
        shape.switches()?;
        Ok(shape)
    }
}
