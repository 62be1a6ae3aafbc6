/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The buffers of a notification queue, without any call of the kernel: the same
 * file is part of the driver and of programs that check it.
 */
#ifndef TELEGRAPHOS_QUEUE_BUFFERS_H
#define TELEGRAPHOS_QUEUE_BUFFERS_H

#include <linux/types.h>

#ifndef __KERNEL__
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
#endif

/*
 * Readings for tg_buffers.variant: the correct one, and the papers' words. The driver has
 * only the first.
 */
#define TG_BUFFERS_SOUND 0
/*
 * E2, "copy the full buffer": the copy is full, the element at tail included. The
 * board holds that element, and puts it into the empty buffer again: doubled. If
 * no element has been taken since the board stopped, the copy's new tail is its
 * head, which means empty: everything in it is lost.
 */
#define TG_BUFFERS_LITERAL_COPY 1
/* E3, "link the new one": at the end, as the oldest. Its elements pass older ones. */
#define TG_BUFFERS_APPEND_AT_END 2

/**
 * struct tg_buffers - the buffers of a queue
 * @words: Words of a buffer, header included: a power of two from 8 on.
 * @width: Bytes of a word, 4 or 8.
 * @count: Number of buffers, the first included: 1 + quota.
 * @linked: Number of those behind the first.
 * @order: Their numbers, oldest first. Room for @count - 1; the first @linked are valid.
 * @base: Word 0 of each buffer, aligned to a word.
 * @variant: TG_BUFFERS_*, in programs only.
 *
 * The buffers themselves are memory that others write at any time; only the caller writes
 * the other fields.
 */
struct tg_buffers {
	u32 words;
	u32 width;
	u32 count;
	u32 linked;
	u16 *order;
	void **base;
#ifndef __KERNEL__
	u32 variant;
#endif
};

void tg_buffers_init(struct tg_buffers *b);
int tg_buffers_overflow(struct tg_buffers *b);
int tg_buffers_peek(struct tg_buffers *b, u64 *value);
int tg_buffers_take(struct tg_buffers *b);
int tg_buffers_pop(struct tg_buffers *b, u64 *value);

#endif /* TELEGRAPHOS_QUEUE_BUFFERS_H */
