// SPDX-License-Identifier: MIT OR Apache-2.0
//! No files of a crate import each other in a circle, and no C files include each other in one.
//!
//! An import of Rust is a path that begins with `crate` or `super`, in a `use`, in code, or in a macro's words. It
//! leads to the file that has the definition: what a file hands on (`pub use`) is not its own. A file and the parts
//! that it declares (`mod part;`) are one thing: it may name what they have without importing it (`part::Name`). C's
//! files are one with the header of their name.

use crate::workspace::{files, list, metadata, packages, root, text, text_of};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use syn::visit::{self, Visit};

/// The names on the way to a module or to an item.
type Names = Vec<String>;

/// What is in a module, as far as imports go.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Items that are defined here.
    items: BTreeSet<String>,
    /// What other names stand for, by `use`.
    handed_on: BTreeMap<String, Names>,
    /// Of which modules all names are handed on.
    all_of: Vec<Names>,
    /// Paths, and the line of each.
    imports: Vec<(Names, usize)>,
}

/// A crate: its modules by the names on the way to them.
#[derive(Default)]
struct Crate(BTreeMap<Names, Module>);

/// Reads the modules of one file into a crate.
struct Reading<'a> {
    into: &'a mut Crate,
    file: &'a Path,
    here: Names,
    /// Where the files of modules are.
    directory: PathBuf,
    /// Modules that have files of their own, and whether a file of theirs lies beside that one: `mod.rs`, or one that
    /// `#[path]` names.
    found: Vec<(Names, PathBuf, bool)>,
}

fn is_relative(names: &[String]) -> bool {
    names.len() > 1 && matches!(names[0].as_str(), "crate" | "super")
}

impl Reading<'_> {
    fn module(&mut self) -> &mut Module {
        let module = self.into.0.entry(self.here.clone()).or_default();
        self.file.clone_into(&mut module.file);
        module
    }

    fn import(&mut self, names: Names, line: usize) {
        if is_relative(&names) {
            self.module().imports.push((names, line));
        }
    }

    fn hand_on(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |last: &syn::Ident| [before, &[last.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.hand_on(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.hand_on(before, tree)),
            syn::UseTree::Glob(glob) => {
                self.import(before.to_vec(), line_of(glob));
                self.module().all_of.push(before.to_vec());
            }
            syn::UseTree::Name(name) => {
                let names = if name.ident == "self" { before.to_vec() } else { with(&name.ident) };
                self.handed(names.last().cloned(), names, line_of(name));
            }
            syn::UseTree::Rename(rename) => {
                let names = if rename.ident == "self" { before.to_vec() } else { with(&rename.ident) };
                self.handed(Some(rename.rename.to_string()), names, line_of(rename));
            }
        }
    }

    fn handed(&mut self, name: Option<String>, names: Names, line: usize) {
        self.import(names.clone(), line);
        if let Some(name) = name {
            self.module().handed_on.insert(name, names);
        }
    }

    /// Paths in what a macro gets.
    fn words(&mut self, words: TokenStream) {
        let mut names: Names = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for word in words {
            match word {
                TokenTree::Ident(ident) if names.is_empty() || colons == 2 => {
                    if names.is_empty() {
                        line = ident.span().start().line;
                    }
                    names.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !names.is_empty() => colons += 1,
                other => {
                    self.import(std::mem::take(&mut names), line);
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.words(group.stream()),
                        TokenTree::Ident(ident) => {
                            line = ident.span().start().line;
                            names.push(ident.to_string());
                        }
                        _ => {}
                    }
                }
            }
        }
        self.import(names, line);
    }
}

fn line_of(node: &impl syn::spanned::Spanned) -> usize {
    node.span().start().line
}

fn name_of(item: &syn::Item) -> Option<String> {
    Some(match item {
        syn::Item::Const(item) => item.ident.to_string(),
        syn::Item::Enum(item) => item.ident.to_string(),
        syn::Item::Fn(item) => item.sig.ident.to_string(),
        syn::Item::Macro(item) => item.ident.as_ref()?.to_string(),
        syn::Item::Static(item) => item.ident.to_string(),
        syn::Item::Struct(item) => item.ident.to_string(),
        syn::Item::Trait(item) => item.ident.to_string(),
        syn::Item::Type(item) => item.ident.to_string(),
        syn::Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// The file that `#[path = "..."]` names.
fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| match &attribute.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }),
            ..
        }) => Some(file.value()),
        _ => None,
    })
}

impl<'ast> Visit<'ast> for Reading<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if let Some(name) = name_of(item) {
            self.module().items.insert(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        self.here.push(name.clone());
        match &item.content {
            Some(_) => {
                self.directory.push(&name);
                self.module();
                visit::visit_item_mod(self, item);
                self.directory.pop();
            }
            None => {
                let beside = self.directory.join(format!("{name}.rs"));
                let (file, is_first) = match path_attribute(&item.attrs) {
                    Some(file) => (self.file.with_file_name(file), true),
                    None if beside.is_file() => (beside, false),
                    None => (self.directory.join(&name).join("mod.rs"), true),
                };
                self.found.push((self.here.clone(), file, is_first));
            }
        }
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.hand_on(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.import(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line_of(path));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.words(item.tokens.clone());
        visit::visit_macro(self, item);
    }
}

impl Crate {
    /// Reads all files of the crate with this root.
    fn read(root: &Path) -> Crate {
        let mut read = Crate::default();
        let mut waiting = vec![(Vec::new(), root.to_owned(), true)];
        while let Some((here, file, is_first)) = waiting.pop() {
            let source = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let source = syn::parse_file(&source).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let parent = file.parent().expect("a file is in a directory");
            let directory = if is_first { parent.to_owned() } else { file.with_extension("") };
            let mut reading = Reading { into: &mut read, file: &file, here, directory, found: Vec::new() };
            reading.module();
            reading.visit_file(&source);
            waiting.append(&mut reading.found);
        }
        read
    }

    /// The module that has what a path names, which stands in module `from`; None if that is another crate's.
    fn home(&self, from: &[String], names: &[String], turns: usize) -> Option<Names> {
        let first = names.first()?;
        let (mut here, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), &names[1..]),
            "self" => (from.to_vec(), &names[1..]),
            "super" => (from.to_vec(), names),
            _ if self.0.contains_key(&[from, std::slice::from_ref(first)].concat()) => (from.to_vec(), names),
            _ => return None,
        };
        while rest.first().is_some_and(|name| name == "super") {
            here.pop();
            rest = &rest[1..];
        }
        while let [name, behind @ ..] = rest {
            here.push(name.clone());
            if self.0.contains_key(&here) {
                rest = behind;
                continue;
            }
            here.pop();
            let module = self.0.get(&here)?;
            if module.items.contains(name) || turns == 0 {
                break;
            }
            if let Some(stands_for) = module.handed_on.get(name) {
                return self.home(&here, &[stands_for, behind].concat(), turns - 1);
            }
            let of_all = |all: &Names| {
                let home = self.home(&here, all, turns - 1)?;
                let has = self.0.get(&home).is_some_and(|m| m.items.contains(name) || m.handed_on.contains_key(name));
                if has { self.home(&here, &[all, rest].concat(), turns - 1) } else { None }
            };
            return module.all_of.iter().find_map(of_all).or(Some(here));
        }
        Some(here)
    }

    /// Which file imports which, and the first line and path by which it does.
    fn arrows(&self) -> BTreeMap<(&Path, &Path), String> {
        let mut arrows = BTreeMap::new();
        for (here, module) in &self.0 {
            for (names, line) in &module.imports {
                let home = self.home(here, names, 16).and_then(|home| self.0.get(&home));
                if let Some(home) = home.filter(|home| home.file != module.file) {
                    let what = format!("{}:{line} imports {}", shown(&module.file), names.join("::"));
                    arrows.entry((&*module.file, &*home.file)).or_insert(what);
                }
            }
        }
        arrows
    }
}

fn shown(file: &Path) -> String {
    let root = root().canonicalize().expect("the root is there");
    file.strip_prefix(root).unwrap_or(file).display().to_string()
}

/// The circles among arrows, each with what makes it.
pub(crate) fn circles<N: Copy + Ord + std::hash::Hash>(arrows: &BTreeMap<(N, N), String>) -> Vec<String> {
    let graph: DiGraphMap<N, ()> = arrows.keys().map(|(from, to)| (*from, *to)).collect();
    let circles = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1);
    let told = circles.map(|circle| {
        let inside = arrows.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let lines: Vec<&str> = inside.map(|(_, what)| what.as_str()).collect();
        format!("{} files need each other:\n  {}", circle.len(), lines.join("\n  "))
    });
    told.collect()
}

/// Every crate of the workspace, as its root and what is below it have it.
fn crates() -> &'static [Crate] {
    static ALL: OnceLock<Vec<Crate>> = OnceLock::new();
    ALL.get_or_init(|| {
        let metadata = metadata();
        let targets = packages(&metadata).into_iter().flat_map(|package| list(package, "targets"));
        let roots: BTreeSet<&str> = targets.map(|target| text(target, "src_path")).collect();
        assert!(roots.len() > 100, "the workspace has {} crates", roots.len());
        roots.into_iter().map(|root| Crate::read(Path::new(root))).collect()
    })
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let (mut arrows, mut found) = (0, Vec::new());
    for read in crates() {
        let of_crate = read.arrows();
        arrows += of_crate.len();
        found.extend(circles(&of_crate));
    }
    assert!(arrows > 1000, "only {arrows} imports were found");
    let circles = found.len();
    assert!(found.is_empty(), "{}\n{circles} circles: have what both use in a file below both", found.join("\n"));
}

/// A file that no module names is not compiled, and its tests do not run.
#[test]
fn every_file_is_of_a_crate() {
    // Those of a workspace of its own.
    const OTHERS: &str = "ci/fuzz/fuzz_targets/";
    let canonical = |file: &Path| file.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let modules = crates().iter().flat_map(|read| read.0.values());
    let reached: BTreeSet<PathBuf> = modules.map(|module| canonical(&module.file)).collect();
    let all = files(&["*.rs"], 1000);
    let lost = all.iter().filter(|file| !file.starts_with(OTHERS) && !reached.contains(&canonical(&root().join(file))));
    let lost: Vec<&String> = lost.collect();
    assert!(lost.is_empty(), "no crate has these files: {lost:?}");
}

/// The name that a file of C has in common with its header.
pub(crate) fn unit(file: &str) -> &str {
    file.rsplit_once('.').map_or(file, |(unit, _)| unit)
}

pub(crate) fn includes(sources: &[(String, String)]) -> BTreeMap<(&str, &str), String> {
    let by_name = |directory: &str, name: &str| {
        let beside = format!("{directory}{name}");
        let end = format!("/{name}");
        let found = sources.iter().find(|(file, _)| *file == beside);
        found.or_else(|| sources.iter().find(|(file, _)| file.ends_with(&end))).map(|(file, _)| unit(file))
    };
    let mut arrows = BTreeMap::new();
    for (file, source) in sources {
        let directory = &file[..file.rfind('/').map_or(0, |at| at + 1)];
        for (number, line) in source.lines().enumerate() {
            let Some(name) = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next()) else { continue };
            if let Some(to) = by_name(directory, name).filter(|to| *to != unit(file)) {
                let what = format!("{file}:{} includes {name}", number + 1);
                arrows.entry((unit(file), to)).or_insert(what);
            }
        }
    }
    arrows
}

#[test]
fn no_files_of_c_include_each_other_in_a_circle() {
    let sources: Vec<(String, String)> =
        files(&["*.c", "*.h"], 40).into_iter().map(|name| (name.clone(), text_of(&name))).collect();
    let arrows = includes(&sources);
    assert!(arrows.len() > 40, "only {} includes were found", arrows.len());
    let found = circles(&arrows);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The circles of a crate of these files, the first of which is its root.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, source) in files {
        let file = directory.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("a directory is made");
        std::fs::write(file, source).expect("a file is written");
    }
    let found = circles(&Crate::read(&directory.path().join(files[0].0)).arrows());
    let here = format!("{}/", directory.path().display());
    found.into_iter().map(|circle| circle.replace(&here, "")).collect()
}

#[test]
fn a_circle_is_seen_by_whatever_way_it_goes() {
    let root = ("lib.rs", "mod a;\nmod b;\npub use a::A;\n");
    let b = ("b.rs", "use crate::A;\npub const B: u8 = 1;\n");
    let expected = "2 files need each other:\n  a.rs:2 imports WHAT\n  b.rs:1 imports crate::A".to_owned();
    for (what, a) in [
        ("crate::b::B", "pub struct A;\nuse crate::b::B;\n"),
        ("super::b::B", "pub struct A;\nfn f() -> u8 { super::b::B }\n"),
        ("crate::b::B", "pub struct A;\nfn f() { println!(\"{}\", [crate::b::B; 1][0]); }\n"),
        ("super::super::b::B", "pub struct A;\nmod inner { use super::super::b::B; }\n"),
    ] {
        assert_eq!(circles_of(&[root, ("a.rs", a), b]), [expected.replace("WHAT", what)], "{a}");
    }
    // Through what another file hands on, with another name, or with all names.
    let a = ("a.rs", "pub struct A;\nuse crate::c::D;\n");
    for c in ["pub use crate::b::B as D;\n", "pub use super::e::*;\n"] {
        let root = ("lib.rs", "mod a;\nmod b;\nmod c;\nmod e;\npub use a::A;\n");
        let e = ("e/mod.rs", "pub use super::b::B as D;\n");
        let found = circles_of(&[root, a, b, ("c.rs", c), e]);
        assert_eq!(found.len(), 1, "{c}: {found:?}");
        assert!(found[0].contains("a.rs:2 imports crate::c::D"), "{found:?}");
    }
}

#[test]
fn what_is_no_circle_is_none() {
    // A part uses what it is a part of, which names it without importing it.
    let whole = ("lib.rs", "mod part;\nuse part::Part;\npub struct Whole(Part);\n");
    assert_eq!(circles_of(&[whole, ("part.rs", "use super::Whole;\npub struct Part;\n")]), [""; 0]);
    // The names of crates, of a word of `pub(crate)`, and of the file itself.
    let root = ("lib.rs", "mod a;\nmod b;\n");
    let a = ("a.rs", "use std::b::B;\npub(crate) struct A;\nmod inner { use super::A; }\n");
    assert_eq!(circles_of(&[root, a, ("b.rs", "use crate::a::A;\n")]), [""; 0]);
}

#[test]
fn a_circle_of_includes_is_seen() {
    let source = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let sources = [
        source("m/a.c", "#include \"a.h\"\n#include \"b.h\"\n"),
        source("m/a.h", ""),
        source("m/b.h", "#include \"a.h\"\n"),
    ];
    let found = circles(&includes(&sources));
    assert_eq!(found, ["2 files need each other:\n  m/a.c:2 includes b.h\n  m/b.h:1 includes a.h"]);
    assert_eq!(circles(&includes(&sources[1..])), [""; 0]);
}
