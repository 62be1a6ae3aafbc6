// SPDX-License-Identifier: MIT OR Apache-2.0
//! What attaches a board to a virtual machine, for the program that starts the machine: options of QEMU, elements of a
//! libvirt domain, or a command line of virtme-ng; and what a port needs so that the board can be plugged in later.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use telegraphos_wire::WindowLayout;

use crate::shell::Config;

/// The program that starts the virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Starter {
    /// Options for the command line of QEMU
    #[default]
    Qemu,
    /// Elements for a libvirt domain
    Libvirt,
    /// A command line of virtme-ng
    VirtmeNg,
}

/// XML namespace of what libvirt passes on to QEMU. The elements declare it themselves, so that they fit any domain.
const NAMESPACE: &str = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'";

/// What attaches one board. Its [`Display`](fmt::Display) is the text for the user.
#[derive(Clone, Debug)]
pub struct Attachment {
    node: u16,
    window: WindowLayout,
    contexts: u16,
    /// Of the board, and of the memory device beside it.
    sockets: Vec<PathBuf>,
    starter: Starter,
}

impl Attachment {
    /// Of the board with this configuration, for machines that `starter` starts.
    pub fn new(config: &Config, starter: Starter) -> Attachment {
        let (node, window, contexts) = (config.hib.node, config.hib.window, config.hib.contexts);
        Attachment { node, window, contexts, sockets: vec![config.socket.clone()], starter }
    }

    /// Adds the device at another socket.
    pub fn add(&mut self, socket: &Path) {
        self.sockets.push(socket.to_owned());
    }

    /// Prints the text.
    pub fn print(&self) {
        // For the reader of the terminal; the board runs whether it is read or not.
        let _ = std::io::stdout().write_all(self.to_string().as_bytes());
    }

    /// The value of QEMU's option `-device`, for each device.
    fn devices(&self) -> impl Iterator<Item = String> + '_ {
        self.sockets.iter().map(|socket| {
            let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
            let socket = serde_json::json!({ "type": "unix", "path": socket.to_string_lossy() });
            serde_json::json!({ "driver": "vfio-user-pci", "socket": socket }).to_string()
        })
    }

    /// MiB of prefetchable addresses that an empty port needs for this board; `None` if any port has enough.
    fn reserve_mib(&self) -> Option<u64> {
        let any = self.window.fits_any_port(self.contexts);
        (!any).then(|| self.window.pref64_reserve(self.contexts) >> 20)
    }

    /// Ready to paste into a shell.
    fn qemu(&self) -> String {
        let memory = "-m 1G -object memory-backend-memfd,id=ram,size=1G,share=on -machine memory-backend=ram";
        let devices = self.devices().map(|device| format!("-device {}", shell_quoted(&device)));
        let options: Vec<String> = std::iter::once(memory.to_owned()).chain(devices).collect();
        format!("  {}", options.join(" \\\n  "))
    }

    /// Elements for the inside of `<domain>`.
    fn libvirt(&self) -> String {
        let argument = |value: &str| format!("    <qemu:arg value='{}'/>\n", xml_quoted(value));
        let arguments: String = self.devices().map(|device| argument("-device") + &argument(&device)).collect();
        format!(
            "  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n  \
             <qemu:commandline {NAMESPACE}>\n{arguments}  </qemu:commandline>"
        )
    }

    /// Ready to paste into a shell. `--numa` makes virtme-ng share the memory, whatever the root is mounted by. An
    /// emulated guest would run stale code in pages that virtiofsd has written to, unless it zeroes them first.
    fn virtme_ng(&self) -> String {
        let devices: Vec<String> = self.devices().map(|device| format!("-device {}", shell_quoted(&device))).collect();
        // virtme-ng passes the text to another shell.
        format!("  vng --memory 1G --numa 1G --append init_on_alloc=1 --qemu-opts={}", shell_quoted(&devices.join(" ")))
    }

    /// What a port needs so that the board can be plugged into it while the guest runs.
    fn plug(&self) -> String {
        let Some(mib) = self.reserve_mib() else {
            return "It can also be plugged into any empty port while the guest runs.".into();
        };
        let port = match self.starter {
            Starter::Libvirt => format!(
                "in <domain> (pci.N is the alias of the port):\n\n  <qemu:override {NAMESPACE}>\n    <qemu:device \
                 alias='pci.N'>\n      <qemu:frontend>\n        <qemu:property name='pref64-reserve' type='unsigned' \
                 value='{}'/>\n      </qemu:frontend>\n    </qemu:device>\n  </qemu:override>\n",
                mib << 20
            ),
            Starter::Qemu | Starter::VirtmeNg => format!("-device pcie-root-port,id=ID,pref64-reserve={mib}M"),
        };
        format!(
            "To plug it in while the guest runs, the empty port needs: {port}\n(or give the board a smaller window: \
             --node-bits 3 --offset-bits 16 --contexts 16 fits any port)"
        )
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, text) = match self.starter {
            Starter::Qemu => ("Add to the command line of QEMU (10.1.1 or newer):", self.qemu()),
            Starter::Libvirt => ("Add inside <domain> in libvirt, with QEMU 10.1.1 or newer:", self.libvirt()),
            Starter::VirtmeNg => ("In the kernel's tree, with QEMU 10.1.1 or newer:", self.virtme_ng()),
        };
        write!(f, "node {} is ready. {place}\n\n{text}\n\n{}\n\n", self.node, self.plug())
    }
}

/// One word for a shell: within single quotes it takes everything literally but the quote itself.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// For an attribute in single quotes. JSON has no control characters, which XML could not express.
fn xml_quoted(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_device_core::HibConfig;

    /// What each kind of quoting must survive.
    const SOCKET: &str = "/tmp/it's \"<here>\" & $HOME.sock";

    fn attachment(starter: Starter) -> Attachment {
        let HibConfig { node, window, contexts, .. } = HibConfig::new(3);
        Attachment { node, window, contexts, sockets: vec![SOCKET.into(), "/tmp/b.memory".into()], starter }
    }

    /// The words of a command line, as a shell reads them.
    fn words(line: &str) -> Vec<String> {
        let out = std::process::Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {line}")).output().unwrap();
        assert!(out.status.success(), "{line}");
        String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// The sockets that options of QEMU name.
    fn sockets<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let words: Vec<&str> = words.into_iter().collect();
        let devices = words.windows(2).filter(|pair| pair[0] == "-device").map(|pair| pair[1]);
        let socket = |device: &str| {
            let json: serde_json::Value = serde_json::from_str(device).unwrap();
            assert_eq!(
                (json["driver"].as_str(), json["socket"]["type"].as_str()),
                (Some("vfio-user-pci"), Some("unix"))
            );
            json["socket"]["path"].as_str().unwrap().to_owned()
        };
        devices.map(socket).collect()
    }

    #[test]
    fn the_options_of_qemu_survive_a_shell() {
        let words = words(&attachment(Starter::Qemu).qemu());
        assert_eq!(words[..2], ["-m", "1G"]);
        assert!(words.iter().any(|w| w.contains("memory-backend-memfd") && w.contains("share=on")));
        assert_eq!(sockets(words.iter().map(String::as_str)), [SOCKET, "/tmp/b.memory"]);
    }

    #[test]
    fn the_line_of_virtme_ng_survives_two_shells() {
        let line = words(&attachment(Starter::VirtmeNg).virtme_ng());
        assert_eq!(line[..7], ["vng", "--memory", "1G", "--numa", "1G", "--append", "init_on_alloc=1"]);
        let options = words(line[7].strip_prefix("--qemu-opts=").unwrap());
        assert_eq!(line.len(), 8);
        assert_eq!(sockets(options.iter().map(String::as_str)), [SOCKET, "/tmp/b.memory"]);
    }

    #[test]
    fn the_elements_of_libvirt_are_xml_and_name_sockets_and_shared_memory() {
        let attachment = attachment(Starter::Libvirt);
        let domain = format!("<domain>{}</domain>", attachment.libvirt());
        let document = roxmltree::Document::parse(&domain).unwrap();
        let of = |name: &str, attribute: &str| {
            let elements = document.descendants().filter(|node| node.tag_name().name() == name);
            elements.map(|node| node.attribute(attribute).unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!((of("source", "type"), of("access", "mode")), (vec!["memfd".into()], vec!["shared".into()]));
        assert_eq!(sockets(of("arg", "value").iter().map(String::as_str)), [SOCKET, "/tmp/b.memory"]);
        let arg = document.descendants().find(|node| node.tag_name().name() == "arg").unwrap();
        assert_eq!(arg.tag_name().namespace(), Some("http://libvirt.org/schemas/domain/qemu/1.0"));
        // The same for what a port needs.
        let plug = attachment.plug();
        let (begin, end) = (plug.find("<qemu:override").unwrap(), plug.rfind('>').unwrap());
        let document = roxmltree::Document::parse(&plug[begin..=end]).unwrap();
        let property = document.descendants().find(|node| node.tag_name().name() == "property").unwrap();
        assert_eq!(property.attribute("name"), Some("pref64-reserve"));
        assert_eq!(property.attribute("value"), Some("34359738368"));
    }

    #[test]
    fn the_reservation_of_a_port_is_named_where_one_is_needed() {
        let mut attachment = attachment(Starter::Qemu);
        let text = attachment.to_string();
        assert!(text.starts_with("node 3 is ready.") && text.contains("pref64-reserve=32768M"), "{text}");
        // What the text recommends needs none.
        let words: Vec<_> = text.split_whitespace().collect();
        let given = |name: &str| words[words.iter().position(|word| *word == name).unwrap() + 1];
        let bits = |name| given(name).parse().unwrap();
        attachment.window = WindowLayout::new(bits("--node-bits"), bits("--offset-bits")).unwrap();
        attachment.contexts = given("--contexts").parse().unwrap();
        assert!(!attachment.to_string().contains("reserve"), "{attachment}");
    }
}
