//! The doors of the clients' protocols, and the listener of the pages.
//!
//! Owns: opening them, and the line that names them. Must not: serve. Runs on `main`, in the tokio runtime.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use tokio::net::TcpListener;
use tracing::info;

use crate::config::Config;
use crate::net::figures::Figures;
use crate::net::limit::{ConnectionLimits, Room};
use crate::net::{Access, Listeners, Ports};
use crate::rpc::UdsListener;
use crate::{redis, rpc, web};

pub(super) struct Doors {
    pub(super) rpc: rpc::Door,
    pub(super) redis: redis::Door,
    pub(super) web: web::Door,
    pub(super) pages: TcpListener,
}

impl Doors {
    /// Lets clients connect; their requests wait until they are served.
    ///
    /// # Errors
    /// An address or a path cannot be used; the error names it.
    pub(super) fn open(config: &Config, ports: Ports, access: &Arc<Access>, net: &Arc<Figures>) -> Result<Self> {
        let Listeners { grpc, redis, web, http: pages } = ports.listen()?;
        let of_uds = config.grpc.uds_access()?;
        let bind = |path: &Option<PathBuf>| path.as_deref().map(|path| UdsListener::bind(path, &of_uds)).transpose();
        let (grpc_uds, redis_uds, http_uds) = (&config.grpc.uds, &config.redis.redis_uds, &config.web.http_uds);
        let room = Room::new(ConnectionLimits::of(config.connections.max_connections), net);
        let address = |listener: &Option<TcpListener>| {
            listener.as_ref().map(|listener| listener.local_addr().map(|at| at.to_string())).transpose()
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let doors = Self {
            rpc: rpc::Door { tcp: grpc, uds: bind(grpc_uds)?, access: Arc::clone(access), room: room.clone() },
            redis: redis::Door { tcp: redis, uds: bind(redis_uds)?, access: Arc::clone(access), room: room.clone() },
            web: web::Door { tcp: web, uds: bind(http_uds)?, access: Arc::clone(access), room },
            pages,
        };
        info!(
            listen = %doors.rpc.tcp.local_addr()?, metrics = %doors.pages.local_addr()?,
            uds = path(grpc_uds),
            redis = address(&doors.redis.tcp)?,
            redis_uds = path(redis_uds),
            http = address(&doors.web.tcp)?,
            http_uds = path(http_uds),
            shm = path(&config.shm.shm), %access, "listening"
        );
        Ok(doors)
    }
}
