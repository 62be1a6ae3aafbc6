/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT OR Apache-2.0 */
/*
 * Telegraphos HIB: the interface of its driver to user space.
 *
 * Each ioctl has a structure that begins with its size in the caller's version of it, and
 * flags. It may grow at its end. The driver takes missing bytes for zero, and refuses what it
 * does not support unless it is zero: E2BIG for bytes after the end of its own version of the
 * structure, EINVAL for a flag, and for a structure that is shorter than its first version. It
 * writes no more than that size back.
 *
 * Generated from the wire crate; do not edit. Renew with
 *   cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h
 */
#ifndef _UAPI_TELEGRAPHOS_H
#define _UAPI_TELEGRAPHOS_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Status codes */
/* Done. */
#define TG_OK 0x0
/* The window address has no import behind it. */
#define TG_ERR_UNMAPPED 0x1
/* The import or grant does not carry the right that the access needs. */
#define TG_ERR_RIGHTS 0x2
/* The grant was revoked or renewed: the packet carries an old generation. */
#define TG_ERR_STALE 0x3
/* The page is not granted to this node. */
#define TG_ERR_NOT_GRANTED 0x4
/* The access runs past the end of the segment. */
#define TG_ERR_BOUNDS 0x5
/* The node is not in the cluster at present. */
#define TG_ERR_NODE_DOWN 0x6
/* This node's link to the fabric is down. */
#define TG_ERR_LINK_DOWN 0x7
/* No answer within the configured limit. */
#define TG_ERR_TIMEOUT 0x8
/* The import was cut: its reserve of waiting stores was full, or an earlier store was lost. */
#define TG_ERR_CUT 0x9
/* The access is not a naturally aligned 1, 2, 4 or 8 bytes. */
#define TG_ERR_BAD_SIZE 0xa
/* The node id is outside the cluster. */
#define TG_ERR_BAD_NODE 0xb
/* The guest memory is private (no file descriptor): start QEMU with memory-backend-memfd,share=on. */
#define TG_ERR_PRIVATE_MEMORY 0xc
/* The guest address is not mapped for DMA, or is read-only. */
#define TG_ERR_MEMORY_FAULT 0xd
/* No segment of that name is exported by that node. */
#define TG_ERR_NO_SEGMENT 0xe
/* The segment's mode or secret does not admit the caller. */
#define TG_ERR_DENIED 0xf
/* The index is in use, or operations are still in flight. */
#define TG_ERR_BUSY 0x10
/* An argument is out of range or not understood. */
#define TG_ERR_INVALID 0x11
/* A table of the board is full. */
#define TG_ERR_NO_SPACE 0x12
/* The device was reset while the operation was outstanding. */
#define TG_ERR_RESET 0x13
/* The aperture does not support this access. */
#define TG_ERR_APERTURE 0x14
/* The name is already exported on this node. */
#define TG_ERR_NAME_TAKEN 0x15
/* A wrong context key, or an argument for another process's context; after 16 of them the import is dead. */
#define TG_ERR_BAD_KEY 0x16
/* Source and destination of a copy overlap. */
#define TG_ERR_OVERLAP 0x17
/* The length of a copy is 0 or more than 16 MiB. */
#define TG_ERR_LENGTH 0x18
/* Neither end of a copy is memory of this node. */
#define TG_ERR_NOT_LOCAL 0x19
/* An operation was launched without its arguments, or with one that is gone. */
#define TG_ERR_ARGUMENT 0x1a
/* The header of the queue is not sound: its size is not the one granted, or head or tail lie outside 3 to size - 1. */
#define TG_ERR_QUEUE_HEADER 0x1b
/* The page is not a queue, or the enqueue is not at the queue's base or not of its word width. */
#define TG_ERR_NOT_QUEUE 0x1c
/* The node of the queue has no hold slots left for another import of a queue, or more elements came than were reserved. */
#define TG_ERR_NO_HOLD 0x1d
/* The page is not replicated, or not in this mode, or its home is another node. */
#define TG_ERR_NOT_HOME 0x1e
/* The copy is not valid any more: another store has been made. */
#define TG_ERR_INVALIDATED 0x1f
/* The page is moving to another home; the store is sent there. */
#define TG_ERR_MOVING 0x20
/* The name is not 1 to 63 printable ASCII characters, with NUL behind them. */
#define TG_ERR_BAD_NAME 0x21

/* Rights */
/* Loads. */
#define TG_RIGHT_READ 0x1
/* Stores. */
#define TG_RIGHT_WRITE 0x2
/* Atomics. */
#define TG_RIGHT_ATOMIC 0x4
/* Remote enqueue. */
#define TG_RIGHT_ENQUEUE 0x8
/* Block copies. */
#define TG_RIGHT_DMA 0x10

/* Modes of replicated pages */
/* Stores are applied where they are made and sent to all copies by their writer; copies diverge when stores are concurrent (SPEC item 24). */
#define TG_REPLICA_NAIVE 0x1
/* Stores go through the home, which multicasts them; a copy applies everything that comes back, so a program may see its own older store again. */
#define TG_REPLICA_OWNER 0x2
/* The same, with counters of pending writes (SPEC item 25): no program sees values out of order. */
#define TG_REPLICA_COUNTERS 0x3
/* Stores go to the home alone; those copies that are valid become invalid, and are filled again when a processor reads them (SPEC item 28). */
#define TG_REPLICA_INVALIDATE 0x4

/* COUNTER bits */
/* The reads counter went to 0 */
#define TG_COUNTER_READS 0x1
/* The writes counter went to 0 */
#define TG_COUNTER_WRITES 0x2

/* Contexts */
/* Most contexts of a board: the word of an argument names one in 8 bits. */
#define TG_CONTEXT_COUNT 0x100
/* Slots per context. */
#define TG_CONTEXT_SLOT_COUNT 0x40
/* Offset of QUIET of slot 0 in the context page; that of slot k is 8 * k further. */
#define TG_CONTEXT_QUIET 0x0
/* Import number that means the whole context. */
#define TG_CONTEXT_QUIET_ALL 0xffff
/* Offset of ARM of slot 0 in the context page; that of slot k is 8 * k further. */
#define TG_CONTEXT_ARM 0x200
/* Offset of the launch registers of slot 0; those of slot k are TG_CONTEXT_STRIDE * k further. */
#define TG_CONTEXT_REGISTERS 0x400
/* Bytes of a slot's launch registers. */
#define TG_CONTEXT_STRIDE 0x20
/* Launch register: operand of an atomic. */
#define TG_CONTEXT_OPERAND 0x0
/* Launch register: value a compare-and-swap compares with. */
#define TG_CONTEXT_COMPARE 0x8
/* Launch register: bytes to copy in bits 47:0, and the low 3 bits (which an aligned store cannot pass) of the first argument's address in 51:48, of the second's in 55:52. For FETCH, the operation in 63:56. */
#define TG_CONTEXT_LENGTH 0x10
/* Launch register: `operation << 56 | flags << 48 | cookie`; starts it. */
#define TG_CONTEXT_LAUNCH 0x18
/* Offset of QUEUE_ARM: `further elements << 56 | export page << 32 | word 0 of the queue's first buffer as the consumer saw it`. */
#define TG_CONTEXT_QUEUE_ARM 0xc00
/* Offset of ARGUMENT: an argument of a launch by the number of its import, which need not have a window: `slot << 58 | which << 57 | import << 41 | byte offset in the import`. It passes all bits of the address. */
#define TG_CONTEXT_ARGUMENT 0xc08
/* Offset of WORD_ARM of the first 256 8-byte words of an export page; that of each 256 more is 8 further. `word modulo 256 << 56 | export page << 32 | upper half of the word ^ lower half, as the process saw it`. */
#define TG_CONTEXT_WORD_ARM 0xd00
/* Offset of FETCH of slot 0: a load from it performs the slot's atomic and returns its result. That of slot k is 8 * k further. */
#define TG_CONTEXT_FETCH 0xe00
/* Size of the status page in bytes. */
#define TG_CONTEXT_STATUS_SIZE 0x1000

/* Bits of a context's words */
/* Bits of a cookie. */
#define TG_CONTEXT_COOKIE_BITS 0x30
/* Bits of a context's key. */
#define TG_CONTEXT_KEY_BITS 0x30

/* Operations */
/* Fetch-and-store of the word at argument 0. */
#define TG_OP_SWAP 0x1
/* Fetch-and-add to the word at argument 0. */
#define TG_OP_ADD 0x2
/* Compare-and-swap of the word at argument 0. */
#define TG_OP_COMPARE_SWAP 0x3
/* Copy LENGTH bytes to argument 0 from argument 1; at least one of them is on this node (put, get, remote copy). */
#define TG_OP_COPY 0x4
/* Open the gate of the range that argument 0, its context's own import of it, is of: to the node in OPERAND, one of those that it was granted to, for the first LENGTH bytes. LENGTH 0 closes it: completes when no access through it is in flight. TG_ERR_BUSY: it is open to another node. */
#define TG_OP_GATE 0x5

/* Launch flags */
/* Atomics: the word has 8 bytes, else 4. */
#define TG_LAUNCH_WIDE 0x1
/* Post a CONTEXT event when it is done. */
#define TG_LAUNCH_NOTIFY 0x2

/* The status page: written by the HIB, one 8-byte word at a time with release ordering, read by the process. */
struct tg_status_page {
	/* Last completion of each slot: `status << 48 | cookie`. */
	__le64 done[64];
	/* Number of errors latched on imports of this context. */
	__le64 errors;
	/* The driver counts here when registrations of this context may no longer be of their process's memory. */
	__le64 revoked;
	/* Zero. */
	__le64 reserved[62];
	/* Previous value of the word of each slot's last atomic; written before `done`. */
	__le64 value[64];
	/* Per import of replicated pages (tg_admin_command.taken): stores of it that are in this node's copy. */
	__le64 taken[256];
	/* Zero. */
	__le64 reserved2[64];
};
_Static_assert(sizeof(struct tg_status_page) == 4096, "tg_status_page");

/* Notification queues */
/* Index of the header word with the tail. */
#define TG_QUEUE_TAIL_WORD 0x0
/* Index of the header word with the head. */
#define TG_QUEUE_HEAD_WORD 0x1
/* Index of the header word with the arena index of the next older buffer. */
#define TG_QUEUE_NEXT_WORD 0x2
/* Index of the first data word. */
#define TG_QUEUE_FIRST_WORD 0x3
/* Words of the smallest buffer. */
#define TG_QUEUE_WORDS_MIN 0x8
/* Bytes of the largest buffer. */
#define TG_QUEUE_BYTES_MAX 0x10000
/* Linked buffers of a queue, at most. */
#define TG_QUEUE_QUOTA_MAX 0x400
/* tg_queue_control.state: a consumer is in the dequeue section. */
#define TG_QUEUE_BUSY 0x1
/* tg_queue_control.state: the board has stopped the queue, and the driver has not handled it yet. */
#define TG_QUEUE_FULL 0x2
/* tg_queue_control.state: the quota is used up and senders are held back; a consumer that frees a buffer calls the driver. */
#define TG_QUEUE_HELD 0x4
/* tg_queue_control.state: the queue is broken or gone; see TG_IOCTL_QUEUE_STATE. */
#define TG_QUEUE_DEAD 0x8
/* Shift of the owner number in tg_queue_control.state. */
#define TG_QUEUE_OWNER_SHIFT 0x20
/* Bytes of the control page. */
#define TG_QUEUE_CONTROL_SIZE 0x1000

/* The control page of a queue, shared by its consumers and the driver. */
struct tg_queue_control {
	/* TG_QUEUE_* bits, and in bits 63:32 the owner number of the consumer that is BUSY, or was last. */
	__u64 state;
	/* Number of limit events: the linked buffers have reached the limit. */
	__u64 limits;
	/* Number of overflows handled. */
	__u64 overflows;
	/* Zero. */
	__u64 reserved[509];
};
_Static_assert(sizeof(struct tg_queue_control) == 4096, "tg_queue_control");

/* User interface */
/* Version of the user interface, in tg_info.abi. */
#define TG_ABI_VERSION 0x2
/* Type byte of the ioctls. The kernel's list of those in use (Documentation/userspace-api/ioctl/ioctl-number.rst) has none of this type; numbers 00 to 3f are this driver's. */
#define TG_IOCTL_TYPE 0xbd
/* First number of the ioctls of telegraphos_lab.ko, which is for comparisons only. Without it they are ENOTTY. */
#define TG_IOCTL_LAB 0x20
/* mmap kind: the context page (one page, write-only use; handle 0). */
#define TG_MMAP_CONTEXT 0x1
/* mmap kind: the status page (one page, read-only; handle 0). */
#define TG_MMAP_STATUS 0x2
/* mmap kind: an import's window. */
#define TG_MMAP_IMPORT 0x3
/* mmap kind: an export's local memory. */
#define TG_MMAP_EXPORT 0x4
/* mmap kind: an import's argument aperture, write-only (`tg_context` words); loads are refused. */
#define TG_MMAP_ARGUMENT 0x5
/* Shift of the kind in an mmap offset. */
#define TG_MMAP_KIND_SHIFT 0x30
/* Shift of the handle in an mmap offset. */
#define TG_MMAP_HANDLE_SHIFT 0x20
/* mmap kind: a queue of this file: its control page, then its arena. */
#define TG_MMAP_QUEUE 0x6
/* mmap kind: the enqueue aperture of an imported queue, write-only; a store to its first word is the enqueue. */
#define TG_MMAP_ENQUEUE 0x7
/* mmap kind: the copy of a replicated segment, read-only. */
#define TG_MMAP_REPLICA 0x8
/* mmap kind: the window on a replicated segment's own copy: stores go to all copies. */
#define TG_MMAP_REPLICA_WINDOW 0x9
/* Kind of registrations, which cannot be mapped: the process has the memory. */
#define TG_MMAP_REGISTRATION 0xa
/* A flag of TG_IOCTL_IMPORT: when the import is gone for good, stores by its windows go nowhere, and loads return anything, instead of SIGBUS. */
#define TG_IMPORT_SOFT 0x1
/* A flag of TG_IOCTL_INFO: from now on the same is true of the context page, the status page and the exports of this file, when the board is gone. */
#define TG_INFO_SOFT 0x1
/* A flag of TG_IOCTL_REGISTER, with a name: importers reach the memory only while its gate is open to their node (TG_OP_GATE), which it is not at first. */
#define TG_REGISTER_GATED 0x1
/* A flag of TG_IOCTL_EXPORT, TG_IOCTL_IMPORT and TG_IOCTL_REGISTER: what has this name belongs to the TCP connection whose descriptor is in `connection`. The name is 1 to 8 small letters, and the object is known by the ends of the connection and these. Only holders of one end export it, and only holders of the other end import it. EBADF or ENOTSOCK for the descriptor, ENOTCONN if that is not a connected socket of IPv4 in the first network namespace. */
#define TG_NAME_OF_CONNECTION 0x10
/* tg_replica.home: make the segment, with this node as its home. */
#define TG_REPLICA_HERE 0xffffffff
/* tg_import_state.state: stores wait, processes block in page faults. */
#define TG_STATE_CONGESTED 0x1
/* tg_import_state.state: a store was lost; acknowledge to continue. */
#define TG_STATE_CUT 0x2
/* tg_import_state.state: gone for good (revoked, node down or reset, device gone); import again. */
#define TG_STATE_DEAD 0x4
/* tg_import_state.state: loads and stores go to the owner's memory without the boards. */
#define TG_STATE_DIRECT 0x8
/* tg_launch.style: the kernel does everything (the baseline). */
#define TG_STYLE_PLAIN 0x0
/* tg_launch.style: Telegraphos I special mode; the kernel touches the caller's window mappings (SPEC item 19). */
#define TG_STYLE_SPECIAL 0x1

/* What the board and the driver are (TG_IOCTL_INFO). */
struct tg_info {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* ABI_VERSION. */
	__u32 abi;
	/* This node's id. */
	__u32 node;
	/* Number of nodes the window can address. */
	__u32 nodes;
	/* log2 of the import and export unit. */
	__u32 unit_shift;
	/* Window bytes per node. */
	__u64 window_size;
	/* The board's incarnation. */
	__u32 incarnation;
	/* 1 while the link to the fabric is up. */
	__u32 link_up;
	/* The context number of this file. */
	__u32 context;
	/* Number of page access counters of the board. */
	__u32 counters;
	/* The key of this file's context, 48 random bits. */
	__u64 key;
	/* Name of this node's trust group, NUL-padded; zeros if it is in none. */
	__u8 group[64];
};
_Static_assert(sizeof(struct tg_info) == 120, "tg_info");

/* Export zeroed driver-allocated memory under a name (TG_IOCTL_EXPORT). */
struct tg_export {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret that an importer must present; zeros for none. */
	__u8 secret[16];
	/* In: bytes, 1 to the window size per node. */
	__u64 length;
	/* Nodes admitted, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* TG_RIGHT_* for processes of the same uid. */
	__u16 rights_owner;
	/* TG_RIGHT_* for others. */
	__u16 rights_others;
	/* Out: handle. */
	__u32 handle;
	/* Out: mmap offset of the memory. */
	__u64 offset;
	/*
	 * Name of the trust group whose nodes access it directly, NUL-padded; zeros for none. EXDEV if this node is
	 * not in it.
	 */
	__u8 group[64];
	/* Out: 1 + the export page of its first unit, for WORD_ARM; 0 if its board watches no words of it. In: 0. */
	__u32 page;
	/* In: the descriptor of TG_NAME_OF_CONNECTION; else 0. */
	__s32 connection;
};
_Static_assert(sizeof(struct tg_export) == 216, "tg_export");

/* Import a named segment of a node (TG_IOCTL_IMPORT). Blocks, killably, until that node's HIB has answered. */
struct tg_import {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret that an importer must present; zeros for none. */
	__u8 secret[16];
	/* Node id. */
	__u32 node;
	/* TG_RIGHT_* wanted; all must be granted. */
	__u32 rights;
	/* Out: bytes. */
	__u64 length;
	/* Out: handle, the import number. */
	__u32 handle;
	/* Out: on failure with EREMOTEIO, the TG_ERR_* status. */
	__u32 status;
	/*
	 * Out: mmap offset of the window; 0 if it has none, because it is longer than the window of its node: launches
	 * name it by its number.
	 */
	__u64 offset;
	/* Out: bytes of a queue's word; 0 if it is not a queue. */
	__u32 width;
	/* In: the descriptor of TG_NAME_OF_CONNECTION; else 0. */
	__s32 connection;
};
_Static_assert(sizeof(struct tg_import) == 128, "tg_import");

/* A handle (TG_IOCTL_UNEXPORT, TG_IOCTL_UNIMPORT, TG_IOCTL_ACK). */
struct tg_handle {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* The handle. */
	__u32 handle;
};
_Static_assert(sizeof(struct tg_handle) == 12, "tg_handle");

/* State of an import (TG_IOCTL_STATE). */
struct tg_import_state {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* In: the import's handle. */
	__u32 handle;
	/* Out: TG_STATE_* bits. */
	__u32 state;
	/* Out: latched TG_ERR_* status, 0 if none. */
	__u32 status;
};
_Static_assert(sizeof(struct tg_import_state) == 20, "tg_import_state");

/*
 * Run an atomic or a copy from the kernel (TG_IOCTL_LAUNCH, of telegraphos_lab.ko). Blocks, killably, until it is
 * done.
 */
struct tg_launch {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* TG_STYLE_*. */
	__u32 style;
	/* TG_OP_* in bits 7:0, TG_LAUNCH_WIDE in bit 8. */
	__u32 operation;
	/* STYLE_PLAIN: import handle of the target of an atomic, or of the destination of a copy. */
	__u32 target;
	/* STYLE_PLAIN: import handle of the source of a copy. */
	__u32 source;
	/*
	 * STYLE_PLAIN: bytes from the start of the target's segment. STYLE_SPECIAL: address in the caller's mapping of
	 * an import.
	 */
	__u64 target_address;
	/* The same for the source of a copy. */
	__u64 source_address;
	/* Bytes to copy. */
	__u64 length;
	/* Operand of an atomic. */
	__u64 operand;
	/* Value a compare-and-swap compares with. */
	__u64 compare;
	/* Out: previous value of an atomic. */
	__u64 value;
	/* Out: on failure with EREMOTEIO, the TG_ERR_* status. */
	__u32 status;
	/* STYLE_SPECIAL: slot of the context to use, free in the caller's view. */
	__u32 slot;
};
_Static_assert(sizeof(struct tg_launch) == 80, "tg_launch");

/* Page access counters (SPEC item 22): TG_IOCTL_COUNTER_ARM, _READ and _DISARM. */
struct tg_counter {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* Import handle (ARM). */
	__u32 handle;
	/* Unit of the import, from 0 (ARM). */
	__u32 page;
	/* The counter: out of ARM, into READ and DISARM. */
	__u32 counter;
	/* ARM: eventfd signalled, once each, when reads or writes go from 1 to 0; -1 for none. */
	__s32 eventfd;
	/* ARM: reads to count down, 0 for none. READ: those left. */
	__u64 reads;
	/* ARM: writes to count down, 0 for none. READ: those left. */
	__u64 writes;
	/* READ: TG_COUNTER_* bits of the counters that went to 0 since ARM. */
	__u32 fired;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_counter) == 48, "tg_counter");

/* An eventfd to signal at each CONTEXT event of this file (TG_IOCTL_NOTIFY). */
struct tg_notify {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* The eventfd, or -1 to stop. */
	__s32 eventfd;
};
_Static_assert(sizeof(struct tg_notify) == 12, "tg_notify");

/* Sleep until there are CONTEXT events of this file (TG_IOCTL_WAIT): one call instead of poll() and read(). */
struct tg_wait {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/*
	 * Longest time to sleep in microseconds: from 20 ms on it ends with a tick of the kernel's, and after an hour
	 * at the latest.
	 */
	__u64 timeout;
	/*
	 * Out: number of events since the last call, or the last read(); 0 if the time has passed, or another waiter
	 * has got them.
	 */
	__u64 events;
};
_Static_assert(sizeof(struct tg_wait) == 24, "tg_wait");

/*
 * Make a queue under a name (TG_IOCTL_QUEUE_CREATE), or describe a queue of this file (TG_IOCTL_QUEUE_ATTACH,
 * in: `handle`; the secret is not returned).
 */
struct tg_queue {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret that an importer must present; zeros for none. */
	__u8 secret[16];
	/* Nodes admitted, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* Words of a buffer: a power of two from 8 on, at most 64 KiB in all. */
	__u32 words;
	/* Bytes of a word: 4 or 8. */
	__u32 width;
	/* Buffers that may be linked behind the first: 1 to TG_QUEUE_QUOTA_MAX. */
	__u32 quota;
	/* Number of linked buffers at which the consumers get a limit event, 1 to `quota`; 0 for none. */
	__u32 limit;
	/* TG_RIGHT_ENQUEUE or 0, for processes of the same uid. */
	__u16 rights_owner;
	/* TG_RIGHT_ENQUEUE or 0, for others. */
	__u16 rights_others;
	/* Out: handle. In for ATTACH. */
	__u32 handle;
	/* Out: export page, for QUEUE_ARM. */
	__u32 page;
	/*
	 * Out: the caller's owner number, for tg_queue_control.state. It belongs to the process until its last mapping
	 * of the queue goes, which clears a BUSY that it left.
	 */
	__u32 owner;
	/* Out: mmap offset of the control page; the arena follows at `arena` bytes behind. */
	__u64 offset;
	/* Out: bytes from the control page to the arena. */
	__u64 arena;
	/* Out: bytes of the whole mapping. */
	__u64 length;
};
_Static_assert(sizeof(struct tg_queue) == 176, "tg_queue");

/* State of a queue (TG_IOCTL_QUEUE_STATE). */
struct tg_queue_state {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* In: the queue's handle. */
	__u32 handle;
	/* Out: TG_QUEUE_* bits. */
	__u32 state;
	/* Out: why it is dead, TG_ERR_*; 0 if it is not. */
	__u32 status;
	/* Out: linked buffers. */
	__u32 linked;
	/* Out: overflows handled. */
	__u64 overflows;
	/* Out: times a consumer held BUSY too long and lost its mapping. */
	__u64 evictions;
};
_Static_assert(sizeof(struct tg_queue_state) == 40, "tg_queue_state");

/*
 * Dequeue in the kernel (TG_IOCTL_QUEUE_POP, of telegraphos_lab.ko), as the paper's PAL code did: the baseline.
 * EAGAIN if the queue is empty.
 */
struct tg_queue_pop {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* In: the queue's handle. */
	__u32 handle;
	/* Zero. */
	__u32 reserved;
	/* Out: the element. */
	__u64 value;
};
_Static_assert(sizeof(struct tg_queue_pop) == 24, "tg_queue_pop");

/* Make or join a replicated segment (TG_IOCTL_REPLICATE). Joining blocks, killably, until the copy is filled. */
struct tg_replica {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret that an importer must present; zeros for none. */
	__u8 secret[16];
	/* Nodes admitted, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* In: bytes, when it is made; out: bytes. */
	__u64 length;
	/* TG_REPLICA_HERE to make it, else the home node to join it at. */
	__u32 home;
	/* TG_REPLICA_NAIVE, _OWNER, _COUNTERS or _INVALIDATE; joiners ask for the same. */
	__u32 mode;
	/* TG_RIGHT_READ, TG_RIGHT_WRITE, TG_RIGHT_ATOMIC for processes of the same uid. */
	__u16 rights_owner;
	/* The same for others. */
	__u16 rights_others;
	/* Out: handle. */
	__u32 handle;
	/* Out: mmap offset of the copy. */
	__u64 offset;
	/* Out: mmap offset of the window on it. */
	__u64 window;
	/* Out: import number of the window, for quiet and launches. */
	__u32 import;
	/* Out: index into tg_status_page.taken. */
	__u32 taken;
	/* Out: on failure with EREMOTEIO, the TG_ERR_* status. */
	__u32 status;
	/* Out: 1 + the export page of its first unit, for WORD_ARM; 0 if its board watches no words of it. In: 0. */
	__u32 page;
};
_Static_assert(sizeof(struct tg_replica) == 176, "tg_replica");

/*
 * Register memory that the process has (TG_IOCTL_REGISTER): as source and target of copies, and, if it has a name,
 * for other nodes. It is pinned until the registration ends, and charged to RLIMIT_MEMLOCK.
 */
struct tg_register {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* Address of its first byte, of any alignment. */
	__u64 address;
	/* Bytes, 1 to 16 GiB. */
	__u64 length;
	/* Name under which it is exported, NUL-padded; zeros for none. */
	__u8 name[64];
	/* Secret that an importer must present; zeros for none. */
	__u8 secret[16];
	/* Nodes admitted if it has a name, one bit each; all ones admits every node. This node is admitted always. */
	__u64 nodes[4];
	/* TG_RIGHT_* for processes of the same uid. */
	__u16 rights_owner;
	/* TG_RIGHT_* for others. */
	__u16 rights_others;
	/* Out: handle. */
	__u32 handle;
	/* Out: number of its import at this node, for launches. */
	__u32 import;
	/* Out: number of its runs, which are adjacent for the board. */
	__u32 runs;
	/* Out, also after EFAULT: address of the first page that could not be pinned, 0 if that was not it. */
	__u64 fault;
	/* In: the descriptor of TG_NAME_OF_CONNECTION; else 0. */
	__s32 connection;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_register) == 168, "tg_register");

/* State of a registration (TG_IOCTL_REGISTRATION_STATE). */
struct tg_registration_state {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* In: its handle. */
	__u32 handle;
	/* Out: 1 if the memory is no longer there, or is another; else 0. */
	__u32 dead;
};
_Static_assert(sizeof(struct tg_registration_state) == 16, "tg_registration_state");

/* State of a replicated segment (TG_IOCTL_REPLICA_STATE). */
struct tg_replica_state {
	/* Bytes of this structure in the caller's version of it. */
	__u32 size;
	/* Flags that the ioctl has; most have none. */
	__u32 flags;
	/* In: handle. */
	__u32 handle;
	/* Out: the home node, TG_REPLICA_HERE if it is this one. */
	__u32 home;
	/* Out: 0, or why it is an orphan, TG_ERR_*. */
	__u32 status;
};
_Static_assert(sizeof(struct tg_replica_state) == 20, "tg_replica_state");

/* What the board and the driver are. */
#define TG_IOCTL_INFO _IOWR(TG_IOCTL_TYPE, 0x00, struct tg_info)
/* Export memory under a name. */
#define TG_IOCTL_EXPORT _IOWR(TG_IOCTL_TYPE, 0x01, struct tg_export)
/* Withdraw an export; returns when nothing can reach it. */
#define TG_IOCTL_UNEXPORT _IOW(TG_IOCTL_TYPE, 0x02, struct tg_handle)
/* Import a named segment. */
#define TG_IOCTL_IMPORT _IOWR(TG_IOCTL_TYPE, 0x03, struct tg_import)
/* Close an import; waits for its outstanding stores. */
#define TG_IOCTL_UNIMPORT _IOW(TG_IOCTL_TYPE, 0x04, struct tg_handle)
/* State and latched error of an import. */
#define TG_IOCTL_STATE _IOWR(TG_IOCTL_TYPE, 0x05, struct tg_import_state)
/* Acknowledge an import's latched error and lift its cut. */
#define TG_IOCTL_ACK _IOW(TG_IOCTL_TYPE, 0x06, struct tg_handle)
/* Arm access counters for a page of an import. */
#define TG_IOCTL_COUNTER_ARM _IOWR(TG_IOCTL_TYPE, 0x08, struct tg_counter)
/* Read access counters. */
#define TG_IOCTL_COUNTER_READ _IOWR(TG_IOCTL_TYPE, 0x09, struct tg_counter)
/* Disarm access counters. */
#define TG_IOCTL_COUNTER_DISARM _IOW(TG_IOCTL_TYPE, 0x0a, struct tg_counter)
/* Signal an eventfd when an armed or notifying operation is done. */
#define TG_IOCTL_NOTIFY _IOW(TG_IOCTL_TYPE, 0x0b, struct tg_notify)
/* Make a queue under a name. */
#define TG_IOCTL_QUEUE_CREATE _IOWR(TG_IOCTL_TYPE, 0x0c, struct tg_queue)
/* Describe a queue of this file, for a process that did not make it. */
#define TG_IOCTL_QUEUE_ATTACH _IOWR(TG_IOCTL_TYPE, 0x0d, struct tg_queue)
/* End a queue; its senders' imports are gone. */
#define TG_IOCTL_QUEUE_DESTROY _IOW(TG_IOCTL_TYPE, 0x0e, struct tg_handle)
/* Handle a queue's overflow if there is one; returns when TG_QUEUE_FULL is clear. */
#define TG_IOCTL_QUEUE_SERVICE _IOW(TG_IOCTL_TYPE, 0x0f, struct tg_handle)
/* State of a queue. */
#define TG_IOCTL_QUEUE_STATE _IOWR(TG_IOCTL_TYPE, 0x10, struct tg_queue_state)
/* Sleep until an armed or notifying operation is done. */
#define TG_IOCTL_WAIT _IOWR(TG_IOCTL_TYPE, 0x11, struct tg_wait)
/* Make or join a replicated segment. */
#define TG_IOCTL_REPLICATE _IOWR(TG_IOCTL_TYPE, 0x12, struct tg_replica)
/* Leave a replicated segment; the copies of a home become orphans. */
#define TG_IOCTL_REPLICA_LEAVE _IOW(TG_IOCTL_TYPE, 0x13, struct tg_handle)
/* State of a replicated segment. */
#define TG_IOCTL_REPLICA_STATE _IOWR(TG_IOCTL_TYPE, 0x14, struct tg_replica_state)
/* Become the home of an orphan: this copy is the valid one, under the same name. */
#define TG_IOCTL_REPLICA_ADOPT _IOW(TG_IOCTL_TYPE, 0x15, struct tg_handle)
/* Become the home while stores continue; the old one becomes a copy. Blocks killably. */
#define TG_IOCTL_REPLICA_MOVE _IOW(TG_IOCTL_TYPE, 0x16, struct tg_handle)
/* Register memory of the process. */
#define TG_IOCTL_REGISTER _IOWR(TG_IOCTL_TYPE, 0x17, struct tg_register)
/* End a registration; returns when nothing can reach the memory. */
#define TG_IOCTL_UNREGISTER _IOW(TG_IOCTL_TYPE, 0x18, struct tg_handle)
/* Whether the memory of a registration is still there. */
#define TG_IOCTL_REGISTRATION_STATE _IOWR(TG_IOCTL_TYPE, 0x19, struct tg_registration_state)
/* Run an atomic or a copy from the kernel (telegraphos_lab.ko). */
#define TG_IOCTL_LAUNCH _IOWR(TG_IOCTL_TYPE, 0x20, struct tg_launch)
/* Dequeue in the kernel (telegraphos_lab.ko). */
#define TG_IOCTL_QUEUE_POP _IOWR(TG_IOCTL_TYPE, 0x21, struct tg_queue_pop)

#endif /* _UAPI_TELEGRAPHOS_H */
