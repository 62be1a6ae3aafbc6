/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How units of a resource are divided among spenders, without any call of the kernel: the
 * same file is part of the driver and of programs that check it.
 */
#ifndef TELEGRAPHOS_DIVISION_H
#define TELEGRAPHOS_DIVISION_H

#include <linux/types.h>

#ifndef __KERNEL__
#include <stdbool.h>
typedef __u32 u32;
#endif

/**
 * struct tg_division - how units are divided
 * @guaranteed: Units that each spender gets whatever the others hold.
 * @limit: Units that one spender holds at most.
 * @pool: Units that are guaranteed to no spender.
 */
struct tg_division {
	u32 guaranteed;
	u32 limit;
	u32 pool;
};

bool tg_division_allows(const struct tg_division *d, u32 borrowed, u32 held, u32 units);
void tg_division_take(const struct tg_division *d, u32 *borrowed, u32 *held, u32 units);
void tg_division_give(const struct tg_division *d, u32 *borrowed, u32 *held, u32 units);

#endif /* TELEGRAPHOS_DIVISION_H */
