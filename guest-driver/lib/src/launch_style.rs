// SPDX-License-Identifier: MIT OR Apache-2.0
//! How operations reach the board.

/// How an operation reaches the board. All do the same, so that they can be compared (SPEC items 19 to 21).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::LaunchStyle;
/// # let words = node.import(3, "words").open()?;
/// node.set_launch_style(LaunchStyle::Load); // no system call, and the result by one load
/// let ticket: u64 = words.fetch_inc(0)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LaunchStyle {
    /// A system call that does everything in the kernel: the baseline. The operation is done when the call returns.
    /// Needs `telegraphos_lab.ko`.
    Plain = 0,
    /// Telegraphos I (s1, SPEC item 19): the kernel, in place of PAL code, makes the board take the next accesses
    /// to the window as arguments. The operation is done when the call returns. Needs `telegraphos_lab.ko`.
    Special = 1,
    /// Telegraphos II (s1, SPEC item 20): stores from user level, no system call.
    #[default]
    Context = 2,
    /// The same, but the last access of an atomic is a load that returns its result (s1). The processor stalls until
    /// the result is there, and with it the virtual machine; the operation is done when the call returns. Copies,
    /// which have no result, are launched as by [`LaunchStyle::Context`].
    Load = 3,
}

impl LaunchStyle {
    /// Every style.
    pub const ALL: [LaunchStyle; 4] =
        [LaunchStyle::Plain, LaunchStyle::Special, LaunchStyle::Context, LaunchStyle::Load];

    /// The style of that number in the driver's interface, if there is one.
    pub(crate) fn from_u32(number: u32) -> Option<LaunchStyle> {
        LaunchStyle::ALL.into_iter().find(|style| *style as u32 == number)
    }
}
