// SPDX-License-Identifier: GPL-2.0
/* Frames: sent by plain stores or by copies of the board, and read. */
#include <linux/bitfield.h>
#include <linux/etherdevice.h>
#include <linux/io.h>
#include <linux/skbuff.h>

#include "net_base.h"

/* Bytes of a frame in front of its pages. */
#define TG_NET_LINEAR 256

static u32 tg_net_room(const struct tg_net_peer *peer)
{
	return tg_net_room_between(peer->tx_head, peer->tx_at, peer->tx_size);
}

/* Takes over what the other node says it has read. */
static void tg_net_look_at_head(struct tg_net_peer *peer)
{
	u64 head = READ_ONCE(*peer->head);

	if (head == peer->head_seen)
		return;
	peer->head_seen = head;
	peer->watched = false;
	if (!tg_net_is_offset(head, peer->tx_size)) {
		peer->net->stats[TG_NET_RX_BAD_INDEX]++;
		return;
	}
	peer->tx_head = head;
}

static void __iomem *tg_net_place(const struct tg_net_peer *peer, void __iomem *window)
{
	return window + TG_NET_FRAME_UNITS * TG_UNIT + peer->tx_at;
}

static bool tg_net_is_congested(const struct tg_net_peer *peer)
{
	return READ_ONCE(peer->remote->state) & TG_STATE_CONGESTED ||
	       READ_ONCE(peer->net->file->congested);
}

/* The caller has seen that the node may have one more: so one is free. */
static int tg_net_free_copy(const struct tg_net *net)
{
	int i;

	for (i = 0; i < TG_NET_COPIES; i++)
		if (!net->copies[i].busy)
			return i;
	return -1;
}

/**
 * tg_net_divide_copies() - divides the copies among the other nodes
 * @net: Network device.
 *
 * Half of them is guaranteed in equal parts; where there are more nodes than that, a few nodes
 * that complete none do not take all.
 */
void tg_net_divide_copies(struct tg_net *net)
{
	u32 others = max(net->tg->nodes, 2U) - 1;
	struct tg_division *shares = &net->shares;

	shares->guaranteed = TG_NET_COPIES / 2 / others;
	shares->pool = TG_NET_COPIES - shares->guaranteed * others;
	shares->limit = shares->guaranteed + shares->pool / (others > 2 ? 4 : 2);
}

/* Whether a frame goes by a copy. */
static bool tg_net_is_copied(const struct sk_buff *skb)
{
	return skb->len > READ_ONCE(tg_net_stores);
}

/* Whether a frame of any length can be sent, by a copy or by stores. */
static bool tg_net_has_room(struct tg_net_peer *peer, bool copied)
{
	struct tg_net *net = peer->net;

	return tg_net_room(peer) >= TG_NET_ROOM && peer->next - peer->first < TG_NET_PENDING &&
	       (!copied || tg_division_allows(&net->shares, net->borrowed, peer->copies, 1)) &&
	       !tg_net_is_congested(peer);
}

static struct netdev_queue *tg_net_queue(const struct tg_net_peer *peer)
{
	struct net_device *dev = peer->net->dev;

	return netdev_get_tx_queue(dev, peer->node % dev->real_num_tx_queues);
}

/* The poll runs when the node has read something. */
static void tg_net_watch_head(struct tg_net_peer *peer)
{
	if (peer->watched)
		return;
	peer->watched = true;
	tg_net_arm(peer->net, peer->segment, TG_NET_HEAD_UNIT, peer->head_seen);
}

/* Stops the node's queue; the poll wakes it. */
static void tg_net_stop_queue(struct tg_net_peer *peer)
{
	if (!peer->stopped) {
		peer->stopped = true;
		peer->stopped_at = jiffies;
		peer->net->stats[TG_NET_TX_STOPS]++;
		queue_delayed_work(system_long_wq, &peer->net->stuck, TG_NET_STUCK);
	}
	netif_tx_stop_queue(tg_net_queue(peer));
	tg_net_watch_head(peer);
}

/* Finds out which frames are there, in their order. */
static void tg_net_settle(struct tg_net_peer *peer)
{
	u32 frames = 0, bytes = 0;

	while (peer->first != peer->next) {
		struct tg_net_pending *pending = &peer->pending[peer->first % TG_NET_PENDING];

		if (pending->slot >= 0)
			break;
		peer->tx_end = pending->end;
		frames++;
		bytes += pending->bytes;
		peer->first++;
	}
	if (!frames)
		return;
	peer->moved_at = jiffies;
	netdev_tx_completed_queue(tg_net_queue(peer), frames, bytes);
}

/* Tells the other node of the frames that are there. */
static void tg_net_tell(struct tg_net_peer *peer)
{
	tg_net_settle(peer);
	if (peer->tx_end == peer->tx_told)
		return;
	peer->tx_told = peer->tx_end;
	peer->net->stats[TG_NET_TX_TAILS]++;
	writeq(peer->tx_end, peer->window + TG_NET_TAIL_UNIT * TG_UNIT);
}

/*
 * Whether a frame can go behind a short record, which is then in @brief: the other node knows
 * both addresses.
 */
static bool tg_net_is_short(const struct tg_net_peer *peer, const struct sk_buff *skb,
			    const struct tg_net_record *record, struct tg_net_short *brief)
{
	const struct virtio_net_hdr *hdr = &record->hdr;
	const struct net_device *dev = peer->net->dev;
	u32 start = le16_to_cpu((__force __le16)hdr->csum_start);
	u32 offset = le16_to_cpu((__force __le16)hdr->csum_offset);
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	u8 to[ETH_ALEN] __aligned(2);

	tg_net_address(to, peer->node);
	if (hdr->gso_type || hdr->flags > 3 || skb->len < ETH_HLEN || skb_headlen(skb) < ETH_HLEN ||
	    start > FIELD_MAX(TG_NET_SHORT_START) || offset > FIELD_MAX(TG_NET_SHORT_OFFSET) ||
	    !ether_addr_equal(eth->h_source, dev->dev_addr) || !ether_addr_equal(eth->h_dest, to))
		return false;
	brief->info = cpu_to_le32(TG_NET_SHORT |
				  FIELD_PREP(TG_NET_SHORT_BYTES, skb->len - ETH_HLEN) |
				  FIELD_PREP(TG_NET_SHORT_START, start) |
				  FIELD_PREP(TG_NET_SHORT_OFFSET, offset) |
				  FIELD_PREP(TG_NET_SHORT_FLAGS, hdr->flags));
	brief->type = eth->h_proto;
	brief->zero = 0;
	return true;
}

/* Bytes that it takes at the other node. */
static u32 tg_net_send_by_stores(struct tg_net_peer *peer, const struct sk_buff *skb,
				 const struct tg_net_record *record)
{
	u32 head = sizeof(*record), skip = 0;
	struct tg_net *net = peer->net;
	struct tg_net_short brief;

	if (tg_net_is_short(peer, skb, record, &brief)) {
		head = sizeof(brief);
		skip = ETH_HLEN;
	}
	net->stats[TG_NET_TX_STORES]++;
	return tg_net_store(net, tg_net_place(peer, peer->window),
			    skip ? (const void *)&brief : record, head, skb, skip);
}

static void tg_net_send_by_copy(struct tg_net_peer *peer, const struct sk_buff *skb,
				const struct tg_net_record *record, int slot)
{
	void *from = page_address(peer->net->buffers->memory->chunk[slot].page);
	u32 length = sizeof(*record) + skb->len;
	struct tg_net *net = peer->net;
	struct tg_net_copy *copy = &net->copies[slot];
	void __iomem *registers = net->context + TG_CONTEXT_REGISTERS + TG_CONTEXT_STRIDE * slot;
	u64 argument = (u64)net->file->context << 56 | (u64)slot << 50 | net->file->key;

	memcpy(from, record, sizeof(*record));
	skb_copy_bits(skb, 0, from + sizeof(*record), skb->len);
	/* The board copies whole words: the rest of the last one is of an earlier frame. */
	memset(from + length, 0, ALIGN(length, 8) - length);
	tg_division_take(&net->shares, &net->borrowed, &peer->copies, 1);
	copy->node = peer->node;
	copy->cookie = ++net->cookies & TG_COOKIE_MASK;
	copy->busy = true;
	copy->ours = true;
	writeq(argument, tg_net_place(peer, peer->arguments));
	writeq(argument | 1ULL << 48, net->sources + slot * TG_UNIT);
	writeq(ALIGN(length, 8), registers + TG_CONTEXT_LENGTH);
	writeq((u64)TG_OP_COPY << 56 | (u64)TG_LAUNCH_NOTIFY << 48 | copy->cookie,
	       registers + TG_CONTEXT_LAUNCH);
	net->stats[TG_NET_TX_COPIES]++;
	/* Without its completion, limits by bytes stop the queue as well. */
	queue_delayed_work(system_long_wq, &net->stuck, TG_NET_STUCK);
}

/* Sends a frame, by a copy or by stores, for which there is room: false if it is dropped. */
static bool tg_net_send(struct tg_net_peer *peer, const struct sk_buff *skb, bool copied)
{
	u32 need = sizeof(struct tg_net_record) + skb->len;
	struct tg_net *net = peer->net;
	struct tg_net_record record;
	struct tg_net_pending *pending;
	int slot = -1;

	if (!tg_net_describe(net, skb, &record))
		return false;
	if (peer->tx_size - peer->tx_at < ALIGN(need, TG_NET_ALIGN)) {
		writeq(TG_NET_SKIP, tg_net_place(peer, peer->window));
		peer->tx_at = 0;
	}
	peer->copied = copied;
	if (copied) {
		slot = tg_net_free_copy(net);
		tg_net_send_by_copy(peer, skb, &record, slot);
	} else {
		need = tg_net_send_by_stores(peer, skb, &record);
	}
	peer->tx_at += ALIGN(need, TG_NET_ALIGN);
	if (peer->tx_at == peer->tx_size)
		peer->tx_at = 0;
	if (peer->first == peer->next)
		peer->moved_at = jiffies;
	pending = &peer->pending[peer->next++ % TG_NET_PENDING];
	pending->end = peer->tx_at;
	pending->bytes = skb->len;
	pending->slot = slot;
	dev_sw_netstats_tx_add(net->dev, 1, skb->len);
	return true;
}

/*
 * The node that a frame is for, or a negative number if it is for all: as is one to an address that
 * is no node's, as a switch has it. A device on top of another node's may have it, such as a macvlan
 * or what is behind a bridge.
 */
static int tg_net_node_of(const struct tg_net *net, const struct sk_buff *skb)
{
	const u8 *to = skb->data;
	u32 node = to[4] << 8 | to[5];

	if (to[0] != 0x02 || to[1] != 'T' || to[2] != 'G' || to[3] || node >= net->tg->nodes)
		return -1;
	return node;
}

/**
 * tg_net_select_queue() - each node has a queue, so that none waits for another
 * @dev: Network device.
 * @skb: Frame.
 * @sb_dev: Unused.
 *
 * Return: Number of the queue: of frames to all, that of this node.
 */
u16 tg_net_select_queue(struct net_device *dev, struct sk_buff *skb, struct net_device *sb_dev)
{
	const struct tg_net *net = netdev_priv(dev);
	int node = tg_net_node_of(net, skb);

	return (node < 0 ? net->tg->node : node) % dev->real_num_tx_queues;
}

static struct netdev_queue *tg_net_queue_to_all(struct tg_net *net)
{
	return netdev_get_tx_queue(net->dev, net->tg->node % net->dev->real_num_tx_queues);
}

/* Whether a node has got the frame to all, or will not. */
static bool tg_net_send_to_next(struct tg_net_peer *peer)
{
	bool copied = tg_net_is_copied(peer->net->all_skb);
	struct tg_net *net = peer->net;

	if (!peer->up)
		return true;
	tg_net_look_at_head(peer);
	if (!tg_net_has_room(peer, copied)) {
		if (!peer->slow && time_before(jiffies, net->all_until)) {
			tg_net_watch_head(peer);
			return false;
		}
		peer->slow = true;
		net->stats[TG_NET_TX_NO_ROOM]++;
		return true;
	}
	peer->slow = false;
	if (!tg_net_send(peer, net->all_skb, copied))
		return true;
	/* It is of no queue that is limited by bytes. */
	netdev_tx_sent_queue(tg_net_queue(peer), net->all_skb->len);
	net->stats[TG_NET_TX_FANOUT]++;
	tg_net_tell(peer);
	return true;
}

/*
 * Continues with the frame to all, if there is one: nodes get it as they have room. A node that
 * has none for long does not get it, and the next ones only if it has room at once.
 */
static void tg_net_send_to_rest(struct tg_net *net)
{
	u32 node;

	if (!net->all_skb)
		return;
	for_each_set_bit(node, net->all_left, net->tg->nodes)
		if (tg_net_send_to_next(net->peers[node]))
			clear_bit(node, net->all_left);
	if (!bitmap_empty(net->all_left, net->tg->nodes)) {
		queue_delayed_work(system_long_wq, &net->work, TG_NET_ALL_PATIENCE);
		return;
	}
	dev_consume_skb_any(net->all_skb);
	net->all_skb = NULL;
	netif_tx_wake_queue(tg_net_queue_to_all(net));
}

/* As tg_net_xmit(), to all nodes, under the lock: at once to those that have a copy. */
static netdev_tx_t tg_net_send_to_all(struct tg_net *net, struct sk_buff *skb)
{
	u32 node;

	if (net->all_skb) {
		/* A node that shares the queue has woken it. */
		netif_tx_stop_queue(tg_net_queue_to_all(net));
		return NETDEV_TX_BUSY;
	}
	bitmap_copy(net->all_left, net->connected, net->tg->nodes);
	if (tg_net_all_store(net, skb)) {
		for_each_set_bit(node, net->connected, net->tg->nodes) {
			if (!net->peers[node]->joined)
				continue;
			clear_bit(node, net->all_left);
			net->stats[TG_NET_TX_FANOUT]++;
		}
	}
	net->all_skb = skb;
	net->all_until = jiffies + TG_NET_ALL_PATIENCE;
	tg_net_send_to_rest(net);
	if (net->all_skb) {
		net->stats[TG_NET_TX_STOPS]++;
		netif_tx_stop_queue(tg_net_queue_to_all(net));
	}
	return NETDEV_TX_OK;
}

/**
 * tg_net_drop_rest() - the frame to all, if there is one, goes to no other node
 * @net: Network device, which sends nothing.
 */
void tg_net_drop_rest(struct tg_net *net)
{
	spin_lock_bh(&net->lock);
	dev_kfree_skb_any(net->all_skb);
	net->all_skb = NULL;
	spin_unlock_bh(&net->lock);
}

/* As tg_net_xmit(), to one node, under the lock. */
static netdev_tx_t tg_net_send_to(struct tg_net *net, u32 node, struct sk_buff *skb, bool more)
{
	struct tg_net_peer *peer = net->peers[node];
	bool copied = tg_net_is_copied(skb);
	struct netdev_queue *queue;

	if (!peer || !peer->up) {
		net->stats[TG_NET_TX_NO_NODE]++;
		net->dev->stats.tx_dropped++;
		goto drop;
	}
	queue = tg_net_queue(peer);
	if (!tg_net_has_room(peer, copied))
		tg_net_look_at_head(peer);
	if (!tg_net_has_room(peer, copied)) {
		/* Another node, or one that shares the queue, has taken it. */
		peer->copied = copied;
		tg_net_stop_queue(peer);
		tg_net_tell(peer);
		return NETDEV_TX_BUSY;
	}
	if (tg_net_send(peer, skb, copied))
		netdev_tx_sent_queue(queue, skb->len);
	else
		net->dev->stats.tx_dropped++;
	/* The next one is likely to go the same way. */
	if (!tg_net_has_room(peer, peer->copied)) {
		tg_net_look_at_head(peer);
		if (!tg_net_has_room(peer, peer->copied))
			tg_net_stop_queue(peer);
	}
	if (!more || netif_xmit_stopped(queue))
		tg_net_tell(peer);
drop:
	dev_consume_skb_any(skb);
	return NETDEV_TX_OK;
}

/**
 * tg_net_xmit() - sends a frame
 * @skb: Frame.
 * @dev: Network device.
 *
 * Return: NETDEV_TX_OK, or NETDEV_TX_BUSY if the queue has been stopped and keeps it.
 */
netdev_tx_t tg_net_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct tg_net *net = netdev_priv(dev);
	netdev_tx_t result;
	bool more;
	int node;

	node = tg_net_node_of(net, skb);
	/* Where nodes share a queue, the next frame of it may be to another one. */
	more = netdev_xmit_more() && net->tg->nodes <= dev->real_num_tx_queues;
	skb_tx_timestamp(skb);
	spin_lock(&net->lock);
	if (node < 0)
		result = tg_net_send_to_all(net, skb);
	else
		result = tg_net_send_to(net, node, skb, more);
	spin_unlock(&net->lock);
	return result;
}

/* Frames that have not arrived never will. */
static void tg_net_forget(struct tg_net_peer *peer)
{
	struct tg_net *net = peer->net;
	u32 frames = 0, bytes = 0;
	int i;

	for (; peer->first != peer->next; peer->first++) {
		frames++;
		bytes += peer->pending[peer->first % TG_NET_PENDING].bytes;
	}
	net->stats[TG_NET_TX_LOST] += frames;
	for (i = 0; i < TG_NET_COPIES; i++)
		if (net->copies[i].node == peer->node)
			net->copies[i].ours = false;
	netdev_tx_completed_queue(tg_net_queue(peer), frames, bytes);
	peer->stopped = false;
	netif_tx_wake_queue(tg_net_queue(peer));
}

/**
 * tg_net_cut() - exchanges no more frames with a node
 * @peer: The node, which need not be up. The caller holds tg_net.lock.
 *
 * Waits for nothing. A poll may still read its frames.
 */
void tg_net_cut(struct tg_net_peer *peer)
{
	struct tg_net *net = peer->net;

	lockdep_assert_held(&net->lock);
	if (!peer->up)
		return;
	WRITE_ONCE(peer->up, false);
	clear_bit(peer->node, net->connected);
	tg_net_forget(peer);
	net->stats[TG_NET_DISCONNECTIONS]++;
	if (bitmap_empty(net->connected, net->tg->nodes))
		netif_carrier_off(net->dev);
}

/* Since when a node's queue waits for room, or its frames for their copies. False if none does. */
static bool tg_net_waits(const struct tg_net_peer *peer, unsigned long *since)
{
	bool pending = peer->first != peer->next;

	*since = pending ? peer->moved_at : peer->stopped_at;
	if (peer->stopped && time_before(peer->stopped_at, *since))
		*since = peer->stopped_at;
	return pending || peer->stopped;
}

/* The queue of a node has waited for too long; under the lock. */
static void tg_net_end_stuck(struct tg_net_peer *peer, unsigned long since)
{
	struct tg_net *net = peer->net;

	net->stats[TG_NET_TX_STUCK]++;
	if (net_ratelimit())
		netdev_notice(net->dev, "node %u has taken no frames for %u s: the connection is ended\n",
			      peer->node, jiffies_to_msecs(jiffies - since) / 1000);
	tg_net_cut(peer);
	WRITE_ONCE(peer->broken, true);
	tg_net_kick_work(net);
}

/**
 * tg_net_look_for_stuck() - ends connections whose queue has waited for too long
 * @work: tg_net.stuck.
 *
 * Where the board has more than it can take, no other node is the reason.
 */
void tg_net_look_for_stuck(struct work_struct *work)
{
	struct tg_net *net = container_of(to_delayed_work(work), struct tg_net, stuck);
	bool again = false;
	unsigned long since;
	u32 node;

	spin_lock_bh(&net->lock);
	for_each_set_bit(node, net->connected, net->tg->nodes) {
		struct tg_net_peer *peer = net->peers[node];

		if (!tg_net_waits(peer, &since))
			continue;
		if (READ_ONCE(net->file->congested)) {
			peer->stopped_at = jiffies;
			peer->moved_at = jiffies;
			txq_trans_cond_update(tg_net_queue(peer));
			again = true;
		} else if (time_after_eq(jiffies, since + TG_NET_STUCK)) {
			tg_net_end_stuck(peer, since);
		} else {
			again = true;
		}
	}
	spin_unlock_bh(&net->lock);
	if (again)
		queue_delayed_work(system_long_wq, &net->stuck, HZ);
}

/**
 * tg_net_tx_timeout() - a queue has waited for very long, and tg_net_look_for_stuck() did not run
 * @dev: Network device.
 * @queue: Number of the queue.
 */
void tg_net_tx_timeout(struct net_device *dev, unsigned int queue)
{
	struct tg_net *net = netdev_priv(dev);
	unsigned long since;
	u32 node;

	spin_lock_bh(&net->lock);
	for_each_set_bit(node, net->connected, net->tg->nodes)
		if (node % dev->real_num_tx_queues == queue &&
		    tg_net_waits(net->peers[node], &since))
			tg_net_end_stuck(net->peers[node], since);
	spin_unlock_bh(&net->lock);
	/* A frame to all may wait. */
	irq_work_queue(&net->kick);
}

/* The board has done with a copy. */
static void tg_net_copied(struct tg_net *net, int slot, u32 status)
{
	struct tg_net_copy *copy = &net->copies[slot];
	struct tg_net_peer *peer = net->peers[copy->node];
	u32 i;

	copy->busy = false;
	tg_division_give(&net->shares, &net->borrowed, &peer->copies, 1);
	if (!copy->ours)
		return;
	if (status != TG_OK) {
		/* No later frame is announced: this one is not there. */
		WRITE_ONCE(peer->broken, true);
		tg_net_kick_work(net);
		return;
	}
	for (i = peer->first; i != peer->next; i++)
		if (peer->pending[i % TG_NET_PENDING].slot == slot)
			peer->pending[i % TG_NET_PENDING].slot = -1;
}

static void tg_net_look_at_copies(struct tg_net *net)
{
	int i;

	for (i = 0; i < TG_NET_COPIES; i++) {
		u64 done;

		if (!net->copies[i].busy)
			continue;
		done = le64_to_cpu(READ_ONCE(net->status->done[i]));
		if ((done & TG_COOKIE_MASK) == net->copies[i].cookie)
			tg_net_copied(net, i, done >> 48);
	}
}

/* What has been sent: completes copies, and wakes queues. */
static void tg_net_poll_sent(struct tg_net *net)
{
	u32 node;

	spin_lock(&net->lock);
	tg_net_look_at_copies(net);
	tg_net_send_to_rest(net);
	for_each_set_bit(node, net->connected, net->tg->nodes) {
		struct tg_net_peer *peer = net->peers[node];

		tg_net_tell(peer);
		if (!peer->stopped)
			continue;
		tg_net_look_at_head(peer);
		if (tg_net_has_room(peer, peer->copied)) {
			peer->stopped = false;
			netif_tx_wake_queue(tg_net_queue(peer));
		} else {
			tg_net_stop_queue(peer);
		}
	}
	spin_unlock(&net->lock);
}

/*
 * A frame of this many bytes from the other node's memory, or NULL. One with @eth, which is not
 * long, has that in front of what is there.
 */
static struct sk_buff *tg_net_frame(struct tg_net *net, const struct ethhdr *eth, const void *from,
				    u32 length)
{
	u32 linear = min_t(u32, length, TG_NET_LINEAR);
	struct sk_buff *skb;
	int err;

	if (length <= SKB_WITH_OVERHEAD(PAGE_SIZE) - NET_SKB_PAD - NET_IP_ALIGN) {
		skb = napi_alloc_skb(&net->napi, length);
		if (skb && eth)
			skb_put_data(skb, eth, ETH_HLEN);
		if (skb)
			skb_put_data(skb, from, length - (eth ? ETH_HLEN : 0));
		return skb;
	}
	skb = alloc_skb_with_frags(NET_SKB_PAD + linear, length - linear, PAGE_ALLOC_COSTLY_ORDER,
				   &err, GFP_ATOMIC);
	if (!skb)
		return NULL;
	skb->dev = net->dev;
	skb_reserve(skb, NET_SKB_PAD);
	skb_put(skb, linear);
	skb->data_len = length - linear;
	skb->len = length;
	if (skb_store_bits(skb, 0, from, length)) {
		kfree_skb(skb);
		return NULL;
	}
	return skb;
}

static void tg_net_receive(struct tg_net *net, const struct ethhdr *eth, const void *from,
			   const struct tg_net_record *record)
{
	u32 length = le32_to_cpu(record->length);
	struct net_device *dev = net->dev;
	struct sk_buff *skb;

	skb = tg_net_frame(net, eth, from, length);
	if (!skb) {
		net->stats[TG_NET_RX_NO_MEMORY]++;
		dev->stats.rx_dropped++;
		return;
	}
	if (virtio_net_hdr_to_skb(skb, &record->hdr, true)) {
		net->stats[TG_NET_RX_BAD_HEADER]++;
		dev->stats.rx_frame_errors++;
		kfree_skb(skb);
		return;
	}
	dev_sw_netstats_rx_add(dev, length);
	skb->protocol = eth_type_trans(skb, dev);
	napi_gro_receive(&net->napi, skb);
}

/* Bytes from an offset that can be read in one piece up to the tail. */
static u32 tg_net_readable(const struct tg_net_reader *reader, u32 tail)
{
	return (tail >= reader->at ? tail : reader->size) - reader->at;
}

/* What the other node has written is not sound: none of it is read. */
static void tg_net_skip_all(struct tg_net *net, struct tg_net_reader *reader, u32 tail)
{
	net->stats[TG_NET_RX_BAD_LENGTH]++;
	net->dev->stats.rx_length_errors++;
	reader->at = tail;
}

/*
 * What a short record says, as a long one does, and the Ethernet header of its frame. False if it
 * is not sound.
 */
static bool tg_net_expand(const struct tg_net_peer *peer, u32 info, __be16 type,
			  struct tg_net_record *record, struct ethhdr *eth)
{
	if (info & TG_NET_SHORT_ZERO)
		return false;
	ether_addr_copy(eth->h_dest, peer->net->dev->dev_addr);
	tg_net_address(eth->h_source, peer->node);
	eth->h_proto = type;
	*record = (struct tg_net_record) {
		.length = cpu_to_le32(FIELD_GET(TG_NET_SHORT_BYTES, info) + ETH_HLEN),
		.hdr.flags = FIELD_GET(TG_NET_SHORT_FLAGS, info),
		.hdr.csum_start = (__force __virtio16)
			cpu_to_le16(FIELD_GET(TG_NET_SHORT_START, info)),
		.hdr.csum_offset = (__force __virtio16)
			cpu_to_le16(FIELD_GET(TG_NET_SHORT_OFFSET, info)),
	};
	return true;
}

/* Reads the next record, up to the tail, which is another offset. */
static void tg_net_read(struct tg_net_peer *peer, struct tg_net_reader *reader, u32 tail)
{
	u32 length, need, head = sizeof(struct tg_net_record);
	u32 readable = tg_net_readable(reader, tail);
	const void *at = reader->frames + reader->at;
	struct tg_net_record record;
	struct tg_net_short brief;
	struct ethhdr eth;

	/* The other node can write all the time: what is checked is this copy. */
	memcpy(&record, at, sizeof(record));
	barrier_data(&record);
	length = le32_to_cpu(record.length);
	if (length == TG_NET_SKIP) {
		if (tail >= reader->at)
			tg_net_skip_all(peer->net, reader, tail);
		else
			reader->at = 0;
		return;
	}
	if (length & TG_NET_SHORT) {
		memcpy(&brief, &record, sizeof(brief));
		if (!tg_net_expand(peer, length, brief.type, &record, &eth)) {
			tg_net_skip_all(peer->net, reader, tail);
			return;
		}
		head = sizeof(brief);
		length = le32_to_cpu(record.length);
		need = ALIGN(head + length - ETH_HLEN, TG_NET_ALIGN);
	} else {
		need = ALIGN(head + length, TG_NET_ALIGN);
	}
	if (length < ETH_HLEN || length > TG_NET_FRAME_MAX || need > readable) {
		tg_net_skip_all(peer->net, reader, tail);
		return;
	}
	tg_net_receive(peer->net, head == sizeof(brief) ? &eth : NULL, at + head, &record);
	reader->at += need;
	if (reader->at == reader->size)
		reader->at = 0;
}

/* Returns room to the other node when it is a quarter of all, so that this costs little. */
static void tg_net_return_room(struct tg_net_peer *peer, struct tg_net_reader *reader)
{
	u32 read = (reader->at - reader->told + reader->size) % reader->size;

	if (read < reader->size / 4)
		return;
	reader->told = reader->at;
	peer->net->stats[TG_NET_RX_HEADS]++;
	/* The other node writes there: all of it has been read. */
	mb();
	writeq(reader->at, peer->window + reader->head);
}

/* Where the node continues to write; a watch ends where that changes. */
static u64 tg_net_look_at_tail(struct tg_net_reader *reader)
{
	u64 tail = READ_ONCE(*reader->tail);

	if (tail != reader->seen)
		reader->armed = false;
	reader->seen = tail;
	return tail;
}

/* Whether frames are exchanged with a node; without the lock. */
static bool tg_net_is_up(const struct tg_net *net, u32 node)
{
	/* A processor that sees it up sees it prepared. */
	return test_bit(node, net->connected) && smp_load_acquire(&net->peers[node]->up);
}

/* Reads frames of a node: how many records. */
static int tg_net_poll_reader(struct tg_net_peer *peer, struct tg_net_reader *reader, int budget)
{
	u64 tail = tg_net_look_at_tail(reader);
	int done = 0;

	if (!tg_net_is_offset(tail, reader->size)) {
		if (!reader->armed)
			peer->net->stats[TG_NET_RX_BAD_INDEX]++;
		return 0;
	}
	/* The frames were written before it. */
	dma_rmb();
	while (done < budget && reader->at != tail) {
		tg_net_read(peer, reader, tail);
		done++;
		tg_net_return_room(peer, reader);
	}
	return done;
}

static int tg_net_poll_node(struct tg_net_peer *peer, int budget)
{
	int done = tg_net_poll_reader(peer, &peer->rx, budget);

	/* The work has prepared all of it. */
	if (done == budget || !smp_load_acquire(&peer->listens))
		return done;
	if (!peer->started) {
		tg_net_look_at_tail(&peer->all);
		/* It says where to begin before it says where it continues. */
		dma_rmb();
	}
	if (tg_net_all_begin(peer))
		done += tg_net_poll_reader(peer, &peer->all, budget - done);
	return done;
}

/* All that is waited for is watched again: watches may have ended without a change. */
static void tg_net_watch_anew(struct tg_net *net)
{
	u32 node;

	spin_lock(&net->lock);
	for_each_set_bit(node, net->connected, net->tg->nodes) {
		struct tg_net_peer *peer = net->peers[node];

		peer->watched = false;
		peer->rx.armed = false;
		/* The work has prepared it. */
		if (smp_load_acquire(&peer->listens))
			peer->all.armed = false;
	}
	spin_unlock(&net->lock);
}

/* Watches the tail, if it has changed since it was. */
static void tg_net_watch(struct tg_net *net, struct tg_net_reader *reader,
			 const struct tg_segment *segment, u32 unit)
{
	if (reader->armed)
		return;
	reader->armed = true;
	net->stats[TG_NET_RX_ARMS]++;
	tg_net_arm(net, segment, unit, reader->seen);
}

static void tg_net_watch_all(struct tg_net *net)
{
	u32 node;

	for_each_set_bit(node, net->connected, net->tg->nodes) {
		struct tg_net_peer *peer = net->peers[node];

		if (!tg_net_is_up(net, node))
			continue;
		tg_net_watch(net, &peer->rx, peer->segment, TG_NET_TAIL_UNIT);
		/* The work has prepared it. */
		if (smp_load_acquire(&peer->listens))
			tg_net_watch(net, &peer->all, &peer->copy->seg, TG_NET_ALL_TAIL_UNIT);
	}
}

/**
 * tg_net_poll() - reads frames, and looks at what has been sent
 * @napi: Of a network device.
 * @budget: Most frames to read.
 *
 * When it ends, it has the board watch the tails that have changed. A watch carries the tail
 * that was seen: if it has changed since, the event comes at once. It is begun while this still
 * counts as running, so that such an event has it run again.
 *
 * Return: Number of records read; @budget if there may be more.
 */
int tg_net_poll(struct napi_struct *napi, int budget)
{
	struct tg_net *net = container_of(napi, struct tg_net, napi);
	int done = 0;
	u32 i;

	net->stats[TG_NET_RX_POLLS]++;
	rcu_read_lock();
	if (READ_ONCE(net->anew)) {
		WRITE_ONCE(net->anew, false);
		tg_net_watch_anew(net);
	}
	tg_net_poll_sent(net);
	/* It begins behind the node with which it ended before: each has its turn. */
	for (i = 0; i < net->tg->nodes && done < budget; i++) {
		net->turn = (net->turn + 1) % net->tg->nodes;
		if (tg_net_is_up(net, net->turn))
			done += tg_net_poll_node(net->peers[net->turn], budget - done);
	}
	if (READ_ONCE(*net->rings) != READ_ONCE(net->bell))
		tg_net_kick_work(net);
	if (done < budget) {
		tg_net_watch_all(net);
		napi_complete_done(napi, done);
	}
	rcu_read_unlock();
	return done;
}
