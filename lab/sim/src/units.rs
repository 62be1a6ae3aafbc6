// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual time and bandwidth, in whole numbers: the same on every machine.

use serde::{Deserialize, Deserializer, de::Error as _};

/// A moment or a duration of virtual time, in picoseconds: 2^64 of them are 213 days.
pub type Time = u64;

/// Picoseconds of a nanosecond.
pub const NANOSECOND: Time = 1_000;
/// Picoseconds of a microsecond.
pub const MICROSECOND: Time = 1_000_000;
/// Picoseconds of a millisecond.
pub const MILLISECOND: Time = 1_000_000_000;
/// Picoseconds of a second.
pub const SECOND: Time = 1_000_000_000_000;

/// Units of times, ascending.
const UNITS: [(Time, &str); 5] =
    [(1, "ps"), (NANOSECOND, "ns"), (MICROSECOND, "us"), (MILLISECOND, "ms"), (SECOND, "s")];

/// Reads `"250ns"`, `"1.5us"`, `"3 ms"`, `"2s"` or `"40ps"`.
pub fn parse_time(text: &str) -> Result<Time, String> {
    let wrong =
        || format!("duration {text:?}: expected a number and a unit, one of ps, ns, us, ms and s, as in \"1.5us\"");
    let text = text.trim();
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let (unit, _) = UNITS.iter().find(|(_, name)| *name == unit).ok_or_else(wrong)?;
    scaled(number.trim(), *unit).ok_or_else(wrong)
}

/// Reads `"25Gbit/s"` or `"800 Mbit/s"` as picoseconds for each byte.
pub fn parse_bandwidth(text: &str) -> Result<Time, String> {
    let wrong = || {
        format!(
            "bandwidth {text:?}: expected a number and Gbit/s or Mbit/s, from 1 Mbit/s to 8000 Gbit/s, as in \"25Gbit/s\""
        )
    };
    let text = text.trim();
    let (number, scale) = match (text.strip_suffix("Gbit/s"), text.strip_suffix("Mbit/s")) {
        (Some(number), _) => (number, 1_000_000_000),
        (None, Some(number)) => (number, 1_000_000),
        (None, None) => return Err(wrong()),
    };
    match scaled(number.trim(), scale) {
        Some(bits) if (1_000_000..=8_000_000_000_000).contains(&bits) => Ok(8 * SECOND / bits),
        _ => Err(wrong()),
    }
}

/// A decimal number times `unit`; `None` if it is none, or too large.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 12 {
        return None;
    }
    let mut part = 0;
    let mut scale = unit;
    for digit in fraction.bytes() {
        scale /= 10;
        part += u64::from(digit - b'0') * scale;
    }
    whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(part)
}

/// A duration as people read it, with at most three digits behind the point.
pub fn show_time(time: Time) -> String {
    // The greatest of which there are 10, but at least nanoseconds.
    let (unit, name) = UNITS.into_iter().skip(2).rev().find(|(unit, _)| time >= 10 * unit).unwrap_or(UNITS[1]);
    let thousandths = (u128::from(time) * 1000 / u128::from(unit)) as u64;
    match (thousandths / 1000, thousandths % 1000) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, part) => format!("{} {name}", format!("{whole}.{part:03}").trim_end_matches('0')),
    }
}

/// For fields of a workload file.
pub(crate) fn time<'de, D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
    parse_time(&String::deserialize(d)?).map_err(D::Error::custom)
}

/// The same, where nothing may be said.
pub(crate) fn some_time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Time>, D::Error> {
    time(d).map(Some)
}

/// The same for a bandwidth.
pub(crate) fn bandwidth<'de, D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
    parse_bandwidth(&String::deserialize(d)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_bandwidths_are_read() {
        for (text, time) in
            [("250ns", 250_000), ("1.5us", 1_500_000), (" 3 ms ", 3 * MILLISECOND), ("40ps", 40), ("0s", 0)]
        {
            assert_eq!(parse_time(text), Ok(time), "{text}");
        }
        for text in ["", "5", "ns", "-1us", "1.5.2us", "1 week", "1e3ns", "99999999999999s", ".5us"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        for (text, cost) in [("25Gbit/s", 320), ("100 Gbit/s", 80), ("1Mbit/s", 8_000_000), ("2.5Gbit/s", 3200)] {
            assert_eq!(parse_bandwidth(text), Ok(cost), "{text}");
        }
        for text in ["", "25", "0Gbit/s", "9000Gbit/s", "25GB/s"] {
            assert!(parse_bandwidth(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_with_what_counts() {
        for (time, text) in [
            (0, "0 ns"),
            (1_500, "1.5 ns"),
            (9_999_999, "9999.999 ns"),
            (12_340_000, "12.34 us"),
            (10 * MILLISECOND, "10 ms"),
            (100 * SECOND, "100 s"),
        ] {
            assert_eq!(show_time(time), text);
        }
    }
}
