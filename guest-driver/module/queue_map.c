// SPDX-License-Identifier: GPL-2.0
/*
 * Holders: processes that have a queue mapped.
 *
 * A process, identified by its memory map, gets an owner number for a queue when it
 * attaches to the queue, or maps it. It is BUSY under that number. The process keeps the
 * number until its last mapping of the queue goes, for whatever reason: then the driver
 * clears a BUSY that it left.
 *
 * There are at most TG_HOLDERS_MAX of them, since the list is searched while events wait.
 *
 * An eviction revokes all existing mappings (E13). They stay in the processes, and every
 * access to them is SIGBUS; a new mapping works.
 */
#include <linux/nospec.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "driver.h"
#include "trace.h"

/* Processes that may dequeue from one queue. */
#define TG_HOLDERS_MAX 1024

/**
 * enum tg_holder_state - state of a holder
 * @TG_HOLDER_PRESENT: It can use its mappings.
 * @TG_HOLDER_EVICTED: Its mappings have been revoked; every access to them faults.
 * @TG_HOLDER_GONE: Its last mapping has gone; it may have left the queue BUSY.
 */
enum tg_holder_state {
	TG_HOLDER_PRESENT,
	TG_HOLDER_EVICTED,
	TG_HOLDER_GONE,
};

/**
 * struct tg_holder - a process that may dequeue
 * @node: In tg_nqueue.holders.
 * @queue: The queue, as long as there are mappings.
 * @mm: Its memory map, of which only the number of users is read.
 * @owner: Its number in the queue's state.
 * @mappings: Number of its mappings. Under the queue's guard.
 * @state: Its state. Under the queue's guard; TG_HOLDER_EVICTED is set under
 *	map_lock, too.
 *
 * After an eviction a process has another one, with the same number.
 */
struct tg_holder {
	struct list_head node;
	struct tg_nqueue *queue;
	struct mm_struct *mm;
	u32 owner;
	u32 mappings;
	enum tg_holder_state state;
};

static void tg_holder_free(struct tg_holder *holder)
{
	mmdrop(holder->mm);
	kfree(holder);
}

/**
 * tg_holders_free() - frees holders
 * @list: Holders without mappings that no queue has any more, or whose queue has no references.
 */
void tg_holders_free(struct list_head *list)
{
	struct tg_holder *holder, *next;

	list_for_each_entry_safe(holder, next, list, node)
		tg_holder_free(holder);
}

/**
 * tg_holder_gone() - removes a process that does not have a queue mapped any more
 * @queue: Queue.
 * @owner: Its number, which another process may get now.
 *
 * Return: False if no such process is left.
 */
bool tg_holder_gone(struct tg_nqueue *queue, u32 *owner)
{
	struct tg_holder *holder, *gone = NULL;

	spin_lock(&queue->guard);
	list_for_each_entry(holder, &queue->holders, node) {
		if (holder->state == TG_HOLDER_GONE) {
			gone = holder;
			list_del(&gone->node);
			queue->holder_count--;
			break;
		}
	}
	spin_unlock(&queue->guard);
	if (!gone)
		return false;
	*owner = gone->owner;
	tg_holder_free(gone);
	return true;
}

/**
 * tg_holders_evict() - makes every access to the mappings of a queue fault
 * @queue: Queue. The caller holds map_lock for writing, and zaps the pages.
 */
void tg_holders_evict(struct tg_nqueue *queue)
{
	struct tg_holder *holder;

	lockdep_assert_held_write(&queue->seg.obj.tg->map_lock);
	spin_lock(&queue->guard);
	list_for_each_entry(holder, &queue->holders, node)
		if (holder->mappings)
			WRITE_ONCE(holder->state, TG_HOLDER_EVICTED);
	spin_unlock(&queue->guard);
}

static bool tg_owner_is_used(struct tg_nqueue *queue, u32 owner)
{
	struct tg_holder *holder;

	lockdep_assert_held(&queue->guard);
	if (!owner || owner == TG_OWNER_KERNEL)
		return true;
	list_for_each_entry(holder, &queue->holders, node)
		if (holder->owner == owner)
			return true;
	return false;
}

/* The holder that a memory map has, or @fresh if that has none; NULL if there are too many. */
static struct tg_holder *tg_holder_of(struct tg_nqueue *queue, struct tg_holder *fresh)
{
	struct tg_holder *holder;

	lockdep_assert_held(&queue->guard);
	list_for_each_entry(holder, &queue->holders, node) {
		if (holder->mm != fresh->mm)
			continue;
		if (holder->state == TG_HOLDER_PRESENT)
			return holder;
		/* The same process keeps its number. */
		if (holder->state == TG_HOLDER_EVICTED)
			fresh->owner = holder->owner;
	}
	if (queue->holder_count >= TG_HOLDERS_MAX)
		return NULL;
	while (!fresh->owner) {
		if (!tg_owner_is_used(queue, ++queue->last_owner))
			fresh->owner = queue->last_owner;
	}
	list_add_tail(&fresh->node, &queue->holders);
	queue->holder_count++;
	return fresh;
}

/*
 * Makes a process a holder until its last mapping goes, or, without any, until it exits.
 * With @mapping it gets one more mapping, and the holder is returned there. Returns its
 * owner number, or a negative errno.
 */
static s64 tg_holder_add(struct tg_nqueue *queue, struct mm_struct *mm,
			 struct tg_holder **mapping)
{
	struct tg_holder *fresh, *holder, *next;
	LIST_HEAD(stale);
	s64 result;

	fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	if (!fresh)
		return -ENOMEM;
	fresh->queue = queue;
	fresh->mm = mm;
	mmgrab(mm);

	spin_lock(&queue->guard);
	/* Those that ended without ever having mapped it. */
	list_for_each_entry_safe(holder, next, &queue->holders, node)
		if (!holder->mappings && holder->state == TG_HOLDER_PRESENT &&
		    !atomic_read(&holder->mm->mm_users)) {
			list_move(&holder->node, &stale);
			queue->holder_count--;
		}
	holder = tg_holder_of(queue, fresh);
	if (holder != fresh)
		list_add(&fresh->node, &stale);
	if (holder && mapping) {
		holder->mappings++;
		*mapping = holder;
	}
	result = holder ? holder->owner : -ENOSPC;
	spin_unlock(&queue->guard);
	tg_holders_free(&stale);
	return result;
}

/**
 * tg_holder_join() - gives the calling process an owner number
 * @queue: Queue.
 *
 * Return: The number, which is the one it has if it has one; -ENOMEM; -ENOSPC if too many
 * have one.
 */
s64 tg_holder_join(struct tg_nqueue *queue)
{
	return tg_holder_add(queue, current->mm, NULL);
}

static void tg_queue_vma_open(struct vm_area_struct *vma)
{
	struct tg_holder *holder = vma->vm_private_data;
	struct tg_nqueue *queue = holder->queue;

	kref_get(&queue->seg.obj.ref);
	spin_lock(&queue->guard);
	holder->mappings++;
	spin_unlock(&queue->guard);
}

static void tg_queue_vma_close(struct vm_area_struct *vma)
{
	struct tg_holder *holder = vma->vm_private_data;
	struct tg_nqueue *queue = holder->queue;
	bool forget = false;

	spin_lock(&queue->guard);
	if (!--holder->mappings) {
		/*
		 * The eviction has cleared the BUSY of an evicted one. A worker clears that
		 * of another, since op_lock cannot be taken here.
		 */
		forget = holder->state == TG_HOLDER_EVICTED || queue->ended;
		if (forget) {
			list_del(&holder->node);
			queue->holder_count--;
		} else {
			holder->state = TG_HOLDER_GONE;
			queue_work(tg_workers, &queue->work);
		}
	}
	spin_unlock(&queue->guard);
	if (forget)
		tg_holder_free(holder);
	tg_object_put(&queue->seg.obj);
}

static vm_fault_t tg_queue_fault(struct vm_fault *vmf)
{
	struct tg_holder *holder = vmf->vma->vm_private_data;
	struct tg_nqueue *queue = holder->queue;
	struct tg_object *obj = &queue->seg.obj;
	unsigned long page = vmf->pgoff -
			     (tg_mmap_offset(obj->kind, obj->handle) >> PAGE_SHIFT);
	vm_fault_t ret = VM_FAULT_SIGBUS;
	unsigned long pfn;

	down_read(&obj->tg->map_lock);
	if (tg_gone(obj->tg) || obj->dead || READ_ONCE(holder->state) == TG_HOLDER_EVICTED ||
	    page >= obj->size >> PAGE_SHIFT)
		goto out;
	page = array_index_nospec(page, obj->size >> PAGE_SHIFT);
	pfn = page ? tg_memory_pfn(queue->seg.memory, page - 1) :
		     tg_memory_pfn(queue->control_memory, 0);
	ret = vmf_insert_pfn(vmf->vma, vmf->address, pfn);
out:
	trace_tg_fault(obj->tg, vmf, ret);
	up_read(&obj->tg->map_lock);
	return ret;
}

static const struct vm_operations_struct tg_queue_vm_ops = {
	.open = tg_queue_vma_open,
	.close = tg_queue_vma_close,
	.fault = tg_queue_fault,
};

/**
 * tg_queue_mmap() - a process maps a queue
 * @queue: Queue. The caller's reference is the mapping's afterwards.
 * @vma: Mapping; its range and flags have been checked.
 *
 * Return: 0, -ENOMEM or -ENOSPC.
 */
int tg_queue_mmap(struct tg_nqueue *queue, struct vm_area_struct *vma)
{
	struct tg_holder *holder;
	s64 owner;

	owner = tg_holder_add(queue, vma->vm_mm, &holder);
	if (owner < 0)
		return owner;
	vma->vm_private_data = holder;
	vma->vm_ops = &tg_queue_vm_ops;
	return 0;
}
