// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of `docs/guest.md`, each in the guests and by the user that it names.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

/// What a line of the page says.
struct Line {
    what: String,
    guests: String,
    user: String,
    check: String,
}

/// Cells of a row of a table; a bar inside one is escaped.
fn cells(row: &str) -> Vec<String> {
    let inner = row.trim().strip_prefix('|').and_then(|row| row.strip_suffix('|')).unwrap_or("");
    let cells = inner.replace("\\|", "\u{1}");
    cells.split('|').map(|cell| cell.replace('\u{1}', "|").trim().to_owned()).collect()
}

fn lines() -> Result<Vec<Line>> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guest.md"))?;
    let mut lines = Vec::new();
    for row in page.lines().filter(|row| row.starts_with('|') && row.contains('`')) {
        let [what, guests, user, check] = <[String; 4]>::try_from(cells(row))
            .map_err(|cells| anyhow::anyhow!("{} cells, expected 4: {row}", cells.len()))?;
        let check = check.strip_prefix('`').and_then(|check| check.strip_suffix('`'));
        let check = check.with_context(|| format!("the last cell is no command: {row}"))?.to_owned();
        ensure!(["all", "small", "other", "placed"].contains(&&*guests), "unknown guests {guests}: {row}");
        ensure!(["tg", "root"].contains(&&*user), "unknown user {user}: {row}");
        lines.push(Line { what, guests, user, check });
    }
    ensure!(lines.len() > 30, "the page has {} lines", lines.len());
    Ok(lines)
}

/// Runs, by `run(user, script)`, what the page says of these guests.
pub(crate) fn holds(guests: &[&str], run: impl Fn(&str, &str) -> Result<String>) -> Result<()> {
    let lines = lines()?;
    for user in ["tg", "root"] {
        let of_user: Vec<_> = lines.iter().filter(|l| l.user == user && guests.contains(&&*l.guests)).collect();
        let number = |(n, line): (usize, &&Line)| format!("( {} ) >/dev/null 2>&1 || echo {n}\n", line.check);
        let script: String = of_user.iter().enumerate().map(number).collect();
        let said = run(user, &script)?;
        let wrong: Vec<_> = said.split_whitespace().filter_map(|n| of_user.get(n.parse::<usize>().ok()?)).collect();
        let wrong: Vec<_> = wrong.iter().map(|line| format!("{}\n    {}", line.what, line.check)).collect();
        ensure!(said.is_empty(), "by {user}, of {guests:?} docs/guest.md says what is not so:\n{}", wrong.join("\n"));
    }
    Ok(())
}
