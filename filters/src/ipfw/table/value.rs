#![forbid(unsafe_code)]
//! Values of entries: each distinct one is kept once, in a cache line of the arena.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;

use ferrule_config::ipfw::ast::ValueKind;
use ferrule_config::ipfw::table::TableValue;

use super::arena::{Allocator, Arena, Block, LINE, NoRoom};

/// The value that a look-up found: its line in the arena. Good until the end of the worker's turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ValueIndex(pub(super) u32);

fn encode(value: &TableValue) -> [u64; LINE] {
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let ipv6 = value.ipv6.to_bits();
    [
        pair(value.skipto, value.pipe),
        pair(value.fib, value.nat),
        pair(u32::from(value.dscp), value.tag),
        pair(value.divert, value.netgraph),
        pair(value.limit, value.mark),
        u64::from(value.ipv4.to_bits()),
        (ipv6 >> 64) as u64,
        ipv6 as u64,
    ]
}

fn decode(words: [u64; LINE]) -> TableValue {
    let low = |word: usize| words[word] as u32;
    let high = |word: usize| (words[word] >> 32) as u32;
    TableValue {
        skipto: low(0),
        pipe: high(0),
        fib: low(1),
        nat: high(1),
        dscp: low(2) as u8,
        tag: high(2),
        divert: low(3),
        netgraph: high(3),
        limit: low(4),
        mark: high(4),
        ipv4: Ipv4Addr::from_bits(low(5)),
        ipv6: Ipv6Addr::from_bits(u128::from(words[6]) << 64 | u128::from(words[7])),
    }
}

/// The whole value.
pub(super) fn read(arena: &Arena, index: ValueIndex) -> TableValue {
    let line = arena.line(index.0 as usize);
    decode(std::array::from_fn(|word| line[word].load(Relaxed)))
}

/// One part of the value as a number; of IPv6 the low half.
#[inline]
pub(super) fn number(arena: &Arena, index: ValueIndex, kind: ValueKind) -> u32 {
    let (word, high) = match kind {
        ValueKind::SkipTo => (0, false),
        ValueKind::Pipe => (0, true),
        ValueKind::Fib => (1, false),
        ValueKind::Nat => (1, true),
        ValueKind::Dscp => (2, false),
        ValueKind::Tag => (2, true),
        ValueKind::Divert => (3, false),
        ValueKind::Netgraph => (3, true),
        ValueKind::Limit => (4, false),
        ValueKind::Mark => (4, true),
        ValueKind::Ipv4 => (5, false),
        ValueKind::Ipv6 => (7, false),
    };
    let value = arena.line(index.0 as usize)[word].load(Relaxed);
    if high { (value >> 32) as u32 } else { value as u32 }
}

/// All values that entries have. Control side.
#[derive(Default)]
pub(super) struct Values {
    lines: HashMap<TableValue, u32>,
    /// How many entries have the value of a line.
    uses: HashMap<u32, u32>,
}

impl Values {
    /// The line of a value, counted once more.
    pub(super) fn take(&mut self, allocator: &mut Allocator, value: &TableValue) -> Result<u32, NoRoom> {
        let line = match self.lines.get(value) {
            Some(line) => *line,
            None => {
                let block = allocator.allocate(1)?;
                for (word, content) in encode(value).into_iter().enumerate() {
                    allocator.store(block.line as usize * LINE + word, content);
                }
                self.lines.insert(*value, block.line);
                block.line
            }
        };
        *self.uses.entry(line).or_default() += 1;
        Ok(line)
    }

    /// One entry fewer has the value of this line.
    pub(super) fn give_back(&mut self, allocator: &mut Allocator, line: u32) {
        let Some(uses) = self.uses.get_mut(&line) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&line);
            self.lines.remove(&read(allocator.arena(), ValueIndex(line)));
            allocator.retire(Block { line, lines: 1 });
        }
    }

    /// Number of distinct values.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrule_dataplane::quiesce::Domain;

    #[test]
    fn equal_values_are_kept_once_and_read_back_whole() {
        let mut allocator = Allocator::new(&Domain::new(1));
        let mut values = Values::default();
        let value = TableValue {
            skipto: 1,
            pipe: 2,
            fib: 3,
            nat: 4,
            dscp: 5,
            tag: 6,
            divert: 7,
            netgraph: 8,
            limit: 9,
            ipv4: Ipv4Addr::new(10, 1, 2, 3),
            ipv6: "2001:db8::7:8".parse().unwrap(),
            mark: 0xdead_beef,
        };
        let line = values.take(&mut allocator, &value).unwrap();
        assert_eq!(values.take(&mut allocator, &value), Ok(line));
        assert_eq!(read(allocator.arena(), ValueIndex(line)), value);
        let kinds = [
            (ValueKind::SkipTo, 1),
            (ValueKind::Pipe, 2),
            (ValueKind::Fib, 3),
            (ValueKind::Nat, 4),
            (ValueKind::Dscp, 5),
            (ValueKind::Tag, 6),
            (ValueKind::Divert, 7),
            (ValueKind::Netgraph, 8),
            (ValueKind::Limit, 9),
            (ValueKind::Mark, 0xdead_beef),
            (ValueKind::Ipv4, 0x0a01_0203),
            (ValueKind::Ipv6, 0x0007_0008),
        ];
        for (kind, expected) in kinds {
            assert_eq!(number(allocator.arena(), ValueIndex(line), kind), expected, "{kind:?}");
        }
        values.give_back(&mut allocator, line);
        assert_eq!(values.len(), 1);
        values.give_back(&mut allocator, line);
        assert_eq!((values.len(), allocator.in_use()), (0, 0));
    }
}
