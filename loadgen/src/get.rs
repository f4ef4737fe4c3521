//! `loadgen get`: looks up keys that a person types in a running service.
//!
//! Owns: the arguments and the printed lines. Must not: read a store; the service does. Runs on the main thread.

use anyhow::{Result, ensure};
use program::say;

use crate::access::Access;

/// Text after the options in `loadgen get --help`.
pub const EXAMPLES: &str = "\
Prints a line for each key, in the order of the arguments: the key and its value, or the key and - if the map does not \
have it. Both are in base58. The exit code is 1 if a key is absent.

Examples:
  solkv-loadgen get --address unix:///run/solkv/kv.sock So11111111111111111111111111111111111111112
  solkv-loadgen get --address 127.0.0.1:7400 \
069b8857feab8184fb687f634618c035dac439dc1aeb3b5598a0f00000000001";

/// Arguments of `loadgen get`: a service and keys.
#[derive(clap::Args, Clone, Debug)]
pub struct GetArgs {
    /// Address of the service: shm:///PATH, unix:///PATH, HOST:PORT, http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL")]
    address: String,
    /// Token and certificates, if the service demands them.
    #[command(flatten)]
    access: Access,
    /// Keys to look up, in base58 or as 64 hex digits
    #[arg(value_name = "KEY", required = true, value_parser = workload::pubkey)]
    keys: Vec<[u8; 32]>,
}

/// Looks up the keys in the running service, and prints a line for each.
///
/// # Errors
/// Those of [`look_up`]; a key that is absent, after all lines were printed.
pub fn run(args: &GetArgs) -> Result<()> {
    let values = look_up(args)?;
    args.keys.iter().zip(&values).for_each(|(key, value)| say!("{}", line(key, value.as_ref())));
    let absent = values.iter().filter(|value| value.is_none()).count();
    ensure!(absent == 0, "keys are absent from the map: absent={absent} asked={}", values.len());
    Ok(())
}

/// Looks up the keys, and returns their values in the same order.
///
/// # Errors
/// No service at the address, or one that refuses the lookup.
pub fn look_up(args: &GetArgs) -> Result<Vec<Option<[u8; 32]>>> {
    let mut client = args.access.builder(&args.address)?.connect_blocking()?;
    Ok(client.get_many(&args.keys)?.value)
}

impl GetArgs {
    /// Refuses an address of no known form.
    ///
    /// # Errors
    /// Such an address; a token or certificate that cannot be read.
    pub fn check(&self) -> Result<()> {
        self.access.builder(&self.address).map(drop)
    }
}

fn line(key: &[u8; 32], value: Option<&[u8; 32]>) -> String {
    let base58 = |bytes: &[u8; 32]| bs58::encode(bytes).into_string();
    format!("{} {}", base58(key), value.map_or_else(|| "-".to_owned(), base58))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_key_and_value_or_a_dash() {
        let (key, ones) = ([0; 32], "1".repeat(32));
        assert_eq!(line(&key, Some(&key)), format!("{ones} {ones}"));
        assert_eq!(line(&key, None), format!("{ones} -"));
    }
}
