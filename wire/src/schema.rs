// SPDX-License-Identifier: MIT OR Apache-2.0
//! How packets and link frames are declared: once, as a list of kinds, each a list of fields in *slots*.
//!
//! ```text
//!   kinds! {
//!       /// Loads `size` bytes.
//!       Read = 2 "read", REQUEST, HEADER_LEN, Access {    variant = number, name, class, fixed length, check
//!           /// Source.
//!           at: RemoteAddr = At,                          field, its type, its slot
//!   ...
//!   slot At: bytes of the fixed part (FIELDS) <-> value (put, get), and what follows it (extend)
//! ```
//!
//! From the list come the Rust type, its encoding and checked decoding, number, name and class of each kind, and the
//! tables of [`layout`](crate::layout), from which the dissector and docs/packets.md are generated. A new packet is one
//! entry in [`packet`](crate::packet), a new frame one in [`link`](crate::link); then the generated files are made anew
//! (`cargo run -q -p telegraphos-wire --example packets > docs/packets.md`, `cargo run -q -p telegraphos-capture
//! --example dissector`), which a test demands.

use alloc::vec::Vec;

use crate::ImportEpoch;
use crate::field::{Field, Show, Tail, field};
use crate::packet_error::PacketError;

/// Why a slot cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// A number that names no kind.
    Kind,
    /// More or fewer bytes than its kind has.
    Length,
    /// A number that names no atomic operation.
    Atomic(u8),
    /// A value out of range.
    Value,
    /// The packet inside.
    Packet(PacketError),
}

/// A place for a value in the bytes of a packet (counted from its start) or of a frame (from behind its head).
pub(crate) trait Slot {
    /// Type of the value.
    type Value;
    /// The fields of the fixed part that it takes.
    const FIELDS: &'static [Field] = &[];
    /// Its part behind the fixed part.
    const TAIL: Tail = Tail::None;

    /// Writes the value into the fixed part, which is zero and has the length of the kind.
    fn put(_value: &Self::Value, _fixed: &mut [u8]) {}

    /// Reads the value from all bytes of a packet or of a frame's body, whose length has been checked.
    fn get(bytes: &[u8]) -> Result<Self::Value, Malformed>;

    /// Appends its part behind the fixed part.
    fn extend(_value: &Self::Value, _out: &mut Vec<u8>) {}

    /// Bytes behind the fixed part.
    #[inline]
    fn tail_len(_value: &Self::Value) -> usize {
        0
    }

    /// The export page of an address; `None` for other values.
    fn page(_value: &Self::Value) -> Option<u32> {
        None
    }

    /// The value itself if it is an import and epoch; `None` for others.
    fn epoch(_value: &Self::Value) -> Option<ImportEpoch> {
        None
    }
}

/// A function of each slot of a value, one after the other.
pub(crate) trait Visit {
    /// Takes the value of one slot.
    fn slot<S: Slot>(&mut self, value: &S::Value);
}

/// The export page of the address; `None` without an address.
struct Page(Option<u32>);

impl Visit for Page {
    #[inline]
    fn slot<S: Slot>(&mut self, value: &S::Value) {
        self.0 = self.0.or(S::page(value));
    }
}

/// The import and epoch; `None` without.
struct Epoch(Option<ImportEpoch>);

impl Visit for Epoch {
    #[inline]
    fn slot<S: Slot>(&mut self, value: &S::Value) {
        self.0 = self.0.or(S::epoch(value));
    }
}

/// A type that [`kinds!`] declares.
pub(crate) trait Record {
    /// Shows all slots to the visitor, in the order of the declaration.
    fn visit(&self, visitor: &mut impl Visit);

    /// Bytes of the fixed part and of what follows it, as far as its slots know ([`Slot::tail_len`]).
    fn length(&self) -> usize;

    /// The export page of its address; `None` without an address.
    fn address_page(&self) -> Option<u32> {
        let mut page = Page(None);
        self.visit(&mut page);
        page.0
    }

    /// Its import and epoch; `None` without.
    fn import_epoch(&self) -> Option<ImportEpoch> {
        let mut epoch = Epoch(None);
        self.visit(&mut epoch);
        epoch.0
    }
}

/// A number with a fixed place in the bytes: an integer, little-endian, or an array of bytes.
pub(crate) trait Number: Copy {
    /// Writes it at the start of `bytes`.
    fn write(self, bytes: &mut [u8]);
    /// Reads it from `at` on; zero if the bytes end before.
    fn read(bytes: &[u8], at: usize) -> Self;
}

/// A value with a number on the wire.
pub(crate) trait Encoded<N>: Sized {
    /// The number of this value.
    fn number(&self) -> N;
    /// The value of a number, if it has one.
    fn of(number: N) -> Result<Self, Malformed>;
}

impl<N: Number> Encoded<N> for N {
    #[inline]
    fn number(&self) -> N {
        *self
    }

    #[inline]
    fn of(number: N) -> Result<N, Malformed> {
        Ok(number)
    }
}

impl<const N: usize> Number for [u8; N] {
    #[inline]
    fn write(self, bytes: &mut [u8]) {
        bytes[..N].copy_from_slice(&self);
    }

    #[inline]
    fn read(bytes: &[u8], at: usize) -> [u8; N] {
        bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; N])
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(impl Number for $integer {
            #[inline]
            fn write(self, bytes: &mut [u8]) {
                self.to_le_bytes().write(bytes);
            }

            #[inline]
            fn read(bytes: &[u8], at: usize) -> $integer {
                <$integer>::from_le_bytes(Number::read(bytes, at))
            }
        })*
    };
}

integers!(u8, u16, u32, u64);

/// Declares values that are numbers on the wire: how each is written, and how it is read.
macro_rules! encoded {
    ($($value:ty as $number:ty: |$this:ident| $write:expr, |$read:ident| $of:expr;)*) => {
        $(impl $crate::schema::Encoded<$number> for $value {
            #[inline]
            fn number(&self) -> $number {
                let $this = self;
                $write
            }

            #[inline]
            fn of($read: $number) -> Result<$value, $crate::schema::Malformed> {
                $of
            }
        })*
    };
}

encoded! {
    bool as u16: |flag| u16::from(*flag), |number| Ok(number != 0);
    bool as u32: |flag| u32::from(*flag), |number| Ok(number != 0);
}

/// Declares slots. Of one number: `Slot: value type as number, "name" @ byte, how it is shown`, and perhaps a
/// condition. Of several: `Slot: value type { field: number, "name" @ byte, how it is shown; ... }`, and perhaps items
/// of [`Slot`].
macro_rules! slots {
    () => {};
    (
        $(#[$doc:meta])* $slot:ident: $value:ty as $number:ty, $name:literal @ $at:expr, $show:ident
        $(, where $holds:expr)?; $($rest:tt)*
    ) => {
        $(#[$doc])*
        pub(crate) struct $slot;

        impl $crate::schema::Slot for $slot {
            type Value = $value;
            const FIELDS: &'static [$crate::field::Field] =
                &[$crate::field::field($name, $at, size_of::<$number>(), $crate::field::Show::$show)];

            #[inline]
            fn put(value: &$value, fixed: &mut [u8]) {
                let number: $number = $crate::schema::Encoded::number(value);
                $crate::schema::Number::write(number, &mut fixed[$at..]);
            }

            #[inline]
            fn get(bytes: &[u8]) -> Result<$value, $crate::schema::Malformed> {
                let number = <$number as $crate::schema::Number>::read(bytes, $at);
                $(if !$holds(number) {
                    return Err($crate::schema::Malformed::Value);
                })?
                $crate::schema::Encoded::of(number)
            }
        }

        slots! { $($rest)* }
    };
    (
        $(#[$doc:meta])* $slot:ident: $value:ident {
            $($field:ident: $number:ty, $name:literal @ $at:expr, $show:ident;)*
        }
        $(with { $($item:item)* })?; $($rest:tt)*
    ) => {
        $(#[$doc])*
        pub(crate) struct $slot;

        impl $crate::schema::Slot for $slot {
            type Value = $value;
            const FIELDS: &'static [$crate::field::Field] =
                &[$($crate::field::field($name, $at, size_of::<$number>(), $crate::field::Show::$show)),*];

            #[inline]
            fn put(value: &$value, fixed: &mut [u8]) {
                $($crate::schema::Number::write(value.$field, &mut fixed[$at..]);)*
            }

            #[inline]
            fn get(bytes: &[u8]) -> Result<$value, $crate::schema::Malformed> {
                Ok($value { $($field: <$number as $crate::schema::Number>::read(bytes, $at)),* })
            }

            $($($item)*)?
        }

        slots! { $($rest)* }
    };
}

/// The number of fields of all parts.
pub(crate) const fn count(parts: &[&[Field]]) -> usize {
    let (mut part, mut sum) = (0, 0);
    while part < parts.len() {
        sum += parts[part].len();
        part += 1;
    }
    sum
}

/// The fields of all parts, in the order of their places.
pub(crate) const fn ordered<const N: usize>(parts: &[&[Field]]) -> [Field; N] {
    let mut all = [field("", 0, 0, Show::Dec); N];
    let (mut part, mut filled) = (0, 0);
    while part < parts.len() {
        let mut one = 0;
        while one < parts[part].len() {
            let field = parts[part][one];
            let mut place = filled;
            while place > 0 && all[place - 1].at > field.at {
                all[place] = all[place - 1];
                place -= 1;
            }
            all[place] = field;
            filled += 1;
            one += 1;
        }
        part += 1;
    }
    all
}

/// What follows the fixed part of a kind whose slots have these tails: at most one, except that a packet may follow a
/// list of members.
#[allow(clippy::panic, reason = "evaluated at compile time only")]
pub(crate) const fn tail_of(tails: &[Tail]) -> Tail {
    let (mut at, mut found) = (0, Tail::None);
    while at < tails.len() {
        found = match (found, tails[at]) {
            (Tail::None, tail) => tail,
            (tail, Tail::None) => tail,
            (Tail::Members, Tail::Packet) => Tail::MembersAndPacket,
            _ => panic!("two tails"),
        };
        at += 1;
    }
    found
}

/// The table entry of a kind: number, name, class, bytes of the fixed part, check, slots.
macro_rules! kind {
    ($number:literal, $name:literal, $class:expr, $len:expr, $check:ident, $($slot:ty),*) => {{
        use $crate::schema::{count, ordered, tail_of};
        const PARTS: &[&[$crate::field::Field]] = &[$(<$slot as $crate::schema::Slot>::FIELDS),*];
        const FIELDS: [$crate::field::Field; count(PARTS)] = ordered(PARTS);
        $crate::field::Kind {
            number: $number,
            name: $name,
            class: $class,
            len: $len,
            fields: &FIELDS,
            check: $crate::field::Check::$check,
            tail: tail_of(&[$(<$slot as $crate::schema::Slot>::TAIL),*]),
        }
    }};
}

/// Declares an enum of kinds, before whose fixed parts there are `head` bytes. Of each: its documentation, its variant,
/// number, name, class (`Some(class)` or `None`), bytes of its fixed part, what must hold of its fields, and the
/// fields, each with its slot.
macro_rules! kinds {
    (
        $(#[$meta:meta])* $vis:vis enum $type:ident, head $head:expr, table $(#[$table_meta:meta])* $table:ident;
        $($(#[$doc:meta])* $variant:ident = $number:literal $name:literal, $class:expr, $len:expr, $check:ident
            $({ $($(#[$field_doc:meta])* $field:ident: $value:ty = $slot:ty),* $(,)? })?
            $(($whole:ident: $whole_type:ty = $whole_slot:ty))?;)*
    ) => {
        $(#[$meta])*
        $vis enum $type {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* $field: $value),* })? $(($whole_type))?,)*
        }

        $(#[$table_meta])*
        pub const $table: &[$crate::field::Kind] =
            &[$($crate::schema::kind!($number, $name, $class, $len, $check, $($($slot),*)? $($whole_slot)?)),*];

        const _: () = {
            /// Rows of the table.
            enum Row {
                $($variant),*
            }

            impl $type {
                /// The row of the table for its kind.
                #[inline]
                pub fn kind(&self) -> &'static $crate::field::Kind {
                    match self {
                        $($type::$variant { .. } => const { &$table[Row::$variant as usize] })*
                    }
                }

                /// Reads the fields of a kind, if `check` finds nothing wrong with its bytes. `fail` says what an error
                /// is to the caller: nothing of the size of a value is moved for it.
                #[inline]
                fn get<E>(
                    number: u8,
                    bytes: &[u8],
                    check: impl Fn(&'static $crate::field::Kind, &[u8]) -> Result<(), E>,
                    fail: impl Fn($crate::schema::Malformed) -> E,
                ) -> Result<$type, E> {
                    match number {
                        $($number => {
                            // The row and the length are known here: what they imply is not asked for each field.
                            check(const { &$table[Row::$variant as usize] }, bytes)?;
                            if bytes.get($len..).is_none() {
                                return Err(fail($crate::schema::Malformed::Length));
                            }
                            Ok($type::$variant $({
                                $($field: <$slot as $crate::schema::Slot>::get(bytes).map_err(&fail)?),*
                            })? $((<$whole_slot as $crate::schema::Slot>::get(bytes).map_err(&fail)?))?)
                        })*
                        _ => Err(fail($crate::schema::Malformed::Kind)),
                    }
                }
            }
        };

        impl $type {
            /// Name for logs and captures.
            pub fn name(&self) -> &'static str {
                self.kind().name
            }

            /// Appends all bytes: the head, into which `head` writes (of a number and a class), the fixed part, and
            /// what follows it. All that has no field is zero.
            #[inline]
            fn append(&self, out: &mut Vec<u8>, head: impl Fn(&mut [u8], u8, Option<$crate::Class>)) {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        // Its length is known here: no place in it is checked when the program runs.
                        let mut bytes = [0; $head + $len];
                        head(&mut bytes, $number, $class);
                        $($(<$slot as $crate::schema::Slot>::put($field, &mut bytes[$head..]);)*)?
                        $(<$whole_slot as $crate::schema::Slot>::put($whole, &mut bytes[$head..]);)?
                        out.extend_from_slice(&bytes);
                        $($(<$slot as $crate::schema::Slot>::extend($field, out);)*)?
                        $(<$whole_slot as $crate::schema::Slot>::extend($whole, out);)?
                    })*
                }
            }
        }

        impl $crate::schema::Record for $type {
            #[inline(always)]
            fn length(&self) -> usize {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        $len $($(+ <$slot as $crate::schema::Slot>::tail_len($field))*)?
                            $(+ <$whole_slot as $crate::schema::Slot>::tail_len($whole))?
                    })*
                }
            }

            #[inline]
            fn visit(&self, visitor: &mut impl $crate::schema::Visit) {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        $($(visitor.slot::<$slot>($field);)*)?
                        $(visitor.slot::<$whole_slot>($whole);)?
                    })*
                }
            }
        }
    };
}

pub(crate) use {encoded, kind, kinds, slots};
