// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Every way of libc to write to a connection, and to read from it: an ordinary program.
 *
 *   ways serve PORT             reads all, and sends much
 *   ways connect ADDRESS PORT   writes much, then a long and a short part in each way; reads what comes in each way
 *
 * Both say a hash of what they have sent and received. A way that fails where a connection goes through memory, or does
 * not exist, is said on the standard error; its bytes are written or read in another one.
 */
#define _GNU_SOURCE
#include <aio.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "ends.h"

#define MUCH (2 << 20)
#define PIECE (64 << 10)
/* Pieces that are answered. */
#define PIECES 8
#define LONG 30000

ssize_t __write(int fd, const void *from, size_t length);
ssize_t __read(int fd, void *to, size_t length);
ssize_t __send(int fd, const void *from, size_t length, int flags);
ssize_t __read_chk(int fd, void *to, size_t length, size_t size);
ssize_t __recv_chk(int fd, void *to, size_t length, size_t size, int flags);
ssize_t __recvfrom_chk(int fd, void *to, size_t length, size_t size, int flags, void *from, socklen_t *most);
int __dprintf_chk(int fd, int flag, const char *format, ...);
int __vdprintf_chk(int fd, int flag, const char *format, va_list list);

static char bytes[PIECE], text[2 * PIECE];

static uint64_t add(uint64_t hash, const char *from, size_t length)
{
	while (length--)
		hash = (hash ^ (unsigned char)*from++) * 0x100000001b3;
	return hash;
}

static uint64_t sent = 1, received = 1;

/* Letters, which are text as well. */
static void make(size_t length)
{
	static unsigned int state = 1;

	for (size_t n = 0; n < length; n++) {
		state = state * 1103515245 + 12345;
		bytes[n] = 'a' + (state >> 16) % 23;
	}
	bytes[length] = 0;
}

static void put(int fd, const char *from, size_t length)
{
	while (length) {
		ssize_t put = write(fd, from, length);

		if (put < 0)
			fail("write");
		from += put;
		length -= put;
	}
}

static ssize_t by_list(int fd, int way, struct iovec *vector)
{
	struct msghdr message = { .msg_iov = vector, .msg_iovlen = 2 };
	struct mmsghdr messages = { .msg_hdr = message };

	switch (way) {
	case 0:
		return writev(fd, vector, 2);
	case 1:
		return sendmsg(fd, &message, 0);
	case 2:
		return sendmmsg(fd, &messages, 1, 0) == 1 ? (ssize_t)messages.msg_len : -1;
	case 3:
		return pwritev2(fd, vector, 2, -1, 0);
	case 4:
		return syscall(SYS_writev, fd, vector, 2);
	default:
		return syscall(SYS_pwritev2, fd, vector, 2, -1L, -1L, 0);
	}
}

static ssize_t finished(struct aiocb *operation)
{
	const struct aiocb *list[] = { operation };

	while (aio_error(operation) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	return aio_return(operation);
}

static ssize_t asynchronously(int fd, int list, char *at, size_t length, int writes)
{
	struct aiocb operation = { .aio_fildes = fd, .aio_buf = at, .aio_nbytes = length,
				   .aio_lio_opcode = writes ? LIO_WRITE : LIO_READ };
	struct aiocb *operations[] = { &operation };

	if (list ? lio_listio(LIO_WAIT, operations, 1, NULL) :
		   writes ? aio_write(&operation) : aio_read(&operation))
		return -1;
	return finished(&operation);
}

static ssize_t from_file(int fd, size_t length)
{
	int file = memfd_create("ways", 0);
	off_t at = 0;
	ssize_t moved;

	put(file, bytes, length);
	moved = sendfile(fd, file, &at, length);
	close(file);
	return moved;
}

#define BY_LIST 8
#define OTHERS (BY_LIST + 6)
#define WRITES (OTHERS + 3)

static ssize_t write_in(int fd, int way, size_t length)
{
	struct iovec vector[] = { { bytes, length / 3 }, { bytes + length / 3, length - length / 3 } };

	if (way >= BY_LIST && way < OTHERS)
		return by_list(fd, way - BY_LIST, vector);
	switch (way) {
	case 0:
		return write(fd, bytes, length);
	case 1:
		return __write(fd, bytes, length);
	case 2:
		return send(fd, bytes, length, 0);
	case 3:
		return __send(fd, bytes, length, 0);
	case 4:
		return sendto(fd, bytes, length, 0, NULL, 0);
	case 5:
		return syscall(SYS_write, fd, bytes, length);
	case 6:
		return syscall(SYS_sendto, fd, bytes, length, 0, NULL, 0);
	case 7:
		return from_file(fd, length);
	case OTHERS:
		return asynchronously(fd, 0, bytes, length, 1);
	case OTHERS + 1:
		return asynchronously(fd, 1, bytes, length, 1);
	default: {
		int pipes[2];
		ssize_t moved;

		if (pipe(pipes) || length > 60000)
			fail("pipe");
		put(pipes[1], bytes, length);
		moved = splice(pipes[0], NULL, fd, NULL, length, 0);
		close(pipes[0]);
		close(pipes[1]);
		return moved;
	}
	}
}

static void write_all(int fd)
{
	for (int way = 0; way < WRITES; way++)
		for (int round = 0; round < 2; round++) {
			size_t length = round ? 100 : LONG;
			ssize_t moved;

			make(length);
			moved = write_in(fd, way, length);
			if (moved < 0) {
				fprintf(stderr, "ways: write %d: %s\n", way, strerror(errno));
				moved = 0;
			}
			sent = add(sent, bytes, length);
			put(fd, bytes + moved, length - moved);
		}
}

static int by_arguments(int fd, int way, const char *format, ...)
{
	va_list list, again;
	int length;

	va_start(list, format);
	va_copy(again, list);
	vsnprintf(text, sizeof(text), format, again);
	length = way ? __vdprintf_chk(fd, 1, format, list) : vdprintf(fd, format, list);
	va_end(again);
	va_end(list);
	return length;
}

#define FORMAT "%s %d %.3f %c %ld %.2e %s %lu %g %x %.1f %f %f %f %f %f %.2f %.2f %Lf\n"
#define ARGUMENTS(n) \
	bytes, -(n), 1.5 * (n), 'x', 1L << 40, 1e9 / (n), "end", 7UL << 60, 0.25, 0xbeefU, 2.5, 1.0, 2.0, 3.0, 4.0, 5.0, \
	6.25, 7.5 * (n), 8.125L

static void print(int fd)
{
	void *here[8];
	int count = backtrace(here, 8);
	char **names = backtrace_symbols(here, count);

	for (int n = 1; n <= 8; n++) {
		int length;

		make(n % 2 ? LONG : 20);
		snprintf(text, sizeof(text), FORMAT, ARGUMENTS(n));
		if (n <= 2)
			length = dprintf(fd, FORMAT, ARGUMENTS(n));
		else if (n <= 4)
			length = __dprintf_chk(fd, 1, FORMAT, ARGUMENTS(n));
		else
			length = by_arguments(fd, n > 6, FORMAT, ARGUMENTS(n));
		if (length != (int)strlen(text))
			fprintf(stderr, "ways: print %d: %d for %zu bytes\n", n, length, strlen(text));
		sent = add(sent, text, strlen(text));
	}
	backtrace_symbols_fd(here, count, fd);
	for (int n = 0; n < count; n++) {
		/* The address follows the name at once there, and behind a space here. */
		char *address = strstr(names[n], " [");

		if (address)
			memmove(address, address + 1, strlen(address));
		sent = add(add(sent, names[n], strlen(names[n])), "\n", 1);
	}
	if (eventfd_write(fd, 0x6162636465666768))
		fail("eventfd_write");
	sent = add(sent, "hgfedcba", 8);
}

/* The standard streams of a program that puts a connection in their place. */
static void print_by_streams(int fd)
{
	int before[] = { dup(1), dup(2) };

	fflush(stdout);
	if (dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
		fail("dup2");
	make(LONG);
	printf("%s\n", bytes);
	fflush(stdout);
	errno = ENOENT;
	perror("ways");
	sent = add(add(sent, bytes, LONG), "\n", 1);
	sent = add(sent, "ways: No such file or directory\n", 32);
	if (dup2(before[0], 1) < 0 || dup2(before[1], 2) < 0)
		fail("dup2");
	close(before[0]);
	close(before[1]);
}

#define READS 15

static ssize_t read_in(int fd, int way, size_t length)
{
	struct iovec vector[] = { { bytes, length / 3 }, { bytes + length / 3, length - length / 3 } };
	struct msghdr message = { .msg_iov = vector, .msg_iovlen = 2 };
	struct mmsghdr messages = { .msg_hdr = message };

	switch (way) {
	case 0:
		return read(fd, bytes, length);
	case 1:
		return __read(fd, bytes, length);
	case 2:
		return __read_chk(fd, bytes, length, sizeof(bytes));
	case 3:
		return recv(fd, bytes, length, 0);
	case 4:
		return __recv_chk(fd, bytes, length, sizeof(bytes), 0);
	case 5:
		return recvfrom(fd, bytes, length, 0, NULL, NULL);
	case 6:
		return __recvfrom_chk(fd, bytes, length, sizeof(bytes), 0, NULL, NULL);
	case 7:
		return readv(fd, vector, 2);
	case 8:
		return preadv2(fd, vector, 2, -1, 0);
	case 9:
		return recvmsg(fd, &message, 0);
	case 10:
		return recvmmsg(fd, &messages, 1, 0, NULL) == 1 ? (ssize_t)messages.msg_len : -1;
	case 11:
		return syscall(SYS_read, fd, bytes, length);
	case 12:
		return syscall(SYS_recvfrom, fd, bytes, length, 0, NULL, NULL);
	case 13:
		return asynchronously(fd, 0, bytes, length, 0);
	default:
		return asynchronously(fd, 1, bytes, length, 0);
	}
}

static void read_all(int fd)
{
	for (int way = 0;; way++) {
		size_t length = way % 3 ? 20000 : 50;
		ssize_t got = read_in(fd, way % READS, length);

		if (got < 0 && errno == EINVAL) {
			if (way < READS)
				fprintf(stderr, "ways: read %d: %s\n", way % READS, strerror(errno));
			continue;
		}
		if (got < 0)
			fail("read");
		if (got == 0)
			return;
		received = add(received, bytes, got);
	}
}

static void put_piece(int fd)
{
	make(PIECE - 1);
	put(fd, bytes, PIECE - 1);
	sent = add(sent, bytes, PIECE - 1);
}

/*
 * Much, in turn with an answer, so that the direction can become framed. Both do before other ways, some of which keep a
 * direction that is not framed from memory.
 */
static void put_much(int fd)
{
	char answer;

	for (int n = 0; n < PIECES; n++) {
		put_piece(fd);
		if (read(fd, &answer, 1) != 1)
			fail("no answer");
	}
}

static void put_more(int fd)
{
	for (int n = PIECES; n < MUCH / PIECE; n++)
		put_piece(fd);
}

static void get_much(int fd)
{
	for (int n = 0; n < PIECES; n++) {
		for (size_t left = PIECE - 1; left;) {
			ssize_t got = read(fd, bytes, left);

			if (got <= 0)
				fail("read");
			received = add(received, bytes, got);
			left -= got;
		}
		put(fd, "k", 1);
	}
}

static void say(void)
{
	printf("%016lx %016lx\n", (unsigned long)sent, (unsigned long)received);
}

/* Up to a line with a dot alone, which nothing else has. */
static void read_to_the_mark(int fd)
{
	char last[3] = "";

	for (int way = 0; memcmp(last, "\n.\n", 3); way++) {
		ssize_t got = read_in(fd, way % 13, way % 3 ? 20000 : 50);

		if (got <= 0)
			fail("read");
		received = add(received, bytes, got);
		for (ssize_t n = got > 3 ? got - 3 : 0; n < got; n++) {
			memmove(last, last + 1, 2);
			last[2] = bytes[n];
		}
	}
}

static void serve(int fd)
{
	uint64_t swapped;

	get_much(fd);
	put_much(fd);
	read_to_the_mark(fd);
	put_more(fd);
	close(fd);
	swapped = sent;
	sent = received;
	received = swapped;
	say();
}

static void ask(int fd)
{
	uint32_t parameters[64] = { 0 };

	put_much(fd);
	get_much(fd);
	put_more(fd);
	write_all(fd);
	print(fd);
	print_by_streams(fd);
	if (syscall(SYS_io_uring_setup, 8, parameters) < 0)
		fprintf(stderr, "ways: io_uring_setup: %s\n", strerror(errno));
	/* What the other end answers with is not a half-close: bytes continue both ways until the last one. */
	put(fd, "\n.\n", 3);
	sent = add(sent, "\n.\n", 3);
	read_all(fd);
	say();
}

int main(int argc, char **argv)
{
	return run_end(argc, argv, "ways", serve, ask);
}
