// SPDX-License-Identifier: GPL-2.0
/*
 * Suspend, hibernation, and the restore of a hibernated system.
 *
 * Nothing that boards and memory devices have outlives that: emulators reset them when the system
 * wakes up, and a hibernated system finds others. So sleep is a removal of each device, and its
 * end is a probe, as for a reset of the function. Files that are open fail from then on, and are
 * opened anew.
 *
 * A notifier does it and no method of the driver, since processes still run then: those that wait
 * for a board return, so that none which waits for another node keeps the system awake.
 */
#include <linux/device.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/pm.h>
#include <linux/suspend.h>

#include "driver.h"

static int tg_refuse_sleep(struct device *dev)
{
	if (!dev_get_drvdata(dev))
		return 0;
	dev_err(dev, "was bound or reset while the system was going to sleep, and is in use: it stays awake; try again\n");
	return -EBUSY;
}

const struct dev_pm_ops tg_pm_ops = {
	.suspend = pm_sleep_ptr(tg_refuse_sleep),
	.freeze = pm_sleep_ptr(tg_refuse_sleep),
	.poweroff = pm_sleep_ptr(tg_refuse_sleep),
};

/* That of the boards, and that of the memory devices. */
static struct pci_driver *tg_sleep_boards;
static struct pci_driver *tg_sleep_memory;

static int tg_sleep_begin(struct device *dev, void *of)
{
	struct pci_driver *driver = of;
	struct pci_dev *pdev = to_pci_dev(dev);

	device_lock(dev);
	if (dev->driver == &driver->driver && pci_get_drvdata(pdev)) {
		dev_notice(dev, "the system goes to sleep: all exports and imports end\n");
		driver->remove(pdev);
	}
	device_unlock(dev);
	return 0;
}

static int tg_sleep_end(struct device *dev, void *of)
{
	struct pci_driver *driver = of;
	struct pci_dev *pdev = to_pci_dev(dev);
	int err = 0;

	device_lock(dev);
	if (dev->driver == &driver->driver && !pci_get_drvdata(pdev))
		err = driver->probe(pdev, NULL);
	if (err)
		dev_err(dev, "cannot be used after the system's sleep: error %d; unbind and bind the driver to try again\n",
			err);
	device_unlock(dev);
	/* The others are tried regardless. */
	return 0;
}

static int tg_sleep_each(struct pci_driver *driver, int (*what)(struct device *dev, void *of))
{
	return driver_for_each_device(&driver->driver, NULL, driver, what);
}

static int tg_sleep_notify(struct notifier_block *notifier, unsigned long event, void *unused)
{
	int err = 0;

	switch (event) {
	case PM_SUSPEND_PREPARE:
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		err = tg_sleep_each(tg_sleep_boards, tg_sleep_begin) ? :
		      tg_sleep_each(tg_sleep_memory, tg_sleep_begin);
		break;
	case PM_POST_SUSPEND:
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		err = tg_sleep_each(tg_sleep_memory, tg_sleep_end) ? :
		      tg_sleep_each(tg_sleep_boards, tg_sleep_end);
		break;
	}
	return notifier_from_errno(err);
}

static struct notifier_block tg_sleep_notifier = {
	.notifier_call = tg_sleep_notify,
};

/**
 * tg_sleep_init() - has the drivers take part in the system's sleep
 * @boards: Driver of the boards.
 * @memory: Driver of the memory devices, which sleep after the boards and wake up before them.
 *
 * Return: 0 or a negative errno.
 */
int tg_sleep_init(struct pci_driver *boards, struct pci_driver *memory)
{
	tg_sleep_boards = boards;
	tg_sleep_memory = memory;
	return register_pm_notifier(&tg_sleep_notifier);
}

/**
 * tg_sleep_exit() - mirror of tg_sleep_init()
 */
void tg_sleep_exit(void)
{
	unregister_pm_notifier(&tg_sleep_notifier);
}
