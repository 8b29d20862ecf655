#![forbid(unsafe_code)]
//! Which entries and multipath groups of the adjacency table are free. Control thread only.

use super::{Adjacencies, AdjacencyContent, AdjacencyId, AdjacencyKind, MULTIPATH_BUCKETS};
use crate::quiesce::{Deferred, Domain};
use std::sync::Arc;

/// Numbers from a fixed range that are handed out, and given back when no worker can be using them.
struct Numbers {
    next: u32,
    end: u32,
    free: Vec<u32>,
    retired: Deferred<u32>,
    in_use: usize,
}

impl Numbers {
    fn new(first: usize, end: usize, domain: &Arc<Domain>) -> Numbers {
        Numbers {
            next: first as u32,
            end: end as u32,
            free: Vec::new(),
            retired: Deferred::new(Arc::clone(domain)),
            in_use: 0,
        }
    }

    fn take(&mut self) -> Option<u32> {
        let Numbers { retired, free, .. } = self;
        retired.reclaim(|number| free.push(number));
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.next < self.end => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.in_use += 1;
        Some(number)
    }

    fn retire(&mut self, number: u32) {
        self.in_use -= 1;
        self.retired.retire([number]);
    }

    fn memory(&self) -> usize {
        self.free.capacity() * 4 + self.retired.memory()
    }
}

/// The one writer of [`Adjacencies`].
pub(crate) struct AdjacencyWriter {
    table: Arc<Adjacencies>,
    entries: Numbers,
    groups: Numbers,
}

impl AdjacencyWriter {
    /// A table of this capacity and its writer; see [`Adjacencies::new`].
    pub(crate) fn new(capacity: usize, groups: usize, domain: &Arc<Domain>) -> AdjacencyWriter {
        let table = Arc::new(Adjacencies::new(capacity, groups));
        AdjacencyWriter {
            entries: Numbers::new(AdjacencyKind::FIXED, table.capacity(), domain),
            groups: Numbers::new(0, table.groups(), domain),
            table,
        }
    }

    /// The table that workers read.
    pub(crate) fn table(&self) -> &Arc<Adjacencies> {
        &self.table
    }

    /// A free entry, filled with `content`; `None` if all are in use or may still be read.
    pub(crate) fn allocate(&mut self, content: &AdjacencyContent) -> Option<AdjacencyId> {
        let id = AdjacencyId(self.entries.take()?);
        self.table.write(id, content);
        Some(id)
    }

    /// Gives up an entry that nothing leads to any more.
    pub(crate) fn retire(&mut self, id: AdjacencyId) {
        self.entries.retire(id.0);
    }

    /// A free multipath group; its buckets are those of its last use. `None` if all are in use or may still be read.
    pub(crate) fn allocate_group(&mut self) -> Option<u16> {
        self.groups.take().map(|group| group as u16)
    }

    /// Points the buckets of a group at its members.
    pub(crate) fn fill_group(&self, group: u16, members: &[AdjacencyId; MULTIPATH_BUCKETS]) {
        for (bucket, member) in members.iter().enumerate() {
            self.table.write_bucket(group, bucket, *member);
        }
    }

    /// Gives up a group that nothing leads to any more.
    pub(crate) fn retire_group(&mut self, group: u16) {
        self.groups.retire(u32::from(group));
    }

    /// Entries in use beside the fixed ones, and multipath groups in use.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.entries.in_use, self.groups.in_use)
    }

    /// Bytes of the table and of these records.
    pub(crate) fn memory(&self) -> usize {
        self.table.memory() + self.entries.memory() + self.groups.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fib::prefix::{MacAddress, PortId, VlanTag};

    #[test]
    fn an_entry_reads_back_as_written_in_wire_order() {
        let mut writer = AdjacencyWriter::new(32, 1, &Domain::new(1));
        let content = AdjacencyContent {
            kind: AdjacencyKind::Forward,
            port: PortId(0xabcd),
            mtu: 9000,
            destination: MacAddress([1, 2, 3, 4, 5, 6]),
            source: MacAddress([7, 8, 9, 10, 11, 12]),
            vlan: Some(VlanTag { tpid: 0x8100, tci: 0x2064 }),
            next_hop: Some("2001:db8::1".parse().unwrap()),
            ..AdjacencyContent::new(AdjacencyKind::Forward)
        };
        let id = writer.allocate(&content).unwrap();
        let table = writer.table();
        let view = table.get(id);
        assert_eq!((view.kind(), view.is_forward(), view.port(), view.mtu()), (content.kind, true, content.port, 9000));
        assert_eq!(table.next_hop(id), content.next_hop);
        let rewrite = table.rewrite(id);
        assert_eq!(rewrite.tagged(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0x20, 0x64]);
        assert_eq!(rewrite.macs(), rewrite.tagged()[..12]);
        assert_eq!(rewrite.vlan(), content.vlan);
        assert_eq!(table.kind(AdjacencyId(0)), AdjacencyKind::NoRoute);
        assert_eq!(table.kind(AdjacencyId(u32::MAX)), AdjacencyKind::NoRoute);
        for kind in AdjacencyKind::ALL {
            table.write(id, &AdjacencyContent::new(kind));
            assert_eq!(table.kind(id), kind);
        }
    }

    #[test]
    fn entries_are_reused_only_after_every_worker_was_quiescent() {
        let domain = Domain::new(1);
        let mut worker = domain.register().unwrap();
        let mut writer = AdjacencyWriter::new(AdjacencyKind::FIXED + 1, 1, &domain);
        let content = AdjacencyContent::new(AdjacencyKind::Glean);
        let id = writer.allocate(&content).unwrap();
        assert_eq!(writer.allocate(&content), None, "full");
        writer.retire(id);
        assert_eq!(writer.allocate(&content), None, "a worker may be reading it");
        worker.quiescent();
        assert_eq!(writer.allocate(&content), Some(id));
        assert_eq!(writer.in_use(), (1, 0));
    }
}
