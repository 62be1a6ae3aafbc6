// SPDX-License-Identifier: GPL-2.0
/*
 * Accounts: limits on the resources of a board that one process, and one user, may hold.
 *
 * Each resource has three bounds, in percent of its capacity (module parameters):
 *
 *  - file_share: the most that one open file holds; of contexts, of which an open file has
 *    one, the most that one process holds;
 *
 *  - user_share: the most that all files of a user hold, whichever processes have them
 *    open;
 *
 *  - reserve: divided equally among all possible files, and guaranteed to each of them
 *    whatever the others hold. Of contexts it is divided among TG_ACCOUNT_USERS users.
 *
 * Units that a file holds beyond its part of the reserve come out of the rest. So the files
 * of one user never use up the guarantee of another user's file, and a file that is within
 * its part of the reserve depends on no other.
 *
 * Users inside the kernel, which make what other nodes name as well, have the whole rest, and none
 * of the reserve of others.
 *
 * A process with CAP_SYS_RESOURCE may exceed all three, as it may a disk's quota and
 * reserved blocks. Its units are counted like any other's.
 *
 * Units are held until the board has released the resource, even if the process that took
 * them has exited.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/moduleparam.h>
#include <linux/overflow.h>
#include <linux/pid.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "driver.h"

/* Users that each have their part of the contexts' reserve. */
#define TG_ACCOUNT_USERS 8

static int tg_set_share(const char *value, const struct kernel_param *kp)
{
	return param_set_uint_minmax(value, kp, 1, 100);
}

static const struct kernel_param_ops tg_share_ops = {
	.set = tg_set_share,
	.get = param_get_uint,
};

static int tg_set_reserve(const char *value, const struct kernel_param *kp)
{
	return param_set_uint_minmax(value, kp, 0, 90);
}

static const struct kernel_param_ops tg_reserve_ops = {
	.set = tg_set_reserve,
	.get = param_get_uint,
};

static unsigned int file_share = 50;
module_param_cb(file_share, &tg_share_ops, &file_share, 0444);
MODULE_PARM_DESC(file_share, "Most of the imports, export pages, counters and window slots of a board that one open file may hold, and most of the contexts that one process may hold, in percent: 1 to 100 (default 50)");

static unsigned int user_share = 75;
module_param_cb(user_share, &tg_share_ops, &user_share, 0444);
MODULE_PARM_DESC(user_share, "Most of them that the files of one user may hold together, in percent: 1 to 100 (default 75)");

static unsigned int reserve = 25;
module_param_cb(reserve, &tg_reserve_ops, &reserve, 0444);
MODULE_PARM_DESC(reserve, "How much of them is kept in equal parts for all open files that there can be, in percent: 0 to 90 (default 25)");

static const char * const tg_resource_names[] = {
	[TG_RESOURCE_CONTEXTS] = "contexts",
	[TG_RESOURCE_IMPORTS] = "imports",
	[TG_RESOURCE_PAGES] = "export pages",
	[TG_RESOURCE_COUNTERS] = "page access counters",
	[TG_RESOURCE_SLOTS] = "window slots",
};

/* Where units are counted: those of a node's window by themselves. */
static u32 tg_account_of(enum tg_resource resource, u32 node)
{
	return resource == TG_RESOURCE_SLOTS ? TG_RESOURCE_SLOTS + node : resource;
}

static u32 tg_account_count(const struct tg_device *tg)
{
	return TG_RESOURCE_SLOTS + tg->nodes;
}

static u32 tg_percent(u32 units, u32 percent)
{
	return (u64)units * percent / 100;
}

static void tg_shares_init(struct tg_shares *shares, u32 capacity, bool by_user, u32 spenders)
{
	u32 kept = tg_percent(capacity, reserve);

	shares->capacity = capacity;
	shares->file_limit = max(tg_percent(capacity, file_share), 1U);
	shares->user_limit = max(tg_percent(capacity, user_share), 1U);
	/* With fewer units than spenders the first to come have one each. */
	shares->division.guaranteed = kept ? max(kept / spenders, 1U) : 0;
	shares->division.limit = by_user ? shares->user_limit : shares->file_limit;
	shares->division.pool = capacity - kept;
	atomic64_set(&shares->refused, 0);
}

/* For each resource its capacity, what is held beyond guarantees, and refusals. Refused names. */
static ssize_t accounts_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct tg_device *tg = container_of(dev, struct tg_device, dev);
	u32 i, node, borrowed;
	int at = 0;

	for (i = 0; i < TG_RESOURCES; i++) {
		const struct tg_shares *shares = &tg->shares[i];

		mutex_lock(&tg->lock);
		borrowed = tg->borrowed[i];
		/* Of the node of which most are. */
		if (i == TG_RESOURCE_SLOTS)
			for (node = 1; node < tg->nodes; node++)
				borrowed = max(borrowed, tg->borrowed[tg_account_of(i, node)]);
		mutex_unlock(&tg->lock);
		at += sysfs_emit_at(buf, at, "%s: capacity %u file %u user %u guaranteed %u pool %u borrowed %u refused %lld\n",
				    tg_resource_names[i], shares->capacity, shares->file_limit,
				    shares->user_limit, shares->division.guaranteed,
				    shares->division.pool, borrowed, (s64)atomic64_read(&shares->refused));
	}
	at += sysfs_emit_at(buf, at, "names of the kernel's own objects: refused %lld\n",
			    (s64)atomic64_read(&tg->names_refused));
	return at;
}
static DEVICE_ATTR_RO(accounts);

static struct attribute *tg_account_attrs[] = {
	&dev_attr_accounts.attr,
	NULL,
};
ATTRIBUTE_GROUPS(tg_account);

/**
 * tg_accounts_init() - divides the resources of a board, and shows how in sysfs
 * @tg: Board, identified, whose class device is not registered yet.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_accounts_init(struct tg_device *tg)
{
	const u32 capacities[TG_RESOURCES] = {
		[TG_RESOURCE_CONTEXTS] = tg->contexts,
		[TG_RESOURCE_IMPORTS] = min_t(u32, tg->import_limit, TG_CONTEXT_QUIET_ALL),
		/* See tg_watch(). */
		[TG_RESOURCE_PAGES] = tg->export_pages - 1,
		[TG_RESOURCE_COUNTERS] = tg->counter_limit,
		[TG_RESOURCE_SLOTS] = tg->slots,
	};
	u32 i;

	for (i = 0; i < TG_RESOURCES; i++)
		tg_shares_init(&tg->shares[i], capacities[i], i == TG_RESOURCE_CONTEXTS,
			       i == TG_RESOURCE_CONTEXTS ? TG_ACCOUNT_USERS : tg->contexts);
	tg->dev.groups = tg_account_groups;
	tg->borrowed = kvcalloc(tg_account_count(tg), sizeof(*tg->borrowed), GFP_KERNEL);
	return tg->borrowed ? 0 : -ENOMEM;
}

/**
 * tg_accounts_exit() - mirror of tg_accounts_init()
 * @tg: Board without users.
 */
void tg_accounts_exit(struct tg_device *tg)
{
	struct tg_user *user, *next;

	list_for_each_entry_safe(user, next, &tg->users, node)
		kvfree(user);
	kvfree(tg->borrowed);
}

/* Contexts that the files have which this file's process has opened. */
static u32 tg_account_contexts(const struct tg_file *file)
{
	const struct tg_device *tg = file->tg;
	u32 context, count = 0;

	for (context = 0; context < tg->contexts; context++)
		if (tg->files[context] && tg->files[context]->opener == file->opener)
			count++;
	return count;
}

/* Whether a user inside the kernel may have more: all that is not kept for others. */
static bool tg_account_of_kernel_allows(const struct tg_shares *shares, u32 borrowed, u32 held,
					u32 units)
{
	struct tg_division division = shares->division;

	division.limit = shares->capacity;
	return tg_division_allows(&division, borrowed, held, units);
}

static void tg_account_complain(struct tg_file *file, enum tg_resource resource, u32 units,
				u32 held, u32 user_held)
{
	const struct tg_shares *shares = &file->tg->shares[resource];

	dev_notice_ratelimited(&file->tg->dev, "process %d of user %u is refused %u %s more: it holds %u of at most %u, the user %u of at most %u, and %u of %u are kept for others\n",
			       pid_nr(file->opener), from_kuid(&init_user_ns, file->user->uid),
			       units, tg_resource_names[resource], held, shares->file_limit,
			       user_held, shares->user_limit,
			       shares->capacity - shares->division.pool, shares->capacity);
}

/**
 * tg_charge() - takes units for a file
 * @file: File. The caller holds tg_device.lock.
 * @resource: Of what.
 * @node: Of window slots: of which node's window. Else 0.
 * @units: How many.
 *
 * Return: 0; -ENOSPC if the file, its user, or the others' parts are in the way, and the
 * caller must not exceed that.
 */
int tg_charge(struct tg_file *file, enum tg_resource resource, u32 node, u32 units)
{
	struct tg_device *tg = file->tg;
	struct tg_shares *shares = &tg->shares[resource];
	u32 account = tg_account_of(resource, node);
	bool by_user = resource == TG_RESOURCE_CONTEXTS;
	u32 *user_held = &file->user->held[account];
	u32 *file_held = &file->held[account];
	bool allowed;
	u32 held;

	lockdep_assert_held(&tg->lock);
	held = by_user ? tg_account_contexts(file) : *file_held;
	/* A worker of the kernel has every capability. */
	if (file->ops)
		allowed = tg_account_of_kernel_allows(shares, tg->borrowed[account],
						      by_user ? *user_held : held, units);
	else
		allowed = (tg_division_allows(&shares->division, tg->borrowed[account],
					      by_user ? *user_held : held, units) &&
			   held + units <= shares->file_limit &&
			   *user_held + units <= shares->user_limit) ||
			  capable(CAP_SYS_RESOURCE);
	if (!allowed) {
		atomic64_inc(&shares->refused);
		tg_account_complain(file, resource, units, held, *user_held);
		return -ENOSPC;
	}
	tg_division_take(&shares->division, &tg->borrowed[account],
			 by_user ? user_held : file_held, units);
	*(by_user ? file_held : user_held) += units;
	return 0;
}

/**
 * tg_uncharge() - gives units back
 * @file: File. The caller holds tg_device.lock.
 * @resource: Of what.
 * @node: Of window slots: of which node's window. Else 0.
 * @units: How many, of those that it holds.
 */
void tg_uncharge(struct tg_file *file, enum tg_resource resource, u32 node, u32 units)
{
	struct tg_device *tg = file->tg;
	bool by_user = resource == TG_RESOURCE_CONTEXTS;
	u32 account = tg_account_of(resource, node);
	u32 *user_held = &file->user->held[account];
	u32 *file_held = &file->held[account];

	lockdep_assert_held(&tg->lock);
	tg_division_give(&tg->shares[resource].division, &tg->borrowed[account],
			 by_user ? user_held : file_held, units);
	*(by_user ? file_held : user_held) -= units;
}

static struct tg_user *tg_user_find(struct tg_device *tg, kuid_t uid)
{
	struct tg_user *user;

	lockdep_assert_held(&tg->lock);
	list_for_each_entry(user, &tg->users, node)
		if (uid_eq(user->uid, uid))
			return user;
	return NULL;
}

/**
 * tg_account_open() - opens the account of a file
 * @file: File, opened by the current process.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_account_open(struct tg_file *file)
{
	struct tg_device *tg = file->tg;
	struct tg_user *user, *fresh;

	file->held = kvcalloc(tg_account_count(tg), sizeof(*file->held), GFP_KERNEL_ACCOUNT);
	fresh = kvzalloc(struct_size(fresh, held, tg_account_count(tg)), GFP_KERNEL_ACCOUNT);
	if (!file->held || !fresh) {
		kvfree(file->held);
		kvfree(fresh);
		return -ENOMEM;
	}
	fresh->uid = current_uid();
	file->opener = get_pid(task_tgid(current));
	file->owner = get_uid(current_user());
	mutex_lock(&tg->lock);
	user = tg_user_find(tg, fresh->uid);
	if (!user) {
		user = fresh;
		fresh = NULL;
		list_add(&user->node, &tg->users);
	}
	user->files++;
	mutex_unlock(&tg->lock);
	kvfree(fresh);
	file->user = user;
	return 0;
}

/**
 * tg_account_close() - mirror of tg_account_open()
 * @file: File without users, which holds nothing but what its board never releases.
 */
void tg_account_close(struct tg_file *file)
{
	struct tg_device *tg = file->tg;
	struct tg_user *user = file->user;

	mutex_lock(&tg->lock);
	/* Units that the board has not released stay with the user. */
	if (--user->files ||
	    memchr_inv(user->held, 0, tg_account_count(tg) * sizeof(*user->held)))
		user = NULL;
	else
		list_del(&user->node);
	mutex_unlock(&tg->lock);
	kvfree(user);
	kvfree(file->held);
	free_uid(file->owner);
	put_pid(file->opener);
}
