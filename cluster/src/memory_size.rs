// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes of memory, as users write them.

use serde::{Deserialize as _, Deserializer};

/// A size in MiB: a number alone, or with M or G (also MiB, GiB).
pub(crate) fn mebibytes(text: &str) -> std::result::Result<u32, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "M" | "MiB" => 1,
        "G" | "GiB" => 1024,
        _ => 0,
    };
    let size = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor)).filter(|_| factor != 0);
    size.ok_or_else(|| format!("{text:?} is no size of memory: expected one such as 512M or 2G; a number alone is MiB"))
}

/// A size in a file.
pub(crate) fn memory<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u32>, D::Error> {
    let text = match toml::Value::deserialize(from)? {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    mebibytes(&text).map(Some).map_err(serde::de::Error::custom)
}
