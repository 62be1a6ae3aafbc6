// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a sensible call of each ioctl is, and how it is undone. An ioctl without a row fails.

use super::call::{self, Answer, PAGE, Pages};
use crate::cli::{Failure, Outcome};
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use telegraphos_wire::Rights;
use telegraphos_wire::admin;
use telegraphos_wire::uapi::{self, Ioctl};

/// An ioctl, and what is known of it.
pub struct Row {
    pub name: &'static str,
    /// The structure of a sensible call.
    make: fn(&World) -> Outcome<Vec<u8>>,
    /// Ends what such a call has made, or what was made for it.
    undo: Undo,
    /// What a sensible call answers; 0 is success.
    pub answers: &'static [i32],
    /// What it answers when the board is gone.
    pub gone: &'static [i32],
    /// Flags that it has.
    pub flags: u32,
}

#[derive(Clone, Copy)]
enum Undo {
    /// It leaves nothing.
    Nothing,
    /// The ioctl that takes the handle in its structure.
    Close(&'static str),
    /// The counter in its structure.
    Disarm,
    /// What was made for it is there unless the call succeeded.
    Unless(&'static str),
}

/// A file, and one object of each kind.
pub struct World {
    pub file: File,
    pub node: u32,
    /// Name of the segment that is imported.
    exported: [u8; 64],
    /// Memory to register.
    memory: Pages,
    export: u32,
    import: u32,
    queue: u32,
    replica: u32,
    registration: u32,
}

const DONE: &[i32] = &[0];
/// A board that is gone refuses with this alone.
const NO_DEVICE: &[i32] = &[libc::ENODEV];
/// What an object's end answers then: it has ended, or has been ended.
const ENDS: &[i32] = &[0, libc::ENODEV, libc::EBADF];

/// One of each ioctl of the interface.
pub const ROWS: &[Row] = &[
    Row::of("TG_IOCTL_INFO", nothing::<uapi::Info>).flags(uapi::INFO_SOFT),
    Row::of("TG_IOCTL_EXPORT", export).undone_by("TG_IOCTL_UNEXPORT"),
    Row::end("TG_IOCTL_UNEXPORT", |world| world.fresh("TG_IOCTL_EXPORT")),
    Row::of("TG_IOCTL_IMPORT", import).undone_by("TG_IOCTL_UNIMPORT").flags(uapi::IMPORT_SOFT),
    Row::end("TG_IOCTL_UNIMPORT", |world| world.fresh("TG_IOCTL_IMPORT")),
    Row::of("TG_IOCTL_STATE", |world| Ok(words(&uapi::ImportState { handle: world.import, ..Default::default() })))
        .gone(DONE),
    Row::of("TG_IOCTL_ACK", |world| Ok(handle(world.import))),
    Row::of("TG_IOCTL_COUNTER_ARM", counter).undone(Undo::Disarm),
    Row::of("TG_IOCTL_COUNTER_READ", |world| world.fresh("TG_IOCTL_COUNTER_ARM")).undone(Undo::Disarm),
    Row::end("TG_IOCTL_COUNTER_DISARM", |world| world.fresh("TG_IOCTL_COUNTER_ARM")).gone(NO_DEVICE),
    Row::of("TG_IOCTL_NOTIFY", |_| Ok(words(&uapi::Notify { eventfd: -1, ..Default::default() }))).gone(DONE),
    Row::of("TG_IOCTL_QUEUE_CREATE", queue).undone_by("TG_IOCTL_QUEUE_DESTROY"),
    Row::of("TG_IOCTL_QUEUE_ATTACH", |world| Ok(words(&uapi::Queue { handle: world.queue, ..Default::default() }))),
    Row::end("TG_IOCTL_QUEUE_DESTROY", |world| world.fresh("TG_IOCTL_QUEUE_CREATE")),
    Row::of("TG_IOCTL_QUEUE_SERVICE", |world| Ok(handle(world.queue))).gone(ENDS),
    Row::of("TG_IOCTL_QUEUE_STATE", |world| Ok(words(&uapi::QueueState { handle: world.queue, ..Default::default() })))
        .gone(DONE),
    Row::of("TG_IOCTL_WAIT", |_| Ok(words(&uapi::Wait { timeout: 1000, ..Default::default() })))
        .gone(&[0, libc::ENODEV]),
    Row::of("TG_IOCTL_REPLICATE", replica).undone_by("TG_IOCTL_REPLICA_LEAVE"),
    Row::end("TG_IOCTL_REPLICA_LEAVE", |world| world.fresh("TG_IOCTL_REPLICATE")),
    Row::of("TG_IOCTL_REPLICA_STATE", |world| {
        Ok(words(&uapi::ReplicaState { handle: world.replica, ..Default::default() }))
    })
    .gone(DONE),
    // It is no orphan.
    Row::of("TG_IOCTL_REPLICA_ADOPT", |world| Ok(handle(world.replica))).answers(&[libc::EINVAL]),
    Row::of("TG_IOCTL_REPLICA_MOVE", |world| Ok(handle(world.replica))),
    Row::of("TG_IOCTL_REGISTER", register).undone_by("TG_IOCTL_UNREGISTER").flags(uapi::REGISTER_GATED),
    Row::end("TG_IOCTL_UNREGISTER", |world| world.fresh("TG_IOCTL_REGISTER")),
    Row::of("TG_IOCTL_REGISTRATION_STATE", |world| {
        Ok(words(&uapi::RegistrationState { handle: world.registration, ..Default::default() }))
    })
    .gone(DONE),
    // Without the module for comparisons there is neither.
    Row::of("TG_IOCTL_LAUNCH", launch).answers(&[0, libc::ENOTTY]).gone(&[libc::ENODEV, libc::ENOTTY]),
    // The queue is empty.
    Row::of("TG_IOCTL_QUEUE_POP", |world| Ok(words(&uapi::QueuePop { handle: world.queue, ..Default::default() })))
        .answers(&[libc::EAGAIN, libc::ENOTTY])
        .gone(&[libc::ENODEV, libc::EAGAIN, libc::ENOTTY]),
];

impl Row {
    /// An ioctl that succeeds and leaves nothing, and has no flags.
    const fn of(name: &'static str, make: fn(&World) -> Outcome<Vec<u8>>) -> Row {
        Row { name, make, undo: Undo::Nothing, answers: DONE, gone: NO_DEVICE, flags: 0 }
    }

    /// One that ends what was made for it.
    const fn end(name: &'static str, make: fn(&World) -> Outcome<Vec<u8>>) -> Row {
        Row::of(name, make).undone(Undo::Unless(name)).gone(ENDS)
    }

    const fn undone_by(self, name: &'static str) -> Row {
        self.undone(Undo::Close(name))
    }

    const fn undone(self, undo: Undo) -> Row {
        Row { undo, ..self }
    }

    const fn answers(self, answers: &'static [i32]) -> Row {
        Row { answers, ..self }
    }

    const fn gone(self, gone: &'static [i32]) -> Row {
        Row { gone, ..self }
    }

    const fn flags(self, flags: u64) -> Row {
        Row { flags: flags as u32, ..self }
    }
}

/// The ioctls of the interface, each with its row.
pub fn all() -> Outcome<Vec<(&'static Ioctl, &'static Row)>> {
    let row = |ioctl: &'static Ioctl| {
        let row = ROWS.iter().find(|row| row.name == ioctl.name);
        let missing = || Failure::Check(format!("{} has no row in tg-hostile: add one to rows.rs", ioctl.name));
        row.map(|row| (ioctl, row)).ok_or_else(missing)
    };
    uapi::IOCTLS.iter().map(row).collect()
}

/// The bytes of a structure, with its size.
fn words<T: bytemuck::Pod>(value: &T) -> Vec<u8> {
    let mut bytes = bytemuck::bytes_of(value).to_vec();
    let size = bytes.len() as u32;
    bytes[..4].copy_from_slice(&size.to_ne_bytes());
    bytes
}

fn nothing<T: bytemuck::Pod>(_: &World) -> Outcome<Vec<u8>> {
    Ok(words(&T::zeroed()))
}

/// The structure of ioctls that take a handle alone.
pub fn handle(handle: u32) -> Vec<u8> {
    words(&uapi::Handle { handle, ..Default::default() })
}

/// A field of an ioctl's structure, as a number.
pub fn field(ioctl: &Ioctl, bytes: &[u8], name: &str) -> Outcome<u32> {
    let field = ioctl.structure.fields.iter().find(|field| field.name == name);
    let word = field.and_then(|field| bytes.get(field.offset..field.offset + 4)?.try_into().ok());
    let word = word.ok_or_else(|| Failure::Check(format!("{} has no field {name}", ioctl.name)))?;
    Ok(u32::from_ne_bytes(word))
}

fn rights(all: &[Rights]) -> u16 {
    all.iter().fold(0, |sum, right| sum | right.0)
}

fn export(_: &World) -> Outcome<Vec<u8>> {
    let (name, rights_owner) = (new_name(), rights(&[Rights::READ, Rights::WRITE, Rights::ATOMIC]));
    Ok(words(&uapi::Export { name, length: PAGE as u64, nodes: [!0; 4], rights_owner, ..Default::default() }))
}

fn import(world: &World) -> Outcome<Vec<u8>> {
    let rights = rights(&[Rights::READ, Rights::WRITE, Rights::ATOMIC]).into();
    Ok(words(&uapi::Import { name: world.exported, node: world.node, rights, ..Default::default() }))
}

fn counter(world: &World) -> Outcome<Vec<u8>> {
    let (reads, writes) = (1 << 30, 1 << 30);
    Ok(words(&uapi::Counter { handle: world.import, eventfd: -1, reads, writes, ..Default::default() }))
}

fn queue(_: &World) -> Outcome<Vec<u8>> {
    let (name, rights_owner) = (new_name(), Rights::ENQUEUE.0);
    let queue = uapi::Queue { name, nodes: [!0; 4], words: 8, width: 8, quota: 2, rights_owner, ..Default::default() };
    Ok(words(&queue))
}

fn replica(_: &World) -> Outcome<Vec<u8>> {
    let (name, home) = (new_name(), uapi::REPLICA_HERE as u32);
    let (length, mode) = (PAGE as u64, admin::COUNTERS);
    let rights_owner = rights(&[Rights::READ, Rights::WRITE, Rights::ATOMIC]);
    Ok(words(&uapi::Replica { name, nodes: [!0; 4], length, home, mode, rights_owner, ..Default::default() }))
}

fn register(world: &World) -> Outcome<Vec<u8>> {
    let (name, rights_owner) = (new_name(), rights(&[Rights::READ, Rights::WRITE]));
    let (address, length) = (world.memory.at(0) as u64, PAGE as u64);
    Ok(words(&uapi::Register { address, length, name, nodes: [!0; 4], rights_owner, ..Default::default() }))
}

fn launch(world: &World) -> Outcome<Vec<u8>> {
    let (style, target) = (uapi::STYLE_PLAIN as u32, world.import);
    let operation = telegraphos_wire::context::ADD.into();
    Ok(words(&uapi::Launch { style, operation, target, operand: 1, ..Default::default() }))
}

/// A name that nothing else has.
fn new_name() -> [u8; 64] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    call::name(&format!("hostile-{}-{number}", std::process::id()))
}

impl World {
    pub fn new() -> Outcome<World> {
        let file = call::open()?;
        let info = call::of("TG_IOCTL_INFO")?;
        let mut about = words(&uapi::Info::default());
        call::granted(info.name, call::sized(&file, info, &mut about))?;
        let memory = Pages::new(4)?;
        let node = field(info, &about, "node")?;
        let none = u32::MAX;
        let mut world = World {
            file,
            node,
            exported: [0; 64],
            memory,
            export: none,
            import: none,
            queue: none,
            replica: none,
            registration: none,
        };
        let (ioctl, export) = world.called("TG_IOCTL_EXPORT")?;
        world.export = field(ioctl, &export, "handle")?;
        world.exported.copy_from_slice(&export[8..72]);
        world.import = world.object("TG_IOCTL_IMPORT")?;
        world.queue = world.object("TG_IOCTL_QUEUE_CREATE")?;
        world.replica = world.object("TG_IOCTL_REPLICATE")?;
        world.registration = world.object("TG_IOCTL_REGISTER")?;
        Ok(world)
    }

    /// The handle of each object, with the ioctl that ends it.
    pub fn objects(&self) -> [(&'static str, u32); 5] {
        [
            ("TG_IOCTL_UNEXPORT", self.export),
            ("TG_IOCTL_UNIMPORT", self.import),
            ("TG_IOCTL_QUEUE_DESTROY", self.queue),
            ("TG_IOCTL_REPLICA_LEAVE", self.replica),
            ("TG_IOCTL_UNREGISTER", self.registration),
        ]
    }

    /// Each kind of mapping with a handle of the object.
    pub fn mappings(&self) -> [(u64, u32); 9] {
        [
            (uapi::MMAP_CONTEXT, 0),
            (uapi::MMAP_STATUS, 0),
            (uapi::MMAP_IMPORT, self.import),
            (uapi::MMAP_EXPORT, self.export),
            (uapi::MMAP_ARGUMENT, self.import),
            (uapi::MMAP_QUEUE, self.queue),
            (uapi::MMAP_ENQUEUE, self.import),
            (uapi::MMAP_REPLICA, self.replica),
            (uapi::MMAP_REPLICA_WINDOW, self.import),
        ]
    }

    /// A sensible call of an ioctl, which must succeed: what it gives back.
    fn called(&self, name: &str) -> Outcome<(&'static Ioctl, Vec<u8>)> {
        let (ioctl, row) = row(name)?;
        let mut bytes = row.make(self)?;
        call::granted(name, call::sized(&self.file, ioctl, &mut bytes))?;
        Ok((ioctl, bytes))
    }

    fn object(&self, name: &str) -> Outcome<u32> {
        let (ioctl, bytes) = self.called(name)?;
        field(ioctl, &bytes, "handle")
    }

    /// What the ioctls take that end or read something made by this one: a handle, or the counter.
    fn fresh(&self, name: &str) -> Outcome<Vec<u8>> {
        let (ioctl, bytes) = self.called(name)?;
        if name == "TG_IOCTL_COUNTER_ARM" {
            let counter = field(ioctl, &bytes, "counter")?;
            return Ok(words(&uapi::Counter { counter, ..Default::default() }));
        }
        Ok(handle(field(ioctl, &bytes, "handle")?))
    }
}

/// The ioctl of a name, and its row.
pub fn row(name: &str) -> Outcome<(&'static Ioctl, &'static Row)> {
    let found = all()?.into_iter().find(|(ioctl, _)| ioctl.name == name);
    found.ok_or_else(|| Failure::Check(format!("there is no {name}")))
}

impl Row {
    /// The structure of a sensible call.
    pub fn make(&self, world: &World) -> Outcome<Vec<u8>> {
        (self.make)(world)
    }

    /// After a call with the answer: what it made, or what was made for it (`made`), goes.
    pub fn undo(&self, world: &World, made: &[u8], received: &[u8], answer: Answer) -> Outcome<()> {
        let ioctl = call::of(self.name)?;
        let end = |name: &str, bytes: &mut Vec<u8>| {
            let answer = call::sized(&world.file, call::of(name)?, bytes);
            call::granted(format_args!("{name} after {}", self.name), answer)
        };
        match (self.undo, answer) {
            (Undo::Close(name), Ok(())) => end(name, &mut handle(field(ioctl, received, "handle")?)),
            (Undo::Disarm, _) if self.name == "TG_IOCTL_COUNTER_READ" => {
                end("TG_IOCTL_COUNTER_DISARM", &mut made.to_vec())
            }
            (Undo::Disarm, Ok(())) => {
                let counter = field(ioctl, received, "counter")?;
                end("TG_IOCTL_COUNTER_DISARM", &mut words(&uapi::Counter { counter, ..Default::default() }))
            }
            (Undo::Unless(name), Err(_)) => end(name, &mut made.to_vec()),
            _ => Ok(()),
        }
    }
}
