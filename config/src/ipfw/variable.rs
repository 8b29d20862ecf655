#![forbid(unsafe_code)]
//! The variables of the firewall: what `sysctl net.inet.ip.fw...` reads and sets (ipfw(8), SYSCTL VARIABLES).

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value at start.
    pub default: i64,
    /// Least value.
    pub least: i64,
    /// Greatest value.
    pub most: i64,
    /// False where it only shows something, or is set before start (`net.inet.ip.fw.default_to_accept`).
    pub writable: bool,
}

const fn variable(name: &'static str, default: i64, least: i64, most: i64) -> Variable {
    Variable { name, default, least, most, writable: true }
}

const fn flag(name: &'static str, default: i64) -> Variable {
    variable(name, default, 0, 1)
}

const fn shown(name: &'static str, default: i64) -> Variable {
    Variable { name, default, least: 0, most: i64::MAX, writable: false }
}

const SECONDS: i64 = i32::MAX as i64;

/// Every variable, by name.
pub const VARIABLES: [Variable; 45] = [
    flag("net.inet.ip.fw.enable", 1),
    flag("net.inet6.ip6.fw.enable", 1),
    flag("net.link.ether.ipfw", 0),
    flag("net.link.bridge.ipfw", 0),
    flag("net.inet.ip.fw.one_pass", 1),
    variable("net.inet.ip.fw.autoinc_step", 100, 1, 1000),
    flag("net.inet.ip.fw.verbose", 0),
    variable("net.inet.ip.fw.verbose_limit", 0, 0, SECONDS),
    flag("net.inet.ip.fw.debug", 0),
    flag("net.inet.ip.fw.skipto_cache", 0),
    shown("net.inet.ip.fw.default_rule", 65535),
    flag("net.inet.ip.fw.default_to_accept", 0).fixed(),
    variable("net.inet.ip.fw.tables_max", 65535, 1, 65535),
    flag("net.inet.ip.fw.tables_sets", 0),
    shown("net.inet.ip.fw.static_count", 0),
    variable("net.inet.ip.fw.dyn_buckets", 256, 1, 65536),
    shown("net.inet.ip.fw.curr_dyn_buckets", 256),
    shown("net.inet.ip.fw.dyn_count", 0),
    shown("net.inet.ip.fw.curr_max_length", 0),
    variable("net.inet.ip.fw.dyn_max", 16384, 1, 1 << 31),
    variable("net.inet.ip.fw.dyn_parent_max", 4096, 1, 1 << 31),
    shown("net.inet.ip.fw.dyn_parent_count", 0),
    variable("net.inet.ip.fw.dyn_ack_lifetime", 300, 1, SECONDS),
    variable("net.inet.ip.fw.dyn_syn_lifetime", 20, 1, SECONDS),
    variable("net.inet.ip.fw.dyn_fin_lifetime", 1, 1, 4),
    variable("net.inet.ip.fw.dyn_rst_lifetime", 1, 1, 4),
    variable("net.inet.ip.fw.dyn_udp_lifetime", 10, 1, SECONDS),
    variable("net.inet.ip.fw.dyn_short_lifetime", 5, 1, SECONDS),
    flag("net.inet.ip.fw.dyn_keepalive", 1),
    flag("net.inet.ip.fw.dyn_keep_states", 0),
    flag("net.inet6.ip6.fw.deny_unknown_exthdrs", 1),
    flag("net.inet.ip.fw.permit_single_frag6", 1),
    flag("net.inet6.ip6.fw.permit_single_frag6", 1),
    flag("net.inet.ip.dummynet.io_fast", 0),
    flag("net.inet.ip.dummynet.debug", 0),
    variable("net.inet.ip.dummynet.hash_size", 64, 16, 65536),
    variable("net.inet.ip.dummynet.pipe_slot_limit", 100, 1, 1 << 24),
    variable("net.inet.ip.dummynet.pipe_byte_limit", 1_048_576, 1500, 1 << 31),
    variable("net.inet.ip.dummynet.red_lookup_depth", 256, 1, 65536),
    variable("net.inet.ip.dummynet.red_avg_pkt_size", 512, 1, 65535),
    variable("net.inet.ip.dummynet.red_max_pkt_size", 1500, 1, 65535),
    flag("net.inet.ip.dummynet.expire", 1),
    variable("net.inet.ip.dummynet.expire_cycle", 0, 0, SECONDS),
    variable("net.inet.ip.dummynet.max_chain_len", 16, 1, 65536),
    shown("net.inet.ip.dummynet.tick_lost", 0),
];

impl Variable {
    /// Why another value than that at start would change nothing here; None where it does change something.
    pub fn without_effect(&self) -> Option<&'static str> {
        Some(match self.name {
            "net.link.bridge.ipfw" => "there is no bridge, so no bridged frames to judge",
            "net.inet.ip.fw.debug" | "net.inet.ip.dummynet.debug" => "there are no such messages: use rules with log",
            "net.inet.ip.fw.skipto_cache" => "rules are compiled, a skipto to a computed number needs no cache",
            "net.inet.ip.fw.tables_max" => "the number of tables is bounded by memory alone",
            "net.inet.ip.fw.tables_sets" => "tables belong to all sets",
            "net.inet.ip.fw.dyn_buckets" => "the number of buckets follows the number of states",
            "net.inet6.ip6.fw.deny_unknown_exthdrs" => "packets with unknown extension headers are always dropped",
            "net.inet.ip.fw.permit_single_frag6" | "net.inet6.ip6.fw.permit_single_frag6" => {
                "single fragments of IPv6 always go to the rules"
            }
            "net.inet.ip.dummynet.hash_size" | "net.inet.ip.dummynet.max_chain_len" => {
                "the number of buckets follows the number of queues"
            }
            "net.inet.ip.dummynet.red_lookup_depth" => "RED computes its probabilities, without a table",
            "net.inet.ip.dummynet.red_avg_pkt_size" | "net.inet.ip.dummynet.red_max_pkt_size" => {
                "RED reckons with FreeBSD's values of packet sizes"
            }
            "net.inet.ip.dummynet.expire_cycle" => "queues that are empty go after a second",
            _ => return None,
        })
    }

    const fn fixed(mut self) -> Self {
        self.writable = false;
        self
    }
}

/// The variable of this name.
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}
