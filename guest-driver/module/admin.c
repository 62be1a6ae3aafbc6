// SPDX-License-Identifier: GPL-2.0
/*
 * Commands to the board.
 *
 * A command is written into a slot in memory, started by a doorbell, and
 * completed by the board in the same slot. The interrupt wakes the waiter;
 * if one is lost, the waiter polls once a second.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>

#include "driver.h"
#include "trace.h"

#define TG_OPCODE_NAME(_name)		\
	[TG_ADMIN_##_name] = #_name
#define TG_OPCODE_NAMES(...) { __VA_ARGS__ }
static const char * const tg_opcode_names[] = TG_OPCODES(TG_OPCODE_NAMES, TG_OPCODE_NAME);

/* What the board's status codes look like to a process; 0 means EREMOTEIO. */
static const int tg_errnos[] = {
	[TG_ERR_UNMAPPED] = -ENXIO,
	[TG_ERR_RIGHTS] = -EACCES,
	[TG_ERR_STALE] = -ESTALE,
	[TG_ERR_NOT_GRANTED] = -EACCES,
	[TG_ERR_NODE_DOWN] = -EHOSTUNREACH,
	[TG_ERR_LINK_DOWN] = -ENETDOWN,
	[TG_ERR_TIMEOUT] = -ETIMEDOUT,
	[TG_ERR_BAD_NODE] = -EINVAL,
	[TG_ERR_PRIVATE_MEMORY] = -EOPNOTSUPP,
	[TG_ERR_MEMORY_FAULT] = -EFAULT,
	[TG_ERR_NO_SEGMENT] = -ENOENT,
	[TG_ERR_DENIED] = -EACCES,
	[TG_ERR_BUSY] = -EBUSY,
	[TG_ERR_INVALID] = -EINVAL,
	[TG_ERR_NO_SPACE] = -ENOSPC,
	[TG_ERR_NAME_TAKEN] = -EEXIST,
	[TG_ERR_BAD_KEY] = -EACCES,
	[TG_ERR_OVERLAP] = -EINVAL,
	[TG_ERR_LENGTH] = -EINVAL,
	[TG_ERR_NOT_LOCAL] = -EXDEV,
	[TG_ERR_ARGUMENT] = -EINVAL,
	[TG_ERR_QUEUE_HEADER] = -EIO,
	[TG_ERR_NOT_QUEUE] = -EINVAL,
	[TG_ERR_NO_HOLD] = -ENOSPC,
	[TG_ERR_MOVING] = -EBUSY,
	[TG_ERR_BAD_NAME] = -EINVAL,
};

/**
 * tg_status_to_errno() - errno for a status of the board
 * @status: TG_OK or TG_ERR_*.
 *
 * Return: 0 or a negative errno; -EREMOTEIO for a status without a closer one.
 */
int tg_status_to_errno(u32 status)
{
	if (status == TG_OK)
		return 0;
	if (status < ARRAY_SIZE(tg_errnos) && tg_errnos[status])
		return tg_errnos[status];
	return -EREMOTEIO;
}

static u32 *tg_admin_held(struct tg_admin *admin, u32 account, enum tg_admin_class class)
{
	return &admin->held[account * TG_ADMIN_CLASSES + class];
}

static bool tg_admin_take(struct tg_device *tg, u32 account, enum tg_admin_class class, u32 *n)
{
	struct tg_admin *admin = &tg->admin;
	struct tg_admin_shares *shares = &admin->shares[class];
	u32 *held = tg_admin_held(admin, account, class);
	u32 end = shares->first + shares->count;
	bool found;

	spin_lock(&admin->lock);
	*n = find_next_zero_bit(admin->busy, end, shares->first);
	found = *n < end && tg_division_allows(&shares->division, shares->borrowed, *held, 1);
	if (found) {
		__set_bit(*n, admin->busy);
		admin->slot[*n].class = class;
		admin->slot[*n].account = account;
		tg_division_take(&shares->division, &shares->borrowed, held, 1);
	}
	spin_unlock(&admin->lock);
	return found;
}

static void tg_admin_free_locked(struct tg_admin *admin, u32 n)
{
	struct tg_admin_slot *slot = &admin->slot[n];
	struct tg_admin_shares *shares = &admin->shares[slot->class];

	lockdep_assert_held(&admin->lock);
	slot->done = false;
	slot->abandoned = false;
	__clear_bit(n, admin->busy);
	tg_division_give(&shares->division, &shares->borrowed,
			 tg_admin_held(admin, slot->account, slot->class), 1);
	wake_up(&admin->wait);
}

static void tg_admin_decode(struct tg_admin_result *to, const struct tg_admin_completion *c)
{
	to->status = le32_to_cpu(c->status);
	to->index = le32_to_cpu(c->index);
	to->count = le32_to_cpu(c->count);
	to->generation = le64_to_cpu(c->generation);
	to->length = le64_to_cpu(c->length);
	to->rights = le32_to_cpu(c->rights);
	to->width = le32_to_cpu(c->width);
}

/* Whether the completion of slot n, numbered seq, is there. */
static bool tg_admin_read(struct tg_admin *admin, u32 n, u32 seq,
			  struct tg_admin_result *result)
{
	struct tg_admin_completion *from = &admin->blocks[n].completion;
	u64 word;

	/* The board writes {seq, status} last, as one word. */
	word = le64_to_cpu(READ_ONCE(*(__le64 *)&from->seq));
	if (lower_32_bits(word) != seq)
		return false;
	dma_rmb();
	tg_admin_decode(result, from);
	return true;
}

/**
 * tg_admin_collect() - takes the completion of a slot if it is there
 * @tg: Board.
 * @n: Slot number, as the board names it.
 */
void tg_admin_collect(struct tg_device *tg, u32 n)
{
	struct tg_admin *admin = &tg->admin;
	struct tg_admin_slot *slot;

	if (n >= admin->count)
		return;
	slot = &admin->slot[n];
	spin_lock(&admin->lock);
	if (test_bit(n, admin->busy) && !slot->done &&
	    tg_admin_read(admin, n, slot->seq, &slot->result)) {
		trace_tg_admin_completion(tg, n, slot->seq, &slot->result);
		if (slot->abandoned) {
			tg_admin_free_locked(admin, n);
		} else {
			WRITE_ONCE(slot->done, true);
			wake_up(&slot->wait);
		}
	}
	spin_unlock(&admin->lock);
}

static void tg_admin_ring(struct tg_device *tg, u32 n, const union tg_request *request)
{
	struct tg_admin_slot *slot = &tg->admin.slot[n];
	union tg_request *to = &tg->admin.blocks[n].request;

	/* Never 0, never that of the completion before. */
	if (++slot->seq == 0)
		slot->seq = 1;
	*to = *request;
	to->command.seq = cpu_to_le32(slot->seq);
	trace_tg_admin_command(tg, n, to);
	/* writel() orders the command before the doorbell. */
	writel(n, tg->regs + TG_REG_ADMIN_DOORBELL);
}

/**
 * tg_admin_exclusive() - has the board execute a command without concurrent ones
 * @tg: Board, not yet or no longer in use. Interrupts may be off.
 * @request: In the board's byte order.
 * @end: End of the wait, in jiffies.
 *
 * Return: 0 if the board has completed it, with any status; -ETIMEDOUT.
 */
int tg_admin_exclusive(struct tg_device *tg, const union tg_request *request,
		   unsigned long end)
{
	struct tg_admin *admin = &tg->admin;
	struct tg_admin_result result;
	u32 n = admin->count - 1;

	tg_admin_ring(tg, n, request);
	while (!tg_admin_read(admin, n, admin->slot[n].seq, &result)) {
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		usleep_range(50, 200);
	}
	trace_tg_admin_completion(tg, n, admin->slot[n].seq, &result);
	return 0;
}

/* Waits for the command in slot n: 0, -ENODEV, or -EINTR if killed. */
static int tg_admin_wait(struct tg_device *tg, enum tg_admin_class class, u32 n,
			 u32 opcode)
{
	struct tg_admin_slot *slot = &tg->admin.slot[n];
	unsigned long begun = jiffies;
	long left;

	for (;;) {
		if (class == TG_ADMIN_REMOTE || class == TG_ADMIN_OPERATION)
			left = wait_event_killable_timeout(slot->wait,
					READ_ONCE(slot->done) || tg_gone(tg), HZ);
		else
			left = wait_event_timeout(slot->wait,
					READ_ONCE(slot->done) || tg_gone(tg), HZ);
		if (READ_ONCE(slot->done))
			return 0;
		if (tg_gone(tg))
			return -ENODEV;
		if (left < 0)
			return -EINTR;

		/*
		 * In case an interrupt was lost. Events first: those posted before
		 * this completion are handled before it.
		 */
		tg_events_consume(tg);
		tg_admin_collect(tg, n);
		if (READ_ONCE(slot->done))
			return 0;
		tg_device_check(tg, begun);
		if (class == TG_ADMIN_QUICK && !tg_gone(tg) &&
		    time_after(jiffies, begun + TG_ADMIN_PATIENCE)) {
			dev_err(&tg->dev, "%s not completed in %u s: the board is declared gone; remove and re-plug it\n",
				tg_opcode_names[opcode], TG_ADMIN_PATIENCE / HZ);
			tg->ops->lost(tg);
		}
	}
}

/* Whether a command can fail so in normal operation. */
static bool tg_admin_is_expected(u32 opcode, u32 status)
{
	switch (opcode) {
	case TG_ADMIN_IMPORT_CLEAR:
	case TG_ADMIN_REPLICA_CLEAR:
		/* An import or a join was abandoned: tg_remote_clear(), tg_replica_clear(). */
		return status == TG_ERR_BUSY || status == TG_ERR_INVALID;
	case TG_ADMIN_REPLICA_MOVE:
	case TG_ADMIN_REPLICA_INVALID:
		/* The home has gone or moves elsewhere; the page was revoked before. */
		return true;
	default:
		return false;
	}
}

static void tg_admin_report(struct tg_device *tg, const union tg_request *request,
			      u32 status)
{
	const struct tg_admin_command *c = &request->command;
	u32 opcode = le32_to_cpu(c->opcode);

	if (opcode == TG_ADMIN_LAUNCH) {
		/* Processes get the status of their own launches. */
		dev_dbg(&tg->dev, "LAUNCH: status %u: context %u, operation %#x, import %u offset %#llx, import %u offset %#llx, length %llu\n",
			status, le16_to_cpu(request->launch.context), le16_to_cpu(request->launch.operation),
			le16_to_cpu(request->launch.target), le64_to_cpu(request->launch.target_offset),
			le16_to_cpu(request->launch.source), le64_to_cpu(request->launch.source_offset),
			le64_to_cpu(request->launch.length));
	} else if (opcode == TG_ADMIN_COUNTER_SET || opcode == TG_ADMIN_COUNTER_GET) {
		dev_err_ratelimited(&tg->dev, "%s failed with status %u: counter %u, node %u, page %u\n",
				    tg_opcode_names[opcode], status,
				    le32_to_cpu(request->counter.index), le32_to_cpu(request->counter.node),
				    le32_to_cpu(request->counter.page));
	} else if (opcode == TG_ADMIN_QUEUE_SET) {
		dev_err_ratelimited(&tg->dev, "QUEUE_SET failed with status %u: page %u, %u words of %u bytes, context %u, address %#llx\n",
				    status, le32_to_cpu(request->queue.page), le32_to_cpu(request->queue.words),
				    le32_to_cpu(request->queue.width), le32_to_cpu(request->queue.context),
				    le64_to_cpu(request->queue.address));
	} else if (opcode == TG_ADMIN_REPLICA_SET) {
		/* The home is none, has gone, or does not admit this node. */
		dev_dbg(&tg->dev, "REPLICA_SET: status %u: page %u, mode %u, home node %u, page %u, generation %llu\n",
			status, le32_to_cpu(request->replica.page), le32_to_cpu(request->replica.mode),
			le32_to_cpu(request->replica.node), le32_to_cpu(request->replica.home_page),
			le64_to_cpu(request->replica.home_generation));
	} else if (opcode == TG_ADMIN_LOOKUP || status == TG_ERR_NAME_TAKEN ||
		   (opcode == TG_ADMIN_IMPORT_SET && le16_to_cpu(c->rights) & TG_RIGHT_ENQUEUE)) {
		/*
		 * Processes get the status of a name that is absent or taken, and of a queue
		 * that is gone or has no room for another import.
		 */
		dev_dbg(&tg->dev, "%s \"%*pE\" at node %u: status %u\n",
			tg_opcode_names[opcode], tg_name_length(c->name), c->name,
			le16_to_cpu(c->node), status);
	} else if (tg_admin_is_expected(opcode, status)) {
		dev_dbg(&tg->dev, "%s %u: status %u\n", tg_opcode_names[opcode],
			opcode == TG_ADMIN_IMPORT_CLEAR ? le16_to_cpu(c->import) : le32_to_cpu(c->index),
			status);
	} else if (status == TG_ERR_PRIVATE_MEMORY) {
		dev_err_ratelimited(&tg->dev,
				    "%s: the guest's memory is private: start QEMU with memory-backend-memfd,share=on\n",
				    tg_opcode_names[opcode]);
	} else {
		dev_err_ratelimited(&tg->dev,
				    "%s failed with status %u: context %u, import %u, node %u, index %u, count %u, page %u, generation %llu, length %llu\n",
				    tg_opcode_names[opcode], status, le16_to_cpu(c->context),
				    le16_to_cpu(c->import), le16_to_cpu(c->node), le32_to_cpu(c->index), le32_to_cpu(c->count), le32_to_cpu(c->page),
				    le64_to_cpu(c->generation), le64_to_cpu(c->length));
	}
}

/**
 * tg_admin() - has the board execute a command
 * @tg: Board. The caller holds op_lock for reading.
 * @file: File whose account it is charged to, or NULL: the driver's own.
 * @class: What its completion depends on.
 * @request: In the board's byte order; seq is filled here.
 * @result: The completion, in the processor's byte order.
 *
 * A killed caller leaves before the command has started, or, with
 * TG_ADMIN_REMOTE and TG_ADMIN_OPERATION, at any time; its slot is free again
 * at completion.
 *
 * Return: 0 if the board has executed it (then see @result->status), -ENODEV if
 * the board is gone, -EINTR if the caller was killed.
 */
int tg_admin(struct tg_device *tg, const struct tg_file *file, enum tg_admin_class class,
	     const union tg_request *request, struct tg_admin_result *result)
{
	struct tg_admin *admin = &tg->admin;
	/* Of a context, not of its file: a killed caller's command may outlive the file. */
	u32 account = file ? file->context : admin->accounts - 1;
	struct tg_admin_slot *slot;
	int err;
	u32 n;

	lockdep_assert_held(&tg->op_lock);
	if (wait_event_killable(admin->wait,
				tg_gone(tg) || tg_admin_take(tg, account, class, &n)))
		return -EINTR;
	/* A slot taken by then does not matter any more. */
	if (tg_gone(tg))
		return -ENODEV;

	slot = &admin->slot[n];
	tg_admin_ring(tg, n, request);
	err = tg_admin_wait(tg, class, n, le32_to_cpu(request->command.opcode));
	spin_lock(&admin->lock);
	if (slot->done) {
		err = 0;
		*result = slot->result;
		tg_admin_free_locked(admin, n);
	} else {
		slot->abandoned = true;
	}
	spin_unlock(&admin->lock);
	if (!err && result->status != TG_OK)
		tg_admin_report(tg, request, result->status);
	return err;
}
EXPORT_SYMBOL_NS_GPL(tg_admin, TG_LAB_NS);

/**
 * tg_admin_checked() - has the board execute a command, whose status is its result
 * @tg: As tg_admin().
 * @file: As tg_admin().
 * @class: As tg_admin().
 * @request: As tg_admin().
 * @result: As tg_admin(), or NULL.
 *
 * Return: As tg_admin(); or what tg_status_to_errno() makes of the status.
 */
int tg_admin_checked(struct tg_device *tg, const struct tg_file *file,
		     enum tg_admin_class class, const union tg_request *request,
		     struct tg_admin_result *result)
{
	struct tg_admin_result unused;
	int err;

	if (!result)
		result = &unused;
	err = tg_admin(tg, file, class, request, result);
	return err ? err : tg_status_to_errno(result->status);
}

/**
 * tg_admin_wake() - wakes all waiters for commands of a lost board
 * @tg: Board, gone.
 */
void tg_admin_wake(struct tg_device *tg)
{
	u32 i;

	wake_up_all(&tg->admin.wait);
	for (i = 0; i < tg->admin.count; i++)
		wake_up_all(&tg->admin.slot[i].wait);
}

/* Slots of each class whose commands wait for no other node. */
#define TG_ADMIN_LOCAL_SLOTS 16

/* Slots of each other class beyond one for each account; and without those. */
#define TG_ADMIN_POOL 20
#define TG_ADMIN_FEW 4

static bool tg_admin_is_local(enum tg_admin_class class)
{
	return class == TG_ADMIN_QUICK || class == TG_ADMIN_REVOKE;
}

/* Divides the slots but the last, which is for tg_admin_exclusive(). */
static void tg_admin_divide(struct tg_admin *admin)
{
	const u32 remote = TG_ADMIN_CLASSES - 2;
	u32 per_class = (admin->count - 1 - 2 * TG_ADMIN_LOCAL_SLOTS) / remote;
	u32 class, first = 0;

	for (class = 0; class < TG_ADMIN_CLASSES; class++) {
		struct tg_admin_shares *shares = &admin->shares[class];
		struct tg_division *division = &shares->division;

		shares->first = first;
		shares->count = tg_admin_is_local(class) ? TG_ADMIN_LOCAL_SLOTS : per_class;
		first += shares->count;
		division->guaranteed = !tg_admin_is_local(class) && per_class > admin->accounts;
		division->pool = shares->count - division->guaranteed * admin->accounts;
		division->limit = division->guaranteed + max(division->pool / 2, 1U);
	}
}

/**
 * tg_admin_init() - allocates the command slots
 * @tg: Board.
 *
 * Return: 0 or a negative errno.
 */
int tg_admin_init(struct tg_device *tg)
{
	const u32 fewest = 1 + 2 * TG_ADMIN_LOCAL_SLOTS + TG_ADMIN_FEW * (TG_ADMIN_CLASSES - 2);
	struct tg_admin *admin = &tg->admin;
	u32 i;

	admin->count = min_t(u32, readl(tg->regs + TG_REG_ADMIN_SLOTS), TG_ADMIN_SLOTS);
	if (admin->count < fewest) {
		dev_err(&tg->pdev->dev, "the board has %u command slots: expected at least %u\n",
			admin->count, fewest);
		return -ENODEV;
	}
	admin->accounts = tg->contexts + 1;
	admin->count = min(admin->count, 1 + 2 * TG_ADMIN_LOCAL_SLOTS +
			   (admin->accounts + TG_ADMIN_POOL) * (TG_ADMIN_CLASSES - 2));
	tg_admin_divide(admin);
	spin_lock_init(&admin->lock);
	init_waitqueue_head(&admin->wait);
	admin->held = kvcalloc(admin->accounts * TG_ADMIN_CLASSES, sizeof(*admin->held), GFP_KERNEL);
	admin->busy = bitmap_zalloc(admin->count, GFP_KERNEL);
	admin->slot = kvcalloc(admin->count, sizeof(*admin->slot), GFP_KERNEL);
	if (!admin->held || !admin->busy || !admin->slot)
		return -ENOMEM;
	for (i = 0; i < admin->count; i++)
		init_waitqueue_head(&admin->slot[i].wait);
	admin->blocks = dma_alloc_coherent(&tg->pdev->dev,
					   admin->count * sizeof(*admin->blocks),
					   &admin->dma, GFP_KERNEL);
	return admin->blocks ? 0 : -ENOMEM;
}

/**
 * tg_admin_release() - frees the driver's side of the command slots
 * @tg: Board without users.
 */
void tg_admin_release(struct tg_device *tg)
{
	struct tg_admin *admin = &tg->admin;

	kvfree(admin->slot);
	bitmap_free(admin->busy);
	kvfree(admin->held);
}

/**
 * tg_admin_exit() - mirror of tg_admin_init()
 * @tg: Board, which cannot write memory any more.
 */
void tg_admin_exit(struct tg_device *tg)
{
	struct tg_admin *admin = &tg->admin;

	dma_free_coherent(&tg->pdev->dev, admin->count * sizeof(*admin->blocks),
			  admin->blocks, admin->dma);
}
