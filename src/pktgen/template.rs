//! The frame that is sent over and over: a UDP datagram whose addresses and ports step through their ranges, patched in place
//! with its checksums kept right by difference (RFC 1624).
//!
//! The order of steps is pkt-gen's: source port, source address, destination port, destination address, the first fastest.

#![forbid(unsafe_code)]

use ferrule_dataplane::packet::checksum;

use super::range::Range;

/// What a payload starts with, as netmap's pkt-gen writes it.
pub const MAGIC: &[u8] = b"netmap pkt-gen";
/// The payload, repeated to the frame's length.
const PAYLOAD: &[u8] = b"netmap pkt-gen payload sent by ferrule ";
/// Offset of the IP header.
const L3: usize = 14;
const UDP: u8 = 17;

/// What the frame is to be.
#[derive(Clone, Debug)]
pub struct FrameSpec {
    /// Bytes without FCS.
    pub size: usize,
    /// Source addresses and ports.
    pub source: Range,
    /// Destination addresses and ports.
    pub destination: Range,
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// Destination MAC address.
    pub destination_mac: [u8; 6],
    /// Random source address and port.
    pub random_source: bool,
    /// Random destination address and port.
    pub random_destination: bool,
}

/// Smallest frame of a family that holds its headers.
pub fn smallest(v6: bool) -> usize {
    if v6 { L3 + 40 + 8 } else { L3 + 20 + 8 }
}

/// The frame as it is now.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    spec: FrameSpec,
    random: u64,
}

/// Offsets of one side's fields.
#[derive(Clone, Copy)]
struct Side {
    address: usize,
    address_len: usize,
    port: usize,
}

impl Template {
    /// The first frame. `seed` starts the random numbers.
    ///
    /// # Panics
    /// When the size is below [`smallest`] or above 65,535 + 14: the caller checks what the user typed.
    pub fn new(spec: &FrameSpec, seed: u64) -> Template {
        let v6 = spec.source.v6;
        assert!(v6 == spec.destination.v6 && (smallest(v6)..=65_535 + L3).contains(&spec.size));
        let mut bytes = vec![0; spec.size];
        bytes[..6].copy_from_slice(&spec.destination_mac);
        bytes[6..12].copy_from_slice(&spec.source_mac);
        let l4 = smallest(v6) - 8;
        for (byte, text) in bytes[l4 + 8..].iter_mut().zip(PAYLOAD.iter().cycle()) {
            *byte = *text;
        }
        let mut t = Template { bytes, spec: spec.clone(), random: seed.max(1) };
        if v6 {
            t.bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
            t.bytes[L3] = 0x60;
            t.bytes[L3 + 6] = UDP;
            t.bytes[L3 + 7] = 64;
        } else {
            t.bytes[12..14].copy_from_slice(&[0x08, 0x00]);
            // Version, header length, TOS "low delay" and "don't fragment" as pkt-gen sets them.
            t.bytes[L3..L3 + 2].copy_from_slice(&[0x45, 0x10]);
            t.bytes[L3 + 6] = 0x40;
            t.bytes[L3 + 8] = 64;
            t.bytes[L3 + 9] = UDP;
        }
        for (side, range) in [(t.side(true), spec.source), (t.side(false), spec.destination)] {
            t.write(side, range.first, range.first_port);
        }
        t.set_size(spec.size);
        t
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn v6(&self) -> bool {
        self.spec.source.v6
    }

    fn l4(&self) -> usize {
        smallest(self.v6()) - 8
    }

    /// Offset of the UDP payload.
    pub fn payload(&self) -> usize {
        self.l4() + 8
    }

    fn side(&self, source: bool) -> Side {
        let (v6, l4) = (self.v6(), self.l4());
        match (v6, source) {
            (false, true) => Side { address: L3 + 12, address_len: 4, port: l4 },
            (false, false) => Side { address: L3 + 16, address_len: 4, port: l4 + 2 },
            (true, true) => Side { address: L3 + 8, address_len: 16, port: l4 },
            (true, false) => Side { address: L3 + 24, address_len: 16, port: l4 + 2 },
        }
    }

    fn write(&mut self, side: Side, address: u128, port: u16) {
        let bytes = address.to_be_bytes();
        self.bytes[side.address..side.address + side.address_len].copy_from_slice(&bytes[16 - side.address_len..]);
        self.bytes[side.port..side.port + 2].copy_from_slice(&port.to_be_bytes());
    }

    fn read(&self, side: Side) -> (u128, u16) {
        let mut bytes = [0; 16];
        bytes[16 - side.address_len..].copy_from_slice(&self.bytes[side.address..side.address + side.address_len]);
        (u128::from_be_bytes(bytes), u16::from_be_bytes([self.bytes[side.port], self.bytes[side.port + 1]]))
    }

    /// Changes the frame's length and sums everything anew.
    pub fn set_size(&mut self, size: usize) {
        let old = self.bytes.len();
        self.bytes.resize(size, 0);
        let payload = self.payload();
        for at in old..size {
            self.bytes[at] = PAYLOAD[(at - payload) % PAYLOAD.len()];
        }
        let (v6, l4) = (self.v6(), self.l4());
        let udp_len = (size - l4) as u16;
        if v6 {
            self.bytes[L3 + 4..L3 + 6].copy_from_slice(&udp_len.to_be_bytes());
        } else {
            self.bytes[L3 + 2..L3 + 4].copy_from_slice(&((size - L3) as u16).to_be_bytes());
            self.bytes[L3 + 10..L3 + 12].fill(0);
            let sum = checksum::checksum(&self.bytes[L3..L3 + 20]);
            self.bytes[L3 + 10..L3 + 12].copy_from_slice(&sum.to_ne_bytes());
        }
        self.bytes[l4 + 4..l4 + 6].copy_from_slice(&udp_len.to_be_bytes());
        self.bytes[l4 + 6..l4 + 8].fill(0);
        let side = self.side(true);
        let addresses = checksum::sum(&self.bytes[side.address..side.address + 2 * side.address_len], 0);
        let mut pseudo = [0; 4];
        pseudo[1] = UDP;
        pseudo[2..].copy_from_slice(&udp_len.to_be_bytes());
        let sum = !checksum::fold(checksum::sum(&self.bytes[l4..], checksum::sum(&pseudo, addresses)));
        self.set_udp_sum(sum);
    }

    /// Zero says "no checksum" (RFC 768): the other form of zero is written.
    fn set_udp_sum(&mut self, sum: u16) {
        let at = self.l4() + 6;
        let sum = if sum == 0 { 0xffff } else { sum };
        self.bytes[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
    }

    fn udp_sum(&self) -> u16 {
        let at = self.l4() + 6;
        u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Sets one side and mends both checksums by the difference.
    fn patch(&mut self, side: Side, address: u128, port: u16) {
        let (old_address, old_port) = self.read(side);
        let (old, new) = (old_address.to_be_bytes(), address.to_be_bytes());
        if old_address != address {
            self.set_udp_sum(checksum::update(self.udp_sum(), &old, &new));
            if !self.v6() {
                let at = L3 + 10;
                let sum = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]);
                let sum = checksum::update(sum, &old[12..], &new[12..]);
                self.bytes[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
            }
        }
        if old_port != port {
            self.set_udp_sum(checksum::update(self.udp_sum(), &old_port.to_be_bytes(), &port.to_be_bytes()));
        }
        self.write(side, address, port);
    }

    /// Overwrites payload bytes from an even offset on, an even number of them, and mends the checksum.
    pub fn patch_payload(&mut self, offset: usize, new: &[u8]) {
        let at = self.payload() + offset;
        let sum = checksum::update(self.udp_sum(), &self.bytes[at..at + new.len()], new);
        self.set_udp_sum(sum);
        self.bytes[at..at + new.len()].copy_from_slice(new);
    }

    /// Steps to the next combination; after the last comes the first.
    pub fn advance(&mut self) {
        if self.step(true) {
            self.step(false);
        }
    }

    /// Steps one side; true when it came round and the next side is to step, too.
    fn step(&mut self, source: bool) -> bool {
        let side = self.side(source);
        let (range, random) = if source {
            (self.spec.source, self.spec.random_source)
        } else {
            (self.spec.destination, self.spec.random_destination)
        };
        if random {
            let (address, port) = self.draw(range);
            self.patch(side, address, port);
            return true;
        }
        let (address, port) = self.read(side);
        let (address, port, carry) = if port < range.last_port {
            (address, port + 1, false)
        } else if address < range.last {
            (address + 1, range.first_port, false)
        } else {
            (range.first, range.first_port, true)
        };
        self.patch(side, address, port);
        carry
    }

    /// A random combination: within the range where one was given, else any address (IPv6: any low 16 bits) and port.
    fn draw(&mut self, range: Range) -> (u128, u16) {
        let (a, b) = (self.next_random(), self.next_random());
        if range.varies() {
            let wide = u128::from(a) << 64 | u128::from(self.next_random());
            (range.first + wide % range.addresses(), range.first_port + (u128::from(b) % range.ports()) as u16)
        } else if range.v6 {
            (range.first & !0xffff | u128::from(a as u16), b as u16)
        } else {
            (u128::from(a as u32), b as u16)
        }
    }

    /// xorshift64* (Marsaglia 2003, Vigna 2014): fast, and good enough to spread flows.
    pub fn next_random(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Steps `n` times at once, so that threads take turns in the ranges without overlap.
    pub fn seek(&mut self, n: u128) {
        let (source, destination) = (self.spec.source, self.spec.destination);
        let place =
            |n: u128, r: Range| (r.first + (n / r.ports()) % r.addresses(), r.first_port + (n % r.ports()) as u16);
        let round = source.ports().saturating_mul(source.addresses());
        for (from_source, range, n) in [(true, source, n % round), (false, destination, n / round)] {
            let (address, port) = place(n, range);
            self.patch(self.side(from_source), address, port);
        }
    }
}

/// Whether these first bytes of a frame of `len` bytes are those of a pkt-gen datagram.
pub fn is_own(header: &[u8; 128], len: usize) -> bool {
    let (proto, payload) = match (header[12], header[13], header[14] >> 4) {
        (0x08, 0x00, 4) => (header[L3 + 9], L3 + usize::from(header[L3] & 15) * 4 + 8),
        (0x86, 0xdd, 6) => (header[L3 + 6], L3 + 48),
        _ => return false,
    };
    let end = payload + MAGIC.len();
    proto == UDP && len >= end && header.get(payload..end) == Some(MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(source: &str, destination: &str, v6: bool, size: usize) -> FrameSpec {
        FrameSpec {
            size,
            source: Range::parse(source, v6).unwrap(),
            destination: Range::parse(destination, v6).unwrap(),
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            random_source: false,
            random_destination: false,
        }
    }

    /// The checksums by the definition, from the bytes alone.
    fn valid(t: &Template) -> bool {
        let b = t.bytes();
        let (l4, addresses) = if b[12] == 8 { (34, &b[26..34]) } else { (54, &b[22..54]) };
        if b[12] == 8 && !checksum::is_valid(&b[14..34]) {
            return false;
        }
        let mut pseudo = addresses.to_vec();
        pseudo.extend([0, 17]);
        pseudo.extend(&b[l4 + 4..l4 + 6]);
        pseudo.extend(&b[l4..]);
        let sum_is_there = b[l4 + 6..l4 + 8] != [0, 0];
        sum_is_there && checksum::is_valid(&pseudo)
    }

    fn four(t: &Template) -> (u128, u16, u128, u16) {
        let ((a, p), (b, q)) = (t.read(t.side(true)), t.read(t.side(false)));
        (a, p, b, q)
    }

    #[test]
    fn lengths_and_magic() {
        for (v6, size) in [(false, 60), (false, 42), (false, 1514), (true, 62), (true, 76), (true, 1514)] {
            let (s, d) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.1.0.1") };
            let t = Template::new(&spec(s, d, v6, size), 1);
            assert_eq!(t.bytes().len(), size);
            assert!(valid(&t), "{v6} {size}");
            let mut header = [0; 128];
            let n = size.min(128);
            header[..n].copy_from_slice(&t.bytes()[..n]);
            assert_eq!(is_own(&header, size), size >= smallest(v6) + MAGIC.len());
        }
    }

    #[test]
    fn steps_go_ports_first_then_addresses_then_the_other_side() {
        let mut t = Template::new(&spec("10.0.0.1:7-10.0.0.2:8", "10.1.0.1:1-10.1.0.1:2", false, 60), 1);
        let base = u128::from(0x0a00_0000u32);
        let mut seen = Vec::new();
        for _ in 0..9 {
            assert!(valid(&t));
            let (a, p, _, q) = four(&t);
            seen.push((a - base, p, q));
            t.advance();
        }
        let expected =
            [(1, 7, 1), (1, 8, 1), (2, 7, 1), (2, 8, 1), (1, 7, 2), (1, 8, 2), (2, 7, 2), (2, 8, 2), (1, 7, 1)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn five_thousand_flows_are_five_thousand() {
        let mut t = Template::new(&spec("10.0.0.1:2000-10.0.0.5:2999", "10.1.0.1", false, 60), 1);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..5000 {
            seen.insert(four(&t));
            t.advance();
        }
        assert_eq!(seen.len(), 5000);
        assert!(seen.contains(&four(&t)), "and round again");
    }

    #[test]
    fn ipv6_ranges_carry_over_word_borders() {
        let mut t = Template::new(&spec("2001:db8::ffff:ffff-2001:db8::1:0:1", "fd00::1", true, 80), 1);
        let first = four(&t).0;
        for step in 1..=2 {
            t.advance();
            assert_eq!(four(&t).0, first + step);
            assert!(valid(&t));
        }
    }

    #[test]
    fn random_sides_vary_and_stay_valid() {
        let mut s = spec("10.0.0.1", "10.1.0.1:5-10.1.0.9:9", false, 60);
        (s.random_source, s.random_destination) = (true, true);
        let mut t = Template::new(&s, 99);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..500 {
            t.advance();
            assert!(valid(&t));
            let (a, p, b, q) = four(&t);
            seen.insert((a, p));
            assert!((0x0a01_0001..=0x0a01_0009).contains(&b) && (5..=9).contains(&q));
        }
        assert!(seen.len() > 490);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn seek_is_many_steps(n in 0u32..200, sa in 1u32..5, sp in 1u16..4, da in 1u32..4, dp in 1u16..4, v6: bool) {
            let text = |a: u32, p: u16, net: u8| if v6 {
                format!("[fd00:{net}::fffe]:65530-[fd00:{net}::{:x}]:{}", 0xfffe + a - 1, 65530 + p - 1)
            } else {
                format!("10.{net}.0.254:65530-10.{net}.{}:{}", [(0xfe + a - 1) >> 8, (0xfe + a - 1) & 0xff].map(|b| b.to_string()).join("."), 65530 + p - 1)
            };
            // An IPv6 end past ffff needs another group: keep to what the text form can say.
            prop_assume!(!v6 || sa.max(da) <= 2);
            let s = spec(&text(sa, sp, 1), &text(da, dp, 2), v6, 80);
            let (mut walked, mut jumped) = (Template::new(&s, 1), Template::new(&s, 1));
            (0..n).for_each(|_| walked.advance());
            jumped.seek(u128::from(n));
            prop_assert_eq!(four(&walked), four(&jumped));
            prop_assert!(valid(&walked) && valid(&jumped));
        }

        #[test]
        fn sizes_and_payload_patches_keep_the_sum(size in 62usize..3000, bytes: [u8; 4], v6: bool) {
            let (s, d) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.1.0.1") };
            let mut t = Template::new(&spec(s, d, v6, 1000), 1);
            t.set_size(size);
            prop_assert!(valid(&t));
            let fresh = Template::new(&spec(s, d, v6, size), 1);
            prop_assert_eq!(t.bytes(), fresh.bytes());
            if size >= t.payload() + 4 {
                t.patch_payload(0, &bytes);
                prop_assert!(valid(&t));
            }
        }
    }
}
