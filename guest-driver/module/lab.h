/* SPDX-License-Identifier: GPL-2.0 */
/* What the files of telegraphos_lab.ko share. */
#ifndef TELEGRAPHOS_LAB_H
#define TELEGRAPHOS_LAB_H

struct tg_call;

/* launch.c */
int tg_launch(struct tg_call *call);

/* lab_queue.c */
int tg_queue_pop(struct tg_call *call);

#endif /* TELEGRAPHOS_LAB_H */
