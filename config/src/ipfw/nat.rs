#![forbid(unsafe_code)]
//! `ipfw nat N config`: what it holds (ipfw(8), NETWORK ADDRESS TRANSLATION; libalias(3)).

use std::net::Ipv4Addr;

use serde::Serialize;

use super::ast::Range;

/// Configuration of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct NatConfig {
    /// Number of the instance; 0 is none.
    pub number: u32,
    /// `ip`: the alias address.
    pub address: Option<Ipv4Addr>,
    /// `if`: the alias address is this interface's, whatever it is at the time.
    pub interface: Option<String>,
    /// `log`
    pub log: bool,
    /// `deny_in`: incoming packets without a state are dropped.
    pub deny_in: bool,
    /// `same_ports`: keep the source port where it is free.
    pub same_ports: bool,
    /// `unreg_only`: only RFC 1918 sources are translated.
    pub unregistered_only: bool,
    /// `unreg_cgn`: only RFC 1918 and RFC 6598 sources are.
    pub unregistered_cgn: bool,
    /// `reset`: states end when the alias address changes.
    pub reset: bool,
    /// `reverse`: the roles of inside and outside exchanged.
    pub reverse: bool,
    /// `proxy_only`: only transparent proxying, no aliasing.
    pub proxy_only: bool,
    /// `skip_global`: `nat global` passes this instance over.
    pub skip_global: bool,
    /// `port_range LOW-HIGH`: alias ports to choose from.
    pub port_range: Option<Range<u16>>,
    /// `redirect_addr`, `redirect_port`, `redirect_proto`, in the order written.
    pub redirects: Vec<Redirect>,
}

/// One redirection from outside to inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Redirect {
    /// `redirect_addr LOCAL[,LOCAL...] PUBLIC`: with several locals, shared out (LSNAT, RFC 2391).
    Address {
        /// Inside.
        locals: Vec<Ipv4Addr>,
        /// Outside.
        public: Ipv4Addr,
    },
    /// `redirect_port PROTO LOCAL:PORT[-PORT][,...] [PUBLIC:]PORT[-PORT] [REMOTE[:PORT[-PORT]]]`.
    Port {
        /// TCP 6, UDP 17, SCTP 132.
        protocol: u8,
        /// Inside; the first port of a range as long as `ports`; several share the load.
        locals: Vec<(Ipv4Addr, Range<u16>)>,
        /// Outside address; None is the instance's own.
        public: Option<Ipv4Addr>,
        /// Outside ports.
        ports: Range<u16>,
        /// Only from this peer; ports 0-0 are any.
        remote: Option<(Ipv4Addr, Range<u16>)>,
    },
    /// `redirect_proto PROTO LOCAL [PUBLIC [REMOTE]]`.
    Protocol {
        /// IP protocol.
        protocol: u8,
        /// Inside.
        local: Ipv4Addr,
        /// Outside; None is the instance's own.
        public: Option<Ipv4Addr>,
        /// Only from this peer.
        remote: Option<Ipv4Addr>,
    },
}
