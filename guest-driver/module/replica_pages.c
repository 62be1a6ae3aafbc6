// SPDX-License-Identifier: GPL-2.0
/*
 * Which pages of a replicated segment processes may see, and where their homes are.
 *
 * They may see all of them, but for copies of mode TG_REPLICA_INVALIDATE (SPEC item 28).
 * Such a page is valid from when it has been filled until the board tells of a store to
 * it. Then it is taken out of all page tables, and the board is told so
 * (REPLICA_INVALID): not before that is the store acknowledged to whoever made it. Who
 * touches the page after that waits in a page fault until it has been filled again
 * (REPLICA_SET).
 *
 *    valid: event --> lost: in no page table --> REPLICA_INVALID --> invalid
 *    invalid: somebody waits --> REPLICA_SET --> filled, not lost meanwhile --> valid
 *
 * Two workers do this, both for as long as there is something to do. The one that answers
 * the board waits for no other node: the stores of all nodes wait for it, those of this
 * one too, and fills do. The one that fills waits for the home. It is not the process
 * that faults, since that may be killed, or hold its memory map locked, while the board
 * goes on.
 *
 * A page that was filled for somebody is kept, though lost, until he has seen it, but not
 * for longer than TG_KEEP: a page that others store to all the time could not be read at
 * all otherwise.
 */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/slab.h>

#include "driver.h"

/* How long a page that has been filled is kept for those who waited. */
#define TG_KEEP max(HZ / 50, 2)

/* After its fault a process needs about this long for its instruction, in microseconds. */
#define TG_GLANCE 100

/* How often a home is asked that does not know yet that the copy was lost. */
#define TG_FILL_AGAIN 500

static void tg_replica_answer_work(struct work_struct *work);
static void tg_replica_fill_work(struct work_struct *work);

/**
 * tg_replica_pages_init() - makes the pages of a replicated segment, none of them valid
 * @replica: Zeroed replicated segment, which nobody finds yet.
 * @count: Number of its pages.
 * @home: Home node, or TG_REPLICA_HERE.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_replica_pages_init(struct tg_replicated *replica, u32 count, u32 home)
{
	const size_t longs = BITS_TO_LONGS(count);
	u32 i;

	mutex_init(&replica->answer_lock);
	init_waitqueue_head(&replica->wait);
	INIT_WORK(&replica->fill, tg_replica_fill_work);
	INIT_DELAYED_WORK(&replica->answer, tg_replica_answer_work);
	replica->page_count = count;
	replica->pages = kvcalloc(count, sizeof(*replica->pages), GFP_KERNEL_ACCOUNT);
	replica->wanted = kvcalloc(longs, sizeof(long), GFP_KERNEL_ACCOUNT);
	replica->unanswered = kvcalloc(longs, sizeof(long), GFP_KERNEL_ACCOUNT);
	if (!replica->pages || !replica->wanted || !replica->unanswered) {
		tg_replica_pages_exit(replica);
		return -ENOMEM;
	}
	for (i = 0; i < count; i++)
		replica->pages[i].home = home;
	return 0;
}

/**
 * tg_replica_pages_exit() - mirror of tg_replica_pages_init()
 * @replica: Replicated segment that nobody has a reference of.
 */
void tg_replica_pages_exit(struct tg_replicated *replica)
{
	kvfree(replica->unanswered);
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
 * Return: False if all have theirs elsewhere.
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
 * @moves: Number of moves of its home before that. What the board has told since then is
 *	newer than this.
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
 * tg_replica_page_moved() - the board tells of another home of a page
 * @replica: Replicated segment. The caller holds map_lock for writing.
 * @i: Page, from 0.
 * @home: The node that is it now; of an orphan, which has none, no node.
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

/* Has a worker answer the board, after a while. It holds a reference until it has. */
static void tg_replica_answer_later(struct tg_replicated *replica, unsigned long delay)
{
	bool pending;

	kref_get(&replica->seg.obj.ref);
	if (delay)
		pending = !queue_delayed_work(tg_answerers, &replica->answer, delay);
	else
		pending = mod_delayed_work(tg_answerers, &replica->answer, 0);
	if (pending)
		tg_object_put(&replica->seg.obj);
}

/**
 * tg_replica_page_losses() - how often a page has been lost
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
 * @losses: What tg_replica_page_losses() was before: if it has been lost in between, it
 *	is not valid.
 */
void tg_replica_page_filled(struct tg_replicated *replica, u32 i, u32 losses)
{
	struct tg_replica_page *page = &replica->pages[i];
	struct tg_object *obj = &replica->seg.obj;

	down_write(&obj->tg->map_lock);
	if (page->losses == losses) {
		/* While a segment is made or adopted, nobody waits for its pages. */
		page->awaited = obj->open && !obj->dead;
		page->filled = jiffies;
		WRITE_ONCE(page->valid, true);
	}
	up_write(&obj->tg->map_lock);
}

/**
 * tg_replica_page_lost() - the board tells of a store to a page of a copy
 * @replica: Replicated segment, perhaps closed: others wait for the answer all the same.
 *	The caller holds map_lock for writing.
 * @i: Page, from 0.
 */
void tg_replica_page_lost(struct tg_replicated *replica, u32 i)
{
	lockdep_assert_held_write(&replica->seg.obj.tg->map_lock);
	replica->pages[i].losses++;
	set_bit(i, replica->unanswered);
	tg_replica_answer_later(replica, 0);
}

/* Takes a lost page out of all page tables: true; false if it is to be kept for now. */
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
		clear_bit(i, replica->unanswered);
	}
	up_write(&obj->tg->map_lock);
	return !keep;
}

/* Tells the board of all pages lost, but for those that are kept. Waits for no other node. */
static void tg_replica_answer(struct tg_replicated *replica)
{
	struct tg_admin_command answer = { .opcode = cpu_to_le32(TG_ADMIN_REPLICA_INVALID) };
	struct tg_admin_result result;
	bool kept = false;
	u32 i;

	mutex_lock(&replica->answer_lock);
	for_each_set_bit(i, replica->unanswered, replica->page_count) {
		if (replica->left)
			break;
		if (!tg_replica_page_hide(replica, i)) {
			kept = true;
			continue;
		}
		answer.index = cpu_to_le32(replica->seg.first + i);
		/* If that is a copy no more, nobody waits for the answer. */
		if (tg_admin(replica->seg.obj.tg, NULL, TG_ADMIN_QUICK, &answer, &result))
			break;
	}
	mutex_unlock(&replica->answer_lock);
	if (kept)
		tg_replica_answer_later(replica, TG_KEEP);
}

static void tg_replica_answer_work(struct work_struct *work)
{
	struct tg_replicated *replica = container_of(to_delayed_work(work),
						     struct tg_replicated, answer);
	struct tg_device *tg = replica->seg.obj.tg;

	down_read(&tg->op_lock);
	if (!tg_gone(tg))
		tg_replica_answer(replica);
	up_read(&tg->op_lock);
	tg_object_put(&replica->seg.obj);
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

/* Fills an invalid page, once. If it cannot be filled, its home serves it no more. */
static void tg_replica_fill_page(struct tg_replicated *replica, u32 i)
{
	struct tg_device *tg = replica->seg.obj.tg;
	unsigned long end = jiffies + TG_JOIN_PATIENCE;
	u32 status;
	int err;

	do {
		/* What the board is owed for it comes first. */
		tg_replica_answer(replica);
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

static void tg_replica_fill_work(struct work_struct *work)
{
	struct tg_replicated *replica = container_of(work, struct tg_replicated, fill);
	const u32 count = replica->page_count;
	struct tg_device *tg = replica->seg.obj.tg;
	u32 i;

	down_read(&tg->op_lock);
	mutex_lock(&replica->lock);
	while (!tg_gone(tg) && find_first_bit(replica->wanted, count) < count) {
		for_each_set_bit(i, replica->wanted, count) {
			clear_bit(i, replica->wanted);
			tg_replica_fill_page(replica, i);
			/* Who waits looks again, and asks again if it is lost by then. */
			WRITE_ONCE(replica->pages[i].tries, replica->pages[i].tries + 1);
			wake_up_all(&replica->wait);
		}
	}
	mutex_unlock(&replica->lock);
	up_read(&tg->op_lock);
	tg_object_put(&replica->seg.obj);
}

/**
 * tg_replica_page_see() - a process touches a page
 * @replica: Replicated segment, not dead. The caller holds map_lock for reading.
 * @i: Page, from 0.
 * @tries: If it is not valid: what tg_replica_page.tries differs from when it has been
 *	filled, or could not be.
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
			if (test_bit(i, replica->unanswered))
				tg_replica_answer_later(replica, 0);
		}
		return true;
	}
	/* Before it is wanted: the next try may be over at once. */
	*tries = READ_ONCE(page->tries);
	set_bit(i, replica->wanted);
	kref_get(&replica->seg.obj.ref);
	if (!queue_work(replica->seg.obj.file->workers, &replica->fill))
		/* It will still look for what is wanted. */
		tg_object_put(&replica->seg.obj);
	return false;
}

/**
 * tg_replica_pages_forget() - the board knows nothing of the pages any more
 * @replica: Replicated segment, whose events have been handled.
 */
void tg_replica_pages_forget(struct tg_replicated *replica)
{
	struct tg_device *tg = replica->seg.obj.tg;
	u32 i;

	mutex_lock(&replica->answer_lock);
	down_write(&tg->map_lock);
	for (i = 0; i < replica->page_count; i++) {
		WRITE_ONCE(replica->pages[i].valid, false);
		clear_bit(i, replica->unanswered);
	}
	up_write(&tg->map_lock);
	mutex_unlock(&replica->answer_lock);
}

/**
 * tg_replica_pages_leave() - the board waits for nothing of these pages any more
 * @replica: Replicated segment, ended. Its pages may be somebody else's after this.
 */
void tg_replica_pages_leave(struct tg_replicated *replica)
{
	mutex_lock(&replica->answer_lock);
	replica->left = true;
	mutex_unlock(&replica->answer_lock);
}

/**
 * tg_replica_pages_end() - ends the answers to the board
 * @replica: Replicated segment that events do not find any more.
 *
 * An answer that is due later would come when the module has gone: a workqueue that is
 * destroyed waits for works, and not for their timers.
 */
void tg_replica_pages_end(struct tg_replicated *replica)
{
	if (cancel_delayed_work_sync(&replica->answer))
		tg_object_put(&replica->seg.obj);
}

/**
 * tg_replica_pages_quiet() - a replicated segment is closed: nobody waits for its pages
 * @replica: Replicated segment. The caller holds map_lock for writing.
 */
void tg_replica_pages_quiet(struct tg_replicated *replica)
{
	wake_up_all(&replica->wait);
}

/**
 * tg_replicas_lost() - the board is gone: wakes everyone who waits for a page
 * @tg: Board. The caller holds map_lock for writing.
 */
void tg_replicas_lost(struct tg_device *tg)
{
	struct tg_object *obj;
	unsigned long handle;

	xa_for_each(&tg->replicas, handle, obj)
		tg_replica_pages_quiet(tg_replica_of(obj));
}
