// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file, a folder or a crate of this tree that documentation or a comment names is there.
//!
//! Names are in backticks. A path may leave out folders at its beginning: `requester/send.rs`.

use crate::workspace::{files, list, metadata, packages, root, text, text_of};
use std::collections::BTreeSet;
use std::path::Path;

/// Paths of other projects that look like ones of this tree.
const OTHERS: [&str; 2] = ["docs/API.md", "docs/MISSING_FEATURES.md"];

/// The words in backticks of a line that could be paths or crates.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
        !word.is_empty() && word.chars().all(plain) && !word.starts_with(['.', '/'])
    };
    line.split('`').skip(1).step_by(2).map(|word| word.trim_end_matches('/')).filter(is_name)
}

/// What there is in the tree: each file and folder, and the ends of its path.
fn ends(files: &[String]) -> BTreeSet<&str> {
    let mut ends = BTreeSet::new();
    for file in files {
        let folders = file.match_indices('/').map(|(at, _)| &file[..at]);
        for path in folders.chain([file.as_str()]) {
            ends.extend(path.match_indices('/').map(|(at, _)| &path[at + 1..]).chain([path]));
        }
    }
    ends
}

/// Whether a name is one of this tree's: a Rust file, or below one of its top folders; without a placeholder in
/// capitals.
fn is_ours(name: &str, top: &BTreeSet<&str>) -> bool {
    let below = name.split_once('/').is_some_and(|(first, _)| top.contains(first));
    let known = name.rsplit_once('.').is_some_and(|(name, end)| end == "rs" && !name.is_empty());
    (below || known) && !is_open(name) && !OTHERS.contains(&name)
}

/// Whether a part of a name is in capitals.
fn is_open(name: &str) -> bool {
    name.split(['/', '-', '.']).any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()))
}

/// Names that nothing in the tree has.
fn missing(text: &str, rust: bool, ends: &BTreeSet<&str>, top: &BTreeSet<&str>) -> Vec<(usize, String)> {
    let mut missing = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let prose = if rust { line.find("//").map_or("", |at| &line[at..]) } else { line };
        let wrong = named(prose).filter(|name| is_ours(name, top) && !ends.contains(name));
        missing.extend(wrong.map(|name| (number + 1, name.to_owned())));
    }
    missing
}

#[test]
fn what_documentation_and_comments_name_is_there() {
    let all = files(&["*"], 1000);
    let (ends, top) = (ends(&all), all.iter().filter_map(|file| Some(file.split_once('/')?.0)).collect());
    let mut wrong = Vec::new();
    let mut names = 0;
    for file in files(&["*.md", "*.rs", "*.c", "*.h", "*.sh", "*.toml"], 600) {
        let text = text_of(&file);
        names += text.lines().flat_map(named).filter(|name| ends.contains(name)).count();
        let missing = missing(&text, file.ends_with(".rs"), &ends, &top);
        wrong.extend(missing.into_iter().map(|(line, name)| format!("{file}:{line}: there is no {name}")));
    }
    assert!(names > 300, "only {names} names were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn crates_that_documentation_names_are_there() {
    let metadata = metadata();
    let packages = packages(&metadata);
    let targets = packages.iter().flat_map(|package| list(package, "targets"));
    let known: BTreeSet<&str> = packages.iter().copied().chain(targets).map(|named| text(named, "name")).collect();
    // Units, modules and packages have such names, too: each has a file of its name.
    let all = files(&["*"], 1000);
    let has_file =
        |name: &str| all.iter().filter_map(|file| file.rsplit('/').next()?.split('.').next()).any(|f| f == name);
    let mut wrong = Vec::new();
    for file in files(&["*.md"], 30) {
        for (number, line) in text_of(&file).lines().enumerate() {
            let names = named(line)
                .filter(|name| name.starts_with("telegraphos-") && !name.contains(['.', '/']) && !is_open(name));
            wrong.extend(
                names
                    .filter(|name| !known.contains(name) && !has_file(name))
                    .map(|name| format!("{file}:{}: {name}", number + 1)),
            );
        }
    }
    assert!(known.len() > 30 && wrong.is_empty(), "no such crate or program:\n{}", wrong.join("\n"));
}

#[test]
fn a_name_of_nothing_is_seen() {
    let all = ["a/src/b.rs", "c/d.md"].map(str::to_owned);
    let (ends, top) = (ends(&all), ["a", "c"].into());
    let there = "`a/src/b.rs`, `src/b.rs`, `b.rs`, `a/src`, `a/`, `/a/x`, `other/x.md`, `c/NAME.md`, `a | b`";
    assert_eq!(missing(there, false, &ends, &top), []);
    // Not a comment here.
    let gone = "first\n## `a/b.rs` and `c/e`\nlet x = \"`a/y`\"; ## `z.rs`\n".replace("##", "//");
    assert_eq!(missing(&gone, true, &ends, &top), [(2, "a/b.rs".into()), (2, "c/e".into()), (3, "z.rs".into())]);
}

/// The commands of README's section on a board for one's own VM build the programs that it then starts.
#[test]
fn readme_builds_what_a_vm_of_ones_own_needs() {
    let readme = text_of("README.md");
    let section = readme.split_once("\n## A board for your own VM\n").expect("the section").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines: Vec<&str> =
        section.lines().filter(|line| line.starts_with("cargo ") || line.starts_with("telegraphos-")).collect();
    let metadata = metadata();
    let mut built = BTreeSet::new();
    for package in lines.iter().filter(|line| line.starts_with("cargo ")).flat_map(|line| line.split(" -p ").skip(1)) {
        let package = package.split(' ').next().unwrap_or_default();
        let found = packages(&metadata).into_iter().find(|found| text(found, "name") == package);
        let found = found.unwrap_or_else(|| panic!("README.md: there is no package {package}"));
        built.extend(list(found, "targets").iter().map(|target| text(target, "name")));
    }
    let started: Vec<&str> =
        lines.iter().filter(|line| !line.starts_with("cargo ")).filter_map(|line| line.split(' ').next()).collect();
    assert!(started.len() >= 3, "{started:?}: expected the programs of HIB, fabric and host");
    let missing: Vec<&&str> = started.iter().filter(|program| !built.contains(**program)).collect();
    assert!(missing.is_empty(), "README.md: {missing:?} are started and not built: {built:?}");
}

/// README's table of folders has each top folder, and in its row the folder of each crate.
#[test]
fn readme_names_every_folder_and_crate() {
    const MOST: usize = 10;
    let readme = text_of("README.md");
    let row = |folder: &str| {
        let row = readme.lines().find(|line| line.starts_with(&format!("| [`{folder}/`]")));
        row.unwrap_or_else(|| panic!("README.md: the table of folders has no row for {folder}/"))
    };
    let all = files(&["*"], 1000);
    let top: BTreeSet<&str> =
        all.iter().filter_map(|file| Some(file.split_once('/')?.0)).filter(|folder| !folder.starts_with('.')).collect();
    assert!(top.len() <= MOST, "{} top folders: {top:?}; expected at most {MOST}", top.len());
    top.iter().for_each(|folder| assert!(row(folder).len() > folder.len()));
    let (metadata, root) = (metadata(), root().canonicalize().expect("the root"));
    let mut wrong = Vec::new();
    for package in packages(&metadata) {
        let folder =
            Path::new(text(package, "manifest_path")).parent().and_then(|folder| folder.strip_prefix(&root).ok());
        let folder = folder.and_then(Path::to_str).expect("a package is below the root");
        let Some((room, within)) = folder.split_once('/') else { continue };
        if !row(room).contains(&format!("`{within}/`")) {
            wrong.push(format!("README.md: the row of {room}/ does not name `{within}/` ({})", text(package, "name")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
