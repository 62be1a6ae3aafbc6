// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes `lspci -nvvv` of one device comparable between boots and kernels.

/// The listing without values that depend on where firmware and kernel put the device: addresses, interrupt numbers,
/// the IOMMU group.
pub fn normalise(listing: &str) -> String {
    let mut out = String::new();
    for line in listing.trim_end().lines() {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for i in 0..words.len() {
            let after = i.checked_sub(1).map(|p| words[p].clone()).unwrap_or_default();
            let trimmed = after.trim_start();
            if trimmed == "at" && is_hex(&words[i]) {
                words[i] = "ADDRESS".into();
            } else if trimmed == "IRQ" || (trimmed == "group" && line.contains("IOMMU")) {
                words[i] = "N".into();
            } else if trimmed == "Address:" || trimmed == "Data:" {
                words[i] = "X".into();
            }
        }
        let mut line = words.join(" ").trim_end().to_owned();
        // The first line begins with the slot.
        if out.is_empty() {
            if let Some((_slot, rest)) = line.split_once(' ') {
                line = format!("SLOT {rest}");
            }
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn is_hex(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_moves_is_replaced() {
        let text = "01:00.0 0280: 7e1e:0001 (rev 01)\n\tControl: I/O- Mem+\n\tLatency: 0\n\tInterrupt: pin A routed to IRQ 24\n\t\
                    Region 0: Memory at 6000000000 (64-bit, prefetchable) [size=16K]\n\tCapabilities: [50] MSI: Enable+ \
                    Count=1/1 Maskable- 64bit+\n\t\tAddress: 00000000fee01000  Data: 0022\n\tKernel driver in use: \
                    telegraphos\n\n";
        let want = "SLOT 0280: 7e1e:0001 (rev 01)\n\tControl: I/O- Mem+\n\tLatency: 0\n\tInterrupt: pin A routed to IRQ N\n\t\
                    Region 0: Memory at ADDRESS (64-bit, prefetchable) [size=16K]\n\tCapabilities: [50] MSI: Enable+ \
                    Count=1/1 Maskable- 64bit+\n\t\tAddress: X  Data: X\n\tKernel driver in use: telegraphos\n";
        assert_eq!(normalise(text), want);
    }
}
