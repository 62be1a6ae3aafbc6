/* SPDX-License-Identifier: GPL-2.0 */
/*
 * telegraphos_net.ko: what its files share.
 *
 * net.c       the network device
 * net_peer.c  other nodes come and go
 * net_data.c  frames
 *
 * Every node exports one segment for each node that it exchanges frames with, to which that node
 * alone has access. Its units:
 *
 *   0     word 0: where the other node continues to write frames here ("tail")
 *   1     word 0: where the other node continues to read what this node wrote there ("head")
 *   2...  frames, each behind a struct tg_net_record, at multiples of its size
 *
 * Both are offsets into the frames. All words are written by the other node's plain stores. The
 * frames come by these, too, or by copies of the board. A tail is stored after the frames before
 * it: the stores of one node to another are performed in order, and a copy is complete before
 * the tail that covers it is stored. So a tail is the notification of all frames before it. The
 * board's watch of unit 0 (WORD_ARM) makes an event of it where the reader is asleep; that of
 * unit 1 where the writer waits for room.
 *
 * The segment "tg0" is where nodes find each other: word N is of node N, {cookie, echo}. See
 * net_peer.c.
 *
 * Whatever another node writes is checked where it is used, and is used once it is a copy.
 */
#ifndef TELEGRAPHOS_NET_H
#define TELEGRAPHOS_NET_H

#include <linux/bitmap.h>
#include <linux/irq_work.h>
#include <linux/netdevice.h>
#include <linux/spinlock.h>
#include <linux/virtio_net.h>
#include <linux/workqueue.h>

#include "client.h"
#include "driver.h"

#define TG_NET_NAME "telegraphos_net"

/* Where node N says hello, and the word that rings for it. */
#define TG_NET_HELLO "tg0"
#define TG_NET_BELL (TG_UNIT - 8)
/* The bell is behind the words of all nodes. */
#define TG_NET_NODES (TG_NET_BELL / 8)

#define TG_NET_TAIL_UNIT 0
#define TG_NET_HEAD_UNIT 1
#define TG_NET_FRAME_UNITS 2

/* Frames that are copied by the board at a time: each has a slot of the context, and a unit. */
#define TG_NET_COPIES 16

/* Frames between the first copy that is not complete and the last frame sent, for each node. */
#define TG_NET_PENDING 256

/* Most bytes that go by plain stores. */
#define TG_NET_STORES_MAX 512

/**
 * struct tg_net_record - what precedes a frame
 * @length: Bytes of the frame; TG_NET_SKIP: the next record is at 0.
 * @hdr: Checksum and segmentation, as for virtio-net, little-endian.
 * @zero: Zero.
 */
struct tg_net_record {
	__le32 length;
	struct virtio_net_hdr hdr;
	__le16 zero;
};
static_assert(sizeof(struct tg_net_record) == 16);

#define TG_NET_SKIP U32_MAX

/* Most bytes of a frame: with its record it fills a unit of the memory that is copied from. */
#define TG_NET_FRAME_MAX (TG_UNIT - sizeof(struct tg_net_record))

/* Room that the longest frame needs at most, with what is skipped at the end. */
#define TG_NET_ROOM (2 * (u32)TG_UNIT)

/**
 * struct tg_net_pending - a frame that is not announced yet
 * @end: Tail after it.
 * @bytes: Of the frame.
 * @slot: Copy that it waits for; or negative.
 */
struct tg_net_pending {
	u32 end;
	u32 bytes;
	int slot;
};

/**
 * struct tg_net_copy - a copy in progress
 * @node: Node that it is to.
 * @cookie: Of its launch.
 * @busy: The board has not completed it.
 * @ours: The node has not been left since.
 */
struct tg_net_copy {
	u32 node;
	u64 cookie;
	bool busy;
	bool ours;
};

/**
 * struct tg_net_peer - another node
 * @net: Network device.
 * @node: The node.
 * @cookie: This node's number for the connection. Changed when this node gives one up. The
 *	work's, as what follows up to @up.
 * @their: The other node's number that @segment was made for, or 0.
 * @segment: What it writes to; or NULL.
 * @hello: The import of its hello page; or NULL.
 * @hello_io: That, mapped.
 * @remote: The import of what this node writes to; or NULL.
 * @up: Frames can be exchanged. Written under tg_net.lock.
 * @broken: It is to be given up. Any context.
 * @window: @remote's plain window. Valid while @up, as what follows.
 * @arguments: @remote's argument window.
 * @frames: Frames of @segment, in one piece.
 * @rx_size: Bytes of them.
 * @tail: Word 0 of unit 0 of @segment.
 * @head: Word 0 of unit 1.
 * @rx_at: Where the next frame is read. The poll's, as the next three.
 * @rx_told: Head that the other node was told last.
 * @rx_armed: Unit 0 is watched since it was @rx_seen.
 * @rx_seen: Tail that was seen.
 * @tx_size: Bytes of frames at the other node. Under tg_net.lock, as all that follows.
 * @tx_at: Where the next frame goes.
 * @tx_told: Tail that the other node was told last.
 * @tx_end: Tail that it can be told.
 * @tx_head: Head that it has told.
 * @stopped: The queue waits for room, copies, or the end of congestion.
 * @watched: Unit 1 is watched since it was @tx_head.
 * @first: Number of the oldest in @pending.
 * @next: Number of the next there.
 * @pending: Frames sent and not announced.
 */
struct tg_net_peer {
	struct tg_net *net;
	u32 node;

	u32 cookie;
	u32 their;
	struct tg_segment *segment;
	struct tg_remote *hello;
	void __iomem *hello_io;
	struct tg_remote *remote;

	bool up;
	bool broken;
	void __iomem *window;
	void __iomem *arguments;
	void *frames;
	u32 rx_size;
	u64 *tail;
	u64 *head;

	u32 rx_at;
	u32 rx_told;
	bool rx_armed;
	u64 rx_seen;

	u32 tx_size;
	u32 tx_at;
	u32 tx_told;
	u32 tx_end;
	u32 tx_head;
	bool stopped;
	bool watched;
	u32 first;
	u32 next;
	struct tg_net_pending pending[TG_NET_PENDING];
};

/* What ethtool -S shows, in this order. */
#define TG_NET_STATISTICS(_item)	\
	_item(tx_stores)		\
	_item(tx_copies)		\
	_item(tx_tails)			\
	_item(tx_stops)			\
	_item(tx_fanout)		\
	_item(tx_no_node)		\
	_item(tx_no_room)		\
	_item(tx_too_long)		\
	_item(tx_lost)			\
	_item(rx_polls)			\
	_item(rx_arms)			\
	_item(rx_heads)			\
	_item(rx_bad_index)		\
	_item(rx_bad_length)		\
	_item(rx_bad_header)		\
	_item(rx_no_memory)		\
	_item(connections)		\
	_item(disconnections)

#define TG_NET_FIELD(_name) u64 _name;

/**
 * struct tg_net_statistics - counters
 *
 * tx_stores, tx_copies: frames by plain stores and by copies of the board; tx_tails: stores that
 * announce; tx_stops: how often a queue waited; tx_fanout: copies of multicast frames;
 * tx_no_node, tx_no_room, tx_too_long, tx_lost: frames dropped, because the node is not there,
 * a multicast frame found no room, it is too long, or the node went away; rx_polls, rx_arms,
 * rx_heads: polls, watches, and stores that return room; rx_bad_index, rx_bad_length,
 * rx_bad_header: what another node wrote that is not sound; rx_no_memory: frames dropped.
 */
struct tg_net_statistics {
	TG_NET_STATISTICS(TG_NET_FIELD)
};

/**
 * struct tg_net - a network device
 * @dev: It.
 * @tg: Its board.
 * @file: The client's file.
 * @context: The page of its context on the board.
 * @status: Its status page.
 * @hello: The hello page that this node exports.
 * @words: That.
 * @buffers: Memory that frames are copied from, a unit for each copy.
 * @source: Its import, since copies name both ends by windows.
 * @sources: Argument window of that.
 * @napi: Reads frames, and completes copies.
 * @kick: Schedules @napi where that cannot be done.
 * @work: Other nodes come and go.
 * @running: The device is up. Changed by open and stop.
 * @bell: Bell that @work has seen.
 * @tries: Nodes to say hello to.
 * @connected: Nodes with which frames are exchanged.
 * @lock: See driver.h.
 * @copies: Copies in progress. Under @lock.
 * @cookies: Number of copies launched. Under @lock.
 * @scratch: A frame that goes by stores. Under @lock.
 * @turn: Node that was read last. The poll's.
 * @stats: Counters; those of the poll by itself, those of the work by itself, else under @lock.
 * @peers: Other nodes, by number; made when they say hello.
 */
struct tg_net {
	struct net_device *dev;
	struct tg_device *tg;
	struct tg_file *file;
	void __iomem *context;
	struct tg_status_page *status;
	struct tg_segment *hello;
	u64 *words;
	struct tg_segment *buffers;
	struct tg_remote *source;
	void __iomem *sources;
	struct napi_struct napi;
	struct irq_work kick;
	struct delayed_work work;
	bool running;
	u64 bell;
	unsigned long *tries;
	unsigned long *connected;
	spinlock_t lock;
	struct tg_net_copy copies[TG_NET_COPIES];
	u64 cookies;
	u64 scratch[(TG_NET_STORES_MAX + sizeof(struct tg_net_record)) / 8];
	u32 turn;
	struct tg_net_statistics stats;
	struct tg_net_peer *peers[];
};

/**
 * tg_net_arm() - has the board post an event when a page changes
 * @net: Network device.
 * @segment: Segment of the page.
 * @unit: Which page of it.
 * @word: Number of the word that was seen.
 * @seen: What was seen; if it is not that any more, the event comes at once.
 */
static inline void tg_net_arm(struct tg_net *net, const struct tg_segment *segment, u32 unit,
			      u32 word, u64 seen)
{
	u32 fold = upper_32_bits(seen) ^ lower_32_bits(seen);

	writeq((u64)(word & 0xff) << 56 | (u64)(segment->first + unit) << 32 | fold,
	       net->context + TG_CONTEXT_WORD_ARM + (word >> 8) * 8);
}

/* net.c */
extern unsigned int tg_net_stores;
extern unsigned int tg_net_ring_kib;

/* net_peer.c */
void tg_net_work(struct work_struct *work);
void tg_net_kick_work(struct tg_net *net);

/* net_data.c */
netdev_tx_t tg_net_xmit(struct sk_buff *skb, struct net_device *dev);
u16 tg_net_select_queue(struct net_device *dev, struct sk_buff *skb, struct net_device *sb_dev);
int tg_net_poll(struct napi_struct *napi, int budget);
void tg_net_forget(struct tg_net_peer *peer);

#endif /* TELEGRAPHOS_NET_H */
