//! An echo server and a client, for docs/quick-start/rust.md.
//!
//!     cargo run --release -p openbats --example hello -- server 4433
//!     cargo run --release -p openbats --example hello -- client 127.0.0.1 4433

use std::error::Error;
use std::net::Ipv6Addr;

use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, Trust, Wait};

pub(crate) fn serve(port: u16) -> Result<(), Box<dyn Error>> {
    let server = Endpoint::builder()
        .bind((Ipv6Addr::UNSPECIFIED, port).into()) // IPv4, too
        .server(ServerOptions::new(Identity::generate(&["localhost"])?))
        .start()?;
    loop {
        let connection = server.accept().wait()?;
        if let Some(message) = connection.recv().wait()? {
            connection.send(message).wait()?;
        }
        // The client may have closed already: it has its answer.
        let _ = connection.finish().wait();
    }
}

pub(crate) fn ask(host: &str, port: u16) -> Result<String, Box<dyn Error>> {
    let address = *openbats::resolve_host(host, port)?.first().ok_or("no address")?;
    let client = Endpoint::builder().start()?;
    let options = ClientOptions::new(Trust::dangerous_any());
    let connection = client.connect(address, host, options).wait()?;
    connection.send("hello").wait()?;
    let answer = connection.recv().wait()?.ok_or("the server sent nothing")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port] => serve(port.parse()?),
        ["client", host, port] => {
            println!("echo: {}", ask(host, port.parse()?)?);
            Ok(())
        }
        _ => Err("usage: hello server PORT | hello client HOST PORT".into()),
    }
}
