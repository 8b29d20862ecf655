//! A minimal single-purpose AF_PACKET forwarder, to measure against: TPACKET_V3 in, TPACKET_V2 out past the queueing
//! discipline, one direction, one thread, nothing of Ferrule's. It swaps the MAC addresses, or writes the one given.
//!
//!     packet_min IN OUT [DESTINATION-MAC]
//!
//! Prints the packets of each second until it is killed. Only whole blocks are read, as the kernel's documentation has it.

use std::io;
use std::process::exit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

const BLOCK: usize = 128 << 10;
const BLOCKS: usize = 32;
const SLOT: usize = 2048;
const SLOTS: usize = 1024;
/// Where a slot's frame starts.
const SLOT_DATA: usize = size_of::<libc::tpacket2_hdr>();

fn check(result: libc::c_int, call: &str) -> libc::c_int {
    if result < 0 {
        eprintln!("packet_min: {call}: {}", io::Error::last_os_error());
        exit(2);
    }
    result
}

fn set<T>(fd: i32, name: i32, value: &T) {
    // SAFETY: the pointer and length describe `value`.
    let result = unsafe {
        libc::setsockopt(fd, libc::SOL_PACKET, name, ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t)
    };
    check(result, "setsockopt");
}

/// A packet socket on an interface, with what `ring` sets up before it is bound, and the ring mapped.
fn socket(interface: &str, protocol: u16, bytes: usize, ring: impl FnOnce(i32)) -> (i32, *mut u8) {
    let name = std::ffi::CString::new(interface).unwrap_or_default();
    // SAFETY: plain system calls; the name is a C string, the address is fully initialised, the mapping is a fresh one.
    unsafe {
        let index = libc::if_nametoindex(name.as_ptr());
        check(if index == 0 { -1 } else { 0 }, interface);
        let fd = check(libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0), "socket");
        ring(fd);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = index as i32;
        check(libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32), "bind");
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let base = libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
        check(if base == libc::MAP_FAILED { -1 } else { 0 }, "mmap");
        (fd, base.cast())
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, rest @ ..] = &arguments[..] else {
        eprintln!("usage: packet_min IN OUT [DESTINATION-MAC]");
        exit(2);
    };
    let destination: Option<Vec<u8>> =
        rest.first().map(|mac| mac.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect());

    let (receive, blocks) = socket(input, libc::ETH_P_ALL as u16, BLOCK * BLOCKS, |fd| {
        set(fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32));
        set(fd, libc::PACKET_IGNORE_OUTGOING, &1i32);
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: (BLOCK / SLOT * BLOCKS) as u32,
            tp_retire_blk_tov: 1,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(fd, libc::PACKET_RX_RING, &request);
    });
    let (transmit, slots) = socket(output, 0, SLOT * SLOTS, |fd| {
        set(fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32));
        set(fd, libc::PACKET_QDISC_BYPASS, &1i32);
        let request = libc::tpacket_req {
            tp_block_size: (SLOT * 32) as u32,
            tp_block_nr: (SLOTS / 32) as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set(fd, libc::PACKET_TX_RING, &request);
    });

    let (mut block, mut slot, mut sent, mut full) = (0, 0, 0u64, 0u64);
    let mut second = Instant::now();
    loop {
        // SAFETY: block < BLOCKS; a block with TP_STATUS_USER is ours, and its offsets are the kernel's, within the block.
        // Slot < SLOTS; a slot that is AVAILABLE is ours, and frames longer than a slot are left out.
        unsafe {
            let base = blocks.add(block * BLOCK);
            let header = base.add(8).cast::<libc::tpacket_hdr_v1>();
            let status = AtomicU32::from_ptr(ptr::addr_of_mut!((*header).block_status));
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                let mut poll = libc::pollfd { fd: receive, events: libc::POLLIN, revents: 0 };
                libc::poll(&mut poll, 1, 0);
            } else {
                let mut frame = base.add((*header).offset_to_first_pkt as usize);
                for number in 0..(*header).num_pkts {
                    let facts = frame.cast::<libc::tpacket3_hdr>();
                    let length = (*facts).tp_snaplen as usize;
                    let place = slots.add(slot * SLOT);
                    let free = AtomicU32::from_ptr(place.cast());
                    if length + SLOT_DATA <= SLOT && length >= 14 {
                        if free.load(Ordering::Acquire) == libc::TP_STATUS_AVAILABLE {
                            let (from, to) = (frame.add((*facts).tp_mac as usize), place.add(SLOT_DATA));
                            ptr::copy_nonoverlapping(from, to, length);
                            match destination.as_deref() {
                                Some(mac) if mac.len() == 6 => ptr::copy_nonoverlapping(mac.as_ptr(), to, 6),
                                _ => ptr::copy_nonoverlapping(from.add(6), to, 6),
                            }
                            ptr::copy_nonoverlapping(from, to.add(6), 6);
                            (*place.cast::<libc::tpacket2_hdr>()).tp_len = length as u32;
                            free.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
                            slot = (slot + 1) % SLOTS;
                            sent += 1;
                        } else {
                            full += 1;
                        }
                    }
                    if number % 64 == 63 {
                        libc::send(transmit, ptr::null(), 0, libc::MSG_DONTWAIT);
                    }
                    frame = frame.add((*facts).tp_next_offset as usize);
                }
                fence(Ordering::Release);
                status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
                block = (block + 1) % BLOCKS;
                libc::send(transmit, ptr::null(), 0, libc::MSG_DONTWAIT);
            }
        }
        if second.elapsed() >= Duration::from_secs(1) {
            println!("{sent} packets, {full} found the ring full");
            (sent, full, second) = (0, 0, Instant::now());
        }
    }
}
