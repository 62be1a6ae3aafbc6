/* SPDX-License-Identifier: GPL-2.0 */
/* What direct.c and direct_event.c share: the record of a memory device and the board beside it. */
#ifndef TELEGRAPHOS_DIRECT_H
#define TELEGRAPHOS_DIRECT_H

#include "driver.h"

/**
 * struct tg_group - a trust group, as a memory device describes it
 * @slice: Bytes of a slice.
 * @units: Units of a slice.
 * @first: First unit behind the tables.
 * @members: Number of members of the group.
 * @place: This node's place among them.
 * @nodes: Their nodes.
 * @name: The group's name, NUL-terminated.
 */
struct tg_group {
	u64 slice;
	u32 units;
	u32 first;
	u32 members;
	u32 place;
	u32 nodes[TG_DIRECT_MAX_MEMBERS];
	u8 name[64] __aligned(8);
};

/**
 * struct tg_direct - a memory device and the board beside it
 * @ref: References: the device's, its board's, its memories', and its imports'.
 * @node: In tg_directs.
 * @board: The board, while it has a driver. Under tg_direct_lock.
 * @pdev: The memory device, while it has a driver. Under tg_direct_lock.
 * @pair: The number that both have.
 * @lock: Serialises changes of this node's slice. Inside map_lock.
 * @regs: BAR0. NULL without @pdev. Under @lock.
 * @base: BAR2, mapped as the memory that it is. NULL without @pdev. Changed under the board's
 *	map_lock for writing and @lock.
 * @phys: Physical address of BAR2. As @base.
 * @group: The trust group: the same whenever there is a @pdev. Zeros before the first one.
 * @observed: All imports are trapped: as the register says, when last looked at. Under the
 *	board's map_lock.
 * @rejoin: @pdev is new: imports may have their segments there. Under the board's map_lock.
 * @used: Own units that hold tables, a segment, or are retired. Under @lock.
 * @retired: Own units that other members may still have mapped. Under @lock.
 * @holds: Number of imports of each unit of each member. Under @lock.
 * @events: Events of the board. This and the next four under the board's map_lock.
 * @observations: Changes of @observed.
 * @trapped: Imports that were direct and have been trapped, for whatever reason.
 * @untrapped: Imports that were trapped and are direct.
 * @ended: Imports whose segment was gone, as the tables say.
 * @faults: Page faults that have mapped a page of direct memory.
 * @huge_faults: The same of a huge page.
 */
struct tg_direct {
	struct kref ref;
	struct list_head node;
	struct tg_device *board;
	struct pci_dev *pdev;
	u64 pair;
	struct mutex lock;
	void __iomem *regs;
	void *base;
	phys_addr_t phys;
	struct tg_group group;
	bool observed;
	bool rejoin;
	unsigned long *used;
	unsigned long *retired;
	u16 *holds;
	u64 events;
	u64 observations;
	u64 trapped;
	u64 untrapped;
	u64 ended;
	atomic64_t faults;
	atomic64_t huge_faults;
};

bool tg_direct_is_current(const struct tg_remote *remote);
void tg_direct_trap_one(struct tg_remote *remote);
void tg_direct_join(struct tg_remote *remote);

#endif /* TELEGRAPHOS_DIRECT_H */
