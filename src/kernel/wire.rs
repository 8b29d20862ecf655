//! Netlink messages on the wire: a builder and two iterators (netlink(7), rtnetlink(7)).
//!
//! Written here because the mirror must never lose a message: an attribute that is unknown, new or odd is skipped, the
//! rest of the message still counts. `netlink-packet-route` refuses the whole message in that case, allocates for each
//! attribute and knows neither nexthop objects nor nf_tables nor ethtool.
#![forbid(unsafe_code)]

/// Size of `struct nlmsghdr` in bytes.
const HEADER_LENGTH: usize = 16;
/// Attribute flag: the payload is attributes again (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;
/// The bits of an attribute type that name the attribute (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;

/// Rounds up to netlink's alignment of four bytes.
const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// One netlink message under construction.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Starts a message of `kind` (`nlmsg_type`) with `flags` (`NLM_F_*`; `NLM_F_REQUEST` is added) and the fixed
    /// header of its family.
    pub(crate) fn new(kind: u16, flags: u16, family_header: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let mut message = Message { bytes };
        message.append(family_header);
        message
    }

    /// Adds header flags (`NLM_F_*`).
    pub(crate) fn add_flags(&mut self, flags: u16) {
        let all = self.flags() | flags;
        self.bytes[6..8].copy_from_slice(&all.to_ne_bytes());
    }

    /// The header flags so far.
    pub(crate) fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]])
    }

    fn append(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        self.bytes.resize(align(self.bytes.len()), 0);
    }

    /// Adds an attribute with a raw payload.
    pub(crate) fn attribute(&mut self, kind: u16, data: &[u8]) -> &mut Self {
        let length = (4 + data.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.append(data);
        self
    }

    /// Adds a 32-bit attribute in host order.
    pub(crate) fn attribute_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Adds a 32-bit attribute in network order, as nf_tables wants them.
    pub(crate) fn attribute_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Adds a NUL-terminated string attribute.
    pub(crate) fn attribute_str(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut data = value.as_bytes().to_vec();
        data.push(0);
        self.attribute(kind, &data)
    }

    /// Adds an attribute whose payload is what `fill` adds.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// The finished message with its length and sequence number filled in.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One received netlink message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`: the request this answers, 0 for notifications.
    pub(crate) sequence: u32,
    /// Everything behind the netlink header.
    pub(crate) body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Splits the body into the family header of `length` bytes and the attributes behind it; `None` when too short.
    pub(crate) fn split(&self, length: usize) -> Option<(&'a [u8], Attributes<'a>)> {
        let header = self.body.get(..length)?;
        let rest = self.body.get(align(length)..).unwrap_or(&[]);
        Some((header, Attributes(rest)))
    }
}

/// The messages of one received datagram. Ends at the first malformed length.
pub(crate) struct Frames<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let header = self.0.get(..HEADER_LENGTH)?;
        let length = u32_at(header, 0)? as usize;
        let body = self.0.get(HEADER_LENGTH..length)?;
        let frame = Frame { kind: u16_at(header, 4)?, flags: u16_at(header, 6)?, sequence: u32_at(header, 8)?, body };
        self.0 = self.0.get(align(length)..).unwrap_or(&[]);
        Some(frame)
    }
}

/// The attributes of a message or of a nest. Ends at the first malformed length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The payload of the first attribute of `kind`.
    pub(crate) fn get(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find(|(found, _)| *found == kind).map(|(_, data)| data)
    }

    /// The first attribute of `kind` as attributes.
    pub(crate) fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(Attributes)
    }

    /// The first attribute of `kind` as a 32-bit number in host order.
    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        self.get(kind).and_then(|data| u32_at(data, 0))
    }

    /// The first attribute of `kind` as a string.
    pub(crate) fn string(self, kind: u16) -> Option<String> {
        self.get(kind).map(text)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = u16_at(self.0, 0)? as usize;
        let kind = u16_at(self.0, 2)? & TYPE_MASK;
        let data = self.0.get(4..length)?;
        self.0 = self.0.get(align(length)..).unwrap_or(&[]);
        Some((kind, data))
    }
}

/// Reads a 16-bit number in host order.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

/// Reads a 32-bit number in host order.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// Reads a string up to its NUL.
pub(crate) fn text(data: &[u8]) -> String {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_built_message_reads_back() {
        let mut message = Message::new(7, 0x500, &[2, 0, 0]);
        message.attribute_u32(1, 0x0102_0304).attribute_str(2, "em0");
        message.nest(3, |nest| {
            nest.attribute(4, &[9]).attribute_be32(5, 1);
        });
        let bytes = message.finish(42);
        let frames: Vec<_> = Frames(&bytes).collect();
        assert_eq!(frames.len(), 1);
        assert_eq!((frames[0].kind, frames[0].flags, frames[0].sequence), (7, 0x501, 42));
        let (header, attributes) = frames[0].split(3).unwrap();
        assert_eq!(header, [2, 0, 0]);
        assert_eq!(attributes.u32(1), Some(0x0102_0304));
        assert_eq!(attributes.string(2).as_deref(), Some("em0"));
        let nest: Vec<_> = attributes.nested(3).unwrap().collect();
        assert_eq!(nest, [(4, &[9][..]), (5, &[0, 0, 0, 1][..])]);
    }

    #[test]
    fn a_length_past_the_end_or_below_the_header_ends_the_walk() {
        assert_eq!(Attributes(&[9, 0, 1, 0, 0]).count(), 0);
        assert_eq!(Attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(Frames(&[15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let mut seen = 0;
            for frame in Frames(&bytes) {
                seen += 1;
                if let Some((_, attributes)) = frame.split(12) {
                    seen += attributes.count();
                }
            }
            prop_assert!(seen <= bytes.len());
        }
    }
}
