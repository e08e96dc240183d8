//! User name and password for a proxy.

use core::fmt;

use thiserror::Error;

/// User name and password for a proxy. Neither is displayed in any format.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

/// The reason why a text contains no credentials. It contains no part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CredentialsError {
    /// The text is not of the form `USER:PASSWORD`.
    #[error("the credentials of the proxy are not of the form USER:PASSWORD")]
    Form,
    /// The user name or the password is too long for SOCKS 5 (RFC 1929 section 2).
    #[error("the user name or the password of the proxy has more than 255 bytes")]
    TooLong,
    /// The text contains a control character, or is not UTF-8.
    #[error("the credentials of the proxy contain a control character or are not UTF-8")]
    Character,
}

impl Credentials {
    /// Creates credentials.
    ///
    /// # Errors
    /// The user name is empty or contains a colon (RFC 7617 section 2), or a part is too long or contains a control
    /// character.
    pub fn new(user: String, password: String) -> Result<Self, CredentialsError> {
        if user.is_empty() || user.contains(':') {
            return Err(CredentialsError::Form);
        }
        if user.len() > LONGEST || password.len() > LONGEST {
            return Err(CredentialsError::TooLong);
        }
        if user.chars().chain(password.chars()).any(char::is_control) {
            return Err(CredentialsError::Character);
        }
        Ok(Self { user, password })
    }

    /// Parses the content of a file or of an environment variable: `USER:PASSWORD`, and possibly the end of the line.
    ///
    /// # Errors
    /// As [`Self::new`], or the content is not UTF-8 or has no colon.
    pub fn parse(content: &[u8]) -> Result<Self, CredentialsError> {
        let text = core::str::from_utf8(content).map_err(|_| CredentialsError::Character)?;
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let (user, password) = line.split_once(':').ok_or(CredentialsError::Form)?;
        Self::new(user.to_owned(), password.to_owned())
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Maximum length of the user name, and of the password, in bytes.
const LONGEST: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_file_are_parsed() {
        for (content, user, password) in [
            ("u:p", "u", "p"),
            ("u:p\n", "u", "p"),
            ("u:p\r\n", "u", "p"),
            ("u:p:q ", "u", "p:q "),
            ("u:", "u", ""),
            ("ü:ß", "ü", "ß"),
        ] {
            let parsed = Credentials::parse(content.as_bytes()).unwrap();
            assert_eq!((parsed.user(), parsed.password()), (user, password), "{content}");
        }
    }

    #[test]
    fn text_without_credentials_is_refused_without_repeating_it() {
        let long = format!("u:{}", "x".repeat(256));
        for (content, why) in [
            (&b""[..], CredentialsError::Form),
            (b"secret", CredentialsError::Form),
            (b":secret", CredentialsError::Form),
            (b"u:secret\n\n", CredentialsError::Character),
            (b"u:se\0cret", CredentialsError::Character),
            (b"u:se\xffcret", CredentialsError::Character),
            (long.as_bytes(), CredentialsError::TooLong),
        ] {
            assert_eq!(Credentials::parse(content), Err(why));
            assert!(!why.to_string().contains("secret"));
        }
    }
}
