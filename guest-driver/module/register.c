// SPDX-License-Identifier: GPL-2.0
/*
 * Registrations: memory that a process has, pinned for the board.
 *
 * A registration is a segment whose grant is a range (TG_RANGE_*): the board gets a list of
 * what is adjacent for it, whatever the size of the pages. The number of the range is the
 * handle. With it goes an import of this node without a window, by which the process names
 * the memory in copies; to others it is a segment like any other, if it has a name. One with a
 * gate (TG_REGISTER_GATED) they reach only while the process has opened that, which it does
 * without the driver: the memory stays pinned between two uses, and is reached in neither.
 *
 * The pages are pinned by FOLL_LONGTERM | FOLL_WRITE, so that none of them becomes another's
 * while the board can reach it, whatever the process does. A child of the process gets copies
 * of them at fork(), and the process keeps them. What the pins do not do is to follow the
 * address space: after munmap(), mremap(), madvise(MADV_DONTNEED) or a truncation the range is
 * of pages that the process does not see. An interval notifier says so. It counts that at once
 * in the status page, so that the library asks before it uses a registration again, and a
 * worker takes the range off the board, and unpins the pages when no access to them is in
 * flight.
 *
 * Not every notification means that the memory is gone: the kernel also unmaps pages to
 * migrate or to reclaim them, and finds out later that they are pinned. So the worker compares
 * the pages that the process sees with the pinned ones. After a migration they are in the page
 * tables again; pages of a file stay unmapped until they are accessed, so the worker does that
 * at last. It also ends a race: a page is not in the page tables before it leaves its file, and
 * no notification says when it does, unless it was mapped again. mprotect(), write protection
 * and fork() are no matter.
 */
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/mmu_notifier.h>
#include <linux/overflow.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "compat.h"
#include "driver.h"

/* Pages that are compared by one call. */
#define TG_COMPARE_BATCH 64UL

/* Attempts to pin memory of which some is copied meanwhile, as the first store would. */
#define TG_PIN_ATTEMPTS 8

/* A page that is being migrated is looked at again, every so many milliseconds. */
#define TG_LOOK_AGAIN 5
#define TG_LOOKS 40

/* Bytes of a range, at most. */
#define TG_RANGE_BYTES ((u64)TG_RANGE_UNITS << TG_UNIT_SHIFT)

static const struct tg_object_ops tg_registration_ops;

/*
 * Pins the memory of a registration, as it is at one moment: the first store to a page that is
 * shared copies it, which is a notification, too.
 */
static int tg_registration_pin(struct tg_registration *reg, struct tg_pins *pins,
			       unsigned long start, unsigned long count, u64 *fault)
{
	unsigned int attempt;
	unsigned long seq;
	int err;

	for (attempt = 0; attempt < TG_PIN_ATTEMPTS; attempt++) {
		seq = mmu_interval_read_begin(&reg->notifier);
		err = tg_pins_pin(reg->seg.obj.tg, pins, start, count, fault);
		if (err)
			return err;
		if (!mmu_interval_read_retry(&reg->notifier, seq))
			return 0;
		tg_pins_unpin(pins);
	}
	return -EBUSY;
}

/* The process is to ask, before its next launch, whether its registrations are of its memory. */
static void tg_registration_count(struct tg_registration *reg)
{
	struct tg_file *file = reg->seg.obj.file;
	struct tg_device *tg = file->tg;
	struct tg_status_page *page;
	unsigned long flags;

	/* Without a board the page may be freed; see tg_memory_free_all(). */
	spin_lock_irqsave(&tg->wake_lock, flags);
	if (!tg_gone(tg)) {
		page = page_address(file->status->chunk[0].page);
		static_assert(sizeof(page->revoked) == sizeof(atomic64_t));
		atomic64_inc((atomic64_t *)&page->revoked);
	}
	spin_unlock_irqrestore(&tg->wake_lock, flags);
}

/* Some of the memory may have gone. */
static void tg_registration_look(struct tg_registration *reg)
{
	lockdep_assert_held(&reg->guard);
	reg->notified++;
	tg_job_queue(&reg->check);
	tg_registration_count(reg);
}

static bool tg_registration_invalidate(struct mmu_interval_notifier *notifier,
				       const struct mmu_notifier_range *range, unsigned long seq)
{
	struct tg_registration *reg = container_of(notifier, struct tg_registration, notifier);
	bool look = true;

	spin_lock(&reg->guard);
	mmu_interval_set_seq(notifier, seq);
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
	case MMU_NOTIFY_RELEASE:
		reg->unmapped = true;
		break;
	case MMU_NOTIFY_CLEAR:
	case MMU_NOTIFY_MIGRATE:
	case MMU_NOTIFY_EXCLUSIVE:
		reg->suspect_start = min(reg->suspect_start, range->start);
		reg->suspect_end = max(reg->suspect_end, range->end);
		break;
	default:
		look = false;
	}
	/* What happens to a registration in progress is looked at when it is published. */
	if (look && reg->ready)
		tg_registration_look(reg);
	spin_unlock(&reg->guard);
	return true;
}

static const struct mmu_interval_notifier_ops tg_registration_notifier_ops = {
	.invalidate = tg_registration_invalidate,
};

/*
 * Pages that the process sees, whatever their protection; or a negative errno. With FOLL_NOFAULT
 * as @flags, those in the page tables.
 */
static long tg_look(struct mm_struct *mm, unsigned long start, unsigned long count,
		    unsigned int flags, struct page **pages)
{
	long got;

	mmap_read_lock(mm);
	got = tg_pin_user_pages_remote(mm, start, count, flags | FOLL_FORCE, pages);
	mmap_read_unlock(mm);
	return got;
}

/*
 * Whether the pinned pages are still those of the process, from @start up to @end. A page that
 * is not there for long is accessed.
 */
static bool tg_registration_is_same(struct tg_registration *reg, struct tg_pins *pins,
				    unsigned long start, unsigned long end)
{
	unsigned long first = reg->notifier.interval_tree.start;
	struct mm_struct *mm = reg->mm;
	struct page *pages[TG_COMPARE_BATCH];
	unsigned int looks = 0;
	bool same = true;

	if (!mmget_not_zero(mm))
		return false;
	/* The notification came before the change, which it waits for. */
	mmu_interval_read_begin(&reg->notifier);
	start = max(start, first);
	end = min(end, reg->notifier.interval_tree.last + 1);
	while (same && start < end) {
		unsigned long left = (end - start) >> PAGE_SHIFT;
		unsigned int flags = looks < TG_LOOKS ? FOLL_NOFAULT : 0;
		long got = tg_look(mm, start, min(left, TG_COMPARE_BATCH), flags, pages);

		if (got > 0) {
			same = !memcmp(pages, pins->pages + ((start - first) >> PAGE_SHIFT),
				       got * sizeof(*pages));
			unpin_user_pages(pages, got);
			start += got << PAGE_SHIFT;
			cond_resched();
		} else if (!flags) {
			same = false;
		} else if (++looks < TG_LOOKS) {
			msleep(TG_LOOK_AGAIN);
		}
	}
	mmput(mm);
	return same;
}

/*
 * Takes a registration off the board, whose memory has gone, and unpins the pages. The object
 * stays until the process ends it.
 */
static void tg_registration_die(struct tg_registration *reg)
{
	struct tg_segment *segment = &reg->seg;
	struct tg_device *tg = segment->obj.tg;

	down_write(&tg->map_lock);
	segment->obj.dead = true;
	tg_remote_stale(reg->own);
	up_write(&tg->map_lock);

	down_read(&tg->op_lock);
	if (!tg_gone(tg) && segment->memory && !tg_segment_withdraw(segment) &&
	    !tg_segment_revoke(segment)) {
		tg_memory_free(tg, segment->memory);
		segment->memory = NULL;
		WRITE_ONCE(reg->pinned, 0);
	}
	up_read(&tg->op_lock);
}

/* Whether the memory is still that of the process; if it is not, the registration dies. */
static void tg_registration_compare(struct tg_registration *reg)
{
	struct tg_device *tg = reg->seg.obj.tg;
	struct tg_pins *pins = NULL;
	unsigned long start, end;
	bool dead;

	down_read(&tg->op_lock);
	if (!tg_gone(tg) && reg->seg.memory) {
		pins = reg->seg.memory->pins;
		kref_get(&pins->ref);
	}
	up_read(&tg->op_lock);
	/* It is dead already, or the board is. */
	if (!pins)
		return;

	spin_lock(&reg->guard);
	dead = reg->unmapped;
	start = reg->suspect_start;
	end = reg->suspect_end;
	reg->suspect_start = ULONG_MAX;
	reg->suspect_end = 0;
	spin_unlock(&reg->guard);
	if (dead || !tg_registration_is_same(reg, pins, start, end))
		tg_registration_die(reg);
	tg_pins_put(pins);
}

static void tg_registration_check(struct tg_job *job)
{
	struct tg_registration *reg = container_of(job, struct tg_registration, check);
	u64 notified;

	spin_lock(&reg->guard);
	notified = reg->notified;
	spin_unlock(&reg->guard);
	tg_registration_compare(reg);
	spin_lock(&reg->guard);
	reg->looked = notified;
	spin_unlock(&reg->guard);
	wake_up_all(&reg->wait);
}

/* Grants the runs of a range: 0 or a negative errno. The caller holds op_lock for reading. */
static int tg_registration_grant(struct tg_registration *reg, const struct tg_register *arg,
				 u32 rights)
{
	struct tg_segment *segment = &reg->seg;
	struct sg_table *table = &segment->memory->pins->table;
	struct tg_device *tg = segment->obj.tg;
	u32 list = min_t(u32, table->nents, TG_RANGE_LIST), n = 0, left = table->nents;
	size_t size = PAGE_ALIGN(list * sizeof(struct tg_range_run));
	union tg_request request = {
		.command.opcode = cpu_to_le32(arg->flags & TG_REGISTER_GATED ?
					      TG_ADMIN_GRANT_GATED : TG_ADMIN_GRANT_RANGE),
		.command.rights = cpu_to_le16(rights),
		.command.context = cpu_to_le16(segment->obj.file->context),
		.command.index = cpu_to_le32(segment->first),
		.command.page = cpu_to_le32(table->nents),
	};
	struct tg_admin_result result;
	struct tg_range_run *runs;
	struct scatterlist *sg;
	dma_addr_t dma;
	int err = 0;
	int i;

	/* Not killable: the board does not read it later than this. */
	runs = dma_alloc_coherent(&tg->pdev->dev, size, &dma, GFP_KERNEL);
	if (!runs)
		return -ENOMEM;
	/* Without a name the board admits its own node alone. */
	if (arg->name[0])
		tg_put_nodes(request.command.nodes, arg->nodes);
	request.command.address = cpu_to_le64(dma);
	/* Also if it is refused midway. */
	segment->granted = 1;
	for_each_sgtable_dma_sg(table, sg, i) {
		runs[n].address = cpu_to_le64(sg_dma_address(sg));
		runs[n].length = cpu_to_le64(sg_dma_len(sg));
		n++;
		left--;
		if (n < list && left)
			continue;
		request.command.count = cpu_to_le32(n);
		request.command.generation = cpu_to_le64(segment->generation);
		err = tg_admin_checked(tg, segment->obj.file, TG_ADMIN_QUICK, &request, &result);
		if (err)
			break;
		segment->generation = result.generation;
		n = 0;
	}
	dma_free_coherent(&tg->pdev->dev, size, runs, dma);
	return err;
}

/* Shows the board pinned memory. The caller holds op_lock for reading, and it is not gone. */
static int tg_registration_set(struct tg_registration *reg, const struct tg_register *arg)
{
	u32 rights = arg->name[0] ? arg->rights_owner | arg->rights_others :
		     TG_RIGHT_READ | TG_RIGHT_WRITE | TG_RIGHT_ATOMIC | TG_RIGHT_DMA;
	struct tg_segment *segment = &reg->seg;
	struct tg_device *tg = segment->obj.tg;
	struct tg_export export = {
		.length = arg->length,
		.rights_owner = arg->rights_owner,
		.rights_others = arg->rights_others,
	};
	struct tg_pins *pins = segment->memory->pins;
	struct tg_remote *own;
	u32 status;
	int err;

	err = sg_alloc_table_from_pages(&pins->table, pins->pages, pins->count,
					offset_in_page(arg->address), arg->length,
					GFP_KERNEL_ACCOUNT);
	if (err)
		return err;
	err = dma_map_sgtable(&tg->pdev->dev, &pins->table, DMA_BIDIRECTIONAL, 0);
	if (err)
		return err;
	pins->mapped = true;
	reg->runs = pins->table.nents;
	segment->first = TG_RANGE_PAGE + segment->obj.handle * TG_RANGE_UNITS;
	segment->count = DIV_ROUND_UP(arg->length, TG_UNIT);
	err = tg_registration_grant(reg, arg, rights);
	if (err)
		return err;
	own = tg_remote_create_local(segment, rights);
	if (IS_ERR(own))
		return PTR_ERR(own);
	/* Its teardown may precede the last use of the pointer. */
	kref_get(&own->obj.ref);
	down_write(&tg->map_lock);
	reg->own = own;
	up_write(&tg->map_lock);
	err = tg_remote_open_local(own, segment->generation, &status);
	if (err || !arg->name[0])
		return err;
	memcpy(export.secret, arg->secret, sizeof(export.secret));
	return tg_segment_announce(segment, &export);
}

static bool tg_register_is_named(const struct tg_register *arg)
{
	return memchr_inv(arg->name, 0, sizeof(arg->name));
}

static bool tg_register_is_valid(const struct tg_register *arg)
{
	u32 rights = arg->rights_owner | arg->rights_others;
	u64 end;

	if (!arg->length || arg->length > TG_RANGE_BYTES || arg->reserved ||
	    check_add_overflow(arg->address, arg->length, &end) || end > ULONG_MAX - PAGE_SIZE ||
	    !access_ok(u64_to_user_ptr(arg->address), arg->length) ||
	    rights & ~(TG_RIGHTS_ALL & ~TG_RIGHT_ENQUEUE))
		return false;
	/* A name is checked by tg_name_take(). */
	return tg_register_is_named(arg) ? rights : !rights && !arg->flags && !arg->connection;
}

/*
 * Watches and pins the memory, which it charges: the memory, which is the caller's, or an error
 * pointer. The caller holds no lock.
 */
static struct tg_memory *tg_registration_take(struct tg_registration *reg,
					      struct tg_register *arg)
{
	unsigned long start = arg->address & PAGE_MASK;
	unsigned long count = (PAGE_ALIGN(arg->address + arg->length) - start) >> PAGE_SHIFT;
	struct tg_memory *memory;
	struct tg_pins *pins;
	int err;

	err = mmu_interval_notifier_insert(&reg->notifier, current->mm, start,
					   count << PAGE_SHIFT, &tg_registration_notifier_ops);
	if (err)
		return ERR_PTR(err);
	reg->watched = true;
	/* For its worker, which may run while the notifier is removed. */
	reg->mm = current->mm;
	mmgrab(reg->mm);
	pins = tg_pins_new(count);
	if (!pins)
		return ERR_PTR(-ENOMEM);
	memory = tg_memory_new_pinned(pins, count, reg->seg.obj.file->owner);
	if (IS_ERR(memory)) {
		tg_pins_put(pins);
		return memory;
	}
	err = tg_registration_pin(reg, pins, start, count, &arg->fault);
	if (err) {
		tg_memory_discard(memory);
		return ERR_PTR(err);
	}
	return memory;
}

/**
 * tg_register() - TG_IOCTL_REGISTER: registers memory of the calling process
 * @call: The call, of the file that registers. The caller holds no lock.
 *
 * Return: 0; -EINVAL; -EFAULT for memory that is not there, may not be written, or cannot be
 * pinned for long, whose address is in the structure then; -ENOMEM beyond RLIMIT_MEMLOCK, or
 * without memory; -ENOSPC if the board has no room for it; -EBUSY if the memory does not stop to
 * change; -ENODEV if the board is gone, or goes meanwhile; or another negative errno.
 */
int tg_register(struct tg_call *call)
{
	struct tg_register *arg = &call->arg.registration;
	struct tg_device *tg = call->file->tg;
	struct tg_registration *reg;
	struct tg_memory *memory;
	int err;

	arg->fault = 0;
	if (tg_gone(tg))
		return -ENODEV;
	if (!tg_register_is_valid(arg))
		return -EINVAL;
	if (tg_register_is_named(arg)) {
		err = tg_name_take(call->file, arg->name, arg->flags, arg->connection, false);
		if (err)
			return err;
	}
	reg = kzalloc(sizeof(*reg), GFP_KERNEL_ACCOUNT);
	if (!reg)
		return -ENOMEM;
	spin_lock_init(&reg->guard);
	init_waitqueue_head(&reg->wait);
	tg_job_init(&reg->check, call->file, tg_registration_check);
	reg->suspect_start = ULONG_MAX;
	reg->seg.obj.size = arg->length;
	reg->address = arg->address;
	reg->process = get_pid(task_tgid(current));
	memcpy(reg->seg.name, arg->name, sizeof(reg->seg.name));
	err = tg_object_init(&reg->seg.obj, call->file, &tg_registration_ops, TG_RANGE_COUNT);
	if (err)
		return err;
	call->created = &reg->seg.obj;
	/*
	 * A page fault may take as long as another process likes, and the board may go meanwhile:
	 * remove() does not wait for it. So the memory is this call's until it is pinned, and the
	 * board's from then on, if that is still there.
	 */
	memory = tg_registration_take(reg, arg);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	down_read(&tg->op_lock);
	err = -ENODEV;
	if (!tg_gone(tg)) {
		tg_memory_give(tg, memory);
		reg->seg.memory = memory;
		WRITE_ONCE(reg->pinned, memory->pins->count);
		memory = NULL;
		err = tg_registration_set(reg, arg);
	}
	up_read(&tg->op_lock);
	if (memory)
		tg_memory_discard(memory);
	if (err)
		return err;
	arg->handle = reg->seg.obj.handle;
	arg->import = reg->own->obj.handle;
	arg->runs = reg->runs;
	return 0;
}

/* Whether it has been looked after so many notifications, or never will be. */
static bool tg_registration_has_looked(struct tg_registration *reg, u64 notified)
{
	bool looked;

	spin_lock(&reg->guard);
	looked = reg->looked >= notified;
	spin_unlock(&reg->guard);
	return looked || !READ_ONCE(reg->seg.obj.open);
}

/**
 * tg_registration_state() - TG_IOCTL_REGISTRATION_STATE
 * @call: The call, on the registration. The caller holds no lock.
 *
 * Waits, killably, until the notifications up to now have been looked at.
 *
 * Return: 0, also if it is closed meanwhile, and dead then; -EINTR if killed.
 */
int tg_registration_state(struct tg_call *call)
{
	struct tg_registration *reg = tg_registration_of(call->obj);
	struct tg_device *tg = call->file->tg;
	u64 notified;

	spin_lock(&reg->guard);
	notified = reg->notified;
	spin_unlock(&reg->guard);
	/* The look accesses pages, for which another process can have it wait. */
	if (wait_event_killable(reg->wait, tg_registration_has_looked(reg, notified)))
		return -EINTR;
	down_read(&tg->map_lock);
	call->arg.registration_state.dead = reg->seg.obj.dead;
	up_read(&tg->map_lock);
	return 0;
}

static void tg_registration_publish(struct tg_object *obj)
{
	struct tg_registration *reg = tg_registration_of(obj);

	reg->own->obj.open = true;
	spin_lock(&reg->guard);
	reg->ready = true;
	/* What has happened since it was pinned. */
	if (reg->unmapped || reg->suspect_start < reg->suspect_end)
		tg_registration_look(reg);
	spin_unlock(&reg->guard);
}

static void tg_registration_quiet(struct tg_object *obj)
{
	struct tg_registration *reg = tg_registration_of(obj);

	if (reg->own)
		tg_object_kill_locked(&reg->own->obj);
	/* The look that they wait for may be taken back. */
	wake_up_all(&reg->wait);
}

static void tg_registration_end(struct tg_object *obj)
{
	struct tg_registration *reg = tg_registration_of(obj);

	if (reg->watched)
		mmu_interval_notifier_remove(&reg->notifier);
	/* Nothing starts it any more. */
	tg_job_cancel_sync(&reg->check);
	if (reg->watched)
		mmdrop(reg->mm);
	/* The import of the memory goes before the memory. */
	if (reg->own)
		tg_object_end(&reg->own->obj);
}

/* A range's export pages are numbers of its own, which no segment shares. */
static bool tg_registration_leave(struct tg_object *obj)
{
	return tg_segment_release(tg_segment_of(obj));
}

static void tg_registration_free(struct tg_object *obj)
{
	struct tg_registration *reg = tg_registration_of(obj);

	if (reg->own)
		tg_object_put(&reg->own->obj);
	put_pid(reg->process);
	kfree(reg);
}

static const struct tg_object_ops tg_registration_ops = {
	.kind = TG_MMAP_REGISTRATION,
	.publish = tg_registration_publish,
	.quiet = tg_registration_quiet,
	.end = tg_registration_end,
	.leave = tg_registration_leave,
	.free = tg_registration_free,
};
