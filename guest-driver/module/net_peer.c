// SPDX-License-Identifier: GPL-2.0
/*
 * Other nodes come and go.
 *
 * A node says hello by a store of {its cookie, the other's cookie as it knows it} to its word of
 * the other's hello page, and of any new number to the bell, which the other's board watches.
 * Each cookie is of one connection. A node that reads a cookie of another that it does not
 * know makes the segment for that node anew, and says hello back: with its echo it says that the
 * segment is there. It imports the other's segment when it reads its own cookie as the echo. So
 * both ends start with empty segments, whichever of them was away.
 *
 * A node takes another cookie when it gives a connection up: its import is dead, since the other
 * node has left, was reset or unloaded its driver, or the import has lost a store.
 *
 * All of it is done by one work.
 */
#include <linux/etherdevice.h>
#include <linux/io.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "net_base.h"

/* Pause before what has failed is tried again. */
#define TG_NET_AGAIN (HZ / 2)

static u32 tg_net_cookie(void)
{
	return get_random_u32() | 1;
}

static struct tg_net_peer *tg_net_peer(struct tg_net *net, u32 node)
{
	struct tg_net_peer *peer = net->peers[node];

	if (peer)
		return peer;
	peer = kvzalloc(sizeof(*peer), GFP_KERNEL);
	if (!peer)
		return NULL;
	peer->net = net;
	peer->node = node;
	peer->cookie = tg_net_cookie();
	peer->hello_at = jiffies;
	peer->join_at = jiffies;
	/* Those who find it find all of it. */
	smp_store_release(&net->peers[node], peer);
	return peer;
}

static void tg_net_name(char name[64], u32 node)
{
	snprintf(name, 64, TG_NET_HELLO ".of.%u", node);
}

static void tg_net_close_hello(struct tg_net_peer *peer)
{
	if (peer->hello_io)
		iounmap(peer->hello_io);
	peer->hello_io = NULL;
	if (peer->hello)
		tg_client_end(&peer->hello->obj);
	peer->hello = NULL;
}

static bool tg_net_has_lost(const struct tg_remote *remote)
{
	return READ_ONCE(remote->obj.dead) || READ_ONCE(remote->status) ||
	       READ_ONCE(remote->state) & TG_STATE_CUT;
}

/* Has the node's hello page where it can be stored to. -ENOENT if there is none. */
static int tg_net_open_hello(struct tg_net_peer *peer)
{
	const struct tg_lengths accepted = {
		.least = TG_NET_HELLO_UNITS * TG_UNIT,
		.most = TG_NET_HELLO_UNITS * TG_UNIT,
	};
	struct tg_net *net = peer->net;
	struct tg_remote *hello;

	if (peer->hello && tg_net_has_lost(peer->hello))
		tg_net_close_hello(peer);
	if (peer->hello)
		return 0;
	hello = tg_client_import(net->file, TG_NET_HELLO, peer->node, TG_RIGHT_WRITE, &accepted);
	switch (PTR_ERR_OR_ZERO(hello)) {
	case 0:
		break;
	case -EMSGSIZE:
		net->stats[TG_NET_RX_BAD_SIZE]++;
		return -ENOENT;
	/* The node, or its network device, is not there; or it has other plans. */
	case -EHOSTUNREACH:
	case -ENETDOWN:
	case -ENOENT:
	case -EACCES:
	case -EINVAL:
		return -ENOENT;
	default:
		return PTR_ERR(hello);
	}
	peer->hello = hello;
	peer->hello_io = tg_client_map(hello, TG_APERTURE_PLAIN);
	if (!peer->hello_io) {
		tg_net_close_hello(peer);
		return -ENOMEM;
	}
	return 0;
}

/* The node's hello page is open. */
static void tg_net_say(struct tg_net_peer *peer, u32 cookie)
{
	writeq((u64)cookie << 32 | peer->their, peer->hello_io + 8 * peer->net->tg->node);
	writeq(get_random_u64(), peer->hello_io + TG_NET_BELL);
}

/* False if it is to be said again. A node that is not there says hello when it comes. */
static bool tg_net_say_hello(struct tg_net_peer *peer)
{
	int err = tg_net_open_hello(peer);

	if (err)
		return err == -ENOENT;
	tg_net_say(peer, peer->cookie);
	return true;
}

/* No frames are exchanged with it from now on. */
static void tg_net_disconnect(struct tg_net_peer *peer)
{
	struct tg_net *net = peer->net;

	spin_lock_bh(&net->lock);
	tg_net_cut(peer);
	spin_unlock_bh(&net->lock);
	tg_net_all_leave(peer);
	/* No poll uses it after this. */
	synchronize_net();
	if (peer->window)
		iounmap(peer->window);
	if (peer->arguments)
		iounmap(peer->arguments);
	peer->window = NULL;
	peer->arguments = NULL;
	if (peer->remote)
		tg_client_end(&peer->remote->obj);
	peer->remote = NULL;
}

static void tg_net_close_segment(struct tg_net_peer *peer)
{
	if (peer->frames)
		vunmap(peer->frames);
	peer->frames = NULL;
	if (peer->segment)
		tg_client_end(&peer->segment->obj);
	peer->segment = NULL;
}

static void tg_net_end_peer(struct tg_net_peer *peer)
{
	tg_net_disconnect(peer);
	tg_net_close_segment(peer);
	peer->cookie = tg_net_cookie();
	peer->their = 0;
	WRITE_ONCE(peer->broken, false);
}

/* Maps the frames of a segment in one piece. */
static int tg_net_map_frames(struct tg_net_peer *peer)
{
	const struct tg_memory *memory = peer->segment->memory;
	u32 per_unit = TG_UNIT >> PAGE_SHIFT;
	u32 units = memory->count - TG_NET_FRAME_UNITS;
	struct page **pages;
	u32 i;

	pages = kvmalloc_array(units * per_unit, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	for (i = 0; i < units * per_unit; i++)
		pages[i] = memory->chunk[TG_NET_FRAME_UNITS + i / per_unit].page + i % per_unit;
	peer->frames = vmap(pages, units * per_unit, VM_MAP, PAGE_KERNEL);
	kvfree(pages);
	if (!peer->frames)
		return -ENOMEM;
	peer->rx = (struct tg_net_reader) {
		.frames = peer->frames,
		.size = units * TG_UNIT - TG_NET_WORDS,
		.tail = page_address(memory->chunk[TG_NET_TAIL_UNIT].page),
		.head = TG_NET_HEAD_UNIT * TG_UNIT,
	};
	peer->head = page_address(memory->chunk[TG_NET_HEAD_UNIT].page);
	peer->words = peer->frames + peer->rx.size;
	return 0;
}

/* Makes the segment that a node writes to. */
static int tg_net_make_segment(struct tg_net_peer *peer)
{
	u64 bytes = ALIGN((u64)READ_ONCE(tg_net_ring_kib) << 10, TG_UNIT);
	struct tg_segment *segment;
	char name[64];
	int err;

	tg_net_name(name, peer->node);
	segment = tg_client_export(peer->net->file, name, TG_NET_FRAME_UNITS * TG_UNIT + bytes,
				   peer->node, TG_RIGHT_WRITE | TG_RIGHT_DMA);
	if (IS_ERR(segment))
		return PTR_ERR(segment);
	peer->segment = segment;
	err = tg_net_map_frames(peer);
	if (err)
		tg_net_close_segment(peer);
	return err;
}

/* Imports the segment that this node writes to. */
static int tg_net_connect(struct tg_net_peer *peer)
{
	const struct tg_lengths accepted = {
		.least = TG_NET_FRAME_UNITS * TG_UNIT + TG_NET_RING_MIN * SZ_1K,
		.most = TG_NET_FRAME_UNITS * TG_UNIT + TG_NET_RING_MAX * SZ_1K,
	};
	struct tg_net *net = peer->net;
	struct tg_remote *remote;
	char name[64];
	u64 units;

	tg_net_name(name, net->tg->node);
	remote = tg_client_import(net->file, name, peer->node, TG_RIGHT_WRITE | TG_RIGHT_DMA,
				  &accepted);
	if (PTR_ERR_OR_ZERO(remote) == -EMSGSIZE)
		net->stats[TG_NET_RX_BAD_SIZE]++;
	if (IS_ERR(remote))
		return PTR_ERR(remote);
	peer->remote = remote;
	units = remote->obj.size >> TG_UNIT_SHIFT;
	peer->window = tg_client_map(remote, TG_APERTURE_PLAIN);
	peer->arguments = tg_client_map(remote, TG_APERTURE_ARGUMENT);
	if (!peer->window || !peer->arguments)
		goto err;

	spin_lock_bh(&net->lock);
	peer->rx.at = 0;
	peer->rx.told = 0;
	peer->rx.armed = false;
	peer->tx_size = ((units - TG_NET_FRAME_UNITS) << TG_UNIT_SHIFT) - TG_NET_WORDS;
	peer->tx_at = 0;
	peer->tx_told = 0;
	peer->tx_end = 0;
	peer->tx_head = 0;
	peer->head_seen = 0;
	peer->joined = 0;
	peer->slow = false;
	peer->copied = false;
	peer->stopped = false;
	peer->watched = false;
	peer->first = 0;
	peer->next = 0;
	/* The poll finds all of it. */
	smp_store_release(&peer->up, true);
	set_bit(peer->node, net->connected);
	spin_unlock_bh(&net->lock);
	net->stats[TG_NET_CONNECTIONS]++;
	netif_carrier_on(net->dev);
	/* There may be frames. */
	irq_work_queue(&net->kick);
	return 0;

err:
	tg_net_disconnect(peer);
	return -EPROTO;
}

/* What a node has said. False if that is to be looked at again. */
static bool tg_net_listen(struct tg_net *net, u32 node)
{
	u64 word = READ_ONCE(net->words[node]);
	u32 their = upper_32_bits(word);
	struct tg_net_peer *peer;
	int err;

	if (!their && !net->peers[node])
		return true;
	peer = tg_net_peer(net, node);
	if (!peer)
		return false;
	if (their != peer->their) {
		tg_net_disconnect(peer);
		tg_net_close_segment(peer);
		peer->their = 0;
	}
	/* It has said goodbye, or nothing yet: there is no segment for it, whatever it echoes. */
	if (!their)
		return true;
	if (!peer->their) {
		if (word == peer->refused)
			return true;
		/* Its page may be another one. */
		tg_net_close_hello(peer);
		err = tg_net_open_hello(peer);
		if (err == -ENOENT)
			peer->refused = word;
		if (err)
			return err == -ENOENT;
		if (tg_net_make_segment(peer))
			return false;
		peer->their = their;
		tg_net_say_hello(peer);
	}
	if (lower_32_bits(word) != peer->cookie || peer->remote || !tg_net_connect(peer))
		return true;
	/* A node that has gone says hello again when it comes. */
	return !peer->hello || READ_ONCE(peer->hello->obj.dead);
}

static bool tg_net_is_lost(const struct tg_net_peer *peer)
{
	const struct tg_remote *remote = peer->remote;

	return READ_ONCE(peer->broken) || (remote && tg_net_has_lost(remote));
}

/* Says hello without being asked, though not often. False if that is to be tried again. */
static bool tg_net_try(struct tg_net *net, u32 node)
{
	struct tg_net_peer *peer = tg_net_peer(net, node);

	if (!peer)
		return false;
	/* What was said may be lost. */
	if (peer->hello && !READ_ONCE(peer->hello->obj.dead) && tg_net_has_lost(peer->hello))
		set_bit(node, net->tries);
	if (!test_bit(node, net->tries))
		return true;
	if (time_before(jiffies, peer->hello_at))
		return false;
	peer->hello_at = jiffies + TG_NET_AGAIN;
	peer->refused = 0;
	clear_bit(node, net->tries);
	if (tg_net_say_hello(peer))
		return true;
	set_bit(node, net->tries);
	return false;
}

/**
 * tg_net_say_goodbye() - lets other nodes know that all connections end
 * @net: Network device. The caller holds its work_lock.
 *
 * So that they need not find out. Waits for nothing.
 */
void tg_net_say_goodbye(struct tg_net *net)
{
	u32 node;

	lockdep_assert_held(&net->work_lock);
	for (node = 0; node < net->tg->nodes; node++) {
		struct tg_net_peer *peer = net->peers[node];

		if (peer && peer->their && peer->hello_io && !tg_net_has_lost(peer->hello))
			tg_net_say(peer, 0);
	}
}

/**
 * tg_net_leave_all() - ends all connections, and says goodbye
 * @net: Network device. The caller holds its work_lock.
 */
void tg_net_leave_all(struct tg_net *net)
{
	u32 node;

	tg_net_say_goodbye(net);
	for (node = 0; node < net->tg->nodes; node++) {
		struct tg_net_peer *peer = net->peers[node];

		if (!peer)
			continue;
		tg_net_end_peer(peer);
		tg_net_close_hello(peer);
	}
}

static void tg_net_work_locked(struct tg_net *net)
{
	struct tg_device *tg = net->tg;
	bool again = false;
	u64 bell;
	u32 node;

	if (READ_ONCE(net->leave)) {
		WRITE_ONCE(net->leave, false);
		tg_net_leave_all(net);
	}
	if (!READ_ONCE(net->running))
		return;
	if (tg_gone(tg)) {
		tg_net_leave_all(net);
		return;
	}
	WRITE_ONCE(net->worked, jiffies);
	/* A frame to all that waits for nodes. */
	if (READ_ONCE(net->all_skb))
		irq_work_queue(&net->kick);
	bell = READ_ONCE(*net->rings);
	/* What follows the bell is read after it. */
	smp_rmb();
	for (node = 0; node < tg->nodes && READ_ONCE(net->running); node++) {
		struct tg_net_peer *peer = net->peers[node];

		if (node == tg->node)
			continue;
		if (peer && tg_net_is_lost(peer)) {
			tg_net_end_peer(peer);
			set_bit(node, net->tries);
		}
		if (!tg_net_try(net, node))
			again = true;
		if (!tg_net_listen(net, node))
			again = true;
		cond_resched();
	}
	WRITE_ONCE(net->bell, bell);
	tg_net_arm(net, net->hello, 1, bell);
	for (node = 0; node < tg->nodes && READ_ONCE(net->running); node++)
		if (net->peers[node] && !tg_net_all_join(net->peers[node]))
			again = true;
	if (again)
		/* Unless it has been kicked meanwhile. */
		queue_delayed_work(system_long_wq, &net->work, TG_NET_AGAIN);
}

/**
 * tg_net_work() - looks at all other nodes
 * @work: The work.
 *
 * It alone waits for other nodes' boards, for each as long as this node's board does.
 */
void tg_net_work(struct work_struct *work)
{
	struct tg_net *net = container_of(to_delayed_work(work), struct tg_net, work);

	mutex_lock(&net->work_lock);
	tg_net_work_locked(net);
	mutex_unlock(&net->work_lock);
}
