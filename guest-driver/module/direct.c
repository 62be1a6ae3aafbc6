// SPDX-License-Identifier: GPL-2.0
/*
 * The direct aperture: memory devices, direct segments, and imports of them without the board.
 *
 * The nodes of a trust group have memory in common, BAR2 of the memory device beside each
 * node's board, see telegraphos_hw.h and wire/src/direct.rs. Each exports from its own slice.
 * An import of a direct segment maps the owner's memory itself. It has its slots and its
 * windows nevertheless: what does not go through its plain window (atomics, copies) goes
 * through the board as always, which reaches the owner's slice, too. So do all accesses of an
 * import that is *trapped*, because a page access counter counts them, or because faults or a
 * capture of the fabric are to see them.
 *
 * The board does not take part, so it does not revoke anything. Each node says in its own
 * slice which units of the others it has mapped, and its memory is used for nothing else
 * before all members that are present have taken that back: until then it is retired. An
 * importer looks whether a segment is still there at each page fault, and when its board has
 * posted an event: the owner has said in the register CHANGED that it has withdrawn something,
 * or the register OBSERVED has changed.
 *
 * Board and memory device come and go one without the other, also with programs at work. What
 * is known of both is in a record, which the first of them makes and the last one leaves.
 *
 * Each word has one writer. Atomic instructions are not atomic between guests: where a virtual
 * machine has one processor, its emulator does not make them so. mb() is a barrier even there,
 * which smp_mb() need not be.
 */
#include <linux/bitmap.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "compat.h"
#include "direct.h"
#include "driver.h"

/* All that have a board or a memory device. Taken inside op_lock, outside map_lock. */
static LIST_HEAD(tg_directs);
static DEFINE_MUTEX(tg_direct_lock);

static void tg_direct_release(struct kref *ref)
{
	struct tg_direct *direct = container_of(ref, struct tg_direct, ref);

	bitmap_free(direct->used);
	bitmap_free(direct->retired);
	kvfree(direct->holds);
	kfree(direct);
}

static void tg_direct_put(struct tg_direct *direct)
{
	kref_put(&direct->ref, tg_direct_release);
}

/* ---- the tables in the slices ---- */

static struct tg_direct_unit *tg_direct_entries(const struct tg_direct *direct, u32 place)
{
	return direct->base + place * direct->group.slice;
}

/* This node's byte for a unit of a member, in that node's slice. */
static u8 *tg_direct_byte(const struct tg_direct *direct, u32 by, u32 place, u32 unit)
{
	return direct->base + by * direct->group.slice +
	       direct->group.units * (sizeof(struct tg_direct_unit) + place) + unit;
}

/* Whether a unit of a member is an export page under this generation. */
static bool tg_direct_is(const struct tg_direct *direct, u32 place, u32 unit, u32 page,
			 u64 generation)
{
	const struct tg_direct_unit *entry = tg_direct_entries(direct, place) + unit;

	return le64_to_cpu(READ_ONCE(entry->generation)) == generation &&
	       le32_to_cpu(READ_ONCE(entry->page)) == page;
}

/* The boards of the other members notify their drivers that entries have been cleared. */
static void tg_direct_tell(struct tg_direct *direct)
{
	lockdep_assert_held(&direct->lock);
	/* writel() is behind the stores to the entries, and the server is when it returns. */
	if (direct->regs)
		writel(1, direct->regs + TG_DIRECT_CHANGED);
}

/* Makes retired units free that no member has mapped. */
static void tg_direct_reclaim(struct tg_direct *direct)
{
	/* All ones if the server has gone: then no member is known to be absent. */
	u64 present = readq(direct->regs + TG_DIRECT_PRESENT);
	u32 unit, by;

	lockdep_assert_held(&direct->lock);
	for_each_set_bit(unit, direct->retired, direct->group.units) {
		for (by = 0; by < direct->group.members; by++)
			if (present & BIT_ULL(by) &&
			    READ_ONCE(*tg_direct_byte(direct, by, direct->group.place, unit)))
				break;
		if (by < direct->group.members)
			continue;
		__clear_bit(unit, direct->retired);
		__clear_bit(unit, direct->used);
	}
}

/* ---- segments of this node ---- */

/**
 * tg_direct_group() - the name of a board's trust group
 * @tg: Board.
 * @name: Filled in, NUL-padded; zeros if it is in none, or its memory device has no driver.
 */
void tg_direct_group(struct tg_device *tg, u8 name[64])
{
	struct tg_direct *direct = tg->direct;

	memset(name, 0, sizeof(direct->group.name));
	if (!direct)
		return;
	mutex_lock(&direct->lock);
	if (direct->base)
		memcpy(name, direct->group.name, sizeof(direct->group.name));
	mutex_unlock(&direct->lock);
}

/*
 * The first of so many free units, one after the other; the number of units or more if there
 * are none. They begin with a huge page if they can fill one.
 */
static unsigned long tg_direct_free_units(const struct tg_direct *direct, u32 count)
{
	const struct tg_group *group = &direct->group;
	unsigned long mask = PMD_SIZE / TG_UNIT - 1;
	unsigned long begins = (direct->phys + group->place * group->slice) >> TG_UNIT_SHIFT;
	unsigned long unit = group->units;

	if (count > mask)
		unit = bitmap_find_next_zero_area_off(direct->used, group->units, group->first,
						      count, mask, begins & mask);
	if (unit >= group->units)
		unit = bitmap_find_next_zero_area(direct->used, group->units, group->first,
						  count, 0);
	return unit;
}

/**
 * tg_direct_allocate() - takes zeroed memory from this node's slice
 * @tg: Board. The caller holds op_lock for reading.
 * @group: Name of the trust group, NUL-padded.
 * @memory: Memory without chunks, with room for @count, which are filled in.
 * @count: Number of units.
 *
 * Return: 0; -EXDEV if this node is not in that group; -ENOSPC.
 */
int tg_direct_allocate(struct tg_device *tg, const u8 group[64], struct tg_memory *memory,
		       u32 count)
{
	struct tg_direct *direct = tg->direct;
	unsigned long unit;
	int err = -EXDEV;
	u64 offset;

	if (!direct)
		return err;
	mutex_lock(&direct->lock);
	if (!direct->base || memcmp(group, direct->group.name, sizeof(direct->group.name)))
		goto out;
	err = -ENOSPC;
	tg_direct_reclaim(direct);
	unit = tg_direct_free_units(direct, count);
	if (unit >= direct->group.units)
		goto out;
	err = 0;
	bitmap_set(direct->used, unit, count);
	offset = direct->group.place * direct->group.slice + unit * TG_UNIT;
	memset(direct->base + offset, 0, count * TG_UNIT);
	kref_get(&direct->ref);
	memory->direct = direct;
	memory->unit = unit;
	for (; memory->count < count; memory->count++)
		memory->chunk[memory->count].dma =
			TG_DIRECT_ADDRESS + offset + memory->count * TG_UNIT;
out:
	mutex_unlock(&direct->lock);
	return err;
}

/**
 * tg_direct_free() - gives memory of this node's slice back
 * @memory: Memory that tg_direct_allocate() has filled in, which the board cannot reach, and
 *	that no process of this node has mapped.
 */
void tg_direct_free(struct tg_memory *memory)
{
	struct tg_direct *direct = memory->direct;
	u32 i;

	mutex_lock(&direct->lock);
	if (direct->base) {
		for (i = 0; i < memory->count; i++)
			WRITE_ONCE(tg_direct_entries(direct, direct->group.place)[memory->unit + i].generation,
				   0);
		/* Before the bytes are read: see tg_direct_join(). */
		mb();
		tg_direct_tell(direct);
	}
	bitmap_set(direct->retired, memory->unit, memory->count);
	mutex_unlock(&direct->lock);
	tg_direct_put(direct);
}

/**
 * tg_direct_publish() - lets members map a segment whose pages are granted
 * @segment: Segment in direct memory.
 */
void tg_direct_publish(const struct tg_segment *segment)
{
	const struct tg_memory *memory = segment->memory;
	struct tg_direct *direct = memory->direct;
	struct tg_direct_unit *entry;
	u32 i;

	mutex_lock(&direct->lock);
	for (i = 0; direct->base && i < memory->count; i++) {
		entry = tg_direct_entries(direct, direct->group.place) + memory->unit + i;
		WRITE_ONCE(entry->page, cpu_to_le32(segment->first + i));
		/* The generation is valid with the page. */
		mb();
		WRITE_ONCE(entry->generation, cpu_to_le64(segment->generation));
	}
	mutex_unlock(&direct->lock);
}

/**
 * tg_direct_pfn() - the page frame of a page of this node's direct memory
 * @memory: The memory.
 * @page: Page number in it.
 *
 * The caller holds map_lock.
 *
 * Return: Page frame number; 0 if the memory device has no driver.
 */
unsigned long tg_direct_pfn(const struct tg_memory *memory, unsigned long page)
{
	const struct tg_direct *direct = memory->direct;

	if (!direct->base)
		return 0;
	return ((direct->phys + direct->group.place * direct->group.slice + memory->unit * TG_UNIT) >>
		PAGE_SHIFT) + page;
}

/* ---- imports ---- */

/* Whether accesses to some page of an import are counted, also on behalf of another import. */
static bool tg_direct_is_counted(struct tg_device *tg, const struct tg_remote *remote)
{
	const struct tg_page_counter *counter;
	bool armed = false;
	u32 n;

	mutex_lock(&tg->lock);
	for (n = 0; n < tg->counter_limit && !armed; n++) {
		counter = &tg->counters[n];
		armed = counter->remote && counter->remote->node == remote->node &&
			counter->page - remote->page < remote->count;
	}
	mutex_unlock(&tg->lock);
	return armed;
}

/* Whether an import must be trapped. */
static bool tg_direct_must_trap(struct tg_device *tg, const struct tg_remote *remote)
{
	return remote->direct->observed || tg_direct_is_counted(tg, remote);
}

/**
 * tg_direct_recheck() - imports are direct again soon, if nothing traps them any more
 * @tg: Board.
 *
 * Does not wait for other nodes, as tg_direct_untrap() does.
 */
void tg_direct_recheck(struct tg_device *tg)
{
	if (tg->direct)
		schedule_work(&tg->direct_work);
}

/**
 * tg_direct_trap_one() - counts an import that was direct as trapped, and removes its pages
 * @remote: Import. The caller holds map_lock for writing.
 */
void tg_direct_trap_one(struct tg_remote *remote)
{
	remote->trapped = true;
	remote->direct->trapped++;
	tg_zap(&remote->obj);
}

/**
 * tg_direct_is_current() - whether all units of an import are still those of its segment
 * @remote: Import with a place in direct memory, whose memory device has a driver. The caller
 *	holds map_lock.
 *
 * Return: False if the segment has been withdrawn.
 */
bool tg_direct_is_current(const struct tg_remote *remote)
{
	u32 i;

	for (i = 0; i < remote->count; i++)
		if (!tg_direct_is(remote->direct, remote->direct_place, remote->direct_unit + i,
				  remote->page + i, remote->generation))
			return false;
	return true;
}

/* Adds to the number of imports of the units of a remote, or takes from it. */
static void tg_direct_hold(struct tg_direct *direct, const struct tg_remote *remote, int change)
{
	u32 i, place = remote->direct_place, unit;
	u16 *holds;

	lockdep_assert_held(&direct->lock);
	for (i = 0; i < remote->count; i++) {
		unit = remote->direct_unit + i;
		holds = &direct->holds[place * direct->group.units + unit];
		*holds += change;
		if (direct->base)
			WRITE_ONCE(*tg_direct_byte(direct, direct->group.place, place, unit), !!*holds);
	}
}

/* The first unit that is this export page; the number of units if there is none. */
static u32 tg_direct_find(const struct tg_direct *direct, u32 place, u32 page, u64 generation)
{
	u32 unit = direct->group.first;

	while (unit < direct->group.units && !tg_direct_is(direct, place, unit, page, generation))
		unit++;
	return unit;
}

static u32 tg_direct_place(const struct tg_direct *direct, u32 node)
{
	u32 place = 0;

	while (place < direct->group.members && direct->group.nodes[place] != node)
		place++;
	return place;
}

/**
 * tg_direct_join() - gives an import its place in direct memory, if its segment is there
 * @remote: Import of a board that has a record. The caller holds map_lock for writing.
 *
 * It is as it was otherwise. A write-only import has no place: page tables could not refuse its
 * loads. Nor have own imports, which have no generation.
 */
void tg_direct_join(struct tg_remote *remote)
{
	struct tg_device *tg = remote->obj.tg;
	struct tg_direct *direct = tg->direct;

	lockdep_assert_held_write(&tg->map_lock);
	if (remote->direct || remote->obj.dead || !remote->generation ||
	    !(remote->rights & TG_RIGHT_READ) || remote->rights & TG_RIGHT_ENQUEUE)
		return;
	mutex_lock(&direct->lock);
	if (!direct->base)
		goto out;
	remote->direct_place = tg_direct_place(direct, remote->node);
	if (remote->direct_place == direct->group.members)
		goto out;
	remote->direct_unit = tg_direct_find(direct, remote->direct_place, remote->page,
					     remote->generation);
	if (remote->direct_unit + remote->count > direct->group.units)
		goto out;
	kref_get(&direct->ref);
	remote->direct = direct;
	tg_direct_hold(direct, remote, 1);
	/* The owner first clears the entries and then reads the bytes: see tg_direct_free(). */
	mb();
	if (!tg_direct_is_current(remote)) {
		tg_direct_hold(direct, remote, -1);
		remote->direct = NULL;
		tg_direct_put(direct);
	}
out:
	mutex_unlock(&direct->lock);
}

/**
 * tg_direct_import() - maps an import directly, if that is possible
 * @remote: Import that is open at the board, not published, and mapped nowhere. The caller
 *	holds op_lock for reading.
 */
void tg_direct_import(struct tg_remote *remote)
{
	struct tg_device *tg = remote->obj.tg;

	if (!tg->direct)
		return;
	down_write(&tg->map_lock);
	tg_direct_join(remote);
	/* It has stored nothing yet, so it need not settle. */
	remote->trapped = remote->direct && tg_direct_must_trap(tg, remote);
	up_write(&tg->map_lock);
}

/**
 * tg_direct_leave() - an import does not access its segment directly any more
 * @remote: Import, zapped. The caller holds map_lock for writing.
 */
void tg_direct_leave(struct tg_remote *remote)
{
	struct tg_direct *direct = remote->direct;

	lockdep_assert_held_write(&remote->obj.tg->map_lock);
	if (!direct)
		return;
	remote->direct = NULL;
	mutex_lock(&direct->lock);
	tg_direct_hold(direct, remote, -1);
	mutex_unlock(&direct->lock);
	tg_direct_put(direct);
}

/**
 * tg_direct_window_pfn() - the page frame that an import maps instead of its plain window
 * @remote: Import. The caller holds map_lock.
 * @page: Page number in it.
 *
 * Return: Page frame number; 0 if the access is to go through the window.
 */
unsigned long tg_direct_window_pfn(const struct tg_remote *remote, unsigned long page)
{
	const struct tg_direct *direct = remote->direct;

	/* If the segment is gone, the board says so. */
	if (!direct || remote->trapped || !direct->base || !tg_direct_is_current(remote))
		return 0;
	return ((direct->phys + remote->direct_place * direct->group.slice +
		 remote->direct_unit * TG_UNIT) >> PAGE_SHIFT) + page;
}

/**
 * tg_direct_trap() - all imports of a page go through the board from now on
 * @tg: Board.
 * @node: Node of the page.
 * @page: Export page there.
 */
void tg_direct_trap(struct tg_device *tg, u32 node, u32 page)
{
	struct tg_object *obj;
	unsigned long handle;

	down_write(&tg->map_lock);
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (!remote->direct || remote->trapped || remote->node != node ||
		    page - remote->page >= remote->count)
			continue;
		tg_direct_trap_one(remote);
	}
	up_write(&tg->map_lock);
}

/* A trapped import that may be direct again: it settles, and is held. Or NULL. */
static struct tg_remote *tg_direct_next_trapped(struct tg_device *tg, u32 node, u32 page,
						unsigned long *handle)
{
	struct tg_remote *found = NULL;
	struct tg_object *obj;

	down_write(&tg->map_lock);
	for (obj = xa_find(&tg->objects[TG_MMAP_IMPORT], handle, ULONG_MAX, XA_PRESENT);
	     obj && !found;
	     obj = xa_find_after(&tg->objects[TG_MMAP_IMPORT], handle, ULONG_MAX, XA_PRESENT)) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (!remote->direct || !remote->trapped || remote->settles || !obj->open ||
		    (node != TG_ALL_NODES &&
		     (remote->node != node || page - remote->page >= remote->count)) ||
		    tg_direct_must_trap(tg, remote))
			continue;
		kref_get(&obj->ref);
		remote->settles = true;
		tg_zap(obj);
		found = remote;
	}
	up_write(&tg->map_lock);
	return found;
}

/**
 * tg_direct_untrap() - imports of a page are direct again, if nothing else traps them
 * @tg: Board. The caller holds op_lock for reading, and no other lock.
 * @node: Node of the page; TG_ALL_NODES for all imports.
 * @page: Export page there.
 *
 * Waits, killably, until the board has none of their stores, so that none is passed by a later
 * one that is direct. Accesses wait in page faults meanwhile. An import with a latched error
 * stays trapped.
 */
void tg_direct_untrap(struct tg_device *tg, u32 node, u32 page)
{
	union tg_request request = { .command.opcode = cpu_to_le32(TG_ADMIN_IMPORT_QUIET) };
	struct tg_remote *remote;
	unsigned long handle = 0;
	bool quiet;

	while ((remote = tg_direct_next_trapped(tg, node, page, &handle))) {
		request.command.import = cpu_to_le16(remote->obj.handle);
		quiet = !tg_admin_checked(tg, remote->obj.file, TG_ADMIN_DRAIN, &request, NULL);
		/* What the board has reported about them before. */
		tg_events_consume(tg);
		down_write(&tg->map_lock);
		remote->settles = false;
		if (quiet && remote->direct && !remote->state && !remote->status &&
		    !remote->obj.dead && !tg_direct_must_trap(tg, remote)) {
			remote->trapped = false;
			remote->direct->untrapped++;
		}
		wake_up_all(&remote->wait);
		up_write(&tg->map_lock);
		tg_object_put(&remote->obj);
	}
}

/**
 * tg_direct_show() - writes what is known of a board's memory device
 * @s: Where to.
 * @tg: Board.
 */
void tg_direct_show(struct seq_file *s, struct tg_device *tg)
{
	struct tg_direct *direct = tg->direct;
	const struct tg_group *group;

	if (!direct)
		return;
	group = &direct->group;
	down_read(&tg->map_lock);
	mutex_lock(&direct->lock);
	seq_printf(s, "group=\"%*pE\" members=%u place=%u units=%u used=%u retired=%u bound=%u observed=%u",
		   (int)strlen((const char *)group->name), group->name, group->members, group->place,
		   group->units, bitmap_weight(direct->used, group->units),
		   bitmap_weight(direct->retired, group->units), !!direct->base,
		   direct->observed);
	seq_printf(s, " events=%llu observations=%llu trapped=%llu untrapped=%llu ended=%llu",
		   direct->events, direct->observations, direct->trapped, direct->untrapped,
		   direct->ended);
	seq_printf(s, " faults=%lld huge_faults=%lld huge_bytes=%lu\n",
		   (s64)atomic64_read(&direct->faults),
		   (s64)atomic64_read(&direct->huge_faults), TG_HUGE_BYTES);
	mutex_unlock(&direct->lock);
	up_read(&tg->map_lock);
}

/**
 * tg_direct_faulted() - counts a page fault that has mapped direct memory
 * @direct: The memory device.
 * @huge: It has mapped a huge page.
 */
void tg_direct_faulted(struct tg_direct *direct, bool huge)
{
	atomic64_inc(huge ? &direct->huge_faults : &direct->faults);
}

/* ---- board and device ---- */

/* The record of a pair, with a reference for the caller; NULL if there is no memory for it. */
static struct tg_direct *tg_direct_get(u64 pair)
{
	struct tg_direct *direct;

	lockdep_assert_held(&tg_direct_lock);
	list_for_each_entry(direct, &tg_directs, node) {
		if (direct->pair == pair) {
			kref_get(&direct->ref);
			return direct;
		}
	}
	direct = kzalloc(sizeof(*direct), GFP_KERNEL);
	if (!direct)
		return NULL;
	kref_init(&direct->ref);
	mutex_init(&direct->lock);
	direct->pair = pair;
	list_add_tail(&direct->node, &tg_directs);
	return direct;
}

/* The board or the memory device leaves a record. */
static void tg_direct_part(struct tg_direct *direct)
{
	lockdep_assert_held(&tg_direct_lock);
	if (!direct->board && !direct->pdev)
		list_del_init(&direct->node);
	tg_direct_put(direct);
}

/**
 * tg_direct_attach() - a board has a driver, and may have a memory device
 * @tg: Board, which posts no events yet.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_direct_attach(struct tg_device *tg)
{
	u64 pair = readq(tg->regs + TG_REG_DIRECT_PAIR);
	struct tg_direct *direct;
	int err = 0;

	if (!pair)
		return 0;
	mutex_lock(&tg_direct_lock);
	direct = tg_direct_get(pair);
	if (!direct) {
		err = -ENOMEM;
	} else if (direct->board) {
		dev_warn(&tg->pdev->dev, "DIRECT_PAIR %#llx is another board's, too: it has no memory device\n",
			 pair);
		tg_direct_part(direct);
	} else {
		direct->board = tg;
		tg->direct = direct;
		tg_direct_recheck(tg);
	}
	mutex_unlock(&tg_direct_lock);
	return err;
}

/**
 * tg_direct_detach() - mirror of tg_direct_attach()
 * @tg: Board, stopped, without exports and imports, which posts no events any more.
 */
void tg_direct_detach(struct tg_device *tg)
{
	struct tg_direct *direct = tg->direct;

	if (direct) {
		mutex_lock(&tg_direct_lock);
		direct->board = NULL;
		mutex_unlock(&tg_direct_lock);
	}
	/* From here on it is not queued any more. */
	cancel_work_sync(&tg->direct_work);
	if (direct) {
		tg->direct = NULL;
		mutex_lock(&tg_direct_lock);
		tg_direct_part(direct);
		mutex_unlock(&tg_direct_lock);
	}
}

/* Reads and checks what the device says about the group. */
static int tg_direct_identify(struct pci_dev *pdev, void __iomem *regs, struct tg_group *group)
{
	u64 magic = readq(regs + TG_DIRECT_MAGIC), tables;
	u32 version = readl(regs + TG_DIRECT_VERSION), i;
	__le64 *name = (__le64 *)group->name;

	if (magic != TG_DIRECT_MAGIC_VALUE || version != TG_DIRECT_VERSION_VALUE) {
		dev_err(&pdev->dev, "MAGIC %#llx, version %u: expected %#llx, version %u; use the driver that came with the server\n",
			magic, version, TG_DIRECT_MAGIC_VALUE, TG_DIRECT_VERSION_VALUE);
		return -ENODEV;
	}
	group->slice = readq(regs + TG_DIRECT_SLICE_SIZE);
	group->members = readl(regs + TG_DIRECT_MEMBERS);
	group->place = readl(regs + TG_DIRECT_PLACE);
	if (!group->members || group->members > TG_DIRECT_MAX_MEMBERS ||
	    group->place >= group->members || !group->slice || group->slice % TG_UNIT ||
	    group->slice > pci_resource_len(pdev, TG_DIRECT_BAR_MEMORY) / group->members) {
		dev_err(&pdev->dev, "%u members with %llu bytes each, this one the %u. of them, in BAR2 %pR: out of range\n",
			group->members, group->slice, group->place,
			&pdev->resource[TG_DIRECT_BAR_MEMORY]);
		return -ENODEV;
	}
	for (i = 0; i < sizeof(group->name) / 8; i++)
		name[i] = cpu_to_le64(readq(regs + TG_DIRECT_NAME + 8 * i));
	group->name[sizeof(group->name) - 1] = 0;
	for (i = 0; i < group->members; i++)
		group->nodes[i] = readl(regs + TG_DIRECT_MEMBER_NODES + 4 * i);
	group->units = group->slice >> TG_UNIT_SHIFT;
	tables = (u64)group->units * (sizeof(struct tg_direct_unit) + group->members);
	group->first = min_t(u64, DIV_ROUND_UP(tables, TG_UNIT), group->units);
	return 0;
}

/*
 * A record has a memory device for the first time. What a kernel before this one has exported
 * is gone, and it has nothing mapped. But others may still have mapped what was exported: all
 * units are retired until it is known that they have not.
 */
static int tg_direct_begin(struct tg_direct *direct, const struct tg_group *group)
{
	direct->used = bitmap_zalloc(group->units, GFP_KERNEL);
	direct->retired = bitmap_zalloc(group->units, GFP_KERNEL);
	direct->holds = kvcalloc(group->members * group->units, sizeof(*direct->holds),
				 GFP_KERNEL);
	if (!direct->used || !direct->retired || !direct->holds) {
		bitmap_free(direct->used);
		bitmap_free(direct->retired);
		kvfree(direct->holds);
		direct->used = NULL;
		direct->retired = NULL;
		direct->holds = NULL;
		return -ENOMEM;
	}
	bitmap_set(direct->used, 0, group->units);
	bitmap_set(direct->retired, group->first, group->units - group->first);
	direct->group = *group;
	return 0;
}

/* Enters a memory device into the record of its pair. */
static int tg_direct_enter(struct pci_dev *pdev, void __iomem *regs, void *base,
			   const struct tg_group *group)
{
	struct tg_direct *direct;
	struct tg_device *tg;
	int err = 0;

	lockdep_assert_held(&tg_direct_lock);
	direct = tg_direct_get(readq(regs + TG_DIRECT_PAIR));
	if (!direct)
		return -ENOMEM;
	tg = direct->board;
	if (tg)
		down_write(&tg->map_lock);
	mutex_lock(&direct->lock);
	if (direct->pdev)
		err = -EBUSY;
	else if (!direct->used)
		err = tg_direct_begin(direct, group);
	else if (memcmp(&direct->group, group, sizeof(*group)))
		err = -EINVAL;
	if (!err) {
		direct->pdev = pdev;
		direct->phys = pci_resource_start(pdev, TG_DIRECT_BAR_MEMORY);
		direct->base = base;
		direct->regs = regs;
		/* Memory of segments that are dead is not used for others before they end. */
		memset(tg_direct_entries(direct, group->place), 0, group->first * TG_UNIT);
		/* Cleared before other members are notified, and before their bytes are read. */
		mb();
		tg_direct_tell(direct);
		direct->rejoin = true;
		pci_set_drvdata(pdev, direct);
	}
	mutex_unlock(&direct->lock);
	if (tg)
		up_write(&tg->map_lock);
	if (err) {
		dev_err(&pdev->dev, "cannot be the memory device of pair %#llx: error %d\n",
			direct->pair, err);
		tg_direct_part(direct);
	} else if (tg) {
		tg_direct_recheck(tg);
	}
	return err;
}

static int tg_direct_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct tg_group *group;
	void __iomem *regs;
	void *base;
	int err;

	group = kzalloc(sizeof(*group), GFP_KERNEL);
	if (!group)
		return -ENOMEM;
	err = pci_enable_device(pdev);
	if (err)
		goto err_free;
	err = pci_request_regions(pdev, TG_NAME);
	if (err)
		goto err_disable;
	err = -ENOMEM;
	regs = pci_iomap(pdev, TG_DIRECT_BAR_REGISTERS, TG_DIRECT_BAR0_SIZE);
	if (!regs)
		goto err_regions;
	err = tg_direct_identify(pdev, regs, group);
	if (err)
		goto err_unmap;
	/* As memory, so that user mappings of the same pages may be cached, too. */
	err = -ENOMEM;
	base = memremap(pci_resource_start(pdev, TG_DIRECT_BAR_MEMORY), group->members * group->slice,
			MEMREMAP_WB);
	if (!base) {
		dev_err(&pdev->dev, "cannot map BAR2 %pR\n", &pdev->resource[TG_DIRECT_BAR_MEMORY]);
		goto err_unmap;
	}
	mutex_lock(&tg_direct_lock);
	err = tg_direct_enter(pdev, regs, base, group);
	mutex_unlock(&tg_direct_lock);
	if (err)
		goto err_base;
	dev_info(&pdev->dev, "trust group \"%s\": %u nodes with %llu MiB each\n", group->name,
		 group->members, group->slice >> 20);
	kfree(group);
	return 0;

err_base:
	memunmap(base);
err_unmap:
	pci_iounmap(pdev, regs);
err_regions:
	pci_release_regions(pdev);
err_disable:
	pci_disable_device(pdev);
err_free:
	kfree(group);
	return err;
}

/*
 * Its memory goes: imports use the board, segments die. The owner's processes could reach them
 * no more, so for other members they are withdrawn; their units stay in use until they end.
 */
static void tg_direct_lost(struct tg_direct *direct, struct tg_device *tg)
{
	struct tg_object *obj;
	unsigned long handle;

	lockdep_assert_held_write(&tg->map_lock);
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (!remote->direct)
			continue;
		if (!remote->trapped)
			direct->trapped++;
		tg_zap(obj);
		tg_direct_leave(remote);
	}
	xa_for_each(&tg->objects[TG_MMAP_EXPORT], handle, obj) {
		const struct tg_memory *memory = tg_segment_of(obj)->memory;

		if (memory && memory->direct) {
			obj->dead = true;
			tg_zap(obj);
		}
	}
}

static void tg_direct_remove(struct pci_dev *pdev)
{
	struct tg_direct *direct = pci_get_drvdata(pdev);
	void __iomem *regs;
	struct tg_device *tg;
	void *base;

	/* The system was asleep, after which it could not be used. */
	if (!direct)
		return;
	pci_set_drvdata(pdev, NULL);
	mutex_lock(&tg_direct_lock);
	tg = direct->board;
	if (tg) {
		down_write(&tg->map_lock);
		tg_direct_lost(direct, tg);
	}
	mutex_lock(&direct->lock);
	regs = direct->regs;
	base = direct->base;
	memset(tg_direct_entries(direct, direct->group.place), 0,
	       direct->group.units * sizeof(struct tg_direct_unit));
	/* Cleared before other members are notified. */
	mb();
	tg_direct_tell(direct);
	direct->regs = NULL;
	direct->base = NULL;
	direct->pdev = NULL;
	mutex_unlock(&direct->lock);
	if (tg)
		up_write(&tg->map_lock);
	tg_direct_part(direct);
	mutex_unlock(&tg_direct_lock);

	memunmap(base);
	pci_iounmap(pdev, regs);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

static const struct pci_device_id tg_direct_ids[] = {
	{ PCI_DEVICE(TG_PCI_VENDOR_ID, TG_PCI_DEVICE_ID_MEMORY) },
	{ }
};
MODULE_DEVICE_TABLE(pci, tg_direct_ids);

struct pci_driver tg_direct_driver = {
	.name = TG_NAME "-memory",
	.id_table = tg_direct_ids,
	.probe = tg_direct_probe,
	.remove = tg_direct_remove,
	.driver.pm = pm_sleep_ptr(&tg_pm_ops),
};
