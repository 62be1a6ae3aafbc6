/* SPDX-License-Identifier: GPL-2.0 */
/*
 * telegraphos_net.ko: what its files share.
 *
 * net.c            the network device
 * net_peer.c       other nodes come and go
 * net_data.c       frames
 * net_multicast.c  frames to all nodes, where the switch makes their copies
 * net_base.c       what these stand on; none depends on one above it
 *
 * Every node exports one segment for each node that it exchanges frames with, to which that node
 * alone has access. Its units:
 *
 *   0     word 0: where the other node continues to write frames here ("tail")
 *   1     word 0: where the other node continues to read what this node wrote there ("head")
 *   2...  frames, each behind a struct tg_net_record or tg_net_short, at multiples of the former's
 *         size, and at their end TG_NET_WORDS, which are not watched
 *
 * Both are offsets into the frames. All words are written by the other node's plain stores. The
 * frames come by these, too, or by copies of the board. A tail is stored after the frames before
 * it: the stores of one node to another are performed in order, and a copy is complete before
 * the tail that covers it is stored. So a tail is the notification of all frames before it. The
 * board's watch of unit 0 (WORD_ARM) makes an event of it where the reader is asleep; that of
 * unit 1 where the writer waits for room.
 *
 * The segment TG_NET_HELLO is where nodes find each other: word N is of node N, {cookie, echo}.
 * See net_peer.c.
 *
 * Whatever another node writes is checked where it is used, and is used once it is a copy.
 */
#ifndef TELEGRAPHOS_NET_BASE_H
#define TELEGRAPHOS_NET_BASE_H

#include <linux/bitmap.h>
#include <linux/if_ether.h>
#include <linux/irq_work.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/spinlock.h>
#include <linux/virtio_net.h>
#include <linux/workqueue.h>

#include "client.h"
#include "division.h"
#include "driver.h"

#define TG_NET_NAME "telegraphos_net"

/* Nodes of a cluster at most: the segments that are of one node alone are granted to it by name. */
#define TG_NET_NODES TG_GRANT_NODES
static_assert(TG_NET_NODES <= (TG_UNIT / 8));

/* KiB of the memory of frames. */
#define TG_NET_RING_MIN 256
#define TG_NET_RING_MAX 4096

/*
 * Bytes of frames to all nodes, which are in a replicated segment. Behind them is a word for each
 * node: the number of its copy in the upper 48 bits, and where it begins to read that. See
 * net_multicast.c.
 */
#define TG_NET_ALL_SIZE ((u32)TG_UNIT / 2)
static_assert(TG_NET_NODES <= (TG_UNIT - TG_NET_ALL_SIZE) / 8);

/* Frames that are copied by the board at a time: each has a slot of the context, and a unit. */
#define TG_NET_COPIES 32

/*
 * How long the queue of a node may wait, or a frame on its way, before the connection with it is
 * ended.
 */
#define TG_NET_STUCK (10 * HZ)

/* Frames between the first copy that is not complete and the last frame sent, for each node. */
#define TG_NET_PENDING 256

/* How long a frame to all waits for nodes that have no room. */
#define TG_NET_ALL_PATIENCE (HZ / 2)

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

/* Offsets of records are multiples of this. */
#define TG_NET_ALIGN ((u32)sizeof(struct tg_net_record))

/**
 * tg_net_is_offset() - whether what another node says can be the offset of a record
 * @at: What it says.
 * @size: Bytes of the memory of frames.
 *
 * Return: True if it is.
 */
static inline bool tg_net_is_offset(u64 at, u32 size)
{
	return at < size && !(at % TG_NET_ALIGN);
}

/**
 * tg_net_address() - the Ethernet address of a node
 * @to: Becomes the address.
 * @node: The node.
 */
static inline void tg_net_address(u8 to[ETH_ALEN], u32 node)
{
	to[0] = TG_NET_ETHERNET >> 24;
	to[1] = TG_NET_ETHERNET >> 16 & 0xff;
	to[2] = TG_NET_ETHERNET >> 8 & 0xff;
	to[3] = TG_NET_ETHERNET & 0xff;
	to[4] = node >> 8;
	to[5] = node;
}

/**
 * struct tg_net_short - what precedes the same where stores are to be few
 * @info: TG_NET_SHORT_*; no length of a record.
 * @type: Type of the frame.
 * @zero: Zero.
 *
 * The frame is one from this node's address to the other's: what follows begins behind the type.
 */
struct tg_net_short {
	__le32 info;
	__be16 type;
	__le16 zero;
};
static_assert(sizeof(struct tg_net_short) == 8);

/*
 * Bytes that follow; where the sum begins, from the beginning of the frame, and is; flags of
 * struct virtio_net_hdr.
 */
#define TG_NET_SHORT_BYTES GENMASK(9, 0)
#define TG_NET_SHORT_START GENMASK(18, 10)
#define TG_NET_SHORT_OFFSET GENMASK(25, 19)
#define TG_NET_SHORT_FLAGS GENMASK(27, 26)
#define TG_NET_SHORT_ZERO GENMASK(30, 28)
#define TG_NET_SHORT BIT(31)
static_assert(TG_NET_STORES_MAX <= TG_NET_SHORT_BYTES);

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
 * @node: Node that it is to, which it is charged to while @busy.
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
 * struct tg_net_reader - frames of another node, as far as they are read; the poll's
 * @frames: Where they are, in one piece.
 * @size: Bytes of that.
 * @tail: Where the other node continues.
 * @head: Where in the other node's memory @at is stored for it.
 * @at: Where the next frame is read.
 * @told: What was stored at @head last.
 * @armed: The page of @tail is watched since it was @seen.
 * @seen: Tail that was seen.
 */
struct tg_net_reader {
	const void *frames;
	u32 size;
	const u64 *tail;
	u32 head;
	u32 at;
	u32 told;
	bool armed;
	u64 seen;
};

/**
 * struct tg_net_peer - another node
 * @net: Network device.
 * @node: The node.
 * @cookie: This node's number for the connection. Changed when this node ends one. The
 *	work's, as what follows up to @up.
 * @their: The other node's number that @segment was made for, or 0.
 * @refused: Its word, where that was not its own: it was not there.
 * @hello_at: Hello is not to be said by itself before, in jiffies.
 * @segment: What it writes to; or NULL.
 * @hello: The import of its hello page; or NULL.
 * @hello_io: That, mapped.
 * @remote: The import of what this node writes to; or NULL.
 * @copy: The copy of its frames to all nodes; or NULL.
 * @join: Number of the join that made @copy.
 * @join_at: Not to be made before, in jiffies.
 * @up: Frames can be exchanged. Written under tg_net.lock.
 * @broken: Its connection is to be ended. Any context.
 * @window: @remote's plain window. Valid while @up, as what follows.
 * @arguments: @remote's argument window.
 * @frames: Frames of @segment, in one piece.
 * @head: Word 0 of unit 1 of @segment.
 * @words: TG_NET_WORDS of it.
 * @start: Where the home says where @all begins, in @copy.
 * @rx: Frames to this node alone.
 * @all: Frames to all nodes, in @copy.
 * @listens: @all can be read. Written by the work.
 * @started: @all begins where @start has said. The poll's.
 * @tx_size: Bytes of frames at the other node. Under tg_net.lock, as all that follows.
 * @tx_at: Where the next frame goes.
 * @tx_told: Tail that was stored at the other node last.
 * @tx_end: Tail that can be stored there.
 * @tx_head: Head that it has stored.
 * @head_seen: The same, sound or not.
 * @joined: The join whose beginning has been stored for it; or 0.
 * @all_head: Where it continues to read this node's frames to all.
 * @slow: It has had no room for one for long.
 * @copies: Copies of @net that are to the node, of this connection or an earlier one.
 * @copied: The last frame went by a copy.
 * @stopped: The queue waits for room, copies, or the end of congestion.
 * @stopped_at: Since when, in jiffies.
 * @moved_at: When frames were announced last, or the oldest one that is not was sent, in jiffies.
 * @watched: Unit 1 is watched since it was @head_seen.
 * @first: Number of the oldest in @pending.
 * @next: Number of the next there.
 * @pending: Frames sent and not announced.
 */
struct tg_net_peer {
	struct tg_net *net;
	u32 node;

	u32 cookie;
	u32 their;
	u64 refused;
	unsigned long hello_at;
	struct tg_segment *segment;
	struct tg_remote *hello;
	void __iomem *hello_io;
	struct tg_remote *remote;
	struct tg_replicated *copy;
	u64 join;
	unsigned long join_at;

	bool up;
	bool broken;
	void __iomem *window;
	void __iomem *arguments;
	void *frames;
	const u64 *head;
	u64 *words;
	const u64 *start;

	struct tg_net_reader rx;
	struct tg_net_reader all;
	bool listens;
	bool started;

	u32 tx_size;
	u32 tx_at;
	u32 tx_told;
	u32 tx_end;
	u32 tx_head;
	u64 head_seen;
	u64 joined;
	u32 all_head;
	bool slow;
	u32 copies;
	bool copied;
	bool stopped;
	unsigned long stopped_at;
	unsigned long moved_at;
	bool watched;
	u32 first;
	u32 next;
	struct tg_net_pending pending[TG_NET_PENDING];
};

/**
 * enum tg_net_counter - what ethtool -S shows
 * @TG_NET_TX_STORES: Frames sent by plain stores.
 * @TG_NET_TX_COPIES: Frames sent by copies of the board.
 * @TG_NET_TX_TAILS: Stores that announce frames.
 * @TG_NET_TX_STOPS: How often a queue had to wait.
 * @TG_NET_TX_FANOUT: Multicast frames sent, each node counted.
 * @TG_NET_TX_MULTICAST: Multicast frames stored once, of which the switch made the copies.
 * @TG_NET_TX_NO_NODE: Dropped: their node is not there.
 * @TG_NET_TX_NO_ROOM: Multicast frames that a node had no room for.
 * @TG_NET_TX_TOO_LONG: Dropped: too long, or not to be described.
 * @TG_NET_TX_LOST: On their way when the node went.
 * @TG_NET_TX_STUCK: Connections ended since their queue had waited for too long.
 * @TG_NET_RX_POLLS: Polls.
 * @TG_NET_RX_ARMS: Watches.
 * @TG_NET_RX_HEADS: Stores that return room.
 * @TG_NET_RX_BAD_INDEX: Offsets of another node that are not sound.
 * @TG_NET_RX_BAD_LENGTH: Lengths that are not.
 * @TG_NET_RX_BAD_HEADER: Checksums or segments that are not.
 * @TG_NET_RX_BAD_SIZE: Segments of other nodes of a length that is not accepted.
 * @TG_NET_RX_NO_MEMORY: Dropped for want of memory.
 * @TG_NET_RX_JOINS: Copies made of other nodes' frames to all.
 * @TG_NET_CONNECTIONS: With other nodes.
 * @TG_NET_DISCONNECTIONS: Of these.
 * @TG_NET_COUNTERS: Number of them.
 */
enum tg_net_counter {
	TG_NET_TX_STORES,
	TG_NET_TX_COPIES,
	TG_NET_TX_TAILS,
	TG_NET_TX_STOPS,
	TG_NET_TX_FANOUT,
	TG_NET_TX_MULTICAST,
	TG_NET_TX_NO_NODE,
	TG_NET_TX_NO_ROOM,
	TG_NET_TX_TOO_LONG,
	TG_NET_TX_LOST,
	TG_NET_TX_STUCK,
	TG_NET_RX_POLLS,
	TG_NET_RX_ARMS,
	TG_NET_RX_HEADS,
	TG_NET_RX_BAD_INDEX,
	TG_NET_RX_BAD_LENGTH,
	TG_NET_RX_BAD_HEADER,
	TG_NET_RX_BAD_SIZE,
	TG_NET_RX_NO_MEMORY,
	TG_NET_RX_JOINS,
	TG_NET_CONNECTIONS,
	TG_NET_DISCONNECTIONS,
	TG_NET_COUNTERS,
};

/**
 * struct tg_net - a network device
 * @dev: It.
 * @tg: Its board.
 * @file: The client's file.
 * @context: The page of its context on the board.
 * @status: Its status page.
 * @hello: The hello page that this node exports.
 * @words: Its words of nodes.
 * @rings: Its bell.
 * @buffers: Memory that frames are copied from, a unit for each copy.
 * @source: Its import, since copies name both ends by windows.
 * @sources: Argument window of that.
 * @all: The home of this node's frames to all nodes; or NULL.
 * @all_io: Its window.
 * @all_at: Where the next of them goes. Under @lock, as what follows up to @napi.
 * @all_skb: A frame to all that not all nodes have got; or NULL.
 * @all_left: Those that have not.
 * @all_until: How long they are waited for, in jiffies.
 * @napi: Reads frames, and completes copies.
 * @kick: Schedules @napi where that cannot be done.
 * @work: Other nodes come and go.
 * @worked: When it began last, in jiffies.
 * @work_lock: Held by @work while it runs. Any other holder may use what is the work's.
 * @leave: The work is to end all connections.
 * @stuck: Looks for queues that have waited for too long, while any waits.
 * @beat: Follows an event, so that no watch stays ended; see tg_net_beat().
 * @anew: The poll begins all watches anew.
 * @running: The device is up. Changed by open and stop.
 * @bell: Bell that @work has seen.
 * @tries: Nodes to say hello to.
 * @connected: Nodes with which frames are exchanged.
 * @lock: See driver.h.
 * @copies: Copies in progress. Under @lock.
 * @shares: How they are divided among the other nodes.
 * @borrowed: Copies beyond guarantees. Under @lock.
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
	u64 *rings;
	struct tg_segment *buffers;
	struct tg_remote *source;
	void __iomem *sources;
	struct tg_replicated *all;
	void __iomem *all_io;
	u32 all_at;
	struct sk_buff *all_skb;
	unsigned long *all_left;
	unsigned long all_until;
	struct napi_struct napi;
	struct irq_work kick;
	struct delayed_work work;
	unsigned long worked;
	struct mutex work_lock;
	bool leave;
	struct delayed_work stuck;
	struct delayed_work beat;
	bool anew;
	bool running;
	u64 bell;
	unsigned long *tries;
	unsigned long *connected;
	spinlock_t lock;
	struct tg_net_copy copies[TG_NET_COPIES];
	struct tg_division shares;
	u32 borrowed;
	u64 cookies;
	u64 scratch[(TG_NET_STORES_MAX + sizeof(struct tg_net_record)) / 8];
	u32 turn;
	u64 stats[TG_NET_COUNTERS];
	struct tg_net_peer *peers[];
};

/**
 * tg_net_arm() - has the board post an event when a page changes
 * @net: Network device.
 * @segment: Segment of the page.
 * @unit: Which page of it.
 * @seen: What was seen in its word 0; if it is not that any more, the event comes at once.
 */
static inline void tg_net_arm(struct tg_net *net, const struct tg_segment *segment, u32 unit,
			      u64 seen)
{
	u32 fold = upper_32_bits(seen) ^ lower_32_bits(seen);

	writeq((u64)(segment->first + unit) << 32 | fold, net->context + TG_CONTEXT_WORD_ARM);
}

/* net_base.c */
extern unsigned int tg_net_stores;
extern unsigned int tg_net_ring_kib;

bool tg_net_describe(struct tg_net *net, const struct sk_buff *skb, struct tg_net_record *record);
u32 tg_net_room_between(u32 head, u32 at, u32 size);
u32 tg_net_store(struct tg_net *net, void __iomem *to, const void *head, u32 length,
		 const struct sk_buff *skb, u32 skip);
void tg_net_kick_work(struct tg_net *net);

/* net_peer.c */
void tg_net_work(struct work_struct *work);
void tg_net_say_goodbye(struct tg_net *net);
void tg_net_leave_all(struct tg_net *net);

/* net_data.c */
netdev_tx_t tg_net_xmit(struct sk_buff *skb, struct net_device *dev);
u16 tg_net_select_queue(struct net_device *dev, struct sk_buff *skb, struct net_device *sb_dev);
int tg_net_poll(struct napi_struct *napi, int budget);
void tg_net_cut(struct tg_net_peer *peer);
void tg_net_drop_rest(struct tg_net *net);
void tg_net_divide_copies(struct tg_net *net);
void tg_net_look_for_stuck(struct work_struct *work);
void tg_net_tx_timeout(struct net_device *dev, unsigned int queue);

/* net_multicast.c */
void tg_net_all_open(struct tg_net *net);
void tg_net_all_close(struct tg_net *net);
bool tg_net_all_join(struct tg_net_peer *peer);
void tg_net_all_leave(struct tg_net_peer *peer);
bool tg_net_all_store(struct tg_net *net, const struct sk_buff *skb);
bool tg_net_all_begin(struct tg_net_peer *peer);

#endif /* TELEGRAPHOS_NET_BASE_H */
