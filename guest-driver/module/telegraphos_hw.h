/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Telegraphos HIB: the interface between the driver and the board: registers, admin
 * commands and events. Private to the driver; the register TG_REG_VERSION has its version.
 * Everything in memory is little-endian. Behind it, names and places that the driver has in
 * common with programs and with other nodes' drivers.
 *
 * Generated from the wire crate; do not edit. Renew with
 *   cargo run -p telegraphos-wire --example hw_header > guest-driver/module/telegraphos_hw.h
 */
#ifndef TELEGRAPHOS_HW_H
#define TELEGRAPHOS_HW_H

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
/* Class code of the memory device: memory controller, RAM. */
#define TG_PCI_CLASS_MEMORY 0x50000

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
/* 64 bit, read, write: DMA address, 4-byte aligned, of the word in which the driver counts the events it has consumed, instead of in EVENT_CONSUMER; 0 for none. Written while the event queue is disabled. The driver stores the word, then looks for further events, with a full barrier between. A write to EVENT_CONSUMER only announces room: the driver writes it whenever it has consumed half a ring since it wrote it last. */
#define TG_REG_EVENT_INDEX 0x090
/* 64 bit, read: The number that the register PAIR of this board's memory device has; 0 if it has none. */
#define TG_REG_DIRECT_PAIR 0x098
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
/* 64 bit, read: Stores sent to copies of replicated pages with their home at this node, counted once for each copy, since reset. */
#define TG_REG_COUNT_REFLECTED 0x168
/* 64 bit, read: Times a store waited for a pending-write counter since reset. */
#define TG_REG_COUNT_COUNTER_STALLS 0x170

/* BARs */
/* Registers, for the kernel only. */
#define TG_BAR_REGISTERS 0x0
/* A unit for each context. */
#define TG_BAR_CONTEXTS 0x2
/* The memory window. */
#define TG_BAR_WINDOW 0x4

/* BAR0 constants */
/* Value of the MAGIC register. */
#define TG_MAGIC 0x46415247454c4554ULL
/* Value of the VERSION register. */
#define TG_VERSION 0x5
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
/* CONTROL: writing it resets the board, as at power-on: nothing is granted any more. It reads as set until no access to guest memory is in flight. A driver that takes over from a crashed one writes it before it enables bus mastering. */
#define TG_CONTROL_RESET 0x2

/* Apertures of the window: the quarters of its BAR */
/* Loads and stores of remote memory. */
#define TG_APERTURE_PLAIN 0x0
/* Stores pass their address to a context. */
#define TG_APERTURE_ARGUMENT 0x1
/* Stores are enqueued. */
#define TG_APERTURE_ENQUEUE 0x2

/* Units */
/* log2 of the import and export unit */
#define TG_UNIT_SHIFT 0x10

/* Admin commands */
/* Open `context` with the status page at DMA address `address` (4 KiB, zeroed by the driver) and `key`. */
#define TG_ADMIN_CONTEXT_OPEN 0x1
/* Close `context`; TG_ERR_BUSY while one of its imports is open. */
#define TG_ADMIN_CONTEXT_CLOSE 0x2
/* Grant `count` export pages from `index`: DMA address `address` (contiguous), `length` valid bytes, `rights`, `nodes`; `context` may watch them (WORD_ARM). `generation` 0 requests a new generation, else it continues that of page `index` - 1. Completes with the generation. */
#define TG_ADMIN_GRANT_SET 0x3
/* Revoke `count` export pages from `index`. Completes when no access to them is in flight. */
#define TG_ADMIN_GRANT_CLEAR 0x4
/* Publish export pages `index`..`index` + `count` (`length` bytes, `generation`) under `name` with `rights_owner`, `rights_others`, `uid` and `secret`. */
#define TG_ADMIN_SEGMENT_PUBLISH 0x5
/* Withdraw `name`. Its grants stay until GRANT_CLEAR. */
#define TG_ADMIN_SEGMENT_WITHDRAW 0x6
/* Look up `name` at `node` (`secret`, `uid`, wanted `rights`). Completes with index, count, length, generation, rights and, for a queue, width. */
#define TG_ADMIN_LOOKUP 0x7
/* Open `import` of `context`: window slots `index`..`index` + `count` of `node` reach export pages `page`.. of `generation`, `length` bytes, with `rights`. With TG_RIGHT_ENQUEUE, which excludes the others, it first reserves receive credits at that node. With `count` 0 it has no window: launches name it by its number (TG_CONTEXT_ARGUMENT), whatever its length. */
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
/* The overflow of the queue at export page `index` has been handled: the committed words are elsewhere and head is 3. The board puts the pending element at 3 and continues. TG_ERR_INVALID if the queue is not stopped. */
#define TG_ADMIN_QUEUE_RESUME 0xf
/* Make granted export page `page` a replicated page (struct tg_admin_replica): the home if `node` is this node, else a copy of that node's `home_page`; a page that is replicated already is changed. Completes when the copy is filled. */
#define TG_ADMIN_REPLICA_SET 0x10
/* End the replication of export page `index`: a copy leaves its home once its own stores are acknowledged; the copies of a home are orphaned. */
#define TG_ADMIN_REPLICA_CLEAR 0x11
/* Make this node the home of its copy, export page `index`. Completes when it is; the old home is a copy then. TG_ERR_NOT_HOME if the page is no filled copy of a present home. */
#define TG_ADMIN_REPLICA_MOVE 0x12
/* Acknowledge that no processor of this node has export page `index`, an invalid copy, mapped any more: the store that made it invalid may complete. Another REPLICA_SET makes the copy valid again. */
#define TG_ADMIN_REPLICA_INVALID 0x13
/* Import quiet: completes when no store or operation of an import is unfinished. In: import. What is begun meanwhile is waited for, too: the driver has taken the import's pages away. */
#define TG_ADMIN_IMPORT_QUIET 0x14
/* Grant a range (TG_RANGE_*), whose first export page is `index`: the next `count` runs of its `page` in all, in a list of struct tg_range_run at DMA address `address`, `rights`, `nodes`, `context`. `generation` 0 begins it, else it continues the range of that generation. Completes with the generation when the list is read; what its runs cover can be accessed then. TG_ERR_NO_SPACE: the context's runs, or the board's, are used up. GRANT_CLEAR with its first page revokes all of it. */
#define TG_ADMIN_GRANT_RANGE 0x15
/* The same behind a gate (TG_OP_GATE), which is closed at first. The generation that it completes with is for imports of this node by its context alone. Imports by a name get the next one, with which an access is performed only while the gate is open to its node. */
#define TG_ADMIN_GRANT_GATED 0x16

/* Admin slots */
/* Number of slots: enough that each context has one of its own for each class of commands that wait for another node, so that no process's commands wait for another's. */
#define TG_ADMIN_SLOTS 0x400
/* Bytes per slot: the command, then the completion. */
#define TG_ADMIN_BLOCK_SIZE 0x100
/* Offset of the completion in a slot. */
#define TG_ADMIN_COMPLETION 0xc0

/* An admin command; the fields an opcode does not name must be zero. */
struct tg_admin_command {
	/* TG_ADMIN_*. */
	__le32 opcode;
	/* Returned in the completion; never 0, and different from the slot's previous one. */
	__le32 seq;
	/* Node id. */
	__le16 node;
	/* Context number. */
	__le16 context;
	/* Import number. */
	__le16 import;
	/* TG_RIGHT_* bits. */
	__le16 rights;
	/* Rights offered to processes of the owner's uid. */
	__le16 rights_owner;
	/* Rights offered to other processes. */
	__le16 rights_others;
	/* User id: the exporter's, or the caller's in a lookup. */
	__le32 uid;
	/* First window slot or first export page. */
	__le32 index;
	/* Number of units. */
	__le32 count;
	/* First export page at the remote node. */
	__le32 page;
	/*
	 * Of an import of this node's own replicated pages: 1 + the word of the status page that counts its stores
	 * taken; 0 for none.
	 */
	__le32 taken;
	/* Grant generation. */
	__le64 generation;
	/* DMA address. */
	__le64 address;
	/* Bytes. */
	__le64 length;
	/* Nodes a grant admits, one bit each; all ones admits every node. */
	__le64 nodes[4];
	/* Segment secret; zeros for none. */
	__u8 secret[16];
	/* Segment name, NUL-padded. */
	__u8 name[64];
	/* The context's key, 48 random bits. */
	__le64 key;
	/* Zero. */
	__le64 reserved2;
};
_Static_assert(sizeof(struct tg_admin_command) == 192, "tg_admin_command");

/* The command of TG_ADMIN_LAUNCH, in place of struct tg_admin_command. */
struct tg_admin_launch {
	/* TG_ADMIN_*. */
	__le32 opcode;
	/* Returned in the completion; never 0, and different from the slot's previous one. */
	__le32 seq;
	/* The context of the imports. */
	__le16 context;
	/* Import of the target of an atomic or the destination of a copy. */
	__le16 target;
	/* Import of the source of a copy. */
	__le16 source;
	/* TG_OP_* in bits 7:0, TG_LAUNCH_WIDE in bit 8. */
	__le16 operation;
	/* Bytes from the start of the target's segment. */
	__le64 target_offset;
	/* Bytes from the start of the source's segment. */
	__le64 source_offset;
	/* Bytes to copy. */
	__le64 length;
	/* Operand of an atomic. */
	__le64 operand;
	/* Value a compare-and-swap compares with. */
	__le64 compare;
	/* Zero. */
	__le64 reserved[17];
};
_Static_assert(sizeof(struct tg_admin_launch) == 192, "tg_admin_launch");

/* The command of TG_ADMIN_COUNTER_SET and TG_ADMIN_COUNTER_GET, in place of struct tg_admin_command. */
struct tg_admin_counter {
	/* TG_ADMIN_*. */
	__le32 opcode;
	/* Returned in the completion; never 0, and different from the slot's previous one. */
	__le32 seq;
	/* The counter. */
	__le32 index;
	/* The node of the page. */
	__le32 node;
	/* Export page of that node. */
	__le32 page;
	/* Zero. */
	__le32 reserved;
	/* Reads to count down; 0 counts none. */
	__le64 reads;
	/* Writes, atomics included, to count down; 0 counts none. */
	__le64 writes;
	/* Zero. */
	__le64 reserved2[19];
};
_Static_assert(sizeof(struct tg_admin_counter) == 192, "tg_admin_counter");

/* The command of TG_ADMIN_QUEUE_SET, in place of struct tg_admin_command. */
struct tg_admin_queue {
	/* TG_ADMIN_*. */
	__le32 opcode;
	/* Returned in the completion; never 0, and different from the slot's previous one. */
	__le32 seq;
	/* Export page. */
	__le32 page;
	/* Words of a buffer. */
	__le32 words;
	/* Bytes of a word: 4 or 8. */
	__le32 width;
	/* The context that may arm it. */
	__le32 context;
	/* DMA address of its first buffer, aligned to the buffer's size. */
	__le64 address;
	/* Nodes admitted, one bit each; all ones admits every node. */
	__le64 nodes[4];
	/* Zero. */
	__le64 reserved[16];
};
_Static_assert(sizeof(struct tg_admin_queue) == 192, "tg_admin_queue");

/* The command of TG_ADMIN_REPLICA_SET, in place of struct tg_admin_command. */
struct tg_admin_replica {
	/* TG_ADMIN_*. */
	__le32 opcode;
	/* Returned in the completion; never 0, and different from the slot's previous one. */
	__le32 seq;
	/* Export page of this node. */
	__le32 page;
	/* TG_REPLICA_*: the mode. */
	__le32 mode;
	/* Home node. */
	__le32 node;
	/* Export page there. */
	__le32 home_page;
	/* Generation of its grant there. */
	__le64 home_generation;
	/* Zero. */
	__le64 reserved[20];
};
_Static_assert(sizeof(struct tg_admin_replica) == 192, "tg_admin_replica");

/* The completion of an admin command. `{seq, status}` is one 8-byte word, written last with release ordering. */
struct tg_admin_completion {
	/* The command's `seq`. */
	__le32 seq;
	/* TG_OK or TG_ERR_*. */
	__le32 status;
	/* First export page. */
	__le32 index;
	/* Number of units. */
	__le32 count;
	/* Grant generation. */
	__le64 generation;
	/* Bytes. */
	__le64 length;
	/* TG_RIGHT_* bits granted. */
	__le32 rights;
	/* Bytes of a queue's word; 0 if it is not a queue. */
	__le32 width;
	/* Zero. */
	__le64 reserved2[3];
};
_Static_assert(sizeof(struct tg_admin_completion) == 64, "tg_admin_completion");

/* Ranges */
/* First export page number of range 0. Those below are granted by TG_ADMIN_GRANT_SET. */
#define TG_RANGE_PAGE 0x80000000
/* Export page numbers of each range: it has at most 16 GiB. */
#define TG_RANGE_UNITS 0x40000
/* Number of ranges. */
#define TG_RANGE_COUNT 0x1000
/* Most runs in the list of one TG_ADMIN_GRANT_RANGE. */
#define TG_RANGE_LIST 0x1000
/* Least bytes of a run, except for the first and the last of a range. */
#define TG_RANGE_RUN_MIN 0x1000

/* A run in the list of TG_ADMIN_GRANT_RANGE. */
struct tg_range_run {
	/* DMA address, of any alignment. */
	__le64 address;
	/* Bytes. */
	__le64 length;
};
_Static_assert(sizeof(struct tg_range_run) == 16, "tg_range_run");

/* Event queue */
/* Fewest entries of the queue: a power of two. */
#define TG_EVENTS_MIN 0x4
/* Most entries of the queue. */
#define TG_EVENTS_MAX 0x10000

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
/* The memory of this node's trust group is not as it was: a member has changed the tables of its slice, or the register OBSERVED of the memory device has changed. The driver looks at both. */
#define TG_EVENT_DIRECT 0xb

/* IMPORT_STATE bits */
/* Stores of this import wait; the driver must stop its processes. */
#define TG_IMPORT_CONGESTED 0x1
/* A store of this import was lost; later ones are dropped until IMPORT_ACK. */
#define TG_IMPORT_CUT 0x2

/* CONTEXT_STATE bits */
/* Stores to this context's page, or what it has launched, wait; the driver must stop its processes. */
#define TG_CONTEXT_CONGESTED 0x1

/* REPLICA event bits */
/* The page's home has left or does not serve it any more; the copies may differ. */
#define TG_REPLICA_EVENT_ORPHANED 0x1
/* The page has had another home; `index` is the present one. */
#define TG_REPLICA_EVENT_MOVED 0x2
/* The copy is not valid any more (TG_REPLICA_INVALIDATE): the driver unmaps it, then REPLICA_INVALID. */
#define TG_REPLICA_EVENT_INVALID 0x4

/* QUEUE event bits */
/* The queue has overflowed; the board holds the pending element and takes no other until QUEUE_RESUME. */
#define TG_QUEUE_EVENT_OVERFLOW 0x1
/* The queue's header was not sound; every enqueue to it is refused from now on. */
#define TG_QUEUE_EVENT_BROKEN 0x2

/* One event queue entry. */
struct tg_event {
	/* Depends on `kind`. */
	__le64 value;
	/* TG_EVENT_*. */
	__le16 kind;
	/* Number of the object it is about. */
	__le16 index;
	/* Running count from 1. */
	__le32 seq;
};
_Static_assert(sizeof(struct tg_event) == 16, "tg_event");

/* BARs of the memory device */
/* Registers. */
#define TG_DIRECT_BAR_REGISTERS 0x0
/* The group's memory. */
#define TG_DIRECT_BAR_MEMORY 0x2

/* The direct aperture: the memory device and its slices */
/* Byte offset of a 64-bit register: MAGIC_VALUE. */
#define TG_DIRECT_MAGIC 0x0
/* Byte offset of a 32-bit register: VERSION_VALUE. */
#define TG_DIRECT_VERSION 0x8
/* Byte offset of a 32-bit register: this node's id. */
#define TG_DIRECT_NODE 0xc
/* Byte offset of a 64-bit register: the number that the register DIRECT_PAIR of this node's board has. */
#define TG_DIRECT_PAIR 0x10
/* Byte offset of a 64-bit register: bytes of a slice, whole units. */
#define TG_DIRECT_SLICE_SIZE 0x18
/* Byte offset of a 32-bit register: number of members of the group, 1 to 64. */
#define TG_DIRECT_MEMBERS 0x20
/* Byte offset of a 32-bit register: place of this node among the members. */
#define TG_DIRECT_PLACE 0x24
/* Byte offset of a 64-bit register: a bit for each member, by place, whose memory device has a guest now. */
#define TG_DIRECT_PRESENT 0x28
/* Byte offset of a 64-bit register: 1 while accesses between members are to go through the boards, because the link of a member has faults or all is captured; else 0. Each change is an event of the board (TG_EVENT_DIRECT). */
#define TG_DIRECT_OBSERVED 0x30
/* Byte offset of a 32-bit register, write-only: a write of any value says that the entries of this node's slice have changed, so that members may have units mapped that are not exported any more. The boards of all other members post TG_EVENT_DIRECT. */
#define TG_DIRECT_CHANGED 0x38
/* Byte offset of the group's name: 64 bytes, NUL-padded. */
#define TG_DIRECT_NAME 0x40
/* Byte offset of 32-bit registers, one for each member by place: its node id. */
#define TG_DIRECT_MEMBER_NODES 0x100
/* The most members of a group. */
#define TG_DIRECT_MAX_MEMBERS 0x40
/* Value of MAGIC: "TGDIRECT" in ASCII, little-endian. */
#define TG_DIRECT_MAGIC_VALUE 0x5443455249444754ULL
/* Value of VERSION. */
#define TG_DIRECT_VERSION_VALUE 0x2
/* Size of BAR0 in bytes. */
#define TG_DIRECT_BAR0_SIZE 0x1000
/* DMA address of the group's memory at the boards of its members; each reaches its own slice only. */
#define TG_DIRECT_ADDRESS 0x8000000000000000ULL

/* What is exported in a unit of a slice. Written by its owner only. */
struct tg_direct_unit {
	/* Generation of the grant; 0 if nothing is exported there. */
	__le64 generation;
	/* The export page whose memory this is. */
	__le32 page;
	/* Zero. */
	__le32 reserved;
};
_Static_assert(sizeof(struct tg_direct_unit) == 16, "tg_direct_unit");

/* Beginnings of names */
/* Names of the kernel's own objects begin so, and no others. */
#define TG_KERNEL_PREFIX "kernel:"
/* Names that the driver makes of what belongs to a TCP connection begin so, and no others. */
#define TG_CONNECTION_PREFIX "tcp:"

/* Lengths of names */
/* Most characters, of a to z, that a program gives what belongs to a connection: its ends take 47 of a name. */
#define TG_CONNECTION_WHAT 0x8

/* The network device: names */
/* The kernel's own segment where nodes find each other: word N is of node N, {cookie, echo}. The number is that of what frames look like: nodes with another do not find each other. */
#define TG_NET_HELLO "tg0.3"

/* The network device: addresses and places */
/* The upper 4 bytes of a node's Ethernet address; the lower 2 are its number. */
#define TG_NET_ETHERNET 0x2544700
/* Units of the segment HELLO. */
#define TG_NET_HELLO_UNITS 0x2
/* Offset in HELLO of the word that rings for a hello: the watch of a page ends with any store there. */
#define TG_NET_BELL 0x10000
/* Of the memory for the frames of one other node: the unit of its tail. */
#define TG_NET_TAIL_UNIT 0x0
/* The unit of the head for this node's frames to that one. */
#define TG_NET_HEAD_UNIT 0x1
/* The first unit of frames. */
#define TG_NET_FRAME_UNITS 0x2
/* Bytes behind the frames, for copies of frames to all. */
#define TG_NET_WORDS 0x40
/* Offset in these of the number of the copy that the other node has made, 0 for none. */
#define TG_NET_JOIN 0x0
/* Offset in these of where it continues to read that. */
#define TG_NET_ALL_HEAD 0x8
/* Of the memory of frames to all nodes: the unit of its tail. */
#define TG_NET_ALL_TAIL_UNIT 0x0
/* The unit of frames and, behind these, of a word for each node. */
#define TG_NET_ALL_FRAME_UNIT 0x1
/* Units of that memory. */
#define TG_NET_ALL_UNITS 0x2

#endif /* TELEGRAPHOS_HW_H */
