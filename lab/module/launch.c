// SPDX-License-Identifier: GPL-2.0
/*
 * Operations the kernel launches for a process (TG_IOCTL_LAUNCH), in two styles.
 * Both are baselines for launches without the kernel, and part of telegraphos_lab.ko, which
 * is loaded for comparisons only.
 *
 * TG_STYLE_PLAIN: a command to the board, as for anything else.
 *
 * TG_STYLE_SPECIAL: as in Telegraphos I (SPEC item 19), where PAL code did it.
 * The board is brought into special mode, in which an access to the plain window
 * performs nothing and passes its address. The kernel accesses the addresses that the
 * process has passed, in the process's own mappings, so that its page tables check them. It
 * writes the operands and starts the operation, which ends special mode.
 *
 * In special mode a store of any processor to the window is taken for an argument. So
 * nothing else may run from entering to leaving it:
 *
 *  - This processor's interrupts are off, and page faults disabled: an access to a page
 *    that is not present fails, special mode is left, the page is faulted in, and the
 *    sequence is repeated.
 *
 *  - The other processors are parked in an interrupt until this one has finished.
 *    stop_machine() would run the sequence in a kernel thread, which does not have the
 *    process's page tables; so the others are parked, and the sequence runs in the calling
 *    task. Unlike with stop_machine(), a processor may be parked while it holds a spinlock
 *    for which another waits with interrupts off, which then never parks. Therefore the
 *    wait for all to park is short; after it they are released, and parked again later.
 *
 *  - The earlier stores of each of them have reached the board before it parks, and it is
 *    released after the end of special mode has been written, which no later store can
 *    overtake. So each of its stores is before or after special mode.
 *
 * The mappings are looked up, and kept from changing, under mmap_lock, so that
 * only windows of this file are touched. A process is killed before or after the
 * sequence, never in it: it cannot leave the board in special mode. An operation that was
 * started continues, as any other does.
 */
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/smp.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>

#include "call.h"
#include "driver.h"
#include "lab_ioctls.h"

/* Limit on the time until all others are parked, in nanoseconds, and on attempts. */
#define TG_PARK_LIMIT (20 * NSEC_PER_MSEC)
#define TG_PARK_ATTEMPTS 100

/* Attempts to fault in pages that are unmapped again. */
#define TG_FAULT_ATTEMPTS 256

/* A completion is polled for this long before the task sleeps between polls. */
#define TG_DONE_SPIN (100 * NSEC_PER_USEC)
#define TG_DONE_SLEEP_MIN 20
#define TG_DONE_SLEEP_MAX 1000

/* Set in all cookies of the driver, in none of the library. */
#define TG_COOKIE_KERNEL BIT_ULL(TG_CONTEXT_COOKIE_BITS - 1)
#define TG_LENGTH_MASK GENMASK_ULL(47, 0)

/* One at a time on all boards: two that park each other would deadlock. */
static DEFINE_MUTEX(tg_special_lock);

/* Numbers the launches in special mode. */
static atomic64_t tg_cookies;

/* Launches in progress: each has a slot of its context exclusively. */
static LIST_HEAD(tg_launches);
static DEFINE_SPINLOCK(tg_launches_lock);

/**
 * struct tg_parking - all processors but one are parked
 * @arrived: Number of parked processors.
 * @left: Number of those that do not access this any more.
 * @go: They are released.
 */
struct tg_parking {
	atomic_t arrived;
	atomic_t left;
	bool go;
};

/**
 * struct tg_touch - an address to pass in special mode
 * @address: In a window mapping of the process.
 * @store: Accessed by a store, otherwise by a load.
 */
struct tg_touch {
	u8 __user *address;
	bool store;
};

/**
 * struct tg_special - a launch in special mode
 * @node: In tg_launches.
 * @file: File of the context.
 * @slot: Slot of the context.
 * @registers: Launch registers of the context's slot.
 * @enter: Value of SPECIAL.
 * @touch: The arguments, in order.
 * @touches: Number of arguments.
 * @operands: Number of operands of the operation, of the next two fields.
 * @operand: Operand of an atomic.
 * @compare: Value to compare with.
 * @length: Bytes to copy, else 0.
 * @word: Value of LAUNCH.
 */
struct tg_special {
	struct list_head node;
	struct tg_file *file;
	u32 slot;
	void __iomem *registers;
	u64 enter;
	struct tg_touch touch[2];
	u32 touches;
	u32 operands;
	u64 operand;
	u64 compare;
	u64 length;
	u64 word;
};

static u32 tg_launch_op(const struct tg_launch *arg)
{
	return arg->operation & 0xff;
}

/* The result of a call with a status of the board, which can be any number. */
static int tg_launch_status(struct tg_launch *arg, u32 status)
{
	static_assert(TG_OK == 0);
	arg->status = status;
	return min_t(u32, status, S32_MAX);
}

static bool tg_launch_is_valid(const struct tg_launch *arg)
{
	u32 flags = arg->operation >> 8;

	switch (tg_launch_op(arg)) {
	case TG_OP_SWAP:
	case TG_OP_ADD:
	case TG_OP_COMPARE_SWAP:
		return !(flags & ~TG_LAUNCH_WIDE);
	case TG_OP_COPY:
		return !flags;
	default:
		return false;
	}
}

/* Whether the file may launch through an import: 0, TG_ERR_*, or a negative errno. */
static int tg_launch_import(struct tg_file *file, struct tg_launch *arg, u32 handle)
{
	const struct tg_object *obj;
	u32 status = TG_OK;

	down_read(&file->tg->map_lock);
	obj = tg_object_named(file, TG_MMAP_IMPORT, handle);
	/* As its window, which is SIGBUS now. */
	if (obj && obj->dead)
		status = tg_remote_of(obj)->status;
	up_read(&file->tg->map_lock);
	return obj ? tg_launch_status(arg, status) : -EBADF;
}

static int tg_launch_plain(struct tg_file *file, struct tg_launch *arg)
{
	bool copy = tg_launch_op(arg) == TG_OP_COPY;
	union tg_request request = {
		.launch.opcode = cpu_to_le32(TG_ADMIN_LAUNCH),
		.launch.context = cpu_to_le16(file->context),
		.launch.target = cpu_to_le16(arg->target),
		.launch.source = cpu_to_le16(copy ? arg->source : 0),
		.launch.operation = cpu_to_le16(arg->operation),
		.launch.target_offset = cpu_to_le64(arg->target_address),
		.launch.source_offset = cpu_to_le64(copy ? arg->source_address : 0),
		.launch.length = cpu_to_le64(copy ? arg->length : 0),
		.launch.operand = cpu_to_le64(arg->operand),
		.launch.compare = cpu_to_le64(arg->compare),
	};
	struct tg_admin_result result;
	int err;

	err = tg_launch_import(file, arg, arg->target);
	if (!err && copy)
		err = tg_launch_import(file, arg, arg->source);
	if (err)
		return err;
	/* The board refuses an import that is closed meanwhile: it checks the context. */
	down_read(&file->tg->op_lock);
	err = tg_gone(file->tg) ? -ENODEV :
	      tg_admin(file->tg, file, TG_ADMIN_OPERATION, &request, &result);
	up_read(&file->tg->op_lock);
	if (err)
		return err;
	if (result.status == TG_OK)
		arg->value = result.length;
	return tg_launch_status(arg, result.status);
}

static void tg_park_cpu(void *data)
{
	struct tg_parking *still = data;

	/* Earlier stores of this processor have reached the board. */
	mb();
	atomic_inc(&still->arrived);
	/* Later accesses begin after special mode has ended. */
	while (!smp_load_acquire(&still->go))
		cpu_relax();
	/* The last access: the structure may be gone after this. */
	atomic_inc(&still->left);
}

/*
 * The sequence itself. Nothing else runs. 0, or -EAGAIN if a page was not there,
 * and nothing has happened then.
 */
static int tg_special_sequence(const struct tg_special *special)
{
	void __iomem *mode = special->file->tg->regs + TG_REG_SPECIAL;
	int err = 0;
	u32 i;

	writeq(special->enter, mode);
	/* The mappings of BAR0, BAR2 and the window are three to the processor. */
	mb();
	pagefault_disable();
	for (i = 0; i < special->touches && !err; i++) {
		const struct tg_touch *touch = &special->touch[i];
		u8 byte = 0;

		if (touch->store)
			err = __put_user(byte, touch->address);
		else
			err = __get_user(byte, touch->address);
	}
	pagefault_enable();
	/* As above. */
	mb();
	if (!err) {
		if (special->operands > 0)
			writeq(special->operand, special->registers + TG_CONTEXT_OPERAND);
		if (special->operands > 1)
			writeq(special->compare, special->registers + TG_CONTEXT_COMPARE);
		writeq(special->length, special->registers + TG_CONTEXT_LENGTH);
		writeq(special->word, special->registers + TG_CONTEXT_LAUNCH);
	}
	/*
	 * The launch has ended special mode, if the board has taken it: the slot
	 * is the process's word, and may be busy.
	 */
	writeq(0, mode);
	/* Later stores of the others follow it. */
	mb();
	return err ? -EAGAIN : 0;
}

/* Runs the sequence while all others are parked. -EBUSY if they did not park in time. */
static int tg_special_alone(const struct tg_special *special)
{
	struct tg_parking still = { };
	unsigned long flags;
	int others, err;
	u64 end;

	lockdep_assert_held(&tg_special_lock);
	preempt_disable();
	others = num_online_cpus() - 1;
	smp_call_function(tg_park_cpu, &still, 0);
	end = ktime_get_mono_fast_ns() + TG_PARK_LIMIT;
	while (atomic_read_acquire(&still.arrived) < others &&
	       ktime_get_mono_fast_ns() < end)
		cpu_relax();

	err = -EBUSY;
	if (atomic_read_acquire(&still.arrived) == others) {
		local_irq_save(flags);
		err = tg_special_sequence(special);
		local_irq_restore(flags);
	}
	/* The sequence is over; pairs with tg_park_cpu(). */
	smp_store_release(&still.go, true);
	/* Also those that park only now. */
	while (atomic_read_acquire(&still.left) < others)
		cpu_relax();
	preempt_enable();
	return err;
}

/* Whether a mapping is the plain window of an import of the file that is not mapped directly. */
static bool tg_special_is_window(const struct vm_area_struct *vma, const struct tg_file *file)
{
	unsigned long kind = vma->vm_pgoff >> (TG_MMAP_KIND_SHIFT - PAGE_SHIFT);
	const struct tg_remote *remote;

	/* Only files that the driver has opened have this as their private data. */
	if (!vma->vm_file || vma->vm_file->private_data != file ||
	    (kind != TG_MMAP_IMPORT && kind != TG_MMAP_REPLICA_WINDOW))
		return false;
	remote = tg_remote_of((struct tg_object *)vma->vm_private_data);
	return !READ_ONCE(remote->direct) || READ_ONCE(remote->trapped);
}

/* Whether the touches are of this file's windows: 0 or a negative errno. */
static int tg_special_look_up(struct tg_special *special, struct mm_struct *mm)
{
	u32 i;

	mmap_assert_locked(mm);
	for (i = 0; i < special->touches; i++) {
		struct tg_touch *touch = &special->touch[i];
		struct vm_area_struct *vma;

		vma = vma_lookup(mm, untagged_addr((unsigned long)touch->address));
		if (!vma)
			return -EFAULT;
		if (!tg_special_is_window(vma, special->file))
			return -EINVAL;
		/* A target must be writable; of a source it depends. */
		touch->store = !i || vma->vm_flags & VM_WRITE;
	}
	return 0;
}

/*
 * One attempt: 0, -EAGAIN if a page was not present, -EBUSY if the other processors did not
 * park or the memory map is locked, or an errno that is final. Another process may keep the
 * memory map locked: it is not waited for under these locks.
 */
static int tg_special_try(struct tg_special *special, struct mm_struct *mm)
{
	struct tg_device *tg = special->file->tg;
	int err;

	down_read(&tg->op_lock);
	err = tg_gone(tg) ? -ENODEV : mutex_lock_killable(&tg_special_lock);
	if (err)
		goto out;
	/* No processor joins meanwhile. */
	cpus_read_lock();
	err = -EBUSY;
	if (mmap_read_trylock(mm)) {
		err = tg_special_look_up(special, mm);
		if (!err)
			err = tg_special_alone(special);
		mmap_read_unlock(mm);
	}
	cpus_read_unlock();
	mutex_unlock(&tg_special_lock);
out:
	up_read(&tg->op_lock);
	return err;
}

/*
 * Brings in the pages, as the touches would; waits for the end of congestion, or, if the
 * mapping is another by now, for whatever that waits for.
 */
static int tg_special_fault_in(const struct tg_special *special, struct mm_struct *mm)
{
	u32 i;
	int err;

	err = mmap_read_lock_killable(mm);
	if (err)
		return err;
	for (i = 0; i < special->touches && !err; i++) {
		const struct tg_touch *touch = &special->touch[i];
		bool unlocked = false;

		err = fixup_user_fault(mm, untagged_addr((unsigned long)touch->address),
				       touch->store ? FAULT_FLAG_WRITE : 0, &unlocked);
	}
	mmap_read_unlock(mm);
	return err;
}

/* Launches: 0 if the board has taken it or will say why not. */
static int tg_special_launch(struct tg_special *special)
{
	u32 parks = 0, faults = 0;
	int err;

	for (;;) {
		err = tg_special_try(special, current->mm);
		if (tg_gone(special->file->tg))
			return -ENODEV;
		if (err == -EAGAIN) {
			if (++faults > TG_FAULT_ATTEMPTS)
				return -EFAULT;
			err = tg_special_fault_in(special, current->mm);
			if (tg_gone(special->file->tg))
				return -ENODEV;
			if (err)
				return err;
		} else if (err == -EBUSY) {
			if (++parks > TG_PARK_ATTEMPTS)
				return -EBUSY;
			usleep_range(500, 1000);
		} else {
			return err;
		}
		if (fatal_signal_pending(current))
			return -EINTR;
	}
}

/*
 * Waits until the operation in a slot is done: 0, -EINTR if killed, -ENODEV. The caller
 * holds op_lock for reading. As long as a file is open, the driver notices that its board
 * does not answer any more: see tg_device_watch().
 */
static int tg_special_wait(struct tg_file *file, struct tg_launch *arg, u64 cookie,
			   u32 *status)
{
	struct tg_status_page *page = page_address(file->status->chunk[0].page);
	__le64 *done = &page->done[arg->slot];
	__le64 *value = &page->value[arg->slot];
	u64 spin_end = ktime_get_mono_fast_ns() + TG_DONE_SPIN;
	unsigned long pause = TG_DONE_SLEEP_MIN;
	struct tg_device *tg = file->tg;

	for (;;) {
		u64 word = le64_to_cpu(READ_ONCE(*done));

		if ((word & TG_COOKIE_MASK) == cookie) {
			/* The value was written before. */
			dma_rmb();
			*status = word >> 48;
			if (*status == TG_OK && tg_launch_op(arg) != TG_OP_COPY)
				arg->value = le64_to_cpu(READ_ONCE(*value));
			return 0;
		}
		if (tg_gone(tg))
			return -ENODEV;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (ktime_get_mono_fast_ns() < spin_end) {
			cpu_relax();
			cond_resched();
			continue;
		}
		usleep_range(pause, 2 * pause);
		pause = min_t(unsigned long, 2 * pause, TG_DONE_SLEEP_MAX);
	}
}

/* Whether the slot was free. */
static bool tg_special_take_slot(struct tg_special *special)
{
	const struct tg_special *other;
	bool taken = false;

	spin_lock(&tg_launches_lock);
	list_for_each_entry(other, &tg_launches, node)
		taken |= other->file == special->file && other->slot == special->slot;
	if (!taken)
		list_add(&special->node, &tg_launches);
	spin_unlock(&tg_launches_lock);
	return !taken;
}

static void tg_special_give_slot(struct tg_special *special)
{
	spin_lock(&tg_launches_lock);
	list_del(&special->node);
	spin_unlock(&tg_launches_lock);
}

static int tg_launch_special(struct tg_file *file, struct tg_launch *arg)
{
	u64 cookie = TG_COOKIE_KERNEL |
		     (atomic64_inc_return(&tg_cookies) & (TG_COOKIE_KERNEL - 1));
	bool copy = tg_launch_op(arg) == TG_OP_COPY;
	struct tg_device *tg = file->tg;
	struct tg_special special = {
		.file = file,
		.touch[0].address = u64_to_user_ptr(arg->target_address),
		.touch[1].address = u64_to_user_ptr(arg->source_address),
		.touches = copy ? 2 : 1,
		.operands = copy ? 0 : tg_launch_op(arg) == TG_OP_COMPARE_SWAP ? 2 : 1,
		.operand = arg->operand,
		.compare = arg->compare,
		.length = copy ? arg->length : 0,
	};
	u32 status, i;
	int err;

	if (arg->slot >= TG_CONTEXT_SLOT_COUNT)
		return -EINVAL;
	arg->slot = array_index_nospec(arg->slot, TG_CONTEXT_SLOT_COUNT);
	special.slot = arg->slot;
	/* The register would take another length for it. */
	if (special.length & ~TG_LENGTH_MASK)
		return tg_launch_status(arg, TG_ERR_LENGTH);
	for (i = 0; i < special.touches; i++)
		if (!access_ok(special.touch[i].address, 1))
			return -EFAULT;
	special.registers = tg->contexts_io + ((u64)file->context << TG_UNIT_SHIFT) +
			    TG_CONTEXT_REGISTERS + TG_CONTEXT_STRIDE * arg->slot;
	special.enter = TG_SPECIAL_ENTER | file->context << 8 | arg->slot;
	special.word = (u64)tg_launch_op(arg) << 56 |
		       (u64)(arg->operation >> 8) << 48 | cookie;

	if (!tg_special_take_slot(&special))
		return -EBUSY;
	err = tg_special_launch(&special);
	if (!err) {
		down_read(&tg->op_lock);
		/* Then the status page has gone, too. */
		err = tg_gone(tg) ? -ENODEV : tg_special_wait(file, arg, cookie, &status);
		up_read(&tg->op_lock);
	}
	tg_special_give_slot(&special);
	return err ? err : tg_launch_status(arg, status);
}

/**
 * tg_launch() - TG_IOCTL_LAUNCH: an atomic or a copy, from the kernel
 * @call: The call, of the file that launches. Its value and status are filled in, also if this
 *	fails. The caller holds no lock.
 *
 * Blocks until it is done. If the caller is killed, the board completes it.
 *
 * Return: 0; -EINVAL for an unknown style, operation, flag or slot, and for an address that
 * is not in a window of this file; -EBADF for an import that is not this file's; -EFAULT for
 * an address that the page tables do not allow, or of a dead import; -EBUSY for a slot that
 * another such call uses, or if the other processors could not be stopped; -EINTR if killed;
 * -ENODEV if the board is gone; or the call's status.
 */
int tg_launch(struct tg_call *call)
{
	struct tg_launch *arg = &call->arg.launch;

	arg->value = 0;
	arg->status = TG_OK;
	if (tg_gone(call->file->tg))
		return -ENODEV;
	if (!tg_launch_is_valid(arg))
		return -EINVAL;
	switch (arg->style) {
	case TG_STYLE_PLAIN:
		return tg_launch_plain(call->file, arg);
	case TG_STYLE_SPECIAL:
		return tg_launch_special(call->file, arg);
	default:
		return -EINVAL;
	}
}
