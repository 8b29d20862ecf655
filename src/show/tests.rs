use super::*;
use crate::snapshot::sample;

const PLAIN: Style = Style { human: false, colour: false };

#[test]
fn ports_golden() {
    let text = ports(&sample::snapshot(), PLAIN);
    assert_eq!(
        text,
        "\
Port  State  Driver  Mode          Queues   MTU  MAC                Device   Host  VLAN
wan   up     xdp     native, copy       2  1500  02:00:00:00:00:01  wan.phy  wan   -
lan   down   packet  ring               2  9000  02:00:00:00:00:02  lan.phy  lan   -

Port    In  In bytes   Out  Out bytes  From host  To host  Copied
wan   1000     60000  3000    4500000          2        7       9
lan   3000   4500000   985      59100          0        0       0

Port  Lost before us  Lost after us  Re-attached
wan                4              0            0
lan                0              0            0

wan: xdp (native, copy) because auto: the best that the device supports
lan: packet (ring) because auto: the best that the device supports
"
    );
}

#[test]
fn workers_golden() {
    let text = workers(&sample::snapshot(), PLAIN);
    assert_eq!(
        text,
        "\
Worker  Core    Busy  Packets  Handed over  Taken over  Held  Ring in  Ring out  Busy loops  Idle loops  Sleeps  State
0          2  25.0 %     1000            0           0     3        0         0           0           0       0  ok
1          3   0.0 %     3002           11           0     0        0         0           0           0       0  STUCK

Skew: 1.50 (packets of the busiest worker over the mean)

Worker  Node   Packets  Calls  Packets/call  Cycles/packet
0       parse     1000     10         100.0            6.5
0       pf        1000     10         100.0           30.0
"
    );
}

#[test]
fn drops_golden() {
    let text = drops(&sample::snapshot(), false, PLAIN);
    assert_eq!(
        text,
        "\
Reason       Packets
ttl_expired        5
no_route           6

wan: 4 lost by the device before us, 0 after us (not counted above)
"
    );
    let all = drops(&sample::snapshot(), true, PLAIN);
    assert!(all.contains("\nshutdown ") && all.lines().count() > 40);
    assert_eq!(drops(&Snapshot::default(), false, PLAIN), "Nothing was dropped.\n");
}

#[test]
fn stats_golden() {
    let mut s = sample::snapshot();
    s.daemon.confirm_left_s = Some(12.34);
    let text = stats(&s, PLAIN);
    assert_eq!(
        text,
        "\
gateway:
        ferrule 0.1.0, process 4711, running, up 3725.5 s
        configuration /etc/ferrule/gateway.toml
        poll adaptive, dispatch direct, fastforward on
        not confirmed: rolls back in 12.3 s
packets:
        4000 received from devices
        2 received from the host
        5 generated
        3985 transmitted to devices
        7 given to the host
        11 dropped
        1 consumed
        3 held
        0 in hand at this moment (in minus out)
dropped:
        5 ttl_expired
        6 no_route
generated:
        5 icmp_error
consumed:
        1 fragmented
given to the host by class:
        7 neighbor
routes:
        3 IPv4
        2 IPv6
        4 next hops and groups
        67108864 bytes of memory
neighbours:
        2 reachable
        1 incomplete
events:
        1 netlink_resyncs
        2 reloads
"
    );
}

#[test]
fn routes_and_neighbors_golden() {
    let hop = |via: &str, port: &str, weight| NextHopRow {
        via: via.parse().ok(),
        port: port.into(),
        mac: (via == "192.0.2.1").then(|| "02:00:00:00:00:09".into()),
        weight,
    };
    let row = |prefix: &str, kind: &str, next_hops, metric| RouteRow {
        prefix: prefix.into(),
        kind: kind.into(),
        next_hops,
        source: "static".into(),
        metric,
    };
    let rows = [
        row("0.0.0.0/0", "forward", vec![hop("192.0.2.1", "wan", 1), hop("192.0.2.2", "wan2", 3)], Some(100)),
        row("198.18.0.0/15", "blackhole", vec![], None),
        row("2001:db8::/64", "forward", vec![hop("", "lan", 1)], None),
    ];
    assert_eq!(
        routes(&rows, PLAIN),
        "\
Destination    Kind       Gateway             Port  MAC                Source  Metric
0.0.0.0/0      forward    192.0.2.1           wan   02:00:00:00:00:09  static     100
                          192.0.2.2 weight 3  wan2  -
198.18.0.0/15  blackhole  -                   -     -                  static
2001:db8::/64  forward    connected           lan   -                  static
"
    );
    let neighbor = NeighborRow {
        address: "2001:db8::9".parse().unwrap(),
        port: "lan".into(),
        mac: None,
        state: "incomplete".into(),
        waiting: 3,
    };
    assert_eq!(
        neighbors(&[neighbor], PLAIN),
        "\
Address      Port  MAC  State       Waiting
2001:db8::9  lan   -    incomplete        3
"
    );
}

#[test]
fn findings_tell_what_to_type() {
    let f = Finding {
        severity: Severity::Error,
        subject: "eth0".into(),
        text: "GRO is on: merged frames are longer than the MTU".into(),
        mend: Some("ethtool -K eth0 gro off".into()),
    };
    assert_eq!(
        findings(std::slice::from_ref(&f), PLAIN),
        "error   eth0: GRO is on: merged frames are longer than the MTU\n        -> ethtool -K eth0 gro off\n"
    );
    assert!(findings(&[f], Style { colour: true, human: false }).starts_with("\x1b[31merror   \x1b[0meth0"));
}

#[test]
fn human_numbers_keep_three_digits() {
    let cases = [(0.0, "0"), (999.0, "999"), (1000.0, "1.00 k"), (12_345.0, "12.3 k"), (999_499.0, "999 k")];
    for (n, text) in cases {
        assert_eq!(human(n), text);
    }
    assert_eq!((human(999_500.0).as_str(), human(1.234e9).as_str()), ("1.00 M", "1.23 G"));
    assert_eq!(number(PLAIN, 12_345_678), "12345678");
}

#[test]
fn rates_never_go_negative() {
    let (a, b) = (FlowRow { packets: 10, bytes: 1000 }, FlowRow { packets: 30, bytes: 2000 });
    assert_eq!(rate(a, b, 2.0), (10.0, 4000.0));
    assert_eq!(rate(b, a, 2.0), (0.0, 0.0));
    assert_eq!(rate(a, b, 0.0), (0.0, 0.0));
}
