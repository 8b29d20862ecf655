#![forbid(unsafe_code)]
//! No address twice, no subnet on two interfaces.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::gateway::Gateway;
use crate::gateway::address::{bounds, is_ipv6_link_local, masked};
use crate::gateway::parse::Doubts;
use crate::span::Located;
use ipnetwork::IpNetwork;
use std::collections::HashMap;
use std::net::IpAddr;

#[derive(Clone, Copy)]
struct Subnet<'a> {
    address: &'a Located<IpNetwork>,
    name: &'a str,
    interface: usize,
}

pub(super) fn check(gateway: &Gateway, doubts: Doubts, diagnostics: &mut Diagnostics) {
    // In host mode the addresses are refused as such; more would only be noise.
    if !gateway.is_standalone() || doubts.mode {
        return;
    }
    // Link-local addresses are alike on every link; they must differ within one.
    let mut seen: HashMap<(IpAddr, Option<usize>), Subnet<'_>> = HashMap::new();
    let mut subnets: Vec<Subnet<'_>> = Vec::new();
    for (at, interface) in gateway.interfaces().enumerate() {
        for address in interface.addresses {
            let subnet = Subnet { address, name: interface.name, interface: at };
            let link_local = is_ipv6_link_local(address.ip());
            let key = (address.ip(), link_local.then_some(at));
            if let Some(first) = seen.get(&key) {
                let error = Diagnostic::error(address.span, format!("the address {} is given twice", address.ip()))
                    .label(first.address.span, format!("\"{}\" has it", first.name));
                diagnostics.push(error);
                continue;
            }
            seen.insert(key, subnet);
            if !link_local {
                subnets.push(subnet);
            }
        }
    }
    overlaps(subnets, diagnostics);
}

/// Prefixes are nested or apart, so that one pass in order of their first addresses, with those around the present one
/// on a stack, finds every overlap.
fn overlaps(mut subnets: Vec<Subnet<'_>>, diagnostics: &mut Diagnostics) {
    subnets.sort_by_key(|subnet| {
        let (family, first, last) = bounds(subnet.address.value);
        (family, first, std::cmp::Reverse(last), subnet.interface)
    });
    let mut around: Vec<Subnet<'_>> = Vec::new();
    for subnet in subnets {
        let (family, first, last) = bounds(subnet.address.value);
        while let Some(outer) = around.last() {
            let (outer_family, _, outer_last) = bounds(outer.address.value);
            if outer_family == family && outer_last >= last {
                break;
            }
            around.pop();
        }
        if let Some(other) = around.iter().rev().find(|other| other.interface != subnet.interface) {
            let (one, two) =
                if other.address.span.start < subnet.address.span.start { (*other, subnet) } else { (subnet, *other) };
            let (mine, theirs) = (masked(two.address.value), masked(one.address.value));
            let message = match mine == theirs {
                true => format!("the subnet {mine} is on \"{}\" and on \"{}\"", one.name, two.name),
                false => format!("the subnet {mine} of \"{}\" overlaps {theirs} of \"{}\"", two.name, one.name),
            };
            let error = Diagnostic::error(two.address.span, message)
                .label(one.address.span, format!("{theirs} is on \"{}\"", one.name))
                .hint("a subnet lives on one port; renumber one of them or change its prefix length");
            diagnostics.push(error);
        }
        let same = around.last().is_some_and(|outer| {
            outer.interface == subnet.interface && bounds(outer.address.value) == (family, first, last)
        });
        if !same {
            around.push(subnet);
        }
    }
}
