// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bare loop's device behind the server of the crate `vfio_user`.

use super::bare::{Function, IRQS, REGIONS, region_bytes};
use std::fs::File;
use std::io;
use std::path::Path;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

struct Backend(Function);

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read(region, offset, data);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(region, offset, data);
        Ok(())
    }

    fn dma_map(&mut self, _: DmaMapFlags, _: u64, _: u64, _: u64, _: Option<File>) -> io::Result<()> {
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_irqs(&mut self, _: u32, _: u32, _: u32, _: u32, _: Vec<File>) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn bind(path: &Path) -> io::Result<Server> {
    let irqs = (0..IRQS).map(|index| IrqInfo { index, flags: 1, count: 0 }).collect();
    let region = |index| {
        let mut region = ServerRegion { region_info: Default::default(), sparse_areas: Vec::new(), mmap_fd: None };
        let size = region_bytes(index);
        region.region_info.argsz = size_of_val(&region.region_info) as u32;
        region.region_info.index = index;
        region.region_info.flags = if size > 0 { 1 | 2 } else { 0 };
        region.region_info.size = size;
        region
    };
    Server::new(path, true, irqs, (0..REGIONS).map(region).collect()).map_err(io::Error::other)
}

/// Serves one QEMU after the other, for ever.
pub(super) fn serve(server: &Server) -> io::Result<()> {
    loop {
        match server.run(&mut Backend(Function::new())) {
            Err(vfio_user::Error::SocketAccept(e)) => return Err(e),
            Err(e) => eprintln!("the crate's loop: {e}"),
            Ok(()) => {}
        }
    }
}
