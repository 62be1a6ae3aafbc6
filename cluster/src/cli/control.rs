// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which fabric `ctl` and `top` talk to.

use crate::{Error, Result, rundir};
use std::path::{Path, PathBuf};
use telegraphos_fabric::control::ControlClient;

/// The control socket of a command: the one named, or that of the one cluster of this user that runs on this machine.
pub(super) fn socket(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) => Ok(path.to_owned()),
        None => only(rundir::control_sockets(&rundir::usual_parents())),
    }
}

fn only(mut found: Vec<PathBuf>) -> Result<PathBuf> {
    found.sort();
    match &found[..] {
        [] => Err(Error::NoFabric(
            "no cluster of this user runs here: start one (telegraphos up), or name the control socket of a fabric with \
             --control"
                .into(),
        )),
        [one] => Ok(one.clone()),
        several => {
            let list: String = several.iter().map(|path| format!("\n  --control {}", path.display())).collect();
            Err(Error::Usage(format!("{} clusters run here: choose one of{list}", several.len())))
        }
    }
}

pub(super) fn connect(named: Option<&Path>) -> Result<ControlClient> {
    Ok(ControlClient::connect(&socket(named)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_running_cluster_is_found_and_of_several_one_must_be_chosen() {
        let error = only(Vec::new()).unwrap_err();
        assert!(error.exit_code() == 3 && error.to_string().contains("telegraphos up"), "{error}");
        assert_eq!(only(vec!["/a".into()]).unwrap(), Path::new("/a"));
        let error = only(vec!["/b".into(), "/a".into()]).unwrap_err();
        assert_eq!(
            (error.exit_code(), error.to_string().as_str()),
            (2, "2 clusters run here: choose one of\n  --control /a\n  --control /b")
        );
    }
}
