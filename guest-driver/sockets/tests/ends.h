/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What ordinary programs with one TCP connection have in common: `PROGRAM serve PORT` says "serving" and accepts one,
 * `PROGRAM connect ADDRESS PORT` makes one.
 */
#ifndef ENDS_H
#define ENDS_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *program;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program, what, strerror(errno));
	exit(3);
}

static int accept_one(struct sockaddr_in at)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), fd;

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1))
		fail("listen");
	puts("serving");
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("accept");
	return fd;
}

static int connect_to(struct sockaddr_in other)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&other, sizeof(other)))
		fail("connect");
	return fd;
}

/* Runs the end that the arguments name, with its connection; the exit code. */
static int run_end(int argc, char **argv, const char *name, void (*serve)(int), void (*ask)(int))
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int port = argc > 1 ? atoi(argv[argc - 1]) : 0;

	program = name;
	at.sin_port = htons(port);
	if (port <= 0 || port > 65535)
		goto usage;
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(accept_one(at));
	else if (argc == 4 && !strcmp(argv[1], "connect") && inet_pton(AF_INET, argv[2], &at.sin_addr) == 1)
		ask(connect_to(at));
	else
		goto usage;
	return 0;
usage:
	fprintf(stderr, "usage: %s serve PORT | %s connect ADDRESS PORT\n", program, program);
	return 2;
}

#endif
