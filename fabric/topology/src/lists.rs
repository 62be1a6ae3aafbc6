// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of ids: many short ones in two allocations, and their ranges as text.

/// Lists of ids, one per switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    /// Where each list begins in `items`; one more than there are lists.
    starts: Vec<usize>,
    items: Vec<u16>,
}

impl Lists {
    /// `count` lists from pairs (list, item); the items of a list keep their order. A pair of a list that is not below
    /// `count` is left out.
    pub(crate) fn new(count: usize, pairs: impl Iterator<Item = (u16, u16)> + Clone) -> Lists {
        let mut starts = vec![0; count + 1];
        for (list, _) in pairs.clone() {
            if let Some(next) = starts.get_mut(usize::from(list) + 1) {
                *next += 1;
            }
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut free = starts.clone();
        let mut items = vec![0; starts[count]];
        for (list, item) in pairs {
            if usize::from(list) < count {
                let place = &mut free[usize::from(list)];
                items[*place] = item;
                *place += 1;
            }
        }
        Lists { starts, items }
    }

    /// One list; empty for a number that does not exist.
    pub(crate) fn get(&self, list: u16) -> &[u16] {
        match self.starts.get(usize::from(list)..=usize::from(list) + 1) {
            Some([start, end]) => &self.items[*start..*end],
            _ => &[],
        }
    }
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
