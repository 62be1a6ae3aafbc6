// SPDX-License-Identifier: GPL-2.0
/* Names that programs give to objects. */
#include <linux/cred.h>
#include <linux/sched.h>

#include "driver.h"

/*
 * Whether an object may have a name: printable ASCII, NUL-padded, not empty, so it can be logged,
 * and no two names look alike. The board refuses other names, too.
 */
static bool tg_name_is_valid(const u8 name[64])
{
	size_t length = strnlen(name, 64);
	size_t i;

	for (i = 0; i < length; i++) {
		if (name[i] < ' ' || name[i] > '~')
			return false;
	}
	return length && length < 64 && !memchr_inv(name + length, 0, 64 - length);
}

/**
 * tg_name_take() - puts a name that a program gives into its final form
 * @file: File of the program.
 * @name: Name, NUL-padded to 64 bytes.
 * @flags: TG_NAME_OF_CONNECTION, or not. Others mean nothing here.
 * @connection: With that flag the descriptor of a connection, else 0.
 * @import: Whether it names what another node exports.
 *
 * Return: 0; -EINVAL for a name that no object may have, for one of a connection without its
 * descriptor, or for a descriptor without the flag; -EPERM for a name of the kernel's own objects,
 * which the kernel alone exports and imports; or as tg_name_of_connection().
 */
int tg_name_take(struct tg_file *file, u8 name[64], u32 flags, int connection, bool import)
{
	struct tg_device *tg = file->tg;

	if (!tg_name_is_valid(name))
		return -EINVAL;
	if (!file->kernel && !strncmp(name, TG_KERNEL_PREFIX, strlen(TG_KERNEL_PREFIX))) {
		atomic64_inc(&tg->names_refused);
		dev_notice_ratelimited(&tg->dev, "process %d of user %u is refused the name \"%*pE\": it is of the kernel's own objects\n",
				       task_tgid_nr(current),
				       from_kuid(&init_user_ns, current_uid()),
				       tg_name_length(name), name);
		return -EPERM;
	}
	if (flags & TG_NAME_OF_CONNECTION)
		return tg_name_of_connection(name, connection, import);
	if (connection || !strncmp(name, TG_CONNECTION_PREFIX, strlen(TG_CONNECTION_PREFIX)))
		return -EINVAL;
	return 0;
}
