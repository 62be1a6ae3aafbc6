// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of text that drops its least important columns where it does not fit.

/// What is between two columns.
const GAP: &str = "  ";

/// Where texts are in a column: numbers are at the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A column of rows `R`: its title, where its texts are, when it is left out (columns with greater numbers go first; 0
/// stays), and its text in a row.
pub(crate) type Column<R> = (&'static str, Side, u8, fn(&R) -> String);

#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<Texts>,
    lines: usize,
}

/// What is in a column: the title, then a text for each row.
#[derive(Clone, Debug)]
struct Texts {
    side: Side,
    expendable: u8,
    width: usize,
    texts: Vec<String>,
}

/// At most so many characters of it.
pub(crate) fn cut(text: &str, width: usize) -> &str {
    text.char_indices().nth(width).map_or(text, |(end, _)| &text[..end])
}

impl Table {
    pub(crate) fn new<R>(rows: &[R], columns: &[Column<R>]) -> Table {
        let columns = columns.iter().map(|(title, side, expendable, text)| {
            let texts: Vec<String> = std::iter::once((*title).to_owned()).chain(rows.iter().map(text)).collect();
            // Characters; everything shown is ASCII or a name the fabric has checked.
            let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
            Texts { side: *side, expendable: *expendable, width, texts }
        });
        Table { columns: columns.collect(), lines: rows.len() + 1 }
    }

    /// The whole table, of whatever width, each line with its end.
    pub(crate) fn text(&self) -> String {
        self.lines(usize::MAX).iter().map(|line| format!("{line}\n")).collect()
    }

    /// The line of titles, then one for each row, none longer than `width`.
    pub(crate) fn lines(&self, width: usize) -> Vec<String> {
        let mut shown: Vec<&Texts> = self.columns.iter().collect();
        while shown.iter().map(|c| c.width + GAP.len()).sum::<usize>() > width.saturating_add(GAP.len()) {
            let most = shown.iter().map(|c| c.expendable).max().unwrap_or(0);
            match shown.iter().rposition(|c| c.expendable == most && most > 0) {
                Some(victim) => shown.remove(victim),
                None => break,
            };
        }
        let line = |n: usize| {
            let cells = shown.iter().map(|Texts { side, width, texts, .. }| match side {
                Side::Left => format!("{:<width$}", texts[n]),
                Side::Right => format!("{:>width$}", texts[n]),
            });
            cut(&cells.collect::<Vec<_>>().join(GAP), width).trim_end().to_owned()
        };
        (0..self.lines).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Side::{Left, Right};
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_in_order() {
        let rows = [["a", "12", "3", "400000"]];
        let columns: [Column<[&str; 4]>; 4] = [
            ("NAME", Left, 0, |r| r[0].into()),
            ("RATE", Right, 0, |r| r[1].into()),
            ("MAX", Right, 2, |r| r[2].into()),
            ("DROPS", Right, 1, |r| r[3].into()),
        ];
        let table = Table::new(&rows, &columns);
        assert_eq!(table.lines(99), ["NAME  RATE  MAX   DROPS", "a       12    3  400000"]);
        assert_eq!(table.lines(22), ["NAME  RATE   DROPS", "a       12  400000"]);
        assert_eq!(table.lines(12), ["NAME  RATE", "a       12"]);
        assert_eq!(table.lines(7), ["NAME  R", "a"]);
        assert_eq!(table.lines(0), ["", ""]);
    }
}
