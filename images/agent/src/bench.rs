// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `telegraphos bench` and `tg-bench` have agreed on: where the other devices of the same guests are, and what
//! their registers and shared words mean.

/// Slots on bus 0 of each guest's PCI devices that boards are compared with.
pub mod slot {
    /// `ivshmem-plain`: memory that both guests map.
    pub const IVSHMEM: u8 = 0x1d;
    /// `ivshmem-doorbell`.
    pub const DOORBELL: u8 = 0x1c;
    /// `virtio-net-pci`, with a cable to the other guest.
    pub const NETWORK: u8 = 0x1b;
    /// The bare vfio-user loop, of the first guest.
    pub const BARE: u8 = 0x1a;
    /// The same device behind the server of the crate `vfio_user`, of the first guest.
    pub const CRATE: u8 = 0x19;
    /// `edu`, whose interrupt a doorbell can raise.
    pub const EDU: u8 = 0x18;
}

/// Registers of the bare device, in bytes from the start of BAR 0; each has 8.
pub mod register {
    /// Holds what was stored.
    pub const DATA: u64 = 0;
    /// 1: the server polls for the next message; 0: it sleeps.
    pub const SPIN: u64 = 8;
    /// A command: [`super::command`].
    pub const COMMAND: u64 = 16;
    /// What the last command took, in nanoseconds; `u64::MAX` if it failed.
    pub const RESULT: u64 = 24;
}

/// Bytes of the bare device's BAR 0.
pub const BARE_BYTES: u64 = 4096;

/// What the bare device's server measures on the host, between two accesses of the guest: the command above, its
/// argument in the bits below [`command::SHIFT`].
pub mod command {
    /// Where the command begins.
    pub const SHIFT: u32 = 56;
    /// One memcpy of so many bytes into memory that another process could map.
    pub const MEMCPY: u64 = 1;
    /// One round trip between two threads over a Unix stream, of so many, both asleep.
    pub const UNIX_BLOCKED: u64 = 2;
    /// The same, both polling.
    pub const UNIX_SPINNING: u64 = 3;
    /// `process_vm_writev` of so many bytes into the same memory.
    pub const WRITEV: u64 = 4;
}

/// Bytes of the memory that both guests map.
pub const SHARED_BYTES: u64 = 1 << 20;

/// Places in that memory, in bytes. What different parties store to lies in different cache lines.
pub mod shared {
    /// The last value of [`super::register::DATA`], by the bare server.
    pub const BARE: u64 = 0;
    /// What has come one way, by the second guest.
    pub const BACK: u64 = 64;
    /// Ping-pong: a word of each guest.
    pub const PING: [u64; 2] = [128, 192];
    /// What a doorbell stores for each guest instead of an interrupt.
    pub const RUNG: [u64; 2] = [256, 320];
    /// Free for single loads and stores.
    pub const FREE: u64 = 4096;
}

/// The doorbell's vector that stores to [`shared::RUNG`], and the one that raises an interrupt.
pub const VECTORS: [u16; 2] = [0, 1];
