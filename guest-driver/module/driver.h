/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Telegraphos HIB driver: what its files share.
 *
 * Each file of telegraphos.ko calls files below it only:
 *
 * main.c    probe, remove, shutdown
 * debugfs.c tables for administrators
 * client.c  users of the board inside the kernel
 * file.c    open files and their contexts, the character device
 * ioctl.c   its ioctls
 * map.c     mmap, page faults
 * register.c
 *           memory of processes, pinned for it
 * replica.c replicated segments of this node
 * replica_pages.c
 *           validity of their pages
 * queue.c   notification queues of this node
 * queue_map.c
 *           processes that have them mapped
 * export.c  local segments
 * direct_event.c
 *           what boards report of direct memory
 * import.c  remote segments
 * counter.c page access counters
 * memory.c  guest memory the board may write
 * direct.c  direct segments and imports, in the memory of a trust group
 * object.c  life of exports, imports, queues and replicated segments
 * admin.c   commands to the board
 * events.c  interrupt and event queue
 * context.c open files as the others see them: events and users
 *
 * These call none of the above, and of each other only what stands behind an arrow:
 *
 * device.c  workqueues, and whether a board answers
 * zap.c     removal of pages from page tables
 * sleep.c   suspend and hibernation
 * pins.c    pages of processes that are pinned
 * name.c    names that programs give to objects -> connection.c
 * connection.c
 *           names of what belongs to a TCP connection
 * account.c what a process and a user may hold of what the board has -> division.c
 * job.c     works of open files, and how many of them run -> division.c
 * division.c
 *           how units are divided among spenders, without kernel calls
 * queue_handler.c
 *           mutual exclusion of overflow handling and dequeue, without kernel calls
 *           -> queue_buffers.c
 * queue_buffers.c
 *           the buffers of queues: copy and link, without kernel calls
 * trace.c   tracepoints
 *
 * What a lower file calls of a higher one it finds in a table that it was given: struct
 * tg_device_ops of a board, struct tg_object_ops of an object, struct tg_client_ops of a file.
 *
 * Other modules, which call the files above and are called by none of them:
 *
 * net.c, net_peer.c, net_multicast.c, net_data.c, net_base.c
 *           telegraphos_net.ko: the network device
 * lab/module
 *           telegraphos_lab.ko, for comparisons: dequeue and operations in the kernel
 *
 * Locks, outermost first:
 *
 * tg_clients_lock     Boards and the kernel's users of them come and go one at a time.
 * tg_net.work_lock    The connections of a network device with other nodes
 *                     (telegraphos_net.ko).
 * tg_device.op_lock   Held for reading around all accesses to the board and all changes
 *                     of what it can reach; remove() takes it for writing once, to wait
 *                     for these. Never held while waiting for a worker, which needs it
 *                     too.
 * tg_device.counter_lock
 *                     Serialises arming and disarming of page access counters.
 * tg_nqueue.lock
 *                     Serialises work on a notification queue. Held while the board
 *                     resumes it; the board's events about it are only recorded,
 *                     under its guard.
 * tg_replicated.lock
 *                     Serialises changes of a replicated segment at the board, each
 *                     from its first command to its last. The teardown of its objects
 *                     follows the last holder.
 * tg_replicated.ack_lock
 *                     Serialises acknowledgements to the board that pages are unmapped.
 *                     Its holders wait for no other node.
 * tg_special_lock, cpu_hotplug_lock
 *                     One launch in special mode at a time (telegraphos_lab.ko).
 * tg_direct_lock       The memory devices, and which board is beside which.
 * mm.mmap_lock        Taken by the kernel around mmap and page faults. A page fault can
 *                     hold it for as long as another process likes. So it is never
 *                     waited for inside op_lock, and user memory is not touched there
 *                     but with page faults disabled.
 * tg_events.lock      Serialises consumption of the event queue by threads.
 * tg_device.map_lock  The state that page faults depend on. A fault checks and inserts
 *                     under the read lock; a revocation sets the state and zaps under
 *                     the write lock, so no stale entry survives. User memory is never
 *                     touched under it.
 * tg_direct.lock      The use of direct memory, and this node's slice.
 * tg_device.lock      Tables of numbers in use, the list of memories, the files that get
 *                     events.
 * tg_nqueue.guard     The holders of a queue's mappings, and the board's events about it.
 * tg_registration.guard
 *                     What the notifier of a registration has said. Taken where memory may be
 *                     reclaimed: nothing is allocated under it.
 * tg_jobs.lock        Works of files.
 * tg_admin.lock       Command slots.
 * tg_events.guard     Whether a thread consumes events; otherwise the interrupt does, and holds
 *                     it. Taken with interrupts off.
 * tg_device.wake_lock
 *                     The files that get events, and their eventfds: changed under this and
 *                     tg_device.lock. Taken with interrupts off.
 * tg_net.lock         What telegraphos_net.ko sends, in softirqs. No other lock of these is
 *                     taken under it.
 */
#ifndef TELEGRAPHOS_DRIVER_H
#define TELEGRAPHOS_DRIVER_H

#include <linux/atomic.h>
#include <linux/bits.h>
#include <linux/cdev.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/export.h>
#include <linux/interrupt.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/refcount.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "division.h"
#include "namespaces.h"
#include "queue_buffers.h"
#include "queue_handler.h"
#include "telegraphos.h"
#include "telegraphos_hw.h"

struct dentry;
struct eventfd_ctx;
struct seq_file;
struct tg_call;
struct tg_device;
struct tg_direct;
struct tg_file;
struct tg_object;
struct user_struct;

#ifndef CONFIG_64BIT
#error "the board's registers and completion words are 64 bits wide: a 64-bit kernel is needed"
#endif
#ifdef __BIG_ENDIAN
#error "processes read the board's little-endian words as their own: a little-endian kernel is needed"
#endif

#define TG_NAME "telegraphos"

/* Bytes of an import, export and context unit. */
#define TG_UNIT (1UL << TG_UNIT_SHIFT)

/* Every TG_RIGHT_* bit. */
#define TG_RIGHTS_ALL (TG_RIGHT_READ | TG_RIGHT_WRITE | TG_RIGHT_ATOMIC | \
		       TG_RIGHT_ENQUEUE | TG_RIGHT_DMA)

/* The rights that a process can have to a replicated segment. */
#define TG_RIGHTS_REPLICA (TG_RIGHT_READ | TG_RIGHT_WRITE | TG_RIGHT_ATOMIC)

/* Above every kind of objects: TG_MMAP_EXPORT, _IMPORT, _QUEUE, _REPLICA and _REGISTRATION. */
#define TG_OBJECT_KINDS (TG_MMAP_REGISTRATION + 1)

/* Words of a status page that count stores taken. */
#define TG_TAKEN_WORDS (sizeof_field(struct tg_status_page, taken) / sizeof(u64))

/* The owner number under which the kernel dequeues. */
#define TG_OWNER_KERNEL U32_MAX

/*
 * To the boards the kernel's own objects (TG_KERNEL_PREFIX) are of a uid that no process of any
 * user namespace has, so no process is their owner.
 */
#define TG_UID_KERNEL ((u32)-1)

/* Every node, for tg_remotes_down(). */
#define TG_ALL_NODES U32_MAX

/* Nodes that a grant can name. */
#define TG_GRANT_NODES 256

/* The bits of a context's key. */
#define TG_KEY_MASK GENMASK_ULL(TG_CONTEXT_KEY_BITS - 1, 0)

/* The bits of a cookie. */
#define TG_COOKIE_MASK GENMASK_ULL(TG_CONTEXT_COOKIE_BITS - 1, 0)

/* A closing file waits this long in all for the board to release its objects. */
#define TG_CLOSE_PATIENCE (5 * HZ)

/*
 * After this long without a completion or event the driver reads a register of the board.
 * Not earlier: a server that is stopped for a moment loses its QEMU for good when it does not
 * answer a load in time, while posted stores wait for it.
 */
#define TG_SILENCE (5 * HZ)

/* Limit on retries of a command that finds a copy busy, in jiffies. */
#define TG_JOIN_PATIENCE (10 * HZ)

/*
 * Pause before a command is repeated that finds another in progress, whose waiter was killed,
 * in milliseconds.
 */
#define TG_CLEAR_AGAIN 20

/* A board that answers, but does not complete a quick command in this time, is dead. */
#define TG_ADMIN_PATIENCE (30 * HZ)

/**
 * enum tg_admin_class - what the completion of a command depends on
 * @TG_ADMIN_QUICK: Nothing.
 * @TG_ADMIN_REVOKE: Accesses to this guest's memory that are in flight.
 * @TG_ADMIN_DRAIN: Stores on their way to another node.
 * @TG_ADMIN_REMOTE: The answer of another node. The waiter can be killed.
 * @TG_ADMIN_OPERATION: As above, and for long: up to 16 MiB on their way.
 * @TG_ADMIN_CLASSES: Number of classes.
 *
 * Each class has slots of its own, so one never holds up another. In the classes that
 * wait for another node each context has a slot of its own, too: see struct tg_admin.
 */
enum tg_admin_class {
	TG_ADMIN_QUICK,
	TG_ADMIN_REVOKE,
	TG_ADMIN_DRAIN,
	TG_ADMIN_REMOTE,
	TG_ADMIN_OPERATION,
	TG_ADMIN_CLASSES,
};

/**
 * union tg_request - a command, in the board's byte order
 * @command: Most of them.
 * @launch: TG_ADMIN_LAUNCH.
 * @counter: TG_ADMIN_COUNTER_SET and TG_ADMIN_COUNTER_GET.
 * @queue: TG_ADMIN_QUEUE_SET.
 * @replica: TG_ADMIN_REPLICA_SET.
 *
 * The opcode, which all have in common, says which it is.
 */
union tg_request {
	struct tg_admin_command command;
	struct tg_admin_launch launch;
	struct tg_admin_counter counter;
	struct tg_admin_queue queue;
	struct tg_admin_replica replica;
};
static_assert(sizeof(union tg_request) == sizeof(struct tg_admin_command));

/* A list of what @_item makes of the name of each opcode. */
#define TG_OPCODES(_list, _item)					\
	_list(_item(CONTEXT_OPEN),					\
	      _item(CONTEXT_CLOSE),					\
	      _item(GRANT_SET),						\
	      _item(GRANT_CLEAR),					\
	      _item(SEGMENT_PUBLISH),					\
	      _item(SEGMENT_WITHDRAW),					\
	      _item(LOOKUP),						\
	      _item(IMPORT_SET),					\
	      _item(IMPORT_CLEAR),					\
	      _item(IMPORT_ACK),					\
	      _item(LAUNCH),						\
	      _item(COUNTER_SET),					\
	      _item(COUNTER_GET),					\
	      _item(QUEUE_SET),						\
	      _item(QUEUE_RESUME),					\
	      _item(REPLICA_SET),					\
	      _item(REPLICA_CLEAR),					\
	      _item(REPLICA_MOVE),					\
	      _item(REPLICA_INVALID),					\
	      _item(GRANT_RANGE),					\
	      _item(GRANT_GATED))

/**
 * struct tg_admin_block - one command slot in memory shared with the board
 * @request: The driver's command.
 * @completion: The board's completion of it.
 */
struct tg_admin_block {
	union tg_request request;
	struct tg_admin_completion completion;
};
static_assert(sizeof(struct tg_admin_block) == TG_ADMIN_BLOCK_SIZE);
static_assert(offsetof(struct tg_admin_block, completion) == TG_ADMIN_COMPLETION);

/**
 * struct tg_lengths - lengths of a segment of another node that are accepted
 * @least: Bytes.
 * @most: Bytes.
 */
struct tg_lengths {
	u64 least;
	u64 most;
};

/**
 * struct tg_admin_result - a completion, in the processor's byte order
 * @status: TG_OK or TG_ERR_*.
 * @index: First export page.
 * @count: Number of units.
 * @generation: Of a grant; or the reads left.
 * @length: Bytes; or an atomic's previous value; or the writes left.
 * @rights: TG_RIGHT_* granted.
 * @width: Bytes of a queue's word; 0 if it is not a queue.
 */
struct tg_admin_result {
	u32 status;
	u32 index;
	u32 count;
	u64 generation;
	u64 length;
	u32 rights;
	u32 width;
};

/**
 * struct tg_admin_slot - the driver's side of a command slot
 * @seq: Sequence number of its last command.
 * @class: What its command may have to wait for.
 * @account: Account it is charged to: a context's, or the driver's own.
 * @done: @result is valid.
 * @abandoned: The waiter was killed; the slot is free again at completion.
 * @result: The completion.
 * @wait: The waiter.
 */
struct tg_admin_slot {
	u32 seq;
	enum tg_admin_class class;
	u32 account;
	bool done;
	bool abandoned;
	struct tg_admin_result result;
	wait_queue_head_t wait;
};

/**
 * struct tg_admin_shares - how the slots of a class are divided
 * @first: The first slot.
 * @count: Number of slots.
 * @division: Among accounts.
 * @borrowed: Slots held beyond guarantees.
 */
struct tg_admin_shares {
	u32 first;
	u32 count;
	struct tg_division division;
	u32 borrowed;
};

/**
 * struct tg_admin - the command slots
 * @blocks: Shared with the board.
 * @dma: Where the board finds them.
 * @count: Number of slots.
 * @accounts: Number of accounts: the contexts', and the driver's own, which is last.
 * @lock: Protects what follows but @wait.
 * @shares: How the slots are divided, by class.
 * @held: Slots in use, by account and class.
 * @busy: Slots in use.
 * @slot: The driver's side.
 * @wait: Waiters for a free slot.
 *
 * A command that waits for another node can wait for long, and a process can issue many of
 * them. Slots that it holds beyond its guarantee come out of the pool of the class, so
 * another process's command never waits for a slot that it holds.
 */
struct tg_admin {
	struct tg_admin_block *blocks;
	dma_addr_t dma;
	u32 count;
	u32 accounts;
	spinlock_t lock;
	struct tg_admin_shares shares[TG_ADMIN_CLASSES];
	u32 *held;
	unsigned long *busy;
	struct tg_admin_slot *slot;
	wait_queue_head_t wait;
};

/**
 * enum tg_resource - countable resources of the board
 * @TG_RESOURCE_CONTEXTS: Contexts.
 * @TG_RESOURCE_IMPORTS: Imports.
 * @TG_RESOURCE_PAGES: Export pages, of which each segment, queue and replicated segment
 *	has at least one.
 * @TG_RESOURCE_COUNTERS: Page access counters.
 * @TG_RESOURCE_SLOTS: Window slots, of each node by itself.
 * @TG_RESOURCES: Number of resources.
 */
enum tg_resource {
	TG_RESOURCE_CONTEXTS,
	TG_RESOURCE_IMPORTS,
	TG_RESOURCE_PAGES,
	TG_RESOURCE_COUNTERS,
	TG_RESOURCE_SLOTS,
	TG_RESOURCES,
};

/**
 * struct tg_shares - how a resource is divided
 * @capacity: Units in all.
 * @division: Among open files; of contexts, among users.
 * @file_limit: Units that one open file holds at most; of contexts, one process.
 * @user_limit: Units that the files of one user hold at most together.
 * @refused: Number of requests that were refused.
 */
struct tg_shares {
	u32 capacity;
	struct tg_division division;
	u32 file_limit;
	u32 user_limit;
	atomic64_t refused;
};

/**
 * struct tg_user - a user that has files of a board open, or holds something of it
 * @node: In tg_device.users.
 * @uid: The user that opened them.
 * @files: Number of them. Under tg_device.lock.
 * @held: Units held, by tg_account_of(). Under tg_device.lock.
 */
struct tg_user {
	struct list_head node;
	kuid_t uid;
	u32 files;
	u32 held[];
};

/**
 * struct tg_events - the event queue
 * @ring: Shared with the board.
 * @dma: Where the board finds it.
 * @index: @consumed as the board reads it, once it has stored an entry.
 * @index_dma: Where the board finds that.
 * @size: Number of entries, a power of two.
 * @consumed: Running count of events handled. Changed by a thread that holds @lock and has set
 *	@threaded, or else by the interrupt under @guard.
 * @announced: @consumed when EVENT_CONSUMER was written last. Changed as @consumed.
 * @guard: Protects @threaded.
 * @threaded: A thread consumes.
 * @lock: Held by threads while consuming.
 * @ack_error: Lets the board report its next error, a while after the last.
 */
struct tg_events {
	struct tg_event *ring;
	dma_addr_t dma;
	__le32 *index;
	dma_addr_t index_dma;
	u32 size;
	u32 consumed;
	u32 announced;
	spinlock_t guard;
	bool threaded;
	struct mutex lock;
	struct delayed_work ack_error;
};

/**
 * struct tg_jobs - the works of a board's files
 * @workers: Does them. Outlives the files.
 * @lock: Protects what follows, and what the files and jobs have of it.
 * @division: How many run at a time, among files.
 * @borrowed: Works that run beyond guarantees.
 * @files: Files with works that wait for the pool.
 */
struct tg_jobs {
	struct workqueue_struct *workers;
	spinlock_t lock;
	struct tg_division division;
	u32 borrowed;
	struct list_head files;
};

/**
 * struct tg_job - a work of a file
 * @work: As the workqueue has it.
 * @node: In tg_file.jobs, until it may run.
 * @file: The file.
 * @run: What it does.
 * @queued: It is to run, and has not begun. Under tg_jobs.lock.
 */
struct tg_job {
	struct work_struct work;
	struct list_head node;
	struct tg_file *file;
	void (*run)(struct tg_job *job);
	bool queued;
};

/**
 * struct tg_device_ops - what the files below call of those above them, see the top of this file
 * @lost: The board does not answer: declares it gone, unmaps all of it and wakes all waiters. May
 *	be called again. May sleep.
 * @command_done: Event: a command is complete. The number of its slot.
 * @import: Event: the state of an import, by its number.
 * @nodes_down: Event: the imports of a node, or of TG_ALL_NODES, are void. Why, TG_ERR_*.
 * @node_up: Event: another node has come.
 * @counter: Event: a page access counter got to 0. Its number; TG_COUNTER_* bits.
 * @queue: Event: the state of a queue.
 * @replica: Event: the state of a replicated page, and its home.
 * @direct: Event: the memory of the trust group has changed.
 *
 * Events are handled by threads, under tg_events.lock. All may sleep.
 */
struct tg_device_ops {
	void (*lost)(struct tg_device *tg);
	void (*command_done)(struct tg_device *tg, u32 n);
	void (*import)(struct tg_device *tg, u32 index, u64 value);
	void (*nodes_down)(struct tg_device *tg, u32 node, u32 status);
	void (*node_up)(struct tg_device *tg, u32 node);
	void (*counter)(struct tg_device *tg, u32 n, u64 value);
	void (*queue)(struct tg_device *tg, u64 value);
	void (*replica)(struct tg_device *tg, u32 home, u64 value);
	void (*direct)(struct tg_device *tg);
};

/**
 * struct tg_device - a board
 * @ops: What the files below call of those above them.
 * @dev: The class device; its release frees this.
 * @boards: Among the boards that clients use. Under tg_clients_lock.
 * @client: What the client has for it, or NULL. Under tg_clients_lock.
 * @cdev: The character device.
 * @number: N of its name telegraphosN; -1 when it is removed.
 * @pdev: The PCI device; used only under @op_lock with @gone unset, and by
 *	remove().
 * @regs: BAR0.
 * @contexts_io: BAR2.
 * @contexts_base: Physical address of BAR2.
 * @window_base: Physical address of BAR4.
 * @mapping_inode: Its i_mapping holds every user mapping of the board, so one
 *	call zaps a range wherever the device node was opened from.
 * @node: This node's id.
 * @nodes: Number of nodes in the window.
 * @node_bits: log2 of it.
 * @offset_bits: log2 of the window bytes per node.
 * @contexts: Number of contexts.
 * @import_limit: Number of imports.
 * @export_pages: Number of export pages.
 * @counter_limit: Number of page access counters.
 * @op_lock: See the top of this file.
 * @map_lock: See the top of this file.
 * @gone: The board is removed or does not answer. Written under @map_lock.
 * @stopped: It has been taken down and cannot write memory any more. Under
 *	@op_lock.
 * @last_sign: When the board last completed a command or posted an event, in
 *	jiffies.
 * @watch: Checks the board periodically while a file is open.
 * @counter_lock: See the top of this file.
 * @counters: Page access counters by number. Changed under @counter_lock and
 *	@lock.
 * @wake_lock: See the top of this file.
 * @lock: Protects the next eleven, but those that say otherwise.
 * @contexts_used: Contexts in use.
 * @files: File that gets a context's events, or NULL, by context. Changed under @wake_lock, too.
 * @pages_used: Export pages in use.
 * @slots_used: Window slots in use, one bitmap per node, made when needed.
 * @users: Users that have files open, or hold units.
 * @borrowed: Units held beyond guarantees, by tg_account_of().
 * @shares: How the resources are divided. Not under @lock.
 * @names_refused: Names of the kernel's own objects that programs were refused. Not under @lock.
 * @slots: Window slots per node.
 * @memories: All memory the board may write for user processes.
 * @remains: Objects that were torn down while the board had not released them, and was not
 *	stopped. Added to under @op_lock for reading.
 * @objects: Exports, imports, queues and replicated segments, by kind and handle. Changed
 *	under @map_lock.
 * @watched: Queues and replicated segments by export page, for events. Entries are removed under
 *	@map_lock.
 * @admin: Command slots.
 * @events: Event queue.
 * @jobs: Works of its files.
 * @debugfs: Its directory there.
 * @direct: What is known of its memory device; NULL if it can have none. Set before the board
 *	posts events, and until it posts none any more.
 * @direct_work: Makes imports direct.
 */
struct tg_device {
	const struct tg_device_ops *ops;
	struct device dev;
	struct list_head boards;
	void *client;
	struct cdev cdev;
	int number;
	struct pci_dev *pdev;
	void __iomem *regs;
	void __iomem *contexts_io;
	phys_addr_t contexts_base;
	phys_addr_t window_base;
	struct inode *mapping_inode;

	u32 node;
	u32 nodes;
	u32 node_bits;
	u32 offset_bits;
	u32 contexts;
	u32 import_limit;
	u32 export_pages;
	u32 counter_limit;

	struct rw_semaphore op_lock;
	struct rw_semaphore map_lock;
	bool gone;
	bool stopped;
	unsigned long last_sign;
	struct delayed_work watch;

	struct mutex counter_lock;
	struct tg_page_counter *counters;

	spinlock_t wake_lock;

	struct mutex lock;
	unsigned long *contexts_used;
	struct tg_file **files;
	unsigned long *pages_used;
	unsigned long **slots_used;
	struct list_head users;
	u32 *borrowed;
	struct tg_shares shares[TG_RESOURCES];
	atomic64_t names_refused;
	u32 slots;
	struct list_head memories;
	struct list_head remains;

	struct xarray objects[TG_OBJECT_KINDS];
	struct xarray watched;

	struct tg_admin admin;
	struct tg_events events;
	struct tg_jobs jobs;
	struct dentry *debugfs;

	struct tg_direct *direct;
	struct work_struct direct_work;
};

/**
 * struct tg_page_counter - a page access counter
 * @remote: Import through which its page was named; NULL: it is free.
 * @page: Export page that it counts accesses to, at the node of @remote.
 * @eventfd: Signalled when it gets to 0, or NULL.
 * @armed: TG_COUNTER_* bits of what it counts.
 * @fired: Those that have got to 0.
 */
struct tg_page_counter {
	struct tg_remote *remote;
	u32 page;
	struct eventfd_ctx *eventfd;
	u32 armed;
	u32 fired;
};

/**
 * struct tg_chunk - physically contiguous memory
 * @page: Its first page.
 * @dma: Its address for the board.
 */
struct tg_chunk {
	struct page *page;
	dma_addr_t dma;
};

/**
 * struct tg_pins - pages of a process that are pinned
 * @ref: Held by the memory, and while the pages are compared with others.
 * @table: What of them is adjacent for the board.
 * @mapped: The board can reach it.
 * @count: Number of pinned pages.
 * @pages: The pages.
 */
struct tg_pins {
	struct kref ref;
	struct sg_table table;
	bool mapped;
	unsigned long count;
	struct page *pages[];
};

/**
 * struct tg_memory - memory the board may write
 * @node: In tg_device.memories, from when the board may reach it to release.
 * @owner: User that its locked memory is charged to, or NULL.
 * @charged: Number of pages charged to @owner.
 * @chunk_size: Bytes of each chunk.
 * @direct: Memory device of a direct segment, or NULL.
 * @unit: Of a direct segment: its first unit in this node's slice.
 * @pins: Pages of a process, or NULL.
 * @count: Number of chunks.
 * @chunk: The chunks; those of a direct segment lie one after the other, and have no pages.
 *
 * Before it is in the list it is released by its maker. From then on it is released when the
 * board has confirmed that it cannot reach it any more, or by remove() when the board cannot write
 * at all: each of them takes it off the list first, under op_lock or after all holders of that.
 */
struct tg_memory {
	struct list_head node;
	struct user_struct *owner;
	unsigned long charged;
	size_t chunk_size;
	struct tg_direct *direct;
	u32 unit;
	struct tg_pins *pins;
	u32 count;
	struct tg_chunk chunk[];
};

/**
 * struct tg_client_ops - callbacks of a client for events
 * @event: There is a CONTEXT event of its file. In any context, with interrupts off.
 * @changed: The state of an import or of the file's context has changed, or the board is gone.
 *	Under locks of the driver: it must not sleep.
 */
struct tg_client_ops {
	void (*event)(struct tg_file *file);
	void (*changed)(struct tg_file *file);
};

/**
 * struct tg_file - an open file, and its context on the board
 * @tg: The board.
 * @ops: Of a file that the kernel has open for itself: callbacks for its events. Else NULL.
 * @private: For these.
 * @kernel: It is the kernel's own, and may use names that begin with TG_KERNEL_PREFIX.
 * @context: Context number.
 * @key: The context's key, which stores of arguments to the context must carry.
 * @ref: Held by the open file, and by the context until it is closed.
 * @user: The user that opened it.
 * @owner: User that its objects' locked memory is charged to, whatever process makes them.
 * @opener: The process that opened it.
 * @held: Units held, by tg_account_of(). Under tg_device.lock.
 * @jobs: Its works that may not run yet. This and the next three under tg_jobs.lock.
 * @jobs_wait: In tg_jobs.files.
 * @jobs_held: Number of its works that run, or have been started.
 * @jobs_count: The same, and those in @jobs.
 * @idle: Waiters for the end of them.
 * @users: The open file and each of its objects.
 * @work: Closes the context, after the last user.
 * @closed: The context has left the board, or the board has left.
 * @status: The status page.
 * @alerts: Number of imports that poll() reports. Under map_lock.
 * @events: Number of CONTEXT events since the last read().
 * @wait: Readers that wait for them, and pollers.
 * @notify: Signalled at each of them, or NULL. Changed under tg_device.lock and
 *	tg_device.wake_lock.
 * @congested: Launches or stores of its processes to its context page wait at the board.
 *	Under map_lock.
 * @calm: Faults that wait for the end of congestion.
 * @taken_used: Words of the status page in use by own imports. Under
 *	tg_device.lock.
 * @nowhere: What the mappings of soft imports that are gone lead to, and those of a soft file
 *	whose board is; or NULL.
 * @soft: Its context page, status page and exports raise no SIGBUS when the board is gone.
 */
struct tg_file {
	struct tg_device *tg;
	const struct tg_client_ops *ops;
	void *private;
	bool kernel;
	u32 context;
	u64 key;
	struct kref ref;
	struct tg_user *user;
	struct user_struct *owner;
	struct pid *opener;
	u32 *held;
	struct list_head jobs;
	struct list_head jobs_wait;
	u32 jobs_held;
	u32 jobs_count;
	wait_queue_head_t idle;
	refcount_t users;
	struct work_struct work;
	struct completion closed;
	struct tg_memory *status;
	u32 alerts;
	atomic64_t events;
	wait_queue_head_t wait;
	struct eventfd_ctx *notify;
	bool congested;
	wait_queue_head_t calm;
	DECLARE_BITMAP(taken_used, TG_TAKEN_WORDS);
	struct page *nowhere;
	bool soft;
};

/**
 * struct tg_object_ops - methods of a kind of objects
 * @kind: TG_MMAP_EXPORT, TG_MMAP_IMPORT, TG_MMAP_QUEUE, TG_MMAP_REPLICA or TG_MMAP_REGISTRATION.
 * @charged: Each is one of TG_RESOURCE_IMPORTS. The others have at least one export page.
 * @publish: User processes may name it from now on. Under map_lock for writing. NULL if
 *	nothing is left to do.
 * @quiet: It is closed: wakes all waiters. Under map_lock for writing. NULL if it can have
 *	none.
 * @end: Ends all work on it, without op_lock, which workers need. NULL if it has none.
 * @leave: Removes it from the board, finished or not, mapped nowhere, ended, under op_lock
 *	for reading. True if the board has released it.
 * @unwatch: Events do not find it any more. With its removal from the table, under map_lock for
 *	writing. NULL if none are about it.
 * @left: It has been removed from the table. NULL if nothing is left to do.
 * @free: Frees it after the last reference.
 */
struct tg_object_ops {
	u32 kind;
	bool charged;
	void (*publish)(struct tg_object *obj);
	void (*quiet)(struct tg_object *obj);
	void (*end)(struct tg_object *obj);
	bool (*leave)(struct tg_object *obj);
	void (*unwatch)(struct tg_object *obj);
	void (*left)(struct tg_object *obj);
	void (*free)(struct tg_object *obj);
};

/**
 * struct tg_object - what exports, imports, queues and replicated segments have in
 *	common
 * @ref: Held until its teardown, by mappings, and by tg_object_find().
 * @file: The file that made it; valid until it is torn down.
 * @tg: The board.
 * @ops: Methods of its kind.
 * @kind: That of @ops.
 * @handle: Its number.
 * @size: Bytes that can be mapped.
 * @open: User processes may name it. Under map_lock.
 * @dead: Its pages are gone: for good, or, of a replicated segment and its own import,
 *	until it has a home again. Under map_lock.
 * @part: It is the own import of a replicated segment, with which alone it is closed.
 * @teardown: Tears it down.
 * @closing: Among the objects a closing file waits for.
 * @remains: In tg_device.remains.
 * @torn_down: It has left the board, or the board has left.
 */
struct tg_object {
	struct kref ref;
	struct tg_file *file;
	struct tg_device *tg;
	const struct tg_object_ops *ops;
	u32 kind;
	u32 handle;
	u64 size;
	bool open;
	bool dead;
	bool part;
	struct tg_job teardown;
	struct list_head closing;
	struct list_head remains;
	struct completion torn_down;
};

/**
 * struct tg_segment - exported memory
 * @obj: Common part.
 * @first: First export page.
 * @count: Number of export pages, 0 if none are reserved.
 * @granted: Number of those granted.
 * @generation: Of their grant.
 * @published: The name is registered at the board.
 * @name: The name, NUL-padded.
 * @memory: The memory.
 */
struct tg_segment {
	struct tg_object obj;
	u32 first;
	u32 count;
	u32 granted;
	u64 generation;
	bool published;
	u8 name[64];
	struct tg_memory *memory;
};

/**
 * struct tg_nqueue - a notification queue of this node
 * @seg: Its export page, name and arena.
 * @about: Description for processes that attach.
 * @control_memory: The control page.
 * @lock: See the top of this file.
 * @control: The control page, which processes may write arbitrarily.
 * @buffers: The buffers. Under @lock.
 * @handler: State of overflow handling. Under @lock.
 * @waits: TG_QUEUE_FULL stays set until the BUSY consumer leaves. Written under @lock.
 * @deadline: End of that wait, in jiffies. Under @lock.
 * @status: Why it is dead, TG_ERR_*, or 0. Under @lock.
 * @revoke: It is dead, and its grant is to be revoked. Under @lock.
 * @limits: Number of limit events. Under @lock.
 * @overflows: Number of overflows handled. Under @lock.
 * @evictions: How often all mappings were taken away. Under @lock.
 * @wait: Waiters for the end of @waits.
 * @work: Handles overflows, events and processes that have gone.
 * @hold: Evicts a consumer at @deadline.
 * @guard: See the top of this file.
 * @ended: No new work is started. Written under @guard.
 * @news: TG_QUEUE_EVENT_* bits not yet handled. Under @guard.
 * @broken: Status that came with them. Under @guard.
 * @holders: Processes that may dequeue. Under @guard.
 * @holder_count: Number of them. Under @guard.
 * @last_owner: Owner number given last. Under @guard.
 */
struct tg_nqueue {
	struct tg_segment seg;
	struct tg_queue about;
	struct tg_memory *control_memory;
	struct mutex lock;
	struct tg_queue_control *control;
	struct tg_buffers buffers;
	struct tg_handler handler;
	bool waits;
	unsigned long deadline;
	u32 status;
	bool revoke;
	u64 limits;
	u64 overflows;
	u64 evictions;
	wait_queue_head_t wait;
	struct work_struct work;
	struct delayed_work hold;
	spinlock_t guard;
	bool ended;
	u32 news;
	u32 broken;
	struct list_head holders;
	u32 holder_count;
	u32 last_owner;
};

/**
 * struct tg_remote - imported memory
 * @obj: Common part.
 * @node: Node of the memory.
 * @slot: First window slot.
 * @count: Number of window slots, 0 if none are reserved.
 * @page: First export page there.
 * @rights: TG_RIGHT_* it was imported with.
 * @taken: Of an own import: 1 + the word of the status page that counts its stores
 *	taken; else 0.
 * @set: It is open at the board.
 * @state: TG_STATE_*. Under map_lock.
 * @status: Latched TG_ERR_*, 0 if none. Under map_lock.
 * @alert: Counted in tg_file.alerts. Under map_lock.
 * @wait: Faults that wait for the end of congestion.
 * @generation: Of the grant of its pages.
 * @direct: Memory device through which its plain window is mapped directly, or NULL. Under
 *	map_lock.
 * @direct_place: Place of its node among the members of the trust group.
 * @direct_unit: Its first unit in that node's slice.
 * @trapped: Its plain window is the board's, in spite of @direct. Under map_lock.
 * @settles: It is to be direct again once the board has none of its stores: faults wait. Under
 *	map_lock.
 * @soft: When it is dead, its windows lead to tg_file.nowhere.
 */
struct tg_remote {
	struct tg_object obj;
	u32 node;
	u32 slot;
	u32 count;
	u32 page;
	u32 rights;
	u32 taken;
	bool set;
	u32 state;
	u32 status;
	bool alert;
	wait_queue_head_t wait;
	u64 generation;
	struct tg_direct *direct;
	u32 direct_place;
	u32 direct_unit;
	bool trapped;
	bool settles;
	bool soft;
};

/**
 * struct tg_source - pages that a segment's are copies of
 * @node: Where they are: at this node, if it is the home.
 * @page: First export page there.
 * @generation: Of their grant there.
 */
struct tg_source {
	u32 node;
	u32 page;
	u64 generation;
};

/**
 * struct tg_replica_page - one page of a replicated segment
 * @home: Home node, or TG_REPLICA_HERE. Under map_lock.
 * @moves: Number of events that announced another home. Under map_lock.
 * @losses: Number of events that invalidated the copy after a store. Under map_lock.
 * @tries: Number of fills for waiting faults, successful or not.
 * @valid: Processes may map it. Written under map_lock for writing.
 * @awaited: It has been filled for waiting faults, and none has mapped it yet.
 * @filled: When, in jiffies. Under map_lock.
 * @seen: When the first of them mapped it, in nanoseconds since the start.
 */
struct tg_replica_page {
	u32 home;
	u32 moves;
	u32 losses;
	u32 tries;
	bool valid;
	bool awaited;
	unsigned long filled;
	u64 seen;
};

/**
 * struct tg_replicated - a replicated segment of this node: the home, or a copy
 * @seg: Its export pages, name and memory.
 * @lock: See the top of this file.
 * @offer: Secret, size, nodes and rights that it offers when this node is the home.
 * @mode: TG_REPLICA_*.
 * @rights: TG_RIGHT_* of its processes.
 * @source: Home that it was made a copy of. Under @lock.
 * @own: The import through which they store to it. Set under map_lock.
 * @set: Number of its pages that may be replicated at the board. Under @lock.
 * @status: Why it is an orphan, TG_ERR_*, or 0. Under map_lock.
 * @pages: Its pages.
 * @page_count: Number of them.
 * @wanted: Pages that faults wait for, one bit each.
 * @unacked: Pages whose invalidation the board waits to have acknowledged, one bit each.
 * @wait: Faults that wait for pages.
 * @fill: Fills them.
 * @ack: Acknowledges invalidations.
 * @ack_lock: See the top of this file.
 * @left: The board waits for no acknowledgement any more. Under @ack_lock.
 */
struct tg_replicated {
	struct tg_segment seg;
	struct mutex lock;
	struct tg_export offer;
	u32 mode;
	u32 rights;
	struct tg_source source;
	struct tg_remote *own;
	u32 set;
	u32 status;
	struct tg_replica_page *pages;
	u32 page_count;
	unsigned long *wanted;
	unsigned long *unacked;
	wait_queue_head_t wait;
	struct tg_job fill;
	struct delayed_work ack;
	struct mutex ack_lock;
	bool left;
};

/**
 * struct tg_registration - registered memory of a process
 * @seg: Its range, name and memory.
 * @process: The process that has registered it; debugfs shows it.
 * @address: Address of its first byte there.
 * @runs: What of it is adjacent for the board.
 * @pinned: Number of pages that are pinned; debugfs shows it.
 * @own: The import by which the process names it. Set under map_lock.
 * @notifier: Watches the address space.
 * @watched: @notifier is in use.
 * @mm: The address space, if it is.
 * @check: Looks whether the memory is still there.
 * @wait: Waiters for the end of a look.
 * @guard: See the top of this file. Protects what follows.
 * @ready: It is published: @check may run.
 * @notified: Number of notifications after which it looks.
 * @looked: Number of those that it has looked after.
 * @unmapped: Some of the addresses are no longer of this memory.
 * @suspect_start: First address that may not be.
 * @suspect_end: End of those addresses.
 */
struct tg_registration {
	struct tg_segment seg;
	struct pid *process;
	unsigned long address;
	u32 runs;
	unsigned long pinned;
	struct tg_remote *own;
	struct mmu_interval_notifier notifier;
	bool watched;
	struct mm_struct *mm;
	struct tg_job check;
	wait_queue_head_t wait;
	spinlock_t guard;
	bool ready;
	u64 notified;
	u64 looked;
	bool unmapped;
	unsigned long suspect_start;
	unsigned long suspect_end;
};

/* The segment that an object of any kind but TG_MMAP_IMPORT is part of. */
#define tg_segment_of(_obj) container_of(_obj, struct tg_segment, obj)

/* The registration that an object of kind TG_MMAP_REGISTRATION is part of. */
#define tg_registration_of(_obj) container_of(_obj, struct tg_registration, seg.obj)

/* The queue that an object of kind TG_MMAP_QUEUE is part of. */
#define tg_queue_of(_obj) container_of(_obj, struct tg_nqueue, seg.obj)

/* The import that an object of kind TG_MMAP_IMPORT is part of. */
#define tg_remote_of(_obj) container_of(_obj, struct tg_remote, obj)

/* The replicated segment that an object of kind TG_MMAP_REPLICA is part of. */
#define tg_replica_of(_obj) container_of(_obj, struct tg_replicated, seg.obj)

/**
 * tg_queue_word() - the word for mutual exclusion of a queue's consumers and its driver
 * @queue: Queue.
 *
 * Return: Its address. Processes may write it arbitrarily.
 */
static inline atomic64_t *tg_queue_word(struct tg_nqueue *queue)
{
	static_assert(sizeof(queue->control->state) == sizeof(atomic64_t));
	return (atomic64_t *)&queue->control->state;
}

/**
 * tg_mmap_offset() - mmap offset of an object
 * @kind: TG_MMAP_*.
 * @handle: Its handle.
 *
 * Return: Offset in bytes.
 */
static inline loff_t tg_mmap_offset(u32 kind, u32 handle)
{
	return (loff_t)kind << TG_MMAP_KIND_SHIFT |
	       (loff_t)handle << TG_MMAP_HANDLE_SHIFT;
}

/**
 * tg_object_named() - an object that a file may name
 * @file: File. The caller holds map_lock.
 * @kind: TG_MMAP_EXPORT, _IMPORT, _QUEUE, _REPLICA or _REGISTRATION.
 * @handle: Its handle.
 *
 * Return: The object, or NULL if the file has no such object.
 */
static inline struct tg_object *tg_object_named(const struct tg_file *file, u32 kind,
						u32 handle)
{
	struct tg_object *obj = xa_load(&file->tg->objects[kind], handle);

	lockdep_assert_held(&file->tg->map_lock);
	return obj && obj->file == file && obj->open ? obj : NULL;
}

/**
 * tg_pages() - pages of a mapping
 * @size: Bytes that can be mapped.
 *
 * Return: Their number, the last of which may be mapped in part.
 */
static inline unsigned long tg_pages(u64 size)
{
	return DIV_ROUND_UP(size, PAGE_SIZE);
}

/**
 * tg_name_length() - the length of a name, for %*pE
 * @name: Name of at most 63 bytes, from a process or another node.
 *
 * Return: Its length.
 */
static inline int tg_name_length(const u8 *name)
{
	return strnlen(name, 63);
}

/**
 * tg_put_nodes() - encodes the nodes of a grant for the board
 * @to: Field of the command.
 * @from: The nodes, one bit each.
 */
static inline void tg_put_nodes(__le64 to[4], const u64 from[4])
{
	u32 i;

	for (i = 0; i < 4; i++)
		to[i] = cpu_to_le64(from[i]);
}

/**
 * tg_gone() - whether the board is lost
 * @tg: Board.
 *
 * Return: True if no command will ever complete again.
 */
static inline bool tg_gone(const struct tg_device *tg)
{
	return READ_ONCE(tg->gone);
}

/**
 * tg_minor() - the number of a board, as in its name
 * @tg: Board.
 *
 * Return: N of /dev/telegraphosN.
 */
static inline u32 tg_minor(const struct tg_device *tg)
{
	return MINOR(tg->dev.devt);
}

/* device.c */
extern struct workqueue_struct *tg_workers;
extern struct workqueue_struct *tg_ack_workers;
extern atomic_t tg_files;
extern wait_queue_head_t tg_files_gone;
int tg_init_workers(void);
void tg_exit_workers(void);
bool tg_device_answers(struct tg_device *tg);
bool tg_device_memory_works(struct tg_device *tg);
void tg_device_check(struct tg_device *tg, unsigned long since);
void tg_device_watch(struct tg_device *tg);

/* zap.c */
void tg_zap(struct tg_object *obj);
void tg_zap_unit(struct tg_object *obj, u32 unit);
void tg_zap_all(struct tg_device *tg);
void tg_zap_context(struct tg_file *file);

/* sleep.c */
extern const struct dev_pm_ops tg_pm_ops;
int tg_sleep_init(struct pci_driver *boards, struct pci_driver *memory);
void tg_sleep_exit(void);

/* pins.c */
struct tg_pins *tg_pins_new(unsigned long count);
int tg_pins_pin(const struct tg_device *tg, struct tg_pins *pins, unsigned long start,
		unsigned long count, u64 *fault);
void tg_pins_unpin(struct tg_pins *pins);
void tg_pins_free(struct tg_device *tg, struct tg_pins *pins);
void tg_pins_put(struct tg_pins *pins);

/* connection.c */
int tg_name_of_connection(u8 name[64], int fd, bool import);

/* name.c */
int tg_name_take(struct tg_file *file, u8 name[64], u32 flags, int connection, bool import);

/* account.c */
int tg_accounts_init(struct tg_device *tg);
void tg_accounts_exit(struct tg_device *tg);
int tg_account_open(struct tg_file *file);
void tg_account_close(struct tg_file *file);
int tg_charge(struct tg_file *file, enum tg_resource resource, u32 node, u32 units);
void tg_uncharge(struct tg_file *file, enum tg_resource resource, u32 node, u32 units);

/* job.c */
int tg_jobs_init(struct tg_device *tg);
void tg_jobs_exit(struct tg_device *tg);
void tg_jobs_open(struct tg_file *file);
void tg_jobs_drain(struct tg_file *file);
void tg_job_work(struct work_struct *work);
void tg_job_set(struct tg_job *job, struct tg_file *file, void (*run)(struct tg_job *job));
bool tg_job_queue(struct tg_job *job);
void tg_job_cancel_sync(struct tg_job *job);

/**
 * tg_job_init() - makes a work of a file
 * @job: Zeroed job.
 * @file: Its file.
 * @run: What it does. It may free the job.
 *
 * The jobs of each caller are a class of their own for lockdep: a teardown waits for the end of
 * the last look at the same memory, which waits for no teardown.
 */
#define tg_job_init(job, file, run)			\
do {							\
	struct tg_job *_job = (job);			\
							\
	INIT_WORK(&_job->work, tg_job_work);		\
	tg_job_set(_job, file, run);			\
} while (0)

/* context.c */
void tg_context_event(struct tg_device *tg, u32 context);
void tg_context_state_event(struct tg_device *tg, u32 context, u64 value);
void tg_contexts_lost(struct tg_device *tg);
void tg_file_put(struct tg_file *file);
u32 tg_file_uid(const struct tg_file *file);
int tg_file_soften(struct tg_file *file);

/* events.c */
int tg_events_init(struct tg_device *tg);
void tg_events_exit(struct tg_device *tg);
void tg_events_consume(struct tg_device *tg);
irqreturn_t tg_irq(int irq, void *data);
irqreturn_t tg_irq_thread(int irq, void *data);

/* admin.c */
int tg_admin_init(struct tg_device *tg);
void tg_admin_exit(struct tg_device *tg);
void tg_admin_release(struct tg_device *tg);
void tg_admin_wake(struct tg_device *tg);
void tg_admin_collect(struct tg_device *tg, u32 n);
int tg_admin(struct tg_device *tg, const struct tg_file *file, enum tg_admin_class class,
	     const union tg_request *request, struct tg_admin_result *result);
int tg_admin_checked(struct tg_device *tg, const struct tg_file *file,
		     enum tg_admin_class class, const union tg_request *request,
		     struct tg_admin_result *result);
int tg_admin_exclusive(struct tg_device *tg, const union tg_request *request,
		   unsigned long end);
int tg_status_to_errno(u32 status);

/* object.c */
int tg_object_init(struct tg_object *obj, struct tg_file *file,
		   const struct tg_object_ops *ops, u32 limit);
void tg_object_publish(struct tg_object *obj);
struct tg_object *tg_object_find(struct tg_file *file, u32 kind, u32 handle);
void tg_object_put(struct tg_object *obj);
void tg_object_discard(struct tg_object *obj);
int tg_object_close(struct tg_call *call);
void tg_object_close_within(struct tg_object *obj, unsigned long patience);
void tg_object_kill_locked(struct tg_object *obj);
void tg_object_end(struct tg_object *obj);
void tg_objects_forget(struct tg_device *tg);
void tg_file_close_objects(struct tg_file *file, unsigned long end);

/* direct.c */
extern struct pci_driver tg_direct_driver;
void tg_direct_group(struct tg_device *tg, u8 name[64]);
int tg_direct_allocate(struct tg_device *tg, const u8 group[64], struct tg_memory *memory,
		       u32 count);
void tg_direct_free(struct tg_memory *memory);
void tg_direct_publish(const struct tg_segment *segment);
unsigned long tg_direct_pfn(const struct tg_memory *memory, unsigned long page);
void tg_direct_import(struct tg_remote *remote);
void tg_direct_leave(struct tg_remote *remote);
unsigned long tg_direct_window_pfn(const struct tg_remote *remote, unsigned long page);
void tg_direct_trap(struct tg_device *tg, u32 node, u32 page);
void tg_direct_untrap(struct tg_device *tg, u32 node, u32 page);
void tg_direct_recheck(struct tg_device *tg);
void tg_direct_show(struct seq_file *s, struct tg_device *tg);
void tg_direct_faulted(struct tg_direct *direct, bool huge);
int tg_direct_attach(struct tg_device *tg);
void tg_direct_detach(struct tg_device *tg);

/* memory.c */
struct tg_memory *tg_memory_new(struct tg_device *tg, size_t chunk_size,
				u32 count, struct user_struct *owner);
struct tg_memory *tg_memory_new_direct(struct tg_device *tg, const u8 group[64], u32 count,
				       struct user_struct *owner);
struct tg_memory *tg_memory_new_pinned(struct tg_pins *pins, unsigned long pages,
				       struct user_struct *owner);
void tg_memory_give(struct tg_device *tg, struct tg_memory *memory);
void tg_memory_discard(struct tg_memory *memory);
void tg_memory_free(struct tg_device *tg, struct tg_memory *memory);
void tg_memory_free_all(struct tg_device *tg);
unsigned long tg_memory_pfn(const struct tg_memory *memory, unsigned long page);

/* counter.c */
int tg_counter_arm(struct tg_call *call);
int tg_counter_read(struct tg_call *call);
int tg_counter_disarm(struct tg_call *call);
void tg_counters_end(struct tg_remote *remote);
void tg_counter_event(struct tg_device *tg, u32 n, u64 value);
void tg_counters_lost(struct tg_device *tg);

/* import.c */
int tg_remote_lookup(struct tg_file *file, struct tg_import *arg, const struct tg_lengths *accepted,
		     struct tg_admin_result *result);
int tg_remote_create(struct tg_call *call);
int tg_remote_create_own(const struct tg_segment *segment, u32 rights,
			 struct tg_remote **created);
int tg_remote_open_own(struct tg_remote *remote, u64 generation, u32 *status);
struct tg_remote *tg_remote_create_local(const struct tg_segment *segment, u32 rights);
int tg_remote_open_local(struct tg_remote *remote, u64 generation, u32 *status);
int tg_remote_close_own(struct tg_remote *remote);
void tg_remote_orphan(struct tg_remote *remote, u32 status);
void tg_remote_revive(struct tg_remote *remote);
void tg_remote_event(struct tg_device *tg, u32 index, u64 value);
void tg_remote_stale(struct tg_remote *remote);
void tg_remote_time_out(struct tg_remote *remote);
void tg_remotes_down(struct tg_device *tg, u32 node, u32 status);
void tg_remotes_lost(struct tg_device *tg);
int tg_remote_state(struct tg_call *call);
int tg_remote_ack(struct tg_call *call);

/* direct_event.c */
void tg_direct_event(struct tg_device *tg);
void tg_direct_work(struct work_struct *work);

/* export.c */
int tg_segment_init(struct tg_segment *segment, struct tg_file *file,
		    const struct tg_object_ops *ops, const u8 *name, u64 size);
int tg_segment_take_pages(struct tg_segment *segment, u32 count);
int tg_segment_allocate(struct tg_segment *segment, u32 count, const u8 *group);
int tg_segment_watch(struct tg_segment *segment);
void tg_segment_unwatch(struct tg_object *obj);
struct tg_segment *tg_segment_watched(struct tg_device *tg, u32 kind, u32 page);
int tg_segment_grant(struct tg_segment *segment, const struct tg_export *arg);
int tg_segment_announce(struct tg_segment *segment, const struct tg_export *arg);
int tg_segment_withdraw(struct tg_segment *segment);
int tg_segment_revoke(struct tg_segment *segment);
int tg_segment_create(struct tg_call *call);
bool tg_segment_release(struct tg_segment *segment);
bool tg_segment_leave(struct tg_object *obj);

/* queue_map.c */
s64 tg_holder_join(struct tg_nqueue *queue);
bool tg_holder_gone(struct tg_nqueue *queue, u32 *owner);
void tg_holders_evict(struct tg_nqueue *queue);
void tg_holders_free(struct list_head *list);
int tg_queue_mmap(struct tg_nqueue *queue, struct vm_area_struct *vma);

/* queue.c */
int tg_queue_create(struct tg_call *call);
int tg_queue_attach(struct tg_call *call);
int tg_queue_service(struct tg_call *call);
int tg_queue_state(struct tg_call *call);
int tg_queue_dequeue(struct tg_nqueue *queue, u64 __user *to);
void tg_queue_event(struct tg_device *tg, u64 value);
void tg_queues_lost(struct tg_device *tg);

/* replica_pages.c */
int tg_replica_pages_init(struct tg_replicated *replica, struct tg_file *file, u32 count,
			  u32 home);
void tg_replica_pages_exit(struct tg_replicated *replica);
void tg_replica_pages_rehome(struct tg_replicated *replica, u32 home);
u32 tg_replica_pages_home(const struct tg_replicated *replica);
bool tg_replica_pages_any_home(struct tg_replicated *replica);
void tg_replica_pages_forget(struct tg_replicated *replica);
void tg_replica_pages_leave(struct tg_replicated *replica);
void tg_replica_pages_end(struct tg_object *obj);
bool tg_replica_page_is_home(struct tg_replicated *replica, u32 i, u32 *moves);
void tg_replica_page_moved_here(struct tg_replicated *replica, u32 i, u32 moves);
void tg_replica_page_moved(struct tg_replicated *replica, u32 i, u32 home);
u32 tg_replica_page_losses(struct tg_replicated *replica, u32 i);
void tg_replica_page_filled(struct tg_replicated *replica, u32 i, u32 losses);
void tg_replica_page_lost(struct tg_replicated *replica, u32 i);
int tg_replica_set_page(struct tg_replicated *replica, const struct tg_source *source, u32 i,
			u32 *status);
void tg_replica_orphan(struct tg_replicated *replica, u32 status);
bool tg_replica_page_see(struct tg_replicated *replica, u32 i, u32 *tries);
void tg_replicas_lost(struct tg_device *tg);

/* replica.c */
int tg_replicate(struct tg_call *call);
int tg_replica_adopt(struct tg_call *call);
int tg_replica_move(struct tg_call *call);
int tg_replica_state(struct tg_call *call);
void tg_replica_event(struct tg_device *tg, u32 home, u64 value);

/* register.c */
int tg_register(struct tg_call *call);
int tg_registration_state(struct tg_call *call);

/* map.c */
int tg_mmap(struct file *filp, struct vm_area_struct *vma);

/* ioctl.c */
long tg_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);

/* file.c */
struct tg_file *tg_file_open(struct tg_device *tg, const struct tg_client_ops *ops, void *private);
void tg_file_close(struct tg_file *file);
extern const struct file_operations tg_fops;

/* client.c */
void tg_clients_add(struct tg_device *tg);
void tg_clients_leaving(struct tg_device *tg);
void tg_clients_remove(struct tg_device *tg);
void tg_clients_node(struct tg_device *tg, u32 node);

/* debugfs.c */
void tg_debugfs_init(void);
void tg_debugfs_exit(void);
void tg_debugfs_add(struct tg_device *tg);

#endif /* TELEGRAPHOS_DRIVER_H */
