//! TCP segments as values: encoding and parsing.

use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use pontoon_wire::frame::Flags;

use crate::frames::{be16, be32};

/// A TCP segment with its addresses.
#[derive(Clone, PartialEq, Eq)]
pub struct Segment {
    /// Source address and port of the segment.
    pub from: SocketAddr,
    /// Destination address and port of the segment.
    pub to: SocketAddr,
    /// Sequence number of the segment's first byte (RFC 9293, SEG.SEQ).
    pub seq: u32,
    /// Acknowledgement number, valid if the flag ACK is set.
    pub ack: u32,
    /// Control bits of the header (RFC 9293 section 3.1).
    pub flags: Flags,
    /// Field window of the TCP header, not scaled.
    pub window: u16,
    /// Field urgent pointer of the TCP header.
    pub urgent: u16,
    /// Value of the option maximum segment size, if present.
    pub mss: Option<u16>,
    /// Shift count of the option window scale (RFC 7323), if present.
    pub window_scale: Option<u8>,
    /// True if the option SACK-permitted (RFC 2018) is present.
    pub sack_permitted: bool,
    /// Blocks of the option SACK (RFC 2018): left edge, right edge.
    pub sack: Vec<(u32, u32)>,
    /// Payload of the segment.
    pub payload: Vec<u8>,
}

impl Segment {
    /// An acknowledgement with unspecified addresses, as the base of struct updates.
    pub const EMPTY: Self = Self::between(UNSPECIFIED, UNSPECIFIED);

    /// Returns an acknowledgement without data between two addresses.
    #[must_use]
    pub const fn between(from: SocketAddr, to: SocketAddr) -> Self {
        Self {
            from,
            to,
            seq: 0,
            ack: 0,
            flags: Flags::ACK,
            window: 0xffff,
            urgent: 0,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Returns the segment with these flags, sequence and acknowledgement number.
    #[must_use]
    pub const fn with(mut self, flags: Flags, seq: u32, ack: u32) -> Self {
        self.flags = flags;
        self.seq = seq;
        self.ack = ack;
        self
    }

    /// Returns the segment with this payload.
    #[must_use]
    pub fn carrying(self, payload: Vec<u8>) -> Self {
        Self { payload, ..self }
    }

    /// Returns the number of sequence numbers that the segment occupies (RFC 9293, SEG.LEN).
    #[must_use]
    pub fn span(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.flags.has(Flags::SYN))
            + u32::from(self.flags.has(Flags::FIN))
    }

    /// Returns the sequence number after the segment.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.span())
    }

    /// Returns the length of the TCP header with its options in bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        20 + self.options().len()
    }

    fn options(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            options.extend([1, 3, 3, shift]);
        }
        if self.sack_permitted {
            options.extend([1, 1, 4, 2]);
        }
        if !self.sack.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                options.extend(left.to_be_bytes());
                options.extend(right.to_be_bytes());
            }
        }
        assert!(options.len() <= 40, "{} bytes of options", options.len());
        options
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let options = self.options();
        let mut bytes = Vec::with_capacity(20 + options.len() + self.payload.len());
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(((20 + options.len()) / 4) << 4) as u8, self.flags.0]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend(&self.payload);
        bytes
    }

    pub(crate) fn parse(from: IpAddr, to: IpAddr, body: &[u8]) -> Result<Self, String> {
        let header = usize::from(body.get(12).ok_or("short TCP header")? >> 4) * 4;
        if header < 20 || header > body.len() {
            return Err(format!("TCP header of {header} in {} bytes", body.len()));
        }
        let mut segment = Self {
            from: (from, be16(body)).into(),
            to: (to, be16(&body[2..])).into(),
            seq: be32(&body[4..]),
            ack: be32(&body[8..]),
            flags: Flags(body[13]),
            window: be16(&body[14..]),
            urgent: be16(&body[18..]),
            payload: body[header..].to_vec(),
            ..Self::EMPTY
        };
        segment.parse_options(&body[20..header])?;
        Ok(segment)
    }

    fn parse_options(&mut self, mut options: &[u8]) -> Result<(), String> {
        while let Some(&kind) = options.first() {
            let len = match kind {
                0 => return Ok(()),
                1 => 1,
                _ => options.get(1).map_or(0, |&len| usize::from(len)),
            };
            if len == 0 || len > options.len() || (kind > 1 && len < 2) {
                return Err(format!("TCP option {kind} of {len} bytes"));
            }
            match (kind, len) {
                (1, _) => {}
                (2, 4) => self.mss = Some(be16(&options[2..])),
                (3, 3) => self.window_scale = Some(options[2]),
                (4, 2) => self.sack_permitted = true,
                (5, len) if (len - 2) % 8 == 0 => {
                    let blocks = options[2..len].chunks(8);
                    self.sack
                        .extend(blocks.map(|block| (be32(block), be32(&block[4..]))));
                }
                (kind, len) => return Err(format!("unexpected TCP option {kind} of {len} bytes")),
            }
            options = &options[len..];
        }
        Ok(())
    }
}

/// Formats the segment in one line, without the contents of its payload.
impl core::fmt::Debug for Segment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} > {} ", self.from, self.to)?;
        for (bit, name) in "FSRPAU".chars().enumerate() {
            if self.flags.0 & 1 << bit != 0 {
                write!(f, "{name}")?;
            }
        }
        write!(
            f,
            " seq {}+{} ack {} win {}",
            self.seq,
            self.payload.len(),
            self.ack,
            self.window
        )?;
        if self.urgent != 0 {
            write!(f, " urgent {}", self.urgent)?;
        }
        if let Some(mss) = self.mss {
            write!(f, " mss {mss}")?;
        }
        if let Some(shift) = self.window_scale {
            write!(f, " scale {shift}")?;
        }
        if self.sack_permitted {
            write!(f, " sackOK")?;
        }
        if !self.sack.is_empty() {
            write!(f, " sack {:?}", self.sack)?;
        }
        Ok(())
    }
}

const UNSPECIFIED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
