// SPDX-License-Identifier: GPL-2.0
/*
 * Local segments: memory that other nodes may reach by name. A queue is one, too:
 * it differs in the grant of its one export page, see queue.c. So is a
 * replicated segment, see replica.c.
 */
#include <linux/slab.h>

#include "call.h"
#include "driver.h"

/* Handles have 16 bits in an mmap offset. */
#define TG_SEGMENT_LIMIT 0x10000

static const struct tg_object_ops tg_segment_ops;

/**
 * tg_segment_take_pages() - reserves export pages for a segment
 * @segment: Segment that has none.
 * @count: How many, one after the other.
 *
 * Return: 0 or -ENOSPC.
 */
int tg_segment_take_pages(struct tg_segment *segment, u32 count)
{
	struct tg_device *tg = segment->obj.tg;
	unsigned long first;
	int err;

	mutex_lock(&tg->lock);
	err = -ENOSPC;
	first = bitmap_find_next_zero_area(tg->pages_used, tg->export_pages, 0, count, 0);
	if (first < tg->export_pages)
		err = tg_charge(segment->obj.file, TG_RESOURCE_PAGES, 0, count);
	if (!err) {
		bitmap_set(tg->pages_used, first, count);
		segment->first = first;
		segment->count = count;
	}
	mutex_unlock(&tg->lock);
	return err;
}

/**
 * tg_segment_allocate() - reserves export pages for a segment, and memory behind them
 * @segment: Segment that has neither.
 * @count: Number of pages.
 * @group: Name of the trust group whose memory it is to be, NUL-padded to 64 bytes; NULL for
 *	memory of this node alone.
 *
 * Return: 0 or a negative errno; its teardown returns what it has got by then.
 */
int tg_segment_allocate(struct tg_segment *segment, u32 count, const u8 *group)
{
	struct tg_memory *memory;
	int err;

	err = tg_segment_take_pages(segment, count);
	if (err)
		return err;
	if (group)
		memory = tg_memory_new_direct(segment->obj.tg, group, count,
					      segment->obj.file->owner);
	else
		memory = tg_memory_new(segment->obj.tg, TG_UNIT, count,
				       segment->obj.file->owner);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	segment->memory = memory;
	return 0;
}

/**
 * tg_segment_watch() - lets events about the pages of a segment find it
 * @segment: Queue or replicated segment that has its pages, of which nothing is granted yet.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_segment_watch(struct tg_segment *segment)
{
	struct tg_device *tg = segment->obj.tg;
	u32 i;
	int err;

	for (i = 0; i < segment->count; i++) {
		/* It may take the place of a segment that is about to be unwatched. */
		err = xa_err(xa_store(&tg->watched, segment->first + i, segment,
				      GFP_KERNEL_ACCOUNT));
		if (err)
			return err;
	}
	return 0;
}

/**
 * tg_segment_unwatch() - mirror of tg_segment_watch()
 * @obj: Queue or replicated segment, watched or not. The caller holds map_lock for writing.
 */
void tg_segment_unwatch(struct tg_object *obj)
{
	struct tg_segment *segment = tg_segment_of(obj);
	u32 i;

	lockdep_assert_held_write(&obj->tg->map_lock);
	for (i = 0; i < segment->count; i++)
		xa_cmpxchg(&obj->tg->watched, segment->first + i, segment, NULL, 0);
}

/**
 * tg_segment_watched() - the segment that an event is about
 * @tg: Board. The caller holds map_lock.
 * @kind: TG_MMAP_QUEUE or TG_MMAP_REPLICA.
 * @page: Export page, as the board names it.
 *
 * Return: The segment, in its table as long as map_lock is held; or NULL.
 */
struct tg_segment *tg_segment_watched(struct tg_device *tg, u32 kind, u32 page)
{
	struct tg_segment *segment;

	lockdep_assert_held(&tg->map_lock);
	segment = xa_load(&tg->watched, page);
	return segment && segment->obj.kind == kind ? segment : NULL;
}

/* Number of chunks from i on that lie one after the other for the board. */
static u32 tg_segment_run(const struct tg_segment *segment, u32 i)
{
	const struct tg_chunk *chunk = segment->memory->chunk;
	u32 n = 1;

	while (i + n < segment->count && chunk[i + n].dma == chunk[i].dma + n * TG_UNIT)
		n++;
	return n;
}

/**
 * tg_segment_grant() - grants a segment's pages
 * @segment: Segment with pages and memory, of which nothing is granted. The caller
 *	holds op_lock for reading.
 * @arg: Nodes, rights and bytes.
 *
 * Return: 0 or a negative errno.
 */
int tg_segment_grant(struct tg_segment *segment, const struct tg_export *arg)
{
	struct tg_device *tg = segment->obj.tg;
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_GRANT_SET),
		.command.rights = cpu_to_le16(arg->rights_owner | arg->rights_others),
		.command.context = cpu_to_le16(segment->obj.file->context),
	};
	struct tg_admin_command *command = &request.command;
	struct tg_admin_result result;
	u32 i, count;
	int err;

	tg_put_nodes(command->nodes, arg->nodes);
	segment->generation = 0;
	for (i = 0; i < segment->count; i = segment->granted) {
		count = tg_segment_run(segment, i);
		command->index = cpu_to_le32(segment->first + i);
		command->count = cpu_to_le32(count);
		command->address = cpu_to_le64(segment->memory->chunk[i].dma);
		command->length = cpu_to_le64(min_t(u64, arg->length - i * TG_UNIT, count * TG_UNIT));
		command->generation = cpu_to_le64(segment->generation);
		err = tg_admin_checked(tg, segment->obj.file, TG_ADMIN_QUICK, &request, &result);
		if (err)
			return err;
		segment->generation = result.generation;
		segment->granted = i + count;
	}
	return 0;
}

/**
 * tg_segment_announce() - publishes a segment whose pages are granted
 * @segment: Segment. The caller holds op_lock for reading.
 * @arg: Secret, rights and bytes.
 *
 * Return: 0 or a negative errno.
 */
int tg_segment_announce(struct tg_segment *segment, const struct tg_export *arg)
{
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_SEGMENT_PUBLISH),
		.command.rights_owner = cpu_to_le16(arg->rights_owner),
		.command.rights_others = cpu_to_le16(arg->rights_others),
		.command.uid = cpu_to_le32(tg_file_uid(segment->obj.file)),
		.command.index = cpu_to_le32(segment->first),
		.command.count = cpu_to_le32(segment->count),
		.command.generation = cpu_to_le64(segment->generation),
		.command.length = cpu_to_le64(arg->length),
	};
	int err;

	memcpy(request.command.secret, arg->secret, sizeof(request.command.secret));
	memcpy(request.command.name, segment->name, sizeof(request.command.name));
	err = tg_admin_checked(segment->obj.tg, segment->obj.file, TG_ADMIN_QUICK, &request, NULL);
	segment->published = !err;
	return err;
}

/**
 * tg_segment_init() - begins the life of a segment
 * @segment: Zeroed segment, which is freed if this fails.
 * @file: File that makes it.
 * @ops: Methods of its kind: TG_MMAP_EXPORT, TG_MMAP_QUEUE or TG_MMAP_REPLICA.
 * @name: Its name, NUL-padded to 64 bytes.
 * @size: Bytes that processes of this node may map.
 *
 * Return: 0 or a negative errno.
 */
int tg_segment_init(struct tg_segment *segment, struct tg_file *file,
		    const struct tg_object_ops *ops, const u8 *name, u64 size)
{
	segment->obj.size = size;
	memcpy(segment->name, name, sizeof(segment->name));
	return tg_object_init(&segment->obj, file, ops, TG_SEGMENT_LIMIT);
}

/**
 * tg_segment_create() - TG_IOCTL_EXPORT: exports memory
 * @call: The call, of the file that exports. The caller holds op_lock for reading, and the
 *	board is not gone.
 *
 * Return: 0 or a negative errno.
 */
int tg_segment_create(struct tg_call *call)
{
	struct tg_export *arg = &call->arg.export;
	struct tg_device *tg = call->file->tg;
	struct tg_segment *segment;
	u32 count;
	int err;

	if (!arg->length || arg->length > 1ULL << tg->offset_bits || arg->page ||
	    (arg->rights_owner | arg->rights_others) & ~TG_RIGHTS_ALL)
		return -EINVAL;
	count = DIV_ROUND_UP(arg->length, TG_UNIT);
	if (count > tg->export_pages)
		return -ENOSPC;

	segment = kzalloc(sizeof(*segment), GFP_KERNEL_ACCOUNT);
	if (!segment)
		return -ENOMEM;
	err = tg_segment_init(segment, call->file, &tg_segment_ops, arg->name, arg->length);
	if (err)
		return err;
	call->created = &segment->obj;
	err = tg_segment_allocate(segment, count, arg->group[0] ? arg->group : NULL);
	if (!err)
		err = tg_segment_grant(segment, arg);
	if (!err && segment->memory->direct)
		tg_direct_publish(segment);
	if (!err)
		err = tg_segment_announce(segment, arg);
	if (err)
		return err;
	arg->handle = segment->obj.handle;
	arg->offset = tg_mmap_offset(TG_MMAP_EXPORT, arg->handle);
	/* Direct stores do not pass the board, which cannot watch them. */
	arg->page = segment->memory->direct ? 0 : segment->first + 1;
	return 0;
}

/**
 * tg_segment_revoke() - revokes the grants of a segment
 * @segment: Segment. The caller holds op_lock for reading.
 *
 * Return: 0 when no access to it is in flight; -ENODEV if the board is gone;
 * -EINTR if killed, and nothing has happened then; or what tg_status_to_errno()
 * makes of the board's answer.
 */
int tg_segment_revoke(struct tg_segment *segment)
{
	union tg_request clear = {
		.command.opcode = cpu_to_le32(TG_ADMIN_GRANT_CLEAR),
		.command.index = cpu_to_le32(segment->first),
		.command.count = cpu_to_le32(segment->granted),
	};
	int err;

	if (!segment->granted)
		return 0;
	err = tg_admin_checked(segment->obj.tg, segment->obj.file, TG_ADMIN_REVOKE, &clear, NULL);
	if (!err)
		segment->granted = 0;
	return err;
}

/**
 * tg_segment_withdraw() - takes back a segment's name, if it has one
 * @segment: Segment. The caller holds op_lock for reading.
 *
 * Return: 0; -ENODEV if the board is gone; -EINTR if killed, and nothing has
 * happened then.
 */
int tg_segment_withdraw(struct tg_segment *segment)
{
	union tg_request withdraw = { .command.opcode = cpu_to_le32(TG_ADMIN_SEGMENT_WITHDRAW) };
	struct tg_admin_result result;
	int err;

	if (!segment->published)
		return 0;
	memcpy(withdraw.command.name, segment->name, sizeof(withdraw.command.name));
	err = tg_admin(segment->obj.tg, segment->obj.file, TG_ADMIN_QUICK, &withdraw, &result);
	if (!err)
		segment->published = false;
	return err;
}

/**
 * tg_segment_release() - takes a segment's name and grants back, and frees its memory
 * @segment: As for tg_segment_leave(). The numbers of its export pages stay its own.
 *
 * Return: As tg_segment_leave().
 */
bool tg_segment_release(struct tg_segment *segment)
{
	struct tg_device *tg = segment->obj.tg;

	if (tg_gone(tg) || tg_segment_withdraw(segment) || tg_segment_revoke(segment))
		return false;
	/* So that no earlier event about these pages is taken for one about the next owner's. */
	tg_events_consume(tg);
	if (segment->memory)
		tg_memory_free(tg, segment->memory);
	return true;
}

/**
 * tg_segment_leave() - removes a segment from the board
 * @obj: Segment, queue or replicated segment, finished or not, mapped nowhere. The caller
 *	holds op_lock for reading.
 *
 * Return: True if the board has released it. If the board is gone or does not release it,
 * the memory stays until the board is removed.
 */
bool tg_segment_leave(struct tg_object *obj)
{
	struct tg_segment *segment = tg_segment_of(obj);
	struct tg_device *tg = obj->tg;

	if (!tg_segment_release(segment))
		return false;
	if (segment->count) {
		mutex_lock(&tg->lock);
		bitmap_clear(tg->pages_used, segment->first, segment->count);
		tg_uncharge(obj->file, TG_RESOURCE_PAGES, 0, segment->count);
		mutex_unlock(&tg->lock);
	}
	return true;
}

static void tg_export_free(struct tg_object *obj)
{
	kfree(tg_segment_of(obj));
}

static const struct tg_object_ops tg_segment_ops = {
	.kind = TG_MMAP_EXPORT,
	.leave = tg_segment_leave,
	.free = tg_export_free,
};
