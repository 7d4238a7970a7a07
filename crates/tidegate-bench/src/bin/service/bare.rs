//! The least that a server over hyper does: it reads the body and answers a constant of the usual
//! length. What a decision costs is the rest.

use std::convert::Infallible;

use anyhow::Result;
use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

const ANSWER: &[u8] = br#"{"allowed":true,"limit":"hot","most":1000000000,"remaining":999999999,"cost":1,"retry_after_ms":0,"reset_after_ms":1,"delay_ms":0,"reason":"allowed","shadow":false}"#;

/// Serves until it is killed; says first where.
pub fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("service: http://{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let service = service_fn(answer);
                let connection = http1::Builder::new()
                    .pipeline_flush(true)
                    .serve_connection(TokioIo::new(stream), service);
                // A client that leaves is the end of its connection and of nothing else.
                let _ = connection.await;
            });
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // What cannot be read is answered all the same: the peer is nothing but a measure.
    let _ = request.into_body().collect().await;
    Ok(Response::new(Full::new(Bytes::from_static(ANSWER))))
}
