// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What a program in C may do wrong with messages: each is refused, and says why, and what was there before is not lost.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <telegraphos_msg.h>

#define PAGE 4096
#define LONG 100000

static int failures;

/* Expects that error, with these words in its message. */
static void refused(const char *what, int result, int errno_is, const char *words)
{
	int right = result == -errno_is && strstr(tg_last_error(), words);

	printf("%s: %s\n", what, result < 0 ? tg_last_error() : "it was not refused");
	failures += !right;
}

static int fail(const char *what)
{
	fprintf(stderr, "wrong: %s: %s\n", what, tg_last_error());
	return 3;
}

int main(void)
{
	/* Below what the system maps anything at; and a page that the program has mapped, with nothing behind it. */
	char *nowhere = (char *)(2UL * PAGE), *last = (char *)(64UL * PAGE), *across = last + PAGE - 100;
	tg_msg_handle *handle = NULL, *sent;
	tg_msg_thread *thread, *again = NULL;
	tg_msg_received received;
	tg_msg_memory *memory;
	tg_msg_buffer *single;
	tg_msg_endpoint self;
	static char got[LONG];
	tg_msg *messages;
	tg_node *node;

	if (mmap(last, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != last) {
		perror("wrong: mmap");
		return 3;
	}
	if (tg_open(NULL, &node))
		return fail("opening the board");
	if (tg_msg_open(node, NULL, &messages))
		return fail("opening messages");
	if (tg_msg_thread_open(messages, 1, &thread) || tg_msg_endpoint_of(thread, &self))
		return fail("opening a thread");
	refused("a thread that is open", tg_msg_thread_open(messages, 1, &again), EEXIST, "thread 1 is open already");

	/* Short ones would be read by the processor, long ones by a board. */
	refused("a short message", tg_msg_send(thread, &self, 7, nowhere, 8), EFAULT, "the message, 8 bytes at 0x2000");
	refused("a long message", tg_msg_send(thread, &self, 7, nowhere, LONG), EFAULT, "is not mapped");
	refused("one that begins well", tg_msg_send(thread, &self, 7, across, 101), EFAULT, "is not mapped");
	refused("a copy of one", tg_msg_send_copy(thread, &self, 7, across, LONG, &handle), EFAULT, "is not mapped");
	if (tg_msg_memory_create(8, &memory))
		return fail("making memory");
	refused("more than memory has", tg_msg_send_dma(thread, &self, 7, memory, 9, &handle), EINVAL, "from memory of 8");
	if (again || handle) {
		printf("what was refused is there\n");
		return 1;
	}

	/* A message that waits is not lost by a receive that is refused. */
	memcpy(across, "this one waits", 15);
	if (tg_msg_send_copy(thread, &self, 7, across, 100, &sent))
		return fail("sending");
	refused("a buffer", tg_msg_receive(thread, NULL, nowhere, LONG, NULL), EFAULT, "the buffer, 100000 bytes");
	refused("one with a time limit", tg_msg_receive_timeout(thread, NULL, across, 101, 1000000, NULL), EFAULT,
		"is not mapped");
	if (tg_msg_receive(thread, NULL, got, sizeof(got), &received) || tg_msg_handle_wait(sent, NULL, NULL))
		return fail("receiving");
	failures += received.length != 100 || received.tag != 7 || strcmp(got, "this one waits");

	/* Nor is one in a single buffer. */
	if (tg_msg_buffer_open(thread, NULL, LONG, &single) || tg_msg_send_copy(thread, &self, 8, across, 100, &sent))
		return fail("sending to a single buffer");
	refused("bytes of a single buffer", tg_msg_buffer_next(single, nowhere, 100, NULL), EFAULT, "is not mapped");
	memset(got, 0, sizeof(got));
	if (tg_msg_buffer_next(single, got, sizeof(got), &received) || tg_msg_handle_wait(sent, NULL, NULL))
		return fail("receiving from a single buffer");
	failures += received.length != 100 || received.tag != 8 || strcmp(got, "this one waits");

	tg_msg_buffer_close(single);
	tg_msg_thread_close(thread);
	tg_msg_close(messages);
	if (failures)
		printf("%d were not as expected\n", failures);
	else
		printf("nothing was lost\n");
	return failures > 0;
}
