// SPDX-License-Identifier: MIT OR Apache-2.0
//! The faults of a link, as a value and as text.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chance(u32);

/// Millionths in one.
const ONE: u32 = 1_000_000;

impl Chance {
    /// So many millionths, at most all of them.
    pub fn millionths(n: u32) -> Chance {
        Chance(n.min(ONE))
    }

    /// Whether a uniform random number is a hit.
    pub(super) fn hits(self, draw: u64) -> bool {
        // The upper half times ONE, over 2^32, is uniform below ONE.
        ((draw >> 32) * u64::from(ONE)) >> 32 < u64::from(self.0)
    }
}

/// Which way, seen from the end that has the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Send,
    Receive,
}

/// The faults of a link; none by default. As text, words separated by blanks:
///
/// `loss=5% corrupt=1% duplicate=0.5% reorder=2% latency=2ms jitter=500us rate=10MB/s down only=send`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FaultPlan {
    pub loss: Chance,
    /// One bit of a datagram is flipped.
    pub corrupt: Chance,
    pub duplicate: Chance,
    /// A datagram is held back until one to four later ones have passed it, or for 10 ms.
    pub reorder: Chance,
    /// Microseconds that everything takes.
    pub latency: u64,
    /// Microseconds that anything may take in addition, at most. Datagrams overtake each other by it.
    pub jitter: u64,
    /// Bytes per second, if limited; not 0.
    pub rate: Option<u64>,
    pub down: bool,
    /// The direction that suffers, seen from the end that has the faults; `None`: both.
    pub only: Option<Direction>,
}

impl FaultPlan {
    /// Whether there are faults in `direction`.
    pub(super) fn concerns(&self, direction: Direction) -> bool {
        *self != FaultPlan { only: self.only, ..FaultPlan::default() } && self.only.is_none_or(|only| only == direction)
    }

    /// Latency and, by a random number, jitter, in microseconds.
    pub(super) fn delay(&self, draw: u64) -> u64 {
        self.latency.saturating_add(draw % self.jitter.saturating_add(1))
    }
}

/// Text that is no [`FaultPlan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault {word:?}: {why}")]
pub struct PlanError {
    /// The word that is wrong.
    pub word: String,
    /// Why, and what was expected.
    pub why: String,
}

const KNOWN: &str = "loss=5% | corrupt=1% | duplicate=1% | reorder=1% | latency=2ms | jitter=500us | rate=10MB/s | down | \
                     only=send | only=receive";

/// A decimal number with a unit: number in units of `scale`'s smallest, rounded down.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || part.is_empty() || part.contains('.') {
        return None;
    }
    let mut value = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    let mut digit_value = scale;
    for digit in part.bytes() {
        digit_value /= 10;
        value = value.checked_add(u64::from(digit - b'0') * digit_value)?;
    }
    Some(value)
}

/// Microseconds from text such as `2ms`.
pub(super) fn duration(text: &str) -> Option<u64> {
    const HOUR: u64 = 3_600_000_000;
    scaled(text, &[("us", 1), ("ms", 1000), ("s", 1_000_000), ("min", 60_000_000)]).filter(|us| *us <= 24 * HOUR)
}

fn chance(text: &str) -> Option<Chance> {
    let millionths = scaled(text, &[("%", 10_000)])?;
    u32::try_from(millionths).ok().filter(|n| *n <= ONE).map(Chance)
}

fn rate(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 8] = [
        ("B/s", 8),
        ("kB/s", 8_000),
        ("MB/s", 8_000_000),
        ("GB/s", 8_000_000_000),
        ("bit/s", 1),
        ("kbit/s", 1_000),
        ("Mbit/s", 1_000_000),
        ("Gbit/s", 1_000_000_000),
    ];
    scaled(text, &UNITS).map(|bits| bits / 8).filter(|bytes| *bytes > 0)
}

impl FromStr for FaultPlan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<FaultPlan, PlanError> {
        let mut plan = FaultPlan::default();
        let mut seen: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let wrong = |why: &str| PlanError { word: word.to_owned(), why: why.to_owned() };
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if seen.contains(&name) {
                return Err(wrong("it is given twice: leave one"));
            }
            seen.push(name);
            let value = |expected: &str| match value {
                Some(value) if !value.is_empty() => Ok(value),
                _ => Err(wrong(&format!("it has no value: expected {expected}"))),
            };
            let percent = "from 0% to 100%, such as 0.5%";
            let time = "at most 24 hours in us, ms, s or min, such as 2ms";
            let chance = || chance(value(percent)?).ok_or_else(|| wrong(&format!("expected {percent}")));
            let duration = || duration(value(time)?).ok_or_else(|| wrong(&format!("expected {time}")));
            match name {
                "loss" => plan.loss = chance()?,
                "corrupt" => plan.corrupt = chance()?,
                "duplicate" => plan.duplicate = chance()?,
                "reorder" => plan.reorder = chance()?,
                "latency" => plan.latency = duration()?,
                "jitter" => plan.jitter = duration()?,
                "rate" => {
                    let expected = "at least 1B/s, in B/s or bit/s with k, M or G before it, such as 10MB/s";
                    plan.rate = Some(rate(value(expected)?).ok_or_else(|| wrong(&format!("expected {expected}")))?);
                }
                "down" if word == "down" => plan.down = true,
                "down" => return Err(wrong("it takes no value: write down")),
                "only" => {
                    plan.only = match value("send or receive")? {
                        "send" => Some(Direction::Send),
                        "receive" => Some(Direction::Receive),
                        _ => return Err(wrong("expected only=send or only=receive")),
                    }
                }
                _ => return Err(wrong(&format!("there is no such fault: expected {KNOWN}"))),
            }
        }
        Ok(plan)
    }
}

impl fmt::Display for FaultPlan {
    /// Parses to the same plan again; nothing wrong is the empty text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        let chances =
            [("loss", self.loss), ("corrupt", self.corrupt), ("duplicate", self.duplicate), ("reorder", self.reorder)];
        for (name, Chance(n)) in chances {
            if n > 0 {
                let fraction = format!("{:04}", n % 10_000);
                let fraction = fraction.trim_end_matches('0');
                let dot = if fraction.is_empty() { "" } else { "." };
                words.push(format!("{name}={}{dot}{fraction}%", n / 10_000));
            }
        }
        for (name, us) in [("latency", self.latency), ("jitter", self.jitter)] {
            match us {
                0 => {}
                us if us % 1_000_000 == 0 => words.push(format!("{name}={}s", us / 1_000_000)),
                us if us % 1000 == 0 => words.push(format!("{name}={}ms", us / 1000)),
                us => words.push(format!("{name}={us}us")),
            }
        }
        match self.rate {
            None => {}
            Some(rate) if rate % 1_000_000 == 0 => words.push(format!("rate={}MB/s", rate / 1_000_000)),
            Some(rate) => words.push(format!("rate={rate}B/s")),
        }
        if self.down {
            words.push("down".to_owned());
        }
        match self.only {
            None => {}
            Some(Direction::Send) => words.push("only=send".to_owned()),
            Some(Direction::Receive) => words.push("only=receive".to_owned()),
        }
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_testkit::Rng;

    #[test]
    fn all_words_are_understood() {
        let text =
            "loss=5% corrupt=1% duplicate=0.25% reorder=0.0001% latency=2ms jitter=500us rate=10MB/s down only=send";
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!(
            plan,
            FaultPlan {
                loss: Chance(50_000),
                corrupt: Chance(10_000),
                duplicate: Chance(2_500),
                reorder: Chance(1),
                latency: 2000,
                jitter: 500,
                rate: Some(10_000_000),
                down: true,
                only: Some(Direction::Send),
            }
        );
        assert_eq!(plan.to_string(), text);
        assert_eq!("".parse(), Ok(FaultPlan::default()));
        assert_eq!("latency=1.5s".parse::<FaultPlan>().unwrap().latency, 1_500_000);
        assert_eq!("rate=8Mbit/s".parse::<FaultPlan>().unwrap().rate, Some(1_000_000));
    }

    #[test]
    fn printing_and_parsing_are_inverse() {
        let mut rng = Rng::new(7);
        for _ in 0..1000 {
            let mut chance = || Chance(rng.below(ONE + 1));
            let [loss, corrupt, duplicate, reorder] = [chance(), chance(), chance(), chance()];
            let plan = FaultPlan {
                loss,
                corrupt,
                duplicate,
                reorder,
                latency: rng.below(5_000_000),
                jitter: rng.below(100) * 1000,
                rate: rng.percent(50).then(|| 1 + rng.below((1 << 40) - 1)),
                down: rng.percent(50),
                only: [None, Some(Direction::Send), Some(Direction::Receive)][rng.below(3_usize)],
            };
            assert_eq!(plan.to_string().parse(), Ok(plan), "{plan}");
        }
    }

    #[test]
    fn errors_name_the_word_and_what_was_expected() {
        for (text, word, part) in [
            ("loss=5", "loss=5", "from 0% to 100%"),
            ("latency=1ms loss=101%", "loss=101%", "from 0% to 100%"),
            ("loss", "loss", "no value"),
            ("loss=", "loss=", "no value"),
            ("loss=1% loss=2%", "loss=2%", "twice"),
            ("latency=2", "latency=2", "such as 2ms"),
            ("latency=2000min", "latency=2000min", "24 hours"),
            ("jitter=-1ms", "jitter=-1ms", "such as 2ms"),
            ("jitter=1.2.3ms", "jitter=1.2.3ms", "such as 2ms"),
            ("rate=0B/s", "rate=0B/s", "at least 1B/s"),
            ("rate=10mb", "rate=10mb", "such as 10MB/s"),
            ("rate=99999999999GB/s", "rate=99999999999GB/s", "such as"),
            ("down=yes", "down=yes", "takes no value"),
            ("only=both", "only=both", "only=send or only=receive"),
            ("los=5%", "los=5%", "expected loss=5% | corrupt"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err();
            assert_eq!(error.word, word);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn chances_hit_as_often_as_they_say() {
        let mut rng = Rng::new(11);
        let draws: Vec<u64> = (0..200_000).map(|_| rng.next()).collect();
        for millionths in [0, 10_000, 50_000, 500_000, ONE] {
            let hits = draws.iter().filter(|t| Chance(millionths).hits(**t)).count() as f64;
            let expected = f64::from(millionths) / f64::from(ONE) * draws.len() as f64;
            // Five standard deviations.
            let slack = 5.0 * (expected * (1.0 - expected / draws.len() as f64)).sqrt();
            assert!((hits - expected).abs() <= slack, "{millionths}: {hits}, expected {expected}");
        }
    }
}
