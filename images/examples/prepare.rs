// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fills the cache and says what is in it:
//! `prepare [qemu|tshark|rust|pci-ids|root ROOT|KERNEL|linux-source SERIES|module SERIES|check SERIES|refresh] ...`, by
//! default QEMU and the default kernel's guest.
use std::process::ExitCode;
use std::time::Instant;
use telegraphos_images::{BootOptions, KernelChoice, KernelSeries, Machine, Progress, Result, Store, TCG, kvm_usable};

fn run() -> Result<bool> {
    let store = Store::open(None, Progress::Auto)?;
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        words = vec!["qemu".into(), KernelSeries::default().to_string()];
    }
    let mut clean = true;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let begun = Instant::now();
        match word.as_str() {
            "qemu" => {
                let qemu = store.qemu()?;
                print!("{}", qemu.manifest);
                println!("{:?}\nKVM: {:?}", qemu.command(), kvm_usable());
            }
            "tshark" => {
                let tshark = store.tshark()?;
                print!("{}", tshark.manifest);
                println!("{:?}", tshark.command());
            }
            // The first line is the path of its cargo, for `.ci/run`.
            "rust" => {
                let rust = store.oldest_rust()?;
                println!("{}", rust.cargo.display());
                print!("{}", rust.manifest);
            }
            "pci-ids" => println!("{}", store.pci_ids()?.display()),
            "module" => {
                let series = words.next().map_or(Ok(KernelSeries::default()), |w| w.parse())?;
                println!("{:?}", store.module(series)?);
            }
            // The first line is its directory, for scripts in `ci`.
            "root" => {
                let root = Some(words.next().map_or("debian", String::as_str).parse()?);
                let guest = store.guest(BootOptions { root, ..BootOptions::default() })?;
                guest.directories.iter().for_each(|directory| println!("{}", directory.host.display()));
            }
            // The first line is the archive's path, for `.ci/run`.
            "linux-source" => {
                let series = words.next().map_or(Ok(KernelSeries::default()), |w| w.parse())?;
                let source = store.linux_source(series)?;
                println!("{}", source.archive.display());
                print!("{}", source.manifest);
            }
            "refresh" => store.refresh()?,
            "check" => {
                let series = words.next().map_or(Ok(KernelSeries::default()), |w| w.parse())?;
                for report in [store.check_style()?, store.check_module(series)?] {
                    println!("{report}");
                    clean &= report.is_clean();
                }
            }
            kernel => {
                let kernel = kernel.parse::<KernelChoice>()?;
                let guest = store.guest(BootOptions { kernel, ..BootOptions::default() })?;
                print!("{}", guest.manifest);
                println!("{}\n{}", guest.kernel.display(), guest.root.display());
                println!("{:?}", guest.qemu_args(Machine::default(), TCG, ""));
            }
        }
        println!("# {word}: {:.2} s", begun.elapsed().as_secs_f64());
    }
    Ok(clean)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}
