// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI identity. Vendor `7e1e` is unassigned in the public PCI id list (the system test `pci_vendor_is_unassigned`
//! looks it up in Debian's `pci.ids`); it reads "tele".

c_consts! {
    /// PCI constants for the C header.
    pub ALL: u32, prefix "TG_PCI_" {
        /// PCI vendor id.
        VENDOR_ID = 0x7e1e,
        /// PCI device id of the NIC (the HIB itself).
        DEVICE_ID_NIC = 0x0001,
        /// PCI device id of the memory device (direct aperture).
        DEVICE_ID_MEMORY = 0x0002,
        /// Subsystem vendor id.
        SUBSYSTEM_VENDOR_ID = 0x7e1e,
        /// Subsystem id.
        SUBSYSTEM_ID = 0x0001,
        /// Revision of the register interface.
        REVISION = 1,
        /// Class code: network controller, other.
        CLASS = 0x028000,
        /// Class code of the memory device: memory controller, RAM.
        CLASS_MEMORY = 0x050000,
    }
}
