/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Ioctls in progress, and tables of ioctls, of the driver and of the module for comparisons. What
 * handles them is in the file of the object that they are about.
 */
#ifndef TELEGRAPHOS_CALL_H
#define TELEGRAPHOS_CALL_H

#include <linux/build_bug.h>
#include <linux/ioctl.h>
#include <linux/stddef.h>
#include <linux/types.h>

#include "telegraphos.h"

struct module;
struct tg_file;
struct tg_ioctl;
struct tg_object;

/* The first fields of every structure. */
struct tg_ioctl_head {
	__u32 size;
	__u32 flags;
};

/* Those that name a segment, a queue or a replicated segment begin like a struct tg_export. */
static_assert(offsetof(struct tg_export, name) == offsetof(struct tg_import, name));
static_assert(offsetof(struct tg_export, name) == offsetof(struct tg_queue, name));
static_assert(offsetof(struct tg_export, name) == offsetof(struct tg_replica, name));

/* Those that name an object, and no more than that, begin like a struct tg_handle. */
static_assert(offsetof(struct tg_handle, handle) == offsetof(struct tg_import_state, handle));
static_assert(offsetof(struct tg_handle, handle) == offsetof(struct tg_queue_state, handle));
static_assert(offsetof(struct tg_handle, handle) == offsetof(struct tg_queue_pop, handle));
static_assert(offsetof(struct tg_handle, handle) == offsetof(struct tg_replica_state, handle));
static_assert(offsetof(struct tg_handle, handle) ==
	      offsetof(struct tg_registration_state, handle));

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
	struct tg_wait wait;
	struct tg_queue queue;
	struct tg_queue_state queue_state;
	struct tg_queue_pop queue_pop;
	struct tg_replica replica;
	struct tg_replica_state replica_state;
	struct tg_register registration;
	struct tg_registration_state registration_state;
};

/**
 * struct tg_call - an ioctl in progress
 * @file: Its file.
 * @op: Its row of the table.
 * @user: The caller's structure.
 * @size: Bytes of it that are written back.
 * @arg: Its copy.
 * @accepted: Lengths of another node's segment that a user in the kernel accepts; else NULL.
 * @obj: Object that it names, held; or NULL.
 * @created: Object that the handler has made, also if it failed midway; or NULL. It is
 *	published after success and after the structure is written back, else discarded.
 */
struct tg_call {
	struct tg_file *file;
	const struct tg_ioctl *op;
	void __user *user;
	u32 size;
	union tg_ioctl_arg arg;
	const struct tg_lengths *accepted;
	struct tg_object *obj;
	struct tg_object *created;
};

/**
 * enum tg_reply_when - when the structure of an ioctl is written back
 * @TG_REPLY_ON_SUCCESS: After success, if the direction of its request number says so.
 * @TG_REPLY_ALWAYS: After failure, too: its status says more than errno.
 * @TG_REPLY_BY_HANDLER: The handler writes back what there is to write.
 */
enum tg_reply_when {
	TG_REPLY_ON_SUCCESS,
	TG_REPLY_ALWAYS,
	TG_REPLY_BY_HANDLER,
};

/**
 * struct tg_ioctl - how an ioctl is handled
 * @cmd: Its request number.
 * @min_size: Bytes of the first version of its structure.
 * @flags: Those that it has.
 * @run: Handles it: 0; a negative errno; or TG_ERR_*, for which the caller gets what
 *	tg_status_to_errno() makes of it.
 * @undo: Undoes it, as it was run, if its structure cannot be written back. NULL if nothing
 *	is left to do.
 * @board: Run under op_lock for reading, and only while the board is not gone.
 * @named: Its structure begins like a struct tg_export, whose name is checked before.
 * @reply: When the structure is written back.
 * @kind: Kind of the object that its structure, which begins like a struct tg_handle, names.
 *	The object is found before, and put after it runs. 0: none.
 */
struct tg_ioctl {
	unsigned int cmd;
	u32 min_size;
	u32 flags;
	int (*run)(struct tg_call *call);
	int (*undo)(struct tg_call *call);
	bool board;
	bool named;
	enum tg_reply_when reply;
	u32 kind;
};

/**
 * struct tg_lab - the module for comparisons
 * @owner: The module, held while it handles an ioctl.
 * @ioctls: Its ioctls, from number TG_IOCTL_LAB on.
 * @count: Number of them.
 * @kernel: Files that root opens are the kernel's own: see tg_lab_opens_for_kernel().
 */
struct tg_lab {
	struct module *owner;
	const struct tg_ioctl *ioctls;
	u32 count;
	bool kernel;
};

#define TG_IOCTL(_cmd, _run, _struct, _last, ...)		\
	[_IOC_NR(_cmd) % TG_IOCTL_LAB] = {			\
		.cmd = _cmd,					\
		.min_size = offsetofend(struct _struct, _last),	\
		.run = _run,					\
		__VA_ARGS__					\
	}

bool tg_lab_opens_for_kernel(void);
int tg_lab_register(const struct tg_lab *lab);
void tg_lab_unregister(const struct tg_lab *lab);

#endif /* TELEGRAPHOS_CALL_H */
