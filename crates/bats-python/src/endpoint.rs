//! The native endpoint class.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use openbats::{ClientOptions, Identity, ServerOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::connection::Connection;
use crate::error::ConnectError;
use crate::operation::{Operation, Value};
use crate::options::{Options, trust};

fn ip(text: &str) -> PyResult<IpAddr> {
    text.parse().map_err(|_| PyValueError::new_err(format!("'{text}' is not an IP address")))
}

/// `openbats._native.Endpoint`.
#[pyclass(frozen)]
pub(crate) struct Endpoint {
    inner: openbats::Endpoint,
    fingerprint: Option<String>,
}

#[pymethods]
impl Endpoint {
    /// Creates an endpoint that only connects, with these options.
    #[staticmethod]
    fn client(py: Python<'_>, local: Option<(String, u16)>, options: Options) -> PyResult<Self> {
        let mut builder = options.endpoint_builder();
        if options.is_mode_udp() {
            builder = builder.only_udp();
        }
        if let Some((host, port)) = local {
            builder = builder.bind(SocketAddr::new(ip(&host)?, port));
        }
        let inner = py.detach(|| builder.start());
        let inner = inner.map_err(|error| ConnectError::new_err(error.to_string()))?;
        Ok(Self { inner, fingerprint: None })
    }

    /// Creates an endpoint that accepts connections. `identity` are files of a certificate and its
    /// key; without a key, one file with both, which is generated if it does not exist; without
    /// files the certificate is generated for this endpoint.
    #[staticmethod]
    fn server(
        py: Python<'_>,
        local: (String, u16),
        identity: Option<(PathBuf, Option<PathBuf>)>,
        client_trust: Option<(String, Vec<String>)>,
        options: Options,
    ) -> PyResult<Self> {
        let client_trust = client_trust.map(|(kind, values)| trust(&kind, &values)).transpose()?;
        let builder = options.endpoint_builder();
        let transport = options.transport()?;
        let address = SocketAddr::new(ip(&local.0)?, local.1);
        let identity = match identity {
            Some((certificate, Some(key))) => Identity::from_pem_files(certificate, key),
            Some((file, None)) => Identity::load_or_generate(file, &["localhost"]),
            None => Identity::generate(&["localhost"]),
        };
        let identity = identity.map_err(|error| ConnectError::new_err(error.to_string()))?;
        let fingerprint = Some(identity.fingerprint().to_string());
        let mut server = ServerOptions::new(identity)
            .transport(transport)
            .quic_datagrams(options.quic_datagrams);
        if let Some(trust) = client_trust {
            server = server.client_trust(trust);
        }
        if let Some(level) = options.compression()? {
            server = server.compression(level);
        }
        let started = py.detach(|| builder.bind(address).server(server).start());
        let inner = started.map_err(|error| ConnectError::new_err(error.to_string()))?;
        Ok(Self { inner, fingerprint })
    }

    fn address(&self) -> (String, u16) {
        let address = self.inner.local_addr();
        (address.ip().to_string(), address.port())
    }

    fn fingerprint(&self) -> Option<String> {
        self.fingerprint.clone()
    }

    /// Connects to `host`, a name or an address; all addresses of a name are tried in turn. `server`
    /// is a kind of [`trust`] and its values; `identity` are files of a certificate and its key.
    fn connect(
        &self,
        host: String,
        port: u16,
        server: (String, Vec<String>),
        identity: Option<(PathBuf, PathBuf)>,
        options: Options,
    ) -> PyResult<Operation> {
        let level = options.compression()?;
        let mut options = ClientOptions::new(trust(&server.0, &server.1)?)
            .transport(options.transport()?)
            .quic_datagrams(options.quic_datagrams);
        if let Some((certificate, key)) = identity {
            let identity = Identity::from_pem_files(certificate, key);
            let identity = identity.map_err(|error| ConnectError::new_err(error.to_string()))?;
            options = options.identity(identity);
        }
        if let Some(level) = level {
            options = options.compression(level);
        }
        let endpoint = self.inner.clone();
        Ok(Operation::new(async move {
            Ok(Connection::value(endpoint.connect_host(&host, port, options).await?))
        }))
    }

    fn accept(&self) -> Operation {
        let endpoint = self.inner.clone();
        Operation::new(async move { Ok(Connection::value(endpoint.accept().await?)) })
    }

    /// Closes all connections and frees the port.
    fn terminate(&self) -> Operation {
        let endpoint = self.inner.clone();
        Operation::new(async move {
            endpoint.terminate(0, "").await;
            Ok(Value::Nothing)
        })
    }
}
