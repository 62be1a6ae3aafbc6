/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Names that differ in older kernels. Kbuild knows the version and defines the
 * TG_NO_* macros.
 */
#ifndef TELEGRAPHOS_COMPAT_H
#define TELEGRAPHOS_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>
#ifdef TG_PFN_IS_STRUCT
#include <linux/pfn_t.h>
#endif

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

/*
 * Bytes of a huge page that can be mapped without a struct page, 0 for none. Before 6.12 there
 * is no mark for such a mapping, by which get_user_pages_fast() would know to leave it alone.
 */
#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
#define TG_HUGE_BYTES PMD_SIZE
#else
#define TG_HUGE_BYTES 0UL
#endif

/**
 * tg_insert_pfn_pmd() - maps a huge page
 * @vmf: The page fault, in an area that contains the whole page.
 * @pfn: Its first page frame.
 *
 * Return: As vmf_insert_pfn(); VM_FAULT_FALLBACK if there are none.
 */
static inline vm_fault_t tg_insert_pfn_pmd(struct vm_fault *vmf, unsigned long pfn)
{
#ifndef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
	return VM_FAULT_FALLBACK;
#elif defined(TG_PFN_IS_STRUCT)
	return vmf_insert_pfn_pmd(vmf, __pfn_to_pfn_t(pfn, PFN_DEV),
				  vmf->flags & FAULT_FLAG_WRITE);
#else
	return vmf_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
#endif
}

/**
 * tg_pin_user_pages_remote() - pins pages of a process
 * @mm: Its address space, whose mmap_lock the caller holds for reading.
 * @start: First address.
 * @count: How many.
 * @flags: FOLL_*.
 * @pages: The pages.
 *
 * Return: Number of pages, or a negative errno.
 */
static inline long tg_pin_user_pages_remote(struct mm_struct *mm, unsigned long start,
					    unsigned long count, unsigned int flags,
					    struct page **pages)
{
#ifdef TG_PINS_REPORT_VMAS
	return pin_user_pages_remote(mm, start, count, flags, pages, NULL, NULL);
#else
	return pin_user_pages_remote(mm, start, count, flags, pages, NULL);
#endif
}

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
