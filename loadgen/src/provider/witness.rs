//! A service's statements about its readiness, on every channel that it has, at one moment.
//!
//! Owns: the requests. Must not: judge the answers. Runs on the main thread, with a runtime of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use proto::v1::StatusRequest;
use proto::v1::kv_client::KvClient;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::live::process::{ask, get};

/// Longest wait for an answer over gRPC. No answer in this time counts as `None`.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Number of the status `SERVING` in grpc.health.v1.
const SERVING: i32 = 1;

/// The answers of one moment. `None` means no answer.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Said {
    /// Whether `/readyz` answers with status 200.
    pub readyz: Option<bool>,
    /// Reason why the service is not ready, in the words of `/readyz`.
    pub reason: String,
    /// Whether gRPC health says that `solkv.v1.Kv` is serving.
    pub health: Option<bool>,
    /// Whether the Status rpc says that it is ready.
    pub status: Option<bool>,
    /// Whether `/status.json` says that it is ready.
    pub status_json: Option<bool>,
    /// Whether `/dashboard.json` says that it is ready.
    pub dashboard: Option<bool>,
    /// Whether the metric `solkv_ready` is 1.
    pub metric: Option<bool>,
    /// Value of the metric `solkv_lag_seconds`.
    pub lag_s: Option<f64>,
    /// Whether systemd's status line begins with "live". `None` without a unit.
    pub unit: Option<bool>,
}

impl Said {
    /// Returns the common answer of all channels; `None` if two differ or one is missing. The unit's line is compared
    /// only if there is one. The service checks that line four times a second.
    pub fn ready(&self) -> Option<bool> {
        let all = [self.readyz, self.health, self.status, self.status_json, self.dashboard, self.metric];
        let first = all[0]?;
        let agree = all.iter().all(|said| *said == Some(first)) && self.unit.is_none_or(|unit| unit == first);
        agree.then_some(first)
    }
}

/// Asks one service for its readiness.
pub struct Witness {
    runtime: Runtime,
    http: String,
    kv: KvClient<Channel>,
    health: HealthClient<Channel>,
    unit: Option<String>,
}

impl Witness {
    /// Prepares to ask the service whose pages are at `http` and whose gRPC is at `grpc`. `unit` is the name of its
    /// systemd unit, if it has one.
    pub fn new(http: &str, grpc: &str, unit: Option<String>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).context("not an address")?;
        let channel = {
            let _entered = runtime.enter();
            endpoint.timeout(TIMEOUT).connect_timeout(TIMEOUT).connect_lazy()
        };
        let (kv, health) = (KvClient::new(channel.clone()), HealthClient::new(channel));
        Ok(Self { runtime, http: http.to_owned(), kv, health, unit })
    }

    /// Asks on every channel, one after the other, within a few milliseconds.
    pub fn ask(&mut self) -> Said {
        let mut said = Said::default();
        if let Ok((status, body)) = ask(&self.http, "/readyz") {
            said.readyz = Some(status == 200);
            said.reason = String::from_utf8_lossy(&body).trim().to_owned();
        }
        let json = |path: &str| {
            serde_json::from_slice::<serde_json::Value>(&get(&self.http, path).ok()?).ok()?.get("ready")?.as_bool()
        };
        said.status_json = json("/status.json");
        said.dashboard = json(&format!("/dashboard.json?since={}", u64::MAX));
        if let Ok(text) = get(&self.http, "/metrics") {
            let text = String::from_utf8_lossy(&text);
            let sample = |name: &str| -> Option<f64> {
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            };
            said.metric = sample("solkv_ready").map(|ready| ready == 1.0);
            said.lag_s = sample("solkv_lag_seconds");
        }
        let Self { runtime, kv, health, .. } = self;
        let asked = HealthCheckRequest { service: "solkv.v1.Kv".to_owned() };
        said.health = runtime.block_on(health.check(asked)).ok().map(|answer| answer.into_inner().status == SERVING);
        said.status =
            runtime.block_on(kv.status(StatusRequest::default())).ok().map(|answer| answer.into_inner().ready);
        said.unit = self.unit.as_deref().and_then(unit_is_live);
        said
    }
}

fn unit_is_live(unit: &str) -> Option<bool> {
    let output = Command::new("systemctl").args(["show", "--property=StatusText", "--value", unit]).output().ok()?;
    output.status.success().then(|| output.stdout.starts_with(b"live"))
}
