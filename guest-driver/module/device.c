// SPDX-License-Identifier: GPL-2.0
/* What all files use of the boards: workqueues, and whether a board answers. */
#include "driver.h"

/* Closes contexts, and handles overflows: waits for no other node. Outlives the boards. */
struct workqueue_struct *tg_workers;

/* Acknowledgements that stores of other nodes wait for: its works wait for no other node. */
struct workqueue_struct *tg_ack_workers;

/* Files with objects on a board, or with a teardown in progress, also after close(). */
atomic_t tg_files = ATOMIC_INIT(0);
DECLARE_WAIT_QUEUE_HEAD(tg_files_gone);

/**
 * tg_init_workers() - makes the workqueues that all boards share
 *
 * Return: 0 or -ENOMEM.
 */
int tg_init_workers(void)
{
	tg_workers = alloc_workqueue(TG_NAME, WQ_UNBOUND, 0);
	if (!tg_workers)
		return -ENOMEM;
	tg_ack_workers = alloc_workqueue(TG_NAME "_acks", WQ_UNBOUND | WQ_HIGHPRI, 0);
	if (tg_ack_workers)
		return 0;
	destroy_workqueue(tg_workers);
	return -ENOMEM;
}

/**
 * tg_exit_workers() - mirror of tg_init_workers()
 */
void tg_exit_workers(void)
{
	destroy_workqueue(tg_workers);
	destroy_workqueue(tg_ack_workers);
}

/**
 * tg_device_answers() - whether the board answers a register read
 * @tg: Board.
 *
 * Return: False if it was removed or its server has died.
 */
bool tg_device_answers(struct tg_device *tg)
{
	return readq(tg->regs + TG_REG_MAGIC) == TG_MAGIC;
}

/**
 * tg_device_memory_works() - whether the board reaches the command slots
 * @tg: Board that has not completed a command.
 *
 * Return: False, with the reason logged, if it will never complete any.
 */
bool tg_device_memory_works(struct tg_device *tg)
{
	u32 status = readq(tg->regs + TG_REG_ERROR) & 0xffff;

	switch (status) {
	case TG_ERR_PRIVATE_MEMORY:
		dev_err(&tg->dev, "the board cannot reach this guest's memory, which is private: start QEMU with -object memory-backend-memfd,share=on\n");
		return false;
	case TG_ERR_MEMORY_FAULT:
		dev_err(&tg->dev, "the board cannot reach its command slots at %pad: memory fault at %#llx\n",
			&tg->admin.dma, readq(tg->regs + TG_REG_ERROR_ADDRESS));
		return false;
	default:
		return true;
	}
}

/**
 * tg_device_check() - declares a board gone that has been silent and does not answer
 * @tg: Board. The caller holds op_lock for reading.
 * @since: Start of the caller's wait for the board, in jiffies.
 */
void tg_device_check(struct tg_device *tg, unsigned long since)
{
	if (time_before(jiffies, since + TG_SILENCE) ||
	    time_before(jiffies, READ_ONCE(tg->last_sign) + TG_SILENCE))
		return;
	if (!tg_device_answers(tg)) {
		if (!tg_gone(tg))
			dev_err(&tg->dev, "the board does not answer any more: remove and re-plug it\n");
		tg->ops->lost(tg);
	} else if (!tg_device_memory_works(tg)) {
		tg->ops->lost(tg);
	} else {
		WRITE_ONCE(tg->last_sign, jiffies);
	}
}

/* Processes that only store, or poll memory, would not notice that the board is gone. */
#define TG_WATCH_INTERVAL (2 * HZ)

/**
 * tg_device_watch() - checks the board periodically as long as a context is open
 * @tg: Board.
 */
void tg_device_watch(struct tg_device *tg)
{
	schedule_delayed_work(&tg->watch, TG_WATCH_INTERVAL);
}
