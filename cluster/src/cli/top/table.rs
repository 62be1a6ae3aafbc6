// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of text that drops its least important columns where it does not fit.

/// What is between two columns.
const GAP: usize = 2;

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    title: &'static str,
    right: bool,
    /// Columns with greater numbers go first; 0 stays.
    expendable: u8,
}

impl Column {
    /// Text.
    pub(crate) fn left(title: &'static str) -> Column {
        Column { title, right: false, expendable: 0 }
    }

    /// Numbers.
    pub(crate) fn right(title: &'static str) -> Column {
        Column { title, right: true, expendable: 0 }
    }

    /// It may be left out; columns with greater numbers go first.
    pub(crate) fn expendable(mut self, order: u8) -> Column {
        self.expendable = order;
        self
    }
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// Characters; everything shown is ASCII or a name the fabric has checked.
fn length(text: &str) -> usize {
    text.chars().count()
}

/// At most so many characters of it.
pub(crate) fn cut(text: &str, width: usize) -> &str {
    text.char_indices().nth(width).map_or(text, |(end, _)| &text[..end])
}

impl Table {
    pub(crate) fn new(columns: Vec<Column>) -> Table {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row, one text for each column.
    pub(crate) fn row(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The whole table, of whatever width, each line with its end.
    pub(crate) fn text(&self) -> String {
        self.lines(usize::MAX).iter().map(|line| format!("{line}\n")).collect()
    }

    /// The line of titles, then one for each row, none longer than `width`.
    pub(crate) fn lines(&self, width: usize) -> Vec<String> {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|c| {
                let cells = self.rows.iter().filter_map(|row| row.get(c)).map(|cell| length(cell));
                cells.chain([length(self.columns[c].title)]).max().unwrap_or(0)
            })
            .collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            let total = shown.iter().map(|c| widths[*c]).sum::<usize>() + GAP * shown.len().saturating_sub(1);
            let victim = shown.iter().rposition(|c| {
                let e = self.columns[*c].expendable;
                e > 0 && shown.iter().all(|o| self.columns[*o].expendable <= e)
            });
            match victim {
                Some(victim) if total > width => shown.remove(victim),
                _ => break,
            };
        }
        let line = |cell: &dyn Fn(usize) -> String| {
            let mut line = String::new();
            for (i, c) in shown.iter().enumerate() {
                let (cell, pad) = (cell(*c), widths[*c]);
                if i > 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                line += &if self.columns[*c].right { format!("{cell:>pad$}") } else { format!("{cell:<pad$}") };
            }
            cut(&line, width).trim_end().to_owned()
        };
        let titles = line(&|c| self.columns[c].title.to_owned());
        let rows = self.rows.iter().map(|row| line(&|c| row.get(c).cloned().unwrap_or_default()));
        std::iter::once(titles).chain(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_given_up_in_order() {
        let columns = vec![
            Column::left("NAME"),
            Column::right("RATE"),
            Column::right("MAX").expendable(2),
            Column::right("DROPS").expendable(1),
        ];
        let mut table = Table::new(columns);
        table.row(vec!["a".into(), "12".into(), "3".into(), "400000".into()]);
        assert_eq!(table.lines(99), ["NAME  RATE  MAX   DROPS", "a       12    3  400000"]);
        assert_eq!(table.lines(22), ["NAME  RATE   DROPS", "a       12  400000"]);
        assert_eq!(table.lines(12), ["NAME  RATE", "a       12"]);
        assert_eq!(table.lines(7), ["NAME  R", "a"]);
        assert_eq!(table.lines(0), ["", ""]);
    }
}
