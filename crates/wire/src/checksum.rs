//! The Internet checksum (RFC 1071): sums of byte runs, pseudo-headers, and completing a partial one.
