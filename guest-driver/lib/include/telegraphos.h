/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Telegraphos: load from and store into the memory of other virtual machines.
 *
 * Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the whole sentence. Handles may be
 * used by several threads at once, but closed by only one, after all other use. Names and paths are UTF-8. Touching an
 * import whose owner has withdrawn it or died is SIGBUS.
 *
 * Generated from the library; do not edit. Renew with
 *   cargo run -p telegraphos --example header > guest-driver/lib/include/telegraphos.h
 */
#ifndef TELEGRAPHOS_LIBRARY_H
#define TELEGRAPHOS_LIBRARY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open board. */
typedef struct tg_node tg_node;
/* Memory of this node, exported under a name. */
typedef struct tg_segment tg_segment;
/* Memory of another node, imported. */
typedef struct tg_remote tg_remote;

/* Rights */
/* Loads. */
#define TG_RIGHT_READ 0x1
/* Stores. */
#define TG_RIGHT_WRITE 0x2
/* Atomics. */
#define TG_RIGHT_ATOMIC 0x4
/* Remote enqueue. */
#define TG_RIGHT_ENQUEUE 0x8
/* Block copies. */
#define TG_RIGHT_DMA 0x10

/* Status codes, as in tg_state */
/* Done. */
#define TG_OK 0x0
/* The window address has no import behind it. */
#define TG_ERR_UNMAPPED 0x1
/* The import or grant does not carry the right that the access needs. */
#define TG_ERR_RIGHTS 0x2
/* The grant was revoked or renewed: the packet carries an old generation. */
#define TG_ERR_STALE 0x3
/* The page is not granted to this node. */
#define TG_ERR_NOT_GRANTED 0x4
/* The access runs past the end of the segment. */
#define TG_ERR_BOUNDS 0x5
/* The node is not in the cluster at present. */
#define TG_ERR_NODE_DOWN 0x6
/* This node's link to the fabric is down. */
#define TG_ERR_LINK_DOWN 0x7
/* No answer within the configured limit. */
#define TG_ERR_TIMEOUT 0x8
/* The import was cut: its reserve of waiting stores was full, or an earlier store was lost. */
#define TG_ERR_CUT 0x9
/* The access is not a naturally aligned 1, 2, 4 or 8 bytes. */
#define TG_ERR_BAD_SIZE 0xa
/* The node id is outside the cluster. */
#define TG_ERR_BAD_NODE 0xb
/* The guest memory is private (no file descriptor): start QEMU with memory-backend-memfd,share=on. */
#define TG_ERR_PRIVATE_MEMORY 0xc
/* The guest address is not mapped for DMA, or is read-only. */
#define TG_ERR_MEMORY_FAULT 0xd
/* No segment of that name is exported by that node. */
#define TG_ERR_NO_SEGMENT 0xe
/* The segment's mode or secret does not admit the caller. */
#define TG_ERR_DENIED 0xf
/* The index is in use, or operations are still in flight. */
#define TG_ERR_BUSY 0x10
/* An argument is out of range or not understood. */
#define TG_ERR_INVALID 0x11
/* A table of the board is full. */
#define TG_ERR_NO_SPACE 0x12
/* The device was reset while the operation was outstanding. */
#define TG_ERR_RESET 0x13
/* The aperture does not support this access. */
#define TG_ERR_APERTURE 0x14
/* The name is already exported on this node. */
#define TG_ERR_NAME_TAKEN 0x15

/* How to export. All zeros, or NULL, means: for processes of the same user id, no secret, every node. */
typedef struct tg_export_options {
	/* Who may do what, as for a file, e.g. 0604; 0 means 0600. */
	uint32_t mode;
	/* Number of admitted nodes listed; 0 admits every node. */
	uint32_t node_count;
	/* The admitted nodes. */
	const uint16_t *nodes;
	/* What an importer must present; zeros for nothing. */
	uint8_t secret[16];
} tg_export_options;

/* What has become of an import. */
typedef struct tg_state {
	/* 1 while stores outrun the network: the next one waits. */
	uint8_t congested;
	/* 1 after a store was lost, until tg_acknowledge; later stores are dropped. */
	uint8_t cut;
	/* 1 if it is gone for good: touching it is SIGBUS. Import it again. */
	uint8_t dead;
	/* Zero. */
	uint8_t reserved;
	/* The first error since the last tg_acknowledge: TG_ERR_*, or TG_OK. */
	uint32_t status;
} tg_state;

/* Opens the board of that device file, or with NULL the first one. */
int tg_open(const char *path, tg_node **node);

/* Closes it; exports and imports made from it stay until they are closed. */
void tg_close(tg_node *node);

/* This node's id, or a negative errno. */
int tg_node_id(const tg_node *node);

/* Exports size bytes of new, zeroed memory under a name. */
int tg_export(const tg_node *node, const char *name, uint64_t size, const tg_export_options *options, tg_segment **segment);

/* Withdraws an export; returns when no other node can reach it. */
int tg_unexport(tg_segment *segment);

/* Where the memory of an export lies. Others change it at any time: use atomic loads and stores. */
void *tg_segment_memory(const tg_segment *segment);

/* Bytes of an export. */
uint64_t tg_segment_size(const tg_segment *segment);

/* Imports a segment of a node for the rights TG_RIGHT_*; 0 means loads and stores. The secret has 16 bytes, or is NULL. */
int tg_import(const tg_node *node, uint16_t id, const char *name, uint16_t rights, const uint8_t *secret, tg_remote **remote);

/* Closes an import after its outstanding stores. */
int tg_unimport(tg_remote *remote);

/* Where the window of an import lies: for aligned words of 1, 2, 4 or 8 bytes, never for memcpy. */
volatile void *tg_remote_window(const tg_remote *remote);

/* Bytes of an import. */
uint64_t tg_remote_size(const tg_remote *remote);

/* Stores with one instruction, and returns before the other node has the value. */
int tg_put8(const tg_remote *remote, uint64_t offset, uint8_t value);

/* See tg_put8. */
int tg_put16(const tg_remote *remote, uint64_t offset, uint16_t value);

/* See tg_put8. */
int tg_put32(const tg_remote *remote, uint64_t offset, uint32_t value);

/* See tg_put8. */
int tg_put64(const tg_remote *remote, uint64_t offset, uint64_t value);

/* Loads with one instruction, behind all earlier stores to that node. All ones may mean that it failed: see tg_state_of. */
int tg_get8(const tg_remote *remote, uint64_t offset, uint8_t *value);

/* See tg_get8. */
int tg_get16(const tg_remote *remote, uint64_t offset, uint16_t *value);

/* See tg_get8. */
int tg_get32(const tg_remote *remote, uint64_t offset, uint32_t *value);

/* See tg_get8. */
int tg_get64(const tg_remote *remote, uint64_t offset, uint64_t *value);

/* Returns when every earlier store to this import has been performed and acknowledged. */
int tg_quiet(const tg_remote *remote);

/* tg_quiet that gives up with -EAGAIN after so many nanoseconds; it may be called again. */
int tg_quiet_timeout(const tg_remote *remote, uint64_t nanoseconds);

/* tg_quiet for all imports of a node handle. */
int tg_quiet_all(const tg_node *node);

/* tg_quiet_timeout for all imports of a node handle. */
int tg_quiet_all_timeout(const tg_node *node, uint64_t nanoseconds);

/* What has become of an import. */
int tg_state_of(const tg_remote *remote, tg_state *state);

/* Clears the latched error of an import and goes on after a cut. Lost stores stay lost. */
int tg_acknowledge(const tg_remote *remote);

/* Waits until an import of this node handle has an error to report: 1, or 0 after so many milliseconds (negative: for ever). */
int tg_wait_error(const tg_node *node, int64_t milliseconds);

/* Orders all earlier accesses of this thread before all later ones. It waits for nothing to arrive: that is tg_quiet. */
void tg_fence(void);

/* What a result means, positive or negative. Valid until the thread's next call of this function. */
const char *tg_strerror(int error);

/* What failed last in this thread, in a sentence with what to do. Valid until the thread's next call that fails. */
const char *tg_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* TELEGRAPHOS_LIBRARY_H */
