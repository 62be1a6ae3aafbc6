// SPDX-License-Identifier: GPL-2.0
/* Guest memory the board may write: status pages and exported segments. */
#include <linux/capability.h>
#include <linux/dma-mapping.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>

#include "driver.h"

/*
 * Charges memory to a user's RLIMIT_MEMLOCK: 0 or -ENOMEM. Not to a process's: the memory
 * exists as long as the open file, which can be passed to any process, and the calling
 * process may exit long before.
 */
static int tg_memory_charge(struct tg_memory *memory, struct user_struct *owner,
			    unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	long before = atomic_long_read(&owner->locked_vm);

	if (capable(CAP_IPC_LOCK))
		return 0;
	do {
		if (before + pages > limit)
			return -ENOMEM;
	} while (!atomic_long_try_cmpxchg(&owner->locked_vm, &before, before + pages));
	memory->owner = get_uid(owner);
	memory->charged = pages;
	return 0;
}

/* @tg: Board that has or had it; NULL if none was given it. */
static void tg_memory_destroy(struct tg_device *tg, struct tg_memory *memory)
{
	u32 i;

	if (memory->direct)
		tg_direct_free(memory);
	if (memory->pins)
		tg_pins_free(tg, memory->pins);
	for (i = 0; !memory->direct && i < memory->count; i++)
		dma_free_pages(&tg->pdev->dev, memory->chunk_size,
			       memory->chunk[i].page, memory->chunk[i].dma,
			       DMA_BIDIRECTIONAL);
	if (memory->owner) {
		atomic_long_sub(memory->charged, &memory->owner->locked_vm);
		free_uid(memory->owner);
	}
	kvfree(memory);
}

/* Memory without chunks, with room for @count; charged with @pages. */
static struct tg_memory *tg_memory_begin(size_t chunk_size, u32 count, unsigned long pages,
					 struct user_struct *owner)
{
	struct tg_memory *memory;
	int err;

	memory = kvzalloc(struct_size(memory, chunk, count), GFP_KERNEL_ACCOUNT);
	if (!memory)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&memory->node);
	memory->chunk_size = chunk_size;
	if (owner) {
		err = tg_memory_charge(memory, owner, pages);
		if (err) {
			kvfree(memory);
			return ERR_PTR(err);
		}
	}
	return memory;
}

/*
 * From here on the memory is the board's: tg_memory_free() releases it while the board is there,
 * and tg_memory_free_all() when that is removed. What is not in the list by then is its maker's.
 */
static void tg_memory_list(struct tg_device *tg, struct tg_memory *memory)
{
	/* remove() takes op_lock for writing before it frees what is in the list. */
	lockdep_assert_held(&tg->op_lock);
	WARN_ON_ONCE(tg->stopped);
	mutex_lock(&tg->lock);
	list_add(&memory->node, &tg->memories);
	mutex_unlock(&tg->lock);
}

/**
 * tg_memory_new() - allocates zeroed memory for the board and a process
 * @tg: Board, not gone when the caller took op_lock for reading, which it holds.
 * @chunk_size: Bytes of each chunk, whole pages.
 * @count: Number of chunks.
 * @owner: User that it is charged to, up to the caller's RLIMIT_MEMLOCK; or NULL.
 *
 * Return: The memory, or an error pointer.
 */
struct tg_memory *tg_memory_new(struct tg_device *tg, size_t chunk_size,
				u32 count, struct user_struct *owner)
{
	const gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN |
			  __GFP_RETRY_MAYFAIL;
	struct tg_memory *memory;
	int err;

	memory = tg_memory_begin(chunk_size, count,
				 (unsigned long)count * (chunk_size >> PAGE_SHIFT), owner);
	if (IS_ERR(memory))
		return memory;
	while (memory->count < count) {
		struct tg_chunk *chunk = &memory->chunk[memory->count];

		err = -EINTR;
		if (fatal_signal_pending(current))
			goto err_destroy;
		err = -ENOMEM;
		chunk->page = dma_alloc_pages(&tg->pdev->dev, chunk_size, &chunk->dma,
					      DMA_BIDIRECTIONAL, gfp);
		if (!chunk->page)
			goto err_destroy;
		memory->count++;
		cond_resched();
	}

	tg_memory_list(tg, memory);
	return memory;

err_destroy:
	tg_memory_destroy(tg, memory);
	return ERR_PTR(err);
}

/**
 * tg_memory_new_direct() - takes zeroed memory from this node's slice of a trust group's
 * @tg: As for tg_memory_new().
 * @group: Name of the group, NUL-padded.
 * @count: Number of chunks, of a unit each.
 * @owner: As for tg_memory_new().
 *
 * Return: The memory, or an error pointer: -EXDEV if this node is not in the group.
 */
struct tg_memory *tg_memory_new_direct(struct tg_device *tg, const u8 group[64], u32 count,
				       struct user_struct *owner)
{
	struct tg_memory *memory = tg_memory_begin(TG_UNIT, count,
						   count * (TG_UNIT >> PAGE_SHIFT), owner);
	int err;

	if (IS_ERR(memory))
		return memory;
	err = tg_direct_allocate(tg, group, memory, count);
	if (err) {
		tg_memory_destroy(tg, memory);
		return ERR_PTR(err);
	}
	tg_memory_list(tg, memory);
	return memory;
}

/**
 * tg_memory_new_pinned() - memory of a process, which is or will be pinned
 * @pins: Its pages, which become part of the memory.
 * @pages: How many they are, or will be.
 * @owner: As for tg_memory_new().
 *
 * It is charged, and it is the caller's: no board can reach it before tg_memory_give().
 *
 * Return: The memory, or an error pointer.
 */
struct tg_memory *tg_memory_new_pinned(struct tg_pins *pins, unsigned long pages,
				       struct user_struct *owner)
{
	struct tg_memory *memory = tg_memory_begin(PAGE_SIZE, 0, pages, owner);

	if (!IS_ERR(memory))
		memory->pins = pins;
	return memory;
}

/**
 * tg_memory_give() - gives memory that is pinned to a board
 * @tg: As for tg_memory_new().
 * @memory: Memory of tg_memory_new_pinned(), which the board may reach from now on.
 */
void tg_memory_give(struct tg_device *tg, struct tg_memory *memory)
{
	tg_memory_list(tg, memory);
}

/**
 * tg_memory_discard() - mirror of tg_memory_new_pinned()
 * @memory: Memory that no board was given.
 */
void tg_memory_discard(struct tg_memory *memory)
{
	tg_memory_destroy(NULL, memory);
}

/**
 * tg_memory_free() - frees memory that the board cannot reach any more
 * @tg: Board, not gone when the caller took op_lock for reading, which it holds.
 * @memory: The memory, mapped nowhere.
 */
void tg_memory_free(struct tg_device *tg, struct tg_memory *memory)
{
	lockdep_assert_held(&tg->op_lock);
	mutex_lock(&tg->lock);
	list_del(&memory->node);
	mutex_unlock(&tg->lock);
	tg_memory_destroy(tg, memory);
}

/**
 * tg_memory_free_all() - frees the remaining memory when the board is removed
 * @tg: Board, stopped: it cannot write memory, and nothing is added to the list any more.
 *
 * What objects say of their memory is of no use after this: they do not look at a board that is
 * gone.
 */
void tg_memory_free_all(struct tg_device *tg)
{
	struct tg_memory *memory, *next;
	LIST_HEAD(memories);

	/* No registration counts itself in a status page any more: each looks for the board. */
	spin_lock_irq(&tg->wake_lock);
	spin_unlock_irq(&tg->wake_lock);
	mutex_lock(&tg->lock);
	list_splice_init(&tg->memories, &memories);
	mutex_unlock(&tg->lock);
	list_for_each_entry_safe(memory, next, &memories, node) {
		list_del(&memory->node);
		tg_memory_destroy(tg, memory);
	}
}

/**
 * tg_memory_pfn() - the page frame of a page
 * @memory: The memory.
 * @page: Page number in it; the caller has checked it.
 *
 * Return: Page frame number.
 */
unsigned long tg_memory_pfn(const struct tg_memory *memory, unsigned long page)
{
	unsigned long per_chunk = memory->chunk_size >> PAGE_SHIFT;

	if (memory->direct)
		return tg_direct_pfn(memory, page);
	return page_to_pfn(memory->chunk[page / per_chunk].page) + page % per_chunk;
}
