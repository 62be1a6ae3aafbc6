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
 * importer looks whether a segment is still there at each page fault, and periodically.
 *
 * Each word has one writer. Atomic instructions are not atomic between guests: where a virtual
 * machine has one processor, its emulator does not make them so. mb() is a barrier even there,
 * which smp_mb() need not be.
 */
#include <linux/bitmap.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "driver.h"

#define TG_BAR_REGISTERS 0
#define TG_BAR_MEMORY 2

/**
 * struct tg_direct - a memory device
 * @ref: References: the device's, its board's, and its memories'.
 * @node: In tg_directs.
 * @board: Board beside it, if that has asked for it. Under tg_direct_lock.
 * @lock: Serialises changes of this node's slice. Inside map_lock.
 * @regs: BAR0. NULL once the device is gone. Under @lock.
 * @base: BAR2, mapped as the memory that it is. NULL once the device is gone. Changed under
 *	the board's map_lock for writing and @lock.
 * @phys: Physical address of BAR2.
 * @pair: As the board's.
 * @slice: Bytes of a slice.
 * @units: Units of a slice.
 * @first: First unit behind the tables.
 * @members: Number of members of the group.
 * @place: This node's place among them.
 * @observed: All imports are trapped: as the register says, when last looked at. Under the
 *	board's map_lock.
 * @recheck: Some imports may be direct again. Under the board's map_lock.
 * @nodes: Their nodes.
 * @name: The group's name, NUL-terminated.
 * @used: Own units that hold tables, a segment, or are retired. Under @lock.
 * @retired: Own units that other members may still have mapped. Under @lock.
 * @holds: Number of imports of each unit of each member. Under @lock.
 */
struct tg_direct {
	struct kref ref;
	struct list_head node;
	struct tg_device *board;
	struct mutex lock;
	void __iomem *regs;
	void *base;
	phys_addr_t phys;
	u64 pair;
	u64 slice;
	u32 units;
	u32 first;
	u32 members;
	u32 place;
	bool observed;
	bool recheck;
	u32 nodes[TG_DIRECT_MAX_MEMBERS];
	u8 name[64] __aligned(8);
	unsigned long *used;
	unsigned long *retired;
	u16 *holds;
};

/* All memory devices. Taken inside op_lock, outside map_lock. */
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
	return direct->base + place * direct->slice;
}

/* This node's byte for a unit of a member, in that node's slice. */
static u8 *tg_direct_byte(const struct tg_direct *direct, u32 by, u32 place, u32 unit)
{
	return direct->base + by * direct->slice +
	       direct->units * (sizeof(struct tg_direct_unit) + place) + unit;
}

/* Whether a unit of a member is an export page under this generation. */
static bool tg_direct_is(const struct tg_direct *direct, u32 place, u32 unit, u32 page,
			 u64 generation)
{
	const struct tg_direct_unit *entry = tg_direct_entries(direct, place) + unit;

	return le64_to_cpu(READ_ONCE(entry->generation)) == generation &&
	       le32_to_cpu(READ_ONCE(entry->page)) == page;
}

/* Makes retired units free that no member has mapped. */
static void tg_direct_reclaim(struct tg_direct *direct)
{
	/* All ones if the server has gone: then nobody is known to be absent. */
	u64 present = readq(direct->regs + TG_DIRECT_PRESENT);
	u32 unit, by;

	lockdep_assert_held(&direct->lock);
	for_each_set_bit(unit, direct->retired, direct->units) {
		for (by = 0; by < direct->members; by++)
			if (present & BIT_ULL(by) &&
			    READ_ONCE(*tg_direct_byte(direct, by, direct->place, unit)))
				break;
		if (by < direct->members)
			continue;
		__clear_bit(unit, direct->retired);
		__clear_bit(unit, direct->used);
	}
}

/* ---- segments of this node ---- */

/* The memory device of a board, or NULL. */
static struct tg_direct *tg_direct_of(struct tg_device *tg)
{
	struct tg_direct *direct;

	lockdep_assert_held(&tg->op_lock);
	mutex_lock(&tg_direct_lock);
	if (!tg->direct && tg->direct_pair) {
		list_for_each_entry(direct, &tg_directs, node) {
			if (direct->pair != tg->direct_pair || direct->board)
				continue;
			kref_get(&direct->ref);
			direct->board = tg;
			tg->direct = direct;
			break;
		}
	}
	direct = tg->direct;
	mutex_unlock(&tg_direct_lock);
	return direct;
}

/**
 * tg_direct_group() - the name of a board's trust group
 * @tg: Board. The caller holds op_lock for reading.
 * @name: Filled in, NUL-padded; zeros if it is in none.
 */
void tg_direct_group(struct tg_device *tg, u8 name[64])
{
	const struct tg_direct *direct = tg_direct_of(tg);

	if (direct)
		memcpy(name, direct->name, sizeof(direct->name));
	else
		memset(name, 0, sizeof(direct->name));
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
	struct tg_direct *direct = tg_direct_of(tg);
	unsigned long unit;
	int err = 0;
	u64 offset;

	if (!direct || memcmp(group, direct->name, sizeof(direct->name)))
		return -EXDEV;
	mutex_lock(&direct->lock);
	if (!direct->base) {
		err = -ENODEV;
		goto out;
	}
	tg_direct_reclaim(direct);
	unit = bitmap_find_next_zero_area(direct->used, direct->units, direct->first, count, 0);
	if (unit >= direct->units) {
		err = -ENOSPC;
		goto out;
	}
	bitmap_set(direct->used, unit, count);
	offset = direct->place * direct->slice + unit * TG_UNIT;
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
			WRITE_ONCE(tg_direct_entries(direct, direct->place)[memory->unit + i].generation,
				   0);
		/* Before the bytes are read: see tg_direct_import(). */
		mb();
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
		entry = tg_direct_entries(direct, direct->place) + memory->unit + i;
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
 * Return: Page frame number.
 */
unsigned long tg_direct_pfn(const struct tg_memory *memory, unsigned long page)
{
	const struct tg_direct *direct = memory->direct;

	return ((direct->phys + direct->place * direct->slice + memory->unit * TG_UNIT) >>
		PAGE_SHIFT) + page;
}

/* ---- imports ---- */

/* Whether an import must be trapped. */
static bool tg_direct_must_trap(struct tg_device *tg, const struct tg_remote *remote)
{
	return remote->direct->observed || tg_counter_is_armed(tg, remote);
}

/* Looks at the register again; returns whether it has changed. */
static bool tg_direct_look(struct tg_direct *direct)
{
	bool before = direct->observed;

	mutex_lock(&direct->lock);
	direct->observed = direct->regs && readq(direct->regs + TG_DIRECT_OBSERVED) == 1;
	mutex_unlock(&direct->lock);
	return direct->observed != before;
}

/* Whether all units of an import are still those of its segment. */
static bool tg_direct_is_current(const struct tg_remote *remote)
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
		holds = &direct->holds[place * direct->units + unit];
		*holds += change;
		if (direct->base)
			WRITE_ONCE(*tg_direct_byte(direct, direct->place, place, unit), !!*holds);
	}
}

/* The first unit that is this export page; the number of units if there is none. */
static u32 tg_direct_find(const struct tg_direct *direct, u32 place, u32 page, u64 generation)
{
	u32 unit = direct->first;

	while (unit < direct->units && !tg_direct_is(direct, place, unit, page, generation))
		unit++;
	return unit;
}

static u32 tg_direct_place(const struct tg_direct *direct, u32 node)
{
	u32 place = 0;

	while (place < direct->members && direct->nodes[place] != node)
		place++;
	return place;
}

/**
 * tg_direct_import() - maps an import directly, if that is possible
 * @remote: Import that is open at the board and not published. The caller holds op_lock for
 *	reading.
 *
 * A write-only import is trapped: page tables could not refuse its loads.
 */
void tg_direct_import(struct tg_remote *remote)
{
	struct tg_device *tg = remote->obj.tg;
	struct tg_direct *direct = tg_direct_of(tg);

	if (!direct || !(remote->rights & TG_RIGHT_READ) || remote->rights & TG_RIGHT_ENQUEUE)
		return;
	remote->direct_place = tg_direct_place(direct, remote->node);
	if (remote->direct_place == direct->members)
		return;
	down_write(&tg->map_lock);
	tg_direct_look(direct);
	mutex_lock(&direct->lock);
	if (!direct->base)
		goto out;
	remote->direct_unit = tg_direct_find(direct, remote->direct_place, remote->page,
					     remote->generation);
	if (remote->direct_unit + remote->count > direct->units)
		goto out;
	kref_get(&direct->ref);
	remote->direct = direct;
	tg_direct_hold(direct, remote, 1);
	/* The owner first clears the entries and then reads the bytes: see tg_direct_free(). */
	mb();
	if (tg_direct_is_current(remote)) {
		remote->trapped = tg_direct_must_trap(tg, remote);
	} else {
		tg_direct_hold(direct, remote, -1);
		remote->direct = NULL;
		tg_direct_put(direct);
	}
out:
	mutex_unlock(&direct->lock);
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
	return ((direct->phys + remote->direct_place * direct->slice +
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
		remote->trapped = true;
		tg_zap(obj);
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
		if (quiet && !remote->state && !remote->status && !remote->obj.dead)
			remote->trapped = remote->direct && tg_direct_must_trap(tg, remote);
		wake_up_all(&remote->wait);
		up_write(&tg->map_lock);
		tg_object_put(&remote->obj);
	}
}

/**
 * tg_direct_recheck() - imports are direct again soon, if nothing traps them any more
 * @tg: Board, not gone. The caller holds op_lock for reading.
 *
 * Does not wait for other nodes, as tg_direct_untrap() does: for the end of an import, which
 * must not depend on the stores of others.
 */
void tg_direct_recheck(struct tg_device *tg)
{
	struct tg_direct *direct = tg->direct;

	lockdep_assert_held(&tg->op_lock);
	if (!direct)
		return;
	down_write(&tg->map_lock);
	direct->recheck = true;
	up_write(&tg->map_lock);
	mod_delayed_work(system_wq, &tg->watch, 0);
}

/**
 * tg_direct_watch() - ends imports whose segments are gone, and traps all that are to be seen
 * @tg: Board. The caller holds op_lock for reading.
 */
void tg_direct_watch(struct tg_device *tg)
{
	struct tg_direct *direct = tg->direct;
	struct tg_object *obj;
	unsigned long handle;
	bool changed;

	if (!direct)
		return;
	down_write(&tg->map_lock);
	changed = tg_direct_look(direct) || direct->recheck;
	direct->recheck = false;
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (!remote->direct)
			continue;
		if (direct->base && !tg_direct_is_current(remote)) {
			tg_remote_stale(remote);
		} else if (direct->observed && !remote->trapped) {
			remote->trapped = true;
			tg_zap(obj);
		}
	}
	up_write(&tg->map_lock);
	if (changed && !direct->observed)
		tg_direct_untrap(tg, TG_ALL_NODES, 0);
}

/**
 * tg_direct_detach() - a board does not use its memory device any more
 * @tg: Board, stopped, without exports and imports.
 */
void tg_direct_detach(struct tg_device *tg)
{
	struct tg_direct *direct;

	mutex_lock(&tg_direct_lock);
	direct = tg->direct;
	tg->direct = NULL;
	tg->direct_pair = 0;
	if (direct)
		direct->board = NULL;
	mutex_unlock(&tg_direct_lock);
	if (direct)
		tg_direct_put(direct);
}

/* ---- the device ---- */

/* Reads and checks what the device says about the group. */
static int tg_direct_identify(struct pci_dev *pdev, struct tg_direct *direct)
{
	u64 magic = readq(direct->regs + TG_DIRECT_MAGIC), tables;
	u32 version = readl(direct->regs + TG_DIRECT_VERSION), i;
	__le64 *name = (__le64 *)direct->name;

	if (magic != TG_DIRECT_MAGIC_VALUE || version != TG_DIRECT_VERSION_VALUE) {
		dev_err(&pdev->dev, "MAGIC %#llx, version %u: expected %#llx, version %u; use the driver that came with the server\n",
			magic, version, TG_DIRECT_MAGIC_VALUE, TG_DIRECT_VERSION_VALUE);
		return -ENODEV;
	}
	direct->pair = readq(direct->regs + TG_DIRECT_PAIR);
	direct->slice = readq(direct->regs + TG_DIRECT_SLICE_SIZE);
	direct->members = readl(direct->regs + TG_DIRECT_MEMBERS);
	direct->place = readl(direct->regs + TG_DIRECT_PLACE);
	direct->phys = pci_resource_start(pdev, TG_BAR_MEMORY);
	if (!direct->members || direct->members > TG_DIRECT_MAX_MEMBERS ||
	    direct->place >= direct->members || !direct->slice || direct->slice % TG_UNIT ||
	    direct->slice > pci_resource_len(pdev, TG_BAR_MEMORY) / direct->members) {
		dev_err(&pdev->dev, "%u members with %llu bytes each, this one the %u. of them, in BAR2 %pR: out of range\n",
			direct->members, direct->slice, direct->place,
			&pdev->resource[TG_BAR_MEMORY]);
		return -ENODEV;
	}
	for (i = 0; i < sizeof(direct->name) / 8; i++)
		name[i] = cpu_to_le64(readq(direct->regs + TG_DIRECT_NAME + 8 * i));
	direct->name[sizeof(direct->name) - 1] = 0;
	for (i = 0; i < direct->members; i++)
		direct->nodes[i] = readl(direct->regs + TG_DIRECT_MEMBER_NODES + 4 * i);
	direct->units = direct->slice >> TG_UNIT_SHIFT;
	tables = (u64)direct->units * (sizeof(struct tg_direct_unit) + direct->members);
	direct->first = DIV_ROUND_UP(tables, TG_UNIT);
	return 0;
}

static int tg_direct_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct tg_direct *direct;
	int err;

	direct = kzalloc(sizeof(*direct), GFP_KERNEL);
	if (!direct)
		return -ENOMEM;
	kref_init(&direct->ref);
	mutex_init(&direct->lock);
	pci_set_drvdata(pdev, direct);
	err = pci_enable_device(pdev);
	if (err)
		goto err_put;
	err = pci_request_regions(pdev, TG_NAME);
	if (err)
		goto err_disable;
	err = -ENOMEM;
	direct->regs = pci_iomap(pdev, TG_BAR_REGISTERS, TG_DIRECT_BAR0_SIZE);
	if (!direct->regs)
		goto err_regions;
	err = tg_direct_identify(pdev, direct);
	if (err)
		goto err_unmap;

	err = -ENOMEM;
	direct->used = bitmap_zalloc(direct->units, GFP_KERNEL);
	direct->retired = bitmap_zalloc(direct->units, GFP_KERNEL);
	direct->holds = kvcalloc(direct->members * direct->units, sizeof(*direct->holds),
				 GFP_KERNEL);
	if (!direct->used || !direct->retired || !direct->holds)
		goto err_unmap;
	/* As memory, so that user mappings of the same pages may be cached, too. */
	direct->base = memremap(direct->phys, direct->members * direct->slice, MEMREMAP_WB);
	if (!direct->base) {
		dev_err(&pdev->dev, "cannot map BAR2 %pR\n", &pdev->resource[TG_BAR_MEMORY]);
		goto err_unmap;
	}
	/*
	 * What a kernel before this one has exported is gone, and it has nothing mapped. But
	 * others may still have mapped what was exported: all units are retired until it is
	 * known that they have not.
	 */
	memset(tg_direct_entries(direct, direct->place), 0, direct->first * TG_UNIT);
	bitmap_set(direct->used, 0, direct->units);
	if (direct->first < direct->units)
		bitmap_set(direct->retired, direct->first, direct->units - direct->first);

	mutex_lock(&tg_direct_lock);
	list_add_tail(&direct->node, &tg_directs);
	mutex_unlock(&tg_direct_lock);
	dev_info(&pdev->dev, "trust group \"%s\": %u nodes with %llu MiB each\n", direct->name,
		 direct->members, direct->slice >> 20);
	return 0;

err_unmap:
	pci_iounmap(pdev, direct->regs);
err_regions:
	pci_release_regions(pdev);
err_disable:
	pci_disable_device(pdev);
err_put:
	tg_direct_put(direct);
	return err;
}

/* Its memory goes: imports use the board, segments die. */
static void tg_direct_lost(struct tg_direct *direct, struct tg_device *tg)
{
	struct tg_object *obj;
	unsigned long handle;

	lockdep_assert_held_write(&tg->map_lock);
	xa_for_each(&tg->objects[TG_MMAP_IMPORT], handle, obj) {
		struct tg_remote *remote = tg_remote_of(obj);

		if (remote->direct == direct) {
			tg_zap(obj);
			tg_direct_leave(remote);
		}
	}
	xa_for_each(&tg->objects[TG_MMAP_EXPORT], handle, obj) {
		const struct tg_memory *memory = tg_segment_of(obj)->memory;

		if (memory && memory->direct == direct) {
			obj->dead = true;
			tg_zap(obj);
		}
	}
}

static void tg_direct_remove(struct pci_dev *pdev)
{
	struct tg_direct *direct = pci_get_drvdata(pdev);
	void __iomem *regs = direct->regs;
	void *base = direct->base;
	struct tg_device *tg;

	mutex_lock(&tg_direct_lock);
	list_del(&direct->node);
	tg = direct->board;
	if (tg) {
		down_write(&tg->map_lock);
		tg_direct_lost(direct, tg);
	}
	mutex_lock(&direct->lock);
	direct->regs = NULL;
	direct->base = NULL;
	mutex_unlock(&direct->lock);
	if (tg)
		up_write(&tg->map_lock);
	mutex_unlock(&tg_direct_lock);

	memunmap(base);
	pci_iounmap(pdev, regs);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
	tg_direct_put(direct);
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
};
