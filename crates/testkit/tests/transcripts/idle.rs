//! Connections on which nothing happens.

use super::*;
