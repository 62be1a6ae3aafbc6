// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Copy and link: the handling of a notification queue's buffers when the first is full
 * (SPEC item 9), and the dequeue of item 10.
 *
 * The first buffer, number 0, is the board's: it alone writes word 0 and the
 * data there. The others are linked behind it, and processes follow their next
 * words. They may write anything there: nothing read from a buffer is trusted
 * here. The list in struct tg_buffers is; a next word is never read. A
 * header is checked against the size that was granted wherever it is used (I11),
 * so no index leads out of its buffer.
 *
 * The caller ensures that no consumer is in the dequeue section (E11) and, for an
 * overflow, that the board has stopped the queue.
 */
#include "queue_buffers.h"
#include "telegraphos.h"

#ifdef __KERNEL__
#include <asm/barrier.h>
#include <linux/errno.h>
#include <linux/string.h>
#else
#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* As the kernel's. */
#define smp_load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
/* As the kernel's. */
#define smp_store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#endif

/* The header words' half that holds the size. */
#define TG_SIZE_SHIFT 16
#define TG_INDEX_MASK 0xffff

static bool tg_buffers_reads(const struct tg_buffers *b, u32 reading)
{
#ifdef __KERNEL__
	return reading == TG_BUFFERS_SOUND;
#else
	return reading == b->variant;
#endif
}

static void *tg_buffers_at(const struct tg_buffers *b, u32 n, u32 index)
{
	return (char *)b->base[n] + (size_t)index * b->width;
}

static u64 tg_buffers_load(const struct tg_buffers *b, u32 n, u32 index)
{
	void *at = tg_buffers_at(b, n, index);

	/* What the board, or a process, stored before this word is seen, too. */
	return b->width == 8 ? smp_load_acquire((u64 *)at) : smp_load_acquire((u32 *)at);
}

static void tg_buffers_store(const struct tg_buffers *b, u32 n, u32 index, u64 value)
{
	void *at = tg_buffers_at(b, n, index);

	if (b->width == 8)
		/* Orders earlier reads and copies before this store. */
		smp_store_release((u64 *)at, value);
	else
		/* As above. */
		smp_store_release((u32 *)at, (u32)value);
}

/* The index in a header word, or 0, which no sound header has. */
static u32 tg_buffers_index(const struct tg_buffers *b, u32 n, u32 word)
{
	u64 header = tg_buffers_load(b, n, word);
	u32 index = header & TG_INDEX_MASK;

	if (header >> TG_SIZE_SHIFT != b->words || index < TG_QUEUE_FIRST_WORD ||
	    index >= b->words)
		return 0;
	/* No index leads out of its buffer by speculation, either: words is a power of two. */
	return index & (b->words - 1);
}

static void tg_buffers_set_index(const struct tg_buffers *b, u32 n, u32 word, u32 index)
{
	tg_buffers_store(b, n, word, (u64)b->words << TG_SIZE_SHIFT | index);
}

/* The index after one: from size - 1 to the first (E5, E7). */
static u32 tg_buffers_advanced(const struct tg_buffers *b, u32 index)
{
	return (index + 1) & b->words ? TG_QUEUE_FIRST_WORD : index + 1;
}

/* Writes all next words anew: from the first to the newest, to the oldest (E3, E9). */
static void tg_buffers_chain(const struct tg_buffers *b)
{
	u64 next = 0;
	u32 i;

	for (i = 0; i < b->linked; i++) {
		tg_buffers_store(b, b->order[i], TG_QUEUE_NEXT_WORD, next);
		next = (u64)b->order[i] * b->words;
	}
	tg_buffers_store(b, 0, TG_QUEUE_NEXT_WORD, next);
}

/* Takes the oldest buffers off the list. */
static void tg_buffers_unlink(struct tg_buffers *b, u32 oldest)
{
	b->linked -= oldest;
	memmove(b->order, b->order + oldest, b->linked * sizeof(*b->order));
}

/* Takes off the list what has been emptied. */
static int tg_buffers_reclaim(struct tg_buffers *b)
{
	u32 empty;

	for (empty = 0; empty < b->linked; empty++) {
		u32 tail = tg_buffers_index(b, b->order[empty], TG_QUEUE_TAIL_WORD);
		u32 head = tg_buffers_index(b, b->order[empty], TG_QUEUE_HEAD_WORD);

		if (!tail || !head)
			return -EINVAL;
		if (tail != head)
			break;
	}
	tg_buffers_unlink(b, empty);
	return 0;
}

/* The lowest number that is not linked; there is one. */
static u32 tg_buffers_free(const struct tg_buffers *b)
{
	u64 used[TG_QUEUE_QUOTA_MAX / 64 + 1] = { 1 };
	u32 n = 0, i;

	for (i = 0; i < b->linked; i++)
		used[b->order[i] / 64] |= 1ULL << b->order[i] % 64;
	while (used[n / 64] >> n % 64 & 1)
		n++;
	return n;
}

/* Puts a buffer on the list, as the newest. */
static void tg_buffers_link(struct tg_buffers *b, u32 n)
{
	if (tg_buffers_reads(b, TG_BUFFERS_APPEND_AT_END)) {
		memmove(b->order + 1, b->order, b->linked * sizeof(*b->order));
		b->order[0] = n;
	} else {
		b->order[b->linked] = n;
	}
	b->linked++;
}

/**
 * tg_buffers_init() - makes every buffer empty, and links none
 * @b: Buffers; all but its linked and its order's contents is set.
 */
void tg_buffers_init(struct tg_buffers *b)
{
	u32 n;

	b->linked = 0;
	for (n = 0; n < b->count; n++) {
		tg_buffers_set_index(b, n, TG_QUEUE_TAIL_WORD, TG_QUEUE_FIRST_WORD);
		tg_buffers_set_index(b, n, TG_QUEUE_HEAD_WORD, TG_QUEUE_FIRST_WORD);
		tg_buffers_store(b, n, TG_QUEUE_NEXT_WORD, 0);
	}
}

/**
 * tg_buffers_overflow() - makes room in the first buffer
 * @b: Buffers of a queue that the board has stopped.
 *
 * Emptied buffers are free again. The first is copied to a free one as it is: its
 * committed words are those from head to tail, and the board still holds the
 * element that it put at tail (E1, E2). The copy is linked directly behind the
 * first (E3). The first's head is 3 then; its tail is the board's to write, which
 * puts the element at 3 and makes it 4. Until then the first buffer must not be
 * dequeued from.
 *
 * Return: 0; -ENOSPC if no buffer is free; -EINVAL if a header is not sound, or
 * there are more buffers than a queue can have.
 */
int tg_buffers_overflow(struct tg_buffers *b)
{
	u32 tail, head, to;
	int err;

	if (b->count - 1 > TG_QUEUE_QUOTA_MAX)
		return -EINVAL;
	tail = tg_buffers_index(b, 0, TG_QUEUE_TAIL_WORD);
	head = tg_buffers_index(b, 0, TG_QUEUE_HEAD_WORD);
	if (!tail || !head)
		return -EINVAL;
	err = tg_buffers_reclaim(b);
	if (err)
		return err;
	if (b->linked == b->count - 1) {
		tg_buffers_chain(b);
		return -ENOSPC;
	}

	to = tg_buffers_free(b);
	memcpy(tg_buffers_at(b, to, TG_QUEUE_FIRST_WORD), tg_buffers_at(b, 0, TG_QUEUE_FIRST_WORD),
	       (size_t)(b->words - TG_QUEUE_FIRST_WORD) * b->width);
	if (tg_buffers_reads(b, TG_BUFFERS_LITERAL_COPY))
		tail = tg_buffers_advanced(b, tail);
	tg_buffers_set_index(b, to, TG_QUEUE_TAIL_WORD, tail);
	tg_buffers_set_index(b, to, TG_QUEUE_HEAD_WORD, head);
	tg_buffers_link(b, to);
	tg_buffers_chain(b);
	tg_buffers_set_index(b, 0, TG_QUEUE_HEAD_WORD, TG_QUEUE_FIRST_WORD);
	return 0;
}

static u32 tg_buffers_oldest(const struct tg_buffers *b)
{
	return b->linked ? b->order[0] : 0;
}

/**
 * tg_buffers_peek() - the oldest element, which stays
 * @b: Buffers; those found empty are free afterwards (E4).
 * @value: Filled if there is one.
 *
 * Return: 1; 0 if there is none; -EINVAL if a header is not sound.
 */
int tg_buffers_peek(struct tg_buffers *b, u64 *value)
{
	for (;;) {
		u32 n = tg_buffers_oldest(b);
		u32 tail = tg_buffers_index(b, n, TG_QUEUE_TAIL_WORD);
		u32 head = tg_buffers_index(b, n, TG_QUEUE_HEAD_WORD);

		if (!tail || !head)
			return -EINVAL;
		if (tail != head) {
			*value = tg_buffers_load(b, n, head);
			return 1;
		}
		if (!b->linked)
			return 0;
		tg_buffers_unlink(b, 1);
		tg_buffers_store(b, tg_buffers_oldest(b), TG_QUEUE_NEXT_WORD, 0);
	}
}

/**
 * tg_buffers_take() - takes the element that tg_buffers_peek() found
 * @b: Buffers.
 *
 * Return: 0; -EINVAL if the header is not sound any more, or there is none.
 */
int tg_buffers_take(struct tg_buffers *b)
{
	u32 n = tg_buffers_oldest(b);
	u32 tail = tg_buffers_index(b, n, TG_QUEUE_TAIL_WORD);
	u32 head = tg_buffers_index(b, n, TG_QUEUE_HEAD_WORD);

	if (!tail || !head || tail == head)
		return -EINVAL;
	tg_buffers_set_index(b, n, TG_QUEUE_HEAD_WORD, tg_buffers_advanced(b, head));
	return 0;
}

/**
 * tg_buffers_pop() - dequeues by the list of the caller, not by the next words
 * @b: Buffers; those found empty are free afterwards.
 * @value: The element.
 *
 * Return: 1; 0 if there is none; -EINVAL if a header is not sound.
 */
int tg_buffers_pop(struct tg_buffers *b, u64 *value)
{
	int found = tg_buffers_peek(b, value);

	if (found > 0 && tg_buffers_take(b))
		return -EINVAL;
	return found;
}
