// SPDX-License-Identifier: GPL-2.0
/*
 * What board and memory device report of direct memory: segments of other members that have been
 * withdrawn, whether imports are observed, a device that is new. See direct.c.
 */
#include <linux/io.h>

#include "direct.h"
#include "driver.h"

/* Looks at the register again. */
static void tg_direct_look(struct tg_device *tg)
{
	struct tg_direct *direct = tg->direct;
	bool before = direct->observed;

	lockdep_assert_held_write(&tg->map_lock);
	mutex_lock(&direct->lock);
	direct->observed = direct->regs && readq(direct->regs + TG_DIRECT_OBSERVED) == 1;
	mutex_unlock(&direct->lock);
	if (direct->observed == before)
		return;
	direct->observations++;
	if (before)
		tg_direct_recheck(tg);
}

/* Ends imports whose segments are gone, and traps all that are to be seen. */
static void tg_direct_update(struct tg_device *tg)
{
	struct tg_direct *direct = tg->direct;
	struct tg_object *obj;
	unsigned long handle;

	tg_direct_look(tg);
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (!remote->direct)
			continue;
		if (direct->base && !tg_direct_is_current(remote)) {
			direct->ended++;
			tg_remote_stale(remote);
		} else if (direct->observed && !remote->trapped) {
			tg_direct_trap_one(remote);
		}
	}
}

/**
 * tg_direct_event() - the board says that the memory of the trust group has changed
 * @tg: Board.
 */
void tg_direct_event(struct tg_device *tg)
{
	if (!tg->direct)
		return;
	down_write(&tg->map_lock);
	tg->direct->events++;
	tg_direct_update(tg);
	up_write(&tg->map_lock);
}

/**
 * tg_direct_work() - makes imports direct, or direct again
 * @work: The board's direct_work.
 */
void tg_direct_work(struct work_struct *work)
{
	struct tg_device *tg = container_of(work, struct tg_device, direct_work);
	struct tg_direct *direct;
	struct tg_object *obj;
	unsigned long handle;

	down_read(&tg->op_lock);
	direct = tg->direct;
	if (!direct || tg_gone(tg))
		goto out;
	down_write(&tg->map_lock);
	/* Board or memory device may be new, and nothing of it known. */
	tg_direct_update(tg);
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		/* Its stores so far go through the board: it settles first. */
		if (direct->rejoin && obj->open && !remote->direct) {
			tg_direct_join(remote);
			remote->trapped = true;
		}
	}
	direct->rejoin = false;
	up_write(&tg->map_lock);
	tg_direct_untrap(tg, TG_ALL_NODES, 0);
out:
	up_read(&tg->op_lock);
}
