// SPDX-License-Identifier: GPL-2.0
/* The interrupt and the event queue. */
#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/moduleparam.h>

#include "driver.h"
#include "trace.h"

static int tg_set_event_entries(const char *value, const struct kernel_param *kp)
{
	unsigned int entries;
	int err;

	err = kstrtouint(value, 0, &entries);
	if (err)
		return err;
	if (!is_power_of_2(entries) || entries < TG_EVENTS_MIN || entries > TG_EVENTS_MAX) {
		pr_err(TG_NAME ": event_entries is %u: expected a power of two from %u to %u\n",
		       entries, TG_EVENTS_MIN, TG_EVENTS_MAX);
		return -EINVAL;
	}
	*(unsigned int *)kp->arg = entries;
	return 0;
}

static const struct kernel_param_ops tg_event_entries_ops = {
	.set = tg_set_event_entries,
	.get = param_get_uint,
};

static unsigned int event_entries = 1024;
module_param_cb(event_entries, &tg_event_entries_ops, &event_entries, 0444);
MODULE_PARM_DESC(event_entries, "Entries of the event queue: a power of two from 4 to 65536 (default 1024)");

/* Errors come from stray accesses: one report per this many jiffies is enough. */
#define TG_ERROR_INTERVAL HZ

static void tg_ack_error(struct work_struct *work)
{
	struct tg_device *tg = container_of(to_delayed_work(work), struct tg_device,
					    events.ack_error);

	writel(1, tg->regs + TG_REG_ERROR_ACK);
}

static void tg_event_error(struct tg_device *tg, u64 error)
{
	u32 status = error & 0xffff;

	/* Acknowledged before it was posted. */
	if (status == TG_OK)
		return;
	if (status == TG_ERR_PRIVATE_MEMORY || status == TG_ERR_MEMORY_FAULT)
		tg_device_memory_works(tg);
	else
		dev_notice_ratelimited(&tg->dev, "BAR%llu refused an access of %llu bytes at %#llx: status %u\n",
				       error >> 16 & 0xf, error >> 20 & 0xff,
				       readq(tg->regs + TG_REG_ERROR_ADDRESS), status);
	schedule_delayed_work(&tg->events.ack_error, TG_ERROR_INTERVAL);
}

static void tg_event_handle(struct tg_device *tg, u16 kind, u16 index, u64 value)
{
	trace_tg_event(tg, kind, index, value);
	switch (kind) {
	case TG_EVENT_ADMIN_DONE:
		tg->ops->command_done(tg, index);
		break;
	case TG_EVENT_IMPORT_STATE:
		tg->ops->import(tg, index, value);
		break;
	case TG_EVENT_NODE_STATE:
		/*
		 * Whatever became of it: what was imported before is void. An
		 * import made since the node came is looked up after this event.
		 */
		tg->ops->nodes_down(tg, index, value ? TG_ERR_RESET : TG_ERR_NODE_DOWN);
		if (value)
			tg->ops->node_up(tg, index);
		break;
	case TG_EVENT_LINK_STATE:
		if (!value)
			tg->ops->nodes_down(tg, TG_ALL_NODES, TG_ERR_LINK_DOWN);
		break;
	case TG_EVENT_ERROR:
		tg_event_error(tg, value);
		break;
	case TG_EVENT_CONTEXT:
		tg_context_event(tg, index);
		break;
	case TG_EVENT_CONTEXT_STATE:
		tg_context_state_event(tg, index, value);
		break;
	case TG_EVENT_COUNTER:
		tg->ops->counter(tg, index, value);
		break;
	case TG_EVENT_QUEUE:
		tg->ops->queue(tg, value);
		break;
	case TG_EVENT_REPLICA:
		tg->ops->replica(tg, index, value);
		break;
	case TG_EVENT_DIRECT:
		tg->ops->direct(tg);
		break;
	default:
		dev_err_ratelimited(&tg->dev, "event of unknown kind %u, index %u, value %#llx\n",
				    kind, index, value);
	}
}

/* The next event, if it is there. The caller is the one that consumes. */
static bool tg_event_next(const struct tg_events *events, u16 *kind, u16 *index, u64 *value)
{
	struct tg_event *entry = &events->ring[events->consumed & (events->size - 1)];
	u64 word;

	/* {kind, index, seq}, written last. */
	word = le64_to_cpu(READ_ONCE(*(__le64 *)&entry->kind));
	if (upper_32_bits(word) != events->consumed + 1)
		return false;
	dma_rmb();
	*kind = word & 0xffff;
	*index = word >> 16 & 0xffff;
	*value = le64_to_cpu(READ_ONCE(entry->value));
	return true;
}

/*
 * Gives the board the room of the events consumed. The next one raises an interrupt, unless it
 * is there already: the caller looks again.
 */
static void tg_events_acknowledge(struct tg_device *tg)
{
	struct tg_events *events = &tg->events;

	WRITE_ONCE(tg->last_sign, jiffies);
	WRITE_ONCE(*events->index, cpu_to_le32(events->consumed));
	/*
	 * The board stores an event and then reads the index: one of the two sees the other.
	 * smp_mb() orders processors of this guest only.
	 */
	mb();
	/* A board that has found no room must be notified, but has left this many events. */
	if (events->consumed - events->announced >= events->size / 2) {
		events->announced = events->consumed;
		writel(events->announced, tg->regs + TG_REG_EVENT_CONSUMER);
	}
}

/**
 * tg_events_consume() - handles every event that is there
 * @tg: Board.
 *
 * May sleep. An event posted after the last look raises an interrupt.
 */
void tg_events_consume(struct tg_device *tg)
{
	struct tg_events *events = &tg->events;
	u16 kind, index;
	u64 value;
	u32 before;

	mutex_lock(&events->lock);
	/* From here on interrupts leave the events to threads, in their order. */
	spin_lock_irq(&events->guard);
	events->threaded = true;
	spin_unlock_irq(&events->guard);
	do {
		before = events->consumed;
		/* At most one lap, then the board is notified. */
		while (events->consumed - before < events->size &&
		       tg_event_next(events, &kind, &index, &value)) {
			events->consumed++;
			tg_event_handle(tg, kind, index, value);
		}
		if (events->consumed != before)
			tg_events_acknowledge(tg);
		cond_resched();
	} while (events->consumed != before && !tg_gone(tg));
	spin_lock_irq(&events->guard);
	events->threaded = false;
	spin_unlock_irq(&events->guard);
	mutex_unlock(&events->lock);
}

/* Events that one interrupt handles before it leaves the rest to the thread. */
#define TG_IRQ_EVENTS 32

/**
 * tg_irq() - the interrupt
 * @irq: Its number.
 * @data: The board.
 *
 * Wakes sleepers at once, since waking them is all there is to a CONTEXT event. From the
 * first other event on, everything is the thread's.
 *
 * Return: IRQ_HANDLED, or IRQ_WAKE_THREAD if there may be more.
 */
irqreturn_t tg_irq(int irq, void *data)
{
	struct tg_device *tg = data;
	struct tg_events *events = &tg->events;
	irqreturn_t result = IRQ_HANDLED;
	u32 begun, acknowledged, before;
	unsigned long flags;
	u16 kind, index;
	u64 value;

	spin_lock_irqsave(&events->guard, flags);
	if (events->threaded) {
		/* It may have looked for the last time. */
		result = IRQ_WAKE_THREAD;
		goto out;
	}
	begun = events->consumed;
	acknowledged = begun;
	do {
		while (tg_event_next(events, &kind, &index, &value)) {
			if (kind != TG_EVENT_CONTEXT || events->consumed - begun == TG_IRQ_EVENTS) {
				/* The thread acknowledges at least this one. */
				result = IRQ_WAKE_THREAD;
				goto out;
			}
			events->consumed++;
			tg_event_handle(tg, kind, index, value);
		}
		before = acknowledged;
		acknowledged = events->consumed;
		/* What was posted before this has raised no interrupt: looks again. */
		if (acknowledged != before)
			tg_events_acknowledge(tg);
	} while (acknowledged != before);
out:
	spin_unlock_irqrestore(&events->guard, flags);
	return result;
}

/**
 * tg_irq_thread() - what the interrupt has left
 * @irq: Its number.
 * @data: The board.
 *
 * Return: IRQ_HANDLED.
 */
irqreturn_t tg_irq_thread(int irq, void *data)
{
	tg_events_consume(data);
	return IRQ_HANDLED;
}

/**
 * tg_events_init() - makes the event queue
 * @tg: Board.
 *
 * Return: 0 or a negative errno.
 */
int tg_events_init(struct tg_device *tg)
{
	struct tg_events *events = &tg->events;

	static_assert(offsetof(struct tg_event, kind) % 8 == 0);
	mutex_init(&events->lock);
	spin_lock_init(&events->guard);
	events->size = event_entries;
	INIT_DELAYED_WORK(&events->ack_error, tg_ack_error);
	events->ring = dma_alloc_coherent(&tg->pdev->dev,
					  events->size * sizeof(*events->ring),
					  &events->dma, GFP_KERNEL);
	if (!events->ring)
		return -ENOMEM;
	events->index = dma_alloc_coherent(&tg->pdev->dev, sizeof(*events->index),
					   &events->index_dma, GFP_KERNEL);
	if (!events->index)
		goto err_ring;
	return 0;

err_ring:
	dma_free_coherent(&tg->pdev->dev, events->size * sizeof(*events->ring),
			  events->ring, events->dma);
	return -ENOMEM;
}

/**
 * tg_events_exit() - mirror of tg_events_init()
 * @tg: Board, which cannot write memory any more.
 */
void tg_events_exit(struct tg_device *tg)
{
	struct tg_events *events = &tg->events;

	dma_free_coherent(&tg->pdev->dev, sizeof(*events->index), events->index,
			  events->index_dma);
	dma_free_coherent(&tg->pdev->dev, events->size * sizeof(*events->ring),
			  events->ring, events->dma);
}
