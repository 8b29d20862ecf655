//! Neighbours resolved by the kernel at our request, and a peer that changes its MAC without a word. Needs root.

mod kernel_common;

use ferrule::kernel::{
    Event, HostInterface, KernelFilter, Monitor, MonitorOptions, NeighborState, OnExit, PortId, ResolutionMode,
    TakeoverOptions, release_all,
};
use kernel_common::{Namespace, ifindex, inside, poll_until, run};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(40);
const OLD: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const NEW: [u8; 6] = [2, 0, 0, 0, 0, 0x22];

/// A link `device` with addresses, its peer with the MAC `OLD` in another namespace.
fn link(device: &str, peer: &Namespace) {
    run(&format!(
        "ip link add {device} type veth peer name far netns {0}; ip -n {0} link set far address 02:00:00:00:00:11
         ip -n {0} link set far up; ip link set {device} up
         ip addr add 192.0.2.1/24 dev {device}; ip -6 addr add 2001:db8::1/64 dev {device} nodad
         ip -n {0} addr add 192.0.2.2/24 dev far; ip -n {0} -6 addr add 2001:db8::2/64 dev far nodad",
        peer.name
    ));
}

/// The peer gets another MAC, keeps its addresses and does not announce it.
fn change_mac(peer: &Namespace) {
    peer.sh("echo 0 > /proc/sys/net/ipv4/conf/far/arp_notify; echo 0 > /proc/sys/net/ipv6/conf/far/ndisc_notify
             echo 1 > /proc/sys/net/ipv6/conf/far/keep_addr_on_down
             ip link set far address 02:00:00:00:00:22");
}

fn peers() -> [IpAddr; 2] {
    ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()]
}

/// Waits until both peers are usable with `mac`; returns all neighbour states seen on the way.
fn wait_for(monitor: &mut Monitor, mac: [u8; 6]) -> Vec<(IpAddr, NeighborState, Option<[u8; 6]>)> {
    let start = Instant::now();
    let has = |events: &[Event], peer: IpAddr| {
        events.iter().any(|event| {
            matches!(event, Event::Neighbor { address, state: NeighborState::Usable, lladdr, .. }
                if *address == peer && *lladdr == Some(mac))
        })
    };
    let events = poll_until(monitor, LIMIT, |events| peers().into_iter().all(|peer| has(events, peer)));
    eprintln!("{mac:02x?} after {:?}", start.elapsed());
    let read = |event| match event {
        Event::Neighbor { address, state, lladdr, .. } => Some((address, state, lladdr)),
        _ => None,
    };
    events.into_iter().filter_map(read).collect()
}

#[test]
fn a_neighbour_is_resolved_on_request_and_a_silent_one_fails() {
    inside(|_| {
        let peer = Namespace::new();
        link("pa", &peer);
        let pa = ifindex("pa");
        let mut monitor = Monitor::open(MonitorOptions::default()).unwrap();
        monitor.set_ports([(pa, PortId(3))]);
        poll_until(&mut monitor, LIMIT, |events| events.contains(&Event::Synchronized));
        for peer in peers() {
            monitor.request_resolution(pa, peer);
        }
        wait_for(&mut monitor, OLD);
        let nobody: IpAddr = "192.0.2.99".parse().unwrap();
        monitor.request_resolution(pa, nobody);
        let failed = |event: &Event| matches!(event, Event::Neighbor { address, state: NeighborState::Failed, port: PortId(3), .. } if *address == nobody);
        poll_until(&mut monitor, LIMIT, |events| events.iter().any(failed));
        assert_eq!(monitor.counters().refused_resolutions, 0);
        monitor.release_resolution(pa, nobody);
        assert!(!run("ip neigh show 192.0.2.99").contains("managed"));
        assert!(run("ip neigh show 192.0.2.2").contains("managed"), "the kernel cares for it by itself");
        // An unusable link is refused and counted, not fatal.
        monitor.request_resolution(4711, nobody);
        assert_eq!(monitor.counters().refused_resolutions, 1);
    });
}

#[test]
fn repeated_use_notices_a_mac_that_changed_silently() {
    inside(|_| {
        let peer = Namespace::new();
        link("pa", &peer);
        for family in ["ipv4", "ipv6"] {
            run(&format!(
                "cd /proc/sys/net/{family}/neigh/pa; echo 1500 > base_reachable_time_ms; echo 1 > delay_first_probe_time
                 echo 2 > ucast_solicit; echo 3 > mcast_resolicit"
            ));
        }
        let pa = ifindex("pa");
        let mut monitor = Monitor::open(MonitorOptions::default()).unwrap();
        monitor.resolver().configure(ResolutionMode::Repeated, Duration::from_millis(500));
        monitor.set_ports([(pa, PortId(0))]);
        for peer in peers() {
            monitor.request_resolution(pa, peer);
        }
        wait_for(&mut monitor, OLD);
        assert!(!run("ip neigh show 192.0.2.2").contains("managed"));
        change_mac(&peer);
        let seen = wait_for(&mut monitor, NEW);
        let usable = |(_, state, _): &(IpAddr, NeighborState, Option<[u8; 6]>)| *state == NeighborState::Usable;
        assert!(seen.iter().all(usable), "packets would have been held on the way: {seen:?}");
    });
}

#[test]
fn a_host_interface_resolves_over_its_nic_and_notices_a_mac_that_changed_silently() {
    inside(|namespace| {
        let peer = Namespace::new();
        link("em0", &peer);
        let directory = std::env::temp_dir().join(format!("ferrule-neighbors-{}", namespace.name));
        let options = TakeoverOptions { state_directory: directory.clone(), ..TakeoverOptions::default() };
        let mut filter = KernelFilter::open().unwrap();
        let mut interface = HostInterface::take_over("em0", &options, &mut filter).unwrap().interface;
        let relay = Relay::start(interface.take_queues().remove(0), interface.nic().unwrap().1);
        let mut monitor = Monitor::open(MonitorOptions::default()).unwrap();
        monitor.set_ports([(interface.ifindex(), PortId(0))]);
        for peer in peers() {
            monitor.request_resolution(interface.ifindex(), peer);
        }
        wait_for(&mut monitor, OLD);
        assert!(peer.try_sh("ping -c1 -W2 192.0.2.1 && ping -c1 -W2 2001:db8::1"), "the host answers through the TAP");
        change_mac(&peer);
        let seen = wait_for(&mut monitor, NEW);
        let usable = |(_, state, _): &(IpAddr, NeighborState, Option<[u8; 6]>)| *state == NeighborState::Usable;
        assert!(seen.iter().all(usable), "packets would have been held on the way: {seen:?}");
        drop(relay);
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
    });
}

/// What the data plane does for the host, in the simplest way: copies frames between the TAP and the NIC.
struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Relay {
    fn start(tap: OwnedFd, nic: u32) -> Self {
        let all = rustix::net::Protocol::from_raw(std::num::NonZeroU32::new(u32::from(3u16.to_be())).unwrap());
        let flags = SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(all)).unwrap();
        bind_to(&socket, nic);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                while let Ok(length) = rustix::io::read(&tap, &mut buffer) {
                    let _ = rustix::net::send(&socket, &buffer[..length], SendFlags::empty());
                }
                while let Ok((_, length)) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                    let _ = rustix::io::write(&tap, &buffer[..length]);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Relay { stop, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Binds an AF_PACKET socket to a device and has it ignore what we send ourselves.
fn bind_to(socket: &impl AsFd, nic: u32) {
    use std::os::fd::AsRawFd;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: all zeroes is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = 3u16.to_be();
    address.sll_ifindex = nic as i32;
    let length = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the address is a live local of the length given, the descriptor is open as long as `socket` is borrowed.
    assert_eq!(unsafe { libc::bind(descriptor, (&raw const address).cast(), length) }, 0);
    let on: i32 = 1;
    let set = |option| {
        // SAFETY: the option's value is a live local of the length given; the descriptor is open as above.
        unsafe { libc::setsockopt(descriptor, libc::SOL_PACKET, option, (&raw const on).cast(), 4) }
    };
    const PACKET_IGNORE_OUTGOING: i32 = 23;
    assert_eq!(set(PACKET_IGNORE_OUTGOING), 0);
}
