// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Sums of numbers, in C: one process adds up what others send it, few numbers in a short message, many in a long one,
 * which the boards move from memory to memory.
 *
 *   sum serve NAME COUNT          has a name on its node, and answers so many questions
 *   sum ask NODE NAME NUMBERS     sends 1 to NUMBERS to that process, and checks its answer
 *
 * With -I for both headers, and -ltelegraphos_msg, which has the functions of telegraphos.h too.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <telegraphos_msg.h>

/* Threads of these numbers ask and answer, in messages with these tags. */
enum { ASKS = 1, SERVES = 2, NUMBERS = 10, SUM = 11 };

/* Numbers that a question has at most. */
#define MOST (1 << 20)

static int fail(const char *what)
{
	fprintf(stderr, "sum: %s: %s\n", what, tg_last_error());
	return 3;
}

static int serve(tg_msg *messages, tg_msg_thread *thread, const char *name, unsigned long questions)
{
	tg_msg_pattern pattern = { .tag = NUMBERS, .fields = TG_MSG_MATCH_TAG };
	uint64_t *numbers = calloc(MOST, sizeof(*numbers));
	tg_msg_name *published;
	int code = 0;

	if (!numbers) {
		fprintf(stderr, "sum: no memory\n");
		return 3;
	}
	if (tg_msg_publish(messages, name, &published)) {
		code = fail("publishing the name");
		goto out;
	}
	printf("serving\n");
	fflush(stdout);
	while (questions--) {
		tg_msg_received question;
		uint64_t sum = 0, count;

		if (tg_msg_receive(thread, &pattern, numbers, MOST * sizeof(*numbers), &question)) {
			code = fail("receiving");
			break;
		}
		/* Of a message without enough room the beginning is there. */
		count = question.length / sizeof(*numbers);
		for (uint64_t i = 0; i < count && i < MOST; i++)
			sum += numbers[i];
		printf("%" PRIu64 " numbers from node %" PRIu32 ": %" PRIu64 "\n", count, question.from.process.node, sum);
		fflush(stdout);
		/* One that has gone does not want the answer. */
		if (tg_msg_send(thread, &question.from, SUM, &sum, sizeof(sum)))
			fprintf(stderr, "sum: answering: %s\n", tg_last_error());
	}
	tg_msg_unpublish(published);
out:
	free(numbers);
	return code;
}

/* Waits for the answer, which comes to the handle's memory. */
static int check(tg_msg_handle *answer, uint64_t expected)
{
	tg_msg_memory *memory = NULL;
	tg_msg_received received;
	uint64_t sum = 0;

	if (tg_msg_handle_wait(answer, &memory, &received)) {
		tg_msg_memory_free(memory);
		return fail("receiving the answer");
	}
	if (received.length == sizeof(sum))
		memcpy(&sum, tg_msg_memory_data(memory), sizeof(sum));
	tg_msg_memory_free(memory);
	if (sum != expected) {
		fprintf(stderr, "sum: the answer is %" PRIu64 ": expected %" PRIu64 "\n", sum, expected);
		return 1;
	}
	printf("%" PRIu64 "\n", sum);
	return 0;
}

static int ask(tg_msg *messages, tg_msg_thread *thread, uint16_t node, const char *name, uint64_t count)
{
	tg_msg_handle *answer, *question;
	tg_msg_endpoint to = { .thread = SERVES };
	tg_msg_pattern pattern;
	tg_msg_memory *memory;
	uint64_t *numbers;
	int result;

	for (int tries = 0; (result = tg_msg_find(messages, node, name, &to.process)) == -ENOENT && tries < 30; tries++)
		usleep(100000);
	if (result)
		return fail("looking for the process");
	if (tg_msg_memory_create(count * sizeof(*numbers), &memory))
		return fail("making memory");
	numbers = tg_msg_memory_data(memory);
	for (uint64_t i = 0; i < count; i++)
		numbers[i] = i + 1;
	/* Before the question, so that the answer does not wait. */
	pattern = (tg_msg_pattern){
		.from = to, .tag = SUM, .fields = TG_MSG_MATCH_PROCESS | TG_MSG_MATCH_THREAD | TG_MSG_MATCH_TAG
	};
	if (tg_msg_receive_copy(thread, &pattern, sizeof(uint64_t), &answer)) {
		result = fail("waiting for the answer");
		tg_msg_memory_free(memory);
		return result;
	}
	/* The memory is the handle's from now on. */
	if (tg_msg_send_dma(thread, &to, NUMBERS, memory, count * sizeof(*numbers), &question)) {
		result = fail("sending");
		tg_msg_handle_free(answer);
		return result;
	}
	/* The other thread has it; the memory is not needed any more. */
	if (tg_msg_handle_wait(question, NULL, NULL)) {
		result = fail("sending");
		tg_msg_handle_free(answer);
		return result;
	}
	return check(answer, count * (count + 1) / 2);
}

int main(int argc, char **argv)
{
	int serves = argc == 4 && !strcmp(argv[1], "serve");
	int asks = argc == 5 && !strcmp(argv[1], "ask");
	uint64_t count = serves || asks ? strtoull(argv[argc - 1], NULL, 0) : 0;
	tg_msg_thread *thread;
	tg_msg *messages;
	tg_node *node;
	int code;

	if ((!serves && !asks) || count > MOST) {
		fprintf(stderr, "usage: sum serve NAME COUNT | sum ask NODE NAME NUMBERS\n");
		return 2;
	}
	if (tg_open(NULL, &node))
		return fail("opening the board");
	/* The node is the messages' from now on. */
	if (tg_msg_open(node, NULL, &messages))
		return fail("opening messages");
	if (tg_msg_thread_open(messages, serves ? SERVES : ASKS, &thread)) {
		code = fail("opening a thread");
	} else {
		code = serves ? serve(messages, thread, argv[2], count) : ask(messages, thread, atoi(argv[2]), argv[3], count);
		tg_msg_thread_close(thread);
	}
	tg_msg_close(messages);
	return code;
}
