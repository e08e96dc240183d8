//! Macros that list the fields of a record. A structure with a field that its list lacks does not compile.

/// Implements [`Record`](crate::state::Record) for a structure, from the list of its fields.
///
/// `record! { Type { field, other since 2 = default } elsewhere { cache = value } }`: states before version 2 do not contain
/// `other`, which has the value `default` then. The fields behind `elsewhere` are not a part of the record and have the value
/// `value` when it is read: they belong to another section of the state, or are computed from others.
macro_rules! record {
    ($Type:ident {
        $($field:ident $(since $version:literal = $default:expr)?),* $(,)?
    } $(elsewhere { $($other:ident = $value:expr),* $(,)? })?) => {
        impl $crate::state::Record for $Type {
            fn save(&self, to: &mut $crate::state::Writer<'_>) {
                let Self { $($field,)* $($($other: _,)*)? } = self;
                $(to.put($field);)*
            }

            fn load(from: &mut $crate::state::Reader<'_>) -> Result<Self, $crate::state::StateError> {
                Ok(Self {
                    $($field: $crate::state::field!(from $(, $version, $default)?),)*
                    $($($other: $value,)*)?
                })
            }
        }
    };
}

/// Implements the record of a structure with host sockets, as [`record!`]: `save_record`, `load_record`, which reads a value
/// without sockets, and `with_sockets`, whose arguments are the fields behind `sockets`.
macro_rules! flow_record {
    ($Type:ident { $($field:ident $(since $version:literal = $default:expr)?),* $(,)? }
        sockets { $($socket:ident: $Socket:ty),* }
        elsewhere { $($other:ident = $value:expr),* $(,)? }
    ) => {
        impl<S> $Type<S> {
            pub(super) fn save_record(&self, to: &mut $crate::state::Writer<'_>) {
                let Self { $($field,)* $($socket: _,)* $($other: _,)* } = self;
                $(to.put($field);)*
            }
        }

        impl $Type<()> {
            pub(super) fn load_record(
                from: &mut $crate::state::Reader<'_>,
            ) -> Result<Self, $crate::state::StateError> {
                Ok(Self {
                    $($field: $crate::state::field!(from $(, $version, $default)?),)*
                    $($socket: Default::default(),)*
                    $($other: $value,)*
                })
            }

            pub(super) fn with_sockets<S>(self, $($socket: $Socket),*) -> $Type<S> {
                let Self { $($field,)* $($socket: _,)* $($other,)* } = self;
                $Type { $($field,)* $($socket,)* $($other,)* }
            }
        }
    };
}

/// Reads a field of a record: one that all versions contain, or one that a version has added.
macro_rules! field {
    ($from:ident) => {
        $from.get()?
    };
    ($from:ident, $version:literal, $default:expr) => {
        match $from.version() >= $version {
            true => $from.get()?,
            false => $default,
        }
    };
}

/// Implements [`Record`](crate::state::Record) for an enumeration, from the list of its variants with their codes. A variant
/// has no fields, named fields or one unnamed field.
macro_rules! record_enum {
    ($Type:ident { $($code:literal = $Variant:ident
        $({ $($field:ident),* })? $(($value:ident))?),* $(,)? }
    ) => {
        impl $crate::state::Record for $Type {
            fn save(&self, to: &mut $crate::state::Writer<'_>) {
                match self {
                    $(Self::$Variant $({ $($field),* })? $(($value))? => {
                        to.put(&{ const CODE: u8 = $code; CODE });
                        $($(to.put($field);)*)?
                        $(to.put($value);)?
                    })*
                }
            }

            fn load(from: &mut $crate::state::Reader<'_>) -> Result<Self, $crate::state::StateError> {
                match from.get::<u8>()? {
                    $($code => Ok(Self::$Variant
                        $({ $($field: from.get()?),* })?
                        $(({ let $value = from.get()?; $value }))?
                    ),)*
                    _ => Err($crate::state::StateError::Malformed),
                }
            }
        }
    };
}

pub(crate) use {field, flow_record, record, record_enum};
