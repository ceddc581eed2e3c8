//! The native part of the Python package `openbats`: thin wrappers of the Rust library. The public
//! API is in `python/openbats`.

mod channel;
mod connection;
mod endpoint;
mod error;
mod operation;
mod options;
mod sim;
mod topologies;

use pyo3::prelude::*;

/// `openbats._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("OpenBatsError", py.get_type::<error::OpenBatsError>())?;
    module.add("ConnectError", py.get_type::<error::ConnectError>())?;
    module.add("ConnectionClosed", py.get_type::<error::ConnectionClosed>())?;
    module.add("ChannelError", py.get_type::<error::ChannelError>())?;
    module.add("FileError", py.get_type::<error::FileError>())?;
    module.add("UnsupportedMode", py.get_type::<error::UnsupportedMode>())?;
    module.add_class::<channel::Channel>()?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<endpoint::Endpoint>()?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<operation::Hub>()?;
    module.add_class::<sim::Link>()?;
    module.add_function(wrap_pyfunction!(sim::transfer, module)?)?;
    module.add_function(wrap_pyfunction!(sim::cell, module)?)?;
    module.add_function(wrap_pyfunction!(topologies::hops, module)?)?;
    module.add_function(wrap_pyfunction!(topologies::paths, module)?)?;
    Ok(())
}
