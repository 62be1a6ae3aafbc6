// SPDX-License-Identifier: GPL-2.0
/* Probe, removal and reset of boards. */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pm.h>
#include <linux/property.h>
#include <linux/pseudo_fs.h>
#include <linux/slab.h>

#include "compat.h"
#include "driver.h"

#define TG_MINORS 256

static dev_t tg_devt;
static DEFINE_IDA(tg_minors);

/* File system of the inodes whose i_mapping holds the boards' user mappings. */
#define TG_FS_MAGIC 0x54474d50
static struct vfsmount *tg_mount;

static int tg_fs_init_context(struct fs_context *fc)
{
	return init_pseudo(fc, TG_FS_MAGIC) ? 0 : -ENOMEM;
}

/* No owner: the module mounts it itself and could never be unloaded. */
static struct file_system_type tg_fs = {
	.name = TG_NAME,
	.init_fs_context = tg_fs_init_context,
	.kill_sb = kill_anon_super,
};

static char *tg_devnode(TG_DEVNODE_CONST struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0660;
	return NULL;
}

static struct class tg_class = {
	.name = TG_NAME,
	.devnode = tg_devnode,
};

/* Declares the board gone, unmaps all of it and wakes all waiters. May be called again. */
static void tg_device_lost(struct tg_device *tg)
{
	bool before;

	down_write(&tg->map_lock);
	before = tg->gone;
	WRITE_ONCE(tg->gone, true);
	if (!before) {
		tg_zap_all(tg);
		tg_remotes_lost(tg);
		tg_queues_lost(tg);
		tg_replicas_lost(tg);
	}
	up_write(&tg->map_lock);
	if (!before) {
		tg_admin_wake(tg);
		tg_contexts_lost(tg);
		tg_counters_lost(tg);
	}
}

static const struct tg_device_ops tg_device_ops = {
	.lost = tg_device_lost,
	.command_done = tg_admin_collect,
	.import = tg_remote_event,
	.nodes_down = tg_remotes_down,
	.node_up = tg_clients_node,
	.counter = tg_counter_event,
	.queue = tg_queue_event,
	.replica = tg_replica_event,
	.direct = tg_direct_event,
};

static void tg_watch(struct work_struct *work)
{
	struct tg_device *tg = container_of(to_delayed_work(work), struct tg_device, watch);
	/* The last page is never granted: the command has no effect. */
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_GRANT_CLEAR),
		.command.index = cpu_to_le32(tg->export_pages - 1),
		.command.count = cpu_to_le32(1),
	};
	struct tg_admin_result result;

	down_read(&tg->op_lock);
	if (!tg_gone(tg) && !tg_admin(tg, NULL, TG_ADMIN_QUICK, &request, &result) &&
	    !bitmap_empty(tg->contexts_used, tg->contexts))
		tg_device_watch(tg);
	up_read(&tg->op_lock);
}

/*
 * Whether BAR2 and BAR4 have addresses. What a port must reserve so that they always have is
 * explained at pref64_reserve() in wire/src/window.rs.
 */
static bool tg_has_addresses(struct tg_device *tg, u64 contexts, u64 window)
{
	struct pci_dev *pdev = tg->pdev;
	u64 reserve = 2 * max3(window, contexts, 2 * min(window, contexts));

	if (pci_resource_len(pdev, TG_BAR_CONTEXTS) >= contexts &&
	    pci_resource_len(pdev, TG_BAR_WINDOW) >= window)
		return true;
	dev_err(&pdev->dev, "BAR2 %pR, BAR4 %pR: expected at least %#llx and %#llx bytes; there was no space for them: give QEMU pref64-reserve=%lluM for the port (-device pcie-root-port,...,pref64-reserve=%lluM), or plug the board in before the start, or give the HIB a smaller window (telegraphos-hib --node-bits 3 --offset-bits 16 --contexts 16 fits any port)\n",
		&pdev->resource[TG_BAR_CONTEXTS], &pdev->resource[TG_BAR_WINDOW],
		contexts, window, reserve >> 20, reserve >> 20);
	return false;
}

static int tg_identify(struct tg_device *tg)
{
	struct device *dev = &tg->pdev->dev;
	u64 magic = readq(tg->regs + TG_REG_MAGIC);
	u32 version = readl(tg->regs + TG_REG_VERSION);
	u32 unit_shift = readl(tg->regs + TG_REG_UNIT_SHIFT);

	if (magic != TG_MAGIC) {
		dev_err(dev, "MAGIC is %#llx: expected %#llx; is the board's server running?\n",
			magic, TG_MAGIC);
		return -ENODEV;
	}
	if (version != TG_VERSION) {
		dev_err(dev, "register interface is version %u: this driver speaks %u; use the driver that came with the server\n",
			version, TG_VERSION);
		return -ENODEV;
	}
	if (unit_shift != TG_UNIT_SHIFT) {
		dev_err(dev, "unit is 2^%u bytes: this driver expects 2^%u\n",
			unit_shift, TG_UNIT_SHIFT);
		return -ENODEV;
	}
	if (PAGE_SIZE > TG_UNIT) {
		dev_err(dev, "PAGE_SIZE is %lu and the board's unit %lu: a page would show several imports; use a kernel with pages of at most the unit\n",
			PAGE_SIZE, TG_UNIT);
		return -ENODEV;
	}

	tg->node = readl(tg->regs + TG_REG_NODE);
	tg->node_bits = readl(tg->regs + TG_REG_NODE_BITS);
	tg->offset_bits = readl(tg->regs + TG_REG_OFFSET_BITS);
	tg->contexts = readl(tg->regs + TG_REG_CONTEXTS);
	tg->import_limit = readl(tg->regs + TG_REG_IMPORTS);
	tg->export_pages = readl(tg->regs + TG_REG_EXPORT_PAGES);
	tg->counter_limit = readl(tg->regs + TG_REG_COUNTERS);
	if (tg->counter_limit == U32_MAX) {
		dev_err(dev, "COUNTERS is not a register of this board: it has no keys, launches and page access counters; start the server that came with this driver\n");
		return -ENODEV;
	}
	if (tg->node_bits < 1 || tg->node_bits > 12 ||
	    tg->offset_bits < TG_UNIT_SHIFT || tg->offset_bits > 32 ||
	    tg->node >> tg->node_bits || !tg->contexts ||
	    tg->contexts > TG_CONTEXT_COUNT ||
	    !tg->import_limit || tg->import_limit > 0x10000 ||
	    !tg->export_pages || tg->export_pages > 1 << 24 ||
	    tg->counter_limit > 0x10000) {
		dev_err(dev, "out of range: node %u, node bits %u (1 to 12), offset bits %u (%u to 32), contexts %u (1 to %u), imports %u (1 to 65536), export pages %u (1 to 2^24), counters %u (0 to 65536)\n",
			tg->node, tg->node_bits, tg->offset_bits, TG_UNIT_SHIFT,
			tg->contexts, TG_CONTEXT_COUNT, tg->import_limit,
			tg->export_pages, tg->counter_limit);
		return -ENODEV;
	}
	tg->nodes = 1U << tg->node_bits;
	tg->slots = 1U << (tg->offset_bits - TG_UNIT_SHIFT);

	/* Four apertures, of which imports use the first three. */
	if (!tg_has_addresses(tg, (u64)tg->contexts << TG_UNIT_SHIFT,
			      4ULL << (tg->node_bits + tg->offset_bits)))
		return -ENODEV;
	tg->contexts_base = pci_resource_start(tg->pdev, TG_BAR_CONTEXTS);
	tg->window_base = pci_resource_start(tg->pdev, TG_BAR_WINDOW);
	return 0;
}

/*
 * A driver before this one that left in order has left no address of commands: see
 * tg_stop(). One that crashed, with its kernel or without, has left grants of memory that has
 * other owners now, to which other nodes could store as soon as bus mastering is on. They
 * cannot be revoked by a command, since the board cannot read one before that. The board
 * resets: it has no grants afterwards. The caller has switched bus mastering off.
 */
static int tg_take_over(struct tg_device *tg)
{
	unsigned long end = jiffies + TG_CLOSE_PATIENCE;

	if (!readq(tg->regs + TG_REG_ADMIN_BASE))
		return 0;
	dev_notice(&tg->pdev->dev, "a driver before this one has left the board in use: reset\n");
	writel(TG_CONTROL_RESET, tg->regs + TG_REG_CONTROL);
	while (readl(tg->regs + TG_REG_CONTROL) & TG_CONTROL_RESET) {
		if (time_after(jiffies, end)) {
			dev_err(&tg->pdev->dev, "the board does not reset in %u s: remove and re-plug it\n",
				TG_CLOSE_PATIENCE / HZ);
			return -ETIMEDOUT;
		}
		usleep_range(50, 200);
	}
	return 0;
}

/* Stops all DMA and interrupts of the board. */
static void tg_quiesce(struct tg_device *tg)
{
	if (tg_device_answers(tg)) {
		writel(0, tg->regs + TG_REG_CONTROL);
		writel(0, tg->regs + TG_REG_EVENT_SIZE);
		/* A kernel that crashed in special mode has not left it. */
		writeq(0, tg->regs + TG_REG_SPECIAL);
		/* Flushes the posted writes. */
		readl(tg->regs + TG_REG_CONTROL);
	}
	pci_clear_master(tg->pdev);
}

/*
 * Revokes all grants: those of a driver before this one, whose memory has other owners now,
 * or all of this one's. Also shows that commands work.
 */
static int tg_revoke_all(struct tg_device *tg, unsigned long end)
{
	union tg_request request = {
		.command.opcode = cpu_to_le32(TG_ADMIN_GRANT_CLEAR),
		.command.count = cpu_to_le32(tg->export_pages),
	};

	return tg_admin_exclusive(tg, &request, end);
}

static int tg_start(struct tg_device *tg)
{
	int err;

	writeq(tg->admin.dma, tg->regs + TG_REG_ADMIN_BASE);
	err = tg_revoke_all(tg, jiffies + TG_CLOSE_PATIENCE);
	if (err) {
		if (tg_device_memory_works(tg))
			dev_err(&tg->dev, "the board does not complete commands: is its server the right version?\n");
		return err;
	}
	writel(1, tg->regs + TG_REG_ERROR_ACK);
	writeq(tg->events.dma, tg->regs + TG_REG_EVENT_BASE);
	writeq(tg->events.index_dma, tg->regs + TG_REG_EVENT_INDEX);
	/* Starts a new queue at entry 0. */
	writel(tg->events.size, tg->regs + TG_REG_EVENT_SIZE);
	writel(TG_CONTROL_IRQ_ENABLE, tg->regs + TG_REG_CONTROL);
	return 0;
}

/* Has the board forget an object. As tg_take_down(). */
static bool tg_take_down_object(struct tg_device *tg, const struct tg_object *obj,
				unsigned long end)
{
	union tg_request withdraw = { .command.opcode = cpu_to_le32(TG_ADMIN_SEGMENT_WITHDRAW) };
	union tg_request unimport = { .command.opcode = cpu_to_le32(TG_ADMIN_IMPORT_CLEAR) };
	union tg_request revoke = {
		.command.opcode = cpu_to_le32(TG_ADMIN_GRANT_CLEAR),
		.command.count = cpu_to_le32(1),
	};
	const struct tg_segment *segment;

	if (obj->kind == TG_MMAP_IMPORT) {
		unimport.command.import = cpu_to_le16(obj->handle);
		return !tg_remote_of(obj)->set || !tg_admin_exclusive(tg, &unimport, end);
	}
	segment = tg_segment_of(obj);
	if (segment->published) {
		memcpy(withdraw.command.name, segment->name, sizeof(withdraw.command.name));
		if (tg_admin_exclusive(tg, &withdraw, end))
			return false;
	}
	/* All other grants are of pages, see tg_revoke_all(). */
	if (obj->kind == TG_MMAP_REGISTRATION && segment->granted) {
		revoke.command.index = cpu_to_le32(segment->first);
		if (tg_admin_exclusive(tg, &revoke, end))
			return false;
	}
	return true;
}

/* The same of all objects of a kind, those included that were torn down without the board. */
static bool tg_take_down_kind(struct tg_device *tg, u32 kind, unsigned long end)
{
	struct tg_object *obj;
	unsigned long i;

	xa_for_each(&tg->objects[kind], i, obj)
		if (!tg_take_down_object(tg, obj, end))
			return false;
	list_for_each_entry(obj, &tg->remains, remains)
		if (obj->kind == kind && !tg_take_down_object(tg, obj, end))
			return false;
	return true;
}

/*
 * Leaves the board without grants and contexts for another driver. The caller has taken
 * op_lock for writing, and no command is in progress. False if the board did not answer in
 * time.
 */
static bool tg_take_down(struct tg_device *tg)
{
	union tg_request disarm = { .counter.opcode = cpu_to_le32(TG_ADMIN_COUNTER_SET) };
	union tg_request close = { .command.opcode = cpu_to_le32(TG_ADMIN_CONTEXT_CLOSE) };
	unsigned long end = jiffies + TG_CLOSE_PATIENCE;
	unsigned long i;

	if (!tg_device_answers(tg) || tg_revoke_all(tg, end) ||
	    !tg_take_down_kind(tg, TG_MMAP_EXPORT, end) ||
	    !tg_take_down_kind(tg, TG_MMAP_QUEUE, end) ||
	    !tg_take_down_kind(tg, TG_MMAP_REPLICA, end) ||
	    !tg_take_down_kind(tg, TG_MMAP_REGISTRATION, end))
		return false;
	for (i = 0; i < tg->counter_limit; i++) {
		disarm.counter.index = cpu_to_le32(i);
		if (tg->counters[i].remote && tg_admin_exclusive(tg, &disarm, end))
			return false;
	}
	if (!tg_take_down_kind(tg, TG_MMAP_IMPORT, end))
		return false;
	for_each_set_bit(i, tg->contexts_used, tg->contexts) {
		close.command.context = cpu_to_le16(i);
		if (tg_admin_exclusive(tg, &close, end))
			return false;
	}
	return true;
}

/* Frees the board's number for another board, or for itself after a reset. May be called again. */
static void tg_number_free(struct tg_device *tg)
{
	if (tg->number >= 0)
		ida_free(&tg_minors, tg->number);
	tg->number = -1;
}

static void tg_device_release(struct device *dev)
{
	struct tg_device *tg = container_of(dev, struct tg_device, dev);
	u32 node, kind;

	if (tg->slots_used)
		for (node = 0; node < tg->nodes; node++)
			bitmap_free(tg->slots_used[node]);
	kvfree(tg->slots_used);
	bitmap_free(tg->pages_used);
	for (kind = 0; kind < TG_OBJECT_KINDS; kind++)
		xa_destroy(&tg->objects[kind]);
	xa_destroy(&tg->watched);
	bitmap_free(tg->contexts_used);
	kvfree(tg->files);
	kvfree(tg->counters);
	tg_accounts_exit(tg);
	/* No work of a file gets here: its file holds the board until it has returned. */
	tg_jobs_exit(tg);
	tg_admin_release(tg);
	iput(tg->mapping_inode);
	tg_number_free(tg);
	kfree(tg);
}

/* Allocates the part that outlives the board while files are open. */
static struct tg_device *tg_device_new(struct pci_dev *pdev)
{
	struct tg_device *tg;
	int minor, err;
	u32 kind;

	tg = kzalloc(sizeof(*tg), GFP_KERNEL);
	if (!tg)
		return ERR_PTR(-ENOMEM);
	minor = ida_alloc_max(&tg_minors, TG_MINORS - 1, GFP_KERNEL);
	if (minor < 0) {
		kfree(tg);
		return ERR_PTR(minor);
	}
	tg->ops = &tg_device_ops;
	tg->pdev = pdev;
	tg->number = minor;
	init_rwsem(&tg->op_lock);
	init_rwsem(&tg->map_lock);
	INIT_DELAYED_WORK(&tg->watch, tg_watch);
	INIT_WORK(&tg->direct_work, tg_direct_work);
	mutex_init(&tg->counter_lock);
	mutex_init(&tg->lock);
	spin_lock_init(&tg->wake_lock);
	INIT_LIST_HEAD(&tg->boards);
	INIT_LIST_HEAD(&tg->users);
	INIT_LIST_HEAD(&tg->memories);
	INIT_LIST_HEAD(&tg->remains);
	for (kind = 0; kind < TG_OBJECT_KINDS; kind++)
		xa_init_flags(&tg->objects[kind], XA_FLAGS_ALLOC);
	xa_init(&tg->watched);

	device_initialize(&tg->dev);
	tg->dev.class = &tg_class;
	tg->dev.parent = &pdev->dev;
	tg->dev.devt = MKDEV(MAJOR(tg_devt), MINOR(tg_devt) + minor);
	tg->dev.release = tg_device_release;
	err = dev_set_name(&tg->dev, TG_NAME "%d", minor);
	if (err)
		goto err_put;
	tg->mapping_inode = alloc_anon_inode(tg_mount->mnt_sb);
	if (IS_ERR(tg->mapping_inode)) {
		err = PTR_ERR(tg->mapping_inode);
		tg->mapping_inode = NULL;
		goto err_put;
	}
	return tg;

err_put:
	put_device(&tg->dev);
	return ERR_PTR(err);
}

/*
 * Whether DMA is cache-coherent, since processes cannot synchronise caches. Before 6.10
 * dma_need_sync() is true for every device behind an IOMMU; then firmware tables decide.
 */
static bool tg_is_coherent(struct tg_device *tg)
{
	struct pci_host_bridge *bridge = pci_find_host_bridge(tg->pdev->bus);

	return !dma_need_sync(&tg->pdev->dev, tg->admin.dma) ||
	       device_get_dma_attr(&bridge->dev) == DEV_DMA_COHERENT ||
	       (bridge->dev.parent &&
		device_get_dma_attr(bridge->dev.parent) == DEV_DMA_COHERENT);
}

static int tg_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct tg_device *tg;
	int err;

	tg = tg_device_new(pdev);
	if (IS_ERR(tg))
		return PTR_ERR(tg);
	pci_set_drvdata(pdev, tg);

	err = pci_enable_device(pdev);
	if (err) {
		dev_err(&pdev->dev, "cannot be enabled: error %d; if a BAR has no address, telegraphos-hib prints the pref64-reserve=SIZE that its port needs\n",
			err);
		goto err_put;
	}
	err = pci_request_regions(pdev, TG_NAME);
	if (err)
		goto err_disable;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		goto err_regions;
	tg->regs = pci_iomap(pdev, TG_BAR_REGISTERS, TG_BAR0_SIZE);
	if (!tg->regs) {
		dev_err(&pdev->dev, "cannot map BAR0 %pR\n", &pdev->resource[TG_BAR_REGISTERS]);
		err = -ENOMEM;
		goto err_regions;
	}
	err = tg_identify(tg);
	if (err)
		goto err_unmap;

	err = -ENOMEM;
	tg->contexts_io = pci_iomap(pdev, TG_BAR_CONTEXTS, 0);
	if (!tg->contexts_io) {
		dev_err(&pdev->dev, "cannot map BAR2 %pR\n", &pdev->resource[TG_BAR_CONTEXTS]);
		goto err_unmap;
	}
	tg->contexts_used = bitmap_zalloc(tg->contexts, GFP_KERNEL);
	tg->files = kvcalloc(tg->contexts, sizeof(*tg->files), GFP_KERNEL);
	tg->counters = kvcalloc(max(tg->counter_limit, 1U), sizeof(*tg->counters), GFP_KERNEL);
	tg->pages_used = bitmap_zalloc(tg->export_pages, GFP_KERNEL);
	tg->slots_used = kvcalloc(tg->nodes, sizeof(*tg->slots_used), GFP_KERNEL);
	if (!tg->contexts_used || !tg->files || !tg->counters || !tg->pages_used ||
	    !tg->slots_used)
		goto err_unmap;
	/* See tg_watch(). */
	__set_bit(tg->export_pages - 1, tg->pages_used);
	err = tg_accounts_init(tg);
	if (err)
		goto err_unmap;
	err = tg_jobs_init(tg);
	if (err)
		goto err_unmap;
	err = tg_admin_init(tg);
	if (err)
		goto err_unmap;
	err = -ENODEV;
	if (!tg_is_coherent(tg)) {
		dev_err(&pdev->dev, "not cache-coherent: processes could not see what the board writes; expected a coherent host bridge: use another machine type for the virtual machine\n");
		goto err_admin;
	}
	err = tg_events_init(tg);
	if (err)
		goto err_admin;
	err = tg_direct_attach(tg);
	if (err)
		goto err_events;

	/*
	 * Activity of a previous driver is stopped before the board can write, and its
	 * grants are revoked before other nodes can.
	 */
	tg_quiesce(tg);
	err = tg_take_over(tg);
	if (err)
		goto err_quiesce;
	pci_set_master(pdev);
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSI | PCI_IRQ_MSIX);
	if (err < 0) {
		dev_err(&pdev->dev, "neither MSI nor MSI-X: error %d\n", err);
		goto err_quiesce;
	}
	/* MSI and MSI-X are edges: more may come while the thread runs. */
	err = request_threaded_irq(pci_irq_vector(pdev, 0), tg_irq, tg_irq_thread, 0,
				   dev_name(&tg->dev), tg);
	if (err)
		goto err_vectors;
	err = tg_start(tg);
	if (err)
		goto err_stop;

	cdev_init(&tg->cdev, &tg_fops);
	tg->cdev.owner = THIS_MODULE;
	err = cdev_device_add(&tg->cdev, &tg->dev);
	if (err)
		goto err_stop;
	tg_debugfs_add(tg);
	dev_info(&pdev->dev, "%s: node %u of %u, window %llu KiB per node, %s\n",
		 dev_name(&tg->dev), tg->node, tg->nodes, 1ULL << (tg->offset_bits - 10),
		 pdev->msix_enabled ? "MSI-X" : "MSI");
	tg_clients_add(tg);
	return 0;

err_stop:
	tg_quiesce(tg);
	free_irq(pci_irq_vector(pdev, 0), tg);
	cancel_delayed_work_sync(&tg->events.ack_error);
err_vectors:
	pci_free_irq_vectors(pdev);
err_quiesce:
	pci_clear_master(pdev);
	tg_direct_detach(tg);
err_events:
	tg_events_exit(tg);
err_admin:
	tg_admin_exit(tg);
err_unmap:
	if (tg->contexts_io)
		pci_iounmap(pdev, tg->contexts_io);
	pci_iounmap(pdev, tg->regs);
err_regions:
	pci_release_regions(pdev);
err_disable:
	pci_disable_device(pdev);
err_put:
	pci_set_drvdata(pdev, NULL);
	put_device(&tg->dev);
	return err;
}

/* Ends all use of the board. */
static void tg_stop(struct tg_device *tg)
{
	tg_device_lost(tg);
	/* All holders have been woken, and return. */
	down_write(&tg->op_lock);
	if (!tg->stopped) {
		bool clean = tg_take_down(tg);

		tg_quiesce(tg);
		/* The next driver need not reset the board. */
		if (clean)
			writeq(0, tg->regs + TG_REG_ADMIN_BASE);
		tg->stopped = true;
	}
	up_write(&tg->op_lock);
}

static void tg_remove(struct pci_dev *pdev)
{
	struct tg_device *tg = pci_get_drvdata(pdev);

	/* A reset after which it could not be used. */
	if (!tg)
		return;
	tg_clients_leaving(tg);
	/* No file there is being read after this. */
	debugfs_remove(tg->debugfs);
	cdev_device_del(&tg->cdev, &tg->dev);
	/* Programs may keep it open for long, and expect the next board under the same name. */
	tg_number_free(tg);
	tg_stop(tg);
	/* The board is gone: nothing of theirs waits for other nodes. */
	tg_clients_remove(tg);
	tg_objects_forget(tg);
	cancel_delayed_work_sync(&tg->watch);
	free_irq(pci_irq_vector(pdev, 0), tg);
	cancel_delayed_work_sync(&tg->events.ack_error);
	pci_free_irq_vectors(pdev);
	/* Before the memory goes: a memory device that goes at the same time looks at exports. */
	tg_direct_detach(tg);
	tg_memory_free_all(tg);
	tg_events_exit(tg);
	tg_admin_exit(tg);
	pci_iounmap(pdev, tg->contexts_io);
	pci_iounmap(pdev, tg->regs);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
	pci_set_drvdata(pdev, NULL);
	put_device(&tg->dev);
}

/* No board may write into the memory of a kernel that kexec starts. */
static void tg_shutdown(struct pci_dev *pdev)
{
	struct tg_device *tg = pci_get_drvdata(pdev);

	if (tg)
		tg_stop(tg);
}

/*
 * A reset of the function is to processes what unplugging and plugging is: nothing that they
 * had at the board survives it. Files that are open fail from now on, and are opened anew. The
 * kernel calls both with the device locked, as it calls probe() and remove().
 */
static void tg_reset_prepare(struct pci_dev *pdev)
{
	dev_notice(&pdev->dev, "is being reset: all exports and imports end\n");
	tg_remove(pdev);
}

static void tg_reset_done(struct pci_dev *pdev)
{
	int err = tg_probe(pdev, NULL);

	if (err)
		dev_err(&pdev->dev, "cannot be used after the reset: error %d; unbind and bind the driver to try again\n",
			err);
}

static const struct pci_error_handlers tg_error_handlers = {
	.reset_prepare = tg_reset_prepare,
	.reset_done = tg_reset_done,
};

static const struct pci_device_id tg_ids[] = {
	{ PCI_DEVICE(TG_PCI_VENDOR_ID, TG_PCI_DEVICE_ID_NIC) },
	{ }
};
MODULE_DEVICE_TABLE(pci, tg_ids);

static struct pci_driver tg_driver = {
	.name = TG_NAME,
	.id_table = tg_ids,
	.probe = tg_probe,
	.remove = tg_remove,
	.shutdown = tg_shutdown,
	.err_handler = &tg_error_handlers,
	.driver.pm = pm_sleep_ptr(&tg_pm_ops),
};

static int __init tg_init(void)
{
	int err;

	err = tg_init_workers();
	if (err)
		return err;
	tg_mount = kern_mount(&tg_fs);
	err = PTR_ERR_OR_ZERO(tg_mount);
	if (err)
		goto err_workers;
	err = class_register(&tg_class);
	if (err)
		goto err_mount;
	err = alloc_chrdev_region(&tg_devt, 0, TG_MINORS, TG_NAME);
	if (err)
		goto err_class;
	tg_debugfs_init();
	err = pci_register_driver(&tg_direct_driver);
	if (err)
		goto err_debugfs;
	err = pci_register_driver(&tg_driver);
	if (err)
		goto err_direct;
	err = tg_sleep_init(&tg_driver, &tg_direct_driver);
	if (err)
		goto err_driver;
	return 0;

err_driver:
	pci_unregister_driver(&tg_driver);
err_direct:
	pci_unregister_driver(&tg_direct_driver);
err_debugfs:
	tg_debugfs_exit();
	unregister_chrdev_region(tg_devt, TG_MINORS);
err_class:
	class_unregister(&tg_class);
err_mount:
	kern_unmount(tg_mount);
err_workers:
	tg_exit_workers();
	return err;
}

static void __exit tg_exit(void)
{
	tg_sleep_exit();
	pci_unregister_driver(&tg_driver);
	pci_unregister_driver(&tg_direct_driver);
	tg_debugfs_exit();
	/* The last teardowns. A file's works end before its context does. */
	wait_event(tg_files_gone, !atomic_read(&tg_files));
	/* After these no reference to a board is left, and none of this code runs. */
	tg_exit_workers();
	unregister_chrdev_region(tg_devt, TG_MINORS);
	class_unregister(&tg_class);
	kern_unmount(tg_mount);
	ida_destroy(&tg_minors);
}

module_init(tg_init);
module_exit(tg_exit);
MODULE_DESCRIPTION("Telegraphos host interface board");
MODULE_AUTHOR("The Telegraphos authors");
MODULE_LICENSE("GPL");
