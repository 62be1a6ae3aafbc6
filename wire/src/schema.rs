// SPDX-License-Identifier: MIT OR Apache-2.0
//! How packets and link frames are declared: once, as a list of kinds, each a list of fields in *slots*.
//!
//! ```text
//!   kinds! {                                      kind = number, name for logs and captures, what must hold
//!       /// Loads `size` bytes.
//!       Read = 2 "read" Request Access {          variant of the Rust type
//!           /// Source.
//!           at: RemoteAddr = At,                  field, its type, its slot
//!   ...
//!   slot At: bytes of the fixed part (FIELDS) <-> value (put, get), and what follows it (extend)
//! ```
//!
//! From the list come the Rust type, its encoding and checked decoding, number, name and class of each kind, and the
//! tables of [`layout`](crate::layout), from which the dissector and docs/packets.md are generated. A new packet is one
//! entry in [`packet`](crate::packet), a new frame one in [`link`](crate::link).

use alloc::vec::Vec;

use crate::ImportEpoch;
use crate::layout::{Field, Show, Tail, field};
use crate::packet::PacketError;

/// Why a slot cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// A number that names no atomic operation.
    Atomic(u8),
    /// A value out of range.
    Value,
    /// The packet inside.
    Packet(PacketError),
}

/// A place for a value in the bytes of a packet (counted from its start) or of a frame (from behind its head).
pub(crate) trait Slot {
    /// What is in it.
    type Value;
    /// Where: the fields that the dissector shows.
    const FIELDS: &'static [Field];
    /// What of it is behind the fixed part.
    const TAIL: Tail = Tail::None;

    /// Writes the value into the fixed part, which is zero and as long as the kind says.
    fn put(value: &Self::Value, fixed: &mut [u8]);

    /// Reads the value; `bytes` are all bytes, and as long as the kind and its tail want.
    fn get(bytes: &[u8]) -> Result<Self::Value, Malformed>;

    /// Appends what is behind the fixed part.
    fn extend(_value: &Self::Value, _out: &mut Vec<u8>) {}

    /// Bytes behind the fixed part.
    fn tail_len(_value: &Self::Value) -> usize {
        0
    }

    /// The export page that it names, if it is an address.
    fn page(_value: &Self::Value) -> Option<u32> {
        None
    }

    /// The import and epoch that it is, if it is that.
    fn epoch(_value: &Self::Value) -> Option<ImportEpoch> {
        None
    }
}

/// An integer as it is in memory: little-endian.
pub(crate) trait Integer: Copy {
    /// Writes it at the start of `bytes`.
    fn write(self, bytes: &mut [u8]);
    /// Reads it from `at` on; what is not there is zero.
    fn read(bytes: &[u8], at: usize) -> Self;
}

/// A value that is an integer on the wire.
pub(crate) trait Encoded<I>: Sized {
    /// As an integer.
    fn number(&self) -> I;
    /// Of an integer, if it can be.
    fn of(number: I) -> Result<Self, Malformed>;
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(impl Integer for $integer {
            fn write(self, bytes: &mut [u8]) {
                bytes[..size_of::<$integer>()].copy_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8], at: usize) -> $integer {
                let found = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
                found.map_or(0, |bytes| <$integer>::from_le_bytes(*bytes))
            }
        }

        impl Encoded<$integer> for $integer {
            fn number(&self) -> $integer {
                *self
            }

            fn of(number: $integer) -> Result<$integer, Malformed> {
                Ok(number)
            }
        })*
    };
}

integers!(u8, u16, u32, u64);

macro_rules! flags {
    ($($integer:ty),*) => {
        $(impl Encoded<$integer> for bool {
            fn number(&self) -> $integer {
                <$integer>::from(*self)
            }

            fn of(number: $integer) -> Result<bool, Malformed> {
                Ok(number != 0)
            }
        })*
    };
}

flags!(u16, u32);

/// Slots of one integer: `Slot: value type as integer, "name" @ byte, how it is shown`.
macro_rules! slots {
    ($($(#[$doc:meta])* $slot:ident: $value:ty as $integer:ty, $name:literal @ $at:expr, $show:ident;)*) => {
        $($(#[$doc])*
        pub(crate) struct $slot;

        impl $crate::schema::Slot for $slot {
            type Value = $value;
            const FIELDS: &'static [$crate::layout::Field] =
                &[$crate::layout::field($name, $at, size_of::<$integer>(), $crate::layout::Show::$show)];

            fn put(value: &$value, fixed: &mut [u8]) {
                let number: $integer = $crate::schema::Encoded::number(value);
                $crate::schema::Integer::write(number, &mut fixed[$at..]);
            }

            fn get(bytes: &[u8]) -> Result<$value, $crate::schema::Malformed> {
                $crate::schema::Encoded::of(<$integer as $crate::schema::Integer>::read(bytes, $at))
            }
        })*
    };
}

/// How many fields there are in all.
pub(crate) const fn count(parts: &[&[Field]]) -> usize {
    let (mut part, mut sum) = (0, 0);
    while part < parts.len() {
        sum += parts[part].len();
        part += 1;
    }
    sum
}

/// All fields, in the order of their places.
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

/// What follows the fixed part of a kind with these slots: one of them at most has a tail, but for a list of members
/// with a packet.
#[allow(clippy::panic, reason = "a table that cannot be does not compile")]
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
        const PARTS: &[&[$crate::layout::Field]] = &[$(<$slot as $crate::schema::Slot>::FIELDS),*];
        const FIELDS: [$crate::layout::Field; count(PARTS)] = ordered(PARTS);
        $crate::layout::Kind {
            number: $number,
            name: $name,
            class: $class,
            len: $len,
            fields: &FIELDS,
            check: $crate::layout::Check::$check,
            tail: tail_of(&[$(<$slot as $crate::schema::Slot>::TAIL),*]),
        }
    }};
}

/// Declares an enum of kinds. Of each: its documentation, its variant, number, name, class (`Some(class)` or `None`),
/// bytes of its fixed part, what must hold of its fields, and the fields, each with its slot.
macro_rules! kinds {
    (
        $(#[$meta:meta])* $vis:vis enum $type:ident, table $(#[$table_meta:meta])* $table:ident;
        $($(#[$doc:meta])* $variant:ident = $number:literal $name:literal, $class:expr, $len:expr, $check:ident
            $({ $($(#[$field_doc:meta])* $field:ident: $value:ty = $slot:ty),* $(,)? })?
            $(($whole:ident: $whole_type:ty = $whole_slot:ty))?;)*
    ) => {
        $(#[$meta])*
        $vis enum $type {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* $field: $value),* })? $(($whole_type))?,)*
        }

        $(#[$table_meta])*
        pub const $table: &[$crate::layout::Kind] =
            &[$($crate::schema::kind!($number, $name, $class, $len, $check, $($($slot),*)? $($whole_slot)?)),*];

        impl $type {
            /// What the tables say of its kind.
            pub fn kind(&self) -> &'static $crate::layout::Kind {
                match self {
                    $($type::$variant { .. } => {
                        const KIND: $crate::layout::Kind =
                            $crate::schema::kind!($number, $name, $class, $len, $check, $($($slot),*)? $($whole_slot)?);
                        &KIND
                    })*
                }
            }

            /// What the tables say of the kind with this number, if there is one.
            pub fn kind_of(number: u8) -> Option<&'static $crate::layout::Kind> {
                match number {
                    $($number => {
                        const KIND: $crate::layout::Kind =
                            $crate::schema::kind!($number, $name, $class, $len, $check, $($($slot),*)? $($whole_slot)?);
                        Some(&KIND)
                    })*
                    _ => None,
                }
            }

            /// Name for logs and captures.
            pub fn name(&self) -> &'static str {
                self.kind().name
            }

            /// Writes the fields into the fixed part, which is zero.
            fn put(&self, fixed: &mut [u8]) {
                let _ = &fixed;
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        $($(<$slot as $crate::schema::Slot>::put($field, fixed);)*)?
                        $(<$whole_slot as $crate::schema::Slot>::put($whole, fixed);)?
                    })*
                }
            }

            /// Appends what is behind the fixed part.
            fn extend(&self, out: &mut alloc::vec::Vec<u8>) {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        $($(<$slot as $crate::schema::Slot>::extend($field, out);)*)?
                        $(<$whole_slot as $crate::schema::Slot>::extend($whole, out);)?
                    })*
                }
                let _ = out;
            }

            /// Bytes behind the fixed part.
            #[allow(dead_code, reason = "nobody asks it of frames")]
            fn tail_len(&self) -> usize {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        0 $($(+ <$slot as $crate::schema::Slot>::tail_len($field))*)?
                            $(+ <$whole_slot as $crate::schema::Slot>::tail_len($whole))?
                    })*
                }
            }

            /// The export page that its address names; `None` without an address.
            #[allow(dead_code, reason = "frames have none")]
            fn address_page(&self) -> Option<u32> {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        None $($(.or(<$slot as $crate::schema::Slot>::page($field)))*)?
                            $(.or(<$whole_slot as $crate::schema::Slot>::page($whole)))?
                    })*
                }
            }

            /// The import and epoch that it has; `None` without.
            #[allow(dead_code, reason = "frames have none")]
            fn import_epoch(&self) -> Option<$crate::ImportEpoch> {
                match self {
                    $($type::$variant $({ $($field),* })? $(($whole))? => {
                        None $($(.or(<$slot as $crate::schema::Slot>::epoch($field)))*)?
                            $(.or(<$whole_slot as $crate::schema::Slot>::epoch($whole)))?
                    })*
                }
            }

            /// Reads the fields of a kind of this table; `None` for another number. The caller has checked the length.
            fn get(number: u8, bytes: &[u8]) -> Result<Option<$type>, $crate::schema::Malformed> {
                let _ = bytes;
                Ok(Some(match number {
                    $($number => $type::$variant $({
                        $($field: <$slot as $crate::schema::Slot>::get(bytes)?),*
                    })? $((<$whole_slot as $crate::schema::Slot>::get(bytes)?))?,)*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

pub(crate) use {kind, kinds, slots};
