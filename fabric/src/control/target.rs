// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a link or trunk is named, and what may be done to it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use telegraphos_wire::NodeId;

/// The most bytes of a name.
pub const MAX_NAME: usize = 64;
/// One whole in parts per million.
pub const MILLION: u32 = 1_000_000;
/// The longest latency or jitter, in microseconds: a minute.
pub const MAX_DELAY_US: u64 = 60_000_000;

/// What a command is about. As text (and in JSON) `all`, `links`, `trunks`, `node:3`, `trunk:0-1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Target {
    /// Every link and trunk.
    All,
    /// Every link between a node and its switch.
    Links,
    /// Every trunk.
    Trunks,
    /// The link of one node.
    Node(NodeId),
    /// One trunk, by its name: that of the topology's file, or `A-B`, the numbers of its switches, the lower first.
    Trunk(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::All => f.write_str("all"),
            Target::Links => f.write_str("links"),
            Target::Trunks => f.write_str("trunks"),
            Target::Node(node) => write!(f, "node:{node}"),
            Target::Trunk(name) => write!(f, "trunk:{name}"),
        }
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

/// Why a name or value is refused: names it and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(pub String);

/// Whether it can be the name of a trunk, switch or node: letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(fits)
}

impl FromStr for Target {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Target, Unknown> {
        let unknown = || Unknown(format!("{text:?} is no link: expected all, links, trunks, node:N or trunk:NAME"));
        match text {
            "all" => return Ok(Target::All),
            "links" => return Ok(Target::Links),
            "trunks" => return Ok(Target::Trunks),
            _ => {}
        }
        match text.split_once(':') {
            // Only what is written back the same: "node:+3" and "node:03" are not.
            Some(("node", number)) => match number.parse::<NodeId>() {
                Ok(node) if node.to_string() == number => Ok(Target::Node(node)),
                _ => Err(Unknown(format!("{number:?} is no node: expected a number from 0 to 4095, such as node:3"))),
            },
            Some(("trunk", name)) if is_name(name) => Ok(Target::Trunk(name.to_owned())),
            Some(("trunk", name)) => Err(Unknown(format!(
                "{name:?} is no name of a trunk: expected up to {MAX_NAME} letters, digits, '-', '_' and '.'"
            ))),
            _ => Err(unknown()),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = Unknown;

    fn try_from(text: String) -> Result<Target, Unknown> {
        text.parse()
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Faults of one link or trunk; zero is none. As text `latency=5ms,jitter=1ms,loss=5%,bandwidth=1MB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSpec {
    /// Microseconds added to the way, in each direction.
    #[serde(skip_serializing_if = "is_zero")]
    pub latency_us: u64,
    /// Microseconds at most by which that varies.
    #[serde(skip_serializing_if = "is_zero")]
    pub jitter_us: u64,
    /// Bytes per second at most; 0 is no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_per_second: u64,
    /// Datagrams lost, in parts per million. On a reliable transport each loss is a reset of the link.
    #[serde(skip_serializing_if = "is_zero")]
    pub loss_ppm: u32,
    /// Datagrams that come twice, in parts per million.
    #[serde(skip_serializing_if = "is_zero")]
    pub duplicate_ppm: u32,
    /// Datagrams that later ones overtake, in parts per million.
    #[serde(skip_serializing_if = "is_zero")]
    pub reorder_ppm: u32,
    /// Datagrams with a flipped bit, in parts per million.
    #[serde(skip_serializing_if = "is_zero")]
    pub corrupt_ppm: u32,
}

/// The names of the faults in their text, for help and messages.
pub const FAULTS: &str =
    "latency=TIME, jitter=TIME, bandwidth=BYTES (per second), loss=P%, duplicate=P%, reorder=P%, corrupt=P%";

impl FaultSpec {
    /// Whether nothing is wrong.
    pub fn is_none(&self) -> bool {
        is_zero(self)
    }

    /// Refuses what cannot be.
    pub fn check(&self) -> Result<(), Unknown> {
        let parts = [
            ("loss_ppm", self.loss_ppm),
            ("duplicate_ppm", self.duplicate_ppm),
            ("reorder_ppm", self.reorder_ppm),
            ("corrupt_ppm", self.corrupt_ppm),
        ];
        for (name, value) in parts {
            if value > MILLION {
                return Err(Unknown(format!("{name} is {value}: expected 0 to {MILLION}")));
            }
        }
        for (name, value) in [("latency_us", self.latency_us), ("jitter_us", self.jitter_us)] {
            if value > MAX_DELAY_US {
                return Err(Unknown(format!("{name} is {value}: expected 0 to {MAX_DELAY_US} (a minute)")));
            }
        }
        Ok(())
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |name: &str, value: String| {
            let result = write!(f, "{separator}{name}={value}");
            separator = ",";
            result
        };
        for (name, us) in [("latency", self.latency_us), ("jitter", self.jitter_us)] {
            if us > 0 {
                part(name, time(us))?;
            }
        }
        if self.bytes_per_second > 0 {
            part("bandwidth", self.bytes_per_second.to_string())?;
        }
        let parts = [
            ("loss", self.loss_ppm),
            ("duplicate", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
            ("corrupt", self.corrupt_ppm),
        ];
        for (name, ppm) in parts {
            if ppm > 0 {
                part(name, percent(ppm))?;
            }
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

fn time(us: u64) -> String {
    match us {
        us if us % 1_000_000 == 0 => format!("{}s", us / 1_000_000),
        us if us % 1000 == 0 => format!("{}ms", us / 1000),
        us => format!("{us}us"),
    }
}

fn percent(ppm: u32) -> String {
    let text = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A number with an optional fraction, times `unit`, as a whole number.
fn scaled(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let part = u128::from(part) * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    u64::try_from(u128::from(whole.parse::<u64>().ok()?) * u128::from(unit) + part).ok()
}

/// The value before one of these endings, which come longest first where one ends like another.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    scaled(number, *unit)
}

/// Microseconds, from a text such as `5ms`.
pub fn parse_time(text: &str) -> Result<u64, Unknown> {
    with_unit(text, &[("us", 1), ("ms", 1000), ("s", 1_000_000)])
        .ok_or_else(|| Unknown(format!("{text:?} is no time: expected a number with us, ms or s, such as 5ms")))
}

/// Bytes, from a text such as `64KiB` or `1MB`.
pub fn parse_bytes(text: &str) -> Result<u64, Unknown> {
    const UNITS: &[(&str, u64)] = &[
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
        ("", 1),
    ];
    with_unit(text, UNITS).ok_or_else(|| {
        Unknown(format!("{text:?} is no number of bytes: expected a number, also with kB, KiB, MB, MiB, GB or GiB"))
    })
}

fn parse_percent(text: &str) -> Result<u32, Unknown> {
    text.strip_suffix('%')
        .and_then(|number| scaled(number, 10_000))
        .and_then(|ppm| u32::try_from(ppm).ok())
        .filter(|ppm| *ppm <= MILLION)
        .ok_or_else(|| Unknown(format!("{text:?} is no share: expected 0% to 100%, such as 2.5%")))
}

impl FromStr for FaultSpec {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<FaultSpec, Unknown> {
        let mut spec = FaultSpec::default();
        if text == "none" {
            return Ok(spec);
        }
        for part in text.split(',') {
            let unknown = || Unknown(format!("{part:?} is no fault: expected {FAULTS}, or none"));
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            match name {
                "latency" => spec.latency_us = parse_time(value)?,
                "jitter" => spec.jitter_us = parse_time(value)?,
                "bandwidth" => spec.bytes_per_second = parse_bytes(value)?,
                "loss" => spec.loss_ppm = parse_percent(value)?,
                "duplicate" => spec.duplicate_ppm = parse_percent(value)?,
                "reorder" => spec.reorder_ppm = parse_percent(value)?,
                "corrupt" => spec.corrupt_ppm = parse_percent(value)?,
                _ => return Err(unknown()),
            }
        }
        spec.check()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        let spec: FaultSpec = "latency=5ms,jitter=250us,bandwidth=1.5MB,loss=2.5%,corrupt=0.0001%".parse().unwrap();
        assert_eq!((spec.latency_us, spec.jitter_us, spec.bytes_per_second), (5000, 250, 1_500_000));
        assert_eq!((spec.loss_ppm, spec.corrupt_ppm), (25_000, 1));
        assert_eq!(spec.to_string(), "latency=5ms,jitter=250us,bandwidth=1500000,loss=2.5%,corrupt=0.0001%");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        assert_eq!(FaultSpec::default().to_string().parse(), Ok(FaultSpec::default()));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (text, parts) in [
            ("latency=5", ["\"5\" is no time", "us, ms or s"]),
            ("latency=99999s", ["latency_us is", "a minute"]),
            ("loss=101%", ["\"101%\"", "0% to 100%"]),
            ("loss=0.05", ["\"0.05\"", "0% to 100%"]),
            ("delay=5ms", ["\"delay=5ms\"", "latency=TIME"]),
            ("", ["\"\" is no fault", "loss=P%"]),
            ("bandwidth=-1", ["\"-1\" is no number of bytes", "KiB"]),
        ] {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(parts.iter().all(|p| error.contains(p)), "{text}: {error}");
        }
        for text in ["", "node", "node:", "node:+3", "node:03", "node:70000", "trunk:", "trunk:a b", "link:3"] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("expected"), "{text}: {error}");
        }
    }
}
