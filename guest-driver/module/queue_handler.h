/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The overflow handler of a notification queue, without any call of the kernel but atomics
 * on the word: the same file is part of the driver and of programs that check it.
 */
#ifndef TELEGRAPHOS_QUEUE_HANDLER_H
#define TELEGRAPHOS_QUEUE_HANDLER_H

#include "queue_buffers.h"

/*
 * For tg_handler.variant: right, and deliberately wrong. The driver knows only the first.
 */
#define TG_HANDLER_SOUND 0
/* E11: looks whether somebody is BUSY, and sets FULL then, as if they were two words. */
#define TG_HANDLER_TWO_WORDS 1
/* I12: does not look whether somebody is BUSY. */
#define TG_HANDLER_BLIND 2
/* I12: clears FULL before it sets HELD: whoever leaves in between need not call. */
#define TG_HANDLER_HELD_LATE 3
/* I12: copies again what has been copied, if it is interrupted before the board goes on. */
#define TG_HANDLER_FORGETS_COPY 4

/**
 * enum tg_stage - what the board and the driver are at with a queue
 * @TG_STAGE_RUNNING: It takes elements.
 * @TG_STAGE_STOPPED: It has overflowed.
 * @TG_STAGE_HELD: It has, and there is no free buffer.
 * @TG_STAGE_COPIED: Its first buffer has been copied, and it is to be resumed.
 */
enum tg_stage {
	TG_STAGE_RUNNING,
	TG_STAGE_STOPPED,
	TG_STAGE_HELD,
	TG_STAGE_COPIED,
};

/**
 * enum tg_handler_at - the next step of a handler
 * @TG_HANDLER_LOOK: Sets FULL, and looks whether somebody is BUSY.
 * @TG_HANDLER_FLAG: Sets FULL, since somebody is (TG_HANDLER_TWO_WORDS).
 * @TG_HANDLER_COPY: Copies and links.
 * @TG_HANDLER_HOLD: Sets HELD, since there is no free buffer.
 * @TG_HANDLER_UNFULL: Clears FULL then.
 * @TG_HANDLER_RESUME: Waits for the board to go on.
 * @TG_HANDLER_CLEAR: Clears FULL and HELD.
 */
enum tg_handler_at {
	TG_HANDLER_LOOK,
	TG_HANDLER_FLAG,
	TG_HANDLER_COPY,
	TG_HANDLER_HOLD,
	TG_HANDLER_UNFULL,
	TG_HANDLER_RESUME,
	TG_HANDLER_CLEAR,
};

/**
 * enum tg_handler_next - what a step has come to
 * @TG_NEXT_STEP: There is another.
 * @TG_NEXT_DONE: FULL is clear, and nothing is left to do.
 * @TG_NEXT_BUSY: FULL is set, and left to who is BUSY.
 * @TG_NEXT_RESUME: The board is to go on. When it has, tg_handler_resumed() and another step.
 * @TG_NEXT_BROKEN: A header is not sound: the queue is dead.
 */
enum tg_handler_next {
	TG_NEXT_STEP,
	TG_NEXT_DONE,
	TG_NEXT_BUSY,
	TG_NEXT_RESUME,
	TG_NEXT_BROKEN,
};

/**
 * struct tg_handler - the overflow handler of a queue
 * @state: The word in the control page, which others change at any time.
 * @buffers: The queue's.
 * @stage: enum tg_stage.
 * @at: enum tg_handler_at.
 * @variant: TG_HANDLER_*, in programs only.
 *
 * All but @state is the caller's alone, who sees to it that one at a time is in here.
 */
struct tg_handler {
	u64 *state;
	struct tg_buffers *buffers;
	u32 stage;
	u32 at;
#ifndef __KERNEL__
	u32 variant;
#endif
};

void tg_handler_stopped(struct tg_handler *h);
void tg_handler_begin(struct tg_handler *h);
enum tg_handler_next tg_handler_step(struct tg_handler *h);
void tg_handler_resumed(struct tg_handler *h);
void tg_handler_clear_busy(struct tg_handler *h, u32 owner);
void tg_handler_evict(struct tg_handler *h);

#endif /* TELEGRAPHOS_QUEUE_HANDLER_H */
