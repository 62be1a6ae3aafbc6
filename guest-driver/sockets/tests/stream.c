// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Bytes there and back over one TCP connection, measured: an ordinary program, to be compared with itself under
 * tg-sockets and over other networks.
 *
 *   stream serve PORT             sends back what the other one says that it sends, until that ends
 *   stream connect ADDRESS PORT   for each line "SIZE WARMING COUNT" of its input: as many exchanges of so many bytes,
 *                                 of which those that count take the nanoseconds each that it says; the bytes of one
 *                                 more are compared
 */
#include <netinet/tcp.h>
#include <stdint.h>
#include <time.h>

#include "ends.h"

#define MOST (1 << 20)

static char bytes[MOST];

/* What comes: bytes of each exchange, and how many exchanges. */
struct order {
	uint32_t size;
	uint32_t count;
};

static void put(int fd, const void *from, size_t length)
{
	for (const char *at = from; length;) {
		ssize_t put = write(fd, at, length);

		if (put < 0)
			fail("write");
		at += put;
		length -= put;
	}
}

/* Whether they have come; 0 is the end of the connection. */
static int get(int fd, void *to, size_t length)
{
	for (char *at = to; length;) {
		ssize_t got = read(fd, at, length);

		if (got < 0)
			fail("read");
		if (got == 0)
			return 0;
		at += got;
		length -= got;
	}
	return 1;
}

static char expected(unsigned int at, uint32_t seed)
{
	return (char)(((at ^ at >> 8 ^ seed) * 0x9e3779b1) >> 24);
}

static void tune(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		fail("TCP_NODELAY");
}

static void serve(int fd)
{
	struct order order;

	tune(fd);
	while (get(fd, &order, sizeof(order))) {
		if (order.size > MOST) {
			fprintf(stderr, "stream: %u bytes: expected at most %u\n", order.size, MOST);
			exit(3);
		}
		while (order.count--) {
			if (!get(fd, bytes, order.size))
				return;
			put(fd, bytes, order.size);
		}
	}
	close(fd);
}

/* One more exchange, whose bytes are compared. */
static void compare(int fd, unsigned int size)
{
	static uint32_t seed;

	seed++;
	for (unsigned int n = 0; n < size; n++)
		bytes[n] = expected(n, seed);
	put(fd, bytes, size);
	memset(bytes, 0, size);
	if (!get(fd, bytes, size))
		fail("the other end has closed");
	for (unsigned int n = 0; n < size; n++)
		if (bytes[n] != expected(n, seed)) {
			fprintf(stderr, "stream: byte %u of %u that came back is another\n", n, size);
			exit(1);
		}
}

static void ask(int fd)
{
	unsigned int size, warming, count;

	tune(fd);
	while (scanf("%u %u %u", &size, &warming, &count) == 3) {
		struct order order = { size, warming + count + 1 };
		struct timespec begun, ended;

		if (size > MOST || count == 0) {
			fprintf(stderr, "stream: %u bytes %u times: expected at most %u, once at least\n", size, count, MOST);
			exit(2);
		}
		put(fd, &order, sizeof(order));
		for (unsigned int n = 0; n < warming + count; n++) {
			if (n == warming)
				clock_gettime(CLOCK_MONOTONIC, &begun);
			put(fd, bytes, size);
			if (!get(fd, bytes, size))
				fail("the other end has closed");
		}
		clock_gettime(CLOCK_MONOTONIC, &ended);
		compare(fd, size);
		printf("%.0f\n", ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / count);
		fflush(stdout);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	return run_end(argc, argv, "stream", serve, ask);
}
