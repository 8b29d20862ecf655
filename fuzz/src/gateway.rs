//! The language of gateway.toml.

#![forbid(unsafe_code)]

use ferrule_config::gateway::parse_bytes;

/// Any text is either understood or refused with places that lie inside it. What was understood prints as text that means the same.
pub fn gateway(data: &[u8]) {
    match parse_bytes(data) {
        Ok(meaning) => {
            let text = meaning.to_string();
            let again =
                parse_bytes(text.as_bytes()).unwrap_or_else(|e| panic!("what was printed is refused: {e:?}\n{text}"));
            assert_eq!(text, again.to_string(), "printing is not stable");
        }
        Err(diagnostics) => assert!(!diagnostics.is_empty(), "refused without a reason"),
    }
}
