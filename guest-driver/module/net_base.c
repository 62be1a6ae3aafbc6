// SPDX-License-Identifier: GPL-2.0
/* What all parts of the network device stand on: parameters, records of frames, and the work. */
#include <linux/io.h>
#include <linux/moduleparam.h>
#include <linux/skbuff.h>

#include "net_base.h"

/* Pause between two looks at all nodes, however many bells ring. */
#define TG_NET_PAUSE (HZ / 100)

static int tg_net_set_ring(const char *value, const struct kernel_param *kp)
{
	return param_set_uint_minmax(value, kp, TG_NET_RING_MIN, TG_NET_RING_MAX);
}

static const struct kernel_param_ops tg_net_ring_ops = {
	.set = tg_net_set_ring,
	.get = param_get_uint,
};

/* KiB of memory that another node has here. */
unsigned int tg_net_ring_kib = 512;
module_param_cb(ring_kib, &tg_net_ring_ops, &tg_net_ring_kib, 0644);
MODULE_PARM_DESC(ring_kib, "Memory for the frames of each other node, in KiB, for connections made from now on: 256 to 4096, rounded up to 64 (default 512)");

static int tg_net_set_stores(const char *value, const struct kernel_param *kp)
{
	return param_set_uint_minmax(value, kp, 0, TG_NET_STORES_MAX);
}

static const struct kernel_param_ops tg_net_stores_ops = {
	.set = tg_net_set_stores,
	.get = param_get_uint,
};

/* Bytes of a frame up to which it goes by plain stores. */
unsigned int tg_net_stores = 256;
module_param_cb(stores, &tg_net_stores_ops, &tg_net_stores, 0644);
MODULE_PARM_DESC(stores, "Bytes of a frame up to which it goes by plain stores, and not by a copy of the board: 0 to 512 (default 256)");

/**
 * tg_net_room_between() - room for records in memory of frames
 * @head: Where their reader continues.
 * @at: Where their writer does.
 * @size: Bytes of it.
 *
 * Return: Bytes. One place stays empty, since equal offsets mean that all is.
 */
u32 tg_net_room_between(u32 head, u32 at, u32 size)
{
	return (head > at ? head - at : size - at + head) - TG_NET_ALIGN;
}

/**
 * tg_net_describe() - makes the record of a frame
 * @net: Network device. The caller holds its lock.
 * @skb: Frame.
 * @record: Becomes its record.
 *
 * Return: False if it cannot be sent, which is counted.
 */
bool tg_net_describe(struct tg_net *net, const struct sk_buff *skb, struct tg_net_record *record)
{
	*record = (struct tg_net_record) { .length = cpu_to_le32(skb->len) };
	if (skb->len <= TG_NET_FRAME_MAX &&
	    !virtio_net_hdr_from_skb(skb, &record->hdr, true, false, 0))
		return true;
	net->stats[TG_NET_TX_TOO_LONG]++;
	return false;
}

/**
 * tg_net_store() - writes a frame by plain stores
 * @net: Network device. The caller holds its lock.
 * @to: Where, in a window.
 * @head: What precedes it.
 * @length: Bytes of that.
 * @skb: The frame.
 * @skip: Bytes of it that are left out.
 *
 * Return: Bytes written, but for what fills the last word.
 */
u32 tg_net_store(struct tg_net *net, void __iomem *to, const void *head, u32 length,
		 const struct sk_buff *skb, u32 skip)
{
	u32 bytes = length + skb->len - skip;

	/* What lies behind the frame in its last word. */
	net->scratch[(bytes - 1) / 8] = 0;
	memcpy(net->scratch, head, length);
	skb_copy_bits(skb, skip, (u8 *)net->scratch + length, skb->len - skip);
	__iowrite64_copy(to, net->scratch, DIV_ROUND_UP(bytes, 8));
	return bytes;
}

/**
 * tg_net_kick_work() - has the work look at what has changed
 * @net: Network device.
 */
void tg_net_kick_work(struct tg_net *net)
{
	unsigned long now = jiffies, due = READ_ONCE(net->worked) + TG_NET_PAUSE;

	mod_delayed_work(system_long_wq, &net->work, time_before(now, due) ? due - now : 0);
}
