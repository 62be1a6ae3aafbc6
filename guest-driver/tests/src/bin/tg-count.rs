// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single operations between markers: what the counting plugin measures.

use std::process::ExitCode;
use telegraphos::{LaunchStyle, Node, Remote};
use tg_tests::cli::{self, Failure, Line, Outcome, Word};
use tg_tests::testdev::Testdev;
use tg_tests::{mark, raw};

const USAGE: &str = "\
tg-count: single operations between markers, for the counting plugin of QEMU (docs/plugin.md)

Usage: tg-count NODE NAME [--passages N]     on another node's segment, readable and writable
       tg-count --testdev [--passages N]     on QEMU's pci-testdev, as root

  --passages N    times each is done [20]

It prints which region is which (REGION id=2 op=store) and has the plugin write its table. Without the plugin nothing is
counted. Regions: nothing, store, two-stores, stores-100 (in a row), loop-100 (a loop as it was compiled), load,
system-call (getppid); of a segment also the library's put, get and quiet, a fetch-and-add's launch alone from user level
(launch), and the whole of it in each launch style (add-context, add-special, add-plain).
Exit codes: 0 done, 2 usage, 3 board, driver, device or peer refused.

Example: tg-count 1 box
";

/// What is measured, in the order of a passage; a region's number is one more than its place here.
const OPS: [&str; 14] = [
    "nothing",
    "store",
    "two-stores",
    "stores-100",
    "loop-100",
    "load",
    "system-call",
    "put",
    "get",
    "quiet",
    "launch",
    "add-context",
    "add-special",
    "add-plain",
];
/// Those that need no library.
const PLAIN: usize = 7;

fn main() -> ExitCode {
    cli::main("tg-count", USAGE, run)
}

fn run(parser: lexopt::Parser) -> Outcome<()> {
    let (mut words, mut passages, mut testdev) = (Vec::new(), 20u32, false);
    let mut line = Line::new(parser);
    while let Some(word) = line.next_word()? {
        match word {
            Word::Option(option) => match option.as_str() {
                "passages" => passages = line.number("--passages")?,
                "testdev" => testdev = true,
                _ => return Err(cli::unknown(&option)),
            },
            Word::Value(value) => words.push(cli::text(value)?),
        }
    }
    match (testdev, words.as_slice()) {
        (true, []) => {
            let device = Testdev::open()?;
            count(passages, &|| {
                // SAFETY: the byte lies in the mapped BAR.
                unsafe { bytes(device.at().add(Testdev::IDLE)) };
                system_call();
                Ok(())
            })?;
            tell(PLAIN);
        }
        (false, [node, name]) => {
            let node = cli::number("NODE", node)?;
            let board = Node::open()?;
            let remote = board.import(node, name).open()?;
            count(passages, &|| segment(&board, &remote))?;
            tell(OPS.len());
        }
        _ => return Err(Failure::Usage("expected NODE NAME, or --testdev".into())),
    }
    Ok(())
}

fn tell(ops: usize) {
    for (index, op) in OPS.iter().enumerate().take(ops) {
        println!("REGION id={} op={op}", index + 1);
    }
}

fn count(passages: u32, once: &dyn Fn() -> Outcome<()>) -> Outcome<()> {
    // The first time pays for page faults.
    once()?;
    mark::clear();
    for _ in 0..passages {
        once()?;
    }
    mark::report();
    Ok(())
}

/// Instructions between the markers of a region, all in one block that the compiler cannot change.
macro_rules! region {
    ($region:literal, $code:literal $(, $($operand:tt)*)?) => {
        std::arch::asm!(
            ".byte 0x0f, 0x1f, 0x80",
            ".long {begin}",
            $code,
            ".byte 0x0f, 0x1f, 0x80",
            ".long {end}",
            begin = const mark::Marker::Begin($region).displacement(),
            end = const mark::Marker::End($region).displacement(),
            $($($operand)*,)?
            options(nostack)
        )
    };
}

/// The plain operations on one byte.
///
/// # Safety
/// The byte lies in a readable and writable mapping.
unsafe fn bytes(at: *mut u8) {
    // SAFETY: the caller's; the instructions touch nothing else.
    unsafe {
        region!(1, "");
        region!(2, "mov byte ptr [{at}], {value}", at = in(reg) at, value = in(reg_byte) 1u8);
        region!(3, "mov byte ptr [{at}], {value}\nmov byte ptr [{at}], {value}", at = in(reg) at,
            value = in(reg_byte) 1u8);
        region!(4, ".rept 100\nmov byte ptr [{at}], {value}\n.endr", at = in(reg) at, value = in(reg_byte) 1u8);
        mark::begin::<5>();
        for value in 0..100 {
            raw::store::<u8>(at, 0, value);
        }
        mark::end::<5>();
        region!(6, "mov {value}, byte ptr [{at}]", at = in(reg) at, value = out(reg_byte) _);
    }
}

/// The plain operations on one word of 8 bytes.
///
/// # Safety
/// The word lies, aligned, in a readable and writable mapping.
unsafe fn words(at: *mut u8) {
    // SAFETY: the caller's; the instructions touch nothing else.
    unsafe {
        region!(1, "");
        region!(2, "mov qword ptr [{at}], {value}", at = in(reg) at, value = in(reg) 1u64);
        region!(3, "mov qword ptr [{at}], {value}\nmov qword ptr [{at}], {value}", at = in(reg) at,
            value = in(reg) 1u64);
        region!(4, ".rept 100\nmov qword ptr [{at}], {value}\n.endr", at = in(reg) at, value = in(reg) 1u64);
        mark::begin::<5>();
        for value in 0..100 {
            raw::store::<u64>(at, 0, value);
        }
        mark::end::<5>();
        region!(6, "mov {value}, qword ptr [{at}]", at = in(reg) at, value = out(reg) _);
    }
}

/// The least a process can ask of its kernel, as the yardstick of whatever needs the kernel.
fn system_call() {
    // SAFETY: getppid takes nothing and touches no memory of the process; the kernel changes rax, rcx and r11.
    unsafe {
        region!(7, "syscall", inlateout("rax") libc::SYS_getppid => _, out("rcx") _, out("r11") _);
    }
}

/// All operations on another node's segment.
fn segment(node: &Node, remote: &Remote) -> Outcome<()> {
    // SAFETY: a segment has at least one page.
    unsafe { words(remote.as_ptr()) };
    system_call();
    mark::begin::<8>();
    let put = remote.put64(0, 1);
    mark::end::<8>();
    put?;
    mark::begin::<9>();
    let got = remote.get64(0);
    mark::end::<9>();
    got?;
    mark::begin::<10>();
    let quiet = remote.quiet();
    mark::end::<10>();
    quiet?;
    mark::begin::<11>();
    let launched = remote.fetch_add_nbi::<u64>(8, 1);
    mark::end::<11>();
    launched?.wait(None)?;
    let add = |style| {
        node.set_launch_style(style);
        remote.fetch_add::<u64>(8, 1)
    };
    mark::begin::<12>();
    let by_context = add(LaunchStyle::Context);
    mark::end::<12>();
    by_context?;
    mark::begin::<13>();
    let by_special = add(LaunchStyle::Special);
    mark::end::<13>();
    by_special?;
    mark::begin::<14>();
    let by_plain = add(LaunchStyle::Plain);
    mark::end::<14>();
    by_plain?;
    node.set_launch_style(LaunchStyle::Context);
    Ok(())
}
