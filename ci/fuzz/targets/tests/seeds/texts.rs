// SPDX-License-Identifier: MIT OR Apache-2.0
//! TOML files of each sort.

const TOPOLOGY: &str = r#"nodes = 16
layers = 4

[[switch]]
name = "west-1"
nodes = "0-5,9"
process = "west"

[[switch]]
name = "west-2"
nodes = "6-8"
process = "west"

[[switch]]
name = "east-1"
nodes = "10-15"
process = "east"

[[trunk]]
between = ["west-1", "west-2"]

[[trunk]]
between = ["west-2", "east-1"]
at = "udp:10.0.0.1:7001"

[[trunk]]
between = ["east-1", "west-1"]
at = "quic:10.0.0.2:7002"
from = "10.0.0.1"
"#;

const FABRIC: &str = r#"listen = "fabric.sock"
nodes = 9
node-bits = 4
offset-bits = 24
credits = 64
reply-limit = 512
topology = "torus:3x3"
fault = ["node:3=rate=1MB/s", "*=latency=2ms loss=5% corrupt=1%"]
seed = 7
capture = "out.pcapng"
capture-limit = 1000000
silence-ms = 2000
stall-ms = 0
metrics = "9100"
log = "debug"
log-format = "json"
"#;

const HIB: &str = r#"socket = "hib.sock"
node = 3
fabric = "fabric.sock"
node-bits = 4
offset-bits = 24
load-limit-ms = 500
outstanding = 16
congest-at = 512
clear-at = 128
copies-limit-mib = 256
credits = 128
contexts = 64
msix = false
server = "own"
"#;

const CLUSTER: &str = r#"nodes = 4
kernel = "6.12"
memory = "256M"
cpus = 2
accel = "tcg"
boot-timeout = 120

[hib]
load-limit-ms = 500

[fabric]
topology = "mesh:2x2"
"#;

const FAULTS: &str = r#"[[event]]
at = "5s"
link = "trunk:west-2-east-1"
set = "down"

[[event]]
at = "6500ms"
link = ["node:1", "node:2"]
set = "loss=10% duplicate=1%"

[[event]]
at = "8s"
link = "*"
clear = true
"#;

pub(super) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let regular = "topology = \"torus:4x4\"\nnodes = 16\n";
    let all = [
        ("topology.toml", TOPOLOGY),
        ("regular.toml", regular),
        ("fabric.toml", FABRIC),
        ("hib.toml", HIB),
        ("cluster.toml", CLUSTER),
        ("schedule.toml", FAULTS),
    ];
    all.into_iter().map(|(name, text)| (name, text.as_bytes().to_vec())).collect()
}
