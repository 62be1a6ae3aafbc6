// SPDX-License-Identifier: GPL-2.0
/*
 * Works of open files: teardowns of objects, fills of pages, looks at registered memory.
 *
 * Such a work can wait for other nodes, or for a page fault that another process delays, so works
 * of other files must not wait for it. All works of a board's files are done by one workqueue,
 * which runs TG_JOBS of them at a time; so many are divided among the files. One is guaranteed to
 * each file that there can be, and a file has TG_FILE_WORKERS at most. A work beyond that is kept
 * in its file's list until one of the file's own returns, or, where the pool is used up, one of
 * another file does; files that wait for the pool get it in turns.
 */
#include "driver.h"

/* The most that a workqueue runs at a time on every kernel from 6.1 on. */
#define TG_JOBS 512
static_assert(TG_JOBS >= 2 * TG_CONTEXT_COUNT);

/* Works of one file that run at a time: a slow teardown does not delay others. */
#define TG_FILE_WORKERS 8

static void tg_job_start(struct tg_file *file, struct tg_job *job)
{
	struct tg_jobs *jobs = &file->tg->jobs;

	lockdep_assert_held(&jobs->lock);
	tg_division_take(&jobs->division, &jobs->borrowed, &file->jobs_held, 1);
	queue_work(jobs->workers, &job->work);
}

/* Starts what a file may start now; what is left waits for its own works, or for the pool. */
static void tg_jobs_pump(struct tg_file *file)
{
	struct tg_jobs *jobs = &file->tg->jobs;
	struct tg_job *job;

	lockdep_assert_held(&jobs->lock);
	while ((job = list_first_entry_or_null(&file->jobs, struct tg_job, node)) &&
	       tg_division_allows(&jobs->division, jobs->borrowed, file->jobs_held, 1)) {
		list_del_init(&job->node);
		tg_job_start(file, job);
	}
	if (!job || file->jobs_held == jobs->division.limit)
		list_del_init(&file->jobs_wait);
	else if (list_empty(&file->jobs_wait))
		list_add_tail(&file->jobs_wait, &jobs->files);
}

/* One of a file's works is over. */
static void tg_jobs_give(struct tg_file *file)
{
	struct tg_jobs *jobs = &file->tg->jobs;
	struct tg_file *next;

	lockdep_assert_held(&jobs->lock);
	tg_division_give(&jobs->division, &jobs->borrowed, &file->jobs_held, 1);
	/* Those that wait for the pool come before the file that has had some of it. */
	next = list_first_entry_or_null(&jobs->files, struct tg_file, jobs_wait);
	if (next) {
		list_move_tail(&next->jobs_wait, &jobs->files);
		tg_jobs_pump(next);
	}
	tg_jobs_pump(file);
}

static void tg_jobs_leave(struct tg_file *file)
{
	lockdep_assert_held(&file->tg->jobs.lock);
	/* Under the lock: the file may be freed as soon as it is idle. */
	if (!--file->jobs_count)
		wake_up_all(&file->idle);
}

/* What the workqueue calls, for tg_job_init(). */
void tg_job_work(struct work_struct *work)
{
	struct tg_job *job = container_of(work, struct tg_job, work);
	struct tg_file *file = job->file;
	struct tg_jobs *jobs = &file->tg->jobs;

	spin_lock(&jobs->lock);
	job->queued = false;
	spin_unlock(&jobs->lock);
	/* The job may be freed by this. Its file is not: see tg_jobs_drain(). */
	job->run(job);
	spin_lock(&jobs->lock);
	tg_jobs_give(file);
	tg_jobs_leave(file);
	spin_unlock(&jobs->lock);
}

/* The rest of tg_job_init(). */
void tg_job_set(struct tg_job *job, struct tg_file *file, void (*run)(struct tg_job *job))
{
	INIT_LIST_HEAD(&job->node);
	job->file = file;
	job->run = run;
}

/**
 * tg_job_queue() - has a work done, once more if it is running
 * @job: Job, of a file that has users. The caller may hold spinlocks, and is in no interrupt.
 *
 * Return: False if it has been queued and not begun.
 */
bool tg_job_queue(struct tg_job *job)
{
	struct tg_file *file = job->file;
	struct tg_jobs *jobs = &file->tg->jobs;
	bool fresh;

	spin_lock(&jobs->lock);
	fresh = !job->queued;
	if (fresh) {
		job->queued = true;
		file->jobs_count++;
		list_add_tail(&job->node, &file->jobs);
		tg_jobs_pump(file);
	}
	spin_unlock(&jobs->lock);
	return fresh;
}

/**
 * tg_job_cancel_sync() - takes a work back, or waits for its end
 * @job: Job that nothing queues any more.
 */
void tg_job_cancel_sync(struct tg_job *job)
{
	struct tg_file *file = job->file;
	struct tg_jobs *jobs = &file->tg->jobs;
	bool listed;

	spin_lock(&jobs->lock);
	listed = !list_empty(&job->node);
	if (listed) {
		list_del_init(&job->node);
		tg_jobs_pump(file);
		tg_jobs_leave(file);
	}
	spin_unlock(&jobs->lock);
	/* Also the run before, if it is listed for another one. */
	if (cancel_work_sync(&job->work)) {
		spin_lock(&jobs->lock);
		tg_jobs_give(file);
		tg_jobs_leave(file);
		spin_unlock(&jobs->lock);
	}
}

static bool tg_jobs_are_over(struct tg_file *file)
{
	struct tg_jobs *jobs = &file->tg->jobs;
	bool over;

	spin_lock(&jobs->lock);
	over = !file->jobs_count;
	spin_unlock(&jobs->lock);
	return over;
}

/**
 * tg_jobs_drain() - waits for the last works of a file
 * @file: File without users: its works have ended its objects, and are about to return. The
 *	caller is none of them.
 */
void tg_jobs_drain(struct tg_file *file)
{
	wait_event(file->idle, tg_jobs_are_over(file));
}

/**
 * tg_jobs_open() - lets a file have works
 * @file: Zeroed file.
 */
void tg_jobs_open(struct tg_file *file)
{
	INIT_LIST_HEAD(&file->jobs);
	INIT_LIST_HEAD(&file->jobs_wait);
	init_waitqueue_head(&file->idle);
}

/**
 * tg_jobs_init() - makes the workqueue of a board's files
 * @tg: Board, identified.
 *
 * Return: 0 or -ENOMEM.
 */
int tg_jobs_init(struct tg_device *tg)
{
	struct tg_jobs *jobs = &tg->jobs;

	spin_lock_init(&jobs->lock);
	INIT_LIST_HEAD(&jobs->files);
	jobs->division = (struct tg_division) {
		.guaranteed = 1,
		.limit = TG_FILE_WORKERS,
		.pool = TG_JOBS - tg->contexts,
	};
	jobs->workers = alloc_workqueue("%s_files", WQ_UNBOUND, TG_JOBS, dev_name(&tg->dev));
	return jobs->workers ? 0 : -ENOMEM;
}

/**
 * tg_jobs_exit() - mirror of tg_jobs_init()
 * @tg: Board without files.
 */
void tg_jobs_exit(struct tg_device *tg)
{
	if (tg->jobs.workers)
		destroy_workqueue(tg->jobs.workers);
}
