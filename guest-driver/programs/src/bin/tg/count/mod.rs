// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single operations between markers: what the counting plugin measures.

mod layers;

use layers::Layers;
use telegraphos::{LaunchStyle, Node, Queue, Remote, RemoteQueue};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::testdev::Testdev;
use telegraphos_guest_tests::{mark, raw};

pub(crate) const USAGE: &str = "\
tg-count: single operations between markers, for the counting plugin of QEMU (docs/plugin.md)

Usage: tg-count NODE NAME [options]          on another node's segment, readable and writable
       tg-count --testdev [--passages N]     on QEMU's pci-testdev, as root

  --passages N    times each is done [20]
  --message NAME  also messages to that node's process of that name (`tg-msg echo NAME`), and bytes by a socket over
                  tg0 to its `tg-net serve`
  --queue NAME    also on that node's queues NAME-4 and NAME-8, of words of 4 and of 8 bytes, whose elements are not taken:
                  they need room for 8 elements a passage

It prints which region is which ({\"region\":{\"id\":2,\"op\":\"store\"}}) and has the plugin write its table. Without the plugin nothing is
counted. Regions: nothing, store, two-stores, stores-100 (in a row), loop-100 (a loop as it was compiled), load,
system-call (getppid); of a segment also the library's put, get and quiet, a fetch-and-add's launch alone from user level
(launch), and the whole of it in each launch style (add-context, add-special, add-plain). With a queue, of 4-byte and of
8-byte words: one store to it (req-4, req-8), the library's enqueue (enqueue-4, enqueue-8), put_notify of one word and of 16
words, which is the same but for the data (notify-1, notify-16); of a queue of this node: a try_pop that finds an element, and
one that finds none (pop, pop-empty), and the same in the kernel (pop-kernel). With --message, handing over a message of
8 and of 1024 bytes (message-8, message-1024), and writing as many to a socket (socket-8, socket-1024); a message of 8 and
of 4096 bytes, and one of 64 KiB and of 1 MiB, until the other thread has it (sent-8 and so on), and the same on its way back
(received-8); writing the long ones' bytes to a socket (socket-65536, socket-1048576); and comparing what was sent with what
has come back (checked-65536, checked-1048576). Pages of the long ones, and that to which
4096 bytes come back, are watched.
Exit codes: 0 done, 2 usage, 3 board, driver, device or peer refused.

Example: tg-count 1 box
         tg-count 1 box --queue sink     (on node 1: tg-queue hold sink-4 --width 4; tg-queue hold sink-8 --width 8)
";

/// What is measured, in the order of a passage; a region's number is one more than its place here.
const OPS: [&str; 39] = [
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
    "req-4",
    "req-8",
    "enqueue-4",
    "enqueue-8",
    "notify-1",
    "notify-16",
    "pop",
    "pop-empty",
    "pop-kernel",
    "message-8",
    "message-1024",
    "socket-8",
    "socket-1024",
    "sent-8",
    "received-8",
    "sent-4096",
    "received-4096",
    "sent-65536",
    "received-65536",
    "sent-1048576",
    "received-1048576",
    "socket-65536",
    "socket-1048576",
    "checked-65536",
    "checked-1048576",
];
/// Those that need no library.
const PLAIN: usize = 7;
/// Those that need no queue.
const UNQUEUED: usize = 14;
/// Those that need no message.
const UNSENT: usize = 23;

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let (mut passages, mut testdev, mut queue, mut message) = (20u32, false, None, None);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "passages" => passages = line.number("--passages")?,
            "testdev" => testdev = true,
            "queue" => queue = Some(line.text()?),
            "message" => message = Some(line.text()?),
            _ => return Err(cli::unknown(&option)),
        }
    }
    match (testdev, &line.words()[..]) {
        (true, []) => {
            let device = Testdev::open()?;
            count(passages, &mut || {
                // SAFETY: the byte lies in the mapped BAR.
                unsafe { bytes(device.at().add(Testdev::IDLE)) };
                system_call();
                Ok(())
            })?;
            report(PLAIN);
        }
        (false, [node, name]) => {
            let node = cli::number("NODE", node)?;
            let board = Node::open()?;
            let remote = board.import(node, name).open()?;
            let queues = queue.map(|name| Queues::of(&board, node, &name)).transpose()?;
            let layers = |name: String| Layers::of(node, &name, telegraphos_agent::network::address(node));
            let mut layers = message.map(layers).transpose()?;
            count(passages, &mut || {
                segment(&board, &remote)?;
                queues.as_ref().map_or(Ok(()), |queues| queues.all(&remote))?;
                layers.as_mut().map_or(Ok(()), Layers::all)
            })?;
            report(match (&queues, &layers) {
                (_, Some(_)) => OPS.len(),
                (Some(_), None) => UNSENT,
                (None, None) => UNQUEUED,
            });
        }
        (true, _) => return Err(Failure::Usage("--testdev takes no NODE NAME".into())),
        _ => return Err(Failure::Usage("expected NODE NAME, or --testdev".into())),
    }
    Ok(())
}

fn report(ops: usize) {
    for (index, op) in OPS.iter().enumerate().take(ops) {
        println!("{}", Figure::Region { id: index as u16 + 1, op: (*op).into() }.line());
    }
}

fn count(passages: u32, once: &mut dyn FnMut() -> Outcome<()>) -> Outcome<()> {
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

/// The cheapest system call, as the baseline of operations that need the kernel.
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

/// Queues of another node, which get elements, and one of this node, which is emptied.
struct Queues {
    narrow: RemoteQueue,
    wide: RemoteQueue,
    own: Queue,
    to_own: RemoteQueue,
}

impl Queues {
    fn of(board: &Node, node: telegraphos::NodeId, name: &str) -> Outcome<Queues> {
        let import = |name: &str, id| Queue::import(board, id, name).open();
        let (narrow, wide) = (import(&format!("{name}-4"), node)?, import(&format!("{name}-8"), node)?);
        if (narrow.width(), wide.width()) != (4, 8) {
            let found = (narrow.width(), wide.width());
            return Err(Failure::Refused(format!(
                "{name}-4 and {name}-8 have words of {found:?} bytes: expected 4 and 8"
            )));
        }
        let own = Queue::create(board, &format!("{name}-own")).words(64).create()?;
        let to_own = import(own.name(), board.id())?;
        Ok(Queues { narrow, wide, own, to_own })
    }

    fn all(&self, segment: &Remote) -> Outcome<()> {
        // SAFETY: the first words of the queues, in their widths; the instructions touch nothing else.
        unsafe {
            region!(15, "mov dword ptr [{at}], {value:e}", at = in(reg) self.narrow.as_ptr(), value = in(reg) 1u64);
            region!(16, "mov qword ptr [{at}], {value}", at = in(reg) self.wide.as_ptr(), value = in(reg) 1u64);
        }
        mark::begin::<17>();
        let narrow = self.narrow.enqueue(1);
        mark::end::<17>();
        narrow?;
        mark::begin::<18>();
        let wide = self.wide.enqueue(1);
        mark::end::<18>();
        wide?;
        let message = [1u64; 16];
        mark::begin::<19>();
        let one = self.narrow.put_notify(segment, 64, &message[..1], 1);
        mark::end::<19>();
        one?;
        mark::begin::<20>();
        let sixteen = self.wide.put_notify(segment, 64, &message, 1);
        mark::end::<20>();
        sixteen?;
        for value in 0..2 {
            self.to_own.enqueue(value)?;
        }
        self.to_own.quiet()?;
        mark::begin::<21>();
        let popped = self.own.try_pop();
        mark::end::<21>();
        let popped = popped?;
        mark::begin::<23>();
        let by_kernel = self.own.pop_in_kernel();
        mark::end::<23>();
        let by_kernel = by_kernel?;
        mark::begin::<22>();
        let none = self.own.try_pop();
        mark::end::<22>();
        let found = (popped, by_kernel, none?);
        cli::check(found == (Some(0), Some(1), None), || {
            format!("{found:?} were popped: expected elements 0 and 1, and nothing")
        })
    }
}
