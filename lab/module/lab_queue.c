// SPDX-License-Identifier: GPL-2.0
/*
 * Dequeue in the kernel (TG_IOCTL_QUEUE_POP), as the papers' PAL code did: the baseline for
 * the dequeue of processes in their own memory.
 */
#include <linux/pagemap.h>
#include <linux/sched/signal.h>

#include "call.h"
#include "driver.h"
#include "lab_ioctls.h"

/* Attempts to fault in a page that is unmapped again. */
#define TG_POP_FAULTS 256

/**
 * tg_queue_pop() - TG_IOCTL_QUEUE_POP: dequeues, by the driver's list of buffers
 * @call: The call, on the queue, with the caller's structure, to which the element goes.
 *
 * Waits as tg_queue_dequeue(). An element that cannot be copied to the caller stays.
 *
 * Return: As tg_queue_dequeue(); -EINVAL for a reserved field.
 */
int tg_queue_pop(struct tg_call *call)
{
	struct tg_queue_pop __user *user = call->user;
	u32 faults = 0;
	int err;

	if (call->arg.queue_pop.reserved)
		return -EINVAL;
	for (;;) {
		err = tg_queue_dequeue(tg_queue_of(call->obj), &user->value);
		if (err != -EFAULT || ++faults > TG_POP_FAULTS ||
		    fault_in_writeable((char __user *)&user->value, sizeof(user->value)))
			return err;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
}
