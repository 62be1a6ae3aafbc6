/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of telegraphos_lab.ko share. */
#ifndef TELEGRAPHOS_LAB_H
#define TELEGRAPHOS_LAB_H

#include "telegraphos.h"

struct tg_file;

/* launch.c */
int tg_launch(struct tg_file *file, struct tg_launch *arg);

/* lab_queue.c */
int tg_queue_pop(struct tg_file *file, const struct tg_queue_pop *arg,
		 struct tg_queue_pop __user *user);

#endif /* TELEGRAPHOS_LAB_H */
