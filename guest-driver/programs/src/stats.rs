// SPDX-License-Identifier: MIT OR Apache-2.0
//! Medians and their spread.

/// What many measurements of one thing say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of them are below.
    pub median: f64,
    /// A tenth of them are below.
    pub low: f64,
    /// A tenth of them are above.
    pub high: f64,
}

impl Summary {
    /// Of these values; `None` without any.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (part * (sorted.len().saturating_sub(1)) as f64).round() as usize;
            sorted.get(index).copied()
        };
        Some(Summary { median: at(0.5)?, low: at(0.1)?, high: at(0.9)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_tenths() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&values), Some(Summary { median: 50.0, low: 10.0, high: 90.0 }));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[3.0]), Some(Summary { median: 3.0, low: 3.0, high: 3.0 }));
    }
}
