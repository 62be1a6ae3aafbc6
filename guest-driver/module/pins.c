// SPDX-License-Identifier: GPL-2.0
/* Pages of processes that are pinned for the board, see register.c. */
#include <linux/dma-mapping.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "driver.h"

/* Pages that are pinned by one call. */
#define TG_PIN_BATCH 2048UL

static void tg_pins_release(struct kref *ref)
{
	kvfree(container_of(ref, struct tg_pins, ref));
}

/**
 * tg_pins_put() - drops a reference
 * @pins: Pages, none of which is pinned any more if it is the last.
 */
void tg_pins_put(struct tg_pins *pins)
{
	kref_put(&pins->ref, tg_pins_release);
}

/**
 * tg_pins_unpin() - unpins pages, and leaves room for them to be pinned once more
 * @pins: The pages, which no board can reach.
 */
void tg_pins_unpin(struct tg_pins *pins)
{
	unsigned long done, batch;

	for (done = 0; done < pins->count; done += batch) {
		batch = min(pins->count - done, TG_PIN_BATCH);
		unpin_user_pages_dirty_lock(pins->pages + done, batch, true);
		cond_resched();
	}
	pins->count = 0;
}

/**
 * tg_pins_free() - unpins pages that the board cannot reach any more
 * @tg: Board, whose PCI device has a driver yet. NULL if the pages were never mapped for one.
 * @pins: The pages.
 */
void tg_pins_free(struct tg_device *tg, struct tg_pins *pins)
{
	if (pins->mapped)
		dma_unmap_sgtable(&tg->pdev->dev, &pins->table, DMA_BIDIRECTIONAL, 0);
	sg_free_table(&pins->table);
	tg_pins_unpin(pins);
	tg_pins_put(pins);
}

/**
 * tg_pins_new() - makes room for the pages of a range, none of which is pinned
 * @count: How many they are.
 *
 * Return: The room, with a reference, or NULL.
 */
struct tg_pins *tg_pins_new(unsigned long count)
{
	struct tg_pins *pins = kvzalloc(struct_size(pins, pages, count), GFP_KERNEL_ACCOUNT);

	if (pins)
		kref_init(&pins->ref);
	return pins;
}

/**
 * tg_pins_pin() - pins the pages of a range for a board
 * @tg: Board.
 * @pins: Room for them. None is pinned.
 * @start: Address of the first of them in the calling process.
 * @count: How many they are.
 * @fault: On failure the address of the first that could not be pinned.
 *
 * Return: 0; -ENODEV if the board is gone; or another negative errno. None is pinned then.
 */
int tg_pins_pin(const struct tg_device *tg, struct tg_pins *pins, unsigned long start,
		unsigned long count, u64 *fault)
{
	long got;

	while (pins->count < count) {
		unsigned long left = count - pins->count;

		if (tg_gone(tg)) {
			tg_pins_unpin(pins);
			return -ENODEV;
		}
		got = fatal_signal_pending(current) ? -EINTR :
		      pin_user_pages_fast(start + (pins->count << PAGE_SHIFT),
					  min(left, TG_PIN_BATCH), FOLL_WRITE | FOLL_LONGTERM,
					  pins->pages + pins->count);
		if (got <= 0) {
			*fault = start + (pins->count << PAGE_SHIFT);
			tg_pins_unpin(pins);
			return got ? got : -EFAULT;
		}
		pins->count += got;
		cond_resched();
	}
	return 0;
}
