//! What ranks tell each other beside the store: contacts, greetings, labels of descriptors, receipts.

/// Bytes as each of the exchange's messages.
pub fn packets(data: &[u8]) {
    crate::exchange::decode_all(data);
}
