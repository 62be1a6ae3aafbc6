/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Messages between threads of a cluster's processes, over windows, notification queues and copies of Telegraphos.
 *
 * Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the message: -ECONNRESET when the
 * other process has gone, -ESRCH when it has no such thread, -EHOSTUNREACH, -ETIMEDOUT and -EPROTO when it is not
 * reached, does not answer or has other options, -ESHUTDOWN when the messages or the receiving thread have been closed,
 * -ESTALE in a child, made by fork, of the process that has opened the messages, which is to open its own,
 * -ECANCELED after a receive was withdrawn, -EFAULT when a message or a buffer is not mapped, and -EEXIST when a thread
 * is open already. No call raises SIGBUS when another process or node dies.
 *
 * Several threads may use messages, threads and handles at once, but only one may close them, after all other use;
 * memory and single buffers are for one thread at a time. Threads keep their messages open, and single buffers their
 * thread. Names are UTF-8.
 *
 * The library has the functions of telegraphos.h, too: a program links it instead of that one.
 *
 * Generated from the library; do not edit. Renew with
 *   cargo run -p telegraphos-msg --example telegraphos_msg_h > guest-driver/msg/include/telegraphos_msg.h
 */
#ifndef TELEGRAPHOS_MSG_H
#define TELEGRAPHOS_MSG_H

#include <stdint.h>
#include <telegraphos.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The messages of a process. */
typedef struct tg_msg tg_msg;
/* A name of a process. */
typedef struct tg_msg_name tg_msg_name;
/* A thread that sends and receives. */
typedef struct tg_msg_thread tg_msg_thread;
/* Memory that belongs to messages under way. */
typedef struct tg_msg_memory tg_msg_memory;
/* An asynchronous send or receive. */
typedef struct tg_msg_handle tg_msg_handle;
/* A buffer for one message at a time, which comes while its thread does something else. */
typedef struct tg_msg_buffer tg_msg_buffer;

/* Fields of a pattern */
/* Only messages from the process from.process. */
#define TG_MSG_MATCH_PROCESS 0x1
/* Only messages from threads with the number from.thread. */
#define TG_MSG_MATCH_THREAD 0x2
/* Only messages with that tag. */
#define TG_MSG_MATCH_TAG 0x4

/* Which board moves the bytes of long messages */
/* The receiver's board fetches them. The default. */
#define TG_MSG_GET 0x0
/* The sender's board stores them, when the receiver asks it to. */
#define TG_MSG_PUT 0x1

/* How messages are waited for */
/* A thread sleeps until an interrupt. The default. */
#define TG_MSG_BLOCKING 0x0
/* A thread looks all the time: for processes with a processor to spare. */
#define TG_MSG_POLLING 0x1
/* Threads that wait look themselves while that is worth it, and sleep then. */
#define TG_MSG_ADAPTIVE 0x2

/* A process of the cluster. */
typedef struct tg_msg_process {
	/* The node that it runs on. */
	uint32_t node;
	/* Its number there, which no later process has. */
	uint32_t number;
} tg_msg_process;

/* A thread of a process: what messages are from and for. */
typedef struct tg_msg_endpoint {
	/* Its process. */
	tg_msg_process process;
	/* Its number there. */
	uint32_t thread;
} tg_msg_endpoint;

/* Which messages a receive accepts. All zeros, or NULL, means: all. */
typedef struct tg_msg_pattern {
	/* Process and thread that they are from. */
	tg_msg_endpoint from;
	/* Their tag. */
	uint32_t tag;
	/* The fields that count, TG_MSG_MATCH_*; what is in the others may be anything. */
	uint32_t fields;
} tg_msg_pattern;

/* A message that was received. */
typedef struct tg_msg_received {
	/* The thread that sent it. */
	tg_msg_endpoint from;
	/* Its tag. */
	uint32_t tag;
	/* Its bytes, all of them: if there was less room, the first ones are there. */
	uint64_t length;
} tg_msg_received;

/* Which messages to a process go to slots. */
typedef struct tg_msg_eager {
	/* Bytes of the longest one, unless the other way is tried; between eager_floor and eager of the options. */
	uint64_t threshold;
	/* Messages that have been measured, of those that went to slots. */
	uint64_t slots;
	/* The same of those that were requests. */
	uint64_t requests;
} tg_msg_eager;

/* How to open messages; what is 0 is the default, and so is NULL. slots, block, fragments, eager and longest must
 * be the same for all processes that talk to each other. */
typedef struct tg_msg_options {
	/* Messages, or fragments of them, that one process may have at another, until the thread there has them, up to
	 * 65535; 0 means 64. */
	uint32_t slots;
	/* Bytes of a message that a slot has room for; 0 means 4096. */
	uint32_t block;
	/* Fragments of one message, up to 65535; 0 means 1. */
	uint32_t fragments;
	/* Other processes, at most; 0 means 1024. */
	uint32_t peers;
	/* Bytes of the longest message that goes to slots before it is received, at most what the fragments have room
	 * for; 0 means 4096, UINT64_MAX that none does. */
	uint64_t eager;
	/* Bytes of the longest message that goes to a slot in any case; between this and eager, messages go the way
	 * that has been faster to that process. 0 means 128, UINT64_MAX that all go to slots which may. Need not be
	 * the same. */
	uint64_t eager_floor;
	/* Bytes of the longest message; 0 means no limit. */
	uint64_t longest;
	/* Threads that can receive, at most; 0 means 4096. */
	uint32_t threads;
	/* Sends that have not ended, at most; 0 means 16384. */
	uint32_t sends;
	/* Receives that have not ended, at most; 0 means 16384. */
	uint32_t receives;
	/* Chains that the hash of the matching chooses from, up to 65535; 0 means 256. */
	uint32_t chains;
	/* Queues with a thread each, up to 64; 0 means 8. */
	uint32_t ports;
	/* Which board moves the bytes of long messages that this process receives: TG_MSG_GET or TG_MSG_PUT. */
	uint32_t way;
	/* How messages are waited for: TG_MSG_BLOCKING, TG_MSG_POLLING or TG_MSG_ADAPTIVE. */
	uint32_t progress;
	/* Not 0: threads that look for messages keep the processor between two looks. */
	uint32_t no_yield;
	/* The number of this cluster's node 0 among the nodes of all clusters: the same for all processes of the
	 * cluster. */
	uint32_t first_node;
	/* Not 0: others reach further processes by this one. */
	uint32_t gateway;
	/* What all processes that route have in common, at least 16 bytes of text; NULL: this one does not. */
	const char *key;
	/* Where neighbours connect to, HOST:PORT, or NULL. */
	const char *listen;
	/* Neighbours to connect to, up to 64, each HOST:PORT, with commas between; or NULL. */
	const char *neighbours;
} tg_msg_options;

/* Opens messages for this process, which is another one each time. Processes of the same user, on any node, with
 * equal options, can send to it. The node belongs to them from now on, and is closed if this fails: for everything
 * else, open another one. options may be NULL. */
int tg_msg_open(tg_node *node, const tg_msg_options *options, tg_msg **messages);

/* Closes messages. Threads of them that are open keep them open. Sends and receives that have not ended end then. */
void tg_msg_close(tg_msg *messages);

/* Fills options with those of s4: 32 fragments of blocks of 64 KiB less a header of 40 bytes, no longer message. */
int tg_msg_paper_options(tg_msg_options *options);

/* This process. */
int tg_msg_process_of(const tg_msg *messages, tg_msg_process *process);

/* The number of ports that have been opened, or a negative errno. */
int tg_msg_ports(const tg_msg *messages);

/* Gives this process a name on its node, by which others find it. */
int tg_msg_publish(const tg_msg *messages, const char *name, tg_msg_name **published);

/* Takes a name back. */
void tg_msg_unpublish(tg_msg_name *published);

/* The process of that name on a node; -ENOENT if there is none. process may be NULL. */
int tg_msg_find(const tg_msg *messages, uint16_t node, const char *name, tg_msg_process *process);

/* Connects to a process, for at most so many nanoseconds. The first message to it does so, too, for at most 10
 * seconds. */
int tg_msg_connect(const tg_msg *messages, const tg_msg_process *process, uint64_t nanoseconds);

/* Which messages to a process go to slots now; -ECONNRESET if it is not connected. eager may be NULL. */
int tg_msg_eager_to(const tg_msg *messages, const tg_msg_process *process, tg_msg_eager *eager);

/* Opens a thread of this process, which can receive from now on; the number is its own. It need not be one of the
 * system's. */
int tg_msg_thread_open(const tg_msg *messages, uint32_t number, tg_msg_thread **thread);

/* Closes a thread. Single buffers of it that are open keep it open. Receives that have no message end then, and
 * so do sends to it that it has not received. */
void tg_msg_thread_close(tg_msg_thread *thread);

/* What others send to. */
int tg_msg_endpoint_of(const tg_msg_thread *thread, tg_msg_endpoint *endpoint);

/* Sends length bytes: returns when the receiving thread has them. */
int tg_msg_send(const tg_msg_thread *thread, const tg_msg_endpoint *to, uint32_t tag, const void *bytes, uint64_t length);

/* Waits for a message that the pattern accepts. Of one that is longer than the buffer the beginning is there.
 * received may be NULL. */
int tg_msg_receive(const tg_msg_thread *thread, const tg_msg_pattern *pattern, void *buffer, uint64_t capacity, tg_msg_received *received);

/* tg_msg_receive that fails with -EAGAIN after so many nanoseconds; no message is lost. */
int tg_msg_receive_timeout(const tg_msg_thread *thread, const tg_msg_pattern *pattern, void *buffer, uint64_t capacity, uint64_t nanoseconds, tg_msg_received *received);

/* Sends a copy of length bytes, and does not wait for the receiving thread. The first message to a process
 * connects to it before. Ends with tg_msg_handle_wait or tg_msg_handle_free. */
int tg_msg_send_copy(const tg_msg_thread *thread, const tg_msg_endpoint *to, uint32_t tag, const void *bytes, uint64_t length, tg_msg_handle **handle);

/* Sends the first length bytes of memory, without a copy, and does not wait; see tg_msg_send_copy. The memory
 * belongs to the handle from now on, and is freed if this fails. */
int tg_msg_send_dma(const tg_msg_thread *thread, const tg_msg_endpoint *to, uint32_t tag, tg_msg_memory *memory, uint64_t length, tg_msg_handle **handle);

/* Has a message that the pattern accepts come into new memory of capacity bytes, and does not wait. Ends with
 * tg_msg_handle_wait, which returns the memory, or tg_msg_handle_free, which withdraws it. */
int tg_msg_receive_copy(const tg_msg_thread *thread, const tg_msg_pattern *pattern, uint64_t capacity, tg_msg_handle **handle);

/* The same, with memory of the program, which belongs to the handle from now on, and is freed if this fails. */
int tg_msg_receive_dma(const tg_msg_thread *thread, const tg_msg_pattern *pattern, tg_msg_memory *memory, tg_msg_handle **handle);

/* Makes memory for messages, of size bytes, zeroed. For its first long message it is registered, which takes a
 * while, and stays so until it is freed: a process that was sent a long message from it can read what is written
 * there later. */
int tg_msg_memory_create(uint64_t size, tg_msg_memory **memory);

/* Where memory lies; NULL for NULL. The address is the same when a handle returns it. */
void *tg_msg_memory_data(tg_msg_memory *memory);

/* Bytes of memory. */
uint64_t tg_msg_memory_size(const tg_msg_memory *memory);

/* Frees memory. */
void tg_msg_memory_free(tg_msg_memory *memory);

/* 1 if a send or a receive has ended, successfully or not, else 0: of a send, whether the receiving thread has the
 * message. Does not wait. */
int tg_msg_handle_test(const tg_msg_handle *handle);

/* Waits for at most so many nanoseconds: 1 if it has ended, else 0. */
int tg_msg_handle_wait_timeout(const tg_msg_handle *handle, uint64_t nanoseconds);

/* Waits until it has ended, and closes the handle. memory is the program's again, also if it has failed; if that
 * place is NULL, it is freed. received is for a receive, and may be NULL. */
int tg_msg_handle_wait(tg_msg_handle *handle, tg_msg_memory **memory, tg_msg_received *received);

/* Withdraws a receive: 1, or 0 if it has a message, has ended, or is a send. It ends in any case. */
int tg_msg_handle_withdraw(const tg_msg_handle *handle);

/* Closes the handle of a send, which continues, or of a receive, which is withdrawn if it has no message. The
 * memory is freed when it has ended. */
void tg_msg_handle_free(tg_msg_handle *handle);

/* Opens a buffer for one message that the pattern accepts, which comes meanwhile: a second sender waits until the
 * first one's message has been used. */
int tg_msg_buffer_open(const tg_msg_thread *thread, const tg_msg_pattern *pattern, uint64_t capacity, tg_msg_buffer **buffer);

/* 1 if there is a message in a buffer, else 0. Does not wait. */
int tg_msg_buffer_test(const tg_msg_buffer *buffer);

/* Waits for the message, copies it to bytes, and opens the buffer for the next one. Of a message that is longer
 * than the buffer, or than capacity, the beginning is there. received may be NULL. */
int tg_msg_buffer_next(tg_msg_buffer *buffer, void *bytes, uint64_t capacity, tg_msg_received *received);

/* Closes a buffer. A message in it that was not used is lost. */
void tg_msg_buffer_close(tg_msg_buffer *buffer);

#ifdef __cplusplus
}
#endif

#endif /* TELEGRAPHOS_MSG_H */
