#![forbid(unsafe_code)]
//! Properties: the print of any gateway means that gateway; no input makes the parser panic, and what it says can be
//! shown.

use super::port::{NAME_MAX, Vlan};
use super::*;
use crate::diagnostic::Diagnostics;
use crate::render::{Color, render_all};
use crate::span::{Located, Place, Source};
use ipnetwork::IpNetwork;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Parses, and holds what must hold for any text.
fn read(text: &str) {
    match parse(text) {
        Ok(gateway) => {
            let printed = gateway.to_string();
            assert_eq!(parse(&printed).as_ref(), Ok(&gateway), "{text}");
            render_all(&gateway.notes(), &Source::new("g", text), Color::Yes);
        }
        Err(errors) => {
            assert!(!errors.is_empty() && errors.len() <= Diagnostics::LIMIT + 1);
            let source = Source::new("g", text);
            for error in &errors {
                for span in error.labels.iter().map(|label| label.span).chain([error.span]) {
                    let place = text.get(span.start as usize..span.end as usize);
                    assert!(place.is_some(), "{span:?} of {error:?} is not in\n{text}");
                }
                let rendered = error.render(&source, Color::No);
                assert!(!rendered.chars().any(|c| c.is_control() && c != '\n'), "{rendered:?}");
            }
        }
    }
}

fn located<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> impl Strategy<Value = Located<T>> {
    strategy.prop_map(Located::from)
}

fn word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_.-]{0,20}"
}

fn engine() -> impl Strategy<Value = Engine> {
    let poll =
        prop_oneof![Just(Poll::Busy), Just(Poll::Adaptive), of(50..=50_000_u32).prop_map(|hz| Poll::Interrupt { hz })];
    let hugepages = select(vec![HugePages::Prefer, HugePages::Require, HugePages::Off]);
    let watchdog = of((100..=3_600_000_u64).prop_map(Duration::from_millis));
    let cores = select(vec![vec![], vec![3], vec![7, 0, 1023]]);
    let first = (of(located(word())), any::<bool>(), any::<bool>(), located(poll), 1..=256_u16, of(1..=256_u16));
    let second = (cores, located(1024..=4_194_304_u32), located(hugepages), watchdog, of(located(word())));
    (first, second).prop_map(
        |((name, queued, fastforward, poll, batch, workers), (cores, buffers, hugepages, watchdog, user))| {
            let workers = workers.map(|count| if cores.is_empty() { count } else { cores.len() as u16 }.into());
            let cores = cores.into_iter().map(Located::from).collect();
            let dispatch = if queued { Dispatch::Queued } else { Dispatch::Direct };
            let on_exit = OnExit::Closed.into();
            Engine {
                name,
                on_exit,
                dispatch,
                fastforward,
                poll,
                batch,
                workers,
                cores,
                buffers,
                hugepages,
                watchdog,
                user,
            }
        },
    )
}

fn control() -> impl Strategy<Value = Control> {
    let socket = "/[a-z\"\\\\ é]{1,20}".prop_map(PathBuf::from);
    let metrics = select(vec!["127.0.0.1:9100", "127.8.8.8:1", "[::1]:65535"]).prop_map(|text| text.parse().unwrap());
    (located(socket), of(located(word())), of(located(word())), of(located(metrics)))
        .prop_map(|(socket, write_group, read_group, metrics)| Control { socket, write_group, read_group, metrics })
}

fn host(enabled: bool) -> impl Strategy<Value = Host> {
    let rate = (1..=10_000_000_u32, 1..=10_000_000_u32, 1..=10_000_000_u32, 1..=10_000_000_u32)
        .prop_map(|(neighbor, routing, dhcp, other)| PuntRate { neighbor, routing, dhcp, other });
    (any::<bool>(), rate, 1..=16_u16, 1..=65_536_u32).prop_map(
        move |(dhcp_bypass, punt_rate, neighbor_queue, neighbor_limit)| {
            let default = Host::default();
            let (dhcp_bypass, punt_rate) =
                if enabled { (dhcp_bypass, punt_rate) } else { (default.dhcp_bypass, default.punt_rate) };
            Host { enabled: enabled.into(), dhcp_bypass, punt_rate, neighbor_queue, neighbor_limit }
        },
    )
}

/// The subnets of interface `number` differ from those of any other.
fn addresses(standalone: bool, number: usize) -> BoxedStrategy<Vec<Located<IpNetwork>>> {
    if !standalone {
        return Just(Vec::new()).boxed();
    }
    let all = [
        format!("10.{number}.0.1/24"),
        format!("10.{number}.0.2/25"),
        format!("10.{number}.1.0/31"),
        format!("2001:db8:{number:x}::1/64"),
        "fe80::1/64".to_owned(),
    ];
    let all: Vec<Located<IpNetwork>> = all.iter().map(|text| text.parse::<IpNetwork>().unwrap().into()).collect();
    proptest::sample::subsequence(all, 0..=5).boxed()
}

fn port(standalone: bool, number: usize) -> impl Strategy<Value = Port> {
    let device: Located<String> = format!("eth{number}").into();
    let mode = || select(vec![XdpMode::Auto, XdpMode::Native, XdpMode::Generic]);
    let (auto, xdp, packet, tap) = (device.clone(), device.clone(), device.clone(), device);
    let driver = prop_oneof![
        mode().prop_map(move |xdp_mode| Driver::Auto { device: auto.clone(), xdp_mode }),
        mode().prop_map(move |xdp_mode| Driver::Xdp { device: xdp.clone(), xdp_mode }),
        any::<bool>().prop_map(move |offload| Driver::Packet { device: packet.clone(), offload }),
        any::<bool>().prop_map(move |offload| Driver::Tap { device: tap.clone(), offload }),
        Just(Driver::Memory),
    ];
    let mac = any::<[u8; 6]>().prop_map(|mut octets| {
        octets[0] = octets[0] & 0xfe | 2;
        MacAddress(octets)
    });
    let vlans =
        (0..=2_usize).prop_flat_map(move |count| (0..count).map(|at| vlan(standalone, number, at)).collect::<Vec<_>>());
    let parts = (located(driver), of(located(1..=256_u16)), of(located(1280..=16_114_u16)), of(located(mac)));
    (parts, addresses(standalone, number), any::<bool>(), vlans).prop_map(
        move |((driver, queues, mtu, mac), addresses, ra, mut vlans)| {
            for vlan in &mut vlans {
                vlan.mtu = vlan.mtu.filter(|inner| mtu.is_none_or(|outer| inner.value <= outer.value));
            }
            Port {
                place: Place::default(),
                name: format!("em{number}").into(),
                mac: mac.filter(|_| standalone || driver.device().is_none()),
                driver,
                queues,
                mtu,
                addresses,
                accept_ra: (ra && !standalone).into(),
                vlans,
            }
        },
    )
}

fn vlan(standalone: bool, port: usize, at: usize) -> impl Strategy<Value = Vlan> {
    let number = 10 + 10 * port + at;
    let ids = (10 * at as u16 + 1)..=(10 * at as u16 + 9);
    let name = of(Just(format!("v{number}")));
    let parts = (located(ids), any::<bool>(), name, of(located(1280..=16_114_u16)));
    (parts, addresses(standalone, number), any::<bool>()).prop_map(move |((id, service, name, mtu), addresses, ra)| {
        Vlan {
            place: Place::default(),
            protocol: if service { VlanProtocol::Dot1Ad } else { VlanProtocol::Dot1Q },
            name: name.unwrap_or_else(|| format!("em{port}.{id}")).into(),
            id,
            mtu,
            addresses,
            accept_ra: (ra && !standalone).into(),
        }
    })
}

/// Routes and neighbours that fit the interfaces.
fn with_routes(mut gateway: Gateway, seeds: &[(Index, u32, u8)]) -> Gateway {
    let names: Vec<String> = gateway.interfaces().map(|interface| interface.name.value.clone()).collect();
    let subnets: Vec<IpNetwork> =
        gateway.interfaces().flat_map(|interface| interface.addresses).map(|address| address.value).collect();
    for (at, (pick, metric, kind)) in seeds.iter().enumerate() {
        let name = pick.get(&names).clone();
        // Hosts 77 and 78 of a subnet that has them are nobody's address.
        let subnet =
            (!subnets.is_empty()).then(|| *pick.get(&subnets)).filter(|net| net.prefix() <= 25 || net.prefix() == 64);
        let hops: Vec<Located<IpAddr>> = match subnet {
            Some(IpNetwork::V4(net)) => {
                [77, 78].map(|host| IpAddr::from((u32::from(net.network()) + host).to_be_bytes()).into()).into()
            }
            Some(IpNetwork::V6(net)) if !net.ip().is_unicast_link_local() => {
                vec![IpAddr::from((u128::from(net.network()) + 77).to_be_bytes()).into()]
            }
            _ => Vec::new(),
        };
        let ipv6 = hops.first().is_some_and(|hop| hop.is_ipv6());
        let to = if ipv6 { format!("2001:db8:f000:{at:x}::/64") } else { format!("172.16.{at}.0/24") };
        let kind = match kind % 4 {
            0 if !hops.is_empty() => RouteKind::Unicast { via: hops, port: None },
            0 | 1 => RouteKind::Unicast { via: Vec::new(), port: Some(name.clone().into()) },
            2 => RouteKind::Blackhole,
            _ => RouteKind::Prohibit,
        };
        gateway.routes.push(Route {
            place: Place::default(),
            to: to.parse::<IpNetwork>().unwrap().into(),
            kind,
            metric: *metric,
        });
        gateway.neighbors.push(Neighbor {
            place: Place::default(),
            port: name.into(),
            address: format!("fe80::77:{at:x}").parse::<IpAddr>().unwrap().into(),
            mac: MacAddress([2, 0, 0, 0, 0, at as u8]).into(),
        });
    }
    gateway
}

fn gateway() -> impl Strategy<Value = Gateway> {
    any::<bool>().prop_flat_map(|standalone| {
        let ports =
            (1..=4_usize).prop_flat_map(move |count| (0..count).map(|at| port(standalone, at)).collect::<Vec<_>>());
        let limits = (of(located(100..=16_777_216_u32)), of(located(1..=1_048_576_u32)))
            .prop_map(|(ipv4_routes, adjacencies)| Limits { ipv4_routes, ipv6_routes: None, adjacencies });
        let icmp = (0..=1_000_000_u32, 1..=100_000_u32).prop_map(|(rate, burst)| Icmp { rate, burst });
        let routes = vec((any::<Index>(), any::<u32>(), any::<u8>()), 0..6);
        let kernel = any::<bool>();
        (engine(), control(), host(!standalone), icmp, limits, ports, routes, kernel).prop_map(
            move |(mut engine, control, host, icmp, limits, ports, routes, kernel)| {
                if kernel && !standalone {
                    engine.on_exit = OnExit::Kernel.into();
                }
                let gateway = Gateway { engine, control, host, icmp, limits, ports, ..Gateway::default() };
                if standalone { with_routes(gateway, &routes) } else { gateway }
            },
        )
    })
}

/// A good file with a few slips of the hand.
fn mutated() -> impl Strategy<Value = String> {
    const GOOD: [&str; 3] = [
        include_str!("../../../examples/gateway.toml"),
        include_str!("../../../examples/standalone.toml"),
        include_str!("../../tests/gateway/routes.toml"),
    ];
    let piece = prop_oneof![
        select(vec![
            "\"",
            "[",
            "]",
            "[[port]]\n",
            "{",
            "}",
            "=",
            "\n",
            "#",
            ".",
            ",",
            "é",
            "\0",
            "'''",
            "-1",
            "true",
            "\\"
        ])
        .prop_map(str::to_owned),
        select(vec![
            "device = \"eth0\"\n",
            "[host]\nenabled = false\n",
            "via = [\"::1\", 3]\n",
            "port.vlan.id = 7\n",
            "[port.vlan.x]\n"
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,3}",
    ];
    let edits = vec((any::<Index>(), 0..12_usize, piece), 1..5);
    (select(GOOD.to_vec()), edits).prop_map(|(good, edits)| {
        let mut characters: Vec<char> = good.chars().collect();
        for (at, removed, piece) in edits {
            let at = at.index(characters.len() + 1);
            let end = (at + removed).min(characters.len());
            characters.splice(at..end, piece.chars());
        }
        characters.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_print_of_a_gateway_means_that_gateway(gateway in gateway()) {
        let printed = gateway.to_string();
        match parse(&printed) {
            Ok(read) => {
                prop_assert_eq!(&read, &gateway, "{}", printed);
                prop_assert_eq!(read.to_string(), printed);
            }
            Err(errors) => panic!("{}", render_all(&errors, &Source::new("print", &printed), Color::No)),
        }
    }

    #[test]
    fn mutated_files_are_read_without_panic(text in mutated()) {
        read(&text);
    }

    #[test]
    fn random_text_is_read_without_panic(text in "(\\PC|[\\[\\]{}=\"'.,#\n\t\\\\]|port|device|via|to|1){0,80}") {
        read(&text);
    }

    #[test]
    fn random_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = parse_bytes(&bytes);
    }
}

/// The largest files, made to hurt: each must be read in one pass. (What is quadratic would take minutes here.)
#[test]
fn large_files_cost_one_pass() {
    let full = |line: &dyn Fn(usize) -> String| {
        let mut text =
            String::from("[host]\nenabled = false\n[[port]]\ndevice = \"eth0\"\naddresses = [\"10.0.0.1/8\"]\n");
        let mut at = 0;
        while text.len() < MAX_BYTES - 200 {
            text.push_str(&line(at));
            at += 1;
        }
        text
    };
    let files = [
        "[".repeat(MAX_BYTES),
        "{".repeat(MAX_BYTES),
        "\n".repeat(MAX_BYTES),
        "=\n".repeat(MAX_BYTES / 2),
        "a=\"".repeat(MAX_BYTES / 3),
        "a".repeat(MAX_BYTES),
        format!("a = \"{}", "\\".repeat(MAX_BYTES - 10)),
        full(&|at| format!("key{at} = 1\n")),
        full(&|at| format!("[section{at}]\n")),
        full(&|_| "[[port]]\ndevice = \"eth0\"\naddresses = [\"10.0.0.1/8\"]\n".to_owned()),
        full(&|at| {
            format!(
                "[[port]]\nname = \"p{at}\"\ndriver = \"memory\"\naddresses = [\"11.0.{}.{}/32\"]\n",
                at >> 8 & 255,
                at & 255
            )
        }),
        full(&|at| {
            format!(
                "[[port.vlan]]\nid = {}\naddresses = [\"10.0.0.{}/{}\"]\n",
                at % 4094 + 1,
                at % 200 + 1,
                at % 30 + 1
            )
        }),
        full(&|at| format!("[[route]]\nto = \"172.{}.{}.0/24\"\nvia = \"10.0.0.2\"\n", at >> 8 & 255, at & 255)),
        full(&|at| format!("[[route]]\nto = \"172.16.{}.0/24\"\nvia = \"9.0.0.2\"\nport = \"eth{at}\"\n", at & 255)),
        full(&|at| {
            format!(
                "[[neighbor]]\nport = \"eth0\"\naddress = \"10.0.{}.{}\"\nmac = \"02:00:00:00:00:01\"\n",
                at >> 8 & 255,
                at & 255
            )
        }),
    ];
    for text in files {
        assert!(text.len() <= MAX_BYTES);
        match parse(&text) {
            Ok(gateway) => assert!(gateway.to_string().len() > 1000),
            Err(errors) => {
                let rendered = render_all(&errors, &Source::new("large", &text), Color::No);
                assert!(rendered.len() < 50_000, "{} bytes of diagnostics", rendered.len());
            }
        }
    }
}

#[test]
fn workers_are_counted_as_far_as_the_file_says() {
    let workers = |text: &str| parse(text).unwrap().workers();
    assert_eq!(workers("[[port]]\ndevice = \"a\"\n[[port]]\ndevice = \"b\"\nqueues = 3"), None);
    assert_eq!(workers("[[port]]\ndevice = \"a\"\nqueues = 2\n[[port]]\ndevice = \"b\"\nqueues = 3"), Some(3));
    assert_eq!(workers("[gateway]\ncores = [1, 4]\n[[port]]\ndevice = \"a\"\nqueues = 3"), Some(2));
    assert_eq!(workers("[gateway]\nworkers = 1\n[[port]]\ndevice = \"a\"\nqueues = 3"), Some(1));
}

#[test]
fn places_are_kept_for_later_complaints() {
    let text = "[[port]]\nname = \"em0\"\ndevice = \"eth0\"\n";
    let gateway = parse(text).unwrap();
    let device = gateway.ports[0].driver.device().unwrap();
    assert_eq!(&text[device.span.start as usize..device.span.end as usize], "\"eth0\"");
    let place = gateway.ports[0].place.0;
    assert_eq!(&text[place.start as usize..place.end as usize], "[[port]]");
    assert!(NAME_MAX >= gateway.ports[0].name.len());
}
