// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's plugin interface, versions 4 and 5 (QEMU 9.2 to 11.0), through the crate `qemu-plugin`.

use crate::shell::{self, KERNEL, PAGE_BITS};
use qemu_plugin::install::{Args, Info};
use qemu_plugin::{
    CallbackFlags, HasCallbacks, Instruction, MemRW, MemoryInfo, PluginId, PluginOp, PluginU64, Register,
    Result as PluginResult, TranslationBlock, VCPUIndex, qemu_plugin_register_atexit_cb,
    qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu, register, sys,
};
use std::sync::OnceLock;
use telegraphos_plugin_core::{Access, Marker, Retired};

/// Instructions begun, on each virtual processor.
struct Counters {
    user: PluginU64,
    kernel: PluginU64,
}

// SAFETY: the pointer is never followed here, only handed to QEMU, and QEMU's functions on scoreboards may be called
// from any thread.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

static COUNTERS: OnceLock<Counters> = OnceLock::new();

fn counters() -> &'static Counters {
    COUNTERS.get_or_init(|| {
        // The crate's own type of scoreboard gives no counters out.
        // SAFETY: may be called at any time; QEMU aborts when memory is short. It is never freed.
        let score = unsafe { sys::qemu_plugin_scoreboard_new(2 * size_of::<u64>()) };
        Counters { user: PluginU64 { score, offset: 0 }, kernel: PluginU64 { score, offset: size_of::<u64>() } }
    })
}

struct Plugin;

register!(Plugin);

impl Register for Plugin {
    fn register(&mut self, id: PluginId, args: &Args, info: &Info) -> PluginResult<()> {
        if !shell::start(&info.target_name, info.system.is_some(), args.raw.iter().cloned()) {
            // The crate answers an error with a panic across QEMU's frames.
            std::process::exit(1);
        }
        qemu_plugin_register_atexit_cb(id, |_| shell::finish())
    }
}

impl HasCallbacks for Plugin {
    fn on_translation_block_translate(&mut self, _id: PluginId, block: TranslationBlock<'_>) -> PluginResult<()> {
        if shell::wants_blocks() {
            let (address, instructions) = (block.vaddr(), block.size() as u64);
            block.register_execute_callback(move |vcpu| {
                if shell::is_open() {
                    shell::block(vcpu, address, instructions);
                }
            });
        }
        for instruction in block.instructions() {
            on_instruction(instruction);
        }
        Ok(())
    }
}

fn on_instruction(instruction: Instruction<'_>) {
    let counters = counters();
    let size = instruction.size();
    if size == Marker::SIZE {
        if let Some(marker) = Marker::from_instruction(&instruction.data()) {
            return instruction.register_execute_callback(move |vcpu| on_marker(vcpu, marker));
        }
    }
    instruction.register_memory_access_callback_flags(
        on_access,
        MemRW::QEMU_PLUGIN_MEM_RW,
        CallbackFlags::QEMU_PLUGIN_CB_NO_REGS,
    );
    let counter = if instruction.vaddr() >= KERNEL { counters.kernel } else { counters.user };
    let add = PluginOp::QEMU_PLUGIN_INLINE_ADD_U64;
    qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(instruction, add, counter, 1);
}

fn on_marker(vcpu: VCPUIndex, marker: Marker) {
    let counters = counters();
    // SAFETY: called on the processor `vcpu`, so its element exists.
    let retired = unsafe {
        Retired {
            user: sys::qemu_plugin_u64_get(counters.user, vcpu),
            kernel: sys::qemu_plugin_u64_get(counters.kernel, vcpu),
        }
    };
    shell::marker(vcpu, marker, retired);
}

fn on_access(vcpu: VCPUIndex, info: MemoryInfo<'_>, vaddr: u64) {
    if !shell::is_open() {
        return;
    }
    let address = info.hwaddr(vaddr);
    let page = address.as_ref().map_or(u64::MAX, |address| address.hwaddr() >> PAGE_BITS);
    // A name that is no text is none.
    let name = address
        .filter(|address| address.is_io())
        .map(|address| address.device_name().ok().flatten().unwrap_or_default());
    let size = u32::try_from(info.size_shift()).ok().and_then(|shift| 1u32.checked_shl(shift)).unwrap_or(0);
    let (store, user) = (info.is_store(), vaddr < KERNEL);
    shell::access(vcpu, Access { device: name.as_deref(), page, user, store, size });
}
