// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's plugin interface, version 7, as far as it is needed: declarations written after the documentation in QEMU's
//! `include/plugins/qemu-plugin.h`, and our callbacks. In version 7 callbacks get the pointer they were registered with
//! and no longer the plugin's id.

use crate::shell::{self, KERNEL, PAGE_BITS};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use telegraphos_plugin_core::{Access, Marker, Retired};

/// Declares types of QEMU of which only pointers are known here.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[repr(C)]
        struct $name {
            _opaque: [u8; 0],
        })*
    };
}

opaque! {
    Block;
    /// An instruction of a block.
    Instruction;
    HwAddr;
    /// One element for each virtual processor.
    Scoreboard;
}

/// A 64-bit counter in each element of a scoreboard.
#[derive(Clone, Copy)]
#[repr(C)]
struct Counter {
    scoreboard: *mut Scoreboard,
    offset: usize,
}

/// The beginning of `qemu_info_t`.
#[repr(C)]
struct Info {
    target: *const c_char,
    version_min: c_int,
    version_cur: c_int,
    system_emulation: bool,
}

type Id = u64;
type MemInfo = u32;
type AtExit = extern "C" fn(userdata: *mut c_void);
type OnTranslation = extern "C" fn(block: *mut Block, userdata: *mut c_void);
type OnExecution = extern "C" fn(vcpu: c_uint, userdata: *mut c_void);
type OnAccess = extern "C" fn(vcpu: c_uint, info: MemInfo, vaddr: u64, userdata: *mut c_void);

/// `QEMU_PLUGIN_CB_NO_REGS`
const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`
const LOADS_AND_STORES: c_int = 3;
/// `QEMU_PLUGIN_INLINE_ADD_U64`
const ADD: c_int = 0;

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: OnTranslation, userdata: *mut c_void);
    fn qemu_plugin_register_atexit_cb(id: Id, callback: AtExit, userdata: *mut c_void);
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        callback: OnExecution,
        flags: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data(instruction: *const Instruction, to: *mut c_void, length: usize) -> usize;
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        callback: OnExecution,
        flags: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        instruction: *mut Instruction,
        op: c_int,
        counter: Counter,
        operand: u64,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: OnAccess,
        flags: c_int,
        which: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    fn qemu_plugin_get_hwaddr(info: MemInfo, vaddr: u64) -> *mut HwAddr;
    fn qemu_plugin_hwaddr_is_io(address: *const HwAddr) -> bool;
    fn qemu_plugin_hwaddr_phys_addr(address: *const HwAddr) -> u64;
    fn qemu_plugin_hwaddr_device_name(address: *const HwAddr) -> *const c_char;
    fn qemu_plugin_scoreboard_new(element: usize) -> *mut Scoreboard;
    fn qemu_plugin_u64_get(counter: Counter, vcpu: c_uint) -> u64;
}

/// Instructions begun, on each virtual processor.
struct Counters {
    user: Counter,
    kernel: Counter,
}

// SAFETY: the pointer is never followed here, only handed to QEMU, and QEMU's functions on scoreboards may be called
// from any thread.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

static COUNTERS: OnceLock<Counters> = OnceLock::new();

fn counters() -> &'static Counters {
    COUNTERS.get_or_init(|| {
        // SAFETY: may be called at any time; QEMU aborts when memory is short. It is never freed.
        let scoreboard = unsafe { qemu_plugin_scoreboard_new(2 * size_of::<u64>()) };
        Counters { user: Counter { scoreboard, offset: 0 }, kernel: Counter { scoreboard, offset: size_of::<u64>() } }
    })
}

/// The interface this plugin was written for; QEMU refuses it if it no longer speaks that one.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "QEMU looks for this name")]
pub(crate) static qemu_plugin_version: c_int = 7;

/// Called by QEMU when it has loaded the plugin; not 0 if it is not to start.
///
/// # Safety
/// As QEMU calls it: `info` points to a `qemu_info_t`, `argv` to `argc` strings.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's; `Info` is the beginning of that structure.
    let info = unsafe { &*info.cast::<Info>() };
    // SAFETY: a string of QEMU's.
    let target = unsafe { CStr::from_ptr(info.target) }.to_string_lossy();
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|at| {
        // SAFETY: the caller's; `at` is below `argc`.
        unsafe { CStr::from_ptr(*argv.add(at)) }.to_string_lossy().into_owned()
    });
    if !shell::start(&target, info.system_emulation, arguments) {
        return 1;
    }
    // SAFETY: our own id; the callbacks are functions that stay.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation, ptr::null_mut());
        qemu_plugin_register_atexit_cb(id, at_exit, ptr::null_mut());
    }
    0
}

extern "C" fn at_exit(_userdata: *mut c_void) {
    shell::finish();
}

extern "C" fn on_translation(block: *mut Block, _userdata: *mut c_void) {
    let counters = counters();
    // SAFETY: QEMU's block, valid during this call.
    let instructions = unsafe { qemu_plugin_tb_n_insns(block) };
    if shell::wants_blocks() {
        // SAFETY: as above; the callback is a function that stays.
        unsafe {
            let userdata = ptr::without_provenance_mut(packed(qemu_plugin_tb_vaddr(block), instructions));
            qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, NO_REGISTERS, userdata);
        }
    }
    for index in 0..instructions {
        // SAFETY: as above; `index` is below their number.
        let instruction = unsafe { qemu_plugin_tb_get_insn(block, index) };
        if let Some(marker) = marker(instruction) {
            let userdata = ptr::without_provenance_mut(marker.displacement() as usize);
            // SAFETY: QEMU's instruction, valid during this call; the callback is a function that stays.
            unsafe { qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_marker, NO_REGISTERS, userdata) };
            continue;
        }
        // SAFETY: as above; the scoreboard stays too.
        unsafe {
            let kernel = qemu_plugin_insn_vaddr(instruction) >= KERNEL;
            let counter = if kernel { counters.kernel } else { counters.user };
            qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(instruction, ADD, counter, 1);
            let null = ptr::null_mut();
            qemu_plugin_register_vcpu_mem_cb(instruction, on_access, NO_REGISTERS, LOADS_AND_STORES, null);
        }
    }
}

/// Bits of an address that are not copies of the highest one: with four levels of page tables.
const ADDRESS_BITS: u32 = 48;

/// A block's address and the number of its instructions, of which there are at most 512, in the one word that its
/// callback gets.
fn packed(address: u64, instructions: usize) -> usize {
    instructions << ADDRESS_BITS | (address as usize & ((1 << ADDRESS_BITS) - 1))
}

extern "C" fn on_block(vcpu: c_uint, userdata: *mut c_void) {
    if !shell::is_open() {
        return;
    }
    let word = userdata.addr() as u64;
    let copies = u64::BITS - ADDRESS_BITS;
    shell::block(vcpu, ((word << copies) as i64 >> copies) as u64, word >> ADDRESS_BITS);
}

/// The marker that an instruction is.
fn marker(instruction: *const Instruction) -> Option<Marker> {
    // SAFETY: QEMU's instruction, valid during the translation this is called in.
    if unsafe { qemu_plugin_insn_size(instruction) } != Marker::SIZE {
        return None;
    }
    let mut bytes = [0; Marker::SIZE];
    // SAFETY: as above; the length is that of the buffer.
    let length = unsafe { qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len()) };
    Marker::from_instruction(bytes.get(..length)?)
}

extern "C" fn on_marker(vcpu: c_uint, userdata: *mut c_void) {
    let Some(marker) = u32::try_from(userdata.addr()).ok().and_then(Marker::from_displacement) else { return };
    let counters = counters();
    // SAFETY: called on the processor `vcpu`, so its element exists.
    let retired = unsafe {
        Retired { user: qemu_plugin_u64_get(counters.user, vcpu), kernel: qemu_plugin_u64_get(counters.kernel, vcpu) }
    };
    shell::marker(vcpu, marker, retired);
}

extern "C" fn on_access(vcpu: c_uint, info: MemInfo, vaddr: u64, _userdata: *mut c_void) {
    if !shell::is_open() {
        return;
    }
    // SAFETY: `info` and `vaddr` are those of this callback, during which the address and its device's name are valid.
    let (device, page, store, shift) = unsafe {
        let address = qemu_plugin_get_hwaddr(info, vaddr);
        let page = if address.is_null() { u64::MAX } else { qemu_plugin_hwaddr_phys_addr(address) >> PAGE_BITS };
        let device = if !address.is_null() && qemu_plugin_hwaddr_is_io(address) {
            let name = qemu_plugin_hwaddr_device_name(address);
            Some(if name.is_null() { c"" } else { CStr::from_ptr(name) })
        } else {
            None
        };
        (device, page, qemu_plugin_mem_is_store(info), qemu_plugin_mem_size_shift(info))
    };
    let name = device.map(CStr::to_string_lossy);
    let size = 1u32.checked_shl(shift).unwrap_or(0);
    shell::access(vcpu, Access { device: name.as_deref(), page, user: vaddr < KERNEL, store, size });
}
