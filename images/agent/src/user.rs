// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users of a guest.

use rustix::process::{DumpableBehavior, Gid, Uid};
use std::io;

/// What /etc/passwd and /etc/group say about a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its home directory; `/` if it has none.
    pub home: String,
    pub groups: Vec<u32>,
}

impl Account {
    /// The account of a user id; it need not have one.
    pub fn of(uid: u32) -> Account {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        Account::parse(uid, &text("/etc/passwd"), &text("/etc/group"))
    }

    /// What a process of this account has as its ids.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the greatest number, which system calls take for "as before": for root.
    pub fn ids(&self, uid: u32, gid: u32) -> io::Result<Ids> {
        let groups: Vec<u32> = self.groups.iter().copied().chain([gid]).collect();
        if uid == u32::MAX || groups.contains(&u32::MAX) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let groups = groups.into_iter().map(Gid::from_raw).collect();
        Ok(Ids { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid), groups })
    }

    fn parse(uid: u32, passwd: &str, group: &str) -> Account {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let entry = passwd.lines().map(fields).find(|f| f.get(2).and_then(|u| u.parse().ok()) == Some(uid));
        let field = |n: usize, or: &str| entry.as_ref().and_then(|f| f.get(n)).map_or(or, String::as_str).to_owned();
        let (name, home) = (field(0, ""), field(5, "/"));
        let groups = group
            .lines()
            .map(fields)
            .filter(|f| !name.is_empty() && f.get(3).is_some_and(|m| m.split(',').any(|m| m == name)))
            .filter_map(|f| f.get(2)?.parse().ok())
            .collect();
        Account { name, home, groups }
    }
}

/// User, group and supplementary groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Ids {
    /// Gives them to this thread, which is root's: for the child of a fork, which has no other
    /// ([`Child`](crate::child::Child)). It makes system calls only, allocates nothing and takes no lock.
    ///
    /// At no time can the user read the memory of the process, which is a copy of root's, nor have it dumped: the
    /// effective user changes first, which makes the process what `fs.suid_dumpable` says; then it is made not
    /// dumpable; and only then are all of its ids the user's, which changes that no more. Until it executes a program.
    ///
    /// Not by `Command::uid`, which drops all supplementary groups and cannot set others.
    pub fn assume(&self) -> io::Result<()> {
        rustix::thread::set_thread_groups(&self.groups)?;
        rustix::thread::set_thread_gid(self.gid)?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, self.uid, Uid::ROOT)?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        rustix::thread::set_thread_res_uid(self.uid, self.uid, self.uid)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn supplementary_groups_are_those_of_etc_group() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\ntg:x:1000:1000::/home/tg:/bin/sh\n";
        let group = "root:x:0:\ntelegraphos:x:990:other,tg\nmore:x:7:tgx\ntg:x:1000:\n";
        let user = Account::parse(1000, passwd, group);
        assert_eq!((user.name.as_str(), user.home.as_str()), ("tg", "/home/tg"));
        assert_eq!(user.groups, [990]);
        let other = Account::parse(5, passwd, group);
        assert!(other.groups.is_empty());
        assert_eq!(other.home, "/");
        for (uid, gid) in [(u32::MAX, 5), (5, u32::MAX)] {
            assert_eq!(other.ids(uid, gid).unwrap_err().raw_os_error(), Some(22));
        }
    }
}
