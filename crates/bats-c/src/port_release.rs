//! Frees the ports of endpoints.

use std::time::Duration;

use openbats::{Endpoint, Wait};

/// Maximum time to release a port.
const PORT_RELEASE: Duration = Duration::from_secs(2);

/// Frees the port of an endpoint.
pub(crate) fn release_port(endpoint: &Endpoint) {
    if endpoint.terminate(0, "").wait_for(PORT_RELEASE).is_err() {
        tracing::warn!("a port is not free yet: its I/O thread did not end in time");
    }
}
