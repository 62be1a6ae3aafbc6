// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C declarations of types and functions, and the text of a header, of this library and of crates on top of it.
//!
//! ```text
//! c_handles!    types of which C has pointers only
//! c_record!     a structure of both languages
//! c_functions!  functions, which are exported under their names
//! Header        what these have declared, as text
//! ```

use std::ffi::{c_int, c_void};
use std::fmt::Write;

/// The C declaration of a name.
pub type Declare = fn(&str) -> String;

/// A type that C has, too.
pub trait CType {
    /// The C declaration of `name` with this type.
    fn declare(name: &str) -> String;
}

impl<T: CType> CType for *mut T {
    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

impl<T: CType> CType for *const T {
    fn declare(name: &str) -> String {
        format!("const {}", T::declare(&format!("*{name}")))
    }
}

impl<T: CType, const N: usize> CType for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

/// Types that C has under a name: `TYPE => "C NAME";`
#[macro_export]
macro_rules! c_types {
    ($( $type:ty => $name:literal; )*) => { $(
        impl $crate::ffi::declarations::CType for $type {
            fn declare(name: &str) -> String {
                format!("{} {name}", $name)
            }
        }
    )* };
}

c_types! {
    () => "void";
    c_void => "void";
    // `c_char` of x86; of aarch64 it is `u8`.
    i8 => "char";
    u8 => "uint8_t";
    u16 => "uint16_t";
    u32 => "uint32_t";
    u64 => "uint64_t";
    i64 => "int64_t";
    c_int => "int";
}

/// Opaque types: `TABLE, ERROR; TYPE => "C NAME", "STRUCT", "NAME IN ERRORS", "COMMENT";`, where `ERROR` is what their
/// functions fail with.
#[macro_export]
macro_rules! c_handles {
    ($table:ident, $error:ty; $( $type:ty => $name:literal, $tag:literal, $what:literal, $doc:literal; )*) => {
        $crate::c_types! { $( $type => $name; )* }
        $( impl $crate::ffi::boundary::Handle for $type {
            const WHAT: &'static str = $what;
            type Error = $error;
        } )*
        /// Name, structure and comment of each.
        const $table: &[$crate::ffi::declarations::Opaque] = &[ $( ($name, $tag, $doc), )* ];
    };
}

/// Name, structure and comment of an opaque type.
pub type Opaque = (&'static str, &'static str, &'static str);

/// A title, and name, value and comment of constants.
pub type Constants<'a> = (&'a str, &'a [(&'a str, u64, &'a str)]);

/// A member of a record, or an argument of a function.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its declaration.
    pub declare: Declare,
    /// Lines of its comment.
    pub doc: &'static [&'static str],
}

/// A structure that C fills or reads.
#[derive(Debug)]
pub struct Record {
    /// Its name in C.
    pub name: &'static str,
    /// Lines of its comment.
    pub doc: &'static [&'static str],
    /// Its members.
    pub fields: &'static [Field],
}

/// A function of the C interface.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Its result.
    pub result: Declare,
    /// Lines of its comment.
    pub doc: &'static [&'static str],
    /// Its arguments.
    pub arguments: &'static [Field],
}

/// A record of both languages: `c_record! { TABLE, "C NAME", pub struct ... }`.
#[macro_export]
macro_rules! c_record {
    ($table:ident, $cname:literal, $(#[doc = $doc:literal])* pub struct $name:ident {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $type:ty, )*
    }) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $type, )* }
        $crate::c_types! { $name => $cname; }

        pub(super) const $table: $crate::ffi::declarations::Record = $crate::ffi::declarations::Record {
            name: $cname,
            doc: &[$($doc),*],
            fields: &[ $( $crate::ffi::declarations::Field {
                name: stringify!($field),
                declare: <$type as $crate::ffi::declarations::CType>::declare,
                doc: &[$($fdoc),*],
            }, )* ],
        };
    };
}

/// Functions of the C interface: `c_functions! { TABLE; fn NAME(ARGUMENTS) -> RESULT = BODY; ... }`. Bodies are unsafe
/// code that relies on the promises of the module's documentation.
#[macro_export]
macro_rules! c_functions {
    ($table:ident;
        $( $(#[doc = $doc:literal])* fn $name:ident($( $argument:ident : $type:ty ),*) -> $result:ty = $body:expr; )*
    ) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// See the module.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe, reason = "a few have no use for their arguments' promises")]
            #[allow(clippy::macro_metavars_in_unsafe, reason = "bodies are unsafe code, as said above")]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { $body }
            }
        )*

        pub(super) const $table: &[$crate::ffi::declarations::Function] = &[ $( $crate::ffi::declarations::Function {
            name: stringify!($name),
            result: <$result as $crate::ffi::declarations::CType>::declare,
            doc: &[$($doc),*],
            arguments: &[ $( $crate::ffi::declarations::Field {
                name: stringify!($argument),
                declare: <$type as $crate::ffi::declarations::CType>::declare,
                doc: &[],
            }, )* ],
        }, )* ];
    };
}

/// Functions that differ only in the width of a word, with one body for all:
/// `words! { TABLE(SUBJECT: TYPE, OFFSET); [BODY] NAME(ARGUMENTS); ... [BODY] ... }`. Each takes the subject and the
/// offset before the arguments of its width.
macro_rules! words {
    ($table:ident($subject:ident : $of:ty, $offset:ident);
        $( [$body:expr] $( $(#[doc = $doc:literal])* $name:ident($( $argument:ident : $type:ty ),*); )* )*
    ) => {
        c_functions! { $table; $( $(
            $(#[doc = $doc])*
            fn $name($subject: $of, $offset: u64 $(, $argument: $type)*) -> c_int = $body;
        )* )* }
    };
}

/// A header of C.
#[derive(Debug)]
pub struct Header<'a> {
    /// The comment at its beginning.
    pub about: &'a str,
    /// The macro that is defined where it has been included.
    pub guard: &'a str,
    /// The headers that it includes.
    pub includes: &'a [&'a str],
    /// The opaque types.
    pub handles: &'a [Opaque],
    /// Constants, in groups.
    pub constants: &'a [Constants<'a>],
    /// The records, in an order in which those that are members of others come first.
    pub records: &'a [&'a Record],
    /// The functions.
    pub functions: &'a [&'a [Function]],
}

fn comment(out: &mut String, indent: &str, doc: &[&str]) {
    for (index, line) in doc.iter().enumerate() {
        let begin = if index == 0 { "/* " } else { " * " };
        let end = if index + 1 == doc.len() { " */" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{indent}{begin}{}{end}", line.trim());
    }
}

impl Header<'_> {
    /// Its text.
    pub fn text(&self) -> String {
        let mut out = String::from("/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n");
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "/*");
        for line in self.about.lines() {
            let _ = writeln!(out, "{}", format!(" * {line}").trim_end());
        }
        let _ = writeln!(out, " */\n#ifndef {0}\n#define {0}\n", self.guard);
        for name in self.includes {
            let _ = writeln!(out, "#include <{name}>");
        }
        out.push_str("\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
        for (name, tag, doc) in self.handles {
            comment(&mut out, "", &[doc]);
            let _ = writeln!(out, "typedef struct {tag} {name};");
        }
        out.push('\n');
        for (title, constants) in self.constants {
            let _ = writeln!(out, "/* {title} */");
            for (name, value, doc) in *constants {
                comment(&mut out, "", &[doc]);
                // Letter for letter as in the kernel's header, so that a program may include both.
                let _ = writeln!(out, "#define {name} 0x{value:x}");
            }
            out.push('\n');
        }
        for record in self.records {
            comment(&mut out, "", record.doc);
            let _ = writeln!(out, "typedef struct {} {{", record.name);
            for field in record.fields {
                comment(&mut out, "\t", field.doc);
                let _ = writeln!(out, "\t{};", (field.declare)(field.name));
            }
            let _ = writeln!(out, "}} {};\n", record.name);
        }
        for function in self.functions.iter().copied().flatten() {
            comment(&mut out, "", function.doc);
            let arguments: Vec<String> = function.arguments.iter().map(|a| (a.declare)(a.name)).collect();
            let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
            let _ = writeln!(out, "{};\n", (function.result)(&format!("{}({arguments})", function.name)));
        }
        let _ = writeln!(out, "#ifdef __cplusplus\n}}\n#endif\n\n#endif /* {} */", self.guard);
        out
    }
}
