// SPDX-License-Identifier: GPL-2.0
/*
 * Frames to all nodes.
 *
 * Each node is the home of a replicated segment, into which it alone stores frames to all, and
 * then where it continues; other nodes have copies of it. A store crosses the node's link once:
 * the switch makes the copies (docs/replication.md, "Fan-out"). The stores of one home are
 * performed in order, so the tail announces the frames before it, here as in memory of one node;
 * it has a page of its own, since a watch ends with any store to its page.
 *
 * A node that has made a copy says so to the home by TG_NET_JOIN, in the memory for frames to
 * the home alone. With its next frame to all the home answers in the copy, where the node begins
 * to read: frames before that were sent to the node alone, so it gets each frame once. It
 * returns room by TG_NET_ALL_HEAD. Where one copy has no room, or the board has more stores than
 * it can take, the frame is sent to each node alone.
 *
 * In a cluster of two nodes there are no copies.
 */
#include <linux/io.h>
#include <linux/random.h>
#include <linux/skbuff.h>

#include "net_base.h"

/* Pause before a copy is made again: a home refuses one that it has dropped for a while. */
#define TG_NET_JOIN_AGAIN (5 * HZ)

#define TG_NET_JOIN_BITS 48

/* Room that a frame which goes by stores needs at most, with what is skipped at the end. */
#define TG_NET_ALL_ROOM (2 * (u32)(TG_NET_STORES_MAX + sizeof(struct tg_net_record)))

static void tg_net_all_name(char name[64], u32 node)
{
	snprintf(name, 64, TG_NET_HELLO ".all.%u", node);
}

/**
 * tg_net_all_open() - makes the memory of this node's frames to all
 * @net: Network device.
 *
 * Without it they are sent to each node alone.
 */
void tg_net_all_open(struct tg_net *net)
{
	struct tg_device *tg = net->tg;
	struct tg_replicated *all;
	int err = -ENOMEM;
	char name[64];

	if (tg->nodes <= 2)
		return;
	tg_net_all_name(name, tg->node);
	all = tg_client_replicate(net->file, name, TG_REPLICA_HERE, TG_NET_ALL_UNITS * TG_UNIT,
				  TG_RIGHT_READ | TG_RIGHT_WRITE);
	if (IS_ERR(all)) {
		err = PTR_ERR(all);
	} else {
		net->all = all;
		net->all_io = tg_client_map(all->own, TG_APERTURE_PLAIN);
		if (net->all_io)
			return;
		tg_net_all_close(net);
	}
	dev_warn(&tg->dev, "no memory for frames to all nodes: error %d; each node is sent them alone\n",
		 err);
}

/**
 * tg_net_all_close() - mirror of tg_net_all_open(), which may not have been called
 * @net: Network device, which sends no frames.
 */
void tg_net_all_close(struct tg_net *net)
{
	if (net->all_io)
		iounmap(net->all_io);
	net->all_io = NULL;
	if (net->all)
		tg_client_end(&net->all->seg.obj);
	net->all = NULL;
}

/* Tells the home of a copy, or that there is none. */
static void tg_net_all_say(struct tg_net_peer *peer, u64 join)
{
	writeq(join, peer->window + TG_NET_FRAME_UNITS * TG_UNIT + peer->tx_size + TG_NET_JOIN);
}

static bool tg_net_all_is_lost(const struct tg_replicated *all)
{
	return READ_ONCE(all->seg.obj.dead) || READ_ONCE(all->own->obj.dead) ||
	       READ_ONCE(all->own->status);
}

/**
 * tg_net_all_leave() - ends the copy of a node's frames to all
 * @peer: The node, which may have none.
 *
 * Called by the work.
 */
void tg_net_all_leave(struct tg_net_peer *peer)
{
	if (!peer->copy)
		return;
	WRITE_ONCE(peer->listens, false);
	tg_net_all_say(peer, 0);
	/* No poll reads it after this. */
	synchronize_net();
	tg_client_end(&peer->copy->seg.obj);
	peer->copy = NULL;
}

/**
 * tg_net_all_join() - sees to it that there is a copy of a node's frames to all
 * @peer: The node.
 *
 * Called by the work. To make a copy takes as long as the home takes, so this follows what the
 * work has to do for connections.
 *
 * Return: False if that is to be tried again.
 */
bool tg_net_all_join(struct tg_net_peer *peer)
{
	struct tg_net *net = peer->net;
	struct tg_replicated *copy;
	void *frames;
	char name[64];

	if (peer->copy && tg_net_all_is_lost(peer->copy)) {
		tg_net_all_leave(peer);
		peer->join_at = jiffies + TG_NET_JOIN_AGAIN;
	}
	if (!net->all || !READ_ONCE(peer->up) || peer->copy)
		return true;
	if (time_before(jiffies, peer->join_at))
		return false;
	tg_net_all_name(name, peer->node);
	copy = tg_client_replicate(net->file, name, peer->node, TG_NET_ALL_UNITS * TG_UNIT,
				   TG_RIGHT_READ);
	if (PTR_ERR_OR_ZERO(copy) == -EMSGSIZE)
		net->stats[TG_NET_RX_BAD_SIZE]++;
	if (IS_ERR(copy))
		goto err;
	peer->copy = copy;
	peer->join = (get_random_u64() | 1) & GENMASK_ULL(TG_NET_JOIN_BITS - 1, 0);
	peer->started = false;
	frames = page_address(copy->seg.memory->chunk[TG_NET_ALL_FRAME_UNIT].page);
	peer->start = frames + TG_NET_ALL_SIZE + 8 * net->tg->node;
	peer->all = (struct tg_net_reader) {
		.frames = frames,
		.size = TG_NET_ALL_SIZE,
		.tail = page_address(copy->seg.memory->chunk[TG_NET_ALL_TAIL_UNIT].page),
		.head = TG_NET_FRAME_UNITS * TG_UNIT + peer->tx_size + TG_NET_ALL_HEAD,
	};
	net->stats[TG_NET_RX_JOINS]++;
	/* The poll finds all of it. */
	smp_store_release(&peer->listens, true);
	tg_net_all_say(peer, peer->join);
	/* It is watched from then on. */
	irq_work_queue(&net->kick);
	return true;

err:
	peer->join_at = jiffies + TG_NET_JOIN_AGAIN;
	return false;
}

/**
 * tg_net_all_begin() - whether frames of a node to all are read from the copy
 * @peer: The node, which listens.
 *
 * Called by the poll.
 *
 * Return: True if the home has said where that begins.
 */
bool tg_net_all_begin(struct tg_net_peer *peer)
{
	u64 start = READ_ONCE(*peer->start);

	if (peer->started)
		return true;
	if (start >> (64 - TG_NET_JOIN_BITS) != peer->join)
		return false;
	start &= GENMASK_ULL(63 - TG_NET_JOIN_BITS, 0);
	if (!tg_net_is_offset(start, TG_NET_ALL_SIZE)) {
		/* It says so once: the node gets none of these frames. */
		peer->net->stats[TG_NET_RX_BAD_INDEX]++;
		WRITE_ONCE(peer->listens, false);
		return false;
	}
	peer->all.at = start;
	peer->all.told = start;
	peer->started = true;
	return true;
}

/* Takes over whether a node has a copy; under the lock. */
static void tg_net_all_look_at_join(struct tg_net *net, struct tg_net_peer *peer)
{
	u64 join = READ_ONCE(peer->words[TG_NET_JOIN / 8]);
	void __iomem *starts = net->all_io + TG_NET_ALL_FRAME_UNIT * TG_UNIT + TG_NET_ALL_SIZE;

	if (join == peer->joined)
		return;
	peer->joined = join;
	peer->all_head = net->all_at;
	if (!join)
		return;
	/* What it said of an earlier one. */
	WRITE_ONCE(peer->words[TG_NET_ALL_HEAD / 8], net->all_at);
	writeq(join << (64 - TG_NET_JOIN_BITS) | net->all_at, starts + 8 * peer->node);
}

/* Takes over what a node says it has read, and returns whether it has room for a frame. */
static bool tg_net_all_has_room(struct tg_net *net, struct tg_net_peer *peer)
{
	u64 head = READ_ONCE(peer->words[TG_NET_ALL_HEAD / 8]);

	if (head != peer->all_head) {
		if (!tg_net_is_offset(head, TG_NET_ALL_SIZE)) {
			net->stats[TG_NET_RX_BAD_INDEX]++;
			return false;
		}
		peer->all_head = head;
	}
	return tg_net_room_between(head, net->all_at, TG_NET_ALL_SIZE) >= TG_NET_ALL_ROOM;
}

/* Whether all that have a copy have room, and more than one has. */
static bool tg_net_all_is_ready(struct tg_net *net)
{
	bool room = true;
	u32 node, copies = 0;

	for_each_set_bit(node, net->connected, net->tg->nodes) {
		struct tg_net_peer *peer = net->peers[node];

		tg_net_all_look_at_join(net, peer);
		if (!peer->joined)
			continue;
		copies++;
		room &= tg_net_all_has_room(net, peer);
	}
	return room && copies > 1 && !tg_net_all_is_lost(net->all) &&
	       !(READ_ONCE(net->all->own->state) & TG_STATE_CONGESTED) &&
	       !READ_ONCE(net->file->congested);
}

/**
 * tg_net_all_store() - stores a frame to all nodes that have a copy
 * @net: Network device. The caller holds its lock.
 * @skb: Frame.
 *
 * Return: False if each node is to be sent it, also those that have a copy.
 */
bool tg_net_all_store(struct tg_net *net, const struct sk_buff *skb)
{
	void __iomem *frames = net->all_io + TG_NET_ALL_FRAME_UNIT * TG_UNIT;
	struct tg_net_record record;
	u32 need;

	lockdep_assert_held(&net->lock);
	if (!net->all || skb->len > READ_ONCE(tg_net_stores) || !tg_net_all_is_ready(net) ||
	    !tg_net_describe(net, skb, &record))
		return false;
	need = ALIGN((u32)sizeof(record) + skb->len, TG_NET_ALIGN);
	if (TG_NET_ALL_SIZE - net->all_at < need) {
		writeq(TG_NET_SKIP, frames + net->all_at);
		net->all_at = 0;
	}
	tg_net_store(net, frames + net->all_at, &record, sizeof(record), skb, 0);
	net->all_at = (net->all_at + need) % TG_NET_ALL_SIZE;
	writeq(net->all_at, net->all_io + TG_NET_ALL_TAIL_UNIT * TG_UNIT);
	dev_sw_netstats_tx_add(net->dev, 1, skb->len);
	net->stats[TG_NET_TX_STORES]++;
	net->stats[TG_NET_TX_TAILS]++;
	net->stats[TG_NET_TX_MULTICAST]++;
	return true;
}
