// SPDX-License-Identifier: MIT OR Apache-2.0
//! What guests boot from.

use crate::settings::Settings;
use crate::{ProgressMode, Result, interrupt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use telegraphos_images::{Guest as Image, Manifest, Qemu, Store};

/// What guests boot from: see [`prepare`].
#[derive(Clone, Debug)]
pub struct Prepared {
    pub qemu: Qemu,
    /// Kernels and root file systems, of those nodes that differ.
    images: Vec<Image>,
    /// Which of them a node has.
    of_nodes: Vec<usize>,
}

impl Prepared {
    /// Everything that was used.
    pub fn manifest(&self) -> Manifest {
        let mut manifest = self.qemu.manifest.clone();
        self.images.iter().for_each(|image| manifest.merge(&image.manifest));
        manifest
    }

    /// What a node boots from.
    pub(crate) fn image(&self, node: usize) -> &Image {
        &self.images[self.of_nodes[node]]
    }
}

/// Finds or fetches QEMU and builds the guest image. Everything is cached.
pub fn prepare(settings: &Settings, progress: ProgressMode) -> Result<Prepared> {
    settings.check()?;
    let store = Store::open(settings.cache.clone(), progress)?;
    interrupt::forward(store.cancel_flag());
    interrupt::check()?;
    // A first build of the guests' programs takes as long as all that is fetched, and needs none of it.
    let (first, stop) = (settings.of_node(0).boot_options(), Arc::default());
    std::thread::scope(|scope| {
        scope.spawn(|| store.build_ahead(first.programs, &stop));
        let prepared = prepare_from(&store, settings, progress);
        stop.store(prepared.is_err(), Ordering::Relaxed);
        prepared
    })
}

fn prepare_from(store: &Store, settings: &Settings, progress: ProgressMode) -> Result<Prepared> {
    let qemu = match &settings.qemu {
        Some(path) => store.qemu_at(path.clone())?,
        None => store.qemu()?,
    };
    let (mut all, mut images, mut of_nodes) = (Vec::new(), Vec::new(), Vec::new());
    for node in 0..settings.node_count() {
        let options = settings.of_node(node).boot_options();
        if let Some(same) = all.iter().position(|other| *other == options) {
            of_nodes.push(same);
            continue;
        }
        let image = store.guest(options.clone())?;
        if let (Some(why), false) = (&image.without_driver, progress == ProgressMode::Silent) {
            match settings.node.len() {
                0 => eprintln!("the guests have no driver: {why}"),
                _ => eprintln!("node {} and those like it have no driver: {why}", settings.label(node)),
            }
        }
        of_nodes.push(images.len());
        all.push(options);
        images.push(image);
    }
    Ok(Prepared { qemu, images, of_nodes })
}
