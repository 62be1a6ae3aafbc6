// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures shared with C: one definition gives the Rust type and its C text.

/// One field of a structure shared with C.
#[derive(Clone, Copy, Debug)]
pub struct CField {
    /// Field name, the same in both languages.
    pub name: &'static str,
    /// C type, an array written as `__u8[64]`.
    pub ctype: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
    /// The Rust documentation lines.
    pub doc: &'static [&'static str],
}

/// A structure shared with C.
#[derive(Clone, Copy, Debug)]
pub struct CStruct {
    /// Name after `struct`.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// The Rust documentation lines.
    pub doc: &'static [&'static str],
    /// Fields in memory order; there is no implicit padding.
    pub fields: &'static [CField],
}

/// Defines a `repr(C)` plain-old-data structure and its description as a [`CStruct`] constant `C`.
macro_rules! c_struct {
    ($(#[doc = $sdoc:literal])* pub struct $name:ident as $cname:literal {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $ty:ty = $cty:literal, )*
    }) => {
        $(#[doc = $sdoc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $ty, )* }

        impl $name {
            /// The C view of this structure.
            pub const C: $crate::CStruct = $crate::CStruct {
                name: $cname,
                size: core::mem::size_of::<Self>(),
                doc: &[$($sdoc),*],
                fields: &[ $( $crate::CField {
                    name: stringify!($field),
                    ctype: $cty,
                    offset: core::mem::offset_of!(Self, $field),
                    doc: &[$($fdoc),*],
                }, )* ],
            };
        }

        impl Default for $name {
            fn default() -> Self { bytemuck::Zeroable::zeroed() }
        }
    };
}

/// Defines integer constants and a table `ALL` of them (`name`, value, documentation) for the C header.
macro_rules! c_consts {
    ($(#[doc = $mdoc:literal])* $vis:vis $table:ident : $ty:ty, prefix $prefix:literal {
        $( $(#[doc = $doc:literal])* $name:ident = $value:expr, )*
    }) => {
        $( $(#[doc = $doc])* pub const $name: $ty = $value; )*
        $(#[doc = $mdoc])*
        $vis const $table: &[(&str, u64, &str)] =
            &[ $( (concat!($prefix, stringify!($name)), $name as u64, concat!($($doc),*)), )* ];
    };
}
