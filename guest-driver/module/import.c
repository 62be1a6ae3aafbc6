// SPDX-License-Identifier: GPL-2.0
/*
 * Remote segments: other nodes' memory, mapped through the window. An own import is one of
 * this node's own pages of a replicated segment, see replica.c.
 */
#include <linux/delay.h>
#include <linux/nospec.h>
#include <linux/poll.h>
#include <linux/slab.h>

#include "call.h"
#include "driver.h"

/* Numbers the context page can name; the last means the whole context. */
#define TG_REMOTE_LIMIT TG_CONTEXT_QUIET_ALL

static const struct tg_object_ops tg_remote_ops;

static int tg_remote_take_slots(struct tg_device *tg, struct tg_remote *remote, u32 count)
{
	unsigned long *used, slot;
	int err;

	mutex_lock(&tg->lock);
	used = tg->slots_used[remote->node];
	if (!used) {
		used = bitmap_zalloc(tg->slots, GFP_KERNEL);
		tg->slots_used[remote->node] = used;
	}
	if (!used) {
		mutex_unlock(&tg->lock);
		return -ENOMEM;
	}
	err = -ENOSPC;
	slot = bitmap_find_next_zero_area(used, tg->slots, 0, count, 0);
	if (slot < tg->slots)
		err = tg_charge(remote->obj.file, TG_RESOURCE_SLOTS, remote->node, count);
	if (!err) {
		bitmap_set(used, slot, count);
		remote->slot = slot;
		remote->count = count;
	}
	mutex_unlock(&tg->lock);
	return err;
}

/**
 * tg_remote_lookup() - looks a name up at a node
 * @file: File that looks it up. The caller holds op_lock for reading.
 * @arg: Name, secret, node and rights. Its status is filled in if the board has completed
 *	the command.
 * @accepted: Lengths that the file accepts; or NULL: any.
 * @result: The segment, checked: nothing has been made for it.
 *
 * Return: 0 or a negative errno; -EMSGSIZE for a length that is not accepted.
 */
int tg_remote_lookup(struct tg_file *file, struct tg_import *arg, const struct tg_lengths *accepted,
		     struct tg_admin_result *result)
{
	struct tg_device *tg = file->tg;
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_LOOKUP),
		.command.node = cpu_to_le16(arg->node),
		.command.rights = cpu_to_le16(arg->rights),
		.command.uid = cpu_to_le32(tg_file_uid(file)),
	};
	int err;

	memcpy(request.command.secret, arg->secret, sizeof(request.command.secret));
	memcpy(request.command.name, arg->name, sizeof(request.command.name));
	err = tg_admin(tg, file, TG_ADMIN_REMOTE, &request, result);
	if (err)
		return err;
	arg->status = result->status;
	if (result->status != TG_OK)
		return tg_status_to_errno(result->status);
	if ((result->rights & arg->rights) != arg->rights) {
		arg->status = TG_ERR_RIGHTS;
		return tg_status_to_errno(TG_ERR_RIGHTS);
	}
	if (!result->length || result->length > (u64)TG_RANGE_UNITS << TG_UNIT_SHIFT ||
	    result->count != DIV_ROUND_UP(result->length, TG_UNIT)) {
		dev_err_ratelimited(&tg->dev, "node %u answered for \"%*pE\" with %llu bytes in %u pages: expected 1 to %llu bytes in pages of %lu\n",
				    arg->node, tg_name_length(arg->name), arg->name, result->length, result->count,
				    (u64)TG_RANGE_UNITS << TG_UNIT_SHIFT, TG_UNIT);
		return -EPROTO;
	}
	if (result->width && result->width != 4 && result->width != 8) {
		dev_err_ratelimited(&tg->dev, "node %u answered for \"%*pE\" with queue words of %u bytes: expected 4 or 8, or 0 for memory\n",
				    arg->node, tg_name_length(arg->name), arg->name, result->width);
		return -EPROTO;
	}
	if (accepted && (result->length < accepted->least || result->length > accepted->most)) {
		dev_notice_ratelimited(&tg->dev, "node %u answered for \"%*pE\" with %llu bytes: expected %llu to %llu\n",
				       arg->node, tg_name_length(arg->name), arg->name, result->length,
				       accepted->least, accepted->most);
		return -EMSGSIZE;
	}
	return 0;
}

/* Has the board open an import, whose slots are reserved. */
static int tg_remote_set(struct tg_remote *remote, u64 generation, u32 *status)
{
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_IMPORT_SET),
		.command.node = cpu_to_le16(remote->node),
		.command.context = cpu_to_le16(remote->obj.file->context),
		.command.import = cpu_to_le16(remote->obj.handle),
		.command.rights = cpu_to_le16(remote->rights),
		.command.index = cpu_to_le32(remote->slot),
		.command.count = cpu_to_le32(remote->count),
		.command.page = cpu_to_le32(remote->page),
		.command.taken = cpu_to_le32(remote->taken),
		.command.generation = cpu_to_le64(generation),
		.command.length = cpu_to_le64(remote->obj.size),
	};
	struct tg_admin_result result;
	enum tg_admin_class class;
	int err;

	/* The import of a queue first reserves receive credits at its node. */
	class = remote->rights & TG_RIGHT_ENQUEUE ? TG_ADMIN_REMOTE : TG_ADMIN_QUICK;
	err = tg_admin(remote->obj.tg, remote->obj.file, class, &request, &result);
	if (err) {
		/* Killed: the board may still open it. */
		remote->set = true;
		return err;
	}
	remote->set = result.status == TG_OK;
	*status = result.status;
	return tg_status_to_errno(result.status);
}

/* An import that is not open at the board yet, or an error pointer. */
static struct tg_remote *tg_remote_new(struct tg_file *file, u32 node, u32 rights,
				       u32 page, u64 size)
{
	struct tg_remote *remote;
	int err;

	remote = kzalloc(sizeof(*remote), GFP_KERNEL_ACCOUNT);
	if (!remote)
		return ERR_PTR(-ENOMEM);
	/* Before the object is in the table, where events find it. */
	init_waitqueue_head(&remote->wait);
	remote->node = node;
	remote->rights = rights;
	remote->page = page;
	remote->obj.size = size;
	err = tg_object_init(&remote->obj, file, &tg_remote_ops,
			     min_t(u32, file->tg->import_limit, TG_REMOTE_LIMIT));
	return err ? ERR_PTR(err) : remote;
}

/* Its windows will lead to a page of the file when it is gone: 0 or -ENOMEM. */
static int tg_remote_soften(struct tg_remote *remote)
{
	int err = tg_file_soften(remote->obj.file);

	if (!err)
		remote->soft = true;
	return err;
}

/**
 * tg_remote_create() - TG_IOCTL_IMPORT: imports a segment
 * @call: The call, of the file that imports. The caller holds op_lock for reading, and the
 *	board is not gone. On failure its status is the board's, if the board has refused.
 *
 * Return: 0 or a negative errno.
 */
int tg_remote_create(struct tg_call *call)
{
	struct tg_import *arg = &call->arg.import;
	struct tg_file *file = call->file;
	struct tg_device *tg = file->tg;
	struct tg_admin_result found;
	struct tg_remote *remote;
	bool window;
	int err;

	arg->status = TG_OK;
	arg->width = 0;
	if (!arg->rights || arg->rights & ~TG_RIGHTS_ALL)
		return -EINVAL;
	/* A queue's senders reach nothing but its enqueue aperture (E14). */
	if (arg->rights & TG_RIGHT_ENQUEUE && arg->rights != TG_RIGHT_ENQUEUE)
		return -EINVAL;
	if (arg->node >= tg->nodes) {
		arg->status = TG_ERR_BAD_NODE;
		return -EINVAL;
	}
	/* It is an index of slots_used from here on. */
	arg->node = array_index_nospec(arg->node, tg->nodes);
	err = tg_remote_lookup(file, arg, call->accepted, &found);
	if (err)
		return err;

	arg->width = found.width;
	remote = tg_remote_new(file, arg->node, arg->rights, found.index, found.length);
	if (IS_ERR(remote))
		return PTR_ERR(remote);
	call->created = &remote->obj;
	err = arg->flags & TG_IMPORT_SOFT ? tg_remote_soften(remote) : 0;
	if (err)
		return err;
	/* Longer than the window of its node: launches name it by its number. */
	window = found.length <= 1ULL << tg->offset_bits;
	err = window ? tg_remote_take_slots(tg, remote, found.count) : 0;
	if (!err)
		err = tg_remote_set(remote, found.generation, &arg->status);
	if (err)
		return err;
	remote->generation = found.generation;
	if (window)
		tg_direct_import(remote);
	arg->length = remote->obj.size;
	arg->handle = remote->obj.handle;
	arg->offset = !window ? 0 : tg_mmap_offset(arg->rights == TG_RIGHT_ENQUEUE ? TG_MMAP_ENQUEUE :
				     TG_MMAP_IMPORT, arg->handle);
	return 0;
}

/* Reserves a word of the file's status page: 0 or -ENOSPC. */
static int tg_remote_take_word(struct tg_remote *remote)
{
	struct tg_file *file = remote->obj.file;
	struct tg_device *tg = file->tg;
	unsigned long word;

	mutex_lock(&tg->lock);
	word = find_first_zero_bit(file->taken_used, TG_TAKEN_WORDS);
	if (word < TG_TAKEN_WORDS) {
		__set_bit(word, file->taken_used);
		remote->taken = 1 + word;
	}
	mutex_unlock(&tg->lock);
	return remote->taken ? 0 : -ENOSPC;
}

/**
 * tg_remote_create_own() - makes an own import, which is not open at the board yet
 * @segment: Segment of the pages. The caller holds op_lock for reading.
 * @rights: TG_RIGHT_* of its window.
 * @created: The import, also if this fails midway; NULL if there is nothing to
 *	tear down.
 *
 * Return: 0 or a negative errno.
 */
int tg_remote_create_own(const struct tg_segment *segment, u32 rights,
			 struct tg_remote **created)
{
	const struct tg_object *obj = &segment->obj;
	struct tg_remote *remote;
	int err;

	*created = NULL;
	remote = tg_remote_new(obj->file, obj->tg->node, rights, segment->first, obj->size);
	if (IS_ERR(remote))
		return PTR_ERR(remote);
	*created = remote;
	remote->obj.part = true;
	err = tg_remote_take_word(remote);
	if (err)
		return err;
	return tg_remote_take_slots(obj->tg, remote, segment->count);
}

/**
 * tg_remote_open_own() - has the board open an own import
 * @remote: Own import that is not open. The caller holds op_lock for reading.
 * @generation: Of the grant of its pages.
 * @status: The board's status, filled in if it has completed the command.
 *
 * Its stores are counted from 0.
 *
 * Return: 0 or a negative errno.
 */
int tg_remote_open_own(struct tg_remote *remote, u64 generation, u32 *status)
{
	struct tg_status_page *page = page_address(remote->obj.file->status->chunk[0].page);

	WRITE_ONCE(page->taken[remote->taken - 1], 0);
	return tg_remote_set(remote, generation, status);
}

/**
 * tg_remote_create_local() - makes the import of a registration, not open at the board yet
 * @segment: Segment of the registration. The caller holds op_lock for reading.
 * @rights: TG_RIGHT_* of it.
 *
 * It has no window: the process has the memory.
 *
 * Return: The import, or an error pointer.
 */
struct tg_remote *tg_remote_create_local(const struct tg_segment *segment, u32 rights)
{
	const struct tg_object *obj = &segment->obj;
	struct tg_remote *remote;

	remote = tg_remote_new(obj->file, obj->tg->node, rights, segment->first, obj->size);
	if (!IS_ERR(remote))
		remote->obj.part = true;
	return remote;
}

/**
 * tg_remote_open_local() - has the board open the import of a registration
 * @remote: Import that is not open. The caller holds op_lock for reading.
 * @generation: Of the grant of the memory.
 * @status: The board's status, filled in if it has completed the command.
 *
 * Return: 0 or a negative errno.
 */
int tg_remote_open_local(struct tg_remote *remote, u64 generation, u32 *status)
{
	return tg_remote_set(remote, generation, status);
}

/*
 * Has the board close an import. If the caller of its IMPORT_SET was killed, that command may
 * still be in progress: then the import is closed once it is open, or was never opened.
 */
static bool tg_remote_clear(struct tg_remote *remote)
{
	union tg_request clear = {
		.command.opcode = cpu_to_le32(TG_ADMIN_IMPORT_CLEAR),
		.command.import = cpu_to_le16(remote->obj.handle),
	};
	unsigned long end = jiffies + TG_JOIN_PATIENCE;
	struct tg_device *tg = remote->obj.tg;
	struct tg_admin_result result;

	for (;;) {
		/* The board waits for the node no longer than its --answer-limit-ms. */
		if (tg_admin(tg, remote->obj.file, TG_ADMIN_DRAIN, &clear, &result))
			return false;
		switch (result.status) {
		case TG_OK:
		case TG_ERR_INVALID:
			return true;
		case TG_ERR_BUSY:
			if (time_after(jiffies, end))
				return false;
			msleep(TG_CLEAR_AGAIN);
			break;
		default:
			return false;
		}
	}
}

/**
 * tg_remote_close_own() - has the board close an own import, which may be opened again
 * @remote: Own import, mapped nowhere. The caller holds op_lock for reading.
 *
 * Waits until none of its stores is outstanding.
 *
 * Return: 0 or -EIO if the board does not close it.
 */
int tg_remote_close_own(struct tg_remote *remote)
{
	if (remote->set && !tg_remote_clear(remote))
		return -EIO;
	remote->set = false;
	return 0;
}

static bool tg_remote_leave(struct tg_object *obj)
{
	struct tg_remote *remote = tg_remote_of(obj);
	struct tg_device *tg = obj->tg;

	tg_counters_end(remote);
	down_write(&tg->map_lock);
	tg_direct_leave(remote);
	up_write(&tg->map_lock);
	if (tg_gone(tg))
		return false;
	if (remote->set && !tg_remote_clear(remote))
		return false;
	mutex_lock(&tg->lock);
	if (remote->count) {
		bitmap_clear(tg->slots_used[remote->node], remote->slot, remote->count);
		tg_uncharge(remote->obj.file, TG_RESOURCE_SLOTS, remote->node,
				   remote->count);
	}
	if (remote->taken)
		__clear_bit(remote->taken - 1, remote->obj.file->taken_used);
	mutex_unlock(&tg->lock);
	return true;
}

/* Tells the kernel's own user of the import that its state has changed. */
static void tg_remote_tell(struct tg_remote *remote)
{
	struct tg_file *file = remote->obj.file;

	if (file->ops)
		file->ops->changed(file);
}

/* Makes poll() report the import. */
static void tg_remote_alert(struct tg_remote *remote)
{
	lockdep_assert_held_write(&remote->obj.tg->map_lock);
	if (!remote->alert) {
		remote->alert = true;
		remote->obj.file->alerts++;
	}
	wake_up_interruptible_poll(&remote->obj.file->wait, EPOLLPRI | EPOLLERR);
}

static void tg_remote_unalert(struct tg_remote *remote)
{
	lockdep_assert_held_write(&remote->obj.tg->map_lock);
	if (remote->alert) {
		remote->alert = false;
		remote->obj.file->alerts--;
	}
}

/* It is closed: wakes all waiters, and poll() does not report it any more. */
static void tg_remote_quiet(struct tg_object *obj)
{
	struct tg_remote *remote = tg_remote_of(obj);

	tg_remote_unalert(remote);
	wake_up_all(&remote->wait);
}

static void tg_remote_free(struct tg_object *obj)
{
	kfree(tg_remote_of(obj));
}

static const struct tg_object_ops tg_remote_ops = {
	.kind = TG_MMAP_IMPORT,
	.charged = true,
	.quiet = tg_remote_quiet,
	.leave = tg_remote_leave,
	.free = tg_remote_free,
};

static bool tg_status_is_fatal(u32 status)
{
	switch (status) {
	case TG_ERR_STALE:
	case TG_ERR_NOT_GRANTED:
	case TG_ERR_NODE_DOWN:
	case TG_ERR_LINK_DOWN:
	case TG_ERR_RESET:
	case TG_ERR_BAD_KEY:
	case TG_ERR_QUEUE_HEADER:
		return true;
	default:
		return false;
	}
}

static void tg_remote_die(struct tg_remote *remote, u32 status)
{
	lockdep_assert_held_write(&remote->obj.tg->map_lock);
	if (remote->obj.dead)
		return;
	remote->obj.dead = true;
	remote->state |= TG_STATE_DEAD;
	if (!remote->status)
		remote->status = status;
	tg_zap(&remote->obj);
	tg_direct_leave(remote);
	wake_up_all(&remote->wait);
	tg_remote_alert(remote);
	tg_remote_tell(remote);
}

/**
 * tg_remote_stale() - the segment of an import is gone, as its owner says and not the board
 * @remote: Import. The caller holds map_lock for writing.
 */
void tg_remote_stale(struct tg_remote *remote)
{
	tg_remote_die(remote, TG_ERR_STALE);
}

/**
 * tg_remote_time_out() - a soft import has been congested for long: its owner takes nothing
 * @remote: Import. The caller holds no lock.
 */
void tg_remote_time_out(struct tg_remote *remote)
{
	struct tg_device *tg = remote->obj.tg;

	down_write(&tg->map_lock);
	if (remote->state & TG_STATE_CONGESTED)
		tg_remote_die(remote, TG_ERR_TIMEOUT);
	up_write(&tg->map_lock);
}

/**
 * tg_remote_orphan() - the pages of an own import have no home any more
 * @remote: Own import. The caller holds map_lock for writing.
 * @status: Why, TG_ERR_*.
 *
 * It is dead until it is revived, and poll() reports it, also if an event has killed the
 * import before.
 */
void tg_remote_orphan(struct tg_remote *remote, u32 status)
{
	tg_remote_die(remote, status);
	tg_remote_alert(remote);
}

/**
 * tg_remote_revive() - an own import is open again: its mappings fill again
 * @remote: Own import that was dead. The caller holds map_lock for writing.
 */
void tg_remote_revive(struct tg_remote *remote)
{
	remote->obj.dead = false;
	remote->state = 0;
	remote->status = TG_OK;
	tg_remote_unalert(remote);
}

/**
 * tg_remote_event() - the board reports the state of an import
 * @tg: Board.
 * @index: Number of the import.
 * @value: All of its present state: TG_IMPORT_* bits, latched status in bits
 *	31:16.
 */
void tg_remote_event(struct tg_device *tg, u32 index, u64 value)
{
	struct tg_remote *remote;
	struct tg_object *obj;
	u32 before;

	down_write(&tg->map_lock);
	obj = xa_load(&tg->objects[TG_MMAP_IMPORT], index);
	if (!obj || obj->dead)
		goto out;
	remote = tg_remote_of(obj);
	before = remote->state;
	remote->state = 0;
	if (value & TG_IMPORT_CONGESTED)
		remote->state |= TG_STATE_CONGESTED;
	if (value & TG_IMPORT_CUT)
		remote->state |= TG_STATE_CUT;
	remote->status = value >> 16 & 0xffff;

	if (tg_status_is_fatal(remote->status)) {
		tg_remote_die(remote, remote->status);
		goto out;
	}
	if (remote->state & ~before & TG_STATE_CONGESTED)
		tg_zap(obj);
	if (before & ~remote->state & TG_STATE_CONGESTED)
		wake_up_all(&remote->wait);
	if (remote->status || remote->state & TG_STATE_CUT)
		tg_remote_alert(remote);
	else
		tg_remote_unalert(remote);
	tg_remote_tell(remote);
out:
	up_write(&tg->map_lock);
}

/**
 * tg_remotes_down() - every import of a node is gone for good
 * @tg: Board.
 * @node: The node, or TG_ALL_NODES; this node does not depend on the fabric.
 * @status: Why, TG_ERR_*.
 */
void tg_remotes_down(struct tg_device *tg, u32 node, u32 status)
{
	struct tg_object *obj;
	unsigned long handle;

	down_write(&tg->map_lock);
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (remote->node != tg->node && (node == TG_ALL_NODES || remote->node == node))
			tg_remote_die(remote, status);
	}
	up_write(&tg->map_lock);
}

/**
 * tg_remotes_lost() - the board is gone: kills all imports and wakes their waiters
 * @tg: Board. The caller holds map_lock for writing.
 */
void tg_remotes_lost(struct tg_device *tg)
{
	struct tg_object *obj;
	unsigned long handle;

	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj)
		tg_remote_die(tg_remote_of(obj), TG_ERR_RESET);
}

/**
 * tg_remote_state() - TG_IOCTL_STATE
 * @call: The call, on the import, whose state is filled in.
 *
 * Return: 0.
 */
int tg_remote_state(struct tg_call *call)
{
	const struct tg_remote *remote = tg_remote_of(call->obj);
	struct tg_device *tg = call->file->tg;

	down_read(&tg->map_lock);
	call->arg.state.state = remote->state;
	if (remote->direct && !remote->trapped)
		call->arg.state.state |= TG_STATE_DIRECT;
	call->arg.state.status = remote->status;
	up_read(&tg->map_lock);
	return 0;
}

/**
 * tg_remote_ack() - TG_IOCTL_ACK
 * @call: The call, on the import. The caller holds op_lock for reading, and the board is not
 *	gone.
 *
 * The board reports the new state before the command's completion. A dead
 * import stays dead; only its alert is cleared.
 *
 * Return: 0 or a negative errno.
 */
int tg_remote_ack(struct tg_call *call)
{
	struct tg_object *obj = call->obj;
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_IMPORT_ACK),
		.command.import = cpu_to_le16(obj->handle),
	};
	struct tg_device *tg = obj->tg;
	bool dead;

	down_write(&tg->map_lock);
	dead = obj->dead;
	if (dead)
		tg_remote_unalert(tg_remote_of(obj));
	up_write(&tg->map_lock);
	return dead ? 0 : tg_admin_checked(tg, call->file, TG_ADMIN_QUICK, &request, NULL);
}
