#![forbid(unsafe_code)]
//! Random numbers of `prob`.

/// Draws the same number for the same rule and packet, in whatever order and however often it is asked, so that an engine that
/// looks at fewer rules draws the same as one that looks at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dice {
    /// Seed.
    pub seed: u64,
}

impl Dice {
    /// A number below 2^31 for the `pass`-th pass since the rules were loaded (from 0) and the rule at `index`.
    pub fn roll(&self, pass: u64, index: usize) -> u32 {
        // splitmix64, whose output function is a bijection that spreads neighbouring inputs.
        let mut bits =
            self.seed ^ pass.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 33) as u32
    }

    /// Whether a rule with this probability may match: the number is below that part of 2^31.
    pub fn lets_match(&self, pass: u64, index: usize, probability: f64) -> bool {
        f64::from(self.roll(pass, index)) < probability * f64::from(0x7fff_ffff_u32)
    }
}
