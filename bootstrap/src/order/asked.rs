//! Options of a load that its spill keeps, because a load that is stopped while it reads has no store yet to keep them.
//!
//! Owns: which options these are, and how a resumed load takes them. Must not: keep options that hold for one start
//! alone, such as memory and the engine's own settings. Runs on the main thread.

use std::fmt::Display;

use engines::{EngineKind, Profile};
use serde::{Deserialize, Serialize};

use crate::load::LoadArgs;
use crate::out::tell;
use crate::rank::Order;

/// The options as they were given, by hand or by an earlier start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    engine: Option<EngineKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bloom: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
    /// Slot of the source that the spill names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u64>,
}

impl Asked {
    /// Returns the options of this start.
    pub(crate) fn of(args: &LoadArgs) -> Self {
        Self {
            engine: args.engine.engine,
            bloom: args.engine.bloom,
            profile: args.engine.profile,
            cluster: args.meaning.cluster.clone(),
            order: args.order,
            slot: args.slot,
        }
    }

    /// Whether no option was given.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the options that `args` lacks, except the slot, and prints them. If an option is given again with another
    /// value, the new value holds, because nothing is loaded yet; a line says so. Options of another engine than the
    /// one that is given are left out.
    pub(crate) fn fill(&self, args: &mut LoadArgs) {
        let mut taken = Taken::default();
        taken.one("--engine", &mut args.engine.engine, self.engine, |engine| engine.to_string());
        if args.engine.engine == self.engine {
            taken.one("--bloom", &mut args.engine.bloom, self.bloom, |bits| bits.to_string());
            taken.one("--profile", &mut args.engine.profile, self.profile, |profile| profile.as_str().to_owned());
        }
        taken.one("--cluster", &mut args.meaning.cluster, self.cluster.clone(), String::clone);
        taken.one("--order", &mut args.order, self.order, |order| order.name().to_owned());
        taken.tell(args.dir.display());
    }
}

/// Options that a load takes from an earlier start, and options that are given with other values now, as text.
#[derive(Default)]
struct Taken {
    again: Vec<String>,
    otherwise: Vec<String>,
}

impl Taken {
    fn one<T: PartialEq>(&mut self, name: &str, given: &mut Option<T>, kept: Option<T>, show: impl Fn(&T) -> String) {
        match (given.as_ref(), kept) {
            (None, Some(kept)) => {
                self.again.push(format!("{name} {}", show(&kept)));
                *given = Some(kept);
            }
            (Some(given), Some(kept)) if *given != kept => {
                self.otherwise.push(format!("{name} {} in place of {}", show(given), show(&kept)));
            }
            _ => {}
        }
    }

    fn tell(&self, dir: impl Display) {
        if !self.again.is_empty() {
            tell!("options taken from the load that was begun: dir={dir} {}", self.again.join(" "));
        }
        if !self.otherwise.is_empty() {
            tell!("options given otherwise than when the load was begun: dir={dir} {}", self.otherwise.join(", "));
        }
    }
}
