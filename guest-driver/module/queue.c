// SPDX-License-Identifier: GPL-2.0
/*
 * Notification queues of this node (SPEC items 4 to 12, E9 to E13).
 *
 * The board appends to a queue's first buffer. When that is full it stops, and an
 * event says so; the driver copies the buffer, links the copy behind it (queue_handler.c,
 * queue_buffers.c), and resumes the board. Processes dequeue in their own memory, without
 * the kernel.
 *
 * The two exclude each other by a word in the control page: a consumer that dequeues is
 * BUSY, and enters only while no other is and FULL is not set. The driver sets FULL first,
 * and touches the buffers only if BUSY was clear. Otherwise the consumer finds FULL when it
 * leaves, and calls the driver. Processes may write anything into the word. So the driver
 * keeps the stage of a queue itself, and reads only BUSY and the owner from the word:
 *
 *  - a consumer that stays BUSY is waited for until queue_hold_ms are over; then all
 *    mappings of the queue are revoked, and no consumer can be inside (E13);
 *
 *  - a consumer that exits, or unmaps the queue, while BUSY, is found by its owner number,
 *    which belongs to one process (queue_map.c);
 *
 *  - for a consumer that leaves and does not call, the same two apply.
 *
 * A process that writes wrong values damages this queue only, to which it has the rights.
 *
 * All work on a queue is done under its lock: by a worker, after an event, the exit of a
 * process or too long a wait, or by a process in TG_IOCTL_QUEUE_SERVICE, or for which
 * tg_queue_dequeue() dequeues. That is BUSY like any other consumer, under an owner number
 * that no process has.
 */
#include <linux/delay.h>
#include <linux/log2.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "driver.h"
#include "trace.h"

#define TG_QUEUE_HOLD_MIN 1
#define TG_QUEUE_HOLD_MAX 60000

/* Attempts to change a word that a process may change all the time. */
#define TG_STATE_ATTEMPTS 1024

/* Pauses between attempts to dequeue while consumers are BUSY, in microseconds. */
#define TG_DEQUEUE_PAUSE_MIN 20
#define TG_DEQUEUE_PAUSE_MAX 1000

static const struct tg_object_ops tg_queue_ops;

static int tg_set_queue_hold(const char *value, const struct kernel_param *kp)
{
	int err = param_set_uint_minmax(value, kp, TG_QUEUE_HOLD_MIN, TG_QUEUE_HOLD_MAX);

	if (err)
		pr_err(TG_NAME ": queue_hold_ms is %*pE: expected milliseconds from %u to %u\n",
		       (int)strcspn(value, "\n"), value, TG_QUEUE_HOLD_MIN, TG_QUEUE_HOLD_MAX);
	return err;
}

static const struct kernel_param_ops tg_queue_hold_ops = {
	.set = tg_set_queue_hold,
	.get = param_get_uint,
};

static unsigned int queue_hold_ms = 5000;
module_param_cb(queue_hold_ms, &tg_queue_hold_ops, &queue_hold_ms, 0644);
MODULE_PARM_DESC(queue_hold_ms, "How long a process may keep a full queue stopped by dequeueing, before the queue's mappings are taken away, in milliseconds: 1 to 60000 (default 5000)");

/* Schedules the worker of a queue, unless the queue has ended. */
static void tg_queue_schedule(struct tg_nqueue *queue)
{
	spin_lock(&queue->guard);
	if (!queue->ended)
		queue_work(tg_workers, &queue->work);
	spin_unlock(&queue->guard);
}

static void tg_queue_set_timer(struct tg_nqueue *queue)
{
	unsigned long now = jiffies;

	spin_lock(&queue->guard);
	if (!queue->ended)
		mod_delayed_work(tg_workers, &queue->hold,
				 time_before(now, queue->deadline) ? queue->deadline - now : 0);
	spin_unlock(&queue->guard);
}

/* FULL stays set until the BUSY consumer leaves, or until the deadline. */
static void tg_queue_leave_full(struct tg_nqueue *queue)
{
	lockdep_assert_held(&queue->lock);
	if (queue->waits)
		return;
	queue->deadline = jiffies + msecs_to_jiffies(READ_ONCE(queue_hold_ms));
	WRITE_ONCE(queue->waits, true);
	tg_queue_set_timer(queue);
}

/* FULL is clear, or the queue is dead: ends the wait for it. */
static void tg_queue_finish_wait(struct tg_nqueue *queue)
{
	lockdep_assert_held(&queue->lock);
	if (!queue->waits)
		return;
	WRITE_ONCE(queue->waits, false);
	cancel_delayed_work(&queue->hold);
	wake_up_all(&queue->wait);
}

/* Marks a queue dead and notifies its processes. */
static void tg_queue_die(struct tg_nqueue *queue, u32 status, bool revoke)
{
	struct tg_object *obj = &queue->seg.obj;

	lockdep_assert_held(&queue->lock);
	if (queue->status)
		return;
	dev_notice_ratelimited(&obj->tg->dev, "queue \"%*pE\" of context %u is broken: status %u\n",
			       tg_name_length(queue->seg.name), queue->seg.name,
			       obj->file->context, status);
	queue->status = status;
	queue->revoke = revoke;
	atomic64_fetch_or(TG_QUEUE_DEAD, tg_queue_word(queue));
	tg_queue_finish_wait(queue);
	tg_context_event(obj->tg, obj->file->context);
}

/* Handles the events about the queue that have been recorded. */
static void tg_queue_drain_events(struct tg_nqueue *queue)
{
	u32 news, broken;

	lockdep_assert_held(&queue->lock);
	spin_lock(&queue->guard);
	news = queue->news;
	broken = queue->broken;
	queue->news = 0;
	spin_unlock(&queue->guard);
	if (news & TG_QUEUE_EVENT_OVERFLOW)
		tg_handler_stopped(&queue->handler);
	/* The board refuses further elements: the grant can stay. */
	if (news & TG_QUEUE_EVENT_BROKEN)
		tg_queue_die(queue, broken ? broken : TG_ERR_QUEUE_HEADER, false);
}

/* Revokes the grant of a queue that the driver has found broken. Always -EIO. */
static int tg_queue_revoke(struct tg_nqueue *queue)
{
	int err;

	lockdep_assert_held(&queue->lock);
	if (queue->revoke) {
		err = tg_segment_revoke(&queue->seg);
		queue->revoke = err == -EINTR;
		if (queue->revoke)
			tg_queue_schedule(queue);
	}
	return -EIO;
}

/* Resumes the board after the first buffer has been copied. */
static int tg_queue_resume(struct tg_nqueue *queue)
{
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_QUEUE_RESUME),
		.command.index = cpu_to_le32(queue->seg.first),
	};
	struct tg_object *obj = &queue->seg.obj;
	struct tg_admin_result result;
	int err;

	lockdep_assert_held(&queue->lock);
	err = tg_admin(obj->tg, obj->file, TG_ADMIN_QUICK, &request, &result);
	if (err == -EINTR)
		/* The caller is being killed; a worker continues, since senders wait. */
		tg_queue_schedule(queue);
	if (err)
		return err;
	if (result.status != TG_OK) {
		tg_queue_die(queue, result.status, true);
		return tg_queue_revoke(queue);
	}
	/* If it has stopped again, another event is recorded. */
	tg_handler_resumed(&queue->handler);
	WRITE_ONCE(queue->control->overflows, ++queue->overflows);
	trace_tg_queue_overflow(queue);
	if (queue->buffers.linked == queue->about.limit) {
		WRITE_ONCE(queue->control->limits, ++queue->limits);
		tg_context_event(obj->tg, obj->file->context);
	}
	return 0;
}

/*
 * Handles events and an overflow of a queue. 0 if FULL is clear now; -EBUSY if a consumer is
 * BUSY; -EIO if the queue is dead; -EINTR if the caller was killed; -ENODEV if the board is
 * gone.
 */
static int tg_queue_handle(struct tg_nqueue *queue)
{
	int err;

	lockdep_assert_held(&queue->lock);
	lockdep_assert_held(&queue->seg.obj.tg->op_lock);
	tg_queue_drain_events(queue);
	if (queue->status)
		return tg_queue_revoke(queue);
	tg_handler_begin(&queue->handler);
	for (;;) {
		switch (tg_handler_step(&queue->handler)) {
		case TG_NEXT_STEP:
			break;
		case TG_NEXT_DONE:
			tg_queue_finish_wait(queue);
			return 0;
		case TG_NEXT_BUSY:
			tg_queue_leave_full(queue);
			return -EBUSY;
		case TG_NEXT_RESUME:
			err = tg_queue_resume(queue);
			if (err)
				return err;
			break;
		case TG_NEXT_BROKEN:
			tg_queue_die(queue, TG_ERR_QUEUE_HEADER, true);
			return tg_queue_revoke(queue);
		}
	}
}

/* Clears the BUSY that processes have left that do not have the queue mapped any more. */
static void tg_queue_forget(struct tg_nqueue *queue)
{
	u32 owner;

	lockdep_assert_held(&queue->lock);
	while (tg_holder_gone(queue, &owner))
		tg_handler_clear_busy(&queue->handler, owner);
}

static void tg_queue_work(struct work_struct *work)
{
	struct tg_nqueue *queue = container_of(work, struct tg_nqueue, work);
	struct tg_device *tg = queue->seg.obj.tg;

	down_read(&tg->op_lock);
	mutex_lock(&queue->lock);
	if (!tg_gone(tg)) {
		tg_queue_forget(queue);
		tg_queue_handle(queue);
	}
	mutex_unlock(&queue->lock);
	up_read(&tg->op_lock);
}

/* A consumer is BUSY for too long: revokes all mappings of the queue. */
static void tg_queue_evict(struct tg_nqueue *queue)
{
	struct tg_object *obj = &queue->seg.obj;
	struct tg_device *tg = obj->tg;
	atomic64_t *word = tg_queue_word(queue);

	lockdep_assert_held(&queue->lock);
	dev_notice_ratelimited(&tg->dev, "queue \"%*pE\" of context %u: owner %u dequeues for longer than %u ms: its mappings are taken away\n",
			       tg_name_length(queue->seg.name), queue->seg.name, obj->file->context,
			       upper_32_bits(atomic64_read(word)), READ_ONCE(queue_hold_ms));
	down_write(&tg->map_lock);
	tg_holders_evict(queue);
	tg_zap(obj);
	up_write(&tg->map_lock);
	queue->evictions++;
	tg_handler_evict(&queue->handler);
}

static void tg_queue_hold_work(struct work_struct *work)
{
	struct tg_nqueue *queue = container_of(to_delayed_work(work), struct tg_nqueue, hold);
	struct tg_device *tg = queue->seg.obj.tg;

	down_read(&tg->op_lock);
	mutex_lock(&queue->lock);
	if (tg_gone(tg) || !queue->waits)
		goto out;
	if (time_before(jiffies, queue->deadline)) {
		/* The timer was of an earlier wait. */
		tg_queue_set_timer(queue);
		goto out;
	}
	/* If BUSY is clear, the consumer has left without calling. */
	if (atomic64_read(tg_queue_word(queue)) & TG_QUEUE_BUSY)
		tg_queue_evict(queue);
	/* A consumer that is BUSY from now on has a deadline of its own. */
	WRITE_ONCE(queue->waits, false);
	tg_queue_handle(queue);
	wake_up_all(&queue->wait);
out:
	mutex_unlock(&queue->lock);
	up_read(&tg->op_lock);
}

/**
 * tg_queue_event() - the board reports the state of a queue
 * @tg: Board.
 * @value: Export page in bits 63:32, status in 31:16, TG_QUEUE_EVENT_* bits.
 */
void tg_queue_event(struct tg_device *tg, u64 value)
{
	struct tg_segment *segment;
	struct tg_nqueue *queue;

	down_read(&tg->map_lock);
	segment = tg_segment_watched(tg, TG_MMAP_QUEUE, upper_32_bits(value));
	if (segment) {
		queue = tg_queue_of(&segment->obj);
		spin_lock(&queue->guard);
		queue->news |= value & (TG_QUEUE_EVENT_OVERFLOW | TG_QUEUE_EVENT_BROKEN);
		if (value & TG_QUEUE_EVENT_BROKEN)
			queue->broken = value >> 16 & 0xffff;
		if (!queue->ended)
			queue_work(tg_workers, &queue->work);
		spin_unlock(&queue->guard);
	}
	up_read(&tg->map_lock);
}

/*
 * Takes the locks for work on a queue that has not ended: 0; -EBADF if it is closed; -EINTR if
 * killed; -ENODEV if the board is gone.
 */
static int tg_queue_begin(struct tg_nqueue *queue)
{
	struct tg_device *tg = queue->seg.obj.tg;
	int err;

	down_read(&tg->op_lock);
	err = tg_gone(tg) ? -ENODEV : mutex_lock_killable(&queue->lock);
	if (!err && READ_ONCE(queue->ended)) {
		mutex_unlock(&queue->lock);
		err = -EBADF;
	}
	if (err)
		up_read(&tg->op_lock);
	return err;
}

/* Mirror of tg_queue_begin(). */
static void tg_queue_done(struct tg_nqueue *queue)
{
	mutex_unlock(&queue->lock);
	up_read(&queue->seg.obj.tg->op_lock);
}

static bool tg_queue_may_continue(struct tg_nqueue *queue)
{
	return !READ_ONCE(queue->waits) || tg_gone(queue->seg.obj.tg) ||
	       READ_ONCE(queue->seg.obj.dead);
}

/**
 * tg_queue_service() - TG_IOCTL_QUEUE_SERVICE: handles an overflow if there is one
 * @call: The call, on the queue.
 *
 * Waits, killably, while a consumer is dequeueing, at most for about queue_hold_ms.
 * TG_QUEUE_FULL is clear on return; TG_QUEUE_HELD may be set.
 *
 * Return: 0; -EBADF for a queue that is closed; -EIO if it is dead; -EINTR if killed; -ENODEV
 * if the board is gone.
 */
int tg_queue_service(struct tg_call *call)
{
	struct tg_object *obj = call->obj;
	struct tg_nqueue *queue = tg_queue_of(obj);
	int err;

	for (;;) {
		err = tg_queue_begin(queue);
		if (err)
			return err;
		err = tg_queue_handle(queue);
		tg_queue_done(queue);
		if (err != -EBUSY)
			return err;
		if (wait_event_killable(queue->wait, tg_queue_may_continue(queue)))
			return -EINTR;
		if (READ_ONCE(obj->dead))
			return tg_gone(obj->tg) ? -ENODEV : -EBADF;
	}
}

/* The kernel becomes BUSY: 0, or -EBUSY if that is not possible now. */
static int tg_queue_enter(struct tg_nqueue *queue)
{
	const s64 busy = (s64)((u64)TG_OWNER_KERNEL << TG_QUEUE_OWNER_SHIFT) | TG_QUEUE_BUSY;
	atomic64_t *word = tg_queue_word(queue);
	s64 state = atomic64_read(word);
	int i;

	for (i = 0; i < TG_STATE_ATTEMPTS; i++) {
		if (state & (TG_QUEUE_BUSY | TG_QUEUE_FULL))
			return -EBUSY;
		if (atomic64_try_cmpxchg(word, &state, lower_32_bits(state) | busy))
			return 0;
	}
	return -EBUSY;
}

/* Takes the oldest element, if it can be copied to the caller: as tg_queue_dequeue(). */
static int tg_queue_take(struct tg_nqueue *queue, u64 __user *to)
{
	u64 value;
	int err;

	err = tg_buffers_peek(&queue->buffers, &value);
	if (err <= 0)
		return err ? -EIO : -EAGAIN;
	/* Another process may delay a page fault: none under these locks. */
	pagefault_disable();
	err = put_user(value, to);
	pagefault_enable();
	if (err)
		return -EFAULT;
	return tg_buffers_take(&queue->buffers) ? -EIO : 0;
}

/* One attempt of tg_queue_dequeue(): -EBUSY if a consumer is BUSY. */
static int tg_queue_try_dequeue(struct tg_nqueue *queue, u64 __user *to)
{
	int err;

	lockdep_assert_held(&queue->lock);
	tg_queue_drain_events(queue);
	/* While senders are held back, only a dequeue makes room. */
	if (queue->status || queue->waits || queue->handler.stage != TG_STAGE_HELD) {
		err = tg_queue_handle(queue);
		if (err)
			return err;
	}
	err = tg_queue_enter(queue);
	if (err)
		return err;
	err = tg_queue_take(queue, to);
	atomic64_fetch_and((u32)~TG_QUEUE_BUSY, tg_queue_word(queue));
	if (err == -EIO)
		tg_queue_die(queue, TG_ERR_QUEUE_HEADER, true);
	if (!queue->status && queue->handler.stage == TG_STAGE_RUNNING)
		return err;
	/* A worker does the rest if this fails: the element has been taken. */
	if (!tg_queue_handle(queue) && queue->handler.stage == TG_STAGE_RUNNING && err == -EAGAIN)
		err = -EBUSY;
	return err;
}

/**
 * tg_queue_dequeue() - takes the oldest element out, for the calling process
 * @queue: Queue.
 * @to: Memory of the process to which the element is copied.
 *
 * Waits, killably, while a consumer is dequeueing, at most for about twice
 * queue_hold_ms. An element that cannot be copied stays.
 *
 * Return: 0; -EAGAIN if the queue is empty; -EBUSY if others dequeued all the time; -EFAULT
 * if the page of @to is not present; -EBADF if the queue is closed; -EIO if it is dead;
 * -EINTR if killed; -ENODEV if the board is gone.
 */
int tg_queue_dequeue(struct tg_nqueue *queue, u64 __user *to)
{
	unsigned long end = jiffies + 2 * msecs_to_jiffies(READ_ONCE(queue_hold_ms));
	unsigned long pause = TG_DEQUEUE_PAUSE_MIN;
	int err;

	for (;;) {
		err = tg_queue_begin(queue);
		if (err)
			return err;
		err = tg_queue_try_dequeue(queue, to);
		tg_queue_done(queue);
		if (err != -EBUSY || time_after(jiffies, end))
			return err;
		if (fatal_signal_pending(current))
			return -EINTR;
		usleep_range(pause, 2 * pause);
		pause = min_t(unsigned long, 2 * pause, TG_DEQUEUE_PAUSE_MAX);
	}
}
EXPORT_SYMBOL_NS_GPL(tg_queue_dequeue, TG_LAB_NS);

/**
 * tg_queue_state() - TG_IOCTL_QUEUE_STATE
 * @call: The call, on the queue, whose state is filled in: the driver's, and BUSY from the
 *	control page.
 *
 * Return: 0 or a negative errno.
 */
int tg_queue_state(struct tg_call *call)
{
	struct tg_queue_state *arg = &call->arg.queue_state;
	struct tg_nqueue *queue = tg_queue_of(call->obj);
	int err;

	err = tg_queue_begin(queue);
	if (err && err != -ENODEV)
		return err;
	arg->state = 0;
	arg->status = queue->status;
	if (err) {
		/* The board is lost, and with it the queue. */
		if (!arg->status)
			arg->status = TG_ERR_RESET;
	} else {
		arg->state = atomic64_read(tg_queue_word(queue)) & TG_QUEUE_BUSY;
		if (queue->handler.stage == TG_STAGE_HELD)
			arg->state |= TG_QUEUE_HELD;
		else if (queue->handler.stage != TG_STAGE_RUNNING)
			arg->state |= TG_QUEUE_FULL;
	}
	if (arg->status)
		arg->state |= TG_QUEUE_DEAD;
	arg->linked = queue->buffers.linked;
	arg->overflows = queue->overflows;
	arg->evictions = queue->evictions;
	if (!err)
		tg_queue_done(queue);
	return 0;
}

/* Checks the shape of a queue (SPEC item 5, E7), its quota and its rights. */
static bool tg_queue_is_valid(const struct tg_queue *arg)
{
	return (arg->width == 4 || arg->width == 8) &&
	       arg->words >= TG_QUEUE_WORDS_MIN && is_power_of_2(arg->words) &&
	       (u64)arg->words * arg->width <= TG_QUEUE_BYTES_MAX &&
	       arg->quota && arg->quota <= TG_QUEUE_QUOTA_MAX && arg->limit <= arg->quota &&
	       !((arg->rights_owner | arg->rights_others) & ~TG_RIGHT_ENQUEUE);
}

/* Bytes of a chunk of the arena: of a whole number of buffers, and of pages. */
static size_t tg_queue_chunk(const struct tg_queue *about)
{
	return max_t(size_t, PAGE_SIZE, about->words * about->width);
}

static u32 tg_queue_chunks(const struct tg_queue *about)
{
	return DIV_ROUND_UP((u64)(1 + about->quota) * about->words * about->width,
			    tg_queue_chunk(about));
}

/* Allocates the control page and the buffers, all empty. */
static int tg_queue_allocate(struct tg_nqueue *queue)
{
	const struct tg_queue *about = &queue->about;
	u32 bytes = about->words * about->width;
	struct tg_buffers *buffers = &queue->buffers;
	struct tg_device *tg = queue->seg.obj.tg;
	struct tg_memory *memory;
	u32 per_chunk, i;

	static_assert(sizeof(*queue->control) <= PAGE_SIZE);
	memory = tg_memory_new(tg, PAGE_SIZE, 1, queue->seg.obj.file->owner);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	queue->control_memory = memory;
	queue->control = page_address(memory->chunk[0].page);

	memory = tg_memory_new(tg, tg_queue_chunk(about), tg_queue_chunks(about),
			       queue->seg.obj.file->owner);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	queue->seg.memory = memory;
	if (memory->chunk[0].dma & (bytes - 1)) {
		dev_err_ratelimited(&tg->dev, "a buffer of %u bytes has the DMA address %pad: expected one that is aligned to them\n",
				    bytes, &memory->chunk[0].dma);
		return -ENOMEM;
	}

	buffers->words = about->words;
	buffers->width = about->width;
	buffers->count = 1 + about->quota;
	buffers->order = kvcalloc(about->quota, sizeof(*buffers->order), GFP_KERNEL_ACCOUNT);
	buffers->base = kvcalloc(buffers->count, sizeof(*buffers->base), GFP_KERNEL_ACCOUNT);
	if (!buffers->order || !buffers->base)
		return -ENOMEM;
	per_chunk = tg_queue_chunk(about) / bytes;
	for (i = 0; i < buffers->count; i++)
		buffers->base[i] = page_address(memory->chunk[i / per_chunk].page) +
				   i % per_chunk * bytes;
	tg_buffers_init(buffers);
	queue->handler.state = &queue->control->state;
	queue->handler.buffers = buffers;
	return 0;
}

static int tg_queue_grant(struct tg_nqueue *queue)
{
	struct tg_object *obj = &queue->seg.obj;
	union tg_request request = {
		.queue.opcode = cpu_to_le32(TG_ADMIN_QUEUE_SET),
		.queue.page = cpu_to_le32(queue->seg.first),
		.queue.words = cpu_to_le32(queue->about.words),
		.queue.width = cpu_to_le32(queue->about.width),
		.queue.context = cpu_to_le32(obj->file->context),
		.queue.address = cpu_to_le64(queue->seg.memory->chunk[0].dma),
	};
	struct tg_admin_result result;
	int err;

	tg_put_nodes(request.queue.nodes, queue->about.nodes);
	err = tg_admin_checked(obj->tg, obj->file, TG_ADMIN_QUICK, &request, &result);
	if (err)
		return err;
	queue->seg.granted = 1;
	queue->seg.generation = result.generation;
	return 0;
}

/* Describes the queue, and gives the caller an owner number. */
static int tg_queue_describe(struct tg_nqueue *queue, struct tg_queue *arg)
{
	s64 owner = tg_holder_join(queue);
	u32 size = arg->size;

	if (owner < 0)
		return owner;
	*arg = queue->about;
	arg->size = size;
	arg->owner = owner;
	return 0;
}

/**
 * tg_queue_create() - TG_IOCTL_QUEUE_CREATE
 * @call: The call, of the file that makes it. The caller holds op_lock for reading, and the
 *	board is not gone.
 *
 * Return: 0 or a negative errno.
 */
int tg_queue_create(struct tg_call *call)
{
	struct tg_queue *arg = &call->arg.queue;
	struct tg_export offer = {
		.rights_owner = arg->rights_owner,
		.rights_others = arg->rights_others,
	};
	struct tg_nqueue *queue;
	struct tg_queue *about;
	int err;

	if (!tg_queue_is_valid(arg))
		return -EINVAL;
	queue = kzalloc(sizeof(*queue), GFP_KERNEL_ACCOUNT);
	if (!queue)
		return -ENOMEM;
	/* Before the object is in the table, where events find it. */
	mutex_init(&queue->lock);
	init_waitqueue_head(&queue->wait);
	INIT_WORK(&queue->work, tg_queue_work);
	INIT_DELAYED_WORK(&queue->hold, tg_queue_hold_work);
	spin_lock_init(&queue->guard);
	INIT_LIST_HEAD(&queue->holders);
	about = &queue->about;
	*about = *arg;
	memset(about->secret, 0, sizeof(about->secret));
	about->arena = PAGE_SIZE;
	about->length = PAGE_SIZE + (u64)tg_queue_chunks(arg) * tg_queue_chunk(arg);
	err = tg_segment_init(&queue->seg, call->file, &tg_queue_ops, arg->name, about->length);
	if (err)
		return err;
	call->created = &queue->seg.obj;
	about->handle = queue->seg.obj.handle;
	about->offset = tg_mmap_offset(TG_MMAP_QUEUE, about->handle);

	err = tg_queue_allocate(queue);
	if (!err)
		err = tg_segment_take_pages(&queue->seg, 1);
	if (!err)
		err = tg_segment_watch(&queue->seg);
	if (!err)
		err = tg_queue_grant(queue);
	if (err)
		return err;
	about->page = queue->seg.first;
	/* Its senders see one buffer. */
	offer.length = arg->words * arg->width;
	memcpy(offer.secret, arg->secret, sizeof(offer.secret));
	err = tg_segment_announce(&queue->seg, &offer);
	if (err)
		return err;
	return tg_queue_describe(queue, arg);
}

/**
 * tg_queue_attach() - TG_IOCTL_QUEUE_ATTACH
 * @call: The call: the queue's handle in; its description, and the caller's owner number, out.
 *
 * Return: 0; -EBADF for a queue that is not this file's; -ENOMEM; -ENOSPC if too many
 * processes have it; -ENODEV if the board is gone.
 */
int tg_queue_attach(struct tg_call *call)
{
	struct tg_queue *arg = &call->arg.queue;
	struct tg_object *obj;
	int err;

	if (tg_gone(call->file->tg))
		return -ENODEV;
	obj = tg_object_find(call->file, TG_MMAP_QUEUE, arg->handle);
	if (!obj)
		return -EBADF;
	err = tg_queue_describe(tg_queue_of(obj), arg);
	tg_object_put(obj);
	return err;
}

/* It is closed, or the board is gone: wakes all waiters. */
static void tg_queue_quiet(struct tg_object *obj)
{
	wake_up_all(&tg_queue_of(obj)->wait);
}

/**
 * tg_queues_lost() - the board is gone: wakes all waiters of queues
 * @tg: Board. The caller holds map_lock for writing.
 */
void tg_queues_lost(struct tg_device *tg)
{
	struct tg_object *obj;
	unsigned long handle;

	xa_for_each(&tg->objects[TG_MMAP_QUEUE], handle, obj)
		tg_queue_quiet(obj);
}

/* Ends all work on a queue. */
static void tg_queue_end(struct tg_object *obj)
{
	struct tg_nqueue *queue = tg_queue_of(obj);

	spin_lock(&queue->guard);
	WRITE_ONCE(queue->ended, true);
	spin_unlock(&queue->guard);
	cancel_delayed_work_sync(&queue->hold);
	cancel_work_sync(&queue->work);
	/* Waits for work under the lock; later work finds the queue ended. */
	mutex_lock(&queue->lock);
	mutex_unlock(&queue->lock);
}

static bool tg_queue_leave(struct tg_object *obj)
{
	struct tg_nqueue *queue = tg_queue_of(obj);

	if (!tg_segment_leave(obj))
		return false;
	if (queue->control_memory)
		tg_memory_free(obj->tg, queue->control_memory);
	return true;
}

static void tg_queue_free(struct tg_object *obj)
{
	struct tg_nqueue *queue = tg_queue_of(obj);

	tg_holders_free(&queue->holders);
	kvfree(queue->buffers.order);
	kvfree(queue->buffers.base);
	kfree(queue);
}

static const struct tg_object_ops tg_queue_ops = {
	.kind = TG_MMAP_QUEUE,
	.quiet = tg_queue_quiet,
	.end = tg_queue_end,
	.leave = tg_queue_leave,
	.unwatch = tg_segment_unwatch,
	.free = tg_queue_free,
};
