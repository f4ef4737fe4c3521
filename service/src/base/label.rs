//! Enums whose variants are the values of a label in metrics and log lines.
//!
//! Owns: how such an enum is declared, with the list of its variants and their names. Must not: know a label. Any thread.

/// Declares an enum, its list `ALL`, and the name of each variant as a value of the label.
macro_rules! labels {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$note:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$note])* $variant,)+ }

        impl $name {
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// The label's value in metrics and log lines.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

pub(crate) use labels;
