// SPDX-License-Identifier: GPL-2.0
/* The network device tgN of a board. */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "net_base.h"

#define TG_NET_MTU 9000

/* The queues of a device: nodes share them beyond this. */
#define TG_NET_QUEUES 64

/* From an event to when watches begin anew. */
#define TG_NET_BEAT (2 * HZ)

static const char tg_net_names[TG_NET_COUNTERS][ETH_GSTRING_LEN] = {
	[TG_NET_TX_STORES] = "tx_stores",
	[TG_NET_TX_COPIES] = "tx_copies",
	[TG_NET_TX_TAILS] = "tx_tails",
	[TG_NET_TX_STOPS] = "tx_stops",
	[TG_NET_TX_FANOUT] = "tx_fanout",
	[TG_NET_TX_MULTICAST] = "tx_multicast",
	[TG_NET_TX_NO_NODE] = "tx_no_node",
	[TG_NET_TX_NO_ROOM] = "tx_no_room",
	[TG_NET_TX_TOO_LONG] = "tx_too_long",
	[TG_NET_TX_LOST] = "tx_lost",
	[TG_NET_TX_STUCK] = "tx_stuck",
	[TG_NET_RX_POLLS] = "rx_polls",
	[TG_NET_RX_ARMS] = "rx_arms",
	[TG_NET_RX_HEADS] = "rx_heads",
	[TG_NET_RX_BAD_INDEX] = "rx_bad_index",
	[TG_NET_RX_BAD_LENGTH] = "rx_bad_length",
	[TG_NET_RX_BAD_HEADER] = "rx_bad_header",
	[TG_NET_RX_BAD_SIZE] = "rx_bad_size",
	[TG_NET_RX_NO_MEMORY] = "rx_no_memory",
	[TG_NET_RX_JOINS] = "rx_joins",
	[TG_NET_CONNECTIONS] = "connections",
	[TG_NET_DISCONNECTIONS] = "disconnections",
};

static void tg_net_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	struct tg_net *net = netdev_priv(dev);

	strscpy(info->driver, TG_NET_NAME, sizeof(info->driver));
	strscpy(info->bus_info, dev_name(&net->tg->dev), sizeof(info->bus_info));
}

static int tg_net_sset_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? ARRAY_SIZE(tg_net_names) : -EOPNOTSUPP;
}

static void tg_net_strings(struct net_device *dev, u32 set, u8 *to)
{
	if (set == ETH_SS_STATS)
		memcpy(to, tg_net_names, sizeof(tg_net_names));
}

static void tg_net_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *to)
{
	struct tg_net *net = netdev_priv(dev);

	spin_lock_bh(&net->lock);
	memcpy(to, net->stats, sizeof(net->stats));
	spin_unlock_bh(&net->lock);
}

/* The board has no line speed: it is as fast as its host. */
static int tg_net_link(struct net_device *dev, struct ethtool_link_ksettings *link)
{
	link->base.speed = SPEED_UNKNOWN;
	link->base.duplex = DUPLEX_FULL;
	link->base.port = PORT_OTHER;
	link->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static const struct ethtool_ops tg_net_ethtool_ops = {
	.get_drvinfo = tg_net_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = tg_net_link,
	.get_sset_count = tg_net_sset_count,
	.get_strings = tg_net_strings,
	.get_ethtool_stats = tg_net_ethtool_stats,
};

static int tg_net_open(struct net_device *dev)
{
	struct tg_net *net = netdev_priv(dev);

	napi_enable(&net->napi);
	netif_tx_start_all_queues(dev);
	bitmap_fill(net->tries, net->tg->nodes);
	WRITE_ONCE(net->running, true);
	tg_net_kick_work(net);
	return 0;
}

/*
 * Exchanges no more frames. The work ends the connections, so that no node waits for room here:
 * it may have to wait for other nodes, and the caller holds the lock of all network devices.
 */
static int tg_net_stop(struct net_device *dev)
{
	struct tg_net *net = netdev_priv(dev);
	u32 node;

	netif_tx_disable(dev);
	WRITE_ONCE(net->running, false);
	WRITE_ONCE(net->leave, true);
	spin_lock_bh(&net->lock);
	for_each_set_bit(node, net->connected, net->tg->nodes)
		tg_net_cut(net->peers[node]);
	spin_unlock_bh(&net->lock);
	napi_disable(&net->napi);
	tg_net_drop_rest(net);
	tg_net_kick_work(net);
	return 0;
}

static const struct net_device_ops tg_net_ops = {
	.ndo_open = tg_net_open,
	.ndo_stop = tg_net_stop,
	.ndo_start_xmit = tg_net_xmit,
	.ndo_select_queue = tg_net_select_queue,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_get_stats64 = dev_get_tstats64,
	.ndo_tx_timeout = tg_net_tx_timeout,
	.ndo_features_check = passthru_features_check,
};

/*
 * A watch ends with any store to its page, also with one beside the word that is looked at, or
 * of what stood there already. No node does that by mistake; but one that does must not have
 * others go unheard. So some time after an event all watches begin anew. Without events there is
 * nothing to do.
 */
static void tg_net_beat(struct work_struct *work)
{
	struct tg_net *net = container_of(to_delayed_work(work), struct tg_net, beat);

	WRITE_ONCE(net->anew, true);
	irq_work_queue(&net->kick);
	/* For the bell. */
	tg_net_kick_work(net);
}

static void tg_net_event(struct tg_file *file)
{
	struct tg_net *net = file->private;

	queue_delayed_work(system_long_wq, &net->beat, TG_NET_BEAT);
	/* Softirqs follow an interrupt. A thread raises one for it. */
	if (in_hardirq())
		napi_schedule(&net->napi);
	else
		irq_work_queue(&net->kick);
}

static void tg_net_changed(struct tg_file *file)
{
	struct tg_net *net = file->private;

	irq_work_queue(&net->kick);
	tg_net_kick_work(net);
}

static const struct tg_client_ops tg_net_client_ops = {
	.event = tg_net_event,
	.changed = tg_net_changed,
};

static void tg_net_kicked(struct irq_work *kick)
{
	napi_schedule(&container_of(kick, struct tg_net, kick)->napi);
}

/* What the board has of the device, whether it is complete or not. */
static void tg_net_leave_board(struct tg_net *net)
{
	cancel_delayed_work_sync(&net->work);
	mutex_lock(&net->work_lock);
	tg_net_leave_all(net);
	mutex_unlock(&net->work_lock);
	tg_net_all_close(net);
	if (net->sources)
		iounmap(net->sources);
	if (net->source)
		tg_client_end(&net->source->obj);
	if (net->buffers)
		tg_client_end(&net->buffers->obj);
	if (net->hello)
		tg_client_end(&net->hello->obj);
	tg_client_close(net->file);
	/* There are no events any more. */
	cancel_delayed_work_sync(&net->beat);
	cancel_delayed_work_sync(&net->stuck);
	cancel_delayed_work_sync(&net->work);
	irq_work_sync(&net->kick);
}

static int tg_net_join_board(struct tg_net *net)
{
	const struct tg_lengths buffers = {
		.least = TG_NET_COPIES * TG_UNIT,
		.most = TG_NET_COPIES * TG_UNIT,
	};
	struct tg_device *tg = net->tg;

	net->file = tg_client_open(tg, &tg_net_client_ops, net);
	if (IS_ERR(net->file))
		return PTR_ERR(net->file);
	net->context = tg->contexts_io + ((u64)net->file->context << TG_UNIT_SHIFT);
	net->status = page_address(net->file->status->chunk[0].page);
	net->buffers = tg_client_export(net->file, TG_NET_HELLO ".buffers",
					TG_NET_COPIES * TG_UNIT, tg->node,
					TG_RIGHT_READ | TG_RIGHT_DMA);
	if (IS_ERR(net->buffers))
		goto err_buffers;
	net->source = tg_client_import(net->file, TG_NET_HELLO ".buffers", tg->node,
				       TG_RIGHT_READ | TG_RIGHT_DMA, &buffers);
	if (IS_ERR(net->source))
		goto err_source;
	net->sources = tg_client_map(net->source, TG_APERTURE_ARGUMENT);
	if (!net->sources)
		goto err_leave;
	tg_net_all_open(net);
	net->hello = tg_client_export(net->file, TG_NET_HELLO, TG_NET_HELLO_UNITS * TG_UNIT,
				      TG_ALL_NODES, TG_RIGHT_WRITE);
	if (IS_ERR(net->hello))
		goto err_hello;
	net->words = page_address(net->hello->memory->chunk[0].page);
	net->rings = page_address(net->hello->memory->chunk[1].page);
	return 0;

err_buffers:
	net->buffers = NULL;
	goto err_leave;
err_source:
	net->source = NULL;
	goto err_leave;
err_hello:
	net->hello = NULL;
err_leave:
	tg_net_leave_board(net);
	return -EIO;
}

static void tg_net_setup(struct net_device *dev, const struct tg_device *tg)
{
	u8 address[ETH_ALEN];

	dev->netdev_ops = &tg_net_ops;
	dev->ethtool_ops = &tg_net_ethtool_ops;
	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = TG_NET_FRAME_MAX - ETH_HLEN - 4;
	dev->mtu = TG_NET_MTU;
	/* Some kernels warn with a stack: so it is not for what other nodes can bring about. */
	dev->watchdog_timeo = 2 * TG_NET_STUCK;
	dev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 |
			   NETIF_F_TSO_ECN;
	dev->features = dev->hw_features | NETIF_F_RXCSUM | NETIF_F_HIGHDMA;
	dev->vlan_features = dev->hw_features;
	netif_set_tso_max_size(dev, TG_NET_FRAME_MAX - 64);
	tg_net_address(address, tg->node);
	eth_hw_addr_set(dev, address);
	/* What is printed while a frame is sent cannot be sent. */
	dev->priv_flags |= IFF_DISABLE_NETPOLL;
	SET_NETDEV_DEV(dev, &tg->pdev->dev);
}

static void tg_net_free(struct tg_net *net)
{
	struct net_device *dev = net->dev;
	u32 node;

	for (node = 0; node < net->tg->nodes; node++)
		kvfree(net->peers[node]);
	bitmap_free(net->tries);
	bitmap_free(net->connected);
	bitmap_free(net->all_left);
	free_percpu(dev->tstats);
	free_netdev(dev);
}

static void *tg_net_add(struct tg_device *tg)
{
	struct net_device *dev;
	struct tg_net *net;
	int err = -ENOMEM;

	if (tg->nodes > TG_NET_NODES) {
		dev_info(&tg->dev, "no network device: the cluster has %u nodes, and a network %u at most\n",
			 tg->nodes, TG_NET_NODES);
		return NULL;
	}
	dev = alloc_netdev_mqs(struct_size(net, peers, tg->nodes), "tg%d", NET_NAME_ENUM,
			       ether_setup, min_t(u32, tg->nodes, TG_NET_QUEUES), 1);
	if (!dev)
		goto err;
	net = netdev_priv(dev);
	net->dev = dev;
	net->tg = tg;
	spin_lock_init(&net->lock);
	mutex_init(&net->work_lock);
	tg_net_divide_copies(net);
	init_irq_work(&net->kick, tg_net_kicked);
	INIT_DELAYED_WORK(&net->work, tg_net_work);
	INIT_DELAYED_WORK(&net->stuck, tg_net_look_for_stuck);
	INIT_DELAYED_WORK(&net->beat, tg_net_beat);
	tg_net_setup(dev, tg);
	net->tries = bitmap_zalloc(tg->nodes, GFP_KERNEL);
	net->connected = bitmap_zalloc(tg->nodes, GFP_KERNEL);
	net->all_left = bitmap_zalloc(tg->nodes, GFP_KERNEL);
	dev->tstats = netdev_alloc_pcpu_stats(struct pcpu_sw_netstats);
	if (!net->tries || !net->connected || !net->all_left || !dev->tstats)
		goto err_free;
	netif_napi_add(dev, &net->napi, tg_net_poll);
	netif_carrier_off(dev);
	err = tg_net_join_board(net);
	if (err)
		goto err_napi;
	err = register_netdev(dev);
	if (err)
		goto err_board;
	return net;

err_board:
	tg_net_leave_board(net);
err_napi:
	netif_napi_del(&net->napi);
err_free:
	tg_net_free(net);
err:
	dev_err(&tg->dev, "no network device: error %d\n", err);
	return NULL;
}

static void tg_net_remove(void *of)
{
	struct tg_net *net = of;

	/* Stops it, which ends its connections. */
	unregister_netdev(net->dev);
	tg_net_leave_board(net);
	netif_napi_del(&net->napi);
	tg_net_free(net);
}

/* If the work waits for a node, the others find out by themselves. */
static void tg_net_leaving(void *of)
{
	struct tg_net *net = of;

	if (!mutex_trylock(&net->work_lock))
		return;
	tg_net_say_goodbye(net);
	mutex_unlock(&net->work_lock);
}

static void tg_net_node(void *of, u32 node)
{
	struct tg_net *net = of;

	if (node >= net->tg->nodes)
		return;
	set_bit(node, net->tries);
	tg_net_kick_work(net);
}

static const struct tg_client tg_net_client = {
	.add = tg_net_add,
	.leaving = tg_net_leaving,
	.remove = tg_net_remove,
	.node = tg_net_node,
};

static int __init tg_net_init(void)
{
	return tg_client_register(&tg_net_client);
}

static void __exit tg_net_exit(void)
{
	tg_client_unregister(&tg_net_client);
}

module_init(tg_net_init);
module_exit(tg_net_exit);
MODULE_DESCRIPTION("Telegraphos: Ethernet between the nodes of a cluster");
MODULE_AUTHOR("The Telegraphos authors");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS(TG_CLIENT_NS);
