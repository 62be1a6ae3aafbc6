// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: the same things as in Rust, with the same meaning.
//!
//! `include/telegraphos.h` is printed by [`header`] from the types the compiler knows, so the two cannot differ; a test
//! compares the committed file. Functions return 0 or a negative errno, and never unwind into C: a panic, which would be
//! a bug of this library, becomes `-ENOTRECOVERABLE`.
//!
//! # Safety
//!
//! What C promises, for all functions: a handle is NULL or came from this library and has not been closed; a string is
//! NULL or ends with a zero byte; any other pointer is NULL or points to what its type says. NULL where something is needed is
//! `-EINVAL`. Handles may be used by several threads at once, but closed by only one, after all other use; operations,
//! barriers, broadcasts and their consumers are for one thread at a time. All of them keep their node open.

use crate::sync::{Barrier, LockMemory, TicketLock};
use crate::{
    AtomicWord, Broadcast, BroadcastConsumer, Error, LaunchStyle, Node, NodeId, Operation, Outcome, PageCounter, Queue,
    Remote, RemoteQueue, ReplicaMode, Replicated, Result, Rights, Secret, Segment, State, Status, Word,
};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How C writes a type: before and after the name.
trait CType {
    const BEFORE: &'static str;
    const AFTER: &'static str = "";
}

macro_rules! c_types {
    ($( $type:ty => $name:literal $(, $after:literal)?; )*) => { $(
        impl CType for $type {
            const BEFORE: &'static str = $name;
            $( const AFTER: &'static str = $after; )?
        }
    )* };
}

c_types! {
    () => "void ";
    u8 => "uint8_t ";
    u16 => "uint16_t ";
    u32 => "uint32_t ";
    u64 => "uint64_t ";
    i64 => "int64_t ";
    c_int => "int ";
    *const c_char => "const char *";
    *mut c_void => "void *";
    *mut u8 => "uint8_t *";
    *mut u16 => "uint16_t *";
    *mut u32 => "uint32_t *";
    *mut u64 => "uint64_t *";
    *const u8 => "const uint8_t *";
    *const u16 => "const uint16_t *";
    [u8; 16] => "uint8_t ", "[16]";
    [u8; 6] => "uint8_t ", "[6]";
    Window => "volatile void *";
    *mut Node => "tg_node *";
    *const Node => "const tg_node *";
    *mut *mut Node => "tg_node **";
    *mut Segment => "tg_segment *";
    *const Segment => "const tg_segment *";
    *mut *mut Segment => "tg_segment **";
    *mut Remote => "tg_remote *";
    *const Remote => "const tg_remote *";
    *mut *mut Remote => "tg_remote **";
    *mut Operation<u64> => "tg_operation *";
    *mut *mut Operation<u64> => "tg_operation **";
    *mut Barrier => "tg_barrier *";
    *mut *mut Barrier => "tg_barrier **";
    *mut PageCounter => "tg_page_counter *";
    *const PageCounter => "const tg_page_counter *";
    *mut *mut PageCounter => "tg_page_counter **";
    *mut CountState => "tg_count *";
    *mut Replicated => "tg_replicated *";
    *const Replicated => "const tg_replicated *";
    *mut *mut Replicated => "tg_replicated **";
    *mut Broadcast => "tg_broadcast *";
    *mut *mut Broadcast => "tg_broadcast **";
    *mut BroadcastConsumer => "tg_consumer *";
    *mut *mut BroadcastConsumer => "tg_consumer **";
    *mut ReplicatedState => "tg_replicated_state *";
    *const c_void => "const void *";
    *const ExportOptions => "const tg_export_options *";
    *mut ImportState => "tg_state *";
    *mut Queue => "tg_queue *";
    *const Queue => "const tg_queue *";
    *mut *mut Queue => "tg_queue **";
    *mut RemoteQueue => "tg_remote_queue *";
    *const RemoteQueue => "const tg_remote_queue *";
    *mut *mut RemoteQueue => "tg_remote_queue **";
    *const QueueOptions => "const tg_queue_options *";
    *mut QueueStatus => "tg_queue_status *";
    *const u64 => "const uint64_t *";
}

/// The window of an import, as C sees it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Window(pub *mut c_void);

struct Field {
    name: &'static str,
    before: &'static str,
    after: &'static str,
    doc: &'static [&'static str],
}

struct Record {
    name: &'static str,
    doc: &'static [&'static str],
    fields: &'static [Field],
}

struct Function {
    name: &'static str,
    result: &'static str,
    doc: &'static [&'static str],
    arguments: &'static [Field],
}

macro_rules! record {
    ($table:ident, $cname:literal, $(#[doc = $doc:literal])* pub struct $name:ident {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $type:ty, )*
    }) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $type, )* }

        const $table: Record = Record {
            name: $cname,
            doc: &[$($doc),*],
            fields: &[ $( Field {
                name: stringify!($field),
                before: <$type as CType>::BEFORE,
                after: <$type as CType>::AFTER,
                doc: &[$($fdoc),*],
            }, )* ],
        };
    };
}

macro_rules! functions {
    ($( $(#[doc = $doc:literal])* fn $name:ident($( $argument:ident : $type:ty ),*) -> $result:ty $body:block )*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// See the module.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
        )*

        const FUNCTIONS: &[Function] = &[ $( Function {
            name: stringify!($name),
            result: <$result as CType>::BEFORE,
            doc: &[$($doc),*],
            arguments: &[ $( Field {
                name: stringify!($argument),
                before: <$type as CType>::BEFORE,
                after: <$type as CType>::AFTER,
                doc: &[],
            }, )* ],
        }, )* ];
    };
}

record! { EXPORT_OPTIONS, "tg_export_options",
    /// How to export. All zeros, or NULL, means: for processes of the same user id, no secret, every node.
    pub struct ExportOptions {
        /// Who may do what, as for a file, e.g. 0604; 0 means 0600.
        pub mode: u32,
        /// Number of admitted nodes listed; 0 admits every node.
        pub node_count: u32,
        /// The admitted nodes.
        pub nodes: *const u16,
        /// What an importer must present; zeros for nothing.
        pub secret: [u8; 16],
    }
}

record! { IMPORT_STATE, "tg_state",
    /// What has become of an import.
    pub struct ImportState {
        /// 1 while stores outrun the network: the next one waits.
        pub congested: u8,
        /// 1 after a store was lost, until tg_acknowledge; later stores are dropped.
        pub cut: u8,
        /// 1 if it is gone for good: touching it is SIGBUS. Import it again.
        pub dead: u8,
        /// Zero.
        pub reserved: u8,
        /// The first error since the last tg_acknowledge: TG_ERR_*, or TG_OK.
        pub status: u32,
    }
}

record! { REPLICATED_STATE, "tg_replicated_state",
    /// What has become of a replicated segment.
    pub struct ReplicatedState {
        /// The node that orders the stores.
        pub home: u32,
        /// Why it is an orphan, TG_ERR_*: touching it is SIGBUS until it is adopted. TG_OK if it has a home.
        pub orphan: u32,
        /// 1 while stores outrun the network: the next one waits.
        pub congested: u8,
        /// 1 after a store was lost, until tg_replicated_acknowledge; later stores are dropped.
        pub cut: u8,
        /// 1 if it is gone, or an orphan.
        pub dead: u8,
        /// Zero.
        pub reserved: u8,
        /// The first error since the last tg_replicated_acknowledge: TG_ERR_*, or TG_OK.
        pub status: u32,
    }
}

record! { QUEUE_OPTIONS, "tg_queue_options",
    /// How to make a queue. All zeros, or NULL, means: for processes of the same user id, no secret, every node, 64 KiB per buffer, of 4-byte words, 16 buffers behind the first.
    pub struct QueueOptions {
        /// Words per buffer: a power of two from 8 on, at most 64 KiB in all; 0 means those 64 KiB.
        pub words: u32,
        /// Bytes of a word, 4 or 8; 0 means 4.
        pub width: u32,
        /// Buffers that may be linked behind the first, up to 1024; 0 means 16.
        pub quota: u32,
        /// Linked buffers at which tg_queue_limits counts, up to the quota; 0 means half of it, UINT32_MAX never.
        pub limit: u32,
        /// Who may append, as for a file, by the write bits: e.g. 0602; 0 means 0600.
        pub mode: u32,
        /// Number of admitted nodes listed; 0 admits every node.
        pub node_count: u32,
        /// The admitted nodes.
        pub nodes: *const u16,
        /// What an importer must present; zeros for nothing.
        pub secret: [u8; 16],
    }
}

record! { QUEUE_STATUS, "tg_queue_status",
    /// What has become of a queue.
    pub struct QueueStatus {
        /// Why it takes no elements any more: TG_ERR_*, or TG_OK if it does.
        pub status: u32,
        /// Linked buffers, as the driver counts them.
        pub linked: u32,
        /// Overflows handled.
        pub overflows: u64,
        /// How often a consumer took too long over an element and lost its mapping.
        pub evictions: u64,
        /// 1 while an overflow is not handled yet.
        pub full: u8,
        /// 1 while the quota is used up and senders are held back.
        pub held: u8,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

record! { COUNT, "tg_count",
    /// What page access counters say.
    pub struct CountState {
        /// Reads left until the event.
        pub reads: u64,
        /// Writes left until the event.
        pub writes: u64,
        /// 1 if the reads have gone from 1 to 0.
        pub reads_fired: u8,
        /// 1 if the writes have gone from 1 to 0.
        pub writes_fired: u8,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

/// Values of `tg_set_launch_style`.
const STYLES: &[(&str, u64, &str)] = &[
    (
        "TG_STYLE_PLAIN",
        LaunchStyle::Plain as u64,
        "A system call that does everything in the kernel; needs telegraphos_lab.ko.",
    ),
    (
        "TG_STYLE_SPECIAL",
        LaunchStyle::Special as u64,
        "Telegraphos I: special mode, in a system call; needs telegraphos_lab.ko.",
    ),
    (
        "TG_STYLE_CONTEXT",
        LaunchStyle::Context as u64,
        "Telegraphos II: contexts and keys, from user level. The default.",
    ),
    (
        "TG_STYLE_LOAD",
        LaunchStyle::Load as u64,
        "The same, but the last access of an atomic is a load that returns its result.",
    ),
];

thread_local! {
    static LAST_STATUS: Cell<Status> = const { Cell::new(Status::Ok) };
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static ERROR_TEXT: RefCell<CString> = RefCell::default();
}

/// Text for C; a zero byte within, which no message has, would end it.
fn c_text(text: String) -> CString {
    let bytes: Vec<u8> = text.into_bytes().into_iter().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// The value, or a negative errno with the sentence kept for `tg_last_error`.
fn guard(action: impl FnOnce() -> Result<c_int>) -> c_int {
    let (text, errno, status) = match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => (error.to_string(), error.errno(), error.status()),
        Err(_) => ("a bug in the library: please report it".to_owned(), Errno::NOTRECOVERABLE.raw_os_error(), None),
    };
    LAST_STATUS.set(status.unwrap_or(Status::Ok));
    LAST_ERROR.with(|last| *last.borrow_mut() = c_text(text));
    -errno
}

fn missing(what: &'static str) -> Error {
    Error::Argument { what, value: "NULL".into(), expected: "a pointer".into() }
}

/// What a pointer from C points to.
///
/// # Safety
/// As the module says.
unsafe fn given<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| missing(what))
}

/// A string from C.
///
/// # Safety
/// As the module says.
unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(missing(what));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Error::Argument {
        what,
        value: "not UTF-8".into(),
        expected: "UTF-8 text".into(),
    })
}

/// Hands a new object to C.
///
/// # Safety
/// As the module says.
unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(missing("the place for the result"));
        }
        let value = Box::into_raw(Box::new(make()?));
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
        Ok(0)
    })
}

/// Takes an object back from C; NULL is none.
///
/// # Safety
/// As the module says.
unsafe fn take<T>(pointer: *mut T) -> Option<T> {
    // SAFETY: the caller's promise: it came from `give`, and is used no more.
    (!pointer.is_null()).then(|| *unsafe { Box::from_raw(pointer) })
}

/// # Safety
/// As the module says.
unsafe fn put<T: Word>(remote: *const Remote, offset: u64, value: T) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { given(remote, "the import")? }.put(offset, value)?;
        Ok(0)
    })
}

/// # Safety
/// As the module says.
unsafe fn get<T: Word>(remote: *const Remote, offset: u64, value: *mut T) -> c_int {
    guard(|| {
        if value.is_null() {
            return Err(missing("the place for the value"));
        }
        // SAFETY: the caller's promise.
        let found = unsafe { given(remote, "the import")? }.get(offset)?;
        // SAFETY: the caller's promise.
        unsafe { value.write(found) };
        Ok(0)
    })
}

/// # Safety
/// As the module says.
unsafe fn store<T: Word>(replicated: *const Replicated, offset: u64, value: T) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { given(replicated, "the replicated segment")? }.store(offset, value)?;
        Ok(0)
    })
}

/// # Safety
/// As the module says.
unsafe fn load<T: Word>(
    replicated: *const Replicated,
    value: *mut T,
    load: impl FnOnce(&Replicated) -> Result<T>,
) -> c_int {
    guard(|| {
        if value.is_null() {
            return Err(missing("the place for the value"));
        }
        // SAFETY: the caller's promise.
        let found = load(unsafe { given(replicated, "the replicated segment")? })?;
        // SAFETY: the caller's promise.
        unsafe { value.write(found) };
        Ok(0)
    })
}

/// Takes a ticket lock, which C unlocks; `ticket` is the caller's place for it, or null.
fn lock<M: LockMemory>(memory: &M, offset: u64, nanoseconds: i64, ticket: *mut u64) -> Result<c_int> {
    if ticket.is_null() {
        return Err(missing("the place for the ticket"));
    }
    let lock = TicketLock::new(memory, offset)?;
    let guard = match limit(nanoseconds) {
        Some(limit) => lock.lock_timeout(limit)?,
        None => lock.lock()?,
    };
    // SAFETY: the caller's promise.
    unsafe { ticket.write(guard.ticket()) };
    std::mem::forget(guard);
    Ok(0)
}

/// The mode of a replicated segment from C, 0 for the default.
fn replica_mode(number: u32) -> Result<ReplicaMode> {
    match number {
        0 => Ok(ReplicaMode::default()),
        number => ReplicaMode::from_u32(number).ok_or_else(|| Error::Argument {
            what: "the mode of a replicated segment",
            value: number.to_string(),
            expected: "TG_REPLICA_NAIVE, _OWNER, _COUNTERS or _INVALIDATE, or 0 for TG_REPLICA_COUNTERS".into(),
        }),
    }
}

/// Whom options admit.
///
/// # Safety
/// As the module says.
unsafe fn listed(options: &ExportOptions) -> Result<Option<&[NodeId]>> {
    if options.node_count == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let first = unsafe { given(options.nodes, "the list of nodes")? };
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { std::slice::from_raw_parts(first, options.node_count as usize) }))
}

/// Nanoseconds from C, negative for no limit.
fn limit(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

/// Performs an atomic and stores the word's previous value.
///
/// # Safety
/// As the module says.
unsafe fn atomic<T: AtomicWord>(
    remote: *const Remote,
    previous: *mut T,
    action: impl FnOnce(&Remote) -> Result<T>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let found = action(unsafe { given(remote, "the import")? })?;
        if !previous.is_null() {
            // SAFETY: the caller's promise.
            unsafe { previous.write(found) };
        }
        Ok(0)
    })
}

/// Launches an operation and hands its handle to C; without a place for it, it goes on and quiet covers it.
///
/// # Safety
/// As the module says.
unsafe fn launch<T: Outcome>(
    operation: *mut *mut Operation<u64>,
    action: impl FnOnce() -> Result<Operation<T>>,
) -> c_int {
    guard(|| {
        let launched = action()?;
        if !operation.is_null() {
            // SAFETY: the caller's promise.
            unsafe { operation.write(Box::into_raw(Box::new(launched.widen()))) };
        }
        Ok(0)
    })
}

/// What a pointer from C points to, which nobody else uses meanwhile.
///
/// # Safety
/// As the module says.
unsafe fn given_alone<'a, T>(pointer: *mut T, what: &'static str) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| missing(what))
}

/// Waits for an operation and stores its value.
///
/// # Safety
/// As the module says.
unsafe fn wait(
    operation: *mut Operation<u64>,
    value: *mut u64,
    action: impl FnOnce(&mut Operation<u64>) -> Result<u64>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let found = action(unsafe { given_alone(operation, "the operation")? })?;
        if !value.is_null() {
            // SAFETY: the caller's promise.
            unsafe { value.write(found) };
        }
        Ok(0)
    })
}

/// Stores what has become of an import.
///
/// # Safety
/// As the module says.
unsafe fn state_of(state: *mut ImportState, action: impl FnOnce() -> Result<State>) -> c_int {
    guard(|| {
        if state.is_null() {
            return Err(missing("the place for the state"));
        }
        let found = action()?;
        let found = ImportState {
            congested: found.congested.into(),
            cut: found.cut.into(),
            dead: found.dead.into(),
            reserved: 0,
            status: found.error.unwrap_or(Status::Ok) as u32,
        };
        // SAFETY: the caller's promise.
        unsafe { state.write(found) };
        Ok(0)
    })
}

/// Takes an element: 1 and its value, or 0.
///
/// # Safety
/// As the module says.
unsafe fn pop(queue: *const Queue, value: *mut u64, action: impl FnOnce(&Queue) -> Result<Option<u64>>) -> c_int {
    guard(|| {
        if value.is_null() {
            return Err(missing("the place for the element"));
        }
        // SAFETY: the caller's promise.
        let Some(found) = action(unsafe { given(queue, "the queue")? })? else { return Ok(0) };
        // SAFETY: the caller's promise.
        unsafe { value.write(found) };
        Ok(1)
    })
}

functions! {
    /// Opens the board of that device file, or with NULL the first one.
    fn tg_open(path: *const c_char, node: *mut *mut Node) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(node, || match path.is_null() {
                true => Node::open(),
                false => Node::open_path(text(path, "the path")?),
            })
        }
    }

    /// The board that another process has opened, by a file descriptor inherited or received from it, which becomes the handle's, and is closed if this fails: for its queues, see tg_queue_attach. Of the processes that share it, one at a time may use quiet, atomics and copies.
    fn tg_open_fd(fd: c_int, node: *mut *mut Node) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(node, || {
                if fd < 0 {
                    return Err(Error::Argument {
                        what: "the file descriptor",
                        value: fd.to_string(),
                        expected: "that of an open board".into(),
                    });
                }
                Node::from_fd(OwnedFd::from_raw_fd(fd))
            })
        }
    }

    /// The file descriptor of a board, to pass to another process, or a negative errno. It ends with the handle.
    fn tg_node_fd(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.as_fd().as_raw_fd()))
    }

    /// Closes it; exports, imports and queues made from it stay until they are closed.
    fn tg_close(node: *mut Node) -> () {
        let _ = guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { take(node) });
            Ok(0)
        });
    }

    /// This node's id, or a negative errno.
    fn tg_node_id(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.id().into()))
    }

    /// Exports size bytes of new, zeroed memory under a name.
    fn tg_export(
        node: *const Node, name: *const c_char, size: u64, options: *const ExportOptions, segment: *mut *mut Segment
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(segment, || {
                let mut builder = given(node, "the node")?.export(text(name, "the name")?, size);
                if let Some(options) = options.as_ref() {
                    builder = builder.secret(options.secret);
                    if options.mode != 0 {
                        builder = builder.mode(options.mode);
                    }
                    if let Some(nodes) = listed(options)? {
                        builder = builder.nodes(nodes);
                    }
                }
                builder.create()
            })
        }
    }

    /// Withdraws an export; returns when no other node can reach it.
    fn tg_unexport(segment: *mut Segment) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(segment) }.map_or(Ok(()), Segment::close)?;
            Ok(0)
        })
    }

    /// Where the memory of an export lies. Others change it at any time: use atomic loads and stores.
    fn tg_segment_memory(segment: *const Segment) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { segment.as_ref() }.map_or(std::ptr::null_mut(), |s| s.as_ptr().cast())
    }

    /// Bytes of an export.
    fn tg_segment_size(segment: *const Segment) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { segment.as_ref() }.map_or(0, Segment::size)
    }

    /// Imports a segment of a node for the rights TG_RIGHT_*; 0 means loads, stores, atomics and copies. The secret has 16 bytes, or is NULL.
    fn tg_import(
        node: *const Node, id: u16, name: *const c_char, rights: u16, secret: *const u8, remote: *mut *mut Remote
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(remote, || {
                let mut builder = given(node, "the node")?.import(id, text(name, "the name")?);
                if rights != 0 {
                    builder = builder.rights(Rights(rights));
                }
                if let Some(secret) = secret.cast::<Secret>().as_ref() {
                    builder = builder.secret(*secret);
                }
                builder.open()
            })
        }
    }

    /// Closes an import after its outstanding stores.
    fn tg_unimport(remote: *mut Remote) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(remote) }.map_or(Ok(()), Remote::close)?;
            Ok(0)
        })
    }

    /// Where the window of an import lies: for aligned words of 1, 2, 4 or 8 bytes, never for memcpy.
    fn tg_remote_window(remote: *const Remote) -> Window {
        // SAFETY: the caller's promise.
        Window(unsafe { remote.as_ref() }.map_or(std::ptr::null_mut(), |r| r.as_ptr().cast()))
    }

    /// Bytes of an import.
    fn tg_remote_size(remote: *const Remote) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { remote.as_ref() }.map_or(0, Remote::size)
    }

    /// Stores with one instruction, and returns before the other node has the value.
    fn tg_put8(remote: *const Remote, offset: u64, value: u8) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// See tg_put8.
    fn tg_put16(remote: *const Remote, offset: u64, value: u16) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// See tg_put8.
    fn tg_put32(remote: *const Remote, offset: u64, value: u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// See tg_put8.
    fn tg_put64(remote: *const Remote, offset: u64, value: u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// Loads with one instruction, behind all earlier stores to that node. All ones may mean that it failed: see tg_state_of.
    fn tg_get8(remote: *const Remote, offset: u64, value: *mut u8) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// See tg_get8.
    fn tg_get16(remote: *const Remote, offset: u64, value: *mut u16) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// See tg_get8.
    fn tg_get32(remote: *const Remote, offset: u64, value: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// See tg_get8.
    fn tg_get64(remote: *const Remote, offset: u64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// Returns when every earlier store to this import has been performed and acknowledged.
    fn tg_quiet(remote: *const Remote) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(remote, "the import")? }.quiet()?;
            Ok(0)
        })
    }

    /// tg_quiet that gives up with -EAGAIN after so many nanoseconds; it may be called again.
    fn tg_quiet_timeout(remote: *const Remote, nanoseconds: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(remote, "the import")? }.quiet_timeout(Duration::from_nanos(nanoseconds))?;
            Ok(0)
        })
    }

    /// tg_quiet for all imports of a node handle.
    fn tg_quiet_all(node: *const Node) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.quiet()?;
            Ok(0)
        })
    }

    /// tg_quiet_timeout for all imports of a node handle.
    fn tg_quiet_all_timeout(node: *const Node, nanoseconds: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.quiet_timeout(Duration::from_nanos(nanoseconds))?;
            Ok(0)
        })
    }

    /// What has become of an import.
    fn tg_state_of(remote: *const Remote, state: *mut ImportState) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { state_of(state, || given(remote, "the import")?.state()) }
    }

    /// Clears the latched error of an import and goes on after a cut. Lost stores stay lost.
    fn tg_acknowledge(remote: *const Remote) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(remote, "the import")? }.acknowledge()?;
            Ok(0)
        })
    }

    /// Orders what this node handle stores and launches from now on behind everything before, at whichever nodes; may wait for it.
    fn tg_fence_all(node: *const Node) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.fence()?;
            Ok(0)
        })
    }

    /// How operations of this node handle are launched from now on: TG_STYLE_*.
    fn tg_set_launch_style(node: *const Node, style: u32) -> c_int {
        guard(|| {
            let style = LaunchStyle::from_u32(style).ok_or_else(|| Error::Argument {
                what: "the launch style",
                value: style.to_string(),
                expected: "TG_STYLE_PLAIN, TG_STYLE_SPECIAL or TG_STYLE_CONTEXT".into(),
            })?;
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.set_launch_style(style);
            Ok(0)
        })
    }

    /// An export as an import of its own node, for copies and for the owner's atomics; NULL on failure. It belongs to the export: do not close it.
    fn tg_segment_remote(segment: *const Segment) -> *const Remote {
        let mut found = std::ptr::null();
        guard(|| {
            // SAFETY: the caller's promise.
            found = std::ptr::from_ref(unsafe { given(segment, "the export")? }.remote()?);
            Ok(0)
        });
        found
    }

    /// Fetch-and-store of a word at a multiple of 4: atomic with all other atomics here, loads and stores through windows, but not with locked instructions of the owner's processors. previous may be NULL.
    fn tg_swap32(remote: *const Remote, offset: u64, value: u32, previous: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.swap(offset, value)) }
    }

    /// See tg_swap32; the word lies at a multiple of 8.
    fn tg_swap64(remote: *const Remote, offset: u64, value: u64, previous: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.swap(offset, value)) }
    }

    /// Fetch-and-add, wrapping; see tg_swap32.
    fn tg_fetch_add32(remote: *const Remote, offset: u64, value: u32, previous: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.fetch_add(offset, value)) }
    }

    /// Fetch-and-add, wrapping; see tg_swap64.
    fn tg_fetch_add64(remote: *const Remote, offset: u64, value: u64, previous: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.fetch_add(offset, value)) }
    }

    /// Fetch-and-increment; see tg_swap32.
    fn tg_fetch_inc32(remote: *const Remote, offset: u64, previous: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.fetch_inc(offset)) }
    }

    /// Fetch-and-increment; see tg_swap64.
    fn tg_fetch_inc64(remote: *const Remote, offset: u64, previous: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.fetch_inc(offset)) }
    }

    /// Compare-and-swap: the word has become value exactly if *previous is expected; see tg_swap32.
    fn tg_compare_swap32(remote: *const Remote, offset: u64, expected: u32, value: u32, previous: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.compare_swap(offset, expected, value)) }
    }

    /// Compare-and-swap: the word has become value exactly if *previous is expected; see tg_swap64.
    fn tg_compare_swap64(remote: *const Remote, offset: u64, expected: u64, value: u64, previous: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { atomic(remote, previous, |r| r.compare_swap(offset, expected, value)) }
    }

    /// tg_swap32, not waited for. Ends with tg_operation_wait and tg_operation_free; operation may be NULL, then only quiet tells of its end.
    fn tg_swap32_nbi(remote: *const Remote, offset: u64, value: u32, operation: *mut *mut Operation<u64>) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { launch(operation, || given(remote, "the import")?.swap_nbi(offset, value)) }
    }

    /// tg_swap64, not waited for; see tg_swap32_nbi.
    fn tg_swap64_nbi(remote: *const Remote, offset: u64, value: u64, operation: *mut *mut Operation<u64>) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { launch(operation, || given(remote, "the import")?.swap_nbi(offset, value)) }
    }

    /// tg_fetch_add32, not waited for; see tg_swap32_nbi.
    fn tg_fetch_add32_nbi(remote: *const Remote, offset: u64, value: u32, operation: *mut *mut Operation<u64>) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { launch(operation, || given(remote, "the import")?.fetch_add_nbi(offset, value)) }
    }

    /// tg_fetch_add64, not waited for; see tg_swap32_nbi.
    fn tg_fetch_add64_nbi(remote: *const Remote, offset: u64, value: u64, operation: *mut *mut Operation<u64>) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { launch(operation, || given(remote, "the import")?.fetch_add_nbi(offset, value)) }
    }

    /// tg_compare_swap32, not waited for; see tg_swap32_nbi.
    fn tg_compare_swap32_nbi(
        remote: *const Remote, offset: u64, expected: u32, value: u32, operation: *mut *mut Operation<u64>
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { launch(operation, || given(remote, "the import")?.compare_swap_nbi(offset, expected, value)) }
    }

    /// tg_compare_swap64, not waited for; see tg_swap32_nbi.
    fn tg_compare_swap64_nbi(
        remote: *const Remote, offset: u64, expected: u64, value: u64, operation: *mut *mut Operation<u64>
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { launch(operation, || given(remote, "the import")?.compare_swap_nbi(offset, expected, value)) }
    }

    /// Copies length bytes, 1 to 16 MiB at any alignment, to an import from an import (or from and to tg_segment_remote); at least one of them is memory of this node, and they do not overlap. Returns when the data is there.
    fn tg_copy(destination: *const Remote, to: u64, source: *const Remote, from: u64, length: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let (destination, source) = unsafe { (given(destination, "the destination")?, given(source, "the source")?) };
            crate::copy(destination, to, source, from, length)?;
            Ok(0)
        })
    }

    /// tg_copy, not waited for: returns before the data lands; see tg_swap32_nbi.
    fn tg_copy_nbi(
        destination: *const Remote, to: u64, source: *const Remote, from: u64, length: u64, operation: *mut *mut Operation<u64>
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            launch(operation, || {
                crate::copy_nbi(given(destination, "the destination")?, to, given(source, "the source")?, from, length)
            })
        }
    }

    /// 1 if an operation has ended, well or badly, else 0. One look at memory.
    fn tg_operation_done(operation: *mut Operation<u64>) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given_alone(operation, "the operation")? }.is_done().into()))
    }

    /// Waits for an operation, -EAGAIN after so many nanoseconds (negative: never); then it may be called again. value takes an atomic's previous word, or is NULL.
    fn tg_operation_wait(operation: *mut Operation<u64>, nanoseconds: i64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { wait(operation, value, |o| o.wait(limit(nanoseconds))) }
    }

    /// tg_operation_wait that sleeps until the board's interrupt: for long copies.
    fn tg_operation_wait_event(operation: *mut Operation<u64>, nanoseconds: i64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { wait(operation, value, |o| o.wait_event(limit(nanoseconds))) }
    }

    /// Makes tg_completions readable when an operation is done; at once if it is.
    fn tg_operation_arm(operation: *mut Operation<u64>) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given_alone(operation, "the operation")? }.arm()?;
            Ok(0)
        })
    }

    /// Gives the handle back. The operation goes on; quiet tells of its end.
    fn tg_operation_free(operation: *mut Operation<u64>) -> () {
        guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { take(operation) });
            Ok(0)
        });
    }

    /// An eventfd of the node handle that becomes readable when an armed operation is done or an armed queue has an element, or a negative errno. Who reads it looks at all of them. It ends with the handle.
    fn tg_completions(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.completions()?.as_raw_fd()))
    }

    /// Takes the ticket lock in the 16 bytes at offset, a multiple of 8, zero at first; -EAGAIN after so many nanoseconds (negative: never, and in turn). ticket is for tg_unlock.
    fn tg_lock(remote: *const Remote, offset: u64, nanoseconds: i64, ticket: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| lock(unsafe { given(remote, "the import")? }, offset, nanoseconds, ticket))
    }

    /// Waits for quiet of all imports of the node handle, then lets the next one in.
    fn tg_unlock(remote: *const Remote, offset: u64, ticket: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            TicketLock::new(unsafe { given(remote, "the import")? }, offset)?.unlock(ticket)?;
            Ok(0)
        })
    }

    /// Joins a barrier of count participants, the i-th on the i-th of nodes, as number me; mode as in tg_export_options. Waits for the others, at most so many nanoseconds. For one thread at a time.
    fn tg_barrier_join(
        node: *const Node, name: *const c_char, nodes: *const u16, count: u32, me: u32, mode: u32, nanoseconds: i64,
        barrier: *mut *mut Barrier
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(barrier, || {
                let first = given(nodes, "the list of nodes")?;
                let nodes: &[NodeId] = std::slice::from_raw_parts(first, count as usize);
                let mode = if mode == 0 { 0o600 } else { mode };
                let limit = limit(nanoseconds).unwrap_or(Duration::MAX);
                Barrier::join(given(node, "the node")?, text(name, "the name")?, nodes, me as usize, mode, limit)
            })
        }
    }

    /// Waits for quiet, then for everybody; -EAGAIN after so many nanoseconds (negative: never); then it may be called again.
    fn tg_barrier_wait(barrier: *mut Barrier, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let barrier = unsafe { given_alone(barrier, "the barrier")? };
            match limit(nanoseconds) {
                Some(limit) => barrier.wait_timeout(limit)?,
                None => barrier.wait()?,
            }
            Ok(0)
        })
    }

    /// Leaves a barrier, for good.
    fn tg_barrier_leave(barrier: *mut Barrier) -> () {
        guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { take(barrier) });
            Ok(0)
        });
    }

    /// Makes a notification queue under a name.
    fn tg_queue_create(
        node: *const Node, name: *const c_char, options: *const QueueOptions, queue: *mut *mut Queue
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(queue, || {
                let mut builder = Queue::create(given(node, "the node")?, text(name, "the name")?);
                if let Some(options) = options.as_ref() {
                    builder = builder.secret(options.secret);
                    builder = match options.width {
                        0 | 4 => builder,
                        8 => builder.wide(),
                        other => {
                            return Err(Error::Argument {
                                what: "the width of a queue",
                                value: other.to_string(),
                                expected: "4 or 8 bytes".into(),
                            });
                        }
                    };
                    if options.words != 0 {
                        builder = builder.words(options.words);
                    }
                    if options.quota != 0 {
                        builder = builder.quota(options.quota);
                    }
                    builder = match options.limit {
                        0 => builder,
                        u32::MAX => builder.limit(0),
                        limit => builder.limit(limit),
                    };
                    if options.mode != 0 {
                        builder = builder.mode(options.mode);
                    }
                    if options.node_count != 0 {
                        let first = given(options.nodes, "the list of nodes")?;
                        let nodes: &[NodeId] = std::slice::from_raw_parts(first, options.node_count as usize);
                        builder = builder.nodes(nodes);
                    }
                }
                builder.create()
            })
        }
    }

    /// A queue that another process has made through the same open file (tg_open_fd), or this one when it has lost its mapping, by its tg_queue_handle.
    fn tg_queue_attach(node: *const Node, handle: u32, queue: *mut *mut Queue) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { give(queue, || Queue::attach(given(node, "the node")?, handle)) }
    }

    /// By what processes that share the open file attach a queue; UINT32_MAX for NULL.
    fn tg_queue_handle(queue: *const Queue) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { queue.as_ref() }.map_or(u32::MAX, Queue::handle)
    }

    /// Takes the oldest element: 1, or 0 if there is none. No system call, unless the queue has overflowed.
    fn tg_queue_try_pop(queue: *const Queue, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { pop(queue, value, Queue::try_pop) }
    }

    /// Takes the oldest element, asleep until there is one: 1, or 0 after so many nanoseconds (negative: never).
    fn tg_queue_pop_wait(queue: *const Queue, nanoseconds: i64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { pop(queue, value, |q| q.pop_wait(limit(nanoseconds))) }
    }

    /// Takes up to count elements, oldest first: how many, 0 if there is none.
    fn tg_queue_pop_batch(queue: *const Queue, values: *mut u64, count: u32) -> c_int {
        guard(|| {
            if values.is_null() {
                return Err(missing("the place for the elements"));
            }
            let count = count.min(c_int::MAX as u32) as usize;
            // SAFETY: the caller's promise.
            let (queue, values) =
                unsafe { (given(queue, "the queue")?, std::slice::from_raw_parts_mut(values, count)) };
            Ok(queue.pop_batch(values)? as c_int)
        })
    }

    /// Takes the oldest element by a system call that does everything in the kernel, as a yardstick: 1, or 0 if there is none.
    fn tg_queue_pop_in_kernel(queue: *const Queue, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { pop(queue, value, Queue::pop_in_kernel) }
    }

    /// Makes tg_completions readable at the next element; at once if there has been one since a pop last found nothing.
    fn tg_queue_arm(queue: *const Queue) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(queue, "the queue")? }.arm()?;
            Ok(0)
        })
    }

    /// How often the linked buffers of a queue have come to the limit: when it rises, its consumers are slow.
    fn tg_queue_limits(queue: *const Queue) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { queue.as_ref() }.map_or(0, Queue::limits)
    }

    /// What has become of a queue.
    fn tg_queue_status_of(queue: *const Queue, status: *mut QueueStatus) -> c_int {
        guard(|| {
            if status.is_null() {
                return Err(missing("the place for the status"));
            }
            // SAFETY: the caller's promise.
            let found = unsafe { given(queue, "the queue")? }.state()?;
            let found = QueueStatus {
                status: found.dead.unwrap_or(Status::Ok) as u32,
                linked: found.linked,
                overflows: found.overflows,
                evictions: found.evictions,
                full: found.full.into(),
                held: found.held.into(),
                reserved: [0; 6],
            };
            // SAFETY: the caller's promise.
            unsafe { status.write(found) };
            Ok(0)
        })
    }

    /// Ends a queue that this process has made, with the elements not taken; one attached is only let go of.
    fn tg_queue_close(queue: *mut Queue) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(queue) }.map_or(Ok(()), Queue::close)?;
            Ok(0)
        })
    }

    /// Imports a queue of a node, to append to it. The secret has 16 bytes, or is NULL.
    fn tg_queue_import(
        node: *const Node, id: u16, name: *const c_char, secret: *const u8, queue: *mut *mut RemoteQueue
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(queue, || {
                let builder = Queue::import(given(node, "the node")?, id, text(name, "the name")?);
                match secret.cast::<Secret>().as_ref() {
                    Some(secret) => builder.secret(*secret),
                    None => builder,
                }
                .open()
            })
        }
    }

    /// Appends with one store instruction, after all that this thread has put to that node before, and returns before the other node has it.
    fn tg_queue_enqueue(queue: *const RemoteQueue, value: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(queue, "the imported queue")? }.enqueue(value)?;
            Ok(0)
        })
    }

    /// Stores count words of 8 bytes from offset of an import of the same node on, then appends value: who pops it sees them. Not appended while that import has an error.
    fn tg_queue_put_notify(
        queue: *const RemoteQueue, remote: *const Remote, offset: u64, words: *const u64, count: u64, value: u64
    ) -> c_int {
        guard(|| {
            let words = match usize::try_from(count) {
                Ok(0) => &[][..],
                Ok(count) if count <= isize::MAX as usize / 8 => {
                    // SAFETY: the caller's promise.
                    unsafe { std::slice::from_raw_parts(given(words, "the data")?, count) }
                }
                _ => {
                    return Err(Error::Argument {
                        what: "the number of words",
                        value: count.to_string(),
                        expected: "what fits this process's address space".into(),
                    });
                }
            };
            // SAFETY: the caller's promise.
            let (queue, remote) =
                unsafe { (given(queue, "the imported queue")?, given(remote, "the import of the data")?) };
            queue.put_notify(remote, offset, words, value)?;
            Ok(0)
        })
    }

    /// Where to store an element oneself: one aligned scalar store of tg_queue_width bytes.
    fn tg_queue_aperture(queue: *const RemoteQueue) -> Window {
        // SAFETY: the caller's promise.
        Window(unsafe { queue.as_ref() }.map_or(std::ptr::null_mut(), |q| q.as_ptr().cast()))
    }

    /// Bytes of an imported queue's words, 4 or 8.
    fn tg_queue_width(queue: *const RemoteQueue) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { queue.as_ref() }.map_or(0, RemoteQueue::width)
    }

    /// Returns when every earlier element has been appended; -EAGAIN after so many nanoseconds (negative: never), then it may be called again.
    fn tg_queue_quiet(queue: *const RemoteQueue, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let queue = unsafe { given(queue, "the imported queue")? };
            match limit(nanoseconds) {
                Some(limit) => queue.quiet_timeout(limit)?,
                None => queue.quiet()?,
            }
            Ok(0)
        })
    }

    /// What has become of an imported queue.
    fn tg_queue_state_of(queue: *const RemoteQueue, state: *mut ImportState) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { state_of(state, || given(queue, "the imported queue")?.state()) }
    }

    /// Clears the latched error of an imported queue and goes on after a cut. Lost elements stay lost.
    fn tg_queue_acknowledge(queue: *const RemoteQueue) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(queue, "the imported queue")? }.acknowledge()?;
            Ok(0)
        })
    }

    /// Closes the import of a queue after its outstanding elements.
    fn tg_queue_unimport(queue: *mut RemoteQueue) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(queue) }.map_or(Ok(()), RemoteQueue::close)?;
            Ok(0)
        })
    }

    /// Arms access counters for a page (64 KiB, from 0) of an import: an event at the reads-th load and at the writes-th store of this node there; 0 counts none.
    fn tg_counter_arm(
        remote: *const Remote, page: u32, reads: u64, writes: u64, counter: *mut *mut PageCounter
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { give(counter, || given(remote, "the import")?.arm_counter(page, reads, writes)) }
    }

    /// What access counters say.
    fn tg_counter_read(counter: *const PageCounter, count: *mut CountState) -> c_int {
        guard(|| {
            if count.is_null() {
                return Err(missing("the place for the count"));
            }
            // SAFETY: the caller's promise.
            let found = unsafe { given(counter, "the counter")? }.read()?;
            let state = CountState {
                reads: found.reads,
                writes: found.writes,
                reads_fired: found.reads_fired.into(),
                writes_fired: found.writes_fired.into(),
                reserved: [0; 6],
            };
            // SAFETY: the caller's promise.
            unsafe { count.write(state) };
            Ok(0)
        })
    }

    /// Waits for an event of access counters: 1, or 0 after so many nanoseconds (negative: for ever).
    fn tg_counter_wait(counter: *const PageCounter, nanoseconds: i64) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(counter, "the counter")? }.wait(limit(nanoseconds))?.into()))
    }

    /// An eventfd that becomes readable at each event of access counters. It ends with them.
    fn tg_counter_fd(counter: *const PageCounter) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(counter, "the counter")? }.as_fd().as_raw_fd()))
    }

    /// Disarms access counters.
    fn tg_counter_disarm(counter: *mut PageCounter) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(counter) }.map_or(Ok(()), PageCounter::disarm)?;
            Ok(0)
        })
    }

    /// Makes a replicated segment of size bytes, zeroed, under a name, with this node as its home. mode is TG_REPLICA_*, or 0 for TG_REPLICA_COUNTERS; options say who may join, with mode digits 0, 4 or 6.
    fn tg_replicated_create(
        node: *const Node, name: *const c_char, size: u64, mode: u32, options: *const ExportOptions,
        replicated: *mut *mut Replicated
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(replicated, || {
                let mut builder = Replicated::create(given(node, "the node")?, text(name, "the name")?, size)
                    .replica_mode(replica_mode(mode)?);
                if let Some(options) = options.as_ref() {
                    builder = builder.secret(options.secret);
                    if options.mode != 0 {
                        builder = builder.mode(options.mode);
                    }
                    if let Some(nodes) = listed(options)? {
                        builder = builder.nodes(nodes);
                    }
                }
                builder.create()
            })
        }
    }

    /// Makes a copy here of a replicated segment whose home is node home. mode is that of the segment, or 0. options, or NULL, hold the secret, what is wanted by the first digit of their mode, and who may join here should this node become the home.
    fn tg_replicated_join(
        node: *const Node, home: u16, name: *const c_char, mode: u32, options: *const ExportOptions,
        replicated: *mut *mut Replicated
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(replicated, || {
                let mut builder = Replicated::join(given(node, "the node")?, home, text(name, "the name")?)
                    .replica_mode(replica_mode(mode)?);
                if let Some(options) = options.as_ref() {
                    builder = builder.secret(options.secret);
                    if options.mode != 0 {
                        builder = builder.mode(options.mode);
                    }
                    if let Some(nodes) = listed(options)? {
                        builder = builder.nodes(nodes);
                    }
                }
                builder.open()
            })
        }
    }

    /// Has a segment made with TG_REPLICA_NAIVE take the stores of another node, which has made it too.
    fn tg_replicated_join_peer(replicated: *const Replicated, peer: u16) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(replicated, "the replicated segment")? }.join_peer(peer)?;
            Ok(0)
        })
    }

    /// Leaves a replicated segment once its stores are acknowledged. If this node is its home, the other copies become orphans.
    fn tg_replicated_leave(replicated: *mut Replicated) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(replicated) }.map_or(Ok(()), Replicated::leave)?;
            Ok(0)
        })
    }

    /// Bytes of a replicated segment.
    fn tg_replicated_size(replicated: *const Replicated) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { replicated.as_ref() }.map_or(0, Replicated::size)
    }

    /// Where this node's copy lies, read-only. A raw read may miss a store that this process has just made: tg_replicated_settle before it, or tg_load8 to tg_load64 instead.
    fn tg_replicated_memory(replicated: *const Replicated) -> *const c_void {
        // SAFETY: the caller's promise.
        unsafe { replicated.as_ref() }.map_or(std::ptr::null(), |r| r.as_ptr().cast())
    }

    /// Where the window lies, for stores of aligned words of 1, 2, 4 or 8 bytes, never for memcpy; tg_replicated_announce before.
    fn tg_replicated_window(replicated: *const Replicated) -> Window {
        // SAFETY: the caller's promise.
        Window(unsafe { replicated.as_ref() }.map_or(std::ptr::null_mut(), |r| r.window_ptr().cast()))
    }

    /// Tells that this process is about to make so many stores through tg_replicated_window, no more and no fewer.
    fn tg_replicated_announce(replicated: *const Replicated, count: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(replicated, "the replicated segment")? }.announce(count);
            Ok(0)
        })
    }

    /// One pointer for loads and stores, both by the board of this node: a load through it is behind this process's stores, with nothing announced or waited for. Words and access as in tg_replicated_window. From the first call on tg_load8 to tg_load64 make such a trip too.
    fn tg_replicated_trapped(replicated: *const Replicated) -> Window {
        // SAFETY: the caller's promise.
        Window(unsafe { replicated.as_ref() }.map_or(std::ptr::null_mut(), |r| r.trapped_ptr().cast()))
    }

    /// The window as an import, for atomics, which run at the home, and for tg_quiet; NULL for NULL. Stores through it are refused. It belongs to the segment: do not close it.
    fn tg_replicated_remote(replicated: *const Replicated) -> *const Remote {
        // SAFETY: the caller's promise.
        unsafe { replicated.as_ref() }.map_or(std::ptr::null(), |r| std::ptr::from_ref(r.remote()))
    }

    /// Stores to all copies with one instruction, and returns before any has the value.
    fn tg_store8(replicated: *const Replicated, offset: u64, value: u8) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { store(replicated, offset, value) }
    }

    /// See tg_store8.
    fn tg_store16(replicated: *const Replicated, offset: u64, value: u16) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { store(replicated, offset, value) }
    }

    /// See tg_store8.
    fn tg_store32(replicated: *const Replicated, offset: u64, value: u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { store(replicated, offset, value) }
    }

    /// See tg_store8.
    fn tg_store64(replicated: *const Replicated, offset: u64, value: u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { store(replicated, offset, value) }
    }

    /// Loads from this node's copy, with acquire ordering; never older than this process's own last store.
    fn tg_load8(replicated: *const Replicated, offset: u64, value: *mut u8) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { load(replicated, value, |r| r.load(offset)) }
    }

    /// See tg_load8.
    fn tg_load16(replicated: *const Replicated, offset: u64, value: *mut u16) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { load(replicated, value, |r| r.load(offset)) }
    }

    /// See tg_load8.
    fn tg_load32(replicated: *const Replicated, offset: u64, value: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { load(replicated, value, |r| r.load(offset)) }
    }

    /// See tg_load8.
    fn tg_load64(replicated: *const Replicated, offset: u64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { load(replicated, value, |r| r.load(offset)) }
    }

    /// Loads 8 bytes through the window with one instruction: behind this processor's stores, for a trip to the board of this node. All ones may mean that it failed: see tg_replicated_state_of. For other sizes: tg_get8 to tg_get32 of tg_replicated_remote.
    fn tg_load_trapped64(replicated: *const Replicated, offset: u64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { load(replicated, value, |r| r.load_trapped(offset)) }
    }

    /// Waits until the stores made so far are in this node's copy, -EAGAIN after so many nanoseconds (negative: never). Of other copies tells tg_replicated_quiet.
    fn tg_replicated_settle(replicated: *const Replicated, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(replicated, "the replicated segment")? }.settle(limit(nanoseconds))?;
            Ok(0)
        })
    }

    /// Returns when every copy has every earlier store and atomic of this process; -EAGAIN after so many nanoseconds (negative: never).
    fn tg_replicated_quiet(replicated: *const Replicated, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let replicated = unsafe { given(replicated, "the replicated segment")? };
            match limit(nanoseconds) {
                Some(limit) => replicated.quiet_timeout(limit)?,
                None => replicated.quiet()?,
            }
            Ok(0)
        })
    }

    /// What has become of a replicated segment.
    fn tg_replicated_state_of(replicated: *const Replicated, state: *mut ReplicatedState) -> c_int {
        guard(|| {
            if state.is_null() {
                return Err(missing("the place for the state"));
            }
            // SAFETY: the caller's promise.
            let found = unsafe { given(replicated, "the replicated segment")? }.state()?;
            let number = |status: Option<Status>| status.unwrap_or(Status::Ok) as u32;
            let found = ReplicatedState {
                home: found.home.into(),
                orphan: number(found.orphan),
                congested: found.window.congested.into(),
                cut: found.window.cut.into(),
                dead: found.window.dead.into(),
                reserved: 0,
                status: number(found.window.error),
            };
            // SAFETY: the caller's promise.
            unsafe { state.write(found) };
            Ok(0)
        })
    }

    /// Clears the latched error of a replicated segment, and goes on after a cut. Lost stores stay lost. No other thread uses it meanwhile.
    fn tg_replicated_acknowledge(replicated: *const Replicated) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(replicated, "the replicated segment")? }.acknowledge()?;
            Ok(0)
        })
    }

    /// Makes this node the home of an orphan: its copy is the truth, and the others leave theirs and join here. No other thread uses it meanwhile.
    fn tg_replicated_adopt(replicated: *const Replicated) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(replicated, "the replicated segment")? }.adopt()?;
            Ok(0)
        })
    }

    /// Makes this node the home while all go on; the home until now is a copy then. Those who join do so here. -EBUSY or -EREMOTEIO while another node takes it. If it fails midway, call it again.
    fn tg_replicated_take_home(replicated: *const Replicated) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(replicated, "the replicated segment")? }.take_home()?;
            Ok(0)
        })
    }

    /// As tg_lock, in 16 bytes of a replicated segment: tickets are drawn at the home, and who waits looks at the copy of this node.
    fn tg_replicated_lock(replicated: *const Replicated, offset: u64, nanoseconds: i64, ticket: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| lock(unsafe { given(replicated, "the replicated segment")? }, offset, nanoseconds, ticket))
    }

    /// As tg_unlock.
    fn tg_replicated_unlock(replicated: *const Replicated, offset: u64, ticket: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            TicketLock::new(unsafe { given(replicated, "the replicated segment")? }, offset)?.unlock(ticket)?;
            Ok(0)
        })
    }

    /// Makes a broadcast of messages of at most message bytes, for at most consumers consumers, of which the slowest may be slots messages behind; each may be 0 for 248, 16 and 64. For one thread at a time.
    fn tg_broadcast_create(
        node: *const Node, name: *const c_char, slots: u32, message: u32, consumers: u32, options: *const ExportOptions,
        broadcast: *mut *mut Broadcast
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(broadcast, || {
                let mut builder = Broadcast::create(given(node, "the node")?, text(name, "the name")?);
                if slots != 0 {
                    builder = builder.slots(slots);
                }
                if message != 0 {
                    builder = builder.message(message);
                }
                if consumers != 0 {
                    builder = builder.consumers(consumers);
                }
                if let Some(options) = options.as_ref() {
                    builder = builder.secret(options.secret);
                    if options.mode != 0 {
                        builder = builder.mode(options.mode);
                    }
                    if let Some(nodes) = listed(options)? {
                        builder = builder.nodes(nodes);
                    }
                }
                builder.create()
            })
        }
    }

    /// Waits until there are so many consumers, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_wait_consumers(broadcast: *mut Broadcast, count: u32, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let broadcast = unsafe { given_alone(broadcast, "the broadcast")? };
            broadcast.wait_consumers(count as usize, limit(nanoseconds))?;
            Ok(0)
        })
    }

    /// Stores a message for all consumers; waits for the slowest, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_push(broadcast: *mut Broadcast, message: *const c_void, length: u32, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let broadcast = unsafe { given_alone(broadcast, "the broadcast")? };
            let message = match length {
                0 => &[],
                // SAFETY: the caller's promise.
                _ => unsafe { std::slice::from_raw_parts(given(message.cast(), "the message")?, length as usize) },
            };
            broadcast.push(message, limit(nanoseconds))?;
            Ok(0)
        })
    }

    /// Ends a broadcast: waits until all consumers have all messages and have left, -EAGAIN after so many nanoseconds (negative: never). It is gone in any case.
    fn tg_broadcast_finish(broadcast: *mut Broadcast, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(broadcast) }.map_or(Ok(()), |b| b.finish(limit(nanoseconds)))?;
            Ok(0)
        })
    }

    /// Becomes a consumer of the broadcast of another node. The secret has 16 bytes, or is NULL. For one thread at a time.
    fn tg_broadcast_join(
        node: *const Node, producer: u16, name: *const c_char, secret: *const u8, consumer: *mut *mut BroadcastConsumer
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(consumer, || {
                let mut builder = Broadcast::join(given(node, "the node")?, producer, text(name, "the name")?);
                if let Some(secret) = secret.cast::<Secret>().as_ref() {
                    builder = builder.secret(*secret);
                }
                builder.open()
            })
        }
    }

    /// Takes the next message into size bytes at message, and stores its length: 1, or 0 at the end; -EAGAIN after so many nanoseconds (negative: never), -EOVERFLOW when the producer has gone on without this consumer, -EMSGSIZE for a longer message, which is lost.
    fn tg_consumer_pop(
        consumer: *mut BroadcastConsumer, message: *mut c_void, size: u32, length: *mut u32, nanoseconds: i64
    ) -> c_int {
        guard(|| {
            if message.is_null() || length.is_null() {
                return Err(missing("the place for the message, or for its length,"));
            }
            let mut bytes = Vec::new();
            // SAFETY: the caller's promise.
            let consumer = unsafe { given_alone(consumer, "the consumer")? };
            if !consumer.pop_into(&mut bytes, limit(nanoseconds))? {
                return Ok(0);
            }
            if bytes.len() > size as usize {
                let what = format!("a message of {} bytes for {size} bytes of memory", bytes.len());
                return Err(Error::Os { what, errno: Errno::MSGSIZE });
            }
            // SAFETY: the caller's promise; a message is shorter than 64 KiB.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.cast(), bytes.len());
                length.write(bytes.len() as u32);
            }
            Ok(1)
        })
    }

    /// Gives a consumer's place up.
    fn tg_consumer_leave(consumer: *mut BroadcastConsumer) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(consumer) }.map_or(Ok(()), BroadcastConsumer::leave)?;
            Ok(0)
        })
    }

    /// Waits until an import of this node handle has an error to report: 1, or 0 after so many milliseconds (negative: for ever).
    fn tg_wait_error(node: *const Node, milliseconds: i64) -> c_int {
        guard(|| {
            let limit = u64::try_from(milliseconds).ok().map(Duration::from_millis);
            // SAFETY: the caller's promise.
            Ok(unsafe { given(node, "the node")? }.wait_error(limit)?.into())
        })
    }

    /// Orders all earlier accesses of this thread before all later ones. It waits for nothing to arrive: that is tg_quiet.
    fn tg_fence() -> () {
        crate::fence();
    }

    /// What a result means, positive or negative. Valid until the thread's next call of this function.
    fn tg_strerror(error: c_int) -> *const c_char {
        // Linux has no larger errno.
        let text = match i32::try_from(error.unsigned_abs()) {
            Ok(0) => "Done.".to_owned(),
            Ok(errno @ 1..4096) => {
                let os = std::io::Error::from_raw_os_error(errno);
                match crate::error::status_of(Errno::from_raw_os_error(errno)) {
                    Some(status) => format!("{} ({os})", status.describe()),
                    None => os.to_string(),
                }
            }
            _ => format!("{error} is no errno."),
        };
        ERROR_TEXT.with(|last| {
            *last.borrow_mut() = c_text(text);
            last.borrow().as_ptr()
        })
    }

    /// The board's reason for what failed last in this thread: TG_ERR_*, or TG_OK if the board was not the reason.
    fn tg_last_status() -> c_int {
        LAST_STATUS.get() as c_int
    }

    /// What failed last in this thread, in a sentence with what to do. Valid until the thread's next call that fails.
    fn tg_last_error() -> *const c_char {
        LAST_ERROR.with(|last| last.borrow().as_ptr())
    }
}

fn comment(out: &mut String, indent: &str, doc: &[&str]) {
    for (index, line) in doc.iter().enumerate() {
        let begin = if index == 0 { "/* " } else { " * " };
        let end = if index + 1 == doc.len() { " */" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{indent}{begin}{}{end}", line.trim());
    }
}

/// The text of `include/telegraphos.h`:
/// `cargo run -p telegraphos --example header > guest-driver/lib/include/telegraphos.h` renews it.
pub fn header() -> String {
    let mut out = String::from(
        "/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Telegraphos: load from and store into the memory of other virtual machines.
 *
 * Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the whole sentence. Handles may be
 * used by several threads at once, but closed by only one, after all other use; operations, barriers,
 * broadcasts and their consumers are for one thread at a time. Names and paths are UTF-8. Touching an import whose owner has withdrawn it or died is SIGBUS, also
 * by launching an operation on it.
 *
 * Generated from the library; do not edit. Renew with
 *   cargo run -p telegraphos --example header > guest-driver/lib/include/telegraphos.h
 */
#ifndef TELEGRAPHOS_LIBRARY_H
#define TELEGRAPHOS_LIBRARY_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif

/* An open board. */
typedef struct tg_node tg_node;
/* Memory of this node, exported under a name. */
typedef struct tg_segment tg_segment;
/* Memory of another node, imported. */
typedef struct tg_remote tg_remote;
/* An atomic or a copy that was launched. */
typedef struct tg_operation tg_operation;
/* A barrier that was joined. */
typedef struct tg_barrier tg_barrier;
/* A copy of a segment that several nodes have copies of. */
typedef struct tg_replicated tg_replicated;
/* The producer of a broadcast. */
typedef struct tg_broadcast tg_broadcast;
/* A consumer of a broadcast. */
typedef struct tg_consumer tg_consumer;
/* Access counters armed for a page. */
typedef struct tg_page_counter tg_page_counter;
/* A notification queue of this node. (The kernel's header has a struct tg_queue, which is another thing.) */
typedef struct tg_local_queue tg_queue;
/* A notification queue of another node, imported to append to it. */
typedef struct tg_remote_queue tg_remote_queue;

",
    );
    let tables = [
        ("Rights", Rights::NAMES),
        ("Launch styles", STYLES),
        ("Modes of replicated segments", telegraphos_wire::admin::MODES),
        ("Status codes, as in tg_state and from tg_last_status", Status::ALL),
    ];
    for (title, table) in tables {
        let _ = writeln!(out, "/* {title} */");
        for (name, value, doc) in table {
            comment(&mut out, "", &[doc]);
            // Letter for letter as in the kernel's header, so that a program may include both.
            let _ = writeln!(out, "#define {name} 0x{value:x}");
        }
        out.push('\n');
    }
    for record in [&EXPORT_OPTIONS, &IMPORT_STATE, &QUEUE_OPTIONS, &QUEUE_STATUS, &REPLICATED_STATE, &COUNT] {
        comment(&mut out, "", record.doc);
        let _ = writeln!(out, "typedef struct {} {{", record.name);
        for Field { name, before, after, doc } in record.fields {
            comment(&mut out, "\t", doc);
            let _ = writeln!(out, "\t{before}{name}{after};");
        }
        let _ = writeln!(out, "}} {};\n", record.name);
    }
    for function in FUNCTIONS {
        comment(&mut out, "", function.doc);
        let arguments: Vec<String> =
            function.arguments.iter().map(|a| format!("{}{}{}", a.before, a.name, a.after)).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        let _ = writeln!(out, "{}{}({arguments});\n", function.result, function.name);
    }
    out.push_str("#ifdef __cplusplus\n}\n#endif\n\n#endif /* TELEGRAPHOS_LIBRARY_H */\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the text of this thread, until its next failure.
        unsafe { CStr::from_ptr(tg_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn null_is_refused_and_explained() {
        let invalid = -Errno::INVAL.raw_os_error();
        let (mut value, mut node) = (0, std::ptr::null_mut());
        // SAFETY: NULL is allowed everywhere.
        unsafe {
            assert_eq!(tg_put64(std::ptr::null(), 0, 1), invalid);
            assert_eq!(last_error(), "the import is NULL: expected a pointer");
            assert_eq!(tg_get8(std::ptr::null(), 0, &mut value), invalid);
            assert_eq!(tg_open(std::ptr::null(), std::ptr::null_mut()), invalid);
            assert_eq!(tg_open(c"/no/such/board".as_ptr(), &mut node), -Errno::NOENT.raw_os_error());
            assert!(last_error().contains("/no/such/board"), "{}", last_error());
            assert_eq!(tg_open(c"/dev/null".as_ptr(), &mut node), invalid);
            assert!(last_error().contains("expected a /dev/telegraphosN"), "{}", last_error());
            tg_close(std::ptr::null_mut());
            assert_eq!(tg_open_fd(-1, &mut node), invalid);
            assert!(last_error().contains("-1"), "{}", last_error());
            assert_eq!(tg_queue_enqueue(std::ptr::null(), 1), invalid);
            assert_eq!(last_error(), "the imported queue is NULL: expected a pointer");
            let (queue, mut element) = (std::ptr::null(), 0u64);
            assert_eq!(tg_queue_try_pop(queue, &mut element), invalid);
            assert_eq!(last_error(), "the queue is NULL: expected a pointer");
            assert_eq!(tg_queue_pop_batch(queue, std::ptr::null_mut(), 1), invalid);
            assert_eq!(tg_queue_put_notify(std::ptr::null(), std::ptr::null(), 0, &element, u64::MAX, 0), invalid);
            assert_eq!(tg_queue_close(std::ptr::null_mut()) | tg_queue_unimport(std::ptr::null_mut()), 0);
            assert_eq!(tg_unexport(std::ptr::null_mut()), 0);
            assert!(tg_segment_memory(std::ptr::null()).is_null());
            assert!(
                tg_replicated_memory(std::ptr::null()).is_null() && tg_replicated_remote(std::ptr::null()).is_null()
            );
            assert_eq!(tg_replicated_take_home(std::ptr::null()), invalid);
            assert_eq!(tg_replicated_lock(std::ptr::null(), 0, 0, std::ptr::null_mut()), invalid);
            assert_eq!(last_error(), "the replicated segment is NULL: expected a pointer");
            assert_eq!(tg_store8(std::ptr::null(), 0, 1), invalid);
            assert_eq!(last_error(), "the replicated segment is NULL: expected a pointer");
            assert_eq!(tg_load64(std::ptr::null(), 0, std::ptr::null_mut()), invalid);
            assert_eq!(tg_broadcast_push(std::ptr::null_mut(), std::ptr::null(), 8, 0), invalid);
            assert_eq!(tg_broadcast_finish(std::ptr::null_mut(), 0), 0);
            assert_eq!(tg_consumer_leave(std::ptr::null_mut()), 0);
        }
    }

    #[test]
    fn a_panic_does_not_reach_c() {
        std::panic::set_hook(Box::new(|_| ()));
        let result = guard(|| panic!("a bug"));
        let _ = std::panic::take_hook();
        assert_eq!(result, -Errno::NOTRECOVERABLE.raw_os_error());
        assert!(last_error().contains("bug"));
    }

    #[test]
    fn errors_have_texts() {
        let text = |error| {
            // SAFETY: the text of this thread, until its next call.
            unsafe { CStr::from_ptr(tg_strerror(error)) }.to_str().unwrap().to_owned()
        };
        assert_eq!(text(0), "Done.");
        let missing = Errno::NOENT.raw_os_error();
        assert!(text(-missing).starts_with("No segment of that name"));
        assert_eq!(text(missing), text(-missing));
        for odd in [c_int::MIN, c_int::MAX, -4095, 12345] {
            assert!(!text(odd).is_empty());
        }
    }
}
