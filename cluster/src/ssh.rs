// SPDX-License-Identifier: MIT OR Apache-2.0
//! ssh between the nodes of a cluster, where their root has sshd: every node lets root and the user 1000 of all others
//! in. The keys are made here when the cluster boots, and are in the guests' memory alone.

use crate::guest::Guest;
use crate::{Error, ProgressMode, Result, interrupt};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use ssh_key::private::{Ed25519Keypair, Ed25519PrivateKey};
use ssh_key::public::Ed25519PublicKey;
use ssh_key::{LineEnding, PrivateKey};
use std::fmt::Write;
use std::time::Duration;
use telegraphos_agent::network::{SSH_KEYS, address};

/// In a guest: takes the files, of which its input has lines behind a word each, into the directory that is its first
/// argument, and starts sshd at the address that is the second. What ssh itself reads is there since the guest's start,
/// when no directory of the host was in the place of it.
const START: &str = r#"
[ -x /usr/sbin/sshd ] || exit 0
at=$1
mkdir -p $at/id $at/keys /run/sshd && cd $at || exit 1
sed -n -e 's/^known //w known_hosts' -e 's/^host //w host' -e 's/^id-0 //w id/0' -e 's/^id-1000 //w id/1000' \
	-e 's/^key-0 //w keys/0' -e 's/^key-1000 //w keys/1000' || exit 1
chmod 600 host id/* && chown 1000 id/1000 || exit 1
cat >sshd_config <<-end
	ListenAddress $2
	HostKey $at/host
	AuthorizedKeysFile $at/keys/%U
	PidFile $at/pid
	PasswordAuthentication no
	KbdInteractiveAuthentication no
	PermitRootLogin prohibit-password
	UsePAM no
	UseDNS no
	MaxStartups 100
	SetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/telegraphos-image/bin
	Subsystem sftp internal-sftp
end
exec /usr/sbin/sshd -f $at/sshd_config
"#;

/// Users that log in to the same user of another node.
const USERS: [u32; 2] = [0, 1000];
const LIMIT: Duration = Duration::from_secs(120);

/// Gives these guests keys, and starts sshd in those that have it. One in which that fails is named on stderr:
/// everything but ssh works there.
pub(crate) fn connect(guests: &[Guest], progress: ProgressMode) -> Result<()> {
    let names = guests.iter().map(|guest| guest.label().host_name());
    let keys = names.zip(0..).map(|(name, node)| Keys::of_node(node, name)).collect::<Result<Vec<_>>>()?;
    let public = keys.iter().map(Keys::public).collect::<Result<String>>()?;
    let start = |guest: &Guest, keys: &Keys| {
        let address = address(keys.node).to_string();
        let command = guest.argv(&["sh", "-c", START, "sh", SSH_KEYS, &address]).as_root();
        command.input(public.clone() + &keys.private()?).spawn()
    };
    let running: Vec<_> = guests.iter().zip(&keys).map(|(guest, keys)| (guest.label(), start(guest, keys))).collect();
    for (node, running) in running {
        let why = match running.and_then(|running| running.wait_for(LIMIT)) {
            Ok(output) if output.status.success() => continue,
            Ok(output) => format!("{}: {}", output.status, output.stderr.trim_end()),
            Err(e) => e.to_string(),
        };
        interrupt::check()?;
        if progress != ProgressMode::Silent {
            eprintln!("node {node} has no sshd for other nodes: {why}");
        }
    }
    Ok(())
}

/// The keys of a node: its own, and one for each user that logs in from it.
struct Keys {
    node: u16,
    name: String,
    host: Key,
    users: [(u32, Key); 2],
}

impl Keys {
    fn of_node(node: u16, name: String) -> Result<Keys> {
        Ok(Keys { node, name, host: Key::new()?, users: [(USERS[0], Key::new()?), (USERS[1], Key::new()?)] })
    }

    /// What all nodes have of it.
    fn public(&self) -> Result<String> {
        let Keys { node, name, .. } = self;
        let mut text = format!("known {name},{} {}\n", address(*node), self.host.public()?);
        for (user, key) in &self.users {
            let _ = writeln!(text, "key-{user} {} {name}", key.public()?);
        }
        Ok(text)
    }

    fn private(&self) -> Result<String> {
        let mut text = String::new();
        let mut add = |file: &str, key: &Key| -> Result<()> {
            key.private()?.lines().for_each(|line| text += &format!("{file} {line}\n"));
            Ok(())
        };
        add("host", &self.host)?;
        self.users.iter().try_for_each(|(user, key)| add(&format!("id-{user}"), key))?;
        Ok(text)
    }
}

struct Key(PrivateKey);

impl Key {
    fn new() -> Result<Key> {
        let mut seed = [0; 32];
        let failed = || Error::Usage("the system has no random numbers for the keys of ssh".into());
        SystemRandom::new().fill(&mut seed).map_err(|_| failed())?;
        Key::of_seed(&seed).ok_or_else(failed)
    }

    fn of_seed(seed: &[u8; 32]) -> Option<Key> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public = Ed25519PublicKey(pair.public_key().as_ref().try_into().ok()?);
        let pair = Ed25519Keypair { public, private: Ed25519PrivateKey::from_bytes(seed) };
        Some(Key(PrivateKey::new(pair.into(), "").ok()?))
    }

    /// As in `known_hosts` and `authorized_keys`.
    fn public(&self) -> Result<String> {
        self.0.public_key().to_openssh().map_err(not_written)
    }

    /// As in OpenSSH's files, without a passphrase.
    fn private(&self) -> Result<String> {
        Ok(self.0.to_openssh(LineEnding::LF).map_err(not_written)?.to_string())
    }
}

fn not_written(e: ssh_key::Error) -> Error {
    Error::Usage(format!("a key of ssh: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, section 7.1, test 1.
    #[test]
    fn keys_are_those_of_their_seeds() {
        let of_hex = |text: &str| -> [u8; 32] {
            std::array::from_fn(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap())
        };
        let seed = of_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = of_hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let key = Key::of_seed(&seed).unwrap();
        assert_eq!(key.0.public_key().key_data().ed25519().unwrap().0, public);
        assert!(key.public().unwrap().starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"));
        assert_ne!(Key::new().unwrap().public().unwrap(), Key::new().unwrap().public().unwrap());
    }

    #[test]
    fn a_node_gets_its_own_private_keys_and_all_public_ones() {
        let keys = Keys::of_node(2, "node2".into()).unwrap();
        let public = keys.public().unwrap();
        assert!(public.starts_with("known node2,10.84.0.3 ssh-ed25519 AAAA"), "{public}");
        assert!(public.contains("\nkey-0 ssh-ed25519 AAAA") && public.contains("\nkey-1000 ssh-ed25519 AAAA"));
        let private = keys.private().unwrap();
        for file in ["host", "id-0", "id-1000"] {
            assert_eq!(private.matches(&format!("{file} -----BEGIN OPENSSH PRIVATE KEY-----\n")).count(), 1);
            assert_eq!(private.matches(&format!("{file} -----END OPENSSH PRIVATE KEY-----\n")).count(), 1);
        }
        assert!(!public.contains("PRIVATE"));
    }
}
