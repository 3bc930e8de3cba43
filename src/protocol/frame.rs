//! Cutting a byte stream into messages.
//!
//! A message is a tag byte, an `i32` length that counts itself and the body, and the body
//! (`protocol-overview`, "Messaging Overview"). Frames borrow the read buffer: nothing is copied and
//! nothing is reserved because a peer claimed a length. A message that is not all there yet is
//! cut as a head, so that its body can stream through; whether to wait for the rest instead is
//! the caller's decision. The untagged first packet of a connection is `startup`'s.

use super::{Error, bad_header};

/// Bytes before the body: the tag and the length.
pub const HEADER_LEN: usize = 5;

/// What stands at the front of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The message's tag byte.
    pub tag: u8,
    /// Length of the whole message with tag and length field, as its header says.
    pub len: usize,
    /// The bytes of it that the buffer holds, header included; fewer than `len` when the
    /// message is not complete.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Is the whole message here?
    pub fn is_complete(&self) -> bool {
        self.bytes.len() == self.len
    }

    /// The part of the body that is here.
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }

    /// How many bytes of the message are still to come.
    pub fn missing(&self) -> usize {
        self.len - self.bytes.len()
    }
}

/// The tag and the body of the message at the front of `buf`, for who passes whole messages of no more than `max` bytes on; `None` is for
/// [`cut`] to say more about.
#[inline]
pub fn whole(buf: &[u8], max: usize) -> Option<(u8, &[u8])> {
    let (&[tag, a, b, c, d], rest) = buf.split_first_chunk::<HEADER_LEN>()?;
    let claimed = u32::from_be_bytes([a, b, c, d]) as usize;
    // (What claims to be shorter than its length field is longer than anything.)
    let body = rest.get(..claimed.wrapping_sub(4))?;
    (claimed < max).then_some((tag, body))
}

/// Cuts the message at the front of `buf`; `None` when not even its header is there.
///
/// `max` is the longest message that is accepted, with its header (`max_packet_size`).
#[inline]
pub fn cut(buf: &[u8], max: usize) -> Result<Option<Frame<'_>>, Error> {
    let Some((header, _)) = buf.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let [tag, a, b, c, d] = *header;
    let claimed = u32::from_be_bytes([a, b, c, d]) as usize;
    // The length counts its own four bytes; one with the sign bit set is over any limit, too.
    if claimed < 4 || claimed >= max {
        return Err(bad_header(buf));
    }
    let len = claimed + 1;
    let bytes = buf.get(..len).unwrap_or(buf);
    Ok(Some(Frame { tag, len, bytes }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 30;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        out.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn a_length_below_four_is_refused() {
        assert!(cut(&[b'Q', 0, 0, 0, 3, 0], MAX).is_err());
    }

    #[test]
    fn what_is_whole_is_cut_alike() {
        for length in [0, 3, 4, 5, 6, 7, 0x7fff_ffff, 0xffff_ffff_u32] {
            for there in 0..12 {
                let mut bytes = vec![b'Q'];
                bytes.extend_from_slice(&length.to_be_bytes());
                bytes.resize(there, 7);
                for max in [4, 6, 7, MAX] {
                    let frame = cut(&bytes, max).ok().flatten();
                    let frame = frame.filter(Frame::is_complete);
                    let expected = frame.map(|frame| (frame.tag, frame.body().to_vec()));
                    let found = whole(&bytes, max).map(|(tag, body)| (tag, body.to_vec()));
                    assert_eq!(found, expected, "{length} {there} {max}");
                }
            }
        }
    }

    #[test]
    fn a_negative_length_is_refused() {
        assert!(cut(&[b'Q', 0xff, 0xff, 0xff, 0xff], MAX).is_err());
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_the_body_comes() {
        let refused = cut(&[b'Q', 0, 0, 1, 0, b'S', b'E', b'L', b'E'], 200).unwrap_err();
        assert_eq!(refused.to_string(), "bad packet header: '510000010053454c'");
        assert!(cut(&[b'Q', 0, 0, 1, 0], 257).is_ok());
    }

    #[test]
    fn a_partial_message_is_cut_as_its_head() {
        let bytes = message(b'D', b"hello");
        let frame = cut(&bytes[..7], MAX).unwrap().unwrap();
        assert!(!frame.is_complete());
        assert_eq!((frame.body(), frame.missing()), (&b"he"[..], 3));
    }

    /// Feeds `stream` in pieces, keeps what is incomplete, and collects the whole messages.
    fn cut_in_pieces(stream: &[u8], sizes: &[usize]) -> Vec<Vec<u8>> {
        let (mut kept, mut found, mut at, mut turn) = (Vec::new(), Vec::new(), 0, 0);
        while at < stream.len() {
            let size = sizes[turn % sizes.len()].min(stream.len() - at);
            turn += 1;
            kept.extend_from_slice(&stream[at..at + size]);
            at += size;
            while let Some(frame) = cut(&kept, MAX).unwrap() {
                if !frame.is_complete() {
                    break;
                }
                found.push(frame.bytes.to_vec());
                let len = frame.len;
                kept.drain(..len);
            }
        }
        assert!(kept.is_empty());
        found
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_cuts_to_the_same_frames(
            bodies in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 1..12),
            sizes in prop::collection::vec(1usize..30, 1..8),
        ) {
            let messages: Vec<_> = bodies.iter().map(|(tag, body)| message(*tag, body)).collect();
            prop_assert_eq!(cut_in_pieces(&messages.concat(), &sizes), messages);
        }
    }
}
