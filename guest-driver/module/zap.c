// SPDX-License-Identifier: GPL-2.0
/*
 * Removal of pages from all page tables (zapping). What fills page tables is in map.c and
 * queue_map.c.
 */
#include "driver.h"

/**
 * tg_zap() - removes an object's pages from all page tables
 * @obj: Object, whose state already prevents faults from filling them again. The
 *	caller holds map_lock for writing.
 */
void tg_zap(struct tg_object *obj)
{
	struct address_space *mapping = obj->tg->mapping_inode->i_mapping;
	loff_t length = (loff_t)tg_pages(obj->size) << PAGE_SHIFT;

	lockdep_assert_held_write(&obj->tg->map_lock);
	unmap_mapping_range(mapping, tg_mmap_offset(obj->kind, obj->handle), length, 1);
	if (obj->kind != TG_MMAP_IMPORT)
		return;
	unmap_mapping_range(mapping, tg_mmap_offset(TG_MMAP_ARGUMENT, obj->handle), length, 1);
	unmap_mapping_range(mapping, tg_mmap_offset(TG_MMAP_ENQUEUE, obj->handle), length, 1);
	unmap_mapping_range(mapping, tg_mmap_offset(TG_MMAP_REPLICA_WINDOW, obj->handle),
			    length, 1);
}

/**
 * tg_zap_unit() - removes a unit of an object from all page tables
 * @obj: Object, whose state already keeps faults from filling it again. The caller
 *	holds map_lock for writing.
 * @unit: Number of the unit, from 0.
 */
void tg_zap_unit(struct tg_object *obj, u32 unit)
{
	loff_t start = tg_mmap_offset(obj->kind, obj->handle) + (loff_t)unit * TG_UNIT;

	lockdep_assert_held_write(&obj->tg->map_lock);
	unmap_mapping_range(obj->tg->mapping_inode->i_mapping, start, TG_UNIT, 1);
}

/**
 * tg_zap_all() - removes every page of the board from all page tables
 * @tg: Board, gone. The caller holds map_lock for writing.
 */
void tg_zap_all(struct tg_device *tg)
{
	lockdep_assert_held_write(&tg->map_lock);
	unmap_mapping_range(tg->mapping_inode->i_mapping, 0, 0, 1);
}

/**
 * tg_zap_context() - removes a file's context page from all page tables
 * @file: File, whose state already keeps faults from filling it again. The caller
 *	holds map_lock for writing.
 */
void tg_zap_context(struct tg_file *file)
{
	lockdep_assert_held_write(&file->tg->map_lock);
	unmap_mapping_range(file->tg->mapping_inode->i_mapping,
			    tg_mmap_offset(TG_MMAP_CONTEXT, file->context), PAGE_SIZE, 1);
}
