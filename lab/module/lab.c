// SPDX-License-Identifier: GPL-2.0
/*
 * telegraphos_lab.ko: operations of processes, done by the kernel instead. It is loaded for
 * comparisons only, and no program needs it.
 */
#include <linux/bug.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "call.h"
#include "driver.h"
#include "lab_ioctls.h"

static const struct tg_ioctl tg_lab_ioctls[] = {
	TG_IOCTL(TG_IOCTL_LAUNCH, tg_launch, tg_launch, slot, .reply = TG_REPLY_ALWAYS),
	TG_IOCTL(TG_IOCTL_QUEUE_POP, tg_queue_pop, tg_queue_pop, value,
		 .reply = TG_REPLY_BY_HANDLER, .kind = TG_MMAP_QUEUE),
};

static bool kernel;
module_param(kernel, bool, 0444);
MODULE_PARM_DESC(kernel, "Files of boards that root opens while this module is loaded are the kernel's own, as those of telegraphos_net.ko: for tests of hostile kernels (default no)");

/* It ends in its first instruction. */
static int tg_lab_fail(void *unused)
{
	BUG();
	return 0;
}

static int tg_lab_oops(const char *value, const struct kernel_param *parameter)
{
	struct task_struct *thread = kthread_run(tg_lab_fail, NULL, "tg_lab_oops");

	if (IS_ERR(thread))
		return PTR_ERR(thread);
	/* The writer continues when the report is in the log. */
	msleep(200);
	return 0;
}

static const struct kernel_param_ops tg_lab_oops_ops = { .set = tg_lab_oops };

module_param_cb(oops, &tg_lab_oops_ops, NULL, 0200);
MODULE_PARM_DESC(oops, "A write makes the kernel report a bug, and continue: for tests of what watches it");

static struct tg_lab tg_lab_this = {
	.owner = THIS_MODULE,
	.ioctls = tg_lab_ioctls,
	.count = ARRAY_SIZE(tg_lab_ioctls),
};

static int __init tg_lab_init(void)
{
	tg_lab_this.kernel = kernel;
	return tg_lab_register(&tg_lab_this);
}

static void __exit tg_lab_exit(void)
{
	tg_lab_unregister(&tg_lab_this);
}

module_init(tg_lab_init);
module_exit(tg_lab_exit);
MODULE_DESCRIPTION("Telegraphos: launches and dequeue in the kernel, for comparisons");
MODULE_AUTHOR("The Telegraphos authors");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS(TG_LAB_NS);
