// SPDX-License-Identifier: MIT OR Apache-2.0
//! No files of the kernel modules call each other in a circle.
//!
//! What one C file defines for others (a function, a table or a variable), and another one names in its code, is an
//! arrow, whether it is called or its address is taken. So is an include, since a C file is one with its header.

use crate::imports::{circles, includes, unit};
use crate::workspace::{files, text_of};
use std::collections::BTreeMap;

/// The source with blanks in place of comments, strings and characters. Lines stay lines.
fn code(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, blank) = match first {
            '/' if rest.starts_with("/*") => (rest.find("*/").map_or(rest.len(), |at| at + 2), true),
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), true),
            '"' | '\'' => {
                let mut escaped = false;
                let ends = |(_, c): &(usize, char)| {
                    let ends = *c == first && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                };
                (rest.char_indices().skip(1).find(ends).map_or(rest.len(), |(at, _)| at + 1), true)
            }
            _ => (first.len_utf8(), false),
        };
        let (taken, behind) = rest.split_at(length);
        code.extend(taken.chars().map(|c| if blank && c != '\n' { ' ' } else { c }));
        rest = behind;
    }
    code
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The words of a code, each with its line and with what is before it there.
fn words(code: &str) -> Vec<(usize, &str, &str)> {
    let mut words = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut at = 0;
        while let Some(start) = line[at..].find(is_of_word).map(|start| at + start) {
            at = line[start..].find(|c| !is_of_word(c)).map_or(line.len(), |length| start + length);
            words.push((number + 1, line[..start].trim_end(), &line[start..at]));
        }
    }
    words
}

/// The names that a C file defines, and whether it does for others. In the kernel's style definitions begin in the
/// first column, and nothing inside of one does but a label.
fn definitions(code: &str) -> BTreeMap<&str, bool> {
    let mut found = BTreeMap::new();
    let (mut at, mut depth) = (0, 0);
    for line in code.split_inclusive('\n') {
        if depth == 0 && line.starts_with(is_of_word) {
            let (before, behind) = code[at..].split_at(code[at..].find(['{', ';', '=']).unwrap_or(0));
            let head = before.split(['(', '[']).next().unwrap_or_default();
            let names: Vec<&str> = words(head).into_iter().map(|(.., word)| word).collect();
            // A function has parameters and a body, a variable neither: other things are prototypes, macros and types.
            let defines = before.contains('(') == behind.starts_with('{');
            let is_type = matches!(names[..], ["struct" | "union" | "enum", _]);
            if let ([first, .., name], true, false) = (&names[..], defines, is_type) {
                found.insert(*name, !matches!(*first, "static" | "extern" | "typedef"));
            }
        }
        at += line.len();
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
    }
    found
}

/// Which C file names what others define.
fn calls(sources: &[(String, String)]) -> BTreeMap<(&str, &str), String> {
    let of_c = sources.iter().filter(|(file, _)| file.ends_with(".c"));
    let codes: Vec<(&str, String)> = of_c.map(|(file, text)| (file.as_str(), code(text))).collect();
    let defined: Vec<BTreeMap<&str, bool>> = codes.iter().map(|(_, code)| definitions(code)).collect();
    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for ((file, _), names) in codes.iter().zip(&defined) {
        for (name, _) in names.iter().filter(|(_, for_others)| **for_others) {
            homes.entry(*name).or_default().push(*file);
        }
    }
    let mut arrows: BTreeMap<_, (usize, Vec<&str>)> = BTreeMap::new();
    for ((file, code), own) in codes.iter().zip(&defined) {
        for (line, before, name) in words(code) {
            let names_no_value = ["struct", "union", "enum", ".", "->"].iter().any(|other| before.ends_with(other));
            let Some([home]) = homes.get(name).map(Vec::as_slice) else { continue };
            if names_no_value || own.contains_key(name) {
                continue;
            }
            let (_, names) = arrows.entry((*file, *home)).or_insert((line, Vec::new()));
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let described = |((file, home), (line, names)): ((_, _), (usize, Vec<&str>))| {
        ((unit(file), unit(home)), format!("{file}:{line} calls {}", names.join(", ")))
    };
    arrows.into_iter().map(described).collect()
}

#[test]
fn no_files_of_the_kernel_modules_call_each_other_in_a_circle() {
    let names = files(&["guest-driver/module/*.[ch]", "lab/module/*.[ch]"], 50);
    let of_c = names.iter().filter(|name| name.ends_with(".c")).count();
    assert!(of_c >= 40, "only {of_c} C files were found");
    let sources: Vec<(String, String)> = names.into_iter().map(|name| (name.clone(), text_of(&name))).collect();
    let mut arrows = calls(&sources);
    assert!(arrows.len() >= 100, "only {} arrows were found", arrows.len());
    for (arrow, what) in includes(&sources) {
        arrows.entry(arrow).or_insert(what);
    }
    let found = circles(&arrows);
    assert!(found.is_empty(), "{}\nhave what both use in a file below both", found.join("\n"));
    // The module for comparisons needs the driver; the driver needs nothing of it.
    let [lab, driver] = ["lab/", "guest-driver/"];
    let between = |from: &str, to: &str| -> Vec<&str> {
        let arrows = arrows.iter().filter(|((a, b), _)| a.starts_with(from) && b.starts_with(to));
        arrows.map(|(_, what)| what.as_str()).collect()
    };
    assert!(between(lab, driver).len() >= 4, "{:?}", between(lab, driver));
    assert!(between(driver, lab).is_empty(), "{}", between(driver, lab).join("\n"));
}

#[test]
fn a_circle_of_calls_is_seen() {
    let source = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let a = "/* b_run() */\nint a_count[2];\n\nint a_run(void)\n{\n\treturn b_run(\"c_run\", '\"', 1) + c_run();\n}\n";
    let b = "const struct ops b_ops = {\n\t.c_run = a_run,\n};\n\nint b_run(int n)\n{\n\treturn a_count[n];\n}\n";
    let c = "/* a_run() */\nint c_run(void)\n{\n\treturn 0;\n}\nEXPORT_SYMBOL(c_run);\n";
    let sources = [source("m/a.c", a), source("m/b.c", b), source("m/c.c", c)];
    let expected = "2 files need each other:\n  m/a.c:6 calls b_run\n  m/b.c:2 calls a_run, a_count";
    assert_eq!(circles(&calls(&sources)), [expected]);
    // A type, a field, a name of its own, and one that two files define are no calls.
    let other = "struct b_run x;\nstatic int c_run(void)\n{\n\tx.b_run = 1;\n\treturn c_run();\n}\nint a_count[2];\n";
    let sources = [source("m/a.c", a), source("m/b.c", b), source("m/d.c", other)];
    let arrows = calls(&sources);
    let told: Vec<&str> = arrows.values().map(String::as_str).collect();
    assert_eq!(told, ["m/a.c:6 calls b_run", "m/b.c:2 calls a_run"]);
}
