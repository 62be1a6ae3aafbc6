// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Work shared by any number of processes on any nodes, in C: each draws numbers by fetch-and-increment, works, and stores
 * its results.
 *
 *   work serve ITEMS       exports the counter and the results, waits for them, checks them
 *   work help NODE         draws work from a node until there is none left
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <telegraphos.h>

/* Words of the segment: the counter, how many results there are, the number of items, results from word 8 on. */
enum { NEXT = 0, DONE = 8, ITEMS = 16, RESULTS = 64 };

static int fail(const char *what)
{
	fprintf(stderr, "work: %s: %s\n", what, tg_last_error());
	return 3;
}

static int serve(tg_node *node, uint64_t items)
{
	tg_export_options options = { .mode = 0606 };
	tg_segment *segment;
	_Atomic uint64_t *words;

	if (tg_export(node, "work", RESULTS + 8 * items, &options, &segment))
		return fail("exporting");
	words = tg_segment_memory(segment);
	atomic_store(&words[ITEMS / 8], items);
	printf("%" PRIu64 " items on node %d\n", items, tg_node_id(node));
	fflush(stdout);
	while (atomic_load_explicit(&words[DONE / 8], memory_order_acquire) < items)
		usleep(1000);
	for (uint64_t n = 0; n < items; n++) {
		if (atomic_load(&words[RESULTS / 8 + n]) != n * n) {
			fprintf(stderr, "work: item %" PRIu64 " is wrong\n", n);
			return 1;
		}
	}
	printf("all done\n");
	return tg_unexport(segment) ? fail("withdrawing") : 0;
}

static int help(tg_node *node, uint16_t id)
{
	uint64_t items, n, count = 0;
	tg_remote *work;

	if (tg_import(node, id, "work", 0, NULL, &work))
		return fail("importing");
	do {
		if (tg_get64(work, ITEMS, &items))
			return fail("reading");
	} while (!items);
	for (;;) {
		if (tg_fetch_inc64(work, NEXT, &n))
			return fail("drawing a number");
		if (n >= items)
			break;
		/* The increment travels behind the result, to the same node: a reader that sees it sees the result. */
		if (tg_put64(work, RESULTS + 8 * n, n * n) || tg_fetch_add64_nbi(work, DONE, 1, NULL))
			return fail("storing");
		count++;
	}
	printf("did %" PRIu64 " of %" PRIu64 " items\n", count, items);
	if (tg_quiet(work))
		return fail("waiting");
	return tg_unimport(work) ? fail("closing") : 0;
}

int main(int argc, char **argv)
{
	tg_node *node;
	int code = 2;

	if (argc != 3) {
		fprintf(stderr, "usage: work serve ITEMS | work help NODE\n");
		return code;
	}
	if (tg_open(NULL, &node))
		return fail("opening the board");
	if (!strcmp(argv[1], "serve"))
		code = serve(node, strtoull(argv[2], NULL, 0));
	else if (!strcmp(argv[1], "help"))
		code = help(node, atoi(argv[2]));
	tg_close(node);
	return code;
}
