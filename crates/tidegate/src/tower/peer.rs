//! The other end of a request's socket, as servers put it into requests.

use std::net::IpAddr;

use http::Extensions;

use crate::http::Peer;

/// The peer of a request, if its server says.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(Peer(address)) = extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>() {
        return Some(info.0.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|address| address.ip());
    }
    None
}
