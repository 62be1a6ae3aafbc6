/* SPDX-License-Identifier: GPL-2.0 */
/* How ioctls are handled: by the driver, and by the module for comparisons. */
#ifndef TELEGRAPHOS_IOCTL_H
#define TELEGRAPHOS_IOCTL_H

#include <linux/ioctl.h>
#include <linux/stddef.h>
#include <linux/types.h>

#include "telegraphos.h"

struct module;
struct tg_file;

/* What every structure begins with. */
struct tg_ioctl_head {
	__u32 size;
	__u32 flags;
};

union tg_ioctl_arg {
	struct tg_ioctl_head head;
	struct tg_info info;
	struct tg_export export;
	struct tg_import import;
	struct tg_handle handle;
	struct tg_import_state state;
	struct tg_launch launch;
	struct tg_counter counter;
	struct tg_notify notify;
	struct tg_queue queue;
	struct tg_queue_state queue_state;
	struct tg_queue_pop queue_pop;
	struct tg_replica replica;
	struct tg_replica_state replica_state;
};

/**
 * struct tg_call - an ioctl that is being handled
 * @file: Of which file.
 * @user: The caller's structure.
 * @size: Bytes of it that are written back.
 * @arg: Its copy.
 */
struct tg_call {
	struct tg_file *file;
	void __user *user;
	u32 size;
	union tg_ioctl_arg arg;
};

/**
 * struct tg_ioctl - how an ioctl is handled
 * @cmd: Its request number.
 * @min_size: Bytes of the first version of its structure.
 * @run: Handles it: 0 or a negative errno.
 * @board: Under op_lock for reading, and only while the board is not gone.
 * @replies: It writes the structure back itself. Otherwise that is done after success, if
 *	the request number says that there is something to write.
 */
struct tg_ioctl {
	unsigned int cmd;
	u32 min_size;
	int (*run)(struct tg_call *call);
	bool board;
	bool replies;
};

/**
 * struct tg_lab - the module for comparisons
 * @owner: The module, held while it handles an ioctl.
 * @ioctls: Its ioctls, from number TG_IOCTL_LAB on.
 * @count: Number of them.
 */
struct tg_lab {
	struct module *owner;
	const struct tg_ioctl *ioctls;
	u32 count;
};

#define TG_IOCTL(_cmd, _run, _struct, _last, ...)		\
	[_IOC_NR(_cmd) % TG_IOCTL_LAB] = {			\
		.cmd = _cmd,					\
		.min_size = offsetofend(struct _struct, _last),	\
		.run = _run,					\
		__VA_ARGS__					\
	}

int tg_reply(struct tg_call *call);
int tg_lab_register(const struct tg_lab *lab);
void tg_lab_unregister(const struct tg_lab *lab);

#endif /* TELEGRAPHOS_IOCTL_H */
