// SPDX-License-Identifier: GPL-2.0
/*
 * Replicated segments of this node (SPEC items 23 to 27, E15 to E20, E22b): the home,
 * or a copy of one at another node. The boards keep the copies equal; here pages come
 * to be replicated and cease to be.
 *
 * A replicated segment is a segment whose pages all nodes map read-only, and an import
 * of this node's own pages, through which its processes store. To them the import is
 * one like any other, with a number, a state and an argument aperture; it lives and
 * ends with the segment. On the board both are set up by tg_replica_attach() and taken
 * down by tg_replica_detach() or, for good, by the teardown of the objects; always in
 * the same order:
 *
 *    grant, REPLICA_SET of each page, import, name
 *    import (its stores have arrived everywhere), name, REPLICA_CLEAR of each page, grant
 *
 * The grant of a copy admits this node alone, that of a home whom it is offered to. So
 * a copy that becomes the home is detached and attached again; memory, export pages and
 * the number of the import stay, and with them mappings and offsets.
 *
 * An orphan, whose home has gone, is dead until it is adopted: its pages are taken out
 * of all page tables, and its import says why. The board says so of one page at a time;
 * the whole segment is an orphan with the first of them.
 *
 * Naively replicated pages (SPEC item 24) have no home: each node makes the segment and
 * joins those of all others, which are told to the same segment one by one.
 */
#include <linux/delay.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver.h"

/* How long a join that nobody waits for any more may take, and how often it is asked. */
#define TG_JOIN_PATIENCE (10 * HZ)
#define TG_CLEAR_AGAIN 20

/* Pages that a segment's are copies of: at this node, if it is the home. */
struct tg_source {
	u32 node;
	u32 page;
	u64 generation;
};

/* Whom the grant admits: 0, or -EINVAL if this node has no bit. */
static int tg_replica_admit(const struct tg_replicated *replica, bool home,
			    struct tg_export *grant)
{
	u32 node = replica->seg.obj.tg->node;

	if (home)
		memcpy(grant->nodes, replica->offer.nodes, sizeof(grant->nodes));
	if (!memchr_inv(grant->nodes, 0xff, sizeof(grant->nodes)))
		return 0;
	if (node / 64 >= ARRAY_SIZE(grant->nodes))
		return -EINVAL;
	/* Its own stores come as if from another. */
	grant->nodes[node / 64] |= BIT_ULL(node % 64);
	return 0;
}

static int tg_replica_grant(struct tg_replicated *replica, bool home, u64 *generation)
{
	struct tg_export grant = {
		/* The board replicates whole pages. */
		.size = (u64)replica->seg.count << TG_UNIT_SHIFT,
		.rights_owner = replica->rights,
	};
	int err;

	if (home)
		grant.rights_owner |= replica->offer.rights_owner | replica->offer.rights_others;
	err = tg_replica_admit(replica, home, &grant);
	if (err)
		return err;
	*generation = 0;
	return tg_segment_grant(&replica->seg, &grant, generation);
}

/* Has the board replicate the granted pages: as a home, or when they are filled. */
static int tg_replica_set(struct tg_replicated *replica, const struct tg_source *source,
			  u32 *status)
{
	struct tg_device *tg = replica->seg.obj.tg;
	union tg_request request = {
		.replica = {
			.opcode = TG_ADMIN_REPLICA_SET,
			.mode = replica->mode,
			.node = source->node,
			.home_generation = source->generation,
		},
	};
	struct tg_admin_completion result;
	enum tg_admin_class class;
	u32 i;
	int err;

	lockdep_assert_held(&replica->lock);
	class = source->node == tg->node ? TG_ADMIN_QUICK : TG_ADMIN_REMOTE;
	for (i = 0; i < replica->seg.count; i++) {
		request.replica.page = replica->seg.first + i;
		request.replica.home_page = source->page + i;
		/* Should the caller be killed, the board may go on with it. */
		replica->set = max(replica->set, i + 1);
		err = tg_admin_request(tg, class, &request, &result);
		if (err)
			return err;
		if (result.status != TG_OK) {
			*status = result.status;
			return tg_status_to_errno(result.status);
		}
	}
	return 0;
}

/*
 * Has the board let go of the pages: a copy's home knows then that it is none, and the
 * copies of a home are orphans. The grant stays. 0, or a negative errno if the board
 * is gone or the caller was killed.
 */
static int tg_replica_clear(struct tg_replicated *replica)
{
	struct tg_admin_command clear = { .opcode = TG_ADMIN_REPLICA_CLEAR };
	struct tg_segment *segment = &replica->seg;
	unsigned long end = jiffies + TG_JOIN_PATIENCE;
	struct tg_admin_completion result;
	int err;

	while (replica->set) {
		clear.index = segment->first + replica->set - 1;
		err = tg_admin(segment->obj.tg, TG_ADMIN_DRAIN, &clear, &result);
		if (err)
			return err;
		/* The caller of its REPLICA_SET was killed: it fails or ends, and then leaves. */
		if (result.status == TG_ERR_BUSY && time_before(jiffies, end)) {
			msleep(TG_CLEAR_AGAIN);
			continue;
		}
		/* If it is not replicated, or does not leave, the grant's end is its end. */
		replica->set--;
	}
	return 0;
}

/*
 * Makes the segment, of which the board knows nothing, a copy of @source, or the home
 * if that is NULL. On failure the board may know parts of it.
 */
static int tg_replica_attach(struct tg_replicated *replica, const struct tg_source *source,
			     u32 *status)
{
	struct tg_segment *segment = &replica->seg;
	struct tg_source here = {
		.node = segment->obj.tg->node,
		.page = segment->first,
	};
	u64 generation;
	int err;

	lockdep_assert_held(&replica->lock);
	err = tg_replica_grant(replica, !source, &generation);
	if (err)
		return err;
	here.generation = generation;
	err = tg_replica_set(replica, source ? source : &here, status);
	if (err)
		return err;
	err = tg_remote_open_own(replica->own, generation, status);
	if (err || source)
		return err;
	return tg_segment_announce(segment, &replica->offer, generation);
}

/* Mirror of tg_replica_attach(), whatever that has come to. Nothing is mapped. */
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
	/* What the board had to say of these pages is not said of what they become. */
	tg_events_consume(replica->seg.obj.tg);
	return 0;
}

static int tg_replica_look_up(struct tg_file *file, struct tg_replica *arg, u32 rights,
			      struct tg_source *source, u64 *size)
{
	struct tg_import wanted = {
		.node = arg->home,
		.rights = rights,
	};
	struct tg_admin_completion found;
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
	err = tg_remote_lookup(file->tg, &wanted, &found);
	arg->status = wanted.status;
	if (err)
		return err;
	source->node = arg->home;
	source->page = found.index;
	source->generation = found.generation;
	*size = found.length;
	return 0;
}

/* Allocates what a segment and its import need; @replica is in the table already. */
static int tg_replica_allocate(struct tg_replicated *replica, u32 count)
{
	struct tg_segment *segment = &replica->seg;
	struct tg_device *tg = segment->obj.tg;
	struct tg_remote *own;
	int err;

	err = tg_segment_take_pages(segment, count);
	if (err)
		return err;
	segment->memory = tg_memory_new(tg, TG_UNIT, count, true);
	if (IS_ERR(segment->memory)) {
		err = PTR_ERR(segment->memory);
		segment->memory = NULL;
		return err;
	}
	err = tg_remote_create_own(segment, replica->rights, &own);
	if (!own)
		return err;
	/* Its teardown may come before the last look at it. */
	kref_get(&own->obj.ref);
	down_write(&tg->map_lock);
	replica->own = own;
	up_write(&tg->map_lock);
	return err;
}

static void tg_replica_describe(const struct tg_replicated *replica, struct tg_replica *arg)
{
	const struct tg_object *obj = &replica->seg.obj;

	arg->size = obj->size;
	arg->handle = obj->handle;
	arg->offset = tg_mmap_offset(TG_MMAP_REPLICA, obj->handle);
	arg->import = replica->own->obj.handle;
	arg->window = tg_mmap_offset(TG_MMAP_REPLICA_WINDOW, arg->import);
	arg->taken = replica->own->taken - 1;
}

/* Makes the home, or a copy of @source, with the @rights of its processes. */
static int tg_replica_create(struct tg_file *file, struct tg_replica *arg, u32 rights,
			     const struct tg_source *source, u64 size,
			     struct tg_replicated **created)
{
	struct tg_device *tg = file->tg;
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
	replica->home = arg->home;
	memcpy(replica->offer.name, arg->name, sizeof(replica->offer.name));
	memcpy(replica->offer.secret, arg->secret, sizeof(replica->offer.secret));
	memcpy(replica->offer.nodes, arg->nodes, sizeof(replica->offer.nodes));
	replica->offer.size = size;
	replica->offer.rights_owner = arg->rights_owner;
	replica->offer.rights_others = arg->rights_others;
	err = tg_segment_init(&replica->seg, file, TG_MMAP_REPLICA, arg->name, size);
	if (err) {
		kfree(replica);
		return err;
	}
	*created = replica;
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
	xa_for_each(&tg->replicas, handle, obj) {
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
	err = tg_replica_look_up(file, arg, replica->rights, &source, &size);
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
 * @file: Whose. The caller holds op_lock for reading, and the board is not gone.
 * @arg: What. Its name has been checked. What the caller is told is filled here; on
 *	failure its status says what the board said, if it did.
 * @created: The segment, also if this fails midway; NULL if there is nothing to
 *	discard or to publish.
 *
 * A joiner wants the rights it gives for its own uid, or, if it gives none, to load and
 * to store; all that it gives is what it would offer as a home. Blocks, killably, until
 * the copy is filled.
 *
 * Return: 0; -EINVAL for a size, mode, home, right or reserved field that cannot be;
 * -ENOENT for a naive join of what this file has not made, or if there is no such
 * segment there; -EMSGSIZE for one of another size; -ENOSPC if pages, imports, window
 * slots, or the status page's words are used up; -ENOMEM; -EINTR if killed; -ENODEV
 * if the board is gone; or what tg_status_to_errno() makes of the status in @arg.
 */
int tg_replicate(struct tg_file *file, struct tg_replica *arg,
		 struct tg_replicated **created)
{
	u32 rights = arg->rights_owner | arg->rights_others;
	struct tg_source source;
	u64 size;
	int err;

	*created = NULL;
	arg->status = TG_OK;
	if (rights & ~TG_RIGHTS_REPLICA || arg->reserved ||
	    arg->mode < TG_REPLICA_NAIVE || arg->mode > TG_REPLICA_COUNTERS)
		return -EINVAL;
	if (arg->home != TG_REPLICA_HERE) {
		if (arg->mode == TG_REPLICA_NAIVE)
			return tg_replica_join_naive(file, arg);
		rights = arg->rights_owner ? : TG_RIGHT_READ | TG_RIGHT_WRITE;
	}
	/* What nobody may read is no copy. */
	if (!(rights & TG_RIGHT_READ))
		return -EINVAL;
	if (arg->home == TG_REPLICA_HERE)
		return tg_replica_create(file, arg, rights, NULL, arg->size, created);
	err = tg_replica_look_up(file, arg, rights, &source, &size);
	if (err)
		return err;
	return tg_replica_create(file, arg, rights, &source, size, created);
}

/**
 * tg_replica_publish() - lets the process name a finished replicated segment
 * @replica: Replicated segment.
 */
void tg_replica_publish(struct tg_replicated *replica)
{
	tg_object_publish(&replica->own->obj);
	tg_object_publish(&replica->seg.obj);
}

/**
 * tg_replica_adopt() - TG_IOCTL_REPLICA_ADOPT: an orphan becomes the home
 * @file: File. The caller holds op_lock for reading, and the board is not gone.
 * @handle: The segment's handle.
 *
 * Its memory, import number and mappings stay; the latter fill again. Its stores are
 * counted from 0. If this fails it is still an orphan, and it may be tried again.
 *
 * Return: 0; -EBADF for a segment this file has not, or that goes; -EINVAL for one that
 * is not an orphan; -EEXIST if this node has another segment of its name; -EINTR if
 * killed; -EIO or -ENODEV if the board is gone.
 */
int tg_replica_adopt(struct tg_file *file, u32 handle)
{
	struct tg_object *obj = tg_object_find(file, TG_MMAP_REPLICA, handle);
	struct tg_device *tg = file->tg;
	struct tg_replicated *replica;
	u32 orphaned, status;
	int err;

	if (!obj)
		return -EBADF;
	replica = tg_replica_of(obj);
	err = tg_replica_begin(replica, &orphaned);
	if (err)
		goto out;
	err = orphaned ? tg_replica_detach(replica) : -EINVAL;
	if (!err)
		err = tg_replica_attach(replica, NULL, &status);
	if (!err) {
		down_write(&tg->map_lock);
		/* Otherwise it is being closed. */
		if (obj->open && !tg_gone(tg)) {
			replica->home = TG_REPLICA_HERE;
			replica->status = TG_OK;
			obj->dead = false;
			tg_remote_revive(replica->own);
		}
		up_write(&tg->map_lock);
	}
	mutex_unlock(&replica->lock);
out:
	tg_object_put(obj);
	return err;
}

/**
 * tg_replica_state() - TG_IOCTL_REPLICA_STATE
 * @file: File.
 * @arg: The segment's handle in, its home and status out.
 *
 * Return: 0 or -EBADF.
 */
int tg_replica_state(struct tg_file *file, struct tg_replica_state *arg)
{
	struct tg_object *obj = tg_object_find(file, TG_MMAP_REPLICA, arg->handle);
	struct tg_device *tg = file->tg;

	if (!obj)
		return -EBADF;
	down_read(&tg->map_lock);
	arg->home = tg_replica_of(obj)->home;
	arg->status = tg_replica_of(obj)->status;
	/* The board is lost, and with it the copy. */
	if (tg_gone(tg) && !arg->status)
		arg->status = TG_ERR_RESET;
	up_read(&tg->map_lock);
	tg_object_put(obj);
	return 0;
}

static void tg_replica_orphan(struct tg_replicated *replica, u32 status)
{
	struct tg_object *obj = &replica->seg.obj;

	lockdep_assert_held_write(&obj->tg->map_lock);
	/* Closed, or an orphan already. */
	if (obj->dead)
		return;
	replica->status = status ? status : TG_ERR_NOT_HOME;
	obj->dead = true;
	tg_zap(obj);
	if (replica->own)
		tg_remote_orphan(replica->own, replica->status);
}

/**
 * tg_replica_event() - the board reports the state of a replicated page
 * @tg: Board.
 * @value: Export page in bits 63:32, status in 31:16, TG_REPLICA_EVENT_* bits.
 */
void tg_replica_event(struct tg_device *tg, u64 value)
{
	u32 page = upper_32_bits(value);
	struct tg_object *obj;
	unsigned long handle;

	/* Where its home is does not matter to its processes. */
	if (!(value & TG_REPLICA_EVENT_ORPHANED))
		return;
	down_write(&tg->map_lock);
	xa_for_each(&tg->replicas, handle, obj) {
		const struct tg_segment *segment = tg_segment_of(obj);

		if (page < segment->first || page - segment->first >= segment->count)
			continue;
		tg_replica_orphan(tg_replica_of(obj), value >> 16 & 0xffff);
		break;
	}
	up_write(&tg->map_lock);
}

/**
 * tg_replica_end() - ends all work on a replicated segment
 * @replica: Replicated segment, closed. The caller does not hold op_lock.
 *
 * Return: Its own import, to be torn down before it, or NULL.
 */
struct tg_remote *tg_replica_end(struct tg_replicated *replica)
{
	/* Whoever began before finishes; whoever comes now finds it closed. */
	mutex_lock(&replica->lock);
	mutex_unlock(&replica->lock);
	return replica->own;
}

/**
 * tg_replica_leave() - takes a replicated segment off the board
 * @replica: Replicated segment, finished or not, mapped nowhere, ended, without import.
 *	The caller holds op_lock for reading.
 *
 * Return: As tg_segment_leave().
 */
bool tg_replica_leave(struct tg_replicated *replica)
{
	if (tg_gone(replica->seg.obj.tg) || tg_segment_withdraw(&replica->seg) ||
	    tg_replica_clear(replica))
		return false;
	return tg_segment_leave(&replica->seg);
}

/**
 * tg_replica_free() - the last of a replicated segment
 * @replica: Replicated segment that nobody has a reference of.
 */
void tg_replica_free(struct tg_replicated *replica)
{
	if (replica->own)
		tg_object_put(&replica->own->obj);
	kfree(replica);
}
