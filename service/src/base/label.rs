//! Enums whose variants have names: the values of a label in metrics and log lines, or words in a document.
//!
//! Owns: how such an enum is declared, with the list of its variants and their names. Must not: know a label. Any thread.

/// Declares an enum, its list `ALL`, and the name of each variant.
macro_rules! labels {
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($(#[$note:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$note])* $variant,)+ }

        impl $name {
            $vis const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// The variant's name, as metrics, log lines, pages and documents show it.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

pub(crate) use labels;
