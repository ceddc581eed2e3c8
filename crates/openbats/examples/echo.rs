//! A server that echoes every message, and a client that checks the echo.
//!
//!     cargo run --release -p openbats --example echo

use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, Trust, Wait};

pub(crate) fn main() -> anyhow::Result<()> {
    let identity = Identity::generate(&["localhost"])?;
    let fingerprint = identity.fingerprint();
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity))
        .start()?;
    let address = server.local_addr();
    println!("server at {address}, fingerprint {fingerprint}");

    let echo = std::thread::spawn(move || -> anyhow::Result<()> {
        let connection = server.accept().wait()?;
        while let Some(message) = connection.recv().wait()? {
            connection.send(message).wait()?;
        }
        connection.finish().wait()?;
        Ok(())
    });

    let client = Endpoint::builder().start()?;
    let options = ClientOptions::new(Trust::fingerprint(fingerprint));
    let connection = client.connect(address, "localhost", options).wait()?;
    for message in ["one", "two", "three"] {
        connection.send(message).wait()?;
        let echo = connection.recv().wait()?.expect("the server has not finished");
        assert_eq!(echo, message);
        println!("{message} echoed");
    }
    connection.finish().wait()?;
    assert_eq!(connection.recv().wait()?, None);
    echo.join().expect("the server does not panic")?;
    println!("round-trip time {:?}", connection.stats().path.smoothed_rtt);
    Ok(())
}
