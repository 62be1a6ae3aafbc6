// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures and constants shared with C: one declaration gives the Rust item and its C text.
//!
//! ```text
//!   c_structs! {                                  table of all, macro that adds the fields they begin with
//!       pub STRUCTS, ioctl_struct;
//!       /// What the board and the driver are.     group of first fields, Rust name, C name
//!       call pub struct Info as "tg_info" {
//!           /// This node's id.
//!           pub node: u32,
//!   ...
//!   c_consts! { pub ALL: u32, prefix "TG_" { ... } }
//! ```

/// One field of a structure shared with C.
#[derive(Clone, Copy, Debug)]
pub struct CField {
    /// Field name, the same in both languages.
    pub name: &'static str,
    /// C type of the field, or of one element if it is an array.
    pub ctype: &'static str,
    /// Elements of an array; 0 if it is none.
    pub count: usize,
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

/// The C types of a field's Rust type.
pub(crate) trait CType {
    /// In the processor's byte order.
    const NATIVE: &'static str;
    /// In the board's byte order.
    const LITTLE: &'static str;
    /// Elements of an array; 0 if it is none.
    const COUNT: usize = 0;
}

macro_rules! c_types {
    ($($rust:ty = $native:literal, $little:literal;)*) => {
        $(impl CType for $rust {
            const NATIVE: &'static str = $native;
            const LITTLE: &'static str = $little;
        })*
    };
}

c_types! {
    u8 = "__u8", "__u8";
    u16 = "__u16", "__le16";
    u32 = "__u32", "__le32";
    u64 = "__u64", "__le64";
    i32 = "__s32", "__le32";
}

impl<T: CType, const N: usize> CType for [T; N] {
    const NATIVE: &'static str = T::NATIVE;
    const LITTLE: &'static str = T::LITTLE;
    const COUNT: usize = N;
}

/// Defines one `repr(C)` plain-old-data structure and its description as a [`CStruct`] constant `C`. It begins with the
/// fields of the group in the first braces; `$order` is the byte order of all fields, `NATIVE` or `LITTLE`.
macro_rules! c_struct {
    (
        $order:ident { $($(#[doc = $gdoc:literal])* pub $gfield:ident: $gty:ty,)* }
        $(#[doc = $sdoc:literal])* pub struct $name:ident as $cname:literal {
            $($(#[doc = $fdoc:literal])* pub $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[doc = $sdoc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $($(#[doc = $gdoc])* pub $gfield: $gty,)*
            $($(#[doc = $fdoc])* pub $field: $ty,)*
        }

        impl $name {
            /// The C view of this structure.
            pub const C: $crate::CStruct = $crate::CStruct {
                name: $cname,
                size: size_of::<Self>(),
                doc: &[$($sdoc),*],
                fields: &[
                    $(c_struct!(@field $order $gfield $gty, $($gdoc),*),)*
                    $(c_struct!(@field $order $field $ty, $($fdoc),*),)*
                ],
            };
        }

        impl Default for $name {
            fn default() -> Self {
                bytemuck::Zeroable::zeroed()
            }
        }
    };
    (@field $order:ident $field:ident $ty:ty, $($doc:literal),*) => {
        $crate::CField {
            name: stringify!($field),
            ctype: <$ty as $crate::cstruct::CType>::$order,
            count: <$ty as $crate::cstruct::CType>::COUNT,
            offset: core::mem::offset_of!(Self, $field),
            doc: &[$($doc),*],
        }
    };
}

/// Declares the structures of one interface and the table of them, in this order. `$build` is a macro that adds to each
/// declaration its byte order and the fields of its group, and passes it to `c_struct!`.
macro_rules! c_structs {
    (
        $(#[$meta:meta])* pub $table:ident, $build:ident;
        $($(#[doc = $doc:literal])* $group:ident pub struct $name:ident as $cname:literal $fields:tt)*
    ) => {
        $($build! { $group $(#[doc = $doc])* pub struct $name as $cname $fields })*
        $(#[$meta])*
        pub const $table: &[$crate::CStruct] = &[$($name::C),*];
    };
}

/// Defines integer constants and a table of them (C name, value, documentation) for the C header. The C name is the
/// prefix and the Rust name, or the prefix and the name after `as`.
macro_rules! c_consts {
    ($(#[$meta:meta])* pub $table:ident: $ty:ty, prefix $prefix:literal {
        $($(#[doc = $doc:literal])* $name:ident $(as $cname:literal)? = $value:expr,)*
    }) => {
        $($(#[doc = $doc])* pub const $name: $ty = $value;)*
        $(#[$meta])*
        pub const $table: &[(&str, u64, &str)] =
            &[$((c_consts!(@name $prefix $name $($cname)?), $name as u64, concat!($($doc),*)),)*];
    };
    (@name $prefix:literal $name:ident) => { concat!($prefix, stringify!($name)) };
    (@name $prefix:literal $name:ident $cname:literal) => { concat!($prefix, $cname) };
}

/// Defines strings and a table of them (C name, value, documentation) for the C header.
macro_rules! c_strings {
    ($(#[$meta:meta])* pub $table:ident {
        $($(#[doc = $doc:literal])* $name:ident as $cname:literal = $value:literal,)*
    }) => {
        $($(#[doc = $doc])* pub const $name: &str = $value;)*
        $(#[$meta])*
        pub const $table: &[(&str, &str, &str)] = &[$(($cname, $name, concat!($($doc),*)),)*];
    };
}
