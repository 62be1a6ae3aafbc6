// SPDX-License-Identifier: MIT OR Apache-2.0
//! How gdb is started for a guest's kernel, and told where the driver's modules are.

use std::path::{Path, PathBuf};

/// In the guest, as root: module, section and address, of each of the driver's modules that is loaded.
pub(crate) const SECTIONS: &str = "cd /sys/module; for m in telegraphos*; do cd $m/sections 2>/dev/null || continue; \
                                   for s in .text .data .bss .rodata; do [ -f $s ] && echo \"$m $s $(cat $s)\"; \
                                   done; cd /sys/module; done; true";

/// A word of a shell.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The command line, and what else is to be known. `script` will be written when the guest is up.
pub(crate) fn command(vmlinux: Option<&Path>, socket: &Path, script: &Path) -> String {
    let target = word(&format!("target remote {}", socket.display()));
    let file = vmlinux.map(|path| format!(" {}", word(&path.display().to_string()))).unwrap_or_default();
    let mut text = format!("  gdb{file} -ex {target}\n");
    text += &format!("  the driver's symbols, once the guest is up: source {}", script.display());
    if vmlinux.and_then(Path::parent).is_some_and(|tree| tree.join("vmlinux-gdb.py").exists()) {
        text += "\n  those of all modules: lx-symbols";
    }
    if vmlinux.is_none() {
        text += "\n  the kernel has no symbols here: for them give --kernel a build tree with CONFIG_DEBUG_INFO";
    }
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join("gdb").is_file()) {
        text += "\n  gdb is not installed here: apt install gdb";
    }
    text
}

/// The script for gdb: what [`SECTIONS`] has printed, for these files of modules.
pub(crate) fn script(sections: &str, modules: &[PathBuf]) -> String {
    let mut text = String::new();
    for path in modules {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let own = sections.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (module, section, address) = (words.next()?, words.next()?, words.next()?);
            (module == name && address.starts_with("0x")).then_some((section, address))
        });
        let own: Vec<String> = own.map(|(section, address)| format!(" -s {section} {address}")).collect();
        if !own.is_empty() {
            // gdb takes a file name in double quotes.
            text += &format!("add-symbol-file \"{}\"{}\n", path.display(), own.concat());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, script) = (Path::new("/run/x/gdb0"), Path::new("/run/x/gdb0.modules"));
        let text = command(None, socket, script);
        assert!(text.starts_with("  gdb -ex 'target remote /run/x/gdb0'\n"), "{text}");
        assert!(text.contains("source /run/x/gdb0.modules") && text.contains("CONFIG_DEBUG_INFO"), "{text}");
        let vmlinux = dir.path().join("my vmlinux");
        let text = command(Some(&vmlinux), socket, script);
        assert!(text.contains(&format!("gdb '{}' -ex", vmlinux.display())) && !text.contains("lx-symbols"), "{text}");
        std::fs::write(dir.path().join("vmlinux-gdb.py"), "").unwrap();
        assert!(command(Some(&vmlinux), socket, script).contains("lx-symbols"));
        assert_eq!((word("a'b"), word("/a-b.c")), (r"'a'\''b'".into(), "/a-b.c".into()));
    }

    #[test]
    fn modules_that_are_loaded_are_in_the_script() {
        let modules = ["/c/telegraphos.ko", "/c/telegraphos_net.ko"].map(PathBuf::from);
        let sections = "telegraphos .text 0xffffffffc0000000\ntelegraphos .data 0xffffffffc0003000\nother .text 0x1\n\
                        telegraphos_net .text (null)\n";
        let wanted = "add-symbol-file \"/c/telegraphos.ko\" -s .text 0xffffffffc0000000 -s .data 0xffffffffc0003000\n";
        assert_eq!(script(sections, &modules), wanted);
    }
}
