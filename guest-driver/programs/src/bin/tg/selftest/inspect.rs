// SPDX-License-Identifier: MIT OR Apache-2.0
//! What people see of the driver: debugfs and tracepoints.

use super::context::{Context, Stop, Verdict, must, same};
use super::queues::{send_range, take_range};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use telegraphos::NodeId;
use telegraphos_guest_tests::user;

/// A directory of one of the kernel's file systems, which is mounted if it is not.
fn kernel_directory(kind: &str, at: &str, inside: &str) -> Verdict<PathBuf> {
    if user::uid() != 0 {
        return Err(Stop::Skip(format!("needs root, to read {kind}: telegraphos run --user root")));
    }
    let known = std::fs::read_to_string("/proc/filesystems")?;
    if !known.lines().any(|line| line.split_whitespace().next_back() == Some(kind)) {
        return Err(Stop::Skip(format!("this kernel is built without {kind}")));
    }
    let path = Path::new(at).join(inside);
    if !path.exists() {
        let text = |text: &str| CString::new(text).map_err(|e| Stop::Fail(e.to_string()));
        let (kind, target) = (text(kind)?, text(at)?);
        // SAFETY: the strings end with NUL, and no data goes with them.
        let result =
            unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null::<libc::c_void>()) };
        if result != 0 {
            return Err(format!("mounting {kind:?} at {at}: {}", std::io::Error::last_os_error()).into());
        }
    }
    must(path.exists(), || format!("there is no {}", path.display()))?;
    Ok(path)
}

/// The debugfs directory of this node's board.
pub(crate) fn board_directory(context: &Context<'_>) -> Verdict<PathBuf> {
    let file = context.node().path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    kernel_directory("debugfs", "/sys/kernel/debug", &format!("telegraphos/{file}"))
}

/// The value of `name=` in a line.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The line of a table in which these words are.
pub(crate) fn line(directory: &Path, table: &str, words: &[&str]) -> Verdict<String> {
    let text = std::fs::read_to_string(directory.join(table))?;
    let found = text.lines().find(|line| words.iter().all(|word| line.split_whitespace().any(|w| w == *word)));
    found.map(str::to_owned).ok_or_else(|| Stop::Fail(format!("no line of {table} has {words:?}:\n{text}")))
}

/// A number in a line.
pub(crate) fn number(line: &str, name: &str) -> Verdict<u64> {
    let found = value(line, name).and_then(|value| value.parse().ok());
    found.ok_or_else(|| Stop::Fail(format!("no number {name} in {line:?}")))
}

/// The tables have what this process has, and no secrets.
pub(crate) fn debugfs(context: &mut Context<'_>) -> Verdict {
    let directory = board_directory(context)?;
    let me: NodeId = context.me();
    let secret = *b"sixteen letters!";
    let name = context.name("seen");
    let segment = context.node().export(&name, 100_000).secret(secret).create()?;
    let own = context.node().import(me, &name).secret(secret).open()?;
    let number_of_context = context.node().info()?.context;
    let of_context = format!("context={number_of_context}");

    let process = format!("process={}", std::process::id());
    line(&directory, "contexts", &[&of_context, &process, "uid=0", "congested=0"])?;
    let export = line(&directory, "exports", &[&of_context, &format!("name=\"{name}\""), "published=1", "open=1"])?;
    same("the bytes of the export", number(&export, "bytes")?, 100_000)?;
    same("its pages", (number(&export, "pages")?, number(&export, "granted")?), (2, 2))?;
    let handle = format!("handle={}", own.handle());
    let import = line(&directory, "imports", &[&of_context, &handle, &format!("node={me}"), "own=0"])?;
    same("the page of the import", number(&import, "page")?, number(&export, "page")?)?;
    same("its state", value(&import, "state"), Some("0x0"))?;

    let queue = context.queue("queue", |queue| queue.words(8).quota(3).limit(0))?;
    let words = ["words=8", "quota=3", "stage=running", "overflows=0", "holders=1"];
    let name_of_queue = format!("name=\"{}\"", queue.name());
    line(&directory, "queues", &[&words[..], &[&name_of_queue]].concat())?;
    let counter = std::fs::read_to_string(directory.join("counters"))?;
    let stores = |text: &str| text.lines().find_map(|line| value(line, "STORES")?.parse::<u64>().ok());
    own.put64(0, 1)?;
    own.quiet()?;
    let after = std::fs::read_to_string(directory.join("counters"))?;
    must(stores(&after) > stores(&counter), || format!("a store is not counted:\n{counter}\nthen:\n{after}"))?;

    let tables = [
        "contexts",
        "exports",
        "imports",
        "queues",
        "replicas",
        "registrations",
        "page_counters",
        "direct",
        "commands",
        "counters",
    ];
    for table in tables {
        let text = std::fs::read_to_string(directory.join(table))?;
        must(!text.contains("sixteen letters!"), || format!("{table} shows a secret:\n{text}"))?;
    }
    own.close()?;
    let text = std::fs::read_to_string(directory.join("imports"))?;
    let gone = !text.lines().any(|line| line.split_whitespace().any(|word| word == handle));
    must(gone, || format!("a closed import is still there:\n{text}"))?;
    segment.close()?;
    Ok(())
}

/// A buffer of trace events, which ends with this.
struct Trace(PathBuf);

impl Trace {
    fn write(&self, file: &str, text: &str) -> Verdict {
        let path = self.0.join(file);
        std::fs::write(&path, text).map_err(|e| Stop::Fail(format!("{}: {e}", path.display())))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("events/telegraphos/enable"), "0");
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Every tracepoint says what happened.
pub(crate) fn tracepoints(context: &mut Context<'_>) -> Verdict {
    let instances = kernel_directory("tracefs", "/sys/kernel/tracing", "instances")?;
    let directory = instances.join(format!("tg-selftest-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let trace = Trace(directory);
    if !trace.0.join("events/telegraphos").exists() {
        return Err(Stop::Skip("this kernel is built without CONFIG_EVENT_TRACING".into()));
    }
    trace.write("events/telegraphos/enable", "1")?;

    let segment = context.export("traced", 4096)?;
    let own = context.import(context.me(), "traced")?;
    own.put64(8, 3)?;
    own.quiet()?;
    same("the word", segment.load::<u64>(8)?, 3)?;
    // Five words of a buffer are elements: the sixth overflows.
    let queue = context.queue("overflows", |queue| queue.words(8).quota(3).limit(0))?;
    let sender = context.enqueuer(context.me(), "overflows")?;
    send_range(&sender, 0, 0, 12)?;
    take_range(&queue, 0, 0, 12)?;
    own.close()?;

    trace.write("events/telegraphos/enable", "0")?;
    let text = std::fs::read_to_string(trace.0.join("trace"))?;
    let page = |mapping: &str| format!("mapping={mapping} ");
    for words in [
        &["tg_admin_command:", "opcode=GRANT_SET"][..],
        &["tg_admin_command:", "opcode=LOOKUP"],
        &["tg_admin_command:", "opcode=IMPORT_CLEAR"],
        &["tg_admin_completion:", "status=0"],
        &["tg_event:", "kind=ADMIN_DONE"],
        &["tg_event:", "kind=QUEUE"],
        &["tg_fault:", &page("import"), "store"],
        &["tg_fault:", &page("queue")],
        &["tg_queue_overflow:", "overflows=1"],
    ] {
        let found = text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        must(found, || format!("no line of the trace has {words:?}:\n{text}"))?;
    }
    Ok(())
}
