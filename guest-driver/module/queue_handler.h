/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The overflow handler of a notification queue, without any call of the kernel but atomics
 * on the word: the same file is part of the driver and of programs that check it.
 */
#ifndef TELEGRAPHOS_QUEUE_HANDLER_H
#define TELEGRAPHOS_QUEUE_HANDLER_H

#include "queue_buffers.h"

/*
 * For tg_handler.variant: the correct one, and deliberate bugs. The driver has only the first.
 */
#define TG_HANDLER_SOUND 0
/* E11: tests BUSY, and then sets FULL, as if they were two words. */
#define TG_HANDLER_TWO_WORDS 1
/* I12: does not test BUSY. */
#define TG_HANDLER_BLIND 2
/* I12: clears FULL before it sets HELD: a consumer that leaves in between need not call. */
#define TG_HANDLER_HELD_LATE 3
/* I12: copies a second time if it is interrupted before the board continues. */
#define TG_HANDLER_FORGETS_COPY 4

/**
 * enum tg_stage - stage of a queue's overflow
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
 * @TG_HANDLER_LOOK: Sets FULL, and tests BUSY.
 * @TG_HANDLER_FLAG: Sets FULL, since BUSY is set (TG_HANDLER_TWO_WORDS).
 * @TG_HANDLER_COPY: Copies and links.
 * @TG_HANDLER_HOLD: Sets HELD, since there is no free buffer.
 * @TG_HANDLER_UNFULL: Clears FULL then.
 * @TG_HANDLER_RESUME: Waits for the board to continue.
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
 * enum tg_handler_next - result of a step
 * @TG_NEXT_STEP: There is another.
 * @TG_NEXT_DONE: FULL is clear, and nothing is left to do.
 * @TG_NEXT_BUSY: FULL is set, and stays so until the BUSY consumer leaves.
 * @TG_NEXT_RESUME: Resume the board, then call tg_handler_resumed() and another step.
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
 * All but @state is private to the caller, which serialises the calls.
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
