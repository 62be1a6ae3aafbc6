/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Users of a board inside the kernel: each has a file that no process has open, with a context,
 * a key and an account like any other, and maps windows for itself.
 */
#ifndef TELEGRAPHOS_CLIENT_H
#define TELEGRAPHOS_CLIENT_H

#include <linux/types.h>

struct tg_client_ops;
struct tg_device;
struct tg_file;
struct tg_lengths;
struct tg_object;
struct tg_remote;
struct tg_replicated;
struct tg_segment;

/**
 * struct tg_client - a client of all boards
 * @add: There is another board. Returns what it has for it, or NULL. May sleep.
 * @leaving: A board for which it has something is about to be stopped: what other nodes are to
 *	know is sent now. Must not wait for them.
 * @remove: A board goes, for which it has something. It may be gone. May sleep.
 * @node: Another node of a board's cluster has come. Must not sleep.
 */
struct tg_client {
	void *(*add)(struct tg_device *tg);
	void (*leaving)(void *of);
	void (*remove)(void *of);
	void (*node)(void *of, u32 node);
};

int tg_client_register(const struct tg_client *client);
void tg_client_unregister(const struct tg_client *client);
struct tg_file *tg_client_open(struct tg_device *tg, const struct tg_client_ops *ops,
			       void *private);
void tg_client_close(struct tg_file *file);
struct tg_segment *tg_client_export(struct tg_file *file, const char *name, u64 length,
				    u32 node, u16 rights);
struct tg_remote *tg_client_import(struct tg_file *file, const char *name, u32 node,
				   u16 rights, const struct tg_lengths *accepted);
struct tg_replicated *tg_client_replicate(struct tg_file *file, const char *name, u32 home,
					  u64 length, u16 rights);
void tg_client_end(struct tg_object *obj);
void __iomem *tg_client_map(const struct tg_remote *remote, u32 aperture);

#endif /* TELEGRAPHOS_CLIENT_H */
