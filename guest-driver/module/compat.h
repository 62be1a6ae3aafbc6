/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Names that differ in older kernels. Kbuild knows the version and defines the
 * TG_NO_* macros.
 */
#ifndef TELEGRAPHOS_COMPAT_H
#define TELEGRAPHOS_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>

#ifdef TG_NO_CONST_DEVNODE
#define TG_DEVNODE_CONST
#else
#define TG_DEVNODE_CONST const
#endif

#ifdef TG_NO_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

#ifdef TG_NO_RELEASE_FAULT_LOCK
static inline void release_fault_lock(struct vm_fault *vmf)
{
	mmap_read_unlock(vmf->vma->vm_mm);
}
#endif

/**
 * tg_eventfd_signal() - adds one to an eventfd
 * @ctx: The eventfd.
 */
static inline void tg_eventfd_signal(struct eventfd_ctx *ctx)
{
#ifdef TG_EVENTFD_SIGNAL_COUNTS
	eventfd_signal(ctx, 1);
#else
	eventfd_signal(ctx);
#endif
}

#endif /* TELEGRAPHOS_COMPAT_H */
