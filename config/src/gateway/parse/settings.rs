#![forbid(unsafe_code)]
//! Reads `[gateway]`, `[control]`, `[host]`, `[icmp]` and `[limits]`.

use super::{Doubts, Reader, complaint};
use crate::diagnostic::{Diagnostic, quoted};
use crate::document::Kind;
use crate::gateway::section::{Section, integer, wrong_type};
use crate::gateway::settings::{
    ADJACENCIES, BATCH, BUFFERS, CORE, Control, Dispatch, Engine, HZ, Host, HugePages, ICMP_BURST, ICMP_RATE, Icmp,
    Limits, NEIGHBOR_LIMIT, NEIGHBOR_QUEUE, OnExit, PUNT_RATE, Poll, PuntRate, ROUTES, SOCKET_PATH_MAX, WATCHDOG,
    WORKERS,
};
use crate::span::Located;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

impl Reader<'_> {
    pub(super) fn engine(&mut self, section: &Section<'_>) -> Engine {
        let default = Engine::default();
        let at = section.span;
        let name = section.string("name", self.diagnostics);
        Engine {
            name: name.and_then(|name| self.parsed(name, gateway_name)),
            on_exit: section
                .choice("on_exit", &[("closed", OnExit::Closed), ("kernel", OnExit::Kernel)], self.diagnostics)
                .unwrap_or(Located::new(OnExit::Closed, at)),
            dispatch: section
                .choice("dispatch", &[("direct", Dispatch::Direct), ("queued", Dispatch::Queued)], self.diagnostics)
                .map_or(default.dispatch, |dispatch| dispatch.value),
            fastforward: section.boolean("fastforward", self.diagnostics).map_or(default.fastforward, |on| on.value),
            poll: self.poll(section),
            batch: section.integer("batch", BATCH, "packets", self.diagnostics).map_or(default.batch, |n| n.value),
            workers: section.integer("workers", WORKERS, "", self.diagnostics),
            cores: self.cores(section),
            buffers: section
                .integer("buffers", BUFFERS, "packet buffers", self.diagnostics)
                .unwrap_or(Located::new(default.buffers.value, at)),
            hugepages: section
                .choice(
                    "hugepages",
                    &[("prefer", HugePages::Prefer), ("require", HugePages::Require), ("off", HugePages::Off)],
                    self.diagnostics,
                )
                .unwrap_or(Located::new(HugePages::Prefer, at)),
            watchdog: self.watchdog(section, default.watchdog),
            user: self.account(section, "user"),
        }
    }

    fn poll(&mut self, section: &Section<'_>) -> Located<Poll> {
        let choices = [("busy", Poll::Busy), ("adaptive", Poll::Adaptive), ("interrupt", Poll::Interrupt { hz: None })];
        let poll = section.choice("poll", &choices, self.diagnostics);
        let hz = section.integer("hz", HZ, "ticks a second", self.diagnostics);
        let understood = section.entry("poll").is_none() || poll.is_some();
        let poll = poll.unwrap_or(Located::new(Poll::Adaptive, section.span));
        if let Poll::Interrupt { .. } = poll.value {
            return Located::new(Poll::Interrupt { hz: hz.map(|hz| hz.value) }, poll.span);
        }
        if let Some(entry) = section.entry("hz").filter(|_| understood) {
            let error = Diagnostic::error(
                entry.key.span,
                "hz is the clock of device polling, and nothing polls by a clock here",
            )
            .hint("set poll = \"interrupt\", or leave hz out");
            let error =
                if section.entry("poll").is_some() { error.label(poll.span, "poll is set here") } else { error };
            self.diagnostics.push(error);
        }
        poll
    }

    fn cores(&mut self, section: &Section<'_>) -> Vec<Located<u16>> {
        let Some(list) = section.list("cores", "CPU numbers", self.diagnostics) else { return Vec::new() };
        if list.is_empty() {
            self.diagnostics.push(
                Diagnostic::error(list.span, "cores is empty").hint("leave it out, or give one CPU for each worker"),
            );
        }
        list.iter().filter_map(|value| integer("a core", value, CORE, "", self.diagnostics)).collect()
    }

    fn watchdog(&mut self, section: &Section<'_>, default: Option<Duration>) -> Option<Duration> {
        let Some(entry) = section.entry("watchdog") else { return default };
        if let Kind::Integer(Some(seconds)) = entry.value.kind {
            let error =
                Diagnostic::error(entry.value.span, "watchdog needs a unit").hint(format!("write \"{seconds}s\""));
            self.diagnostics.push(error);
            return default;
        }
        let text = section.string("watchdog", self.diagnostics);
        text.and_then(|text| self.parsed(text, watchdog)).map_or(default, |duration| duration.value)
    }

    /// The name of a user or a group, or its number.
    fn account(&mut self, section: &Section<'_>, key: &str) -> Option<Located<String>> {
        let name = section.string(key, self.diagnostics)?;
        self.parsed(name, |name| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
            if name.len() <= 32 && !name.starts_with('-') && name.chars().all(allowed) {
                return Ok(name.to_owned());
            }
            Err(complaint(format!("{key} cannot be {}", quoted(name)))
                .hint("a name of at most 32 letters, digits, `_`, `-`, `.`"))
        })
    }

    pub(super) fn control(&mut self, section: &Section<'_>) -> Control {
        let socket = section.string("socket", self.diagnostics).and_then(|path| self.parsed(path, socket_path));
        let metrics = section.string("metrics", self.diagnostics).and_then(|text| self.parsed(text, metrics_address));
        Control {
            socket: socket.unwrap_or(Located::new(Control::default().socket.value, section.span)),
            write_group: self.account(section, "write_group"),
            read_group: self.account(section, "read_group"),
            metrics,
        }
    }

    pub(super) fn host(&mut self, section: &Section<'_>, doubts: &mut Doubts) -> Host {
        let default = Host::default();
        let enabled = section.boolean("enabled", self.diagnostics);
        doubts.mode |= section.misspelt || (enabled.is_none() && section.entry("enabled").is_some());
        if let Some(Located { value: false, span }) = enabled {
            for key in ["dhcp_bypass", "punt_rate"] {
                if let Some(entry) = section.entry(key) {
                    let error = Diagnostic::error(
                        entry.key.span,
                        format!("{key} is about the way to the host, and there is none"),
                    )
                    .label(span, "the host is switched off here")
                    .hint(format!("leave {key} out"));
                    self.diagnostics.push(error);
                }
            }
        }
        Host {
            enabled: enabled.unwrap_or(Located::new(true, section.span)),
            dhcp_bypass: section.boolean("dhcp_bypass", self.diagnostics).map_or(default.dhcp_bypass, |on| on.value),
            punt_rate: self.punt_rate(section),
            neighbor_queue: section
                .integer("neighbor_queue", NEIGHBOR_QUEUE, "packets", self.diagnostics)
                .map_or(default.neighbor_queue, |n| n.value),
            neighbor_limit: section
                .integer("neighbor_limit", NEIGHBOR_LIMIT, "neighbours", self.diagnostics)
                .map_or(default.neighbor_limit, |n| n.value),
        }
    }

    fn punt_rate(&mut self, section: &Section<'_>) -> PuntRate {
        let mut rates = PuntRate::default();
        let Some(entry) = section.entry("punt_rate") else { return rates };
        let Kind::Table(table) = &entry.value.kind else {
            wrong_type::<()>("punt_rate", "a table such as { other = 50000 }", &entry.value, self.diagnostics);
            return rates;
        };
        let classes = Section::open("punt_rate", table, entry.value.span, self.diagnostics);
        for (key, rate) in [
            ("neighbor", &mut rates.neighbor),
            ("routing", &mut rates.routing),
            ("dhcp", &mut rates.dhcp),
            ("other", &mut rates.other),
        ] {
            *rate = classes.integer(key, PUNT_RATE, "packets a second", self.diagnostics).map_or(*rate, |n| n.value);
        }
        rates
    }

    pub(super) fn icmp(&mut self, section: &Section<'_>) -> Icmp {
        let default = Icmp::default();
        let rate = section.integer("rate", ICMP_RATE, "errors a second", self.diagnostics);
        let burst = section.integer("burst", ICMP_BURST, "errors", self.diagnostics);
        Icmp { rate: rate.map_or(default.rate, |n| n.value), burst: burst.map_or(default.burst, |n| n.value) }
    }

    pub(super) fn limits(&mut self, section: &Section<'_>) -> Limits {
        Limits {
            ipv4_routes: section.integer("ipv4_routes", ROUTES, "routes", self.diagnostics),
            ipv6_routes: section.integer("ipv6_routes", ROUTES, "routes", self.diagnostics),
            adjacencies: section.integer("adjacencies", ADJACENCIES, "next hops", self.diagnostics),
        }
    }
}

fn gateway_name(name: &str) -> Result<String, Diagnostic> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.len() <= 64 && name.chars().all(allowed) {
        return Ok(name.to_owned());
    }
    Err(complaint(format!("the gateway cannot be called {}", quoted(name)))
        .hint("at most 64 letters, digits, `.`, `-`, `_`"))
}

fn watchdog(text: &str) -> Result<Option<Duration>, Diagnostic> {
    if text == "off" {
        return Ok(None);
    }
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => {
            return Err(complaint(format!("{} is no duration", quoted(text)))
                .hint("write \"500ms\", \"5s\", \"1m\" or \"off\""));
        }
    };
    let duration = number.parse::<u64>().ok().and_then(|n| n.checked_mul(milliseconds)).map(Duration::from_millis);
    duration.filter(|duration| WATCHDOG.contains(duration)).map(Some).ok_or_else(|| {
        complaint(format!("watchdog cannot be {}", quoted(text))).hint("from \"100ms\" to \"1h\", or \"off\"")
    })
}

fn socket_path(text: &str) -> Result<PathBuf, Diagnostic> {
    if !text.starts_with('/') {
        return Err(complaint(format!("socket {} is not an absolute path", quoted(text))).hint("begin it with `/`"));
    }
    if text.len() > SOCKET_PATH_MAX {
        let message = format!("the path of the socket has {} bytes", text.len());
        return Err(complaint(message).hint(format!("unix sockets take {SOCKET_PATH_MAX} at most")));
    }
    Ok(PathBuf::from(text))
}

fn metrics_address(text: &str) -> Result<SocketAddr, Diagnostic> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        return Err(complaint(format!("metrics {} is not ADDRESS:PORT", quoted(text)))
            .hint("write \"127.0.0.1:9100\" or \"[::1]:9100\""));
    };
    if !address.ip().is_loopback() {
        let message = format!("metrics cannot listen on {address}: it is not a loopback address");
        let hint = format!(
            "write \"127.0.0.1:{}\"; the listener has no password, let a proxy or an SSH tunnel guard it",
            address.port()
        );
        return Err(complaint(message).hint(hint));
    }
    if address.port() == 0 {
        return Err(complaint("metrics needs a port number").hint("write \"127.0.0.1:9100\""));
    }
    Ok(address)
}
