// SPDX-License-Identifier: GPL-2.0
/*
 * Replicated segments of this node (SPEC items 23 to 27, E15 to E20, E22b): the home,
 * or a copy of one at another node. The boards keep the copies equal; this file starts and
 * ends the replication of pages.
 *
 * A replicated segment is a segment whose pages all nodes map read-only, and an import
 * of this node's own pages, through which its processes store. To them the import is
 * one like any other, with a number, a state and an argument aperture; it exists as long
 * as the segment. On the board both are set up by tg_replica_attach() and taken down by
 * tg_replica_detach() or, finally, by the teardown of the objects; always in the same
 * order:
 *
 *    grant, REPLICA_SET of each page, import, name
 *    import (its stores have arrived everywhere), name, REPLICA_CLEAR of each page, grant
 *
 * The grant of a copy admits the nodes that the copy is offered to, as that of a home does:
 * the copy may become the home at any time, and its grant is then already correct. Until
 * then it has no effect, since a board accepts nothing from others for a page whose home is
 * elsewhere.
 *
 * The home moves to a copy page by page, in order, while stores continue
 * (tg_replica_move()). Nothing is taken down or set up for that at any node but the name,
 * which the new home publishes, too; the board of the old one refuses joins. If it fails
 * midway, pages have different homes. That affects joins only, until some node has moved
 * all of them. Each page has its own home; the segment's home is that of its last page,
 * which is the last to move, so all nodes agree on it.
 *
 * An orphan, whose home has gone, is dead until it is adopted: its pages are taken out
 * of all page tables, and the status of its import has the reason. The board posts one event
 * per page; the whole segment is an orphan with the first of them. Since the home's state has
 * gone, too, it is detached to be adopted, and attached again; memory, export pages and the
 * number of the import stay, and with them mappings and offsets.
 *
 * The validity of pages is in replica_pages.c.
 *
 * Naively replicated pages (SPEC item 24) have no home: each node makes the segment and
 * joins those of all others, by one call per node on the same segment.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "call.h"
#include "driver.h"

static const struct tg_object_ops tg_replica_ops;

/* Sets the nodes of the grant: 0, or -EINVAL if this node has no bit. */
static int tg_replica_admit(const struct tg_replicated *replica, struct tg_export *grant)
{
	u32 node = replica->seg.obj.tg->node;

	memcpy(grant->nodes, replica->offer.nodes, sizeof(grant->nodes));
	if (!memchr_inv(grant->nodes, 0xff, sizeof(grant->nodes)))
		return 0;
	if (node / 64 >= ARRAY_SIZE(grant->nodes))
		return -EINVAL;
	/* The board checks its own stores like another node's. */
	grant->nodes[node / 64] |= BIT_ULL(node % 64);
	return 0;
}

/* The rights of the grant: those of this node's processes, and those that it offers. */
static u32 tg_replica_grants(const struct tg_replicated *replica)
{
	return replica->rights | replica->offer.rights_owner | replica->offer.rights_others;
}

static int tg_replica_grant(struct tg_replicated *replica)
{
	struct tg_export grant = {
		/* The board replicates whole pages. */
		.length = (u64)replica->seg.count << TG_UNIT_SHIFT,
		.rights_owner = tg_replica_grants(replica),
	};
	int err;

	err = tg_replica_admit(replica, &grant);
	if (err)
		return err;
	return tg_segment_grant(&replica->seg, &grant);
}

static int tg_replica_set(struct tg_replicated *replica, const struct tg_source *source,
			  u32 *status)
{
	u32 i;
	int err;

	for (i = 0; i < replica->seg.count; i++) {
		err = tg_replica_set_page(replica, source, i, status);
		if (err)
			return err;
	}
	return 0;
}

/*
 * Ends the replication of the pages at the board: a copy leaves its home, and the copies of
 * a home are orphans. The grant stays. 0, or a negative errno if the board is gone or the
 * caller was killed.
 */
static int tg_replica_clear(struct tg_replicated *replica)
{
	union tg_request clear = { .command.opcode = cpu_to_le32(TG_ADMIN_REPLICA_CLEAR) };
	struct tg_segment *segment = &replica->seg;
	unsigned long end = jiffies + TG_JOIN_PATIENCE;
	struct tg_admin_result result;
	int err;

	while (replica->set) {
		clear.command.index = cpu_to_le32(segment->first + replica->set - 1);
		err = tg_admin(segment->obj.tg, segment->obj.file, TG_ADMIN_DRAIN, &clear, &result);
		if (err)
			return err;
		/* The caller of its REPLICA_SET was killed: leaves once that has completed. */
		if (result.status == TG_ERR_BUSY && time_before(jiffies, end)) {
			msleep(TG_CLEAR_AGAIN);
			continue;
		}
		/* If it is not replicated, or does not leave, GRANT_CLEAR ends it. */
		replica->set--;
	}
	return 0;
}

/*
 * Sets a detached segment up at the board, as a copy of @source, or as the home if that is
 * NULL. On failure parts of it may be set up.
 */
static int tg_replica_attach(struct tg_replicated *replica, const struct tg_source *source,
			     u32 *status)
{
	struct tg_segment *segment = &replica->seg;
	struct tg_source here = {
		.node = segment->obj.tg->node,
		.page = segment->first,
	};
	int err;

	lockdep_assert_held(&replica->lock);
	err = tg_replica_grant(replica);
	if (err)
		return err;
	here.generation = segment->generation;
	replica->source = source ? *source : here;
	err = tg_replica_set(replica, &replica->source, status);
	if (err)
		return err;
	err = tg_remote_open_own(replica->own, segment->generation, status);
	if (err || source)
		return err;
	return tg_segment_announce(segment, &replica->offer);
}

/* Mirror of tg_replica_attach(), also if that has failed midway. Nothing is mapped. */
static int tg_replica_detach(struct tg_replicated *replica)
{
	int err;

	lockdep_assert_held(&replica->lock);
	err = tg_remote_close_own(replica->own);
	if (!err)
		err = tg_segment_withdraw(&replica->seg);
	if (!err)
		err = tg_replica_clear(replica);
	if (!err)
		err = tg_segment_revoke(&replica->seg);
	if (err)
		return err;
	/* So that no earlier event about these pages is taken for one after an adoption. */
	tg_events_consume(replica->seg.obj.tg);
	tg_replica_pages_forget(replica);
	return 0;
}

static int tg_replica_look_up(struct tg_file *file, struct tg_replica *arg, u32 rights,
			      const struct tg_lengths *accepted, struct tg_source *source,
			      u64 *size)
{
	struct tg_import wanted = {
		.node = arg->home,
		.rights = rights,
	};
	struct tg_admin_result found;
	int err;

	if (arg->home >= file->tg->nodes) {
		arg->status = TG_ERR_BAD_NODE;
		return -EINVAL;
	}
	/* A node has one copy, which is not its own. */
	if (arg->home == file->tg->node)
		return -EINVAL;
	memcpy(wanted.name, arg->name, sizeof(wanted.name));
	memcpy(wanted.secret, arg->secret, sizeof(wanted.secret));
	err = tg_remote_lookup(file, &wanted, accepted, &found);
	arg->status = wanted.status;
	if (err)
		return err;
	source->node = arg->home;
	source->page = found.index;
	source->generation = found.generation;
	*size = found.length;
	return 0;
}

/* Allocates the resources of a segment and its import; @replica is in the table already. */
static int tg_replica_allocate(struct tg_replicated *replica, u32 count)
{
	struct tg_segment *segment = &replica->seg;
	struct tg_device *tg = segment->obj.tg;
	struct tg_remote *own;
	int err;

	err = tg_segment_allocate(segment, count, NULL);
	if (!err)
		err = tg_segment_watch(segment);
	if (err)
		return err;
	err = tg_remote_create_own(segment, replica->rights, &own);
	if (!own)
		return err;
	/* Its teardown may precede the last use of the pointer. */
	kref_get(&own->obj.ref);
	down_write(&tg->map_lock);
	replica->own = own;
	up_write(&tg->map_lock);
	return err;
}

static void tg_replica_describe(const struct tg_replicated *replica, struct tg_replica *arg)
{
	const struct tg_object *obj = &replica->seg.obj;

	arg->length = obj->size;
	arg->handle = obj->handle;
	arg->offset = tg_mmap_offset(TG_MMAP_REPLICA, obj->handle);
	arg->import = replica->own->obj.handle;
	arg->window = tg_mmap_offset(TG_MMAP_REPLICA_WINDOW, arg->import);
	arg->taken = replica->own->taken - 1;
	arg->page = replica->seg.first + 1;
}

/* Makes the home, or a copy of @source, with the @rights of its processes. */
static int tg_replica_create(struct tg_call *call, u32 rights, const struct tg_source *source,
			     u64 size)
{
	struct tg_replica *arg = &call->arg.replica;
	struct tg_device *tg = call->file->tg;
	struct tg_replicated *replica;
	u32 count;
	int err;

	if (!size || size > 1ULL << tg->offset_bits)
		return -EINVAL;
	count = DIV_ROUND_UP(size, TG_UNIT);
	if (count > tg->export_pages)
		return -ENOSPC;
	replica = kzalloc(sizeof(*replica), GFP_KERNEL_ACCOUNT);
	if (!replica)
		return -ENOMEM;
	/* Before the object is in the table, where events find it. */
	mutex_init(&replica->lock);
	replica->mode = arg->mode;
	replica->rights = rights;
	err = tg_replica_pages_init(replica, call->file, count,
				    source ? source->node : TG_REPLICA_HERE);
	if (err) {
		kfree(replica);
		return err;
	}
	memcpy(replica->offer.secret, arg->secret, sizeof(replica->offer.secret));
	memcpy(replica->offer.nodes, arg->nodes, sizeof(replica->offer.nodes));
	replica->offer.length = size;
	replica->offer.rights_owner = arg->rights_owner;
	replica->offer.rights_others = arg->rights_others;
	err = tg_segment_init(&replica->seg, call->file, &tg_replica_ops, arg->name, size);
	if (err)
		return err;
	call->created = &replica->seg.obj;
	err = tg_replica_allocate(replica, count);
	if (err)
		return err;
	mutex_lock(&replica->lock);
	err = tg_replica_attach(replica, source, &arg->status);
	mutex_unlock(&replica->lock);
	if (!err)
		tg_replica_describe(replica, arg);
	return err;
}

/* Takes the lock, if processes can still name the segment: 0, -EBADF, -EINTR. */
static int tg_replica_begin(struct tg_replicated *replica, u32 *status)
{
	struct tg_object *obj = &replica->seg.obj;
	bool open;

	lockdep_assert_held(&obj->tg->op_lock);
	if (mutex_lock_killable(&replica->lock))
		return -EINTR;
	down_read(&obj->tg->map_lock);
	open = obj->open;
	*status = replica->status;
	up_read(&obj->tg->map_lock);
	if (open)
		return 0;
	mutex_unlock(&replica->lock);
	return -EBADF;
}

/* This file's naively replicated segment of that name, to be put, or NULL. */
static struct tg_replicated *tg_replica_find_naive(struct tg_file *file, const u8 *name)
{
	struct tg_replicated *found = NULL;
	struct tg_device *tg = file->tg;
	struct tg_object *obj;
	unsigned long handle;

	down_read(&tg->map_lock);
	xa_for_each(&tg->objects[TG_MMAP_REPLICA], handle, obj) {
		struct tg_replicated *replica = tg_replica_of(obj);

		if (obj->file == file && obj->open && replica->mode == TG_REPLICA_NAIVE &&
		    !memcmp(replica->seg.name, name, sizeof(replica->seg.name))) {
			kref_get(&obj->ref);
			found = replica;
			break;
		}
	}
	up_read(&tg->map_lock);
	return found;
}

/* Joins the pages of one more node to a naively replicated segment. */
static int tg_replica_join_naive(struct tg_file *file, struct tg_replica *arg)
{
	struct tg_replicated *replica = tg_replica_find_naive(file, arg->name);
	struct tg_source source;
	u32 orphaned;
	u64 size;
	int err;

	if (!replica)
		return -ENOENT;
	err = tg_replica_look_up(file, arg, replica->rights, NULL, &source, &size);
	if (err)
		goto out;
	err = -EMSGSIZE;
	if (size != replica->seg.obj.size)
		goto out;
	err = tg_replica_begin(replica, &orphaned);
	if (err)
		goto out;
	if (orphaned) {
		arg->status = orphaned;
		err = tg_status_to_errno(orphaned);
	} else {
		err = tg_replica_set(replica, &source, &arg->status);
	}
	mutex_unlock(&replica->lock);
	if (!err)
		tg_replica_describe(replica, arg);
out:
	tg_object_put(&replica->seg.obj);
	return err;
}

/**
 * tg_replicate() - TG_IOCTL_REPLICATE: makes or joins a replicated segment
 * @call: The call, of the file that makes it. The caller holds op_lock for reading, and the
 *	board is not gone. On failure its status is the board's, if the board has refused.
 *
 * A join requests the rights that it gives for its own uid, or, if it gives none, those to
 * load and to store; the rights that it gives are its offer if it becomes the home. Blocks,
 * killably, until the copy is filled.
 *
 * Return: 0; -EINVAL for a size, mode, home, right or field of an answer that is out of range;
 * -ENOENT for a naive join of a segment that this file has not made, or if that node has no
 * such segment; -EMSGSIZE for one of another size; -ENOSPC if pages, imports, window
 * slots, or the status page's words are used up; -ENOMEM; -EINTR if killed; -ENODEV
 * if the board is gone; or what tg_status_to_errno() makes of the call's status.
 */
int tg_replicate(struct tg_call *call)
{
	struct tg_replica *arg = &call->arg.replica;
	u32 rights = arg->rights_owner | arg->rights_others;
	struct tg_source source;
	u64 size;
	int err;

	arg->status = TG_OK;
	if (rights & ~TG_RIGHTS_REPLICA || arg->page ||
	    arg->mode < TG_REPLICA_NAIVE || arg->mode > TG_REPLICA_INVALIDATE)
		return -EINVAL;
	if (arg->home != TG_REPLICA_HERE) {
		if (arg->mode == TG_REPLICA_NAIVE)
			return tg_replica_join_naive(call->file, arg);
		rights = arg->rights_owner ? : TG_RIGHT_READ | TG_RIGHT_WRITE;
	}
	/* A copy without a right to read it is useless. */
	if (!(rights & TG_RIGHT_READ))
		return -EINVAL;
	if (arg->home == TG_REPLICA_HERE)
		return tg_replica_create(call, rights, NULL, arg->length);
	err = tg_replica_look_up(call->file, arg, rights, call->accepted, &source, &size);
	if (err)
		return err;
	return tg_replica_create(call, rights, &source, size);
}

static void tg_replica_publish(struct tg_object *obj)
{
	tg_replica_of(obj)->own->obj.open = true;
}

/**
 * tg_replica_adopt() - TG_IOCTL_REPLICA_ADOPT: an orphan becomes the home
 * @call: The call, on the segment. The caller holds op_lock for reading, and the board is not
 *	gone.
 *
 * Its memory, import number and mappings stay; the latter fill again. Its stores are
 * counted from 0. If this fails it is still an orphan, and this may be called again.
 *
 * Return: 0; -EBADF for a segment that is closed; -EINVAL for one that is not an orphan;
 * -EEXIST if this node has another segment of its name; -EINTR if killed; -EIO or -ENODEV if
 * the board is gone.
 */
int tg_replica_adopt(struct tg_call *call)
{
	struct tg_object *obj = call->obj;
	struct tg_replicated *replica = tg_replica_of(obj);
	struct tg_device *tg = obj->tg;
	u32 orphaned, status;
	int err;

	err = tg_replica_begin(replica, &orphaned);
	if (err)
		return err;
	err = orphaned ? tg_replica_detach(replica) : -EINVAL;
	if (!err)
		err = tg_replica_attach(replica, NULL, &status);
	if (!err) {
		down_write(&tg->map_lock);
		/* Otherwise it is being closed. */
		if (obj->open && !tg_gone(tg)) {
			tg_replica_pages_rehome(replica, TG_REPLICA_HERE);
			replica->status = TG_OK;
			obj->dead = false;
			tg_remote_revive(replica->own);
		}
		up_write(&tg->map_lock);
	}
	mutex_unlock(&replica->lock);
	return err;
}

/* Whether the home may move here at all: 0 or a negative errno. */
static int tg_replica_may_move(const struct tg_replicated *replica)
{
	if (replica->mode != TG_REPLICA_OWNER && replica->mode != TG_REPLICA_COUNTERS)
		return -EINVAL;
	/* The new home serves all rights of the others: refusing one would make orphans. */
	if (~tg_replica_grants(replica) & TG_RIGHTS_REPLICA)
		return -EACCES;
	return 0;
}

/* Moves the home here of all pages that have it elsewhere. */
static int tg_replica_move_pages(struct tg_replicated *replica)
{
	union tg_request move = { .command.opcode = cpu_to_le32(TG_ADMIN_REPLICA_MOVE) };
	const struct tg_object *obj = &replica->seg.obj;
	u32 i, moves;
	int err;

	for (i = 0; i < replica->seg.count; i++) {
		if (tg_replica_page_is_home(replica, i, &moves))
			continue;
		move.command.index = cpu_to_le32(replica->seg.first + i);
		err = tg_admin_checked(obj->tg, obj->file, TG_ADMIN_REMOTE, &move, NULL);
		if (err)
			return err;
		tg_replica_page_moved_here(replica, i, moves);
	}
	return 0;
}

/**
 * tg_replica_move() - TG_IOCTL_REPLICA_MOVE: a copy becomes the home, while stores continue
 * @call: The call, on the segment. The caller holds op_lock for reading, and the board is not
 *	gone.
 *
 * Does nothing at the home. If this fails midway, some pages have their home here, and the
 * next call moves the rest; the state names this node as the home when all have.
 * Blocks, killably.
 *
 * Return: 0; -EBADF for a segment that is closed; -EINVAL for a naive one or one of mode
 * TG_REPLICA_INVALIDATE; -EACCES for a copy joined for less than to load, to store and to
 * atomics; -EEXIST if this node has another segment of its name; -EBUSY if it is moving
 * elsewhere; -EREMOTEIO if it has no home that releases it; -EINTR if killed; -ENODEV if the
 * board is gone; for an orphan, or if the home goes, what tg_status_to_errno() makes of the
 * reason.
 */
int tg_replica_move(struct tg_call *call)
{
	struct tg_replicated *replica = tg_replica_of(call->obj);
	struct tg_segment *segment = &replica->seg;
	bool announced = false;
	u32 orphaned;
	int err;

	err = tg_replica_begin(replica, &orphaned);
	if (err)
		return err;
	err = orphaned ? tg_status_to_errno(orphaned) : tg_replica_may_move(replica);
	/* First, since a page that has moved must have a name. */
	if (!err && !segment->published) {
		err = tg_segment_announce(segment, &replica->offer);
		announced = !err;
	}
	if (!err) {
		err = tg_replica_move_pages(replica);
		if (err && announced && !tg_replica_pages_any_home(replica))
			tg_segment_withdraw(segment);
	}
	mutex_unlock(&replica->lock);
	return err;
}

/**
 * tg_replica_state() - TG_IOCTL_REPLICA_STATE
 * @call: The call, on the segment, whose home and status are filled in.
 *
 * Return: 0.
 */
int tg_replica_state(struct tg_call *call)
{
	struct tg_replica_state *arg = &call->arg.replica_state;
	const struct tg_replicated *replica = tg_replica_of(call->obj);
	struct tg_device *tg = call->file->tg;

	down_read(&tg->map_lock);
	arg->home = tg_replica_pages_home(replica);
	arg->status = replica->status;
	/* The board is lost, and with it the copy. */
	if (tg_gone(tg) && !arg->status)
		arg->status = TG_ERR_RESET;
	up_read(&tg->map_lock);
	return 0;
}

/**
 * tg_replica_event() - the board reports the state of a replicated page
 * @tg: Board.
 * @home: Its home, if it has moved.
 * @value: Export page in bits 63:32, status in 31:16, TG_REPLICA_EVENT_* bits.
 */
void tg_replica_event(struct tg_device *tg, u32 home, u64 value)
{
	u32 page = upper_32_bits(value);
	struct tg_replicated *replica;
	struct tg_segment *segment;

	down_write(&tg->map_lock);
	segment = tg_segment_watched(tg, TG_MMAP_REPLICA, page);
	if (segment) {
		replica = tg_replica_of(&segment->obj);
		page -= segment->first;
		if (value & TG_REPLICA_EVENT_MOVED)
			tg_replica_page_moved(replica, page, home);
		if (value & TG_REPLICA_EVENT_INVALID)
			tg_replica_page_lost(replica, page);
		if (value & TG_REPLICA_EVENT_ORPHANED)
			tg_replica_orphan(replica, value >> 16 & 0xffff);
	}
	up_write(&tg->map_lock);
}

static void tg_replica_quiet(struct tg_object *obj)
{
	struct tg_replicated *replica = tg_replica_of(obj);

	if (replica->own)
		tg_object_kill_locked(&replica->own->obj);
	wake_up_all(&replica->wait);
}

static void tg_replica_end(struct tg_object *obj)
{
	struct tg_replicated *replica = tg_replica_of(obj);

	/* Waits for work under the lock; later work finds the segment closed. */
	mutex_lock(&replica->lock);
	mutex_unlock(&replica->lock);
	/* The import of its pages goes before the pages. */
	if (replica->own)
		tg_object_end(&replica->own->obj);
}

static bool tg_replica_leave(struct tg_object *obj)
{
	struct tg_replicated *replica = tg_replica_of(obj);

	if (tg_gone(obj->tg) || tg_segment_withdraw(&replica->seg) || tg_replica_clear(replica))
		return false;
	tg_replica_pages_leave(replica);
	return tg_segment_leave(obj);
}

static void tg_replica_free(struct tg_object *obj)
{
	struct tg_replicated *replica = tg_replica_of(obj);

	if (replica->own)
		tg_object_put(&replica->own->obj);
	tg_replica_pages_exit(replica);
	kfree(replica);
}

static const struct tg_object_ops tg_replica_ops = {
	.kind = TG_MMAP_REPLICA,
	.publish = tg_replica_publish,
	.quiet = tg_replica_quiet,
	.end = tg_replica_end,
	.leave = tg_replica_leave,
	.unwatch = tg_segment_unwatch,
	.left = tg_replica_pages_end,
	.free = tg_replica_free,
};
