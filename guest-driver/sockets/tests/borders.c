// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What a program does to a connection past libc, or where libc's rules matter: an ordinary program.
 *
 *   borders serve PORT             sends much back, pauses, and reads all
 *   borders connect ADDRESS PORT   sends two long messages of which a signal interrupts the first; by dprintf; in a
 *                                  child that the system call makes; uses the number for a file meanwhile; and loads a
 *                                  library that is bound to libc first
 *
 * Both say how much was sent behind the beginning, and a hash of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "ends.h"

#define PIECE (64 << 10)
/* Pieces that are answered: both directions become framed. */
#define PIECES 32
#define MESSAGE (16 << 20)

static char bytes[MESSAGE];
static uint64_t hash = 1, count;

static void add(const char *from, size_t length)
{
	count += length;
	while (length--)
		hash = (hash ^ (unsigned char)*from++) * 0x100000001b3;
}

static void put(int fd, const char *from, size_t length)
{
	while (length) {
		ssize_t put = write(fd, from, length);

		if (put <= 0)
			fail("write");
		from += put;
		length -= put;
	}
}

static void get(int fd, size_t length)
{
	while (length) {
		ssize_t got = read(fd, bytes, length);

		if (got <= 0)
			fail("read");
		length -= got;
	}
}

/* A system call past libc. */
static long by_itself(long number, long a, long b)
{
	long returned;

	__asm__ volatile("syscall" : "=a"(returned) : "a"(number), "D"(a), "S"(b), "d"(0L) : "rcx", "r11", "memory");
	return returned;
}

static void ignore(int signal)
{
	(void)signal;
}

/* Returns how much of the first message was sent, behind which nothing of the second may be. */
static void interrupted(int fd)
{
	struct sigaction action = { .sa_handler = ignore };
	struct itimerval soon = { .it_value = { .tv_usec = 300000 } }, never = { 0 };
	struct iovec vectors[2];
	struct mmsghdr messages[2];
	int sent;

	memset(messages, 0, sizeof(messages));
	for (int n = 0; n < 2; n++) {
		vectors[n] = (struct iovec){ .iov_base = bytes, .iov_len = MESSAGE };
		messages[n].msg_hdr.msg_iov = &vectors[n];
		messages[n].msg_hdr.msg_iovlen = 1;
	}
	for (int n = 0; n < MESSAGE; n++)
		bytes[n] = n * 7 + (n >> 11);
	if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &soon, NULL))
		fail("a timer");
	sent = sendmmsg(fd, messages, 2, 0);
	if (setitimer(ITIMER_REAL, &never, NULL))
		fail("no timer");
	if (sent != 1 || messages[0].msg_len >= MESSAGE) {
		fprintf(stderr, "borders: %d messages are sent, of the first %u bytes\n", sent, messages[0].msg_len);
		exit(4);
	}
	add(bytes, messages[0].msg_len);
}

/* A child that libc does not know of. */
static void child(int fd)
{
	static const char text[100000] = "of the child";
	long made = by_itself(SYS_clone, SIGCHLD, 0);
	int status;

	if (made == 0) {
		put(fd, text, sizeof(text));
		_exit(0);
	}
	if (made < 0 || waitpid(made, &status, 0) != made || status) {
		fprintf(stderr, "borders: a child ends with status %#x\n", status);
		exit(4);
	}
	add(text, sizeof(text));
}

/* Has the number for a file, which the connection must not be taken for; it is the connection's again afterwards. */
static void other(int fd)
{
	char name[] = "/tmp/bordersXXXXXX", found[20] = "";
	int keep = dup(fd), file = mkstemp(name);

	if (keep < 0 || file < 0 || unlink(name))
		fail("a file");
	if (by_itself(SYS_close, fd, 0) || fcntl(file, F_DUPFD, fd) != fd)
		fail("the number");
	put(fd, "in the file", 11);
	if (pread(file, found, sizeof(found) - 1, 0) != 11 || strcmp(found, "in the file")) {
		fprintf(stderr, "borders: the file has %s\n", found);
		exit(4);
	}
	if (lseek(fd, 0, SEEK_SET) || read(fd, found, 2) != 2 || dup2(keep, fd) != fd || close(keep) || close(file))
		fail("the number is another's");
}

static void serve(int fd)
{
	ssize_t got;

	for (int n = 0; n < PIECES; n++) {
		get(fd, PIECE);
		put(fd, bytes, PIECE);
	}
	/* What is sent now has to wait. */
	sleep(2);
	while ((got = read(fd, bytes, sizeof(bytes))) > 0)
		add(bytes, got);
	if (got < 0)
		fail("read");
	printf("%llu %llx\n", (unsigned long long)count, (unsigned long long)hash);
}

static void ask(int fd)
{
	for (int n = 0; n < PIECES; n++) {
		put(fd, bytes, PIECE);
		get(fd, PIECE);
	}
	interrupted(fd);
	if (dprintf(fd, "HELLO %d\n", 42) != 9)
		fail("dprintf");
	add("HELLO 42\n", 9);
	child(fd);
	other(fd);
	/* What such a library does to connections, nothing sees. */
	if (!dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND))
		fail("dlopen");
	put(fd, "the end", 7);
	add("the end", 7);
	if (shutdown(fd, SHUT_WR) || read(fd, bytes, 1) != 0)
		fail("the end");
	printf("%llu %llx\n", (unsigned long long)count, (unsigned long long)hash);
}

int main(int argc, char **argv)
{
	return run_end(argc, argv, "borders", serve, ask);
}
