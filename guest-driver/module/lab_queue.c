// SPDX-License-Identifier: GPL-2.0
/*
 * Dequeue in the kernel (TG_IOCTL_QUEUE_POP), as the papers' PAL code did: the baseline for
 * the dequeue of processes in their own memory.
 */
#include <linux/delay.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "call.h"
#include "driver.h"
#include "lab_ioctls.h"

/* Attempts to change a word that a process may change all the time. */
#define TG_STATE_ATTEMPTS 1024

/* TG_IOCTL_QUEUE_POP, while a process dequeues: sleeps in between, in microseconds. */
#define TG_POP_SLEEP_MIN 20
#define TG_POP_SLEEP_MAX 1000

/* Attempts to fault in a page that is unmapped again. */
#define TG_POP_FAULTS 256

/* Becomes BUSY: 0, or -EBUSY if that is not possible now. */
static int tg_queue_enter(struct tg_nqueue *queue)
{
	const s64 busy = (s64)((u64)TG_OWNER_KERNEL << TG_QUEUE_OWNER_SHIFT) | TG_QUEUE_BUSY;
	atomic64_t *word = tg_queue_word(queue);
	s64 state = atomic64_read(word);
	int i;

	lockdep_assert_held(&queue->lock);
	for (i = 0; i < TG_STATE_ATTEMPTS; i++) {
		if (state & (TG_QUEUE_BUSY | TG_QUEUE_FULL))
			return -EBUSY;
		if (atomic64_try_cmpxchg(word, &state, lower_32_bits(state) | busy))
			return 0;
	}
	return -EBUSY;
}

/* Copies the oldest element to the caller and takes it out: 0, -EAGAIN, -EFAULT if the page is not there, -EIO. */
static int tg_queue_hand_over(struct tg_nqueue *queue, u64 __user *user)
{
	u64 value;
	int err;

	err = tg_queue_peek(queue, &value);
	if (err <= 0)
		return err ? -EIO : -EAGAIN;
	/* Another process may delay a page fault: none under these locks. */
	pagefault_disable();
	err = __put_user(value, user);
	pagefault_enable();
	if (err)
		return -EFAULT;
	return tg_queue_take(queue) ? -EIO : 0;
}

static int tg_queue_pop_once(struct tg_nqueue *queue, u64 __user *user)
{
	int err;

	err = tg_queue_before_pop(queue);
	if (err)
		return err;
	err = tg_queue_enter(queue);
	if (err)
		return err;
	err = tg_queue_hand_over(queue, user);
	atomic64_fetch_and((u32)~TG_QUEUE_BUSY, tg_queue_word(queue));
	return tg_queue_after_pop(queue, err);
}

/**
 * tg_queue_pop() - TG_IOCTL_QUEUE_POP: dequeues, by the driver's list of buffers
 * @call: The call: the queue's handle, and the caller's structure, to which the element goes.
 *
 * Waits, killably, while a consumer is dequeueing, at most for about twice
 * queue_hold_ms. An element that cannot be copied to the caller stays.
 *
 * Return: 0; -EAGAIN if the queue is empty; -EBUSY if others dequeued all the time;
 * -EINVAL for a reserved field; -EBADF for a queue that is not this file's, or is closed;
 * -EFAULT; -EIO if the queue is dead; -EINTR if killed; -ENODEV if the board is gone.
 */
int tg_queue_pop(struct tg_call *call)
{
	const struct tg_queue_pop *arg = &call->arg.queue_pop;
	struct tg_queue_pop __user *user = call->user;
	unsigned long end = jiffies + 2 * msecs_to_jiffies(tg_queue_patience());
	unsigned long pause = TG_POP_SLEEP_MIN;
	struct tg_nqueue *queue;
	struct tg_object *obj;
	u32 faults = 0;
	int err;

	if (arg->reserved)
		return -EINVAL;
	if (!access_ok(&user->value, sizeof(user->value)))
		return -EFAULT;
	obj = tg_object_find(call->file, TG_MMAP_QUEUE, arg->handle);
	if (!obj)
		return -EBADF;
	queue = tg_queue_of(obj);
	for (;;) {
		err = tg_queue_begin(queue);
		if (err)
			break;
		err = tg_queue_pop_once(queue, &user->value);
		tg_queue_done(queue);
		if (err == -EBUSY) {
			if (time_after(jiffies, end))
				break;
			usleep_range(pause, 2 * pause);
			pause = min_t(unsigned long, 2 * pause, TG_POP_SLEEP_MAX);
		} else if (err == -EFAULT) {
			if (++faults > TG_POP_FAULTS ||
			    fault_in_writeable((char __user *)&user->value, sizeof(user->value)))
				break;
		} else {
			break;
		}
		if (fatal_signal_pending(current)) {
			err = -EINTR;
			break;
		}
	}
	tg_object_put(obj);
	return err;
}
