//! Taking a NIC over and giving it back: names, addresses, routes, silence, forwarding, kills. Needs root.

mod kernel_common;

use ferrule::kernel::{
    HostInterface, KernelError, KernelFilter, OnExit, TakeoverOptions, doctor, release_all, restore_left,
};
use kernel_common::{Namespace, inside, run};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory for records, removed with it.
struct State(PathBuf);

impl State {
    fn new(namespace: &Namespace) -> Self {
        let path = std::env::temp_dir().join(format!("ferrule-state-{}", namespace.name));
        std::fs::create_dir_all(&path).unwrap();
        State(path)
    }

    fn options(&self) -> TakeoverOptions {
        TakeoverOptions { state_directory: self.0.clone(), ..TakeoverOptions::default() }
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// em0 with addresses and routes of many kinds; its peer is in the namespace `peer`.
fn network(peer: &Namespace) {
    run(&format!(
        "ip link add em0 type veth peer name far netns {0}
         ip -n {0} link set far up; ip link set em0 mtu 1400; ip link set em0 up
         ip addr add 192.0.2.1/24 dev em0; ip addr add 192.0.2.5/24 dev em0; ip addr add 198.51.100.1/25 metric 77 dev em0
         ip addr add 192.0.2.9/32 dev em0 valid_lft 1000 preferred_lft 900
         ip -6 addr add 2001:db8:1::1/64 dev em0 nodad; ip -6 addr add 2001:db8:1::2/64 dev em0 nodad
         ip route add default via 192.0.2.254; ip route add 10.0.0.0/8 via 192.0.2.253 metric 50 src 192.0.2.5
         ip route add 10.9.0.0/16 dev em0 scope link proto static table 77
         ip route add 10.8.0.0/16 nexthop via 192.0.2.251 weight 2 nexthop via 192.0.2.252
         ip route add 10.7.0.0/16 via 203.0.113.1 dev em0 onlink mtu 1300
         ip nexthop add id 5 via 192.0.2.250 dev em0; ip route add 10.6.0.0/16 nhid 5
         ip -6 route add default via 2001:db8:1::fe; ip -6 route add 2001:db8:f::/48 via 2001:db8:1::fd metric 10
         ip -6 route add 2001:db8:e::/48 nexthop via 2001:db8:1::fb nexthop via 2001:db8:1::fc",
        peer.name
    ));
    peer.sh("ip addr add 192.0.2.254/24 dev far; ip -6 addr add 2001:db8:1::fe/64 dev far nodad
             ip route add default via 192.0.2.1");
    settle("em0");
}

/// Waits until no IPv6 address is tentative.
fn settle(device: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    while run(&format!("ip -6 addr show dev {device} tentative")).contains("inet6") {
        assert!(Instant::now() < end, "duplicate address detection does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// All that `ip` shows, less what ages by itself.
fn snapshot() -> Vec<String> {
    let mut lines = Vec::new();
    for what in ["-j addr show", "-4 -j route show table all", "-6 -j route show table all", "-j nexthop show"] {
        let mut value: serde_json::Value = serde_json::from_str(&run(&format!("ip {what}"))).unwrap();
        forget(&mut value, &["valid_life_time", "preferred_life_time", "dynamic", "stats", "expires"]);
        // Routes are a set to us: within one prefix their order follows from metrics.
        let mut entries: Vec<String> = value.as_array().unwrap().iter().map(ToString::to_string).collect();
        entries.sort();
        lines.extend(entries);
    }
    for key in ["ipv4/conf/em0/forwarding", "ipv4/conf/em0/rp_filter", "ipv6/conf/em0/disable_ipv6"] {
        lines.push(format!("{key} {}", std::fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap().trim()));
    }
    lines
}

fn forget(value: &mut serde_json::Value, keys: &[&str]) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| forget(item, keys)),
        serde_json::Value::Object(map) => {
            keys.iter().for_each(|key| {
                map.remove(*key);
            });
            map.values_mut().for_each(|item| forget(item, keys));
        }
        _ => {}
    }
}

fn assert_same(before: &[String], after: &[String]) {
    let lost: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    assert!(lost.is_empty() && new.is_empty(), "lost: {lost:#?}\nnew: {new:#?}");
}

#[test]
fn a_nic_is_taken_over_and_given_back_as_it_was() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let before = snapshot();
        let mut filter = KernelFilter::open().unwrap();
        let mut taken = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap();
        assert_eq!(taken.warnings, Vec::<String>::new());
        assert!(!taken.resumed);
        assert_eq!(taken.interface.take_queues().len(), 1);

        let links: serde_json::Value = serde_json::from_str(&run("ip -d -j link show")).unwrap();
        let link = |name: &str| links.as_array().unwrap().iter().find(|link| link["ifname"] == name).cloned().unwrap();
        assert_eq!(link("em0")["linkinfo"]["info_kind"], "tun");
        assert_eq!(link("em0")["address"], link("em0.phy")["address"]);
        assert_eq!(link("em0")["mtu"], 1400);
        assert!(!run("ip addr show dev em0.phy").contains("inet"), "no address on the NIC");
        let moved = run("ip addr show dev em0; ip route show table all; ip -6 route show");
        for wanted in [
            "192.0.2.1/24",
            "192.0.2.5/24",
            "192.0.2.9/32",
            "2001:db8:1::1/64",
            "default via 192.0.2.254 dev em0",
            "10.0.0.0/8 via 192.0.2.253 dev em0",
            "10.9.0.0/16 dev em0 table 77",
            "10.6.0.0/16 nhid 5 via 192.0.2.250 dev em0",
            "203.0.113.1 dev em0 onlink",
            "default via 2001:db8:1::fe dev em0",
            "2001:db8:f::/48 via 2001:db8:1::fd dev em0",
        ] {
            let squeezed = moved.replace("  ", " ");
            assert!(squeezed.contains(wanted), "{wanted} is not on the TAP:\n{moved}");
        }
        assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/conf/em0/arp_ignore").unwrap().trim(), "1");
        assert!(!state.is_empty(), "the record is there while we run");

        let refused = release_all(vec![taken.interface], OnExit::Kernel, &mut filter).unwrap();
        assert_eq!(refused, Vec::<String>::new());
        settle("em0");
        assert_same(&before, &snapshot());
        assert!(state.is_empty());
        assert!(peer.try_sh("ping -c1 -W2 192.0.2.1 && ping -c1 -W2 2001:db8:1::1"), "the kernel answers again");
    });
}

#[test]
fn a_killed_process_leaves_the_nic_closed_and_the_next_start_finds_it() {
    if let Ok(directory) = std::env::var("FERRULE_TEST_TAKEOVER") {
        // We are the process to be killed, already inside the namespace.
        let options = TakeoverOptions { state_directory: directory.into(), ..TakeoverOptions::default() };
        let mut filter = KernelFilter::open().unwrap();
        let mut taken = HostInterface::take_over("em0", &options, &mut filter).unwrap();
        run("ip addr add 192.0.2.77/24 dev em0");
        taken.interface.refresh_record().unwrap();
        std::fs::write(options.state_directory.join("ready"), "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        unreachable!("the parent kills us");
    }
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        // The box is a kernel router with a second leg.
        run("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
                      ip link add leg type veth peer name stub; ip link set leg addrgenmode none; ip addr add 172.16.0.1/24 dev leg; ip link set leg up; ip link set stub up
                      ip neigh add 172.16.0.2 lladdr 02:00:00:00:00:02 dev leg");
        settle("stub");
        let before = snapshot();
        assert!(peer.try_sh("ping -c1 -W2 172.16.0.1"), "the kernel router answers at first");
        let leg_sent = || run("cat /proc/thread-self/net/dev | grep leg | awk '{print $11}'");
        let count = leg_sent();
        peer.try_sh("ping -c2 -i0.2 -W1 172.16.0.2");
        assert_ne!(leg_sent(), count, "the kernel router forwards at first");

        let mut child = std::process::Command::new("ip")
            .args(["netns", "exec", &namespace.name])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_leaves_the_nic_closed_and_the_next_start_finds_it"])
            .env("FERRULE_TEST_TAKEOVER", &state.0)
            .spawn()
            .unwrap();
        wait_for(&state.0.join("ready"));
        std::fs::remove_file(state.0.join("ready")).unwrap();
        child.kill().unwrap(); // `ip netns exec` has become the test binary itself.
        child.wait().unwrap();

        assert!(!run("nft list tables").contains("ferrule"), "our tables die with us");
        let links = run("ip -br link");
        assert!(links.contains("em0.phy") && !links.contains("em0 "), "{links}");
        let count = leg_sent();
        assert!(!peer.try_sh("ping -c2 -i0.2 -W1 172.16.0.1"), "closed: not even the box's other address answers");
        assert!(!peer.try_sh("ping -c2 -i0.2 -W1 172.16.0.2"), "closed: nothing is forwarded");
        assert_eq!(leg_sent(), count, "nothing left on the other leg");

        // Records outlive us; with the right MAC the peer still gets nothing through.
        let json: serde_json::Value = serde_json::from_str(&run("ip -j link show em0.phy")).unwrap();
        let mac = json[0]["address"].as_str().unwrap();
        peer.sh(&format!("ip neigh replace 192.0.2.1 lladdr {mac} dev far nud permanent"));
        assert!(!peer.try_sh("ping -c2 -i0.2 -W1 172.16.0.1 || ping -c2 -i0.2 -W1 172.16.0.2"));
        assert_eq!(leg_sent(), count, "nothing left on the other leg");
        peer.sh("ip neigh del 192.0.2.1 dev far");

        let mut filter = KernelFilter::open().unwrap();
        let taken = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap();
        assert!(taken.resumed);
        let addresses = run("ip addr show dev em0");
        for wanted in ["192.0.2.1/24", "192.0.2.77/24", "2001:db8:1::1/64"] {
            assert!(addresses.contains(wanted), "{wanted} is not back:\n{addresses}");
        }
        assert!(run("ip route").contains("default via 192.0.2.254 dev em0"));
        release_all(vec![taken.interface], OnExit::Kernel, &mut filter).unwrap();
        settle("em0");
        assert_same(&before, &snapshot());
        assert!(peer.try_sh("ping -c1 -W2 172.16.0.1"), "the kernel routes again");
    });
}

fn wait_for(path: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < end, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_closed_exit_leaves_the_nic_down_and_a_start_resumes() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let before = snapshot();
        let mut filter = KernelFilter::open().unwrap();
        let taken = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap();
        release_all(vec![taken.interface], OnExit::Closed, &mut filter).unwrap();
        drop(filter);
        assert!(run("ip -br link show em0.phy").contains("DOWN"));
        assert!(!peer.try_sh("ping -c1 -W1 192.0.2.1"));

        let mut filter = KernelFilter::open().unwrap();
        let taken = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap();
        assert!(taken.resumed);
        assert!(run("ip addr show dev em0").contains("192.0.2.1/24"));
        let running = restore_left("em0", &state.0).unwrap_err();
        assert!(matches!(running, KernelError::Taken { .. }), "{running}");
        release_all(vec![taken.interface], OnExit::Closed, &mut filter).unwrap();
        drop(filter);

        // The administrator wants the kernel router back, without ferrule.
        assert_eq!(restore_left("em0", &state.0).unwrap(), Vec::<String>::new());
        settle("em0");
        assert_same(&before, &snapshot());
        assert!(state.is_empty());
        assert!(matches!(restore_left("em0", &state.0), Err(KernelError::Taken { .. })));
    });
}

#[test]
fn the_kernel_is_deaf_on_the_nic_while_packet_sockets_hear() {
    inside(|namespace| {
        let (peer, _state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let socket = packet_socket();
        assert!(peer.try_sh("ping -c1 -W2 192.0.2.1"));
        let mut filter = KernelFilter::open().unwrap();
        filter.silence("em0").unwrap();
        drain(&socket);
        assert!(!peer.try_sh("ping -c2 -i0.2 -W1 192.0.2.1"), "the kernel still answers");
        let heard = drain(&socket);
        assert!(
            heard.iter().any(|frame| frame.get(23) == Some(&1) && frame.get(34) == Some(&8)),
            "no echo request heard"
        );
        assert!(run("nft list tables").contains("table netdev ferrule"));
        let tables = run("nft flush ruleset || true; nft list tables");
        assert!(tables.contains("table netdev ferrule"), "`nft flush ruleset` reaches us: {tables}");
        filter.unsilence("em0").unwrap();
        assert!(peer.try_sh("ping -c1 -W2 192.0.2.1"));
        filter.silence("em0").unwrap();
        drop(filter);
        assert!(peer.try_sh("ping -c1 -W2 192.0.2.1"), "the drop ends with its owner");
    });
}

/// An AF_PACKET socket that hears the frames of all devices.
fn packet_socket() -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let all = rustix::net::Protocol::from_raw(std::num::NonZeroU32::new(u32::from(3u16.to_be())).unwrap());
    socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(all)).unwrap()
}

fn drain(socket: &impl AsFd) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok((_, length)) = rustix::net::recv(socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
        frames.push(buffer[..length.min(2048)].to_vec());
    }
    frames
}

#[test]
fn the_kernel_does_not_forward_between_ports() {
    inside(|_| {
        let (left, right) = (Namespace::new(), Namespace::new());
        run(&format!(
            "ip link add em0 type veth peer name far netns {}; ip link add em1 type veth peer name far netns {}
             ip link set em0 up; ip link set em1 up; ip addr add 10.0.1.1/24 dev em0; ip addr add 10.0.2.1/24 dev em1
             ip -6 addr add 2001:db8:1::1/64 dev em0 nodad; ip -6 addr add 2001:db8:2::1/64 dev em1 nodad
             echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
            left.name, right.name
        ));
        for (side, number) in [(&left, 1), (&right, 2)] {
            side.sh(&format!(
                "ip link set far up; ip addr add 10.0.{number}.2/24 dev far; ip -6 addr add 2001:db8:{number}::2/64 dev far nodad
                 ip route add default via 10.0.{number}.1; ip -6 route add default via 2001:db8:{number}::1"
            ));
        }
        for side in [&left, &right] {
            side.sh("while ip -6 addr show tentative | grep -q inet6; do sleep 0.1; done");
        }
        settle("em0");
        settle("em1");
        let through =
            || (left.try_sh("ping -c2 -i0.3 -W1 10.0.2.2"), left.try_sh("ping -6 -c2 -i0.3 -W1 2001:db8:2::2"));
        assert_eq!(through(), (true, true), "the kernel forwards at first");
        let mut filter = KernelFilter::open().unwrap();
        filter.set_ports(["em0", "em1"]).unwrap();
        assert_eq!(through(), (false, false), "the kernel forwards between ports");
        filter.set_ports(["em0"]).unwrap();
        assert_eq!(through(), (true, true), "one port alone is no pair");
        filter.set_ports(["em0", "em1"]).unwrap();
        drop(filter);
        assert_eq!(through(), (true, true), "the rule ends with its owner");
    });
}

#[test]
fn wrong_names_are_refused_and_nothing_is_touched() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let before = snapshot();
        let mut filter = KernelFilter::open().unwrap();
        let mut refuse = |name: &str| HostInterface::take_over(name, &state.options(), &mut filter).unwrap_err();
        let KernelError::NoDevice { existing, .. } = refuse("em7") else { panic!("em7 exists?") };
        assert!(existing.contains("em0"), "{existing}");
        assert!(matches!(refuse("averylongname"), KernelError::NameTooLong { .. }));
        assert!(matches!(refuse("lo"), KernelError::Taken { .. }));
        assert_same(&before, &snapshot());
        assert!(state.is_empty());
        let second = KernelFilter::open().unwrap_err();
        assert!(matches!(second, KernelError::Taken { .. }), "{second}");
    });
}

#[test]
fn a_vlan_port_has_a_tap_of_its_own_and_keeps_its_addresses_over_a_kill() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let options = TakeoverOptions { promiscuous: true, ..state.options() };
        let mut filter = KernelFilter::open().unwrap();
        let parent = HostInterface::take_over("em0", &options, &mut filter).unwrap().interface;
        let mut vlan = HostInterface::create_vlan("em0.10", &parent, 1400, &options).unwrap().interface;
        assert_eq!(vlan.mac(), parent.mac());
        vlan.add_address("10.10.0.1/24".parse().unwrap()).unwrap();
        vlan.refresh_record().unwrap();
        drop(vlan);
        assert!(!run("ip -br link").contains("em0.10"));
        let again = HostInterface::create_vlan("em0.10", &parent, 1400, &options).unwrap();
        assert!(again.resumed);
        assert!(run("ip addr show dev em0.10").contains("10.10.0.1/24"));
        release_all(vec![again.interface, parent], OnExit::Kernel, &mut filter).unwrap();
        assert!(state.is_empty());
    });
}

#[test]
fn vlan_tags_stay_in_the_frames_while_it_is_ours() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        run("ethtool -K em0 rx-vlan-stag-hw-parse off");
        let features = |nic: &str| {
            let all = run(&format!("ethtool -k {nic}"));
            ["rx-vlan-offload: on", "rx-vlan-stag-hw-parse: on"].map(|feature| all.contains(feature))
        };
        assert_eq!(features("em0"), [true, false]);
        let options = TakeoverOptions { tags_in_frames: true, ..state.options() };
        let mut filter = KernelFilter::open().unwrap();
        let interface = HostInterface::take_over("em0", &options, &mut filter).unwrap().interface;
        assert_eq!(features("em0.phy"), [false, false]);
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();
        assert_eq!(features("em0"), [true, false], "as found");
        let interface = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap().interface;
        assert_eq!(features("em0.phy"), [true, false], "AF_PACKET is told of the tag");
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();
    });
}

#[test]
fn a_veth_gets_finished_frames_while_it_is_ours() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let features = |nic: &str| {
            let all = run(&format!("ethtool -k {nic}"));
            [
                "tx-checksumming: on",
                "tx-checksum-sctp: on",
                "tx-tcp-segmentation: on",
                "tx-tcp6-segmentation: on",
                "tx-tcp-ecn-segmentation: on",
                "tx-tcp-mangleid-segmentation: on",
            ]
            .map(|feature| all.contains(feature))
        };
        assert_eq!(features("em0"), [true; 6]);
        let options = TakeoverOptions { finished_by_kernel: true, ..state.options() };
        let mut filter = KernelFilter::open().unwrap();
        let interface = HostInterface::take_over("em0", &options, &mut filter).unwrap().interface;
        assert_eq!(features("em0.phy"), [false; 6]);
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();
        assert_eq!(features("em0"), [true; 6], "as found");
        let interface = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap().interface;
        assert_eq!(features("em0.phy"), [true; 6]);
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();

        run("ethtool -K em0 tx off");
        let found = features("em0");
        let interface = HostInterface::take_over("em0", &options, &mut filter).unwrap().interface;
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();
        assert_eq!(features("em0"), found, "what was off stays off");
    });
}

#[test]
fn a_nic_that_disappears_and_comes_back_is_adopted_again() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let mut filter = KernelFilter::open().unwrap();
        let mut interface = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap().interface;
        let mac = interface.mac().map(|byte| format!("{byte:02x}")).join(":");
        run("ip link del em0.phy");
        let gone = interface.readopt(&state.options(), &mut filter).unwrap_err();
        assert!(matches!(gone, KernelError::NoDevice { .. }), "{gone}");
        run(&format!(
            "ip link add eth9 address {mac} type veth peer name far netns {0}; ip -n {0} link set far up; ip link set eth9 up
             ip -n {0} addr add 10.66.0.2/24 dev far; ip addr add 10.66.0.1/24 dev eth9",
            peer.name
        ));
        assert!(peer.try_sh("ping -c1 -W2 10.66.0.1"));
        interface.readopt(&state.options(), &mut filter).unwrap();
        let (name, index) = interface.nic().unwrap();
        assert_eq!((name, index), ("em0.phy", kernel_common::ifindex("em0.phy")));
        assert!(!run("ip addr show dev em0.phy").contains("inet"));
        assert!(run("ip addr show dev em0").contains("192.0.2.1/24"), "the TAP has kept what it had");
        assert!(!peer.try_sh("ping -c1 -W1 10.66.0.1"));
        release_all(vec![interface], OnExit::Kernel, &mut filter).unwrap();
        assert!(peer.try_sh("ping -c1 -W2 10.66.0.1"));
    });
}

#[test]
fn a_nic_made_anew_under_us_is_given_back_with_what_the_first_one_had_after_a_kill() {
    inside(|namespace| {
        let (peer, state) = (Namespace::new(), State::new(namespace));
        network(&peer);
        let wanted = global(&run("ip addr show dev em0"));
        assert!(wanted.len() > 3, "{wanted:?}");
        let mut filter = KernelFilter::open().unwrap();
        let mut interface = HostInterface::take_over("em0", &state.options(), &mut filter).unwrap().interface;
        let mac = interface.mac().map(|byte| format!("{byte:02x}")).join(":");
        run("ip link del em0.phy");
        run(&format!(
            "ip link add eth9 address {mac} type veth peer name far netns {0}; ip -n {0} link set far up; ip link set eth9 up
             ip -n {0} addr add 192.0.2.254/24 dev far",
            peer.name
        ));
        interface.readopt(&state.options(), &mut filter).unwrap();
        drop((interface, filter));
        assert_eq!(restore_left("em0", &state.0).unwrap(), Vec::<String>::new());
        settle("em0");
        assert_eq!(global(&run("ip addr show dev em0")), wanted);
        let routes = run("ip route");
        assert!(
            routes.contains("default via 192.0.2.254 dev em0") && routes.contains("10.6.0.0/16 nhid 5"),
            "{routes}"
        );
        assert!(peer.try_sh("ping -c1 -W2 192.0.2.1"));
    });
}

/// The global addresses that `ip addr show` shows, sorted.
fn global(shown: &str) -> Vec<String> {
    let lines = shown.lines().filter(|line| line.contains("inet") && line.contains("scope global"));
    let mut addresses: Vec<String> =
        lines.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect();
    addresses.sort();
    addresses
}

#[test]
fn the_doctor_reports_a_veth() {
    inside(|_| {
        run(
            "ip link add em0 numrxqueues 2 numtxqueues 2 type veth peer name far; ip link set em0 up; ip link set far up",
        );
        let report = doctor::examine(&["em0"], &[0]).unwrap();
        let device = &report.devices[0];
        assert_eq!(device.driver.as_deref(), Some("veth"));
        assert_eq!(device.channels.unwrap().receive_queues(), 2);
        assert!(device.features.as_ref().unwrap().contains("tx-checksum-ip-generic"), "{:?}", device.features);
        assert_ne!(device.xdp, doctor::XdpSupport::Generic, "veth has native XDP");
        let problems: Vec<_> = report.problems.iter().filter(|problem| problem.subject == "em0").collect();
        assert!(problems.iter().any(|problem| problem.mend.starts_with("ethtool -L em0")), "{problems:?}");
        let gro = || doctor::examine(&["em0"], &[0]).unwrap().devices[0].features.clone().unwrap().contains("rx-gro");
        run("ethtool -K em0 gro on");
        assert!(gro());
        run("ethtool -K em0 gro off");
        assert!(!gro());
        for line in report.lines() {
            eprintln!("{line}");
        }
        assert!(matches!(doctor::examine(&["em9"], &[0]), Err(KernelError::NoDevice { .. })));
    });
}
