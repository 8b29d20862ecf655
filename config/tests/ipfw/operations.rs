//! A rule as the operations that ipfw(8) compiles it to, named as there: for the expectations of the conformance data.

use ferrule_config::ipfw::ast::*;
use serde_json::{Value, json};

/// Names of objects that operations refer to by their number, from 1 in the order of their first mention.
#[derive(Default)]
pub struct Objects {
    /// Type and name.
    pub list: Vec<(&'static str, String)>,
}

impl Objects {
    fn index(&mut self, kind: &'static str, name: &str) -> usize {
        let found = self.list.iter().position(|(of, known)| *of == kind && known == name);
        found.unwrap_or_else(|| {
            self.list.push((kind, name.to_owned()));
            self.list.len() - 1
        }) + 1
    }
}

/// The operations of a rule in order: chance, state probe, tests, comment, state, deferral, modifiers, action.
pub fn operations(rule: &Rule) -> (Vec<Value>, Objects) {
    let mut objects = Objects::default();
    let action = action(&rule.action, &mut objects);
    let mut out = Vec::new();
    if let Some(probability) = rule.probability {
        out.push(json!({ "op": "O_PROB", "prob": probability }));
    }
    // Tables are numbered before the state, which is the last of the options.
    let tests: Vec<Value> = rule.blocks.iter().flat_map(|block| block_operations(block, &mut objects)).collect();
    let state = rule.state.as_ref().map(|state| (state, objects.index("STATE_NAME", &state_name(&state.name))));
    if let Some((StateOption { probes: true, .. }, index)) = state {
        out.push(json!({ "op": "O_PROBE_STATE", "u32": index }));
    }
    out.extend(tests);
    if let Some(comment) = &rule.comment {
        out.push(json!({ "op": "O_NOP", "comment": comment }));
    }
    if let Some((state, index)) = state {
        let op = if state.limit.is_some() { "O_LIMIT" } else { "O_KEEP_STATE" };
        out.push(json!({ "op": op, "u32": index }));
        if state.deferred {
            out.push(json!({ "op": "O_SKIP_ACTION" }));
        }
    }
    if rule.log.is_some() {
        out.push(json!({ "op": "O_LOG" }));
    }
    match rule.tag {
        None => {}
        Some(Tag::Set(tag)) => out.push(json!({ "op": "O_TAG", "arg1": argument(tag) })),
        Some(Tag::Clear(tag)) => out.push(json!({ "op": "O_TAG", "arg1": argument(tag), "not": true })),
    }
    out.extend(action);
    (out, objects)
}

fn state_name(name: &StateName) -> String {
    match name {
        StateName::Default => "default".to_owned(),
        StateName::Any => "any".to_owned(),
        StateName::Named(name) => name.clone(),
    }
}

fn argument(argument: Argument) -> Value {
    match argument {
        Argument::Number(number) => json!(number),
        Argument::Table => json!("tablearg"),
    }
}

fn block_operations(block: &Block, objects: &mut Objects) -> Vec<Value> {
    let last = block.terms.len() - 1;
    let terms = block.terms.iter().enumerate();
    terms
        .map(|(at, term)| {
            let mut operation = test(&term.test, objects);
            if term.not || term.test == Test::Out {
                operation["not"] = json!(true);
            }
            if at < last {
                operation["or"] = json!(true);
            }
            operation
        })
        .collect()
}

fn test(test: &Test, objects: &mut Objects) -> Value {
    let side = |side: &Side| if *side == Side::Source { "SRC" } else { "DST" };
    match test {
        Test::Ipv4 => json!({ "op": "O_IP4" }),
        Test::Ipv6 => json!({ "op": "O_IP6" }),
        Test::Protocol(number) => json!({ "op": "O_PROTO", "arg1": number }),
        Test::Address(of, Addresses::Table(name, _)) => {
            json!({ "op": format!("O_IP_{}_LOOKUP", side(of)), "u32": objects.index("TBL_NAME", name) })
        }
        Test::Address(of, Addresses::V4(list)) => match list.as_slice() {
            [one] if one.mask.is_broadcast() => {
                json!({ "op": format!("O_IP_{}", side(of)), "ip": one.address.to_string() })
            }
            _ => json!({ "op": format!("O_IP_{}_MASK", side(of)) }),
        },
        Test::Address(of, Addresses::V6(list)) => match list.as_slice() {
            [one] if u128::from(one.mask) == u128::MAX => {
                json!({ "op": format!("O_IP6_{}", side(of)), "ip": one.address.to_string() })
            }
            _ => json!({ "op": format!("O_IP6_{}_MASK", side(of)) }),
        },
        Test::Address(of, Addresses::Set4 { .. }) => json!({ "op": format!("O_IP_{}_SET", side(of)) }),
        Test::Address(of, Addresses::Me) => json!({ "op": format!("O_IP_{}_ME", side(of)) }),
        Test::Address(of, Addresses::Me6) => json!({ "op": format!("O_IP6_{}_ME", side(of)) }),
        Test::Ports(of, ranges) => {
            let pairs: Vec<_> = ranges.iter().map(|range| [range.low, range.high]).collect();
            json!({ "op": format!("O_IP_{}PORT", side(of)), "ports": pairs })
        }
        Test::Lookup(_, name) => json!({ "op": "O_TABLE_LOOKUP", "u32": objects.index("TBL_NAME", name) }),
        Test::In | Test::Out => json!({ "op": "O_IN" }),
        // What the data does not ask about has no name here.
        other => json!({ "op": format!("{other:?}") }),
    }
}

fn action(action: &Action, objects: &mut Objects) -> Vec<Value> {
    let one = |op: &str| vec![json!({ "op": op })];
    let with = |op: &str, of: Argument| vec![json!({ "op": op, "arg1": argument(of) })];
    match action {
        Action::Allow => one("O_ACCEPT"),
        Action::Deny => one("O_DENY"),
        Action::Count => one("O_COUNT"),
        Action::Reassemble => one("O_REASS"),
        Action::Unreach(code, None) => vec![json!({ "op": "O_REJECT", "arg1": code })],
        Action::Unreach(code, Some(mtu)) => vec![json!({ "op": "O_REJECT", "arg1": code, "mtu": mtu })],
        Action::Reset => vec![json!({ "op": "O_REJECT", "arg1": 0x100 })],
        Action::Abort => vec![json!({ "op": "O_REJECT", "arg1": 0x101 })],
        Action::Unreach6(code) => vec![json!({ "op": "O_UNREACH6", "arg1": code })],
        Action::Reset6 => vec![json!({ "op": "O_UNREACH6", "arg1": 0x100 })],
        Action::Abort6 => vec![json!({ "op": "O_UNREACH6", "arg1": 0x101 })],
        Action::SkipTo(to) => with("O_SKIPTO", *to),
        Action::Call(to) => with("O_CALLRETURN", *to),
        Action::Return(_) => vec![json!({ "op": "O_CALLRETURN", "not": true })],
        Action::CheckState(StateName::Any) => vec![json!({ "op": "O_CHECK_STATE", "u32": 0 })],
        Action::CheckState(name) => {
            vec![json!({ "op": "O_CHECK_STATE", "u32": objects.index("STATE_NAME", &state_name(name)) })]
        }
        Action::Forward(ForwardTo::V6(..)) => one("O_FORWARD_IP6"),
        Action::Forward(_) => one("O_FORWARD_IP"),
        Action::Nat(NatInstance::Global) => one("O_NAT"),
        Action::Nat(NatInstance::One(instance)) => with("O_NAT", *instance),
        Action::Pipe(number) => with("O_PIPE", *number),
        Action::Queue(number) => with("O_QUEUE", *number),
        Action::SetFib(Argument::Number(fib)) => vec![json!({ "op": "O_SETFIB", "arg1": fib | 0x8000 })],
        Action::SetFib(Argument::Table) => with("O_SETFIB", Argument::Table),
        Action::SetDscp(Argument::Number(code)) => vec![json!({ "op": "O_SETDSCP", "arg1": code | 0x8000 })],
        Action::SetDscp(Argument::Table) => with("O_SETDSCP", Argument::Table),
        Action::SetMark(..) => one("O_SETMARK"),
        Action::Netgraph(cookie) => with("O_NETGRAPH", *cookie),
        Action::NgTee(cookie) => with("O_NGTEE", *cookie),
        Action::Divert(port) => with("O_DIVERT", *port),
        Action::Tee(port) => with("O_TEE", *port),
        Action::TcpSetMss(mss) => vec![
            json!({ "op": "O_EXTERNAL_ACTION", "u32": objects.index("EACTION", "tcp-setmss") }),
            json!({ "op": "O_EXTERNAL_DATA", "arg1": mss }),
        ],
        Action::External(name, instance) => vec![
            json!({ "op": "O_EXTERNAL_ACTION", "u32": objects.index("EACTION", name) }),
            json!({ "op": "O_EXTERNAL_INSTANCE", "u32": objects.index("INSTANCE", instance) }),
        ],
    }
}
