/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: commands, completions and events of the board, and page faults.
 *
 * Each names the board by its minor number, as in /dev/telegraphosN.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM telegraphos

#if !defined(TELEGRAPHOS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TELEGRAPHOS_TRACE_H

#include <linux/tracepoint.h>

#include "driver.h"

#define tg_opcode_symbol(name) { TG_ADMIN_##name, #name }
#define tg_show_opcode(...) __print_symbolic(__entry->opcode, __VA_ARGS__)

#define tg_show_event(kind)						\
	__print_symbolic(kind,						\
		{ TG_EVENT_ADMIN_DONE, "ADMIN_DONE" },			\
		{ TG_EVENT_IMPORT_STATE, "IMPORT_STATE" },		\
		{ TG_EVENT_NODE_STATE, "NODE_STATE" },			\
		{ TG_EVENT_LINK_STATE, "LINK_STATE" },			\
		{ TG_EVENT_ERROR, "ERROR" },				\
		{ TG_EVENT_CONTEXT, "CONTEXT" },			\
		{ TG_EVENT_COUNTER, "COUNTER" },			\
		{ TG_EVENT_QUEUE, "QUEUE" },				\
		{ TG_EVENT_REPLICA, "REPLICA" },			\
		{ TG_EVENT_CONTEXT_STATE, "CONTEXT_STATE" },		\
		{ TG_EVENT_DIRECT, "DIRECT" })

#define tg_show_mapping(kind)						\
	__print_symbolic(kind,						\
		{ TG_MMAP_CONTEXT, "context" },				\
		{ TG_MMAP_STATUS, "status" },				\
		{ TG_MMAP_IMPORT, "import" },				\
		{ TG_MMAP_EXPORT, "export" },				\
		{ TG_MMAP_ARGUMENT, "argument" },			\
		{ TG_MMAP_QUEUE, "queue" },				\
		{ TG_MMAP_ENQUEUE, "enqueue" },				\
		{ TG_MMAP_REPLICA, "replica" },				\
		{ TG_MMAP_REPLICA_WINDOW, "replica-window" })

/* A command is in its slot, and the doorbell about to be written. */
TRACE_EVENT(tg_admin_command,
	TP_PROTO(const struct tg_device *tg, u32 slot, const union tg_request *request),
	TP_ARGS(tg, slot, request),
	TP_STRUCT__entry(
		__field(u32, board)
		__field(u32, slot)
		__field(u32, opcode)
		__field(u32, seq)
	),
	TP_fast_assign(
		__entry->board = tg_minor(tg);
		__entry->slot = slot;
		__entry->opcode = le32_to_cpu(request->command.opcode);
		__entry->seq = le32_to_cpu(request->command.seq);
	),
	TP_printk("board=%u slot=%u seq=%u opcode=%s", __entry->board, __entry->slot,
		  __entry->seq, TG_OPCODES(tg_show_opcode, tg_opcode_symbol))
);

/* A completion has been found. */
TRACE_EVENT(tg_admin_completion,
	TP_PROTO(const struct tg_device *tg, u32 slot, u32 seq,
		 const struct tg_admin_result *result),
	TP_ARGS(tg, slot, seq, result),
	TP_STRUCT__entry(
		__field(u32, board)
		__field(u32, slot)
		__field(u32, seq)
		__field(u32, status)
	),
	TP_fast_assign(
		__entry->board = tg_minor(tg);
		__entry->slot = slot;
		__entry->seq = seq;
		__entry->status = result->status;
	),
	TP_printk("board=%u slot=%u seq=%u status=%u", __entry->board, __entry->slot,
		  __entry->seq, __entry->status)
);

/* An event of the board is about to be handled. */
TRACE_EVENT(tg_event,
	TP_PROTO(const struct tg_device *tg, u16 kind, u16 index, u64 value),
	TP_ARGS(tg, kind, index, value),
	TP_STRUCT__entry(
		__field(u32, board)
		__field(u16, kind)
		__field(u16, index)
		__field(u64, value)
	),
	TP_fast_assign(
		__entry->board = tg_minor(tg);
		__entry->kind = kind;
		__entry->index = index;
		__entry->value = value;
	),
	TP_printk("board=%u kind=%s index=%u value=%#llx", __entry->board,
		  tg_show_event(__entry->kind), __entry->index, __entry->value)
);

/* The result of a page fault; VM_FAULT_RETRY: it waits first. */
TRACE_EVENT(tg_fault,
	TP_PROTO(const struct tg_device *tg, const struct vm_fault *vmf, vm_fault_t result),
	TP_ARGS(tg, vmf, result),
	TP_STRUCT__entry(
		__field(u32, board)
		__field(u32, kind)
		__field(u32, handle)
		__field(u32, page)
		__field(bool, store)
		__field(unsigned int, result)
	),
	TP_fast_assign(
		loff_t offset = (loff_t)vmf->pgoff << PAGE_SHIFT;

		__entry->board = tg_minor(tg);
		__entry->kind = offset >> TG_MMAP_KIND_SHIFT;
		__entry->handle = (offset >> TG_MMAP_HANDLE_SHIFT) & 0xffff;
		__entry->page = (u32)offset >> PAGE_SHIFT;
		__entry->store = vmf->flags & FAULT_FLAG_WRITE;
		__entry->result = (__force unsigned int)result;
	),
	TP_printk("board=%u mapping=%s handle=%u page=%u %s result=%#x", __entry->board,
		  tg_show_mapping(__entry->kind), __entry->handle, __entry->page,
		  __entry->store ? "store" : "load", __entry->result)
);

/* An overflow has been handled: the board continues with an empty first buffer. */
TRACE_EVENT(tg_queue_overflow,
	TP_PROTO(const struct tg_nqueue *queue),
	TP_ARGS(queue),
	TP_STRUCT__entry(
		__field(u32, board)
		__field(u32, handle)
		__field(u32, page)
		__field(u32, linked)
		__field(u64, overflows)
	),
	TP_fast_assign(
		__entry->board = tg_minor(queue->seg.obj.tg);
		__entry->handle = queue->seg.obj.handle;
		__entry->page = queue->seg.first;
		__entry->linked = queue->buffers.linked;
		__entry->overflows = queue->overflows;
	),
	TP_printk("board=%u handle=%u page=%u linked=%u overflows=%llu", __entry->board,
		  __entry->handle, __entry->page, __entry->linked, __entry->overflows)
);

#endif /* TELEGRAPHOS_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
