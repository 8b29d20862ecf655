//! Who may use the control socket.
//!
//! The kernel tells the peer's process, uid and effective gid (SO_PEERCRED, unix(7)). Further groups are those that
//! /etc/group gives the uid's name: the groups of the process itself are in /proc only, where a recycled process number
//! could lend one process the groups of another.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// What a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing.
    None,
    /// Ask.
    Read,
    /// Ask and change.
    Write,
}

/// The rule of the socket.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The daemon's own uid: always allowed, as is root.
    pub own_uid: u32,
    /// Members may change things.
    pub write_gid: Option<u32>,
    /// Members may ask.
    pub read_gid: Option<u32>,
    /// The account databases.
    pub accounts: Accounts,
}

/// Where /etc/passwd and /etc/group are.
#[derive(Clone, Debug)]
pub struct Accounts {
    passwd: PathBuf,
    group: PathBuf,
}

impl Default for Accounts {
    fn default() -> Self {
        Accounts { passwd: "/etc/passwd".into(), group: "/etc/group".into() }
    }
}

impl Accounts {
    /// Databases elsewhere (tests, chroots).
    pub fn at(passwd: &Path, group: &Path) -> Accounts {
        Accounts { passwd: passwd.into(), group: group.into() }
    }

    /// The gid of a group, by name or number.
    pub fn gid(&self, name: &str) -> Option<u32> {
        let found = self.groups().into_iter().find(|g| g.name == name).map(|g| g.gid);
        found.or_else(|| name.parse().ok())
    }

    /// uid and primary gid of a user, by name or number.
    pub fn user(&self, name: &str) -> Option<(u32, u32)> {
        let text = fs::read_to_string(&self.passwd).unwrap_or_default();
        let by_number = name.parse::<u32>().ok();
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (user, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            (user == name || by_number == Some(uid)).then_some((uid, gid))
        })
    }

    /// Whether /etc/group lists the user of this uid in the group.
    pub fn is_member(&self, uid: u32, gid: u32) -> bool {
        let text = fs::read_to_string(&self.passwd).unwrap_or_default();
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(':');
                let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
                (number.parse() == Ok(uid)).then_some(name)
            })
            .collect();
        let groups = self.groups();
        groups.iter().any(|g| g.gid == gid && g.members.iter().any(|m| names.contains(&m.as_str())))
    }

    fn groups(&self) -> Vec<Group> {
        let text = fs::read_to_string(&self.group).unwrap_or_default();
        let parse = |line: &str| {
            let mut fields = line.split(':');
            let (name, _, gid) = (fields.next()?.to_owned(), fields.next()?, fields.next()?.parse().ok()?);
            let members = fields.next().unwrap_or("").split(',').filter(|m| !m.is_empty());
            Some(Group { name, gid, members: members.map(str::to_owned).collect() })
        };
        text.lines().filter_map(parse).collect()
    }
}

struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

impl Policy {
    /// What a peer of this uid and effective gid may do.
    pub fn access(&self, uid: u32, gid: u32) -> Access {
        if uid == 0 || uid == self.own_uid {
            return Access::Write;
        }
        let member = |wanted: Option<u32>| wanted.is_some_and(|g| g == gid || self.accounts.is_member(uid, g));
        if member(self.write_gid) {
            Access::Write
        } else if member(self.read_gid) {
            Access::Read
        } else {
            Access::None
        }
    }

    /// The mode of the socket file: only its owner, its group, or everyone may connect (the check above decides then).
    pub fn socket_mode(&self) -> u32 {
        match (self.write_gid, self.read_gid) {
            (None, None) => 0o600,
            // One group: the kernel keeps everyone else away already.
            (Some(w), Some(r)) if w != r => 0o666,
            _ => 0o660,
        }
    }

    /// The group that the socket file gets.
    pub fn socket_gid(&self) -> Option<u32> {
        self.write_gid.or(self.read_gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(write: Option<u32>, read: Option<u32>) -> Policy {
        let dir = std::env::temp_dir().join(format!("ferrule-accounts-{}-{write:?}-{read:?}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (passwd, group) = (dir.join("passwd"), dir.join("group"));
        fs::write(&passwd, "root:x:0:0::/:\nann:x:1001:1001::/:\nbob:x:1002:1002::/:\nbad line\n").unwrap();
        fs::write(&group, "root:x:0:\nrouter:x:500:ann\nwatch:x:501:ann,bob\nodd:x:\n").unwrap();
        let accounts = Accounts::at(&passwd, &group);
        Policy { own_uid: 900, write_gid: write, read_gid: read, accounts }
    }

    #[test]
    fn groups_give_access_by_credential_and_by_membership() {
        let p = policy(Some(500), Some(501));
        assert_eq!(p.access(0, 0), Access::Write);
        assert_eq!(p.access(900, 900), Access::Write);
        assert_eq!(p.access(1001, 1001), Access::Write, "ann is in router by /etc/group");
        assert_eq!(p.access(1002, 1002), Access::Read, "bob is in watch");
        assert_eq!(p.access(1002, 500), Access::Write, "bob with newgrp router");
        assert_eq!(p.access(1003, 1003), Access::None);
        assert_eq!(p.access(4_000_000_000, 7), Access::None);
    }

    #[test]
    fn without_groups_only_root_and_the_daemon_itself() {
        let p = policy(None, None);
        assert_eq!((p.access(1001, 500), p.access(0, 5)), (Access::None, Access::Write));
        assert_eq!(p.socket_mode(), 0o600);
    }

    #[test]
    fn modes_follow_the_groups() {
        assert_eq!((policy(Some(5), None).socket_mode(), policy(None, Some(6)).socket_gid()), (0o660, Some(6)));
        assert_eq!((policy(Some(5), Some(6)).socket_mode(), policy(Some(5), Some(6)).socket_gid()), (0o666, Some(5)));
    }

    #[test]
    fn names_and_numbers_are_both_found() {
        let a = policy(None, Some(1)).accounts;
        assert_eq!((a.gid("watch"), a.gid("77"), a.gid("nobody")), (Some(501), Some(77), None));
        assert_eq!((a.user("bob"), a.user("1001"), a.user("eve")), (Some((1002, 1002)), Some((1001, 1001)), None));
    }
}
