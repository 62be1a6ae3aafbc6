// SPDX-License-Identifier: MIT OR Apache-2.0
//! Enums of numbers.

/// Declares an enum of numbers, with all of them in order and a function that reads one.
macro_rules! numbers {
    (
        $(#[$meta:meta])* $vis:vis enum $type:ident: $number:ident, $read_vis:vis fn $read:ident;
        $($(#[$doc:meta])* $variant:ident = $value:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($number)]
        $vis enum $type {
            $($(#[$doc])* $variant = $value,)*
        }

        impl $type {
            /// All of them, by number.
            pub const ALL: [$type; [$($value),*].len()] = [$($type::$variant),*];

            /// The one of a number; `None` for a number that none has.
            #[inline]
            $read_vis const fn $read(value: $number) -> Option<$type> {
                match value {
                    $($value => Some($type::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use numbers;
