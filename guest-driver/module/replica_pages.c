// SPDX-License-Identifier: GPL-2.0
/*
 * Validity and homes of the pages of a replicated segment.
 *
 * All pages are always valid, except in copies of mode TG_REPLICA_INVALIDATE (SPEC item 28).
 * Such a page is valid from its fill until an event of the board announces a store to it.
 * Then it is removed from all page tables, which is acknowledged to the board
 * (REPLICA_INVALID); only then is the store acknowledged to its writer. A later access to
 * the page waits in a page fault until the page has been filled again (REPLICA_SET).
 *
 *    valid: event --> lost: in no page table --> REPLICA_INVALID --> invalid
 *    invalid: a fault waits --> REPLICA_SET --> filled, not lost meanwhile --> valid
 *
 * Two workers do this. The one that acknowledges waits for no other node, since the stores
 * of all nodes, this one included, and fills wait for it. The one that fills waits for the
 * home. It is not the process that faults, since that may be killed, or hold its memory map
 * locked, while the board fills the page.
 *
 * A page that was filled for a fault is kept, though lost, until the fault has mapped it,
 * but not for longer than TG_KEEP: a page that others store to all the time could otherwise
 * never be read.
 */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/slab.h>

#include "driver.h"

/* How long a page that has been filled is kept for the faults that waited, in jiffies. */
#define TG_KEEP max(HZ / 50, 2)

/* After its fault a process needs about this long for its instruction, in microseconds. */
#define TG_GLANCE 100

/* Pause before a fill is repeated whose home has not seen the loss yet, in microseconds. */
#define TG_FILL_AGAIN 500

static void tg_replica_ack_work(struct work_struct *work);
static void tg_replica_fill(struct tg_job *job);

/**
 * tg_replica_pages_init() - makes the pages of a replicated segment, none of them valid
 * @replica: Zeroed replicated segment, not yet in the table.
 * @file: File that makes it.
 * @count: Number of its pages.
 * @home: Home node, or TG_REPLICA_HERE.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_replica_pages_init(struct tg_replicated *replica, struct tg_file *file, u32 count,
			  u32 home)
{
	const size_t longs = BITS_TO_LONGS(count);
	u32 i;

	mutex_init(&replica->ack_lock);
	init_waitqueue_head(&replica->wait);
	tg_job_init(&replica->fill, file, tg_replica_fill);
	INIT_DELAYED_WORK(&replica->ack, tg_replica_ack_work);
	replica->page_count = count;
	replica->pages = kvcalloc(count, sizeof(*replica->pages), GFP_KERNEL_ACCOUNT);
	replica->wanted = kvcalloc(longs, sizeof(long), GFP_KERNEL_ACCOUNT);
	replica->unacked = kvcalloc(longs, sizeof(long), GFP_KERNEL_ACCOUNT);
	if (!replica->pages || !replica->wanted || !replica->unacked) {
		tg_replica_pages_exit(replica);
		return -ENOMEM;
	}
	for (i = 0; i < count; i++)
		replica->pages[i].home = home;
	return 0;
}

/**
 * tg_replica_pages_exit() - mirror of tg_replica_pages_init()
 * @replica: Replicated segment without references.
 */
void tg_replica_pages_exit(struct tg_replicated *replica)
{
	kvfree(replica->unacked);
	kvfree(replica->wanted);
	kvfree(replica->pages);
}

/**
 * tg_replica_pages_rehome() - all pages have another home
 * @replica: Replicated segment. The caller holds map_lock for writing.
 * @home: Home node, or TG_REPLICA_HERE.
 */
void tg_replica_pages_rehome(struct tg_replicated *replica, u32 home)
{
	u32 i;

	lockdep_assert_held_write(&replica->seg.obj.tg->map_lock);
	for (i = 0; i < replica->page_count; i++)
		replica->pages[i].home = home;
}

/**
 * tg_replica_pages_home() - the home of the segment
 * @replica: Replicated segment. The caller holds map_lock.
 *
 * Return: That of its last page, which moves last: a node, or TG_REPLICA_HERE.
 */
u32 tg_replica_pages_home(const struct tg_replicated *replica)
{
	lockdep_assert_held(&replica->seg.obj.tg->map_lock);
	return replica->pages[replica->page_count - 1].home;
}

/**
 * tg_replica_pages_any_home() - whether this node is the home of any of the pages
 * @replica: Replicated segment.
 *
 * Return: False if all have their home elsewhere.
 */
bool tg_replica_pages_any_home(struct tg_replicated *replica)
{
	struct tg_device *tg = replica->seg.obj.tg;
	bool any = false;
	u32 i;

	down_read(&tg->map_lock);
	for (i = 0; i < replica->page_count && !any; i++)
		any = replica->pages[i].home == TG_REPLICA_HERE;
	up_read(&tg->map_lock);
	return any;
}

/**
 * tg_replica_page_is_home() - whether this node is the home of a page
 * @replica: Replicated segment.
 * @i: Page, from 0.
 * @moves: Number of moves of its home until now.
 *
 * Return: False if it is elsewhere.
 */
bool tg_replica_page_is_home(struct tg_replicated *replica, u32 i, u32 *moves)
{
	struct tg_device *tg = replica->seg.obj.tg;
	bool home;

	down_read(&tg->map_lock);
	home = replica->pages[i].home == TG_REPLICA_HERE;
	*moves = replica->pages[i].moves;
	up_read(&tg->map_lock);
	return home;
}

/**
 * tg_replica_page_moved_here() - the board has made this node the home of a page
 * @replica: Replicated segment.
 * @i: Page, from 0.
 * @moves: Number of moves of its home before that. A later event of the board is newer than
 *	this.
 */
void tg_replica_page_moved_here(struct tg_replicated *replica, u32 i, u32 moves)
{
	struct tg_device *tg = replica->seg.obj.tg;

	down_write(&tg->map_lock);
	if (replica->pages[i].moves == moves)
		replica->pages[i].home = TG_REPLICA_HERE;
	up_write(&tg->map_lock);
}

/**
 * tg_replica_page_moved() - the board reports another home of a page
 * @replica: Replicated segment. The caller holds map_lock for writing.
 * @i: Page, from 0.
 * @home: The new home; for an orphan, which has none, a number that no node has.
 */
void tg_replica_page_moved(struct tg_replicated *replica, u32 i, u32 home)
{
	struct tg_device *tg = replica->seg.obj.tg;

	lockdep_assert_held_write(&tg->map_lock);
	if (home >= tg->nodes)
		return;
	replica->pages[i].moves++;
	replica->pages[i].home = home == tg->node ? TG_REPLICA_HERE : home;
}

/* Schedules the acknowledgement, in jiffies from now. The work holds a reference. */
static void tg_replica_ack_later(struct tg_replicated *replica, unsigned long delay)
{
	bool pending;

	kref_get(&replica->seg.obj.ref);
	if (delay)
		pending = !queue_delayed_work(tg_ack_workers, &replica->ack, delay);
	else
		pending = mod_delayed_work(tg_ack_workers, &replica->ack, 0);
	if (pending)
		tg_object_put(&replica->seg.obj);
}

/**
 * tg_replica_page_losses() - number of invalidations of a page
 * @replica: Replicated segment.
 * @i: Page, from 0.
 *
 * Return: A number for tg_replica_page_filled().
 */
u32 tg_replica_page_losses(struct tg_replicated *replica, u32 i)
{
	struct tg_device *tg = replica->seg.obj.tg;
	u32 losses;

	down_read(&tg->map_lock);
	losses = replica->pages[i].losses;
	up_read(&tg->map_lock);
	return losses;
}

/**
 * tg_replica_page_filled() - the board has filled a page
 * @replica: Replicated segment.
 * @i: Page, from 0.
 * @losses: tg_replica_page_losses() from before the fill: if it differs now, the page is not
 *	valid.
 */
void tg_replica_page_filled(struct tg_replicated *replica, u32 i, u32 losses)
{
	struct tg_replica_page *page = &replica->pages[i];
	struct tg_object *obj = &replica->seg.obj;

	down_write(&obj->tg->map_lock);
	if (page->losses == losses) {
		/* While a segment is made or adopted, no fault waits for its pages. */
		page->awaited = obj->open && !obj->dead;
		page->filled = jiffies;
		WRITE_ONCE(page->valid, true);
	}
	up_write(&obj->tg->map_lock);
}

/**
 * tg_replica_page_lost() - the board reports a store to a page of a copy
 * @replica: Replicated segment, perhaps closed: stores wait for the acknowledgement all the
 *	same. The caller holds map_lock for writing.
 * @i: Page, from 0.
 */
void tg_replica_page_lost(struct tg_replicated *replica, u32 i)
{
	lockdep_assert_held_write(&replica->seg.obj.tg->map_lock);
	replica->pages[i].losses++;
	set_bit(i, replica->unacked);
	tg_replica_ack_later(replica, 0);
}

/* Removes a lost page from all page tables: true; false if it is kept for now. */
static bool tg_replica_page_hide(struct tg_replicated *replica, u32 i)
{
	struct tg_replica_page *page = &replica->pages[i];
	struct tg_object *obj = &replica->seg.obj;
	bool keep;

	if (READ_ONCE(page->valid) &&
	    ktime_get_ns() - READ_ONCE(page->seen) < TG_GLANCE * NSEC_PER_USEC)
		usleep_range(TG_GLANCE, 2 * TG_GLANCE);
	down_write(&obj->tg->map_lock);
	keep = page->valid && page->awaited && !obj->dead &&
	       time_before(jiffies, page->filled + TG_KEEP);
	if (!keep) {
		WRITE_ONCE(page->valid, false);
		tg_zap_unit(obj, i);
		clear_bit(i, replica->unacked);
	}
	up_write(&obj->tg->map_lock);
	return !keep;
}

/* Acknowledges all lost pages but those that are kept. Waits for no other node. */
static void tg_replica_ack(struct tg_replicated *replica)
{
	union tg_request ack = { .command.opcode = cpu_to_le32(TG_ADMIN_REPLICA_INVALID) };
	struct tg_admin_result result;
	bool kept = false;
	u32 i;

	mutex_lock(&replica->ack_lock);
	for_each_set_bit(i, replica->unacked, replica->page_count) {
		if (replica->left)
			break;
		if (!tg_replica_page_hide(replica, i)) {
			kept = true;
			continue;
		}
		ack.command.index = cpu_to_le32(replica->seg.first + i);
		/* Its status does not matter: a page that is no copy any more needs none. */
		if (tg_admin(replica->seg.obj.tg, NULL, TG_ADMIN_QUICK, &ack, &result))
			break;
	}
	mutex_unlock(&replica->ack_lock);
	if (kept)
		tg_replica_ack_later(replica, TG_KEEP);
}

static void tg_replica_ack_work(struct work_struct *work)
{
	struct tg_replicated *replica = container_of(to_delayed_work(work),
						     struct tg_replicated, ack);
	struct tg_device *tg = replica->seg.obj.tg;

	down_read(&tg->op_lock);
	if (!tg_gone(tg))
		tg_replica_ack(replica);
	up_read(&tg->op_lock);
	tg_object_put(&replica->seg.obj);
}

/**
 * tg_replica_set_page() - has the board replicate a granted page
 * @replica: Replicated segment. The caller holds its lock, and op_lock for reading.
 * @source: The home of the segment, at this node or another.
 * @i: Page, from 0.
 * @status: The board's status, filled in if it has refused.
 *
 * Returns when the copy is filled; if the caller is killed the board may still fill it.
 *
 * Return: 0 if it was filled, although it may not be valid any more; -EINTR if
 * killed; -ENODEV if the board is gone; or what tg_status_to_errno() makes of @status.
 */
int tg_replica_set_page(struct tg_replicated *replica, const struct tg_source *source, u32 i,
			u32 *status)
{
	struct tg_device *tg = replica->seg.obj.tg;
	union tg_request request = {
		.replica.opcode = cpu_to_le32(TG_ADMIN_REPLICA_SET),
		.replica.page = cpu_to_le32(replica->seg.first + i),
		.replica.mode = cpu_to_le32(replica->mode),
		.replica.node = cpu_to_le32(source->node),
		.replica.home_page = cpu_to_le32(source->page + i),
		.replica.home_generation = cpu_to_le64(source->generation),
	};
	u32 losses = tg_replica_page_losses(replica, i);
	struct tg_admin_result result;
	enum tg_admin_class class;
	int err;

	lockdep_assert_held(&replica->lock);
	class = source->node == tg->node ? TG_ADMIN_QUICK : TG_ADMIN_REMOTE;
	replica->set = max(replica->set, i + 1);
	err = tg_admin(tg, replica->seg.obj.file, class, &request, &result);
	if (err)
		return err;
	if (result.status == TG_OK) {
		tg_replica_page_filled(replica, i, losses);
		return 0;
	}
	/* Filled, and invalidated by a store since. */
	if (result.status == TG_ERR_INVALIDATED)
		return 0;
	*status = result.status;
	return tg_status_to_errno(result.status);
}

/**
 * tg_replica_orphan() - a replicated segment has no home any more
 * @replica: Replicated segment. The caller holds map_lock for writing.
 * @status: Why, TG_ERR_*.
 */
void tg_replica_orphan(struct tg_replicated *replica, u32 status)
{
	struct tg_object *obj = &replica->seg.obj;

	lockdep_assert_held_write(&obj->tg->map_lock);
	/* Closed, or an orphan already. */
	if (obj->dead)
		return;
	replica->status = status ? status : TG_ERR_NOT_HOME;
	obj->dead = true;
	tg_zap(obj);
	wake_up_all(&replica->wait);
	if (replica->own)
		tg_remote_orphan(replica->own, replica->status);
}

static bool tg_replica_page_is_needed(struct tg_replicated *replica, u32 i)
{
	struct tg_object *obj = &replica->seg.obj;
	bool needed;

	down_read(&obj->tg->map_lock);
	needed = !obj->dead && !replica->pages[i].valid;
	up_read(&obj->tg->map_lock);
	return needed;
}

/* Fills an invalid page, once. If it cannot be filled, the segment is an orphan. */
static void tg_replica_fill_page(struct tg_replicated *replica, u32 i)
{
	struct tg_device *tg = replica->seg.obj.tg;
	unsigned long end = jiffies + TG_JOIN_PATIENCE;
	u32 status;
	int err;

	do {
		/* The fill waits for the acknowledgement of the page. */
		tg_replica_ack(replica);
		if (!tg_replica_page_is_needed(replica, i))
			return;
		status = TG_OK;
		err = tg_replica_set_page(replica, &replica->source, i, &status);
		if (!err || tg_gone(tg))
			return;
		if (status != TG_ERR_BUSY)
			break;
		usleep_range(TG_FILL_AGAIN, 2 * TG_FILL_AGAIN);
	} while (time_before(jiffies, end));
	down_write(&tg->map_lock);
	tg_replica_orphan(replica, status);
	up_write(&tg->map_lock);
}

static void tg_replica_fill(struct tg_job *job)
{
	struct tg_replicated *replica = container_of(job, struct tg_replicated, fill);
	const u32 count = replica->page_count;
	struct tg_device *tg = replica->seg.obj.tg;
	u32 i;

	down_read(&tg->op_lock);
	mutex_lock(&replica->lock);
	while (!tg_gone(tg) && find_first_bit(replica->wanted, count) < count) {
		for_each_set_bit(i, replica->wanted, count) {
			clear_bit(i, replica->wanted);
			tg_replica_fill_page(replica, i);
			/* The faults try again, and request it again if it is lost by then. */
			WRITE_ONCE(replica->pages[i].tries, replica->pages[i].tries + 1);
			wake_up_all(&replica->wait);
		}
	}
	mutex_unlock(&replica->lock);
	up_read(&tg->op_lock);
	tg_object_put(&replica->seg.obj);
}

/**
 * tg_replica_page_see() - a process accesses a page
 * @replica: Replicated segment, not dead. The caller holds map_lock for reading.
 * @i: Page, from 0.
 * @tries: If it is not valid: the present tg_replica_page.tries, which changes when it has
 *	been filled, or could not be.
 *
 * Return: True if it is valid. Else it is being filled.
 */
bool tg_replica_page_see(struct tg_replicated *replica, u32 i, u32 *tries)
{
	struct tg_replica_page *page = &replica->pages[i];

	lockdep_assert_held(&replica->seg.obj.tg->map_lock);
	if (page->valid) {
		if (READ_ONCE(page->awaited)) {
			WRITE_ONCE(page->seen, ktime_get_ns());
			WRITE_ONCE(page->awaited, false);
			if (test_bit(i, replica->unacked))
				tg_replica_ack_later(replica, 0);
		}
		return true;
	}
	/* Read before it is wanted: the next fill may be over at once. */
	*tries = READ_ONCE(page->tries);
	set_bit(i, replica->wanted);
	kref_get(&replica->seg.obj.ref);
	if (!tg_job_queue(&replica->fill))
		/* The pending work will find it. */
		tg_object_put(&replica->seg.obj);
	return false;
}

/**
 * tg_replica_pages_forget() - the pages are not replicated at the board any more
 * @replica: Replicated segment, whose events have been handled.
 */
void tg_replica_pages_forget(struct tg_replicated *replica)
{
	struct tg_device *tg = replica->seg.obj.tg;
	u32 i;

	mutex_lock(&replica->ack_lock);
	down_write(&tg->map_lock);
	for (i = 0; i < replica->page_count; i++) {
		WRITE_ONCE(replica->pages[i].valid, false);
		clear_bit(i, replica->unacked);
	}
	up_write(&tg->map_lock);
	mutex_unlock(&replica->ack_lock);
}

/**
 * tg_replica_pages_leave() - the board waits for no acknowledgement any more
 * @replica: Replicated segment, ended. Its pages may have another owner after this.
 */
void tg_replica_pages_leave(struct tg_replicated *replica)
{
	mutex_lock(&replica->ack_lock);
	replica->left = true;
	mutex_unlock(&replica->ack_lock);
}

/**
 * tg_replica_pages_end() - cancels a delayed acknowledgement
 * @obj: Replicated segment that is not in the table any more.
 *
 * Otherwise its timer could fire when the module has gone: the destruction of a workqueue
 * waits for works, and not for their timers.
 */
void tg_replica_pages_end(struct tg_object *obj)
{
	if (cancel_delayed_work_sync(&tg_replica_of(obj)->ack))
		tg_object_put(obj);
}

/**
 * tg_replicas_lost() - the board is gone: wakes all faults that wait for pages
 * @tg: Board. The caller holds map_lock for writing.
 */
void tg_replicas_lost(struct tg_device *tg)
{
	struct tg_object *obj;
	unsigned long handle;

	xa_for_each(&tg->objects[TG_MMAP_REPLICA], handle, obj)
		wake_up_all(&tg_replica_of(obj)->wait);
}
