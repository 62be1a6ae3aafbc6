// SPDX-License-Identifier: GPL-2.0
/* The character device: open files and their contexts, read() and poll(). */
#include <linux/poll.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "compat.h"
#include "driver.h"

/* Which file gets the events of a context: one, or none. */
static void tg_context_assign(struct tg_device *tg, u32 context, struct tg_file *file)
{
	lockdep_assert_held(&tg->lock);
	spin_lock_irq(&tg->wake_lock);
	tg->files[context] = file;
	spin_unlock_irq(&tg->wake_lock);
}

/*
 * Takes a context number from start on: -EBUSY if all are in use, -ENOSPC if the share of the
 * process or the user is used up.
 */
static int tg_context_take(struct tg_file *file, u32 start)
{
	struct tg_device *tg = file->tg;
	u32 context;
	int err;

	mutex_lock(&tg->lock);
	err = -EBUSY;
	context = find_next_zero_bit(tg->contexts_used, tg->contexts, start);
	if (context < tg->contexts)
		err = tg_charge(file, TG_RESOURCE_CONTEXTS, 0, 1);
	if (!err) {
		__set_bit(context, tg->contexts_used);
		/* It has no events yet; it counts among those of its process. */
		tg_context_assign(tg, context, file);
	}
	mutex_unlock(&tg->lock);
	return err ? err : context;
}

/* Mirror of tg_context_take(); @number: others may take the number. */
static void tg_context_free(struct tg_file *file, u32 context, bool number)
{
	struct tg_device *tg = file->tg;

	mutex_lock(&tg->lock);
	if (tg->files[context] == file)
		tg_context_assign(tg, context, NULL);
	if (number)
		__clear_bit(context, tg->contexts_used);
	tg_uncharge(file, TG_RESOURCE_CONTEXTS, 0, 1);
	mutex_unlock(&tg->lock);
}

/* Opens a context with the file's status page. */
static int tg_context_open(struct tg_device *tg, struct tg_file *file)
{
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_CONTEXT_OPEN),
		.command.address = cpu_to_le64(file->status->chunk[0].dma),
		.command.key = cpu_to_le64(file->key),
	};
	struct tg_admin_result result;
	int context, err;
	u32 start = 0;

	do {
		context = tg_context_take(file, start);
		if (context < 0)
			return context;
		request.command.context = cpu_to_le16(context);
		file->context = context;
		err = tg_admin(tg, file, TG_ADMIN_QUICK, &request, &result);
		if (err) {
			tg_context_free(file, context, true);
			return err;
		}
		start = context + 1;
		if (result.status != TG_OK)
			/* A driver before this one may have left it: it stays taken. */
			tg_context_free(file, context, result.status != TG_ERR_BUSY);
	} while (result.status == TG_ERR_BUSY);
	return tg_status_to_errno(result.status);
}

static void tg_file_release(struct kref *ref)
{
	struct tg_file *file = container_of(ref, struct tg_file, ref);
	struct tg_device *tg = file->tg;

	tg_account_close(file);
	if (file->nowhere)
		__free_page(file->nowhere);
	kfree_sensitive(file);
	put_device(&tg->dev);
	if (atomic_dec_and_test(&tg_files))
		wake_up_all(&tg_files_gone);
}

static void tg_file_work(struct work_struct *work)
{
	struct tg_file *file = container_of(work, struct tg_file, work);
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_CONTEXT_CLOSE),
		.command.context = cpu_to_le16(file->context),
	};
	struct tg_device *tg = file->tg;

	/* The last works, which have ended its objects, are about to return. */
	tg_jobs_drain(file);
	down_read(&tg->op_lock);
	/* Otherwise the page and the number stay until the board is removed. */
	if (!tg_gone(tg) && !tg_admin_checked(tg, file, TG_ADMIN_QUICK, &request, NULL)) {
		tg_memory_free(tg, file->status);
		tg_context_free(file, file->context, true);
	}
	up_read(&tg->op_lock);
	complete_all(&file->closed);
	kref_put(&file->ref, tg_file_release);
}

/**
 * tg_file_open() - makes a file and its context on the board
 * @tg: Board. The caller holds no lock, and a reference.
 * @ops: Of a file that the kernel opens for itself: callbacks for its events, from now on. Else
 *	NULL.
 * @private: For these.
 *
 * Return: The file, or an error pointer.
 */
struct tg_file *tg_file_open(struct tg_device *tg, const struct tg_client_ops *ops, void *private)
{
	struct tg_file *file;
	int err;

	file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	if (!file)
		return ERR_PTR(-ENOMEM);
	file->tg = tg;
	file->ops = ops;
	file->private = private;
	file->kernel = ops || tg_lab_opens_for_kernel();
	refcount_set(&file->users, 1);
	kref_init(&file->ref);
	INIT_WORK(&file->work, tg_file_work);
	init_completion(&file->closed);
	init_waitqueue_head(&file->wait);
	init_waitqueue_head(&file->calm);
	tg_jobs_open(file);
	/* A predictable key protects nothing: early in boot this waits. */
	err = get_random_bytes_wait(&file->key, sizeof(file->key));
	if (err)
		goto err_free;
	file->key &= TG_KEY_MASK;
	err = tg_account_open(file);
	if (err)
		goto err_free;
	down_read(&tg->op_lock);
	err = -ENODEV;
	if (tg_gone(tg))
		goto err_unlock;
	file->status = tg_memory_new(tg, PAGE_SIZE, 1, NULL);
	err = PTR_ERR_OR_ZERO(file->status);
	if (err)
		goto err_unlock;
	err = tg_context_open(tg, file);
	if (err == -ENODEV)
		/* The board may know the page: it stays until remove(). */
		goto err_unlock;
	if (err)
		goto err_status;
	tg_device_watch(tg);
	up_read(&tg->op_lock);

	atomic_inc(&tg_files);
	get_device(&tg->dev);
	return file;

err_status:
	tg_memory_free(tg, file->status);
err_unlock:
	up_read(&tg->op_lock);
	tg_account_close(file);
err_free:
	kfree_sensitive(file);
	return ERR_PTR(err);
}

/**
 * tg_file_close() - mirror of tg_file_open()
 * @file: File, which gets no more events, and of which nothing is mapped.
 *
 * Waits for a while for the board to release what the file has; workers do the rest.
 */
void tg_file_close(struct tg_file *file)
{
	unsigned long end = jiffies + TG_CLOSE_PATIENCE;
	unsigned long now;

	/* Its context's events are delivered to it no more. */
	mutex_lock(&file->tg->lock);
	tg_context_assign(file->tg, file->context, NULL);
	mutex_unlock(&file->tg->lock);
	if (file->notify)
		eventfd_ctx_put(file->notify);
	/* Nor those of imports that the board does not release. */
	down_write(&file->tg->map_lock);
	file->ops = NULL;
	up_write(&file->tg->map_lock);
	tg_file_close_objects(file, end);
	kref_get(&file->ref);
	tg_file_put(file);
	/* So that the file's resources are free for others when close() returns. */
	now = jiffies;
	if (time_before(now, end))
		wait_for_completion_timeout(&file->closed, end - now);
	kref_put(&file->ref, tg_file_release);
}

static int tg_open(struct inode *inode, struct file *filp)
{
	struct tg_device *tg = container_of(inode->i_cdev, struct tg_device, cdev);
	struct tg_file *file = tg_file_open(tg, NULL, NULL);

	if (IS_ERR(file))
		return PTR_ERR(file);
	filp->private_data = file;
	/* One address space for all, see struct tg_device. */
	filp->f_mapping = tg->mapping_inode->i_mapping;
	return nonseekable_open(inode, filp);
}

static int tg_release(struct inode *inode, struct file *filp)
{
	tg_file_close(filp->private_data);
	return 0;
}

/*
 * The number of CONTEXT events since the last read(), as one u64. Waits for the
 * first.
 */
static ssize_t tg_read(struct file *filp, char __user *user, size_t size, loff_t *pos)
{
	struct tg_file *file = filp->private_data;
	struct tg_device *tg = file->tg;
	u64 events;
	int err;

	if (size < sizeof(events))
		return -EINVAL;
	for (;;) {
		events = atomic64_xchg(&file->events, 0);
		if (events)
			break;
		if (tg_gone(tg))
			return -ENODEV;
		if (filp->f_flags & O_NONBLOCK)
			return -EAGAIN;
		err = wait_event_interruptible(file->wait, tg_gone(tg) ||
					       atomic64_read(&file->events));
		if (err)
			return err;
	}
	if (copy_to_user(user, &events, sizeof(events))) {
		atomic64_add(events, &file->events);
		return -EFAULT;
	}
	return sizeof(events);
}

/*
 * POLLIN: there were CONTEXT events since the last read(). POLLPRI, POLLERR: an
 * import has an alert. POLLHUP with these: the board is gone.
 */
static __poll_t tg_poll(struct file *filp, struct poll_table_struct *table)
{
	struct tg_file *file = filp->private_data;
	struct tg_device *tg = file->tg;
	__poll_t events = 0;

	poll_wait(filp, &file->wait, table);
	if (atomic64_read(&file->events))
		events |= EPOLLIN | EPOLLRDNORM;
	down_read(&tg->map_lock);
	if (file->alerts)
		events |= EPOLLPRI | EPOLLERR;
	if (tg_gone(tg))
		events |= EPOLLPRI | EPOLLERR | EPOLLHUP;
	up_read(&tg->map_lock);
	return events;
}

const struct file_operations tg_fops = {
	.owner = THIS_MODULE,
	.open = tg_open,
	.release = tg_release,
	.mmap = tg_mmap,
	/* So that huge pages of direct memory can be mapped as such. */
	.get_unmapped_area = thp_get_unmapped_area,
	.read = tg_read,
	.poll = tg_poll,
	.unlocked_ioctl = tg_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
