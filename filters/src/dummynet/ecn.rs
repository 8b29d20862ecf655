#![forbid(unsafe_code)]
//! Congestion marks (RFC 3168) on the bytes of an IP packet: what an [`Outlet`](super::Outlet) for real packets does in `mark`.

/// The two bits of the traffic class that are ECN's; both set is "congestion experienced".
const ECN: u8 = 0b11;

/// Marks the packet whose IP header `ip` starts with; false when its sender cannot read marks (not-ECT), or it is not IP. One that is
/// marked already stays so. The IPv4 header checksum follows (RFC 1624).
pub fn mark(ip: &mut [u8]) -> bool {
    match (ip.first().map(|b| b >> 4), ip.len()) {
        (Some(4), 20..) => {
            if ip[1] & ECN == 0 {
                return false;
            }
            let before = u16::from_be_bytes([ip[0], ip[1]]);
            ip[1] |= ECN;
            let after = u16::from_be_bytes([ip[0], ip[1]]);
            let sum = u16::from_be_bytes([ip[10], ip[11]]);
            let mut new = u32::from(!sum) + u32::from(!before) + u32::from(after);
            new = (new & 0xffff) + (new >> 16);
            new = (new & 0xffff) + (new >> 16);
            ip[10..12].copy_from_slice(&(!(new as u16)).to_be_bytes());
            true
        }
        (Some(6), 40..) => {
            // The traffic class lies across the first two bytes; its low two bits are the upper ones of the second byte's lower half.
            if ip[1] & ECN << 4 == 0 {
                return false;
            }
            ip[1] |= ECN << 4;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(ip: &[u8]) -> u16 {
        let mut sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn v4(tos: u8, id: u16) -> Vec<u8> {
        let mut ip = vec![0x45, tos, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        let sum = sum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    #[test]
    fn ipv4_is_marked_and_its_checksum_stays_right() {
        for id in 0..=u16::MAX {
            for (tos, marked) in [(0xb9, 0xbb), (0xba, 0xbb), (0xbb, 0xbb)] {
                let mut ip = v4(tos, id);
                assert!(mark(&mut ip));
                assert_eq!(ip[1], marked);
                assert_eq!(sum(&ip), 0, "id {id}");
            }
        }
        let (mut ip, before) = (v4(0xb8, 7), v4(0xb8, 7));
        assert!(!mark(&mut ip));
        assert_eq!(ip, before);
    }

    #[test]
    fn ipv6_is_marked_in_its_traffic_class() {
        let mut ip = vec![0; 40];
        ip[..4].copy_from_slice(&0x6ab1_2345u32.to_be_bytes());
        assert!(mark(&mut ip));
        assert_eq!(ip[..4], 0x6ab1_2345u32.to_be_bytes(), "0xab is marked already");
        ip[..4].copy_from_slice(&0x6aa1_2345u32.to_be_bytes());
        assert!(mark(&mut ip));
        assert_eq!(ip[..4], 0x6ab1_2345u32.to_be_bytes());
        ip[..4].copy_from_slice(&0x6a81_2345u32.to_be_bytes());
        assert!(!mark(&mut ip));
        assert_eq!(ip[..4], 0x6a81_2345u32.to_be_bytes());
    }

    #[test]
    fn what_is_no_ip_header_is_left_alone() {
        assert!(!mark(&mut []) && !mark(&mut [0x45; 19]) && !mark(&mut [0x6f; 39]) && !mark(&mut [0xff; 64]));
    }
}
