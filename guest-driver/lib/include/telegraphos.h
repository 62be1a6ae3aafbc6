/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Telegraphos: load from and store into the memory of other virtual machines.
 *
 * Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the message. Several threads may
 * use a handle at once, but only one may close it, after all other use; operations, barriers, broadcasts and their
 * consumers are for one thread at a time. Names and paths are UTF-8. When the owner of an import has withdrawn it or
 * died, touching it raises SIGBUS, also by launching an operation on it.
 *
 * Generated from the library; do not edit. Renew with
 *   cargo run -p telegraphos --example telegraphos_h > guest-driver/lib/include/telegraphos.h
 */
#ifndef TELEGRAPHOS_LIBRARY_H
#define TELEGRAPHOS_LIBRARY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open board. */
typedef struct tg_node tg_node;
/* Memory of this node, exported under a name. */
typedef struct tg_segment tg_segment;
/* Memory that the process had before. */
typedef struct tg_registration tg_registration;
/* Memory of another node, imported. */
typedef struct tg_remote tg_remote;
/* An atomic or a copy that was launched. */
typedef struct tg_operation tg_operation;
/* A barrier that was joined. */
typedef struct tg_barrier tg_barrier;
/* This node's copy of a replicated segment. */
typedef struct tg_replicated tg_replicated;
/* The producer of a broadcast. */
typedef struct tg_broadcast tg_broadcast;
/* A consumer of a broadcast. */
typedef struct tg_consumer tg_consumer;
/* Access counters armed for a page. */
typedef struct tg_page_counter tg_page_counter;
/* A notification queue of this node. (The kernel's header has another struct tg_queue.) */
typedef struct tg_local_queue tg_queue;
/* A notification queue of another node, imported to append to it. */
typedef struct tg_remote_queue tg_remote_queue;

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

/* Launch styles */
/* A system call that does everything in the kernel; needs telegraphos_lab.ko. */
#define TG_STYLE_PLAIN 0x0
/* Telegraphos I: special mode, in a system call; needs telegraphos_lab.ko. */
#define TG_STYLE_SPECIAL 0x1
/* Telegraphos II: contexts and keys, from user level. The default. */
#define TG_STYLE_CONTEXT 0x2
/* The same, but the last access of an atomic is a load that returns its result. */
#define TG_STYLE_LOAD 0x3

/* Modes of replicated segments */
/* Stores are applied where they are made and sent to all copies by their writer; copies diverge when stores are concurrent (SPEC item 24). */
#define TG_REPLICA_NAIVE 0x1
/* Stores go through the home, which multicasts them; a copy applies everything that comes back, so a program may see its own older store again. */
#define TG_REPLICA_OWNER 0x2
/* The same, with counters of pending writes (SPEC item 25): no program sees values out of order. */
#define TG_REPLICA_COUNTERS 0x3
/* Stores go to the home alone; those copies that are valid become invalid, and are filled again when a processor reads them (SPEC item 28). */
#define TG_REPLICA_INVALIDATE 0x4

/* Status codes, as in tg_state and from tg_last_status */
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

/* How to export. All zeros, or NULL, means: for processes of the same user id, no secret, every node. */
typedef struct tg_export_options {
	/* Access rights, as the mode of a file, e.g. 0604; 0 means 0600. */
	uint32_t mode;
	/* Number of admitted nodes listed; 0 admits every node. */
	uint32_t node_count;
	/* The admitted nodes. */
	const uint16_t *nodes;
	/* The secret that an importer must present; zeros mean none. */
	uint8_t secret[16];
	/* The name of the trust group whose nodes access it directly, at the speed of memory; NULL for none. EXDEV
	 * unless this node is in it. */
	const char *group;
} tg_export_options;

/* The state of an import. */
typedef struct tg_state {
	/* 1 while stores are faster than the network: the next one waits. */
	uint8_t congested;
	/* 1 after a store was lost, until tg_acknowledge; later stores are dropped. */
	uint8_t cut;
	/* 1 if it is gone for good: touching it raises SIGBUS. Import it again. */
	uint8_t dead;
	/* 1 if loads and stores are the owner's memory itself: see tg_export_options.group. */
	uint8_t direct;
	/* The first error since the last tg_acknowledge: TG_ERR_*, or TG_OK. */
	uint32_t status;
} tg_state;

/* How to make a queue. All zeros, or NULL, means: for processes of the same user id, no secret, every node, 64 KiB
 * per buffer, of 4-byte words, 16 buffers behind the first. */
typedef struct tg_queue_options {
	/* Words per buffer: a power of two from 8 on, at most 64 KiB in all; 0 means those 64 KiB. */
	uint32_t words;
	/* Bytes of a word, 4 or 8; 0 means 4. */
	uint32_t width;
	/* Buffers that may be linked behind the first, up to 1024; 0 means 16. */
	uint32_t quota;
	/* Linked buffers at which tg_queue_limits counts, up to the quota; 0 means half of it, UINT32_MAX never. */
	uint32_t limit;
	/* Access rights, as the mode of a file, by the write bits: e.g. 0602; 0 means 0600. */
	uint32_t mode;
	/* Number of admitted nodes listed; 0 admits every node. */
	uint32_t node_count;
	/* The admitted nodes. */
	const uint16_t *nodes;
	/* The secret that an importer must present; zeros mean none. */
	uint8_t secret[16];
} tg_queue_options;

/* The state of a queue. */
typedef struct tg_queue_status {
	/* Why it accepts no more elements: TG_ERR_*, or TG_OK if it does. */
	uint32_t status;
	/* Linked buffers, as the driver counts them. */
	uint32_t linked;
	/* Overflows handled. */
	uint64_t overflows;
	/* The number of times that a consumer took too long over an element and lost its mapping. */
	uint64_t evictions;
	/* 1 while an overflow is not handled yet. */
	uint8_t full;
	/* 1 while the quota is used up and senders are held back. */
	uint8_t held;
	/* Zero. */
	uint8_t reserved[6];
} tg_queue_status;

/* The state of a replicated segment. */
typedef struct tg_replicated_state {
	/* The node that orders the stores. */
	uint32_t home;
	/* Why it is an orphan, TG_ERR_*: touching it raises SIGBUS until it is adopted. TG_OK if it has a home. */
	uint32_t orphan;
	/* 1 while stores are faster than the network: the next one waits. */
	uint8_t congested;
	/* 1 after a store was lost, until tg_replicated_acknowledge; later stores are dropped. */
	uint8_t cut;
	/* 1 if it is gone, or an orphan. */
	uint8_t dead;
	/* Zero. */
	uint8_t reserved;
	/* The first error since the last tg_replicated_acknowledge: TG_ERR_*, or TG_OK. */
	uint32_t status;
} tg_replicated_state;

/* The values of page access counters. */
typedef struct tg_count {
	/* Reads left until the event. */
	uint64_t reads;
	/* Writes left until the event. */
	uint64_t writes;
	/* 1 if the reads have gone from 1 to 0. */
	uint8_t reads_fired;
	/* 1 if the writes have gone from 1 to 0. */
	uint8_t writes_fired;
	/* Zero. */
	uint8_t reserved[6];
} tg_count;

/* Opens the board of that device file, or with NULL the first one. */
int tg_open(const char *path, tg_node **node);

/* The board that another process has opened, by a file descriptor inherited or received from it, which belongs to
 * the handle then, and is closed if this fails: for its queues, see tg_queue_attach. Of the processes that share
 * it, only one at a time may use quiet, atomics and copies. */
int tg_open_fd(int fd, tg_node **node);

/* The file descriptor of a board, to pass to another process, or a negative errno. It ends with the handle. */
int tg_node_fd(const tg_node *node);

/* Closes a board; exports, imports and queues made from it stay until they are closed. */
void tg_close(tg_node *node);

/* This node's id, or a negative errno. */
int tg_node_id(const tg_node *node);

/* Exports size bytes of new, zeroed memory under a name. */
int tg_export(const tg_node *node, const char *name, uint64_t size, const tg_export_options *options, tg_segment **segment);

/* Withdraws an export; returns when no other node can reach it. */
int tg_unexport(tg_segment *segment);

/* Where the memory of an export lies. Other nodes change it at any time: use atomic loads
 * and stores. */
void *tg_segment_memory(const tg_segment *segment);

/* Bytes of an export. */
uint64_t tg_segment_size(const tg_segment *segment);

/* Imports a segment of a node for the rights TG_RIGHT_*; 0 means loads, stores, atomics and copies. The secret has
 * 16 bytes, or is NULL. */
int tg_import(const tg_node *node, uint16_t id, const char *name, uint16_t rights, const uint8_t *secret, tg_remote **remote);

/* The same, of an import that raises no SIGBUS when its owner is gone: stores then reach no node, loads return
 * anything, launches fail, and tg_remote_state says so. */
int tg_import_soft(const tg_node *node, uint16_t id, const char *name, uint16_t rights, const uint8_t *secret, tg_remote **remote);

/* Closes an import after its outstanding stores. */
int tg_unimport(tg_remote *remote);

/* Where the window of an import lies: for aligned words of 1, 2, 4 or 8 bytes, never for memcpy. */
volatile void *tg_remote_window(const tg_remote *remote);

/* Bytes of an import. */
uint64_t tg_remote_size(const tg_remote *remote);

/* Stores with one instruction, and returns before the other node has the value. */
int tg_put8(const tg_remote *remote, uint64_t offset, uint8_t value);

/* See tg_put8. */
int tg_put16(const tg_remote *remote, uint64_t offset, uint16_t value);

/* See tg_put8. */
int tg_put32(const tg_remote *remote, uint64_t offset, uint32_t value);

/* See tg_put8. */
int tg_put64(const tg_remote *remote, uint64_t offset, uint64_t value);

/* Loads with one instruction, behind all earlier stores to that node. All ones may mean that it failed: see
 * tg_state_of. */
int tg_get8(const tg_remote *remote, uint64_t offset, uint8_t *value);

/* See tg_get8. */
int tg_get16(const tg_remote *remote, uint64_t offset, uint16_t *value);

/* See tg_get8. */
int tg_get32(const tg_remote *remote, uint64_t offset, uint32_t *value);

/* See tg_get8. */
int tg_get64(const tg_remote *remote, uint64_t offset, uint64_t *value);

/* Returns when every earlier store to this import has been performed and acknowledged. */
int tg_quiet(const tg_remote *remote);

/* tg_quiet that fails with -EAGAIN after so many nanoseconds; it may be called again. */
int tg_quiet_timeout(const tg_remote *remote, uint64_t nanoseconds);

/* tg_quiet for all imports of a node handle. */
int tg_quiet_all(const tg_node *node);

/* tg_quiet_timeout for all imports of a node handle. */
int tg_quiet_all_timeout(const tg_node *node, uint64_t nanoseconds);

/* The state of an import. */
int tg_state_of(const tg_remote *remote, tg_state *state);

/* Clears the latched error of an import and accepts stores again after a cut. Lost stores stay lost. */
int tg_acknowledge(const tg_remote *remote);

/* Orders what this node handle stores and launches from now on behind everything before, on any node; may wait for
 * it. */
int tg_fence_all(const tg_node *node);

/* How operations of this node handle are launched from now on: TG_STYLE_*. */
int tg_set_launch_style(const tg_node *node, uint32_t style);

/* An export as an import of its own node, for copies and for the owner's atomics; NULL on failure. It belongs to
 * the export: do not close it. */
const tg_remote *tg_segment_remote(const tg_segment *segment);

/* Registers memory of the process, of any alignment and 1 byte to 16 GiB: for copies (tg_registration_remote), and
 * for other nodes under a name, unless that is NULL. The options' group is not used. The memory is writable, and
 * anonymous, of huge pages, or of a file in memory; it stays pinned until tg_unregister. */
int tg_register(const tg_node *node, void *memory, uint64_t size, const char *name, const tg_export_options *options, tg_registration **registration);

/* Ends a registration; returns when nothing can reach the memory by it. */
int tg_unregister(tg_registration *registration);

/* A registration as an import of its own node, for copies and atomics; offsets count from its first byte. It
 * belongs to the registration: do not close it. */
const tg_remote *tg_registration_remote(const tg_registration *registration);

/* 1 if a registration still is the memory at its address, 0 after that was unmapped or discarded: then copies of
 * it fail, and its pages are no longer pinned. */
int tg_registration_alive(const tg_registration *registration);

/* Fetch-and-store of a word at a multiple of 4: atomic with all other atomics here, loads and stores through
 * windows, but not with locked instructions of the owner's processors. previous may be NULL. */
int tg_swap32(const tg_remote *remote, uint64_t offset, uint32_t value, uint32_t *previous);

/* See tg_swap32; the word lies at a multiple of 8. */
int tg_swap64(const tg_remote *remote, uint64_t offset, uint64_t value, uint64_t *previous);

/* Fetch-and-add, wrapping; see tg_swap32. */
int tg_fetch_add32(const tg_remote *remote, uint64_t offset, uint32_t value, uint32_t *previous);

/* Fetch-and-add, wrapping; see tg_swap64. */
int tg_fetch_add64(const tg_remote *remote, uint64_t offset, uint64_t value, uint64_t *previous);

/* Fetch-and-increment; see tg_swap32. */
int tg_fetch_inc32(const tg_remote *remote, uint64_t offset, uint32_t *previous);

/* Fetch-and-increment; see tg_swap64. */
int tg_fetch_inc64(const tg_remote *remote, uint64_t offset, uint64_t *previous);

/* Compare-and-swap: the word has become value exactly if *previous is expected; see tg_swap32. */
int tg_compare_swap32(const tg_remote *remote, uint64_t offset, uint32_t expected, uint32_t value, uint32_t *previous);

/* Compare-and-swap: the word has become value exactly if *previous is expected; see tg_swap64. */
int tg_compare_swap64(const tg_remote *remote, uint64_t offset, uint64_t expected, uint64_t value, uint64_t *previous);

/* tg_swap32, without waiting. Ends with tg_operation_wait and tg_operation_free; operation may be NULL, then only
 * quiet waits for it. */
int tg_swap32_nbi(const tg_remote *remote, uint64_t offset, uint32_t value, tg_operation **operation);

/* tg_swap64, without waiting; see tg_swap32_nbi. */
int tg_swap64_nbi(const tg_remote *remote, uint64_t offset, uint64_t value, tg_operation **operation);

/* tg_fetch_add32, without waiting; see tg_swap32_nbi. */
int tg_fetch_add32_nbi(const tg_remote *remote, uint64_t offset, uint32_t value, tg_operation **operation);

/* tg_fetch_add64, without waiting; see tg_swap32_nbi. */
int tg_fetch_add64_nbi(const tg_remote *remote, uint64_t offset, uint64_t value, tg_operation **operation);

/* tg_compare_swap32, without waiting; see tg_swap32_nbi. */
int tg_compare_swap32_nbi(const tg_remote *remote, uint64_t offset, uint32_t expected, uint32_t value, tg_operation **operation);

/* tg_compare_swap64, without waiting; see tg_swap32_nbi. */
int tg_compare_swap64_nbi(const tg_remote *remote, uint64_t offset, uint64_t expected, uint64_t value, tg_operation **operation);

/* Copies length bytes, 1 to 16 MiB at any alignment, to an import from an import (or from and to
 * tg_segment_remote); at least one of them is memory of this node, and they do not overlap. Returns when the data
 * is there. */
int tg_copy(const tg_remote *destination, uint64_t to, const tg_remote *source, uint64_t from, uint64_t length);

/* tg_copy, without waiting: returns before the data lands; see tg_swap32_nbi. */
int tg_copy_nbi(const tg_remote *destination, uint64_t to, const tg_remote *source, uint64_t from, uint64_t length, tg_operation **operation);

/* 1 if an operation has ended, successfully or not, else 0. A load from memory. */
int tg_operation_done(tg_operation *operation);

/* Waits for an operation, -EAGAIN after so many nanoseconds (negative: never); then it may be called again. An
 * atomic's previous word is stored to value, unless that is NULL. */
int tg_operation_wait(tg_operation *operation, int64_t nanoseconds, uint64_t *value);

/* tg_operation_wait that sleeps until the board's interrupt: for long copies. */
int tg_operation_wait_event(tg_operation *operation, int64_t nanoseconds, uint64_t *value);

/* Makes tg_completions readable when an operation is done; at once if it is. */
int tg_operation_arm(tg_operation *operation);

/* Closes the handle. The operation continues; quiet waits for it. */
void tg_operation_free(tg_operation *operation);

/* An eventfd of the node handle that becomes readable when an armed operation is done or an armed queue has an
 * element, or a negative errno. After reading it, check all of them. It ends with the handle. */
int tg_completions(const tg_node *node);

/* Takes the ticket lock in the 16 bytes at offset, a multiple of 8, zero at first; -EAGAIN after so many
 * nanoseconds (negative: never, and in turn). ticket is for tg_unlock. */
int tg_lock(const tg_remote *remote, uint64_t offset, int64_t nanoseconds, uint64_t *ticket);

/* Waits for quiet of all imports of the node handle, then hands the lock to the next ticket. */
int tg_unlock(const tg_remote *remote, uint64_t offset, uint64_t ticket);

/* Joins a barrier of count participants, the i-th on the i-th of nodes, as number me; mode as in
 * tg_export_options. Waits for the other participants, at most so many nanoseconds. For one thread at a time. */
int tg_barrier_join(const tg_node *node, const char *name, const uint16_t *nodes, uint32_t count, uint32_t me, uint32_t mode, int64_t nanoseconds, tg_barrier **barrier);

/* Waits for quiet, then for all participants; -EAGAIN after so many nanoseconds (negative: never); then it may be
 * called again. */
int tg_barrier_wait(tg_barrier *barrier, int64_t nanoseconds);

/* Leaves a barrier, for good. */
void tg_barrier_leave(tg_barrier *barrier);

/* Makes a notification queue under a name. */
int tg_queue_create(const tg_node *node, const char *name, const tg_queue_options *options, tg_queue **queue);

/* A queue that another process has created through the same open file (tg_open_fd), or that this process has
 * created before it lost the mapping, by its tg_queue_handle. */
int tg_queue_attach(const tg_node *node, uint32_t handle, tg_queue **queue);

/* The number by which processes that share the open file attach a queue; UINT32_MAX for NULL. */
uint32_t tg_queue_handle(const tg_queue *queue);

/* Takes the oldest element: 1, or 0 if there is none. No system call, unless the queue has overflowed. */
int tg_queue_try_pop(const tg_queue *queue, uint64_t *value);

/* Takes the oldest element, asleep until there is one: 1, or 0 after so many nanoseconds (negative: never). */
int tg_queue_pop_wait(const tg_queue *queue, int64_t nanoseconds, uint64_t *value);

/* Takes up to count elements, oldest first: how many, 0 if there is none. */
int tg_queue_pop_batch(const tg_queue *queue, uint64_t *values, uint32_t count);

/* Takes the oldest element by a system call that does everything in the kernel, as a baseline: 1, or 0 if there
 * is none. */
int tg_queue_pop_in_kernel(const tg_queue *queue, uint64_t *value);

/* Makes tg_completions readable at the next element; at once if there has been one since a pop last found nothing. */
int tg_queue_arm(const tg_queue *queue);

/* The number of times that the linked buffers of a queue have reached the limit: when it rises, consumers are
 * slow. */
uint64_t tg_queue_limits(const tg_queue *queue);

/* The state of a queue. */
int tg_queue_status_of(const tg_queue *queue, tg_queue_status *status);

/* Ends a queue that this process has created, with the elements not taken; one that was attached is only unmapped. */
int tg_queue_close(tg_queue *queue);

/* Imports a queue of a node, to append to it. The secret has 16 bytes, or is NULL. */
int tg_queue_import(const tg_node *node, uint16_t id, const char *name, const uint8_t *secret, tg_remote_queue **queue);

/* The same, of an import that raises no SIGBUS when its owner is gone: elements then reach no queue. */
int tg_queue_import_soft(const tg_node *node, uint16_t id, const char *name, const uint8_t *secret, tg_remote_queue **queue);

/* Appends with one store instruction, after all earlier puts of this thread to that node, and returns before the
 * other node has it. */
int tg_queue_enqueue(const tg_remote_queue *queue, uint64_t value);

/* Stores count words of 8 bytes from offset of an import of the same node on, then appends value: a consumer that
 * pops it sees them. Not appended while that import has an error. */
int tg_queue_put_notify(const tg_remote_queue *queue, const tg_remote *remote, uint64_t offset, const uint64_t *words, uint64_t count, uint64_t value);

/* Where to store an element directly: one aligned scalar store of tg_queue_width bytes. */
volatile void *tg_queue_aperture(const tg_remote_queue *queue);

/* Bytes of an imported queue's words, 4 or 8. */
uint32_t tg_queue_width(const tg_remote_queue *queue);

/* Returns when every earlier element has been appended; -EAGAIN after so many nanoseconds (negative: never), then
 * it may be called again. */
int tg_queue_quiet(const tg_remote_queue *queue, int64_t nanoseconds);

/* The state of an imported queue. */
int tg_queue_state_of(const tg_remote_queue *queue, tg_state *state);

/* Clears the latched error of an imported queue and accepts elements again after a cut. Lost elements stay lost. */
int tg_queue_acknowledge(const tg_remote_queue *queue);

/* Closes the import of a queue after its outstanding elements. */
int tg_queue_unimport(tg_remote_queue *queue);

/* Arms access counters for a page (64 KiB, from 0) of an import: an event at the reads-th load and at the
 * writes-th store of this node there; 0 counts none. */
int tg_counter_arm(const tg_remote *remote, uint32_t page, uint64_t reads, uint64_t writes, tg_page_counter **counter);

/* The values of access counters. */
int tg_counter_read(const tg_page_counter *counter, tg_count *count);

/* Waits for an event of access counters: 1, or 0 after so many nanoseconds (negative: for ever). */
int tg_counter_wait(const tg_page_counter *counter, int64_t nanoseconds);

/* An eventfd that becomes readable at each event of access counters. It ends with them. */
int tg_counter_fd(const tg_page_counter *counter);

/* Disarms access counters. */
int tg_counter_disarm(tg_page_counter *counter);

/* Makes a replicated segment of size bytes, zeroed, under a name, with this node as its home. mode is
 * TG_REPLICA_*, or 0 for TG_REPLICA_COUNTERS; options name the nodes that may join, with mode digits 0, 4 or 6. */
int tg_replicated_create(const tg_node *node, const char *name, uint64_t size, uint32_t mode, const tg_export_options *options, tg_replicated **replicated);

/* Makes a copy here of a replicated segment whose home is node home. mode is that of the segment, or 0. options,
 * or NULL, hold the secret, the requested rights in the first digit of their mode, and the access rights of nodes
 * that join here should this node become the home. */
int tg_replicated_join(const tg_node *node, uint16_t home, const char *name, uint32_t mode, const tg_export_options *options, tg_replicated **replicated);

/* Makes a segment of mode TG_REPLICA_NAIVE take the stores of another node, which has created it too. */
int tg_replicated_join_peer(const tg_replicated *replicated, uint16_t peer);

/* Leaves a replicated segment once its stores are acknowledged. If this node is its home, the other copies become
 * orphans. */
int tg_replicated_leave(tg_replicated *replicated);

/* Bytes of a replicated segment. */
uint64_t tg_replicated_size(const tg_replicated *replicated);

/* Where this node's copy lies, read-only. A raw read may miss a store that this process has just made:
 * tg_replicated_settle before it, or tg_load8 to tg_load64 instead. */
const void *tg_replicated_memory(const tg_replicated *replicated);

/* Where the window lies, for stores of aligned words of 1, 2, 4 or 8 bytes, never for memcpy;
 * tg_replicated_announce before. */
volatile void *tg_replicated_window(const tg_replicated *replicated);

/* Announces the exact number of stores that this process is about to make through tg_replicated_window. */
int tg_replicated_announce(const tg_replicated *replicated, uint64_t count);

/* One pointer for loads and stores, both through the board of this node: a load through it is behind this
 * process's stores, which are not announced. Words and access as in tg_replicated_window. From the first call on
 * tg_load8 to tg_load64 make such a trip to the board, too. */
volatile void *tg_replicated_trapped(const tg_replicated *replicated);

/* The window as an import, for atomics, which run at the home, and for tg_quiet; NULL for NULL. Stores through it
 * are refused. It belongs to the segment: do not close it. */
const tg_remote *tg_replicated_remote(const tg_replicated *replicated);

/* Stores to all copies with one instruction, and returns before any has the value. */
int tg_store8(const tg_replicated *replicated, uint64_t offset, uint8_t value);

/* See tg_store8. */
int tg_store16(const tg_replicated *replicated, uint64_t offset, uint16_t value);

/* See tg_store8. */
int tg_store32(const tg_replicated *replicated, uint64_t offset, uint32_t value);

/* See tg_store8. */
int tg_store64(const tg_replicated *replicated, uint64_t offset, uint64_t value);

/* Loads from this node's copy, with acquire ordering; never older than this process's own last store. */
int tg_load8(const tg_replicated *replicated, uint64_t offset, uint8_t *value);

/* See tg_load8. */
int tg_load16(const tg_replicated *replicated, uint64_t offset, uint16_t *value);

/* See tg_load8. */
int tg_load32(const tg_replicated *replicated, uint64_t offset, uint32_t *value);

/* See tg_load8. */
int tg_load64(const tg_replicated *replicated, uint64_t offset, uint64_t *value);

/* Loads 8 bytes through the window with one instruction: behind this processor's stores, by a round trip to the
 * board of this node. All ones may mean that it failed: see tg_replicated_state_of. For other sizes: tg_get8 to
 * tg_get32 of tg_replicated_remote. */
int tg_load_trapped64(const tg_replicated *replicated, uint64_t offset, uint64_t *value);

/* Waits until the stores made so far are in this node's copy, -EAGAIN after so many nanoseconds (negative: never).
 * For other copies see tg_replicated_quiet. */
int tg_replicated_settle(const tg_replicated *replicated, int64_t nanoseconds);

/* Returns when every copy has every earlier store and atomic of this process; -EAGAIN after so many nanoseconds
 * (negative: never). */
int tg_replicated_quiet(const tg_replicated *replicated, int64_t nanoseconds);

/* The state of a replicated segment. */
int tg_replicated_state_of(const tg_replicated *replicated, tg_replicated_state *state);

/* Clears the latched error of a replicated segment, and accepts stores again after a cut. Lost stores stay
 * lost. No other thread uses it meanwhile. */
int tg_replicated_acknowledge(const tg_replicated *replicated);

/* Makes this node the home of an orphan: its copy is authoritative, and the other nodes leave their copies and
 * join here. No other thread uses it meanwhile. */
int tg_replicated_adopt(const tg_replicated *replicated);

/* Makes this node the home while all nodes continue; the previous home keeps its copy. Further nodes join here.
 * -EBUSY or -EREMOTEIO while another node takes it. If it fails midway, call it again. */
int tg_replicated_take_home(const tg_replicated *replicated);

/* As tg_lock, in 16 bytes of a replicated segment: tickets are drawn at the home, and waiting threads poll the
 * copy of this node. */
int tg_replicated_lock(const tg_replicated *replicated, uint64_t offset, int64_t nanoseconds, uint64_t *ticket);

/* As tg_unlock. */
int tg_replicated_unlock(const tg_replicated *replicated, uint64_t offset, uint64_t ticket);

/* Makes a broadcast of messages of at most message bytes, for at most consumers consumers, of which the slowest
 * may be slots messages behind; each may be 0 for 248, 16 and 64. For one thread at a time. */
int tg_broadcast_create(const tg_node *node, const char *name, uint32_t slots, uint32_t message, uint32_t consumers, const tg_export_options *options, tg_broadcast **broadcast);

/* Waits until there are so many consumers, -EAGAIN after so many nanoseconds (negative: never). */
int tg_broadcast_wait_consumers(tg_broadcast *broadcast, uint32_t count, int64_t nanoseconds);

/* Stores a message for all consumers; waits for the slowest, -EAGAIN after so many nanoseconds (negative: never). */
int tg_broadcast_push(tg_broadcast *broadcast, const void *message, uint32_t length, int64_t nanoseconds);

/* Ends a broadcast: waits until all consumers have all messages and have left, -EAGAIN after so many nanoseconds
 * (negative: never). It is gone in any case. */
int tg_broadcast_finish(tg_broadcast *broadcast, int64_t nanoseconds);

/* Becomes a consumer of the broadcast of another node. The secret has 16 bytes, or is NULL. For one thread at a
 * time. */
int tg_broadcast_join(const tg_node *node, uint16_t producer, const char *name, const uint8_t *secret, tg_consumer **consumer);

/* Takes the next message into size bytes at message, and stores its length: 1, or 0 at the end; -EAGAIN after so
 * many nanoseconds (negative: never), -EOVERFLOW when the producer has evicted this consumer, -EMSGSIZE for a
 * longer message, which is lost. */
int tg_consumer_pop(tg_consumer *consumer, void *message, uint32_t size, uint32_t *length, int64_t nanoseconds);

/* Frees a consumer's place, and leaves the segment. */
int tg_consumer_leave(tg_consumer *consumer);

/* Waits until an import of this node handle has an error to report: 1, or 0 after so many milliseconds (negative:
 * for ever). */
int tg_wait_error(const tg_node *node, int64_t milliseconds);

/* Orders all earlier accesses of this thread before all later ones. It does not wait for them, as tg_quiet does. */
void tg_fence(void);

/* The meaning of a result, positive or negative. An errno can be the board's or the system's (EACCES of a refused
 * import, or of the device file): of the thread's last failure it is what that was. Valid until the thread's next
 * call of this function. */
const char *tg_strerror(int error);

/* The board's reason for the last failure in this thread: TG_ERR_*, or TG_OK if the board was not the reason. */
int tg_last_status(void);

/* The message of the last failure in this thread, with what to do. Valid until the thread's next call that fails. */
const char *tg_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* TELEGRAPHOS_LIBRARY_H */
