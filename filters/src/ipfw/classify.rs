#![forbid(unsafe_code)]
//! From a packet to the rules whose header tests it meets.
//!
//! Each field's value becomes a class number, in one to three loads; the classes together are one number, the packet's *key*. Two packets
//! of one key meet exactly the same header tests, so that what the rules make of one holds for the other. Which rules those are is found
//! from bit vectors, one bit a rule: by field, the rules that hold at the domain's reference value, changed by what the class toggles.

use std::collections::HashMap;

use ferrule_dataplane::packet::plain::{self, Window};
use ferrule_dataplane::packet::{Family, Packet, PortId};
use ferrule_dataplane::stage::Hook;

use super::header::{
    Atom, Condition, Domain, Field, NO_DETAIL, condition_values, detail_of, interfaces_of, kind_of, ports_of,
};
use super::partition::Partition;
use super::trie::Trie;

/// Number of fields.
pub const FIELDS: usize = Field::ALL.len();
/// A condition of more rules than one in so many is kept as a bit vector.
const DENSE: usize = 32;

/// Rules of a condition.
#[derive(Debug)]
enum Members {
    List(Box<[u32]>),
    Bits(Box<[u64]>),
}

/// Classes of one domain and what they toggle.
#[derive(Debug)]
struct DomainBits {
    /// Number of its first class among those of the field.
    first: u32,
    /// Places in `toggled`, by class, and the end.
    ends: Box<[u32]>,
    /// Conditions.
    toggled: Box<[u32]>,
    /// Rules that hold at the reference value, those without a condition included.
    base: Box<[u64]>,
}

/// One field.
#[derive(Debug, Default)]
struct FieldBits {
    domains: Vec<DomainBits>,
    conditions: Vec<Members>,
    classes: u32,
}

/// Addresses to classes.
#[derive(Debug)]
struct AddressMap {
    v4: Trie,
    v6: Vec<(u128, u32)>,
    other: u32,
}

impl AddressMap {
    #[inline(always)]
    fn class_v6(&self, address: u128) -> u32 {
        let at = self.v6.partition_point(|(start, _)| *start <= address);
        self.v6.get(at.wrapping_sub(1)).map_or(0, |(_, class)| *class)
    }
}

/// What the rules ask of header fields, gathered rule by rule.
#[derive(Default)]
pub struct Conditions {
    fields: [HashMap<Condition, u32>; FIELDS],
    /// By field and condition: its rules.
    rules: [Vec<Vec<u32>>; FIELDS],
}

impl Conditions {
    /// Notes that `rule` asks for `condition` of a field; without a rule only the classes tell it apart.
    pub fn add(&mut self, field: Field, condition: Condition, rule: Option<u32>) {
        let at = field as usize;
        let rules = &mut self.rules[at];
        let number = *self.fields[at].entry(condition).or_insert_with(|| {
            rules.push(Vec::new());
            rules.len() as u32 - 1
        });
        rules[number as usize].extend(rule);
    }
}

/// Why rules could not be classified by a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany(pub Field);

/// The compiled header tests of a program.
#[derive(Debug)]
pub struct Classifier {
    ports: u32,
    kind: Box<[u16]>,
    interface: Box<[u16]>,
    source: AddressMap,
    destination: AddressMap,
    source_port: Box<[u16]>,
    destination_port: Box<[u16]>,
    detail: Box<[u16]>,
    fields: [FieldBits; FIELDS],
    strides: [u64; FIELDS],
    /// Fields with more than one class: the others need not be read.
    used: [bool; FIELDS],
    /// How many keys there are.
    keys: u64,
    words: usize,
}

fn set(bits: &mut [u64], at: u32) {
    if let Some(word) = bits.get_mut((at / 64) as usize) {
        *word |= 1 << (at % 64);
    }
}

impl Classifier {
    /// Compiles the conditions of `rules` rules, on a box with so many ports.
    ///
    /// # Errors
    /// The field that has too many classes for a key: its tests must be made on each packet instead.
    pub fn new(conditions: Conditions, rules: u32, ports: u32) -> Result<Classifier, TooMany> {
        let words = (rules as usize).div_ceil(64);
        let mut fields: [FieldBits; FIELDS] = Default::default();
        let mut maps: Vec<Vec<Partition>> = Vec::new();
        let (mut strides, mut keys) = ([0u64; FIELDS], 1u64);
        for (at, field) in Field::ALL.into_iter().enumerate() {
            let mut listed: Vec<(&Condition, u32)> = conditions.fields[at].iter().map(|(c, n)| (c, *n)).collect();
            listed.sort_unstable_by_key(|(_, number)| *number);
            let members = &conditions.rules[at];
            let mut without = vec![!0u64; words];
            for rule in members.iter().flatten() {
                if let Some(word) = without.get_mut((rule / 64) as usize) {
                    *word &= !(1 << (rule % 64));
                }
            }
            let mut partitions = Vec::new();
            let mut bits = FieldBits::default();
            for domain in Domain::of(field, ports) {
                let sets: Vec<_> = listed.iter().map(|(condition, _)| condition_values(condition, domain)).collect();
                let partition = Partition::new(&sets, domain.last());
                let mut base = without.clone();
                for number in &partition.base {
                    members[*number as usize].iter().for_each(|rule| set(&mut base, *rule));
                }
                let mut ends = vec![0u32];
                let mut toggled = Vec::new();
                for list in &partition.toggles {
                    toggled.extend_from_slice(list);
                    ends.push(toggled.len() as u32);
                }
                let first = bits.classes;
                bits.classes += partition.classes() as u32;
                bits.domains.push(DomainBits { first, ends: ends.into(), toggled: toggled.into(), base: base.into() });
                partitions.push(partition);
            }
            // Without any condition the domains need no telling apart.
            if listed.is_empty() {
                bits.classes = 1;
                bits.domains.truncate(1);
            }
            bits.conditions = members
                .iter()
                .map(|list| {
                    if list.len() * DENSE <= rules as usize {
                        return Members::List(list.clone().into());
                    }
                    let mut dense = vec![0u64; words];
                    list.iter().for_each(|rule| set(&mut dense, *rule));
                    Members::Bits(dense.into())
                })
                .collect();
            let small = !matches!(field, Field::Source | Field::Destination);
            if small && bits.classes > u32::from(u16::MAX) {
                return Err(TooMany(field));
            }
            strides[at] = keys;
            keys = keys.checked_mul(u64::from(bits.classes)).ok_or(TooMany(field))?;
            fields[at] = bits;
            maps.push(partitions);
        }
        let used = std::array::from_fn(|at| fields[at].classes > 1);
        let table = |field: Field| -> Box<[u16]> {
            match &maps[field as usize][..] {
                [partition] if used[field as usize] => {
                    let last = Domain::of(field, ports)[0].last() as usize;
                    let mut table = vec![0u16; last + 1];
                    for (at, &(low, class)) in partition.intervals.iter().enumerate() {
                        let end = partition.intervals.get(at + 1).map_or(last + 1, |next| next.0 as usize);
                        table[low as usize..end].fill(class as u16);
                    }
                    table.into()
                }
                _ => Box::default(),
            }
        };
        let addresses = |field: Field| -> Result<AddressMap, TooMany> {
            let partitions = &maps[field as usize];
            let first = |domain: usize| fields[field as usize].domains.get(domain).map_or(0, |d| d.first);
            let v6 = partitions[1].intervals.iter().map(|(start, class)| (*start, class + first(1))).collect();
            let v4 = Trie::new(&partitions[0]).ok_or(TooMany(field))?;
            Ok(AddressMap { v4, v6, other: first(2) })
        };
        Ok(Classifier {
            ports,
            kind: table(Field::Kind),
            interface: table(Field::Interface),
            source: addresses(Field::Source)?,
            destination: addresses(Field::Destination)?,
            source_port: table(Field::SourcePort),
            destination_port: table(Field::DestinationPort),
            detail: table(Field::Detail),
            fields,
            strides,
            used,
            keys,
            words,
        })
    }

    /// How many keys there are.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Words of a bit vector over the rules.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Whether anything but the interfaces tells packets apart.
    pub fn is_plain(&self) -> bool {
        !self.used.iter().enumerate().any(|(at, used)| *used && at != Field::Interface as usize)
    }

    /// Whether the interfaces, and with them the direction, tell packets apart.
    pub fn uses_interfaces(&self) -> bool {
        self.used[Field::Interface as usize]
    }

    #[inline(always)]
    fn term(&self, field: Field, class: u32) -> u64 {
        self.strides[field as usize] * u64::from(class)
    }

    #[inline(always)]
    fn small(&self, field: Field, table: &[u16], value: u32) -> u64 {
        self.term(field, table.get(value as usize).map_or(0, |class| u32::from(*class)))
    }

    /// The key's part that is the packet's own.
    #[inline(always)]
    pub fn packet_key(&self, packet: &Packet, layer2: bool) -> u64 {
        let mut key = 0;
        if self.used[Field::Kind as usize] {
            key += self.small(Field::Kind, &self.kind, kind_of(packet, layer2));
        }
        let (source, destination) = (self.used[Field::Source as usize], self.used[Field::Destination as usize]);
        match packet.family {
            Family::V4 => {
                if source {
                    key += self.term(Field::Source, self.source.v4.class(packet.source_v4()));
                }
                if destination {
                    key += self.term(Field::Destination, self.destination.v4.class(packet.destination_v4()));
                }
            }
            Family::V6 => {
                if source {
                    key += self.term(Field::Source, self.source.class_v6(packet.source_v6()));
                }
                if destination {
                    key += self.term(Field::Destination, self.destination.class_v6(packet.destination_v6()));
                }
            }
            Family::Other => {
                if source {
                    key += self.term(Field::Source, self.source.other);
                }
                if destination {
                    key += self.term(Field::Destination, self.destination.other);
                }
            }
        }
        if self.used[Field::SourcePort as usize] | self.used[Field::DestinationPort as usize] {
            let (from, to) = ports_of(packet);
            if self.used[Field::SourcePort as usize] {
                key += self.small(Field::SourcePort, &self.source_port, from);
            }
            if self.used[Field::DestinationPort as usize] {
                key += self.small(Field::DestinationPort, &self.destination_port, to);
            }
        }
        if self.used[Field::Detail as usize] {
            key += self.small(Field::Detail, &self.detail, detail_of(packet));
        }
        key
    }

    /// Whether of the packet itself only this field tells packets apart.
    pub fn uses_only(&self, field: Field) -> bool {
        let others = |at: usize| at != field as usize && at != Field::Interface as usize;
        self.used[field as usize] && !self.used.iter().enumerate().any(|(at, used)| *used && others(at))
    }

    /// Of [`Classifier::packet_key`] for an IPv4 packet the source's part.
    #[inline(always)]
    pub fn source_key(&self, source: u32) -> u64 {
        self.term(Field::Source, self.source.v4.class(source))
    }

    /// As [`Classifier::source_key`].
    #[inline(always)]
    pub fn destination_key(&self, destination: u32) -> u64 {
        self.term(Field::Destination, self.destination.v4.class(destination))
    }

    /// [`Classifier::packet_key`] of a plain packet (see [`ferrule_dataplane::packet::plain`]) from its bytes; of any other something.
    #[inline(always)]
    pub fn plain_key(&self, h: &Window) -> u64 {
        let v6 = plain::bytes::<2>(h, 12) == [0x86, 0xdd];
        let (family, protocol, l4) = if v6 { (Family::V6, h[20], 54) } else { (Family::V4, h[23], 34) };
        let mut key = 0;
        if self.used[Field::Kind as usize] {
            key += self.small(Field::Kind, &self.kind, (family as u32) << 9 | u32::from(protocol));
        }
        if self.used[Field::Source as usize] {
            key += if v6 {
                self.term(Field::Source, self.source.class_v6(u128::from_be_bytes(plain::bytes(h, 22))))
            } else {
                self.source_key(u32::from_be_bytes(plain::bytes(h, 26)))
            };
        }
        if self.used[Field::Destination as usize] {
            key += if v6 {
                self.term(Field::Destination, self.destination.class_v6(u128::from_be_bytes(plain::bytes(h, 38))))
            } else {
                self.destination_key(u32::from_be_bytes(plain::bytes(h, 30)))
            };
        }
        if self.used[Field::SourcePort as usize] {
            let port = u16::from_be_bytes(plain::bytes(h, l4));
            key += self.small(Field::SourcePort, &self.source_port, port.into());
        }
        if self.used[Field::DestinationPort as usize] {
            let port = u16::from_be_bytes(plain::bytes(h, l4 + 2));
            key += self.small(Field::DestinationPort, &self.destination_port, port.into());
        }
        if self.used[Field::Detail as usize] {
            let detail = if protocol == 6 { u32::from(h[l4 + 13]) } else { NO_DETAIL };
            key += self.small(Field::Detail, &self.detail, detail);
        }
        key
    }

    /// The key's part of these interfaces.
    #[inline(always)]
    pub fn ports_key(&self, received: PortId, sent: PortId) -> u64 {
        if !self.used[Field::Interface as usize] {
            return 0;
        }
        let number = |port: PortId| u32::from(port.0).min(self.ports);
        self.small(Field::Interface, &self.interface, number(received) * (self.ports + 1) + number(sent))
    }

    /// The key's part that the interfaces decide.
    #[inline(always)]
    pub fn interface_key(&self, packet: &Packet, hook: Hook) -> u64 {
        if !self.used[Field::Interface as usize] {
            return 0;
        }
        let (received, sent) = interfaces_of(packet, hook);
        self.ports_key(received, sent)
    }

    /// The rules, one bit each, whose header tests packets of this key meet. `out` and `scratch` have [`Classifier::words`] words.
    pub fn candidates(&self, key: u64, out: &mut [u64], scratch: &mut [u64]) {
        out.fill(!0);
        for (field, stride) in self.fields.iter().zip(&self.strides) {
            let class = (key / stride % u64::from(field.classes.max(1))) as u32;
            let Some(domain) = field.domains.iter().rev().find(|domain| domain.first <= class) else { continue };
            let place = (class - domain.first) as usize;
            let (Some(&from), Some(&to)) = (domain.ends.get(place), domain.ends.get(place + 1)) else { continue };
            scratch.copy_from_slice(&domain.base);
            for condition in domain.toggled.get(from as usize..to as usize).unwrap_or_default() {
                match field.conditions.get(*condition as usize) {
                    Some(Members::List(rules)) => {
                        for rule in rules {
                            if let Some(word) = scratch.get_mut((rule / 64) as usize) {
                                *word ^= 1 << (rule % 64);
                            }
                        }
                    }
                    Some(Members::Bits(rules)) => scratch.iter_mut().zip(rules).for_each(|(word, bits)| *word ^= bits),
                    None => {}
                }
            }
            out.iter_mut().zip(scratch.iter()).for_each(|(out, bits)| *out &= bits);
        }
    }
}

/// An atom as a condition.
pub fn condition(not: bool, atom: Atom) -> Condition {
    vec![vec![(not, atom)]]
}
