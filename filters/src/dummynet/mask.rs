#![forbid(unsafe_code)]
//! Whose packet it is, and which part of that a mask keeps: packets whose kept parts agree share a queue (or a scheduler's instance).

use ferrule_config::ipfw::dummynet::FlowMask;

/// Addresses of a flow. Frames that are not IP use V4 with zeros, as FreeBSD does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4, host byte order.
    V4 {
        /// Source.
        source: u32,
        /// Destination.
        destination: u32,
    },
    /// IPv6, host byte order.
    V6 {
        /// Source.
        source: u128,
        /// Destination.
        destination: u128,
    },
}

/// Identity of a flow, as masks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Family and addresses.
    pub addresses: Addresses,
    /// IP protocol.
    pub protocol: u8,
    /// Source port; 0 where there is none.
    pub source_port: u16,
    /// Destination port; 0 where there is none.
    pub destination_port: u16,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// Number of the pipe or queue that the packet was sent to; set by the shaper.
    pub extra: u32,
}

impl FlowId {
    /// What is left of every flow when nothing is masked in.
    pub const NONE: FlowId = FlowId {
        addresses: Addresses::V4 { source: 0, destination: 0 },
        protocol: 0,
        source_port: 0,
        destination_port: 0,
        flow_label: 0,
        extra: 0,
    };

    /// The part of the flow that `mask` keeps. A mask of nothing keeps nothing, not even the family: one queue for all.
    pub fn masked(&self, mask: &FlowMask) -> FlowId {
        if *mask == FlowMask::NONE {
            return FlowId::NONE;
        }
        let (addresses, flow_label) = match self.addresses {
            Addresses::V4 { source, destination } => {
                (Addresses::V4 { source: source & mask.source4, destination: destination & mask.destination4 }, 0)
            }
            Addresses::V6 { source, destination } => (
                Addresses::V6 {
                    source: source & mask.source6.to_bits(),
                    destination: destination & mask.destination6.to_bits(),
                },
                self.flow_label & mask.flow_id,
            ),
        };
        FlowId {
            addresses,
            protocol: self.protocol & mask.protocol,
            source_port: self.source_port & mask.source_port,
            destination_port: self.destination_port & mask.destination_port,
            flow_label,
            extra: self.extra & mask.extra,
        }
    }

    /// A hash that nobody without the seed can steer.
    pub(crate) fn hash(&self, seed: u64) -> u64 {
        let (source, destination) = match self.addresses {
            Addresses::V4 { source, destination } => (u128::from(source) | 1 << 127, u128::from(destination)),
            Addresses::V6 { source, destination } => (source, destination),
        };
        let ports = u64::from(self.source_port) << 48
            | u64::from(self.destination_port) << 32
            | u64::from(self.protocol) << 24
            | u64::from(self.flow_label & 0xf_ffff);
        let mut hash = fold(seed ^ source as u64, 0xa076_1d64_78bd_642f ^ seed.rotate_left(32));
        hash = fold(hash ^ (source >> 64) as u64, 0xe703_7ed1_a0b4_28db);
        hash = fold(hash ^ destination as u64, 0x8ebc_6af0_9c88_c6e3);
        hash = fold(hash ^ (destination >> 64) as u64, 0x5899_65cc_7537_4cc3);
        fold(hash ^ ports, 0x1d8e_4e27_c47d_124f ^ u64::from(self.extra))
    }
}

/// Multiplies and folds the 128-bit product (the mixing step of wyhash); the rotation keeps a zero factor from ending it all.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64 ^ a.rotate_left(29)
}

/// Both masks together: a queue's mask includes its scheduler's, so that no queue feeds two instances.
pub(crate) fn union(a: &FlowMask, b: &FlowMask) -> FlowMask {
    FlowMask {
        protocol: a.protocol | b.protocol,
        source_port: a.source_port | b.source_port,
        destination_port: a.destination_port | b.destination_port,
        source4: a.source4 | b.source4,
        destination4: a.destination4 | b.destination4,
        source6: (a.source6.to_bits() | b.source6.to_bits()).into(),
        destination6: (a.destination6.to_bits() | b.destination6.to_bits()).into(),
        flow_id: a.flow_id | b.flow_id,
        extra: a.extra | b.extra,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(source: u32, port: u16) -> FlowId {
        FlowId {
            addresses: Addresses::V4 { source, destination: 9 },
            protocol: 17,
            source_port: port,
            destination_port: 53,
            ..FlowId::NONE
        }
    }

    #[test]
    fn a_mask_keeps_its_bits_only() {
        let mask = FlowMask { source4: 0xffff_ff00, ..FlowMask::NONE };
        assert_eq!(v4(0x0a00_0001, 1).masked(&mask), v4(0x0a00_00fe, 7).masked(&mask));
        assert_ne!(v4(0x0a00_0001, 1).masked(&mask), v4(0x0a00_0101, 1).masked(&mask));
        assert_eq!(v4(1, 1).masked(&FlowMask::NONE), FlowId::NONE);
    }

    #[test]
    fn families_part_under_any_mask_but_none() {
        let mask = FlowMask { protocol: 0xff, flow_id: 0xf_ffff, ..FlowMask::NONE };
        let six = FlowId { addresses: Addresses::V6 { source: 1, destination: 2 }, flow_label: 5, ..v4(0, 0) };
        assert_ne!(six.masked(&mask), v4(0, 0).masked(&mask));
        assert_eq!(six.masked(&mask).flow_label, 5);
        assert_eq!(six.masked(&FlowMask::NONE), FlowId::NONE);
    }

    #[test]
    fn hashes_depend_on_the_seed_and_on_every_field() {
        let flow = v4(1, 1);
        assert_ne!(flow.hash(1), flow.hash(2));
        let others = [
            v4(2, 1),
            v4(1, 2),
            FlowId { protocol: 6, ..flow },
            FlowId { destination_port: 54, ..flow },
            FlowId { extra: 1, ..flow },
        ];
        assert!(others.iter().all(|o| o.hash(1) != flow.hash(1)));
    }
}
