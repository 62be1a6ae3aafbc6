// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Bytes there and back over one TCP connection, measured and checked: an ordinary program, to be compared with itself
 * under tg-sockets and over other networks.
 *
 *   stream serve PORT             sends back what the other one says that it sends, until that ends
 *   stream connect ADDRESS PORT   for each line "SIZE WARMING COUNT" of its input: as many exchanges of so many bytes,
 *                                 of which those that count take the nanoseconds each that it says
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST (1 << 20)

static char bytes[MOST];

/* What comes: bytes of each exchange, and how many exchanges. */
struct order {
	uint32_t size;
	uint32_t count;
};

static void fail(const char *what)
{
	fprintf(stderr, "stream: %s: %s\n", what, strerror(errno));
	exit(3);
}

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

/* What is sent: no byte is that of the place before. */
static char byte_at(size_t at)
{
	return at * 7 + at / 251;
}

static void tune(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		fail("TCP_NODELAY");
}

static void serve(struct sockaddr_in at)
{
	struct order order;
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), fd;

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1))
		fail("listen");
	puts("serving");
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("accept");
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

static void connect_to(struct sockaddr_in other)
{
	unsigned int size, warming, count;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&other, sizeof(other)))
		fail("connect");
	tune(fd);
	while (scanf("%u %u %u", &size, &warming, &count) == 3) {
		struct order order = { size, warming + count };
		struct timespec begun, ended;

		if (size > MOST || count == 0) {
			fprintf(stderr, "stream: %u bytes %u times: expected at most %u, once at least\n", size, count, MOST);
			exit(2);
		}
		for (size_t at = 0; at < size; at++)
			bytes[at] = byte_at(at);
		put(fd, &order, sizeof(order));
		for (unsigned int n = 0; n < order.count; n++) {
			if (n == warming)
				clock_gettime(CLOCK_MONOTONIC, &begun);
			put(fd, bytes, size);
			if (!get(fd, bytes, size))
				fail("the other end has closed");
		}
		clock_gettime(CLOCK_MONOTONIC, &ended);
		/* It has been there and back each time. */
		for (size_t at = 0; at < size; at++) {
			if (bytes[at] != byte_at(at)) {
				fprintf(stderr, "stream: byte %zu of %u is another one\n", at, size);
				exit(1);
			}
		}
		printf("%.0f\n", ((ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec)) / count);
		fflush(stdout);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int port = argc > 1 ? atoi(argv[argc - 1]) : 0;

	if (port <= 0 || port > 65535)
		goto usage;
	at.sin_port = htons(port);
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(at);
	else if (argc == 4 && !strcmp(argv[1], "connect") && inet_pton(AF_INET, argv[2], &at.sin_addr) == 1)
		connect_to(at);
	else
		goto usage;
	return 0;
usage:
	fprintf(stderr, "usage: stream serve PORT | stream connect ADDRESS PORT\n");
	return 2;
}
