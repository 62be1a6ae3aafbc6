// SPDX-License-Identifier: MIT OR Apache-2.0
//! No words of the list in CONTRIBUTING.md, and no software that is a person.

use crate::workspace::{files, text_of};

/// The page with the list, the one file that has its words.
const PAGE: &str = "CONTRIBUTING.md";
/// The first line of the list in it.
const BLOCK: &str = "```text words";
/// Words that may stand before it: people.
const PEOPLE: [&str; 24] = [
    "administrator",
    "administrators",
    "anyone",
    "author",
    "authors",
    "contributor",
    "contributors",
    "developer",
    "developers",
    "everyone",
    "maintainer",
    "maintainers",
    "newcomer",
    "one",
    "operator",
    "operators",
    "people",
    "person",
    "reader",
    "readers",
    "someone",
    "those",
    "user",
    "users",
];

/// The phrases in the list: commas and line ends divide them.
fn phrases(page: &str) -> Vec<String> {
    let block = page.split_once(&format!("{BLOCK}\n")).and_then(|(_, rest)| rest.split_once("```"));
    let (block, _) = block.unwrap_or_else(|| panic!("{PAGE} has no block {BLOCK} that ends"));
    block.split([',', '\n']).map(str::trim).filter(|phrase| !phrase.is_empty()).map(str::to_lowercase).collect()
}

/// The words of a line, as far as they are letters and apostrophes.
fn words(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// The part of a line that is written for people: of Markdown all of it, of code its comment.
fn prose(name: &str, line: &str) -> Option<String> {
    let line = line.trim_start();
    if name.ends_with(".md") {
        return Some(line.to_owned());
    }
    let behind = |start: &str| line.find(start).map(|at| line[at + start.len()..].to_owned());
    match name.rsplit('.').next() {
        Some("c" | "h") if line.starts_with('*') => Some(line.to_owned()),
        Some("c" | "h") => behind("/*"),
        Some("rs") => behind("//"),
        _ => behind("# "),
    }
}

/// What is wrong in a text: the number of the line, and the words.
fn found(name: &str, text: &str, phrases: &[String]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // The last word of the line before, in a comment that goes over several.
    let mut before = String::new();
    for (number, line) in text.lines().enumerate() {
        let all = words(line);
        let has = |phrase: &&String| {
            let phrase: Vec<&str> = phrase.split(' ').collect();
            all.windows(phrase.len()).any(|window| window.iter().eq(&phrase))
        };
        found.extend(phrases.iter().filter(has).map(|phrase| (number + 1, phrase.clone())));
        let prose = words(&prose(name, line).unwrap_or_default());
        let places = prose.iter().enumerate().filter(|(_, word)| *word == "who");
        for (at, _) in places {
            let of = if at == 0 { &before } else { &prose[at - 1] };
            if !PEOPLE.contains(&of.as_str()) {
                found.push((number + 1, format!("{of} who")));
            }
        }
        before = prose.last().cloned().unwrap_or_default();
    }
    found
}

#[test]
fn words_that_a_reader_must_translate_are_not_there() {
    let phrases = phrases(&text_of(PAGE));
    assert!(phrases.len() > 10, "{PAGE} lists {phrases:?}");
    let names = files(&["*.rs", "*.c", "*.h", "*.md", "*.toml", "*.sh", "*.lua", "*.py", ".ci/run"], 600);
    let mut wrong = Vec::new();
    // What the papers say is quoted.
    for name in names.into_iter().filter(|name| !matches!(name.as_str(), PAGE | "docs/spec.md")) {
        wrong.extend(
            found(&name, &text_of(&name), &phrases).iter().map(|(line, what)| format!("{name}:{line}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}\n{} lines: {PAGE} says how to write them", wrong.join("\n"), wrong.len());
}

#[test]
fn a_word_of_the_list_is_seen_wherever_it_stands() {
    let phrases = phrases(&format!("# Page\n{BLOCK}\nno body, blue moon,\nhullabaloo\n```\n"));
    assert_eq!(phrases, ["no body", "blue moon", "hullabaloo"]);
    let text = "/// A Blue moon.\nlet hullabaloo = \"no body\";\n// Blue, moonlight.\n";
    assert_eq!(
        found("a.rs", text, &phrases),
        [(1, "blue moon".into()), (2, "no body".into()), (2, "hullabaloo".into())]
    );
    // Spelt otherwise here, so that this file has none.
    let text = ["/// Users", "/// wh0 read, and boards", "/// wh0 do not.", "let wh0 = 1; // the one wh0"];
    let text = text.join("\n").replace("wh0", "who");
    assert_eq!(found("a.rs", &text, &phrases), [(3, "boards wh0".replace('0', "o"))]);
    assert_eq!(
        found("a.c", "/* The lock, for {}. */\n".replace("{}", "who waits").as_str(), &phrases),
        [(1, "for who".into())]
    );
}
