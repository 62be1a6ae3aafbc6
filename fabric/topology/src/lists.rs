// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of ids by switch, and their ranges as text.

use crate::SwitchId;

/// `count` lists from pairs (list, item); the items of a list keep their order. A pair of a list that is not below
/// `count` is left out.
pub(crate) fn lists(count: u16, pairs: impl Iterator<Item = (SwitchId, u16)>) -> Vec<Vec<u16>> {
    let mut lists = vec![Vec::new(); count.into()];
    for (list, item) in pairs {
        if let Some(list) = lists.get_mut(usize::from(list)) {
            list.push(item);
        }
    }
    lists
}

/// The ranges of ascending numbers, as in a file: `0-5` or `9`.
pub(crate) fn ranges(numbers: impl Iterator<Item = u16>) -> Vec<String> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): (u16, u16)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(text).collect()
}
