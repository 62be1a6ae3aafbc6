// SPDX-License-Identifier: GPL-2.0
/*
 * Users of a board inside the kernel. There is one kind at a time, telegraphos_net.ko. What it
 * makes are objects like those of processes, made and closed by the same functions.
 */
#include <linux/io.h>

#include "call.h"
#include "client.h"
#include "driver.h"

/* See the top of driver.h. */
static DEFINE_MUTEX(tg_clients_lock);
static LIST_HEAD(tg_boards);
static const struct tg_client *tg_client;

/* How long the end of an object waits for the board, in jiffies. */
#define TG_CLIENT_PATIENCE (HZ / 4)

/* Protects tg_client and tg_device.client against tg_clients_node(), which cannot sleep. */
static DEFINE_SPINLOCK(tg_clients_guard);

static void tg_client_set(struct tg_device *tg, void *of)
{
	spin_lock(&tg_clients_guard);
	tg->client = of;
	spin_unlock(&tg_clients_guard);
}

static void tg_client_leave(struct tg_device *tg)
{
	void *of = tg->client;

	lockdep_assert_held(&tg_clients_lock);
	tg_client_set(tg, NULL);
	if (of)
		tg_client->remove(of);
}

/**
 * tg_client_register() - adds the client
 * @client: Client, called for the boards that there are, too.
 *
 * Return: 0; -EBUSY if there is one.
 */
int tg_client_register(const struct tg_client *client)
{
	struct tg_device *tg;
	int err = 0;

	mutex_lock(&tg_clients_lock);
	if (tg_client) {
		err = -EBUSY;
	} else {
		tg_client = client;
		list_for_each_entry(tg, &tg_boards, boards)
			tg_client_set(tg, client->add(tg));
	}
	mutex_unlock(&tg_clients_lock);
	return err;
}
EXPORT_SYMBOL_NS_GPL(tg_client_register, TG_CLIENT_NS);

/**
 * tg_client_unregister() - mirror of tg_client_register()
 * @client: Client that is registered.
 */
void tg_client_unregister(const struct tg_client *client)
{
	struct tg_device *tg;

	mutex_lock(&tg_clients_lock);
	list_for_each_entry(tg, &tg_boards, boards)
		tg_client_leave(tg);
	tg_client = NULL;
	mutex_unlock(&tg_clients_lock);
}
EXPORT_SYMBOL_NS_GPL(tg_client_unregister, TG_CLIENT_NS);

/**
 * tg_clients_add() - a board is ready to be used
 * @tg: Board.
 */
void tg_clients_add(struct tg_device *tg)
{
	mutex_lock(&tg_clients_lock);
	list_add_tail(&tg->boards, &tg_boards);
	if (tg_client)
		tg_client_set(tg, tg_client->add(tg));
	mutex_unlock(&tg_clients_lock);
}

/**
 * tg_clients_leaving() - a board is about to be stopped
 * @tg: Board, not gone.
 */
void tg_clients_leaving(struct tg_device *tg)
{
	mutex_lock(&tg_clients_lock);
	if (tg->client)
		tg_client->leaving(tg->client);
	mutex_unlock(&tg_clients_lock);
}

/**
 * tg_clients_remove() - mirror of tg_clients_add()
 * @tg: Board. The caller holds no lock of it. It may be gone.
 *
 * May be called for a board that has not been added.
 */
void tg_clients_remove(struct tg_device *tg)
{
	mutex_lock(&tg_clients_lock);
	tg_client_leave(tg);
	list_del_init(&tg->boards);
	mutex_unlock(&tg_clients_lock);
}

/**
 * tg_clients_node() - another node has come
 * @tg: Board that says so.
 * @node: The node.
 */
void tg_clients_node(struct tg_device *tg, u32 node)
{
	spin_lock(&tg_clients_guard);
	if (tg->client)
		tg_client->node(tg->client, node);
	spin_unlock(&tg_clients_guard);
}

/**
 * tg_client_open() - opens a file for the kernel itself
 * @tg: Board, of a client that has been added to it.
 * @ops: Callbacks for its events, from now on.
 * @private: For tg_file.private.
 *
 * Return: The file, or an error pointer.
 */
struct tg_file *tg_client_open(struct tg_device *tg, const struct tg_client_ops *ops,
			       void *private)
{
	return tg_file_open(tg, ops, private);
}
EXPORT_SYMBOL_NS_GPL(tg_client_open, TG_CLIENT_NS);

/**
 * tg_client_close() - mirror of tg_client_open()
 * @file: File of which nothing is mapped.
 */
void tg_client_close(struct tg_file *file)
{
	tg_file_close(file);
}
EXPORT_SYMBOL_NS_GPL(tg_client_close, TG_CLIENT_NS);

/*
 * Runs what makes an object, as the ioctl of a process. The object, with a reference for the
 * caller, or an error pointer.
 */
static struct tg_object *tg_client_make(struct tg_call *call, int (*make)(struct tg_call *call))
{
	struct tg_device *tg = call->file->tg;
	int err;

	down_read(&tg->op_lock);
	err = tg_gone(tg) ? -ENODEV : make(call);
	up_read(&tg->op_lock);
	if (err && call->created)
		tg_object_discard(call->created);
	if (err)
		return ERR_PTR(err);
	kref_get(&call->created->ref);
	tg_object_publish(call->created);
	return call->created;
}

/* The name of what is the kernel's own: no process exports or imports it. */
static void tg_client_name(u8 to[64], const char *name)
{
	snprintf(to, 64, TG_KERNEL_PREFIX "%s", name);
}

/**
 * tg_client_export() - exports memory to nodes' kernels
 * @file: The client's file.
 * @name: Name of the segment among the kernel's own.
 * @length: Bytes.
 * @node: Node that is admitted, less than TG_GRANT_NODES; or TG_ALL_NODES.
 * @rights: TG_RIGHT_* granted.
 *
 * Return: The segment, to be ended by tg_client_end(), or an error pointer.
 */
struct tg_segment *tg_client_export(struct tg_file *file, const char *name, u64 length,
				    u32 node, u16 rights)
{
	struct tg_call call = {
		.file = file,
		.arg.export = { .length = length, .rights_owner = rights },
	};
	struct tg_export *export = &call.arg.export;
	struct tg_object *obj;

	BUILD_BUG_ON(sizeof(export->nodes) * BITS_PER_BYTE != TG_GRANT_NODES);
	tg_client_name(export->name, name);
	if (node == TG_ALL_NODES)
		memset(export->nodes, 0xff, sizeof(export->nodes));
	else if (node < TG_GRANT_NODES)
		export->nodes[node / 64] = BIT_ULL(node % 64);
	else
		return ERR_PTR(-EINVAL);
	obj = tg_client_make(&call, tg_segment_create);
	return IS_ERR(obj) ? ERR_CAST(obj) : tg_segment_of(obj);
}
EXPORT_SYMBOL_NS_GPL(tg_client_export, TG_CLIENT_NS);

/**
 * tg_client_import() - imports a segment of another node's kernel, or this one's
 * @file: The client's file.
 * @name: Name of the segment among the kernel's own.
 * @node: Node that has it.
 * @rights: TG_RIGHT_* wanted.
 * @accepted: Lengths that it may have.
 *
 * Return: The import, to be ended by tg_client_end(), or an error pointer; -EMSGSIZE for one of
 * another length, of which nothing has been allocated.
 */
struct tg_remote *tg_client_import(struct tg_file *file, const char *name, u32 node,
				   u16 rights, const struct tg_lengths *accepted)
{
	struct tg_call call = {
		.file = file,
		.accepted = accepted,
		.arg.import = { .node = node, .rights = rights },
	};
	struct tg_object *obj;

	tg_client_name(call.arg.import.name, name);
	obj = tg_client_make(&call, tg_remote_create);
	return IS_ERR(obj) ? ERR_CAST(obj) : tg_remote_of(obj);
}
EXPORT_SYMBOL_NS_GPL(tg_client_import, TG_CLIENT_NS);

/**
 * tg_client_replicate() - makes a replicated segment, or a copy of one
 * @file: The client's file.
 * @name: Name of the segment among the kernel's own.
 * @home: Node that has it, or TG_REPLICA_HERE to make it.
 * @length: Bytes. A copy has as many as its home, or is not made.
 * @rights: TG_RIGHT_* offered to all nodes' kernels, if it is made;
 *	else those that are wanted. The client's own are the same.
 *
 * A copy is filled when this returns. A home stores by the import that belongs to it.
 *
 * Return: The segment, to be ended by tg_client_end(), or an error pointer; -EMSGSIZE for a home of
 * another length, of which nothing has been allocated.
 */
struct tg_replicated *tg_client_replicate(struct tg_file *file, const char *name, u32 home,
					  u64 length, u16 rights)
{
	const struct tg_lengths accepted = { length, length };
	struct tg_call call = {
		.file = file,
		.accepted = &accepted,
		.arg.replica = {
			.length = length,
			.home = home,
			.mode = TG_REPLICA_OWNER,
			.rights_owner = rights,
		},
	};
	struct tg_replica *replica = &call.arg.replica;
	struct tg_object *obj;

	tg_client_name(replica->name, name);
	memset(replica->nodes, 0xff, sizeof(replica->nodes));
	obj = tg_client_make(&call, tg_replicate);
	return IS_ERR(obj) ? ERR_CAST(obj) : tg_replica_of(obj);
}
EXPORT_SYMBOL_NS_GPL(tg_client_replicate, TG_CLIENT_NS);

/**
 * tg_client_end() - closes an export, import or replicated segment, and drops the client's reference
 * @obj: The object, of which the client has nothing mapped any more.
 *
 * Waits a little for the board to release it: the board may have to wait for another node. A
 * worker does the rest; until then its name is taken.
 */
void tg_client_end(struct tg_object *obj)
{
	tg_object_close_within(obj, TG_CLIENT_PATIENCE);
	tg_object_put(obj);
}
EXPORT_SYMBOL_NS_GPL(tg_client_end, TG_CLIENT_NS);

/**
 * tg_client_map() - maps an import's window into the kernel
 * @remote: Import.
 * @aperture: TG_APERTURE_*.
 *
 * Return: Its start, for iounmap(), or NULL.
 */
void __iomem *tg_client_map(const struct tg_remote *remote, u32 aperture)
{
	const struct tg_device *tg = remote->obj.tg;
	phys_addr_t at = ((phys_addr_t)aperture << tg->node_bits | remote->node) << tg->offset_bits;

	at += tg->window_base + ((phys_addr_t)remote->slot << TG_UNIT_SHIFT);
	return ioremap(at, (size_t)remote->count << TG_UNIT_SHIFT);
}
EXPORT_SYMBOL_NS_GPL(tg_client_map, TG_CLIENT_NS);
