#![forbid(unsafe_code)]
//! What the first fragment of a datagram was translated to, for the fragments behind it (libalias's fragment links).
//!
//! A fixed table of sets of four; a full set gives up its oldest, so that floods of fragments cost nobody memory. Fragments of one datagram
//! meet on one worker: the flow hash takes addresses, protocol and identification.

use ferrule_dataplane::packet::hash::{self, HashSeed};

use super::life::FRAGMENT_SECONDS;

/// Entries of a set.
const WAYS: usize = 4;

/// The datagram, before translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Datagram {
    pub source: u32,
    pub destination: u32,
    pub id: u16,
    pub protocol: u8,
    /// Whether it goes out, so that its source is what changes.
    pub outward: bool,
}

#[derive(Clone, Copy, Default)]
struct Link {
    datagram: Datagram,
    address: u32,
    used: u32,
    valid: bool,
}

/// The links.
pub(super) struct FragmentTable {
    sets: Box<[[Link; WAYS]]>,
    seed: HashSeed,
}

impl FragmentTable {
    /// Room for so many datagrams.
    pub fn new(datagrams: usize, seed: HashSeed) -> FragmentTable {
        let sets = datagrams.div_ceil(WAYS).next_power_of_two();
        FragmentTable { sets: vec![[Link::default(); WAYS]; sets].into(), seed }
    }

    fn set(&self, datagram: &Datagram) -> usize {
        let Datagram { source, destination, id, protocol, .. } = *datagram;
        hash::v4(self.seed, source, destination, protocol, id, id) as usize & (self.sets.len() - 1)
    }

    /// Remembers the address of a first fragment.
    pub fn record(&mut self, datagram: Datagram, address: u32, now: u32) {
        let set = self.set(&datagram);
        let links = &mut self.sets[set];
        let place = links.iter().position(|l| l.valid && l.datagram == datagram).unwrap_or_else(|| {
            let age = |l: &Link| if l.valid { now.wrapping_sub(l.used) } else { u32::MAX };
            (0..WAYS).max_by_key(|i| age(&links[*i])).unwrap_or(0)
        });
        links[place] = Link { datagram, address, used: now, valid: true };
    }

    /// The address of the first fragment; finding it keeps it longer.
    pub fn find(&mut self, datagram: &Datagram, now: u32) -> Option<u32> {
        let set = self.set(datagram);
        let alive = |l: &&mut Link| l.valid && l.datagram == *datagram && now.wrapping_sub(l.used) <= FRAGMENT_SECONDS;
        let link = self.sets[set].iter_mut().find(alive)?;
        link.used = now;
        Some(link.address)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.sets.fill([Link::default(); WAYS]);
    }

    /// Links that are alive.
    pub fn len(&self, now: u32) -> usize {
        let alive = |l: &&Link| l.valid && now.wrapping_sub(l.used) <= FRAGMENT_SECONDS;
        self.sets.iter().flatten().filter(alive).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_live_ten_seconds_and_a_flood_stays_in_its_room() {
        let mut table = FragmentTable::new(64, HashSeed(1, 3));
        let datagram = |id| Datagram { source: 1, destination: 2, id, protocol: 17, outward: false };
        table.record(datagram(1), 77, 100);
        assert_eq!(table.find(&datagram(1), 110), Some(77));
        assert_eq!(table.find(&datagram(1), 120), Some(77), "use renews it");
        assert_eq!(table.find(&datagram(1), 131), None);
        assert_eq!(table.find(&Datagram { outward: true, ..datagram(1) }, 120), None);
        (0..10_000).for_each(|id| table.record(datagram(id), u32::from(id), 200));
        assert!(table.len(200) <= 64);
        table.record(datagram(5), 9, 201);
        assert_eq!(table.find(&datagram(5), 201), Some(9));
        table.clear();
        assert_eq!(table.len(201), 0);
    }
}
