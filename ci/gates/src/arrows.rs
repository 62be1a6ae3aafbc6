// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arrows between crates are those of `docs/architecture.md`, and no process links what it does not need.

use crate::workspace::{list, metadata, packages, root, text, text_of};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The page with the arrows.
const PAGE: &str = "docs/architecture.md";
/// The first line of the block of arrows in it.
const BLOCK: &str = "```text arrows";
/// Crates for TLS and certificates.
const TLS: [&str; 5] = ["quinn-proto", "rcgen", "ring", "rustls", "time"];
/// Crates for metrics, HTTP and PEM files.
const CLIENTS: [&str; 3] = ["httparse", "pem", "prometheus-client"];
/// Crates for files, sockets, processes and logs.
const OUTSIDE: [&str; 4] = ["libc", "log", "nix", "rustix"];

/// Crates that each of these must not link, directly or indirectly.
const NOT_LINKED: [(&str, &[&[&str]]); 11] = [
    ("telegraphos-device", &[&TLS, &CLIENTS]),
    ("telegraphos-link", &[&TLS, &CLIENTS]),
    ("telegraphos-service", &[&TLS, &CLIENTS]),
    ("telegraphos-transport", &[&TLS, &CLIENTS]),
    ("telegraphos-wire", &[&TLS, &CLIENTS, &OUTSIDE]),
    ("telegraphos-accounts", &[&TLS, &CLIENTS, &OUTSIDE]),
    ("telegraphos-device-core", &[&TLS, &CLIENTS, &OUTSIDE]),
    ("telegraphos-fabric-core", &[&TLS, &CLIENTS, &OUTSIDE]),
    ("telegraphos-rdp-core", &[&TLS, &CLIENTS, &OUTSIDE]),
    ("telegraphos-channel-core", &[&TLS, &CLIENTS, &OUTSIDE]),
    ("telegraphos-msg-core", &[&TLS, &CLIENTS, &OUTSIDE]),
];

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The crates of the workspace, each with its normal dependencies (not dev or build dependencies) in the workspace.
fn arrows(metadata: &Value) -> Arrows {
    let ours = packages(metadata);
    let names: BTreeSet<&str> = ours.iter().map(|package| text(package, "name")).collect();
    let of = |package: &Value| {
        let normal = list(package, "dependencies").iter().filter(|dependency| dependency["kind"].is_null());
        normal
            .map(|dependency| text(dependency, "name"))
            .filter(|name| names.contains(name))
            .map(str::to_owned)
            .collect()
    };
    ours.iter().map(|package| (text(package, "name").to_owned(), of(package))).collect()
}

/// The arrows on the page, each with its line number: `crate -> crate, crate`, or only the name of a crate without
/// dependencies.
fn documented(page: &str) -> Result<BTreeMap<String, (usize, BTreeSet<String>)>, String> {
    let mut lines = page.lines().enumerate().skip_while(|(_, line)| *line != BLOCK).skip(1);
    let mut found = BTreeMap::new();
    loop {
        let Some((at, line)) = lines.next() else { return Err(format!("{PAGE}: no block {BLOCK} that ends")) };
        if line == "```" {
            return Ok(found);
        }
        let (name, to) = line.split_once("->").unwrap_or((line, ""));
        let to = to.split(',').map(str::trim).filter(|to| !to.is_empty()).map(str::to_owned).collect();
        if found.insert(name.trim().to_owned(), (at + 1, to)).is_some() {
            return Err(format!("{PAGE}:{}: {} has a second line", at + 1, name.trim()));
        }
    }
}

fn line(name: &str, to: &BTreeSet<String>) -> String {
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    if to.is_empty() { name.to_owned() } else { format!("{name} -> {}", to.join(", ")) }
}

/// The differences between page and workspace.
fn differences(page: &str, arrows: &Arrows) -> Vec<String> {
    let documented = match documented(page) {
        Ok(documented) => documented,
        Err(why) => return vec![why],
    };
    let missing = arrows.iter().filter(|(name, _)| !documented.contains_key(*name));
    let missing = missing.map(|(name, to)| format!("{PAGE}: a line is missing: {}", line(name, to)));
    let wrong = documented.iter().filter_map(|(name, (at, to))| match arrows.get(name) {
        None => Some(format!("{PAGE}:{at}: the workspace has no crate {name:?}: remove the line")),
        Some(found) if found != to => Some(format!("{PAGE}:{at}: expected {}", line(name, found))),
        Some(_) => None,
    });
    missing.chain(wrong).collect()
}

/// Names of everything that a crate links: itself, its normal dependencies, and theirs.
fn linked(metadata: &Value, name: &str) -> BTreeSet<String> {
    let packages = list(metadata, "packages");
    let names: BTreeMap<&str, &str> = packages.iter().map(|p| (text(p, "id"), text(p, "name"))).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let mut waiting: Vec<&str> = names.iter().filter(|(_, found)| **found == name).map(|(id, _)| *id).collect();
    assert!(!waiting.is_empty(), "there is no crate {name:?}");
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if seen.insert(id) {
            let node = nodes.get(id).expect("each package is resolved");
            let normal = list(node, "deps")
                .iter()
                .filter(|dependency| list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null()));
            waiting.extend(normal.map(|dependency| text(dependency, "pkg")));
        }
    }
    seen.iter().map(|id| names[id].to_owned()).collect()
}

#[test]
fn the_page_has_the_arrows_between_crates() {
    let wrong = differences(&text_of(PAGE), &arrows(&metadata()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What gates and what is shipped needs nothing of what only explains.
#[test]
fn nothing_outside_the_lab_needs_it() {
    let (metadata, lab) = (metadata(), root().canonicalize().expect("the root").join("lab"));
    let is_lab = |package: &Value| Path::new(text(package, "manifest_path")).starts_with(&lab);
    let (inside, outside): (Vec<_>, Vec<_>) = packages(&metadata).into_iter().partition(|package| is_lab(package));
    let inside: BTreeSet<&str> = inside.into_iter().map(|package| text(package, "name")).collect();
    assert!(!inside.is_empty(), "there is no crate in lab/");
    let needs = |package: &Value| {
        let all = list(package, "dependencies").iter().map(|dependency| text(dependency, "name"));
        all.filter(|name| inside.contains(name)).map(|name| format!("{} needs {name}", text(package, "name"))).collect()
    };
    let wrong: Vec<String> = outside.into_iter().flat_map(|package| -> Vec<String> { needs(package) }).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_links_what_it_does_not_need() {
    let metadata = metadata();
    let all: BTreeSet<&str> = list(&metadata, "packages").iter().map(|package| text(package, "name")).collect();
    // The fabric links all of them, which shows that the names are correct.
    let fabric = linked(&metadata, "telegraphos-fabric");
    for name in TLS.iter().chain(&CLIENTS).chain(&OUTSIDE) {
        assert!(all.contains(name) && fabric.contains(*name), "the fabric does not link {name}: correct the list");
    }
    for (name, forbidden) in NOT_LINKED {
        let linked = linked(&metadata, name);
        let found: Vec<&str> =
            forbidden.iter().copied().flatten().copied().filter(|other| linked.contains(*other)).collect();
        assert!(found.is_empty(), "{name} links {found:?}: `cargo tree -p {name} -e normal` shows through what");
    }
}

#[test]
fn what_differs_is_named_with_its_line() {
    let arrows: Arrows = [("a", vec!["b", "c"]), ("b", vec![]), ("c", vec!["b"])]
        .map(|(name, to)| (name.to_owned(), to.into_iter().map(str::to_owned).collect()))
        .into();
    let page = |lines: &str| format!("# Page\n{BLOCK}\n{lines}```\nc -> z\n");
    assert_eq!(differences(&page("a -> b, c\nb\nc   -> b\n"), &arrows), Vec::<String>::new());
    assert_eq!(differences(&page("a -> c\nb\nc -> b\n"), &arrows), [format!("{PAGE}:3: expected a -> b, c")]);
    assert_eq!(
        differences(&page("a -> b, c\nc -> b\nd\n"), &arrows),
        [
            format!("{PAGE}: a line is missing: b"),
            format!("{PAGE}:5: the workspace has no crate \"d\": remove the line")
        ]
    );
    assert_eq!(differences(&page("a\na\n"), &arrows), [format!("{PAGE}:4: a has a second line")]);
    assert!(differences("a -> b, c", &arrows)[0].contains("no block"));
}
