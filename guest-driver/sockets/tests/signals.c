// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Writes and reads of signal handlers, on a connection that the interrupted thread uses as well: an ordinary program.
 *
 *   signals serve PORT              counts the bytes of each kind that one connection brings; a handler of a timer's
 *                                   signal sends 16 KiB back each time, as far as there is room
 *   signals connect ADDRESS PORT    writes 24 MiB of 'm'; the handler writes 16 KiB of 'h' each time, and reads what
 *                                   there is to read
 *
 * Both say at the end how many bytes of the client's own, of its handler's and of the server's there were.
 */
#include <signal.h>
#include <sys/time.h>

#include "ends.h"

#define CHUNK (256 << 10)
#define CHUNKS 96
#define BY_HANDLER (16 << 10)

static char own[CHUNK], handlers[BY_HANDLER], came[CHUNK];
static volatile long handled, seen;
static int fd;

/* Of both the handler and what it interrupts. */
static void put(const char *from, size_t length)
{
	while (length) {
		ssize_t put = write(fd, from, length);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			_exit(4);
		from += put;
		length -= put;
	}
}

static void write_and_read(int signal)
{
	int error = errno;
	ssize_t got;

	(void)signal;
	put(handlers, sizeof(handlers));
	handled += sizeof(handlers);
	while ((got = recv(fd, came, sizeof(came), MSG_DONTWAIT)) > 0)
		seen += got;
	errno = error;
}

static void write_back(int signal)
{
	int error = errno;
	/* If it waited, both ends could. */
	ssize_t sent = send(fd, handlers, sizeof(handlers), MSG_DONTWAIT);

	(void)signal;
	if (sent > 0)
		handled += sent;
	errno = error;
}

/* Every so many microseconds; 0 ends it. */
static void handle(void (*handler)(int), int microseconds)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };

	if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &timer, NULL))
		fail("a timer");
}

static void serve(int accepted)
{
	long of[256] = { 0 };
	ssize_t got;

	fd = accepted;
	handle(write_back, 20000);
	while ((got = read(fd, own, sizeof(own))) != 0) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			fail("read");
		for (ssize_t n = 0; n < got; n++)
			of[(unsigned char)own[n]]++;
	}
	handle(SIG_IGN, 0);
	printf("%ld %ld %ld\n", of['m'], of['h'], handled);
	close(fd);
}

static void ask(int connected)
{
	ssize_t got;

	fd = connected;
	handle(write_and_read, 10000);
	for (int n = 0; n < CHUNKS; n++)
		put(own, sizeof(own));
	handle(SIG_IGN, 0);
	if (shutdown(fd, SHUT_WR))
		fail("shutdown");
	while ((got = read(fd, came, sizeof(came))) > 0)
		seen += got;
	if (got < 0)
		fail("read");
	printf("%ld %ld %ld\n", (long)CHUNKS * CHUNK, handled, seen);
}

int main(int argc, char **argv)
{
	memset(own, 'm', sizeof(own));
	memset(handlers, 'h', sizeof(handlers));
	return run_end(argc, argv, "signals", serve, ask);
}
