// SPDX-License-Identifier: GPL-2.0
/*
 * The ioctls of the character device.
 *
 * A table has the structure and the handler of each. Structures grow at their end: the
 * caller passes the size of its version. Missing bytes are taken for zero, and excess bytes
 * must be zero, so that a newer program is refused only what this driver does not support;
 * see copy_struct_from_user().
 */
#include <linux/capability.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "call.h"
#include "compat.h"
#include "driver.h"

/* Writes the structure back, without a lock: another process may delay a page fault. */
static int tg_reply(struct tg_call *call)
{
	return copy_to_user(call->user, &call->arg, call->size) ? -EFAULT : 0;
}

static int tg_ioctl_info(struct tg_call *call)
{
	struct tg_file *file = call->file;
	struct tg_info *arg = &call->arg.info;
	struct tg_device *tg = file->tg;
	int err;

	if (arg->flags & TG_INFO_SOFT) {
		err = tg_file_soften(file);
		if (err)
			return err;
		WRITE_ONCE(file->soft, true);
	}
	arg->abi = TG_ABI_VERSION;
	arg->node = tg->node;
	arg->nodes = tg->nodes;
	arg->unit_shift = TG_UNIT_SHIFT;
	arg->window_size = 1ULL << tg->offset_bits;
	arg->incarnation = readl(tg->regs + TG_REG_INCARNATION);
	arg->link_up = !!(readl(tg->regs + TG_REG_STATUS) & TG_STATUS_LINK_UP);
	arg->context = file->context;
	arg->counters = tg->counter_limit;
	tg_direct_group(tg, arg->group);
	/* Only holders of this file's descriptor get the key. */
	arg->key = file->key;
	return 0;
}

/*
 * TG_IOCTL_NOTIFY: an eventfd for CONTEXT events, in place of the one before.
 * It is signalled at once if there were some since the last read(), so that none
 * falls between; and when the board is lost.
 */
static int tg_ioctl_notify(struct tg_call *call)
{
	const struct tg_notify *arg = &call->arg.notify;
	struct eventfd_ctx *notify = NULL;
	struct tg_file *file = call->file;
	struct tg_device *tg = file->tg;

	if (arg->eventfd != -1) {
		notify = eventfd_ctx_fdget(arg->eventfd);
		if (IS_ERR(notify))
			return PTR_ERR(notify);
	}
	mutex_lock(&tg->lock);
	spin_lock_irq(&tg->wake_lock);
	swap(file->notify, notify);
	spin_unlock_irq(&tg->wake_lock);
	if (file->notify && (tg_gone(tg) || atomic64_read(&file->events)))
		tg_eventfd_signal(file->notify);
	mutex_unlock(&tg->lock);
	if (notify)
		eventfd_ctx_put(notify);
	return 0;
}

/* Up to here a wait ends to the microsecond: a timer wheel costs less than a precise timer. */
#define TG_WAIT_PRECISE (20 * USEC_PER_MSEC)
#define TG_WAIT_MAX (3600ULL * USEC_PER_SEC)

/* TG_IOCTL_WAIT. No lock is held while it sleeps. */
static int tg_ioctl_wait(struct tg_call *call)
{
	struct tg_wait *arg = &call->arg.wait;
	struct tg_file *file = call->file;
	struct tg_device *tg = file->tg;
	u64 time = min_t(u64, arg->timeout, TG_WAIT_MAX);
	long result = 0;

	if (time >= TG_WAIT_PRECISE)
		result = wait_event_interruptible_timeout(file->wait, tg_gone(tg) ||
							  atomic64_read(&file->events),
							  usecs_to_jiffies(time));
	else if (time)
		result = wait_event_interruptible_hrtimeout(file->wait, tg_gone(tg) ||
							    atomic64_read(&file->events),
							    ns_to_ktime(time * NSEC_PER_USEC));
	arg->events = atomic64_xchg(&file->events, 0);
	if (arg->events)
		return 0;
	if (tg_gone(tg))
		return -ENODEV;
	return result == -ERESTARTSYS ? -EINTR : 0;
}

/* The caller has not got them. */
static int tg_ioctl_wait_undo(struct tg_call *call)
{
	atomic64_add(call->arg.wait.events, &call->file->events);
	return 0;
}

/*
 * The last field is that of the first version of the structure: later versions may add
 * fields, none are removed.
 */
static const struct tg_ioctl tg_ioctls[] = {
	TG_IOCTL(TG_IOCTL_INFO, tg_ioctl_info, tg_info, key, .flags = TG_INFO_SOFT, .board = true),
	TG_IOCTL(TG_IOCTL_EXPORT, tg_segment_create, tg_export, offset,
		 .flags = TG_NAME_OF_CONNECTION, .board = true, .named = true),
	TG_IOCTL(TG_IOCTL_UNEXPORT, tg_object_close, tg_handle, handle, .kind = TG_MMAP_EXPORT),
	TG_IOCTL(TG_IOCTL_IMPORT, tg_remote_create, tg_import, connection,
		 .flags = TG_IMPORT_SOFT | TG_NAME_OF_CONNECTION, .board = true, .named = true,
		 .reply = TG_REPLY_ALWAYS),
	TG_IOCTL(TG_IOCTL_UNIMPORT, tg_object_close, tg_handle, handle, .kind = TG_MMAP_IMPORT),
	TG_IOCTL(TG_IOCTL_STATE, tg_remote_state, tg_import_state, status,
		 .kind = TG_MMAP_IMPORT),
	TG_IOCTL(TG_IOCTL_ACK, tg_remote_ack, tg_handle, handle,
		 .board = true, .kind = TG_MMAP_IMPORT),
	/* No process has got its number then; if one has guessed it, it may be disarmed already. */
	TG_IOCTL(TG_IOCTL_COUNTER_ARM, tg_counter_arm, tg_counter, reserved,
		 .board = true, .undo = tg_counter_disarm),
	TG_IOCTL(TG_IOCTL_COUNTER_READ, tg_counter_read, tg_counter, reserved, .board = true),
	TG_IOCTL(TG_IOCTL_COUNTER_DISARM, tg_counter_disarm, tg_counter, reserved,
		 .board = true),
	TG_IOCTL(TG_IOCTL_NOTIFY, tg_ioctl_notify, tg_notify, eventfd),
	TG_IOCTL(TG_IOCTL_WAIT, tg_ioctl_wait, tg_wait, events, .undo = tg_ioctl_wait_undo),
	TG_IOCTL(TG_IOCTL_QUEUE_CREATE, tg_queue_create, tg_queue, length,
		 .board = true, .named = true),
	TG_IOCTL(TG_IOCTL_QUEUE_ATTACH, tg_queue_attach, tg_queue, length),
	TG_IOCTL(TG_IOCTL_QUEUE_DESTROY, tg_object_close, tg_handle, handle,
		 .kind = TG_MMAP_QUEUE),
	TG_IOCTL(TG_IOCTL_QUEUE_SERVICE, tg_queue_service, tg_handle, handle,
		 .kind = TG_MMAP_QUEUE),
	TG_IOCTL(TG_IOCTL_QUEUE_STATE, tg_queue_state, tg_queue_state, evictions,
		 .kind = TG_MMAP_QUEUE),
	TG_IOCTL(TG_IOCTL_REPLICATE, tg_replicate, tg_replica, page,
		 .board = true, .named = true, .reply = TG_REPLY_ALWAYS),
	TG_IOCTL(TG_IOCTL_REPLICA_LEAVE, tg_object_close, tg_handle, handle,
		 .kind = TG_MMAP_REPLICA),
	TG_IOCTL(TG_IOCTL_REPLICA_STATE, tg_replica_state, tg_replica_state, status,
		 .kind = TG_MMAP_REPLICA),
	TG_IOCTL(TG_IOCTL_REPLICA_ADOPT, tg_replica_adopt, tg_handle, handle,
		 .board = true, .kind = TG_MMAP_REPLICA),
	TG_IOCTL(TG_IOCTL_REPLICA_MOVE, tg_replica_move, tg_handle, handle,
		 .board = true, .kind = TG_MMAP_REPLICA),
	TG_IOCTL(TG_IOCTL_REGISTER, tg_register, tg_register, runs,
		 .flags = TG_REGISTER_GATED | TG_NAME_OF_CONNECTION, .reply = TG_REPLY_ALWAYS),
	TG_IOCTL(TG_IOCTL_UNREGISTER, tg_object_close, tg_handle, handle,
		 .kind = TG_MMAP_REGISTRATION),
	TG_IOCTL(TG_IOCTL_REGISTRATION_STATE, tg_registration_state, tg_registration_state, dead,
		 .kind = TG_MMAP_REGISTRATION),
};

/* Runs a handler on the object that the structure names, if it names one. */
static int tg_ioctl_run_on_object(struct tg_call *call, int (*run)(struct tg_call *call))
{
	u32 kind = call->op->kind;
	int err;

	if (!kind)
		return run(call);
	call->obj = tg_object_find(call->file, kind, call->arg.handle.handle);
	if (!call->obj)
		return -EBADF;
	err = run(call);
	tg_object_put(call->obj);
	return err;
}

/* Checks the name that the structure gives, and completes that of what belongs to a connection. */
static int tg_ioctl_name(struct tg_call *call)
{
	struct tg_export *arg = &call->arg.export;

	switch (call->op->cmd) {
	case TG_IOCTL_EXPORT:
		return tg_name_take(call->file, arg->name, arg->flags, arg->connection, false);
	case TG_IOCTL_IMPORT:
		return tg_name_take(call->file, arg->name, arg->flags, call->arg.import.connection,
				    true);
	default:
		return tg_name_take(call->file, arg->name, 0, 0, false);
	}
}

static int tg_ioctl_run(struct tg_call *call, int (*run)(struct tg_call *call))
{
	struct tg_device *tg = call->file->tg;
	int err;

	if (call->op->named) {
		err = tg_ioctl_name(call);
		if (err)
			return err;
	}
	if (!call->op->board)
		return tg_ioctl_run_on_object(call, run);
	down_read(&tg->op_lock);
	err = tg_gone(tg) ? -ENODEV : tg_ioctl_run_on_object(call, run);
	up_read(&tg->op_lock);
	return err;
}

/* Writes the structure back if it is to be; then an object is published, or discarded. */
static int tg_ioctl_finish(struct tg_call *call, int err)
{
	const struct tg_ioctl *op = call->op;

	if (_IOC_DIR(op->cmd) & _IOC_READ &&
	    (op->reply == TG_REPLY_ALWAYS || (op->reply == TG_REPLY_ON_SUCCESS && !err)) &&
	    tg_reply(call) && !err) {
		err = -EFAULT;
		if (op->undo)
			tg_ioctl_run(call, op->undo);
	}
	if (!call->created)
		return err;
	if (err)
		tg_object_discard(call->created);
	else
		tg_object_publish(call->created);
	return err;
}

/* The module that handles the ioctls of comparisons, if it is loaded. */
static DEFINE_MUTEX(tg_lab_lock);
static const struct tg_lab *tg_lab;

/**
 * tg_lab_register() - adds the ioctls of comparisons
 * @lab: The module that handles them.
 *
 * Return: 0 or -EBUSY if they are there.
 */
int tg_lab_register(const struct tg_lab *lab)
{
	int err = 0;

	mutex_lock(&tg_lab_lock);
	if (tg_lab)
		err = -EBUSY;
	else
		tg_lab = lab;
	mutex_unlock(&tg_lab_lock);
	return err;
}
EXPORT_SYMBOL_NS_GPL(tg_lab_register, TG_LAB_NS);

/**
 * tg_lab_unregister() - mirror of tg_lab_register()
 * @lab: The module that handled them. None is in progress: each holds the module.
 */
void tg_lab_unregister(const struct tg_lab *lab)
{
	mutex_lock(&tg_lab_lock);
	if (tg_lab == lab)
		tg_lab = NULL;
	mutex_unlock(&tg_lab_lock);
}
EXPORT_SYMBOL_NS_GPL(tg_lab_unregister, TG_LAB_NS);

/* The module that handles the ioctls of comparisons, held; or NULL. */
static const struct tg_lab *tg_lab_get(void)
{
	const struct tg_lab *lab;

	mutex_lock(&tg_lab_lock);
	lab = tg_lab;
	if (lab && !try_module_get(lab->owner))
		lab = NULL;
	mutex_unlock(&tg_lab_lock);
	return lab;
}

/**
 * tg_lab_opens_for_kernel() - whether a file that is opened now is to be one of the kernel's own
 *
 * Return: True for processes that may load modules, while the module for comparisons is loaded
 * with kernel=1: so programs of tests can be the kernels of hostile nodes.
 */
bool tg_lab_opens_for_kernel(void)
{
	bool kernel;

	mutex_lock(&tg_lab_lock);
	kernel = tg_lab && tg_lab->kernel;
	mutex_unlock(&tg_lab_lock);
	return kernel && capable(CAP_SYS_MODULE);
}

/* Handles an ioctl of a table. */
static int tg_ioctl_of(const struct tg_ioctl *ops, u32 count, unsigned int nr, unsigned int cmd,
		       struct tg_call *call)
{
	const struct tg_ioctl *op;
	u32 size;
	int err;

	if (nr >= count)
		return -ENOTTY;
	op = &ops[array_index_nospec(nr, count)];
	if (!op->run)
		return -ENOTTY;
	if (_IOC_TYPE(cmd) != TG_IOCTL_TYPE || _IOC_DIR(cmd) != _IOC_DIR(op->cmd))
		return -ENOTTY;
	/* The size in the structure. The one in the request number is at most 16 KiB. */
	if (get_user(size, (u32 __user *)call->user))
		return -EFAULT;
	if (size != _IOC_SIZE(cmd) || size < op->min_size)
		return -EINVAL;
	call->size = min_t(u32, size, _IOC_SIZE(op->cmd));
	err = copy_struct_from_user(&call->arg, _IOC_SIZE(op->cmd), call->user, size);
	if (err)
		return err;
	/* Another thread may have changed it since. */
	call->arg.head.size = size;
	if (call->arg.head.flags & ~op->flags)
		return -EINVAL;
	call->op = op;
	err = tg_ioctl_run(call, op->run);
	return tg_ioctl_finish(call, err > 0 ? tg_status_to_errno(err) : err);
}

/**
 * tg_ioctl() - handles an ioctl
 * @filp: The open device.
 * @cmd: Request number.
 * @arg: Address of the caller's structure.
 *
 * Return: 0; -ENOTTY for a number, type or direction that no ioctl has, or whose module is not
 * loaded; -EINVAL if the sizes in the structure and the request number differ, for a
 * structure that is shorter than its first version, or for a flag that it does not have;
 * -E2BIG for bytes beyond this driver's version that are not zero; -EFAULT; or the result of
 * the handler.
 */
long tg_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct tg_call call = {
		.file = filp->private_data,
		.user = (void __user *)arg,
	};
	unsigned int nr = _IOC_NR(cmd);
	const struct tg_lab *lab;
	int err;

	if (nr < TG_IOCTL_LAB)
		return tg_ioctl_of(tg_ioctls, ARRAY_SIZE(tg_ioctls), nr, cmd, &call);
	lab = tg_lab_get();
	if (!lab)
		return -ENOTTY;
	err = tg_ioctl_of(lab->ioctls, lab->count, nr - TG_IOCTL_LAB, cmd, &call);
	module_put(lab->owner);
	return err;
}
