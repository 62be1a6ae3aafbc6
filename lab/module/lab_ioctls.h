/* SPDX-License-Identifier: GPL-2.0 */
/* The ioctls of telegraphos_lab.ko, which lab.c has in its table. */
#ifndef TELEGRAPHOS_LAB_IOCTLS_H
#define TELEGRAPHOS_LAB_IOCTLS_H

struct tg_call;

/* launch.c */
int tg_launch(struct tg_call *call);

/* lab_queue.c */
int tg_queue_pop(struct tg_call *call);

#endif /* TELEGRAPHOS_LAB_IOCTLS_H */
