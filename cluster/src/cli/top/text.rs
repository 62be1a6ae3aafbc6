// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers as people read them, in few characters.

/// A count or rate in at most 5 characters: `0`, `0.5`, `999`, `1.25k`, `12.5M`.
pub(crate) fn short(value: f64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    if !value.is_finite() || value <= 0.0 {
        return "0".into();
    }
    if value < 9.95 && value.fract() > 0.0 {
        return if value < 0.05 { "<0.1".into() } else { format!("{value:.1}") };
    }
    let (mut value, mut unit) = (value, 0);
    // What would be rounded up to four digits takes the next unit.
    while value >= 999.5 && unit < UNITS.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match (unit, value) {
        (0, _) => 0,
        (_, v) if v < 9.995 => 2,
        (_, v) if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// Bytes in units of 1024.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1023.95 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A time of microseconds in its two largest units.
pub(crate) fn duration(us: u64) -> String {
    let s = us / 1_000_000;
    match s {
        0 if us == 0 => "0s".into(),
        0 if us < 10_000 => format!("{:.2}ms", us as f64 / 1e3),
        0 => format!("{}ms", us / 1000),
        s if s < 10 => format!("{:.1}s", (us / 100_000) as f64 / 10.0),
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m{:02}s", s / 60, s % 60),
        s if s < 86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        s => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// Numbers in ascending order, three and more in a row as `a-b`.
pub(crate) fn ranges(numbers: &[u16]) -> String {
    let runs = numbers.chunk_by(|a, b| u32::from(*a) + 1 == u32::from(*b));
    let parts = runs.flat_map(|run| match run {
        [first, _, .., last] => vec![format!("{first}-{last}")],
        few => few.iter().map(u16::to_string).collect(),
    });
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-1.0, "0"),
            (f64::NAN, "0"),
            (0.01, "<0.1"),
            (0.5, "0.5"),
            (7.0, "7"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1234.0, "1.23k"),
            (9996.0, "10.0k"),
            (99_960.0, "100k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (5.5e9, "5.50G"),
            (u64::MAX as f64, "18.4E"),
        ] {
            assert_eq!(short(value), text);
            assert!(short(value).len() <= 5);
        }
        for (count, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_048_575, "1.0 MiB"), (5 << 20, "5.0 MiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_have_two_units() {
        for (us, text) in [
            (0, "0s"),
            (1250, "1.25ms"),
            (250_000, "250ms"),
            (1_500_000, "1.5s"),
            (42_000_000, "42s"),
            (130_000_000, "2m10s"),
            (3_723_000_000, "1h02m"),
            (90_000_000_000, "1d01h"),
        ] {
            assert_eq!(duration(us), text);
        }
    }

    #[test]
    fn runs_of_numbers_are_joined() {
        for (numbers, text) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[0, 1], "0, 1"),
            (&[0, 1, 2, 5], "0-2, 5"),
            (&[65533, 65534, 65535], "65533-65535"),
        ] {
            assert_eq!(ranges(numbers), text);
        }
    }
}
