#![forbid(unsafe_code)]
//! Where in the box a packet is while it is judged.

/// Into the box or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The in pass.
    In,
    /// The out pass.
    Out,
}

/// One pass of a packet through the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass<'a> {
    /// Direction.
    pub direction: Direction,
    /// Whether it is the link layer's pass.
    pub layer2: bool,
    /// Interface that the packet came in by; none for packets of the box.
    pub recv: Option<&'a str>,
    /// Interface that it leaves by; none in the in pass.
    pub xmit: Option<&'a str>,
}

impl<'a> Pass<'a> {
    /// The in pass of a packet from `recv`.
    pub fn incoming(recv: &'a str) -> Self {
        Pass { direction: Direction::In, layer2: false, recv: Some(recv), xmit: None }
    }

    /// The out pass of a packet from `recv` to `xmit`.
    pub fn outgoing(recv: &'a str, xmit: &'a str) -> Self {
        Pass { direction: Direction::Out, layer2: false, recv: Some(recv), xmit: Some(xmit) }
    }

    /// The same in the link layer.
    pub fn at_layer2(self) -> Self {
        Pass { layer2: true, ..self }
    }

    /// The interface of this pass.
    pub fn interface(&self) -> Option<&'a str> {
        if self.direction == Direction::In { self.recv } else { self.xmit }
    }
}
