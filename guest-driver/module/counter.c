// SPDX-License-Identifier: GPL-2.0
/*
 * Page access counters (SPEC item 22): the board counts this node's accesses to a page of
 * another node down, reads and writes separately, and posts an event when it gets to 0.
 *
 * A counter belongs to the import through which its page was named, and so to
 * that import's file: only files that can access a page can count accesses to it. It ends
 * with the import, or before by TG_IOCTL_COUNTER_DISARM.
 *
 * Arming and disarming hold counter_lock from the board's command to the entry in the
 * table; the entries themselves are under tg_device.lock, for events.
 */
#include <linux/nospec.h>

#include "call.h"
#include "compat.h"
#include "driver.h"

#define TG_COUNTER_BITS (TG_COUNTER_READS | TG_COUNTER_WRITES)

static struct tg_page_counter *tg_counter_of(struct tg_file *file, u32 n)
{
	struct tg_device *tg = file->tg;
	struct tg_page_counter *counter;

	lockdep_assert_held(&tg->counter_lock);
	if (n >= tg->counter_limit)
		return NULL;
	counter = &tg->counters[array_index_nospec(n, tg->counter_limit)];
	return counter->remote && counter->remote->obj.file == file ? counter : NULL;
}

static int tg_counter_set(const struct tg_remote *remote, u32 n, u32 page, u64 reads, u64 writes)
{
	union tg_request request = {
		.counter.opcode = cpu_to_le32(TG_ADMIN_COUNTER_SET),
		.counter.index = cpu_to_le32(n),
		.counter.node = cpu_to_le32(remote->node),
		.counter.page = cpu_to_le32(page),
		.counter.reads = cpu_to_le64(reads),
		.counter.writes = cpu_to_le64(writes),
	};

	return tg_admin_checked(remote->obj.tg, remote->obj.file, TG_ADMIN_QUICK, &request, NULL);
}

/* Makes a counter's number free again. Its eventfd, if any, is the caller's. */
static struct eventfd_ctx *tg_counter_clear(struct tg_device *tg, u32 n)
{
	struct tg_page_counter *counter = &tg->counters[n];
	struct eventfd_ctx *eventfd;

	lockdep_assert_held(&tg->counter_lock);
	mutex_lock(&tg->lock);
	eventfd = counter->eventfd;
	tg_uncharge(counter->remote->obj.file, TG_RESOURCE_COUNTERS, 0, 1);
	memset(counter, 0, sizeof(*counter));
	mutex_unlock(&tg->lock);
	return eventfd;
}

static void tg_counter_release(struct tg_device *tg, u32 n)
{
	struct eventfd_ctx *eventfd = tg_counter_clear(tg, n);

	if (eventfd)
		eventfd_ctx_put(eventfd);
}

static int tg_counter_end(struct tg_device *tg, u32 n)
{
	const struct tg_remote *remote = tg->counters[n].remote;
	int err;

	lockdep_assert_held(&tg->counter_lock);
	err = tg_counter_set(remote, n, remote->page, 0, 0);
	if (err)
		return err;
	/* So that no earlier event is taken for one about the number's next owner. */
	tg_events_consume(tg);
	tg_counter_release(tg, n);
	return 0;
}

/* Takes a free number, or -ENOSPC. Events find the entry from now on. */
static int tg_counter_take(struct tg_device *tg, const struct tg_page_counter *entry)
{
	int n, err;

	lockdep_assert_held(&tg->counter_lock);
	for (n = 0; n < tg->counter_limit; n++) {
		if (tg->counters[n].remote)
			continue;
		mutex_lock(&tg->lock);
		err = tg_charge(entry->remote->obj.file, TG_RESOURCE_COUNTERS, 0, 1);
		if (!err)
			tg->counters[n] = *entry;
		mutex_unlock(&tg->lock);
		return err ? err : n;
	}
	return -ENOSPC;
}

static int tg_counter_arm_locked(struct tg_device *tg, struct tg_remote *remote,
				 struct tg_counter *arg, struct eventfd_ctx *eventfd)
{
	const struct tg_page_counter entry = {
		.remote = remote,
		.page = remote->page + arg->page,
		.eventfd = eventfd,
		.armed = (arg->reads ? TG_COUNTER_READS : 0) |
			 (arg->writes ? TG_COUNTER_WRITES : 0),
	};
	int n, err = 0;

	/*
	 * A close from now on finds the counter, after waiting for counter_lock.
	 */
	down_read(&tg->map_lock);
	if (!remote->obj.open)
		err = -EBADF;
	else if (remote->obj.dead)
		err = tg_status_to_errno(remote->status);
	up_read(&tg->map_lock);
	if (err)
		return err;

	n = tg_counter_take(tg, &entry);
	if (n < 0)
		return n;
	/* From here on the board sees what it is to count. */
	tg_direct_trap(tg, remote->node, entry.page);
	err = tg_counter_set(remote, n, entry.page, arg->reads, arg->writes);
	if (err) {
		/* The caller keeps the eventfd. */
		tg_counter_clear(tg, n);
		return err;
	}
	arg->counter = n;
	return 0;
}

/**
 * tg_counter_arm() - TG_IOCTL_COUNTER_ARM: counts accesses to a page
 * @call: The call, of the file that arms it: the import, a unit of it, numbers of accesses,
 *	and an eventfd or -1. The counter's number is filled in. The caller holds op_lock
 *	for reading, and the board is not gone.
 *
 * The eventfd is signalled once when the reads, and once when the writes, get from
 * 1 to 0; and when the board is lost.
 *
 * Return: 0; -EBADF for an import that is not this file's, or an eventfd that is not open;
 * -EINVAL for a unit beyond the import's end, for no accesses to count, or for a descriptor
 * that is not an eventfd; -ENOSPC if all counters, or the file's share of them, are in use;
 * of a dead import the reason; -EINTR if killed; -ENODEV if the board is gone.
 */
int tg_counter_arm(struct tg_call *call)
{
	struct tg_counter *arg = &call->arg.counter;
	struct eventfd_ctx *eventfd = NULL;
	struct tg_device *tg = call->file->tg;
	struct tg_object *obj;
	int err;

	lockdep_assert_held(&tg->op_lock);
	if (arg->reserved || (!arg->reads && !arg->writes))
		return -EINVAL;
	obj = tg_object_find(call->file, TG_MMAP_IMPORT, arg->handle);
	if (!obj)
		return -EBADF;
	err = -EINVAL;
	if (arg->page >= DIV_ROUND_UP(obj->size, TG_UNIT))
		goto out;
	if (arg->eventfd != -1) {
		eventfd = eventfd_ctx_fdget(arg->eventfd);
		err = PTR_ERR_OR_ZERO(eventfd);
		if (err)
			goto out;
	}
	err = mutex_lock_killable(&tg->counter_lock);
	if (err)
		goto out;
	err = tg_counter_arm_locked(tg, tg_remote_of(obj), arg, eventfd);
	mutex_unlock(&tg->counter_lock);
	if (!err)
		arg->fired = 0;
out:
	if (err && !IS_ERR_OR_NULL(eventfd))
		eventfd_ctx_put(eventfd);
	tg_object_put(obj);
	return err;
}

/**
 * tg_counter_read() - TG_IOCTL_COUNTER_READ: the accesses left to count
 * @call: The call, of the file that armed it: the counter's number; reads, writes and fired
 *	are filled in. The caller holds op_lock for reading, and the board is not gone.
 *
 * Return: 0; -EBADF for a counter that is not this file's; -EINTR if killed; -ENODEV if
 * the board is gone.
 */
int tg_counter_read(struct tg_call *call)
{
	struct tg_counter *arg = &call->arg.counter;
	union tg_request request = {
		.counter.opcode = cpu_to_le32(TG_ADMIN_COUNTER_GET),
		.counter.index = cpu_to_le32(arg->counter),
	};
	struct tg_device *tg = call->file->tg;
	struct tg_page_counter *counter;
	struct tg_admin_result result;
	int err;

	lockdep_assert_held(&tg->op_lock);
	if (arg->reserved)
		return -EINVAL;
	if (mutex_lock_killable(&tg->counter_lock))
		return -EINTR;
	counter = tg_counter_of(call->file, arg->counter);
	err = counter ? tg_admin_checked(tg, call->file, TG_ADMIN_QUICK, &request, &result) :
			-EBADF;
	if (err)
		goto out;
	arg->reads = result.generation;
	arg->writes = result.length;
	mutex_lock(&tg->lock);
	arg->fired = counter->fired;
	/* Its event may not have been handled yet. */
	if (!arg->reads)
		arg->fired |= counter->armed & TG_COUNTER_READS;
	if (!arg->writes)
		arg->fired |= counter->armed & TG_COUNTER_WRITES;
	mutex_unlock(&tg->lock);
out:
	mutex_unlock(&tg->counter_lock);
	return err;
}

/**
 * tg_counter_disarm() - TG_IOCTL_COUNTER_DISARM: stops counting
 * @call: The call, of the file that armed it: the counter's number, which is free
 *	afterwards. The caller holds op_lock for reading, and the board is not gone.
 *
 * Return: 0; -EBADF for a counter that is not this file's; -EINTR if killed; -ENODEV if
 * the board is gone.
 */
int tg_counter_disarm(struct tg_call *call)
{
	const struct tg_counter *arg = &call->arg.counter;
	struct tg_device *tg = call->file->tg;
	const struct tg_page_counter *counter;
	u32 node = 0, page = 0;
	int err = -EBADF;

	lockdep_assert_held(&tg->op_lock);
	if (arg->reserved)
		return -EINVAL;
	if (mutex_lock_killable(&tg->counter_lock))
		return -EINTR;
	counter = tg_counter_of(call->file, arg->counter);
	if (counter) {
		node = counter->remote->node;
		page = counter->page;
		err = tg_counter_end(tg, arg->counter);
	}
	mutex_unlock(&tg->counter_lock);
	/* Not under counter_lock: it waits for the other node. */
	if (!err)
		tg_direct_untrap(tg, node, page);
	return err;
}

/**
 * tg_counters_end() - disarms the counters of an import that is torn down
 * @remote: Import that no process can name any more. The caller holds op_lock for
 *	reading.
 */
void tg_counters_end(struct tg_remote *remote)
{
	struct tg_device *tg = remote->obj.tg;
	bool ended = false;
	u32 n;

	mutex_lock(&tg->counter_lock);
	for (n = 0; n < tg->counter_limit; n++) {
		if (tg->counters[n].remote != remote)
			continue;
		ended = true;
		/* A board that does not disarm it is gone. */
		if (tg_gone(tg) || tg_counter_end(tg, n))
			tg_counter_release(tg, n);
	}
	mutex_unlock(&tg->counter_lock);
	/* Other imports of these pages were trapped for them. */
	if (ended && !tg_gone(tg))
		tg_direct_recheck(tg);
}

/**
 * tg_counter_event() - a counter got from 1 to 0
 * @tg: Board.
 * @n: Its number, as the board names it.
 * @value: Which of the two, or both: TG_COUNTER_* bits.
 */
void tg_counter_event(struct tg_device *tg, u32 n, u64 value)
{
	struct tg_page_counter *counter;
	u32 fresh;

	if (n >= tg->counter_limit)
		return;
	counter = &tg->counters[n];
	mutex_lock(&tg->lock);
	fresh = value & counter->armed & ~counter->fired & TG_COUNTER_BITS;
	counter->fired |= fresh;
	if (counter->eventfd && fresh & TG_COUNTER_READS)
		tg_eventfd_signal(counter->eventfd);
	if (counter->eventfd && fresh & TG_COUNTER_WRITES)
		tg_eventfd_signal(counter->eventfd);
	mutex_unlock(&tg->lock);
}

/**
 * tg_counters_lost() - signals the eventfds of the counters of a lost board
 * @tg: Board, gone.
 */
void tg_counters_lost(struct tg_device *tg)
{
	u32 n;

	mutex_lock(&tg->lock);
	for (n = 0; n < tg->counter_limit; n++)
		if (tg->counters[n].eventfd)
			tg_eventfd_signal(tg->counters[n].eventfd);
	mutex_unlock(&tg->lock);
}
