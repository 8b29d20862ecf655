//! What ethtool(8) shows, over generic netlink: queue counts, offloads, and what XDP a driver can do
//! (Documentation/networking/ethtool-netlink.rst, Documentation/netlink/specs/netdev.yaml).
#![forbid(unsafe_code)]

use super::error::KernelError;
use super::socket::{Family, NetlinkSocket};
use super::wire::{Attributes, Message, text, u16_at};
use std::collections::BTreeSet;
use std::io;

const GENL_HEADER: usize = 4;
// ethtool messages and attributes (linux/ethtool_netlink.h).
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const ETHTOOL_A_CHANNELS_RX_MAX: u16 = 2;
// netdev messages and attributes (linux/netdev.h).
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;

/// Queues of a device: now and at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Channels {
    /// Receive-only queues.
    pub receive: u32,
    /// Transmit-only queues.
    pub transmit: u32,
    /// Queues of both kinds together.
    pub combined: u32,
    /// Limit of `receive`.
    pub receive_max: u32,
    /// Limit of `transmit`.
    pub transmit_max: u32,
    /// Limit of `combined`.
    pub combined_max: u32,
}

impl Channels {
    /// Queues that packets arrive on: each needs a reader.
    pub fn receive_queues(&self) -> u32 {
        self.receive + self.combined
    }
}

/// A generic netlink socket and the families' numbers.
#[derive(Debug)]
pub(crate) struct Ethtool {
    socket: NetlinkSocket,
    ethtool: Option<u16>,
    netdev: Option<u16>,
}

impl Ethtool {
    pub(crate) fn open() -> Result<Self, KernelError> {
        let socket = NetlinkSocket::open(Family::Generic, 0, 0)
            .map_err(|error| KernelError::netlink("opening a NETLINK_GENERIC socket", error))?;
        let mut opened = Ethtool { socket, ethtool: None, netdev: None };
        opened.ethtool = opened.family("ethtool");
        opened.netdev = opened.family("netdev");
        Ok(opened)
    }

    fn family(&mut self, name: &str) -> Option<u16> {
        let mut message = Message::new(libc::GENL_ID_CTRL as u16, 0, &[libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0]);
        message.attribute_str(libc::CTRL_ATTR_FAMILY_NAME as u16, name);
        self.ask(message, |attributes| u16_at(attributes.get(libc::CTRL_ATTR_FAMILY_ID as u16)?, 0))
    }

    /// Sends a request and reads the first answer; `None` when the kernel or the driver does not know.
    fn ask<T>(&mut self, message: Message, read: impl Fn(Attributes<'_>) -> Option<T>) -> Option<T> {
        let mut answer = None;
        let each = |frame: &super::wire::Frame<'_>| {
            if let Some((_, attributes)) = frame.split(GENL_HEADER) {
                answer = answer.take().or_else(|| read(attributes));
            }
        };
        self.socket.exchange(message, each).ok()?;
        answer
    }

    fn request(&self, command: u8, ifindex: u32) -> Option<Message> {
        let mut message = Message::new(self.ethtool?, 0, &[command, 1, 0, 0]);
        message.nest(ETHTOOL_A_HEADER, |header| {
            header.attribute_u32(ETHTOOL_A_HEADER_DEV_INDEX, ifindex);
        });
        Some(message)
    }

    /// `ethtool -l`.
    pub(crate) fn channels(&mut self, ifindex: u32) -> Option<Channels> {
        let message = self.request(ETHTOOL_MSG_CHANNELS_GET, ifindex)?;
        self.ask(message, |attributes| {
            let number = |offset: u16| attributes.u32(ETHTOOL_A_CHANNELS_RX_MAX + offset).unwrap_or(0);
            Some(Channels {
                receive_max: number(0),
                transmit_max: number(1),
                combined_max: number(3),
                receive: number(4),
                transmit: number(5),
                combined: number(7),
            })
        })
    }

    /// `ethtool -k`: the names of the features that are on, and of those that cannot be changed.
    pub(crate) fn features(&mut self, ifindex: u32) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
        let message = self.request(ETHTOOL_MSG_FEATURES_GET, ifindex)?;
        self.ask(message, |attributes| {
            let fixed = attributes.nested(ETHTOOL_A_FEATURES_NOCHANGE).map(bit_names).unwrap_or_default();
            attributes.nested(ETHTOOL_A_FEATURES_ACTIVE).map(|active| (bit_names(active), fixed))
        })
    }

    /// `ethtool -K`: switches features on or off. The driver may still decide otherwise: [`Ethtool::features`] tells.
    pub(crate) fn set_features(&mut self, ifindex: u32, features: &[String], on: bool) -> io::Result<()> {
        let message = self.request(ETHTOOL_MSG_FEATURES_SET, ifindex);
        let mut message = message.ok_or_else(|| io::Error::other("the kernel has no ethtool netlink family"))?;
        message.nest(ETHTOOL_A_FEATURES_WANTED, |wanted| {
            wanted.nest(ETHTOOL_A_BITSET_BITS, |bits| {
                for feature in features {
                    bits.nest(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                        bit.attribute_str(ETHTOOL_A_BITSET_BIT_NAME, feature);
                        if on {
                            bit.attribute(ETHTOOL_A_BITSET_BIT_VALUE, &[]);
                        }
                    });
                }
            });
        });
        self.socket.exchange(message, |_| {})
    }

    /// The driver's XDP features (NETDEV_XDP_ACT_*), Linux 6.3 and later.
    pub(crate) fn xdp_features(&mut self, ifindex: u32) -> Option<u64> {
        let mut message = Message::new(self.netdev?, 0, &[NETDEV_CMD_DEV_GET, 1, 0, 0]);
        message.attribute_u32(NETDEV_A_DEV_IFINDEX, ifindex);
        self.ask(message, |attributes| {
            let data = attributes.get(NETDEV_A_DEV_XDP_FEATURES)?;
            Some(u64::from_ne_bytes(data.get(..8)?.try_into().ok()?))
        })
    }
}

/// The names in a bitset without mask: those listed are set.
fn bit_names(bitset: Attributes<'_>) -> BTreeSet<String> {
    let bits = bitset.nested(ETHTOOL_A_BITSET_BITS).unwrap_or(Attributes(&[]));
    bits.filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS_BIT)
        .filter_map(|(_, bit)| Attributes(bit).get(ETHTOOL_A_BITSET_BIT_NAME).map(text))
        .collect()
}
