// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards that are plugged into ports as QEMU makes them by default: with 2 MiB of prefetchable addresses.

use crate::help::{both_ways, plug, within};
use crate::settings;
use anyhow::{Context, Result, ensure};
use telegraphos_cluster::{Builder, Cluster, Guest};

/// A port without a reservation.
const DEFAULT_PORT: &str = "default-port";

/// Guests whose board can be plugged into such a port, too.
fn with_default_ports(builder: Builder, name: &str) -> Result<Cluster> {
    let port = format!("pcie-root-port,id={DEFAULT_PORT},chassis=2,slot=2");
    let builder = builder.each(|node| node.qemu_options.extend(["-device".into(), port.into()]));
    Ok(builder.settings(settings(name)).boot()?)
}

fn kernel_says(guest: &Guest, what: &str) -> Result<()> {
    within(|| {
        let log = guest.dmesg()?;
        ensure!(log.contains(what), "the kernel log does not have {what:?}:\n{log}");
        Ok(())
    })
}

/// The board with its default window finds no addresses behind such a port. The driver says what the port needs; with
/// that, behind the port that has it, the board works.
pub(crate) fn default_port_is_too_small_and_the_driver_says_the_remedy() -> Result<()> {
    let cluster = with_default_ports(Cluster::builder().nodes(2), "default-ports")?;
    let (a, b) = (cluster.node(0), cluster.node(1));
    a.device_del()?;
    a.device_add_behind(DEFAULT_PORT)?;
    // What `telegraphos-hib` prints, too.
    kernel_says(a, "pref64-reserve=32768M")?;
    kernel_says(a, "--node-bits 3 --offset-bits 16 --contexts 16")?;
    ensure!(!a.sh("ls /dev/telegraphos*").run()?.status.success(), "a board without addresses has a device file");
    a.device_del()?;
    plug(a)?;
    both_ways(a, b).context("behind the port with the reservation that the driver asked for")
}

/// The smaller window that the driver names as the other remedy fits.
pub(crate) fn default_port_fits_a_small_window() -> Result<()> {
    let small = [("node-bits", "3"), ("offset-bits", "16"), ("contexts", "16")];
    let builder =
        small.iter().fold(Cluster::builder().nodes(2), |builder, (name, value)| builder.hib_option(name, value));
    let cluster = with_default_ports(builder, "small-windows")?;
    let (a, b) = (cluster.node(0), cluster.node(1));
    both_ways(a, b).context("before it is unplugged")?;
    for _ in 0..2 {
        a.device_del()?;
        a.device_add_behind(DEFAULT_PORT)?;
        a.wait_for_device()?;
        both_ways(a, b)?;
    }
    Ok(())
}
