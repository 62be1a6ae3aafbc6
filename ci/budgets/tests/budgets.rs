// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each operation keeps its budget of instructions (`budgets.toml`), and costs the same in a large cluster as in a
//! small one.
//!
//! The program of this package is built as shipped programs are and runs under callgrind, for two counts of each
//! operation; the difference is the cost of the operations alone, without set-up. Counted are the instructions of the
//! program's own code, which are the same on every machine for one compiler, and for each call out of it a fixed
//! number: `memcpy` and `malloc` of the host's C library take what its version and the processor make of them. The
//! count is exact: the next run gives the same number. It is not a time: a cache miss costs as much as a hit. Counted
//! as well are the calls that allocate memory: no message is worth one.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of a test fail as it does")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use telegraphos_budgets::{OPERATIONS, rounds};
use telegraphos_images::{Progress, Store, nested_cargo};
use telegraphos_testkit::Scale;

/// A multiple of all periods: credits are returned in batches, tables grow by doubling.
const COUNT: u64 = 512;
/// The function of the program that performs one operation COUNT times.
const FUNCTION: &str = "telegraphos_budgets::perform";
const TABLE: &str = "ci/budgets/budgets.toml";
const RENEW: &str = "TELEGRAPHOS_BLESS=1 cargo test -p telegraphos-budgets";
/// Instructions that a call of the C library counts: about what a short copy or a small allocation takes.
const CALL: u64 = 30;
/// Makes the C library choose its oldest code for this processor, and so execute other numbers of instructions.
const PLAIN: (&str, &str) = ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM");

/// Percent above which a cost is too much, and below which its budget is no limit any more.
const MARGIN: (f64, f64) = (2.0, 10.0);
/// The same with another compiler than that of the table: it generates other code.
const MARGIN_OF_OTHERS: (f64, f64) = (10.0, 20.0);
/// Percent by which a cost may differ in a larger cluster.
const FLAT: f64 = 5.0;

/// The functions of the C library by which Rust allocates memory.
const ALLOCATE: [&str; 4] = ["malloc", "calloc", "realloc", "posix_memalign"];
/// What rounding leaves between a count of allocations and its budget.
const ROUNDING: f64 = 0.0001;

/// Instructions, or allocations, of one operation, by its name.
type Costs = BTreeMap<String, f64>;

/// What is counted in a part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    instructions: u64,
    allocations: u64,
}

/// What is measured of all operations.
#[derive(Debug, PartialEq)]
struct Measured {
    instructions: Costs,
    allocations: Costs,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// The version of Rust that the budgets were measured with.
    compiler: String,
    instructions: Costs,
    /// Calls that allocate memory, exactly.
    allocations: Costs,
    /// What grows, as known: by the arguments, percent of each operation.
    grows: BTreeMap<String, Costs>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the program with the profile that programs are shipped with.
fn program() -> PathBuf {
    // Cargo puts CARGO_TARGET_TMPDIR into the target directory; another directory would build everything once more.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
    let mut cargo = nested_cargo().expect("the sources");
    cargo.args(["build", "--release", "--locked", "--message-format=json-render-diagnostics", "--target-dir"]);
    let output = cargo.arg(target).args(["-p", env!("CARGO_PKG_NAME"), "--bin", "operations"]).output();
    let output = output.expect("cargo starts");
    assert!(output.status.success(), "cargo: {}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).expect("messages");
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let paths: Vec<PathBuf> = messages.filter_map(|message| Some(message["executable"].as_str()?.into())).collect();
    assert_eq!(paths.len(), 1, "{paths:?}: expected one program");
    // As callgrind names it.
    paths[0].canonicalize().expect("the program's path")
}

/// The version of the toolchain that builds [`program`]: its cargo has the number of its compiler.
fn compiler() -> String {
    let mut cargo = nested_cargo().expect("the sources");
    let output = cargo.args(["--version", "--verbose"]).output().expect("cargo starts");
    let text = String::from_utf8(output.stdout).expect("a version");
    let release = text.lines().find_map(|line| line.strip_prefix("release: "));
    release.unwrap_or_else(|| panic!("cargo printed {text:?}: expected a line release")).to_owned()
}

/// What `count` of each operation take.
fn counts(valgrind: &mut Command, program: &Path, count: u64, sizes: &[&str]) -> Vec<Count> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("out");
    valgrind.args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.args([format!("--dump-before={FUNCTION}"), format!("--dump-after={FUNCTION}")]);
    let output = valgrind.arg(program).arg(count.to_string()).args(OPERATIONS).args(sizes).output();
    let output = output.expect("valgrind starts");
    assert!(output.status.success(), "{sizes:?}: {}", String::from_utf8_lossy(&output.stderr));
    // out.1, out.2 and so on are the parts of the run, in order; those that end with the function are its calls.
    let mut calls = Vec::new();
    for number in 1.. {
        let Ok(part) = fs::read_to_string(directory.path().join(format!("out.{number}"))) else { break };
        if part.lines().any(|line| line == format!("desc: Trigger: --dump-after={FUNCTION}")) {
            calls.push(own(&part, program.to_str().expect("a path in UTF-8")));
        }
    }
    assert_eq!(calls.len(), OPERATIONS.len(), "callgrind has not seen each call of {FUNCTION}");
    calls
}

/// The instructions of one object in a part of callgrind's output, and [`CALL`] for each call out of it. After `ob=`
/// come the costs of functions of that object, each a line of two numbers; the cost after `calls=` is that of the
/// callee, whose object `cob=` names where it is another one.
fn own(part: &str, object: &str) -> Count {
    let (mut own, mut callee, mut of_callee, mut function) = (false, None, false, "");
    let mut total = Count { instructions: 0, allocations: 0 };
    for line in part.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            own = name == object;
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee = Some(name == object);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            function = name;
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let calls: u64 = calls.split(' ').next().and_then(|n| n.parse().ok()).expect("a number of calls");
            if own && !callee.take().unwrap_or(own) {
                total.instructions += CALL * calls;
                total.allocations += if ALLOCATE.contains(&function) { calls } else { 0 };
            }
            callee = None;
            of_callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            if own && !of_callee {
                total.instructions += line.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a cost");
            }
            of_callee = false;
        }
    }
    assert!(total.instructions > 0, "callgrind has counted nothing in {object}");
    total
}

/// Measures all operations in clusters of these sizes, one after the other; each twice at the same time.
fn measure(store: &Store, program: &Path, sizes: &[&str], environment: &[(&str, &str)]) -> Measured {
    let run = |count| {
        let mut valgrind = store.valgrind().expect("valgrind").command();
        valgrind.envs(environment.iter().copied());
        counts(&mut valgrind, program, count, sizes)
    };
    let (once, twice) = std::thread::scope(|scope| {
        let once = scope.spawn(|| run(COUNT));
        let twice = run(2 * COUNT);
        (once.join().expect("the first run"), twice)
    });
    let each = |of: fn(&Count) -> u64| {
        let more = once.iter().zip(&twice).map(|(once, twice)| (of(twice) - of(once)) as f64);
        let cost = |(name, more): (&str, f64)| (name.to_owned(), more / rounds(name, COUNT) as f64);
        OPERATIONS.into_iter().zip(more).map(cost).collect()
    };
    Measured { instructions: each(|count| count.instructions), allocations: each(|count| count.allocations) }
}

/// By how many percent a cost is above what it should be.
fn percent(cost: f64, of: f64) -> f64 {
    (cost - of) * 100.0 / of
}

/// What is wrong with costs, compared with their budgets.
fn beyond(costs: &Costs, budgets: &Costs, (above, below): (f64, f64)) -> Vec<String> {
    let mut wrong = Vec::new();
    for (operation, cost) in costs {
        let Some(budget) = budgets.get(operation) else {
            wrong.push(format!("{operation}: {cost:.0} instructions, and {TABLE} has no budget"));
            continue;
        };
        let percent = percent(*cost, *budget);
        let what = if percent > above {
            format!("more than {above} % above: find what costs so much, or renew the table")
        } else if percent < -below {
            format!("more than {below} % below: the budget is stale and no limit any more; renew the table")
        } else {
            continue;
        };
        wrong.push(format!("{operation}: {cost:.0} instructions, budget {budget:.0} ({percent:+.1} %), {what}"));
    }
    let unknown = budgets.keys().filter(|name| !costs.contains_key(*name));
    wrong.extend(unknown.map(|name| format!("{name}: {TABLE} has a budget, and there is no such operation")));
    wrong
}

/// What is wrong with allocations, compared with their budgets: they are counts, not only limits.
fn other_allocations(counts: &Costs, budgets: &Costs, sizes: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (operation, count) in counts {
        let Some(budget) = budgets.get(operation) else {
            wrong.push(format!("{operation}: {count:.3} allocations, and {TABLE} has no budget"));
            continue;
        };
        if (count - budget).abs() > ROUNDING {
            wrong.push(format!("{operation}{sizes}: {count:.3} allocations, budget {budget:.3}"));
        }
    }
    wrong
}

/// What is wrong with the growth of costs from a small cluster to a larger one.
fn uneven(sizes: &str, small: &Costs, large: &Costs, known: &Costs) -> Vec<String> {
    let mut wrong = Vec::new();
    for (operation, cost) in large {
        let (growth, known) = (percent(*cost, small[operation]), known.get(operation).copied().unwrap_or(0.0));
        if (growth - known).abs() > FLAT {
            wrong.push(format!(
                "{operation} {sizes}: {cost:.0} instructions, {growth:+.1} % of those in a small cluster: expected \
                 {known:+.1} % within {FLAT} %"
            ));
        }
    }
    wrong
}

/// Sizes of the large clusters: one number at a time.
const LARGE: [&[&str]; 5] =
    [&["--nodes", "64"], &["--nodes", "1024"], &["--nodes", "4096"], &["--contexts", "256"], &["--queues", "4096"]];

/// At full scale also in large clusters, and with another choice of the C library's code.
#[test]
fn operations_keep_their_budgets_in_clusters_of_any_size() {
    let store = Store::open(None, Progress::Auto).expect("the cache");
    let (program, compiler) = (program(), compiler());
    let small = measure(&store, &program, &[], &[]);
    for (operation, cost) in &small.instructions {
        println!("{operation:<14} {cost:>8.0} {:>7.3} allocations", small.allocations[operation]);
    }
    let path = root().join(TABLE);
    let text = fs::read_to_string(&path).expect("the table");
    if std::env::var("TELEGRAPHOS_BLESS").is_ok_and(|bless| bless == "1") {
        fs::write(&path, renewed(&text, &compiler, &small)).expect("the table is written");
        return;
    }
    let table: Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{TABLE}: {e}"));
    let margin = if table.compiler == compiler { MARGIN } else { MARGIN_OF_OTHERS };
    let mut wrong = beyond(&small.instructions, &table.instructions, margin);
    wrong.extend(other_allocations(&small.allocations, &table.allocations, ""));
    if !wrong.is_empty() {
        wrong.push(format!("the table is of Rust {}, this is Rust {compiler}", table.compiler));
        wrong.push(format!("to renew {TABLE}: {RENEW}; the commit says why the costs changed"));
    }
    let full = Scale::from_env() == Scale::Full;
    if full {
        assert_eq!(measure(&store, &program, &[], &[PLAIN]), small, "the C library's code must not count");
    }
    for sizes in LARGE.iter().filter(|_| full) {
        let (large, name) = (measure(&store, &program, sizes, &[]), sizes.join(" "));
        for (operation, cost) in &large.instructions {
            println!("{operation:<14} {cost:>8.0} {:+6.1} % {name}", percent(*cost, small.instructions[operation]));
        }
        let none = Costs::new();
        let known = table.grows.get(&name).unwrap_or(&none);
        wrong.extend(uneven(&name, &small.instructions, &large.instructions, known));
        wrong.extend(other_allocations(&large.allocations, &table.allocations, &format!(" {name}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The table with other budgets. What is before and after them stays.
fn renewed(text: &str, compiler: &str, measured: &Measured) -> String {
    let mut out = String::new();
    let mut within = false;
    for line in text.lines() {
        let budgets: Option<Vec<String>> = match line {
            "[instructions]" => Some(OPERATIONS.map(|of| format!("{of} = {:.0}\n", measured.instructions[of])).into()),
            "[allocations]" => {
                Some(OPERATIONS.map(|of| format!("{of} = {:?}\n", rounded(measured.allocations[of]))).into())
            }
            _ => None,
        };
        if line.starts_with('[') {
            within = budgets.is_some();
        }
        let name = line.split(" = ").next().unwrap_or_default();
        if within && OPERATIONS.contains(&name) {
            continue;
        }
        out += &if name == "compiler" { format!("compiler = \"{compiler}\"\n") } else { format!("{line}\n") };
        out.extend(budgets.into_iter().flatten());
    }
    out
}

/// To the places that a budget of allocations has.
fn rounded(count: f64) -> f64 {
    (count * 10_000.0).round() / 10_000.0
}

fn costs(of: &[(&str, f64)]) -> Costs {
    of.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect()
}

#[test]
fn only_own_instructions_and_calls_out_of_them_count() {
    let part = "events: Ir\nob=/p\nfl=a.rs\nfn=f\n1 10\n2 5\ncfn=g\ncalls=3 7\n2 600\n3 1\ncob=/libc.so\ncfi=m.c\n\
                cfn=memcpy\ncalls=2 0\n3 80\n\nfn=g\n7 600\n\nob=/libc.so\nfn=memcpy\n0 80\ncob=/p\ncfn=g\ncalls=1 7\n\
                0 9\nob=/p\nfn=h\n9 4\ntotals: 700\n";
    let count = |instructions, allocations| Count { instructions, allocations };
    assert_eq!(own(part, "/p"), count(10 + 5 + 1 + 600 + 4 + 2 * CALL, 0));
    assert_eq!(own(part, "/libc.so"), count(80 + CALL, 0));
    // What frees allocates nothing, nor do calls within the C library count.
    let part = "ob=/p\nfn=f\n1 10\ncob=/libc.so\ncfn=malloc\ncalls=4 0\n3 80\ncob=/libc.so\ncfn=free\ncalls=4 0\n3 80\n\
                cob=/libc.so\ncfn=realloc\ncalls=1 0\n3 9\nob=/libc.so\nfn=realloc\n0 9\ncfn=malloc\ncalls=1 0\n0 5\n";
    assert_eq!(own(part, "/p"), count(10 + 9 * CALL, 5));
}

#[test]
fn one_more_or_less_allocation_is_seen() {
    let budgets = costs(&[("load", 1.0), ("store", 0.0), ("stores", 0.0313)]);
    let check = |load, stores| {
        other_allocations(&costs(&[("load", load), ("stores", stores)]), &budgets, " --nodes 64").join("\n")
    };
    assert_eq!(check(1.0, 1.0 / 32.0), "");
    assert_eq!(check(1.002, 1.0 / 32.0), "load --nodes 64: 1.002 allocations, budget 1.000");
    assert_eq!(check(0.0, 1.0 / 32.0), "load --nodes 64: 0.000 allocations, budget 1.000");
    assert!(other_allocations(&costs(&[("fetch", 0.0)]), &budgets, "")[0].contains("has no budget"));
}

#[test]
fn what_is_beyond_its_budget_is_named_with_both_numbers() {
    let budgets = costs(&[("load", 1000.0), ("store", 1000.0)]);
    let check = |load, store| beyond(&costs(&[("load", load), ("store", store)]), &budgets, MARGIN).join("\n");
    assert_eq!(check(1020.0, 900.0), "");
    let above = check(1021.0, 1000.0);
    assert!(above.starts_with("load: 1021 instructions, budget 1000 (+2.1 %), more than 2 % above"), "{above}");
    let below = check(1000.0, 899.0);
    assert!(below.starts_with("store: 899 instructions, budget 1000 (-10.1 %), more than 10 % below"), "{below}");
    let other = beyond(&costs(&[("load", 1000.0), ("fetch", 5.0)]), &budgets, MARGIN).join("\n");
    assert!(other.contains("fetch: 5 instructions") && other.contains("store: "), "{other}");
}

#[test]
fn growth_is_seen_as_is_the_end_of_a_known_one() {
    let small = costs(&[("load", 1000.0)]);
    let check = |large, known| uneven("--x 9", &small, &costs(&[("load", large)]), &costs(&[("load", known)]));
    assert!(check(1050.0, 0.0).is_empty() && check(1120.0, 10.0).is_empty());
    assert!(check(1051.0, 0.0)[0].starts_with("load --x 9: 1051 instructions, +5.1 %"));
    assert_eq!(check(1000.0, 10.0).len(), 1);
}

#[test]
fn renewal_keeps_what_is_around_the_budgets() {
    let text = "# why\ncompiler = \"1\"\n\n[instructions]\nload = 1\n\n# exact\n[allocations]\nload = 1\n\n\
                [grows]\nload = 2\n";
    let each = |cost: f64| OPERATIONS.iter().map(|name| ((*name).to_owned(), cost)).collect();
    let new = renewed(text, "2", &Measured { instructions: each(7.4), allocations: each(0.03125) });
    assert!(new.starts_with("# why\ncompiler = \"2\"\n\n[instructions]\nstore-own = 7\n"), "{new}");
    let last = OPERATIONS.last().expect("operations");
    assert!(new.contains(&format!("{last} = 7\n\n# exact\n[allocations]\nstore-own = 0.0313\n")), "{new}");
    let end = format!("{last} = 0.0313\n\n[grows]\nload = 2\n");
    assert!(new.ends_with(&end) && !new.contains("load = 1\n"), "{new}");
}
