// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Mutual exclusion of the dequeue section and the copy of a full buffer (SPEC E11, I12).
 *
 * Each call of tg_handler_step() performs one access to the word, or copies and links.
 * Between two of them the word and the buffers can change in any way; models make use of
 * that. The driver calls one step after the other.
 *
 * A consumer that is BUSY when FULL is set finds it on leaving, and calls the driver, which
 * touches nothing until then. A later consumer finds FULL, and does not enter. So no consumer
 * is inside from the moment FULL is set over a word that is not BUSY until it is cleared.
 */
#include "queue_handler.h"
#include "telegraphos.h"

#ifdef __KERNEL__
#include <linux/atomic.h>
#include <linux/errno.h>
#else
#include <errno.h>
#include <stdbool.h>
#endif

/* Attempts to change a word that a process may change all the time. */
#define TG_HANDLER_ATTEMPTS 1024

#ifdef __KERNEL__
static atomic64_t *tg_word(const struct tg_handler *h)
{
	return (atomic64_t *)h->state;
}

static u64 tg_word_read(const struct tg_handler *h)
{
	return atomic64_read(tg_word(h));
}

static u64 tg_word_set(const struct tg_handler *h, u64 bits)
{
	return atomic64_fetch_or(bits, tg_word(h));
}

static void tg_word_clear(const struct tg_handler *h, u64 bits)
{
	atomic64_fetch_andnot(bits, tg_word(h));
}

static bool tg_word_swap(const struct tg_handler *h, u64 *expected, u64 value)
{
	return atomic64_try_cmpxchg(tg_word(h), (s64 *)expected, value);
}

static bool tg_handler_is(const struct tg_handler *h, u32 variant)
{
	return variant == TG_HANDLER_SOUND;
}
#else
static u64 tg_word_read(const struct tg_handler *h)
{
	return __atomic_load_n(h->state, __ATOMIC_RELAXED);
}

static u64 tg_word_set(const struct tg_handler *h, u64 bits)
{
	return __atomic_fetch_or(h->state, bits, __ATOMIC_SEQ_CST);
}

static void tg_word_clear(const struct tg_handler *h, u64 bits)
{
	__atomic_fetch_and(h->state, ~bits, __ATOMIC_SEQ_CST);
}

static bool tg_word_swap(const struct tg_handler *h, u64 *expected, u64 value)
{
	return __atomic_compare_exchange_n(h->state, expected, value, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_RELAXED);
}

static bool tg_handler_is(const struct tg_handler *h, u32 variant)
{
	return h->variant == variant;
}
#endif

/**
 * tg_handler_stopped() - the board has stopped the queue
 * @h: Handler.
 */
void tg_handler_stopped(struct tg_handler *h)
{
	if (h->stage == TG_STAGE_RUNNING)
		h->stage = TG_STAGE_STOPPED;
}

/**
 * tg_handler_begin() - starts over, wherever the last steps ended
 * @h: Handler.
 */
void tg_handler_begin(struct tg_handler *h)
{
	h->at = TG_HANDLER_LOOK;
}

static enum tg_handler_next tg_handler_goes_to(struct tg_handler *h, u32 at)
{
	h->at = at;
	return at == TG_HANDLER_RESUME ? TG_NEXT_RESUME : TG_NEXT_STEP;
}

static enum tg_handler_next tg_handler_look(struct tg_handler *h)
{
	switch (h->stage) {
	case TG_STAGE_RUNNING:
		/* Only the driver has reason to set them. */
		if (tg_word_read(h) & (TG_QUEUE_FULL | TG_QUEUE_HELD))
			return tg_handler_goes_to(h, TG_HANDLER_CLEAR);
		return TG_NEXT_DONE;
	case TG_STAGE_COPIED:
		if (!tg_handler_is(h, TG_HANDLER_FORGETS_COPY))
			return tg_handler_goes_to(h, TG_HANDLER_RESUME);
		break;
	default:
		break;
	}
	if (tg_handler_is(h, TG_HANDLER_TWO_WORDS))
		return tg_handler_goes_to(h, tg_word_read(h) & TG_QUEUE_BUSY ? TG_HANDLER_FLAG :
					  TG_HANDLER_COPY);
	if (tg_word_set(h, TG_QUEUE_FULL) & TG_QUEUE_BUSY && !tg_handler_is(h, TG_HANDLER_BLIND))
		return TG_NEXT_BUSY;
	return tg_handler_goes_to(h, TG_HANDLER_COPY);
}

/* No consumer is inside, and FULL is set: makes room. */
static enum tg_handler_next tg_handler_copy(struct tg_handler *h)
{
	switch (tg_buffers_overflow(h->buffers)) {
	case 0:
		h->stage = TG_STAGE_COPIED;
		return tg_handler_goes_to(h, TG_HANDLER_RESUME);
	case -ENOSPC:
		h->stage = TG_STAGE_HELD;
		/* In this order: there is no moment in which neither is set. */
		return tg_handler_goes_to(h, tg_handler_is(h, TG_HANDLER_HELD_LATE) ?
					  TG_HANDLER_UNFULL : TG_HANDLER_HOLD);
	default:
		return TG_NEXT_BROKEN;
	}
}

/**
 * tg_handler_step() - performs the next step
 * @h: Handler after tg_handler_begin(), whose last step was not the last one.
 *
 * Return: The result of the step.
 */
enum tg_handler_next tg_handler_step(struct tg_handler *h)
{
	bool held_late = tg_handler_is(h, TG_HANDLER_HELD_LATE);

	switch (h->at) {
	case TG_HANDLER_LOOK:
		return tg_handler_look(h);
	case TG_HANDLER_FLAG:
		tg_word_set(h, TG_QUEUE_FULL);
		return TG_NEXT_BUSY;
	case TG_HANDLER_COPY:
		return tg_handler_copy(h);
	case TG_HANDLER_HOLD:
		tg_word_set(h, TG_QUEUE_HELD);
		return held_late ? TG_NEXT_DONE : tg_handler_goes_to(h, TG_HANDLER_UNFULL);
	case TG_HANDLER_UNFULL:
		tg_word_clear(h, TG_QUEUE_FULL);
		return held_late ? tg_handler_goes_to(h, TG_HANDLER_HOLD) : TG_NEXT_DONE;
	case TG_HANDLER_RESUME:
		return TG_NEXT_RESUME;
	default:
		/* The pending element is in the buffer before consumers may enter. */
		tg_word_clear(h, TG_QUEUE_FULL | TG_QUEUE_HELD);
		return TG_NEXT_DONE;
	}
}

/**
 * tg_handler_resumed() - the board has resumed the queue
 * @h: Handler whose last step returned TG_NEXT_RESUME.
 */
void tg_handler_resumed(struct tg_handler *h)
{
	h->stage = TG_STAGE_RUNNING;
	h->at = TG_HANDLER_CLEAR;
}

/**
 * tg_handler_clear_busy() - clears a BUSY that an owner has left
 * @h: Handler.
 * @owner: Owner number of a process that does not have the queue mapped any more.
 */
void tg_handler_clear_busy(struct tg_handler *h, u32 owner)
{
	u64 state = tg_word_read(h);
	int i;

	for (i = 0; i < TG_HANDLER_ATTEMPTS; i++) {
		if (!(state & TG_QUEUE_BUSY) || state >> TG_QUEUE_OWNER_SHIFT != owner)
			return;
		if (tg_word_swap(h, &state, (u32)state & ~(u32)TG_QUEUE_BUSY))
			return;
	}
}

/**
 * tg_handler_evict() - clears BUSY of any owner
 * @h: Handler of a queue that no process has mapped any more.
 */
void tg_handler_evict(struct tg_handler *h)
{
	tg_word_clear(h, TG_QUEUE_BUSY | ~0ULL << TG_QUEUE_OWNER_SHIFT);
}
