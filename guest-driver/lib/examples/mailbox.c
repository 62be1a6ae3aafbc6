// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A mailbox for lines of text, in C: they go into an arena in the receiver's memory, and the word that says where follows
 * through its notification queue.
 *
 *   mailbox serve MESSAGES     makes the box, prints so many messages
 *   mailbox post NODE TEXT     puts TEXT into the box of a node, when the last one from here has been read
 *
 * Of each node one process posts at a time.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <telegraphos.h>

/* The arena: how many messages of each node have been read, and posted; then a place for one message of each. */
enum { NODES = 256, WORDS = 32, SLOTS = 16 * NODES, SLOT = 8 * WORDS, SIZE = SLOTS + NODES * SLOT };

static int fail(const char *what)
{
	fprintf(stderr, "mailbox: %s: %s\n", what, tg_last_error());
	return 3;
}

static int serve(tg_node *node, uint64_t messages)
{
	tg_export_options options = { .mode = 0606 };
	tg_queue_options queue_options = { .mode = 0602, .words = 64 };
	_Atomic uint64_t *read;
	tg_segment *arena;
	tg_queue *ready;
	char *memory;

	if (tg_export(node, "mailbox", SIZE, &options, &arena))
		return fail("exporting the arena");
	memory = tg_segment_memory(arena);
	read = (_Atomic uint64_t *)memory;
	if (tg_queue_create(node, "mailbox-ready", &queue_options, &ready))
		return fail("making the queue");
	printf("waiting on node %d\n", tg_node_id(node));
	fflush(stdout);
	while (messages) {
		uint64_t at, sender;

		if (tg_queue_pop_wait(ready, -1, &at) < 0)
			return fail("waiting");
		sender = (at - SLOTS) / SLOT;
		/* A sender with the right to enqueue may send any word. */
		if (at < SLOTS || sender >= NODES || at != SLOTS + sender * SLOT) {
			fprintf(stderr, "mailbox: no message is at %#" PRIx64 "\n", at);
			continue;
		}
		/* All of it is there: it was stored before. */
		printf("node %" PRIu64 ": %.*s\n", sender, SLOT, memory + at);
		fflush(stdout);
		atomic_fetch_add_explicit(&read[2 * sender], 1, memory_order_release);
		messages--;
	}
	if (tg_queue_close(ready))
		return fail("closing the queue");
	return tg_unexport(arena) ? fail("withdrawing") : 0;
}

static int post(tg_node *node, uint16_t id, const char *text)
{
	uint64_t words[WORDS] = { 0 }, read, posted;
	uint32_t me = tg_node_id(node);
	uint64_t at = SLOTS + me * SLOT;
	tg_remote_queue *ready;
	tg_remote *arena;

	if (tg_import(node, id, "mailbox", TG_RIGHT_READ | TG_RIGHT_WRITE, NULL, &arena))
		return fail("importing the arena");
	if (tg_queue_import(node, id, "mailbox-ready", NULL, &ready))
		return fail("importing the queue");
	memcpy(words, text, strnlen(text, sizeof(words)));
	for (;;) {
		if (tg_get64(arena, 16 * me, &read) || tg_get64(arena, 16 * me + 8, &posted))
			return fail("asking");
		if (read == posted)
			break;
		usleep(1000);
	}
	if (tg_put64(arena, 16 * me + 8, posted + 1))
		return fail("posting");
	if (tg_queue_put_notify(ready, arena, at, words, WORDS, at))
		return fail("posting");
	if (tg_quiet(arena) || tg_queue_quiet(ready, -1))
		return fail("waiting");
	if (tg_queue_unimport(ready) || tg_unimport(arena))
		return fail("closing");
	return 0;
}

int main(int argc, char **argv)
{
	tg_node *node;
	int code = 2;

	if (argc < 3) {
		fprintf(stderr, "usage: mailbox serve MESSAGES | mailbox post NODE TEXT\n");
		return code;
	}
	if (tg_open(NULL, &node))
		return fail("opening the board");
	if (argc == 3 && !strcmp(argv[1], "serve"))
		code = serve(node, strtoull(argv[2], NULL, 0));
	else if (argc == 4 && !strcmp(argv[1], "post"))
		code = post(node, atoi(argv[2]), argv[3]);
	tg_close(node);
	return code;
}
