/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT OR Apache-2.0 */
/*
 * Telegraphos HIB: registers, admin commands, events, and the user interface.
 *
 * Generated from the wire crate; do not edit. Renew with
 *   cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h
 */
#ifndef _UAPI_TELEGRAPHOS_H
#define _UAPI_TELEGRAPHOS_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* PCI identity */
/* PCI vendor id. */
#define TG_PCI_VENDOR_ID 0x7e1e
/* PCI device id of the NIC (the HIB itself). */
#define TG_PCI_DEVICE_ID_NIC 0x1
/* PCI device id of the memory device (direct aperture). */
#define TG_PCI_DEVICE_ID_MEMORY 0x2
/* Subsystem vendor id. */
#define TG_PCI_SUBSYSTEM_VENDOR_ID 0x7e1e
/* Subsystem id. */
#define TG_PCI_SUBSYSTEM_ID 0x1
/* Revision of the register interface. */
#define TG_PCI_REVISION 0x1
/* Class code: network controller, other. */
#define TG_PCI_CLASS 0x28000

/* BAR0 registers: byte offsets; the access width is in the comment */
/* 64 bit, read: "TELEGRAF" in ASCII, little-endian. */
#define TG_REG_MAGIC 0x000
/* 32 bit, read: Version of the register interface. */
#define TG_REG_VERSION 0x008
/* 32 bit, read: Capability bits (CAP_*). */
#define TG_REG_CAPABILITIES 0x00c
/* 32 bit, read: This node's id. */
#define TG_REG_NODE 0x010
/* 32 bit, read: log2 of the number of nodes in the window. */
#define TG_REG_NODE_BITS 0x014
/* 32 bit, read: log2 of the window bytes per node. */
#define TG_REG_OFFSET_BITS 0x018
/* 32 bit, read: log2 of the import, export and context unit in bytes. */
#define TG_REG_UNIT_SHIFT 0x01c
/* 32 bit, read: Number of contexts in BAR2. */
#define TG_REG_CONTEXTS 0x020
/* 32 bit, read: Number of imports. */
#define TG_REG_IMPORTS 0x024
/* 32 bit, read: Number of export pages (grants), each of one unit. */
#define TG_REG_EXPORT_PAGES 0x028
/* 32 bit, read: Number of admin command slots. */
#define TG_REG_ADMIN_SLOTS 0x02c
/* 32 bit, read: This HIB's incarnation: bumped by reset and by every join of the fabric. */
#define TG_REG_INCARNATION 0x030
/* 32 bit, read: Status bits (STATUS_*). */
#define TG_REG_STATUS 0x034
/* 32 bit, read, write: Control bits (CONTROL_*). */
#define TG_REG_CONTROL 0x038
/* 64 bit, read: First error not tied to an import: status code in bits 15:0, BAR in 19:16, access size in 27:20. */
#define TG_REG_ERROR 0x040
/* 64 bit, read: BAR offset of that error. */
#define TG_REG_ERROR_ADDRESS 0x048
/* 64 bit, read: Number of such errors since reset. */
#define TG_REG_ERROR_COUNT 0x050
/* 32 bit, write: Any write clears ERROR and ERROR_ADDRESS. */
#define TG_REG_ERROR_ACK 0x058
/* 64 bit, read, write: DMA address of the event queue, 16-byte aligned. */
#define TG_REG_EVENT_BASE 0x060
/* 32 bit, read, write: Entries of the event queue: a power of two from 4 to 65536; 0 disables it. */
#define TG_REG_EVENT_SIZE 0x068
/* 32 bit, read, write: Number of events the driver has consumed so far (running count, modulo 2^32). */
#define TG_REG_EVENT_CONSUMER 0x06c
/* 64 bit, read, write: DMA address of the admin slots (256 bytes each), 256-byte aligned. */
#define TG_REG_ADMIN_BASE 0x070
/* 32 bit, write: Writing n executes the command in admin slot n. */
#define TG_REG_ADMIN_DOORBELL 0x078
/* 64 bit, read, write: Special mode (Telegraphos I launch, SPEC item 19): `1 << 63 | context << 8 | slot` enters it, 0 leaves it. While in it every store to and load from the plain window performs no access but passes its address as the slot's next argument (a load reads as zero), and LAUNCH of that slot leaves it. */
#define TG_REG_SPECIAL 0x080
/* 32 bit, read: Number of page access counters. */
#define TG_REG_COUNTERS 0x088
/* 32 bit, read, write: The running process's context, for the launch styles that need the operating system at each context switch (FLASH's process id register; a write also abandons SHRIMP's half-made command). Boards that check keys ignore it. */
#define TG_REG_PROCESS 0x08c
/* 64 bit, read: Remote stores accepted from this node's processors since reset. */
#define TG_REG_COUNT_STORES 0x100
/* 64 bit, read: Remote loads accepted since reset. */
#define TG_REG_COUNT_LOADS 0x108
/* 64 bit, read: Requests served for other nodes since reset. */
#define TG_REG_COUNT_SERVED 0x110
/* 64 bit, read: Requests of other nodes refused since reset. */
#define TG_REG_COUNT_REFUSED 0x118
/* 64 bit, read: Stores dropped since reset (each is reported on its import or in ERROR). */
#define TG_REG_COUNT_DROPPED 0x120
/* 64 bit, read: Times an import became congested since reset. */
#define TG_REG_COUNT_CONGESTED 0x128
/* 64 bit, read: Events posted since reset. */
#define TG_REG_COUNT_EVENTS 0x130
/* 64 bit, read: Atomics launched since reset. */
#define TG_REG_COUNT_ATOMICS 0x138
/* 64 bit, read: Copies launched since reset. */
#define TG_REG_COUNT_COPIES 0x140
/* 64 bit, read: Arguments refused for their key or context since reset. */
#define TG_REG_COUNT_BAD_KEYS 0x148
/* 64 bit, read: Enqueue requests accepted from this node's processors since reset. */
#define TG_REG_COUNT_ENQUEUES 0x150
/* 64 bit, read: Elements committed to this node's queues since reset. */
#define TG_REG_COUNT_ELEMENTS 0x158
/* 64 bit, read: Overflows of this node's queues since reset. */
#define TG_REG_COUNT_OVERFLOWS 0x160
/* 64 bit, read: Stores sent to copies of replicated pages whose home this node is, counted once for each copy, since reset. */
#define TG_REG_COUNT_REFLECTED 0x168
/* 64 bit, read: Times a store waited for a pending-write counter since reset. */
#define TG_REG_COUNT_COUNTER_STALLS 0x170

/* BAR0 constants */
/* Value of the MAGIC register. */
#define TG_MAGIC 0x46415247454c4554ULL
/* Value of the VERSION register. */
#define TG_VERSION 0x2
/* Size of BAR0 in bytes. */
#define TG_BAR0_SIZE 0x4000
/* Offset of the MSI-X table in BAR0, where MSI-X is configured. */
#define TG_MSIX_TABLE 0x2000
/* Offset of the MSI-X pending bits in BAR0. */
#define TG_MSIX_PBA 0x3000
/* CAPABILITIES: the board uses MSI-X instead of MSI. */
#define TG_CAP_MSIX 0x1
/* STATUS: the link to the fabric is up. */
#define TG_STATUS_LINK_UP 0x1
/* STATUS: some import or context is congested. */
#define TG_STATUS_CONGESTED 0x2
/* STATUS: ERROR holds an error. */
#define TG_STATUS_ERROR 0x4
/* SPECIAL: enter (or in) special mode. */
#define TG_SPECIAL_ENTER 0x8000000000000000ULL
/* CONTROL: interrupts are enabled. */
#define TG_CONTROL_IRQ_ENABLE 0x1
/* CONTROL: writing it resets the board, as at power-on: nothing is granted any more. It reads as set until no access to guest memory is in flight. For a driver that takes over from one that crashed, before it switches bus mastering on. */
#define TG_CONTROL_RESET 0x2

/* Units */
/* log2 of the import and export unit */
#define TG_UNIT_SHIFT 0x10

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

/* Admin commands */
/* Open `context` with the status page at DMA address `address` (4 KiB, zeroed by the driver) and `key`. */
#define TG_ADMIN_CONTEXT_OPEN 0x1
/* Close `context`; TG_ERR_BUSY while one of its imports is open. */
#define TG_ADMIN_CONTEXT_CLOSE 0x2
/* Grant `count` export pages from `index`: DMA address `address` (contiguous), `length` valid bytes, `rights`, `nodes`. `generation` 0 asks for a new generation, else it continues the one held by page `index` - 1. Completes with the generation. */
#define TG_ADMIN_GRANT_SET 0x3
/* Revoke `count` export pages from `index`. Completes when no access to them is in flight. */
#define TG_ADMIN_GRANT_CLEAR 0x4
/* Publish export pages `index`..`index` + `count` (`length` bytes, `generation`) under `name` with `rights_owner`, `rights_others`, `uid` and `secret`. */
#define TG_ADMIN_SEGMENT_PUBLISH 0x5
/* Withdraw `name`. Its grants stay until GRANT_CLEAR. */
#define TG_ADMIN_SEGMENT_WITHDRAW 0x6
/* Ask `node` for `name` (`secret`, `uid`, wanted `rights`). Completes with index, count, length, generation, rights and, for a queue, width. */
#define TG_ADMIN_LOOKUP 0x7
/* Open `import` of `context`: window slots `index`..`index` + `count` of `node` reach export pages `page`.. of `generation`, `length` bytes, with `rights`. With TG_RIGHT_ENQUEUE, which excludes the others, it first reserves hold slots at that node. */
#define TG_ADMIN_IMPORT_SET 0x8
/* Close `import`: its slots are unmapped at once; completes when nothing of it is outstanding and the count of its stores taken is in memory. */
#define TG_ADMIN_IMPORT_CLEAR 0x9
/* Acknowledge the latched error of `import` and lift its cut. */
#define TG_ADMIN_IMPORT_ACK 0xa
/* A whole operation from the kernel (struct tg_admin_launch). Completes when it is done; an atomic's previous value is in `length`. */
#define TG_ADMIN_LAUNCH 0xb
/* Arm page access counter `index` for export page `page` of `node` (struct tg_admin_counter); both at 0 disarm it. */
#define TG_ADMIN_COUNTER_SET 0xc
/* Read counter `index`: completes with the reads left in `generation`, the writes left in `length`. */
#define TG_ADMIN_COUNTER_GET 0xd
/* Make export page `page` a queue (struct tg_admin_queue), empty: words 0 and 1 of its buffer hold size and 3. Completes with the generation. It is published by SEGMENT_PUBLISH with TG_RIGHT_ENQUEUE and revoked by GRANT_CLEAR, which refuses the elements held. */
#define TG_ADMIN_QUEUE_SET 0xe
/* The overflow of the queue at export page `index` has been handled: the committed words are elsewhere and head is 3. The board puts the pending element at 3 and goes on. TG_ERR_INVALID if the queue is not stopped. */
#define TG_ADMIN_QUEUE_RESUME 0xf
/* Make granted export page `page` a replicated page (struct tg_admin_replica): the home if `node` is this node, else a copy of that node's `home_page`; a page that is one already is changed. Completes when the copy is filled. */
#define TG_ADMIN_REPLICA_SET 0x10
/* Export page `index` is replicated no more: a copy leaves its home once its own stores are acknowledged; the copies of a home are orphaned. */
#define TG_ADMIN_REPLICA_CLEAR 0x11
/* Make this node the home of its copy, export page `index`. Completes when it is; the home until now is a copy then. TG_ERR_NOT_HOME if the page is no filled copy of a living home. */
#define TG_ADMIN_REPLICA_MOVE 0x12
/* No processor of this node has export page `index`, an invalid copy, mapped any more: the store that made it invalid may complete. Another REPLICA_SET makes the copy valid again. */
#define TG_ADMIN_REPLICA_INVALID 0x13

/* Admin slots */
/* Number of slots */
#define TG_ADMIN_SLOTS 0x400
/* Bytes per slot */
#define TG_ADMIN_BLOCK_SIZE 0x100
/* Offset of the completion in a slot */
#define TG_ADMIN_COMPLETION 0xc0

/* An admin command; the fields an opcode does not name must be zero. */
struct tg_admin_command {
	/* TG_ADMIN_*. */
	__u32 opcode;
	/* Returned in the completion; never 0, and different from the slot's previous one. */
	__u32 seq;
	/* Node id. */
	__u16 node;
	/* Context number. */
	__u16 context;
	/* Import number. */
	__u16 import;
	/* TG_RIGHT_* bits. */
	__u16 rights;
	/* Rights offered to processes of the owner's uid. */
	__u16 rights_owner;
	/* Rights offered to other processes. */
	__u16 rights_others;
	/* User id: the exporter's, or the caller's in a lookup. */
	__u32 uid;
	/* First window slot or first export page. */
	__u32 index;
	/* Number of units. */
	__u32 count;
	/* First export page at the remote node. */
	__u32 page;
	/* Of an import of this node's own replicated pages: 1 + the word of the status page that counts its stores taken; 0 for none. */
	__u32 taken;
	/* Grant generation. */
	__u64 generation;
	/* DMA address. */
	__u64 address;
	/* Bytes. */
	__u64 length;
	/* Nodes a grant admits, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* Segment secret; zeros for none. */
	__u8 secret[16];
	/* Segment name, NUL-padded. */
	__u8 name[64];
	/* The context's key, 48 random bits. */
	__u64 key;
	/* Zero. */
	__u64 reserved2;
};
_Static_assert(sizeof(struct tg_admin_command) == 192, "tg_admin_command");

/* The command of TG_ADMIN_LAUNCH, in place of struct tg_admin_command. */
struct tg_admin_launch {
	/* TG_ADMIN_LAUNCH. */
	__u32 opcode;
	/* As in every command. */
	__u32 seq;
	/* The context whose imports these are. */
	__u16 context;
	/* Import of the target of an atomic or the destination of a copy. */
	__u16 target;
	/* Import of the source of a copy. */
	__u16 source;
	/* TG_OP_* in bits 7:0, TG_LAUNCH_WIDE in bit 8. */
	__u16 operation;
	/* Bytes from the start of the target's segment. */
	__u64 target_offset;
	/* Bytes from the start of the source's segment. */
	__u64 source_offset;
	/* Bytes to copy. */
	__u64 length;
	/* Operand of an atomic. */
	__u64 operand;
	/* Value a compare-and-swap compares with. */
	__u64 compare;
	/* Zero. */
	__u64 reserved[17];
};
_Static_assert(sizeof(struct tg_admin_launch) == 192, "tg_admin_launch");

/* The command of TG_ADMIN_COUNTER_SET and TG_ADMIN_COUNTER_GET, in place of struct tg_admin_command. */
struct tg_admin_counter {
	/* TG_ADMIN_COUNTER_SET or TG_ADMIN_COUNTER_GET. */
	__u32 opcode;
	/* As in every command. */
	__u32 seq;
	/* The counter. */
	__u32 index;
	/* The node of the page. */
	__u32 node;
	/* Export page of that node. */
	__u32 page;
	/* Zero. */
	__u32 reserved;
	/* Reads to count down; 0 counts none. */
	__u64 reads;
	/* Writes, atomics included, to count down; 0 counts none. */
	__u64 writes;
	/* Zero. */
	__u64 reserved2[19];
};
_Static_assert(sizeof(struct tg_admin_counter) == 192, "tg_admin_counter");

/* The command of TG_ADMIN_QUEUE_SET, in place of struct tg_admin_command. */
struct tg_admin_queue {
	/* TG_ADMIN_QUEUE_SET. */
	__u32 opcode;
	/* As in every command. */
	__u32 seq;
	/* Export page. */
	__u32 page;
	/* Words of a buffer. */
	__u32 words;
	/* Bytes of a word: 4 or 8. */
	__u32 width;
	/* The context that may arm it. */
	__u32 context;
	/* DMA address of its first buffer, aligned to the buffer's size. */
	__u64 address;
	/* Nodes admitted, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* Zero. */
	__u64 reserved[16];
};
_Static_assert(sizeof(struct tg_admin_queue) == 192, "tg_admin_queue");

/* Modes of replicated pages */
/* Stores are applied where they are made and sent to all copies by their writer; copies diverge when stores meet (SPEC item 24). */
#define TG_REPLICA_NAIVE 0x1
/* Stores go through the home, which multicasts them; a copy applies everything that comes back, so a program may see its own older store again. */
#define TG_REPLICA_OWNER 0x2
/* The same, with counters of pending writes (SPEC item 25): nobody sees values out of order. */
#define TG_REPLICA_COUNTERS 0x3
/* Stores go to the home alone; those copies that are valid become invalid, and are filled again when a processor reads them (SPEC item 28). */
#define TG_REPLICA_INVALIDATE 0x4

/* The command of TG_ADMIN_REPLICA_SET, in place of struct tg_admin_command. */
struct tg_admin_replica {
	/* TG_ADMIN_REPLICA_SET. */
	__u32 opcode;
	/* As in every command. */
	__u32 seq;
	/* Export page of this node. */
	__u32 page;
	/* TG_REPLICA_*: the mode. */
	__u32 mode;
	/* Home node. */
	__u32 node;
	/* Export page there. */
	__u32 home_page;
	/* Generation of its grant there. */
	__u64 home_generation;
	/* Zero. */
	__u64 reserved[20];
};
_Static_assert(sizeof(struct tg_admin_replica) == 192, "tg_admin_replica");

/* The completion of an admin command. `{seq, status}` is one 8-byte word, written last with release ordering. */
struct tg_admin_completion {
	/* The command's `seq`. */
	__u32 seq;
	/* TG_OK or TG_ERR_*. */
	__u32 status;
	/* First export page. */
	__u32 index;
	/* Number of units. */
	__u32 count;
	/* Grant generation. */
	__u64 generation;
	/* Bytes. */
	__u64 length;
	/* TG_RIGHT_* bits granted. */
	__u32 rights;
	/* Bytes of a queue's word; 0 if it is not a queue. */
	__u32 width;
	/* Zero. */
	__u64 reserved2[3];
};
_Static_assert(sizeof(struct tg_admin_completion) == 64, "tg_admin_completion");

/* Events */
/* Admin slot `index` has completed. */
#define TG_EVENT_ADMIN_DONE 0x1
/* State of import `index` changed; value = TG_IMPORT_* bits, status code in bits 31:16. */
#define TG_EVENT_IMPORT_STATE 0x2
/* Node `index` came or went; value = its incarnation, 0 = down. */
#define TG_EVENT_NODE_STATE 0x3
/* The link to the fabric changed; value = 1 up, 0 down. */
#define TG_EVENT_LINK_STATE 0x4
/* ERROR holds a new error; value = the ERROR register. */
#define TG_EVENT_ERROR 0x5
/* Context `index`: an armed or notifying operation is done. */
#define TG_EVENT_CONTEXT 0x6
/* Page access counter `index` went from 1 to 0; value = TG_COUNTER_READS or TG_COUNTER_WRITES or both. */
#define TG_EVENT_COUNTER 0x7
/* A queue needs its driver; value = `export page << 32 | status << 16 | TG_QUEUE_EVENT_* bits`. */
#define TG_EVENT_QUEUE 0x8
/* A replicated page has changed its state; `index` = its home, value = `export page << 32 | status << 16 | TG_REPLICA_EVENT_* bits`. */
#define TG_EVENT_REPLICA 0x9
/* State of context `index` changed; value = TG_CONTEXT_CONGESTED or 0. */
#define TG_EVENT_CONTEXT_STATE 0xa

/* IMPORT_STATE bits */
/* Stores wait */
#define TG_IMPORT_CONGESTED 0x1
/* A store was lost */
#define TG_IMPORT_CUT 0x2

/* CONTEXT_STATE bits */
/* Its stores or launches wait */
#define TG_CONTEXT_CONGESTED 0x1

/* COUNTER bits */
/* The reads counter went to 0 */
#define TG_COUNTER_READS 0x1
/* The writes counter went to 0 */
#define TG_COUNTER_WRITES 0x2

/* REPLICA event bits */
/* Its home has gone or does not serve it any more */
#define TG_REPLICA_EVENT_ORPHANED 0x1
/* It has had another home; the index is the present one */
#define TG_REPLICA_EVENT_MOVED 0x2
/* The copy is not valid any more: unmap it, then REPLICA_INVALID */
#define TG_REPLICA_EVENT_INVALID 0x4

/* QUEUE event bits */
/* The board holds the pending element until QUEUE_RESUME */
#define TG_QUEUE_EVENT_OVERFLOW 0x1
/* The header was not sound; every enqueue is refused */
#define TG_QUEUE_EVENT_BROKEN 0x2

/* One event queue entry. */
struct tg_event {
	/* Depends on `kind`. */
	__u64 value;
	/* TG_EVENT_*. */
	__u16 kind;
	/* What it happened to. */
	__u16 index;
	/* Running count from 1. */
	__u32 seq;
};
_Static_assert(sizeof(struct tg_event) == 16, "tg_event");

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
/* Offset of QUEUE_ARM: `export page << 32 | word 0 of the queue's first buffer as the consumer saw it`. */
#define TG_CONTEXT_QUEUE_ARM 0xc00
/* Offset of FETCH of slot 0: a load from it performs the slot's atomic and returns its result. That of slot k is 8 * k further. */
#define TG_CONTEXT_FETCH 0xe00
/* Size of the status page in bytes. */
#define TG_CONTEXT_STATUS_SIZE 0x1000

/* Operations */
/* Fetch-and-store of the word at argument 0. */
#define TG_OP_SWAP 0x1
/* Fetch-and-add to the word at argument 0. */
#define TG_OP_ADD 0x2
/* Compare-and-swap of the word at argument 0. */
#define TG_OP_COMPARE_SWAP 0x3
/* Copy LENGTH bytes to argument 0 from argument 1; at least one of them is on this node (put, get, remote copy). */
#define TG_OP_COPY 0x4

/* Launch flags */
/* Atomics: the word has 8 bytes, else 4. */
#define TG_LAUNCH_WIDE 0x1
/* Post a CONTEXT event when it is done. */
#define TG_LAUNCH_NOTIFY 0x2

/* The status page: written by the HIB, one 8-byte word at a time with release ordering, read by the process. */
struct tg_status_page {
	/* Last completion of each slot: `status << 48 | cookie`. */
	__u64 done[64];
	/* Number of errors latched on imports of this context. */
	__u64 errors;
	/* Zero. */
	__u64 reserved[63];
	/* Previous value of the word of each slot's last atomic; written before `done`. */
	__u64 value[64];
	/* Per import of replicated pages (tg_admin_command.taken): stores of it that are in this node's copy. */
	__u64 taken[256];
	/* Zero. */
	__u64 reserved2[64];
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
/* tg_queue_control.state: the quota is used up and senders are held back; whoever frees a buffer calls the driver. */
#define TG_QUEUE_HELD 0x4
/* tg_queue_control.state: the queue is broken or gone; see TG_IOCTL_QUEUE_STATE. */
#define TG_QUEUE_DEAD 0x8
/* Shift of the owner number in tg_queue_control.state. */
#define TG_QUEUE_OWNER_SHIFT 0x20
/* Bytes of the control page. */
#define TG_QUEUE_CONTROL_SIZE 0x1000

/* The control page of a queue, shared by its consumers and the driver. */
struct tg_queue_control {
	/* TG_QUEUE_* bits, and the owner number of who is BUSY in bits 63:32. */
	__u64 state;
	/* Counts limit events: how often the linked buffers came to the limit. */
	__u64 limits;
	/* Counts overflows handled. */
	__u64 overflows;
	/* Zero. */
	__u64 reserved[509];
};
_Static_assert(sizeof(struct tg_queue_control) == 4096, "tg_queue_control");

/* User interface */
/* Version of the user interface, in tg_info.abi. */
#define TG_ABI_VERSION 0x1
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
/* tg_replica.home: make the segment, with this node as its home. */
#define TG_REPLICA_HERE 0xffffffff
/* tg_import_state.state: stores wait, processes block in page faults. */
#define TG_STATE_CONGESTED 0x1
/* tg_import_state.state: a store was lost; acknowledge to go on. */
#define TG_STATE_CUT 0x2
/* tg_import_state.state: gone for good (revoked, node down or reset, device gone); import again. */
#define TG_STATE_DEAD 0x4
/* tg_launch.style: the kernel does everything (the yardstick). */
#define TG_STYLE_PLAIN 0x0
/* tg_launch.style: Telegraphos I special mode; the kernel touches the caller's window mappings (SPEC item 19). */
#define TG_STYLE_SPECIAL 0x1

/* What the board and the driver are (TG_IOCTL_INFO). */
struct tg_info {
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
	/* Zero. */
	__u32 reserved[4];
};
_Static_assert(sizeof(struct tg_info) == 64, "tg_info");

/* Export zeroed driver-allocated memory under a name (TG_IOCTL_EXPORT). */
struct tg_export {
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret an importer must present; zeros for none. */
	__u8 secret[16];
	/* In: bytes, 1 to the window size per node. */
	__u64 size;
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
};
_Static_assert(sizeof(struct tg_export) == 136, "tg_export");

/* Import a named segment of a node (TG_IOCTL_IMPORT). Blocks, killably, until that node's HIB has answered. */
struct tg_import {
	/* Name, NUL-padded. */
	__u8 name[64];
	/* Secret. */
	__u8 secret[16];
	/* Node id. */
	__u32 node;
	/* TG_RIGHT_* wanted; all must be granted. */
	__u16 rights;
	/* Zero. */
	__u16 reserved;
	/* Out: bytes. */
	__u64 size;
	/* Out: handle, the import number. */
	__u32 handle;
	/* Out: on failure with EREMOTEIO, the TG_ERR_* status. */
	__u32 status;
	/* Out: mmap offset of the window. */
	__u64 offset;
	/* Out: bytes of a queue's word; 0 if it is not a queue. */
	__u32 width;
	/* Zero. */
	__u32 reserved2;
};
_Static_assert(sizeof(struct tg_import) == 120, "tg_import");

/* A handle (TG_IOCTL_UNEXPORT, TG_IOCTL_UNIMPORT, TG_IOCTL_ACK). */
struct tg_handle {
	/* The handle. */
	__u32 handle;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_handle) == 8, "tg_handle");

/* State of an import (TG_IOCTL_STATE). */
struct tg_import_state {
	/* In: the import's handle. */
	__u32 handle;
	/* Out: TG_STATE_* bits. */
	__u32 state;
	/* Out: latched TG_ERR_* status, 0 if none. */
	__u32 status;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_import_state) == 16, "tg_import_state");

/* Run an atomic or a copy from the kernel (TG_IOCTL_LAUNCH). Blocks, killably, until it is done. */
struct tg_launch {
	/* TG_STYLE_*. */
	__u32 style;
	/* TG_OP_* in bits 7:0, TG_LAUNCH_WIDE in bit 8. */
	__u32 operation;
	/* STYLE_PLAIN: import handle of the target of an atomic, or of the destination of a copy. */
	__u32 target;
	/* STYLE_PLAIN: import handle of the source of a copy. */
	__u32 source;
	/* STYLE_PLAIN: bytes from the start of the target's segment. STYLE_SPECIAL: address in the caller's mapping of an import. */
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
_Static_assert(sizeof(struct tg_launch) == 72, "tg_launch");

/* Page access counters (SPEC item 22): TG_IOCTL_COUNTER_ARM, _READ and _DISARM. */
struct tg_counter {
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
	/* READ: TG_COUNTER_* bits that have gone off since ARM. */
	__u32 fired;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_counter) == 40, "tg_counter");

/* An eventfd to signal at each CONTEXT event of this file (TG_IOCTL_NOTIFY). */
struct tg_notify {
	/* The eventfd, or -1 to stop. */
	__s32 eventfd;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_notify) == 8, "tg_notify");

/* Make a queue under a name (TG_IOCTL_QUEUE_CREATE), or say what a queue of this file is (TG_IOCTL_QUEUE_ATTACH, in: `handle`). */
struct tg_queue {
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret an importer must present; zeros for none. Never returned. */
	__u8 secret[16];
	/* Nodes admitted, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* Words of a buffer: a power of two from 8 on, at most 64 KiB in all. */
	__u32 words;
	/* Bytes of a word: 4 or 8. */
	__u32 width;
	/* Buffers that may be linked behind the first: 1 to TG_QUEUE_QUOTA_MAX. */
	__u32 quota;
	/* Linked buffers at which the consumers are told (a limit event), 1 to `quota`; 0 for none. */
	__u32 limit;
	/* TG_RIGHT_ENQUEUE or 0, for processes of the same uid. */
	__u16 rights_owner;
	/* TG_RIGHT_ENQUEUE or 0, for others. */
	__u16 rights_others;
	/* Out: handle. In for ATTACH. */
	__u32 handle;
	/* Out: export page, for QUEUE_ARM. */
	__u32 page;
	/* Out: the caller's owner number, for tg_queue_control.state. It is the process's until its last mapping of the queue goes, which clears a BUSY that it left. */
	__u32 owner;
	/* Out: mmap offset of the control page; the arena follows at `arena` bytes behind. */
	__u64 offset;
	/* Out: bytes from the control page to the arena. */
	__u64 arena;
	/* Out: bytes of the whole mapping. */
	__u64 size;
};
_Static_assert(sizeof(struct tg_queue) == 168, "tg_queue");

/* State of a queue (TG_IOCTL_QUEUE_STATE). */
struct tg_queue_state {
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
_Static_assert(sizeof(struct tg_queue_state) == 32, "tg_queue_state");

/* Dequeue in the kernel (TG_IOCTL_QUEUE_POP), as the paper's PAL code did: the yardstick. EAGAIN if the queue is empty. */
struct tg_queue_pop {
	/* In: the queue's handle. */
	__u32 handle;
	/* Zero. */
	__u32 reserved;
	/* Out: the element. */
	__u64 value;
};
_Static_assert(sizeof(struct tg_queue_pop) == 16, "tg_queue_pop");

/* Make or join a replicated segment (TG_IOCTL_REPLICATE). Joining blocks, killably, until the copy is filled. */
struct tg_replica {
	/* Name, NUL-padded, 1 to 63 bytes. */
	__u8 name[64];
	/* Secret a joiner must present; zeros for none. */
	__u8 secret[16];
	/* Nodes admitted, one bit each; all ones admits every node. */
	__u64 nodes[4];
	/* In: bytes, when it is made; out: bytes. */
	__u64 size;
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
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_replica) == 168, "tg_replica");

/* State of a replicated segment (TG_IOCTL_REPLICA_STATE). */
struct tg_replica_state {
	/* In: handle. */
	__u32 handle;
	/* Out: the home node, TG_REPLICA_HERE if it is this one. */
	__u32 home;
	/* Out: 0, or why it is an orphan, TG_ERR_*. */
	__u32 status;
	/* Zero. */
	__u32 reserved;
};
_Static_assert(sizeof(struct tg_replica_state) == 16, "tg_replica_state");

/* What the board and the driver are. */
#define TG_IOCTL_INFO _IOWR('T', 0, struct tg_info)
/* Export memory under a name. */
#define TG_IOCTL_EXPORT _IOWR('T', 1, struct tg_export)
/* Withdraw an export; returns when nothing can reach it. */
#define TG_IOCTL_UNEXPORT _IOWR('T', 2, struct tg_handle)
/* Import a named segment. */
#define TG_IOCTL_IMPORT _IOWR('T', 3, struct tg_import)
/* Close an import; waits for its outstanding stores. */
#define TG_IOCTL_UNIMPORT _IOWR('T', 4, struct tg_handle)
/* State and latched error of an import. */
#define TG_IOCTL_STATE _IOWR('T', 5, struct tg_import_state)
/* Acknowledge an import's latched error and lift its cut. */
#define TG_IOCTL_ACK _IOWR('T', 6, struct tg_handle)
/* Run an atomic or a copy from the kernel. */
#define TG_IOCTL_LAUNCH _IOWR('T', 7, struct tg_launch)
/* Arm access counters for a page of an import. */
#define TG_IOCTL_COUNTER_ARM _IOWR('T', 8, struct tg_counter)
/* Read access counters. */
#define TG_IOCTL_COUNTER_READ _IOWR('T', 9, struct tg_counter)
/* Disarm access counters. */
#define TG_IOCTL_COUNTER_DISARM _IOWR('T', 10, struct tg_counter)
/* Signal an eventfd when an armed or notifying operation is done. */
#define TG_IOCTL_NOTIFY _IOWR('T', 11, struct tg_notify)
/* Make a queue under a name. */
#define TG_IOCTL_QUEUE_CREATE _IOWR('T', 12, struct tg_queue)
/* What a queue of this file is, for a process that did not make it. */
#define TG_IOCTL_QUEUE_ATTACH _IOWR('T', 13, struct tg_queue)
/* End a queue; its senders' imports are gone. */
#define TG_IOCTL_QUEUE_DESTROY _IOWR('T', 14, struct tg_handle)
/* Handle a queue's overflow if there is one; returns when TG_QUEUE_FULL is clear. */
#define TG_IOCTL_QUEUE_SERVICE _IOWR('T', 15, struct tg_handle)
/* State of a queue. */
#define TG_IOCTL_QUEUE_STATE _IOWR('T', 16, struct tg_queue_state)
/* Dequeue in the kernel. */
#define TG_IOCTL_QUEUE_POP _IOWR('T', 17, struct tg_queue_pop)
/* Make or join a replicated segment. */
#define TG_IOCTL_REPLICATE _IOWR('T', 18, struct tg_replica)
/* Leave a replicated segment; the copies of a home become orphans. */
#define TG_IOCTL_REPLICA_LEAVE _IOWR('T', 19, struct tg_handle)
/* State of a replicated segment. */
#define TG_IOCTL_REPLICA_STATE _IOWR('T', 20, struct tg_replica_state)
/* Become the home of an orphan: this copy is the truth, under the same name. */
#define TG_IOCTL_REPLICA_ADOPT _IOWR('T', 21, struct tg_handle)
/* Become the home, while stores go on; the home until now is a copy then. Blocks, killably. */
#define TG_IOCTL_REPLICA_MOVE _IOWR('T', 22, struct tg_handle)

#endif /* _UAPI_TELEGRAPHOS_H */
