// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a capture says of itself, as TOML in the comment of its section header: with it a replay builds the same switches.

use serde::{Deserialize, Serialize};
use switch_core::{ConfigError, SwitchConfig};
use telegraphos_wire::WindowLayout;

use crate::SwitchId;

/// The first line of the comment.
pub(crate) const TITLE: &str = "# Capture of a Telegraphos fabric; `telegraphos replay` needs these lines.\n";
/// Version of the whole: of this text, of the records and of what the interfaces mean.
pub(crate) const FORMAT: u32 = 1;

/// The text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Header {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// Microseconds since 1970 of the fabric's time 0.
    pub(crate) epoch: i64,
    /// The links that were asked for; none means all.
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
    base_incarnation: u32,
}

impl RecordedSwitch {
    pub(crate) fn of(id: SwitchId, config: &SwitchConfig) -> RecordedSwitch {
        RecordedSwitch {
            id,
            nodes: config.nodes,
            window: config.window.map(|w| [w.node_bits, w.offset_bits]),
            credits: config.credits,
            reply_limit: config.reply_limit,
            base_incarnation: config.base_incarnation,
        }
    }

    /// The configuration again.
    pub(crate) fn config(&self) -> Result<SwitchConfig, ConfigError> {
        let mut config = SwitchConfig::new(self.nodes);
        let window = |[node_bits, offset_bits]: [u8; 2]| WindowLayout::new(node_bits, offset_bits);
        config.window = self.window.map(window).transpose().map_err(ConfigError::Window)?;
        config.credits = self.credits;
        config.reply_limit = self.reply_limit;
        config.base_incarnation = self.base_incarnation;
        Ok(config)
    }
}

impl Header {
    /// The comment.
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
        let plain = SwitchConfig::new(64);
        let switch = vec![RecordedSwitch::of(3, &config), RecordedSwitch::of(4, &plain)];
        let header = Header { format: FORMAT, epoch: -5, links: vec!["node 3".into()], switch };
        let again: Header = toml::from_str(&header.to_text().unwrap()).unwrap();
        assert_eq!(again, header);
        for (recorded, config) in again.switch.iter().zip([config, plain]) {
            assert_eq!(format!("{:?}", recorded.config().unwrap()), format!("{config:?}"));
        }
    }
}
