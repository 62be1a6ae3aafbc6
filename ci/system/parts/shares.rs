// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the functions of a guest's kernel are for when messages start: the rows of s2's table.

/// A part of what starting a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Share {
    /// Into the kernel and out of it.
    Switches,
    /// Which thread runs: those that wait, those that are woken, from one to the other, and to none.
    Dispatching,
    /// Address spaces, and whether a process may do what it asks for.
    Isolation,
    /// Interrupts, up to the process that is notified.
    Interrupts,
    /// The program, the libraries and the driver.
    Communication,
    /// The clock's ticks, and what functions of several kinds call: locks, lists, times.
    Rest,
}

/// How functions begin, without underscores before that. The first one that fits says whose a function is.
const BEGINNINGS: [(Share, &str); 5] = [
    (
        Share::Switches,
        "entry_SYSCALL do_syscall_64 x64_sys_ syscall_ arch_exit_to_user_mode exit_to_user_mode swapgs_restore \
         rseq_ fpregs_assert mem_cgroup_handle_over blkcg_maybe_throttle fdget fput do_vfs_ioctl",
    ),
    (
        Share::Isolation,
        "switch_mm load_new_mm enter_lazy_tlb leave_mm flush_tlb check_object_size check_stack_object \
         copy_from_user copy_to_user get_user put_user security_ tomoyo_ hook_file_ bpf_lsm_ apparmor_ \
         asm_exc_page_fault exc_page_fault handle_mm_fault tg_ioctl_of tg_object_find",
    ),
    (
        Share::Interrupts,
        "asm_common_interrupt common_interrupt error_entry error_return irqentry irq_enter irq_exit irq_entries \
         handle_edge_irq handle_irq note_interrupt apic_ack irq_chip_ack native_apic_mem add_interrupt_randomness \
         fast_mix restore_regs_and_return native_irq_return handle_softirqs ct_nmi ct_irq tg_irq tg_event \
         tg_context_event",
    ),
    (Share::Communication, "tg_"),
    (
        Share::Dispatching,
        "schedule sched_ switch_to switch_fpu save_fpregs restore_fpregs xfd_validate native_load_tls rdgsbase \
         wrgsbase mm_cid finish_task_switch context_switch update_load update_curr update_rq update_cfs update_rt \
         update_deadline update_entity psi_ record_times enqueue_ dequeue_ requeue_delayed clear_delayed \
         place_entity avg_vruntime vruntime_ pick_ put_prev_ set_next_ check_preempt wakeup_preempt resched_curr \
         try_to_wake ttwu_ wake_ default_wake autoremove_wake prepare_to_wait finish_wait init_wait futex_ \
         do_futex get_futex plist_ cpuacct_charge dl_server dl_ start_dl_timer task_rq_lock \
         rcu_note_context_switch native_sched_clock do_idle idle_cpu default_idle cpuidle arch_cpu_idle \
         pv_native_safe_halt tick_nohz_idle ct_idle ct_kernel nohz_ nr_iowait arch_scale do_sched_yield \
         yield_task flush_smp_call",
    ),
];

impl Share {
    pub(crate) const ALL: [Share; 6] =
        [Share::Switches, Share::Dispatching, Share::Isolation, Share::Interrupts, Share::Communication, Share::Rest];

    /// Whose a function of the kernel is.
    pub(crate) fn of(function: &str) -> Share {
        let name = function.trim_start_matches('_');
        let fits =
            |(_, beginnings): &&(Share, &str)| beginnings.split_whitespace().any(|start| name.starts_with(start));
        BEGINNINGS.iter().find(fits).map_or(Share::Rest, |(share, _)| *share)
    }

    /// Percents of it in PEACE (s2, section 4).
    pub(crate) fn in_s2(self) -> Option<f64> {
        match self {
            Share::Switches => Some(7.5),
            Share::Dispatching => Some(15.0),
            Share::Isolation => Some(17.5),
            Share::Interrupts => Some(20.0),
            Share::Communication => Some(40.0),
            Share::Rest => None,
        }
    }
}
