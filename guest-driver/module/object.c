// SPDX-License-Identifier: GPL-2.0
/*
 * Objects: exports, imports, queues, replicated segments and registrations.
 *
 * An object exists from its creation to the end of its teardown, which a worker
 * does: it waits as long as the board has operations in flight, while the process that
 * closed the object may be killed. The resources of the object (memory, pages, slots, its
 * number) are reused only after the board has confirmed that it has released them. A file's
 * context closes after its last object.
 *
 * A replicated segment and a registration have an import of their own, an object like any
 * other but that it is closed and torn down with them alone.
 */
#include <linux/nospec.h>
#include <linux/slab.h>

#include "call.h"
#include "driver.h"

static void tg_object_release(struct kref *ref)
{
	struct tg_object *obj = container_of(ref, struct tg_object, ref);
	struct tg_device *tg = obj->tg;

	obj->ops->free(obj);
	put_device(&tg->dev);
}

/**
 * tg_object_put() - drops a reference
 * @obj: Object.
 */
void tg_object_put(struct tg_object *obj)
{
	kref_put(&obj->ref, tg_object_release);
}

static void tg_object_uncharge(struct tg_object *obj)
{
	if (!obj->ops->charged)
		return;
	mutex_lock(&obj->tg->lock);
	tg_uncharge(obj->file, TG_RESOURCE_IMPORTS, 0, 1);
	mutex_unlock(&obj->tg->lock);
}

/**
 * tg_object_end() - removes an object from the board and from its table
 * @obj: Object, closed, whose work has ended. The caller does not hold op_lock.
 */
void tg_object_end(struct tg_object *obj)
{
	struct tg_file *file = obj->file;
	struct tg_device *tg = obj->tg;
	struct xarray *table = &tg->objects[obj->kind];
	bool left;

	down_read(&tg->op_lock);
	left = obj->ops->leave(obj);
	/* Between the end of the board's use and its removal: that has the board forget it. */
	if (!left && !tg->stopped) {
		kref_get(&obj->ref);
		mutex_lock(&tg->lock);
		list_add(&obj->remains, &tg->remains);
		mutex_unlock(&tg->lock);
	}
	up_read(&tg->op_lock);

	down_write(&tg->map_lock);
	if (obj->ops->unwatch)
		obj->ops->unwatch(obj);
	if (left)
		xa_erase(table, obj->handle);
	else
		/* The board may still use the number: it stays taken. */
		xa_store(table, obj->handle, NULL, 0);
	up_write(&tg->map_lock);
	if (left)
		tg_object_uncharge(obj);
	if (obj->ops->left)
		obj->ops->left(obj);

	complete_all(&obj->torn_down);
	tg_object_put(obj);
	tg_file_put(file);
}

/**
 * tg_objects_forget() - drops the objects that were torn down without the board
 * @tg: Board, stopped.
 */
void tg_objects_forget(struct tg_device *tg)
{
	struct tg_object *obj, *next;

	/* Nothing is added any more. */
	list_for_each_entry_safe(obj, next, &tg->remains, remains) {
		list_del_init(&obj->remains);
		tg_object_put(obj);
	}
}

static void tg_object_teardown(struct tg_job *job)
{
	struct tg_object *obj = container_of(job, struct tg_object, teardown);

	/* Not under op_lock, which its works need. */
	if (obj->ops->end)
		obj->ops->end(obj);
	tg_object_end(obj);
}

/**
 * tg_object_init() - enters an object into the table of its kind
 * @obj: Zeroed object, ready to be freed by its kind's method, as happens if this fails.
 * @file: File that makes it.
 * @ops: Methods of its kind.
 * @limit: Upper bound of its handle, exclusive.
 *
 * Return: 0 or a negative errno.
 */
int tg_object_init(struct tg_object *obj, struct tg_file *file,
		   const struct tg_object_ops *ops, u32 limit)
{
	struct tg_device *tg = file->tg;
	int err;

	kref_init(&obj->ref);
	obj->file = file;
	obj->tg = tg;
	obj->kind = ops->kind;
	obj->ops = ops;
	tg_job_init(&obj->teardown, file, tg_object_teardown);
	INIT_LIST_HEAD(&obj->closing);
	INIT_LIST_HEAD(&obj->remains);
	init_completion(&obj->torn_down);

	if (ops->charged) {
		mutex_lock(&tg->lock);
		err = tg_charge(file, TG_RESOURCE_IMPORTS, 0, 1);
		mutex_unlock(&tg->lock);
		if (err)
			goto err_free;
	}
	down_write(&tg->map_lock);
	err = xa_alloc(&tg->objects[ops->kind], &obj->handle, obj, XA_LIMIT(0, limit - 1),
		       GFP_KERNEL_ACCOUNT);
	up_write(&tg->map_lock);
	if (err) {
		tg_object_uncharge(obj);
		goto err_free;
	}
	refcount_inc(&file->users);
	get_device(&tg->dev);
	return 0;

err_free:
	ops->free(obj);
	return err == -EBUSY ? -ENOSPC : err;
}

/**
 * tg_object_publish() - lets the process name a finished object
 * @obj: Object.
 */
void tg_object_publish(struct tg_object *obj)
{
	down_write(&obj->tg->map_lock);
	if (obj->ops->publish)
		obj->ops->publish(obj);
	obj->open = true;
	up_write(&obj->tg->map_lock);
}

/**
 * tg_object_find() - an object of a file
 * @file: File.
 * @kind: TG_MMAP_EXPORT, _IMPORT, _QUEUE, _REPLICA or _REGISTRATION.
 * @handle: Its handle.
 *
 * Return: The object, to be put, or NULL if the file has no such object.
 */
struct tg_object *tg_object_find(struct tg_file *file, u32 kind, u32 handle)
{
	struct tg_object *obj;

	/* Of mmap() it is a part of the offset. */
	kind = array_index_nospec(kind, TG_OBJECT_KINDS);
	down_read(&file->tg->map_lock);
	obj = tg_object_named(file, kind, handle);
	if (obj)
		kref_get(&obj->ref);
	up_read(&file->tg->map_lock);
	return obj;
}

/**
 * tg_object_kill_locked() - closes an object and zaps its mappings
 * @obj: Object. The caller holds map_lock for writing.
 */
void tg_object_kill_locked(struct tg_object *obj)
{
	lockdep_assert_held_write(&obj->tg->map_lock);
	obj->open = false;
	obj->dead = true;
	if (obj->ops->quiet)
		obj->ops->quiet(obj);
	tg_zap(obj);
}

static void tg_object_tear_down(struct tg_object *obj)
{
	tg_job_queue(&obj->teardown);
}

/**
 * tg_object_discard() - tears down an object that was never published
 * @obj: Object, whose creation failed at any point after tg_object_init().
 *
 * Waits, killably, until the board has released it. The caller holds no lock.
 */
void tg_object_discard(struct tg_object *obj)
{
	struct tg_device *tg = obj->tg;

	kref_get(&obj->ref);
	down_write(&tg->map_lock);
	tg_object_kill_locked(obj);
	up_write(&tg->map_lock);
	tg_object_tear_down(obj);
	/* If this is killed, the worker continues. */
	wait_for_completion_killable(&obj->torn_down);
	tg_object_put(obj);
}

/* Closes an object that is not a part of another, and begins its teardown. */
static int tg_object_begin_close(struct tg_object *obj)
{
	struct tg_device *tg = obj->tg;
	int err = 0;

	down_write(&tg->map_lock);
	if (!obj->open)
		err = -EBADF;
	else if (obj->part)
		err = -EBUSY;
	else
		tg_object_kill_locked(obj);
	up_write(&tg->map_lock);
	if (!err)
		tg_object_tear_down(obj);
	return err;
}

/**
 * tg_object_close() - tears down an object
 * @call: The call, on the object.
 *
 * Its mappings are zapped at once. Waits, killably, until the board has released it.
 *
 * Return: 0; -EBADF if it has been closed meanwhile; -EBUSY for the own import of a
 * replicated segment; -EINTR if killed.
 */
int tg_object_close(struct tg_call *call)
{
	int err = tg_object_begin_close(call->obj);

	if (err)
		return err;
	return wait_for_completion_killable(&call->obj->torn_down) ? -EINTR : 0;
}

/**
 * tg_object_close_within() - tears down an object, in the background if that takes long
 * @obj: Object, of a file of the kernel.
 * @patience: How long to wait until the board has released it, in jiffies.
 */
void tg_object_close_within(struct tg_object *obj, unsigned long patience)
{
	if (!tg_object_begin_close(obj))
		wait_for_completion_timeout(&obj->torn_down, patience);
}

static void tg_file_collect(struct tg_file *file, u32 kind, struct list_head *list)
{
	struct tg_object *obj;
	unsigned long handle;

	xa_for_each(&file->tg->objects[kind], handle, obj) {
		if (obj->file != file || !obj->open || obj->part)
			continue;
		kref_get(&obj->ref);
		tg_object_kill_locked(obj);
		list_add_tail(&obj->closing, list);
	}
}

/**
 * tg_file_close_objects() - tears down all objects of a file
 * @file: File that no process has open any more.
 * @end: How long to wait for the board to release them, in jiffies; workers do the rest.
 */
void tg_file_close_objects(struct tg_file *file, unsigned long end)
{
	struct tg_device *tg = file->tg;
	struct tg_object *obj, *next;
	LIST_HEAD(closing);

	down_write(&tg->map_lock);
	tg_file_collect(file, TG_MMAP_IMPORT, &closing);
	tg_file_collect(file, TG_MMAP_EXPORT, &closing);
	tg_file_collect(file, TG_MMAP_QUEUE, &closing);
	tg_file_collect(file, TG_MMAP_REPLICA, &closing);
	tg_file_collect(file, TG_MMAP_REGISTRATION, &closing);
	up_write(&tg->map_lock);

	list_for_each_entry(obj, &closing, closing)
		tg_object_tear_down(obj);
	list_for_each_entry_safe(obj, next, &closing, closing) {
		unsigned long now = jiffies;

		if (time_before(now, end))
			wait_for_completion_timeout(&obj->torn_down, end - now);
		list_del(&obj->closing);
		tg_object_put(obj);
	}
}
