#![forbid(unsafe_code)]
//! Faults that can be planted in the compiler of rules, to prove that the comparison with the oracle would notice them.
//!
//! Where a fault belongs, the compiler asks `planted.has(Fault::...)` and does the wrong thing. Without the feature
//! `planted-faults` the answer is the constant `false` and the question is gone from the program.

/// Declares the faults once: name, what goes wrong.
macro_rules! faults {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// Something that a compiler of rules could do wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[doc = $text])+ $name,)+
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)+];
        }
    };
}

faults! {
    /// A range of ports ends one port early.
    PortRangeEndExclusive,
    /// A range of ports begins one port late.
    PortRangeStartExclusive,
    /// `not` is forgotten.
    NotIgnored,
    /// Of `{ a or b }` both must match.
    OrTakenAsAnd,
    /// Of `{ a or b }` only the first is tried.
    OrStopsAtFirst,
    /// The last test of a rule is lost.
    LastBlockLost,
    /// IPv4 prefixes are one bit too short.
    PrefixOneBitShort,
    /// IPv6 prefixes are one bit too short.
    Prefix6OneBitShort,
    /// Masks with holes are taken as prefixes.
    MaskHolesIgnored,
    /// `set disable` has no effect.
    DisabledSetStillMatches,
    /// `skipto` to a number that no rule has goes to the next rule.
    SkipToMissingFallsThrough,
    /// `skipto` to the rule's own or a lower number goes to the last rule.
    SkipToBackwardsEndsSearch,
    /// `call` does not note where it came from.
    CallForgetsCaller,
    /// `return` goes back to the caller's next rule also where it is of the same number.
    ReturnToSameNumber,
    /// Rules of one number are in reverse order.
    SameNumberReversed,
    /// `count` ends the search.
    CountAccepts,
    /// Ports of later fragments are taken as 0.
    LaterFragmentHasPorts,
    /// ICMP types are read from later fragments and other protocols as well: the test only asks for the protocol.
    IcmpTypeIgnored,
    /// `frag` ignores what must be clear.
    FragmentClearIgnored,
    /// `tcpflags` ignores what must be clear.
    TcpFlagsClearIgnored,
    /// `tcpflags` ignores what must be set.
    TcpFlagsSetIgnored,
    /// `established` asks for ACK only.
    EstablishedNeedsAck,
    /// `me` does not know IPv6.
    MeIgnoresV6,
    /// Of nested prefixes in a table the shorter is found.
    TableShortestPrefix,
    /// `table(NAME,VALUE)` takes every value.
    TableValueIgnored,
    /// `tablearg` is always 0.
    TableArgumentLost,
    /// `in` and `out` are exchanged.
    DirectionExchanged,
    /// `via` always means `recv`.
    ViaMeansRecv,
    /// A pattern of interface names is taken literally.
    PatternTakenLiterally,
    /// `prob P` matches with the chance 1 - P.
    ProbabilityInverted,
    /// `keep-state` and `limit` do not look for their state first.
    KeepStateDoesNotProbe,
    /// A limit allows one state more.
    LimitOneMore,
    /// A limit counts by the other end.
    LimitCountsOtherEnd,
    /// Names of states are ignored.
    StateNameIgnored,
    /// A deferred action is carried out at once.
    DeferredActionAtOnce,
    /// `untag` does nothing.
    UntagForgotten,
    /// `logamount` has no effect.
    LogAmountIgnored,
    /// DSCP bits are shifted by one.
    DscpOffByOne,
    /// ICMP codes of `unreach` are one too high.
    UnreachCodeOffByOne,
    /// `iptos` ignores what must be clear.
    TosClearIgnored,
}

/// The fault planted in one compiler, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(any(test, feature = "planted-faults"))]
    fault: Option<Fault>,
}

impl Planted {
    /// A sound compiler.
    pub const NONE: Planted = Planted {
        #[cfg(any(test, feature = "planted-faults"))]
        fault: None,
    };

    /// A compiler with this fault.
    #[cfg(any(test, feature = "planted-faults"))]
    pub fn new(fault: Fault) -> Self {
        Planted { fault: Some(fault) }
    }

    /// Whether the fault is planted.
    #[inline(always)]
    pub fn has(self, fault: Fault) -> bool {
        #[cfg(any(test, feature = "planted-faults"))]
        return self.fault == Some(fault);
        #[cfg(not(any(test, feature = "planted-faults")))]
        {
            let _ = fault;
            false
        }
    }
}
