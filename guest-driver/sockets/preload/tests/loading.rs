// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that has its libraries in a directory of its own loads them as without this library, which says when one
//! of them passes it.

use crate::library;
use std::path::Path;
use std::process::Command;

const PLUGIN: &str = "int loaded(void) { return 42; }\n";
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
	void *plugin = dlopen("libloaded.so", RTLD_NOW | (argc > 1 ? RTLD_DEEPBIND : 0));
	int (*loaded)(void) = plugin ? (int (*)(void))dlsym(plugin, "loaded") : NULL;
	(void)argv;
	if (!loaded)
		fprintf(stderr, "%s\n", dlerror());
	return loaded ? loaded() : 1;
}
"#;

fn gcc(at: &Path, name: &str, source: &str, words: &[&str]) {
    let file = at.join(format!("{name}.c"));
    std::fs::write(&file, source).unwrap();
    let status = Command::new("gcc").arg(&file).arg("-o").arg(at.join(name)).args(words).status().unwrap();
    assert!(status.success(), "{name}");
}

#[test]
fn a_library_that_only_its_program_knows_is_loaded_and_one_bound_to_libc_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (at, plugins) = (directory.path(), directory.path().join("plugins"));
    std::fs::create_dir(&plugins).unwrap();
    gcc(&plugins, "libloaded.so", PLUGIN, &["-shared", "-fPIC"]);
    let path = format!("-Wl,--enable-new-dtags,-rpath,{}", plugins.display());
    gcc(at, "program", PROGRAM, &[&path, "-ldl"]);
    for (words, notice) in [(&[][..], ""), (&["deep"], "left alone from now on (0 are framed): a library is loaded")] {
        let mut command = Command::new(at.join("program"));
        command.args(words).env("LD_PRELOAD", library()).env("TELEGRAPHOS_SOCKETS_LOG", "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(42), "{words:?}: {said}");
        assert!(said.contains(notice) && notice.is_empty() == said.is_empty(), "{words:?}: {said}");
    }
}
