// SPDX-License-Identifier: GPL-2.0
/*
 * Open files as others see them: the events of their contexts, and their users. How files and
 * contexts come and go is in file.c.
 */
#include <linux/cred.h>
#include <linux/poll.h>

#include "compat.h"
#include "driver.h"

/**
 * tg_context_event() - an armed or notifying operation of a context is done
 * @tg: Board.
 * @context: Context number, as the board names it.
 *
 * The board has written the operation's result before. In any context, interrupts included.
 */
void tg_context_event(struct tg_device *tg, u32 context)
{
	struct tg_file *file;
	unsigned long flags;

	spin_lock_irqsave(&tg->wake_lock, flags);
	file = context < tg->contexts ? tg->files[context] : NULL;
	/* Otherwise it has been closed since. */
	if (file) {
		/* Counted before the wake-up, so that the woken reader finds it. */
		atomic64_inc(&file->events);
		if (file->ops)
			file->ops->event(file);
		wake_up_interruptible_poll(&file->wait, EPOLLIN | EPOLLRDNORM);
		if (file->notify)
			tg_eventfd_signal(file->notify);
	}
	spin_unlock_irqrestore(&tg->wake_lock, flags);
}

/**
 * tg_context_state_event() - the board reports the state of a context
 * @tg: Board.
 * @context: Context number, as the board names it.
 * @value: All of its present state: TG_CONTEXT_* bits.
 *
 * A context closed while it is congested is reported once more, so that a file that
 * gets its number does not wait for ever.
 */
void tg_context_state_event(struct tg_device *tg, u32 context, u64 value)
{
	bool congested = value & TG_CONTEXT_CONGESTED;
	struct tg_file *file = NULL;

	down_write(&tg->map_lock);
	mutex_lock(&tg->lock);
	/* Its file may have been closed since. */
	if (context < tg->contexts)
		file = tg->files[context];
	if (file && file->congested != congested) {
		WRITE_ONCE(file->congested, congested);
		if (congested)
			tg_zap_context(file);
		else
			wake_up_all(&file->calm);
		if (file->ops)
			file->ops->changed(file);
	}
	mutex_unlock(&tg->lock);
	up_write(&tg->map_lock);
}

/**
 * tg_contexts_lost() - wakes all waiters for events of a lost board
 * @tg: Board, gone.
 */
void tg_contexts_lost(struct tg_device *tg)
{
	u32 context;

	mutex_lock(&tg->lock);
	for (context = 0; context < tg->contexts; context++) {
		struct tg_file *file = tg->files[context];

		if (!file)
			continue;
		wake_up_all(&file->wait);
		wake_up_all(&file->calm);
		if (file->ops)
			file->ops->changed(file);
		if (file->notify)
			tg_eventfd_signal(file->notify);
	}
	mutex_unlock(&tg->lock);
}

/**
 * tg_file_put() - drops a user of a file; after the last, its context closes
 * @file: File.
 */
void tg_file_put(struct tg_file *file)
{
	if (refcount_dec_and_test(&file->users))
		queue_work(tg_workers, &file->work);
}

/**
 * tg_file_uid() - to whom the boards are to take an export or a lookup to belong
 * @file: File by which it is made.
 *
 * Return: The uid, as the first user namespace has it, of the calling process; TG_UID_KERNEL for
 * the kernel's own.
 */
u32 tg_file_uid(const struct tg_file *file)
{
	return file->kernel ? TG_UID_KERNEL : from_kuid(&init_user_ns, current_fsuid());
}

/**
 * tg_file_soften() - makes the page that mappings lead to when what they map is gone
 * @file: File.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_file_soften(struct tg_file *file)
{
	struct page *page;

	if (READ_ONCE(file->nowhere))
		return 0;
	page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!page)
		return -ENOMEM;
	if (cmpxchg(&file->nowhere, NULL, page))
		__free_page(page);
	return 0;
}
