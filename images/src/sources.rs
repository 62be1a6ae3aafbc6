// SPDX-License-Identifier: MIT OR Apache-2.0
//! Derives apt sources for any Debian release from the host's own: the same mirror, another suite. So no mirror's name
//! is written anywhere in this project, and a host that reaches Debian through its own mirror keeps using it.

use crate::{Error, Result};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// One source as the host's configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Base addresses, all equivalent.
    pub uris: Vec<String>,
    /// Suites or code names.
    pub suites: Vec<String>,
    /// Components such as `main`.
    pub components: Vec<String>,
    /// Keyring file, key fingerprints or key block, as written.
    pub signed_by: Option<String>,
    /// `Check-Valid-Until` and the like, as written; nothing that weakens the check of signatures is kept.
    pub checks: Vec<(String, String)>,
}

/// Names of options a derived source keeps.
const KEPT: [&str; 2] = ["check-valid-until", "check-date"];

/// Stanzas of `field: value` lines, the fields in lower case. Values keep their continued lines; lines with `#` are
/// comments.
pub(crate) fn stanzas(text: &str) -> Vec<Vec<(String, String)>> {
    let (mut all, mut stanza) = (Vec::new(), Vec::<(String, String)>::new());
    for line in text.lines().chain([""]).filter(|line| !line.starts_with('#')) {
        if line.trim().is_empty() {
            all.push(std::mem::take(&mut stanza));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((key, value)) = line.split_once(':') {
            stanza.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    all
}

/// Reads the deb822 form (`*.sources`). Disabled and source-only stanzas are left out.
pub fn parse_deb822(text: &str) -> Vec<Source> {
    stanzas(text).iter().filter_map(|stanza| deb822_source(stanza)).collect()
}

fn deb822_source(stanza: &[(String, String)]) -> Option<Source> {
    let get = |key: &str| stanza.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    let words = |key: &str| get(key).unwrap_or("").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let off = get("enabled").is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "no" | "false" | "0" | "off"));
    if off || !words("types").iter().any(|t| t == "deb") {
        return None;
    }
    Some(Source {
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        signed_by: get("signed-by").map(str::to_owned),
        checks: stanza.iter().filter(|(k, _)| KEPT.contains(&k.as_str())).cloned().collect(),
    })
}

/// Reads the one-line form (`*.list`).
pub fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines().filter_map(one_line_source).collect()
}

fn one_line_source(line: &str) -> Option<Source> {
    let line = line.split('#').next().unwrap_or("").trim();
    let mut rest = line.strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
    let mut source = Source::default();
    if let Some(inner) = rest.strip_prefix('[') {
        let (options, tail) = inner.split_once(']')?;
        for option in options.split_whitespace() {
            let (key, value) = option.split_once('=')?;
            let key = key.trim_end_matches(['+', '-']).to_ascii_lowercase();
            if key == "signed-by" {
                source.signed_by = Some(value.to_owned());
            } else if KEPT.contains(&key.as_str()) {
                source.checks.push((key, value.to_owned()));
            }
        }
        rest = tail;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    source.uris.push(words.next()?);
    source.suites.push(words.next()?);
    source.components.extend(words);
    Some(source)
}

/// A Debian release as this crate uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its name here and in a [`crate::Manifest`], for example `trixie-backports`.
    pub name: String,
    /// Suites of the main archive.
    pub suites: Vec<String>,
    /// Suite of the security archive.
    pub security: Option<String>,
    /// Suite to prefer whatever apt's priorities say: backports are at 100 by default.
    pub target: Option<String>,
}

impl Release {
    /// A release by name: a stable code name, `NAME-backports`, or `testing`.
    pub fn named(name: &str) -> Release {
        if name == "testing" {
            return Release { name: name.into(), suites: vec![name.into()], security: None, target: None };
        }
        let (code, target) = match name.strip_suffix("-backports") {
            Some(code) => (code, Some(name.to_owned())),
            None => (name, None),
        };
        let mut suites = vec![code.to_owned()];
        suites.extend(target.clone());
        Release { name: name.into(), suites, security: Some(format!("{code}-security")), target }
    }
}

/// What the host says about itself.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// `ID` of os-release.
    pub id: String,
    /// `VERSION_CODENAME` of os-release.
    pub codename: String,
    /// Every enabled binary source.
    pub sources: Vec<Source>,
    /// The keyring of all Debian releases, if the host has it.
    pub keyring: Option<PathBuf>,
    /// Where the sources were read, for messages.
    pub looked: String,
}

/// Releases that have a stable suite of their own by name; a host of any other is treated as `testing`.
const STABLE: [&str; 2] = ["bookworm", "trixie"];

impl Host {
    pub(crate) fn here() -> Result<Host> {
        Host::read(Path::new("/etc/os-release"), Path::new("/etc/apt"))
    }

    /// Reads os-release, the sources in `etc` (normally `/etc/apt`) and looks for the Debian keyring.
    pub fn read(os_release: &Path, etc: &Path) -> Result<Host> {
        let os = std::fs::read_to_string(os_release).map_err(Error::io("cannot read", os_release))?;
        let value = |key: &str| {
            os.lines()
                .find_map(|l| l.strip_prefix(key)?.strip_prefix('='))
                .map(|v| v.trim_matches(['"', '\'']).to_owned())
                .unwrap_or_default()
        };
        let mut files = vec![etc.join("sources.list")];
        if let Ok(dir) = std::fs::read_dir(etc.join("sources.list.d")) {
            let mut found: Vec<_> = dir.flatten().map(|e| e.path()).collect();
            found.sort();
            files.extend(found);
        }
        let mut sources = Vec::new();
        for file in &files {
            let Ok(text) = std::fs::read_to_string(file) else {
                continue;
            };
            match file.extension().and_then(|e| e.to_str()) {
                Some("sources") => sources.extend(parse_deb822(&text)),
                Some("list") => sources.extend(parse_one_line(&text)),
                _ => {}
            }
        }
        let keyring =
            ["/usr/share/keyrings/debian-archive-keyring.pgp", "/usr/share/keyrings/debian-archive-keyring.gpg"]
                .map(PathBuf::from)
                .into_iter()
                .find(|p| p.exists());
        Ok(Host {
            id: value("ID"),
            codename: value("VERSION_CODENAME"),
            sources,
            keyring,
            looked: etc.display().to_string(),
        })
    }

    pub fn release(&self) -> Release {
        let name = STABLE.iter().find(|s| **s == self.codename).copied().unwrap_or("testing");
        Release::named(name)
    }
}

/// An apt sources file in deb822 form, and the keyring it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    pub text: String,
    pub keyring: String,
}

/// Sources of `release` on the mirrors the host uses for Debian.
pub fn derive(host: &Host, release: &Release) -> Result<Derived> {
    let main = best(host, false).ok_or_else(|| Error::NoDebianSource {
        looked: host.looked.clone(),
        why: format!(
            "none of its {} enabled sources has a suite such as {} with the component main and Debian's own keys",
            host.sources.len(),
            if host.codename.is_empty() { "stable" } else { &host.codename },
        ),
    })?;
    let mut text = String::new();
    let keyring = stanza(&mut text, host, main, &release.suites);
    // Without a security source the main archive still has every release, only older.
    if let (Some(suite), Some(security)) = (&release.security, best(host, true)) {
        stanza(&mut text, host, security, std::slice::from_ref(suite));
    }
    Ok(Derived { text, keyring })
}

fn stanza(text: &mut String, host: &Host, from: &Source, suites: &[String]) -> String {
    let keyring =
        host.keyring.as_ref().map(|k| k.display().to_string()).or_else(|| from.signed_by.clone()).unwrap_or_default();
    let _ = writeln!(text, "Types: deb\nURIs: {}\nSuites: {}\nComponents: main", from.uris.join(" "), suites.join(" "));
    if !keyring.is_empty() {
        let _ = writeln!(text, "Signed-By: {keyring}");
    }
    for (key, value) in &from.checks {
        let _ = writeln!(text, "{key}: {value}");
    }
    text.push('\n');
    keyring
}

/// The host's best source of Debian's main or security archive. Other vendors also name suites after Debian's
/// releases, so a source signed by another key does not count, and one that looks like Debian's wins.
fn best(host: &Host, security: bool) -> Option<&Source> {
    const ALIASES: [&str; 5] = ["stable", "oldstable", "testing", "unstable", "sid"];
    // On another distribution its own code name and "stable" are not Debian's.
    let debian = host.id == "debian";
    let base = |suite: &str| {
        STABLE.contains(&suite) || suite == "forky" || (debian && (suite == host.codename || ALIASES.contains(&suite)))
    };
    let is_security = |s: &str| s.strip_suffix("-security").or_else(|| s.strip_suffix("/updates")).is_some_and(&base);
    let usable = host.sources.iter().filter(|source| {
        let wanted = source.suites.iter().any(|s| if security { is_security(s) } else { base(s) });
        let debian = source.signed_by.as_deref().is_none_or(|s| s.contains("debian-archive"));
        wanted && debian && source.components.iter().any(|c| c == "main") && !source.uris.is_empty()
    });
    // Debian's own archive has an "-updates" suite at the same address.
    let updates = |s: &Source| s.suites.iter().any(|s| s.strip_suffix("-updates").is_some_and(base));
    let ending = if security { "security" } else { "debian" };
    usable.min_by_key(|source| {
        let debians = updates(source) || host.sources.iter().any(|o| updates(o) && o.uris == source.uris);
        let named = source.uris.iter().any(|u| u.trim_end_matches('/').ends_with(ending));
        // What comes first counts most; of equals the first wins.
        std::cmp::Reverse((debians, source.signed_by.is_some(), named))
    })
}
