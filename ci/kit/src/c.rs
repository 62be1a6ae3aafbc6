// SPDX-License-Identifier: MIT OR Apache-2.0
//! Libraries for C: their headers, and programs that the host's gcc links with them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A library for C, as the test of its crate sees it.
#[derive(Debug)]
pub struct CLibrary {
    /// The crate that it is made by.
    pub package: &'static str,
    /// Directory of that crate, with `include` and `examples` in it.
    pub directory: &'static str,
    /// Its file name without `lib`, which is that of the header too.
    pub name: &'static str,
    /// Directories of the headers that its own one includes.
    pub includes: &'static [&'static str],
    /// The text that the header is to have.
    pub header: fn() -> String,
    /// The examples in C: name, usage, a command that needs a board.
    pub examples: &'static [(&'static str, &'static str, &'static [&'static str])],
}

/// Where cargo has put the libraries of this very build: beside the test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().expect("its directory").to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

impl CLibrary {
    /// Runs gcc, which must have nothing to say, in a directory.
    pub fn gcc(&self, directory: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new("gcc");
        command.current_dir(directory).args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
        command.arg("-I").arg(Path::new(self.directory).join("include"));
        self.includes.iter().for_each(|include| _ = command.args(["-I", include]));
        let out = command.args(arguments).output().expect("gcc does not start: install gcc with the headers of libc");
        assert!(out.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&out.stderr));
        out
    }

    /// A program compiles, in this directory, in which each of these records of C has so many bytes.
    pub fn check_records(&self, directory: &Path, mut program: String, records: &[(&str, usize)]) {
        for (name, size) in records {
            writeln!(program, "_Static_assert(sizeof({name}) == {size}, \"{name}\");").expect("a String");
        }
        std::fs::write(directory.join("check.c"), program).expect("check.c");
        self.gcc(directory, &["-c", "check.c"]);
    }

    /// The committed header is that of the functions.
    pub fn check_header(&self) {
        let path = format!("{}/include/{}.h", self.directory, self.name);
        let committed = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let renew = format!("cargo run -p {} --example {}_h > {path}", self.package, self.name);
        assert!(committed == (self.header)(), "{path} is stale: run\n  {renew}");
    }

    /// Runs an example without a board; it must start, and explain what is missing.
    fn run_example(program: &Path, usage: &str, command: &[&str]) {
        let run = |arguments: &[&str]| {
            let mut command = Command::new(program);
            let out = command.args(arguments).env("LD_LIBRARY_PATH", libraries()).output();
            let out = out.expect("the example does not start");
            (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
        };
        assert_eq!(run(&[]), (Some(2), usage.into()));
        if !Path::new("/dev/telegraphos0").exists() {
            let (code, text) = run(command);
            assert_eq!(code, Some(3), "{text}");
            assert!(text.contains("there is no /dev/telegraphos0: attach a HIB"), "{text}");
        }
    }

    /// Links every example with these arguments behind it, and runs it.
    fn link_examples(&self, directory: &Path, arguments: &[&str]) {
        for (name, usage, command) in self.examples {
            let source = format!("{}/examples/{name}.c", self.directory);
            self.gcc(directory, &[&[&source[..]], arguments, &["-o", name]].concat());
            CLibrary::run_example(&directory.join(name), usage, command);
        }
    }

    /// The examples can be linked with the static library, in this directory.
    pub fn link_statically(&self, directory: &Path) {
        let library = libraries().join(format!("lib{}.a", self.name));
        // What rustc names with --print native-static-libs.
        let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];
        self.link_examples(directory, &[&[text(&library)][..], &system].concat());
    }

    /// The examples can be linked with the shared library, in this directory.
    pub fn link_dynamically(&self, directory: &Path) {
        let shared = format!("-l:lib{}.so", self.name);
        self.link_examples(directory, &["-L", text(&libraries()), &shared]);
    }

    /// Every function of the header `include` with that text is in the shared library, under that name: how many.
    pub fn check_functions(&self, directory: &Path, include: &str, header: &str) -> usize {
        let names: Vec<&str> = header
            .lines()
            .filter(|line| line.ends_with(");") && !line.starts_with([' ', '\t', '/', '#']))
            .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
            .collect();
        let mut program = format!("#include <{include}>\n#include <stdio.h>\ntypedef void any(void);\n");
        let list: Vec<String> = names.iter().map(|name| format!("(any *){name}")).collect();
        writeln!(program, "static any *const all[] = {{ {} }};", list.join(", ")).expect("a String");
        program += "int main(void) { unsigned n = 0; \
                    for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++) n += !!all[i];\n\
                    printf(\"%u\\n\", n); return 0; }\n";
        std::fs::write(directory.join("all.c"), program).expect("all.c");
        let (libraries, shared) = (libraries(), format!("-l:lib{}.so", self.name));
        self.gcc(directory, &["-Wno-cast-function-type", "all.c", "-L", text(&libraries), &shared]);
        let out = Command::new(directory.join("a.out")).env("LD_LIBRARY_PATH", &libraries).output().expect("a.out");
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), names.len().to_string());
        names.len()
    }
}
