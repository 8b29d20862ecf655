#![forbid(unsafe_code)]
//! Random actions, of every kind.

use ferrule_config::ipfw::ast::{Action, Argument, ForwardTo, Limit, NatInstance, ReturnTo, StateName, StateOption};
use proptest::prelude::*;
use proptest::sample::select;

use super::pool;

/// A number, sometimes the table's.
fn argument(numbers: Vec<u32>) -> impl Strategy<Value = Argument> {
    prop_oneof![5 => select(numbers).prop_map(Argument::Number), 1 => Just(Argument::Table)]
}

/// Groups of states: few.
pub fn state_name() -> impl Strategy<Value = StateName> {
    prop_oneof![4 => Just(StateName::Default), 1 => Just(StateName::Named("A".into())), 1 => Just(StateName::Named("B".into()))]
}

/// `keep-state` and its kin.
pub fn state_option() -> impl Strategy<Value = StateOption> {
    let limit = (any::<[bool; 4]>(), argument(vec![1, 2, 3])).prop_map(|(fields, count)| Limit {
        source_address: fields[0] || fields == [false; 4],
        source_port: fields[1],
        destination_address: fields[2],
        destination_port: fields[3],
        count,
    });
    (
        prop_oneof![4 => Just(true), 1 => Just(false)],
        proptest::option::weighted(0.5, limit),
        state_name(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(probes, limit, name, deferred)| StateOption { probes, limit, name, deferred })
}

/// Any action, jumps going to `numbers` and near them.
pub fn action(numbers: &[u16]) -> impl Strategy<Value = Action> + use<> {
    let everywhere: Vec<u32> = numbers.iter().map(|number| u32::from(*number)).chain([0, 65535]).collect();
    let near = (select(everywhere.clone()), -1..2i32)
        .prop_map(|(target, by)| Argument::Number(target.saturating_add_signed(by).min(65535)));
    let call = select(everywhere.clone()).prop_map(|target| Action::Call(Argument::Number(target)));
    let skip = prop_oneof![4 => argument(everywhere), 2 => near];
    let refusals = select(vec![
        Action::Unreach(1, None),
        Action::Unreach(3, None),
        Action::Unreach(4, Some(1420)),
        Action::Unreach(13, None),
        Action::Unreach6(0),
        Action::Unreach6(4),
        Action::Reset,
        Action::Reset6,
        Action::Abort,
        Action::Abort6,
    ]);
    let forward = prop_oneof![
        Just(ForwardTo::V4(pool::V4[5], 0)),
        Just(ForwardTo::V4(pool::V4[5], 8080)),
        Just(ForwardTo::V6(pool::V6[3], None, 0)),
        Just(ForwardTo::Table(0)),
    ];
    let check = prop_oneof![4 => state_name(), 1 => Just(StateName::Any)];
    prop_oneof![
        8 => Just(Action::Allow),
        5 => Just(Action::Deny),
        3 => refusals,
        8 => Just(Action::Count),
        6 => skip.prop_map(Action::SkipTo),
        6 => call,
        2 => select(vec![Action::Return(ReturnTo::NextNumber), Action::Return(ReturnTo::NextRule)]),
        3 => check.prop_map(Action::CheckState),
        1 => forward.prop_map(Action::Forward),
        1 => argument(vec![1, 2, 3]).prop_map(|instance| Action::Nat(NatInstance::One(instance))),
        1 => Just(Action::Nat(NatInstance::Global)),
        1 => argument(vec![1, 2]).prop_map(Action::Pipe),
        1 => argument(vec![1, 2]).prop_map(Action::Queue),
        1 => argument(vec![0, 1, 2, 5]).prop_map(Action::SetFib),
        1 => argument(vec![0, 9, 46, 63]).prop_map(Action::SetDscp),
        1 => (argument(vec![1, 0x101, 0xffff]), select(vec![u32::MAX, 0xff])).prop_map(|(mark, mask)| Action::SetMark(mark, mask)),
        2 => select(vec![536u16, 1024, 1460, 9000]).prop_map(Action::TcpSetMss),
        1 => Just(Action::Reassemble),
    ]
}
