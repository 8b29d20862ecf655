//! Our own nf_tables: the kernel must neither receive a NIC's packets beside us nor forward between ports.
//!
//! Two tables named `ferrule`: `netdev` with an ingress chain for each silenced NIC whose policy is drop, and `inet` with
//! a forward chain that drops what comes from and goes to a port. Both carry the owner flag (Linux 5.12): nobody else can
//! change or flush them, and the kernel removes them when our netlink socket closes, however we end. AF_PACKET sockets get
//! their copy before the ingress hook, XDP programs run before both; so the drop costs neither its packets.
//!
//! Raw nf_tables messages (linux/netfilter/nf_tables.h), so that no `nft` program is needed.
#![forbid(unsafe_code)]

use super::error::KernelError;
use super::socket::{Family, NetlinkSocket};
use super::wire::Message;
use std::collections::BTreeSet;
use std::io;

/// Name of both tables.
pub(crate) const TABLE: &str = "ferrule";

// linux/netfilter/nf_tables.h; the rest is in the libc crate.
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_OWNER: u32 = 2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_REG_1: u32 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFPROTO_INET: u8 = 1;
const NFPROTO_NETDEV: u8 = 5;
const HOOK_INGRESS: u32 = 0;
const HOOK_FORWARD: u32 = 2;
/// Before anything else that may hang there.
const PRIORITY: i32 = -1000;
/// Fixed size of interface names in registers.
const IFNAMSIZ: usize = 16;
const FORWARD: &str = "forward";
const TO_PORTS: &str = "to_ports";

/// Holds the tables; they vanish with it.
#[derive(Debug)]
pub struct KernelFilter {
    socket: NetlinkSocket,
    silenced: BTreeSet<String>,
    ports: BTreeSet<String>,
    forward_made: bool,
}

impl KernelFilter {
    /// Makes the empty `netdev` table, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`KernelError::Taken`] when another process owns the tables, [`KernelError::CannotSilence`] when the kernel cannot
    /// tie a table to its owner, [`KernelError::Capability`] without CAP_NET_ADMIN.
    pub fn open() -> Result<Self, KernelError> {
        let socket = NetlinkSocket::open(Family::Netfilter, 0, 0)
            .map_err(|error| KernelError::netlink("opening a NETLINK_NETFILTER socket", error))?;
        let mut filter =
            KernelFilter { socket, silenced: BTreeSet::new(), ports: BTreeSet::new(), forward_made: false };
        filter.make_table(NFPROTO_NETDEV)?;
        Ok(filter)
    }

    fn make_table(&mut self, family: u8) -> Result<(), KernelError> {
        let create = |filter: &mut Self| {
            let mut table = message(libc::NFT_MSG_NEWTABLE, family, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
            table.attribute_str(NFTA_TABLE_NAME, TABLE).attribute_be32(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
            filter.commit(vec![table])
        };
        let Err(first) = create(self) else { return Ok(()) };
        let code = first.raw_os_error();
        if code == Some(libc::EPERM) && !super::doctor::has_net_admin() {
            return Err(KernelError::netlink("making nf_tables rules", first));
        }
        if matches!(code, Some(libc::EEXIST | libc::EPERM)) {
            // One without owner is a leftover; one with an owner cannot be deleted by us and says so.
            let mut gone = message(libc::NFT_MSG_DELTABLE, family, 0);
            gone.attribute_str(NFTA_TABLE_NAME, TABLE);
            if self.commit(vec![gone]).is_ok() && create(self).is_ok() {
                return Ok(());
            }
            let why = "another process owns the nf_tables table `ferrule` (see: nft list tables); stop it first";
            return Err(KernelError::Taken { name: TABLE.to_owned(), why: why.to_owned() });
        }
        Err(KernelError::CannotSilence { device: "any device".to_owned(), why: first.to_string() })
    }

    /// Drops what the kernel would receive from the device of this name, from now on. The kernel ties the chain to the
    /// device on older versions and to the name on newer ones (6.16): after a rename silence the new name, too.
    ///
    /// # Errors
    /// [`KernelError::CannotSilence`].
    pub fn silence(&mut self, device: &str) -> Result<(), KernelError> {
        if self.silenced.contains(device) {
            return Ok(());
        }
        let mut chain = message(libc::NFT_MSG_NEWCHAIN, NFPROTO_NETDEV, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
        chain.attribute_str(NFTA_CHAIN_TABLE, TABLE).attribute_str(NFTA_CHAIN_NAME, &chain_name(device));
        chain.nest(NFTA_CHAIN_HOOK, |hook| {
            hook.attribute_be32(NFTA_HOOK_HOOKNUM, HOOK_INGRESS);
            hook.attribute_be32(NFTA_HOOK_PRIORITY, PRIORITY as u32);
            hook.attribute_str(NFTA_HOOK_DEV, device);
        });
        chain.attribute_str(NFTA_CHAIN_TYPE, "filter").attribute_be32(NFTA_CHAIN_POLICY, NF_DROP);
        self.commit(vec![chain])
            .map_err(|error| KernelError::CannotSilence { device: device.to_owned(), why: error.to_string() })?;
        self.silenced.insert(device.to_owned());
        Ok(())
    }

    /// Ends [`KernelFilter::silence`] for this name.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unsilence(&mut self, device: &str) -> Result<(), KernelError> {
        if !self.silenced.remove(device) {
            return Ok(());
        }
        let mut chain = message(libc::NFT_MSG_DELCHAIN, NFPROTO_NETDEV, 0);
        chain.attribute_str(NFTA_CHAIN_TABLE, TABLE).attribute_str(NFTA_CHAIN_NAME, &chain_name(device));
        match self.commit(vec![chain]) {
            // The chain went with its device.
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                Err(KernelError::netlink(format!("letting the kernel receive from {device} again"), error))
            }
            _ => Ok(()),
        }
    }

    /// Drops what the kernel would forward from one of these interfaces to another, in one transaction. The names are
    /// those of the ports' host interfaces; they need not exist yet.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_ports<S: AsRef<str>>(&mut self, names: impl IntoIterator<Item = S>) -> Result<(), KernelError> {
        let names: BTreeSet<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        if self.forward_made && names == self.ports {
            return Ok(());
        }
        if !self.forward_made {
            self.make_table(NFPROTO_INET)?;
        }
        let mut batch = Vec::new();
        if self.forward_made {
            for chain in [FORWARD, TO_PORTS] {
                let mut flush = message(libc::NFT_MSG_DELRULE, NFPROTO_INET, 0);
                flush.attribute_str(NFTA_RULE_TABLE, TABLE).attribute_str(NFTA_RULE_CHAIN, chain);
                batch.push(flush);
            }
        } else {
            let mut to_ports = message(libc::NFT_MSG_NEWCHAIN, NFPROTO_INET, libc::NLM_F_CREATE);
            to_ports.attribute_str(NFTA_CHAIN_TABLE, TABLE).attribute_str(NFTA_CHAIN_NAME, TO_PORTS);
            batch.push(to_ports);
            let mut forward = message(libc::NFT_MSG_NEWCHAIN, NFPROTO_INET, libc::NLM_F_CREATE);
            forward.attribute_str(NFTA_CHAIN_TABLE, TABLE).attribute_str(NFTA_CHAIN_NAME, FORWARD);
            forward.nest(NFTA_CHAIN_HOOK, |hook| {
                hook.attribute_be32(NFTA_HOOK_HOOKNUM, HOOK_FORWARD);
                hook.attribute_be32(NFTA_HOOK_PRIORITY, PRIORITY as u32);
            });
            forward.attribute_str(NFTA_CHAIN_TYPE, "filter").attribute_be32(NFTA_CHAIN_POLICY, NF_ACCEPT);
            batch.push(forward);
        }
        for name in &names {
            batch.push(rule(FORWARD, libc::NFT_META_IIFNAME as u32, name, Verdict::Jump(TO_PORTS)));
            batch.push(rule(TO_PORTS, libc::NFT_META_OIFNAME as u32, name, Verdict::Drop));
        }
        self.commit(batch)
            .map_err(|error| KernelError::netlink("keeping the kernel from forwarding between ports", error))?;
        self.forward_made = true;
        self.ports = names;
        Ok(())
    }

    /// Sends a batch as one transaction.
    fn commit(&mut self, messages: Vec<Message>) -> io::Result<()> {
        let boundary = |kind: i32| {
            // struct nfgenmsg: family (1), version (1), resource id (2, network order): which subsystem.
            let subsystem = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
            Message::new(kind as u16, 0, &[libc::AF_UNSPEC as u8, 0, subsystem[0], subsystem[1]])
        };
        let mut all = vec![boundary(libc::NFNL_MSG_BATCH_BEGIN)];
        all.extend(messages);
        all.push(boundary(libc::NFNL_MSG_BATCH_END));
        self.socket.transaction(all)
    }
}

enum Verdict<'a> {
    Drop,
    Jump(&'a str),
}

/// A rule that compares the name of the interface `key` with `name`, counts and gives `verdict`.
fn rule(chain: &str, key: u32, name: &str, verdict: Verdict<'_>) -> Message {
    let mut register = [0; IFNAMSIZ];
    let length = name.len().min(IFNAMSIZ - 1);
    register[..length].copy_from_slice(&name.as_bytes()[..length]);
    let mut rule = message(libc::NFT_MSG_NEWRULE, NFPROTO_INET, libc::NLM_F_CREATE | libc::NLM_F_APPEND);
    rule.attribute_str(NFTA_RULE_TABLE, TABLE).attribute_str(NFTA_RULE_CHAIN, chain);
    rule.nest(NFTA_RULE_EXPRESSIONS, |list| {
        expression(list, "meta", |data| {
            data.attribute_be32(NFTA_META_DREG, NFT_REG_1).attribute_be32(NFTA_META_KEY, key);
        });
        expression(list, "cmp", |data| {
            data.attribute_be32(NFTA_CMP_SREG, NFT_REG_1).attribute_be32(NFTA_CMP_OP, libc::NFT_CMP_EQ as u32);
            data.nest(NFTA_CMP_DATA, |value| {
                value.attribute(NFTA_DATA_VALUE, &register);
            });
        });
        expression(list, "counter", |_| {});
        expression(list, "immediate", |data| {
            data.attribute_be32(NFTA_IMMEDIATE_DREG, libc::NFT_REG_VERDICT as u32);
            data.nest(NFTA_IMMEDIATE_DATA, |value| {
                value.nest(NFTA_DATA_VERDICT, |code| match verdict {
                    Verdict::Drop => {
                        code.attribute_be32(NFTA_VERDICT_CODE, NF_DROP);
                    }
                    Verdict::Jump(target) => {
                        code.attribute_be32(NFTA_VERDICT_CODE, libc::NFT_JUMP as u32);
                        code.attribute_str(NFTA_VERDICT_CHAIN, target);
                    }
                });
            });
        });
    });
    rule
}

fn expression(list: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    list.nest(NFTA_LIST_ELEM, |element| {
        element.attribute_str(NFTA_EXPR_NAME, name);
        element.nest(NFTA_EXPR_DATA, fill);
    });
}

fn message(kind: i32, family: u8, flags: i32) -> Message {
    let kind = (libc::NFNL_SUBSYS_NFTABLES << 8 | kind) as u16;
    Message::new(kind, (flags | libc::NLM_F_ACK) as u16, &[family, 0, 0, 0])
}

fn chain_name(device: &str) -> String {
    format!("ingress_{device}")
}
