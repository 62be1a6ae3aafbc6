// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A mailbox of one word between two nodes, in C.
 *
 *   mailbox serve          exports the box, waits for a word, prints it
 *   mailbox post NODE N    stores N into the box of a node
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <telegraphos.h>

static int fail(const char *what)
{
	fprintf(stderr, "mailbox: %s: %s\n", what, tg_last_error());
	return 3;
}

static int serve(tg_node *node)
{
	tg_export_options options = { .mode = 0602 };
	tg_segment *box;
	_Atomic uint64_t *word;

	if (tg_export(node, "mailbox", 4096, &options, &box))
		return fail("exporting");
	word = tg_segment_memory(box);
	printf("waiting on node %d\n", tg_node_id(node));
	fflush(stdout);
	while (!atomic_load_explicit(word, memory_order_acquire))
		usleep(1000);
	printf("got %" PRIu64 "\n", atomic_load(word));
	return tg_unexport(box) ? fail("withdrawing") : 0;
}

static int post(tg_node *node, uint16_t id, uint64_t value)
{
	tg_remote *box;

	if (tg_import(node, id, "mailbox", TG_RIGHT_WRITE, NULL, &box))
		return fail("importing");
	if (tg_put64(box, 0, value) || tg_quiet(box))
		return fail("storing");
	return tg_unimport(box) ? fail("closing") : 0;
}

int main(int argc, char **argv)
{
	tg_node *node;
	int code = 2;

	if (argc < 2) {
		fprintf(stderr, "usage: mailbox serve | mailbox post NODE N\n");
		return code;
	}
	if (tg_open(NULL, &node))
		return fail("opening the board");
	if (argc == 2 && !strcmp(argv[1], "serve"))
		code = serve(node);
	else if (argc == 4 && !strcmp(argv[1], "post"))
		code = post(node, atoi(argv[2]), strtoull(argv[3], NULL, 0));
	tg_close(node);
	return code;
}
