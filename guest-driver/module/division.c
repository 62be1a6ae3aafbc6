// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Units that a spender holds beyond its guarantee are borrowed from the pool. As long as no
 * more is borrowed than the pool has, and no more is guaranteed than the rest, a spender
 * within its guarantee depends on no other.
 */
#include "division.h"
#ifdef __KERNEL__
#include "namespaces.h"
#endif

/* Units of so many that are beyond the guarantee. */
static u32 tg_division_beyond(const struct tg_division *d, u32 held)
{
	return held > d->guaranteed ? held - d->guaranteed : 0;
}

/**
 * tg_division_allows() - whether a spender may have more
 * @d: Division.
 * @borrowed: Units that all spenders hold beyond their guarantees.
 * @held: Units that it holds.
 * @units: How many more.
 *
 * Return: False if its limit, or what the others have left of the pool, is in the way.
 */
bool tg_division_allows(const struct tg_division *d, u32 borrowed, u32 held, u32 units)
{
	u32 more;

	if (held > d->limit || units > d->limit - held)
		return false;
	more = tg_division_beyond(d, held + units) - tg_division_beyond(d, held);
	return !more || (borrowed <= d->pool && more <= d->pool - borrowed);
}
EXPORT_SYMBOL_NS_GPL(tg_division_allows, TG_CLIENT_NS);

/**
 * tg_division_take() - gives a spender more
 * @d: Division.
 * @borrowed: Units that all spenders hold beyond their guarantees.
 * @held: Units that it holds.
 * @units: How many more.
 */
void tg_division_take(const struct tg_division *d, u32 *borrowed, u32 *held, u32 units)
{
	*borrowed += tg_division_beyond(d, *held + units) - tg_division_beyond(d, *held);
	*held += units;
}
EXPORT_SYMBOL_NS_GPL(tg_division_take, TG_CLIENT_NS);

/**
 * tg_division_give() - takes back from a spender
 * @d: Division.
 * @borrowed: Units that all spenders hold beyond their guarantees.
 * @held: Units that it holds.
 * @units: How many of these.
 */
void tg_division_give(const struct tg_division *d, u32 *borrowed, u32 *held, u32 units)
{
	*borrowed -= tg_division_beyond(d, *held) - tg_division_beyond(d, *held - units);
	*held -= units;
}
EXPORT_SYMBOL_NS_GPL(tg_division_give, TG_CLIENT_NS);
