// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls: ioctl and mmap of `/dev/telegraphosN`.

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use telegraphos_wire::{Rights, uapi};

macro_rules! ioctls {
    ($( $name:ident = $number:literal, $direction:ident $type:ident; )*) => {
        $(
            #[doc = concat!("The ioctl of the driver that takes a `uapi::", stringify!($type), "`.")]
            pub(crate) fn $name(fd: BorrowedFd<'_>, value: &mut uapi::$type) -> Result<(), Errno> {
                const SIZE: usize = size_of::<uapi::$type>();
                const REQUEST: rustix::ioctl::Opcode =
                    uapi::request(uapi::Direction::$direction, $number, SIZE) as rustix::ioctl::Opcode;
                value.size = SIZE as u32;
                // SAFETY: the driver reads and writes exactly the structure that the request number names.
                unsafe { ioctl(fd, Updater::<REQUEST, uapi::$type>::new(value)) }
            }
        )*

        #[cfg(test)]
        const REQUESTS: &[u32] =
            &[ $( uapi::request(uapi::Direction::$direction, $number, size_of::<uapi::$type>()), )* ];
    };
}

ioctls! {
    info = 0, InOut Info;
    export = 1, InOut Export;
    unexport = 2, In Handle;
    import = 3, InOut Import;
    unimport = 4, In Handle;
    state = 5, InOut ImportState;
    acknowledge = 6, In Handle;
    counter_arm = 8, InOut Counter;
    counter_read = 9, InOut Counter;
    counter_disarm = 10, In Counter;
    notify = 11, In Notify;
    queue_create = 12, InOut Queue;
    queue_attach = 13, InOut Queue;
    queue_destroy = 14, In Handle;
    queue_service = 15, In Handle;
    queue_state = 16, InOut QueueState;
    wait = 17, InOut Wait;
    replicate = 18, InOut Replica;
    replica_leave = 19, In Handle;
    replica_state = 20, InOut ReplicaState;
    replica_adopt = 21, In Handle;
    replica_move = 22, In Handle;
    register = 23, InOut Register;
    unregister = 24, In Handle;
    registration_state = 25, InOut RegistrationState;
    launch = 0x20, InOut Launch;
    queue_pop = 0x21, InOut QueuePop;
}

/// The argument of an ioctl on the object of this handle.
pub(crate) fn handle(handle: u32) -> uapi::Handle {
    uapi::Handle { handle, ..Default::default() }
}

/// Memory mapped from the device; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; all access is by atomics or single instructions.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset`, for what `rights` allow.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, length: usize, rights: Rights) -> Result<Mapping, Errno> {
        let mut protection = ProtFlags::empty();
        protection.set(ProtFlags::READ, rights.contains(Rights::READ));
        protection.set(ProtFlags::WRITE, rights.contains(Rights::WRITE));
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory of this process.
        let at = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, fd.as_fd(), offset)? };
        let at = NonNull::new(at.cast()).ok_or(Errno::FAULT)?;
        Ok(Mapping { at, length })
    }

    /// Its first byte.
    pub(crate) fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and all users of it have borrowed `self`.
        if let Err(errno) = unsafe { munmap(self.at.as_ptr().cast(), self.length) } {
            log::warn!("unmapping {} bytes at {:p}: {errno}", self.length, self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Mapping {
        /// Zeroed memory of this process, in place of the board's.
        pub(crate) fn anonymous(length: usize) -> Mapping {
            // SAFETY: as in `new`.
            let at = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    length,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
            };
            Mapping { at: NonNull::new(at.unwrap().cast()).unwrap(), length }
        }

        /// The same memory at two addresses.
        pub(crate) fn anonymous_twice(length: usize) -> [Mapping; 2] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(length as u64).unwrap();
            [0, 1].map(|_| Mapping::new(file.as_fd(), 0, length, crate::READ_WRITE).unwrap())
        }
    }

    #[test]
    fn ioctls_are_those_of_the_interface() {
        let interface: Vec<_> = uapi::IOCTLS.iter().map(uapi::Ioctl::request).collect();
        assert_eq!(REQUESTS, interface);
    }
}
