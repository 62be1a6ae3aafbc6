// SPDX-License-Identifier: GPL-2.0
/*
 * User mappings: page tables are the protection. All of them fill by page fault, so a page
 * that is removed (zapped) stays removed: the next access faults, and waits or gets SIGBUS.
 *
 * On processors whose page tables have no write-only pages (x86), an import with
 * just TG_RIGHT_WRITE can be mapped with PROT_WRITE alone; loads then reach the
 * board, which refuses them.
 *
 * An import has two windows, of the same size and behind the same slots. In the
 * plain one a store writes, in the argument one it only passes its address to a
 * context. Each has mmap offsets of its own (kind and handle), which a mapping
 * never leaves, so neither is reached through the other.
 *
 * The import of a queue has one, the enqueue window, where a store appends an element. It
 * has neither of the other two: senders cannot reach head and tail of the queue (SPEC E14).
 *
 * A replicated segment's copy can only be read (SPEC E22b). Stores go through the
 * plain window of its own import, which is mapped under a kind of its own. An access
 * to a page of the copy that is not valid waits until it is, see replica_pages.c.
 *
 * The plain window of an import of a direct segment is the owner's memory itself, as long as
 * it need not be trapped, see direct.c. Direct memory is mapped by huge pages where it has
 * them. That is done by the ordinary fault handler, because the kernel calls that for huge
 * pages only as its setting for transparent ones allows it, and small guests have them off.
 * All state that decides between huge and small is under map_lock, so no two faults differ.
 *
 * Where an import is soft, its windows do not end with it: the next access maps a page of the
 * file, for all of them. What is stored there reaches no other file. An access that waits for
 * room for long ends it. A soft file's context page and exports do not end with the board
 * either, and its status page reads as zeros then.
 *
 * A context page is zapped while launches or stores of its processes wait at the board, as
 * the windows of an import are. The page of each file has an offset of its own for that,
 * though all are mapped by the same.
 */
#include <linux/file.h>
#include <linux/nospec.h>
#include <linux/sched/signal.h>

#include "compat.h"
#include "driver.h"
#include "trace.h"

#define TG_PGOFF_KIND_SHIFT (TG_MMAP_KIND_SHIFT - PAGE_SHIFT)
#define TG_PGOFF_HANDLE_SHIFT (TG_MMAP_HANDLE_SHIFT - PAGE_SHIFT)
#define TG_PGOFF_HANDLE_MASK (BIT(TG_MMAP_KIND_SHIFT - TG_MMAP_HANDLE_SHIFT) - 1)
#define TG_PGOFF_MASK (BIT(TG_PGOFF_HANDLE_SHIFT) - 1)

/**
 * struct tg_pause - the condition that a page fault waits for
 * @file: File of a congested context, else NULL.
 * @obj: The object that is accessed; NULL for a context.
 * @wait: The wait queue; NULL if there is nothing to wait for.
 * @tries: For a page that is not valid, the number of its fills; NULL for a congested import.
 * @before: Value of @tries at the fault.
 */
struct tg_pause {
	struct tg_file *file;
	struct tg_object *obj;
	wait_queue_head_t *wait;
	const u32 *tries;
	u32 before;
};

static bool tg_pause_is_over(const struct tg_pause *pause)
{
	if (pause->file)
		return !READ_ONCE(pause->file->congested) || tg_gone(pause->file->tg);
	if (READ_ONCE(pause->obj->dead) || tg_gone(pause->obj->tg))
		return true;
	if (pause->tries)
		return READ_ONCE(*pause->tries) != pause->before;
	return !(READ_ONCE(tg_remote_of(pause->obj)->state) & TG_STATE_CONGESTED) &&
	       !READ_ONCE(tg_remote_of(pause->obj)->settles);
}

/* Time for which a fault that cannot be retried keeps the memory map locked. */
#define TG_PAUSE_LOCKED (HZ / 10)

/* Time for which an access by a soft import waits for room; then the import is dead. */
#define TG_PAUSE_SOFT (5 * HZ)

/*
 * Waits with the memory map unlocked, so that the process's other threads, and readers of
 * its map, are not delayed. Signals end the wait where the instruction can be restarted.
 */
static vm_fault_t tg_fault_wait(struct vm_fault *vmf, const struct tg_pause *pause)
{
	/* A fill of a page ends by itself. */
	struct tg_remote *soft = pause->obj && !pause->tries && tg_remote_of(pause->obj)->soft ?
				 tg_remote_of(pause->obj) : NULL;
	long left = soft ? TG_PAUSE_SOFT : MAX_SCHEDULE_TIMEOUT;
	unsigned int flags = vmf->flags;
	struct file *filp;

	if (!(flags & FAULT_FLAG_ALLOW_RETRY)) {
		/*
		 * A kernel access that cannot be retried keeps the map locked. The task
		 * that ends the wait may need the map, so the fault repeats periodically.
		 */
		if (wait_event_killable_timeout(*pause->wait, tg_pause_is_over(pause),
						TG_PAUSE_LOCKED) < 0)
			return VM_FAULT_SIGBUS;
		return VM_FAULT_NOPAGE;
	}
	if (flags & FAULT_FLAG_RETRY_NOWAIT)
		return VM_FAULT_RETRY;

	/* The mapping may go; the file also holds its context's state, and this module. */
	filp = get_file(vmf->vma->vm_file);
	if (pause->obj)
		kref_get(&pause->obj->ref);
	release_fault_lock(vmf);
	if (flags & FAULT_FLAG_USER && flags & FAULT_FLAG_INTERRUPTIBLE)
		left = wait_event_interruptible_timeout(*pause->wait, tg_pause_is_over(pause), left);
	else
		left = wait_event_killable_timeout(*pause->wait, tg_pause_is_over(pause), left);
	if (soft && !left)
		tg_remote_time_out(soft);
	if (pause->obj)
		tg_object_put(pause->obj);
	fput(filp);
	return VM_FAULT_RETRY;
}

/* Maps a page of a copy, and the others of its unit, which are valid with it. */
static vm_fault_t tg_fault_unit(struct vm_fault *vmf, struct tg_object *obj,
				unsigned long page)
{
	const struct tg_memory *memory = tg_segment_of(obj)->memory;
	struct vm_area_struct *vma = vmf->vma;
	unsigned long first, end, i;
	vm_fault_t ret;

	ret = vmf_insert_pfn(vma, vmf->address, tg_memory_pfn(memory, page));
	if (ret != VM_FAULT_NOPAGE)
		return ret;
	first = max(round_down(page, TG_UNIT >> PAGE_SHIFT),
		    page - ((vmf->address - vma->vm_start) >> PAGE_SHIFT));
	end = min3(round_up(page + 1, TG_UNIT >> PAGE_SHIFT), tg_pages(obj->size),
		   page + ((vma->vm_end - vmf->address) >> PAGE_SHIFT));
	for (i = first; i < end; i++)
		if (i != page && vmf_insert_pfn(vma, vmf->address + (i - page) * PAGE_SIZE,
						tg_memory_pfn(memory, i)) != VM_FAULT_NOPAGE)
			break;
	return ret;
}

static u64 tg_aperture(unsigned long kind)
{
	switch (kind) {
	case TG_MMAP_ARGUMENT:
		return TG_APERTURE_ARGUMENT;
	case TG_MMAP_ENQUEUE:
		return TG_APERTURE_ENQUEUE;
	default:
		return TG_APERTURE_PLAIN;
	}
}

static unsigned long tg_window_pfn(const struct tg_remote *remote, u64 aperture,
				   unsigned long page)
{
	const struct tg_device *tg = remote->obj.tg;

	return ((tg->window_base + (aperture << (tg->node_bits + tg->offset_bits)) +
		 ((u64)remote->node << tg->offset_bits) +
		 ((u64)remote->slot << TG_UNIT_SHIFT)) >> PAGE_SHIFT) + page;
}

/*
 * Maps the huge page that contains a page of direct memory, as a whole. False if it is none, or
 * is not whole in the mapping, or some of it has been mapped by small pages: those of the
 * window, while the import was trapped, leave their page table.
 */
static bool tg_fault_huge(struct vm_fault *vmf, u64 pfn)
{
	unsigned long start = vmf->address & PMD_MASK;
	struct vm_area_struct *vma = vmf->vma;

	/* Direct memory is contiguous. */
	pfn -= (vmf->address - start) >> PAGE_SHIFT;
	return TG_HUGE_BYTES && pmd_none(*vmf->pmd) && start >= vma->vm_start &&
	       vma->vm_end - start >= PMD_SIZE && IS_ALIGNED(pfn, PMD_SIZE >> PAGE_SHIFT) &&
	       tg_insert_pfn_pmd(vmf, pfn) == VM_FAULT_NOPAGE;
}

/* What is accessed is gone. Mappings of a soft import, or file, lead nowhere from then on. */
static vm_fault_t tg_fault_gone(struct vm_fault *vmf, const struct tg_file *file,
				struct tg_object *obj, unsigned long kind)
{
	struct page *page = file->nowhere;
	bool soft;

	switch (kind) {
	case TG_MMAP_IMPORT:
	case TG_MMAP_ARGUMENT:
	case TG_MMAP_ENQUEUE:
		soft = tg_remote_of(obj)->soft;
		break;
	case TG_MMAP_STATUS:
		/* What is stored to the other page is no answer. */
		page = ZERO_PAGE(vmf->address);
		fallthrough;
	case TG_MMAP_CONTEXT:
	case TG_MMAP_EXPORT:
		soft = READ_ONCE(file->soft);
		break;
	default:
		soft = false;
	}
	if (!soft)
		return VM_FAULT_SIGBUS;
	/* Windows are not cached, and this is memory. */
	return vmf_insert_pfn_prot(vmf->vma, vmf->address, page_to_pfn(page),
				   vm_get_page_prot(vmf->vma->vm_flags));
}

static vm_fault_t tg_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct tg_file *file = vma->vm_file->private_data;
	struct tg_object *obj = vma->vm_private_data;
	unsigned long kind = vmf->pgoff >> TG_PGOFF_KIND_SHIFT;
	unsigned long page = vmf->pgoff & TG_PGOFF_MASK;
	struct tg_pause pause = { .obj = obj };
	vm_fault_t ret = VM_FAULT_SIGBUS;
	struct tg_device *tg = file->tg;
	struct tg_direct *direct = NULL;
	const struct tg_memory *memory;
	struct tg_replicated *replica;
	struct tg_remote *remote;
	bool huge;
	u32 unit;
	u64 pfn;

	down_read(&tg->map_lock);
	if (obj && page >= tg_pages(obj->size))
		goto out;
	/* An index of chunks, and of a copy's pages. */
	if (obj)
		page = array_index_nospec(page, tg_pages(obj->size));
	if (tg_gone(tg) || (obj && obj->dead)) {
		ret = tg_fault_gone(vmf, file, obj, kind);
		goto out;
	}

	switch (kind) {
	case TG_MMAP_CONTEXT:
		if (file->congested) {
			pause.file = file;
			pause.wait = &file->calm;
			goto out;
		}
		pfn = (tg->contexts_base + ((u64)file->context << TG_UNIT_SHIFT)) >> PAGE_SHIFT;
		break;
	case TG_MMAP_STATUS:
		pfn = tg_memory_pfn(file->status, page);
		break;
	case TG_MMAP_EXPORT:
		memory = tg_segment_of(obj)->memory;
		pfn = tg_memory_pfn(memory, page);
		/* The memory device has no driver. */
		if (!pfn)
			goto out;
		direct = memory->direct;
		break;
	case TG_MMAP_REPLICA:
		replica = tg_replica_of(obj);
		unit = page / (TG_UNIT >> PAGE_SHIFT);
		if (!tg_replica_page_see(replica, unit, &pause.before)) {
			pause.wait = &replica->wait;
			pause.tries = &replica->pages[unit].tries;
			goto out;
		}
		ret = tg_fault_unit(vmf, obj, page);
		goto out;
	case TG_MMAP_IMPORT:
	case TG_MMAP_ARGUMENT:
	case TG_MMAP_ENQUEUE:
	case TG_MMAP_REPLICA_WINDOW:
		remote = tg_remote_of(obj);
		if (remote->state & TG_STATE_CONGESTED || remote->settles) {
			pause.wait = &remote->wait;
			goto out;
		}
		pfn = kind == TG_MMAP_IMPORT ? tg_direct_window_pfn(remote, page) : 0;
		if (pfn) {
			direct = remote->direct;
			break;
		}
		/* Only direct memory is cached. */
		pfn = tg_window_pfn(remote, tg_aperture(kind), page);
		ret = vmf_insert_pfn_prot(vma, vmf->address, pfn,
					  pgprot_noncached(vma->vm_page_prot));
		goto out;
	default:
		goto out;
	}
	huge = direct && tg_fault_huge(vmf, pfn);
	ret = huge ? VM_FAULT_NOPAGE : vmf_insert_pfn(vma, vmf->address, pfn);
	if (direct && ret == VM_FAULT_NOPAGE)
		tg_direct_faulted(direct, huge);
out:
	trace_tg_fault(tg, vmf, pause.wait ? VM_FAULT_RETRY : ret);
	up_read(&tg->map_lock);
	return pause.wait ? tg_fault_wait(vmf, &pause) : ret;
}

static void tg_vma_open(struct vm_area_struct *vma)
{
	struct tg_object *obj = vma->vm_private_data;

	if (obj)
		kref_get(&obj->ref);
}

static void tg_vma_close(struct vm_area_struct *vma)
{
	struct tg_object *obj = vma->vm_private_data;

	if (obj)
		tg_object_put(obj);
}

static const struct vm_operations_struct tg_vm_ops = {
	.open = tg_vma_open,
	.close = tg_vma_close,
	.fault = tg_fault,
};

/*
 * The flags that an import's rights deny, or need, in a mapping of one of its windows: 0, or
 * -EACCES if the import does not have this window.
 */
static int tg_remote_map(const struct tg_remote *remote, unsigned long kind,
			 vm_flags_t *denied, vm_flags_t *needed)
{
	/* It has no window. */
	if (!remote->count)
		return -EINVAL;
	if ((kind == TG_MMAP_ENQUEUE) != (remote->rights == TG_RIGHT_ENQUEUE))
		return -EACCES;
	if (kind == TG_MMAP_REPLICA_WINDOW && !remote->obj.part)
		return -EACCES;
	switch (kind) {
	case TG_MMAP_ENQUEUE:
		/* The board refuses loads, where page tables cannot. */
		*denied |= VM_READ;
		*needed |= VM_WRITE;
		break;
	case TG_MMAP_ARGUMENT:
		/*
		 * Stores here only name addresses, whatever the rights: the board
		 * checks those at the launch. It refuses loads.
		 */
		*needed |= VM_WRITE;
		break;
	default:
		if (!(remote->rights & TG_RIGHT_READ))
			*denied |= VM_READ;
		if (!(remote->rights & TG_RIGHT_WRITE))
			*denied |= VM_WRITE;
	}
	return 0;
}

/**
 * tg_mmap() - maps a context page, a status page, an export, a queue, a copy of a
 * replicated segment, or a window of an import
 * @filp: Open file.
 * @vma: The mapping that the process requests.
 *
 * Return: 0 or a negative errno.
 */
int tg_mmap(struct file *filp, struct vm_area_struct *vma)
{
	unsigned long kind = vma->vm_pgoff >> TG_PGOFF_KIND_SHIFT;
	u32 handle = vma->vm_pgoff >> TG_PGOFF_HANDLE_SHIFT & TG_PGOFF_HANDLE_MASK;
	unsigned long first = vma->vm_pgoff & TG_PGOFF_MASK;
	struct tg_file *file = filp->private_data;
	vm_flags_t denied = VM_EXEC, needed = 0;
	struct tg_object *obj = NULL;
	unsigned long limit = 1;
	bool io = false;
	int err = 0;

	if (tg_gone(file->tg))
		return -ENODEV;
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;

	switch (kind) {
	case TG_MMAP_CONTEXT:
		io = true;
		break;
	case TG_MMAP_STATUS:
		denied |= VM_WRITE;
		break;
	case TG_MMAP_REPLICA:
		denied |= VM_WRITE;
		fallthrough;
	case TG_MMAP_EXPORT:
	case TG_MMAP_QUEUE:
		obj = tg_object_find(file, kind, handle);
		if (!obj)
			return -EINVAL;
		break;
	case TG_MMAP_IMPORT:
	case TG_MMAP_ARGUMENT:
	case TG_MMAP_ENQUEUE:
	case TG_MMAP_REPLICA_WINDOW:
		obj = tg_object_find(file, TG_MMAP_IMPORT, handle);
		if (!obj)
			return -EINVAL;
		/* The plain window may be direct memory; tg_fault() makes the rest uncached. */
		io = kind != TG_MMAP_IMPORT;
		err = tg_remote_map(tg_remote_of(obj), kind, &denied, &needed);
		break;
	default:
		return -EINVAL;
	}
	if (obj)
		limit = tg_pages(obj->size);
	if ((!obj && handle) || first >= limit || vma_pages(vma) > limit - first)
		err = -EINVAL;
	else if (vma->vm_flags & denied || (vma->vm_flags & needed) != needed)
		err = -EACCES;
	if (err)
		goto err_put;

	/* Nor can mprotect() add what is denied: VM_MAY* is VM_* << 4 there, too. */
	static_assert(VM_READ << 4 == VM_MAYREAD && VM_WRITE << 4 == VM_MAYWRITE &&
		      VM_EXEC << 4 == VM_MAYEXEC);
	vm_flags_clear(vma, denied << 4);
	vm_flags_set(vma, VM_PFNMAP | VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	if (io)
		vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	if (kind == TG_MMAP_QUEUE) {
		err = tg_queue_mmap(tg_queue_of(obj), vma);
		if (err)
			goto err_put;
		return 0;
	}
	if (kind == TG_MMAP_CONTEXT)
		vma->vm_pgoff |= (unsigned long)file->context << TG_PGOFF_HANDLE_SHIFT;
	vma->vm_private_data = obj;
	vma->vm_ops = &tg_vm_ops;
	return 0;

err_put:
	if (obj)
		tg_object_put(obj);
	return err;
}
