#![forbid(unsafe_code)]
//! IPv6 longest-prefix match with the forwarding table's structure, its answers being lines of values.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ferrule_dataplane::fib::v6::Fib6Writer;
use ferrule_dataplane::fib::{AdjacencyId, Fib6};
use ferrule_dataplane::quiesce::Domain;

use super::arena::NoRoom;

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// The one writer. The table itself is made with the first prefix: it reserves 128 MiB of address space, which a table of IPv4
/// prefixes alone does not need.
#[derive(Default)]
pub(super) struct Writer6 {
    prefixes: BTreeMap<(u128, u8), u32>,
    lengths: Vec<u32>,
    writer: Option<Fib6Writer>,
}

impl Writer6 {
    pub(super) fn len(&self) -> usize {
        self.prefixes.len()
    }

    pub(super) fn get(&self, address: u128, length: u8) -> Option<u32> {
        self.prefixes.get(&(address, length)).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, u8, u32)> + '_ {
        self.prefixes.iter().map(|(&(address, length), &answer)| (address, length, answer))
    }

    /// The prefix that an address meets.
    pub(super) fn matching(&self, address: u128) -> Option<(u128, u8, u32)> {
        let (length, answer) = self.cover(address, 129)?;
        Some((address & mask(length), length, answer))
    }

    /// The longest prefix shorter than `below` bits that holds `address`.
    fn cover(&self, address: u128, below: u8) -> Option<(u8, u32)> {
        (0..below)
            .rev()
            .filter(|&length| self.lengths.get(usize::from(length)).is_some_and(|&n| n > 0))
            .find_map(|length| self.prefixes.get(&(address & mask(length), length)).map(|answer| (length, *answer)))
    }

    /// Sets the answer of a prefix, or takes it out where the answer is 0.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was changed then.
    pub(super) fn change(
        &mut self,
        domain: &Arc<Domain>,
        fib: &OnceLock<Arc<Fib6>>,
        (address, length, answer): (u128, u8, u32),
    ) -> Result<(), NoRoom> {
        if self.writer.is_none() {
            let (made, writer) = Fib6::new(domain);
            let _ = fib.set(made);
            self.writer = Some(writer);
            self.lengths = vec![0; 129];
        }
        let Some(writer) = &mut self.writer else { return Err(NoRoom) };
        let key = (address, length);
        if answer != 0 {
            writer.insert(address, length, AdjacencyId(answer)).map_err(|_| NoRoom)?;
            if self.prefixes.insert(key, answer).is_none() {
                self.lengths[usize::from(length)] += 1;
            }
        } else if self.prefixes.contains_key(&key) {
            let cover = self.cover(address, length).unwrap_or((0, 0));
            let Some(writer) = &mut self.writer else { return Err(NoRoom) };
            writer.remove(address, length, (cover.0, AdjacencyId(cover.1))).map_err(|_| NoRoom)?;
            self.prefixes.remove(&key);
            self.lengths[usize::from(length)] -= 1;
        }
        Ok(())
    }
}
