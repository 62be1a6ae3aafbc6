// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a capture says of itself, as TOML in the comment of its section header: with it a replay builds the same
//! switches.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use telegraphos_accounts::Rate;
use telegraphos_fabric_core::{Part, SwitchConfig};
use telegraphos_topology::{Plan, Topology};
use telegraphos_wire::WindowLayout;

use crate::SwitchId;

/// The first line of the comment.
pub(crate) const TITLE: &str = "# Capture of a Telegraphos fabric; `telegraphos replay` needs these lines.\n";
/// Version of the whole: of this text, of the records and of what the interfaces mean.
pub(crate) const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Header {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// Microseconds since 1970 of the fabric's time 0.
    pub(crate) epoch: i64,
    /// The switches had handled events before.
    #[serde(default)]
    pub(crate) late: bool,
    /// The topology that the switches are part of, as a file of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topology: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The links to capture; none means all.
    #[serde(default)]
    pub(crate) links: Vec<String>,
    /// The switches of the process.
    pub(crate) switch: Vec<RecordedSwitch>,
}

/// The configuration of one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct RecordedSwitch {
    pub(crate) id: SwitchId,
    nodes: u32,
    /// node-bits, offset-bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<[u8; 2]>,
    credits: [u32; 4],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_limit: Option<u32>,
    base_incarnation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    silence: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stall: Option<u64>,
    /// Per second, at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    presence_rate: Option<[u32; 2]>,
}

impl RecordedSwitch {
    /// The recorded part of a switch's configuration.
    pub(crate) fn of(id: SwitchId, config: &SwitchConfig) -> RecordedSwitch {
        RecordedSwitch {
            id,
            nodes: config.nodes,
            window: config.window.map(|w| [w.node_bits, w.offset_bits]),
            credits: config.credits,
            reply_limit: config.reply_limit,
            base_incarnation: config.base_incarnation,
            silence: config.silence,
            stall: config.stall,
            presence_rate: config.presence_rate.map(|rate| [rate.per_second(), rate.burst()]),
        }
    }

    pub(crate) fn config(&self, topology: Option<&Arc<Topology>>) -> Result<SwitchConfig, String> {
        let mut config = SwitchConfig::new(self.nodes);
        config.part = topology.map(|topology| Part { topology: Arc::clone(topology), switch: self.id });
        let window = |[node_bits, offset_bits]: [u8; 2]| WindowLayout::new(node_bits, offset_bits);
        config.window = self.window.map(window).transpose().map_err(|e| e.to_string())?;
        config.silence = self.silence;
        config.stall = self.stall;
        config.presence_rate = self.presence_rate.map(|[per_second, burst]| Rate::new(per_second, burst));
        config.credits = self.credits;
        config.reply_limit = self.reply_limit;
        config.base_incarnation = self.base_incarnation;
        Ok(config)
    }
}

impl Header {
    /// Of switches, which have one topology.
    pub(crate) fn new(epoch: i64, links: Vec<String>, late: bool, switches: &[(SwitchId, &SwitchConfig)]) -> Header {
        let topology = switches.iter().find_map(|(_, config)| config.part.as_ref()).map(|part| &part.topology);
        Header {
            format: FORMAT,
            epoch,
            late,
            topology: topology.map(|topology| topology.to_toml()),
            digest: topology.map(|topology| format!("{:#x}", topology.digest())),
            links,
            switch: switches.iter().map(|(id, config)| RecordedSwitch::of(*id, config)).collect(),
        }
    }

    /// The configuration of each switch again, or what is wrong with it.
    pub(crate) fn configs(&self) -> Result<Vec<(SwitchId, SwitchConfig)>, String> {
        let topology = match &self.topology {
            None => None,
            Some(text) => {
                let topology = Plan::from_toml(text).map_err(|e| format!("the topology: {e}"))?.topology;
                let digest = format!("{:#x}", topology.digest());
                if self.digest.as_ref() != Some(&digest) {
                    return Err(format!(
                        "the topology has the digest {digest}: expected {}; this version routes otherwise than the one that captured",
                        self.digest.as_deref().unwrap_or("one")
                    ));
                }
                Some(Arc::new(topology))
            }
        };
        let config = |recorded: &RecordedSwitch| {
            let config = recorded.config(topology.as_ref()).map_err(|e| format!("switch {}: {e}", recorded.id))?;
            Ok((recorded.id, config))
        };
        self.switch.iter().map(config).collect()
    }

    pub(crate) fn to_text(&self) -> Result<String, toml::ser::Error> {
        Ok(format!("{TITLE}{}", toml::to_string(self)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_comes_back_from_the_text() {
        let mut config = SwitchConfig::new(9);
        config.credits = [1, 2, 3, 4];
        config.reply_limit = Some(77);
        config.base_incarnation = 0x5000;
        config.window = Some(WindowLayout::new(4, 20).unwrap());
        config.silence = Some(1_000_000);
        config.stall = Some(7);
        let mut other = config.clone();
        let topology = Arc::new(Topology::parse_flag("torus:3x2", 9).unwrap());
        config.part = Some(Part { topology: Arc::clone(&topology), switch: 3 });
        other.part = Some(Part { topology, switch: 4 });
        let plain = SwitchConfig::new(64);
        for switches in [vec![(3, &config), (4, &other)], vec![(0, &plain)]] {
            let header = Header::new(-5, vec!["node 3".into()], true, &switches);
            let again: Header = toml::from_str(&header.to_text().unwrap()).unwrap();
            assert_eq!(again, header);
            for ((id, recorded), (expected, config)) in again.configs().unwrap().iter().zip(switches) {
                assert_eq!(*id, expected);
                // The one for tests, not recorded: a function has an address in each unit of the compiler.
                let recorded = SwitchConfig { class_of: config.class_of, ..recorded.clone() };
                assert_eq!(format!("{recorded:?}"), format!("{config:?}"));
            }
        }
        let mut wrong = Header::new(0, Vec::new(), false, &[(3, &config)]);
        wrong.digest = Some("0x5".into());
        let error = wrong.configs().unwrap_err();
        assert!(error.contains("expected 0x5"), "{error}");
    }
}
