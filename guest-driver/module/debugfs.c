// SPDX-License-Identifier: GPL-2.0
/*
 * The driver's state of a board, in /sys/kernel/debug/telegraphos/telegraphosN.
 *
 * One line per object, as name=value pairs; not a stable interface for programs. Keys and
 * secrets are not shown.
 */
#include <linux/debugfs.h>
#include <linux/io.h>
#include <linux/pid.h>
#include <linux/seq_file.h>

#include "driver.h"

/* The directory of the boards' directories. */
static struct dentry *tg_debugfs_root;

static int contexts_show(struct seq_file *s, void *unused)
{
	struct tg_device *tg = s->private;
	u32 context;

	down_read(&tg->map_lock);
	mutex_lock(&tg->lock);
	for_each_set_bit(context, tg->contexts_used, tg->contexts) {
		const struct tg_file *file = tg->files[context];

		if (!file) {
			seq_printf(s, "context=%u closing\n", context);
			continue;
		}
		seq_printf(s, "context=%u process=%d uid=%u events=%lld alerts=%u congested=%u%s\n",
			   context, pid_nr(file->opener),
			   from_kuid(&init_user_ns, file->user->uid),
			   (s64)atomic64_read(&file->events), file->alerts, file->congested,
			   file->kernel ? " kernel" : "");
	}
	mutex_unlock(&tg->lock);
	up_read(&tg->map_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(contexts);

static void tg_show_object(struct seq_file *s, const struct tg_object *obj)
{
	seq_printf(s, "handle=%u context=%u bytes=%llu open=%u dead=%u", obj->handle,
		   obj->file->context, obj->size, obj->open, obj->dead);
}

static void tg_show_segment(struct seq_file *s, const struct tg_segment *segment)
{
	seq_printf(s, " page=%u pages=%u granted=%u published=%u", segment->first,
		   segment->count, segment->granted, segment->published);
}

static void tg_show_name(struct seq_file *s, const struct tg_segment *segment)
{
	seq_printf(s, " name=\"%*pE\"\n", tg_name_length(segment->name), segment->name);
}

/* Shows each object of a kind. */
static int tg_show_table(struct seq_file *s, u32 kind,
			 void (*show)(struct seq_file *s, struct tg_object *obj))
{
	struct tg_device *tg = s->private;
	struct tg_object *obj;
	unsigned long handle;

	down_read(&tg->map_lock);
	xa_for_each(&tg->objects[kind], handle, obj) {
		tg_show_object(s, obj);
		show(s, obj);
	}
	up_read(&tg->map_lock);
	return 0;
}

/* Defines the file of a kind of objects, of each of which @_row shows the rest. */
#define TG_SHOW_TABLE(_file, _kind, _row)				\
	static int _file##_show(struct seq_file *s, void *unused)	\
	{								\
		return tg_show_table(s, _kind, _row);			\
	}								\
	DEFINE_SHOW_ATTRIBUTE(_file)

static void tg_show_export(struct seq_file *s, struct tg_object *obj)
{
	tg_show_segment(s, tg_segment_of(obj));
	tg_show_name(s, tg_segment_of(obj));
}

TG_SHOW_TABLE(exports, TG_MMAP_EXPORT, tg_show_export);

static void tg_show_import(struct seq_file *s, struct tg_object *obj)
{
	const struct tg_remote *remote = tg_remote_of(obj);

	seq_printf(s, " node=%u page=%u slot=%u slots=%u rights=%#x own=%u state=%#x status=%u direct=%u\n",
		   remote->node, remote->page, remote->slot, remote->count, remote->rights,
		   remote->obj.part, remote->state, remote->status,
		   remote->direct && !remote->trapped);
}

TG_SHOW_TABLE(imports, TG_MMAP_IMPORT, tg_show_import);

static const char * const tg_stage_names[] = {
	[TG_STAGE_RUNNING] = "running",
	[TG_STAGE_STOPPED] = "stopped",
	[TG_STAGE_HELD] = "held",
	[TG_STAGE_COPIED] = "copied",
};

/* map_lock is inside the queue's lock, so each value is read by itself. */
static void tg_show_queue(struct seq_file *s, struct tg_object *obj)
{
	struct tg_nqueue *queue = tg_queue_of(obj);

	tg_show_segment(s, &queue->seg);
	seq_printf(s, " words=%u width=%u quota=%u limit=%u stage=%s waits=%u linked=%u overflows=%llu limits=%llu evictions=%llu holders=%u status=%u",
		   queue->about.words, queue->about.width, queue->about.quota,
		   queue->about.limit, tg_stage_names[READ_ONCE(queue->handler.stage)],
		   READ_ONCE(queue->waits), READ_ONCE(queue->buffers.linked),
		   READ_ONCE(queue->overflows), READ_ONCE(queue->limits),
		   READ_ONCE(queue->evictions), READ_ONCE(queue->holder_count),
		   READ_ONCE(queue->status));
	tg_show_name(s, &queue->seg);
}

TG_SHOW_TABLE(queues, TG_MMAP_QUEUE, tg_show_queue);

static void tg_show_replica(struct seq_file *s, struct tg_object *obj)
{
	const struct tg_replicated *replica = tg_replica_of(obj);
	u32 i;

	tg_show_segment(s, &replica->seg);
	seq_printf(s, " mode=%u rights=%#x import=%d status=%u", replica->mode,
		   replica->rights, replica->own ? (int)replica->own->obj.handle : -1,
		   replica->status);
	tg_show_name(s, &replica->seg);
	/* Before it is open they are being made. */
	for (i = 0; obj->open && i < replica->page_count; i++)
		seq_printf(s, "\tpage=%u home=%d valid=%u moves=%u losses=%u\n",
			   replica->seg.first + i, (int)replica->pages[i].home,
			   replica->pages[i].valid, replica->pages[i].moves,
			   replica->pages[i].losses);
}

TG_SHOW_TABLE(replicas, TG_MMAP_REPLICA, tg_show_replica);

static void tg_show_registration(struct seq_file *s, struct tg_object *obj)
{
	const struct tg_registration *reg = tg_registration_of(obj);

	tg_show_segment(s, &reg->seg);
	seq_printf(s, " process=%d uid=%u address=%#lx runs=%u pinned=%lu import=%d",
		   pid_nr(reg->process), from_kuid(&init_user_ns, obj->file->user->uid),
		   reg->address, reg->runs, READ_ONCE(reg->pinned),
		   reg->own ? (int)reg->own->obj.handle : -1);
	tg_show_name(s, &reg->seg);
}

TG_SHOW_TABLE(registrations, TG_MMAP_REGISTRATION, tg_show_registration);

static int page_counters_show(struct seq_file *s, void *unused)
{
	struct tg_device *tg = s->private;
	u32 i;

	mutex_lock(&tg->lock);
	for (i = 0; i < tg->counter_limit; i++) {
		const struct tg_page_counter *counter = &tg->counters[i];

		if (counter->remote)
			seq_printf(s, "counter=%u import=%u armed=%#x fired=%#x\n", i,
				   counter->remote->obj.handle, counter->armed,
				   counter->fired);
	}
	mutex_unlock(&tg->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(page_counters);

static int commands_show(struct seq_file *s, void *unused)
{
	struct tg_device *tg = s->private;
	struct tg_admin *admin = &tg->admin;
	u32 i;

	spin_lock(&admin->lock);
	for_each_set_bit(i, admin->busy, admin->count) {
		const struct tg_admin_slot *slot = &admin->slot[i];

		seq_printf(s, "slot=%u class=%u seq=%u done=%u abandoned=%u", i, slot->class,
			   slot->seq, slot->done, slot->abandoned);
		/* The last account is the driver's own. */
		if (slot->account < tg->contexts)
			seq_printf(s, " context=%u\n", slot->account);
		else
			seq_puts(s, " driver\n");
	}
	spin_unlock(&admin->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(commands);

static int direct_show(struct seq_file *s, void *unused)
{
	tg_direct_show(s, s->private);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(direct);

#define TG_BOARD_COUNTER(name) { #name, TG_REG_COUNT_##name }

static const struct {
	const char *name;
	u32 offset;
} tg_board_counters[] = {
	TG_BOARD_COUNTER(STORES),
	TG_BOARD_COUNTER(LOADS),
	TG_BOARD_COUNTER(SERVED),
	TG_BOARD_COUNTER(REFUSED),
	TG_BOARD_COUNTER(DROPPED),
	TG_BOARD_COUNTER(CONGESTED),
	TG_BOARD_COUNTER(EVENTS),
	TG_BOARD_COUNTER(ATOMICS),
	TG_BOARD_COUNTER(COPIES),
	TG_BOARD_COUNTER(BAD_KEYS),
	TG_BOARD_COUNTER(ENQUEUES),
	TG_BOARD_COUNTER(ELEMENTS),
	TG_BOARD_COUNTER(OVERFLOWS),
	TG_BOARD_COUNTER(REFLECTED),
	TG_BOARD_COUNTER(COUNTER_STALLS),
};

static int counters_show(struct seq_file *s, void *unused)
{
	struct tg_device *tg = s->private;
	u32 i;

	down_read(&tg->op_lock);
	if (tg_gone(tg)) {
		up_read(&tg->op_lock);
		return -ENODEV;
	}
	for (i = 0; i < ARRAY_SIZE(tg_board_counters); i++)
		seq_printf(s, "%s=%llu\n", tg_board_counters[i].name,
			   readq(tg->regs + tg_board_counters[i].offset));
	seq_printf(s, "EVENTS_CONSUMED=%u\n", READ_ONCE(tg->events.consumed));
	up_read(&tg->op_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

/**
 * tg_debugfs_add() - makes a board's directory
 * @tg: Board, which works.
 *
 * Without debugfs it makes none, and nothing else changes.
 */
void tg_debugfs_add(struct tg_device *tg)
{
	struct dentry *dir = debugfs_create_dir(dev_name(&tg->dev), tg_debugfs_root);

	debugfs_create_file("contexts", 0400, dir, tg, &contexts_fops);
	debugfs_create_file("exports", 0400, dir, tg, &exports_fops);
	debugfs_create_file("imports", 0400, dir, tg, &imports_fops);
	debugfs_create_file("queues", 0400, dir, tg, &queues_fops);
	debugfs_create_file("replicas", 0400, dir, tg, &replicas_fops);
	debugfs_create_file("registrations", 0400, dir, tg, &registrations_fops);
	debugfs_create_file("page_counters", 0400, dir, tg, &page_counters_fops);
	debugfs_create_file("direct", 0400, dir, tg, &direct_fops);
	debugfs_create_file("commands", 0400, dir, tg, &commands_fops);
	debugfs_create_file("counters", 0400, dir, tg, &counters_fops);
	tg->debugfs = dir;
}

/**
 * tg_debugfs_init() - makes the directory of the boards' directories
 */
void tg_debugfs_init(void)
{
	tg_debugfs_root = debugfs_create_dir(TG_NAME, NULL);
}

/**
 * tg_debugfs_exit() - mirror of tg_debugfs_init()
 */
void tg_debugfs_exit(void)
{
	debugfs_remove(tg_debugfs_root);
}
